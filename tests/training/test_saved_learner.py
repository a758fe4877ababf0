"""`Experiment.save` and `offpcc.load`: a whole learner in one file."""

import functools
import sys

import gin
import gymnasium
import numpy as np
import pytest
import torch
from exact_resume import assert_same
from runs import quiet_fit

import offpcc
from offpcc.data import ReplayBuffer
from offpcc.data.buffers.base import BufferBase
from offpcc.envs.wrapper_chain import levels
from offpcc.envs.wrappers import Flicker
from offpcc.networks import Recurrent
from offpcc.training.checkpoint import read_checkpoint
from offpcc.training.experiment import CHECKPOINT_FORMAT, Experiment
from offpcc.training.loggers import Loggers
from offpcc.utils.errors import DataWarning, UserError
from offpcc.utils.tensor_files import read_tensors, write_tensors

ENV = "pendulum-p-v0"
SMALL = {"hidden_dims": (8,), "seed": 3}
MEMORY = {**SMALL, "encoder": functools.partial(Recurrent, hidden_dim=4, num_layers=1), "buffer": {"batch_size": 4}}
SHORT = {"num_steps_per_epoch": 210, "update_after": 190, "updates_per_step": 0.1, "num_test_episodes_per_epoch": 1}


@pytest.fixture(scope="module")
def swings():
    return offpcc.collect("pendulum-v0", None, steps=450)


class Unregistered(ReplayBuffer):
    """A buffer that gin does not know."""


class Plain(gymnasium.Wrapper):
    """A wrapper that gin does not know."""


def lr_schedule(update):
    return 1e-3


RATES = {"slow": 1e-4}


@offpcc.configurable
class NamedRate:
    """A learning rate of a table, which may change after a learner was saved."""

    def __init__(self, name):
        self.rate = RATES[name]

    def __call__(self, update):
        return self.rate


def make_env():
    return gymnasium.make("pendulum-p-v0")


def probabilities(learner):
    """Return the probability of `Flicker` in the environment of training and in that of tests."""
    environments = [learner.interaction.environments.envs[0].env, learner.tests.make_env()]
    return [next(one._probability for one in levels(env) if isinstance(one, Flicker)) for env in environments]


def train(learner, num_epochs, **settings):
    learner.train(Loggers([]), num_epochs=num_epochs, **settings)
    return learner


def state(learner):
    state = learner.state_dict()
    rows = [{name: value for name, value in row.items() if "time" not in name} for row in state["loop"]["rows"]]
    return {**state, "buffer": BufferBase.state_dict(learner.buffer), "rows": rows}


CASES = {
    "sac": lambda data: offpcc.SAC(ENV, **SMALL, normalize_observations=True),
    "memory": lambda data: offpcc.RTD3(ENV, **MEMORY),
    "environments": lambda data: offpcc.RSAC(ENV, **MEMORY, environments={"num_envs": 3}),
    "function": lambda data: offpcc.DDPG(make_env, **SMALL),
    "recorded": lambda data: offpcc.RIQL(ENV, **MEMORY, dataset=data),
}


@pytest.mark.parametrize("case", CASES)
def test_a_saved_learner_goes_on_exactly(case, tmp_path, swings):
    given = {"function": {"env": make_env}, "recorded": {"dataset": swings}}.get(case, {})
    short = {**SHORT, "num_steps_per_epoch": 5, "updates_per_step": 0.5} if case == "recorded" else SHORT
    learner = train(CASES[case](swings), 1, **short)
    learner.save(tmp_path / "learner.pt", buffer=case != "recorded")
    train(learner, 3)
    offpcc.configure(None, "SAC.gamma = 0.5", "Recurrent.hidden_dim = 5", "train.update_after = 7")
    bindings = gin.config_str()
    again = offpcc.load(tmp_path / "learner.pt", **given)
    assert gin.config_str() == bindings
    train(again, 3)
    assert learner.loop.num_updates > 5
    assert_same(state(learner), state(again))
    again.save(tmp_path / "again.pt")
    assert offpcc.load(tmp_path / "again.pt", **given).loop.epoch == 3


def test_other_learning_rates_may_be_given(tmp_path):
    learner = train(offpcc.SAC(ENV, **SMALL, lr=1e-3), 1, **SHORT)
    learner.save(tmp_path / "learner.pt", buffer=True)
    again = offpcc.load(tmp_path / "learner.pt", algorithm={"lr": 1e-5, "alpha_lr": lr_schedule})
    assert_same(learner.algorithm.state_dict(), again.algorithm.state_dict())
    assert again.algorithm.actor_optimizer.rates == [1e-5]
    assert again.algorithm.alpha_optimizer.rates == [lr_schedule]
    given = offpcc.load(tmp_path / "learner.pt", algorithm={"lr": 1e-3})
    assert_same(state(train(learner, 2)), state(train(given, 2)))
    slower = offpcc.load(tmp_path / "learner.pt", algorithm={"lr": 1e-5})
    slower.save(tmp_path / "slower.pt", buffer=True)
    other = offpcc.load(tmp_path / "slower.pt")
    assert_same(state(train(slower, 2)), state(train(other, 2)))
    own, others = (next(one.algorithm.actor.parameters()) for one in (learner, slower))
    assert not torch.equal(own, others)
    for wrong, told in {
        ("hidden_dims", (9,)): "takes learning rates, such as lr, but not hidden_dims",
        ("critic_lr", 1.0): "critic_lr",
        ("lr", -1.0): "lr is -1.0",
    }.items():
        with pytest.raises(UserError, match=told):
            offpcc.load(tmp_path / "learner.pt", algorithm=dict([wrong]))
    with pytest.raises(UserError, match=r'algorithm=\{"lr": ...\}'):
        offpcc.load(tmp_path / "learner.pt", lr=1e-3)


def test_without_the_buffer_the_agent_and_its_counts_are_kept(tmp_path, capsys):
    learner = train(offpcc.SAC(ENV, **SMALL), 1, **SHORT)
    learner.save(tmp_path / "learner.pt")
    assert (tmp_path / "learner.pt").stat().st_size < 100_000
    again = offpcc.load(tmp_path / "learner.pt")
    assert capsys.readouterr().err == ""
    assert_same(learner.algorithm.state_dict(), again.algorithm.state_dict())
    assert len(again.buffer) == 0 and again.loop.step == 210
    train(again, 2)
    assert again.loop.step == 420 and again.loop.num_updates > learner.loop.num_updates
    seen, began = again.buffer.state_dict()["chunks"][0][0], learner.buffer.state_dict()["chunks"][0][0]
    assert not torch.equal(seen[:20], began[:20]), "the first episodes are played again"


def test_numbers_of_numpy_are_saved_as_pythons(tmp_path):
    settings = {
        name: np.float32(value) if isinstance(value, float) else np.int64(value) for name, value in SHORT.items()
    }
    learner = offpcc.SAC(ENV, hidden_dims=(8,), seed=np.int64(3), threads=np.int64(1), lr=np.float64(1e-3))
    learner.train(Loggers([]), num_epochs=np.int64(1), stop_return=np.float32(9e9), **settings)
    learner.save(tmp_path / "learner.pt")
    assert train(offpcc.load(tmp_path / "learner.pt"), 2).loop.step == 420


@offpcc.configurable
class Halved(Flicker):
    """A wrapper with a parameter of its parent and one of its own."""

    def __init__(self, env, factor=0.5, **kwargs):
        super().__init__(env, **kwargs)
        self.factor = factor


@pytest.mark.parametrize("given", ["gin", "python", "partial and gin", "child"])
def test_wrappers_keep_the_arguments_that_the_learner_was_built_with(given, tmp_path):
    wrappers, bindings = {
        "gin": ([], ["make.wrappers = [@Flicker]", "Flicker.probability = 0.25"]),
        "python": ([functools.partial(Flicker, probability=0.25)], []),
        "partial and gin": ([functools.partial(Halved, factor=2.0)], ["Halved.probability = 0.25"]),
        "child": ([Halved], ["Flicker.probability = 0.25"]),
    }[given]
    offpcc.configure(None, *bindings)
    learner = offpcc.SAC("pendulum-v0", **SMALL, make={"wrappers": wrappers} if wrappers else None)
    offpcc.configure(None, "Flicker.probability = 0.75", "Halved.probability = 0.75")
    assert probabilities(train(learner, 1, **SHORT)) == [0.25, 0.25]
    learner.save(tmp_path / "learner.pt", buffer=True)
    offpcc.configure(None)
    again = offpcc.load(tmp_path / "learner.pt")
    assert probabilities(again) == [0.25, 0.25] and again.config == learner.config
    assert_same(state(train(learner, 2)), state(train(again, 2)))


class Counter(Loggers):
    """A logger that counts epochs."""

    epochs = 0

    def __init__(self, folder):
        super().__init__([])

    def epoch(self, row):
        Counter.epochs += 1


def test_loggers_are_given_again(tmp_path):
    learner = offpcc.SAC(ENV, **SMALL, loggers=[Counter])
    learner.save(tmp_path / "learner.pt")
    offpcc.load(tmp_path / "learner.pt", loggers=[Counter]).train(num_epochs=1, **SHORT)
    assert Counter.epochs == 1


def test_settings_of_train_last_to_the_next_call():
    learner = train(offpcc.SAC(ENV, **SMALL), 1, **SHORT)
    train(learner, 2)
    once = train(offpcc.SAC(ENV, **SMALL), 2, **SHORT)
    assert (learner.loop.step, learner.loop.num_updates) == (420, once.loop.num_updates)
    with pytest.raises(UserError, match="num_test_envs"):
        train(learner, 3, num_test_envs=0)
    train(learner, 3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: offpcc.SAC(ENV, **SMALL, lr=lr_schedule), r"SAC\.lr is .*, which cannot be saved"),
        (lambda: offpcc.SAC(ENV, **SMALL, buffer_class=Unregistered), r"build\.buffer_class"),
        (
            lambda: offpcc.SAC(ENV, **SMALL, make={"wrappers": [Plain]}),
            r"make\.wrappers holds the class Plain, .*decorate each",
        ),
    ],
)
def test_what_cannot_be_saved_is_named(make, words, tmp_path):
    with pytest.warns(DataWarning, match=rf"can be saved, but not the whole learner, .*: .*{words}"):
        learner = make()
    with pytest.raises(UserError, match=words):
        learner.save(tmp_path / "learner.pt")
    assert not any(tmp_path.iterdir())


def test_a_learner_of_parts_that_were_put_together_is_not_saved(tmp_path):
    learner = offpcc.SAC(ENV, **SMALL)
    parts = Experiment(learner.algorithm, learner.buffer, None, None, learner.loop)
    with pytest.raises(UserError, match=r"only a learner of offpcc\.build, or of a constructor"):
        parts.save(tmp_path / "learner.pt")
    with pytest.raises(UserError, match=r"nowhere/learner\.pt cannot be written"):
        learner.save("/proc/nowhere/learner.pt")


def test_what_is_missing_or_does_not_fit_is_named(tmp_path, swings):
    file = tmp_path / "learner.pt"
    offpcc.DDPG(make_env, **SMALL).save(file)
    with pytest.raises(UserError, match=r"a function made the environment, make_env; give it again, by env="):
        offpcc.load(file)
    assert offpcc.load(file, ENV).title == f"{ENV} ddpg"
    with pytest.raises(UserError, match=r"learner\.pt does not fit .* shape .*; .*, or give the environment"):
        offpcc.load(file, "pendulum-v0")
    offpcc.BC(dataset=swings, **SMALL).save(file)
    with pytest.raises(UserError, match=r"the learner learns from .*; give the data again, by dataset="):
        offpcc.load(file)
    with pytest.raises(UserError, match=r"the saved buffer held .*, but this one holds"):
        offpcc.load(file, dataset=offpcc.collect("pendulum-v0", None, steps=210, seed=1))


def test_recorded_data_are_told_by_their_content_and_not_by_their_name(tmp_path):
    """A learner of arrays goes on from the file in which another process finds them."""
    numbers = np.random.default_rng(0)
    episodes = [(numbers.normal(size=(26, 2)), numbers.uniform(-2, 2, (25, 1)), np.zeros(25), False) for _ in range(4)]
    data, file = offpcc.Dataset.from_episodes(episodes, action_range=(-2.0, 2.0)), tmp_path / "learner.pt"
    data.save(tmp_path / "log (2).hdf5")
    learner = train(offpcc.RIQL(dataset=data, **MEMORY), 1, num_steps_per_epoch=5)
    learner.save(file)
    again = offpcc.load(file, dataset=tmp_path / "log (2).hdf5")
    assert_same(state(train(again, 2))["algorithm"], state(train(learner, 2))["algorithm"])
    episodes[0][2][7] += 1.0  # a reward
    with pytest.raises(UserError, match=r"the saved buffer held data \(.*, but this one holds data \("):
        offpcc.load(file, dataset=offpcc.Dataset.from_episodes(episodes, action_range=(-2.0, 2.0)))


def test_a_file_of_another_kind_is_named_with_what_reads_it(tmp_path):
    learner, file = offpcc.SAC(ENV, **SMALL), tmp_path / "file.pt"
    offpcc.Agent(learner.algorithm).save(file)
    with pytest.raises(UserError, match=r"is not of the kind 'learner' but 'actor'; offpcc\.Agent\.load reads it"):
        offpcc.load(file)
    learner.save(file)
    with pytest.raises(UserError, match=r"is not of the kind 'actor' but 'learner'; offpcc\.load reads it"):
        offpcc.Agent.load(file)
    content = read_tensors(file, "learner", CHECKPOINT_FORMAT)
    for changed, words in (
        ({"format": CHECKPOINT_FORMAT + 1}, "a newer offpcc wrote it"),
        ({"spec": {}}, "does not have the content of a learner"),
        ({"algorithm": {}}, r"does not fit .*algorithm has no"),
        ({"loop": {"a": 1}}, r"does not fit .*\(loop has no"),
        ({"threads": "x"}, "does not have the content of a learner"),
        ({"asked": (1, 2, 3)}, "does not have the content of a learner"),
        ({"config": "import antigravity\n"}, "imports nothing"),
        ({"spec": {**content["spec"], "env": "antigravity:Thing-v0"}}, "Thing"),
        ({"spec": {**content["spec"], "algorithm": {"lr": {"partial": 3}}}}, "does not describe a learner"),
        ({"settings": {"num_test_envs": 0}}, "num_test_envs"),
        ({"settings": {"logger": 0}}, "'logger'"),
    ):
        write_tensors(file, {**content, **changed})
        with pytest.raises(UserError, match=words):
            offpcc.load(file)
    assert "antigravity" not in sys.modules
    file.write_bytes(file.read_bytes()[:-200] + file.read_bytes()[-199:])
    with pytest.raises(UserError, match=r"is damaged|is no learner of offpcc"):
        offpcc.load(file)


def test_an_error_of_a_class_of_the_users_keeps_its_text(tmp_path, monkeypatch):
    file = tmp_path / "learner.pt"
    offpcc.SAC(ENV, **SMALL, lr=NamedRate("slow")).save(file)
    assert offpcc.load(file)
    monkeypatch.delitem(RATES, "slow")
    with pytest.raises(KeyError, match=r"^'slow'"):
        offpcc.load(file)


def test_a_learner_that_was_to_go_online_is_loaded_to_learn_from_data_alone(tmp_path):
    data = offpcc.collect("pendulum-v0", None, steps=400)
    given = {"environments": {"num_envs": 2}, "then_env_steps": 5_000}
    offpcc.IQL("pendulum-v0", dataset=data, hidden_dims=(8,), **given).save(tmp_path / "learner.pt")
    again = offpcc.load(tmp_path / "learner.pt", "pendulum-v0", dataset=data, then_env_steps=0)
    assert again.online is None
    assert offpcc.load(tmp_path / "learner.pt", "pendulum-v0", dataset=data).online.interaction.num_envs == 2


# The folder of a run --------------------------------------------------------------------------------------------------


SIZES = {"hidden_dims": (8,), "hidden_dim": 4, "num_layers": 1}
FEW = {"num_steps_per_epoch": 5, "updates_per_step": 0.5, "num_test_episodes_per_epoch": 1}
MODEL = ("DynamicsModel.hidden_dims = (8,)", "DynamicsModel.num_members = 2", "DynamicsModel.num_elites = 1",
         "ModelTraining.max_epochs = 2", "Imagination.every = 20", "Imagination.train_every = 100")  # fmt: skip
TINY = {"algorithm": {"hidden_dims": (8,)}}
WITH_MEMORY = {"algorithm": SIZES, "buffer": {"batch_size": 4}}
RUNS = {
    "normalised": lambda data: (ENV, "sac", {"algorithm": {"hidden_dims": (8,), "normalize_observations": True}}),
    "memory": lambda data: (ENV, "rtd3", {**WITH_MEMORY, "environments": {"num_envs": 2}}),
    "function": lambda data: (make_env, "ddpg", TINY),
    "recorded": lambda data: (ENV, "riql", {**WITH_MEMORY, "dataset": data}),
    "then online": lambda data: (ENV, "iql", {**TINY, "dataset": data, "then_env_steps": 210}),
    "model": lambda data: ("pendulum-v0", "mbpo", TINY),
}


def files_of(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def fit(folder, env, algo, given, num_epochs, **more):
    short = {**SHORT, "num_epochs": num_epochs}
    if "environments" in given:  # epochs end with an episode, because updates of a memory come at the end of one
        short["num_steps_per_epoch"] = 400
    if "dataset" in given and "then_env_steps" not in given:
        short = {**FEW, "num_epochs": num_epochs}
    elif "dataset" in given:
        short = {**FEW, "num_epochs": 1, "num_steps_per_epoch": 70}
    spec = offpcc.RunSpec.make(env, algo, seed=3, training=short, video=False, **given)
    return quiet_fit(spec, folder, **more).folder


@pytest.mark.parametrize("case", RUNS)
def test_the_learner_of_a_folder_goes_on_exactly(case, tmp_path, swings):
    env, algo, given = RUNS[case](swings)
    again_given = {"env": env if callable(env) else None, "dataset": given.get("dataset")}
    if case == "model":
        offpcc.configure(None, *MODEL)
    if case == "then online":
        offpcc.configure(None, "OfflineToOnline.warm_up_steps = 20")
    run = fit(tmp_path / "run", env, algo, given, 1)
    before = files_of(run)
    bindings = gin.config_str()
    learner = offpcc.load(run, **again_given)
    assert learner.train().algorithm is learner.algorithm and learner.loop.epoch == len(learner.loop.rows)
    if case == "then online":
        assert learner.is_online and learner.loop.epoch == 4
        given = {**given, "then_env_steps": 280}
        learner = offpcc.load(f"{run}/", **again_given, then_env_steps=280)
        learner.train(Loggers([]))
    else:
        train(learner, 3)
    assert gin.config_str() == bindings and files_of(run) == before
    fit(run, env, algo, given, 3, resume=True)
    assert learner.loop.num_updates > 5
    assert_same(state(offpcc.load(run, **again_given)), state(learner))
    learner.save(tmp_path / "learner.pt", buffer=True)
    assert_same(state(offpcc.load(tmp_path / "learner.pt", **again_given)), state(learner))


def test_the_learner_of_a_folder_that_began_with_networks_of_another(tmp_path, swings):
    source = fit(tmp_path / "source", ENV, "iql", {**TINY, "dataset": swings}, 1)
    on = {**TINY, "dataset": swings, "then_env_steps": 70, "start_from": source}
    offpcc.configure(None, "OfflineToOnline.warm_up_steps = 20")
    tuned = fit(tmp_path / "tuned", ENV, "iql", {**TINY, "dataset": swings, "init": source}, 1)
    again = fit(tmp_path / "on", ENV, "iql", on, 1)
    for folder, is_online in ((tuned, False), (again, True)):
        learner = offpcc.load(folder, dataset=swings)
        assert learner.is_online is is_online
        assert_same(learner.algorithm.state_dict(), read_checkpoint(folder / "checkpoint.pt")["algorithm"])
    learner = train(offpcc.load(tuned, dataset=swings), 2)
    fit(tuned, ENV, "iql", {**TINY, "dataset": swings, "init": source}, 2, resume=True)
    assert_same(state(offpcc.load(tuned, dataset=swings)), state(learner))


def test_what_is_missing_of_a_folder_is_named(tmp_path, swings, capsys):
    env, algo, given = RUNS["recorded"](swings)
    run = fit(tmp_path / "run", env, algo, given, 1)
    fit(run, env, algo, given, 2, resume=True)
    with pytest.raises(UserError, match=r"the learner learns from .*; give the data again, by dataset="):
        offpcc.load(run)
    with pytest.raises(UserError, match=r"but this one holds"):
        offpcc.load(run, dataset=offpcc.collect("pendulum-v0", None, steps=210, seed=1))
    with pytest.raises(UserError, match=r"is a folder without a checkpoint; give the folder of a run, such as"):
        offpcc.load(tmp_path)
    with pytest.raises(UserError, match=r"checkpoint\.pt is not of the kind 'learner' but 'checkpoint'; offpcc\.load"):
        offpcc.load(run / "checkpoint.pt")
    made = fit(tmp_path / "made", make_env, "ddpg", TINY, 1)
    with pytest.raises(UserError, match=r"a function made the environment, make_env; give it again, by env="):
        offpcc.load(made)
    capsys.readouterr()
    (run / "checkpoint.pt").write_bytes(b"x" * 1000)
    assert offpcc.load(run, dataset=swings).loop.epoch == 1
    assert "the run continues from the checkpoint before it, at step 5" in capsys.readouterr().err
    (run / "run.json").write_text("{}")
    with pytest.raises(UserError, match=r"run\.json does not have the content of a learner"):
        offpcc.load(run, dataset=swings)
    with pytest.raises(UserError, match=r"held no recorded data, but .*: leave the dataset out, or"):
        offpcc.load(made, make_env, dataset=swings)
    (made / "checkpoint.pt").unlink()
    with pytest.raises(UserError, match=r"without a checkpoint; its actor, .* is offpcc\.load_run\(.*\)\.agent\(\)"):
        offpcc.load(made)
