"""Writing, verifying and loading of checkpoints, and the callback that writes them. `load` reads a saved learner.

A checkpoint is the file ``checkpoint.pt`` and the files in ``checkpoint_parts`` that it names. These hold the chunks of
the replay buffer. The previous checkpoint is kept as ``checkpoint_before.pt``.
"""

from __future__ import annotations

import ast
import math
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.agent import save_actor
from offpcc.config import loading
from offpcc.config.bindings import explains_calls, refuse_unknown
from offpcc.config.registry import from_specification, is_raised_by_own_class
from offpcc.config.validation import NonnegativeInteger
from offpcc.core import Chunk
from offpcc.data import Dataset
from offpcc.data.buffers.base import BufferBase
from offpcc.data.buffers.snapshot import ChunkFile, check_chunk, read_chunk, remove_others, write_chunks
from offpcc.data.offline import comparable
from offpcc.envs.make import EnvFunction
from offpcc.training.build import build_run, closed_on_failure, real_part
from offpcc.training.callbacks import Callback, Run
from offpcc.training.comparison import other_networks
from offpcc.training.experiment import CHECKPOINT_FORMAT, EPISODE_STATE, Experiment
from offpcc.training.online import OnlineOptions, OtherNetworksError, normalize_alike, other_values, take_over
from offpcc.training.run_dir import RunFolder, parts_folder, previous, source_of
from offpcc.training.run_fns import TRAIN_SETTINGS, check_settings
from offpcc.training.spec import EVERY_MINUTE, Arguments, CheckpointOptions, OwnLoggers, RunSpec, torch_settings
from offpcc.utils.errors import UserError, first_line, for_python, in_python, print_to_stderr
from offpcc.utils.paths import as_path, shown
from offpcc.utils.rng import GLOBAL_LOCK, cuda_states
from offpcc.utils.tensor_files import FileError, find_misfit, read_tensors, refuse_unreadable, write_tensors
from offpcc.utils.version import tell_changed

NOT_A_STATE = (AttributeError, KeyError, MemoryError, RuntimeError, SyntaxError, TypeError, ValueError)


class Checkpoint(dict[str, Any]):
    """The content of a checkpoint's file. The chunks of the buffer stay in their files until `resume` reads them.

    Raises:
        FileError: entries of a checkpoint are missing or have the wrong type.
    """

    def __init__(self, content: dict[str, Any], file: Path) -> None:
        super().__init__(content)
        self.file = file
        match content:
            case {
                "buffer": {"parts": list(parts)},
                "loop": {"step": int(), "epoch": int(), "stopped": bool()},
                "config": str(),
                "num_epochs": int(),
                "recorder": _,
            }:
                self.parts = [ChunkFile.of(described, file) for described in parts]
            case _:
                raise FileError(f"{file} does not have the content of a checkpoint", "put it back from a copy")


def save_checkpoint(file: Path, experiment: Experiment, config: str, num_epochs: int, bound: str | None = None) -> None:
    """Write all that an exact resume needs. Of the buffer, write only the chunks that changed since the last time.

    The existing checkpoint is kept as `previous(file)`, but only if this experiment wrote it or was loaded from it.
    Other checkpoints are not known to be valid. `config` holds all values in use, as a gin file, and `bound` the
    bindings among them; None if they are not known. `num_epochs` are those that are planned.

    Raises:
        OSError: a file cannot be written. The existing checkpoint stays.
    """
    folder, saved = parts_folder(file), experiment.saved
    parts = write_chunks(folder, experiment.buffer.chunks(), saved)
    metadata = experiment.buffer.metadata()
    refuse_unreadable(metadata, f"{type(experiment.buffer).__name__}.metadata()")
    content = {
        "kind": "checkpoint",
        "format": CHECKPOINT_FORMAT,
        **experiment.state_dict(),
        "buffer": {**metadata, "parts": [list(part) for _, part in parts.values()]},
        "recorder": None if experiment.recorder is None else experiment.recorder.state_dict(),
        "global_generators": global_generators(),
        "config": config,
        "bound": bound,
        "num_epochs": num_epochs,
    }
    before, known = previous(file), saved.checkpoints
    write_tensors(file, content, before if file in known else None)
    kept = known[file] if file in known else known.get(before)  # a buffer of recorded data has no parts
    saved.parts, saved.checkpoints = parts, {file: frozenset(part.name for _, part in parts.values())}
    if kept is None:
        before.unlink(missing_ok=True)
    else:
        saved.checkpoints[before] = kept
    remove_others(folder, frozenset[str]().union(*saved.checkpoints.values()))


def read_checkpoint(file: Path) -> Checkpoint:
    """Read a checkpoint and verify it with its buffer chunks. No code in the file is executed.

    Raises:
        FileError: the checkpoint is missing, damaged, not from this library, or of another format.
    """
    checkpoint = Checkpoint(read_tensors(file, "checkpoint", CHECKPOINT_FORMAT, needs_seal=True), file)
    for part in checkpoint.parts:
        check_chunk(parts_folder(file), part)
    return checkpoint


def read_latest(file: Path) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint, or the previous one if it cannot be used, and messages about that."""
    try:
        return read_checkpoint(file), []
    except FileError as error:
        newer = error
    before = previous(file)
    if not os.path.lexists(before):
        raise UserError(f"{newer.fault}, and there is no checkpoint before it; {newer.remedy}, or start another run")
    try:
        checkpoint = read_checkpoint(before)
    except FileError as older:
        raise UserError(f"{newer.fault}, and {older.fault}; {newer.remedy}, or start another run") from older
    return checkpoint, [
        f"{newer.fault}; the run continues from the checkpoint before it, at step {checkpoint['loop']['step']:,}"
    ]


def resume(checkpoint: Checkpoint, experiment: Experiment, began_with_networks: bool = False) -> list[str]:
    """Load a checkpoint into the parts of a run, and return messages about everything that is not exact.

    `began_with_networks` is whether the run began with `take_networks`.

    Raises:
        UserError: the checkpoint does not fit this run. Any other exception is a bug.
    """
    if (switch_step := checkpoint["loop"].get("switch_step")) is not None:
        experiment.go_online(switch_step)
    _normalize_and_begin(checkpoint, experiment, began_with_networks)
    with _explain_misfit(checkpoint, checkpoint.file, experiment, "start another run"):
        messages = _load(checkpoint, experiment)
        try:
            with GLOBAL_LOCK:
                set_global_generators(checkpoint["global_generators"])
        except NOT_A_STATE as error:
            raise UserError(
                f"{checkpoint.file} does not fit the run that is built here (no states of the global random "
                f"generators: {first_line(error)}); use the code that wrote it, or start another run"
            ) from error
    return messages


def _normalize_and_begin(checkpoint: Checkpoint, experiment: Experiment, began_with_networks: bool) -> None:
    """Normalise observations as the run of a checkpoint did, and let its schedules begin where they began."""
    if isinstance(experiment.algorithm, ActorCritic):  # other algorithms have no such settings
        normalize_alike(experiment.algorithm, _normalized(checkpoint), str(checkpoint.file))
    if began_with_networks:
        experiment.algorithm.begin_online()


def continue_online(checkpoint: Checkpoint, experiment: Experiment) -> None:
    """Let an experiment go on in its environment from the checkpoint of a run that learned from the same data."""
    source = str(checkpoint.file.parent)
    saved = checkpoint["buffer"].get("real", checkpoint["buffer"])  # of a run with a model, without what it imagined
    buffer: Any = real_part(experiment.buffer)
    if checkpoint["loop"].get("switch_step") is not None or not saved.get("recorded"):
        raise UserError(f"{source} learned in its environment; --from needs a run that learned from recorded data only")
    here = buffer.metadata()["recorded"]
    if comparable(saved["recorded"]) != comparable(here):
        raise UserError(
            f"{source} learned from {saved['recorded']}, but the data here are {here}: give the data of that run, and "
            f"an environment with the same observations and actions"
        )
    if text := other_values(experiment.algorithm, checkpoint.get("values", {}), source):
        raise UserError(f"{text}; give the same here")
    buffer.load({**saved, "recorded": here}, 0, lambda number, chunk: None)
    _take_over(checkpoint, experiment)
    experiment.loop.load_state_dict(checkpoint["loop"])
    experiment.loop.stopped = False
    experiment.go_online()


def take_networks(checkpoint: Checkpoint, experiment: Experiment) -> str:
    """Let an experiment start from the networks of another run. Return why its critics' values are others, or ""."""
    source = str(checkpoint.file.parent)
    algorithm = experiment.algorithm
    own = {name: algorithm.stateful_parts().get(name) for name in ("noise", "epsilon")}
    states = {name: part.state_dict() for name, part in own.items() if part is not None}
    _take_over(checkpoint, experiment)
    for name, state in states.items():  # of this run's seed, and from the first step on
        algorithm.stateful_parts()[name].load_state_dict(state)
    algorithm.begin_online()  # schedules start anew
    return other_values(algorithm, checkpoint.get("values", {}), source)


def _take_over(checkpoint: Checkpoint, experiment: Experiment) -> None:
    """Call `take_over` for a checkpoint; if the networks differ, name the settings that make them differ, if known."""
    algorithm, source = experiment.algorithm, str(checkpoint.file.parent)
    try:
        take_over(algorithm, checkpoint["algorithm"], source, _normalized(checkpoint))
    except OtherNetworksError as error:
        settings = (loading.plain_values(config) for config in (checkpoint["config"], experiment.config))
        if not (told := other_networks(*settings)):
            raise
        raise UserError(f"{type(algorithm).__name__} cannot go on from {source}: {told}; give the same here") from error


def _normalized(checkpoint: Checkpoint) -> bool | str:
    """Return how the run of a checkpoint normalised observations; see `online.normalizes`."""
    parts = checkpoint["algorithm"]
    kind: bool | str = checkpoint.get("normalized", "normalization" in parts) or "state_normalization" in parts
    return kind


@contextmanager
def _explain_misfit(content: Mapping[str, Any], file: Path, experiment: Experiment, remedy: str) -> Iterator[None]:
    """Turn an exception from a file that does not fit the parts of a run into a `UserError`.

    `remedy` is what to do if the code is the same.

    Raises:
        UserError: the file does not fit. Any other exception is a bug.
    """
    parts = {"algorithm": experiment.algorithm, "interaction": experiment.interaction, "loop": experiment.loop}
    expected = {name: None if part is None else part.state_dict() for name, part in parts.items()}
    if content.get("buffer") is not None:
        chunks = "parts" if isinstance(content, Checkpoint) else "chunks"
        expected["buffer"] = {**experiment.buffer.metadata(), chunks: []}
    elif (interaction := expected["interaction"]) is not None:
        interaction |= dict.fromkeys(EPISODE_STATE)  # not saved
    try:
        yield
    except (OSError, UserError):
        raise
    except Exception as error:
        faults = (find_misfit(part, content.get(name), name) for name, part in expected.items())
        if (fault := next(filter(None, faults), "")) == "":
            raise
        changed = tell_changed(content.get("versions"))
        raise UserError(
            f"{file} does not fit the run that is built here ({fault}); use the code that wrote "
            f"it{f' ({changed})' if changed else ''}, or {remedy}"
        ) from error


def _differences(content: Mapping[str, Any], experiment: Experiment) -> list[str]:
    """Return messages about versions, threads and a device that differ from those in a file."""
    messages = []
    if (changed := tell_changed(content.get("versions"))) is not None:
        messages.append(f"this resume is not exact: {changed}, and another version may round differently")
    if content["threads"] != torch.get_num_threads():
        messages.append(
            f"this resume is not exact: the run used {content['threads']} threads, this process uses "
            f"{torch.get_num_threads()}; use --threads {content['threads']}"
        )
    if content["device"] != experiment.algorithm.device.type:
        messages.append(
            f"this resume is not exact: the run used {content['device']}, this process uses "
            f"{experiment.algorithm.device.type}"
        )
    return messages


@explains_calls
def load(
    file: str | Path,
    env: str | EnvFunction | None = None,
    *,
    dataset: str | Path | Dataset | None = None,
    then_env_steps: NonnegativeInteger | None = None,
    algorithm: Arguments | None = None,
    device: str | torch.device = "cpu",
    loggers: OwnLoggers | None = None,
) -> Experiment:
    """Read a learner from a file of `Experiment.save` or from the folder of a run; nothing in them is executed.

    `train` continues from it. The file holds all settings but loggers, so gin's bindings do not matter, except for
    `then_env_steps`. Without the buffer, the episodes start again, and the first updates draw from the few transitions
    that the buffer then holds. A folder gives the learner of its last checkpoint, with the buffer, and is not changed.

    Args:
        file: the file, or the folder of a run.
        env: see `offpcc.build`; None for the environment of this name in the file. A learner whose environment a
            function makes needs the function again.
        dataset: the dataset again, if the learner learns from one.
        then_env_steps: environment steps in which learning goes on after the dataset; see `offpcc.build`. None for
            those of the learner. For a learner without such steps, gin's bindings of `OfflineToOnline` are used.
        algorithm: other learning rates than those of the file, such as ``{"lr": 1e-4}``. Adam's moments and the
            numbers of updates, on which schedules depend, are those of the file.
        device: the device of the networks.
        loggers: see `offpcc.build`; they are not in the file.

    Raises:
        UserError: the file cannot be read, is of another kind or format, or does not fit the environment or the
            dataset; it needs a class that is not imported; or an argument is invalid.
    """
    if others := [name for name in algorithm or () if not name.endswith("lr")]:
        raise UserError(
            f"load(algorithm=...) takes learning rates, such as lr, but not {others[0]}: the other settings are those "
            f"of the file; leave it out, or train a new run with the networks of another, by RunSpec.make(init=FOLDER)"
        )
    path, messages = as_path(file, "file"), list[str]()
    content: dict[str, Any]
    if path.is_dir():
        content, messages = _read_run(path)
    else:
        content = read_tensors(path, "learner", CHECKPOINT_FORMAT, needs_seal=True)
    match content:
        case {
            "algorithm": dict(),
            "buffer": dict() | None,
            "interaction": dict() | None,
            "loop": dict(),
            "config": str(config),
            "settings": dict(settings),
            "asked": (_, _) | None,
            "threads": int(),
            "device": str(),
            "spec": {
                "env": str() | None as known,
                "has_function": bool(has_function),
                "dataset": str() | None as data,
                "dataset_fraction": float(),
                "algo": str(),
                "seed": int(),
                "threads": int() | None as threads,
                "algorithm": dict(),
                "buffer": dict(),
                "environments": dict(),
            } as saved,
        }:
            pass
        case _:
            faulty = RunFolder.at(path).record if path.is_dir() else path
            raise FileError(f"{faulty} does not have the content of a learner", "put it back from a copy")
    if env is None and has_function:
        raise UserError(f"{path}: a function made the environment, {shown(str(known))}; give it again, by env=")
    if dataset is None and data is not None:
        raise UserError(f"{path}: the learner learns from {shown(data)}; give the data again, by dataset=")
    if env is None and known is not None:
        env = known.rsplit(":", 1)[-1]  # a file must not choose what is imported
    refuse_unknown("train", settings, TRAIN_SETTINGS)
    check_settings(**settings)
    if then_env_steps and not saved.get("then_env_steps"):
        with loading.LOCK:
            bound, usual = OnlineOptions.from_gin().values(), OnlineOptions().values()
        config += "".join(
            f"OfflineToOnline.{name} = {value!r}\n" for name, value in bound.items() if value != usual[name]
        )
    with for_python(), loading.same_bindings():
        loading.load_text(config, f"{path}: its settings")
        try:
            arguments = {name: from_specification(saved[name]) for name in ("algorithm", "buffer", "environments")}
        except (KeyError, TypeError, ValueError) as error:  # constructors may raise anything for the file's arguments
            if is_raised_by_own_class(error):
                raise
            raise FileError(
                f"{path} does not describe a learner ({first_line(error)})", "put it back from a copy"
            ) from error
        arguments["algorithm"] |= algorithm or {}
        facts = {name: saved[name] for name in ("algo", "seed", "threads", "dataset_fraction")}
        facts |= {name: saved.get(name) for name in ("dataset_steps", "model")}
        facts["then_env_steps"] = saved.get("then_env_steps", 0) if then_env_steps is None else then_env_steps
        if dataset is not None and not facts["then_env_steps"]:
            arguments["environments"] = {}  # the learner goes online no more
        spec = RunSpec.make(env, **facts, **arguments, dataset=dataset, device=device, loggers=loggers)
        experiment = build_run(spec)
    with closed_on_failure(experiment):
        if (switch_step := content["loop"].get("switch_step")) is not None:
            if then_env_steps == 0:
                raise UserError(
                    f"then_env_steps is 0, but the learner has already made {content['loop']['step'] - switch_step:,} "
                    f"steps in its environment; give more steps, or leave then_env_steps out"
                )
            if algorithm and experiment.online is not None:
                online, before = (type(one).__name__ for one in (experiment.online.algorithm, experiment.algorithm))
                if online != before:
                    raise UserError(
                        f"{path}: the learner already learns by {online}, and {', '.join(algorithm)} would be "
                        f"arguments of {before}; leave them out"
                    )
            experiment.go_online(switch_step)
        if isinstance(content, Checkpoint):
            _normalize_and_begin(content, experiment, bool(content["began_with_networks"]))
        remedy = "give the environment and the data that it learned from"
        if algorithm:
            remedy += f", or leave out {', '.join(algorithm)}"
        with torch_settings(experiment.algorithm.device, threads), _explain_misfit(content, path, experiment, remedy):
            for message in [*messages, *_load(content, experiment)]:
                print_to_stderr(in_python(message))
    experiment.settings, experiment.asked = settings, content["asked"]
    experiment.steps_per_epoch = content.get("steps_per_epoch")
    if isinstance(content, Checkpoint):
        trained = spec.training
        experiment.asked = trained.get("num_epochs"), trained.get("stop_return")
        experiment.steps_per_epoch = trained["num_steps_per_epoch"]
    return experiment


def _read_run(path: Path) -> tuple[Checkpoint, list[str]]:
    """Return the last checkpoint of the run in a folder, with what the file of a learner holds, and messages about it.

    Raises:
        UserError: there is no run in the folder, or it cannot be read.
    """
    run = RunFolder.at(path)
    if not run.has_checkpoint():
        remedy = "give the folder of a run, such as results/ENV/ALGO/1, or the file of learner.save"
        if run.actor_best.is_file() or run.actor_last.is_file():
            remedy = f"its actor, without critics and buffer, is offpcc.load_run({str(path)!r}).agent()"
        raise UserError(f"{path} is a folder without a checkpoint; {remedy}")
    run.refuse_newer()
    checkpoint, messages = read_latest(run.checkpoint)
    facts = run.details()
    data = facts.get("dataset")
    names = ("env", "algo", "seed", "threads", "dataset_fraction", "dataset_steps", "model")
    spec = {name: facts.get(name) for name in names} | {"algorithm": {}, "buffer": {}, "environments": {}}
    spec["dataset"] = str(source_of(data)) if isinstance(data, dict) else None
    spec |= {"has_function": bool(facts.get("env_made")), "then_env_steps": run.env_steps() or 0}
    checkpoint |= {"spec": spec, "settings": {}, "asked": None, "began_with_networks": facts.get("init") is not None}
    return checkpoint, messages


def _load(content: Mapping[str, Any], experiment: Experiment) -> list[str]:
    """Load a checkpoint, or the file of a learner; return messages about everything that is not exact."""
    buffer: Any = experiment.buffer
    experiment.algorithm.load_state_dict(content["algorithm"])
    if isinstance(content, Checkpoint):
        load_buffer(content, experiment)
    elif content["buffer"] is not None:
        BufferBase.load_state_dict(buffer, content["buffer"])
    if experiment.imagination is not None:
        experiment.imagination.load_state_dict(content["imagination"])
    experiment.loop.load_state_dict(content["loop"])
    decay_steps = content.get("decay_steps")  # as planned at the switch; the phase may be longer now
    if experiment.online is not None and isinstance(decay_steps, int) and decay_steps > 0:
        experiment.online.decay.num_steps = decay_steps
    messages = _differences(content, experiment)
    if experiment.recorder is not None:  # before the interaction, which may truncate its episodes
        experiment.recorder.load_state_dict(content["recorder"])
    if (interaction := experiment.interaction) is not None:
        if message := interaction.load_state_dict(content["interaction"]):
            messages.append(message)
        if content["buffer"] is None:
            interaction.environments.reseed(interaction.num_steps)
    return messages


def load_buffer(checkpoint: Checkpoint, experiment: Experiment) -> None:
    """Read the chunks into the buffer, and remember their files so that the next checkpoint can reuse them."""
    buffer, parts, folder = experiment.buffer, checkpoint.parts, parts_folder(checkpoint.file)
    saved = experiment.saved
    saved.parts = {}

    def fill(number: int, chunk: Chunk) -> None:
        part = parts[number]
        read_chunk(folder, part, chunk)
        saved.parts[chunk.key] = chunk.version, part

    buffer.load(checkpoint["buffer"], sum(part.num_bytes for part in parts), fill)
    saved.checkpoints = {checkpoint.file: frozenset(part.name for part in parts)}


def global_generators() -> dict[str, Any]:
    """Return the states of the global random generators. offpcc does not use them, but a user's code may."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # a tuple for the legacy generator
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda_states(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, gauss],
        "python": repr(random.getstate()),
    }


def set_global_generators(states: dict[str, Any]) -> None:
    """Set the global random generators to the states from `global_generators`.

    Raises:
        ValueError: they are no such states; likewise all of `NOT_A_STATE`.
    """
    torch.set_rng_state(states["torch"])
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    kind, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    random.setstate(ast.literal_eval(states["python"]))


class Checkpoints(Callback):
    """Callback that saves checkpoints, the best actor at the ends of epochs, and the last actor at the end of the run.

    A checkpoint is written when any of the three intervals has passed, and at the end of the run. The intervals do not
    affect the results of the run, with one exception: on a GPU with ``nonfinite = "skip"``. There the counts of updates
    for schedules and delays leave out a skipped update only from the next report or checkpoint on.

    A checkpoint is always written after `last_epoch`. `config` and `bound` are those of `save_checkpoint`.
    """

    def __init__(
        self,
        folder: RunFolder,
        experiment: Experiment,
        config: str,
        last_epoch: int,
        bound: str | None = None,
        intervals: CheckpointOptions = EVERY_MINUTE,
    ) -> None:
        self.folder, self.experiment, self.config, self.bound = folder, experiment, config, bound
        self.last_epoch, self.every = last_epoch, intervals.every
        self.every_steps = intervals.every_steps or math.inf
        self.every_seconds = math.inf if intervals.every_minutes is None else 60.0 * intervals.every_minutes
        self._schedule()

    def _schedule(self) -> None:
        """Set when the next checkpoint is due. Steps count from the run's start, so a resume does not shift them."""
        self._due_step = (self.experiment.loop.step // self.every_steps + 1) * self.every_steps
        self._due_time = time.monotonic() + self.every_seconds

    def on_progress(self, run: Run) -> None:
        """Write a checkpoint if one is due by steps or minutes, or if a callback ends the training here."""
        if run.loop.stopped or run.loop.step >= self._due_step or time.monotonic() >= self._due_time:
            self.save()

    def on_epoch(self, run: Run) -> None:
        """Save the best actor, then a checkpoint if one is due or if an earlier callback raised.

        In this order, the saved actor is never older than the checkpoint with its return. Without tests there is no
        best actor, and the current one is saved as the last.
        """
        if run.loop.is_best:
            save_actor(self.experiment.algorithm, self.folder.actor_best)
        elif run.loop.best_return is None:
            save_actor(self.experiment.algorithm, self.folder.actor_last)
        is_due = self.every is not None and run.loop.epoch % self.every == 0
        if is_due or run.loop.epoch == self.last_epoch or run.loop.stopped or run.error is not None:
            self.save()

    def on_end(self, run: Run) -> None:
        """Save the actor after the last update; also a checkpoint, if a callback raised before the online phase."""
        save_actor(self.experiment.algorithm, self.folder.actor_last)
        if run.error is not None and run.loop.epoch < self.last_epoch and not run.loop.stopped:
            self.save()

    def save(self) -> None:
        """Write a checkpoint now."""
        save_checkpoint(self.folder.checkpoint, self.experiment, self.config, self.last_epoch, self.bound)
        self._schedule()
