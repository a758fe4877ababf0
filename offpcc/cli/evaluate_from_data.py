"""`offpcc evaluate --from_data`: values of policies from recorded data, their ranking, and true returns beside them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.discrete import without_random_actions
from offpcc.training.analysis.policy_evaluation import Discounting, ValueEstimate
from offpcc.training.analysis.run_statistics import rank_correlation, regret_at
from offpcc.training.analysis.run_tables import find_runs
from offpcc.training.evaluation import MakeAnyEnv, evaluate_actor
from offpcc.training.run_dir import RunFolder
from offpcc.utils.errors import UserError
from offpcc.utils.words import counted

MOST_CHOSEN = (1, 3, 5)  # k of regret@k


class Played(NamedTuple):
    """Mean returns of played episodes."""

    num_episodes: int
    discounted: float
    undiscounted: float
    weight_cut_off: float  # gamma^L, the weight of what follows a time limit after L steps; mean over episodes


class Evaluated(NamedTuple):
    """A policy and its value."""

    actor: Path
    env: str | None
    estimate: ValueEstimate
    played: Played | None


def expand(folders: Sequence[Path]) -> list[Path]:
    """Return files and runs as they are, and the runs in folders of runs."""
    found: list[Path] = []
    for one in folders:
        is_run = not one.is_dir() or RunFolder.at(one).status() is not None or any(one.glob("*.pt"))
        found += [one] if is_run else find_runs(one)
    if len(found) != len(set(found)):
        raise UserError(f"{next(one for one in found if found.count(one) > 1)} is given twice; give each policy once")
    return found


def measure_returns(
    actor: ActorCritic, make_env: MakeAnyEnv, gamma: float, num_episodes: int, num_envs: int, seed: int, longest: int
) -> Played:
    """Play episodes without random actions, as the values are those of the policy alone; see `evaluate_actor`."""
    ended: list[tuple[float, float]] = []

    def make(**options: Any) -> gymnasium.Env[Any, Any]:
        return Discounting(make_env(**options), gamma, ended.append)

    with without_random_actions(actor):
        results = evaluate_actor(actor, make, num_episodes, num_envs, seed, longest)
    discounted, weights = np.array(ended, np.float64).T
    mean = float(np.mean([result.episode_return for result in results]))
    return Played(len(results), float(discounted.mean()), mean, float(weights.mean()))


def ranking(policies: Sequence[Evaluated]) -> list[Evaluated]:
    """Return policies by their value, the largest first."""
    return sorted(policies, key=lambda one: -one.estimate.value)


def metrics(policies: Sequence[Evaluated]) -> dict[str, float | None]:
    """Return how well values agree with discounted returns, over played policies; None where it is not defined."""
    pairs = [(one.estimate.value, one.played.discounted) for one in policies if one.played is not None]
    if not pairs:
        return {}
    values, returns = map(list, zip(*pairs, strict=True))
    found = {"mean_absolute_error": float(np.mean(np.abs(np.array(values) - returns)))}
    if len(pairs) > 1:
        found["rank_correlation"] = rank_correlation(values, returns)
        found |= {f"regret@{k}": regret_at(k, values, returns) for k in MOST_CHOSEN if k < len(pairs)}
    return {name: None if math.isnan(value) else value for name, value in found.items()}


def as_plain_data(data: str, policies: Sequence[Evaluated]) -> dict[str, Any]:
    """Return values, true returns and metrics as plain data, with the policies in the order of their values."""

    def plain(one: Evaluated) -> dict[str, Any]:
        low, high = (None if math.isnan(bound) else bound for bound in one.estimate.interval)
        return {
            "actor": str(one.actor),
            "env": one.env,
            "value": one.estimate.value,
            "is_possible": one.estimate.is_possible,
            "interval": {"low": low, "high": high, "level": 0.95, "method": "percentile bootstrap over initial states"},
            "num_initial_states": len(one.estimate.initial_values),
            "played": None if one.played is None else one.played._asdict(),
        }

    first = policies[0].estimate
    facts = {"data": data, "gamma": first.gamma, "num_updates": first.num_updates}
    return {**facts, "policies": [plain(one) for one in ranking(policies)], "metrics": metrics(policies)}


def print_values(policies: Sequence[Evaluated]) -> None:
    """Print values, true returns and metrics."""
    for number, one in enumerate(ranking(policies), 1):
        print(f"{number}. {one.actor}: {one.estimate}")
        if (played := one.played) is not None:
            print(
                f"   played {counted(played.num_episodes, 'episode')} in {one.env}: mean discounted return "
                f"{played.discounted:.2f}, mean undiscounted return {played.undiscounted:.1f}"
            )
    for one in ranking(policies):
        if note := one.estimate.note(str(one.actor)):
            print(f"note: {note}")
    if len({one.estimate.memoryless for one in policies}) > 1:
        print(
            "note: critics of agents with memory learn from episodes, and others from single steps, so their values "
            "may have different errors; compare agents of one kind"
        )
    cut = [one.played.weight_cut_off for one in policies if one.played is not None]
    if cut and max(cut) > 0.01:
        print(
            f"note: a value counts the rewards after a time limit, played episodes do not; these rewards have up to "
            f"{max(cut):.0%} of the weight"
        )
    texts = {
        "mean_absolute_error": "mean absolute error of the values, against discounted returns",
        "rank_correlation": "Spearman's rank correlation of values and discounted returns",
    }
    for name, number_or_none in metrics(policies).items():
        shown = "not defined, all are equal" if number_or_none is None else f"{number_or_none:.3f}"
        print(f"{texts.get(name, f'{name}, as a share of the range of discounted returns')}: {shown}")
