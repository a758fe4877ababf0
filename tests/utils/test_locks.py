import errno
import fcntl
import multiprocessing
import os
import signal
import socket
import subprocess
import sys

import pytest
from conftest import run_folder

from offpcc.training.checkpoint import Checkpoints
from offpcc.utils.errors import UserError
from offpcc.utils.locks import FolderLock


def test_one_at_a_time(tmp_path):
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    second.take_if_there()
    assert not list(tmp_path.iterdir()), "asking leaves nothing behind"
    first.take()
    for take in (second.take, second.take_if_there):
        with pytest.raises(UserError, match=rf"in use by process {os.getpid()} on {socket.gethostname()}; .*--run_id"):
            take()
    first.close()
    before = first.file.stat()
    second.take_if_there()
    assert first.file.stat() == before, "a run that comes to nothing changes nothing"
    second.take()


OWNER = """
import sys
from pathlib import Path
from offpcc.utils.locks import FolderLock
FolderLock(Path(sys.argv[1])).take()
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_owner(number, tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdin=-1, stdout=-1)
    owner.stdout.readline()
    with pytest.raises(UserError, match=f"process {owner.pid} on "):
        FolderLock(tmp_path).take()
    owner.send_signal(number)
    owner.wait()
    FolderLock(tmp_path).take()


def test_children_do_not_hold_it(tmp_path):
    lock = FolderLock(tmp_path)
    lock.take()
    child = subprocess.Popen(["sleep", "60"])
    forked = multiprocessing.get_context("forkserver").Process(target=signal.pause)
    forked.start()
    lock.close()
    FolderLock(tmp_path).take()
    child.kill()
    forked.kill()
    child.wait()


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_is_told(code, tmp_path, monkeypatch, quick):
    def flock(*rest):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = FolderLock(tmp_path)
    lock.take()
    assert f"the file system of {tmp_path} has no locks" in lock.message


def test_a_link_in_its_place_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    for take in (FolderLock(tmp_path / "run").take, FolderLock(tmp_path / "run").take_if_there):
        with pytest.raises(UserError, match=r"run/\.lock cannot be locked \(.*symbolic links\).* remove it"):
            take()
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (os.mkdir, "Is a directory"),
        (lambda file: file.symlink_to("nothing"), "symbolic links"),
        (lambda file: file.touch(), "Permission denied"),
    ],
    ids=["folder", "link to nothing", "of another user"],
)
def test_what_cannot_be_locked_is_told_in_one_message(make, fault, quick, tmp_path, monkeypatch):
    file = run_folder(tmp_path) / ".lock"
    file.parent.mkdir(parents=True)
    make(file)
    opened = os.open

    def denied(path, *rest, **options):  # root is denied nothing
        if path == file and fault == "Permission denied":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *rest, **options)

    monkeypatch.setattr(os, "open", denied)
    code, _, err = quick("sac", "--resume")
    assert code == 2
    assert f"{file} cannot be locked" in err and fault in err and err.count("\n") == 1
    assert list(file.parent.iterdir()) == [file]


def test_a_lock_that_cannot_be_made_is_no_fault_of_its_own(tmp_path):
    with pytest.raises(FileNotFoundError):
        FolderLock(tmp_path / "gone").take()


def test_a_second_run_of_one_id_is_refused(quick, launch, tmp_path, monkeypatch):
    """While it trains, it can be evaluated, plotted and shown."""
    told = []

    def on_epoch(self, run):
        original(self, run)
        if told:
            return
        told.append(None)
        told.append(quick("sac"))
        told.append(quick("sac", "--resume"))
        told.append(launch("evaluate", run_folder(tmp_path), "--episodes", 1))
        told.append(launch("plot", run_folder(tmp_path)))

    original = Checkpoints.on_epoch
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_epoch", on_epoch)
        assert quick("sac")[0] == 0
    for code, _, err in told[1:3]:
        assert code == 2
        assert f"{run_folder(tmp_path)} is in use by process {os.getpid()}" in err and err.count("\n") == 1
    assert [code for code, *_ in told[3:]] == [0, 0]


def test_a_run_that_is_refused_its_folder_begins_no_recording(quick, tmp_path, monkeypatch):
    def take(self):
        raise UserError("it is in use")

    monkeypatch.setattr(FolderLock, "take", take)
    assert quick("sac", "--save_dataset", "played.hdf5")[0] == 2
    assert not list(tmp_path.glob("played*"))


def test_two_that_begin_at_once(quick, tmp_path, monkeypatch):
    """The other begins after this one has looked whether there is such a run, and before it makes its folder."""
    from offpcc.training import fit

    def build(*rest, **options):
        monkeypatch.setattr(fit, "build_run", original)
        assert quick("sac")[0] == 0
        return original(*rest, **options)

    original = fit.build_run
    monkeypatch.setattr(fit, "build_run", build)
    code, _, err = quick("sac")
    assert code == 2
    assert "is finished and is not overwritten" in err
