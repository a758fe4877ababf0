"""An environment for libraries that want one to build networks from; nobody steps it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from benchmarks.cases import ACTION_DIM, OBSERVATION_DIM


class Spaces(gymnasium.Env[np.ndarray, np.ndarray]):
    """Tells its spaces alone."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION_DIM,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(OBSERVATION_DIM, np.float32), {}
