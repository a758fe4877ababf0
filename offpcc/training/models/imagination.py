"""`Imagination`: an agent plays in a learned model, and learns from what happens there."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch

from offpcc.algorithms import ActorCritic, variants
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.config import loading
from offpcc.config.registry import from_specification, specification
from offpcc.config.settings import Settings, settings
from offpcc.config.validation import (
    Flag,
    Fraction,
    Number,
    PositiveInteger,
    PositiveNumber,
    Rule,
    Size,
    format_value,
    is_number,
    one_of,
)
from offpcc.data.buffers.imagined import ImaginedBuffer
from offpcc.data.buffers.storage import TransitionTable
from offpcc.data.datasets.columns import Array
from offpcc.training.callbacks import Callback, Run
from offpcc.training.models.rollouts import (
    ALEATORIC,
    DEVIATION,
    DISAGREEMENT,
    EPISTEMIC,
    TERMINAL,
    TRUNCATED,
    Log,
    Pessimism,
    Position,
    Rollouts,
    Starts,
    first_position,
    play_rollouts,
)
from offpcc.training.models.training import (
    MOST_MEASURED,
    ModelFit,
    ModelTraining,
    Transitions,
    describe_terminations,
    reward_scale,
    uncertainties,
)
from offpcc.training.models.tuned_rollouts import tuned_pair
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator
from offpcc.utils.words import counted

ANY, FIRST = "any", "first"
UNBOUNDED = "unbounded"  # a length
STRETCH = 10  # steps of rollouts without a bound that are stored at a time; others replace those that ended meanwhile
BLOCK = 8_192  # rollouts of agents without memory that are played at a time
RECURRENT_BLOCK = 512
ENDLESS = 1_000.0  # steps that count as forever without a discount
MOST_OF_CAPACITY = 10  # times the capacity, which a round of rollouts may have in steps; more is a mistake


def _is_length(value: Any) -> bool:
    if isinstance(value, str) and value == UNBOUNDED:
        return True
    if isinstance(value, int) and not isinstance(value, bool):
        return value >= 1
    if not isinstance(value, list | tuple) or len(value) != 4:
        return False
    are_numbers = all(is_number(one, 0.0) for one in value)
    return are_numbers and value[0] < value[1] and value[2] >= 1 and value[3] >= 1


def _is_limit(value: Any) -> bool:
    return (
        is_number(value, 0.0) or _factor(value, "max") is not None or 0.0 <= (_factor(value, "quantile") or -1) <= 1.0
    )


def _factor(text: Any, word: str) -> float | None:
    """Return x of texts such as "max * x", "range * x" or "quantile x"; None for others."""
    if not isinstance(text, str) or not text.startswith(word):
        return None
    try:
        number = float(text.removeprefix(word).strip().removeprefix("*") or 1.0)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0.0 else None


RolloutLength = Annotated[
    int | str | list[int] | tuple[int, ...],
    Rule(
        f"a whole number of steps, 1 or more, (first step, last step, length then, length at the end), or "
        f'"{UNBOUNDED}"',
        _is_length,
    ),
]
Limit = Annotated[float | str, Rule('a number, 0 or more, "max * 1" or "quantile 0.99"', _is_limit)]
Coefficient = Annotated[
    float | str,
    Rule(
        'a number, 0 or more, or "range * 0.5"',
        lambda value: is_number(value, 0.0) or _factor(value, "range") is not None,
    ),
]
Kind = Annotated[str, one_of((ALEATORIC, EPISTEMIC, DEVIATION, DISAGREEMENT))]


@settings("Imagination")
class ImaginationOptions(Settings):
    """Settings of the rollouts in a model, which gin binds as ``Imagination.length`` and so on.

    Most algorithms have their own defaults; ``offpcc params mopo`` shows those of MOPO. They hold where gin binds
    nothing, or None.

    Args:
        length: largest number of steps of a rollout. Or a schedule in steps of the run, as in MBPO: with
            ``(20_000, 100_000, 1, 15)`` it grows from 1 to 15 between these steps. With "unbounded", a rollout goes on
            in the next round until the model terminates it or it passes the threshold; not with memory.
        steps_per_update: imagined steps per update of the agent.
        every: updates between two rounds of rollouts.
        capacity: largest number of imagined transitions that are kept; with memory, recorded steps before a rollout
            count, too.
        keep: number of rounds of rollouts whose transitions are kept, if no rollout ends early; then it is more.
            Default: 20 where a run trains its model, because older rounds come from worse models; else as many as
            `capacity` holds.
        real_share: share of real items in a batch, at least one of each kind unless it is 0 or 1; default: 0.05, in
            COMBO and NEUBAY 0.5.
        start: whether rollouts start from "any" recorded step, or from the "first" one of an episode.
        one_member: whether all of a rollout is played in one network; else each step draws its own. Default: only in
            NEUBAY.
        mean_reward: whether the reward is the mean over elites; else that of the drawn network, with noise. Default:
            only in the four modes.
        uncertainty: over the elites, not over all networks. "aleatoric" is the largest predicted variance, "epistemic"
            the largest distance between the means of two elites, both in units of the data's standard deviations;
            "deviation" is the largest length of an elite's standard deviations, in the data's units (MOPO);
            "disagreement" is the root mean variance of the elites' means.
        penalty: number c; the reward falls by c times the uncertainty. "range * x" is x times the data's largest reward
            divided by the largest uncertainty over the data; where rewards are negative on average, the smallest one
            counts. With a `reward_scale` below 0, recorded rewards are costs: an imagined one rises by as much.
        threshold: uncertainty at which a rollout ends. "max * x" is x times the largest one over the data, and
            "quantile x" a quantile of it. Of data with more than 100,000 transitions, 100,000 evenly spread ones count.
        ends: "terminal" ends a rollout that passes the threshold as a failure, with `end_reward`; "truncated" leaves
            its last step out, and the value after the step before is bootstrapped. Default: "terminal", in NEUBAY
            "truncated".
        end_reward: reward of the last step at the threshold. None for minus the largest recorded reward; or, where
            recorded rewards are negative on average, for the smallest one forever, discounted (1,000 times with a
            discount of 1): the end of an episode would be a gain there. Both are found as targets have rewards, with
            `reward_scale` and `reward_shift`. A number is a reward as recorded, before these.
        prefix: with memory, recorded steps before a rollout that compute the hidden state; None for all since the
            episode's start.
        train_every: environment steps between two trainings of the model, if the run trains it.
        from_scratch: whether each of these trainings begins with new weights; else it goes on with the last ones.
        clear: whether each of these trainings deletes all imagined transitions, because they are of the model before.
    """

    length: RolloutLength = 1
    steps_per_update: PositiveNumber = 50.0
    every: PositiveInteger = 250
    capacity: PositiveInteger = 1_000_000
    keep: PositiveInteger | None = None
    real_share: Fraction = 0.05
    start: Annotated[str, one_of((ANY, FIRST))] = ANY
    one_member: Flag = False
    mean_reward: Flag = False
    uncertainty: Kind = EPISTEMIC
    penalty: Coefficient | None = None
    threshold: Limit | None = None
    ends: Annotated[str, one_of((TERMINAL, TRUNCATED))] = TERMINAL
    end_reward: Number | None = None
    prefix: Size | None = None
    train_every: PositiveInteger = 250
    from_scratch: Flag = False
    clear: Flag = False

    @property
    def ends_as_failure(self) -> bool:
        """Whether a rollout that passes the threshold ends with `end_reward`."""
        return self.threshold is not None and self.ends == TERMINAL

    @property
    def stored_lengths(self) -> list[int]:
        """Lengths of rollouts in steps, as they are stored: one, or both ends of a schedule."""
        if self.length == UNBOUNDED:
            return [STRETCH]
        return [self.length] if isinstance(self.length, int) else [int(x) for x in self.length[2:]]


def imagination_options(algorithm: type[ActorCritic], algo: str, data: str) -> ImaginationOptions | None:
    """Return the settings of an algorithm's rollouts: gin's, else those tuned for the data, else the algorithm's.

    The algorithm is given by its class and its name, the data by their name. None for an algorithm without a model.
    """
    if (of_algorithm := getattr(algorithm, "imagination", None)) is None:  # a user's class may have no such attribute
        return None
    bound, values = loading.bindings_of(ImaginationOptions), loading.resolve_bindings(ImaginationOptions)
    given = {name for name in bound if values[name] is not None}  # a macro may be None, too
    plain = variants.TABLE[algo].algorithm if algo in variants.TABLE else algo
    tuned = tuned_pair(plain, data)
    own = dict(of_algorithm)
    if data:
        own["keep"] = None  # all rounds are of one model
    for one, other in (("penalty", "threshold"), ("threshold", "penalty")):
        if one in given:
            tuned.pop(other, None)
        if one in given or one in tuned:
            own.pop(other, None)
    defaults = {one.name: one.default for one in dataclasses.fields(ImaginationOptions)}
    unbound = {**{name: defaults[name] for name in bound}, **own, **tuned}
    options = ImaginationOptions.from_gin({name: value for name, value in unbound.items() if name not in given})
    if options.penalty is not None and options.threshold is not None:
        raise UserError(
            f"Imagination.penalty is {format_value(options.penalty)} and Imagination.threshold is "
            f"{format_value(options.threshold)}; a rollout is either penalised or ended: bind one of them"
        )
    if options.real_share == 0.0 and algorithm.needs_recorded:
        raise UserError(
            f"Imagination.real_share is 0, but {algorithm.__name__} needs recorded rows in each batch; raise real_share"
        )
    if options.end_reward is not None and (options.threshold is None or options.ends == TRUNCATED):
        raise UserError(
            "Imagination.end_reward has no effect without a threshold that ends rollouts as failures; leave it out"
        )
    if options.length == UNBOUNDED and plain != algo:
        raise UserError(
            f'Imagination.length is "{UNBOUNDED}", but {algo} has a memory, which needs whole rollouts; bind a number '
            f"of steps"
        )
    for name in ("from_scratch", "clear", "train_every"):
        if data and getattr(options, name) != defaults[name]:
            raise UserError(
                f"Imagination.{name} has no effect with recorded data, whose model is trained once; leave it out"
            )
    if options.capacity < 2 * max(options.stored_lengths):
        raise UserError(
            f"Imagination.capacity is {options.capacity}, less than two rollouts of Imagination.length "
            f"{options.length}; raise it"
        )
    if (steps := options.steps_per_update * options.every) > MOST_OF_CAPACITY * options.capacity:
        raise UserError(
            f"Imagination.steps_per_update is {options.steps_per_update:g} and Imagination.every is {options.every:,}: "
            f"each round of rollouts would have {steps:,.0f} steps, but Imagination.capacity keeps "
            f"{options.capacity:,}; lower one of the two, or raise the capacity"
        )
    return options


def stat_names(trains_model: bool, penalty: Any = None, threshold: Any = None, **_: Any) -> tuple[str, ...]:
    """Return the statistics of rollouts with these `ImaginationOptions`, without those that stay empty.

    The uncertainty is known only with a penalty or a threshold, and only a threshold stops rollouts.
    """
    return (
        "imagined_length",
        *(["imagined_uncertainty"] if penalty or threshold is not None else []),
        *(["imagined_stopped"] if threshold is not None else []),
        "imagined_bounded",
        *(["model_error"] if trains_model else []),
    )


def imagined_capacity(options: ImaginationOptions, real: Any, longest: int) -> int:
    """Return the capacity of a buffer of imagined transitions: in rows, or with memory in episodes.

    `real` is the buffer of real transitions, and `longest` the length of the longest episode.
    """
    shortest, rows = min(options.stored_lengths), max(options.stored_lengths) + 1  # the latter of a rollout
    rollouts = math.inf  # that are kept
    if options.keep is not None:
        rollouts = options.keep * math.ceil(options.steps_per_update * options.every / shortest)
    if not real.holds_episodes:
        return int(min(options.capacity, max(rollouts * (shortest + 1), 2 * rows)))
    before = longest if options.prefix is None else options.prefix
    if real.segment_len is not None:
        before = min(before, real.segment_len + real.burn_in)
    return int(min(max(options.capacity // (rows + before), 1), rollouts))


class Imagination(Callback):
    """Callback that lets the agent play in the model, and stores what happens; see `ImaginationOptions`.

    All its randomness is the model's and its own generator's, and the agent's noise. `state_dict` holds its state.

    The buffer receives the rollouts, which start in its real part. `rows` are recorded data of the model; None to train
    the model on the buffer's real part during the run, by `training`. The discount is the agent's; in its targets, a
    reward is multiplied by `reward_scale`, and `reward_shift` is added.
    """

    def __init__(
        self,
        options: ImaginationOptions,
        model: DynamicsModel,
        buffer: ImaginedBuffer,
        rows: TransitionTable | None,
        training: ModelTraining,
        seed: int,
        discount: float,
        reward_scale: float = 1.0,
        reward_shift: float = 0.0,
    ) -> None:
        self.discount, self.reward_scale, self.reward_shift = discount, reward_scale, reward_shift
        self.options, self.model, self.buffer = options, model, buffer
        self.training, self.seed = training, seed
        self.trains_model = rows is None
        self.randomness = NumpyGenerator(seed, 8)
        self.generator = torch.Generator(model.device).manual_seed(int(self.randomness.generator.integers(2**62)))
        self.next_update = self.next_training = self.num_trainings = 0
        self.is_in_round = False  # whether `before_updates` was interrupted
        self.position: Position | None = None  # of rollouts without a bound that go on
        self.ages = np.zeros(0, np.int64)  # their lengths until now
        self.data: Transitions | None = None
        if rows is not None:
            self._set_data(rows)

    def _set_data(self, rows: TransitionTable) -> None:
        """Start rollouts from these rows, and find the threshold and the penalty."""
        self.data = Transitions(rows, self.model.history)
        threshold, penalty = math.inf, 0.0
        options, facts = self.options, self.model.facts
        scale = reward_scale(facts)
        factor, shift = self.reward_scale or 1.0, self.reward_shift
        names = "smallest_reward", "largest_reward"
        low, high = sorted(factor * facts[name] + shift for name in names)  # as targets have them
        is_cost = factor * facts.get("mean_reward", 0.0) + shift < 0.0  # the end of an episode would be a gain
        forever = 1.0 / (1.0 - self.discount) if self.discount < 1.0 else ENDLESS
        worst = ((low * forever if is_cost else -high) - shift) / factor
        spread = facts.get("uncertainty", {}).get(options.uncertainty, {})
        if options.threshold is not None:
            threshold = self._limit(options.threshold, spread)
        if options.penalty is not None:
            part = _factor(options.penalty, "range")
            penalty = float(options.penalty) if part is None else part * scale / (spread["1"] or 1.0)
            penalty = math.copysign(penalty, factor)  # so that the reward in targets falls
        end_reward = worst if options.end_reward is None else options.end_reward
        given = options.uncertainty, penalty, threshold, options.ends, end_reward, options.mean_reward
        self.pessimism = Pessimism(*given)

    def _limit(self, value: float | str, spread: Mapping[str, float]) -> float:
        if isinstance(value, str):
            assert self.data is not None
            if (factor := _factor(value, "max")) is not None:
                return factor * spread["1"]
            found = uncertainties(self.model, self.data, self.data.some(MOST_MEASURED))
            return float(np.quantile(getattr(found, self.options.uncertainty), _factor(value, "quantile") or 0.0))
        return float(value)

    def lines(self) -> list[str]:
        """Return how the agent plays in the model, as text."""
        options = self.options
        length = "any length" if options.length == UNBOUNDED else f"{options.length} (a schedule)"
        if isinstance(options.length, int):
            length = counted(options.length, "step")
        what = f"{options.uncertainty} uncertainty"
        if self.data is None:
            limit = {"penalty": options.penalty, "threshold": options.threshold}
            told = ", ".join(f"{name} {value}" for name, value in limit.items() if value is not None) or "no pessimism"
        elif self.pessimism.threshold < math.inf:
            reward = f"a reward of {self.pessimism.end_reward:.4g}"
            last = reward if options.ends == TERMINAL else "a bootstrapped value"
            told = f"they end with {last} where the {what} exceeds {self.pessimism.threshold:.4g}"
        elif self.pessimism.penalty:
            verb = "falls" if self.pessimism.penalty > 0.0 else "rises"
            told = f"the reward {verb} by {abs(self.pessimism.penalty):.4g} times the {what}"
        else:
            told = "no pessimism"
        where = "trained in the run" if self.trains_model else f"of {self.model.facts['name']}"
        reads = f", which reads {self.model.history} steps" if self.model.history > 1 else ""
        share = self.buffer.num_recorded / self.buffer.batch_size
        return [
            f"rollouts of {length} in a model {where}{reads}: {told}; {share:.0%} of each batch is real",
            f"imagined episodes end: {self.model.tell_termination()}",
            *filter(None, [describe_terminations(self.model.facts)]),
        ]

    # Rounds of rollouts ---------------------------------------------------------------------------------------

    def on_start(self, run: Run) -> None:
        """Repeat `before_updates` if it was interrupted while the model was trained."""
        if self.is_in_round:
            self.before_updates(run)

    def before_updates(self, run: Run) -> None:
        """Train the model if it is due, then play in it if that is due."""
        self.is_in_round = True
        self._train_and_play(run)
        self.is_in_round = False

    def _train_and_play(self, run: Run) -> None:
        if self.trains_model and run.loop.step >= self.next_training and self._has_enough():
            self._train_model(run)
            if self.options.clear:
                self.buffer.imagined.clear()
            self.next_training = run.loop.step + self.options.train_every
            self.next_update = run.loop.num_updates  # the new model is played in at once
        if run.loop.num_updates < self.next_update:
            return
        if self.trains_model:
            self._set_data(self.buffer.real.transition_table())
        updates = max(self.options.every, math.ceil(run.loop.pending_updates))
        steps = self.options.steps_per_update * updates
        if self.options.length == UNBOUNDED:
            self.play_on(run.algorithm, steps, run)
        else:
            length = self.length_at(run.loop.step)
            self.play(run.algorithm, math.ceil(steps / length), length, run)
            self._keep_rounds(length)
        self.next_update = run.loop.num_updates + updates

    def _keep_rounds(self, length: int) -> None:
        """Leave the transitions of `keep` rounds: the buffer has room for more, if the length of rollouts grows."""
        if self.options.keep is not None and not isinstance(self.options.length, int):
            rollouts = math.ceil(self.options.steps_per_update * self.options.every / length)
            self.buffer.imagined.keep_newest(self.options.keep * rollouts * length)

    def _has_enough(self) -> bool:
        """Check whether the buffer has enough to train a model again; it is nearly empty if a learner was loaded."""
        enough = min(self.model.facts.get("num_transitions", 0), 20 * self.training.batch_size)
        return not self.num_trainings or self.buffer.real.num_transitions >= enough

    def length_at(self, step: int) -> int:
        """Return the length of rollouts at a step of the run."""
        length = self.options.length
        if isinstance(length, int):
            return length
        assert not isinstance(length, str)  # without a bound, `play_on` plays
        first, last, before, after = length
        passed = min(max((step - first) / (last - first), 0.0), 1.0)
        return math.floor(float(before + passed * (after - before)))

    def _train_model(self, run: Run) -> None:
        """Train a copy of the model on the real part of the buffer, and take it.

        Ctrl-C may end the training. Nothing has changed then, and a resumed run repeats it.
        """
        rows = self.buffer.real.transition_table()
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        facts = dict(self.model.facts)
        try:
            drawn = np.random.SeedSequence((self.seed, 9, self.num_trainings)).generate_state(1)
            if self.options.from_scratch and self.num_trainings:
                new = from_specification(specification(self.model), device=self.model.device, seed=int(drawn[0]))
                self.model.load_state_dict(new.state_dict())
            fit = ModelFit(self.model, rows, self.training, int(drawn[0]), may_lack_terminations=True)
            while not fit.is_over:
                fit.run_epoch()
            fit.finish(is_measured=self.options.penalty is not None or self.options.threshold is not None)
        except BaseException:
            self.model.load_state_dict(before)
            self.model.facts = facts
            raise
        self.num_trainings += 1
        errors = [self.model.facts["holdout_errors"][member] for member in self.model.facts["elites"]]
        self._report(run, model_error=float(np.mean(errors)))

    def _report(self, run: Run, **values: float) -> None:
        device = run.algorithm.device
        run.loop.stats.add({name: torch.tensor(value, device=device) for name, value in values.items()})

    def play(self, algorithm: Any, number: int, length: int, run: Run | None = None) -> None:
        """Play `number` rollouts of at most `length` steps, and store them."""
        assert self.data is not None
        if not algorithm.memoryless:
            number = min(number, self.buffer.imagined.capacity)  # of episodes
        logs = []
        block = BLOCK if algorithm.memoryless else RECURRENT_BLOCK
        for start in range(0, number, block):
            log, played = self._play(algorithm, self._starts(min(block, number - start)), length)
            if len(played.num_recorded):
                self.buffer.extend(*played)
            logs.append(log)
        if run is not None:
            self._report_rollouts(run, logs, np.concatenate([log.lengths for log in logs]))

    def play_on(self, algorithm: Any, steps: float, run: Run | None = None) -> None:
        """Play about `steps` steps, side by side, of rollouts that go on until they end; new ones replace these."""
        assert self.data is not None
        number = math.ceil(self.options.steps_per_update)
        left = math.ceil(steps / number)
        logs, lengths = [], []
        while left > 0:
            if num_new := number - len(self.ages):
                new = first_position(self.data, algorithm, self._new(self._starts(num_new), algorithm))
                self.position = new if self.position is None else self.position.joined(new)
                self.ages = np.append(self.ages, np.zeros(num_new, np.int64))
            assert self.position is not None
            given = self.position, min(STRETCH, left), self.generator, self.pessimism
            log, self.position = play_rollouts(self.model, algorithm, *given)
            nothing = np.zeros(number, np.int64)  # no recorded steps come before
            played = log.rollouts(self.data.rows, nothing, nothing)
            if len(played.num_recorded):
                self.buffer.extend(*played)
            ages = self.ages + log.lengths
            self.ages = ages[log.alive]
            lengths.append(np.delete(ages, log.alive))
            logs.append(log)
            left -= STRETCH
        if run is not None:
            self._report_rollouts(run, logs, np.concatenate([*lengths, self.ages]))

    def _report_rollouts(self, run: Run, logs: list[Log], lengths: Array) -> None:
        """Report the statistics of rollouts with these lengths, which may have begun before."""
        num_steps = sum(int(log.lengths.sum()) for log in logs)
        of_step: dict[str, float] = {"imagined_bounded": sum(log.num_bounded for log in logs)}
        of_rollout = {"imagined_length": int(lengths.sum())}
        if self.pessimism.has_effect:
            of_step["imagined_uncertainty"] = sum(log.uncertainty for log in logs)
        if self.options.threshold is not None:
            of_rollout["imagined_stopped"] = sum(log.num_stopped for log in logs)
        self._report(
            run,
            **{name: total / len(lengths) for name, total in of_rollout.items()},
            **{name: total / max(num_steps, 1) for name, total in of_step.items()},
        )

    def _play(self, algorithm: Any, indices: Array, length: int) -> tuple[Log, Rollouts]:
        assert self.data is not None
        starts = self._new(indices, algorithm)
        position = first_position(self.data, algorithm, starts)
        log, _ = play_rollouts(self.model, algorithm, position, length, self.generator, self.pessimism)
        rollout_starts, context_starts = self.data.starts[indices], starts.context_starts
        if (most := getattr(self.buffer.imagined, "segment_len", None)) is not None:  # no batch needs more
            earliest = rollout_starts - most - self.buffer.imagined.burn_in  # type: ignore[union-attr]
            context_starts = np.maximum(context_starts, earliest)
        return log, log.rollouts(self.data.rows, context_starts, rollout_starts)

    def _new(self, indices: Array, algorithm: Any) -> Starts:
        """Return the starts of rollouts at these transitions."""
        assert self.data is not None
        context_starts = self.data.starts[indices]
        places, prefix = None, self.options.prefix
        if not algorithm.memoryless:
            rollout_starts, context_starts = context_starts, self.data.first[context_starts]
            if prefix is not None:
                context_starts = np.maximum(context_starts, rollout_starts - prefix)
        if self.options.one_member:
            drawn = self.randomness.generator.integers(len(self.model.elites), size=len(indices))
            places = torch.from_numpy(drawn).to(self.model.device)
        return Starts(indices, context_starts, places)

    def _starts(self, number: int) -> Array:
        """Draw the transitions (number,) at whose observations rollouts start."""
        assert self.data is not None
        if self.options.start == FIRST:
            rows = self.data.rows
            firsts = np.searchsorted(self.data.starts, rows.starts[rows.is_start[rows.starts]])
            return np.asarray(firsts[self.randomness.generator.integers(len(firsts), size=number)])
        return self.randomness.generator.integers(len(self.data), size=number)

    # Resume ---------------------------------------------------------------------------------------------------

    def _going_on(self) -> dict[str, Any] | None:
        """Return the rollouts that go on in the next round, as tensors; None if there are none."""
        if self.position is None:
            return None
        arrays = [torch.from_numpy(np.ascontiguousarray(part)) for part in (self.ages, *self.position.arrays)]
        return {"arrays": arrays, "places": self.position.places}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs; the model only if the run trains it."""
        return {
            "randomness": self.randomness.state_dict(),
            "generator": self.generator.get_state(),
            "device": self.generator.device.type,
            "counts": [self.next_update, self.next_training, self.num_trainings],
            "is_in_round": self.is_in_round,
            "going_on": self._going_on(),
            "model": self.model.state_dict() if self.trains_model else None,
            "facts": self.model.facts if self.trains_model else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state`."""
        self.randomness.load_state_dict(state["randomness"])
        if state["device"] == self.generator.device.type:  # as `Noise`
            self.generator.set_state(state["generator"].cpu())
        self.next_update, self.next_training, self.num_trainings = state["counts"]
        self.is_in_round = state["is_in_round"]
        if going_on := state.get("going_on"):  # an earlier version had none
            self.ages, observed, acted, action, reward, is_first = (part.numpy() for part in going_on["arrays"])
            places = None if going_on["places"] is None else going_on["places"].to(self.model.device)
            self.position = Position(observed, acted, action, reward, is_first, None, places)
        if self.trains_model and self.num_trainings:
            self.model.load_state_dict(state["model"])
            self.model.facts = state["facts"]
