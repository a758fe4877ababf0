"""`Acting`: acts, and saves and loads an algorithm, either its full state or only the actor."""

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.algorithms.nonfinite import why_no_action
from offpcc.algorithms.numpy_policy import MOST_MIRRORED, HostCopy, NumpyPolicy
from offpcc.algorithms.optim import Optimizer
from offpcc.config.registry import specification
from offpcc.core import Batch, Memory, Step, Summaries, channels_first
from offpcc.networks import Inputs
from offpcc.networks.encoders import rebuilds
from offpcc.networks.states import keep_rows, map_state
from offpcc.utils.errors import UserError

if TYPE_CHECKING:  # where an agent's attributes are set
    from offpcc.algorithms.construction import Construction
else:
    Construction = object

ACTOR_FORMAT = 3
AT_BOUND = 0.99  # where |tanh| is above this, less than 2% of a gradient passes
# Arguments that `actor_file` does not copy: encoders, which `rebuilds` describes, and those that only updates use.
BUILT = {"encoder", "shared_encoder"}
LEARNING_ONLY = {
    *("lr", "actor_lr", "encoder_lr", "alpha_lr", "max_grad_norm", "adam_eps"),
    *("augmentation", "precision", "fused", "compile", "cuda_graphs", "nonfinite", "critic_inputs"),
}


class Acting(Construction):
    """Parent of `ActorCritic` that acts, saves and loads.

    Attributes:
        device: device of the networks.
        space_shape: shape of one observation, as the environment returns it.
        packed: the space of packed observations if the environment's space is a Dict, else None.
        action_space: the environment's action space, in its own units: a Box with bounds, or Discrete.
        memoryless: whether the agent has no hidden state.
        shared_encoder: reads the inputs.
        actor_encoder: reads the shared encoder's output.
        actor: the policy, which reads summaries.
        normalization: normalisation of observations, or None.
    """

    noise_scale: float = 1.0  # standard deviation of the exploration noise that the actor gets
    prepare: Any  # methods of `ActorCritic`
    summarize: Any
    _arguments: dict[str, Any]
    _mirror: NumpyPolicy | Literal["unknown"] | None = "unknown"
    _host_copy: HostCopy | None = None  # the networks that the mirror reads, if they are on a GPU

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes except the NumPy mirror, which refers to this agent's weights."""
        return {name: value for name, value in vars(self).items() if name not in ("_mirror", "_host_copy")}

    # Acting -------------------------------------------------------------------------------------------------

    def choose_action(self, summary: Tensor, deterministic: bool) -> Tensor:
        """Return the actor's actions (N, 1, A) for the summary (N, 1, H) of `acting_encoders`."""
        drawn = self.acting_noise(summary.shape[0], deterministic)  # `len` would fix the number of rows in an export
        noise = None if drawn is None else torch.from_numpy(drawn).to(summary).unsqueeze(1)
        action: Tensor = self.actor.choose(summary, noise)  # type: ignore[operator]
        return action

    def acting_noise(self, num_envs: int, deterministic: bool) -> np.ndarray | None:
        """Return the noise of the actor's `choose` for N environments, (N, A) in float32, or None for its mode."""
        return None if deterministic else self.exploration_noise(num_envs)

    def exploration_noise(self, num_envs: int) -> np.ndarray:
        """Return the noise of the actor's `choose` for N environments, (N, A) in float32.

        For discrete actions, it is Gumbel noise: an actor's logits plus this noise are largest for a sample of the
        policy.
        """
        if self.is_discrete:
            return self.noise_scale * self.noise.gumbel(num_envs, self.action_dim)
        return self.noise_scale * self.noise.array(num_envs, self.action_dim)

    def count_steps(self, num_steps: int) -> None:
        """Called after environment steps of training, random ones too; exploration may change with their number."""

    @property
    def acts_by_actor(self) -> bool:
        """True if no subclass or instance replaces `choose_action` or `acting_encoders`."""
        return self._keeps("choose_action", "acting_encoders")

    def _keeps(self, *names: str) -> bool:
        """Check whether no subclass or instance replaces these methods."""
        return all(getattr(getattr(self, name), "__func__", None) is getattr(Acting, name) for name in names)

    def acting_encoders(self) -> tuple[nn.Module, ...]:
        """Return the encoders after the shared one; `choose_action` reads their concatenated summaries."""
        return (self.actor_encoder,)

    def act(self, step: Step, memory: Memory = None, *, deterministic: bool = False) -> tuple[np.ndarray, Memory]:
        """See `Algorithm.act`."""
        inputs, begins = self._inputs(step), np.asarray(step.is_first, np.bool_)
        seen = inputs.observation  # the action need not show its infinity: a memory saturates
        is_finite = seen.dtype == np.uint8 or math.isfinite(np.vdot(seen, seen))  # in a tenth of the time of `isfinite`
        if not (is_finite or np.isfinite(seen).all()):  # a large number has an infinite square
            raise UserError(why_no_action(self.actor_parts(), seen))
        any_begins = True in begins.tolist()  # ten times as fast as `any`
        mirrored = self._mirrored(len(begins), any_begins)
        if mirrored is not None:
            noise = self.acting_noise(len(begins), deterministic)
            action, memory = mirrored(inputs, begins if any_begins else None, memory, noise)
        else:
            action, memory = self._act(inputs, begins, memory, deterministic)
        if not math.isfinite(np.vdot(action, action)):
            raise UserError(why_no_action(self.actor_parts(), inputs.observation))
        return action, memory

    @torch.no_grad()
    def _act(self, known: Inputs, begins: np.ndarray, memory: Memory, deterministic: bool) -> tuple[np.ndarray, Memory]:
        """Act with the PyTorch networks."""
        self.set_modes(False)
        inputs = Inputs(*(torch.as_tensor(x, device=self.device).unsqueeze(1) for x in known))
        if memory is not None:
            # The memory of a resumed run comes from a file; a memory from the NumPy mirror holds arrays.
            memory = map_state(lambda part: torch.as_tensor(part, device=self.device), memory)
            memory = keep_rows(memory, torch.as_tensor(~begins, device=self.device))
        action, memory = self.act_on_tensors(inputs, memory, deterministic)
        return action.cpu().numpy(), memory

    def act_on_tensors(self, inputs: Inputs, memory: Memory, deterministic: bool) -> tuple[Tensor, Memory]:
        """Return actions (N, A) in [-1, 1] and the new hidden state.

        Args:
            inputs: one step (N, 1, ...), with observations that are not normalised.
            memory: hidden state. Zeros, or None, are the one at an episode's start.
            deterministic: see `Algorithm.act`.
        """
        if self.normalization is not None:
            inputs = inputs._replace(observation=self.normalization(inputs.observation))
        encoders = self.acting_encoders()
        shared_state, *states = memory if memory is not None else [None] * (1 + len(encoders))
        features, shared_state = self.shared_encoder(inputs, shared_state)
        inputs = inputs._replace(observation=features)
        read = [encoder(inputs, state) for encoder, state in zip(encoders, states, strict=True)]
        action = self.choose_action(torch.cat([summary for summary, _ in read], -1), deterministic)[:, 0]
        return action, None if self.memoryless else (shared_state, *(state for _, state in read))

    @torch.no_grad()
    def shares_at_bounds(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Return the share of policy actions with |a| > 0.99, and the same share of the batch's actions.

        Both are 0-d tensors. No weights or statistics change.

        Returns:
            The two shares; None if `squashed` returns None.
        """
        batch = self.prepare(batch, learns=False)
        h = self.summarize(batch)
        squashed = self.squashed(h)
        if squashed is None:
            return None
        of_policy, recorded = (batch.mean((x.abs() > AT_BOUND).float()) for x in (squashed, batch.actions))
        return of_policy, recorded

    def squashed(self, h: Summaries) -> Tensor | None:
        """Return the deterministic actions (B, T, A), or the tanh that forms them.

        It is None if not `acts_by_actor`, and for discrete actions, which have no bounds.
        """
        if self.is_discrete or not self.acts_by_actor:
            return None
        action: Tensor = self.actor.choose(h.pi.flatten(0, 1).unsqueeze(1), None)  # type: ignore[operator]
        return action.view(*h.pi.shape[:2], -1)

    def _inputs(self, step: Step) -> Inputs:
        """Return the encoders' inputs as arrays (N, ...)."""
        observation, space = np.asarray(step.observation), self.privileged
        if space is not None and observation.shape[1:] == space.shape:  # of an environment for training
            observation = space.split_state(observation)[0]
        elif observation.shape[1:] == self.space_shape:
            observation = observation if self.packed else channels_first(observation, self.space_shape)
        else:
            raise ValueError(
                f"act got observations of shape {observation.shape}, but needs (N, "
                f"{', '.join(map(str, self.space_shape))}), where N is the number of environments"
            )
        if self.packed is not None:
            observation = self.packed.unpack(observation)
        dtype = np.uint8 if observation.dtype == np.uint8 else np.float32
        reward = np.asarray(step.previous_reward, np.float32)
        return Inputs(
            np.ascontiguousarray(observation, dtype),
            np.asarray(step.previous_action, np.float32),
            np.sign(reward) if self.clip_rewards else reward,
        )

    def _mirrored(self, num_envs: int, any_begins: bool) -> NumpyPolicy | None:
        """Return the NumPy mirror for few environments, or None if a part of the actor has no mirror.

        The mirror is rebuilt when an episode begins, because a user may have changed the networks. For networks on a
        GPU, it reads a copy on the CPU, which gets the weights again after updates.
        """
        if num_envs > MOST_MIRRORED:
            return None
        if (any_begins or self._mirror == "unknown") and not (self._mirror is None and self.device.type != "cpu"):
            is_plain, parts = self.acts_by_actor and self._keeps("act_on_tensors"), self.actor_parts()
            if is_plain and self.device.type != "cpu":
                self._host_copy = HostCopy(parts)
                parts = self._host_copy.parts
            self._mirror = NumpyPolicy.of(parts, self.memoryless) if is_plain else None
        if self._host_copy is not None and self._mirror is not None:
            self._host_copy.refresh(self.nonfinite_guard.num_updates)
        return self._mirror

    def begin_online(self, keep_moments: bool = True) -> None:
        """Prepare an agent that learned from recorded data for learning in an environment.

        Learning rate schedules start anew. Networks, targets and statistics of the normalisation stay as they are.

        Args:
            keep_moments: whether the optimizers keep Adam's moments.

        Raises:
            NonFiniteError: a recent update had NaN or infinity.
        """
        self.nonfinite_guard.synchronize(self)  # so that all skipped updates are known
        for part in self.stateful_parts().values():
            if isinstance(part, Optimizer):
                part.restart(keep_moments)
        for name in self.first_updates:  # optimizers count from 0 again, but learning has begun
            setattr(self, name, 0)

    # Saving -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every attribute that has a `state_dict`."""
        self.nonfinite_guard.synchronize(self)
        return {name: part.state_dict() for name, part in self.stateful_parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`; raise ValueError if it is from an algorithm with other parts."""
        own = self.stateful_parts()
        if differing := sorted(own.keys() ^ state.keys()):
            whose = "this algorithm" if differing[0] in own else "the state"
            raise ValueError(f"only {whose} has {differing[0]}")
        for name, part in state.items():
            own[name].load_state_dict(part)

    def stateful_parts(self) -> dict[str, Any]:
        """Return the attributes that have a `state_dict`, and those in lists, tuples and dicts, such as "heads.0"."""
        found = {}

        def look(name: str, part: Any) -> None:
            if hasattr(part, "state_dict"):
                found[name] = part
            elif isinstance(part, list | tuple | dict):
                for key, item in part.items() if isinstance(part, dict) else enumerate(part):
                    look(f"{name}.{key}", item)

        for name, part in vars(self).items():
            if name not in ("_arguments", "_train_mode_layers", *self.parts_of_actor):  # their modules are in others
                look(name, part)
        return found

    def check_built(self) -> None:
        """Raise if a user's class leaves out its parent's `__init__`, or trains tensors that no checkpoint holds."""
        name = type(self).__name__
        if not hasattr(self, "nonfinite_guard"):
            raise UserError(f"{name}.__init__ does not call its parent; call super().__init__(*args, **kwargs) in it")
        if type(self).state_dict is not Acting.state_dict:  # it may hold more
            return
        parts = self.stateful_parts()
        modules = [part for part in parts.values() if isinstance(part, nn.Module)]
        held = {id(weight) for module in modules for weight in module.parameters()}
        for key, part in parts.items():
            of_torch = [weight for group in getattr(part, "param_groups", ()) for weight in group["params"]]
            trained = part.parameters if isinstance(part, Optimizer) else of_torch
            if {*map(id, trained)} - held:
                raise UserError(
                    f"{name}.{key} trains a tensor that is in no module of {name}, so a checkpoint would not hold it; "
                    f"make it an attribute of an nn.Module, such as nn.ParameterList([...]), and that one of {name}"
                )

    def actor_parts(self) -> dict[str, nn.Module]:
        """Return the modules that `act` uses, by name."""
        parts = {
            "shared_encoder": self.shared_encoder,
            "actor_encoder": self.actor_encoder,
            "actor": self.actor,
            "normalization": self.normalization,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _kind_of_normalization(self) -> dict[str, Any]:
        """Return the argument for it where the given one is another: an algorithm that takes over keeps the other's."""
        name, part = "normalize_observations", self.normalization
        kind = part is not None and part.kind
        is_scaled = "scale" in (kind, self._arguments.get(name))
        return {name: kind} if is_scaled else {}

    def actor_file(self) -> dict[str, Any]:
        """Return the content of an actor file: how to build the actor, as plain data, and the weights of `act`."""
        encoders = {"encoder": self.actor_encoder, "shared_encoder": self.shared_encoder}
        description = {
            "class": type(self).__name__,
            "arguments": {
                **specification({k: v for k, v in self._arguments.items() if k not in LEARNING_ONLY | BUILT}),
                "observation_space": specification(self.observation_space),
                "device": "cpu",
                **self._kind_of_normalization(),
                **{name: rebuilds(encoder) for name, encoder in encoders.items() if name in self._arguments},
            },
        }
        weights = {
            name: {key: value.cpu().clone() for key, value in part.state_dict().items()}
            for name, part in self.actor_parts().items()
        }
        return {"kind": "actor", "format": ACTOR_FORMAT, "algorithm": description, "weights": weights}
