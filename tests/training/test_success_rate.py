"""The rate of successes in test episodes, from the environment's `info`."""

import json
import re

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from runs import progress_rows

import offpcc
from offpcc.cli.main import main
from offpcc.training.evaluation import Evaluation, overview
from offpcc.training.interaction import EpisodeResult, success_rate


class Reach(gymnasium.Env):
    """Every second episode is a success, as its last step tells; `told` is the entry of `info`."""

    def __init__(self, told="is_success", value=bool):
        self.observation_space, self.action_space = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)
        self.told, self.value, self.number, self.steps = told, value, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.steps = 0 if seed is None else seed, 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        is_over = self.steps == 5
        info = {self.told: self.value(is_over and self.number % 2 == 0)} if self.told else {}
        return np.zeros(2, np.float32), float(self.number), False, is_over, info


SHORT = {"num_epochs": 3, "num_steps_per_epoch": 20, "update_after": 10, "num_test_episodes_per_epoch": 4}


@pytest.fixture(autouse=True)
def registered():
    gymnasium.register("reach-v0", Reach)
    yield
    del gymnasium.registry["reach-v0"]


def trained(results, resume=False, seed=1, **training):
    spec = offpcc.RunSpec.make(
        "reach-v0", "sac", algorithm={"hidden_dims": (4,)}, training=SHORT | training, results=results, seed=seed
    )
    return offpcc.fit(spec, resume=resume)


@pytest.mark.parametrize(
    ("told", "value", "rate"),
    [
        ("is_success", bool, 0.5),
        ("success", lambda is_one: np.array([is_one], np.float32), 0.5),  # Meta-World's name
        ("is_success", lambda is_one: 3 * is_one, 0.5),  # as the number of solved parts
        ("is_success", str, None),
        ("is_success", np.str_, None),
        ("is_success", lambda is_one: np.array([None]), None),
        ("is_success", lambda is_one: np.nan, None),
        (None, bool, None),
    ],
)
def test_the_last_step_tells(told, value, rate):
    agent = offpcc.Agent(offpcc.SAC(Reach, hidden_dims=(4,)).algorithm)
    result = offpcc.evaluate(agent, lambda: Reach(told, value), episodes=4)
    assert result.success_rate == rate
    assert ("success rate 0.50" in str(result)) == (rate is not None)


def test_an_episode_that_tells_nothing_is_no_success():
    """Some environments have the entry only after a success."""
    results = [EpisodeResult(1.0, 5, success) for success in (1.0, None, None, None)]
    assert success_rate(results) == 0.25
    assert "success rate 0.25" in overview(results)
    assert success_rate([EpisodeResult(1.0, 5)]) is None


def test_a_run_has_a_column_of_it_and_goes_on_with_it(tmp_path):
    whole = trained(tmp_path / "whole")
    trained(tmp_path / "parts", num_epochs=1)
    parts = trained(tmp_path / "parts", resume=True)
    tables = [progress_rows(run.folder) for run in (whole, parts)]
    names = [*tables[0][0]]
    assert names[names.index("test/length") + 1] == "test/success_rate"
    assert [row["test/success_rate"] for row in tables[0]] == ["0.5"] * 3
    without_times = [[{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows] for rows in tables]
    assert without_times[0] == without_times[1] and [*tables[1][0]] == names


def test_tests_without_a_success_have_a_rate_of_0_after_one_with_it(tmp_path, monkeypatch):
    """In an environment that tells only successes; tests before the first are not known to have none."""
    rates = iter([None, 1.0, None])

    def run(self, *args):
        return [EpisodeResult(0.0, 5, next(rates))]

    monkeypatch.setattr(Evaluation, "run", run)
    run = trained(tmp_path)
    assert [row["test/success_rate"] for row in progress_rows(run.folder)] == ["", "1.0", "0.0"]


def test_the_commands_show_and_compare_it(tmp_path, capfd):
    for seed in (1, 2):
        trained(tmp_path, seed=seed)
    run = tmp_path / "reach-v0" / "sac" / "1"
    capfd.readouterr()
    assert main(["evaluate", str(run), "--episodes", "2", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["success_rate"] == 0.5
    out = tmp_path / "rates"
    assert main(["report", str(tmp_path / "reach-v0"), "--metric", "test/success_rate", "--out", str(out)]) == 0
    assert re.search(r"Scores are test/success_rate.*0\.500 \[0\.500, 0\.500\] \(2\)", capfd.readouterr().out, re.S)
    assert json.loads(out.with_suffix(".json").read_text())["metric"] == "test/success_rate"


def test_a_report_of_rates_is_over_all_tasks_and_not_by_d4rl(tmp_path, capfd):
    for task, rates in {"a": [0.2, 0.4], "b": [0.6, 0.8]}.items():
        for seed, rate in enumerate(rates):
            folder = tmp_path / task / "sac" / str(seed)
            folder.mkdir(parents=True)
            (folder / "progress.csv").write_text(f"step,test/return,test/success_rate\n1000,5,{rate}\n")
    report = offpcc.report(tmp_path, metric="test/success_rate")
    assert [row["mean"]["value"] for row in report["rows"] if row["task"] is None] == [pytest.approx(0.5)]
    assert not any("units" in warning for warning in report["warnings"])
    with pytest.raises(offpcc.UserError, match="D4RL's references are returns, and not test/success_rate"):
        offpcc.report(tmp_path, metric="test/success_rate", normalise="d4rl")
    with pytest.raises(offpcc.UserError, match=r"no run in .* has a number for 'test/succes_rate'"):
        offpcc.report(tmp_path, metric="test/succes_rate")


def test_a_report_names_the_runs_without_the_metric(tmp_path):
    """As those of an older version, which have tests all the same."""
    for run_id, text in {
        "1": "test/return\n1,5",
        "2": "test/success_rate\n1,0.5",
        "3": "test/success_rate\n1,0.7",
    }.items():
        folder = tmp_path / "a" / "sac" / run_id
        folder.mkdir(parents=True)
        (folder / "progress.csv").write_text(f"step,{text}\n")
    report = offpcc.report(tmp_path, metric="test/success_rate")
    assert "runs of sac in a without any number for test/success_rate, left out: 1" in report["warnings"]
    with pytest.raises(offpcc.UserError, match="3 is the only run with any number for test/success_rate, and"):
        offpcc.report([tmp_path / "a/sac/1", tmp_path / "a/sac/3"], metric="test/success_rate")
