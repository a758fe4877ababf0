"""`model_quality`: how well a model predicts recorded data, and whether its uncertainty tells where it errs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from offpcc.algorithms.dynamics import DynamicsModel, Uncertainty, without_zeros
from offpcc.data.buffers.storage import TransitionTable
from offpcc.data.datasets.columns import Array, Range
from offpcc.training.analysis.run_statistics import rank_correlation
from offpcc.training.models.training import Transitions, as_tensor, describe_spread, reward_scale, spread
from offpcc.utils.errors import UserError

MOST_ROWS = 20_000  # transitions that are compared; evenly spread if there are more
HORIZONS = (1, 2, 5, 10, 20, 50)
MOST_ROLLOUTS = 500
ROWS_AT_ONCE = 1024
MOST_LISTED = 20  # numbers of an observation that are printed as outside


class SearchRange(NamedTuple):
    """Between which numbers to search for a pessimism's setting, by the uncertainty over the data."""

    threshold: tuple[float, float]  # mean and maximum of the uncertainty
    coefficient: tuple[float, float]  # up to the one that takes the largest reward from the most uncertain transition


class Quality(NamedTuple):
    """How well a model predicts data of M transitions; ``str(quality)`` is the text of ``offpcc check --model``."""

    error: Array  # (O + 1,), root mean squared error of one step, of each number of an observation and of the reward
    std: Array  # (O + 1,), standard deviation of these numbers over the data
    horizons: dict[int, Array]  # steps ahead: (O,), root mean squared error, in standard deviations of the data
    # Share of true changes within 1 and 2 predicted standard deviations; 0.68 and 0.95 if the predictions are right.
    within: tuple[float, float]
    rank_correlation: dict[str, float]  # of each uncertainty with the length of the error, by Spearman
    uncertainty: Uncertainty  # (M,) each
    ranges: dict[str, SearchRange]
    outside: Array  # (O,), share of observations outside the range of the model's data, for each number
    beyond: Array  # (O,), how far outside they are at most, in standard deviations of the model's data
    range: tuple[Array, Array]  # (O,) each, this range: the lowest and the highest observation
    any_outside: float  # share of observations with a number outside
    unsure: float  # share of transitions that are less certain than all of the model's data

    def __str__(self) -> str:
        """Return the findings as text, a line for each."""
        return "\n".join(format_quality(self))


def model_quality(model: DynamicsModel, rows: TransitionTable, action_range: Range | None = None) -> Quality:
    """Compare the predictions of a model with recorded data, seen and scaled as those of the model."""
    check_model_fits_data(model, rows, action_range)
    data = Transitions(rows, model.history)
    indices = data.some(MOST_ROWS)
    errors, ratios, found = [], [], []
    for start in range(0, len(indices), ROWS_AT_ONCE):
        parts = data[indices[start : start + ROWS_AT_ONCE]]
        observations, actions, following, rewards, _ = (as_tensor(part, model) for part in parts)
        x = model.inputs(observations, actions)
        with torch.no_grad():
            each = model.predict(x.expand(len(model.elites), *x.shape), model.elites)
        step = model.imagine(observations, actions, None, predicted=each)
        found.append(step.uncertainty)
        predicted = torch.cat([step.next_observations, step.rewards[:, None]], 1)
        errors.append((predicted - torch.cat([following, rewards], 1)).cpu().numpy())
        target = model.targets(observations[:, -1], following, rewards)
        deviations = (target - each.mean).abs() / (0.5 * each.log_variance).exp()
        ratios.append(deviations[..., model.target_std > 0].transpose(0, 1).cpu().numpy())
    error, ratio = np.concatenate(errors).astype(np.float64), np.concatenate(ratios)
    uncertainty = Uncertainty(*(torch.cat(parts).double().cpu().numpy() for parts in zip(*found, strict=True)))
    current = rows.observations[data.starts[indices]].astype(np.float64)
    truth = np.concatenate([current, rows.rewards[data.starts[indices]]], 1)
    length = np.linalg.norm((error / without_zeros(model.target_std.cpu().numpy()))[:, :-1], axis=1)
    largest = model.facts["uncertainty"]
    low, high = model.low.cpu().numpy(), model.high.cpu().numpy()
    is_outside = (current < low) | (current > high)
    distance = np.maximum(np.maximum(low - current, current - high), 0.0).max(0)
    return Quality(
        error=np.sqrt(np.square(error).mean(0)),
        std=truth.std(0),
        horizons=horizons(model, rows, current.std(0)),
        within=(float((ratio < 1.0).mean()), float((ratio < 2.0).mean())),
        rank_correlation={name: rank_correlation(values, length) for name, values in uncertainty._asdict().items()},
        uncertainty=uncertainty,
        ranges={name: search_range(values, reward_scale(model.facts)) for name, values in
                uncertainty._asdict().items()},
        outside=is_outside.mean(0),
        beyond=distance / model.input_std[: model.observation_dim].cpu().numpy(),
        range=(low, high),
        any_outside=float(is_outside.any(1).mean()),
        unsure=float((uncertainty.epistemic > largest["epistemic"]["1"] * (1.0 + 1e-5)).mean()),
    )  # fmt: skip


def check_model_fits_data(model: DynamicsModel, rows: TransitionTable, action_range: Range | None) -> None:
    """Raise if a model cannot read some data.

    `action_range` is the lowest and the highest action of the recording, which `rows` maps to -1 and 1; None if
    unknown.
    """
    sizes = rows.observations.shape[1:], rows.actions.shape[1:]
    if sizes != ((model.observation_dim,), (model.action_dim,)):
        env = model.facts.get("env")
        remedy = f"the model was trained with --env {env}: add it" if env else "give data of the same environment"
        raise UserError(
            f"the data have observations of shape {sizes[0]} and actions of shape {sizes[1]}, but the model reads "
            f"({model.observation_dim},) and ({model.action_dim},); {remedy}"
        )
    if action_range is not None and model.action_range is not None:
        theirs, ours = (np.asarray(np.broadcast_arrays(*bounds)) for bounds in (action_range, model.action_range))
        if not np.allclose(theirs, ours, rtol=1e-5):
            raise UserError(
                f"the data have actions from {theirs[0].tolist()} to {theirs[1].tolist()}, but those of the model's "
                f"data are from {ours[0].tolist()} to {ours[1].tolist()}; give data of the same environment, or bind "
                f"dataset.action_range in --config"
            )


def search_range(uncertainty: Array, scale: float) -> SearchRange:
    """Return the ranges of a threshold and of a penalty's coefficient for an uncertainty over the data."""
    most = float(uncertainty.max())
    return SearchRange((float(uncertainty.mean()), most), (0.0, scale / most if most else 0.0))


def horizons(model: DynamicsModel, rows: TransitionTable, std: Array) -> dict[int, Array]:
    """Return the errors (O,) of predictions k steps ahead by the recorded actions, in standard deviations of the data.

    The model's mean is its next input. Starts are evenly spread over the parts of episodes that are long enough.
    """
    errors: dict[int, Array] = {}
    data = Transitions(rows, model.history)
    last = np.repeat(rows.stops - 1, rows.stops - rows.starts)  # row of the last observation of each row's episode
    for steps in HORIZONS:
        is_long = last[data.starts] - data.starts >= steps
        possible = np.flatnonzero(is_long)
        if not len(possible):
            break
        indices = possible[np.unique(np.linspace(0, len(possible) - 1, min(MOST_ROLLOUTS, len(possible))).astype(int))]
        observations, actions = (as_tensor(part, model) for part in data[indices][:2])
        at = data.starts[indices]
        for step in range(steps):
            if step:
                following = as_tensor(rows.actions[at + step], model)[:, None]
                actions = torch.cat([actions[:, 1:], following], 1)
            seen = model.imagine(observations, actions, None).next_observations
            observations = torch.cat([observations[:, 1:], seen[:, None]], 1)
        error = (observations[:, -1].cpu().numpy() - rows.observations[at + steps]) / without_zeros(std)
        errors[steps] = np.sqrt(np.square(error.astype(np.float64)).mean(0))
    return errors


def format_quality(quality: Quality) -> list[str]:
    """Return the quality as text, a line for each finding."""
    names = [*(f"observation {number}" for number in range(len(quality.outside))), "reward"]
    lows, highs = quality.range
    told = [f"one step ahead, root mean squared error (in standard deviations of the data), {len(names) - 1} numbers:"]
    for name, error, std in zip(names, quality.error, quality.std, strict=True):
        told.append(f"  {name:16} {error:.4g}" + (f" ({error / std:.2%})" if std > 0 else " (it never changes)"))
    told.append("steps ahead, error in standard deviations of the data:")
    of_all = {steps: np.sqrt(np.square(errors).mean(keepdims=True)) for steps, errors in quality.horizons.items()}
    for number, name in enumerate(["all numbers", *names[:-1]]):
        columns = of_all if number == 0 else quality.horizons
        ahead = ", ".join(f"{steps}: {errors[max(number - 1, 0)]:.3g}" for steps, errors in columns.items())
        told.append(f"  {name:16} {ahead}")
    told.append(
        f"calibration: {quality.within[0]:.0%} of true values are within 1 predicted standard deviation, "
        f"{quality.within[1]:.0%} within 2 (68% and 95% if the predictions are right)"
    )
    for name, values in quality.uncertainty._asdict().items():
        low, high = quality.ranges[name].threshold
        told.append(
            f"{name} uncertainty: {describe_spread(spread(values))}; rank correlation with the error "
            f"{quality.rank_correlation[name]:.2f}; search a threshold between {low:.4g} and {high:.4g}, a coefficient "
            f"between 0 and {quality.ranges[name].coefficient[1]:.4g}"
        )
    told.append(
        f"outside the range of the model's data: {quality.any_outside:.1%} of the observations; less certain than all "
        f"of the model's data: {quality.unsure:.1%} of the transitions"
    )
    for number in np.argsort(-quality.outside, kind="stable")[:MOST_LISTED]:
        if quality.outside[number] > 0:
            told.append(
                f"  {names[number]:16} {quality.outside[number]:.1%} outside {lows[number]:.4g} to "
                f"{highs[number]:.4g}, by up to {quality.beyond[number]:.2g} standard deviations of "
                f"the model's data"
            )
    return told
