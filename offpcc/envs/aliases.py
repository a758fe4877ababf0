"""Types and a key that modules of environments share."""

from typing import Any

import gymnasium
from numpy.typing import NDArray

Array = NDArray[Any]
Info = dict[str, Any]
Env = gymnasium.Env[Any, Any]
LIFE_LOST = "life_lost"  # key in the `info` of a step: True if a life was lost and the episode goes on
