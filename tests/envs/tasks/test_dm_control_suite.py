"""DM Control's tasks: rewards, ends, actions, pictures, and the cartpoles' observations."""

import importlib.metadata
from contextlib import ExitStack, closing
from itertools import pairwise

import gymnasium
import numpy as np
import pytest

import offpcc.envs  # noqa: F401 (registers)
from offpcc.envs import ALL, rendering
from offpcc.envs.tasks.dm_control_suite import SUITE, DMControl, DMControlImage

pytest.importorskip("dm_control")

needs_opengl = pytest.mark.skipif(rendering.backend() == "none", reason="no OpenGL on this machine")
IMAGES = [("cartpole", "balance"), ("walker", "walk")]


def episode(name, num_steps=100, **kwargs):
    """Observations (num_steps + 1, n) of one episode under smooth actions, the same for all twins."""
    env = gymnasium.make(name, **kwargs)
    observations = [env.reset(seed=1)[0]]
    for t in range(num_steps):
        observations.append(env.step(np.array([np.sin(t / 5)], dtype=np.float32))[0])
    return np.array(observations)


@pytest.mark.parametrize("task", ["balance", "swingup"])
def test_the_twins_show_their_part_of_the_whole(task):
    whole = episode(f"dmc-cartpole-{task}-v0")
    np.testing.assert_array_equal(episode(f"dmc-cartpole-{task}-p-v0"), whole[:, :3])
    np.testing.assert_array_equal(episode(f"dmc-cartpole-{task}-va-v0")[:, :2], whole[:, 3:])


@pytest.mark.parametrize("task", ["balance", "swingup"])
def test_va_shows_the_velocities_that_p_hides(task):
    seconds_per_step = 0.01  # without the repeat, so that differences are close to derivatives
    position = episode(f"dmc-cartpole-{task}-p-v0", 200, action_repeat=1)
    velocity = episode(f"dmc-cartpole-{task}-va-v0", 200, action_repeat=1)
    cart, angle = position[:, 0], np.unwrap(np.arctan2(position[:, 2], position[:, 1]))
    for places, velocities in ((cart, velocity[:, 0]), (angle, velocity[:, 1])):
        mean_velocity = (velocities[1:] + velocities[:-1]) / 2
        error = np.diff(places) / seconds_per_step - mean_velocity
        assert np.abs(velocities).max() > 0.5
        assert np.abs(error).max() < 0.01 * np.abs(velocities).max()


def test_va_shows_the_action_that_was_executed():
    env = gymnasium.make("dmc-cartpole-balance-va-v0")
    assert env.reset(seed=0)[0][2] == 0
    for action, executed in [(0.5, 0.5), (7.0, 1.0), (-7.0, -1.0)]:
        observation, *_ = env.step(np.array([action], dtype=np.float32))
        assert observation[2] == executed == env.unwrapped._environment.physics.control()[0]
    assert env.reset()[0][2] == 0


def test_concatenated_twins_show_the_past():
    part, stacked = episode("dmc-cartpole-balance-p-v0", 12), episode("dmc-cartpole-balance-p-concat5-v0", 12)
    padded = np.concatenate([np.zeros((4, 3), np.float32), part])
    for t in range(13):
        np.testing.assert_array_equal(stacked[t], padded[t : t + 5].reshape(-1))


def test_the_reward_is_summed_over_the_repeat():
    once, repeated = DMControl("cartpole", "balance"), DMControl("cartpole", "balance", action_repeat=5)
    np.testing.assert_array_equal(once.reset(seed=0)[0], repeated.reset(seed=0)[0])
    for action in np.linspace(-1, 1, 10, dtype=np.float32)[:, None]:
        steps = [once.step(action) for _ in range(5)]
        observation, reward, *_ = repeated.step(action)
        np.testing.assert_array_equal(observation, steps[-1][0])
        assert reward == pytest.approx(sum(step[1] for step in steps), abs=1e-12)
        assert reward > max(step[1] for step in steps)


def test_a_perfect_balance_is_worth_1000():
    env = gymnasium.make("dmc-cartpole-balance-v0")
    env.reset(seed=0)
    simulation = env.unwrapped._environment
    with simulation.physics.reset_context():
        simulation.physics.data.qpos[:] = simulation.physics.data.qvel[:] = 0
    total, truncated = 0.0, False
    while not truncated:
        _, reward, _, truncated, _ = env.step(np.zeros(1, dtype=np.float32))
        assert 0 <= reward <= 5
        total += reward
    assert total == pytest.approx(1000, abs=1e-3)
    assert total <= 1000 + 1e-9


@pytest.mark.parametrize("action_repeat", [5, 300])
def test_time_up_is_a_truncation(action_repeat):
    """The task's own clock, without a wrapper, which cuts the last repeat short if need be."""
    env = DMControl("cartpole", "balance", action_repeat=action_repeat)
    env.reset(seed=0)
    num_steps = -(-1000 // action_repeat)
    ends = [env.step(np.zeros(1, dtype=np.float32))[2:4] for _ in range(num_steps)]
    assert ends == [(False, False)] * (num_steps - 1) + [(False, True)]


def test_a_discount_of_0_is_a_termination(monkeypatch):
    env = DMControl("cartpole", "balance", action_repeat=5)
    env.reset(seed=0)
    monkeypatch.setattr(env._environment.task, "get_termination", lambda physics: 0.0)
    _, reward, terminated, truncated, _ = env.step(np.zeros(1, dtype=np.float32))
    assert (terminated, truncated) == (True, False)
    assert reward <= 1


def test_an_action_outside_of_its_bounds_is_the_bound():
    inside, outside = DMControl("cartpole", "balance"), DMControl("cartpole", "balance")
    inside.reset(seed=0)
    outside.reset(seed=0)
    expected, expected_reward, *_ = inside.step(np.array([1.0], dtype=np.float32))
    observation, reward, *_ = outside.step(np.array([3.0], dtype=np.float32))
    assert outside._environment.physics.control() == 1
    np.testing.assert_array_equal(observation, expected)
    assert reward == expected_reward


def test_parts_are_shown_in_the_order_of_the_keys():
    forward, backward = (
        DMControl("cartpole", "balance", keys=keys).reset(seed=0)[0]
        for keys in (["position", "velocity"], ["velocity", "position"])
    )
    np.testing.assert_array_equal(forward, np.roll(backward, 3))
    np.testing.assert_array_equal(forward, DMControl("cartpole", "balance").reset(seed=0)[0])


def test_a_part_of_one_number_counts():
    """Walker's observation holds its height as a number without axes."""
    env = DMControl("walker", "walk", keys=["height", "velocity"])
    assert env.reset(seed=0)[0].shape == env.observation_space.shape == (10,)


def test_an_unknown_key_is_named():
    with pytest.raises(ValueError, match=r"does not observe \['speed'\].*\['position', 'velocity'\]"):
        DMControl("cartpole", "balance", keys=["position", "speed"])


@needs_opengl
def test_rendered_frames_change():
    env = gymnasium.make("dmc-cartpole-swingup-p-v0", render_mode="rgb_array")
    env.reset(seed=0)
    frames = [env.render()]
    for _ in range(3):
        env.step(np.ones(1, dtype=np.float32))
        frames.append(env.render())
    env.close()
    assert all(frame.shape == (240, 320, 3) and frame.dtype == np.uint8 for frame in frames)
    assert all((before != after).any() for before, after in pairwise(frames))
    assert env.metadata["render_fps"] == 20


def test_nothing_is_rendered_without_a_mode():
    assert DMControl("cartpole", "balance").render() is None


@pytest.fixture
def image():
    """Makes environments of images, and closes them."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(closing(DMControlImage(*args, **kwargs)))


@needs_opengl
@pytest.mark.parametrize(("domain", "task"), IMAGES)
@pytest.mark.parametrize("shadows", [False, True])
def test_an_image_is_the_suites_picture_in_grey(image, domain, task, shadows):
    env = image(domain, task, shadows=shadows)
    observation, _ = env.reset(seed=0)
    flags = {} if shadows else {"shadow": False}
    red, green, blue = np.moveaxis(
        env._environment.physics.render(84, 84, camera_id=0, render_flag_overrides=flags), 2, 0
    ).astype(np.float64)
    np.testing.assert_array_equal(observation[0], np.rint(0.299 * red + 0.587 * green + 0.114 * blue))
    assert observation.std() > 5


@needs_opengl
def test_shadows_are_seen(image):
    with_shadows, without = image("cartpole", "balance", shadows=True), image("cartpole", "balance")
    assert (with_shadows.reset(seed=0)[0] != without.reset(seed=0)[0]).any()


@needs_opengl
@pytest.mark.parametrize(("domain", "task"), IMAGES)
def test_an_image_shows_positions_and_no_velocities(image, domain, task):
    env = image(domain, task)
    observation, _ = env.reset(seed=0)
    physics = env._environment.physics
    physics.data.qvel[:] = np.random.default_rng(0).uniform(-3, 3, physics.model.nv)
    physics.forward()
    np.testing.assert_array_equal(env._observe(None), observation)
    physics.data.qpos[-1] += 0.5
    physics.forward()
    assert (env._observe(None) != observation).any()


@needs_opengl
@pytest.mark.parametrize(("domain", "task"), IMAGES)
def test_one_image_is_rendered_per_step(image, domain, task, monkeypatch):
    env = image(domain, task, action_repeat=2)
    renders = []
    render = env._camera.render
    monkeypatch.setattr(env._camera, "render", lambda **kwargs: renders.append(kwargs) or render(**kwargs))
    env.reset(seed=0)
    for num_steps in range(1, 4):
        env.step(np.zeros(env.action_space.shape, np.float32))
        assert len(renders) == 1 + num_steps


@needs_opengl
@pytest.mark.parametrize(("domain", "task"), IMAGES)
def test_images_have_the_tasks_rewards_and_steps(domain, task):
    seen, felt = (
        gymnasium.make(f"dmc-{domain}-{task}-img-v0"),
        gymnasium.wrappers.TimeLimit(DMControl(domain, task, action_repeat=2), 500),
    )
    seen.reset(seed=0)
    felt.reset(seed=0)
    for _ in range(10):
        action = np.full(seen.action_space.shape, 0.2, np.float32)
        assert seen.step(action)[1:] == felt.step(action)[1:]
    assert seen.unwrapped.metadata["render_fps"] == felt.unwrapped.metadata["render_fps"]
    assert seen.unwrapped._environment._step_limit == 2 * seen.spec.max_episode_steps == 1000
    seen.close()


@needs_opengl
@pytest.mark.parametrize(("domain", "task"), IMAGES)
def test_three_images_are_stacked_oldest_first(domain, task):
    def frames(name):
        with closing(gymnasium.make(name)) as env:
            observations = [env.reset(seed=1)[0]]
            for t in range(4):
                observations.append(env.step(np.full(env.action_space.shape, np.sin(t), np.float32))[0])
        return np.array(observations)

    single, stacked = frames(f"dmc-{domain}-{task}-img-v0"), frames(f"dmc-{domain}-{task}-mdp-img-concat3-v0")
    padded = np.concatenate([np.zeros((2, 1, 84, 84), np.uint8), single])
    assert stacked.dtype == np.uint8
    for t in range(5):
        np.testing.assert_array_equal(stacked[t], padded[t : t + 3, 0])


@needs_opengl
def test_a_video_of_an_image_task_is_in_colour(image):
    env = image("cartpole", "balance", render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    frame = env.render()
    assert frame.shape == (240, 320, 3) and frame.dtype == np.uint8
    assert (frame[..., 0] != frame[..., 2]).any()
    np.testing.assert_array_equal(env._observe(None), observation)  # drawing it does not change what is seen


def test_nothing_to_draw_with_is_told_at_once(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    for name, kwargs in (
        ("dmc-walker-walk-img-v0", {}),
        ("dmc-cartpole-balance-mdp-img-concat3-v0", {}),
        ("dmc-cartpole-balance-v0", {"render_mode": "rgb_array"}),
    ):
        with pytest.raises(gymnasium.error.DependencyNotInstalled, match=r"dmc-.*libegl1.*libosmesa6"):
            gymnasium.make(name, **kwargs)
    gymnasium.make("dmc-cartpole-balance-v0").reset(seed=0)


# The suite's benchmark -------------------------------------------------------------------------------------------


def of_suite(suffix):
    rows = [row for row in SUITE if row.name.endswith(f"{suffix}-v0")]
    return rows if suffix else [row for row in rows if row.hidden == "nothing"]


def test_all_tasks_of_the_benchmark_have_three_names():
    from dm_control import suite

    for domain, task in suite.BENCHMARKING:
        for suffix in ("", "-p", "-img"):
            assert f"dmc-{domain}-{task}{suffix}-v0" in gymnasium.registry
    assert len({row.name for row in ALL}) == len(ALL)


@pytest.mark.slow
@pytest.mark.parametrize("row", of_suite(""), ids=lambda row: row.name)
def test_a_task_is_the_suites_and_its_twin_hides_velocities_only(row):
    from dm_control import suite

    bodies = [gymnasium.make(row.name), gymnasium.make(row.name.replace("-v0", "-p-v0"))]
    parts = bodies[0].unwrapped._environment.observation_spec()
    assert [one.observation_space.shape for one in bodies] == [
        (sum(int(np.prod(part.shape)) for name, part in parts.items() if shows(name)),)
        for shows in (lambda name: True, lambda name: "vel" not in name)
    ]
    assert bodies[0].action_space.shape == (row.action_size,)
    theirs = suite.load(row.kwargs["domain"], row.kwargs["task"], task_kwargs={"random": 0})
    assert theirs._step_limit == 2 * row.max_episode_steps
    action = np.full(row.action_size, 0.3, np.float32)
    for env in bodies:
        env.reset(seed=3)
    for _ in range(3):
        (whole, *_), (seen, *_) = (env.step(action) for env in bodies)
        observed = bodies[0].unwrapped._environment.task.get_observation(bodies[0].unwrapped._environment.physics)
        np.testing.assert_array_equal(whole, np.concatenate([np.ravel(one) for one in observed.values()], dtype="f4"))
        shown = [np.ravel(one) for name, one in observed.items() if "vel" not in name]
        np.testing.assert_array_equal(seen, np.concatenate(shown, dtype="f4"))
    for env in bodies:
        env.close()


@needs_opengl
def test_an_image_of_a_task_of_the_suite():
    with closing(gymnasium.make("dmc-cheetah-run-img-v0")) as env:
        first, _ = env.reset(seed=0)
        second = env.step(np.ones(6, np.float32))[0]
    assert first.shape == (1, 84, 84) and first.dtype == np.uint8 and (first != second).any()


def test_a_mujoco_that_is_too_new_is_told(monkeypatch):
    def load(*_, **__):
        raise AttributeError("'MjModel' object has no attribute 'flex_vertedge'")

    monkeypatch.setattr("dm_control.suite.load", load)
    with pytest.raises(AttributeError):
        DMControl("cartpole", "balance")
    monkeypatch.setattr(importlib.metadata, "version", {"mujoco": "4.0.0", "dm-control": "1.0.50"}.get)
    with pytest.raises(gymnasium.error.DependencyNotInstalled, match=r"does not run with MuJoCo 4.*'mujoco<4'"):
        DMControl("cartpole", "balance")


def test_an_episode_has_500_steps_unless_another_number_is_given():
    for given, length in (({}, 500), ({"action_repeat": 1, "max_episode_steps": 1000}, 1000)):
        with closing(gymnasium.make("dmc-pendulum-swingup-v0", **given)) as env:
            env.reset(seed=0)
            ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(length)]
        assert ends == [(False, False)] * (length - 1) + [(False, True)]
