"""Bumps: distinguish two equal bumps by touch and push the right one. The finger's stiffness is part of the action.

This is the task "push-r-bump" of Yang & Nguyen 2021 (arXiv:2110.12628). Differs from the paper: simple shapes replace
the robot arm.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc.envs.aliases import Array, Info
from offpcc.envs.registration import Environment, require
from offpcc.envs.tasks.pybullet_locomotion import BulletWorld

NAME = "bumps-normal-test-v0"

# The scene, seen from the front: y points right and z points up. Lengths are in metres, torques in N m.
BUMP_WIDTH = 0.04
BUMP_MASS = 0.1
FINGER_LENGTH = 0.15
FINGER_WIDTH = 0.01
FINGER_DEPTH = 0.02
FINGER_MASS = 0.02
MAX_ANGLE = np.pi / 3
# A bump slides if torque / (height of the hinge over the bump's top) exceeds its friction, 0.23 x its weight. The next
# two constants put that torque near 0.027 N m. A finger passes over a bump at 30 degrees.
HINGE_HEIGHT = 0.17
TABLE_FRICTION = 1.15
BUMP_FRICTION = 0.2
# A finger that springs back faster hits the next bump. During an episode with many crossings, this can move the bump
# by `MOVED`.
MAX_FINGER_SPEED = 1.5  # rad/s

STEP_SECONDS = 0.25
# The smallest round number with which resting bumps stay at rest and the threshold is the same at all speeds.
NUM_SUBSTEPS = 30
NUM_ITERATIONS = 20  # of Bullet's solver

TABLE_COLOUR = (0.80, 0.76, 0.70, 1.0)
ARM_COLOUR = (0.36, 0.42, 0.50, 1.0)
FINGER_COLOUR = (1.0, 0.72, 0.05, 1.0)
BUMP_COLOURS = ((0.82, 0.27, 0.24, 1.0), (0.25, 0.60, 0.35, 1.0))

# The task.
END_OF_RAIL = 0.4
LIMIT = 0.38
MAX_STEP = 0.05
NOISE = 0.03
NUM_INTERVALS = 5  # intervals of the rail; bumps stand at the boundaries between them
PUSHED = 0.01
MOVED = 0.001
# Least distance between the centres of a finger and a bump, without contact
CLEARANCE = (BUMP_WIDTH + FINGER_WIDTH) / 2 + 0.001
SOFT, HARD = 0.007, 0.047  # N m


class Bumps(gym.Env[Array, Array]):
    """A finger over a table with two bumps. It must push the right bump to the right and not move the left one.

    Observation, float32 (2,): the finger's y in [-0.4, 0.4] m, and its angle in [-π/3, π/3] rad. The angle is positive
    if the tip is right of the hinge.
    Action, float32 (2,), clipped to [-1, 1]: the finger's movement, scaled to -0.05 to 0.05 m, and its stiffness. The
    stiffness is the torque that holds the finger at angle 0, scaled to 0.007 to 0.047 N m. Below about 0.027 N m, the
    finger bends and passes over a bump. Above, it pushes the bump.
    Reward: 1 if the right bump has moved more than 0.01 m to the right, with the tip of the finger on its left. The
    reward is -1 if the left bump has moved more than 0.001 m, or the right one as far to the left. Else it is 0.

    An episode ends when the reward is not 0, or when the finger leaves [-0.38, 0.38]. Both bumps may stand left of the
    start, or right of it, or one on each side. All random draws use `np_random`. The same draws and actions repeat an
    episode, bit for bit.

    Args:
        render_mode: None or "rgb_array".
        width: Width of a rendered frame, in pixels.
        height: Height of a rendered frame, in pixels.

    Raises:
        gymnasium.error.DependencyNotInstalled: pybullet is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(self, render_mode: str | None = None, width: int = 480, height: int = 240) -> None:
        require("pybullet", NAME)
        self.render_mode = render_mode
        self._width, self._height = width, height
        self._scene = Scene()
        self._start: tuple[float, ...] = ()
        self._bounds = np.array([END_OF_RAIL, MAX_ANGLE], np.float32)
        self.observation_space = Box(-self._bounds, self._bounds, dtype=np.float32)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode; see `gymnasium.Env.reset`. `options` is ignored."""
        super().reset(seed=seed)
        self._start = finger, *bumps = self._draw_start()
        self._scene.build(finger, bumps)
        return self._observe(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Move the finger at constant speed for a quarter of a second."""
        length, stiffness = np.clip(np.asarray(action, np.float64), -1.0, 1.0).tolist()
        y = float(np.clip(self._scene.finger[0] + MAX_STEP * length, -END_OF_RAIL, END_OF_RAIL))
        self._scene.move(y, SOFT + (HARD - SOFT) * (stiffness + 1) / 2)
        reward = self._reward()
        terminated = reward != 0.0 or abs(self._scene.finger[0]) > LIMIT
        return self._observe(), reward, terminated, False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current frame, (height, width, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        return self._scene.draw(self._width, self._height)

    def close(self) -> None:
        """Free the simulation."""
        self._scene.close()

    def _draw_start(self) -> tuple[float, float, float]:
        """Draw the y of the finger and of both bumps. Draw again if the finger would start in a bump."""
        boundaries = np.linspace(-END_OF_RAIL, END_OF_RAIL, NUM_INTERVALS + 1)[1:-1]
        while True:
            left = self.np_random.integers(len(boundaries) - 1)
            places = np.array([0.0, boundaries[left], boundaries[left + 1]])
            finger, bump_1, bump_2 = (places + self.np_random.uniform(-NOISE, NOISE, 3)).tolist()
            if min(abs(finger - bump_1), abs(finger - bump_2)) > CLEARANCE:
                return finger, bump_1, bump_2

    def _reward(self) -> float:
        _, *starts = self._start
        moved_1, moved_2 = (now - start for now, start in zip(self._scene.bumps, starts, strict=True))
        if abs(moved_1) > MOVED or moved_2 < -MOVED:
            return -1.0
        return float(moved_2 > PUSHED and self._scene.tip < self._scene.bumps[1])

    def _observe(self) -> Array:
        return np.clip(np.array(self._scene.finger, np.float32), -self._bounds, self._bounds)


class Scene:
    """A PyBullet world with a table, two bumps, and an arm with a finger. Close or delete it to free the world."""

    def __init__(self) -> None:
        self._bullet = BulletWorld()

    def build(self, finger: float, bumps: Sequence[float]) -> None:
        """Build the scene anew, at rest: Bullet's stored contacts would let one episode change the next."""
        bullet = self._bullet
        bullet.resetSimulation()
        bullet.setGravity(0, 0, -9.81)
        bullet.setTimeStep(STEP_SECONDS / NUM_SUBSTEPS)
        # Otherwise, Bullet stops solving early. The bumps then creep without contact, by a fifth of `MOVED`.
        bullet.setPhysicsEngineParameter(
            solverResidualThreshold=0, numSolverIterations=NUM_ITERATIONS, deterministicOverlappingPairs=1
        )
        table = self._box((0.3, 1.0, 0.05), (0, 0, -0.025), TABLE_COLOUR, mass=0)
        bullet.changeDynamics(table, -1, lateralFriction=TABLE_FRICTION)
        self._bumps = [
            self._box((BUMP_WIDTH,) * 3, (0, y, BUMP_WIDTH / 2), colour, BUMP_MASS)
            for y, colour in zip(bumps, BUMP_COLOURS, strict=True)
        ]
        for bump in self._bumps:
            bullet.changeDynamics(bump, -1, lateralFriction=BUMP_FRICTION)
        self._arm = self._build_arm()
        # With friction, a bump would creep under a finger that leans on it.
        bullet.changeDynamics(self._arm, 1, lateralFriction=0)
        bullet.changeDynamics(self._arm, 1, jointLowerLimit=-MAX_ANGLE, jointUpperLimit=MAX_ANGLE)
        bullet.resetJointState(self._arm, 0, finger)

    def move(self, y: float, torque: float) -> None:
        """Move the finger's hinge at constant speed to `y`, and hold the finger upright with at most `torque`."""
        bullet, arm = self._bullet, self._arm
        velocity = (y - self.finger[0]) / STEP_SECONDS
        bullet.setJointMotorControl2(arm, 0, bullet.VELOCITY_CONTROL, targetVelocity=velocity, force=100)
        bullet.setJointMotorControl2(
            arm, 1, bullet.POSITION_CONTROL, targetPosition=0, force=torque, maxVelocity=MAX_FINGER_SPEED
        )
        for _ in range(NUM_SUBSTEPS):
            bullet.stepSimulation()

    @property
    def finger(self) -> tuple[float, float]:
        """The y of the finger's hinge, and its angle in rad, which is positive if the tip is right of the hinge."""
        y, angle = (state[0] for state in self._bullet.getJointStates(self._arm, [0, 1]))
        return y, angle

    @property
    def tip(self) -> float:
        """The y of the finger's tip."""
        y, angle = self.finger
        return y + FINGER_LENGTH * float(np.sin(angle))

    @property
    def bumps(self) -> tuple[float, ...]:
        """The y of each bump's centre."""
        return tuple(self._bullet.getBasePositionAndOrientation(bump)[0][1] for bump in self._bumps)

    def draw(self, width: int, height: int) -> NDArray[np.uint8]:
        """Render the scene from the front in software, (height, width, 3)."""
        bullet = self._bullet
        # PyBullet's renderer has no antialiasing, so each pixel is the mean of four.
        *_, pixels, _, _ = bullet.getCameraImage(
            2 * width,
            2 * height,
            viewMatrix=bullet.computeViewMatrix((1.05, 0, 0.36), (0, 0, 0.135), (0, 0, 1)),
            projectionMatrix=bullet.computeProjectionMatrixFOV(24, width / height, 0.1, 3),
            lightDirection=(0.8, -0.4, 1.2),
            lightAmbientCoeff=0.65,
            lightDiffuseCoeff=0.45,
            shadow=0,
            renderer=bullet.ER_TINY_RENDERER,
            flags=bullet.ER_NO_SEGMENTATION_MASK,
        )
        fine = np.reshape(np.asarray(pixels, np.float64), (height, 2, width, 2, 4))
        frame: NDArray[np.uint8] = np.rint(fine[..., :3].mean(axis=(1, 3))).astype(np.uint8)
        return frame

    def close(self) -> None:
        """Free the world."""
        self._bullet.disconnect()

    def _box(self, size: tuple[float, ...], centre: tuple[float, ...], colour: tuple[float, ...], mass: float) -> int:
        half = [length / 2 for length in size]
        body: int = self._bullet.createMultiBody(
            mass,
            self._bullet.createCollisionShape(self._bullet.GEOM_BOX, halfExtents=half),
            self._bullet.createVisualShape(self._bullet.GEOM_BOX, halfExtents=half, rgbaColor=colour),
            centre,
        )
        return body

    def _build_arm(self) -> int:
        """Build a rail, a carriage (joint 0) that slides along it, and the finger (joint 1) that hangs from it."""
        bullet = self._bullet
        straight, centre = (0, 0, 0, 1), (0, 0, -FINGER_LENGTH / 2)
        # When the arm turns back, a blunt tip would wedge against the bump that it has crossed. A cube on its edge
        # makes the tip pointed.
        half_side = FINGER_WIDTH / np.sqrt(8)
        shapes = {
            "shapeTypes": [bullet.GEOM_BOX] * 2,
            "halfExtents": [
                [FINGER_DEPTH / 2, FINGER_WIDTH / 2, (FINGER_LENGTH - FINGER_WIDTH / 2) / 2],
                [FINGER_DEPTH / 2, half_side, half_side],
            ],
        }
        places = [(0, 0, -(FINGER_LENGTH - FINGER_WIDTH / 2) / 2), (0, 0, -(FINGER_LENGTH - FINGER_WIDTH / 2))]
        turns = [straight, bullet.getQuaternionFromEuler((np.pi / 4, 0, 0))]
        finger = bullet.createCollisionShapeArray(
            **shapes, collisionFramePositions=places, collisionFrameOrientations=turns
        )
        drawn_finger = bullet.createVisualShapeArray(
            **shapes, visualFramePositions=places, visualFrameOrientations=turns, rgbaColors=[FINGER_COLOUR] * 2
        )
        drawn_arm = bullet.createVisualShape(
            bullet.GEOM_BOX, halfExtents=[0.018, 0.018, 0.07], visualFramePosition=(0, 0, 0.06), rgbaColor=ARM_COLOUR
        )
        drawn_rail = bullet.createVisualShape(
            bullet.GEOM_BOX, halfExtents=[0.012, 0.5, 0.012], visualFramePosition=(0, 0, 0.14), rgbaColor=ARM_COLOUR
        )
        arm: int = bullet.createMultiBody(
            baseMass=0,
            baseVisualShapeIndex=drawn_rail,
            basePosition=(0, 0, HINGE_HEIGHT),
            linkMasses=[1.0, FINGER_MASS],
            linkCollisionShapeIndices=[-1, finger],
            linkVisualShapeIndices=[drawn_arm, drawn_finger],
            linkPositions=[(0, 0, 0)] * 2,
            linkOrientations=[straight] * 2,
            linkInertialFramePositions=[(0, 0, 0), centre],
            linkInertialFrameOrientations=[straight] * 2,
            linkParentIndices=[0, 1],
            linkJointTypes=[bullet.JOINT_PRISMATIC, bullet.JOINT_REVOLUTE],
            linkJointAxis=[(0, 1, 0), (1, 0, 0)],
        )
        return arm


ENVIRONMENTS = (
    Environment(
        name=NAME,
        family="bumps-normal-test",
        hidden="the bumps",
        entry_point="offpcc.envs.tasks.bumps:Bumps",
        max_episode_steps=50,
        observation_shape=(2,),
        action_size=2,
        package="pybullet",
    ),
)
