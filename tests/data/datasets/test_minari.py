"""Recorded data in Minari's format."""

import json
import sys
import warnings

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from offpcc.data.datasets import minari as minari_source
from offpcc.data.datasets.load import load_dataset
from offpcc.data.datasets.metadata import recorded_in
from offpcc.utils.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def minari(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return pytest.importorskip("minari")


def record(minari, name, observation_space, action_space, episodes):
    """Write a data set; `episodes` of (observations, actions, terminations)."""
    buffers = [
        minari.data_collector.EpisodeBuffer(
            id=number,
            observations=observations,
            actions=actions,
            rewards=[float(t) for t in range(len(terminations))],
            terminations=list(terminations),
            truncations=[False] * (len(terminations) - 1) + [not terminations[-1]],
            infos={},
        )
        for number, (observations, actions, terminations) in enumerate(episodes)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            name, buffers, observation_space=observation_space, action_space=action_space, env=None
        )


VECTOR = Box(-np.inf, np.inf, (3,), np.float64)


def vectors(length, first=0.0):
    return first + np.arange((length + 1) * 3.0).reshape(length + 1, 3)


def test_episodes_of_an_environment_are_read(minari):
    env = gymnasium.make("Pendulum-v1", max_episode_steps=20)
    episodes = []
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        env.action_space.seed(seed)
        observations, actions, done = [observation], [], False
        while not done:
            actions.append(env.action_space.sample())
            observation, _, terminated, done, _ = env.step(actions[-1])
            observations.append(observation)
        episodes.append((np.stack(observations), actions, [terminated] * len(actions)))
    record(minari, "pendulum/random-v0", env.observation_space, env.action_space, episodes)
    data = load_dataset("minari:pendulum/random-v0")
    assert data.lengths.tolist() == [20, 20, 20]
    assert data.num_transitions == 60
    assert not data.terminations.any()
    assert np.flatnonzero(data.truncations).tolist() == [19, 39, 59]
    assert np.array_equal(data.observations, np.concatenate([e[0][:-1] for e in episodes]))
    assert np.array_equal(data.final_observations, np.stack([e[0][-1] for e in episodes]))
    recorded = np.concatenate([np.stack(e[1]) for e in episodes])
    assert np.array_equal(data.actions, recorded)
    assert np.allclose(data.unit_actions(), recorded / 2)
    assert data.returns.tolist() == [190, 190, 190]
    assert not data.notices and not data.action_warnings()
    assert data.metadata["dataset_id"] == "pendulum/random-v0"


def test_ends_and_unbounded_actions(minari):
    unbounded = Box(-np.inf, np.inf, (2,), np.float32)
    episodes = [
        (vectors(2), np.full((2, 2), 0.5, np.float32), [False, True]),
        (vectors(4, 100), np.full((4, 2), 3.0, np.float32), [False] * 4),
    ]
    record(minari, "mine/antmaze-v0", VECTOR, unbounded, episodes)
    data = load_dataset("minari:mine/antmaze-v0")
    assert data.terminations.tolist() == [False, True, False, False, False, False]
    assert data.truncations.tolist() == [False] * 5 + [True]
    assert data.actions[:, 0].tolist() == [0.5, 0.5, 3, 3, 3, 3]
    assert data.unit_actions()[:, 0].tolist() == [0.5, 0.5, 1, 1, 1, 1]
    assert any("clipped" in notice.text for notice in data.action_warnings())
    assert any("goes on after the goal" in notice.text for notice in data.notices)


def test_dictionaries_of_vectors_are_joined_as_gymnasium_flattens_them(minari):
    space = Dict(
        {"observation": VECTOR, "desired_goal": Box(-9, 9, (2,)), "achieved_goal": Dict({"x": Box(-9, 9, (1,))})}
    )
    goals = np.array([[5.0, 6.0], [5.0, 6.0], [5.0, 6.0]], np.float32)
    observations = {
        "observation": vectors(2),
        "desired_goal": goals,
        "achieved_goal": {"x": np.array([[1.0], [2.0], [3.0]], np.float32)},
    }
    record(
        minari, "maze/play-v0", space, Box(-1, 1, (1,)), [(observations, np.zeros((2, 1), np.float32), [False, True])]
    )
    data = load_dataset("minari:maze/play-v0")
    single = {"observation": vectors(2)[1], "desired_goal": goals[1], "achieved_goal": {"x": np.float32([2.0])}}
    assert data.observations[1].tolist() == gymnasium.spaces.flatten(space, single).tolist()
    assert data.observations.shape == (2, 6)
    assert any("joined" in notice.text for notice in data.notices)


@pytest.mark.parametrize(
    "observation_space, action_space, message",
    [
        (VECTOR, MultiDiscrete([3, 2]), "actions are MultiDiscrete"),
        (Discrete(3), Box(-1, 1, (1,)), "observations are or hold Discrete"),
        (Tuple([VECTOR, Discrete(2)]), Box(-1, 1, (1,)), "observations are or hold Tuple"),
    ],
)
def test_other_spaces_are_refused(minari, observation_space, action_space, message):
    def drawn(space, number):
        samples = [space.sample() for _ in range(number)]
        return tuple(map(np.array, zip(*samples, strict=True))) if isinstance(space, Tuple) else np.array(samples)

    episode = drawn(observation_space, 3), drawn(action_space, 2), [False, True]
    record(minari, "mine/other-v0", observation_space, action_space, [episode])
    with pytest.raises(UserError, match=message):
        load_dataset("minari:mine/other-v0")


def test_an_episode_with_an_observation_too_few_is_named(minari):
    episodes = [(vectors(2), np.zeros((2, 1), np.float32), [False, True])] * 2
    episodes[1] = (vectors(1), *episodes[1][1:])
    record(minari, "mine/short-v0", VECTOR, Box(-1, 1, (1,)), episodes)
    with pytest.raises(UserError, match="minari:mine/short-v0, episode 1: 2 observations and 2 actions"):
        load_dataset("minari:mine/short-v0")


def test_a_data_set_that_is_not_here_is_refused_with_near_names(minari):
    record(minari, "mine/here-v0", VECTOR, Box(-1, 1, (1,)), [(vectors(1), np.zeros((1, 1), np.float32), [True])])
    with pytest.raises(UserError, match=r"`minari download mine/hare-v0`, or choose one of mine/here-v0"):
        load_dataset("minari:mine/hare-v0")
    with pytest.raises(UserError, match="not an id of a Minari dataset"):
        load_dataset("minari:")


def test_a_damaged_data_set_is_refused(minari, tmp_path):
    record(minari, "mine/here-v0", VECTOR, Box(-1, 1, (1,)), [(vectors(1), np.zeros((1, 1), np.float32), [True])])
    (tmp_path / "mine" / "here-v0" / "data" / "main_data.hdf5").write_bytes(b"lost")
    with pytest.raises(UserError, match="minari:mine/here-v0 cannot be read"):
        load_dataset("minari:mine/here-v0")
    (tmp_path / "mine" / "here-v0" / "data" / "metadata.json").write_text("{}")
    with pytest.raises(UserError, match="minari:mine/here-v0 cannot be read"):
        load_dataset("minari:mine/here-v0")


def recorded_file(minari, folder):
    """The file of a data set of two episodes."""
    episodes = [(vectors(4, number), np.zeros((4, 1), np.float32), [False] * 3 + [True]) for number in range(2)]
    record(minari, "mine/here-v0", VECTOR, Box(-1, 1, (1,)), episodes)
    return folder / "mine" / "here-v0" / "data" / "main_data.hdf5"


def test_its_file_and_folders_lead_to_its_name(minari, tmp_path):
    path = recorded_file(minari, tmp_path)
    for given in (path, path.parent, path.parents[1]):
        with pytest.raises(UserError, match=rf"give minari:mine/here-v0, and set MINARI_DATASETS_PATH to {tmp_path}$"):
            load_dataset(given)
    for text in ("{}", '{"dataset_id": "mine/renamed-v0"}', '{"dataset_id": ""}', "[" * 100_000):
        (path.parent / "metadata.json").write_text(text)
        with pytest.raises(UserError, match="is a folder"):
            load_dataset(path.parent)


def changed(path, key, change):
    with h5py.File(path, "a") as file:
        del file[key]
        change(file, key)


@pytest.mark.parametrize(
    "key, change, message",
    [
        ("observations", lambda file, key: file.__setitem__(key, h5py.ExternalLink("x", "y")), "is a link"),
        ("observations", lambda file, key: file.__setitem__(key, h5py.SoftLink("/nowhere")), "is a link"),
        ("rewards", lambda file, key: file.create_dataset(key, (4,), "f4", external=[("x", 0, 16)]), "in other files"),
        ("actions", lambda file, key: file.create_dataset(key, (10**7, 10**7), "f4", chunks=True), "would be 400,0"),
        ("infos/x", lambda file, key: file.create_dataset(key, (10**7, 10**7), "f4", chunks=True), "would be 400,0"),
        ("actions", lambda file, key: file.__setitem__(key, np.zeros((3, 1))), "cannot be read|3 actions|4 rewards"),
        ("rewards", lambda file, key: file.__setitem__(key, np.zeros(0)), "cannot be read|0 actions"),
        ("rewards", lambda file, key: file.__setitem__(key, 1.0), "cannot be read"),
    ],
)  # fmt: skip
def test_a_file_that_lies_is_refused(minari, tmp_path, key, change, message):
    path = recorded_file(minari, tmp_path)
    with h5py.File(path, "a") as file:
        if f"episode_1/{key}" not in file:
            file[f"episode_1/{key}"] = 0
    changed(path, f"episode_1/{key}", change)
    with pytest.raises(UserError, match=message):
        load_dataset("minari:mine/here-v0")


def test_more_than_there_is_room_for_is_refused(minari, tmp_path, monkeypatch):
    recorded_file(minari, tmp_path)
    # 5 observations of 3, 4 actions and rewards of 4 bytes, and 4 terminations of one, twice
    monkeypatch.setattr(minari_source, "available_bytes", lambda: 3 * 2 * (60 + 16 + 16 + 4))
    assert load_dataset("minari:mine/here-v0").num_steps == 8
    monkeypatch.setattr(minari_source, "available_bytes", lambda: 3 * 2 * (60 + 16 + 16 + 4) - 1)
    with pytest.raises(
        UserError, match="minari:mine/here-v0: its first 2 episodes take 576 bytes while they are joined"
    ):
        load_dataset("minari:mine/here-v0")


def test_the_environment_is_told(minari, tmp_path):
    recorded_file(minari, tmp_path)
    assert recorded_in(load_dataset("minari:mine/here-v0").metadata) is None
    file = tmp_path / "mine" / "here-v0" / "data" / "metadata.json"
    specification = gymnasium.make("Pendulum-v1").spec.to_json()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"env_spec": specification}))
    assert recorded_in(load_dataset("minari:mine/here-v0").metadata) == "Pendulum-v1"
    for wrong in ('{"a": 1}', "[" * 200_000, 3):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"env_spec": wrong}))
        with pytest.raises(UserError, match="minari:mine/here-v0 cannot be read"):
            load_dataset("minari:mine/here-v0")


def test_without_the_package_the_remedy_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(UserError, match=r"pip install minari"):
        load_dataset("minari:mine/here-v0")
