"""`offpcc params`: prints the hyper-parameters that gin can bind for an algorithm, or for one part of a run."""

import functools
import inspect
import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from offpcc.algorithms import ALGORITHMS, find_algorithm
from offpcc.algorithms.construction import DeterministicPolicy
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.algorithms.optim import CosineDecay, LinearDecay
from offpcc.config import loading
from offpcc.config.bindings import configurables, find_configurable, nearest
from offpcc.config.hyperparameters import REQUIRED, Hyperparameter, default_text, hyperparameters, own_parameters
from offpcc.config.registry import REGISTRY
from offpcc.data import default_buffer
from offpcc.networks import Convolutional, PassThrough
from offpcc.networks.augmentation import RandomShift
from offpcc.networks.cells import CELLS
from offpcc.training import (
    experiment,  # noqa: F401 (it registers all that gin configures)
)
from offpcc.training.models.training import ModelTraining
from offpcc.training.spec import has_memory
from offpcc.utils.errors import UserError

RUN = {  # functions that gin configures, in each run
    "train": "length of training, tests and updates",
    "environments": "parallel environments; not for recorded data",
    "make": "each environment",
    "episodes": "limit of episodes",
    "dataset": "recorded data",
    "Checkpoints": "intervals between checkpoints",
    "OfflineToOnline": "the environment after recorded data",
    "Imagination": "rollouts in a model, of algorithms such as mopo",
    "build": "parts of your own",
}
WIDTH = 100  # letters of a printed line


class HyperparameterGroup(NamedTuple):
    """Parameters of one class or function."""

    title: str
    parameters: list[Hyperparameter]


def run_params(name: str | None, json_output: bool, modules: Sequence[str]) -> int:
    """Print the hyper-parameters behind a name; without a name, all names."""
    loading.load_gin_config(None, [], modules=modules)
    if name is None:
        if json_output:
            print(json.dumps({"names": names()}, indent=2))
        else:
            print(_filled("algorithms", list(ALGORITHMS)))
            print(_filled("parts", [each for each in names() if each not in ALGORITHMS]))
            print("`offpcc params NAME` prints the hyper-parameters of one of them.")
        return 0
    found = groups(name)
    if json_output:
        plain = [{"title": one.title, "parameters": [each._asdict() for each in one.parameters]} for one in found]
        print(json.dumps({"name": name, "groups": plain}, indent=2))
        return 0
    example = next((each for one in found for each in one.parameters if each.default != REQUIRED), None)
    for one in found:
        print(f"{one.title}\n")
        for each in one.parameters:
            print("\n".join(_lines(each)))
        print()
    if example is not None:
        binding = f"{example.name} = {example.default}"
        print(f'Bind one by --gin "{binding.replace(" ", "")}", by a line {binding!r} in a file for --config,')
        print(
            "or by offpcc.configure in Python. A binding of a base class, such as ActorCritic.lr, reaches its children."
        )
        if name in ALGORITHMS:
            owner, parameter = example.name.split(".")
            print(f"In Python without gin, it is an argument: offpcc.{owner}(ENV, {parameter}={example.default}).")
    return 0


def _filled(title: str, words: Sequence[str]) -> str:
    return f"{title}:\n" + textwrap.fill(" ".join(words), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _lines(one: Hyperparameter) -> Iterator[str]:
    yield f"  {one.name}" + (f" = {one.default}" if one.default != REQUIRED else "   (required)")
    text = one.meaning + (f" Allowed: {one.allowed}." if one.allowed else "")
    yield textwrap.fill(text.strip(), WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)


def names() -> list[str]:
    """Return all names that `groups` takes: of algorithms, of cells, and of classes and functions in gin."""
    classes = {cls.__name__ for cls in ALGORITHMS.values()} | {"ActorCritic", "DeterministicPolicy"}
    others = {full.rpartition(".")[2] for full in configurables()} - classes
    return [*ALGORITHMS, *CELLS, *sorted(others)]


def groups(name: str) -> list[HyperparameterGroup]:
    """Return the hyper-parameters behind a name, by class.

    It is that of an algorithm, of a class or function in gin, such as ``ReplayBuffer``, or of a memory.
    """
    if name in ALGORITHMS or issubclass(REGISTRY.get(name, object), tuple(ALGORITHMS.values())):
        return [one for one in _of_algorithm(find_algorithm(name)) if one.parameters]
    owner = CELLS.get(name) or find_configurable(name)
    if owner is None:
        hint = f"{nearest(name, [*names(), *(cls.__name__ for cls in ALGORITHMS.values())])} `offpcc params`".lstrip()
        raise UserError(f"gin can configure no class or function {name!r}; {hint} lists all names")
    found = hyperparameters(owner)
    return [HyperparameterGroup(_title(owner, name) if found else f"{name}: no parameters", found)]


def _of_algorithm(cls: Any) -> Iterator[HyperparameterGroup]:
    """Yield the groups of an algorithm: itself and its base classes, its encoders, its buffer, and the run."""
    for place in cls.__mro__:
        if place is cls or place in (*REGISTRY.values(), DeterministicPolicy):
            title = cls.__name__ if place is cls else f"{cls.__name__}, inherited from {place.__name__}"
            yield HyperparameterGroup(
                title, hyperparameters(place, cls.__name__, own=True) if own_parameters(place) else []
            )
    encoders = default_encoders(cls)
    for encoder in encoders:
        yield HyperparameterGroup(_title(encoder), hyperparameters(encoder))
    recurrent = has_memory(cls)
    if recurrent:
        for short, cell in CELLS.items():
            if inspect.isclass(cell):
                yield HyperparameterGroup(
                    f"{cell.__name__}: the memory of Recurrent.cell = {short!r}", hyperparameters(cell)
                )
    if Convolutional in encoders:
        yield HyperparameterGroup(_title(RandomShift), hyperparameters(RandomShift))
    for buffer in (x for x in default_buffer(not recurrent, cls.draws_by_priority).__mro__ if x in REGISTRY.values()):
        yield HyperparameterGroup(_title(buffer), hyperparameters(buffer))
    for short in RUN:
        if short == "Imagination" and cls.imagination is None:
            continue
        owner = find_configurable(short)
        own = cls.imagination if short == "Imagination" else {}  # an algorithm's values come before the defaults
        defaults = {f"{short}.{name}": default_text(value) for name, value in own.items()}
        found = [one._replace(default=defaults.get(one.name, one.default)) for one in hyperparameters(owner)]
        yield HyperparameterGroup(_title(owner, short), found)
    if cls.imagination is not None:
        for part in (DynamicsModel, ModelTraining):
            yield HyperparameterGroup(_title(part), hyperparameters(part))
    for schedule in (LinearDecay, CosineDecay):
        yield HyperparameterGroup(
            f"{schedule.__name__}: a learning rate, as in lr = @{schedule.__name__}()", hyperparameters(schedule)
        )


def default_encoders(cls: Any) -> list[Any]:
    """Return the classes of an algorithm's default encoders, and of the encoders that these contain."""
    found = []
    for build in (cls.default_shared_encoder, cls.default_encoder):
        while isinstance(build, functools.partial):
            found += [value for value in build.keywords.values() if inspect.isclass(value)]
            build = build.func
        found += [build] if build is not PassThrough else []
    return found


def _title(owner: Any, short: str | None = None) -> str:
    if short in RUN:
        return f"{short}: {RUN[short]}"
    text = inspect.cleandoc(owner.__doc__ or "").partition("\n")[0].rstrip(".")
    return f"{owner.__name__}: {text[:1].lower() + text[1:] if text[1:2].islower() else text}"
