"""Checks whether an agent can have a fused update, and whether the agent has changed since the last check."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from offpcc.algorithms.components import Temperature
from offpcc.algorithms.optim import Optimizer
from offpcc.networks import Critics
from offpcc.networks.layers import MLP, EnsembleLinear, is_plain
from offpcc.networks.sequences import is_empty
from offpcc.utils.edited import edited_module, warn_of_edit
from offpcc.utils.errors import UserError
from offpcc.utils.torch_private import CONTENTS, HOOKS

if TYPE_CHECKING:
    from offpcc.algorithms.base import ActorCritic

NETWORKS = (Critics, EnsembleLinear, MLP, Temperature)  # of fused updates, beside the actor


def fingerprint_of(agent: Any) -> Callable[[], tuple[object, ...]]:
    """Return a function that describes the parts of `agent` that a user may change. An equal result means no change.

    Each update calls it. After an update, these parts are no longer in the CPU cache, so the cost grows with the number
    of objects that it reads. Therefore it reads only sizes of dictionaries, ids and types of layers, weights and
    optimizers, and addresses and flags of weights. The lists of these objects are built once.
    """
    own, replaced, needed = vars(agent), agent.fused_update.replaced_methods, agent.fused_update.needed
    parts = {name: part for name, part in own.items() if isinstance(part, nn.Module | Optimizer)}
    layers = [layer for part in parts.values() if isinstance(part, nn.Module) for layer in part.modules()]
    weights = [weight for part in agent.networks() for weight in part.parameters()]
    in_memory = [*weights, *(agent._targets.targets if agent.has_critics else [])]
    typed = [*layers, *(part for part in parts.values() if isinstance(part, Optimizer))]
    contents = [getattr(layer, name) for layer in layers for name in CONTENTS]
    sized = [vars(part) for part in typed] + [getattr(layer, kind) for layer in layers for kind in HOOKS]
    # `look` keeps these alive, so that no new object gets one of their ids.
    kept = [*parts.values(), *chain.from_iterable(map(dict.values, contents))]

    def look() -> tuple[object, ...]:
        return (
            len(kept),
            [*map(id, map(own.get, parts))],
            own.keys().isdisjoint(replaced),
            [*map(own.get, needed)],
            [*map(type, typed)],
            [*map(len, sized)],
            [*map(id, chain.from_iterable(map(dict.values, contents)))],
            [*map(Tensor.data_ptr, in_memory)],
            [(weight.requires_grad, bool(weight._backward_hooks)) for weight in weights],
        )

    return look


def is_fusable(agent: ActorCritic, is_wanted: bool) -> bool:
    """Check whether an agent can have a fused update."""
    reason = why_not_fusable(agent)
    if reason and is_wanted:
        raise UserError(f"{type(agent).__name__}.fused is True, but {reason}; remove this setting")
    if reason and (edited := edited_module(classes_of(type(agent), agent.fused_update))):
        warn_of_edit(edited, "the plain update is used, which is slower than the fused one")
    return not reason


def classes_of(algorithm: type[ActorCritic], fused: Any) -> list[type]:
    """Return the classes whose results a fused update computes with its own code: the algorithm's and its networks'."""
    return [cls for one in (algorithm, fused.actor_class, *NETWORKS) for cls in one.__mro__]


def why_not_fusable(agent: ActorCritic) -> str:
    """Return why an agent cannot have a fused update, or "" if it can."""
    cls, fused = type(agent), agent.fused_update
    changed = [name for name, method in agent.fused_methods.items() if getattr(cls, name, None) is not method]
    if own := [*changed, *(name for name in fused.replaced_methods if name in vars(agent))]:
        return f"{cls.__name__} has its own {own[0]}, which the fused update would not call"
    if edited := edited_module(classes_of(cls, fused)):
        return f"the source of {edited} has changed, and the fused update computes what it was before"
    for name, value in fused.needed.items():
        if (given := getattr(agent, name)) != value:
            return f"{name} is {given!r}, and the fused update needs {value!r}"
    for encoder in (agent.shared_encoder, agent.actor_encoder):
        if not (is_empty(encoder) and encoder.memoryless):
            return f"the encoder {type(encoder).__name__} has weights or a memory"
    if agent.num_states:
        return "the critics see a state"
    if agent.execution.precision != "float32":
        return f"precision is {agent.execution.precision!r}, and the fused update needs float32"
    actor = agent.actor
    if type(actor) is not fused.actor_class or type(actor.net) is not MLP or not is_plain(actor.net, nn.Linear):
        return f"the actor is not a {fused.actor_class.__name__} with a plain MLP"
    if agent.has_critics and (type(agent.critics) is not Critics or not is_plain(agent.critics.net, EnsembleLinear)):
        return "the critics are not plain MLPs (layer_norm, for example)"
    for name in fused.others:
        if type(net := getattr(agent, name)) is not MLP or not is_plain(net, nn.Linear):
            return f"{name} is not a plain MLP"
    for part in vars(agent).values():
        layers = part.modules() if isinstance(part, nn.Module) else ()
        if any("forward" in vars(layer) or any(getattr(layer, kind) for kind in HOOKS) for layer in layers):
            return "a network has a hook or another forward, which the fused update would not call"
        if isinstance(part, Optimizer) and (type(part) is not Optimizer or {"minimize", "step"} & vars(part).keys()):
            return "an optimizer is not offpcc's `Optimizer`"
        if isinstance(part, Temperature) and type(part) is not Temperature:
            return f"the temperature {type(part).__name__} may have another loss"
    weights = [weight for part in agent.networks() for weight in part.parameters()]
    trained = {"actor_optimizer": actor} | ({"critic_optimizer": agent.critics} if agent.has_critics else {})
    trained |= {f"{name}_optimizer": getattr(agent, name) for name in fused.others}
    stepped = {name: vars(agent)[name].parameters for name in trained if name in vars(agent)}  # some are not built yet
    if any([*map(id, stepped[name])] != [*map(id, trained[name].parameters())] for name in stepped):
        return "a network has weights that its optimizer does not train"
    if any(weight._backward_hooks or not weight.requires_grad for weight in weights):
        return "a weight has a hook, or does not require a gradient"
    if others := [w for w in weights if w.device.type != "cpu" or w.dtype != torch.float32]:
        return f"weights are {others[0].dtype} on {others[0].device}, and the fused update needs float32 on a CPU"
    return ""
