"""Whole episodes and segments of them against plain lists."""

import re

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st
from pushing import (
    ACTIONS,
    ENDS,
    KINDS,
    OBSERVATIONS,
    Recorded,
    equal,
    interleaved,
    push_all,
    recorded,
    same,
    space_of,
    through_a_file,
)  # fmt: skip

from offpcc.data import RecurrentReplayBuffer
from offpcc.data.buffers.storage import PartialEpisode
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator


def made(observations=OBSERVATIONS, **arguments):
    return RecurrentReplayBuffer(observations, ACTIONS, **{"capacity": 50, "batch_size": 16, **arguments})


def filled(buffer, *episodes):
    for episode in recorded(*episodes):
        push_all(buffer, episode.pushes())
    return buffer


def choices(episode, segment_len):
    """The steps at which a row's counted part may start."""
    return [0] if segment_len is None else range(episode.length)


def check_row(batch, b, episode, start, segment_len, burn_in):
    """Row `b`, whose counted part begins at `start`, one position after another; its length after the burn-in."""
    stop = episode.length if segment_len is None else min(start + segment_len, episode.length)
    steps = batch.actions.shape[1]
    whole = start >= burn_in > 0  # the burn-in, else the row begins with the episode, at position `burn_in`
    begin, earliest = (start, start - burn_in) if whole or burn_in == 0 else (0, 0)
    for position in range(steps + 1):
        t = begin + position - burn_in  # the episode's step at this position
        exists = earliest <= t <= stop
        assert batch.valid[b, position, 0] == float(exists)
        observation = episode.observation(t) if exists else np.zeros_like(episode.observation(0))
        assert equal(batch.observations[b, position], observation)
        if position == steps:
            continue
        exists = earliest <= t < stop
        assert batch.loss_mask[b, position, 0] == float(start <= t < stop)
        assert np.array_equal(batch.actions[b, position], episode.action(t) if exists else np.zeros(2))
        assert batch.rewards[b, position, 0] == (episode.reward(t) if exists else 0.0)
        ended = exists and t == episode.length - 1 and ENDS[episode.end][0]
        assert batch.terminations[b, position, 0] == float(ended)
    if earliest > 0:
        assert np.array_equal(batch.first_action[b], episode.action(earliest - 1))
        assert batch.first_reward[b, 0] == episode.reward(earliest - 1)
    else:
        assert batch.first_action[b].abs().sum() == 0 and batch.first_reward[b, 0] == 0
    return stop - begin


def check_sample(batch, kept, segment_len, burn_in, space=OBSERVATIONS):
    rows, steps = batch.actions.shape[:2]
    assert batch.burn_in == burn_in
    assert batch.observations.shape == (rows, steps + 1, *space.shape) and batch.actions.shape == (rows, steps, 2)
    assert batch.rewards.shape == batch.terminations.shape == batch.loss_mask.shape == (rows, steps, 1)
    assert batch.valid.shape == (rows, steps + 1, 1)
    assert batch.first_action.shape == (rows, 2) and batch.first_reward.shape == (rows, 1)
    assert batch.observations.numpy().dtype == space.dtype
    assert all(x.dtype == torch.float32 for x in batch[1:8]) and not batch.complete
    expected = {(e.number, start): e for e in kept for start in choices(e, segment_len)}
    begins = batch.rewards[np.arange(rows), batch.loss_mask[..., 0].argmax(1), 0]
    identities, first, again = np.unique(begins, return_index=True, return_inverse=True)
    places = [divmod(int(identity), 1000) for identity in identities]
    assert set(places) == set(expected)
    assert all(equal(x, x[first[again]]) for x in batch[:8])  # so that it is enough to look at the first
    lengths = [
        check_row(batch, b, expected[place], place[1], segment_len, burn_in)
        for place, b in zip(places, first, strict=True)
    ]
    assert steps == burn_in + max(lengths)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    episodes=st.lists(st.tuples(st.integers(1, 6), st.sampled_from(list(ENDS))), min_size=1, max_size=6),
    num_pushes=st.integers(1, 60),
    num_envs=st.integers(1, 3),
    frame_stack=st.integers(1, 4),
    kind=st.sampled_from(KINDS),
    repeats_first=st.booleans(),
    capacity=st.integers(1, 5),
    segment_len=st.sampled_from([None, 1, 2, 3, 10]),
    burn_in=st.integers(0, 4),
    every=st.integers(5, 30),
    saved_at=st.integers(0, 40),
    seed=st.integers(0, 1000),
)
def test_samples_are_episodes_or_segments_of_the_kept_ones(
    episodes, num_pushes, num_envs, frame_stack, kind, repeats_first, capacity, segment_len, burn_in, every, saved_at,
    seed,
):  # fmt: skip
    """Episodes of all environments, as they were pushed, in the order in which they ended; saved or not."""
    burn_in = 0 if segment_len is None else burn_in
    arguments = {
        "observations": space_of(kind, frame_stack),
        "capacity": capacity,
        "batch_size": 1000,
        "segment_len": segment_len,
        "burn_in": burn_in,
        "num_envs": num_envs,
        "frame_stack": frame_stack,
    }
    looks = {"frame_stack": frame_stack, "kind": kind, "repeats_first": repeats_first}
    buffer = restored = made(**arguments)
    finished, left = [], [None] * num_envs
    for number, (env, episode, pushed) in enumerate(interleaved(episodes, num_pushes, num_envs, seed, **looks)):
        if number == saved_at:
            restored = made(**arguments)
            restored.load_state_dict(through_a_file(buffer.state_dict()))
        for one in {buffer, restored}:
            one.push(*pushed._replace(env=env))
        if left[env]:  # until something of its environment that does not continue it followed
            finished.append(left[env])
            left[env] = None
        if pushed.reward == episode.reward(episode.length - 1):
            if pushed.terminated or pushed.truncated:
                finished.append(episode)
            else:
                left[env] = episode
        kept = finished[-capacity:]
        assert len(buffer) == len(kept) and buffer.num_transitions == sum(e.length for e in kept)
        assert [int(e.rewards[0, 0]) // 1000 for e in buffer.episodes] == [e.number for e in kept]
        if kept and (number % every == 0 or number == num_pushes - 1):
            batch = buffer.sample()
            check_sample(batch, kept, segment_len, burn_in, arguments["observations"])
            assert restored is buffer or same(batch, restored.sample())


# What is stored -------------------------------------------------------------------------------------------------


def test_an_unfinished_episode_is_hidden():
    buffer = filled(made(batch_size=100), (3, "terminated"), (5, "left"))
    assert len(buffer) == 1 and buffer.num_transitions == 3
    assert buffer.sample().observations[:, 0, 0].unique().tolist() == [1.0]
    last = Recorded(2, 6, "truncated")
    buffer.push(last.observation(5), last.action(5), last.reward(5), last.observation(6), False, True)
    assert len(buffer) == 2 and buffer.num_transitions == 9
    assert buffer.sample().observations[:, 0, 0].unique().tolist() == [1.0, 2.0]


@pytest.mark.parametrize("end, termination", [("terminated", 1.0), ("truncated", 0.0), ("both", 1.0)])
def test_only_the_true_last_step_may_be_a_termination(end, termination):
    batch = filled(made(), (4, end)).sample()
    assert batch.terminations[..., 0].unique(dim=0).tolist() == [[0.0, 0.0, 0.0, termination]]
    assert batch.observations[:, -1].unique(dim=0).tolist() == [[1.0, 4.0]]
    batch = filled(made(segment_len=2, batch_size=200), (4, end)).sample()
    at_end = (batch.observations[:, :-1, 1] == 3.0) & (batch.loss_mask[..., 0] > 0)
    assert at_end.any() and torch.equal(batch.terminations[..., 0], at_end * termination)


@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
def test_an_episode_that_begins_where_the_last_ended_is_another(end):
    buffer, start = made(), np.zeros(2, np.float32)
    for reward in (1.0, 2.0):
        buffer.push(start, np.full(2, reward), reward, start, *ENDS[end])
    assert len(buffer) == 2 and buffer.sample().actions.shape[1] == 1


def test_an_older_checkpoint_without_the_recorded_steps_of_episodes_is_read():
    """It has none of a rollout, so every step counts."""
    buffer, other = filled(made(), (3, "terminated"), (5, "truncated")), made()
    state = through_a_file(buffer.state_dict())
    assert state.pop("num_recorded") == [0, 0]
    other.load_state_dict(state)
    assert same(buffer.sample(), other.sample())


def test_what_does_not_continue_an_episode_cuts_it_without_a_termination():
    buffer = made(batch_size=100)
    push_all(buffer, Recorded(1, 3, "left").pushes())
    other = Recorded(2, 2, "terminated")
    push_all(buffer, other.pushes())
    check_sample(buffer.sample(), [Recorded(1, 3, "left"), other], None, 0)


def test_nothing_is_kept_of_a_dropped_episode():
    buffer = made(batch_size=100, num_envs=2)
    dropped, whole, other = Recorded(1, 3, "left"), Recorded(2, 2, "terminated"), Recorded(3, 4, "truncated")
    for pushed in dropped.pushes():
        buffer.push(*pushed)
        buffer.push(*[*other.pushes()][len(buffer.unfinished[1].actions)]._replace(env=1))
    buffer.drop(0)
    push_all(buffer, whole.pushes())
    buffer.push(*[*other.pushes()][3]._replace(env=1))
    assert len(buffer) == 2
    check_sample(buffer.sample(), [whole, other], None, 0)


def test_the_oldest_makes_room():
    buffer = filled(made(capacity=2, batch_size=200), (1, "both"), (2, "both"), (3, "both"))
    assert len(buffer) == 2 and buffer.sample().observations[:, 0, 0].unique().tolist() == [2.0, 3.0]


class Shares(RecurrentReplayBuffer):
    """Notes the share of each item that changes."""

    def item_changed(self, item):
        self.noted = [*getattr(self, "noted", []), (item, *self.shares(np.array([item])).tolist())]


def test_shares_are_up_to_date_when_an_item_has_changed():
    buffer = Shares(OBSERVATIONS, ACTIONS, capacity=3)
    filled(buffer, (2, "truncated"), (3, "terminated"))
    other = filled(made(), (4, "truncated"), (1, "terminated"))
    buffer.extend(other.transition_table(), np.array([1, 0]))
    assert buffer.noted == [(0, 2.0), (1, 3.0), (2, 3.0), (0, 1.0)]


def test_each_frame_is_stored_once():
    episode = Recorded(1, 20, "both", 3, "pictures")
    buffer = made(space_of("pictures", 3), frame_stack=3)
    push_all(buffer, episode.pushes())
    held = buffer.episodes[0]
    assert held.frames.shape == (20 + 3, 2, 8, 9) and held.frames.dtype == np.uint8
    ((saved, _, _),) = buffer.state_dict()["chunks"]
    assert equal(saved, held.frames)


@pytest.mark.parametrize("space_shape", [(9, 10, 3), (3, 9, 10)])
def test_images_stay_bytes_with_channels_first_each_once(space_shape):
    frames = np.random.default_rng(0).integers(0, 256, (21, 3, 9, 10), np.uint8)
    given_frames = frames.transpose(0, 2, 3, 1) if space_shape[-1] == 3 else frames
    buffer = made(Box(0, 255, space_shape, np.uint8))
    for t in range(20):
        buffer.push(given_frames[t], np.zeros(2), 0.0, given_frames[t + 1], False, t == 19)
    assert len(buffer) == 1 and buffer.episodes[0].frames.nbytes == frames.nbytes
    batch = buffer.sample()
    assert batch.observations.dtype == torch.uint8 and np.array_equal(batch.observations[0], frames)


# Drawing --------------------------------------------------------------------------------------------------------


def test_an_episode_is_drawn_by_the_number_of_one_of_its_steps():
    """A run's batches are what they always were."""
    lengths = [3, 1, 8, 5]
    buffer = filled(made(seed=5), *((length, "both") for length in lengths))
    owner = np.repeat([1, 2, 3, 4], lengths)
    draw = NumpyGenerator(5, 2).generator.integers
    for _ in range(3):
        assert equal(buffer.sample().observations[:, 0, 0].int(), owner[draw(0, 17, 16)].astype(np.int32))


def chi_square_is_plausible(counts, shares):
    expected = np.array(shares) / np.sum(shares) * np.sum(counts)
    freedom = len(counts) - 1
    return ((np.array(counts) - expected) ** 2 / expected).sum() < freedom + 4.0 * np.sqrt(2.0 * freedom)


@pytest.mark.parametrize("segment_len", [None, 5])
def test_episodes_are_drawn_in_proportion_to_their_length(segment_len):
    lengths = [1, 9, 30, 4, 16]
    buffer = filled(made(batch_size=10_000, segment_len=segment_len), *((n, "truncated") for n in lengths))
    numbers = buffer.sample().observations[:, 0, 0].int().numpy()
    counts = np.bincount(numbers, minlength=6)[1:]
    assert chi_square_is_plausible(counts, lengths)
    assert not chi_square_is_plausible(counts, [1] * 5)


@pytest.mark.parametrize("burn_in", [0, 1, 2, 3, 7, 11, 12, 20])
def test_windows_slide_evenly_whatever_the_burn_in(burn_in):
    """A window of 4 slides over 12 steps and beyond; from places before step 0 it is moved there."""
    buffer = filled(made(batch_size=12_000, segment_len=4, burn_in=burn_in), (12, "truncated"))
    batch = buffer.sample()
    mask, steps = batch.loss_mask[..., 0].numpy(), batch.observations[:, :-1, 1].int().numpy()
    firsts = steps[np.arange(12_000), mask.argmax(1)]
    assert chi_square_is_plausible(np.bincount(firsts, minlength=12), [4, *[1] * 11])
    assert np.array_equal(mask.sum(1), np.minimum(12 - firsts, 4))
    warm = batch.valid[:, :burn_in, 0].numpy()
    assert np.array_equal(warm, np.broadcast_to((firsts >= max(burn_in, 1))[:, None], warm.shape))
    assert mask[:, :burn_in].sum() == 0 and batch.burn_in == burn_in


def test_segments_reach_what_came_before_them():
    buffer = filled(made(batch_size=300, segment_len=2, burn_in=3), (9, "terminated"))
    batch, episode, seen = buffer.sample(), Recorded(1, 9, "terminated"), set()
    for b in range(300):
        start = int(batch.observations[b, 3, 1])  # at which the row begins after its burn-in
        seen.add((start, start + int(batch.loss_mask[b, 3:, 0].argmax())))
        first = start - 3
        expected = (episode.action(first - 1), episode.reward(first - 1)) if first > 0 else (np.zeros(2), 0.0)
        assert np.array_equal(batch.first_action[b], expected[0]) and batch.first_reward[b, 0] == expected[1]
    assert seen == {(0, 0), (0, 1), (0, 2), *((start, start) for start in range(3, 9))}


@pytest.mark.parametrize("segment_len, burn_in", [(5, 0), (5, 2), (5, 5), (4, 9), (1, 30)])
def test_no_step_counts_less_often_than_others(segment_len, burn_in):
    buffer = filled(made(batch_size=20_000, segment_len=segment_len, burn_in=burn_in), (20, "terminated"))
    batch = buffer.sample()
    steps = batch.observations[:, :-1, 1].int().numpy()
    counted = np.bincount(steps[batch.loss_mask[..., 0].numpy() > 0], minlength=20)
    assert counted.min() > 0.85 * np.median(counted)
    assert counted.max() < 2.2 * np.median(counted)  # the first steps: windows moved to step 0 are whole


def test_rows_are_padded_to_the_longest_drawn():
    buffer = filled(made(batch_size=1), (2, "both"), (5, "both"))
    drawn = [buffer.sample() for _ in range(20)]
    assert {batch.actions.shape[1] for batch in drawn} == {2, 5}
    assert all(batch.loss_mask.all() and batch.valid.all() for batch in drawn)


# Saving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_before", [0, 3, 5, 6, 8, 12, 20])
@pytest.mark.parametrize("capacity", [2, 10])
@pytest.mark.parametrize("segments", [{}, {"segment_len": 2, "burn_in": 2}])
def test_a_restored_buffer_goes_on_alike(num_before, capacity, segments):
    episodes = recorded((5, "terminated"), (7, "left"), (1, "truncated"), (9, "both"), (4, "left"), (10, "truncated"))
    pushes = [pushed for episode in episodes for pushed in episode.pushes()]
    buffer = made(capacity=capacity, seed=1, **segments)
    for pushed in pushes[:num_before]:
        buffer.push(*pushed)
        if len(buffer):
            buffer.sample()
    state = buffer.state_dict()
    saved = through_a_file(state)
    other = filled(made(capacity=capacity, seed=2, **segments), (3, "both"), (2, "left"))  # which is forgotten
    other.load_state_dict(saved)
    for number in range(num_before, len(pushes) + 1):
        assert (len(other), other.num_transitions) == (len(buffer), buffer.num_transitions)
        if len(buffer):
            assert same(buffer.sample(), other.sample())
        if number < len(pushes):
            buffer.push(*pushes[number])
            other.push(*pushes[number])
    assert len(buffer) == min(6, capacity)
    third = made(capacity=capacity, **segments)
    third.load_state_dict(state)  # what went on afterwards is not in it
    again = through_a_file(third.state_dict())
    assert str(again) == str(saved) and again["lengths"] == saved["lengths"]


def test_a_smaller_buffer_keeps_the_newest_of_a_saved_one():
    buffer = filled(made(), (1, "both"), (2, "both"), (3, "both"))
    other = made(capacity=2, batch_size=100)
    other.load_state_dict(through_a_file(buffer.state_dict()))
    check_sample(other.sample(), recorded((1, "both"), (2, "both"), (3, "both"))[1:], None, 0)


def test_a_restored_episode_keeps_no_others_memory():
    buffer, other = filled(made(), (4, "both"), (2, "both"), (3, "left")), made()
    other.load_state_dict(buffer.state_dict())
    assert all(array.flags.owndata for episode in other.episodes for array in episode[:3])


@pytest.mark.parametrize("num_steps", [0, 3])
def test_an_episode_under_way_is_saved_and_goes_on(num_steps):
    episode = filled(made(), (num_steps, "left")).unfinished[0] if num_steps else PartialEpisode()
    other = filled(made(), (5, "left")).unfinished[0]  # which is forgotten
    other.load_state_dict(through_a_file(episode.state_dict()))
    assert str(other) == str(episode) and len(other.rewards) == num_steps
    for part in (other.frames, other.actions, other.rewards):
        part.append(np.zeros(2))
    assert len(episode.rewards) == num_steps


# Sizes and faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space", [OBSERVATIONS, Box(0, 255, (16, 16, 3), np.uint8), Box(0, 255, (6, 16, 16), np.uint8)]
)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_planned_bytes_are_those_that_a_full_buffer_takes(space, num_envs):
    frame_stack = 2 if space.shape[0] == 6 else 1
    buffer = made(space, capacity=4, num_envs=num_envs, frame_stack=frame_stack)
    observation = np.zeros(space.shape, space.dtype)
    step, frame = 4 * 2 + 4, observation.nbytes // frame_stack
    for t in range(699):
        for env in range(num_envs):
            buffer.push(observation, np.zeros(2), 0.0, observation, False, t % 100 == 99, env=env)
    finished = sum(array.nbytes for episode in buffer.episodes for array in episode[:3])
    assert finished == 4 * (100 * (frame + step) + frame_stack * frame)  # each frame once
    under_way = sum(array.nbytes for one in buffer.unfinished for array in one.frames + one.actions)
    under_way += sum(4 * len(one.rewards) for one in buffer.unfinished)
    assert under_way == num_envs * (99 * (frame + step) + frame_stack * frame)
    steps = (4 + num_envs) * 100
    bound = buffer.planned_bytes(10**6, 100)
    assert bound == steps * buffer.bytes_per_step + (4 + num_envs) * frame_stack * frame
    assert 0 <= bound - finished - under_way == num_envs * (frame + step)
    fewer = num_envs * 130  # steps, in two episodes of each environment
    assert buffer.planned_bytes(fewer, 100) == fewer * buffer.bytes_per_step + 2 * num_envs * frame_stack * frame
    assert buffer.planned_bytes(10**6, None) == 10**6 * buffer.bytes_per_step


def test_an_empty_buffer_has_nothing_to_sample():
    with pytest.raises(ValueError, match="no episode has ended yet"):
        filled(made(), (4, "left")).sample()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"burn_in": 3}, "burn_in is 3 but segment_len is None"),
        ({"capacity": 0}, "capacity is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"segment_len": 0}, "segment_len is 0"),
        ({"segment_len": 2, "burn_in": -1}, "burn_in is -1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments, words):
    with pytest.raises(UserError, match=re.escape(words)):
        made(**arguments)


@pytest.mark.parametrize("draw_by, step_weights", [("steps", (1, 3, 8)), ("episodes", (1, 1, 1))])
def test_a_steps_weight_with_whole_episodes(draw_by, step_weights):
    """By length, a step weighs with its episode's length; drawn uniformly, all steps weigh the same."""
    buffer = filled(made(batch_size=500, draw_by=draw_by), (1, "truncated"), (3, "truncated"), (8, "truncated"))
    counts = np.zeros(3)
    for _ in range(20):
        batch = buffer.sample()
        rewards = batch.rewards[batch.loss_mask > 0].numpy()
        counts += [np.isclose(rewards, 1000.0 * number).sum() for number in (1, 2, 3)]  # of each episode's first step
    assert chi_square_is_plausible(counts, np.array(step_weights) / sum(step_weights))


def test_draw_by_is_one_of_two():
    with pytest.raises(UserError, match=r"draw_by is 'length'; it has to be one of steps, episodes"):
        made(draw_by="length")
