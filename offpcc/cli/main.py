"""The command line: trains, and runs the other commands that `offpcc --help` lists.

The import has no side effects.

python offpcc/launch.py --env pendulum-p-v0 --algo rsac --config configs/quickstart.gin --run_id 1
"""

import argparse
import logging
import os
import pkgutil
import select
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, NoReturn

from offpcc.cli.names import ALGORITHMS, ENVIRONMENTS
from offpcc.cli.options import COMMANDS, OF_COMMAND, OPTIONS, TAKES
from offpcc.config.synonyms import option_hint
from offpcc.utils import signals
from offpcc.utils.errors import UserError, command_line, drop_output, escape_unknown_letters, similar
from offpcc.utils.version import __version__


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that reports an error in one message, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        fault = message.removeprefix("argument ").replace("the following arguments are required: ", "missing: ")
        raise UserError(f"{fault}; see `{self.prog} --help`")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    # NumPy's matrix products are small (one step of a few environments); its threads would compete with torch's. NumPy
    # reads this variable when it is imported, later.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    logging.raiseExceptions = False  # else W&B, on a full disk, prints a traceback beside our message
    escape_unknown_letters(sys.stdout)
    with command_line(), signals.handled(to_the_end=words is None):
        try:
            command, options = parse(sys.argv[1:] if words is None else words)
            # The commands import torch, so `--help` imports none of them.
            code: int = pkgutil.resolve_name(COMMANDS[command][0])(**options)
            try:
                sys.stdout.flush()
            except OSError:
                if command != "train":  # the result of training does not depend on the reader of its output
                    raise
                drop_output()
        except (UserError, signals.Interrupted) as error:
            code = error.report()
        except KeyboardInterrupt:  # raised by code outside offpcc
            code = signals.interrupted().report()
        except BrokenPipeError:
            if not _output_is_closed():
                raise
            code = 128 + signal.SIGPIPE
    return code


def _output_is_closed() -> bool:
    """Return whether the reader of the standard output, such as `head`, has ended; if so, drop the remaining output."""
    output = select.poll()
    output.register(1, 0)
    is_closed = bool(output.poll(0))
    if is_closed:
        drop_output()
    return is_closed


def parse(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the command of a command line and its options by name; without a command, those of training."""
    first = words[0] if words else "-"
    if not first.startswith("-") and (dashed := first.replace("_", "-")) in COMMANDS:
        first, words = dashed, [dashed, *words[1:]]
    if not first.startswith("-") and first not in COMMANDS:
        near = similar(first, COMMANDS, 1)
        advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}; without one, offpcc trains"
        raise UserError(f"there is no command {first!r}; {advice}")
    is_command = first in (*COMMANDS, "-h", "--help", "--version")
    given = [_with_underscores(word) for word in (words if is_command else ["train", *words])]
    known = [option for option in TAKES.get(given[0], "").split() if option.startswith("--")]
    for word in given[1:]:  # before argparse, which would first miss a required option under another name
        option = word.split("=")[0]
        if any(one.startswith(option) for one in known):  # its whole name, or an abbreviation
            continue
        hinted = [one for one in known if one != "--gin" or given[0] == "train"]  # it sets hyper-parameters
        if option.startswith("--") and (reason := option_hint(option, hinted)):
            raise UserError(f"`offpcc {given[0]}` does not take {word}; {reason}")
    options, unknown = parser().parse_known_args(given)
    if unknown:
        near = similar(unknown[0].split("=")[0], known, 1)
        advice = f"did you mean {near[0]}?" if near else f"see `offpcc {given[0]} --help`"
        option = given[given.index(unknown[0]) - 2]
        is_value = given[0] == "train" and not unknown[0].startswith("-")
        if is_value and option in ("--env", "--algo", "--dataset"):
            advice = f"{option} takes one value; call the command for each, or list them in a file for `offpcc sweep`"
        if "--dataset" in known and PurePath(unknown[0]).suffix in (".hdf5", ".npz"):
            advice = f"give a dataset with --dataset {unknown[0]}"
        raise UserError(f"`offpcc {given[0]}` does not take {unknown[0]}; {advice}")
    if given[0] == "train" and options.algo is None and options.start_from is None:
        raise UserError("missing: --algo; see `offpcc train --help`")
    return given[0], vars(options)


def _with_underscores(word: str) -> str:
    """Return `--run-id=1` as `--run_id=1`; the value does not change."""
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if word.startswith("--") else word


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    listed = list_names()
    whole = Parser(
        prog="offpcc",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Off-policy reinforcement learning with memory. Without a command, offpcc trains.",
        epilog=f"`offpcc train --help` lists the options of training, `offpcc docs` the pages that explain them.\n\n"
        f"{listed}",
    )
    whole.add_argument("--version", action="version", version=f"offpcc {__version__}")
    commands = whole.add_subparsers(required=True, metavar="{" + ",".join(COMMANDS) + "}")
    for name, (_, summary) in COMMANDS.items():
        layout: dict[str, Any] = {}
        if name == "train":
            layout = {"formatter_class": argparse.RawDescriptionHelpFormatter, "epilog": listed}
        command = commands.add_parser(name, help=summary, description=summary, **layout)
        for option in TAKES[name].split():
            command.add_argument(option, **OPTIONS[option] | OF_COMMAND.get(f"{name} {option}", {}))
    return whole


def list_names() -> str:
    """Return the names of algorithms and environments, for --help."""

    def block(title: str, entries: Sequence[str]) -> str:
        return f"{title}:\n" + textwrap.fill(
            " ".join(entries), 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )

    own = block("environments", ENVIRONMENTS.split())
    others = "and any Gymnasium id with a Box or Discrete action space"
    return f"{block('algorithms', ALGORITHMS.split())}\n\n{own}\n  {others}"
