"""pomdp-baselines (twni2016/pomdp-baselines) at the sizes of a case; an update draws from its own buffer.

Its networks are not those of offpcc: both critics share one memory, and each network reads embeddings of observation,
action and reward, and the current observation again beside the memory.
"""

from __future__ import annotations

import codecs
import collections
import collections.abc
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cases import ACTION_DIM, EPISODE_LENGTH, OBSERVATION_DIM, Case
from benchmarks.libraries import UnavailableError, Work, clones
from benchmarks.recorded import transitions

ABSENT = ("gym", "gym.spaces", "dateutil.tz", "torch.utils.tensorboard")
EMBEDDINGS = {"observ_embedding_size": 32, "action_embedding_size": 8, "reward_embedding_size": 8}  # its pendulum's
KINDS = {"rsac": "sac", "rtd3": "td3"}
CONFIG = {"sac": {"entropy_alpha": 1.0, "automatic_entropy_tuning": True}, "td3": {}}


def prepare(case: Case, num_transitions: int, root: Path) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: there is no such algorithm.
    """
    if case.algorithm not in KINDS or case.kind != "update":
        raise UnavailableError(f"pomdp-baselines is measured by updates of {' and '.join(KINDS)}, not by {case.name}")
    clones.use(root, *ABSENT)
    codecs.register(lambda name: codecs.lookup("utf-8") if name == "future_fstrings" else None)  # of an old Python
    vars(collections).setdefault("Set", collections.abc.Set)  # of an old Python, too
    try:
        from buffers.seq_replay_buffer_vanilla import SeqReplayBuffer
        from policies.models.policy_rnn import ModelFreeOffPolicy_Separate_RNN
        from torchkit import pytorch_utils
    except ImportError as error:
        raise UnavailableError(f"pomdp-baselines cannot be imported here ({error})") from error
    pytorch_utils.set_gpu_mode(False)
    sizes, kind = case.sizes, KINDS[case.algorithm]
    assert sizes.memory is not None
    width, layers = sizes.memory
    agent = ModelFreeOffPolicy_Separate_RNN(
        OBSERVATION_DIM,
        ACTION_DIM,
        encoder="lstm",
        algo_name=kind,
        rnn_hidden_size=width,
        rnn_num_layers=layers,
        dqn_layers=list(sizes.hidden_dims),
        policy_layers=list(sizes.hidden_dims),
        **EMBEDDINGS,
        **{kind: CONFIG[kind]},
    )
    buffer = SeqReplayBuffer(num_transitions + EPISODE_LENGTH, OBSERVATION_DIM, ACTION_DIM, sizes.num_steps, 0.0)
    made = transitions(num_transitions)
    for first in range(0, len(made.rewards), EPISODE_LENGTH):
        episode = slice(first, first + EPISODE_LENGTH)
        buffer.add_episode(
            made.observations[episode],
            made.actions[episode],
            made.rewards[episode, None],
            made.terminations[episode, None],
            made.next_observations[episode],
        )

    def update() -> None:
        drawn: dict[str, np.ndarray] = buffer.random_episodes(sizes.batch_size)
        batch: dict[str, Any] = {name: torch.as_tensor(column).float() for name, column in drawn.items()}
        agent.update(batch)

    return Work(update, note="one memory for both critics, embedded inputs")
