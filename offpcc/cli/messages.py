"""Messages of the training command: data, config, warnings, results, next commands."""

from __future__ import annotations

import argparse
import glob
import math
import os
import re
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import gin
import gymnasium

from offpcc.cli.arguments import imported
from offpcc.config import loading
from offpcc.config.gin_files import has_imports
from offpcc.config.loading import plain_values
from offpcc.core import is_image
from offpcc.envs.d4rl import catalog
from offpcc.envs.rendering import backend
from offpcc.training.evaluation import frames_per_second
from offpcc.training.experiment import Experiment, resolve_env_and_dataset
from offpcc.training.plotting import read_progress
from offpcc.training.run_dir import RunFolder, path_part
from offpcc.training.settings import Settings, are_same, name_settings, settings_of
from offpcc.utils.errors import UserError
from offpcc.utils.system import available_bytes

OLD_BODIES = re.compile(r"^(Hopper|HalfCheetah|Walker2d|Ant)-v[0-3]$")  # no longer available; v4 behaves like v2

MOST_NEAR = 3  # largest number of folders that a message names
LONGEST_FOLDER = 60  # letters of a folder name that a message proposes


def describe_config(options: argparse.Namespace, config: str, file: Path) -> list[str]:
    """Return the bindings of the configs and the command line that are in use, one line per class.

    The text also names the file with all values.

    Args:
        options: options of the command.
        config: all values in use, as gin writes them.
        file: the file that stores them.
    """
    if options.config is None:  # the run resumes with its own config, which binds every value
        return [*options.gin, f"all values are as the run was begun with; they are in {file}"]
    used, bound = loading.values(config), loading.values(gin.config_str())
    settings = defaultdict[str, list[str]](list)
    for name in sorted(bound.keys() & used.keys()):
        owner, _, parameter = name.rpartition(".")
        settings[owner].append(f"{parameter} = {used[name]}")
    lines = [f"  {owner or 'macros'}: {', '.join(values)}" for owner, values in settings.items()]
    source = f"{options.config}{' and --gin' if options.gin else ''}"
    return [f"settings by {source} ({len(used):,} values in all, the others are defaults: {file})", *lines]


def describe_data(options: argparse.Namespace, learner: Experiment, num_steps: int) -> list[str]:
    """Return a description of the dataset, or of the largest size of the replay buffer.

    Raises:
        UserError: it needs more memory than is free.
    """
    env, _ = resolve_env_and_dataset(options.env, options.dataset)
    available, buffer = available_bytes(), learner.buffer
    of_batch = buffer.batch_size * buffer.bytes_per_step
    if available is not None and of_batch > available:
        raise UserError(
            f"{type(buffer).__name__}.batch_size is {buffer.batch_size:,}: a batch takes {of_batch:,} bytes or more, "
            f"but {available:,} bytes of memory are free; lower it"
        )
    if learner.recording is not None:
        told = [*learner.recording.lines(learner.algorithm.has_critics)]
        if learner.algorithm.normalization is not None:
            told.append("observations are normalised by the data's mean and standard deviation")
        if env in catalog.FILES:
            told.append(f"tested in {catalog.task(env)}")
        if options.env and not env:
            told.append(f"{options.env} is not tested in any environment, so there are no tests")
        elif not env:
            one = OLD_BODIES.sub(r"\1-v4", learner.recording.recorded_in or "")
            advice = f"--env {one}, where the data was recorded, has some" if one else "--env NAME has some"
            told.append(f"no environment is named, so there are no tests; {advice}")
        return told + about_frames(env, learner)
    assert env is not None
    planned = buffer.planned_bytes(num_steps, gymnasium.spec(env.rsplit(":", 1)[-1]).max_episode_steps)
    if available is not None and planned > available:
        raise UserError(
            f"the replay buffer can come to {planned:,} bytes, but {available:,} bytes of memory are free; lower "
            f"{type(buffer).__name__}.capacity or train.num_epochs"
        )
    return [f"the replay buffer can come to {planned:,} bytes in {num_steps:,} steps", *about_frames(env, learner)]


def about_frames(env: str | None, learner: Experiment) -> list[str]:
    """Return how the simulator draws images, if it does."""
    if learner.tests is not None and learner.tests.shared is not None:
        return []  # measuring the speed needs a second environment, which must not exist
    if env and is_image(learner.algorithm.observation_shape) and "mujoco" in sys.modules:
        return [f"frames are drawn by {backend()}, {frames_per_second(env):,.0f} a second"]
    return []


def refusal(options: argparse.Namespace, folder: RunFolder, status: str, config: str | None) -> str:
    """Return why an existing run is not started, and what the user can do instead.

    Args:
        options: options of the command.
        folder: folder of the run.
        status: status of the run.
        config: the bindings of the run that the command would start; None if it cannot be built.
    """
    here = folder.run_id
    is_known = folder.config.is_file() and not (options.config and has_imports(folder.config))
    resume = command(options, folder, here, "--resume", by_own_config=is_known)
    further = command(options, folder, here, "--resume", "--gin", "train.num_epochs=N", by_own_config=is_known)
    ways = {
        "finished": [
            ("show what it learned", command(options, folder, here, "--render")),
            ("train on, to a larger number N of epochs", further),
        ],
        "unfinished": [("go on with it", resume)],
    }[status]
    difference = ""
    there = _known_settings(folder)
    if config is not None and there is not None:
        given = plain_values(config)
        if are_same(there, given):
            ways.append(("start another", command(options, folder, folder.next_free_id())))
        else:
            theirs, ours = name_settings([there, given])
            difference = f": its settings are {theirs}, those of this command {ours}"
            apart = str(folder.results / path_part(ours[:LONGEST_FOLDER] or "other"))
            elsewhere = argparse.Namespace(**vars(options) | {"results": apart})
            ways.append(
                ("train with the settings of this command, in a folder apart", command(elsewhere, folder, here))
            )
    told = "".join(f"\n  {what}:\n    {how}" for what, how in ways)
    return f"run {here} in {folder.path} is {status} and is not overwritten{difference}{told}"


def _known_settings(folder: RunFolder) -> Settings | None:
    try:
        return settings_of(folder.path)
    except UserError:
        return None


def nothing_there(options: argparse.Namespace, folder: RunFolder) -> str:
    """Return why there is no run to resume, and similar runs with a dataset or an environment that was not given."""
    name, algo = (glob.escape(path.name) for path in (folder.siblings.parent, folder.siblings))
    results, missing = folder.siblings.parent.parent, "--env" if options.dataset else "--dataset"
    pattern = f"*_from_{name}" if options.dataset else f"{name}_from_*"
    near = [] if options.env and options.dataset else sorted(results.glob(f"{pattern}/{algo}/{folder.run_id}"))
    found = [str(path) for path in near if RunFolder.at(path).status()]
    told = f"there is no run in {folder.path} to go on with"
    if found:
        return f"{told}, but in {' and '.join(found[:MOST_NEAR])}: {missing} is missing; add it"
    return f"{told}; to begin one, leave --resume out and add --config FILE.gin, such as configs/quickstart.gin"


def command(
    options: argparse.Namespace,
    folder: RunFolder,
    run_id: int | Sequence[int],
    *extra: str,
    by_own_config: bool = False,
) -> str:
    """Return the command that starts one or several runs with the same options.

    Without --config, the command uses the config in `folder`.

    Args:
        options: options of the current command.
        folder: folder of the run.
        run_id: id of the run, or ids of the runs.
        extra: words at the end of the command.
        by_own_config: whether the run resumes with its own config; the command then has no --config and no --gin.
    """
    run_ids = [run_id] if isinstance(run_id, int) else run_id
    words = [*program(), *(["--env", options.env] if options.env else [])]
    if options.dataset:
        words += ["--dataset", options.dataset]
    if options.dataset_fraction != 1.0 and "--render" not in extra:
        words += ["--dataset_fraction", str(options.dataset_fraction)]
    words += ["--algo", options.algo, *(word for module in imported(options) for word in ("--import", module))]
    if "--render" in extra:  # a saved actor needs only its folder
        words += ["--results", options.results] if options.results else []
        return shlex.join([*words, "--run_id", *map(str, run_ids), *extra])
    if not by_own_config and (options.config or "--resume" not in extra):
        words += ["--config", options.config or os.path.relpath(folder.config)]
    words += ["--run_id", *map(str, run_ids)]
    for name in ("device", "threads", "results"):
        words += [f"--{name}", str(value)] if (value := getattr(options, name)) not in (None, 1) else []
    words += ["--track"] if options.track else []
    if options.save_dataset and folder.run_id in run_ids:
        words += ["--save_dataset", str(options.save_dataset)]
    bound_anew = {text.partition("=")[0] for text in extra}
    kept = [text for text in options.gin if text.partition("=")[0].strip() not in bound_anew]
    words += ["--gin", *kept] if kept and not by_own_config else []
    return shlex.join([*words, *extra])


def program() -> list[str]:
    """Return the words that start this program in the same way again."""
    script = Path(sys.argv[0])
    if script.name == "launch.py":
        return [os.path.relpath(path) for path in (sys.executable, script)]
    return [script.name if shutil.which(script.name) else str(script)]


def tell_result(folder: RunFolder) -> None:
    """Print the final test return and the files that the user needs."""
    rows = read_progress(folder.progress)
    if rows["step"]:
        steps, mean, spread = (rows[name][-1] for name in ("step", "test/return", "test/return_std"))
    if rows["step"] and not math.isnan(mean):
        version = f" in {version}" if (version := folder.details().get("simulator")) else ""
        scores = rows.get("test/normalized_score")
        score = "" if scores is None else f", D4RL score {scores[-1]:.1f}"
        print(f"test return after {steps:,.0f} steps{version}: mean {mean:.1f}, s.d. {spread:.1f}{score}")
    print(f"learning curve  {folder.curve}")
    for video in sorted(folder.videos.glob("*.mp4"))[:1]:
        print(f"video           {video}")
    print(f"folder          {folder.path}")


def tell_finished(options: argparse.Namespace, folder: RunFolder) -> None:
    """Print the result of a finished run, and how to train another."""
    print(f"run {folder.run_id} is finished; there is nothing left to do")
    tell_result(folder)
    print(f"to train another:\n  {command(options, folder, folder.next_free_id())}")
