"""Hyper-parameters of classes and functions that gin configures: name, default, meaning and allowed values.

They come from signatures, docstrings in Google's style, and the rules of `offpcc.config.validation`. `offpcc params`,
`help` of a class, and the pages of the documentation show them.
"""

import functools
import importlib
import inspect
import re
import textwrap
from typing import Any, NamedTuple

import gin

from offpcc.config.bindings import configurables, declarations, find_configurable, settable
from offpcc.config.validation import rules_of, without_rules

REQUIRED = "required"
SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Yields|Note|Example|Hyper-parameters):$")
HEADING = "Hyper-parameters:"
WIDTH = 100  # characters of a line in `help`
OTHERS = ("kwargs", "options", "args")  # entries of a docstring that say where other arguments are described


class Hyperparameter(NamedTuple):
    """A parameter that gin can bind.

    Attributes:
        name: its name in gin, such as ``SAC.lr``.
        default: the default as gin writes it, or "required".
        meaning: one sentence or more; "" if no docstring describes it.
        allowed: the values that are accepted, in words; "" if there is no rule.
    """

    name: str
    default: str
    meaning: str
    allowed: str


def hyperparameters(owner: Any, prefix: str | None = None, *, own: bool = False) -> list[Hyperparameter]:
    """Return the parameters of a class or function that gin can bind; their names begin with `prefix` or the owner's.

    With `own`, those that a class inherits from another class in gin are left out.
    """
    prefix, rules = owner_name(owner) if prefix is None else prefix, rules_of(owner)
    return [
        Hyperparameter(
            f"{prefix}.{one.name}",
            default_text(one.default),
            sentence(meaning(owner, one.name)),
            rules[one.name].words if one.name in rules else "",
        )
        for one in (own_parameters(owner) if own else all_parameters(owner))
    ]


def owner_name(owner: Any) -> str:
    """Return the short name of a class or function in gin, such as ``dataset``."""
    known = (full for full, thing in configurables().items() if thing is owner)
    return next(known, str(owner.__name__)).rpartition(".")[2]


def all_parameters(owner: Any) -> list[inspect.Parameter]:
    """Return the parameters of a class or function, with those of base classes, that gin may set."""
    names = settable(owner)
    return [one for name, one in declarations(owner).items() if name in names]


def own_parameters(owner: Any) -> list[inspect.Parameter]:
    """Return the parameters that gin may set, without those that a class inherits from another class in gin."""
    found = all_parameters(owner)
    if not inspect.isclass(owner):
        return found
    known = [*configurables().values()]
    inherited = {name for base in owner.__mro__[1:] if base in known for name in declarations(base)}
    declared = inspect.signature(vars(owner)["__init__"]).parameters if "__init__" in vars(owner) else {}
    return [one for one in found if one.name not in inherited or one.name in declared]


def default_text(value: Any) -> str:
    """Return a default as gin would write it."""
    if value is inspect.Parameter.empty or value is gin.REQUIRED:
        return REQUIRED
    if isinstance(value, float):
        return f"{value:.4g}" if len(repr(value)) > 8 else repr(value)
    return f"@{value.__name__}" if callable(value) else repr(value)


def sentence(text: str) -> str:
    """Return `text` in one line, with a capital letter."""
    plain = " ".join(text.split())
    return plain[:1].upper() + plain[1:] if plain[:1].islower() else plain


# Docstrings ---------------------------------------------------------------------------------------------------------


def sections(documentation: str) -> dict[str, str]:
    """Split a docstring in Google's style; the text before the first section has the name ""."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in documentation.splitlines():
        if match := SECTION.match(line):
            name = match[1]
            found[name] = []
        else:
            found[name].append(line)
    return {name: "\n".join(lines).strip("\n") for name, lines in found.items()}


def described(documentation: str | None, section: str = "Args") -> dict[str, str]:
    """Return the entries `name: text` of a section of a docstring."""
    found: dict[str, str] = {}
    name = ""
    for line in sections(inspect.cleandoc(documentation or "")).get(section, "").splitlines():
        if match := re.match(r"    (\*{0,2}[\w.]+): (.*)", line):
            name, found[match[1]] = match[1], match[2]
        elif name:
            found[name] += f"\n{line.strip()}" if line.strip() else "\n"
    return found


def meaning(owner: Any, name: str) -> str:
    """Return the description of a parameter, from the docstring of its function or class, or one that it refers to."""
    seen: list[Any] = []
    waiting = list(owner.__mro__) if inspect.isclass(owner) else [owner]
    while waiting:
        place = waiting.pop(0)
        seen.append(place)
        entries = described(written(place))
        text = entries.get(name, "")
        if text and not re.match(r"[Ss]ee `", text):
            return text
        text = text or " ".join(entries.get(other, "") for other in OTHERS)
        for word in re.findall(r"`(\w+)`", text):
            other = getattr(importlib.import_module(place.__module__), word, None) or find_configurable(word)
            if callable(other) and other not in seen:
                waiting.insert(0, other)
    return ""


def written(owner: Any) -> str | None:
    """Return a docstring as it is written, without the section that `Documentation` adds."""
    own = vars(owner).get("__doc__") if inspect.isclass(owner) else owner.__doc__
    return own.text if isinstance(own, Documentation) else own


class Documentation:
    """The ``__doc__`` of a class: its own text, and a section with all hyper-parameters, also inherited ones.

    The section is made when it is read, because the objects that it refers to may not exist at the class's decoration.
    """

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __get__(self, instance: Any, owner: type) -> str | None:
        """Return the text for `owner`, which may be a child without a docstring."""
        found = [one for one in hyperparameters(owner) if one.meaning]
        if {one.name.rpartition(".")[2] for one in found} <= described(self.text).keys():  # all are in the text
            return self.text
        return f"{inspect.cleandoc(self.text or '')}\n\n{HEADING}\n" + "\n".join(map(_entry, found))


def _entry(one: Hyperparameter) -> str:
    limits = f"Default: {one.default}." if one.default != REQUIRED else "Required."
    limits += f" Allowed: {one.allowed}." if one.allowed else ""
    text = f"{one.name.rpartition('.')[2]}: {one.meaning} {limits}"
    return textwrap.fill(text, WIDTH, initial_indent="    ", subsequent_indent=" " * 8, break_on_hyphens=False)


class ClassSignature:
    """The ``__signature__`` of a class: its parameters and those of its base classes, instead of ``**kwargs``."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        """Return the signature of `owner`, which may be a child."""
        if instance is not None:
            raise AttributeError("__signature__")
        return _signature(owner)


@functools.cache
def _signature(owner: type) -> inspect.Signature:
    declared = map(without_rules, declarations(owner).values())  # in a signature, those with a default come last
    found = sorted(
        declared, key=lambda one: (one.kind, one.kind is not one.KEYWORD_ONLY and one.default is not one.empty)
    )
    inits = [vars(cls)["__init__"] for cls in owner.__mro__[:-1] if "__init__" in vars(cls)]
    kinds = [{one.kind: one for one in inspect.signature(init).parameters.values()} for init in inits]
    if inits and all(inspect.Parameter.VAR_KEYWORD in each for each in kinds):  # the class takes any argument
        found.append(kinds[0][inspect.Parameter.VAR_KEYWORD])
    return inspect.Signature(found)
