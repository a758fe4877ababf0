"""Critic networks: an ensemble of Q functions over summaries."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offpcc.networks.layers import EnsembleLayerNorm, EnsembleLinear, concat_inputs, is_plain
from offpcc.networks.mlp_kernels import perceptrons, rows_of_block


class Critics(nn.Module):
    """Ensemble of N Q functions, with one batched matrix product per layer. The ensemble is the first axis."""

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
            layers.append(nn.ReLU(inplace=True))
        layers.append(EnsembleLinear(num, sizes[-1], 1))
        self.net = nn.Sequential(*layers)
        self.rows_at_once = rows_of_block(hidden_dims)

    def forward(self, summary: Tensor, action: Tensor) -> Tensor:
        """Return Q values (N, B, T, 1) of `summary` (N or 1, B, T, H) and `action` (B, T, A).

        With S actions for each summary, (B, T, S, A), the Q values are (N, B, T, S, 1).
        """
        return self._values(summary, action, list(self.net.parameters()))

    def forward_frozen(self, summary: Tensor, action: Tensor, num: int | None = None) -> Tensor:
        """Return the Q values of the first `num` critics (default: all), for an actor's loss.

        The values are those of `forward`. Gradients flow only to the actions, not to summaries or critics.
        """
        weights = [weight.detach()[:num] for weight in self.net.parameters()]
        return self._values(summary.detach()[:num], action, weights)

    def with_action_gradients(self, summary: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Q values of `forward`, and the gradient of each with respect to its action, (N, B, T, A).

        A loss may contain the gradients. `perceptrons` has no second derivative, so the layers run one by one here.
        """
        action = action.detach().expand(self.num, *action.shape).clone().requires_grad_()
        x = concat_inputs(summary, action).flatten(1, 2)
        for layer in self.net:
            x = layer(x)
        q = x.view(*action.shape[:-1], 1)
        return q, torch.autograd.grad(q.sum(), action, create_graph=True)[0]

    def _values(self, summary: Tensor, action: Tensor, weights: list[Tensor]) -> Tensor:
        num, rows = len(weights[0]), action.shape[:-1]
        x = concat_inputs(summary, action.expand(len(summary), *action.shape))
        x = x.expand(num, *x.shape[1:]).reshape(num, -1, x.shape[-1])
        fits = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        if fits and x.shape[1] > self.rows_at_once and is_plain(self.net, EnsembleLinear):
            x = perceptrons(x, weights)
        else:
            remaining = iter(weights)
            for layer in self.net:
                if isinstance(layer, EnsembleLinear | EnsembleLayerNorm):
                    x = layer.compute(x, next(remaining), next(remaining))
                else:
                    x = layer(x)
        return x.view(num, *rows, 1)
