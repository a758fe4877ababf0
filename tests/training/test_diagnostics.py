"""Warnings of the training loop: saturated actions and overestimated values are told once; checks change nothing."""

import numpy as np
import pytest
import torch
from exact_resume import assert_same

from offpcc.algorithms import BC, BCQ, CQL, DQN, IQL, SAC, TD3
from offpcc.algorithms.variants import RecurrentBC
from offpcc.data import Dataset
from offpcc.training.build import build
from offpcc.training.callbacks import Run
from offpcc.training.diagnostics import Overestimation, Saturation
from offpcc.training.loggers import Loggers
from offpcc.training.metrics import Loop

SIZES = {"hidden_dims": (8,)}


def dataset(bound=0.5):
    """Ten episodes of thirty steps, of actions up to a bound; a few numbers lie between."""
    random = np.random.default_rng(0)
    actions = bound * np.sign(random.normal(size=(300, 2)))
    actions[::10] *= 0.5
    return Dataset.from_arrays(
        observations=random.normal(size=(300, 3)).astype(np.float32),
        actions=actions.astype(np.float32),
        rewards=random.normal(size=300).astype(np.float32),
        terminations=np.arange(300) % 30 == 29,
        truncations=np.zeros(300, bool),
        action_range=(-1.0, 1.0),
    )


def learner_of(cls, data=None, **arguments):
    sizes = SIZES | ({"vae_hidden_dims": (8,)} if cls is BCQ else {})
    return build(None, cls.__name__, dataset=dataset() if data is None else data, algorithm=sizes | arguments)


def last_layer(algorithm):
    return (algorithm.vae.decoder if isinstance(algorithm, BCQ) else algorithm.actor.net)[-1]


def saturate(algorithm):
    """Have tanh give nothing but 1."""
    with torch.no_grad():
        last_layer(algorithm).bias.fill_(50.0)


def told(learner, capsys, epochs=2):
    """What is told at the ends of epochs."""
    run = Run(learner.algorithm, learner.buffer, None, None, Loop(num_updates=1, epoch=3))
    saturation = Saturation(learner.algorithm, learner.buffer)
    for _ in range(epochs):
        saturation.on_epoch(run)
    return capsys.readouterr().err


@pytest.mark.parametrize("cls", [BC, RecurrentBC, BCQ, CQL, IQL, SAC, TD3], ids=lambda cls: cls.__name__)
def test_what_is_saturated_is_told_once(cls, capsys):
    learner = learner_of(cls, normalize_observations=False)
    assert told(learner, capsys) == ""
    saturate(learner.algorithm)
    (line,) = told(learner, capsys).splitlines()
    assert "after epoch 3, 100.0%" in line and "0.0% of the actions that it learns from" in line
    assert f'--gin "{cls.__name__}.normalize_observations=True"' in line and f"lower {cls.__name__}.lr" in line


def test_where_observations_are_normalised_that_is_no_remedy(capsys):
    learner = learner_of(BC)
    saturate(learner.algorithm)
    assert "normalize_observations" not in (line := told(learner, capsys)) and "lower BC.lr" in line


def test_bang_bang_control_is_no_fault_where_it_was_recorded(capsys):
    data = dataset(1.0)
    assert 0.85 < (np.abs(data.actions) > 0.99).mean() < 0.95
    learner = learner_of(BC, data)
    with torch.no_grad():
        last_layer(learner.algorithm).weight *= 160.0  # a few outputs lie between the bounds
    made, recorded = learner.algorithm.shares_at_bounds(learner.buffer.peek())
    assert 0.95 < made < 0.975 and 0.85 < recorded < 0.95
    assert told(learner, capsys) == ""


def test_before_the_first_update_nothing_is_looked_at(capsys):
    learner = learner_of(BC)
    saturate(learner.algorithm)
    run = Run(learner.algorithm, learner.buffer, None, None, Loop())
    Saturation(learner.algorithm, learner.buffer).on_epoch(run)
    assert capsys.readouterr().err == ""


def test_an_agent_that_chooses_otherwise_is_not_looked_at(monkeypatch, capsys):
    learner = learner_of(BC)
    saturate(learner.algorithm)
    monkeypatch.setattr(learner.algorithm, "choose_action", lambda summary, deterministic: summary[..., :2])
    assert learner.algorithm.shares_at_bounds(learner.buffer.peek()) is None
    assert told(learner, capsys) == ""


def test_padding_does_not_count():
    learner = learner_of(RecurrentBC)
    batch = learner.buffer.peek()
    padded = batch._replace(
        actions=torch.cat([batch.actions, torch.full_like(batch.actions, 7.0)], 1),
        rewards=batch.rewards.repeat(1, 2, 1),
        terminations=batch.terminations.repeat(1, 2, 1),
        observations=torch.cat([batch.observations, torch.full_like(batch.observations[:, 1:], torch.nan)], 1),
        valid=torch.cat([batch.valid, torch.zeros_like(batch.valid[:, 1:])], 1),
        loss_mask=torch.cat([batch.loss_mask, torch.zeros_like(batch.loss_mask)], 1),
        complete=False,
    )
    shares, expected = (learner.algorithm.shares_at_bounds(one) for one in (padded, batch))
    torch.testing.assert_close(shares, expected)


@pytest.mark.parametrize("cls", [BC, RecurrentBC, BCQ, SAC], ids=lambda cls: cls.__name__)
def test_looking_changes_nothing(cls, monkeypatch):
    """The same seed gives the same weights and the same draws, with a look at each epoch's end or without."""
    states = []
    for is_looking in (True, False):
        if not is_looking:
            monkeypatch.setattr(Saturation, "on_epoch", lambda *_: None)
        # Running statistics, which a look is not to move either.
        learner = learner_of(cls, normalize_observations=True)
        learner.algorithm.normalization.count.zero_()
        learner.train(Loggers([]), num_epochs=3, num_steps_per_epoch=4)
        states.append((learner.algorithm.state_dict(), learner.buffer.randomness.state_dict()))
    (one, draws), (other, other_draws) = states
    assert draws == other_draws
    assert_same(one, other)


def test_training_tells(capsys):
    learner = learner_of(BC, normalize_observations=False)
    saturate(learner.algorithm)
    learner.train(Loggers([]), num_epochs=2, num_steps_per_epoch=2)
    assert capsys.readouterr().err.count("tanh is saturated") == 1


# Overestimation -------------------------------------------------------------------------------------------------------


def returns_of(rewards, ends, discount):
    """The discounted returns from each step on, by their definition; an episode without an end repeats its reward."""
    tail = 0.0 if ends else rewards[-1] / (1.0 - discount)
    return [
        sum(discount**k * reward for k, reward in enumerate(rewards[first:]))
        + discount ** (len(rewards) - first) * tail
        for first in range(len(rewards))
    ]


def lines_at(learner, q, capsys, epochs=2, **stats):
    """What is told at the ends of epochs with this mean Q."""
    row = {"update/q": q} | {f"update/{name}": value for name, value in stats.items()}
    run = Run(learner.algorithm, learner.buffer, None, None, Loop(epoch=3, rows=[row]))
    check = Overestimation(learner.algorithm, learner.recording.rows)
    for _ in range(epochs):
        check.on_epoch(run)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    "changed, seen",
    [
        ({}, lambda rewards: rewards),
        ({"reward_scale": 2.0, "reward_shift": -0.3}, lambda rewards: 2.0 * rewards - 0.3),
        ({"reward_scale": -1.0, "gamma": 0.5}, lambda rewards: -rewards),
        ({"clip_rewards": True}, np.sign),
    ],
)
def test_values_beyond_the_returns_of_the_recording_are_told_once(changed, seen, capsys):
    rewards = np.random.default_rng(1).normal(size=50).astype(np.float32)
    seen_states = np.arange(52, dtype=np.float32).repeat(2).reshape(52, 2)  # a last one of each episode
    data = Dataset.from_arrays(
        observations=np.delete(seen_states, (20, 51), 0),
        next_observations=np.delete(seen_states, (0, 21), 0),
        actions=np.zeros((50, 1), np.float32),
        rewards=rewards,
        terminations=np.arange(50) == 19,
        truncations=np.arange(50) == 49,
        action_range=(-1.0, 1.0),
    )
    learner = learner_of(TD3, data, **{"gamma": 0.9} | changed)
    rewards, gamma = seen(rewards.astype(np.float64)), learner.algorithm.gamma
    returns = [*returns_of(rewards[:20], True, gamma), *returns_of(rewards[20:], False, gamma)]
    limit = max(returns) + max(map(abs, returns))
    assert lines_at(learner, limit - 1e-3, capsys) == []
    (line,) = lines_at(learner, limit + 1e-3, capsys)
    assert f"after epoch 3, the mean Q of TD3 is {limit + 1e-3:.3g}" in line
    assert f"between {min(returns):.3g} and {max(returns):.3g}" in line and "iql, td3_bc" in line
    assert "or bind TD3.layer_norm = True" in line


@pytest.mark.parametrize("entropy, bonus", [(3.0, 0.2 * 3.0 / 0.1), (-3.0, 0.0)])
def test_values_of_sac_may_have_the_policys_entropy(entropy, bonus, capsys):
    learner = learner_of(SAC, gamma=0.9)
    check = Overestimation(learner.algorithm, learner.recording.rows)
    low, high = check._smallest_and_largest()
    limit = high + max(-low, high) + bonus
    assert lines_at(learner, limit - 1e-3, capsys, alpha=0.2, entropy=entropy) == []
    assert len(lines_at(learner, limit + 1e-3, capsys, alpha=0.2, entropy=entropy)) == 1


def unrewarded():
    return Dataset.from_arrays(
        observations=np.arange(20.0).reshape(20, 1),
        actions=np.zeros((20, 1)),
        rewards=np.zeros(20),
        terminations=np.arange(20) == 19,
        action_range=(-1.0, 1.0),
    )


def test_values_that_no_recording_limits_are_not_looked_at(capsys):
    assert lines_at(learner_of(TD3, gamma=1.0), 1e9, capsys) == [], "returns may be infinite"
    assert lines_at(learner_of(BC), None, capsys) == [], "no critic"
    assert lines_at(learner_of(TD3, unrewarded()), 1e9, capsys) == [], "no rewards"
    assert len(lines_at(learner_of(TD3), 1e9, capsys)) == 1


def overestimate(algorithm):
    """Have the critics give large values alone."""
    with torch.no_grad():
        for critics in (algorithm.critics, algorithm.target_critics):
            critics.net[-1].bias.fill_(1e6)


def test_training_from_recorded_data_tells_of_overestimation(capsys):
    for is_over in (True, False):
        learner = learner_of(TD3)
        if is_over:
            overestimate(learner.algorithm)
        learner.train(Loggers([]), num_epochs=2, num_steps_per_epoch=2)
        assert capsys.readouterr().err.count("Q is overestimated") == is_over
        assert (learner.loop.rows[0]["update/q"] > 1e4) == is_over


def test_discrete_actions_have_other_proposals(capsys):
    data = Dataset.from_arrays(
        observations=np.zeros((20, 4), np.float32),
        actions=np.arange(20) % 2,
        rewards=np.ones(20, np.float32),
        terminations=np.arange(20) % 10 == 9,
    )
    learner = build("cartpole-v0", "dqn", dataset=data, algorithm=SIZES)
    assert isinstance(learner.algorithm, DQN)
    (line,) = lines_at(learner, 1e3, capsys)
    assert "(dbcq, dbc)" in line and "or bind DQN.layer_norm = True" in line
    normed = build("cartpole-v0", "dqn", dataset=data, algorithm=SIZES | {"layer_norm": True})
    (line,) = lines_at(normed, 1e3, capsys)
    assert "or lower DQN.lr" in line
    (line,) = lines_at(learner_of(TD3, layer_norm=True), 1e3, capsys)
    assert "or lower TD3.lr" in line


def test_an_online_run_is_not_looked_at(capsys):
    learner = build("pendulum-v0", "td3", algorithm=SIZES)
    overestimate(learner.algorithm)
    learner.train(Loggers([]), num_epochs=1, num_steps_per_epoch=300, update_after=200, num_test_episodes_per_epoch=0)
    assert learner.loop.rows[0]["update/q"] > 1e4 and "overestimated" not in capsys.readouterr().err
