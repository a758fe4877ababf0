"""Batch and its mean, specifications, generators and image rules."""

import functools
import io
import math

import gin
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from offpcc.core import (
    Batch,
    NumpyGenerator,
    UserError,
    channels_first,
    channels_first_shape,
    channels_last,
    configurable,
    from_specification,
    generator_state,
    is_image,
    set_generator_state,
    specification,
)


@pytest.fixture(autouse=True)
def no_bindings():
    gin.clear_config()
    yield
    gin.clear_config()


@configurable
class ProbeParent:
    def __init__(self, size, *, rate=0.1, names=("a",), part=None):
        self.size, self.rate, self.names, self.part = size, rate, names, part

    def values(self):
        return self.size, self.rate, tuple(self.names), self.part


@configurable
class ProbeChild(ProbeParent):
    def __init__(self, size, *, depth=2, **kwargs):
        super().__init__(size, **kwargs)
        self.depth = depth


@configurable
class ProbeHeir(ProbeChild):
    """Without an `__init__` of its own."""


@configurable
class ProbeOptions:
    """Takes anything, and has no parent that would remember it."""

    def __init__(self, **options):
        self.options = options


class Unregistered:
    pass


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
        real=real,
        mask=mask,
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
        real=append_padding(batch.real, k, 0.0),
        mask=append_padding(batch.mask, k, 0.0),
    )
    missing = longer.real == 0
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
        counted = [x[(*index, b, t)] for b in range(3) for t in range(4) if batch.mask[b, t, 0]]
        assert len(counted) == 9
        expected[index] = np.concatenate(counted).mean()
    mean = batch.mean(torch.from_numpy(x))
    assert mean.shape == leading
    np.testing.assert_allclose(mean, expected, rtol=1e-12)


def test_mean_and_its_gradient_ignore_nan_where_nothing_counts():
    batch = random_batch()
    x = torch.ones(2, 3, 4, 2).masked_fill(batch.mask == 0, math.nan).requires_grad_()
    mean = batch.mean(x.square())
    torch.testing.assert_close(mean.detach(), torch.ones(2))
    mean.sum().backward()
    expected = (batch.mask * 2 / (9 * 2)).expand(2, 3, 4, 2)
    torch.testing.assert_close(torch.where(batch.mask > 0, x.grad, 0.0), expected)


def test_mean_leaves_burn_in_out():
    batch = random_batch(lengths=(4, 4, 4))
    batch = batch._replace(mask=batch.mask.index_fill(1, torch.tensor([0, 1]), 0.0), burn_in=2)
    x = torch.arange(4.0).view(1, 4, 1).expand(3, 4, 1)
    assert batch.mean(x).item() == 2.5


def test_has_step_needs_both_observations():
    batch = random_batch(lengths=(4, 2, 3))
    real = batch.real.clone()
    real[2, 0] = 0.0  # a row that is padded on the left
    expected = [[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]]
    assert batch._replace(real=real).has_step()[..., 0].int().tolist() == expected


@pytest.mark.parametrize("k", [0, 1, 5])
@pytest.mark.parametrize("observation", [(2,), (1, 8, 8)])
@pytest.mark.parametrize("value", [math.nan, math.inf, 7.0])
def test_what_padding_holds_is_gone(k, observation, value):
    batch = random_batch(observation=observation)
    clean = padded(batch, k, value).without_padding()
    for name in ("observations", "actions", "rewards", "terminations", "real", "mask"):
        expected = append_padding(getattr(batch, name), k, 0.0)
        assert torch.equal(getattr(clean, name), expected), name
    assert torch.equal(clean.first_action, batch.first_action)
    assert torch.equal(clean.first_reward, batch.first_reward)
    x = torch.randn(2, 3, 4 + k, 2)
    torch.testing.assert_close(clean.mean(x), batch.mean(x[:, :, :4]))


def test_padding_on_the_left_is_gone_too():
    batch = random_batch(lengths=(4, 4, 4))
    real = batch.real.clone()
    real[0, :2] = 0.0
    poisoned = batch._replace(
        real=real,
        observations=batch.observations.masked_fill(real == 0, math.nan),
        actions=batch.actions.index_put((torch.tensor([0, 0]), torch.tensor([0, 1])), torch.tensor(math.nan)),
    )
    clean = poisoned.without_padding()
    assert clean.observations[0, :2].abs().sum() == 0 and clean.actions[0, :2].abs().sum() == 0
    assert torch.equal(clean.observations[0, 2:], batch.observations[0, 2:])
    assert torch.equal(clean.actions[0, 2:], batch.actions[0, 2:])
    assert torch.equal(clean.observations[1:], batch.observations[1:])


def test_without_padding_keeps_bytes_bytes():
    batch = random_batch(observation=(1, 8, 8))
    batch = batch._replace(observations=torch.full((3, 5, 1, 8, 8), 9, dtype=torch.uint8))
    clean = batch.without_padding()
    assert clean.observations.dtype == torch.uint8
    assert torch.equal(clean.observations[:, :, 0, 0, 0], (9 * batch.real[..., 0]).to(torch.uint8))


def test_to_keeps_every_field():
    batch = random_batch()._replace(burn_in=2)
    moved = batch.to(torch.device("meta"))
    assert moved.burn_in == 2
    assert all(x.device.type == "meta" for x in moved[:-1])
    assert [x.shape for x in moved[:-1]] == [x.shape for x in batch[:-1]]


# Specifications -------------------------------------------------------------------------------------------------


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("value", [None, True, 3, 2.5, -math.inf, "text", (), (1, (2.0, "x")), {"a": (1,), "b": None}])
def test_plain_data_comes_back(value):
    assert from_specification(through_a_file(specification(value))) == value


def test_numpy_numbers_and_devices_become_plain():
    assert specification(np.float32(0.5)) == 0.5 and type(specification(np.float32(0.5))) is float
    assert specification(np.int64(3)) == 3 and type(specification(np.int64(3))) is int
    assert specification(torch.device("cpu")) == "cpu"


def test_an_object_comes_back_with_all_its_arguments():
    made = ProbeHeir(3, depth=5, names=["x", "y"], part=ProbeParent(1, rate=0.7))
    again = from_specification(through_a_file(specification(made)))
    assert type(again) is ProbeHeir and type(again.part) is ProbeParent
    assert (again.size, again.depth, again.rate, tuple(again.names)) == (3, 5, 0.1, ("x", "y"))
    assert again.part.values() == (1, 0.7, ("a",), None)


def test_arguments_given_by_position_are_remembered():
    assert from_specification(specification(ProbeHeir(7))).size == 7


def test_arguments_without_a_name_in_the_signature_are_remembered():
    assert from_specification(specification(ProbeOptions(a=1, b=(2, 3)))).options == {"a": 1, "b": (2, 3)}


def test_bindings_are_part_of_an_objects_specification():
    gin.parse_config("ProbeParent.rate = 0.9\nProbeChild.depth = 8")
    spec = through_a_file(specification(ProbeHeir(1)))
    gin.clear_config()
    again = from_specification(spec)
    assert (again.rate, again.depth) == (0.9, 8)


def test_references_and_nested_partials_come_back():
    inner = functools.partial(ProbeParent, rate=0.3)
    outer = functools.partial(functools.partial(ProbeChild, depth=4), part=inner, names=("k",))
    builder = from_specification(through_a_file(specification({"reference": ProbeHeir, "partial": outer})["partial"]))
    made = builder(2)
    assert type(made) is ProbeChild and (made.size, made.depth, made.names) == (2, 4, ("k",))
    assert made.part(5).values() == (5, 0.3, ("a",), None)
    assert from_specification(specification(ProbeHeir)) is ProbeHeir


def test_overrides_replace_outermost_arguments_only():
    spec = specification(ProbeParent(1, rate=0.2, part=ProbeParent(2, rate=0.2)))
    again = from_specification(spec, rate=0.6)
    assert (again.rate, again.part.rate) == (0.6, 0.2)


@pytest.mark.parametrize("shape, dtype", [((3,), np.float32), ((84, 84, 3), np.uint8)])
def test_a_box_keeps_shape_and_dtype(shape, dtype):
    low, high = (0, 255) if dtype == np.uint8 else (-2, 2)
    again = from_specification(through_a_file(specification(Box(low, high, shape, dtype))))
    assert (again.shape, again.dtype) == (shape, np.dtype(dtype))


@pytest.mark.parametrize("value", [Unregistered(), Unregistered, len, [Unregistered()], {"a": Unregistered()}])
def test_what_cannot_be_written_is_told(value):
    with pytest.raises(UserError, match=r"offpcc\.configurable"):
        specification(value)


@pytest.mark.parametrize("spec", [{"class": "NobodyKnows", "arguments": {}}, {"reference": "NobodyKnows"}])
def test_an_unknown_class_is_named(spec):
    with pytest.raises(UserError, match=r"NobodyKnows.*import"):
        from_specification(spec)


# configurable ---------------------------------------------------------------------------------------------------


def test_bindings_of_a_parent_reach_its_children_whose_own_win():
    gin.parse_config("ProbeParent.rate = 0.5\nProbeChild.rate = 0.6\nProbeChild.names = ('b',)")
    assert ProbeParent(1).rate == 0.5 and ProbeParent(1).names == ("a",)
    for cls in (ProbeChild, ProbeHeir):
        assert cls(1).rate == 0.6 and cls(1).names == ("b",), cls
    gin.parse_config("ProbeHeir.rate = 0.7")
    assert (ProbeParent(1).rate, ProbeChild(1).rate, ProbeHeir(1).rate) == (0.5, 0.6, 0.7)


def test_arguments_win_over_bindings():
    gin.parse_config("ProbeParent.rate = 0.5\nProbeHeir.depth = 9")
    made = ProbeHeir(1, rate=0.1, depth=3)
    assert (made.rate, made.depth) == (0.1, 3)


def test_the_operative_config_makes_the_same_object():
    gin.parse_config(
        "ProbeParent.rate = 0.5\nProbeParent.names = ('n', 'm')\nProbeChild.depth = 6\nProbeHeir.size = 4\n"
        "ProbeParent.part = @ProbeParent"
    )
    made = ProbeHeir()
    config = gin.operative_config_str()
    gin.clear_config()
    with pytest.raises(TypeError):
        ProbeHeir()
    gin.parse_config(config)
    again = ProbeHeir()
    assert again.values() == made.values() == (4, 0.5, ("n", "m"), ProbeParent)
    assert again.depth == made.depth == 6


def test_a_registered_class_stays_itself():
    assert ProbeChild.__name__ == "ProbeChild" and ProbeChild.__module__ == __name__
    assert isinstance(ProbeHeir(1), ProbeParent)
    assert "__init__" in vars(ProbeHeir) and ProbeHeir.__doc__ == "Without an `__init__` of its own."


# Generators -----------------------------------------------------------------------------------------------------


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


# Images ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, image, last, stored",
    [
        ((3,), False, False, (3,)),
        ((84, 84), False, False, (84, 84)),
        ((2, 3, 4), False, False, (2, 3, 4)),
        ((7, 7, 7), False, False, (7, 7, 7)),
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
