import builtins
import contextlib
import io
import math
import os
import resource
import struct
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from rich.console import Console

import offpcc
import offpcc.utils.files
from offpcc.training.loggers import (
    ConsoleLogger,
    CSVLogger,
    Loggers,
    Progress,
    TensorBoardLogger,
    WandbLogger,
    tracking_wanted,
)
from offpcc.training.loggers.console import return_decimals, standard_console

COLUMNS = ["epoch", "step", "train/return", "test/return"]
PROGRESS = Progress(
    step=1500,
    num_steps=6000,
    steps_per_second=250.0,
    seconds_left=18.0,
    train_return=-12.34,
    test_return=None,
    phase="learning",
)


def run_python(code, **environment):
    """Run code in a fresh interpreter, where nothing is imported, set up or logged in yet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "OFFPCC_"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=kept | environment,
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


class TestCSVLogger:
    def test_the_header_is_there_from_the_start(self, tmp_path):
        CSVLogger(tmp_path / "progress.csv", COLUMNS)
        assert (tmp_path / "progress.csv").read_text() == "epoch,step,train/return,test/return\n"

    def test_numbers_are_exact_and_none_is_an_empty_cell(self, tmp_path):
        logger = CSVLogger(tmp_path / "progress.csv", COLUMNS)
        logger.epoch({"step": np.int64(10), "epoch": 1, "train/return": None, "test/return": 0.1 + 0.2})
        logger.epoch({"step": 20, "epoch": 2, "train/return": math.nan, "test/return": np.float32(1 / 3)})
        _, first, second = (tmp_path / "progress.csv").read_text().splitlines()
        assert first == "1,10,,0.30000000000000004"
        assert second == "2,20,nan,0.3333333432674408"

    def test_a_new_column_comes_after_the_one_before_it_in_the_row(self, tmp_path):
        logger = CSVLogger(tmp_path / "progress.csv", ["epoch", "step", "test/return"])
        logger.epoch({"epoch": 1, "step": 10, "test/return": 1.0})
        logger.epoch({"epoch": 2, "step": 20, "test/success_rate": 0.5, "test/return": 2.0})
        logger.epoch({"epoch": 3, "step": 30, "test/return": 3.0})
        text = "epoch,step,test/success_rate,test/return\n1,10,,1.0\n2,20,0.5,2.0\n3,30,,3.0\n"
        assert (tmp_path / "progress.csv").read_text() == text

    def test_a_new_run_overwrites(self, tmp_path):
        file = tmp_path / "progress.csv"
        file.write_text("something,else\n1,2\n")
        CSVLogger(file, COLUMNS)
        assert file.read_text() == ",".join(COLUMNS) + "\n"

    def test_an_interrupted_write_leaves_the_rows_before_it(self, tmp_path, monkeypatch):
        logger = CSVLogger(tmp_path / "progress.csv", COLUMNS)
        logger.epoch({"epoch": 1, "step": 10})
        before = (tmp_path / "progress.csv").read_bytes()

        def fail(descriptor):
            raise OSError("no space left")

        monkeypatch.setattr(offpcc.utils.files.os, "fsync", fail)
        with pytest.raises(OSError, match="no space"):
            logger.epoch({"epoch": 2, "step": 20})
        assert (tmp_path / "progress.csv").read_bytes().startswith(before)
        assert len(list(tmp_path.iterdir())) == 1

    def test_an_epoch_appends_to_the_file_and_does_not_write_it_anew(self, tmp_path):
        file = tmp_path / "progress.csv"
        logger = CSVLogger(file, COLUMNS)
        before = file.stat().st_ino
        logger.epoch({"epoch": 1, "step": 10})
        assert file.stat().st_ino == before and file.read_text() == ",".join(COLUMNS) + "\n1,10,,\n"

    def test_a_line_that_does_not_fit_on_the_disk_leaves_those_before_it(self, tmp_path):
        file = tmp_path / "progress.csv"
        logger = CSVLogger(file, COLUMNS)
        before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 3, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                logger.epoch({"epoch": 1, "step": 10})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert file.read_bytes().startswith(before)

    def test_a_file_that_was_removed_is_written_anew(self, tmp_path):
        file = tmp_path / "progress.csv"
        logger = CSVLogger(file, COLUMNS)
        logger.epoch({"epoch": 1, "step": 10})
        file.unlink()
        logger.epoch({"epoch": 2, "step": 20})
        assert file.read_text() == ",".join(COLUMNS) + "\n1,10,,\n2,20,,\n"

    def test_a_link_is_not_written_through(self, tmp_path):
        file, other = tmp_path / "progress.csv", tmp_path / "other"
        logger = CSVLogger(file, COLUMNS)
        file.rename(other)
        file.symlink_to(other)
        with pytest.raises(OSError, match="symbolic links"):
            logger.epoch({"epoch": 1, "step": 10})
        assert other.read_text().count("\n") == 1

    def test_going_on_writes_the_rows_before_byte_for_byte(self, tmp_path):
        written = [{"step": 10, "epoch": 1, "test/return": 0.1 + 0.2}, {"step": 20, "epoch": 2, "train/return": None}]
        logger = CSVLogger(tmp_path / "whole.csv", COLUMNS)
        for row in written:
            logger.epoch(row)
        before = (tmp_path / "whole.csv").read_bytes()
        logger = CSVLogger(tmp_path / "progress.csv", COLUMNS, written)
        assert (tmp_path / "progress.csv").read_bytes() == before
        logger.epoch({"epoch": 3, "step": 30, "test/return": 5.0})
        assert (tmp_path / "progress.csv").read_bytes() == before + b"3,30,,5.0\n"

    def test_a_column_that_comes_is_empty_in_the_rows_before_and_one_that_goes_stays(self, tmp_path):
        file, columns = tmp_path / "progress.csv", ["epoch", "step", "skipped", "time"]
        rows = [{"epoch": 1, "step": 10, "time": 0.5}, {"epoch": 2, "step": 20, "time": 0.7}]
        logger = CSVLogger(file, columns, rows)
        rows.append({"epoch": 3, "step": 30, "skipped": 0.5, "time": 0.9})
        logger.epoch(rows[-1])
        expected = "epoch,step,skipped,time\n1,10,,0.5\n2,20,,0.7\n3,30,0.5,0.9\n"
        assert file.read_text() == expected
        logger = CSVLogger(file, ["epoch", "step", "time"], rows)
        logger.epoch({"epoch": 4, "step": 40, "time": 1.1})
        assert file.read_text() == expected + "4,40,,1.1\n"

    def test_a_link_is_replaced_and_not_followed(self, tmp_path):
        file = tmp_path / "progress.csv"
        file.symlink_to("/dev/zero")
        CSVLogger(file, ["epoch"], [{"epoch": 1}])
        assert file.read_text() == "epoch\n1\n" and not file.is_symlink()


class TestTensorBoardLogger:
    def read(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder / "tensorboard"))
        events.Reload()
        return {
            name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]
        }

    def test_scalars_lie_in_the_run_folder_by_environment_step(self, tmp_path):
        logger = TensorBoardLogger(tmp_path)
        logger.epoch({"step": 10, "test/return": 1.5, "train/return": None})
        logger.epoch({"step": 20, "test/return": 2.5, "train/return": 0.5})
        assert self.read(tmp_path)["test/return"] == [(10, 1.5), (20, 2.5)]  # before close, too
        logger.close()
        assert self.read(tmp_path) == {"test/return": [(10, 1.5), (20, 2.5)], "train/return": [(20, 0.5)]}

    def test_resuming_hides_what_came_after_the_checkpoint(self, tmp_path):
        interrupted = TensorBoardLogger(tmp_path)
        for step in (10, 20, 30):
            interrupted.epoch({"step": step, "test/return": float(step)})
        interrupted.close()
        resumed = TensorBoardLogger(tmp_path, purge_step=21)
        resumed.epoch({"step": 30, "test/return": -1.0})
        resumed.close()
        assert self.read(tmp_path) == {"test/return": [(10, 10.0), (20, 20.0), (30, -1.0)]}

    def test_what_is_logged_is_written_at_once_and_by_nobody_else(self, tmp_path):
        before = threading.active_count()
        logger = TensorBoardLogger(tmp_path)
        (file,) = (tmp_path / "tensorboard").iterdir()
        sizes = [file.stat().st_size]
        for step in (10, 20):
            logger.epoch({"step": step, "test/return": 1.0})
            sizes.append(file.stat().st_size)
        assert sizes == sorted(set(sizes)) and threading.active_count() == before
        logger.close()

    def test_it_is_imported_late_and_silently(self, tmp_path):
        code = f"""
import sys
from pathlib import Path
from offpcc.training.loggers import TensorBoardLogger
assert "tensorboard" not in sys.modules
logger = TensorBoardLogger(Path({str(tmp_path)!r}))
assert "tensorboard" in sys.modules
logger.close()
"""
        done = run_python(code)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("mean", "decimals"), [(0.44, 2), (-9.99, 2), (10.0, 1), (-150.0, 1), (math.nan, 1)])
def test_small_returns_have_two_decimals(mean, decimals):
    assert return_decimals(mean) == decimals


class TestConsoleLogger:
    def terminal(self, monkeypatch, width=80):
        monkeypatch.setenv("TERM", "xterm-256color")
        return Console(force_terminal=True, file=io.StringIO(), width=width, color_system=None)

    def test_the_display_shows_how_far_the_run_is(self, monkeypatch):
        console = self.terminal(monkeypatch)
        logger = ConsoleLogger("Pendulum-v1 sac run 1", console=console)
        logger.progress(PROGRESS._replace(test_return=98.76))
        shown = console.file.getvalue()
        logger.close()
        for text in (
            "Pendulum-v1 sac run 1",
            "learning",
            "1,500 of 6,000 steps",
            "━",
            "250.0 steps/s",
            "0:00:18 left",
            "train return -12.3",
            "test return 98.8",
        ):
            assert text in shown

    def test_an_epoch_updates_the_returns_and_close_leaves_them(self, monkeypatch):
        console = self.terminal(monkeypatch)
        logger = ConsoleLogger("title", console=console)
        logger.progress(PROGRESS)
        logger.epoch({"step": 2000, "train/return": None, "test/return": 55.5})
        logger.close()
        last = console.file.getvalue().rpartition("title")[2]
        assert "2,000 of 6,000 steps" in last
        assert "train return -12.3" in last
        assert "test return 55.5" in last
        assert last.endswith("\x1b[?25h")  # the cursor is visible again

    @pytest.mark.parametrize("width", [20, 80, 200])
    def test_the_display_has_three_rows_in_any_width(self, monkeypatch, width):
        console = self.terminal(monkeypatch, width)
        logger = ConsoleLogger("a title that is much longer than twenty characters", console=console)
        logger.progress(PROGRESS)
        logger.close()
        assert len(console.render_lines(logger._display())) == 3

    def test_what_others_print_meanwhile_stays_whole(self, monkeypatch, capsys):
        console = self.terminal(monkeypatch)
        logger = ConsoleLogger("title", console=console)
        logger.progress(PROGRESS)
        logger.print("said [bold]as it is[/bold] :smile: " + "x" * 100)
        print("a plain print")
        print("a warning", file=sys.stderr)
        logger.progress(PROGRESS)
        logger.close()
        print("after")
        shown = console.file.getvalue()
        assert "said [bold]as it is[/bold] :smile: " + "x" * 100 + "\n" in shown
        assert "a plain print\n" in shown
        assert "a warning\n" in shown
        assert capsys.readouterr().out == "after\n"

    def test_without_a_terminal_there_is_one_plain_line_per_epoch(self):
        console = Console(force_terminal=False, file=io.StringIO(), width=40)
        logger = ConsoleLogger("title", console=console)
        logger.progress(PROGRESS)
        logger.progress(PROGRESS)
        logger.epoch({"step": 2000, "train/return": 1.0, "test/return": 2000.25})
        logger.progress(PROGRESS._replace(step=2500, test_return=2000.25))
        logger.epoch({"step": 3000, "train/return": None, "test/return": None})
        logger.close()
        speed = "0:00:18 left  250.0 steps/s"
        assert console.file.getvalue().splitlines() == [
            f"title  2,000 of 6,000 steps  test return 2,000.2  train return 1.00  {speed}",
            f"title  3,000 of 6,000 steps  test return 2,000.2  train return -12.3  {speed}",
        ]

    def test_a_notebook_gets_one_plain_line_per_epoch(self, monkeypatch, capsys):
        shell = type("ZMQInteractiveShell", (), {})
        monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
        monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter does
        learner = offpcc.SAC("pendulum-p-v0", hidden_dims=(8,))
        learner.train(num_epochs=3, num_steps_per_epoch=20, num_test_episodes_per_epoch=0)
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(" of ")[0] for line in lines] == [f"pendulum-p-v0 sac  {n}" for n in (20, 40, 60)]
        assert not any("\x1b" in line for line in lines)

    def test_only_a_run_with_training_episodes_has_a_train_return(self, capsys):
        data = offpcc.collect("pendulum-v0", None, steps=210)
        offpcc.configure(None, "OfflineToOnline.warm_up_steps = 10")
        for more, is_told in (({}, False), ({"then_env_steps": 20}, True)):
            learner = offpcc.BC("pendulum-v0", dataset=data, hidden_dims=(8,), **more)
            capsys.readouterr()
            learner.train(num_epochs=1, num_steps_per_epoch=20, num_test_episodes_per_epoch=1)
            line, *_ = [one for one in capsys.readouterr().out.splitlines() if "test return -" in one]
            assert ("train return -" in line) == is_told, line

    def test_a_command_of_a_notebook_is_not_drawn_again(self, monkeypatch):
        monkeypatch.setenv("TERM", "xterm-color")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        assert standard_console().is_terminal
        monkeypatch.setenv("JPY_PARENT_PID", "7")
        assert not standard_console().is_terminal

    def test_unknown_figures_are_no_reason_to_fail(self):
        console = Console(force_terminal=False, file=io.StringIO())
        logger = ConsoleLogger("title", console=console)
        logger.progress(PROGRESS._replace(seconds_left=math.inf, steps_per_second=math.nan, train_return=None))
        logger.epoch({"step": 0})
        assert console.file.getvalue() == "title  0 of 6,000 steps  test return -  train return -\n"

    def test_closing_without_progress_or_twice_is_fine(self, monkeypatch):
        logger = ConsoleLogger("title", console=self.terminal(monkeypatch))
        logger.close()
        logger.close()


class Recorder:
    """Notes what it is told; raises at close if told to."""

    def __init__(self, name, calls, fails=False):
        self.name, self.calls, self.fails = name, calls, fails

    def progress(self, progress):
        self.calls.append((self.name, "progress", progress))

    def epoch(self, row):
        self.calls.append((self.name, "epoch", row))

    def artifact(self, kind, file):
        self.calls.append((self.name, "artifact", kind, file))

    def close(self):
        self.calls.append((self.name, "close"))
        if self.fails:
            raise RuntimeError(self.name)


def test_loggers_pass_everything_on_in_order():
    calls = []
    loggers = Loggers([Recorder("a", calls), Recorder("b", calls)])
    loggers.progress(PROGRESS)
    loggers.epoch({"step": 1})
    loggers.artifact("actor", Path("actor.pt"))
    loggers.close()
    told = [
        ("progress", PROGRESS),
        ("epoch", {"step": 1}),
        ("artifact", "actor", Path("actor.pt")),
        ("close",),
    ]
    assert calls == [(name, *call) for call in told for name in "ab"]


@pytest.mark.parametrize("keeps_data", [True, False])
def test_loggers_close_all_even_if_one_raises(keeps_data, capsys):
    calls = []
    loggers = Loggers([Recorder("a", calls, fails=True), Recorder("b", calls), Recorder("c", calls)])
    loggers._loggers[0].keeps_data = keeps_data
    with pytest.raises(RuntimeError, match="a") if keeps_data else contextlib.nullcontext():
        loggers.close()
    assert calls == [("a", "close"), ("b", "close"), ("c", "close")]
    assert capsys.readouterr().err.count("Recorder failed (RuntimeError: a)") == (not keeps_data)


@pytest.mark.parametrize(
    ("track", "project", "wanted"),
    [(False, None, False), (True, None, True), (False, "mine", True), (False, "", False)],
)
def test_tracking_is_wanted_by_flag_or_project(monkeypatch, track, project, wanted):
    monkeypatch.delenv("OFFPCC_WANDB_PROJECT", raising=False)
    if project is not None:
        monkeypatch.setenv("OFFPCC_WANDB_PROJECT", project)
    assert tracking_wanted(track) is wanted


class TestWandbLogger:
    CODE = """
import sys
from pathlib import Path
import numpy as np
from offpcc.training.loggers import WandbLogger
from offpcc.utils.video import video
assert "wandb" not in sys.modules
folder = Path({folder!r})
folder.mkdir(exist_ok=True)
logger = WandbLogger(
    folder, environment="Pendulum-v1", algorithm="sac", config_name="quickstart", run_id=7,
    wandb_id="stable1", config={{"SAC.lr": 0.0625}},
)
logger.epoch({{"step": 1000, "epoch": 1, "test/return": -123.5, "train/return": None}})
(folder / "actor.pt").write_bytes(b"weights")
logger.artifact("actor", folder / "actor.pt")
import matplotlib.image
matplotlib.image.imsave(folder / "curve.png", np.zeros((8, 8)))
logger.artifact("curve", folder / "curve.png")
with video(folder / "best.mp4", 10) as add:
    for frame in np.zeros((3, 16, 16, 3), np.uint8):
        add(frame)
logger.artifact("video", folder / "best.mp4")
logger.close()
"""

    @pytest.fixture(autouse=True)
    def _needs_wandb(self):
        pytest.importorskip("wandb")

    def run(self, tmp_path, **environment):
        # A folder with brackets, which mean something in the patterns that file uploads are given by.
        folder = tmp_path / "run[7]"
        # The address answers nobody: offline means offline.
        environment = {"HOME": str(tmp_path), "WANDB_BASE_URL": "http://127.0.0.1:9"} | environment
        return folder, run_python(self.CODE.format(folder=str(folder)), **environment)

    def records(self, file):
        """The records of an offline run: a LevelDB log, whose records may be cut at the ends of 32 KiB blocks."""
        from wandb.proto.wandb_internal_pb2 import Record

        records, data, position, content = [], b"", 7, file.read_bytes()
        while position < len(content):
            left_in_block = -position % 32768
            if left_in_block < 7:
                position += left_in_block
                continue
            _, length, kind = struct.unpack_from("<IHB", content, position)
            data += content[position + 7 : position + 7 + length]
            position += 7 + length
            if kind in (1, 4):  # whole, or the last part
                records.append(Record.FromString(data))
                data = b""
        return records

    @pytest.mark.slow
    def test_without_a_login_the_run_is_kept_for_later(self, tmp_path):
        folder, done = self.run(tmp_path, OFFPCC_WANDB_PROJECT="lab", OFFPCC_WANDB_ENTITY="me")
        assert (done.returncode, done.stderr) == (0, "")
        [run_folder] = (folder / "wandb").glob("offline-run-*")
        assert done.stdout.splitlines() == [
            f"Weights & Biases: not logged in; upload this run later with wandb sync '{run_folder}'"
        ]
        assert (run_folder / "files" / "actor.pt").read_bytes() == b"weights"
        assert not (run_folder / "files" / "actor.pt").is_symlink()
        assert len(list((run_folder / "files").rglob("*.png"))) == 1
        assert len(list((run_folder / "files").rglob("*.mp4"))) == 1

        records = self.records(run_folder / "run-stable1.wandb")
        [run] = [record.run for record in records if record.WhichOneof("record_type") == "run"]
        assert (run.project, run.entity, run.run_id) == ("lab", "me", "stable1")
        assert (run.run_group, run.display_name) == ("Pendulum-v1 sac quickstart", "Pendulum-v1 sac run_id=7")
        assert ("SAC.lr", "0.0625") in [(item.key, item.value_json) for item in run.config.update]
        history = [
            {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
            for record in records
            if record.WhichOneof("record_type") == "history"
        ]
        assert history[0]["test/return"] == "-123.5"
        assert "train/return" not in history[0]
        assert [row["step"] for row in history] == ["1000"] * 3
        metrics = [record.metric for record in records if record.WhichOneof("record_type") == "metric"]
        assert any(metric.glob_name == "*" and metric.step_metric == "step" for metric in metrics)

    def test_a_chosen_mode_and_the_default_project(self, tmp_path):
        folder, done = self.run(tmp_path, WANDB_MODE="offline")
        [file] = (folder / "wandb").glob("offline-run-*/run-stable1.wandb")
        line = f"Weights & Biases: offline; upload this run later with wandb sync '{file.parent}'\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, line, "")
        assert {record.run.project for record in self.records(file)} - {""} == {"offpcc"}

    @pytest.mark.parametrize(
        ("variables", "project"),
        [({"WANDB_PROJECT": "theirs"}, "theirs"), ({"WANDB_PROJECT": "theirs", "OFFPCC_WANDB_PROJECT": "own"}, "own")],
        ids=["usual variable", "own variable"],
    )
    def test_the_usual_variable_names_the_project_too(self, tmp_path, monkeypatch, variables, project):
        import wandb

        for name in ("WANDB_PROJECT", "OFFPCC_WANDB_PROJECT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(wandb, "init", init := MagicMock())
        names = {"environment": "e", "algorithm": "a", "config_name": "c", "run_id": 1, "wandb_id": "i"}
        WandbLogger(tmp_path, **names, config={}, announce=lambda line: None)
        assert init.call_args.kwargs["project"] == project

    @pytest.mark.parametrize(
        ("variables", "login", "reason"),
        [
            ({}, lambda prompt: prompt, "not logged in"),
            ({"WANDB_MODE": "online"}, lambda prompt: prompt, "not logged in"),
            ({"WANDB_API_KEY": "short"}, None, "WANDB_API_KEY invalid"),
            ({}, lambda prompt: True, "no route to host;"),
        ],
        ids=["no login", "no login, online", "key of a wrong form", "no network"],
    )
    def test_what_stands_in_the_way_is_said_in_one_line(self, tmp_path, monkeypatch, variables, login, reason):
        import wandb

        runs, said = [], []

        def init(*, mode=None, **names):
            if mode != "offline":
                raise wandb.errors.CommError("no route to host\nwhile retrying")
            runs.append(names)
            return MagicMock(settings=MagicMock(sync_dir="a folder"))

        for name in ("WANDB_API_KEY", "WANDB_MODE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("WANDB_SILENT", "true")
        monkeypatch.setattr(wandb, "init", init)
        if login:
            monkeypatch.setattr(wandb, "login", login)
        names = {"environment": "e", "algorithm": "a", "config_name": "c", "run_id": 1, "wandb_id": "i"}
        WandbLogger(tmp_path, **names, config={}, announce=said.append)
        assert [(run["id"], run["name"], run["group"]) for run in runs] == [("i", "e a run_id=1", "e a c")]
        [line] = said
        assert line.startswith(f"Weights & Biases: {reason}")
        assert line.endswith("upload this run later with wandb sync 'a folder'")
        assert "\n" not in line

    PHASES = """
from pathlib import Path
from offpcc.training.loggers import WandbLogger
folder = Path({folder!r})
folder.mkdir()
logger = WandbLogger(
    folder, environment="e", algorithm="a", config_name="c", run_id=7, wandb_id="stable1", config={{}},
    goes_online=True, model_errors=[0.5, 0.25],
)
logger.epoch({{"step": 100, "env_step": None, "test/return": 1.0, "update/model_error": 0.125}})
logger.epoch({{"step": 130, "env_step": 30, "test/return": 2.0}})
for name in ("actor_last.pt", "actor_best.pt"):
    (folder / name).write_bytes(name.encode())
    logger.artifact("actor", folder / name)
logger.close()
"""

    @pytest.mark.slow
    def test_both_phases_and_the_model_have_panels_and_actors_are_artifacts(self, tmp_path):
        folder = tmp_path / "run"
        done = run_python(self.PHASES.format(folder=str(folder)), HOME=str(tmp_path), WANDB_MODE="offline")
        assert (done.returncode, done.stderr) == (0, "") and "later with wandb sync" in done.stdout
        [file] = (folder / "wandb").glob("offline-run-*/run-stable1.wandb")
        records = self.records(file)
        history = [
            {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
            for record in records
            if record.WhichOneof("record_type") == "history"
        ]
        panels = [
            {name: float(value) for name, value in row.items() if name.startswith(("offline/", "online/", "model/"))}
            for row in history
        ]
        assert panels == [
            {"model/holdout_error_0": 0.5, "model/holdout_error_1": 0.25},
            {"offline/test_return": 1.0, "model/model_error": 0.125},
            {"online/test_return": 2.0},
        ]
        assert [float(row["test/return"]) for row in history[1:]] == [1.0, 2.0]
        metrics = [record.metric for record in records if record.WhichOneof("record_type") == "metric"]
        steps = {metric.name: metric.step_metric for metric in metrics if metric.name}
        assert steps["online/test_return"] == "env_step" and "offline/test_return" not in steps
        artifacts = [r.artifact for r in records if r.WhichOneof("record_type") == "artifact"] or [
            r.request.log_artifact.artifact for r in records if r.WhichOneof("record_type") == "request"
        ]
        found = [(one.type, one.name, set(one.aliases), one.manifest.contents[0]) for one in artifacts]
        for (kind, name, aliases, entry), alias in zip(found, ("last", "best"), strict=True):
            assert (kind, name, aliases - {"latest"}) == ("model", "actor-stable1", {alias})
            assert entry.path == f"actor_{alias}.pt"
            assert Path(entry.local_path).read_bytes() == entry.path.encode()
            assert Path(entry.local_path).is_relative_to(file.parent)
