"""The state for critics: `make.state`, data sets with states, and runs that learn from both."""

import functools
import math

import gymnasium
import h5py
import numpy as np
import pytest
from exact_resume import assert_resumes_exactly
from gymnasium import spaces

import offpcc
from offpcc.algorithms.agent import load_actor
from offpcc.config import loading
from offpcc.core import PackedDict
from offpcc.data.buffers.storage import folder_of_frames
from offpcc.data.checks.env_fit import fits, match_states_and_wrappers
from offpcc.data.offline import read
from offpcc.envs.make import UnsuitableEnvironment, make
from offpcc.envs.wrappers import Flicker, KeepIndices, PackedStateObservation, StateObservation, WithoutState
from offpcc.training.spec import RunSpec
from offpcc.utils.errors import UserError
from offpcc.utils.findings import OK

PENDULUM = "pendulum-p-v0"
QUICK = {"num_steps_per_epoch": 220, "num_test_episodes_per_epoch": 1, "update_after": 210, "updates_per_step": 0.02}
SMALL = ["Recurrent.hidden_dim = 8", "Recurrent.num_layers = 1", "RecurrentReplayBuffer.batch_size = 2"]


def play(env, steps=205, seed=3):
    """Observations of random steps; a new episode begins where one ended."""
    draw = np.random.default_rng(seed)
    seen = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        observation, _, terminated, truncated, _ = env.step(draw.uniform(-1, 1, 1).astype(np.float32))
        seen.append(observation)
        if terminated or truncated:
            seen.append(env.reset()[0])
    return seen


def test_a_hidden_velocity_is_the_state():
    shown, whole = make(PENDULUM, state="info", scale_actions=False), make("pendulum-v0")
    assert shown.observation_space["state"] == whole.observation_space
    for dictionary, full in zip(play(shown), play(whole), strict=True):
        assert list(dictionary) == ["observation", "state"]
        np.testing.assert_array_equal(dictionary["state"], full)
        np.testing.assert_array_equal(dictionary["observation"], full[:2])


def test_training_packs_it_and_an_agent_that_acts_does_not_see_it():
    trained = make(PENDULUM, state="info", scale_actions=True)
    space = trained.observation_space
    assert isinstance(space, PackedDict) and space.state_key == "state" and space.agent_space.shape == (2,)
    acting = make(PENDULUM, state="info", shows_state=False, scale_actions=True)
    plain = make(PENDULUM, scale_actions=True)
    assert acting.observation_space == plain.observation_space == space.agent_space
    for packed, alone, usual in zip(play(trained), play(acting), play(plain), strict=True):
        observation, state = space.split_state(packed)
        np.testing.assert_array_equal(observation, alone)
        np.testing.assert_array_equal(alone, usual)
        assert state.dtype == np.float32 and state.shape == (3,)


def test_the_corridor_shows_critics_the_cue():
    env = make("corridor-30-v0", state="info")
    seen = [dictionary["state"] for dictionary in play(env, 60, seed=1)]
    assert {cue for cue, _ in seen[1:30]} == {seen[0][0]} and abs(seen[0][0]) == 1.0
    assert [way for _, way in seen[:31]] == pytest.approx(np.arange(31) / 30)
    for state in seen:
        assert env.observation_space["state"].contains(state)


def test_each_of_several_views_hides_and_the_state_is_whole():
    wrappers = [functools.partial(KeepIndices, indices=(0, 1)), functools.partial(Flicker, probability=0.5)]
    env = make("pendulum-v0", wrappers=wrappers, state="info")
    for dictionary, full in zip(play(env, 150), play(make("pendulum-v0"), 150), strict=True):
        np.testing.assert_array_equal(dictionary["state"], full)


class Lamp(gymnasium.Env):
    """Shows a Dict whose entry "lamp" is the state."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)
    observation_space = spaces.Dict({"place": spaces.Box(-1, 1, (2,), np.float32), "lamp": spaces.Discrete(3)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        return self.observe(), 0.0, False, self.steps == 20, {}

    def observe(self):
        return {"place": np.full(2, self.steps / 20, np.float32), "lamp": self.steps % 3}


def test_the_state_is_an_entry_of_a_dict():
    env = make(Lamp, state="lamp", scale_actions=True)
    space = env.observation_space
    observation, state = space.split_state(env.reset(seed=0)[0])
    assert space.agent_space == PackedDict(spaces.Dict({"place": Lamp.observation_space["place"]}))
    np.testing.assert_array_equal(state, [1.0, 0.0, 0.0])
    assert observation.shape == space.agent_space.shape
    hidden = make(Lamp, state="lamp", shows_state=False)
    assert list(hidden.reset(seed=0)[0]) == ["place"]


class Odd(gymnasium.Env):
    """An environment whose info holds an odd state."""

    action_space = observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, info):
        self.info = info

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), self.info

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, self.info


class Rich(Lamp):
    """Shows two numbers; its info holds a state of three, which no attribute state_space announces."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"state": np.full(3, self.steps)}

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"state": np.full(3, self.steps)}

    def observe(self):
        return super().observe()["place"]


@pytest.mark.parametrize("box", [spaces.Box(-1, 1, (), np.float32), spaces.Box(-9, 9, (2, 3), np.int64)], ids=str)
def test_a_run_whose_only_other_entry_is_no_vector_is_tested(box):
    class Shaped(Lamp):
        observation_space = spaces.Dict({"observation": box, "lamp": spaces.Discrete(3)})

        def observe(self):
            return {"observation": np.full(box.shape, self.steps / 20, box.dtype), "lamp": self.steps % 3}

    offpcc.configure(None, 'make.state = "lamp"', "ActorCritic.hidden_dims = (8,)", "ReplayBuffer.batch_size = 4")
    learner = offpcc.build(Shaped, "sac")
    learner.train(num_epochs=1, **{**QUICK, "num_steps_per_epoch": 215})
    assert learner.loop.epoch == 1 and learner.algorithm.observation_shape == (math.prod(box.shape),)


def test_an_array_that_agents_cannot_see_is_refused_before_the_first_step():
    class Square(Rich):
        observation_space = spaces.Box(-1, 1, (2, 3), np.float32)

    with pytest.raises(UnsuitableEnvironment, match="FlattenObservation"):
        make(Square, state="info", scale_actions=True)


def test_a_wrapper_that_hides_leaves_the_environments_own_state():
    wrappers = [functools.partial(KeepIndices, indices=(0,)), functools.partial(Flicker, probability=0.5)]
    env = make(Rich, wrappers=wrappers, state="info", scale_actions=True)
    packed = [env.reset(seed=0)[0], *(env.step(np.zeros(1, np.float32))[0] for _ in range(20))]
    observations, states = env.observation_space.split_state(np.stack(packed))
    assert observations.shape == (21, 1)
    np.testing.assert_array_equal(states, np.arange(21)[:, None].repeat(3, 1))


def test_hidden_parts_of_data_are_not_the_environments_own_state(tmp_path):
    offpcc.collect(Rich, None, steps=40, seed=1).save(file := tmp_path / "data.hdf5")
    env = make(Rich, wrappers=[functools.partial(KeepIndices, indices=(0,))], state="info", scale_actions=True)
    with pytest.raises(UserError, match="has no column of states"):
        read(file, env, state="info")


@pytest.mark.parametrize(
    "env, state, words",
    [
        (PENDULUM, "velocity", r"make.state is 'velocity', but the observations of pendulum-p-v0 have no entries"),
        (Lamp, "light", "have the entries lamp, place; give the key of one"),
        ("pendulum-v0", "info", 'info without "state"'),
        (functools.partial(Odd, {"state": np.zeros((2, 2))}), "info", r"of shape \(2, 2\), which is no vector"),
        (functools.partial(Odd, {"state": np.zeros((2, 2))}), 3, "state"),
    ],
)
def test_a_state_that_is_not_there_is_refused(env, state, words):
    with pytest.raises(UserError, match=words):
        make(env, state=state)


def test_the_only_entry_is_no_state():
    class Alone(Lamp):
        observation_space = spaces.Dict({"lamp": spaces.Discrete(3)})

    with pytest.raises(UnsuitableEnvironment, match="the agent would see nothing"):
        make(Alone, state="lamp")


# Data sets ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_info():
    with loading.same_bindings():
        loading.load_gin_config(None, ['make.state = "info"'])
        yield


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_recording_has_a_column_of_states(num_envs, with_info, tmp_path):
    data = offpcc.collect(PENDULUM, None, steps=450, seed=1, num_envs=num_envs)
    data.save(file := tmp_path / "data.hdf5")
    with h5py.File(file) as recorded:
        assert recorded["observations"].shape == (450, 2) and recorded["states"].shape == (450, 3)
        np.testing.assert_array_equal(recorded["observations"][:], recorded["states"][:, :2])
        np.testing.assert_array_equal(recorded["next_observations"][:], recorded["next_states"][:, :2])
    again = offpcc.data.load_dataset(file)
    np.testing.assert_array_equal(again.observations, data.observations)
    np.testing.assert_array_equal(again.final_observations, data.final_observations)
    for env in (make(PENDULUM, state="info", scale_actions=True), None):
        learned = read(file, env, state="info")
        assert learned.packed.state_key == "state"
        np.testing.assert_array_equal(learned.observation_space.split_state(learned.rows.observations)[1].shape[1], 3)
    for key in (None, "info"):
        env = make(PENDULUM, state=key, scale_actions=True)
        assert [finding.level for finding in fits(again, env)] == [OK]
    for env in (make(PENDULUM, scale_actions=True), None):  # without make.state, nobody sees the state
        assert read(file, env).rows.observations.shape[1:] == (2,)


def test_data_with_velocities_give_the_state_of_an_agent_that_sees_none(tmp_path):
    offpcc.collect("pendulum-v0", None, steps=300, seed=1).save(file := tmp_path / "full.hdf5")
    learned = read(file, make(PENDULUM, state="info", scale_actions=True))
    observations, states = learned.packed.split_state(learned.rows.observations)
    full = read(file, make("pendulum-v0", scale_actions=True)).rows.observations
    np.testing.assert_array_equal(states, full)
    np.testing.assert_array_equal(observations, full[:, :2])


def test_arrays_with_states():
    steps = {"actions": np.zeros((6, 1)), "rewards": np.zeros(6), "terminations": np.arange(6) == 5}
    numbers = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    data = offpcc.Dataset.from_arrays(observations=numbers, states=numbers[:, :1] * 3, **steps)
    observations, states = data.observation_space.split_state(data.observations)
    np.testing.assert_array_equal(observations, numbers)
    np.testing.assert_array_equal(states, numbers[:, :1] * 3)
    assert data.without_states().observation_space is None
    np.testing.assert_array_equal(data.without_states().observations, numbers)
    with pytest.raises(UserError, match="there are next_observations, but no next_states; give both"):
        offpcc.Dataset.from_arrays(observations=numbers, next_observations=numbers, states=numbers, **steps)


def test_data_that_hide_the_state_are_refused(tmp_path):
    offpcc.collect(PENDULUM, None, steps=300, seed=1).save(file := tmp_path / "data.hdf5")
    for env in (make(PENDULUM, state="info", scale_actions=True), None):
        with pytest.raises(UserError, match="has no column of states"):
            read(file, env, state="info")


def test_dict_data_without_a_state_are_refused_with_this_reason(tmp_path):
    offpcc.collect(Boxed, None, steps=40, seed=1).save(file := tmp_path / "data.hdf5")
    with pytest.raises(UserError, match="has no column of states"):
        read(file, make(Boxed, state="info", scale_actions=True), state="info")


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["rsac", "td3"])
def test_a_run_resumes_exactly_and_its_actor_needs_no_state(algo, tmp_path):
    def spec(epochs):
        settings = {**QUICK, "num_epochs": epochs}
        bindings = [f"train.{key} = {value}" for key, value in settings.items()]
        loading.load_gin_config(None, ['make.state = "info"', *(SMALL if algo == "rsac" else []), *bindings])
        return RunSpec.make(PENDULUM, algo, seed=2, algorithm={"hidden_dims": (16, 16)})

    whole = assert_resumes_exactly(spec, tmp_path)
    actor = load_actor(whole / "actor_best.pt")
    assert actor.space_shape == (2,) and actor.privileged is None
    run = offpcc.load_run(whole)
    assert run.evaluate(2, seed=1).returns.shape == (2,)


def test_a_policy_is_evaluated_from_recorded_states(with_info, tmp_path):
    offpcc.collect(PENDULUM, None, steps=400, seed=1).save(file := tmp_path / "data.hdf5")
    learner = offpcc.build(PENDULUM, "td3_bc", dataset=file, algorithm={"hidden_dims": (8,)})
    offpcc.Agent(learner.algorithm).save(tmp_path / "actor.pt")
    found = offpcc.evaluate_from_data(offpcc.Agent.load(tmp_path / "actor.pt"), file, env=PENDULUM, num_updates=3)
    assert np.isfinite(found.value)


class Tinted(Lamp):
    """Shows an image, with channels last, beside the lamp."""

    image = spaces.Box(0, 255, (8, 9, 3), np.uint8)
    observation_space = spaces.Dict({"observation": image, "lamp": spaces.Discrete(3)})

    def observe(self):
        return {"observation": np.full((8, 9, 3), self.steps, np.uint8), "lamp": self.steps % 3}


@pytest.mark.parametrize("recorded_with", [["make.state = 'lamp'"], []], ids=["a state", "an ordinary entry"])
@pytest.mark.parametrize("env, algo", [(Lamp, "td3_bc"), (Tinted, "cbc")])
def test_a_policy_is_evaluated_from_data_with_the_entry_that_it_does_not_see(env, algo, recorded_with, tmp_path):
    with loading.same_bindings():
        loading.load_gin_config(None, recorded_with)
        offpcc.collect(env, None, steps=60, seed=1).save(file := tmp_path / "data.hdf5")
        loading.load_gin_config(None, ["make.state = 'lamp'", "Convolutional.kernels = (2, 2, 2, 2)"])
        learner = offpcc.build(env, algo, dataset=file, algorithm={"hidden_dims": (8,)})
        found = offpcc.evaluate_from_data(offpcc.Agent(learner.algorithm), file, env=env, num_updates=3)
    assert np.isfinite(found.value)


@pytest.mark.parametrize("env", [Lamp, Tinted])
def test_an_ordinary_entry_that_an_environment_hides_is_left_out_of_recorded_observations(env, tmp_path):
    """What remains are the bytes of the other entry: steps / 20 as a float, or an image of the number of steps."""
    offpcc.collect(env, None, steps=40, seed=1).save(file := tmp_path / "data.hdf5")
    acting = make(env, state="lamp", shows_state=False, scale_actions=True)
    rows = read(file, acting).rows
    steps = np.tile(np.arange(21), 2)
    if env is Lamp:
        expected = np.float32(steps[:, None].repeat(2, 1) / 20)
        np.testing.assert_array_equal(np.ascontiguousarray(rows.observations).view(np.float32), expected)
    else:
        np.testing.assert_array_equal(
            rows.observations, np.uint8(steps)[:, None, None, None].repeat(8, 1).repeat(9, 2).repeat(3, 3)
        )
    assert [finding.level for finding in fits(offpcc.data.load_dataset(file), acting)] == [OK]


class Pictured(Rich):
    """Shows an image, with channels last; the state is in its info."""

    observation_space = spaces.Box(0, 255, (8, 9, 3), np.uint8)

    def observe(self):
        return np.full((8, 9, 3), self.steps, np.uint8)


def test_images_beside_recorded_states_are_those_of_the_environment(with_info, tmp_path):
    offpcc.collect(Pictured, None, steps=60, seed=1).save(file := tmp_path / "states.hdf5")
    loading.load_gin_config(None, [])
    plain = offpcc.collect(Pictured, None, steps=60, seed=1)
    seen, expected = (read(data, make(Pictured, scale_actions=True)).rows.observations for data in (file, plain))
    np.testing.assert_array_equal(seen, expected)
    data = offpcc.data.load_dataset(file, memory_limit=1)
    for env in (make(Pictured, scale_actions=True), None):  # without one, the channels stay first
        matched = match_states_and_wrappers(data, env, memory_limit=1)[0].observations
        assert matched.shape[1:] == ((3, 8, 9) if env is None else (8, 9, 3)) and folder_of_frames(matched)
        in_memory = match_states_and_wrappers(data, env, memory_limit=matched.nbytes)[0].observations
        assert not folder_of_frames(in_memory)
        np.testing.assert_array_equal(matched, in_memory)


class Boxed(Rich):
    """Shows its two numbers as the single entry of a Dict."""

    observation_space = spaces.Dict({"observation": Rich.observation_space})

    def observe(self):
        return {"observation": super().observe()}


def test_a_single_entry_beside_the_state_is_an_array_in_tests_too():
    seen = make(Boxed, state="info", scale_actions=True).observation_space.agent_space
    tested = make(Boxed, state="info", shows_state=False, scale_actions=True)
    assert tested.observation_space == seen and tested.reset(seed=0)[0].shape == (2,)
    loading.load_gin_config(None, ['make.state = "info"'])
    small = {"num_epochs": 1, "num_steps_per_epoch": 20, "update_after": 10, "num_test_episodes_per_epoch": 1}
    offpcc.build(Boxed, "td3", algorithm={"hidden_dims": (8,)}).train(**small)


@pytest.mark.parametrize("env, algo", [(PENDULUM, "riql"), (PENDULUM, "td3_bc"), (None, "td3_bc")])
def test_a_run_learns_from_recorded_states(env, algo, with_info, tmp_path):
    offpcc.collect(PENDULUM, None, steps=400, seed=1).save(file := tmp_path / "data.hdf5")
    small = {"hidden_dim": 8, "num_layers": 1} if algo == "riql" else {}
    learner = offpcc.build(env, algo, dataset=file, algorithm={"hidden_dims": (16, 16), **small})
    algorithm = learner.algorithm
    assert algorithm.num_states == 3 and algorithm.state_normalization.count.isinf()
    assert algorithm.normalization.mean.shape == (2,)
    np.testing.assert_allclose(algorithm.normalization.mean, algorithm.state_normalization.mean[:2])
    tests = {} if env is None else {"num_test_episodes_per_epoch": 1}
    learner.train(num_epochs=1, num_steps_per_epoch=5, **tests)


def test_the_wrappers_have_their_places():
    env = make(PENDULUM, state="info", scale_actions=True)
    chain = []
    while isinstance(env, gymnasium.Wrapper):
        chain.append(type(env))
        env = env.env
    assert chain.index(PackedStateObservation) < chain.index(StateObservation) < chain.index(KeepIndices)
    assert WithoutState not in chain
