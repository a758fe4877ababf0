"""`RunSpec`: one description of a run. It is made once, from arguments and gin; nothing asks gin for it later."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import torch

from offpcc.algorithms import ALGORITHMS, ActorCritic, find_algorithm, name_of_class, short_name
from offpcc.algorithms.agent import check_device
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.config import loading
from offpcc.config.bindings import explains_calls, refuse_unknown, settable
from offpcc.config.loading import Config, python_numbers
from offpcc.config.settings import Settings, settings
from offpcc.config.validation import Flag, Fraction, NonnegativeInteger, PositiveInteger, PositiveNumber, Rule, Seed
from offpcc.data import Dataset
from offpcc.data.buffers.base import BufferBuilder
from offpcc.data.datasets.load import MINARI, check_source
from offpcc.data.offline import DatasetOptions
from offpcc.envs.d4rl import catalog
from offpcc.envs.guard import opened
from offpcc.envs.make import EnvFunction, EnvOptions, check_is_env, env_label, env_options, options_without_env
from offpcc.envs.make import make as make_environment
from offpcc.envs.vector.local import environments as build_environments
from offpcc.networks import Recurrent
from offpcc.training.callbacks import AnyCallback, Callback
from offpcc.training.interaction import episode_options
from offpcc.training.loggers import Logger, check_installed, tracking_wanted
from offpcc.training.models.imagination import ImaginationOptions, imagination_options
from offpcc.training.models.training import ModelTraining
from offpcc.training.online import DEFAULT_ENV_STEPS, AnyAlgorithm, OnlineOptions, check_begins_online
from offpcc.training.run_fns import TRAIN_SETTINGS, check_num_epochs, check_settings, train
from offpcc.utils.errors import UserError, for_python, print_to_stderr
from offpcc.utils.paths import shown
from offpcc.utils.rng import SharedState
from offpcc.utils.system import keep_freed_memory

RECURRENT_HISTORY = 4  # observations that a model reads by default, if the agent has a memory
MOST_DRAWN = 1_000_000  # seeds that are drawn are below this; episodes of tests and videos have larger ones


Arguments = Annotated[
    Mapping[str, Any],
    Rule(
        'a dictionary of arguments by name, such as {"batch_size": 64}',
        lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value),
    ),
]
AnyPath = Annotated[
    str | Path,
    Rule("the name of a file or a folder", lambda value: isinstance(value, str | os.PathLike) and os.fspath(value)),
]
ENVIRONMENTS_SETTINGS = [
    name for name, one in inspect.signature(build_environments).parameters.items() if one.kind is one.KEYWORD_ONLY
]


@settings("Checkpoints")
class CheckpointOptions(Settings):
    """Intervals between checkpoints. They do not affect the results of a run.

    Args:
        every: epochs between two checkpoints; these are written at the end of an epoch.
        every_steps: environment steps between two checkpoints.
        every_minutes: minutes from the end of writing one checkpoint to the next.
    """

    every: PositiveInteger | None = None
    every_steps: PositiveInteger | None = None
    every_minutes: PositiveNumber | None = 1.0


EVERY_MINUTE = CheckpointOptions()


def _are_callbacks(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(callable(one) or isinstance(one, Callback) for one in value)


Callbacks = Annotated[
    Sequence[AnyCallback],
    Rule("a list of callbacks such as [MyCallback], in gin [@MyCallback], see run_fns.train", _are_callbacks),
]
OwnLoggers = Annotated[
    Sequence[Callable[[Path | None], Logger]],
    Rule(
        "a list of classes, or of functions that build a logger for a run's folder, such as [MyLogger], in gin "
        "[@MyLogger]",
        lambda value: isinstance(value, list | tuple) and all(map(callable, value)),
    ),
]


@settings("build")
class PartOptions(Settings):
    """Classes of the user's for parts of a run, which gin binds as ``build.buffer_class`` and so on; see `build`.

    Args:
        buffer_class: class of the buffer, such as ``@MyBuffer``. None for `ReplayBuffer`, or `RecurrentReplayBuffer`
            for an agent with memory.
        callbacks: callbacks, such as ``[@MyCallback]``; a class is built without arguments, and a function is called
            with the run at the end of each epoch.
        loggers: classes of loggers, such as ``[@MyLogger]``, in addition to those of offpcc, or functions that return
            one. Each is called with the run's folder, or with None if there is no folder.
    """

    buffer_class: BufferBuilder | None = None
    callbacks: Callbacks = ()
    loggers: OwnLoggers = ()


def part_options(**given: Any) -> PartOptions:
    """Return the given parts, and gin's for the others."""
    parts = PartOptions.from_gin(given)
    loading.add_used(PartOptions, {name: loading.with_names(value) for name, value in given.items()})
    return parts


@dataclass(frozen=True)
class RunSpec:
    """A run: what it learns, from what, and with which settings. `RunSpec.make` makes it from arguments and gin.

    The classes of the algorithm, its networks and the buffer get their bindings from gin when they are built. So
    `build_run` refuses a spec after other bindings were loaded.

    Attributes:
        env: the environment's name, or the label of the function that makes it; None to learn from a dataset without
            tests.
        env_function: the function that makes the environment; None to make it by its name.
        dataset: the dataset to learn from; None to learn from interaction.
        dataset_fraction: the part of the dataset's steps to use.
        dataset_steps: the number of the dataset's steps to use, from the start; the last episode is cut. None for all.
        algo: the algorithm's short name.
        seed: the seed of everything random. In a folder of results, it is the run's id.
        device: the device of the networks; "auto" for CUDA if it is available, else the CPU.
        threads: number of CPU threads of torch while the run is built and trained; None keeps torch's number.
        algorithm: arguments of the algorithm's class; gin gives the others.
        memory: arguments of the memory, `Recurrent`; gin gives the others.
        buffer: arguments of the buffer's class; gin gives the others.
        parts: the class of the buffer, and callbacks and loggers of the user's.
        environments: all arguments of `offpcc.envs.vector.local.environments`.
        then_env_steps: environment steps after learning from the dataset; 0 for none.
        start_from: the folder of the run that this one continues in its environment; None for none.
        online: settings of these steps.
        init: the folder of a run whose networks this run starts from; None for new networks.
        model: the file of a trained model; None to find or train one, if the algorithm needs it.
        imagination: settings of the rollouts in a model; None for an algorithm without a model.
        model_settings: arguments of `DynamicsModel`.
        model_training: settings of the model's training.
        env_options: arguments of `make`.
        longest_episode: environment steps after which an episode counts as endless.
        dataset_options: settings of the dataset.
        training: arguments of `offpcc.training.run_fns.train`; without num_epochs if it is not known.
        given: those arguments of `train`, `environments`, `make` and `build` that gin did not give, as bindings of gin.
            Loggers that gin cannot write are left out, because they may change.
        checkpoints: intervals between checkpoints.
        config: gin's bindings and their source.
        used: values in use; `build_run` adds more.
        results: the folder of all runs.
        save_dataset: the file to record every step of training in.
        track: whether to follow the run in Weights & Biases.
        video: whether to record a video of the best actor at the end.
    """

    env: str | None
    env_function: EnvFunction | None
    dataset: str | Path | Dataset | None
    dataset_fraction: float
    dataset_steps: int | None
    algo: str
    seed: int
    device: torch.device
    threads: int | None
    algorithm: Mapping[str, Any] = field(repr=False)
    memory: Mapping[str, Any] = field(repr=False)
    buffer: Mapping[str, Any] = field(repr=False)
    parts: PartOptions
    environments: Mapping[str, Any]
    then_env_steps: int
    start_from: Path | None
    online: OnlineOptions
    init: Path | None
    model: Path | None
    imagination: ImaginationOptions | None
    model_settings: Mapping[str, Any]
    model_training: ModelTraining | None
    env_options: EnvOptions
    longest_episode: int
    dataset_options: DatasetOptions
    training: Mapping[str, Any]
    given: Mapping[str, Any]
    checkpoints: CheckpointOptions
    config: Config = field(repr=False)
    used: loading.Used = field(repr=False)
    results: Path | None = None
    save_dataset: Path | None = None
    track: bool = False
    video: bool = True

    def __new__(cls, *args: Any, **kwargs: Any) -> RunSpec:
        """Refuse a call with some of the fields. Copies call it without any, or with all."""
        if args or (kwargs and "config" not in kwargs):
            raise TypeError("RunSpec is made by RunSpec.make(ENV, ALGO, ...), with the arguments of offpcc.build")
        return super().__new__(cls)

    @classmethod
    @explains_calls
    @for_python()
    @loading.exclusive()
    def make(
        cls,
        env: str | EnvFunction | None,
        algo: AnyAlgorithm,
        *,
        seed: Seed | None = 0,
        device: str | torch.device = "cpu",
        threads: PositiveInteger | None = 1,
        algorithm: Arguments | None = None,
        buffer: Arguments | None = None,
        buffer_class: BufferBuilder | None = None,
        callbacks: Callbacks | None = None,
        loggers: OwnLoggers | None = None,
        environments: Arguments | None = None,
        make: Arguments | None = None,
        dataset: str | Path | Dataset | None = None,
        dataset_fraction: Fraction = 1.0,
        dataset_steps: PositiveInteger | None = None,
        then_env_steps: NonnegativeInteger | None = None,
        start_from: AnyPath | None = None,
        init: AnyPath | None = None,
        model: AnyPath | None = None,
        training: Arguments | None = None,
        results: AnyPath | None = None,
        save_dataset: AnyPath | None = None,
        track: Flag = False,
        video: Flag = True,
    ) -> RunSpec:
        """Make the description of a run. Arguments that are not given come from gin's bindings, else the defaults.

        Args:
            env: a Gymnasium id, or a D4RL name such as "hopper-medium-v2", which also selects the dataset. Or a
                function or a class that makes the environment, such as ``lambda: gymnasium.make("Pendulum-v1")``: each
                call has to make a new one. None to learn from a dataset without tests.
            algo: a name in `offpcc.algorithms.ALGORITHMS`, or a registered class with its own update, or its name.
            seed: see `RunSpec`, likewise all others. None draws one, and prints it.
            device: see `RunSpec`.
            threads: see `RunSpec`.
            algorithm: arguments of the algorithm's class, and those of its memory (`Recurrent`), such as ``cell``.
            buffer: see `RunSpec`.
            buffer_class: class of the buffer; see `build`.
            callbacks: callbacks; see `offpcc.training.run_fns.train`.
            loggers: see `offpcc.build`.
            environments: see `RunSpec`.
            make: arguments of `offpcc.make` for all environments of the run; see `build`.
            dataset: see `RunSpec`.
            dataset_fraction: see `RunSpec`.
            dataset_steps: see `RunSpec`; not together with a `dataset_fraction`.
            then_env_steps: environment steps in which learning goes on after the dataset, in whole epochs, rounded up;
                `OfflineToOnline` has their settings. With ``num_epochs`` 0, these are all steps of the run. None for
                50,000 with `start_from`, else for none.
            start_from: the folder of a run that learned from the same dataset, also an unfinished one. This run
                continues it in the environment, in a folder of its own, and `train.num_epochs` has no effect.
            init: the folder of a run, of this algorithm or of another one with equal networks. This run starts from
                its networks, target networks, optimizers and normalisation, to fine-tune them.
            model: the file of a model of the dataset, for algorithms such as ``mopo``. None for a model of the same
                data in ``$OFFPCC_MODELS_DIR``, else ``models/``; if there is none, it is trained there first.
            training: arguments of `offpcc.training.run_fns.train`, such as ``{"num_epochs": 10}``; gin gives the
                others.
            results: the folder of all runs; None for ``$OFFPCC_RESULTS``, else ``results/``.
            save_dataset: see `RunSpec`.
            track: see `RunSpec`.
            video: see `RunSpec`.

        Raises:
            UserError: a name is unknown, or an argument or a binding is invalid.
        """
        named: str = name_of_class(algo)
        if tracking_wanted(track):
            check_installed()
        refuse_unknown("train", training or (), TRAIN_SETTINGS)
        check_settings(**training or {})
        refuse_unknown("environments", environments or (), ENVIRONMENTS_SETTINGS)
        if isinstance(env, str) and env in ALGORITHMS and re.search(r"-v\d+$", str(named)):
            raise UserError(f"{env!r} is an algorithm; the environment comes first: ({named!r}, {env!r})")
        algorithm_class = find_algorithm(named)
        if seed is None:
            seed = secrets.randbelow(MOST_DRAWN)
            print_to_stderr(f"the seed {seed} was drawn; seed={seed} repeats this run")
        function = None
        if dataset is not None:
            check_source(dataset)
        if env is not None:
            check_is_env(env)
        if env is None or isinstance(env, str):
            env, dataset = resolve_env_and_dataset(env, dataset)
        else:
            function, env = env, env_label(env)
        if env is None and dataset is None:
            raise UserError("there is neither an environment nor a dataset to learn from; give one of them")
        check_part(dataset, dataset_fraction, dataset_steps)
        if then_env_steps is None:
            then_env_steps = 0 if start_from is None else DEFAULT_ENV_STEPS
        check_goes_online(then_env_steps, env, dataset, start_from)
        if environments and dataset is not None and not then_env_steps:
            raise UserError(
                f"environments={{{', '.join(map(repr, environments))}: ...}} has no effect on a run that learns from "
                f"recorded data; leave it out, or give then_env_steps"
            )
        if init is not None and start_from is not None:
            raise UserError(
                f"--init {init} has no effect with --from, which takes the networks of its run; leave out --init or "
                f"--from"
            )
        check_model_option(algorithm_class, short_name(named), model, dataset)
        used_device = check_device(device, "device")
        loading.take_used()
        imagination = imagination_options(algorithm_class, short_name(named), data_name(dataset))
        parts = {"buffer_class": buffer_class, "callbacks": callbacks, "loggers": loggers}
        own = {name: value for name, value in parts.items() if value is not None}
        arguments = python_numbers(algorithm or {})
        of_memory = memory_parameters(algorithm_class) & {*arguments}
        trained = loading.resolve_bindings(train, python_numbers(training or {}), may_lack=True)
        online = OnlineOptions.from_gin() if then_env_steps else OnlineOptions()
        if start_from is None:
            check_num_epochs(trained.get("num_epochs"), then_env_steps > 0)
            check_begins_online(trained.get("num_epochs"), online, short_name(named), imagination is not None)
        else:
            trained.setdefault("num_epochs", 0)  # it has no effect, so nobody needs to give it
        return cls(
            env=env,
            env_function=function,
            dataset=dataset,
            dataset_fraction=float(dataset_fraction),
            dataset_steps=None if dataset_steps is None else int(dataset_steps),
            algo=short_name(named),
            seed=int(seed),
            device=used_device,
            threads=None if threads is None else int(threads),
            algorithm={name: value for name, value in arguments.items() if name not in of_memory},
            memory={name: value for name, value in arguments.items() if name in of_memory},
            buffer=python_numbers(buffer or {}),
            parts=part_options(**own),
            environments=loading.resolve_bindings(build_environments, python_numbers(environments or {}))
            if dataset is None or then_env_steps
            else {},
            then_env_steps=int(then_env_steps),
            start_from=None if start_from is None else Path(start_from),
            online=online,
            init=None if init is None else Path(init),
            model=None if model is None else Path(model),
            imagination=imagination,
            model_settings={} if imagination is None else model_settings(algorithm_class, arguments),
            model_training=None if imagination is None else ModelTraining.from_gin(),
            env_options=env_options(make) if env else options_without_env(make),
            longest_episode=episode_options(),
            dataset_options=DatasetOptions.from_gin() if dataset is not None else DatasetOptions(),
            training=trained,
            given={
                **_as_bindings("train", python_numbers(training or {})),
                **_as_bindings("environments", python_numbers(environments or {})),
                **loading.python_bindings("make", python_numbers(make or {})),
                **_as_bindings("build", _parts_to_bind(own)),
            },
            checkpoints=CheckpointOptions.from_gin(),
            config=loading.current(),
            used=loading.take_used(),
            results=None if results is None else Path(results),
            save_dataset=None if save_dataset is None else Path(save_dataset),
            track=track,
            video=video,
        )

    @property
    def label(self) -> str:
        """The label of its environment and dataset; see `run_label`."""
        part = self.dataset_fraction, self.dataset_steps
        return run_label(self.env, self.dataset, *part, goes_online=self.then_env_steps > 0)

    def num_epochs(self, switch_epoch: int | None = None) -> int:
        """Return the number of epochs of the whole run; `switch_epoch` are those before the online phase, if over."""
        offline: int = self.training["num_epochs"] if switch_epoch is None else switch_epoch
        online: int = math.ceil(self.then_env_steps / self.training["num_steps_per_epoch"])
        return offline + online

    def make_env(self, **given: Any) -> gymnasium.Env[Any, Any]:
        """Make an environment of the run; `given` are further arguments of `make`. Dict observations are packed."""
        return make_environment(self.env_source, **self.env_options.values(), **{"pack_observations": True, **given})

    @property
    def env_made(self) -> str:
        """The environment that the function makes, as text: its class, its id and the arguments of its spec."""
        with opened(self.make_env()) as env:
            made = env.unwrapped
            spec = env.spec
            arguments = {} if spec is None else {**spec.kwargs, "max_episode_steps": spec.max_episode_steps}
            given = ", ".join(f"{name}={value!r}" for name, value in sorted(arguments.items()))
            text = f"{type(made).__module__}.{type(made).__qualname__} {'' if spec is None else spec.id}({given})"
        return re.sub(r" at 0x[0-9a-f]+", "", text)

    @property
    def env_source(self) -> str | EnvFunction:
        """What `make` makes the environment from: its name, or the function."""
        assert self.env is not None
        return self.env_function or self.env


def _as_bindings(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of Python as bindings of gin."""
    return {f"{owner}.{name}": loading.with_names(value) for name, value in given.items()}


def _parts_to_bind(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given parts without loggers that gin cannot write."""
    can_write = loading.is_writable(loading.with_names(parts.get("loggers")))
    return {name: value for name, value in parts.items() if name != "loggers" or can_write}


def has_memory(algorithm: Any, given: Mapping[str, Any] | None = None) -> bool:
    """Check whether an agent has a memory, before it is built with the `given` arguments, gin's and the defaults."""
    for name in ("encoder", "shared_encoder"):
        builder = (given or {}).get(name) or loading.bound_value(algorithm, name)
        builder = builder or getattr(algorithm, f"default_{name}", None)
        if not getattr(getattr(builder, "func", builder), "memoryless", True):
            return True
    return False


def memory_of(algorithm: Any) -> str | None:
    """Return the argument of an algorithm's class that builds its memory; None if it has none."""
    for name in ("encoder", "shared_encoder"):
        builder = getattr(algorithm, f"default_{name}", None)
        if getattr(builder, "func", builder) is Recurrent:  # itself, or a partial of it
            return name
    return None


def memory_parameters(algorithm: Any) -> set[str]:
    """Return the names of the arguments of an algorithm's memory; none if it has no memory."""
    return settable(Recurrent) if memory_of(algorithm) else set()


def with_memory(algorithm: Any, spec: RunSpec) -> dict[str, Any]:
    """Return the arguments of a run's algorithm, with those of its memory in the encoder that has it."""
    name = memory_of(algorithm)
    if name is None or not spec.memory:
        return {**spec.algorithm}
    builder = spec.algorithm.get(name) or getattr(algorithm, f"default_{name}")
    return {**spec.algorithm, name: functools.partial(builder, **spec.memory)}


def configured_make(env: str | EnvFunction) -> functools.partial[gymnasium.Env[Any, Any]]:
    """Return `make` for an environment, with gin's bindings as they are now, for a command that trains nothing."""
    check_is_env(env)
    make_env: Callable[..., gymnasium.Env[Any, Any]] = make_environment
    with loading.LOCK:
        return functools.partial(make_env, env, **env_options().values(), pack_observations=True)


def choose_device(name: str | None, threads: int = 1) -> torch.device:
    """Return the named device, else CUDA if available, else the CPU; also set this process up for it.

    Torch gets its number of threads, cuDNN is deterministic, and on the CPU the allocator keeps freed memory. The
    command line calls this; in Python, these settings are those of the user's process.
    """
    torch.set_num_threads(threads)
    device = check_device(name or "auto", "--device")
    make_deterministic(device)
    if device.type == "cpu":
        keep_freed_memory()
    return device


def make_deterministic(device: torch.device) -> None:
    """Make cuDNN deterministic if the device is a GPU, so that the same seed gives the same bytes."""
    if device.type == "cuda":
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


@contextlib.contextmanager
def torch_settings(device: torch.device, threads: int | None) -> Iterator[None]:
    """Give torch a run's number of threads, and cuDNN the flags of `make_deterministic`; restore both at the end."""
    before = torch.get_num_threads()  # of this thread of Python
    with CUDNN_FLAGS.kept():
        if threads is not None:
            torch.set_num_threads(threads)
        make_deterministic(device)
        try:
            yield
        finally:
            if torch.get_num_threads() != before:
                torch.set_num_threads(before)


def _set_cudnn_flags(flags: tuple[bool, bool]) -> None:
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags


CUDNN_FLAGS = SharedState(
    lambda: (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark), _set_cudnn_flags
)


def resolve_env_and_dataset(
    env: str | None, dataset: str | Path | Dataset | None
) -> tuple[str | None, str | Path | Dataset | None]:
    """Return the environment and the dataset to use; a D4RL name stands for both."""
    if env is None or env not in catalog.FILES:
        return env, dataset
    return env if catalog.task(env) else None, env if dataset is None else dataset


def data_name(dataset: str | Path | Dataset | None) -> str:
    """Return the name of a dataset: of a file, D4RL's name of it, or that without its suffix."""
    if isinstance(dataset, Dataset):
        return dataset.name
    if dataset is None or Path(dataset).suffix not in catalog.SUFFIXES:
        return str(dataset or "")
    return str(catalog.NAMES.get(Path(dataset).name, Path(dataset).stem))


def model_settings(algorithm: type[ActorCritic], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return gin's arguments of `DynamicsModel`; a model of an agent with memory reads more than one observation.

    The agent's class has the `arguments` of Python.
    """
    is_bound = "history" in loading.bindings_of(DynamicsModel)
    given = {"history": RECURRENT_HISTORY} if has_memory(algorithm, arguments) and not is_bound else {}
    return loading.resolve_bindings(DynamicsModel, given)


def check_model_option(
    algorithm: type[ActorCritic], algo: str, model: str | Path | None, dataset: str | Path | Dataset | None
) -> None:
    """Raise if an algorithm needs a dataset for its model, or no model."""
    if getattr(algorithm, "imagination", None) is None:
        if model is not None:
            raise UserError(
                f"--model {model} has no effect on {algo}, which uses no model; leave --model out, or choose mopo"
            )
    elif dataset is None and not algorithm.trains_model:
        raise UserError(
            f"{algo} learns from recorded data; give a dataset with --dataset, or choose mbpo to learn online"
        )
    elif dataset is None and model is not None:
        raise UserError(f"--model {model}: without recorded data, {algo} trains its model in the run; leave it out")


def check_goes_online(
    num_steps: int,
    env: str | None,
    dataset: str | Path | Dataset | None,
    start_from: str | Path | None,
    known_env: str | None = None,
) -> None:
    """Raise if a run cannot go on in an environment after it learned from a dataset.

    `start_from` is the run of --from, and `known_env` its environment, for the message.
    """
    if start_from is not None and not num_steps:
        raise UserError("--then_env_steps is 0, so the run would not continue; give the number of environment steps")
    if not num_steps:
        return
    option = f"--then_env_steps {num_steps}" if start_from is None else f"--from {start_from}"
    if env is None:
        known = f"; that run had --env {shown(known_env)}" if known_env else ""
        raise UserError(f"{option} needs an environment to continue in; give one with --env{known}")
    if dataset is None:
        raise UserError(f"{option} is for runs that learn from recorded data first; give a dataset with --dataset")


def check_part(dataset: Any, fraction: float, steps: int | None) -> None:
    """Raise if a part of a dataset is chosen without a dataset, or both as a fraction and as a number of steps."""
    given = {"fraction": None if fraction == 1.0 else fraction, "steps": steps}
    chosen = [f"--dataset_{name} {value}" for name, value in given.items() if value is not None]
    if dataset is None and chosen:
        raise UserError(f"{chosen[0]} has no effect without a dataset; leave it out")
    if len(chosen) > 1:
        raise UserError(
            f"{' and '.join(chosen)} both choose a part of the data and cannot be combined; leave out one of the two"
        )


def run_label(
    env: str | None,
    dataset: str | Path | Dataset | None,
    fraction: float = 1.0,
    steps: int | None = None,
    goes_online: bool = False,
) -> str:
    """Return the label of a run: its environment, its dataset, or both, as in "pendulum-p-v0_from_medium_0.1".

    That of a run on the first N steps has "_N_steps". That of a run that goes on in its environment ends in
    "_then_online".
    """
    if isinstance(dataset, Dataset):
        dataset = dataset.name
    elif dataset is not None and not str(dataset).startswith(MINARI):
        path = Path(dataset)
        dataset = path.stem if path.suffix in catalog.SUFFIXES or len(path.parts) > 1 else str(dataset)
    part = "" if fraction == 1.0 else f"_{fraction:g}"
    part += ("" if steps is None else f"_{steps}_steps") + "_then_online" * goes_online
    if env is None or dataset is None or env == dataset:
        return f"{env or dataset}{part}"
    return f"{env}_from_{dataset}{part}"
