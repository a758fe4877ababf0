"""Another library's agent learns from a recording and is tested by offpcc."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from test_clones import corl  # noqa: F401 (a fixture)

import offpcc
from benchmarks import offline_returns
from benchmarks.recorded import of_file, transitions
from offpcc.algorithms.components import RunningNormalization

CONFIG = """
include 'configs/base.gin'
ActorCritic.hidden_dims = (256, 256)
ReplayBuffer.batch_size = 32
CQL.num_samples = 7
EDAC.num_critics = 5
train.num_epochs = 2
train.num_steps_per_epoch = 10
"""


@pytest.fixture
def arguments(tmp_path, corl):  # noqa: F811
    offpcc.collect("pendulum-v0", None, steps=200, seed=1).save(tmp_path / "swings.hdf5")
    (tmp_path / "config.gin").write_text(CONFIG)
    given = {"library": f"corl={corl}", "algo": "bc", "env": "pendulum-v0", "dataset": tmp_path / "swings.hdf5"}
    given |= {"config": tmp_path / "config.gin", "results": tmp_path / "results", "run_id": 1}
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]


def test_a_run(arguments, tmp_path, capsys):
    assert offline_returns.main(arguments) == 0
    folder = tmp_path / "results" / "pendulum-v0_from_swings" / "corl-bc" / "1"
    rows = list(csv.DictReader((folder / "progress.csv").open()))
    assert [row["update"] for row in rows] == ["10", "20"]
    assert all(-2000 < float(row["test/return"]) < 0 and row["test/length"] == "200.0" for row in rows)
    assert json.loads((folder / "run.json").read_text())["corl"] == ""

    written = (folder / "progress.csv").read_text()
    capsys.readouterr()
    assert offline_returns.main(arguments) == 0
    assert capsys.readouterr().out.endswith("has all its tests\n")
    (folder / "progress.csv").write_text(written[: written.index("\n20,")])  # interrupted
    assert offline_returns.main(arguments) == 0
    assert (folder / "progress.csv").read_text() == written


@pytest.mark.parametrize("binding, words", [
    ("ActorCritic.lr = 1e-3", "binds ActorCritic.lr = 0.001, here it is 0.0003"),
    ("ActorCritic.n_step = 3", "binds ActorCritic.n_step = 3, which is not translated; leave it out"),
    ("train.num_test_episodes_per_epoch = 2", "num_test_episodes_per_epoch = 2, here it is 10"),
])  # fmt: skip
def test_settings_that_the_library_would_not_have_are_refused(binding, words, arguments, tmp_path, capsys):
    (tmp_path / "config.gin").write_text(CONFIG + binding + "\n")
    assert offline_returns.main(arguments) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", [*(f"offline/beside_{end}" for end in (
    "peers", "peers_bc_10", "peers_rlpd", "d3rlpy", "d3rlpy_cql", "d3rlpy_cql_hopper"
)), "discrete/beside_peers"])  # fmt: skip
def test_the_published_configs_are_followed(name):
    config = Path("configs/evidence") / f"{name}.gin"
    offpcc.configure(str(config))
    offline_returns.check_settings(config)


def test_the_best_episodes_are_those_of_the_config(tmp_path):
    recorded = offpcc.collect("pendulum-v0", None, steps=1000, seed=1)
    recorded.save(tmp_path / "swings.hdf5")
    (tmp_path / "config.gin").write_text(CONFIG + "dataset.best_fraction = 0.4\n")
    offpcc.configure(str(tmp_path / "config.gin"))
    rewards = recorded.rewards[recorded.is_transition].reshape(5, 200)
    best = np.sort(np.argsort(rewards.sum(1))[-2:])
    learned = of_file(tmp_path / "swings.hdf5", offline_returns.best_fraction())
    np.testing.assert_array_equal(learned.rewards, rewards[best].reshape(-1))
    np.testing.assert_array_equal(np.flatnonzero(learned.truncations), [199, 399])


@pytest.mark.parametrize("algo, found", [("cql", (2, 7)), ("edac", (5, 10)), ("bc", (2, 10))])
def test_settings_are_those_of_the_config(arguments, tmp_path, algo, found):
    offpcc.configure(str(tmp_path / "config.gin"))
    case, epochs, updates = offline_returns.settings(algo)
    assert (case.sizes.num_critics, case.sizes.num_samples) == found
    assert (case.sizes.hidden_dims, case.sizes.batch_size, epochs, updates) == ((256, 256), 32, 2, 10)


def test_normalisation_is_that_of_offpcc():
    data = transitions(400)._replace(observations=transitions(400).observations * [1.0, 5.0, *[1e-9] * 9] + 3.0)
    seen, normalize = offline_returns.normalized(data)
    normalization = RunningNormalization((11,))
    normalization.set_statistics(data.observations.mean(0), data.observations.std(0))
    np.testing.assert_allclose(normalize(data.observations), normalization.mirror()(data.observations), atol=1e-4)
    assert seen.observations.std(0)[:2] == pytest.approx([1.0, 1.0], abs=1e-2)


@pytest.mark.parametrize("library", ["other", "corl", "d3rlpy=folder"])
def test_a_wrong_library(arguments, capsys, library):
    arguments[1] = library
    assert offline_returns.main(arguments) == 2
    assert "is no library" in capsys.readouterr().err
