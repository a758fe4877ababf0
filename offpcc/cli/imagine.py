"""`offpcc collect --model`: records episodes that an actor plays in a learned model, as a dataset."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from rich.console import Console

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.cli import collect
from offpcc.cli.commands import check_own_bindings
from offpcc.cli.messages import print_training
from offpcc.config.gin_files import imports_of
from offpcc.data.checks.env_fit import match_states_and_wrappers
from offpcc.data.datasets.columns import Array
from offpcc.data.offline import DatasetOptions, OfflineDataset, load_unchanged, read
from offpcc.data.recording.episode_log import Ending, Episode
from offpcc.data.recording.hdf5_writer import check_output, write_recording
from offpcc.envs.guard import opened
from offpcc.envs.registration import package_of
from offpcc.envs.wrapper_chain import observation_wrappers
from offpcc.envs.wrappers import ActionScale
from offpcc.training.loggers.console import download_bar
from offpcc.training.models.files import load_model
from offpcc.training.models.quality import check_model_fits_data
from offpcc.training.models.rollouts import ImaginedEpisodes
from offpcc.training.spec import choose_device, configured_make, torch_settings
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.files import sha256, writing_to
from offpcc.utils.version import __version__
from offpcc.utils.words import counted

ROLLOUT_LENGTH = 5


def imagine(
    model: Path,
    dataset: str | None,
    actor: str,
    steps: int,
    out: Path,
    rollout_length: int | None = None,
    env: str | None = None,
    seed: int = 0,
    deterministic: bool = False,
    config: str | None = None,
    modules: Sequence[str] = (),
    gin: Sequence[str] = (),
    device: str | None = None,
    threads: int = 1,
) -> int:
    """Record imagined episodes, and print their statistics and a command that trains on them; return the exit code."""
    if dataset is None:
        raise UserError(f"--model {model} starts its episodes at recorded observations; give a dataset with --dataset")
    check_output(out)
    if out.exists():
        raise UserError(f"{out} exists and is not overwritten; name another file, or remove it")
    used = choose_device(device, threads)
    if actor == collect.RANDOM:
        collect.refuse_without_effect(deterministic, None, 1)
    agent, _, facts = collect.load_agent(env, actor, config, modules, device, threads, gin)
    made = facts.pop("config")
    check_own_bindings(env, reads_data=True)
    with torch_settings(used, threads):
        world = load_model(model, used)
        data, seen_through = read_as(dataset, env)
        check_model_fits_data(world, data.rows, data.action_range)
        if agent is not None:
            check_actor(agent, actor, world)
        length = rollout_length or ROLLOUT_LENGTH
        low, high = find_action_bounds(world)
        played_in = env or data.recorded_in
        facts |= {
            "imagined": True,
            "model": model.name,
            "model_sha256": sha256(model),
            "model_data": world.facts["identity"],
            "dataset": data.identity,
            "rollout_length": length,
            "seed": seed,
            "deterministic": deterministic,
            "device": used.type,
            "threads": threads,
            "offpcc": __version__,
            "observation": f"float32 {data.rows.observations.shape[1:]}",
            "action_low": low.tolist(),
            "action_high": high.tolist(),
            **({"env": played_in} if played_in else {}),
            **({"seen_through": seen_through} if seen_through else {}),
        }
        acting = collect.RANDOM if agent is None else str(facts["actor"])
        print(f"imagining episodes of {acting} in {model}, from {data.name} on", flush=True)
        imagination = ImaginedEpisodes(world, data.rows, agent, length, seed, deterministic)
        episodes = imagine_episodes(imagination, steps, ActionScale.of(low, high))
    num_whole = sum(episode.ending is not Ending.UNFINISHED for episode in episodes)
    with writing_to(out), signals.deferred():
        write_recording(out, episodes, num_steps=steps, num_whole=num_whole, settings=facts)
    print_endings(imagination, episodes, steps)
    print(f"dataset {out}")
    algorithm = "iql" if agent is None or agent.memoryless else "riql"
    imported, note = [*imports_of(config), *modules], ""
    if played_in and ":" not in played_in and package_of(played_in) is None and played_in not in gymnasium.registry:
        imported, note = [*imported, "MODULE"], f" (MODULE registers {played_in})"
    settings = ("--config", "configs/offline_quickstart.gin", *collect.wrapped_as(made))
    print_training(played_in, algorithm, out, imported, *settings, note=note)
    return 0


def read_as(dataset: str, env: str | None) -> tuple[OfflineDataset, str | None]:
    """Return recorded data, seen through an environment's wrappers if one is named, and the names of all wrappers."""
    options = DatasetOptions.from_gin()
    with opened(configured_make(env)() if env else None) as made:
        with download_bar(Console()) as bar:
            recorded = load_unchanged(dataset, options, bar)
        wrappers = match_states_and_wrappers(recorded, None)[1] if made is None else observation_wrappers(made)
        return read(recorded, made, options), None if wrappers is None else json.dumps(wrappers)


def check_actor(agent: ActorCritic, name: str, model: DynamicsModel) -> None:
    """Raise if an actor sees other observations than the model predicts, or has other actions."""
    sizes = agent.space_shape, agent.action_dim
    if sizes != ((model.observation_dim,), model.action_dim):
        raise UserError(
            f"the actor {name} was trained with observations of shape {sizes[0]} and {sizes[1]} action dimensions, but "
            f"the model has ({model.observation_dim},) and {model.action_dim}; give an actor of the environment that "
            f"the model was trained for"
        )
    space = agent.action_space
    if isinstance(space, spaces.Box) and space.is_bounded():
        theirs, ours = np.stack([space.low.ravel(), space.high.ravel()]), find_action_bounds(model)
        if not np.allclose(theirs, ours, rtol=1e-5):
            raise UserError(
                f"the actor {name} has actions from {theirs[0].tolist()} to {theirs[1].tolist()}, but the model's are "
                f"from {ours[0].tolist()} to {ours[1].tolist()}; give an actor of the same environment"
            )


def find_action_bounds(model: DynamicsModel) -> Array:
    """Return the lowest and the highest action of a model's data, in the units of the recording, (2, A)."""
    bounds = [np.broadcast_to(bound, model.action_dim) for bound in model.action_range or (-1.0, 1.0)]
    return np.asarray(bounds, np.float32)


def imagine_episodes(imagination: ImaginedEpisodes, steps: int, scale: ActionScale) -> list[Episode]:
    """Return episodes with `steps` steps, with actions in the units of the recording; show the progress."""
    episodes: list[Episode] = []
    num_steps = 0
    with collect.showing_progress(steps) as show:
        for episode in imagination.episodes(steps):
            episodes.append(episode._replace(actions=scale.stretch(episode.actions).astype(np.float32)))
            num_steps += len(episode.rewards)
            show(num_steps, len(episodes))
    return episodes


def print_endings(imagination: ImaginedEpisodes, episodes: Sequence[Episode], steps: int) -> None:
    """Print how long the episodes are and how they ended."""
    num_terminated = sum(episode.ending is Ending.TERMINATED for episode in episodes)
    num_unsure = sum(
        episode.ending is Ending.TRUNCATED and len(episode.rewards) < imagination.length for episode in episodes
    )
    more = f", {imagination.num_left_out:,} more before their first step" if imagination.num_left_out else ""
    mean = math.fsum(float(episode.rewards.sum()) for episode in episodes) / steps
    print(
        f"{counted(steps, 'step')} in {counted(len(episodes), 'episode')}, mean reward {mean:.4g}; "
        f"{num_terminated:,} terminated, {num_unsure:,} were cut because the networks disagreed{more}; "
        f"{counted(imagination.num_bounded, 'observation')} moved back into the range of the data"
    )
