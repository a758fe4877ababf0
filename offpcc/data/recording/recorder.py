"""`Recorder`: stores played episodes on disk at once, and merges them into one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from offpcc.data.buffers.storage import PartialEpisode
from offpcc.data.datasets.columns import Array
from offpcc.data.recording.episode_log import Ending, Episode, Layout, Shards, is_unfinished, shards_folder
from offpcc.data.recording.hdf5_writer import check_new, check_output, read_episodes, read_finished, write_recording
from offpcc.data.recording.metadata import go_on, settings_of
from offpcc.envs.wrappers import ActionScale, action_bounds
from offpcc.utils.errors import UserError, first_line


class Merged(NamedTuple):
    """What the file of a recording holds."""

    num_steps: int
    num_episodes: int
    num_whole: int  # episodes that ended before the recording did
    mean_return: float  # of those, undiscounted; NaN if there are none


class Recorder:
    """Records transitions of N environments as D4RL's HDF5 file.

    Its columns are ``observations`` and ``next_observations`` (float32, or bytes for images) as an agent sees them in
    `env`, ``actions`` (float32) in the environment's own units, ``rewards``, ``terminals``, and ``timeouts``: where an
    episode was cut, by a time limit or otherwise, and did not terminate. Episodes are in the order in which they ended.

    A run that is resumed from a checkpoint puts the recorder's state back, and so drops the episodes that were
    recorded after the checkpoint: it plays them again.

    Args:
        file: what is to be written; its episodes lie in a folder beside it until `merge`.
        env: one like those that are played in, made by `offpcc.make`: tells spaces, bounds and wrappers.
        metadata: about the recording, in plain values; None for what is not known. With those of `env` they are in
            the file's group ``metadata``, and a recording that is gone on with keeps them; see `recording_settings`.
        num_envs: N.
        resume: whether to go on with a recording that is there, finished or not.

    Attributes:
        message: what makes a recording that is gone on with inexact; None if nothing does.

    Raises:
        UserError: the file cannot be written, it or a part of it is there and not to be gone on with, is damaged, or
            was made with other metadata.
    """

    def __init__(
        self,
        file: Path,
        env: gymnasium.Env[Any, Any],
        *,
        metadata: Mapping[str, Any],
        num_envs: int = 1,
        resume: bool = False,
    ) -> None:
        assert env.observation_space.shape is not None
        self._scale = ActionScale.of(*action_bounds(env))
        dtype = np.dtype(np.uint8 if env.observation_space.dtype == np.uint8 else np.float32)
        self._layout = Layout(env.observation_space.shape, dtype, len(self._scale.low))
        self.file, self.message = file, None
        settings = settings_of(env, metadata)
        self._unfinished = [PartialEpisode() for _ in range(num_envs)]
        check_output(file)
        if not resume:
            check_new(file)
        elif file.is_file():
            settings, self.message = go_on(settings, read_finished(file).settings, file)
        with _writing(file):
            self.shards = Shards(shards_folder(file), settings, self._layout)
            self.message = self.shards.message or self.message
            try:
                self._go_on()
            except BaseException:
                self.close()
                raise

    def _go_on(self) -> None:
        """Take over what a finished file has, and drop episodes that the recording had ended."""
        if self.file.is_file():
            for episode in read_episodes(self.file, first=self.num_episodes):
                self.shards.append(episode)
        self.shards.keep(self._num_whole)

    @property
    def num_episodes(self) -> int:
        """Those that have ended."""
        return len(self.shards.places)

    @property
    def lengths(self) -> list[int]:
        """Steps of those."""
        return [place.length for place in self.shards.places]

    @property
    def _num_whole(self) -> int:
        """Those that the end of the recording did not cut; they lie before all that it did."""
        return sum(place.ending is not Ending.UNFINISHED for place in self.shards.places)

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
        env: int = 0,
    ) -> None:
        """Record a transition; one that does not start where its environment's last ended begins a new episode.

        Args:
            observation: as the environment gave it.
            action: (A,) in [-1, 1].
            reward: received after it.
            next_observation: the true one also at an episode's end, never that of a reset.
            terminated: the task ended.
            truncated: the episode was cut.
            env: the number of its environment, from 0.

        Raises:
            UserError: a finished episode holds what is no number, or cannot be written.
            ValueError: a shape is not the environment's.
        """
        before, after = self._read(observation), self._read(next_observation)
        if self._unfinished[env].actions and not np.array_equal(before, self._unfinished[env].frames[-1]):
            self._finish(env, Ending.TRUNCATED)
        episode = self._unfinished[env]
        if not episode.actions:
            episode.frames.append(before)
        episode.frames.append(after)
        episode.actions.append(np.array(action, np.float32))
        episode.rewards.append(float(reward))
        if terminated or truncated:
            self._finish(env, Ending.TERMINATED if terminated else Ending.TRUNCATED)

    def drop(self, env: int) -> None:
        """Forget the unfinished episode of an environment that broke down."""
        self._unfinished[env] = PartialEpisode()

    def truncate(self, env: int) -> None:
        """End an unfinished episode, which is recorded as truncated."""
        if self._unfinished[env].actions:
            self._finish(env, Ending.TRUNCATED)

    def _read(self, observation: np.ndarray) -> Array:
        shape, dtype, _ = self._layout
        if np.shape(observation) != shape:
            raise ValueError(f"observation of shape {np.shape(observation)} recorded, but the space has {shape}")
        return np.array(observation, dtype)

    def _finish(self, env: int, ending: Ending) -> None:
        episode, self._unfinished[env] = self._unfinished[env], PartialEpisode()
        actions = self._scale.stretch(np.stack(episode.actions))
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
            rewards = np.array(episode.rewards).astype(np.float32)
        finished = Episode(np.stack(episode.frames), actions.astype(np.float32), rewards, ending)
        for name, numbers in zip(("observations", "actions", "rewards"), finished[:3], strict=True):
            if not np.isfinite(numbers).all():
                raise UserError(
                    f"{name} of an episode of {self.shards.settings['env']} hold a NaN or an infinite number (as "
                    f"float32), and cannot be learned from; `offpcc check` looks for where it comes from"
                )
        with _writing(self.file):
            self.shards.append(finished)

    def keep(self, num_episodes: int) -> None:
        """Forget the unfinished episodes, and of the others all but the first `num_episodes`.

        Raises:
            UserError: there are fewer.
        """
        if num_episodes > self.num_episodes:
            raise UserError(
                f"{self.shards.folder} has {self.num_episodes:,} episodes, but the run that is gone on with had "
                f"recorded {num_episodes:,}; they were changed or removed: put them back, or start another run"
            )
        self._unfinished = [PartialEpisode() for _ in self._unfinished]
        self.shards.keep(num_episodes)

    def state_dict(self) -> dict[str, Any]:
        """How many episodes are written, all of which the disk itself has from now on, and those under way."""
        with _writing(self.file):
            self.shards.sync()
        return {"num_episodes": self.num_episodes, "unfinished": [one.state_dict() for one in self._unfinished]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`: what was recorded since is dropped.

        Raises:
            UserError: what was recorded before is not there.
        """
        self.keep(state["num_episodes"])
        for episode, saved in zip(self._unfinished, state["unfinished"], strict=True):
            episode.load_state_dict(saved)

    def cut(self) -> None:
        """End the episodes under way, since the recording ends; one that goes on plays them again."""
        for env, episode in enumerate(self._unfinished):
            if episode.actions:
                self._finish(env, Ending.UNFINISHED)

    def merge(self) -> Merged:
        """Write the file of all finished episodes, and remove the shards; the recorder is of no more use.

        Raises:
            UserError: the file cannot be written; the shards stay.
            ValueError: no episode has ended.
        """
        num_steps, num_whole = sum(self.lengths), self._num_whole
        if not num_steps:
            raise ValueError("no episode has ended, so there is nothing to write; `cut` ends those under way")
        with _writing(self.file):
            merged = self.shards.folder / "merged.hdf5"
            returns = write_recording(
                merged, self.shards, num_steps=num_steps, num_whole=num_whole, settings=self.shards.settings
            )
            merged.replace(self.file)
            self.shards.remove()
        mean_return = float(np.mean(returns[:num_whole])) if num_whole else float("nan")
        return Merged(num_steps, len(returns), num_whole, mean_return)

    def close(self) -> None:
        """Let go of the shards, which stay for another time."""
        self.shards.close()


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Tell of a disk that is full, or fails, in one message."""
    try:
        yield
    except OSError as error:
        kept = (
            f"finished episodes are kept in {shards_folder(file)}: make room or mend what is at fault, then go on by "
            f"--resume"
        )
        fault = error.strerror or first_line(error)
        if error.filename is not None and str(error.filename) != str(file):
            fault = f"{error.filename}: {fault}"
        raise UserError(
            f"{file} cannot be written ({fault}); {kept if is_unfinished(file) else 'name a file elsewhere'}"
        ) from error
