"""Limits on the size and depth of gin configs.

A config of a few lines can ask for more than any machine does: files that include the next one twice, macros made of
the last one twice, brackets in brackets. The bounds are far beyond what any config of use needs.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from offpcc.config.validation import LARGEST_COUNT, format_value
from offpcc.utils.errors import UserError
from offpcc.utils.paths import shown

MOST_BYTES = 2**18  # of all configs that are read together
MOST_STATEMENTS = 1_000  # bindings, includes and imports in them
MOST_INCLUDING = 20  # configs, each of which includes the next
MOST_VALUES = 100_000  # numbers, words and references, once macros and references are followed
DEEPEST = 30  # lists in lists, macros in macros
LONGEST_STRING = 5_000  # letters
LONGEST_NAME = 500  # letters of what is bound or referred to, with its scopes


class Amount:
    """How much was read of configs that belong together, in bytes and statements."""

    def __init__(self) -> None:
        self.num_bytes = self.num_statements = 0

    def add_bytes(self, number: int, where: Path | str) -> None:
        """Count bytes.

        Raises:
            UserError: they are too many.
        """
        self.num_bytes += number
        if self.num_bytes > MOST_BYTES:
            raise UserError(
                f"{where}: the config has {self.num_bytes:,} bytes with all that it includes; the most are "
                f"{MOST_BYTES:,}: name a gin file, or take includes out"
            )

    def add_statement(self, where: str) -> None:
        """Count a statement.

        Raises:
            UserError: they are too many.
        """
        self.num_statements += 1
        if self.num_statements > MOST_STATEMENTS:
            raise UserError(
                f"{where}: the config has more than {MOST_STATEMENTS:,} bindings, includes and imports with all that "
                f"it includes; take some out"
            )


def check_strings(text: str, source: Path | str) -> None:
    """Refuse a text with a long string: of strings side by side, gin reads all that it has with each one more.

    Raises:
        UserError: naming its line.
    """
    letters = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING:
                letters += len(token.string)
            elif token.type not in (tokenize.NL, tokenize.COMMENT):
                letters = 0
            if letters > 2 * LONGEST_STRING:  # what is bound is held to it by `check_value`, as gin writes it
                place = f"the string in line {token.start[0]}"
                raise UserError(f"{source}: {place} has more than {LONGEST_STRING:,} letters; shorten it")
    except (tokenize.TokenError, SyntaxError):  # told by gin
        return


def check_name(name: str, source: Path | str) -> None:
    """Refuse a name that is too long, such as one of thousands of scopes.

    Raises:
        UserError: it is.
    """
    if len(name) > LONGEST_NAME:
        raise UserError(f"{source}: the name {shown(name)} has more than {LONGEST_NAME} letters; shorten it")


def check_value(value: Any, where: str) -> None:
    """Refuse a bound value that is too large.

    Args:
        value: as gin read it, with references that are not followed.
        where: the binding, for messages.

    Raises:
        UserError: it is nested too deeply, has too many parts, or a number or a string in it is too long.
    """
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
    """What a list or a dictionary is made of."""
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def too_many(where: str) -> UserError:
    """What is told of a value with too many parts."""
    return UserError(
        f"{where} has more than {MOST_VALUES:,} values, with those of its macros and references; write fewer"
    )


def too_deep(where: str) -> UserError:
    """What is told of a value that is nested too deeply."""
    return UserError(
        f"{where} is nested too deeply: lists in lists and macros in macros go {DEEPEST} deep; write it plainly"
    )
