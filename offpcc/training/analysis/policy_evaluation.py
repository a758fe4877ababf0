"""Values from data: the value of policies by fitted Q evaluation, and what a learner's own critics say.

The evaluated policy is the mode of an actor. Of discrete actions, it is the one with the largest probability or Q
value; the critics read it as a one-hot vector. Random actions of tests (`ValueBased.test_epsilon`) are left out.

The memory of the policy reads the recorded history, with the recorded previous actions and rewards, from the start of
each episode. Otherwise it would remember actions that led to other observations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.discrete import without_random_actions
from offpcc.algorithms.fqe import FQE
from offpcc.config import loading
from offpcc.config.bindings import explains_calls
from offpcc.config.registry import from_specification
from offpcc.config.validation import Flag, format_value
from offpcc.core import Memory, PackedDict, Step, channels_first, has_images
from offpcc.data import Dataset, RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.storage import TransitionTable
from offpcc.data.datasets.columns import Array
from offpcc.data.offline import DatasetOptions, OfflineDataset, load_unchanged
from offpcc.networks.encoders import rebuilds
from offpcc.networks.noise import Noise
from offpcc.training.analysis.run_statistics import mean_interval
from offpcc.training.build import build_buffer, explain_failure, read_data
from offpcc.training.evaluation import compare_observations
from offpcc.training.experiment import Experiment
from offpcc.utils import signals
from offpcc.utils.errors import UserError, for_python
from offpcc.utils.words import counted

SLACK = 0.02  # of the range of possible values, which an estimate may be beyond it by rounding
SIDE_BY_SIDE = 256  # episodes that the actor reads at a time, and steps that critics without memory do
EPISODES_AT_ONCE = 16  # that critics with memory read; of images one
SMALLEST_SPREAD = 1e-6  # of rewards, relative to the largest; below it, they are taken as equal
WEIGHT_DECAY = 1e-5  # of AdamW, as in google-research's policy_eval
REFUSED = {  # arguments of critics that have no effect on FQE, or a wrong one, and why
    **dict.fromkeys(("gamma", "seed"), "which is an argument of evaluate_from_data itself"),
    **dict.fromkeys(("device", "reward_range", "has_terminations"), "which the agent and the data give"),
    **dict.fromkeys(("actor_lr", "actor_layer_norm", "actor_dropout", "actor_q"), "but no actor is trained"),
    "target_subset": "but a target is the mean of all critics",
    "clip_rewards": "but the value is a sum of rewards, not of their signs",
    "n_step": "but later recorded actions are not those of the policy",
    "reward_shift": "but a shift changes the value of an episode that terminates",
}


@dataclass(frozen=True)
class ValueEstimate:
    """The value of a policy, estimated from data by `offpcc.evaluate_from_data`.

    The value is the mean discounted return from the first observations of the data's episodes. It counts the rewards
    after a time limit, too, because only a termination ends a task.

    Attributes:
        initial_values: (E,), the estimate for the first observation of each episode.
        gamma: the discount per step.
        num_updates: the number of updates of the critics.
        bounds: the least and the largest value that the recorded rewards can give. A value beyond them shows that the
            critics have not converged.
        memoryless: whether the critics have no memory, as the agent.
        interval: the 95% bootstrap interval of `value` over initial states; NaN for one episode. It does not show the
            error of the critics.
    """

    initial_values: np.ndarray = field(repr=False)
    gamma: float
    num_updates: int
    bounds: tuple[float, float] = (-math.inf, math.inf)
    memoryless: bool = True

    @property
    def value(self) -> float:
        """The mean of `initial_values`."""
        return float(self.initial_values.mean())

    @functools.cached_property
    def interval(self) -> tuple[float, float]:
        """See the class."""
        return mean_interval(self.initial_values)

    @property
    def is_possible(self) -> bool:
        """True if the rewards of the data can give this value, up to rounding."""
        least, most = self.bounds
        slack = SLACK * max(most - least, abs(least), abs(most)) if math.isfinite(most - least) else 0.0
        return least - slack <= self.value <= most + slack

    def note(self, whose: str = "the agent") -> str:
        """Return what is wrong if the rewards of the data cannot give this value, which is that of `whose`; else ""."""
        if self.is_possible:
            return ""
        low, high = self.bounds
        return (
            f"the recorded rewards give values from {low:,.4g} to {high:,.4g}, so the value of {whose} is wrong: the "
            f"critics need more updates than {self.num_updates:,}, or other settings"
        )

    def __str__(self) -> str:
        low, high = self.interval
        least, most = self.bounds
        text = f"value {self.value:.2f} [{low:.2f}, {high:.2f}] from {len(self.initial_values):,} initial states"
        if self.is_possible:
            return text
        return f"{text}; the rewards give {least:.4g} to {most:.4g}, so the critics have not converged"


def estimate_value(
    actor: ActorCritic,
    data: OfflineDataset,
    *,
    num_updates: int,
    gamma: float,
    seed: int,
    algorithm: Mapping[str, Any],
    buffer: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> ValueEstimate:
    """Estimate the value of an actor from data as it sees them; see `offpcc.evaluate_from_data` for the arguments.

    The actor's noise generator is the same afterwards.

    Raises:
        NonFiniteError: an update met NaN or infinity.
    """
    for name in algorithm:
        if name in REFUSED:
            raise UserError(f"evaluate_from_data.algorithm has {name!r}, {REFUSED[name]}; leave it out")
    rows, space = data.rows, data.observation_space
    check_actor_fits_data(actor, data)
    of_policy = policy_actions(actor, rows, seed)
    rewards = rows.rewards[rows.is_start].astype(np.float64)
    spread = float(rewards.std())
    spread = spread if spread > SMALLEST_SPREAD * float(np.abs(rewards).max()) else 1.0
    encoders = {"encoder": actor.actor_encoder, "shared_encoder": actor.shared_encoder}
    options = {
        **{name: from_specification(rebuilds(encoder)) for name, encoder in encoders.items()},
        "reward_scale": 1.0 / spread,
        "weight_decay": WEIGHT_DECAY,
        **algorithm,
        **{"gamma": gamma, "seed": seed, "device": actor.device},
    }
    both = spaces.Box(-1.0, 1.0, (2 * actor.action_dim,))
    with loading.same_bindings():
        loading.load_gin_config(None, [])  # bindings are those of the agent's training, such as a schedule of its rate
        with explain_failure("FQE", "hidden_dims"):
            learner = FQE(
                space,
                spaces.Box(-1.0, 1.0, (actor.action_dim,)),
                reward_range=(float(rewards.min()), float(rewards.max())),
                has_terminations=bool(rows.terminations.any()),
                **options,
            )
        store = build_buffer(learner, space, both, {"device": actor.device, "seed": seed, **buffer})
    pairs = [(learner.shared_encoder, actor.shared_encoder), (learner.target_shared_encoder, actor.shared_encoder)]
    pairs += [(one, actor.actor_encoder) for one in (*learner.critic_encoders, *learner.target_critic_encoders)]
    for part, of_actor in pairs if algorithm.keys().isdisjoint(encoders) else ():
        if not all(weight.requires_grad for weight in of_actor.parameters()):  # new ones would stay random
            part.load_state_dict(of_actor.state_dict())
    learner.expect_recorded_data()
    if learner.normalization is not None:
        learner.normalization.set_statistics(*data.statistics())
    store.fill(with_next_actions(rows, of_policy), data.identity)
    for number in range(num_updates):
        signals.poll()
        learner.update_networks(store.sample())
        if progress is not None:
            progress(number + 1, num_updates)
    learner.nonfinite_guard.synchronize(learner)
    values = []
    for starts in np.split(rows.starts, range(SIDE_BY_SIDE, len(rows.starts), SIDE_BY_SIDE)):
        first = np.ascontiguousarray(channels_first(rows.observations[starts], space.shape))
        given = (torch.from_numpy(array).to(actor.device) for array in (first, of_policy[starts]))
        values.append(learner.initial_values(*given).cpu().numpy())
    bounds = bounds_of_values(rewards, gamma, bool(rows.terminations.any()))
    return ValueEstimate(np.concatenate(values).astype(np.float64), gamma, num_updates, bounds, actor.memoryless)


def bounds_of_values(rewards: Array, gamma: float, has_terminations: bool) -> tuple[float, float]:
    """Return the least and the largest discounted return that these rewards can give.

    Episodes that terminate may have any length. Others go on for ever, as a time limit is no end of the task.
    """
    low, high = (float(bound) / (1.0 - gamma) for bound in (rewards.min(), rewards.max()))
    return (min(low, 0.0), max(high, 0.0)) if has_terminations else (low, high)


@explains_calls
def q_values(learner: Experiment, dataset: str | Path | Dataset | None = None, *, of_policy: Flag = False) -> Array:
    """Return the Q values of a learner's critics at recorded steps.

    A critic with memory reads the recorded history from the start of each episode. The values are in the units of the
    learner's targets: those of rewards after ``dataset.return_range``, `clip_rewards`, `reward_scale` and
    `reward_shift`.

    Args:
        learner: the learner, trained or not; it does not change.
        dataset: the data, which the learner's environment shows as its agent sees them; None for the data that it
            learned from.
        of_policy: whether to value the action of the policy's mode at each step, in place of the recorded one.

    Returns:
        The values of N critics at R steps, (N, R), float32, in the order of the data. A step without a known next
        observation, such as the last one of an episode that was cut, is left out, as in learning.

    Raises:
        UserError: the algorithm has no critics, there are no data, or they do not fit the learner.
    """
    if not isinstance(learner, Experiment):
        got = format_value(learner)
        raise UserError(
            f"q_values got {got}; give a learner, such as that of offpcc.build, or of offpcc.load(FOLDER) for a run: "
            f"an agent holds no critics"
        )
    algorithm, spec, data = learner.algorithm, learner.spec, learner.recording
    if not algorithm.has_critics:
        name, other = type(algorithm).__name__, "dcql" if algorithm.is_discrete else "iql"
        raise UserError(f"q_values: {name} has no critics; choose another algorithm, such as {other}")
    if dataset is not None:
        if spec is None:
            raise UserError("q_values reads other data for a learner of offpcc.build alone; leave the dataset out")
        with for_python():
            dataset, options = as_actor_sees(dataset, spec.dataset_options, algorithm, has_env=spec.env is not None)
            spec = replace(spec, dataset=dataset, dataset_fraction=1.0, dataset_steps=None, dataset_options=options)
            data = read_data(spec)
    if data is None:
        raise UserError("q_values: the learner has no recorded data; give a dataset, such as that of offpcc.collect")
    check_actor_fits_data(algorithm, data, reads_episodes=not algorithm.memoryless)
    rows, spaces_of = data.rows, (data.observation_space, algorithm.action_space)
    chosen = policy_actions(algorithm, rows) if of_policy else None
    places, found, num_done = np.flatnonzero(rows.is_start), list[Array](), 0
    given: dict[str, Any] = {"device": algorithm.device, "frame_stack": 1, "on_device": False}
    if algorithm.memoryless:
        buffer: Any = ReplayBuffer(*spaces_of, num_steps=1, **given)
        items, at_once = places, SIDE_BY_SIDE
    else:
        buffer = RecurrentReplayBuffer(*spaces_of, segment_len=None, burn_in=0, **given)
        items, at_once = np.arange(len(rows.starts)), 1 if has_images(algorithm.observation_shape) else EPISODES_AT_ONCE
    buffer.fill(rows, data.identity)
    for part in np.split(items, range(at_once, len(items), at_once)):
        signals.poll()
        with torch.no_grad():
            batch = algorithm.prepare(buffer.batch(part), learns=False)
            counts, actions = batch.loss_mask[..., 0] > 0, batch.actions
            if chosen is not None:
                number = int(counts.sum())
                actions = torch.zeros_like(actions)
                actions[counts] = torch.from_numpy(chosen[places[num_done : num_done + number]]).to(actions)
                num_done += number
            q = algorithm.action_values(algorithm.summarize(batch), actions)[..., 0]
        found.append(q[:, counts].float().cpu().numpy())
    return np.concatenate(found, 1)


def as_actor_sees(
    dataset: str | Path | Dataset,
    options: DatasetOptions,
    actor: ActorCritic,
    *,
    has_env: bool,
    memory_limit: int | None = None,
) -> tuple[str | Path | Dataset, DatasetOptions]:
    """Return a dataset and its options for values of all its steps; without an environment, the actor has the bounds.

    Data that have a range of actions of their own keep it.
    """
    options, bounds = replace(options, return_range=None, best_fraction=1.0), actor.action_space
    if has_env:
        return dataset, options
    if isinstance(bounds, spaces.Discrete):
        dataset = load_unchanged(dataset, options, memory_limit=memory_limit)
        if dataset.discrete_actions and dataset.action_range is None:
            first, last = int(bounds.start), int(bounds.start + bounds.n) - 1
            dataset = replace(dataset, action_range=(np.array([first]), np.array([last])))
    elif options.action_range is None and bounds.is_bounded():
        options = replace(options, action_range=(bounds.low.reshape(-1), bounds.high.reshape(-1)))
    return dataset, options


def check_actor_fits_data(actor: ActorCritic, data: OfflineDataset, reads_episodes: bool = True) -> None:
    """Raise if an actor cannot be evaluated on data; if not `reads_episodes`, they need not show where one begins."""
    if actor.is_discrete != (data.discrete is not None):
        kinds = "whole numbers, which are choices", "vectors of numbers"
        has, takes = reversed(kinds) if actor.is_discrete else kinds
        raise UserError(
            f"the actions of {data.name} are {has}, but those of the actor are {takes}; give data of its task"
        )
    num_actions, space, learned = data.rows.actions.shape[1], data.observation_space, actor.privileged
    if isinstance(space, PackedDict) and learned is not None and space.is_like(learned):  # critics see a state in it
        space = space.agent_space
    are_alike, recorded, known = compare_observations(space, actor)
    if not are_alike or num_actions != actor.action_dim:
        raise UserError(
            f"{data.name} has {recorded} and actions of {counted(num_actions, 'number')}, but the actor was "
            f"trained with {known} and actions of {counted(actor.action_dim, 'number')}; give data of its "
            f"task, and with --env its environment, whose wrappers show recorded observations as the actor sees them"
        )
    if reads_episodes and data.is_shuffled:
        raise UserError(
            f"{data.name} holds transitions without order, so the first observation of an episode, where a value is "
            f"estimated, is unknown; convert whole episodes with `offpcc convert rl-unplugged --ordered`"
        )
    if reads_episodes and not data.has_ends:
        raise UserError(
            f"{data.name} does not say where any episode ends (no terminals, no timeouts), so the first observation of "
            f"an episode, where a value is estimated, is unknown; mark the ends in the data, or bind "
            f"dataset.max_episode_steps"
        )


def policy_actions(actor: ActorCritic, rows: TransitionTable, seed: int = 0) -> Array:
    """Return the actor's action (R, A) in [-1, 1] at each observation of whole episodes, given the recorded history.

    The actor acts with the mode of its policy. The seed is for policies that draw, as BCQ's does.
    """
    noise, actions = actor.noise, np.zeros(rows.actions.shape, np.float32)
    actor.noise = Noise(seed, actor.device)
    lengths = rows.stops - rows.starts
    order = np.argsort(-lengths, kind="stable")
    try:
        with without_random_actions(actor):
            for chosen in np.split(order, range(SIDE_BY_SIDE, len(order), SIDE_BY_SIDE)):
                starts = rows.starts[chosen]
                memory: Memory = None
                for t in range(int(lengths[chosen[0]])):
                    signals.poll()
                    places = np.minimum(starts + t, rows.stops[chosen] - 1)  # a shorter episode repeats its last row
                    before, is_first = np.maximum(places - 1, 0), np.full(len(places), t == 0)
                    previous = np.float32(t > 0)
                    step = Step(
                        rows.observations[places],
                        previous * rows.actions[before],
                        previous * rows.rewards[before],
                        is_first,
                    )
                    action, memory = actor.act(step, memory, deterministic=True)
                    goes_on = starts + t < rows.stops[chosen]
                    actions[places[goes_on]] = action[goes_on]
    finally:
        actor.noise = noise
    return actions


def with_next_actions(rows: TransitionTable, of_policy: Array) -> TransitionTable:
    """Return the rows with 2A actions: the recorded one, then the policy's one at the next observation; see `FQE`."""
    following = np.zeros_like(of_policy)
    following[:-1] = of_policy[1:]
    following[~rows.is_start] = 0.0  # the row of an episode's last observation
    return rows.with_observations(rows.observations, np.concatenate([rows.actions, following], 1))


# True returns -----------------------------------------------------------------------------------------------------


class Discounting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds up the discounted rewards of each episode.

    Args:
        env: the environment.
        gamma: the discount per step.
        add: is called at the end of an episode with its discounted return, and with the weight gamma^L of the rewards
            that a time limit cut off after L steps, 0 if the episode terminated.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], gamma: float, add: Callable[[tuple[float, float]], None]) -> None:
        super().__init__(env)
        self.gamma, self.add = gamma, add

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        self.sum, self.weight = 0.0, 1.0
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        observation, reward, terminated, truncated, info = super().step(action)
        self.sum += self.weight * float(reward)
        self.weight *= self.gamma
        if terminated or truncated:
            self.add((self.sum, 0.0 if terminated else self.weight))
        return observation, reward, terminated, truncated, info
