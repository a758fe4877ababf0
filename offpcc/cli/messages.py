"""Commands that a message proposes to the user, and refusals that name them."""

import glob
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offpcc.algorithms import find_algorithm
from offpcc.algorithms.variants import TABLE
from offpcc.cli.params import default_encoders
from offpcc.config import loading
from offpcc.config.bindings import COMMAND_LINE
from offpcc.config.gin_files import CONFIGS, imports_of
from offpcc.config.synonyms import binding_hint
from offpcc.envs.tasks.atari import is_atari
from offpcc.networks import Convolutional
from offpcc.training.comparison import Settings, are_same, name_settings, settings_of_run, used_by
from offpcc.training.run_dir import RunFolder, path_part
from offpcc.training.spec import RunSpec, has_memory, resolve_env_and_dataset, run_label
from offpcc.utils.errors import UserError
from offpcc.utils.paths import import_own

DEFAULTS = CONFIGS / "defaults"  # the configs that are used if none is given; never of the working directory
LONGEST_FOLDER = 60  # letters of a folder name that a message proposes


@dataclass(frozen=True)
class TrainOptions:
    """The options of training, as the user gave them; see `offpcc train --help`."""

    algo: str
    env: str | None = None
    start_from: Path | None = None
    then_env_steps: int | None = None
    init: Path | None = None
    online: bool = False
    model: Path | None = None
    dataset: str | None = None
    dataset_fraction: float = 1.0
    dataset_steps: int | None = None
    config: str | None = None
    modules: Sequence[str] = ()
    run_id: Sequence[int] = (1,)
    gin: Sequence[str] = ()
    device: str | None = None
    threads: int = 1
    jobs: int = 1
    resume: bool = False
    render: bool = False
    record: bool = False
    save_dataset: Path | None = None
    episodes: int | None = None
    track: bool = False
    no_video: bool = False
    results: str | None = None


def refusal(options: TrainOptions, folder: RunFolder, status: str) -> str:
    """Return why an existing run is not started, and what the user can do instead.

    Raise if a config or a binding of the command is invalid: then it could not start another run either.
    """
    if options.model and not options.model.exists():
        raise UserError(f"the model {options.model} does not exist; correct --model")
    here = folder.run_id
    read = options.config or (folder.config if folder.config.is_file() else None)
    imported = [one for one in imports_of(read) if one not in options.modules]
    model = None if folder.details().get("model") else options.model  # the run knows its own
    again = replace(options, modules=(*options.modules, *imported), model=model)
    # The run's own config holds its settings, and is read without its imports.
    is_known = folder.config.is_file() and (not options.config or {*imports_of(folder.config)} <= {*again.modules})
    resume = command(again, folder, here, "--resume", by_own_config=is_known)
    how_far, longer = _longer(again, folder, here, is_known)
    ways = {
        "finished": [
            ("show what it learned", command(again, folder, here, "--render")),
            (f"continue {how_far}", longer),
        ],
        "unfinished": [("resume it", resume)],
    }[status]
    difference = ""
    if (settings := _settings(options, folder)) is not None:
        there, given = settings
        if are_same(there, given):
            ways.append(("start another", command(options, folder, folder.next_free_id())))
        else:
            theirs, ours = name_settings([there, given])
            difference = f": its settings are {theirs}, those of this command {ours}"
            apart = replace(options, results=str(folder.results / path_part(ours[:LONGEST_FOLDER] or "other")))
            ways.append(("train with the settings of this command, in another folder", command(apart, folder, here)))
    advice = "".join(f"\n  {what}:\n    {how}" for what, how in ways)
    return f"run {here} in {folder.path} is {status} and is not overwritten{difference}{advice}"


def _settings(options: TrainOptions, folder: RunFolder) -> tuple[Settings, Settings] | None:
    """Return the settings of an existing run and those of a command, from their configs; None if one is unknown."""
    try:
        there = settings_of_run(folder.path)
    except UserError:
        return None
    try:
        load_config(options, folder)  # first, because it may import the algorithm
    except UserError as error:
        if options.config or error.message.startswith(COMMAND_LINE):
            raise
        return None
    for name in [text.partition("=")[0].strip() for text in options.gin]:
        if "." not in name and not re.search(rf"%{re.escape(name)}\b", loading.current().text):
            hint = binding_hint(name) or "a binding starts with the name of a class, as in SAC.lr"
            raise UserError(f"{COMMAND_LINE}: {name} has no effect: it names no class; {hint}")
    try:
        given: dict[str, Any] = {"start_from": options.start_from, "then_env_steps": options.then_env_steps}
        given |= {"dataset_fraction": options.dataset_fraction, "dataset_steps": options.dataset_steps}
        spec = RunSpec.make(options.env or None, options.algo, dataset=options.dataset, **given)
        algorithm = find_algorithm(options.algo)
    except UserError:
        return None
    # Values in use are no bindings if they depend on the algorithm or the data, such as Imagination.length.
    bound = loading.used_values(spec.used) | loading.plain_values(spec.config.text)
    if there is not None and options.model:  # the run has the settings of the model
        bound |= {name: there[name] for name in there if name.startswith(("DynamicsModel.", "ModelTraining."))}
    return None if there is None else (there, used_by(there, bound, algorithm))


def find_folder(options: TrainOptions, run_id: int) -> RunFolder:
    """Return the folder of a run."""
    goes_online = bool(options.then_env_steps or options.start_from)
    part = options.dataset_fraction, options.dataset_steps
    label = run_label(*resolve_env_and_dataset(options.env, options.dataset), *part, goes_online)
    return RunFolder(loading.results_folder(options.results), label, options.algo, run_id)


def load_config(options: TrainOptions, folder: RunFolder) -> None:
    """Load the given config, else the config that the run was started with, else that of `default_config`."""
    file: str | Path | None = options.config
    if file == "":
        raise UserError("--config is empty; give a file, or leave --config out for the defaults")
    if not file and options.start_from and not folder.config.exists():
        folder = RunFolder.at(options.start_from)
    if not file and folder.config.exists():
        try:
            loading.load_gin_config(folder.config, options.gin, modules=options.modules, is_trusted=False)
        except UserError as error:
            if not str(error).startswith(f"{folder.config}:") or not (other := folder.made_by_another()):
                raise
            raise UserError(f"{error}. {other}: to continue the run, use that version") from error
        return
    if not file:
        if options.resume:
            missing = f"{folder.config} is missing; give the config that the run started with, by --config FILE.gin"
            raise UserError(missing if folder.status() else nothing_there(options, folder))
        file, _ = default_config(options)
    loading.load_gin_config(file, options.gin, modules=options.modules)


def default_note(options: TrainOptions, folder: RunFolder) -> str:
    """Return a note about the default config of a new run and how to change it; "" if it is not used."""
    if options.config or folder.config.exists() or options.start_from:
        return ""
    file, kind = default_config(options)
    how_far, longer = _longer(options, folder, options.run_id, True)
    lines = (
        f"no --config is given, so these are the defaults for {kind}: {file}",
        "to change them, copy that file and name the copy with --config",
        published_settings(options),
        f"`offpcc params {options.algo}` explains all names",
        f"to continue afterwards, {how_far}:\n    {longer}",
    )
    return "\n  ".join(filter(None, lines))


def _longer(
    options: TrainOptions, folder: RunFolder, run_id: int | Sequence[int], by_own_config: bool
) -> tuple[str, str]:
    """Return how far a finished run can continue, and the command."""
    if options.then_env_steps or options.start_from:
        rest = replace(options, then_env_steps=None)
        how = command(rest, folder, run_id, "--resume", by_own_config=by_own_config)
        return "to a larger number N of steps in the environment", f"{how} --then_env_steps N"
    how = command(options, folder, run_id, "--resume", "--gin", "train.num_epochs=N", by_own_config=by_own_config)
    return "to a larger number N of epochs", how


def default_config(options: TrainOptions) -> tuple[Path, str]:
    """Return the default config of a command, and the kind of training that it is for."""
    for module in options.modules:  # so that the user's algorithms are known
        import_own(module, loading.IMPORT)
    algorithm = find_algorithm(options.algo)
    if resolve_env_and_dataset(options.env, options.dataset)[1] is not None:
        return DEFAULTS / "recorded.gin", "learning from recorded data"
    if Convolutional in default_encoders(algorithm):
        return DEFAULTS / "images.gin", "agents that see images"
    if has_memory(algorithm):
        return DEFAULTS / "memory.gin", "agents with a memory"
    return DEFAULTS / "vectors.gin", "agents without a memory"


def published_settings(options: TrainOptions) -> str:
    """Return a hint at the config with published settings for such a run; "" if there is none."""
    entry = TABLE.get(options.algo)
    env, dataset = resolve_env_and_dataset(options.env, options.dataset)
    if entry is None:
        return ""
    if env is not None and is_atari(env) and entry.cls.is_discrete:
        name = f"atari_{entry.algorithm}"
        if entry.memory and entry.algorithm != "r2d2":
            name = "atari_memory" if dataset is None else "atari_data_memory"
        elif dataset is not None and not entry.cls.is_offline:
            name = "atari_data"
        return f"for Atari games, use --config configs/discrete/{name}.gin"
    file = CONFIGS / "algorithms" / f"{entry.algorithm}.gin"
    is_whole = file.exists() and "include" in file.read_text()  # the others have the algorithm's own settings only
    if dataset is not None and not entry.images and is_whole:
        return f"for the settings of its paper, use --config configs/algorithms/{entry.algorithm}.gin"
    return ""


def nothing_there(options: TrainOptions, folder: RunFolder) -> str:
    """Return why there is no run to resume, and name similar runs that also need a dataset or an environment."""
    name, algo = (glob.escape(path.name) for path in (folder.siblings.parent, folder.siblings))
    online = find_folder(replace(options, then_env_steps=1), folder.run_id)
    if not options.then_env_steps and online.status() and (steps := online.env_steps()):
        return (
            f"there is no run in {folder.path} to resume, but there is one that went on in its environment, in "
            f"{online.path}; add --then_env_steps {steps}"
        )
    results, missing = folder.siblings.parent.parent, "--env" if options.dataset else "--dataset"
    pattern = f"*_from_{name}" if options.dataset else f"{name}_from_*"
    near = [] if options.env and options.dataset else sorted(results.glob(f"{pattern}/{algo}/{folder.run_id}"))
    found = [str(path) for path in near if RunFolder.at(path).status()]
    fault = f"there is no run in {folder.path} to resume"
    if found:
        return f"{fault}, but there is one in {' and in '.join(found[:3])}; add {missing}"
    return f"{fault}; to start a new run, leave --resume out"


def command(
    options: TrainOptions, folder: RunFolder, run_id: int | Sequence[int], *extra: str, by_own_config: bool = False
) -> str:
    """Return the command that starts one or several runs with the same options, and with `extra` words at the end.

    Without --config, the command uses the config in `folder`. With `by_own_config`, the run resumes with its own
    config; the command then has no --config and no --gin.
    """
    run_ids = [run_id] if isinstance(run_id, int) else run_id
    is_shown = "--render" in extra  # a saved actor needs only its folder
    named = {
        "env": options.env,
        "from": options.start_from,
        "init": None if is_shown else options.init,
        "model": None if is_shown else options.model,
        "then_env_steps": options.then_env_steps,
        "dataset": options.dataset,
        "dataset_fraction": None if options.dataset_fraction == 1.0 else options.dataset_fraction,
        "dataset_steps": options.dataset_steps,
        "algo": options.algo,
    }
    words = [*program(), *_options(named), *_imports(options.modules)]
    if is_shown:
        return shlex.join([*words, *_options({"results": options.results}), "--run_id", *map(str, run_ids), *extra])
    if not by_own_config and (options.config or "--resume" not in extra):
        words += ["--config", options.config or os.path.relpath(folder.config)]
    words += ["--run_id", *map(str, run_ids)]
    threads = None if options.threads == 1 else options.threads
    words += _options({"device": options.device, "threads": threads, "results": options.results})
    words += ["--jobs", str(options.jobs)] if options.jobs > 1 and len(run_ids) > 1 else []
    words += ["--track"] if options.track else []
    words += ["--no_video"] if options.no_video else []
    if options.save_dataset and folder.run_id in run_ids:
        words += ["--save_dataset", str(options.save_dataset)]
    bound_anew = {text.partition("=")[0] for text in extra}
    kept = [text for text in options.gin if text.partition("=")[0].strip() not in bound_anew]
    words += ["--gin", *kept] if kept and not by_own_config else []
    return shlex.join([*words, *extra])


def _options(given: Mapping[str, Any]) -> list[str]:
    """Return the words of options that are given."""
    return [word for name, value in given.items() if value for word in (f"--{name}", str(value))]


def _imports(modules: Iterable[str]) -> list[str]:
    return [word for module in modules for word in ("--import", module)]


def resume_command(options: TrainOptions, folders: Sequence[RunFolder]) -> str:
    """Return the command that resumes runs, and starts those that have not started yet.

    Without --config, a run resumes with its own config. A run without a config starts with the default config, so the
    command names that.
    """
    started = [folder for folder in folders if folder.config.exists()]
    if options.resume and started and not options.config:
        folders = started  # the others cannot start without a config
    if not options.config and len(started) < len(folders):
        options = replace(options, config=os.path.relpath(default_config(options)[0]))
    return command(options, folders[0], [folder.run_id for folder in folders], "--resume")


def print_training(env: str | None, algo: str, file: Path, modules: Sequence[str], *more: str, note: str = "") -> None:
    """Print a command that learns from a dataset; `more` are its other options."""
    words = [*_options({"env": env, "algo": algo, "dataset": file}), *_imports(modules), *more]
    print(f"to learn from it{note}:\n  {shlex.join([*program(), *words])}")


def program() -> list[str]:
    """Return the words that start this program in the same way again."""
    script = Path(sys.argv[0])
    if script.name == "launch.py":
        return [os.path.relpath(path) for path in (sys.executable, script)]
    if script.name in ("__main__.py", "default_worker.py"):  # the second is Ray's
        return [os.path.relpath(sys.executable), "-m", "offpcc"]
    return [script.name if shutil.which(script.name) else str(script)]
