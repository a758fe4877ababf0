"""Limits on the size and depth of gin configs.

A config of a few lines can need more time or memory than any machine has. Examples are files that include the next
file twice, macros that use the previous macro twice, and deeply nested brackets. The limits are far above the needs of
any real config.
"""

import io
import tokenize
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from offpcc.config.validation import LARGEST_COUNT, format_value
from offpcc.utils.errors import UserError
from offpcc.utils.paths import shown

MOST_BYTES = 2**18  # of all configs of one load together
MOST_STATEMENTS = 1_000  # bindings, includes and imports of one load
MOST_INCLUDING = 20  # depth of includes
MOST_VALUES = 100_000  # numbers, strings and references, including those of macros and references
DEEPEST = 30  # depth of nested lists and macros
LONGEST_STRING = 5_000  # letters
LONGEST_NAME = 500  # letters of a bound or referenced name, with its scopes


class Amount:
    """Counts the bytes and statements of all configs of one load."""

    def __init__(self) -> None:
        self.num_bytes = self.num_statements = 0

    def add_bytes(self, number: int, where: Path | str) -> None:
        """Count bytes."""
        self.num_bytes += number
        if self.num_bytes > MOST_BYTES:
            raise UserError(
                f"{where}: the config and its includes have {self.num_bytes:,} bytes, more than {MOST_BYTES:,}; name a "
                f"gin file, or remove includes"
            )

    def add_statement(self, where: str) -> None:
        """Count a statement."""
        self.num_statements += 1
        if self.num_statements > MOST_STATEMENTS:
            raise UserError(
                f"{where}: the config and its includes have more than {MOST_STATEMENTS:,} bindings, includes and "
                f"imports; remove some"
            )


def check_strings(text: str, source: Path | str) -> None:
    """Refuse a text with a long string; gin's time for adjacent strings grows with the square of their number."""
    letters = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING:
                letters += len(token.string)
            elif token.type not in (tokenize.NL, tokenize.COMMENT):
                letters = 0
            if letters > 2 * LONGEST_STRING:  # `check_value` checks the exact limit, on the value's repr
                place = f"the string in line {token.start[0]}"
                raise UserError(f"{source}: {place} has more than {LONGEST_STRING:,} letters; shorten it")
    except (tokenize.TokenError, SyntaxError):  # gin reports it
        return


def check_name(name: str, source: Path | str) -> None:
    """Refuse a name that is too long, such as one with thousands of scopes."""
    if len(name) > LONGEST_NAME:
        raise UserError(f"{source}: the name {shown(name)} has more than {LONGEST_NAME} letters; shorten it")


def check_value(value: Any, where: str) -> None:
    """Refuse a bound value that is too large."""
    level: Collection[Any] = [value]
    for _ in range(DEEPEST + 1):
        for part in level:
            if isinstance(part, int) and abs(part) > LARGEST_COUNT:
                raise UserError(f"{where} has {format_value(part)}; the largest whole number is {LARGEST_COUNT:,}")
            check_name(getattr(part, "scoped_selector", ""), where)
            if isinstance(part, str | bytes) and len(repr(part)) > LONGEST_STRING:
                raise UserError(f"{where} has a string of more than {LONGEST_STRING:,} letters; shorten it")
        if not (level := [inner for part in level for inner in parts_of(part)]):
            return
        if len(level) > MOST_VALUES:
            raise too_many(where)
    raise too_deep(where)


def parts_of(value: Any) -> Iterator[Any]:
    """Yield the parts of a list or a dictionary."""
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def too_many(where: str) -> UserError:
    """Return the error for a value with too many parts."""
    return UserError(
        f"{where} has more than {MOST_VALUES:,} values, including those of its macros and references; use fewer"
    )


def too_deep(where: str) -> UserError:
    """Return the error for a value that is nested too deeply."""
    return UserError(f"{where} is nested too deeply: lists and macros can be nested {DEEPEST} deep; use fewer levels")
