"""`UserError`: an error with fault, value and remedy, shown without a traceback."""

import contextlib
import os
import sys

LONGEST_LINE = 500  # characters


class UserError(Exception):
    """A fault in what the user gave: one message that names the fault, the value and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message  # as an attribute, it survives what gin adds to exceptions that pass through it

    def report(self) -> int:
        """Print the message; the exit code."""
        tell(self.message)
        return 2


class DataWarning(UserWarning):
    """Something about the data that a person should know, and that does not keep an agent from learning."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return named(error) if isinstance(error, KeyError) else shown_in_one_line(text_of(error).strip()) or named(error)


def named(error: BaseException) -> str:
    """An error's class, and what it says, in one line."""
    return shown_in_one_line(f"{type(error).__name__}: {text_of(error)}").removesuffix(": ")


def text_of(error: BaseException) -> str:
    """The message of an error; code that is not offpcc's may raise in its ``__str__``."""
    try:
        return str(error)
    except BaseException as fault:
        return f"(its message cannot be read: its __str__ raises {type(fault).__name__})"


def shown_in_one_line(text: str) -> str:
    """The first line of a text, without characters that a terminal would act on or a file could not hold."""
    line = text.splitlines()[0] if text else ""
    line = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)


def tell(message: str) -> None:
    """Print a message to the standard error stream, also where other code has closed it."""
    try:
        print(f"offpcc: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            os.write(2, f"offpcc: {message}\n".encode(errors="backslashreplace"))
