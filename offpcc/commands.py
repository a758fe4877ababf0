"""The commands beside training: evaluate, plot, envs, and showing what a run learned."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from pathlib import Path

import torch

from offpcc import callbacks, configuration  # noqa: F401 (all that gin can configure is known before configs are read)
from offpcc.assembly import load_actor
from offpcc.errors import UserError
from offpcc.runs import RunFolder
from offpcc.showing import evaluate_actor, has_screen, lines, overview, record_episodes, watch_episodes


def envs(options: argparse.Namespace) -> int:
    """Print the table of environments."""
    from rich.console import Console
    from rich.table import Table

    from offpcc.domains import ENVIRONMENTS
    from offpcc.domains.making import describe

    table = Table("environment", "observation", "actions", "steps", "hidden", "to install", box=None)
    for environment in ENVIRONMENTS:
        row = describe(environment.name)
        size = " x ".join(map(str, row["observation_shape"]))
        table.add_row(
            row["name"],
            size,
            str(row["action_size"]),
            str(row["horizon"]),
            row["hidden"],
            row["missing_package"] or "",
        )
    console = Console()
    console.print(table)
    console.print("Any Gymnasium id with a Box action space works as well.", highlight=False)
    return 0


def plot(options: argparse.Namespace) -> int:
    """Draw curves and print the figures under them."""
    from offpcc.plotting import NoRunsError, find_runs, plot_runs

    try:
        runs = [run for folder in options.folder for run in find_runs(folder)]
        summaries = plot_runs(runs, options.output, metric=options.metric)
    except (NoRunsError, KeyError) as error:
        raise UserError(str(error.args[0])) from error
    for summary in summaries:
        print(
            f"{summary.label}: {options.metric} {summary.final_mean:.1f} +- {summary.final_std:.1f} "
            f"over {summary.num_runs} runs at step {summary.steps}"
        )
    print(options.output)
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Print returns of a saved actor."""
    if not options.folder.exists():
        raise UserError(f"{options.folder} does not exist; give a run's folder, such as results/ENV/ALGO/1")
    configuration.load(options.config, [])
    file, env = options.folder, options.env
    if options.folder.is_dir():
        parts = options.folder.resolve().parts
        run_id = int(parts[-1]) if parts[-1].isdecimal() else 0
        folder = RunFolder(Path(*parts[:-3]), parts[-3], parts[-2], run_id) if len(parts) > 3 else None
        if folder is None or folder.path != options.folder.resolve():
            raise UserError(f"{options.folder} is no run's folder; give one such as results/ENV/ALGO/1")
        file, env = folder.actor(), env or folder.details().get("env") or parts[-3]
    if env is None:
        raise UserError(f"{file} is an actor's file: add --env, the environment to evaluate it in")
    device = choose_device(options)
    results = evaluate_actor(load_actor(file, device), env, options.episodes, options.num_envs, options.seed)
    print(f"{file} in {env}{simulator(env)}")
    print(overview(results))
    return 0


def simulator(env: str) -> str:
    """The simulator's version, which moves scores; empty where there is none to tell."""
    try:
        return f" (MuJoCo {importlib.metadata.version('mujoco')})" if "mujoco" in sys.modules else ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def choose_device(options: argparse.Namespace) -> torch.device:
    """The device as asked for, CUDA if there is one, else the CPU; and the number of threads."""
    if options.threads:
        torch.set_num_threads(options.threads)
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"--device {name} cannot be used here ({str(error).splitlines()[0]}); choose cpu"
            + (f" or cuda:0 to cuda:{torch.cuda.device_count() - 1}" if torch.cuda.is_available() else "")
        ) from error
    return device


def show(options: argparse.Namespace, run_id: int) -> None:
    """Show or record a saved actor."""
    configuration.load(options.config, options.gin)
    folder = RunFolder(configuration.results_folder(options.results), options.env, options.algo, run_id)
    file = folder.actor()
    actor = load_actor(file, choose_device(options))
    env = folder.details().get("env", options.env)
    print(f"{file} in {env}{simulator(env)}")
    videos: list[Path] = []
    if options.render and has_screen():
        results = watch_episodes(actor, env, options.episodes or 3)
    else:
        if options.render:
            print("There is no screen here (DISPLAY is not set), so the episodes are recorded instead.")
        results, videos = record_episodes(actor, env, options.episodes or 3, folder.videos)
    print("\n".join([*lines(results), overview(results), *map(str, videos)]))
