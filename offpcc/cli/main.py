"""The command line: train, evaluate, plot, envs, check, collect. The import has no side effects.

python offpcc/launch.py --env pendulum-p-v0 --algo rsac --config configs/quickstart.gin --run_id 1
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from offpcc.cli import arguments
from offpcc.cli.arguments import check_variables
from offpcc.utils import signals
from offpcc.utils.errors import UserError

COMMANDS = ("train", "evaluate", "plot", "envs", "check", "collect")
NO_OPTIONS = ("folder", "run")  # parsed names that are not options
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
    with signals.handled(to_the_end=words is None):
        try:
            check_variables()
            options = parse(sys.argv[1:] if words is None else words)
            code: int = options.run(options)
        except (UserError, signals.Interrupted) as error:
            code = error.report()
        except KeyboardInterrupt:  # raised by code outside offpcc
            code = signals.interrupted().report()
    return code


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; without a command, the options are those of training.

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
        if told := ELSEWHERE.get((given[0], word.split("=")[0])):
            raise UserError(f"`offpcc {given[0]}` does not take {word}; {told}")
    options, unknown = parser(with_names=bool({"-h", "--help"} & set(given))).parse_known_args(given)
    if unknown:
        known = [f"--{name}" for name in vars(options) if name not in NO_OPTIONS]
        near = difflib.get_close_matches(unknown[0].split("=")[0], known, 1)
        advice = f"did you mean {near[0]}?" if near else f"see `offpcc {given[0]} --help`"
        raise UserError(f"`offpcc {given[0]}` does not take {unknown[0]}; {advice}")
    return options


def _with_underscores(word: str) -> str:
    """Return `--run-id=1` as `--run_id=1`; the value does not change."""
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if word.startswith("--") else word


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

    train = commands.add_parser(
        "train",
        help="train an agent, resume a run, or show what it learned (the default)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=listed,
    )
    train.add_argument("--env", metavar="NAME", help="a Gymnasium id, see `offpcc envs`, or D4RL's name of a data set")
    train.add_argument("--dataset", metavar="DATA", help="learn from recorded data: a file, D4RL's name or minari:ID")
    _fraction(train)
    train.add_argument("--algo", required=True, metavar="NAME", help="an algorithm, or a registered class")
    train.add_argument("--config", metavar="FILE.gin", help="as given, from the repository's root or below configs/")
    _import(train)
    train.add_argument(
        "--run_id", type=arguments.run_id, nargs="+", default=[1], metavar="N", help="each id is its seed"
    )
    train.add_argument("--gin", nargs="+", action="extend", default=[], metavar="BINDING", help='"SAC.lr=1e-4" ...')
    _device(train)
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    train.add_argument("--render", action="store_true", help="show the saved actor in a window, or record it")
    train.add_argument("--record", action="store_true", help="record the saved actor as MP4 files")
    train.add_argument("--save_dataset", type=arguments.file, metavar="FILE.hdf5", help="record every step of training")
    train.add_argument(
        "--episodes", type=arguments.positive, default=None, metavar="N", help="of --render and --record"
    )
    train.add_argument("--track", action="store_true", help="follow the run in Weights & Biases")
    _results(train)
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("evaluate", help="returns of a saved actor over many episodes")
    evaluate.add_argument("folder", type=arguments.path, metavar="FOLDER", help="a run's folder, or an actor's file")
    evaluate.add_argument("--episodes", type=arguments.positive, default=100, metavar="N")
    evaluate.add_argument("--env", metavar="NAME", help="another environment than the run's")
    evaluate.add_argument("--seed", type=arguments.run_id, default=2_000_000, metavar="N", help="of the first episode")
    evaluate.add_argument("--num_envs", type=arguments.num_envs, default=20, metavar="N", help="episodes side by side")
    evaluate.add_argument("--config", metavar="FILE.gin", help="whose imports define a class of your own")
    _import(evaluate)
    _device(evaluate)
    evaluate.set_defaults(run=_evaluate)

    plot = commands.add_parser("plot", help="learning curves, mean and spread over run ids, a line for each setting")
    plot.add_argument(
        "folder", type=arguments.path, nargs="+", metavar="FOLDER", help="of runs, algorithms or environments"
    )
    plot.add_argument("--output", type=arguments.file, default=Path("curves.png"), metavar="FILE.png")
    plot.add_argument("--metric", default="test/return", metavar="COLUMN", help="of progress.csv")
    plot.set_defaults(run=_plot)

    envs = commands.add_parser("envs", help="environments, their sizes and what they hide")
    envs.add_argument("--gallery", type=arguments.file, metavar="FILE.png", help="instead, one picture of all families")
    envs.set_defaults(run=_envs)

    check = commands.add_parser(
        "check", help="what would spoil learning in an environment or in recorded data; exit code 1 if anything does"
    )
    check.add_argument("--env", metavar="NAME", help="any Gymnasium id, or MODULE:ID of your own")
    check.add_argument("--dataset", metavar="DATA", help="a file, D4RL's name or minari:ID")
    _fraction(check)
    check.add_argument(
        "--output", type=arguments.file, metavar="FILE.png", help="a picture of the data's returns and lengths"
    )
    check.add_argument(
        "--steps", type=arguments.positive, metavar="N", help="of the longest walk through it, by default 2000"
    )
    check.add_argument(
        "--longest_episode",
        type=arguments.positive,
        metavar="N",
        help="steps; a longer one is a fault; by default 27000",
    )
    check.add_argument(
        "--seed", type=arguments.run_id, metavar="N", help="of the environment and the actions, by default 0"
    )
    check.add_argument("--config", metavar="FILE.gin", help="whose imports or wrappers make the environment")
    _import(check)
    check.set_defaults(run=_check)

    collect = commands.add_parser("collect", help="record a data set: D4RL's HDF5 format, and Minari's")
    collect.add_argument("--env", required=True, metavar="NAME", help="a Gymnasium id, see `offpcc envs`")
    collect.add_argument("--actor", required=True, metavar="FOLDER|random", help="a run's folder, or an actor's file")
    collect.add_argument(
        "--steps", type=arguments.positive, required=True, metavar="N", help="environment steps to record"
    )
    collect.add_argument("--out", type=arguments.file, required=True, metavar="FILE.hdf5", help="where they go")
    collect.add_argument("--minari", metavar="ID", help="write them as a Minari data set, too")
    collect.add_argument(
        "--seed", type=arguments.run_id, default=0, metavar="N", help="of environment, noise and random actions"
    )
    collect.add_argument("--deterministic", action="store_true", help="act without exploration")
    collect.add_argument("--resume", action="store_true", help="go on with a recording that was stopped")
    collect.add_argument("--config", metavar="FILE.gin", help="whose imports or wrappers make the environment")
    _import(collect)
    _device(collect)
    collect.set_defaults(run=_collect)
    return whole


def _fraction(command: argparse.ArgumentParser) -> None:
    told = "of its steps, from the start, rounded up to whole episodes"
    command.add_argument("--dataset_fraction", type=arguments.fraction, default=1.0, metavar="F", help=told)


def _import(command: argparse.ArgumentParser) -> None:
    told = "a module with parts of your own, which a run's folder does not import by itself; may be given again"
    command.add_argument("--import", type=arguments.module, action="append", default=[], metavar="MODULE", help=told)


def _device(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", metavar="cpu|cuda|cuda:N", help="CUDA if there is one, else the CPU")
    command.add_argument(
        "--threads", type=arguments.num_threads, metavar="N", default=1, help="of torch on the CPU, by default 1"
    )


def _results(command: argparse.ArgumentParser) -> None:
    command.add_argument("--results", metavar="DIR", help="else $OFFPCC_RESULTS, else results/ of the checkout")


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


def _train(options: argparse.Namespace) -> int:
    from offpcc.cli.train import train_all

    return train_all(options)


def _evaluate(options: argparse.Namespace) -> int:
    from offpcc.cli.commands import evaluate

    return evaluate(options)


def _plot(options: argparse.Namespace) -> int:
    from offpcc.cli.commands import plot

    return plot(options)


def _envs(options: argparse.Namespace) -> int:
    from offpcc.cli.commands import envs

    return envs(options)


def _check(options: argparse.Namespace) -> int:
    if options.dataset is not None:
        from offpcc.cli.check_dataset import check_dataset

        return check_dataset(options)
    from offpcc.cli.commands import check

    return check(options)


def _collect(options: argparse.Namespace) -> int:
    from offpcc.cli.collect import collect

    return collect(options)
