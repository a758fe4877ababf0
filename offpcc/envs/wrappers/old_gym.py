"""`OldGym`: adapter for environments of the old gym, whose `step` returns four values."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from offpcc.envs.aliases import Array, Info
from offpcc.utils.errors import UserError

MAX_SEED = 2**31  # old generators take 32 bits, sometimes signed
OF_OLD_GYM = "`offpcc docs your_environment`"


class OldGym(gymnasium.Env[Any, Any]):
    """Adapter that makes an environment of the old gym a Gymnasium environment.

    It needs no `gym` package, unless the old environment imports it. The old environment must have `reset()`, which
    returns an observation; `step(action)`, which returns observation, reward, done and info; and spaces with `low`,
    `high`, `shape` and `dtype`, or with `n` (`Discrete`). It may have `seed(n)`, `render(mode=...)` and `close()`. To
    train in one, register it in your own file, `my_lab.py`::

        import gymnasium
        from offpcc.envs.wrappers.old_gym import OldGym
        from old_lab import OldRobot

        gymnasium.register(
            "old-robot-v0",
            entry_point=lambda render_mode=None: OldGym(OldRobot(), render_mode=render_mode),
            max_episode_steps=500,
        )

    With `import my_lab` in a gin file, `--env old-robot-v0` works. `offpcc check --env my_lab:old-robot-v0` examines
    the environment. Set `max_episode_steps` to the old environment's own time limit. Leave out the old `TimeLimit`
    wrapper if you can: it cannot always distinguish its own end from the task's end.

    End of an episode: `done` is a termination, unless info has a true ``TimeLimit.truncated``. Then it is a truncation.

    Randomness: `reset(seed=n)` calls the old `seed(n)`. Each later reset calls it with a number drawn from `np_random`,
    so that a resumed run can repeat an episode. This cannot work if the old environment has no `seed`, or uses a
    generator that its `seed` does not reach. The run then reports that its resume is not exact, and `offpcc check`
    reports it before.

    Args:
        env: The old environment.
        time_limit: The length, in steps, at which the old environment ends an episode by itself without saying why in
            info. Such an end is a truncation. The old gym kept this number in `env.spec.max_episode_steps` or
            `env._max_episode_steps`.
        render_mode: None, or one of the old environment's modes, such as "rgb_array" or "human".

    Raises:
        UserError: A space is neither a Box nor `Discrete`, or the environment does not have the old interface.
    """

    def __init__(self, env: Any, *, time_limit: int | None = None, render_mode: str | None = None) -> None:
        self.old = env
        self.observation_space = self._space("observation_space")
        self.action_space = self._space("action_space")
        old = getattr(env, "metadata", None) or {}
        self.metadata = {
            "render_modes": list(old.get("render.modes") or old.get("render_modes") or []),
            "render_fps": old.get("video.frames_per_second") or old.get("render_fps") or 30,
        }
        self.render_mode = render_mode
        self._time_limit = time_limit
        self._length = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode, seeded by `seed` or from `np_random`; `options` is ignored."""
        super().reset(seed=seed)
        if callable(getattr(self.old, "seed", None)):
            self.old.seed(int(self.np_random.integers(MAX_SEED)) if seed is None else seed)
        self._length = 0
        observation = self.old.reset()
        if isinstance(observation, tuple):
            raise UserError(
                f"{self._name}.reset returned a tuple, but reset of the old gym does not; register it without OldGym"
            )
        self._show()
        return self._read(observation), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, Info]:
        """Take an environment step. Truncation and termination are separated as the class docstring says."""
        result = self.old.step(action)
        if len(result) != 4:
            raise UserError(
                f"{self._name}.step returned {len(result)} values, but step of the old gym returns 4; register it "
                f"without OldGym"
            )
        observation, reward, done, info = result
        self._length += 1
        truncated = bool(done and info.get("TimeLimit.truncated", self._length == self._time_limit))
        self._show()
        return self._read(observation), float(np.asarray(reward).item()), bool(done and not truncated), truncated, info

    def render(self) -> Any:
        """Return the old environment's frame, or None without a render mode."""
        return None if self.render_mode is None else self.old.render(mode=self.render_mode)

    def close(self) -> None:
        """Close the old environment, if it has a `close` method."""
        if callable(getattr(self.old, "close", None)):
            self.old.close()

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()

    def _read(self, observation: Any) -> Array:
        """Return a copy, because many old environments reuse one array."""
        return np.array(observation, dtype=self.observation_space.dtype)

    @property
    def _name(self) -> str:
        return type(self.old).__name__

    def _space(self, name: str) -> Box | Discrete:
        space: Any = getattr(self.old, name, None)
        if isinstance(number := getattr(space, "n", None), int | np.integer) and not getattr(space, "shape", None):
            return Discrete(int(number))
        if not (hasattr(space, "low") and hasattr(space, "high")):
            raise UserError(
                f"{self._name}.{name} is {space}, which has neither bounds `low` and `high` nor a number `n`; OldGym "
                f"takes a Box or Discrete: write a gymnasium.Env of your own around the old environment, see "
                f"{OF_OLD_GYM}"
            )
        dtype = np.dtype(getattr(space, "dtype", None) or np.float32)
        shape = tuple(getattr(space, "shape", None) or np.shape(space.low))
        low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (space.low, space.high))
        return Box(low, high, dtype=dtype.type)
