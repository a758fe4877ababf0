"""The return from each step of a batch on, from both buffers: against the definition, written out."""

import copy
import functools

import numpy as np
import pytest
import torch
from known_episodes import ACTIONS, EPISODES, IMAGES, VECTORS, filled, named_by, push, reward_of, small_recording
from minimal_parts import MinimalBuffer

import offpcc
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.storage import returns_to_go
from offpcc.training.build import build
from offpcc.utils.errors import UserError

GAMMA = 0.8


@functools.cache
def expected(episode, t, has_ended=True):
    """The sum over 2,000 steps, with the last reward for those that do not exist, and that of ones."""
    length, terminated = EPISODES[episode]
    if terminated is None and not has_ended:
        return 0.0, 0.0
    steps = range(t, length if terminated else t + 2_000)
    rewards = [reward_of(episode, min(step, length - 1)) for step in steps]
    return sum(GAMMA**k * r for k, r in enumerate(rewards)), sum(GAMMA**k for k in range(len(steps)))


def discounted(buffer, space, env=0):
    """Fill a buffer whose batches have returns."""
    buffer.return_discount = GAMMA
    return filled(buffer, space, env)


def check(buffer, space, num_batches=20, has_ended=False):
    found = set()
    for _ in range(num_batches):
        batch = buffer.sample()
        pair = batch.without_padding().recorded_returns()
        assert pair[0].shape == pair[1].shape == batch.rewards.shape
        for i, t in np.ndindex(*batch.rewards.shape[:2]):
            ours = [x[i, t].item() for x in pair]
            if not batch.has_step()[i, t]:
                assert ours == [0.0, 0.0]
                continue
            episode, time = named_by(space, batch.observations[i, t])
            assert ours == pytest.approx(expected(episode, time, has_ended), rel=1e-5, abs=1e-6)
            found.add(episode)
    return found


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
@pytest.mark.parametrize("on_device", [None, True])
def test_transitions_know_the_return_of_their_episode(num_steps, space, on_device):
    """Whether it is asked for before or after they are stored; those of an unfinished episode do not."""
    frames = 2 if space is IMAGES else 1
    options = {"num_steps": num_steps, "frame_stack": frames, "on_device": on_device}
    buffer = ReplayBuffer(space, ACTIONS, batch_size=16, num_envs=2, **options)
    discounted(buffer, space)
    assert check(buffer, space) == set(range(7))
    discounted(buffer, space, env=1)
    assert check(buffer, space) == set(range(7))


@pytest.mark.parametrize("end", ["truncate", "drop", "another begins"])
@pytest.mark.parametrize("sampled_before", [True, False])
def test_an_episode_has_its_returns_when_it_ends(end, sampled_before):
    buffer = discounted(ReplayBuffer(VECTORS, ACTIONS, batch_size=64), VECTORS)
    if sampled_before:
        assert 6 in check(buffer, VECTORS, 3)
    if end == "another begins":
        push(buffer, VECTORS, 0, is_first=True)
    else:
        getattr(buffer, end)(0)
    assert 6 in check(buffer, VECTORS, 3, has_ended=True)


def test_returns_survive_growth_overwriting_copies_and_checkpoints(monkeypatch):
    """Those that are stored as episodes end are, to the bit, those of all rows at once."""
    monkeypatch.setattr("offpcc.data.buffers.replay.FIRST_BLOCK", 4)
    buffer = ReplayBuffer(VECTORS, ACTIONS, batch_size=16, capacity=40, seed=1)
    buffer.return_discount = GAMMA
    for number in range(6):
        push(buffer, VECTORS, number % 6)
        check(buffer, VECTORS, 1)
    for _ in range(4):
        discounted(buffer, VECTORS)
        buffer.truncate(0)
        check(buffer, VECTORS, 5, has_ended=True)
    discounted(buffer, VECTORS)
    other = ReplayBuffer(VECTORS, ACTIONS, batch_size=16, capacity=40, seed=2)
    other.return_discount = GAMMA
    other.load_state_dict(buffer.state_dict())
    twin = copy.deepcopy(buffer)
    for _ in range(10):
        batches = [each.sample() for each in (buffer, other, twin)]
        for ours, *others in zip(*(batch.recorded_returns() for batch in batches), strict=True):
            assert all(torch.equal(ours, theirs) for theirs in others)
        for each in (buffer, other, twin):
            push(each, VECTORS, 4)


def test_an_unfinished_episode_has_no_returns_of_the_rows_that_it_overwrote():
    buffer = ReplayBuffer(VECTORS, ACTIONS, batch_size=64, capacity=8)
    buffer.return_discount = GAMMA
    for number in (2, 5, 6):
        push(buffer, VECTORS, number)
        assert number in check(buffer, VECTORS, 1)


def test_another_discount_counts_from_then_on():
    buffer = discounted(ReplayBuffer(VECTORS, ACTIONS, batch_size=64), VECTORS)
    check(buffer, VECTORS, 1)
    buffer.return_discount = None
    push(buffer, VECTORS, 0, is_first=True)
    assert buffer.sample().returns_to_go is None
    buffer.return_discount = GAMMA
    assert 6 in check(buffer, VECTORS, 3, has_ended=True)


@pytest.mark.parametrize("segment_len, burn_in", [(None, 0), (2, 0), (2, 2), (3, 1)])
@pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
@pytest.mark.parametrize("on_device", [None, True])
def test_sequences_know_the_return_of_the_whole_episode(segment_len, burn_in, space, on_device):
    frames = 2 if space is IMAGES else 1
    options = {"segment_len": segment_len, "burn_in": burn_in, "frame_stack": frames, "on_device": on_device}
    buffer = RecurrentReplayBuffer(space, ACTIONS, batch_size=8, **options)
    assert check(discounted(buffer, space), space) == set(range(6))


def test_batches_are_otherwise_the_same_and_have_none_by_default():
    for kind, options in ((ReplayBuffer, {}), (RecurrentReplayBuffer, {"segment_len": 2, "burn_in": 1})):
        plain, asked = (discounted(kind(VECTORS, ACTIONS, batch_size=4, seed=3, **options), VECTORS) for _ in range(2))
        plain.return_discount = None
        first, second = plain.sample(), asked.sample()
        assert first.returns_to_go is None and first.discounts_to_go is None
        for ours, theirs in zip(first, second._replace(returns_to_go=None, discounts_to_go=None), strict=True):
            assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def test_a_failed_episode_with_sparse_rewards_has_one_return():
    """CORL PR#63: r / (1 - gamma) at each step, not the sum up to the time limit."""
    found = returns_to_go(np.full(5, -1.0, np.float32), False, 0.99)
    np.testing.assert_allclose(found, np.tile([[-100.0, 100.0]], (5, 1)), rtol=1e-6)
    reached = returns_to_go(np.float32([0, 0, 1]), True, 0.5)
    np.testing.assert_allclose(reached, [[0.25, 1.75], [0.5, 1.5], [1.0, 1.0]])
    assert not returns_to_go(np.ones(3, np.float32), False, 1.0).any(), "unknown: the sum is infinite"
    np.testing.assert_array_equal(returns_to_go(np.float32([1, 2]), True, 1.0), [[3, 2], [2, 1]])


# Algorithms that read them ----------------------------------------------------------------------------------------


SMALL = {"hidden_dims": (4,), "num_samples": 2, "reward_scale": 0.5, "reward_shift": -3.0, "gamma": GAMMA}


@pytest.mark.parametrize("algo", ["calql", "rcalql"])
def test_a_limit_is_the_return_of_the_rewards_in_targets(algo):
    """Scaled by the data's range of returns, by reward_scale, and shifted, from every kind of memory."""
    offpcc.configure(None, "Recurrent.hidden_dim = 4", "Recurrent.num_layers = 1", "dataset.return_range = 10.0")
    learner = build(None, algo, dataset=small_recording(), algorithm=SMALL)
    agent, batch = learner.algorithm, learner.buffer.sample().without_padding()
    assert agent.reward_scale == pytest.approx(0.5 * 10.0 / 300.0)
    returns, ones = batch.recorded_returns()
    limit = agent.reward_scale * returns + agent.reward_shift * ones
    for i, t in np.ndindex(*batch.rewards.shape[:2]):
        if batch.has_step()[i, t]:
            first = int(batch.rewards[i, t])
            later = agent.reward_scale * np.arange(first, first - first % 10 + 10) - 3.0
            assert limit[i, t].item() == pytest.approx((GAMMA ** np.arange(len(later)) * later).sum(), rel=1e-5)
    assert torch.isfinite(agent.update_networks(learner.buffer.sample())["critic_loss"])


def test_without_discount_an_episode_has_to_terminate():
    data = small_recording(terminations=np.zeros(40, bool), truncations=np.arange(40) % 10 == 9)
    with pytest.raises(UserError, match="no return is finite"):
        build(None, "calql", dataset=data, algorithm={**SMALL, "gamma": 1.0})


def test_an_own_buffer_without_them_is_refused():
    with pytest.raises(UserError, match="reads recorded returns, which MinimalBuffer does not give"):
        build("pendulum-v0", "calql", buffer_class=MinimalBuffer)
