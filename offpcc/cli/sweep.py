"""`offpcc sweep`: trains the runs of a TOML file, resumes them, stops bad settings early, and ranks the settings."""

import csv
import io
import math
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from offpcc.algorithms import find_algorithm, short_name
from offpcc.cli.commands import refuse_options
from offpcc.cli.jobs import OutOfTimeError, run_in_processes
from offpcc.cli.messages import TrainOptions, default_config, find_folder, program
from offpcc.cli.sweep_file import EPOCHS, Point, Sweep, read_sweep
from offpcc.cli.sweep_ray import connected, run_on_ray
from offpcc.cli.train import make_spec, run_train
from offpcc.config import loading
from offpcc.config.bindings import COMMAND_LINE
from offpcc.training.analysis.run_tables import cut, read_progress
from offpcc.training.comparison import NOT_LEARNED_FROM, are_same, name_settings, settings_of_run, stops_alike, used_by
from offpcc.training.fit import plan_run
from offpcc.training.loggers.console import format_return, return_decimals
from offpcc.training.run_dir import RunFolder
from offpcc.utils import signals
from offpcc.utils.errors import UserError, drop_output, first_line, print_to_stderr
from offpcc.utils.files import explain_disk_errors, read_json, write_json, write_text
from offpcc.utils.locks import FolderInUseError, FolderLock
from offpcc.utils.paths import check_folder, refuse_link
from offpcc.utils.ray_cluster import check_address
from offpcc.utils.words import counted

REFRESHED_AFTER = 2.0  # seconds between two tables of --watch
PATIENCE = 120  # seconds until a run of a sweep that was killed has saved its checkpoint
STOPPED = (130, 143)  # exit codes of runs that were asked to stop, and go on next time
COLUMNS = ("rank", "task", "algo", "setting", "return", "std", "seeds", "epochs", "status", "folder")
FAILED = "failed.json"
OUTPUT = "output.txt"
NARROWEST = 8  # characters of a column that is cut


class Setting(NamedTuple):
    """The runs of one setting: they differ in the seed alone."""

    point: Point
    options: TrainOptions  # run_id has all seeds
    epochs: int
    task: str  # settings are ranked within a task

    @property
    def runs(self) -> list[RunFolder]:
        """The folders of the runs."""
        return [find_folder(self.options, seed) for seed in self.options.run_id]


@dataclass
class SweepRuns:
    """The runs of a sweep, in its folder.

    Attributes:
        plan: what the file asks for.
        root: the folder of the sweep.
        settings: the settings, each with its runs.
        failed: exit codes of the runs that failed, by their names.
    """

    plan: Sweep
    root: Path
    settings: Sequence[Setting]
    failed: dict[str, int] = field(default_factory=dict)

    @property
    def runs(self) -> list[RunFolder]:
        """The folders of all runs."""
        return [run for one in self.settings for run in one.runs]

    def name_of(self, run: RunFolder) -> str:
        """Return the name of a run: its folder below the sweep's."""
        return str(run.path.relative_to(self.root))

    def read_failed(self) -> None:
        """Read the exit codes of the runs that failed."""
        try:
            found = read_json(self.root / FAILED)
        except FileNotFoundError:
            found = {}
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{self.root / FAILED} cannot be read; remove it to train failed runs again") from error
        names = {self.name_of(run) for run in self.runs}
        known = found if isinstance(found, dict) else {}
        self.failed = {name: int(code) for name, code in known.items() if name in names}

    def status(self, run: RunFolder) -> str | None:
        """Return "finished", "failed", "unfinished", or None for a run that does not exist."""
        return "failed" if self.name_of(run) in self.failed else run.status()

    def watch(self) -> int:
        """Show the table, and draw it again until all runs have ended or the user stops it. Nothing is written."""
        console = Console()
        if not self.root.exists():
            print(
                f"there is no sweep in {self.root} yet; if the sweep uses another folder, press Ctrl-C and add "
                f"--results FOLDER"
            )
        if not console.is_terminal:
            console = Console(width=1_000)  # do not cut lines of a file
        with Live(console=console, auto_refresh=False) as live:
            while True:
                self.read_failed()
                is_over = not self.waits() and "unfinished" not in map(self.status, self.runs)
                text = _table(self.rows_so_far(), console.width)
                live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
                if is_over:
                    break
                try:
                    time.sleep(REFRESHED_AFTER)
                except signals.Interrupted:
                    break
        if not console.is_terminal:
            console.line()
        return 0

    def rungs(self) -> Iterator[tuple[Sequence[Setting], int | None]]:
        """Yield the settings that train next, and up to which epoch; None for their whole number of epochs.

        The best settings of a rung are known once it is trained, so train each before the next one is asked for.
        """
        alive, stop, epochs = self.settings, self.plan.stop, self.plan.epochs
        if stop and epochs:
            rung = stop.first_epochs
            while rung < epochs:
                yield alive, rung
                alive, rung = _best(alive, rung, stop.factor), rung * stop.factor
        yield alive, None

    def todo(self, alive: Sequence[Setting], limit: int | None) -> list[tuple[str, dict[str, Any]]]:
        """Return name and arguments of the runs that need training up to a number of epochs; None for their whole one.

        A run is left out if it needs more new epochs than are left.
        """
        runs, left = [], self.epochs_left()
        for one in alive:
            for run in one.runs:
                name, epochs = self.name_of(run), limit or one.epochs
                if name in self.failed or _reached(run, one.epochs) >= epochs:
                    continue
                planned = _planned(run)
                if (more := max(epochs - planned, 0)) <= left:
                    left -= more
                    epochs = max(epochs, planned)  # a run is not resumed with fewer epochs
                    gin = [text for text in one.options.gin if not text.startswith(f"{EPOCHS}=")]
                    options = replace(one.options, run_id=(run.run_id,), gin=(*gin, f"{EPOCHS}={epochs}"))
                    if not run.config.exists():  # named, so that the run proposes no settings that the file lacks
                        options = replace(options, config=options.config or str(default_config(options)[0]))
                    runs.append((name, {"group": self.root.name, "cwd": str(Path.cwd()), **vars(options)}))
        return runs

    def waits(self) -> bool:
        """Check whether a run still needs training."""
        return any(self.todo(alive, limit) for alive, limit in self.rungs())

    def epochs_left(self) -> float:
        """Return the epochs that are left. A run that has begun counts whole, so a killed sweep goes on alike."""
        if self.plan.total_epochs is None:
            return math.inf
        return self.plan.total_epochs - sum(map(_planned, self.runs))

    def train(
        self, runs: Sequence[tuple[str, dict[str, Any]]], jobs: int, on_ray: bool, deadline: float | None
    ) -> None:
        """Train runs, and write the table whenever one has ended."""

        def ended(name: str, code: int) -> None:
            if code and code not in STOPPED:
                self.failed[name] = code
            self.write()
            run = RunFolder.at(self.root / name)
            epochs, last = _num_epochs(run), _return_at(run, math.inf)
            score = "" if math.isnan(last) else f", last test return {format_return(last)}"
            try:
                print(f"{name}: {self.status(run) or 'not started'}, {counted(epochs, 'epoch')}{score}", flush=True)
            except OSError:  # nobody reads it any more; the runs go on
                drop_output()

        self.write()
        try:
            if on_ray:
                run_on_ray(train_run, runs, ended, deadline)
            else:
                run_in_processes(train_run, runs, jobs, ended, deadline, "the same command with --retry continues")
        except signals.Interrupted as stop:
            self.write()
            stop.message += "; the same command continues the sweep"
            raise

    def rows(self) -> list[dict[str, Any]]:
        """Return the ranked table: settings with more epochs first, which only differ with a rule for stopping.

        A run that reached `train.stop_return` counts with all epochs of its setting.
        """
        ranked = list[tuple[Any, dict[str, Any]]]()
        for one in self.settings:
            states = {run.run_id: self.status(run) for run in one.runs}
            over = [run for run in one.runs if states[run.run_id] == "finished"]
            values = [value for run in over if not math.isnan(value := _return_at(run, math.inf))]
            bad = [seed for seed, state in states.items() if state == "failed"]
            epochs = min(map(_epochs_of, over) if over else map(_num_epochs, one.runs))
            counted = min((_reached(run, one.epochs) for run in over), default=0)
            is_short = counted < one.epochs and any(_planned(run) < one.epochs for run in over)
            status = "new" if not any(states.values()) else "unfinished"
            if len(over) == len(states):
                status = "stopped early" if is_short else "finished"
            mean, std = float(np.mean(values)) if values else None, float(np.std(values)) if values[1:] else None
            told = f"failed: seed {' '.join(map(str, bad))}" if bad else status
            row = (None, one.task, one.options.algo, one.point.text, mean, std, len(values), epochs, told)
            key = one.task, mean is None, -counted, -(mean or 0.0)
            ranked.append((key, dict(zip(COLUMNS, (*row, str(one.runs[0].siblings)), strict=True))))
        rows = [row for _, row in sorted(ranked, key=lambda pair: pair[0])]
        tasks = [one["task"] for one in rows]
        for number, line in enumerate(rows):
            line["rank"] = number - tasks.index(line["task"]) + 1 if line["return"] is not None else None
        return rows

    def rows_so_far(self) -> list[dict[str, Any]]:
        """Return `rows`, with how far the runs of unfinished settings are as their status."""
        rows, places = self.rows(), {str(one.runs[0].siblings): one for one in self.settings}
        for row in rows:
            if row["status"] == "unfinished":
                row["status"] = _state_of(places[row["folder"]])
        return rows

    def write(self) -> None:
        """Write the failed runs, and the table as text, CSV and JSON, into the sweep's folder."""
        rows, stream = self.rows(), io.StringIO()
        table = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        write_text(self.root / "summary.csv", stream.getvalue())
        write_text(self.root / "summary.txt", f"{_table(rows)}\n")
        write_json(self.root / "summary.json", rows)
        write_json(self.root / FAILED, self.failed)


def run_sweep(
    file: Path,
    jobs: int,
    dry_run: bool,
    watch: bool,
    yes: bool,
    retry: bool,
    verbose: bool,
    address: str | None,
    **common: Any,
) -> int:
    """Train the runs of a file as far as they are not trained yet, and rank their settings.

    Returns:
        0; 1 if a run has failed.
    """
    plan = read_sweep(file, is_large_allowed=yes or dry_run or watch)
    deadline = None if plan.hours is None else time.monotonic() + 3_600 * plan.hours
    where = loading.results_folder(common["results"]).resolve()
    check_folder(where, "the folder of results")
    root = where / plan.name
    device = common["device"]
    if address is not None:
        check_address(address, "--address")
        if device not in (None, "cpu", "cuda"):
            raise UserError(f"--device {device}: with --address, Ray chooses the GPU of a run; give --device cuda")
        words = "with --address, where as many runs train at a time as the cluster has cores"
        refuse_options(words, {"jobs": None if jobs == 1 else jobs})
        common["device"] = "cpu"  # this machine may have no GPU; it trains nothing
    sweep = SweepRuns(plan, root, _settings(plan, root, TrainOptions("", **common)))
    if watch:
        idle = {"retry": retry, "dry_run": dry_run, "verbose": verbose}
        refuse_options("with --watch, which trains nothing", idle)
        return sweep.watch()
    if dry_run:
        refuse_options("with --dry_run, which trains nothing", {"retry": retry, "verbose": verbose})
    print(f"checking {counted(len(sweep.settings), 'setting')}", flush=True)
    _check_parts(plan, sweep.settings)
    sweep.read_failed()
    if retry:
        sweep.failed.clear()
    if dry_run:
        for run in sweep.runs:
            print(f"{run.path}: {sweep.status(run) or 'new'}")
        print(_table(sweep.rows_so_far()))
        return 0
    is_on_ray = address is not None and sweep.waits()
    cluster = connected(address) if is_on_ray and address else nullcontext()  # before anything is written
    explained = explain_disk_errors(root, "and run the same command again", "")
    with cluster, explained, closing(FolderLock(root)) as lock:
        root.mkdir(parents=True, exist_ok=True)
        try:
            lock.take()
        except FolderInUseError as error:
            raise UserError(f"another sweep uses {root}; wait until it ends, or stop it") from error
        print(f"to see the table of {root} live, call this beside it:\n  {_watching(plan, common['results'])}")
        if not verbose:
            print(f"each run writes its output to {OUTPUT} in its folder; --verbose prints it here instead")
        try:
            for alive, limit in sweep.rungs():
                runs = [(name, {**given, "verbose": verbose}) for name, given in sweep.todo(alive, limit)]
                if address is not None:
                    runs = [(name, {**given, "device": device or "cpu"}) for name, given in runs]
                sweep.train(runs, jobs, is_on_ray, deadline)
        except OutOfTimeError as spent:
            sweep.write()
            print(f"the {plan.hours:g} hours of [stop] are over; {spent}; the same command continues the sweep")
    print(_table(sweep.rows()))
    print(f"{root / 'summary.csv'} and summary.json have this table")
    waiting = [sweep.name_of(run) for run in sweep.runs if run.status() is None]
    if waiting and plan.total_epochs is not None:
        print(f"not started, because of the {plan.total_epochs:,} total_epochs of [stop]: {cut(waiting, ', ')}")
    if failed := sweep.failed:
        print_to_stderr(
            f"{len(failed)} run{'s' * (len(failed) > 1)} failed: {', '.join(failed)}; to train them again, add --retry"
        )
    return 1 if failed else 0


def _watching(plan: Sweep, results: Path | str | None) -> str:
    """Return the command that shows the table of a sweep."""
    where = results or os.environ.get("OFFPCC_RESULTS")  # another terminal may not have the variable
    return shlex.join([*program(), "sweep", str(plan.file), *(["--results", str(where)] if where else []), "--watch"])


def _settings(plan: Sweep, root: Path, common: TrainOptions) -> list[Setting]:
    """Return the settings; raise if an option or a binding is invalid, or if an existing run has other settings."""
    settings, places = [], set[Path]()
    for point in plan.points:
        gin = [f"{name}={value}" for name, value in {**plan.fixed, **point.swept}.items()]
        gin += [f"{EPOCHS}={plan.epochs}"] if plan.epochs else []
        named: dict[str, Any] = {
            "env": point.env,
            "dataset": point.dataset,
            "config": point.config,
            "run_id": plan.seeds,
        }
        named |= {"algo": short_name(point.algo), "modules": plan.modules, "gin": gin}
        options = replace(common, **named, results=str(root / point.folder))
        folder = find_folder(options, plan.seeds[0])
        if folder.path in places:
            raise UserError(
                f"{plan.file}: two settings would use the same folder, {folder.siblings}; give one of them a name"
            )
        places.add(folder.path)
        try:
            config = options.config or str(default_config(options)[0])  # not that of the run that exists
            spec = make_spec(replace(options, config=config), folder)
        except UserError as error:
            raise _in_file(plan, point.text, error) from error
        if "num_epochs" not in spec.training:
            raise UserError(f"{plan.file}: there is no number of epochs; add epochs = N")
        settings.append(Setting(point, options, spec.training["num_epochs"], spec.label))
        # Values in use are no bindings if they depend on the algorithm or the data, such as Imagination.length.
        bound = loading.used_values(spec.used) | loading.plain_values(spec.config.text)
        algorithm = find_algorithm(options.algo)
        for run in settings[-1].runs:
            _check_same(plan, run, bound, algorithm, settings[-1].epochs)
    return settings


def _in_file(plan: Sweep, setting: str, error: UserError) -> UserError:
    """Return the error of a setting as one of the sweep's file: its bindings come from there, not from --gin."""
    return UserError(f"{plan.file}: {setting}: {error.message.removeprefix(f'{COMMAND_LINE}: ')}")


def _check_same(plan: Sweep, run: RunFolder, bound: Mapping[str, str], algorithm: type, epochs: int) -> None:
    """Raise if an existing run of the sweep has other settings than the file."""
    if run.status() is None or (there := settings_of_run(run.path)) is None:
        return
    remedy = f"put the old value back, or give the sweep another name = in {plan.file}"
    if not are_same(there, given := used_by(there, bound, algorithm)):
        theirs, ours = name_settings([there, given])
        raise UserError(f"{run.path} was trained with {theirs}, but {plan.file} asks for {ours}; {remedy}")
    if not stops_alike(there, given):
        raise UserError(f"{run.path} has another {' or '.join(NOT_LEARNED_FROM)} than {plan.file} asks for; {remedy}")
    if (known := _planned(run)) > epochs:
        raise UserError(f"{run.path} has {counted(known, 'epoch')}, but {plan.file} asks for {epochs}; {remedy}")


def _check_parts(plan: Sweep, settings: Sequence[Setting]) -> None:
    """Build the parts of runs that have not started, so that each value of each binding is checked once."""
    known = set[tuple[Any, ...]]()
    for one in settings:
        values = [*one.point.swept.items(), ("", "")]
        to_check = {(one.task, one.options.algo, one.options.dataset, one.point.config, *pair) for pair in values}
        if to_check <= known or one.runs[0].status() is not None:
            continue
        known |= to_check
        try:
            spec = make_spec(one.options, one.runs[0])
            if spec.imagination is not None and spec.dataset is not None:
                continue  # building it would train its model
            planned = plan_run(spec, one.runs[0])
        except UserError as error:
            raise _in_file(plan, f"{one.options.algo}, {one.point.text}", error) from error
        if planned is not None:
            planned.experiment.close()


def train_run(group: str, cwd: str, verbose: bool = False, **given: Any) -> int:
    """Train one run of a sweep, named `group`, from the start or from its checkpoint; return the exit code.

    Unless it is `verbose`, the run writes to a file in its folder, except for errors. `cwd` is the working directory.
    """
    os.environ["WANDB_RUN_GROUP"] = group
    try:
        os.chdir(cwd)
    except OSError as error:
        raise UserError(
            f"the working directory {cwd} is missing on this machine ({first_line(error)}); all machines need it"
        ) from error
    options = TrainOptions(**given)
    folder = find_folder(options, options.run_id[0])
    started = time.monotonic()
    while True:  # the process of a sweep that was killed may still save this run
        try:
            with closing(FolderLock(folder.path)) as lock:
                lock.take_if_there()
            break
        except FolderInUseError:
            if time.monotonic() - started > PATIENCE:
                raise
            time.sleep(0.2)
    with ExitStack() as stack:
        if not verbose:
            refuse_link(folder.path / OUTPUT)
            with suppress(OSError):  # the run then prints, and reports what is wrong with its folder
                folder.path.mkdir(parents=True, exist_ok=True)
                file = (folder.path / OUTPUT).open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
                stack.enter_context(redirect_stdout(stack.enter_context(file)))
        return run_train(**{**given, "resume": folder.status() is not None})


def _epochs_of(run: RunFolder) -> int:
    """Return the epochs after which a run was finished last."""
    epochs = run.details().get("epochs")
    return epochs if isinstance(epochs, int) else 0


def _reached(run: RunFolder, epochs: int) -> int:
    """Return the epochs after which a run was finished last; all of them if it reached `train.stop_return` before."""
    details = run.details()
    is_solved = details.get("status") == "finished" and details.get("stopped") is True
    return epochs if is_solved else _epochs_of(run)


def _planned(run: RunFolder) -> int:
    there = settings_of_run(run.path) or {}
    known = next((value for name, value in there.items() if f".{name}".endswith(f".{EPOCHS}")), "0")
    return int(known) if known.isdecimal() else 0


def _return_at(run: RunFolder, epochs: float) -> float:
    """Return the mean return of the last test up to an epoch; NaN if there is none."""
    if not run.progress.is_file():
        return math.nan
    table = read_progress(run.progress)
    tests = zip(table.get("epoch", []), table.get("test/return", []), strict=False)
    return next((value for epoch, value in reversed([*tests]) if epoch <= epochs and not math.isnan(value)), math.nan)


def _num_epochs(run: RunFolder) -> int:
    """Return the number of epochs in the table of a run."""
    return len(read_progress(run.progress).get("epoch", [])) if run.progress.is_file() else 0


def _state_of(setting: Setting) -> str:
    """Return how far the runs of an unfinished setting are, and the mean of their last tests."""
    reached = [_num_epochs(run) for run in setting.runs]
    known = [value for run in setting.runs if not math.isnan(value := _return_at(run, math.inf))]
    least, most = min(reached), max(reached)
    epochs = f"epoch {least if least == most else f'{least}-{most}'} of {setting.epochs}"
    return epochs + (f": {format_return(float(np.mean(known)))}" if known else "")


def _best(settings: Sequence[Setting], epochs: int, factor: int) -> list[Setting]:
    """Return the best settings of each task at an epoch: one of `factor`, rounded up."""

    def mean(one: Setting) -> float:
        values = [_return_at(run, epochs) for run in one.runs]
        known = [value for value in values if not math.isnan(value)]
        return float(np.mean(known)) if known else -math.inf

    kept = []
    for task in dict.fromkeys(one.task for one in settings):
        ranked = sorted((one for one in settings if one.task == task), key=mean, reverse=True)
        kept += ranked[: math.ceil(len(ranked) / factor)]
    return kept


def _table(rows: Sequence[Mapping[str, Any]], width: int | None = None) -> str:
    """Return the rows as text with aligned columns, without the folders.

    If they are wider than `width`, the texts of settings and then of tasks are cut.
    """

    def text(value: Any, row: Mapping[str, Any]) -> str:
        if isinstance(value, float):
            return f"{value:.{return_decimals(row['return'])}f}"
        return "-" if value is None else str(value)

    cells = [[*COLUMNS[:-1]], *([text(row[name], row) for name in COLUMNS[:-1]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name in ("setting", "task"):
        column = COLUMNS.index(name)
        excess = 0 if width is None else sum(widths) + 2 * (len(widths) - 1) - width
        if excess > 0:
            widths[column] = min(widths[column], max(widths[column] - excess, NARROWEST))
            for line in cells:
                line[column] = _cut(line[column], widths[column])
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
