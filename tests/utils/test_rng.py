"""Generators that are saved and go on."""

import io

import numpy as np
import pytest
import torch

from offpcc.utils.rng import NumpyGenerator, generator_state, set_generator_state


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
