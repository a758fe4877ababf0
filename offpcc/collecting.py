"""The command that records a data set: episodes of an actor or of random actions, as D4RL's HDF5, and as Minari's.

Episode i follows from the seed and i alone: where it begins and all that is random in it is drawn from generators that
are made from these two. So a recording that was killed and gone on with holds, byte for byte, what it would have held
otherwise, provided that the environment carries nothing over from one episode to the next (`offpcc check` tells).
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import inspect
import os
import random
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from offpcc import configuration
from offpcc.algorithms import ALGORITHMS, ActorCritic
from offpcc.assembly import load_actor
from offpcc.commands import choose_device, place
from offpcc.core import Memory, Step, is_image
from offpcc.data.recorder import (
    Ending,
    Recorded,
    Recorder,
    check_new,
    check_output,
    check_same,
    is_unfinished,
    read_episodes,
    read_finished,
    remove_leftovers,
    settings_of,
    shards_folder,
)
from offpcc.domains.making import make
from offpcc.domains.wrappers import UnitAction
from offpcc.environments import name_of
from offpcc.errors import UserError, first_line
from offpcc.interaction import refuse_endless
from offpcc.learning import Noise
from offpcc.runs import RunFolder
from offpcc.showing import open_environment
from offpcc.training import program

RANDOM = "random"
STREAM = 5  # tells what is drawn here from what else is drawn with the same seed
REDRAWN_AFTER = 0.2  # seconds
MINARI_ROOT = "MINARI_DATASETS_PATH"  # the environment variable by which Minari finds its data sets
MINARI_BLOCK = 2**25  # bytes of observations that are handed to Minari at a time


class Seeds(NamedTuple):
    """What an episode's randomness comes from."""

    reset: int
    actions: int  # random ones
    noise: int  # of the agent
    others: int  # the process's global generators, for environments and networks of a user's own

    @classmethod
    def of(cls, seed: int, episode: int) -> Seeds:
        """Those of an episode, counted from 0."""
        drawn = np.random.SeedSequence((seed, episode, STREAM)).generate_state(4) >> 1
        return cls(*(int(number) for number in drawn))


class Transition(NamedTuple):
    """A step, as `Recorder.push` takes it."""

    observation: np.ndarray
    action: np.ndarray
    reward: float
    next_observation: np.ndarray
    terminated: bool
    truncated: bool


def collect(options: argparse.Namespace) -> int:
    """Record a data set, tell what is in it, and how to learn from it; the exit code.

    Raises:
        UserError: something given is at fault, and nothing was made; or what was begun cannot be written to its end.
    """
    file: Path = options.out.expanduser()
    check_output(file)
    if not options.resume:
        check_new(file)
    there = read_finished(file).num_steps if file.is_file() and not is_unfinished(file) else 0
    if there > options.steps:
        raise UserError(
            f"--steps is {options.steps:,}, but {file} has {there:,} already; to learn from a part of them, give "
            f"training a --dataset_fraction"
        )
    is_finished = there == options.steps
    if options.minari:
        check_minari(options.minari, may_exist=is_finished)
    name, actor, facts = find_actor(options)
    with closing(open_environment(options.env, actor) if actor else make(options.env)) as env:
        if options.minari:
            check_lossless(options.minari, env)
        if is_finished:
            check_same(settings_of(env, facts), read_finished(file).settings, file)
            remove_leftovers(shards_folder(file))  # of a process that was killed in its last moments
            print(f"{file} is finished, with {there:,} steps; there is nothing left to record")
        else:
            print(f"recording {name} in {place(options.env)}", flush=True)
            with closing(Recorder(file, env, metadata=facts, resume=options.resume)) as recorder:
                try:
                    record(recorder, env, actor, options)
                    tell(recorder.merge())
                except KeyboardInterrupt:
                    print(
                        f"offpcc: stopped; {sum(recorder.lengths):,} steps of {recorder.num_episodes:,} finished "
                        f"episodes are kept, and the same command with --resume goes on",
                        file=sys.stderr,
                    )
                    return 130
        if options.minari and not minari_folder(options.minari).exists():
            write_minari(options.minari, file, env, options.seed)
        algorithm = "ciql" if is_image(env.observation_space.shape or ()) else "iql"
    print(f"data set {file}", *([f"Minari's minari:{options.minari}"] if options.minari else []), sep="\n")
    words = ["--env", options.env, "--algo", algorithm, "--dataset", str(file)]
    print(f"to learn from it:\n  {shlex.join([*program(), *words, '--config', 'configs/algorithms/iql.gin'])}")
    return 0


def find_actor(options: argparse.Namespace) -> tuple[str, ActorCritic | None, dict[str, Any]]:
    """Who acts: what to call it, the agent if there is one, and what a recording tells of it.

    gin knows from here on what the environment is made of.

    Raises:
        UserError: there is no such actor, or an option has no effect on it.
    """
    facts = {"env": options.env, "seed": options.seed, "deterministic": options.deterministic}
    if options.actor == RANDOM:
        if options.deterministic:
            raise UserError("--deterministic has no effect on random actions; leave it out, or name an actor")
        configuration.load(options.config, [])
        return "random actions", None, {**facts, "algorithm": RANDOM, "actor": RANDOM, "config": made_by(options.env)}
    file = Path(options.actor).expanduser()
    if not file.exists():
        raise UserError(
            f"there is no actor {options.actor}; give a run's folder, such as results/ENV/ALGO/1, an actor's file, or "
            f"the word {RANDOM}"
        )
    run = RunFolder.at((file if file.is_dir() else file.parent).resolve())
    configuration.load_for_actor(options.config, run.config)
    config = made_by(options.env)
    file = file / run.actor().name if file.is_dir() else file
    actor = load_actor(file, device := choose_device(options))
    algorithm = next((name for name, cls in ALGORITHMS.items() if cls is type(actor)), type(actor).__name__)
    told = {
        "algorithm": algorithm,
        "actor": str(file),
        "actor_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "device": device.type,  # another one, or other threads, may round otherwise
        "threads": torch.get_num_threads(),
        "config": config,
    }
    return str(file), actor, {**facts, **told}


def made_by(env: str) -> str:
    """The bindings of gin's that take part in making the environment."""
    make(env).close()
    return configuration.operative()


def record(
    recorder: Recorder, env: gymnasium.Env[Any, Any], actor: ActorCritic | None, options: argparse.Namespace
) -> None:
    """Play, from where the recording stands, until it has all its steps; the last episode is cut there.

    Raises:
        UserError: an episode does not end, or cannot be written.
    """
    recorder.keep(int(np.searchsorted(np.cumsum(recorder.lengths), options.steps, side="right")))
    num_steps = sum(recorder.lengths)
    with showing_progress(num_steps, options.steps) as show:
        while num_steps < options.steps:
            seeds = Seeds.of(options.seed, recorder.num_episodes)
            for transition in play(env, actor, seeds, options.deterministic):
                recorder.push(*transition)
                num_steps += 1
                show(num_steps, recorder.num_episodes)
                if num_steps == options.steps:
                    break
    recorder.cut()


def play(
    env: gymnasium.Env[Any, Any], actor: ActorCritic | None, seeds: Seeds, deterministic: bool = False
) -> Iterator[Transition]:
    """The steps of an episode; with an agent, its memory is kept over the whole of it.

    Raises:
        UserError: it does not end.
    """
    random.seed(seeds.others)
    np.random.seed(seeds.others)
    torch.manual_seed(seeds.others)
    draws = np.random.default_rng(seeds.actions)
    if actor is not None:
        actor.noise = Noise(seeds.noise, actor.device)
    shape = env.action_space.shape or ()
    observation = np.array(env.reset(seed=seeds.reset)[0])
    action, reward = np.zeros((1, int(np.prod(shape))), np.float32), 0.0
    memory: Memory = None
    length = 0
    while True:
        if actor is None:
            action = draws.uniform(-1.0, 1.0, action.shape).astype(np.float32)
        else:
            step = Step(observation[None], action, np.full((1, 1), reward, np.float32), np.array([length == 0]))
            action, memory = actor.act(step, memory, deterministic=deterministic)
        following, received, terminated, truncated, _ = env.step(action[0].reshape(shape))
        following, reward = np.array(following), float(received)
        yield Transition(observation, action[0], reward, following, bool(terminated), bool(truncated))
        observation, length = following, length + 1
        if terminated or truncated:
            return
        refuse_endless(functools.partial(name_of, env), length)


@contextmanager
def showing_progress(num_steps: int, total: int) -> Iterator[Any]:
    """Give a function of the steps and the episodes done, which shows them: a bar, or without a terminal a few lines.

    The bar is drawn by hand, as a thread of its own would take time from playing.
    """
    console = Console()
    is_live = console.is_terminal and not console.is_dumb_terminal
    columns = (BarColumn(None), MofNCompleteColumn(), TextColumn("steps, {task.fields[episodes]:,} episodes"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console, auto_refresh=False, expand=True)
    task = bar.add_task("", total=total, completed=num_steps, episodes=0)
    drawn, told = 0.0, 10 * num_steps // total

    def show(num_steps: int, num_episodes: int) -> None:
        nonlocal drawn, told
        if is_live and (time.monotonic() - drawn > REDRAWN_AFTER or num_steps == total):
            drawn = time.monotonic()
            bar.update(task, completed=num_steps, episodes=num_episodes, refresh=True)
        elif not is_live and 10 * num_steps // total > told:
            told = 10 * num_steps // total
            print(f"{num_steps:,} of {total:,} steps, {num_episodes:,} episodes", flush=True)

    if is_live:
        bar.start()
    try:
        yield show
    finally:
        if is_live:
            bar.stop()


def tell(recorded: Recorded) -> None:
    """What was recorded, in one line."""
    cut = recorded.num_episodes - recorded.num_whole
    mean = f", mean return {recorded.mean_return:.1f}" if recorded.num_whole else ""
    last = " (and a last one, which was cut)" if cut else ""
    print(f"{recorded.num_steps:,} steps, {recorded.num_whole:,} whole episodes{last}{mean}")


# Minari -----------------------------------------------------------------------------------------------------------


def check_minari(name: str, may_exist: bool = False) -> None:
    """Refuse a Minari data set that could not be written; nothing is made.

    Raises:
        UserError: the package is missing, or `name` is malformed or taken.
    """
    try:
        from minari.dataset.minari_dataset import parse_dataset_id
    except ImportError as error:
        raise UserError(f"--minari {name} needs the Minari package ({error}); pip install 'offpcc[offline]'") from None
    try:
        parse_dataset_id(name)
    except (TypeError, ValueError):
        raise UserError(
            f"--minari {name} is no id of a Minari data set; it is a name and a version, below one or more namespaces "
            f"if you like, such as pendulum/random-v0"
        ) from None
    if minari_folder(name).exists() and not may_exist:
        raise UserError(f"--minari {name} is there already, in {minari_folder(name)}; raise its version, or remove it")


def check_lossless(name: str, env: gymnasium.Env[Any, Any]) -> None:
    """Refuse images if Minari would change them.

    Raises:
        UserError: it would.
    """
    import minari

    keeps_images = "jpeg_encoding" in inspect.signature(minari.create_dataset_from_buffers).parameters
    if env.observation_space.dtype == np.uint8 and not keeps_images:
        raise UserError(f"--minari {name}: this Minari changes images (it stores them as JPEG); update it to 0.5.4")


def minari_folder(name: str) -> Path:
    """Where Minari has a data set."""
    return Path(os.environ.get(MINARI_ROOT) or Path.home() / ".minari" / "datasets") / name


def write_minari(name: str, file: Path, env: gymnasium.Env[Any, Any], seed: int) -> None:
    """Write a recording as a Minari data set too, which is there wholly or not at all.

    Args:
        name: its id.
        file: the recording.
        env: like the one that it was made in.
        seed: of the recording; Minari keeps what each episode was reset with.

    Raises:
        UserError: it cannot be written.
    """
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import create_namespace, list_local_namespaces

    target = minari_folder(name)
    root = Path(str(target).removesuffix(name))
    unfinished = root / f".unfinished-{name.replace('/', '-')}"
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
        unfinished.mkdir(parents=True)
        with minari_root(unfinished), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an author and an address that nobody has told us
            fill_minari(name, file, env, seed)
        namespace = parse_dataset_id(name)[0]
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
        (unfinished / name).rename(target)
    except OSError as error:
        raise UserError(
            f"--minari {name} cannot be written ({first_line(error)}), but {file} is; once it can be, the same command "
            f"with --resume writes it"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def fill_minari(name: str, file: Path, env: gymnasium.Env[Any, Any], seed: int) -> None:
    """Hand a recording's episodes to Minari, some at a time."""
    import minari
    from minari.data_collector import EpisodeBuffer

    told = read_finished(file).settings
    inner = env
    while not isinstance(inner, UnitAction):
        inner = inner.env  # type: ignore[attr-defined]
    inner = inner.env
    about = {
        "env": inner if can_be_told(inner) else None,
        "observation_space": env.observation_space,
        "action_space": inner.action_space,
        "algorithm_name": told["algorithm"],
        "description": f"{told['actor']} in {told['env']}, seed {told['seed']}, recorded by offpcc {told['offpcc']}",
        "requirements": [told["simulator"].lower().replace(" ", "==")] if "simulator" in told else None,
    }
    about |= {"jpeg_encoding": False} if env.observation_space.dtype == np.uint8 else {}
    dataset: Any = None
    buffers: list[Any] = []

    def hand_over() -> None:
        nonlocal dataset
        if dataset is None:
            dataset = minari.create_dataset_from_buffers(name, buffers, **about)
        else:
            dataset.update_dataset_from_buffer(buffers)
        buffers.clear()

    for number, episode in enumerate(read_episodes(file)):
        last = np.arange(len(episode.rewards)) == len(episode.rewards) - 1
        buffers.append(
            EpisodeBuffer(
                seed=Seeds.of(seed, number).reset,
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=last & (episode.ending is Ending.TERMINATED),
                truncations=last & (episode.ending is not Ending.TERMINATED),
                infos={},
            )
        )
        if sum(buffer.observations.nbytes for buffer in buffers) >= MINARI_BLOCK:
            hand_over()
    if buffers:
        hand_over()


def can_be_told(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether what makes the environment can be written down; not so a class that was never named in a string."""
    try:
        return env.spec is not None and bool(env.spec.to_json())
    except (TypeError, ValueError):
        return False


@contextmanager
def minari_root(folder: Path) -> Iterator[None]:
    """Let Minari have its data sets elsewhere."""
    before = os.environ.get(MINARI_ROOT)
    os.environ[MINARI_ROOT] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[MINARI_ROOT]
        else:
            os.environ[MINARI_ROOT] = before
