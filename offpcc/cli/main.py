"""The command line: train, evaluate, plot, envs, check, collect. The import has no side effects.

python offpcc/launch.py --env pendulum-p-v0 --algo rsac --config configs/quickstart.gin --run_id 1
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from offpcc.cli import arguments
from offpcc.cli.arguments import check_variables
from offpcc.utils import signals
from offpcc.utils.errors import UserError

COMMANDS = {  # where each command is, and its help
    "train": ("offpcc.cli.train:train", "train an agent, resume a run, or show what it learned (the default)"),
    "evaluate": ("offpcc.cli.commands:evaluate", "returns of a saved actor over many episodes"),
    "plot": ("offpcc.cli.commands:plot", "learning curves, mean and spread over run ids, a line for each setting"),
    "envs": ("offpcc.cli.commands:envs", "environments, their sizes and what they hide"),
    "check": (
        "offpcc.cli.commands:check",
        "what would spoil learning in an environment or in recorded data; exit code 1 if anything does",
    ),
    "collect": ("offpcc.cli.collect:collect", "record a data set: D4RL's HDF5 format, and Minari's"),
}
ELSEWHERE = {  # options that users may expect of a command, but that it does not have
    (
        "train",
        "--actor",
    ): "training does not begin from a saved actor (fine-tuning is not offered yet); leave it out, as "
    "--actor belongs to `offpcc collect`",
}


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that reports an error in one message, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            UserError: always.
        """
        fault = message.removeprefix("argument ").replace("the following arguments are required: ", "missing: ")
        raise UserError(f"{fault}; see `{self.prog} --help`")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    # NumPy's matrix products are small (one step of a few environments); its threads would compete with torch's. NumPy
    # reads this variable when it is imported, later.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    logging.raiseExceptions = False  # a log file of W&B on a full disk would print a traceback beside our message
    with signals.handled(to_the_end=words is None):
        try:
            check_variables()
            command, options = parse(sys.argv[1:] if words is None else words)
            code: int = _find(command)(**options)
        except (UserError, signals.Interrupted) as error:
            code = error.report()
        except KeyboardInterrupt:  # raised by code outside offpcc
            code = signals.interrupted().report()
    return code


def _find(command: str) -> Callable[..., int]:
    """Import a command: a function of its options. The commands import torch, so `--help` imports none."""
    module, _, name = COMMANDS[command][0].partition(":")
    function: Callable[..., int] = getattr(importlib.import_module(module), name)
    return function


def parse(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the command of a command line and its options by name; without a command, those of training.

    Raises:
        UserError: the command or an option does not exist, or the value of an option is invalid.
    """
    first = words[0] if words else "-"
    if not first.startswith("-") and first not in COMMANDS:
        near = difflib.get_close_matches(first, COMMANDS, 1)
        advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}; without one, offpcc trains"
        raise UserError(f"there is no command {first!r}; {advice}")
    is_command = first in (*COMMANDS, "-h", "--help", "--version")
    given = [_with_underscores(word) for word in (words if is_command else ["train", *words])]
    for word in given:
        if reason := ELSEWHERE.get((given[0], word.split("=")[0])):
            raise UserError(f"`offpcc {given[0]}` does not take {word}; {reason}")
    options, unknown = parser(with_names=bool({"-h", "--help"} & set(given))).parse_known_args(given)
    if unknown:
        known = ["--import" if name == "modules" else f"--{name}" for name in vars(options) if name != "folder"]
        near = difflib.get_close_matches(unknown[0].split("=")[0], known, 1)
        advice = f"did you mean {near[0]}?" if near else f"see `offpcc {given[0]} --help`"
        raise UserError(f"`offpcc {given[0]}` does not take {unknown[0]}; {advice}")
    return given[0], vars(options)


def _with_underscores(word: str) -> str:
    """Return `--run-id=1` as `--run_id=1`; the value does not change."""
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if word.startswith("--") else word


HELP = {  # longer ones
    "--dataset_fraction": "of its steps, from the start, rounded up to whole episodes",
    "--import": "a module with parts of your own, which a run's folder does not import by itself; may be given again",
    "--threads": "of torch on the CPU, by default 1",
}
OPTIONS: dict[str, dict[str, Any]] = {  # the options of all commands, as arguments of argparse
    "--actor": {"required": True, "metavar": "FOLDER|random", "help": "a run's folder, or an actor's file"},
    "--algo": {"required": True, "metavar": "NAME", "help": "an algorithm, or a registered class"},
    "--config": {"metavar": "FILE.gin", "help": "whose imports or wrappers make the environment"},
    "--dataset": {"metavar": "DATA", "help": "a file, D4RL's name or minari:ID"},
    "--dataset_fraction": {"type": arguments.fraction, "default": 1.0, "metavar": "F"},
    "--deterministic": {"action": "store_true", "help": "act without exploration"},
    "--device": {"metavar": "cpu|cuda|cuda:N", "help": "CUDA if there is one, else the CPU"},
    "--env": {"metavar": "NAME", "help": "a Gymnasium id, see `offpcc envs`"},
    "--episodes": {"type": arguments.positive, "metavar": "N"},
    "--gallery": {"type": arguments.file, "metavar": "FILE.png", "help": "instead, one picture of all families"},
    "--gin": {"nargs": "+", "action": "extend", "default": [], "metavar": "BINDING", "help": '"SAC.lr=1e-4" ...'},
    "--import": {"dest": "modules", "type": arguments.module, "action": "append", "default": [], "metavar": "MODULE"},
    "--longest_episode": {"type": arguments.positive, "metavar": "N"},
    "--metric": {"default": "test/return", "metavar": "COLUMN", "help": "of progress.csv"},
    "--minari": {"metavar": "ID", "help": "write them as a Minari data set, too"},
    "--num_envs": {"type": arguments.num_envs, "default": 20, "metavar": "N", "help": "episodes side by side"},
    "--out": {"type": arguments.file, "required": True, "metavar": "FILE.hdf5", "help": "where they go"},
    "--output": {"type": arguments.file, "metavar": "FILE.png"},
    "--record": {"action": "store_true", "help": "record the saved actor as MP4 files"},
    "--render": {"action": "store_true", "help": "show the saved actor in a window, or record it"},
    "--results": {"metavar": "DIR", "help": "else $OFFPCC_RESULTS, else results/ of the checkout"},
    "--resume": {"action": "store_true", "help": "go on from the last checkpoint"},
    "--run_id": {"type": arguments.run_id, "nargs": "+", "default": [1], "metavar": "N", "help": "each id is its seed"},
    "--save_dataset": {"type": arguments.file, "metavar": "FILE.hdf5", "help": "record every step of training"},
    "--seed": {"type": arguments.run_id, "metavar": "N"},
    "--steps": {"type": arguments.positive, "metavar": "N"},
    "--threads": {"type": arguments.num_threads, "metavar": "N", "default": 1},
    "--track": {"action": "store_true", "help": "follow the run in Weights & Biases"},
    "folder": {"type": arguments.path, "metavar": "FOLDER"},
}
TAKES = {  # the options of each command
    "train": "--env --dataset --dataset_fraction --algo --config --import --run_id --gin --device --threads --resume "
    "--render --record --save_dataset --episodes --track --results",
    "evaluate": "folder --episodes --env --seed --num_envs --config --import --device --threads",
    "plot": "folder --output --metric",
    "envs": "--gallery",
    "check": "--env --dataset --dataset_fraction --output --steps --longest_episode --seed --config --import",
    "collect": "--env --actor --steps --out --minari --seed --deterministic --resume --config --import --device "
    "--threads",
}
OF_COMMAND: dict[str, dict[str, Any]] = {  # where an option of a command differs from the table above
    "train --env": {"help": "a Gymnasium id, see `offpcc envs`, or D4RL's name of a data set"},
    "train --dataset": {"help": "learn from recorded data: a file, D4RL's name or minari:ID"},
    "train --config": {"help": "as given, from the repository's root or below configs/"},
    "train --episodes": {"help": "of --render and --record"},
    "evaluate folder": {"help": "a run's folder, or an actor's file"},
    "evaluate --episodes": {"default": 100},
    "evaluate --env": {"help": "another environment than the run's"},
    "evaluate --seed": {"default": 2_000_000, "help": "of the first episode"},
    "evaluate --config": {"help": "whose imports define a class of your own"},
    "plot folder": {"nargs": "+", "help": "of runs, algorithms or environments"},
    "plot --output": {"default": Path("curves.png")},
    "check --env": {"help": "any Gymnasium id, or MODULE:ID of your own"},
    "check --output": {"help": "a picture of the data's returns and lengths"},
    "check --steps": {"help": "of the longest walk through it, by default 2000"},
    "check --longest_episode": {"help": "steps; a longer one is a fault; by default 27000"},
    "check --seed": {"help": "of the environment and the actions, by default 0"},
    "collect --env": {"required": True},
    "collect --steps": {"required": True, "help": "environment steps to record"},
    "collect --seed": {"default": 0, "help": "of environment, noise and random actions"},
    "collect --resume": {"help": "go on with a recording that was stopped"},
}


def parser(with_names: bool = False) -> argparse.ArgumentParser:
    """Return the parser of all commands; it lists algorithms and environments only for --help, because this is slow."""
    listed = names() if with_names else ""
    whole = Parser(
        prog="offpcc",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Off-policy continuous control with memory. Without a command, offpcc trains.",
        epilog=f"`offpcc train --help` lists the options of training.\n\n{listed}" if with_names else "",
    )
    whole.add_argument("--version", action="version", version=_version())
    commands = whole.add_subparsers(required=True, metavar="{" + ",".join(COMMANDS) + "}")
    for name, (_, summary) in COMMANDS.items():
        layout: dict[str, Any] = {}
        if name == "train":
            layout = {"formatter_class": argparse.RawDescriptionHelpFormatter, "epilog": listed}
        command = commands.add_parser(name, help=summary, **layout)
        for option in TAKES[name].split():
            longer = {"help": HELP.get(option)}
            command.add_argument(option, **longer | OPTIONS[option] | OF_COMMAND.get(f"{name} {option}", {}))
    return whole


def _version() -> str:
    from offpcc.utils.version import __version__

    return f"offpcc {__version__}"


def names() -> str:
    """Return the names of algorithms and environments, for --help."""
    from offpcc.algorithms import ALGORITHMS
    from offpcc.envs import ENVIRONMENTS

    def block(title: str, entries: Sequence[str]) -> str:
        return f"{title}:\n" + textwrap.fill(
            " ".join(entries), 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )

    own = block("environments", [environment.name for environment in ENVIRONMENTS])
    return f"{block('algorithms', list(ALGORITHMS))}\n\n{own}\n  and any Gymnasium id with a Box action space"
