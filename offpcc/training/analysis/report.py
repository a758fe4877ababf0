"""Reports over seeds, algorithms and tasks: which runs are compared, their scores, statistics, and a Markdown table."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offpcc.config.validation import is_number
from offpcc.training.analysis.grid_plot import RETURN, SCORE, references_of
from offpcc.training.analysis.run_statistics import (
    FEWER_RESAMPLES,
    LEVEL,
    RESAMPLES,
    SEED,
    Scores,
    expected_best,
    interquartile_mean,
    interval,
    mean,
    median,
    optimality_gap,
    probability_of_improvement,
    profile,
)
from offpcc.training.analysis.run_tables import (
    Array,
    Curve,
    NoRunsError,
    RunGroup,
    align_runs,
    cut,
    groups_with_numbers,
    has_trained_online,
    labels_of,
    read_progress,
)
from offpcc.training.metrics import SUCCESS_RATE
from offpcc.training.run_dir import RunFolder
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import read_json
from offpcc.utils.paths import shown
from offpcc.utils.version import __version__

ALL_TASKS = "all tasks"
FEW = 5  # a report warns of fewer seeds
PLACES = 100  # the most places of a curve or a profile
BUDGETS = (1, 2, 3, 5, 10, 20, 50, 100)  # numbers of evaluations in the table; the JSON has all of them
References = Mapping[str, tuple[float, float]]  # by task: the returns that become 0 and 1
STATISTICS: dict[str, Callable[[Scores], Array]] = {
    "iqm": interquartile_mean,
    "mean": mean,
    "median": median,
    "optimality_gap": optimality_gap,
}


class Estimate(NamedTuple):
    """A statistic and its 95% interval, which is NaN if a task has a single run."""

    value: float
    low: float
    high: float


class Band(NamedTuple):
    """A statistic and its interval at each of K places, (K,)."""

    at: Array
    value: Array
    low: Array
    high: Array


@dataclass
class Runs:
    """The R runs of one algorithm in one task, with equal settings."""

    group: RunGroup  # the folder and the settings that they share
    task: str  # the name of the task
    name: str  # the name of the algorithm in the report, with settings that differ
    is_offline: bool  # whether they learn from recorded data alone
    folders: list[Path]  # the folder of each run
    steps: Array  # (S,), the steps at which all of them were tested
    returns: Array  # (R,), the return, or another metric, that the report is about
    scores: Array  # (R,), the same, normalised if the report is
    values: Array  # (R, S), the scores of all tests
    curves: list[Curve]  # the scores of each run at all of its steps
    hours: list[Array]  # the hours of training at these steps, NaN where they are unknown

    @property
    def algorithm(self) -> str:
        """The name of the algorithm, without settings."""
        return self.group.kind or self.group.folder.name

    def normalised(self, low: float, high: float) -> Runs:
        """Return the runs with scores that are 0 at the return `low` and 1 at `high`."""
        span = high - low
        curves = [Curve(steps, (values - low) / span, std / span) for steps, values, std in self.curves]
        return replace(self, scores=(self.returns - low) / span, values=(self.values - low) / span, curves=curves)


@dataclass
class ReportRow:
    """A row of a report: an algorithm in one task, or over all tasks."""

    task: str  # the task, or `ALL_TASKS`
    name: str  # see `Runs.name`
    members: list[Runs]  # the runs of each task
    statistics: dict[str, Estimate]  # by the names of `STATISTICS`
    # The probability that a run is better than one of the baseline; None without a baseline.
    improvement: Estimate | None
    profile: Band  # the share of runs above each score
    by_step: Band | None  # interquartile mean at the common steps; None if there are none
    by_hours: Band | None  # interquartile mean at hours of training; None if these are unknown

    @property
    def num_seeds(self) -> list[int]:
        """The number of runs in each task."""
        return [len(runs.scores) for runs in self.members]

    def as_plain_data(self) -> dict[str, Any]:
        """Return the row as JSON shows it."""
        bands = {"profile": self.profile, "by_step": self.by_step, "by_hours": self.by_hours}
        return {
            "task": None if self.task == ALL_TASKS else self.task,
            "algorithm": self.name,
            "num_seeds": self.num_seeds,
            "last_step": [int(runs.steps[-1]) for runs in self.members],
            "runs": [os.path.relpath(folder) for runs in self.members for folder in runs.folders],
            "returns": [value for runs in self.members for value in runs.returns.tolist()],
            "scores": [value for runs in self.members for value in runs.scores.tolist()],
            **{name: _plain(one) for name, one in self.statistics.items()},
            "probability_of_improvement": _plain(self.improvement),
            **{name: None if band is None else _plain(band) for name, band in bands.items()},
        }


class Budget(NamedTuple):
    """The expected score of the best of k = 1, ..., K policies of an algorithm, each evaluated once."""

    task: str
    algorithm: str
    num_policies: list[int]  # in each task
    expected_best: Array  # (K,)


@dataclass
class Report:
    """All values of a report."""

    entries: list[ReportRow]  # the rows
    budgets: list[Budget]  # tuning budgets of the algorithms that learn from recorded data
    metric: str  # the column of the runs' tables that is compared
    test: str  # which test of a run counts, "last" or "best"
    normalise: str  # how scores are normalised, in words; "" if they are not
    references: References  # see `References`
    baseline: str | None  # the name of the baseline, if there is one
    warnings: list[str]  # what the reader has to know

    @property
    def scopes(self) -> list[str]:
        """The names of the tasks with rows; that of all tasks comes first."""
        return list(dict.fromkeys(entry.task for entry in self.entries))

    def as_plain_data(self) -> dict[str, Any]:
        """Return everything as JSON shows it."""
        return {
            "offpcc": __version__,
            "metric": self.metric,
            "test": self.test,
            "normalise": self.normalise or None,
            "references": {task: list(pair) for task, pair in self.references.items()},
            "baseline": self.baseline,
            "interval": {"level": LEVEL, "resamples": RESAMPLES, "of_curves": FEWER_RESAMPLES, "seed": SEED},
            "warnings": self.warnings,
            "rows": [entry.as_plain_data() for entry in self.entries],
            "tuning_budget": [
                {**one._asdict(), "task": None if one.task == ALL_TASKS else one.task,
                 "expected_best": one.expected_best.tolist()} for one in self.budgets
            ],
        }  # fmt: skip

    @property
    def _what(self) -> str:
        return "best test of each run" if self.test == "best" else "last test that all runs have"

    @property
    def _unit(self) -> str:
        if self.normalise:
            return f"Scores are normalised {self.normalise}."
        return "Scores are returns." if self.metric == RETURN else f"Scores are {self.metric}."

    def as_markdown(self) -> str:
        """Return the tables, with what they show and the warnings."""
        parts = [
            f"# Report: {self._what}",
            f"{self._unit} In brackets: {LEVEL:.0%} intervals by the stratified bootstrap over runs, {RESAMPLES:,} "
            f"resamples. In parentheses: number of seeds. Median: over runs in one task, over the tasks' means in "
            f"several.",
            "\n".join(f"- Warning: {warning}." for warning in self.warnings),
            self._main_table(),
            self._budget_table(),
        ]
        return "\n\n".join(filter(None, parts)) + "\n"

    def as_latex(self) -> str:
        """Return the interquartile means as a LaTeX table (booktabs), with a row for each task.

        The best is bold, unless algorithms are compared at different steps of a task.
        """
        seeds = range_of([number for entry in self.entries for number in entry.num_seeds])
        names = list(dict.fromkeys(entry.name for entry in self.entries))
        lines = [
            f"% {self._unit} IQM of the {self._what}; {LEVEL:.0%} intervals, stratified bootstrap; seeds: {seeds}.",
            *(f"% Warning: {warning}." for warning in self.warnings),
            "% It needs the package booktabs.",
            rf"\begin{{tabular}}{{l{'c' * len(names)}}}",
            r"\toprule",
            rf"{' & '.join(['task', *map(_in_latex, names)])} \\",
            r"\midrule",
        ]
        for task in sorted(self.scopes, key=lambda task: task == ALL_TASKS):
            entries = [entry for entry in self.entries if entry.task == task]
            found = {entry.name: entry.statistics["iqm"] for entry in entries}
            form = self._format(task)
            best = f"{max(estimate.value for estimate in found.values()):{form}}"
            ends = {(runs.task, runs.steps[-1]) for entry in entries for runs in entry.members}
            if len(ends) > len({where for where, _ in ends}):
                best = ""
            cells = [_latex_cell(found[name], form, best) if name in found else "--" for name in names]
            lines.append(rf"{' & '.join([_in_latex(task), *cells])} \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    def _main_table(self) -> str:
        columns = {"iqm": f"IQM, {self._what}", "mean": "mean", "median": "median"}
        if self.normalise:
            columns["optimality_gap"] = "optimality gap"
        head = ["task", "algorithm", "steps", *columns.values()]
        head += [f"P(better than {self.baseline})"] if self.baseline else []
        rows = []
        for entry in self.entries:
            seeds, form = range_of(entry.num_seeds), self._format(entry.task)
            cells = [_cell(entry.statistics[name], seeds, form) for name in columns]
            if self.baseline:
                cells.append("" if entry.improvement is None else _cell(entry.improvement, seeds, ".2f"))
            rows.append([entry.task, entry.name, range_of([int(runs.steps[-1]) for runs in entry.members]), *cells])
        return _table(head, rows)

    def _budget_table(self) -> str:
        if not self.budgets:
            return ""
        most = max(len(one.expected_best) for one in self.budgets)
        shown_budgets = sorted({*(k for k in BUDGETS if k <= most), min(most, BUDGETS[-1])})
        rows = []
        for one in self.budgets:
            best = one.expected_best
            cells = [f"{best[k - 1]:{self._format(one.task)}}" if k <= len(best) else "" for k in shown_budgets]
            rows.append([one.task, one.algorithm, range_of(one.num_policies), *cells])
        text = (
            "Tuning budget: expected score of the best of k policies, drawn without replacement from all that were "
            "trained, each evaluated once."
        )
        return f"{text}\n\n" + _table(["task", "algorithm", "policies", *(f"k = {k}" for k in shown_budgets)], rows)

    def _format(self, task: str) -> str:
        """Return the format of scores in a task."""
        scores = [runs.scores for entry in self.entries if entry.task == task for runs in entry.members]
        return ".3f" if self.normalise or float(np.abs(np.concatenate(scores)).max()) < 10.0 else ".1f"


def make_report(
    folders: Sequence[Path],
    *,
    baseline: str | None = None,
    normalise: str | Path | Mapping[str, Any] | None = None,
    test: str = "last",
    metric: str = RETURN,
) -> Report:
    """Compare the runs in some folders; see `offpcc.report`."""
    if metric != RETURN and normalise == "d4rl":
        raise UserError(f"D4RL's references are returns, and not {metric}; normalise by minmax or by a file")
    found, warnings = _read(folders, test, metric)
    tasks = list(dict.fromkeys(runs.task for runs in found))
    words, references = _references(found, normalise)
    if metric == SUCCESS_RATE and normalise is None:  # rates can be aggregated as they are
        references = dict.fromkeys(tasks, (0.0, 1.0))
    if references:
        found = [runs.normalised(*references[runs.task]) for runs in found]
    names = list(dict.fromkeys(runs.name for runs in found))
    if baseline is not None and baseline not in names:
        known = cut([f'"{name}"' for name in names], ", ")
        raise UserError(f"there are no runs of the baseline {shown(baseline)}; give a label of the report: {known}")
    scopes = {task: {runs.name: [runs] for runs in found if runs.task == task} for task in tasks}
    if len(tasks) > 1 and references:
        by_task = sorted(found, key=lambda runs: tasks.index(runs.task))  # one order of tasks in all rows
        of_all = {name: [runs for runs in by_task if runs.name == name] for name in names}
        complete = {name: members for name, members in of_all.items() if len(members) == len(tasks)}
        if not complete:
            raise UserError(
                f"no algorithm has runs in all of {cut(tasks, ', ')}, so nothing can be aggregated over tasks; name "
                f"tasks with the same algorithms ({cut(names, ', ')}), or report them one at a time"
            )
        scopes = {ALL_TASKS: complete, **scopes}
        if left_out := [name for name in names if name not in complete]:
            warnings.append(f"not in every task, so not among {ALL_TASKS}: {cut(left_out, ', ')}")
        if len({len(runs.scores) for members in complete.values() for runs in members}) > 1:
            warnings.append("tasks differ in their number of seeds, and tasks with more weigh more in the IQM")
    elif len(tasks) > 1:
        warnings.append(
            f"{'returns' if metric == RETURN else f'values of {metric}'} of different tasks have different units, so "
            f"nothing is aggregated over tasks; normalise them by {'d4rl, ' * (metric == RETURN)}minmax or a file"
        )
    entries = []
    for scope, of_names in scopes.items():
        scores = np.concatenate([runs.scores for members in of_names.values() for runs in members])
        margin = 0.02 * max(float(np.ptp(scores)), 1e-6)
        thresholds = np.linspace(scores.min() - margin, scores.max() + margin, PLACES)
        others = None if baseline is None else of_names.get(baseline)
        entries += [_entry(scope, name, members, others, thresholds) for name, members in of_names.items()]
    few = [f"{one.name} in {one.task} ({len(one.scores)})" for one in found if len(one.scores) < FEW]
    if few:
        missing = " (one seed has none)" if any(len(one.scores) == 1 for one in found) else ""
        warnings.append(f"fewer than {FEW} seeds, so the intervals are too narrow{missing}: {cut(few, ', ')}")
    for task in tasks:
        ends = {runs.name: runs.steps[-1] for runs in found if runs.task == task}
        if len(set(ends.values())) > 1:
            steps = list(ends.values())
            rare = sorted(ends.items(), key=lambda end: steps.count(end[1]))  # those that stand out come first
            told = [f"{name} {step:,.0f}" for name, step in rare]
            warnings.append(f"in {task}, algorithms are compared at different steps: {cut(told, ', ')}")
    budgets = _budgets(found, tasks, bool(references)) if test == "last" else []
    if test == "best" and any(runs.is_offline for runs in found):
        warnings.append(
            "there is no tuning budget, because many evaluations chose the best test of each run; it needs the last"
        )
    return Report(entries, budgets, metric, test, words, references, baseline, warnings)


def _read(folders: Sequence[Path], test: str, metric: str) -> tuple[list[Runs], list[str]]:
    """Return the runs in some folders, and warnings about them."""
    groups, faults = groups_with_numbers(folders, metric)
    found, warnings = list[Runs](), [f"left out: {error.message}" for error in faults]
    what = "test" if metric == RETURN else f"number for {metric}"
    for group in groups:
        for run in group.runs:
            RunFolder.at(run).refuse_newer()
    for group, label in zip(groups, labels_of(groups), strict=True):
        name = label.replace(f"{group.environment}/", "")  # a label may be a path, and then has the task in it
        try:
            aligned = align_runs(str(group), group.runs, metric)
        except NoRunsError as error:
            faults.append(error)
            warnings.append(f"left out: {error.message}")
            continue
        without = [run.name for run in group.runs if run not in aligned.runs]
        if without:
            warnings.append(f"runs of {name} in {group.environment} without any {what}, left out: {cut(without, ', ')}")
        end = aligned.steps[-1]
        ends = [float(curve.steps[-1]) for curve in aligned.curves]
        if end < max(ends):
            behind = [run.name for run, last in zip(aligned.runs, ends, strict=True) if last < max(ends)]
            warnings.append(
                f"{name} in {group.environment} is compared after {end:,.0f} of {max(ends):,.0f} steps, because runs "
                f"{cut(behind, ', ')} have no later test that all have; continue these with --resume, or leave them out"
            )
        best = [curve.mean[curve.steps <= end].max() for curve in aligned.curves]
        returns = np.array(best) if test == "best" else aligned.values[:, -1]
        hours = [
            _hours(run, metric)[: len(curve.steps)] for run, curve in zip(aligned.runs, aligned.curves, strict=True)
        ]
        is_offline = not any(map(has_trained_online, aligned.runs))
        found.append(
            Runs(group, group.environment, name, is_offline, aligned.runs, aligned.steps, returns, returns,
                 aligned.values, aligned.curves, hours)
        )  # fmt: skip
    if not found:
        raise faults[0]
    runs = [run for one in found for run in one.folders]
    if len(runs) == 1:
        raise UserError(
            f"{os.path.relpath(runs[0])} is the only run with any {what}, and a report compares several; name more "
            f"runs, or draw this one by offpcc plot"
        )
    return found, warnings + _about(found)


def _about(found: Sequence[Runs]) -> list[str]:
    """Return warnings about runs that did not finish, and about simulators that differ within a task."""
    unfinished, simulators = [], dict[str, set[str]]()
    for runs in found:
        for folder in runs.folders:
            details = RunFolder.at(folder).details()
            if details.get("status", "finished") != "finished":
                unfinished.append(os.path.relpath(folder))
            if isinstance(version := details.get("simulator"), str):
                simulators.setdefault(runs.task, set()).add(version)
    mixed = [f"{task} ({', '.join(sorted(known))})" for task, known in simulators.items() if len(known) > 1]
    return [
        *([f"not finished: {cut(unfinished, ', ')}"] if unfinished else []),
        *([f"runs in one task used different simulators: {cut(mixed, ', ')}"] if mixed else []),
    ]


def _hours(run: Path, metric: str) -> Array:
    """Return the hours of training at the tests of a run, which may go on; NaN where they are unknown."""
    progress = read_progress(run / "progress.csv")
    known = ~np.isnan(progress[metric])
    return np.asarray(progress.get("time/hours", [math.nan] * len(known)))[known]


def _references(found: Sequence[Runs], normalise: str | Path | Mapping[str, Any] | None) -> tuple[str, References]:
    """Return how scores are normalised, in words, and the references of each task; no words and none for returns."""
    if normalise is None:
        return "", {}
    tasks = dict.fromkeys(runs.task for runs in found)
    pairs: dict[str, Any] = {}
    if normalise == "minmax":
        words, advice = "from the worst (0) to the best run (1) of each task", "leave this task out"
        for task in tasks:
            returns = np.concatenate([runs.returns for runs in found if runs.task == task])
            pairs[task] = (float(returns.min()), float(returns.max()))
    elif normalise == "d4rl":
        words = "by D4RL: 1 is an expert, whose score D4RL writes as 100"
        advice = "normalise by minmax or by a file"
        without = []
        for runs in found:
            if (known := references_of(runs.group)) is not None:
                pairs[runs.task] = known
            else:
                without.append(runs)
        if others := [f"{runs.name} in {runs.task}" for runs in without if runs.task in pairs]:
            raise UserError(
                f"D4RL's references do not hold for {cut(others, ', ')}, whose tables have no {SCORE}, as with changed "
                f"rewards; leave them out, or {advice}"
            )
    elif isinstance(normalise, Mapping):
        words, pairs, advice = "by given references", _by_task(found, normalise), "add it"
    else:
        given = _read_references(Path(normalise))
        words, pairs, advice = f"by {normalise}", _by_task(found, given), f"add it to {normalise}"
    missing = [task for task in tasks if task not in pairs]
    if missing:
        raise UserError(f"there are no reference returns for {cut(missing, ', ')} to normalise with; {advice}")
    checked = {}
    for task in tasks:
        pair = pairs[task]
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2 and all(map(is_number, pair))
        if normalise == "minmax" and pair[0] == pair[1]:
            raise UserError(
                f"minmax needs two different returns of each task, but those of {task} are all {pair[0]:g}; add runs, "
                f"or {advice}"
            )
        if not is_pair or not pair[0] < pair[1]:
            raise UserError(
                f"the references of {task} are {shown(str(pair))}, but they have to be two returns, low and high, with "
                f"low below high, such as [-1500, -150]; correct them"
            )
        checked[task] = (float(pair[0]), float(pair[1]))
    return words, checked


def _by_task(found: Sequence[Runs], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return given references by task. They may name the task, or its environment, with or without its module."""
    known = {str(name).replace(":", "-"): pair for name, pair in given.items()}
    pairs: dict[str, Any] = {}
    for runs in found:
        env = str(RunFolder.at(runs.folders[0]).details().get("env") or runs.task)
        names = runs.task, env.replace(":", "-"), env.rpartition(":")[2]
        if (name := next((name for name in names if name in known), None)) is not None:
            pairs[runs.task] = known[name]
    return pairs


def _read_references(file: Path) -> dict[str, Any]:
    """Read a TOML or JSON file of references."""
    try:
        if file.suffix == ".toml":
            with file.open("rb") as stream:
                content: Any = tomllib.load(stream)
        else:
            content = read_json(file)
        if not isinstance(content, dict):
            raise ValueError("it is no table of tasks")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{shown(file)} cannot be read as references ({first_line(error)}); normalise by d4rl, by minmax, or by a "
            f'TOML or JSON file with a line such as "pendulum-p-v0" = [-1500, -150]'
        ) from error
    return content


def _entry(task: str, name: str, members: list[Runs], others: list[Runs] | None, thresholds: Array) -> ReportRow:
    """Return the row of an algorithm; `others` are the runs of the baseline in the same tasks."""
    scores = [runs.scores for runs in members]

    def all_of(tasks: Scores) -> Array:
        return np.stack([function(tasks) for function in STATISTICS.values()])

    values, (low, high) = all_of(scores), interval(all_of, scores)
    rows = zip(values, low, high, strict=True)
    statistics = {key: Estimate(*map(float, row)) for key, row in zip(STATISTICS, rows, strict=True)}
    return ReportRow(
        task,
        name,
        members,
        statistics,
        None if others is None or others is members else _improvement(scores, [runs.scores for runs in others]),
        _band(thresholds, lambda tasks: profile(tasks, thresholds), scores),
        _by_step(members),
        _by_hours(members),
    )


def _improvement(ours: Scores, others: Scores) -> Estimate:
    def function(strata: Scores) -> Array:
        return probability_of_improvement(strata[: len(ours)], strata[len(ours) :])

    both = [*ours, *others]
    return Estimate(float(function(both)), *map(float, interval(function, both)))


def _band(at: Array, function: Callable[[Scores], Array], strata: Scores) -> Band:
    return Band(at, function(strata), *interval(function, strata, FEWER_RESAMPLES))


def _by_step(members: Sequence[Runs]) -> Band | None:
    steps = members[0].steps
    for runs in members[1:]:
        steps = np.intersect1d(steps, runs.steps)
    if not len(steps):
        return None
    if len(steps) > PLACES:
        steps = steps[np.linspace(0, len(steps) - 1, PLACES).round().astype(int)]
    values = [runs.values[:, np.isin(runs.steps, steps)].T for runs in members]
    return _band(steps, interquartile_mean, values)


def _by_hours(members: Sequence[Runs]) -> Band | None:
    tests = []
    for runs in members:
        for hours, curve in zip(runs.hours, runs.curves, strict=True):
            known = ~np.isnan(hours)
            tests.append((np.maximum.accumulate(hours[known]), curve.mean[known]))
    if not all(len(hours) for hours, _ in tests):
        return None
    begin, end = max(hours[0] for hours, _ in tests), min(hours[-1] for hours, _ in tests)
    if not begin < end:
        return None
    at = np.linspace(begin, end, PLACES)
    values = np.array([np.interp(at, hours, scores) for hours, scores in tests])
    stops = np.cumsum([len(runs.scores) for runs in members])[:-1]
    return _band(at, interquartile_mean, [part.T for part in np.split(values, stops)])


def _budgets(found: Sequence[Runs], tasks: Sequence[str], normalised: bool) -> list[Budget]:
    """Return the tuning budgets of the algorithms that learn from recorded data alone."""
    pools: dict[tuple[str, str], list[Array]] = {}
    for runs in found:
        if runs.is_offline:
            pools.setdefault((runs.task, runs.algorithm), []).append(runs.scores)
    budgets = []
    for (task, algorithm), scores in pools.items():
        policies = np.concatenate(scores)
        budgets.append(Budget(task, algorithm, [len(policies)], expected_best(policies)))
    if len(tasks) == 1 or not normalised:
        return budgets
    over_tasks = []
    for algorithm in dict.fromkeys(one.algorithm for one in budgets):
        ours = [one for one in budgets if one.algorithm == algorithm]
        if len(ours) == len(tasks):
            least = min(len(one.expected_best) for one in ours)
            average = np.mean([one.expected_best[:least] for one in ours], axis=0)
            numbers = [number for one in ours for number in one.num_policies]
            over_tasks.append(Budget(ALL_TASKS, algorithm, numbers, average))
    return over_tasks + budgets


def _plain(values: Estimate | Band | None) -> dict[str, Any] | None:
    """Return numbers as JSON shows them, with None for NaN."""
    if values is None:
        return None

    def plain(number: Any) -> Any:
        if isinstance(number, np.ndarray):
            return [plain(one) for one in number.tolist()]
        return None if math.isnan(number) else number

    return {name: plain(value) for name, value in values._asdict().items()}


def range_of(numbers: Sequence[int]) -> str:
    """Return the smallest and the largest of some numbers as text: "3" or "3 to 5"."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _cell(estimate: Estimate, seeds: str, form: str) -> str:
    value, low, high = (f"{number:{form}}" for number in estimate)
    return f"{value} ({seeds})" if math.isnan(estimate.low) else f"{value} [{low}, {high}] ({seeds})"


def _latex_cell(estimate: Estimate, form: str, best: str) -> str:
    value, low, high = (f"{number:{form}}" for number in estimate)
    shown = rf"$\mathbf{{{value}}}$" if value == best else f"${value}$"  # \textbf does not reach into $...$
    return shown if math.isnan(estimate.low) else rf"{shown} {{\scriptsize $[{low}, {high}]$}}"


def _in_latex(text: str) -> str:
    """Return text with LaTeX's special characters escaped."""
    known = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    known |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(known.get(character, character) for character in text)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
