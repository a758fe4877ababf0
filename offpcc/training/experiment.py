"""`build` makes the environment, dataset, algorithm and buffer of a run. `Experiment` holds them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from offpcc.algorithms import ActorCritic, find_algorithm
from offpcc.algorithms.agent import Agent
from offpcc.algorithms.components import find_constant
from offpcc.algorithms.construction import check_actions
from offpcc.algorithms.dynamics import AUTO, DynamicsModel
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.algorithms.variants import TABLE
from offpcc.config import loading
from offpcc.config.bindings import explains_calls, refuse_unknown
from offpcc.config.registry import specification
from offpcc.config.synonyms import DATA, no_attribute
from offpcc.config.validation import (
    Flag,
    Fraction,
    NonnegativeInteger,
    PositiveInteger,
    check_arguments,
    format_value,
    rules_of,
)
from offpcc.data import Dataset, RecurrentReplayBuffer, ReplayBuffer, default_buffer
from offpcc.data.buffers.base import BufferBase, BufferBuilder
from offpcc.data.buffers.imagined import ImaginedBuffer
from offpcc.data.buffers.mixed import MixedBuffer
from offpcc.data.buffers.snapshot import Manifest
from offpcc.data.checks.episodes import NEARLY_ALL
from offpcc.data.offline import OfflineDataset, read
from offpcc.data.recording.hdf5_writer import check_new_hdf5, check_output
from offpcc.data.recording.recorder import Recorder
from offpcc.envs.d4rl import catalog
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.guard import opened
from offpcc.envs.make import EnvFunction, make
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.envs.vector.local import environments as build_environments
from offpcc.envs.vector.ray_actors import RayEnvironments
from offpcc.envs.wrapper_chain import levels
from offpcc.envs.wrappers import num_stacked
from offpcc.networks import Recurrent
from offpcc.networks.sequences import reads_previous
from offpcc.training.evaluation import Evaluation
from offpcc.training.imagination import Imagination, imagined_capacity, stat_names
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import ConsoleLogger, Logger, Loggers
from offpcc.training.loggers.console import download_bar
from offpcc.training.loggers.csv_logger import joined_columns
from offpcc.training.metrics import Loop
from offpcc.training.model_training import check_model_of, find_or_train, fingerprint, load_model, untrained_model
from offpcc.training.online import OnlinePhase, check_begins_online, check_take_over, normalizes
from offpcc.training.remote import RemoteInteraction
from offpcc.training.run_fns import (
    TRAIN_SETTINGS,
    AnyCallback,
    Callback,
    as_callback,
    callback_columns,
    check_num_envs,
    check_num_epochs,
    check_settings,
    columns_of,
    train,
    unused_train_parameters,
)
from offpcc.training.saturation import Saturation
from offpcc.training.spec import (
    Arguments,
    Callbacks,
    OwnLoggers,
    RunSpec,
    memory_of,
    python_numbers,
    torch_settings,
    with_memory,
)
from offpcc.utils.errors import UserError, first_line, for_python, format_error, print_to_stderr, warn_of_data
from offpcc.utils.files import explain_write_errors
from offpcc.utils.paths import PACKAGE, as_path
from offpcc.utils.rng import derived_seed
from offpcc.utils.system import is_shortage
from offpcc.utils.tensor_files import write_tensors
from offpcc.utils.version import versions

ActionSpace = spaces.Box | spaces.Discrete
EPISODE_STATE = ("actions", "memory", "notes")  # of an interaction; None where the episodes start again
CHECKPOINT_FORMAT = 10  # of the states of a run's parts, in checkpoints and in the files of `Experiment.save`


def configure(file: str | Path | None = None, *bindings: str) -> None:
    """Set gin bindings for everything that is built after this call. They replace all earlier bindings.

    Args:
        file: a config file, searched for like `--config`; None for the defaults, which are those of the paper.
        bindings: bindings such as "SAC.lr = 1e-4", one per argument. They override those of the file.

    Raises:
        UserError: a file is missing or malformed, or a binding names a class or parameter that does not exist.
    """
    loading.load_gin_config(file, bindings, given_in=loading.IN_PYTHON)


@dataclass(repr=False)
class Experiment:
    """The parts of a run and its state."""

    algorithm: ActorCritic
    buffer: ReplayBuffer | RecurrentReplayBuffer | MixedBuffer
    interaction: Interaction | None  # None for learning from a dataset
    tests: Evaluation | None  # None without an environment
    loop: Loop
    title: str = ""
    recording: OfflineDataset | None = None  # the dataset in the buffer
    recorder: Recorder | None = None  # records all transitions
    saved: Manifest = field(default_factory=Manifest)  # the parts of the buffer that checkpoint files hold
    callbacks: Sequence[Callback] = ()  # called in each `train`, before those given there
    loggers: Sequence[Callable[[Path | None], Logger]] = ()  # of the user; built with the run's folder, or None
    spec: RunSpec | None = None  # None for parts that were put together by hand
    config: str = ""  # all values in use, as a gin file that binds them
    asked: tuple[Any, Any] | None = None  # num_epochs and stop_return of the last `train`
    steps_per_epoch: int | None = None  # of the last `train`
    settings: dict[str, Any] = field(default_factory=dict)  # given to `train`, for later calls; see there
    online: OnlinePhase | None = None  # the parts for the environment, after learning from the dataset
    imagination: Imagination | None = None  # the rollouts in a model
    time_limit: int | None = None  # of an episode, in steps, as the environment's spec tells it

    if not TYPE_CHECKING:  # type checkers find names that do not exist by themselves

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("learner", name, "the learner")

    def __repr__(self) -> str:
        modules = [part for part in vars(self.algorithm).values() if isinstance(part, torch.nn.Module)]
        learned = [one.numel() for one in torch.nn.ModuleList(modules).parameters() if one.requires_grad]
        return (
            f"<learner {self.title}: {type(self.algorithm).__name__} with {sum(learned):,} parameters on "
            f"{self.algorithm.device}, {self.loop.epoch:,} epochs trained>"
        )

    def train(
        self,
        logger: Logger | None = None,
        callbacks: Sequence[AnyCallback] = (),
        **settings: Any,
    ) -> Agent:
        """Train with `run_fns.train` and return the trained agent.

        Call it again with more epochs to continue. A run that reached `stop_return` continues if the number of
        epochs or `stop_return` differs from before.

        Args:
            logger: by default a `ConsoleLogger`, which shows the progress, and the loggers given to `build`;
                ``Loggers([])`` shows nothing.
            callbacks: see `run_fns.train`; called after those given to `build`.
            settings: arguments of `run_fns.train`, such as ``num_epochs``. They override those of the spec, also
                in later calls, except ``num_epochs`` and ``stop_return``. ``num_epochs`` counts from the start. If it
                is neither given nor bound, both are those of the last call: a finished training does nothing, and
                says how to continue. In the first call it is `DEFAULT_EPOCHS`, and a line says so.

        Raises:
            NonFiniteError: an update met NaN or infinity.
            EnvironmentFault: an environment misbehaves; ``__cause__`` is the exception that it raised, if any.
            UserError: a setting is invalid or missing, or there is not enough memory.
        """
        note = ""
        if logger is not None and not hasattr(logger, "epoch"):
            raise UserError(f"train got {logger!r} for a logger; for the length of a run, give num_epochs=N; {DATA}")
        if not isinstance(callbacks, list | tuple):
            raise UserError(f"train.callbacks is {format_value(callbacks)}; it has to be a list, such as [callback]")
        refuse_unknown("train", settings, [*TRAIN_SETTINGS, "callbacks"])
        callbacks = [as_callback(one, "train.callbacks") for one in callbacks]  # once, also for a run of two phases
        check_settings(**settings)
        settings = python_numbers(settings)
        given = set(settings)
        kept = {name: value for name, value in settings.items() if name not in ("num_epochs", "stop_return")}
        kept = self.settings | kept
        bound = loading.resolve_bindings(train, may_lack=True) if self.spec is None else self.spec.training
        settings = {**bound, **kept, **settings}
        if "num_epochs" not in settings and self.asked is not None:
            settings["num_epochs"] = self.asked[0]
            if "stop_return" not in given:
                settings["stop_return"] = self.asked[1]
        elif "num_epochs" not in settings:
            settings["num_epochs"] = DEFAULT_EPOCHS
            note = describe_default(settings, self.recording is None)
        with for_python():
            self._check_start(settings["num_epochs"])
        if self.online is None:
            idle = unused_train_parameters(self.algorithm, self.interaction, self.tests, settings)
            for name in sorted(given & idle.keys()):
                print_to_stderr(f"train({name}=...) has no effect: {idle[name]}")
        steps = settings["num_steps_per_epoch"]
        for played in (self.interaction, self.online.interaction if self.online is not None else None):
            check_num_envs(played, steps)
        if self.loop.epoch and self.steps_per_epoch not in (None, steps):
            raise UserError(
                f"train.num_steps_per_epoch is {steps}, but the {self.loop.epoch} epochs so far had "
                f"{self.steps_per_epoch} steps, and all epochs are of one length; leave it out"
            )
        self.settings, self.steps_per_epoch = kept, steps
        asked = settings.get("num_epochs"), settings.get("stop_return")
        if self.asked not in (None, asked):
            self.loop.stopped = False
        self.asked = asked
        num_epochs = self.num_epochs(settings)
        if self.loop.stopped or self.loop.epoch >= num_epochs:
            note = describe_end(self.loop, num_epochs)
        with contextlib.ExitStack() as stack:
            stack.enter_context(for_python())
            if self.spec is not None:
                stack.enter_context(torch_settings(self.spec.device, self.spec.threads))
            if logger is None:
                console = ConsoleLogger(self.title)
                if note:
                    console.print(note)
                logs = [console, *(make_logger(None) for make_logger in self.loggers)]
                logger = stack.enter_context(contextlib.closing(Loggers(logs)))
            try:
                if not self.is_online and settings["num_epochs"]:
                    self._train(logger, callbacks, settings)
                if self.online is not None and not self.is_online and not self.loop.stopped:
                    self.go_online()
                if self.online is not None and self.is_online:
                    options = self.online.options
                    own: dict[str, Any] = {"update_after": options.warm_up_steps, "update_every": options.update_every}
                    own |= {"updates_per_step": options.updates_per_step, "num_epochs": num_epochs}
                    self._train(logger, [*self.online.callbacks, *callbacks], {**settings, **own})
                if isinstance(self.algorithm, ActorCritic):
                    self.algorithm.nonfinite_guard.synchronize(self.algorithm)
            except NonFiniteError as error:
                raise error.at(self.loop.step) from None
            except EnvironmentFault as fault:
                raise fault.without_gin() from fault.cause
            except (MemoryError, RuntimeError) as error:
                if not is_shortage(error):
                    raise
                raise UserError(
                    f"learning takes more memory than there is ({first_line(error)}); lower the sizes of networks, "
                    f"batches or windows, or the number of environments"
                ) from error
        return Agent(self.algorithm)

    def _check_start(self, num_epochs: int) -> None:
        """Raise if a run without epochs of its first phase has no second one, or none that the data serve."""
        if self.is_online:
            return
        check_num_epochs(num_epochs, self.online is not None)
        if self.online is not None:
            name, in_model = type(self.algorithm).__name__, self.imagination is not None
            check_begins_online(num_epochs, self.online.options, name, in_model)

    def _train(self, logger: Logger, callbacks: Sequence[AnyCallback], settings: Mapping[str, Any]) -> None:
        """Train one phase of the run."""
        called = [*([self.imagination] if self.imagination else []), *self.callbacks, *callbacks]
        if isinstance(self.algorithm, ActorCritic):
            called.append(Saturation(self.algorithm, self.buffer))
        parts = (self.algorithm, self.buffer, self.interaction, self.tests)
        _train(*parts, logger=logger, callbacks=called, loop=self.loop, **settings)

    @property
    def is_online(self) -> bool:
        """Whether a run with recorded data now learns in its environment."""
        return self.loop.switch_step is not None

    def go_online(self, switch_step: int | None = None) -> None:
        """Go on in the environment: with the algorithm, the buffer and the interaction of `online`.

        Args:
            switch_step: steps of the first phase, if `loop` does not know them yet.

        Raises:
            UserError: the run was built without `then_env_steps`, or its networks differ.
        """
        if self.online is None and switch_step is not None:
            raise UserError("the run has gone on in its environment; give the environment and --then_env_steps N again")
        if self.online is None:
            raise UserError(
                "the run has no steps in an environment: give the environment and then_env_steps=N where it is built, "
                "or --then_env_steps N; a run in a folder goes on by start_from"
            )
        self.online.begin(self.algorithm, has_learned=(self.loop.step if switch_step is None else switch_step) > 0)
        self.algorithm, self.buffer = self.online.algorithm, self.online.buffer
        self.interaction, self.imagination = self.online.interaction, None
        self.loop.go_online()

    def num_epochs(self, settings: Mapping[str, Any]) -> int:
        """Return the number of epochs of the whole run, with these settings of `train`."""
        offline: int = self.loop.switch_epoch if self.is_online else settings["num_epochs"]
        return offline + (self.online.num_epochs(settings["num_steps_per_epoch"]) if self.online else 0)

    @property
    def columns(self) -> list[str]:
        """The columns of the run's table, those of both phases."""
        phase = self.online
        if phase is None:
            return columns_of(self.algorithm, self.tests, self.interaction) + callback_columns(self.callbacks)
        online = columns_of(phase.algorithm, self.tests, phase.interaction, goes_online=True)
        return joined_columns(online, [dict.fromkeys(phase.columns_before)]) + callback_columns(self.callbacks)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all parts but the buffer, and what they depend on."""
        return {
            "algorithm": self.algorithm.state_dict(),
            "normalized": isinstance(self.algorithm, ActorCritic) and normalizes(self.algorithm),
            "interaction": None if self.interaction is None else self.interaction.state_dict(),
            "loop": self.loop.state_dict(),
            **({} if self.imagination is None else {"imagination": self.imagination.state_dict()}),
            "threads": torch.get_num_threads(),
            "device": self.algorithm.device.type,
            "versions": versions(),
        }

    def save(self, file: str | Path, *, buffer: Flag = False) -> None:
        """Write the whole learner to one file, which `offpcc.load` reads.

        The file holds networks, target networks, optimizers, schedules, statistics of the normalisation, random
        generators, the counts and rows of the training loop, and all settings but the loggers given to `build`.

        Args:
            file: the file to write; an existing one is replaced.
            buffer: whether to write the replay buffer and the unfinished episodes, too, so that training continues
                exactly. This takes several times the buffer's memory; `offpcc.fit` writes large buffers in parts.
                Recorded data is never written: `offpcc.load` needs it again, and training then continues exactly.

        Raises:
            UserError: the file or a setting cannot be written, or the learner was put together by hand.
        """
        check_arguments("save", rules_of(Experiment.save), {"buffer": buffer})
        path, spec = as_path(file, "file", is_file=True), self.spec
        if spec is None:
            raise UserError("only what offpcc.build or a constructor such as offpcc.SAC built can be saved as a whole")
        own = {name: getattr(spec.parts, name) for name in spec.given_parts if name != "loggers"}
        loading.check_writable("build", {name: loading.with_names(value) for name, value in own.items()})
        with torch_settings(spec.device, spec.threads):
            state = self.state_dict()
        content_of: Any = self.buffer
        holds_buffer = buffer or (self.recording is not None and not self.is_online)
        if state["interaction"] is not None and not holds_buffer:
            state["interaction"] |= dict.fromkeys(EPISODE_STATE)
        content = {
            "kind": "learner",
            "format": CHECKPOINT_FORMAT,
            **state,
            "buffer": BufferBase.state_dict(content_of) if holds_buffer else None,
            "config": self.config,
            "settings": {**self.settings},
            "asked": self.asked,
            "steps_per_epoch": self.steps_per_epoch,
            "spec": {
                "env": spec.env,
                "has_function": spec.env_function is not None,
                "dataset": None if self.recording is None else self.recording.name,
                "dataset_fraction": spec.dataset_fraction,
                "dataset_steps": spec.dataset_steps,
                "then_env_steps": spec.then_env_steps,
                "model": None if spec.model is None else str(spec.model),
                "algo": spec.algo,
                "seed": spec.seed,
                "threads": spec.threads,
                "algorithm": _as_plain_data(type(self.algorithm).__name__, {**spec.algorithm, **spec.memory}),
                "buffer": _as_plain_data(type(self.buffer).__name__, spec.buffer),
                "environments": {name: spec.environments[name] for name in spec.given_environments},
            },
        }
        with explain_write_errors(path):
            write_tensors(path, content)

    def close(self) -> None:
        """Close all environments and the recorder."""
        waiting = None if self.online is None else self.online.interaction
        for part in (self.interaction or waiting, self.tests, self.recorder):
            if part is not None:
                part.close()

    def record(self, file: Path, seed: int, resume: bool = False) -> None:
        """Record all transitions from now on; `recorder.merge` writes the file.

        Args:
            file: the file to write, in D4RL's format; see `Recorder`.
            seed: the seed, stored in the file's metadata.
            resume: True to continue an existing recording.

        Raises:
            UserError: the run has no environment to record, it is recorded already, or the file cannot be written.
        """
        self.check_recording(file, resume)
        assert self.interaction is not None and self.spec is not None
        metadata = {"algorithm": type(self.algorithm).__name__, "actor": "the learning one", "seed": seed}
        with opened(self.spec.make_env()) as example:
            num_envs = self.interaction.num_envs
            self.recorder = Recorder(file, example, metadata=metadata, num_envs=num_envs, resume=resume)
        self.interaction.stores.append(self.recorder)

    def check_recording(self, file: Path, resume: bool = False) -> None:
        """Raise if `record` would reject the file's name or this experiment. Leaves no file behind.

        Raises:
            UserError: the run has no environment to record, or the file cannot be written.
        """
        if self.interaction is None:
            raise UserError(f"{file}: a run that learns from recorded data has no steps to record")
        if self.recorder is not None:
            raise UserError(f"{file}: the steps are recorded already, into {self.recorder.file}; use one file")
        check_output(file)
        if not resume:
            check_new_hdf5(file)
            there = next(place for place in file.absolute().parents if place.is_dir())
            # In places such as /proc, only an attempt shows whether it works.
            with explain_write_errors(file), tempfile.TemporaryDirectory(dir=there):
                pass


def _as_plain_data(owner: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of Python as `from_specification` reads them.

    Raises:
        UserError: an argument cannot be written into a file.
    """
    written = dict[str, Any]()
    for name, value in arguments.items():
        try:
            written[name] = specification(value)
        except UserError as error:
            raise UserError(
                f"{owner}.{name} is {format_value(value)}, which cannot be saved; give a value of a class that is "
                f"decorated with offpcc.configurable"
            ) from error
    return written


# Without gin, which has no further values here, but would write to its record of used values and extend messages.
_train = inspect.unwrap(train)
DEFAULT_EPOCHS = 100
UNKNOWN_LENGTH = 1_000  # of an episode, for the capacity of imagined steps, if the environment has no time limit


def describe_default(settings: Mapping[str, Any], is_online: bool) -> str:
    """Return the message about the length of a run without num_epochs."""
    num_steps = settings["num_epochs"] * settings["num_steps_per_epoch"]
    random = f", the first {settings['update_after']:,} at random" if is_online else ""
    return (
        f"num_epochs is not given, so the run has {settings['num_epochs']} epochs of "
        f"{settings['num_steps_per_epoch']:,} steps: {num_steps:,} steps{random}; train(num_epochs=N) chooses another "
        f"length"
    )


def describe_end(loop: Loop, num_epochs: int) -> str:
    """Return the message for a call of `train` that has nothing to do, with a way to continue."""
    if loop.stopped:
        return "the run has reached its stop_return; give train another num_epochs or stop_return to continue"
    if loop.switch_step is not None:
        return (
            f"there is nothing left to train: the run has had its {loop.step - loop.switch_step:,} environment steps; "
            f"build it with a larger then_env_steps"
        )
    return (
        f"there is nothing left to train: the run has had {loop.epoch} of {num_epochs} epochs. num_epochs counts from "
        f"the start: train(num_epochs={loop.epoch + num_epochs}) trains {num_epochs} more"
    )


def check_complete(settings: Mapping[str, Any]) -> None:
    """Raise if an argument of `train` is missing: without a default, or bound to ``gin.REQUIRED``.

    Raises:
        UserError: the message names the first.
    """
    for name, parameter in inspect.signature(train).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and name not in settings:
            raise loading.missing_binding(f"train.{name}")


@explains_calls
def build(
    env: str | EnvFunction | None,
    algo: str | type[ActorCritic],
    *,
    seed: NonnegativeInteger | None = 0,
    device: str | torch.device = "cpu",
    threads: PositiveInteger | None = 1,
    algorithm: Arguments | None = None,
    buffer: Arguments | None = None,
    buffer_class: BufferBuilder | None = None,
    callbacks: Callbacks | None = None,
    loggers: OwnLoggers | None = None,
    environments: Arguments | None = None,
    dataset: str | Path | Dataset | None = None,
    dataset_fraction: Fraction = 1.0,
    dataset_steps: PositiveInteger | None = None,
    then_env_steps: NonnegativeInteger | None = None,
    model: str | Path | None = None,
) -> Experiment:
    """Build a run from names. Arguments that are not given come from gin's bindings, else from the defaults.

    Args:
        env: a Gymnasium id, or a D4RL name such as "hopper-medium-v2", which also selects the dataset. Or a function or
            a class that makes the environment, such as ``lambda: gymnasium.make("Pendulum-v1")``: each call has to make
            a new one. None to learn from a dataset without tests.
        algo: a name in `ALGORITHMS`, or the name of a class with its own update that is registered with
            `offpcc.configurable`, or this class.
        seed: the seed of everything random. None draws one, and prints it.
        device: the device of the networks; "auto" for CUDA if it is available, else the CPU.
        threads: number of CPU threads of torch while this run is built and trained; then torch's own number holds
            again. More threads are faster only on an idle machine. None keeps torch's number.
        algorithm: arguments of the algorithm's class, and those of its memory (`offpcc.networks.Recurrent`), such as
            ``cell``.
        buffer: arguments of the buffer's class.
        buffer_class: class of the buffer, or gin's ``build.buffer_class = @MyBuffer``. By default `ReplayBuffer`, or
            `RecurrentReplayBuffer` for an agent with memory.
        callbacks: callbacks for each `train`; see `offpcc.training.run_fns.train`. Or gin's
            ``build.callbacks = [@MyCallback]``.
        loggers: classes of more loggers, built with the run's folder (None without one), or gin's ``build.loggers``.
        environments: arguments of `offpcc.envs.vector.local.environments`, such as ``num_envs``.
        dataset: a dataset to learn from instead of interaction; see `offpcc.data.load_dataset`. The wrappers of `env`
            apply to its observations as they would in `env`.
        dataset_fraction: the part of the dataset's steps to use. Takes whole episodes from the start, as few as hold
            this part, rounded up.
        dataset_steps: the number of the dataset's steps to use, from the start; the last episode is cut.
        then_env_steps: environment steps in which learning goes on in `env` after the dataset; see `RunSpec.make`.
        model: the file of a model of the dataset; see `RunSpec.make`.

    Raises:
        UserError: a name is unknown, or the environment or dataset is unsuitable.

    Note:
        This changes no setting of the process. `offpcc.utils.system.keep_freed_memory`, which the command line calls,
        saves up to a third of the time of an update on the CPU, but then the process keeps its peak memory.
    """
    spec = RunSpec.make(
        env,
        algo,  # type: ignore[arg-type]  # a class is taken, too
        seed=seed,
        device=device,
        threads=threads,
        algorithm=algorithm,
        buffer=buffer,
        buffer_class=buffer_class,
        callbacks=callbacks,
        loggers=loggers,
        environments=environments,
        dataset=dataset,
        dataset_fraction=dataset_fraction,
        dataset_steps=dataset_steps,
        then_env_steps=then_env_steps,
        model=model,
    )
    return build_run(spec)


def read_data(spec: RunSpec) -> OfflineDataset | None:
    """Read the dataset of a run, as its agent sees it; None if the run learns from interaction.

    Raises:
        UserError: the dataset or the environment is unsuitable.
    """
    if spec.dataset is None:
        return None
    with contextlib.ExitStack() as stack:
        example = None if spec.env is None else stack.enter_context(opened(spec.make_env()))
        bar = stack.enter_context(download_bar())
        fraction, seed, state = spec.dataset_fraction, spec.seed, spec.env_options.state
        given: dict[str, Any] = {"fraction": fraction, "steps": spec.dataset_steps, "seed": seed, "state": state}
        given["memory_limit"] = limit_of_images(spec)
        return read(spec.dataset, example, spec.dataset_options, progress=bar, **given)


def limit_of_images(spec: RunSpec) -> int | None:
    """Return `memory_limit` of the buffer that the dataset will fill; the dataset is read before that is built."""
    if "memory_limit" in spec.buffer:
        limit = spec.buffer["memory_limit"]
    else:
        algorithm = find_algorithm(spec.algo)
        is_memoryless = True
        for name in ("encoder", "shared_encoder"):
            builder = spec.algorithm.get(name) or loading.bound_value(algorithm, name)
            builder = builder or getattr(algorithm, f"default_{name}", None)
            is_memoryless &= getattr(getattr(builder, "func", builder), "memoryless", True)
        default = default_buffer(is_memoryless, getattr(algorithm, "draws_by_priority", False))
        limit = loading.bound_value(spec.parts.buffer_class or default, "memory_limit")
    return limit if isinstance(limit, int) else None  # the buffer refuses others


def build_run(spec: RunSpec, data: OfflineDataset | None = None) -> Experiment:
    """Build the parts of a run.

    Args:
        spec: the description of the run.
        data: the dataset, if `read_data` has read it.

    Raises:
        UserError: the environment or the dataset is unsuitable, or other bindings were loaded after the spec was made.
    """
    if loading.current().text != spec.config.text:
        raise UserError("other bindings were loaded after this spec was made; make a new one by RunSpec.make")
    with for_python(), loading.LOCK, torch_settings(spec.device, spec.threads):
        return _build_run(spec, data)


def _build_run(spec: RunSpec, data: OfflineDataset | None) -> Experiment:
    loading.recall_used(spec.used)
    algorithm_class = find_algorithm(spec.algo)
    callbacks = [as_callback(given, "build.callbacks") for given in spec.parts.callbacks]
    data = data or read_data(spec)
    seen: tuple[spaces.Space[Any], spaces.Space[Any]] | None = None
    frames, limit, changes_rewards = 1, None, False
    if spec.env is not None:
        with opened(spec.make_env()) as example:
            is_wrapped = bool(spec.env_options.wrappers)
            changes_rewards = is_wrapped and any(isinstance(one, gymnasium.RewardWrapper) for one in levels(example))
            seen = example.observation_space, example.action_space
            frames = num_stacked(example)
            limit = None if example.spec is None else example.spec.max_episode_steps
    elif data is not None:
        seen = data.observation_space, data.action_space
    assert seen is not None
    observations, actions = seen
    assert isinstance(observations, spaces.Box) and isinstance(actions, ActionSpace)
    if hasattr(algorithm_class, "is_discrete"):  # an algorithm without a base class checks by itself
        named = spec.env or (data.name if data else "the data")
        check_actions(algorithm_class, actions, named, are_recorded=data is not None)
    with explain_failure(algorithm_class.__name__, "hidden_dims, hidden_dim or num_critics"):
        own = with_memory(algorithm_class, spec)
        algorithm = algorithm_class(observations, actions, device=spec.device, seed=spec.seed, **own)
    given = {"device": spec.device, "seed": spec.seed, **spec.buffer}
    tests = None
    if spec.env is not None:
        make_env = functools.partial(make, spec.env_source, **spec.env_options._asdict(), scale_actions=True)
        for_tests = functools.partial(make_env, shows_state=False)
        references = None if changes_rewards else catalog.reference_returns(spec.env)
        tests = Evaluation(for_tests, references, spec.longest_episode)
    interaction = online = imagination = None
    buffer: Any

    def imagine(real: Any, sizes: Mapping[str, Any]) -> Imagination:
        """Return the rollouts in a model, whose buffer has `real` as its real part."""
        assert spec.imagination is not None and spec.model_training is not None
        seed = derived_seed(spec.seed, 10)  # not that of the real part
        if real.frame_stack > 1:
            raise UserError(
                f"{spec.env} shows stacks of {frames} observations, and a model needs single ones; leave Concatenate "
                f"out, and bind DynamicsModel.history = {frames}"
            )
        encoders = algorithm.shared_encoder, algorithm.actor_encoder, *algorithm.critic_encoders
        if algorithm.memoryless and any(map(reads_previous, encoders)):
            raise UserError(
                f"{spec.algo} begins rollouts within episodes, where an agent without memory does not know the "
                f"previous action and reward; leave use_previous_action and use_previous_reward out, or choose "
                f"r{spec.algo}"
            )
        if algorithm.clip_rewards and spec.imagination.ends_as_failure:
            raise UserError(
                f"{spec.algo}: clip_rewards is True, but a rollout that passes Imagination.threshold ends with a "
                f"reward of its own, whose sign is not enough; leave clip_rewards out, or bind "
                f"Imagination.ends = 'truncated'"
            )
        model = get_model(spec, data, observations, actions)
        longest = limit or UNKNOWN_LENGTH
        if data is not None:
            longest = int((data.rows.stops - data.rows.starts).max())
        capacity = imagined_capacity(spec.imagination, real, longest)
        taken = inspect.signature(default_buffer(algorithm.memoryless, False)).parameters  # a user's class has others
        sizes = {name: value for name, value in sizes.items() if name in taken}
        own = build_buffer(algorithm, observations, actions, {**sizes, "capacity": capacity, "seed": seed})
        known = "" if data is None else fingerprint(model)
        buffer = ImaginedBuffer(real, own, spec.imagination.real_share, known)
        rows = None if data is None else data.rows
        given = spec.model_training, spec.seed, algorithm.gamma
        algorithm.model_stats = stat_names(data is None, **spec.imagination._asdict())
        seen = algorithm.reward_scale, algorithm.reward_shift
        return Imagination(spec.imagination, model, buffer, rows, *given, *seen)

    def interact(algorithm: ActorCritic, share: float = 0.0, recorded: Any = None) -> tuple[Any, Interaction]:
        """Return a buffer for an algorithm in the environments, and the interaction that fills it."""
        with explain_failure("environments", "num_envs"):
            bound = {"timeout": spec.env_options.timeout, "bindings": spec.config.text}
            played = build_environments(make_env, spec.seed, **bound, **spec.environments)
        with closed_on_failure(played):
            sizes = {"num_envs": played.num_envs, "frame_stack": frames, **given}
            buffer: Any = build_buffer(algorithm, observations, actions, sizes, spec.parts.buffer_class)
            if share:
                buffer = MixedBuffer(recorded, buffer, share)
            if spec.imagination is not None and data is None:
                nonlocal imagination
                imagination = imagine(buffer, {**sizes, "num_envs": 1})
                buffer = imagination.buffer
            parts = algorithm, buffer, spec.seed, spec.longest_episode
            if isinstance(played, RayEnvironments) and not played.lockstep:
                if not isinstance(algorithm, ActorCritic):
                    raise UserError(
                        f"{algorithm_class.__name__} cannot be sent to the actors of environments.ray_address; derive "
                        f"it from ActorCritic, or set environments.lockstep=True"
                    )
                interaction: Interaction = RemoteInteraction(played, *parts)
            else:
                interaction = Interaction(played, *parts)
        if isinstance(played, LocalEnvironments) and played.shared_with_tests:
            assert tests is not None
            tests.shared = interaction
        return buffer, interaction

    if data is not None:
        if not isinstance(algorithm, ActorCritic):
            raise UserError(f"{algorithm_class.__name__} cannot learn from recorded data; derive it from ActorCritic")
        algorithm.expect_recorded_data()
        data = data.for_agent(algorithm)
        notices = [notice.text for notice in data.notices]
        for text in [*notices, *filter(None, [data.scale_warning() if algorithm.has_critics else ""])]:
            warn_of_data(f"{data.name}: {text}")
        sizes = {"num_envs": 1, "frame_stack": 1, **given}
        buffer = build_buffer(algorithm, observations, actions, sizes, spec.parts.buffer_class)
        _learn_from(data, algorithm, buffer)
        real = buffer
        if spec.imagination is not None and spec.start_from is None:
            imagination = imagine(buffer, sizes)
            buffer = imagination.buffer
        if spec.then_env_steps:
            then = _algorithm_online(spec, algorithm, data, observations, actions)
            mixed, waiting = interact(then, spec.online.share, real)
            with closed_on_failure(waiting):
                parts = then, mixed, waiting, spec.seed, columns_of(algorithm, tests)
                online = OnlinePhase(spec.online, spec.then_env_steps, *parts)
    else:
        if note := note_without_data(spec):
            warn_of_data(note)
        buffer, interaction = interact(algorithm)
    if spec.memory and (encoder := memory_of(algorithm_class)) not in spec.algorithm:  # as by gin's bindings of it
        loading.add_used(ActorCritic, {str(encoder): None})
    for part, arguments in arguments_of(spec, algorithm_class, buffer).items():
        loading.add_used(part, arguments)
    for make_logger in spec.parts.loggers:  # they are built later, in the run's folder
        loading.add_used(make_logger, loading.bindings_of(make_logger))
    title = f"{spec.label} {spec.algo}"
    return Experiment(
        algorithm,
        buffer,
        interaction,
        tests,
        Loop(),
        title,
        data,
        callbacks=callbacks,
        loggers=spec.parts.loggers,
        spec=spec,
        online=online,
        imagination=imagination,
        time_limit=limit,
        config=loading.operative(),
    )


def _warn_of_constant(data: OfflineDataset, algorithm: ActorCritic, is_constant: Any) -> None:
    """Warn of the numbers of observations that the normalisation hides, as they are constant in the data."""
    if algorithm.normalization is None:
        return
    names = [f"{place}" for place in range(is_constant.size)]
    if data.packed is not None:
        names = data.packed.unpacked_shape.number_names
    hidden = set[int]()
    if (packed := data.packed) is not None and packed.state_part is not None:  # only critics see these
        hidden = {*range(packed.state_part.columns.start, packed.state_part.columns.stop)}
    constant = [names[place] for place in np.flatnonzero(is_constant) if place not in hidden]
    if constant:
        warn_of_data(
            f"{data.name}: of the observations, the numbers {', '.join(constant[:10])}{' ...' * (len(constant) > 10)} "
            f"are constant in the data, so the agent does not see them: normalised, they are 0 wherever it acts, also "
            f"in a later online phase"
        )


def note_without_data(spec: RunSpec) -> str:
    """Return a note on an algorithm that is made for recorded data and gets none, else ""."""
    cls = find_algorithm(spec.algo)
    if spec.dataset is not None or spec.init is not None or not getattr(cls, "is_offline", False):
        return ""
    entry = TABLE.get(spec.algo)
    online = "sac" if entry is None else spec.algo.replace(entry.algorithm, "sac")
    effect = "" if cls.has_critics else ", whose actions it copies, so it does not improve"
    return (
        f"{spec.algo} is made for recorded data, but no data set is given, so it learns from its own steps{effect}; "
        f"name one with --dataset, or choose an algorithm for learning online, such as {online}"
    )


def arguments_of(spec: RunSpec, algorithm_class: Any, buffer: Any) -> dict[Any, Mapping[str, Any]]:
    """Return the arguments of a run's parts that gin did not give, by class."""
    own, memory = (
        {name: loading.with_names(value) for name, value in given.items()} for given in (spec.algorithm, spec.memory)
    )
    given = {algorithm_class: own, Recurrent: memory, type(real_part(buffer)): spec.buffer}
    return {part: arguments for part, arguments in given.items() if arguments}


def real_part(buffer: Any) -> Any:
    """Return the part of a buffer that holds real transitions; without a model, the buffer itself."""
    return buffer.real if isinstance(buffer, ImaginedBuffer) else buffer


def get_model(
    spec: RunSpec, data: OfflineDataset | None, observations: spaces.Box, actions: ActionSpace
) -> DynamicsModel:
    """Return the model of a run: the given one, one of the same data, or a new one, which is trained first.

    Without recorded data, it is not trained yet.

    Raises:
        UserError: the given model is of other data or sizes, or the data are not suited to a model.
    """
    names, options = [spec.env or ""], spec.env_options
    is_altered = bool(options.wrappers or options.kwargs)  # so the termination rule of its name may not hold
    assert isinstance(actions, spaces.Box)  # as for all algorithms with a model
    if data is None:
        return untrained_model(spec.model_settings, names, observations, actions, spec.device, spec.seed, is_altered)
    if spec.model is not None:
        return check_model_of(load_model(spec.model, spec.device), spec.model, data)
    assert spec.model_training is not None
    names += [data.recorded_in or "", data.name]
    if is_altered and spec.model_settings.get("termination", AUTO) == AUTO:
        names = names[1:] if not options.wrappers else []  # wrappers change recorded observations, too
    return find_or_train(data, names, spec.model_settings, spec.model_training, spec.device, spec.seed)


def _algorithm_online(
    spec: RunSpec, before: ActorCritic, data: OfflineDataset, observations: spaces.Box, actions: ActionSpace
) -> ActorCritic:
    """Return the algorithm of the online phase: the one of the dataset, or another one that can take over.

    Raises:
        UserError: its networks differ, or it learns from other windows.
    """
    if spec.online.algorithm is None:
        return before
    cls = find_algorithm(spec.online.algorithm)
    if spec.start_from is not None and cls is not type(before):
        raise UserError(
            f"OfflineToOnline.algorithm is {spec.online.algorithm}, but this run has --algo {spec.algo} and begins "
            f"online; leave one out"
        )
    if cls is type(before):
        return before
    with explain_failure(cls.__name__, "hidden_dims, hidden_dim or num_critics"):
        algorithm: ActorCritic = cls(observations, actions, device=spec.device, seed=spec.seed)
    if algorithm.n_step != before.n_step:
        raise UserError(
            f"{cls.__name__}.n_step is {algorithm.n_step}, but that of {type(before).__name__} is {before.n_step}; "
            f"give both the same"
        )
    algorithm.reward_scale *= data.reward_scale
    check_take_over(algorithm, before)
    return algorithm


@contextlib.contextmanager
def closed_on_failure(part: Any) -> Iterator[None]:
    """Close a part, such as worker processes or the lock of a recording, if the body raises."""
    try:
        yield
    except BaseException:
        part.close()
        raise


@contextlib.contextmanager
def explain_failure(part: str, sizes: str) -> Iterator[None]:
    """Turn exceptions from building a part into a `UserError` that names the part and a remedy.

    Args:
        part: the name of the part's class.
        sizes: the arguments to lower in order to save memory.

    Raises:
        UserError: a binding has the wrong type, refers to itself, or needs more memory than there is; or a line of the
            user's own classes raises a TypeError.
    """
    try:
        yield
    except (MemoryError, RuntimeError, TypeError, OverflowError, ValueError) as error:
        if is_shortage(error) or isinstance(error, OverflowError):
            remedy = f"that is more memory than there is: lower its sizes, such as {sizes}"
        elif isinstance(error, TypeError):  # a value of the wrong type, such as a function for @Recurrent
            remedy = "correct its bindings"
            if line := _line_of_user(error):
                raise UserError(f"{part} cannot be built: {format_error(error)} ({line}); correct this line") from error
        elif isinstance(error, RecursionError):
            remedy = "a binding refers to itself; correct it"
        else:
            raise
        raise UserError(f"{part} cannot be built: {first_line(error)}; {remedy}") from error


def _line_of_user(error: Exception) -> str:
    """Return the last line of an error's traceback outside offpcc and installed packages, or ""."""
    libraries = PACKAGE, Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts) or frame.filename.startswith("<")
        if not is_installed and not any(map(file.is_relative_to, libraries)):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def build_buffer(
    algorithm: ActorCritic,
    observations: spaces.Box,
    actions: ActionSpace,
    arguments: Mapping[str, Any],
    buffer_class: BufferBuilder | None = None,
) -> ReplayBuffer | RecurrentReplayBuffer:
    """Build the replay buffer of an algorithm: `buffer_class`, else the one that suits it.

    Raises:
        UserError: an argument is invalid, the buffer does not fit the algorithm, or memory is short.
    """
    buffer_class = buffer_class or default_buffer(algorithm.memoryless, getattr(algorithm, "draws_by_priority", False))
    name = getattr(buffer_class, "__name__", str(buffer_class))
    if getattr(buffer_class, "holds_episodes", not algorithm.memoryless) is algorithm.memoryless:
        holds, needs = ("sequences", "transitions") if algorithm.memoryless else ("transitions", "sequences")
        raise UserError(
            f"build.buffer_class is {name}, which draws {holds}, but {type(algorithm).__name__} learns from {needs}; "
            f"choose a child of {'ReplayBuffer' if algorithm.memoryless else 'RecurrentReplayBuffer'}"
        )
    steps: dict[str, Any] = {"num_steps": algorithm.n_step} if algorithm.memoryless else {}
    with explain_failure(name, "capacity or batch_size" + ", or n_step of the algorithm" * algorithm.memoryless):
        buffer: ReplayBuffer | RecurrentReplayBuffer = buffer_class(observations, actions, **steps, **arguments)
    for what, reads, setting, value in (
        ("next actions", "reads_next_actions", "gives_next_actions", True),
        ("returns", "reads_returns", "return_discount", getattr(algorithm, "gamma", None)),
    ):
        if getattr(algorithm, reads, False):
            if not hasattr(buffer, setting):
                raise UserError(
                    f"{type(algorithm).__name__} reads recorded {what}, which {name} does not give; derive it from "
                    f"ReplayBuffer or RecurrentReplayBuffer"
                )
            setattr(buffer, setting, value)
    if warning := check_context_length(algorithm, buffer):
        warn_of_data(warning)
    return buffer


def check_context_length(algorithm: ActorCritic, buffer: Any) -> str:
    """Return a warning if the segments are shorter than the encoder's context length, else ""."""
    if not isinstance(algorithm, ActorCritic) or not isinstance(buffer, RecurrentReplayBuffer):
        return ""
    if buffer.segment_len is None:
        return ""
    seen = buffer.segment_len + buffer.burn_in
    context_length = max(encoder.context_length or 0 for encoder in (algorithm.shared_encoder, algorithm.actor_encoder))
    if context_length <= seen:
        return ""
    return (
        f"the memory looks back {context_length} steps, but learning sees {seen} of them together "
        f"(RecurrentReplayBuffer.segment_len and burn_in), so the agent acts with longer memories than it learned "
        f"with; lower its window, such as GPT.context_length={max(seen // 2, 1)}, or raise segment_len or burn_in"
    )


def _learn_from(data: OfflineDataset, algorithm: ActorCritic, buffer: ReplayBuffer | RecurrentReplayBuffer) -> None:
    """Fill the buffer with the dataset, and set the algorithm's reward scale and normalisation statistics from it.

    Raises:
        UserError: the dataset lacks what the algorithm reads: ends of episodes, next actions or returns.
    """
    name, reader = type(algorithm).__name__, "an agent with memory learns from whole episodes"
    if algorithm.reads_returns:
        reader = f"{name} reads the return from each step on"
    if not data.has_ends and (algorithm.reads_returns or not algorithm.memoryless):
        raise UserError(
            f"{data.name} does not say where any episode ends (no terminals, no timeouts), and {reader}; give the time "
            f'limit, --gin "dataset.max_episode_steps=N", or mark the ends in the data'
        )
    stops, terminations = data.rows.stops, data.rows.terminations
    is_alone = (stops - data.rows.starts == 2) & (terminations[stops - 2, 0] == 0.0)
    if is_alone.sum() >= NEARLY_ALL * len(stops) and (algorithm.reads_returns or algorithm.reads_next_actions):
        what = "the return from each step on" if algorithm.reads_returns else "the recorded next action"
        raise UserError(
            f"{data.name}: {is_alone.sum():,} of {len(stops):,} episodes are single steps that did not terminate, and "
            f"{name} reads {what}; give the steps in order of time and mark only the ends of episodes, or choose an "
            f"algorithm that learns from single steps, such as iql or cql"
        )
    if algorithm.reads_returns and algorithm.gamma == 1.0 and not terminations.any():
        raise UserError(
            f"{name}.gamma is 1 and no episode of {data.name} terminated, so no return is finite, and {name} reads "
            f"them; lower gamma, or choose cql"
        )
    algorithm.reward_scale *= data.reward_scale
    if not (algorithm.normalization is algorithm.state_normalization is None):
        mean, std = data.statistics()
        algorithm.set_statistics(mean, std)
        _warn_of_constant(data, algorithm, find_constant(mean, std))
    buffer.fill(data.rows, data.identity)
