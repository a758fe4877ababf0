"""TorchRL at the sizes of a case; an update is that of its sota-implementations, on a batch from its own buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl._utils import compile_with_warmup
from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhModule, TanhNormal, ValueOperator
from torchrl.objectives import BCLoss, CQLLoss, IQLLoss, SACLoss, SoftUpdate, TD3BCLoss, TD3Loss

from benchmarks.cases import ACTION_DIM, OBSERVATION_DIM, Case, Sizes
from benchmarks.libraries import UnavailableError, Work
from benchmarks.recorded import transitions

RATE, TAU, GAMMA = 3e-4, 0.005, 0.99
DELAY = 2  # TD3's actor and targets learn in every second update
COMPILING = 3 * DELAY  # updates until all is compiled: the first one is not, and others may be compiled again
SEEN, JUDGED = ["observation"], ["action", "observation"]


def prepare(case: Case, num_transitions: int, compile: bool = False) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: there is no such algorithm.
    """
    buffer = filled(num_transitions, case.sizes.batch_size)
    if case.kind == "sample":
        return Work(buffer.sample)
    if case.algorithm not in BUILDERS:
        raise UnavailableError(f"TorchRL has no {case.algorithm}")
    update = updating(BUILDERS[case.algorithm](case.sizes), compile)
    for _ in range(COMPILING * compile):
        update(buffer.sample())
    return Work(lambda: update(buffer.sample()), note=DIFFERS.get(case.algorithm, ""))


DIFFERS = {
    "cql": "its soft maximum is of three actions at a time, not of all thirty",
    "iql": "its policy is a squashed Gaussian whose deviation depends on the observation; all networks learn at once",
    "td3": "its actor's loss reads both critics, and uses the first",
    "td3_bc": "its actor's loss reads both critics, and uses the first",
}


def store(capacity: int) -> Any:
    """What stores a transition, in an empty buffer."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity))

    def push(observation: np.ndarray, action: np.ndarray, reward: float, following: np.ndarray, *ends: bool) -> None:
        buffer.add(_rows(observation, action, np.float32([reward]), following, *(np.array([end]) for end in ends)))

    return push


def filled(num_transitions: int, batch_size: int) -> TensorDictReplayBuffer:
    """A buffer of whole episodes. It does not prefetch batches: that takes the update's cores."""
    made = transitions(num_transitions)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(len(made.rewards)), batch_size=batch_size)
    columns = (column[:, None] if column.ndim == 1 else column for column in made)
    buffer.extend(_rows(*columns, batch_size=[len(made.rewards)]))
    return buffer


def _rows(
    observation: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    following: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    batch_size: tuple[int, ...] | list[int] = (),
) -> TensorDict:
    after = {"observation": following, "reward": reward, "terminated": terminated, "done": terminated | truncated}
    return TensorDict({"observation": observation, "action": action, "next": after}, batch_size)


def updating(loss: Any, compile: bool = False) -> Callable[[TensorDict], Any]:
    """What makes an update of a batch, as the scripts do: TD3's networks learn one after the other, others at once.

    CQL's loss of imitation, which is the actor's in a run's first updates, is computed, and nothing learns by it.
    """
    if isinstance(loss, TD3Loss | TD3BCLoss):
        return _in_turn(loss, compile)
    optimizer = torch.optim.Adam([weights for weights in loss.parameters() if weights.requires_grad], lr=RATE)
    targets = None if isinstance(loss, BCLoss) else SoftUpdate(loss, tau=TAU)
    names = [name for name in loss.out_keys if name.startswith("loss_") and name != "loss_actor_bc"]

    def update(batch: TensorDict) -> TensorDict:
        found = loss(batch)
        torch.stack([found[name] for name in names]).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if targets is not None:
            targets.step()
        return found.detach()

    return _compiled(update) if compile else update


def _in_turn(loss: Any, compile: bool) -> Callable[[TensorDict], Any]:
    critics = loss.qvalue_loss if isinstance(loss, TD3BCLoss) else loss.value_loss
    optimizers = [_adam(loss.qvalue_network_params), _adam(loss.actor_network_params)]
    targets, count = SoftUpdate(loss, tau=TAU), 0

    def step(of: Any, batch: TensorDict, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        value, _ = of(batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    def both(batch: TensorDict, with_actor: bool) -> list[torch.Tensor]:
        found = [step(critics, batch, optimizers[0])]
        if with_actor:
            found.append(step(loss.actor_loss, batch, optimizers[1]))
            targets.step()
        return found

    call = _compiled(both) if compile else both

    def update(batch: TensorDict) -> Any:
        nonlocal count
        count += 1
        return call(batch, count % DELAY == 0)

    return update


def _adam(network: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(list(network.flatten_keys().values()), lr=RATE)


def _compiled(update: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = compile_with_warmup(update, mode="reduce-overhead", warmup=1)
    return compiled


def _mlp(num_in: int, num_out: int, sizes: Sizes) -> nn.Module:
    return MLP(num_in, num_out, num_cells=list(sizes.hidden_dims), activation_class=nn.ReLU)


def _actor(sizes: Sizes) -> TensorDictSequential:
    squash = TanhModule(in_keys=["param"], out_keys=["action"], spec=Bounded(-1.0, 1.0, (ACTION_DIM,)))
    body = TensorDictModule(_mlp(OBSERVATION_DIM, ACTION_DIM, sizes), SEEN, ["param"])
    return TensorDictSequential(body, squash)


def _gaussian_actor(sizes: Sizes) -> ProbabilisticActor:
    spec = Bounded(-1.0, 1.0, (ACTION_DIM,))
    split = NormalParamExtractor(scale_mapping="biased_softplus_1.0", scale_lb=0.1)
    body = nn.Sequential(_mlp(OBSERVATION_DIM, 2 * ACTION_DIM, sizes), split)
    return ProbabilisticActor(
        TensorDictModule(body, SEEN, ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high, "tanh_loc": False},
    )


def _critic(sizes: Sizes) -> ValueOperator:
    return ValueOperator(_mlp(OBSERVATION_DIM + ACTION_DIM, 1, sizes), in_keys=JUDGED)


def _judged(kind: type[Any], actor: Any, sizes: Sizes, *more: Any, **settings: Any) -> Any:
    """A loss whose critics learn from targets."""
    loss = kind(actor, _critic(sizes), *more, loss_function="l2", **settings)
    loss.make_value_estimator(gamma=GAMMA)
    return loss


def _td3(sizes: Sizes, kind: type[Any] = TD3Loss) -> Any:
    return _judged(kind, _actor(sizes), sizes, num_qvalue_nets=sizes.num_critics, bounds=(-1.0, 1.0))


def _iql(sizes: Sizes) -> Any:
    value = ValueOperator(_mlp(OBSERVATION_DIM, 1, sizes), in_keys=SEEN)
    settings = {"num_qvalue_nets": sizes.num_critics, "expectile": 0.7, "temperature": 3.0}
    return _judged(IQLLoss, _gaussian_actor(sizes), sizes, value, **settings)


def _cql(sizes: Sizes) -> Any:
    """No multiplier is learned, as by default in offpcc. It has two critics."""
    settings = {"min_q_weight": 5.0, "num_random": sizes.num_samples, "deterministic_backup": True}
    return _judged(CQLLoss, _gaussian_actor(sizes), sizes, **settings)


BUILDERS: dict[str, Callable[[Sizes], Any]] = {
    "sac": lambda sizes: _judged(SACLoss, _gaussian_actor(sizes), sizes, num_qvalue_nets=sizes.num_critics),
    "td3": _td3,
    "td3_bc": lambda sizes: _td3(sizes, TD3BCLoss),
    "cql": _cql,
    "iql": _iql,
    "bc": lambda sizes: BCLoss(_actor(sizes)),
}
