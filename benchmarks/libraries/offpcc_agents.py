"""offpcc as a user builds it, at the sizes of a case."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import offpcc
from benchmarks.cases import (
    ACTION_DIM,
    ATARI,
    EPISODE_LENGTH,
    NUM_ACTIONS,
    NUM_ELITES,
    NUM_STACKED,
    OBSERVATION_DIM,
    Case,
    Sizes,
)
from benchmarks.libraries import UnavailableError, Work
from benchmarks.recorded import NUM_STACKS, STACKS, stacks, transitions
from offpcc.algorithms import ALGORITHMS, ActorCritic
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.core import Step
from offpcc.data import Dataset
from offpcc.data.buffers.replay import ReplayBuffer
from offpcc.data.buffers.sequence_replay import RecurrentReplayBuffer
from offpcc.data.offline import read
from offpcc.networks import Recurrent, Residual
from offpcc.training.loggers import Loggers
from offpcc.training.models.training import ModelFit, ModelTraining
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.system import keep_freed_memory

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (OBSERVATION_DIM,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
WARM_UP = 1_000  # random steps before the first update


def prepare(case: Case, num_transitions: int, **options: Any) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: this version has no such option.
    """
    if case.kind == "steps":
        return _steps(case, options)
    if case.kind == "act":
        return _act(case, options)
    if case.kind in ("model", "imagine"):
        return _model(case, num_transitions, options)
    if case.sizes.frames_in:
        return Work(_buffer_of_frames(case.sizes).sample)
    storage = buffer(case.sizes, num_transitions, case.device)
    if case.kind == "sample":
        return Work(storage.sample)
    learner = algorithm(case.algorithm, case.sizes, device=case.device, **options)
    storage.gives_next_actions = learner.reads_next_actions
    storage.return_discount = learner.gamma if learner.reads_returns else None
    if learner.normalization is not None:  # a data set's statistics, as for a user who learns from one
        seen = transitions(num_transitions).observations
        learner.normalization.set_statistics(seen.mean(0), seen.std(0))
    if options.get("compile"):  # each kind of update, with and without a step of the actor
        for _ in range(1 + getattr(learner, "policy_delay", 1)):
            learner.update_networks(storage.sample())
    return Work(lambda: learner.update_networks(storage.sample()))


def store(capacity: int) -> Any:
    """What stores a transition, in an empty buffer."""
    return ReplayBuffer(OBSERVATIONS, ACTIONS, capacity=capacity + capacity // EPISODE_LENGTH + 1).push


def algorithm(name: str, sizes: Sizes, **options: Any) -> ActorCritic:
    """An algorithm of the given sizes.

    Raises:
        UnavailableError: this version, or this algorithm, has no such option.
    """
    keep_freed_memory()  # as the command line does
    try:
        return ALGORITHMS[name](OBSERVATIONS, ACTIONS, seed=1, **arguments(name, sizes), **options)
    except (TypeError, UserError) as error:
        if isinstance(error, TypeError) and not any(f"'{option}'" in str(error) for option in options):
            raise
        told = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise UnavailableError(f"this offpcc has no {name} with {told} ({first_line(error)})") from error


def arguments(name: str, sizes: Sizes) -> dict[str, Any]:
    """Of an algorithm's class."""
    given: dict[str, Any] = {"hidden_dims": sizes.hidden_dims}
    if name != "bc":
        given["num_critics"] = sizes.num_critics
    if sizes.residual is not None:
        given["heads"] = Residual(actor_width=sizes.residual, critic_width=sizes.residual)
    if name == "bcq":
        given["vae_hidden_dims"] = sizes.hidden_dims
    if name in ("cql", "calql", "bcq", "awac", "crr"):
        given["num_samples"] = sizes.num_samples
    if name == "rlpd":
        given["policy_delay"] = 20
    if sizes.memory is not None:
        width, layers = sizes.memory
        encoder = functools.partial(Recurrent, hidden_dim=width, num_layers=layers)
        given["shared_encoder" if name.endswith("_s") else "encoder"] = encoder
    return given


def storage_arguments(sizes: Sizes) -> dict[str, Any]:
    """Of the buffer's class."""
    segments = {"segment_len": sizes.segment_len} if sizes.memory else {}
    return {"batch_size": sizes.batch_size, **segments}


def buffer(sizes: Sizes, num_transitions: int, device: str = "cpu") -> ReplayBuffer | RecurrentReplayBuffer:
    """Filled with whole episodes."""
    storage: ReplayBuffer | RecurrentReplayBuffer
    if sizes.memory is None:
        storage = ReplayBuffer(OBSERVATIONS, ACTIONS, device=device, seed=1, **storage_arguments(sizes))
    else:
        storage = RecurrentReplayBuffer(OBSERVATIONS, ACTIONS, device=device, seed=1, **storage_arguments(sizes))
    for observation, action, reward, following, *ends in zip(*transitions(num_transitions), strict=True):
        storage.push(observation, action, float(reward), following, *map(bool, ends))
    return storage


def _buffer_of_frames(sizes: Sizes) -> ReplayBuffer:
    """20,000 transitions of stacked images; each frame is stored once."""
    storage = ReplayBuffer(
        STACKS,
        spaces.Discrete(NUM_ACTIONS),
        seed=1,
        capacity=NUM_STACKS + NUM_STACKS // 10,
        frame_stack=NUM_STACKED,
        memory_limit=1 if sizes.frames_in == "disk" else None,
        batch_size=sizes.batch_size,
    )
    choices = np.eye(NUM_ACTIONS, dtype=np.float32)
    for stack, choice, *rest in stacks(NUM_STACKS):
        storage.push(stack, choices[choice], *rest)
    return storage


def _act(case: Case, options: dict[str, Any]) -> Work:
    learner, memory = algorithm(case.algorithm, case.sizes, device=case.device, **options), None
    seen = transitions(EPISODE_LENGTH).observations[:, None]
    action, reward, is_first = np.zeros((1, ACTION_DIM), np.float32), np.zeros((1, 1), np.float32), np.zeros(1)

    def episode() -> None:
        nonlocal memory
        for observation in seen:
            _, memory = learner.act(Step(observation, action, reward, is_first), memory)

    return Work(episode, len(seen))


def _model(case: Case, num_transitions: int, training: dict[str, Any]) -> Work:
    """A model's update, with the reading of its batch, or steps of its elites."""
    keep_freed_memory()
    sizes, data = case.sizes, read(Dataset.from_arrays(**transitions(num_transitions)._asdict()))
    options: dict[str, Any] = {"num_members": sizes.num_critics, "num_elites": NUM_ELITES}
    model = DynamicsModel(OBSERVATION_DIM, ACTION_DIM, hidden_dims=sizes.hidden_dims, seed=1, **options)
    model.set_rule("Hopper-v5")
    fit = ModelFit(model, data.rows, ModelTraining(batch_size=sizes.batch_size, **training), 1)
    if case.kind == "model":
        batches = _batches(fit)
        fit.update(next(batches))  # it is compiled first, if at all
        return Work(lambda: fit.update(next(batches)))
    rows, generator = slice(sizes.batch_size), torch.Generator().manual_seed(1)
    seen, acted = (torch.from_numpy(x[rows, None].copy()) for x in (data.rows.observations, data.rows.actions))
    compares = case.algorithm == "imagine"
    note = "all uncertainties" if compares else "each row is read by one network"
    return Work(lambda: model.imagine(seen, acted, generator, with_uncertainty=compares), note=note)


def _batches(fit: ModelFit) -> Iterator[np.ndarray]:
    while True:
        orders, size = fit.orders(), fit.settings.batch_size
        for start in range(0, orders.shape[1] - size + 1, size):
            yield orders[:, start : start + size]


def _games(case: Case, options: dict[str, Any]) -> Work:
    """The loop of a user's run with the config for Atari, without tests; of DQN with CleanRL's settings."""
    keep_freed_memory()
    settings = [f"ReplayBuffer.batch_size = {case.sizes.batch_size}"]
    if case.algorithm == "cqrdqn":  # Tianshou's chooses the next action by the network that learns
        settings += ["QRDQN.double = True"]
    if case.algorithm == "cdqn":
        settings += ["environments.num_envs = 1", "ActorCritic.n_step = 1", "DQN.double = False"]
        settings += ["train.update_every = 4", "train.updates_per_step = 0.25"]
        settings += ["ActorCritic.target_update_interval = 250", "ValueBased.epsilon_steps = 0"]
    settings += [f"ActorCritic.{name} = {value!r}" for name, value in options.items()]
    offpcc.configure(f"discrete/atari_{case.algorithm.removeprefix('c')}.gin", *settings)
    learner = offpcc.build(case.env, case.algorithm, seed=1, device=case.device, threads=None)
    given = {"num_steps_per_epoch": EPISODE_LENGTH, "num_test_episodes_per_epoch": 0, "update_after": WARM_UP}

    def train(num_epochs: int) -> None:
        learner.train(Loggers([]), num_epochs=learner.loop.epoch + num_epochs, **given)

    # Each kind of update is compiled first, also that with a step of the targets, 1,000 steps later.
    train((2 * WARM_UP if options.get("compile") else WARM_UP) // EPISODE_LENGTH + 1)
    return Work(lambda: train(1), EPISODE_LENGTH)


def _steps(case: Case, options: dict[str, Any]) -> Work:
    """The loop of a user's run, an episode's length of steps at a time, without tests."""
    if case.sizes == ATARI:
        return _games(case, options)
    keep_freed_memory()
    learner = offpcc.build(
        case.env,
        case.algorithm,
        seed=1,
        device=case.device,
        threads=None,
        algorithm={**arguments(case.algorithm, case.sizes), **options},
        buffer=storage_arguments(case.sizes),
    )
    settings = {"num_steps_per_epoch": EPISODE_LENGTH, "num_test_episodes_per_epoch": 0}
    settings["update_after"] = WARM_UP - 1  # a call of `train` has to come to an update

    def train(num_epochs: int) -> None:
        learner.train(Loggers([]), num_epochs=learner.loop.epoch + num_epochs, **settings)

    train(WARM_UP // EPISODE_LENGTH)
    return Work(lambda: train(1), EPISODE_LENGTH)
