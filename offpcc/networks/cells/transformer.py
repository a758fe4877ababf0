"""A causal transformer with windowed attention.

Its blocks are those of GPT-2 (Radford et al. 2019, "Language models are unsupervised multitask learners"; the
transformer is Vaswani et al. 2017, arXiv:1706.03762). Its position embeddings are rotary (Su et al. 2021,
arXiv:2104.09864).

Differs from the papers:

* In each block, attention reaches back `context_length` steps. So an episode may have any length, the cost is linear in
  the length instead of quadratic, and the state has a fixed size. A summary can depend on `num_layers` x
  `context_length` earlier steps.
* GPT-2 adds a learned vector for each position. Here, the step number rotates queries and keys, so attention between
  two steps depends on their distance and not on their absolute positions.
* Inputs are vectors, embedded by a linear layer. There are no words, no output layer and no dropout.
* Initial weights are PyTorch's. The output weights of each branch are scaled by 1 / sqrt(2 num_layers), as in GPT-2.
* An update reads at most `segment_len` + `burn_in` steps of the replay buffer at once. Attention to earlier steps is
  never trained and harms acting. So `context_length` must be less than that sum; half of it is best.
* After a burn-in of `num_layers` x `context_length` steps or more, a summary is the same as in the uncut episode. With
  a shorter burn-in, the cell treats the first steps it reads as the first of an episode.
* The width of a head is hidden_dim / num_heads, rounded up to an even number, so any `hidden_dim` works.
"""

import math
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from offpcc.config.registry import configurable
from offpcc.config.validation import Size
from offpcc.core import State
from offpcc.networks.cells.base import Cell
from offpcc.networks.numpy_inference import Array, Mirror, mirrors_of, view_as_numpy

BASE = 10_000.0  # base of the rotation frequencies, as in the paper
WIDENING = 4  # hidden width of a block's feed-forward part, as a multiple of the block's width


class AttentionWindow(NamedTuple):
    """Attention mask and rotations, the same in every block.

    Up to `context_length` steps form one chunk, which attends to the cached steps and to itself. More steps are split
    into chunks of `context_length` steps. Each chunk attends to the chunk before it and to itself; earlier steps are
    out of reach.
    """

    num_steps: int
    chunk: int  # number of steps in a chunk; the last chunk is padded
    attends: Tensor  # (B * chunks, 1, chunk, keys): whether this step of a chunk attends to this key
    cos: Tensor  # (B, T, 1, head_dim / 2), for the rotation of each step
    sin: Tensor

    @classmethod
    def of(cls, count: Tensor, num_steps: int, num_past: int, context_length: int, head_dim: int) -> Self:
        """Build the window for `num_steps` new steps of rows with `count` (B, 1) earlier steps.

        The `num_past` places of the cache hold the last earlier steps; if a row has fewer earlier steps, its first
        places are empty.
        """
        chunk = min(num_steps, context_length)
        num_chunks = -(-num_steps // chunk)
        place = torch.arange(num_chunks * chunk + num_past, device=count.device)
        key, query = place[: num_past + chunk], place[num_past : num_past + chunk].unsqueeze(-1)
        near = (key <= query) & (key >= query - context_length)
        index = chunk * place[:num_chunks].unsqueeze(-1) + key
        exists = index >= num_past - count.unsqueeze(-1)
        attends = near & exists.unsqueeze(2)  # (B, chunks, chunk, keys)
        step = count.double() + torch.arange(num_steps, device=count.device)
        angle = step.unsqueeze(-1) * frequencies(head_dim, count.device)
        cos, sin = (f(angle).to(count.dtype).unsqueeze(2) for f in (torch.cos, torch.sin))
        return cls(num_steps, chunk, attends.flatten(0, 1).unsqueeze(1), cos, sin)

    def queries(self, x: Tensor) -> Tensor:
        """(B, T, heads, D) -> (B * chunks, heads, chunk, D)."""
        return self._chunks(x).flatten(0, 1).transpose(1, 2)

    def keys(self, x: Tensor) -> Tensor:
        """(B, past + T, heads, D) -> (B * chunks, heads, keys, D)."""
        if self.num_steps > self.chunk:
            chunks = self._chunks(x)
            x = torch.cat([chunks[:, :-1], chunks[:, 1:]], 2).flatten(0, 1)
        return x.transpose(1, 2)

    def joined(self, x: Tensor, rows: int) -> Tensor:
        """(B * chunks, heads, chunk, D) -> (B, T, heads * D)."""
        return x.transpose(1, 2).flatten(2).reshape(rows, -1, x.shape[1] * x.shape[3])[:, : self.num_steps]

    def rotated(self, x: Tensor) -> Tensor:
        """Rotate each pair of numbers in `x` (B, T, heads, head_dim) by the angle of the step."""
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], -1)

    def _chunks(self, x: Tensor) -> Tensor:
        """(B, T, heads, D) -> (B, chunks, chunk, heads, D). Pad at the end; no real step attends to the padding."""
        x = functional.pad(x, (0, 0, 0, 0, 0, -self.num_steps % self.chunk))
        return x.reshape(x.shape[0], -1, self.chunk, *x.shape[2:])


class Block(nn.Module):
    """Transformer block: attention and a feed-forward part, each with layer normalisation first and a residual."""

    def __init__(self, dim: int, num_heads: int, head_dim: int, depth: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.attention_norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, 3 * num_heads * head_dim)
        self.merge = nn.Linear(num_heads * head_dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, WIDENING * dim)
        self.narrow = nn.Linear(WIDENING * dim, dim)
        with torch.no_grad():
            for branch in (self.merge, self.narrow):
                branch.weight /= math.sqrt(2 * depth)

    def forward(self, h: Tensor, past: Tensor, window: AttentionWindow) -> tuple[Tensor, Tensor]:
        """Return the output (B, T, dim), and `past` followed by the new keys and values.

        The second result is (B, past + T, heads, 2 head_dim).
        """
        projected = self.project(self.attention_norm(h)).unflatten(-1, (3 * self.num_heads, self.head_dim))
        query_key, value = projected.tensor_split((2 * self.num_heads,), 2)
        query, key = window.rotated(query_key).chunk(2, 2)
        known = torch.cat([past, torch.cat([key, value], -1)], 1)
        keys, values = window.keys(known).chunk(2, -1)
        mixed = functional.scaled_dot_product_attention(window.queries(query), keys, values, attn_mask=window.attends)
        h = h + self.merge(window.joined(mixed, h.shape[0]))
        return h + self.narrow(functional.gelu(self.widen(self.norm(h)), approximate="tanh")), known

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`.

        It writes the new key and value into the last place of `known`.
        """
        parts = self.attention_norm, self.project, self.merge, self.norm, self.widen, self.narrow
        if (mirrors := mirrors_of(*parts)) is None:
            return None
        attention_norm, project, merge, norm, widen, narrow = mirrors
        heads, width = self.num_heads, self.head_dim

        def step(h: Array, known: Array, absent: Array, cos: Array, sin: Array) -> Array:
            projected = project(attention_norm(h)).reshape(len(h), 3 * heads, width)
            first, second = projected[:, : 2 * heads, : width // 2], projected[:, : 2 * heads, width // 2 :]
            turned = np.concatenate([first * cos - second * sin, first * sin + second * cos], -1)
            known[:, -1, :, :width], known[:, -1, :, width:] = turned[:, heads:], projected[:, 2 * heads :]
            by_head = known.swapaxes(1, 2)
            scores = (by_head[..., :width] @ turned[:, :heads, :, np.newaxis])[..., 0]
            scores *= width**-0.5
            np.copyto(scores, -np.inf, where=absent)
            scores -= scores.max(-1, keepdims=True)
            np.exp(scores, scores)
            scores /= scores.sum(-1, keepdims=True)
            mixed = scores[:, :, np.newaxis] @ by_head[..., width:]
            h = h + merge(mixed.reshape(len(h), heads * width))
            wide = widen(norm(h))
            wide *= 0.5 * np.tanh(math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide * wide * wide)) + 0.5
            return h + narrow(wide)  # type: ignore[no-any-return]

        return step


@configurable
class GPT(Cell):
    """A causal transformer: `num_layers` blocks of width `hidden_dim`.

    The state is a pair. The first part is the keys and values of the last `context_length` steps in each block,
    (B, num_layers, context_length, num_heads, 2 head_dim). The second is the number of steps so far (B, 1). It masks
    places from before an episode's start, so no step attends to them.

    Args:
        num_heads: number of attention heads in each block.
        context_length: how many steps back each block can look.
    """

    context_length: int

    def __init__(
        self, num_in: int, hidden_dim: int, num_layers: int, *, num_heads: Size = 4, context_length: Size = 128
    ) -> None:
        super().__init__()
        self.dim, self.num_heads, self.context_length = hidden_dim, num_heads, context_length
        self.head_dim = 2 * -(-hidden_dim // (2 * num_heads))
        self.embedding = nn.Linear(num_in, hidden_dim)
        self.blocks = nn.ModuleList(Block(hidden_dim, num_heads, self.head_dim, num_layers) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_dim)

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """(B, T, num_in) -> (B, T, hidden_dim)."""
        rows, num_steps = x.shape[:2]
        if state is None:
            num_past = 0 if num_steps <= self.context_length else self.context_length
            counting = torch.promote_types(x.dtype, torch.float32)  # bfloat16 cannot count beyond 256
            state = x.new_zeros(rows, *self._cache_shape(num_past)), x.new_zeros(rows, 1, dtype=counting)
        cache, count = state
        window = AttentionWindow.of(count, num_steps, cache.shape[2], self.context_length, self.head_dim)
        h, kept = self.embedding(x), []
        for block, past in zip(self.blocks, cache.unbind(1), strict=True):
            h, known = block(h, past, window)
            kept.append(known[:, -self.context_length :])
        after = torch.stack(kept, 1)
        after = functional.pad(after, (0, 0, 0, 0, self.context_length - after.shape[2], 0))
        return self.norm(h), (after, count + num_steps)

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        if (mirrors := mirrors_of(self.embedding, self.norm, *self.blocks)) is None:
            return None
        embedding, norm, *blocks = mirrors
        turns, places = (
            view_as_numpy(frequencies(self.head_dim, torch.device("cpu"))),
            np.arange(-self.context_length, 1),
        )

        def step(x: Array, state: State) -> tuple[Array, State]:
            known = np.zeros((len(x), *self._cache_shape(self.context_length + 1)), x.dtype)
            count = np.zeros((len(x), 1), x.dtype)
            if state is not None:
                known[:, :, :-1], count = state
            angle = (count * turns)[:, np.newaxis]
            cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
            absent = (places < -count)[:, np.newaxis]
            h = embedding(x)
            for layer, block in enumerate(blocks):
                h = block(h, known[:, layer], absent, cos, sin)
            return norm(h), (known[:, :, 1:], count + 1)

        return step

    def _cache_shape(self, size: int) -> tuple[int, ...]:
        return len(self.blocks), size, self.num_heads, 2 * self.head_dim


def frequencies(head_dim: int, device: torch.device) -> Tensor:
    """Return the rotation angle per step of each pair of numbers, (head_dim / 2,), in float64."""
    pair = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device)
    return torch.pow(BASE, -pair / head_dim)
