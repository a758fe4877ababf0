"""`Agent`: an actor for one environment, and actor files.

agent = Agent.load("actor.pt")  # acts in the units of the environment that it was trained for
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
    """An actor that keeps its memory, previous action and time between calls, for one environment.

    Args:
        algorithm: acts.
        action_space: of the environment, a Box with bounds, if it is another one than the agent was trained for.

    Raises:
        UserError: the bounds of actions are not known, or the space has another number of actions than the agent.
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
        """Forget: a new episode begins."""
        self._memory: Memory = None
        self._is_first = True
        self._previous_action = np.zeros((1, self.algorithm.action_dim), np.float32)  # in [-1, 1], as in training

    def act(
        self, observation: np.ndarray, previous_reward: float | None = None, *, deterministic: bool = True
    ) -> np.ndarray:
        """The next action of the episode that began with `reset`.

        Args:
            observation: (*obs), as the environment gives it.
            previous_reward: what the last action brought. An agent that was trained with ``use_previous_reward`` has
                to be given it from an episode's second step on; others do not read it.
            deterministic: the policy's mode, or a sample.

        Returns:
            The action in the units, shape and dtype of `action_space`, as `env.step` of `gymnasium.make` and of
            `offpcc.make` takes it.

        Raises:
            UserError: the previous reward is missing, or the action would be NaN or infinite.
            ValueError: the observation is of another shape than the agent's.
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
        """Write the actor to one file that needs nothing but itself."""
        save_actor(self.algorithm, Path(file))

    @classmethod
    def load(
        cls, file: str | Path, *, device: str | torch.device = "cpu", action_space: spaces.Box | None = None
    ) -> Agent:
        """Read what `save` wrote; executes and imports nothing that the file names.

        Args:
            file: such as `actor_best.pt` of a run's folder.
            device: where it acts.
            action_space: see `Agent`; by default the one that the actor was trained for, which its file tells.

        Raises:
            UserError: the file cannot be read, names a class that is not known here, or does not tell the bounds of
                actions, as those of an older offpcc.
        """
        return cls(load_actor(Path(file), device), action_space)


def save_actor(algorithm: ActorCritic, file: Path) -> None:
    """Write what `act` uses."""
    write_tensors(file, algorithm.actor_file())


def load_actor(file: Path, device: str | torch.device = "cpu") -> ActorCritic:
    """An algorithm that acts as the saved one does; it is not for further training.

    Raises:
        UserError: the file cannot be read, or names a class that is not known here.
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
    except Exception as error:  # what is built of a file's arguments may object in any way
        raise UserError(f"{file} describes no actor that can be built here ({first_line(error)})") from error
    return algorithm
