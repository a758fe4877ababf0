"""`offpcc evaluate`: returns of one or several runs, as text or JSON, perhaps in a changed environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from conftest import run_folder

import offpcc
from offpcc.cli.commands import summarize_evaluation
from offpcc.training.interaction import EpisodeResult

ROOT = Path(offpcc.__file__).parents[1]
NOISY = """
import os
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv

class Noisy(PendulumEnv):
    def reset(self, **kwargs):
        print("hello from Python", flush=True)
        os.write(1, b"hello from C\\n")
        return super().reset(**kwargs)

gymnasium.register("noisy-v0", entry_point=Noisy, max_episode_steps=9)
"""


def test_json_has_all_episodes_and_their_statistics(quick, launch, tmp_path):
    quick("sac", bindings=["train.num_epochs=1"])
    run = run_folder(tmp_path)
    code, out, err = launch("evaluate", run, "--episodes", 5, "--seed", 7, "--json")
    assert code == 0, err
    found = json.loads(out)
    returns = np.array(found["returns"])
    assert found["env"] == "pendulum-p-v0" and found["actor"] == str(run / "actor_best.pt")
    assert found["seeds"] == [7, 8, 9, 10, 11] and found["lengths"] == [200] * 5
    assert len(returns) == found["num_episodes"] == 5 and len(set(returns)) == 5
    assert found["mean"] == returns.mean() and found["std"] == returns.std()
    assert returns.min() <= found["interval"]["low"] < found["mean"] < found["interval"]["high"] <= returns.max()
    assert "bootstrap" in found["interval"]["method"] and found["interval"]["level"] == 0.95
    plain = launch("evaluate", run, "--episodes", 5, "--seed", 7)[1]
    assert f"mean {returns.mean():.1f}, s.d. {returns.std():.1f}" in plain
    code, out, _ = launch("evaluate", run, "--episodes", 1, "--json")
    assert code == 0 and json.loads(out)["interval"] is None


def test_the_interval_is_that_of_a_mean():
    """For many normal returns it is the mean +- 1.96 standard errors."""
    returns = np.random.default_rng(1).normal(100.0, 10.0, 400)
    found = summarize_evaluation("e", Path("a.pt"), [EpisodeResult(one, 3) for one in returns], range(400))["interval"]
    error = returns.std() / 20.0
    assert abs(found["low"] - (returns.mean() - 1.96 * error)) < 0.1 * error
    assert abs(found["high"] - (returns.mean() + 1.96 * error)) < 0.1 * error


def test_what_an_environment_prints_does_not_reach_the_standard_output(quick, tmp_path):
    quick("sac", env="pendulum-v0", bindings=["train.num_epochs=1"])
    (tmp_path / "lab_noisy.py").write_text(NOISY)
    run = run_folder(tmp_path, "pendulum-v0")
    words = ["evaluate", str(run), "--env", "lab_noisy:noisy-v0", "--episodes", "2", "--json"]
    done = subprocess.run(
        [sys.executable, ROOT / "offpcc" / "launch.py", *words], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["lengths"] == [9, 9]
    assert "hello from C" in done.stderr and "hello from Python" in done.stderr


def test_several_runs_get_a_line_each_and_their_mean(quick, launch, tmp_path):
    quick("sac", "--run_id", 1, 2, bindings=["train.num_epochs=1", "SAC.hidden_dims=(8, 8)"])
    quick("td3", bindings=["train.num_epochs=1", "TD3.hidden_dims=(8, 8)"])
    runs = [run_folder(tmp_path), run_folder(tmp_path, run_id=2), run_folder(tmp_path, algo="td3")]
    code, out, err = launch("evaluate", *runs, "--episodes", 2, "--json")
    assert code == 0, err
    found = json.loads(out)["runs"]
    assert [one["actor"] for one in found] == [str(run / "actor_best.pt") for run in runs]
    assert [one["algo"] for one in found] == ["sac", "sac", "td3"]
    alone = json.loads(launch("evaluate", runs[2].parent, "--episodes", 2, "--json")[1])
    assert alone == {"runs": found[2:]}, "a folder of one run is a folder of runs"
    means = [one["mean"] for one in found]
    assert len(set(means)) == 3
    alone = [json.loads(launch("evaluate", run, "--episodes", 2, "--json")[1])["mean"] for run in runs]
    assert means == alone, "a run gets the same episodes beside others"
    code, out, err = launch("evaluate", *runs, "--episodes", 2)
    assert code == 0, err
    *lines, last = out.splitlines()
    for line, run, mean in zip(lines, runs, means, strict=True):
        assert line.startswith(f"{run / 'actor_best.pt'}: mean return {mean:.1f} +- ") and "over 2 episodes" in line
    expected = f"mean return {np.mean(means[:2]):.1f} +- {np.std(means[:2]):.1f} over 2 runs"
    assert last == f"pendulum-p-v0 sac: {expected}", "of one run of td3, there is no spread"
    assert launch("evaluate", runs[0].parent, "--episodes", 2)[1].splitlines() == [*lines[:2], last]
    quick("sac", "--run_id", 3, 4, bindings=["train.num_epochs=1", "SAC.hidden_dims=(8, 8)", "SAC.gamma=0.5"])
    means_of = [
        line for line in launch("evaluate", runs[0].parent, "--episodes", 1)[1].splitlines() if line.endswith(" runs")
    ]
    assert [line.partition(":")[0] for line in means_of] == [
        "pendulum-p-v0 sac, gamma=0.99",
        "pendulum-p-v0 sac, gamma=0.5",
    ], "other settings are no other seed"
    code, out, err = launch("evaluate", runs[0], tmp_path / "nowhere")
    assert (code, out) == (2, "") and "there is no actor" in err, "before the first run is played"


def test_bindings_change_the_environment_and_one_without_effect_is_refused(quick, launch, tmp_path):
    wrappers = ["make.wrappers=[@DropIndices]", "DropIndices.indices=(2,)"]
    quick("sac", env="pendulum-v0", bindings=["train.num_epochs=1", *wrappers])
    run = run_folder(tmp_path, "pendulum-v0")

    def returns(*gin):
        code, out, err = launch("evaluate", run, "--episodes", 2, "--json", *(["--gin", *gin] if gin else []))
        assert code == 0, err
        return json.loads(out)["returns"]

    assert returns("make.kwargs={'g': 1.0}") != returns()
    assert returns("DropIndices.indices=(0,)") != returns(), "overrides the binding of the run"
    assert returns("DropIndices.indices=(2,)") == returns()
    for binding, told in {
        "SAC.lr=1e-4": "SAC.lr has no effect",
        "make.kwarsg={}": "make has no parameter 'kwarsg'",
        "DropIndice.indices=(0,)": "DropIndice",
        "ObservationNoise.std=0.1": "ObservationNoise.std has no effect",
    }.items():
        code, out, err = launch("evaluate", run, "--episodes", 2, "--gin", binding)
        assert (code, out, told in err, err.count("\n")) == (2, "", True, 1), (binding, out, err)


def test_a_refusal_leaves_the_standard_output_empty(launch):
    code, out, err = launch("evaluate", "NOWHERE", "--json")
    assert (code, out) == (2, "") and "there is no actor" in err
