"""The figure of fitted Q evaluation, made small."""

import json
import sys

import pytest

from benchmarks import policy_evaluation

TINY = """
include 'configs/small.gin'
ActorCritic.hidden_dims = (8, 8)
train.num_steps_per_epoch = 200
train.update_after = 200
train.num_test_episodes_per_epoch = 1
train.updates_per_step = 0.01
train.num_epochs = 4
"""


@pytest.mark.slow
def test_each_policy_has_a_value_and_a_return(tmp_path, monkeypatch):
    (tmp_path / "tiny.gin").write_text(TINY)
    file = tmp_path / "found.json"
    words = ["x", "pendulum-v0", "sac", str(file), "--config", str(tmp_path / "tiny.gin")]
    monkeypatch.setattr(sys, "argv", [*words, "--updates", "2", "--episodes", "2"])
    monkeypatch.setattr(policy_evaluation, "RECORDED_STEPS", 200)
    policy_evaluation.main()
    found = json.loads(file.read_text())
    assert [one["step"] for one in found["policies"]] == [0, 400, 800] and found["num_transitions"] == 600
    errors = [abs(one["value"] - one["discounted"]) for one in found["policies"]]
    assert found["mean_absolute_error"] == pytest.approx(sum(errors) / 3)
    assert -1.0 <= found["rank_correlation"] <= 1.0 and 0.0 <= found["regret@1"] <= 1.0
