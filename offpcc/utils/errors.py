"""`UserError`: an error in the user's input. The command line shows its message without a traceback."""

import contextlib
import os
import sys

LONGEST_LINE = 500  # characters


class UserError(Exception):
    """An error in the user's input; the message names the fault, the value and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message  # an attribute, because gin adds text to exceptions that pass through it

    def report(self) -> int:
        """Print the message and return the exit code."""
        tell(self.message)
        return 2


class DataWarning(UserWarning):
    """Warning about the data; training still works."""


def first_line(error: BaseException) -> str:
    """Return the message of an error in one line."""
    return (
        format_error(error)
        if isinstance(error, KeyError)
        else shown_in_one_line(text_of(error).strip()) or format_error(error)
    )


def format_error(error: BaseException) -> str:
    """Return the class and the message of an error in one line."""
    return shown_in_one_line(f"{type(error).__name__}: {text_of(error)}").removesuffix(": ")


def text_of(error: BaseException) -> str:
    """Return the message of an error, also if its ``__str__`` raises (code outside offpcc may do so)."""
    try:
        return str(error)
    except BaseException as fault:
        return f"(its message cannot be read: its __str__ raises {type(fault).__name__})"


def shown_in_one_line(text: str) -> str:
    """Return the first line of a text; escape characters that a terminal would execute or a file could not store."""
    line = text.splitlines()[0] if text else ""
    line = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in line)


def tell(message: str) -> None:
    """Print a message to the standard error stream, also if other code has closed it."""
    try:
        print(f"offpcc: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError):
            os.write(2, f"offpcc: {message}\n".encode(errors="backslashreplace"))
