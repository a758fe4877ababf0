"""Buffers, recorded data, and augmentation."""

from offpcc.data.augmentation import RandomShift
from offpcc.data.datasets import Dataset
from offpcc.data.loading import load, qlearning_dataset
from offpcc.data.recurrent_replay_buffer import RecurrentReplayBuffer
from offpcc.data.replay_buffer import ReplayBuffer

__all__ = ["Dataset", "RandomShift", "RecurrentReplayBuffer", "ReplayBuffer", "load", "qlearning_dataset"]
