"""stable-baselines3's agents learn by the settings of one of offpcc's configs."""

import csv
import json

import pytest

import offpcc

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
from benchmarks import sb3_returns

CONFIG = """
include 'configs/evidence/beside_sb3/pendulum.gin'
ActorCritic.hidden_dims = (8, 9)
train.num_epochs = 2
train.num_steps_per_epoch = 220
train.update_after = 210
train.num_test_episodes_per_epoch = 1
"""


def test_its_runs_are_compared_by_a_report(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.gin").write_text(CONFIG)
    words = ["sb3", "--env", "pendulum-v0", "--algo", "td3", "--config", str(tmp_path / "config.gin")]
    monkeypatch.setattr("sys.argv", [*words, "--run_id", "1", "2", "--results", str(tmp_path / "results")])
    sb3_returns.main()
    folder = tmp_path / "results" / "pendulum-v0" / "sb3-td3"
    table = list(csv.DictReader((folder / "2" / "progress.csv").open()))
    assert [row["step"] for row in table] == ["220", "440"] and all(float(row["train/return"]) < 0 for row in table)
    assert json.loads((folder / "1" / "run.json").read_text())["status"] == "finished"
    report = offpcc.report(tmp_path / "results")
    assert report["rows"][0]["algorithm"] == "sb3-td3" and not report["tuning_budget"]
    capsys.readouterr()
    sb3_returns.main()
    assert capsys.readouterr().out.count("is there already") == 2


@pytest.mark.parametrize("binding, words", [
    ("ActorCritic.n_step = 3", "binds ActorCritic.n_step = 3, which is not translated"),
    ("SAC.alpha_lr = 3e-4", "has SAC.alpha_lr = 0.0003 and ActorCritic.lr = 0.001"),
])  # fmt: skip
def test_settings_that_would_differ_are_refused(binding, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "config.gin").write_text(CONFIG + binding + "\n")
    words_given = ["sb3", "--env", "pendulum-v0", "--algo", "sac", "--config", str(tmp_path / "config.gin")]
    monkeypatch.setattr("sys.argv", [*words_given, "--results", str(tmp_path / "results")])
    assert sb3_returns.main() == 2
    assert words in capsys.readouterr().err and not (tmp_path / "results").exists()


def test_settings_are_those_of_the_config(tmp_path):
    (tmp_path / "config.gin").write_text(CONFIG)
    assert sb3_returns.settings_of(str(tmp_path / "config.gin"), "sac") == {
        "learning_rate": 1e-3,
        "buffer_size": 1_000_000,
        "batch_size": 256,
        "gamma": 0.99,
        "tau": 0.005,
        "learning_starts": 210,
        "train_freq": 1,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": [8, 9]},
    }
