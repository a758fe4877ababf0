"""Hopper, Walker2D, HalfCheetah and Ant in PyBullet, with full observations, or only positions or velocities.

These are the tasks of VRM, Ni et al. 2022 (arXiv:2110.05038) and RESeL (arXiv:2405.15384). The simulator is from the
pip package pybullet_envs_gymnasium. For a body with J joints and F feet, its observation has 8 + 2 J + F numbers:

* height relative to the start; sin and cos of the angle to the target; velocity forwards, sideways and up (times 0.3,
  in m/s); roll, pitch (rad);
* for each joint, its position, scaled so that the limits are -1 and 1, and then its speed (times 0.1, in rad/s);
* for each foot, 1 if it touched the ground one step before.

`BulletWorld` is a physics world of PyBullet, separate from all others.
"""

import functools
import inspect
import weakref
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc.envs.aliases import Array, Info
from offpcc.envs.registration import Environment, keep, require


class BulletWorld:
    """PyBullet's functions and constants for one physics world, which is freed with this object.

    PyBullet's own class for this first looks for a world in another process to join, and it prints when it starts.
    """

    def __init__(self, has_window: bool = False) -> None:
        import pybullet

        self._pybullet = pybullet
        self.number: int = pybullet.connect(pybullet.GUI if has_window else pybullet.DIRECT)
        # Runs once, even without a call of `disconnect`
        self._free = weakref.finalize(self, pybullet.disconnect, self.number)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._pybullet, name)
        return functools.partial(attribute, physicsClientId=self.number) if inspect.isbuiltin(attribute) else attribute

    def disconnect(self) -> None:
        """Free the world."""
        self._free()
        self.number = -1  # PyBullet reuses numbers: no later call may reach the world that gets this one


PACKAGE = "pybullet-envs-gymnasium"


class BulletLocomotion(gym.Env[Array, Array]):
    """A body that learns to run along x.

    Observation, float32: see this module; the simulator clips it to [-5, 5].
    Action, float32, clipped to [-1, 1]: torques, as fractions of the largest ones.
    Reward: the sum of four terms. It is 1 while the body has not fallen, else -1; plus the speed towards the target
    (m/s); minus a cost of the torques; minus 0.1 for each joint at its limit.

    Hopper, Walker2D and Ant terminate when they fall. HalfCheetah continues after a fall. Otherwise, only a time limit
    ends an episode. A step lasts 0.0165 s.

    All random draws of an episode use `np_random`: with its state restored, `reset()` repeats them.

    Args:
        body: "hopper", "walker2d", "halfcheetah" or "ant".
        render_mode: None, "rgb_array" or "human".

    Raises:
        gymnasium.error.DependencyNotInstalled: pybullet_envs_gymnasium is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"], "render_fps": 60}  # noqa: RUF012

    def __init__(self, body: str, render_mode: str | None = None) -> None:
        require(PACKAGE, f"{body}-bullet")
        from pybullet_envs_gymnasium import gym_locomotion_envs as simulators

        simulator: Any = {
            "hopper": simulators.HopperBulletEnv,
            "walker2d": simulators.Walker2DBulletEnv,
            "halfcheetah": simulators.HalfCheetahBulletEnv,
            "ant": simulators.AntBulletEnv,
        }[body]
        self.render_mode = render_mode
        self._simulation: Any = simulator(render_mode=render_mode)
        client = BulletWorld(has_window=render_mode == "human")
        client.setPhysicsEngineParameter(deterministicOverlappingPairs=1)
        client.configureDebugVisualizer(client.COV_ENABLE_GUI, 0)
        self._simulation._p, self._simulation.physicsClientId = client, client.number
        self._simulation.ownsPhysicsClient = True
        # The simulator's first episode differs from later ones. It counts the floor as a part of the body, but not yet
        # at the first observation, which the first reward depends on. So this reset uses up the first episode.
        self._simulation.reset()
        self.action_space = self._simulation.action_space
        self.observation_space = Box(-5, 5, self._simulation.observation_space.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode; see `gymnasium.Env.reset`. `options` is ignored."""
        super().reset(seed=seed)
        self._simulation.robot.np_random = self.np_random
        observation, _ = self._simulation.reset()
        return observation, {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Take a step of 0.0165 s."""
        # Clip here: the simulator's joints clip the action, but its rewards use it as given.
        executed = np.clip(np.asarray(action, np.float32), -1, 1)
        observation, reward, terminated, _, _ = self._simulation.step(executed)
        return observation, float(reward), terminated, False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current frame, (240, 320, 3), in the mode "rgb_array"; a window updates itself."""
        if self.render_mode != "rgb_array":
            return None
        frame: NDArray[np.uint8] = self._simulation.render()
        return frame

    def close(self) -> None:
        """Free the simulation."""
        self._simulation.close()


def _rows(body: str, num_joints: int, num_feet: int) -> tuple[Environment, ...]:
    contacts = 8 + 2 * num_joints
    size = contacts + num_feet
    speeds = range(9, contacts, 2)
    velocities = [3, 4, 5, *speeds]
    positions = [index for index in range(size) if index not in velocities]
    full = Environment(
        name=f"{body}-bullet-v0",
        family=f"{body}-bullet",
        hidden="nothing",
        entry_point="offpcc.envs.tasks.pybullet_locomotion:BulletLocomotion",
        max_episode_steps=1000,
        observation_shape=(size,),
        action_size=num_joints,
        kwargs={"body": body},
        package=PACKAGE,
    )
    rows = (
        full,
        full.variant("-p", "velocities", (len(positions),), keep(*positions)),
        full.variant("-v", "positions and foot contacts", (len(velocities),), keep(*velocities)),
    )
    if body not in ("halfcheetah", "ant"):
        return rows
    shown = [index for index in range(size) if index not in speeds]
    original = full.variant("", "joints' speeds", (len(shown),), keep(*shown))
    return (*rows, replace(original, name=f"{body}-p-v0"))  # a task of the original offpcc


ENVIRONMENTS = (
    *_rows("hopper", num_joints=3, num_feet=1),
    *_rows("walker2d", num_joints=6, num_feet=2),
    *_rows("halfcheetah", num_joints=6, num_feet=6),
    *_rows("ant", num_joints=8, num_feet=4),
)
