"""Comparison of configs: what a resumed run may change, which runs differ only in the seed, how other runs differ.

The settings of a run are the values in its config, by name, as `plain_values` reads them. No module that a config names
is imported. Groups of runs also differ in facts that are no settings, such as the run of `--init` (`with_facts`).
"""

import contextlib
import csv
import functools
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from torch import nn

from offpcc.config.bindings import declarations, find_configurable
from offpcc.config.gin_files import read_config_text
from offpcc.config.loading import plain_values, write_plainly
from offpcc.config.registry import REGISTRY
from offpcc.training.run_dir import RunFolder
from offpcc.utils.errors import UserError
from offpcc.utils.paths import shown

Settings = Mapping[str, str]  # as `plain_values` returns them

CHANGES_LEARNING = "ActorCritic.nonfinite"  # may change what is learned after the resume
ENDS_EARLY = ("train.stop_return", "train.stop_tests")
MAY_CHANGE = (
    "train.num_epochs",
    *ENDS_EARLY,
    "make.timeout",
    "environments.replay_on_resume",
    "environments.ray_address",
    "episodes.longest",
    "build.loggers",
    *(f"Checkpoints.{name}" for name in ("every", "every_steps", "every_minutes")),
    *(f"{name}.on_device" for name in ("ReplayBuffer", "RecurrentReplayBuffer")),
    CHANGES_LEARNING,
)

# Two runs that differ only in these learn the same way. All runs of a sweep have the same.
NOT_LEARNED_FROM = (*ENDS_EARLY, "train.num_test_envs")
# Settings of algorithms on which the form of the networks depends; so do all of the networks' own classes.
OF_NETWORKS = (
    *("hidden_dims", "num_critics", "layer_norm", "actor_layer_norm", "dropout", "actor_dropout", "heads", "encoder"),
    *("shared_encoder", "critic_inputs", "vae_hidden_dims", "num_quantiles", "dueling"),
)
MOST_NAMED = 3  # the most settings in a name
LONGEST = 40  # the most characters of a value in a name
WHOLE = re.compile(r"(?<![\w.])(\d+)\.0(?![\w.])")  # treats 1.0 as 1


def check_unchanged(old: Settings, new: Settings, was_bound: Settings | None, is_bound: Settings) -> list[str]:
    """Raise if a resumed run would not keep the bindings of the run; those in `MAY_CHANGE` may differ.

    A value that only one of the two has counts only if it was bound. So a new parameter with a default is accepted. A
    default that has changed is refused like a changed binding.

    `was_bound` are the bindings among the old values; None if they are not known, and then all of them count.
    `is_bound` are those among the new values.

    Returns:
        Messages about changes that may affect learning, or the end of the run, from now on.
    """

    def order(name: str) -> tuple[bool, bool, str]:
        """Names in both come first, then new bindings: another encoder has other parameters, but it is the choice."""
        return name not in old or name not in new, name in old or not _has(is_bound, name), name

    messages = []
    for name in sorted(old.keys() | new.keys(), key=order):
        short = _without_module(name)
        if old.get(name) == new.get(name) or _is_of_logger(name, old, new):
            continue
        if (known := may_change(short)) is not None:
            if known in (CHANGES_LEARNING, *ENDS_EARLY) and name in new:
                messages.append(f"{short} is {new[name]} from here on")
            continue
        is_new_default = name not in old and not _has(is_bound, name)
        was_default = name not in new and was_bound is not None and not _has(was_bound, name)
        if is_new_default or was_default:
            continue
        ours, theirs = _bound_name(new, name), _bound_name(old, name)  # such as SAC.lr and ActorCritic.lr
        if ours and theirs and new[ours] == old[theirs]:
            continue
        if ours != name and old.get(ours or "") == new.get(ours or ""):
            ours = None  # it had this value before, too; the binding of `name` was removed
        given = f"{short} is not set" if ours is None else f"{_without_module(ours)} is {new[ours]}"
        made_with = "no value" if theirs is None else old[theirs]
        if theirs and ours and _without_module(theirs) != _without_module(ours):
            made_with = f"{_without_module(theirs)} = {made_with}"
        advice, before = "", old.get(name)
        if name in new and not _has(is_bound, name):
            advice = f"if its default has changed, leave --config out, or bind {short} = {before}; "
        elif theirs == name and ours == name:
            advice = f'to go on, give --gin "{short}={before}", or leave out the --config or the --gin that binds it; '
        raise UserError(
            f"{given}, but the run was made with {made_with}: a "
            f"resumed run keeps its bindings (except {', '.join(MAY_CHANGE)}); {advice}for a change, train another "
            f"run, in another folder by --results"
        )
    return messages


def _without_module(name: str) -> str:
    """Return class and parameter of a setting's name."""
    return ".".join(name.split(".")[-2:])


def _has(bound: Settings, name: str) -> bool:
    """Check whether a value is bound, by its own name or without its scope."""
    return name in bound or name.rpartition("/")[2] in bound


def _is_of_logger(name: str, *given: Settings) -> bool:
    """Check whether a setting is one of a logger of the user's, which learning does not depend on."""
    loggers = " ".join(settings[key] for settings in given for key in settings if f".{key}".endswith(".build.loggers"))
    return _short(name.rpartition(".")[0]) in {_short(logger) for logger in re.findall(r"@([\w./]+)", loggers)}


def may_change(binding: str) -> str | None:
    """Return the entry of `MAY_CHANGE` for a binding, or None. Entries of a class also hold for its child classes."""
    owner, _, parameter = binding.rpartition(".")
    family = REGISTRY[owner].__mro__ if owner in REGISTRY else ()
    names = (f"{name}.{parameter}" for name in (owner, *(cls.__name__ for cls in family)))
    return next((name for name in names if name in MAY_CHANGE), None)


def other_networks(old: Settings, new: Settings) -> str:
    """Return which settings of networks two runs do not share, with both values; "" if they have the same.

    A setting of an algorithm counts under its class and under its parents alike.
    """
    before, here = _of_networks(old), _of_networks(new)
    return ", and ".join(
        f"{name} is {value}, but there it is {before[key][1]}"
        for key, (name, value) in here.items()
        if key in before and before[key][1] != value
    )


def _of_networks(settings: Settings) -> dict[str, tuple[str, str]]:
    found = dict[str, tuple[str, str]]()
    for name, value in settings.items():
        owner, _, parameter = (short := _without_module(name)).rpartition(".")
        function = find_configurable(owner.rpartition("/")[2])
        if hasattr(function, "inner_update"):
            if parameter in OF_NETWORKS:
                found[parameter] = short, value
        elif isinstance(function, type) and issubclass(function, nn.Module):
            found[short] = short, value
    return found


def settings_of_run(run: Path) -> Settings | None:
    """Return the settings of a run; None if its folder has no config."""
    config = run / "config.gin"
    return plain_values(read_config_text(config), config) if config.is_file() else None


def with_facts(run: Path, settings: Settings) -> Settings:
    """Return the settings of a run, with facts of its run.json that change what is learned, as if they were settings.

    These are the run whose networks it started from, the environment that a function made, and the epoch after which it
    went online, which settings do not tell or which `differing` ignores. Runs that start from runs whose names differ
    in a last number, results/ENV/ALGO/1 and 2, count as alike: these are seeds of one experiment.
    """
    folder, facts = RunFolder.at(run), dict[str, str]()
    details = folder.details()
    if isinstance(init := details.get("init"), str) and init:
        last = "/".join(Path(init).parts[-3:])  # the same from every working directory
        facts["run.init"] = repr(re.sub(r"\d+$", "", last).rstrip("/"))
    if isinstance(made := details.get("env_made"), str):
        facts["run.env_class"], _, facts["run.env_made"] = shown(made, len(made)).partition(" ")
    if isinstance(details.get("from"), str):
        epoch = details.get("switch_epoch")
        facts["run.switch_epoch"] = str(epoch if isinstance(epoch, int) else _epochs_before_the_switch(run))
    elif folder.env_steps() and (planned := _bound_value(settings, "train.num_epochs")) is not None:
        facts["run.switch_epoch"] = planned
    return {**settings, **facts}


def _epochs_before_the_switch(run: Path) -> int:
    """Return the number of epochs in a run's table before it went online; older versions store it nowhere else."""
    table = run / "progress.csv"
    with (
        contextlib.suppress(OSError, ValueError, csv.Error),  # it is missing or damaged
        table.open(encoding="utf-8", newline="") as file,
    ):
        return sum(not row.get("env_step") for row in csv.DictReader(file))
    return 0


def are_same(one: Settings, other: Settings) -> bool:
    """Check whether two runs learn the same way. Settings of the length or speed of a run are ignored."""
    return not differing([one, other])


def used_by(known: Settings, bound: Settings, algorithm: type) -> Settings:
    """Return the bindings of a command as a run with the settings `known` would use them.

    Of several classes of a family that take part, the binding of the most derived one counts, as when they are built.
    """
    taking_part = {_short(name.rpartition(".")[0]) for name in known} | {cls.__name__ for cls in algorithm.__mro__}
    used = {}
    for name in known:
        owner, _, parameter = name.rpartition(".")
        family = [cls.__name__ for cls in _family(_short(owner))]
        keys = [*(f"{one}.{parameter}" for one in family if one in taking_part), name]
        if (value := next((bound[key] for key in keys if key in bound), None)) is not None:
            used[name] = value
    return used


def _family(owner: str) -> list[type]:
    """Return the class of this name with its parents and child classes, the most derived first."""
    if (cls := REGISTRY.get(owner)) is None:
        return []
    children = [child for child in REGISTRY.values() if cls in child.__mro__]
    return sorted([*children, *cls.__mro__[1:]], key=lambda one: -len(one.__mro__))


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
        if len({*values}) > 1 and not _is_ignored(name, *given):
            found.setdefault((parameter, *values), name)
    return list(found.values())


def name_settings(given: Sequence[Settings]) -> list[str]:
    """Return a short name for each item, with the settings that differ, as in "lr=0.001, gamma=0.9"."""
    names = differing(given)
    if len(names) > MOST_NAMED:
        names = _separating_first(given, names)
    parameters = [name.rpartition(".")[2] for name in names]
    labels = {
        name: parameter if parameters.count(parameter) == 1 else name
        for name, parameter in zip(names, parameters, strict=True)
    }
    return [_name(settings, labels) for settings in given]


def _separating_first(given: Sequence[Settings], names: Sequence[str]) -> list[str]:
    """Return the names with those first that tell all items apart, as few as a greedy search finds."""
    values = {name: [_comparable(_value(settings, name)) for settings in given] for name in names}
    first, classes = list[str](), list[tuple[object, ...]]([()] * len(given))
    while len({*classes}) < len(given) and len(first) < len(names):
        rest = [name for name in names if name not in first]
        best = max(rest, key=lambda name: len({*zip(classes, values[name], strict=True)}))
        divided: list[tuple[object, ...]] = [*zip(classes, values[best], strict=True)]
        if len({*divided}) == len({*classes}):
            break
        first, classes = [*first, best], divided
    return [*first, *(name for name in names if name not in first)]


def group_runs(runs: Sequence[Path]) -> dict[str, list[Path]]:
    """Group the runs of one algorithm's folder by equal settings and facts; see `with_facts`."""
    groups: list[tuple[Settings | None, list[Path]]] = []
    for run in runs:
        if (settings := settings_of_run(run)) is not None:
            settings = with_facts(run, settings)
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


def hash_settings(settings: Settings) -> str:
    """Return a short hash of the settings; equal settings have equal hashes."""
    text = "\n".join(
        f"{name} = {_comparable(settings[name])}" for name in sorted(settings) if not _is_ignored(name, settings)
    )
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()


def stops_alike(old: Settings, new: Settings, settings: Collection[str] = NOT_LEARNED_FROM) -> bool:
    """Check whether settings that `are_same` ignores are the same, or their defaults; 1 and 1.0 are the same."""
    names = [name for name in old.keys() | new.keys() if _without_module(name) in settings]
    return all(_comparable(_value(old, name)) == _comparable(_value(new, name)) for name in names)


def _comparable(value: str | None) -> str:
    """Return a value's text for comparisons and hashes: 1.0 as 1, and (8,) as (8), so that old hashes stay."""
    return WHOLE.sub(r"\1", str(value)).replace(",)", ")")


def _is_ignored(name: str, *given: Settings) -> bool:
    short = _without_module(name)
    return may_change(short) is not None or short in NOT_LEARNED_FROM or _is_of_logger(name, *given)


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
    """Return the bound value of a setting, by the name that `_bound_name` finds."""
    found = _bound_name(settings, name)
    return None if found is None else settings[found]


def _bound_name(settings: Settings, name: str) -> str | None:
    """Return the name that binds a setting: its full name, else without scope, else that of a parent or child class."""
    if name in settings:
        return name
    owner, _, parameter = name.rpartition(".")
    related = [_short(owner)]
    if (cls := REGISTRY.get(related[0])) is not None:
        related += [parent.__name__ for parent in cls.__mro__[1:]]
        related += [child.__name__ for child in REGISTRY.values() if cls in child.__mro__[1:]]
    return next((f"{key}.{parameter}" for key in related if f"{key}.{parameter}" in settings), None)


def _short(owner: str) -> str:
    """Return the name without scope and module: actor/offpcc.Recurrent -> Recurrent."""
    return owner.rpartition("/")[2].rpartition(".")[2]


@functools.cache
def _default(owner: str, parameter: str) -> str | None:
    """Return a parameter's default as text; None if it is unknown or there is none."""
    function = find_configurable(owner)
    known = None if function is None else declarations(function).get(parameter)
    return None if known is None or known.default is known.empty else write_plainly(known.default)
