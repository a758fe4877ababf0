"""Hopper, Walker2D, HalfCheetah and Ant in PyBullet, whole or with positions or velocities alone.

The tasks of VRM, Ni et al. 2022 (arXiv:2110.05038) and RESeL (arXiv:2405.15384). The simulator is the one of the pip
package pybullet_envs_gymnasium, whose observation is, of a body with J joints and F feet, 8 + 2 J + F numbers: height
above that at the start, sin and cos of the angle to the target, velocity forwards, sideways and up (times 0.3, in
m/s), roll, pitch (rad); position, 1 at its limits, and speed (times 0.1, in rad/s) of each joint in turn; and 1 for
each foot that touched the ground one step before.

A physics world of PyBullet's, apart from all others.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import WrapperSpec
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc.envs.registration import Environment, keep, require

__all__ = ["ENVIRONMENTS", "BulletLocomotion", "BulletWorld"]


class BulletWorld:
    """PyBullet's functions and constants, for one physics world, which is freed with this object.

    PyBullet's class of this kind would first look for a world in another process to join, and prints as it starts.

    Args:
        has_window: Whether it is shown in a window.
    """

    def __init__(self, has_window: bool = False) -> None:
        import pybullet

        self._pybullet = pybullet
        self.number: int = pybullet.connect(pybullet.GUI if has_window else pybullet.DIRECT)
        self._free = weakref.finalize(self, pybullet.disconnect, self.number)  # once, also if nobody asks for it

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._pybullet, name)
        return functools.partial(attribute, physicsClientId=self.number) if inspect.isbuiltin(attribute) else attribute

    def disconnect(self) -> None:
        """Frees the world."""
        self._free()
        self.number = -1  # PyBullet gives the number away again: no later call may reach the world that gets it


PACKAGE = "pybullet-envs-gymnasium"


class BulletLocomotion(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """A body that learns to run, along x.

    Observation, float32: see this module; the simulator clips it to [-5, 5].
    Action, float32: torques, in [-1, 1] of the largest, clipped to it.
    Reward: 1 while it has not fallen, else -1; plus speed towards the target (m/s); minus what the torques cost, and
    0.1 for each joint at its limit. Hopper, Walker2D and Ant terminate when they fall; a HalfCheetah that has fallen
    goes on. Only a time limit ends an episode else. A step lasts 0.0165 s.

    All randomness of an episode comes from `np_random`: with its state restored, `reset()` draws it again.

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
        # The simulator's first episode is unlike those that follow: it takes the floor for a part of the body, but
        # not yet at the first observation, from which the first reward is measured. So it is spent here.
        self._simulation.reset()
        self.action_space = self._simulation.action_space
        self.observation_space = Box(-5, 5, self._simulation.observation_space.shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode; see `gymnasium.Env.reset`. There are no options."""
        super().reset(seed=seed)
        self._simulation.robot.np_random = self.np_random
        observation, _ = self._simulation.reset()
        return observation, {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Takes a step of 0.0165 s."""
        # The simulator's rewards read the action as it was given, while its joints clip it.
        executed = np.clip(np.asarray(action, np.float32), -1, 1)
        observation, reward, terminated, _, _ = self._simulation.step(executed)
        return observation, float(reward), terminated, False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """Returns the present frame, (240, 320, 3), in "rgb_array"; a window shows it by itself."""
        if self.render_mode != "rgb_array":
            return None
        frame: NDArray[np.uint8] = self._simulation.render()
        return frame

    def close(self) -> None:
        """Frees the simulation."""
        self._simulation.close()


def _row(name: str, body: str, hidden: str, size: int, num_joints: int, *wrappers: WrapperSpec) -> Environment:
    return Environment(
        name=name,
        family=f"{body}-bullet",
        hidden=hidden,
        entry_point="offpcc.envs.tasks.pybullet_locomotion:BulletLocomotion",
        max_episode_steps=1000,
        observation_shape=(size,),
        action_size=num_joints,
        kwargs={"body": body},
        wrappers=wrappers,
        package=PACKAGE,
    )


def _rows(body: str, num_joints: int, num_feet: int) -> tuple[Environment, ...]:
    contacts = 8 + 2 * num_joints
    size = contacts + num_feet
    speeds = range(9, contacts, 2)
    velocities = [3, 4, 5, *speeds]
    positions = [index for index in range(size) if index not in velocities]
    rows = [
        _row(f"{body}-bullet-v0", body, "nothing", size, num_joints),
        _row(f"{body}-bullet-p-v0", body, "velocities", len(positions), num_joints, keep(*positions)),
        _row(
            f"{body}-bullet-v-v0", body, "positions and foot contacts", len(velocities), num_joints, keep(*velocities)
        ),
    ]
    if body in ("halfcheetah", "ant"):  # the tasks that the original offpcc had
        shown = [index for index in range(size) if index not in speeds]
        rows.append(_row(f"{body}-p-v0", body, "joints' speeds", len(shown), num_joints, keep(*shown)))
    return tuple(rows)


ENVIRONMENTS = (
    *_rows("hopper", num_joints=3, num_feet=1),
    *_rows("walker2d", num_joints=6, num_feet=2),
    *_rows("halfcheetah", num_joints=6, num_feet=6),
    *_rows("ant", num_joints=8, num_feet=4),
)
