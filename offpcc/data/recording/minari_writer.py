"""Writes a recording as a Minari data set."""

from __future__ import annotations

import inspect
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from offpcc.data.datasets.minari import ROOT, datasets_folder, is_id
from offpcc.data.recording.hdf5_writer import read_episodes, read_finished
from offpcc.data.recording.metadata import latest
from offpcc.envs.wrappers import UnitAction
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.paths import check_folder, shown

BLOCK_BYTES = 2**25  # of observations that are handed to Minari at a time


def check_id(name: str) -> None:
    """Refuse a name that Minari could not give to a data set.

    Raises:
        UserError: it is malformed, or the package is missing.
    """
    try:
        known = is_id(name)
    except ImportError as error:
        raise UserError(f"--minari {name} needs the Minari package ({error}); pip install 'offpcc[offline]'") from None
    if not known:
        raise UserError(
            f"--minari {shown(name)} is no id of a Minari data set; it is a name and a version, below one or more "
            f"namespaces (of two letters or more) if you like, such as pendulum/random-v0"
        )


def check_free(name: str) -> None:
    """Refuse to overwrite a data set, and a place where none can be written.

    Raises:
        UserError: there is one of this name, or none can be.
    """
    if minari_folder(name).exists():
        raise UserError(f"--minari {name} is there already, in {minari_folder(name)}; raise its version, or remove it")
    check_folder(minari_folder(name).parent, f"--minari {name}: ${ROOT}, else ~/.minari/datasets:")


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
    return datasets_folder() / name


def write_minari(name: str, file: Path, env: gymnasium.Env[Any, Any], reset_seed: Callable[[int], int]) -> None:
    """Write a recording as a Minari data set, which is there wholly or not at all.

    Args:
        name: its id.
        file: the recording.
        env: like the one that it was made in.
        reset_seed: what an episode, by its number, was reset with, which Minari keeps.

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
        with _datasets_in(unfinished), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an author and an address that nobody has told us
            _fill(name, file, env, reset_seed)
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


def _fill(name: str, file: Path, env: gymnasium.Env[Any, Any], reset_seed: Callable[[int], int]) -> None:
    import minari

    dataset: Any = None
    for buffers in _blocks(file, reset_seed):
        if dataset is None:
            dataset = minari.create_dataset_from_buffers(name, buffers, **_about(file, env))
        else:
            dataset.update_dataset_from_buffer(buffers)


def _blocks(file: Path, reset_seed: Callable[[int], int]) -> Iterator[list[Any]]:
    """A recording's episodes as Minari takes them, some at a time."""
    from minari.data_collector import EpisodeBuffer

    buffers: list[Any] = []
    for number, episode in enumerate(read_episodes(file)):
        buffers.append(
            EpisodeBuffer(
                seed=reset_seed(number),
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=episode.terminations,
                truncations=episode.truncations,
                infos={},
            )
        )
        if sum(buffer.observations.nbytes for buffer in buffers) >= BLOCK_BYTES:
            yield buffers
            buffers = []
    if buffers:
        yield buffers


def _about(file: Path, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """What Minari keeps of a recording beside its episodes."""
    told = read_finished(file).settings
    inner = env
    while not isinstance(inner, UnitAction):
        inner = inner.env  # type: ignore[attr-defined]
    inner = inner.env
    about = {
        "env": inner if _can_be_told(inner) else None,
        "observation_space": env.observation_space,
        "action_space": inner.action_space,
        "algorithm_name": told["algorithm"],
        "description": f"{told['actor']} in {told['env']}, seed {told['seed']}, recorded by offpcc {told['offpcc']}",
        "requirements": [latest(told["simulator"]).lower().replace(" ", "==")] if "simulator" in told else None,
    }
    return about | ({"jpeg_encoding": False} if env.observation_space.dtype == np.uint8 else {})


def _can_be_told(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether what makes the environment can be written down; not so a class that was never named in a string."""
    try:
        return env.spec is not None and bool(env.spec.to_json())
    except (TypeError, ValueError):
        return False


@contextmanager
def _datasets_in(folder: Path) -> Iterator[None]:
    """Let Minari have its data sets elsewhere."""
    before = os.environ.get(ROOT)
    os.environ[ROOT] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[ROOT]
        else:
            os.environ[ROOT] = before
