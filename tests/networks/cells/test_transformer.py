"""The transformer: its window, its positions, its chunks and its cache, and the same values however it is fed."""

import functools
import math

import numpy as np
import pytest
import torch

from offpcc.networks import InputShape, Recurrent
from offpcc.networks.cells import GPT
from offpcc.networks.numpy_inference import mirror_of
from offpcc.networks.states import keep_rows

ROWS, NUM_IN = 2, 3
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
SIZES = [  # window, steps, layers, heads, width
    (4, 11, 2, 2, 8),  # chunks, the last of them filled up
    (4, 12, 3, 2, 8),
    (4, 4, 2, 1, 6),
    (1, 5, 2, 2, 4),
    (64, 9, 1, 4, 6),  # one chunk; heads that do not fit into the width
]


def made(context_length=4, num_layers=2, num_heads=2, width=8, dtype=torch.float64):
    torch.manual_seed(0)
    return GPT(NUM_IN, width, num_layers, num_heads=num_heads, context_length=context_length).to(dtype)


def drawn(steps, dtype=torch.float64, rows=ROWS):
    return torch.randn(rows, steps, NUM_IN, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def in_pieces(cell, x, sizes):
    state, parts = None, []
    for part in x.split(sizes, 1):
        h, state = cell(part, state)
        parts.append(h)
    return torch.cat(parts, 1), state


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("context_length, steps, num_layers, num_heads, width", SIZES)
def test_the_same_values_however_it_is_fed(context_length, steps, num_layers, num_heads, width, dtype):
    cell, x = made(context_length, num_layers, num_heads, width, dtype), drawn(steps, dtype)
    close = functools.partial(torch.testing.assert_close, rtol=0, atol=TOLERANCE[dtype])
    with torch.no_grad():
        expected, last = cell(x)
        assert expected.shape == (ROWS, steps, cell.dim) and expected.dtype == dtype
        for sizes in ([1] * steps, [3, steps - 3], [steps - 1, 1]):
            h, state = in_pieces(cell, x, sizes)
            close(h, expected)
            close(state, last)
    mirror, state = cell.mirror(), None
    for t in range(steps):
        h, state = mirror(x[:, t].numpy(), state)
        assert h.dtype == x.numpy().dtype
        np.testing.assert_allclose(h, expected[:, t], rtol=0, atol=TOLERANCE[dtype])
    for ours, theirs in zip(state, last, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.numpy().dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE[dtype])


def attention_by_hand(block, x, context_length):
    """Of one head, step by step and pair by pair: the angle between two numbers grows with the distance."""
    weight, bias = block.project.weight.detach().numpy(), block.project.bias.detach().numpy()
    width = block.head_dim
    normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + block.attention_norm.eps)
    query, key, value = np.split(normed @ weight.T + bias, 3, -1)
    frequency = 10_000.0 ** (-np.arange(0, width, 2) / width)
    heard = np.zeros_like(value)
    for t in range(len(x)):
        back = range(max(0, t - context_length), t + 1)
        scores = []
        for s in back:
            q, k = (v[: width // 2] + 1j * v[width // 2 :] for v in (query[t], key[s]))
            scores.append((q * np.conj(k) * np.exp(1j * frequency * (t - s))).real.sum() / math.sqrt(width))
        weights = np.exp(scores) / np.exp(scores).sum()
        heard[t] = sum(w * value[s] for w, s in zip(weights, back, strict=True))
    return x + heard @ block.merge.weight.detach().numpy().T + block.merge.bias.detach().numpy()


def test_a_block_by_hand():
    cell, x = made(context_length=3, num_layers=1, num_heads=1, width=6), drawn(8, rows=1)
    (block,) = cell.blocks
    with torch.no_grad():
        h = torch.from_numpy(attention_by_hand(block, cell.embedding(x)[0].numpy(), 3))
        wide = block.widen(block.norm(h))
        cubic = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        expected = cell.norm(h + block.narrow(0.5 * wide * (1 + torch.tanh(cubic))))
        torch.testing.assert_close(cell(x)[0][0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_layers", [1, 4])
def test_branches_start_smaller_the_more_there_are(num_layers):
    """By 1 / sqrt(2 num_layers), so that the stream they are added to starts as large at any depth."""
    for block in made(num_layers=num_layers, width=64).blocks:
        for branch in (block.merge, block.narrow):
            plain = 1.0 / math.sqrt(branch.in_features)  # PyTorch's are spread evenly up to this
            most = branch.weight.abs().max().item() / plain * math.sqrt(2 * num_layers)
            assert 0.99 < most <= 1.0 + 1e-6
        for inner in (block.project, block.widen):
            assert 0.99 < inner.weight.abs().max().item() * math.sqrt(inner.in_features) <= 1.0 + 1e-6


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("context_length", [2, 5])
def test_it_reaches_back_a_window_in_each_block_and_never_ahead(context_length, num_layers):
    cell, x = made(context_length, num_layers), drawn(20)
    changed = x.clone()
    changed[1, 3] += 1.0
    with torch.no_grad():
        moved = (cell(x)[0] - cell(changed)[0]).abs().sum(-1) > 0
    expected = torch.zeros(ROWS, 20, dtype=torch.bool)
    expected[1, 3 : 3 + num_layers * context_length + 1] = True
    assert torch.equal(moved, expected)


def test_values_depend_on_no_steps_number():
    """After very many steps they are those of the last steps alone, seen as an episode's first."""
    cell, x = made(context_length=4, num_layers=2), drawn(3_020)
    with torch.no_grad():
        torch.testing.assert_close(cell(x)[0][:, -9:], cell(x[:, -20:])[0][:, -9:], rtol=0, atol=1e-10)


def test_positions_matter():
    cell, x = made(context_length=8, num_layers=1), drawn(6)
    turned = torch.cat([x[:, :5].flip(1), x[:, 5:]], 1)
    with torch.no_grad():
        assert (cell(x)[0][:, -1] - cell(turned)[0][:, -1]).abs().max() > 1e-3


def test_the_state_has_one_size_and_zeros_are_an_episodes_start():
    cell, x = made(context_length=5), drawn(12)
    shapes = {tuple(tuple(part.shape) for part in cell(x[:, :steps])[1]) for steps in (1, 4, 5, 6, 12)}
    assert shapes == {((ROWS, 2, 5, 2, 8), (ROWS, 1))}
    with torch.no_grad():
        _, state = cell(x)
        cleared = keep_rows(state, torch.tensor([0.0, 1.0]))
        expected, _ = cell(x[:1])
        torch.testing.assert_close(cell(x, cleared)[0][:1], expected, rtol=0, atol=1e-12)
        for steps in (1, 12):
            h, after = cell(x[:, :steps], tuple(torch.zeros_like(part) for part in state))
            torch.testing.assert_close((h, after), cell(x[:, :steps]), rtol=0, atol=1e-12)


def test_a_state_is_not_written_into():
    cell, x = made(context_length=3, dtype=torch.float32), drawn(6, torch.float32)
    with torch.no_grad():
        _, state = cell(x[:, :5])
        copies = [part.clone() for part in state]
        results = [cell(x[:, 5:], state)[0][:, 0].numpy() for _ in range(2)]
    arrays = tuple(part.numpy() for part in state)
    results += [cell.mirror()(x[:, 5].numpy(), arrays)[0] for _ in range(2)]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], atol=1e-6)
    for part, copied in zip(state, copies, strict=True):
        assert torch.equal(part, copied)


@pytest.mark.parametrize("steps", [3, 7])
def test_gradients(steps):
    cell = made(context_length=3, num_layers=2, num_heads=1, width=4)
    _, state = cell(drawn(2))
    state = tuple(part.detach() for part in state)

    def summaries(x, cache):
        return cell(x, (cache, state[1]))[0]

    inputs = drawn(steps).requires_grad_(), state[0].clone().requires_grad_()
    assert torch.autograd.gradcheck(summaries, inputs, fast_mode=True)


def test_gradients_flow_through_the_handed_on_state():
    cell, x = made(context_length=4), drawn(11)
    weights = drawn(11)[..., :1] * torch.arange(8.0)
    gradients = []
    for sizes in ([11], [4, 7], [6, 1, 4]):
        gradients.append(torch.autograd.grad((in_pieces(cell, x, sizes)[0] * weights).sum(), [*cell.parameters()]))
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("num_layers", [1, 4])
def test_it_is_finite_over_5000_steps_of_extreme_inputs(num_layers):
    cell = made(context_length=64, num_layers=num_layers, dtype=torch.float32)
    x = drawn(5_000, torch.float32, rows=1)
    x[:, ::7] *= 1e6
    x[:, ::11] = 0.0
    with torch.no_grad():
        for parameter in cell.blocks[0].project.parameters():
            parameter *= 30.0  # scores that are all or nothing
    h, state = cell(x)
    h.square().mean().backward()
    assert h.isfinite().all() and all(part.isfinite().all() for part in state)
    assert all(p.grad.isfinite().all() for p in cell.parameters())


def test_each_depth_remembers_a_cue():
    """The first input comes back at the last step."""
    for num_layers in (1, 4):
        torch.manual_seed(1)
        cell, read = GPT(2, 8, num_layers, num_heads=2, context_length=5), torch.nn.Linear(8, 1)
        optimizer = torch.optim.Adam([*cell.parameters(), *read.parameters()], 1e-2)
        losses = []
        for _ in range(60):
            cue = torch.randn(16, 1).sign()
            x = torch.zeros(16, 6, 2)
            x[:, 0, :1], x[:, -1, 1] = cue, 1.0
            loss = (read(cell(x)[0][:, -1]) - cue).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert min(losses[-10:]) < 0.05 < 0.5 < losses[0]


def test_hooks_inside_it_are_kept():
    encoder = Recurrent(InputShape((NUM_IN,), 1), cell="gpt", hidden_dim=4)
    assert mirror_of(encoder) is not None
    encoder.cell.blocks[1].widen.register_forward_hook(lambda module, inputs, output: 2.0 * output)
    assert mirror_of(encoder) is None
