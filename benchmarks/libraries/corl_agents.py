"""CORL (corl-team/CORL) at the sizes of a case; an update draws from its own buffer, as its scripts do.

ReBRAC is in JAX there: it needs the packages jax, flax, optax and chex, which `make bench` does not install.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks.cases import Case, Sizes
from benchmarks.libraries import Learner, UnavailableError, Work, clones
from benchmarks.recorded import Transitions, transitions

ABSENT = ("d4rl", "gym", "pyrallis", "wandb")
RATE = 3e-4
CALL = 50  # updates of ReBRAC in a call; its own loop makes 1,000


def prepare(case: Case, num_transitions: int, root: Path) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: there is no such algorithm, or none of these sizes.
    """
    if case.kind != "update":
        raise UnavailableError("CORL's scripts are measured by their updates alone")
    made = learner(case, transitions(num_transitions), root)
    notes = {
        "cql": "its policy has three hidden layers",
        "rebrac": f"JAX, {CALL} updates in a call; layer norm after the ReLU, in offpcc before it",
    }
    return Work(made.update, made.units, notes.get(case.algorithm, ""))


def learner(case: Case, data: Transitions, root: Path) -> Learner:
    """What learns from `data`.

    Raises:
        UnavailableError: there is no such algorithm, or none of these sizes.
    """
    if case.algorithm not in BUILDERS:
        raise UnavailableError(f"CORL has no {case.algorithm}")
    name, layers, build = BUILDERS[case.algorithm]
    sizes = case.sizes
    if len(sizes.hidden_dims) != layers or len({*sizes.hidden_dims}) > 1:
        raise UnavailableError(f"CORL's {case.algorithm} has {layers} hidden layers of equal width")
    clones.use(root, *ABSENT)
    try:
        module = clones.script(root / "algorithms" / "offline" / f"{name}.py")
    except (ImportError, FileNotFoundError) as error:
        raise UnavailableError(f"CORL's {name}.py cannot be imported here ({error})") from error
    if case.algorithm == "rebrac":
        return _rebrac(module, data, sizes)
    trainer, actor = build(module, *data.dims, sizes)
    buffer = module.ReplayBuffer(*data.dims, len(data.rewards))
    columns = ("observations", "actions", "rewards", "next_observations")
    buffer.load_d4rl_dataset({name: getattr(data, name) for name in columns} | {"terminals": data.terminations})
    step = getattr(trainer, "update", None) or trainer.train

    @torch.no_grad()
    def act(observations: np.ndarray) -> np.ndarray:
        actor.eval()
        actions = np.stack([actor.act(one, "cpu") for one in observations])
        actor.train()
        return actions

    return Learner(lambda: step(buffer.sample(sizes.batch_size)), act)


def _adam(network: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=RATE)


def _ensemble(name: str) -> Callable[..., tuple[Any, Any]]:
    def build(module: ModuleType, num_in: int, num_out: int, sizes: Sizes) -> tuple[Any, Any]:
        width = sizes.hidden_dims[0]
        actor = module.Actor(num_in, num_out, width)
        critic = module.VectorizedCritic(num_in, num_out, width, sizes.num_critics)
        trainer = getattr(module, name)(actor, _adam(actor), critic, _adam(critic), alpha_learning_rate=RATE)
        return trainer, actor

    return build


def _pair(critic: Callable[[], Any]) -> dict[str, Any]:
    first, second = critic(), critic()
    return {
        "critic_1": first,
        "critic_1_optimizer": _adam(first),
        "critic_2": second,
        "critic_2_optimizer": _adam(second),
    }


def _awac(module: ModuleType, num_in: int, num_out: int, sizes: Sizes) -> tuple[Any, Any]:
    width = sizes.hidden_dims[0]
    actor = module.Actor(num_in, num_out, width)
    critics = _pair(lambda: module.Critic(num_in, num_out, width))
    return module.AdvantageWeightedActorCritic(actor, _adam(actor), **critics), actor


def _td3_bc(module: ModuleType, num_in: int, num_out: int, sizes: Sizes) -> tuple[Any, Any]:
    _is_wide(sizes)
    actor = module.Actor(num_in, num_out, 1.0)
    critics = _pair(lambda: module.Critic(num_in, num_out))
    return module.TD3_BC(max_action=1.0, actor=actor, actor_optimizer=_adam(actor), **critics), actor


def _iql(module: ModuleType, num_in: int, num_out: int, sizes: Sizes) -> tuple[Any, Any]:
    width = sizes.hidden_dims[0]
    actor = module.GaussianPolicy(num_in, num_out, 1.0, width)
    q, v = module.TwinQ(num_in, num_out, width), module.ValueFunction(num_in, width)
    return module.ImplicitQLearning(1.0, actor, _adam(actor), q, _adam(q), v, _adam(v)), actor


def _cql(module: ModuleType, num_in: int, num_out: int, sizes: Sizes) -> tuple[Any, Any]:
    _is_wide(sizes)
    actor = module.TanhGaussianPolicy(num_in, num_out, 1.0)
    critics = _pair(lambda: module.FullyConnectedQFunction(num_in, num_out, n_hidden_layers=len(sizes.hidden_dims)))
    trainer = module.ContinuousCQL(
        actor=actor,
        actor_optimizer=_adam(actor),
        target_entropy=-float(num_out),
        cql_n_actions=sizes.num_samples,
        bc_steps=0,
        **critics,
    )
    return trainer, actor


def _bc(module: ModuleType, num_in: int, num_out: int, sizes: Sizes) -> tuple[Any, Any]:
    _is_wide(sizes)
    actor = module.Actor(num_in, num_out, 1.0)
    return module.BC(1.0, actor, _adam(actor)), actor


def _is_wide(sizes: Sizes) -> None:
    if sizes.hidden_dims[0] != 256:
        raise UnavailableError("its layers have a width of 256")


# Of each algorithm: its file, its number of hidden layers, and what builds the trainer and the actor.
BUILDERS: dict[str, tuple[str, int, Callable[..., tuple[Any, Any]]]] = {
    "awac": ("awac", 3, _awac),
    "sac_n": ("sac_n", 3, _ensemble("SACN")),
    "edac": ("edac", 3, _ensemble("EDAC")),
    "rebrac": ("rebrac", 3, lambda *_: (None, None)),
    "td3_bc": ("td3_bc", 2, _td3_bc),
    "iql": ("iql", 2, _iql),
    "cql": ("cql", 2, _cql),
    "bc": ("any_percent_bc", 2, _bc),
}


def _rebrac(module: ModuleType, data: Transitions, sizes: Sizes) -> Learner:
    """Its two update functions in a loop of JAX, as in its script; coefficients are the defaults of offpcc."""
    import functools

    import jax
    import jax.numpy as jnp

    follows = ~(data.terminations | data.truncations)
    kept = follows | data.terminations  # as in its script, a step whose next action was not recorded is left out
    next_actions = np.where(follows[:, None], np.roll(data.actions, -1, 0), 0.0)
    rows = {
        "states": data.observations[kept],
        "actions": data.actions[kept],
        "rewards": data.rewards[kept],
        "next_states": data.next_observations[kept],
        "next_actions": next_actions[kept].astype(np.float32),
        "dones": data.terminations[kept].astype(np.float32),
    }
    rows = {name: jnp.asarray(column) for name, column in rows.items()}
    key, of_actor, of_critic = jax.random.split(jax.random.PRNGKey(np.random.randint(2**31)), 3)
    width, layers = sizes.hidden_dims[0], len(sizes.hidden_dims)
    policy = module.DetActor(data.dims[1], width, layernorm=False, n_hiddens=layers)
    critics = module.EnsembleCritic(width, sizes.num_critics, layernorm=True, n_hiddens=layers)
    optimizer = module.optax.adam(RATE)
    first = (rows["states"][:1], rows["actions"][:1])

    def state(kind: Any, network: Any, key: Any, *inputs: Any) -> Any:
        weights = network.init(key, *inputs)
        return kind.create(apply_fn=network.apply, params=weights, target_params=weights, tx=optimizer)

    actor = state(module.ActorTrainState, policy, of_actor, first[0])
    critic = state(module.CriticTrainState, critics, of_critic, *first)
    names = ["critic_loss", "q_min", "actor_loss", "bc_mse_policy", "bc_mse_random", "action_mse"]
    settings = {"gamma": 0.99, "actor_bc_coef": 0.01, "critic_bc_coef": 0.01, "tau": 5e-3}
    settings |= {"policy_noise": 0.2, "noise_clip": 0.5}
    with_targets = functools.partial(module.update_td3, **settings, normalize_q=True)
    without = functools.partial(module.update_td3_no_targets, **settings)

    def step(number: Any, carry: Any) -> Any:
        key, actor, critic, metrics = carry
        key, drawing = jax.random.split(key)
        drawn = jax.random.randint(drawing, (sizes.batch_size,), 0, len(rows["rewards"]))
        batch = {name: column[drawn] for name, column in rows.items()}
        arguments = {"key": key, "actor": actor, "critic": critic, "batch": batch, "metrics": metrics}
        return jax.lax.cond(
            number % 2 == 0, functools.partial(with_targets, **arguments), functools.partial(without, **arguments)
        )

    loop = jax.jit(lambda *carry: jax.lax.fori_loop(0, CALL, step, carry))
    latest = [key, actor, critic]

    def update() -> None:
        *latest[:], metrics = loop(*latest, module.Metrics.create(names))
        jax.block_until_ready(metrics.accumulators["critic_loss"])

    act = jax.jit(lambda weights, observations: policy.apply(weights, observations))
    return Learner(update, lambda observations: np.asarray(act(latest[1].params, observations)), CALL)
