"""MuJoCo's bodies: what is a position and what is a velocity, and pictures without a screen."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import offpcc.envs
from offpcc.envs import rendering
from offpcc.envs.rendering import has_screen
from offpcc.envs.tasks.mujoco_locomotion import make_mujoco_simulator

BODIES = {"hopper": 5, "walker2d": 8, "halfcheetah": 8, "ant": 13}  # numbers of positions
SECONDS = 1e-6  # so short that differences are derivatives


@pytest.fixture
def mujoco():
    rendering.choose_opengl()
    return pytest.importorskip("mujoco")


def moving(name, num_steps=10):
    env = gymnasium.make(name)
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(num_steps):
        env.unwrapped.step(env.action_space.sample())
    return env, env.unwrapped


@pytest.mark.parametrize("body", BODIES)
def test_the_twins_show_their_part_of_the_whole(mujoco, body):
    def episode(name):
        env = gymnasium.make(name)
        observations = [env.reset(seed=1)[0]]
        for t in range(20):
            observations.append(env.step(np.full(env.action_space.shape, np.sin(t / 3), np.float32))[0])
        return np.array(observations)

    whole = episode(f"{body}-mujoco-v0")
    np.testing.assert_array_equal(episode(f"{body}-mujoco-p-v0"), whole[:, : BODIES[body]])
    np.testing.assert_array_equal(episode(f"{body}-mujoco-v-v0"), whole[:, BODIES[body] :])


@pytest.mark.parametrize("body", BODIES)
def test_p_shows_no_velocity_and_v_nothing_else(mujoco, body):
    env, simulation = moving(f"{body}-mujoco-v0")
    positions, velocities = simulation.data.qpos.copy(), simulation.data.qvel.copy()
    before = simulation._get_obs()
    generator = np.random.default_rng(0)
    simulation.set_state(positions, generator.uniform(-1, 1, velocities.shape))
    changed = np.flatnonzero(before != simulation._get_obs())
    assert changed.tolist() == list(range(BODIES[body], len(before)))
    simulation.set_state(positions + generator.uniform(-0.01, 0.01, positions.shape), velocities)
    changed = np.flatnonzero(before != simulation._get_obs())
    assert changed.tolist() == list(range(BODIES[body]))
    env.close()


@pytest.mark.parametrize("body", BODIES)
def test_v_shows_the_velocities_of_the_positions(mujoco, body):
    env, simulation = moving(f"{body}-mujoco-v0")
    model, data = simulation.model, simulation.data
    model.opt.timestep = SECONDS
    before = data.qpos.copy()
    mujoco.mj_step(model, data)
    difference = np.zeros(model.nv)
    mujoco.mj_differentiatePos(model, difference, SECONDS, before, data.qpos)
    shown = simulation._get_obs()[BODIES[body] :]
    assert np.abs(shown).max() > 0.3
    np.testing.assert_allclose(shown, np.clip(difference, -10, 10), rtol=1e-3, atol=1e-4)
    env.close()


def test_ant_does_not_feel_its_contacts(mujoco):
    env = gymnasium.make("ant-mujoco-v0")
    assert env.unwrapped.observation_structure["cfrc_ext"] == 0


@pytest.mark.parametrize("body", BODIES)
def test_it_is_gymnasiums_task(mujoco, body, monkeypatch, tmp_path):
    """Version 5: the same rewards and ends."""
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes what it thinks of Gymnasium's model
    name = {"hopper": "Hopper", "walker2d": "Walker2d", "halfcheetah": "HalfCheetah", "ant": "Ant"}[body]
    ours, theirs = gymnasium.make(f"{body}-mujoco-v0"), gymnasium.make(f"{name}-v5")
    ours.reset(seed=2)
    theirs.reset(seed=2)
    ours.action_space.seed(0)
    for _ in range(30):
        action = ours.action_space.sample()
        _, reward, terminated, *_ = ours.step(action)
        _, same_reward, same_terminated, *_ = theirs.step(action)
        # Ant's contact forces cost it a little even where it does not see them.
        assert reward == same_reward
        assert terminated == same_terminated
        if terminated:
            break
    assert ours.spec.max_episode_steps == theirs.spec.max_episode_steps == 1000


def in_a_new_process(code, folder):
    """Runs `code`, where nothing is imported or chosen yet; its output, where nobody warns."""
    environ = {key: value for key, value in os.environ.items() if key not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    environ["PYTHONPATH"] = str(Path(offpcc.envs.__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environ, capture_output=True, text=True, check=True
    )
    assert not any(word in run.stderr for word in ("WARNING", "Traceback"))  # those of MuJoCo and of Python
    assert list(folder.iterdir()) == []
    return run.stdout.split()


@pytest.mark.skipif(rendering.backend() == "none", reason="no OpenGL on this machine")
def test_it_is_drawn_without_a_screen_warnings_or_files_left(mujoco, tmp_path):
    code = (
        "import gymnasium, offpcc.envs\n"
        "for name in ('halfcheetah-mujoco-v0', 'ant-mujoco-p-v0', 'reacher-pomdp-v0'):\n"
        "    env = gymnasium.make(name, render_mode='rgb_array')\n"
        "    env.reset(seed=0)\n"
        "    print(env.render().std() > 1)\n"
        "    env.close()\n"
    )
    assert in_a_new_process(code, tmp_path) == ["True"] * 3


@pytest.mark.skipif(
    has_screen(),
    reason="nothing is chosen where there is a screen",
)
@pytest.mark.parametrize("name", ["hopper-mujoco-v0", "reacher-pomdp-v0"])
def test_what_draws_is_chosen_before_mujoco_is_imported(mujoco, tmp_path, name):
    """Also where nothing is drawn yet: MuJoCo asks but once."""
    code = (
        "import os, sys, gymnasium, offpcc.envs\n"
        "from offpcc.envs import mujoco_locomotion\n"
        "choose = mujoco_locomotion.choose_opengl\n"
        "mujoco_locomotion.choose_opengl = lambda: (print('mujoco' in sys.modules), choose())\n"
        f"gymnasium.make('{name}')\n"
        "print(os.environ['MUJOCO_GL'])\n"
    )
    was_imported, chosen = in_a_new_process(code, tmp_path)
    assert was_imported == "False"
    assert chosen in ("egl", "osmesa", "disable")


def test_only_warnings_of_the_model_are_silenced(mujoco):
    """A user's own handler hears nothing of the model, and all that comes after."""
    said = []
    mujoco.set_mju_user_warning(said.append)
    try:
        env = make_mujoco_simulator("half_cheetah_v5:HalfCheetahEnv")
        env.reset(seed=0)
        assert said == []
        env.unwrapped.data.qvel[:] = np.nan
        mujoco.mj_step(env.unwrapped.model, env.unwrapped.data)
        assert any("unstable" in message for message in said)
    finally:
        mujoco.set_mju_user_warning(None)


def test_nothing_to_draw_with_is_told_at_once(mujoco, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    with pytest.raises(gymnasium.error.DependencyNotInstalled, match=r"HopperEnv.*neither EGL nor OSMesa.*libegl1"):
        gymnasium.make("hopper-mujoco-v0", render_mode="rgb_array")
    gymnasium.make("hopper-mujoco-v0").reset(seed=0)
