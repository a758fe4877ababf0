"""`offpcc collect`: records episodes of an actor or of random actions as D4RL's HDF5, and optionally as Minari."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from offpcc.algorithms import ActorCritic, short_name
from offpcc.algorithms.agent import load_actor
from offpcc.algorithms.discrete import ValueBased
from offpcc.cli.commands import add_simulator_version, check_own_bindings, find_actor, refuse_options
from offpcc.cli.messages import print_training
from offpcc.config import loading
from offpcc.config.gin_files import imports_of
from offpcc.core import PackedDict, has_images
from offpcc.data.datasets.load import MINARI
from offpcc.data.datasets.minari import check_id
from offpcc.data.recording.episode_log import is_unfinished
from offpcc.data.recording.hdf5_writer import check_new_hdf5, check_output, read_finished
from offpcc.data.recording.metadata import resume_settings, settings_of_recording
from offpcc.data.recording.minari_writer import check_new_minari, minari_folder, write_minari
from offpcc.data.recording.recorder import Merged, Recorder
from offpcc.envs import ALL
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.guard import close, guarded, opened
from offpcc.training.collect import Seeds, play_episode
from offpcc.training.evaluation import open_environment
from offpcc.training.interaction import episode_options
from offpcc.training.loggers.console import format_return, progress_bar
from offpcc.training.spec import choose_device, configured_make
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.files import sha256
from offpcc.utils.spaces import OneHot
from offpcc.utils.words import counted

RANDOM = "random"
ATARI_STACK = (4, 84, 84)  # shape of an observation of a preprocessed game


def record_dataset(
    env: str,
    actor: str,
    steps: int,
    out: Path,
    minari: str | None = None,
    seed: int = 0,
    deterministic: bool = False,
    epsilon: float | None = None,
    resume: bool = False,
    config: str | None = None,
    modules: Sequence[str] = (),
    gin: Sequence[str] = (),
    device: str | None = None,
    threads: int = 1,
    more_facts: Mapping[str, Any] | None = None,
) -> int:
    """Record a dataset, and print its statistics and a command that trains on it; return the exit code.

    `more_facts` are added to the metadata of the file. If an argument is invalid, nothing is created.
    """
    file, name = out, env
    minari = None if minari is None else minari.removeprefix(MINARI)
    check_output(file)
    if not resume:
        check_new_hdf5(file)
    there = read_finished(file)[1] if file.is_file() and not is_unfinished(file) else 0
    if there > steps:
        raise UserError(
            f"--steps is {steps:,}, but {file} has {there:,} already; to learn from a part of these steps, train with "
            f"--dataset_fraction"
        )
    if minari is not None:
        check_id(minari, "--minari ")
        if there < steps:
            check_new_minari(minari)
    facts: dict[str, Any] = {"env": name, "seed": seed, "deterministic": deterministic, "epsilon": epsilon}
    facts |= more_facts or {}
    if deterministic and epsilon is not None:
        raise UserError(
            "--deterministic has no effect with --epsilon, which already implies it; leave --deterministic out"
        )
    if actor == RANDOM:
        refuse_without_effect(deterministic, device, threads, epsilon)
    agent, acting, actor_facts = load_agent(name, actor, config, modules, device, threads, gin)
    facts |= actor_facts
    if isinstance(agent, ValueBased) and not deterministic and epsilon is None:
        exploring: Any = agent
        share = exploring.epsilon()
        print(f"the actor takes {share:.1%} of its actions at random; --epsilon sets another share")
    if more_facts is None:  # in a recipe, the bindings are for the training
        check_own_bindings(name)
    make_env = configured_make(name)
    with opened(
        open_environment(make_env, agent, shows_state=True) if agent else make_env(scale_actions=True)
    ) as played_in:
        if there == steps:
            resume_settings(settings_of_recording(played_in, facts), read_finished(file)[0], file)
            print(f"{file} is finished, with {there:,} steps; there is nothing left to record")
        else:
            print(f"recording {acting} in {add_simulator_version(name)}", flush=True)
            with closing(Recorder(file, played_in, metadata=facts, resume=resume)) as recorder:
                if recorder.message is not None:
                    print(recorder.message, flush=True)
                played = guarded(played_in)
                try:
                    with signals.deferred():
                        record(recorder, played, agent, steps, seed, deterministic, episode_options(), epsilon)
                        print_recording(recorder.merge())
                except EnvironmentFault as fault:
                    raise fault.with_resume() from fault.cause
                except signals.Interrupted as stop:
                    kept = counted(recorder.num_episodes, "finished episode")
                    stop.message = stopped(f"{counted(sum(recorder.lengths), 'step')} of {kept} are kept")
                    raise
                finally:
                    played.release()
        is_new = minari is not None and not minari_folder(minari).exists()
        if minari and is_new:
            try:
                write_minari(minari, file, played_in, lambda number: Seeds.of(seed, number).reset)
            except signals.Interrupted as stop:
                stop.message = stopped(f"{file} is written, {MINARI}{minari} is not")
                raise
        algorithm, settings = advised(name, played_in, agent)
    in_minari = [f"Minari's {MINARI}{minari}{'' if is_new else ', which was there already'}"] if minari else []
    print(f"dataset {file}", *in_minari, sep="\n")
    imported = [*imports_of(config), *modules]
    print_training(name, algorithm, file, imported, "--config", settings, *wrapped_as(facts["config"]))
    return 0


def load_agent(
    env: str | None,
    actor: str,
    config: str | None,
    modules: Sequence[str],
    device: str | None,
    threads: int,
    gin: Sequence[str],
) -> tuple[ActorCritic | None, str, dict[str, Any]]:
    """Return the agent, its name, and metadata for the recording; load the gin bindings of the environment.

    For random actions, there is no agent.
    """
    if actor == RANDOM:
        loading.load_gin_config(config, gin, modules=modules)
        return None, "random actions", {"algorithm": RANDOM, "actor": RANDOM, "config": made_by(env)}
    run, file = find_actor(actor, config, modules, f", or the word {RANDOM}", gin)
    bindings = made_by(env)
    agent = load_actor(file, used := choose_device(device, threads))
    details = run.details()
    known = [str(details[key]) for key in ("env", "algo", "run_id") if details.get(key) is not None]
    facts = {
        "algorithm": short_name(type(agent).__name__),
        "actor": "/".join([*known, file.name]),  # without the path to the run
        "actor_sha256": sha256(file),
        "device": used.type,
        "threads": torch.get_num_threads(),
        "config": bindings,
    }
    return agent, str(file), facts


def refuse_without_effect(deterministic: bool, device: str | None, threads: int, epsilon: float | None = None) -> None:
    """Refuse options for actors when the actions are random."""
    given = {"deterministic": deterministic, "epsilon": epsilon, "device": device}
    given["threads"] = None if threads == 1 else threads
    refuse_options("on random actions", given, "leave it out, or name an actor")


def made_by(env: str | None) -> str:
    """Return the gin bindings in use when the environment is made; "" without one."""
    if not env:
        return ""
    close(configured_make(env)())
    return loading.operative()


def wrapped_as(bindings: str) -> list[str]:
    """Return the options of a training that makes an environment with these bindings, such as its wrappers."""
    bound = loading.values(bindings)
    idle = {name for name, value in bound.items() if name.startswith("make.") and value in ("None", "()", "[]")}
    if all(name in idle for name in bound if name.startswith("make.")):
        return []
    return ["--gin", *(f"{name} = {value}" for name, value in bound.items() if name not in idle)]


def record(
    recorder: Recorder,
    env: gymnasium.Env[Any, Any],
    agent: ActorCritic | None,
    total: int,
    seed: int,
    deterministic: bool,
    longest_episode: int,
    epsilon: float | None = None,
) -> None:
    """Play episodes until the recording has all its steps; start after the recorded ones, and cut the last episode.

    Raises:
        Interrupted: the user asked the command to stop.
    """
    recorder.keep(int(np.searchsorted(np.cumsum(recorder.lengths), total, side="right")))
    num_steps = sum(recorder.lengths)
    if num_steps:
        print(f"going on after {counted(num_steps, 'step')} of {counted(recorder.num_episodes, 'episode')}", flush=True)
    with showing_progress(total) as show:
        while num_steps < total:
            seeds = Seeds.of(seed, recorder.num_episodes)
            for transition in play_episode(env, agent, seeds, deterministic, longest_episode, epsilon):
                signals.poll()
                recorder.push(*transition)
                num_steps += 1
                show(num_steps, recorder.num_episodes)
                if num_steps == total:
                    break
    recorder.cut()


@contextmanager
def showing_progress(total: int) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a recording; yield a function of the numbers of steps and episodes."""
    with progress_bar() as show:
        yield lambda steps, episodes: show(
            steps, total, f"{steps:,} of {total:,} steps, {counted(episodes, 'episode')}"
        )


def print_recording(merged: Merged) -> None:
    """Print the size and mean return of the recording in one line."""
    mean = f", mean return {format_return(merged.mean_return)}" if merged.num_whole else ""
    last = " (and a last one, which was cut)" if merged.num_episodes > merged.num_whole else ""
    print(f"{counted(merged.num_steps, 'step')}, {counted(merged.num_whole, 'whole episode')}{last}{mean}")


def stopped(kept: str) -> str:
    """Return the message for a recording that was stopped."""
    return f"stopped; {kept}; run the same command with --resume to continue"


def advised(name: str, env: gymnasium.Env[Any, Any], actor: ActorCritic | None) -> tuple[str, str]:
    """Return an algorithm and a config for the dataset.

    The algorithm has memory if the actor has memory, or, for random actions, if the task hides something. It has a
    convolutional encoder if observations are images.
    """
    is_partial = any(row.name == name and row.hidden != "nothing" for row in ALL)
    needs_memory = is_partial if actor is None else not actor.memoryless
    space = env.observation_space
    sees_images = has_images(space.unpacked_shape if isinstance(space, PackedDict) else space.shape or ())
    algorithm, config = "iql", "defaults/recorded" if sees_images else "offline_quickstart"
    if isinstance(env.action_space, OneHot):
        is_atari = space.shape == ATARI_STACK
        algorithm = "dcql"
        config = "discrete/atari_dcql" if is_atari else config if sees_images else "discrete/cartpole_data"
    return f"{'c' * sees_images}{'r' * needs_memory}{algorithm}", f"configs/{config}.gin"
