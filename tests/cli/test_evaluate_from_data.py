"""`offpcc evaluate --from_data`: values of saved actors from recorded data, ranked, with true returns beside them."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import run_folder

from offpcc.cli.evaluate_from_data import Evaluated, Played, as_plain_data, metrics, print_values
from offpcc.training.analysis.policy_evaluation import ValueEstimate, bounds_of_values

FEW = ("--fqe_updates", 3, "--num_envs", 2)


def test_values_of_runs_and_their_ranking(quick, launch, tmp_path, pendulum_file):
    """The recorded observations pass through the wrappers of the run, which hide velocities."""
    for run_id in (1, 2):
        quick("sac", "--run_id", run_id, bindings=["train.num_epochs=1", "SAC.hidden_dims=(8, 8)"])
    folder = run_folder(tmp_path).parent
    command = ("evaluate", folder, "--from_data", pendulum_file, *FEW, "--episodes", 2, "--fqe_gamma", 0.9)
    code, out, err = launch(*command, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["gamma"], found["num_updates"]) == (0.9, 3)
    values = [one["value"] for one in found["policies"]]
    assert len(values) == 2 and values == sorted(values, reverse=True)
    for one in found["policies"]:
        assert one["env"] == "pendulum-p-v0" and one["num_initial_states"] == 6
        assert one["interval"]["low"] < one["value"] < one["interval"]["high"]
        played = one["played"]
        assert played["num_episodes"] == 2 and played["weight_cut_off"] == pytest.approx(0.9**200)
        assert played["undiscounted"] < played["discounted"] < 0.0
    assert set(found["metrics"]) == {"mean_absolute_error", "rank_correlation", "regret@1"}
    errors = [abs(one["value"] - one["played"]["discounted"]) for one in found["policies"]]
    assert found["metrics"]["mean_absolute_error"] == pytest.approx(np.mean(errors))
    code, plain, _ = launch(*command)
    assert code == 0 and "1. " in plain and "mean undiscounted return" in plain and "rank correlation" in plain
    code, again, _ = launch(*command, "--fqe_seed", 5, "--json")
    assert code == 0 and values != [one["value"] for one in json.loads(again)["policies"]]
    code, plain, _ = launch("evaluate", folder / "1", "--from_data", pendulum_file, *FEW, "--episodes", 0)
    assert code == 0 and "value " in plain and "played" not in plain and "error" not in plain
    other = shutil.copy(pendulum_file, tmp_path / "other.hdf5")
    with h5py.File(other, "r+") as file:
        file["metadata/env"] = "Hopper-v5"
    code, _, err = launch("evaluate", folder / "1", "--from_data", other, *FEW, "--episodes", 0)
    assert code == 0 and err.count("note: the data were recorded in Hopper-v5, but the environment is pendulum-p") == 1


def test_values_that_cannot_be_and_agents_of_two_kinds_are_noted(capsys):
    def policy(name, value, memoryless):
        estimate = ValueEstimate(np.full(3, value), 0.9, 50, (-20.0, 0.0), memoryless)
        return Evaluated(Path(name), None, estimate, None)

    print_values([policy("good", -5.0, True), policy("odd", 3.0, True)])
    told = capsys.readouterr().out
    assert told.count("note: the recorded rewards give values from -20 to 0, so the value of odd is wrong") == 1
    assert "the value of good" not in told and "agents of one kind" not in told
    found = as_plain_data("data", [policy("good", -5.0, True), policy("odd", 3.0, True)])["policies"]
    assert {one["actor"]: one["is_possible"] for one in found} == {"good": True, "odd": False}
    print_values([policy("good", -5.0, True), policy("other", -4.0, False)])
    assert "compare agents of one kind" in capsys.readouterr().out


def test_the_bounds_of_values_are_those_of_the_rewards():
    assert bounds_of_values(np.array([-1.0, -3.0]), 0.9, True) == pytest.approx((-30.0, 0.0))
    assert bounds_of_values(np.array([-1.0, -3.0]), 0.9, False) == pytest.approx((-30.0, -10.0))
    assert bounds_of_values(np.array([-1.0, 2.0]), 0.5, False) == pytest.approx((-2.0, 4.0))


def test_agents_with_discrete_actions(launch, tmp_path):
    code, _, err = launch(
        *("collect", "--env", "CartPole-v1", "--actor", "random", "--steps", 200, "--out", tmp_path / "c.hdf5")
    )
    assert code == 0, err
    few = ("train.num_epochs=1", "train.num_steps_per_epoch=2", "train.num_test_episodes_per_epoch=1")
    for algo in ("dbc", "rdqn"):
        train = ("--env", "CartPole-v1", "--dataset", tmp_path / "c.hdf5", "--algo", algo, "--run_id", 1)
        code, _, err = launch(*train, "--config", "discrete/cartpole_data.gin", "--gin", *few)
        assert code == 0, err
    folders = [tmp_path / "results" / "CartPole-v1_from_c" / algo for algo in ("dbc", "rdqn")]
    command = ("evaluate", *folders, "--from_data", tmp_path / "c.hdf5", *FEW, "--episodes", 2, "--json")
    code, out, err = launch(*command)
    assert code == 0, err
    for one in json.loads(out)["policies"]:
        assert one["interval"]["low"] < one["value"] < one["interval"]["high"] and one["played"]["undiscounted"] > 0.0


def evaluated(value, discounted):
    played = None if discounted is None else Played(5, discounted, 0.0, 0.0)
    return Evaluated(None, "e", ValueEstimate(np.full(3, value), 0.9, 1), played)


def test_metrics_count_played_policies_only():
    played = [evaluated(1.0, 4.0), evaluated(2.0, 6.0)]
    assert metrics([evaluated(9.0, None), *played]) == metrics(played)
    assert metrics([evaluated(9.0, None), played[0]]) == {"mean_absolute_error": 3.0}
    assert metrics([evaluated(9.0, None)]) == {}


def test_metrics_that_are_not_defined_are_none():
    assert metrics([evaluated(1.0, 4.0)]) == {"mean_absolute_error": 3.0}
    found = metrics([evaluated(1.0, 4.0), evaluated(2.0, 4.0)])
    assert found == {"mean_absolute_error": 2.5, "rank_correlation": None, "regret@1": None}
    found = metrics([evaluated(value, discounted) for value, discounted in ((1, 9.0), (2, 5.0), (3, 7.0), (4, 1.0))])
    assert found["rank_correlation"] == pytest.approx(-0.8)
    assert found["regret@1"] == 1.0 and found["regret@3"] == 0.25 and "regret@5" not in found


def test_bad_input_gets_one_message(quick, launch, tmp_path, pendulum_file):
    quick("sac", bindings=["train.num_epochs=1", "SAC.hidden_dims=(8, 8)"])
    run = run_folder(tmp_path)
    data = ("--from_data", pendulum_file)
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = [
        ((run, "--fqe_updates", 3), "--fqe_updates 3 has no effect without --from_data"),
        ((run, run), "is given twice"),
        ((run, "--episodes", 0), "--episodes '0' plays nothing"),
        ((run, run, *data), "is given twice"),
        ((empty, *data), "no runs in"),
        ((tmp_path / "nothing", *data), "there is no actor"),
        ((run, *data, "--fqe_gamma", 1), "--fqe_gamma is 1"),
        ((run, *data, "--env", "reacher-mdp-v0"), "action"),
        ((run, *data, "--env", "pendulum-v0", *FEW), "--env"),
        ((run, "--from_data", tmp_path / "no.hdf5"), "no.hdf5"),
    ]
    for words, message in cases:
        code, out, err = launch("evaluate", *words)
        assert (code, message in err, err.count("\n")) == (2, True, 1), (words, out, err)
