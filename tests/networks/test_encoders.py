"""Encoders: step by step as at once, resets, dimensions, and the alignment of their inputs."""

import ast
import functools
import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from offpcc.algorithms import SAC
from offpcc.algorithms.variants import ConvolutionalSAC
from offpcc.config import loading
from offpcc.core import Batch
from offpcc.networks import Convolutional, Encoder, Identity, Inputs, InputShape, Recurrent
from offpcc.networks.cells import CELLS, Cell
from offpcc.networks.states import keep_rows, map_state
from offpcc.utils.errors import UserError

ROWS, STEPS, ACTION_DIM = 3, 7, 2
VECTOR, IMAGE = (4,), (2, 12, 10)
SMALL = functools.partial(Convolutional, channels=(4, 3), kernels=(3, 3), strides=(2, 1), feature_dim=6)
RECURRENT = [
    functools.partial(Recurrent, cell=cell, hidden_dim=5, num_layers=depth) for cell in CELLS for depth in (1, 2)
]
KINDS = {
    "identity": (Identity, VECTOR),
    "identity-2d": (Identity, (3, 2)),
    "convolutional": (SMALL, IMAGE),
    **{f"{r.keywords['cell']}-{r.keywords['num_layers']}": (r, VECTOR) for r in RECURRENT},
    **{
        f"{r.keywords['cell']}-on-convolutional": (functools.partial(r, feature_extractor=SMALL), IMAGE)
        for r in RECURRENT[1::2]
    },
}
WITH_MEMORY = [kind for kind in KINDS if kind.split("-")[0] in CELLS]
EXTRAS = [(False, False), (True, False), (False, True), (True, True)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def made(kind, extras=(False, False), dtype=torch.float64):
    torch.manual_seed(0)
    builder, observation = KINDS[kind]
    use_action, use_reward = extras
    encoder = builder(
        InputShape(observation, ACTION_DIM), use_previous_action=use_action, use_previous_reward=use_reward
    )
    return encoder.to(dtype), observation


def random_inputs(observation, dtype=torch.float64, rows=ROWS, steps=STEPS):
    random = torch.Generator().manual_seed(1)
    shapes = [(rows, steps, *observation), (rows, steps, ACTION_DIM), (rows, steps, 1)]
    return Inputs(*(torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes))


def row_of(inputs, row):
    return Inputs(*(x[row : row + 1] for x in inputs))


# Step by step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step_is_at_once(kind, extras, dtype):
    encoder, observation = made(kind, extras, dtype)
    inputs = random_inputs(observation, dtype)
    with torch.no_grad():
        at_once, last = encoder(inputs)
        assert at_once.shape == (ROWS, STEPS, encoder.dim) and at_once.dtype == dtype
        for pieces in ([1] * STEPS, [3, 1, 3], [2, 5]):
            state, parts, at = None, [], 0
            for size in pieces:
                h, state = encoder(inputs.steps(at, at + size), state)
                parts.append(h)
                at += size
            torch.testing.assert_close(torch.cat(parts, 1), at_once, rtol=0, atol=TOLERANCE[dtype])
    close = functools.partial(torch.testing.assert_close, rtol=0, atol=TOLERANCE[dtype])
    if encoder.memoryless:
        assert state is None and last is None
    else:
        close(state, last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_start_anew_in_the_middle(kind, dtype):
    encoder, observation = made(kind, (True, True), dtype)
    inputs = random_inputs(observation, dtype)
    starts = [[0, 3], [0], [0, 1, 6]]  # of each row's episodes
    is_first = torch.zeros(ROWS, STEPS)
    expected = torch.zeros(ROWS, STEPS, encoder.dim, dtype=dtype)
    with torch.no_grad():
        for row, begins in enumerate(starts):
            for begin, end in zip(begins, [*begins[1:], STEPS], strict=True):
                expected[row, begin:end] = encoder(row_of(inputs, row).steps(begin, end))[0][0]
                is_first[row, begin] = 1.0
        state, parts = None, []
        for t in range(STEPS):
            state = keep_rows(state, 1.0 - is_first[:, t])
            h, state = encoder(inputs.steps(t, t + 1), state)
            parts.append(h)
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", WITH_MEMORY)
def test_memory_reaches_back_but_not_ahead_nor_across_rows(kind):
    encoder, observation = made(kind)
    inputs = random_inputs(observation)
    changed = inputs._replace(observation=inputs.observation.clone())
    changed.observation[1, 3] += 1.0
    with torch.no_grad():
        moved = (encoder(inputs)[0] - encoder(changed)[0]).abs().sum(-1) > 1e-9
    expected = torch.zeros(ROWS, STEPS, dtype=torch.bool)
    expected[1, 3:] = True
    assert torch.equal(moved, expected)


@pytest.mark.parametrize("kind", ["lstm-2", "gru-1", "rnn-2", "mingru-2", "lru-2", "gpt-2"])
def test_gradients_flow_through_the_handed_on_state(kind):
    encoder, observation = made(kind)
    inputs = random_inputs(observation)
    weights = torch.randn(ROWS, STEPS, encoder.dim, dtype=torch.float64)
    gradients = []
    for pieces in ([STEPS], [4, 3]):
        state, parts, at = None, [], 0
        for size in pieces:
            h, state = encoder(inputs.steps(at, at + size), state)
            parts.append(h)
            at += size
        gradients.append(torch.autograd.grad((torch.cat(parts, 1) * weights).sum(), list(encoder.parameters())))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", WITH_MEMORY)
def test_long_sequences_are_fed_in_pieces_that_change_nothing(kind, dtype, monkeypatch):
    encoder, observation = made(kind, dtype=dtype)
    inputs = random_inputs(observation, dtype)
    weights = torch.randn(ROWS, STEPS, encoder.dim, dtype=dtype, generator=torch.Generator().manual_seed(2))
    lengths, found = [], []
    encoder.cell.register_forward_pre_hook(lambda _, arguments: lengths.append(arguments[0].shape[1]))
    for piece in (STEPS, 3):
        monkeypatch.setattr("offpcc.networks.cells.base.PIECE", piece)
        h, state = encoder(inputs)
        parameters = list(encoder.parameters())
        gradients = torch.autograd.grad((h * weights).sum(), parameters) if parameters else ()
        found.append((h, state, gradients))
    assert lengths == [STEPS, 3, 3, 1]
    torch.testing.assert_close(*found, rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype])


def test_keep_rows_and_map_state_reach_every_tensor():
    state = (torch.ones(3, 2, 4), (torch.full((3, 1), float("nan")), None))
    kept = keep_rows(state, torch.tensor([1.0, 0.0, 1.0]))
    assert kept[0][1].sum() == 0 and kept[0][[0, 2]].eq(1).all()
    assert kept[1][0][1].item() == 0.0 and kept[1][0][[0, 2]].isnan().all() and kept[1][1] is None
    assert keep_rows(None, torch.ones(3)) is None
    doubled = map_state(lambda s: 2 * s, (torch.ones(2), (torch.ones(1),)))
    assert doubled[0].tolist() == [2, 2] and doubled[1][0].tolist() == [2]


def test_states_that_could_not_be_handed_on_are_refused():
    numbers = keep_rows((torch.arange(3), torch.ones(3, 1, dtype=torch.bool)), torch.tensor([1.0, 0.0, 1.0]))
    assert [part.dtype for part in numbers] == [torch.int64, torch.bool]
    assert numbers[0].tolist() == [0, 0, 2] and numbers[1].flatten().tolist() == [True, False, True]
    with pytest.raises(UserError, match=r"has the shape \(1, 3, 4\) in a batch of 3; its first axis must be the batch"):
        keep_rows(torch.ones(1, 3, 4), torch.ones(3))
    for state, name in (([torch.ones(3)], "list"), ((torch.ones(3), {}), "dict")):
        with pytest.raises(UserError, match=f"a memory's state contains a {name}; it must be a tensor"):
            keep_rows(state, torch.ones(3))


class Unmeasured(Cell):
    def __init__(self, num_in, hidden_dim, num_layers):
        super().__init__()


def test_a_memory_without_a_width_is_refused():
    with pytest.raises(UserError, match=r"Unmeasured.dim is not set; set it in __init__ to the width"):
        Recurrent(InputShape((3,), 1), cell=Unmeasured)


class Renaming(Cell):
    def __init__(self, input_dim, width, depth):
        super().__init__()


class Ordered(Cell):
    def __init__(self, *sizes):
        super().__init__()


@pytest.mark.parametrize("cell, names", [
    (Renaming, "Renaming takes the arguments input_dim, width, depth"),
    (functools.partial(Renaming, depth=3), "Renaming takes the arguments input_dim, width, depth"),
    (Ordered, "Ordered takes the arguments sizes"),
    (CELLS["lstm"], None),
])  # fmt: skip
def test_a_memory_with_other_names_is_refused(cell, names):
    """By its place an argument is no better known: an actor's file knows it by name."""
    if names is None:
        assert Recurrent(InputShape((3,), 1), cell=cell, hidden_dim=4, num_layers=1).dim == 4
        return
    with pytest.raises(UserError) as caught:
        Recurrent(InputShape((3,), 1), cell=cell)
    assert caught.value.message == (
        f"{names}; a cell gets num_in, hidden_dim and num_layers by keyword, so give its arguments these names"
    )


@pytest.mark.parametrize("kind", WITH_MEMORY)
def test_states_have_the_batch_first(kind):
    encoder, observation = made(kind)
    _, state = encoder(random_inputs(observation))
    shapes = []
    map_state(lambda part: shapes.append(tuple(part.shape)), state)
    assert shapes and all(shape[0] == ROWS for shape in shapes)
    if kind.startswith(("lstm", "gru", "rnn")):
        depth = 2 if "convolutional" in kind else int(kind.split("-")[1])
        assert set(shapes) == {(ROWS, depth, 5)}


# Dimensions and contents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("kind, dim", [("identity", 4), ("identity-2d", 6), ("convolutional", 6)])
def test_extras_follow_the_features_of_a_memoryless_encoder(kind, dim, extras):
    encoder, observation = made(kind, extras)
    inputs = random_inputs(observation)
    h, state = encoder(inputs)
    assert encoder.memoryless and state is None
    assert encoder.dim == h.shape[-1] == dim + 2 * extras[0] + extras[1]
    if kind != "convolutional":
        assert torch.equal(h[..., :dim], inputs.observation.flatten(2))
    chosen = [x for x, used in zip(inputs[1:], extras, strict=True) if used]
    if chosen:
        assert torch.equal(h[..., dim:], torch.cat(chosen, -1))


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("kind", ["lstm-2", "gru-on-convolutional"])
def test_a_recurrent_encoder_reads_the_extras_that_are_on(kind, extras):
    encoder, observation = made(kind, extras)
    assert not encoder.memoryless and encoder.dim == 5
    inputs = random_inputs(observation)
    with torch.no_grad():
        h = encoder(inputs)[0]
        for name, used in zip(("previous_action", "previous_reward"), extras, strict=True):
            changed = encoder(inputs._replace(**{name: getattr(inputs, name) + 1.0}))[0]
            assert torch.equal(h, changed) != used


def test_an_lstm_by_hand():
    encoder, observation = made("lstm-1", (True, True))
    inputs = random_inputs(observation, rows=1)
    weights = {name: p.detach().numpy() for name, p in encoder.cell.named_parameters()}
    h, c, expected = np.zeros(5), np.zeros(5), []
    x = torch.cat([*inputs], -1)[0].numpy()

    def sigmoid(z):
        return 1.0 / (1.0 + np.exp(-z))

    for t in range(STEPS):
        gates = weights["weight_ih_l0"] @ x[t] + weights["weight_hh_l0"] @ h
        i, f, g, o = np.split(gates + weights["bias_ih_l0"] + weights["bias_hh_l0"], 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        expected.append(h)
    np.testing.assert_allclose(encoder(inputs)[0][0].detach(), np.stack(expected), rtol=0, atol=1e-12)


def test_convolutions_by_hand():
    encoder, observation = made("convolutional")
    frames = random_inputs(observation, rows=1, steps=1).observation
    x = frames[0, 0].numpy()
    for layer, stride in zip([m for m in encoder.convolutions if isinstance(m, nn.Conv2d)], (2, 1), strict=True):
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        height, width = ((n - 3) // stride + 1 for n in x.shape[1:])
        y = np.zeros((len(weight), height, width))
        for i in range(height):
            for j in range(width):
                patch = x[:, stride * i : stride * i + 3, stride * j : stride * j + 3]
                y[:, i, j] = (weight * patch).sum((1, 2, 3)) + bias
        x = np.maximum(y, 0.0)
    linear, norm, _ = encoder.features
    z = linear.weight.detach().numpy() @ x.flatten() + linear.bias.detach().numpy()
    z = (z - z.mean()) / np.sqrt(z.var() + norm.eps)
    h, _ = encoder(Inputs(frames, torch.zeros(1, 1, 2), torch.zeros(1, 1, 1)))
    np.testing.assert_allclose(h[0, 0].detach(), np.tanh(z), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["convolutional", "gru-on-convolutional"])
def test_bytes_are_scaled_to_one(kind):
    encoder, observation = made(kind, dtype=torch.float32)
    inputs = random_inputs(observation, torch.float32)
    frames = torch.randint(0, 256, inputs.observation.shape, dtype=torch.uint8)
    with torch.no_grad():
        h, _ = encoder(inputs._replace(observation=frames))
        expected, _ = encoder(inputs._replace(observation=frames.float() / 255.0))
    torch.testing.assert_close(h, expected, rtol=0, atol=1e-6)
    assert h.dtype == torch.float32


@pytest.mark.parametrize("extras", [(False, False), (True, True)])
def test_a_vector_of_bytes_becomes_numbers(extras):
    encoder, observation = made("identity", extras, torch.float32)
    inputs = random_inputs(observation, torch.float32)
    h, _ = encoder(inputs._replace(observation=torch.full((ROWS, STEPS, 4), 200, dtype=torch.uint8)))
    assert h.dtype == torch.float32 and h[..., :4].eq(200.0).all()


def test_a_front_sees_each_observation_and_may_have_extras_of_its_own():
    feature_extractor = functools.partial(Identity, use_previous_reward=True)
    encoder = Recurrent(
        InputShape(VECTOR, ACTION_DIM), hidden_dim=3, feature_extractor=feature_extractor, use_previous_action=True
    )
    assert encoder.cell.input_size == 4 + 1 + 2 and encoder.cell.num_layers == 2 and encoder.dim == 3


# Faults ---------------------------------------------------------------------------------------------------------


def test_images_without_convolutions_are_refused():
    with pytest.raises(UserError, match=r"\(3, 84, 84\).*convolutional.*csac for sac"):
        Identity(InputShape((3, 84, 84), 1))
    with pytest.raises(UserError, match="images"):
        Recurrent(InputShape((3, 84, 84), 1))


@pytest.mark.parametrize("num_frames", [31, 32, 64])
def test_many_images_have_channels_last_in_memory_and_the_same_features_and_gradients(num_frames):
    encoder = SMALL(InputShape(IMAGE, ACTION_DIM)).double()
    images = torch.randint(0, 256, (num_frames, 1, *IMAGE), dtype=torch.uint8)
    read = []
    encoder.convolutions.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    frames = images[:, 0].double() / 255.0
    plain = encoder.features(encoder.convolutions(frames))
    expected = torch.autograd.grad(plain.square().sum(), list(encoder.parameters()))
    features, _ = encoder(
        Inputs(frames[:, None], torch.zeros(num_frames, 1, ACTION_DIM), torch.zeros(num_frames, 1, 1))
    )
    found = torch.autograd.grad(features.square().sum(), list(encoder.parameters()))
    assert not read[0].is_contiguous(memory_format=torch.channels_last)
    assert read[1].is_contiguous(memory_format=torch.channels_last) == (num_frames >= 32)
    torch.testing.assert_close(features[:, 0], plain)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_vectors_into_convolutions_are_refused():
    with pytest.raises(UserError, match=r"\(3,\): choose an algorithm without convolutions"):
        Convolutional(InputShape((3,), 1))


class ImagesOnly(Encoder):
    """An encoder of the user's."""

    def __init__(self, shape, **kwargs):
        super().__init__(shape, **kwargs)
        self.dim, _, _ = shape.observation


def test_the_argument_of_an_encoder_of_images_is_named():
    told = "ConvolutionalSAC.encoder reads the 50 numbers of ConvolutionalSAC.shared_encoder, which reads the images; "
    told += "give an encoder of images as shared_encoder"
    images = spaces.Box(0, 255, (1, 40, 40), np.uint8), spaces.Box(-1, 1, (2,))
    with pytest.raises(UserError, match=f"^{told}$"):
        ConvolutionalSAC(*images, encoder=Convolutional)
    with pytest.raises(ValueError) as caught:  # of the user's code, which may be at fault
        ConvolutionalSAC(*images, encoder=ImagesOnly)
    assert told in caught.value.__notes__
    with pytest.raises(UserError, match=r"SAC\.encoder returned Tanh.*derives from offpcc\.networks\.Encoder"):
        SAC(spaces.Box(-1, 1, (2,)), images[1], encoder=lambda shape: torch.nn.Tanh())


def test_images_that_are_too_small_are_refused():
    with pytest.raises(UserError, match=r"\(3, 8, 8\) are too small.*Convolutional\.kernels"):
        Convolutional(InputShape((3, 8, 8), 1))


@pytest.mark.parametrize("width", [8, 16])
def test_the_proposed_kernels_fit(width):
    many = {"channels": (4, 4, 4, 4), "kernels": (3, 9, 9, 3), "strides": (2, 2, 2, 1)}
    with pytest.raises(UserError, match="too small") as told:
        Convolutional(InputShape((3, width, 20), 1), **many)
    kernels, strides = map(ast.literal_eval, re.search(r"such as (\(.*\)) and (\(.*\))$", told.value.message).groups())
    Convolutional(InputShape((3, width, 20), 1), **{**many, "kernels": kernels, "strides": strides})


def test_an_unknown_cell_is_refused():
    with pytest.raises(UserError, match="'lsmt'; it has to be one of"):
        Recurrent(InputShape((3,), 1), cell="lsmt")


def test_a_front_with_a_memory_is_refused():
    with pytest.raises(UserError, match=r"Recurrent\.feature_extractor"):
        Recurrent(InputShape((3,), 1), feature_extractor=functools.partial(Recurrent, hidden_dim=2))


# Alignment ------------------------------------------------------------------------------------------------------


def test_what_is_known_at_t_is_the_action_and_reward_before():
    B, T = 2, 3
    observations = torch.arange(float(B * (T + 1))).view(B, T + 1, 1)
    actions = torch.arange(100.0, 100 + B * T * 2).view(B, T, 2)
    rewards = torch.arange(200.0, 200 + B * T).view(B, T, 1)
    ones = torch.ones(B, T + 1, 1)
    first_action, first_reward = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]), torch.tensor([[-5.0], [-6.0]])
    batch = Batch(observations, actions, rewards, ones[:, 1:], ones, ones[:, 1:], first_action, first_reward)
    inputs = Inputs.of(batch)
    for b in range(B):
        for t in range(T + 1):
            assert torch.equal(inputs.observation[b, t], observations[b, t])
            assert torch.equal(inputs.previous_action[b, t], actions[b, t - 1] if t else first_action[b])
            assert torch.equal(inputs.previous_reward[b, t], rewards[b, t - 1] if t else first_reward[b])
    assert [x.shape[1] for x in inputs] == [T + 1] * 3
    assert all(torch.equal(a, b[:, 1:3]) for a, b in zip(inputs.steps(1, 3), inputs, strict=True))
    assert all(torch.equal(a, b[:, -1:]) for a, b in zip(inputs.steps(-1, None), inputs, strict=True))


def test_a_memory_within_a_memory_is_refused():
    """Its class would be built by itself, without an end."""
    loading.load_gin_config(None, ["Recurrent.feature_extractor = @Recurrent"])
    with pytest.raises(UserError, match="it has to be an encoder class without memory, such as @Convolutional"):
        Recurrent(InputShape((3,), 1))
