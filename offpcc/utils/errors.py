"""`UserError`: an error in the user's input. The command line shows its message without a traceback."""

import contextlib
import difflib
import io
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

LONGEST_LINE = 500  # characters
ALIKE, ALIKE_IF_SHORT = 0.68, 0.65  # similarity by difflib: Gated and dataset have 0.5, alfa and alpha 0.67
SHORT = 6  # letters
SHORTEST_PART = 4  # letters
VERSION = re.compile(r"-v\d+$")


class UserError(Exception):
    """An error in the user's input; the message names the fault, the value and the remedy.

    Any function that reads a user's input may raise it. Docstrings of internal functions do not repeat that.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __init_subclass__(cls) -> None:
        """Keep the message unchanged: gin raises a subclass that would add the names of the classes being built."""
        super().__init_subclass__()
        if cls.__qualname__.endswith(".ExceptionProxy"):
            cls.__str__ = UserError.__str__  # type: ignore[method-assign]

    def __str__(self) -> str:
        return self.message

    def report(self) -> int:
        """Print the message and return the exit code."""
        print_to_stderr(self.message)
        return 2


NOTE = "note: "
_noted: ContextVar[set[str] | None] = ContextVar("noted", default=None)  # notes of this command; None in Python
# The space between an option and its value. Another word after an option belongs to the sentence.
_SPACE = r"(?: (?!(?:again|and|does|for|has|if|in|instead|is|its|needs|on|or|out|takes|to|with)\b))?"
PYTHON = (  # pattern of a command-line option in a message, and its replacement in Python
    (
        re.compile(r'--gin "dataset\.(action_range|max_episode_steps)=([^"]*)"'),
        r'Dataset.from_arrays(\1=\2) or offpcc.configure(FILE, "dataset.\1=\2")',
    ),
    (
        re.compile(r'bind it in the config, include one of configs/, or add --gin "train\.(\w+)=\.\.\."'),
        r'give it, training={"\1": ...}, or bind it by offpcc.configure',
    ),
    (re.compile(r'--resume --gin "[A-Z]\w*\.(\w+)=([^"]*)"'), r'resume=True of offpcc.fit and algorithm={"\1": \2}'),
    (re.compile(r'--gin "[A-Z]\w*\.(\w+)=([^"]*)"'), r"\1=\2"),  # of an algorithm
    (re.compile(r"--no_video\b"), "video=False"),
    (re.compile(r"""(?<![^\s(])--gin ("[^"]*"|\S+?)(?=[\s;,)]|$)"""), r"offpcc.configure(FILE, \1)"),
    (re.compile(r"leave --env out"), "give env=None"),
    (re.compile(r" \(on the command line: --import MODULE, or --config with its import\)"), ""),
    (re.compile(r"add --import MODULE, or --config with its import"), "import it first"),
    (re.compile(r"add --import (\S+), or name a config of your own with --config"), r"import \1 first"),
    (re.compile(r"add --import (\S+); in Python, import that module first"), r"import \1 first"),
    (re.compile(r"(?:add )?(?<![^\s(])--import ([^\s;,)]+)"), r"import \1 first"),
    (re.compile(r"(?<![^\s(])--config\b"), "offpcc.configure(FILE)"),
    (re.compile(r"(?<![^\s(])--resume\b"), "resume=True"),
    (
        re.compile(
            r"(?<![^\s(])--(algo|dataset|dataset_fraction|dataset_steps|device|env|init|model|results|save_dataset|"
            r"then_env_steps|threads|track)\b" + _SPACE
        ),
        r"\1=",
    ),
    (re.compile(r"(?<![^\s(])--from\b" + _SPACE), "start_from="),
    (re.compile(r"another --run_id"), "another seed= or run_dir="),
    (re.compile(r"(?<![^\s(])--run_id\b" + _SPACE), "seed="),
    (re.compile(r"for --metric "), "for metric="),
)
COMMAND = re.compile(r"(`offpcc [^`]*`)")


@contextlib.contextmanager
def command_line() -> Iterator[None]:
    """Context in which messages keep their command-line options; see `for_python` and `is_new`."""
    token = _noted.set(set())
    try:
        yield
    finally:
        _noted.reset(token)


def is_command_line() -> bool:
    """Return whether a command runs, which tells what is found in its own way."""
    return _noted.get() is not None


def is_new(note: str) -> bool:
    """Return whether this command has not printed a note yet, for another run; in Python always True."""
    if (noted := _noted.get()) is None:
        return True
    is_first = note not in noted
    noted.add(note)
    return is_first


@contextlib.contextmanager
def for_python() -> Iterator[None]:
    """Context that replaces command-line options in the message of a `UserError` by Python's arguments."""
    try:
        yield
    except UserError as error:
        error.message = in_python(error.message)
        raise


def in_python(message: str) -> str:
    """Return a message with ``results=`` in place of ``--results``, and so on; unchanged inside `command_line`.

    A command in backquotes, such as ```offpcc check --env NAME```, keeps its options.
    """
    if is_command_line():
        return message
    parts = COMMAND.split(message)
    for option, argument in PYTHON:
        parts[::2] = [option.sub(argument, part) for part in parts[::2]]
    return "".join(parts)


_PACKAGE = str(Path(__file__).parents[1])


class DataWarning(UserWarning):
    """Warning about the data; training still works."""


_is_announced = ContextVar("is_announced", default=False)


@contextlib.contextmanager
def data_warnings_announced() -> Iterator[None]:
    """Give no `DataWarning`, because `fit` announces their texts. Unlike Python's filters, this is for one thread."""
    token = _is_announced.set(True)
    try:
        yield
    finally:
        _is_announced.reset(token)


def warn_of_data(text: str) -> None:
    """Give a `DataWarning`, at the line that called offpcc; a command prints a note instead. Nothing for ""."""
    if not text or _is_announced.get():
        return
    if is_command_line():
        print_to_stderr(f"{NOTE}{text}")
        return
    stacklevel, frame = 2, sys._getframe(1)
    while frame.f_code.co_filename.startswith((_PACKAGE, contextlib.__file__)) and frame.f_back is not None:
        stacklevel, frame = stacklevel + 1, frame.f_back
    warnings.warn(in_python(text), DataWarning, stacklevel=stacklevel)


def similar(name: str, known: Iterable[str], number: int = 3) -> list[str]:
    """Return the known names, at most `number`, that `name` may mean: spelled nearly alike, or with it as a part.

    Upper case and versions such as ``-v0`` do not count.
    """
    given, found = VERSION.sub("", name.lower()), list[tuple[float, float, str]]()
    least = ALIKE_IF_SHORT if len(given) <= SHORT else ALIKE
    for word in dict.fromkeys(known):
        other = VERSION.sub("", word.lower())
        ratio = difflib.SequenceMatcher(None, other, given).ratio()
        if ratio >= least or (len(given) >= SHORTEST_PART and given in other):
            found.append((-ratio, -difflib.SequenceMatcher(None, word, name).ratio(), word))
    return [word for *_, word in sorted(found)[:number]]


def drop_output(number: int = 1) -> None:
    """Drop what is written to the standard output, or to another file descriptor, from now on: its reader is gone.

    Otherwise the flush at the end of the process would fail.
    """
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


def escape_unknown_letters(output: TextIO) -> None:
    """Let an output escape letters that its encoding lacks, such as those of a path, as the standard error does."""
    if isinstance(output, io.TextIOWrapper):
        output.reconfigure(errors="backslashreplace")


def first_line(error: BaseException) -> str:
    """Return the message of an error in one line."""
    text = "" if isinstance(error, KeyError) else shown_in_one_line(message_of(error).strip())
    return text or format_error(error)


def format_error(error: BaseException) -> str:
    """Return the class and the message of an error in one line."""
    return shown_in_one_line(f"{type(error).__name__}: {message_of(error)}").removesuffix(": ")


def message_of(error: BaseException) -> str:
    """Return the message of an error, or a replacement if its ``__str__`` raises, as code outside offpcc may do."""
    try:
        return str(error)
    except Exception as fault:
        return f"(its message cannot be read: its __str__ raises {type(fault).__name__})"


def shown_in_one_line(text: str) -> str:
    """Return the first line of a text; escape characters that a terminal would execute or a file could not store."""
    line = text.splitlines()[0] if text else ""
    line = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)


def print_to_stderr(message: str) -> None:
    """Print a message to the standard error stream, even if other code has closed it; notes only once a command."""
    if message.startswith(NOTE) and not is_new(message):
        return
    try:
        print(f"offpcc: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            os.write(2, f"offpcc: {message}\n".encode(errors="backslashreplace"))
