"""A run's folder from somebody else: whatever is in it, no command executes it or writes outside of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import QUICK, run_folder
from hostile_folders import CODE, CONFIGS, HARMLESS, HOSTILE, MARKER, ROWS, good_data

import offpcc

LAUNCH = Path(offpcc.__file__).parent / "launch.py"
NAME = ("--env", "pendulum-p-v0", "--algo", "sac")
WORDS = {
    "resume": (*NAME, "--resume", "--gin", "train.num_epochs=3"),
    "evaluate": ("evaluate", ".", "--episodes", 1),
    "render": (*NAME, "--render", "--episodes", 1),
    "plot": ("plot", ".", "--output", "../curves.png"),
    "collect": ("collect", "--env", "pendulum-p-v0", "--actor", ".", "--steps", 5, "--out", "../new.hdf5"),
    "dataset": (*NAME[:2], "--algo", "bc", "--dataset", "data.hdf5", "--config", "test/offline_short.gin"),
    "check": ("check", "--dataset", "data.hdf5", "--env", "pendulum-p-v0"),
}

pytestmark = pytest.mark.pictures


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run that has one epoch left."""
    from offpcc.cli.main import main

    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OFFPCC_RESULTS", "results")
        config = ("--config", "test/template_short.gin", "--gin", *QUICK, "train.num_epochs=2")
        assert main([*NAME, *config]) == 0
    return run_folder(folder)


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """A copy of it, which is the working directory as well; a module that is installed; the user's own files."""
    folder = run_folder(tmp_path)
    shutil.copytree(trained, folder)
    good_data(folder / "data.hdf5")
    for place in ("installed", "victim/folder"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "installed" / "evil_installed.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    victim = tmp_path / "victim"
    for name in ("secret.txt", "folder/.best_actor.tmp-1.mp4", "folder/.piece.tmp-1.part", f"folder/{'0' * 32}.part"):
        (victim / name).write_text("import evil\n")
    good_data(victim / "data.hdf5")
    return folder


@pytest.fixture
def attacked(launch, tmp_path, monkeypatch):
    """Run a command in a folder; nothing is executed, the user's files stay, and faults are told in one message."""
    victim = tmp_path / "victim"

    def run(folder, words):
        monkeypatch.chdir(folder)
        monkeypatch.delenv("DISPLAY", raising=False)
        monkeypatch.setattr(sys, "path", [*sys.path])
        before = snapshot(victim)
        code, out, err = launch(*words)
        assert not list(tmp_path.rglob(MARKER))
        assert snapshot(victim) == before
        assert code in ((0, 1, 2) if words[0] == "check" else (0, 2)) and "Traceback" not in out + err, err
        assert (code == 2) == (err.count("offpcc: ") == 1), err
        assert err.removesuffix("\n").isprintable() or code == 0, ascii(err)
        return code, out, err

    return run


# The fast tests have one command for each way of attack.
SOME_FAST = [
    (row, command) if (row, command) in dict(ROWS).items() else pytest.param(row, command, marks=pytest.mark.slow)
    for row, command in ROWS
]


def snapshot(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("row, command", SOME_FAST, ids=str)
def test_nothing_is_executed_and_nothing_else_is_written(folder, attacked, tmp_path, row, command):
    make_hostile, refused = HOSTILE[row]
    make_hostile(folder, tmp_path / "victim")
    code, out, err = attacked(folder, WORDS[command])
    if row in HARMLESS:
        assert code == 0, err
    if command in refused:
        assert code == 2, out
        for word in refused[command]:
            assert word in err


@pytest.mark.parametrize("row", ["import beside", "import installed"])
def test_an_import_that_is_asked_for_is_made(folder, launch, tmp_path, monkeypatch, row):
    make_hostile, refused = HOSTILE[row]
    make_hostile(folder, tmp_path / "victim")
    monkeypatch.chdir(folder)
    option, module = refused["resume"][-1].split()
    code, _, err = launch(*WORDS["resume"], option, module)
    assert code == 0, err
    assert (folder / MARKER).exists()
    sys.modules.pop(module)


def test_a_config_that_a_run_wrote_imports_nothing_by_whatever_name_it_is_given(folder, attacked, tmp_path):
    CONFIGS["import beside"][0](folder, tmp_path / "victim")
    for name in ("config.gin", folder / "config.gin"):
        code, _, err = attacked(folder, (*NAME, "--run_id", 2, "--config", name))
        assert code == 2 and "--import evil" in err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_modules_that_other_packages_look_for_are_not_found_in_the_folder(folder, tmp_path, command):
    """A process of its own: here, all that is imported on the way is imported already."""
    CONFIGS["optional modules"][0](folder, tmp_path / "victim")
    words = [sys.executable, str(LAUNCH), *map(str, WORDS[command])]
    environment = os.environ | {"OFFPCC_RESULTS": str(tmp_path / "results")}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob(MARKER))
