"""From offline to online: its settings, the take-over of networks, and decaying coefficients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.components import Temperature
from offpcc.algorithms.cuda_graphs import UNREAD
from offpcc.algorithms.discrete import ValueBased
from offpcc.algorithms.optim import Optimizer
from offpcc.config.settings import Settings, settings
from offpcc.config.validation import (
    Flag,
    Fraction,
    NonnegativeInteger,
    NonnegativeNumber,
    PositiveInteger,
    Rule,
    is_number,
    rules_of,
)
from offpcc.data.buffers.mixed import MixedBuffer
from offpcc.data.buffers.replay import ReplayBuffer
from offpcc.data.buffers.sequence_replay import RecurrentReplayBuffer
from offpcc.networks.noise import Noise
from offpcc.training.callbacks import Callback, Run
from offpcc.training.interaction import Interaction
from offpcc.training.run_fns import UpdatesPerStep
from offpcc.utils.errors import UserError
from offpcc.utils.rng import derived_seed
from offpcc.utils.tensor_files import find_misfit

DEFAULT_ENV_STEPS = 50_000  # of a run that continues another one
Names = Annotated[
    Sequence[str],
    Rule(
        'a list of names such as ["actor_bc_coef"]',
        lambda value: isinstance(value, list | tuple) and all(isinstance(name, str) for name in value),
    ),
]
NAME_OF_ALGORITHM = 'the name of an algorithm, such as "sac"'
AlgorithmName = Annotated[str, Rule(NAME_OF_ALGORITHM, lambda value: isinstance(value, str))]
AnyAlgorithm = Annotated[  # a class stands for its name
    str | type[ActorCritic], Rule(NAME_OF_ALGORITHM, lambda value: isinstance(value, str | type))
]

IN_ENVIRONMENT = {  # settings of `train`, and those of `OfflineToOnline` in their place in the online phase
    "update_after": "warm_up_steps",
    "update_every": "update_every",
    "updates_per_step": "updates_per_step",
}
EXPLORATION = ("action_noise", "noise_scale")  # numbers that `OnlineOptions.exploration_noise` sets
VALUE_SETTINGS = ("gamma", "reward_scale", "reward_shift", "clip_rewards", "rescaling")
OF_OPTIMIZERS = ("lr", "weight_decay", "adam_eps", "max_grad_norm")  # numbers of an algorithm that nothing reads later


@settings("OfflineToOnline")
class OnlineOptions(Settings):
    """Settings of the online phase of a run with recorded data, which gin binds as ``OfflineToOnline.share`` and so on.

    Args:
        share: the share of recorded data in each batch, rounded to whole items; the others are new. With 0 the recorded
            data are not kept.
        warm_up_steps: environment steps before the first update: with the policy as it is, or at random if
            `train.num_epochs` is 0, so that it has learned nothing yet. An agent with memory also waits for the end of
            its first episode.
        updates_per_step: updates per environment step; may be a fraction.
        update_every: environment steps between two rounds of updates. An agent with memory has one round per episode.
        algorithm: the algorithm of the online phase, if it is another one, such as "sac". Its networks have to be equal
            in shape. It takes over what both have: networks, targets, optimizers, a learned temperature and
            normalisation.
        keep_moments: whether the optimizers keep Adam's moments.
        exploration_noise: scale of the exploration noise: for a deterministic policy its standard deviation, for a
            stochastic one a factor on its own; with 0 it acts with its mode. None for the algorithm's own.
        decay: names of numbers of the algorithm that fall linearly in the online phase, such as
            ``["actor_bc_coef", "critic_bc_coef"]`` of ReBRAC.
        decay_to: the part of its value that each of them keeps.
        decay_steps: environment steps of the decay; None for the whole online phase, as it was planned when it began.
            More steps after a resume do not stretch the decay.
        zero: names of numbers of the algorithm that are 0 in the online phase, such as ``["critic_bc_coef"]``.
    """

    share: Fraction = 0.5
    warm_up_steps: NonnegativeInteger = 1_000
    updates_per_step: UpdatesPerStep = 1.0
    update_every: PositiveInteger = 1
    algorithm: AlgorithmName | None = None
    keep_moments: Flag = True
    exploration_noise: NonnegativeNumber | None = None
    decay: Names = ()
    decay_to: Fraction = 0.5
    decay_steps: PositiveInteger | None = None
    zero: Names = ()


def check_begins_online(num_epochs: int | None, options: OnlineOptions, algo: str, in_model: bool) -> None:
    """Raise if a run with recorded data cannot begin in its environment, without a phase of the data alone.

    `num_epochs` are those of this phase, None if they are not known. `in_model` is whether it learns in a model then.
    """
    if num_epochs != 0:
        return
    if in_model:
        raise UserError(
            f"train.num_epochs is 0, but {algo} uses its model only before the online phase; raise num_epochs, or "
            f"choose sac or rlpd"
        )
    if not options.share:
        raise UserError(
            "train.num_epochs is 0 and OfflineToOnline.share is 0, so no update would draw recorded data; raise one of "
            "them, or leave the data and --then_env_steps out"
        )


@dataclass
class OnlinePhase:
    """The parts of a run from the switch on."""

    options: OnlineOptions
    num_steps: int  # environment steps
    algorithm: ActorCritic  # of the first phase, or another one, which takes over
    buffer: MixedBuffer | ReplayBuffer | RecurrentReplayBuffer
    interaction: Interaction
    seed: int
    columns_before: Sequence[str] = ()  # of the first phase

    def __post_init__(self) -> None:
        """Check the settings, and keep the numbers that will fall."""
        self._check()
        options = self.options
        num_steps = options.decay_steps or self.num_steps
        self.decay = Decay(self.algorithm, options.decay, options.decay_to, num_steps, options.zero)
        if options.exploration_noise is not None:  # `begin` sets it
            noise = {*EXPLORATION} & {*options.decay}
            self.decay.initial |= dict.fromkeys(noise, options.exploration_noise)
        self.callbacks: list[Callback] = [self.decay] if options.decay or options.zero else []

    def begin(self, before: ActorCritic, has_learned: bool) -> None:
        """Let the algorithm take over from that of the first phase, and give both buffers their shares.

        All generators start anew, from the seed of the run: several runs may continue one run, each with its own seed.
        """
        if before is not self.algorithm:
            take_over(self.algorithm, before.state_dict(), type(before).__name__, normalizes(before))
        algorithm = self.algorithm
        algorithm.begin_online(self.options.keep_moments)
        if isinstance(algorithm, ValueBased):
            algorithm.epsilon.is_offline = False
            if has_learned:
                algorithm.explore_as_trained()
        if self.options.exploration_noise is not None:
            name = "action_noise" if hasattr(algorithm, "action_noise") else "noise_scale"
            setattr(algorithm, name, self.options.exploration_noise)
        seed = derived_seed(self.seed, 5)  # not that of the first phase
        algorithm.noise.load_state_dict(Noise(seed, algorithm.device).state_dict())
        if isinstance(self.buffer, MixedBuffer):
            self.buffer.begin(seed)

    def num_epochs(self, steps_per_epoch: int) -> int:
        """Return the number of epochs of this phase, rounded up."""
        return math.ceil(self.num_steps / steps_per_epoch)

    def _check(self) -> None:
        options, name = self.options, type(self.algorithm).__name__
        if options.warm_up_steps >= self.num_steps:
            raise UserError(
                f"OfflineToOnline.warm_up_steps is {options.warm_up_steps:,}, and the online phase has "
                f"{self.num_steps:,} steps, so nothing would be learned in it; lower it, or raise --then_env_steps"
            )
        if not options.updates_per_step:
            raise UserError(
                "OfflineToOnline.updates_per_step is 0, so nothing would be learned in the online phase; raise it"
            )
        if options.exploration_noise is not None and not self.algorithm.acts_by_actor:
            raise UserError(
                f"OfflineToOnline.exploration_noise is {options.exploration_noise:g}, but {name} chooses its actions "
                f"without this noise; leave it out"
            )
        if options.exploration_noise is not None and self.algorithm.acts_by_values:
            raise UserError(
                f"OfflineToOnline.exploration_noise is {options.exploration_noise:g}, but {name} explores by a share "
                f"of random actions; leave it out, and bind {name}.final_epsilon"
            )
        if both := next((attribute for attribute in options.zero if attribute in options.decay), None):
            raise UserError(
                f"OfflineToOnline.zero and OfflineToOnline.decay both name {both!r}; leave it out in one of them"
            )
        for option, attributes in (("decay", options.decay), ("zero", options.zero)):
            for attribute in attributes:
                self._check_number(f"OfflineToOnline.{option}", attribute)
        if self.algorithm.execution.compile and (read := [one for one in options.decay if one not in UNREAD]):
            raise UserError(
                f"OfflineToOnline.decay names {read[0]!r}, and {name}.compile is True: each update would have another "
                f"number, and so would be compiled anew; leave one of them out"
            )
        cls: Any = type(self.algorithm)
        rules = rules_of(cls)
        for attribute in options.zero:
            if attribute in EXPLORATION:
                raise UserError(
                    f"OfflineToOnline.zero names {attribute!r}; bind OfflineToOnline.exploration_noise = 0 instead"
                )
            if attribute not in rules or not rules[attribute].holds(0.0):
                raise UserError(
                    f"OfflineToOnline.zero names {attribute!r}, which cannot be 0 in {name}; take OfflineToOnline.decay"
                )

    def _check_number(self, option: str, attribute: str) -> None:
        """Raise if an option names what is no number of the algorithm, or one that cannot change."""
        name = type(self.algorithm).__name__
        if attribute in OF_OPTIMIZERS:
            raise UserError(
                f"{option} names {attribute!r}, which the optimizers read only once, at the start; for a falling "
                f"learning rate, bind {name}.lr = @LinearDecay()"
            )
        if attribute == "gamma" and self.algorithm.reads_returns:
            raise UserError(
                f"{option} names 'gamma', but {name} also reads the returns of stored steps, whose discount stays what "
                f"it was; leave it out"
            )
        if not _may_fall(self.algorithm, attribute):
            cls: Any = type(self.algorithm)
            names = {*vars(self.algorithm), *rules_of(cls)}  # an argument may be a property
            numbers = sorted(key for key in names if _may_fall(self.algorithm, key))
            refused = {*OF_OPTIMIZERS, *(["gamma"] if self.algorithm.reads_returns else [])}
            numbers = [key for key in numbers if key not in refused and not key.startswith("_")]
            is_whole = is_number(getattr(self.algorithm, attribute, None))
            raise UserError(
                f"{option} names {attribute!r}, which {'is a whole number of' if is_whole else 'is no number of'} "
                f"{name}; those that can fall are {', '.join(numbers)}"
            )


def _may_fall(algorithm: Any, attribute: str) -> bool:
    """Check whether an algorithm has a number of this name that need not be a whole one."""
    value: Any = getattr(algorithm, attribute, None)
    if not (is_number(value) and isinstance(value, Integral)):
        return is_number(value)
    cls: Any = type(algorithm)
    rule = rules_of(cls).get(attribute)
    return attribute != "action_dim" if rule is None else rule.holds(0.5 * int(value) + 0.01)


class Decay(Callback):
    """Callback that lowers numbers of an algorithm from the switch on: linearly, and some to 0 at once.

    The attributes `names` fall to the part `to` of their values in `num_steps` environment steps; those in `zero` are
    0 from the switch on.
    """

    def __init__(self, algorithm: Any, names: Sequence[str], to: float, num_steps: int, zero: Sequence[str]) -> None:
        self.initial = {name: getattr(algorithm, name) for name in names}
        self.to, self.num_steps, self.zero = to, num_steps, tuple(zero)

    def on_progress(self, run: Run) -> None:
        """Set the numbers of the current step, by which the agent also acts."""
        passed = min((run.loop.step - (run.loop.switch_step or 0)) / self.num_steps, 1.0)
        for name, initial in self.initial.items():
            setattr(run.algorithm, name, initial * (1.0 - (1.0 - self.to) * passed))
        for name in self.zero:
            setattr(run.algorithm, name, 0.0)

    on_start = before_updates = on_progress  # a run may resume at any step


def normalizes(algorithm: ActorCritic) -> bool | str:
    """Return whether observations are normalised; "scale" if the mean is not subtracted."""
    part = algorithm.state_normalization if algorithm.normalization is None else algorithm.normalization
    return part is not None and part.kind


def normalize_alike(algorithm: ActorCritic, wanted: bool | str, source: str) -> None:
    """Let an algorithm normalise observations as the one did that it goes on from; see `normalizes`."""
    if wanted == normalizes(algorithm):
        return
    if not algorithm.may_normalize:
        raise UserError(
            f"{type(algorithm).__name__} cannot go on from {source}, which learned with normalize_observations = "
            f"{wanted!r}, but here it is {normalizes(algorithm)!r}; leave normalize_observations out"
        )
    algorithm.normalize(wanted)


def value_settings(algorithm: ActorCritic) -> dict[str, Any]:
    """Return the settings on which the meaning of the critics' values depends; none without critics."""
    return {name: getattr(algorithm, name, None) for name in VALUE_SETTINGS if algorithm.has_critics}


def other_values(algorithm: ActorCritic, before: Mapping[str, Any], source: str) -> str:
    """Return why critics of `source` have other values than those of `algorithm`, or "".

    `before` is `value_settings` of `source`.
    """
    for name, new in value_settings(algorithm).items():
        if (old := before.get(name, new)) != new:
            words = [f"{one:g}" if is_number(one) else f"{one}" for one in (new, old)]
            ranged = ", with the factor of dataset.return_range" if name == "reward_scale" else ""
            return (
                f"{type(algorithm).__name__}.{name} is {words[0]}, but that of {source}, whose critics it takes over, "
                f"is {words[1]}{ranged}"
            )
    return ""


class OtherNetworksError(UserError):
    """The networks that an algorithm would take over have another form than its own."""


def take_over(algorithm: ActorCritic, state: Mapping[str, Any], source: str, normalized: bool | str) -> None:
    """Load the state of an algorithm, or of another one whose networks are equal in shape, from `source`.

    All networks have to be there. A target network that the other one lacks is a copy of its network. Of the other
    parts, such as optimizers and a learned temperature, those with the same name and form are loaded. Observations are
    normalised if they were; see `normalizes`.

    Raises:
        OtherNetworksError: the networks differ; the message names the first difference.
    """
    for name, saved in _matched(algorithm, state, source, normalized).items():
        algorithm.stateful_parts()[name].load_state_dict(saved)


def check_take_over(algorithm: ActorCritic, before: ActorCritic) -> None:
    """Raise what `take_over` would raise. It may change the kind of normalisation of observations."""
    name, other = type(algorithm).__name__, type(before).__name__
    if algorithm.memoryless != before.memoryless:
        one, none = (other, name) if algorithm.memoryless else (name, other)
        raise OtherNetworksError(
            f"{name} cannot go on from {other}: {one} has a memory, and {none} has none; choose both with a memory, or "
            f"both without one"
        )
    if algorithm.has_critics and not before.has_critics:
        raise OtherNetworksError(
            f"{name} cannot go on from {other}: {other} has no critics; leave OfflineToOnline.algorithm out, or learn "
            f"from the data with critics"
        )
    _matched(algorithm, before.state_dict(), other, normalizes(before))


def _matched(algorithm: ActorCritic, state: Mapping[str, Any], source: str, normalized: bool | str) -> dict[str, Any]:
    """Return the states of the parts of `algorithm` that fit."""
    name = type(algorithm).__name__
    advice = "choose an algorithm with the same networks, and give it the same sizes, encoder and layer_norm"
    normalize_alike(algorithm, normalized, source)
    networks = {id(network) for network in algorithm.networks()}
    found = {}
    for part_name, part in algorithm.stateful_parts().items():
        is_target = part_name.startswith("target_")
        saved = state.get(part_name, state.get(part_name.removeprefix("target_")) if is_target else None)
        if saved is None:
            misfit = f"there is no {part_name}"
        else:
            misfit = find_misfit(part.state_dict(), saved, part_name, f"in {source}")
        is_constant = isinstance(part, Temperature) and not part.learned_parameters()
        trains_other = not misfit and isinstance(part, Optimizer) and len(part.groups) != len(saved["groups"])
        if is_constant or trains_other:  # its own settings count
            continue
        if not misfit:
            found[part_name] = saved
        elif is_target or id(part) in networks:
            raise OtherNetworksError(f"{name} cannot go on from {source}: {misfit}; {advice}")
    return found
