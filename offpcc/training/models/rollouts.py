"""Rollouts of an agent in a learned model, from recorded observations on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.core import Memory, Step
from offpcc.data.buffers.storage import Storage, TransitionTable
from offpcc.data.datasets.columns import Array
from offpcc.data.recording.episode_log import Ending, Episode
from offpcc.networks.noise import Noise
from offpcc.networks.states import map_state
from offpcc.training.models.training import Transitions, as_tensor
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.rng import seed_global_generators

ALEATORIC, EPISTEMIC, DEVIATION, DISAGREEMENT = "aleatoric", "epistemic", "deviation", "disagreement"
TERMINAL, TRUNCATED = "terminal", "truncated"
AT_ONCE = 256  # rollouts of `ImaginedEpisodes`
MOST_EMPTY = 20  # rounds of rollouts without a step, after which an error is raised
STREAM = 8  # separates these generators from others with the same seed


class Pessimism(NamedTuple):
    """What the uncertainty of a step does to a rollout; see `Imagination`."""

    uncertainty: str = EPISTEMIC
    penalty: float = 0.0
    threshold: float = math.inf
    ends: str = TERMINAL
    end_reward: float = 0.0
    mean_reward: bool = False  # whether the reward is the mean over elites

    @property
    def has_effect(self) -> bool:
        """True if a penalty or a threshold that float32 can reach is set."""
        return self.penalty != 0.0 or self.threshold < torch.finfo(torch.float32).max


class Starts(NamedTuple):
    """Where N rollouts begin."""

    indices: Array  # (N,), transitions at whose observations they start
    context_starts: Array  # (N,), rows from which on an agent with memory reads its recorded episode
    places: torch.Tensor | None = None  # (N,), place among the elites of each one's network; None: each step draws one


class Position(NamedTuple):
    """State of N rollouts, from which they go on."""

    observed: Array  # (N, k, O), the last k observations
    acted: Array  # (N, k, A), the actions before the last observation; the last place is free
    action: Array  # (N, A), the previous action
    reward: Array  # (N, 1), the previous reward
    is_first: Array  # (N,), 1 where nothing came before
    memory: Memory = None
    places: torch.Tensor | None = None  # (N,), as in `Starts`

    @property
    def arrays(self) -> list[Array]:
        """All but memory and places."""
        return [self.observed, self.acted, self.action, self.reward, self.is_first]

    def taken(self, chosen: Array) -> Position:
        """Return the state of some rollouts, by their indices."""
        observed, acted, action, reward, is_first = (part[chosen] for part in self.arrays)
        places = None if self.places is None else self.places[torch.from_numpy(chosen).to(self.places.device)]
        memory = map_state(lambda part: part[chosen], self.memory)
        return Position(observed, acted, action, reward, is_first, memory, places)

    def joined(self, other: Position) -> Position:
        """Return the state of these and of other rollouts, of an agent without memory."""
        pairs = zip(self.arrays, other.arrays, strict=True)
        observed, acted, action, reward, is_first = (np.concatenate(pair) for pair in pairs)
        places = None if self.places is None or other.places is None else torch.cat([self.places, other.places])
        return Position(observed, acted, action, reward, is_first, None, places)


class Rollouts(NamedTuple):
    """Rollouts in a model, each after recorded steps."""

    rows: TransitionTable  # of N rollouts that have imagined steps
    num_recorded: Array  # (N,), recorded steps of each


class Log:
    """Collects the steps of rollouts.

    Args:
        first: observations at which the rollouts start, (N, O).

    Attributes:
        lengths: steps of each rollout, (N,).
        alive: rollouts that have not ended, (M,) indices.
        steps: of each step, the rollouts whose step is stored, (M,) indices, and its number in each of them; then next
            observations, actions, rewards, terminations, and whether the next observation was moved back.
        num_stopped: number of rollouts that passed the threshold.
        uncertainty: sum over the stored steps; 0 without pessimism.
    """

    def __init__(self, first: Array) -> None:
        self.first, self.alive = first, np.arange(len(first))
        self.lengths = np.zeros(len(first), np.int64)
        self.steps: list[tuple[Array, ...]] = []
        self.num_stopped = 0
        self.uncertainty = 0.0

    @property
    def num_bounded(self) -> int:
        """Number of steps whose next observation was moved back into the range of the data."""
        return sum(int(bounded.sum()) for *_, bounded in self.steps)

    def rollouts(self, recorded: TransitionTable, context_starts: Array, rollout_starts: Array) -> Rollouts:
        """Return all rollouts that have steps, after the recorded steps from `context_starts` to `rollout_starts`."""
        has_steps = self.lengths > 0
        num_recorded = (rollout_starts - context_starts)[has_steps]
        sizes = num_recorded + self.lengths[has_steps] + 1
        starts = np.cumsum(sizes) - sizes
        rows = Storage.of(int(sizes.sum()), recorded.observations.shape[1:], recorded.observations.dtype,
                          recorded.actions.shape[1])  # fmt: skip
        rows.is_start[:] = True
        rows.is_start[starts + sizes - 1] = False
        offsets = np.arange(int(num_recorded.sum())) - np.repeat(np.cumsum(num_recorded) - num_recorded, num_recorded)
        source = np.repeat(context_starts[has_steps], num_recorded) + offsets
        target = np.repeat(starts, num_recorded) + offsets
        for column in ("observations", "actions", "rewards"):
            getattr(rows, column)[target] = getattr(recorded, column)[source]
        rows.observations[starts + num_recorded] = self.first[has_steps]
        first_rows = np.zeros(len(has_steps), np.int64)  # of each rollout's imagined steps
        first_rows[has_steps] = starts + num_recorded
        for indices, step, next_observations, actions, rewards, terminations, _ in self.steps:
            target = first_rows[indices] + step
            rows.actions[target], rows.rewards[target, 0], rows.terminations[target, 0] = actions, rewards, terminations
            rows.observations[target + 1] = next_observations
        return Rollouts(TransitionTable(**vars(rows), starts=starts, stops=starts + sizes), num_recorded)


def first_position(data: Transitions, actor: Any, starts: Starts) -> Position:
    """Return the state of rollouts at their starts. A memory is run over the recorded steps before them."""
    observed, acted, *_ = data[starts.indices]
    number = len(starts.indices)
    if actor.memoryless:
        action, reward = np.zeros((number, acted.shape[-1]), np.float32), np.zeros((number, 1), np.float32)
        return Position(observed, acted, action, reward, np.ones(number, np.float32), None, starts.places)
    rollout_starts = data.starts[starts.indices]
    memory, (action, reward), is_first = remember(actor, data.rows, rollout_starts, starts.context_starts)
    return Position(observed, acted, action, reward, is_first, memory, starts.places)


@torch.no_grad()
def play_rollouts(
    model: DynamicsModel,
    actor: Any,
    position: Position,
    length: int,
    generator: torch.Generator,
    pessimism: Pessimism,
    deterministic: bool = False,
) -> tuple[Log, Position]:
    """Play rollouts of at most `length` steps side by side; return their steps, and the state of those that go on.

    The actor is an `ActorCritic`, or another object with its `act` and `memoryless`. The generator draws the model's
    networks and noise.
    """
    log = Log(position.observed[:, -1].copy())
    for _ in range(length):
        observed, acted, action, reward, is_first, memory, places = position
        seen = Step(observed[:, -1], action, reward, is_first)
        chosen, memory = actor.act(seen, memory, deterministic=deterministic)
        chosen = np.clip(chosen, -1.0, 1.0)  # an algorithm of one's own may act outside
        acted = np.concatenate([acted[:, :-1], chosen[:, None]], 1)
        window = as_tensor(observed, model), as_tensor(acted, model)
        needs_all = pessimism.has_effect or pessimism.mean_reward
        found = model.imagine(*window, generator, places, with_uncertainty=needs_all)
        next_observations, ended = found.next_observations.cpu().numpy(), found.terminations.cpu().numpy()
        rewards = (found.mean_rewards if pessimism.mean_reward else found.rewards).cpu().numpy()
        stopped = np.zeros(len(chosen), bool)
        if pessimism.has_effect:
            unsure = getattr(found.uncertainty, pessimism.uncertainty).cpu().numpy()
            stopped = unsure > pessimism.threshold
            rewards = np.where(stopped, pessimism.end_reward, rewards - pessimism.penalty * unsure).astype(np.float32)
        is_stored = ~stopped if pessimism.ends == TRUNCATED else np.ones(len(chosen), bool)
        stored, bounded = log.alive[is_stored], found.bounded.cpu().numpy()
        arrays = next_observations, chosen, rewards, ended | stopped, bounded
        log.steps.append((stored, log.lengths[stored], *(array[is_stored] for array in arrays)))
        log.lengths[stored] += 1
        log.num_stopped += int(stopped.sum())
        log.uncertainty += float(unsure[is_stored].sum()) if pessimism.has_effect else 0.0
        goes_on = np.flatnonzero(~(ended | stopped))
        log.alive = log.alive[goes_on]
        observed = np.concatenate([observed[:, 1:], next_observations[:, None]], 1)
        acted = np.concatenate([acted[:, 1:], acted[:, -1:]], 1)
        is_first = np.zeros(len(chosen), np.float32)
        position = Position(observed, acted, chosen, rewards[:, None], is_first, memory, places).taken(goes_on)
        if not len(log.alive):
            break
    return log, position


def remember(
    actor: Any, rows: TransitionTable, rollout_starts: Array, context_starts: Array
) -> tuple[Memory, tuple[Array, Array], Array]:
    """Run an agent's memory over the recorded steps before its rollouts.

    Args:
        actor: the agent.
        rows: the recorded data.
        rollout_starts: rows of the observations at which the rollouts start, (N,); the memory does not read these.
        context_starts: rows from which on the memory reads, (N,).

    Returns:
        The memory, the action and the reward before the observations at `rollout_starts`, and whether these begin an
        episode.
    """

    def before(places: Array, is_first: Array) -> tuple[Array, Array]:
        actions, rewards = (column[places - 1] for column in (rows.actions, rows.rewards))
        zero = np.float32(0.0)
        return np.where(is_first[:, None], zero, actions), np.where(is_first[:, None], zero, rewards)

    memory = None
    longest = int((rollout_starts - context_starts).max())
    for step in range(longest):
        places = np.maximum(rollout_starts - longest + step, context_starts)
        is_start = places == context_starts  # also of an episode that has not begun
        seen = Step(rows.observations[places], *before(places, is_start), is_start.astype(np.float32))
        _, memory = actor.act(seen, memory, deterministic=True)
    is_first = rollout_starts == context_starts
    return memory, before(rollout_starts, is_first), is_first.astype(np.float32)


class RandomActor:
    """Draws actions (N, `num`) uniformly from [-1, 1]."""

    memoryless = True

    def __init__(self, num: int, draw: np.random.Generator) -> None:
        self.num, self.draw = num, draw

    def act(self, step: Step, memory: Memory = None, *, deterministic: bool = False) -> tuple[Array, Memory]:
        """Return the actions; see `Algorithm.act`."""
        return self.draw.uniform(-1.0, 1.0, (len(step.observation), self.num)).astype(np.float32), None


class ImaginedEpisodes:
    """Rollouts of an actor in a model, which start at observations that are drawn from recorded data.

    A rollout ends where the model predicts a termination. It is cut after `length` steps, or before the first step at
    which the elites disagree more than anywhere in the model's own data. An agent with memory first reads its
    recorded episode up to the start of the rollout. `rows` are seen and scaled as the model's data. Without an actor,
    actions are random; if `deterministic`, the actor acts with the mode of its policy.
    The seed is that of the starts, the model's noise and the agent's noise.

    Attributes:
        num_bounded: number of yielded steps whose next observation was moved back into the range of the data.
        num_left_out: number of rollouts that were cut before their first step.
    """

    def __init__(
        self,
        model: DynamicsModel,
        rows: TransitionTable,
        actor: ActorCritic | None,
        length: int,
        seed: int,
        deterministic: bool = False,
    ) -> None:
        self.model, self.data = model, Transitions(rows, model.history)
        self.length, self.deterministic = length, deterministic
        rounding = 1.0 + 1e-5  # of other batch sizes
        self.pessimism = Pessimism(ends=TRUNCATED, threshold=model.facts["uncertainty"][EPISTEMIC]["1"] * rounding)
        drawn = np.random.SeedSequence((seed, STREAM)).generate_state(4) >> 1
        self.draw = np.random.default_rng(drawn[0])
        self.generator = torch.Generator(model.device).manual_seed(int(drawn[1]))
        self.actor: Any = RandomActor(model.action_dim, self.draw) if actor is None else actor
        if actor is not None:
            actor.noise = Noise(int(drawn[2]), actor.device)
        seed_global_generators(int(drawn[3]))
        self.num_bounded = self.num_left_out = 0

    def episodes(self, total: int) -> Iterator[Episode]:
        """Yield episodes with `total` steps together; the end of the last may be cut. Actions are in [-1, 1]."""
        left, num_empty = total, 0
        while left:
            num_empty += 1
            for episode, bounded in self.rollouts(AT_ONCE):
                if episode is None:
                    self.num_left_out += 1
                    continue
                num_empty = 0
                if len(episode.rewards) > left:
                    parts = episode.observations[: left + 1], episode.actions[:left], episode.rewards[:left]
                    episode = Episode(*parts, Ending.UNFINISHED)
                left -= len(episode.rewards)
                self.num_bounded += int(bounded[: len(episode.rewards)].sum())
                yield episode
                if not left:
                    return
            if num_empty == MOST_EMPTY:
                raise UserError(
                    f"from each of {MOST_EMPTY * AT_ONCE:,} recorded observations, the first action of the actor leads "
                    f"to more uncertainty than anything in the model's data; give an actor that is closer to the data, "
                    f"or train the model on more data"
                )

    def rollouts(self, num: int) -> list[tuple[Episode | None, Array]]:
        """Play `num` rollouts side by side; return each, or None if it was cut before its first step.

        With each comes, for all its steps, whether their next observation was moved back into the range of the data.
        """
        signals.poll()
        indices = self.draw.integers(len(self.data), size=num)
        rows, rollout_starts = self.data.rows, self.data.starts[indices]
        starts = Starts(indices, self.data.first[rollout_starts])
        position = first_position(self.data, self.actor, starts)
        given = self.length, self.generator, self.pessimism, self.deterministic
        log, _ = play_rollouts(self.model, self.actor, position, *given)
        bounded = np.zeros((num, int(log.lengths.max())), bool)
        for at, step, *_, is_bounded in log.steps:
            bounded[at, step] = is_bounded
        table = log.rollouts(rows, rollout_starts, rollout_starts).rows
        places = iter(zip(table.starts, table.stops, strict=True))
        played: list[tuple[Episode | None, Array]] = []
        for length, one in zip(log.lengths, bounded, strict=True):
            if not length:
                played.append((None, one))
                continue
            start, stop = next(places)
            is_end = table.terminations[stop - 2, 0]
            parts = table.observations[start:stop], table.actions[start : stop - 1], table.rewards[start : stop - 1, 0]
            played.append((Episode(*parts, Ending.TERMINATED if is_end else Ending.TRUNCATED), one))
        return played
