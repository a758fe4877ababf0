"""`DynamicsModel`: a learned model of an environment, which predicts next observations, rewards and terminations."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, NonnegativeNumber, NumParts, Size, Sizes, format_value, one_of
from offpcc.envs.termination import TerminationRule, find_rule
from offpcc.networks.gaussian_ensemble import ACTIVATIONS, GaussianEnsemble, Prediction
from offpcc.utils.errors import UserError
from offpcc.utils.rng import seeded_torch

AUTO, KNOWN, LEARNED, NEVER = "auto", "known", "learned", "never"
Activation = Annotated[str, one_of(tuple(ACTIVATIONS))]
Termination = Annotated[str, one_of((AUTO, KNOWN, LEARNED, NEVER))]


class Uncertainty(NamedTuple):
    """How unsure a model is of B predictions: those of its elites.

    The first two are in standard deviations of the data's observations, as in the code with tuned thresholds for them
    (github.com/Mr-Pepe/offline-model-based-rl), the last in those of the changes.
    """

    aleatoric: Any  # (B,), largest predicted variance of the next observation, over elites and numbers
    epistemic: Any  # (B,), largest distance between two elites' means of the next observation
    deviation: Any  # (B,), largest length of an elite's standard deviations, in the data's units (MOPO, eq. 7)
    disagreement: Any  # (B,), root mean variance of the elites' means of the next observation


class ModelStep(NamedTuple):
    """One step of a model from B states."""

    next_observations: Any  # (B, O)
    rewards: Any  # (B,)
    terminations: Any  # (B,), bool
    uncertainty: Any  # `Uncertainty`, or None if it was not asked for
    bounded: Any  # (B,), bool: whether the next observation left the range of the data and was moved back
    mean_rewards: Any  # (B,), mean over the elites' means, or None as `uncertainty`


@configurable
class DynamicsModel(nn.Module):
    """Ensemble of networks that predict the change of the observation and the reward (PETS, arXiv:1805.12114).

    Inputs and predictions are normalised by the data's means and standard deviations. With `history` k > 1, the
    networks read the last k observations and actions, for tasks that hide something. Before an episode's start, its
    first observation is repeated, with actions of 0.

    Args:
        observation_dim: number of numbers O in an observation.
        action_dim: number of numbers A in an action.
        num_members: number of networks.
        num_elites: number of networks that predict after training: those with the least error on the holdout.
        hidden_dims: widths of hidden layers.
        activation: "relu", "silu" or "leaky_relu".
        layer_norm: whether a layer normalisation precedes each activation.
        learned_bounds: whether the bounds of the log variance are learned; else they stay at -10 and 0.5.
        reward_hidden_dims: widths of separate networks for the reward; None to predict it together with the change.
        history: number k of observations and actions that the networks read.
        termination: "known" takes the termination rule of the task, "learned" trains a classifier, and "never" ends no
            imagined episode. "auto" takes the rule if it is known, else a classifier if the data have terminations.
        margin: imagined observations stay within the data's range, widened by this many standard deviations. A known
            rule still ends an episode by the prediction before it is moved back.
        device: device of the networks.
        seed: seed of the initial weights.

    Attributes:
        action_range: lowest and highest action of the recording, in its units; None for [-1, 1].
        facts: facts about the data and the training.
    """

    input_mean: Tensor
    input_std: Tensor
    target_mean: Tensor
    target_std: Tensor
    low: Tensor
    high: Tensor
    spread: Tensor
    elites: Tensor

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        *,
        num_members: NumParts = 7,
        num_elites: NumParts = 5,
        hidden_dims: Sizes = (200, 200, 200, 200),
        activation: Activation = "relu",
        layer_norm: Flag = False,
        learned_bounds: Flag = True,
        reward_hidden_dims: Sizes | None = None,
        history: Size = 1,
        termination: Termination = AUTO,
        margin: NonnegativeNumber = 1.0,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if num_elites > num_members:
            raise UserError(
                f"DynamicsModel.num_elites is {num_elites}, but num_members is {num_members}; lower num_elites"
            )
        self.observation_dim, self.action_dim, self.history = observation_dim, action_dim, history
        self.num_members, self.num_elites, self.margin = num_members, num_elites, margin
        self.termination = termination
        num_in = history * (observation_dim + action_dim)
        options: dict[str, Any] = {"activation": activation, "layer_norm": layer_norm, "learned_bounds": learned_bounds}
        with seeded_torch(seed):
            self.dynamics = GaussianEnsemble(
                num_members,
                num_in,
                observation_dim + (reward_hidden_dims is None),
                hidden_dims,
                num_logits=int(termination == LEARNED),
                **options,
            )
            self.reward = None
            if reward_hidden_dims is not None:
                self.reward = GaussianEnsemble(num_members, num_in, 1, reward_hidden_dims, **options)
        num_out = observation_dim + 1
        unbounded = torch.full((observation_dim,), torch.inf)
        for name, value in {
            "input_mean": torch.zeros(num_in),
            "input_std": torch.ones(num_in),
            "target_mean": torch.zeros(num_out),
            "target_std": torch.ones(num_out),
            "low": -unbounded,
            "high": unbounded,
            "spread": torch.zeros(observation_dim),
            "elites": torch.arange(num_elites),
        }.items():
            self.register_buffer(name, value)
        self.rule: TerminationRule | None = None
        self.action_range: tuple[Any, Any] | None = None
        self.facts: dict[str, Any] = {}
        self.to(torch.device(device))

    @property
    def device(self) -> torch.device:
        """Device of the networks."""
        return self.low.device

    def set_rule(self, name: str) -> None:
        """Take the termination rule of a task or a dataset.

        Raises:
            UserError: no rule is known for it.
        """
        self.rule = find_rule(name, (self.observation_dim,))
        if self.rule is None:
            raise UserError(
                f'DynamicsModel.termination is "{KNOWN}", but no termination rule is known for {name or "these data"} '
                f'with observations of {self.observation_dim} numbers; choose "{LEARNED}" or "{NEVER}"'
            )

    def tell_termination(self) -> str:
        """Return how imagined episodes end, as text."""
        if self.rule is not None:
            return f"the known rule of {self.facts['rule']}: {self.rule.text}"
        return "a classifier that is learned from the data" if self.termination == LEARNED else "never"

    def set_statistics(self, **statistics: Any) -> None:
        """Set the statistics of the data.

        Args:
            statistics: mean and standard deviation of inputs (k (O + A),) and targets (O + 1,): `input_mean`,
                `input_std`, `target_mean`, `target_std`; the smallest and the largest observation (O,) and how far
                beyond them imagined ones may go: `low`, `high`, `spread`.
        """
        for name, value in statistics.items():
            getattr(self, name).copy_(torch.from_numpy(np.asarray(value, np.float32)))

    def inputs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return normalised inputs (B, k (O + A)) for observations (B, k, O) and actions (B, k, A), oldest first."""
        x = torch.cat([observations.flatten(1), actions.flatten(1)], 1)
        return (x - self.input_mean) / self.input_std

    def targets(self, observations: Tensor, next_observations: Tensor, rewards: Tensor) -> Tensor:
        """Return normalised targets (B, O + 1): the change of observations (B, O), and rewards (B, 1)."""
        y = torch.cat([next_observations - observations, rewards], 1)
        return (y - self.target_mean) / torch.where(self.target_std > 0, self.target_std, 1.0)

    def predict(self, x: Tensor, members: Tensor | None = None) -> Prediction:
        """Predict normalised targets for inputs (N, B, k (O + A)), a batch for each of `members`; default: all.

        With inputs (B, k (O + A)), `members` (B,) names the network of each row, and predictions have no axis N.
        """
        change: Prediction = self.dynamics(x, members)
        if self.reward is None:
            return change
        reward: Prediction = self.reward(x, members)
        mean = torch.cat([change.mean, reward.mean], -1)
        return Prediction(mean, torch.cat([change.log_variance, reward.log_variance], -1), change.logit)

    def loss(self, x: Tensor, target: Tensor, terminations: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """Return the loss, 0-d, and the squared errors of the means (N, B, O + 1).

        Args:
            x: inputs (N, B, k (O + A)).
            target: normalised targets (N, B, O + 1).
            terminations: terminations (N, B, 1), 0 or 1.
            weight: weight of a termination in the classifier's cross entropy.
        """
        predicted = self.predict(x)
        if self.reward is None:
            loss = self.dynamics.loss(predicted, target)
        else:
            change, reward = (
                Prediction(predicted.mean[..., part], predicted.log_variance[..., part], predicted.logit)
                for part in (slice(-1), slice(-1, None))
            )
            loss = self.dynamics.loss(change, target[..., :-1]) + self.reward.loss(reward, target[..., -1:])
        if self.termination == LEARNED:
            weights = torch.where(terminations > 0, weight, 1.0)
            entropy = functional.binary_cross_entropy_with_logits(
                predicted.logit, terminations, weights, reduction="none"
            )
            loss = loss + entropy.mean((1, 2)).sum()
        return loss, (predicted.mean - target).detach().square()

    @torch.no_grad()
    def imagine(
        self,
        observations: Tensor,
        actions: Tensor,
        generator: torch.Generator | None,
        places: Tensor | None = None,
        predicted: Prediction | None = None,
        with_uncertainty: bool = True,
    ) -> ModelStep:
        """Sample one step from B states; all values are tensors.

        Args:
            observations: (B, k, O), oldest first.
            actions: (B, k, A) in [-1, 1].
            generator: draws networks, noise and learned terminations; None for the mean over elites, without noise,
                which terminates where this is likelier than not.
            places: (B,), place among the elites of each row's network; default: drawn.
            predicted: what the elites predict, if it is known.
            with_uncertainty: False computes the network of each row alone on a CPU, which is faster, if rows draw
                networks; `uncertainty` and `mean_rewards` are None then.
        """
        x = self.inputs(observations, actions)
        if generator is not None and places is None:
            places = torch.randint(len(self.elites), (len(x),), generator=generator, device=x.device)
        if with_uncertainty or places is None or x.device.type != "cpu":
            predicted = predicted or self.predict(x.expand(len(self.elites), *x.shape), self.elites)
        uncertainty = mean_rewards = None
        if predicted is not None:
            deviations = (0.5 * predicted.log_variance).exp()
            uncertainty = self._uncertainty(predicted.mean[..., :-1], deviations)
            mean_rewards = self.target_mean[-1] + self.target_std[-1] * predicted.mean[..., -1].mean(0)
        if places is None or generator is None:
            assert predicted is not None
            sample, logit = predicted.mean.mean(0), predicted.logit.mean(0)
        else:
            if predicted is None:
                mean, log_variance, logit = self.predict(x, self.elites[places])
            else:
                rows = torch.arange(len(x), device=x.device)
                mean, log_variance, logit = (part[places, rows] for part in predicted)
            noise = torch.randn(mean.shape, generator=generator, device=x.device)
            sample = mean + (0.5 * log_variance).exp() * noise
        values = self.target_mean + self.target_std * sample
        free = observations[:, -1] + values[:, :-1]
        following = torch.clamp(free, self.low - self.spread, self.high + self.spread)
        if self.rule is not None:
            ended = self.rule.terminates(free)  # the range of data in which nothing fell may have no end in it
        elif self.termination == LEARNED:
            ended = self._ends(logit[:, 0], generator)
        else:
            ended = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return ModelStep(following, values[:, -1], ended, uncertainty, (following != free).amax(1), mean_rewards)

    def termination_probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities of terminations, of the shape of `logits`.

        In the loss, a termination has a weight w (`loss`). So the logits are too large by log(w), which is taken off.
        """
        return torch.sigmoid(logits - math.log(self.facts.get("termination_weight", 1.0)))

    def _ends(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw terminations (B,) with the probabilities of logits (B,); without a generator, the likelier ones."""
        probabilities = self.termination_probabilities(logits)
        if generator is None:
            return probabilities > 0.5
        return torch.rand(probabilities.shape, generator=generator, device=logits.device) < probabilities

    def _uncertainty(self, means: Tensor, deviations: Tensor) -> Uncertainty:
        """Return the uncertainty of means (E, B, O) and standard deviations (E, B, O + 1) of the elites."""
        scale = self.target_std[:-1] / self.input_std[: self.observation_dim]  # to standard deviations of observations
        by_row = (means * scale).transpose(0, 1).contiguous()
        return Uncertainty(
            aleatoric=(deviations[..., :-1] * scale).square().amax((0, 2)),
            epistemic=torch.cdist(by_row, by_row, compute_mode="donot_use_mm_for_euclid_dist").amax((1, 2)),
            deviation=(deviations * self.target_std).norm(dim=-1).amax(0),
            disagreement=(means - means.mean(0)).square().mean((0, -1)).sqrt(),
        )

    def step(self, observations: Any, actions: Any, generator: torch.Generator | int | None = None) -> ModelStep:
        """Predict one step, in the units of the recording; all values are arrays.

        Args:
            observations: (B, O); with `history` k > 1, (B, k, O), oldest first.
            actions: (B, A); with `history` k > 1, (B, k, A). They are not clipped: beyond the recorded range, the
                networks extrapolate.
            generator: a torch generator, or its seed: each row draws a network, and noise of its variance. None gives
                the mean of all elites.

        Raises:
            UserError: a shape does not fit the model, a number is not finite, or `generator` is something else.
        """
        dims = {"observations": self.observation_dim, "actions": self.action_dim}
        given: list[Any] = []
        for (name, dim), value in zip(dims.items(), (observations, actions), strict=True):
            array: Any = np.asarray(value, np.float32)
            wanted = (dim,) if self.history == 1 else (self.history, dim)
            if array.shape[1:] != wanted or array.ndim != len(wanted) + 1 or len(array) != len(observations):
                shape = ", ".join(map(str, ("B", *wanted)))
                raise UserError(
                    f"{name} of shape {array.shape} do not fit the model; give the shape ({shape}), with the same B "
                    f"for observations and actions"
                )
            if not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                raise UserError(f"{name} have NaN or infinity in row {row}; leave this row out")
            given.append(array.reshape(len(array), self.history, dim))
        if self.action_range is not None:
            low, high = (np.asarray(bound, np.float32) for bound in self.action_range)
            given[1] = 2.0 * (given[1] - low) / np.where(low < high, high - low, np.float32(1.0)) - 1.0
            given[1][..., low == high] = 0.0  # as in the data; see `in_units`
        is_seed = isinstance(generator, int) and not isinstance(generator, bool) and generator >= 0
        if generator is not None and not is_seed and not isinstance(generator, torch.Generator):
            raise UserError(f"generator is {format_value(generator)}; give a torch.Generator, or a seed from 0 on")
        if isinstance(generator, int):
            generator = torch.Generator(self.device).manual_seed(generator)
        observed, acted = (torch.from_numpy(array).to(self.device) for array in given)
        found = self.imagine(observed, acted, generator)
        uncertainty = Uncertainty(*(part.cpu().numpy() for part in found.uncertainty))
        arrays = (part.cpu().numpy() for part in (*found[:3], found.bounded, found.mean_rewards))
        following, rewards, ended, bounded, mean_rewards = arrays
        return ModelStep(following, rewards, ended, uncertainty, bounded, mean_rewards)

    def __repr__(self) -> str:
        termination = self.rule.text if self.rule is not None else self.termination
        return (
            f"<DynamicsModel of {self.facts.get('name', 'no data yet')}: observations ({self.observation_dim},), "
            f"actions ({self.action_dim},), {self.num_elites} of {self.num_members} networks, history {self.history}, "
            f"termination: {termination}>"
        )


def without_zeros(deviations: Sequence[float] | Any) -> Any:
    """Return standard deviations with 1 in place of 0, for columns that never change."""
    return np.where(np.asarray(deviations) > 0.0, deviations, 1.0)
