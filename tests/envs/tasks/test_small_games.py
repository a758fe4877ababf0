"""MiniGrid, MinAtar and POPGym: found by their ids, shown as networks read them, and learned from end to end."""

import gymnasium
import numpy as np
import pytest
from conftest import rows, run_folder
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

import offpcc
from offpcc.envs.make import make
from offpcc.envs.wrappers import BooleanGrid, OneHotGrid, OneHotObservation

TASKS = {  # id: algorithm, config, shape of an observation
    "MiniGrid-MemoryS7-v0": ("crdqn", "minigrid_memory", (20, 7, 7)),
    "MinAtar/Breakout-v1": ("cqrdqn", "minatar", (4, 10, 10)),
    "popgym-RepeatPreviousEasy-v0": ("rqrdqn", "popgym", (4,)),
    "popgym-AutoencodeEasy-v0": ("r2d2", "popgym", (6,)),
    "popgym-PositionOnlyCartPoleEasy-v0": ("rdsac", "popgym", (2,)),
}
PACKAGES = {"MiniGrid": "minigrid", "MinAtar": "minatar", "popgym": "popgym"}


class Showing(gymnasium.Env):
    """Shows one observation."""

    action_space = Discrete(2)

    def __init__(self, space, shown):
        self.observation_space, self._shown = space, shown

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._shown, {}


def shown(wrapper, space, observation, **arguments):
    env = wrapper(Showing(space, observation), **arguments)
    seen = env.reset()[0]
    assert env.observation_space.contains(seen)
    return seen


def test_each_value_of_a_symbol_has_a_channel():
    grid = np.array([[[10, 5, 2], [0, 0, 0]], [[3, 1, 1], [10, 0, 2]]], np.uint8)
    seen = shown(OneHotGrid, Dict({"image": Box(0, 255, (2, 2, 3), np.uint8)}), {"image": grid})
    assert seen.shape == (20, 2, 2) and seen.dtype == np.uint8
    for row in range(2):
        for column in range(2):
            a, b, c = grid[row, column].tolist()
            assert np.flatnonzero(seen[:, row, column]).tolist() == [a, 11 + b, 17 + c]
    assert set(np.unique(seen)) == {0, 255}


def test_booleans_become_channels_of_bytes():
    grid = np.random.default_rng(0).random((10, 9, 4)) < 0.5
    seen = shown(BooleanGrid, Box(0, 1, (10, 9, 4), bool), grid)
    np.testing.assert_array_equal(seen, np.where(np.moveaxis(grid, -1, 0), 255, 0))


def test_symbols_become_one_hot_vectors():
    assert shown(OneHotObservation, Discrete(3, start=-1), -1).tolist() == [1, 0, 0]
    assert shown(OneHotObservation, MultiDiscrete([2, 3]), np.array([1, 2])).tolist() == [0, 1, 0, 0, 1]
    both = Tuple((Discrete(2), Box(-1.0, 1.0, (2,), np.float32)))
    seen = shown(OneHotObservation, both, (1, np.float32([0.5, -0.5])))
    assert seen.tolist() == [0, 1, 0.5, -0.5] and seen.dtype == np.float32


@pytest.mark.parametrize(
    ("wrapper", "space", "told"),
    [
        (OneHotGrid, Box(0, 255, (2, 2, 2), np.uint8), "needs a grid of 3 symbols"),
        (OneHotGrid, Dict({"view": Box(0, 255, (2, 2, 3), np.uint8)}), "no entry 'image', but view"),
        (BooleanGrid, Box(0, 255, (2, 2, 2), np.uint8), "needs booleans"),
    ],
)
def test_other_observations_are_refused(wrapper, space, told):
    with pytest.raises(ValueError, match=told):
        wrapper(Showing(space, None))


@pytest.mark.parametrize(("name", "package"), [("MiniGrid-MemoryS7-v0", "minigrid"), ("MinAtar/Asterix-v1", "minatar")])
def test_a_missing_package_is_named(monkeypatch, name, package):
    monkeypatch.setattr("offpcc.envs.registration.is_installed", lambda _: False)
    monkeypatch.setattr("offpcc.envs.make.is_installed", lambda _: False)
    monkeypatch.setattr(gymnasium, "registry", {})
    with pytest.raises(offpcc.envs.make.UnsuitableEnvironment, match=f"pip install {package}"):
        make(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_run_in_each(launch, tmp_path, name):
    pytest.importorskip(PACKAGES[name.replace("/", "-").split("-")[0]])
    algo, config, shape = TASKS[name]
    (tmp_path / "small.gin").write_text(
        f"include 'configs/discrete/{config}.gin'\ntrain.num_steps_per_epoch = 300\ntrain.num_epochs = 2\n"
        "train.update_after = 150\ntrain.updates_per_step = 0.02\ntrain.num_test_episodes_per_epoch = 1\n"
    )
    given = ("--env", name, "--algo", algo, "--run_id", 1, "--config", tmp_path / "small.gin")
    code, _, err = launch(*given)
    assert code == 0, err
    folder = run_folder(tmp_path, name.replace("/", "-"), algo)
    assert len(rows(folder)) == 3
    offpcc.configure(f"discrete/{config}.gin")
    assert offpcc.build(name, algo).algorithm.observation_shape == shape
    code, out, err = launch("evaluate", folder, "--episodes", 1)
    assert code == 0 and "return over 1 episode" in out, err


def test_actions_of_several_numbers_are_refused(launch):
    pytest.importorskip("popgym")
    code, _, err = launch("--env", "popgym-BattleshipEasy-v0", "--algo", "rdqn", "--config", "discrete/popgym.gin")
    assert code == 2 and "its actions are MultiDiscrete([8 8])" in err and "Traceback" not in err
