"""`Recorder`: writes each finished episode to disk at once, and merges all episodes into one file."""

import glob
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from offpcc.core import PackedDict
from offpcc.data.buffers.storage import PartialEpisode
from offpcc.data.datasets.columns import Array
from offpcc.data.recording.episode_log import Ending, Episode, EpisodeLog, Layout, is_unfinished, log_path
from offpcc.data.recording.hdf5_writer import (
    check_new_hdf5,
    check_output,
    read_episodes,
    read_finished,
    write_recording,
)
from offpcc.data.recording.metadata import resume_settings, settings_of_recording, stored_stack
from offpcc.envs.wrappers import bounds_of, raw_actions, scale_of
from offpcc.utils.errors import UserError, first_line


class Merged(NamedTuple):
    """Figures of a merged recording."""

    num_steps: int
    num_episodes: int
    num_whole: int  # episodes that ended before the recording did
    mean_return: float  # of these episodes, undiscounted; NaN if there are none


class Recorder:
    """Records transitions of N environments as an HDF5 file in D4RL's format.

    The file has these columns:

    - ``observations`` and ``next_observations``: float32, or uint8 for images; as an agent sees them in `env`. Of Dict
      observations there is an array for each entry, such as ``observations/camera``, with choices one-hot.
    - ``frames`` instead of both, if an observation is a stack of the last k frames: each frame once; see
      `offpcc.data.datasets.frame_stacks`.
    - ``actions``: float32, in the environment's own units.
    - ``rewards`` and ``terminals``.
    - ``timeouts``: True where an episode was cut, by a time limit or otherwise, and did not terminate.

    Episodes are in the order in which they ended.

    A run that resumes from a checkpoint restores the recorder's state. This drops the episodes that were recorded after
    the checkpoint, because the run plays them again.

    Args:
        file: Path of the file. Until `merge`, the episodes are in a log beside it.
        env: An environment like the played ones, made by `offpcc.make`. It gives spaces, bounds and wrappers.
        metadata: Plain values about the recording; None for unknown ones. The file's group ``metadata`` contains them
            together with the values of `env`. A resumed recording must have the same values; see
            `settings_of_recording` and `resume_settings`.
        num_envs: N.
        resume: Whether to resume an existing recording, finished or not.

    Attributes:
        message: Reason why a resumed recording may not be exact; None if there is none.
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
        self._scale = scale_of(raw_actions(env))
        dtype = np.dtype(np.uint8 if env.observation_space.dtype == np.uint8 else np.float32)
        self._space = env.observation_space if isinstance(env.observation_space, PackedDict) else None
        self._shape, number = env.observation_space.shape, stored_stack(env)
        shape = self._shape if number == 1 else self._shape[1:]
        self._layout = Layout(shape, dtype, len(bounds_of(raw_actions(env))[0]), number)
        self.file, self.message = file, None
        settings = settings_of_recording(env, metadata)
        self._unfinished = [PartialEpisode() for _ in range(num_envs)]
        check_output(file)
        if not resume:
            check_new_hdf5(file)
        elif file.is_file():
            settings, self.message = resume_settings(settings, read_finished(file)[0], file)
        with _writing(file):
            self.log = EpisodeLog(log_path(file), settings, self._layout)
            try:
                self.log.settings, message = resume_settings(settings, self.log.settings, self.log.path)
                self.message = message or self.message
                if file.is_file():
                    for episode in read_episodes(file, first=self.num_episodes):
                        self.log.append(episode)
                self.log.keep(self._num_whole)  # the run plays the episodes again that the recording's end cut
            except BaseException:
                self.log.close()
                raise

    @property
    def num_episodes(self) -> int:
        """Number of finished episodes."""
        return len(self.log.places)

    @property
    def lengths(self) -> list[int]:
        """Length of each finished episode in steps."""
        return [place.length for place in self.log.places]

    @property
    def _num_whole(self) -> int:
        """Number of episodes that the recording's end did not cut. They come before all cut ones."""
        return sum(place.ending is not Ending.UNFINISHED for place in self.log.places)

    def push(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: float,
        next_observation: np.ndarray,
        terminated: bool,
        truncated: bool,
        env: int = 0,
        is_first: bool = False,
    ) -> None:
        """Record a transition; see `ReplayBuffer.push`.

        Raises:
            ValueError: A shape differs from the environment's.
        """
        before, after = self._read(observation), self._read(next_observation)
        if is_first:
            self.truncate(env)
        is_stack = self._layout.frame_stack > 1
        self._unfinished[env].append(before if is_stack else [before], action, reward, after[-1] if is_stack else after)
        if terminated or truncated:
            self._finish(env, Ending.TERMINATED if terminated else Ending.TRUNCATED)

    def drop(self, env: int) -> None:
        """Discard the unfinished episode of an environment that broke down."""
        self._unfinished[env] = PartialEpisode()

    def truncate(self, env: int) -> None:
        """End an unfinished episode, and record it as truncated."""
        if self._unfinished[env].actions:
            self._finish(env, Ending.TRUNCATED)

    def _read(self, observation: np.ndarray) -> Array:
        if np.shape(observation) != self._shape:
            raise ValueError(f"observation of shape {np.shape(observation)} recorded, but the space has {self._shape}")
        return np.asarray(observation, self._layout.dtype)

    def _finish(self, env: int, ending: Ending) -> None:
        episode, self._unfinished[env] = self._unfinished[env], PartialEpisode()
        actions = np.reshape(self._scale.stretch(np.stack(episode.actions)), (-1, self._layout.action_dim))
        with np.errstate(over="ignore"):  # values too large for float32 become infinite, and the check below raises
            rewards = np.array(episode.rewards).astype(np.float32)
        finished = Episode(np.stack(episode.frames), actions.astype(np.float32), rewards, ending)
        for name, numbers in zip(("observations", "actions", "rewards"), finished[:3], strict=True):
            if not np.isfinite(numbers).all():
                raise UserError(
                    f"{name} of an episode of {self.log.settings['env']} hold a NaN or an infinite number (as "
                    f"float32), which no agent can learn from; `offpcc check` searches for its source"
                )
        with _writing(self.file):
            self.log.append(finished)

    def keep(self, num_episodes: int) -> None:
        """Drop the unfinished episodes, and all finished ones except the first `num_episodes`."""
        if num_episodes > self.num_episodes:
            raise UserError(
                f"{self.log.path} has {self.num_episodes:,} episodes, but the resumed run had "
                f"recorded {num_episodes:,}; they were changed or removed: put them back, or start another run"
            )
        self._unfinished = [PartialEpisode() for _ in self._unfinished]
        self.log.keep(num_episodes)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of finished episodes and the unfinished episodes.

        The call waits until all finished episodes are on the disk itself (fsync).
        """
        with _writing(self.file):
            self.log.sync()
        return {"num_episodes": self.num_episodes, "unfinished": [one.state_dict() for one in self._unfinished]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state`, and drop the episodes that were recorded after it."""
        self.keep(state["num_episodes"])
        for episode, saved in zip(self._unfinished, state["unfinished"], strict=True):
            episode.load_state_dict(saved)

    def cut(self) -> None:
        """End the unfinished episodes at the recording's end. A resumed recording plays them again."""
        for env, episode in enumerate(self._unfinished):
            if episode.actions:
                self._finish(env, Ending.UNFINISHED)

    def merge(self) -> Merged:
        """Write all finished episodes to the file, and remove the log. The recorder cannot be used after that.

        If the file cannot be written, the log stays.

        Raises:
            ValueError: No episode has ended.
        """
        num_steps, num_whole = sum(self.lengths), self._num_whole
        if not num_steps:
            raise ValueError("no episode has ended, so there is nothing to write; `cut` ends the unfinished episodes")
        with _writing(self.file):
            for leftover in self.file.parent.glob(f".{glob.escape(self.file.stem)}.tmp-*{self.file.suffix}"):
                leftover.unlink()  # of a process that was killed here
            returns = write_recording(
                self.file,
                self.log,
                num_steps=num_steps,
                num_whole=num_whole,
                num_frames=num_steps + self._layout.frame_stack * self.num_episodes,
                settings=self.log.settings,
                space=self._space,
            )
            self.log.remove()
        mean_return = float(np.mean(returns[:num_whole])) if num_whole else float("nan")
        return Merged(num_steps, len(returns), num_whole, mean_return)

    def close(self) -> None:
        """Close the log, which stays on disk and can be resumed."""
        self.log.close()


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Turn an OSError, such as a full disk, into one UserError."""
    try:
        yield
    except OSError as error:
        kept = (
            f"finished episodes are kept in {log_path(file)}: free disk space or correct the fault, then run the "
            f"same command with --resume"
        )
        fault = error.strerror or first_line(error)
        if error.filename is not None and str(error.filename) != str(file):
            fault = f"{error.filename}: {fault}"
        raise UserError(
            f"{file} cannot be written ({fault}); {kept if is_unfinished(file) else 'name a file elsewhere'}"
        ) from error
