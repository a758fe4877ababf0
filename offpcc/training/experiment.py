"""`build` makes the environment, dataset, algorithm and buffer from names. `Experiment` holds them."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gin
import torch
from gymnasium import spaces

from offpcc.algorithms import ActorCritic, find_algorithm, short_name
from offpcc.algorithms.agent import Agent
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.config.validation import Fraction, NonnegativeInteger, PositiveInteger, Rule, check, rules_of
from offpcc.data import Dataset, RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.base import BufferBuilder
from offpcc.data.buffers.snapshot import Manifest
from offpcc.data.datasets.load import MINARI
from offpcc.data.offline import OfflineDataset, read
from offpcc.data.recording.hdf5_writer import check_new, check_output
from offpcc.data.recording.recorder import Recorder
from offpcc.envs.d4rl import catalog
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.guard import close
from offpcc.envs.make import make
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.envs.vector.local import environments as build_environments
from offpcc.envs.wrappers import num_stacked
from offpcc.training.evaluation import Evaluation
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import ConsoleLogger, Logger, Loggers
from offpcc.training.loggers.console import download_bar
from offpcc.training.metrics import Loop
from offpcc.training.run_fns import Callback, train
from offpcc.training.saturation import Saturation
from offpcc.utils.errors import DataWarning, UserError, first_line
from offpcc.utils.system import is_shortage


@dataclass(frozen=True)
class Experiment:
    """The parts of a run and its state."""

    algorithm: ActorCritic
    buffer: ReplayBuffer | RecurrentReplayBuffer
    interaction: Interaction | None  # None for learning from a dataset
    tests: Evaluation | None  # None without an environment
    loop: Loop
    title: str = ""
    recording: OfflineDataset | None = None  # the dataset in the buffer
    recorder: Recorder | None = None  # records all transitions
    saved: Manifest = field(default_factory=Manifest)  # the parts of the buffer that checkpoint files hold
    callbacks: Sequence[Callback] = ()  # called in each `train`, before those given there
    loggers: Sequence[Callable[[Path | None], Logger]] = ()  # of the user; built with the run's folder, or None

    def train(self, logger: Logger | None = None, callbacks: Sequence[Callback] = (), **settings: Any) -> Agent:
        """Train with `run_fns.train` and return the trained agent. Call again with more epochs to continue.

        Args:
            logger: by default a `ConsoleLogger`, which shows the progress, and the loggers given to `build`;
                ``Loggers([])`` shows nothing.
            callbacks: see `run_fns.train`.
            settings: arguments of `run_fns.train`, such as ``num_epochs``. They override gin's bindings.

        Raises:
            NonFiniteError: an update met NaN or infinity.
            EnvironmentFault: an environment misbehaves; ``__cause__`` is the exception that it raised, if any.
            UserError: a setting is invalid, or there is not enough memory.
        """
        parts = (self.algorithm, self.buffer, self.interaction, self.tests)
        callbacks = [*self.callbacks, *callbacks]
        if isinstance(self.algorithm, ActorCritic):
            callbacks.append(Saturation(self.algorithm, self.buffer))
        with contextlib.ExitStack() as stack:
            if logger is None:
                logs = [ConsoleLogger(self.title), *(make_logger(None) for make_logger in self.loggers)]
                logger = stack.enter_context(contextlib.closing(Loggers(logs)))
            try:
                train(*parts, logger=logger, callbacks=callbacks, loop=self.loop, **settings)
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

    def close(self) -> None:
        """Close all environments and the recorder."""
        for part in (self.interaction, self.tests, self.recorder):
            if part is not None:
                part.close()

    def record(self, file: Path, env: str, seed: int, resume: bool = False) -> Experiment:
        """Return a copy of this experiment that records all its transitions; `recorder.merge` writes the file.

        Args:
            file: the file to write, in D4RL's format; see `Recorder`.
            env: the environment's name.
            seed: the seed, stored in the file's metadata.
            resume: True to continue an existing recording.

        Raises:
            UserError: the run has no environment to record, or the file cannot be written.
        """
        self.check_recording(file, resume)
        assert self.interaction is not None
        example, algorithm = make(env), type(self.algorithm).__name__
        about = {"algorithm": algorithm, "actor": "the learning one", "seed": seed}
        recorder = Recorder(file, example, metadata=about, num_envs=self.interaction.num_envs, resume=resume)
        close(example)
        self.interaction.stores.append(recorder)
        return replace(self, recorder=recorder)

    def check_recording(self, file: Path, resume: bool = False) -> None:
        """Raise if `record` would reject the file's name or this experiment. Leaves no file behind.

        Raises:
            UserError: the run has no environment to record, or the file cannot be written.
        """
        if self.interaction is None:
            raise UserError(f"{file}: learning from recorded data plays nothing that could be recorded")
        if self.recorder is not None:
            raise UserError(
                f"{file}: what is played is recorded already, into {self.recorder.file}; one file is enough"
            )
        check_output(file)
        if not resume:
            check_new(file)
            there = next(place for place in file.absolute().parents if place.is_dir())
            try:
                with tempfile.TemporaryDirectory(
                    dir=there
                ):  # in places such as /proc, only an attempt shows whether it works
                    pass
            except OSError as error:
                fault = error.strerror or first_line(error)
                raise UserError(f"{file} cannot be written ({fault}); name a file elsewhere") from error


def _are_builders(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(callable, value))


Callbacks = Annotated[Sequence[Callable[[], Callback]], Rule("a list of classes such as [@MyCallback]", _are_builders)]
OwnLoggers = Annotated[
    Sequence[Callable[[Path | None], Logger]], Rule("a list of classes such as [@MyLogger]", _are_builders)
]


class Parts(NamedTuple):
    """Gin's choice of parts."""

    buffer_class: BufferBuilder | None
    callbacks: Callbacks
    loggers: OwnLoggers


@gin.configurable("build", module="offpcc")  # type: ignore[untyped-decorator]
def chosen_parts(
    *, buffer_class: BufferBuilder | None = None, callbacks: Callbacks = (), loggers: OwnLoggers = ()
) -> Parts:
    """Return gin's choice of parts, see `build`. It is separate, so that gin adds nothing to the messages of errors."""
    return Parts(buffer_class, callbacks, loggers)


def _choose_parts(**given: Any) -> Parts:
    """Return the given parts; gin's, where None is given.

    Raises:
        UserError: a part is no class.
    """
    try:
        parts: Parts = chosen_parts()
    except (TypeError, RecursionError) as error:  # gin tried to build a part without its arguments
        raise UserError(
            f"the bindings of build cannot be read: {first_line(error)}; write references without parentheses"
        ) from error
    parts = parts._replace(**{name: value for name, value in given.items() if value is not None})
    check("build", rules_of(chosen_parts), parts._asdict())
    return parts


def build(
    env: str | None,
    algo: str,
    *,
    seed: NonnegativeInteger = 0,
    device: str | torch.device = "cpu",
    threads: PositiveInteger | None = 1,
    algorithm: Mapping[str, Any] | None = None,
    buffer: Mapping[str, Any] | None = None,
    buffer_class: BufferBuilder | None = None,
    callbacks: Callbacks | None = None,
    loggers: OwnLoggers | None = None,
    environments: Mapping[str, Any] | None = None,
    dataset: str | Path | Dataset | None = None,
    dataset_fraction: Fraction = 1.0,
) -> Experiment:
    """Build a run from names. Arguments that are not given come from gin's bindings, else from the defaults.

    Args:
        env: a Gymnasium id, or a D4RL name such as "hopper-medium-v2", which also selects the dataset. None to learn
            from a dataset without tests.
        algo: a name in `ALGORITHMS`, or the name of a class with its own update that is registered with
            `offpcc.configurable`.
        seed: the seed of everything random.
        device: the device of the networks.
        threads: number of CPU threads of torch, for the whole process. More threads are faster only on an idle
            machine. None keeps torch's number.
        algorithm: arguments of the algorithm's class.
        buffer: arguments of the buffer's class.
        buffer_class: class of the buffer, or gin's ``build.buffer_class = @MyBuffer``. By default `ReplayBuffer`, or
            `RecurrentReplayBuffer` for an agent with memory.
        callbacks: classes of callbacks, built without arguments, or gin's ``build.callbacks = [@MyCallback]``.
        loggers: classes of more loggers, built with the run's folder (None without one), or gin's ``build.loggers``.
        environments: arguments of `offpcc.envs.vector.local.environments`, such as ``num_envs``.
        dataset: a dataset to learn from instead of interaction; see `offpcc.data.load`. The wrappers of `env` apply to
            its observations as they would in `env`.
        dataset_fraction: the part of the dataset's steps to use. Takes whole episodes from the start, as few as hold
            this part, rounded up.

    Raises:
        UserError: a name is unknown, or the environment or dataset is unsuitable.

    Note:
        Two things change for the whole process. First, torch uses `threads` threads from now on, unless `threads` is
        None. Second, for an agent on the CPU the allocator keeps freed memory. This saves up to a third of the time of
        an update, but costs memory. The environment variable ``OFFPCC_KEEP_MEMORY=0`` turns it off (see
        `offpcc.utils.system`).
    """
    check("build", rules_of(build), {"seed": seed, "threads": threads, "dataset_fraction": dataset_fraction})
    if threads is not None:
        torch.set_num_threads(threads)
    parts = _choose_parts(buffer_class=buffer_class, callbacks=callbacks, loggers=loggers)
    algorithm_class = find_algorithm(algo)
    env, dataset = resolve_env_and_dataset(env, dataset)
    example, recording = None if env is None else make(env), None
    if dataset is not None:
        with download_bar() as bar:
            recording = read(dataset, example, fraction=dataset_fraction, seed=seed, progress=bar)
    shown = recording if example is None else example
    if shown is None:
        raise UserError("there is neither an environment nor a data set to learn from; name one of them")
    observations, actions = shown.observation_space, shown.action_space
    frames = 1 if recording or example is None else num_stacked(example)
    if example is not None:
        close(example)
    assert isinstance(observations, spaces.Box) and isinstance(actions, spaces.Box)
    with telling_what_is_wrong(algorithm_class.__name__, "hidden_dims, hidden_dim or num_critics"):
        learner = algorithm_class(observations, actions, device=device, seed=seed, **(algorithm or {}))
    stored = {"frame_stack": frames, "device": device, "seed": seed, **(buffer or {})}
    make_env = functools.partial(make, env, scale_actions=True) if env else None
    tests = Evaluation(make_env, catalog.reference_returns(env)) if env and make_env else None
    title = f"{run_label(env, dataset, dataset_fraction)} {short_name(algo)}"
    own: dict[str, Any] = {"callbacks": [make_one() for make_one in parts.callbacks], "loggers": parts.loggers}
    storage: ReplayBuffer | RecurrentReplayBuffer
    if recording is not None:
        if not isinstance(learner, ActorCritic):
            raise UserError(f"{algorithm_class.__name__} cannot learn from recorded data; derive it from ActorCritic")
        learner.expect_recorded_data()
        recording = recording.for_agent(learner)
        told_of_scale = [recording.told_of_scale()] if learner.has_critics else []
        for text in [*(notice.text for notice in recording.notices), *filter(None, told_of_scale)]:
            warnings.warn(f"{recording.name}: {text}", DataWarning, stacklevel=2)
        storage = _storage(learner, observations, actions, {"num_envs": 1, **stored}, parts.buffer_class)
        _learn_from(recording, learner, storage)
        return Experiment(learner, storage, None, tests, Loop(), title, recording, **own)
    assert make_env is not None
    with telling_what_is_wrong("environments", "num_envs"):
        acted_in = build_environments(make_env, seed, **(environments or {}))
    storage = _storage(learner, observations, actions, {"num_envs": acted_in.num_envs, **stored}, parts.buffer_class)
    interaction = Interaction(acted_in, learner, storage, seed)
    if tests is not None and isinstance(acted_in, LocalEnvironments) and acted_in.shared_with_tests:
        tests.shared = interaction
    return Experiment(learner, storage, interaction, tests, Loop(), title, **own)


@contextlib.contextmanager
def telling_what_is_wrong(part: str, sizes: str) -> Iterator[None]:
    """Turn exceptions from building a part into a `UserError` that names the part and a remedy.

    Args:
        part: the name of the part's class.
        sizes: the arguments to lower in order to save memory.

    Raises:
        UserError: a binding has the wrong type, refers to itself, or needs more memory than there is.
    """
    try:
        yield
    except (MemoryError, RuntimeError, TypeError, OverflowError, ValueError) as error:
        if is_shortage(error) or isinstance(error, OverflowError):
            remedy = f"that is more memory than there is: lower its sizes, such as {sizes}"
        elif isinstance(error, TypeError):  # a value of the wrong type, such as a function for @Recurrent
            remedy = "correct its bindings"
        elif isinstance(error, RecursionError):
            remedy = "a binding refers to itself; correct it"
        else:
            raise
        raise UserError(f"{part} cannot be built: {first_line(error)}; {remedy}") from error


def _storage(
    algorithm: ActorCritic,
    observations: spaces.Box,
    actions: spaces.Box,
    arguments: Mapping[str, Any],
    buffer_class: BufferBuilder | None,
) -> ReplayBuffer | RecurrentReplayBuffer:
    buffer_class = buffer_class or (ReplayBuffer if algorithm.memoryless else RecurrentReplayBuffer)
    name = getattr(buffer_class, "__name__", str(buffer_class))
    if getattr(buffer_class, "holds_episodes", not algorithm.memoryless) is algorithm.memoryless:
        holds, needs = ("sequences", "transitions") if algorithm.memoryless else ("transitions", "sequences")
        raise UserError(
            f"build.buffer_class is {name}, which draws {holds}, but {type(algorithm).__name__} learns from {needs}; "
            f"choose a child of {'ReplayBuffer' if algorithm.memoryless else 'RecurrentReplayBuffer'}"
        )
    steps: dict[str, Any] = {"num_steps": algorithm.n_step} if algorithm.memoryless else {}
    with telling_what_is_wrong(name, "capacity or batch_size" + ", or n_step of the algorithm" * algorithm.memoryless):
        storage: ReplayBuffer | RecurrentReplayBuffer = buffer_class(observations, actions, **steps, **arguments)
    if told := check_context_length(algorithm, storage):
        warnings.warn(told, DataWarning, stacklevel=3)
    return storage


def check_context_length(algorithm: ActorCritic, storage: ReplayBuffer | RecurrentReplayBuffer) -> str:
    """Return a warning if the segments are shorter than the encoder's context length, else ""."""
    if not isinstance(algorithm, ActorCritic) or not isinstance(storage, RecurrentReplayBuffer):
        return ""
    if storage.segment_len is None:
        return ""
    seen = storage.segment_len + storage.burn_in
    context_length = max(encoder.context_length or 0 for encoder in (algorithm.shared_encoder, algorithm.actor_encoder))
    if context_length <= seen:
        return ""
    return (
        f"the memory looks back {context_length} steps, but learning sees {seen} of them together "
        f"(RecurrentReplayBuffer.segment_len and burn_in), so that in acting it meets what it never learned; lower its "
        f"window, such as GPT.context_length={max(seen // 2, 1)}, or raise segment_len or burn_in"
    )


def _learn_from(
    recording: OfflineDataset, algorithm: ActorCritic, storage: ReplayBuffer | RecurrentReplayBuffer
) -> None:
    """Fill the buffer with the dataset, and set the algorithm's reward scale and normalisation statistics from it.

    Raises:
        UserError: the agent has memory, and the dataset does not mark the ends of episodes.
    """
    if not algorithm.memoryless and not recording.has_ends:
        raise UserError(
            f"{recording.name} does not say where any episode ends (no terminals, no timeouts), and an agent with "
            f"memory learns from whole episodes; give the time limit, --gin "
            f'"dataset.max_episode_steps=N", or mark the ends in the data'
        )
    algorithm.reward_scale *= recording.reward_scale
    if algorithm.normalization is not None:
        algorithm.normalization.set_statistics(*recording.statistics())
    storage.fill(recording.rows, recording.identity)


def resolve_env_and_dataset(
    env: str | None, dataset: str | Path | Dataset | None
) -> tuple[str | None, str | Path | Dataset | None]:
    """Return the environment and the dataset to use; a D4RL name stands for both."""
    if env is None or env not in catalog.FILES:
        return env, dataset
    return env if catalog.task(env) else None, env if dataset is None else dataset


def run_label(env: str | None, dataset: str | Path | Dataset | None, fraction: float = 1.0) -> str:
    """Return the label of a run: its environment, its dataset, or both, as in "pendulum-p-v0_from_medium_0.1"."""
    if isinstance(dataset, Dataset):
        dataset = dataset.name
    elif dataset is not None and not str(dataset).startswith(MINARI):
        path = Path(dataset)
        dataset = path.stem if path.suffix in catalog.SUFFIXES or len(path.parts) > 1 else str(dataset)
    part = "" if fraction == 1.0 else f"_{fraction:g}"
    if env is None or dataset is None or env == dataset:
        return f"{env or dataset}{part}"
    return f"{env}_from_{dataset}{part}"
