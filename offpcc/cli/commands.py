"""The commands `evaluate`, `plot`, `envs` and `check --env`, and the options `--render` and `--record`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offpcc.algorithms.agent import load_actor
from offpcc.cli.arguments import imported
from offpcc.cli.gallery import gallery
from offpcc.config import loading
from offpcc.data.offline import format_score
from offpcc.envs import ENVIRONMENTS
from offpcc.envs.check import examine
from offpcc.envs.make import describe, simulator
from offpcc.envs.rendering import has_screen
from offpcc.training.evaluation import evaluate_actor, lines, overview, record_episodes, watch_episodes
from offpcc.training.experiment import resolve_env_and_dataset, run_label
from offpcc.training.interaction import EpisodeResult, episode_options
from offpcc.training.plotting import find_runs, plot_runs
from offpcc.training.run_dir import RunFolder
from offpcc.utils.errors import UserError
from offpcc.utils.figures import check_picture, telling_of_faults
from offpcc.utils.findings import FAULT, WARNING, Finding
from offpcc.utils.paths import as_path, refuse_link, shown

STEPS = 2_000  # environment steps of the longest walk of `check`


def envs(options: argparse.Namespace) -> int:
    """Print the table of environments, or draw them."""
    if options.gallery:
        return _gallery(options.gallery)
    console = Console()
    if not console.is_terminal:  # do not cut names, because users copy them
        console = Console(width=max(console.width, 120))
    table = Table(box=None)
    for title in ("environment", "observation", "actions", "steps", "hidden", "to install"):
        table.add_column(title, no_wrap=title == "environment")
    for environment in ENVIRONMENTS:
        row = describe(environment.name)
        size = " x ".join(map(str, row["observation_shape"]))
        numbers = (size, str(row["action_size"]), str(row["horizon"]))
        table.add_row(row["name"], *numbers, row["hidden"], row["missing_package"] or "")
    console.print(table)
    console.print("Any Gymnasium id with a Box action space works as well.", highlight=False)
    return 0


def _gallery(file: Path) -> int:
    picture = (file, "--gallery", "gallery.png")
    check_picture(*picture)
    with telling_of_faults(*picture):
        file.parent.mkdir(parents=True, exist_ok=True)
        left_out = gallery(file)
    print(*left_out, file, sep="\n")
    return 0


def check(options: argparse.Namespace) -> int:
    """Print the findings about an environment; return 1 if a fault would spoil training, else 0."""
    if options.env is None:
        raise UserError("there is nothing to check; name an environment with --env, or recorded data with --dataset")
    reject_unused_options(options, "--dataset", output=None, dataset_fraction=1.0)
    loading.load(options.config, [], modules=imported(options))
    longest = options.longest_episode or episode_options()
    diagnosis = examine(options.env, options.steps or STEPS, options.seed or 0, longest)
    console = Console()
    tell(console, diagnosis.findings)
    console.print(Text(diagnosis.verdict, "bold"), soft_wrap=True)
    return 1 if diagnosis.of(FAULT) else 0


def tell(console: Console, findings: Iterable[Finding]) -> None:
    """Print the findings of a check."""
    for finding in findings:
        style = {FAULT: "bold red", WARNING: "yellow"}.get(finding.level, "green")
        line = Text.assemble((f"{finding.level:9}", style), (f"{finding.check:11}", "bold"), finding.found)
        console.print(line, soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"{'':20}-> {finding.remedy}"), soft_wrap=True)


def plot(options: argparse.Namespace) -> int:
    """Draw learning curves and print their final values."""
    picture = (options.output, "--output", "curves.png")
    check_picture(*picture)
    try:
        with telling_of_faults(*picture):
            for folder in options.folder:
                find_runs(folder)
            options.output.parent.mkdir(parents=True, exist_ok=True)
            summaries = plot_runs(options.folder, options.output, metric=options.metric, announce=print)
    except KeyError as error:
        raise UserError(str(error.args[0])) from error
    runs = [run.resolve() for folder in options.folder for run in find_runs(folder)]
    versions: dict[str, set[str]] = {}
    for run in runs:
        known = RunFolder.at(run).details().get("simulator")
        versions.setdefault(run.parent.parent.name, set()).update([shown(known)] if isinstance(known, str) else [])
    for summary in summaries:
        version = f" ({', '.join(sorted(found))})" if (found := versions[summary.environment]) else ""
        several = f" +- {summary.final_std:.1f} over {summary.num_runs} runs"
        longest = f" (the longest run ends at {summary.longest:,})" if summary.longest > summary.steps else ""
        print(
            f"{summary.environment}{version} {summary.label}: {options.metric} {summary.final_mean:.1f}"
            f"{several if summary.num_runs > 1 else ' of one run'} at step {summary.steps:,}{longest}"
        )
    print(options.output)
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Print the returns of a saved actor."""
    run, file = find_actor(options, options.folder)
    actor = load_actor(file, choose_device(options))
    env = options.env
    if not env and options.folder.is_dir():
        # A folder must not choose what is imported, so drop the module of "module:id"; the command line may name one.
        known = run.details().get("env", run.siblings.parent.name)
        env = known and shown(str(known).rsplit(":", 1)[-1])
        if env is None:
            raise UserError(f"{run.path} was trained without an environment: add --env, the one to evaluate it in")
    if env is None:
        raise UserError(f"{file} is an actor's file: add --env, the environment to evaluate it in")
    results = evaluate_actor(actor, env, options.episodes, options.num_envs, options.seed)
    print(f"{file} in {env_label(env)}", overview(results) + _score(env, results), sep="\n")
    return 0


def find_actor(options: argparse.Namespace, given: str | Path, or_else: str = "") -> tuple[RunFolder, Path]:
    """Return the folder of a saved actor's run and the actor's file; load the gin bindings of the run's environment.

    Args:
        options: options of the command; their modules and config define the names in the run's config.
        given: a run's folder, or an actor's file.
        or_else: what else the user may give, for messages.

    Raises:
        UserError: the actor does not exist, or its environment has unknown parts.
    """
    file = as_path(given)
    if not str(given) or not file.exists():
        raise UserError(
            f"there is no actor {shown(given)}; give a run's folder, such as results/ENV/ALGO/1, or an actor's "
            f"file{or_else}"
        )
    run = RunFolder.at((file if file.is_dir() else file.parent).resolve())
    loading.load_for_actor(options.config, run.config, imported(options))
    return run, file / run.actor().name if file.is_dir() else file


def _score(env: str, results: list[EpisodeResult]) -> str:
    return format_score(env, sum(result.episode_return for result in results) / len(results))


def env_label(env: str) -> str:
    """Return the name of an environment with the version of its simulator, because scores depend on the version."""
    return f"{env} ({version})" if (version := simulator()) else env


def choose_device(options: argparse.Namespace) -> torch.device:
    """Return the requested device, else CUDA if available, else the CPU; also set the number of torch's threads."""
    torch.set_num_threads(options.threads)
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("offpcc runs on cpu and cuda")
        if device.type == "cpu" and device.index:
            raise RuntimeError("there is one cpu, whatever its cores")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"--device {name} cannot be used here ({str(error).splitlines()[0]}); choose cpu"
            + (f" or cuda:0 to cuda:{torch.cuda.device_count() - 1}" if torch.cuda.is_available() else "")
        ) from error
    if device.type == "cuda":  # the same seed gives the same bytes
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    return device


def reject_unused_options(options: argparse.Namespace, needed: str, **defaults: Any) -> None:
    """Refuse options that have no effect without another option.

    Args:
        options: options of the command.
        needed: the other option.
        defaults: option names and their default values.

    Raises:
        UserError: one of the options was given.
    """
    for name, default in defaults.items():
        if (value := getattr(options, name, default)) != default:
            told = f"--{name}" if value is True else f"--{name} {value}"
            raise UserError(f"{told} has no effect without {needed}; leave it out, or add {needed}")


def show(options: argparse.Namespace, run_id: int) -> None:
    """Show or record a saved actor."""
    given = {"gin": options.gin and options.gin[0], "resume": options.resume, "track": options.track}
    for name, value in (given | {"save_dataset": options.save_dataset}).items():
        if value:
            told = f"--{name}" if value is True else f"--{name} {str(value)!r}"
            raise UserError(f"{told} has no effect on a saved actor; leave it out")
    env, dataset = resolve_env_and_dataset(options.env, options.dataset)
    name = run_label(env, dataset, options.dataset_fraction)
    folder = RunFolder(loading.results_folder(options.results), name, options.algo, run_id)
    if env is None:
        raise UserError(f"{folder.path} has no environment to be shown in: name one to `offpcc evaluate --env`")
    refuse_link(folder.videos)
    loading.load_for_actor(options.config, folder.config, imported(options))
    file = folder.actor()
    actor = load_actor(file, choose_device(options))
    print(f"{file} in {env_label(env)}")
    videos: list[Path] = []
    if options.render and has_screen():
        results = watch_episodes(actor, env, options.episodes or 3)
    else:
        if options.render:
            print("There is no screen here, so the episodes are recorded instead.")
        results, videos = record_episodes(actor, env, options.episodes or 3, folder.videos)
    print("\n".join([*lines(results), overview(results) + _score(env, results), *map(str, videos)]))
