"""D4RL's names as environments: sizes, starts, goals, rewards and ends are those that its data was recorded with."""

import os
import pickle
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest

import offpcc.domains
from offpcc import d4rl_names, d4rl_tasks
from offpcc.d4rl_tasks import MAZES, RecordedTask
from offpcc.data.d4rl import raw_arrays
from offpcc.data.loading import load
from offpcc.domains import opengl, table
from offpcc.domains.making import make
from offpcc.errors import UserError

SHARED = Path(os.environ.get("OFFPCC_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
TASKS = [name for name in d4rl_names.FILES if d4rl_names.task(name)]
SIZES = {  # numbers of an observation and of an action in D4RL's files, as TensorFlow Datasets lists them
    "halfcheetah": (17, 6), "hopper": (11, 3), "walker2d": (17, 6), "ant": (111, 8),
    "bullet-halfcheetah": (26, 6), "bullet-hopper": (15, 3), "bullet-walker2d": (22, 6), "bullet-ant": (28, 8),
    "pen": (45, 24), "hammer": (46, 26), "door": (39, 28), "relocate": (39, 30),
    "maze2d": (4, 2), "antmaze": (29, 8),
}  # fmt: skip
GOALS = {  # row and column, and the number of free cells, the goal's among them
    "maze2d-open": ((2, 3), 15), "maze2d-umaze": ((1, 1), 7), "maze2d-eval-umaze": ((1, 3), 7),
    "maze2d-medium": ((6, 6), 26), "maze2d-eval-medium": ((1, 6), 26), "maze2d-large": ((7, 9), 46),
    "maze2d-eval-large": ((1, 9), 47), "antmaze-umaze": ((3, 1), 7), "antmaze-medium": ((6, 6), 26),
    "antmaze-large": ((7, 9), 46),
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")
UNWANTED = {"torch", "h5py", "mujoco", "pybullet", "gymnasium_robotics", "offpcc.data", "offpcc.d4rl_tasks"}


def family(name):
    first, second = name.split("-")[:2]
    return f"bullet-{second}" if first == "bullet" else first


def one_of_each():
    """A name of every task, with each maze that it has."""
    kinds = {(d4rl_names.task(name), family(name), "eval" in name): name for name in TASKS}
    return sorted(kinds.values())


@pytest.fixture
def made(request):
    """Makes environments as Gymnasium does; all are closed at the end."""
    opengl.choose_opengl()

    def make_one(name, **kwargs):
        if package := offpcc.domains.missing_package(name):
            pytest.skip(f"needs {package}")
        env = gymnasium.make(name, **kwargs)
        request.addfinalizer(env.close)
        return env

    return make_one


# Names ------------------------------------------------------------------------------------------------------------


def test_every_name_with_a_task_is_registered():
    for name in TASKS:
        spec = gymnasium.spec(name)
        assert spec.max_episode_steps == d4rl_names.max_episode_steps(name)
        assert spec.kwargs == {"name": name} and spec.entry_point == "offpcc.d4rl_tasks:simulator"
        assert spec.additional_wrappers[-1].name == "RecordedTask"
    assert not {name for name in d4rl_names.FILES if name not in TASKS} & set(gymnasium.registry)


def test_registering_imports_nothing_that_is_large():
    code = f"import sys, offpcc.domains; print(*{UNWANTED} & set(sys.modules))"
    root = Path(offpcc.domains.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", one_of_each())
def test_each_task_has_the_sizes_of_its_data(made, name):
    env = made(name)
    sizes = env.observation_space.shape + env.action_space.shape
    assert sizes == SIZES[family(name)]
    assert (env.action_space.low == -1).all() and (env.action_space.high == 1).all()
    observations = [env.reset(seed=seed)[0] for seed in (1, 1, 2)]
    assert np.array_equal(observations[0], observations[1]) and not np.array_equal(observations[0], observations[2])
    assert observations[0].shape == env.observation_space.shape and observations[0].dtype == env.observation_space.dtype
    observation, reward, *_ = env.step(np.ones(env.action_space.shape, np.float32))
    assert observation.shape == env.observation_space.shape and np.isfinite([*observation, reward]).all()


@pytest.mark.parametrize("name", ["hopper-medium-v2", "ant-expert-v2", "door-human-v1", "maze2d-umaze-v1"])
def test_tasks_are_made_again_from_their_specs(made, name):
    env = made(name)
    again = gymnasium.make(env.spec)
    assert env.reset(seed=3)[0].tolist() == again.reset(seed=3)[0].tolist()
    assert isinstance(again, RecordedTask)
    again.close()
    assert gymnasium.spec(d4rl_names.task(name))  # which was there, or came with the package


def test_agents_are_given_them_as_all_others():
    pytest.importorskip("mujoco")
    with closing(make("hopper-medium-v2")) as env:
        assert env.observation_space.dtype == np.float32
        assert env.get_wrapper_attr("get_normalized_score")(3234.3) == 1.0


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(table, "is_installed", lambda package: False)
    monkeypatch.setattr(offpcc.domains, "is_installed", lambda package: False)
    assert offpcc.domains.missing_package("pen-human-v1") == "gymnasium-robotics"
    with pytest.raises(gymnasium.error.DependencyNotInstalled, match="pip install gymnasium-robotics"):
        gymnasium.make("pen-human-v1")


# Locomotion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body, num_positions", [("hopper", 5), ("walker2d", 8), ("halfcheetah", 8)])
def test_steps_of_others_recordings_are_taken_again(made, body, num_positions):
    file = SHARED / f"{body}-cs285-expert-v4.hdf5"
    if not file.exists():
        pytest.skip(f"needs {file.name}")
    data = raw_arrays(file)
    env = made(f"{body}-expert-v2").unwrapped
    differences = []
    for step in range(0, len(data["rewards"]), 5):
        observation = data["observations"][step].astype(np.float64)
        if body != "halfcheetah" and np.abs(observation[num_positions:]).max() >= 10:  # shown no faster than this
            continue
        env.reset()
        env.set_state(np.concatenate([[0.0], observation[:num_positions]]), observation[num_positions:])
        after, reward, *_ = env.step(data["actions"][step])
        differences.append((abs(reward - data["rewards"][step]), np.abs(after - data["next_observations"][step]).max()))
    assert len(differences) > 30
    assert np.median(differences, axis=0) == pytest.approx(0, abs=1e-4)
    assert np.quantile(differences, 0.9, axis=0) == pytest.approx(0, abs=0.02)


def test_ant_has_zeros_for_contact_forces_and_no_cost_of_them(made):
    env, gymnasiums = made("ant-medium-v2"), made("Ant-v4")
    shown, expected = env.reset(seed=0)[0], gymnasiums.reset(seed=0)[0]
    for _ in range(20):
        assert np.array_equal(shown[:27], expected) and not shown[27:].any()
        action = env.action_space.sample()
        shown, reward, *_ = env.step(action)
        expected, same, *_, info = gymnasiums.step(action)
        assert reward == same and "reward_ctrl" in info


# Hands ------------------------------------------------------------------------------------------------------------

PALM = {  # from the palm to the thing
    "hammer": lambda shown: shown[33:36] - shown[36:39],
    "door": lambda shown: shown[35:38],
    "relocate": lambda shown: shown[30:33],
}
STATES = {  # positions that bring bonuses
    "hammer": ({26: 0.09}, {26: 0.08}, {28: 0.3}),
    "door": ({28: 0.3}, {28: 1.1}, {28: 1.4}),
    "relocate": ({32: 0.1}, {32: 0.3}),
}


@pytest.mark.parametrize("hand", PALM)
def test_rewards_of_hands_fall_with_the_distance_of_the_palm(made, hand):
    env, package = made(f"{hand}-human-v1"), made(d4rl_names.task(f"{hand}-human-v1"))
    rewards = set()
    for changes in ({}, *STATES[hand]):
        for one in (env, package):
            one.reset(seed=0)
            positions = one.unwrapped.init_qpos.copy()
            positions[[*changes]] = [*changes.values()]
            one.unwrapped.set_state(positions, one.unwrapped.init_qvel)
        action = env.action_space.sample()
        shown, reward, *_ = env.step(action)
        theirs = package.step(action)[1]
        differences = theirs - reward - np.array([0.2, 0.0]) * np.linalg.norm(PALM[hand](shown))
        assert np.abs(differences).min() < 1e-9  # with the package's own sign, or the one it had before 1.2.1
        rewards.add(round(reward, 1))
    assert len(rewards) > 1


def test_a_goal_that_the_ball_is_at_is_rewarded(made):
    env = made("relocate-human-v1")
    env.reset(seed=0)
    simulated = env.unwrapped
    simulated.model.site("target").pos[:] = simulated.data.body("Object").xpos
    simulated.set_state(simulated.init_qpos, simulated.init_qvel)
    assert 29.0 < env.step(np.zeros(30, np.float32))[1] < 30.0


def test_rewards_of_recorded_doors_lack_the_cost_of_speed_alone():
    file = SHARED / "door-human-dapg.hdf5"
    if not file.exists():
        pytest.skip(f"needs {file.name}")
    data = load(file)
    inside = np.setdiff1d(np.arange(data.num_steps), data.stops - 1)[::10]
    still = type("Data", (), {"qvel": np.zeros(30)})
    computed = [d4rl_tasks._door(data.next_observations[step].astype(np.float64), still) for step in inside]
    costs = np.array(computed) - data.rewards[inside]
    assert costs.min() > -1e-3 and np.median(costs) < 0.01


def test_a_dropped_pen_ends_its_episode(made):
    env = made("pen-human-v1")
    env.reset(seed=0)
    assert not env.step(np.zeros(24, np.float32))[2]
    positions = env.unwrapped.init_qpos.copy()
    positions[24] = 0.3
    env.unwrapped.set_state(positions, env.unwrapped.init_qvel)
    observation, _, terminated, *_ = env.step(np.zeros(24, np.float32))
    assert terminated and observation[26] < 0.075


# Mazes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maze", MAZES)
def test_mazes_are_whole(maze):
    cells = [list(row) for row in MAZES[maze].split()]
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


@pytest.mark.parametrize("maze", MAZES)
def test_walls_are_where_they_are_in_the_coordinates_of_the_data(made, maze):
    ant = maze.startswith("antmaze")
    env = made(next(name for name in TASKS if name.startswith(f"{maze}-")))
    shown, _ = env.reset(seed=0)
    model, data = env.unwrapped.model, env.unwrapped.data
    blocks = np.array([model.geom(i).pos[:2] for i in range(model.ngeom) if "block" in model.geom(i).name])
    blocks -= data.qpos[:2] - shown[:2]
    cells = blocks[:, ::-1] / 4 + 1 if ant else blocks + 0.2
    assert cells == pytest.approx(np.round(cells), abs=1e-9)
    walls = {(i, j) for i, row in enumerate(MAZES[maze].split()) for j, cell in enumerate(row) if cell == "#"}
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


# Data -------------------------------------------------------------------------------------------------------------


def recorded(path, num_steps=30, sizes=(11, 3), **columns):
    draws = np.random.default_rng(0)
    given = {
        "observations": draws.standard_normal((num_steps, sizes[0])).astype(np.float32),
        "actions": 3 * draws.standard_normal((num_steps, sizes[1])),
        "rewards": draws.standard_normal((num_steps, 1)),
        "terminals": np.arange(num_steps) % 10 == 9,
        "timeouts": np.zeros(num_steps, bool),
        "next_observations": np.zeros((num_steps, sizes[0]), np.float32),
        "infos/qpos": draws.standard_normal((num_steps, 6)),
        "metadata/algorithm": b"SAC",
        **columns,
    }
    given = {key: value for key, value in given.items() if value is not None}
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **given)
    else:
        with h5py.File(path, "w") as file:
            for key, value in given.items():
                file[key] = value
    return given


class Sized(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (11,))
    action_space = gymnasium.spaces.Box(-1, 1, (3,))


@pytest.fixture
def task(tmp_path, monkeypatch):
    for variable in ("OFFPCC_DATASETS", "D4RL_DATASET_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OFFPCC_D4RL_URL", "http://127.0.0.1:9/closed")
    return RecordedTask(Sized(), "hopper-medium-v2")


@pytest.mark.parametrize("file", ["hopper_medium-v2.hdf5", "hopper-medium-v2.npz"])
def test_data_is_given_as_it_was_recorded(task, tmp_path, file):
    given = recorded(tmp_path / "OFFPCC_DATASETS" / file)
    data = task.get_dataset()
    assert set(data) == set(given)
    assert data["rewards"].shape == (30,) and np.abs(data["actions"]).max() > 1
    assert data["actions"].dtype == np.float64 and data["terminals"].dtype == np.bool_
    for key, value in given.items():
        assert np.array_equal(np.ravel(data[key]), np.ravel(value))


def test_another_file_can_be_given(task, tmp_path):
    recorded(tmp_path / "mine.hdf5", num_steps=7)
    assert len(task.get_dataset(tmp_path / "mine.hdf5")["rewards"]) == 7
    assert len(task.get_dataset("~/mine.hdf5")["rewards"]) == 7


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"sizes": (17, 6)}, r"observations of shape \(17,\), but hopper-medium-v2 has \(11,\)"),
        ({"actions": np.zeros((30, 6))}, r"actions of shape \(6,\)"),
        ({"terminals": None}, "terminals missing; found: actions"),
        ({"rewards": np.zeros(29)}, "beside 29 rewards"),
        ({"rewards": np.zeros((30, 2))}, r"rewards of shape \(30, 2\)"),
        ({"actions": 0.0}, r"actions of shape \(\)"),
    ],
)
def test_data_that_does_not_fit_is_refused(task, tmp_path, columns, message):
    recorded(tmp_path / "data.hdf5", **columns)
    with pytest.raises(UserError, match=message):
        task.get_dataset(tmp_path / "data.hdf5")


def test_what_cannot_be_read_is_told(task, tmp_path):
    (tmp_path / "data.hdf5").write_bytes(b"nothing")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "one.npy", np.zeros(3))
    for file in ("data.hdf5", "empty.npz", "one.npy", "nowhere.hdf5", "."):
        with pytest.raises(UserError, match=r"cannot be read"):
            task.get_dataset(tmp_path / file)
    with pytest.raises(UserError, match="could not be downloaded"):
        task.get_dataset()
    with pytest.raises(UserError, match="no data set of D4RL's"):
        RecordedTask(Sized(), "Hopper-v4")


@pytest.mark.parametrize("return_", [-20.272305, 0.0, 1600.0, 3234.3])
def test_scores_are_fractions_as_in_d4rl(task, return_):
    fraction = task.get_normalized_score(return_)
    assert fraction == pytest.approx((return_ + 20.272305) / 3254.572305)
    assert 100 * fraction == pytest.approx(d4rl_names.normalized_score("hopper-medium-v2", return_))
    assert (task.ref_min_score, task.ref_max_score) == (-20.272305, 3234.3)
    assert task.dataset_url.endswith("offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5")


def test_pickled_tasks_keep_their_data(task, tmp_path):
    recorded(tmp_path / "OFFPCC_DATASETS" / "hopper_medium-v2.hdf5")
    assert len(pickle.loads(pickle.dumps(task)).get_dataset()["rewards"]) == 30
