"""Optimizers, schedules, targets, the temperature, noise and running statistics, against their formulas."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import nn

from offpcc.algorithms.components import RunningNormalization, Temperature
from offpcc.algorithms.optim import CosineDecay, LinearDecay, Optimizer, PolyakAverage
from offpcc.networks import InputShape, Recurrent
from offpcc.networks.noise import Noise

CPU = torch.device("cpu")


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# Schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "update, rate", [(0, 1.0), (1, 0.92), (5, 0.6), (9, 0.28), (10, 0.2), (11, 0.2), (10_000, 0.2)]
)
def test_linear_decay(update, rate):
    assert LinearDecay(1.0, 0.2, 10)(update) == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize(
    "update, rate", [(0, 1.0), (1, 0.98042), (5, 0.6), (9, 0.21958), (10, 0.2), (11, 0.2), (10_000, 0.2)]
)
def test_cosine_decay(update, rate):
    assert CosineDecay(1.0, 0.2, 10)(update) == pytest.approx(rate, abs=1e-5)


# Optimizer ------------------------------------------------------------------------------------------------------


class AdamReference:
    """Kingma & Ba 2015, algorithm 1, in NumPy."""

    def __init__(self, x):
        self.x, self.m, self.v, self.t = x.numpy().copy(), 0.0, 0.0, 0

    def step(self, gradient, rate):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        self.x = self.x - rate * m / (np.sqrt(v) + 1e-8)


def test_minimize_changes_own_parameters_and_leaves_no_gradient_elsewhere():
    torch.manual_seed(0)
    below, own, above = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1)
    before = [copy.deepcopy(net.state_dict()) for net in (below, own, above)]
    optimizer = Optimizer([(own.parameters(), 0.1)])
    for _ in range(2):
        optimizer.minimize(above(own(below(torch.randn(5, 2)))).square().mean())
    for net, old in zip((below, above), (before[0], before[2]), strict=True):
        assert all(parameter.grad is None for parameter in net.parameters())
        assert all(torch.equal(net.state_dict()[name], old[name]) for name in old)
    assert all(not torch.equal(own.state_dict()[name], before[1][name]) for name in before[1])
    assert all(parameter.requires_grad for net in (below, above) for parameter in net.parameters())


def test_steps_are_adams_and_gradients_do_not_add_up():
    x, y = (nn.Parameter(torch.tensor([v, -v], dtype=torch.float64)) for v in (1.0, 3.0))
    references = [AdamReference(x.detach()), AdamReference(y.detach())]
    optimizer = Optimizer([([x], 0.1), ([y], LinearDecay(0.3, 0.0, 4))])
    for update in range(6):
        optimizer.minimize(x.pow(4).sum() + 2.0 * y.square().sum())
        references[0].step(4 * references[0].x ** 3, 0.1)
        references[1].step(4 * references[1].x, 0.3 * max(1 - update / 4, 0.0))
        np.testing.assert_allclose(x.detach(), references[0].x, rtol=1e-10)
        np.testing.assert_allclose(y.detach(), references[1].x, rtol=1e-10)
    assert optimizer.num_updates == 6


@pytest.mark.parametrize("limit, norm", [(None, 25.0), (5.0, 5.0), (100.0, 25.0)])
def test_all_groups_together_are_clipped_to_the_norm(limit, norm):
    x, y = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    Optimizer([([x], 0.1), ([y], 0.1)], limit).minimize(15.0 * x.sum() + 20.0 * y.sum())
    gradients = torch.cat([x.grad, y.grad])
    torch.testing.assert_close(gradients, torch.tensor([0.6, 0.8]) * norm, rtol=1e-4, atol=0)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(("limit", "eps"), [(None, 1e-8), (0.1, 1e-8), (None, 0.03)])
def test_steps_are_those_of_torchs_adam(limit, eps, decay):
    """In float32, with gradients that do not lie in memory as their parameters do, and one that is missing at times."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    scale, spare = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(2))
    other_net, other_scale, other_spare = copy.deepcopy((net, scale, spare))
    optimizer = Optimizer([([*net.parameters(), spare], 1e-2), ([scale], 3e-2)], limit, decay, eps)
    groups = [{"params": [*other_net.parameters(), other_spare], "lr": 1e-2}, {"params": [other_scale], "lr": 3e-2}]
    adam = torch.optim.AdamW(groups, weight_decay=decay, eps=eps)
    for update in range(5):
        x, w = torch.randn(6, 4), torch.randn(5, 3)

        def of(net, scale, spare, x=x, w=w, update=update):
            return net(x).square().mean() + (scale.t() * w).sum() + (spare.sum() if update % 2 else 0.0)

        optimizer.minimize(of(net, scale, spare))
        adam.zero_grad()
        of(other_net, other_scale, other_spare).backward()
        if limit is not None:
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], limit)
        adam.step()
        ours, theirs = [*net.parameters(), scale, spare], [*other_net.parameters(), other_scale, other_spare]
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_a_parameter_that_the_loss_does_not_reach_stays():
    x, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = Optimizer([([x, unused], 0.1)], 1.0)
    optimizer.minimize(x.square().sum())
    assert torch.equal(unused.detach(), torch.ones(2)) and not torch.equal(x.detach(), torch.ones(2))


def test_a_frozen_parameter_stays():
    """As pretrained convolutions do if a user says `requires_grad_(False)`."""
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    optimizer = Optimizer([([x, y], 0.1)], weight_decay=0.5)
    y.requires_grad_(False)
    for _ in range(3):
        optimizer.minimize((x * y).sum())
    assert (x < 1.0).all() and (y == 1.0).all()
    kept = x.requires_grad_(False).clone()
    optimizer.minimize((x * torch.ones(3, requires_grad=True)).sum())
    assert torch.equal(x, kept)


@pytest.mark.parametrize("rate", [0.05, LinearDecay(0.1, 0.0, 5)])
def test_a_restored_optimizer_takes_the_same_next_step(rate):
    torch.manual_seed(1)
    net = nn.Linear(3, 2)
    optimizer = Optimizer([(net.parameters(), rate)], 0.5)
    data = torch.randn(6, 4, 3)
    for x in data[:3]:
        optimizer.minimize(net(x).square().mean())
    weights, state = through_a_file(net.state_dict()), through_a_file(optimizer.state_dict())
    other = nn.Linear(3, 2)
    restored = Optimizer([(other.parameters(), rate)], 0.5)
    other.load_state_dict(weights)
    restored.load_state_dict(state)
    assert restored.num_updates == 3
    for x in data[3:]:
        optimizer.minimize(net(x).square().mean())
        restored.minimize(other(x).square().mean())
        assert torch.equal(net.weight, other.weight) and torch.equal(net.bias, other.bias)


def test_a_loss_that_reaches_nothing_moves_nothing_also_where_gradients_are_clipped():
    x, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    Optimizer([([x], 0.1)], 1.0).minimize(other.sum())
    assert torch.equal(x.detach(), torch.ones(2))


def test_without_parameters_nothing_happens():
    x = nn.Parameter(torch.ones(2))
    optimizer = Optimizer([([], 0.1), (iter(()), LinearDecay())], 1.0)
    optimizer.minimize(x.sum())
    assert x.grad is None and torch.equal(x.detach(), torch.ones(2))
    optimizer.minimize(torch.tensor(1.0))  # not even a graph is needed
    optimizer.load_state_dict(through_a_file(optimizer.state_dict()))


def test_an_empty_group_beside_a_filled_one_keeps_rates_in_their_places():
    x = nn.Parameter(torch.ones(1))
    optimizer = Optimizer([([], LinearDecay(9.0, 9.0)), ([x], LinearDecay(0.1, 0.1))])
    optimizer.minimize(x.sum())
    torch.testing.assert_close(x.detach(), torch.tensor([0.9]))


# Targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("polyak", [0.0, 0.5, 0.995, 1.0])
def test_targets_follow_the_formula(polyak):
    torch.manual_seed(2)
    sources = [nn.Linear(2, 3).double(), nn.Linear(3, 1).double()]
    targets = [nn.Linear(2, 3).double(), nn.Linear(3, 1).double()]
    expected = [[p.detach().numpy().copy() for p in target.parameters()] for target in targets]
    average = PolyakAverage(list(zip(targets, sources, strict=True)), polyak)
    for _ in range(3):
        for net, source in zip(expected, sources, strict=True):
            for i, p in enumerate(source.parameters()):
                p.data.add_(torch.randn_like(p))
                net[i] = polyak * net[i] + (1.0 - polyak) * p.detach().numpy()
        kept = [p.detach().clone() for source in sources for p in source.parameters()]
        average.update()
        for net, target in zip(expected, targets, strict=True):
            for value, p in zip(net, target.parameters(), strict=True):
                np.testing.assert_allclose(p.detach(), value, rtol=1e-12, atol=1e-14)
        assert all(torch.equal(a, b) for a, b in zip(kept, average.sources, strict=True))
    assert not any(p.requires_grad for target in targets for p in target.parameters())
    assert all(p.requires_grad for source in sources for p in source.parameters())


def test_targets_without_parameters_do_nothing():
    PolyakAverage([(nn.Identity(), nn.Identity())], 0.5).update()
    PolyakAverage([], 0.5).update()


# Temperature ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entropy, direction", [(-3.0, 1), (-1.0, -1), (-2.0, 0)])
def test_alpha_rises_when_entropy_is_below_its_target(entropy, direction):
    temperature = Temperature(0.5, True, target_entropy=-2.0)
    assert temperature().item() == pytest.approx(0.5) and not temperature().requires_grad
    optimizer = Optimizer([(temperature.learned_parameters(), 0.01)])
    for _ in range(3):
        before = temperature().item()
        optimizer.minimize(temperature.loss(torch.tensor(entropy)))
        assert np.sign(temperature().item() - before) == direction


def test_the_loss_is_on_log_alpha_and_gives_the_policy_no_gradient():
    temperature = Temperature(2.0, True, target_entropy=-1.5)
    entropy = torch.tensor(0.25, requires_grad=True)
    loss = temperature.loss(entropy)
    assert loss.item() == pytest.approx(math.log(2.0) * 1.75, rel=1e-6)
    loss.backward()
    assert entropy.grad is None and temperature.log_alpha.grad.item() == pytest.approx(1.75)


@pytest.mark.parametrize("entropy", [-10.0, 10.0])
def test_a_fixed_alpha_stays(entropy):
    temperature = Temperature(0.2, False, target_entropy=-2.0)
    optimizer = Optimizer([(temperature.learned_parameters(), 0.1)])
    optimizer.minimize(temperature.loss(torch.tensor(entropy)))
    assert temperature().item() == pytest.approx(0.2) and temperature.learned_parameters() == []


def test_alpha_is_saved():
    temperature, other = Temperature(0.3, True, -1.0), Temperature(1.0, True, -1.0)
    other.load_state_dict(through_a_file(temperature.state_dict()))
    assert other().item() == temperature().item()


# Noise ----------------------------------------------------------------------------------------------------------


def test_noise_goes_on_from_its_state_and_leaves_the_global_generator_alone():
    noise, like = Noise(3, CPU), torch.zeros(4, 2, dtype=torch.float64)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = noise.normal(like)
    state = through_a_file(noise.state_dict())
    expected = noise.normal(like), noise.integers(-3, 4, (100,))
    assert torch.equal(before, torch.get_rng_state())
    other = Noise(99, CPU)
    other.load_state_dict(state)
    assert torch.equal(other.normal(like), expected[0]) and torch.equal(other.integers(-3, 4, (100,)), expected[1])
    assert torch.equal(Noise(3, CPU).normal(like), first) and not torch.equal(Noise(4, CPU).normal(like), first)
    assert first.dtype == torch.float64 and first.shape == (4, 2) and not torch.equal(first, expected[0])
    assert set(expected[1].tolist()) == set(range(-3, 4))


def test_noise_is_standard_normal():
    x = Noise(0, CPU).normal(torch.empty(40_000))
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1.0) < 0.02


def test_uniform_numbers_fill_the_box_and_go_on_from_their_state():
    noise, like = Noise(0, CPU), torch.empty(40_000, dtype=torch.float64)
    state = noise.state_dict()
    x = noise.uniform(like)
    assert x.dtype == torch.float64 and x.min() < -0.999 and x.max() > 0.999 and x.abs().max() <= 1.0
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1.0 / math.sqrt(3.0)) < 0.01
    noise.load_state_dict(state)
    assert torch.equal(noise.uniform(like), x)


# Running statistics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_statistics_are_those_of_all_counted_observations(shape):
    random = np.random.default_rng(4)
    normalization = RunningNormalization(shape, limit=2.0).double()
    seen = []
    for size in (1, 5, 40, 3):
        x = random.normal(3.0, 2.0, (size, *shape))
        weights = (random.random(size) < 0.6).astype(float)
        weights[0] = 1.0
        normalization.update(torch.from_numpy(x), torch.from_numpy(weights))
        seen.append(x[weights > 0])
        data = np.concatenate(seen)
        np.testing.assert_allclose(normalization.mean, data.mean(0), rtol=1e-10)
        np.testing.assert_allclose(normalization.variance, data.var(0), rtol=1e-10, atol=1e-12)
        assert normalization.count.item() == len(data)
    x = random.normal(3.0, 20.0, (6, 5, *shape))
    scaled = np.clip((x - data.mean(0)) / np.sqrt(data.var(0) + 1e-8), -2.0, 2.0)
    got = normalization(torch.from_numpy(x))
    np.testing.assert_allclose(got, scaled, rtol=1e-9)
    assert got.min() == -2.0 and got.max() == 2.0


def test_the_scale_alone_leaves_the_mean_where_it_is():
    normalization = RunningNormalization((2,), limit=3.0, shifts=False).double()
    x = np.random.default_rng(4).normal([5.0, -1.0], [2.0, 0.5], (400, 2))
    normalization.update(torch.from_numpy(x), torch.ones(400).double())
    std = np.sqrt(x.var(0) + 1e-8)
    expected = np.clip((x - x.mean(0)) / std, -3.0, 3.0) + x.mean(0) / std
    np.testing.assert_allclose(normalization(torch.from_numpy(x)), expected, rtol=1e-9)
    np.testing.assert_allclose(normalization.mirror()(x), expected, rtol=1e-9)
    normalization.set_statistics([5.0, -1.0], [2.0, 0.5])
    np.testing.assert_allclose(normalization.mirror()(np.array([[4.0, -0.5]])), [[4 / 2.001, -0.5 / 0.501]], rtol=1e-6)


def test_the_scale_alone_keeps_a_dimension_whose_mean_is_large():
    normalization = RunningNormalization((3,), shifts=False)
    normalization.set_statistics([1.2, -100.0, 7.0], [0.05, 1.0, 0.0])
    x = np.array([[1.15, -99.0, 7.0], [1.25, -101.0, 7.0]], np.float32)
    for scaled in (normalization(torch.from_numpy(x)), normalization.mirror()(x)):
        np.testing.assert_allclose(scaled[1] - scaled[0], [0.1 / 0.051, -2.0 / 1.001, 0.0], rtol=1e-4)
        np.testing.assert_allclose(scaled[:, 1], [1 / 1.001 - 10.0, -1 / 1.001 - 10.0], rtol=1e-4)  # the mean's limit
        np.testing.assert_allclose(scaled[:, 2], 0.0, atol=1e-6)  # it never changes


def test_before_it_has_learned_it_changes_nothing():
    x = torch.randn(4, 3)
    torch.testing.assert_close(RunningNormalization((3,))(x), x)


def test_where_nothing_counts_nothing_is_learned():
    normalization = RunningNormalization((2,))
    for data, weights in ((torch.ones(3, 2), torch.zeros(3)), (torch.full((4, 2), 5.0), torch.ones(4))):
        normalization.update(data, weights)
    assert normalization.mean.tolist() == [5.0, 5.0] and normalization.count.item() == 4
    normalization.update(torch.full((3, 2), 100.0), torch.zeros(3))
    assert normalization.mean.tolist() == [5.0, 5.0] and normalization.count.item() == 4


def test_applying_does_not_learn_and_statistics_are_saved():
    normalization = RunningNormalization((2,))
    normalization.update(torch.randn(10, 2), torch.ones(10))
    before = copy.deepcopy(normalization.state_dict())
    normalization(torch.randn(5, 2))
    assert all(torch.equal(before[name], value) for name, value in normalization.state_dict().items())
    other = RunningNormalization((2,))
    other.load_state_dict(through_a_file(before))
    x = torch.randn(5, 2)
    assert torch.equal(other(x), normalization(x)) and set(before) == {"mean", "variance", "count"}


def test_statistics_that_are_set_stay():
    """(o - mean) / (std + 1e-3), and 0 for what never changes in the data; `update` moves nothing any more."""
    normalization = RunningNormalization((3,), limit=1e9).double()
    normalization.update(torch.randn(10, 3).double(), torch.ones(10).double())
    mean, std = np.array([1.0, -4.0, 0.5]), np.array([2.0, 0.0, 1e-4])
    normalization.set_statistics(mean, std)
    x = np.random.default_rng(0).normal(size=(5, 3))
    for _ in range(2):
        expected = (x - mean) / (std + 1e-3) * [1.0, 0.0, 1.0]
        np.testing.assert_allclose(normalization(torch.from_numpy(x)), expected, rtol=1e-6, atol=1e-9)
        normalization.update(torch.full((7, 3), 100.0).double(), torch.ones(7).double())
    other = RunningNormalization((3,), limit=1e9).double()
    other.load_state_dict(through_a_file(normalization.state_dict()))
    other.update(torch.ones(4, 3).double(), torch.ones(4).double())
    assert torch.equal(other(torch.from_numpy(x)), normalization(torch.from_numpy(x)))


def test_a_schedule_follows_the_algorithms_updates_if_they_are_told():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = Optimizer([([parameter], LinearDecay(1.0, 0.0, 10))])
    optimizer.minimize(parameter.sum(), 5)
    assert optimizer.groups[0].latest_rate == 0.5


def test_noise_does_not_repeat_the_numbers_that_initial_weights_came_from():
    noise = Noise(3, torch.device("cpu")).normal(torch.zeros(5))
    torch.manual_seed(3)
    assert not torch.equal(noise, torch.randn(5))


@pytest.mark.parametrize("shifts", [True, False])
def test_columns_that_are_constant_in_data_become_zero(shifts):
    """However far a later observation is from the constant; a column of small numbers is none."""
    data = torch.tensor([[24.0, 1e-5, 0.0, 3.0], [24.0, -1e-5, 0.0, 5.0]], dtype=torch.float64)
    normalization = RunningNormalization((4,), shifts=shifts)
    normalization.set_statistics(data.mean(0), data.std(0, correction=0), margin=0.0)
    seen = normalization(torch.tensor([[30.0, 1e-5, 1.0, 5.0]]))[0]
    assert seen[[0, 2]].abs().max() < 1e-6
    assert seen[1] == pytest.approx(1.0, rel=0.01) and seen[3] == pytest.approx(1.0 if shifts else 5.0)
    np.testing.assert_allclose(normalization.mirror()(np.float32([[30.0, 1e-5, 1.0, 5.0]]))[0], seen, atol=1e-6)


def test_weight_decay_spares_what_says_so():
    """AdamW of the others, Adam of these, with one learning rate; a copy of the optimizer knows them, too.

    Also where the loss does not reach a parameter.
    """
    torch.manual_seed(0)
    ours, theirs = ([nn.Parameter(torch.ones(3) * n) for n in (1, 2, 3)] for _ in range(2))
    ours[1].no_decay = True
    unreached = nn.Parameter(torch.ones(3))
    unreached.no_decay = True
    optimizer = copy.deepcopy(Optimizer([([unreached, *ours], 0.1)], weight_decay=0.5))
    groups = [{"params": [theirs[0], theirs[2]], "weight_decay": 0.5}, {"params": [theirs[1]], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.1)
    for _ in range(4):
        for parameters, step in ((optimizer.parameters[1:], optimizer.minimize), (theirs, None)):
            loss = sum((parameter**3).sum() for parameter in parameters)
            if step is not None:
                step(loss)
            else:
                reference.zero_grad()
                loss.backward()
                reference.step()
    for one, other in zip(optimizer.parameters[1:], theirs, strict=True):
        torch.testing.assert_close(one, other)
    plain = nn.Parameter(torch.ones(1))  # a number of NumPy, too, is no decay
    Optimizer([([plain], 0.1)], weight_decay=np.float64(0.0)).minimize(plain.sum())
    assert plain.item() == pytest.approx(0.9)
    memory = Recurrent(InputShape((2,), 1), cell="lru", hidden_dim=4, num_layers=2)
    assert sum(getattr(parameter, "no_decay", False) for parameter in memory.parameters()) == 2 * 3
