"""What Python users call, beyond the README: functions for environments, constructors, and what a process keeps."""

import concurrent.futures
import contextlib
import copy
import dataclasses
import functools
import importlib.util
import inspect
import json
import os
import pickle
import pydoc
import random
import re
import signal
import subprocess
import sys
import threading
import warnings

import gin
import gymnasium
import h5py
import numpy as np
import pytest
import torch
from exact_resume import assert_same
from runs import quiet_fit

import offpcc
from offpcc.algorithms import ALGORITHMS
from offpcc.algorithms.optim import LinearDecay
from offpcc.cli.options import OPTIONS, TAKES
from offpcc.config import loading
from offpcc.config.registry import configurable
from offpcc.data import PrioritizedReplayBuffer, ReplayBuffer
from offpcc.data.checks.check import NOTICES
from offpcc.data.datasets.load import load_dataset
from offpcc.envs.faults import EnvironmentFault
from offpcc.networks import Identity, Recurrent
from offpcc.networks.cells import LRU
from offpcc.training import constructors
from offpcc.training import fit as fit_module
from offpcc.training.analysis.run_statistics import mean_interval
from offpcc.training.callbacks import Callback
from offpcc.training.checkpoint import read_checkpoint
from offpcc.training.fit import fit
from offpcc.training.loggers import Loggers
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import RunSpec, torch_settings
from offpcc.utils import signals
from offpcc.utils.errors import DataWarning, UserError, in_python
from offpcc.utils.locks import FolderLock

SMALL = {"hidden_dims": (8,)}
SHORT = {"num_steps_per_epoch": 210, "update_after": 200, "num_test_episodes_per_epoch": 1}


class Drift(gymnasium.Env):
    """A point that drifts, for 40 steps."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-3.0, 3.0, (1,), np.float32)

    def __init__(self, start=0.0):
        self.start = start

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32) + np.float32(self.start), 0
        return self.x.copy(), {}

    def step(self, action):
        self.t += 1
        self.x = np.clip(self.x + 0.1 * float(action[0]), -10.0, 10.0).astype(np.float32)
        return self.x.copy(), -float(np.abs(self.x).sum()), False, self.t == 40, {}


def make_drift(start=0.0):
    return Drift(start)


def weights(experiment):
    return {name: value.clone() for name, value in experiment.algorithm.actor.state_dict().items()}


def assert_same_weights(one, two):
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


def train(experiment, **given):
    experiment.train(Loggers([]), **{"num_epochs": 1, **SHORT, **given})
    return experiment


# Functions for environments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "label"),
    [
        (lambda: gymnasium.make("pendulum-p-v0"), "pendulum-p-v0"),
        (functools.partial(Drift, start=0.5), "Drift"),
        (Drift, "Drift"),
        (make_drift, "make_drift"),
    ],
    ids=["lambda", "partial", "class", "function"],
)
def test_a_function_or_a_class_makes_the_environment(env, label):
    learner = train(offpcc.build(env, "sac", algorithm=SMALL))
    assert learner.title == f"{label} sac"
    assert learner.loop.num_updates == 10
    assert learner.loop.rows[0]["test/return"] is not None


def test_a_function_trains_with_the_bytes_of_the_name():
    by_name = train(offpcc.build("pendulum-p-v0", "sac", seed=3, algorithm=SMALL))
    by_function = train(offpcc.build(lambda: gymnasium.make("pendulum-p-v0"), "sac", seed=3, algorithm=SMALL))
    assert_same_weights(weights(by_name), weights(by_function))


@pytest.mark.parametrize("algo", ["sac", "rsac"])
def test_a_run_of_a_function_resumes_exactly(tmp_path, algo):

    def run(folder, num_epochs, resume=False):
        offpcc.configure("test/template_short.gin", f"train.num_epochs = {num_epochs}", "train.update_after = 100",
                         "train.num_steps_per_epoch = 110", "train.num_test_episodes_per_epoch = 1")  # fmt: skip
        quiet_fit(RunSpec.make(Drift, algo, seed=1), tmp_path / folder, resume=resume)
        return tmp_path / folder

    straight = run("straight", 2)
    run("halves", 1)
    halves = run("halves", 2, resume=True)
    assert json.loads((halves / "run.json").read_text())["env"] == "Drift"
    assert (straight / "actor_last.pt").read_bytes() == (halves / "actor_last.pt").read_bytes()
    with pytest.raises(UserError, match=r"was made with env Drift, but here it is make_drift"):
        fit(RunSpec.make(make_drift, algo, seed=1), halves, resume=True)


def test_the_folder_of_a_function_has_its_name(tmp_path):
    spec = RunSpec.make(make_drift, "sac", seed=4, results=tmp_path)
    assert fit_module.run_folder(spec).path == tmp_path / "make_drift" / "sac" / "4"


def test_worker_processes_make_what_a_function_makes():
    four = {"num_envs": 2, "worker_processes": True}
    workers = offpcc.build(make_drift, "sac", seed=3, algorithm=SMALL, environments=four)
    local = offpcc.build(make_drift, "sac", seed=3, algorithm=SMALL, environments={"num_envs": 2})
    try:
        assert_same_weights(weights(train(workers)), weights(train(local)))
    finally:
        workers.close()


def test_a_function_that_cannot_be_pickled_is_refused_for_worker_processes():
    lock = threading.Lock()
    with pytest.raises(UserError, match=r"cannot be sent to worker processes.*at the top of a module"):
        offpcc.build(lambda: Drift(lock.locked()), "sac", environments={"worker_processes": True})


@pytest.mark.parametrize("call", [offpcc.make, lambda env: offpcc.build(env, "sac")], ids=["make", "build"])
def test_a_made_environment_is_refused_with_the_function_that_makes_it(call):
    with pytest.raises(UserError, match=r'Pendulum-v1 is made already.*lambda: gymnasium.make\("Pendulum-v1"\)'):
        call(gymnasium.make("Pendulum-v1"))
    with pytest.raises(UserError, match=r"Drift is made already.*lambda: Drift\(\)"):
        call(Drift())
    with pytest.raises(UserError, match=r'environments=\{"num_envs": N\}'):
        call(gymnasium.make_vec("Pendulum-v1", 2))
    with pytest.raises(UserError, match=r"an environment cannot be 3; give a name"):
        call(3)


def test_a_function_that_makes_no_new_environment_is_refused():
    made = Drift()
    with pytest.raises(UserError, match=r"the same environment object again.*lambda: Drift\(\)"):
        offpcc.build(lambda: gymnasium.wrappers.TimeLimit(made, 9), "sac")
    with pytest.raises(UserError, match=r"the function returned 7, which is not a gymnasium.Env"):
        offpcc.build(lambda: 7, "sac")
    with pytest.raises(UserError, match=r"a vector environment.*gymnasium.make\(.Pendulum-v1.\).*num_envs"):
        offpcc.build(lambda: gymnasium.make_vec("Pendulum-v1", 2), "sac")

    def broken():
        raise ValueError("no such body")

    with pytest.raises(UserError, match=r"broken cannot be made: ValueError: no such body"):
        offpcc.build(broken, "sac")
    with pytest.raises(UserError, match=r"make_drift does not take the arguments stop"):
        offpcc.make(make_drift, kwargs={"stop": 1})
    with pytest.raises(UserError, match=r"make_drift cannot be rendered as 'rgb_array'.*add an argument render_mode"):
        offpcc.make(make_drift, render_mode="rgb_array")


def test_a_run_of_a_function_records_itself(tmp_path):
    offpcc.configure("test/template_short.gin", "train.num_epochs = 1", "train.num_steps_per_epoch = 80")
    spec = RunSpec.make(Drift, "sac", save_dataset=tmp_path / "drift.hdf5")
    quiet_fit(spec, tmp_path / "run")
    assert len(offpcc.qlearning_dataset(tmp_path / "drift.hdf5")["rewards"]) == 80


def test_a_learner_trains_in_one_call_at_a_time(monkeypatch):
    learner = offpcc.build("pendulum-v0", "sac", algorithm=SMALL)

    def refused(_):
        with pytest.raises(UserError, match=r"this learner trains already, in another thread"):
            learner.train(num_epochs=9)

    def again(run):
        refused(run)
        copy.deepcopy(learner).train(num_epochs=1)  # a copy is another learner

    short = {"num_steps_per_epoch": 20, "num_test_episodes_per_epoch": 0, "update_after": 10}
    learner.train(num_epochs=1, callbacks=[again], **short)
    monkeypatch.setattr(learner, "_check_start", refused)  # while the other call is not yet in its loop
    learner.train(num_epochs=2)
    assert learner.loop.epoch == 2


def test_a_binding_that_a_class_defined_again_no_longer_takes_is_named():
    @configurable
    class Constant:
        def __init__(self, rate=1e-3, floor=0.0):
            self.rate = max(rate, floor)

        def __call__(self, num_updates):
            return self.rate

    offpcc.configure(None, "SAC.lr = @Constant()", "Constant.floor = 1e-4")
    Old = Constant

    @configurable
    class Constant(Old):
        def __init__(self, rate=1e-3):
            self.rate = rate

    fault = "Constant got an unexpected keyword argument 'floor'; the known names are rate; correct its bindings"
    with pytest.raises(UserError, match=f"^SAC cannot be built: {fault}$"):
        offpcc.build("pendulum-v0", "sac", algorithm=SMALL)


# Defaults -------------------------------------------------------------------------------------------------------------


def test_training_without_settings_has_a_default_length_and_says_so(capsys, monkeypatch):
    monkeypatch.setattr("offpcc.training.experiment.DEFAULT_EPOCHS", 1)
    learner = offpcc.build("pendulum-v0", "sac", algorithm=SMALL)
    learner.train(num_steps_per_epoch=20, num_test_episodes_per_epoch=0, update_after=10)
    told = capsys.readouterr().out
    assert "num_epochs is not given, so the run has 1 epoch of 20 steps: 20 steps, the first 10 at random" in told
    assert learner.loop.num_updates == 10
    train(learner, num_epochs=2, num_steps_per_epoch=20)
    assert learner.loop.epoch == 2 and "not given" not in capsys.readouterr().out


@pytest.mark.parametrize("buffer, is_slow", [({}, True), ({"segment_len": 32}, False)])
def test_an_agent_with_the_papers_memory_says_that_it_is_slow(capsys, monkeypatch, buffer, is_slow):
    monkeypatch.setattr("offpcc.training.experiment.DEFAULT_EPOCHS", 1)
    learner = offpcc.RSAC("pendulum-p-v0", buffer=buffer)
    learner.train(num_steps_per_epoch=20, num_test_episodes_per_epoch=0, update_after=100)
    told = capsys.readouterr().out
    assert "num_epochs is not given" in told and ("can take hours on a CPU" in told) is is_slow


def test_a_seed_is_drawn_and_printed(capsys):
    one, other = (offpcc.build("pendulum-v0", "sac", seed=None, algorithm=SMALL).spec.seed for _ in range(2))
    assert one != other
    assert f"the seed {one} was drawn; seed={one} repeats this run" in capsys.readouterr().err


def test_a_setting_of_train_that_does_not_exist_is_named():
    with pytest.raises(UserError, match=r"train takes no argument 'num_epoch'; did you mean num_epochs"):
        offpcc.build("pendulum-v0", "sac", algorithm=SMALL).train(num_epoch=3)


@pytest.mark.parametrize(
    "given, told",
    [
        ({"state": None}, r"takes no argument 'state'; the agent keeps its hidden state itself; call agent\.reset\(\)"),
        ({"episode_start": True}, r"takes no argument 'episode_start'; in offpcc that is is_first"),
        ({"determinstic": True}, r"takes no argument 'determinstic'; did you mean deterministic"),
    ],
)
def test_an_argument_of_act_that_does_not_exist_is_named(given, told):
    agent = offpcc.Agent(
        offpcc.build("pendulum-p-v0", "rsac", algorithm={"hidden_dim": 8, "hidden_dims": (8,)}).algorithm
    )
    with pytest.raises(UserError, match=told):
        agent.act(np.zeros(2, np.float32), **given)


def test_training_goes_on_after_stop_return_when_asked_for_more():
    learner = train(offpcc.build(Drift, "sac", algorithm=SMALL), num_epochs=3, stop_return=-1e6)
    assert learner.loop.epoch == 1 and learner.loop.stopped
    assert train(learner, num_epochs=3, stop_return=-1e6).loop.epoch == 1, "nothing else is asked for"
    assert train(learner, num_epochs=4, stop_return=-1e6).loop.epoch == 2, "until the next test"
    assert train(learner, num_epochs=4, stop_return=-2e6).loop.epoch == 2, "the last test reached this, too"
    assert train(learner, num_epochs=4, stop_return=-2e6, stop_tests=3).loop.epoch == 2, "nothing else is asked for"
    assert train(learner, num_epochs=4, stop_return=-3e6).loop.epoch == 3, "the last three tests: one was missing"
    assert train(learner, num_epochs=4).loop.epoch == 4
    once = train(offpcc.build(Drift, "sac", algorithm=SMALL), num_epochs=4)
    assert_same_weights(weights(learner), weights(once))


# What a process keeps -------------------------------------------------------------------------------------------------


class Broken(Drift):
    def step(self, action):
        if self.t == 30:
            raise ValueError("worn out")
        return super().step(action)


@pytest.fixture
def three_threads():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


def test_building_and_training_keep_the_settings_of_the_process(three_threads):
    offpcc.configure(None, "SAC.gamma = 0.9")
    bindings, seen = gin.config_str(), []
    learner = offpcc.build(Drift, "sac", algorithm=SMALL)
    assert torch.get_num_threads() == 3
    learner.train(Loggers([]), num_epochs=1, callbacks=[lambda run: seen.append(torch.get_num_threads())], **SHORT)
    assert seen == [1], "while it trains"
    assert torch.get_num_threads() == 3
    with pytest.raises(EnvironmentFault, match="worn out"):
        train(offpcc.build(Broken, "sac", algorithm=SMALL))
    assert torch.get_num_threads() == 3
    assert gin.config_str() == bindings


def test_fit_keeps_threads_and_global_generators(three_threads, tmp_path):
    offpcc.configure("test/template_short.gin", "train.num_epochs = 1", "train.num_steps_per_epoch = 30")
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    quiet_fit(RunSpec.make(Drift, "sac"), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["threads"] == 1
    with pytest.raises(EnvironmentFault, match="worn out"):
        quiet_fit(RunSpec.make(Broken, "sac"), tmp_path / "broken")
    assert torch.get_num_threads() == 3
    assert before[0] == random.getstate() and before[1] == np.random.get_state()[1].tolist()
    assert torch.equal(before[2], torch.get_rng_state())


def test_cudnn_is_deterministic_for_a_run_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with pytest.raises(KeyError), torch_settings(torch.device("cuda"), None):
        assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
        raise KeyError
    assert not torch.backends.cudnn.deterministic and torch.backends.cudnn.benchmark


# Messages -------------------------------------------------------------------------------------------------------------


def test_messages_carry_no_text_of_gin_and_name_arguments_of_python(tmp_path):
    with pytest.raises(UserError) as caught:
        offpcc.build("pendulum-v0", "sac", algorithm={"gamma": 2.0})
    assert str(caught.value) == caught.value.message and "In call to" not in str(caught.value)
    with pytest.raises(UserError) as caught:
        offpcc.build("pendulum-v0", "sac", algorithm=SMALL).train(num_epochs=0)
    assert str(caught.value) == (
        "train.num_epochs is 0, so the run would learn nothing; raise it, or give recorded data, an environment and "
        "then_env_steps=: the run then begins in the environment at once"
    )
    with pytest.raises(UserError, match=r'num_epochs is not set: give it, training=\{"num_epochs": \.\.\.\}, or bind'):
        fit(RunSpec.make(Drift, "sac"), tmp_path / "run")
    offpcc.configure("test/template_short.gin", "train.num_epochs = 1", "train.num_steps_per_epoch = 30")
    quiet_fit(RunSpec.make(Drift, "sac"), tmp_path / "run")
    with pytest.raises(UserError, match=r"^save_dataset=\S*: the run did not record its first steps"):
        offpcc.configure("test/template_short.gin", "train.num_epochs = 2", "train.num_steps_per_epoch = 30")
        fit(RunSpec.make(Drift, "sac", save_dataset=tmp_path / "all.hdf5"), tmp_path / "run", resume=True)
    offpcc.configure("test/template_short.gin", "train.num_epochs = 2", "SAC.gamma = 0.5")
    with pytest.raises(UserError, match=r"in another folder by results=$"):
        fit(RunSpec.make(Drift, "sac"), tmp_path / "run", resume=True)


# Constructors ---------------------------------------------------------------------------------------------------------


def test_there_is_a_constructor_for_each_name_of_an_algorithm():
    names = {name for short, cls in ALGORITHMS.items() for name in (short.upper(), cls.__name__)}
    assert names == {*constructors.NAMES}
    assert names <= {*dir(offpcc)} and names <= {*offpcc.__all__}
    assert offpcc.RSAC is offpcc.RecurrentSAC and offpcc.TD3_BC is offpcc.TD3BC
    signature = inspect.signature(offpcc.RecurrentSAC)
    assert next(iter(signature.parameters)) == "env"
    assert {"lr", "gamma", "encoder", "autotune", "seed"} <= {*signature.parameters}
    assert "observation_space" not in signature.parameters and signature.parameters["gamma"].default == 0.99
    shown = pydoc.render_doc(offpcc.RecurrentSAC)
    assert "gamma: float = 0.99" in shown and "Rule(" not in shown
    with pytest.raises(AttributeError, match="SAK"):
        offpcc.SAK


@pytest.mark.parametrize("algo", ["sac", "rtd3"])
def test_a_constructor_gives_the_bytes_of_the_same_values_by_gin(algo):
    name = ALGORITHMS[algo].__name__
    buffer = "ReplayBuffer" if algo == "sac" else "RecurrentReplayBuffer"
    settings = {"lr": 2e-3, "gamma": 0.9, "hidden_dims": (8,)}
    given = [*(f"{name}.{key} = {value}" for key, value in settings.items()), f"{buffer}.batch_size = 6"]
    if algo == "rtd3":
        settings["hidden_dim"] = 8
        given.append("Recurrent.hidden_dim = 8")
    direct = getattr(offpcc, name)(Drift, **settings, seed=5, buffer={"batch_size": 6})
    train(direct, update_after=100)
    offpcc.configure(None, *given, "train.num_epochs = 1", *(f"train.{key} = {value}" for key, value in SHORT.items()))
    by_gin = offpcc.build(Drift, algo, seed=5)
    by_gin.train(Loggers([]), update_after=100)
    assert direct.loop.num_updates > 50
    assert_same(direct.algorithm.state_dict(), by_gin.algorithm.state_dict())
    for one, other in zip(direct.buffer.chunks(), by_gin.buffer.chunks(), strict=True):
        for ours, theirs in zip(one.arrays, other.arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    rows = [[{k: v for k, v in row.items() if "time" not in k} for row in run.loop.rows] for run in (direct, by_gin)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gama": 0.9}, r"SAC takes no argument 'gama'; did you mean gamma"),
        ({"hidden_dim": 64}, r"'hidden_dim'; did you mean hidden_dims\? hidden_dim is a setting of agents with memory"),
        ({"norm_obs": True}, r"SAC takes no argument 'norm_obs'; in offpcc that is normalize_observations$"),
        ({"activation_fn": None}, r"SAC takes no argument 'activation_fn'; MLPs have ReLU"),
        ({"xyzzy": 1}, r"SAC takes no argument 'xyzzy'; help\(offpcc.SAC\) lists its arguments"),
        ({"burn_in": 1}, r"burn_in is a setting of agents with memory, such as offpcc.RecurrentSAC"),
        ({"lstm_hidden_size": 1}, r"hidden_dim is a setting of agents with memory, such as offpcc.RecurrentSAC"),
        ({"channels": (8,)}, r'convolutions: offpcc.configure\(None, "Convolutional.channels = ..."\)'),
        ({"lr": lambda left: 3e-4 * left}, r"would be 300: a schedule gets the number of updates"),
        ({"lr": lambda n: 3e-4 * 2.0**n}, r"would be inf: a schedule gets the number of updates"),
        ({"clip_reward": True}, r"in offpcc that is clip_rewards \(it takes the sign"),
        ({"initial_alpha": 1.0}, r"in offpcc that is alpha$"),
        ({"eps_decay": 3}, r"in offpcc that is epsilon_steps of offpcc.DQN"),
        ({"num_epochs": 3}, r"train takes it: SAC\(...\).train\(num_epochs=...\)"),
        ({"batch_size": 3}, r'give it to the buffer: buffer=\{"batch_size": ...\}'),
        ({"frame_stack": 3}, r'Concatenate.num = ..."\) \(with make=\{"wrappers": \[offpcc.envs.wrappers.Concatenate'),
        ({"num_envs": 3}, r'give it to the environments: environments=\{"num_envs": ...\}'),
        ({"observation_space": 3}, r"SAC takes no argument 'observation_space'"),
        ({"gamma": 3}, r"SAC.gamma is 3; it has to be a number from 0 to 1"),
    ],
)
def test_a_wrong_argument_of_a_constructor_is_named(given, message):
    with pytest.raises(UserError, match=message):
        offpcc.SAC("pendulum-v0", **given)


def test_a_constructor_needs_an_environment_or_a_dataset():
    with pytest.raises(UserError, match="neither an environment nor a dataset"):
        offpcc.SAC()


@pytest.mark.parametrize(("name", "which"), [("RSAC", "encoder"), ("CRSAC_S", "shared_encoder")])
def test_a_constructor_takes_the_settings_of_the_memory(name, which, tmp_path):
    """As gin's bindings of `Recurrent`; a learner that was saved has them, too."""
    make_env = Drift if name == "RSAC" else "pendulum-img-v0"
    memory = {"cell": functools.partial(LRU, r_max=0.95), "hidden_dim": 6, "use_previous_action": True}
    direct = getattr(offpcc, name)(make_env, **SMALL, **memory, num_layers=1)
    direct.save(tmp_path / "saved.pt")
    bindings = "cell = @LRU", "hidden_dim = 6", "num_layers = 1", "use_previous_action = True"
    offpcc.configure(None, "LRU.r_max = 0.95", *(f"Recurrent.{binding}" for binding in bindings))
    by_gin = getattr(offpcc, name)(make_env, **SMALL)
    offpcc.configure(None)
    built = offpcc.build(make_env, name.lower(), algorithm={**SMALL, **memory, "num_layers": 1})
    for other in (by_gin, offpcc.load(tmp_path / "saved.pt", make_env), built):
        assert isinstance(getattr(other.algorithm, f"actor_{which}".replace("actor_shared", "shared")).cell, LRU)
        assert_same(direct.algorithm.state_dict(), other.algorithm.state_dict())


def test_the_settings_of_the_memory_are_bindings_of_a_run_in_a_folder(tmp_path):
    def run(folder, resume=False, **memory):
        arguments = {**SMALL, **memory}
        spec = RunSpec.make(Drift, "rsac", algorithm=arguments, training={**SHORT, "num_epochs": 1})
        return quiet_fit(spec, tmp_path / folder, resume=resume)

    run("direct", cell="lru", hidden_dim=4, num_layers=1)
    offpcc.configure(None, "Recurrent.cell = 'lru'", "Recurrent.hidden_dim = 4", "Recurrent.num_layers = 1")
    run("gin")
    offpcc.configure(None)
    configs = [(tmp_path / name / "config.gin").read_text() for name in ("direct", "gin")]
    assert configs[0] == configs[1] and "Recurrent.hidden_dim = 4" in configs[0]
    assert run("direct", resume=True, cell="lru", hidden_dim=4, num_layers=1).was_finished
    with pytest.raises(UserError, match=r"Recurrent.hidden_dim is 5, but the run was made with 4"):
        run("direct", resume=True, cell="lru", hidden_dim=5, num_layers=1)
    assert not run("class", cell=LRU, hidden_dim=4, num_layers=1).was_finished
    words = r'Recurrent.cell is .*partial.*, which cannot be written .*; add "LRU.r_max=..." to .*, and give LRU'
    with pytest.raises(UserError, match=words):
        run("other", cell=functools.partial(LRU, r_max=0.95))
    offpcc.configure(None, "LRU.r_max = 0.95")
    assert not run("other", cell=LRU, hidden_dim=4, num_layers=1).was_finished, "the remedy works"
    offpcc.configure(None)
    with pytest.raises(UserError, match=r"LRU takes no argument 'rmax'; did you mean r_max\?"):
        offpcc.RSAC("pendulum-p-v0", cell=functools.partial(LRU, rmax=0.95))


def test_learners_and_agents_are_printed_in_a_line():
    learner = offpcc.SAC("pendulum-v0", hidden_dims=(4,))
    actor, critic = 4 * 4 + 2 * 5, 4 * 5 + 5
    shown = f"<learner pendulum-v0 sac: SAC with {actor + 2 * critic + 1} parameters on cpu, "
    assert repr(learner) == f"{shown}0 epochs trained>"
    learner.loop.epoch = 1
    assert repr(learner) == f"{shown}1 epoch trained>"
    learner = offpcc.RSAC(Drift, **SMALL, hidden_dim=4)
    assert repr(learner).startswith("<learner Drift rsac: RecurrentSAC with ")
    assert repr(offpcc.Agent(learner.algorithm)) == "<agent: RecurrentSAC on cpu, observations (2,), actions (1,)>"
    choosing = offpcc.DQN("CartPole-v1").algorithm
    assert repr(offpcc.Agent(choosing)) == "<agent: DQN on cpu, observations (4,), actions Discrete(2)>"


def test_a_hint_in_python_names_the_argument():
    resume = "--resume --gin \"SAC.nonfinite='raise'\""
    for told, ours in (
        ('normalise (--gin "RecurrentSAC.normalize_observations=True")', "normalise (normalize_observations=True)"),
        (resume, "resume=True of offpcc.fit and algorithm={\"nonfinite\": 'raise'}"),
        ('--gin "dataset.max_episode_steps=N"', "Dataset.from_arrays(max_episode_steps=N) or offpcc.configure(FILE, "),
    ):
        assert in_python(told).startswith(ours)


ONLY_OF_THE_COMMAND = {"--online", "--jobs", "--render", "--record", "--episodes"}  # without an argument in Python
IN_PYTHON = {
    "--from": "start_from=",
    "--run_id": "seed=",
    "--config": "offpcc.configure(FILE)",
    "--gin": "offpcc.configure(FILE, VALUE)",
    "--import": "import VALUE first",
    "--resume": "resume=True",
    "--no_video": "video=False",
}


@pytest.mark.parametrize("option", [one for one in TAKES["train"].split() if one not in ONLY_OF_THE_COMMAND])
def test_a_message_in_python_names_no_option_of_train(option):
    told = in_python(f"{option} VALUE has no effect; leave out {option} VALUE ({option} VALUE)")
    ours = IN_PYTHON.get(option, f"{option.removeprefix('--')}=")
    assert option in OPTIONS and option not in told and told.count(ours) == 3
    is_argument = re.fullmatch(r"(\w+)=\w*", ours)
    taken = {*inspect.signature(RunSpec.make).parameters, *inspect.signature(fit).parameters}
    assert not is_argument or is_argument[1] in taken
    command = f"`offpcc check {option} VALUE`"
    assert in_python(f"see {command}") == f"see {command}"


def test_refusals_in_python_name_arguments(tmp_path):
    with pytest.raises(UserError, match=r"^model=x has no effect on sac, .*; leave model= out, or choose mopo$"):
        offpcc.build("pendulum-v0", "sac", model="x")
    learns = {"dataset": "x.hdf5", "init": "a", "start_from": "b"}
    with pytest.raises(UserError, match=r"^init=a has no effect with start_from=, .*; leave out init= or start_from=$"):
        RunSpec.make("pendulum-v0", "sac", **learns)
    with pytest.raises(UserError, match=r"^RunSpec.make.results is ''; it has to be the name of a file or a folder"):
        RunSpec.make("pendulum-v0", "sac", results="")
    assert in_python("use --threads 4 with --env NAME") == "use threads=4 with env=NAME"


def test_a_run_without_gin_is_that_of_the_same_bindings_and_resumes(tmp_path):
    settings = {**SHORT, "num_test_episodes_per_epoch": 2}

    def run(folder, num_epochs, resume=False):
        spec = RunSpec.make(Drift, "sac", algorithm=SMALL, training={**settings, "num_epochs": num_epochs})
        quiet_fit(spec, tmp_path / folder, resume=resume)

    run("direct", 1)
    run("direct", 2, resume=True)
    given = (f"train.{name} = {value}" for name, value in {**settings, "num_epochs": 2}.items())
    offpcc.configure(None, *given, "SAC.hidden_dims = (8,)")
    quiet_fit(RunSpec.make(Drift, "sac"), tmp_path / "gin")
    runs = [offpcc.load_run(tmp_path / name) for name in ("direct", "gin")]
    assert runs[0].config == runs[1].config
    np.testing.assert_array_equal(*(run.curve.mean for run in runs))
    actors = [offpcc.Agent.load(run.folder / "actor_last.pt").algorithm.actor.state_dict() for run in runs]
    assert_same_weights(*actors)
    offpcc.configure(None)
    with pytest.raises(UserError, match=r"train.update_after is 150, but the run was made with 200"):
        spec = RunSpec.make(Drift, "sac", algorithm=SMALL, training={**settings, "num_epochs": 3, "update_after": 150})
        fit(spec, tmp_path / "direct", resume=True)
    with pytest.raises(UserError, match=r"train takes no argument 'epochs'; did you mean num_epochs"):
        RunSpec.make(Drift, "sac", training={"epochs": 3})


# Acting ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["SAC", "RecurrentSAC"])
@pytest.mark.parametrize("rows", [3, 12], ids=["numpy", "torch"])
def test_an_agent_acts_in_several_environments_as_in_each(algo, rows):
    cell = {} if algo == "SAC" else {"encoder": functools.partial(Recurrent, hidden_dim=4, use_previous_action=True)}
    algorithm = getattr(offpcc, algo)(Drift, hidden_dims=(8,), **cell).algorithm
    together, alone = offpcc.Agent(algorithm), [offpcc.Agent(algorithm) for _ in range(rows)]
    seen = np.random.default_rng(0).normal(size=(6, rows, 2)).astype(np.float32)
    together.reset(num_envs=rows)
    for step, batch in enumerate(seen):
        begins = np.zeros(rows, bool)
        if step == 4:  # the second episode of one row begins
            begins[1] = True
            alone[1].reset()
        actions = together.act(batch, is_first=begins)
        assert actions.shape == (rows, 1) and actions.dtype == np.float32
        expected = [agent.act(one) for agent, one in zip(alone, batch, strict=True)]
        np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)
    together.reset()
    assert together.act(seen[0, 0]).shape == (1,)


def test_a_wrong_shape_is_told_with_the_right_one():
    agent = offpcc.Agent(offpcc.SAC(Drift, **SMALL).algorithm)
    with pytest.raises(ValueError, match=r"shape \(8, 2\), but needs \(2,\); for 8 .* call reset\(num_envs=8\) first"):
        agent.act(np.zeros((8, 2)))
    agent.reset(num_envs=8)
    assert agent.act(np.zeros((8, 2))).shape == (8, 1)
    with pytest.raises(ValueError, match=r"shape \(2,\), but needs \(8, 2\); give those of 8 .*, or call reset"):
        agent.act(np.zeros(2))
    with pytest.raises(ValueError, match=r"got 3 flags is_first, but there are 8 environments"):
        agent.act(np.zeros((8, 2)), is_first=[True] * 3)
    with pytest.raises(ValueError, match=r"got 2 previous rewards, but there are 8 environments"):
        agent.act(np.zeros((8, 2)), [1.0, 2.0])
    with pytest.raises(ValueError, match=r"got False as previous_reward; write deterministic=False"):
        agent.act(np.zeros((8, 2)), False)
    with pytest.raises(UserError, match=r"reset.num_envs is 0"):
        agent.reset(num_envs=0)


def test_evaluate_returns_the_returns_of_episodes():
    agent = offpcc.Agent(offpcc.SAC(Drift, **SMALL).algorithm)
    result = offpcc.evaluate(agent, Drift, episodes=5)
    assert result.returns.shape == (5,) and result.lengths.tolist() == [40] * 5
    assert result.mean == result.returns.mean() and result.std == result.returns.std()
    low, high = result.interval
    assert result.returns.min() <= low < result.mean < high <= result.returns.max()
    assert result.interval == mean_interval(result.returns), "as of `offpcc evaluate --json`"
    assert "return over 5 episodes: mean" in str(result)
    again = offpcc.evaluate(agent, Drift, episodes=5, num_envs=2)
    np.testing.assert_allclose(result.returns, again.returns, rtol=1e-5)
    assert np.isnan(offpcc.evaluate(agent, Drift, 1).interval).all()
    with pytest.raises(UserError, match=r"evaluate.episodes is 0"):
        offpcc.evaluate(agent, Drift, 0)
    with pytest.raises(UserError, match="an agent is needed, not an object of str"):
        offpcc.evaluate("actor.pt", Drift)
    with pytest.raises(UserError, match="an agent is needed, not an object of Experiment; give what train returns"):
        offpcc.evaluate(offpcc.SAC(Drift, **SMALL), Drift)
    with pytest.raises(UserError, match=r"pendulum-v0 has observations of shape \(3,\).*with env="):
        offpcc.evaluate(agent, "pendulum-v0")


# Data sets and runs ---------------------------------------------------------------------------------------------------


def assert_same_data(one, two):
    for name in ("observations", "actions", "rewards", "terminations", "truncations", "stops", "final_observations",
                 "last_is_transition", "is_whole"):  # fmt: skip
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    for ours, theirs in zip(one.action_range, two.action_range, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_collect_gives_the_data_of_the_command_line(launch, tmp_path):
    code, _, err = launch("collect", "--env", "pendulum-v0", "--actor", "random", "--steps", 450, "--out", "a.hdf5")
    assert code == 0, err
    before = random.getstate()
    data = offpcc.collect("pendulum-v0", None, steps=450)
    assert random.getstate() == before
    assert_same_data(data, load_dataset(tmp_path / "a.hdf5"))
    assert len(data) == 450 and data.num_episodes == 3 and not data.is_whole[-1]


def test_an_agent_collects_and_keeps_its_noise():
    algorithm = offpcc.RecurrentSAC(Drift, **SMALL).algorithm
    noise = algorithm.noise
    data = offpcc.collect(Drift, offpcc.Agent(algorithm), steps=80, seed=2)
    assert algorithm.noise is noise
    assert data.num_episodes == 2 and data.is_whole.all()
    assert_same_data(data, offpcc.collect(Drift, algorithm, steps=80, seed=2))
    learner = offpcc.BC(dataset=data, **SMALL)
    learner.train(Loggers([]), num_epochs=1, num_steps_per_epoch=3)
    assert learner.loop.num_updates == 3
    with pytest.raises(UserError, match="deterministic has no effect on random actions"):
        offpcc.collect(Drift, None, steps=3, deterministic=True)


@pytest.mark.parametrize("algo", ["SAC", "RecurrentSAC", None])
def test_several_environments_collect_together(algo):
    learner = algo and getattr(offpcc, algo)(Drift, **SMALL)
    agent = learner and offpcc.Agent(learner.algorithm)
    noise = learner and learner.algorithm.noise
    given = {"steps": 205, "num_envs": 3, "seed": 2}
    before = random.getstate()
    data = offpcc.collect(Drift, agent, **given)
    assert random.getstate() == before and (learner is None or learner.algorithm.noise is noise)
    assert len(data) == 205 and data.metadata["num_envs"] == 3
    assert data.is_whole.tolist() == [True] * 3 + [False] * 3
    assert data.truncations.sum() == 6, "an episode of Drift is never terminated"
    starts = data.observations[[0, 40, 80, 120, 149, 177]]
    assert len(np.unique(starts, axis=0)) == 6
    for first, last in ((0, 40), (120, 149)):
        moved = data.observations[first + 1 : last] - data.observations[first : last - 1]
        np.testing.assert_allclose(moved, 0.1 * data.actions[first : last - 1].repeat(2, 1), atol=1e-5)
    assert_same_data(data, offpcc.collect(Drift, agent, **given, worker_processes=algo == "SAC"))
    if agent is not None:
        calm = offpcc.collect(Drift, agent, deterministic=True, **given)
        agent.reset(num_envs=3)
        np.testing.assert_allclose(calm.actions[:1], agent.act(starts[:3])[:1], rtol=1e-5)
        assert not np.array_equal(calm.actions, data.actions)


def test_a_data_set_is_saved_and_joined(tmp_path):
    one, two = (offpcc.collect(Drift, None, steps=100, seed=seed) for seed in (1, 2))
    one.save(tmp_path / "one.hdf5")
    assert_same_data(load_dataset(tmp_path / "one.hdf5"), one)
    both = one + two
    assert len(both) == 200 and both.num_episodes == 6
    assert both.is_whole.tolist() == [True, True, False] * 2
    np.testing.assert_array_equal(both.returns, [*one.returns, *two.returns])
    assert_same_data(both.select([3, 4, 5]), two)
    assert both.metadata["env"] == "Drift" and "seed" not in both.metadata
    both.save(tmp_path / "both.hdf5")
    again = load_dataset(tmp_path / "both.hdf5")
    assert again.is_whole.tolist() == [True] * 4 + [False] * 2
    assert_same_data(again, both.select([0, 1, 3, 4, 2, 5]))
    with pytest.raises(UserError, match=r"both.hdf5 exists and is not overwritten"):
        both.save(tmp_path / "both.hdf5")
    with pytest.raises(UserError, match=r"does not end in .hdf5 or .h5"):
        both.save(tmp_path / "both.npz")
    with pytest.raises(UserError, match=r"observations float32 \(2,\), but pendulum-v0 has float32 \(3,\)"):
        one + offpcc.collect("pendulum-v0", None, steps=3)
    with pytest.raises(UserError, match=r"has action_range .*with_range"):
        one + offpcc.Dataset.from_arrays(
            observations=one.observations, actions=one.actions, rewards=one.rewards, terminations=one.terminations
        )
    with pytest.raises(TypeError):
        one + 3


def test_joining_data_of_different_environments_is_told_or_refused():
    def recorded(name, metadata, size=2):
        data = offpcc.Dataset.from_arrays(
            observations=np.random.default_rng(0).normal(size=(20, size)), actions=np.zeros((20, 1)),
            rewards=np.zeros(20), terminations=np.arange(20) % 10 == 9, action_range=(-1, 1), name=name,
        )  # fmt: skip
        return dataclasses.replace(data, metadata=metadata)

    def told(one, other):
        notices = (one + other).notices
        assert all(notice.kind in NOTICES for notice in notices)
        return [notice.text for notice in notices if notice.kind == "origins"]

    one, same, unknown = (recorded(*given) for given in (("a", {"env": "A-v0"}), ("b", {"env": "A-v0"}), ("c", {})))
    assert told(one, same) == told(one, unknown) == []
    (text,) = told(one, recorded("b", {"env": "B-v0"}))
    assert text.startswith("a was recorded in A-v0, but b recorded in B-v0, both with observations float32 (2,) and")
    plain, noisy = (recorded(name, {"env": "A-v0", "seen_through": to}) for name, to in (("a", "[]"), ("b", '["N()"]')))
    (text,) = told(plain, noisy)
    assert text.startswith("a was seen through [], but b seen through ['N()']")
    with pytest.raises(
        UserError, match=r"a, recorded in A-v0, has obs.* \(2,\), but b, recorded in B-v0, has .*\(3,\)"
    ):
        one + recorded("b", {"env": "B-v0"}, size=3)


def test_a_step_that_leads_nowhere_is_not_saved(tmp_path):
    cut = np.array([False, False, True, False, False])
    data = offpcc.Dataset.from_arrays(
        observations=np.arange(5.0)[:, None], actions=np.zeros((5, 1)), rewards=np.arange(5.0),
        terminations=np.zeros(5), truncations=cut,
    )  # fmt: skip
    data.save(tmp_path / "short.hdf5")
    again = load_dataset(tmp_path / "short.hdf5")
    assert again.rewards.tolist() == [0.0, 1.0, 3.0]
    assert again.final_observations.tolist() == [[2.0], [4.0]] and again.last_is_transition.all()


def test_a_run_is_loaded_and_plotted(tmp_path):
    offpcc.configure("test/template_short.gin", "train.num_epochs = 2", "train.num_steps_per_epoch = 50")
    folder = quiet_fit(RunSpec.make(Drift, "sac", results=tmp_path)).folder
    run = offpcc.load_run(folder)
    assert run.folder == folder and run.was_finished
    assert list(run.table["step"]) == [50.0, 100.0]
    assert isinstance(run.table, dict) == (importlib.util.find_spec("pandas") is None)
    assert run.curve.steps.tolist() == [50.0, 100.0] and np.isfinite(run.curve.mean).all()
    assert run.config["train.num_epochs"] == "2"
    assert run.agent().act(np.zeros(2, np.float32)).shape == (1,)
    for last, file in ((False, "actor_best.pt"), (True, "actor_last.pt")):
        weights = offpcc.Agent.load(folder / file).algorithm.actor.state_dict()
        for name, value in run.agent(last=last).algorithm.actor.state_dict().items():
            assert value.equal(weights[name])
    played = [run.evaluate(2, Drift, last=True), offpcc.evaluate(run.agent(last=True), Drift, 2)]
    assert played[0].returns.tolist() == played[1].returns.tolist()
    (folder / "actor_last.pt").unlink()
    with pytest.raises(UserError, match=r"actor_last\.pt does not exist; leave last=True out"):
        run.agent(last=True)
    summaries = offpcc.plot(tmp_path / "Drift", tmp_path / "pictures" / "curves.png")
    assert (tmp_path / "pictures" / "curves.png").is_file() and summaries[0].num_runs == 1
    with pytest.raises(UserError, match=r"there is no run in .*sac; give a run in it, such as .*0"):
        offpcc.load_run(folder.parent)
    with pytest.raises(UserError, match=r"curves.xyz"):
        offpcc.plot([folder], "curves.xyz")
    with pytest.raises(UserError, match=r"test/retrun"):
        offpcc.plot(folder, tmp_path / "curves.png", "test/retrun")


@gin.configurable
class Doubled(gymnasium.ObservationWrapper):
    """Changes what the agent sees, but not the shape."""

    def observation(self, observation):
        return 2.0 * observation


@pytest.fixture
def wrapped_run(tmp_path):
    """A finished run with a wrapper, whose bindings are gone."""
    wrapped = "make.wrappers = [@Doubled]"
    offpcc.configure("test/template_short.gin", "train.num_epochs = 1", "train.num_steps_per_epoch = 50", wrapped)
    result = quiet_fit(RunSpec.make("pendulum-v0", "sac", seed=4), tmp_path / "run")
    offpcc.configure(None, "SAC.gamma = 0.5")
    return result


def test_a_run_evaluates_itself_through_its_wrappers(wrapped_run, launch):
    bindings = gin.config_str()
    result = wrapped_run.evaluate(3)
    assert gin.config_str() == bindings
    agent = wrapped_run.agent()
    plain = offpcc.evaluate(agent, "pendulum-v0", 3)
    through = offpcc.evaluate(agent, lambda: Doubled(gymnasium.make("pendulum-v0")), 3)
    np.testing.assert_array_equal(result.returns, through.returns)
    assert not np.array_equal(result.returns, plain.returns)
    code, out, err = launch("evaluate", wrapped_run.folder, "--env", "pendulum-v0", "--episodes", 3)
    assert code == 0 and str(result) in out, err
    with pytest.raises(UserError, match=r"evaluate\.episodes is 0"):
        wrapped_run.evaluate(0)
    with pytest.raises(UserError, match=r"run\.agent\(\), or call run\.evaluate\(\)"):
        offpcc.evaluate(wrapped_run, "pendulum-v0")


def test_a_run_of_classes_that_are_not_imported_is_read(wrapped_run):
    file = wrapped_run.folder / "config.gin"
    text = file.read_text()
    assert "Doubled" in text
    lines = [line for line in text.splitlines() if not line.startswith(("import", "from"))]
    file.write_text(
        "\n".join([*lines, "build.callbacks = [@other.Watch]", "import other", ""]).replace("Doubled", "Gone")
    )
    config = offpcc.load_run(wrapped_run.folder).config
    assert config["build.callbacks"] == "[@other.Watch]" and "Gone" in config["make.wrappers"]
    with pytest.raises(UserError, match=r"needs '.*Gone', which is not known here; .*, import it first"):
        wrapped_run.evaluate(1)


def test_a_run_is_evaluated_through_wrappers_with_arguments(tmp_path):
    offpcc.configure(None, "make.wrappers = [@DropIndices]", "DropIndices.indices = [2]")
    spec = RunSpec.make("pendulum-v0", "sac", training={**SHORT, "num_epochs": 1}, algorithm=SMALL)
    result = quiet_fit(spec, tmp_path / "run")
    expected = offpcc.evaluate(result.agent(), "pendulum-v0", 2).returns
    offpcc.configure(None)
    np.testing.assert_array_equal(result.evaluate(2).returns, expected)


def test_the_pages_names_exist_in_a_fresh_process():
    """Each in a process of its own, which has imported nothing of ours before."""
    names = ("data.PrioritizedReplayBuffer", "networks.Recurrent", "algorithms.SAC", "training.loggers.Loggers",
             "utils.system.keep_freed_memory", "algorithms.optim.LinearDecay")  # fmt: skip
    code = f"""
import os
import torch, gymnasium, gin  # once for all
for name in {names}:
    child = os.fork()
    if child == 0:
        import offpcc
        print(eval(f"offpcc.{{name}}"), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(names)


def test_a_run_of_a_function_is_evaluated_with_the_function(tmp_path):
    spec = RunSpec.make(make_drift, "sac", training={**SHORT, "num_epochs": 1}, algorithm=SMALL)
    result = quiet_fit(spec, tmp_path / "run")
    with pytest.raises(
        UserError, match=r"a function made the environment of .*run, make_drift; give it again, by env="
    ):
        offpcc.load_run(result.folder).evaluate(2)
    with pytest.raises(UserError, match=r"a function made the environment of .*run: name a registered one with --env"):
        RunFolder.at(result.folder).env()
    again = offpcc.load_run(result.folder).evaluate(2, make_drift)
    np.testing.assert_array_equal(again.returns, offpcc.evaluate(result.agent(), Drift, 2).returns)
    np.testing.assert_array_equal(result.evaluate(2).returns, again.returns)


# Callbacks and threads ------------------------------------------------------------------------------------------------


def test_a_function_is_a_callback_of_epochs():
    rows = []
    learner = offpcc.SAC(Drift, **SMALL)
    train(learner, num_epochs=3, callbacks=[lambda run: rows.append((run.loop.epoch, run.loop.rows[-1]["step"]))])
    train(learner, num_epochs=4, callbacks=[lambda run: rows.append(run.folder)])
    assert rows.pop() is None
    assert rows == [(1, 210), (2, 420), (3, 630)]
    with pytest.raises(UserError, match=r"callbacks has 3, which is no callback; give a function of a run"):
        train(learner, num_epochs=4, callbacks=[3])


class Noting(Callback):
    """Notes what calls it."""

    noted = []

    def __init__(self, name="class"):
        self.name = name

    def on_epoch(self, run):
        Noting.noted.append(self.name)


@gin.configurable
def note_function(run):
    Noting.noted.append(f"epoch {run.loop.epoch}")


gin.external_configurable(Noting)


def test_callbacks_mean_the_same_to_build_to_train_and_to_gin(capsys):
    given = [Noting, Noting("object"), functools.partial(Noting, "partial"), note_function]
    names = ["class", "object", "partial", "epoch 1"]
    for build, trained in (({"callbacks": given}, {}), ({}, {"callbacks": given})):
        Noting.noted.clear()
        train(offpcc.SAC(Drift, **SMALL, **build), **trained)
        assert Noting.noted == names
    Noting.noted.clear()
    offpcc.configure(None, "build.callbacks = [@Noting, @o/Noting(), @note_function]", "o/Noting.name = 'object'")
    train(offpcc.SAC(Drift, **SMALL))
    assert Noting.noted == ["class", "object", "epoch 1"]

    class Needing(Callback):
        def __init__(self, sensor):
            self.sensor = sensor

    for call in (lambda: offpcc.SAC(Drift, callbacks=[Needing]), lambda: train(offpcc.SAC(Drift), callbacks=[Needing])):
        with pytest.raises(UserError, match=r"callbacks: Needing cannot be built: .*sensor.*or give an object"):
            call()


def test_training_that_has_nothing_to_do_says_so(capsys):
    learner = train(offpcc.SAC(Drift, **SMALL))
    capsys.readouterr()
    learner.train(num_epochs=1)
    assert "nothing left to train: the run has had 1 of 1 epoch" in capsys.readouterr().out
    for _ in range(2):
        learner.train(num_epochs=3, stop_return=-1e6)
    told = capsys.readouterr().out
    assert told.count("the run ended early, after epoch 2 of 3: the last test reached train.stop_return, which is") == 1
    assert "the run was ended early, by its stop_return or by a callback; give" in told
    assert "give train another num_epochs, or a stop_return that its last tests do not reach, to continue" in told
    learner.train(num_epochs=1)
    assert "had 2 epochs, more than num_epochs, which is 1. num_epochs counts" in capsys.readouterr().out


def test_training_without_a_length_keeps_that_of_the_last_call(capsys):
    learner = train(offpcc.SAC(Drift, **SMALL), num_epochs=2)
    capsys.readouterr()
    learner.train()
    told = capsys.readouterr().out
    assert learner.loop.epoch == 2, "not 100 epochs more"
    assert "the run has had 2 of 2 epochs. num_epochs counts from the start: train(num_epochs=4) trains 2 more" in told


def test_auto_chooses_a_device_that_is_there(tmp_path):
    there = "cuda" if torch.cuda.is_available() else "cpu"
    learner = offpcc.SAC("pendulum-v0", device="auto", **SMALL)
    assert learner.algorithm.device.type == there
    learner.save(tmp_path / "learner.pt")
    assert offpcc.load(tmp_path / "learner.pt", device="auto").algorithm.device.type == there
    offpcc.Agent(learner.algorithm).save(tmp_path / "actor.pt")
    assert offpcc.Agent.load(tmp_path / "actor.pt", device="auto").algorithm.device.type == there
    with pytest.raises(UserError, match=r"device gpu cannot be used here \(there is no such device\); choose cpu"):
        offpcc.Agent.load(tmp_path / "actor.pt", device="gpu")


def test_what_reset_and_step_return_is_no_observation():
    agent, env = offpcc.Agent(offpcc.SAC("pendulum-v0", **SMALL).algorithm), offpcc.make("pendulum-v0")
    with pytest.raises(ValueError, match=r"observation, info = env.reset\(\)$"):
        agent.act(env.reset())
    with pytest.raises(ValueError, match=r"observation, reward, terminated, truncated, info = env.step\(action\)$"):
        agent.act(env.step(env.action_space.sample()))


def test_data_is_checked_from_python(pendulum_file, tmp_path):
    data = offpcc.collect("pendulum-v0", None, 600)
    found = offpcc.check(data, "pendulum-v0")
    assert not found.of("FAULT") and str(found).endswith("\npendulum-v0: no fault")
    assert "\nok       advice     start with " in str(found)
    alike = offpcc.check(str(pendulum_file))
    assert "-> give the bounds of the recorded environment" in str(alike) and len(alike.of("FAULT")) == 1
    with h5py.File(pendulum_file) as file:
        columns = {key: file[key][:] for key in file}
    np.savez(tmp_path / "bad.npz", **{**columns, "rewards": np.full(1200, np.nan)})
    (fault,) = offpcc.check(tmp_path / "bad.npz").findings
    assert fault.level == "FAULT" and "rewards[0] is nan" in fault.found
    (tmp_path / "log.csv").write_text("time,x\n0,1\n")
    with pytest.raises(UserError, match=r"neither HDF5 nor NPZ.*CSV, in Python: offpcc.Dataset.from_arrays.*save"):
        offpcc.check(tmp_path / "log.csv")


def test_agents_in_two_threads_end_with_the_bytes_that_each_has_alone():
    jobs = [("SAC", 1), ("RecurrentTD3", 2), ("SAC", 3)]

    def run(name, seed):
        memory = {"encoder": functools.partial(Recurrent, hidden_dim=4)} if name.startswith("Recurrent") else {}
        learner = getattr(offpcc, name)(Drift, seed=seed, hidden_dims=(8,), **memory)
        train(learner, num_epochs=2)
        return learner.algorithm.state_dict(), torch.get_num_threads()

    alone = [run(*job)[0] for job in jobs]
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        together = [future.result()[0] for future in [pool.submit(run, *job) for job in jobs]]
    for one, other in zip(alone, together, strict=True):
        assert_same(one, other)
    assert torch.get_num_threads() == 1


@pytest.mark.pictures
def test_two_runs_in_two_threads_write_the_folders_that_each_has_alone(tmp_path):
    """All at once: building, which gin notes, training, pictures, and actors that are loaded for a video."""
    jobs = {"sac": {"hidden_dims": (8,)}, "rtd3": {"hidden_dims": (6,)}, "ddpg": {"hidden_dims": (4,), "lr": 1e-4}}
    training = {**SHORT, "num_epochs": 1, "updates_per_step": 0.1}
    start = threading.Barrier(len(jobs))

    def run(algo, folder, together=False):
        if together:
            start.wait()
        for seed in (1, 2, 3):
            spec = RunSpec.make(Drift, algo, seed=seed, algorithm=jobs[algo], training=training)
            quiet_fit(spec, tmp_path / folder / algo / str(seed))

    for algo in jobs:
        run(algo, "alone")
    torch.backends.cudnn.benchmark = True
    before = random.getstate(), torch.get_rng_state(), list(warnings.filters), torch.backends.cudnn.deterministic
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        for future in [pool.submit(run, algo, "together", True) for algo in jobs]:
            future.result()
    assert before[0] == random.getstate() and torch.equal(before[1], torch.get_rng_state())
    assert before[2:] == (list(warnings.filters), torch.backends.cudnn.deterministic)
    for one in (tmp_path / "alone").glob("*/*"):
        other = tmp_path / "together" / one.relative_to(tmp_path / "alone")
        for name in ("config.gin", "actor_last.pt", "actor_best.pt"):
            assert (one / name).read_bytes() == (other / name).read_bytes(), (one.parent.name, name)
        assert (one / "curve.png").exists() and (other / "curve.png").exists(), one
        ours, theirs = ({**read_checkpoint(at / "checkpoint.pt"), "global_generators": 0} for at in (one, other))
        assert_same(ours, theirs)
        assert signals._depth == 0


def test_an_actor_that_another_thread_loads_is_not_noted_in_a_run_that_is_built(tmp_path):
    """gin has one record of used values, from which the config of a run is written."""
    offpcc.Agent(offpcc.SAC(Drift, **SMALL).algorithm).save(tmp_path / "actor.pt")
    thread = threading.Thread(target=offpcc.Agent.load, args=(tmp_path / "actor.pt",))
    with loading.LOCK:  # as a build does
        loading.take_used()
        thread.start()
        thread.join(2.0)
        assert loading.take_used() == {}
    thread.join()


def test_a_folder_is_refused_to_a_second_thread_of_the_process(tmp_path):
    with contextlib.closing(FolderLock(tmp_path)) as lock:
        lock.take()
        spec = RunSpec.make(Drift, "sac", algorithm=SMALL, training={**SHORT, "num_epochs": 1})
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            fit(spec, tmp_path)


@pytest.fixture(scope="module")
def learner():
    return offpcc.SAC("pendulum-v0", **SMALL)


SPEC = functools.partial(RunSpec.make, "pendulum-v0", "sac")
IS_AN_ARRAY = "the dataset is given as ndarray; give a file, a D4RL"
WRONG_TYPES = [
    (lambda it: offpcc.SAC("pendulum-v0", lr="fast"), "SAC.lr is 'fast'; it has to be a number"),
    (lambda it: offpcc.SAC("pendulum-v0", hidden_dims=64), "SAC.hidden_dims is 64; it has to be a list"),
    (lambda it: offpcc.SAC("pendulum-v0", seed="x"), "build.seed is 'x'; it has to be a whole number"),
    (lambda it: SPEC(seed=2**31), "RunSpec.make.seed is 2147483648; it has to be 2,147,483,647 or less"),
    (lambda it: offpcc.SAC("pendulum-v0", buffer=5), "build.buffer is 5; it has to be a dictionary"),
    (lambda it: offpcc.SAC("pendulum-v0", environments=4), "build.environments is 4; it has to be a dictionary"),
    (lambda it: offpcc.SAC("pendulum-v0", environments={"n_envs": 4}), "environments takes no argument 'n_envs'; "),
    (lambda it: offpcc.SAC(3), "an environment cannot be 3; give a name"),
    (lambda it: offpcc.BC(dataset=5), "the dataset is given as int; give a file"),
    (lambda it: offpcc.MOPO("pendulum-v0", dataset=np.zeros(3)), IS_AN_ARRAY),
    (lambda it: RunSpec.make("pendulum-v0", "iql", dataset=np.zeros(3)), IS_AN_ARRAY),
    (lambda it: offpcc.IQL("pendulum-v0", dataset={}), "Dataset.from_arrays(observations=..., actions=..., rewards="),
    (lambda it: offpcc.IQL("pendulum-v0", dataset=[]), "or from episodes by Dataset.from_episodes"),
    (lambda it: offpcc.IQL("pendulum-v0", dataset="x.hdf5"), "there is no file x.hdf5; give a file that exists"),
    (lambda it: it.train(offpcc.collect("pendulum-v0", None, 5)), "as in offpcc.IQL(env, dataset=data)"),
    (
        lambda it: offpcc.RSAC("pendulum-p-v0", cell="lstn"),
        "Recurrent.cell is 'lstn'; it has to be one of lstm, gru, rnn, mingru, lru, gpt, concat; did you mean 'lstm'?",
    ),
    (
        lambda it: offpcc.RSAC("pendulum-p-v0", cell=torch.nn.GRU),
        "is the class GRU; a cell is a class that derives from",
    ),
    (lambda it: offpcc.RSAC("pendulum-p-v0", cell="LSTM"), "Recurrent.cell is 'LSTM'; write @LSTM without quotes"),
    (lambda it: offpcc.RSAC("pendulum-p-v0", cell=Recurrent), "an encoder is not a part of Recurrent: bind it as the"),
    (lambda it: offpcc.build("pendulum-v0", 5), "build.algo is 5; it has to be the name of an algorithm"),
    (lambda it: offpcc.build("pendulum-v0", offpcc.SAC), "build.algo is the function SAC; it has to be the name"),
    (lambda it: offpcc.build("pendulum-v0", lambda: 0), "build.algo is a lambda; it has to be the name"),
    (lambda it: offpcc.build("pendulum-v0", "sac", algorithm=5), "build.algorithm is 5; it has to be a dictionary"),
    (lambda it: it.train(num_epochs="10"), "train.num_epochs is '10'; it has to be a whole number"),
    (lambda it: it.train(num_epochs=1, callbacks=5), "train.callbacks is 5; it has to be a list"),
    (lambda it: it.save(5), "file is 5; it has to be the name of a file"),
    (
        lambda it: offpcc.collect("pendulum-v0", None, 5).save(5),
        "file is 5; it has to be the name of a file or a folder",
    ),
    (lambda it: it.save("x.pt", buffer="no"), "save.buffer is 'no'; it has to be True or False"),
    (lambda it: offpcc.Agent(it.algorithm).save("/proc/actor.pt"), "/proc/actor.pt cannot be written"),
    (lambda it: offpcc.Agent(it.algorithm).save("."), "file . names a folder"),
    (lambda it: offpcc.Agent(it), "Agent got an object of Experiment for an algorithm; give learner.algorithm"),
    (lambda it: offpcc.Agent.load(5), "file is 5; it has to be the name of a file"),
    (lambda it: offpcc.evaluate(it.algorithm, "pendulum-v0", episodes=0), "evaluate.episodes is 0"),
    (lambda it: offpcc.collect("pendulum-v0", None, 5, deterministic="yes"), "collect.deterministic is 'yes'"),
    (lambda it: offpcc.plot(5, "curves.png"), "folders is 5; it has to be the name of a file or a folder"),
    (lambda it: offpcc.plot("results", 5), "file is 5; it has to be the name of a file"),
    (lambda it: offpcc.load_run(None), "folder is None; it has to be the name of a file or a folder"),
    (lambda it: offpcc.load(5), "file is 5; it has to be the name of a file"),
    (lambda it: offpcc.configure(5), "the config is 5; it has to be the name of a file"),
    (lambda it: fit(it), "fit got an object of Experiment; give what offpcc.RunSpec.make"),
    (lambda it: fit(it.spec, 5), "run_dir is 5; it has to be the name of a file or a folder"),
    (lambda it: fit(it.spec, resume="x"), "fit.resume is 'x'; it has to be True or False"),
    (lambda it: SPEC(training=5), "RunSpec.make.training is 5; it has to be a dictionary"),
    (lambda it: SPEC(training={"num_epochs": "5"}), "train.num_epochs is '5'; it has to be a whole number"),
    (lambda it: SPEC(results=5), "RunSpec.make.results is 5; it has to be the name of a file or a folder"),
    (lambda it: SPEC(track="x"), "RunSpec.make.track is 'x'; it has to be True or False"),
]


@pytest.mark.parametrize(("call", "words"), WRONG_TYPES, ids=[words.split(";")[0] for _, words in WRONG_TYPES])
def test_a_value_of_the_wrong_type_is_one_message(call, words, learner):
    with pytest.raises(UserError, match=re.escape(words)):
        call(learner)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: offpcc.SAC("pendulum-v0", learning_rate=1.0),
            "^SAC takes no .* 'learning_rate'; in offpcc that is lr$",
        ),
        (lambda: offpcc.SAC("pendulum-v0", tau=0.005), r"in offpcc that is polyak \(polyak = 1 - tau"),
        (
            lambda: offpcc.SAC("pendulum-v0", buffer_size=10),
            r'in offpcc that is buffer=\{"capacity": ...\} \(for agents',
        ),
        (lambda: offpcc.SAC("pendulum-v0", n_envs=2), r'in offpcc that is environments=\{"num_envs": ...\}$'),
        (lambda: offpcc.SAC("pendulum-v0", callback=print), "in offpcc that is callbacks$"),
        (
            lambda: offpcc.SAC("pendulum-v0", total_timesteps=9),
            r"in offpcc that is train\(num_epochs=...\) and train\(num_",
        ),
        (lambda: offpcc.SAC("pendulum-v0", env_wrapper=9), r'make=\{"wrappers": \.\.\.\}'),
        (lambda: offpcc.SAC("pendulum-v0", wrappers=[]), r'make=\{"wrappers": \.\.\.\}'),
        (lambda: offpcc.SAC("pendulum-v0", env_kwargs={}), r'make=\{"kwargs": \.\.\.\}'),
        (
            lambda: offpcc.SAC("pendulum-v0", max_episode_steps=5),
            r'make=\{"kwargs": \.\.\.\} \(as in \{"max_episode_steps": 200\}',
        ),
        (lambda: offpcc.TD3("pendulum-v0", ent_coef="auto"), "in offpcc that is alpha of offpcc.SAC and autotune of "),
        (lambda: offpcc.IQL("pendulum-v0", temperature=3.0), "in offpcc that is beta "),
        (lambda: offpcc.RTD3_BC("pendulum-v0", alpha=3.0), "in offpcc that is bc_alpha$"),
        (
            lambda: offpcc.SAC("pendulum-v0").train(total_timesteps=10),
            "in offpcc that is num_epochs and num_steps_per_",
        ),
        (lambda: offpcc.SAC("pendulum-v0").train(callback=print), "in offpcc that is callbacks$"),
        (lambda: offpcc.SAC("pendulum-v0").train(learning_rate=1.0), "in offpcc that is lr of offpcc.SAC$"),
        (
            lambda: offpcc.RunSpec.make("pendulum-v0", "sac", run_id=2),
            "^RunSpec.make takes no argument 'run_id'; in offpcc that is seed$",
        ),
        (lambda: offpcc.load("saved.pt", callbacks=[print]), r"is callbacks where .*, or train\(callbacks=...\)$"),
        (lambda: offpcc.load("saved.pt", batch_size=9), r'is buffer=\{"batch_size": ...\} where the learner is built$'),
        (
            lambda: offpcc.evaluate(None, "pendulum-v0", max_episode_steps=9),
            r"is env=lambda: offpcc.make\(NAME, kwargs=...\) \(as in",
        ),
        (lambda: offpcc.collect("pendulum-v0", None, wrappers=[]), r"env=lambda: offpcc.make\(NAME, wrappers=...\)$"),
        (lambda: offpcc.check_env("pendulum-v0", wrappers=[]), r"env=lambda: offpcc.make\(NAME, wrappers=...\)$"),
        (lambda: offpcc.train_model("a", "b", wrappers=[]), r"env=lambda: offpcc.make\(NAME, wrappers=...\)$"),
        (lambda: offpcc.load("saved.pt", wrappers=[]), r'is make=\{"wrappers": ...\} where the learner is built$'),
        (lambda: offpcc.RunSpec.make("pendulum-v0", "sac", wrappers=[]), r'is make=\{"wrappers": ...\}$'),
        (lambda: offpcc.build("pendulum-v0", "sac", lr=1.0), r'in offpcc that is algorithm=\{"lr": ...\}$'),
        (
            lambda: offpcc.SAC("MlpPolicy", "pendulum-v0"),
            r"SAC takes the environment.*offpcc.SAC sees vectors, offpcc.CSAC sees images, offpcc.RSAC has a memory",
        ),
        (lambda: offpcc.SAC("MlpPolicy"), r"SAC takes the environment.*offpcc.CSAC sees images"),
        (lambda: offpcc.DQN("MlpPolicy"), r'offpcc.DQN\("cartpole-v0", .*offpcc.CDQN sees images, offpcc.RDQN has'),
        (
            lambda: offpcc.evaluate(None, "pendulum-v0", n_eval_episodes=5),
            "evaluate takes no .*; in offpcc that is episodes",
        ),
        (
            lambda: offpcc.evaluate(None),
            r"missing a required argument: 'env'; give agent, env, episodes, and the others",
        ),
        (
            lambda: offpcc.collect("pendulum-v0", None, total_timesteps=5),
            "collect takes no .* in offpcc that is steps$",
        ),
        (lambda: offpcc.make("pendulum-v0", max_episode_steps=5), r'is kwargs \(as in \{"max_episode_steps": 200\}\)'),
        (
            lambda: offpcc.Dataset.from_arrays(np.zeros((4, 2)), np.zeros((4, 1)), np.zeros(4)),
            r"give all by name: Dataset.from_arrays\(observations=..., actions=..., rewards=..., terminations=",
        ),
        (lambda: offpcc.Dataset.from_arrays(dones=1), "from_arrays takes no .*'dones'; in offpcc that is terminations"),
        (
            lambda: offpcc.Dataset.from_arrays(
                observations=np.zeros((4, 2)), actions=np.zeros((4, 1)), rewards=np.zeros(4)
            ),
            r"terminations \(terminals\) missing; .*zeros if the task never ends. Steps .* are truncations",
        ),
        (lambda: offpcc.SAC("pendulum-v0").train(10_000), "train got 10000 for a logger; .* give num_epochs=N"),
        (lambda: offpcc.SAC("pendulum-v0", verbose=1), "train always shows progress; "),
        (lambda: offpcc.SAC("pendulum-v0", tensorboard_log="logs"), "offpcc.fit trains in a folder, with table"),
        (lambda: offpcc.SAC("pendulum-v0", use_gpu=True), 'in offpcc that is device="cuda"$'),
        (lambda: offpcc.SAC("pendulum-v0", env_id="e"), "in offpcc that is env$"),
        (lambda: offpcc.SAC("pendulum-v0", cell="lru"), "of agents with memory, such as offpcc.RecurrentSAC$"),
        (lambda: offpcc.CSAC("pendulum-v0", num_layers=1), "such as offpcc.ConvolutionalRecurrentSAC$"),
        (lambda: offpcc.RSAC("pendulum-p-v0", lstm_hidden_size=8), "in offpcc that is hidden_dim$"),
        (
            lambda: offpcc.build("pendulum-v0", "sac", algorithm={"cell": "lru"}),
            "'cell'; in offpcc that is Recurrent.cell",
        ),
        (lambda: offpcc.build("pendulum-p-v0", "rsac", cell="lru"), r'in offpcc that is algorithm=\{"cell": ...\}$'),
        (lambda: offpcc.SAC("pendulum-v0").train(n_steps=9), "that is num_epochs and num_steps_per_epoch .the product"),
        (lambda: offpcc.SAC("pendulum-v0").train(dataset=9), r"as in offpcc.IQL\(env, dataset=data\)$"),
        (
            lambda: offpcc.SAC("pendulum-v0").train(evaluators={}),
            "in offpcc that is num_test_episodes_per_epoch .there",
        ),
        (lambda: offpcc.SAC("pendulum-v0").train(scorers={}), "in offpcc that is num_test_episodes_per_epoch .there"),
        (lambda: offpcc.SAC.load("model.zip"), r"in offpcc that is offpcc.load\(FILE\), and offpcc.Agent.load"),
    ],
)
def test_names_and_habits_of_other_libraries_are_answered_with_ours(call, words):
    with pytest.raises(UserError, match=words):
        call()


def test_a_reward_at_the_start_of_an_episode_is_not_read():
    """In a loop, the variable still holds the last reward of the episode before."""
    learner = offpcc.RSAC("pendulum-p-v0", encoder=functools.partial(Recurrent, use_previous_reward=True), seed=1)
    agent = offpcc.Agent(learner.algorithm)
    observation, _ = offpcc.make("pendulum-p-v0").reset(seed=1)
    first = agent.act(observation)
    agent.reset()
    np.testing.assert_array_equal(agent.act(observation, -7.0), first)
    with pytest.raises(ValueError, match=r"got the previous_reward nan; give finite numbers"):
        agent.act(observation, np.nan)
    agent.act(observation, -7.0)


def test_another_environment_of_the_same_functions_name_is_refused_on_resume(tmp_path):

    def made(**given):
        def make_env():
            return gymnasium.make("Pendulum-v1", **given)

        return make_env

    def spec(function, num_epochs):
        training = {"num_epochs": num_epochs, "num_steps_per_epoch": 40, "num_test_episodes_per_epoch": 1}
        return RunSpec.make(function, "sac", seed=1, training={**training, "update_after": 1_000})

    quiet_fit(spec(made(max_episode_steps=20, g=5.0), 1), tmp_path / "run")
    quiet_fit(spec(made(max_episode_steps=20, g=5.0), 2), tmp_path / "run", resume=True)
    with pytest.raises(UserError, match=r"made with env_made .*Pendulum-v1\(g=5\.0, .*, but .*Pendulum-v1\(g=10\.0"):
        other = spec(made(max_episode_steps=20, g=10.0), 3)
        quiet_fit(other, tmp_path / "run", resume=True)


def collected():
    return offpcc.collect(Drift, None, steps=20)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: offpcc.evaluate_policy,
            "module 'offpcc' has no attribute 'evaluate_policy'; in offpcc: offpcc.evaluate(",
        ),
        (lambda: offpcc.nonsense, "module 'offpcc' has no attribute 'nonsense'"),
        (lambda: offpcc.SACC, "module 'offpcc' has no attribute 'SACC'; did you mean SAC?"),
        (lambda: offpcc.data.split, "module 'offpcc.data' has no attribute 'split'; it has Dataset, Hindsight"),
        (lambda: offpcc.SAC(Drift, **SMALL).learn(1000), "the learner has no attribute 'learn'; in offpcc: train("),
        (lambda: offpcc.IQLConfig, "'IQLConfig'; in offpcc: offpcc.IQL(env, "),
        (lambda: offpcc.SubprocVecEnv, "'SubprocVecEnv'; in offpcc: environments="),
        (lambda: offpcc.VecNormalize, "'VecNormalize'; in offpcc: normalize_observations=True of a constructor"),
        (
            lambda: offpcc.SAC(Drift, **SMALL).fit(5, n_steps=9),
            "updates; the data is given where the learner is built, as in ",
        ),
        (lambda: offpcc.SAC(Drift, **SMALL).create(), "'create'; in offpcc: train(num_epochs=N"),
        (lambda: offpcc.SAC(Drift, **SMALL).fitter(5), "'fitter'; in offpcc: train(num_epochs=N"),
        (lambda: offpcc.SAC(Drift, **SMALL).save_replay_buffer("f"), "in offpcc: save(FILE, buffer=True"),
        (lambda: offpcc.SAC(Drift, **SMALL).nonsense, "the learner has no attribute 'nonsense'"),
        (lambda: collected().split(0.8), "the dataset has no attribute 'split'; in offpcc: select("),
        (lambda: collected().dump("d.h5"), "'dump'; in offpcc: save("),
        (lambda: collected().fractions(0.5), "'fractions'; did you mean fraction?"),
        (lambda: offpcc.Agent(offpcc.SAC(Drift, **SMALL).algorithm).predict(0), "the agent has .*; in offpcc: act"),
    ],
)
def test_methods_of_other_libraries_get_a_hint(call, words):
    with pytest.raises(AttributeError, match=words.replace("(", r"\(")):
        call()


def test_an_index_of_a_dataset_leads_to_select():
    for use in (lambda: collected()[:100], lambda: list(collected())):
        with pytest.raises(TypeError, match=r"a dataset has no items; select\(EPISODES\)"):
            use()
    data = collected()
    assert copy.deepcopy(pickle.loads(pickle.dumps(data))).num_steps == data.num_steps


def test_a_guess_for_a_name_stands_once_in_a_traceback():
    done = subprocess.run([sys.executable, "-c", "import offpcc; offpcc.RTD3BC"], capture_output=True, text=True)
    assert done.stderr.lower().count("did you mean") == 1 and "did you mean RTD3_BC?" in done.stderr


def test_training_goes_on_as_it_was_asked_before(tmp_path):
    """A call without `num_epochs` keeps the return to reach, and a refused call changes nothing."""
    learner = offpcc.build(Drift, "sac", algorithm=SMALL)
    quiet = Loggers([])
    learner.train(quiet, num_epochs=3, stop_return=-1e9, stop_tests=1, **SHORT)
    assert learner.loop.epoch == 1 and learner.loop.stopped
    learner.train(quiet)
    assert learner.loop.epoch == 1
    with pytest.raises(UserError, match=r"num_epochs is 0"):
        learner.train(quiet, num_epochs=0)
    learner.train(quiet)
    assert learner.loop.epoch == 1
    with pytest.raises(UserError, match="num_steps_per_epoch is 50, but the 1 epoch so far had 210 steps"):
        learner.train(quiet, num_epochs=2, num_steps_per_epoch=50)
    learner.train(quiet, num_epochs=2)
    assert (learner.loop.epoch, learner.loop.step) == (2, 420)
    learner.save(tmp_path / "learner.pt", buffer=True)
    again = offpcc.load(tmp_path / "learner.pt", env=Drift)
    with pytest.raises(UserError, match="num_steps_per_epoch is 50, but the 2 epochs so far had 210 steps"):
        again.train(quiet, num_epochs=3, num_steps_per_epoch=50)
    several = offpcc.build(Drift, "sac", algorithm=SMALL, environments={"num_envs": 4})
    with pytest.raises(UserError, match="num_envs"):
        several.train(quiet, num_epochs=1, num_steps_per_epoch=2)
    assert several.asked is None and not several.settings


def test_a_class_of_callbacks_is_built_once_for_two_phases(pendulum_file):
    built = []

    class Watch(Callback):
        def __init__(self):
            built.append(self)

    learner = offpcc.build("pendulum-v0", "td3_bc", dataset=pendulum_file, then_env_steps=1_100, algorithm=SMALL)
    short = {"num_steps_per_epoch": 1_100, "num_test_episodes_per_epoch": 1, "updates_per_step": 0.001}
    learner.train(Loggers([]), callbacks=[Watch], num_epochs=1, **short)
    assert learner.is_online and len(built) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"callbacks": lambda run: None}, r"fit\.callbacks is .* it has to be a list"),
        ({"callbacks": [3]}, r"fit\.callbacks"),
        ({"announce": None}, r"fit\.announce is None; give a function of a text"),
    ],
)
def test_what_fit_cannot_call_is_refused_before_a_folder_is_made(given, words, tmp_path):
    offpcc.configure("test/template_short.gin")
    with pytest.raises(UserError, match=words):
        fit(RunSpec.make("pendulum-p-v0", "sac", seed=1), tmp_path / "run", **given)
    assert not list(tmp_path.iterdir())


def test_changed_rewards_have_no_normalised_score():
    pytest.importorskip("mujoco")
    clipped = ["make.wrappers = [@gymnasium.ClipReward]", "ClipReward.min_reward = -0.1"]
    for bindings, has_score in (([], True), (clipped, False)):
        offpcc.configure(None, *bindings)
        learner = offpcc.build("hopper-mujoco-v0", "sac", algorithm=SMALL)
        assert (learner.tests.references is not None) is has_score
        learner.close()


def test_statistics_that_no_column_names_are_told(capsys):
    @configurable
    class TellingSAC(offpcc.algorithms.SAC):
        """SAC with one statistic more."""

        def inner_update(self, batch):
            return {**super().inner_update(batch), "extra": torch.zeros(())}

    learner = offpcc.build(Drift, "TellingSAC", algorithm=SMALL)
    learner.train(Loggers([]), num_epochs=3, updates_per_step=0.1, **{**SHORT, "update_after": 300})
    assert [row["update/q"] is None for row in learner.loop.rows] == [True, False, False]
    err = capsys.readouterr().err
    assert err.count("TellingSAC returns the statistics extra, which its stat_names lacks") == 1
    learner = offpcc.build(Drift, "td3", algorithm=SMALL, buffer_class=offpcc.data.PrioritizedReplayBuffer)
    learner.train(Loggers([]), num_epochs=1, updates_per_step=0.1, **SHORT)
    assert "stat_names" not in capsys.readouterr().err


def test_an_environment_that_is_made_already_is_evaluated_and_stays_open():
    agent = offpcc.Agent(offpcc.build("pendulum-v0", "sac", algorithm={"hidden_dims": (8,)}).algorithm)
    expected = offpcc.evaluate(agent, "Pendulum-v1", episodes=3)
    for env in (gymnasium.make("Pendulum-v1"), offpcc.make("pendulum-v0")):
        closed = []
        env.unwrapped.close = lambda closed=closed: closed.append(True)
        for _ in range(2):
            found = offpcc.evaluate(agent, env, episodes=3)
            np.testing.assert_allclose(found.returns, expected.returns, rtol=1e-6)
        assert not closed
    offpcc.configure(None, "make.kwargs = {'max_episode_steps': 50}")  # for training
    assert offpcc.evaluate(agent, gymnasium.make("Pendulum-v1"), episodes=1).lengths.tolist() == [200]
    with pytest.raises(UserError, match=r"observations of shape \(4,\)"):
        offpcc.evaluate(agent, gymnasium.make("CartPole-v1"), episodes=1)


@pytest.mark.parametrize("env", ["pendulum-p-v0", "cartpole-p-v0"])
def test_an_agent_reads_the_action_that_was_executed(env):
    algo = "rsac" if env.startswith("pendulum") else "rdqn"
    offpcc.configure(None, "Recurrent.use_previous_action = True", "Recurrent.hidden_dim = 8")
    learner = offpcc.build(env, algo, algorithm={"hidden_dims": (8,)}, seed=1)
    made = offpcc.make(env)
    observation, _ = made.reset(seed=1)

    def second(executed):
        agent = offpcc.Agent(learner.algorithm)
        first = agent.act(observation, previous_action=executed)  # ignored at the first step
        step = agent.act(observation) if executed is None else agent.act(observation, previous_action=executed)
        return first, step, pickle.dumps(agent._memory)

    chosen, plain, memory = second(None)
    assert second(chosen) == (chosen, plain, memory)
    assert second(1 - chosen if algo == "rdqn" else -chosen)[2] != memory
    with pytest.raises(ValueError, match="previous_action of shape"):
        second(np.zeros(3))
    if algo == "rsac":
        agent = offpcc.Agent(learner.algorithm)
        agent.act(observation, previous_action=np.array([np.inf]))  # ignored at the first step
        for wrong in (np.nan, np.inf, -np.inf):
            text = rf"previous_action array\(\[{wrong}\]\); give finite numbers, or leave the arg"
            with pytest.raises(ValueError, match=text):
                agent.act(observation, previous_action=np.array([wrong]))
        assert (agent.act(observation), pickle.dumps(agent._memory)) == (plain, memory), "nothing of it stays"
    if algo == "rdqn":
        assert second(float(chosen))[1:] == (plain, memory)
        for wrong in (-1, 2, 0.5):
            agent = offpcc.Agent(learner.algorithm)
            agent.act(observation, previous_action=wrong)  # ignored at the first step
            with pytest.raises(ValueError, match=r"previous_action .*, but actions are from 0 to 1"):
                agent.act(observation, previous_action=wrong)


def test_settings_of_train_without_effect_are_told(capsys):
    learner = offpcc.RDQN("cartpole-p-v0", encoder=offpcc.networks.Recurrent, hidden_dim=4, hidden_dims=(4,))
    learner.train(Loggers([]), num_epochs=1, num_steps_per_epoch=20, num_test_episodes_per_epoch=0, update_every=4)
    told = capsys.readouterr().err
    assert "train(update_every=...) has no effect: an agent with memory learns when an episode ends" in told
    assert "train(num_epochs" not in told


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"target_update_interval": 500}, "the targets hardly move: each 500 updates, they move by 0.005 of the way"),
        ({"polyak": 0.005}, "almost the networks themselves, as polyak is 0.005: it is 1 - tau"),
        ({"target_update_interval": 49, "polyak": 0.9999}, "the targets hardly move"),
        ({"target_update_interval": 500, "polyak": 0.0}, ""),
        ({"target_update_interval": 50, "polyak": 0.9}, ""),
        ({"polyak": 0.0}, ""),
        ({}, ""),
    ],
)
def test_targets_that_do_not_follow_the_networks_are_told(settings, told):
    agent = offpcc.SAC("pendulum-v0", hidden_dims=(4,), **settings).algorithm
    assert told in agent.updates_warning(100.0) and bool(told) is bool(agent.updates_warning(100.0))


def test_schedules_that_stay_small_are_accepted():
    for schedule in (lambda n: 1.0, lambda n: 3e-4 / (1.0 + n), [3e-4, 1e-4].__getitem__, LinearDecay(1e-3)):
        assert offpcc.SAC("pendulum-v0", hidden_dims=(4,), lr=schedule).algorithm.lr is schedule


def test_a_schedule_is_not_asked_for_later_rates_before_training():
    class Counting:
        def __init__(self):
            self.calls = []

        def __call__(self, update):
            self.calls.append(update)
            return 1e-3

    schedule = Counting()
    offpcc.SAC("pendulum-v0", hidden_dims=(4,), lr=schedule)
    assert {*schedule.calls} <= {0}, "its copies were asked for later rates"


@pytest.mark.parametrize(
    "arguments", [("pendulum-v0",), (lambda: gymnasium.make("Pendulum-v1"),), ("MlpPolicy", "pendulum-v0"), (5, 6), ()]
)
def test_a_class_of_an_algorithm_names_the_function_that_builds_it(arguments):
    named = {} if arguments else {"env": "pendulum-v0"}
    with pytest.raises(TypeError, match=r"TD3 takes the spaces .*offpcc\.build\(ENV, TD3\) builds it"):
        ALGORITHMS["td3"](*arguments, lr=1e-3, **named)
    with pytest.raises(TypeError, match=r"(?s)^((?!offpcc\.build).)*$"):
        ReplayBuffer(1_000)


def test_a_spec_has_one_way_to_be_made():
    for arguments, named in ((("pendulum-v0", "sac"), {}), ((), {"env": "pendulum-v0", "algo": "sac"})):
        with pytest.raises(TypeError, match=r"RunSpec is made by RunSpec\.make"):
            RunSpec(*arguments, **named)
    spec = RunSpec.make("pendulum-v0", "sac", seed=3)
    assert dataclasses.replace(spec, seed=4).seed == 4 and copy.copy(spec) == spec


def test_a_training_that_will_make_no_update_says_so_at_its_start():
    learner = offpcc.SAC("pendulum-v0", hidden_dims=(4,))
    with pytest.warns(DataWarning, match=r"no update will be made: .*update_after is 10,000, .* lower"):
        learner.train(num_epochs=1, num_steps_per_epoch=20, num_test_episodes_per_epoch=0)


@pytest.mark.pictures
def test_a_run_leaves_its_video_out_and_says_when_it_took_long(tmp_path, monkeypatch):
    recorded, told = [], []

    def record(actor, make_env, number, folder, *_):
        recorded.append(folder.parent.name)
        return [], [folder / "best_actor_1.mp4"]

    monkeypatch.setattr(fit_module, "record_episodes", record)
    monkeypatch.setattr(fit_module, "SLOW_VIDEO", 0.0)
    monkeypatch.setattr(fit_module.ConsoleLogger, "print", lambda self, text: told.append(text))
    training = {"num_epochs": 1, "num_steps_per_epoch": 20, "num_test_episodes_per_epoch": 1}
    for name, video in (("with", True), ("without", False)):
        spec = RunSpec.make("pendulum-v0", "sac", algorithm={"hidden_dims": (4,)}, training=training, video=video)
        fit(spec, tmp_path / name, announce=told.append)
    assert recorded == ["with"]
    assert sum(line.startswith("the video took 0 seconds; video=False") for line in told) == 1


def test_threads_read_bindings_one_after_the_other(tmp_path):
    """A learner that is loaded replaces them for a moment."""
    data = offpcc.collect("pendulum-v0", None, steps=300)
    learner = offpcc.build("pendulum-v0", "iql", dataset=data, algorithm={"hidden_dims": (4,)})
    learner.train(Loggers([]), num_epochs=1, num_steps_per_epoch=2, num_test_episodes_per_epoch=0)
    learner.save(tmp_path / "saved.pt")
    offpcc.configure(None, "OfflineToOnline.warm_up_steps = 7")

    def load(steps):
        for _ in range(15):
            loaded = offpcc.load(tmp_path / "saved.pt", dataset=data, then_env_steps=steps)
            if steps:
                found.add(loaded.spec.online.warm_up_steps)

    found = set()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(load, steps) for steps in (None, 2_000)]:
            future.result()
    assert found == {7}
    loaded = offpcc.load(tmp_path / "saved.pt", dataset=data, then_env_steps=2_000)
    loaded.train(Loggers([]), num_epochs=1, num_test_episodes_per_epoch=0)
    loaded.save(tmp_path / "saved.pt")
    for steps, words in (
        (0, "then_env_steps is 0, but the learner has already made"),
        (-1, "load.then_env_steps is -1"),
    ):
        with pytest.raises(UserError, match=words):
            offpcc.load(tmp_path / "saved.pt", dataset=data, then_env_steps=steps)


@pytest.mark.parametrize("last", [False, True])
def test_an_image_gives_one_action_in_every_form_and_other_numbers_are_refused(last):
    shape = (30, 28, 3) if last else (3, 30, 28)
    images, actions = gymnasium.spaces.Box(0, 255, shape, np.uint8), gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    agent = offpcc.Agent(ALGORITHMS["csac"](images, actions, seed=1))
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    expected = agent.act(image)
    for same in (image.astype(np.int64), image.tolist(), torch.as_tensor(image), image.astype(np.float32) / 255.0):
        agent.reset()
        np.testing.assert_allclose(agent.act(same), expected, atol=1e-6)
    agent.reset(num_envs=2)
    np.testing.assert_allclose(agent.act(np.stack([image] * 2).astype(np.int32)), np.stack([expected] * 2), atol=1e-6)
    agent.reset()
    for other in (image.astype(np.float32), 4 * image.astype(int), -image.astype(int), np.full(shape, np.nan)):
        with pytest.raises(ValueError, match=r"act got an image of \w+ from \S+ to \S+; give uint8 from 0 to 255"):
            agent.act(other)
    for other in (image > 100, image.astype(str), np.full(shape, None)):
        with pytest.raises(ValueError, match=r"act got an image of \S+; give uint8 from 0 to 255"):
            agent.act(other)


class Picture(gymnasium.Env):
    """Shows a grey picture, alone or in a Dict."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, shape=(24, 24, 3), dtype=np.float32, in_dict=True):
        image = gymnasium.spaces.Box(0, 1 if dtype == np.float32 else 255, shape, dtype)
        self.in_dict = in_dict
        self.observation_space = gymnasium.spaces.Dict({"image": image}) if in_dict else image

    def observe(self):
        image = self.observation_space["image"] if self.in_dict else self.observation_space
        seen = np.ones(image.shape, image.dtype)
        return {"image": seen} if self.in_dict else seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        return self.observe(), 0.0, False, False, {}


def test_an_image_that_is_read_as_a_vector_is_named_before_training():
    with pytest.warns(DataWarning, match=r"'image' is float32 of shape \(24, 24, 3\), which is read as a vector"):
        offpcc.SAC(Picture, hidden_dims=(4,), make={"kwargs": {}})
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        offpcc.CSAC(functools.partial(Picture, dtype=np.uint8), hidden_dims=(4,))
    with pytest.raises(UserError, match=r"are a Dict without images: .* an image is uint8 with an axis for channels"):
        offpcc.CSAC(Picture, hidden_dims=(4,))


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        (
            (24, 24, 3),
            np.float32,
            "if it is an image, make it uint8 from 0 to 255 .*; else flatten it by",
        ),
        (
            (3, 24, 24, 3),
            np.uint8,
            r"by make.wrappers = \[@Concatenate\], Concatenate.num = 4 in place of",
        ),
        ((4, 3), np.float32, "join frames by Concatenate, or else flatten it"),
    ],
)
def test_the_remedy_for_observations_of_another_shape_fits_them(shape, dtype, words):
    with pytest.raises(UserError, match=words):
        offpcc.make(functools.partial(Picture, shape, dtype, in_dict=False))


# Mistakes in parts of the user's own ---------------------------------------------------------------------------------


def test_a_space_that_is_no_dict_is_refused(tmp_path):
    columns = {"observations": np.zeros((9, 2), np.float32), "actions": np.zeros((9, 1), np.float32)}
    columns |= {"rewards": np.zeros(9), "terminations": np.arange(9) == 8}
    told = r"observation_space is Box\(.*it is for Dict observations only; leave it out"
    for space in (gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.make("CartPole-v1").observation_space):
        with pytest.raises(UserError, match=told):
            offpcc.Dataset.from_arrays(**columns, observation_space=space)
    offpcc.Dataset.from_arrays(**columns).save(tmp_path / "x.hdf5")
    with pytest.raises(UserError, match=told):
        offpcc.data.load_dataset(tmp_path / "x.hdf5", observation_space=space)


def test_a_function_is_configurable_as_a_callback(capsys):
    @offpcc.configurable
    def tell_epoch(run):
        print("epoch", run.loop.epoch)

    offpcc.configure(None, "build.callbacks = [@tell_epoch]")
    train(offpcc.build(Drift, "sac", algorithm=SMALL), num_epochs=2)
    assert "epoch 1\nepoch 2\n" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"offpcc.configurable got 3; it decorates a class or a function"):
        offpcc.configurable(3)


def test_a_callback_without_an_argument_is_refused_before_the_training():
    with pytest.raises(UserError, match=r"is called with the run: too many positional arguments; give it one argument"):
        train(offpcc.build(Drift, "sac", algorithm=SMALL), callbacks=[lambda: None])


def test_an_environment_without_spaces_is_told():
    for lacking in ("action_space", "observation_space"):
        spaces = {"action_space": Drift().action_space, "observation_space": Drift().observation_space}
        bare = type("Bare", (gymnasium.Env,), {name: space for name, space in spaces.items() if name != lacking})
        with pytest.raises(UserError, match=f"Bare has no {lacking}; set it in the constructor"):
            offpcc.SAC(bare)


def test_a_logger_that_takes_no_folder_is_refused():
    class Deaf:
        pass

    with pytest.raises(UserError, match=r"build.loggers: Deaf cannot be built: TypeError.*the folder of the run"):
        offpcc.build(Drift, "sac", algorithm=SMALL, loggers=[Deaf]).train(num_epochs=1, **SHORT)


def test_an_agent_whose_encoder_takes_away_its_memory_is_told(tmp_path, capsys):
    offpcc.configure(None, "RecurrentSAC.encoder = @Identity", "train.num_steps_per_epoch = 20")
    settings = {"num_epochs": 1, **SHORT}
    offpcc.fit(offpcc.RunSpec.make("pendulum-p-v0", "rsac", seed=1, training=settings), tmp_path / "run")
    told = capsys.readouterr()
    assert (told.out + told.err).count("rsac has no memory here, because its encoder has none") == 1


def test_an_argument_that_takes_away_the_memory_is_told():
    for name in ("RSAC", "RecurrentSAC"):
        with pytest.warns(DataWarning, match=r"^rsac has no memory here, because its encoder has none; .*feature_extr"):
            getattr(offpcc, name)("pendulum-p-v0", encoder=Identity, hidden_dims=(8,))


# What has no effect, or another one than it seems ---------------------------------------------------------------------


def test_an_argument_without_effect_is_told(tmp_path):
    with pytest.warns(DataWarning, match=r"^SAC.alpha_lr has no effect: autotune is False, .*; leave it out"):
        learner = offpcc.SAC(Drift, **SMALL, autotune=False, alpha_lr=1e-3)
    learner.save(tmp_path / "learner.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        offpcc.load(tmp_path / "learner.pt", Drift)
        offpcc.SAC(Drift, **SMALL, autotune=False)
        offpcc.SAC(Drift, **SMALL, alpha_lr=1e-3)
        offpcc.SAC(Drift, **SMALL, cuda_graphs=False)  # as a script for any device does


@pytest.mark.parametrize(
    ("algo", "given", "told"),
    [
        ("rsac", {"algorithm": {"cell": "concat", "num_layers": 3}}, "Recurrent.num_layers .* concat only"),
        ("sac", {"buffer": {"memory_limit": 100}}, "ReplayBuffer.memory_limit .* not images"),
        ("sac", {"buffer": {"eta": 0.5}, "buffer_class": PrioritizedReplayBuffer}, "Buffer.eta .* one TD error"),
        ("iql", {"buffer": {"capacity": 5}, "dataset": ...}, "ReplayBuffer.capacity .* held whole"),
    ],
)
def test_so_is_one_of_memory_or_buffer(algo, given, told, tmp_path):
    if "dataset" in given:
        given = {**given, "dataset": offpcc.collect(Drift, None, steps=80)}
    given = {**given, "algorithm": {**SMALL, **given.get("algorithm", {})}}
    with pytest.warns(DataWarning, match=f"^\\w*{told}"):
        offpcc.build(Drift, algo, **given)
    heard, training = [], {"num_epochs": 1, **SHORT}
    spec = offpcc.RunSpec.make(Drift, algo, training=training, video=False, **given)
    offpcc.fit(spec, tmp_path, announce=heard.append)
    assert any(re.search(told, text) for text in heard)


def test_without_critics_windows_have_one_step():
    with pytest.warns(DataWarning, match=r"^BC.n_step has no effect: there are no critics"):
        learner = offpcc.BC(Drift, dataset=offpcc.collect(Drift, None, steps=80), n_step=3, **SMALL)
    assert learner.buffer.num_steps == learner.algorithm.n_step == 1


def learning_inside(env):
    return gymnasium.wrappers.TransformReward(gymnasium.wrappers.NormalizeReward(env), lambda reward: reward)


class OwnNormalization(gymnasium.wrappers.NormalizeObservation):
    pass


@pytest.mark.parametrize(
    ("wrapper", "name"),
    [
        (gymnasium.wrappers.NormalizeReward, "NormalizeReward"),
        (gymnasium.wrappers.NormalizeObservation, "NormalizeObservation"),
        (OwnNormalization, "OwnNormalization"),
        (learning_inside, "NormalizeReward"),
    ],
)
def test_wrappers_that_learn_are_refused(wrapper, name):
    with pytest.raises(UserError, match=rf"make.wrappers applies {name}, which learns while it wraps.*; ActorCritic\."):
        offpcc.SAC("pendulum-v0", **SMALL, make={"wrappers": [wrapper]})


@pytest.mark.parametrize("name", ["NormalizeReward", "NormalizeObservation"])
def test_gin_says_why_it_cannot_configure_wrappers_that_learn(name):
    with pytest.raises(UserError, match=rf"{name} learns while it wraps, and .*; ActorCritic\."):
        offpcc.configure(None, f"make.wrappers = [@gymnasium.{name}]")


def test_a_wrapper_with_fixed_statistics_is_taken():
    def frozen(env):
        wrapped = gymnasium.wrappers.NormalizeObservation(env)
        wrapped.update_running_mean = False
        return wrapped

    assert offpcc.SAC("pendulum-v0", **SMALL, make={"wrappers": [frozen]}).algorithm.action_dim == 1


def test_files_are_saved_into_new_folders(tmp_path):
    learner = offpcc.SAC(Drift, **SMALL)
    learner.save(tmp_path / "a" / "b" / "learner.pt")
    offpcc.Agent(learner.algorithm).save(tmp_path / "c" / "d" / "actor.pt")
    assert offpcc.Agent.load(tmp_path / "c" / "d" / "actor.pt").algorithm.action_dim == 1
    with pytest.raises(UserError, match=r"is a folder without a checkpoint; give the folder of a run, .*learner.save"):
        offpcc.load(tmp_path)
    with pytest.raises(UserError, match=r"export got a learner; give its agent"):
        offpcc.export(learner, tmp_path / "actor.onnx")


class Pair(Drift):
    """Shows a tuple of two choices."""

    observation_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(3)])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return (0, 2), {}

    def step(self, action):
        return (1, 1), *super().step(action)[1:]


@pytest.mark.parametrize("observation", [(0, 2), (np.zeros(2), 0)])
def test_an_agent_tells_how_it_reads_a_tuple(observation):
    agent = offpcc.Agent(offpcc.SAC(Pair, **SMALL).algorithm)
    with pytest.raises(ValueError, match=r"; a Tuple is read as one vector, .*: gymnasium.spaces.flatten\(space, it\)"):
        agent.act(observation)
    assert agent.act(gymnasium.spaces.flatten(Pair.observation_space, (0, 2)).astype(np.float32)).shape == (1,)


def test_environment_and_algorithm_in_the_wrong_order():
    words = r"'sac' is an algorithm; the environment comes first: \('Pendulum-v1', 'sac'\)"
    with pytest.raises(UserError, match=words):
        offpcc.build("sac", "Pendulum-v1")


@pytest.mark.parametrize("place", ["update", "step", "test"])
@pytest.mark.parametrize("algo", ["sac", "rsac"])
def test_ctrl_c_in_train_waits_for_the_end_of_an_update_so_a_later_call_continues(monkeypatch, place, algo):
    def trained(stops):
        offpcc.configure(None, "Recurrent.hidden_dim = 8", "Recurrent.num_layers = 1", "train.updates_per_step = 0.1")
        options = {"segment_len": 20, "batch_size": 4} if algo == "rsac" else {"batch_size": 16}
        made = offpcc.build("pendulum-p-v0", algo, seed=3, algorithm=SMALL, buffer=options)
        name, method = {
            "update": (type(made.algorithm), "update_targets"),
            "step": (type(made.buffer), "push"),
            "test": (type(made.tests), "run"),
        }[place]
        original, left = getattr(name, method), iter([False] * 2 + [True])

        def stopping(*args, **kwargs):
            if stops and next(left, False):
                os.kill(os.getpid(), signal.SIGINT)
            return original(*args, **kwargs)

        monkeypatch.setattr(name, method, stopping)
        settings = {"num_epochs": 3, **SHORT, "logger": Loggers([])}
        if stops:
            before = signal.getsignal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                made.train(**settings)
            assert made.loop.epoch < 3 and signal.getsignal(signal.SIGINT) is before
        made.train(**settings)
        monkeypatch.setattr(name, method, original)
        return made

    stopped, whole = trained(stops=True), trained(stops=False)
    assert_same(stopped.algorithm.state_dict(), whole.algorithm.state_dict())
    assert [row["test/return"] for row in stopped.loop.rows] == [row["test/return"] for row in whole.loop.rows]


def test_a_second_ctrl_c_in_train_raises_at_once_and_does_not_end_the_process():
    learner = offpcc.build("pendulum-p-v0", "sac", seed=3, algorithm=SMALL)
    hangs = []

    def hang(run):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            hangs.append(True)

    with pytest.raises(KeyboardInterrupt):
        learner.train(num_epochs=1, **SHORT, logger=Loggers([]), callbacks=[hang])
    assert len(hangs) == 1


def test_a_handler_of_a_script_also_counts_in_train():
    """Such as one that saves the learner when a machine of a cluster ends."""
    learner = offpcc.build("pendulum-p-v0", "sac", seed=3, algorithm=SMALL)
    called, before = [], signal.signal(signal.SIGTERM, lambda *_: called.append(learner.loop.step))
    try:
        learner.train(
            num_epochs=1, **SHORT, logger=Loggers([]), callbacks=[lambda run: os.kill(os.getpid(), signal.SIGTERM)]
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == [learner.loop.step] and learner.loop.epoch == 1


def test_ctrl_c_in_train_ends_a_script_by_the_signal():
    """A shell ends its loop of scripts only then."""
    code = (
        "import os, signal, offpcc\n"
        "learner = offpcc.SAC('pendulum-p-v0', hidden_dims=(8,))\n"
        "stop = lambda run: os.kill(os.getpid(), signal.SIGINT)\n"
        "learner.train(num_epochs=2, num_steps_per_epoch=10, num_test_episodes_per_epoch=0, callbacks=[stop])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT and done.stderr.endswith("\nKeyboardInterrupt: stopped\n"), done.stderr
