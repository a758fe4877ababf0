"""The water maze: how the agent swims, when it is put back, and that remembering the platform pays."""

import gymnasium
import numpy as np
import pytest

import offpcc.envs  # noqa: F401
from offpcc.envs.tasks.water_maze import WaterMaze

POMDP, MDP, CONCAT = (f"water-maze-simple-{suffix}-v0" for suffix in ("pomdp", "mdp", "pomdp-concat10"))
STILL = np.zeros(2, np.float32)


@pytest.fixture
def env():
    """With the platform on the right."""
    env = WaterMaze()
    env.reset(seed=0)
    env._platform = np.array([0.7, 0.0])
    return env


def swim(env, *accelerations):
    """The last step."""
    for acceleration in accelerations:
        step = env.step(np.array(acceleration, np.float32))
    return step


class Searcher:
    """Swims along a spiral until it is inside, and, if it remembers, straight back to that place after each return."""

    def __init__(self, remembers):
        self.remembers = remembers
        angles = np.linspace(0, 2 * np.pi, 12, endpoint=False)
        self.spiral = 0.6 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        self.place, self.target = None, 0
        self.last = np.zeros(2)

    def act(self, observation):
        place, inside = observation[:2].astype(float), observation[2]
        velocity, self.last = place - self.last, place
        if inside and not place.any():  # put back to the start
            velocity, self.target = np.zeros(2), 0
            if not self.remembers:
                self.place = None
        elif inside and self.place is None:
            self.place = place * 0.7 / max(np.linalg.norm(place), 1e-9)
        if self.place is not None:
            goal = self.place
        else:
            if np.linalg.norm(self.spiral[self.target] - place) < 0.15:
                self.target = (self.target + 1) % len(self.spiral)
            goal = self.spiral[self.target]
        return np.clip(0.3 * (goal - place) - velocity, -0.03, 0.03).astype(np.float32)


def play(policy, seed):
    env = gymnasium.make(POMDP)
    observation, _ = env.reset(seed=seed)
    total, truncated = 0.0, False
    while not truncated:
        observation, reward, _, truncated, _ = env.step(policy.act(observation))
        total += reward
    return total


def test_remembering_pays():
    remembering, forgetting = (np.mean([play(Searcher(it), seed) for seed in range(50)]) for it in (True, False))
    assert forgetting > 5
    assert remembering > 1.5 * forgetting


def test_it_starts_at_the_origin_at_rest(env):
    observation, info = env.reset()
    np.testing.assert_array_equal(observation, [0, 0, 0])
    assert observation.dtype == np.float32 and info == {}
    for _ in range(3):
        np.testing.assert_array_equal(env.step(STILL)[0], [0, 0, 0])


def test_the_acceleration_is_clipped_per_axis(env):
    observation, *_ = swim(env, (1, -0.02))
    np.testing.assert_allclose(observation, [0.03, -0.02, 0], atol=1e-6)
    observation, *_ = swim(env, (-0.01, -1))
    np.testing.assert_allclose(observation, [0.05, -0.07, 0], atol=1e-6)


def test_the_velocity_is_clipped_per_axis(env):
    env._platform = np.array([0.0, -0.7])
    places = [swim(env, (-0.03, 0.02))[0][:2] for _ in range(7)]
    steps = np.diff(places, axis=0, prepend=0)
    np.testing.assert_allclose(steps[:, 0], [-0.03, -0.06, -0.09, -0.1, -0.1, -0.1, -0.1], atol=1e-6)
    np.testing.assert_allclose(steps[:, 1], [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1], atol=1e-6)
    # It brakes at once: the excess is gone.
    np.testing.assert_allclose(swim(env, (0.03, -0.03))[0][:2] - places[-1], [-0.07, 0.07], atol=1e-6)


def test_a_move_out_of_the_disc_is_undone_and_stops_it(env):
    env._position, env._velocity = np.array([0.0, 0.95]), np.array([0.1, 0.03])
    observation, *_ = swim(env, (0, 0.03))
    np.testing.assert_allclose(observation, [0, 0.95, 0], atol=1e-6)
    observation, *_ = swim(env, (0.02, 0))
    np.testing.assert_allclose(observation, [0.02, 0.95, 0], atol=1e-6)


def test_a_move_onto_the_rim_stands(env):
    env._position = np.array([0.0, 0.97])
    np.testing.assert_allclose(swim(env, (0, 0.03))[0], [0, 1, 0], atol=1e-6)


@pytest.mark.parametrize(("distance", "inside"), [(0.29, 1), (0.2999, 1), (0.3001, 0), (0.35, 0)])
def test_each_step_inside_is_worth_1(env, distance, inside):
    for direction in ((1, 0), (0, 1), (-0.6, 0.8)):
        env.reset()
        env._platform = np.array([0.0, 0.1])
        env._position = env._platform + distance * np.array(direction)
        observation, reward, terminated, truncated, _ = env.step(STILL)
        assert reward == observation[2] == inside
        assert not terminated and not truncated


def test_after_5_steps_inside_it_is_put_back(env):
    for _ in range(2):
        env._position, env._velocity = np.array([0.6, 0.1]), np.array([0.001, 0.0])
        for _ in range(4):
            observation, reward, *_ = env.step(STILL)
            assert reward == observation[2] == 1 and observation[0] > 0.6
        observation, reward, *_ = env.step(STILL)
        np.testing.assert_array_equal(observation, [0, 0, 1])
        assert reward == 1
        np.testing.assert_array_equal(env._platform, [0.7, 0])
        for _ in range(3):  # at rest, outside
            observation, reward, *_ = env.step(STILL)
            np.testing.assert_array_equal(observation, [0, 0, 0])
            assert reward == 0


def test_the_steps_inside_need_not_be_in_a_row(env):
    for place, inside in [(0.6, 1), (0.6, 1), (0.1, 0), (0.6, 1), (0.2, 0), (0.6, 1)]:
        env._position = np.array([place, 0.0])
        assert env.step(STILL)[1] == inside
    env._position = np.array([0.6, 0.0])
    np.testing.assert_array_equal(env.step(STILL)[0], [0, 0, 1])


def test_a_new_episode_counts_anew(env):
    env._position = np.array([0.6, 0.0])
    for _ in range(4):
        env.step(STILL)
    env.reset()
    env._platform, env._position = np.array([0.7, 0.0]), np.array([0.6, 0.0])
    assert swim(env, *[STILL] * 4)[0][0] > 0.5
    np.testing.assert_array_equal(env.step(STILL)[0], [0, 0, 1])


def test_the_platform_is_anywhere_on_a_circle(env):
    platforms = []
    for _ in range(4000):
        env.reset()
        platforms.append(env._platform)
    x, y = np.transpose(platforms)
    np.testing.assert_allclose(np.hypot(x, y), 0.7)
    counts, _ = np.histogram(np.arctan2(y, x), bins=16, range=(-np.pi, np.pi))
    assert counts.min() > 190 and counts.max() < 310  # of 250, 4 deviations


def test_a_seed_fixes_the_platform(env):
    def platform(seed):
        env.reset(seed=seed)
        return tuple(env._platform)

    assert platform(1) == platform(1) != platform(2)


def test_only_the_time_limit_ends_an_episode():
    env = gymnasium.make(POMDP)
    env.reset(seed=0)
    env.action_space.seed(0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(200)]
    assert ends == [(False, False)] * 199 + [(False, True)]


def test_the_twins_show_their_part_of_the_whole():
    def episode(name):
        env = gymnasium.make(name)
        observations = [env.reset(seed=1)[0]]
        generator = np.random.default_rng(0)
        for _ in range(60):
            observations.append(env.step(generator.uniform(-0.03, 0.03, 2).astype(np.float32))[0])
        return np.array(observations), env.unwrapped._platform

    (part, _), (whole, platform), (stacked, _) = episode(POMDP), episode(MDP), episode(CONCAT)
    np.testing.assert_array_equal(whole[:, :3], part)
    np.testing.assert_array_equal(whole[:, 3:], np.tile(platform.astype(np.float32), (61, 1)))
    padded = np.concatenate([np.zeros((9, 3), np.float32), part])
    for t in range(61):
        np.testing.assert_array_equal(stacked[t], padded[t : t + 10].reshape(-1))


def test_bounds_are_tight():
    space = gymnasium.make(MDP).observation_space
    np.testing.assert_array_equal(space.high, np.array([1, 1, 1, 0.7, 0.7], np.float32))
    np.testing.assert_array_equal(space.low, np.array([-1, -1, 0, -0.7, -0.7], np.float32))
    env = WaterMaze(show_platform=True)
    env.reset()
    for angle in np.arange(4) * np.pi / 2:
        env._platform = 0.7 * np.array([np.cos(angle), np.sin(angle)])
        assert env.step(STILL)[0] in space


def test_frames_show_the_pool_the_platform_and_the_agent(env):
    env.render_mode = "rgb_array"
    env._position = np.array([0.0, 0.5])
    frame = env.render()
    assert frame.shape == (240, 240, 3) and frame.dtype == np.uint8
    nothing, water, platform, agent = frame[2, 2], frame[200, 100], frame[120, 200], frame[63, 120]
    assert len({tuple(colour) for colour in (nothing, water, platform, agent)}) == 4
    env._position = np.array([0.0, 0.4])
    assert (env.render() != frame).any()
    np.testing.assert_array_equal(env.render()[120, 200], platform)


def test_nothing_is_rendered_without_a_mode(env):
    assert env.render() is None
