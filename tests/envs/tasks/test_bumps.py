"""Push the right bump: the physics of a soft and a hard finger, what ends an episode, and that feeling solves it."""

import gc
import subprocess
import sys
from itertools import pairwise

import gymnasium
import numpy as np
import pytest

import offpcc.envs  # noqa: F401
from offpcc.envs.tasks.bumps import HARD, MAX_ANGLE, SOFT, Bumps, Scene

pytest.importorskip("pybullet")

NAME = "bumps-normal-test-v0"
SEEDS = range(100)


class FeelThenPush:
    """Feels with a soft finger where the bumps are, crosses one if it must, and pushes the right one hard.

    It reads the finger's y and angle alone, and remembers what it felt.
    """

    def __init__(self):
        self._plan = self._feel_then_push()

    def act(self, observation):
        self.y, self.angle = observation
        return np.array(next(self._plan), np.float32)

    def _feel_then_push(self):
        if not (yield from self._feels_bump_before(0.14)):  # both are on the left
            yield from self._cross(-1)
        elif not (yield from self._feels_bump_before(-0.14)):  # both are on the right
            yield from self._cross(1)
        while self.angle > 0.05:  # let go of the left bump before the finger stiffens
            yield 0.4, -1
        while True:
            yield 0.5, 1

    def _feels_bump_before(self, y):
        direction = np.sign(y)
        while direction * self.y < abs(y):
            yield 0.4 * direction, -1
            if direction * self.angle < -0.1:
                return True
        return False

    def _cross(self, direction):
        while direction * self.angle > -0.45:
            yield 0.5 * direction, -1
        while direction * self.angle < -0.4:
            yield 0.5 * direction, -1


class Always:
    def __init__(self, *action):
        self.action = np.array(action, np.float32)

    def act(self, observation):
        return self.action


@pytest.fixture
def scene():
    scene = Scene()
    yield scene
    scene.close()


@pytest.fixture
def env():
    env = Bumps()
    env.reset(seed=0)
    yield env
    env.close()


def place(env, finger, bump_1, bump_2):
    """Starts an episode from there."""
    env._start = (finger, bump_1, bump_2)
    env._scene.build(finger, (bump_1, bump_2))


def play(env, policy, seed=None):
    """The return and the length of one episode."""
    observation, _ = env.reset(seed=seed)
    total, length, over = 0.0, 0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
        total, length, over = total + reward, length + 1, terminated or truncated
    return total, length


def returns(policy):
    env = gymnasium.make(NAME)
    outcomes = [play(env, policy(), seed)[0] for seed in SEEDS]
    env.close()
    return np.array(outcomes)


def shove(scene, torque, length):
    """Moves the finger across a bump at 0, in steps of `length`; how far it moved at most, and the greatest angle."""
    y = -0.06 * np.sign(length)
    scene.build(y, [0.0, 0.5])
    moved, bent = 0.0, 0.0
    while abs(y) < 0.2:
        y += length
        scene.move(y, torque)
        moved, bent = max(moved, abs(scene.bumps[0])), max(bent, abs(scene.finger[1]))
    return moved, bent


def least_torque(scene, distance, length):
    """The torque (N m) from which on a bump is moved by more than `distance`."""
    low, high = SOFT, HARD
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if shove(scene, middle, length)[0] > distance else (middle, high)
    return high


def random_actions(num_steps, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (num_steps, 2)).astype(np.float32)


# The physics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0.05, 0.04, 0.03, 0.02, 0.01, -0.05, -0.02])
def test_a_soft_finger_bends_over_a_bump_and_a_hard_one_pushes_it(scene, length):
    moved, bent = shove(scene, SOFT, length)
    assert moved < 0.0002
    assert 0.4 < bent < 0.7
    moved, bent = shove(scene, HARD, length)
    assert 0.15 < moved < 0.3
    assert bent < 0.1


@pytest.mark.parametrize("distance", [0.001, 0.01])
@pytest.mark.parametrize("length", [0.05, 0.03, 0.01, -0.04])
def test_the_threshold_is_0_027(scene, length, distance):
    assert least_torque(scene, distance, length) == pytest.approx(0.027, abs=0.004)


def test_bumps_stay_where_nothing_touches_them(scene):
    scene.build(0.0, [-0.08, 0.08])
    for t in range(50):
        scene.move(0.04 * (-1) ** t, HARD)
    np.testing.assert_allclose(scene.bumps, [-0.08, 0.08], atol=1e-5)


@pytest.mark.parametrize("gap", [0.10, 0.13, 0.16, 0.22])
@pytest.mark.parametrize("direction", [-1, 1])
def test_a_soft_finger_may_cross_both_bumps_again_and_again(scene, gap, direction):
    """Where it springs back from one bump onto the next, too."""
    start = (-gap / 2, gap / 2)
    y = -0.25 * direction
    scene.build(y, start)
    for t in range(50):
        y = np.clip(y + 0.05 * (direction if t < 12 or t > 30 else -direction), -0.3, 0.3)
        scene.move(y, SOFT)
        assert np.abs(np.subtract(scene.bumps, start)).max() < 0.0008


@pytest.mark.parametrize("y", [0.09, 0.10, 0.12, 0.14])
def test_a_soft_finger_may_lean_on_a_bump(scene, y):
    scene.build(0.05, [0.1, 0.3])
    for t in range(50):
        scene.move(min(0.05 + 0.03 * (t + 1), y), SOFT)
    assert scene.finger[1] < -0.1
    assert abs(scene.bumps[0] - 0.1) < 0.0003


@pytest.mark.parametrize("y", np.linspace(0.15, 0.21, 13))
def test_a_soft_finger_may_turn_back_on_top_of_a_bump(scene, y):
    """A blunt tip would catch on the edge behind it."""
    scene.build(0.05, [0.1, 0.3])
    for target in (0.1, 0.15, y, y - 0.045, y - 0.09, 0.05):
        scene.move(target, SOFT)
        assert abs(scene.bumps[0] - 0.1) < 0.0005


@pytest.mark.slow
def test_a_soft_finger_ends_no_episode_by_a_push():
    env = Bumps()
    for seed in range(100):
        env.reset(seed=seed)
        for action in random_actions(50, seed):
            _, reward, terminated, _, _ = env.step(np.array([action[0], -1], np.float32))
            assert reward == 0
            if terminated:
                break


def test_a_finger_in_the_air_hangs_straight(env):
    place(env, 0.0, -0.3, 0.35)
    for t, stiffness in enumerate([-1, -1, 1, 1, 0, 0] * 4):
        length = (0.9, 0.9, -0.9, -0.9)[t % 4]
        (y, angle), *_ = env.step(np.array([length, stiffness], np.float32))
        assert abs(angle) < 0.03
        assert y == pytest.approx(0.045 * (1, 2, 1, 0)[t % 4], abs=1e-4)


def test_the_hinge_stops_at_60_degrees(scene):
    scene.build(0.0, [-0.3, 0.3])
    bullet = scene._bullet
    for sign in (-1, 1):
        bullet.setJointMotorControl2(scene._arm, 1, bullet.VELOCITY_CONTROL, targetVelocity=3 * sign, force=0.047)
        for _ in range(200):
            bullet.stepSimulation()
        assert scene.finger[1] == pytest.approx(sign * MAX_ANGLE, abs=1e-3)
        assert scene.tip == pytest.approx(scene.finger[0] + 0.15 * np.sin(sign * MAX_ANGLE), abs=1e-3)


def test_the_angle_points_to_the_tip(env):
    place(env, 0.0, -0.3, 0.05)
    (_, angle), *_ = env.step(np.array([1, -1], np.float32))
    assert angle < -0.1  # the finger moves right, and its tip stays behind


# The task ---------------------------------------------------------------------------------------------------------


def test_the_action_is_step_length_and_stiffness(env, monkeypatch):
    place(env, 0.0, -0.2, 0.2)
    moves = []
    monkeypatch.setattr(env._scene, "move", lambda y, torque: moves.append((y, torque)))
    for action in [(1, -1), (-1, 1), (0.5, 0), (9, -9)]:
        env.step(np.array(action, np.float32))
    np.testing.assert_allclose(moves, [(0.05, 0.007), (-0.05, 0.047), (0.025, 0.027), (0.05, 0.007)], atol=1e-9)


def test_three_configurations_are_drawn(env):
    starts = []
    for _ in range(1000):
        starts.append(env._draw_start())
    starts = np.array(starts)
    finger, bumps = starts[:, 0], starts[:, 1:]
    assert np.abs(finger).max() < 0.03 and finger.min() < -0.028 and finger.max() > 0.028
    number = np.argmin(np.abs(bumps[:, :1] - [-0.24, -0.08, 0.08]), axis=1)
    noise = bumps - np.array([-0.24, -0.08, 0.08, 0.24])[np.stack([number, number + 1], axis=1)]
    assert np.abs(noise).max() < 0.03 and noise.min() < -0.029 and noise.max() > 0.029
    assert np.abs(noise.mean(axis=0)).max() < 0.002
    assert np.bincount(number).min() > 280
    assert np.abs(bumps - finger[:, None]).min() > 0.026
    assert np.corrcoef(noise.T)[0, 1] < 0.1


def test_the_scene_is_what_was_drawn(env):
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        finger, *bumps = env._start
        np.testing.assert_allclose(observation, [finger, 0], atol=1e-6)
        np.testing.assert_allclose(env._scene.bumps, bumps, atol=1e-6)


@pytest.mark.parametrize(
    ("start", "length", "reward"),
    [
        ((0.0, -0.1, 0.06), 0.5, 1.0),  # the right bump to the right
        ((0.0, -0.06, 0.1), -0.5, -1.0),  # the left bump to the left
        ((-0.1, -0.04, 0.1), 0.5, -1.0),  # the left bump to the right
        ((0.1, -0.15, 0.04), -0.5, -1.0),  # the right bump to the left
    ],
)
def test_a_push_ends_the_episode(env, start, length, reward):
    place(env, *start)
    for _ in range(10):
        _, rewarded, terminated, truncated, _ = env.step(np.array([length, 1], np.float32))
        assert not truncated
        assert terminated == (rewarded != 0)
        if terminated:
            break
    assert rewarded == reward


def outcome(env, moved_1, moved_2, tip):
    """The reward once the bumps have moved so far, with the finger's tip so far right of the right one."""
    place(env, 0.0, -0.1, 0.1)

    class Moved:
        bumps = (-0.1 + moved_1, 0.1 + moved_2)
        finger = (0.0, 0.0)

    Moved.tip = Moved.bumps[1] + tip
    env._scene.close()
    env._scene = Moved()
    reward = env._reward()
    env._scene = Scene()
    return reward


@pytest.mark.parametrize(
    ("moved_1", "moved_2", "tip", "reward"),
    [
        (0.0009, 0.0099, -0.02, 0),
        (-0.0009, -0.0009, -0.02, 0),
        (0.0, 0.0101, -0.02, 1),
        (0.0009, 0.0101, -0.02, 1),
        (0.0, 0.0101, 0.02, 0),
        (0.0011, 0.0, -0.02, -1),
        (-0.0011, 0.0, -0.02, -1),
        (0.0, -0.0011, -0.02, -1),
        (0.0, -0.0011, 0.02, -1),
        (0.0011, 0.0101, -0.02, -1),  # the left bump pushed the right one
    ],
)
def test_what_is_rewarded(env, moved_1, moved_2, tip, reward):
    assert outcome(env, moved_1, moved_2, tip) == reward


@pytest.mark.parametrize("direction", [-1, 1])
def test_a_finger_that_leaves_ends_the_episode_without_a_reward(env, direction):
    place(env, 0.3 * direction, -0.1, 0.1)
    step = np.array([0.75 * direction, -1], np.float32)
    ends = []
    for _ in range(3):
        observation, reward, terminated, truncated, _ = env.step(step)
        assert reward == 0 and not truncated
        ends.append((round(abs(float(observation[0])), 3), terminated))
    assert ends == [(0.338, False), (0.375, False), (0.4, True)]  # where the rail ends


def test_the_time_limit_is_a_truncation():
    env = gymnasium.make(NAME)
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(50)]
    env.close()
    assert ends == [(False, False)] * 49 + [(False, True)]


def test_feeling_solves_it():
    outcomes = returns(FeelThenPush)
    assert (outcomes == 1).sum() >= 95


def test_pushing_hard_or_softly_without_feeling_does_not():
    hard, soft = returns(lambda: Always(0.5, 1)), returns(lambda: Always(0.5, -1))
    assert 20 <= (hard == 1).sum() <= 50
    assert 20 <= (hard == -1).sum() <= 50
    assert not soft.any()


# The same again ---------------------------------------------------------------------------------------------------


def episode(env, actions, **kwargs):
    observations = [env.reset(**kwargs)[0]]
    observations += [env.step(action)[0] for action in actions]
    return np.array(observations)


def pushes(num_steps=30):
    """Actions that touch and push bumps."""
    actions = random_actions(num_steps)
    actions[:, 0] = np.sin(np.arange(num_steps) / 4) * 0.9
    return actions


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_fixes_the_episode_bit_by_bit(seed):
    first, second = Bumps(), Bumps()
    expected = episode(first, pushes(), seed=seed)
    assert np.abs(expected[:, 1]).max() > 0.1
    episode(second, random_actions(10), seed=seed + 1)  # leaves nothing behind
    np.testing.assert_array_equal(episode(second, pushes(), seed=seed), expected)
    np.testing.assert_array_equal(episode(first, pushes(), seed=seed), expected)


def test_another_process_sees_the_same_bits():
    code = (
        "import numpy as np, sys; from offpcc.envs.tasks.bumps import Bumps; env = Bumps(); env.reset(seed=3)\n"
        "for t in range(30): print(env.step(np.array([np.sin(t / 4), 1], np.float32))[0].tobytes().hex())"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(2)]
    env = Bumps()
    env.reset(seed=3)
    ours = [env.step(np.array([np.sin(t / 4), 1], np.float32))[0].tobytes().hex() for t in range(30)]
    # Nothing else, of PyBullet's, goes to stdout either.
    assert [run.stdout.decode().split() for run in runs] == [ours, ours]


def test_an_episode_can_be_resumed():
    """By the generator's state at its start, and its actions."""
    env = Bumps()
    episode(env, pushes(7), seed=5)
    for _ in range(5):
        state = env.np_random.bit_generator.state
        expected = episode(env, pushes())
        resumed = Bumps()
        resumed.reset(seed=8)
        resumed.np_random.bit_generator.state = state
        np.testing.assert_array_equal(episode(resumed, pushes()), expected)
        following = env.np_random.bit_generator.state
        np.testing.assert_array_equal(resumed.reset()[0], env.reset()[0])
        env.np_random.bit_generator.state = following


def test_environments_do_not_disturb_each_other():
    expected = [episode(Bumps(), pushes(), seed=seed) for seed in range(3)]
    envs = [Bumps() for _ in range(3)]
    seen = [[env.reset(seed=seed)[0]] for seed, env in enumerate(envs)]
    for action in pushes():
        for observations, env in zip(seen, envs, strict=True):
            observations.append(env.step(action)[0])
    np.testing.assert_array_equal(seen, expected)


def test_closing_frees_the_world_and_no_other():
    import pybullet

    env = Bumps()
    env.reset(seed=0)
    world = env._scene._bullet.number
    assert pybullet.isConnected(world)
    env.close()
    env.close()
    assert not pybullet.isConnected(world)
    heir = Bumps()
    assert heir._scene._bullet.number == world  # PyBullet gives the number away again
    heir.reset(seed=0)
    with pytest.raises(pybullet.error):
        env.step(np.ones(2, np.float32))
    heir.step(np.ones(2, np.float32))


def test_a_forgotten_one_frees_its_world():
    import pybullet

    env = Bumps()
    world = env._scene._bullet.number
    del env
    gc.collect()
    assert not pybullet.isConnected(world)


# Pictures ---------------------------------------------------------------------------------------------------------


def pixels_like(frame, colour):
    """Places (row, column) of the pixels whose hue is near that of `colour`."""
    wanted, shown = np.array(colour, float), frame.astype(float)
    wanted, shown = wanted / np.linalg.norm(wanted), shown / (np.linalg.norm(shown, axis=-1, keepdims=True) + 1e-9)
    return np.argwhere(shown @ wanted > 0.99)


def test_frames_show_the_arm_the_finger_and_both_bumps():
    env = Bumps(render_mode="rgb_array")
    env.reset(seed=0)
    place(env, 0.0, -0.2, 0.1)
    frame = env.render()
    assert frame.shape == (240, 480, 3) and frame.dtype == np.uint8
    yellow, red, green = (pixels_like(frame, colour) for colour in [(255, 180, 10), (210, 70, 60), (64, 150, 90)])
    arm = pixels_like(frame, (92, 107, 128))
    assert all(len(place) > 150 for place in (yellow, red, green, arm))
    assert red[:, 1].mean() < yellow[:, 1].mean() < green[:, 1].mean()
    assert arm[:, 0].mean() < yellow[:, 0].mean() < green[:, 0].mean()


def test_frames_change_as_it_moves():
    env = Bumps(render_mode="rgb_array", width=240, height=120)
    env.reset(seed=0)
    frames = [env.render()]
    for action in pushes()[1:5]:
        env.step(action)
        frames.append(env.render())
    assert frames[0].shape == (120, 240, 3)
    assert all((before != after).sum() > 100 for before, after in pairwise(frames))


def test_nothing_is_rendered_without_a_mode(env):
    assert env.render() is None
