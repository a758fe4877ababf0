"""Fitted Q evaluation: exact values of small tasks, memory, traps of other libraries, and rankings."""

import dataclasses
import functools
import warnings

import gin
import gymnasium
import numpy as np
import pytest
import torch
from collected import always_first
from gymnasium.spaces import Box, Dict, Discrete

import offpcc
from offpcc.algorithms import ALGORITHMS, BC
from offpcc.algorithms.discrete_bc import DiscreteBC
from offpcc.algorithms.fqe import FQE
from offpcc.cli.evaluate_from_data import measure_returns
from offpcc.core import Batch, Step
from offpcc.data.offline import read
from offpcc.envs.make import make
from offpcc.networks import Encoder, Identity, Inputs, Recurrent
from offpcc.training.analysis.policy_evaluation import (
    Discounting,
    ValueEstimate,
    check_actor_fits_data,
    policy_actions,
)
from offpcc.training.analysis.run_statistics import mean_interval, rank_correlation, ranks, regret_at
from offpcc.utils.errors import DataWarning, UserError

GAMMA = 0.8
SMALL = {"hidden_dims": (32, 32), "lr": 3e-3, "polyak": 0.97}
UNIT = Box(-1.0, 1.0, (1,), np.float32)
IMAGE, VECTOR = Box(0, 255, (1, 48, 48), np.uint8), Box(-1, 1, (3,), np.float32)


class Policy(BC):
    """A policy that is a function of the actor's summary."""

    function = staticmethod(lambda summary: summary[..., :1])

    def choose_action(self, summary, deterministic):
        assert deterministic
        return self.function(summary)


def policy(function, dim, **arguments):
    made = Policy(Box(-np.inf, np.inf, (dim,), np.float32), UNIT, **arguments)
    made.function = function
    return made


@offpcc.configurable
class FirstSeen(Encoder):
    """A memory of the first observation of an episode: h_t = (o_1, o_t)."""

    memoryless = False

    def __init__(self, shape, **kwargs):
        super().__init__(shape, **kwargs)
        self.dim = 2 * shape.observation[0]

    def forward(self, inputs, state=None):
        seen = inputs.observation
        state = torch.zeros_like(seen[:, 0, :1].expand(-1, seen.shape[-1] + 1)) if state is None else state
        first = torch.where(state[:, -1:] > 0, state[:, :-1], seen[:, 0])
        return torch.cat([first.unsqueeze(1).expand_as(seen), seen], -1), torch.cat(
            [first, torch.ones_like(first[:, :1])], -1
        )


# A corridor of three states: to the right of the last one is the end. One row per state: (left, right).
REWARDS = np.array([[0.0, 0.2], [0.3, -0.5], [-0.2, 1.0]])
NEXT = np.array([[0, 1], [0, 2], [1, 3]])
GOES_RIGHT = np.array([True, False, True])  # the evaluated policy


def corridor(num_episodes=300, seed=0):
    """Episodes of random steps, cut after three steps."""
    draws, episodes = np.random.default_rng(seed), []
    for _ in range(num_episodes):
        states, actions, rewards = [int(draws.integers(3))], [], []
        while len(actions) < 3 and states[-1] != 3:
            right = int(draws.integers(2))
            actions.append([1.6 * right - 0.8])
            rewards.append(REWARDS[states[-1], right])
            states.append(NEXT[states[-1], right])
        # All zeros at the end, as for an observation that a library must not read.
        observations = np.eye(4, 3, dtype=np.float32)[states]
        episodes.append((observations, np.array(actions, np.float32), np.array(rewards), states[-1] == 3))
    return offpcc.Dataset.from_episodes(episodes, action_range=([-1.0], [1.0]))


def exact():
    """The values of the policy, by linear algebra: V = (I - gamma P)^-1 r."""
    right = GOES_RIGHT.astype(int)
    transition = np.zeros((3, 3))
    for state, following in enumerate(NEXT[np.arange(3), right]):
        if following < 3:
            transition[state, following] = 1.0
    return np.linalg.solve(np.eye(3) - GAMMA * transition, REWARDS[np.arange(3), right])


def corridor_policy():
    table = torch.tensor(1.6 * GOES_RIGHT - 0.8, dtype=torch.float32)
    return policy(lambda summary: (summary * table).sum(-1, keepdim=True), 3)


def test_the_value_of_a_small_task_is_that_of_linear_algebra():
    """It differs if ends count as time limits or the other way round, or if next observations are mixed up."""
    data, actor = corridor(), corridor_policy()
    found = offpcc.evaluate_from_data(
        actor, data, num_updates=1_500, gamma=GAMMA, algorithm=SMALL, buffer={"batch_size": 64}
    )
    first = data.observations[data.starts].argmax(1)
    for state, value in enumerate(exact()):
        of_state = found.initial_values[first == state]
        np.testing.assert_allclose(of_state, of_state[0], rtol=1e-5)
        assert abs(of_state[0] - value) < 0.06, (state, of_state[0], value)
    assert abs(found.value - exact()[first].mean()) < 0.04
    low, high = found.interval
    assert low < found.value < high


def test_equal_seeds_give_equal_values():
    data, actor = corridor(20), corridor_policy()
    given = {"num_updates": 3, "gamma": GAMMA, "algorithm": SMALL, "buffer": {"batch_size": 8}}
    one, same, other = (offpcc.evaluate_from_data(actor, data, seed=seed, **given) for seed in (1, 1, 2))
    assert one.initial_values.tobytes() == same.initial_values.tobytes() != other.initial_values.tobytes()
    offpcc.configure(None, "ActorCritic.n_step = 3", "ActorCritic.max_grad_norm = 1e-3", "ReplayBuffer.batch_size = 5")
    bound = offpcc.evaluate_from_data(actor, data, seed=1, **given)  # bindings are for training
    assert bound.initial_values.tobytes() == one.initial_values.tobytes()
    assert gin.query_parameter("ActorCritic.n_step") == 3


def test_where_episodes_terminate_a_value_may_be_below_that_of_the_smallest_reward():
    """All rewards are 1, and each episode ends after one step: the value is 1, not 1 / (1 - gamma)."""
    episode = (np.zeros((2, 2), np.float32), np.zeros((1, 1), np.float32), np.ones(1), True)
    data = offpcc.Dataset.from_episodes([episode] * 4, action_range=([-1.0], [1.0]))
    actor = policy(lambda summary: summary[..., :1], 2)
    found = offpcc.evaluate_from_data(actor, data, num_updates=300, algorithm=SMALL, buffer={"batch_size": 4})
    assert abs(found.value - 1.0) < 0.05


def learner(**arguments):
    return FQE(Box(-1, 1, (2,), np.float32), UNIT, hidden_dims=(4,), seed=0, **{"gamma": 0.9, **arguments})


def transitions(terminations):
    size = len(terminations)
    column = torch.as_tensor(terminations, dtype=torch.float32).view(size, 1, 1)
    return Batch(
        observations=torch.rand(size, 2, 2),
        actions=torch.rand(size, 1, 2),
        rewards=torch.full((size, 1, 1), -2.0),
        terminations=column,
        valid=torch.ones(size, 2, 1),
        loss_mask=torch.ones(size, 1, 1),
        first_action=torch.rand(size, 2),
        first_reward=torch.zeros(size, 1),
        complete=True,
    )


@pytest.mark.parametrize(
    ("bias", "has_terminations", "wanted"), [(1e3, False, -10.0), (1e3, True, 0.0), (-1e3, True, -30.0)]
)
def test_targets_are_within_the_bounds_of_a_value(bias, has_terminations, wanted):
    """Rewards from -3 to -1 and gamma 0.9: values from -30 to -10, or to 0 if episodes can end."""
    one = learner(reward_range=(-3.0, -1.0), has_terminations=has_terminations)
    with torch.no_grad():
        list(one.target_critics.parameters())[-1].fill_(bias)
    batch = one.prepare(transitions([0.0, 0.0]))
    torch.testing.assert_close(one.target(one.summarize(batch), batch), torch.full((2, 1, 1), wanted))


def test_a_target_is_the_reward_and_the_discounted_value_of_the_policys_action():
    one = learner(reward_range=(-30.0, 30.0), has_terminations=True)
    batch = transitions([0.0, 1.0])
    recorded, of_policy = batch.actions.split(1, -1)
    with torch.no_grad():
        q = 10.0 * one.target_critics(batch.observations[None, :, 1:], of_policy)[0]
    prepared = one.prepare(batch)
    torch.testing.assert_close(prepared.actions, recorded)
    torch.testing.assert_close(prepared.first_action, batch.first_action[:, :1])
    y = one.target(one.summarize(prepared), prepared)
    torch.testing.assert_close(y, -2.0 + 0.9 * torch.tensor([1.0, 0.0]).view(2, 1, 1) * q)


def test_initial_values_are_means_of_target_critics_in_units_of_the_rewards():
    one = learner(reward_range=(-3.0, -1.0), has_terminations=True, num_critics=3, reward_scale=0.5)
    assert one.bounds == pytest.approx((-15.0, 0.0))
    with torch.no_grad():
        for parameter in one.critics.parameters():
            parameter.mul_(2.0)
    observations, actions = torch.rand(4, 2), torch.rand(4, 1)
    q = one.target_critics(observations.view(1, 4, 1, 2), actions.view(4, 1, 1))
    torch.testing.assert_close(one.initial_values(observations, actions), 20.0 * q.mean(0).flatten())


@pytest.mark.parametrize("subset", [None, 1])
def test_a_target_is_the_mean_of_all_critics_or_of_those_that_were_drawn(subset):
    one = learner(reward_range=(-30.0, 30.0), has_terminations=True, num_critics=8, target_subset=subset)
    batch = transitions([0.0, 0.0])
    with torch.no_grad():
        each = -2.0 + 9.0 * one.target_critics(batch.observations[None, :, 1:], batch.actions[..., 1:])
    prepared = one.prepare(batch)
    y = one.target(one.summarize(prepared), prepared)
    assert torch.isclose(y, each.mean(0)).all() == (subset is None)
    assert torch.isclose(y, each).flatten(1).all(1).any() == (subset == 1)


def test_values_do_not_depend_on_the_scale_of_rewards():
    data, actor = corridor(50), corridor_policy()
    given = {"num_updates": 20, "gamma": GAMMA, "buffer": {"batch_size": 8}}
    one = offpcc.evaluate_from_data(actor, data, algorithm=SMALL, **given)
    episodes = [
        (np.concatenate([data.observations[a:b], data.final_observations[i, None]]), data.actions[a:b],
         1024.0 * data.rewards[a:b], bool(data.terminations[b - 1]))
        for i, (a, b) in enumerate(data.episodes)
    ]  # fmt: skip
    scaled = offpcc.Dataset.from_episodes(episodes, action_range=([-1.0], [1.0]))
    other = offpcc.evaluate_from_data(actor, scaled, algorithm=SMALL, **given)
    np.testing.assert_allclose(other.initial_values, 1024.0 * one.initial_values, rtol=1e-4)


def test_actions_of_data_without_a_range_are_in_the_units_of_the_agent():
    """The agent was trained with actions from -4 to 4."""
    data = corridor(20)
    given = {"num_updates": 3, "gamma": GAMMA, "algorithm": SMALL, "buffer": {"batch_size": 8}}
    one = offpcc.evaluate_from_data(corridor_policy(), data, **given)
    large = corridor_policy()
    large.action_space = Box(-4.0, 4.0, (1,), np.float32)
    unknown = dataclasses.replace(data, actions=4.0 * data.actions, action_range=None)
    other = offpcc.evaluate_from_data(large, unknown, **given)
    np.testing.assert_allclose(other.initial_values, one.initial_values, rtol=1e-5)


# Discrete actions -------------------------------------------------------------------------------------------------


class Choices(DiscreteBC):
    """A policy that is a function of the actor's summary."""

    def choose_action(self, summary, deterministic):
        assert deterministic
        return torch.nn.functional.one_hot(self.function(summary), self.action_dim).float()


def choosing(data, start=0):
    """The corridor with the actions `start` (left) and `start` + 1 (right); no step takes the third action."""
    return dataclasses.replace(
        data, actions=(data.actions > 0).astype(np.float32) + start, action_range=None, discrete_actions=True
    )


def test_the_value_of_choices_is_that_of_linear_algebra():
    start = 5
    actor = Choices(Box(-np.inf, np.inf, (3,), np.float32), Discrete(3, start=start))
    goes_right = torch.from_numpy(GOES_RIGHT)
    actor.function = lambda summary: goes_right[summary.argmax(-1)].long()
    data = choosing(corridor(), start)
    found = offpcc.evaluate_from_data(
        actor, data, num_updates=1_500, gamma=GAMMA, algorithm=SMALL, buffer={"batch_size": 64}
    )
    first = data.observations[data.starts].argmax(1)
    for state, value in enumerate(exact()):
        assert abs(found.initial_values[first == state][0] - value) < 0.06, (state, value)


@pytest.mark.parametrize("name", ["dbc", "dqn", "rdqn", "qrdqn", "dbcq", "rdsac", "cdqn"])
def test_discrete_agents_of_each_kind(name):
    """The policy is the mode: the action of the largest probability or value, without random actions of tests."""
    space = IMAGE if name == "cdqn" else Box(-np.inf, np.inf, (3,), np.float32)
    actor = ALGORITHMS[name](space, Discrete(3), hidden_dims=(6,), seed=1)
    if hasattr(actor, "test_epsilon"):
        actor.test_epsilon = 0.9
    data = choosing(corridor(6))
    if name == "cdqn":
        draws = np.random.default_rng(0)
        seen, final = (draws.integers(0, 255, (n, *space.shape)).astype(np.uint8) for n in (len(data), 6))
        data = dataclasses.replace(data, observations=seen, final_observations=final)
    given = {"algorithm": {"hidden_dims": (6,)}, "buffer": {"batch_size": 2}}
    found = offpcc.evaluate_from_data(actor, data, num_updates=2, **given)
    assert found.initial_values.shape == (6,) and np.isfinite(found.initial_values).all()
    rows = read(dataclasses.replace(data, action_range=(np.array([0]), np.array([2])))).rows
    actions = policy_actions(actor, rows)
    assert ((actions == 0) | (actions == 1)).all() and (actions.sum(1) == 1).all()
    assert getattr(actor, "test_epsilon", 0.9) == 0.9
    if actor.memoryless:
        step = Step(
            rows.observations, np.zeros((len(actions), 3)), np.zeros((len(actions), 1)), np.full(len(actions), 1)
        )
        actor.test_epsilon = 0.0
        np.testing.assert_array_equal(actions, actor.act(step, None, deterministic=True)[0])


def test_choices_and_numbers_are_not_mixed_up():
    """Both have actions of three numbers for the critics."""
    space, data = Box(-np.inf, np.inf, (3,), np.float32), corridor(3)
    choices = dataclasses.replace(choosing(data), action_range=(np.array([0]), np.array([2])))
    with pytest.raises(UserError, match="are whole numbers, which are choices, but those of the actor are vectors"):
        check_actor_fits_data(BC(space, Box(-1.0, 1.0, (3,), np.float32)), read(choices))
    numbers = dataclasses.replace(data, actions=np.tile(data.actions, 3), action_range=None)
    with pytest.raises(UserError, match="are vectors of numbers, but those of the actor are whole numbers, which are"):
        offpcc.evaluate_from_data(DiscreteBC(space, Discrete(3)), numbers, num_updates=1)


# Memory -----------------------------------------------------------------------------------------------------------


def cues(num_episodes=200):
    """The first observation has a cue, +1 or -1; the third action, times the cue, is the reward."""
    draws, episodes = np.random.default_rng(1), []
    for number in range(num_episodes):
        cue = 1.0 - 2.0 * (number % 2)
        observations = np.array([[cue, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]], np.float32)
        actions = 1.6 * draws.integers(2, size=(3, 1)) - 0.8
        episodes.append((observations, actions.astype(np.float32), np.array([0, 0, cue * actions[2, 0]]), True))
    return offpcc.Dataset.from_episodes(episodes, action_range=([-1.0], [1.0]))


@pytest.mark.parametrize("recalls", [True, False])
def test_a_value_that_depends_on_memory_alone(recalls):
    """A policy that recalls the cue gets 0.8 for it; one that always acts +0.8 gets 0.8 or -0.8."""

    def acts(summary):
        return 0.8 * summary[..., :1].sign() if recalls else torch.full_like(summary[..., :1], 0.8)

    data, actor = cues(), policy(acts, 2, encoder=FirstSeen)
    found = offpcc.evaluate_from_data(
        actor, data, num_updates=500, gamma=GAMMA, algorithm=SMALL, buffer={"batch_size": 16}
    )
    cue = data.observations[data.starts, 0]
    np.testing.assert_allclose(found.initial_values, GAMMA**2 * 0.8 * (1.0 if recalls else cue), atol=0.06)
    if not recalls:  # critics without memory do not know the cue when the reward comes
        given = {"algorithm": {**SMALL, "encoder": Identity}, "buffer": {"batch_size": 48}}
        blind = offpcc.evaluate_from_data(actor, data, num_updates=500, gamma=GAMMA, **given)
        assert np.abs(blind.initial_values).max() < 0.3


def test_the_policys_memory_reads_recorded_actions():
    """Here the policy repeats the previous action: the recorded one, not what it would have done."""
    data = read(corridor(7))
    actor = policy(lambda summary: summary[..., -1:], 3, encoder=functools.partial(Identity, use_previous_action=True))
    found = policy_actions(actor, data.rows)
    for start, stop in zip(data.rows.starts, data.rows.stops, strict=True):
        np.testing.assert_array_equal(found[start + 1 : stop], data.rows.actions[start : stop - 1])
        assert found[start] == 0.0


def test_actions_along_a_history_are_those_of_one_pass_over_the_episode(monkeypatch):
    # Several groups of unequal lengths.
    monkeypatch.setattr("offpcc.training.analysis.policy_evaluation.SIDE_BY_SIDE", 3)
    small = functools.partial(Recurrent, hidden_dim=5, num_layers=1, use_previous_action=True, use_previous_reward=True)
    actor = ALGORITHMS["rsac"](Box(-1, 1, (3,), np.float32), UNIT, encoder=small, hidden_dims=(6,), seed=1)
    rows = read(corridor(8)).rows
    noise = actor.noise
    found = policy_actions(actor, rows)
    assert actor.noise is noise
    for start, stop in zip(rows.starts, rows.stops, strict=True):
        shifted = [torch.from_numpy(x[start : stop - 1].copy())[None] for x in (rows.actions, rows.rewards)]
        previous = [torch.cat([torch.zeros(1, 1, 1), x], 1) for x in shifted]
        with torch.no_grad():
            h = actor.actor_encoder(Inputs(torch.from_numpy(rows.observations[start:stop].copy())[None], *previous))[0]
            wanted = actor.actor.choose(h, None)[0]
        np.testing.assert_allclose(found[start:stop], wanted.numpy(), atol=1e-5)


def test_dict_observations():
    """Vectors are normalised and images are not, as in training."""
    space = Dict(camera=IMAGE, speed=VECTOR)
    actor = ALGORITHMS["csac"](space, UNIT, hidden_dims=(6,), seed=1)
    draws = np.random.default_rng(0)

    def episode(length):
        seen = {key: np.stack([space[key].sample() for _ in range(length + 1)]) for key in space}
        return seen, draws.uniform(-1, 1, (length, 1)).astype(np.float32), draws.normal(size=length), False

    data = offpcc.Dataset.from_episodes([episode(3), episode(4)], action_range=([-1.0], [1.0]), observation_space=space)
    given = {"algorithm": {"hidden_dims": (6,)}, "buffer": {"batch_size": 2}}
    assert np.isfinite(offpcc.evaluate_from_data(actor, data, num_updates=2, **given).initial_values).all()
    other = ALGORITHMS["csac"](Dict(camera=IMAGE, gyro=VECTOR), UNIT, hidden_dims=(6,), seed=1)  # of as many bytes
    told = r"observations speed \(3,\), camera \(1, 48, 48\) .* trained with observations gyro \(3,\), camera"
    with pytest.raises(UserError, match=told):
        offpcc.evaluate_from_data(other, data, num_updates=2, **given)


@pytest.mark.parametrize("name", ["td3", "bcq", "rsac_s", "csac", pytest.param("crsac", marks=pytest.mark.slow)])
def test_agents_of_each_kind(name):
    """The critics read what the agent reads: with memory, from images, or both."""
    space = IMAGE if name[0] == "c" else VECTOR
    small = functools.partial(Recurrent, hidden_dim=5, num_layers=1)
    part = {"rsac_s": {"shared_encoder": small}, "crsac": {"encoder": small}}.get(name, {})
    actor = ALGORITHMS[name](space, UNIT, hidden_dims=(6,), seed=1, **part)
    draws = np.random.default_rng(0)

    def episode(length):
        seen = draws.integers(0, 255, (length + 1, *space.shape)).astype(space.dtype)
        return seen, draws.uniform(-1, 1, (length, 1)).astype(np.float32), draws.normal(size=length), False

    data = offpcc.Dataset.from_episodes([episode(length) for length in (3, 5, 4)], action_range=([-1.0], [1.0]))
    before = {key: value.clone() for key, value in actor.actor.state_dict().items()}
    given = {"algorithm": {"hidden_dims": (6,)}, "buffer": {"batch_size": 2}}
    found = offpcc.evaluate_from_data(actor, data, num_updates=2, **given)
    assert found.initial_values.shape == (3,) and np.isfinite(found.initial_values).all()
    assert all(torch.equal(value, before[key]) for key, value in actor.actor.state_dict().items())


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gamma": 1.0}, "below 1"),
        ({"num_updates": 0}, "num_updates is 0; it has to be a whole number, 1 or more"),
        ({"algorithm": {"wheels": 4}}, "wheels"),
        ({"algorithm": {"hidden_dims": (0,)}}, "hidden_dims is "),
        ({"algorithm": {"gamma": 0.5}}, "'gamma', which is an argument of evaluate_from_data itself"),
        ({"algorithm": {"target_subset": 1, "num_critics": 2}}, "'target_subset', but a target is the mean"),
        ({"algorithm": {"reward_shift": 1.0}}, "'reward_shift', but a shift"),
        ({"algorithm": {"clip_rewards": True}}, "'clip_rewards', but the value is a sum of rewards"),
        ({"algorithm": {"n_step": 3}}, "'n_step', but later"),
        ({"algorithm": {"actor_q": "min"}}, "'actor_q', but no actor"),
        ({"algorithm": {"reward_scale": 0.0}}, "reward_scale is 0.0; .* other than 0"),
        ({"algorithm": {"reward_scale": -1.0}}, "reward_scale is -1.0; .* above 0"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(UserError, match=words):
        offpcc.evaluate_from_data(corridor_policy(), corridor(3), **{"num_updates": 1, **arguments})


def test_data_of_another_task_and_data_without_ends_are_refused():
    data = corridor(3)
    with pytest.raises(UserError, match=r"observations of shape \(3,\).*trained with observations of shape \(2,\)"):
        offpcc.evaluate_from_data(policy(None, 2), data, num_updates=1)
    endless = offpcc.Dataset.from_arrays(
        observations=data.observations, actions=data.actions, rewards=data.rewards,
        terminations=np.zeros(len(data), bool), action_range=([-1.0], [1.0]),
    )  # fmt: skip
    with pytest.raises(UserError, match="does not say where any episode ends"):
        offpcc.evaluate_from_data(corridor_policy(), endless, num_updates=1)
    shuffled = dataclasses.replace(data, metadata={"shuffled": 1})
    with pytest.raises(UserError, match=r"holds transitions without order, .*`offpcc convert rl-unplugged --ordered`"):
        offpcc.evaluate_from_data(corridor_policy(), shuffled, num_updates=1)


# Rankings ---------------------------------------------------------------------------------------------------------


def test_ranks_and_their_correlation():
    np.testing.assert_array_equal(ranks([3.0, -1.0, 3.0, 10.0]), [2.5, 1.0, 2.5, 4.0])
    assert rank_correlation([1, 2, 3], [10, 20, 1000]) == 1.0
    assert rank_correlation([1, 2, 3], [5, 4, -7]) == -1.0
    # By hand: 1 - 6 * (sum of squared differences of ranks) / (n (n^2 - 1)).
    assert rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(1.0 - 6.0 * 4.0 / 60.0)
    draws = np.random.default_rng(0)
    a, b = draws.normal(size=(2, 30))
    numpy = np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1]
    assert rank_correlation(a, b) == pytest.approx(numpy)
    assert np.isnan(rank_correlation([1, 1], [1, 2]))


def test_regret_is_what_the_best_of_the_chosen_lacks():
    values, returns = [5.0, 4.0, 3.0, 2.0], [-10.0, 0.0, 30.0, 20.0]
    assert regret_at(1, values, returns) == 1.0
    assert regret_at(2, values, returns) == 0.75
    assert regret_at(3, values, returns) == regret_at(4, values, returns) == 0.0
    assert np.isnan(regret_at(1, [1, 2], [3, 3]))


def test_the_interval_needs_two_numbers():
    assert np.isnan(mean_interval(np.ones(1))).all() and np.isnan(mean_interval(np.zeros(0))).all()
    assert mean_interval(np.ones(5)) == (1.0, 1.0)


class Ones(gymnasium.Env):
    observation_space = action_space = UNIT

    def __init__(self, terminates):
        self.terminates = terminates

    def reset(self, seed=None, options=None):
        self.step_number = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.step_number += 1
        ends = self.step_number == 3
        return np.zeros(1, np.float32), 1.0, ends and self.terminates, ends and not self.terminates, {}


@pytest.mark.parametrize(("terminates", "weight"), [(True, 0.0), (False, 0.125)])
def test_discounted_returns_of_played_episodes(terminates, weight):
    ended = []
    env = Discounting(Ones(terminates), 0.5, ended.append)
    for _ in range(2):
        env.reset()
        while not any(env.step(env.action_space.sample())[2:4]):
            pass
    assert ended == [(1.75, weight)] * 2


def test_played_returns_are_those_of_the_policy_whose_value_is_estimated():
    """That of the best actions, without the random ones of tests."""
    learner = always_first(test_epsilon=1.0)
    make_env = functools.partial(make, "cartpole-v0")
    played = measure_returns(learner.algorithm, make_env, 0.9, 20, 4, 0, 200)
    assert played.undiscounted < 11, "always the same push: the pole falls within 8 to 10 steps"


def test_a_value_that_the_rewards_cannot_give_is_a_warning_in_python(monkeypatch):
    given = {"num_updates": 1, "gamma": GAMMA, "algorithm": SMALL}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert offpcc.evaluate_from_data(corridor_policy(), corridor(3), **given).is_possible
    monkeypatch.setattr(FQE, "initial_values", lambda self, observations, actions: torch.full((len(actions),), 1e3))
    told = r"give values from .* to .*, so the value of the agent is wrong: the critics need more updates than 1, or"
    with pytest.warns(DataWarning, match=told):
        assert not offpcc.evaluate_from_data(corridor_policy(), corridor(3), **given).is_possible


def test_a_value_that_the_rewards_cannot_give_is_told():
    possible, wrong = (ValueEstimate(np.full(4, value), 0.9, 10, (-50.0, 0.0)) for value in (-20.0, 215.0))
    assert str(possible) == "value -20.00 [-20.00, -20.00] from 4 initial states"
    assert str(wrong).endswith("states; the rewards give -50 to 0, so the critics have not converged")
    assert str(ValueEstimate(np.full(4, 0.001), 0.9, 10, (-50.0, 0.0))).endswith("states"), "rounding is no fault"
