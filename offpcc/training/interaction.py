"""The loop that steps an agent in its environments and stores the transitions."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gin
import numpy as np
import torch

from offpcc.algorithms import ActorCritic
from offpcc.config.validation import PositiveInteger, check_arguments, rules_of
from offpcc.core import Algorithm, Memory, Step, Store
from offpcc.envs.check import LONGEST_EPISODE
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.vector.base import Environments, Observations, StepResult
from offpcc.networks.states import map_state
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator
from offpcc.utils.spaces import action_size, random_action


@gin.configurable("episodes", module="offpcc")  # type: ignore[untyped-decorator]
def episode_options(*, longest: PositiveInteger = LONGEST_EPISODE) -> int:
    """Return gin's limit for episodes without an end; see `refuse_endless`.

    Args:
        longest: environment steps after which an episode of a test, of a recording, or of an agent with memory counts
            as endless, and ends the command with a message. Raise it for a task whose episodes are longer.
    """
    check_arguments("episodes", rules_of(episode_options), {"longest": longest})
    return longest


class EpisodeResult(NamedTuple):
    """Return and length of an episode, and whether it was a success."""

    episode_return: float  # sum of rewards, undiscounted
    length: int  # environment steps
    success: float | None = None  # of a test, 1 or 0: ``is_success``, else ``success``, in the last step's ``info``


def success_rate(results: Sequence[EpisodeResult]) -> float | None:
    """Return the share of episodes that were a success; None if none of them tells it.

    Some environments tell only successes, so an episode that tells nothing beside others that do is none.
    """
    told = [result.success for result in results]
    return None if all(one is None for one in told) else sum(one or 0.0 for one in told) / len(told)


class Interaction:
    """N parallel environments, their unfinished episodes, and the agent's hidden states for these.

    The agent's noise is drawn for all environments at once. If a life is lost (`StepResult.life_lost`), the buffer of
    an agent without memory gets a termination, while the episode goes on.

    The buffer receives every transition, with the number of its environment; so do other objects in `stores`. The seed
    is that of random exploration. After `longest_episode` steps, an episode of an agent with memory counts as endless.
    """

    learns_of_lives = True  # whether the buffer gets terminations for lost lives

    def __init__(
        self,
        environments: Environments,
        algorithm: Algorithm,
        buffer: Store,
        seed: int = 0,
        longest_episode: int = LONGEST_EPISODE,
    ) -> None:
        self.environments, self.algorithm, self.stores = environments, algorithm, [buffer]
        self.longest_episode = longest_episode
        self.num_envs = num_envs = environments.num_envs
        # One generator per environment, so the end of one environment's episode does not affect the others.
        self.randomness = [NumpyGenerator(seed, 3, *([number] if number else [])) for number in range(num_envs)]
        self.finished: list[EpisodeResult] = []  # since the last `take_finished`
        self.over = np.ones(num_envs, np.bool_)  # True if the episode ended with the last step
        self.observations: Observations = [np.empty(0)] * num_envs
        self.actions: np.ndarray | None = None  # (N, A), the last actions; zeros at an episode's start
        self.rewards = np.zeros((num_envs, 1), np.float32)  # of the last actions
        self.returns, self.lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self.memory: Memory = None
        self.num_steps = 0  # sum over all environments
        self.num_dropped = 0  # episodes that were lost because their environment crashed

    def step(self, explore_at_random: bool) -> int:
        """Act once in every environment, and return the number of environment steps taken.

        After an error or Ctrl-C, the next call starts new episodes.
        """
        try:
            if self.over.any():
                self._start()
            actions = self._choose(explore_at_random)
            result = self.environments.step(actions)
        except (UserError, KeyboardInterrupt) as error:
            self.truncate()  # environments may have stepped, and the results of these steps are lost
            if isinstance(error, EnvironmentFault):
                raise error.with_run_step(self.num_steps) from error.cause
            raise
        for number in range(self.num_envs):
            if result.crashed[number]:
                self._drop(number, result.observations[number])
            else:
                self._take(number, actions[number], result)
        num_steps = int((~result.crashed).sum())
        self._count(num_steps)
        return num_steps

    def _count(self, num_steps: int) -> None:
        self.num_steps += num_steps
        if isinstance(self.algorithm, ActorCritic):
            self.algorithm.count_steps(num_steps)

    def _start(self) -> None:
        self.environments.start(self.over, self.observations)
        if self.actions is None:
            self.actions = np.zeros((self.num_envs, action_size(self.environments.action_space)), np.float32)
        self.actions[self.over], self.rewards[self.over] = 0.0, 0.0
        self.returns[self.over], self.lengths[self.over] = 0.0, 0
        self.over[:] = False

    def _choose(self, explore_at_random: bool) -> np.ndarray:
        if explore_at_random:
            random = np.zeros_like(self.actions)
            for number, randomness in enumerate(self.randomness):
                random[number] = random_action(self.environments.action_space, randomness.generator)
            if self.algorithm.memoryless:
                return random
        is_first = (self.lengths == 0).astype(np.float32)
        assert self.actions is not None
        seen = Step(np.stack(self.observations), self.actions.copy(), self.rewards.copy(), is_first)
        chosen, self.memory = self.algorithm.act(seen, self.memory)  # the memory needs every step, also random ones
        return random if explore_at_random else chosen

    def _take(self, number: int, action: np.ndarray, result: StepResult) -> None:
        """Record one environment's step."""
        observation, reward = result.observations[number], float(result.rewards[number])
        terminated, truncated = bool(result.terminated[number]), bool(result.truncated[number])
        before, is_first = self.observations[number], bool(self.lengths[number] == 0)
        is_lost = self.learns_of_lives and self.algorithm.memoryless and bool(result.life_lost[number])
        for store in self.stores:  # the first is the buffer; a recording tells what happened
            ends = terminated or (is_lost and store is self.stores[0])
            store.push(before, action, reward, observation, ends, truncated, env=number, is_first=is_first)
        assert self.actions is not None
        self.observations[number], self.actions[number], self.rewards[number] = observation, action, reward
        self.returns[number] += reward
        self.lengths[number] += 1
        self.over[number] = terminated or truncated
        if self.over[number]:
            self.finished.append(EpisodeResult(float(self.returns[number]), int(self.lengths[number])))
        elif not self.algorithm.memoryless:  # an agent with memory learns when an episode ends
            refuse_endless(lambda: self.environments.name, int(self.lengths[number]), self.longest_episode)

    def _drop(self, number: int, observation: np.ndarray) -> None:
        """Drop one environment's episode after a crash, and start from the observation of its new episode."""
        for store in self.stores:
            store.drop(number)
        assert self.actions is not None
        self.observations[number] = observation
        self.actions[number], self.rewards[number] = 0.0, 0.0
        self.returns[number], self.lengths[number] = 0.0, 0
        self.num_dropped += 1

    def close(self) -> None:
        """Close the environments."""
        self.environments.close()

    def take_finished(self) -> list[EpisodeResult]:
        """Return the episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to restore the unfinished episodes and the agent's hidden states."""
        return {
            "randomness": [generator.state_dict() for generator in self.randomness],
            "finished": [tuple(result) for result in self.finished],
            "notes": self.environments.snapshot(),
            # Stored separately: if an environment crashes after its episode ended, "notes" describes the new episode.
            "over": torch.from_numpy(self.over.copy()),
            "actions": None if self.actions is None else torch.from_numpy(self.actions.copy()),
            "rewards": torch.from_numpy(self.rewards.copy()),
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            "memory": map_state(torch.as_tensor, self.memory),
            "num_steps": self.num_steps,
            "num_dropped": self.num_dropped,
        }

    def truncate(self) -> None:
        """Truncate all unfinished episodes at their last transitions; the next step starts new episodes."""
        for number in np.flatnonzero(~self.over & (self.lengths > 0)).tolist():
            for store in self.stores:
                store.truncate(number)
        self.over[:] = True
        self.memory = None

    def _begin_anew(self) -> str:
        """Truncate the unfinished episodes instead of restoring them, and return a message about it."""
        unfinished = self.lengths[~self.over & (self.lengths > 0)].tolist()
        self.truncate()
        self.environments.reseed(self.num_steps)
        verb = "was" if self.environments.replay_on_resume else "is"
        steps = f" after {' and '.join(map(str, unfinished))} steps" if unfinished else ""
        return (
            f"this resume is not exact: environments.replay_on_resume {verb} False, so unfinished episodes are "
            f"truncated{steps}, and new ones begin"
        )

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Restore the unfinished episodes; return a message if this is not exact, else None."""
        for generator, saved in zip(self.randomness, state["randomness"], strict=True):
            generator.load_state_dict(saved)
        self.finished = [EpisodeResult(*result) for result in state["finished"]]
        self.num_steps, self.num_dropped = state["num_steps"], state["num_dropped"]
        if state["actions"] is None:  # no step was taken before the checkpoint
            return None
        self.over, self.actions, self.rewards = (state[name].numpy() for name in ("over", "actions", "rewards"))
        self.returns, self.lengths = np.array(state["returns"]), np.array(state["lengths"])
        has_actions = all(note is None or note.get("has_actions", True) for note in state["notes"])
        if not (self.environments.replay_on_resume and has_actions):
            return self._begin_anew()
        if None in state["notes"]:  # saved after such a resume, before an episode began
            self._begin_anew()
            return None
        recalled = self.environments.restore(state["notes"])
        self.observations, self.over = recalled.observations, recalled.over | self.over
        self.memory = state["memory"]
        if recalled.same:
            return None
        return (
            "this resume is not exact: the environment did not repeat its unfinished episode from the same seed "
            "and actions, so the run continues from the state of the repeated episode"
        )


def refuse_endless(name: Callable[[], str], length: int, longest: int) -> None:
    """Raise if an episode has not ended after `longest` steps; `name` returns the environment's name."""
    if length >= longest:
        raise UserError(
            f"an episode of {name()} has not ended after {length} steps, but tests and agents with memory need whole "
            f"episodes: give it an end, such as make.kwargs = {{'max_episode_steps': 1000}} or "
            f"gymnasium.wrappers.TimeLimit; if its episodes are that long, raise episodes.longest, such as "
            f'--gin "episodes.longest={10 * longest}"'
        )
