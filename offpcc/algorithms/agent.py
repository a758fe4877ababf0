"""`Agent`: an actor for one or several environments; and actor files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.acting import ACTOR_FORMAT
from offpcc.config.bindings import explains_calls, parameters
from offpcc.config.registry import from_specification
from offpcc.config.synonyms import no_attribute
from offpcc.config.validation import NumEnvs, format_value
from offpcc.core import Memory, Step
from offpcc.envs.wrappers import scale_of
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import writing_to
from offpcc.utils.paths import as_path
from offpcc.utils.rng import GLOBAL_LOCK
from offpcc.utils.spaces import action_size, entries_of
from offpcc.utils.tensor_files import read_tensors, write_tensors
from offpcc.utils.words import counted

OF_TUPLES = (
    "; a Tuple is read as one vector, as environments of offpcc.make show it: gymnasium.spaces.flatten(space, it)"
)
OF_CHOICES = (
    "if it is a choice (Discrete, MultiDiscrete or MultiBinary), give gymnasium.spaces.flatten(space, it), as "
    "environments of offpcc.make show it; else give one observation"
)
BEST = "actor_best.pt"  # in a run's folder
CHANNELS_MOVED = ((2, 0, 1), (1, 2, 0))  # to the front of an image, to its end


class Agent:
    """An actor, which keeps its hidden state and previous action between calls.

    Args:
        algorithm: the algorithm that acts.
        action_space: a Box with bounds, or Discrete; default: the action space of the training environment.

    Raises:
        UserError: the action bounds are unknown, or the space is not like that of the agent's actions.
    """

    if not TYPE_CHECKING:  # type checkers find names that do not exist by themselves

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("agent", name, "the agent")

    def __init__(self, algorithm: ActorCritic, action_space: spaces.Box | spaces.Discrete | None = None) -> None:
        if not hasattr(algorithm, "act") or not hasattr(algorithm, "action_space"):
            raise UserError(
                f"Agent got {format_value(algorithm)} for an algorithm; give learner.algorithm, or use what train or "
                f"Agent.load(FILE) returns"
            )
        self.algorithm = algorithm
        self.action_space = algorithm.action_space if action_space is None else action_space
        is_discrete = isinstance(self.action_space, spaces.Discrete)
        if not is_discrete and not (isinstance(self.action_space, spaces.Box) and self.action_space.is_bounded()):
            raise UserError(
                f"the agent needs the bounds of its environment's actions ({self.action_space}); give a Box with these "
                f'bounds, such as Agent.load("actor.pt", action_space=env.action_space)'
            )
        size, whose = action_size(self.action_space), algorithm.action_space
        if size != algorithm.action_dim or is_discrete is not isinstance(whose, spaces.Discrete):
            raise UserError(
                f"action_space is {self.action_space}, but the agent's actions are {whose}; give the action_space of "
                f"the agent's environment"
            )
        self._scale = scale_of(self.action_space)
        read = (module for part in algorithm.actor_parts().values() for module in part.modules())
        seen = getattr(algorithm, "observation_space", None)
        self._sees_image = isinstance(seen, spaces.Box) and seen.dtype == np.uint8 and len(seen.shape) == 3
        self._reads_rewards = any(getattr(module, "use_previous_reward", False) for module in read)
        self.reset()

    def __repr__(self) -> str:
        algorithm = self.algorithm
        packed = getattr(algorithm, "packed", None)
        seen = algorithm.space_shape if packed is None else f"Dict({', '.join(packed.entries)})"
        return (
            f"<agent: {type(algorithm).__name__} on {algorithm.device}, observations {seen}, actions "
            f"{self.action_space.shape or self.action_space}>"
        )

    @explains_calls
    def reset(self, num_envs: NumEnvs | None = None) -> None:
        """Reset the hidden state; call it when an episode begins.

        Args:
            num_envs: number N of parallel environments; `act` then takes and returns batches. None for one environment,
                without a batch axis.

        Raises:
            UserError: `num_envs` is not a whole number above 0.
        """
        self._num_envs, rows = num_envs, num_envs or 1
        self._memory: Memory = None
        self._is_first = np.ones(rows, np.bool_)
        self._previous_action = np.zeros((rows, self.algorithm.action_dim), np.float32)  # in [-1, 1], as in training

    @explains_calls
    def act(
        self,
        observation: np.ndarray | Mapping[str, Any],
        previous_reward: ArrayLike | None = None,
        *,
        previous_action: ArrayLike | None = None,
        is_first: ArrayLike | None = None,
        deterministic: bool = True,
    ) -> np.ndarray:
        """Return the next action of an episode, or of N parallel episodes.

        Args:
            observation: (*obs), as the environment returns it; (N, *obs) after ``reset(num_envs=N)``. If its space is
                a Dict, a mapping from the keys to such arrays, with uint8 images. If it is one image, other whole
                numbers from 0 to 255 and floats from 0 to 1 will do.
            previous_reward: reward of the last action, a number or (N,). An agent trained with ``use_previous_reward``
                needs it after the first step of an episode; others ignore it.
            previous_action: the last action as it was executed, in the units and shape of `action_space`, if it is not
                the one that `act` returned, for example because a controller limits it. It is an input of an agent
                trained with ``use_previous_action``. Ignored at the first step of an episode.
            is_first: (N,), True where the observation begins an episode; the hidden state of this row is reset. With a
                vector environment of `AutoresetMode.SAME_STEP`, pass ``terminated | truncated`` of the last step. With
                Gymnasium's default, NEXT_STEP, pass them one step later, when the first observation has come.
            deterministic: True for the policy's mode, False for a sample.

        Returns:
            The action in the units, shape and dtype of `action_space`, for `env.step` of `gymnasium.make` and of
            `offpcc.make`, a whole number if it is discrete; N of them after ``reset(num_envs=N)``.

        Raises:
            UserError: an argument does not exist, `previous_reward` is missing, or a number of the observation or of
                the action is NaN or infinite.
            ValueError: the observation, `previous_action` or `is_first` has another shape than it should, a number of
                `previous_action` or `previous_reward` is not finite, or the numbers of an image have another range.
        """
        if isinstance(observation, tuple) and observation and isinstance(observation[-1], Mapping):
            call = "observation, info = env.reset()"
            if len(observation) > 2:
                call = "observation, reward, terminated, truncated, info = env.step(action)"
            raise ValueError(
                f"act got the whole return value of the environment, but needs only the observation: {call}"
            )
        rows, packed = len(self._is_first), getattr(self.algorithm, "packed", None)
        if isinstance(observation, Mapping):
            if packed is None:
                raise ValueError(
                    f"act got a Dict observation, but this agent needs arrays of shape {self.algorithm.space_shape}"
                )
            by_key: Mapping[str, Any] = observation
            try:
                observation = packed.pack(by_key, () if self._num_envs is None else (self._num_envs,))
            except ValueError as error:
                remedy = "; correct the environment, or the argument of `act`" if " holds " in str(error) else ""
                with suppress(ValueError, IndexError, StopIteration):
                    if self._num_envs is not None:
                        packed.pack(by_key, ())
                        remedy = f"; give those of {self._num_envs} environments, or call reset() for one"
                    else:
                        num = np.shape(next(value for _, value in entries_of(by_key)))[0]
                        packed.pack(by_key, (max(num, 1),))  # of 0 rows, other faults are told
                        remedy = f"; for {counted(num, 'environment')}, call reset(num_envs={num}) first"
                raise ValueError(f"act got a wrong observation: {error}{remedy}") from None
        is_tuple = isinstance(observation, tuple)
        try:
            observation = np.asarray(observation)
        except ValueError as error:
            raise ValueError(f"act got {type(observation).__name__} of parts that are no array{OF_TUPLES}") from error
        self._check_shape(observation, OF_TUPLES if is_tuple else "")
        if self._sees_image and observation.dtype != np.uint8:
            observation = _as_pixels(observation)
        if is_first is not None:
            begins = np.asarray(is_first, np.bool_).reshape(-1)
            if len(begins) != rows:
                raise ValueError(f"act got {len(begins)} flags is_first, but there are {rows} environments")
            self._is_first = self._is_first | begins
            self._previous_action = np.where(begins[:, None], np.float32(0.0), self._previous_action)
        if previous_reward is None and self._reads_rewards and not self._is_first.all():
            raise UserError(
                "act got no previous_reward, which is an input of this agent (use_previous_reward); give the reward of "
                "the last action, act(observation, reward), or call reset() at the start of an episode"
            )
        if isinstance(previous_reward, bool):
            raise ValueError(f"act got {previous_reward} as previous_reward; write deterministic={previous_reward}")
        if previous_action is not None:
            self._previous_action = np.where(self._is_first[:, None], 0.0, self._as_units(previous_action))
        reward = np.zeros((rows, 1), np.float32)
        if previous_reward is not None:
            given = np.asarray(previous_reward, np.float32).reshape(-1)
            if len(given) != rows:
                raise ValueError(f"act got {len(given)} previous rewards, but there are {rows} environments")
            reward[:, 0] = np.where(self._is_first, 0.0, given)  # no reward before an episode's first action
            if not np.isfinite(reward).all():
                raise ValueError(f"act got the previous_reward {previous_reward!r}; give finite numbers")
        batch = observation[None] if self._num_envs is None else observation
        step = Step(batch, self._previous_action, reward, self._is_first)
        action, self._memory = self.algorithm.act(step, self._memory, deterministic=deterministic)
        self._previous_action, self._is_first = action, np.zeros(rows, np.bool_)
        shape = self.action_space.shape or (self.algorithm.action_dim,)
        taken: Any = self._scale.stretch(action.reshape(rows, *shape))
        first: np.ndarray = taken[0] if self._num_envs is None else taken
        return first

    def _as_units(self, executed: ArrayLike) -> np.ndarray:
        """Return actions in the environment's units as the agent's, (rows, A) in float32."""
        given, shape = np.asarray(executed), self.action_space.shape or ()
        rows = () if self._num_envs is None else (self._num_envs,)
        if given.shape != (*rows, *shape):
            raise ValueError(f"act got a previous_action of shape {given.shape}, but needs {(*rows, *shape)}")
        if isinstance(space := self.action_space, spaces.Discrete):
            given = np.where(self._is_first.reshape(given.shape), space.start, given)  # there was none before
            first, last = int(space.start), int(space.start + space.n) - 1
            if (given != np.round(given)).any() or given.min() < first or given.max() > last:
                raise ValueError(f"act got the previous_action {executed!r}, but actions are from {first} to {last}")
            given = given.astype(np.int64)
        is_finite = np.isfinite(given.astype(np.float64)).reshape(len(self._is_first), -1)
        if not (is_finite | self._is_first[:, None]).all():
            raise ValueError(
                f"act got the previous_action {executed!r}; give finite numbers, or leave the argument out, and the "
                f"agent takes its own last action"
            )
        units: np.ndarray = self._scale.shrink(given).reshape(len(self._is_first), -1).astype(np.float32)
        return units

    def _check_shape(self, observation: np.ndarray, hint: str) -> None:
        one = getattr(self.algorithm, "space_shape", None)
        if one is None:  # not an `ActorCritic`: the algorithm checks its input
            return
        wanted = one if self._num_envs is None else (self._num_envs, *one)
        if observation.shape == wanted:
            return
        if (packed := getattr(self.algorithm, "packed", None)) is not None:
            entries = ", ".join(f"{key!r} of shape {space.shape}" for key, space in packed.entries.items())
            raise ValueError(f"act got an array, but this agent needs a Dict: {entries}")
        remedy = "give one observation"
        if len(one) == 1 and observation.dtype.kind in "biu":
            remedy = OF_CHOICES
        elif observation.ndim == len(one) == 3:
            orders = [order for order in CHANNELS_MOVED if observation.transpose(order).shape == one]
            if orders:
                remedy = f"its axes are in another order; give observation.transpose{orders[0]}"
        if observation.shape[1:] == one and len(observation):
            remedy = f"for {counted(len(observation), 'environment')}, call reset(num_envs={len(observation)}) first"
        elif self._num_envs is not None:
            remedy = f"give those of {self._num_envs} environments" + (
                ", or call reset() for one" if observation.shape == one else ""
            )
        raise ValueError(f"act got observations of shape {observation.shape}, but needs {wanted}; {remedy}{hint}")

    def save(self, file: str | Path) -> None:
        """Write the actor to one self-contained file.

        Raises:
            UserError: the file cannot be written.
        """
        path = as_path(file, "file", is_file=True)
        with writing_to(path):
            save_actor(self.algorithm, path)

    @classmethod
    def load(
        cls,
        file: str | Path,
        *,
        device: str | torch.device = "cpu",
        action_space: spaces.Box | spaces.Discrete | None = None,
    ) -> Agent:
        """Read an actor file. This does not run or import any code that the file names.

        Args:
            file: an actor file, such as `actor_best.pt` in a run's folder.
            device: device of the networks; "auto" for CUDA if it is available, else the CPU.
            action_space: see `Agent`; default: the one in the file, from training.

        Raises:
            UserError: the file cannot be read, or names an unknown class.
        """
        return cls(load_actor(as_path(file, "file"), check_device(device, "device")), action_space)


def _as_pixels(image: np.ndarray) -> np.ndarray:
    """Return an image of whole numbers as uint8; one of floats from 0 to 1 as it is.

    Raises:
        ValueError: other numbers, which networks would read in another scale than in training.
    """
    seen = f"act got an image of {image.dtype}"
    if image.dtype.kind in "iuf":
        low, high = float(image.min()), float(image.max())
        if 0.0 <= low <= high <= 255.0 and image.dtype.kind in "iu":
            return image.astype(np.uint8)
        if 0.0 <= low <= high <= 1.0:
            return image
        seen += f" from {low:g} to {high:g}"
    raise ValueError(f"{seen}; give uint8 from 0 to 255, as the environment of its training does")


def check_device(name: str | torch.device, option: str) -> torch.device:
    """Return the named device; "auto" is CUDA if available, else the CPU. `option` gave the name, for messages."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("offpcc runs on cpu and cuda")
        if device.type == "cpu" and device.index:
            raise RuntimeError("there is one cpu device for all cores")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        fault = str(error).splitlines()[0]
        if fault.startswith("Expected one of"):  # the whole list of PyTorch's devices
            fault = "there is no such device"
        raise UserError(
            f"{option} {name} cannot be used here ({fault}); choose cpu"
            + (f" or cuda:0 to cuda:{torch.cuda.device_count() - 1}" if torch.cuda.is_available() else "")
        ) from error
    return device


def save_actor(algorithm: ActorCritic, file: Path) -> None:
    """Write the parts that `act` uses to an actor file."""
    write_tensors(file, algorithm.actor_file())


def load_actor(file: Path, device: str | torch.device = "cpu") -> ActorCritic:
    """Read an actor file and return an algorithm for acting, not for further training."""
    if (inside := file / BEST).is_file():
        raise UserError(f"{file} is a run's folder; give the actor's file in it, {inside}")
    return build_actor(read_tensors(file, "actor", ACTOR_FORMAT), str(file), device)


def build_actor(
    content: Mapping[str, Any], source: str, device: str | torch.device = "cpu", seed: int | None = None
) -> ActorCritic:
    """Return an algorithm for acting, from the content of an actor file.

    Args:
        content: see `ActorCritic.actor_file`.
        source: where it is from, for messages.
        device: device of the networks.
        seed: seed of the exploration noise; default: that of the training.
    """
    try:
        # The default of normalize_observations depends on the data and on the version; the weights show the value.
        is_normalized, name = "normalization" in content["weights"], "normalize_observations"
        arguments = content["algorithm"]["arguments"]
        is_told = arguments.get(name, is_normalized) in (is_normalized, "scale")
        differing: dict[str, Any] = {} if is_told else {name: is_normalized}
        differing |= {} if seed is None else {"seed": seed}
        try:
            with GLOBAL_LOCK:  # gin notes what is built, which another thread may be reading
                known = parameters(from_specification({"reference": content["algorithm"]["class"]}))
                # An actor file lacks what only updates use, and gin's bindings of this moment must not fill it in.
                differing |= {only: None for only in ("critic_inputs", "fused") if only in known}
                algorithm: ActorCritic = from_specification(content["algorithm"], device=device, **differing)
        except UserError as error:
            raise UserError(f"{source}: {error.message}") from error
        if is_normalized:  # by default, a class may normalise only recorded data
            algorithm.expect_recorded_data()
        for name, part in algorithm.actor_parts().items():
            part.load_state_dict(content["weights"][name])
    except UserError:
        raise
    except Exception as error:  # constructors may raise anything for the file's arguments
        of_file = (
            "; put the file back, or name the argument that has it in learning_only and train again (`offpcc docs "
            "extending`)"
        )
        remedy = of_file if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"the actor in {source} cannot be built ({first_line(error)}){remedy}") from error
    return algorithm
