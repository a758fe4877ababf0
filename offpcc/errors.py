"""Faults that a user can mend."""

import sys


class UserError(Exception):
    """A fault in what the user gave: one message that names the fault, the value and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message  # as an attribute, it survives what gin adds to exceptions that pass through it

    def report(self) -> int:
        """Print the message; the exit code."""
        print(f"offpcc: {self.message}", file=sys.stderr)
        return 2


class DataWarning(UserWarning):
    """Something about the data that a person should know, and that does not keep an agent from learning."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
