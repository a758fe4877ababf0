"""A two-jointed arm that reaches for a goal, which it may see only once (Yang & Nguyen 2021, arXiv:2110.12628)."""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import WrapperSpec
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs

from offpcc.envs.aliases import Array, Info
from offpcc.envs.registration import FLOAT32, Environment

SIZE = 13
GOAL = [4, 5, 8, 9, 10]


class ReacherObservation(gym.Wrapper[Array, Any, Array, Any], RecordConstructorArgs):
    """Shows the paper's 13 numbers, with the goal either always or only in an episode's first observation.

    Observation: cosines (2) and sines (2) of the joints' angles; goal's x and y (2); joints' speeds (2); fingertip
    minus goal (3, with z = 0); two zeros. These are the 11 numbers of MuJoCo's Reacher-v4 and two more of the paper. If
    the goal is hidden, its x and y and the difference between fingertip and goal are 0.

    Action: torques (2) in [-1, 1].
    Reward: -distance - ‖action‖², with the distance from the fingertip to the goal *after* the step, as in Reacher-v5.
    Versions up to v4 used the distance before the step, so their returns differ by an episode's first and last
    distance. Only the time limit ends an episode.

    Args:
        env: Gymnasium's Reacher, version 5.
        goal_shown_once: Whether to hide the goal after the first observation.
    """

    def __init__(self, env: gym.Env[Any, Any], goal_shown_once: bool) -> None:
        RecordConstructorArgs.__init__(self, goal_shown_once=goal_shown_once)
        gym.Wrapper.__init__(self, env)
        self._hidden = GOAL if goal_shown_once else []
        self.observation_space = Box(-np.inf, np.inf, (SIZE,), np.float64)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode and show its goal."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._padded(observation), info

    def step(self, action: Any) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Take an environment step; hide the goal if it is shown only once."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        shown = self._padded(observation)
        shown[self._hidden] = 0
        return shown, reward, terminated, truncated, info

    @staticmethod
    def _padded(observation: Array) -> Array:
        return np.concatenate([observation, np.zeros(SIZE - len(observation))])


def _shown(goal_shown_once: bool) -> WrapperSpec:
    entry_point = "offpcc.envs.tasks.reacher:ReacherObservation"
    return WrapperSpec("ReacherObservation", entry_point, {"goal_shown_once": goal_shown_once})


_REACHER = Environment(
    name="reacher-v0",
    family="reacher",
    hidden="",
    entry_point="offpcc.envs.tasks.mujoco_locomotion:make_mujoco_simulator",
    max_episode_steps=50,
    observation_shape=(SIZE,),
    action_size=2,
    kwargs={"entry_point": "reacher_v5:ReacherEnv", "reward_dist_weight": 1.0, "reward_control_weight": 1.0},
    package="mujoco",
)
ENVIRONMENTS = (
    _REACHER.variant("-mdp", "nothing", (SIZE,), _shown(goal_shown_once=False), FLOAT32),
    _REACHER.variant("-pomdp", "goal, after the first observation", (SIZE,), _shown(goal_shown_once=True), FLOAT32),
)
