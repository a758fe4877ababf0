"""D4RL's names, and environments made of them."""

import gymnasium
import pytest

import offpcc.envs
from offpcc.envs import rendering
from offpcc.envs.d4rl import catalog

TASKS = [name for name in catalog.FILES if catalog.task(name)]
GOALS = {  # row and column, and the number of free cells, the goal's among them
    "maze2d-open": ((2, 3), 15), "maze2d-umaze": ((1, 1), 7), "maze2d-eval-umaze": ((1, 3), 7),
    "maze2d-medium": ((6, 6), 26), "maze2d-eval-medium": ((1, 6), 26), "maze2d-large": ((7, 9), 46),
    "maze2d-eval-large": ((1, 9), 47), "antmaze-umaze": ((3, 1), 7), "antmaze-medium": ((6, 6), 26),
    "antmaze-large": ((7, 9), 46),
}  # fmt: skip


def make_task(request, name, **kwargs):
    """Makes an environment as Gymnasium does, which is closed after the test."""
    rendering.choose_opengl()
    if package := offpcc.envs.missing_package(name):
        pytest.skip(f"needs {package}")
    env = gymnasium.make(name, **kwargs)
    request.addfinalizer(env.close)
    return env
