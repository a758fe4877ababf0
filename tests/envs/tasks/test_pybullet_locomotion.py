"""PyBullet's bodies: what is a position and what is a velocity, falls, and episodes that repeat themselves."""

import gc

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import offpcc.envs  # noqa: F401
from offpcc.envs.tasks.pybullet_locomotion import BulletLocomotion

pybullet = pytest.importorskip("pybullet")
pytest.importorskip("pybullet_envs_gymnasium")

BODIES = {"hopper": 15, "walker2d": 22, "halfcheetah": 26, "ant": 28}
# As the field has them (VRM, RESeL): kept by P, kept by V.
KEPT = {
    "hopper": ([0, 1, 2, 6, 7, 8, 10, 12, 14], [3, 4, 5, 9, 11, 13]),
    "walker2d": ([0, 1, 2, 6, 7, 8, 10, 12, 14, 16, 18, 20, 21], [3, 4, 5, 9, 11, 13, 15, 17, 19]),
    "halfcheetah": (
        [0, 1, 2, 6, 7, 8, 10, 12, 14, 16, 18, 20, 21, 22, 23, 24, 25],
        [3, 4, 5, 9, 11, 13, 15, 17, 19],
    ),
    "ant": (
        [0, 1, 2, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 25, 26, 27],
        [3, 4, 5, 9, 11, 13, 15, 17, 19, 21, 23],
    ),
}
SECONDS = 1e-5  # so short that differences are derivatives


def moving(body, num_steps=10):
    """A body some steps into an episode, its PyBullet functions and its robot."""
    env = BulletLocomotion(body)
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    for _ in range(num_steps):
        env.step(generator.uniform(-1, 1, env.action_space.shape))
    return env, env._simulation._p, env._simulation.robot


def shove(client, robot, generator):
    """Gives every joint and the body another velocity, and leaves all in their places."""
    if robot.robot_body.bodyPartIndex == -1:  # the others hang from the world by joints
        robot.robot_body.reset_velocity(generator.uniform(-1, 1, 3), generator.uniform(-1, 1, 3))
    for index in robot.objects:
        for joint in range(client.getNumJoints(index)):
            if client.getJointInfo(index, joint)[2] != pybullet.JOINT_FIXED:
                place = client.getJointState(index, joint)[0]
                client.resetJointState(index, joint, place, generator.uniform(-1, 1))


@pytest.mark.parametrize("body", BODIES)
def test_the_whole_is_the_simulators(body):
    env = gymnasium.make(f"{body}-bullet-v0")
    observation, _ = env.reset(seed=0)
    assert observation.shape == (BODIES[body],)
    for _ in range(5):
        observation, *_ = env.step(np.full(env.action_space.shape, 0.3, np.float32))
    robot = env.unwrapped._simulation.robot
    num_feet = len(robot.feet)  # of which the observation tells where they were one step before
    np.testing.assert_array_equal(observation[:-num_feet], robot.calc_state()[:-num_feet])


@pytest.mark.parametrize("body", BODIES)
def test_the_twins_show_their_part_of_the_whole(body):
    def episode(name):
        env = gymnasium.make(name)
        observations = [env.reset(seed=1)[0]]
        for t in range(12):
            observations.append(env.step(np.full(env.action_space.shape, np.sin(t / 3), np.float32))[0])
        return np.array(observations)

    whole = episode(f"{body}-bullet-v0")
    positions, velocities = KEPT[body]
    assert sorted(positions + velocities) == list(range(BODIES[body]))
    np.testing.assert_array_equal(episode(f"{body}-bullet-p-v0"), whole[:, positions])
    np.testing.assert_array_equal(episode(f"{body}-bullet-v-v0"), whole[:, velocities])
    if body in ("halfcheetah", "ant"):
        joint_speeds = velocities[3:]
        np.testing.assert_array_equal(episode(f"{body}-p-v0"), np.delete(whole, joint_speeds, axis=1))


@pytest.mark.parametrize("body", BODIES)
def test_p_shows_no_velocity_and_v_nothing_else(body):
    """Other velocities in the same places change every number of V, and no other."""
    _env, client, robot = moving(body)
    generator = np.random.default_rng(1)
    shove(client, robot, generator)  # which also has PyBullet work out anew where the parts are
    before = robot.calc_state()
    shove(client, robot, generator)
    changed = np.flatnonzero(before != robot.calc_state())
    planar = [] if body == "ant" else [4]  # three of the bodies have no sideways to move in
    assert changed.tolist() == [index for index in KEPT[body][1] if index not in planar]


@pytest.mark.parametrize("body", BODIES)
def test_v_shows_the_velocities_of_the_positions(body):
    env, client, robot = moving(body, num_steps=0)
    # In so short a time the floor, or a joint beyond its limit, would deal a blow.
    for floor in env._simulation.stadium_scene.ground_plane_mjcf:
        client.resetBasePositionAndOrientation(floor, [0, 0, -10], [0, 0, 0, 1])
    for joint in robot.ordered_joints:
        joint.set_state(np.clip(joint.get_position(), joint.lowerLimit + 0.1, joint.upperLimit - 0.1), 0)
    shove(client, robot, np.random.default_rng(1))
    client.setPhysicsEngineParameter(fixedTimeStep=SECONDS, numSubSteps=1)
    client.stepSimulation()

    def places():
        return np.array(robot.robot_body.pose().xyz()), np.array(
            [joint.get_position() for joint in robot.ordered_joints]
        )

    place, angles = places()
    client.stepSimulation()
    new_place, new_angles = places()
    state = robot.calc_state()
    yaw = robot.body_rpy[2]
    east, north, up = (new_place - place) / SECONDS
    forwards, sideways = np.cos(yaw) * east + np.sin(yaw) * north, np.cos(yaw) * north - np.sin(yaw) * east
    velocity = np.array([forwards, sideways, up])
    assert np.abs(velocity).max() > 0.1
    np.testing.assert_allclose(state[3:6], 0.3 * velocity, rtol=1e-3, atol=1e-3)
    speeds = (new_angles - angles) / SECONDS
    assert np.abs(speeds).max() > 0.1
    np.testing.assert_allclose(state[9 : 8 + 2 * len(speeds) : 2], 0.1 * speeds, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("body", BODIES)
def test_p_shows_the_places_of_the_joints(body):
    _env, client, robot = moving(body)
    before = robot.calc_state()
    for place, joint in enumerate(robot.ordered_joints):
        index, (position, speed) = 8 + 2 * place, joint.get_state()
        assert before[index] == pytest.approx(
            2 * (position - joint.lowerLimit) / (joint.upperLimit - joint.lowerLimit) - 1, abs=1e-5
        )
        client.resetJointState(joint.bodies[joint.bodyIndex], joint.jointIndex, position + 0.01, speed)
        after = robot.calc_state()
        assert after[index] > before[index]
        before = after


@pytest.mark.parametrize("body", BODIES)
def test_it_terminates_when_it_falls_and_never_else(body):
    env = BulletLocomotion(body)
    env.action_space.seed(0)
    env.reset(seed=0)
    num_falls = 0
    for t in range(600):
        if body == "ant" and t % 100 == 50:  # it does not fall by itself
            env._simulation.robot.robot_body.reset_pose([0, 0, 0.3], [1, 0, 0, 0])
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        robot = env._simulation.robot
        height, pitch = robot.body_xyz[2], robot.body_rpy[1]
        stands = {"ant": height > 0.26, "halfcheetah": True}.get(body, height > 0.8 and abs(pitch) < 1)
        assert terminated == (not stands)
        assert not truncated
        if terminated:
            num_falls += 1
            env.reset()
    assert (num_falls > 2) == (body != "halfcheetah")


@pytest.mark.parametrize("body", BODIES)
def test_an_episode_is_the_same_first_and_later(body):
    """Its rewards too: the simulator's own first one of all differs."""

    def episode(env):
        env.reset(seed=5)
        return [env.step(np.full(env.action_space.shape, np.sin(t), np.float32))[1] for t in range(40)]

    env = BulletLocomotion(body)
    first = episode(env)
    env.reset(seed=6)
    for _ in range(200):
        env.step(np.ones(env.action_space.shape, np.float32))
    assert episode(env) == first
    assert episode(BulletLocomotion(body)) == first


def test_two_side_by_side_do_not_touch():
    def walk(*envs):
        observations = [[env.reset(seed=seed)[0] for seed, env in enumerate(envs)]]
        for t in range(30):
            observations.append([env.step(np.full(env.action_space.shape, np.sin(t), np.float32))[0] for env in envs])
        return np.array(observations)

    np.testing.assert_array_equal(
        walk(BulletLocomotion("ant"), BulletLocomotion("ant"))[:, 0], walk(BulletLocomotion("ant"))[:, 0]
    )


def test_an_action_outside_of_its_bounds_is_the_bound():
    inside, outside = BulletLocomotion("hopper"), BulletLocomotion("hopper")
    inside.reset(seed=0)
    outside.reset(seed=0)
    for _ in range(3):
        expected, expected_reward, *_ = inside.step(np.array([1, -1, 1], np.float32))
        observation, reward, *_ = outside.step(np.array([7, -7, 1.5], np.float32))
        np.testing.assert_array_equal(observation, expected)
        assert reward == expected_reward


def test_it_prints_nothing(capfd):
    env = gymnasium.make("hopper-bullet-v0")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.close()
    assert capfd.readouterr().out == ""


def test_closing_frees_the_simulation():
    env = BulletLocomotion("hopper")
    env.reset(seed=0)
    number = env._simulation.physicsClientId
    assert pybullet.isConnected(number)
    env.close()
    assert not pybullet.isConnected(number)
    env.close()


def test_a_forgotten_simulation_is_freed():
    env = BulletLocomotion("hopper")
    number = env._simulation.physicsClientId
    assert pybullet.isConnected(number)
    del env
    gc.collect()
    assert not pybullet.isConnected(number)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_is_drawn_without_a_screen():
    env = BulletLocomotion("ant", render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert frame.shape == (240, 320, 3) and frame.dtype == np.uint8
    assert BulletLocomotion("ant").render() is None


def test_gymnasiums_checker_passes_without_wrappers():
    check_env(BulletLocomotion("walker2d"), skip_render_check=True)
