"""Learning that goes on in the environment after recorded data: one run of two phases."""

import csv
import json

import pytest
import torch
from conftest import merged, rows
from test_resume import assert_same

from offpcc.training.checkpoint import Checkpoints, read_checkpoint
from offpcc.utils import signals

SHORT = (
    "train.num_epochs=1",
    "train.num_steps_per_epoch=120",
    "train.num_test_episodes_per_epoch=1",
    "train.updates_per_step=0.1",
    "ActorCritic.hidden_dims=(16,16)",
)
ONLINE = ("OfflineToOnline.warm_up_steps=30", "OfflineToOnline.updates_per_step=0.1")
THEN = ("--then_env_steps", "240")


@pytest.fixture
def online(launch, pendulum_file, monkeypatch):
    """Train a few steps from recorded data, and go on in the environment."""
    monkeypatch.setattr("offpcc.training.fit.picture", lambda *rest: None)

    def run(algo, *extra, env="pendulum-v0", then=THEN, bindings=()):
        given = ("--dataset", pendulum_file, "--env", env, "--config", "test/offline_short.gin", *then)
        return launch("--algo", algo, *given, *extra, "--gin", *merged(*SHORT, *(ONLINE if then else ()), *bindings))

    return run


def folder(tmp_path, algo, label="pendulum-v0_from_swings_then_online", run_id=1):
    return tmp_path / "results" / label / algo / str(run_id)


def table(path):
    with (path / "progress.csv").open() as file:
        return list(csv.DictReader(file))


def assert_equal_runs(one, two, bound=True):
    assert rows(one) == rows(two)
    checkpoints = [read_checkpoint(run / "checkpoint.pt") for run in (one, two)]
    for checkpoint in checkpoints:
        checkpoint["bound"] = checkpoint["bound"] if bound else None
    assert_same(*checkpoints)
    assert_same(torch.load(one / "actor_last.pt"), torch.load(two / "actor_last.pt"))


def test_one_run_has_two_phases(online, tmp_path):
    code, out, err = online("iql")
    assert code == 0, err
    assert "then 240 steps in pendulum-v0 by IQL, 50% of each batch from the data, the first 30 without updates" in out
    found = [(row["step"], row["update"], row["epoch"], row["env_step"]) for row in table(folder(tmp_path, "iql"))]
    assert found == [("120", "12", "1", ""), ("240", "21", "2", "120"), ("360", "33", "3", "240")]


@pytest.mark.parametrize("algo", ["iql", *(pytest.param(name, marks=pytest.mark.slow) for name in ("riql", "rebrac"))])
def test_a_run_resumes_exactly_before_at_and_after_the_switch(algo, online, tmp_path, monkeypatch):
    whole = folder(tmp_path, algo)
    assert online(algo)[0] == 0
    count, stop = 0, 0
    original = Checkpoints.on_progress

    def stopping(self, run):
        nonlocal count
        count += 1
        if count == stop:
            raise signals.Interrupted("stopped")
        original(self, run)

    monkeypatch.setattr(Checkpoints, "on_progress", stopping)
    for stop in (50, 133, 134, 200, 379):  # 133 is the end of the last epoch of recorded data
        count = 0
        monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / str(stop)))
        assert online(algo)[0] != 0
        code, out, err = online(algo, "--resume")
        assert code == 0, err
        assert "not exact" not in out
        assert_equal_runs(whole, tmp_path / str(stop) / whole.relative_to(tmp_path / "results"))


@pytest.mark.parametrize("algo", ["iql", "riql"])
def test_continuing_a_finished_run_gives_the_same(algo, online, launch, tmp_path, monkeypatch):
    assert online(algo)[0] == 0
    whole = folder(tmp_path, algo)
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "two"))
    assert online(algo, then=(), bindings=())[0] == 0
    before = tmp_path / "two" / "pendulum-v0_from_swings" / algo / "1"
    code, out, err = launch("--from", before, "--env", "pendulum-v0", *THEN, "--gin", *ONLINE)
    assert code == 0, err
    assert f"going on from {before} after epoch 1, step 120" in out
    after = tmp_path / "two" / whole.relative_to(tmp_path / "results")
    assert_equal_runs(whole, after, bound=False)
    assert json.loads((after / "run.json").read_text())["from"] == str(before)
