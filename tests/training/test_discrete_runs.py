"""Runs with discrete actions: every algorithm trains, resumes, records, and learns what only it can solve."""

import re
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from conftest import rows, run_folder
from gymnasium.spaces import Box, Discrete

import offpcc
from offpcc.algorithms import ALGORITHMS
from offpcc.algorithms.agent import build_actor
from offpcc.algorithms.discrete import without_random_actions
from offpcc.algorithms.variants import TABLE
from offpcc.core import Step
from offpcc.data import ReplayBuffer
from offpcc.data.checks.check import examine_dataset
from offpcc.data.datasets.load import load_dataset
from offpcc.training.collect import EpsilonGreedyActor, Seeds, play_episode
from offpcc.training.evaluation import open_environment
from offpcc.training.loggers import Loggers
from offpcc.training.remote import RemoteInteraction
from offpcc.utils.errors import UserError

ONLINE, OFFLINE = ("dqn", "qrdqn", "dsac"), ("dbc", "dbcq", "dcql", "dcrr")
SMALL = """
ActorCritic.hidden_dims = (8,)
QRDQN.num_quantiles = 5
Recurrent.hidden_dim = 6
Recurrent.num_layers = 1
RecurrentReplayBuffer.batch_size = 3
train.num_epochs = 2
train.num_test_episodes_per_epoch = 2
"""
QUICK = "train.update_after = 150\ntrain.updates_per_step = 0.1\n"


@pytest.fixture(scope="module")
def pushes(tmp_path_factory):
    """1,000 random steps of the cart."""
    file = tmp_path_factory.mktemp("data") / "pushes.hdf5"
    offpcc.collect("cartpole-v0", None, steps=1_000, seed=1).save(file)
    return file


def trains(launch, folder, algo, *extra, steps=300):
    config = folder / "small.gin"
    quick = "" if "--dataset" in extra else QUICK
    config.write_text(f"{SMALL}{quick}train.num_steps_per_epoch = {steps}\n")
    code, out, err = launch("--env", "cartpole-v0", "--algo", algo, "--run_id", 1, "--config", config, *extra)
    assert code == 0, err
    return out + err


def test_there_are_all_variants_of_each():
    discrete = {name for name, cls in ALGORITHMS.items() if cls.is_discrete}
    assert {TABLE[name].algorithm for name in discrete} == {*ONLINE, "r2d2", *OFFLINE}
    assert len(discrete) == 6 * 7 + 4


@pytest.mark.slow
@pytest.mark.parametrize("algo", [f"{prefix}{name}" for name in ONLINE for prefix in ("", "r")] + ["r2d2"])
def test_a_run_in_an_environment_ends_and_its_actor_plays(launch, tmp_path, algo):
    trains(launch, tmp_path, algo)
    run = run_folder(tmp_path, "cartpole-v0", algo)
    assert [row.split(",")[0] for row in rows(run)] == ["step", "300", "600"]
    code, out, err = launch("evaluate", run, "--episodes", 2)
    assert code == 0 and "return over 2 episodes" in out, err
    code, _, err = launch(
        "collect", "--env", "cartpole-v0", "--actor", run, "--steps", 100, "--out", tmp_path / "d.hdf5"
    )
    assert code == 0, err
    recorded = load_dataset(tmp_path / "d.hdf5")
    assert recorded.discrete_actions and recorded.choices() == (0, 2) and set(recorded.actions[:, 0]) <= {0.0, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("algo", [f"{prefix}{name}" for name in OFFLINE for prefix in ("", "r")])
def test_a_run_from_recorded_data_ends(launch, tmp_path, pushes, algo):
    trains(launch, tmp_path, algo, "--dataset", pushes, steps=20)
    assert len(rows(run_folder(tmp_path, "cartpole-v0_from_pushes", algo))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["rdqn", "r2d2"])
def test_a_resumed_run_equals_one_without_a_stop(launch, tmp_path, algo):
    """Also the number of steps that epsilon depends on."""
    extra = ["--gin", "ValueBased.epsilon_steps=400"]
    if algo == "r2d2":
        extra += ["--gin", "RecurrentReplayBuffer.segment_len=5", "--gin", "RecurrentReplayBuffer.burn_in=3"]
    trains(launch, tmp_path, algo, "--results", tmp_path / "whole", *extra)
    trains(launch, tmp_path, algo, "--results", tmp_path / "parts", "--gin", "train.num_epochs=1", *extra)
    trains(launch, tmp_path, algo, "--results", tmp_path / "parts", "--resume", *extra)
    whole, parts = (rows(tmp_path / name / "cartpole-v0" / algo / "1") for name in ("whole", "parts"))
    assert whole == parts
    place = whole[0].split(",").index("update/epsilon")
    first, second = (float(row.split(",")[place]) for row in whole[1:])  # means of an epoch's updates
    assert 1.0 > first > second > 0.05


def test_settings_of_epsilon_without_effect_are_refused(launch, pushes):
    given = ("--env", "cartpole-v0", "--algo", "dqn", "--config", "test/template_short.gin")
    ladder = ("--gin", "ValueBased.epsilon_ladder=7")
    assert "epsilon_ladder has no effect: environments.num_envs is 1" in launch(*given, *ladder)[2]
    told = launch(*given, "--dataset", pushes, "--gin", "ValueBased.epsilon_steps=50")[2]
    assert "epsilon_steps has no effect: the agent learns from recorded data, and its epsilon is final_epsilon" in told
    few = ("train.num_epochs=1", "train.num_steps_per_epoch=20", "train.update_after=10", "environments.num_envs=2")
    assert launch(*given, *ladder, "--gin", *few)[0] == 0


def test_rows_of_recorded_choices_are_one_hot(pushes):
    data = load_dataset(pushes)
    table = data.rows()
    assert table.actions.shape[1] == 2 and set(table.actions[table.is_start].sum(1)) == {1.0}
    np.testing.assert_array_equal(table.actions[table.is_start].argmax(1), data.actions[data.is_transition, 0])


def test_choices_begin_where_the_environment_says():
    given = {"observations": np.zeros((6, 2)), "rewards": np.zeros(6), "terminations": [False] * 5 + [True]}
    data = offpcc.Dataset.from_arrays(actions=np.array([3, 4, 4, 3, 4, 3]), **given)
    assert data.choices((3, 5)) == (3, 3) and data.choices() == (0, 5)
    np.testing.assert_array_equal(data.unit_actions((3, 5))[:2], [[1, 0, 0], [0, 1, 0]])
    with pytest.raises(UserError, match="actions are from 3 to 4, but only 0 to 1 are possible"):
        data.choices((0, 1))
    pairs = offpcc.Dataset.from_arrays(actions=np.array([[0, 1]] * 6), **given)
    with pytest.raises(UserError, match="each action has 2 whole numbers, but a discrete action is one"):
        pairs.choices()


def test_an_algorithm_of_the_other_kind_is_refused_with_the_one_to_take(launch, pushes):
    small = ("--gin", "train.num_epochs=1")
    for given, proposed in (
        (("--env", "cartpole-v0", "--algo", "rsac"), "rdsac"),
        (("--env", "pendulum-v0", "--algo", "crqrdqn"), "rsac"),
        (("--dataset", pushes, "--algo", "riql"), "rdcql"),
        (("--dataset", pushes, "--algo", "bc"), "dbc"),
    ):
        code, _, err = launch(*given, *small)
        assert code == 2 and f"choose {proposed}, or another algorithm" in err
    code, _, err = launch("--env", "pendulum-v0", "--dataset", pushes, "--algo", "bc", *small)
    assert code == 2 and "it has discrete actions, but pendulum-v0 takes Box" in err


def test_choices_that_begin_above_0_are_told():
    rest = {"rewards": np.ones(40), "terminations": np.arange(40) % 10 == 9, "observations": np.ones((40, 4))}
    data = offpcc.Dataset.from_arrays(actions=[3, 4] * 20, truncations=np.zeros(40, bool), **rest)
    [told] = [notice.text for notice in data.action_warnings()]
    assert "5 of them from 0 on; the least recorded one is 3: if they count from 3 on, give actions - 3" in told
    found = [one.found for one in examine_dataset(data).findings if one.check == "actions"]
    assert any("the data lack 3 of them: 5 discrete ones" in one for one in found)


def test_choices_that_begin_elsewhere_get_a_remedy():
    rest = {"rewards": np.ones(40, np.float32), "terminations": np.arange(40) % 10 == 9}
    for actions, remedy in (([1, 2] * 20, "give actions - 1 if"), ([-1, 0] * 20, "give actions + 1 if")):
        data = offpcc.Dataset.from_arrays(
            observations=np.ones((40, 4), np.float32), actions=actions, truncations=np.zeros(40, bool), **rest
        )
        with pytest.raises(UserError, match=re.escape(remedy)):
            offpcc.build("CartPole-v1", "dcql", dataset=data)


@pytest.mark.parametrize(
    ("actions", "remedy"),
    [
        (np.array([0.0, 1.0] * 20), "give actions.astype(int)"),
        (np.eye(2, dtype=np.float32)[[0, 1] * 20], "give actions.argmax(1)"),
        (np.eye(2, dtype=np.int64)[[0, 1] * 20], "give actions.argmax(1)), but CartPole-v1 takes 1; give data of"),
        (np.linspace(-1.0, 1.0, 40), "it has continuous actions, but"),
    ],
)
def test_choices_that_are_stored_as_numbers_get_a_remedy(actions, remedy):
    rest = {"rewards": np.ones(40, np.float32), "terminations": np.arange(40) % 10 == 9}
    data = offpcc.Dataset.from_arrays(
        observations=np.ones((40, 4), np.float32), actions=actions, truncations=np.zeros(40, bool), **rest
    )
    with pytest.raises(UserError, match=re.escape(remedy)) as caught:
        offpcc.build("CartPole-v1", "dcql", dataset=data)
    assert "action_range" not in str(caught.value)


def test_stored_actions_are_those_that_were_pushed():
    env = offpcc.make("cartpole-v0", scale_actions=True)
    buffer = ReplayBuffer(env.observation_space, env.action_space, capacity=100, batch_size=50)
    observation, _ = env.reset(seed=1)
    env.action_space.seed(1)  # the pole falls after nine equal actions
    pushed = []
    for _ in range(10):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        buffer.push(observation, action, reward, after, terminated, truncated)
        pushed.append((tuple(observation), tuple(action)))
        observation = after
    assert buffer.storage.actions.shape[1] == 1, "one number for each action"
    batch = buffer.sample()
    before = dict(zip([seen for seen, _ in pushed], [(0.0, 0.0)] + [action for _, action in pushed], strict=False))
    for seen, action, previous in zip(batch.observations[:, 0], batch.actions[:, 0], batch.first_action, strict=True):
        assert (tuple(seen.numpy()), tuple(action.numpy())) in pushed
        assert tuple(previous.numpy()) == before[tuple(seen.numpy())]


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("algo", ["rqrdqn", "rdqn", "rdsac"])
def test_memory_holds_a_pole_whose_velocity_is_hidden(algo):
    """Without memory, `dqn` stays below 100 of 200."""
    offpcc.configure("discrete/cartpole.gin")
    learner = offpcc.build("cartpole-p-v0", algo, seed=1)
    agent = learner.train()
    assert np.mean(offpcc.evaluate(agent, "cartpole-p-v0", episodes=20).returns) > 150.0


@pytest.mark.parametrize("algo", ["dqn", "rdqn"])
def test_epsilon_falls_with_all_steps_of_training_random_ones_too_and_with_no_others(algo):
    bindings = ("Recurrent.hidden_dim=4", "Recurrent.num_layers=1", "ActorCritic.hidden_dims=(4,)")
    offpcc.configure(None, *bindings, "ValueBased.epsilon_steps=200")
    learner = offpcc.build("cartpole-p-v0", algo, seed=1)
    settings = {"num_steps_per_epoch": 60, "num_test_episodes_per_epoch": 1, "updates_per_step": 0.05}
    agent = learner.train(logger=Loggers([]), num_epochs=2, update_after=50, **settings)
    assert learner.algorithm.epsilon.taken == 120
    assert learner.algorithm.epsilon() == pytest.approx(1.0 - 0.95 * 120 / 200)
    for _ in range(5):
        agent.act(np.zeros(2, np.float32), deterministic=False)
    assert learner.algorithm.epsilon.taken == 120


def test_actors_on_other_machines_get_the_share_of_random_actions_of_their_place(monkeypatch):
    box, choices = Box(-1, 1, (2,), np.float32), Discrete(2)
    learner = ALGORITHMS["dqn"](
        box, choices, initial_epsilon=0.5, final_epsilon=0.1, epsilon_steps=100, epsilon_ladder=7.0
    )
    tasks = []
    workers = [SimpleNamespace(send=lambda _, task, number=number: tasks.append((number, task))) for number in range(3)]
    environments = SimpleNamespace(
        num_envs=3, workers=workers, seeds=[0, 1, 2], timeout=None, action_space=choices, name="here"
    )
    interaction = RemoteInteraction(environments, learner, buffer=None)
    monkeypatch.setattr(interaction, "_publish", lambda: None)
    interaction._give_tasks(False)
    assert [task.epsilon for _, task in tasks] == pytest.approx([0.5, 0.5**4.5, 0.5**8])
    one = (np.zeros(2), np.zeros(2), 1.0, np.zeros(2), False, False, False)
    interaction.stores = []
    interaction._rest, interaction._left = iter([one] * 50), 50
    for _ in range(50):
        interaction.step(False)
    interaction._playing.clear()
    interaction._give_tasks(False)
    assert [task.epsilon for _, task in tasks[3:]] == pytest.approx([0.3, 0.3**4.5, 0.3**8])
    copy = build_actor(learner.actor_file(), "a copy")
    copy.fix_epsilon(tasks[-1][1].epsilon)
    assert copy.epsilons(1) == pytest.approx([0.3**8])


def test_collected_random_actions_are_those_of_collect_alone():
    box, choices = Box(-1, 1, (2,), np.float32), Discrete(2)
    agent = ALGORITHMS["dqn"](box, choices, test_epsilon=1.0)
    greedy = EpsilonGreedyActor(agent, 0.0, choices, np.random.default_rng(0))
    seen = Step(np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 1)), np.zeros(1))
    assert len({int(greedy.act(seen)[0].argmax()) for _ in range(30)}) == 1
    assert agent.test_epsilon == 1.0


class Plain(gymnasium.Env):
    """Two observed numbers, and any actions."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, action_space, render_mode=None):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, True, {}


@pytest.mark.parametrize("algo", ["sac", "dsac"])
def test_an_actor_of_the_other_kind_of_actions_is_refused(algo):
    """Three numbers in an action, and three discrete actions."""
    box, discrete = Box(-1.0, 1.0, (3,), np.float32), Discrete(3)
    own, other = (box, discrete) if algo == "sac" else (discrete, box)
    of = {"own": lambda **how: offpcc.make(lambda: Plain(own), **how)}
    of["other"] = lambda **how: offpcc.make(lambda: Plain(other), **how)
    env = of["own"](scale_actions=True)
    actor = ALGORITHMS[algo](env.observation_space, env.action_space, seed=1, hidden_dims=(8,))
    open_environment(of["own"], actor).close()
    with pytest.raises(UserError, match="3 discrete actions") as fault:
        open_environment(of["other"], actor)
    assert "3 action dimensions" in str(fault.value)


@pytest.mark.parametrize(
    ("config", "binding", "is_told"),
    [
        ("discrete/cartpole.gin", "ActorCritic.n_step=1", True),
        ("discrete/cartpole.gin", "ActorCritic.n_step=3", False),
        ("discrete/cartpole.gin", "ActorCritic.n_step=1 RecurrentReplayBuffer.burn_in=4", False),
        ("discrete/cartpole_r2d2.gin", "R2D2.rescaling=1e-3", False),
    ],
)
def test_r2d2_without_its_parts_is_told(launch, config, binding, is_told):
    few = ("train.num_epochs=1", "train.num_steps_per_epoch=60", "train.update_after=60")
    run = ("--env", "cartpole-p-v0", "--algo", "r2d2", "--config", config, "--gin", *few, *binding.split())
    code, out, err = launch(*run)
    assert code == 0, err
    assert ("R2D2 has no n-step targets, dueling heads and burn-in here" in out + err) == is_told


def test_random_actions_of_a_constrained_agent_are_any_actions():
    """As in the authors' code of discrete BCQ; also those that the imitating policy finds unlikely."""
    spaces = Box(-1, 1, (3,), np.float32), Discrete(4)
    agent = ALGORITHMS["dbcq"](*spaces, seed=0, initial_epsilon=1.0, final_epsilon=1.0)
    with torch.no_grad():
        agent.actor.imitation[-1].bias.copy_(torch.tensor([5.0, 0.0, 0.0, 0.0]))
    step = Step(*(np.zeros((500, size), np.float32) for size in (3, 4, 1)), np.ones(500))
    shares = agent.act(step)[0].mean(0)
    assert (abs(shares - 0.25) < 0.06).all()
    assert (agent.act(step, deterministic=True)[0][:, 0] == 1.0).all()


def test_a_deterministic_episode_has_no_random_actions():
    env = offpcc.make("CartPole-v1", scale_actions=True)
    agent = ALGORITHMS["dqn"](env.observation_space, env.unwrapped.action_space, seed=0, test_epsilon=1.0)
    for transition in play_episode(env, agent, Seeds.of(7, 0), deterministic=True):
        seen = Step(
            transition.observation[None], np.zeros((1, 2), np.float32), np.zeros((1, 1), np.float32), np.ones(1)
        )
        with without_random_actions(agent):
            assert np.array_equal(agent.act(seen, deterministic=True)[0][0], transition.action)
    assert agent.test_epsilon == 1.0
