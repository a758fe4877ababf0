"""A disk that is full, read-only or gone: one message, nothing harmed, and the run goes on when it is mended."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import QUICK, merged, rows

from offpcc import disks
from offpcc.disks import telling_of_faults
from offpcc.errors import UserError

LAUNCH = Path(disks.__file__).with_name("launch.py")
BINDINGS = [*merged(*QUICK), "train.num_epochs=3", "Checkpoints.every=1"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "PYTHONPATH": str(LAUNCH.parents[1])}


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


def train(results, *extra, code, bindings=BINDINGS, **environment):
    words = ("--env", "pendulum-p-v0", "--algo", "sac", "--config", "test/template_short.gin", "--results", results)
    done = subprocess.run(
        [sys.executable, LAUNCH, *words, "--gin", *bindings, *extra],
        capture_output=True, text=True, env={**os.environ, **ENVIRONMENT, **environment}, timeout=180,
    )  # fmt: skip
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and "tensorboard" not in file.parts}


def fill(disk, leave=0):
    """Leave so many bytes."""
    (disk / "filler").unlink(missing_ok=True)
    free = shutil.disk_usage(disk).free - leave
    (disk / "filler").write_bytes(bytes(max(0, free)))


def test_a_full_disk(disk, tmp_path):
    train(tmp_path / "whole", code=0)
    whole = tmp_path / "whole" / "pendulum-p-v0" / "sac" / "1"
    train(disk, bindings=merged(*BINDINGS, "train.num_epochs=1"), code=0)
    folder = disk / "pendulum-p-v0" / "sac" / "1"
    for leave in (0, 40_000):
        fill(disk, leave)
        before = contents(folder)
        done = train(disk, "--resume", code=2)
        assert done.stderr.count("\n") == 1
        assert f"offpcc: {folder} cannot be written (No space left on device)" in done.stderr
        assert "make room" in done.stderr and "--resume" in done.stderr
        after = contents(folder)
        assert after[folder / "checkpoint.pt"] == before[folder / "checkpoint.pt"]
        assert not list(folder.rglob(".*.tmp-*"))
    (disk / "filler").unlink()
    train(disk, "--resume", code=0)
    assert rows(folder) == rows(whole)
    assert (folder / "actor_last.pt").read_bytes() == (whole / "actor_last.pt").read_bytes()


def test_a_read_only_disk(disk):
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    done = train(disk, code=2)
    assert "cannot be written (Read-only file system)" in done.stderr and done.stderr.count("\n") == 1


def test_a_folder_that_vanishes(quick, tmp_path, monkeypatch):
    from offpcc.callbacks import Checkpoints

    results = tmp_path / "results"
    monkeypatch.setattr(Checkpoints, "on_epoch", lambda self, run: shutil.rmtree(results))
    code, _, err = quick("sac")
    assert code == 2
    assert "cannot be written (it is gone)" in err and err.count("\n") == 1
    assert not results.exists()


def test_what_is_no_fault_of_a_disk_is_not_called_one(tmp_path):
    with pytest.raises(ConnectionRefusedError), telling_of_faults(tmp_path):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    with pytest.raises(UserError, match=r"Disk quota exceeded.*make room"), telling_of_faults(tmp_path):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
