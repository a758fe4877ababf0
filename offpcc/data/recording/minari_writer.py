"""Writes a recording as a Minari dataset."""

import itertools
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

from offpcc.core import PackedDict
from offpcc.data.datasets.dict_columns import derived_space
from offpcc.data.datasets.frame_stacks import FRAME_STACK
from offpcc.data.datasets.minari import NUM_RECORDED, RECORDED_BY, ROOT, datasets_folder
from offpcc.data.recording.episode_log import Ending
from offpcc.data.recording.hdf5_writer import NUM_WHOLE, batches, read_episodes, read_finished
from offpcc.data.recording.metadata import latest
from offpcc.envs.wrapper_chain import levels
from offpcc.envs.wrappers import UnitAction, raw_actions
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.paths import check_folder

BLOCK_BYTES = 2**25  # of observations, passed to Minari at a time


def check_new_minari(name: str) -> None:
    """Check that a dataset can be written and overwrites nothing."""
    if minari_folder(name).exists():
        raise UserError(f"--minari {name} exists already, in {minari_folder(name)}; raise its version, or remove it")
    check_folder(minari_folder(name).parent, f"--minari {name}: ${ROOT}, else ~/.minari/datasets:")


def minari_folder(name: str) -> Path:
    """Return the folder of a Minari dataset."""
    return datasets_folder() / name


def write_minari(name: str, file: Path, env: gymnasium.Env[Any, Any], reset_seed: Callable[[int], int | None]) -> None:
    """Write the recording `file` as a Minari dataset. The dataset appears only when it is complete.

    `env` is an environment made like the recorded one. Minari stores the seed of each episode's reset, which
    `reset_seed` returns for the episode's number; None if it is not known.
    """
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import create_namespace, list_local_namespaces

    target = minari_folder(name)
    unfinished = datasets_folder() / f".unfinished-{name.replace('/', '-')}"
    root = os.environ.get(ROOT)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # leftovers of a killed process
        unfinished.mkdir(parents=True)
        os.environ[ROOT] = str(unfinished)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Minari warns that author and e-mail are missing; we know neither
                _fill(name, file, env, reset_seed)
        finally:
            del os.environ[ROOT]
            os.environ.update({} if root is None else {ROOT: root})
        namespace = parse_dataset_id(name)[0]
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
        (unfinished / name).rename(target)
    except OSError as error:
        raise UserError(
            f"--minari {name} cannot be written ({first_line(error)}), but {file} is written; correct the fault, "
            f"and run the same command with --resume"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _fill(name: str, file: Path, env: gymnasium.Env[Any, Any], reset_seed: Callable[[int], int | None]) -> None:
    import minari
    from minari.data_collector import EpisodeBuffer

    dataset: Any = None
    num_whole = 0
    space = env.observation_space if isinstance(env.observation_space, PackedDict) else None
    is_discrete = isinstance(raw_actions(env), Discrete)
    settings, _ = read_finished(file)
    stack = int(settings.pop(FRAME_STACK, 1))  # joined recordings, and Minari's, have whole stacks
    seeds = map(reset_seed, itertools.count())
    for episodes in batches(read_episodes(file), BLOCK_BYTES):
        buffers = [
            EpisodeBuffer(
                seed=next(seeds),
                observations=episode.stacked(stack) if space is None else space.split(episode.observations),
                actions=episode.actions[:, 0].astype(np.int64) if is_discrete else episode.actions,
                rewards=episode.rewards,
                terminations=episode.terminations,
                truncations=episode.truncations,
                infos={},
            )
            for episode in episodes
        ]
        if dataset is None:
            dataset = minari.create_dataset_from_buffers(name, buffers, **_metadata(file, env))
        else:
            dataset.update_dataset_from_buffer(buffers)
        num_whole += sum(episode.ending is not Ending.UNFINISHED for episode in episodes)
    if dataset is not None:  # what our own files say of themselves: `load_dataset` reads both alike
        dataset.storage.update_metadata({**settings, NUM_WHOLE: num_whole, NUM_RECORDED: dataset.total_episodes})


def _recorded_space(env: gymnasium.Env[Any, Any]) -> gymnasium.Space[Any]:
    """Return the space of the recorded observations; of Dict observations, that of their parts."""
    space = env.observation_space
    if not isinstance(space, PackedDict):
        return space
    return derived_space(space.split(np.zeros((1, *space.shape), np.uint8))).dict_space


def _metadata(file: Path, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Return the metadata for Minari: environment, spaces, algorithm, description and requirements."""
    facts, _ = read_finished(file)
    inner = next(level for level in levels(env) if isinstance(level, UnitAction)).env
    try:
        has_spec = inner.spec is not None and bool(inner.spec.to_json())
    except (TypeError, ValueError):  # its entry point is not a string, so JSON cannot hold it
        has_spec = False
    metadata = {
        "env": inner if has_spec else None,
        "observation_space": _recorded_space(env),
        "action_space": inner.action_space,
        "algorithm_name": facts["algorithm"],
        "description": "{actor} in {env}, seed {seed}, {by} {offpcc}".format_map({**facts, "by": RECORDED_BY}),
        "requirements": [latest(facts["simulator"]).lower().replace(" ", "==")] if "simulator" in facts else None,
    }
    return metadata | ({"jpeg_encoding": False} if env.observation_space.dtype == np.uint8 else {})
