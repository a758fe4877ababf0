"""What every algorithm with every kind of memory promises, on networks as small as they come."""

import copy
import functools
import io
from typing import NamedTuple

import gin
import gymnasium
import numpy as np
import pytest
import torch
from conftest import QUICK, merged
from gymnasium.spaces import Box, Discrete
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from offpcc.algorithms import (
    ALGORITHMS,
    AWAC,
    BCQ,
    CQL,
    CRR,
    DDPG,
    NEUBAY,
    QRDQN,
    RLPD,
    SAC,
    TD3,
    TD3BC,
    TQC,
    DiscreteCRR,
    DiscreteSAC,
)
from offpcc.algorithms.agent import load_actor, save_actor
from offpcc.algorithms.optim import LinearDecay, Optimizer
from offpcc.algorithms.variants import TABLE
from offpcc.config import loading
from offpcc.core import Batch, Step
from offpcc.data import RandomShift, RecurrentReplayBuffer, ReplayBuffer
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.networks import Convolutional, Identity, Recurrent
from offpcc.networks.sequences import is_empty
from offpcc.training.build import build
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import Loggers

ACTION_DIM, NAN = 2, float("nan")
ACTIONS = Box(-1, 1, (ACTION_DIM,), np.float32)
VECTORS = Box(-np.inf, np.inf, (3,), np.float32)
IMAGES = Box(0, 255, (1, 40, 40), np.uint8)

SmallConvolutional = functools.partial(Convolutional, channels=(2, 2), kernels=(3, 3), strides=(4, 2), feature_dim=5)
SmallRecurrent = functools.partial(
    Recurrent, hidden_dim=5, num_layers=2, use_previous_action=True, use_previous_reward=True
)


# Cases ----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    name: str  # in ALGORITHMS
    cell: str | None = None  # None without memory

    def __str__(self):
        return f"{self.name}-{self.cell}" if self.cell else self.name

    @property
    def cls(self):
        return ALGORITHMS[self.name]

    @property
    def plain(self):
        """The algorithm's name without what it is built of."""
        return TABLE[self.name].algorithm

    @property
    def images(self):
        return TABLE[self.name].images

    @property
    def shared(self):
        return TABLE[self.name].memory == "shared"

    @property
    def delay(self):
        return 2 if issubclass(self.cls, TD3) else 1

    @property
    def enough(self):
        """Steps of which some surely differ where the noise does; of two actions, the same may be chosen often."""
        return 20 if self.cls.is_discrete else 4

    def small(self, builder):
        """A small encoder of the kind that `builder` makes."""
        given = builder.keywords if isinstance(builder, functools.partial) else {}
        kind = builder.func if isinstance(builder, functools.partial) else builder
        if kind is Recurrent:
            feature_extractor = (
                {"feature_extractor": self.small(given["feature_extractor"])} if "feature_extractor" in given else {}
            )
            return functools.partial(SmallRecurrent, cell=self.cell, **feature_extractor)
        return SmallConvolutional if kind is Convolutional else kind

    def build(self, seed=0, **options):
        options = {
            "encoder": self.small(self.cls.default_encoder),
            "shared_encoder": self.small(self.cls.default_shared_encoder),
            "hidden_dims": (10, 10),
            "lr": 1e-2,
            **({"polyak": 0.9} if self.cls.has_critics else {}),
            **({"vae_hidden_dims": (10,), "num_acting_samples": 20} if issubclass(self.cls, BCQ) else {}),
            **({"lagrange_threshold": 1.0} if issubclass(self.cls, CQL) else {}),
            **({"num_critics": 3} if self.cls.default_num_critics > 3 else {}),
            **({"initial_epsilon": 1.0} if self.cls.acts_by_values else {}),
            **({"num_quantiles": 3} if issubclass(self.cls, QRDQN | TQC) else {}),
            **options,
        }
        return self.cls(IMAGES if self.images else VECTORS, self.actions, seed=seed, **options)

    @property
    def actions(self):
        return Discrete(ACTION_DIM) if self.cls.is_discrete else ACTIONS

    def drawn_actions(self, draw, *shape):
        numbers = torch.tanh(torch.randn(*shape, ACTION_DIM, generator=draw))
        return (numbers == numbers.amax(-1, keepdim=True)).float() if self.cls.is_discrete else numbers

    def observations(self, draw, *shape):
        if self.images:
            return torch.randint(0, 256, (*shape, *IMAGES.shape), generator=draw, dtype=torch.uint8)
        return torch.randn(*shape, *VECTORS.shape, generator=draw)

    def batch(self, seed=0, lengths=None):
        """Rows of these lengths, with NaN (in images: 255) as padding."""
        draw = torch.Generator().manual_seed(seed)
        lengths = torch.tensor(lengths or ([3, 1, 4] if self.cell else [1, 1, 1]))
        rows, steps = len(lengths), int(lengths.max())
        exists = (torch.arange(steps + 1) <= lengths[:, None]).unsqueeze(-1)
        counted = (torch.arange(steps) < lengths[:, None]).unsqueeze(-1)
        ended = (torch.arange(steps) == lengths[:, None] - 1).unsqueeze(-1) & (lengths % 2 == 1).view(-1, 1, 1)
        observations = self.observations(draw, rows, steps + 1)
        place = exists.view(rows, steps + 1, *(1,) * (observations.dim() - 2))
        following = torch.cat([counted[:, 1:], counted[:, :1] & False], 1)
        own = torch.Generator().manual_seed(seed + 1_000)
        next_actions = self.drawn_actions(own, rows, steps)
        return Batch(
            torch.where(place, observations, 255 if self.images else NAN),
            torch.where(counted, self.drawn_actions(draw, rows, steps), NAN),
            torch.where(counted, torch.randn(rows, steps, 1, generator=draw), NAN),
            torch.where(counted, ended.float(), NAN),
            exists.float(),
            counted.float(),
            torch.zeros(rows, ACTION_DIM),
            torch.zeros(rows, 1),
            next_actions=torch.where(following, next_actions, NAN),
            has_next_action=following.float(),
            returns_to_go=torch.where(counted, torch.randn(rows, steps, 1, generator=own), NAN),
            discounts_to_go=torch.where(counted, torch.rand(rows, steps, 1, generator=own).round() * 2.0, NAN),
        )

    def steps(self, seed, number, agents=3):
        """What an agent might see at successive time steps."""
        draw = torch.Generator().manual_seed(seed)
        for t in range(number):
            yield Step(
                self.observations(draw, agents).numpy(),
                torch.randn(agents, ACTION_DIM, generator=draw).clamp(-1, 1).numpy() * (t > 0),
                torch.randn(agents, 1, generator=draw).numpy() * (t > 0),
                np.full(agents, t == 0, np.float32),
            )


# The encoder hides its cell from the algorithm, so one algorithm of each kind is enough for other cells than the LSTM:
# separate and shared encoders, images, no critics, a VAE.
CELLS = ("lstm", "gru", "rnn", "mingru", "lru", "gpt", "concat")
WITH_CELLS = ("rsac", "rtd3_s", "crsac_s", "rbc", "rbcq")
# Algorithms for discrete actions have the encoders of the others, so few of those that see images are enough.
LEFT_OUT = {name for name, cls in ALGORITHMS.items() if cls.is_discrete and TABLE[name].images}
LEFT_OUT -= {"cdqn", "crdsac_s", "cdbcq", "crdcrr"}
# These are SAC, and differ from MBPO or MOPO by settings of the model alone.
LEFT_OUT |= {
    name
    for name, cls in ALGORITHMS.items()
    if cls.imagination is not None and not issubclass(cls, CQL | RLPD) and name not in ("mbpo", "mopo")
}
CASES = [
    Case(name, cell)
    for name, cls in ALGORITHMS.items()
    if name not in LEFT_OUT
    for cell in ((None,) if not TABLE[name].memory else CELLS if name in WITH_CELLS else ("lstm",))
]
ONE_CELL = [case for case in CASES if case.cell in ("lstm", None)]
WITH_ENCODERS = [case for case in CASES if case.cell or case.images]
WITH_WEIGHTS = [case for case in WITH_ENCODERS if case.images or case.cell != "concat"]
WITH_MEMORY = [case for case in CASES if case.cell]
WITH_CRITICS = [case for case in ONE_CELL if case.cls.has_critics]
SACS = [case for case in ONE_CELL if issubclass(case.cls, SAC)]
FIXED = ("sac", "rsac_s", "csac", "cql", "rlpd", "edac")  # whose temperature is also constant
# Memory behind images is a matter of the encoders: of the algorithms with the same networks, one with both is enough in
# `make test-ci`, as these have each alone. `make test-slow` has all.
WITH_BOTH = ("sac", "td3", "bc", "iql", "bcq", "cql", "fql", "dsac", "dcrr")


def each(cases):
    """Parametrize a test by cases."""
    left = {case for case in cases if case.images and case.cell and case.plain not in WITH_BOTH}
    given = [pytest.param(case, marks=pytest.mark.learning if case in left else ()) for case in cases]
    return pytest.mark.parametrize("case", given, ids=str)


every_case, every_name = each(CASES), each(ONE_CELL)


def modules(agent):
    return {name: part for name, part in vars(agent).items() if isinstance(part, torch.nn.Module)}


def parameters(agent):
    """All of an agent's parameters and statistics by name, copied."""
    return {
        f"{name}.{key}": value.clone()
        for name, part in modules(agent).items()
        for key, value in part.state_dict().items()
    }


def moved(agent, before):
    """Names of the modules of which something has moved."""
    return {name.split(".")[0] for name, value in parameters(agent).items() if not torch.equal(value, before[name])}


def losses(agent, h, batch):
    """The loss that each of an agent's optimizers minimises, by the optimizer's name, multipliers aside."""
    names = [name.removesuffix("_optimizer") for name, part in vars(agent).items() if isinstance(part, Optimizer)]
    told = {name: getattr(agent, f"{name}_loss")(h, batch) for name in names if hasattr(agent, f"{name}_loss")}
    return {name: loss[0] if isinstance(loss, tuple) else loss for name, loss in told.items()}


def optimized(agent, name):
    return getattr(agent, f"{name}_optimizer").parameters


def perturb(*parts, seed=0):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in parts:
            for parameter in part.parameters():
                parameter += torch.randn(parameter.shape, generator=draw)


def assert_equal(ours, expected):
    """Observations that an update need not read have NaN in the summaries of both."""
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


def act_along(agent, case, seed=7, number=4, deterministic=True):
    memory, actions = None, []
    for step in case.steps(seed, number):
        action, memory = agent.act(step, memory, deterministic=deterministic)
        actions.append(action)
    return np.stack(actions)


class PlacedNoise:
    """Numbers that depend on row and step alone, not on how many steps a batch has."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def normal(self, like):
        rows, steps, *rest = like.shape
        return torch.randn(rows, 40, *rest, generator=self.generator, dtype=like.dtype)[:, :steps]

    def uniform(self, like):
        rows, steps, *rest = like.shape
        return 2.0 * torch.rand(rows, 40, *rest, generator=self.generator, dtype=like.dtype)[:, :steps] - 1.0

    def integers(self, low, high, shape):
        rows, steps, *rest = shape
        return torch.randint(low, high, (rows, 40, *rest), generator=self.generator)[:, :steps]

    def subset(self, num, size):
        return torch.randperm(num, generator=self.generator)[:size]


# Updates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_table_of_algorithms_says_what_they_are(case):
    agent = case.build()
    assert agent.memoryless == (case.cell is None)
    assert (agent.augmentation is not None) == case.images
    assert case.cls.draws_by_priority == (case.plain == "r2d2")
    assert isinstance(agent.actor_encoder, Identity) == (case.shared or case.cell is None)
    if case.cls.has_critics:
        own = 1 if is_empty(agent.actor_encoder) else agent.critics.num
        assert len(agent.critic_encoders) == own
        assert agent.critics.num == min(case.cls.default_num_critics, 3)
        numbers = {"ddpg": 1, "sac_n": 10, "edac": 10, "rlpd": 10, "tqc": 5, "neubay": 10}
        numbers |= dict.fromkeys(("dqn", "qrdqn", "r2d2", "dbcq", "dcql"), 1)
        assert case.cls.default_num_critics == numbers.get(case.plain, 2)
        raised = {
            **dict.fromkeys(("ddpg", "td3", "td3_bc", "bcq"), "first"),
            **dict.fromkeys(("rlpd", "neubay", "tqc", "fql"), "mean"),
            **dict.fromkeys(("awac", "crr", "dcrr", "iql")),
        }
        assert case.cls.default_actor_q == raised.get(case.plain, "min")
        assert case.cls.default_layer_norm == (case.plain in ("rlpd", "neubay", "rebrac", "fql"))
        assert case.cls.default_target_subset == (2 if case.plain in ("rlpd", "neubay") else None)
    if isinstance(agent, SAC):
        assert case.cls.default_target_entropy_per_dim == (-0.5 if case.plain == "rlpd" else -1.0)
    assert (agent.normalization is not None) == (issubclass(case.cls, TD3BC) and not case.images)
    if case.cell:
        memory = agent.shared_encoder if case.shared else agent.actor_encoder
        assert type(memory.cell).__name__.lower() == case.cell


@every_case
def test_summaries_have_their_shapes(case):
    agent, batch = case.build(), case.batch()
    rows, steps = batch.rewards.shape[:2]
    h = agent.summarize(agent.prepare(batch))
    dim, own = agent.actor_encoder.dim, len(agent.critic_encoders) if case.cls.has_critics else 0
    assert h.v.shape == (rows, steps + 1, dim)
    torch.testing.assert_close(h.v[:, :-1], h.pi)
    assert h.pi.shape == h.next_pi.shape == (rows, steps, dim)
    assert h.q.shape == (own, rows, steps, dim)
    assert h.target_q.shape == (own, rows, steps + 1, dim)
    assert not h.next_pi.requires_grad and not h.target_q.requires_grad and not h.v.requires_grad
    if case.cls.is_discrete and case.cls.has_critics:
        assert agent.critics(h.q).shape == (agent.critics.num, rows, steps, ACTION_DIM)
    elif case.cls.has_critics:
        assert agent.critics(h.q, torch.zeros(rows, steps, ACTION_DIM)).shape == (
            agent.critics.num, rows, steps, 1
        )  # fmt: skip


@functools.cache
def trained(case):
    """Statistics of twice as many updates as the delay, and the parameters before them and after each."""
    agent = case.build()
    stats, passed = [], [parameters(agent)]
    for number in range(1, 1 + 2 * case.delay):
        stats.append(agent.update_networks(case.batch(number)))
        passed.append(parameters(agent))
    return agent, stats, passed


@every_case
def test_an_update_tells_finite_statistics_by_their_names(case):
    agent, told, passed = trained(case)
    for number, stats in enumerate(told, 1):
        expected = set(agent.stat_names) - ({"actor_loss"} if number % case.delay else set())
        assert set(stats) == expected
        for value in stats.values():
            assert value.dim() == 0 and not value.requires_grad and torch.isfinite(value)
    assert all(torch.isfinite(value).all() for value in passed[-1].values())


@every_case
def test_everything_that_learns_moves(case):
    agent, _, passed = trained(case)
    expected = {name for name, part in modules(agent).items() if next(part.parameters(), None) is not None}
    different = {
        key.split(".")[0] for key, value in passed[case.delay].items() if not torch.equal(value, passed[0][key])
    }
    assert different == expected | ({"normalization"} if agent.normalization else set())


@every_case
def test_targets_rest_during_the_losses_and_then_follow(case, monkeypatch):
    agent = case.build()
    pairs = [name for name in modules(agent) if f"target_{name}" in modules(agent)]
    if not case.cls.has_critics:
        assert pairs == []
        return
    assert {"shared_encoder", "critic_encoders", "critics"} <= set(pairs)
    assert ("actor" in pairs) == ("actor_encoder" in pairs) == issubclass(case.cls, DDPG | BCQ)
    for number in range(1, 1 + 2 * case.delay):
        before, at_update, update_targets = parameters(agent), [], agent.update_targets

        def recording(at_update=at_update, update_targets=update_targets):
            at_update.append(parameters(agent))
            update_targets()

        monkeypatch.setattr(agent, "update_targets", recording)
        agent.update_networks(case.batch(number))
        monkeypatch.undo()
        assert len(at_update) == (number % case.delay == 0)
        after = parameters(agent)
        for key, value in before.items():
            if not key.startswith("target_"):
                continue
            if not at_update:
                assert_equal(after[key], value)
                continue
            source = after[key.removeprefix("target_")]
            assert_equal(at_update[0][key], value)
            assert_equal(at_update[0][key.removeprefix("target_")], source)
            torch.testing.assert_close(after[key], 0.9 * value + 0.1 * source, rtol=1e-6, atol=1e-7)


IN_TURN = {  # the steps of an update; each loss is computed right before its step
    **dict.fromkeys(("bc", "dbc"), ("actor",)),
    **dict.fromkeys(("dqn", "qrdqn", "r2d2", "dbcq", "dcql"), ("critic", "targets")),
    "iql": ("value", "actor", "critic", "targets"),
    "bcq": ("vae", "critic", "actor", "targets"),
}


@every_name
def test_each_loss_is_computed_right_before_its_step(case, monkeypatch):
    agent, made = case.build(**{"policy_delay": 1} if issubclass(case.cls, TD3) else {}), []

    def watch(owner, method, name):
        act = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda *args, **kwargs: (made.append(name), act(*args, **kwargs))[1])

    for name, part in vars(agent).copy().items():
        if isinstance(part, Optimizer):
            watch(part, "minimize", name.removesuffix("_optimizer"))
    for name in ("critic", "actor", "value", "vae"):
        if hasattr(agent, f"{name}_loss"):
            watch(agent, f"{name}_loss", f"loss of {name}")
    watch(agent, "update_targets", "targets")
    agent.update_networks(case.batch())
    steps = IN_TURN.get(case.plain, ("critic", "actor", "targets"))
    temperature = ("actor", "alpha") if isinstance(agent, SAC | DiscreteSAC) else ("actor",)
    critic = ("critic", "multiplier") if isinstance(agent, CQL) else ("critic",)
    expected = []
    for step in steps:
        expected += [] if step == "targets" else [f"loss of {step}"]
        expected += {"actor": temperature, "critic": critic}.get(step, (step,))
    assert made == expected


OWNED = {  # which modules each loss trains
    "bc": {"actor": {"shared_encoder", "actor_encoder", "actor"}},
    "others": {"critic": {"shared_encoder", "critic_encoders", "critics"}, "actor": {"actor_encoder", "actor"}},
}
OWNED["dbc"] = OWNED["bc"]
OF_VALUES = {"shared_encoder", "actor_encoder", "critic_encoders", "actor", "critics"}
OWNED |= {name: {"critic": OF_VALUES} for name in ("dqn", "qrdqn", "r2d2", "dbcq", "dcql")}
OWNED["iql"] = {"value": {"value"}, **OWNED["others"]}
OWNED["bcq"] = {"vae": {"vae"}, **OWNED["others"]}


@every_case
def test_gradients_stay_where_they_belong(case):
    agent = case.build()
    batch = agent.prepare(case.batch())

    def with_gradient():
        found = {
            name
            for name, part in modules(agent).items()
            if any(p.grad is not None and p.grad.abs().max() > 0 for p in part.parameters())
        }
        for part in modules(agent).values():
            part.zero_grad(set_to_none=True)
        return found

    learning = {name for name, part in modules(agent).items() if next(part.parameters(), None) is not None}
    owned = OWNED[case.plain] if case.plain in OWNED else OWNED["others"]
    passed = {"actor": {"critics"}}  # a gradient through the critics' heads, which `minimize` asks for in vain
    assert {name for name, part in vars(agent).items() if isinstance(part, Optimizer)} == {
        *(f"{name}_optimizer" for name in owned),
        *(["alpha_optimizer"] if isinstance(agent, SAC | DiscreteSAC) else []),
        *(["multiplier_optimizer"] if isinstance(agent, CQL) else []),
    }
    for name, parts in owned.items():
        loss = losses(agent, agent.summarize(batch), batch)[name]
        loss.backward(retain_graph=True)
        assert with_gradient() - passed.get(name, set()) == learning & parts
        getattr(agent, f"{name}_optimizer").minimize(loss)
        assert with_gradient() == learning & parts
    if isinstance(agent, SAC | DiscreteSAC):
        agent.temperature.loss(agent.actor_loss(agent.summarize(batch), batch)[1]["entropy"]).backward()
        assert with_gradient() == {"temperature"}


@every_name
def test_each_parameter_has_one_optimizer_and_targets_none(case):
    agent = case.build()
    optimizers = [part for part in vars(agent).values() if isinstance(part, Optimizer)]
    owned = [parameter for optimizer in optimizers for parameter in optimizer.parameters]
    assert len({id(p) for p in owned}) == len(owned)
    for name, part in modules(agent).items():
        for parameter in part.parameters():
            assert (id(parameter) in {id(p) for p in owned}) != name.startswith("target_")
            assert parameter.requires_grad != name.startswith("target_")
    shared = {id(p) for p in agent.shared_encoder.parameters()}
    assert shared <= {id(p) for p in optimized(agent, "critic" if case.cls.has_critics else "actor")}


class Waiting(TorchDispatchMode):
    """Refuses what makes the processor wait for a device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **(kwargs or {}))


@each([case for case in CASES if case in ONE_CELL or case.name == "rsac"])
def test_an_update_does_not_wait_for_the_device(case):
    options = {} if case.images else {"normalize_observations": True}
    agent = case.build(max_grad_norm=1.0, fused=False, **options)
    agent.nonfinite_guard.is_awaited = (
        False  # as on a GPU, where no update is made by hand: a CPU's numbers are there at once
    )
    with Waiting(), pytest.raises(AssertionError):
        torch.ones(()).item()
    batch = case.batch()
    with Waiting():
        for _ in range(2):
            agent.update_networks(batch)


class OnAgentsDevice(TorchDispatchMode):
    """Refuses tensors on the default device, here "meta", as if it were the CPU and the agent on a GPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        assert not any(isinstance(x, torch.Tensor) and x.is_meta for x in tree_leaves(made)), function
        return made


@each(CASES)
def test_tensors_are_made_on_the_device_of_the_agent(case):
    agent, batch, steps = case.build(), case.batch(), [*case.steps(0, 2)]
    agent._keeps = lambda *names: False  # acts by PyTorch
    with torch.device("meta"), OnAgentsDevice():
        with pytest.raises(AssertionError):
            torch.zeros(1)
        for _ in range(2):
            agent.update_networks(batch)
        agent.nonfinite_guard.synchronize(agent)
        agent.shares_at_bounds(batch)
        memory = None
        for step in steps:
            _, memory = agent.act(step, memory)


@pytest.mark.parametrize(
    ("algo", "env"), [("rsac", "pendulum-p-v0"), ("mbpo", "pendulum-v0"), ("csac", "pendulum-img-v0")]
)
def test_a_run_makes_tensors_on_the_device_of_its_agent(algo, env):
    loading.load_gin_config("test/template_short.gin", merged(*QUICK, "DynamicsModel.hidden_dims=(16, 16)"))
    learner = build(env, algo, seed=1)
    learner.train(Loggers([]), num_epochs=1)
    with torch.device("meta"), OnAgentsDevice():
        learner.train(Loggers([]), num_epochs=2)
    assert learner.loop.num_updates == 35


# Encoders -------------------------------------------------------------------------------------------------------


@each([case for case in WITH_WEIGHTS if case.cls.has_critics])
def test_targets_read_their_own_encoders(case):
    agent = case.build()
    batch = agent.prepare(case.batch())
    before = agent.summarize(batch)
    perturb(agent.shared_encoder, agent.critic_encoders, agent.actor_encoder)
    after = agent.summarize(batch)
    assert_equal(after.target_q, before.target_q)
    assert before.target_q[..., -1, :].isfinite().all()
    assert not torch.allclose(after.q, before.q) and not torch.allclose(after.pi, before.pi)
    assert torch.equal(after.next_pi, before.next_pi) == agent.has_target_actor

    perturb(agent.target_shared_encoder, agent.target_critic_encoders, seed=1)
    last = agent.summarize(batch)
    assert_equal(last.q, after.q)
    assert_equal(last.pi, after.pi)
    assert not torch.allclose(last.target_q, after.target_q)


@each(WITH_CRITICS)
def test_who_trains_the_shared_encoder(case):
    agent = case.build()
    batch = agent.prepare(case.batch())
    h = agent.summarize(batch)
    before = parameters(agent)
    found = losses(agent, h, batch)
    for name in found.keys() - {"critic"}:
        getattr(agent, f"{name}_optimizer").minimize(found[name])
    assert "shared_encoder" not in moved(agent, before)
    agent.critic_optimizer.minimize(agent.critic_loss(h, batch)[0])
    assert ("shared_encoder" in moved(agent, before)) == (case.shared or case.images)


@every_case
def test_padding_changes_nothing(case, extra=3):
    """Whatever it holds: appended steps that are not real, full of NaN."""
    batch = case.batch()

    def longer(x, fill):
        appended = torch.full((len(x), extra, *x.shape[2:]), fill, dtype=x.dtype)
        return torch.cat([x, appended], 1)

    padded = Batch(
        longer(batch.observations, 255 if case.images else NAN),
        *(longer(x, NAN) for x in (batch.actions, batch.rewards, batch.terminations)),
        *(longer(x, 0.0) for x in (batch.valid, batch.loss_mask)),
        batch.first_action,
        batch.first_reward,
        next_actions=longer(batch.next_actions, NAN),
        has_next_action=longer(batch.has_next_action, 0.0),
        returns_to_go=longer(batch.returns_to_go, NAN),
        discounts_to_go=longer(batch.discounts_to_go, NAN),
    )
    options = {} if case.images else {"normalize_observations": True}
    told = []
    agents = [case.build(**(options | {"n_step": 2} if case.cls.has_critics else options)) for _ in range(2)]
    for agent, given in zip(agents, (batch, padded), strict=True):
        agent.noise = PlacedNoise()
        told.append([agent.update_networks(given) for _ in range(2)])
    for ours, expected in zip(told[1], told[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
        assert all(torch.isfinite(value) for value in ours.values())
    # Adam's first steps turn a gradient of 1e-9 into a step of the learning rate: gradients, not steps, tell
    torch.testing.assert_close(gradients(case, padded), gradients(case, batch), rtol=1e-5, atol=1e-6)
    if not case.images:
        torch.testing.assert_close(agents[1].normalization.mean, agents[0].normalization.mean)


def gradients(case, batch):
    """Of all losses, in double precision."""
    agent = case.build(**({"n_step": 2} if case.cls.has_critics else {}))
    agent.noise = PlacedNoise()
    for part in modules(agent).values():
        part.double()
    batch = Batch(*(x.double() if isinstance(x, torch.Tensor) else x for x in batch))
    batch = batch._replace(observations=batch.observations / 255 if case.images else batch.observations)
    batch = agent.prepare(batch)
    found = losses(agent, agent.summarize(batch), batch)
    return {name: torch.autograd.grad(loss, optimized(agent, name), allow_unused=True) for name, loss in found.items()}


def with_burn_in_of_padding(case, batch, before):
    """The same rows behind two steps that are not real; `before` is in the place of what came before those."""

    def later(x, fill):
        prefix = torch.full((len(x), 2, *x.shape[2:]), fill, dtype=x.dtype)
        return torch.cat([prefix, x], 1)

    return Batch(
        later(batch.observations, 255 if case.images else NAN),
        *(later(x, NAN) for x in (batch.actions, batch.rewards, batch.terminations)),
        *(later(x, 0.0) for x in (batch.valid, batch.loss_mask)),
        torch.full_like(batch.first_action, before),
        torch.full_like(batch.first_reward, before),
        burn_in=2,
        next_actions=later(batch.next_actions, NAN),
        has_next_action=later(batch.has_next_action, 0.0),
        returns_to_go=later(batch.returns_to_go, NAN),
        discounts_to_go=later(batch.discounts_to_go, NAN),
    )


@each(WITH_MEMORY)
def test_burn_in_of_rows_that_have_none_changes_nothing(case):
    """A row that starts with its episode has padding in burn-in's place; NaN there reaches no loss."""
    batch, agent = case.batch(), case.build()
    padded = with_burn_in_of_padding(case, batch, 0.0)
    agent.augmentation = None
    h, expected = agent.summarize(agent.prepare(padded)), agent.summarize(agent.prepare(batch))
    counted = batch.loss_mask[..., 0] > 0
    torch.testing.assert_close(h.pi[:, 2:][counted], expected.pi[counted])
    torch.testing.assert_close(h.q[:, :, 2:][:, counted], expected.q[:, counted])
    torch.testing.assert_close(h.next_pi[:, 2:][counted], expected.next_pi[counted])
    for _ in range(case.delay):
        agent.update_networks(padded)
    assert all(torch.isfinite(value).all() for value in parameters(agent).values())


@pytest.mark.parametrize("name", ["rdpg", "rsac_s"])
def test_what_comes_before_padding_is_padding(name):
    case = Case(name, "lstm")
    agent = case.build()
    agent.update_networks(with_burn_in_of_padding(case, case.batch(), NAN))
    assert all(torch.isfinite(value).all() for value in parameters(agent).values())


def make_blind(memory):
    """Show it zeros in place of the previous rewards."""
    joined = memory.with_extras
    memory.with_extras = lambda features, inputs: joined(
        features, inputs._replace(previous_reward=torch.zeros_like(inputs.previous_reward))
    )


@each(WITH_MEMORY)
def test_burn_in_warms_the_memory_up(case):
    """Summaries after burn-in are those of the whole history; the burn-in itself counts in no loss."""
    whole = case.batch(lengths=[6, 4, 5])
    warmed = whole._replace(burn_in=2, loss_mask=whole.loss_mask.clone())
    warmed.loss_mask[:, :2] = 0.0
    agent = case.build(normalize_observations=False)
    agent.augmentation = None
    h, expected = agent.summarize(agent.prepare(warmed)), agent.summarize(agent.prepare(whole))
    for ours, theirs in zip(h, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    changed = warmed._replace(rewards=warmed.rewards.clone(), actions=warmed.actions.clone())
    changed.rewards[:, 1] += 100.0  # step 2 counts, and knows reward and action of step 1 as inputs
    for part in modules(agent).values():
        for module in part.modules():
            if isinstance(module, Recurrent):
                assert module.use_previous_reward
                make_blind(module)
    results = []
    for batch in (warmed, changed):
        agent.noise = PlacedNoise()
        batch = agent.prepare(batch)
        results.append(losses(agent, agent.summarize(batch), batch))
    torch.testing.assert_close(results[1], results[0])


# Acting ---------------------------------------------------------------------------------------------------------


@every_case
def test_acting_step_by_step_reads_the_summaries_of_learning(case, monkeypatch):
    """Three environments side by side that begin anew at different times."""
    agent = case.build(**({} if case.images else {"normalize_observations": True}))
    for number in range(2):
        agent.update_networks(case.batch(number))
    agent.augmentation = None
    draw = torch.Generator().manual_seed(1)
    starts, last = [[0, 3], [0, 1, 5], [0]], 7
    observations = case.observations(draw, 3, last)
    actions = torch.randn(3, last, ACTION_DIM, generator=draw).clamp(-1, 1)
    rewards = torch.randn(3, last, 1, generator=draw)
    summaries = []
    choose = agent.choose_action
    monkeypatch.setattr(agent, "choose_action", lambda h, d: (summaries.append(h), choose(h, d))[1])
    memory = None
    for t in range(last):
        first = np.array([t in row for row in starts])
        before = torch.from_numpy(~first).unsqueeze(1)
        step = Step(
            observations[:, t].numpy(),
            (actions[:, t - 1] * before).numpy(),
            (rewards[:, t - 1] * before).numpy(),
            first,
        )
        action, memory = agent.act(step, memory)
        assert action.shape == (3, ACTION_DIM) and action.dtype == np.float32 and (np.abs(action) <= 1).all()
    assert (memory is None) == agent.memoryless
    acted = torch.cat(summaries, 1)  # (3, last, H)

    monkeypatch.setattr(agent.normalization or agent, "update", lambda *_: None, raising=False)
    for i, row in enumerate(starts):
        for start, stop in zip(row, [*row[1:], last], strict=True):
            x = observations[i, start:stop]
            steps = stop - start
            batch = Batch(
                torch.cat([x, x[-1:]])[None],
                actions[None, i, start:stop],
                rewards[None, i, start:stop],
                torch.zeros(1, steps, 1),
                torch.ones(1, steps + 1, 1),
                torch.ones(1, steps, 1),
                torch.zeros(1, ACTION_DIM),
                torch.zeros(1, 1),
            )
            h = agent.summarize(agent.prepare(batch))
            read = torch.cat([h.pi[0], h.q[0, 0]], -1) if isinstance(agent, BCQ) else h.pi[0]
            torch.testing.assert_close(acted[i, start:stop], read, rtol=1e-5, atol=1e-5)


def generators(agent):
    """Where the generators of the agent's noise stand."""
    state = agent.noise.state_dict()
    return state["state"].tolist(), state["acting"]


@every_name
def test_the_mode_is_the_same_twice_and_takes_no_noise(case):
    agent = case.build()
    before = generators(agent)
    np.testing.assert_array_equal(act_along(agent, case), act_along(agent, case))
    assert generators(agent) == before
    assert not np.array_equal(act_along(agent, case), act_along(agent, case, deterministic=False))
    assert generators(agent) != before
    assert not np.array_equal(*(act_along(agent, case, number=case.enough, deterministic=False) for _ in range(2)))


@every_name
def test_seeds(case):
    def trained(seed):
        torch.manual_seed(np.random.randint(1000))  # nothing outside matters
        agent = case.build(seed)
        stats = [agent.update_networks(case.batch(number)) for number in range(2)]
        return agent, stats

    (first, first_stats), (second, second_stats), (other, _) = trained(1), trained(1), trained(2)
    assert_equal(parameters(first), parameters(second))
    assert_equal(first_stats, second_stats)
    for deterministic in (True, False):
        ours, theirs, others = (
            act_along(agent, case, number=case.enough, deterministic=deterministic) for agent in (first, second, other)
        )
        np.testing.assert_array_equal(ours, theirs)
        # Two agents for discrete actions may choose the same ones.
        assert (case.cls.is_discrete and deterministic) or not np.allclose(ours, others)
    assert not torch.equal(case.build(1).noise.normal(torch.zeros(3)), case.build(2).noise.normal(torch.zeros(3)))


def test_building_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    for case in ONE_CELL:
        agent = case.build()
        agent.update_networks(case.batch())
        act_along(agent, case, deterministic=False)
    assert_equal(torch.get_rng_state(), before)


class Corridor(gymnasium.Env):
    """Shows noise, rewards the action's first number, ends after 5 steps."""

    observation_space, action_space = VECTORS, ACTIONS

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.standard_normal(3).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return self.np_random.standard_normal(3).astype(np.float32), float(action[0]), False, self.t == 5, {}


@pytest.mark.parametrize("name", [case.name for case in ONE_CELL if case.cell and not case.images])
def test_the_previous_action_is_the_executed_one_also_at_random(name, monkeypatch):
    agent = Case(name, "lstm").build()
    buffer = RecurrentReplayBuffer(VECTORS, ACTIONS)
    interaction = Interaction(LocalEnvironments(Corridor, [0]), agent, buffer)
    seen, act = [], agent.act
    monkeypatch.setattr(agent, "act", lambda step, memory=None: (seen.append(step), act(step, memory))[1])
    for t in range(15):
        interaction.step(explore_at_random=t < 8)
    for number, episode in enumerate(buffer.episodes):
        steps = seen[5 * number : 5 * number + 5]
        np.testing.assert_array_equal([step.observation[0] for step in steps], episode.frames[:-1])
        np.testing.assert_array_equal([step.previous_action[0] for step in steps[1:]], episode.actions[:-1])
        np.testing.assert_array_equal([step.previous_reward[0] for step in steps[1:]], episode.rewards[:-1])
        assert [step.is_first[0] for step in steps] == [1, 0, 0, 0, 0]
        assert not steps[0].previous_action.any() and not steps[0].previous_reward.any()


# Parameters that change nothing ---------------------------------------------------------------------------------


def marks_of_options(case):
    """Encoders of most algorithms take minutes together."""
    common = ("sac", "iql") if case.images else ("sac", "iql", "td3", "bc", "bcq", "r2d2")
    return () if case.plain in common or not (case.images or case.cell) else pytest.mark.learning


@pytest.mark.parametrize(
    "case, autotune",
    [
        pytest.param(case, autotune, marks=marks_of_options(case))
        for case in ONE_CELL
        for autotune in ((None,) if case not in SACS else (True, False) if case.name in FIXED else (True,))
    ],
    ids=str,
)
def test_what_is_said_to_be_without_effect_is_and_nothing_else(case, autotune):
    options, tried = {}, {"encoder_lr": 0.3, "augmentation": RandomShift(9), "gamma": 0.5, "polyak": 0.1}
    tried |= {
        **({} if case.cls.acts_by_values else {"num_critics": 4}),
        "layer_norm": not case.cls.default_layer_norm,
        "target_update_interval": 3,
        "n_step": 2,
        "reward_scale": 3.0,
        "reward_shift": 1.0,
        **({} if case.cls.reads_returns else {"clip_rewards": True}),
        "target_subset": 1,
        "actor_q": "min" if case.cls.default_actor_q == "mean" else "mean",
        "weight_decay": 0.5,
        "adam_eps": 0.1,
        **dict.fromkeys(("dropout", "actor_dropout"), 0.5),
        "actor_layer_norm": True,
        "critic_inputs": "history",
        "cuda_graphs": True,
    }
    if issubclass(case.cls, CQL):
        tried |= {"max_q_backup": True, "backup_entropy": True, "lagrange_threshold": 9.0, "bc_steps": 1}
    if case.cls.acts_by_values:
        tried["actor_lr"] = 0.3
    if issubclass(case.cls, DiscreteSAC):
        options, tried = {"autotune": True}, {**tried, "target_entropy_ratio": 0.9, "alpha_lr": 0.3}
        tried["backup_entropy"] = False
    if issubclass(case.cls, DiscreteCRR):
        options = {"weight_type": "binary" if case.images else "exp"}
        tried |= {"temperature": 9.0, "max_advantage_weight": 1e-3}
    if issubclass(case.cls, AWAC):
        tried |= {"temperature": 9.0, "max_advantage_weight": 1e-3, "num_samples": 3}
    if issubclass(case.cls, CRR):
        options = {"weight_type": "binary" if case.images else "exp"}
    if issubclass(case.cls, SAC):
        options, tried = {"autotune": autotune}, {**tried, "target_entropy": -9.0, "alpha_lr": 0.3}
        tried |= {"target_entropy_per_dim": -9.0, "policy_delay": 2}

    batches = [case.batch(number, lengths=[2, 1, 4]) for number in range(2 * case.delay)]

    def learned(**more):
        """The parameters after each update."""
        agent = case.build(**{**options, **more})
        for batch in batches:
            agent.update_networks(batch)
            yield parameters(agent)

    def is_same(found, expected):
        return found.keys() == expected.keys() and all(
            ours.shape == expected[key].shape and torch.equal(ours, expected[key]) for key, ours in found.items()
        )

    usual = [*learned()]
    idle = case.build(**options).unused_parameters()
    for name, value in tried.items():
        # Of two critics, those drawn may happen to be the least at every step.
        more = {"num_critics": 8} if name == "target_subset" and name not in idle else {}
        # The first update after which they differ is the last.
        pairs = zip(learned(**{**more, name: value}), learned(**more) if more else usual, strict=True)
        assert all(is_same(*pair) for pair in pairs) == (name in idle), name
    assert idle.keys() <= tried.keys()


@pytest.mark.parametrize(
    ("name", "options", "idle", "value", "reason"),
    [
        ("sac", {"target_entropy": -1.0}, "target_entropy_per_dim", -9.0, "target_entropy is given"),
        ("rlpd", {"target_entropy": -1.0}, "target_entropy_per_dim", -9.0, "target_entropy is given"),
        ("bcq", {"num_critics": 1}, "lmbda", 0.1, "targets ask a single critic"),
        ("bcq", {"target_subset": 1}, "lmbda", 0.1, "targets ask a single critic"),
        ("fql", {"num_critics": 1}, "q_agg", "min", "targets ask a single critic"),
        ("fql", {"target_subset": 1}, "q_agg", "min", "targets ask a single critic"),
        ("fql", {"alpha": 0.0}, "flow_steps", 3, "alpha is 0, so the policy does not imitate the flow"),
        ("td3", {"target_noise": 0.0}, "noise_clip", 0.1, "target_noise is 0, so there is nothing to clip"),
        ("rebrac", {"noise_clip": 0.0}, "target_noise", 9.0, "noise_clip is 0, so target actions have no noise"),
        ("crr", {"num_samples": 1}, "advantage_type", "max", "mean and maximum of one sample are equal"),
    ],
)
def test_what_another_option_leaves_without_effect_is_said_to_be(name, options, idle, value, reason):
    case, learned = Case(name, None), []
    for more in ({}, {idle: value}):
        agent = case.build(**options, **more)
        for number in range(2):
            agent.update_networks(case.batch(number))
        learned.append(parameters(agent))
    assert_equal(*learned)
    assert agent.unused_parameters()[idle] == reason
    assert idle not in case.build().unused_parameters()


# Saving ---------------------------------------------------------------------------------------------------------

OPTIONS = {"lr": LinearDecay(1e-2, 1e-3, 10), "actor_lr": 3e-3, "max_grad_norm": 1.0}
OPTIONS_OF_CRITICS = {"layer_norm": True, "n_step": 3, "reward_scale": 0.5, "target_update_interval": 2}


def options_of(case):
    options = OPTIONS | OPTIONS_OF_CRITICS if case.cls.has_critics else OPTIONS
    options = options | {"max_q_backup": True} if issubclass(case.cls, CQL) else options
    return options if case.images else {**options, "normalize_observations": True}


@every_case
def test_a_saved_state_goes_on_exactly(case):
    agent = case.build(1, **options_of(case))
    for number in range(2 * case.delay - 1):  # odd, so that delayed updates are in mid-count; a delayed actor has moved
        agent.update_networks(case.batch(number))
    file = io.BytesIO()
    torch.save(agent.state_dict(), file)
    file.seek(0)
    other = case.build(2, **options_of(case))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_equal(parameters(other), parameters(agent))
    for number in range(3, 5):
        ours, expected = (a.update_networks(case.batch(number)) for a in (other, agent))
        assert_equal(ours, expected)
        assert_equal(parameters(other), parameters(agent))
    for deterministic in (True, False):
        ours, expected = (act_along(a, case, deterministic=deterministic) for a in (other, agent))
        np.testing.assert_array_equal(ours, expected)


@every_case
def test_a_saved_actor_acts_the_same(case, tmp_path):
    agent = case.build(1, **options_of(case))
    for number in range(2):
        agent.update_networks(case.batch(number))
    save_actor(agent, tmp_path / "actor.pt")
    loaded = load_actor(tmp_path / "actor.pt")
    assert type(loaded) is case.cls
    np.testing.assert_array_equal(act_along(loaded, case), act_along(agent, case))
    for name, part in agent.actor_parts().items():
        assert_equal(dict(getattr(loaded, name).state_dict()), dict(part.state_dict()))


@pytest.mark.parametrize("case", [case for case in ONE_CELL if case.images], ids=str)
def test_a_saved_actor_needs_none_of_gins_bindings(case, tmp_path):
    """What gin bound for the encoders is in the file, also for the one that a memory stands on."""
    gin.parse_config("""
        Convolutional.channels = (2, 3)
        Convolutional.kernels = (3, 3)
        Convolutional.strides = (4, 2)
        Convolutional.feature_dim = 7
        Recurrent.hidden_dim = 5
        Recurrent.cell = "gru"
        Recurrent.use_previous_action = True
        ActorCritic.hidden_dims = (6,)
    """)
    agent = case.cls(IMAGES, case.actions, seed=1)
    save_actor(agent, tmp_path / "actor.pt")
    gin.clear_config()
    loaded = load_actor(tmp_path / "actor.pt")
    np.testing.assert_array_equal(act_along(loaded, case), act_along(agent, case))


# Options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in ONE_CELL if not case.images], ids=str)
def test_normalization_learns_while_learning_alone(case):
    agent = case.build(normalize_observations=True)
    agent.update_networks(case.batch())
    before = parameters(agent)
    act_along(agent, case, deterministic=False)
    act_along(agent, case)
    batch = case.batch(1)
    prepared = agent.prepare(batch, learns=False)
    assert_equal(parameters(agent), before)
    assert not prepared.observations[batch.valid[..., 0] == 0].any()
    if case.cell:  # a burn-in of some rows
        batch.loss_mask[::2, 0] = 0.0
    agent.update_networks(batch)
    assert "normalization" in moved(agent, before)

    agent = case.build(normalize_observations=True)
    agent.update_networks(batch)
    counted = batch.observations[:, :-1][batch.loss_mask[..., 0] > 0]
    torch.testing.assert_close(agent.normalization.mean, counted.mean(0))
    torch.testing.assert_close(agent.normalization.variance, counted.var(0, correction=0))
    assert agent.normalization.count == len(counted)


@pytest.mark.parametrize(
    "case", [case for case in SACS if case.plain == "sac" or not (case.cell or case.images)], ids=str
)
def test_the_temperature(case):
    def after(**options):
        agent = case.build(alpha=0.4, **options)
        stats = [agent.update_networks(case.batch(number)) for number in range(3)]
        assert stats[-1]["alpha"] == agent.temperature()
        return agent.temperature().item()

    assert after(autotune=False, target_entropy=100.0) == pytest.approx(0.4)
    assert after(target_entropy=100.0, alpha_lr=0.1) == pytest.approx(0.4 * np.exp(0.3), rel=1e-3)
    assert after(target_entropy=-100.0, alpha_lr=0.1) == pytest.approx(0.4 * np.exp(-0.3), rel=1e-3)
    assert after(target_entropy=100.0, alpha_lr=0.0) == pytest.approx(0.4)
    per_dim = -0.5 if issubclass(case.cls, RLPD) and not issubclass(case.cls, NEUBAY) else -1.0
    assert case.build().temperature.target_entropy == per_dim * ACTION_DIM
    assert case.build(target_entropy_per_dim=-0.3).temperature.target_entropy == pytest.approx(-0.3 * ACTION_DIM)


@every_name
def test_encoder_lr_and_actor_lr(case):
    heads, encoders = {"actor", "critics", "value", "vae"}, {"shared_encoder", "actor_encoder", "critic_encoders"}
    for options, resting in [
        ({"encoder_lr": 0.0}, encoders),
        ({"actor_lr": 0.0}, {"actor"}),
        ({"lr": 0.0, "encoder_lr": 1e-2}, heads),
        ({"lr": 0.0, "actor_lr": 1e-2}, encoders | heads - {"actor"}),
    ]:
        agent = case.build(**options)
        before = parameters(agent)
        for number in range(case.delay):
            agent.update_networks(case.batch(number))
        present = {name for name, part in modules(agent).items() if next(part.parameters(), None) is not None}
        if case.cls.acts_by_values:  # the Q network acts
            resting = resting - {"actor"} if "actor_lr" in options and "lr" not in options else resting
            resting = resting | ({"actor"} if "lr" in options else set())
        assert moved(agent, before) & (heads | encoders) == present & (heads | encoders) - resting


@every_name
def test_gradients_are_clipped_to_their_norm(case):
    def norms(**options):
        agent = case.build(**({"reward_scale": 100.0} if case.cls.has_critics else {}), **options)
        for number in range(case.delay):
            agent.update_networks(case.batch(number))
        for name in OWNED.get(case.plain, OWNED["others"]):
            grads = [p.grad.norm() for p in optimized(agent, name) if p.grad is not None]
            yield torch.stack(grads).norm().item()

    free = list(norms())
    assert max(free) > 0.01
    assert list(norms(max_grad_norm=1e-5)) == pytest.approx([1e-5] * len(free), rel=0.1)
    assert list(norms(max_grad_norm=1e6)) == pytest.approx(free)


@every_name
def test_the_learning_rate_follows_its_schedule(case):
    agent = case.build(lr=LinearDecay(1e-2, 0.0, 2))
    rates = []
    for number in range(4):
        before = parameters(agent)
        agent.update_networks(case.batch(number))
        optimizer = agent.critic_optimizer if case.cls.has_critics else agent.actor_optimizer
        rates.append([group.latest_rate for group in optimizer.groups])
    for rate, expected in zip(rates, (1e-2, 5e-3, 0.0, 0.0), strict=True):
        assert rate == pytest.approx([expected] * len(rate))
    assert not moved(agent, before) & {"critics", "actor", "value", "vae"}


def test_td3_updates_actor_and_targets_at_its_delay():
    agent = Case("td3").build(policy_delay=3)
    for number in range(1, 8):
        before = parameters(agent)
        told = agent.update_networks(Case("td3").batch(number))
        delayed = {"actor", "target_actor", "target_critics"} if number % 3 == 0 else set()
        assert moved(agent, before) == {"critics"} | delayed
        assert ("actor_loss" in told) == bool(delayed)


@pytest.mark.parametrize("num_critics", [1, 3, 10])
@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "rsac", "rsac_s"])
def test_any_number_of_critics(name, num_critics):
    case = Case(name, "lstm" if name.startswith("r") else None)
    agent = case.build(num_critics=num_critics)
    stats = agent.update_networks(case.batch())
    assert agent.critics.num == num_critics and torch.isfinite(stats["critic_loss"])


@pytest.mark.parametrize("name", ["cddpg", "ctd3", "csac", "crsac", "crsac_s"])
def test_images_are_shifted_while_learning_alone(name, monkeypatch):
    case = Case(name, "lstm" if name.startswith("cr") else None)
    agent = case.build(augmentation=RandomShift(pad=2))
    calls, shift = [], agent.augmentation
    monkeypatch.setattr(agent, "augmentation", lambda *a, **k: (calls.append(k), shift(*a, **k))[1])
    act_along(agent, case)
    assert calls == []
    batch = case.batch()
    shifted = agent.prepare(batch).observations
    assert calls == [{"one_per_row": case.cell is not None}]
    assert shifted.dtype == torch.uint8 and shifted.shape == batch.observations.shape
    assert not torch.equal(shifted, batch.observations)


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_batches_of_the_buffer_fit(name):
    """The n steps of the buffer's windows are those of the algorithm."""
    case = Case(name)
    agent = case.build(n_step=3)
    buffer = ReplayBuffer(VECTORS, ACTIONS, batch_size=8, num_steps=3)
    interaction = Interaction(LocalEnvironments(Corridor, [0]), agent, buffer)
    for _ in range(12):
        interaction.step(explore_at_random=True)
    stats = [agent.update_networks(buffer.sample()) for _ in range(2)]
    assert all(torch.isfinite(value) for value in stats[-1].values())


def test_a_copy_is_an_agent_of_its_own():
    case = Case("rsac", "gru")
    agent = case.build()
    twin = copy.deepcopy(agent)
    before = parameters(twin)
    agent.update_networks(case.batch())
    assert_equal(parameters(twin), before)


class Heads(SAC):
    """Optimizers and networks in a list, a tuple and a dict, one of them private."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.heads = [torch.nn.Linear(3, 1), {"last": torch.nn.Linear(3, 1)}]
        self._head_optimizers = tuple(
            Optimizer([(head.parameters(), 1e-2)]) for head in (self.heads[0], self.heads[1]["last"])
        )

    def inner_update(self, batch):
        for head, optimizer in zip((self.heads[0], self.heads[1]["last"]), self._head_optimizers, strict=True):
            optimizer.minimize(head(batch.observations).square().mean())
        return super().inner_update(batch)


def test_what_is_in_lists_tuples_and_dicts_is_saved_and_goes_on_exactly():
    agent, other = (Heads(VECTORS, ACTIONS, hidden_dims=(4,), seed=seed) for seed in (1, 2))
    given = next(case for case in CASES if case.cls is SAC and not case.cell and not case.images).batch(1)
    agent.update_networks(given)
    state = copy.deepcopy(agent.state_dict())
    assert {"heads.0", "heads.1.last", "_head_optimizers.0", "_head_optimizers.1"} <= state.keys()
    other.load_state_dict(state)
    for one in (agent, other):
        one.update_networks(given)
    assert torch.equal(other.heads[0].weight, agent.heads[0].weight)
    assert torch.equal(other.heads[1]["last"].weight, agent.heads[1]["last"].weight)
    assert [optimizer.num_updates for optimizer in other._head_optimizers] == [2, 2]
