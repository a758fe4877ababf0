"""D4RL's names as environments: sizes and time limits are those that its data was recorded with."""

import functools
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from made_tasks import TASKS, make_task

import offpcc.envs
from offpcc.data.datasets.load import raw_arrays
from offpcc.envs import registration
from offpcc.envs.d4rl import catalog
from offpcc.envs.d4rl.make import RecordedTask
from offpcc.envs.make import make

SHARED = Path(os.environ.get("OFFPCC_SHARED_DATA", "no data"))
SIZES = {  # numbers of an observation and of an action in D4RL's files, as TensorFlow Datasets lists them
    "halfcheetah": (17, 6), "hopper": (11, 3), "walker2d": (17, 6), "ant": (111, 8),
    "bullet-halfcheetah": (26, 6), "bullet-hopper": (15, 3), "bullet-walker2d": (22, 6), "bullet-ant": (28, 8),
    "pen": (45, 24), "hammer": (46, 26), "door": (39, 28), "relocate": (39, 30),
    "maze2d": (4, 2), "antmaze": (29, 8),
}  # fmt: skip
UNWANTED = {"torch", "h5py", "mujoco", "pybullet", "gymnasium_robotics", "offpcc.data", "offpcc.envs.d4rl.make"}
pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")


def family(name):
    first, second = name.split("-")[:2]
    return f"bullet-{second}" if first == "bullet" else first


def one_of_each():
    """A name of every task, with each maze that it has."""
    kinds = {(catalog.task(name), family(name), "eval" in name): name for name in TASKS}
    return sorted(kinds.values())


@pytest.fixture
def made(request):
    return functools.partial(make_task, request)


def test_every_name_with_a_task_is_registered():
    for name in TASKS:
        spec = gymnasium.spec(name)
        assert spec.max_episode_steps == catalog.max_episode_steps(name)
        assert spec.kwargs == {"name": name} and spec.entry_point == "offpcc.envs.d4rl.make:make_d4rl_simulator"
        assert spec.additional_wrappers[-1].name == "RecordedTask"
    assert not {name for name in catalog.FILES if name not in TASKS} & set(gymnasium.registry)


def test_registering_imports_nothing_that_is_large():
    code = f"import sys, offpcc.envs; print(*{UNWANTED} & set(sys.modules))"
    root = Path(offpcc.envs.__file__).parents[2]
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
    assert gymnasium.spec(catalog.task(name))  # which was there, or came with the package


def test_agents_are_given_them_as_all_others():
    pytest.importorskip("mujoco")
    with closing(make("hopper-medium-v2")) as env:
        assert env.observation_space.dtype == np.float32
        assert env.get_wrapper_attr("get_normalized_score")(3234.3) == 1.0


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(registration, "is_installed", lambda package: False)
    monkeypatch.setattr(offpcc.envs, "is_installed", lambda package: False)
    assert offpcc.envs.missing_package("pen-human-v1") == "gymnasium-robotics"
    with pytest.raises(gymnasium.error.DependencyNotInstalled, match="pip install gymnasium-robotics"):
        gymnasium.make("pen-human-v1")


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
