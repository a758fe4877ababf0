"""The original offpcc (zhihanyang2022/off-policy-continuous-control) at the sizes of a case, from its own buffers."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from benchmarks.cases import ACTION_DIM, EPISODE_LENGTH, OBSERVATION_DIM, Case
from benchmarks.libraries import UnavailableError, Work, clones
from benchmarks.recorded import transitions

ABSENT = ("kornia", "wandb", "cv2", "gym")
CLASSES = {
    "ddpg": "algorithms.ddpg.DDPG",
    "td3": "algorithms.td3.TD3",
    "sac": "algorithms.sac.SAC",
    "rdpg": "algorithms_recurrent.recurrent_ddpg.RecurrentDDPG",
    "rtd3": "algorithms_recurrent.recurrent_td3.RecurrentTD3",
    "rsac": "algorithms_recurrent.recurrent_sac.RecurrentSAC",
    "rsac_s": "algorithms_recurrent.recurrent_sac_sharing.RecurrentSACSharing",
}


def prepare(case: Case, num_transitions: int, root: Path) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: there is no such algorithm.
    """
    if case.algorithm not in CLASSES or case.kind != "update":
        raise UnavailableError(
            f"the original offpcc is measured by updates of {', '.join(CLASSES)}, not by {case.name}"
        )
    clones.use(root / "offpcc", *ABSENT)
    module, _, name = CLASSES[case.algorithm].rpartition(".")
    sizes = case.sizes
    try:
        import gin

        bound: dict[str, Any] = {"make_MLP.hidden_dimensions": sizes.hidden_dims}
        if sizes.memory:
            bound["Summarizer.num_layers"] = sizes.memory[1]
        kind = getattr(importlib.import_module(module), name)
        buffers = importlib.import_module("basics.replay_buffer" + "_recurrent" * bool(sizes.memory))
    except ImportError as error:
        raise UnavailableError(f"the original offpcc cannot be imported here ({error})") from error
    for parameter, value in bound.items():
        gin.bind_parameter(parameter, value)
    capacity = num_transitions + EPISODE_LENGTH
    made = transitions(num_transitions)
    if sizes.memory:
        agent = kind(OBSERVATION_DIM, ACTION_DIM, hidden_dim=sizes.memory[0])
        buffer = buffers.RecurrentReplayBuffer(
            OBSERVATION_DIM,
            ACTION_DIM,
            EPISODE_LENGTH,
            sizes.segment_len,
            capacity=capacity // EPISODE_LENGTH,
            batch_size=sizes.batch_size,
        )
    else:
        agent = kind(OBSERVATION_DIM, ACTION_DIM)
        buffer = buffers.ReplayBuffer((OBSERVATION_DIM,), ACTION_DIM, capacity, sizes.batch_size)
    for *row, terminated, truncated in zip(*made, strict=True):
        buffer.push(*row, terminated, *([truncated] if sizes.memory else []))
    return Work(lambda: agent.update_networks(buffer.sample()))
