"""`ActorCritic`, the base class of all algorithms, and `DeterministicPolicy`.

`ActorCritic` builds networks, optimizers and targets, and encodes batches. `acting` has acting and saving; `execution`
has the execution options (fused, compiled, bfloat16). `DeterministicPolicy` is the parent of algorithms with a
deterministic actor.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offpcc.algorithms.acting import Acting
from offpcc.algorithms.components import PolyakAverage, RunningNormalization
from offpcc.algorithms.execution import NonFinitePolicy, Precision, with_execution_mode
from offpcc.algorithms.nonfinite import NonFiniteGuard
from offpcc.algorithms.optim import Optimizer, Rate
from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, Fraction, NonnegativeNumber, Number, NumParts, PositiveNumber, Size, Sizes
from offpcc.core import Batch, Stats, Summaries, channels_first_shape, is_image
from offpcc.networks import Critics, DeterministicActor, Identity, Inputs, InputShape, PassThrough
from offpcc.networks.augmentation import Augmentation, RandomShift
from offpcc.networks.encoders import Builder, EncoderBuilder, built_encoder
from offpcc.networks.noise import Noise
from offpcc.networks.sequences import encode, is_empty
from offpcc.utils.errors import UserError
from offpcc.utils.system import keep_freed_memory

TRAIN_MODE_LAYERS = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
AT_BOUND = 0.99  # where |tanh| is above this, less than 2% of a gradient passes
CRITICS_ONLY = ("gamma", "polyak", "num_critics", "layer_norm", "n_step", "reward_scale", "reward_shift")


@configurable
class ActorCritic(Acting):
    """Base class that builds networks, optimizers and targets from class attributes and arguments.

    Every network reads a summary of the history, made by two encoders in a row. All networks have one `shared_encoder`.
    The critics' loss trains it, or the actor's loss if there are no critics. On top of it, each network has its own
    `encoder`. Either encoder may do nothing. Memoryless, convolutional, recurrent and sharing agents differ only in
    these encoders.

    Args:
        observation_space: space of one environment; images may have channels first or last.
        action_space: space of one environment, in its own units. Its bounds map to -1 and 1: networks, batches and
            `act` use actions in [-1, 1]. Actor files store the bounds.
        device: device of the networks.
        seed: seed of the initial weights and of the algorithm's own noise.
        gamma: discount per step.
        polyak: share of its old value that a target keeps in each update.
        lr: learning rate of all networks, a number or a schedule.
        actor_lr: learning rate of the actor, if different.
        encoder_lr: learning rate of all encoders, if different.
        hidden_dims: widths of the actor's and the critics' MLPs.
        num_critics: N; default: the algorithm's own number.
        layer_norm: whether critics use layer norm in their hidden layers.
        encoder: builds each network's own encoder; default: the class's.
        shared_encoder: builds the shared encoder; default: the class's.
        max_grad_norm: if given, the gradients of each optimizer are clipped to this norm.
        normalize_observations: whether to normalise observations, by the mean and standard deviation of the dataset, or
            online by running ones. By default, offline algorithms (BC, TD3+BC, IQL, CQL, BCQ) normalise vectors of a
            dataset; online, only TD3+BC normalises. The statistics are saved with the actor.
        n_step: number of rewards that a target sums before it bootstraps.
        reward_scale: factor on rewards in targets. Reported returns and rewards as network inputs are not scaled.
        reward_shift: added to rewards after scaling.
        augmentation: augmentation of images in updates; default: the class's.
        precision: "bfloat16" runs matrix products of updates in bfloat16, which is faster. Weights, moments, last
            layers and acting stay in float32. So do the hidden states of GRU, minGRU and LRU. An LSTM's state is
            bfloat16: it may lose a fifth of a cue that it keeps for hundreds of steps.
        fused: whether to use the hand-written updates, which are faster on the CPU. They exist for SAC, DDPG, TD3,
            TD3+BC, IQL and BC with plain MLPs and without memory. Default: wherever they fit.
        compile: whether to compile the losses with `torch.compile`. It needs a C++ compiler, and the first updates take
            a minute or more. Encoders, optimizers and targets are not compiled.
        nonfinite: what to do if an update has NaN or infinity. "raise" raises an error that names the first such
            tensor. "skip" skips the update; its statistics are NaN, except `skipped`, which is 1. In both cases, no
            weight changes from the first such tensor on. A resumed run may use the other setting.
    """

    default_encoder: ClassVar[EncoderBuilder] = Identity
    default_shared_encoder: ClassVar[EncoderBuilder] = PassThrough
    default_augmentation: ClassVar[type[RandomShift] | None] = None
    default_num_critics: ClassVar[int] = 2
    default_normalize_observations: ClassVar[bool] = False
    normalizes_recorded: ClassVar[bool] = False  # default of normalize_observations for datasets
    has_critics: ClassVar[bool] = True
    # True if any NaN or infinity in observations and actions reaches the first loss or its gradient, so that they need
    # no check of their own. An encoder or a normalisation may clamp such values; then they are checked all the same.
    loss_covers_batch: ClassVar[bool] = False
    has_target_actor: ClassVar[bool] = False
    # `offpcc.algorithms.fused` sets the class of the fused update, and the methods that it replaces.
    fused_update: ClassVar[Any] = None
    fused_methods: ClassVar[dict[str, Callable[..., Any]]]
    stat_names: tuple[str, ...] = ()

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
        gamma: Fraction = 0.99,
        polyak: Fraction = 0.995,
        lr: Rate = 3e-4,
        actor_lr: Rate | None = None,
        encoder_lr: Rate | None = None,
        hidden_dims: Sizes = (256, 256),
        num_critics: NumParts | None = None,
        layer_norm: Flag = False,
        encoder: Builder | None = None,
        shared_encoder: Builder | None = None,
        max_grad_norm: PositiveNumber | None = None,
        normalize_observations: Flag | None = None,
        n_step: Size = 1,
        reward_scale: Number = 1.0,
        reward_shift: Number = 0.0,
        augmentation: Augmentation | None = None,
        precision: Precision = "float32",
        fused: Flag | None = None,
        compile: Flag = False,
        nonfinite: NonFinitePolicy = "raise",
    ) -> None:
        self.device = torch.device(device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.gamma, self.n_step = gamma, n_step
        self.reward_scale, self.reward_shift = reward_scale, reward_shift
        self.space_shape = observation_space.shape
        self.observation_shape = channels_first_shape(observation_space.shape)
        self.action_space, self.action_dim = action_space, int(np.prod(action_space.shape))
        self.noise = Noise(seed, self.device)
        self.lr, self.max_grad_norm, self.precision, self.compile = lr, max_grad_norm, precision, compile
        if augmentation is None and self.default_augmentation is not None:
            augmentation = self.default_augmentation()
        self.augmentation = augmentation if is_image(self.observation_shape) else None
        if normalize_observations and is_image(self.observation_shape):
            raise UserError("normalize_observations is for vectors; images are scaled to [0, 1] already")
        self._may_normalize = normalize_observations is None and not is_image(self.observation_shape)
        if normalize_observations is None:
            normalize_observations = self._may_normalize and self.default_normalize_observations
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._build_networks(
                type(self).default_encoder if encoder is None else encoder,
                type(self).default_shared_encoder if shared_encoder is None else shared_encoder,
                self.default_num_critics if num_critics is None else num_critics,
                tuple(hidden_dims),
                layer_norm,
            )
        # Dropout and batch norm: train mode in updates, eval mode in `act`.
        self._train_mode_layers = [
            m for part in self.networks() for m in part.modules() if isinstance(m, TRAIN_MODE_LAYERS)
        ]
        self.memoryless = self.shared_encoder.memoryless and self.actor_encoder.memoryless
        self.encoders_are_empty = is_empty(self.shared_encoder) and is_empty(self.actor_encoder) and self.memoryless
        self._normalize(normalize_observations, skips=nonfinite == "skip")
        if self.watch.skips:
            self.stat_names = (*self.stat_names, "skipped")
        self._build_optimizers(lr if actor_lr is None else actor_lr, lr if encoder_lr is None else encoder_lr, polyak)
        if fused and self.fused_update is None:
            name = type(self).__name__
            remedy = "leave fused out, which updates any agent"
            raise UserError(f"{name}.fused is True, but {name} has no fused update; {remedy}")
        self._fused = None if self.fused_update is None or fused is False else self.fused_update.of(self, bool(fused))

    def _normalize(self, is_wanted: bool, skips: bool) -> None:
        """Create the observation normalisation, if wanted, and the non-finite guard that matches it."""
        self.normalization = RunningNormalization(self.observation_shape).to(self.device) if is_wanted else None
        statistics = [] if self.normalization is None else [*self.normalization.buffers()]
        statistics += [statistic for module in self._train_mode_layers for statistic in module.buffers()]
        self.watch = NonFiniteGuard(self.device, statistics, skips=skips)
        shown = self.loss_covers_batch and self.encoders_are_empty and self.normalization is None
        self.checked_fields = ("rewards",) if shown else ("observations", "actions", "rewards")

    def expect_recorded_data(self) -> None:
        """Turn on normalisation if it is this algorithm's default for datasets.

        Call it before the first update.
        """
        if self._may_normalize and self.normalizes_recorded and self.normalization is None:
            self._normalize(True, skips=self.watch.skips)

    def build_actor(self, summary_dim: int, hidden_dims: Sequence[int]) -> nn.Module:
        """Return the policy network."""
        raise NotImplementedError

    def build_heads(self, summary_dim: int, hidden_dims: Sequence[int]) -> None:
        """Build networks other than actor and critics; the subclass also adds them to `networks`."""

    def _build_networks(
        self,
        encoder: EncoderBuilder,
        shared_encoder: EncoderBuilder,
        num_critics: int,
        hidden_dims: Sequence[int],
        layer_norm: bool,
    ) -> None:
        shape = InputShape(self.observation_shape, self.action_dim)
        owner = type(self).__name__
        self.shared_encoder = built_encoder(shared_encoder, shape, f"{owner}.shared_encoder")
        own_shape = InputShape(self.shared_encoder.output_shape, self.action_dim)
        self.actor_encoder = built_encoder(encoder, own_shape, f"{owner}.encoder")
        dim = self.actor_encoder.dim
        if self.has_critics:
            own = 1 if is_empty(self.actor_encoder) else num_critics
            self.critic_encoders = nn.ModuleList(encoder(own_shape) for _ in range(own))
        self.actor = self.build_actor(dim, hidden_dims)
        if self.has_critics:
            self.critics = Critics(num_critics, dim, self.action_dim, hidden_dims, layer_norm)
        self.build_heads(dim, hidden_dims)
        for network in self.networks():
            network.to(self.device)
        if self.has_critics:
            self.target_shared_encoder = copy.deepcopy(self.shared_encoder)
            self.target_critic_encoders = copy.deepcopy(self.critic_encoders)
            self.target_critics = copy.deepcopy(self.critics)
        if self.has_target_actor:
            self.target_actor_encoder = copy.deepcopy(self.actor_encoder)
            self.target_actor = copy.deepcopy(self.actor)

    def _build_optimizers(self, actor_lr: Rate, encoder_lr: Rate, polyak: float) -> None:
        shared = [(self.shared_encoder.parameters(), encoder_lr)]
        actors = [(self.actor_encoder.parameters(), encoder_lr), (self.actor.parameters(), actor_lr)]
        if not self.has_critics:
            self.actor_optimizer = Optimizer(shared + actors, self.max_grad_norm)
            return
        self.actor_optimizer = Optimizer(actors, self.max_grad_norm)
        critics = [(self.critic_encoders.parameters(), encoder_lr), (self.critics.parameters(), self.lr)]
        self.critic_optimizer = Optimizer(shared + critics, self.max_grad_norm)
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
        critics = (self.critic_encoders, self.critics) if self.has_critics else ()
        return self.shared_encoder, self.actor_encoder, self.actor, *critics

    def unused_parameters(self) -> dict[str, str]:
        """Return arguments that have no effect on this agent, each with the reason."""
        reasons = {}
        if is_empty(self.shared_encoder) and is_empty(self.actor_encoder):
            reasons["encoder_lr"] = "no encoder has parameters"
        if not is_image(self.observation_shape):
            reasons["augmentation"] = "observations are no images"
        if not self.has_critics:
            reasons |= dict.fromkeys(CRITICS_ONLY, "there are no critics")
        return reasons

    def about_updates(self, num_updates: float) -> str:
        """Return a warning about a run of `num_updates` updates, or ""."""
        return ""

    # Learning -----------------------------------------------------------------------------------------------

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap a subclass's `update_networks`, so that it follows the execution options."""
        super().__init_subclass__(**kwargs)
        if "update_networks" in cls.__dict__:
            setattr(cls, "update_networks", with_execution_mode(cls.__dict__["update_networks"]))  # noqa: B010

    def update_networks(self, batch: Batch) -> Stats:
        """Make one update and return its statistics; each algorithm implements it."""
        raise NotImplementedError

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with zeros in padding, and observations augmented (images) and normalised (vectors)."""
        for module in self._train_mode_layers:
            module.train()
        batch = batch.to(self.device).without_padding()
        self.watch.check_batch(*[getattr(batch, name) for name in self.checked_fields])
        observations = batch.observations
        if self.augmentation is not None:
            observations = self.augmentation(observations, self.noise, one_per_row=not self.memoryless)
        if self.normalization is not None:
            self.normalization.update(batch.observations[:, :-1].flatten(0, 1), batch.loss_mask.flatten())
        return batch._replace(observations=self._normalized(batch, observations))

    def _normalized(self, batch: Batch, observations: Tensor) -> Tensor:
        """Return `observations`, normalised with zeros in padding if this agent normalises."""
        if self.normalization is None:
            return observations
        valid = batch.valid.view(*batch.valid.shape[:2], *(1,) * len(self.observation_shape))
        return torch.where(valid > 0, self.normalization(observations), 0.0)

    def summarize(self, batch: Batch) -> Summaries:
        """Encode the batch once for all networks; what follows in an update is feed-forward."""
        inputs = Inputs.of(batch)
        if self.encoders_are_empty:  # all networks have the same summary
            shared, _ = self.shared_encoder(inputs)
            h: Tensor = self.actor_encoder(inputs._replace(observation=shared))[0]
            q = h.unsqueeze(0) if self.has_critics else h.new_empty(0, *h.shape)
            return Summaries(h[:, :-1], h[:, 1:], q[:, :, :-1], q, h)
        read = functools.partial(encode, inputs=inputs, batch=batch)
        shared = read(self.shared_encoder)
        if not self.has_critics:
            pi = read(self.actor_encoder, features=shared)
            none = pi.new_empty(0, *pi.shape)
            return Summaries(pi[:, :-1], pi[:, 1:].detach(), none[:, :, :-1], none, pi.detach())
        pi = read(self.actor_encoder, features=shared.detach())
        q = torch.stack([read(encoder, features=shared) for encoder in self.critic_encoders])
        with torch.no_grad():
            target_shared = read(self.target_shared_encoder)
            target_q = torch.stack([read(encoder, features=target_shared) for encoder in self.target_critic_encoders])
            next_pi = read(self.target_actor_encoder, features=target_shared) if self.has_target_actor else pi
        return Summaries(pi[:, :-1], next_pi[:, 1:].detach(), q[:, :, :-1], target_q, pi.detach())

    def td_target(self, batch: Batch, next_value: Tensor) -> Tensor:
        """Return targets (B, T, 1) from the value (B, T, 1) of each next observation.

        y_t = r_t + gamma (1 - d_t) V(o_{t+1}), with the reward scaled and shifted. With n steps, y_t sums n rewards
        before it bootstraps, or fewer at the row's end.
        """
        rewards = self.reward_scale * batch.rewards + self.reward_shift
        continues = self.gamma * (1.0 - batch.terminations)
        one_step = rewards + continues * next_value
        y = one_step
        for _ in range(self.n_step - 1):
            longer = rewards[:, :-1] + continues[:, :-1] * y[:, 1:]
            y = torch.cat([torch.where(batch.has_step()[:, 1:], longer, one_step[:, :-1]), one_step[:, -1:]], 1)
        return y

    def td_loss(self, batch: Batch, q: Tensor, y: Tensor) -> tuple[Tensor, Stats]:
        """Return mean w (Q - y)^2, summed over critics, where w are the importance weights, and statistics.

        The statistics are mean Q and, if the batch has importance weights, "td_error", (B, T, 1): |Q - y|, averaged
        over critics, with 0 for steps that do not count.

        Args:
            batch: the batch.
            q: Q(o, a) of the critics, (N, B, T, 1).
            y: the targets, (B, T, 1).
        """
        error = q - y
        stats = {"q": batch.mean(q.detach()).mean()}
        if batch.weights is not None:
            stats["td_error"] = torch.where(batch.loss_mask > 0, error.detach().abs().mean(0), 0.0)
        return batch.weighted_mean(error.square()).sum(), stats

    @torch.no_grad()
    def shares_at_bounds(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Return the share of policy actions with |a| > 0.99, and the same share of the batch's actions.

        Both are 0-d tensors. No weights or statistics change.

        Returns:
            The two shares; None if `squashed` returns None.
        """
        for module in self._train_mode_layers:
            module.eval()
        batch = batch.to(self.device).without_padding()
        h = self.summarize(batch._replace(observations=self._normalized(batch, batch.observations)))
        squashed = self.squashed(h)
        if squashed is None:
            return None
        made, recorded = (batch.mean((x.abs() > AT_BOUND).float()) for x in (squashed, batch.actions))
        return made, recorded

    def squashed(self, h: Summaries) -> Tensor | None:
        """Return the policy's deterministic actions (B, T, A), or the output of the tanh that forms them.

        Returns:
            The actions; None if a subclass chooses actions in another way, see `acts_by_actor`.
        """
        if not self.acts_by_actor:
            return None
        action: Tensor = self.actor.choose(h.pi.flatten(0, 1).unsqueeze(1), None)  # type: ignore[operator]
        return action.view(*h.pi.shape[:2], -1)

    def update_targets(self) -> None:
        """Update all target networks by Polyak averaging."""
        self._targets.update()


@configurable
class DeterministicPolicy(ActorCritic):
    """Base class of agents with a deterministic actor.

    Args:
        observation_space: see `ActorCritic`.
        action_space: see `ActorCritic`.
        action_noise: standard deviation of the exploration noise, for actions in [-1, 1].
        kwargs: see `ActorCritic`.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, action_noise: NonnegativeNumber = 0.1, **kwargs: Any
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.action_noise = self.noise_scale = action_noise

    def build_actor(self, summary_dim: int, hidden_dims: Any) -> DeterministicActor:
        """Return a deterministic policy."""
        return DeterministicActor(summary_dim, self.action_dim, hidden_dims)
