"""`offpcc zoo`: its agents are the published ones, and act as published."""

import json
import shutil

import numpy as np
import pytest

import offpcc
from benchmarks.zoo import digests
from offpcc.cli import zoo
from offpcc.cli.main import main

ENTRIES = zoo.entries()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_list(capsys):
    assert main(["zoo", "list"]) == 0
    printed = capsys.readouterr().out
    assert {"pendulum", "pendulum-p"} <= {*ENTRIES}
    assert all(name in printed for name in ENTRIES)


def test_the_entries_are_small():
    assert sum(file.stat().st_size for entry in ENTRIES.values() for file in entry.iterdir()) < 10_000_000


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_an_entry_is_whole(name):
    entry, facts = zoo.find_zoo_agent(name)
    assert facts["files"] == digests(entry)
    assert {"actor_best.pt", "actor_best.onnx", "actor_best.json", "config.gin", "picture.png"} <= {*facts["files"]}
    contract = json.loads((entry / "actor_best.json").read_text())
    assert (contract["env"], contract["sha256"]) == (facts["env"], facts["files"]["actor_best.onnx"])
    assert contract["actor_sha256"] == facts["files"]["actor_best.pt"]
    assert not any("/work" in text or "/home" in text for text in map(str, facts.values()))
    assert len(facts["commit"]) == 40


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_a_contract_has_all_fields_of_a_fresh_export(name, tmp_path):
    contract = json.loads((ENTRIES[name] / "actor_best.json").read_text())
    shutil.copytree(ENTRIES[name], tmp_path / name)
    fresh = offpcc.export(tmp_path / name, tmp_path / "fresh.pt2", units=contract["units"]).contract
    of_env = {"observation_space", "wrappers", "control_rate_hz"}
    hides = name in {"cartpole-balance-p", "hopper-p", "pendulum-p", "pendulum-img"}
    assert {*contract} - {*fresh} == of_env - (set() if hides else {"wrappers"})
    file_facts = ("file", "sha256", "verified")
    assert {**fresh, **{key: contract[key] for key in file_facts}} == {key: contract[key] for key in fresh}
    assert contract["config_sha256"] == digests(ENTRIES[name])["config.gin"]
    has_images = "uint8" in contract["observation_space"]
    assert {*contract["units"]} == ({"action"} if has_images else {"observation", "action"})


def test_a_copy_is_a_runs_folder(folder, capsys):
    assert main(["zoo", "get", "pendulum-p"]) == 0
    assert main(["evaluate", "pendulum-p", "--episodes", "2"]) == 0
    assert "to evaluate it: offpcc evaluate pendulum-p" in capsys.readouterr().out
    assert main(["zoo", "get", "pendulum-p"]) == 2
    assert "pendulum-p exists" in capsys.readouterr().err


def test_a_full_disk_leaves_no_part_of_a_copy(folder, capsys, monkeypatch):
    def fails(source, target):
        target.mkdir()
        (target / "config.gin").write_text("a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zoo.shutil, "copytree", fails)
    assert main(["zoo", "get", "pendulum-p"]) == 2
    assert "No space left" in capsys.readouterr().err and not (folder / "pendulum-p").exists()


def test_playing_records_without_a_screen(folder, capsys):
    assert main(["zoo", "play", "pendulum", "--out", "videos"]) == 0
    assert "sac in pendulum-v0" in capsys.readouterr().out
    assert (folder / "videos" / "pendulum_1.mp4").stat().st_size > 1_000


def test_videos_need_a_folder(folder, capsys):
    (folder / "file").touch()
    assert main(["zoo", "play", "pendulum", "--out", "file"]) == 2
    assert "the folder of videos file cannot hold files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("play pendulm", "the zoo has no agent pendulm; did you mean pendulum"),
        ("get", "`offpcc zoo get` needs the name of an agent; there are "),
        ("list --episodes 7", "--episodes 7 has no effect on `offpcc zoo list`"),
        ("get pendulum --episodes 7", "--episodes 7 has no effect on `offpcc zoo get`"),
        ("list pendulum", "takes no name, but got pendulum"),
        ("dance pendulum", "invalid choice"),
    ],
)
def test_wrong_words(folder, capsys, words, message):
    assert main(["zoo", *words.split()]) == 2
    assert message in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_a_changed_file_is_refused(folder, monkeypatch, capsys):
    shutil.copytree(ENTRIES["pendulum"], folder / "zoo" / "pendulum")
    monkeypatch.setattr(zoo, "ZOO", folder / "zoo")
    (folder / "zoo" / "pendulum" / "config.gin").write_text("# another one\n")
    assert main(["zoo", "play", "pendulum"]) == 2
    assert "is missing, or is not the published file" in capsys.readouterr().err


def test_several_agents_are_evaluated(folder, capsys):
    names = ("pendulum", "pendulum-p")
    for name in names:
        assert main(["zoo", "get", name]) == 0
    capsys.readouterr()
    assert main(["evaluate", *names, "--episodes", "1"]) == 0
    assert capsys.readouterr().out.count("mean return") == 2  # they have no tables, so there is no mean of runs
    (folder / "results" / "pendulum-v0" / "sac" / "1").mkdir(parents=True)  # below the folder of the next files
    (folder / "results" / "pendulum-v0" / "sac" / "1" / "progress.csv").write_text("step\n1\n")
    for name in ("a.pt", "b.pt"):
        shutil.copy("pendulum/actor_best.pt", name)
    assert main(["evaluate", "a.pt", "b.pt", "--env", "pendulum-v0", "--episodes", "1"]) == 0


QUICK = ("inverted-pendulum", "pendulum", "pendulum-p")  # the others take most of a minute


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.learning) for n in sorted(ENTRIES)]
)
def test_returns_are_the_published_ones(name):
    entry, facts = zoo.find_zoo_agent(name)
    agent = offpcc.Agent.load(entry / "actor_best.pt")
    returns = offpcc.evaluate(agent, facts["env"], 100, seed=0).returns
    assert np.mean(returns) == pytest.approx(facts["evaluation"]["mean"], rel=0.02)
