"""The nouns every part shares: Batch, Step, Summaries, the protocols, and the registry of what gin can configure.

Time alignment, stated once. A row of a batch is a sub-trajectory ``o_1, a_1, r_1, o_2, ..., a_T, r_T, o_{T+1}``:
action ``a_t`` was taken after ``o_t`` and brought reward ``r_t`` and observation ``o_{t+1}``. What an agent knows
at ``t`` besides ``o_t`` is the previous action ``a_{t-1}`` and the previous reward ``r_{t-1}``, zeros at a start.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import gin
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from offpcc.errors import UserError as UserError

Stats = Mapping[str, Tensor]  # detached 0-d tensors by name; algorithms declare theirs as a TypedDict
State = Any  # an encoder's memory: None, a tensor, or nested tuples of tensors whose first axis is the batch
Memory = Any  # what `act` returns to be passed back at the next step; as opaque as State

MINIMAL_FRAME = 8  # pixels; a smaller 3-d observation is a small tensor, not an image


class Step(NamedTuple):
    """What the agent sees of N environments side by side; arrays or tensors."""

    observation: Any  # (N, *obs)
    previous_action: Any  # (N, A) in [-1, 1], the executed one; zeros at an episode's start
    previous_reward: Any  # (N, 1)
    is_first: Any  # (N,) these rows' memory starts anew


class Batch(NamedTuple):
    """B sub-trajectories of T steps; a single transition is a trajectory of length one."""

    observations: Tensor  # (B, T+1, *obs)
    actions: Tensor  # (B, T, A)
    rewards: Tensor  # (B, T, 1)
    terminations: Tensor  # (B, T, 1): 1 if the task ended at t+1; a time limit is 0
    real: Tensor  # (B, T+1, 1): 1 where the observation exists
    mask: Tensor  # (B, T, 1): 1 where the step counts in losses; 0 for padding and burn-in
    first_action: Tensor  # (B, A): the action before o_1, zeros at an episode's start
    first_reward: Tensor  # (B, 1)
    burn_in: int = 0  # leading steps that only warm a memory up

    def mean(self, x: Tensor) -> Tensor:
        """Mean of `x` (..., B, T, D) over counted steps and D, keeping the leading axes; the library's only mean."""
        counted = torch.where(self.mask > 0, x, 0.0).sum((-3, -2)).mean(-1)
        return counted / self.mask.sum()

    def has_step(self) -> Tensor:
        """(B, T, 1), true where step t exists: both o_t and o_{t+1} do."""
        return (self.real[:, :-1] > 0) & (self.real[:, 1:] > 0)

    def without_padding(self) -> Batch:
        """The same batch with zeros in place of whatever padding holds, NaN included.

        A mask on the loss alone would not do: the gradient of a masked NaN is 0 x NaN.
        """
        step, real = self.has_step(), self.real > 0
        real = real.reshape(*real.shape[:2], *(1,) * (self.observations.dim() - 2))
        return self._replace(
            observations=torch.where(real, self.observations, 0),
            actions=torch.where(step, self.actions, 0.0),
            rewards=torch.where(step, self.rewards, 0.0),
            terminations=torch.where(step, self.terminations, 0.0),
            first_action=torch.where(self.real[:, 0] > 0, self.first_action, 0.0),
            first_reward=torch.where(self.real[:, 0] > 0, self.first_reward, 0.0),
        )

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`."""
        return Batch(*(x.to(device) for x in self[:-1]), burn_in=self.burn_in)  # type: ignore[misc, arg-type]


class Summaries(NamedTuple):
    """What each network reads, computed once per update; H is the reading encoder's `dim`."""

    pi: Tensor  # (B, T, H): the actor's encoder at t
    next_pi: Tensor  # (B, T, H), no gradient: at t+1, of the network that picks a'
    q: Tensor  # (N or 1, B, T, H): the critics' encoders at t
    target_q: Tensor  # (N or 1, B, T+1, H), no gradient: the target critics' encoders at t and t+1


class Algorithm(Protocol):
    """What the loop needs of an algorithm; satisfied by structure."""

    memoryless: bool
    stat_names: tuple[str, ...]

    def act(self, step: Step, memory: Memory = None, *, deterministic: bool = False) -> tuple[np.ndarray, Memory]:
        """Actions (N, A) in [-1, 1] and the memory to pass at the next step."""
        ...

    def update_networks(self, batch: Batch) -> Stats:
        """One update; what it returns stays on the device until it is logged."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything a later `load_state_dict` needs to go on exactly."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        ...


class Buffer(Protocol):
    """What the loop needs of a buffer."""

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Store one transition."""
        ...

    def sample(self) -> Batch:
        """A batch drawn by the buffer's own generator."""
        ...

    def __len__(self) -> int:
        """What there is to draw from; 0 means that `sample` would fail."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Contents and generator."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        ...


# What gin can configure ---------------------------------------------------------------------------------------

REGISTRY: dict[str, type] = {}
C = TypeVar("C", bound=type)


def configurable(cls: C) -> C:
    """Register a class with gin, so that bindings of its parents reach it and its own win.

    A child never declares a parameter of its parent's again, nor passes a fixed value for one (class attributes
    such as ``default_num_critics`` are for that); it takes ``**kwargs`` and passes them on. Each instance
    remembers the arguments it was built with, for `specification`.
    """
    if "__init__" not in cls.__dict__:

        def passes_on(self: Any, *args: Any, **kwargs: Any) -> None:
            super(cls, self).__init__(*args, **kwargs)  # type: ignore[arg-type]

        passes_on.__name__ = "__init__"  # the attribute that gin puts its wrapper in place of
        cls.__init__ = passes_on  # type: ignore[misc]
    original = cls.__init__  # type: ignore[misc]
    signature = inspect.signature(original)

    @functools.wraps(original)
    def remembering(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        remembered = self.__dict__.setdefault("_arguments", {})
        for name, parameter in list(signature.parameters.items())[1:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                remembered.update(bound.arguments[name])
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                remembered[name] = bound.arguments[name]
        original(self, *args, **kwargs)

    remembering.__signature__ = signature  # type: ignore[attr-defined]  # gin reads defaults from it
    cls.__init__ = remembering  # type: ignore[misc]
    REGISTRY[cls.__name__] = cls
    return gin.configurable(cls)  # type: ignore[no-any-return]


def specification(value: Any) -> Any:
    """`value` as plain data from which `from_specification` builds it again without importing anything.

    Raises:
        UserError: an argument is neither plain data nor of a registered class.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, list | tuple):
        return [specification(item) for item in value]
    if isinstance(value, dict):
        return {str(key): specification(item) for key, item in value.items()}
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, spaces.Box):
        return {"box": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, functools.partial):
        return {"partial": specification(value.func), "arguments": specification(value.keywords)}
    if isinstance(value, type) and REGISTRY.get(value.__name__) is not None:
        return {"reference": value.__name__}
    if type(value).__name__ in REGISTRY and hasattr(value, "_arguments"):
        return {"class": type(value).__name__, "arguments": specification(value._arguments)}
    raise UserError(f"{value!r} cannot be written into an actor's file; decorate its class with offpcc.configurable")


def from_specification(spec: Any, **overrides: Any) -> Any:
    """Build what `specification` described; `overrides` replace arguments of the outermost class."""
    if isinstance(spec, list):
        return tuple(from_specification(item) for item in spec)
    if not isinstance(spec, dict):
        return spec
    if "box" in spec:
        dtype = np.dtype(spec["dtype"])
        low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        return spaces.Box(low, high, tuple(spec["box"]), dtype.type)
    if "reference" in spec:
        return _registered(spec["reference"])
    if "partial" in spec:
        arguments = {key: from_specification(item) for key, item in spec["arguments"].items()}
        return functools.partial(from_specification(spec["partial"]), **arguments)
    if "class" in spec:
        arguments = {key: from_specification(item) for key, item in spec["arguments"].items()}
        return _registered(spec["class"])(**{**arguments, **overrides})
    return {key: from_specification(item) for key, item in spec.items()}


def _registered(name: str) -> Callable[..., Any]:
    if name not in REGISTRY:
        raise UserError(
            f"the file was made with the class {name!r}, which is not known here: "
            f"import the module that defines it first (on the command line: --config with its import)"
        )
    return REGISTRY[name]


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether observations of this shape are images, channels first or last."""
    return len(shape) == 3 and sum(size >= MINIMAL_FRAME for size in shape) >= 2


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image's shape is (height, width, channels)."""
    return is_image(shape) and shape[-1] < min(shape[:2]) and shape[0] >= MINIMAL_FRAME


def channels_first_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which observations of a space are stored and seen by networks."""
    return (shape[2], shape[0], shape[1]) if channels_last(shape) else tuple(shape)


def channels_first(observation: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`observation` (..., *shape) with an image's channels first."""
    return np.moveaxis(observation, -1, -3) if channels_last(shape) else observation


class NumpyGenerator:
    """A numpy generator that can be saved; each owner of randomness has one."""

    def __init__(self, *seed: int) -> None:
        """Seeded by a sequence of integers, so that owners of one run's seed differ."""
        self.generator = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        """The bit generator's state."""
        return {"state": generator_state(self.generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        set_generator_state(self.generator, state["state"])


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """The state of a numpy generator as plain data (its integers exceed 64 bits, hence strings)."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, np.ndarray):
            return {"array": value.tolist(), "dtype": str(value.dtype)}
        return f"int:{value}" if isinstance(value, int) else value

    return plain(generator.bit_generator.state)  # type: ignore[no-any-return]


def set_generator_state(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Put a generator where `generator_state` found it."""

    def restored(value: Any) -> Any:
        if isinstance(value, dict) and "array" in value:
            return np.array(value["array"], dtype=value["dtype"])
        if isinstance(value, dict):
            return {key: restored(item) for key, item in value.items()}
        return int(value[4:]) if isinstance(value, str) and value.startswith("int:") else value

    generator.bit_generator.state = restored(state)
