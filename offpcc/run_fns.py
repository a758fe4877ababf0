"""The loop: interaction, updates, test episodes; online and, without an environment, offline."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import gin
import gymnasium
import numpy as np
import torch
from torch import Tensor

from offpcc.core import (
    Algorithm,
    Buffer,
    Memory,
    NumpyGenerator,
    Stats,
    Step,
    UserError,
    generator_state,
    set_generator_state,
)
from offpcc.loggers import Logger, Progress

LONGEST_EPISODE = 20_000  # steps; no task of the field comes near it
REPORT_INTERVAL = 0.25  # seconds between two pictures of the progress display
MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


class EpisodeResult(NamedTuple):
    """How an episode went."""

    episode_return: float  # sum of rewards, undiscounted
    length: int  # environment steps


class AverageStats:
    """Statistics summed where they are computed and moved once, when they are read."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, stats: Stats) -> None:
        """Count one update's statistics."""
        for name, value in stats.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.counts[name] = self.counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """The mean of each since the last call."""
        if not self.sums:
            return {}
        values = torch.stack([total.double() for total in self.sums.values()]).tolist()
        means = {name: value / self.counts[name] for name, value in zip(self.sums, values, strict=True)}
        self.sums, self.counts = {}, {}
        return means


class Interaction:
    """An environment, the episode under way in it, and the agent's memory of that episode.

    Args:
        make_env: builds the environment, at its first reset.
        algorithm: acts.
        buffer: gets every transition.
        seed: of the environment and of random exploration.
    """

    def __init__(self, make_env: MakeEnv, algorithm: Algorithm, buffer: Buffer, seed: int = 0) -> None:
        self.make_env, self.algorithm, self.buffer, self.seed = make_env, algorithm, buffer, seed
        self.randomness = NumpyGenerator(seed, 3)
        self.finished: list[EpisodeResult] = []  # since they were last taken
        self.episode_over = True
        self._env: gymnasium.Env[Any, Any] | None = None
        self._seeded = False
        self._start: dict[str, Any] | None = None  # the environment's generator before this episode's reset

    @property
    def env(self) -> gymnasium.Env[Any, Any]:
        """The environment."""
        if self._env is None:
            self._env = self.make_env()
            self.action_dim = int(np.prod(self._env.action_space.shape or (1,)))
        return self._env

    def _reset(self) -> None:
        self._start = generator_state(self.env.unwrapped.np_random) if self._seeded else None
        self._begin(self.env.reset(seed=None if self._seeded else self.seed)[0])
        self._seeded = True

    def _begin(self, observation: np.ndarray) -> None:
        self.observation = observation
        self.memory: Memory = None
        self.previous_action = np.zeros(self.action_dim, np.float32)
        self.previous_reward = 0.0
        self.actions: list[np.ndarray] = []  # executed ones, to find back here when a run is resumed
        self.checksum = checksum(observation)
        self.episode_return = 0.0
        self.episode_over = False

    def step(self, explore_at_random: bool) -> bool:
        """Act once; whether that ended the episode.

        Raises:
            UserError: an episode does not end.
        """
        if self.episode_over:
            self._reset()
        if explore_at_random:
            action = self.randomness.generator.uniform(-1.0, 1.0, self.action_dim).astype(np.float32)
        if not explore_at_random or not self.algorithm.memoryless:  # a memory needs every step, random ones too
            chosen, self.memory = self.algorithm.act(self._seen(), self.memory)
            action = action if explore_at_random else chosen[0]
        observation, reward, terminated, truncated, _ = self.env.step(action.reshape(self.env.action_space.shape))
        reward = float(reward)
        self.buffer.push(self.observation, action, reward, observation, terminated, truncated)
        self.observation, self.previous_action, self.previous_reward = observation, action, reward
        self.actions.append(action)
        self.checksum = checksum(observation, self.checksum)
        self.episode_return += reward
        self.episode_over = bool(terminated or truncated)
        if self.episode_over:
            self.finished.append(EpisodeResult(self.episode_return, len(self.actions)))
        elif len(self.actions) >= LONGEST_EPISODE:
            raise UserError(endless(self.env))
        return self.episode_over

    def _seen(self) -> Step:
        return Step(
            self.observation[None],
            self.previous_action[None],
            np.full((1, 1), self.previous_reward, np.float32),
            np.array([not self.actions], np.float32),
        )

    def take_finished(self) -> list[EpisodeResult]:
        """Episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def state_dict(self) -> dict[str, Any]:
        """What finds the episode back: the environment's generator at its reset, then the executed actions."""
        state = {
            "randomness": self.randomness.state_dict(),
            "episode_over": self.episode_over,
            "started": self._seeded,
            "finished": [tuple(result) for result in self.finished],
        }
        if self._seeded:
            state |= {
                "start": self._start,
                "actions": torch.from_numpy(np.stack(self.actions)) if self.actions else None,
                "checksum": self.checksum,
                "memory": self.memory,
                "previous_reward": self.previous_reward,
                "episode_return": self.episode_return,
                "generator": generator_state(self.env.unwrapped.np_random),
            }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Find the episode back by replaying it; a message if the environment did not repeat itself."""
        self.randomness.load_state_dict(state["randomness"])
        self.finished = [EpisodeResult(*result) for result in state["finished"]]
        if not state["started"]:
            return None
        env = self.env
        observation, _ = env.reset(seed=self.seed)
        self._seeded = True
        if state["episode_over"]:
            set_generator_state(env.unwrapped.np_random, state["generator"])
            self._begin(observation)
            self.episode_over = True
            return None
        self._start = state["start"]
        if self._start is not None:
            set_generator_state(env.unwrapped.np_random, self._start)
            observation, _ = env.reset()
        self._begin(observation)
        actions = [] if state["actions"] is None else list(state["actions"].numpy())
        over = False
        for action in actions:
            if over:
                break
            self.observation, _, terminated, truncated, _ = env.step(action.reshape(env.action_space.shape))
            self.checksum = checksum(self.observation, self.checksum)
            over = bool(terminated or truncated)
        self.actions, self.memory = actions, state["memory"]
        if actions:
            self.previous_action = actions[-1]
        self.previous_reward, self.episode_return = state["previous_reward"], state["episode_return"]
        repeated = self.checksum == state["checksum"] and not over
        repeated = repeated and generator_state(env.unwrapped.np_random) == state["generator"]
        self.checksum = state["checksum"]
        if repeated:
            return None
        self.episode_over = over
        return (
            "this resume is not exact: the environment did not repeat its unfinished episode from the same seed "
            "and actions, so the run goes on from where the repeated episode stands"
        )


def checksum(observation: np.ndarray, before: int = 0) -> int:
    """A running checksum of an episode's observations."""
    return zlib.crc32(np.ascontiguousarray(observation).tobytes(), before)


def endless(env: gymnasium.Env[Any, Any]) -> str:
    """The message for an environment whose episode does not end."""
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    return (
        f"an episode of {name} has not ended after {LONGEST_EPISODE} steps; agents learn and are tested by "
        f"episodes: give it an end with gymnasium.wrappers.TimeLimit, or max_episode_steps when registering it"
    )


def run_episodes(
    algorithm: Algorithm,
    envs: Sequence[gymnasium.Env[Any, Any]],
    seeds: Sequence[int],
    *,
    deterministic: bool = True,
    watch: Callable[[gymnasium.Env[Any, Any]], None] | None = None,
) -> list[EpisodeResult]:
    """One episode per seed, side by side in `envs`, with one batched `act` per time step.

    Args:
        algorithm: acts; nothing of it changes but, unless deterministic, its noise.
        envs: as many as may run at once.
        seeds: of the environments' resets, one per episode.
        deterministic: whether the policy's mode is taken.
        watch: called with an environment after each reset and step of it.

    Returns:
        Results in the order of `seeds`.

    Raises:
        UserError: an episode does not end.
    """
    watch = watch or (lambda env: None)
    envs = envs[: len(seeds)]
    episodes: list[int | None] = list(range(len(envs)))  # which one each environment plays, None when done
    waiting = deque(range(len(envs), len(seeds)))
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
        step = Step(np.stack(observations), actions, rewards, is_first)
        actions, memory = algorithm.act(step, memory, deterministic=deterministic)
        actions, is_first = actions.copy(), np.zeros(len(envs), np.float32)
        for i, (env, episode) in enumerate(zip(envs, episodes, strict=True)):
            if episode is None:
                continue
            observations[i], reward, terminated, truncated, _ = env.step(actions[i].reshape(shape))
            watch(env)
            rewards[i], returns[i], lengths[i] = reward, returns[i] + float(reward), lengths[i] + 1
            if terminated or truncated:
                results[episode] = EpisodeResult(returns[i], lengths[i])
                episodes[i] = waiting.popleft() if waiting else None
                if (following := episodes[i]) is not None:
                    observations[i] = env.reset(seed=seeds[following])[0]
                    watch(env)
                    actions[i], rewards[i], is_first[i], returns[i], lengths[i] = 0.0, 0.0, 1.0, 0.0, 0
            elif lengths[i] >= LONGEST_EPISODE:
                raise UserError(endless(env))
    return [results[number] for number in range(len(seeds))]


class Evaluation:
    """Test episodes that are the same at every epoch: fixed seeds, apart from training's.

    Args:
        make_env: builds one environment, at the first test.
        seed: the run's; another run is tested on other episodes.
    """

    def __init__(self, make_env: MakeEnv, seed: int = 0) -> None:
        self.make_env = make_env
        self.seed = seed
        self._envs: list[gymnasium.Env[Any, Any]] = []

    def run(self, algorithm: Algorithm, num_episodes: int, num_envs: int) -> list[EpisodeResult]:
        """The first `num_episodes` test episodes, at most `num_envs` at once."""
        while len(self._envs) < min(num_envs, num_episodes):
            self._envs.append(self.make_env())
        return run_episodes(algorithm, self._envs[:num_envs], self.seeds(num_episodes))

    def seeds(self, num_episodes: int) -> list[int]:
        """Of the test episodes' resets."""
        drawn = np.random.SeedSequence((self.seed, 4)).generate_state(num_episodes, np.uint32)
        return [int(seed >> 1) for seed in drawn]


@dataclass
class Loop:
    """Where the loop stands; part of a checkpoint."""

    step: int = 0  # environment steps taken (offline: steps of the loop)
    epoch: int = 0  # epochs ended
    num_updates: int = 0
    owed: float = 0.0  # updates that are due but wait for the episode's end
    best_return: float | None = None  # mean test return of the best actor so far
    is_best: bool = False  # whether that was this epoch's
    stopped: bool = False  # whether `stop_return` has been reached
    seconds: float = 0.0  # of training, over all resumes

    def state_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        vars(self).update(state)


class Run(NamedTuple):
    """What callbacks get to see."""

    algorithm: Algorithm
    buffer: Buffer
    interaction: Interaction | None
    tests: Evaluation | None
    loop: Loop


class Callback(Protocol):
    """Something that happens beside the loop."""

    def on_start(self, run: Run) -> None:
        """Called before the first step, when gin knows all that the run uses."""
        ...

    def on_epoch(self, run: Run) -> None:
        """Called at each epoch's end, after its row has been logged."""
        ...

    def on_end(self, run: Run) -> None:
        """Called after the last update."""
        ...


def columns(stat_names: Iterable[str]) -> list[str]:
    """The columns of a run's table, known before it starts."""
    return [
        *("step", "update", "epoch", "train/return", "train/length"),
        *("test/return", "test/return_std", "test/length"),
        *(f"update/{name}" for name in stat_names),
        *("time/hours", "time/steps_per_second"),
    ]


@gin.configurable(  # type: ignore[untyped-decorator]
    denylist=["algorithm", "buffer", "interaction", "tests", "logger", "callbacks", "loop"]
)
def train(
    algorithm: Algorithm,
    buffer: Buffer,
    interaction: Interaction | None,
    tests: Evaluation | None,
    logger: Logger,
    callbacks: Sequence[Callback] = (),
    loop: Loop | None = None,
    *,
    num_epochs: int = gin.REQUIRED,
    num_steps_per_epoch: int = 1_000,
    num_test_episodes_per_epoch: int = 10,
    num_test_envs: int = 10,
    update_after: int = 10_000,
    update_every: int = 1,
    updates_per_step: float = 1.0,
    stop_return: float | None = None,
) -> Loop:
    """Train until `num_epochs` have ended, or a test reaches `stop_return`.

    A memoryless agent makes its updates every `update_every` steps. One with memory makes those it owes when its
    episode ends, so that its networks never change in mid-episode, and what is owed at the end is paid.

    Args:
        algorithm: learns and acts.
        buffer: is pushed to by `interaction` and sampled from.
        interaction: takes the steps; None to learn from the buffer alone.
        tests: run at each epoch's end; None for no tests.
        logger: gets one row per epoch.
        callbacks: called in this order.
        loop: where to start; continues a run.
        num_epochs: to end with, in all.
        num_steps_per_epoch: environment steps.
        num_test_episodes_per_epoch: episodes.
        num_test_envs: test episodes that run side by side.
        update_after: environment steps of random exploration before the policy acts and updates begin.
        update_every: environment steps between two rounds of updates of a memoryless agent.
        updates_per_step: updates per environment step; may be a fraction.
        stop_return: mean test return that is good enough, if any.

    Returns:
        Where the loop stands at its end.
    """
    loop = loop or Loop()
    run = Run(algorithm, buffer, interaction, tests, loop)
    for callback in callbacks:
        callback.on_start(run)
    stats, clock = AverageStats(), Clock(loop, num_epochs * num_steps_per_epoch, logger)

    def pay() -> None:
        while loop.owed >= 1.0 and len(buffer):  # before a first episode has ended there is nothing to learn from
            stats.add(algorithm.update_networks(buffer.sample()))
            loop.owed -= 1.0
            loop.num_updates += 1
            clock.report("learning")

    while loop.epoch < num_epochs and not loop.stopped:
        loop.step += 1
        exploring = loop.step <= update_after
        episode_over = interaction.step(exploring) if interaction else True
        loop.owed += updates_per_step * (interaction is None or not exploring)
        if loop.step % update_every == 0 if algorithm.memoryless else episode_over:
            pay()
        clock.report("exploring at random" if exploring else "learning")
        if loop.step % num_steps_per_epoch == 0:
            loop.epoch += 1
            trained = interaction.take_finished() if interaction else []
            clock.report("testing", now=True)
            tested = tests.run(algorithm, num_test_episodes_per_epoch, num_test_envs) if tests else []
            told: dict[str, float | None] = {
                "step": loop.step,
                "update": loop.num_updates,
                "epoch": loop.epoch,
                **summary("train", trained),
                **summary("test", tested),
                **{f"update/{name}": value for name, value in stats.means().items()},
                **clock.row(num_steps_per_epoch),
            }
            row: dict[str, float | None] = {name: told.get(name) for name in columns(algorithm.stat_names)}
            tested_return = row["test/return"]
            if tested_return is not None:
                loop.is_best = loop.best_return is None or tested_return > loop.best_return
                loop.best_return = tested_return if loop.is_best else loop.best_return
                loop.stopped = stop_return is not None and tested_return >= stop_return
            clock.latest(row)
            logger.epoch(row)
            for callback in callbacks:
                callback.on_epoch(run)
    pay()
    for callback in callbacks:
        callback.on_end(run)
    return loop


def summary(kind: str, results: Sequence[EpisodeResult]) -> dict[str, float | None]:
    """Mean return and length of episodes, and for tests the standard deviation of returns."""
    if not results:
        return {}
    returns = [result.episode_return for result in results]
    row: dict[str, float | None] = {
        f"{kind}/return": float(np.mean(returns)),
        f"{kind}/length": float(np.mean([r.length for r in results])),
    }
    if kind == "test":
        row["test/return_std"] = float(np.std(returns))
    return row


class Clock:
    """Time taken and time left."""

    def __init__(self, loop: Loop, num_steps: int, logger: Logger) -> None:
        self.loop, self.num_steps, self.logger = loop, num_steps, logger
        self.started = self.epoch_started = time.monotonic()
        self.seconds_before = loop.seconds
        self.reported = 0.0
        self.window: deque[tuple[float, int]] = deque(maxlen=int(30 / REPORT_INTERVAL))
        self.train_return: float | None = None
        self.test_return: float | None = None

    def report(self, phase: str, now: bool = False) -> None:
        """Tell the progress display, a few times a second at most."""
        time_now = time.monotonic()
        if time_now - self.reported < REPORT_INTERVAL and not now:
            return
        self.reported = time_now
        self.window.append((time_now, self.loop.step))
        seconds = max(time_now - self.window[0][0], 1e-3)
        rate = (self.loop.step - self.window[0][1]) / seconds
        left = (self.num_steps - self.loop.step) / rate if rate > 0 else float("inf")
        self.logger.progress(
            Progress(self.loop.step, self.num_steps, rate, left, self.train_return, self.test_return, phase)
        )

    def latest(self, row: Mapping[str, float | None]) -> None:
        """Remember the returns to show, and show them."""
        if row["train/return"] is not None:
            self.train_return = row["train/return"]
        self.test_return = row["test/return"]
        self.report("learning", now=True)

    def row(self, num_steps: int) -> dict[str, float]:
        """The time columns of an epoch of `num_steps`."""
        now = time.monotonic()
        self.loop.seconds = self.seconds_before + now - self.started
        seconds, self.epoch_started = now - self.epoch_started, now
        return {"time/hours": self.loop.seconds / 3600.0, "time/steps_per_second": num_steps / seconds}
