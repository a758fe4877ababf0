"""Measures whether an agent with memory uses it, and how far back."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from offpcc.algorithms import ActorCritic
from offpcc.core import Memory, Step
from offpcc.envs.guard import guarded
from offpcc.envs.wrapper_chain import name_of
from offpcc.networks.states import map_state
from offpcc.training.evaluation import MakeAnyEnv, open_environment
from offpcc.training.interaction import refuse_endless
from offpcc.training.seed_statistics import interval, mean
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.figures import COLORS, STYLE, save

Array = npt.NDArray[Any]
Change = Callable[[int, Step, Memory, Array], tuple[Step, Memory]]

TOLERANCE = 0.02  # 1% of the range of actions
SHARE = 0.95  # of the influence that lies within the horizon
SMALL, LARGE = 0.01, 5.0  # changes of an observation, in standard deviations
ROUNDING = 2e-7  # differences of actions up to this are those of float32
PLACES = 8  # steps whose observation is changed, from the first to four fifths of an episode
PARTS = (0.1, 0.25, 0.5, 0.75)  # where in an episode the memory is changed
RESAMPLES = 10_000  # of the bootstrap
MOST_STEPS = 1_000  # that are followed after a changed observation


@dataclass(frozen=True)
class Effect:
    """The effect of a changed memory, over episodes with the same seeds."""

    kind: str  # "erased", or "scrambled": replaced by that of another episode at the same step
    step: int | None  # steps before the change; None if the memory was erased before every step
    episodes: int  # that were not over then
    cost: float  # mean loss of return
    cost_interval: tuple[float, float]  # 95% bootstrap interval of the mean of the paired differences
    action_change: float | None  # mean change of the next action, with its interval; None for every step
    action_interval: tuple[float, float] | None


@dataclass(frozen=True)
class MemoryCheck:
    """What `check_memory` measured. Actions are in [-1, 1]; their change is the largest over their dimensions."""

    seeds: list[int]  # of the episodes
    returns: list[float]  # of the episodes, with the memory as it is
    effects: list[Effect]  # of changed memories; the first is that of a memory erased before every step
    # Root mean square change of the action by the observation of k = 0, 1, ... steps before, for a change of one
    # standard deviation (a finite difference). For images and Dict observations: by the observation of another step.
    influence: list[float]
    horizon: int | None  # least k such that the observations of up to k steps before have 95% of the influence
    odd_change: list[float]  # mean change of the actions from an odd observation on
    # Steps until the actions are back within `tolerance` for good, for each odd observation: 0 if no action changed,
    # 1 if only the next action did, None if they are not back at the end of the episode.
    recovery: list[int | None]
    tolerance: float
    repeats: bool  # whether the environment repeats an episode from its seed; if not, costs contain chance

    def __str__(self) -> str:
        """Return the answer in words."""
        often, *once = self.effects
        low, high = often.cost_interval
        changes = any((effect.action_change or 0.0) > self.tolerance for effect in once)
        if low > 0.0:
            verdict = "The agent needs its memory."
        elif high < 0.0:
            verdict = "The agent is better without its memory."
        elif changes:
            verdict = "Its actions depend on the memory, but these episodes do not show that the return does."
        else:
            verdict = "The agent does not use its memory."
        said = [
            f"The return is {_number(np.mean(self.returns))}, the mean over {len(self.returns)} episodes.",
            f"Erasing the memory before every step costs {_cost(often)}. {verdict}",
        ]
        for kind, how in (("erased", "Erasing it once"), ("scrambled", "The memory of another episode")):
            if found := [effect for effect in once if effect.kind == kind]:
                worst, change = (max(found, key=key) for key in (lambda one: one.cost, lambda one: one.action_change))
                said.append(
                    f"{how} costs at most {_cost(worst)}, at step {worst.step}, and changes the next action by "
                    f"{change.action_change:.2f} or less on average, of [-1, 1]."
                )
        if self.horizon is None:
            said.append("No observation changes an action.")
        else:
            last = f"{self.horizon + 1} observations" if self.horizon else "observation alone"
            said.append(f"The action depends on the last {last} ({SHARE:.0%} of the influence).")
        back = sorted(math.inf if steps is None else steps for steps in self.recovery)
        if back:
            half, late = back[len(back) // 2], sum(map(math.isinf, back))
            median = "not before the end of most episodes" if math.isinf(half) else f"after {half} steps (median)"
            said.append(
                f"After an odd observation, actions are back within {self.tolerance:g} {median}; "
                f"{late} of {len(back)} were not back when the episode ended."
            )
        if not self.repeats:
            said.append("The environment does not repeat an episode from its seed, so the costs contain chance.")
        return " ".join(said)

    def plain(self) -> dict[str, Any]:
        """Return the numbers and the words as plain data, for JSON."""
        return {**dataclasses.asdict(self), "text": str(self)}

    def draw(self, file: Path) -> None:
        """Draw the costs, the influence and the recovery.

        Args:
            file: the picture (PNG, PDF or SVG, by its suffix).
        """
        import matplotlib
        from matplotlib.figure import Figure

        often, *once = self.effects
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(11.0, 3.2), layout="constrained")
            costs, influence, recovery = figure.subplots(1, 3)
            costs.axhline(often.cost, color=COLORS[0], linestyle="--", label="erased before every step")
            costs.axhspan(*often.cost_interval, color=COLORS[0], alpha=0.15, linewidth=0)
            for color, kind in zip(COLORS[1:], ("erased", "scrambled"), strict=False):
                found = [effect for effect in once if effect.kind == kind]
                low, high = (np.array([effect.cost_interval[end] for effect in found]) for end in (0, 1))
                cost, steps = np.array([effect.cost for effect in found]), [effect.step for effect in found]
                spread = np.maximum([cost - low, high - cost], 0.0)
                costs.errorbar(steps, cost, spread, color=color, marker="o", capsize=3, label=f"{kind} once")
            costs.set(xlabel="step of the change", ylabel="loss of return", title="Changed memory")
            influence.plot(_large_part(self.influence), color=COLORS[0], marker=".")
            if self.horizon is not None:
                influence.axvline(self.horizon, color=COLORS[1], linestyle="--", label=f"{SHARE:.0%} of the sum")
            influence.set(xlabel="steps back", ylabel="change of the action", title="Influence of an observation")
            recovery.plot(_large_part(self.odd_change), color=COLORS[0], marker=".")
            recovery.axhline(self.tolerance, color=COLORS[1], linestyle="--", label="tolerance")
            recovery.set(xlabel="steps later", ylabel="change of the action", title="After an odd observation")
        save(figure, file)


def _number(x: float) -> str:
    return f"{round(x, 1) + 0.0:,.1f}" if abs(x) >= 10.0 else f"{round(x, 2) + 0.0:.2f}"  # never -0.0


def _cost(effect: Effect) -> str:
    low, high = map(_number, effect.cost_interval)
    return f"{_number(effect.cost)} of return (95% interval {low} to {high})"


def _large_part(curve: Sequence[float]) -> Sequence[float]:
    """Return the curve until it stays below 1% of its largest value, and some more."""
    away = np.flatnonzero(np.array(curve) > 0.01 * max(curve, default=0.0))
    return curve[: away[-1] + 6] if len(away) else curve


class _Episodes(NamedTuple):
    """N episodes side by side, T steps of the longest; the rows of shorter ones go on with their last observation."""

    observations: Array  # (T, N, *obs)
    actions: Array  # (T, N, A)
    rewards: Array  # (T, N, 1)
    lengths: Array  # (N,)

    @property
    def returns(self) -> Array:
        """(N,)."""
        return self.rewards.sum((0, 2), dtype=np.float64)

    def seen(self, t: int) -> Step:
        """Return the inputs of the agent at step t."""
        if t:
            previous = self.actions[t - 1], self.rewards[t - 1]
        else:
            previous = np.zeros_like(self.actions[0]), np.zeros_like(self.rewards[0])
        return Step(self.observations[t], *previous, np.full(len(self.lengths), t == 0, np.float32))


def measure(
    actor: ActorCritic, make_env: MakeAnyEnv, num_episodes: int, seed: int, tolerance: float, longest: int
) -> MemoryCheck:
    """Measure; see `offpcc.check_memory`."""
    if actor.memoryless:
        raise UserError(
            f"{type(actor).__name__} has no memory here, so there is nothing to check; give an agent with memory: its "
            f"algorithm begins with r, such as rsac"
        )
    seeds, generator = list(range(seed, seed + num_episodes)), np.random.default_rng(seed)
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(guarded(open_environment(make_env, actor)))) for _ in seeds]
        play = functools.partial(_play, actor, envs, seeds, longest)
        usual = play(None)
        length = int(np.median(usual.lengths))
        effects, repeats = [_effect("erased", None, usual, play(_erase))], True
        for t in sorted({max(1, round(part * length)) for part in PARTS} if length > 1 else ()):
            for kind, change in (("erased", _erase), ("scrambled", _swap)):
                if (usual.lengths > t).sum() < 2:  # nothing to swap, and no interval
                    continue
                other = play(lambda now, *given, t=t, change=change: change(now, *given) if now == t else given[:2])
                repeats &= bool((other.actions[:t] == usual.actions[:t]).all())
                effects.append(_effect(kind, t, usual, other))
    places = sorted({round(x) for x in np.linspace(0, 0.8 * (length - 1), PLACES)})
    small, large = _follow(actor, usual, places, generator)
    counted = [~np.isnan(changes).all(0) for changes in (small, large)]
    influence = np.sqrt(np.nanmean(np.square(small[:, counted[0]]), 0))
    horizon = int(np.searchsorted(np.cumsum(influence), SHARE * influence.sum())) if influence.any() else None
    return MemoryCheck(
        seeds=seeds,
        returns=usual.returns.tolist(),
        effects=effects,
        influence=influence.tolist(),
        horizon=horizon,
        odd_change=np.nanmean(large[:, counted[1]], 0).tolist(),
        recovery=[_steps_back(row[~np.isnan(row)], tolerance) for row in large],
        tolerance=tolerance,
        repeats=repeats,
    )


def _play(
    actor: ActorCritic, envs: Sequence[Any], seeds: Sequence[int], longest: int, change: Change | None
) -> _Episodes:
    """Play one episode in each environment; `change` replaces the inputs and the memory before each step."""
    shape, number = envs[0].action_space.shape, len(envs)
    current = [np.array(env.reset(seed=one)[0]) for env, one in zip(envs, seeds, strict=True)]
    actions, rewards = np.zeros((number, actor.action_dim), np.float32), np.zeros((number, 1), np.float32)
    memory: Memory = None
    lengths, alive = np.zeros(number, np.int64), np.ones(number, np.bool_)
    log: list[tuple[Array, Array, Array]] = []
    while alive.any():
        signals.poll()
        step = Step(np.stack(current), actions, rewards, np.full(number, not log, np.float32))
        if change is not None:
            step, memory = change(len(log), step, memory, alive)
        actions, memory = actor.act(step, memory, deterministic=True)
        actions, rewards = actions.copy(), np.zeros((number, 1), np.float32)
        log.append((step.observation, actions, rewards))
        for i in np.flatnonzero(alive).tolist():
            observation, reward, terminated, truncated, _ = envs[i].step(actions[i].reshape(shape))
            current[i], rewards[i] = np.array(observation), reward
            lengths[i] += 1
            alive[i] = not (terminated or truncated)
            if alive[i]:
                refuse_endless(functools.partial(name_of, envs[i]), int(lengths[i]), longest)
    return _Episodes(*(np.stack(part) for part in zip(*log, strict=True)), lengths)


def _erase(t: int, step: Step, memory: Memory, alive: Array) -> tuple[Step, Memory]:
    """Reset the memory. The previous action and reward stay, which are inputs."""
    return step._replace(is_first=np.ones_like(step.is_first)), memory


def _swap(t: int, step: Step, memory: Memory, alive: Array) -> tuple[Step, Memory]:
    """Give each episode the memory of another one that is not over."""
    order, those = np.arange(len(alive)), np.flatnonzero(alive)
    order[those] = np.roll(those, 1)
    return step, map_state(lambda part: part[order], memory)


def _effect(kind: str, t: int | None, usual: _Episodes, other: _Episodes) -> Effect:
    there = usual.lengths > (t or 0)
    lost = (usual.returns - other.returns)[there]
    change = None if t is None else np.abs(other.actions[t] - usual.actions[t]).max(-1)[there].astype(np.float64)
    return Effect(
        kind=kind,
        step=t,
        episodes=len(lost),
        cost=float(lost.mean()),
        cost_interval=_interval(lost),
        action_change=None if change is None else float(change.mean()),
        action_interval=None if change is None else _interval(change),
    )


def _interval(differences: Array) -> tuple[float, float]:
    low, high = interval(mean, [differences], RESAMPLES)
    return float(low), float(high)


def _follow(
    actor: ActorCritic, usual: _Episodes, places: Sequence[int], generator: np.random.Generator
) -> tuple[Array, Array]:
    """Change one observation of the recorded episodes, and show the agent the rest as it was.

    Returns:
        The change of the action at each step from the changed one on, for small and for large changes: two arrays
        (places x N, K), with NaN after the end of an episode. That of a small change is divided by its size.
    """
    total, number = len(usual.actions), len(usual.lengths)
    spread = usual.observations[np.arange(total)[:, None] < usual.lengths].std(0, dtype=np.float64)
    found: tuple[list[Array], list[Array]] = [], []
    memory: Memory = None
    for t in range(places[-1] + 1):
        step = usual.seen(t)
        if t in places:
            for size, rows in zip((SMALL, LARGE), found, strict=True):
                if np.issubdtype(step.observation.dtype, np.floating):
                    signs = generator.choice((-1.0, 1.0), step.observation.shape)
                    observation = (step.observation + size * signs * spread).astype(step.observation.dtype)
                else:  # pixels, or the bytes of a Dict: those of another step of another episode
                    others = (np.arange(number) + generator.integers(1, number)) % number
                    at = (generator.random(number) * usual.lengths[others]).astype(np.int64)
                    observation, size = usual.observations[at, others], 1.0
                changes = _changes(actor, usual, t, observation, memory)
                rows.append(np.where(changes <= ROUNDING, 0.0, changes) / min(size, 1.0))
        _, memory = actor.act(step, memory, deterministic=True)
    most = max(rows.shape[1] for rows in found[0])
    small, large = (
        np.concatenate([np.pad(x, ((0, 0), (0, most - x.shape[1])), constant_values=np.nan) for x in rows])
        for rows in found
    )
    there = ~np.isnan(small[:, 0])
    return small[there], large[there]


def _changes(actor: ActorCritic, usual: _Episodes, start: int, observation: Array, memory: Memory) -> Array:
    """Return how much the actions (N, K) from step `start` on differ when the agent sees this observation first."""
    memory = map_state(lambda part: part.copy() if isinstance(part, np.ndarray) else part.clone(), memory)
    changes = []
    for t in range(start, min(len(usual.actions), start + MOST_STEPS)):
        signals.poll()
        step = usual.seen(t)
        step = step._replace(observation=observation) if t == start else step
        actions, memory = actor.act(step, memory, deterministic=True)
        changed = np.abs(actions - usual.actions[t]).max(-1).astype(np.float64)
        changes.append(np.where(usual.lengths > t, changed, np.nan))
    return np.stack(changes, 1)


def _steps_back(changes: Array, tolerance: float) -> int | None:
    """Return after how many steps the changes (K,) stay within the tolerance; None if they do not."""
    away = np.flatnonzero(changes > tolerance)
    if not len(away):
        return 0
    return None if away[-1] == len(changes) - 1 else int(away[-1]) + 1
