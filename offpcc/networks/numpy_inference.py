"""Networks as NumPy functions of one step, which share the memory of their weights.

An agent that acts reads one observation at a time, and then most of what a tensor operation costs is its overhead;
NumPy's is several times less. A class offers a mirror of what it computes by a method `mirror`. An agent acts by
mirrors if all that it acts with has one, else by the networks themselves, as with a class of your own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from offpcc.networks.layers import MLP

Array = np.ndarray[Any, Any]
Mirror = Callable[..., Any]
ONE = np.ones(1, np.float32)  # a number of Python's would be made one at every step
MOST = np.array([87.0], np.float32)  # whose exponential is finite
MIRRORED = {"forward", "choose", "with_extras"}  # methods that a mirror stands for


def mirror_of(module: nn.Module) -> Mirror | None:
    """What gives in NumPy what `module` gives, for as long as its weights stay where they are; None if nothing does.

    A child that computes something else has not its parent's mirror, nor has a module with hooks, whose weights are
    computed from others, or which is not on the CPU.
    """
    is_hooked = module._forward_hooks or module._forward_pre_hooks
    if is_hooked or "forward" in vars(module) or is_parametrized(module):
        return None
    if any(held.device.type != "cpu" for held in itertools.chain(module.parameters(), module.buffers())):
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


def view(weight: Tensor) -> Array:
    """The memory of `weight`, as an array."""
    array: Array = weight.detach().numpy()
    return array


def sigmoid(x: Array) -> Array:
    """exp(x) / (exp(x) + 1), finite at any x.

    By tanh, what little passes a gate that is nearly shut would be rounded as numbers of the size of one are.
    """
    odds = np.minimum(x, MOST)
    np.exp(odds, odds)
    total = odds + ONE
    result: Array = np.divide(odds, total, total)
    return result


def within(low: float, high: float) -> Mirror:
    """What puts numbers into these bounds; several times as fast as `clip` on few of them."""
    lowest, highest = np.array([low], np.float32), np.array([high], np.float32)
    return lambda x: np.minimum(np.maximum(x, lowest), highest)


def mirror_of_linear(layer: nn.Linear) -> Mirror:
    """Of a layer that computes what `nn.Linear` does."""
    weight, bias = view(layer.weight).T, None if layer.bias is None else view(layer.bias)

    def apply(x: Array) -> Array:
        y: Array = np.dot(x, weight)
        if bias is not None:
            y += bias
        return y

    return apply


def _relu(layer: nn.ReLU) -> Mirror:
    zero = np.zeros(1, np.float32)  # a number of Python's would be made one at every step
    return lambda x: np.maximum(x, zero)


def _layer_norm(layer: nn.LayerNorm) -> Mirror | None:
    if len(layer.normalized_shape) > 1 or layer.weight is None or layer.bias is None:
        return None
    weight, bias = view(layer.weight), view(layer.bias)
    mean = np.full((len(weight), 1), 1.0 / len(weight), weight.dtype)  # by a product, which costs least
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
    found = [mirror_of(layer) for layer in layers]
    mirrors = [mirror for mirror in found if mirror is not None]
    if len(mirrors) < len(found):
        return None

    def apply(x: Array) -> Array:
        for mirror in mirrors:
            x = mirror(x)
        return x

    return apply


LAYERS: dict[type[nn.Module], Callable[[Any], Mirror | None]] = {
    nn.Linear: mirror_of_linear,
    nn.LayerNorm: _layer_norm,
    nn.ReLU: _relu,
    nn.Tanh: lambda layer: np.tanh,
    nn.Sequential: _sequential,
    MLP: _sequential,
}
