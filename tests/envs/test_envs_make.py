"""Making environments by name, and the one line that says why one does not suit."""

import pickle
import sys

import gin
import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from gymnasium.wrappers import PassiveEnvChecker, TimeLimit

import offpcc
from offpcc.envs.make import UnsuitableEnvironment, env_options, make
from offpcc.envs.wrapper_chain import levels
from offpcc.utils.errors import UserError

VECTOR = Box(-1, 1, (3,), np.float32)
ACTIONS = Box(-1, 1, (2,), np.float32)


class Silent(gymnasium.Env):
    """An environment of given spaces, which knows nothing of rendering."""

    def __init__(self, observations, actions):
        self.observation_space, self.action_space = observations, actions
        self.steps = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action):
        self.steps.append(action)
        return self.reset()[0], 1.0, False, False, {}


@pytest.fixture
def register():
    """Registers an environment of given spaces for the length of a test."""
    name = "offpcc-silent-v0"

    def function(observations=VECTOR, actions=ACTIONS):
        kwargs = {"observations": observations, "actions": actions}
        gymnasium.register(name, entry_point=Silent, kwargs=kwargs, disable_env_checker=True)
        return name

    yield function
    gymnasium.registry.pop(name, None)


def message(name):
    with pytest.raises(UnsuitableEnvironment) as raised:
        make(name)
    text = str(raised.value)
    assert text.startswith(f"{name}: ")
    assert "\n" not in text
    return text


def test_a_suitable_environment_is_ready_for_agents():
    env = make("pendulum-va-v0", scale_actions=True)
    assert env.action_space == Box(-1, 1, (1,), np.float32)
    observation, _ = env.reset(seed=0)
    assert observation.dtype == np.float32
    observation, *_ = env.step(np.array([0.5], dtype=np.float32))
    assert observation[1] == env.unwrapped.last_u == 1.0  # the task's units, N m
    observation, *_ = env.step(np.array([1 + 1e-6]))
    assert observation[1] == env.unwrapped.last_u == 2.0


@pytest.mark.parametrize("name", ["pendulum-p-v0", "pendulum-img-v0"])
def test_the_return_is_the_sum_of_rewards(name):
    env = make(name)
    env.action_space.seed(0)
    for _ in range(2):
        env.reset(seed=0)
        rewards, truncated = [], False
        while not truncated:
            _, reward, _, truncated, info = env.step(env.action_space.sample())
            rewards.append(reward)
            assert ("final_eval_reward" in info) == truncated
        assert info["final_eval_reward"] == pytest.approx(sum(rewards), rel=1e-12)
        assert info["episode_length"] == len(rewards) == 200


def test_any_gymnasium_environment_works_by_its_id():
    env = make("MountainCarContinuous-v0")
    env.reset(seed=0)
    assert env.step(np.zeros(1, dtype=np.float32))[0].dtype == np.float32


def test_float64_observations_become_float32(register):
    env = make(register(observations=Box(-1, 1, (3,), np.float64)))
    assert env.observation_space.dtype == np.float32
    assert env.reset()[0] in env.observation_space


def test_vectors_of_bytes_become_float32(register):
    assert make(register(observations=Box(0, 255, (128,), np.uint8))).observation_space.dtype == np.float32


@pytest.mark.parametrize("shape", [(3, 84, 84), (84, 84, 3)])
def test_images_stay_bytes(register, shape):
    space = Box(0, 255, shape, np.uint8)
    env = make(register(observations=space))
    assert env.observation_space == space
    assert env.reset()[0].dtype == np.uint8


def test_actions_are_stretched_and_clipped(register):
    space = Box(np.array([0.0, -3.0]), np.array([10.0, 1.0]), dtype=np.float64)
    assert make(register(actions=space)).action_space == space
    env = make(register(actions=space), scale_actions=True)
    assert env.action_space == Box(-1, 1, (2,), np.float32)
    env.reset()
    env.step(np.array([1.5, 0.0], dtype=np.float32))
    np.testing.assert_allclose(env.unwrapped.steps[0], [10.0, -1.0])


def test_the_module_of_an_id_is_imported(tmp_path, monkeypatch):
    (tmp_path / "house_of_tests.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('house-v0', 'gymnasium.envs.classic_control:PendulumEnv', max_episode_steps=5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = make("house_of_tests:house-v0")
    env.reset(seed=0)
    ends = [env.step(np.zeros(1, dtype=np.float32))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]
    del gymnasium.registry["house-v0"]


def test_rendering_is_asked_for(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert make("pendulum-p-v0", render_mode="rgb_array").render_mode == "rgb_array"
    assert make("pendulum-p-v0").render_mode is None


@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("pendulum-q-v0", "pendulum-p-v0"),
        ("dmc-cartpole-balanced-v0", "dmc-cartpole-balance-v0"),
        ("pendlum-img-v0", "pendulum-img-v0"),
        ("Pendulum-v9", "Pendulum-v1"),
        ("Pendulum-v0", "Pendulum-v1"),
    ],
)
def test_an_unknown_id_comes_with_the_nearest(name, nearest):
    text = message(name)
    assert "no such environment; did you mean" in text
    assert nearest in text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("offpcc.envs:pendulum-imgs-v0", "; give offpcc.envs:pendulum-img-v0"),
        ("pix:Catch", "pix:Catch: pix registers catch-v0; give pix:catch-v0"),
        ("pix:Catch-v0", "pix:Catch-v0: pix registers catch-v0; give pix:catch-v0"),
        ("pix:ball-v0", "pix:ball-v0: pix registers catch-v0; give pix:catch-v0"),
        ("json:ball-v0", "json:ball-v0: there is no such environment"),
    ],
)
def test_the_ids_of_a_module_are_named(name, told, tmp_path, monkeypatch):
    code = "import gymnasium\nclass Catch(gymnasium.Env): pass\ngymnasium.register('catch-v0', entry_point=Catch)\n"
    (tmp_path / "pix.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        assert told in message(name)
    finally:
        sys.modules.pop("pix", None)
        gymnasium.registry.pop("catch-v0", None)


def test_an_id_like_no_other_comes_with_the_list():
    assert "`offpcc envs`" in message("xyzzy")
    assert "`offpcc envs`" in message("not an id!")


def test_an_unknown_module_is_named():
    text = message("no_such_module:pendulum-v0")
    assert "there is no module 'no_such_module'" in text and "install it" in text
    assert message("json.py:pendulum-v0").endswith("write the module's name without .py: json")


def test_a_missing_simulator_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    text = message("dmc-cartpole-balance-p-v0")
    assert "dm-control" in text and "`pip install dm-control`" in text


def test_other_errors_of_an_environment_are_told_in_one_message(register):
    name = register()

    def broken(**kwargs):
        raise gymnasium.error.Error("the robot is on fire")

    gymnasium.registry[name].entry_point = broken
    with pytest.raises(UnsuitableEnvironment, match="cannot be made: Error: the robot is on fire") as raised:
        make(name)
    assert isinstance(raised.value.__cause__, gymnasium.error.Error)


class Inner:
    def __init__(self, gravity):
        pass


class Needy(gymnasium.Env):
    def __init__(self, length, width, inner=False):
        if inner:
            Inner()


def test_arguments_that_the_constructor_needs_are_named(register):
    name = register()
    gymnasium.registry[name].entry_point = Needy
    gymnasium.registry[name].kwargs = {}
    for given, told in [
        ({}, r"needs the arguments length, width; bind make.kwargs = \{'length': ..., 'width': ...\}"),
        ({"length": 3}, r"needs the argument width; bind make.kwargs = \{'length': 3, 'width': ...\}"),
        ({"length": 3, "width": 2, "inner": True}, r"missing 1 required positional argument: 'gravity'.*correct"),
        ({"length": 3, "width": 2, "size": 1}, r"does not take the arguments length, width, size"),
    ]:
        with pytest.raises(UnsuitableEnvironment, match=told):
            make(name, kwargs=given)


@pytest.mark.parametrize(
    "actions",
    [MultiDiscrete([2, 3]), MultiBinary(4), Tuple([ACTIONS]), Box(0, 3, (1,), np.int64)],
    ids=str,
)
def test_actions_of_other_kinds(register, actions):
    text = message(register(actions=actions))
    assert str(actions) in text
    assert "offpcc needs a Box of floats or a Discrete space" in text
    remedy = "[@MultiDiscreteToDiscrete]" if isinstance(actions, MultiDiscrete | MultiBinary) else "ActionWrapper"
    assert remedy in text


@pytest.mark.parametrize(
    ("low", "high", "fault"),
    [
        ([-1, -1], [1, np.inf], "the high bound of action 1 is inf"),
        ([-np.inf, -1], [1, 1], "the low bound of action 0 is -inf"),
    ],
)
def test_actions_without_bounds(register, low, high, fault):
    text = message(register(actions=Box(np.array(low, np.float32), np.array(high, np.float32))))
    assert fault in text
    assert "bounded Box" in text


@pytest.mark.parametrize("shape", [(), (2, 2), (0,)], ids=str)
def test_actions_that_are_no_vector(register, shape):
    text = message(register(actions=Box(-1, 1, shape, np.float32)))
    assert f"actions have the shape {shape}" in text and "ActionWrapper" in text


@pytest.mark.parametrize("observations", [Text(3), Sequence(Discrete(3)), Tuple([Sequence(Discrete(2))])], ids=str)
def test_observations_without_a_size(register, observations):
    text = message(register(observations=observations))
    assert str(observations) in text
    assert ("FlattenObservation" in text) == isinstance(observations, Text), "of others, it makes no Box"
    assert ("ObservationWrapper of your own" in text) == isinstance(observations, Sequence)


@pytest.mark.parametrize(
    ("observations", "fault", "remedy"),
    [
        (Box(-1, 1, (0,), np.float32), "shape (0,), which holds no numbers", "PreviousAction"),
        (Box(0, 255, (3, 8, 8), np.int64), "shape (3, 8, 8) and the type int64", "FlattenObservation"),
        (Box(-1, 1, (), np.float32), "shape ()", "FlattenObservation"),
        (Box(-1, 1, (4, 5), np.float32), "shape (4, 5)", "FlattenObservation"),
        (Box(0, 1, (3, 8, 8), np.float32), "shape (3, 8, 8) and the type float32", "FlattenObservation"),
        (Box(0, 255, (8, 8), np.uint8), "shape (8, 8) and the type uint8", "FlattenObservation"),
    ],
    ids=str,
)
def test_boxes_that_no_encoder_reads(register, observations, fault, remedy):
    text = message(register(observations=observations))
    assert fault in text and remedy in text


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.float64, np.bool_])
def test_numbers_of_other_types_become_float32(register, dtype):
    env = make(register(observations=Box(0, 1, (3,), dtype)), **env_options().values())
    observation, _ = env.reset(seed=0)
    assert env.observation_space.dtype == observation.dtype == np.float32
    assert env.observation_space.contains(observation)


def test_robots_need_no_import():
    pytest.importorskip("gymnasium_robotics")
    env = make("PointMaze_UMaze-v3", **env_options().values())
    assert env.observation_space["observation"].shape == (4,)


def test_gymnasiums_checker_does_not_warn_for_each_environment():
    """As it does of observations in float64, which become float32."""
    gymnasium.register("offpcc-wide-v0", Silent, kwargs={"observations": VECTOR, "actions": ACTIONS})
    try:
        for kwargs, checks in ({}, False), ({"disable_env_checker": False}, True):
            env = make("offpcc-wide-v0", kwargs=kwargs)
            assert (PassiveEnvChecker in map(type, levels(env))) == checks
    finally:
        del gymnasium.registry["offpcc-wide-v0"]


def test_it_is_a_value_error():
    with pytest.raises(ValueError, match="unheard-of-v1"):
        make("unheard-of-v1")


@pytest.mark.parametrize("name", ["flow-ring-random-v1", "carla-lane-v0", "waymo"])
def test_what_of_d4rl_is_out_of_scope_is_told(name):
    text = message(name)
    assert "are out of scope" in text and "did you mean" not in text


def test_gin_wraps_any_environment_in_order():
    gin.parse_config("""
        make.wrappers = [@DropIndices, @gymnasium.DelayObservation, @twice/Concatenate, @Concatenate, @TimeLimit]
        DropIndices.indices = (2,)
        DelayObservation.delay = 1
        twice/Concatenate.num = 2
        Concatenate.num = 3
        gymnasium.TimeLimit.max_episode_steps = 4
    """)
    env, plain = make("Pendulum-v1", **env_options().values()), gymnasium.make("Pendulum-v1")
    first, _ = plain.reset(seed=0)
    assert not env.reset(seed=0)[0].any(), "the first observation comes a step later"
    observation, _, _, truncated, _ = env.step(np.zeros(1))
    np.testing.assert_array_equal(observation[-4:], [0.0, 0.0, *first[:2]])
    assert observation.shape == (12,) and not truncated
    for _ in range(3):
        *_, truncated, info = env.step(np.zeros(1))
    assert truncated and info["episode_length"] == 4


def test_arguments_of_the_environment():
    assert make("Pendulum-v1", kwargs={"g": 5.0}).unwrapped.g == 5.0
    assert make("Pendulum-v1", kwargs={"max_episode_steps": 7}).spec.max_episode_steps == 7
    with pytest.raises(UnsuitableEnvironment, match=r"make\.kwargs"):
        make("Pendulum-v1", kwargs={"gravity": 5.0})


def test_a_time_limit_for_what_a_function_makes():
    env = make(lambda: Silent(VECTOR, ACTIONS), kwargs={"max_episode_steps": 3})
    env.reset(seed=1)
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    shorter = make(lambda: gymnasium.make("Pendulum-v1"), kwargs={"max_episode_steps": 7})
    assert shorter.spec.max_episode_steps == 7
    taken = make(lambda max_episode_steps: gymnasium.make("Pendulum-v1"), kwargs={"max_episode_steps": 7})
    assert taken.spec.max_episode_steps == 200
    ignored = make(lambda **_: gymnasium.make("Pendulum-v1"), kwargs={"max_episode_steps": 7})
    assert ignored.spec.max_episode_steps == 7
    passed_on = make(lambda **given: gymnasium.make("Pendulum-v1", **given), kwargs={"max_episode_steps": 7})
    assert [level._max_episode_steps for level in levels(passed_on) if isinstance(level, TimeLimit)] == [7]
    for steps, fault in ((300, "has a time limit of 200 steps"), (0, "positive"), ("7", "an integer")):
        with pytest.raises(UnsuitableEnvironment, match=fault):
            make(lambda: gymnasium.make("Pendulum-v1"), kwargs={"max_episode_steps": steps})


def test_a_wrapper_that_does_not_fit_is_named():
    with pytest.raises(UnsuitableEnvironment, match=r"Pendulum-v1 cannot be wrapped by DropIndices: .*indices"):
        make("Pendulum-v1", wrappers=[lambda env: env, gin.get_configurable("DropIndices")])


def test_a_wrapper_may_make_an_environment_fit(register):
    name = register(observations=Box(-1, 1, (4, 5), np.float32))
    assert "FlattenObservation" in message(name)
    assert make(name, wrappers=[gymnasium.wrappers.FlattenObservation]).observation_space.shape == (20,)


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("@Flicker", ["has to be a list", "[@Flicker]"]),
        ("[@Flicker()]", ["without parentheses"]),
    ],
)
def test_slips_in_binding_wrappers(bound, words):
    gin.parse_config(f"make.wrappers = {bound}\nFlicker.probability = 0.1")
    with pytest.raises(UserError) as raised:
        make("Pendulum-v1", **env_options().values())
    assert all(word in raised.value.message for word in words)


def test_whatever_a_wrapper_raises_is_told_in_one_line():
    def broken(env):
        raise KeyError("no such part")

    with pytest.raises(UnsuitableEnvironment, match=r"cannot be wrapped by broken: KeyError: 'no such part'"):
        make("Pendulum-v1", wrappers=[broken])


def test_arguments_and_drawing_are_told_apart(register):
    name = register()
    with pytest.raises(UnsuitableEnvironment, match=r"cannot be rendered"):
        make(name, render_mode="rgb_array", kwargs={"observations": VECTOR})


def test_gymnasiums_warnings_of_drawing_are_left_to_our_message(register, recwarn):
    with pytest.raises(UnsuitableEnvironment, match=r"cannot be rendered"):
        make(register(), render_mode="rgb_array", kwargs={})
    assert not recwarn.list


@pytest.mark.parametrize("num", [10**9, 0, 2.5])
def test_frames_beyond_the_memory_are_refused_in_one_message(num):
    gin.parse_config(
        f"make.wrappers = [@gymnasium.FrameStackObservation]\ngymnasium.FrameStackObservation.stack_size = {num}"
    )
    with pytest.raises(UserError, match=rf"FrameStackObservation\.stack_size is {num}; it has to be"):
        make("Pendulum-v1", **env_options().values())


def test_stacked_frames_are_gymnasiums():
    gin.parse_config("make.wrappers = [@gymnasium.FrameStackObservation, @gymnasium.FlattenObservation]")
    gin.bind_parameter("gymnasium.FrameStackObservation.stack_size", 4)
    env = make("Pendulum-v1", **env_options().values())
    first, _ = env.reset(seed=0)
    np.testing.assert_array_equal(first, np.tile(first[:3], 4))


def test_what_is_bound_does_not_change_make():
    """The same call gives the same environment before and after `configure`."""
    before = make("Pendulum-v1")
    offpcc.configure(
        None,
        "make.wrappers = [@DropIndices]",
        "DropIndices.indices = (2,)",
        "make.kwargs = {'g': 5.0, 'max_episode_steps': 7}",
        "make.timeout = 3.0",
    )
    after = make("Pendulum-v1")
    assert after.observation_space == before.observation_space and str(after) == str(before)
    assert after.unwrapped.g == before.unwrapped.g and after.spec.max_episode_steps == before.spec.max_episode_steps
    assert (before.timeout, after.timeout) == (None, None)
    bound = offpcc.RunSpec.make("Pendulum-v1", "sac").make_env()
    assert bound.observation_space.shape == (2,)
    assert (bound.timeout, bound.unwrapped.g, bound.spec.max_episode_steps) == (3.0, 5.0, 7)


# What DI-engine's users call ------------------------------------------------------------------------------------------


def play(env, seed=0):
    """Play an episode at random as DI-engine's users do; return its number of steps and its return."""
    env.reset(seed=seed)
    for step in range(1, 1000):
        _, _, terminated, truncated, info = env.step(env.random_action())
        if terminated or truncated:
            return step, info["final_eval_reward"]
    raise AssertionError


def test_random_actions_are_in_the_space_and_repeat_with_its_seed():
    env = make("pendulum-v0")
    drawn = []
    for _ in range(2):
        env.action_space.seed(3)
        drawn.append([env.random_action() for _ in range(5)])
    assert np.array_equal(*drawn) and len(np.unique(drawn)) == 5
    assert all(env.action_space.contains(action) for action in drawn[0])


def test_a_lazy_environment_is_made_at_its_first_reset(tmp_path):
    made = []

    def function(render_mode=None):
        made.append(render_mode)
        return gymnasium.make("pendulum-v0", render_mode=render_mode, max_episode_steps=7)

    env = make(function, lazy=True, scale_actions=True)
    assert made == [] and str(env) == "<an environment that is not made yet>"
    env.close()  # nothing to close
    assert made == []
    env.reset(seed=1)
    assert made == [None] and env.action_space == Box(-1, 1, (1,), np.float32)
    assert play(env)[0] == 7 and len(made) == 1
    assert isinstance(env.unwrapped, type(gymnasium.make("pendulum-v0").unwrapped)) and "Pendulum" in str(env)
    env.close()
    lazy, eager = make("pendulum-v0", lazy=True), make("pendulum-v0")
    for one in (lazy, eager):
        one.action_space.seed(1)
    assert play(lazy) == play(eager)
    packed = pickle.loads(pickle.dumps(make("pendulum-v0", lazy=True, kwargs={"max_episode_steps": 5})))
    assert play(packed)[0] == 5


@pytest.mark.parametrize("lazy", [True, False])
def test_a_video_of_each_episode_is_written_when_the_episode_ends(tmp_path, lazy):
    given = {"lazy": True} if lazy else {"render_mode": "rgb_array"}
    env = make("pendulum-v0", kwargs={"max_episode_steps": 4}, **given)
    env.enable_save_replay(tmp_path / "video")
    for number in (1, 2):
        play(env)
        assert sorted(file.name for file in (tmp_path / "video").iterdir()) == [
            f"episode_{one}.mp4" for one in range(1, number + 1)
        ]
    with imageio.get_reader(tmp_path / "video" / "episode_2.mp4") as reader:
        assert len(list(reader.iter_data())) == 5  # the first observation, and one after each step
    env.reset()
    env.step(env.random_action())
    env.close()
    with imageio.get_reader(tmp_path / "video" / "episode_3.mp4") as reader:
        assert len(list(reader.iter_data())) == 2


def test_a_video_begins_at_the_next_reset_and_another_folder_ends_the_last_one(tmp_path):
    env = make("pendulum-v0", render_mode="rgb_array")
    env.reset()
    env.step(env.random_action())
    env.enable_save_replay(tmp_path / "a")
    env.step(env.random_action())
    assert not (tmp_path / "a").exists() or not list((tmp_path / "a").iterdir())
    env.reset()
    env.step(env.random_action())
    env.enable_save_replay(tmp_path / "b")
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["episode_1.mp4"]
    env.reset()
    env.close()
    assert [file.name for file in (tmp_path / "b").iterdir()] == ["episode_1.mp4"]


def test_videos_that_cannot_be_leave_a_lazy_environment_as_it_is():
    env = make(Closing, lazy=True)
    with pytest.raises(UserError, match="cannot be rendered"):
        env.enable_save_replay("video")
    env.reset()


class Closing(gymnasium.Env):
    """Counts the objects that are open."""

    observation_space = Box(-1, 1, (1,), np.float32)
    num_open = 0

    def __init__(self, bound=1.0):
        self.action_space = Box(-bound, bound, (1,), np.float32)
        Closing.num_open += 1

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def close(self):
        Closing.num_open -= 1


@pytest.mark.parametrize(
    "given",
    [{"kwargs": {"bound": np.inf}}, {"render_mode": "rgb_array"}, {"wrappers": [lambda env: None]}, {"state": "info"}],
)
def test_an_environment_that_is_refused_is_closed(given):
    before = Closing.num_open
    with pytest.raises(UnsuitableEnvironment):
        make(Closing, **given)
    assert Closing.num_open == before


def test_a_fault_of_make_kwargs_names_them():
    with pytest.raises(UnsuitableEnvironment, match=r"correct make\.kwargs"):
        make("pendulum-v0", kwargs={"max_episode_steps": 0})


def test_videos_need_pictures():
    with pytest.raises(UserError, match=r"need the render_mode 'rgb_array', but .* None; make it by .*lazy=True"):
        make("pendulum-v0").enable_save_replay("video")


@pytest.mark.parametrize("module", ["gymnasium", "gymnasium_robotics"])  # the second registers these names
def test_a_task_of_mujoco_py_is_answered_with_its_successor(module):
    pytest.importorskip(module)
    with pytest.raises(UserError, match=r"Gymnasium has no HalfCheetah-v2, .*; take HalfCheetah-v5"):
        offpcc.make("HalfCheetah-v2")
