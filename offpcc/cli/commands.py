"""The commands `evaluate`, `plot`, `report`, `envs`, `check` and `export`; each is a function."""

import contextlib
import ctypes
import json
import math
import os
import signal
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offpcc.algorithms import ActorCritic, find_algorithm, short_name
from offpcc.algorithms.agent import load_actor
from offpcc.cli import evaluate_from_data as of_data
from offpcc.cli import zoo
from offpcc.cli.check_dataset import check_dataset, examine_algorithm, print_findings
from offpcc.config import loading
from offpcc.config.bindings import COMMAND_LINE, check_unused_bindings
from offpcc.data.offline import DatasetOptions, format_score
from offpcc.envs import ALL, LISTED, missing_package
from offpcc.envs.check import examine_env
from offpcc.envs.guard import opened
from offpcc.envs.make import env_options, simulator_version
from offpcc.envs.registration import is_installed
from offpcc.envs.rendering import has_screen
from offpcc.envs.tasks import atari, dm_control_suite
from offpcc.envs.wrappers import raw_actions
from offpcc.training.analysis.run_statistics import EPISODE_RESAMPLES, LEVEL, mean_interval
from offpcc.training.analysis.run_tables import (
    DROP_STEPS,
    Loss,
    groups_of,
    groups_with_numbers,
    labels_of,
    losses_at_switch,
)
from offpcc.training.evaluation import (
    OtherEnvironmentError,
    changes_rewards,
    endless_episodes,
    evaluate_actor,
    overview,
)
from offpcc.training.export import export
from offpcc.training.interaction import EpisodeResult, episode_options, success_rate
from offpcc.training.loggers import check_installed, report_errors, upload_report
from offpcc.training.loggers.console import format_return, progress_bar, return_decimals
from offpcc.training.models.files import load_model
from offpcc.training.results import check_memory, check_model, evaluate_from_data, files_of_report
from offpcc.training.results import plot as plot_runs
from offpcc.training.results import report as report_runs
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import choose_device, configured_make
from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.figures import check_picture, explain_picture_errors
from offpcc.utils.files import read_json
from offpcc.utils.findings import FAULT
from offpcc.utils.paths import as_path, shown
from offpcc.utils.words import counted

EPISODES, NUM_ENVS = 100, 20  # of `evaluate`, as `offpcc.cli.options` has them
STEPS = 2_000  # environment steps of the longest walk of `check`


class ActorOptions(NamedTuple):
    """How saved actors are read and played; see `offpcc evaluate --help`."""

    env: str | None
    config: str | None
    modules: Sequence[str]
    device: str | None = "cpu"
    threads: int = 1
    gin: Sequence[str] = ()
    episodes: int = EPISODES
    seed: int = 2_000_000
    num_envs: int = NUM_ENVS


def run_envs(text: str | None = None) -> int:
    """Print the table of environments, perhaps only of those that contain a text."""
    known = LISTED if text is None else ALL
    listed = [one for one in known if (text or "").lower() in f"{one.name} {one.hidden} {one.package or ''}".lower()]
    if not listed:
        raise UserError(
            f"no environment of the table contains {shown(str(text))}; `offpcc envs` lists all, and --env also takes "
            f"any Gymnasium id and Atari games, such as {atari.IDS}"
        )
    console = Console()
    if not console.is_terminal:  # do not cut names, because users copy them
        console = Console(width=max(console.width, 120))
    table = Table(box=None)
    for title in ("environment", "observation", "actions", "steps", "hidden", "to install"):
        table.add_column(title, no_wrap=title == "environment")
    for environment in listed:
        size = " x ".join(map(str, environment.observation_shape))
        numbers = (size, environment.actions, str(environment.max_episode_steps))
        table.add_row(environment.name, *numbers, environment.hidden, missing_package(environment.name) or "")
    console.print(table)
    for title, module in (("DM Control's suite", dm_control_suite), ("Atari games, preprocessed as in DQN", atari)):
        needed = "" if is_installed(module.PACKAGE) else f"; to install: {module.PACKAGE}"
        console.print(f"{title}: {module.IDS}{needed}.", highlight=False)
    console.print("Any Gymnasium id with a Box or Discrete action space works as well.", highlight=False)
    return 0


def run_check(
    env: str | None,
    dataset: str | None,
    dataset_fraction: float,
    output: Path | None,
    steps: int | None,
    longest_episode: int | None,
    seed: int | None,
    config: str | None,
    modules: Sequence[str],
    model: Path | None = None,
    gin: Sequence[str] = (),
    folder: Path | None = None,
    episodes: int | None = None,
    json_output: bool = False,
    dataset_steps: int | None = None,
    algo: str | None = None,
) -> int:
    """Print the findings about an environment, a dataset or a model; return 1 if a fault would spoil training, else 0.

    With `folder`, print how the agent in it uses its memory.
    """
    given: dict[str, Any]
    fraction_given = None if dataset_fraction == 1.0 else dataset_fraction
    if folder is not None:
        if folder.suffix in (".hdf5", ".h5", ".npz"):
            raise UserError(f"`offpcc check` does not take {folder}; give a dataset with --dataset {folder}")
        if not folder.exists():
            refuse_name_of_zoo(folder)
            raise UserError(f"there is no run {shown(folder)}; give an environment with --env {folder}")
        unused = {
            "dataset": dataset,
            "dataset_steps": dataset_steps,
            "model": model,
            "steps": steps,
            "longest_episode": longest_episode,
            "algo": algo,
            "dataset_fraction": fraction_given,
            "gin": " ".join(gin) or None,
        }
        refuse_options(f"on the check of {shown(folder)}", unused)
        how = ActorOptions(env, config, modules, episodes=episodes or 20)
        return check_agent(folder, how if seed is None else how._replace(seed=seed), output, json_output)
    reject_unused_options("a run's folder", episodes=episodes, json=json_output)
    if model is not None:
        if dataset is None:
            raise UserError(f"--model {model} is compared with recorded data; give a dataset with --dataset")
        given = {"output": output, "dataset_steps": dataset_steps, "algo": algo}
        refuse_options("with --model", {"steps": steps, "longest_episode": longest_episode, **given})
        bindings = loading.load_gin_config(config, gin, modules=modules)
        world = load_model(model)
        quality = check_model(world, dataset, env or None, dataset_fraction=dataset_fraction, seed=seed or 0)
        check_unused_bindings(bindings)
        print(world, quality, sep="\n")
        return 0
    if dataset is not None:
        given = {"steps": steps, "longest_episode": longest_episode, "seed": seed}
        refuse_options("with --dataset, because the whole dataset is checked", given)
        return check_dataset(dataset, env, dataset_fraction, output, config, modules, gin, dataset_steps, algo)
    if env is None:
        raise UserError(
            "there is nothing to check; give a run's folder, an environment (--env) or a dataset (--dataset)"
        )
    reject_unused_options("--dataset", output=output, dataset_fraction=fraction_given, dataset_steps=dataset_steps)
    bindings = loading.load_gin_config(config, gin, modules=modules)
    if algo is not None:
        find_algorithm(algo)  # raises before the walk
    longest = longest_episode or episode_options()
    diagnosis = examine_env(env, steps or STEPS, seed or 0, longest, env_options())
    if algo is not None and not diagnosis.of(FAULT):
        with opened(configured_make(env)()) as made:
            found = examine_algorithm(algo, made.observation_space, raw_actions(made), env)
        diagnosis = replace(diagnosis, findings=(*diagnosis.findings, found))
    check_unused_bindings(bindings)
    console = Console()
    print_findings(console, diagnosis.findings)
    console.print(Text(diagnosis.verdict, "bold"), soft_wrap=True)
    return 1 if diagnosis.of(FAULT) else 0


def check_agent(folder: Path, how: ActorOptions, output: Path | None, json_output: bool) -> int:
    """Print and draw how an agent uses its memory, and return 0; see `offpcc.check_memory`."""
    if output is None:
        place = folder.resolve()
        output = Path(
            f"memory_{place.parent.name}_{place.name}.png" if place.name.isdecimal() else f"memory_{place.stem}.png"
        )
    check_picture(output, "--output", "memory.png")
    with _printing_to_stderr() if json_output else contextlib.nullcontext():
        env, file, actor = _load(folder, how)
        found = check_memory(actor, env, how.episodes, seed=how.seed)
        with explain_picture_errors(output, "--output", "memory.png"):
            found.draw(output)
    if json_output:
        print(json.dumps({"env": env, "actor": str(file), "picture": str(output), **found.plain()}, indent=2))
        return 0
    print(f"{file} in {add_simulator_version(env)}", textwrap.fill(str(found), 110), output, sep="\n")
    return 0


def run_plot(
    folder: Sequence[Path], output: Path, metric: str, grid: bool = False, average: int = 1, final: bool = False
) -> int:
    """Draw learning curves and print their final values."""
    check_picture(output, "--output", "curves.png")
    summaries = plot_runs(folder, output, metric, grid=grid, average=average, final=final, announce=print)
    groups, _ = groups_with_numbers(folder, metric)  # as the plot groups them
    losses = losses_at_switch(groups)
    versions: dict[str, set[str]] = {}
    for group in groups:
        known = [RunFolder.at(run).details().get("simulator") for run in group.runs]
        versions.setdefault(group.environment, set()).update(shown(one) for one in known if isinstance(one, str))
    for summary in summaries:
        version = f" ({', '.join(sorted(found))})" if (found := versions[summary.environment]) else ""
        decimals = return_decimals(summary.final_mean)
        several = f" +- {summary.final_std:.{decimals}f} over {summary.num_runs} runs"
        longest = f" (the longest run ends at {summary.longest:,})" if summary.longest > summary.steps else ""
        print(
            f"{summary.environment}{version} {summary.label}: {metric} {summary.final_mean:.{decimals}f}"
            f"{several if summary.num_runs > 1 else ' of one run'} at step {summary.steps:,}{longest}"
        )
        if lost := losses.get((summary.environment, summary.label)):
            print(f"  {describe_losses(lost)}")
    print(output)
    return 0


def run_report(
    folder: Sequence[Path],
    out: Path,
    baseline: str | None,
    normalise: str | None,
    test: str,
    metric: str,
    track: bool = False,
) -> int:
    """Write a table, a figure and a JSON file that compare runs, and print the table; log them with `track`."""
    files = files_of_report(out, "--out")  # before they are there
    if track:
        check_installed()
    values = report_runs(folder, out, baseline=baseline, normalise=normalise, test=test, metric=metric, announce=print)
    if track:
        with report_errors("Weights & Biases"):
            upload_report(values, files, print)
    print("written to " + ", ".join(map(str, files.values())))
    return 0


def describe_losses(losses: Sequence[Loss]) -> str:
    """Return drop and regret of runs that went on in their environment: means over the runs, and each drop."""
    drops, regrets = [one.drop for one in losses], [one.regret for one in losses if not math.isnan(one.regret)]
    decimals = return_decimals(float(np.mean(drops)))
    each = f" ({', '.join(f'{drop:.{decimals}f}' for drop in drops)})" if len(drops) > 1 else ""
    of = "normalised scores" if losses[0].has_score else "returns scaled from the first (0) to the best (1) of a run"
    regret = f"{np.mean(regrets):.3f}, of {of}" if regrets else "unknown, as no test was better than the first"
    return f"drop in the first {DROP_STEPS:,} environment steps: {np.mean(drops):.{decimals}f}{each}; regret: {regret}"


def run_evaluate(
    folder: Sequence[Path],
    json_output: bool,
    from_data: str | None,
    fqe_updates: int | None,
    fqe_gamma: float | None,
    fqe_seed: int | None,
    forever: bool,
    render: bool,
    **given: Any,
) -> int:
    """Print the returns of saved actors; with `json_output`, as JSON and with nothing else on the standard output.

    With `forever`, play until the user stops the command.

    With `from_data`, print the values of the actors from recorded data.
    """
    how = ActorOptions(**given)
    episodes = how.episodes
    if forever:
        unused: dict[str, Any] = {"from_data": from_data, "json": json_output}
        unused |= {"episodes": None if episodes == EPISODES else episodes, "fqe_updates": fqe_updates}
        unused |= {"num_envs": None if how.num_envs == NUM_ENVS else how.num_envs}
        unused |= {"fqe_gamma": fqe_gamma, "fqe_seed": fqe_seed}
        refuse_options("with --forever, which plays until Ctrl-C", unused)
        return play_forever(folder, how, render)
    reject_unused_options("--forever", render=render)
    if from_data is not None:
        if fqe_gamma == 1.0:
            raise UserError("--fqe_gamma is 1; values of endless tasks need a discount below 1, such as 0.99")
        options = {"num_updates": fqe_updates, "gamma": fqe_gamma, "seed": fqe_seed}
        fqe = {name: value for name, value in options.items() if value is not None}
        with _printing_to_stderr() if json_output else contextlib.nullcontext():
            policies = [_evaluate_from_data(one, from_data, fqe, how) for one in of_data.expand(folder)]
        if json_output:
            print(json.dumps(of_data.as_plain_data(from_data, policies), indent=2))
        else:
            of_data.print_values(policies)
        return 0
    reject_unused_options("--from_data", fqe_updates=fqe_updates, fqe_gamma=fqe_gamma, fqe_seed=fqe_seed)
    if not episodes:
        raise UserError("--episodes '0' plays nothing; give a number above 0, such as 1")
    actors = of_data.expand(folder)
    for one in actors if len(actors) > 1 else ():
        find_file(one)  # before the first one plays
    found: list[dict[str, Any]] = []
    scored: list[str | None] = []
    for one in actors:
        with _printing_to_stderr() if json_output else contextlib.nullcontext():
            played_in, file, algo, results = _evaluate(one, how)
            scored.append(None if json_output else name_for_score(played_in))
        seeds = range(how.seed, how.seed + episodes)
        found.append({"algo": algo, **summarize_evaluation(played_in, file, results, seeds)})
        if json_output:
            continue
        if len(actors) == 1:
            print(f"{file} in {add_simulator_version(played_in)}", overview(results, scored[-1]), sep="\n")
        else:
            mean = _mean_return(scored[-1], found[-1]["returns"])
            print(f"{file}: {mean} over {counted(episodes, 'episode')}", flush=True)
    if json_output:
        print(json.dumps(found[0] if actors == [*folder] and len(actors) == 1 else {"runs": found}, indent=2))
        return 0
    places = [(one if one.is_dir() else one.parent).resolve() for one in actors]
    of_runs = [(place, run) for place, run in zip(places, found, strict=True) if (place / "progress.csv").is_file()]
    runs, name_of = dict(of_runs), dict(zip(places, scored, strict=True))
    groups = groups_of([*runs]) if len(runs) == len(of_runs) > 1 else []  # of equal settings and data
    for group, label in zip(groups, labels_of(groups) if groups else (), strict=True):
        means = [runs[run]["mean"] for run in group.runs]
        if len(means) > 1:
            mean = _mean_return(name_of[group.runs[0]], means)
            print(f"{group.environment} {label}: {mean} over {len(means)} runs")
    return 0


def name_for_score(env: str) -> str | None:
    """Return the name of an environment; None if its rewards are changed, so that they have no D4RL score.

    Gin's bindings have to be those with which the environment is made.
    """
    options = env_options()
    if not format_score(env, 0.0) or not (options.wrappers or options.kwargs):
        return env
    with opened(configured_make(env)()) as made:
        return None if changes_rewards(made, options) else env


def _mean_return(env: str | None, returns: Sequence[float]) -> str:
    """Return mean and standard deviation of returns as text, with D4RL's score if `env` has one."""
    mean = float(np.mean(returns))
    decimals = return_decimals(mean)
    score = "" if env is None else format_score(env, mean)
    return f"mean return {mean:.{decimals}f} +- {np.std(returns):.{decimals}f}{score}"


def play_forever(folder: Sequence[Path], how: ActorOptions, render: bool) -> int:
    """Play episodes until Ctrl-C, in a window if `render`; then print statistics of returns and lengths.

    Raises:
        Interrupted: the system asked the command to stop, and not the user.
    """
    if len(folder) > 1:
        raise UserError(f"--forever plays one actor, but {shown(folder[1])} is a second one; leave the second one out")
    env, file, actor = _load(folder[0], how)
    scored, shows = name_for_score(env), render and has_screen()
    print(f"{file} in {add_simulator_version(env)}, until Ctrl-C", flush=True)
    if render and not shows:
        print("there is no screen here, so the episodes are played without a window", flush=True)
    results: list[EpisodeResult] = []
    try:
        with signals.deferred():  # a signal waits for the end of an environment's step
            for result in endless_episodes(actor, configured_make(env), how.seed, episode_options(), shows):
                results.append(result)
                played = format_return(result.episode_return)
                print(f"episode {len(results)}: return {played}, {counted(result.length, 'step')}", flush=True)
    except signals.Interrupted as stop:
        if results:
            score = "" if scored is None else format_score(scored, float(np.mean([one[0] for one in results])))
            rate = success_rate(results)
            success = "" if rate is None else f"; success rate {rate:.2f}"
            print(f"episodes: {len(results)}{success}{score}")
            for name, values in zip(("return", "length"), zip(*(one[:2] for one in results), strict=True), strict=True):
                figures = {"mean": np.mean(values), "s.d.": np.std(values), "min": min(values), "max": max(values)}
                decimals = return_decimals(float(np.mean(values))) if name == "return" else 1
                print(f"{name}: {', '.join(f'{what} {figure:.{decimals}f}' for what, figure in figures.items())}")
        else:
            print("stopped before the first episode ended")
        if stop.code != 128 + signal.SIGINT:
            raise
    return 0


def _load(folder: Path, how: ActorOptions) -> tuple[str, Path, ActorCritic]:
    """Return the environment's name, the actor's file and the actor; refuse bindings of `gin` without effect."""
    run, file = find_actor(folder, how.config, how.modules, gin=how.gin)
    actor = load_actor(file, choose_device(how.device, how.threads))
    env = how.env or (run.env() if folder.is_dir() else None)
    if env is None:
        raise UserError(f"{file} is an actor's file: add --env, the environment to evaluate it in")
    check_own_bindings(env)
    return env, file, actor


def check_own_bindings(env: str | None, reads_data: bool = False) -> None:
    """Refuse bindings of the command line that change neither the environment, which is made for that, nor the data."""
    own = [binding for binding in loading.current().bindings if binding.where == COMMAND_LINE]
    if own:
        loading.take_used()  # by the actor's networks, which are as they were saved
        if env:
            with opened(configured_make(env)()):
                episode_options()
        if reads_data:
            DatasetOptions.from_gin()
        check_unused_bindings(own)


def _evaluate(folder: Path, how: ActorOptions) -> tuple[str, Path, str, list[EpisodeResult]]:
    """Return the environment's name, the actor's file, the algorithm's short name and the episodes."""
    env, file, actor = _load(folder, how)
    results = evaluate_actor(actor, configured_make(env), how.episodes, how.num_envs, how.seed, episode_options())
    return env, file, short_name(type(actor).__name__), results


def _evaluate_from_data(folder: Path, data: str, fqe: Mapping[str, Any], how: ActorOptions) -> of_data.Evaluated:
    """Return the value of an actor and, if it has an environment, the returns of played episodes."""
    run, file = find_actor(folder, how.config, how.modules, gin=how.gin)
    actor = load_actor(file, choose_device(how.device, how.threads))
    env = how.env or (run.env() if run.details().get("env") else None)
    check_own_bindings(env, reads_data=True)
    print(f"evaluating {file}", flush=True)
    with progress_bar() as show:

        def show_updates(done: int, whole: int) -> None:
            show(done, whole, f"{done:,} of {whole:,} updates")

        estimate = evaluate_from_data(actor, data, env, progress=show_updates, **fqe)
    played = None
    if env and how.episodes:
        playing = (how.episodes, how.num_envs, how.seed, episode_options())
        played = of_data.measure_returns(actor, configured_make(env), estimate.gamma, *playing)
    return of_data.Evaluated(file, env, estimate, played)


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Send what is printed to the standard error stream, also by simulators in C, such as PyBullet's greeting."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what code in C has printed, and not written yet
        os.dup2(kept, 1)
        os.close(kept)


def summarize_evaluation(
    env: str, file: Path, results: Sequence[EpisodeResult], seeds: Sequence[int]
) -> dict[str, Any]:
    """Return the episodes of an actor, and their statistics, as plain data; `seeds` are those of the resets."""
    returns = np.array([result.episode_return for result in results], np.float64)
    interval = None
    if len(returns) > 1:
        low, high = mean_interval(returns)
        method = f"percentile bootstrap of the mean, {EPISODE_RESAMPLES} resamples"
        interval = {"low": low, "high": high, "level": LEVEL, "method": method}
    return {
        "env": env,
        "simulator": simulator_version() or None,
        "actor": str(file),
        "num_episodes": len(results),
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "interval": interval,
        "success_rate": success_rate(results),
        "seeds": list(seeds),
        "returns": returns.tolist(),
        "lengths": [int(result.length) for result in results],
    }


def find_actor(
    given: str | Path, config: str | None, modules: Sequence[str], or_else: str = "", gin: Sequence[str] = ()
) -> tuple[RunFolder, Path]:
    """Return the folder of a saved actor's run and the actor's file; load the gin bindings of the run's environment.

    `config` and `modules` define names in the run's config, and `gin` are extra bindings, of the command line. For
    messages, `or_else` is what else the user may give.
    """
    run, file = find_file(given, or_else)
    loading.load_for_actor(config, run.config, modules, gin)
    return run, file


def find_file(given: str | Path, or_else: str = "") -> tuple[RunFolder, Path]:
    """Return the folder of a saved actor's run and the actor's file; see `find_actor`."""
    file = as_path(given)
    if not str(given) or not file.exists():
        refuse_name_of_zoo(given)
        advice = f"give a run's folder, such as results/ENV/ALGO/1, or an actor's file{or_else}"
        raise UserError(f"there is no actor {shown(given)}; {loading.named_in_results(given) or advice}")
    run = RunFolder.at((file if file.is_dir() else file.parent).resolve())
    return run, file / run.actor().name if file.is_dir() else file


def refuse_name_of_zoo(given: str | Path) -> None:
    """Raise if the user named an agent of the zoo that is not in the working directory."""
    if str(given) in zoo.entries():
        raise UserError(
            f"there is no {shown(given)} in this folder; it is an agent of the zoo: copy it here with `offpcc zoo get "
            f"{given}`"
        )


def run_export(
    folder: Path,
    out: Path | None,
    env: str | None,
    config: str | None,
    modules: Sequence[str],
    units: Path | None = None,
) -> int:
    """Export a saved actor, and print its inputs and outputs."""
    try:
        given = None if units is None else read_json(units)
    except (OSError, ValueError) as error:
        raise UserError(
            f'--units {units} cannot be read ({first_line(error)}); write JSON, such as {{"action": ["Nm"]}}'
        ) from error
    run, file = find_actor(folder, config, modules)
    known = env or (run.details().get("env") if folder.is_dir() else None)
    made = None
    try:
        if known:
            made = configured_make(env or run.env())()
    except UserError as error:
        if env:
            raise
        print(
            f"note: the contract has no observation space, wrappers and control rate, as {shown(str(known))} "
            f"cannot be made: {error.message}"
        )
    try:
        try:
            done = export(file, out, env=made, units=given)
        except OtherEnvironmentError as error:
            if env:
                raise
            print(f"note: the contract has no observation space, wrappers and control rate: {error.message}")
            done = export(file, out, units=given)
    finally:
        if made is not None:
            made.close()
    print(f"{file}, {done.contract['algorithm']}")
    print(f"file      {done.file} ({done.file.stat().st_size / 1e6:.1f} MB)")
    print(f"contract  {done.contract_file}")
    for kind in ("inputs", "outputs"):
        print(f"{kind:8}  " + ", ".join(f"{port['name']} {tuple(port['shape'])}" for port in done.contract[kind]))
    if done.contract["outputs"][0]["dtype"] == "int64":
        told = f"actions differ by at most {done.difference:.0f}"
    else:
        told = f"actions in [-1, 1] differ by at most {done.difference:.1e}"
    print(f"checked   on random observations: {told}")
    print(f"one step  {done.latency.exported:.0f} us, in offpcc {done.latency.actor:.0f} us (medians, one thread)")
    return 0


def add_simulator_version(env: str) -> str:
    """Return the name of an environment with the version of its simulator, because scores depend on the version."""
    return f"{env} ({version})" if (version := simulator_version()) else env


def refuse_options(where: str, given: Mapping[str, Any], remedy: str = "leave it out") -> None:
    """Refuse options that have no effect; None and False mean that an option was not given.

    The message is "--NAME VALUE has no effect `where`; `remedy`".
    """
    for name, value in given.items():
        if value is not None and value is not False:
            words = f"--{name}" if value is True else f"--{name} {value}"
            raise UserError(f"{words} has no effect {where}; {remedy}")


def reject_unused_options(needed: str, **given: Any) -> None:
    """Refuse options that have no effect without another option; see `refuse_options`."""
    refuse_options(f"without {needed}", given, f"leave it out, or add {needed}")
