"""What a run says: its settings, data and sizes at the start, warnings, and its result at the end."""

from __future__ import annotations

import math
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from offpcc.config.loading import values
from offpcc.core import has_images
from offpcc.data.buffers.mixed import MixedBuffer
from offpcc.data.buffers.sequence_replay import RecurrentReplayBuffer
from offpcc.data.buffers.storage import folder_for_frames
from offpcc.envs.d4rl import catalog
from offpcc.envs.rendering import backend
from offpcc.training.analysis.run_tables import read_progress
from offpcc.training.build import (
    check_context_length,
    note_on_copying,
    note_on_data,
    note_without_data,
    note_without_memory,
    notes_on_idle,
    real_part,
)
from offpcc.training.experiment import Experiment
from offpcc.training.loggers.console import return_decimals
from offpcc.training.metrics import SUCCESS_RATE
from offpcc.training.online import OnlinePhase
from offpcc.training.run_dir import RunFolder
from offpcc.training.run_fns import ALMOST_ONE, explain_no_updates, planned_updates
from offpcc.training.spec import RunSpec
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.paths import as_path
from offpcc.utils.system import available_bytes

OLD_BODIES = re.compile(r"^(Hopper|HalfCheetah|Walker2d|Ant)-v[0-3]$")  # no longer available; v4 behaves like v2
MOST_DELAY = 4  # times the updates of an environment step; a warning reports a larger policy_delay
FAR = 10  # times the steps that learning sees together; a note reports longer episodes


def is_own_config(spec: RunSpec, file: Path) -> bool:
    """Check whether the bindings come from the run's own config, however its path is written."""
    return spec.config.file is not None and Path(spec.config.file).resolve() == file.resolve()


def describe_config(spec: RunSpec, config: str, file: Path, unused: Collection[str] = ()) -> list[str]:
    """Return the bindings that have an effect, one line per class, and the file with all values.

    `config` are all values in use, as gin writes them, and `unused` the names of those without effect on this run.
    """
    which = "the other" if spec.config.given else "all"
    if is_own_config(spec, file):  # the run resumes with its own config, which binds every value
        return [*spec.config.given, f"{which} values are those that the run was started with; they are in {file}"]
    if spec.start_from is not None and is_own_config(spec, RunFolder.at(as_path(str(spec.start_from))).config):
        taken = f"{which} values are those of {spec.start_from}, except those of OfflineToOnline"
        return [*spec.config.given, f"{taken}; they are in {file}"]
    used, bound = values(config), values(spec.config.text)
    settings = defaultdict[str, list[str]](list)
    for name in sorted((bound.keys() & used.keys()) - {*unused}):
        owner, _, parameter = name.rpartition(".")
        settings[owner].append(f"{parameter} = {used[name]}")
    lines = [f"  {owner or 'macros'}: {', '.join(bindings)}" for owner, bindings in settings.items()]
    source = spec.config.source or "the defaults"
    return [f"settings by {source} ({len(used):,} values in all, the others are defaults: {file})", *lines]


def describe_data(spec: RunSpec, experiment: Experiment) -> list[str]:
    """Return a description of the dataset, or of the largest size of the replay buffer."""
    available, buffer, phase = available_bytes(), real_part(experiment.buffer), experiment.online
    assert not isinstance(buffer, MixedBuffer)  # this is before the switch
    imagined = [] if experiment.imagination is None else experiment.imagination.lines()
    of_batch = buffer.batch_size * buffer.bytes_per_step
    if available is not None and of_batch > available:
        raise UserError(
            f"{type(buffer).__name__}.batch_size is {buffer.batch_size:,}: a batch takes {of_batch:,} bytes or more, "
            f"but {available:,} bytes of memory are free; lower it"
        )
    data = experiment.recording
    if data is not None:
        messages = [*data.lines(experiment.algorithm.has_critics), *imagined]
        messages += [f"note: {note}" for note in filter(None, [note_on_data(spec)])]
        if experiment.algorithm.normalization is not None:
            messages.append("observations are normalised by the data's mean and standard deviation")
        if spec.env in catalog.FILES:
            messages.append(f"tested in {catalog.task(spec.env)}")
        if spec.env is None and spec.dataset in catalog.FILES and not catalog.task(str(spec.dataset)):
            messages.append(f"{spec.dataset} is not tested in any environment, so there are no tests")
        elif spec.env is None:
            one = OLD_BODIES.sub(r"\1-v4", data.recorded_in or "")
            advice = (
                f"for tests, give --env {one}, where the data was recorded" if one else "for tests, give --env NAME"
            )
            messages.append(f"no environment is given, so there are no tests; {advice}")
        rate, num_steps = spec.training["updates_per_step"], _num_steps(spec)
        if num_steps and rate != 1.0:
            made = int(num_steps * rate + 1.0 - ALMOST_ONE)
            messages.append(
                f"note: {num_steps:,} steps on the data make {made:,} updates (train.updates_per_step = {rate:g})"
            )
        if phase is not None:
            messages += _describe_online(spec, experiment, phase)
        longest_recorded = int((data.rows.stops - data.rows.starts).max()) - 1  # the last row has only an observation
        return [*messages, *_describe_segments(buffer, longest_recorded), *_describe_frames(experiment)]
    longest = experiment.time_limit
    size = _planned_size(buffer, _num_steps(spec), longest)
    notes = [f"note: {note}" for note in filter(None, [note_without_data(spec)])]
    return [size, *notes, *imagined, *_describe_segments(buffer, longest), *_describe_frames(experiment)]


def _num_steps(spec: RunSpec) -> int:
    """Return the number of steps of a run before its online phase; 0 if it continues another run."""
    num_steps: int = spec.training["num_epochs"] * spec.training["num_steps_per_epoch"]
    return 0 if spec.start_from else num_steps


def _planned_size(buffer: Any, num_steps: int, longest: int | None) -> str:
    """Return how large the replay buffer of new experience can grow."""
    available, planned, name = available_bytes(), buffer.planned_bytes(num_steps, longest), type(buffer).__name__
    if available is not None and planned > available:
        raise UserError(
            f"the replay buffer can grow to {planned:,} bytes, but {available:,} bytes of memory are free; lower "
            f"{name}.capacity or train.num_epochs"
        )
    if needed := buffer.planned_file_bytes(num_steps, longest):
        folder = folder_for_frames()
        try:
            tempfile.TemporaryFile(dir=folder).close()
            free = shutil.disk_usage(folder).free
        except OSError as error:
            raise UserError(
                f"the replay buffer's images beyond {name}.memory_limit need a file in the folder {folder} "
                f"({first_line(error)}); name another folder in the environment variable TMPDIR"
            ) from error
        if needed > free:
            raise UserError(
                f"the replay buffer's images beyond {name}.memory_limit take {needed:,} bytes of disk, but {folder} "
                f"has {free:,} bytes free; lower {name}.capacity or the number of steps, raise {name}.memory_limit, or "
                f"name a folder on a larger disk in the environment variable TMPDIR"
            )
    return f"the replay buffer can grow to {planned:,} bytes in {num_steps:,} steps"


def _describe_online(spec: RunSpec, experiment: Experiment, phase: OnlinePhase) -> list[str]:
    """Return lines about the online phase."""
    options, steps_per_epoch = phase.options, spec.training["num_steps_per_epoch"]
    num_steps = phase.num_epochs(steps_per_epoch) * steps_per_epoch
    kept = f"{options.share:.0%} of each batch from the data" if options.share else "without the data"
    name, waits = type(phase.algorithm).__name__, f"the first {options.warm_up_steps:,} without updates"
    buffer = phase.buffer.online if isinstance(phase.buffer, MixedBuffer) else phase.buffer
    begins_here = spec.start_from is None and not spec.training["num_epochs"]
    if begins_here:
        waits = f"the first {options.warm_up_steps:,} at random"
    return [
        f"{'' if begins_here else 'then '}{num_steps:,} steps in {spec.env} by {name}, {kept}, {waits}",
        *(f"note: {note}" for note in filter(None, [note_on_copying(phase.algorithm)])),
        _planned_size(buffer, num_steps, experiment.time_limit),
    ]


def _describe_segments(buffer: Any, longest: int | None) -> list[str]:
    """Return a note if an agent with memory learns from segments that are far shorter than the longest episode."""
    if not isinstance(buffer, RecurrentReplayBuffer) or buffer.segment_len is None or longest is None:
        return []
    seen = buffer.segment_len + buffer.burn_in
    if longest <= FAR * seen:
        return []
    return [
        f"note: learning sees {seen} steps together, of episodes of up to {longest:,}: the agent cannot learn to "
        f"remember longer; raise RecurrentReplayBuffer.segment_len, or bind it to None to learn from whole episodes"
    ]


def _describe_frames(experiment: Experiment) -> list[str]:
    """Return how the simulator draws images, if it does."""
    is_drawn = has_images(experiment.algorithm.observation_shape) and "mujoco" in sys.modules
    return [f"frames are drawn by {backend()}"] if is_drawn and experiment.tests is not None else []


def warnings_of(spec: RunSpec, experiment: Experiment) -> list[str]:
    """Return warnings about a memory that is too long, updates that will not happen, and arguments without effect."""
    training, algorithm, phase = spec.training, experiment.algorithm, experiment.online
    plan = (experiment.interaction, _num_steps(spec), training["update_after"], training["updates_per_step"])
    of_updates = algorithm.updates_warning(planned_updates(*plan))
    if phase is not None and not of_updates:
        of_updates = phase.algorithm.updates_warning(spec.then_env_steps * phase.options.updates_per_step)
    warn_of_parts: Callable[[Any], str] = getattr(algorithm, "parts_warning", lambda buffer: "")
    warned = (
        check_context_length(algorithm, experiment.buffer),
        explain_no_updates(*plan),
        of_updates,
        explain_rare_policy_updates(spec, experiment),
        note_without_memory(spec, algorithm),
        warn_of_parts(experiment.buffer),
        *notes_on_idle(spec, experiment),
    )
    return [*filter(None, warned)]


def explain_rare_policy_updates(spec: RunSpec, experiment: Experiment) -> str:
    """Return a warning if the policy learns far less than once an environment step because of `policy_delay`, else "".

    A delay of 20 is meant for 20 updates a step, and a run takes the two from different settings.
    """
    phase, setting = experiment.online, "train.updates_per_step"
    algorithm, number = experiment.algorithm, spec.training["updates_per_step"]
    if phase is not None:
        algorithm, number = phase.algorithm, phase.options.updates_per_step
        setting = "OfflineToOnline.updates_per_step"
    elif experiment.interaction is None:
        return ""
    delay = getattr(algorithm, "policy_delay", 1)
    if delay <= MOST_DELAY * max(number, 1.0):
        return ""
    name = type(algorithm).__name__
    return (
        f"the policy learns once in {delay} updates: {name}.policy_delay is {delay}, but {setting} is {number:g}; "
        f"raise {setting}, or lower policy_delay"
    )


def tell_result(folder: RunFolder, announce: Callable[[str], None]) -> None:
    """Announce the final test return and the files that the user needs."""
    rows = read_progress(folder.progress)
    if rows["step"]:
        steps, mean, spread = (rows[name][-1] for name in ("step", "test/return", "test/return_std"))
    if rows["step"] and not math.isnan(mean):
        simulator = folder.details().get("simulator")
        version = f" in {simulator}" if simulator else ""
        scores = rows.get("test/normalized_score")
        score = "" if scores is None else f", D4RL score {scores[-1]:.1f}"
        rates = rows.get(SUCCESS_RATE)
        success = "" if rates is None else f", success rate {rates[-1]:.2f}"
        shown = [f"{value:.{return_decimals(mean)}f}" for value in (mean, spread)]
        announce(f"test return after {steps:,.0f} steps{version}: mean {shown[0]}, s.d. {shown[1]}{success}{score}")
    announce(f"learning curve  {folder.curve}")
    for video in folder.video_files()[:1]:
        announce(f"video           {video}")
    announce(f"folder          {folder.path}")
