"""`Agent`: an actor for one environment, and actor files.

agent = Agent.load("actor.pt")  # returns actions in the units of its training environment
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.acting import ACTOR_FORMAT
from offpcc.config.registry import from_specification
from offpcc.core import Memory, Step
from offpcc.envs.wrappers import ActionScale
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.tensor_files import read_tensors, write_tensors

BEST = "actor_best.pt"  # in a run's folder


class Agent:
    """An actor for one environment, which keeps its hidden state and previous action between calls.

    Args:
        algorithm: the algorithm that acts.
        action_space: a Box with bounds; default: the action space of the training environment.

    Raises:
        UserError: the action bounds are unknown, or the space has another number of dimensions than the agent's
            actions.
    """

    def __init__(self, algorithm: ActorCritic, action_space: spaces.Box | None = None) -> None:
        self.algorithm = algorithm
        self.action_space = algorithm.action_space if action_space is None else action_space
        if not isinstance(self.action_space, spaces.Box) or not self.action_space.is_bounded():
            known = (
                "the actor does not tell them, as an older offpcc wrote it" if action_space is None else action_space
            )
            raise UserError(
                f"the agent needs the bounds of its environment's actions ({known}); give a Box that has them, such as "
                f'Agent.load("actor.pt", action_space=env.action_space)'
            )
        if (num_actions := int(np.prod(self.action_space.shape))) != algorithm.action_dim:
            raise UserError(
                f"action_space has {num_actions} numbers, but the agent's actions have {algorithm.action_dim}; give "
                f"the action_space of the agent's environment"
            )
        self._scale = ActionScale.of(self.action_space.low, self.action_space.high)
        read = (module for part in algorithm.actor_parts().values() for module in part.modules())
        self._reads_rewards = any(getattr(module, "use_previous_reward", False) for module in read)
        self.reset()

    def reset(self) -> None:
        """Reset the hidden state; call it when an episode begins."""
        self._memory: Memory = None
        self._is_first = True
        self._previous_action = np.zeros((1, self.algorithm.action_dim), np.float32)  # in [-1, 1], as in training

    def act(
        self, observation: np.ndarray, previous_reward: float | None = None, *, deterministic: bool = True
    ) -> np.ndarray:
        """Return the next action of the episode that began with `reset`.

        Args:
            observation: (*obs), as the environment returns it.
            previous_reward: reward of the last action. An agent trained with ``use_previous_reward`` needs it from an
                episode's second step on; others ignore it.
            deterministic: True for the policy's mode, False for a sample.

        Returns:
            The action in the units, shape and dtype of `action_space`, for `env.step` of `gymnasium.make` and of
            `offpcc.make`.

        Raises:
            UserError: the previous reward is missing, or the action is NaN or infinite.
            ValueError: the observation has another shape than the agent's observations.
        """
        if previous_reward is None and self._reads_rewards and not self._is_first:
            raise UserError(
                "act got no previous_reward, which is an input of this agent (use_previous_reward); give what the last "
                "action brought, act(observation, reward), or call reset() where an episode begins"
            )
        reward = np.full((1, 1), 0.0 if previous_reward is None else previous_reward, np.float32)
        step = Step(np.asarray(observation)[None], self._previous_action, reward, np.array([self._is_first]))
        action, self._memory = self.algorithm.act(step, self._memory, deterministic=deterministic)
        self._previous_action, self._is_first = action, False
        return self._scale.stretch(action[0].reshape(self.action_space.shape))

    def save(self, file: str | Path) -> None:
        """Write the actor to one self-contained file."""
        save_actor(self.algorithm, Path(file))

    @classmethod
    def load(
        cls, file: str | Path, *, device: str | torch.device = "cpu", action_space: spaces.Box | None = None
    ) -> Agent:
        """Read an actor file. This executes and imports nothing that the file names.

        Args:
            file: an actor file, such as `actor_best.pt` in a run's folder.
            device: device of the networks.
            action_space: see `Agent`; default: the one in the file, from training.

        Raises:
            UserError: the file cannot be read, names an unknown class, or has no action bounds, as files of an older
                offpcc.
        """
        return cls(load_actor(Path(file), device), action_space)


def save_actor(algorithm: ActorCritic, file: Path) -> None:
    """Write the parts that `act` uses to an actor file."""
    write_tensors(file, algorithm.actor_file())


def load_actor(file: Path, device: str | torch.device = "cpu") -> ActorCritic:
    """Read an actor file and return an algorithm for acting, not for further training.

    Raises:
        UserError: the file cannot be read, or names an unknown class.
    """
    if (inside := file / BEST).is_file():
        raise UserError(f"{file} is a run's folder; give the actor in it, {inside}")
    content = read_tensors(file, "actor", ACTOR_FORMAT)
    try:
        # Whether observations are normalised may have been a default, which depends on the data and on the version.
        is_normalized, name = "normalization" in content["weights"], "normalize_observations"
        arguments = content["algorithm"]["arguments"]
        differing = {name: is_normalized} if name in arguments and arguments[name] is not is_normalized else {}
        algorithm: ActorCritic = from_specification(content["algorithm"], device=device, **differing)
        if is_normalized:  # a class without this argument may normalise recorded data alone
            algorithm.expect_recorded_data()
        for name, part in algorithm.actor_parts().items():
            part.load_state_dict(content["weights"][name])
    except UserError:
        raise
    except Exception as error:  # constructors may raise anything for the file's arguments
        raise UserError(f"{file} describes no actor that can be built here ({first_line(error)})") from error
    return algorithm
