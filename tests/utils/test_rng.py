"""Generators that are saved and go on."""

import io

import numpy as np
import pytest
import torch

from offpcc.utils.rng import (
    NumpyGenerator,
    SharedState,
    generator_state,
    same_global_generators,
    seed_global_generators,
    set_generator_state,
)


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_a_generators_state_survives_a_file(bits):
    generator = np.random.Generator(bits(5))
    generator.integers(0, 10, 3, dtype=np.int32)  # half of a 64-bit number may be kept back
    state = through_a_file(generator_state(generator))
    expected = generator.integers(0, 10, 5, dtype=np.int32), generator.normal(size=4)
    other = np.random.Generator(bits(6))
    set_generator_state(other, state)
    got = other.integers(0, 10, 5, dtype=np.int32), other.normal(size=4)
    assert np.array_equal(got[0], expected[0]) and np.array_equal(got[1], expected[1])


def test_owners_of_one_seed_differ_and_repeat():
    first, second, again = NumpyGenerator(1, 2), NumpyGenerator(1, 3), NumpyGenerator(1, 2)
    numbers = [g.generator.normal(size=4).tolist() for g in (first, second, again)]
    assert numbers[0] == numbers[2] != numbers[1]
    saved = through_a_file(first.state_dict())
    second.load_state_dict(saved)
    assert first.generator.normal() == second.generator.normal()


class GPUs:
    """Stands for `torch.cuda`, where no GPU is."""

    def __init__(self, is_used):
        self.is_used, self.states = is_used, ["before"]

    def is_available(self):
        return True

    def is_initialized(self):
        return self.is_used

    def get_rng_state_all(self):
        assert self.is_used, "this would set the GPU up"
        return list(self.states)

    def set_rng_state_all(self, states):
        self.states = states

    def manual_seed_all(self, seed):
        self.states = [seed]


def test_generators_of_gpus_are_seeded_and_restored_if_a_gpu_is_used(monkeypatch):
    monkeypatch.setattr(torch, "cuda", gpus := GPUs(True))
    with same_global_generators():
        seed_global_generators(3)
        assert gpus.states == [3]
    assert gpus.states == ["before"]
    monkeypatch.setattr(torch, "cuda", unused := GPUs(False))
    with same_global_generators():
        seed_global_generators(3)
    assert unused.states == ["before"]


def test_a_state_that_overlapping_blocks_change_is_restored_by_the_last():
    value = [0]
    state = SharedState(lambda: value[0], lambda known: value.__setitem__(0, known))
    one, other = state.kept(), state.kept()
    one.__enter__()
    value[0] = 1
    other.__enter__()
    value[0] = 2
    with state.kept():
        value[0] = 3
    assert value[0] == 2, "the innermost block of all restores what was before it"
    one.__exit__(None, None, None)
    assert value[0] == 2
    other.__exit__(None, None, None)
    assert value[0] == 0
