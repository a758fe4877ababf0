"""Actor networks: they map a summary to an action in [-1, 1]."""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.networks.critics import DiscreteCritics
from offpcc.networks.layers import concat_inputs, head
from offpcc.networks.numpy_inference import Array, Mirror, mirror_of, view_as_numpy, within
from offpcc.utils.spaces import one_hot

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
CLIP_ACTION = within(-1.0, 1.0)
LARGEST_ACTION = 1.0 - 1e-6  # bound for recorded actions; u = atanh(a) is infinite at 1


class DeterministicActor(nn.Module):
    """Deterministic actor: a = tanh(mlp(h))."""

    def __init__(self, summary_dim: int, action_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = head(summary_dim, hidden_dims, action_dim)

    def forward(self, summary: Tensor) -> Tensor:
        """(..., H) -> (..., A)."""
        return torch.tanh(self.net(summary))

    def choose(self, summary: Tensor, noise: Tensor | None) -> Tensor:
        """Return the action (..., A). Add `noise` (..., A), if given, and clip the sum to [-1, 1]."""
        action: Tensor = self(summary)
        return action if noise is None else (action + noise).clamp(-1.0, 1.0)

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        if (net := mirror_of(self.net)) is None:
            return None

        def choose(summary: Array, noise: Array | None) -> Array:
            action: Array = np.tanh(net(summary))
            return action if noise is None else CLIP_ACTION(action + noise)

        return choose


class SquashedGaussianActor(nn.Module):
    """Squashed Gaussian actor: a = tanh(u), where u is normal.

    An MLP gives the mean and the log standard deviation of u.
    """

    def __init__(self, summary_dim: int, action_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = head(summary_dim, hidden_dims, 2 * action_dim)
        self.action_dim = action_dim

    def forward(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        """(..., H) -> mean and log standard deviation of u, each (..., A)."""
        mean, log_std = self.net(summary).chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sample(self, summary: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return an action (..., A) and its log-probability (..., 1), from standard normal `noise` (..., A)."""
        mean, log_std = self(summary)
        return squash(mean, log_std, noise)

    def log_prob(self, summary: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability (..., 1) of `action` (..., A), after clipping it to the inside of [-1, 1]."""
        mean, log_std = self(summary)
        u = torch.atanh(action.clamp(-LARGEST_ACTION, LARGEST_ACTION))
        return squash(mean, log_std, (u - mean) * (-log_std).exp())[1]

    def choose(self, summary: Tensor, noise: Tensor | None) -> Tensor:
        """Return the action (..., A) for standard normal `noise` (..., A). Without noise, u is its mean."""
        mean, log_std = self(summary)
        return torch.tanh(mean if noise is None else mean + log_std.exp() * noise)

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        if (net := mirror_of(self.net)) is None:
            return None

        bounded, size = within(LOG_STD_MIN, LOG_STD_MAX), self.action_dim

        def choose(summary: Array, noise: Array | None) -> Array:
            both = net(summary)
            u = both[:, :size]
            if noise is not None:
                u = u + np.exp(bounded(both[:, size:])) * noise
            result: Array = np.tanh(u)
            return result

        return choose


class GaussianActor(nn.Module):
    """Gaussian actor: a is normal with mean tanh(mlp(h)). The learned standard deviation does not depend on h."""

    def __init__(
        self, summary_dim: int, action_dim: int, hidden_dims: Sequence[int], log_std_bounds: tuple[float, float]
    ) -> None:
        super().__init__()
        self.net = head(summary_dim, hidden_dims, action_dim)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.log_std.no_decay = True  # type: ignore[attr-defined]
        self.log_std_bounds = log_std_bounds

    def forward(self, summary: Tensor) -> tuple[Tensor, Tensor]:
        """(..., H) -> mean (..., A) and log standard deviation (A,)."""
        return torch.tanh(self.net(summary)), self.log_std.clamp(*self.log_std_bounds)

    def choose(self, summary: Tensor, noise: Tensor | None) -> Tensor:
        """Return the action (..., A) for standard normal `noise` (..., A), clipped to [-1, 1].

        Without noise, return the mean.
        """
        mean, log_std = self(summary)
        action: Tensor = mean if noise is None else (mean + log_std.exp() * noise).clamp(-1.0, 1.0)
        return action

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        if (net := mirror_of(self.net)) is None:
            return None
        log_std, bounded = view_as_numpy(self.log_std), within(*self.log_std_bounds)

        def choose(summary: Array, noise: Array | None) -> Array:
            mean: Array = np.tanh(net(summary))
            return mean if noise is None else CLIP_ACTION(mean + np.exp(bounded(log_std)) * noise)

        return choose

    def log_prob(self, summary: Tensor, action: Tensor) -> Tensor:
        """Return the log-density (..., 1) of `action` (..., A), summed over action dimensions."""
        mean, log_std = self(summary)
        z = (action - mean) * (-log_std).exp()
        log_density: Tensor = -0.5 * z.square() - log_std - 0.5 * math.log(2.0 * math.pi)
        return log_density.sum(-1, keepdim=True)


class FlowActor(nn.Module):
    """Two networks that map a summary and standard normal noise to an action (Park et al. 2025, arXiv:2502.02538).

    The flow integrates a velocity from the noise to the action. The one-step policy, which acts, needs no integration.

    Args:
        summary_dim: H.
        action_dim: A; also the number of noise numbers.
        hidden_dims: hidden layers of both networks; see `HiddenLayers`.
    """

    def __init__(self, summary_dim: int, action_dim: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.net = head(summary_dim + action_dim, hidden_dims, action_dim)
        self.velocity_net = head(summary_dim + action_dim + 1, hidden_dims, action_dim)

    def forward(self, summary: Tensor, noise: Tensor) -> Tensor:
        """Return the action of the one-step policy (..., A), not clipped, for `summary` (..., H), `noise` (..., A)."""
        action: Tensor = self.net(concat_inputs(summary, noise))
        return action

    def velocity(self, summary: Tensor, point: Tensor, time: Tensor) -> Tensor:
        """Return the flow's velocity (..., A) at `point` (..., A) and `time` (..., 1) from 0 to 1."""
        velocity: Tensor = self.velocity_net(concat_inputs(summary, torch.cat([point, time], -1)))
        return velocity

    def flow(self, summary: Tensor, noise: Tensor, num_steps: int) -> Tensor:
        """Return the flow's action (..., A) from `noise`, by `num_steps` of Euler's steps, clipped to [-1, 1]."""
        point = noise
        for step in range(num_steps):
            time = torch.full_like(point[..., :1], step / num_steps)
            point = point + self.velocity(summary, point, time) / num_steps
        return point.clamp(-1.0, 1.0)

    def choose(self, summary: Tensor, noise: Tensor | None) -> Tensor:
        """Return the action of the one-step policy (..., A), clipped to [-1, 1]. Without noise, the noise is 0."""
        noise = summary.new_zeros(*summary.shape[:-1], self.action_dim) if noise is None else noise
        action: Tensor = self(summary, noise)
        return action.clamp(-1.0, 1.0)

    def mirror(self) -> Mirror | None:
        """Return `choose` in NumPy, or None if a part has no mirror; see `offpcc.networks.numpy_inference`."""
        if (net := mirror_of(self.net)) is None:
            return None
        size = self.action_dim

        def choose(summary: Array, noise: Array | None) -> Array:
            noise = np.zeros((len(summary), size), np.float32) if noise is None else noise
            action: Array = CLIP_ACTION(net(np.concatenate([summary, noise], -1)))
            return action

        return choose


class DiscreteActor(nn.Module):
    """Actor for discrete actions: it scores each action, and chooses the one with the largest score plus noise.

    Scores are logits of a policy, so Gumbel noise draws a sample of it; or Q values, see `ValueActor`.
    """

    def __init__(self, summary_dim: int, num_actions: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = head(summary_dim, hidden_dims, num_actions)

    def forward(self, summary: Tensor) -> Tensor:
        """(..., H) -> scores (..., A)."""
        scores: Tensor = self.net(summary)
        return scores

    def log_probs(self, summary: Tensor) -> Tensor:
        """Return the log-probability of each action, (..., A)."""
        return torch.log_softmax(self(summary), -1)

    def choose(self, summary: Tensor, noise: Tensor | None) -> Tensor:
        """Return the action (..., A), one-hot, with the largest score plus `noise` (..., A), if given.

        If a score is NaN or infinite, so is the action.
        """
        scores = self(summary) if noise is None else self(summary) + noise
        best, choice = scores.max(-1, keepdim=True)
        places = torch.arange(scores.shape[-1], device=scores.device)
        action: Tensor = (choice == places).to(scores.dtype) + 0.0 * best
        return action

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        net = mirror_of(self.net)
        return None if net is None else functools.partial(choose_best, net)


class ValueActor(DiscreteActor):
    """Actor that chooses the action with the largest Q of the first of these critics. They share their weights."""

    def __init__(self, critics: DiscreteCritics) -> None:
        nn.Module.__init__(self)
        self.critics = critics

    def forward(self, summary: Tensor) -> Tensor:
        """(N, 1, H) -> Q values (N, 1, A)."""
        values: Tensor = self.critics(summary.unsqueeze(0))[0]
        return values

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        net = mirror_of(self.critics)
        return None if net is None else functools.partial(choose_best, net)


def choose_best(net: Callable[[Array], Array], summary: Array, noise: Array | None) -> Array:
    """Return the action (N, A), one-hot, with the largest score `net(summary)` plus `noise`, if given."""
    scores = net(summary) if noise is None else net(summary) + noise
    best: Array = scores.max(-1, keepdims=True)
    return one_hot(scores.argmax(-1), scores.shape[-1]) + 0.0 * best


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh(u) for u = mean + std * noise, and its log-density (..., 1), summed over action dimensions.

    The log-density is log pi(a) = log N(u) - sum log(1 - tanh(u)^2) (Haarnoja et al. 2018b, eq. 26). The code uses
    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which is finite at any u.
    """
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    log_slope = 2.0 * (math.log(2.0) - u - nn.functional.softplus(-2.0 * u))
    return torch.tanh(u), (log_normal - log_slope).sum(-1, keepdim=True)
