"""Whatever is bound to a parameter, a run is begun or refused in one message: never another exception, nor much memory.

Every parameter that gin can set is bound to numbers that nobody wants, to values of other kinds, and to references to
what is something else.
"""

import argparse
import decimal
import fractions
import functools
import inspect
import os
import resource
import signal
from pathlib import Path

import gin
import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import offpcc.cli.train  # noqa: F401 (registers what gin can configure)
from offpcc.algorithms import ActorCritic, find_algorithm
from offpcc.algorithms.nonfinite import NonFiniteError
from offpcc.cli import main
from offpcc.cli.arguments import num_envs
from offpcc.cli.messages import TrainOptions
from offpcc.cli.train import make_spec
from offpcc.config import loading
from offpcc.config.bindings import configurables, parameters, passed_by_us
from offpcc.config.registry import REGISTRY
from offpcc.config.validation import check_arguments, rules_of
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.envs.vector.local import environments
from offpcc.networks.cells import CELLS
from offpcc.training.fit import plan_run
from offpcc.training.loggers import Loggers
from offpcc.training.run_dir import RunFolder
from offpcc.utils.errors import UserError

PATIENCE = 60  # seconds for one value
MEMORY = 4 * 2**30  # bytes beside what this process holds
VALUES = (
    "-1",
    "0",
    "1000000000",
    "10000000000000",
    str(2**63 - 1),
    str(2**63),
    "9" * 5_000,
    f"0x{'f' * 5_000}",
    "1e308",
    "1e400",
    "-1e400",
    "True",
    "None",
    "'1'",
    "1j",
    "(1000000000,)",
    "{}",
    "@gin.singleton",
    "@x/gin.singleton()",
    "@gin.constant()",
    "@gin.macro()",
    "%gin.REQUIRED",
    "@train",
    "@train()",
    "@make",
    "@make()",
    "@Recurrent",
    "@LinearDecay",
    "@RandomShift()",
    "@Flicker",
    "@gymnasium.TimeLimit()",
)
SMALL = {
    "train.num_epochs": "1",
    "train.num_steps_per_epoch": "14",
    "train.update_after": "6",
    "train.updates_per_step": "0.3",
    "train.num_test_episodes_per_epoch": "1",
    "make.kwargs": "{'max_episode_steps': 5}",
    "ReplayBuffer.batch_size": "3",
    "RecurrentReplayBuffer.batch_size": "2",
    "ActorCritic.hidden_dims": "(4,)",
    "Recurrent.hidden_dim": "4",
    "Recurrent.num_layers": "1",
    "Convolutional.channels": "(2,)",
    "Convolutional.kernels": "(3,)",
    "Convolutional.strides": "(4,)",
    "Convolutional.feature_dim": "3",
}
SMALL_MODEL = {
    "DynamicsModel.hidden_dims": "(4,)",
    "ModelTraining.max_epochs": "1",
    "ModelTraining.updates_per_epoch": "1",
    "Imagination.steps_per_update": "8",
    "Imagination.every": "2",
}
ALGORITHMS = {
    **dict.fromkeys(("Recurrent", "RecurrentReplayBuffer", "PrioritizedRecurrentReplayBuffer", "episodes"), "rsac"),
    **dict.fromkeys(("Convolutional", "RandomShift"), "csac"),
    **dict.fromkeys(("DynamicsModel", "ModelTraining", "Imagination"), "mopo"),
    **dict.fromkeys(("dataset", "OfflineToOnline"), "td3_bc"),
}
USES = {  # bindings with which a class takes part
    **dict.fromkeys(("DynamicsModel", "ModelTraining", "Imagination"), SMALL_MODEL),
    **{name: {"build.buffer_class": f"@{name}"} for name in REGISTRY if name.startswith("Prioritized")},
    "Identity": {"SAC.encoder": "@Identity"},
    "OfflineToOnline": {"OfflineToOnline.warm_up_steps": "6"},
    "Residual": {"SAC.heads": "@Residual()", "Residual.actor_width": "4", "Residual.critic_width": "4"},
}
DATA = ("dataset", "OfflineToOnline", "DynamicsModel", "ModelTraining", "Imagination")  # they need a data set
SLOW = {("compile", "True"), ("worker_processes", "True")}  # what takes long, though it is right

TAKE_ANYTHING = {  # gymnasium's parameters that take a complex number
    *("gymnasium.ClipReward.max_reward", "gymnasium.ClipReward.min_reward"),
    *("gymnasium.TimeAwareObservation.dict_time_key", "gymnasium.TimeAwareObservation.flatten"),
    "gymnasium.TimeAwareObservation.normalize_time",
}

NEED_A_VALUE = {  # wrappers with a parameter that has no default
    "OneHotGrid",  # for grids alone
    *("KeepIndices", "DropIndices", "Flicker", "ObservationNoise", "Concatenate"),
    *("gymnasium.DelayObservation", "gymnasium.DtypeObservation", "gymnasium.FrameStackObservation"),
    *("gymnasium.MaxAndSkipObservation", "gymnasium.ReshapeObservation", "gymnasium.RescaleObservation"),
    "gymnasium.FilterObservation",
    *("gymnasium.StickyAction", "gymnasium.TimeLimit", "gymnasium.TimeAwareObservation", "gymnasium.ClipReward"),
}


def bindable():
    """Classes and functions with their parameters, each where it is declared; a combination declares none."""
    for name, function in configurables().items():
        if not function.__module__.startswith(("offpcc", "gymnasium")) or ".variants." in name:
            continue
        names = parameters(function) - passed_by_us(function)
        if isinstance(function, type) and issubclass(function, ActorCritic) and function is not ActorCritic:
            names &= inspect.signature(function.__dict__["__init__"]).parameters.keys()
        owner = name if name.startswith("gymnasium.") else name.split(".")[-1]
        yield from ((owner, function, parameter) for parameter in sorted(names))


def settings_for(owner, function, file):
    """The words and the bindings with which a class takes part."""
    bindings, algo = SMALL | USES.get(owner, {}), ALGORITHMS.get(owner, "sac")
    if isinstance(function, type) and issubclass(function, ActorCritic) and function.__name__ != "DeterministicPolicy":
        named = {"ActorCritic": "sac", "TD3BC": "td3_bc", "ValueBased": "dqn"}
        algo = named.get(owner, owner.lower().replace("discrete", "d"))
    elif owner == "DeterministicPolicy":
        algo = "ddpg"
    elif owner.lower() in CELLS:
        algo, bindings["Recurrent.cell"] = "rsac", repr(owner.lower())
    elif owner.endswith("Decay"):
        bindings["SAC.lr"] = f"@{owner}()"
    elif "wrappers" in function.__module__:
        bindings["make.wrappers"] = f"[@{owner}]"
    if find_algorithm(algo).is_discrete:
        env, bindings = (
            "cartpole-p-v0",
            {name: value for name, value in bindings.items() if not name.startswith("SAC.")},
        )
    elif owner in DATA:
        env = "pendulum-v0"
    else:
        env = "pendulum-img-v0" if algo == "csac" else "pendulum-p-v0"
    words = ["--env", env, "--algo", algo, *(["--dataset", str(file)] if owner in DATA else [])]
    return words + (["--then_env_steps", "14"] if owner == "OfflineToOnline" else []), bindings


@pytest.fixture(autouse=True)
def bounded():
    """What takes too long or too much memory fails, instead of keeping all tests waiting."""

    def fail(*_):
        raise TimeoutError("this takes too long")

    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, limits[1]))
    handler = signal.signal(signal.SIGALRM, fail)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
    resource.setrlimit(resource.RLIMIT_AS, limits)


def begun(config, words, bindings, is_trained=True):
    """What a command line does with bindings before anything is made, and then a few steps."""
    config.write_text("\n".join(f"{name} = {given}" for name, given in bindings.items()))
    _, options = main.parse([*words, "--config", str(config)])
    folder = RunFolder(config.parent, "env", "algo", 1)
    learner = plan_run(make_spec(TrainOptions(**options), folder), folder).experiment
    if is_trained:
        learner.train(Loggers([]))
    return learner


@pytest.mark.slow
@pytest.mark.parametrize(
    "owner, function, parameter", [pytest.param(*row, id=f"{row[0]}.{row[2]}") for row in bindable()]
)
def test_whatever_is_bound_a_run_is_begun_or_refused_in_one_message(
    tmp_path, pendulum_file, owner, function, parameter
):
    words, bindings = settings_for(owner, function, pendulum_file)
    refused = {}
    for value in VALUES:
        if (parameter, value) in SLOW:
            continue
        bound = bindings | {f"{owner}.{parameter}": value}
        signal.alarm(PATIENCE)
        try:
            begun(tmp_path / "a.gin", words, bound, owner != "train")
        except NonFiniteError:  # a run that tells which number was its first bad one
            continue
        except UserError as error:
            refused[value] = error.message
            assert "\n" not in error.message and len(error.message) < 1_000, error.message
        except Exception as error:
            raise AssertionError(f"{owner}.{parameter} = {value[:40]}") from error
    assert ("1j" in refused) is (f"{owner}.{parameter}" not in TAKE_ANYTHING)
    if "wrappers" not in function.__module__:  # the message of these is the wrapper's own
        assert parameter in refused["1j"]


@pytest.mark.parametrize("owner", sorted({owner for owner, *_ in bindable() if owner not in NEED_A_VALUE}))
def test_what_they_are_bound_beside_makes_a_run(tmp_path, pendulum_file, owner):
    function = next(function for name, function, _ in bindable() if name == owner)
    learner = begun(tmp_path / "a.gin", *settings_for(owner, function, pendulum_file))
    assert f"# Parameters for {owner}:" in learner.config, "it takes no part"


# Rules --------------------------------------------------------------------------------------------------------------


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no words")


class Incomparable(float):
    def __eq__(self, other):
        return NotImplemented


OBJECTS = [
    float("nan"),
    float("inf"),
    float("-inf"),
    np.float32("nan"),
    np.float64("inf"),
    np.float16(6e4),
    np.int8(-1),
    np.uint64(2**64 - 1),
    np.bool_(True),
    np.array(1.0),
    np.arange(3),
    np.array(["sac"]),
    torch.tensor(1.0),
    torch.arange(3),
    10**400,
    10**5_000,
    -(10**5_000),
    [10**5_000],
    {1: 10**5_000},
    fractions.Fraction(1, 3),
    decimal.Decimal(1),
    1 + 2j,
    "\ud800",
    b"1",
    "x" * 10_000,
    [[]],
    (),
    range(3),
    iter([1]),
    Unprintable(),
    Unprintable,
    Incomparable(2.0),
    object(),
    len,
    print,
    lambda: None,
    lambda *given: None,
    functools.partial(int),
    functools.partial(Unprintable),
    Ellipsis,
    NotImplemented,
    float,
    list[int],
]
RULES = {  # each rule under the first parameter that has it
    rule: pytest.param(rule, id=f"{function.__name__}.{name}")
    for function in [*(f for f in configurables().values() if not isinstance(f, type)), *REGISTRY.values()][::-1]
    if function.__module__.startswith("offpcc") and ".variants" not in function.__module__
    for name, rule in rules_of(function).items()
}


@pytest.mark.parametrize("rule", RULES.values())
def test_a_rule_holds_for_an_object_or_refuses_it_in_one_line(rule):
    taken = []
    for value in OBJECTS:
        try:
            check_arguments("Owner", {"name": rule}, {"name": value})
            taken.append(value)
        except UserError as error:
            assert "\n" not in error.message and len(error.message) < 400
            error.message.encode()
    assert not [value for value in taken if isinstance(value, float) and not np.isfinite(value)]
    assert not [value for value in taken if isinstance(value, int) and abs(value) > 10**300]


def test_a_number_that_is_too_large_is_told_what_the_largest_is():
    for settings_given, words in (
        ({"updates_per_step": 1e12}, "1000000000000.0; it has to be 10,000 or less"),
        ({"num_epochs": 2**63}, "9223372036854775808; it has to be 9,223,372,036,854,775,807 or less"),
        ({"num_test_envs": 10**5_000}, "a whole number of 5,001 digits; it has to be 16,384 or less"),
        ({"stop_return": -1e300}, "-1e+300; it has to be from -1e+38 to 1e+38"),
    ):
        with pytest.raises(UserError) as caught:
            check_arguments("train", rules_of(configurables()["offpcc.training.run_fns.train"]), settings_given)
        assert caught.value.message == f"train.{next(iter(settings_given))} is {words}"
    sac = rules_of(REGISTRY["SAC"])
    for sizes, words in (([10**9], "each has to be 1,048,576 or less"), ([4] * 1_001, "1,000 numbers or fewer")):
        with pytest.raises(UserError, match=words):
            check_arguments("SAC", sac, {"hidden_dims": sizes})


def test_a_thousand_and_more_environments_are_taken():
    """1,024 is a natural number of them; layers and critics have a smaller bound."""
    space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    for kind in (ReplayBuffer, RecurrentReplayBuffer):
        assert kind(space, space, capacity=20_000, num_envs=1_024).num_envs == 1_024
        with pytest.raises(UserError, match="num_envs is 16385; it has to be 16,384 or less"):
            kind(space, space, num_envs=16_385)
        with pytest.raises(UserError, match="frame_stack is 1024; it has to be 1,000 or less"):
            kind(space, space, frame_stack=1_024)
    check_arguments("train", rules_of(configurables()["offpcc.training.run_fns.train"]), {"num_test_envs": 16_384})
    check_arguments("environments", rules_of(environments), {"num_envs": 16_384})
    assert num_envs("16384") == 16_384
    for text in ("0", "16385"):
        with pytest.raises(argparse.ArgumentTypeError, match="from 1 to 16384"):
            num_envs(text)


# Texts --------------------------------------------------------------------------------------------------------------

TOKENS = [
    *("SAC.lr", "make.kwargs", "a/b/SAC.gamma", "m", "include", "import", "from", "as", "=", ":", "\n", "\n  ", ","),
    *("(", ")", "[", "]", "{", "}", "@", "%", "@LinearDecay()", "@make", "%m", "@x/make()", "gin.REQUIRED", "/", "."),
    *("1", "-", "0x1f", "1e9", "'a'", "b'a'", "'''", '"', "None", "True", "...", "lambda", "#", "\\", "\0", "\t", "é"),
]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.one_of(st.lists(st.sampled_from(TOKENS), max_size=25).map(" ".join), st.text(max_size=60)))
def test_any_text_is_read_or_refused_in_one_message(text):
    for whole in (text, f"SAC.lr = {text}"):
        try:
            loading.load_gin_config(None, [f"SAC.gamma = 0.5\n{whole}"])
        except UserError as error:
            assert "Traceback" not in error.message and len(error.message) < 1_500
        finally:
            gin.clear_config()
