"""Adapters of clones. $OFFPCC_CLONES may hold the real ones, under the names of `--clone`."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cases import CASES, CLONES, Sizes
from benchmarks.libraries import UnavailableError, clones, load, version
from benchmarks.recorded import of_file, transitions
from benchmarks.throughput import main
from offpcc import Dataset

# Of the same names as CORL's file for BC; it imports what CORL's scripts do.
BC = """
from dataclasses import dataclass

import absent_logger
import torch

@dataclass
class TrainConfig:
    device: "str" = "cuda"

@absent_logger.wrap()
def train(config: TrainConfig):
    raise AssertionError("nobody trains by the script")

class ReplayBuffer:
    def __init__(self, num_in, num_out, size):
        self.size = size

    def load_d4rl_dataset(self, data):
        self.columns = [torch.as_tensor(data[name]).float() for name in ("observations", "actions")]

    def sample(self, number):
        return [column[torch.randint(self.size, (number,))] for column in self.columns]

class Actor(torch.nn.Module):
    def __init__(self, num_in, num_out, most):
        super().__init__()
        self.layer = torch.nn.Linear(num_in, num_out)

    def act(self, observation, device):
        assert not self.training
        return self.layer(torch.as_tensor(observation)).numpy()

class BC:
    def __init__(self, most, actor, optimizer):
        self.actor, self.optimizer = actor, optimizer

    def train(self, batch):
        loss = (self.actor.layer(batch[0]) - batch[1]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""


@pytest.fixture
def corl(tmp_path, monkeypatch):
    """The folder of a clone that has BC alone; what it puts into the process is taken out again."""
    file = tmp_path / "clone" / "algorithms" / "offline" / "any_percent_bc.py"
    file.parent.mkdir(parents=True)
    file.write_text(BC)
    module, _ = load("corl", str(tmp_path / "clone"))
    monkeypatch.setattr(module, "ABSENT", ("absent_logger",))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "clone"
    for name in ("absent_logger", "clone_any_percent_bc"):
        sys.modules.pop(name, None)


def test_a_clone_learns_and_acts(corl):
    module, more = load("corl", str(corl))
    data = transitions(400)
    made = module.learner(CASES["bc"], data, **more)
    before = made.act(data.observations[:3])
    made.update()
    assert before.shape == (3, 3) and (made.act(data.observations[:3]) != before).any()
    assert module.prepare(CASES["bc"], 400, **more).units == 1


@pytest.mark.parametrize("case, sizes, told", [
    ("bcq", Sizes(), "CORL has no bcq"),
    ("bc", Sizes(hidden_dims=(64, 64)), "width of 256"),
    ("bc", Sizes(hidden_dims=(256,)), "2 hidden layers"),
    ("iql", Sizes(), r"iql.py cannot be imported here"),
])  # fmt: skip
def test_what_a_clone_lacks_is_told(corl, case, sizes, told):
    module, more = load("corl", str(corl))
    with pytest.raises(UnavailableError, match=told):
        module.learner(CASES[case].__class__(case, "", "update", case, (), sizes), transitions(200), **more)


@pytest.mark.parametrize("library, case, told", [
    ("seohongpark", CASES["iql"], "has FQL with two critics"),
    ("seohongpark", replace(CASES["fql"], sizes=Sizes(num_critics=3)), "has FQL with two critics"),
    ("seohongpark", CASES["fql"], "FQL cannot be imported here"),
    ("ikostrikov", CASES["sac"], "RLPD has no other algorithm"),
    ("ikostrikov", CASES["rlpd"], "RLPD cannot be imported here"),
])  # fmt: skip
def test_what_the_authors_code_lacks_is_told(library, case, told, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("agents", "rlpd"):
        monkeypatch.setitem(sys.modules, name, None)  # the folder is empty
    module, more = load(library, str(tmp_path))
    with pytest.raises(UnavailableError, match=told):
        module.learner(case, transitions(200), **more)


def test_an_installed_package_is_no_mock(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    clones.use(Path("nowhere"), "json", "numpy")
    assert sys.modules["numpy"] is np


def test_a_clone_that_is_not_given():
    with pytest.raises(UnavailableError, match="give its clone by --clone corl=FOLDER"):
        load("corl")


def test_the_commit_of_a_clone(tmp_path):
    assert version("corl", str(tmp_path)) == "" == version("other", str(tmp_path))
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    assert len(version("corl", str(tmp_path))) >= 7


def test_a_file_in_place_of_a_clone(tmp_path, capsys):
    file = tmp_path / "corl.py"
    file.write_text("")
    with pytest.raises(SystemExit) as stop:
        main(["--clone", f"corl={file}"])
    assert stop.value.code == 2 and "corl is read from a folder, its clone" in capsys.readouterr().err


def test_transitions_of_a_recording(tmp_path):
    """Of an episode that terminated and one that was cut, the ends are marked, and actions lie within bounds."""
    observations, following = np.arange(6.0)[:, None], np.array([1.0, 2.0, 20.0, 4.0, 5.0, 50.0])[:, None]
    data = Dataset.from_arrays(
        observations=observations,
        actions=np.full((6, 1), 3.0),
        rewards=np.ones(6),
        terminations=np.array([0, 0, 1, 0, 0, 0], np.bool_),
        truncations=np.array([0, 0, 0, 0, 0, 1], np.bool_),
        next_observations=following,
    )
    data.save(tmp_path / "data.hdf5")
    read = of_file(tmp_path / "data.hdf5")
    assert read.terminations.tolist() == [False, False, True, False, False, False]
    assert read.truncations.tolist() == [False, False, False, False, False, True]
    assert read.next_observations[:, 0].tolist() == [1, 2, 20, 4, 5, 50]
    assert read.actions.max() == 1.0 and read.dims == (1, 1)


@pytest.mark.skipif("OFFPCC_CLONES" not in os.environ, reason="$OFFPCC_CLONES is not set")
@pytest.mark.parametrize("library", CLONES)
def test_real_clones_do_what_is_measured(library, tmp_path):
    """Each in a process of its own, as they are measured."""
    cases = [name for name, case in CASES.items() if library in case.libraries]
    options = ("--rounds", "1", "--seconds", "0.01", "--transitions", "8000", "--threads", "1")
    asked = ("--cases", ",".join(cases), "--libraries", library, "--out", str(tmp_path / "out.json"))
    assert main([*options, *asked, "--clone", f"{library}={Path(os.environ['OFFPCC_CLONES']) / library}"]) == 0
    assert (tmp_path / "out.json").read_text().count('"median"') == len(cases)
