"""The Python interface as the README shows it."""

import functools
import re
from argparse import Namespace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import Box

import offpcc
from offpcc.algorithms import SAC
from offpcc.algorithms.acting import ACTOR_FORMAT
from offpcc.algorithms.variants import RecurrentSAC
from offpcc.config import loading, registry
from offpcc.core import Step
from offpcc.data import Dataset
from offpcc.networks import Identity, Recurrent
from offpcc.training.build import build
from offpcc.training.evaluation import run_episodes
from offpcc.training.loggers import Loggers
from offpcc.training.run_dir import RunFolder
from offpcc.utils.errors import DataWarning, UserError

TINY = {"hidden_dims": (8,)}
MEMORY = functools.partial(Recurrent, hidden_dim=8, num_layers=1)
SMALL = {**TINY, "encoder": MEMORY}
README = (Path(offpcc.__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def agent_of(env="pendulum-p-v0", algo="sac", algorithm=TINY):
    """An agent that nobody trained."""
    return offpcc.Agent(offpcc.build(env, algo, algorithm=algorithm).algorithm)


def test_the_readmes_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(import offpcc.*?)```", README, re.DOTALL)[1]
    assert "learner.train()" in example
    names, short = {}, "train(num_epochs=1, num_steps_per_epoch=100, update_after=90, num_test_episodes_per_epoch=1)"
    exec(example.replace("train()", short), names)
    assert names["learner"].algorithm.gamma == 0.95, "the config counts"
    assert names["action"].shape == (1,)
    assert (tmp_path / "actor.pt").exists()


def test_the_readmes_example_of_own_data_runs(pendulum_file):
    example = re.search(r"```python\n(data = offpcc.Dataset.*?)```", README, re.DOTALL)[1]
    data = offpcc.qlearning_dataset(pendulum_file)
    names = {"offpcc": offpcc, "observations": data["observations"], "actions": data["actions"] / 2.0}
    names |= {"rewards": data["rewards"], "terminations": data["terminals"]}
    names["truncations"] = np.arange(len(data["rewards"])) % 200 == 199
    short = "train(num_epochs=1, num_steps_per_epoch=2, num_test_episodes_per_epoch=1)"
    exec(example.replace("train()", short), names)
    assert names["agent"].act(np.zeros(2, np.float32)).shape == (1,)


def test_build_train_act_save_load(tmp_path):
    learner = offpcc.build("pendulum-p-v0", "rsac", seed=1, algorithm=SMALL, buffer={"batch_size": 2})
    agent = learner.train(
        num_epochs=1, num_steps_per_epoch=250, update_after=190, updates_per_step=0.1, num_test_episodes_per_epoch=1
    )
    agent.save(tmp_path / "actor.pt")
    loaded = offpcc.Agent.load(tmp_path / "actor.pt")
    env = offpcc.make("pendulum-p-v0")
    for one in (agent, loaded):
        one.reset()
    observation, _ = env.reset(seed=3)
    for _ in range(20):
        action = agent.act(observation)
        np.testing.assert_array_equal(action, loaded.act(observation))
        observation, *_ = env.step(action)


def test_of_a_runs_folder_the_actor_in_it_is_named(tmp_path):
    with pytest.raises(UserError, match="is a folder, a pipe or a device"):
        offpcc.Agent.load(tmp_path)
    agent_of().save(tmp_path / "actor_best.pt")
    with pytest.raises(UserError, match=r"is a run's folder; give the actor's file in it, .*/actor_best\.pt$"):
        offpcc.Agent.load(tmp_path)


def test_configure_takes_the_place_of_what_was_set_before():
    offpcc.configure("test/template_short.gin", "SAC.alpha = 0.5", "ActorCritic.gamma = 0.9")
    offpcc.configure(None, "SAC.alpha = 0.25")
    algorithm = offpcc.build("pendulum-p-v0", "sac", algorithm=TINY).algorithm
    assert algorithm.gamma == 0.99 and algorithm.temperature().item() == pytest.approx(0.25)
    with pytest.raises(UserError, match=r"alfa"):
        offpcc.configure(None, "SAC.alfa = 0.25")


def test_any_function_may_be_a_learning_rate_or_build_an_encoder(tmp_path):
    options = {"lr": lambda update: 1e-3 / (update + 1), "encoder": lambda shape: Recurrent(shape, hidden_dim=4)}
    algorithm = offpcc.build("pendulum-p-v0", "sac", algorithm=TINY | options).algorithm
    offpcc.Agent(algorithm).save(tmp_path / "actor.pt")
    assert offpcc.Agent.load(tmp_path / "actor.pt").algorithm.actor_encoder.dim == 4


def test_observations_of_another_shape_are_refused():
    agent = agent_of()
    with pytest.raises(ValueError, match=r"\(3,\), but needs \(2,\); give one observation"):
        agent.act(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (spaces.MultiDiscrete([3, 4]), np.array([2, 1])),
        (spaces.MultiBinary((2, 3)), np.zeros((2, 3), np.int8)),
        (spaces.Discrete(5, start=2), 3),
    ],
    ids=str,
)
def test_choices_are_read_as_the_message_says(space, observation):
    class Choices(gymnasium.Env):
        observation_space, action_space = space, spaces.Box(-1.0, 1.0, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return observation, {}

    agent = agent_of(Choices, "sac")
    with pytest.raises(ValueError, match=r"give gymnasium.spaces.flatten\(space, it\)"):
        agent.act(observation)
    agent.act(spaces.flatten(space, observation))


def test_an_image_whose_axes_are_in_another_order_is_told():
    agent = agent_of("pendulum-img-v0", "csac")
    image = offpcc.make("pendulum-img-v0").reset(seed=1)[0]
    agent.act(image)
    with pytest.raises(ValueError, match=r"needs \(1, 40, 40\); .* give observation\.transpose\(2, 0, 1\)"):
        agent.act(image.transpose(1, 2, 0))


def test_an_agent_remembers_until_it_is_reset():
    agent = agent_of(algo="rsac", algorithm=SMALL)
    observation = np.array([0.6, 0.8], np.float32)
    first, second = agent.act(observation), agent.act(observation)
    assert (first != second).all()
    agent.reset()
    assert (agent.act(observation) == first).all()


READS_ACTIONS = {**TINY, "encoder": functools.partial(MEMORY, use_previous_action=True)}


class Torques(gymnasium.Wrapper):
    """Writes down the torques that a pendulum executes, from one start in all episodes."""

    def __init__(self, env, torques):
        super().__init__(env)
        self.torques = torques

    def reset(self, **given):
        return self.env.reset(seed=3)

    def step(self, action):
        result = self.env.step(action)
        self.torques.append(self.unwrapped.last_u)
        return result


def test_the_same_torques_wherever_an_actor_acts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    algorithm = offpcc.build("pendulum-v0", "rsac", algorithm=READS_ACTIONS).algorithm
    offpcc.Agent(algorithm).save("actor.pt")
    trained = []
    run_episodes(algorithm, [Torques(offpcc.make("pendulum-v0", scale_actions=True), trained)], [3])
    assert len(trained) == 200 and np.std(trained) > 0

    loop = re.search(r"\n(agent = offpcc\.Agent\.load.*?)```", README, re.DOTALL)[1]
    makers = {
        "gymnasium.make": lambda _: gymnasium.make("Pendulum-v1"),
        "offpcc.make": lambda _: offpcc.make("pendulum-v0"),
    }
    for name, maker in makers.items():
        torques = []
        shown = Namespace(Agent=offpcc.Agent, make=lambda _, maker=maker, into=torques: Torques(maker(_), into))
        exec(loop, {"offpcc": shown})
        assert torques == trained, name


@pytest.mark.parametrize("told_by", ["data", "gin", "environment", "nothing"])
def test_an_agent_that_learned_from_data_acts_in_the_units_of_the_data(tmp_path, told_by):
    random = np.random.default_rng(0)
    reach = {"data": 200.0, "gin": 200.0, "environment": 2.0, "nothing": 1.0}[told_by]
    columns = {"observations": random.normal(size=(40, 2)), "actions": random.uniform(-reach, reach, (40, 1))}
    columns |= {"rewards": np.zeros(40), "terminations": np.zeros(40, bool), "truncations": np.arange(40) % 10 == 9}
    data = offpcc.Dataset.from_arrays(**columns, action_range=(-200, 200) if told_by == "data" else None)
    if told_by == "gin":
        offpcc.configure(None, "dataset.action_range = (-200, 200)")
    env = "pendulum-p-v0" if told_by == "environment" else None
    algorithm = offpcc.build(env, "rbc", algorithm=READS_ACTIONS, dataset=data).algorithm
    offpcc.Agent(algorithm).save(tmp_path / "actor.pt")

    agent, memory = offpcc.Agent.load(tmp_path / "actor.pt"), None
    assert agent.action_space == gymnasium.spaces.Box(-reach, reach, (1,), np.float32)
    unit, reward = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
    for t in range(5):
        observation = random.normal(size=2).astype(np.float32)
        step = Step(observation[None], unit, reward, np.array([t == 0]))
        unit, memory = algorithm.act(step, memory, deterministic=True)
        assert agent.act(observation) == pytest.approx(reach * unit[0])


def test_an_agent_may_act_in_other_units(tmp_path):
    algorithm = offpcc.build("pendulum-p-v0", "sac", algorithm=TINY).algorithm
    offpcc.Agent(algorithm).save(tmp_path / "actor.pt")
    space = gymnasium.spaces.Box(np.array([-4.0]), np.array([2.0]), dtype=np.float64)
    observation = np.array([0.6, 0.8], np.float32)
    own = offpcc.Agent.load(tmp_path / "actor.pt").act(observation)
    other = offpcc.Agent.load(tmp_path / "actor.pt", action_space=space).act(observation)
    assert other == pytest.approx(-4.0 + 6.0 * (own / 2.0 + 1.0) / 2.0)
    assert own.dtype == np.float32 and other.dtype == np.float64
    with pytest.raises(UserError, match="but the agent's actions are Box"):
        offpcc.Agent(algorithm, gymnasium.spaces.Box(-1.0, 1.0, (2,)))
    with pytest.raises(UserError, match=r"needs the bounds.*Box\(-inf, inf"):
        offpcc.Agent(algorithm, gymnasium.spaces.Box(-np.inf, np.inf, (1,)))


def test_previous_action_and_reward_reach_the_networks():
    encoder = functools.partial(MEMORY, use_previous_action=True, use_previous_reward=True)
    algorithm = offpcc.build("pendulum-p-v0", "rsac", algorithm=SMALL | {"encoder": encoder}).algorithm
    agent, other = offpcc.Agent(algorithm), offpcc.Agent(algorithm)
    observation = np.array([0.6, 0.8], np.float32)
    assert (agent.act(observation) == other.act(observation)).all()
    assert (agent.act(observation, previous_reward=1.0) != other.act(observation, previous_reward=0.0)).all()


@pytest.mark.parametrize("is_fronted", [False, True])
def test_an_agent_that_reads_rewards_asks_for_them(is_fronted):
    reading = functools.partial(Identity, use_previous_reward=True)
    own = {"feature_extractor": reading} if is_fronted else {"use_previous_reward": True}
    encoder = functools.partial(MEMORY, **own)
    agent = agent_of(algo="rsac", algorithm=SMALL | {"encoder": encoder})
    observation = np.array([0.6, 0.8], np.float32)
    for _ in range(2):
        agent.act(observation)
        with pytest.raises(UserError, match=r"no previous_reward.*act\(observation, reward\), or call reset"):
            agent.act(observation)
        agent.act(observation, -1.5)
        agent.reset()
    other = agent_of(algo="rsac", algorithm=SMALL)
    assert (other.act(observation) != other.act(observation)).all(), "which reads none"


def test_a_plain_function_as_encoder_is_refused_where_it_would_be_lost(tmp_path):
    class Mine(torch.nn.Module):
        pass

    algorithm = offpcc.build("pendulum-p-v0", "sac", algorithm=TINY).algorithm
    algorithm._arguments["alpha"] = Mine()
    with pytest.raises(offpcc.utils.errors.UserError, match=r"offpcc\.configurable"):
        offpcc.Agent(algorithm).save(tmp_path / "actor.pt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "cell, segments, told",
    [
        ("gpt", {"segment_len": 64}, "looks back 128 steps, but learning sees 64 of them"),
        ("gpt", {"segment_len": 64, "burn_in": 20}, "GPT.context_length=42"),
        ("gpt", {"segment_len": 100, "burn_in": 28}, ""),
        ("gpt", {}, ""),
        ("lstm", {"segment_len": 3}, ""),
    ],
)
@pytest.mark.parametrize("name", ["rsac", "rsac_s"])
def test_a_window_beyond_what_learning_sees_is_told(name, cell, segments, told, recwarn):
    where = "shared_encoder" if name == "rsac_s" else "encoder"
    small = {**TINY, where: functools.partial(MEMORY, cell=cell)}
    offpcc.build("pendulum-p-v0", name, algorithm=small, buffer=segments)
    assert [told in str(warning.message) for warning in recwarn] == [True] * bool(told)


@pytest.mark.parametrize("name", ["seed", "threads", "dataset_fraction", "dataset_steps"])
def test_true_is_no_number(name):
    with pytest.raises(UserError, match=f"build.{name} is True; it has to be a"):
        build("pendulum-p-v0", "sac", **{name: True})


def test_flags_and_numbers_go_where_they_are_wanted():
    for binding in ("make.kwargs={'disable_env_checker': True}", "make.kwargs={'max_episode_steps': 7, 'g': 9.5}"):
        loading.load_gin_config(None, [binding])
        offpcc.make("Pendulum-v1").close()
    loading.load_gin_config(None, ["make.wrappers=[@TimeAwareObservation]", "TimeAwareObservation.normalize_time=True"])
    offpcc.make("Pendulum-v1").close()


@pytest.mark.parametrize("older", range(1, ACTOR_FORMAT))
def test_an_actor_of_an_older_format_is_refused_in_one_message(tmp_path, older):
    file = tmp_path / "actor.pt"
    torch.save({"kind": "actor", "format": older, "algorithm": {"class": "SAC"}, "weights": {}}, file)
    with pytest.raises(UserError) as caught:
        offpcc.Agent.load(file)
    assert caught.value.message == (
        f"{file} has format {older}, but this offpcc reads {ACTOR_FORMAT}; an older offpcc wrote it: use "
        f"commit 4e6c498, the last one that reads it, or train again"
    )


@pytest.mark.parametrize(
    "error, told",
    [
        (MemoryError(), UserError),
        (MemoryError("Unable to allocate 72.8 TiB for an array"), UserError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), UserError),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), UserError),
        (RuntimeError("the memory's state has another shape"), RuntimeError),
        (ZeroDivisionError("of a user's class"), ZeroDivisionError),
    ],
    ids=str,
)
def test_a_lack_of_memory_while_learning_is_told_and_no_other_error_is_taken_for_it(monkeypatch, error, told):
    learner = offpcc.build("pendulum-p-v0", "sac", algorithm={"hidden_dims": (4,)}, buffer={"batch_size": 2})

    def fail(batch):
        raise error

    monkeypatch.setattr(learner.algorithm, "update_networks", fail)
    with pytest.raises(told) as caught:
        learner.train(Loggers([]), num_epochs=1, num_steps_per_epoch=5, update_after=2, num_test_episodes_per_epoch=0)
    if told is UserError:
        assert "needs more memory than is free" in caught.value.message and "lower the sizes" in caught.value.message
    else:
        assert str(error) in str(caught.value)


def test_what_a_caller_does_to_an_action_changes_nothing_that_the_agent_reads():
    algorithm = RecurrentSAC(Box(-1, 1, (2,)), Box(-1, 1, (1,)), **READS_ACTIONS, seed=1)
    careful, careless = offpcc.Agent(algorithm), offpcc.Agent(algorithm)
    observations = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    for observation in observations:
        expected, action = careful.act(observation), careless.act(observation)
        assert np.array_equal(action, expected)
        action *= 0.0


def test_the_next_free_id_is_above_all_numbers_and_other_names_are_none(tmp_path):
    folder = RunFolder(tmp_path, "pendulum-p-v0", "sac", 1)
    for name in ("2", "7", "²", "٣", "notes"):
        (folder.siblings / name).mkdir(parents=True)
    assert folder.next_free_id() == 8


@pytest.mark.parametrize("steps, is_told", [(5, True), (6, False)])
def test_an_actor_that_only_imitates_is_told_in_python(steps, is_told, recwarn):
    data = Dataset.from_arrays(
        observations=np.linspace(-1.0, 1.0, 40, dtype=np.float32)[:, None],
        actions=np.linspace(-0.5, 0.5, 40, dtype=np.float32)[:, None],
        rewards=np.zeros(40, np.float32),
        terminations=np.arange(40) % 10 == 9,
        truncations=np.zeros(40, bool),
        action_range=(-1.0, 1.0),
    )
    learner = offpcc.build(None, "cql", dataset=data, algorithm={"hidden_dims": (8,), "bc_steps": 10})
    recwarn.clear()
    learner.train(Loggers([]), num_epochs=2, num_steps_per_epoch=steps)
    found = [(warning.category, str(warning.message)) for warning in recwarn]
    assert [category for category, _ in found] == [DataWarning] * is_told
    assert all(text.startswith("the actor will only imitate and never maximise Q") for _, text in found)


@pytest.mark.parametrize("normalizes", [None, True, False])
def test_an_actor_of_a_class_without_kwargs_is_loaded(normalizes, tmp_path, monkeypatch):
    """What it gives to its base class cannot be given to it again."""
    monkeypatch.setattr(registry, "REGISTRY", dict(registry.REGISTRY))

    class Plain(SAC):
        normalizes_recorded = True

        def __init__(self, observation_space, action_space, *, gamma=0.9, device="cpu", seed=0):
            given = {"hidden_dims": (8,), "normalize_observations": normalizes, "gamma": gamma / 2}
            super().__init__(observation_space, action_space, device=device, seed=seed, **given)

    Plain.__name__ = Plain.__qualname__ = f"Plain{normalizes}"
    offpcc.configurable(Plain)
    space = Box(-1.0, 1.0, (3,), np.float32)
    algorithm = Plain(space, Box(-2.0, 2.0, (1,), np.float32))
    algorithm.expect_recorded_data()
    arguments = algorithm.actor_file()["algorithm"]["arguments"]
    assert set(arguments) == {"observation_space", "action_space", "gamma", "device", "seed"}
    offpcc.Agent(algorithm).save(tmp_path / "actor.pt")
    loaded = offpcc.Agent.load(tmp_path / "actor.pt").algorithm
    assert type(loaded) is Plain and loaded.gamma == 0.45
    assert (loaded.normalization is None) == (normalizes is False)


class Faulty(Identity):
    """A network of a user's, whose code is at fault."""

    def __init__(self, shape):
        super().__init__(shape)
        self.dim = len(shape.action_dim)


def test_a_type_error_in_a_users_network_is_told_with_its_line_and_not_as_a_bindings():
    with pytest.raises(UserError) as caught:
        build("pendulum-v0", "sac", algorithm={"encoder": Faulty})
    line = Faulty.__init__.__code__.co_firstlineno + 2
    assert f"SAC cannot be built: TypeError: object of type 'int' has no len() ({__file__}:{line})" in str(caught.value)
    assert "bindings" not in str(caught.value) and isinstance(caught.value.__cause__, TypeError)


@offpcc.configurable
class WithoutWidth(offpcc.networks.Encoder):
    def __init__(self, space, width):
        super().__init__()
        self.dim = width


def test_a_missing_argument_of_a_users_network_is_told_with_its_class():
    with pytest.raises(UserError, match=r"WithoutWidth: missing a required argument: 'width'; bind it"):
        build("pendulum-v0", "sac", algorithm={"encoder": WithoutWidth})


@pytest.mark.parametrize("encoder", [lambda: None, 3.0, functools.partial(Identity, no_such=1)])
def test_a_type_error_of_a_binding_is_told_as_a_bindings(encoder):
    with pytest.raises(UserError, match=r"SAC cannot be built: .*correct its bindings$|SAC\.encoder is 3\.0"):
        build("pendulum-v0", "sac", algorithm={"encoder": encoder})
