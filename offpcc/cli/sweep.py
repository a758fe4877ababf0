"""`offpcc sweep`: trains the runs of a TOML file, resumes them, stops bad settings early, and ranks the settings."""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offpcc.algorithms import find_algorithm, short_name
from offpcc.cli.jobs import run_in_processes
from offpcc.cli.messages import TrainOptions
from offpcc.cli.sweep_file import EPOCHS, Point, Sweep, read_sweep
from offpcc.cli.train import find_folder, make_spec, train
from offpcc.config import loading
from offpcc.training.comparison import are_same, name_settings, settings_of, used_by
from offpcc.training.fit import plan_run
from offpcc.training.plotting import read_progress
from offpcc.training.run_dir import RunFolder
from offpcc.utils import signals
from offpcc.utils.errors import UserError, similar, tell
from offpcc.utils.files import read_json, write_json, write_text
from offpcc.utils.locks import FolderInUseError, FolderLock
from offpcc.utils.paths import check_folder

PATIENCE = 120  # seconds until a run of a sweep that was killed has saved its checkpoint
STOPPED = (130, 143)  # exit codes of runs that were asked to stop, and go on next time
COLUMNS = ("rank", "task", "algo", "setting", "return", "std", "seeds", "epochs", "status")


class Setting(NamedTuple):
    """The runs of one setting: they differ in the seed alone."""

    point: Point
    options: TrainOptions  # run_id has all seeds
    epochs: int
    task: str  # settings are ranked within a task

    def run(self, seed: int) -> RunFolder:
        """Return the folder of a run."""
        return find_folder(self.options, seed)


def sweep(
    file: Path,
    jobs: int,
    dry_run: bool,
    yes: bool,
    retry: bool,
    address: str | None,
    device: str | None,
    threads: int,
    track: bool,
    results: str | None,
) -> int:
    """Train the runs of a file as far as they are not trained yet, and rank their settings.

    Returns:
        0; 1 if a run has failed.
    """
    plan = read_sweep(file, is_large_allowed=yes or dry_run)
    where = loading.results_folder(results).resolve()
    check_folder(where, "the folder of results")
    root = where / plan.name
    if address is not None:
        from offpcc.cli.sweep_ray import check_ray

        check_ray()
    settings = _settings(plan, root, TrainOptions("", device=device, threads=threads, track=track))
    _check_parts(settings)
    failed = _read_failed(root)
    if dry_run:
        for one in settings:
            for seed in plan.seeds:
                run = one.run(seed)
                print(f"{run.path}: {_status(run, one.epochs, failed) or 'new'}")
        print(_table(_rows(settings, plan, failed)))
        return 0
    root.mkdir(parents=True, exist_ok=True)
    with closing(FolderLock(root)) as lock:
        try:
            lock.take()
        except FolderInUseError as error:
            raise UserError(f"another sweep uses {root}; wait until it ends, or stop it") from error
        if retry:
            failed.clear()
        _train(plan, settings, root, failed, jobs, address)
    rows = _write(root, settings, plan, failed)
    print(_table(rows))
    print(f"{root / 'summary.csv'} and summary.json have this table")
    if failed:
        tell(f"{len(failed)} runs failed: {', '.join(failed)}; to train them again, add --retry")
    return 1 if failed else 0


def _settings(plan: Sweep, root: Path, common: TrainOptions) -> list[Setting]:
    """Return the settings, with their options checked.

    Raises:
        UserError: an option or a binding is invalid, or an existing run has other settings.
    """
    settings, places = [], set[Path]()
    for point in plan.points:
        bindings = [f"{name}={value}" for name, value in {**plan.fixed, **point.swept}.items()]
        dataset = point.dataset
        if dataset is not None and Path(dataset).is_file():
            dataset = str(Path(dataset).resolve())  # for processes on other machines
        options = replace(
            common,
            algo=short_name(point.algo),
            env=point.env,
            dataset=dataset,
            config=point.config,
            modules=plan.modules,
            run_id=plan.seeds,
            gin=(*bindings, *([f"{EPOCHS}={plan.epochs}"] if plan.epochs else [])),
            results=str(root / point.folder),
        )
        folder = find_folder(options, plan.seeds[0])
        if folder.path in places:
            raise UserError(f"{plan.file}: two settings would be trained in {folder.siblings}; name one of them")
        places.add(folder.path)
        try:
            spec = make_spec(options, folder)
        except UserError as error:
            raise UserError(f"{plan.file}: {point.text}: {error.message}") from error
        if "num_epochs" not in spec.training:
            raise UserError(f"{plan.file}: there is no number of epochs; add epochs = N")
        settings.append(Setting(point, options, spec.training["num_epochs"], spec.label))
        bound, algorithm = loading.plain_values(spec.config.text), find_algorithm(options.algo)
        for seed in plan.seeds:
            _check_same(plan, find_folder(options, seed), bound, algorithm, spec.training["num_epochs"])
    return settings


def _check_same(plan: Sweep, run: RunFolder, bound: Mapping[str, str], algorithm: type, epochs: int) -> None:
    """Raise if an existing run of the sweep has other settings than the file."""
    if run.status() is None or (there := settings_of(run.path)) is None:
        return
    remedy = f"put the old value back, or give the sweep another name = in {plan.file}"
    if not are_same(there, given := used_by(there, bound, algorithm)):
        theirs, ours = name_settings([there, given])
        raise UserError(f"{run.path} was trained with {theirs}, but {plan.file} asks for {ours}; {remedy}")
    known = next((value for name, value in there.items() if f".{name}".endswith(f".{EPOCHS}")), "0")
    if known.isdecimal() and int(known) > epochs:
        raise UserError(f"{run.path} has {known} epochs, but {plan.file} asks for {epochs}; {remedy}")


def _check_parts(settings: Sequence[Setting]) -> None:
    """Build the parts of runs that have not started, so that each value of each binding is checked once.

    Raises:
        UserError: a part cannot be built.
    """
    known = set[tuple[Any, ...]]()
    for one in settings:
        values = [*one.point.swept.items(), ("", "")]
        news = {(one.task, one.options.algo, one.options.dataset, one.point.config, *pair) for pair in values}
        folder = one.run(one.options.run_id[0])
        if news <= known or folder.status() is not None:
            continue
        known |= news
        try:
            spec = make_spec(one.options, folder)
            if spec.imagination is not None and spec.dataset is not None:
                continue  # building it would train its model
            planned = plan_run(spec, folder)
        except UserError as error:
            raise UserError(f"{one.options.algo}, {one.point.text}: {error.message}") from error
        if planned is not None:
            planned.experiment.close()


def _train(
    plan: Sweep, settings: Sequence[Setting], root: Path, failed: dict[str, int], jobs: int, address: str | None
) -> None:
    """Train all runs; with halving, up to each round, and then only those of the best settings."""
    alive, reached = list(settings), 0 if plan.stop is None else plan.stop.first_epochs
    while True:
        last = plan.stop is None or plan.epochs is None or reached >= plan.epochs
        _train_to(plan, alive, root, failed, None if last else reached, jobs, address, settings)
        if last or plan.stop is None:
            return
        alive = _best(alive, reached, plan.stop.factor)
        reached *= plan.stop.factor


def _train_to(
    plan: Sweep,
    alive: Sequence[Setting],
    root: Path,
    failed: dict[str, int],
    limit: int | None,
    jobs: int,
    address: str | None,
    settings: Sequence[Setting],
) -> None:
    """Train the runs of some settings up to a number of epochs; None for all of them."""
    runs = list[tuple[str, dict[str, Any]]]()
    for one in alive:
        for seed in plan.seeds:
            run = one.run(seed)
            epochs = one.epochs if limit is None else limit
            name = str(run.path.relative_to(root))
            if name in failed or _is_done(run, epochs):
                continue
            # A run that was started with more epochs is not resumed with fewer.
            epochs = max(epochs, _planned(run))
            gin = [text for text in one.options.gin if not text.startswith(f"{EPOCHS}=")]
            options = replace(one.options, run_id=(seed,), gin=(*gin, f"{EPOCHS}={epochs}"))
            runs.append((name, {"group": plan.name, "cwd": str(Path.cwd()), **vars(options)}))

    def ended(name: str, code: int) -> None:
        if code and code not in STOPPED:
            failed[name] = code
        write_json(root / "failed.json", failed)
        _write(root, settings, plan, failed)

    write_json(root / "failed.json", failed)
    if not runs:
        return
    if address is not None:
        from offpcc.cli.sweep_ray import run_on_ray

        run_on_ray(train_run, runs, address, ended)
        return
    try:
        run_in_processes(train_run, runs, jobs, ended)
    except signals.Interrupted as stop:
        stop.message += "; the same command goes on"
        raise


def train_run(group: str, cwd: str, **given: Any) -> int:
    """Train one run of a sweep, from the start or from its checkpoint; return the exit code."""
    os.environ["WANDB_RUN_GROUP"] = group
    os.chdir(cwd)
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
    return train(**{**given, "resume": folder.status() is not None})


def _epochs_of(run: RunFolder) -> int:
    """Return the epochs after which a run was finished last."""
    epochs = run.details().get("epochs")
    return epochs if isinstance(epochs, int) else 0


def _planned(run: RunFolder) -> int:
    there = settings_of(run.path) or {}
    known = next((value for name, value in there.items() if f".{name}".endswith(f".{EPOCHS}")), "0")
    return int(known) if known.isdecimal() else 0


def _is_done(run: RunFolder, epochs: int) -> bool:
    return _epochs_of(run) >= epochs


def _status(run: RunFolder, epochs: int, failed: Mapping[str, int]) -> str | None:
    """Return "finished", "failed", "unfinished", or None for a run that does not exist."""
    if any(run.path.as_posix().endswith(f"/{name}") for name in failed):
        return "failed"
    return run.status()


def _return_at(run: RunFolder, epochs: float) -> float:
    """Return the mean return of the last test up to an epoch; NaN if there is none."""
    if not run.progress.is_file():
        return math.nan
    table = read_progress(run.progress)
    tests = zip(table.get("epoch", []), table.get("test/return", []), strict=False)
    return next((value for epoch, value in reversed([*tests]) if epoch <= epochs and not math.isnan(value)), math.nan)


def _best(settings: Sequence[Setting], epochs: int, factor: int) -> list[Setting]:
    """Return the best settings of each task at an epoch: one of `factor`, rounded up."""

    def mean(one: Setting) -> float:
        values = [_return_at(one.run(seed), epochs) for seed in one.options.run_id]
        known = [value for value in values if not math.isnan(value)]
        return float(np.mean(known)) if known else -math.inf

    kept = []
    for task in dict.fromkeys(one.task for one in settings):
        ranked = sorted((one for one in settings if one.task == task), key=mean, reverse=True)
        kept += ranked[: math.ceil(len(ranked) / factor)]
    return kept


def _rows(settings: Sequence[Setting], plan: Sweep, failed: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the ranked table: settings with more epochs first, which only differ with a rule for stopping."""
    rows = []
    for one in settings:
        runs = [one.run(seed) for seed in plan.seeds]
        states = [_status(run, one.epochs, failed) for run in runs]
        over = [run for run, state in zip(runs, states, strict=True) if state == "finished"]
        values = [value for run in over if not math.isnan(value := _return_at(run, math.inf))]
        bad = [run.run_id for run, state in zip(runs, states, strict=True) if state == "failed"]
        epochs = min((_epochs_of(run) for run in over), default=0)
        status = f"failed: seed {' '.join(map(str, bad))}" if bad else "new"
        if not bad and any(states):
            waiting = len(over) < len(runs)
            status = "unfinished" if waiting else "finished" if epochs >= one.epochs else "stopped early"
        rows.append(
            {
                "rank": 0,
                "task": one.task,
                "algo": one.options.algo,
                "setting": one.point.text,
                "return": float(np.mean(values)) if values else None,
                "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
                "seeds": len(values),
                "epochs": epochs,
                "status": status,
                "failed": bad,
                "folder": str(runs[0].siblings),
            }
        )
    rows.sort(key=lambda row: (row["task"], row["return"] is None, -row["epochs"], -(row["return"] or 0.0)))
    tasks = [row["task"] for row in rows]
    for number, row in enumerate(rows):
        row["rank"] = number - tasks.index(row["task"]) + 1 if row["return"] is not None else None
    return rows


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as text with aligned columns."""

    def text(value: Any) -> str:
        return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)

    cells = [COLUMNS, *([text(row[name]) for name in COLUMNS] for row in rows)]
    widths = [max(len(line[number]) for line in cells) for number in range(len(COLUMNS))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def _write(root: Path, settings: Sequence[Setting], plan: Sweep, failed: Mapping[str, int]) -> list[dict[str, Any]]:
    """Write the table as text, CSV and JSON into the sweep's folder; return its rows."""
    rows, stream = _rows(settings, plan, failed), io.StringIO()
    table = csv.DictWriter(stream, (*COLUMNS, "folder"), extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(root / "summary.csv", stream.getvalue())
    write_text(root / "summary.txt", f"{_table(rows)}\n")
    write_json(root / "summary.json", {"sweep": plan.name, "seeds": list(plan.seeds), "settings": rows})
    return rows


def _read_failed(root: Path) -> dict[str, int]:
    """Return the exit codes of the runs that failed, by their folders below the sweep's."""
    try:
        found = read_json(root / "failed.json")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{root / 'failed.json'} cannot be read; remove it to train failed runs again") from error
    return {str(name): int(code) for name, code in found.items()} if isinstance(found, dict) else {}
