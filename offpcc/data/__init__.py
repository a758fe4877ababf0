"""Buffers and augmentation."""

from offpcc.data.augmentation import RandomShift
from offpcc.data.recurrent_replay_buffer import RecurrentReplayBuffer
from offpcc.data.replay_buffer import ReplayBuffer

__all__ = ["RandomShift", "RecurrentReplayBuffer", "ReplayBuffer"]
