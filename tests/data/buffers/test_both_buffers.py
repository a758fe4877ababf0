"""What both buffers check alike: environments, and observations that are stacks of frames."""

import re

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from pushing import ACTIONS, KINDS, OBSERVATIONS, Recorded, equal, push_all, pushes, same, space_of, through_a_file

from offpcc.data import Dataset, RecurrentReplayBuffer, ReplayBuffer
from offpcc.utils.errors import UserError

pytestmark = pytest.mark.parametrize("buffer_class", [ReplayBuffer, RecurrentReplayBuffer])


def made(buffer_class, observations=OBSERVATIONS, **arguments):
    return buffer_class(observations, ACTIONS, **{"capacity": 50, "batch_size": 200, **arguments})


def starts(batch):
    """Ids of the steps that the batch counts."""
    return sorted(set(batch.rewards[batch.loss_mask > 0].tolist()))


@pytest.mark.parametrize("num_envs, env", [(1, 1), (3, 3), (3, -1)])
def test_an_environment_that_there_is_not_is_refused(buffer_class, num_envs, env):
    buffer = made(buffer_class, num_envs=num_envs)
    with pytest.raises(ValueError, match=f"environment {env} .* num_envs = {num_envs}"):
        buffer.push(*pushes((1, "both"))[0]._replace(env=env))
    assert len(buffer) == 0


def test_an_own_draw_of_a_place_without_an_item_is_refused(buffer_class):
    class Own(buffer_class):
        def draw(self):
            return np.array(places)

    buffer = made(Own)
    push_all(buffer, pushes((1, "truncated"), (2, "truncated")))
    places = [0, 0]
    assert len(buffer.sample().rewards) == 2
    for empty in (np.flatnonzero(buffer.shares(np.arange(50)) == 0)[0], 49):
        places = [0, empty]
        with pytest.raises(UserError, match=rf"Own.draw returned the place {empty}, which has no .*super\(\).draw\(\)"):
            buffer.sample()


@pytest.mark.parametrize("shape", [(3,), (2, 1), (), (1, 2)])
@pytest.mark.parametrize("place", [0, 3])
def test_a_wrong_shape_is_refused_and_leaves_no_trace(buffer_class, shape, place):
    buffer = made(buffer_class)
    arguments = [np.zeros(2), np.zeros(2), 0.0, np.zeros(2), True, False]
    arguments[place] = np.zeros(shape)
    with pytest.raises(ValueError, match=r"shape .* buffer of shape \(2,\)"):
        buffer.push(*arguments)
    assert len(buffer) == 0
    assert buffer.size == 0 if buffer_class is ReplayBuffer else not buffer.unfinished[0].actions


def test_an_action_of_another_size_is_refused(buffer_class):
    with pytest.raises(ValueError, match="reshape"):
        made(buffer_class).push(np.zeros(2), np.zeros(1), 0.0, np.zeros(2), False, False)


def test_the_callers_arrays_may_change_afterwards(buffer_class):
    buffer = made(buffer_class)
    observation, action, next_observation = np.zeros(2, np.float32), np.ones(2, np.float32), np.ones(2, np.float32)
    buffer.push(observation, action, 1.0, next_observation, False, False)
    next_was = next_observation.copy()
    for array in (observation, action, next_observation):
        array[:] = 77.0
    buffer.push(next_was, np.zeros(2), 2.0, np.full(2, 2.0), True, False)
    batch = buffer.sample()
    observations, actions = batch.observations[..., 0].tolist(), batch.actions[..., 0].tolist()
    if buffer_class is ReplayBuffer:
        steps = {(before, after, action) for (before, after), (action,) in zip(observations, actions, strict=True)}
        assert steps == {(0, 1, 1), (1, 2, 0)}
    else:
        assert (observations[0], actions[0]) == ([0, 1, 2], [1, 0])
    assert batch.observations[..., 1].tolist() == observations and batch.actions[..., 1].tolist() == actions
    assert buffer.num_transitions == 2 and len(buffer) == (2 if buffer_class is ReplayBuffer else 1)
    assert buffer_class is RecurrentReplayBuffer or buffer.size == 3, "the second step continues the episode"


def test_the_generator_is_the_buffers_own(buffer_class):
    options = {} if buffer_class is ReplayBuffer else {"segment_len": 3, "burn_in": 2}
    buffers = [made(buffer_class, capacity=100, batch_size=16, seed=seed, **options) for seed in (1, 1, 2)]
    for buffer in buffers:
        push_all(buffer, pushes(*((length, "truncated") for length in range(1, 12))))
    np.random.seed(0)
    torch.manual_seed(0)
    state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    first = [buffers[0].sample() for _ in range(3)]
    assert np.array_equal(state, np.random.get_state()[1]) and torch.equal(torch_state, torch.get_rng_state())
    np.random.seed(5)
    torch.manual_seed(5)
    again, other = [buffers[1].sample() for _ in range(3)], [buffers[2].sample() for _ in range(3)]
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert not any(same(a, b) for a, b in zip(first, other, strict=True))
    assert not same(first[0], first[1])


@pytest.mark.parametrize("is_first", [False, True])
def test_the_step_says_whether_it_begins_an_episode(buffer_class, is_first):
    """Not the observation: an abandoned episode may be followed by one that begins where it stood."""
    buffer, same_place = made(buffer_class), np.ones(2)
    buffer.push(same_place, np.full(2, 0.5), 1.0, same_place, False, False, is_first=True)
    buffer.push(same_place, np.full(2, 0.7), 2.0, same_place, False, True, is_first=is_first)
    assert buffer.num_transitions == 2 and len(buffer) == (2 if buffer_class is ReplayBuffer or is_first else 1)
    batch = buffer.sample()
    if buffer_class is RecurrentReplayBuffer:
        assert batch.actions.shape[1] == (1 if is_first else 2)
    else:
        assert batch.first_reward[batch.rewards[:, 0, 0] == 2.0].unique().tolist() == [0.0 if is_first else 1.0]


def test_what_another_environment_pushes_cuts_no_episode(buffer_class):
    buffer = made(buffer_class, num_envs=2)
    for steps in zip(Recorded(1, 3, "terminated").pushes(), Recorded(2, 3, "truncated").pushes(), strict=True):
        for env, pushed in enumerate(steps):
            buffer.push(*pushed._replace(env=env))
    batch = buffer.sample()
    first = np.unique(batch.rewards[:, 0, 0], return_index=True)[1]
    if buffer_class is ReplayBuffer:
        assert batch.first_reward[first, 0].tolist() == [0.0, 1000.0, 1001.0, 0.0, 2000.0, 2001.0]
        assert [ring.size for ring in buffer.rings] == [4, 4]
    else:
        assert batch.rewards[first, :, 0].tolist() == [[1000.0, 1001.0, 1002.0], [2000.0, 2001.0, 2002.0]]


@pytest.mark.parametrize("name, saved, here", [("num_envs", 3, 2), ("num_envs", 1, 2), ("frame_stack", 2, 1)])
def test_the_state_of_another_kind_of_buffer_is_refused(buffer_class, name, saved, here):
    buffer, other = made(buffer_class, **{name: saved}), made(buffer_class, **{name: here})
    with pytest.raises(UserError, match=rf"{name} is {saved}, but this one's is {here}: .*{name} = {saved}"):
        other.load_state_dict(through_a_file(buffer.state_dict()))


def test_what_is_peeked_at_is_drawn_next(buffer_class):
    buffer = made(buffer_class, batch_size=5)
    push_all(buffer, Recorded(1, 30, "truncated").pushes())
    for _ in range(2):
        seen = buffer.peek()
        drawn = buffer.sample()
        assert torch.equal(seen.rewards, drawn.rewards) and torch.equal(seen.loss_mask, drawn.loss_mask)
    assert not torch.equal(drawn.rewards, buffer.peek().rewards) or buffer_class is RecurrentReplayBuffer


# Stacks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_stack_is_refused_and_leaves_no_trace(buffer_class, kind):
    episode = Recorded(1, 4, "truncated", 3, kind)
    buffer, expected = (made(buffer_class, space_of(kind, 3), frame_stack=3) for _ in range(2))
    for t, pushed in enumerate(episode.pushes()):
        expected.push(*pushed)
        for wrong in (episode.observation(t), episode.observation(t + 2), episode.observation(t + 1)[::-1].copy()):
            with pytest.raises(ValueError, match=r"older frames of next_observation are not .* frame_stack = 1"):
                buffer.push(*pushed._replace(next_observation=wrong))
        buffer.push(*pushed)
    assert len(buffer) == len(expected) > 0
    assert equal(buffer.sample().observations, expected.sample().observations)


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_that_begins_with_the_frame_at_which_another_was_left_is_another(buffer_class, kind):
    """Its first stack holds zeros, or that frame again, where the other's holds older frames."""
    left = Recorded(1, 5, "left", 3, kind)
    for repeats_first in (False, True):
        class_of_another = type("Another", (Recorded,), {"frame": lambda self, t: _frame(self, t, left)})
        another = class_of_another(2, 4, "both", 3, kind, repeats_first)
        buffer = made(buffer_class, space_of(kind, 3), frame_stack=3)
        push_all(buffer, [*left.pushes(), *another.pushes()])
        assert len(buffer) == (9 if buffer_class is ReplayBuffer else 2)
        batch = buffer.sample()
        assert starts(batch) == [1000.0 + t for t in range(5)] + [2000.0 + t for t in range(4)]
        b = batch.rewards[:, 0, 0].tolist().index(2000.0)
        assert equal(batch.observations[b, :2], np.stack([another.observation(t) for t in (0, 1)]))


def _frame(episode, t, left):
    """Frames of `episode`, of which the first is the last of `left`."""
    return left.frame(left.length) if t == 0 else Recorded.frame(episode, t)


def test_equal_numbers_of_different_bytes_continue_an_episode(buffer_class):
    buffer = made(buffer_class)
    other_nan = np.array([0x7FC00001], np.uint32).view(np.float32)[0]
    buffer.push(np.ones(2), np.zeros(2), 1.0, np.array([0.0, np.nan], np.float32), False, False)
    buffer.push(np.array([-0.0, other_nan], np.float32), np.zeros(2), 2.0, np.ones(2), False, True)
    assert len(buffer) == (2 if buffer_class is ReplayBuffer else 1)
    assert buffer.num_transitions == 2 and (buffer_class is RecurrentReplayBuffer or buffer.size == 3)


@pytest.mark.parametrize(
    "shape, frame_stack, words",
    [
        ((7,), 2, "frame_stack is 2, but observations of shape (7,) are not a stack"),
        ((4, 16, 16), 3, "frame_stack is 3, but observations of shape (4, 16, 16) are not a stack"),
        ((), 2, "frame_stack is 2, but observations of shape () are not a stack"),
        ((4,), 0, "frame_stack is 0"),
        ((4,), -2, "frame_stack is -2"),
        ((16, 16, 4), 4, "frame_stack is 4, but observations of shape (16, 16, 4) are images whose channels are last"),
    ],
)
def test_observations_that_are_no_stacks_are_refused(buffer_class, shape, frame_stack, words):
    with pytest.raises(UserError, match=re.escape(f"{buffer_class.__name__}.{words}")):
        made(buffer_class, Box(0, 255, shape, np.uint8), frame_stack=frame_stack)


def test_no_environments_are_refused(buffer_class):
    with pytest.raises(UserError, match="num_envs is 0"):
        made(buffer_class, num_envs=0)


def test_a_single_frame_counts(buffer_class):
    images = Box(0, 255, (12, 16, 16), np.uint8)
    more = 5 if buffer_class is ReplayBuffer else 0  # termination, and whether a transition starts there
    assert made(buffer_class, images).bytes_per_step == 12 * 256 + 4 * 2 + 4 + more
    assert made(buffer_class, images, frame_stack=4).bytes_per_step == 3 * 256 + 4 * 2 + 4 + more


# Recorded data ----------------------------------------------------------------------------------------------------

ENDS = [(3, "terminated"), (1, "both"), (4, "truncated"), (1, "truncated"), (2, "terminated")]


def as_data(episodes, kind="numbers"):
    """The same episodes as recorded data; its actions stay out of [-1, 1], for they name themselves."""
    steps = [
        pushed for number, episode in enumerate(episodes, 1) for pushed in Recorded(number, *episode, 1, kind).pushes()
    ]
    observations, actions, rewards, following, terminated, truncated, *_ = zip(*steps, strict=True)
    return Dataset.from_arrays(
        observations=np.stack(observations),
        actions=np.clip(np.stack(actions), -1, 1),
        rewards=np.array(rewards, np.float32),
        terminations=np.array(terminated),
        truncations=np.array(truncated),
        next_observations=np.stack(following),
    )


def pushed_and_filled(buffer_class, kind="numbers", **arguments):
    pushed, filled = (made(buffer_class, space_of(kind, 1), **arguments) for _ in range(2))
    for number, episode in enumerate(ENDS, 1):
        for step in Recorded(number, *episode, 1, kind).pushes():
            pushed.push(*step._replace(action=np.clip(step.action, -1, 1)))
    filled.fill(as_data(ENDS, kind).rows(), "episodes")
    return pushed, filled


@pytest.mark.parametrize("kind", ["numbers", "pictures"])
@pytest.mark.parametrize("window", [1, 3])
def test_recorded_data_is_sampled_as_if_it_had_been_pushed(buffer_class, kind, window):
    names = {ReplayBuffer: {"num_steps": window}, RecurrentReplayBuffer: {"segment_len": window, "burn_in": 1}}
    pushed, filled = pushed_and_filled(buffer_class, kind, **names[buffer_class])
    assert len(pushed) == len(filled) and pushed.num_transitions == filled.num_transitions == 11
    for _ in range(3):
        assert same(pushed.sample().without_padding(), filled.sample().without_padding())


def test_recorded_data_is_held_whole_and_not_copied(buffer_class):
    rows = as_data(ENDS).rows()
    buffer = made(buffer_class, capacity=2)
    buffer.fill(rows, "episodes")
    assert len(starts(buffer.sample())) == 11
    held = buffer.storage.observations if buffer_class is ReplayBuffer else buffer.episodes[2].frames
    assert np.shares_memory(held, rows.observations)


def test_images_whose_channels_are_last_are_stored_with_channels_first(buffer_class):
    images = np.arange(4 * 8 * 9 * 2, dtype=np.uint8).reshape(4, 8, 9, 2)
    episode = (images, np.zeros((3, 2), np.float32), np.arange(3.0), True)
    buffer = made(buffer_class, Box(0, 255, (8, 9, 2), np.uint8), batch_size=1)
    buffer.fill(Dataset.from_episodes([episode]).rows(), "images")
    batch = buffer.sample()
    t = int(batch.rewards[0, 0, 0])
    assert equal(batch.observations[0, 0], np.moveaxis(images[t], -1, 0))


def test_a_buffer_of_recorded_data_takes_nothing_else(buffer_class):
    pushed, filled = pushed_and_filled(buffer_class)
    with pytest.raises(ValueError, match=r"recorded data \(episodes\), which takes none"):
        filled.push(*pushes((1, "both"))[0])
    with pytest.raises(ValueError, match="fills a new buffer"):
        pushed.fill(as_data(ENDS).rows(), "episodes")
    with pytest.raises(ValueError, match="num_envs = 1"):
        made(buffer_class, num_envs=2).fill(as_data(ENDS).rows(), "episodes")


def test_a_checkpoint_names_recorded_data_and_goes_on_with_it_alone(buffer_class):
    pushed, filled = pushed_and_filled(buffer_class)
    filled.sample()
    state = through_a_file(filled.state_dict())
    sizes = [value.numel() for value in torch.utils._pytree.tree_leaves(state) if isinstance(value, torch.Tensor)]
    assert max(sizes, default=0) < 10, "arrays of the data are in the checkpoint"
    _, again = pushed_and_filled(buffer_class)
    again.load_state_dict(state)
    assert same(filled.sample(), again.sample())
    other = made(buffer_class)
    other.fill(as_data(ENDS).rows(), "others")
    for buffer, told in ((other, "others"), (pushed, "none")):
        with pytest.raises(UserError, match=f"held episodes, but this one holds {told}"):
            buffer.load_state_dict(state)
    with pytest.raises(UserError, match="held no recorded data, but this one holds episodes"):
        again.load_state_dict(through_a_file(pushed.state_dict()))


def test_the_capacity_has_no_effect_on_recorded_data(buffer_class):
    pushed, filled = pushed_and_filled(buffer_class)
    assert "capacity" in filled.unused_parameters() and "capacity" not in pushed.unused_parameters()
