"""`ValueBased`: the base class of algorithms for discrete actions that act by their Q network."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.algorithms.base import ActorCritic
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, Fraction, NonnegativeInteger, NonnegativeNumber
from offpcc.core import Batch, Memory, Stats, Step, Summaries
from offpcc.networks.actors import ValueActor
from offpcc.networks.critics import DiscreteCritics, of_actions

# Added to the score of an action, it decides alone: it is far above all Q values, and above all that a subclass adds.
FAR = 1e20


class EpsilonGreedy:
    """The share of random actions, which falls linearly with the environment steps.

    Args:
        initial: share at the first step.
        final: share after `num_steps` steps.
        num_steps: number of steps.

    Attributes:
        is_offline: whether the agent learns from recorded data, and takes no steps. The share is `final` then, because
            it is that of an agent that has learned.
    """

    def __init__(self, initial: float, final: float, num_steps: int) -> None:
        self.initial, self.final, self.num_steps, self.taken, self.is_offline = initial, final, num_steps, 0, False

    def __call__(self) -> float:
        """Return the share now."""
        if self.is_offline:
            return self.final
        done = min(self.taken / self.num_steps, 1.0) if self.num_steps else 1.0
        return self.initial + (self.final - self.initial) * done

    def state_dict(self) -> dict[str, int]:
        """Return the number of steps taken."""
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from `state`."""
        self.taken = state["taken"]


@configurable
class ValueBased(ActorCritic):
    """Base class of algorithms for discrete actions that act by their Q network, greedily or epsilon-greedily.

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        dueling: whether Q is the sum of a state's value and the advantages of actions (Wang et al. 2016,
            arXiv:1511.06581).
        initial_epsilon: share of random actions at the first environment step; default: 1, or `final_epsilon` for
            algorithms that learn from recorded data.
        final_epsilon: share of random actions after `epsilon_steps`; in between, the share falls linearly.
        epsilon_steps: number of environment steps until the share is `final_epsilon`.
        epsilon_ladder: alpha of a ladder over N environments side by side: environment i takes the share epsilon to the
            power of 1 + alpha i / (N - 1) (Horgan et al. 2018, arXiv:1803.00933); R2D2 has 7. With 0 all are the same.
        test_epsilon: share of random actions in tests and in `act(..., deterministic=True)`. All tests draw the same
            ones, if the same number of environments plays; with one environment, so do all episodes of a test.
        kwargs: see `ActorCritic`.
    """

    is_discrete = True
    target_reads_now = False
    acts_by_values = acts_by_critics = True
    parts_of_actor = ("critics", "critic_encoders")
    default_num_critics = 1
    stat_names: tuple[str, ...] = ("critic_loss", "q", "epsilon")
    actor: ValueActor
    critics: DiscreteCritics
    target_critics: DiscreteCritics

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        dueling: Flag = False,
        initial_epsilon: Fraction | None = None,
        final_epsilon: Fraction = 0.05,
        epsilon_steps: NonnegativeInteger = 10_000,
        epsilon_ladder: NonnegativeNumber = 0.0,
        test_epsilon: Fraction = 0.0,
        **kwargs: Any,
    ) -> None:
        self.dueling = dueling  # `build_critics` reads it
        super().__init__(observation_space, action_space, **kwargs)
        self._has_initial_epsilon = initial_epsilon is not None
        if initial_epsilon is None:
            initial_epsilon = final_epsilon if self.is_offline else 1.0
        self.epsilon = EpsilonGreedy(initial_epsilon, final_epsilon, epsilon_steps)
        self.epsilon_ladder, self.test_epsilon = epsilon_ladder, test_epsilon
        self._test_draws = np.random.default_rng(0)

    def explore_as_trained(self) -> None:
        """Explore with `final_epsilon` from the first step on, unless `initial_epsilon` is given."""
        if not self._has_initial_epsilon:
            self.epsilon.initial = self.epsilon.final

    def build_critics(self, num: int, summary_dim: int, hidden_dims: Any) -> nn.Module:
        """Return the Q network."""
        return DiscreteCritics(num, summary_dim, self.action_dim, hidden_dims, dueling=self.dueling)

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> nn.Module:
        """Return the actor, which has the Q network's weights."""
        return ValueActor(self.critics)

    def unused_parameters(self) -> dict[str, str]:
        """See `ActorCritic`."""
        idle = ("initial_epsilon",) if self.epsilon.num_steps == 0 else ()
        return super().unused_parameters() | dict.fromkeys(idle, "epsilon_steps is 0")

    def epsilons(self, num_envs: int) -> np.ndarray:
        """Return the share of random actions in each of N environments, (N,)."""
        return np.power(self.epsilon(), 1.0 + self.epsilon_ladder * np.linspace(0.0, 1.0, num_envs))

    def exploration_noise(self, num_envs: int) -> np.ndarray:
        """Return zeros for greedy actions, and numbers that decide alone for random ones, (N, A)."""
        return self._random_choices(self.noise.acting.generator, self.epsilons(num_envs))

    def count_steps(self, num_steps: int) -> None:
        """Lower the share of random actions."""
        self.epsilon.taken += num_steps

    def fix_epsilon(self, epsilon: float) -> None:
        """Let this share of actions be random, always and in each environment."""
        self.epsilon, self.epsilon_ladder = EpsilonGreedy(epsilon, epsilon, 0), 0.0

    def act(self, step: Step, memory: Memory = None, *, deterministic: bool = False) -> tuple[np.ndarray, Memory]:
        """See `Algorithm.act`."""
        if deterministic and self.test_epsilon and np.all(step.is_first):
            self._test_draws = np.random.default_rng(0)  # so that all tests draw the same
        return super().act(step, memory, deterministic=deterministic)

    def acting_noise(self, num_envs: int, deterministic: bool) -> np.ndarray | None:
        """See `Acting`; tests have random actions, too, if `test_epsilon` is above 0."""
        if deterministic and self.test_epsilon:
            return self._random_choices(self._test_draws, np.full(num_envs, self.test_epsilon))
        return super().acting_noise(num_envs, deterministic)

    def _random_choices(self, draw: np.random.Generator, epsilons: np.ndarray) -> np.ndarray:
        is_random = draw.random(len(epsilons)) < epsilons
        chosen = FAR * draw.random((len(epsilons), self.action_dim))
        return np.where(is_random[:, None], chosen, 0.0).astype(np.float32)

    def inner_update(self, batch: Batch) -> Stats:
        """Make one step of the Q network and of its target."""
        batch = self.prepare(batch)
        h = self.summarize(batch)  # from here on, everything is feed-forward
        stats = self.update_critics(h, batch)
        self.update_targets()
        return stats

    def host_stats(self) -> Stats:
        """Return the share of random actions."""
        share = torch.full((), self.epsilon(), device=self.device)
        return {"epsilon": share} if "epsilon" in self.stat_names else {}

    def actor_file(self) -> dict[str, Any]:
        """Return the content of an actor file; an actor explores with the share of random actions of this moment."""
        content = super().actor_file()
        content["algorithm"]["arguments"] |= {"final_epsilon": self.epsilon(), "epsilon_steps": 0}
        return content

    def next_action(self, h: Summaries) -> Tensor:
        """Return a' (B, T, A), one-hot: the greedy action at the next observation."""
        return self.actor.choose(h.next_pi, None)


def chosen_values(critics: DiscreteCritics, h: Summaries, batch: Batch) -> Tensor:
    """Return Q(o, a) of the recorded actions, (N, B, T, 1)."""
    return of_actions(critics(h.q), batch.actions)


@contextmanager
def without_random_actions(actor: ActorCritic | None, wanted: bool = True) -> Iterator[None]:
    """Let `ValueBased.test_epsilon` be 0 for a while; for other actors, or if it is not wanted, do nothing."""
    if not wanted or not isinstance(actor, ValueBased):
        yield
        return
    own, actor.test_epsilon = actor.test_epsilon, 0.0
    try:
        yield
    finally:
        actor.test_epsilon = own
