"""Batches of recorded data and new experience."""

import numpy as np
import pytest
import torch
from on_device import recorded_rows
from pushing import ACTIONS, push_all, recorded, through_a_file

from offpcc.core import Batch
from offpcc.data import PrioritizedRecurrentReplayBuffer, PrioritizedReplayBuffer, RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.base import BufferBase
from offpcc.data.buffers.mixed import MixedBuffer, concat_batches
from offpcc.utils.errors import UserError

BOTH = pytest.mark.parametrize("buffer_class", [ReplayBuffer, RecurrentReplayBuffer])
NEW = 10_000.0  # added to the rewards of new experience


def mixed(
    buffer_class=ReplayBuffer, share=0.5, batch_size=8, kind="numbers", lengths=(9, 2), reads_next=False, discount=None
):
    space, rows = recorded_rows(kind)
    parts = [buffer_class(space, ACTIONS, batch_size=batch_size, seed=seed) for seed in (1, 2)]
    parts[0].fill(rows, "five episodes")
    parts[1].gives_next_actions, parts[1].return_discount = reads_next, discount
    buffer = MixedBuffer(*parts, share)
    buffer.begin(3)
    for episode in recorded(*((length, "truncated", 1, kind) for length in lengths)):
        for pushed in episode.pushes():
            frames = [np.moveaxis(x, 0, -1) if kind == "pictures" else x for x in (pushed.observation, pushed[3])]
            changed = pushed._replace(observation=frames[0], next_observation=frames[1], reward=NEW + pushed.reward)
            buffer.push(*changed)
    return buffer


def is_new(batch):
    counted = batch.loss_mask[..., 0] > 0
    return [bool((row[mask] >= NEW).all()) for row, mask in zip(batch.rewards[..., 0], counted, strict=True)]


@BOTH
@pytest.mark.parametrize("kind", ["numbers", "pictures"])
@pytest.mark.parametrize(("share", "num_recorded"), [(0.5, 4), (0.25, 2), (0.9, 7), (1.0, 8)])
def test_each_batch_has_exactly_its_share(buffer_class, kind, share, num_recorded):
    buffer = mixed(buffer_class, share, kind=kind)
    for _ in range(20):
        batch = buffer.sample()
        assert is_new(batch) == [False] * num_recorded + [True] * (8 - num_recorded)
        assert batch.complete is (buffer_class is ReplayBuffer)


def test_rows_keep_their_steps_and_the_shorter_ones_are_padded():
    buffer = mixed(RecurrentReplayBuffer)
    batch, parts = buffer.sample(), buffer.drawn
    assert batch.rewards.shape[1] == max(part.rewards.shape[1] for part in parts) == 9
    start = 0
    for part in parts:
        rows, steps = slice(start, start + len(part.rewards)), part.rewards.shape[1]
        for name in ("actions", "rewards", "terminations", "loss_mask"):
            assert torch.equal(getattr(batch, name)[rows, :steps], getattr(part, name))
            assert not getattr(batch, name)[rows, steps:].any()
        for name in ("observations", "valid"):
            assert torch.equal(getattr(batch, name)[rows, : steps + 1], getattr(part, name))
            assert not getattr(batch, name)[rows, steps + 1 :].any()
        for name in ("first_action", "first_reward"):
            assert torch.equal(getattr(batch, name)[rows], getattr(part, name))
        start += len(part.rewards)


@BOTH
def test_next_actions_come_from_both_parts(buffer_class):
    batch = mixed(buffer_class, reads_next=True).sample()
    actions, exists = batch.recorded_next_actions()
    assert actions.shape == batch.actions.shape and exists.shape == batch.rewards.shape
    assert exists[:4].any() and exists[4:].any()


@BOTH
def test_returns_come_from_both_parts(buffer_class):
    """Also if only the algorithm of the second phase reads them."""
    _, discounts = mixed(buffer_class, discount=0.9).sample().recorded_returns()
    assert discounts[:4].any() and discounts[4:].any()


def test_it_is_empty_until_both_parts_have_something():
    assert len(mixed(lengths=())) == 0
    assert len(mixed(lengths=(), share=1.0)) == 11
    buffer = mixed(RecurrentReplayBuffer, lengths=())
    first = next(recorded((3, "left"))[0].pushes())
    buffer.push(*first)
    assert len(buffer) == 0  # its first episode has not ended
    buffer.truncate(0)
    assert len(buffer) == 6
    buffer.drop(0)
    assert len(buffer.sample().rewards) == 8


@BOTH
def test_a_saved_one_draws_the_same_batches(buffer_class):
    buffer, other = mixed(buffer_class), mixed(buffer_class, lengths=())
    buffer.sample()
    BufferBase.load_state_dict(other, through_a_file(BufferBase.state_dict(buffer)))
    for _ in range(5):
        for one, two in zip(buffer.sample(), other.sample(), strict=True):
            assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two


def test_a_preview_changes_nothing():
    buffer = mixed()
    assert torch.equal(buffer.peek().rewards, buffer.sample().rewards)


@pytest.mark.parametrize("buffer_class", [PrioritizedReplayBuffer, PrioritizedRecurrentReplayBuffer])
def test_each_part_gets_the_td_errors_of_its_own_items(buffer_class):
    space, rows = recorded_rows()
    parts = [buffer_class(space, ACTIONS, batch_size=6, capacity=50, eta=1.0, alpha=1.0) for _ in range(2)]
    parts[0].fill(rows, "five episodes")
    buffer = MixedBuffer(*parts, 0.5)
    buffer.begin(0)
    push_all(buffer, recorded((9, "truncated"))[0].pushes())
    batch = buffer.sample()
    assert batch.weights.shape == (6, 1, 1)
    errors = torch.tensor([2.0, 2.0, 2.0, 5.0, 5.0, 5.0])[:, None, None].expand_as(batch.loss_mask)
    buffer.update_priorities(batch, errors)
    for part, error in zip(parts, (2.0, 5.0), strict=True):
        assert np.allclose(part.powers[part.drawn], error + part.epsilon)


def test_a_field_that_one_part_lacks_is_filled():
    batch = mixed().sample()
    known = batch._replace(weights=torch.full((8, 1, 1), 0.5), next_actions=batch.actions)
    both = concat_batches([known, batch._replace(next_actions=None)])
    assert both.weights[:, 0, 0].tolist() == [0.5] * 8 + [1.0] * 8
    assert torch.equal(both.next_actions[:8], batch.actions) and not both.next_actions[8:].any()
    assert both.has_next_action is None
    assert len(Batch._fields) == len(both)


@pytest.mark.parametrize(("share", "batch_size"), [(0.05, 8), (0.97, 8), (0.5, 1)])
def test_a_share_of_no_whole_item_is_refused(share, batch_size):
    with pytest.raises(
        UserError, match=rf"share is {share:g}, which gives .* recorded items in a batch of {batch_size}; "
    ):
        mixed(share=share, batch_size=batch_size)


def test_a_padded_batch_is_not_complete():
    """Else `Batch.mean` would count the padding."""
    short, long = (mixed(lengths=(3,)).sample() for _ in range(2))
    assert concat_batches([short, long]).complete
    assert not concat_batches([short, long._replace(complete=False)]).complete  # it may have padding of its own
    longer = long._replace(**{
        name: torch.cat([getattr(long, name)] * 2, 1) for name in ("actions", "rewards", "terminations", "loss_mask")
    }, observations=long.observations[:, [0, 0, 1]], valid=long.valid[:, [0, 0, 1]])  # fmt: skip
    batch = concat_batches([short, longer])
    assert not batch.complete
    assert batch.mean(torch.ones(*batch.rewards.shape)) == 1.0
