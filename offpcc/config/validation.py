"""Types of parameters, such as `Fraction`, and checks of arguments against them.

``gamma: Fraction = 0.99`` is a float for a type checker. A class decorated with `offpcc.configurable` raises an error
for a value that is not a fraction, before it builds anything. ``Fraction | None`` also accepts None.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from types import FunctionType, NoneType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from offpcc.utils.errors import UserError, similar

LARGEST_SEED = 2**31 - 1  # NumPy's global generator takes no seed above 32 bits
LARGEST_SIZE = 2**20  # for sizes in memory: widths, batches, windows
MOST_PARTS = 1_000  # for numbers of objects that take time to build: layers, critics
MOST_ENVS = 16_384  # parallel environments


class Rule(NamedTuple):
    """A condition on a value."""

    words: str  # after "it has to be"
    holds: Callable[[Any], bool]
    remedy: Callable[[Any], str] = lambda value: ""  # returns advice for a known mistake, else ""


def one_of(names: Collection[str]) -> Rule:
    """Return a rule for strings that are one of `names`; the message lists the names in this order."""
    words = f"one of {', '.join(names)}"

    def nearest(value: Any) -> str:
        near = similar(value, names, 1) if isinstance(value, str) else []
        return f"it has to be {words}; did you mean {near[0]!r}?" if near else ""

    return Rule(words, lambda value: isinstance(value, str) and value in names, nearest)


def either(one: Rule, other: Rule) -> Rule:
    """Return a rule that accepts a value if one of two rules accepts it; the advice of the first rule comes first."""
    return Rule(
        f"{one.words}, or {other.words}",
        lambda value: one.holds(value) or other.holds(value),
        lambda value: one.remedy(value) or other.remedy(value),
    )


def with_parentheses(value: Any) -> str:
    """Return the advice for a class where an object of the class is needed."""
    name = value.__name__ if isinstance(value, type) else ""
    return f"write @{name}() with parentheses; in Python {name}()" if name else ""


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Check whether `value` is a number within the bounds; bool, NaN and infinity are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        number = int(value) if isinstance(value, Integral) else float(value)
        return math.isfinite(number) and least <= number <= most
    except OverflowError:  # an integer too large for a float
        return False


def is_whole_number(value: Any, least: float, most: float = math.inf) -> bool:
    """Check whether `value` is a whole number from `least` to `most`."""
    return isinstance(value, Integral) and is_number(value, least, most)


def are_sizes(value: Any) -> bool:
    """Check whether `value` is a list of sizes that fit into memory."""
    return (
        isinstance(value, list | tuple) and bool(value) and all(is_whole_number(one, 1, LARGEST_SIZE) for one in value)
    )


def above(least: float, most: float = math.inf) -> Rule:
    """Return a rule for numbers above `least` and at most `most`."""
    return Rule(
        f"a number above {least:g}", lambda value: is_number(value, least, most) and value > least, _less(most, Real)
    )


def at_least(least: float, most: float = math.inf) -> Rule:
    """Return a rule for numbers from `least` to `most`."""
    return Rule(f"a number, {least:g} or more", lambda value: is_number(value, least, most), _less(most, Real))


def whole(least: int, most: float = math.inf) -> Rule:
    """Return a rule for whole numbers from `least` to `most`."""
    return Rule(
        f"a whole number, {least} or more", lambda value: is_whole_number(value, least, most), _less(most, Integral)
    )


def _less(most: float, kind: type) -> Callable[[Any], str]:
    """Return a function that gives the advice for a number of type `kind` above `most`."""

    def remedy(value: Any) -> str:
        is_kind = isinstance(value, kind) and not isinstance(value, bool)
        is_larger = is_kind and bool(most < value < math.inf)
        return f"it has to be {most:{',' if isinstance(most, int) else 'g'}} or less" if is_larger else ""

    return remedy


FOR_NUMBERS = "write a number, not True or False"
NOTHING = Rule("None", lambda value: value is None)
NONNEGATIVE = at_least(0.0)

Number = Annotated[float, Rule("a number", is_number)]
NonzeroNumber = Annotated[float, Rule("a number other than 0", lambda value: is_number(value) and value != 0)]
NonnegativeNumber = Annotated[float, NONNEGATIVE]
PositiveNumber = Annotated[float, above(0.0)]
PositiveFraction = Annotated[float, above(0.0, 1.0)]
Fraction = Annotated[float, Rule("a number from 0 to 1", lambda value: is_number(value, 0.0, 1.0))]
PositiveInteger = Annotated[int, whole(1)]
NonnegativeInteger = Annotated[int, whole(0)]
Seed = Annotated[int, whole(0, LARGEST_SEED)]
Size = Annotated[int, whole(1, LARGEST_SIZE)]
NonnegativeSize = Annotated[int, whole(0, LARGEST_SIZE)]
NumParts = Annotated[int, whole(1, MOST_PARTS)]
NumEnvs = Annotated[int, whole(1, MOST_ENVS)]
Flag = Annotated[bool, Rule("True or False", lambda value: isinstance(value, bool))]
Scaling = Annotated[
    bool | str,
    Rule(
        'True, False or "scale"', lambda value: isinstance(value, bool) or (isinstance(value, str) and value == "scale")
    ),
]
Sizes = Annotated[Sequence[int], Rule("a list of whole numbers, each 1 or more, such as (64, 64)", are_sizes)]


def takes_numbers(parameter: inspect.Parameter) -> bool:
    """Check whether a parameter takes numbers and not flags; use its annotation, or its default if it has none."""
    if parameter.annotation is not parameter.empty:
        text = str(parameter.annotation)
        if "Annotated[" in text:  # its rule refuses flags, with a better message
            return False
        words = set(re.findall(r"\w+", text))
        return bool(words & {"int", "float", "integer", "floating"}) and not words & {"bool", "Any", "object"}
    return is_number(parameter.default)


def has_flags(value: Any) -> bool:
    """Check whether a value is True or False, or a list that contains one of them."""
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(has_flags, value)))


def check_arguments(owner: str, rules: Mapping[str, Rule], given: Mapping[str, Any]) -> None:
    """Raise an error for the first argument that breaks its rule."""
    for name, rule in rules.items():
        if name in given and not rule.holds(value := given[name]):
            raise UserError(
                f"{owner}.{name} is {format_value(value)}; {rule.remedy(value) or f'it has to be {rule.words}'}"
            )


@functools.cache
def rules_of(function: Callable[..., Any]) -> dict[str, Rule]:
    """Return the rules in the signature of a function, or of a class and its base classes."""
    if isinstance(function, type):
        inherited = [rules_of(cls.__init__) for cls in reversed(function.__mro__)]  # type: ignore[misc]
        return {name: rule for rules in inherited for name, rule in rules.items()}
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception:  # the annotations of a user's class may exist only for its type checker
        return {}
    return {name: rule for name, hint in hints.items() if (rule := _rule(hint))}


def _rule(hint: Any) -> Rule | None:
    optional = NoneType in get_args(hint)
    options = get_args(hint) if optional else (hint,)
    rules = [part for option in options for part in getattr(option, "__metadata__", ()) if isinstance(part, Rule)]
    if not rules:
        return None
    return either(rules[0], NOTHING) if optional else rules[0]


def without_rules(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter whose annotation has no rules: `help` would write them as objects of Python."""
    hint = parameter.annotation
    options = get_args(hint) if get_origin(hint) is Union else (hint,)
    plain = [getattr(option, "__origin__", option) if get_origin(option) is Annotated else option for option in options]
    return parameter.replace(annotation=Union[tuple(plain)] if len(plain) > 1 else plain[0])  # noqa: UP007


def format_value(value: Any) -> str:
    """Return `value` in one line."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, FunctionType):
        return "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__name__}"
    if isinstance(value, functools.partial):
        arguments = "".join(f", {name}=..." for name in value.keywords)
        return f"functools.partial({getattr(value.func, '__name__', type(value.func).__name__)}{arguments})"
    try:
        text = repr(value)
    except Exception:  # from a user's class
        text = ""
    plain = 0 < len(text) <= 80 and "\n" not in text and not text.startswith("<")
    return text if plain else f"an object of {type(value).__name__}"
