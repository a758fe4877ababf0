"""Tasks of the DM Control suite (Tassa et al. 2018, arXiv:1801.00690) as Gymnasium environments."""

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from offpcc.envs.aliases import Array, Info
from offpcc.envs.registration import PREVIOUS_ACTION, Environment, concatenate, keep, require
from offpcc.envs.rendering import choose_opengl, require_opengl

PACKAGE = "dm-control"
IDS = "dmc-cheetah-run-v0 and so on, -p-v0 without velocities, -img-v0 as images; list: offpcc envs dmc"
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue: ITU-R BT.601


class DMControl(gym.Env[Array, Array]):
    """A task of the suite.

    In most tasks, an episode lasts 1000 steps of the task, each with a reward of at most 1.

    Observation, float32 (n,): the chosen parts of the task's observation, one after the other.
    Action, float32 (a,): clipped to the task's bounds, which are [-1, 1] in the whole suite.
    Reward: the sum over the repeated steps.

    If the task's time is up, with discount 1, the episode is truncated. If the discount is 0, it is terminated.

    All random draws of an episode use `np_random`: with its state restored, `reset()` repeats them.

    Args:
        domain: The suite's name of the body, such as "cartpole".
        task: The suite's name of the task, such as "swingup".
        action_repeat: Steps of the task per step of this environment.
        keys: The parts of the task's observation to show, in this order; None shows all.
        render_mode: None or "rgb_array".
        width: Width of a rendered frame, in pixels.
        height: Height of a rendered frame, in pixels.
        camera_id: The task's camera for rendering.

    Raises:
        gymnasium.error.DependencyNotInstalled: dm-control is not installed, or does not run with this MuJoCo, or there
            is nothing to render with.
        ValueError: The task's observation lacks one of the keys.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(
        self,
        domain: str,
        task: str,
        action_repeat: int = 1,
        keys: Sequence[str] | None = None,
        render_mode: str | None = None,
        width: int = 320,
        height: int = 240,
        camera_id: int = 0,
    ) -> None:
        require(PACKAGE, f"dmc-{domain}-{task}")
        choose_opengl()
        if render_mode is not None:
            require_opengl(f"dmc-{domain}-{task}")
        from dm_control import suite

        try:  # a few tasks also draw their model at random, only here; the seed fixes it
            self._environment = suite.load(domain, task, task_kwargs={"random": 0})
        except AttributeError as error:
            if int(importlib.metadata.version("mujoco").split(".")[0]) < 4:
                raise
            raise gym.error.DependencyNotInstalled(
                f"{PACKAGE} {importlib.metadata.version(PACKAGE)} does not run with MuJoCo "
                f"{importlib.metadata.version('mujoco')} ({error}); run `pip install 'mujoco<4'`"
            ) from error
        self._action_repeat = action_repeat
        parts = self._environment.observation_spec()
        self._keys = tuple(parts if keys is None else keys)
        if unknown := [key for key in self._keys if key not in parts]:
            raise ValueError(f"dmc-{domain}-{task} does not observe {unknown}; keys may be any of {list(parts)}")
        self.render_mode = render_mode
        self._frame = {"width": width, "height": height, "camera_id": camera_id}
        step_seconds = self._environment.control_timestep() * action_repeat
        self.metadata = {**self.metadata, "render_fps": round(1 / step_seconds)}

        # A part with a single number has the shape ().
        size = sum(int(np.prod(parts[key].shape)) for key in self._keys)
        self.observation_space = Box(-np.inf, np.inf, (size,), np.float32)
        bounds = self._environment.action_spec()
        self._action_low, self._action_high = bounds.minimum, bounds.maximum
        self.action_space = Box(
            self._action_low.astype(np.float32), self._action_high.astype(np.float32), dtype=np.float32
        )

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode; see `gymnasium.Env.reset`. `options` is ignored."""
        super().reset(seed=seed)
        self._environment.task.random.seed(self.np_random.integers(2**32))
        return self._observe(self._environment.reset()), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        """Repeat `action` for `action_repeat` steps of the task, or until the episode is over."""
        # Clip here: the suite's physics clips the action, but its rewards use it as given.
        clipped = np.clip(np.asarray(action, np.float64), self._action_low, self._action_high)
        reward = 0.0
        for _ in range(self._action_repeat):
            time_step = self._environment.step(clipped)
            reward += float(time_step.reward)
            if time_step.last():
                break
        terminated = bool(time_step.last() and time_step.discount == 0.0)
        truncated = bool(time_step.last() and not terminated)
        return self._observe(time_step), reward, terminated, truncated, {}

    def render(self) -> NDArray[np.uint8] | None:
        """Return the current frame, (height, width, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        frame: NDArray[np.uint8] = self._environment.physics.render(**self._frame)
        return frame

    def close(self) -> None:
        """Free the simulation and its renderer."""
        self._environment.close()

    def _observe(self, time_step: Any) -> Array:
        parts = time_step.observation
        return np.concatenate([np.ravel(parts[key]) for key in self._keys]).astype(np.float32)


class DMControlImage(DMControl):
    """A task of the suite whose observation is one grey image, uint8 (1, size, size).

    The image is rendered at this size, once per step. It is the same on the same machine, but the OpenGL of another
    machine may round a colour differently. Actions, rewards, ends of episodes and the frames of `render` are those of
    `DMControl`.

    Differs from the suite's own images: there are no shadows, because a renderer without a GPU spends two thirds of its
    time or more on them.

    Args:
        domain: The suite's name of the body, such as "cartpole".
        task: The suite's name of the task, such as "swingup".
        action_repeat: Steps of the task per step of this environment.
        size: Size of the image, in pixels.
        shadows: Whether the image shows shadows.
        kwargs: See `DMControl`; the camera of `render` is that of the image, too.

    Raises:
        gymnasium.error.DependencyNotInstalled: dm-control is not installed, or does not run with this MuJoCo, or there
            is nothing to render with.
    """

    def __init__(
        self, domain: str, task: str, action_repeat: int = 1, size: int = 84, shadows: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(domain, task, action_repeat, **kwargs)
        require_opengl(f"dmc-{domain}-{task}-img")
        from dm_control.mujoco.engine import Camera

        physics = self._environment.physics
        # A buffer smaller than the model's is a third faster. The first camera allocates it.
        buffer = physics.model.vis.global_
        buffer.offwidth, buffer.offheight = max(size, self._frame["width"]), max(size, self._frame["height"])
        self._camera = Camera(physics, size, size, self._frame["camera_id"])
        self._camera_flags = {} if shadows else {"shadow": False}
        self.observation_space = Box(0, 255, (1, size, size), np.uint8)

    def _observe(self, time_step: Any) -> Array:
        frame = self._camera.render(render_flag_overrides=self._camera_flags)
        grey: NDArray[np.uint8] = np.rint(frame @ np.array(LUMINANCE)).astype(np.uint8)
        return grey[np.newaxis]


def _task(domain: str, task: str, size: int, action_size: int, action_repeat: int = 2) -> Environment:
    """Return the row of a task that shows all `size` numbers of its observation."""
    return Environment(
        name=f"dmc-{domain}-{task}-v0",
        family=f"dmc-{domain}-{task}",
        hidden="nothing",
        entry_point="offpcc.envs.tasks.dm_control_suite:DMControl",
        max_episode_steps=1000 // action_repeat,
        observation_shape=(size,),
        action_size=action_size,
        kwargs={"domain": domain, "task": task, "action_repeat": action_repeat},
        package=PACKAGE,
    )


def _cartpole(task: str) -> tuple[Environment, ...]:
    full = _task("cartpole", task, 5, action_size=1, action_repeat=5)
    p, v, a = keep(0, 1, 2), keep(3, 4), PREVIOUS_ACTION
    return (
        full,
        full.variant("-p", "velocities", (3,), p),
        full.variant("-va", "positions", (3,), v, a),
        full.variant("-p-concat5", "velocities; last 5 positions shown", (15,), p, concatenate(5)),
        full.variant("-va-concat10", "positions; last 10 velocities and actions shown", (30,), v, a, concatenate(10)),
    )


def _images(domain: str, task: str, action_size: int) -> tuple[Environment, ...]:
    one = _image(domain, task, action_size)
    several = one.variant("", "velocities; positions shown as the last 3 images", (3, 84, 84), concatenate(3))
    return one, replace(several, name=f"dmc-{domain}-{task}-mdp-img-concat3-v0")


def _image(domain: str, task: str, action_size: int) -> Environment:
    return replace(
        _task(domain, task, 0, action_size),
        name=f"dmc-{domain}-{task}-img-v0",
        family=f"dmc-{domain}-{task}-img",
        hidden="velocities; positions shown as an image",
        entry_point="offpcc.envs.tasks.dm_control_suite:DMControlImage",
        observation_shape=(1, 84, 84),
    )


ENVIRONMENTS = (
    *_cartpole("balance"),
    *_cartpole("swingup"),
    *_images("cartpole", "balance", action_size=1),
    *_images("walker", "walk", action_size=6),
)


def _suite(domain: str, tasks: str, action_size: int, *parts: int) -> Iterator[Environment]:
    """Yield the rows of tasks of one body: all, without velocities, and as an image.

    `tasks` are their names, separated by spaces. `parts` are the sizes of the parts of an observation, in their order;
    negative for velocities.
    """
    sizes = [abs(part) for part in parts]
    ends = list(accumulate(sizes))
    kept = [i for part, end in zip(parts, ends, strict=True) if part > 0 for i in range(end - part, end)]
    known = {row.name for row in ENVIRONMENTS}
    for task in tasks.split():
        full = _task(domain, task, sum(sizes), action_size)
        positions = full.variant("-p", "velocities", (len(kept),), keep(*kept))
        yield from (row for row in (full, positions, _image(domain, task, action_size)) if row.name not in known)


# The other tasks of the suite's benchmark. An environment step is two of the task's, as is usual for images.
SUITE = (
    *_suite("acrobot", "swingup swingup_sparse", 1, 4, -2),
    *_suite("ball_in_cup", "catch", 2, 4, -4),
    *_suite("cartpole", "balance_sparse swingup swingup_sparse", 1, 3, -2),
    *_suite("cheetah", "run", 6, 8, -9),
    *_suite("finger", "spin", 2, 4, -3, 2),
    *_suite("finger", "turn_easy turn_hard", 2, 4, -3, 2, 2, 1),
    *_suite("fish", "upright", 5, 7, 1, -13),
    *_suite("fish", "swim", 5, 7, 1, 3, -13),
    *_suite("hopper", "stand hop", 4, 6, -7, 2),
    *_suite("humanoid", "stand walk run", 21, 21, 1, 12, 3, -3, -27),
    *_suite("manipulator", "bring_ball", 5, 16, -8, 5, 4, 4, -3, 4),
    *_suite("pendulum", "swingup", 1, 2, -1),
    *_suite("point_mass", "easy", 2, 2, -2),
    *_suite("reacher", "easy hard", 2, 2, 2, -2),
    *_suite("swimmer", "swimmer6", 5, 5, 2, -18),
    *_suite("swimmer", "swimmer15", 14, 14, 2, -45),
    *_suite("walker", "stand walk run", 6, 14, 1, -9),
)
