"""Agents that learn in a model of data that the test records itself, beside agents without a model."""

import gymnasium
import numpy as np
import pytest

import offpcc
from offpcc.data import Dataset
from offpcc.training.loggers import Loggers
from offpcc.training.models.training import Transitions, as_tensor

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
    offpcc.configure("configs/small.gin")
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


# A pit that the data do not show --------------------------------------------------------------------------------------


class Pit(gymnasium.Env):
    """A point in the plane is rewarded for nearness to (0.8, 0). Between it and the start is a pit without a way out.

    The wind turns twice as fast as the direction from the pit, so that outside of the data networks differ.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    radius, unseen = 0.3, 0.6  # the data come no nearer than `unseen`: at the pit, networks clearly differ
    steps_inside = 0  # of all instances

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.num_steps = np.array([-0.8, self.np_random.uniform(-0.1, 0.1)], np.float32), 0
        return self.at, {}

    def step(self, action):
        if np.hypot(*self.at) > self.radius:
            self.at = self.moved(self.at, action)
        self.num_steps += 1
        is_inside = bool(np.hypot(*self.at) <= self.radius)
        Pit.steps_inside += is_inside
        reward = -1.0 if is_inside else self.reward_at(self.at)
        return self.at, reward, False, self.num_steps == 30, {}

    @staticmethod
    def moved(at, action):
        angle = 2.0 * np.arctan2(at[1], at[0])
        wind = 0.1 * np.array([np.cos(angle), np.sin(angle)])
        return (at + 0.15 * np.clip(action, -1.0, 1.0) + wind).astype(np.float32)

    @staticmethod
    def reward_at(at):
        return 1.0 - float(np.hypot(at[0] - 0.8, at[1]))


def random_steps_around_the_pit(seed):
    """Return 3,000 episodes of up to five random steps within [-1, 1]^2, none of them near the pit."""
    draw, episodes = np.random.default_rng(seed), []

    def is_seen(at):
        return np.hypot(*at) > Pit.unseen and np.abs(at).max() < 1.0

    while len(episodes) < 3_000:
        path, actions = [draw.uniform(-1.0, 1.0, 2).astype(np.float32)], []
        if not is_seen(path[0]):
            continue
        for action in draw.uniform(-1.0, 1.0, (5, 2)).astype(np.float32):
            following = Pit.moved(path[-1], action)
            if is_seen(following):
                path.append(following)
                actions.append(action)
        if actions:
            rewards = np.array([Pit.reward_at(at) for at in path[1:]], np.float32)
            columns = {"observations": np.array(path), "actions": np.array(actions), "rewards": rewards}
            episodes.append({**columns, "terminated": False})
    return Dataset.from_episodes(episodes, action_range=(-1.0, 1.0))


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
def test_morel_goes_around_a_pit_that_the_data_do_not_show_and_mbpo_falls_into_it(seed):
    data, inside, returns = random_steps_around_the_pit(seed), {}, {}
    for algo, own in {"morel": (), "mopo": ("Imagination.penalty=0.0",)}.items():  # the latter is MBPO
        offpcc.configure(
            None,
            "DynamicsModel.hidden_dims=(64,64)",
            "DynamicsModel.activation='silu'",
            "DynamicsModel.num_members=5",
            "ModelTraining.lr=3e-3",
            "ModelTraining.weight_decay=0.0",
            "ModelTraining.patience=40",
            "ModelTraining.max_epochs=60",
            "ActorCritic.hidden_dims=(64,64)",
            "ActorCritic.lr=1e-3",
            "ActorCritic.gamma=0.95",
            "ActorCritic.polyak=0.98",
            "SAC.autotune=False",
            "SAC.alpha=0.02",
            "ReplayBuffer.batch_size=128",
            "Imagination.length=10",
            *own,
        )
        agent = trained(offpcc.build(Pit, algo, dataset=data, seed=seed), 3_000)
        Pit.steps_inside = 0
        returns[algo] = offpcc.evaluate(agent, Pit, 10).mean
        inside[algo] = Pit.steps_inside
    assert inside["morel"] == 0, inside  # of 300
    assert inside["mopo"] > 250, inside  # 280 of 300
    assert returns["morel"] > returns["mopo"] + 10.0, returns  # 2.7 to 6.5, and -28.5
