"""Episodes on the device that learns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from offpcc.core import Batch
from offpcc.data.columns import Array
from offpcc.data.device_rows import DeviceCopy, sent
from offpcc.data.episodes import Episode
from offpcc.data.rows import Storage


class DeviceEpisodes(DeviceCopy):
    """A copy of episodes, one after another on a tape, of which the rows form a ring.

    An episode takes a row for each of its frames; the newest frame of an observation has the action taken after it
    beside it. Behind the tape's rows is one of zeros, for what is not there.
    """

    num_seen = 0  # episodes that were ever kept, when they were last copied
    written = 0  # rows that were ever written to the tape

    def update(self, episodes: Sequence[Episode], num_kept: int, num_steps: int, are_all: bool) -> bool:
        """Copy over the episodes that are new, unless there is no copy; whether there is one.

        Args:
            episodes: all there are; older ones have made room, or `forget` was called.
            num_kept: episodes that were ever kept.
            num_steps: steps in `episodes`.
            are_all: whether no more of them will come.

        Raises:
            UserError: there is to be a copy, but there is no room for it.
        """
        new = min(num_kept - self.num_seen, len(episodes))
        needed = num_steps + self.layout.frame_stack * len(episodes)
        if needed >= self.num_rows:
            self.make_room((needed if are_all else 2 * needed) + 1)
            new = len(episodes)
        self.num_seen = num_kept
        if self.rows is None:
            return False
        for episode in itertools.islice(episodes, len(episodes) - new, None):
            self._write(episode)
        return True

    def _write(self, episode: Episode) -> None:
        assert self.rows is not None
        frame_shape, dtype, action_dim, frame_stack, _ = self.layout
        storage = Storage.of(len(episode.frames), frame_shape, dtype, action_dim)
        steps = slice(frame_stack - 1, -1)
        storage.observations[:] = episode.frames
        storage.actions[steps], storage.rewards[steps] = episode.actions, episode.rewards
        storage.terminations[-2] = episode.terminated
        self.rows.put((self.written + np.arange(len(episode.frames))) % (self.num_rows - 1), storage.contiguous)
        self.written += len(episode.frames)

    def batch(
        self,
        ends: Array,
        chosen: Array,
        starts: Array,
        lengths: Array,
        skipped: Array,
        burn_in: int,
        shape: tuple[int, ...],
    ) -> Batch:
        """Segments of `lengths` from `starts` on in the `chosen` episodes; see `RecurrentReplayBuffer`.

        Args:
            ends: (N,), the sum of the lengths of all episodes up to each one, in steps.
            chosen: (B,), numbers of episodes.
            starts: (B,), steps.
            lengths: (B,), steps.
            skipped: (B,), how many of these, the first, count in no loss.
            burn_in: steps before them.
            shape: of an observation.
        """
        assert self.rows is not None
        rows, frame_stack, nothing = self.rows, self.layout.frame_stack, self.num_rows - 1
        # Each episode's first row, counted from the last that was written: of the rows before them some made room.
        begins = np.concatenate([[0], ends])[chosen] + frame_stack * chosen - ends[-1] - frame_stack * len(ends)
        steps = (starts - burn_in)[:, None] + np.arange(-1, burn_in + int(lengths.max()) + 1)
        exists = (steps >= 0) & (steps <= (starts + lengths)[:, None])
        frames = (self.written + begins[:, None] + steps)[..., None] + np.arange(frame_stack)
        places = sent(torch.from_numpy(np.where(exists[..., None], frames % nothing, nothing)), self.device)
        newest = places[..., -1]
        before = newest[:, 0]
        during = torch.where(newest[:, 2:] != nothing, newest[:, 1:-1], nothing)  # a row may end in mid-episode
        real = (newest[:, 1:, None] != nothing).float()
        counts = np.arange(steps.shape[1] - 2) >= burn_in + skipped[:, None]
        mask = real[:, 1:] * sent(torch.from_numpy(counts[..., None]), self.device)
        return Batch(
            observations=rows.observations[places[:, 1:]].reshape(*real.shape[:2], *shape),
            actions=rows.actions[during],
            rewards=rows.rewards[during],
            terminations=rows.terminations[during],
            real=real,
            mask=mask,
            first_action=rows.actions[before],
            first_reward=rows.rewards[before],
            burn_in=burn_in,
        )
