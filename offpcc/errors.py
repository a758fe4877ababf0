"""Faults that a user can mend."""

import sys


class UserError(Exception):
    """A fault in what the user gave: one message that names the fault, the value and the remedy."""

    def report(self) -> int:
        """Print the message, without what gin adds about its calls; the exit code."""
        print(f"offpcc: {self.args[0]}", file=sys.stderr)
        return 2
