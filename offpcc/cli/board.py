"""`offpcc board`: shows runs in TensorBoard's page, from a temporary copy of their tables, settings, videos and faults.

Beside its curves, each run has the settings that differ (HPARAMS), its video (IMAGES) and its faults (TEXT).
"""

import contextlib
import io
import math
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offpcc.envs.faults import FILE as ENVIRONMENT_FAULTS
from offpcc.training.analysis.run_tables import NoRunsError, Progress, find_runs, read_progress
from offpcc.training.comparison import differing, settings_of_run, with_facts
from offpcc.training.run_dir import RunFolder
from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line

HOST = "127.0.0.1"  # only this machine reads the page
MOST_TICKED = 40  # runs; of more, TensorBoard ticks none
PAUSE = 10.0  # seconds between two looks at the runs
KEPT = 10_000  # the most points of a curve; TensorBoard draws this many of a longer one
MOST_FRAMES = 60  # of a video, evenly spaced
WIDTH = 240  # pixels, the most of a frame of a video
FEWEST_MS = 40  # milliseconds between two frames
LONGEST_FAULT = 20_000  # characters of a file of faults
NOT_CURVES = ("step", "epoch", "update")


def run_board(folder: Sequence[Path], port: int | None) -> int:
    """Show runs in a local page until Ctrl-C.

    Raises:
        Interrupted: the system asked the command to stop, and not the user.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="offpcc-board-") as place:
            shown = Board(folder, Path(place))
            num_runs = shown.update()
            print(f"{num_runs} run{'s' * (num_runs != 1)} at {serve_board(Path(place), port)} until Ctrl-C", flush=True)
            if num_runs > MOST_TICKED:
                print(f"with more than {MOST_TICKED} runs, the page shows none at first; tick some in its list of runs")
            while True:
                shown.add_videos()
                time.sleep(PAUSE)
                with contextlib.suppress(NoRunsError, FileNotFoundError):  # somebody removed runs
                    shown.update()
    except signals.Interrupted as stop:
        if stop.code != 128 + signal.SIGINT:
            raise
    return 0


def serve_board(place: Path, port: int | None) -> str:
    """Start TensorBoard's server for a folder of event files, in a thread, and return the address of the page."""
    # TensorBoard imports TensorFlow if it is installed, and TensorFlow prints pages of device logs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tensorboard.program import TensorBoard, TensorBoardServerException

    server, samples = TensorBoard(), {"scalars": KEPT, "images": 1, "text": 1}
    place_of_page: dict[str, Any] = {"host": HOST, "port": port, "window_title": "offpcc"}
    reading: dict[str, Any] = {"load_fast": "false", "reload_interval": 5.0, "samples_per_plugin": samples}
    server.configure(logdir=str(place), **place_of_page, **reading)
    try:
        return str(server.launch())
    except TensorBoardServerException as error:
        raise UserError(
            f"the page cannot be served at port {port}: {first_line(error)}; give another --port"
        ) from error


class Board:
    """Event files of the runs in some folders, written into a temporary folder `place`; the runs are only read."""

    def __init__(self, folders: Sequence[Path], place: Path) -> None:
        self.folders, self.place = [folder.resolve() for folder in folders], place
        self.seen: dict[Path, tuple[float, str]] = {}  # the time of a run's table and its status at the last look
        self.rows: dict[Path, list[tuple[int, str]]] = {}  # step and values of the rows that were written
        self.settings: dict[Path, Mapping[str, Any]] = {}
        self.videos: set[Path] = set()
        self.faulty: set[Path] = set()  # the runs whose last event of a fault holds
        self.num_faults = 0
        runs = self.runs()
        self.root = Path(os.path.commonpath([run.parent for run in runs]))
        self.base = Path(os.path.commonpath([one.parent if one in runs else one for one in self.folders]))

    def runs(self) -> list[Path]:
        """Return the folders of the runs; raise `NoRunsError` if there are none."""
        return list(dict.fromkeys(run for folder in self.folders for run in find_runs(folder)))

    def add(self, run: Path, events: Sequence[Mapping[str, Any]]) -> None:
        """Write events of a run, under its path below the folder that all runs have in common.

        A run that began later may lie beside that folder. It gets its path below what all given folders have in common.
        """
        name = run.relative_to(self.root if run.is_relative_to(self.root) else self.base.parent)
        append(self.place / name, events)

    def update(self) -> int:
        """Write what is new in the runs, and return their number."""
        runs, is_new = self.runs(), False
        for run in runs:
            status = str(RunFolder.at(run).details().get("status", "unknown"))
            state = (run / "progress.csv").stat().st_mtime, status
            if self.seen.get(run) == state:
                continue
            self.seen[run], is_new = state, True
            try:
                progress = read_progress(run / "progress.csv")
            except UserError as error:
                self.add_fault(run, str(error))
                continue
            rows = [(int(row[0]), str(row)) for row in zip(progress["step"], *progress.values(), strict=True)]
            written = self.rows.get(run, [])
            same = next((at for at, pair in enumerate(zip(written, rows, strict=False)) if pair[0] != pair[1]), None)
            same = min(len(written), len(rows)) if same is None else same
            if same < len(written):  # the run began again, or goes on from an earlier checkpoint
                self.add(run, begun_again(min(step for step, _ in [*written[same:], *rows[same:]])))
                self.settings.pop(run, None)
                self.videos.discard(run)
            self.add(run, scalars(progress, same))
            self.rows[run] = rows
            fault = faults(run, status, progress)
            if fault or run in self.faulty:
                self.add_fault(run, fault or "There are no faults any more.")
            self.faulty = self.faulty | {run} if fault else self.faulty - {run}
        for run, found in table_of_settings(runs).items() if is_new else ():
            if self.settings.get(run) != found:
                self.settings[run] = found
                self.add(run, settings_row(found))
        return len(runs)

    def add_videos(self) -> None:
        """Write the first video of each run that has one, as a GIF; TensorBoard's page shows no MP4."""
        for run in self.seen.keys() - self.videos:
            file = next(iter(RunFolder.at(run).video_files()), None)
            if file is not None:
                self.videos.add(run)
                try:
                    self.add(run, image(file))
                except Exception as error:  # of the decoder, which raises its own ones
                    self.add_fault(run, f"{file.name} cannot be shown: {first_line(error)}")

    def add_fault(self, run: Path, markdown: str) -> None:
        """Write a fault of a run; it takes the place of the one before it, so its step is larger."""
        from torch.utils.tensorboard import summary

        self.num_faults += 1
        self.add(run, [{"summary": summary.text("faults", markdown), "step": self.num_faults}])  # type: ignore[no-untyped-call]


def table_of_settings(runs: Sequence[Path]) -> dict[Path, dict[str, Any]]:
    """Return the settings that differ between some runs, with algorithm, environment, seed and status, by run.

    Values of a setting are numbers if all of them are.
    """
    settings: dict[Path, Mapping[str, str]] = {run: {} for run in runs}
    for run in runs:
        with contextlib.suppress(UserError):  # of a damaged config
            settings[run] = with_facts(run, settings_of_run(run) or {})
    names = differing(list(settings.values())) if len(runs) > 1 else []
    table: dict[Path, dict[str, Any]] = {}
    for run in runs:
        known = RunFolder.at(run).details()
        facts = {"env": known.get("env") or run.parent.parent.name, "algo": known.get("algo") or run.parent.name}
        facts |= {"seed": known.get("seed", run.name), "status": known.get("status", "unknown")}
        table[run] = {name: str(value) for name, value in facts.items()}
        table[run] |= {name: settings[run][name] for name in names if name in settings[run]}
    for name in {name for row in table.values() for name in row}:
        rows = [row for row in table.values() if name in row]
        if len(runs) > 1 and len(rows) == len(runs) and len({row[name] for row in rows}) == 1:
            for row in rows:
                del row[name]
            continue
        with contextlib.suppress(ValueError):
            for row, number in zip(rows, [float(row[name]) for row in rows], strict=True):
                row[name] = number
    return table


def faults(run: Path, status: str, progress: Progress) -> str:
    """Return the faults of a run as Markdown; "" if there are none."""
    found = []
    if status == "stopped":
        found.append("The run was stopped before its end; `--resume` continues it.")
    elif status != "finished":
        since = time.strftime("%d %B %Y, %H:%M", time.localtime((run / "progress.csv").stat().st_mtime))
        found.append(f"The run is not finished (status: {status}). Its table is of {since}.")
    if dropped := int(max((x for x in progress.get("train/dropped_episodes", ()) if x > 0), default=0)):
        found.append(f"{dropped} unfinished episodes were dropped, because the processes that played them were lost.")
    if (run / "bad_batch.pt").exists():
        found.append("A loss was NaN or infinite; `bad_batch.pt` holds the batch.")
    file = run / ENVIRONMENT_FAULTS
    if file.is_file():
        with file.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(LONGEST_FAULT)
        title = "The environment failed:"
        if status == "finished":
            title = "The run finished. Before that, its environment failed:"
        found.append(f"{title}\n\n" + "\n".join(f"    {line}" for line in text.splitlines()))
    return "\n\n".join(found)


def as_gif(file: Path) -> tuple[bytes, int, int]:
    """Return a video as an animated GIF, with its width and height in pixels."""
    import imageio.v2 as imageio
    from PIL import Image

    frames = []
    reader: Any = imageio.get_reader(file, format="FFMPEG")
    with contextlib.closing(reader):
        facts = reader.get_meta_data()
        every = max(math.ceil(facts["duration"] * facts["fps"] / MOST_FRAMES), 1)
        for number, frame in enumerate(reader):
            if number % every == 0:
                frames.append(Image.fromarray(frame))
                frames[-1].thumbnail((WIDTH, WIDTH))
    stream = io.BytesIO()
    pause = max(round(1000 * every / facts["fps"]), FEWEST_MS)
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:], duration=pause, loop=0)
    return stream.getvalue(), *frames[0].size


def append(folder: Path, events: Sequence[Mapping[str, Any]]) -> None:
    """Append events, given by the fields of TensorBoard's `Event`, to the event file in a temporary folder."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    file = folder / "events.out.tfevents.0000000000.offpcc"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        events = [{"file_version": "brain.Event:2"}, *events]
    with file.open("ab") as stream:
        writer = RecordWriter(stream)
        for event in events:
            writer.write(Event(wall_time=time.time(), **event).SerializeToString())


def begun_again(step: int) -> list[dict[str, Any]]:
    """Return the event at which TensorBoard forgets what came at a step or later."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    return [{"step": step, "session_log": SessionLog(status=SessionLog.START)}]


def scalars(progress: Progress, begin: int) -> list[dict[str, Any]]:
    """Return the events of the rows of a table from number `begin` on."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    events = []
    for row in range(begin, len(progress["step"])):
        found = {name: values[row] for name, values in progress.items() if name not in NOT_CURVES}
        values = [Summary.Value(tag=name, simple_value=one) for name, one in found.items() if not math.isnan(one)]
        events.append({"step": int(progress["step"][row]), "summary": Summary(value=values)})
    return events


def image(file: Path) -> list[dict[str, Any]]:
    """Return the event of a video."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    picture, width, height = as_gif(file)
    encoded = Summary.Image(encoded_image_string=picture, width=width, height=height)
    return [{"summary": Summary(value=[Summary.Value(tag="video", image=encoded)])}]


def settings_row(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a run's row in the table of settings."""
    from torch.utils.tensorboard import summary

    _, began, ended = summary.hparams(dict(values), {})  # type: ignore[no-untyped-call]
    return [{"summary": began}, {"summary": ended}]  # without the first one, TensorBoard collects all runs
