"""d3rlpy at the sizes of a case; an update is `update` of a sampled batch, as its own loop calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import d3rlpy
import numpy as np
import torch

from benchmarks.cases import EPISODE_LENGTH, Case, Sizes
from benchmarks.libraries import Learner, UnavailableError, Work
from benchmarks.libraries.spaces import Spaces
from benchmarks.recorded import Transitions, transitions

RATE = 3e-4
TARGET_INTERVAL, NUM_QUANTILES = 500, 50  # of algorithms for discrete actions


def prepare(case: Case, num_transitions: int) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: there is no such algorithm.
    """
    d3rlpy.seed(1)
    if case.kind == "update":
        return Work(learner(case, transitions(num_transitions)).update)
    data, size = dataset(transitions(num_transitions)), case.sizes.batch_size
    if case.sizes.memory:
        return Work(lambda: data.sample_trajectory_batch(size, EPISODE_LENGTH), note="windows of 200 steps")
    return Work(lambda: data.sample_transition_batch(size))


def learner(case: Case, data: Transitions) -> Learner:
    """What learns from `data`. CRR acts by the mean of its policy; its `predict` samples actions and chooses by Q.

    Raises:
        UnavailableError: there is no such algorithm.
    """
    if case.algorithm not in CONFIGS:
        raise UnavailableError(f"d3rlpy has no {case.algorithm}")
    agent = CONFIGS[case.algorithm](case.sizes).create(device=case.device == "cuda")
    recorded = dataset(data, case.algorithm in DISCRETE)
    agent.build_with_dataset(recorded)

    @torch.no_grad()
    def mean(observations: np.ndarray) -> np.ndarray:
        return (
            agent.impl.policy(torch.as_tensor(observations, dtype=torch.float32, device=agent.impl.device))
            .squashed_mu.cpu()
            .numpy()
        )

    def one_hot(observations: np.ndarray) -> np.ndarray:
        return np.eye(data.actions.shape[1])[agent.predict(observations)]

    act = mean if case.algorithm == "crr" else one_hot if case.algorithm in DISCRETE else agent.predict
    return Learner(lambda: agent.update(recorded.sample_transition_batch(case.sizes.batch_size)), act)


def store(capacity: int) -> Any:
    """What stores a transition, in an empty buffer."""
    buffer = d3rlpy.dataset.create_fifo_replay_buffer(capacity, env=Spaces())

    def push(observation: np.ndarray, action: np.ndarray, reward: float, following: np.ndarray, *ends: bool) -> None:
        buffer.append(observation, action, reward)
        if any(ends):
            buffer.clip_episode(ends[0])

    return push


def dataset(data: Transitions, discrete: bool = False) -> Any:
    """Whole episodes. d3rlpy leaves out the last transition of each that was truncated."""
    kind = d3rlpy.ActionSpace.DISCRETE if discrete else d3rlpy.ActionSpace.CONTINUOUS
    return d3rlpy.dataset.MDPDataset(
        data.observations,
        data.actions.argmax(1)[:, None] if discrete else data.actions,
        data.rewards,
        terminals=data.terminations.astype(np.float32),
        timeouts=data.truncations.astype(np.float32),
        action_space=kind,
        action_size=data.actions.shape[1],
    )


def _encoders(sizes: Sizes, *names: str) -> dict[str, Any]:
    return {f"{name}_encoder_factory": _mlp(sizes) for name in names}


def _mlp(sizes: Sizes) -> Any:
    return d3rlpy.models.VectorEncoderFactory(hidden_units=list(sizes.hidden_dims))


def _actor_critic(sizes: Sizes, *more: str) -> dict[str, Any]:
    return {
        "actor_learning_rate": RATE,
        "critic_learning_rate": RATE,
        "batch_size": sizes.batch_size,
        "n_critics": sizes.num_critics,
        **_encoders(sizes, "actor", "critic", *more),
    }


def _conservative(sizes: Sizes) -> dict[str, Any]:
    """No multiplier is learned, as by default in offpcc."""
    settings = {"alpha_learning_rate": 0.0, "temp_learning_rate": RATE}
    settings |= {"conservative_weight": 5.0, "n_action_samples": sizes.num_samples}
    return settings | _actor_critic(sizes)


def _of_values(sizes: Sizes) -> dict[str, Any]:
    return {
        "learning_rate": RATE,
        "batch_size": sizes.batch_size,
        "encoder_factory": _mlp(sizes),
        "target_update_interval": TARGET_INTERVAL,
    }


CONFIGS: dict[str, Callable[[Sizes], Any]] = {
    "sac": lambda sizes: d3rlpy.algos.SACConfig(temp_learning_rate=RATE, **_actor_critic(sizes)),
    "td3": lambda sizes: d3rlpy.algos.TD3Config(**_actor_critic(sizes)),
    "td3_bc": lambda sizes: d3rlpy.algos.TD3PlusBCConfig(**_actor_critic(sizes)),
    "cql": lambda sizes: d3rlpy.algos.CQLConfig(**_conservative(sizes)),
    "calql": lambda sizes: d3rlpy.algos.CalQLConfig(**_conservative(sizes)),
    "bcq": lambda sizes: d3rlpy.algos.BCQConfig(
        imitator_learning_rate=RATE, n_action_samples=sizes.num_samples, **_actor_critic(sizes, "imitator")
    ),
    "iql": lambda sizes: d3rlpy.algos.IQLConfig(**_actor_critic(sizes, "value")),
    "awac": lambda sizes: d3rlpy.algos.AWACConfig(n_action_samples=sizes.num_samples, **_actor_critic(sizes)),
    "crr": lambda sizes: d3rlpy.algos.CRRConfig(  # targets are averages, as in offpcc
        n_action_samples=sizes.num_samples, target_update_type="soft", **_actor_critic(sizes)
    ),
    "bc": lambda sizes: d3rlpy.algos.BCConfig(
        learning_rate=RATE, batch_size=sizes.batch_size, encoder_factory=_mlp(sizes)
    ),
    "dbc": lambda sizes: d3rlpy.algos.DiscreteBCConfig(
        learning_rate=RATE, batch_size=sizes.batch_size, encoder_factory=_mlp(sizes), beta=0.0
    ),
    "dbcq": lambda sizes: d3rlpy.algos.DiscreteBCQConfig(beta=0.01, share_encoder=False, **_of_values(sizes)),
    "dcql": lambda sizes: d3rlpy.algos.DiscreteCQLConfig(
        alpha=1.0, q_func_factory=d3rlpy.models.QRQFunctionFactory(n_quantiles=NUM_QUANTILES), **_of_values(sizes)
    ),
}
DISCRETE = ("dbc", "dbcq", "dcql")
