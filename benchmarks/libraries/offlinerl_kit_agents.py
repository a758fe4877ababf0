"""OfflineRL-Kit (yihaosun1124/OfflineRL-Kit) at the sizes of a case; an update draws from its own buffer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks.cases import NUM_ELITES, Case, Sizes
from benchmarks.libraries import Learner, UnavailableError, Work, clones
from benchmarks.libraries.spaces import Spaces
from benchmarks.recorded import Transitions, transitions

ABSENT = ("gym", "gym.envs.mujoco", "pandas", "matplotlib.pyplot", "torch.utils.tensorboard")
RATE = 3e-4
ALL = "one uncertainty; all networks read all rows, in offpcc the elites alone"


def prepare(case: Case, num_transitions: int, root: Path) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: there is no such algorithm.
    """
    if case.kind in ("model", "imagine"):
        return _model(case, transitions(num_transitions), root)
    if case.kind != "update":
        raise UnavailableError("OfflineRL-Kit is measured by its updates and models alone")
    return Work(learner(case, transitions(num_transitions), root).update)


def learner(case: Case, data: Transitions, root: Path) -> Learner:
    """What learns from `data`.

    Raises:
        UnavailableError: there is no such algorithm.
    """
    if case.algorithm not in BUILDERS:
        raise UnavailableError(f"OfflineRL-Kit has no {case.algorithm}")
    clones.use(root, *ABSENT)
    try:
        from offlinerlkit import modules, nets, policy
        from offlinerlkit.buffer import ReplayBuffer
        from offlinerlkit.utils.noise import GaussianNoise
    except ImportError as error:
        raise UnavailableError(f"OfflineRL-Kit cannot be imported here ({error})") from error
    parts = Parts(modules, nets, policy, GaussianNoise, *data.dims, case.sizes)
    agent = BUILDERS[case.algorithm](parts)
    agent.train()
    buffer = ReplayBuffer(len(data.rewards), data.dims[:1], np.float32, data.dims[1], np.float32)
    columns = ("observations", "actions", "rewards", "next_observations")
    buffer.load_dataset({name: getattr(data, name) for name in columns} | {"terminals": data.terminations})

    def act(observations: np.ndarray) -> np.ndarray:
        agent.eval()
        actions = agent.select_action(observations, deterministic=True)
        agent.train()
        return np.asarray(actions)

    return Learner(lambda: agent.learn(buffer.sample(case.sizes.batch_size)), act)


def _model(case: Case, data: Transitions, root: Path) -> Work:
    """An update of its ensemble, by a batch for each network, or steps of all networks with MOPO's penalty."""
    clones.use(root, *ABSENT)
    try:
        from offlinerlkit.dynamics import EnsembleDynamics
        from offlinerlkit.modules import EnsembleDynamicsModel
        from offlinerlkit.utils.scaler import StandardScaler
        from offlinerlkit.utils.termination_fns import termination_fn_hopper
    except ImportError as error:
        raise UnavailableError(f"OfflineRL-Kit cannot be imported here ({error})") from error
    sizes = case.sizes
    decays = [1e-5] * (len(sizes.hidden_dims) + 1)
    networks = EnsembleDynamicsModel(
        *data.dims,
        sizes.hidden_dims,
        sizes.num_critics,
        NUM_ELITES,
        activation=torch.nn.ReLU,
        weight_decays=decays,
    )
    adam, scaler = torch.optim.Adam(networks.parameters(), lr=1e-3), StandardScaler()
    model = EnsembleDynamics(networks, adam, scaler, termination_fn_hopper, penalty_coef=1.0)
    columns = data._asdict() | {"rewards": data.rewards[:, None]}
    inputs, targets = model.format_samples_for_training(columns)
    scaler.fit(inputs)
    if case.kind == "imagine":
        seen, acted = (columns[name][: sizes.batch_size] for name in ("observations", "actions"))
        return Work(lambda: model.step(seen, acted), note=ALL)
    inputs, draws = scaler.transform(inputs), np.random.default_rng(1)
    shape = sizes.num_critics, sizes.batch_size

    def update() -> None:
        drawn = draws.integers(len(inputs), size=shape)
        model.learn(inputs[drawn], targets[drawn], sizes.batch_size)

    return Work(update)


class Parts:
    """Its modules, and networks of the given sizes made of them."""

    def __init__(
        self, modules: Any, nets: Any, policy: ModuleType, noise: Any, num_in: int, num_out: int, sizes: Sizes
    ) -> None:
        self.modules, self.nets, self.policy, self.noise = modules, nets, policy, noise
        self.num_in, self.num_out, self.sizes = num_in, num_out, sizes

    def mlp(self, num_in: int) -> Any:
        return self.nets.MLP(num_in, self.sizes.hidden_dims)

    def critic(self, num_in: int | None = None) -> Any:
        return self.modules.Critic(self.mlp(num_in or self.num_in + self.num_out))

    def deterministic(self) -> Any:
        return self.modules.Actor(self.mlp(self.num_in), self.num_out)

    def gaussian(self, kind: str, **options: bool) -> Any:
        dist = getattr(self.modules, kind)(self.sizes.hidden_dims[-1], self.num_out, **options)
        return self.modules.ActorProb(self.mlp(self.num_in), dist)

    def squashed(self) -> Any:
        return self.gaussian("TanhDiagGaussian", unbounded=True, conditioned_sigma=True)

    def temperature(self) -> tuple[float, Any, Any]:
        log_alpha = torch.zeros(1, requires_grad=True)
        return -float(self.num_out), log_alpha, torch.optim.Adam([log_alpha], lr=RATE)


def _with_optimizers(policy: Any, *networks: Any, **options: Any) -> Any:
    return policy(*networks, *(torch.optim.Adam(network.parameters(), lr=RATE) for network in networks), **options)


def _td3_bc(p: Parts) -> Any:
    policy = functools.partial(p.policy.TD3BCPolicy, exploration_noise=p.noise(sigma=0.1))
    return _with_optimizers(policy, p.deterministic(), p.critic(), p.critic())


def _iql(p: Parts) -> Any:
    actor = p.gaussian("DiagGaussian", unbounded=False, conditioned_sigma=False)
    networks = (actor, p.critic(), p.critic(), p.critic(p.num_in))
    return _with_optimizers(
        p.policy.IQLPolicy, *networks, action_space=Spaces.action_space, expectile=0.7, temperature=3.0
    )


def _cql(p: Parts) -> Any:
    return _with_optimizers(
        p.policy.CQLPolicy,
        *(p.squashed(), p.critic(), p.critic()),
        action_space=Spaces.action_space,
        alpha=p.temperature(),
        cql_weight=5.0,
        with_lagrange=False,
        deterministic_backup=False,
        num_repeart_actions=p.sizes.num_samples,
    )


def _edac(p: Parts, eta: float = 1.0) -> Any:
    critics = p.modules.EnsembleCritic(p.num_in, p.num_out, p.sizes.hidden_dims, num_ensemble=p.sizes.num_critics)
    options = {"alpha": p.temperature(), "deterministic_backup": False, "eta": eta}
    return _with_optimizers(p.policy.EDACPolicy, p.squashed(), critics, **options)


BUILDERS: dict[str, Callable[[Parts], Any]] = {
    "td3_bc": _td3_bc,
    "iql": _iql,
    "cql": _cql,
    "edac": _edac,
    "sac_n": functools.partial(_edac, eta=0.0),
    "bc": lambda p: _with_optimizers(p.policy.BCPolicy, p.deterministic()),
}
