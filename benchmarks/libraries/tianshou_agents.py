"""Tianshou at the sizes of a case; an update is `update` from its buffer, as its own trainers call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm import (
    BCQ,
    CQL,
    QRDQN,
    SAC,
    TD3,
    TD3BC,
    DiscreteBCQ,
    DiscreteCQL,
    DiscreteCRR,
    OffPolicyImitationLearning,
)
from tianshou.algorithm.imitation.bcq import BCQPolicy
from tianshou.algorithm.imitation.discrete_bcq import DiscreteBCQPolicy
from tianshou.algorithm.imitation.imitation_base import ImitationPolicy
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.env.atari.atari_network import QRDQNet, ScaledObsInputActionReprNet
from tianshou.utils.net.common import MLP, Net
from tianshou.utils.net.continuous import (
    VAE,
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
    Perturbation,
)
from tianshou.utils.net.discrete import DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

import offpcc
from benchmarks.cases import (
    ACTION_DIM,
    EPISODE_LENGTH,
    N_STEP,
    NUM_GAMES,
    NUM_QUANTILES,
    NUM_STACKED,
    OBSERVATION_DIM,
    STEPS_PER_UPDATE,
    Case,
    Sizes,
)
from benchmarks.libraries import Learner, UnavailableError, Work
from benchmarks.libraries.spaces import Spaces
from benchmarks.recorded import NUM_STACKS, Transitions, stacks, transitions

RATE = 3e-4
WARM_UP = 1_000  # random steps before the first update
LATENT_DIM = 2 * ACTION_DIM


def prepare(case: Case, num_transitions: int) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: there is no such algorithm.
    """
    if case.kind == "steps":
        return _games(case)
    if case.sizes.frames_in:
        return _sampling_of_frames(case)
    buffer, size = filled(num_transitions), case.sizes.batch_size
    if case.kind == "sample":
        return Work(lambda: buffer.sample(size))
    if case.algorithm not in BUILDERS:
        raise UnavailableError(f"Tianshou has no {case.algorithm}")
    learner = BUILDERS[case.algorithm](case.sizes)
    learner.policy.is_within_training_step = True
    return Work(lambda: learner.update(buffer, size), note=DIFFERS.get(case.algorithm, ""))


DIFFERS = {
    "bcq": "does not perturb the sampled next actions, so it lacks a pass of the target actor",
    "cql": "clips the critics' gradients",
}


def learner(case: Case, data: Transitions) -> Learner:
    """What learns from `data`, for discrete actions. BCQ acts and imitates by networks of their own.

    Raises:
        UnavailableError: there is no such algorithm here.
    """
    num_observed, num_actions = data.dims
    sizes, space = case.sizes.hidden_dims, gymnasium.spaces.Discrete(num_actions)

    def net(num_atoms: int = 1) -> Net:
        return Net(state_shape=num_observed, action_shape=num_actions, hidden_sizes=sizes, num_atoms=num_atoms)

    agent: Any
    match case.algorithm:
        case "dbc":
            policy = ImitationPolicy(actor=net(), action_space=space)
            agent = OffPolicyImitationLearning(policy=policy, optim=_adam())
        case "dbcq":
            policy = DiscreteBCQPolicy(model=net(), imitator=net(), target_update_freq=500, action_space=space)
            agent = DiscreteBCQ(policy=policy, optim=_adam(), target_update_freq=500)
        case "dcql":
            policy = QRDQNPolicy(model=net(num_atoms=50), action_space=space)
            agent = DiscreteCQL(
                policy=policy, optim=_adam(), num_quantiles=50, min_q_weight=1.0, target_update_freq=500
            )
        case "dcrr":
            policy = DiscreteActorPolicy(actor=net(), action_space=space)
            critic = DiscreteCritic(
                preprocess_net=Net(state_shape=num_observed, hidden_sizes=sizes), last_size=num_actions
            )
            agent = DiscreteCRR(policy=policy, critic=critic, optim=_adam(), min_q_weight=1.0, target_update_freq=500)
        case _:
            raise UnavailableError(f"no {case.algorithm} of Tianshou learns from recorded data here")
    agent.policy.is_within_training_step = True
    buffer, size = filled_with(data._replace(actions=data.actions.argmax(1))), case.sizes.batch_size

    @torch.no_grad()
    def act(observations: np.ndarray) -> np.ndarray:
        seen = torch.as_tensor(observations, dtype=torch.float32)
        if case.algorithm == "dcrr":  # its policy samples
            best = agent.policy.actor(seen)[0].argmax(-1)
        else:
            best = agent.policy(Batch(obs=seen, info={})).act
        return np.eye(num_actions)[np.asarray(best)]

    return Learner(lambda: agent.update(buffer, size), act)


def _games(case: Case) -> Work:
    """Its collector and updates in turn, as its trainer calls them, in the games that offpcc learns in."""
    envs = DummyVectorEnv([lambda: offpcc.make(case.env) for _ in range(NUM_GAMES)])
    num_actions = int(offpcc.make(case.env).action_space.n)
    shape = {"c": 4, "h": 84, "w": 84, "action_shape": num_actions}
    net = ScaledObsInputActionReprNet(QRDQNet(**shape, num_quantiles=NUM_QUANTILES))
    policy = QRDQNPolicy(model=net, action_space=gymnasium.spaces.Discrete(num_actions), eps_training=0.05)
    learner = QRDQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-4),
        num_quantiles=NUM_QUANTILES,
        n_step_return_horizon=N_STEP,
        target_update_freq=500,
    )
    buffer = VectorReplayBuffer(100_000, NUM_GAMES, ignore_obs_next=True, save_only_last_obs=True, stack_num=4)
    collector = Collector(policy, envs, buffer, exploration_noise=True)
    collector.reset()
    with policy_within_training_step(policy):
        collector.collect(n_step=WARM_UP, random=True)

    def step() -> None:
        with policy_within_training_step(policy):
            for _ in range(EPISODE_LENGTH // STEPS_PER_UPDATE):
                collector.collect(n_step=STEPS_PER_UPDATE)
                learner.update(buffer, case.sizes.batch_size)

    return Work(step, EPISODE_LENGTH)


def _sampling_of_frames(case: Case) -> Work:
    """Each frame is stored once; `sample` reads the stacks of observations and next observations."""
    buffer = ReplayBuffer(NUM_STACKS, ignore_obs_next=True, save_only_last_obs=True, stack_num=NUM_STACKED)
    for stack, choice, reward, following, terminated, truncated in stacks(NUM_STACKS):
        row = {"obs": stack, "act": choice, "rew": reward, "obs_next": following}
        buffer.add(Batch(**row, terminated=terminated, truncated=truncated, info={}))
    return Work(lambda: buffer.sample(case.sizes.batch_size))


def store(capacity: int) -> Any:
    """What stores a transition, in an empty buffer."""
    buffer = ReplayBuffer(capacity)

    def push(observation: np.ndarray, action: np.ndarray, reward: float, following: np.ndarray, *ends: bool) -> None:
        row = {"obs": observation, "act": action, "rew": reward, "obs_next": following}
        buffer.add(Batch(**row, terminated=ends[0], truncated=ends[1], info={}))

    return push


def filled(num_transitions: int) -> ReplayBuffer:
    """A buffer of whole episodes."""
    return filled_with(transitions(num_transitions))


def filled_with(made: Transitions) -> ReplayBuffer:
    """A buffer of these transitions."""
    return ReplayBuffer.from_data(
        obs=made.observations,
        act=made.actions,
        rew=made.rewards,
        terminated=made.terminations,
        truncated=made.truncations,
        done=made.truncations | made.terminations,
        obs_next=made.next_observations,
    )


def _adam() -> AdamOptimizerFactory:
    return AdamOptimizerFactory(lr=RATE)


def _optimizers() -> dict[str, AdamOptimizerFactory]:
    return {"policy_optim": _adam(), "critic_optim": _adam(), "critic2_optim": _adam()}


def _critic(sizes: Sizes) -> ContinuousCritic:
    body = Net(state_shape=OBSERVATION_DIM, action_shape=ACTION_DIM, hidden_sizes=sizes.hidden_dims, concat=True)
    return ContinuousCritic(preprocess_net=body)


def _critics(sizes: Sizes) -> dict[str, ContinuousCritic]:
    return {"critic": _critic(sizes), "critic2": _critic(sizes)}


def _gaussian_policy(sizes: Sizes) -> SACPolicy:
    body = Net(state_shape=OBSERVATION_DIM, hidden_sizes=sizes.hidden_dims)
    actor = ContinuousActorProbabilistic(
        preprocess_net=body, action_shape=ACTION_DIM, unbounded=True, conditioned_sigma=True
    )
    return SACPolicy(actor=actor, action_space=Spaces.action_space)


def _temperature() -> AutoAlpha:
    return AutoAlpha(target_entropy=-float(ACTION_DIM), log_alpha=0.0, optim=_adam())


def _sac(sizes: Sizes) -> SAC:
    return SAC(policy=_gaussian_policy(sizes), alpha=_temperature(), **_critics(sizes), **_optimizers())


def _td3(sizes: Sizes, kind: type[TD3] = TD3) -> TD3:
    body = Net(state_shape=OBSERVATION_DIM, hidden_sizes=sizes.hidden_dims)
    actor = ContinuousActorDeterministic(preprocess_net=body, action_shape=ACTION_DIM, max_action=1.0)
    policy = ContinuousDeterministicPolicy(actor=actor, action_space=Spaces.action_space)
    return kind(policy=policy, **_critics(sizes), **_optimizers())


def _cql(sizes: Sizes) -> CQL:
    return CQL(
        policy=_gaussian_policy(sizes),
        alpha=_temperature(),
        cql_weight=5.0,
        with_lagrange=False,  # no multiplier is learned and no value calibrated, as by default in offpcc
        calibrated=False,
        num_repeat_actions=sizes.num_samples,
        **_critics(sizes),
        **_optimizers(),
    )


def _bcq(sizes: Sizes) -> BCQ:
    encoder = MLP(input_dim=OBSERVATION_DIM + ACTION_DIM, hidden_sizes=sizes.hidden_dims)
    decoder = MLP(input_dim=OBSERVATION_DIM + LATENT_DIM, output_dim=ACTION_DIM, hidden_sizes=sizes.hidden_dims)
    vae = VAE(encoder=encoder, decoder=decoder, hidden_dim=sizes.hidden_dims[-1], latent_dim=LATENT_DIM, max_action=1.0)
    moves = Net(state_shape=OBSERVATION_DIM + ACTION_DIM, action_shape=ACTION_DIM, hidden_sizes=sizes.hidden_dims)
    policy = BCQPolicy(
        actor_perturbation=Perturbation(preprocess_net=moves, max_action=1.0),
        action_space=Spaces.action_space,
        critic=_critic(sizes),
        vae=vae,
    )
    return BCQ(
        policy=policy,
        actor_perturbation_optim=_adam(),
        critic_optim=_adam(),
        vae_optim=_adam(),
        critic2=_critic(sizes),
        num_sampled_action=sizes.num_samples,
    )


BUILDERS: dict[str, Callable[[Sizes], Any]] = {
    "sac": _sac,
    "td3": _td3,
    "td3_bc": lambda sizes: _td3(sizes, TD3BC),
    "cql": _cql,
    "bcq": _bcq,
}
