"""Test episodes and videos of episodes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from offpcc.algorithms import ActorCritic
from offpcc.core import Algorithm, Memory, Step
from offpcc.envs.closing import close
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.guard import guarded
from offpcc.envs.vector.base import MakeEnv
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.envs.wrapper_chain import name_of
from offpcc.training.interaction import EpisodeResult, Interaction, refuse_endless
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.video import video

TEST_SEED = 3_000_000  # of the first test episode; training seeds (run ids) are far smaller


def run_episodes(
    algorithm: Algorithm,
    envs: Sequence[gymnasium.Env[Any, Any]],
    seeds: Sequence[int],
    *,
    deterministic: bool = True,
    watch: Callable[[gymnasium.Env[Any, Any]], None] | None = None,
) -> list[EpisodeResult]:
    """Run one episode per seed, in parallel in `envs`, with one batched `act` per time step.

    Args:
        algorithm: the agent that acts. Only its noise generator changes, and only if not deterministic.
        envs: the environments; their number is the largest number of parallel episodes.
        seeds: seeds of the resets, one per episode.
        deterministic: True to act with the mode of the policy.
        watch: called with an environment after each of its resets and steps.

    Returns:
        The results in the order of `seeds`.

    Raises:
        UserError: an episode does not end.
        Interrupted: the user asked the command line to stop.
    """
    if not seeds:
        return []
    watch = watch or (lambda env: None)
    envs = envs[: len(seeds)]
    episodes: list[int | None] = list(range(len(envs)))  # the episode of each environment, None when done
    waiting = iter(range(len(envs), len(seeds)))
    results: dict[int, EpisodeResult] = {}
    observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=False)]
    for env in envs:
        watch(env)
    shape = envs[0].action_space.shape
    actions = np.zeros((len(envs), int(np.prod(shape or (1,)))), np.float32)
    rewards, is_first = np.zeros((len(envs), 1), np.float32), np.ones(len(envs), np.float32)
    returns, lengths = [0.0] * len(envs), [0] * len(envs)
    memory: Memory = None
    while len(results) < len(seeds):
        signals.poll()
        step = Step(np.stack(observations), actions, rewards, is_first)
        actions, memory = algorithm.act(step, memory, deterministic=deterministic)
        actions, is_first = actions.copy(), np.zeros(len(envs), np.float32)
        for i, (env, episode) in enumerate(zip(envs, episodes, strict=True)):
            if episode is None:
                continue
            observation, reward, terminated, truncated, _ = env.step(actions[i].reshape(shape))
            observations[i] = np.array(observation)
            watch(env)
            rewards[i], returns[i], lengths[i] = reward, returns[i] + float(reward), lengths[i] + 1
            if terminated or truncated:
                results[episode] = EpisodeResult(returns[i], lengths[i])
                episodes[i] = next(waiting, None)
                if (following := episodes[i]) is not None:
                    observations[i] = env.reset(seed=seeds[following])[0]
                    watch(env)
                    actions[i], rewards[i], is_first[i], returns[i], lengths[i] = 0.0, 0.0, 1.0, 0.0, 0
            else:
                refuse_endless(functools.partial(name_of, env), lengths[i])
    return [results[number] for number in range(len(seeds))]


class Evaluation:
    """Test episodes with the same seeds at every epoch, in every run and for every algorithm.

    The initial state often changes the return more than the agent does. With fixed seeds, two tests differ only in
    the agent.

    Args:
        make_env: builds one environment; called at the first test.
        references: the returns for the normalised scores 0 and 100; None if the field has not agreed on any.
    """

    def __init__(self, make_env: MakeEnv, references: tuple[float, float] | None = None) -> None:
        self.make_env, self.references = make_env, references
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self.shared: Interaction | None = None  # if set, its environment is used and `make_env` is not called

    def run(self, algorithm: Algorithm, num_episodes: int, num_envs: int) -> list[EpisodeResult]:
        """Run the first `num_episodes` test episodes, at most `num_envs` in parallel.

        Raises:
            EnvironmentFault: an environment misbehaves.
            UserError: an episode does not end.
        """
        if self.shared is not None and num_episodes:
            return self._run_shared(self.shared, algorithm, num_episodes)
        while len(self._envs) < min(num_envs, num_episodes):
            self._envs.append(guarded(self.make_env(), f"test environment {len(self._envs)}"))
        try:
            return run_episodes(algorithm, self._envs[:num_envs], range(TEST_SEED, TEST_SEED + num_episodes))
        except EnvironmentFault as fault:
            raise fault.in_run(None) from fault.cause

    def _run_shared(self, shared: Interaction, algorithm: Algorithm, num_episodes: int) -> list[EpisodeResult]:
        environments = shared.environments
        assert isinstance(environments, LocalEnvironments)
        shared.truncate()
        try:
            with environments.lent() as env:
                return run_episodes(algorithm, [env], range(TEST_SEED, TEST_SEED + num_episodes))
        except EnvironmentFault as fault:
            raise fault.in_run(None) from fault.cause

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()


MakeAnyEnv = Callable[..., gymnasium.Env[Any, Any]]  # `make` of one environment, such as `RunSpec.make_env`
SHOWN_SEED = 1_000_000  # of the first episode that is shown or recorded; tests use other seeds


def open_environment(
    make_env: MakeAnyEnv, algorithm: ActorCritic, render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    """Make an environment and check that its spaces fit the agent. It takes actions in [-1, 1].

    Args:
        make_env: `make` with the environment's name, and with other arguments if the run has any.
        algorithm: the agent.
        render_mode: see `make`.

    Raises:
        UserError: the environment does not exist, needs a missing package, cannot be rendered, or has a different
            observation shape or number of action dimensions from the agent's.
    """
    opened = make_env(render_mode=render_mode, scale_actions=True)
    seen, actions = opened.observation_space.shape, int(np.prod(opened.action_space.shape or (1,)))
    if seen != algorithm.space_shape or actions != algorithm.action_dim:
        close(opened)
        raise UserError(
            f"{name_of(opened)} has observations of shape {seen} and {actions} action dimensions, but the actor was "
            f"trained with {algorithm.space_shape} and {algorithm.action_dim}; name the environment it was trained in "
            f"with --env"
        )
    return opened


def watch_episodes(algorithm: ActorCritic, make_env: MakeAnyEnv, num_episodes: int) -> list[EpisodeResult]:
    """Show episodes in a window."""
    shown = guarded(open_environment(make_env, algorithm, "human"))
    try:
        return run_episodes(algorithm, [shown], range(SHOWN_SEED, SHOWN_SEED + num_episodes))
    finally:
        shown.close()


def record_episodes(
    algorithm: ActorCritic, make_env: MakeAnyEnv, num_episodes: int, folder: Path, name: str = "episode"
) -> tuple[list[EpisodeResult], list[Path]]:
    """Record episodes as MP4 files `folder/<name>_<number>.mp4`. Return the results and the files."""
    shown = guarded(open_environment(make_env, algorithm, "rgb_array"))
    folder.mkdir(parents=True, exist_ok=True)
    results, files = [], []
    fps = round(shown.metadata.get("render_fps") or 30)
    try:
        for number in range(1, num_episodes + 1):
            files.append(folder / f"{name}_{number}.mp4")
            with video(files[-1], fps) as add_frame:
                seed = SHOWN_SEED + number - 1
                results += run_episodes(algorithm, [shown], [seed], watch=functools.partial(_draw, add_frame))
    finally:
        shown.close()
    return results, files


def _draw(add_frame: Callable[[Any], None], env: gymnasium.Env[Any, Any]) -> None:
    add_frame(env.render())


def evaluate_actor(
    algorithm: ActorCritic, make_env: MakeAnyEnv, num_episodes: int, num_envs: int, seed: int
) -> list[EpisodeResult]:
    """Run episodes in parallel, without rendering."""
    envs = [guarded(open_environment(make_env, algorithm)) for _ in range(min(num_envs, num_episodes))]
    try:
        return run_episodes(algorithm, envs, range(seed, seed + num_episodes))
    finally:
        for one in envs:
            one.close()


def frames_per_second(make_env: MakeAnyEnv, num_steps: int = 20) -> float:
    """Measure the steps per second of an environment with rendered observations."""
    drawn = guarded(make_env(scale_actions=True))
    try:
        drawn.reset(seed=SHOWN_SEED)
        started = time.perf_counter()
        for _ in range(num_steps):
            drawn.step(drawn.action_space.sample())
        return num_steps / (time.perf_counter() - started)
    finally:
        drawn.close()


def lines(results: list[EpisodeResult]) -> Iterator[str]:
    """Yield one line of text per episode."""
    for number, result in enumerate(results, 1):
        yield f"episode {number}: return {result.episode_return:.1f}, {result.length} steps"


def overview(results: list[EpisodeResult]) -> str:
    """Return mean and spread of the results as one line of text."""
    returns = np.array([result.episode_return for result in results])
    lengths = np.mean([result.length for result in results])
    return (
        f"return over {len(results)} episodes: mean {returns.mean():.1f}, s.d. {returns.std():.1f}, "
        f"median {np.median(returns):.1f}, min {returns.min():.1f}, max {returns.max():.1f}; mean length {lengths:.0f}"
    )
