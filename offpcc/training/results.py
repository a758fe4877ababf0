"""What Python users do with agents and runs: evaluate, collect, plot, and load a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.agent import Agent
from offpcc.config import loading
from offpcc.config.validation import NonnegativeInteger, NumEnvs, PositiveInteger, check, rules_of
from offpcc.data import Dataset
from offpcc.data.datasets.columns import Column, as_column
from offpcc.data.datasets.dataset import DatasetInfo
from offpcc.data.recording.hdf5_writer import NUM_WHOLE
from offpcc.data.recording.metadata import settings_of
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.guard import guarded
from offpcc.envs.make import EnvFunction, check_env
from offpcc.envs.wrappers import ActionScale, action_bounds
from offpcc.training.collect import Seeds, play
from offpcc.training.evaluation import MakeAnyEnv, evaluate_actor, open_environment, overview
from offpcc.training.fit import RunResult
from offpcc.training.interaction import EpisodeResult, episode_options
from offpcc.training.plotting import Summary, find_runs, plot_runs
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import configured_make
from offpcc.utils import signals
from offpcc.utils.errors import UserError, for_python
from offpcc.utils.figures import check_picture, explain_picture_errors
from offpcc.utils.paths import as_path
from offpcc.utils.rng import same_global_generators

NORMAL_95 = 1.96  # standard errors on each side of a mean that hold 95% of a normal distribution


@dataclass(frozen=True)
class EvaluationResult:
    """The episodes of `evaluate`.

    Attributes:
        returns: (E,), undiscounted.
        lengths: (E,), environment steps.
    """

    returns: np.ndarray
    lengths: np.ndarray

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
        """The 95% interval of the mean, by the normal distribution; NaN for one episode.

        It tells how sure the mean of this agent is. It tells nothing about other seeds of training.
        """
        if len(self.returns) < 2:
            return float("nan"), float("nan")
        half = NORMAL_95 * float(self.returns.std(ddof=1)) / len(self.returns) ** 0.5
        return self.mean - half, self.mean + half

    def __str__(self) -> str:
        return overview([EpisodeResult(*pair) for pair in zip(self.returns, self.lengths, strict=True)])


def evaluate(
    agent: Agent | ActorCritic,
    env: str | EnvFunction,
    episodes: PositiveInteger = 10,
    *,
    num_envs: NumEnvs = 10,
    seed: NonnegativeInteger = 2_000_000,
) -> EvaluationResult:
    """Play episodes with the mode of the agent's policy. The agent's own episode does not change.

    Args:
        agent: the agent.
        env: a name, or a function that makes an environment; see `offpcc.build`. Wrappers that are bound for ``make``
            apply.
        episodes: number E of episodes.
        num_envs: number of episodes side by side; it does not change the seeds.
        seed: seed of the first episode; the next ones count up from it.

    Raises:
        UserError: an argument is invalid, the environment does not fit the agent, or an episode does not end.
        EnvironmentFault: the environment misbehaves.
    """
    given = {"episodes": episodes, "num_envs": num_envs, "seed": seed}
    check("evaluate", rules_of(evaluate), given)
    with for_python():
        results = evaluate_actor(_actor(agent), _configured(env), episodes, num_envs, seed, episode_options())
    returns, lengths = zip(*results, strict=True)
    return EvaluationResult(np.array(returns), np.array(lengths))


def collect(
    env: str | EnvFunction,
    agent: Agent | ActorCritic | None,
    steps: PositiveInteger,
    *,
    seed: NonnegativeInteger = 0,
    deterministic: bool = False,
) -> Dataset:
    """Record a dataset, as ``offpcc collect`` does; `Dataset.save` writes it.

    Episode i depends only on the seed and on i. The last episode is cut.

    Args:
        env: see `evaluate`.
        agent: the agent that acts; None for random actions.
        steps: number of environment steps.
        seed: the seed of everything random.
        deterministic: True to act with the mode of the policy.

    Raises:
        UserError: an argument is invalid, the environment does not fit the agent, or an episode does not end.
        EnvironmentFault: the environment misbehaves.
    """
    check("collect", rules_of(collect), {"steps": steps, "seed": seed})
    actor = None if agent is None else _actor(agent)
    if actor is None and deterministic:
        raise UserError("deterministic has no effect on random actions; leave it out, or give an agent")
    make_env = _configured(env)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    noise, num_whole = None if actor is None else actor.noise, 0
    with for_python(), same_global_generators():
        opened = make_env(scale_actions=True) if actor is None else open_environment(make_env, actor)
        with closing(guarded(opened)) as played:
            scale = ActionScale.of(*action_bounds(opened))
            facts = {"seed": seed, "deterministic": deterministic, "algorithm": "random"}
            if actor is not None:
                facts["algorithm"] = type(actor).__name__
            metadata = settings_of(opened, facts)
            try:
                while len(columns["rewards"]) < steps:
                    seeds = Seeds.of(seed, num_whole)
                    for one in play(played, actor, seeds, deterministic, episode_options()):
                        signals.poll()
                        ended = one.terminated or one.truncated
                        is_last = len(columns["rewards"]) == steps - 1
                        action = scale.stretch(one.action.reshape(scale.low.shape)).reshape(-1)
                        row = (one.observation, action, one.reward, one.terminated, False, one.next_observation)
                        for name, value in zip(COLUMNS, row, strict=True):
                            columns[name].append(value)
                        columns["truncations"][-1] = not one.terminated and (one.truncated or is_last)
                        num_whole += ended
                        if is_last:
                            break
            except EnvironmentFault as fault:
                raise fault.in_run(None) from fault.cause
            finally:
                if actor is not None and noise is not None:
                    actor.noise = noise
    arrays: dict[str, Column] = {name: as_column(np.array(values), name) for name, values in columns.items()}
    info = DatasetInfo(str(metadata["env"]), "offpcc.collect", metadata={**metadata, NUM_WHOLE: num_whole})
    return Dataset.from_columns(arrays, info)


COLUMNS = ("observations", "actions", "rewards", "terminations", "truncations", "next_observations")


def plot(
    folders: str | Path | Sequence[str | Path],
    file: str | Path,
    metric: str = "test/return",
    *,
    option: str = "file",
    announce: Callable[[str], None] | None = None,
) -> list[Summary]:
    """Draw learning curves into a file, as ``offpcc plot`` does, and return the final result of each group of runs.

    Args:
        folders: folders of runs, algorithms or environments, or one of them.
        file: the picture to write: PNG, PDF or SVG, by its suffix.
        metric: the column of `progress.csv`.
        option: what gave the file, for messages.
        announce: see `plot_runs`.

    Raises:
        UserError: a folder holds no runs, the metric does not exist, or the picture cannot be written.
    """
    given = [folders] if isinstance(folders, str | Path) else folders
    if not given:
        raise UserError("there is no folder to draw; give one or more folders of runs")
    paths, file = [as_path(one, "folders") for one in given], as_path(file, option)
    picture = (file, option, "curves.png")
    check_picture(*picture)
    try:
        with explain_picture_errors(*picture):
            for one in paths:
                find_runs(one)
            file.parent.mkdir(parents=True, exist_ok=True)
            return plot_runs(paths, file, metric=metric, announce=announce)
    except KeyError as error:
        raise UserError(str(error.args[0])) from error


def load_run(folder: str | Path) -> RunResult:
    """Return the run in a folder: its table, settings, learning curve and agent. Nothing in it is executed.

    Raises:
        UserError: there is no run in the folder.
    """
    path = as_path(folder, "folder")
    run = RunFolder.at(path)
    if (status := run.status()) is None:
        inside = sorted(one.name for one in path.glob("*") if RunFolder.at(one).status())
        advice = f"give a run in it, such as {path / inside[0]}" if inside else "give one such as results/ENV/ALGO/1"
        raise UserError(f"there is no run in {path}; {advice}")
    return RunResult(path, was_finished=status == "finished")


def _actor(agent: object) -> ActorCritic:
    actor: object = agent.algorithm if isinstance(agent, Agent) else agent
    if not isinstance(actor, ActorCritic):
        raise UserError(
            f"an agent is needed, not an object of {type(agent).__name__}; give what train returns, or "
            f"offpcc.Agent.load(FILE)"
        )
    found: ActorCritic = actor
    return found


def _configured(env: str | EnvFunction) -> MakeAnyEnv:
    check_env(env)
    with loading.LOCK:
        return configured_make(env)
