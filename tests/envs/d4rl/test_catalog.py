"""D4RL's names: their files, time limits, scores, and the environments that data is tested in."""

import subprocess
import sys
from pathlib import Path

import pytest

from offpcc.envs.d4rl import catalog
from offpcc.envs.d4rl.catalog import normalized_score

# Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, file",
    [
        ("hopper-medium-v2", "gym_mujoco_v2/hopper_medium-v2.hdf5"),
        ("halfcheetah-full-replay-v1", "gym_mujoco_v1/halfcheetah_full_replay-v1.hdf5"),
        ("ant-medium-expert-v2", "gym_mujoco_v2/ant_medium_expert-v2.hdf5"),
        ("walker2d-medium-replay-v0", "gym_mujoco/walker_mixed.hdf5"),
        ("hopper-medium-replay-v0", "gym_mujoco/hopper_mixed.hdf5"),
        ("walker2d-medium-expert-v0", "gym_mujoco/walker2d_medium_expert.hdf5"),
        ("ant-random-expert-v0", "gym_mujoco/ant_random_expert.hdf5"),
        ("maze2d-umaze-v1", "maze2d/maze2d-umaze-sparse-v1.hdf5"),
        ("maze2d-eval-large-dense-v1", "maze2d/maze2d-eval-large-dense-v1.hdf5"),
        ("maze2d-open-v0", "maze2d/maze2d-open-sparse.hdf5"),
        ("maze2d-open-dense-v0", "maze2d/maze2d-open-dense.hdf5"),
        ("antmaze-umaze-v0", "ant_maze_new/Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse.hdf5"),
        ("antmaze-medium-play-v1", "ant_maze_v1/Ant_maze_medium_noisy_multistart_True_multigoal_False_sparse.hdf5"),
        (
            "antmaze-large-diverse-v2",
            "ant_maze_v2/Ant_maze_hardest-maze_noisy_multistart_True_multigoal_True_sparse_fixed.hdf5",
        ),
        ("pen-human-v0", "hand_dapg/pen-v0_demos_clipped.hdf5"),
        ("relocate-cloned-v0", "hand_dapg/relocate-demos-v0-bc-combined.hdf5"),
        ("door-expert-v0", "hand_dapg/door-v0_expert_clipped.hdf5"),
        ("hammer-cloned-v1", "hand_dapg_v1/hammer-cloned-v1.hdf5"),
        ("kitchen-complete-v0", "kitchen/mini_kitchen_microwave_kettle_light_slider-v0.hdf5"),
        ("kitchen-mixed-v0", "kitchen/kitchen_microwave_kettle_bottomburner_light-v0.hdf5"),
        ("bullet-ant-medium-replay-v0", "bullet/bullet-ant_medium_replay.hdf5"),
        ("bullet-maze2d-umaze-v0", "bullet/bullet-maze2d-umaze-sparse.hdf5"),
    ],
)
def test_names_have_the_files_of_d4rl(name, file):
    assert catalog.FILES[name] == file


def test_every_file_has_one_name():
    assert len(set(catalog.FILES.values())) == len(catalog.FILES) == len(catalog.NAMES)
    assert "hopper-full-replay-v0" not in catalog.FILES


@pytest.mark.parametrize(
    "name, steps",
    [
        ("hopper-medium-v0", 1000), ("pen-human-v0", 100), ("door-cloned-v1", 200), ("kitchen-partial-v0", 280),
        ("maze2d-umaze-v1", 300), ("maze2d-umaze-v0", 150), ("maze2d-eval-large-dense-v1", 800),
        ("maze2d-open-dense-v0", 150), ("antmaze-umaze-diverse-v0", 700), ("antmaze-large-play-v2", 1000),
        ("bullet-maze2d-medium-v0", 600), ("bullet-hopper-random-v0", 1000), ("my-own-data", None),
    ],
)  # fmt: skip
def test_time_limits(name, steps):
    assert catalog.max_episode_steps(name) == steps


# Scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, return_, score",
    [
        ("hopper-medium-v2", 3234.3, 100.0),
        ("hopper-medium-v2", -20.272305, 0.0),
        ("Hopper-v4", 3234.3, 100.0),
        ("hopper-mujoco-p-v0", 3234.3, 100.0),
        ("mujoco/hopper/expert-v0", 3234.3, 100.0),
        ("halfcheetah-full-replay-v1", 12135.0, 100.0),
        ("HalfCheetah-v5", -280.178953, 0.0),
        ("walker2d-random-v0", 4592.3, 100.0),
        ("ant-random-expert-v0", 3879.7, 100.0),
        ("hopper-bullet-p-v0", 1441.8059623430963, 100.0),
        ("bullet-ant-medium-v0", 373.705955, 0.0),
        ("HopperBulletEnv-v0", 20.058972, 0.0),
        ("halfcheetah-p-v0", 2381.6725, 100.0),
        ("pen-cloned-v1", 3076.8331017826877, 100.0),
        ("door-v0", 2880.5693087298737, 100.0),
        ("D4RL/relocate/human-v2", 4233.877797728884, 100.0),
        ("maze2d-umaze-v1", 161.86, 100.0),
        ("maze2d-umaze-dense-v1", 68.537689, 0.0),
        ("antmaze-large-play-v2", 0.5, 50.0),
        ("kitchen-mixed-v0", 3.0, 75.0),
    ],
)
def test_scores(name, return_, score):
    assert normalized_score(name, return_) == pytest.approx(score, abs=1e-9)


@pytest.mark.parametrize(
    "name",
    ["Pendulum-v1", "pendulum-p-v0", "AdroitHandDoor-v1", "AdroitHandPen-v1", "AdroitHandDoorSparse-v1", "Humanoid-v4",
     "PointMaze_UMaze-v3", "AntMaze_UMaze-v4", "D4RL/antmaze/umaze-v1", "antmaze-mine-v0", "hopper-mujoco-mine-v0",
     "bullet-hopper-mine-v0", "dmc-cartpole-balance-v0", "CartPole-v1", "walk-hopper", ""],
)  # fmt: skip
def test_where_there_are_no_references_there_is_no_score(name):
    assert normalized_score(name, 100.0) is None


BODIES = ("HalfCheetah", "Hopper", "Walker2d", "Ant")
SCORED = {  # with D4RL's task and reward, up to what a simulator's version changes
    *(f"{body}-v{version}" for body in BODIES for version in (2, 3, 4, 5)),
    "HalfCheetahBulletEnv-v0", "HopperBulletEnv-v0", "Walker2DBulletEnv-v0", "AntBulletEnv-v0",
    *(f"{body.lower()}-{simulator}{hidden}-v0" for body in BODIES for simulator in ("mujoco", "bullet")
      for hidden in ("", "-p", "-v")),
    "halfcheetah-p-v0", "ant-p-v0",
}  # fmt: skip


@pytest.mark.parametrize("package", [None, "gymnasium_robotics", "pybullet_envs_gymnasium"])
def test_of_all_environments_that_are_registered_only_those_of_the_task_have_a_score(package):
    import gymnasium

    if package:
        gymnasium.register_envs(pytest.importorskip(package))
    environments = {name for name in gymnasium.registry if name not in catalog.FILES}
    scored = {name for name in environments if normalized_score(name, 1.0) is not None}
    assert scored == SCORED & environments
    assert {"Hopper-v4", "Ant-v5", "hopper-mujoco-p-v0", "ant-p-v0"} <= scored
    if package == "gymnasium_robotics":
        assert "AdroitHandDoor-v1" in environments
    if package == "pybullet_envs_gymnasium":
        assert "HopperBulletEnv-v0" in scored


def test_every_name_of_d4rl_has_a_score():
    assert not [name for name in catalog.FILES if normalized_score(name, 1.0) is None]


# Tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, task, package",
    [
        ("hopper-medium-v2", "Hopper-v4", "mujoco"),
        ("halfcheetah-full-replay-v1", "HalfCheetah-v4", "mujoco"),
        ("walker2d-random-v0", "Walker2d-v4", "mujoco"),
        ("ant-random-expert-v0", "Ant-v4", "mujoco"),
        ("bullet-halfcheetah-medium-v0", "halfcheetah-bullet-v0", "pybullet-envs-gymnasium"),
        ("pen-human-v0", "AdroitHandPen-v1", "gymnasium-robotics"),
        ("relocate-cloned-v1", "AdroitHandRelocate-v1", "gymnasium-robotics"),
        ("maze2d-open-dense-v0", "PointMaze_OpenDense-v3", "gymnasium-robotics"),
        ("maze2d-umaze-v1", "PointMaze_UMaze-v3", "gymnasium-robotics"),
        ("maze2d-eval-large-dense-v1", "PointMaze_LargeDense-v3", "gymnasium-robotics"),
        ("antmaze-umaze-diverse-v2", "AntMaze_UMaze-v5", "gymnasium-robotics"),
        ("antmaze-large-play-v0", "AntMaze_Large-v5", "gymnasium-robotics"),
        ("kitchen-mixed-v0", None, None),
        ("bullet-maze2d-umaze-v0", None, None),
        ("hopper-mine-v2", None, None),
        ("Hopper-v4", None, None),
        ("", None, None),
    ],
)
def test_tasks_of_names(name, task, package):
    assert catalog.task(name) == task
    assert catalog.package(name) == package


def test_all_names_but_those_of_the_kitchen_and_of_bullet_mazes_have_a_task():
    without = {name.rsplit("-", 2)[0] for name in catalog.FILES if not catalog.task(name)}
    assert without == {"kitchen", "bullet-maze2d"}


def test_what_is_odd_about_ant_is_told():
    assert "contact forces" in " ".join(catalog.remarks("ant-medium-v2"))
    assert "contact forces" not in " ".join(catalog.remarks("antmaze-umaze-v2"))


@pytest.mark.parametrize("name", ["flow-ring-random-v1", "carla-lane-v0", "waymo", "minigrid-fourrooms-random-v0"])
def test_families_that_are_out_of_scope_are_told(name):
    assert "Flow, CARLA, Waymo and MiniGrid are out of scope" in catalog.why_not(name)


@pytest.mark.parametrize("name", ["flower-v0", "hopper-medium-v2", "MiniGrid-Empty-8x8-v0", ""])
def test_other_names_are_not(name):
    assert catalog.why_not(name) is None


def test_names_need_neither_data_nor_torch():
    code = "import sys, offpcc.envs.d4rl.catalog; print(*{'h5py', 'torch', 'mujoco'} & set(sys.modules))"
    root = Path(catalog.__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == []
