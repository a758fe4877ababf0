"""What updates by hand share: what they fit, whose weights they work on, and what they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from offpcc.algorithms.fused.passes import Passes
from offpcc.core import Batch, Stats
from offpcc.errors import UserError
from offpcc.learning import Temperature
from offpcc.networks import Critics, Identity, Inputs, PassThrough
from offpcc.networks.layers import HOOKS, MLP, EnsembleLinear, is_plain
from offpcc.networks.sequences import encode, is_empty
from offpcc.optimization import Optimizer

if TYPE_CHECKING:
    from offpcc.algorithms.base import ActorCritic


class Rows(NamedTuple):
    """The M = B T steps of a batch, one below the other, as networks without encoders read them."""

    both: Tensor  # (2M, H): all o, then all o'
    now: Tensor  # (M, H): o
    next: Tensor  # (M, H): o'
    batch_actions: Tensor  # (B, T, A)
    actions: Tensor  # (M, A)
    shares: Tensor  # (M, 1), how much each counts in `Batch.mean`

    @classmethod
    def of(cls, agent: Any, batch: Batch) -> Rows:
        """Of a batch that `prepare` has made."""
        h = read(agent, batch)
        if batch.complete:
            shares = torch.full_like(batch.mask, 1.0 / batch.mask.numel())
        else:
            shares = torch.where(batch.mask > 0, 1.0 / batch.mask.sum(), 0.0)
        both = torch.cat([h[:, :-1], h[:, 1:]]).view(-1, h.shape[-1])
        actions = batch.actions.flatten(0, 1)
        now, following = both.chunk(2)
        return cls(both, now, following, batch.actions, actions, shares.view(-1, 1))

    def with_action(self, action: Tensor) -> Tensor:
        """What critics read of o and `action` (M, A)."""
        return torch.cat([self.now, action], -1)

    def next_with(self, action: Tensor) -> Tensor:
        """What critics read of o' and `action` (M, A)."""
        return torch.cat([self.next, action], -1)

    def unflatten(self, x: Tensor) -> Tensor:
        """(..., M, 1) -> (..., B, T, 1)."""
        return x.view(*x.shape[:-2], *self.batch_actions.shape[:-1], 1)


def read(agent: Any, batch: Batch) -> Tensor:
    """What every network reads, (B, T+1, H): their encoders have no weights, so they all do the same."""
    shared, own = agent.shared_encoder, agent.actor_encoder
    if type(shared) is PassThrough and type(own) is Identity and not own.extra_dim:
        return batch.observations.flatten(2)
    inputs = Inputs.of(batch)
    return encode(own, inputs, batch, encode(shared, inputs, batch))


class FusedUpdate:
    """An algorithm's update by hand; a class for each algorithm, named by its `fused_update`.

    It holds views of an agent's weights and memory to work in, nothing that would have to be saved: a copy makes its
    own, and so does the original when its weights have been put elsewhere.

    Args:
        is_wanted: whether an agent that does not fit is refused, or left to its plain update.
    """

    actor_class: ClassVar[type[nn.Module]]
    replaces: ClassVar[tuple[str, ...]]  # methods that are not called
    actor: Passes
    critics: Passes
    target_critics: Passes
    _seen: Sequence[object] = ()  # what `unfit` hangs on, as it was when it was last asked
    _fits = False

    def __init__(self, is_wanted: bool) -> None:
        self.is_wanted = is_wanted

    def __getstate__(self) -> dict[str, Any]:
        """No view: a copy is of an agent with weights of its own."""
        return {"is_wanted": self.is_wanted}

    def fits(self, agent: Any) -> bool:
        """Whether this can update `agent`, as it is now.

        Raises:
            UserError: it cannot, though it is wanted.
        """
        seen = looked_at(agent)
        if seen != self._seen:
            if self.is_wanted:
                refuse_unfit(agent)
            self._fits = not unfit(agent)
            if self._fits:
                self.bind(agent)
            self._seen = seen
        return self._fits

    @torch.no_grad()
    def __call__(self, agent: Any, batch: Batch) -> Stats:
        """What the agent's `update_networks` does; of one that fits."""
        batch = agent.prepare(batch)
        return self.update(agent, batch, Rows.of(agent, batch))

    def bind(self, agent: Any) -> None:
        """Work on the weights of `agent`."""
        self.actor = Passes(list(agent.actor.parameters()))
        self.critics = Passes(list(agent.critics.parameters()))
        self.target_critics = Passes(list(agent.target_critics.parameters()))

    def update(self, agent: Any, batch: Batch, rows: Rows) -> Stats:
        """One update by a batch that `prepare` has made."""
        raise NotImplementedError

    def step_critics(self, agent: Any, batch: Batch, rows: Rows, y: Tensor) -> tuple[Tensor, Tensor]:
        """Move the critics towards targets `y` (B, T, 1); mean (Q(o, a) - y)^2 summed over them, and mean Q."""
        x = rows.with_action(rows.actions)
        q = self.critics.forward(x)
        error = q - y.view(-1, 1)
        self.critics.backward(x, error * (2.0 * rows.shares))
        loss = batch.mean(rows.unflatten(error.square())).sum()
        agent.critic_optimizer.step(self.critics.gradients, loss=loss)
        return loss, batch.mean(rows.unflatten(q)).mean()


def looked_at(agent: Any) -> list[object]:
    """Of an agent, what somebody may change after it was built; looking takes a fiftieth of SAC's update (2 x 256)."""
    optimizers = [part for part in vars(agent).values() if isinstance(part, Optimizer)]
    parameters = [*agent.actor_optimizer.parameters, *agent.critic_optimizer.parameters]
    layers = [layer for part in (agent.actor, agent.critics) for layer in part.modules()]
    return [
        *(parameter.data_ptr() for parameter in (*parameters, *agent._targets.targets)),
        *((parameter.requires_grad, bool(parameter._backward_hooks)) for parameter in parameters),
        *((type(layer), "forward" in vars(layer), *(bool(getattr(layer, kind)) for kind in HOOKS)) for layer in layers),
        *((type(optimizer), len(vars(optimizer))) for optimizer in optimizers),
        *(name for name in agent.fused_update.replaces if name in vars(agent)),
    ]


def fused_update_of(agent: ActorCritic, is_wanted: bool | None) -> FusedUpdate | None:
    """What updates `agent` by hand; None if that is not wanted, or if nobody said so and nothing does.

    Raises:
        UserError: it is wanted, but something of the agent does not fit.
    """
    if is_wanted:
        refuse_unfit(agent)
    if agent.fused_update is None or is_wanted is False:
        return None
    return agent.fused_update(is_wanted is True)


def refuse_unfit(agent: ActorCritic) -> None:
    """Refuse an agent that cannot be updated by hand.

    Raises:
        UserError: naming what does not fit.
    """
    if reason := unfit(agent):
        raise UserError(f"{type(agent).__name__}.fused is True, but {reason}; leave fused out, which updates any agent")


def unfit(agent: ActorCritic) -> str:
    """Why an agent cannot be updated by hand; "" if it can."""
    cls, fused = type(agent), agent.fused_update
    if fused is None:
        return "only SAC, DDPG, TD3 and TD3+BC have a fused update"
    parent = next(parent for parent in cls.__mro__ if "fused_update" in parent.__dict__)
    changed = [name for name in fused.replaces if getattr(cls, name) is not getattr(parent, name)]
    own = [*changed, *(name for name in fused.replaces if name in vars(agent))]
    if own:
        return f"{cls.__name__} has its own {own[0]}, which the fused update would leave out"
    for encoder in (agent.shared_encoder, agent.actor_encoder):
        if not (is_empty(encoder) and encoder.memoryless):
            return f"the encoder {type(encoder).__name__} has weights or a memory, and the fused update is of none"
    if agent.compiled:
        return "compiled is True, and the fused update asks no losses"
    if agent.precision != "float32":
        return f"precision is {agent.precision!r}, and the fused update is of float32"
    actor, critics = agent.actor, agent.critics
    if type(actor) is not fused.actor_class or type(actor.net) is not MLP or not is_plain(actor.net, nn.Linear):
        return f"the fused update is of a {fused.actor_class.__name__} with its plain perceptron"
    if type(critics) is not Critics or not is_plain(critics.net, EnsembleLinear):
        return "the critics are no plain perceptrons (layer_norm, say), and the fused update is of such"
    if "forward" in {name for part in (actor, critics) for layer in part.modules() for name in vars(layer)}:
        return "a network's forward was replaced, which the fused update would leave out"
    for part in vars(agent).values():
        if isinstance(part, Optimizer) and (type(part) is not Optimizer or {"minimize", "step"} & vars(part).keys()):
            return "an optimizer is one of its own, and the fused update steps offpcc's"
        if isinstance(part, Temperature) and type(part) is not Temperature:
            return f"the temperature {type(part).__name__} may have another loss"
    weights = [weight for part in (actor, critics) for weight in part.parameters()]
    if any(weight._backward_hooks or not weight.requires_grad for weight in weights):
        return "a weight has a hook, or is to stay as it is"
    if any_other := [w for w in weights if w.device.type != "cpu" or w.dtype != torch.float32]:
        return f"weights are {any_other[0].dtype} on {any_other[0].device}, and the fused update is of float32 on a CPU"
    return ""
