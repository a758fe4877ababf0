"""What Python users do with agents and runs: evaluate, check and collect data, plot, and load a run."""

from __future__ import annotations

import functools
import importlib.util
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.agent import Agent, check_device
from offpcc.algorithms.discrete import without_random_actions
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.config import loading
from offpcc.config.bindings import explains_calls, parameters, refuse_unknown, settable
from offpcc.config.gin_files import read_config_text
from offpcc.config.validation import (
    Flag,
    Fraction,
    NonnegativeInteger,
    NumEnvs,
    PositiveFraction,
    PositiveInteger,
    format_value,
    one_of,
)
from offpcc.core import PackedDict
from offpcc.data import Dataset
from offpcc.data.checks.check import Examination, examine_dataset, images_in_memory, refused
from offpcc.data.datasets.columns import Column, SpoiledData, as_column
from offpcc.data.datasets.dataset import DatasetInfo
from offpcc.data.datasets.dict_columns import PackedRows
from offpcc.data.offline import DatasetOptions, load_unchanged, read
from offpcc.data.recording.hdf5_writer import NUM_WHOLE
from offpcc.data.recording.metadata import settings_of_recording
from offpcc.envs.check import examine_env
from offpcc.envs.guard import guarded, opened
from offpcc.envs.make import EnvFunction, KeptOpen, check_is_env, env_options
from offpcc.envs.vector.base import Environments
from offpcc.envs.vector.local import LocalEnvironments, environment_seed
from offpcc.envs.vector.workers import WorkerEnvironments
from offpcc.envs.wrapper_chain import shows_return_to_go
from offpcc.envs.wrappers import ActionIndex, ActionScale, raw_actions, scale_of
from offpcc.networks.noise import Noise
from offpcc.training.analysis.grid_plot import plot_grid
from offpcc.training.analysis.memory_check import TOLERANCE, MemoryCheck, Several, measure_memory
from offpcc.training.analysis.plotting import plot_runs
from offpcc.training.analysis.policy_evaluation import ValueEstimate, as_actor_sees, estimate_value
from offpcc.training.analysis.report import make_report
from offpcc.training.analysis.report_figure import draw_report
from offpcc.training.analysis.run_statistics import mean_interval
from offpcc.training.analysis.run_tables import Curve, Loss, Summary, curve_of, find_runs, loss_at_switch, read_progress
from offpcc.training.collect import EpsilonGreedyActor, Seeds, play_episode
from offpcc.training.evaluation import evaluate_actor, open_environment, overview_of
from offpcc.training.interaction import EpisodeResult, Interaction, episode_options, success_rate
from offpcc.training.models.files import fit_model, load_model, unfinished_model
from offpcc.training.models.quality import Quality, model_quality
from offpcc.training.models.training import ModelTraining
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import Arguments, check_part, configured_make, torch_settings
from offpcc.utils import signals
from offpcc.utils.errors import UserError, for_python, is_command_line, warn_of_data
from offpcc.utils.figures import check_picture, explain_picture_errors
from offpcc.utils.files import write_json, write_text
from offpcc.utils.findings import Diagnosis
from offpcc.utils.paths import as_path, shown, why_no_folder
from offpcc.utils.rng import same_global_generators, seed_global_generators

Test = Annotated[str, one_of(("last", "best"))]
REPORT_SUFFIXES = (".png", ".md", ".tex", ".json")


@dataclass(frozen=True)
class EvaluationResult:
    """The episodes of `evaluate`.

    Attributes:
        returns: (E,), undiscounted.
        lengths: (E,), environment steps.
        success_rate: the share of episodes whose last ``info`` has a true ``is_success`` (or ``success``); None if none
            has this entry.
    """

    returns: np.ndarray
    lengths: np.ndarray
    success_rate: float | None = None

    @classmethod
    def of(cls, results: Sequence[EpisodeResult]) -> EvaluationResult:
        """Return the result of these episodes."""
        returns, lengths, _ = zip(*results, strict=True)
        return cls(np.array(returns), np.array(lengths), success_rate(results))

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of returns, with the divisor E, as in the table of a run."""
        return float(self.returns.std())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% bootstrap interval of the mean; NaN for one episode.

        It shows the uncertainty of this agent's mean. It shows nothing about other training seeds.
        """
        return mean_interval(self.returns)

    def __str__(self) -> str:
        return overview_of(self.returns, self.lengths, self.success_rate, None)


@dataclass(frozen=True)
class RunResult:
    """A run in its folder, from `fit` or `load_run`.

    Attributes:
        folder: the run's folder.
        was_finished: whether the run was finished already when `fit` or `load_run` was called.
    """

    folder: Path
    was_finished: bool = False
    _env_function: EnvFunction | None = field(default=None, repr=False, compare=False)  # of this process

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the function, which another process may not know."""
        return {**self.__dict__, "_env_function": None}

    @explains_calls
    def agent(self, device: str | torch.device = "cpu", *, last: Flag = False) -> Agent:
        """Return the agent with the best test, or the last one if there were no tests.

        Args:
            device: the device of the networks.
            last: True for the agent at the end of the run, which papers on recorded data report.

        Raises:
            UserError: there is no such agent.
        """
        run = RunFolder.at(self.folder)
        run.refuse_newer()
        if last and not run.actor_last.is_file():
            raise UserError(f"{run.actor_last} does not exist; leave last=True out for the best agent")
        return Agent.load(run.actor_last if last else run.actor(), device=device)

    @property
    def table(self) -> Any:
        """The rows of `progress.csv`: a ``pandas.DataFrame`` if pandas is installed, else a dictionary of arrays."""
        columns = {name: np.array(column) for name, column in read_progress(self.folder / "progress.csv").items()}
        if importlib.util.find_spec("pandas") is None:
            return columns
        return importlib.import_module("pandas").DataFrame(columns)

    @property
    def config(self) -> dict[str, str]:
        """All settings of the run, each as gin writes it, by the names in `config.gin`.

        The name has the class that the setting was bound for: "SAC.lr", or "ActorCritic.lr" for all algorithms.
        """
        return dict(loading.values(read_config_text(RunFolder.at(self.folder).config)))

    @property
    def curve(self) -> Curve:
        """The test returns: environment steps, with mean and standard deviation over the episodes of each test."""
        return curve_of(read_progress(self.folder / "progress.csv"), "test/return")

    @property
    def loss_at_switch(self) -> Loss | None:
        """What the run lost when it went on in its environment: its drop and regret; None for a run with one phase."""
        return loss_at_switch(read_progress(self.folder / "progress.csv"))

    @explains_calls
    def evaluate(
        self,
        episodes: PositiveInteger = 10,
        env: str | EnvFunction | None = None,
        *,
        num_envs: NumEnvs = 10,
        seed: NonnegativeInteger = 2_000_000,
        device: str | torch.device = "cpu",
        last: Flag = False,
    ) -> EvaluationResult:
        """Play episodes with the best agent of the run, through the wrappers of the run, as ``offpcc evaluate`` does.

        Args:
            episodes: see `offpcc.evaluate`.
            env: the environment; None for that of the run. A run of a function needs the function again.
            num_envs: see `offpcc.evaluate`.
            seed: see `offpcc.evaluate`.
            device: the device of the networks.
            last: see `RunResult.agent`.

        Raises:
            UserError: as `offpcc.evaluate`; or there is no agent, or a wrapper is of a class that is not imported.
            EnvironmentFault: the environment misbehaves.
        """
        run = RunFolder.at(self.folder)
        with for_python():
            env = self._env_function if env is None else env
            if env is None and run.details().get("env_made"):
                name = shown(str(run.details().get("env")))
                raise UserError(f"a function made the environment of {self.folder}, {name}; give it again, by env=")
            with loading.same_bindings():
                loading.load_for_actor(None, run.config)
                # Environments are made below, with the bound wrappers.
                make_env, longest = configured_make(env or run.env()), episode_options()
                actor = self.agent(device, last=last).algorithm
                return EvaluationResult.of(evaluate_actor(actor, make_env, episodes, num_envs, seed, longest))


@explains_calls
def evaluate(
    agent: Agent | ActorCritic,
    env: str | EnvFunction | gymnasium.Env[Any, Any],
    episodes: PositiveInteger = 10,
    *,
    num_envs: NumEnvs = 10,
    seed: NonnegativeInteger = 2_000_000,
) -> EvaluationResult:
    """Play episodes with the mode of the agent's policy. The agent's own episode does not change.

    Args:
        agent: the agent.
        env: a name, or a function that makes an environment; see `offpcc.build`. Wrappers that are bound for ``make``
            apply. Or an environment that you have made: the episodes are played in it one after another, and it stays
            open.
        episodes: number E of episodes.
        num_envs: number of episodes side by side; it does not change the seeds.
        seed: seed of the first episode; the next ones count up from it.

    Raises:
        UserError: an argument is invalid, the environment does not fit the agent, or an episode does not end.
        EnvironmentFault: the environment misbehaves.
    """
    if isinstance(env, gymnasium.Env):
        kept = KeptOpen(env)
        env, num_envs = lambda **_: kept, 1  # make.kwargs are for the constructor, which was called before
    with for_python():
        results = evaluate_actor(_actor(agent), configured_make(env), episodes, num_envs, seed, episode_options())
    return EvaluationResult.of(results)


@explains_calls
def check(data: Dataset | str | Path, env: str | EnvFunction | None = None) -> Examination:
    """Look for faults in a dataset, as ``offpcc check --dataset`` does; ``print(check(data))`` shows them.

    Args:
        data: a dataset, or what `offpcc.data.load_dataset` reads.
        env: the environment to train for; see `evaluate`. With it, the data is checked against its spaces and limits.

    Returns:
        The findings: ``str(result)`` is their text, and ``result.of("FAULT")`` has the faults.

    Raises:
        UserError: the data or the environment does not exist, cannot be read or is unsuitable.
    """
    with for_python(), opened(None if env is None else configured_make(env)()) as made:
        try:
            given = load_unchanged(data, DatasetOptions.from_gin(), memory_limit=images_in_memory())
            return examine_dataset(given, env=made)
        except SpoiledData as error:
            return refused(str(data), error)


@explains_calls
def train_model(
    dataset: str | Path | Dataset,
    file: str | Path,
    env: str | EnvFunction | None = None,
    *,
    model: Arguments | None = None,
    training: Arguments | None = None,
    dataset_fraction: Fraction = 1.0,
    dataset_steps: PositiveInteger | None = None,
    seed: NonnegativeInteger = 0,
    device: str | torch.device = "cpu",
    threads: PositiveInteger | None = 1,
    resume: Flag = False,
) -> DynamicsModel:
    """Train a model of recorded data, as ``offpcc train-model`` does, and write it to a file; print the progress.

    A run takes it by `model`, as in ``offpcc.build(env, "mopo", dataset=dataset, model=file)``.

    Args:
        dataset: what `offpcc.data.load_dataset` reads, or a dataset.
        file: the file to write.
        env: the environment whose view of the data the model predicts; see `evaluate`. None for the data as they are.
        model: arguments of `DynamicsModel`, such as ``{"history": 4}``; gin gives the others.
        training: arguments of `ModelTraining`, such as ``{"max_epochs": 100}``; gin gives the others.
        dataset_fraction: see `build`.
        dataset_steps: see `build`.
        seed: seed of the weights, the holdout and the order of the data.
        device: the device of the networks; "auto" for CUDA if it is available, else the CPU.
        threads: number of CPU threads of torch; None keeps torch's number.
        resume: whether to continue a training of this file that was stopped.

    Raises:
        UserError: an argument is invalid, the data have no vectors for observations, or the file exists.
    """
    refuse_unknown("DynamicsModel", model or (), settable(DynamicsModel))
    refuse_unknown("ModelTraining", training or (), parameters(ModelTraining))
    path, used = as_path(file, "file"), check_device(device, "device")
    with for_python():
        check_part(dataset, dataset_fraction, dataset_steps)
        content = unfinished_model(path, resume)
        with opened(None if env is None else configured_make(env)()) as example:
            part: dict[str, Any] = {"fraction": dataset_fraction, "steps": dataset_steps, "seed": seed}
            data = read(dataset, example, DatasetOptions.from_gin(), **part)
        settings = loading.resolve_bindings(DynamicsModel, loading.python_numbers(model or {}))
        options = ModelTraining.from_gin(loading.python_numbers(training or {}))
        name = env if isinstance(env, str) else ""
        with torch_settings(used, threads):
            return fit_model(data, path, name, settings, options, used, seed, content, print)


@explains_calls
def check_model(
    model: DynamicsModel | str | Path,
    dataset: str | Path | Dataset,
    env: str | EnvFunction | None = None,
    *,
    dataset_fraction: Fraction = 1.0,
    seed: NonnegativeInteger = 0,
) -> Quality:
    """Compare the predictions of a model with recorded data, as ``offpcc check --model`` does.

    Args:
        model: the model, or the file of one.
        dataset: what `offpcc.data.load_dataset` reads, or a dataset, for example of episodes that the model was not
            trained on.
        env: the environment whose view of the data the model predicts; see `train_model`.
        dataset_fraction: see `build`.
        seed: chooses the episodes of this fraction.

    Returns:
        The measurement: ``str(result)`` is its text. ``result.error`` has the errors of one step, ``result.horizons``
        those of several, ``result.within`` the calibration, and ``result.uncertainty`` the uncertainty of each
        transition.

    Raises:
        UserError: an argument is invalid, or the model does not fit the data.
    """
    if not isinstance(model, DynamicsModel | str | Path):
        raise UserError(f"check_model.model is {format_value(model)}; it has to be a model, or the file of one")
    with for_python():
        used = load_model(as_path(model, "model")) if isinstance(model, str | Path) else model
        with opened(None if env is None else configured_make(env)()) as made:
            data = read(dataset, made, DatasetOptions.from_gin(), fraction=dataset_fraction, seed=seed)
        return model_quality(used, data.rows, data.action_range)


@explains_calls
def check_env(env: str | EnvFunction, steps: PositiveInteger = 2_000, *, seed: NonnegativeInteger = 0) -> Diagnosis:
    """Look for faults in an environment, as ``offpcc check --env`` does; ``print(check_env(MyEnv))`` shows them.

    It takes random steps, with seeds and without, and compares what the environment returns with its spaces. The
    functions of this name in Gymnasium and in stable-baselines3 look for fewer faults.

    Args:
        env: the environment's name, or a function or a class that makes it, such as ``lambda: MyEnv(size=3)``.
        steps: environment steps of the longest rollout; each other one takes a quarter of them. Without a registered
            time limit, a rollout goes on until two episodes have ended, or one has 27,000 steps (``episodes.longest``).
        seed: seed of the environment and of the actions.

    Returns:
        The findings: ``str(result)`` is their text, and ``result.of("FAULT")`` has the faults.

    Raises:
        UserError: the environment cannot be made, or agents cannot learn in it at all.
    """
    with for_python():
        check_is_env(env)
        with loading.LOCK:
            longest, options = episode_options(), env_options()
        return examine_env(env, steps, seed, longest, options)


@explains_calls
def check_memory(
    agent: Agent | ActorCritic,
    env: str | EnvFunction,
    episodes: Several = 20,
    *,
    seed: NonnegativeInteger = 2_000_000,
    tolerance: Fraction = TOLERANCE,
) -> MemoryCheck:
    """Measure whether an agent uses its memory, and how far back, as ``offpcc check RUN`` does.

    The same episodes are played with the memory as it is, with a memory that is erased, and with that of another
    episode. Then one observation of the recorded episodes is changed, and the agent sees the rest as it was. Equal
    arguments give equal results if the environment repeats an episode from its seed.

    Args:
        agent: an agent with memory. It acts with the mode of its policy, and its own episode does not change.
        env: the environment; see `evaluate`.
        episodes: number of episodes, which are played side by side.
        seed: seed of the first episode; the next ones count up from it. Also the seed of the changed observations.
        tolerance: an action in [-1, 1] is as before if it differs by no more than this.

    Returns:
        The measurement: ``str(result)`` is the answer in words, ``result.draw(file)`` a picture, and
        ``result.plain()`` plain data.

    Raises:
        UserError: the agent has no memory, an argument is invalid, the environment does not fit the agent, or an
            episode does not end.
        EnvironmentFault: the environment misbehaves.
    """
    with for_python():
        return measure_memory(_actor(agent), configured_make(env), episodes, seed, tolerance, episode_options())


@explains_calls
def evaluate_from_data(
    agent: Agent | ActorCritic,
    dataset: str | Path | Dataset,
    env: str | EnvFunction | None = None,
    *,
    num_updates: PositiveInteger = 100_000,
    gamma: Fraction = 0.99,
    seed: NonnegativeInteger = 0,
    algorithm: Arguments | None = None,
    buffer: Arguments | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ValueEstimate:
    """Estimate the value of an agent from recorded data, without acting, by fitted Q evaluation.

    The value is the mean discounted return of the mode of the policy, from the first observations of the recorded
    episodes. See `offpcc.algorithms.fqe` for the method. Equal arguments give equal values. Of gin's bindings, only
    those of `make` and `dataset` count. A `DataWarning` tells if the recorded rewards cannot give this value, because
    the critics have not converged; `ValueEstimate.is_possible` is False then.

    Args:
        agent: the agent. Its own episode does not change.
        dataset: the data; see `offpcc.data.load_dataset`. Data of the agent's own training are allowed, but make the
            value optimistic.
        env: the environment whose wrappers show the recorded observations as the agent sees them; it is made, but not
            played. None if the data hold them so.
        num_updates: number of updates of the critics.
        gamma: the discount per step, below 1.
        seed: the seed of the critics' weights and of the batches.
        algorithm: arguments of the critics, such as ``{"lr": 1e-4, "hidden_dims": (512, 512)}``; see `ActorCritic`.
            By default, they have the kinds of encoders that the agent has.
        buffer: arguments of the buffer, such as ``{"batch_size": 64}``.
        progress: a function to call with the number of updates that are done, and that of all.

    Raises:
        UserError: an argument is invalid, or the data do not fit the agent or do not show where episodes begin.
        NonFiniteError: an update met NaN or infinity.
    """
    if gamma == 1.0:
        raise UserError("evaluate_from_data.gamma is 1; values of endless tasks need a discount below 1, such as 0.99")
    actor = _actor(agent)
    with for_python(), opened(None if env is None else configured_make(env)(shows_state=False)) as example:
        if example is not None and shows_return_to_go(example):
            raise UserError(
                "evaluate_from_data cannot value an agent that is asked for a return: in recorded data, ReturnToGo "
                "shows the returns that followed, not the one that you ask for; play episodes, by offpcc.evaluate"
            )
        options, limit = DatasetOptions.from_gin(), (buffer or {}).get("memory_limit")
        dataset, options = as_actor_sees(dataset, options, actor, has_env=env is not None, memory_limit=limit)
        data = read(dataset, example, options, seed=seed, memory_limit=limit)
        for notice in data.notices:
            if notice.kind == "origins":
                warn_of_data(notice.text)
        parts: dict[str, Any] = {"algorithm": algorithm or {}, "buffer": buffer or {}, "progress": progress}
        estimate = estimate_value(actor, data, num_updates=num_updates, gamma=gamma, seed=seed, **parts)
    if not is_command_line():  # a command tells it with the values of all agents
        warn_of_data(estimate.note())
    return estimate


@explains_calls
def collect(
    env: str | EnvFunction,
    agent: Agent | ActorCritic | None,
    steps: PositiveInteger,
    *,
    seed: NonnegativeInteger = 0,
    deterministic: Flag = False,
    epsilon: PositiveFraction | None = None,
    num_envs: NumEnvs = 1,
    worker_processes: Flag = False,
) -> Dataset:
    """Record a dataset, as ``offpcc collect`` does; `Dataset.save` writes it.

    From one environment, episode i depends only on the seed and on i. From several, the data depend on their number,
    too. The episodes are in the order of their ends; those that the end of the recording cuts are the last ones.

    Args:
        env: see `evaluate`.
        agent: the agent that acts; None for random actions.
        steps: number of environment steps, of all environments together.
        seed: the seed of everything random.
        deterministic: True to act with the mode of the policy.
        epsilon: share of random actions, which are uniform; the others are the mode of the policy. None for the
            policy's own exploration.
        num_envs: number of environments side by side; the agent then acts for all of them at once.
        worker_processes: True to give each environment its own process; see `offpcc.envs.vector.local.environments`.

    Raises:
        UserError: an argument is invalid, the environment does not fit the agent, or an episode does not end.
        EnvironmentFault: the environment misbehaves.
    """
    actor = None if agent is None else _actor(agent)
    if actor is None and deterministic:
        raise UserError("deterministic has no effect on random actions; leave it out, or give an agent")
    if epsilon is not None and actor is None:
        raise UserError("epsilon has no effect on random actions; leave it out, or give an agent")
    if epsilon is not None and deterministic:
        raise UserError("deterministic has no effect with epsilon, which already implies it; leave deterministic out")
    make_env, longest = configured_make(env), episode_options()
    noise = None if actor is None else actor.noise
    with for_python(), same_global_generators():
        opened = make_env(scale_actions=True) if actor is None else open_environment(make_env, actor, shows_state=True)
        with closing(guarded(opened)) as played:
            name = "random" if actor is None else type(actor).__name__
            facts = {"seed": seed, "deterministic": deterministic, "epsilon": epsilon, "algorithm": name}
            if num_envs > 1 or worker_processes:
                facts["num_envs"] = num_envs
            metadata = settings_of_recording(opened, facts)
            episodes = _Episodes(scale_of(raw_actions(opened)), steps, num_envs)
            try:
                if "num_envs" in facts:
                    _play_side_by_side(
                        episodes, make_env, actor, seed, longest, deterministic, epsilon, worker_processes
                    )
                while len(episodes) < steps:
                    seeds = Seeds.of(seed, episodes.num_whole)
                    for transition in play_episode(played, actor, seeds, deterministic, longest, epsilon):
                        signals.poll()
                        episodes.push(*transition)
                        if len(episodes) == steps:
                            break
            finally:
                if actor is not None and noise is not None:
                    actor.noise = noise
    info = DatasetInfo(str(metadata["env"]), "offpcc.collect", metadata={**metadata, NUM_WHOLE: episodes.num_whole})
    return Dataset.from_columns(episodes.columns(opened.observation_space), info)


COLUMNS = ("observations", "actions", "rewards", "terminations", "truncations", "next_observations")


class _Episodes:
    """Stores `steps` transitions of N environments, with actions in the environment's units; see `core.Store`.

    Later transitions are ignored.
    """

    def __init__(self, scale: ActionScale | ActionIndex, steps: int, num_envs: int) -> None:
        self._scale, self.steps, self.num_envs = scale, steps, num_envs
        self._ended: list[list[Any]] = []  # rows of `COLUMNS`
        self._unfinished: list[list[list[Any]]] = [[] for _ in range(num_envs)]
        self.num_whole = 0  # episodes that ended

    def __len__(self) -> int:
        return len(self._ended) + sum(map(len, self._unfinished))

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
        env: int = 0,
        is_first: bool = False,
    ) -> None:
        """Store a transition."""
        if len(self) == self.steps:
            return
        stretched = np.reshape(self._scale.stretch(action), -1)
        self._unfinished[env].append([observation, stretched, reward, terminated, False, next_observation])
        if terminated or truncated:
            self.num_whole += 1
            self.truncate(env)

    def drop(self, env: int) -> None:
        """Forget the unfinished episode of an environment that failed."""
        self._unfinished[env].clear()

    def truncate(self, env: int) -> None:
        """End the episode of an environment, if there is one."""
        if rows := self._unfinished[env]:
            rows[-1][COLUMNS.index("truncations")] = not rows[-1][COLUMNS.index("terminations")]
            self._ended += rows
            self._unfinished[env] = []

    def columns(self, space: gymnasium.Space[Any]) -> dict[str, Column]:
        """Cut the unfinished episodes, and return all transitions by `COLUMNS`; `space` is that of observations."""
        for env in range(len(self._unfinished)):
            self.truncate(env)
        columns = zip(COLUMNS, zip(*self._ended, strict=True), strict=True)
        return {
            name: PackedRows(np.array(values), space, [])
            if isinstance(space, PackedDict) and name.endswith("observations")
            else as_column(np.array(values), name)
            for name, values in columns
        }


def _play_side_by_side(
    episodes: _Episodes,
    make_env: functools.partial[gymnasium.Env[Any, Any]],
    actor: ActorCritic | None,
    seed: int,
    longest: int,
    deterministic: bool,
    epsilon: float | None,
    worker_processes: bool,
) -> None:
    """Play in N environments at once until `episodes` has all its steps."""
    seeds = Seeds.of(seed, 0)
    seed_global_generators(seeds.others)
    make = functools.partial(make_env, scale_actions=True)
    of_envs = [environment_seed(seeds.reset, number) for number in range(episodes.num_envs)]
    acting: Any = types.SimpleNamespace(memoryless=True)
    if actor is not None:
        actor.noise = Noise(seeds.noise, actor.device)
        acting.memoryless, acting.act = actor.memoryless, functools.partial(actor.act, deterministic=deterministic)
    environments: Environments = (
        WorkerEnvironments(make, of_envs, make_env.keywords["timeout"], loading.current().text)
        if worker_processes
        else LocalEnvironments(make, of_envs)
    )
    if actor is not None and epsilon is not None:
        draws = np.random.default_rng((seeds.actions, 1))  # beside those of `Interaction`
        acting.act = EpsilonGreedyActor(actor, epsilon, environments.action_space, draws).act
    playing = closing(Interaction(environments, acting, episodes, seeds.actions, longest))
    with without_random_actions(actor, deterministic), playing as interaction:
        interaction.learns_of_lives = False  # recordings have whole games
        while len(episodes) < episodes.steps:
            signals.poll()
            interaction.step(explore_at_random=actor is None)


@explains_calls
def plot(
    folders: str | Path | Sequence[str | Path],
    file: str | Path,
    metric: str = "test/return",
    *,
    grid: Flag = False,
    average: PositiveInteger = 1,
    final: Flag = False,
    announce: Callable[[str], None] | None = None,
) -> list[Summary]:
    """Draw learning curves into a file, as ``offpcc plot`` does, and return the final result of each group of runs.

    Args:
        folders: folders of runs, algorithms or environments, or one of them.
        file: the picture to write: PNG, PDF or SVG, by its suffix.
        metric: the column of `progress.csv`.
        grid: True for a row of panels for each environment and a column for each dataset, with D4RL's scores where
            they are known, one legend, and BC as a dashed line; see `plot_grid`.
        average: number of values of a moving average, in a grid.
        final: True for a grid of the last values.
        announce: called with a message for each group that is left out because its runs have no number for the metric
            at a common step.

    Raises:
        UserError: a folder holds no runs, no run has a number for the metric, or the picture cannot be written.
    """
    if average > 1 and not (grid or final):
        raise UserError(f"average {average} has no effect without a grid; leave it out, or add a grid")
    given: Sequence[Any] = folders if isinstance(folders, list | tuple) else [folders]
    if not given:
        raise UserError("there is no folder to draw; give one or more folders of runs")
    paths, file = [as_path(one, "folders") for one in given], as_path(file, "file")
    picture = (file, "file", "curves.png")
    check_picture(*picture)
    with for_python(), explain_picture_errors(*picture):
        for one in paths:
            find_runs(one)
        if grid or final:
            return plot_grid(paths, file, metric=metric, average=average, final=final)
        return plot_runs(paths, file, metric=metric, announce=announce)


@explains_calls
def report(
    folders: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    baseline: str | None = None,
    normalise: str | Path | Mapping[str, Sequence[float]] | None = None,
    test: Test = "last",
    metric: str = "test/return",
    announce: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Compare runs over seeds, algorithms and tasks, as ``offpcc report`` does, and return all values.

    The statistics are those of Agarwal et al. 2021 (arXiv:2108.13264); see `offpcc.training.analysis.run_statistics`.

    Args:
        folders: folders of runs, algorithms or environments, or one of them.
        out: the name of the files: its table (.md), a table of the interquartile means for LaTeX (.tex), its figure
            (.png) and its values (.json). A folder that exists gets ``report.md`` and so on. None writes nothing.
        baseline: an algorithm of the table, with which the others are compared.
        normalise: "d4rl" for D4RL's references, "minmax" for the worst and the best run of each task, a TOML or JSON
            file with a line such as ``"pendulum-p-v0" = [-1500, -150]``, or such a dictionary. Returns of several tasks
            need it to be aggregated. None for returns.
        test: "last" for the last test of each run that all runs of its algorithm have, "best" for its best test up to
            there, which is too optimistic.
        metric: the column of `progress.csv`, of which more is better, such as ``test/success_rate``.
        announce: called with the table.

    Returns:
        What the JSON file holds.

    Raises:
        UserError: runs cannot be read or compared, references are missing, or the files cannot be written.
    """
    given: Sequence[Any] = folders if isinstance(folders, list | tuple) else [folders]
    if not given:
        raise UserError("there are no runs to report; give one or more folders of runs")
    paths = [as_path(one, "folders") for one in given]
    files = None if out is None else files_of_report(as_path(out, "out"), "out")
    with for_python():
        found = make_report(paths, baseline=baseline, normalise=normalise, test=test, metric=metric)
    table, values = found.as_markdown(), found.as_plain_data()
    if files is not None:
        with explain_picture_errors(files[".png"], "out", "report"):
            draw_report(found, files[".png"])
            write_text(files[".md"], table)
            write_text(files[".tex"], found.as_latex())
            write_json(files[".json"], values)
    if announce is not None:
        announce(table)
    return values


def files_of_report(out: Path, option: str) -> dict[str, Path]:
    """Return the files of a report by suffix; raise if one cannot be written."""
    name = out / "report" if out.is_dir() else out
    name = name.with_suffix("") if name.suffix in REPORT_SUFFIXES else name
    files = {suffix: name.with_name(name.name + suffix) for suffix in REPORT_SUFFIXES}
    for file in files.values():
        with explain_picture_errors(file, option, "report"):
            if fault := "it is a folder" if file.is_dir() else why_no_folder(file.parent):
                raise ValueError(fault)
    return files


def load_run(folder: str | Path) -> RunResult:
    """Return the run in a folder: its table, settings, learning curve and agent. Nothing in it is executed.

    Raises:
        UserError: there is no run in the folder, or a newer version of offpcc made it.
    """
    path = as_path(folder, "folder")
    run = RunFolder.at(path)
    if (status := run.status()) is None:
        inside = sorted(one for depth in ("*", "*/*") for one in path.glob(depth) if RunFolder.at(one).status())
        advice = loading.named_in_results(path) or "give one such as results/ENV/ALGO/1"
        advice = f"give a run in it, such as {inside[0]}" if inside else advice
        raise UserError(f"there is no run in {path}; {advice}")
    run.refuse_newer()
    return RunResult(path, was_finished=status == "finished")


def _actor(agent: object) -> ActorCritic:
    actor: Any = agent.algorithm if isinstance(agent, Agent) else agent
    if not isinstance(actor, ActorCritic):
        raise UserError(
            f"an agent is needed, not an object of {type(agent).__name__}; give what train returns, or "
            f"offpcc.Agent.load(FILE); of a run, run.agent(), or call run.evaluate()"
        )
    found: ActorCritic = actor
    return found
