"""`Experiment`: the parts of a run and its state, with `train` and `save`. `build.py` builds one."""

from __future__ import annotations

import contextlib
import functools
import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.agent import Agent
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.config import loading
from offpcc.config.bindings import Given, Result, explains_calls, refuse_unknown
from offpcc.config.registry import specification
from offpcc.config.synonyms import DATA, no_attribute
from offpcc.config.validation import Flag, format_value
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.base import BufferBase
from offpcc.data.buffers.mixed import MixedBuffer
from offpcc.data.buffers.snapshot import Manifest
from offpcc.data.offline import OfflineDataset
from offpcc.data.recording.hdf5_writer import check_new_hdf5, check_output
from offpcc.data.recording.recorder import Recorder
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.guard import opened
from offpcc.training.callbacks import AnyCallback, Callback, as_callback, callback_columns
from offpcc.training.diagnostics import Overestimation, Saturation
from offpcc.training.evaluation import Evaluation
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import ConsoleLogger, Logger, Loggers
from offpcc.training.loggers.csv_logger import joined_columns
from offpcc.training.metrics import Loop
from offpcc.training.models.imagination import Imagination
from offpcc.training.online import IN_ENVIRONMENT, OnlinePhase, check_begins_online, normalizes, value_settings
from offpcc.training.run_fns import (
    TRAIN_SETTINGS,
    check_num_envs,
    check_num_epochs,
    check_settings,
    columns_of,
    train,
    unused_train_parameters,
)
from offpcc.training.spec import RunSpec, torch_settings
from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line, for_python, format_error, print_to_stderr
from offpcc.utils.files import writing_to
from offpcc.utils.paths import as_path
from offpcc.utils.system import is_shortage
from offpcc.utils.tensor_files import refuse_unreadable, write_tensors
from offpcc.utils.version import versions
from offpcc.utils.words import counted

ActionSpace = spaces.Box | spaces.Discrete
EPISODE_STATE = ("actions", "memory", "notes")  # of an interaction; None where the episodes start again
_TRAINING: set[int] = set()  # ids of the learners that train; no attribute, because copies of a learner do not train
CHECKPOINT_FORMAT = 10  # of the states of a run's parts, in checkpoints and in the files of `Experiment.save`


def _one_at_a_time(train: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return `train`, which refuses a learner that trains already, before anything of it changes."""

    @functools.wraps(train)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        learner = id(args[0])
        if learner in _TRAINING:
            raise UserError(
                "this learner trains already, in another thread or in the call whose callback this is; wait for its "
                "end, or build another learner"
            )
        _TRAINING.add(learner)
        try:
            return train(*args, **kwargs)
        finally:
            _TRAINING.discard(learner)

    return called


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
    folder: Path | None = None  # of the run; None without one
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
        return (
            f"<learner {self.title}: {type(self.algorithm).__name__} with {self.num_parameters:,} parameters on "
            f"{self.algorithm.device}, {counted(self.loop.epoch, 'epoch')} trained>"
        )

    @property
    def has_train_returns(self) -> bool:
        """Whether the agent acts in environments, now or after it learned from recorded data."""
        return self.interaction is not None or self.online is not None

    @property
    def num_parameters(self) -> int:
        """The number of learned parameters of the algorithm's networks."""
        modules = [part for part in vars(self.algorithm).values() if isinstance(part, torch.nn.Module)]
        return sum(one.numel() for one in torch.nn.ModuleList(modules).parameters() if one.requires_grad)

    def _slowness(self) -> str:
        """Return a remark for an agent with a large memory that learns from whole episodes on a CPU, or nothing."""
        is_whole = getattr(self.buffer, "segment_len", 0) is None
        if not is_whole or self.num_parameters < LARGE or self.algorithm.device.type != "cpu":
            return ""
        return (
            ". Its memory learns from whole episodes, which can take hours on a CPU: offpcc.configure("
            '"defaults/memory") before offpcc.build(...) has the small settings of the command line'
        )

    @_one_at_a_time
    def train(self, logger: Logger | None = None, callbacks: Sequence[AnyCallback] = (), **settings: Any) -> Agent:
        """Train with `run_fns.train` and return the trained agent.

        Call it again with more epochs to continue. A run that reached `stop_return` continues if the number of
        epochs differs from before, or with a `stop_return` that its last tests do not reach.

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
            UserError: a setting is invalid or missing, there is not enough memory, or the learner trains already.
            KeyboardInterrupt: the user stopped the training (Ctrl-C); another call continues.
        """
        note = ""
        if logger is not None and not hasattr(logger, "epoch"):
            raise UserError(f"train got {logger!r} for a logger; for the length of a run, give num_epochs=N; {DATA}")
        if not isinstance(callbacks, list | tuple):
            raise UserError(f"train.callbacks is {format_value(callbacks)}; it has to be a list, such as [callback]")
        refuse_unknown("train", settings, [*TRAIN_SETTINGS, "callbacks"])
        callbacks = [as_callback(one, "train.callbacks") for one in callbacks]  # once, also for a run of two phases
        check_settings(**settings)
        settings = loading.python_numbers(settings)
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
            note = describe_default(settings, self.recording is None) + self._slowness()
        with for_python():
            self._check_start(settings["num_epochs"])
        if self.online is None:
            idle = unused_train_parameters(self.algorithm, self.interaction, self.tests, settings)
            wanted = {name for name in given & idle.keys() if settings[name]}  # 0 and None ask for nothing
            for name in sorted(wanted):
                print_to_stderr(f"train({name}=...) has no effect: {idle[name]}")
        steps = settings["num_steps_per_epoch"]
        for played in (self.interaction, self.online.interaction if self.online is not None else None):
            check_num_envs(played, steps)
        if self.loop.epoch and self.steps_per_epoch not in (None, steps):
            raise UserError(
                f"train.num_steps_per_epoch is {steps}, but the {counted(self.loop.epoch, 'epoch')} so far had "
                f"{self.steps_per_epoch} steps, and all epochs must have the same length; leave num_steps_per_epoch out"
            )
        self.settings, self.steps_per_epoch = kept, steps
        asked = settings.get("num_epochs"), settings.get("stop_return")
        if self.asked is not None and self.asked != asked:  # with other epochs, a run goes on until its next test
            reaches = asked[1] is not None and self.loop.last_tests_reach(asked[1], settings.get("stop_tests", 1))
            self.loop.stopped = reaches and self.asked[0] == asked[0]
        self.asked = asked
        num_epochs = self.num_epochs(settings)
        if is_over := self.loop.stopped or self.loop.epoch >= num_epochs:
            note = describe_end(self.loop, num_epochs)
        with contextlib.ExitStack() as stack:
            stack.enter_context(for_python())
            # Ctrl-C waits for the end of an update or a step, so a later call continues. A notebook must survive two.
            stack.enter_context(signals.handled(second_ends=False, like_python=True))
            stack.enter_context(signals.deferred())
            if self.spec is not None:
                stack.enter_context(torch_settings(self.spec.device, self.spec.threads))
            console, is_shown = ConsoleLogger(self.title, has_train_returns=self.has_train_returns), logger is None
            if logger is None:
                if note:
                    console.print(note)
                logs = [console, *map(_build_logger, self.loggers)]
                logger = stack.enter_context(contextlib.closing(Loggers(logs)))
            try:
                if not self.is_online and settings["num_epochs"]:
                    self._train(logger, callbacks, settings)
                if self.online is not None and not self.is_online and not self.loop.stopped:
                    self.go_online()
                if self.online is not None and self.is_online:
                    own = {name: getattr(self.online.options, other) for name, other in IN_ENVIRONMENT.items()}
                    own["num_epochs"] = num_epochs
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
                    f"learning needs more memory than is free ({first_line(error)}); lower the sizes of networks, "
                    f"batches or windows, or the number of environments"
                ) from error
            if is_shown and not is_over and (why := self.explain_early_end(settings)):
                console.print(why)
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
            if self.recording is not None and not self.is_online:
                called.append(Overestimation(self.algorithm, self.recording.rows))
        parts = (self.algorithm, self.buffer, self.interaction, self.tests)
        _train(*parts, logger=logger, callbacks=called, loop=self.loop, folder=self.folder, **settings)

    @property
    def is_online(self) -> bool:
        """Whether a run with recorded data now learns in its environment."""
        return self.loop.switch_step is not None

    def go_online(self, switch_step: int | None = None) -> None:
        """Go on in the environment: with the algorithm, the buffer and the interaction of `online`.

        `switch_step` are the steps of the first phase, if `loop` does not know them yet.

        Raises:
            UserError: the run was built without `then_env_steps`, or its networks differ.
        """
        if self.online is None and switch_step is not None:
            raise UserError(
                "the run has continued in its environment; give the environment and --then_env_steps N again"
            )
        if self.online is None:
            raise UserError(
                "the run has no steps in an environment: give the environment and then_env_steps=N when you build or "
                "load it; a run in a folder continues by start_from"
            )
        self.online.begin(self.algorithm, has_learned=(self.loop.step if switch_step is None else switch_step) > 0)
        self.algorithm, self.buffer = self.online.algorithm, self.online.buffer
        self.interaction, self.imagination = self.online.interaction, None
        self.loop.go_online()

    def num_epochs(self, settings: Mapping[str, Any]) -> int:
        """Return the number of epochs of the whole run, with these settings of `train`."""
        offline: int = self.loop.switch_epoch if self.is_online else settings["num_epochs"]
        return offline + (self.online.num_epochs(settings["num_steps_per_epoch"]) if self.online else 0)

    def explain_early_end(self, settings: Mapping[str, Any]) -> str:
        """Return why a run with these settings of `train` ended before its last epoch, else ""."""
        loop, num_epochs = self.loop, self.num_epochs(settings)
        if not loop.stopped or loop.epoch >= num_epochs:
            return ""
        stop_return, stop_tests = settings.get("stop_return"), settings.get("stop_tests", 1)
        why = "a callback set run.loop.stopped"
        if stop_return is not None and loop.last_tests_reach(stop_return, stop_tests):
            tests = "test" if stop_tests == 1 else f"{stop_tests:,} tests"
            why = f"the last {tests} reached train.stop_return, which is {stop_return:g}"
        return f"the run ended early, after epoch {loop.epoch:,} of {num_epochs:,}: {why}"

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
        algorithm = self.algorithm.state_dict()
        refuse_unreadable(algorithm, f"{type(self.algorithm).__name__}.state_dict()")
        return {
            "algorithm": algorithm,
            "values": value_settings(self.algorithm) if isinstance(self.algorithm, ActorCritic) else {},
            "normalized": isinstance(self.algorithm, ActorCritic) and normalizes(self.algorithm),
            "interaction": None if self.interaction is None else self.interaction.state_dict(),
            "loop": self.loop.state_dict(),
            **({} if self.imagination is None else {"imagination": self.imagination.state_dict()}),
            **({"decay_steps": self.online.decay.num_steps} if self.online is not None and self.is_online else {}),
            "threads": torch.get_num_threads(),
            "device": self.algorithm.device.type,
            "versions": versions(),
        }

    @explains_calls
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
        path, spec = as_path(file, "file", is_file=True), self.spec
        if spec is None:
            raise UserError(
                "only a learner of offpcc.build, or of a constructor such as offpcc.SAC, can be saved as a whole"
            )
        check_savable(spec, type(self.algorithm))
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
                "buffer": _as_plain_data("buffer", spec.buffer),
                "environments": {
                    name.removeprefix("environments."): value
                    for name, value in spec.given.items()
                    if name.startswith("environments.")
                },
            },
        }
        with writing_to(path):
            write_tensors(path, content)

    def close(self) -> None:
        """Close all environments and the recorder."""
        waiting = None if self.online is None else self.online.interaction
        for part in (self.interaction or waiting, self.tests, self.recorder):
            if part is not None:
                part.close()

    def record(self, file: Path, seed: int, resume: bool = False) -> None:
        """Record all transitions from now on; `recorder.merge` writes the file, in D4RL's format.

        The seed is stored in the file's metadata. If `resume`, an existing recording goes on.

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
            # In places such as /proc, only an attempt shows whether it works.
            with writing_to(file), tempfile.TemporaryDirectory(dir=file.absolute().parent):
                pass


def _build_logger(make_logger: Callable[[Path | None], Any]) -> Any:
    """Build a logger of the user's without a folder."""
    try:
        return make_logger(None)
    except UserError:
        raise
    except Exception as error:  # of the user's code
        name = getattr(make_logger, "__name__", format_value(make_logger))
        raise UserError(
            f"build.loggers: {name} cannot be built: {format_error(error)}; a logger takes one argument, the folder of "
            f"the run or None"
        ) from error


def check_savable(spec: RunSpec, algorithm_class: type[Any], with_callbacks: bool = True) -> None:
    """Raise if a setting of a learner cannot be written into its file."""
    given = {name: value for name, value in spec.given.items() if with_callbacks or name != "build.callbacks"}
    loading.check_writable(given)
    _as_plain_data(algorithm_class.__name__, {**spec.algorithm, **spec.memory})
    _as_plain_data("buffer", spec.buffer)


def _as_plain_data(owner: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of Python as `from_specification` reads them."""
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
LARGE = 1_000_000  # learned parameters


def describe_default(settings: Mapping[str, Any], is_online: bool) -> str:
    """Return the message about the length of a run without num_epochs."""
    num_steps = settings["num_epochs"] * settings["num_steps_per_epoch"]
    random = f", the first {settings['update_after']:,} at random" if is_online else ""
    epochs, length = counted(settings["num_epochs"], "epoch"), counted(settings["num_steps_per_epoch"], "step")
    return (
        f"num_epochs is not given, so the run has {epochs} of {length}: {counted(num_steps, 'step')}{random}; "
        f"train(num_epochs=N) chooses another length"
    )


def describe_end(loop: Loop, num_epochs: int) -> str:
    """Return the message for a call of `train` that has nothing to do, with a way to continue."""
    if loop.stopped:
        return (
            "the run was ended early, by its stop_return or by a callback; give train another num_epochs, or a "
            "stop_return that its last tests do not reach, to continue"
        )
    if loop.switch_step is not None:
        return (
            f"there is nothing left to train: the run has had its {loop.step - loop.switch_step:,} environment steps; "
            f"save it, and load it with a larger then_env_steps"
        )
    had = f"{loop.epoch} of {counted(num_epochs, 'epoch')}"
    if loop.epoch > num_epochs:
        had = f"{counted(loop.epoch, 'epoch')}, more than num_epochs, which is {num_epochs}"
    return (
        f"there is nothing left to train: the run has had {had}. num_epochs "
        f"counts from the start: train(num_epochs={loop.epoch + num_epochs}) trains {num_epochs} more"
    )
