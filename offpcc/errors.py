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
