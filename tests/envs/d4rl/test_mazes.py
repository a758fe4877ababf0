"""Walls, starts, goals, rewards and ends of mazes are those that D4RL's data was recorded with."""

import functools
import pickle

import numpy as np
import pytest
from made_tasks import GOALS, TASKS, make_task

from offpcc.envs.d4rl.mazes import LAYOUTS

pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")


@pytest.fixture
def made(request):
    return functools.partial(make_task, request)


@pytest.mark.parametrize("maze", LAYOUTS)
def test_mazes_are_whole(maze):
    cells = [list(row) for row in LAYOUTS[maze].split()]
    assert len({len(row) for row in cells}) == 1
    assert {*cells[0], *cells[-1], *(row[0] for row in cells), *(row[-1] for row in cells)} == {"#"}
    goal, num_free = GOALS[maze]
    free = {(i, j) for i, row in enumerate(cells) for j, cell in enumerate(row) if cell != "#"}
    assert [(i, j) for i, j in free if cells[i][j] == "G"] == [goal] and len(free) == num_free
    reached, new = set(), {goal}
    while new:
        reached |= new
        new = {(i + a, j + b) for i, j in new for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))} & free - reached
    assert reached == free


@pytest.mark.parametrize("maze", LAYOUTS)
def test_walls_are_where_they_are_in_the_coordinates_of_the_data(made, maze):
    ant = maze.startswith("antmaze")
    env = made(next(name for name in TASKS if name.startswith(f"{maze}-")))
    shown, _ = env.reset(seed=0)
    model, data = env.unwrapped.model, env.unwrapped.data
    blocks = np.array([model.geom(i).pos[:2] for i in range(model.ngeom) if "block" in model.geom(i).name])
    blocks -= data.qpos[:2] - shown[:2]
    cells = blocks[:, ::-1] / 4 + 1 if ant else blocks + 0.2
    assert cells == pytest.approx(np.round(cells), abs=1e-9)
    walls = {(i, j) for i, row in enumerate(LAYOUTS[maze].split()) for j, cell in enumerate(row) if cell == "#"}
    assert {tuple(cell) for cell in np.round(cells).astype(int).tolist()} == walls


def starting_in(env, cell):
    for seed in range(200):
        shown, _ = env.reset(seed=seed)
        if np.abs(shown[:2] - cell).max() <= 0.1:
            return shown
    raise AssertionError(f"no episode starts in {cell}")


def test_a_ball_rolls_until_it_meets_a_wall_that_it_met_in_the_data(made):
    env = made("maze2d-umaze-v1")
    starts = {tuple(np.round(env.reset(seed=seed)[0][:2]).astype(int)) for seed in range(60)}
    assert starts == {(1, 1), (1, 2), (1, 3), (2, 3), (3, 3), (3, 2), (3, 1)}
    for action, place in (((0, 1), 3.2), ((0, -1), 0.4)):
        shown = starting_in(env, (3, 2))
        for _ in range(150):
            shown, *_ = env.step(np.array(action, np.float32))
        assert shown[1] == pytest.approx(place, abs=0.01) and abs(shown[0] - 3) < 0.3


@pytest.mark.parametrize("name", ["maze2d-umaze-v1", "maze2d-umaze-dense-v1", "maze2d-eval-medium-dense-v1"])
def test_a_ball_is_rewarded_near_the_goal_of_the_data(made, name):
    env = made(name)
    goal = np.array(GOALS[name.replace("-dense", "").removesuffix("-v1")][0])
    seen = set()
    beside = np.array([0, -1 if "eval" in name else 1])
    for start in (goal, goal + beside):
        starting_in(env, start)
        for _ in range(10):
            shown, reward, terminated, _, info = env.step(env.action_space.sample())
            distance = np.linalg.norm(shown[:2] - goal)
            assert reward == pytest.approx(np.exp(-distance) if "dense" in name else float(distance <= 0.5))
            assert info["success"] == (distance <= 0.5) and not terminated
            seen.add(info["success"])
    assert seen == {True, False}


def test_the_time_limits_of_mazes_are_truncations(made):
    env = made("maze2d-umaze-v0")
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(150)]
    assert ends == [(False, False)] * 149 + [(False, True)]


@pytest.mark.parametrize("again", [False, True])
def test_an_ant_in_a_maze_starts_at_the_origin_with_the_body_of_the_data(made, again):
    env = made("antmaze-large-play-v2")
    if again:
        env = pickle.loads(pickle.dumps(env))
    shown, info = env.reset(seed=0)
    assert np.abs(shown[:2]).max() <= 0.1 and abs(shown[2] - 0.75) <= 0.1 and not info["success"]
    simulated = env.unwrapped.ant_env
    assert simulated.dt == 0.1 and (simulated.model.actuator_gear[:, 0] == 30).all()
    assert (simulated.model.geom_solimp[:, :3] == (0.8, 0.8, 0.01)).all()
    after = env.step(np.ones(8, np.float32))[0]
    assert np.array_equal(after[2:], np.concatenate([simulated.data.qpos[2:], simulated.data.qvel]))
    env.close()


@pytest.mark.parametrize("name", ["antmaze-umaze-v2", "antmaze-medium-diverse-v2"])
def test_an_ant_that_reaches_its_goal_is_rewarded_once(made, name):
    env = made(name)
    row, column = GOALS["-".join(name.split("-")[:2])][0]
    cell = 4.0 * (np.array([column, row]) - 1)
    goals = []
    for seed in range(20):
        shown, _ = env.reset(seed=seed)
        origin = env.unwrapped.data.qpos[:2] - shown[:2]
        goals.append(env.unwrapped.goal - origin - cell)
    assert 0 <= np.min(goals) < 0.5 and 1.0 < np.max(goals) <= 1.5
    assert env.step(np.zeros(8, np.float32))[1:3] == (0.0, False)
    simulated = env.unwrapped.ant_env
    positions = simulated.data.qpos.copy()
    positions[:2] = env.unwrapped.goal + np.array([0.47, 0.0])
    simulated.set_state(positions, np.zeros(14))
    _, reward, terminated, truncated, info = env.step(np.zeros(8, np.float32))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
