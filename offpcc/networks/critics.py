"""An ensemble of Q functions over summaries."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from offpcc.networks.layers import EnsembleLayerNorm, EnsembleLinear, beside


class Critics(nn.Module):
    """N Q functions as one batched product per layer; the ensemble is an axis, its size a number."""

    def __init__(
        self,
        num: int,
        summary_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.num = num
        layers: list[nn.Module] = []
        sizes = [summary_dim + action_dim, *hidden_dims]
        for num_in, num_out in itertools.pairwise(sizes):
            layers.append(EnsembleLinear(num, num_in, num_out))
            layers += [EnsembleLayerNorm(num, num_out)] if layer_norm else []
            layers.append(nn.ReLU())
        layers.append(EnsembleLinear(num, sizes[-1], 1))
        self.net = nn.Sequential(*layers)

    def forward(self, summary: Tensor, action: Tensor) -> Tensor:
        """Q values (N, B, T, 1) of `summary` (N or 1, B, T, H) and `action` (B, T, A).

        Of S actions for each summary, (B, T, S, A), they are (N, B, T, S, 1).
        """
        rows = action.shape[:-1]
        x = beside(summary, action.expand(len(summary), *action.shape))
        x = x.expand(self.num, *x.shape[1:]).reshape(self.num, -1, x.shape[-1])
        q: Tensor = self.net(x)
        return q.view(self.num, *rows, 1)
