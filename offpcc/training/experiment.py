"""`build`: makes environment, data, algorithm and buffer from their names. `Experiment` holds them."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces

from offpcc.algorithms import ActorCritic, find_algorithm, short_name
from offpcc.algorithms.agent import Agent
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.config.validation import Fraction, NonnegativeInteger, PositiveInteger, check, rules_of
from offpcc.data import Dataset, RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.snapshot import Manifest
from offpcc.data.datasets.load import MINARI
from offpcc.data.offline import OfflineDataset, read
from offpcc.data.recording.hdf5_writer import check_new, check_output
from offpcc.data.recording.recorder import Recorder
from offpcc.envs.closing import close
from offpcc.envs.d4rl import catalog
from offpcc.envs.faults import EnvironmentFault
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
    """The parts of a run, and where it stands."""

    algorithm: ActorCritic
    buffer: ReplayBuffer | RecurrentReplayBuffer
    interaction: Interaction | None  # None to learn from recorded data
    tests: Evaluation | None  # None where there is no environment
    loop: Loop
    title: str = ""
    recording: OfflineDataset | None = None  # the recorded data in the buffer
    recorder: Recorder | None = None  # records all that is played
    saved: Manifest = field(default_factory=Manifest)  # what of it lies in files

    def train(self, logger: Logger | None = None, callbacks: Sequence[Callback] = (), **settings: Any) -> Agent:
        """Train by `run_fns.train`; the trained agent. Called again with more epochs, it goes on.

        Args:
            logger: by default, the progress is shown in the terminal; ``Loggers([])`` shows nothing.
            callbacks: see `run_fns.train`.
            settings: of `run_fns.train`, such as ``num_epochs``; they win over gin's.

        Raises:
            NonFiniteError: an update met NaN or infinity.
            EnvironmentFault: an environment misbehaves; what it raised is the cause.
            UserError: a setting makes no sense.
        """
        parts = (self.algorithm, self.buffer, self.interaction, self.tests)
        callbacks = [*callbacks, Saturation(self.algorithm, self.buffer)]
        with contextlib.ExitStack() as stack:
            if logger is None:
                logger = stack.enter_context(contextlib.closing(Loggers([ConsoleLogger(self.title)])))
            try:
                train(*parts, logger=logger, callbacks=callbacks, loop=self.loop, **settings)
                self.algorithm.watch.synchronize(self.algorithm)
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
        """Close all environments, and let go of what is recorded."""
        for part in (self.interaction, self.tests, self.recorder):
            if part is not None:
                part.close()

    def record(self, file: Path, env: str, seed: int, resume: bool = False) -> Experiment:
        """This learner, which from now on records all that it plays; `recorder.merge` writes the file.

        Args:
            file: to be written, in D4RL's format; see `Recorder`.
            env: the environment's name.
            seed: for the file to tell.
            resume: whether to go on with what is there.

        Raises:
            UserError: nothing is played, or the file cannot be written.
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
        """Refuse what `record` would refuse of the file's name and of this learner; nothing is left behind.

        Raises:
            UserError: nothing is played, or the file cannot be written.
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
                with tempfile.TemporaryDirectory(dir=there):  # in some places, such as /proc, only the attempt tells
                    pass
            except OSError as error:
                fault = error.strerror or first_line(error)
                raise UserError(f"{file} cannot be written ({fault}); name a file elsewhere") from error


def build(
    env: str | None,
    algo: str,
    *,
    seed: NonnegativeInteger = 0,
    device: str | torch.device = "cpu",
    threads: PositiveInteger | None = 1,
    algorithm: Mapping[str, Any] | None = None,
    buffer: Mapping[str, Any] | None = None,
    environments: Mapping[str, Any] | None = None,
    dataset: str | Path | Dataset | None = None,
    dataset_fraction: Fraction = 1.0,
) -> Experiment:
    """Put a run together from names; what is not given comes from gin's bindings, else from defaults.

    Args:
        env: a Gymnasium id; or a name of D4RL's, such as "hopper-medium-v2", which names recorded data as well. None
            to learn from a data set without tests.
        algo: a name of `ALGORITHMS`, or of a class registered with `offpcc.configurable` that has an update of its own.
        seed: of everything random.
        device: where networks live.
        threads: of torch on the CPU, in the whole process. More are faster on a quiet machine alone; None leaves
            torch's own number.
        algorithm: arguments of the algorithm's class.
        buffer: arguments of `ReplayBuffer`, or with memory of `RecurrentReplayBuffer`.
        environments: arguments of `offpcc.envs.vector.local.environments`, such as ``num_envs``.
        dataset: recorded data to learn from instead of interaction; see `offpcc.data.load`. The wrappers of `env`
            show the agent as much of it as they would in `env`.
        dataset_fraction: as few whole episodes from its start as hold this part of its steps, rounded up.

    Raises:
        UserError: a name is unknown, or the environment or the data does not suit.

    Note:
        Two things change for the whole process. torch has `threads` from now on, unless that is None. And an agent on
        the CPU has the allocator keep what is freed, which saves up to a third of an update's time and costs memory;
        the environment variable ``OFFPCC_KEEP_MEMORY=0`` spares it that (see `offpcc.utils.system`).
    """
    check("build", rules_of(build), {"seed": seed, "threads": threads, "dataset_fraction": dataset_fraction})
    if threads is not None:
        torch.set_num_threads(threads)
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
    storage: ReplayBuffer | RecurrentReplayBuffer
    if recording is not None:
        learner.expect_recorded_data()
        recording = recording.for_agent(learner)
        told_of_scale = [recording.told_of_scale()] if learner.has_critics else []
        for text in [*(notice.text for notice in recording.notices), *filter(None, told_of_scale)]:
            warnings.warn(f"{recording.name}: {text}", DataWarning, stacklevel=2)
        storage = _storage(learner, observations, actions, {"num_envs": 1, **stored})
        _learn_from(recording, learner, storage)
        return Experiment(learner, storage, None, tests, Loop(), title, recording)
    assert make_env is not None
    with telling_what_is_wrong("environments", "num_envs"):
        acted_in = build_environments(make_env, seed, **(environments or {}))
    storage = _storage(learner, observations, actions, {"num_envs": acted_in.num_envs, **stored})
    interaction = Interaction(acted_in, learner, storage, seed)
    if tests is not None and isinstance(acted_in, LocalEnvironments) and acted_in.shared_with_tests:
        tests.shared = interaction
    return Experiment(learner, storage, interaction, tests, Loop(), title)


@contextlib.contextmanager
def telling_what_is_wrong(part: str, sizes: str) -> Iterator[None]:
    """Turn what its bindings have raised while a part was built into a message.

    Args:
        part: of the run, by the name of its class.
        sizes: that memory is saved by.

    Raises:
        UserError: a binding is of the wrong type, refers to itself, or takes more memory than there is.
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
    algorithm: ActorCritic, observations: spaces.Box, actions: spaces.Box, arguments: Mapping[str, Any]
) -> ReplayBuffer | RecurrentReplayBuffer:
    if algorithm.memoryless:
        with telling_what_is_wrong("ReplayBuffer", "capacity or batch_size, or n_step of the algorithm"):
            return ReplayBuffer(observations, actions, num_steps=algorithm.n_step, **arguments)
    with telling_what_is_wrong("RecurrentReplayBuffer", "capacity or batch_size"):
        storage = RecurrentReplayBuffer(observations, actions, **arguments)
    if told := check_context_length(algorithm, storage):
        warnings.warn(told, DataWarning, stacklevel=3)
    return storage


def check_context_length(algorithm: ActorCritic, storage: ReplayBuffer | RecurrentReplayBuffer) -> str:
    """What a person should know of segments that are too short for a memory's window, "" if they are not."""
    if isinstance(storage, ReplayBuffer) or storage.segment_len is None:
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
    """Fill the buffer, and let the algorithm know what it needs to know of the data as a whole.

    Raises:
        UserError: an agent with memory cannot learn from it.
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
    """The environment and the data that are meant: a name of D4RL's stands for both."""
    if env is None or env not in catalog.FILES:
        return env, dataset
    return env if catalog.task(env) else None, env if dataset is None else dataset


def run_label(env: str | None, dataset: str | Path | Dataset | None, fraction: float = 1.0) -> str:
    """What a run is called by: its environment, its data, or both, as in "pendulum-p-v0_from_medium_0.1"."""
    if isinstance(dataset, Dataset):
        dataset = dataset.name
    elif dataset is not None and not str(dataset).startswith(MINARI):
        path = Path(dataset)
        dataset = path.stem if path.suffix in catalog.SUFFIXES or len(path.parts) > 1 else str(dataset)
    part = "" if fraction == 1.0 else f"_{fraction:g}"
    if env is None or dataset is None or env == dataset:
        return f"{env or dataset}{part}"
    return f"{env}_from_{dataset}{part}"
