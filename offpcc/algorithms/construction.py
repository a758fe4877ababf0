"""`Construction`, which builds an agent's networks, optimizers and targets; its options; and `DeterministicPolicy`."""

import copy
import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_type_hints

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offpcc.algorithms.components import RunningNormalization
from offpcc.algorithms.cuda_graphs import GraphedUpdates, check_compiler, compiled
from offpcc.algorithms.execution import Execution
from offpcc.algorithms.nonfinite import NonFiniteGuard
from offpcc.algorithms.optim import Optimizer, PolyakAverage, Rate
from offpcc.config.registry import configurable
from offpcc.config.validation import (
    Flag,
    Fraction,
    NonnegativeNumber,
    NonzeroNumber,
    Number,
    NumParts,
    PositiveInteger,
    PositiveNumber,
    Rule,
    Scaling,
    Size,
    Sizes,
    is_number,
    one_of,
)
from offpcc.core import Batch, PackedDict, Stats, Summaries, has_images
from offpcc.networks import Critics, DeterministicActor, Identity, InputShape, PassThrough
from offpcc.networks.actors import DiscreteActor
from offpcc.networks.augmentation import Augmentation, RandomShift
from offpcc.networks.critics import DiscreteCritics, of_actions
from offpcc.networks.encoders import Builder, Encoder, EncoderBuilder, UnsuitedEncoderError, build_encoder
from offpcc.networks.heads import HeadsChoice
from offpcc.networks.layers import Dropout, HiddenLayers
from offpcc.networks.noise import Noise
from offpcc.networks.sequences import is_empty, reads_previous
from offpcc.networks.testing import check_own_encoders, check_own_heads
from offpcc.utils.errors import UserError
from offpcc.utils.rng import seeded_torch
from offpcc.utils.spaces import MOST_CHOICES, OneHot, action_size, observed_shape
from offpcc.utils.torch_private import TRAIN_MODE_LAYERS

CRITICS_ONLY = (
    *("gamma", "polyak", "target_update_interval", "num_critics", "layer_norm", "dropout", "target_subset", "actor_q"),
    *("n_step", "reward_scale", "reward_shift"),
)
# Methods that call critics. If one is the user's, it may call them in its own way.
UPDATING = ("inner_update", "critic_loss", "actor_loss", "next_value")
SLOWEST = 20_000  # updates in which targets go most of the way to the networks
CRITIC_INPUTS = ("history", "state", "history+state")
OF_MLPS = ("hidden_dims", "layer_norm", "actor_layer_norm", "dropout", "actor_dropout")
DropoutRate = Annotated[
    float, Rule("a number, 0 or more and below 1", lambda value: is_number(value, 0.0, 1.0) and value < 1.0)
]


@dataclass(frozen=True)
class NetworkOptions:
    """Sizes and parts of the networks, and the preprocessing of observations.

    Args:
        hidden_dims: widths of the actor's and the critics' MLPs.
        num_critics: N; default: the algorithm's own number.
        layer_norm: whether critics use layer norm in their hidden layers; default: True for ReBRAC, FQL, RLPD and
            NEUBAY only.
        actor_layer_norm: whether the actor uses layer norm in its hidden layers.
        dropout: probability of dropout in the critics' hidden layers, in updates only.
        actor_dropout: the same in the actor; it acts without dropout.
        heads: other hidden layers for actor and critics, such as @Residual(); default: MLPs.
        encoder: builds each network's own encoder; default: the class's.
        shared_encoder: builds the shared encoder; default: the class's.
        normalize_observations: whether to normalise observations by the mean and standard deviation of the dataset, or
            online by running statistics; "scale" divides by the standard deviation only. By default, algorithms for
            recorded data normalise vectors of a dataset; online, only TD3+BC normalises. The statistics are saved with
            the actor.
        augmentation: augmentation of images in updates; default: the class's.
        critic_inputs: what critics and value functions see: the agent's "history", the "state" (see ``make.state``), or
            "history+state". Default: "history+state" if there is a state, else "history". The actor never sees the
            state.
    """

    hidden_dims: Sizes = (256, 256)
    num_critics: NumParts | None = None
    layer_norm: Flag | None = None
    actor_layer_norm: Flag = False
    dropout: DropoutRate = 0.0
    actor_dropout: DropoutRate = 0.0
    heads: HeadsChoice | None = None
    encoder: Builder | None = None
    shared_encoder: Builder | None = None
    normalize_observations: Scaling | None = None
    augmentation: Augmentation | None = None
    critic_inputs: Annotated[str, one_of(CRITIC_INPUTS)] | None = None


G = TypeVar("G")


def with_options(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare that the ``**options`` of an ``__init__`` are the fields of these dataclasses.

    The signature then lists them. `help`, gin and the checks of arguments read the signature.
    """

    def declare(init: Callable[..., None]) -> Callable[..., None]:
        own = [x for x in inspect.signature(init).parameters.values() if x.kind is not x.VAR_KEYWORD]
        fields = [x for group in groups for x in inspect.signature(group).parameters.values()]
        added = [x.replace(kind=x.KEYWORD_ONLY) for x in fields]
        init.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        for group in groups:
            init.__annotations__ |= get_type_hints(group, include_extras=True)
        return init

    return declare


def build_option_group(group: type[G], options: dict[str, Any]) -> G:
    """Build an object of the dataclass `group` from its fields among `options`."""
    return group(**{name: options[name] for name in inspect.signature(group).parameters if name in options})


def is_own(cls: type, *methods: str) -> bool:
    """Check whether one of these methods of a class is the user's."""
    found = (getattr(cls, name, None) for name in methods)
    return any(method is not None and not method.__module__.startswith("offpcc.") for method in found)


def has_modes(layer: nn.Module) -> bool:
    """Check whether a layer may compute something else in train mode: dropout, batch norm, or a class of the user's."""
    is_of_user = not type(layer).__module__.startswith(("offpcc.", "torch.nn.modules."))
    if is_of_user or isinstance(layer, TRAIN_MODE_LAYERS):
        return True
    drops_out: bool = getattr(layer, "dropout", 0.0) != 0.0  # of nn.GRU
    return drops_out


class ModeLayer(NamedTuple):
    """A layer of `has_modes`, as `find_mode_layers` finds it."""

    layer: nn.Module
    weights: list[Tensor]  # its own; without any, those of the module around it
    is_inside: bool  # whether it is a part of another such layer, whose method `train` decides for it


def find_mode_layers(module: nn.Module, weights: Sequence[Tensor] = (), is_inside: bool = False) -> Iterator[ModeLayer]:
    """Yield the layers in a module that may compute something else in train mode."""
    weights = list(module.parameters()) or list(weights)
    if is_found := has_modes(module):
        yield ModeLayer(module, weights, is_inside)
    for child in module.children():
        yield from find_mode_layers(child, weights, is_inside or is_found)


def check_actions(
    algorithm: Any,
    space: spaces.Space[Any],
    name: str = "the environment",
    are_recorded: bool = False,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Raise if an algorithm is for another kind of actions than those of `name`; `shape` is that of observations."""
    if isinstance(space, spaces.Discrete) is not algorithm.is_discrete:
        kind = "discrete" if algorithm.is_discrete else "continuous"
        hint = ""
        if are_recorded and algorithm.is_discrete:
            hint = (
                "; if the recorded actions are choices, give whole numbers: actions.astype(int), or "
                "actions.argmax(1) of one-hot ones"
            )
        elif are_recorded and isinstance(space, spaces.Discrete) and space.n > MOST_CHOICES:
            hint = (
                "; if the recorded whole numbers are not choices, bind dataset.action_range to their bounds (in "
                "Python: from_arrays(action_range=...))"
            )
        raise UserError(
            f"{name} has the actions {space}, but {algorithm.__name__} is for {kind} actions; choose "
            f"{other_kind(algorithm, shape)}, or another algorithm for these actions{hint}"
        )


def other_kind(algorithm: Any, shape: tuple[int, ...] | None = None) -> str:
    """Return the name of the algorithm to propose for the other kind of actions, and for observations of this shape."""
    online, offline = ("sac", "cql") if algorithm.is_discrete else ("dsac", "dcql")
    name: str = algorithm.counterpart or (offline if is_for_data(algorithm) else online)
    own, other = algorithm.names or ("", "c")
    if shape is None or has_images(shape) is (own == f"c{other}"):
        return name
    return f"c{name}" if has_images(shape) else name.removeprefix("c")


def is_for_data(algorithm: Any) -> bool:
    """Check whether an algorithm is made for recorded data: directly, or by a model that is trained on them."""
    return algorithm.is_offline or (algorithm.imagination is not None and not algorithm.trains_model)


class Construction:
    """Parent of `ActorCritic` that builds networks, optimizers and targets from class attributes and arguments.

    Args:
        observation_space: space of one environment; images may have channels first or last. Batches of a Dict space
            hold its packed observations, see `PackedDict`. If this names a state, only critics see it.
        action_space: space of one environment, in its own units. The bounds of a Box map to -1 and 1: networks, batches
            and `act` use actions in [-1, 1]; those of a Discrete space are one-hot. Actor files store the space.
        device: device of the networks.
        seed: seed of the initial weights and of the algorithm's own noise.
        gamma: discount per step.
        polyak: share of its old value that a target keeps when it is updated.
        target_update_interval: number of updates for each update of the targets; with ``polyak = 0``, this copies the
            networks.
        lr: learning rate of all networks, a number or a schedule.
        actor_lr: learning rate of the actor, if different.
        encoder_lr: learning rate of all encoders, if different.
        max_grad_norm: if given, the gradients of each optimizer of networks are clipped to this norm; those of
            temperatures and multipliers are not.
        weight_decay: decoupled weight decay of all networks (AdamW).
        adam_eps: Adam's epsilon for all networks; papers on Atari take 1e-4 or more.
        n_step: number of rewards that a target sums before it bootstraps.
        target_subset: M: each target uses M of the N critics, drawn at random (Chen et al. 2021, arXiv:2101.05982);
            default: all critics, in RLPD and NEUBAY 2.
        actor_q: the Q that the actor maximises: "min" or "mean" of all critics, or the "first" critic's. Default:
            "first" in DDPG, TD3, TD3+BC and BCQ, "mean" in RLPD, TQC, NEUBAY and FQL, else "min".
        reward_scale: factor on rewards in targets. Reported returns and rewards as network inputs are not scaled.
        reward_shift: added to rewards after scaling.
        clip_rewards: whether the agent sees only the signs of rewards, in targets and as network inputs, as in DQN on
            Atari. Reported returns and stored rewards stay as they are.
        options: arguments of `NetworkOptions` and `Execution`.
    """

    default_encoder: ClassVar[EncoderBuilder] = Identity
    default_shared_encoder: ClassVar[EncoderBuilder] = PassThrough
    default_augmentation: ClassVar[type[RandomShift] | None] = None
    default_num_critics: ClassVar[int] = 2
    default_layer_norm: ClassVar[bool] = False
    default_target_subset: ClassVar[int | None] = None
    default_actor_q: ClassVar[str | None] = "min"  # None if the actor's loss has no Q of the policy's actions
    default_normalize_observations: ClassVar[bool] = False
    normalizes_recorded: ClassVar[bool] = False  # default of normalize_observations for datasets
    has_critics: ClassVar[bool] = True
    is_offline: ClassVar[bool] = False  # whether it is made for recorded data
    # True if any NaN or infinity in observations and actions reaches the first loss or its gradient. Then the batch
    # needs no check, unless an encoder or a normalisation, which may clamp such values, reads the observations.
    loss_covers_batch: ClassVar[bool] = False
    has_target_actor: ClassVar[bool] = False
    acts_by_critics: ClassVar[bool] = False
    acts_by_values: ClassVar[bool] = False  # whether the actor is the Q network itself, as in DQN
    parts_of_actor: ClassVar[tuple[str, ...]] = ()  # attributes whose modules are parts of others
    is_discrete: ClassVar[bool] = False  # whether actions are discrete; then, networks and batches have one-hot ones
    # The algorithm to propose for the other kind of actions; default: see `other_kind`.
    counterpart: ClassVar[str | None] = None
    # Whether losses read the policy's summary of the next observation, and that of the targets of the observation
    # itself. If False, that summary is not computed and holds NaN. Classes of users always get all summaries.
    reads_next = True
    target_reads_now: ClassVar[bool] = True
    first_updates: ClassVar[tuple[str, ...]] = ()  # attributes: numbers of updates at the start of learning
    reads_next_actions = False  # whether updates need `Batch.next_actions`
    reads_returns = False  # whether updates need `Batch.returns_to_go`
    draws_by_priority: ClassVar[bool] = False  # whether its default buffer is a prioritised one
    # Defaults of `Imagination` for algorithms that learn from a model; None for those that do not.
    imagination: Mapping[str, Any] | None = None
    trains_model = False  # whether the model may be trained during a run in an environment
    needs_recorded = False  # whether each batch in a model needs real rows
    model_stats: tuple[str, ...] = ()  # statistics of the rollouts in the model; its settings decide which
    # `offpcc.algorithms.fused` sets the class of the fused update, and the methods that it replaces.
    fused_update: ClassVar[Any] = None
    fused_methods: ClassVar[dict[str, Callable[..., Any] | None]]
    stat_names: tuple[str, ...] = ()
    # Of the classes in `ALGORITHMS`: the own name, and the name of the same agent with or without convolutions.
    names: ClassVar[tuple[str, str] | None] = None
    memoryless: bool
    critic_loss: Callable[[Summaries, Batch], tuple[Tensor, Stats]]  # algorithms with critics implement it
    actor_loss: Callable[..., tuple[Tensor, Stats]]  # and this one, if they train a policy

    @with_options(NetworkOptions, Execution)
    def __init__(
        self,
        observation_space: spaces.Box | spaces.Dict,
        action_space: spaces.Box | spaces.Discrete,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
        gamma: Fraction = 0.99,
        polyak: Fraction = 0.995,
        target_update_interval: PositiveInteger = 1,
        lr: Rate = 3e-4,
        actor_lr: Rate | None = None,
        encoder_lr: Rate | None = None,
        max_grad_norm: PositiveNumber | None = None,
        weight_decay: NonnegativeNumber = 0.0,
        adam_eps: PositiveNumber = 1e-8,
        n_step: Size = 1,
        target_subset: NumParts | None = None,
        actor_q: Annotated[str, one_of(("min", "mean", "first"))] | None = None,
        reward_scale: NonzeroNumber = 1.0,
        reward_shift: Number = 0.0,
        clip_rewards: Flag = False,
        **options: Any,
    ) -> None:
        update = getattr(type(self), "update_networks", None)
        if not hasattr(update, "__final__"):  # set by `typing.final`, which marks the method of ActorCritic
            raise UserError(
                f"{type(self).__name__} overrides update_networks, which checks for NaN and applies fused, precision "
                f"and compile; rename the method to inner_update; it may call super().inner_update(batch)"
            )
        networks, self.execution = build_option_group(NetworkOptions, options), build_option_group(Execution, options)
        self.device = torch.device(device)
        self.is_of_user = not type(self).__module__.startswith("offpcc.")
        self.gamma, self.target_update_interval = gamma, target_update_interval
        self.n_step = n_step if self.has_critics else 1  # without targets, longer windows would only cost time
        self.reward_scale, self.reward_shift, self.clip_rewards = reward_scale, reward_shift, clip_rewards
        if clip_rewards and self.reads_returns:
            raise UserError(
                f"{type(self).__name__}.clip_rewards is True, but {type(self).__name__} also reads the returns of "
                f"episodes, which are not clipped; leave clip_rewards out, or bind reward_scale"
            )
        if isinstance(observation_space, spaces.Dict):
            observation_space = PackedDict(observation_space)
        self.privileged: PackedDict | None = None  # the space of observations with a state, as batches hold them
        if isinstance(observation_space, PackedDict) and observation_space.state_key is not None:
            self.privileged, observation_space = observation_space, observation_space.agent_space
        self.observation_space = observation_space  # of the agent
        self._choose_critic_inputs(networks)
        self.packed = observation_space if isinstance(observation_space, PackedDict) else None
        self.space_shape = observation_space.shape
        self.observation_shape = observed_shape(observation_space)
        self.action_space = action_space.discrete if isinstance(action_space, OneHot) else action_space
        self.action_dim = action_size(action_space)
        check_actions(type(self), self.action_space, shape=self.observation_shape)
        self.noise = Noise(seed, self.device)
        self.lr, self.max_grad_norm, self.weight_decay, self.adam_eps = lr, max_grad_norm, weight_decay, adam_eps
        self.target_subset = self.default_target_subset if target_subset is None else target_subset
        self.actor_q = self.default_actor_q if actor_q is None else actor_q
        with seeded_torch(seed):
            self._build_networks(networks)
        self._train_mode_layers = [found for part in self.networks() for found in find_mode_layers(part)]
        for module, *_ in self._train_mode_layers:
            if isinstance(module, Dropout):
                module.noise = self.noise
        self.memoryless = self.shared_encoder.memoryless and self.actor_encoder.memoryless
        self.encoders_are_empty = is_empty(self.shared_encoder) and is_empty(self.actor_encoder) and self.memoryless
        self._build_optimizers(lr if actor_lr is None else actor_lr, lr if encoder_lr is None else encoder_lr, polyak)
        is_awaited = self.device.type == "cpu" and not self.execution.compile
        self.nonfinite_guard = NonFiniteGuard(self.device, self.execution.nonfinite == "skip", is_awaited)
        self._set_preprocessing(networks)
        if self.nonfinite_guard.skips:
            self.stat_names = (*self.stat_names, "skipped")
        self._graphed = self._graphed_updates()
        self._fused = self._hand_written_update()

    def _graphed_updates(self) -> GraphedUpdates | None:
        """Return what records and repeats updates, if the options and the device say so."""
        if not self.execution.compile:
            is_on = self.execution.may_use_graphs(self.device)
            return GraphedUpdates(self.execution.cuda_graphs is not None) if is_on else None
        check_compiler(f"{type(self).__name__}.compile", self.device)
        return GraphedUpdates(True, compiled)

    def _hand_written_update(self) -> Any:
        """Return the fused update, or None if the algorithm has none or the options turn it off."""
        fused, name = self.execution.fused, type(self).__name__
        if fused and self.fused_update is None:
            raise UserError(f"{name}.fused is True, but {name} has no fused update; remove this setting")
        if fused and self.execution.compile:
            raise UserError(f"{name}.fused is True, but compile is True, and only one of them can be; remove one")
        is_off = self.fused_update is None or fused is False or self.execution.compile
        return None if is_off else self.fused_update(self, fused is not None)

    def _choose_critic_inputs(self, options: NetworkOptions) -> None:
        """Set what the critics see, and refuse what cannot be."""
        owner, wanted, has_state = type(self).__name__, options.critic_inputs, self.privileged is not None
        default = "history+state" if has_state and self.has_critics else "history"
        self.critic_inputs = default if wanted is None else wanted
        if self.imagination is not None and (has_state or self.critic_inputs != "history"):
            given = ["make.state"] * has_state + ["critic_inputs"] * (wanted in ("state", "history+state"))
            raise UserError(
                f"{owner} learns in a model, which predicts no states for critics; remove {' and '.join(given)}, or "
                f"choose an algorithm without a model, such as rsac"
            )
        if self.critic_inputs == "history":
            return
        fault, remedy = "", "leave critic_inputs out"
        if not self.has_critics:
            fault = f"{owner} has no critics"
        elif self.acts_by_critics:
            fault = f"{owner} chooses its actions with its critics, and there is no state when an agent acts"
            remedy = "remove make.state, or " * (wanted is None) + f'bind {owner}.critic_inputs = "history"'
        elif not has_state:
            fault = "there is no state"
            remedy = 'bind make.state to the place of the state, such as make.state = "info"'
        if fault:
            raise UserError(f"{self._told_inputs(options)}, but {fault}; {remedy}")

    def _told_inputs(self, options: NetworkOptions) -> str:
        """Return what the critics see, and that it is the default if nobody chose it, for messages."""
        by_default = ", the default with make.state" if options.critic_inputs is None else ""
        return f"{type(self).__name__}.critic_inputs is {self.critic_inputs!r}{by_default}"

    @property
    def num_states(self) -> int:
        """The size of the state that critics see; 0 without one."""
        if self.privileged is None or self.critic_inputs == "history":
            return 0
        assert self.privileged.state_part is not None
        return self.privileged.state_part.shape[0]

    def _set_preprocessing(self, options: NetworkOptions) -> None:
        sees_images, is_wanted = has_images(self.observation_shape), options.normalize_observations
        augmentation = options.augmentation
        if augmentation is None and self.default_augmentation is not None:
            augmentation = self.default_augmentation()
        self.augmentation = augmentation if sees_images else None
        has_vectors = not sees_images if self.packed is None else self.packed.unpacked_shape.num_numbers > 0
        if is_wanted and not has_vectors and not self.num_states:
            raise UserError(
                f"normalize_observations is {is_wanted!r}, but observations are images, which are always scaled to "
                f"[0, 1]; remove this setting"
            )
        self.normalizes_vectors = has_vectors
        self.may_normalize = is_wanted is None and (has_vectors or self.num_states > 0)
        self.normalize(self.may_normalize and self.default_normalize_observations if is_wanted is None else is_wanted)

    def normalize(self, is_wanted: bool | str) -> None:
        """Create the observation normalisation, if wanted, and set what the non-finite guard checks."""
        shape = self.observation_shape if self.packed is None else (self.packed.unpacked_shape.num_numbers,)
        shifts = is_wanted != "scale"
        new = functools.partial(RunningNormalization, shifts=shifts)
        self.normalization = new(shape).to(self.device) if is_wanted and self.normalizes_vectors else None
        self.state_normalization = new((self.num_states,)).to(self.device) if is_wanted and self.num_states else None
        normalizations = [part for part in (self.normalization, self.state_normalization) if part is not None]
        statistics = [statistic for part in normalizations for statistic in part.buffers()]
        statistics += [buffer for module, *_ in self._train_mode_layers for buffer in module.buffers()]
        if self.has_critics:
            statistics += self._targets.target_buffers
        self.nonfinite_guard.set_statistics(statistics)
        is_covered = self.loss_covers_batch and self.encoders_are_empty and not normalizations and not self.num_states
        self.checked_fields: tuple[str, ...] = ("rewards",) if is_covered else ("observations", "actions", "rewards")
        self.checked_fields += ("states",) if self.num_states else ()

    def expect_recorded_data(self) -> None:
        """Turn on normalisation if it is this algorithm's default for datasets.

        Call it before the first update.
        """
        if self.may_normalize and self.normalizes_recorded and self.normalization is self.state_normalization is None:
            self.normalize(True)

    def set_statistics(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Fix the statistics of the normalisation, if there is one, to those of recorded data.

        Args:
            mean: mean of the observations; of Dict observations, that of the numbers of their vectors, with the state.
            std: their standard deviation, of the same shape.
        """
        given = [mean, std]
        if self.privileged is not None:
            assert self.privileged.state_part is not None
            columns = self.privileged.state_part.columns
            if self.state_normalization is not None:
                self.state_normalization.set_statistics(mean[columns], std[columns])
            given = [np.delete(numbers, columns) for numbers in given]
        if self.normalization is not None:
            mean, std = (numbers.reshape(self.normalization.mean.shape) for numbers in given)
            self.normalization.set_statistics(mean, std)

    def unpack(self, batch: Batch) -> Batch:
        """Return the batch with unpacked observations, if they are packed Dict observations, and with the states."""
        if self.privileged is not None and batch.states is None:
            observations, states = self.privileged.split_state(batch.observations)
            batch = batch._replace(observations=observations, states=states if self.num_states else None)
        if self.packed is None:
            return batch
        return batch._replace(observations=self.packed.unpack(batch.observations))

    def normalize_states(self, batch: Batch, learns: bool) -> Batch:
        """Return the batch with normalised states, if there is a normalisation of theirs, which updates change."""
        if self.state_normalization is None or batch.states is None:
            return batch
        if learns:
            self.state_normalization.update(batch.states[:, :-1].flatten(0, 1), batch.loss_mask.flatten())
        return batch._replace(states=torch.where(batch.valid > 0, self.state_normalization(batch.states), 0.0))

    def with_states(self, summary: Tensor, batch: Batch) -> Tensor:
        """Return what a critic sees, (B, T+1, H): the summary (B, T+1, H), the states, or both; see `critic_inputs`."""
        if batch.states is None or not self.num_states:
            return summary
        return batch.states if self.critic_inputs == "state" else torch.cat([summary, batch.states], -1)

    @property
    def folds_windows(self) -> bool:
        """Whether windows of n steps become single steps, so that images in between are not encoded.

        Encoders that read previous actions or rewards need those of each step.
        """
        if not (self.memoryless and self.has_critics) or self.n_step == 1 or is_empty(self.shared_encoder):
            return False
        encoders = (self.shared_encoder, self.actor_encoder, *self.critic_encoders)
        return not any(getattr(encoder, "extra_dim", 1) or reads_previous(encoder) for encoder in encoders)

    def skipped(self, of_target: bool) -> str | None:
        """Return which observation the shared encoder, or its target, need not read: "first", "last" or None.

        A class of the user's may read any summary, whatever its parent reads, so nothing is skipped then.
        """
        if not self.memoryless or self.is_of_user:
            return None
        if of_target:
            return None if self.target_reads_now else "first"
        return None if self.reads_next else "last"

    def fold(self, batch: Batch) -> Batch:
        """Return the batch with the signs of rewards if `clip_rewards`, and as single steps if `folds_windows`."""
        if self.clip_rewards:
            batch = batch._replace(rewards=batch.rewards.sign(), first_reward=batch.first_reward.sign())
        if self.folds_windows and batch.actions.shape[1] > 1:
            batch = batch.folded(self.gamma, self.reward_scale, self.reward_shift)
        return batch

    def set_modes(self, learns: bool) -> None:
        """Set dropout and batch norm to train mode in updates, else to eval mode; where weights are frozen, to eval."""
        if not (learns or any(layer.training for layer, *_ in self._train_mode_layers)):
            return  # `eval` walks through all layers, which takes as long as small networks
        for layer, _, is_inside in self._train_mode_layers:
            if not is_inside:
                layer.train(learns)
        for layer, weights, _ in self._train_mode_layers if learns else ():
            if weights and not any(weight.requires_grad for weight in weights):
                layer.eval()

    def check_unprepared(self, batch: Batch) -> None:
        """Raise if an `inner_update` that did not call `prepare` got a batch that `prepare` would have changed."""
        normalizes = self.normalization is not None or self.state_normalization is not None
        layers = [layer for layer, *_ in self._train_mode_layers]
        others = sorted({type(layer).__name__ for layer in layers if not isinstance(layer, TRAIN_MODE_LAYERS)})
        changes = {
            "unpacks Dict observations": self.packed is not None or self.privileged is not None,
            "normalises observations": normalizes,
            "shifts images": self.augmentation is not None,
            "applies clip_rewards": self.clip_rewards,
            "puts zeros into padding": not batch.complete,
            "sets dropout and batch norm to train mode": any(isinstance(layer, TRAIN_MODE_LAYERS) for layer in layers),
            f"sets {', '.join(others)} to train mode": len(others) > 0,
        }
        missed = [change for change, is_made in changes.items() if is_made]
        if missed and not is_own(type(self), "prepare"):
            raise UserError(
                f"{type(self).__name__}.inner_update does not call self.prepare(batch), which {' and '.join(missed)}; "
                f"begin inner_update with batch = self.prepare(batch)"
            )

    def augment(self, observations: Tensor) -> Tensor:
        """Return augmented images (B, T, C, height, width), or Dict observations (B, T, F) with augmented images."""
        if self.packed is None:
            return self._augment_images(observations)
        shape = self.packed.unpacked_shape
        lead = observations.shape[:2]
        entries = [observations[..., part.columns].reshape(*lead, *part.shape) for part in shape.images]
        images = [self._augment_images(entry).flatten(2) for entry in entries]
        return torch.cat([observations[..., : shape.num_numbers], *images], -1)

    def _augment_images(self, images: Tensor) -> Tensor:
        assert self.augmentation is not None
        augmented = self.augmentation(images, self.noise, one_per_row=not self.memoryless)
        if augmented.shape != images.shape or augmented.dtype != images.dtype:
            raise UserError(
                f"{type(self).__name__}.augmentation returned {augmented.dtype} of the shape {tuple(augmented.shape)} "
                f"for {images.dtype} of the shape {tuple(images.shape)}; return the same type and shape"
            )
        return augmented

    def build_actor(self, summary_dim: int, hidden_dims: Sequence[int]) -> nn.Module:
        """Return the policy network; default: for discrete actions, the logits of a policy."""
        if self.is_discrete:
            return DiscreteActor(summary_dim, self.action_dim, hidden_dims)
        raise NotImplementedError

    def build_critics(self, num: int, summary_dim: int, hidden_dims: Sequence[int]) -> Any:
        """Return the critics."""
        if self.is_discrete:
            return DiscreteCritics(num, summary_dim, self.action_dim, hidden_dims)
        return Critics(num, summary_dim, self.action_dim, hidden_dims)

    def build_heads(self, summary_dim: int, hidden_dims: Sequence[int]) -> None:
        """Build networks other than actor and critics; the subclass also adds them to `networks`."""

    def _build_networks(self, options: NetworkOptions) -> None:
        encoder = type(self).default_encoder if options.encoder is None else options.encoder
        shared_encoder = type(self).default_shared_encoder if options.shared_encoder is None else options.shared_encoder
        num_critics = self.default_num_critics if options.num_critics is None else options.num_critics
        owner, layer_norm = type(self).__name__, options.layer_norm
        if self.has_critics and self.target_subset is not None and self.target_subset > num_critics:
            raise UserError(
                f"{owner}.target_subset is {self.target_subset}, but num_critics is {num_critics}; targets draw from "
                f"the critics, so it has to be num_critics or less"
            )
        if self.target_subset == num_critics:
            self.target_subset = None
        if self.acts_by_values and num_critics != 1:
            raise UserError(f"{owner}.num_critics is {num_critics}, but {owner} has one Q network; remove this setting")
        if num_critics == 1:
            self.actor_q = self.default_actor_q
        layer_norm = self.default_layer_norm if layer_norm is None else layer_norm
        of_actor = HiddenLayers(options.hidden_dims, layer_norm=options.actor_layer_norm, dropout=options.actor_dropout)
        of_critics = HiddenLayers(options.hidden_dims, layer_norm=layer_norm, dropout=options.dropout)
        of_others = HiddenLayers(options.hidden_dims)
        if (heads := options.heads) is not None:
            of_actor, of_critics, of_others = heads.of_actor, heads.of_critics, heads.of_critics
        self.has_mlps = heads is None
        shape = InputShape(self.observation_shape, self.action_dim)
        try:
            self.shared_encoder = build_encoder(shared_encoder, shape, f"{owner}.shared_encoder")
            own_shape = InputShape(self.shared_encoder.output_shape, self.action_dim)
            self.actor_encoder = self._build_own_encoder(encoder, own_shape)
        except UnsuitedEncoderError as error:
            own, other = vars(type(self)).get("names") or ("", "")
            if own and has_images(self.observation_shape) is (other == f"c{own}"):
                raise UserError(f"{error.message}; in place of {own}, choose {other}") from None
            if self.imagination is not None:
                raise UserError(
                    f"{owner} learns in a model, which needs vectors, but observations are images or have image "
                    f"entries; choose an algorithm without a model, such as ccql"
                ) from None
            raise
        dim = self.actor_encoder.dim
        if self.has_critics:
            own = 1 if is_empty(self.actor_encoder) else num_critics
            own = 0 if self.critic_inputs == "state" else own
            self.critic_encoders = nn.ModuleList(encoder(own_shape) for _ in range(own))
            if self.acts_by_values:
                self.critic_encoders[0] = self.actor_encoder
        self._check_shared_encoder(owner, options)
        if not self.acts_by_values:
            self.actor = self.build_actor(dim, of_actor)
        actor_dim, dim = dim, self.num_states + dim * (self.critic_inputs != "state")
        if self.has_critics:
            self.critics = self.build_critics(num_critics, dim, of_critics)
        if self.acts_by_values:
            self.actor = self.build_actor(dim, of_others)
        self.build_heads(dim, of_others)
        for network in self.networks():
            network.to(self.device)
        check_own_encoders(self.shared_encoder, self.actor_encoder, shape, self._observed_dtype())
        if not self.is_discrete:
            cls = type(self)
            own_heads: dict[str, tuple[nn.Module, int]] = {}
            if is_own(cls, "build_actor") and getattr(self, "acts_by_actor", True) and not is_own(cls, "act"):
                own_heads["actor"] = self.actor, actor_dim
            if self.has_critics and is_own(cls, "build_critics") and not is_own(cls, *UPDATING):
                own_heads["critics"] = self.critics, dim
            check_own_heads(owner, own_heads, self.action_dim, num_critics, getattr(self, "num_quantiles", None))
        if self.has_critics:
            self.target_shared_encoder = copy.deepcopy(self.shared_encoder)
            self.target_critic_encoders = copy.deepcopy(self.critic_encoders)
            self.target_critics = copy.deepcopy(self.critics)
        if self.has_target_actor:
            self.target_actor_encoder = copy.deepcopy(self.actor_encoder)
            self.target_actor = copy.deepcopy(self.actor)

    def _observed_dtype(self) -> torch.dtype:
        """Return the dtype of observations in a batch: bytes of images, else float32."""
        is_bytes = self.observation_space.dtype == np.uint8 and len(self.observation_shape) > 1
        return torch.uint8 if is_bytes else torch.float32

    def _build_own_encoder(self, build: EncoderBuilder, shape: InputShape) -> Encoder:
        """Return the actor's encoder; an error of an encoder of images that reads the shared encoder says so."""
        owner = type(self).__name__
        try:
            return build_encoder(build, shape, f"{owner}.encoder")
        except Exception as error:
            if is_empty(self.shared_encoder) or not has_images(self.observation_shape):
                raise
            advice = (
                f"{owner}.encoder reads the {shape.observation[0]} numbers of {owner}.shared_encoder, which reads the "
                f"images; give an encoder of images as shared_encoder"
            )
            if isinstance(error, UnsuitedEncoderError):
                raise UserError(advice) from None
            error.add_note(advice)
            raise

    def _check_shared_encoder(self, owner: str, options: NetworkOptions) -> None:
        if not self.num_states:
            return
        fault = ""
        if not self.shared_encoder.memoryless:
            fault = "actor and critics share a memory, which may read the history only"
            remedy = f'choose an algorithm with separate memories, or bind {owner}.critic_inputs = "history"'
        elif self.critic_inputs == "state" and not is_empty(self.shared_encoder):
            fault = "the critics' loss trains the shared encoder, but these critics would not read its output"
            remedy = f'bind {owner}.critic_inputs = "history+state"'
        if fault:
            raise UserError(f"{self._told_inputs(options)}, but {fault}; {remedy}")

    def optimizer(self, groups: Sequence[tuple[Iterable[Tensor], Rate]]) -> Optimizer:
        """Return an optimizer of networks, with the settings of this algorithm; see `Optimizer`."""
        return Optimizer(groups, self.max_grad_norm, self.weight_decay, self.adam_eps)

    def _build_optimizers(self, actor_lr: Rate, encoder_lr: Rate, polyak: float) -> None:
        shared = [(self.shared_encoder.parameters(), encoder_lr)]
        actors = [(self.actor_encoder.parameters(), encoder_lr), (self.actor.parameters(), actor_lr)]
        if not self.has_critics:
            self.actor_optimizer = self.optimizer(shared + actors)
            return
        if not self.acts_by_values:
            self.actor_optimizer = self.optimizer(actors)
        heads = self.actor if self.acts_by_values else self.critics
        critics = [(self.critic_encoders.parameters(), encoder_lr), (heads.parameters(), self.lr)]
        of_actor = {id(weight) for weight in self.actor_encoder.parameters() if weight.requires_grad}
        is_tied = not of_actor.isdisjoint(map(id, self.critic_encoders.parameters()))
        if is_tied and not self.acts_by_values:
            raise UserError(
                f"{type(self).__name__}.encoder builds encoders of actor and critics that have the same weights, which "
                f"two optimizers would change; make these weights in the encoder's __init__, freeze them, or give the "
                f"encoder as shared_encoder"
            )
        self.critic_optimizer = self.optimizer(shared + critics)
        pairs = [
            (self.target_shared_encoder, self.shared_encoder),
            (self.target_critic_encoders, self.critic_encoders),
            (self.target_critics, self.critics),
        ]
        if self.has_target_actor:
            pairs += [(self.target_actor_encoder, self.actor_encoder), (self.target_actor, self.actor)]
        self._targets = PolyakAverage(pairs, polyak)

    def networks(self) -> tuple[nn.Module, ...]:
        """Return the trained networks, without targets."""
        critics = (self.critic_encoders, self.critics) if self.has_critics and not self.acts_by_values else ()
        return self.shared_encoder, self.actor_encoder, self.actor, *critics

    def target_values(self, summary: Tensor, *action: Tensor) -> Tensor:
        """Return Q' of all target critics, or of `target_subset` of them, drawn at random: (M, B, T, [S,] 1).

        For discrete actions there is no `action`, and the values are those of all actions, (M, B, T, A).
        """
        values: Tensor = self.target_critics(summary, *action, *self.drawn_critics())
        return values

    def action_values(self, h: Summaries, actions: Tensor) -> Tensor:
        """Return the Q values (N, B, T, 1) of `actions` (B, T, A), which are one-hot if discrete, by all N critics."""
        q: Tensor = of_actions(self.critics(h.q), actions) if self.is_discrete else self.critics(h.q, actions)
        return q

    def drawn_critics(self) -> tuple[Tensor, ...]:
        """Return the numbers (M,) of the `target_subset` critics that a target asks, drawn at random; () for all."""
        return () if self.target_subset is None else (self.noise.subset(self.critics.num, self.target_subset),)

    def policy_value(self, h: Summaries, action: Tensor) -> Tensor:
        """Return the Q of the policy's `action` (B, T, A) that its loss raises, (B, T, 1); see `actor_q`."""
        q: Tensor = self.critics.forward_frozen(h.q, action, 1 if self.actor_q == "first" else None)
        return q.mean(0) if self.actor_q == "mean" else q.amin(0)

    def update_phase(self) -> Hashable:
        """Return what the next update does, as far as its number decides; see `cuda_graphs`.

        Override it if an update of your own depends on its number: a CUDA graph repeats what it recorded.
        """
        if not self.has_critics:
            return None
        number = self.critic_optimizer.num_updates + 1
        delay, bc_steps = getattr(self, "policy_delay", 1), getattr(self, "bc_steps", 0)
        return number % delay == 0, number % self.target_update_interval == 0, number > bc_steps

    def host_stats(self) -> Stats:
        """Return statistics that no operation of `inner_update` computes, as 0-d tensors on the device."""
        return {}

    def updates_warning(self, num_updates: float) -> str:
        """Return a warning for a run of `num_updates` updates, or ""."""
        if not self.has_critics or not num_updates:
            return ""
        polyak = self._targets.polyak
        if self.target_update_interval > SLOWEST * (1.0 - polyak):
            return (
                f"the targets hardly move: each {self.target_update_interval} updates, they move by "
                f"{1.0 - polyak:.2g} of the way to the networks; polyak = 0 copies the networks, as tau = 1 does "
                f"in stable-baselines3"
            )
        if self.target_update_interval == 1 and 0.0 < polyak < 0.5:
            return (
                f"the targets are almost the networks themselves, as polyak is {polyak:g}: it is 1 - tau, so "
                f"tau = 0.005 is polyak = 0.995"
            )
        return ""

    @property
    def asks_one_critic(self) -> bool:
        """Whether each target asks a single critic, so that no minimum or mean over critics is taken."""
        return self.target_subset == 1 or getattr(self.critics, "num", None) == 1

    def unused_parameters(self) -> dict[str, str]:
        """Return arguments that have no effect on this agent, each with the reason."""
        reasons = {}
        if self.device.type != "cuda":
            reasons["cuda_graphs"] = "the device is no GPU"
        if is_empty(self.shared_encoder) and is_empty(self.actor_encoder):
            reasons["encoder_lr"] = "no encoder has parameters"
        if not has_images(self.observation_shape):
            reasons["augmentation"] = "observations are not images"
        if not self.has_mlps:
            reasons |= dict.fromkeys(OF_MLPS, "heads replace the MLPs")
        if self.default_actor_q is None:
            reasons["actor_q"] = "the actor imitates recorded actions"
        if not self.has_critics:
            reasons |= dict.fromkeys((*CRITICS_ONLY, "critic_inputs"), "there are no critics")
            encoders = (self.shared_encoder, self.actor_encoder)
            if not any(reads_previous(encoder, "reward") for encoder in encoders):
                reasons["clip_rewards"] = "nothing reads rewards"
        if self.privileged is None:
            reasons["critic_inputs"] = "there is no state"
        if self.acts_by_values:
            idle = ("actor_lr", "actor_layer_norm", "actor_dropout")
            reasons |= dict.fromkeys(idle, "the Q network chooses the actions, and there is no actor")
        if self.has_critics and getattr(self.critics, "num", None) == 1:
            reasons |= dict.fromkeys(("target_subset", "actor_q"), "there is a single critic")
        return reasons


@configurable
class DeterministicPolicy:
    """Mixin of agents with a deterministic actor.

    Args:
        args: see `ActorCritic`.
        action_noise: standard deviation of the exploration noise, for actions in [-1, 1].
        kwargs: see `ActorCritic`.
    """

    action_dim: int
    noise_scale: float
    _arguments: dict[str, Any]

    def __init__(self, *args: Any, action_noise: NonnegativeNumber = 0.1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noise_scale = action_noise

    @property
    def action_noise(self) -> float:
        """The standard deviation of the exploration noise."""
        return self.noise_scale

    @action_noise.setter
    def action_noise(self, value: float) -> None:
        self.noise_scale = value
        self._arguments = {**self._arguments, "action_noise": value}  # an actor file has it

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> DeterministicActor:
        """Return a deterministic policy."""
        return DeterministicActor(summary_dim, self.action_dim, hidden_dims)
