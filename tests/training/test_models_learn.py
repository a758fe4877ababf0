"""Agents that learn in a model of data that the test records itself, beside agents without a model."""

import numpy as np
import pytest

import offpcc
from offpcc.training.dynamics import Transitions, as_tensor
from offpcc.training.loggers import Loggers

SMALL_MODEL = (
    "DynamicsModel.hidden_dims=(64,64)",
    "DynamicsModel.activation='silu'",
    "DynamicsModel.num_members=4",
    "DynamicsModel.num_elites=3",
    "ModelTraining.lr=2e-3",
    "ModelTraining.patience=15",
    "ModelTraining.max_epochs=60",
)


@pytest.fixture(autouse=True)
def own_folder_of_models(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFPCC_MODELS_DIR", str(tmp_path / "models"))


def trained(learner, updates):
    return learner.train(Loggers([]), num_epochs=1, num_steps_per_epoch=updates, num_test_episodes_per_epoch=0)


def half_random(env, algo, seed):
    """Record 10,000 random steps, and 10,000 steps of an agent that has learned for 3,000 steps."""
    offpcc.configure("configs/quickstart.gin")
    agent = trained(offpcc.build(env, algo, seed=seed), 3_000)
    return offpcc.collect(env, None, 10_000, seed=1) + offpcc.collect(env, agent, 10_000, seed=2)


def mean_return(agent, env):
    return offpcc.evaluate(agent, env, 20).mean


def error_of_one_step(model, rows):
    """Return the RMSE of each number, in standard deviations of the observations."""
    data = Transitions(rows, model.history)
    observations, actions, following, *_ = data[np.arange(0, len(data), 7)]
    predicted = model.imagine(as_tensor(observations, model), as_tensor(actions, model), None)
    return np.sqrt(((predicted.next_observations.numpy() - following) ** 2).mean(0)) / following.std(0)


def error_of_steps(model, rows, num_steps):
    """Return the RMSE of each number after recorded actions, in standard deviations of the observations."""
    at = np.concatenate([rows.starts + place for place in (0, 50, 100, 150)])
    imagined = rows.observations[at]
    for step in range(num_steps):
        window = as_tensor(imagined[:, None], model), as_tensor(rows.actions[at + step][:, None], model)
        imagined = model.imagine(*window, None).next_observations.numpy()
    error = imagined - rows.observations[at + num_steps]
    return np.sqrt((error**2).mean(0)) / rows.observations.std(0)


@pytest.mark.slow
@pytest.mark.learning
def test_a_model_of_the_pendulum_is_exact_and_mopo_in_it_is_better_than_bc():
    data = half_random("pendulum-v0", "sac", seed=1)
    offpcc.configure("configs/offline_quickstart.gin", *SMALL_MODEL)
    mopo = offpcc.build("pendulum-v0", "mopo", dataset=data, seed=1)
    model, rows = mopo.imagination.model, mopo.recording.rows
    one, twenty = error_of_one_step(model, rows), error_of_steps(model, rows, 20)
    assert one.max() < 0.01, one  # 0.0072 was reached
    assert twenty.max() < 0.25, twenty  # 0.11
    returns = {
        "mopo": mean_return(trained(mopo, 3_000), "pendulum-v0"),
        "bc": mean_return(trained(offpcc.build("pendulum-v0", "bc", dataset=data, seed=1), 3_000), "pendulum-v0"),
    }
    assert returns["mopo"] > returns["bc"] + 200.0, returns  # -117 and -755
    assert returns["mopo"] > -300.0, returns
