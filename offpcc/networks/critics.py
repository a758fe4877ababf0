"""Critic networks: an ensemble of Q functions over summaries."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offpcc.networks.layers import EnsembleLinear, HiddenLayers, concat_inputs, is_plain, layers_of, run_ensemble
from offpcc.networks.mlp_kernels import perceptrons, rows_of_block, takes_kernels


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
        hidden_dims = HiddenLayers(hidden_dims, layer_norm=True) if layer_norm else hidden_dims
        self.net = nn.Sequential(*layers_of(summary_dim + action_dim, hidden_dims, 1, num))
        self.rows_at_once = rows_of_block(hidden_dims)

    def forward(self, summary: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Return Q values (N, B, T, 1) of `summary` (N or 1, B, T, H) and `action` (B, T, A).

        With S actions for each summary, (B, T, S, A), the Q values are (N, B, T, S, 1). If `members` (M,) are given,
        numbers of critics, the values are theirs: (M, B, T, [S,] 1).
        """
        weights: list[Tensor] = [*self.net.parameters()]
        if members is not None:
            weights = [weight[members] for weight in weights]
            summary = summary if len(summary) == 1 else summary[members]
        return self._values(summary, action, weights)

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
        fits = takes_kernels(x) and not torch.is_autocast_enabled("cpu")
        if fits and x.shape[1] > self.rows_at_once and is_plain(self.net, EnsembleLinear):
            x = perceptrons(x, weights)
        else:
            remaining = iter(weights)
            for layer in self.net:
                x = run_ensemble(layer, x, remaining)
        return x.view(num, *rows, 1)
