"""Episodes that an actor plays in a learned model, from recorded observations on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.core import Memory, Step
from offpcc.data.buffers.storage import TransitionTable
from offpcc.data.datasets.columns import Array
from offpcc.data.recording.episode_log import Ending, Episode
from offpcc.networks.noise import Noise
from offpcc.training.dynamics import Transitions, as_tensor
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.rng import seed_global_generators

AT_ONCE = 256  # rollouts
MOST_EMPTY = 20  # times `AT_ONCE` rollouts without a step, after which the model is too uncertain for the actor
STREAM = 8  # separates these generators from others with the same seed


class ImaginedEpisodes:
    """Rollouts of an actor in a model, which start at observations that are drawn from recorded data.

    A rollout ends where the model predicts a termination. It is cut after `length` steps, or before the first step at
    which the networks disagree more than anywhere in the model's own data. An agent with memory first reads its
    recorded episode up to the start of the rollout.

    Args:
        model: the model.
        rows: the data, seen and scaled as those of the model.
        actor: the agent that acts; None for random actions.
        length: largest number of steps of a rollout.
        seed: seed of the starts, of the model's noise and of the agent's noise.
        deterministic: True to act with the mode of the policy.

    Attributes:
        num_unsure: number of rollouts that were cut because the networks disagreed.
        num_ended: number of rollouts that terminated.
        num_bounded: number of steps whose next observation was moved back into the range of the data.
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
        self.model, self.data, self.actor = model, Transitions(rows, model.history), actor
        self.length, self.deterministic = length, deterministic
        self.most_unsure = model.facts["uncertainty"]["epistemic"]["1"] * (1.0 + 1e-5)  # rounding of other batch sizes
        drawn = np.random.SeedSequence((seed, STREAM)).generate_state(4) >> 1
        self.draw = np.random.default_rng(drawn[0])
        self.generator = torch.Generator(model.device).manual_seed(int(drawn[1]))
        if actor is not None:
            actor.noise = Noise(int(drawn[2]), actor.device)
        seed_global_generators(int(drawn[3]))
        self.num_unsure = self.num_ended = self.num_bounded = 0

    def episodes(self, total: int) -> Iterator[Episode]:
        """Yield episodes with `total` steps together; the end of the last may be cut. Actions are in [-1, 1].

        Raises:
            UserError: the model is too uncertain for this actor from nearly all starts.
        """
        left, num_empty = total, 0
        while left:
            num_before = left
            for episode in self.rollouts(AT_ONCE):
                if not (num_steps := len(episode.rewards)):
                    continue
                if num_steps > left:
                    parts = episode.observations[: left + 1], episode.actions[:left], episode.rewards[:left]
                    episode = Episode(*parts, Ending.UNFINISHED)
                left -= len(episode.rewards)
                yield episode
                if not left:
                    return
            num_empty = num_empty + 1 if left == num_before else 0
            if num_empty == MOST_EMPTY:
                raise UserError(
                    f"from each of {MOST_EMPTY * AT_ONCE:,} recorded observations, the first action of the actor leads "
                    f"to more uncertainty than anything in the model's data; give an actor that is closer to the data, "
                    f"or train the model on more data"
                )

    def rollouts(self, num: int) -> list[Episode]:
        """Play rollouts side by side; one that is cut before its first step has no steps."""
        starts = self.draw.integers(len(self.data), size=num)
        observations, actions, *_ = self.data[starts]  # of the model's history; the last action is replaced
        step, memory = self.remember(self.data.starts[starts])
        window, acted = as_tensor(observations, self.model), as_tensor(actions, self.model)
        is_alive, lengths = np.ones(num, np.bool_), np.zeros(num, np.int64)
        ended = np.zeros(num, np.bool_)
        seen, done, received = [step.observation], [], []
        for _ in range(self.length):
            signals.poll()
            if self.actor is None:
                action = self.draw.uniform(-1.0, 1.0, (num, self.model.action_dim)).astype(np.float32)
            else:
                action, memory = self.actor.act(step, memory, deterministic=self.deterministic)
                action = np.clip(action, -1.0, 1.0)
            acted[:, -1] = as_tensor(action, self.model)
            imagined = self.model.imagine(window, acted, self.generator)
            is_unsure = is_alive & (imagined.uncertainty.epistemic.cpu().numpy() > self.most_unsure)
            is_alive &= ~is_unsure
            terminated = is_alive & imagined.terminations.cpu().numpy()
            self.num_unsure += int(is_unsure.sum())
            self.num_ended += int(terminated.sum())
            self.num_bounded += int((is_alive & imagined.bounded.cpu().numpy()).sum())
            lengths += is_alive
            ended |= terminated
            is_alive &= ~terminated
            following, rewards = imagined.next_observations, imagined.rewards.cpu().numpy()
            seen.append(following.cpu().numpy())
            done.append(action)
            received.append(rewards)
            if not is_alive.any():
                break
            window = torch.cat([window[:, 1:], following[:, None]], 1)
            acted = torch.cat([acted[:, 1:], acted[:, -1:]], 1)
            step = Step(seen[-1], action, rewards[:, None], np.zeros(num, np.bool_))
        parts = zip(*(np.stack(rows, 1) for rows in (seen, done, received)), lengths, ended, strict=True)
        return [
            Episode(o[: size + 1], a[:size], r[:size], Ending.TERMINATED if over else Ending.TRUNCATED)
            for o, a, r, size, over in parts
        ]

    def remember(self, at: Array) -> tuple[Step, Memory]:
        """Let an agent with memory read the recorded episodes of rows (N,); return its input there, and its memory."""
        rows, memory = self.data.rows, None
        first = rows.starts[np.searchsorted(rows.starts, at, side="right") - 1]
        most = 0 if self.actor is None or self.actor.memoryless else int((at - first).max())
        for back in range(most, -1, -1):
            signals.poll()
            here = np.maximum(at - back, first)
            is_first = here == first  # also of an episode that has not begun
            before = np.where(is_first, first, here - 1)
            action, reward = (
                np.where(is_first[:, None], np.float32(0.0), x[before]) for x in (rows.actions, rows.rewards)
            )
            step = Step(rows.observations[here], action, reward, is_first)
            if back:
                assert self.actor is not None
                memory = self.actor.act(step, memory, deterministic=True)[1]
        return step, memory
