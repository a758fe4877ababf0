"""`fit` trains a run in its folder: lock, checkpoints, best actor, loggers, resume, result.

The command line calls it, and users can call it from Python.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from offpcc.algorithms import find_algorithm
from offpcc.algorithms.agent import load_actor
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.config import loading
from offpcc.config.bindings import COMMAND_LINE, check_unused_bindings, explains_calls
from offpcc.config.gin_files import read_config_text
from offpcc.config.loading import check_writable, plain_values, results_folder, typed_values, write_plainly
from offpcc.config.validation import Flag, format_value
from offpcc.data import Dataset, offline
from offpcc.data.recording.episode_log import log_path
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.unsuitable import CannotBeDrawn
from offpcc.training import checkpoint as checkpoints
from offpcc.training import run_dir as run_dirs
from offpcc.training.analysis.plotting import plot_run
from offpcc.training.build import arguments_of, build_run, closed_on_failure, idle_parameters, read_data
from offpcc.training.callbacks import Callback, as_callback, callback_columns
from offpcc.training.checkpoint import Checkpoint, Checkpoints
from offpcc.training.comparison import (
    ENDS_EARLY,
    Settings,
    check_unchanged,
    hash_settings,
    may_change,
    stops_alike,
    with_facts,
)
from offpcc.training.evaluation import record_episodes
from offpcc.training.experiment import Experiment
from offpcc.training.loggers import (
    ConsoleLogger,
    CSVLogger,
    Logger,
    Loggers,
    TensorBoardLogger,
    WandbLogger,
    report_errors,
    tracking_wanted,
)
from offpcc.training.metrics import Loop
from offpcc.training.online import IN_ENVIRONMENT
from offpcc.training.remote import RESUMES_ANEW, RemoteInteraction
from offpcc.training.results import RunResult
from offpcc.training.run_dir import Origin, RunFolder, check_origin, check_same_record
from offpcc.training.run_fns import TRAIN_SETTINGS, check_num_envs, check_settings, train, unused_train_parameters
from offpcc.training.run_messages import describe_config, describe_data, is_own_config, tell_result, warnings_of
from offpcc.training.spec import RunSpec, torch_settings
from offpcc.utils import signals
from offpcc.utils.errors import UserError, data_warnings_announced, for_python, in_python
from offpcc.utils.files import FULL, IN_THE_WAY, explain_disk_errors, replacing
from offpcc.utils.locks import FolderLock
from offpcc.utils.paths import as_path
from offpcc.utils.rng import same_global_generators, seed_global_generators
from offpcc.utils.version import tell_changed

SLOW_VIDEO = 10.0  # seconds from which a run names the option that leaves the video out
ONLINE = re.compile(r"(?:offpcc\.)?OfflineToOnline\.\w+")  # bindings of the online phase
TRACKED = ("env", "dataset", "algo", "seed", "git_commit")  # facts of run.json by which Weights & Biases sorts runs
Announce = Callable[[str], None]
print_line: Announce = functools.partial(print, flush=True)


class RunExistsError(UserError):
    """The folder holds a run already, "finished" or "unfinished" by its `status`, and `resume` is False."""

    def __init__(self, folder: RunFolder, status: str) -> None:
        super().__init__(
            f"the run in {folder.path} is {status} and is not overwritten; give resume=True to resume it, or "
            f"another folder"
        )
        self.folder, self.status = folder, status


@explains_calls
def fit(
    spec: RunSpec,
    run_dir: str | Path | None = None,
    *,
    resume: Flag = False,
    announce: Announce = print_line,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Train a run in its folder, from the start or from its checkpoint.

    Args:
        spec: the description of the run.
        run_dir: the run's folder; None for ``<results>/<environment>/<algorithm>/<seed>``. The folders beside a folder
            given here do not matter. In a folder of results, all runs of an algorithm have to learn from the same.
        resume: whether to continue an existing run; otherwise it is refused.
        announce: receives the text before and after training. The progress bar and the rows of epochs still go to the
            standard output.
        callbacks: callbacks that do not belong to the run's settings, such as one that saves actors. They are called
            before the checkpoint of an epoch is written. If `on_epoch` of one raises, the best actor and a checkpoint
            are saved before the exception leaves `fit`.

    Raises:
        RunExistsError: the folder holds a run, and `resume` is False.
        UserError: another process trains the run, an argument or a binding is invalid, or the folder cannot be written.
        NonFiniteError: an update met NaN or infinity.
        EnvironmentFault: an environment misbehaves.
        Interrupted: the user stopped the run (Ctrl-C or SIGTERM). If training had begun, the run is saved and can be
            resumed; otherwise there is nothing new to save. A second Ctrl-C stops at once, without saving.
    """
    if not isinstance(spec, RunSpec):
        raise UserError(f"fit got {format_value(spec)}; give what offpcc.RunSpec.make(env, algo) returns")
    if not isinstance(callbacks, list | tuple):
        raise UserError(f"fit.callbacks is {format_value(callbacks)}; it has to be a list, such as [callback]")
    callbacks = [as_callback(one, "fit.callbacks") for one in callbacks]
    if not callable(announce):
        raise UserError(f"fit.announce is {format_value(announce)}; give a function of a text, such as print")
    if run_dir is not None and not str(run_dir):
        raise UserError('run_dir is "", which would be the current folder; give the name of a folder for the run')
    folder = run_folder(spec) if run_dir is None else RunFolder.at(as_path(run_dir, "run_dir"))

    with (
        for_python(),
        signals.handled(second_ends=False),  # a notebook must survive two
        torch_settings(spec.device, spec.threads),
        same_global_generators(),
        closing(FolderLock(folder.path)) as lock,
    ):
        lock.take_if_there()
        return _fit_locked(spec, folder, lock, resume, lambda text: announce(in_python(text)), callbacks)


def run_folder(spec: RunSpec) -> RunFolder:
    """Return the folder of a run below its folder of results."""
    return RunFolder(
        results_folder(None if spec.results is None else str(spec.results)), spec.label, spec.algo, spec.seed
    )


def check_startable(folder: RunFolder, env: str | None, dataset: str | Path | Dataset | None, resume: bool) -> None:
    """Raise if a run cannot start in a folder, as far as this is known without its config and its data.

    Raises:
        RunExistsError: the folder holds a run, and `resume` is False.
    """
    with closing(FolderLock(folder.path)) as lock:
        lock.take_if_there()
        _check_place(folder, origin_of(env, dataset), resume)


def origin_of(env: str | None, dataset: str | Path | Dataset | None) -> Origin:
    """Return the origin of a run before its data are read."""
    source = dataset.source if isinstance(dataset, Dataset) else dataset
    return Origin(env, None if source is None else str(source))


def _check_place(folder: RunFolder, origin: Origin, resume: bool) -> str | None:
    """Return the status of the run in a folder; raise if another one may not start there.

    An existing run that learned from recorded data is not refused yet. A run on other data gets a clearer message about
    that, once the data is read.
    """
    folder.refuse_links()
    if resume:
        folder.refuse_newer()
    status = folder.status()
    check_origin(folder, origin)
    if status and origin.source is None and not resume:
        raise RunExistsError(folder, status)
    return status


def _fit_locked(
    spec: RunSpec, folder: RunFolder, lock: FolderLock, resume: bool, announce: Announce, callbacks: Sequence[Callback]
) -> RunResult:
    plan = plan_run(spec, folder, resume)
    if plan is None:
        announce(f"run {spec.seed} is finished; there is nothing left to do")
        tell_result(folder, announce)
        if folder.has_checkpoint():
            longer = "--then_env_steps" if spec.then_env_steps else "train.num_epochs"
            announce(f"to continue the run, give a larger {longer}")
        else:
            announce(f"the run cannot be resumed, because {folder.checkpoint} does not exist any more")
        return RunResult(folder.path, was_finished=True, _env_function=spec.env_function)
    experiment = plan.experiment
    with closed_on_failure(experiment):
        with explain_disk_errors(folder.path):
            _make_folder(folder, is_new=plan.status is None)
            lock.take()
            if (now := folder.status()) != plan.status:
                raise RunExistsError(folder, now or "unfinished")
        messages = [*plan.messages, *start_or_resume(spec, folder, plan, resume)]
        if lock.message:
            messages.append(lock.message)
    with signals.deferred(), explain_disk_errors(folder.path):
        with closed_on_failure(experiment):
            if plan.status and plan.checkpoint is None:
                messages.append(
                    f"there is no checkpoint in {folder.path}, so the run starts again{folder.keep_table()}"
                )
            if plan.checkpoint is None and spec.start_from is not None:
                keep_best_actor(spec, folder, experiment)
            unused = [f"train.{name}" for name in _unused_of_train(spec, experiment)]
            announce("\n".join([*describe_config(spec, experiment.config, folder.config, unused), *messages]))
            folder.create(experiment.config, run_dirs.facts(spec, experiment))
        _train(spec, folder, experiment, plan.bound, announce, callbacks)
    return RunResult(folder.path, _env_function=spec.env_function)


def _make_folder(folder: RunFolder, is_new: bool) -> None:
    """Create the folder of a run.

    Raises:
        OSError: another one cannot be created, or the disk is full, or a file is in the way.
    """
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not is_new or error.errno in (*FULL, *IN_THE_WAY):
            raise
        raise UserError(
            f"{folder.path} cannot be created ({error.strerror}); name another folder with --results"
        ) from error


class RunPlan(NamedTuple):
    """The start of a run."""

    experiment: Experiment  # as it was built; the checkpoint is not loaded yet
    status: str | None  # status of the run in the folder: None, "finished" or "unfinished"
    checkpoint: Checkpoint | None  # the checkpoint to resume from
    bound: str | None  # the bindings of the run as a gin file; None if they are not known
    messages: list[str]


def plan_run(spec: RunSpec, folder: RunFolder, resume: bool = False) -> RunPlan | None:
    """Decide how a run starts, and build its parts; create no files.

    Returns:
        The plan; None if the run is finished already.
    """
    origin = origin_of(spec.env, spec.dataset)
    status = _check_place(folder, origin, resume)
    if status and resume:
        check_same_record(folder, spec)
    if status is None and not folder.is_in_results and os.path.lexists(folder.config):
        raise UserError(
            f"{folder.config} exists, but this folder holds no run; a new run would overwrite the file; move it, "
            f"or give another folder"
        )
    if missing := [name for name in TRAIN_SETTINGS if name not in spec.training]:
        raise loading.missing_binding(f"train.{missing[0]}")
    for owner, given in ((find_algorithm(spec.algo).__name__, spec.algorithm), ("Recurrent", spec.memory)):
        check_writable({f"{owner}.{name}": loading.with_names(value) for name, value in given.items()})
    check_writable({**{f"ReplayBuffer.{name}": value for name, value in spec.buffer.items()}, **spec.given})
    checkpoint, faults = read_checkpoint_of_run(folder) if status and resume else (None, [])
    is_over = resume and status == "finished" and (checkpoint is None or ended(spec, checkpoint))
    config = checkpoint["config"] if checkpoint else read_config_text(folder.config) if folder.config.is_file() else ""
    has_file = spec.dataset is not None and not isinstance(spec.dataset, Dataset)
    if is_over and has_file and is_known_to_be_same(spec, plain_values(config)):
        return None
    experiment = _build(spec, folder, origin, status, resume)
    with closed_on_failure(experiment):
        bound: str | None = bound_text(spec, experiment)
        starts_from_networks = checkpoint is None and not is_over and spec.start_from is None and spec.init is not None
        started = start_from_networks(spec, experiment) if starts_from_networks else []
        messages = [*describe_data(spec, experiment), *warnings_of(spec, experiment), *faults]
        if is_over:
            new = plain_values(experiment.config) if config else {}
            _check_unchanged(checkpoint, plain_values(config), new, plain_values(bound_text(spec, experiment)))
            experiment.close()
            return None
        if checkpoint is not None:
            messages += check_same_run(spec, experiment, checkpoint, bound_text(spec, experiment))
            if is_own_config(spec, folder.config):  # which binds all values
                bound = checkpoint.get("bound")
        if spec.save_dataset is not None:
            experiment.check_recording(spec.save_dataset, resume)
        if checkpoint is None and isinstance(experiment.interaction, RemoteInteraction):
            messages.append(RESUMES_ANEW)
        if checkpoint is None and spec.start_from is not None:
            messages += continue_run(spec, experiment)
        messages += started
    return RunPlan(experiment, status, checkpoint, bound, messages)


def planned_epochs(spec: RunSpec, checkpoint: Checkpoint) -> int:
    """Return the number of epochs of the whole run of a checkpoint, as the spec plans it now."""
    switch_epoch = checkpoint["loop"].get("switch_epoch")  # only a run in its second phase has one
    if switch_epoch not in (None, spec.training["num_epochs"]) and spec.start_from is None:
        raise UserError(
            f"train.num_epochs is {spec.training['num_epochs']}, but the run went online after epoch {switch_epoch}; "
            f"give num_epochs {switch_epoch}, and a larger --then_env_steps to continue"
        )
    return spec.num_epochs(switch_epoch)


def ended(spec: RunSpec, checkpoint: Checkpoint) -> bool:
    """Check whether the run of a checkpoint is finished.

    A run that ended early continues if the spec has more epochs, another `stop_return` or another `stop_tests`. With
    another rule, a run ends at once if its last tests fulfil it.
    """
    num_epochs, loop = planned_epochs(spec, checkpoint), checkpoint["loop"]
    if loop["epoch"] >= num_epochs or num_epochs > checkpoint["num_epochs"]:
        return bool(loop["epoch"] >= num_epochs)
    rule = {name: write_plainly(spec.training[name.removeprefix("train.")]) for name in ENDS_EARLY}
    if stops_alike(plain_values(checkpoint["config"]), rule, ENDS_EARLY):
        return bool(loop["stopped"])
    check_settings(**spec.training)
    level, number = (spec.training[name.removeprefix("train.")] for name in ENDS_EARLY)
    done = Loop(rows=loop.get("rows", []), switch_epoch=loop.get("switch_epoch", 0))
    return level is not None and done.last_tests_reach(level, number)


def _read_start(option: str, folder: Path | None, kind: str) -> tuple[RunFolder, Checkpoint, list[str]]:
    """Return the run that an option names, its checkpoint, and messages about it; `kind` is what it has to be."""
    source = RunFolder.at(as_path(str(folder)))
    checkpoint, messages = read_checkpoint_of_run(source)
    if checkpoint is None:
        raise UserError(f"{option} {source.path}: there is no checkpoint of a run; give the folder of {kind}")
    return source, checkpoint, messages


def continue_run(spec: RunSpec, experiment: Experiment) -> list[str]:
    """Load the run that this one continues in its environment; return messages about it."""
    kind = "a run that learned from recorded data, such as results/ENV_from_DATA/ALGO/1"
    source, checkpoint, messages = _read_start("--from", spec.start_from, kind)
    checkpoints.continue_online(checkpoint, experiment)
    loop = experiment.loop
    messages.append(f"going on from {source.path} after epoch {loop.epoch}, step {loop.step:,}")
    before, given = plain_values(checkpoint.get("bound") or ""), plain_values(spec.config.text)
    lost = [f"{name} = {before[name]}" for name in before.keys() - given.keys() if ONLINE.fullmatch(name)]
    if lost:
        messages.append(
            f"note: {source.path} was started with {', '.join(sorted(lost))}, which --from does not take over; bind "
            f"this again to use it"
        )
    return messages


def start_from_networks(spec: RunSpec, experiment: Experiment) -> list[str]:
    """Load the networks of another run; return messages about it."""
    source, checkpoint, messages = _read_start("--init", spec.init, "a run, such as results/ENV/ALGO/1")
    algorithm: Any = experiment.algorithm
    skipped = {name: value for name in algorithm.first_updates if (value := getattr(algorithm, name))}
    if other := checkpoints.take_networks(checkpoint, experiment):
        messages.append(f"note: {other}; so its critics have to learn new values first")
    text = f"starting from the networks of {source.path} after step {checkpoint['loop']['step']:,}"
    if (random := spec.training["update_after"]) and experiment.interaction is not None:
        text += f"; the first {random:,} steps are random (train.update_after)"
    messages += [
        f"note: {type(algorithm).__name__}.{name} = {value:,} has no effect with --init, because the networks have "
        f"learned already"
        for name, value in skipped.items()
    ]
    return [*messages, text]


def keep_best_actor(spec: RunSpec, folder: RunFolder, experiment: Experiment) -> None:
    """Copy the best actor of the run that this one continues, if the tests of both are in the same environment."""
    source = RunFolder.at(as_path(str(spec.start_from)))
    if source.actor_best.is_file() and source.details().get("env") == spec.env:
        with replacing(folder.actor_best) as file:
            shutil.copyfile(source.actor_best, file)
    else:
        experiment.loop.best_return = None


def _build(spec: RunSpec, folder: RunFolder, origin: Origin, status: str | None, resume: bool) -> Experiment:
    """Build the parts of a run, and check their settings.

    Raises:
        RunExistsError: the folder holds a run from the same data, and `resume` is False.
    """
    seed_global_generators(spec.seed)  # for the user's code; the parts of offpcc have their own generators
    with data_warnings_announced():
        data = read_data(spec)
        if data is not None:
            check_origin(folder, origin._replace(fingerprint=data.fingerprint))
            if status and not resume:
                raise RunExistsError(folder, status)
        with loading.LOCK:  # `_check_built` reads gin's record of used values
            return build_run(spec, data, functools.partial(_check_built, spec))


def _check_built(spec: RunSpec, experiment: Experiment) -> None:
    """Check the settings of a run when its parts are built."""
    algorithm, buffer, phase = experiment.algorithm, experiment.buffer, experiment.online
    check_settings(**spec.training)
    waiting = experiment.interaction if phase is None else phase.interaction
    check_num_envs(waiting, spec.training["num_steps_per_epoch"])
    idle = idle_parameters(experiment) | {
        train: _unused_of_train(spec, experiment),
        offline.DatasetOptions: offline.unused_dataset_parameters(algorithm),
    }
    parts_given = arguments_of(spec, type(algorithm), buffer)
    given = [one for part, arguments in parts_given.items() for one in loading.add_used(part, arguments)]
    check_unused_bindings([*spec.config.bindings, *given], idle)
    algorithm.actor_file()  # raise now, not after an epoch, if the actor cannot be saved


def _unused_of_train(spec: RunSpec, experiment: Experiment) -> dict[str, str]:
    """Return the settings of `train` that have no effect on this run, with the reasons."""
    unused = unused_train_parameters(experiment.algorithm, experiment.interaction, experiment.tests, spec.training)
    if spec.start_from is not None:
        unused |= dict.fromkeys(("num_epochs", "updates_per_step"), "the run continues another one")
    elif not spec.training["num_epochs"]:
        unused |= {name: f"OfflineToOnline.{other} is in its place" for name, other in IN_ENVIRONMENT.items()}
    return unused


def bound_text(spec: RunSpec, experiment: Experiment) -> str:
    """Return the bindings of a run as a gin file: those of files and the command line, and the arguments of Python."""
    parts = arguments_of(spec, type(experiment.algorithm), experiment.buffer)
    given = {f"{part.__name__}.{name}": value for part, values in parts.items() for name, value in values.items()}
    return "\n".join([spec.config.text, *(f"{name} = {value!r}" for name, value in {**given, **spec.given}.items())])


# Resume ---------------------------------------------------------------------------------------------------------------


def read_checkpoint_of_run(folder: RunFolder) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint of a run, or None if there is none, and messages about it."""
    folder.refuse_newer()
    return checkpoints.read_latest(folder.checkpoint) if folder.has_checkpoint() else (None, [])


def is_known_to_be_same(spec: RunSpec, old: Settings) -> bool:
    """Check whether a finished run with the values `old` has the same bindings, without reading its data.

    So the contents of the data are not compared. The result is False if a binding differs, or if an extra one names no
    value that the run used. Whether it is allowed is known once the run is built.
    """
    bound = plain_values(spec.config.text)
    given = {binding.given for binding in spec.config.bindings if binding.where == COMMAND_LINE}
    return given <= old.keys() and all(
        old[name] == bound[name] or may_change(name) for name in old.keys() & bound.keys()
    )


def check_same_run(spec: RunSpec, experiment: Experiment, checkpoint: Checkpoint, bound: str) -> list[str]:
    """Raise if a checkpoint belongs to another run; return messages about bindings that differ, but may."""
    old, new = plain_values(checkpoint["config"]), plain_values(experiment.config)
    messages = _check_unchanged(checkpoint, old, new, plain_values(bound))
    if (num_epochs := planned_epochs(spec, checkpoint)) < checkpoint["num_epochs"]:
        given = f"train.num_epochs is {num_epochs}"
        if spec.then_env_steps:
            given = f"with --then_env_steps {spec.then_env_steps} the run has {num_epochs} epochs"
        raise UserError(
            f"{given}, but the run was made with {checkpoint['num_epochs']}: a resumed run may only raise this number"
        )
    if spec.then_env_steps and num_epochs > checkpoint["num_epochs"]:
        messages.append(
            f"with --then_env_steps {spec.then_env_steps} the run has {num_epochs} epochs; before, it had "
            f"{checkpoint['num_epochs']}"
        )
    if checkpoint["recorder"] is None and spec.save_dataset:
        raise UserError(
            f"--save_dataset {spec.save_dataset}: the run did not record its first steps; leave --save_dataset out"
        )
    if checkpoint["recorder"] is not None and not spec.save_dataset:
        raise UserError("the run recorded its steps so far; to resume it, add --save_dataset with the same file")
    return messages


def _check_unchanged(checkpoint: Checkpoint | None, old: Settings, new: Settings, is_bound: Settings) -> list[str]:
    was_bound = None if checkpoint is None else checkpoint.get("bound")
    try:
        return check_unchanged(old, new, None if was_bound is None else plain_values(was_bound), is_bound)
    except UserError as error:
        changed = None if checkpoint is None else tell_changed(checkpoint.get("versions"))
        if changed is None:
            raise
        raise UserError(f"{error.message} ({changed})") from error


def start_or_resume(spec: RunSpec, folder: RunFolder, plan: RunPlan, resume: bool) -> list[str]:
    """Start the recording and load the checkpoint, if there are any; return messages about both."""
    experiment, messages = plan.experiment, []
    with ExitStack() as undo:
        if spec.save_dataset is not None:  # this creates files next to the output file
            had_log = log_path(spec.save_dataset).exists()
            experiment.record(spec.save_dataset, spec.seed, resume)
            if experiment.recorder is not None and not had_log:
                undo.callback(experiment.recorder.log.remove)
        recorder, loop = experiment.recorder, experiment.loop
        if recorder is not None and recorder.message:
            messages.append(recorder.message)
        if plan.checkpoint is not None:
            began_with_networks = (spec.init or folder.details().get("init")) is not None
            messages += checkpoints.resume(plan.checkpoint, experiment, began_with_networks)
            if not ended(spec, plan.checkpoint):
                loop.stopped = False
            elif loop.epoch < planned_epochs(spec, plan.checkpoint):
                loop.stopped = True
            if loop.best_return is not None and not folder.actor_best.is_file():
                loop.best_return = None
                messages.append(f"{folder.actor_best} is missing; the best actor is chosen from the next tests")
            messages.append(f"going on in {folder.path} after epoch {loop.epoch}, step {loop.step:,}")
        elif recorder is not None:  # without a checkpoint, record again from the first step
            recorder.keep(0)
        undo.pop_all()
    if resume and not plan.status:
        messages.append(f"there is no run in {folder.path} to resume, so a new one starts")
    return messages


# Training -------------------------------------------------------------------------------------------------------------


def _train(
    spec: RunSpec,
    folder: RunFolder,
    experiment: Experiment,
    bound: str | None,
    announce: Announce,
    callbacks: Sequence[Callback],
) -> None:
    """Train to the end and announce the result; if the user stops the run, save a checkpoint and stop."""
    loop, experiment.folder = experiment.loop, folder.path
    num_epochs = experiment.num_epochs(spec.training)
    console = ConsoleLogger(f"{experiment.title} run {spec.seed}", has_train_returns=experiment.has_train_returns)
    saving = Checkpoints(folder, experiment, experiment.config, num_epochs, bound, spec.checkpoints)
    started = time.monotonic()
    with ExitStack() as stack:
        stack.callback(experiment.close)
        columns = experiment.columns + callback_columns(callbacks)
        logger = open_loggers(spec, folder, experiment, columns, console)
        stack.callback(logger.close)
        try:
            try:
                with data_warnings_announced():
                    experiment.train(logger, [*callbacks, saving])
                if experiment.recorder is not None:
                    experiment.recorder.cut()
                    experiment.recorder.merge()
                seconds = time.monotonic() - started
                picture(spec, folder, experiment, logger, console.print)
                facts = {"epochs": loop.epoch, "stopped": bool(loop.stopped), "best_test_return": loop.best_return}
                folder.note(status="finished", **facts)
            except signals.Interrupted as stop:
                folder.note(status="stopped")  # now, because a second Ctrl-C may interrupt the saving
                if stop.is_second:  # an update may be half done, so nothing is saved
                    stop.message = _stopped_at_once(folder)
                elif loop.epoch >= num_epochs or loop.stopped:
                    stop.message = f"stopped after its last step, {loop.step:,}, and saved"
                else:
                    left = num_epochs - loop.switch_epoch
                    num_steps = (loop.switch_step or 0) + left * spec.training["num_steps_per_epoch"]
                    stop.message = f"stopped at step {loop.step:,} of {num_steps:,}, and saved"
                    try:
                        saving.save()  # may be the first to find a NaN or infinity
                    except signals.Interrupted as second:
                        second.message = _stopped_at_once(folder)
                        raise second from None
                raise
        except NonFiniteError as error:
            at_step = error.at(loop.step)
            at_step.save(folder.bad_batch)
            raise at_step from None
        except EnvironmentFault as fault:
            raise fault.with_resume().written_to(folder.path) from fault.cause
    with report_errors("the summary of the run"):
        announce(f"trained in {seconds / 60.0:.1f} minutes" if seconds >= 60.0 else f"trained in {seconds:.1f} seconds")
        if why := experiment.explain_early_end(spec.training):
            announce(why)
        if experiment.recorder is not None:
            announce(f"dataset         {spec.save_dataset}")
        tell_result(folder, announce)
    try:
        signals.poll()
    except signals.Interrupted as stop:
        stop.message, stop.is_late = "is finished", True
        raise


def _stopped_at_once(folder: RunFolder) -> str:
    kept = "its last checkpoint stays" if folder.has_checkpoint() else "there is no checkpoint yet"
    return f"stopped at once; {kept}"


def open_loggers(
    spec: RunSpec, folder: RunFolder, experiment: Experiment, columns: Sequence[str], console: ConsoleLogger
) -> Loggers:
    """Open all loggers of a run; in a resumed run, they also get the rows of earlier epochs."""
    loop = experiment.loop
    logs: list[Logger] = [CSVLogger(folder.progress, columns, loop.rows), console]
    with report_errors("TensorBoard"):
        has_events = any((folder.path / "tensorboard").glob("*tfevents*"))
        events = TensorBoardLogger(folder.path, purge_step=loop.epoch_start + 1)
        for row in () if has_events else loop.rows:
            events.epoch(row)
        logs.append(events)
    for make_logger in experiment.loggers:
        with report_errors(getattr(make_logger, "__name__", "a logger")):
            logs.append(make_logger(folder.path))
    if tracking_wanted(spec.track):
        with report_errors("Weights & Biases"):
            details, model = folder.details(), experiment.imagination
            settings = with_facts(folder.path, plain_values(experiment.config))
            tracked = WandbLogger(
                folder.path,
                environment=spec.label,
                algorithm=spec.algo,
                # Weights & Biases averages over a group, so runs with other settings need another group.
                config_name=f"{details['config_name']} {hash_settings(settings)}",
                run_id=spec.seed,
                wandb_id=details["wandb_id"],
                config={name: details[name] for name in TRACKED if details.get(name) is not None}
                | typed_values(experiment.config),
                goes_online="env_step" in columns,
                model_errors=() if model is None or loop.step else model.model.facts.get("holdout_errors", ()),
                announce=console.print,
            )
            logs.append(tracked)
    return Loggers(logs)


def picture(spec: RunSpec, folder: RunFolder, experiment: Experiment, logger: Logger, announce: Announce) -> None:
    """Draw the learning curve, and record a video of the best actor if its environment can be rendered."""
    with report_errors("the learning curve"), loading.LOCK:  # matplotlib has one style for all threads
        plot_run(folder.path, folder.curve)
        logger.artifact("curve", folder.curve)
    for file in filter(Path.is_file, (folder.actor_last, folder.actor_best)):
        logger.artifact("actor", file)
    if not spec.video:
        return
    if experiment.tests is None or experiment.tests.shared is not None:  # a video needs a second environment
        return
    started = time.monotonic()
    with report_errors("the video"):
        try:
            actor = load_actor(folder.actor(), experiment.algorithm.device)
            _, videos = record_episodes(actor, spec.make_env, 1, folder.videos, "best_actor", spec.longest_episode)
        except CannotBeDrawn:  # nobody asked for the video
            pass
        except UserError as error:  # such as a constructor that raises
            announce(f"there is no video: {error}")
        else:
            logger.artifact("video", videos[0])
            if (seconds := time.monotonic() - started) >= SLOW_VIDEO:
                announce(in_python(f"the video took {seconds:.0f} seconds; --no_video leaves it out"))
