"""Test episodes and videos of episodes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import RescaleAction

from offpcc.algorithms import ActorCritic
from offpcc.core import Algorithm, Memory, PackedDict, Step
from offpcc.data.offline import format_score
from offpcc.envs.check import LONGEST_EPISODE
from offpcc.envs.guard import close, guarded
from offpcc.envs.make import EnvOptions
from offpcc.envs.rendering import has_screen
from offpcc.envs.vector.base import MakeEnv
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.envs.wrapper_chain import REWARD_WRAPPERS, levels, name_of
from offpcc.envs.wrappers import raw_actions
from offpcc.training.interaction import EpisodeResult, Interaction, refuse_endless, success_rate
from offpcc.training.loggers.console import format_return, return_decimals
from offpcc.utils import signals
from offpcc.utils.errors import UserError, warn_of_data
from offpcc.utils.spaces import OneHot, action_size
from offpcc.utils.video import video
from offpcc.utils.words import counted

# Arguments of environments that change neither rewards nor episodes.
OF_RENDERING = {"render_mode", "width", "height", "camera_id", "camera_name", "default_camera_config"}
TEST_SEED = 3_000_000  # of the first test episode; training seeds (run ids) are far smaller


def run_episodes(
    algorithm: Algorithm,
    envs: Sequence[gymnasium.Env[Any, Any]],
    seeds: Sequence[int],
    *,
    longest_episode: int = LONGEST_EPISODE,
    watch: Callable[[gymnasium.Env[Any, Any]], None] | None = None,
) -> list[EpisodeResult]:
    """Run one episode per seed, in parallel in `envs`, with one batched `act` per time step.

    The agent acts with the mode of its policy, and does not change. `watch` is called with an environment after each of
    its resets and steps. The results are in the order of `seeds`.

    Raises:
        UserError: an episode does not end.
        Interrupted: the user asked the command line to stop.
    """
    if not seeds:
        return []
    envs = envs[: len(seeds)]
    shape = envs[0].action_space.shape
    episodes: list[int | None] = list(range(len(envs)))  # the episode of each environment, None when done
    waiting = iter(range(len(envs), len(seeds)))
    results: dict[int, EpisodeResult] = {}
    observations: list[np.ndarray] = [np.empty(0)] * len(envs)
    actions = np.zeros((len(envs), int(np.prod(shape or (1,)))), np.float32)
    rewards, is_first = np.zeros((len(envs), 1), np.float32), np.ones(len(envs), np.float32)
    returns, lengths = [0.0] * len(envs), [0] * len(envs)
    memory: Memory = None

    def observe(i: int, observation: Any) -> None:
        observations[i] = np.array(observation)  # a copy: some environments reuse one array
        if watch is not None:
            watch(envs[i])

    for i, env in enumerate(envs):
        observe(i, env.reset(seed=seeds[i])[0])
    while len(results) < len(seeds):
        signals.poll()
        step = Step(np.stack(observations), actions, rewards, is_first)
        actions, memory = algorithm.act(step, memory, deterministic=True)
        actions, is_first = actions.copy(), np.zeros(len(envs), np.float32)
        for i, (env, episode) in enumerate(zip(envs, episodes, strict=True)):
            if episode is None:
                continue
            observation, reward, terminated, truncated, info = env.step(actions[i].reshape(shape))
            observe(i, observation)
            rewards[i], returns[i], lengths[i] = reward, returns[i] + float(reward), lengths[i] + 1
            if not (terminated or truncated):
                refuse_endless(functools.partial(name_of, env), lengths[i], longest_episode)
                continue
            results[episode] = EpisodeResult(returns[i], lengths[i], _success(info))
            episodes[i] = next(waiting, None)
            if (following := episodes[i]) is not None:
                observe(i, env.reset(seed=seeds[following])[0])
                actions[i], rewards[i], is_first[i], returns[i], lengths[i] = 0.0, 0.0, 1.0, 0.0, 0
    return [results[number] for number in range(len(seeds))]


def _success(info: Mapping[str, Any]) -> float | None:
    """Return whether an episode was a success, by the name of stable-baselines3 and Gymnasium-Robotics or Meta-World's.

    It is 1 or 0; None if the environment does not tell it. Texts, NaN and other values that are no flag are ignored.
    """
    told = info.get("is_success", info.get("success"))
    if not isinstance(told, bool | int | float | np.generic | np.ndarray) or np.size(told) != 1:
        return None
    value = np.asarray(told).reshape(())
    return float(bool(value)) if value.dtype.kind in "biuf" and not np.isnan(value) else None


class Evaluation:
    """Test episodes with the same seeds at every epoch, in every run and for every algorithm.

    The initial state often changes the return more than the agent does. With fixed seeds, two tests differ only in
    the agent.

    Args:
        make_env: builds one environment; called at the first test.
        references: the returns for the normalised scores 0 and 100; None if none are published.
        longest_episode: environment steps after which an episode counts as endless.
    """

    def __init__(
        self, make_env: MakeEnv, references: tuple[float, float] | None = None, longest_episode: int = LONGEST_EPISODE
    ) -> None:
        self.make_env, self.references, self.longest_episode = make_env, references, longest_episode
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self.shared: Interaction | None = None  # if set, its environment is used and `make_env` is not called

    def run(self, algorithm: Algorithm, num_episodes: int, num_envs: int) -> list[EpisodeResult]:
        """Run the first `num_episodes` test episodes, at most `num_envs` in parallel.

        Raises:
            EnvironmentFault: an environment misbehaves.
        """
        seeds = range(TEST_SEED, TEST_SEED + num_episodes)
        if self.shared is not None and num_episodes:
            assert isinstance(self.shared.environments, LocalEnvironments)
            self.shared.truncate()
            with self.shared.environments.envs[0].untouched() as env:
                return run_episodes(algorithm, [env], seeds, longest_episode=self.longest_episode)
        while len(self._envs) < min(num_envs, num_episodes):
            self._envs.append(guarded(self.make_env(), f"test environment {len(self._envs)}"))
        return run_episodes(algorithm, self._envs[:num_envs], seeds, longest_episode=self.longest_episode)

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()


MakeAnyEnv = Callable[..., gymnasium.Env[Any, Any]]  # `make` of one environment, such as `RunSpec.make_env`
SHOWN_SEED = 1_000_000  # of the first episode that is shown or recorded; tests use other seeds


def open_environment(
    make_env: MakeAnyEnv, algorithm: ActorCritic, render_mode: str | None = None, shows_state: bool = False
) -> gymnasium.Env[Any, Any]:
    """Make an environment and check that its spaces fit the agent. It takes actions in [-1, 1].

    `shows_state` is for an environment whose state is recorded, if it has one; the agent does not see it.
    """
    made = make_env(render_mode=render_mode, scale_actions=True, shows_state=shows_state)
    seen: spaces.Space[Any] = made.observation_space
    if isinstance(seen, PackedDict) and seen.state_key is not None:
        algorithm.privileged, seen = seen, seen.agent_space
    try:
        check_spaces_fit(name_of(made), seen, made.action_space, algorithm)
    except UserError:
        close(made)
        raise
    return made


class OtherEnvironmentError(UserError):
    """The environment cannot be that of the agent."""


def check_spaces_fit(env: str, seen: spaces.Space[Any], actions: spaces.Space[Any], algorithm: ActorCritic) -> None:
    """Raise if an agent was not trained with such observations and actions.

    `seen` is the space of what it sees of the environment; Dict observations may be packed.

    Raises:
        OtherEnvironmentError: the spaces differ.
    """
    fits, there, known = compare_observations(seen, algorithm)
    is_discrete, size = isinstance(actions, spaces.Discrete | OneHot), action_size(actions)
    if fits and (is_discrete, size) == (algorithm.is_discrete, algorithm.action_dim):
        return
    kind = {True: "discrete actions", False: "action dimensions"}
    raise OtherEnvironmentError(
        f"{env} has {there} and {size} {kind[is_discrete]}, but the actor was trained with {known} and "
        f"{algorithm.action_dim} {kind[algorithm.is_discrete]}; name the environment of its training with --env"
    )


def compare_observations(seen: spaces.Space[Any], algorithm: ActorCritic) -> tuple[bool, str, str]:
    """Return whether an agent was trained with observations of a space, then these and its own in words."""
    packed = algorithm.packed
    seen = PackedDict(seen) if isinstance(seen, spaces.Dict) else seen
    if isinstance(seen, PackedDict):
        are_alike, there = packed is not None and seen.is_like(packed), f"{seen.unpacked_shape}"
    else:
        are_alike = packed is None and seen.shape == algorithm.space_shape
        there = f"{seen}" if seen.shape is None else f"of shape {seen.shape}"
    known = f"of shape {algorithm.space_shape}" if packed is None else f"{packed.unpacked_shape}"
    return are_alike, f"observations {there}", f"observations {known}"


def other_bounds(algorithm: ActorCritic, env: gymnasium.Env[Any, Any]) -> str:
    """Return a warning if an environment's bounds of actions differ from those that the agent learned with, or ""."""
    own, there = getattr(algorithm, "action_space", None), raw_actions(env)
    if not (isinstance(own, spaces.Box) and own.is_bounded() and isinstance(there, spaces.Box)):
        return ""
    is_scaled = any(isinstance(level, RescaleAction) for level in levels(env))
    if is_scaled or own.shape != there.shape or all(map(np.allclose, (own.low, own.high), (there.low, there.high))):
        return ""
    learned, played = (" to ".join(_in_words(bound) for bound in (box.low, box.high)) for box in (own, there))
    return (
        f"the agent learned actions from {learned}, and {name_of(env)} scales them to its own, from {played}; if it "
        f"learned from data in these units, train it again with dataset.action_range, or with this environment"
    )


def _in_words(bound: np.ndarray) -> str:
    numbers = [f"{number:g}" for number in bound.ravel()]
    return numbers[0] if len(set(numbers)) == 1 else f"({', '.join(numbers[:3])}{', ...' * (len(numbers) > 3)})"


def endless_episodes(
    algorithm: ActorCritic, make_env: MakeAnyEnv, seed: int, longest_episode: int, shows: bool
) -> Iterator[EpisodeResult]:
    """Play one episode after another, in a window if `shows`, and yield each result."""
    with closing(guarded(open_environment(make_env, algorithm, "human" if shows else None))) as env:
        for number in itertools.count(seed):
            yield from run_episodes(algorithm, [env], [number % 2**31], longest_episode=longest_episode)


def record_episodes(
    algorithm: ActorCritic,
    make_env: MakeAnyEnv,
    num_episodes: int,
    folder: Path,
    name: str,
    longest_episode: int,
) -> tuple[list[EpisodeResult], list[Path]]:
    """Record episodes as MP4 files `folder/<name>_<number>.mp4`. Return the results and the files."""
    results: list[EpisodeResult] = []
    files = [folder / f"{name}_{number}.mp4" for number in range(1, num_episodes + 1)]
    with closing(guarded(open_environment(make_env, algorithm, "rgb_array"))) as filmed:
        folder.mkdir(parents=True, exist_ok=True)
        fps = round(filmed.metadata.get("render_fps") or 30)
        for seed, file in enumerate(files, SHOWN_SEED):
            with video(file, fps) as add_frame:
                watch = functools.partial(_draw, add_frame)
                results += run_episodes(algorithm, [filmed], [seed], longest_episode=longest_episode, watch=watch)
    return results, files


def _draw(add_frame: Callable[[Any], None], env: gymnasium.Env[Any, Any]) -> None:
    add_frame(env.render())


def evaluate_actor(
    algorithm: ActorCritic,
    make_env: MakeAnyEnv,
    num_episodes: int,
    num_envs: int,
    seed: int,
    longest_episode: int = LONGEST_EPISODE,
) -> list[EpisodeResult]:
    """Run episodes in parallel, without rendering."""
    with ExitStack() as stack:
        num = min(num_envs, num_episodes)
        envs = [stack.enter_context(closing(guarded(open_environment(make_env, algorithm)))) for _ in range(num)]
        warn_of_data(other_bounds(algorithm, envs[0]))
        return run_episodes(algorithm, envs, range(seed, seed + num_episodes), longest_episode=longest_episode)


def show_episodes(
    algorithm: ActorCritic,
    make_env: MakeAnyEnv,
    env: str | None,
    num_episodes: int,
    longest_episode: int,
    folder: Path,
    in_window: bool,
    name: str = "episode",
) -> None:
    """Show episodes in a window, or record them in `folder` if there is no screen; print the results and the files.

    `env` is the name of the environment if returns have D4RL's score, else None. The files have `name` and a number.
    """
    videos: list[Path] = []
    if in_window and has_screen():
        with closing(guarded(open_environment(make_env, algorithm, "human"))) as window:
            seeds = range(SHOWN_SEED, SHOWN_SEED + num_episodes)
            results = run_episodes(algorithm, [window], seeds, longest_episode=longest_episode)
    else:
        if in_window:
            print("there is no screen here, so the episodes are recorded instead")
        results, videos = record_episodes(algorithm, make_env, num_episodes, folder, name, longest_episode)
    for number, result in enumerate(results, 1):
        print(f"episode {number}: return {format_return(result.episode_return)}, {counted(result.length, 'step')}")
    print(overview(results, env))
    print(*videos, sep="\n", end="\n" * bool(videos))


def changes_rewards(env: gymnasium.Env[Any, Any], options: EnvOptions) -> bool:
    """Return whether a wrapper or `make.kwargs` may change rewards or the ends of episodes.

    Returns then have no normalised score.
    """
    is_wrapped = bool(options.wrappers) and any(isinstance(one, REWARD_WRAPPERS) for one in levels(env))
    return is_wrapped or bool({*(options.kwargs or ())} - OF_RENDERING)


def overview(results: Sequence[EpisodeResult], env: str | None = None) -> str:
    """Return mean and spread of the results as one line of text, with D4RL's score if `env` has one."""
    returns, lengths, _ = zip(*results, strict=True)
    return overview_of(returns, lengths, success_rate(results), env)


def overview_of(
    returns: Sequence[float] | np.ndarray, lengths: Sequence[float] | np.ndarray, rate: float | None, env: str | None
) -> str:
    """Return the line of `overview`, from returns, lengths and the rate of successes."""
    mean = float(np.mean(returns))
    score = "" if env is None else format_score(env, mean)
    decimals = return_decimals(mean)
    figures = {"mean": mean, "s.d.": np.std(returns), "median": np.median(returns)}
    figures |= {"min": np.min(returns), "max": np.max(returns)}
    text = ", ".join(f"{name} {figure:.{decimals}f}" for name, figure in figures.items())
    success = "" if rate is None else f"; success rate {rate:.2f}"
    played = counted(len(returns), "episode")
    return f"return over {played}: {text}; mean length {np.mean(lengths):.0f}{success}{score}"
