"""Comparison of the settings of runs: which runs differ only in the seed, and how other runs differ.

No module that a config names is imported.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from offpcc.config.bindings import configurables
from offpcc.config.gin_files import text_of
from offpcc.config.loading import plain_values, write_plainly
from offpcc.config.registry import REGISTRY
from offpcc.training.checkpoint import may_change

Settings = Mapping[str, str]  # as `plain_values` returns them

NOT_LEARNED_FROM = (
    "train.stop_return",
    "train.num_test_envs",
)  # ignored, like the settings that a resumed run may change
MOST_NAMED = 3  # the most settings in a name
LONGEST = 40  # the most characters of a value in a name
WHOLE = re.compile(r"(?<![\w.])(\d+)\.0(?![\w.])")  # treats 1.0 as 1


def settings_of(run: Path) -> Settings | None:
    """Return the settings of a run; None if its folder has no config.

    Raises:
        UserError: the config cannot be read.
    """
    config = run / "config.gin"
    return plain_values(text_of(config), config) if config.is_file() else None


def are_same(one: Settings, other: Settings) -> bool:
    """Check whether two runs learn the same way. Settings of the length or speed of a run are ignored."""
    return not differing([one, other])


def differing(given: Sequence[Settings]) -> list[str]:
    """Return the names of the settings that are not equal in all runs; names that all runs have come first.

    A missing setting counts as its default, because an older version may not have had it. A setting of a parent
    class also applies to its child classes.
    """
    known = sorted({name for settings in given for name in settings})
    known.sort(key=lambda name: not all(name in settings for settings in given))
    found = dict[tuple[str, ...], str]()
    for name in known:
        parameter = name.rpartition(".")[2]
        values = [_comparable(_value(settings, name)) for settings in given]
        if len({*values}) > 1 and not _is_ignored(name):
            found.setdefault((parameter, *values), name)
    return list(found.values())


def name_settings(given: Sequence[Settings]) -> list[str]:
    """Return a short name for each item, with the settings that differ, as in "lr=0.001, gamma=0.9"."""
    names = differing(given)
    parameters = [name.rpartition(".")[2] for name in names]
    labels = {
        name: parameter if parameters.count(parameter) == 1 else name
        for name, parameter in zip(names, parameters, strict=True)
    }
    return [_name(settings, labels) for settings in given]


def group_runs(runs: Sequence[Path]) -> dict[str, list[Path]]:
    """Group the runs of one algorithm's folder by equal settings.

    Returns:
        The groups by the names of their settings, in the order of their first runs in `runs`. The name is "" if there
        is only one group, or if a group has no setting to name.

    Raises:
        UserError: a run's config cannot be read.
    """
    groups: list[tuple[Settings | None, list[Path]]] = []
    for run in runs:
        settings = settings_of(run)
        for other, members in groups:
            if settings is other is None or (settings is not None and other is not None and are_same(settings, other)):
                members.append(run)
                break
        else:
            groups.append((settings, [run]))
    if len(groups) == 1:
        return {"": groups[0][1]}
    names = iter(name_settings([settings for settings, _ in groups if settings is not None]))
    names_of = ["without config.gin" if settings is None else next(names) for settings, _ in groups]
    found = {}
    for name, (_, members) in zip(names_of, groups, strict=True):
        ids = f"[{' '.join(run.name for run in members)}]"
        found[name if names_of.count(name) == 1 else f"{name} {ids}".strip()] = members
    return found


def digest(settings: Settings) -> str:
    """Return a short hash of the settings; equal settings have equal hashes."""
    told = "\n".join(f"{name} = {_comparable(settings[name])}" for name in sorted(settings) if not _is_ignored(name))
    return hashlib.blake2b(told.encode(), digest_size=3).hexdigest()


def _comparable(value: str | None) -> str:
    return WHOLE.sub(r"\1", str(value))


def _is_ignored(name: str) -> bool:
    short = ".".join(name.split(".")[-2:])
    return may_change(short) is not None or short in NOT_LEARNED_FROM


def _name(settings: Settings, labels: Mapping[str, str]) -> str:
    owners = {name.rpartition(".")[0] for name in settings}
    words = []
    for name, label in labels.items():
        value = _bound_value(settings, name)
        if value is None and name.rpartition(".")[0] in owners:
            value = _value(settings, name)
        if value is not None:
            words.append(f"{label}={value if len(value) <= LONGEST else f'{value[:LONGEST]}...'}")
    more = len(words) - MOST_NAMED
    return ", ".join(words[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _value(settings: Settings, name: str) -> str | None:
    """Return the value of a setting, else its default, else None."""
    value = _bound_value(settings, name)
    if value is not None:
        return value
    owner, _, parameter = name.rpartition(".")
    return _default(_short(owner), parameter)


def _bound_value(settings: Settings, name: str) -> str | None:
    """Return the bound value of a setting: by its full name, else without scope, else by a parent's or child's name."""
    if name in settings:
        return settings[name]
    owner, _, parameter = name.rpartition(".")
    related = [_short(owner)]
    if (cls := REGISTRY.get(related[0])) is not None:
        related += [parent.__name__ for parent in cls.__mro__[1:]]
        related += [child.__name__ for child in REGISTRY.values() if cls in child.__mro__[1:]]
    return next((settings[f"{key}.{parameter}"] for key in related if f"{key}.{parameter}" in settings), None)


def _short(owner: str) -> str:
    """Return the name without scope and module: actor/offpcc.Recurrent -> Recurrent."""
    return owner.rpartition("/")[2].rpartition(".")[2]


@functools.cache
def _default(owner: str, parameter: str) -> str | None:
    """Return a parameter's default as text; None if it is unknown or there is none."""
    if (cls := REGISTRY.get(owner)) is not None:
        functions = [parent.__dict__["__init__"] for parent in cls.__mro__[:-1] if "__init__" in parent.__dict__]
    else:
        functions = [known for name, known in configurables().items() if f".{name}".endswith(f".{owner}")]
    for function in functions:
        known = inspect.signature(function).parameters.get(parameter)
        if known is not None and known.default is not known.empty:
            return write_plainly(known.default)
    return None
