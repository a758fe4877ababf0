"""The recorded action after each step of a batch, from both buffers: against the episodes that were stored."""

import numpy as np
import pytest
import torch
from known_episodes import ACTIONS, EPISODES, IMAGES, VECTORS, action_of, filled, named_by, small_recording
from minimal_parts import MinimalBuffer

import offpcc
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.training.build import build
from offpcc.utils.errors import UserError


def check(buffer, space, num_batches=20):
    found = set()
    buffer.gives_next_actions = True
    for _ in range(num_batches):
        batch = buffer.sample()
        exists, steps = batch.has_next_action, batch.has_step()
        assert batch.next_actions.shape == batch.actions.shape and exists.shape == batch.rewards.shape
        for i, t in np.ndindex(*steps.shape[:2]):
            if not steps[i, t]:
                assert exists[i, t] == 0.0
                continue
            episode, time = named_by(space, batch.observations[i, t])
            np.testing.assert_array_equal(batch.actions[i, t], action_of(episode, time))
            assert exists[i, t] == float(time + 1 < EPISODES[episode][0])
            if exists[i, t]:
                np.testing.assert_array_equal(batch.next_actions[i, t], action_of(episode, time + 1))
            found.add(float(exists[i, t]))
    assert found == {0.0, 1.0}


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
@pytest.mark.parametrize("on_device", [None, True])
def test_transitions_know_the_next_action_of_their_episode(num_steps, space, on_device):
    frames = 2 if space is IMAGES else 1
    options = {"num_steps": num_steps, "frame_stack": frames, "on_device": on_device}
    buffer = ReplayBuffer(space, ACTIONS, batch_size=16, num_envs=2, **options)
    filled(filled(buffer, space), space, env=1)
    check(buffer, space)


def test_transitions_of_a_full_ring_do_too():
    """The oldest row is the neighbour of the newest one, and no transition follows the newest one."""
    buffer = ReplayBuffer(VECTORS, ACTIONS, batch_size=16, capacity=11)
    for _ in range(3):
        filled(buffer, VECTORS)
    check(buffer, VECTORS)


@pytest.mark.parametrize("segment_len, burn_in", [(None, 0), (2, 0), (2, 2), (3, 1)])
@pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
@pytest.mark.parametrize("on_device", [None, True])
def test_sequences_know_it_also_beyond_their_last_step(segment_len, burn_in, space, on_device):
    frames = 2 if space is IMAGES else 1
    options = {"segment_len": segment_len, "burn_in": burn_in, "frame_stack": frames, "on_device": on_device}
    buffer = RecurrentReplayBuffer(space, ACTIONS, batch_size=8, **options)
    check(filled(buffer, space), space)


def test_batches_are_otherwise_the_same_and_have_none_by_default():
    for buffers in (
        [ReplayBuffer(VECTORS, ACTIONS, batch_size=4, seed=3) for _ in range(2)],
        [RecurrentReplayBuffer(VECTORS, ACTIONS, batch_size=4, segment_len=2, burn_in=1, seed=3) for _ in range(2)],
    ):
        plain, asked = (filled(buffer, VECTORS) for buffer in buffers)
        asked.gives_next_actions = True
        first, second = plain.sample(), asked.sample()
        assert first.next_actions is None and first.has_next_action is None
        for ours, theirs in zip(first, second._replace(next_actions=None, has_next_action=None), strict=True):
            assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def test_what_is_where_there_is_none_is_no_part_of_a_batch():
    buffer = filled(ReplayBuffer(VECTORS, ACTIONS, batch_size=64), VECTORS)
    buffer.gives_next_actions = True
    batch = buffer.sample()
    spoiled = torch.where(batch.has_next_action > 0, batch.next_actions, torch.nan)
    cleared = batch._replace(next_actions=spoiled).without_padding()
    assert torch.equal(cleared.next_actions, batch.without_padding().next_actions)
    assert (cleared.next_actions[(batch.has_next_action == 0).squeeze(-1)] == 0.0).all()


# Algorithms that read them ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["crr", "rcrr"])
@pytest.mark.parametrize("sarsa_target", [False, True])
def test_a_buffer_gives_them_to_an_algorithm_that_reads_them(algo, sarsa_target):
    offpcc.configure(None, "Recurrent.hidden_dim = 4", "Recurrent.num_layers = 1")
    arguments = {"sarsa_target": sarsa_target, "hidden_dims": (4,)}
    learner = build(None, algo, dataset=small_recording(), algorithm=arguments)
    assert (learner.buffer.sample().next_actions is not None) == sarsa_target
    stats = learner.algorithm.update_networks(learner.buffer.sample())
    assert torch.isfinite(stats["critic_loss"])


def test_without_them_one_message_says_what_is_missing():
    learner = build(None, "crr", dataset=small_recording(), algorithm={"sarsa_target": True, "hidden_dims": (4,)})
    learner.buffer.gives_next_actions = False
    with pytest.raises(UserError, match="the batch has no recorded next actions"):
        learner.algorithm.update_networks(learner.buffer.sample())


def test_an_own_buffer_without_them_is_refused():
    with pytest.raises(UserError, match="reads recorded next actions, which MinimalBuffer does not give"):
        build("pendulum-v0", "crr", algorithm={"sarsa_target": True}, buffer_class=MinimalBuffer)
