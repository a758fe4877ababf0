"""Only regular files are opened: no pipe, socket or device is waited for that lies in a file's place."""

import ast
import json
import multiprocessing
import os
import shlex
import shutil
import socket
import sys
from pathlib import Path

import pytest
from conftest import QUICK, merged

import offpcc
from offpcc.utils.files import check_regular, open_regular

PATIENCE = 120  # seconds
CONFIG = "--config test/template_short.gin"
RUN = "results/pendulum-p-v0/sac/1"
NEW = "results/pendulum-p-v0/sac/2"
TRAIN = f"--env pendulum-p-v0 --algo sac {CONFIG} --run_id 2 --gin train.num_epochs=1 train.num_steps_per_epoch=20"
FINISHED = "--env pendulum-p-v0 --algo sac --run_id 1 --resume"
RESUME = f"{FINISHED} --gin train.num_epochs=2"
OFFLINE = "--env pendulum-p-v0 --algo bc --config test/offline_short.gin"
COLLECT = "collect --env pendulum-v0 --actor random --steps 300 --out"

# Where it lies, the command that meets it, its exit code, and a part of what is told.
PLACES = [
    ("given.gin", "--env pendulum-p-v0 --algo sac --run_id 7 --config given.gin", 2, "given.gin"),
    ("inner.gin", "--env pendulum-p-v0 --algo sac --run_id 7 --config outer.gin", 2, "inner.gin"),
    ("fifo_module.py", "--env pendulum-p-v0 --algo sac --run_id 7 --config imports.gin", 2, "fifo_module"),
    (f"{RUN}/config.gin", RESUME, 2, "config.gin"),
    (f"{RUN}/config.gin", f"evaluate {RUN} --episodes 1", 2, "config.gin"),
    (f"{RUN}/progress.csv", RESUME, 0, "progress.csv is not what the run wrote; it is kept as progress_before.csv"),
    (f"{RUN}/progress.csv", FINISHED, 2, "progress.csv"),
    (f"{RUN}/progress.csv", f"plot {RUN}", 2, "progress.csv"),
    (f"{RUN}/tensorboard", RESUME, 0, "TensorBoard failed"),
    (f"{RUN}/run.json", RESUME, 0, "going on in"),
    (f"{RUN}/run.json", f"evaluate {RUN} --episodes 1", 0, "return over"),
    (f"{RUN}/checkpoint.pt", RESUME, 0, "the run continues from the checkpoint before it"),
    (f"{RUN}/checkpoint_parts/PART", RESUME, 2, "is not a regular file"),
    (f"{RUN}/actor_best.pt", f"evaluate {RUN}/actor_best.pt --env pendulum-p-v0 --episodes 1", 2, "actor_best.pt"),
    (f"{RUN}/actor_best.pt", f"evaluate {RUN} --episodes 1", 0, "actor_last.pt"),
    (f"{RUN}/actor_best.pt", f"collect --env pendulum-p-v0 --actor {RUN} --steps 9 --out a.hdf5", 0, "actor_last.pt"),
    (f"{RUN}/.lock", RESUME, 2, ".lock"),
    (f"{RUN}/videos", RESUME, 0, "the video failed"),
    ("data.hdf5", f"{OFFLINE} --dataset data.hdf5", 2, "data.hdf5"),
    ("data.npz", "check --dataset data.npz", 2, "data.npz"),
    ("named.hdf5", f"{OFFLINE} --dataset named", 2, "named"),
    ("new.hdf5", f"{COLLECT} new.hdf5", 2, "new.hdf5"),
    ("new.hdf5.episode_log", f"{COLLECT} new.hdf5", 2, "new.hdf5"),
    ("begun.hdf5.episode_log", f"{COLLECT} begun.hdf5 --resume", 2, "begun.hdf5.episode_log"),
    ("results", TRAIN, 2, "results"),
    ("curves.png", f"plot {RUN} --output curves.png", 0, "curves.png"),
]


KINDS = {"fifo": os.mkfifo, "folder": os.mkdir, "socket": None, "device": "/dev/zero", "system": "/proc/kmsg"}
FOLDERS = ("tensorboard", "videos", "results")  # which are folders by rights


def put(kind, place):
    """Put something of a kind into a place."""
    if place.name == "PART":
        for part in list(place.parent.iterdir()):
            put(kind, part)
        return
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    if kind == "socket":
        here = Path.cwd()
        os.chdir(place.parent)  # the names of sockets are short
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(place.name)
        os.chdir(here)
    elif isinstance(KINDS[kind], str):
        place.symlink_to(KINDS[kind])
    else:
        KINDS[kind](place)


def in_a_process(folder, act):
    """Act in a process of its own, which is killed if it hangs; its exit code and what it tells."""

    def child():
        os.chdir(folder)
        os.environ |= {"OFFPCC_RESULTS": "results", "OFFPCC_DATASETS": str(folder), "HOME": str(folder)}
        for stream, file in ((1, "out.txt"), (2, "err.txt")):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        code = act()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(PATIENCE)
    if process.exitcode is None:
        process.kill()
        process.join()
        pytest.fail("it waits for ever")
    return process.exitcode, (folder / "out.txt").read_text(), (folder / "err.txt").read_text()


def run_launch(folder, words):
    from offpcc.cli.main import main

    return in_a_process(folder, lambda: main(shlex.split(words)))


@pytest.fixture(scope="module")
def world(tmp_path_factory, pendulum_file):
    """A folder with a finished run, configs, data, and a recording that was broken off."""
    from offpcc.cli.main import main
    from offpcc.data.recording.recorder import Recorder

    folder = tmp_path_factory.mktemp("world")
    bindings = merged(*QUICK, "train.num_epochs=1", "train.num_steps_per_epoch=60", "train.update_after=50",
                      "Checkpoints.every_steps=25", "ReplayBuffer.batch_size=8", "SAC.hidden_dims=(8, 8)")  # fmt: skip
    code, _, err = run_launch(folder, f"--env pendulum-p-v0 --algo sac {CONFIG} --gin {shlex.join(bindings)}")
    assert code == 0, err
    (folder / "outer.gin").write_text("include 'inner.gin'\n")
    (folder / "imports.gin").write_text("import fifo_module\n")
    for name in ("data.hdf5", "named.hdf5"):
        shutil.copy(pendulum_file, folder / name)
    shutil.copytree(folder / RUN, folder / "results" / "pendulum-p-v0" / "sac" / "9")

    def break_off():
        Recorder.merge = lambda self: os._exit(7)
        return main(shlex.split(f"{COLLECT} begun.hdf5"))

    assert in_a_process(folder, break_off)[0] == 7
    assert (folder / "begun.hdf5.episode_log").is_file()
    return folder


def cases():
    others = [kind for kind in KINDS if kind != "fifo"]
    for number, row in enumerate(PLACES):
        yield ("fifo", *row)
        is_folder = row[0].endswith(FOLDERS)
        passed_over = row[2] == 0 and not is_folder  # as no file, which one of the system's calls itself
        is_folder = is_folder or row[:2] == (f"{RUN}/run.json", RESUME)
        fitting = [one for one in others if one != "folder" or not is_folder if one != "system" or not passed_over]
        yield (fitting[number % len(fitting)], *row)
    for name in ("run.json", "actor_last.pt"):
        words = f"{name} cannot be written (Is a directory): move that file or folder away"
        yield ("folder", f"{RUN}/{name}", RESUME, 2, words)
    yield ("fifo", f"{NEW}/checkpoint_parts", TRAIN, 2, "checkpoint_parts cannot be written (File exists)")
    yield ("folder", f"{NEW}/curve.png", TRAIN, 0, "the learning curve failed")


CASES = [
    pytest.param(*case, marks=pytest.mark.pictures) if case[1].endswith(("videos", "curve.png")) else case
    for case in cases()
]


@pytest.mark.parametrize(("kind", "place", "words", "code", "told"), CASES)
def test_only_regular_files_are_opened(world, tmp_path, kind, place, words, code, told):
    folder = tmp_path / "world"
    shutil.copytree(world, folder)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    put(kind, folder / place)
    if isinstance(KINDS[kind], str) and place.startswith(RUN) and words == RESUME:
        code, told = 2, "is a link to"
    found, out, err = run_launch(folder, words)
    assert found == code, out + err
    assert told in out + err
    assert "Traceback" not in out + err
    if code:
        assert err.startswith("offpcc: ") and err.count("\n") == 1, err


def test_no_pipe_is_waited_for_when_a_fault_is_kept(tmp_path):
    from offpcc.envs.faults import FILE, EnvironmentFault

    os.mkfifo(tmp_path / FILE)
    fault = EnvironmentFault("env", "raised", "in a step", "mend it")
    code, _, err = in_a_process(tmp_path, lambda: fault.kept_in(tmp_path).report())
    assert (code, err) == (2, "offpcc: env raised in a step; mend it\n")


def test_no_pipe_is_waited_for_where_a_checkpoint_was(world, tmp_path):
    """Nor where a table is to be put aside."""
    folder = tmp_path / "world"
    shutil.copytree(world, folder)
    for name in ("checkpoint.pt", "checkpoint_before.pt"):
        (folder / RUN / name).unlink()
    put("fifo", folder / RUN / "progress.csv")
    record = folder / RUN / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"status": "running"}))
    code, out, err = run_launch(folder, RESUME)
    assert code == 0 and "so the run starts again" in out, out + err
    assert (folder / RUN / "progress.csv").read_text().count("\n") == 3


def test_a_temporary_file_takes_the_place_of_whatever_is_there(tmp_path):
    from offpcc.utils.files import write_text

    os.mkfifo(tmp_path / f".a.tmp-{os.getpid()}.txt")
    (tmp_path / "victim").write_text("mine")
    (tmp_path / f".b.tmp-{os.getpid()}.txt").symlink_to("victim")

    def act():
        for name in ("a.txt", "b.txt"):
            planted = tmp_path / f".{name[0]}.tmp-{os.getppid()}.txt"
            planted.rename(tmp_path / f".{name[0]}.tmp-{os.getpid()}.txt")
            write_text(tmp_path / name, "text")
        return 0

    assert in_a_process(tmp_path, act)[0] == 0
    assert [(tmp_path / name).read_text() for name in ("a.txt", "b.txt", "victim")] == ["text", "text", "mine"]
    assert not (tmp_path / "b.txt").is_symlink()


@pytest.mark.parametrize("mode", ["rb", "r", "ab", "wb", "rb+"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_shared_function(tmp_path, kind, mode):
    put(kind, tmp_path / "place")
    told = "Is a directory" if kind == "folder" else "not a regular file on a disk"
    with pytest.raises(OSError, match=told):
        open_regular(tmp_path / "place", mode)
    with pytest.raises(OSError, match=told):
        check_regular(tmp_path / "place")


def test_regular_files_are_opened_as_ever(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    with pytest.raises(FileNotFoundError):
        open_regular(file)
    with open_regular(file, "w", encoding="utf-8") as opened:
        opened.write("text")
    link.symlink_to(file)
    with open_regular(link, "ab") as opened:
        opened.write(b" and more")
    with open_regular(link, "r", encoding="utf-8") as opened:
        assert opened.read() == "text and more"
    assert oct(file.stat().st_mode) == oct((tmp_path / "other").touch() or (tmp_path / "other").stat().st_mode)
    (tmp_path / "empty").touch()
    assert open_regular(tmp_path / "empty").read() == b""


# All of the package goes through it -----------------------------------------------------------------------------------

PACKAGE = Path(offpcc.__file__).parent
OPENS = {"open", "read_text", "read_bytes", "File", "ZipFile", "fromfile", "genfromtxt", "loadtxt"}
OTHERWISE = {  # what opens without the shared function, and why it may
    "cli/docs.py": "it reads the pages that are installed with offpcc",
    "utils/errors.py": "the null device takes the place of an output whose reader has ended",
    "utils/files.py": "it is the shared function, and opens folders to flush them",
    "utils/locks.py": "a lock's file has flags of its own, and is looked at likewise",
    "utils/system.py": "it reads /proc/meminfo, which is the system's own",
    "utils/tensor_files.py": "an archive in memory, and a temporary file that was just written",
    "data/convert/atari.py": "a picture in memory",
    "data/convert/frame_writer.py": "a temporary file",
    "data/datasets/frame_stacks.py": "behind check_regular",
    "data/recording/hdf5_writer.py": "a temporary file, and behind check_regular",
    "data/datasets/files.py": "behind check_regular, and an item of an archive that is open",
    "data/datasets/minari.py": "behind check_regular",
    "data/buffers/snapshot.py": "a temporary file",
    "data/datasets/download.py": "temporary files, and an address",
    "training/loggers/tensorboard_logger.py": "a new file, made by mode x",
}


def opening(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in OPENS and not (isinstance(node.func, ast.Name) and name.startswith("read_")):
                yield f"line {node.lineno}: {name}"


def test_nothing_else_opens_files():
    found = {file.relative_to(PACKAGE).as_posix(): list(opening(file)) for file in sorted(PACKAGE.rglob("*.py"))}
    found = {name: calls for name, calls in found.items() if calls}
    assert not {name: calls for name, calls in found.items() if name not in OTHERWISE}
    assert not OTHERWISE.keys() - found.keys()
