"""The ring of transitions against a plain list of rows."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pushing import (
    ACTIONS,
    ENDS,
    KINDS,
    OBSERVATIONS,
    equal,
    interleaved,
    push_all,
    pushes,
    same,
    space_of,
    through_a_file,
)  # fmt: skip

from offpcc.data import ReplayBuffer
from offpcc.data.buffers import replay
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator


def made(observations=OBSERVATIONS, **arguments):
    return ReplayBuffer(observations, ACTIONS, **{"capacity": 50, "batch_size": 32, **arguments})


class Tape:
    """What an environment's ring stands for: rows on a tape without end, of which the last `capacity` are kept.

    A row holds, if a transition starts there, the transition; an episode's first observation takes `frame_stack` rows.
    """

    def __init__(self, capacity, frame_stack=1):
        self.capacity, self.frame_stack = capacity, frame_stack
        self.rows, self.stands_at = [], None

    def push(self, pushed):
        if self.stands_at is None or not equal(self.stands_at, pushed.observation):
            self.rows += [None] * self.frame_stack
        self.rows[-1] = pushed
        self.rows.append(None)
        self.stands_at = None if pushed.terminated or pushed.truncated else pushed.next_observation

    @property
    def oldest(self):
        return max(len(self.rows) - self.capacity, 0)

    def starts(self):
        """Rows of transitions whose frames are all kept."""
        return [i for i in range(self.oldest + self.frame_stack - 1, len(self.rows)) if self.rows[i] is not None]

    def windows(self, num_steps):
        """By id, what `sample` must return for each transition that is kept."""
        found, starts = {}, self.starts()
        for i in starts:
            steps = []
            while len(steps) < num_steps and self.rows[i + len(steps)] is not None:
                steps.append(self.rows[i + len(steps)])
            found[int(self.rows[i].reward)] = (self.rows[i - 1] if i - 1 in starts else None, steps)
        return found


def check_sample(batch, expected, num_steps, space=OBSERVATIONS):
    """Every row is one of the `expected` windows, and every window is drawn."""
    rows = len(batch.actions)
    assert batch.observations.shape == (rows, num_steps + 1, *space.shape)
    assert batch.actions.shape == (rows, num_steps, 2)
    assert batch.rewards.shape == batch.terminations.shape == batch.loss_mask.shape == (rows, num_steps, 1)
    assert batch.valid.shape == (rows, num_steps + 1, 1)
    assert batch.first_action.shape == (rows, 2) and batch.first_reward.shape == (rows, 1)
    assert batch.observations.numpy().dtype == space.dtype
    assert all(x.dtype == torch.float32 for x in batch[1:8]) and batch.burn_in == 0
    assert batch.complete == (num_steps == 1)
    assert torch.equal(batch.loss_mask[:, 0], torch.ones(rows, 1)) and batch.loss_mask[:, 1:].sum() == 0
    identities, first, again = np.unique(batch.rewards[:, 0, 0], return_index=True, return_inverse=True)
    assert set(identities.astype(int)) == set(expected)
    assert all(equal(x, x[first[again]]) for x in batch[:8])  # so that it is enough to look at the first
    for identity, b in zip(identities.astype(int), first, strict=True):
        before, steps = expected[identity]
        real = [1.0] * (len(steps) + 1) + [0.0] * (num_steps - len(steps))
        assert batch.valid[b, :, 0].tolist() == real
        for t, pushed in enumerate(steps):
            assert equal(batch.observations[b, t], pushed.observation)
            assert equal(batch.observations[b, t + 1], pushed.next_observation)
            assert equal(batch.actions[b, t], pushed.action)
            assert batch.rewards[b, t, 0] == pushed.reward
            assert batch.terminations[b, t, 0] == float(pushed.terminated)
        assert equal(batch.first_action[b], np.zeros(2, np.float32) if before is None else before.action)
        assert batch.first_reward[b, 0] == (0.0 if before is None else before.reward)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    episodes=st.lists(st.tuples(st.integers(1, 6), st.sampled_from(list(ENDS))), min_size=1, max_size=8),
    num_pushes=st.integers(1, 150),
    num_envs=st.integers(1, 3),
    frame_stack=st.integers(1, 4),
    kind=st.sampled_from(KINDS),
    repeats_first=st.booleans(),
    spare_rows=st.integers(0, 10),
    remainder=st.integers(0, 2),
    num_steps=st.integers(1, 4),
    first_block=st.integers(1, 7),
    every=st.integers(7, 40),
    saved_at=st.integers(0, 60),
    seed=st.integers(0, 1000),
)
def test_samples_are_the_tapes_windows(
    episodes, num_pushes, num_envs, frame_stack, kind, repeats_first, spare_rows, remainder, num_steps, first_block,
    every, saved_at, seed,
):  # fmt: skip
    """Whatever was pushed and is still whole can be drawn, as it was pushed, and nothing else; saved or not."""
    rows = frame_stack + 1 + spare_rows
    arguments = {
        "observations": space_of(kind, frame_stack),
        "capacity": rows * num_envs + remainder % num_envs,
        "batch_size": 1500,
        "num_steps": num_steps,
        "num_envs": num_envs,
        "frame_stack": frame_stack,
    }
    looks = {"frame_stack": frame_stack, "kind": kind, "repeats_first": repeats_first}
    with mock.patch.object(replay, "FIRST_BLOCK", first_block):
        buffer = restored = made(**arguments)
        tapes = [Tape(rows, frame_stack) for _ in range(num_envs)]
        stream = interleaved(episodes, num_pushes, num_envs, seed, **looks)
        for number, (env, _, pushed) in enumerate(stream):
            if number == saved_at:
                restored = made(**arguments)
                restored.load_state_dict(through_a_file(buffer.state_dict()))
            for one in {buffer, restored}:
                one.push(*pushed._replace(env=env))
            tapes[env].push(pushed)
            expected = {}
            for tape in tapes:
                expected |= tape.windows(num_steps)
            assert len(buffer) == buffer.num_transitions == len(expected)
            assert [ring.size for ring in buffer.rings] == [min(len(tape.rows), rows) for tape in tapes]
            if number % every == 0 or number == num_pushes - 1:
                batch = buffer.sample()
                check_sample(batch, expected, num_steps, arguments["observations"])
                assert restored is buffer or same(batch, restored.sample())


@pytest.mark.parametrize("num_envs, frame_stack", [(1, 1), (3, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("num_pushes", [1, 30, 200])
def test_the_draws_are_places_of_interleaved_rings(num_envs, frame_stack, num_pushes):
    """With one environment and no stacks these are rows of one ring: a run's batches are what they always were."""
    buffer = made(
        space_of("numbers", frame_stack), capacity=24 * num_envs, seed=5, num_envs=num_envs, frame_stack=frame_stack
    )
    tapes = [Tape(24, frame_stack) for _ in range(num_envs)]
    episodes = [(3, "left"), (7, "terminated"), (1, "both"), (9, "truncated")]
    for env, _, pushed in interleaved(episodes, num_pushes, num_envs, 0, frame_stack=frame_stack):
        buffer.push(*pushed._replace(env=env))
        tapes[env].push(pushed)
    held, before = {}, {}  # transitions, and those before them in their episode, by place
    for env, tape in enumerate(tapes):
        for i in tape.starts():
            held[i % 24 * num_envs + env] = tape.rows[i]
            before[i % 24 * num_envs + env] = tape.rows[i - 1] if i - 1 in tape.starts() else None
    size = num_envs * max(min(len(tape.rows), 24) for tape in tapes)
    draw = NumpyGenerator(5, 2).generator.random
    for _ in range(3):
        drawn = []
        while len(drawn) < 32:  # a sixteenth more than are needed, without those where no transition starts
            drawn += [place for place in (draw(34) * size).astype(int).tolist() if place in held]
        drawn, batch = drawn[:32], buffer.sample()
        assert batch.rewards[:, 0, 0].tolist() == [held[place].reward for place in drawn]
        earlier = [before[place] for place in drawn]
        assert batch.first_reward[:, 0].tolist() == [0.0 if one is None else one.reward for one in earlier]
        assert all(map(equal, batch.observations[:, 1], [held[place].next_observation for place in drawn]))
        assert equal(batch.observations[:, 1], np.stack([held[place].next_observation for place in drawn]))


# Drawing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "episodes", [[(4, "left")], [(3, "left"), (7, "terminated"), (1, "both"), (9, "truncated")] * 2]
)
def test_transitions_are_drawn_uniformly(episodes):
    buffer = made(capacity=24, batch_size=20_000)
    push_all(buffer, pushes(*episodes))
    _, counts = buffer.sample().rewards[:, 0, 0].unique(return_counts=True)
    assert len(counts) == len(buffer) >= 4
    expected = 20_000 / len(counts)
    freedom = len(counts) - 1
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < freedom + 4.0 * np.sqrt(2.0 * freedom)  # mean and standard deviation of chi-square


def test_an_empty_buffer_has_nothing_to_sample():
    with pytest.raises(ValueError, match="nothing has been pushed"):
        made().sample()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"capacity": 1}, "capacity is 1,"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"num_steps": 0}, "num_steps is 0"),
        ({"capacity": 7, "num_envs": 4}, "2 rows, in each of 4 environments"),
        ({"capacity": 5, "frame_stack": 2, "num_envs": 2}, "3 rows, in each of 2 environments"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments, words):
    with pytest.raises(UserError, match=words):
        made(**arguments)
    made(capacity=8, num_envs=4)
    made(capacity=6, num_envs=2, frame_stack=2)
