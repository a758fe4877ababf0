"""Whatever is wrong ends in exit code 2 and one message of fault, value and remedy, and nothing is made or changed."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from bad_input import command_lines, data_sets, folders, gin_files
from bad_input.world import build
from conftest import QUICK

import offpcc

PATIENCE = 120  # seconds
WORDS = {
    "TRAIN": "--env pendulum-p-v0 --algo sac --config test/template_short.gin --run_id 99",
    "OFFLINE": "--env pendulum-p-v0 --algo bc --config test/offline_short.gin --run_id 99",
    "ACTOR": "--env pendulum-p-v0 --algo sac --run_id 1",
    "COLLECT": "collect --env pendulum-p-v0 --actor random --steps 10 --out new.hdf5",
    "RUN": "results/pendulum-p-v0/sac/1",
}
HOPPER = "--algo bc --config test/offline_short.gin --dataset hopper-medium-v2 --run_id 99"
ROWS = [
    *(({}, *row) for table in (command_lines.COMMANDS, command_lines.OTHER_COMMANDS) for row in table),
    *(({}, *row) for table in (gin_files.COMMANDS, data_sets.COMMANDS, folders.COMMANDS) for row in table),
    ({"OFFPCC_RESULTS": "a_file"}, "TRAIN", "a_file", "another folder"),
    ({"OFFPCC_RESULTS": "~ghost"}, "TRAIN", "~ghost"),
    ({"OFFPCC_DATASETS": "~ghost"}, "OFFLINE --dataset mine", "~ghost", "OFFPCC_DATASETS"),
    ({"OFFPCC_DATASETS": "a_file", "D4RL_DATASET_DIR": "a_file", "HOME": "a_file"}, HOPPER, "no folder"),
    ({"OFFPCC_D4RL_URL": "http://127.0.0.1:9"}, HOPPER, "127.0.0.1:9", "OFFPCC_D4RL_URL"),
    ({"MINARI_DATASETS_PATH": "a_file"}, "COLLECT --minari mine-v0", "a_file", "MINARI_DATASETS_PATH"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory, unit_file):
    """A folder with all that the tables name."""
    from offpcc.cli.main import main

    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OFFPCC_RESULTS", "results")
        train = [*shlex.split(WORDS["TRAIN"]), "--run_id", "1", "--gin", *QUICK]
        assert main(train) == 0
    build(folder, unit_file)
    return folder


def snapshot(folder):
    """What is there: names, kinds, sizes, times of change."""
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[path] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def expanded(command):
    for word, meaning in WORDS.items():
        command = command.replace(word, meaning)
    return shlex.split(command)


def name_of(row):
    given, command, *_ = row
    return " ".join([*(f"{key}={value}" for key, value in given.items()), command])[:80]


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_one_message_and_nothing_made(world, launch, monkeypatch, row):
    given, command, *words = row
    monkeypatch.chdir(world)
    monkeypatch.setenv("HOME", str(world / "home"))
    monkeypatch.setenv("OFFPCC_RESULTS", "results")
    for name in ("OFFPCC_DATASETS", "D4RL_DATASET_DIR", "MINARI_DATASETS_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = snapshot(world)
    code, out, err = launch(*expanded(command))
    assert (code, err.count("offpcc: "), err[:8]) == (2, 1, "offpcc: "), f"{code} {out[-300:]} {err[-3000:]}"
    assert "Traceback" not in out + err and "usage:" not in out + err
    for word in words:
        assert word in err
    after = snapshot(world)
    assert after == before, sorted({str(path) for path, _ in after.items() ^ before.items()})


@pytest.mark.parametrize(
    "given, command, word",
    [
        ({"MUJOCO_GL": "crayons"}, "check --env Hopper-v5", "MUJOCO_GL"),
        ({}, "TRAIN --run_id one", "'one'"),
        ({}, "TRAIN --config gin/import_that_exits.gin", "SystemExit"),
    ],
)
def test_a_process_tells_the_same(world, given, command, word):
    before = snapshot(world)
    environment = os.environ | {"OFFPCC_RESULTS": "results", "PYTHONDONTWRITEBYTECODE": "1"} | given
    program = [sys.executable, str(Path(offpcc.__file__).parent / "launch.py")]
    done = subprocess.run(
        [*program, *expanded(command)], cwd=world, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert done.stderr.startswith("offpcc: ") and word in done.stderr
    assert snapshot(world) == before
