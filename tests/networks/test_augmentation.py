"""Random shifts against a plain loop over padded images."""

import numpy as np
import pytest
import torch

from offpcc.data import RandomShift
from offpcc.networks.noise import Noise

CPU = torch.device("cpu")


class Recorder(Noise):
    """Noise that remembers what it drew."""

    def __init__(self, seed=0):
        super().__init__(seed, CPU)
        self.drawn = []

    def integers(self, low, high, shape):
        self.drawn.append((low, high, super().integers(low, high, shape)))
        return self.drawn[-1][2]


def frames_of(dtype, rows=3, steps=4, channels=2, height=9, width=7):
    shape = (rows, steps, channels, height, width)
    values = np.random.default_rng(0).integers(0, 256, shape)
    return torch.from_numpy(values.astype(dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("pad", [1, 4, 12])
@pytest.mark.parametrize("one_per_row", [True, False])
def test_shifted_images_are_crops_of_padded_ones(dtype, pad, one_per_row):
    frames, noise = frames_of(dtype), Recorder()
    kept = frames.clone()
    shifted = RandomShift(pad)(frames, noise, one_per_row=one_per_row)
    assert torch.equal(frames, kept) and shifted.shape == frames.shape and shifted.dtype == frames.dtype
    ((low, high, shifts),) = noise.drawn
    assert (low, high) == (-pad, pad + 1) and shifts.numel() == 3 * (1 if one_per_row else 4) * 2
    shifts = shifts.reshape(3, -1, 2)
    for b in range(3):
        for t in range(4):
            dy, dx = shifts[b, 0 if one_per_row else t].tolist()
            padded = np.pad(frames[b, t].numpy(), ((0, 0), (pad, pad), (pad, pad)), mode="edge")
            expected = padded[:, pad + dy : pad + dy + 9, pad + dx : pad + dx + 7]
            assert np.array_equal(shifted[b, t], expected)


def directions(frames, pad, one_per_row):
    """How far each frame was shifted, read off frames whose pixels hold their place."""
    height, width = frames
    place = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")).float()
    shifted = RandomShift(pad)(place.expand(400, 3, 2, height, width), Noise(1, CPU), one_per_row=one_per_row)
    return (shifted[..., height // 2, width // 2] - torch.tensor([height // 2, width // 2])).int()


@pytest.mark.parametrize("one_per_row", [True, False])
def test_every_shift_is_as_likely_and_rows_move_together_if_asked(one_per_row):
    found = directions((11, 13), 2, one_per_row)
    together = (found == found[:, :1]).all()
    assert bool(together) == one_per_row
    seen, counts = found[:, 0].unique(dim=0, return_counts=True)
    assert len(seen) == 25 and seen.min() == -2 and seen.max() == 2
    assert ((counts - 16.0) ** 2 / 16.0).sum() < 24 + 4.0 * np.sqrt(48.0)


def test_no_pad_changes_and_draws_nothing():
    frames, noise = frames_of(np.uint8), Recorder()
    assert torch.equal(RandomShift(0)(frames, noise, one_per_row=False), frames) and noise.drawn == []


def test_shifts_come_from_the_given_noise():
    frames = frames_of(np.float32, rows=20)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, again, other = (RandomShift(3)(frames, Noise(seed, CPU), one_per_row=False) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_a_single_transition_is_augmented_on_both_sides():
    frames = frames_of(np.float32, rows=50, steps=2)
    shifted = RandomShift(4)(frames, Noise(0, CPU), one_per_row=False)
    assert all((shifted[:, t] != frames[:, t]).flatten(1).any(1).sum() > 45 for t in range(2))
