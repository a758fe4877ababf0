"""Measures whether an agent with memory uses it, and how far back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.discrete import without_random_actions
from offpcc.config.validation import MOST_ENVS, whole
from offpcc.core import Memory, Step
from offpcc.envs.guard import guarded
from offpcc.networks.states import map_state
from offpcc.training.analysis.run_statistics import FEWER_RESAMPLES, interval, mean
from offpcc.training.evaluation import MakeAnyEnv, open_environment, run_episodes
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.figures import COLORS, new_figure, save_figure
from offpcc.utils.words import counted

Array = npt.NDArray[Any]
Interval = tuple[float, float]  # 95% bootstrap interval of a mean of paired differences
Change = Callable[[int, Step, Memory], tuple[Step, Memory]]  # given also the number of the step
Several = Annotated[int, whole(2, MOST_ENVS)]

TOLERANCE = 0.02  # 1% of the range of actions
SHARE = 0.95  # of the influence that lies within the horizon
SIZES = 0.01, 5.0  # of small and of odd changes of an observation, in standard deviations
NEGLIGIBLE = 0.01  # share of the size of the returns: a smaller cost of an erased memory is no verdict
ROUNDING = 2e-7  # differences of actions up to this are those of float32
PLACES = 8  # steps whose observation is changed, from the first to four fifths of an episode
PARTS = (0.1, 0.25, 0.5, 0.75)  # where in an episode the memory is changed
MOST_STEPS = 1_000  # that are followed after a changed observation


@dataclass(frozen=True)
class Effect:
    """The effect of a changed memory, over episodes with the same seeds."""

    kind: str  # "erased", or "scrambled": replaced by that of another episode at the same step
    step: int | None  # steps before the change; None if the memory was erased before every step
    episodes: int  # that were not over then
    cost: float  # mean loss of return
    cost_interval: Interval
    action_change: float  # mean change of the next action; 0 for every step, as the first memory is empty
    action_interval: Interval

    def __str__(self) -> str:
        """Return the change of the return in words."""
        low, high = (_number(-bound) for bound in reversed(self.cost_interval))
        return f"the return by {_number(-self.cost)} (95% interval {low} to {high})"


@dataclass(frozen=True)
class MemoryCheck:
    """What `check_memory` measured.

    Actions are in [-1, 1]; their change is the largest over their dimensions. A discrete action changes by 0 or 1.
    """

    seeds: list[int]  # of the episodes
    returns: list[float]  # of the episodes, with the memory as it is
    effects: list[Effect]  # of changed memories; the first is that of a memory erased before every step
    # Root mean square change of the action by the observation of k = 0, 1, ... steps before, for a change of one
    # standard deviation (a finite difference). For images, Dict observations and discrete actions: by the observation
    # of another step.
    influence: list[float]
    horizon: int | None  # least k such that the observations of up to k steps before have 95% of the influence
    odd_change: list[float]  # mean change of the actions from an odd observation on
    # Steps until the actions are back within `tolerance` for good, for each odd observation: 0 if no action changed,
    # 1 if only the next action did, None if they are not back at the end of the episode.
    recovery: list[int | None]
    tolerance: float
    repeats: bool  # whether the environment repeats an episode from its seed; if not, costs contain chance
    is_discrete: bool = False  # whether actions are discrete

    def __str__(self) -> str:
        """Return the answer in words."""
        often, *once = self.effects
        verdict = "The agent does not use its memory."
        scale = max(abs(float(np.mean(self.returns))), float(np.std(self.returns)))
        is_notable = abs(often.cost) > NEGLIGIBLE * scale
        if is_notable and often.cost_interval[0] > 0.0:
            verdict = "The agent needs its memory."
        elif is_notable and often.cost_interval[1] < 0.0:
            verdict = "The agent is better without its memory."
        elif any(effect.action_change > self.tolerance for effect in once):
            verdict = "Its actions depend on the memory, but these episodes do not show that the return does."
            if often.cost_interval[0] > 0.0 or often.cost_interval[1] < 0.0:
                verdict = f"Its actions depend on the memory, but the return changes by less than {NEGLIGIBLE:.0%}."
        episodes = counted(len(self.returns), "episode")
        said = [f"The return is {_number(np.mean(self.returns))}, the mean over {episodes}."]
        said.append(f"Erasing the memory before every step changes {often}. {verdict}")
        for kind, how in (("erased", "Erasing the memory once"), ("scrambled", "The memory of another episode")):
            if found := [effect for effect in once if effect.kind == kind]:
                worst, change = max(found, key=lambda one: one.cost), max(one.action_change for one in found)
                said.append(f"{how} changes {worst} at step {worst.step}, where this costs most.")
                if self.is_discrete:
                    said.append(f"It changes the next action in {change:.0%} of the episodes or fewer.")
                else:
                    said.append(
                        f"It changes the next action by {change:.2f} or less on average; actions are in [-1, 1]."
                    )
        if self.horizon is None:
            said.append("No observation changes an action.")
        else:
            last = f"{self.horizon + 1} observations" if self.horizon else "observation alone"
            said.append(f"The action depends mostly on the last {last}: {SHARE:.0%} of the influence.")
        back = sorted(math.inf if steps is None else steps for steps in self.recovery)
        half, late = back[len(back) // 2], sum(map(math.isinf, back))
        differ = "differ" if self.is_discrete else f"differ by more than {self.tolerance:g}"
        median = "until the end of most episodes" if math.isinf(half) else f"for {half} steps (median)"
        said.append(f"After one wrong observation, actions {differ} {median}.")
        said.append(f"In {late} of {len(back)} cases, they still differed when the episode ended.")
        if not self.repeats:
            said.append("The environment does not repeat an episode from its seed, so the costs contain chance.")
        return " ".join(said)

    def plain(self) -> dict[str, Any]:
        """Return the numbers and the words as plain data, for JSON."""
        return {**dataclasses.asdict(self), "text": str(self)}

    def draw(self, file: Path) -> None:
        """Draw the costs, the influence and the recovery into a file (PNG, PDF or SVG, by its suffix)."""
        often, *once = self.effects
        with new_figure(11.0, 3.2) as figure:
            costs, influence, recovery = figure.subplots(1, 3)
            costs.axhline(often.cost, color=COLORS[0], linestyle="--", label="erased before every step")
            costs.axhspan(*often.cost_interval, color=COLORS[0], alpha=0.15, linewidth=0)
            for color, kind in zip(COLORS[1:3], ("erased", "scrambled"), strict=True):
                if found := [(one.step, one.cost, *one.cost_interval) for one in once if one.kind == kind]:
                    steps, cost, low, high = np.array(found, np.float64).T
                    bars = np.maximum([cost - low, high - cost], 0.0)
                    costs.errorbar(steps, cost, bars, color=color, marker="o", capsize=3, label=f"{kind} once")
            costs.set(xlabel="step of the change", ylabel="loss of return", title="Changed memory")
            for axes, curve in ((influence, self.influence), (recovery, self.odd_change)):
                large = np.flatnonzero(np.array(curve) > 0.01 * max(curve))
                axes.plot(curve[: large[-1] + 6 if len(large) else None], color=COLORS[0], marker=".")
            if self.horizon is not None:
                influence.axvline(self.horizon, color=COLORS[1], linestyle="--", label=f"{SHARE:.0%} of the sum")
            recovery.axhline(self.tolerance, color=COLORS[1], linestyle="--", label="tolerance")
            influence.set(xlabel="steps back", ylabel="change of the action", title="Influence of an observation")
            recovery.set(xlabel="steps later", ylabel="change of the action", title="After a wrong observation")
        save_figure(figure, file)


def _number(x: Any) -> str:
    return f"{round(x, 1) + 0.0:,.1f}" if abs(x) >= 10.0 else f"{round(x, 2) + 0.0:.2f}"  # never -0.0


class _Played:
    """N episodes side by side; an episode that is over goes on with its last observation, see `run_episodes`."""

    def __init__(self, actor: Any, envs: Sequence[Any], seeds: Sequence[int], longest: int, change: Change) -> None:
        self.actor, self.change = actor, change
        self.steps, self.actions = list[Step](), list[Array]()
        algorithm: Any = self
        results = run_episodes(algorithm, envs, seeds, longest_episode=longest)
        self.returns = np.array([result.episode_return for result in results])
        self.lengths = np.array([result.length for result in results])

    def act(self, step: Step, memory: Memory, *, deterministic: bool) -> tuple[Array, Memory]:
        step, memory = self.change(len(self.steps), Step(*map(np.array, step)), memory)
        action, memory = self.actor.act(step, memory, deterministic=deterministic)
        self.steps.append(step)
        self.actions.append(action.copy())
        return action, memory


def measure_memory(
    actor: ActorCritic, make_env: MakeAnyEnv, num_episodes: int, seed: int, tolerance: float, longest: int
) -> MemoryCheck:
    """Measure; see `offpcc.check_memory`."""
    if actor.memoryless:
        raise UserError(
            f"{type(actor).__name__} has no memory here, so there is nothing to check; give an agent with memory: its "
            f"algorithm begins with r or cr, such as rsac"
        )
    seeds = list(range(seed, seed + num_episodes))
    with ExitStack() as stack:
        stack.enter_context(without_random_actions(actor))  # they would count as effects of a memory
        envs = [stack.enter_context(closing(guarded(open_environment(make_env, actor)))) for _ in seeds]
        how = actor, envs, seeds, longest
        usual = _Played(*how, lambda t, *given: given)
        length, repeats = int(np.median(usual.lengths)), True
        effects = [_effect("erased", None, usual, _Played(*how, _erase))]
        for t in sorted({max(1, round(part * length)) for part in PARTS} if length > 1 else ()):
            order, there = np.arange(num_episodes), np.flatnonzero(usual.lengths > t)
            order[there] = np.roll(there, 1)  # each episode that is not over gets the memory of another one
            for kind, change in {"erased": _erase, "scrambled": _swap(order)}.items():
                if len(there) > 1:
                    once = lambda now, *given, at=t, do=change: do(now, *given) if now == at else given  # noqa: E731
                    other = _Played(*how, once)
                    if len(other.actions) <= t:  # the episodes of this run were shorter
                        repeats = False
                        continue
                    repeats &= np.array_equal(other.actions[:t], usual.actions[:t])
                    effects.append(_effect(kind, t, usual, other))
    small, odd = _follow(actor, usual, length, np.random.default_rng(seed))
    influence = np.sqrt(np.nanmean(np.square(small), 0))
    horizon = int(np.searchsorted(np.cumsum(influence), SHARE * influence.sum())) if influence.any() else None
    recovery = list[int | None]()
    for row in odd:
        row = row[~np.isnan(row)]
        last = max(np.flatnonzero(row > tolerance), default=-1)
        recovery.append(None if last == len(row) - 1 else int(last) + 1)
    of_changed = influence.tolist(), horizon, np.nanmean(odd, 0).tolist(), recovery
    return MemoryCheck(seeds, usual.returns.tolist(), effects, *of_changed, tolerance, repeats, actor.is_discrete)


def _erase(t: int, step: Step, memory: Memory) -> tuple[Step, Memory]:
    """Reset the memory. The previous action and reward stay, which are inputs."""
    return step._replace(is_first=np.ones_like(step.is_first)), memory


def _swap(order: Array) -> Change:
    """Give each row the memory of another one."""
    return lambda t, step, memory: (step, map_state(lambda part: part[order], memory))


def _effect(kind: str, t: int | None, usual: _Played, other: _Played) -> Effect:
    there = usual.lengths > (t or 0)
    lost = (usual.returns - other.returns)[there]
    change = np.abs(other.actions[t or 0] - usual.actions[t or 0]).max(-1)[there].astype(np.float64)
    (low, high), (least, most) = (map(float, interval(mean, [x], FEWER_RESAMPLES)) for x in (lost, change))
    return Effect(kind, t, len(lost), float(lost.mean()), (low, high), float(change.mean()), (least, most))


def _follow(actor: ActorCritic, usual: _Played, length: int, generator: np.random.Generator) -> Array:
    """Change one observation of the recorded episodes, and show the agent the rest as it was.

    Returns:
        The change of the action at each of K steps from the changed one on, (2, R, K): for small changes, divided by
        their size, and for odd ones. It is NaN after the end of an episode.
    """
    observed, number = np.stack([step.observation for step in usual.steps]), len(usual.lengths)
    spread = observed[np.arange(len(observed))[:, None] < usual.lengths].std(0, dtype=np.float64)
    places = sorted({round(x) for x in np.linspace(0, 0.8 * (length - 1), PLACES)})
    found = np.full((len(SIZES), len(places), number, min(len(observed), MOST_STEPS)), np.nan)
    memory: Memory = None
    for t in range(places[-1] + 1):
        for i, size in enumerate(SIZES if t in places else ()):
            if np.issubdtype(observed.dtype, np.floating) and not actor.is_discrete:
                signs = generator.choice((-1.0, 1.0), observed[t].shape)
                observation = (observed[t] + size * signs * spread).astype(observed.dtype)
            else:  # pixels, the bytes of a Dict, or choices, which small changes do not change: another step's
                others, size = (np.arange(number) + generator.integers(1, number)) % number, 1.0
                observation = observed[(generator.random(number) * usual.lengths[others]).astype(np.int64), others]
            state = map_state(lambda part: part.copy() if isinstance(part, np.ndarray) else part.clone(), memory)
            for k, step in enumerate(usual.steps[t : t + MOST_STEPS]):
                signals.poll()
                step = step if k else step._replace(observation=observation)
                actions, state = actor.act(step, state, deterministic=True)
                change = np.abs(actions - usual.actions[t + k]).max(-1)
                change = np.where(change <= ROUNDING, 0.0, change) / min(size, 1.0)
                found[i, places.index(t), :, k] = np.where(usual.lengths > t + k, change, np.nan)
        _, memory = actor.act(usual.steps[t], memory, deterministic=True)
    rows = found.reshape(len(SIZES), -1, found.shape[-1])
    return rows[:, ~np.isnan(rows[0, :, 0])]
