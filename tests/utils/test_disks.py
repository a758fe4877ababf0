"""A disk that is full, read-only or gone: one message, nothing harmed, and the run goes on when it is mended."""

import contextlib
import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import gin
import pytest
from conftest import QUICK, merged, rows

from offpcc.training.checkpoint import Checkpoints
from offpcc.utils import files
from offpcc.utils.errors import UserError
from offpcc.utils.files import explain_disk_errors

LAUNCH = Path(files.__file__).parents[1] / "launch.py"
BINDINGS = [*merged(*QUICK), "train.num_epochs=3", "Checkpoints.every=1"]


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def train(launch):
    """Train in a folder of results; the exit code and what is told of errors."""

    def run(results, *extra, bindings=BINDINGS):
        name = ("--env", "pendulum-p-v0", "--algo", "sac", "--config", "test/template_short.gin")
        code, out, err = launch(*name, "--results", results, "--gin", *bindings, *extra)
        assert "Traceback" not in out + err
        return code, err

    return run


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and "tensorboard" not in file.parts}


def fill(disk, leave=0):
    """Leave so many bytes."""
    (disk / "filler").unlink(missing_ok=True)
    free = shutil.disk_usage(disk).free - leave
    with contextlib.suppress(OSError):  # a process beside it may have taken some of it by now, and then it is full
        (disk / "filler").write_bytes(bytes(max(0, free)))


def test_a_full_disk(disk, tmp_path, train):
    assert train(tmp_path / "whole")[0] == 0
    whole = tmp_path / "whole" / "pendulum-p-v0" / "sac" / "1"
    assert train(disk, bindings=merged(*BINDINGS, "train.num_epochs=1"))[0] == 0
    folder = disk / "pendulum-p-v0" / "sac" / "1"
    for leave in (0, 8_000, 30_000, 60_000):  # full already, or before TensorBoard, an actor, a checkpoint is written
        fill(disk, leave)
        before = contents(folder)
        code, err = train(disk, "--resume")
        assert code == 2 and err.count("\n") == 1, err
        advice = "free disk space, and run the same command with --resume\n"
        assert f"offpcc: {folder} cannot be written (No space left on device): {advice}" in err
        after = contents(folder)
        assert after[folder / "checkpoint.pt"] == before[folder / "checkpoint.pt"]
        assert not list(folder.rglob(".*.tmp-*"))
    (disk / "filler").unlink()
    assert train(disk, "--resume")[0] == 0
    assert rows(folder) == rows(whole)
    assert (folder / "actor_last.pt").read_bytes() == (whole / "actor_last.pt").read_bytes()


def test_a_read_only_disk(disk, train):
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    code, err = train(disk)
    assert code == 2
    assert "cannot be written to" in err and str(disk) in err and err.count("\n") == 1


@pytest.mark.slow
def test_a_disk_that_fills_up_under_a_process(disk):
    """With the threads and processes that write beside it."""
    words = ("--env", "pendulum-p-v0", "--algo", "sac", "--config", "test/template_short.gin", "--results", disk)
    tracking = {"OFFPCC_WANDB_PROJECT": "test", "WANDB_MODE": "offline"} if importlib.util.find_spec("wandb") else {}
    process = subprocess.Popen(
        [sys.executable, LAUNCH, *words, "--gin", *BINDINGS[:-2], "train.num_epochs=1_000", "Checkpoints.every=1"],
        stdout=-1, stderr=-1, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **tracking},
    )  # fmt: skip
    table = disk / "pendulum-p-v0" / "sac" / "1" / "progress.csv"
    while not (table.exists() and table.read_text().count("\n") > 1):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    fill(disk)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "Traceback" not in out and err.count("\n") == 1 and "No space left on device" in err, err


def test_a_new_run_in_a_place_without_folders_gets_no_advice_to_resume(quick):
    code, _, err = quick("sac", "--results", "/proc/results")
    assert code == 2 and err.count("\n") == 1 and "--resume" not in err
    assert "sac/1 cannot be created (No such file or directory); name another folder with --results" in err


def test_a_folder_that_vanishes(quick, tmp_path, monkeypatch):
    """What is then advised is so."""
    results, away = tmp_path / "results", tmp_path / "away"
    bindings = ("Checkpoints.every_steps=100",)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_epoch", lambda self, run: results.rename(away))
        code, _, err = quick("sac", bindings=bindings)
    assert code == 2
    told = (
        "cannot be written (it does not exist any more): put it back as it was, and run the same command with --resume"
    )
    assert told in err
    assert err.endswith("; or start a new run with another --results\n") and err.count("\n") == 1
    assert not results.exists()
    code, out, _ = quick("sac", "--results", tmp_path / "other", "--resume", bindings=bindings)
    assert code == 0 and "so a new one starts" in out
    away.rename(results)
    code, out, _ = quick("sac", "--resume", bindings=bindings)
    assert code == 0 and "after epoch 0, step 200" in out
    place = Path("pendulum-p-v0", "sac", "1")
    assert rows(results / place) == rows(tmp_path / "other" / place)


def test_what_is_no_fault_of_a_disk_is_not_called_one(tmp_path):
    with pytest.raises(ConnectionRefusedError), explain_disk_errors(tmp_path):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    with pytest.raises(UserError, match=r"Disk quota exceeded.*free disk space"), explain_disk_errors(tmp_path):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def test_a_file_elsewhere_is_named_or_left_alone(tmp_path):
    folder, other = tmp_path / "run", tmp_path / "other" / "cache"
    full, forbidden = ((code, os.strerror(code)) for code in (errno.ENOSPC, errno.EACCES))
    with pytest.raises(UserError, match=rf"^{other} cannot be written \(No space left"), explain_disk_errors(folder):
        raise OSError(*full, str(other))
    with pytest.raises(PermissionError, match="other/cache"), explain_disk_errors(folder):
        raise OSError(*forbidden, str(other))
    for ours in (folder / "progress.csv", folder, tmp_path):
        for fault in (full, forbidden):
            with pytest.raises(UserError, match=rf"^{folder} cannot be written"), explain_disk_errors(folder):
                raise OSError(*fault, os.fsencode(ours))


def test_what_passed_through_gin_is_told_as_it_was(tmp_path):
    @gin.configurable
    def writing(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)

    @gin.configurable
    def calling(file):
        writing(file)

    with pytest.raises(UserError, match=rf"^{tmp_path}/run cannot be written"), explain_disk_errors(tmp_path / "run"):
        calling(str(tmp_path / "run" / "table"))
    with pytest.raises(UserError, match=r"^/elsewhere cannot be written"), explain_disk_errors(tmp_path / "run"):
        calling("/elsewhere")


@pytest.mark.parametrize("raised", [RuntimeError, OSError])
def test_what_a_handler_of_a_full_disk_raises_is_its_own(tmp_path, raised):
    """Whoever catches an error and raises another has told what is wrong."""
    with pytest.raises(raised, match="of my own"), explain_disk_errors(tmp_path):
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            raise raised("of my own")  # noqa: B904
