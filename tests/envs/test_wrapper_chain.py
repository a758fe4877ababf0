"""Which level of an environment was recorded, and what each is called."""

import functools
from contextlib import closing

import gin
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import (
    ClipReward,
    DtypeObservation,
    FlattenObservation,
    StickyAction,
    TimeLimit,
    TransformObservation,
)
from wandering import Wandering, assert_same, noisy, record, refusal, seen, wandering

from offpcc.envs.make import env_options, make
from offpcc.envs.wrapper_chain import find_recorded_level, is_observation_wrapper, levels, name_of, observation_wrappers
from offpcc.envs.wrappers import (
    Concatenate,
    DropIndices,
    Flicker,
    KeepIndices,
    ObservationNoise,
    PreviousAction,
    ReturnToGo,
)
from offpcc.utils.errors import UserError


def shapes(env):
    """The shape of the environment's own observation, then that of each of its `observation_wrappers`."""
    own, *wrappers = levels(env)
    return [level.observation_space.shape for level in (own, *filter(is_observation_wrapper, wrappers))]


def test_a_recording_tells_what_it_was_seen_through():
    rows, shown = record(make("pendulum-p-v0"))
    through = observation_wrappers(make("pendulum-p-v0"))
    assert through == ["KeepIndices(indices=[0, 1])"]
    positions = {**rows, "observations": shown}
    expected = record(make("pendulum-p-concat5-v0"))[1]
    assert_same(seen(make("pendulum-p-concat5-v0"), positions, recorded_wrappers=through), expected)
    assert seen(make("pendulum-p-v0"), positions, recorded_wrappers=through) is shown


def test_noise_is_added_once():
    noise = observation_wrappers(noisy())
    rows, shown = record(wandering())
    assert seen(noisy(), rows, recorded_wrappers=noise) is rows["observations"]
    assert (seen(noisy(), rows, recorded_wrappers=[]) != shown).any()
    assert_same(seen(noisy(), rows), seen(noisy(), rows, recorded_wrappers=[]))  # not known: the innermost that fits


def test_a_recording_seen_otherwise_is_refused():
    rows, shown = record(make("pendulum-p-v0"))
    message = refusal(
        make("pendulum-va-v0"), {**rows, "observations": shown}, recorded_wrappers=["KeepIndices(indices=[0, 1])"]
    )
    assert "recorded with KeepIndices(indices=[0, 1])" in message
    assert "pendulum-va-v0 has KeepIndices(indices=[2]), PreviousAction()" in message
    message = refusal(make("pendulum-v0"), rows, recorded_wrappers=["KeepIndices(indices=[0, 1])"])
    remedy = 'or add what is missing, with the same arguments: --gin "make.wrappers=[@KeepIndices]"'
    assert "but pendulum-v0 has no wrapper; name the environment" in message and message.endswith(remedy)
    message = refusal(make("pendulum-v0"), rows, recorded_wrappers=["Flicker()", "DelayObservation(delay=2)"])
    assert message.endswith('"make.wrappers=[@Flicker, @gymnasium.DelayObservation]"')
    one = ["KeepIndices(indices=[0, 1])", "Flicker()"]
    message = refusal(make("pendulum-p-v0"), {**rows, "observations": shown}, recorded_wrappers=one)
    assert "pendulum-p-v0 has no Flicker(); name" in message and message.endswith('"make.wrappers=[@Flicker]"')
    message = refusal(make("pendulum-p-v0"), {**rows, "observations": shown}, recorded_wrappers=[])
    assert "observations of 2 numbers, but pendulum-p-v0 has 3 numbers without wrappers; name" in message


def test_a_recording_that_fits_nowhere_is_refused():
    rows, _ = record(wandering(size=4))
    message = refusal(make("pendulum-va-v0"), rows)
    assert "observations of 4 numbers, but pendulum-va-v0 has 3 numbers without wrappers" in message
    assert "1 number after KeepIndices(indices=[2]), 2 numbers after PreviousAction()" in message


class Pictures(gym.Env):
    """Images of another height and width, with their channels last, or first."""

    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, shape=(8, 9, 3)):
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)


LAST, FIRST = (8, 9, 3), (3, 8, 9)


@pytest.mark.parametrize(
    ("shape", "shown", "dtype", "axes", "told"),
    [
        (LAST, LAST, np.float32, None, "are float32, but Pictures has uint8; give uint8 from 0 to 255"),
        (FIRST, LAST, np.uint8, (0, 2, 3, 1), "channels first, in the shape (3, 8, 9), but Pictures has them last; "),
        (LAST, FIRST, np.uint8, (0, 3, 1, 2), "channels last, in the shape (8, 9, 3), but Pictures has them first; "),
        (FIRST, LAST, np.float32, (0, 2, 3, 1), "them last, and are float32, but Pictures has uint8; transpose them"),
        ((7, 9, 3), LAST, np.uint8, None, "the data holds observations of shape (7, 9, 3), but Pictures has shape"),
    ],
)
def test_images_in_another_form_are_refused(shape, shown, dtype, axes, told):
    observations = np.zeros((2, *shape), dtype)
    with pytest.raises(UserError) as raised:
        find_recorded_level(Pictures(shown), observations, None)
    assert told in raised.value.message
    if axes is not None:
        assert f"transpose them, observations.transpose{axes}" in raised.value.message
        assert find_recorded_level(Pictures(shown), observations.transpose(axes).astype(np.uint8), None) == 0


def test_vectors_are_refused_where_images_are_seen():
    rows, _ = record(make("pendulum-v0"))
    message = refusal(make("pendulum-img-v0"), rows)
    assert "pendulum-img-v0 shows images, but the data holds observations of 3 numbers" in message
    assert "offpcc collect --env pendulum-img-v0" in message


def test_numbers_of_states_are_refused_where_one_hot_vectors_are_seen():
    states, env = np.array([[0], [15], [3]]), make("FrozenLake-v1")
    told = r"agents see the 16 states of FrozenLake-v1 as one-hot vectors; give observations=numpy\.eye\(16\)\[states"
    with pytest.raises(UserError, match=told):
        find_recorded_level(env, states, None)
    assert find_recorded_level(env, np.eye(16)[states[:, 0]], None) > 0
    env.unwrapped.observation_space = spaces.Discrete(16, start=1)
    with pytest.raises(UserError, match=r"numpy\.eye\(16\)\[states - 1\]"):
        find_recorded_level(env, states + 1, None)


def test_wrappers_are_described_alike_wherever_they_come_from():
    gin.parse_config(
        "make.wrappers = [@KeepIndices, @gymnasium.DelayObservation]\nKeepIndices.indices = (0, 1)\n"
        "gymnasium.DelayObservation.delay = 2"
    )
    assert observation_wrappers(make("Pendulum-v1", **env_options().values())) == [
        "KeepIndices(indices=[0, 1])",
        "DelayObservation(delay=2)",
    ]
    assert observation_wrappers(make("Pendulum-v1", wrappers=[lambda env: KeepIndices(env, range(2))])) == [
        "KeepIndices(indices=[0, 1])"
    ]


# What wrappers do not tell -----------------------------------------------------------------------------------------


class Scaled(gym.ObservationWrapper):
    def __init__(self, env, scale=1.0):
        super().__init__(env)
        self.scale = scale

    def observation(self, observation):
        return observation * np.float32(self.scale)


class Told(Scaled, RecordConstructorArgs):
    def __init__(self, env, scale=1.0):
        RecordConstructorArgs.__init__(self, scale=scale)
        super().__init__(env, scale)


class ToldInPart(ObservationNoise):
    def __init__(self, env, std, bias):
        super().__init__(env, std)
        self.bias = bias


class HandsOn(ObservationNoise):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class HandsOnUntold(Scaled):
    def __init__(self, env, **kwargs):
        super().__init__(env, **kwargs)


class HandsOnAll(Scaled):
    def __init__(self, *args):
        super().__init__(*args)


class Bare(gym.ObservationWrapper):
    def observation(self, observation):
        return observation


def doubled(observation, by=2):
    return observation * np.float32(by)


def transformed(function):
    return lambda env: TransformObservation(env, function, env.observation_space)


@pytest.mark.parametrize(
    ("wrapper", "described"),
    [
        (Bare, "Bare()"),
        (lambda env: Told(env, 3.0), "Told(scale=3.0)"),
        (lambda env: HandsOn(env, std=2.0), "HandsOn(std=2.0)"),
        (lambda env: Scaled(env, 3.0), "Scaled(arguments unknown)"),
        (lambda env: ToldInPart(env, 0.5, bias=3.0), "ToldInPart(arguments unknown)"),
        (lambda env: HandsOnUntold(env, scale=3.0), "HandsOnUntold(arguments unknown)"),
        (lambda env: HandsOnAll(env, 3.0), "HandsOnAll(arguments unknown)"),
        (transformed(doubled), "TransformObservation(func=doubled, observation_space=Box(-5.0, 5.0, (3,), float32))"),
        (
            transformed(functools.partial(doubled, by=3)),
            "TransformObservation(func=functools.partial(doubled, by=3), "
            "observation_space=Box(-5.0, 5.0, (3,), float32))",
        ),
        (transformed(lambda observation: observation), "TransformObservation(arguments unknown)"),
        (transformed(np.random.default_rng(0).permuted), "TransformObservation(arguments unknown)"),
    ],
)
def test_a_wrapper_tells_all_its_arguments_or_that_they_are_not_known(wrapper, described):
    assert observation_wrappers(wandering(wrapper)) == [described]


@pytest.mark.parametrize(
    "wrappers", [(lambda env: Scaled(env, 1.0), lambda env: Scaled(env, 100.0)),
                 (transformed(lambda shown: shown), transformed(lambda shown: 100 * shown))],
)  # fmt: skip
def test_through_what_is_not_told_nothing_is_taken_to_be_the_same(wrappers):
    recorded_in, read_in = (wandering(wrapper) for wrapper in wrappers)
    rows, shown = record(recorded_in)
    message = refusal(read_in, {**rows, "observations": shown}, recorded_wrappers=observation_wrappers(recorded_in))
    (described,) = observation_wrappers(read_in)
    assert f"the data was recorded with the wrapper {described}, and Wandering-v0 has {described}" in message
    assert f"let {described.split('(')[0]} record all its arguments by gymnasium.utils.RecordConstructorArgs" in message
    assert "metadata/seen_through" in message


def test_what_is_told_since_is_not_taken_to_be_what_was_not_told_then():
    rows, _ = record(wandering())
    told = wandering(lambda env: Told(env, 3.0))
    assert "write the wrappers of the recording into metadata" in refusal(
        told, rows, recorded_wrappers=["Told(arguments unknown)"]
    )
    assert seen(told, rows, recorded_wrappers=["Told(scale=3.0)"]) is rows["observations"]
    assert "Told(scale=1.0), but Wandering-v0 has" in refusal(told, rows, recorded_wrappers=["Told(scale=1.0)"])
    untold = wandering(lambda env: Scaled(env, 3.0))
    assert "let Scaled record" in refusal(untold, rows, recorded_wrappers=["Scaled(scale=3.0)"])
    assert "with Flicker(), but Wandering-v0 has" in refusal(untold, rows, recorded_wrappers=["Flicker()"])


def test_what_is_above_the_recorded_level_need_not_tell():
    rows, _ = record(wandering())
    env = wandering(Bare, lambda env: Scaled(env, 3.0))
    np.testing.assert_array_equal(seen(env, rows, recorded_wrappers=["Bare()"]), 3 * rows["observations"])


def frozen(env):
    env.update_running_mean = False
    return env


@pytest.mark.filterwarnings("ignore:.*precision lowered", "ignore:overflow encountered in cast")
@pytest.mark.parametrize(
    "wrapper",
    [
        lambda env: KeepIndices(env, [0]), lambda env: DropIndices(env, [0]), lambda env: Flicker(env, 0.1),
        lambda env: ObservationNoise(env, 0.1), PreviousAction, lambda env: Concatenate(env, 2),
        lambda env: ReturnToGo(env, 5.0), lambda env: gym.wrappers.DelayObservation(env, 2), FlattenObservation,
        gym.wrappers.TimeAwareObservation,
        lambda env: FlattenObservation(gym.wrappers.FrameStackObservation(env, 2)),
        lambda env: gym.wrappers.RescaleObservation(env, np.float32(-1), np.float32(1)),
        lambda env: gym.wrappers.ReshapeObservation(env, (3,)), lambda env: DtypeObservation(env, np.float16),
        lambda env: gym.wrappers.MaxAndSkipObservation(env, 2),
        lambda env: frozen(gym.wrappers.NormalizeObservation(env)),
    ],
)  # fmt: skip
def test_wrappers_of_offpcc_and_gymnasium_tell_their_arguments(wrapper):
    described = observation_wrappers(wandering(wrapper))
    assert described and "unknown" not in "".join(described)


# Names -------------------------------------------------------------------------------------------------------------


def test_an_environment_is_called_by_its_id_or_its_class():
    assert name_of(make("pendulum-p-v0")) == "pendulum-p-v0"
    assert name_of(KeepIndices(Wandering(), [0])) == "Wandering"
    with closing(gym.vector.SyncVectorEnv([Wandering])) as envs:
        assert name_of(envs) == "SyncVectorEnv"
    with closing(gym.make_vec("Pendulum-v1", num_envs=2)) as envs:
        assert name_of(envs) == "Pendulum-v1"


# What changes an observation ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*precision lowered", "ignore:overflow encountered in cast")
def test_what_changes_no_observation_is_not_described():
    unchanging = (
        lambda env: TimeLimit(env, 5), lambda env: StickyAction(env, 0.1), lambda env: ClipReward(env, -1, 1),
        lambda env: DtypeObservation(env, np.float64), lambda env: frozen(gym.wrappers.NormalizeReward(env)),
        gym.wrappers.RecordEpisodeStatistics, lambda env: gym.wrappers.RescaleAction(env, np.float32(0), np.float32(1)),
    )  # fmt: skip
    env = wandering(*unchanging)
    assert observation_wrappers(env) == [] and shapes(env) == [(3,)]

    class RemainingTime(TimeLimit):
        def step(self, action):
            observation, *rest = super().step(action)
            return observation / self._elapsed_steps, *rest

    assert observation_wrappers(wandering(lambda env: RemainingTime(env, 5))) == ["RemainingTime(max_episode_steps=5)"]
    assert observation_wrappers(wandering(lambda env: DtypeObservation(env, np.float16))) != []


def test_shapes_go_from_the_inside_out():
    assert shapes(make("pendulum-va-concat10-v0")) == [(3,), (1,), (2,), (20,)]
    assert shapes(make("pendulum-img-v0")) == [(3,), (1, 40, 40)]

    class Parts(gym.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = gym.spaces.Dict(part=env.observation_space)

        def observation(self, observation):
            return {"part": observation}

    env = wandering(Parts, FlattenObservation)
    assert shapes(env) == [(3,), None, (3,)]
    rows, shown = record(env)
    assert_same(seen(env, rows), shown)
    assert "several parts after Parts()" in refusal(env, record(wandering(size=9))[0])
