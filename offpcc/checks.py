"""What may be given: rules that stand in signatures, and are held when a class is built.

``gamma: Fraction = 0.99`` is a float to a type checker, and a class decorated with `offpcc.configurable` refuses what
is no fraction before anything is built. ``Fraction | None`` takes None as well.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

from offpcc.errors import UserError


def no_remedy(value: Any) -> str:
    """What there is to say of `value` beyond the rule's words."""
    return ""


class Rule(NamedTuple):
    """What a value has to be."""

    words: str  # after "it has to be"
    holds: Callable[[Any], bool]
    remedy: Callable[[Any], str] = no_remedy  # for a slip that is known; "" for what is none


def one_of(names: Collection[str]) -> Rule:
    """What has to be one of these names, told in this order."""
    return Rule(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def either(one: Rule, other: Rule) -> Rule:
    """What has to keep one of two rules; a slip that the first one knows is told first."""
    return Rule(
        f"{one.words}, or {other.words}",
        lambda value: one.holds(value) or other.holds(value),
        lambda value: one.remedy(value) or other.remedy(value),
    )


def with_parentheses(value: Any) -> str:
    """The remedy for a class where one of its objects is wanted."""
    return f"write @{value.__name__}() with parentheses" if isinstance(value, type) else ""


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether `value` is a number within these bounds; bool, NaN and infinity are none."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and bool(-math.inf < value < math.inf and least <= value <= most)


def is_whole_number(value: Any, least: int) -> bool:
    """Whether `value` is a whole number, `least` or more."""
    return isinstance(value, Integral) and is_number(value, least)


def are_sizes(value: Any) -> bool:
    """Whether `value` is a list of whole numbers above 0, at least one."""
    return isinstance(value, list | tuple) and len(value) > 0 and all(is_whole_number(size, 1) for size in value)


FOR_NUMBERS = "write a number, not True or False"
NOTHING = Rule("None", lambda value: value is None)
NONNEGATIVE = Rule("a number, 0 or more", lambda value: is_number(value, 0.0))

Number = Annotated[float, Rule("a number", is_number)]
NonnegativeNumber = Annotated[float, NONNEGATIVE]
PositiveNumber = Annotated[float, Rule("a number above 0", lambda value: is_number(value, 0.0) and value > 0.0)]
Fraction = Annotated[float, Rule("a number from 0 to 1", lambda value: is_number(value, 0.0, 1.0))]
PositiveInteger = Annotated[int, Rule("a whole number, 1 or more", lambda value: is_whole_number(value, 1))]
NonnegativeInteger = Annotated[int, Rule("a whole number, 0 or more", lambda value: is_whole_number(value, 0))]
Flag = Annotated[bool, Rule("True or False", lambda value: isinstance(value, bool))]
Sizes = Annotated[Sequence[int], Rule("a list of whole numbers, each 1 or more, such as (64, 64)", are_sizes)]


def takes_numbers(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is for numbers and not for flags, as its annotation says, or without one its default."""
    if parameter.annotation is not parameter.empty:
        words = set(re.findall(r"\w+", str(parameter.annotation)))
        return bool(words & {"int", "float", "integer", "floating"}) and not words & {"bool", "Any", "object"}
    return is_number(parameter.default)


def has_flags(value: Any) -> bool:
    """Whether a value is True or False, or a list that has one of them."""
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(has_flags, value)))


def check(owner: str, rules: Mapping[str, Rule], given: Mapping[str, Any]) -> None:
    """Refuse what breaks a rule.

    Raises:
        UserError: naming the first parameter of `owner`, what was given, and what it has to be.
    """
    for name, rule in rules.items():
        if name in given and not rule.holds(value := given[name]):
            raise UserError(f"{owner}.{name} is {told(value)}; {rule.remedy(value) or f'it has to be {rule.words}'}")


@functools.cache
def rules_of(function: Callable[..., Any]) -> dict[str, Rule]:
    """The rules in the signature of a function, or of a class with all its ancestors."""
    if isinstance(function, type):
        inherited = [rules_of(cls.__init__) for cls in reversed(function.__mro__)]  # type: ignore[misc]
        return {name: rule for rules in inherited for name, rule in rules.items()}
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception:  # a user's class, annotated with names that only its type checker can read
        return {}
    return {name: rule for name, hint in hints.items() if (rule := _rule(hint))}


def _rule(hint: Any) -> Rule | None:
    optional = NoneType in get_args(hint)
    options = get_args(hint) if optional else (hint,)
    rules = [part for option in options for part in getattr(option, "__metadata__", ()) if isinstance(part, Rule)]
    if not rules:
        return None
    return either(rules[0], NOTHING) if optional else rules[0]


def told(value: Any) -> str:
    """`value` in one line."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    plain = len(text) <= 80 and "\n" not in text and not text.startswith("<")
    return text if plain else f"an object of {type(value).__name__}"
