"""MiniGrid, MinAtar and POPGym: found by their ids, shown as networks read them, and learned from end to end."""

import gymnasium
import numpy as np
import pytest
from conftest import rows, run_folder
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

import offpcc
from offpcc.envs import extras
from offpcc.envs.faults import UnfitError
from offpcc.envs.make import UnsuitableEnvironment, make
from offpcc.envs.wrappers import OneHotGrid, OneHotObservation
from offpcc.utils.spaces import channels_first_shape

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


@pytest.mark.parametrize("shape", [(9, 7), (7, 9), (8, 8), (30, 2)])
def test_networks_read_the_symbols_of_any_grid_as_channels(shape):
    grid = np.random.default_rng(0).integers(0, 2, (*shape, 3)).astype(np.uint8)
    seen = shown(OneHotGrid, Box(0, 255, (*shape, 3), np.uint8), grid)
    assert channels_first_shape(seen.shape)[0] == 20 and sorted(seen.shape[1:]) == sorted(shape)
    of_doors = seen[18] if seen.shape[1:] == shape else seen[18].T  # value 1 of the third symbol
    np.testing.assert_array_equal(of_doors, 255 * grid[..., 2])


def test_numbers_beside_choices_may_have_another_type_or_a_rounding_error():
    both = Tuple((Box(-1.0, 1.0, (2,), np.float32), Discrete(2)))
    for numbers in (np.array([0.5, -0.5]), np.float32([1.0000001, 0.0])):
        env = OneHotObservation(Showing(both, (numbers, 1)))
        assert env.reset()[0] == pytest.approx([*numbers, 0, 1])
    for wrong in ((np.zeros(3), 1), (np.zeros(2), 2), (np.zeros(2),), None):
        with pytest.raises(UnfitError, match="but its space is Tuple"):
            OneHotObservation(Showing(both, wrong)).reset()


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
        (OneHotObservation, gymnasium.spaces.Sequence(Discrete(3)), "no fixed size"),
        (OneHotObservation, Discrete(2**40), "1,099,511,627,776 numbers, more than"),
    ],
)
def test_other_observations_are_refused(wrapper, space, told):
    with pytest.raises(ValueError, match=told):
        wrapper(Showing(space, None))


def test_choices_are_vectors_without_a_wrapper_and_a_wrong_choice_is_told():
    env = make(lambda: Showing(Tuple((Discrete(2), Discrete(3))), (1, 2)))
    assert env.reset()[0].tolist() == [0, 1, 0, 0, 1]
    with pytest.raises(UnfitError, match=r"returned 3 for an observation, but its space is Discrete\(3\)"):
        make(lambda: Showing(Discrete(3), 3)).reset()
    with pytest.raises(UnsuitableEnvironment, match=r"observations of Discrete.* have 1,099,511,627,776 numbers"):
        make(lambda: Showing(Discrete(2**40), 0))


def test_a_text_is_refused_with_two_ways_to_leave_it_out():
    space = Dict({"text": gymnasium.spaces.Text(3), "x": Box(-1, 1, (2,), np.float32)})
    with pytest.raises(
        UnsuitableEnvironment, match=r"'text' .* is a text.*FilterObservation.*make.wrappers = \[@OneHot"
    ):
        make(lambda: Showing(space, {}))


@pytest.mark.parametrize("row", extras.ENVIRONMENTS, ids=lambda row: row.name)
def test_the_table_says_what_an_agent_sees(row):
    pytest.importorskip(row.package)
    env = make(row.name, wrappers=[OneHotGrid] if row.family == "minigrid" else [])
    assert env.observation_space.shape == row.observation_shape
    assert env.action_space == Discrete(row.action_size)
    assert env.get_wrapper_attr("max_steps" if row.family == "minigrid" else "spec") is not None
    env.reset(seed=0)
    env.action_space.seed(1)
    length, is_over = 0, False
    while not is_over and length <= row.max_episode_steps:
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        length, is_over = length + 1, terminated or truncated
    assert is_over and length <= row.max_episode_steps


def test_a_game_of_minatar_shows_a_channel_for_each_kind_of_object():
    pytest.importorskip("minatar")
    env = make("MinAtar/Seaquest-v1", render_mode="rgb_array")
    theirs = env.unwrapped._game
    observation, _ = env.reset(seed=3)
    env.action_space.seed(0)
    colours = set()
    for _ in range(40):
        expected = theirs.state()  # booleans (10, 10, channels)
        np.testing.assert_array_equal(observation, np.where(np.moveaxis(expected, -1, 0), 255, 0))
        assert env.render().shape == (160, 160, 3)
        colours |= {tuple(pixel) for pixel in env.render()[::16, ::16].reshape(-1, 3)}
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert isinstance(reward, float)
        if terminated or truncated:
            observation, _ = env.reset()
    assert len(colours) > 4


def test_an_episode_of_minatar_follows_from_the_generators_state():
    pytest.importorskip("minatar")
    env, played = make("MinAtar/Asterix-v1"), []
    env.reset(seed=1)
    for _ in range(3):
        env.step(3)  # the last action, which a step may repeat
    before = env.unwrapped.np_random.bit_generator.state
    for _ in range(2):
        env.unwrapped.np_random.bit_generator.state = before
        observation, _ = env.reset()
        seen = [observation]
        for action in (1, 2, 3, 4, 0) * 6:
            observation, *_ = env.step(action)
            seen.append(observation)
        played.append(np.stack(seen))
    np.testing.assert_array_equal(*played)
    env.reset()
    assert any(
        (env.step(action)[0] != seen).any() for action, seen in zip((1, 2, 3, 4, 0) * 6, played[0][1:], strict=True)
    )


def test_the_ids_of_minatar_that_a_user_registered_work_and_have_a_limit():
    pytest.importorskip("minatar")
    env = make("MinAtar/Breakout-v0")
    assert env.action_space == Discrete(6) and env.spec.max_episode_steps == 10_000
    env = make("MinAtar/Breakout-v1", kwargs={"sticky_action_prob": 0.0, "max_episode_steps": 7})
    assert env.action_space == Discrete(3) and env.spec.max_episode_steps == 7
    assert env.unwrapped._game.sticky_action_prob == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_the_check_finds_no_fault(launch, name):
    pytest.importorskip(PACKAGES[name.replace("/", "-").split("-")[0]])
    config = ("--config", "discrete/minigrid_memory.gin") if name.startswith("MiniGrid") else ()
    code, out, err = launch("check", "--env", name, *config)
    assert code == 0 and "FAULT" not in out and "repeats episodes" in out, out + err


@pytest.mark.parametrize(("name", "package"), [("MiniGrid-MemoryS7-v0", "minigrid"), ("MinAtar/Asterix-v1", "minatar")])
def test_a_missing_package_is_named(monkeypatch, name, package):
    monkeypatch.setattr("offpcc.envs.registration.is_installed", lambda _: False)
    monkeypatch.setattr("offpcc.envs.unsuitable.is_installed", lambda _: False)
    monkeypatch.setattr(gymnasium, "registry", {})
    with pytest.raises(UnsuitableEnvironment, match=f"pip install {package}"):
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


def test_actions_of_several_numbers_are_refused_without_their_wrapper(launch):
    pytest.importorskip("popgym")
    given = ("--env", "popgym-BattleshipEasy-v0", "--algo", "rdqn", "--config", "discrete/popgym.gin")
    code, _, err = launch(*given)
    assert code == 2 and "its actions are MultiDiscrete([8 8])" in err and "Traceback" not in err
    short = ("train.num_epochs=1", "train.num_steps_per_epoch=70", "train.update_after=1_000")
    code, _, err = launch(*given, "--no_video", "--gin", "make.wrappers=[@MultiDiscreteToDiscrete]", *short)
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MiniGrid-MemoryS7-v0", "MinAtar/Asterix-v1", "popgym-AutoencodeEasy-v0"])
def test_a_resumed_run_equals_one_without_a_stop(launch, tmp_path, name):
    """The epochs of 130 steps end in mid-episode."""
    pytest.importorskip(PACKAGES[name.replace("/", "-").split("-")[0]])
    config = {"MiniG": "minigrid_memory", "MinAt": "minatar", "popgy": "popgym"}[name[:5]]
    algo = "rdqn" if name.startswith("popgym") else "crdqn"
    (tmp_path / "small.gin").write_text(
        f"include 'configs/discrete/{config}.gin'\ntrain.num_steps_per_epoch = 130\ntrain.num_epochs = 3\n"
        "train.update_after = 60\ntrain.updates_per_step = 0.03\ntrain.num_test_episodes_per_epoch = 1\n"
        "ValueBased.epsilon_steps = 300\nRecurrentReplayBuffer.segment_len = 10\n"
    )
    given = ("--env", name, "--algo", algo, "--run_id", 1, "--config", tmp_path / "small.gin")
    for results, *extra in [("whole",), ("parts", "--gin", "train.num_epochs=1"), ("parts", "--resume")]:
        code, out, err = launch(*given, "--results", tmp_path / results, *extra)
        assert code == 0 and "exact" not in out + err, out + err
    whole, parts = (rows(tmp_path / part / name.replace("/", "-") / algo / "1") for part in ("whole", "parts"))
    assert len(whole) == 4 and whole == parts
