"""`offpcc collect --recipe d4rl`: five data sets from one training run, the same bytes after a kill."""

import hashlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from collected import agent

import offpcc
from offpcc.cli import recipe
from offpcc.cli.recipe import KINDS, Recipe, SaveActors, choose_medium
from offpcc.data.datasets.load import load_dataset

ROOT = Path(offpcc.__file__).parents[1]
TINY = """
include 'configs/small.gin'
ActorCritic.hidden_dims = (16, 16)
Recurrent.hidden_dim = 8
train.num_steps_per_epoch = 400
train.update_after = 400
train.num_test_episodes_per_epoch = 2
train.updates_per_step = 0.25
train.num_epochs = 4
"""
EASY = """
import gymnasium
import numpy as np

class Easy(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32), {}

    def step(self, action):
        return self.reset()[0], float(action[0]), False, False, {}

if "easy-v0" not in gymnasium.registry:
    gymnasium.register("easy-v0", entry_point=Easy, max_episode_steps=30)
"""


def command(folder, *more, env="easy-v0"):
    (folder.parent / "tiny.gin").write_text(TINY)
    (folder.parent / "easy_task.py").write_text(EASY)
    words = ["collect", "--recipe", "d4rl", "--env", env, "--out", folder, "--steps", 500, "--seed", 3]
    return [*words, "--config", folder.parent / "tiny.gin", "--import", "easy_task", "--device", "cpu", *more]


def digests(folder):
    files = [*(folder / f"{kind}.hdf5" for kind in KINDS), *sorted((folder / "run").glob("actor_*.pt"))]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_the_medium_agent_is_the_first_that_is_good_enough():
    scores = np.array([np.nan, 0.1, 0.5, 0.3, 1.0, 0.9])
    assert choose_medium(scores, range(6), 0.3) == 2
    assert choose_medium(scores, [1, 3, 5], 0.3) == 3
    assert choose_medium(scores, [1, 3], 0.9) == 4  # the expert
    assert choose_medium(scores, range(6), 1.0) == 4


def test_bad_input_gets_one_message(launch, tmp_path):
    (tmp_path / "medium.hdf5").touch()
    base = ("collect", "--env", "pendulum-v0", "--steps", 5)
    to = ("--out", tmp_path / "new")
    cases = [
        ((*base, "--out", tmp_path / "a.hdf5"), "missing: --actor"),
        (
            (*base, "--out", tmp_path / "a.hdf5", "--actor", "random", "--algo", "sac"),
            "no effect without --recipe d4rl",
        ),
        ((*base, *to, "--recipe", "d4rl", "--actor", "random"), "--actor random has no effect with --recipe"),
        ((*base, *to, "--recipe", "d4rl", "--deterministic"), "--deterministic has no effect with --recipe"),
        ((*base, "--out", tmp_path, "--recipe", "d4rl"), "medium.hdf5 exists and is not overwritten; add --resume"),
        ((*base, "--out", tmp_path / "medium.hdf5", "--recipe", "d4rl"), "is a file, not a folder"),
        ((*base, *to, "--recipe", "d4rl", "--algo", "sacc"), "there is no algorithm 'sacc'"),
        ((*base, *to, "--recipe", "d4rl", "--minari", "own/data-v0"), "write KIND in place of their kind"),
        ((*base, *to, "--recipe", "d4rl", "--medium", "1.5"), "--medium"),
        ((*base, *to, "--recipe", "robomimic"), "--recipe"),
    ]
    for words, message in cases:
        code, out, err = launch(*words)
        assert (code, message in err, err.count("\n")) == (2, True, 1), (words, out, err)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("steps", "message"),
    [(400, "the agent did not learn: its best"), (100, "holds no whole episode, whose return is the measure")],
)
def test_an_agent_that_did_not_learn(steps, message, launch, tmp_path, monkeypatch):
    """Then no agent is medium. What was made stays."""
    monkeypatch.chdir(tmp_path)
    agent(tmp_path / "actor_epoch_0.pt", env="pendulum-v0")
    monkeypatch.setattr(Recipe, "train", lambda self: SaveActors(tmp_path, 2))
    monkeypatch.setattr(recipe, "read_progress", lambda file: {"test/return": [-9e9, -8e9], "step": [400, 800]})
    code, _, err = launch(*command(tmp_path / "data", "--steps", steps, env="pendulum-v0"))
    assert (code, message in err) == (2, True), err
    assert [file.name for file in (tmp_path / "data").iterdir()] == ["random.hdf5"]


def test_a_recipe_without_test_episodes_is_refused_before_its_training(launch, tmp_path):
    code, _, err = launch(*command(tmp_path, "--gin", "train.num_test_episodes_per_epoch = 0", env="pendulum-v0"))
    assert (code, "the medium agent is chosen by its test return" in err, err.count("\n")) == (2, True, 1), err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_five_data_sets_and_the_same_bytes_after_kills(tmp_path, monkeypatch, forks):
    """With a memory; `test_minari_ids` has an agent without one."""
    monkeypatch.chdir(tmp_path)
    algo = "rsac"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def alone(*given):
        """In a process of its own: recordings name the simulators that a process has loaded."""
        return forks.launch(given, tmp_path, environment)

    code, told = alone(*command(whole, "--algo", algo, "--gin", "ActorCritic.gamma = 0.9"))
    assert code == 0, told
    assert "ActorCritic.gamma = 0.9\n" in (whole / "run" / "config.gin").read_text()
    data = {kind: load_dataset(whole / f"{kind}.hdf5") for kind in KINDS}
    for kind in KINDS:
        facts = data[kind].metadata
        assert (facts["recipe"], facts["kind"], facts["algorithm"], facts["env"]) == ("d4rl", kind, algo, "easy-v0")
        assert f"{kind}.hdf5: {data[kind].num_transitions:,} steps" in told
    sizes = {kind: data[kind].num_transitions for kind in KINDS if kind != "medium-replay"}
    assert sizes == {"random": 500, "medium": 500, "expert": 500, "medium-expert": 1000}
    medium, expert, replay = (data[kind] for kind in ("medium", "expert", "medium-replay"))
    facts = medium.metadata
    spread = facts["expert_test_return"] - facts["random_return"]
    assert facts["actor_test_return"] >= facts["random_return"] + spread / 3.0
    assert facts["random_return"] == data["random"].whole_returns.mean()
    assert expert.metadata["actor_test_return"] == facts["expert_test_return"]
    assert facts["actor_step"] <= replay.num_transitions < facts["actor_step"] + 30
    np.testing.assert_array_equal(
        replay.observations, load_dataset(whole / "run" / "replay.hdf5").observations[: len(replay.observations)]
    )
    both = data["medium-expert"]
    np.testing.assert_array_equal(both.rewards[:480], medium.rewards[:480])  # whole episodes first
    assert sorted(both.rewards) == sorted([*medium.rewards, *expert.rewards])

    again = command(killed, "--algo", algo, "--resume", "--gin", "ActorCritic.gamma = 0.9")
    codes = []
    for wanted in ("run/actor_epoch_2.pt", "medium-replay.hdf5"):  # in training, and after it
        process = forks.start_command(again, tmp_path, environment)
        while process.poll() is None and not (killed / wanted).exists():
            time.sleep(0.02)
        process.kill()
        codes.append(process.wait())
    assert codes[0] == -signal.SIGKILL, "no training was killed"
    assert codes[1] in (-signal.SIGKILL, 0)  # the end of it may come first
    code, told = alone(*again)
    assert code == 0, told
    assert digests(killed) == digests(whole)
    code, told = alone(*again)
    assert code == 0 and told.count("nothing left to") == 4 and digests(killed) == digests(whole)


@pytest.mark.slow
def test_minari_ids(launch, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    code, _, err = launch(*command(tmp_path / "data", "--minari", "pendulum/KIND-v0"))
    assert code == 0, err
    for kind in KINDS:
        there = minari.load_dataset(f"pendulum/{kind}-v0")
        assert there.total_steps == load_dataset(tmp_path / "data" / f"{kind}.hdf5").num_transitions
