"""NaN and infinity in updates: noticed at once, named, and without effect on anything that lasts."""

import copy
import functools
import math
import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from offpcc.algorithms import ALGORITHMS, BC, SAC, nonfinite
from offpcc.algorithms.nonfinite import INTERVAL, MOST_SKIPPED, NonFiniteError, find_nonfinite
from offpcc.algorithms.optim import LinearDecay, Optimizer
from offpcc.core import Batch, Step
from offpcc.networks import Recurrent
from offpcc.utils.errors import UserError

OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (3,), np.float32), Box(-1, 1, (2,), np.float32)
NAN, INF = math.nan, math.inf
VAE = {"vae_hidden_dims": (8,), "num_acting_samples": 3}
KINDS = {
    "sac": {}, "sac fused": {"fused": True}, "sac normalized": {"normalize_observations": True},
    "sac bfloat16": {"precision": "bfloat16"}, "td3": {}, "td3 fused": {"fused": True},
    "ddpg": {"max_grad_norm": 1.0},
    "rsac": {}, "rsac_s": {"max_grad_norm": 1.0}, "rtd3 bfloat16": {"precision": "bfloat16"},
    **{f"{name} page": {"fused": False} for name in ("sac", "td3", "td3_bc", "iql", "bc")},
    "bc": {}, "rbc": {}, "td3_bc": {}, "iql": {}, "cql": {"lagrange_threshold": 1.0, "num_samples": 2},
    "bcq": VAE, "rbcq": VAE, "awac": {}, "rawac": {}, "edac": {"num_critics": 3}, "fql": {}, "tqc": {},
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)


def built(kind, **options):
    cls = ALGORITHMS[kind.split()[0]]
    small = {"encoder": functools.partial(Recurrent, hidden_dim=5)} if kind.startswith("r") else {}
    if kind.startswith("rsac_s"):
        small = {"shared_encoder": small["encoder"]}
    return cls(OBSERVATIONS, ACTIONS, **{"hidden_dims": (8, 8), "lr": 1e-2, **small, **KINDS[kind], **options})


def batch(kind="sac", seed=0, rows=6):
    """With memory, rows of 4 steps, the first of which ends after 2; what follows is padded with NaN."""
    draw = torch.Generator().manual_seed(seed)
    steps = 4 if kind.startswith("r") else 1
    real, mask = torch.ones(rows, steps + 1, 1), torch.ones(rows, steps, 1)
    real[0, 3:], mask[0, 2:] = 0.0, 0.0
    return Batch(
        torch.where(real > 0, torch.randn(rows, steps + 1, 3, generator=draw), NAN),
        torch.where(mask > 0, torch.tanh(torch.randn(rows, steps, 2, generator=draw)), NAN),
        torch.where(mask > 0, torch.randn(rows, steps, 1, generator=draw), NAN),
        torch.where(mask > 0, torch.zeros(rows, steps, 1), NAN),
        *(real, mask, torch.zeros(rows, 2), torch.zeros(rows, 1)),
        complete=steps == 1,
    )


def with_number(given, name, number, place=(1, 0, 0)):
    changed = getattr(given, name).clone()
    changed[place] = number
    return given._replace(**{name: changed})


def tensors(agent, without=("noise", "nonfinite_guard")):
    """All that lasts, by name: weights, targets, multipliers, statistics, moments."""
    found = {}

    def walk(name, part):
        if isinstance(part, torch.Tensor):
            found[name] = part.detach().clone()
        elif isinstance(part, dict | list):
            for key, value in part.items() if isinstance(part, dict) else enumerate(part):
                walk(f"{name}.{key}", value)

    walk("", {name: part for name, part in agent.state_dict().items() if name not in without})
    return {name: x for name, x in found.items() if ".steps." not in name}


def assert_same(ours, expected):
    assert ours.keys() == expected.keys() and len(ours) > 4
    for name, x in expected.items():
        assert torch.equal(torch.nan_to_num(ours[name], 7.25), torch.nan_to_num(x, 7.25)), name


def trained(kind, number=3, **options):
    agent = built(kind, **options)
    for seed in range(number):
        agent.update_networks(batch(kind, seed))
    return agent


# What is found --------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("name", ["observations", "actions", "rewards"])
@pytest.mark.parametrize("number", [NAN, INF, -INF])
def test_a_bad_batch_is_named_and_changes_nothing(kind, name, number):
    agent = trained(kind)
    before, given = tensors(agent), with_number(batch(kind, 9), name, number)
    with pytest.raises(NonFiniteError, match=rf"update 4: the batch's {name} is {number} at \[1, 0, 0\]") as caught:
        agent.update_networks(given)
    assert_same(tensors(agent), before)
    assert caught.value.batch is given and caught.value.update == 4
    assert "`offpcc check --env NAME`" in caught.value.message and 'nonfinite = "skip"' in caught.value.message
    assert f"--resume --gin \"{type(agent).__name__}.nonfinite='skip'\"" in caught.value.message
    agent.update_networks(batch(kind, 10))  # who catches the error may go on
    assert all(torch.isfinite(x).all() for name, x in tensors(agent).items() if not name.endswith("count"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.split()[0] != "bc"])  # which reads none of it
def test_an_infinite_last_observation_is_found(kind):
    """It is read by targets alone, through gates and bounds that could hide it."""
    agent = trained(kind)
    before = tensors(agent)
    with pytest.raises(NonFiniteError, match="observations is inf"):
        agent.update_networks(with_number(batch(kind, 9), "observations", INF, (1, -1)))
    assert_same(tensors(agent), before)


@every_kind
def test_bad_weights_are_named(kind):
    agent = trained(kind)
    weight = next(agent.actor.parameters())
    with torch.no_grad():
        weight.view(-1)[1] = NAN
    before = tensors(agent)
    name = next(name for name, _ in agent.actor.named_parameters())
    with pytest.raises(NonFiniteError, match=rf"actor\.{name} is nan at .*load other weights") as caught:
        for seed in range(2):  # TD3's actor is read by every second update
            agent.update_networks(batch(kind, seed))
    assert "skip" not in caught.value.message, "all updates would be"
    if not kind.startswith(("td3", "ddpg", "rtd3", "bcq", "rbcq", "iql")):  # which step something before the actor
        assert_same(tensors(agent), before)


@pytest.mark.parametrize("kind", ["sac", "sac fused", "rsac", "td3", "td3 fused", "iql"])
def test_a_loss_that_overflows(kind):
    """Its gradient need not."""
    agent = trained(kind)
    before = tensors(agent)
    agent.reward_scale = 1e20
    with pytest.raises(NonFiniteError, match=r"the loss of critic_optimizer is inf.*smaller learning rate"):
        agent.update_networks(batch(kind, 9))
    after = tensors(agent)
    assert_same({n: x for n, x in after.items() if "crit" in n}, {n: x for n, x in before.items() if "crit" in n})
    if kind.split()[0] != "iql":  # critics come first
        assert_same(after, before)


class Rooted(SAC):
    """A loss that is finite, with a gradient that is not: a square root at 0."""

    where = "critic"

    def critic_loss(self, h, batch):
        loss, stats = super().critic_loss(h, batch)
        return loss + self.root(self.critics(h.q, batch.actions), "critic"), stats

    def actor_loss(self, h, batch):
        loss, stats = super().actor_loss(h, batch)
        return loss + self.root(self.actor(h.pi)[0], "actor"), stats

    def root(self, x, where):
        return (x - x.detach()).abs().sum().sqrt() if self.where == where else 0.0 * x.sum()


@pytest.mark.parametrize("limit", [None, 1.0])
@pytest.mark.parametrize("where", ["critic", "actor"])
def test_a_bad_gradient_of_a_finite_loss(where, limit):
    agent = Rooted(OBSERVATIONS, ACTIONS, hidden_dims=(8,), max_grad_norm=limit)
    agent.where = None
    agent.update_networks(batch())
    agent.where, before = where, tensors(agent)
    with pytest.raises(NonFiniteError, match=rf"update 2: the gradient of {where}s?\.net\.0\.weight is nan"):
        agent.update_networks(batch(seed=1))
    after = tensors(agent)
    # The critics have stepped before the actor's gradient was known; nothing moves after it.
    still = {name for name in before if where == "critic" or ".critic" not in name}
    assert_same({name: after[name] for name in still}, {name: before[name] for name in still})
    assert all(torch.isfinite(x).all() for x in after.values())


@pytest.mark.parametrize("scale", [1e6, 1e15, 1e18])
def test_a_large_gradient_is_none_that_is_bad(scale):
    agent = trained("sac")
    before = tensors(agent)
    loss = agent.critic_loss
    agent.critic_loss = lambda h, batch: (scale * 1e-2 * loss(h, batch)[0], loss(h, batch)[1])
    agent.update_networks(batch(seed=9))
    assert not torch.equal(tensors(agent)[".critics.net.0.weight"], before[".critics.net.0.weight"])
    assert max(p.grad.abs().max() for p in agent.critics.parameters()) > 1e-4 * scale


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("number", [2e38, NAN])
def test_large_gradients_whose_sum_is_infinite_are_none_that_are_bad(together, number):
    agent = trained("sac")
    before = tensors(agent)

    def update(agent, batch):
        gradients = [torch.full_like(parameter, number) for parameter in agent.critic_optimizer.parameters]
        flat_gradients = [torch.cat([gradient.flatten() for gradient in gradients])] if together else None
        agent.critic_optimizer.step(gradients, flat_gradients=flat_gradients)
        return {}

    agent.inner_update, agent._fused = functools.partial(update, agent), None
    if number == number:
        agent.update_networks(batch())
        assert agent.nonfinite_guard.found == 0
    else:
        with pytest.raises(NonFiniteError, match=r"the gradient of critics\.net\.0\.weight is nan"):
            agent.update_networks(batch())
        assert_same(tensors(agent), before)


def test_large_numbers_of_a_batch_are_named_by_their_sum():
    """Which is all that a GPU is asked for."""
    given = batch()
    given = given._replace(rewards=torch.full_like(given.rewards, 3e38))
    assert (
        find_nonfinite(trained("sac"), given, None, None, ())[0]
        == "the batch's rewards is finite, but its sum is not: it reaches 3e+38"
    )


def test_padding_and_a_temperature_of_zero_are_not_bad():
    trained("rsac", alpha=0.0, autotune=False)
    agent = trained("sac", alpha=0.0, autotune=False)
    with pytest.raises(NonFiniteError, match="the batch's rewards"):
        agent.update_networks(with_number(batch(), "rewards", NAN))


def test_statistics_of_a_users_normalisation_stay():
    agent = trained("sac")
    agent.nonfinite_guard.statistics += [*nn.BatchNorm1d(3).buffers()]
    mean, variance, count = agent.nonfinite_guard.statistics

    def update(agent, batch):
        mean.add_(batch.observations.mean()), count.add_(1)
        return type(agent).inner_update(agent, batch)

    agent.inner_update, agent._fused = functools.partial(update, agent), None
    agent.update_networks(batch())
    before = mean.clone(), variance.clone(), count.clone()
    assert mean.abs().sum() > 0 and count == 1
    with pytest.raises(NonFiniteError):
        agent.update_networks(with_number(batch(), "observations", NAN))
    assert all(torch.equal(a, b) for a, b in zip((mean, variance, count), before, strict=True))


class OwnNorm(nn.Module):
    """A batch norm of the user's; and a mask with infinity, as attention has."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(), 0.5)
        return x


def test_buffers_of_a_users_layer_are_restored_and_may_hold_a_mask_of_infinity():
    class OwnSAC(SAC):
        def build_critics(self, num, summary_dim, hidden_dims):
            critics = super().build_critics(num, summary_dim, hidden_dims)
            critics.norm = OwnNorm()
            critics.register_forward_pre_hook(lambda module, given: (module.norm(given[0]), *given[1:]))
            return critics

    agent = OwnSAC(OBSERVATIONS, ACTIONS, hidden_dims=(8,), nonfinite="skip")
    assert agent.update_networks(batch())["skipped"] == 0
    before = agent.critics.norm.mean.clone()
    assert before != 0
    assert agent.update_networks(with_number(batch(), "observations", NAN))["skipped"] == 1
    assert agent.critics.norm.mean == before == agent.target_critics.norm.mean
    agent = OwnSAC(OBSERVATIONS, ACTIONS, hidden_dims=(8,))
    with pytest.raises(NonFiniteError, match="the batch's rewards is nan"):
        agent.update_networks(with_number(batch(), "rewards", NAN))


def test_an_update_that_calls_its_parents_is_one():
    class Twice(SAC):
        def inner_update(self, batch):
            super().inner_update(batch)
            return super().inner_update(batch)

    agent = Twice(OBSERVATIONS, ACTIONS, hidden_dims=(8,))
    agent.update_networks(batch())
    assert agent.nonfinite_guard.num_updates == 1 and agent.critic_optimizer.num_updates == 2
    with pytest.raises(NonFiniteError, match="update 2"):
        agent.update_networks(with_number(batch(), "rewards", INF))


class Mixin:
    def update_networks(self, batch):
        return super().update_networks(batch)


@pytest.mark.parametrize("parents, name", [((SAC,), "update_networks"), ((Mixin, SAC), "own_method")])
def test_an_update_networks_of_ones_own_is_refused(parents, name):
    with pytest.raises(UserError, match=r"Mine overrides update_networks.*rename the method to inner_update"):
        type("Mine", parents, {name: Mixin.update_networks})(OBSERVATIONS, ACTIONS)


class Component:
    """A part of an agent that is no module, with an optimizer."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


class Nested(SAC):
    """Steps an optimizer that is no attribute of the agent, before its own."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.head, self.calls = nn.Linear(3, 1), 0
        optimizer = Optimizer([(self.head.parameters(), 1e-2)])
        self.optimizers = {"list": [optimizer], "dict": {"head": optimizer}, "component": Component(optimizer)}

    def head_optimizer(self):
        return self.optimizers["list"][0]

    def inner_update(self, batch):
        self.calls += 1
        loss = (self.head(batch.observations) * batch.rewards).square().mean()
        {"list": self.optimizers["list"][0], "dict": self.optimizers["dict"]["head"]}.get(
            self.kind, self.optimizers["component"].optimizer
        ).minimize(loss)
        return super().inner_update(batch)

    kind = "list"


@pytest.mark.parametrize("kind", ["list", "dict", "component"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("is_awaited", [True, False])
def test_an_optimizer_in_a_list_or_in_a_component_is_guarded(kind, policy, is_awaited):
    agent = Nested(OBSERVATIONS, ACTIONS, hidden_dims=(8,), nonfinite=policy)
    agent.kind, agent.nonfinite_guard.is_awaited = kind, is_awaited
    agent.update_networks(batch())
    before, bad = agent.head.weight.clone(), with_number(batch(seed=1), "rewards", NAN)
    if policy == "raise" and is_awaited:
        with pytest.raises(NonFiniteError, match="update 2: the batch's rewards is nan"):
            agent.update_networks(bad)
    else:
        agent.update_networks(bad)
    assert torch.equal(agent.head.weight, before)
    if policy == "skip":
        agent.state_dict()  # on a GPU, waits for the counts
        assert agent.head_optimizer().num_updates == agent.critic_optimizer.num_updates == 1


def test_an_update_of_another_agent_inside_an_update_has_its_own_guard():
    class Two(SAC):
        def inner_update(self, given):
            self.helper.update_networks(given._replace(rewards=torch.zeros_like(given.rewards)))
            return super().inner_update(given)

    agent = Two(OBSERVATIONS, ACTIONS, hidden_dims=(8,), nonfinite="skip")
    agent.helper = BC(OBSERVATIONS, ACTIONS, hidden_dims=(8,))
    agent.update_networks(batch())
    assert agent.helper.nonfinite_guard.num_updates == agent.nonfinite_guard.num_updates == 1
    with pytest.raises(NonFiniteError, match="the batch's actions is nan"):
        agent.update_networks(with_number(batch(), "actions", NAN))
    assert agent.update_networks(with_number(batch(), "rewards", NAN))["skipped"] == 1
    assert nonfinite.current_guard() is None


@pytest.mark.parametrize("is_awaited", [True, False])
def test_after_another_exception_no_update_is_under_way(is_awaited):
    """A second Ctrl-C, for example."""
    agent = trained("sac page")
    guard, loss = agent.nonfinite_guard, agent.actor_loss
    guard.is_awaited = is_awaited

    def interrupted(h, batch):
        raise KeyboardInterrupt

    agent.actor_loss = interrupted
    with pytest.raises(KeyboardInterrupt):
        agent.update_networks(batch())
    agent.actor_loss = loss
    agent.prepare(with_number(batch(), "rewards", NAN))  # outside of updates, nothing is checked
    x = nn.Parameter(torch.ones(2))
    Optimizer([([x], 0.1)]).minimize(NAN * x.sum())
    assert torch.isnan(x).all() and nonfinite.current_guard() is None
    assert guard.num_updates == 3 and guard._agent is guard._batch is None and not guard._unchecked
    with pytest.raises(NonFiniteError, match="update 5: the batch's rewards is nan"):
        for seed in range(3 * INTERVAL):
            agent.update_networks(with_number(batch(seed=seed), "rewards", NAN if seed == 1 else 0.5))


def test_an_optimizer_outside_of_an_update_is_not_watched():
    x = nn.Parameter(torch.ones(2))
    Optimizer([([x], 0.1)]).minimize(NAN * x.sum())
    assert torch.isnan(x).all()


# Skipping -------------------------------------------------------------------------------------------------------


@every_kind
def test_a_skipped_update_is_counted_and_leaves_no_trace(kind):
    agent = trained(kind, nonfinite="skip")
    assert agent.stat_names == (*type(agent).stat_names, "skipped")
    before = tensors(agent)
    latest = agent.update_networks(batch(kind, 9))
    before = tensors(agent)
    stats = agent.update_networks(with_number(batch(kind, 10), "actions", NAN))
    assert_same(tensors(agent), before)
    assert latest["skipped"] == 0.0 and stats["skipped"] == 1.0
    assert all(torch.isfinite(value) for value in latest.values())
    assert all(torch.isnan(value) for name, value in stats.items() if name != "skipped"), "none was made"
    after = agent.update_networks(batch(kind, 11))
    assert after["skipped"] == 0.0
    assert any(not torch.equal(x, before[name]) for name, x in tensors(agent).items())


def test_steps_of_adam_that_are_skipped_are_not_counted():
    agent = trained("td3", 4, nonfinite="skip")
    agent.update_networks(with_number(batch(), "rewards", NAN))
    assert {float(steps) for group in agent.critic_optimizer.groups for steps in group.steps} == {4.0}
    assert agent.critic_optimizer.num_updates == 4, "nor is it an update for schedules and delays"


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "resume"])
@pytest.mark.parametrize("kind", ["sac", "sac fused", "rsac", "td3_bc", "cql"])
def test_going_on_is_exact_while_updates_are_skipped(kind, copied):
    agent = trained(kind, nonfinite="skip")
    agent.update_networks(with_number(batch(kind), "actions", INF))
    if copied == "resume":
        other = built(kind, nonfinite="skip")
        other.load_state_dict(pickle.loads(pickle.dumps(agent.state_dict())))
    else:
        other = copy.deepcopy(agent) if copied == "deepcopy" else pickle.loads(pickle.dumps(agent))
    for number in (NAN, 0.5, 0.1, NAN, 0.2):
        given = with_number(batch(kind, 7), "actions", number)
        ours, theirs = other.update_networks(given), agent.update_networks(given)
        assert ours.keys() == theirs.keys() and all(
            torch.equal(torch.nan_to_num(ours[name], 7.25), torch.nan_to_num(theirs[name], 7.25)) for name in ours
        )
    assert_same(tensors(other, ()), tensors(agent, ()))
    assert other.nonfinite_guard.num_updates == agent.nonfinite_guard.num_updates == 9


def test_too_many_in_a_row_are_no_accident():
    agent = trained("bc", nonfinite="skip")
    bad = with_number(batch("bc"), "actions", NAN)
    for _ in range(MOST_SKIPPED - 1):
        agent.update_networks(bad)
    agent.update_networks(batch("bc"))
    for _ in range(MOST_SKIPPED - 1):
        agent.update_networks(bad)
    with pytest.raises(NonFiniteError, match="100 updates in a row were skipped, and in this one the batch's actions"):
        agent.update_networks(bad)


def test_what_may_be_done_about_bad_numbers_is_held():
    with pytest.raises(UserError, match=r"SAC\.nonfinite is 'ignore'; it has to be one of raise, skip"):
        SAC(OBSERVATIONS, ACTIONS, nonfinite="ignore")


# A device that is not waited for --------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, INTERVAL - 1, INTERVAL, INTERVAL + 1])
def test_late_reports_name_the_update_that_was_bad(at):
    agent = built("sac page")
    agent.nonfinite_guard.is_awaited = False
    bad, before = with_number(batch(), "rewards", NAN), None
    with pytest.raises(NonFiniteError, match=rf"update {at}: the batch's rewards is nan") as caught:
        for update in range(1, 101):
            if update == at:
                before = tensors(copy.deepcopy(agent))
            agent.update_networks(bad if update == at else batch(seed=update))
    assert caught.value.batch is bad
    assert update <= at + 2 * INTERVAL
    assert_same(tensors(agent), before)


@pytest.mark.parametrize("at", [1, 2, 5, 6, 7, 30])
@pytest.mark.parametrize("num_kept", [0, 2, 6, 10, 1000])
def test_large_batches_are_reported_sooner_and_not_kept(num_kept, at, monkeypatch):
    """On a GPU, forty batches of pictures would take gigabytes."""
    size = sum(part.nbytes for part in batch() if isinstance(part, torch.Tensor))
    monkeypatch.setattr(nonfinite, "LARGEST_KEPT", num_kept * size)
    agent, most = built("sac page"), 0
    agent.nonfinite_guard.is_awaited = False
    bad = with_number(batch(), "rewards", NAN)
    with pytest.raises(NonFiniteError, match=rf"update {at}: the batch's rewards is nan") as caught:
        for update in range(1, 101):
            if update in (4, 17):
                agent.state_dict()  # a report out of turn
            agent.update_networks(bad if update == at else batch(seed=update))
            most = max(most, len(agent.nonfinite_guard._batches))
    assert caught.value.batch is bad
    assert most <= max(min(num_kept, 2 * INTERVAL), 1) + 1, "one, to know that they are too many"


def test_a_save_waits_for_what_is_not_known_yet():
    agent = built("sac page")
    agent.nonfinite_guard.is_awaited = False
    for seed in range(3):
        agent.update_networks(batch(seed=seed))
    agent.state_dict()
    agent.update_networks(with_number(batch(), "rewards", NAN))
    agent.update_networks(batch())
    with pytest.raises(NonFiniteError, match="update 4: the batch's rewards"):
        agent.state_dict()
    agent.state_dict()
    for _ in range(5 * INTERVAL):
        agent.update_networks(batch())


def test_late_reports_of_skipped_updates():
    agent = built("bc page", nonfinite="skip")
    agent.nonfinite_guard.is_awaited = False
    bad = with_number(batch("bc"), "actions", NAN)
    for _ in range(4 * INTERVAL):
        agent.update_networks(bad)
    agent.update_networks(batch("bc"))
    with pytest.raises(NonFiniteError, match="100 updates in a row"):
        for _ in range(MOST_SKIPPED + 3 * INTERVAL):
            agent.update_networks(bad)
    assert agent.nonfinite_guard.num_updates > 4 * INTERVAL + MOST_SKIPPED, "those before the good one do not count"


def test_a_run_that_skipped_updates_is_resumed_without_skipping():
    agent, bad = built("sac page", nonfinite="skip"), with_number(batch(), "rewards", NAN)
    agent.nonfinite_guard.is_awaited = False
    for number in range(8):
        agent.update_networks(bad if number >= 5 else batch(seed=number))
    state = copy.deepcopy(agent.state_dict())
    assert state["nonfinite_guard"] == {"num_updates": 8, "bad_in_a_row": 3}
    other = built("sac page")
    other.nonfinite_guard.is_awaited = False
    other.load_state_dict(state)
    with pytest.raises(NonFiniteError, match="update 9: the batch's rewards is nan"):
        for _ in range(3 * INTERVAL):
            other.update_networks(bad)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent))])
def test_a_copy_has_no_bad_update_that_was_not_reported(copied):
    agent = trained("sac page", 5)
    agent.nonfinite_guard.is_awaited = False
    agent.update_networks(with_number(batch(), "rewards", NAN))
    other = copied(agent)
    before = tensors(other)[".critics.net.0.weight"]
    for seed in range(3 * INTERVAL):
        other.update_networks(batch(seed=seed))
    assert not torch.equal(tensors(other)[".critics.net.0.weight"], before), "it learns"
    with pytest.raises(NonFiniteError, match="update 6: the batch's rewards is nan"):
        agent.state_dict()


@pytest.mark.parametrize("at", [4, 6, 10, INTERVAL])
@pytest.mark.parametrize("kind", ["td3 page", "td3_bc page", "ddpg", "cql"])
def test_a_bad_loss_of_a_delayed_actor_is_named_late(kind, at):
    """The update is repeated as it was: with the delays, the schedules and the imitation of then."""
    agent = built(kind, bc_steps=at) if kind == "cql" else built(kind)
    agent._fused, agent.nonfinite_guard.is_awaited = None, False
    loss = agent.actor_loss if kind != "cql" else agent.actor.log_prob

    def spoilt(h, given):
        made = loss(h, given)
        is_marked = bool((given[0, 0, 0] if kind == "cql" else given.actions[0, 0, 0]) == 0.625)
        if kind == "cql":
            return made * INF if is_marked else made
        return made[0] * INF if is_marked else made[0], made[1]

    if kind == "cql":
        agent.actor.log_prob = spoilt
    else:
        agent.actor_loss = spoilt
    with pytest.raises(NonFiniteError, match=rf"update {at}: the loss of actor_optimizer is") as caught:
        for number in range(1, at + 3 * INTERVAL):
            given = batch(seed=number)
            agent.update_networks(with_number(given, "actions", 0.625, (0, 0, 0)) if number == at else given)
    assert caught.value.update == at


# Acting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 20])  # by arrays, and by the networks
@pytest.mark.parametrize("kind", ["sac", "rsac", "bc"])
def test_a_bad_action_is_refused(kind, num_envs):
    agent = built(kind)
    step = Step(np.zeros((num_envs, 3)), np.zeros((num_envs, 2)), np.zeros((num_envs, 1)), np.ones(num_envs))
    agent.act(step)
    seen = step.observation.copy()
    seen[0, 1] = NAN
    with pytest.raises(
        UserError,
        match=r"action is NaN or infinite, because the observation is nan at \[0, 1\], .*correct the environment",
    ):
        agent.act(step._replace(observation=seen))
    with torch.no_grad():
        next(agent.actor.parameters()).fill_(NAN)
    with pytest.raises(UserError, match=r"action is NaN or infinite, because actor\.\S+ is nan.*load other weights"):
        agent.act(step)


@pytest.mark.parametrize("num_envs", [1, 20])  # by arrays, and by the networks
@pytest.mark.parametrize("kind", ["sac", "rsac"])
def test_an_infinite_observation_is_refused_with_a_memory_too(kind, num_envs):
    """An LSTM saturates, so its action is finite, but the memory is wrong for the rest of the episode."""
    agent = built(kind)
    step = Step(np.zeros((num_envs, 3)), np.zeros((num_envs, 2)), np.zeros((num_envs, 1)), np.ones(num_envs))
    for number in (INF, -INF):
        seen = step.observation.copy()
        seen[-1, 1] = number
        with pytest.raises(UserError, match=rf"because the observation is {number} at \[{num_envs - 1}, 1\]"):
            agent.act(step._replace(observation=seen))
        seen[-1, 1] = math.copysign(1e30, number)  # finite, but its square is not
        agent.act(step._replace(observation=seen))


# Where in an update ---------------------------------------------------------------------------------------------


def spoil_actor(agent, number):
    """Have the actor's loss be bad in update `number`, which comes after the critics' step."""
    loss, calls = agent.actor_loss, []

    def spoilt(h, batch):
        value, entropy = loss(h, batch)
        calls.append(1)
        return (value * INF if len(calls) == number else value), entropy

    agent.actor_loss, agent._fused = spoilt, None


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_bad_actors_loss_leaves_all_that_comes_after_the_critics(policy, is_awaited):
    agent, other = (trained("sac page", nonfinite=policy) for _ in range(2))
    agent.nonfinite_guard.is_awaited = is_awaited
    spoil_actor(agent, 1)
    before = tensors(agent)
    other.update_networks(batch(seed=9))  # what the critics' step gives
    if policy == "raise" and is_awaited:
        with pytest.raises(NonFiniteError, match="update 4: the loss of actor_optimizer is"):
            agent.update_networks(batch(seed=9))
    else:
        agent.update_networks(batch(seed=9))
    after, made = tensors(copy.deepcopy(agent)), tensors(other)  # a copy has no checks to wait for
    critics = {name for name in before if name.startswith((".critics.", ".critic_optimizer."))}
    assert_same({n: after[n] for n in critics}, {n: made[n] for n in critics})
    rest = before.keys() - critics
    assert any("target" in n for n in rest) and any("temperature" in n for n in rest)
    assert_same({n: after[n] for n in rest}, {n: before[n] for n in rest})


@pytest.mark.parametrize("kind", ["sac page", "td3 page", "rsac", "cql", "bcq"])
def test_naming_a_tensor_draws_none_of_the_runs_numbers_and_changes_nothing(kind, monkeypatch):
    agent, seen = trained(kind), []
    guard = agent.nonfinite_guard
    guard.is_awaited = False
    search = guard._search

    def state():
        counts = [part.num_updates for part in vars(agent).values() if isinstance(part, Optimizer)]
        noise = agent.noise.generator.get_state(), torch.random.get_rng_state()
        return tensors(agent), counts, noise, agent.noise.acting.generator.bit_generator.state

    def watched(*given):
        guard._batches.clear()  # nothing more to wait for
        before = state()
        found = search(*given)
        seen.append((before, state()))
        return found

    monkeypatch.setattr(guard, "_search", watched)
    with pytest.raises(NonFiniteError, match="update 5: the batch's rewards is nan"):
        for number in range(4, 4 + 3 * INTERVAL):
            given = batch(kind, number)
            agent.update_networks(with_number(given, "rewards", NAN) if number == 5 else given)
    ((before, after),) = seen
    assert_same(after[0], before[0])
    assert after[1] == before[1] and after[3] == before[3]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(after[2], before[2], strict=True))


# What a skipped update does not count for -----------------------------------------------------------------------


def counts(agent):
    agent.state_dict()  # on a GPU, waits for what is not known yet
    return {name: part.num_updates for name, part in vars(agent).items() if isinstance(part, Optimizer)}


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("kind", ["sac page", "td3 page", "cql", "iql page", "bcq"])
def test_skipped_updates_advance_no_schedule_and_no_delay(kind, is_awaited):
    """Neither learning rates, nor TD3's delay, nor the updates in which CQL's actor imitates."""
    rate = LinearDecay(1e-2, 0.0, 8)
    agent, other = (built(kind, nonfinite="skip", lr=rate) for _ in range(2))
    agent.nonfinite_guard.is_awaited = is_awaited
    for seed in range(3):
        agent.update_networks(batch(kind, seed))
        for number in (NAN, INF):
            agent.update_networks(with_number(batch(kind, seed), "rewards", number))
        other.update_networks(batch(kind, seed))
        assert counts(agent) == counts(other)
    assert max(counts(agent).values()) == 3


@pytest.mark.parametrize("keeps_moments", [True, False])
def test_skipped_updates_advance_no_schedule_after_the_switch_to_an_environment(keeps_moments):
    agent, other = (built("td3 page", nonfinite="skip") for _ in range(2))
    agent.nonfinite_guard.is_awaited = False
    for seed in range(6):
        if seed == 3:
            agent.begin_online(keeps_moments)
            other.begin_online(keeps_moments)
        if seed == 5:
            again = built("td3 page", nonfinite="skip")
            again.nonfinite_guard.is_awaited = False
            again.load_state_dict(copy.deepcopy(agent.state_dict()))
            agent = again
        agent.update_networks(batch(seed=seed))
        agent.update_networks(with_number(batch(seed=seed), "rewards", NAN))
        other.update_networks(batch(seed=seed))
        if seed != 2:  # the result of the last updates is not known yet at the switch
            assert counts(agent) == counts(other)
    assert max(counts(agent).values()) == 3


def test_cqls_actor_imitates_in_updates_that_are_made():
    agent = built("cql", nonfinite="skip", bc_steps=2)
    loss, imitated = agent.actor.log_prob, []
    agent.actor.log_prob = lambda *given: imitated.append(1) or loss(*given)
    for number in (NAN, 0.5, NAN, 0.5, 0.5):
        agent.update_networks(with_number(batch("cql"), "rewards", number))
    assert len(imitated) == 2
