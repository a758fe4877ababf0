"""Learned models of an environment: losses, training, files, and the commands `train-model` and `check --model`."""

import math
import re
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from matplotlib.image import imread

import offpcc
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.cli.toy_model import ToyModel, draw_predictions, noise_of
from offpcc.data import Dataset
from offpcc.data.offline import read
from offpcc.envs.termination import find_rule
from offpcc.launch import main
from offpcc.networks.gaussian_ensemble import MANY_ROWS
from offpcc.training.analysis.run_statistics import rank_correlation
from offpcc.training.models import quality as model_quality_module
from offpcc.training.models.files import announce, load_model, model_for_data, model_of, read_model, save_model
from offpcc.training.models.quality import format_quality, model_quality
from offpcc.training.models.training import ModelFit, ModelTraining, Transitions, describe_terminations
from offpcc.utils import signals
from offpcc.utils.errors import DataWarning, UserError
from offpcc.utils.tensor_files import write_tensors

CPU = torch.device("cpu")


def linear_data(num_episodes=20, length=50, noise=0.1, seed=0, terminates_at=None, constant=False):
    """Episodes of x' = 0.9 x + 0.3 u + noise, with reward -x'^2."""
    draw, episodes = np.random.default_rng(seed), []
    for _ in range(num_episodes):
        x = [draw.normal(size=2)]
        actions, rewards, terminated = [], [], False
        for _ in range(length):
            u = draw.uniform(-1, 1, 2)
            x.append(0.9 * x[-1] + 0.3 * u + noise * draw.normal(size=2))
            actions.append(u)
            rewards.append(-(x[-1][0] ** 2))
            if terminates_at is not None and x[-1][0] > terminates_at:
                terminated = True
                break
        observations = np.asarray(x, np.float32)
        if constant:
            observations = np.concatenate([observations, np.full((len(observations), 1), 0.1, np.float32)], 1)
        episodes.append({
            "observations": observations,
            "actions": np.asarray(actions, np.float32),
            "rewards": np.asarray(rewards, np.float32),
            "terminated": terminated,
        })  # fmt: skip
    return read(Dataset.from_episodes(episodes, action_range=(-1.0, 1.0)))


def small(data, training=None, names=(), seed=0, **settings):
    settings = {"hidden_dims": (32, 32), "num_members": 3, "num_elites": 2, **settings}
    model = model_for_data(data, list(names), CPU, 0, settings)
    return ModelFit(model, data.rows, ModelTraining(**{"max_epochs": 3, **(training or {})}), seed)


def trained(fit):
    while not fit.is_over:
        fit.run_epoch()
    fit.finish()
    return fit.model


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_a_step_of_one_network_a_row_is_that_of_all(activation):
    model = DynamicsModel(3, 2, hidden_dims=(16, 16), activation=activation, seed=1)
    model.elites.copy_(torch.tensor([6, 2, 0, 5, 3]))
    draw = torch.Generator().manual_seed(0)
    for rows in (MANY_ROWS * 5, 7):
        given = torch.randn(rows, 1, 3, generator=draw), torch.rand(rows, 1, 2, generator=draw)
        places = torch.randint(4, (rows,), generator=draw)  # a network may have no row
        both = [
            model.imagine(*given, torch.Generator().manual_seed(1), places, with_uncertainty=needed)
            for needed in (True, False)
        ]
        assert both[1].uncertainty is None and both[0].uncertainty is not None
        for one, other in zip(both[0][:3], both[1][:3], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    drawn = [
        model.imagine(*given, torch.Generator().manual_seed(1), with_uncertainty=needed) for needed in (True, False)
    ]
    torch.testing.assert_close(drawn[0].next_observations, drawn[1].next_observations, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reward_hidden_dims", [None, (4,)])
def test_the_loss_is_the_likelihood_and_the_weighted_cross_entropy(reward_hidden_dims):
    """A mean over rows and numbers for each member, summed over members and over the networks' heads."""
    options = {"num_members": 3, "num_elites": 2, "termination": "learned", "reward_hidden_dims": reward_hidden_dims}
    model = DynamicsModel(2, 1, hidden_dims=(8,), **options)
    x, target = torch.randn(3, 20, 3), torch.randn(3, 20, 3)
    ended = (torch.rand(3, 20, 1) < 0.3).float()
    mean, log_variance, logit = (part.detach().double().numpy() for part in model.predict(x))
    error, ended_here = (mean - target.double().numpy()) ** 2, ended.double().numpy()
    terms = error * np.exp(-log_variance) + log_variance
    parts = [terms] if reward_hidden_dims is None else [terms[..., :2], terms[..., 2:]]
    probability = 1.0 / (1.0 + np.exp(-logit))
    entropy = -(5.0 * ended_here * np.log(probability) + (1.0 - ended_here) * np.log(1.0 - probability))
    bounds = 3 * 3 * 0.01 * (0.5 + 10.0)  # of three members and three numbers
    expected = sum(part.mean((1, 2)).sum() for part in (*parts, entropy)) + bounds
    loss, squares = model.loss(x, target, ended, weight=5.0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(squares, error, rtol=1e-5, atol=1e-6)


def test_a_step_follows_one_elite_a_row_or_the_mean_of_all():
    """From the newest observation, in the units of the data, and within their range, which `spread` widens."""
    draw = np.random.default_rng(0)
    model = DynamicsModel(2, 1, hidden_dims=(8,), num_members=4, num_elites=3, history=2, termination="learned")
    model.elites.copy_(torch.tensor([3, 0, 2]))
    statistics = {"input_mean": draw.normal(size=6), "input_std": draw.uniform(0.5, 2.0, 6)}
    statistics |= {"target_mean": draw.normal(size=3), "target_std": draw.uniform(0.5, 2.0, 3)}
    model.set_statistics(**statistics, low=np.full(2, -1.0), high=np.full(2, 1.0), spread=[0.5, 0.25])
    with torch.no_grad():
        model.dynamics.low.fill_(-60.0)
        model.dynamics.high.fill_(-50.0)  # so that no noise is seen
    given = torch.randn(300, 2, 2), torch.rand(300, 2, 1)
    x = (np.concatenate([part.flatten(1) for part in given], 1) - statistics["input_mean"]) / statistics["input_std"]
    predicted = model.predict(torch.tensor(x, dtype=torch.float32).expand(3, 300, 6), model.elites)
    means, _, logits = (part.detach().double().numpy() for part in predicted)
    values = statistics["target_mean"] + statistics["target_std"] * means  # (3, 300, 3)
    free = given[0][:, -1].double().numpy() + values[..., :2]
    bounded = np.clip(free, [-1.5, -1.25], [1.5, 1.25])
    assert 0.1 < (bounded != free).any(-1).mean() < 0.9
    model.facts["termination_weight"] = weight = float(np.exp(np.quantile(logits.mean(0), 0.3)))
    step = model.imagine(*given, None)
    expected = np.clip(free.mean(0), [-1.5, -1.25], [1.5, 1.25])
    np.testing.assert_allclose(step.next_observations, expected, rtol=1e-4, atol=1e-5)
    for rewards in (step.rewards, step.mean_rewards):
        np.testing.assert_allclose(rewards, values[..., 2].mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(step.terminations, np.exp(logits.mean(0)[:, 0]) / weight > 1.0)
    step = model.imagine(*given, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(step.mean_rewards, values[..., 2].mean(0), rtol=1e-4, atol=1e-5)
    distance = np.abs(step.next_observations.numpy() - bounded).sum(-1) + np.abs(step.rewards.numpy() - values[..., 2])
    assert distance.min(0).max() < 1e-4
    assert np.bincount(distance.argmin(0), minlength=3).min() > 70  # of 300 rows, each elite has a third


def test_uncertainties_are_in_their_units():
    """Next observations are predicted as changes; a state's deviation may be many times that of its changes."""
    draw, history = np.random.default_rng(0), 2
    model = DynamicsModel(3, 2, hidden_dims=(16,), num_members=4, num_elites=3, history=history, seed=1)
    of_observations, of_actions, of_targets = (draw.uniform(0.1, 9.0, size) for size in (3, 2, 4))
    input_std = np.concatenate([np.tile(of_observations, 2), np.tile(of_actions, 2)])
    means = {"input_mean": draw.normal(size=10), "target_mean": draw.normal(size=4)}
    bounds = {"low": np.full(3, -9.0), "high": np.full(3, 9.0), "spread": np.ones(3)}
    model.set_statistics(input_std=input_std, target_std=of_targets, **means, **bounds)
    given = torch.randn(5, history, 3), torch.rand(5, history, 2)
    found = model.imagine(*given, None).uncertainty
    predicted = model.predict(model.inputs(*given).expand(3, 5, 10), model.elites)
    means, variances = (part.detach().double().numpy() for part in predicted[:2])
    variances = np.exp(variances)
    following = means[..., :3] * of_targets[:3]  # in the data's units, without what all have in common
    pairs = [
        np.linalg.norm((following[i] - following[j]) / of_observations, axis=-1) for i in range(3) for j in range(i)
    ]
    expected = {
        "aleatoric": (variances[..., :3] * (of_targets[:3] / of_observations) ** 2).max((0, 2)),
        "epistemic": np.max(pairs, 0),
        "deviation": np.sqrt((variances * of_targets**2).sum(-1)).max(0),
        "disagreement": np.sqrt(means[..., :3].var(0).mean(-1)),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(found, name), values, rtol=1e-5, err_msg=name)


def test_a_history_starts_with_its_episode():
    data = linear_data(num_episodes=2, length=4)
    transitions = Transitions(data.rows, history=3)
    observations, actions, following, *_ = transitions[np.arange(8)]
    rows = data.rows
    np.testing.assert_array_equal(observations[4], rows.observations[[5, 5, 5]])  # the second episode's first step
    np.testing.assert_array_equal(actions[4, :2], np.zeros((2, 2)))
    np.testing.assert_array_equal(observations[5], rows.observations[[5, 5, 6]])
    np.testing.assert_array_equal(actions[5], [[0, 0], rows.actions[5], rows.actions[6]])
    np.testing.assert_array_equal(observations[7], rows.observations[[6, 7, 8]])
    np.testing.assert_array_equal(following[7], rows.observations[9])


def test_statistics_are_those_of_the_data():
    data = linear_data(constant=True)
    data.rows.observations[data.rows.stops[0] - 1, :2] = 9.0, -9.0  # no transition starts at the extremes
    fit = small(data, margin=2.0)
    rows, at = data.rows, np.flatnonzero(data.rows.is_start)
    x = np.concatenate([rows.observations[at], rows.actions[at]], 1).astype(np.float64)
    y = np.concatenate([rows.observations[at + 1] - rows.observations[at], rows.rewards[at]], 1).astype(np.float64)
    np.testing.assert_allclose(fit.model.input_mean, x.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fit.model.input_std[:2], x.std(0)[:2], rtol=1e-5)
    np.testing.assert_allclose(fit.model.target_std, y.std(0), rtol=1e-4, atol=1e-7)
    of_two = np.concatenate([np.tile(x.mean(0)[part], 2) for part in (slice(3), slice(3, None))])
    np.testing.assert_allclose(small(data, history=2).model.input_mean, of_two, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal([fit.model.low[1], fit.model.high[0]], [-9.0, 9.0])
    np.testing.assert_allclose(fit.model.spread, 2.0 * x.std(0)[:3], rtol=1e-5, atol=1e-6)
    assert fit.model.input_std[2] == 1.0
    assert fit.model.target_std[2] == 0.0


def test_a_column_that_never_changes_stays_as_it_is():
    fit = small(linear_data(constant=True))
    model = trained(fit)
    step = model.step(np.array([[0.5, 0.5, 0.1]]), np.zeros((1, 2)), 0)
    assert step.next_observations[0, 2] == np.float32(0.1)


def test_a_linear_system_and_its_noise_are_learned():
    data = linear_data(num_episodes=60)
    model = trained(small(data, {"max_epochs": 40, "lr": 3e-3, "patience": 40}))
    x, u = np.array([[1.0, -0.5], [0.0, 0.8]], np.float32), np.array([[0.5, 0.5], [-1.0, 0.0]], np.float32)
    step = model.step(x, u)
    np.testing.assert_allclose(step.next_observations, 0.9 * x + 0.3 * u, atol=0.06)
    many = model.step(np.repeat(x[:1], 4000, 0), np.repeat(u[:1], 4000, 0), 1)
    np.testing.assert_allclose(many.next_observations.std(0), 0.1, rtol=0.25)
    quality = model_quality(model, data.rows)
    assert quality.error[:2] == pytest.approx([0.1, 0.1], rel=0.15)
    assert quality.within[0] == pytest.approx(0.68, abs=0.08)
    assert quality.within[1] == pytest.approx(0.95, abs=0.05)


def test_the_holdout_is_apart_and_terminations_weigh_as_much_as_all_other_steps():
    data = linear_data(terminates_at=0.8)
    fit = small(data, {"holdout": 0.3}, termination="learned")
    num, num_ended = len(fit.data), float(data.rows.terminations.sum())
    assert len(fit.held_out) == math.floor(0.3 * num) and num_ended > 1
    np.testing.assert_array_equal(np.sort(np.append(fit.held_out, fit.trained)), np.arange(num))
    assert fit.termination_weight * num_ended == pytest.approx(num - num_ended)
    assert len(small(data, {"most_held_out": 7}, termination="never").held_out) == 7


def test_the_order_of_the_data_is_a_permutation_or_one_bootstrap_sample_or_the_same_for_all():
    found = {}
    for order in ("permutation", "bootstrap", "same"):
        fit = small(linear_data(), {"order": order})
        epochs = found[order] = [np.array(fit.orders()) for _ in range(2)]
        assert all(one.shape == (3, len(fit.trained)) for one in epochs)
        assert all(set(one.ravel()) <= {*fit.trained} for one in epochs)
        assert not np.array_equal(*epochs)  # each epoch shuffles
        is_alike = order == "same"
        assert all(np.array_equal(one[0], one[1]) is is_alike for one in epochs)
        if order != "bootstrap":
            np.testing.assert_array_equal(np.sort(epochs[0]), np.tile(np.sort(fit.trained), (3, 1)))
    first, second = map(np.sort, found["bootstrap"])
    np.testing.assert_array_equal(first, second)  # a member never sees the rest of the data
    assert len(np.unique(first, axis=0)) == 3
    for member in first:
        assert len(set(member)) / len(member) == pytest.approx(1.0 - math.exp(-1.0), abs=0.05)
    few = small(linear_data(), {"order": "bootstrap", "updates_per_epoch": 2, "batch_size": 10})
    assert few.orders().shape == (3, 20)


def test_the_least_errors_on_the_holdout_are_kept():
    fit = small(linear_data(), {"max_epochs": 6, "lr": 0.03})
    seen = [fit.errors()]
    while not fit.is_over:
        fit.run_epoch()
        seen.append(fit.errors())
    fit.finish()
    np.testing.assert_allclose(fit.errors(), fit.best, rtol=1e-5)
    assert (fit.best <= np.min(seen, 0) / 0.99 + 1e-12).all()
    assert set(fit.model.elites.tolist()) == set(np.argsort(fit.best[0])[:2].tolist())


def test_rewards_of_their_own_networks_keep_their_own_best_weights(monkeypatch):
    fit = small(linear_data(), reward_hidden_dims=(8,))
    assert fit.errors().shape == (2, 3)
    errors = iter(np.array([[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [[2.0, 0.5, 1.0], [0.5, 2.0, 1.0]]]))
    monkeypatch.setattr(fit, "errors", lambda: next(errors))
    fit.run_epoch()
    first = {name: value.clone() for name, value in fit.kept.items()}
    fit.run_epoch()
    for name, parameter in fit.model.named_parameters():
        is_new = [True, False, False] if name.startswith("reward.") else [False, True, False]
        for member in range(3):
            source = parameter.detach() if is_new[member] else first[name]
            assert torch.equal(fit.kept[name][member], source[member]), name
    np.testing.assert_array_equal(fit.best, [[1.0, 0.5, 1.0], [0.5, 1.0, 1.0]])


def test_a_model_that_is_trained_again_is_compared_with_its_own_epochs():
    """A part of the new holdout was learned before, so the old error on it would be too good to be passed."""
    first = small(linear_data(), {"max_epochs": 30})
    trained(first)
    again = ModelFit(first.model, linear_data().rows, ModelTraining(max_epochs=1), 1)
    assert again.run_epoch().patience == 0
    assert np.isfinite(again.best).all()


def test_training_stops_when_no_member_improves():
    fit = small(linear_data(), {"max_epochs": None, "patience": 2, "improvement": 0.9})
    while not fit.is_over:
        fit.run_epoch()
    assert [one.patience for one in fit.progress[-2:]] == [1, 2]


def test_a_member_improves_by_more_than_a_part_of_its_least_error(monkeypatch):
    fit = small(linear_data(), {"improvement": 0.1, "max_epochs": 5})
    errors = iter(np.array([[[1.0, 1.0, 1.0]], [[0.95, 0.89, 1.2]], [[0.91, 0.85, 0.99]], [[0.89, 0.9, 2.0]]]))
    monkeypatch.setattr(fit, "errors", lambda: next(errors))
    best, waited = [], []
    for _ in range(4):
        fit.run_epoch()
        best.append(fit.best[0].tolist())
        waited.append(fit.waited)
    assert best == [[1.0, 1.0, 1.0], [1.0, 0.89, 1.0], [1.0, 0.89, 1.0], [0.89, 0.89, 1.0]]
    assert waited == [0, 0, 1, 0]


@pytest.mark.parametrize("order", ["permutation", "bootstrap"])
def test_a_training_resumes_exactly(order, tmp_path):
    data, file = linear_data(), tmp_path / "model.pt"
    whole = small(data, {"order": order})
    trained(whole)
    first = small(data, {"order": order})
    first.run_epoch()
    save_model(first.model, file, first)
    with pytest.raises(UserError, match="is not finished"):
        load_model(file)
    content = read_model(file)
    second = ModelFit(model_of(content, file, CPU), data.rows, whole.settings, content["training"]["seed"])
    second.load_state_dict(content["training"])
    trained(second)
    save_model(whole.model, tmp_path / "whole.pt")
    save_model(second.model, tmp_path / "second.pt")
    assert (tmp_path / "whole.pt").read_bytes() == (tmp_path / "second.pt").read_bytes()


@pytest.mark.parametrize("settings", [{}, {"termination": "learned", "reward_hidden_dims": (8,)}])
def test_compiled_updates_are_those_that_are_not_compiled(settings, recorded, tmp_path):
    data = linear_data(terminates_at=0.5)
    plain, compiled = (small(data, {"batch_size": 100, "compile": one}, **settings) for one in (False, True))
    for fit in (plain, compiled):
        fit.run_epoch()
    assert compiled.program is not None and compiled.optimizer.num_updates == plain.optimizer.num_updates
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(compiled.model.state_dict()[name], weight, rtol=1e-3, atol=1e-5, msg=name)
    save_model(compiled.model, tmp_path / "begun.pt", compiled)
    content = read_model(tmp_path / "begun.pt")
    resumed = ModelFit(model_of(content, "begun.pt", CPU), data.rows, compiled.settings, 0)
    resumed.load_state_dict(content["training"])
    for fit in (compiled, resumed):
        trained(fit)
    for name, weight in compiled.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], weight, rtol=0, atol=0, msg=name)
    assert "compile" not in compiled.model.facts["settings"]  # a model is found without it


def test_compilation_is_refused(monkeypatch):
    with pytest.raises(UserError, match=r"ModelTraining\.compile is True, but mbpo trains its model again and again"):
        offpcc.configure(None, "ModelTraining.compile = True")
        offpcc.build("pendulum-v0", "mbpo")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"ModelTraining\.compile is True, but there is no C\+\+ compiler"):
        small(linear_data(), {"compile": True})


def test_a_training_that_an_older_version_began_is_refused():
    fit = small(linear_data())
    state = fit.state_dict() | {"optimizer": {"state": {}, "param_groups": []}}
    with pytest.raises(UserError, match="an older offpcc began the training of this model"):
        fit.load_state_dict(state)


def test_a_file_gives_the_same_predictions(tmp_path):
    model = trained(small(linear_data(), termination="never"))
    save_model(model, tmp_path / "model.pt")
    loaded = offpcc.load_model(tmp_path / "model.pt")
    x, u = np.ones((3, 2)), np.zeros((3, 2))
    for one, other in zip(model.step(x, u, 4)[:3], loaded.step(x, u, 4)[:3], strict=True):
        np.testing.assert_array_equal(one, other)
    for wrong in ("x", -1, np.random.default_rng(0)):
        with pytest.raises(UserError, match=r"generator is .*; give a torch.Generator, or a seed from 0 on"):
            model.step(x, u, wrong)
    assert loaded.facts == model.facts


@pytest.mark.parametrize(
    "change",
    [
        {"class": {}},
        {"class": {"class": "Residual", "arguments": {}}},
        {"class": {"class": "DynamicsModel", "arguments": {"wheels": 4}}},
        {"weights": {}},
        {"weights": 3},
        {"action_range": [1.0]},
    ],
)
def test_a_file_that_describes_no_model_is_refused(change, tmp_path):
    save_model(DynamicsModel(2, 2, hidden_dims=(4,), termination="never"), tmp_path / "model.pt")
    write_tensors(tmp_path / "other.pt", {**read_model(tmp_path / "model.pt"), **change})
    with pytest.raises(UserError, match=r"other\.pt does not have the content of a model"):
        offpcc.load_model(tmp_path / "other.pt")


def test_actions_are_in_the_units_of_the_recording():
    model = trained(small(linear_data()))
    x, u = np.ones((1, 2), np.float32), np.array([[0.5, -0.5]], np.float32)
    plain = model.step(x, u).next_observations
    model.action_range = (np.array([-2.0, -2.0]), np.array([2.0, 2.0]))
    np.testing.assert_allclose(model.step(x, 2 * u).next_observations, plain, rtol=1e-6)
    model.action_range = (np.array([-1.0, 3.0]), np.array([1.0, 3.0]))  # the second component never changes
    u[0, 1] = 0.0
    plain = model.step(x, u, 0).next_observations
    assert np.isfinite(plain).all()
    u[0, 1] = 3.0
    assert np.array_equal(model.step(x, u, 0).next_observations, plain)


def test_imagined_observations_stay_within_the_range_of_the_data():
    data = linear_data()
    model = trained(small(data, margin=0.0))
    step = model.step(np.full((1, 2), 100.0), np.ones((1, 2)))
    assert step.bounded[0]
    np.testing.assert_allclose(step.next_observations[0], data.rows.observations.max(0), rtol=1e-6)
    assert not model.step(np.zeros((1, 2)), np.zeros((1, 2))).bounded[0]


def test_a_known_rule_ends_episodes_beyond_the_range_of_the_data():
    """The recorded hoppers never fell, so their range, widened, has no observation at which the rule ends."""
    draw = np.random.default_rng(0)
    observations = np.tile(np.float32([1.25, *[0.0] * 10]), (41, 1))
    observations[:, 0] += draw.uniform(-0.2, 0.2, 41)
    episode = observations, draw.uniform(-1, 1, (40, 3)), np.ones(40), False
    data = read(Dataset.from_episodes([episode] * 4, action_range=(-1.0, 1.0)))
    model = small(data, names=["hopper-expert-v2"]).model
    assert model.termination == "known" and model.low[0] - model.spread[0] > 0.7
    given = torch.tensor(observations[:2, None]), torch.zeros(2, 1, 3)
    for falls in (False, True):
        model.target_mean[0] = -1.0 if falls else 0.0
        model.target_std.zero_()
        step = model.imagine(*given, None)
        assert step.terminations.tolist() == step.bounded.tolist() == [falls] * 2


def test_terminations_are_learned_where_no_rule_is_known():
    data = linear_data(num_episodes=200, noise=0.1, terminates_at=0.8)
    fit = small(data, {"max_epochs": 30, "lr": 1e-2, "patience": 30}, termination="auto")
    model = trained(fit)
    assert model.termination == "learned"
    x, _, ended = fit.tensors(fit.held_out)
    found = model.predict(x.expand(2, *x.shape), model.elites).logit.detach() - math.log(fit.termination_weight)
    hits = (torch.sigmoid(found).mean(0) * ended).sum()
    assert model.facts["termination_recall"] == pytest.approx(float(hits / ended.sum()), rel=1e-4)
    assert model.facts["termination_precision"] == pytest.approx(
        float(hits / torch.sigmoid(found).mean(0).sum()), rel=1e-4
    )
    step = model.step(np.array([[1.4, 0.0], [-1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert step.terminations.tolist() == [True, False]
    assert model.facts["termination_recall"] > 0.7


def test_as_many_imagined_steps_terminate_as_recorded_ones():
    data = linear_data(num_episodes=200, noise=0.3, terminates_at=1.2)
    model = trained(small(data, {"max_epochs": 30, "lr": 3e-3, "patience": 30}, termination="learned"))
    at = np.flatnonzero(data.rows.is_start)
    step = model.step(data.rows.observations[at], data.rows.actions[at], 0)
    share = step.terminations.mean() / data.rows.terminations[at].mean()
    assert 0.7 < share < 1.4  # 5.8, if the weight of terminations in the loss is not undone


def test_a_task_whose_episodes_have_one_step_is_learned():
    data = linear_data(num_episodes=200, length=1, terminates_at=-math.inf)
    model = trained(small(data, {"max_epochs": 30, "lr": 1e-2, "patience": 30}, termination="auto"))
    assert model.termination == "learned"
    step = model.step(np.zeros((50, 2), np.float32), np.zeros((50, 2), np.float32), generator=0)
    assert step.terminations.mean() > 0.9


def test_the_termination_rule_of_a_known_task_is_taken():
    data = linear_data(terminates_at=2.0)
    model = small(data, names=["halfcheetah-medium-v2"]).model
    assert (model.termination, model.rule.text) == ("known", "it never ends")
    assert small(linear_data()).model.termination == "never"
    with pytest.raises(UserError, match="no termination rule is known for these data"):
        small(data, termination="known")


@pytest.mark.parametrize("name", ["Hopper-v5", "Walker2d-v5", "InvertedPendulum-v5"])
def test_a_rule_is_that_of_gymnasium(name):
    env = gymnasium.make(name)
    rule = find_rule(name, env.observation_space.shape)
    env.action_space.seed(0)
    seen = []
    for episode in range(20):
        env.reset(seed=episode)
        done = False
        while not done:
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            assert rule.terminates(observation[None])[0] == terminated
            seen.append(terminated)
            done = terminated or truncated
    assert any(seen)
    assert not all(seen)


def test_errors_of_several_steps_are_told_for_each_number():
    """The model predicts no change, but the second number grows by 1 in each step."""
    model = DynamicsModel(2, 1, hidden_dims=(4,), num_members=2, num_elites=2, termination="never")
    model.target_std.zero_()
    observations = np.zeros((61, 2), np.float32)
    observations[:, 1] = np.arange(61)
    episode = observations, np.zeros((60, 1)), np.zeros(60), False
    rows = read(Dataset.from_episodes([episode], action_range=(-1.0, 1.0))).rows
    found = model_quality_module.horizons(model, rows, np.array([1.0, 2.0]))
    assert {*found} == {*model_quality_module.HORIZONS}
    for steps, errors in found.items():
        np.testing.assert_allclose(errors, [0.0, steps / 2.0])


def test_data_outside_of_the_models_are_counted():
    data = linear_data()
    model = trained(small(data))
    assert model_quality(model, data.rows).outside.tolist() == [0.0, 0.0]
    still = linear_data(constant=True)
    assert model_quality(trained(small(still)), still.rows).outside.tolist() == [0.0, 0.0, 0.0]
    other = linear_data(noise=1.0, seed=1)
    quality = model_quality(model, other.rows)
    low, high = data.rows.observations.min(0), data.rows.observations.max(0)
    seen = other.rows.observations[other.rows.is_start]
    np.testing.assert_allclose(quality.outside, ((seen < low) | (seen > high)).mean(0), atol=0.01)
    assert quality.unsure > 0.01
    assert quality.any_outside == pytest.approx(((seen < low) | (seen > high)).any(1).mean(), abs=0.01)
    spread = data.rows.observations[data.rows.is_start].std(0)
    far = np.maximum(low - seen.min(0), seen.max(0) - high) / spread
    np.testing.assert_allclose(quality.beyond, far, rtol=0.01)
    told = format_quality(quality)[-2:]
    assert [f"by up to {one:.2g} standard deviations" in line for one, line in zip(
        quality.beyond[np.argsort(-quality.outside)], told, strict=True)] == [True, True]  # fmt: skip


def test_a_block_of_data_is_predicted_once(monkeypatch):
    data = linear_data()
    model, calls, predict = trained(small(data)), [], DynamicsModel.predict
    monkeypatch.setattr(model_quality_module, "horizons", lambda *_: {})
    monkeypatch.setattr(model, "predict", lambda *given: (calls.append(1), predict(model, *given))[1])
    model_quality(model, data.rows)
    assert len(calls) == math.ceil(1000 / model_quality_module.ROWS_AT_ONCE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_elites": 9}, "num_elites is 9, but num_members is 3; lower num_elites"),
        ({"activation": "tanh"}, "it has to be one of relu, silu, leaky_relu"),
        ({"history": 0}, "it has to be a whole number, 1 or more"),
        ({"termination": "learned"}, 'no recorded step terminates; choose "never"'),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        small(linear_data(), **settings)


def test_shapes_that_do_not_fit_are_refused():
    model = small(linear_data()).model
    with pytest.raises(UserError, match=r"observations of shape \(2,\) do not fit the model; give the shape \(B, 2\)"):
        model.step(np.zeros(2), np.zeros((1, 2)))
    with pytest.raises(UserError, match="actions have NaN or infinity in row 1"):
        model.step(np.zeros((2, 2)), np.array([[0.0, 0.0], [np.nan, 0.0]]))
    with pytest.raises(UserError, match="give data of the same environment"):
        model_quality(model, linear_data(constant=True).rows)


def real(episodes=6, reward_scale=1.0, reward_shift=0.0, still_action=False):
    """Recordings like those of a robot: a column that never changes, others of very different sizes."""
    draw, made = np.random.default_rng(0), []
    for _ in range(episodes):
        actions = draw.uniform(-1, 1, (360 // episodes, 2)).astype(np.float32)
        if still_action:
            actions[:, 1] = 0.25
        x = np.cumsum(np.concatenate([draw.normal(size=(1, 2)), 0.1 * actions]), 0)
        observations = np.stack([1e4 * x[:, 0], 1e-4 * x[:, 1], np.full(len(x), 293.15)], 1)
        rewards = reward_scale * (-np.abs(x[1:, 0]) + reward_shift)
        made.append({"observations": observations.astype(np.float32), "actions": actions,
                     "rewards": rewards.astype(np.float32), "terminated": False})  # fmt: skip
    return read(Dataset.from_episodes(made, action_range=(-1.0, 1.0)))


@pytest.mark.parametrize(
    "given",
    [{}, {"episodes": 1}, {"still_action": True}, {"reward_scale": 1e4}, {"reward_scale": 1e-4}, {"reward_shift": 1e4}],
    ids=str,
)
def test_recordings_of_a_robot_train_a_sensible_model(given):
    data = real(**given)
    fit = small(data, {"max_epochs": 12, "lr": 3e-3, "batch_size": 32, "patience": 12})
    start = fit.errors()
    model = trained(fit)
    assert (fit.best < 0.5 * start).all()
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    rows = data.rows
    at = np.flatnonzero(rows.is_start)
    now, following = rows.observations[at], rows.observations[at + 1]
    for seed in (None, 0):
        step = model.step(now, rows.actions[at], seed)
        for part in (*step[:2], *step.uncertainty):
            assert np.isfinite(part).all()
        np.testing.assert_array_equal(step.next_observations[:, 2], following[:, 2])
        low, high = rows.observations.min(0), rows.observations.max(0)
        assert (step.next_observations >= low - 1.01 * now.std(0) - 1e-3).all()
        assert (step.next_observations <= high + 1.01 * now.std(0) + 1e-3).all()
    mean = model.step(now, rows.actions[at])
    moving = slice(1) if given.get("still_action") else slice(2)  # a still action gives a constant change
    error = np.square(mean.next_observations - following)[:, moving].mean(0)
    assert (error < 0.5 * (following - now)[:, moving].var(0)).all()
    rewards = rows.rewards[at][:, 0]
    assert np.square(mean.rewards - rewards).mean() < 0.5 * rewards.var()
    quality = model_quality(model, rows)
    assert np.isfinite(quality.error).all()
    assert all(np.isfinite(one) for found in quality.ranges.values() for pair in found for one in pair)


def test_an_action_that_never_varies_does_not_matter():
    model = trained(small(real(still_action=True)))
    assert model.input_std[4] == 1.0
    other = model.step(np.zeros((1, 3)), np.array([[0.3, 0.25]]))
    assert np.isfinite(other.next_observations).all()


@pytest.mark.parametrize("names", [(), ("my-robot-v0",), ("PyBulletHopper-v0",)])
def test_a_rule_is_never_guessed(names, capsys):
    data = linear_data(num_episodes=30, terminates_at=1.0)
    fit = small(data, names=names)
    assert (fit.model.rule, fit.model.termination) == (None, "learned")
    announce(fit.model, fit, data, print)
    assert "imagined episodes end: a classifier that is learned from the data" in capsys.readouterr().out
    still = linear_data()
    fit = small(still, names=names)
    assert (fit.model.rule, fit.model.termination) == (None, "never")
    announce(fit.model, fit, still, print)
    assert "imagined episodes end: never" in capsys.readouterr().out
    with pytest.raises(UserError, match=r'no termination rule is known.*choose "learned" or "never"'):
        small(data, names=names, termination="known")


@pytest.mark.parametrize("columns", [(0, 1), (0,)])
def test_hidden_velocities_get_a_note(columns, capsys):
    """A model of single steps cannot predict where a particle goes whose velocity is not recorded."""
    draw, episodes = np.random.default_rng(0), []
    for _ in range(20):
        state, actions = [draw.normal(size=2)], draw.uniform(-1.0, 1.0, (40, 1)).astype(np.float32)
        for (force,) in actions:
            velocity = state[-1][1] + 0.2 * force
            state.append(np.array([state[-1][0] + 0.2 * velocity, velocity]))
        seen = np.asarray(state, np.float32)[:, columns]
        episodes.append(
            {"observations": seen, "actions": actions, "rewards": np.ones(40, np.float32), "terminated": False}
        )
    data = read(Dataset.from_episodes(episodes, action_range=(-1.0, 1.0)))
    for history in (1, 4):
        fit = small(data, history=history)
        announce(fit.model, fit, data, print)
        told = capsys.readouterr().out
        assert ('--gin "DynamicsModel.history=4"' in told) == (len(columns) == 1 and history == 1)


def test_rewards_that_rarely_change_get_a_note(capsys):
    data = linear_data(num_episodes=30, terminates_at=1.0)
    data.rows.rewards[:] = 1.0 - data.rows.terminations
    fit = small(data)
    announce(fit.model, fit, data, print)
    assert re.search(r"note: 9\d\.\d% of the rewards are 1;.*reward_hidden_dims=\(64, 64\)", capsys.readouterr().out)
    apart = small(data, reward_hidden_dims=(8,))
    announce(apart.model, apart, data, print)
    data.rows.rewards[:] = 1.0
    announce(fit.model, fit, data, print)
    assert "note" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "random.hdf5"
    assert main(["collect", "--env", "pendulum-v0", "--actor", "random", "--steps", "600", "--out", str(file)]) == 0
    return str(file)


def test_a_model_is_trained_and_checked_by_commands(recording, tmp_path, capsys):
    file = tmp_path / "new" / "model.pt"
    words = ["train-model", "--dataset", recording, "--out", str(file), "--gin", "DynamicsModel.hidden_dims=(16,)"]
    assert main([*words, "ModelTraining.max_epochs=2"]) == 0
    printed = capsys.readouterr().out
    assert "imagined episodes end: the known rule of pendulum-v0: it never ends" in printed
    assert "epoch 2: loss" in printed
    assert main([*words, "ModelTraining.max_epochs=2", "--resume"]) == 0
    assert "is finished, after 2 epochs" in capsys.readouterr().out
    assert main([*words, "--resume"]) == 2
    assert "ModelTraining.max_epochs is None, but" in capsys.readouterr().err
    assert main([*words, "ModelTraining.max_epochs=2", "DynamicsModel.history=2", "--resume"]) == 2
    assert f"DynamicsModel.history is 2, but {file} was trained with 1; give" in capsys.readouterr().err
    assert main(words) == 2
    assert "exists; name another file, or give --resume" in capsys.readouterr().err
    assert main(["train-model", "--dataset", recording, "--out", recording]) == 2
    assert f"{recording} exists and is no model; name another file" in capsys.readouterr().err
    assert main(["check", "--model", str(file), "--dataset", recording]) == 0
    printed = capsys.readouterr().out
    assert re.search(
        r"steps ahead, error in standard deviations of the data:\n  all numbers +1: .*\n  observation 0 +1: ", printed
    )
    assert "rank correlation with the error" in printed
    assert (
        main(["train_model", "--dataset", recording, "--out", str(file), "--resume", "--dataset_fraction", "0.5"]) == 2
    )
    told = capsys.readouterr().err
    assert re.search(r"is a model of random \(600 tr.*, but the data here are .*[0-9]+ transitions", told)
    assert "SHA-256" not in told
    long = ["train-model", "--dataset", recording, "--out", str(tmp_path / "long.pt"), *words[5:]]
    assert main([*long, "DynamicsModel.history=900", "ModelTraining.max_epochs=1"]) == 0
    told = capsys.readouterr().out
    assert "note: the networks read 900 observations, but the longest episode has " in told
    assert "after 1 epoch: squared error" in told
    other = [*words[:4], str(tmp_path / "part.pt"), *words[5:], "ModelTraining.max_epochs=1"]
    assert main([*other, "--dataset_steps", "450"]) == 0
    assert "450 transitions" in capsys.readouterr().out
    assert main([*other, "--dataset_steps", "450", "--dataset_fraction", "0.5"]) == 2
    assert "cannot be combined" in capsys.readouterr().err
    words += ["ModelTraining.max_epochs=2", "--resume", "--env", "pendulum-p-v0"]
    assert main(words) == 2
    told = "another view: with no environment, on observations of 3 numbers; here they have 2. Give the environment"
    assert told in capsys.readouterr().err


def test_recorded_terminations_that_contradict_a_rule_are_told():
    data = linear_data(num_episodes=5, length=20, terminates_at=0.0)
    num_ended = int(data.rows.terminations.sum())
    told = f"{num_ended} of the {num_ended} recorded terminations contradict the termination rule of pendulum-v0"
    with pytest.warns(DataWarning, match=rf"{told}.*termination='learned'"):
        small(data, names=["pendulum-v0"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        small(data, names=[""])


def test_python_trains_the_same_model_as_the_command(recording, tmp_path, capsys):
    """The same bytes; and bad arguments are messages in words of Python."""
    file, small_nets = tmp_path / "python.pt", {"hidden_dims": (16,), "num_members": 3, "num_elites": 2}
    model = offpcc.train_model(recording, file, "pendulum-p-v0", model=small_nets, training={"max_epochs": 2}, seed=3)
    assert "epoch 2: loss" in capsys.readouterr().out
    assert model.observation_dim == 2 and model.facts["num_epochs"] == 2
    words = ["DynamicsModel.hidden_dims=(16,)", "DynamicsModel.num_members=3", "DynamicsModel.num_elites=2"]
    words += ["ModelTraining.max_epochs=2"]
    other = tmp_path / "command.pt"
    command = ["train-model", "--dataset", recording, "--out", str(other), "--env", "pendulum-p-v0", "--seed", "3"]
    assert main([*command, "--gin", *words]) == 0
    assert file.read_bytes() == other.read_bytes()
    given = {"env": "pendulum-p-v0", "model": small_nets, "training": {"max_epochs": 2}}
    with pytest.raises(UserError, match=r"python\.pt exists; name another file, or give resume=True"):
        offpcc.train_model(recording, file, **given)
    again = offpcc.train_model(recording, file, **given, seed=3, resume=True)
    assert again.facts == model.facts
    for wrong, told in (
        ({"model": {"hiden_dims": 3}}, "DynamicsModel takes no argument 'hiden_dims'; did you mean hidden_dims"),
        ({"training": {"epochs": 3}}, "ModelTraining takes no argument 'epochs'"),
        ({"seed": -1}, "train_model.seed is -1"),
    ):
        with pytest.raises(UserError, match=re.escape(told)):
            offpcc.train_model(recording, tmp_path / "new.pt", **wrong)
    assert not (tmp_path / "new.pt").exists()
    capsys.readouterr()
    found = offpcc.check_model(model, recording, "pendulum-p-v0")
    assert main(["check", "--model", str(file), "--dataset", recording, "--env", "pendulum-p-v0"]) == 0
    assert str(found) in capsys.readouterr().out and found.error.shape == (3,)
    assert str(offpcc.check_model(str(file), recording, "pendulum-p-v0")) == str(found)
    with pytest.raises(UserError, match=r"the data have observations of shape \(3,\)"):
        offpcc.check_model(model, recording)
    with pytest.raises(UserError, match=r"check_model\.dataset_fraction is 2\.0"):
        offpcc.check_model(model, recording, dataset_fraction=2.0)
    with pytest.raises(UserError, match=r"check_model\.model is 3"):
        offpcc.check_model(3, recording)


def test_a_training_continues_only_with_its_settings(recording, tmp_path, capsys, monkeypatch):
    file = tmp_path / "model.pt"
    words = ["train-model", "--dataset", recording, "--out", str(file), "--gin", "ModelTraining.max_epochs=2"]
    small_nets = "DynamicsModel.hidden_dims=(16, 16)"
    with monkeypatch.context() as patched:
        epoch = ModelFit.run_epoch

        def stopping(fit):
            if fit.epoch == 1:
                raise signals.Interrupted(2)
            return epoch(fit)

        patched.setattr(ModelFit, "run_epoch", stopping)
        assert main([*words, small_nets]) == 130
    assert "keeps 1 epoch; run the same command with --resume" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 2
    assert "DynamicsModel.hidden_dims is [200, 200, 200, 200], but" in capsys.readouterr().err
    assert main([*words, small_nets, "--resume", "--seed", "3"]) == 2
    assert "--seed is 3, but" in capsys.readouterr().err
    assert main([*words, small_nets, "--resume"]) == 0
    words[4] = str(tmp_path / "other.pt")
    assert main([*words, small_nets]) == 0
    assert file.read_bytes() == (tmp_path / "other.pt").read_bytes()


def test_words_that_make_no_sense_are_refused(recording, tmp_path, capsys):
    actor = tmp_path / "noise.pt"
    actor.write_bytes(b"noise")
    for words, message in {
        ("check", "--model", str(actor)): "give a dataset with --dataset",
        ("check", "--model", str(actor), "--dataset", recording): "noise.pt",
        ("check", "--model", str(actor), "--dataset", recording, "--steps", "3"): "has no effect with --model",
        ("train-model", "--dataset", recording, "--out", str(tmp_path)): "exists",
        ("toy-model", "--out", "toy.txt"): "does not end in .gif or .mp4",
        ("toy-model", "--out", "toy.gif", "--members", "0"): "from 1 to 1000",
    }.items():
        assert main(list(words)) == 2, words
        assert message in capsys.readouterr().err


def test_the_toy_model_is_drawn(tmp_path):
    for name in ("toy.gif", "toy.mp4"):
        assert main(["toy-model", "--out", str(tmp_path / name), "--updates", "100", "--hidden_dims", "8", "4"]) == 0
        assert (tmp_path / name).stat().st_size > 1000
    picture = imread(tmp_path / "toy.png")
    assert picture.shape[:2] == (810, 1080)
    assert picture.std() > 0.05  # not blank


@pytest.mark.parametrize("between", [False, True])
def test_a_picture_of_the_toy_model_shows_its_data_and_each_network(between):
    model = ToyModel(3, between)
    top, bottom = draw_predictions(model, 200).axes
    data, truth, *means = top.lines
    assert (len(data.get_xdata()), len(means), len(top.collections)) == (210 if between else 200, 3, 3)
    np.testing.assert_array_equal(truth.get_ydata(), np.sin(truth.get_xdata()))
    assert (top.get_xlim(), top.get_ylim()) == ((-8, 8), (-1.5, 1.5))
    predicted = model.predict(means[0].get_xdata())
    band = top.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx((predicted.mean + predicted.std)[0].max())
    shown = [line.get_ydata() for line in bottom.lines]
    np.testing.assert_array_equal(shown, [predicted.std.max(0), np.ptp(predicted.mean, 0)])


@pytest.mark.slow
def test_the_toy_model_sees_the_noise_and_the_gap():
    model = ToyModel()
    for _ in range(5_000):
        model.update()
    seen, gap = model.predict(model.x), model.predict(np.linspace(-1.5, 1.5, 100))
    assert gap.epistemic.mean() > 3 * seen.epistemic.mean()
    assert rank_correlation(seen.std.mean(0), noise_of(model.x)) > 0.8


@pytest.mark.slow
def test_hidden_velocities_need_a_history(tmp_path):
    file = tmp_path / "hidden.hdf5"
    assert main(["collect", "--env", "pendulum-p-v0", "--actor", "random", "--steps", "10000", "--out", str(file)]) == 0
    data, errors = read(str(file)), {}
    for history in (1, 4):
        fit = small(data, {"max_epochs": 20}, hidden_dims=(64, 64), history=history)
        errors[history] = model_quality(trained(fit), data.rows).error[:2].max()
    assert errors[1] > 3 * errors[4]


def test_the_range_of_a_coefficient_is_not_empty_where_rewards_are_costs():
    model = trained(small(linear_data()))  # rewards of -x^2, at most 0
    found = model_quality(model, linear_data(seed=1).rows)
    assert model.facts["largest_reward"] <= 0.0
    for name, (_, coefficient) in found.ranges.items():
        assert coefficient[1] == pytest.approx(-model.facts["smallest_reward"] / getattr(found.uncertainty, name).max())


@pytest.mark.parametrize(
    ("precision", "recall", "told"),
    [
        (0.95, 0.9, "precision 0.95, recall 0.90"),
        (0.95, 0.2, "imagined episodes end at wrong times"),
        (float("nan"), 0.0, "imagined episodes end at wrong times"),  # it predicts no termination at all
        (float("nan"), float("nan"), "no episode terminated in the holdout"),
    ],
)
def test_the_quality_of_terminations_is_told(precision, recall, told):
    text = describe_terminations({"termination_precision": precision, "termination_recall": recall})
    assert told in text and ("wrong times" in text) == ("wrong times" in told)
    assert ("ModelTraining.patience" in text) == ("poor" in text)
    assert describe_terminations({}) == ""
