"""Replay buffers, datasets and image augmentation."""

from typing import TYPE_CHECKING, Any

from offpcc.data.buffers.hindsight import HindsightRecurrentReplayBuffer, HindsightReplayBuffer
from offpcc.data.buffers.prioritized import PrioritizedRecurrentReplayBuffer, PrioritizedReplayBuffer, default_buffer
from offpcc.data.buffers.replay import ReplayBuffer
from offpcc.data.buffers.sequence_replay import RecurrentReplayBuffer
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.load import load_dataset, qlearning_dataset
from offpcc.networks.augmentation import RandomShift

__all__ = [
    "Dataset",
    "HindsightRecurrentReplayBuffer",
    "HindsightReplayBuffer",
    "PrioritizedRecurrentReplayBuffer",
    "PrioritizedReplayBuffer",
    "RandomShift",
    "RecurrentReplayBuffer",
    "ReplayBuffer",
    "default_buffer",
    "load_dataset",
    "qlearning_dataset",
]

if not TYPE_CHECKING:  # type checkers find names that do not exist by themselves

    def __getattr__(name: str) -> Any:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
