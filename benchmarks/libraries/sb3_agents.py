"""stable-baselines3 at the sizes of a case; an update is `train` of one gradient step, as its own loop calls it."""

from __future__ import annotations

from typing import Any

import numpy as np
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import configure

import offpcc
from benchmarks.cases import EPISODE_LENGTH, NUM_ACTIONS, Case
from benchmarks.libraries import UnavailableError, Work
from benchmarks.libraries.spaces import Spaces
from benchmarks.recorded import NUM_STACKS, STACKS, stacks, transitions

CLASSES = {"sac": stable_baselines3.SAC, "td3": stable_baselines3.TD3}
WARM_UP = 1_000  # random steps before the first update


def prepare(case: Case, num_transitions: int) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: there is no such algorithm.
    """
    if case.sizes.frames_in:
        return _sampling_of_frames(case)
    if case.algorithm not in CLASSES:
        raise UnavailableError(f"stable-baselines3 has no {case.algorithm}")
    if case.kind == "steps":
        return _steps(case)
    model = _model(case, Spaces(), num_transitions)
    fill(model.replay_buffer, num_transitions)
    if case.kind == "sample":
        return Work(lambda: model.replay_buffer.sample(case.sizes.batch_size))
    model.set_logger(configure(None, []))
    return Work(lambda: model.train(gradient_steps=1, batch_size=case.sizes.batch_size))


def _sampling_of_frames(case: Case) -> Work:
    """Each stack is stored whole, without the one after it (`optimize_memory_usage`)."""
    options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    buffer = ReplayBuffer(NUM_STACKS, STACKS, spaces.Discrete(NUM_ACTIONS), "cpu", **options)
    for stack, choice, reward, following, *ends in stacks(NUM_STACKS):
        buffer.add(stack[None], following[None], np.array([choice]), np.array([reward]), np.array([any(ends)]), [{}])
    return Work(lambda: buffer.sample(case.sizes.batch_size), note="stores each frame four times")


def store(capacity: int) -> Any:
    """What stores a transition, in an empty buffer."""
    spaces = Spaces()
    buffer = ReplayBuffer(capacity, spaces.observation_space, spaces.action_space, "cpu")

    def push(observation: np.ndarray, action: np.ndarray, reward: float, following: np.ndarray, *ends: bool) -> None:
        done, infos = np.array([any(ends)]), [{"TimeLimit.truncated": ends[1]}]
        buffer.add(observation[None], following[None], action[None], np.array([reward]), done, infos)

    return push


def fill(buffer: ReplayBuffer, num_transitions: int) -> None:
    """Put whole episodes in."""
    for observation, action, reward, following, _, truncated in zip(*transitions(num_transitions), strict=True):
        infos = [{"TimeLimit.truncated": bool(truncated)}]
        buffer.add(observation[None], following[None], action[None], reward[None], truncated[None], infos)


def _model(case: Case, env: Any, capacity: int) -> Any:
    sizes = case.sizes
    return CLASSES[case.algorithm](
        "MlpPolicy",
        env,
        batch_size=sizes.batch_size,
        buffer_size=capacity,
        learning_starts=WARM_UP,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": list(sizes.hidden_dims), "n_critics": sizes.num_critics},
        device=case.device,
        seed=1,
    )


def _steps(case: Case) -> Work:
    """Its own loop in the same environment, an episode's length of steps at a time."""
    model = _model(case, offpcc.make(case.env, scale_actions=True), 1_000_000)
    model.learn(WARM_UP)
    return Work(lambda: model.learn(EPISODE_LENGTH, reset_num_timesteps=False), EPISODE_LENGTH)
