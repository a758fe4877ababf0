"""Critic networks: ensembles of Q functions over summaries, of continuous and of discrete actions."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from offpcc.networks.layers import (
    EnsembleLayerNorm,
    EnsembleLinear,
    HiddenLayers,
    concat_inputs,
    head,
    is_plain,
    layers_of,
    run_ensemble,
)
from offpcc.networks.mlp_kernels import perceptrons, rows_of_block, takes_kernels
from offpcc.networks.numpy_inference import Array, Mirror, mirrors_of


class Critics(nn.Module):
    """Ensemble of N Q functions, with one batched matrix product per layer. The ensemble is the first axis."""

    def __init__(
        self,
        num: int,
        summary_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        layer_norm: bool = False,
        num_outputs: int = 1,
    ) -> None:
        super().__init__()
        self.num = num
        self.has_norm = layer_norm or (isinstance(hidden_dims, HiddenLayers) and hidden_dims.layer_norm)
        hidden_dims = HiddenLayers(hidden_dims, layer_norm=True) if layer_norm else hidden_dims
        self.net = nn.Sequential(*layers_of(summary_dim + action_dim, hidden_dims, num_outputs, num))
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
        x = self._by_layers(concat_inputs(summary, action).flatten(1, 2), iter([*self.net.parameters()]))
        q = x.view(*action.shape[:-1], -1)
        return q, torch.autograd.grad(q.sum(), action, create_graph=True)[0]

    def _values(self, summary: Tensor, action: Tensor, weights: list[Tensor]) -> Tensor:
        num, rows = len(weights[0]), action.shape[:-1]
        x = concat_inputs(summary, action.expand(len(summary), *action.shape))
        x = x.expand(num, *x.shape[1:]).reshape(num, -1, x.shape[-1])
        by_kernels = self._takes_kernels(x, is_frozen=not weights[0].requires_grad)
        x = perceptrons(x, weights, self.has_norm) if by_kernels else self._by_layers(x, iter(weights))
        return x.view(num, *rows, -1)

    def _by_layers(self, x: Tensor, weights: Iterator[Tensor]) -> Tensor:
        """Compute the layers one by one. The last one runs in float32, where autocast has others in bfloat16."""
        *hidden, last = self.net
        x = run_ensemble(hidden, x, weights)
        if not torch.is_autocast_enabled(x.device.type):
            return run_ensemble([last], x, weights)
        with torch.autocast(x.device.type, enabled=False):
            return run_ensemble([last], x.float(), weights)

    def _takes_kernels(self, x: Tensor, is_frozen: bool) -> bool:
        """Check whether `perceptrons` computes x faster than the layers do.

        An actor's loss often takes the minimum of frozen critics. Then `perceptrons` omits rows, so that it pays for
        fewer rows, if there are many critics.
        """
        # This comes first: an exported program has any number of rows.
        if not takes_kernels(x) or torch.is_autocast_enabled("cpu"):
            return False
        num_rows = max(x.shape[1], len(x) * x.shape[1] // 2 if is_frozen and x.requires_grad else 0)
        if num_rows < self.rows_at_once:
            return False
        return is_plain(self.net, EnsembleLinear, EnsembleLayerNorm if self.has_norm else None)


class QuantileCritics(Critics):
    """N critics that give K quantiles of the return each. A Q value is the mean of a critic's quantiles."""

    def __init__(
        self, num: int, summary_dim: int, action_dim: int, hidden_dims: Sequence[int], num_quantiles: int
    ) -> None:
        super().__init__(num, summary_dim, action_dim, hidden_dims, num_outputs=num_quantiles)

    def forward(self, summary: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Return Q values; see `Critics.forward`."""
        return self.quantiles(summary, action, members).mean(-1, keepdim=True)

    def forward_frozen(self, summary: Tensor, action: Tensor, num: int | None = None) -> Tensor:
        """Return Q values; see `Critics.forward_frozen`."""
        return super().forward_frozen(summary, action, num).mean(-1, keepdim=True)

    def with_action_gradients(self, summary: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q values and their gradients; see `Critics.with_action_gradients`."""
        quantiles, gradients = super().with_action_gradients(summary, action)
        return quantiles.mean(-1, keepdim=True), gradients / quantiles.shape[-1]

    def quantiles(self, summary: Tensor, action: Tensor, members: Tensor | None = None) -> Tensor:
        """Return the quantiles (N, B, T, K); see `Critics.forward` for the arguments."""
        return super().forward(summary, action, members)


class DiscreteCritics(nn.Module):
    """N Q functions of discrete actions. Each gives the Q values of all A actions, or K quantiles of each.

    Args:
        num: N.
        summary_dim: H.
        num_actions: A.
        hidden_dims: hidden layers of each network.
        num_quantiles: K; 1 for the mean alone.
        dueling: whether a second network gives the state's value, and Q = V + advantage - mean advantage (Wang et al.
            2016, arXiv:1511.06581, eq. 9).
    """

    def __init__(
        self,
        num: int,
        summary_dim: int,
        num_actions: int,
        hidden_dims: Sequence[int],
        num_quantiles: int = 1,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.num, self.num_actions, self.num_quantiles = num, num_actions, num_quantiles
        self.nets = nn.ModuleList(head(summary_dim, hidden_dims, num_actions * num_quantiles) for _ in range(num))
        self.values = nn.ModuleList(head(summary_dim, hidden_dims, num_quantiles) for _ in range(num * dueling))

    def forward(self, summary: Tensor, members: Tensor | None = None) -> Tensor:
        """Return the Q values (N, B, T, A) of `summary` (N or 1, B, T, H): the mean of the quantiles.

        If `members` (M,) are given, numbers of critics, the values are theirs: (M, B, T, A).
        """
        quantiles = self.quantiles(summary)
        q = quantiles.squeeze(-1) if self.num_quantiles == 1 else quantiles.mean(-1)
        return q if members is None else q[members]

    def quantiles(self, summary: Tensor) -> Tensor:
        """Return the quantiles (N, B, T, A, K) of `summary` (N or 1, B, T, H)."""
        # A linear layer of a slice is a product for each row, which is several times as slow.
        rows = summary.contiguous().expand(self.num, *summary.shape[1:])
        sizes = self.num_actions, self.num_quantiles
        q = torch.stack([net(x).unflatten(-1, sizes) for net, x in zip(self.nets, rows, strict=True)])
        if not self.values:
            return q
        values = torch.stack([net(x).unsqueeze(-2) for net, x in zip(self.values, rows, strict=True)])
        return values + q - q.mean(-2, keepdim=True)

    def mirror(self) -> Mirror | None:
        """Return the NumPy version of the first network, (N, H) -> Q values (N, A); None if a part has none."""
        mirrors = mirrors_of(self.nets[0], *self.values[:1])
        if mirrors is None:
            return None
        sizes = (-1, self.num_actions, self.num_quantiles)

        def values(summary: Array) -> Array:
            q: Array = mirrors[0](summary).reshape(sizes).mean(-1)
            if len(mirrors) > 1:
                q = mirrors[1](summary).mean(-1, keepdims=True) + q - q.mean(-1, keepdims=True)
            return q

        return values


def of_actions(values: Tensor, action: Tensor) -> Tensor:
    """Return the `values` (..., A) of the one-hot `action` (..., A): (..., 1)."""
    return (values * action).sum(-1, keepdim=True)
