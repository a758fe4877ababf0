"""Mirrors: NumPy functions that compute one step of a network.

A mirror shares the memory of the network's weights. In `act`, an agent reads one observation at a time. Then most of
the cost of a tensor operation is overhead, which is several times smaller in NumPy. A class provides its mirror with a
method `mirror`. An agent uses mirrors if all its acting parts have one. Otherwise it uses the PyTorch modules, for
example with a user's class that has no mirror.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from offpcc.networks.layers import MLP, Dropout, ResidualBlock
from offpcc.utils.edited import edited_module, warn_of_edit

Array = np.ndarray[Any, Any]
Mirror = Callable[..., Any]
ZERO, ONE = np.zeros(1, np.float32), np.ones(1, np.float32)  # NumPy would convert Python numbers at every step
MOST = np.array([87.0], np.float32)  # exp(87) is finite in float32
MIRRORED = {"forward", "quantiles", "choose", "with_extras"}  # a mirror replaces these methods


def mirror_of(module: nn.Module) -> Mirror | None:
    """Return the mirror of `module`, or None if it has none.

    The mirror is valid while the weights stay at the same memory address. A subclass that overrides a method in
    `MIRRORED` must have its own `mirror`; it does not inherit the one of its parent. A module with forward hooks or
    parametrized weights has no mirror. The same holds if an instance attribute replaces `forward`, if somebody edited
    the file of its class, or if a parameter or a buffer is not on the CPU.
    """
    is_hooked = module._forward_hooks or module._forward_pre_hooks
    if is_hooked or "forward" in vars(module) or is_parametrized(module):
        return None
    if any(held.device.type != "cpu" for held in itertools.chain(module.parameters(), module.buffers())):
        return None
    if edited := edited_module(type(module).__mro__):
        warn_of_edit(edited, "acting uses PyTorch, which is slower than NumPy")
        return None
    if type(module) in LAYERS:
        return LAYERS[type(module)](module)
    for cls in type(module).__mro__:
        if "mirror" in cls.__dict__:
            found: Mirror | None = module.mirror()  # type: ignore[operator]
            return found
        if MIRRORED & cls.__dict__.keys():
            return None
    return None


def mirrors_of(*modules: nn.Module) -> list[Mirror] | None:
    """Return the mirrors of all `modules`, or None if one has none."""
    found = [mirror_of(module) for module in modules]
    mirrors = [mirror for mirror in found if mirror is not None]
    return mirrors if len(mirrors) == len(found) else None


def view_as_numpy(weight: Tensor) -> Array:
    """Return an array that shares the memory of `weight`."""
    array: Array = weight.detach().numpy()
    return array


def sigmoid(x: Array) -> Array:
    """Return exp(x) / (exp(x) + 1), finite at any x.

    A formula with tanh would round to the precision of numbers near 1. The small values of a nearly closed gate would
    be wrong.
    """
    odds = np.minimum(x, MOST)
    np.exp(odds, odds)
    total = odds + ONE
    result: Array = np.divide(odds, total, total)
    return result


def within(low: float, high: float) -> Mirror:
    """Return a function that clips an array to these bounds. On small arrays it is several times faster than `clip`."""
    lowest, highest = np.array([low], np.float32), np.array([high], np.float32)
    return lambda x: np.minimum(np.maximum(x, lowest), highest)


def mirror_of_linear(layer: nn.Linear) -> Mirror:
    """Return the mirror of a layer that computes the same as `nn.Linear`."""
    weight, bias = view_as_numpy(layer.weight).T, None if layer.bias is None else view_as_numpy(layer.bias)

    def apply(x: Array) -> Array:
        y: Array = np.dot(x, weight)
        if bias is not None:
            y += bias
        return y

    return apply


def _layer_norm(layer: nn.LayerNorm) -> Mirror | None:
    if len(layer.normalized_shape) > 1 or layer.weight is None or layer.bias is None:
        return None
    weight, bias = view_as_numpy(layer.weight), view_as_numpy(layer.bias)
    mean = np.full((len(weight), 1), 1.0 / len(weight), weight.dtype)  # a product with this is the fastest mean
    eps = np.full((1, 1), layer.eps, weight.dtype)

    def apply(x: Array) -> Array:
        x = x - x.dot(mean)
        variance = (x * x).dot(mean)
        variance += eps
        x /= np.sqrt(variance, variance)
        x *= weight
        x += bias
        return x

    return apply


def _sequential(layers: nn.Sequential) -> Mirror | None:
    if (mirrors := mirrors_of(*layers)) is None:
        return None

    def apply(x: Array) -> Array:
        for mirror in mirrors:
            x = mirror(x)
        return x

    return apply


def _residual(block: ResidualBlock) -> Mirror | None:
    inner = _sequential(block)
    return None if inner is None else lambda x: x + inner(x)


LAYERS: dict[type[nn.Module], Callable[[Any], Mirror | None]] = {
    nn.Linear: mirror_of_linear,
    nn.LayerNorm: _layer_norm,
    nn.ReLU: lambda layer: lambda x: np.maximum(x, ZERO),
    nn.Tanh: lambda layer: np.tanh,
    Dropout: lambda layer: lambda x: x,  # acting is in eval mode
    nn.Sequential: _sequential,
    MLP: _sequential,
    ResidualBlock: _residual,
}
