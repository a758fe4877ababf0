"""`RecurrentReplayBuffer`: a buffer of whole episodes or segments, for agents with memory."""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import torch
from gymnasium import spaces

from offpcc.config.registry import configurable
from offpcc.config.validation import Flag, NonnegativeSize, NumEnvs, NumParts, PositiveInteger, Size, one_of
from offpcc.core import Batch, Chunk
from offpcc.data.buffers.base import BufferBase
from offpcc.data.buffers.device import DeviceCopy
from offpcc.data.buffers.snapshot import CHUNK_BYTES
from offpcc.data.buffers.storage import (
    PartialEpisode,
    RecordedEpisodes,
    Storage,
    StoredEpisode,
    TransitionTable,
    frames_in_file,
    returns_to_go,
)
from offpcc.data.datasets.columns import Array
from offpcc.utils.errors import UserError

DrawBy = Annotated[str, one_of(("steps", "episodes"))]


@configurable
class RecurrentReplayBuffer(BufferBase):
    """Replay buffer of finished episodes, for agents with memory. `sample` ignores unfinished episodes.

    `sample` draws episodes in proportion to their length, or uniformly (`draw_by`). It returns whole episodes, or one
    segment of each. Before a segment come `burn_in` earlier steps (R2D2, Kapturowski et al. 2019). They compute the
    hidden state and count in no loss. If fewer earlier steps exist, the sequence begins at the episode's step 0 with
    the initial hidden state. The steps before the segment count in no loss then, either.

    The segment is a window that may begin before the episode or end after it. All windows that share a step with the
    episode are equally likely. A window that begins before step 0 is moved to step 0. If all starts inside the episode
    were equally likely instead, few windows would cover the first steps, and these would hardly ever count.

    How much a step weighs in learning depends on `draw_by`. A whole episode counts with all its steps. So with "steps"
    (the default, as in earlier results) a step of an episode of 200 steps weighs twice as much as one of 100 steps;
    with "episodes" all steps weigh the same. A segment counts with at most `segment_len` steps. So with "steps" steps
    of long episodes weigh nearly the same, and steps of an episode shorter than a segment weigh less; with "episodes" a
    step weighs more in short episodes.

    `BufferBase` describes the arguments that are not listed here.

    Args:
        capacity: Maximum number of episodes. A new episode replaces the oldest one.
        batch_size: Number of episodes or segments per batch.
        segment_len: Maximum number of steps in a segment that count in losses; None for whole episodes.
        draw_by: "steps" to draw episodes in proportion to their length, "episodes" to draw them uniformly.
        burn_in: Number of steps before a segment; segments only. With 0, a segment in mid-episode begins with the
            initial hidden state.
        on_device: See `ReplayBuffer`.
        memory_limit: See `BufferBase`. An episode whose images would exceed it has a file for them.
    """

    holds_episodes = True
    empty = "no episode has ended yet, so there is nothing to sample"

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Box | spaces.Discrete,
        *,
        capacity: PositiveInteger = 5_000,
        batch_size: Size = 10,
        segment_len: Size | None = None,
        burn_in: NonnegativeSize = 0,
        draw_by: DrawBy = "steps",
        device: str | torch.device = "cpu",
        seed: int = 0,
        num_envs: NumEnvs = 1,
        frame_stack: NumParts = 1,
        on_device: Flag | None = None,
        memory_limit: PositiveInteger | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, device, seed, num_envs, frame_stack, memory_limit)
        if segment_len is None and burn_in:
            raise UserError(
                f"RecurrentReplayBuffer.burn_in is {burn_in} but segment_len is None: whole episodes need no "
                f"burn-in; set segment_len, or burn_in = 0"
            )
        self.capacity, self.batch_size = capacity, batch_size
        self.segment_len, self.burn_in, self.draw_by = segment_len, burn_in, draw_by
        self.episodes: deque[StoredEpisode] | RecordedEpisodes = deque(maxlen=capacity)
        self.total_lengths = np.zeros(0, np.int64)  # cumulative lengths
        self.total_counted = self.total_lengths  # the same without recorded steps before rollouts, to draw by
        self.unfinished = [PartialEpisode() for _ in range(num_envs)]
        self.device_copy = DeviceCopy(on_device, type(self).__name__, self.device, self.layout)
        self.num_kept = self.bytes_kept = 0  # of all episodes stored so far, replaced ones included
        self.num_copied = self.num_written = 0  # episodes and rows copied to the device so far

    def __len__(self) -> int:
        """Number of finished episodes."""
        return len(self.episodes)

    @property
    def num_transitions(self) -> int:
        """Number of steps in finished episodes."""
        return int(self.total_lengths[-1]) if len(self.total_lengths) else 0

    def planned_bytes(self, num_steps: int, longest_episode: int | None) -> int:
        """Return the bytes of memory needed for a run of `num_steps` environment steps, with unfinished episodes."""
        if longest_episode is None:
            return num_steps * (self.bytes_per_step - self.bytes_per_frame) + self.in_memory(num_steps)
        most = self.capacity + self.num_envs
        episodes = min(most, self.num_envs * self.episodes_per_env(num_steps, longest_episode))
        steps = min(num_steps, most * longest_episode)
        own = steps * (self.bytes_per_step - self.bytes_per_frame)
        return own + self.in_memory(steps + episodes * self.frame_stack)

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
        """Store a transition. See `ReplayBuffer.push`."""
        frames, next_frames, action = self.read_transition(observation, action, next_observation, env)
        if is_first:
            self.truncate(env)
        self.unfinished[env].append(frames, action, reward, next_frames[-1])
        if terminated or truncated:
            self._finish(env, terminated)

    def drop(self, env: int) -> None:
        """Discard the unfinished episode of an environment that broke down: its last steps may be wrong."""
        self.unfinished[env] = PartialEpisode()

    def truncate(self, env: int) -> None:
        """End an unfinished episode, so `sample` can draw it. Its last transition counts as truncated."""
        if self.unfinished[env].actions:
            self._finish(env, terminated=False)

    def _finish(self, env: int, terminated: bool) -> None:
        episode, self.unfinished[env] = self.unfinished[env], PartialEpisode()
        rewards = np.array(episode.rewards, np.float32)[:, None]
        frames = np.stack(episode.frames, out=self._empty_frames(len(episode.frames)))
        self._store(StoredEpisode(frames, np.stack(episode.actions), rewards, bool(terminated)))
        self._count()
        self.item_changed((self.num_kept - 1) % self.max_items)

    def _empty_frames(self, number: int) -> Array:
        """Return room for the frames of an episode, in a file if they would exceed `memory_limit`."""
        shape = (number, *self.frame_shape)
        if self.memory_limit is not None and self.dtype == np.uint8:
            num_bytes = math.prod(shape)
            held = sum(one.frames.nbytes for one in self.episodes if one.frames.base is None)
            if held + num_bytes > self.memory_limit:
                return frames_in_file(shape)
        return np.empty(shape, self.dtype)

    def _store(self, episode: StoredEpisode) -> None:
        assert isinstance(self.episodes, deque)  # a buffer of recorded data accepts no episodes
        self.episodes.append(episode._replace(group=self.bytes_kept // CHUNK_BYTES))
        self.num_kept += 1
        self.bytes_kept += sum(array.nbytes for array in episode.stored)

    def extend(self, rows: TransitionTable, num_recorded: Array) -> None:
        """Store N whole episodes of one environment. The first `num_recorded` (N,) steps of each count in no loss."""
        first = self.num_kept
        for episode, recorded in zip(RecordedEpisodes(rows), num_recorded, strict=True):
            frames, actions, rewards = self._empty_frames(len(episode.frames)), *map(np.copy, episode.stored[1:])
            frames[...] = episode.frames
            self._store(StoredEpisode(frames, actions, rewards, episode.terminated, num_recorded=int(recorded)))
        self._count()
        for number in range(first, self.num_kept):
            self.item_changed(number % self.max_items)

    def keep_newest(self, number: int) -> None:
        """Leave only the newest episodes, with `number` steps or fewer that count in losses."""
        assert isinstance(self.episodes, deque)
        if not len(self) or (extra := int(self.total_counted[-1]) - number) <= 0:
            return
        lost = [(self._oldest + n) % self.max_items for n in range(int(np.searchsorted(self.total_counted, extra)) + 1)]
        for _ in lost:
            self.episodes.popleft()
        self._count()
        for place in lost:
            self.item_changed(place)

    def clear(self) -> None:
        """Remove all finished episodes."""
        self.episodes = deque(maxlen=self.capacity)
        self._count()
        self.items_replaced()

    def transition_table(self) -> TransitionTable:
        """Return a copy of the finished episodes as rows, in order of time."""
        return TransitionTable.joined(list(self.episodes), *self.layout[:3])

    def fill(self, rows: TransitionTable, recorded: str) -> None:
        """Fill the buffer with recorded episodes, whatever its capacity. See `ReplayBuffer.fill`."""
        episodes = self.episodes = RecordedEpisodes(self._adopt(rows, recorded))
        self.num_kept, self.bytes_kept = len(episodes), episodes.nbytes
        self._count()
        self.items_replaced()

    @property
    def max_items(self) -> int:
        """Number of episodes that the buffer can hold."""
        return len(self.episodes) if self.recorded else self.capacity

    @property
    def _oldest(self) -> int:
        """Place of the oldest episode."""
        return (self.num_kept - len(self.episodes)) % self.max_items

    def shares(self, items: Array) -> Array:
        """Return the lengths of episodes, or 1 if they are drawn uniformly; 0 for places that hold none."""
        numbers = (items - self._oldest) % self.max_items
        if self.draw_by == "episodes":
            return (numbers < len(self.episodes)).astype(np.float64)
        lengths: Array = np.append(np.diff(self.total_counted, prepend=0), 0)
        return np.asarray(lengths[np.minimum(numbers, len(self.episodes))], np.float64)

    def _count(self) -> None:
        if isinstance(self.episodes, RecordedEpisodes):
            self.total_lengths = self.total_counted = np.cumsum(self.episodes.lengths)
        else:
            self.total_lengths = np.cumsum([len(episode.actions) for episode in self.episodes])
            recorded = np.array([episode.num_recorded for episode in self.episodes], np.int64)
            self.total_counted = self.total_lengths - np.cumsum(recorded)

    def draw(self) -> Array:
        """Return the places of `batch_size` episodes."""
        draw = self.randomness.generator.integers
        if self.draw_by == "episodes":
            chosen = draw(0, len(self.episodes), self.batch_size)
        else:
            steps = draw(0, int(self.total_counted[-1]), self.batch_size)
            chosen = np.searchsorted(self.total_counted, steps, side="right")
        return np.asarray((self._oldest + chosen) % self.max_items)

    def _holds(self, place: int) -> bool:
        return (place - self._oldest) % self.max_items < len(self.episodes)

    def _episode(self, place: int) -> StoredEpisode:
        """Return the episode at this place."""
        return self.episodes[(place - self._oldest) % self.max_items]

    def batch_of(self, items: Array, firsts: Array | None = None) -> Batch:
        """Return these episodes, or a segment of each, padded with zeros to the longest one.

        Segments begin at steps `firsts` (B,); default: at random ones.
        """
        draw, chosen = self.randomness.generator.integers, (items - self._oldest) % self.max_items
        episodes = [self.episodes[i] for i in chosen]
        lengths = np.array([len(episode.actions) for episode in episodes])
        starts = skipped = np.zeros(len(items), np.int64)
        if self.segment_len is not None:
            # All windows that share a step with the episode are equally likely. Early ones move to step 0.
            # They share a step that counts: none before an imagined rollout.
            if firsts is None:
                earliest = np.array([episode.num_recorded for episode in episodes]) + 1 - self.segment_len
                firsts = np.maximum(draw(earliest, lengths), 0)
            starts = np.where(firsts >= self.burn_in, firsts, 0)
            skipped = firsts - starts
            lengths = np.minimum(lengths - firsts, self.segment_len) + skipped
        skipped = np.maximum(skipped, [episode.num_recorded for episode in episodes] - starts)
        rows = self._copy_to_device()
        if rows is None:
            batch = self._copy(episodes, starts, lengths, skipped)
        else:  # begins count from the newest row, because the oldest ones may be overwritten
            ends = np.append(0, self.total_lengths)
            begins = self.num_written + ends[chosen] - ends[-1] + self.frame_stack * (chosen - len(self))
            batch = self._gather(rows, begins, starts, lengths, skipped)
        if self.gives_next_actions:
            batch = self._with_next_actions(batch, episodes, starts, lengths)
        return batch if self.return_discount is None else self._with_returns(batch, episodes, starts, lengths)

    def _with_next_actions(self, batch: Batch, episodes: list[StoredEpisode], starts: Array, lengths: Array) -> Batch:
        """Return the batch of `_copy` with the action after each step, also after the last one of a segment."""
        actions = np.zeros(batch.actions.shape, np.float32)
        exists = np.zeros(batch.rewards.shape, np.float32)
        for i, episode, begin, stop, source in self._segments(episodes, starts, lengths):
            following = episode.actions[source + 1 : source + 1 + stop - begin]
            actions[i, begin : begin + len(following)] = following
            exists[i, begin : begin + len(following)] = 1.0
        return batch._replace(next_actions=self.tensor(actions), has_next_action=self.tensor(exists))

    def _with_returns(self, batch: Batch, episodes: list[StoredEpisode], starts: Array, lengths: Array) -> Batch:
        """Return the batch of `_copy` with the returns of its steps."""
        assert self.return_discount is not None
        found = np.zeros((*batch.rewards.shape[:2], 2), np.float32)
        for i, episode, begin, stop, source in self._segments(episodes, starts, lengths):
            after = returns_to_go(episode.rewards[source:, 0], episode.terminated, self.return_discount)
            found[i, begin:stop] = after[: stop - begin]
        pair = self.tensor(found)
        return batch._replace(returns_to_go=pair[..., :1], discounts_to_go=pair[..., 1:])

    def _copy_to_device(self) -> Storage | None:
        """Copy the new episodes to the device, and return the rows there; None if there is no copy.

        The rows are one ring for all episodes, and a last row of zeros.
        """
        copy, episodes = self.device_copy, self.episodes
        new = min(self.num_kept - self.num_copied, len(episodes))
        needed = self.num_transitions + self.frame_stack * len(episodes)
        if needed >= copy.num_rows:
            copy.make_room((needed if self.recorded else 2 * needed) + 1)
            new = len(episodes)
        self.num_copied = self.num_kept
        if copy.rows is None:
            return None
        for episode in itertools.islice(episodes, len(episodes) - new, None):
            numbers = np.arange(len(episode.frames))
            rows = Storage.of(len(numbers), *self.layout[:3])
            episode.pack(rows, 0)
            copy.put((self.num_written + numbers) % (copy.num_rows - 1), rows.contiguous, numbers)
            self.num_written += len(numbers)
        return copy.rows

    def _num_steps(self, lengths: Array) -> int:
        """Return T of a batch with rows of these lengths."""
        longest = int(lengths.max())
        if self.device.type != "cuda" and not self.gives_few_shapes:
            return longest
        if self.segment_len is None:
            return rounded_up(longest)
        more = longest - self.segment_len  # early in an episode, steps of the burn-in are part of a segment
        return self.segment_len + (rounded_up(more) if more > 0 else 0)

    def _segments(
        self, episodes: list[StoredEpisode], starts: Array, lengths: Array
    ) -> Iterator[tuple[int, StoredEpisode, int, int, int]]:
        """Yield for each row of a batch its number, its episode, where its steps begin and stop, and the first step."""
        for i, (episode, start, length) in enumerate(zip(episodes, starts.tolist(), lengths.tolist(), strict=True)):
            begin = self.burn_in if start == 0 else 0
            yield i, episode, begin, self.burn_in + length, start + begin - self.burn_in

    def _copy(self, episodes: list[StoredEpisode], starts: Array, lengths: Array, skipped: Array) -> Batch:
        """Build a batch of segments of `lengths` steps from `starts` on, by one copy of each from its episode.

        Step `starts[i]` of the episode is at position `burn_in` of row i. With `burn_in` = 2, `segment_len` = 3, and
        `-` for padding, these are the steps of two rows:

            position   0  1  2  3  4  5
            first = 7  5  6  7  8  9  -  starts = 7, skipped = 0, lengths = 3: steps 5 and 6 are the burn-in
            first = 1  -  -  0  1  2  3  starts = 0, skipped = 1, lengths = 4: step 0 counts in no loss
        """
        rows, burn_in, stack = len(episodes), self.burn_in, self.frame_stack
        steps = burn_in + self._num_steps(lengths)
        observations = np.zeros((rows, steps + 1, stack, *self.frame_shape), self.dtype)
        actions = np.zeros((rows, steps, self.action_dim), np.float32)
        rewards, terminations, loss_mask = np.zeros((3, rows, steps, 1), np.float32)
        valid = np.zeros((rows, steps + 1, 1), np.float32)
        first_action = np.zeros((rows, self.action_dim), np.float32)
        first_reward = np.zeros((rows, 1), np.float32)
        for i, episode, begin, stop, source in self._segments(episodes, starts, lengths):
            end = source + stop - begin
            for k in range(stack):
                observations[i, begin : stop + 1, k] = episode.frames[source + k : end + k + 1]
            actions[i, begin:stop] = episode.actions[source:end]
            rewards[i, begin:stop] = episode.rewards[source:end]
            terminations[i, stop - 1] = episode.terminated and end == len(episode.actions)
            valid[i, begin : stop + 1] = 1.0
            loss_mask[i, burn_in + skipped[i] : stop] = 1.0
            if source > 0:
                first_action[i], first_reward[i] = episode.actions[source - 1], episode.rewards[source - 1]
        return Batch(
            observations=self.tensor(observations.reshape(rows, steps + 1, *self.observation_shape)),
            actions=self.tensor(actions),
            rewards=self.tensor(rewards),
            terminations=self.tensor(terminations),
            valid=self.tensor(valid),
            loss_mask=self.tensor(loss_mask),
            first_action=self.tensor(first_action),
            first_reward=self.tensor(first_reward),
            burn_in=burn_in,
        )

    def _gather(self, rows: Storage, begins: Array, starts: Array, lengths: Array, skipped: Array) -> Batch:
        """Build the batch of `_copy` from rows on the device, where the episodes begin at `begins`."""
        nothing = len(rows.rewards) - 1  # a row of zeros, for steps that do not exist
        steps = (starts - self.burn_in)[:, None] + np.arange(-1, self.burn_in + self._num_steps(lengths) + 1)
        exists = (steps >= 0) & (steps <= (starts + lengths)[:, None])
        frames = (begins[:, None] + steps)[..., None] + np.arange(self.frame_stack)
        places = np.where(exists[..., None], frames % nothing, nothing)
        newest = places[..., -1]
        during = np.where(newest[:, 2:] != nothing, newest[:, 1:-1], nothing)  # a segment may end in mid-episode
        valid = (newest[:, 1:, None] != nothing).astype(np.float32)
        counts = np.arange(steps.shape[1] - 2) >= self.burn_in + skipped[:, None]

        def read(column: Any, places: Array) -> Any:
            return column[self.tensor(places)]

        return Batch(
            observations=read(rows.observations, places[:, 1:]).reshape(*valid.shape[:2], *self.observation_shape),
            actions=read(rows.actions, during),
            rewards=read(rows.rewards, during),
            terminations=read(rows.terminations, during),
            valid=self.tensor(valid),
            loss_mask=self.tensor(valid[:, 1:] * counts[..., None]),
            first_action=read(rows.actions, newest[:, 0]),
            first_reward=read(rows.rewards, newest[:, 0]),
            burn_in=self.burn_in,
        )

    def chunks(self) -> list[Chunk]:
        """Return the finished episodes as one chunk per group; none for recorded data."""
        episodes = () if self.recorded else self.episodes
        chunks, first = [], self.num_kept - len(episodes)
        for group, members in itertools.groupby(episodes, key=lambda episode: episode.group):
            arrays = [array for episode in members for array in episode.stored]
            last = first + len(arrays) // 3
            chunks.append(Chunk(group, (self.num_loaded, first, last), arrays))
            first = last
        return chunks

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the base class, of finished episodes, and the unfinished episodes."""
        episodes = () if self.recorded else self.episodes
        return {
            **super().metadata(),
            "lengths": [len(episode.actions) for episode in episodes],
            "terminated": [episode.terminated for episode in episodes],
            "groups": [episode.group for episode in episodes],
            "num_recorded": [episode.num_recorded for episode in episodes],
            "num_kept": self.num_kept,
            "bytes_kept": self.bytes_kept,
            "unfinished": [episode.state_dict() for episode in self.unfinished],
        }

    def _outlined_bytes(self, metadata: Mapping[str, Any]) -> int:
        lengths: list[int] = metadata["lengths"]
        return sum(lengths) * self.bytes_per_step + len(lengths) * self.frame_stack * self.bytes_per_frame

    def _allocate(self, metadata: Mapping[str, Any]) -> None:
        self.device_copy.forget()
        self.episodes = deque()  # unlimited: the checkpoint may contain more episodes than the capacity
        columns = [metadata[name] for name in ("lengths", "terminated", "groups")]
        columns.append(metadata.get("num_recorded", [0] * len(columns[0])))  # older checkpoints may lack it
        for length, terminated, group, num_recorded in zip(*columns, strict=True):
            frames = self._empty_frames(length + self.frame_stack)
            actions, rewards = (np.empty((length, width), np.float32) for width in (self.action_dim, 1))
            self.episodes.append(StoredEpisode(frames, actions, rewards, terminated, group, num_recorded))
        self.num_kept, self.bytes_kept = metadata["num_kept"], metadata["bytes_kept"]
        for episode, saved in zip(self.unfinished, metadata["unfinished"], strict=True):
            episode.load_state_dict(saved)

    def _finalize(self) -> None:
        self.episodes = deque(self.episodes, self.capacity)
        self._count()


def rounded_up(length: int) -> int:
    """Return a length, rounded up to a multiple of 8; above 128, to one of a 16th of the next power of two."""
    step = max(8, (1 << (length - 1).bit_length()) // 16)
    return -(-length // step) * step
