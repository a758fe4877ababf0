"""Batch and its mean, and image rules."""

import math

import numpy as np
import pytest
import torch

from offpcc.core import Batch, channels_first, channels_first_shape, channels_last, is_image

# Batch ----------------------------------------------------------------------------------------------------------


def random_batch(B=3, T=4, lengths=(4, 2, 3), observation=(2,), seed=0, dtype=torch.float32):
    """Rows of the given lengths, zeros after them."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=random, dtype=dtype)

    steps = torch.arange(T + 1)[None, :, None]
    ends = torch.tensor(lengths)[:, None, None]
    real, mask = (steps <= ends).to(dtype), (steps[:, :-1] < ends).to(dtype)
    return Batch(
        observations=normal(B, T + 1, *observation) * real.view(B, T + 1, *(1,) * len(observation)),
        actions=normal(B, T, 2) * mask,
        rewards=normal(B, T, 1) * mask,
        terminations=(steps[:, :-1] == ends - 1).to(dtype),
        valid=real,
        loss_mask=mask,
        first_action=normal(B, 2),
        first_reward=normal(B, 1),
    )


def append_padding(x, k, value):
    return torch.cat([x, torch.full((len(x), k, *x.shape[2:]), value, dtype=x.dtype)], 1)


def padded(batch, k, value=math.nan):
    """`batch` with k more steps, and all padding holding `value`."""
    longer = batch._replace(
        **{
            name: append_padding(getattr(batch, name), k, value)
            for name in ("observations", "actions", "rewards", "terminations")
        },
        valid=append_padding(batch.valid, k, 0.0),
        loss_mask=append_padding(batch.loss_mask, k, 0.0),
    )
    missing = longer.valid == 0
    step_missing = missing[:, :-1] | missing[:, 1:]
    return longer._replace(
        observations=longer.observations.masked_fill(
            missing.view(*missing.shape[:2], *(1,) * (longer.observations.dim() - 2)), value
        ),
        actions=longer.actions.masked_fill(step_missing, value),
        rewards=longer.rewards.masked_fill(step_missing, value),
        terminations=longer.terminations.masked_fill(step_missing, value),
    )


@pytest.mark.parametrize("leading", [(), (2,), (10, 3)])
@pytest.mark.parametrize("dim", [1, 3])
def test_mean_is_over_counted_steps_and_the_last_axis(leading, dim):
    batch = random_batch(dtype=torch.float64)
    random = np.random.default_rng(1)
    x = random.normal(size=(*leading, 3, 4, dim))
    expected = np.zeros(leading)
    for index in np.ndindex(*leading):
        counted = [x[(*index, b, t)] for b in range(3) for t in range(4) if batch.loss_mask[b, t, 0]]
        assert len(counted) == 9
        expected[index] = np.concatenate(counted).mean()
    mean = batch.mean(torch.from_numpy(x))
    assert mean.shape == leading
    np.testing.assert_allclose(mean, expected, rtol=1e-12)


def test_mean_and_its_gradient_ignore_nan_where_nothing_counts():
    batch = random_batch()
    x = torch.ones(2, 3, 4, 2).masked_fill(batch.loss_mask == 0, math.nan).requires_grad_()
    mean = batch.mean(x.square())
    torch.testing.assert_close(mean.detach(), torch.ones(2))
    mean.sum().backward()
    expected = (batch.loss_mask * 2 / (9 * 2)).expand(2, 3, 4, 2)
    torch.testing.assert_close(torch.where(batch.loss_mask > 0, x.grad, 0.0), expected)


def test_mean_leaves_burn_in_out():
    batch = random_batch(lengths=(4, 4, 4))
    batch = batch._replace(loss_mask=batch.loss_mask.index_fill(1, torch.tensor([0, 1]), 0.0), burn_in=2)
    x = torch.arange(4.0).view(1, 4, 1).expand(3, 4, 1)
    assert batch.mean(x).item() == 2.5


def test_has_step_needs_both_observations():
    batch = random_batch(lengths=(4, 2, 3))
    real = batch.valid.clone()
    real[2, 0] = 0.0  # a row that is padded on the left
    expected = [[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]]
    assert batch._replace(valid=real).has_step()[..., 0].int().tolist() == expected


@pytest.mark.parametrize("k", [0, 1, 5])
@pytest.mark.parametrize("observation", [(2,), (1, 8, 8)])
@pytest.mark.parametrize("value", [math.nan, math.inf, 7.0])
def test_what_padding_holds_is_gone(k, observation, value):
    batch = random_batch(observation=observation)
    clean = padded(batch, k, value).without_padding()
    for name in ("observations", "actions", "rewards", "terminations", "valid", "loss_mask"):
        expected = append_padding(getattr(batch, name), k, 0.0)
        assert torch.equal(getattr(clean, name), expected), name
    assert torch.equal(clean.first_action, batch.first_action)
    assert torch.equal(clean.first_reward, batch.first_reward)
    x = torch.randn(2, 3, 4 + k, 2)
    torch.testing.assert_close(clean.mean(x), batch.mean(x[:, :, :4]))


def test_padding_on_the_left_is_gone_too():
    batch = random_batch(lengths=(4, 4, 4))
    real = batch.valid.clone()
    real[0, :2] = 0.0
    poisoned = batch._replace(
        valid=real,
        observations=batch.observations.masked_fill(real == 0, math.nan),
        actions=batch.actions.index_put((torch.tensor([0, 0]), torch.tensor([0, 1])), torch.tensor(math.nan)),
    )
    clean = poisoned.without_padding()
    assert clean.observations[0, :2].abs().sum() == 0 and clean.actions[0, :2].abs().sum() == 0
    assert torch.equal(clean.observations[0, 2:], batch.observations[0, 2:])
    assert torch.equal(clean.actions[0, 2:], batch.actions[0, 2:])
    assert torch.equal(clean.observations[1:], batch.observations[1:])


@pytest.mark.parametrize("complete", [False, True])
def test_next_actions_that_do_not_exist_are_gone(complete):
    batch = random_batch()._replace(complete=complete)
    exists = (torch.arange(4) % 2).view(1, 4, 1).expand(len(batch.actions), 4, 1).float()
    given = torch.where(exists > 0, batch.actions, math.nan)
    clean = batch._replace(next_actions=given, has_next_action=exists).without_padding()
    assert torch.equal(clean.next_actions, batch.actions * exists)


def test_without_padding_keeps_bytes_bytes():
    batch = random_batch(observation=(1, 8, 8))
    batch = batch._replace(observations=torch.full((3, 5, 1, 8, 8), 9, dtype=torch.uint8))
    clean = batch.without_padding()
    assert clean.observations.dtype == torch.uint8
    assert torch.equal(clean.observations[:, :, 0, 0, 0], (9 * batch.valid[..., 0]).to(torch.uint8))


def test_to_keeps_every_field():
    batch = random_batch()._replace(burn_in=2)
    moved = batch.to(torch.device("meta"))
    assert moved.burn_in == 2
    tensors = [(x, y) for x, y in zip(moved, batch, strict=True) if isinstance(y, torch.Tensor)]
    assert len(tensors) == 8 and all(x.device.type == "meta" and x.shape == y.shape for x, y in tensors)


# Images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, image, last, stored",
    [
        ((3,), False, False, (3,)),
        ((84, 84), False, False, (84, 84)),
        ((2, 3, 4), False, False, (2, 3, 4)),
        ((6, 6, 6), False, False, (6, 6, 6)),
        ((7, 7, 7), True, False, (7, 7, 7)),
        ((20, 7, 7), True, False, (20, 7, 7)),
        ((3, 84, 84), True, False, (3, 84, 84)),
        ((84, 84, 3), True, True, (3, 84, 84)),
        ((84, 84, 1), True, True, (1, 84, 84)),
        ((9, 64, 64), True, False, (9, 64, 64)),
        ((64, 64, 9), True, True, (9, 64, 64)),
        ((48, 64, 3), True, True, (3, 48, 64)),
        ((3, 48, 64), True, False, (3, 48, 64)),
        ((3, 64, 48), True, False, (3, 64, 48)),
        ((8, 8, 8), True, False, (8, 8, 8)),
        ((2, 3, 84, 84), False, False, (2, 3, 84, 84)),
    ],
)
def test_what_counts_as_an_image_and_where_its_channels_are(shape, image, last, stored):
    assert is_image(shape) == image
    assert channels_last(shape) == last
    assert channels_first_shape(shape) == stored
    observation = np.arange(2 * math.prod(shape)).reshape(2, *shape)
    moved = channels_first(observation, shape)
    assert moved.shape == (2, *stored)
    expected = observation.transpose(0, 3, 1, 2) if last else observation
    assert np.array_equal(moved, expected)
