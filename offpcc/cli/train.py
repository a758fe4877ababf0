"""`offpcc train`: converts its options to a `RunSpec`, and calls `fit` or shows a saved actor."""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from offpcc.algorithms import short_name
from offpcc.algorithms.agent import load_actor
from offpcc.cli.commands import add_simulator_version, name_for_score, refuse_options, reject_unused_options
from offpcc.cli.jobs import run_in_processes
from offpcc.cli.messages import TrainOptions, command, default_note, find_folder, load_config, refusal, resume_command
from offpcc.config import gin_files, loading
from offpcc.envs.d4rl import catalog
from offpcc.training.evaluation import show_episodes
from offpcc.training.fit import RunExistsError, check_startable, fit
from offpcc.training.interaction import episode_options
from offpcc.training.run_dir import RunFolder, source_of
from offpcc.training.spec import RunSpec, check_goes_online, choose_device, configured_make, resolve_env_and_dataset
from offpcc.utils import signals
from offpcc.utils.errors import NOTE, UserError, drop_output, is_new, print_to_stderr
from offpcc.utils.paths import check_folder, refuse_link
from offpcc.utils.version import __version__


def run_train(**given: Any) -> int:
    """Train or show every run id; return the exit code of the first failure, or 0.

    A failed run does not stop the others.
    """
    options = TrainOptions(**_completed(given))
    if len(set(options.run_id)) < len(options.run_id):
        raise UserError(f"--run_id {' '.join(map(str, options.run_id))} names a run twice; give each id once")
    if options.save_dataset and len(options.run_id) > 1:
        raise UserError(
            f"--save_dataset {options.save_dataset} is one file, but there are several run ids; give one run id"
        )
    if not options.env and not options.dataset:
        raise UserError("there is nothing to learn from; give an environment with --env, or a dataset with --dataset")
    if options.config:
        gin_files.find_config(options.config)  # report a misspelt config name before any error of a run
    num_steps = options.then_env_steps or int(options.start_from is not None)
    source = options.start_from
    known_env = None if source is None else RunFolder.at(source.resolve()).details().get("env")
    check_goes_online(num_steps, *resolve_env_and_dataset(options.env, options.dataset), source, known_env)
    is_shown = options.render or options.record
    if not is_shown:
        reject_unused_options("--render", episodes=options.episodes)
        check_folder(loading.results_folder(options.results), "the folder of results")
    options = replace(options, algo=short_name(options.algo))  # all names of an algorithm use the same folder
    run = show if is_shown else train_one
    if options.jobs > 1 and not is_shown and len(options.run_id) > 1:
        return _train_side_by_side(options)
    codes: list[int] = []
    reported: set[str] = set()  # print an error that all runs share only once
    for run_id in options.run_id:
        try:
            run(options, run_id)
            codes.append(0)
        except UserError as error:
            codes.append(2 if error.message in reported else error.report())
            reported.add(error.message)
        except Exception:
            traceback.print_exc()
            is_begun = not is_shown and find_folder(options, run_id).status() is not None
            hint = "; correct the fault, and run the same command with --resume" if is_begun else ""
            print_to_stderr(f"run {run_id} failed{hint}")
            codes.append(1)
        signals.poll()
    if not is_shown:
        _tell_failed(dict(zip(options.run_id, codes, strict=True)))
    return next((code for code in codes if code), 0)


def _tell_failed(codes: Mapping[int, int]) -> None:
    """Say at the end which runs failed if others did not: the messages are far above by then."""
    failed = [str(run_id) for run_id in sorted(codes) if codes[run_id]]
    if 0 < len(failed) < len(codes):
        print_to_stderr(f"run {', '.join(failed)} failed, for the reason given above; the other runs are trained")


def _completed(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options, with those of the run of --from in place of missing ones."""
    if given.get("online"):
        name = given.get("env")
        if name not in catalog.FILES or catalog.task(name) is None:
            raise UserError(
                f"--online needs D4RL's name of a dataset with a task, but --env is {name}; leave --online out"
            )
        if given.get("dataset"):
            raise UserError(
                f"--online reads no data, but --dataset is {given['dataset']}; leave out --online or --dataset"
            )
        given = {**given, "env": catalog.task(name), "online": False}
    known: dict[str, Any] = {"run_id": [1]}
    if (source := given.get("start_from")) is not None:
        run = RunFolder.at(source.resolve())
        details = run.details()
        data = details.get("dataset")
        if run.status() is None or not isinstance(data, dict):
            fault = "is not the folder of a run" if run.status() is None else "learned in its environment"
            raise UserError(f"--from {source} {fault}; give a run that learned from recorded data")
        if details.get("then_env_steps"):
            raise UserError(
                f"--from {source}: this run has already continued online; resume it with a larger --then_env_steps"
            )
        known |= {"algo": details.get("algo"), "run_id": [run.run_id], "dataset": source_of(data)}
        for name in ("algo", "dataset"):
            if not isinstance(given.get(name) or known[name], str):
                raise UserError(f"{run.record} does not contain the run's {name}; give --{name}")
        fraction, steps = details.get("dataset_fraction"), details.get("dataset_steps")
        if given.get("dataset_fraction") == 1.0 and given.get("dataset_steps") is None:
            if isinstance(steps, int):
                given = {**given, "dataset_steps": steps}
            elif isinstance(fraction, float):
                given = {**given, "dataset_fraction": fraction}
    return {**given, **{name: value for name, value in known.items() if given.get(name) is None}}


def _train_side_by_side(options: TrainOptions) -> int:
    """Train the run ids in processes of their own; return the worst exit code."""
    runs = [(f"run {one}", vars(replace(options, run_id=(one,), jobs=1))) for one in options.run_id]
    codes = dict[int, int]()

    def ended(name: str, code: int) -> None:
        codes[int(name.removeprefix("run "))] = code

    try:
        worst = run_in_processes(run_train, runs, options.jobs, ended)
    except signals.Interrupted as stop:
        folders = [find_folder(options, one) for one in options.run_id]
        if left := [folder for folder in folders if folder.status() != "finished"]:
            stop.message += f"; to go on: {resume_command(options, left)}"
        raise
    _tell_failed(codes)
    return worst


def train_one(options: TrainOptions, run_id: int) -> None:
    """Train one run in its folder, from the start or from its checkpoint.

    Raises:
        Interrupted: the user asked the command to stop.
    """
    folder = find_folder(options, run_id)
    try:
        check_startable(folder, *resolve_env_and_dataset(options.env, options.dataset), options.resume)
        note = default_note(options, folder)
        result = fit(_spec_of_run(options, folder), resume=options.resume, announce=_announcing(note))
    except RunExistsError as error:
        raise UserError(refusal(options, folder, error.status)) from error
    except signals.Interrupted as stop:
        stop.message = f"run {run_id} {stop.message}"
        unfinished = options.run_id[options.run_id.index(run_id) + stop.is_late :]
        if unfinished:
            left = [find_folder(options, one) for one in unfinished]
            stop.message += f"; to go on: {resume_command(options, left)}"
        raise
    if result.was_finished:
        _announcing("")(f"to train another:\n  {command(options, folder, folder.next_free_id())}")


def _spec_of_run(options: TrainOptions, folder: RunFolder) -> RunSpec:
    """Return the description of a run; an error in the config of a run of another version names this version."""
    try:
        return make_spec(options, folder)
    except UserError as error:
        made_by = folder.version()
        is_of_run = error.message.startswith(str(folder.config))
        if not is_of_run or made_by in (None, __version__):
            raise
        raise UserError(
            f"{error.message.rstrip('.')}; offpcc {made_by} made this run, but this is offpcc {__version__}; install "
            f"that version to continue the run"
        ) from error


def _announcing(note: str) -> Callable[[str], None]:
    """Return a function that prints texts. Before the first one, it prints a note, unless this is "".

    Of several runs in one process, only the first one prints a note that they share. Training goes on if nobody reads
    the output any more: a closed terminal, or `head`.
    """
    notes = [note] if note else []

    def announce(text: str) -> None:
        lines = [*filter(is_new, notes)]
        lines += [line for line in text.split("\n") if not line.startswith(NOTE) or is_new(line)]
        notes.clear()
        try:
            print("\n".join(lines), end="\n" * bool(lines), flush=True)
        except OSError:
            drop_output()

    return announce


def make_spec(options: TrainOptions, folder: RunFolder) -> RunSpec:
    """Load the config of a run, and return the run's description."""
    load_config(options, folder)
    return RunSpec.make(
        options.env or None,
        options.algo,
        seed=folder.run_id,
        device=choose_device(options.device, options.threads),
        threads=options.threads,
        dataset=options.dataset,
        dataset_fraction=options.dataset_fraction,
        dataset_steps=options.dataset_steps,
        then_env_steps=options.then_env_steps or (folder.env_steps() if options.resume else None),
        start_from=options.start_from,
        init=options.init or folder.details().get("init"),
        model=options.model or folder.details().get("model"),
        results=options.results or None,
        save_dataset=options.save_dataset,
        track=options.track,
        video=not options.no_video,
    )


def show(options: TrainOptions, run_id: int) -> None:
    """Show or record a saved actor."""
    given = {"gin": options.gin[0] if options.gin else None, "jobs": options.jobs if options.jobs > 1 else None}
    names = ("resume", "track", "init", "model", "no_video", "save_dataset")
    refuse_options("on a saved actor", given | {name: getattr(options, name) for name in names})
    env, _ = resolve_env_and_dataset(options.env, options.dataset)
    folder = find_folder(options, run_id)
    if env is None:
        raise UserError(f"{folder.path} has no environment to show the actor in: give one with `offpcc evaluate --env`")
    refuse_link(folder.videos)
    check_folder(folder.videos, "the folder of videos")
    loading.load_for_actor(options.config, folder.config, options.modules)
    file = folder.actor()
    actor = load_actor(file, choose_device(options.device, options.threads))
    print(f"{file} in {add_simulator_version(env)}")
    num_episodes, longest, scored = options.episodes or 3, episode_options(), name_for_score(env)
    show_episodes(actor, configured_make(env), scored, num_episodes, longest, folder.videos, options.render)
