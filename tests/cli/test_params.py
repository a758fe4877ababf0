"""`offpcc params`, and `help` of a class: every hyper-parameter with its default, its meaning and its range."""

import inspect
import json
import os
import pickle
import pydoc
import subprocess
import sys

import pytest

import offpcc
from offpcc.algorithms import ALGORITHMS, CQL, SAC, ActorCritic
from offpcc.algorithms.variants import TABLE, RecurrentSAC
from offpcc.cli.params import groups, names
from offpcc.config import loading
from offpcc.config.bindings import configurables, find_configurable, parameters, settable
from offpcc.config.hyperparameters import REQUIRED, hyperparameters
from offpcc.networks import Cell, Encoder, Recurrent
from offpcc.utils.errors import similar


def shown(launch, *words):
    code, out, err = launch("params", *words, "--json")
    assert code == 0, err
    return {each["name"]: each for group in json.loads(out)["groups"] for each in group["parameters"]}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_that_gin_can_bind_for_an_algorithm_is_there_and_is_explained(name):
    cls = ALGORITHMS[name]
    found = {each.name: each for group in groups(name) for each in group.parameters}
    own = {f"{cls.__name__}.{one}" for one in settable(cls)}
    assert own <= found.keys()
    assert [each.name for each in found.values() if not each.meaning] == []
    assert {"train.num_epochs", "environments.num_envs", "make.wrappers", "dataset.return_range"} <= found.keys()
    assert ("RecurrentReplayBuffer.segment_len" in found) == (TABLE[name].memory is not None)
    assert ("ReplayBuffer.capacity" in found) != ("RecurrentReplayBuffer.capacity" in found)
    sees_images = TABLE[name].images
    assert ("Convolutional.channels" in found) == ("RandomShift.pad" in found) == sees_images
    for each in found.values():  # each name and default is a binding that gin accepts
        if each.default != REQUIRED:
            loading.load_gin_config(None, [f"{each.name} = {each.default}"])


def test_each_name_of_the_list_shows_something_and_all_configurables_are_listed(launch):
    code, out, _ = launch("params")
    assert code == 0
    assert {*ALGORITHMS, "lstm", "ReplayBuffer", "train", "Recurrent"} <= {*out.split()}
    for name in names():
        assert groups(name)
    listed = {*names(), *(cls.__name__ for cls in ALGORITHMS.values()), "ActorCritic", "DeterministicPolicy"}
    tests_own = {full for full, thing in configurables().items() if not thing.__module__.startswith("offpcc")}
    assert {full.rpartition(".")[2] for full in configurables().keys() - tests_own} <= listed


def test_a_parameter_has_default_meaning_and_range(launch):
    found = shown(launch, "sac")
    assert found["SAC.gamma"] == {
        "name": "SAC.gamma",
        "default": "0.99",
        "meaning": "Discount per step.",
        "allowed": "a number from 0 to 1",
    }
    assert found["train.num_epochs"]["default"] == REQUIRED
    assert found["SAC.hidden_dims"]["meaning"].startswith("Widths of")
    code, out, _ = launch("params", "sac")
    assert code == 0 and "  SAC.gamma = 0.99\n      Discount per step. Allowed: a number from 0 to 1.\n" in out
    assert "  train.num_epochs   (required)" in out


def test_the_defaults_of_rollouts_are_those_of_the_algorithm(launch):
    for algo, length, penalty in (("mopo", "5", "1.0"), ("mbpo", "1", "None"), ("rmorel", "10", "None")):
        found = shown(launch, algo)
        assert [found[f"Imagination.{name}"]["default"] for name in ("length", "penalty")] == [length, penalty]
    assert "Imagination.length" not in shown(launch, "sac")


def test_the_argument_in_python_is_told(launch):
    out = launch("params", "rsac")[1]
    assert out.endswith("it is an argument: offpcc.RecurrentSAC(ENV, alpha=1.0).\n")
    assert "ENV" not in launch("params", "lru")[1]


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("SAC", "SAC.alpha"),
        ("RecurrentSAC", "Recurrent.cell"),
        ("ReplayBuffer", "ReplayBuffer.capacity"),
        ("train", "train.update_after"),
        ("lstm", "LSTM.forget_bias"),
        ("Recurrent", "Recurrent.use_previous_action"),
        ("dataset", "dataset.return_range"),
    ],
)
def test_a_class_a_memory_or_a_function_has_its_parameters(launch, name, parameter):
    found = shown(launch, name)
    assert found[parameter]["meaning"] and found[parameter]["allowed"] != ""


def test_an_unknown_name_is_refused(launch):
    code, out, err = launch("params", "rsacc")
    assert (code, out) == (2, "") and "'rsacc'; did you mean rsac" in err


@pytest.mark.parametrize("name", ["Gated", "Attention", "foo", "Mamba"])
def test_a_hint_names_nothing_unrelated(launch, name):
    """Nearest to Gated was `dataset`, and to foo `mopo`."""
    ways = (
        ("params", name),
        ("--env", "pendulum-v0", "--algo", name),
        ("--env", f"{name}-v0", "--algo", "sac"),
        ("--env", "pendulum-p-v0", "--algo", "rsac", "--gin", f"Recurrent.cell=@{name}"),
        ("--env", "pendulum-v0", "--algo", "sac", "--config", f"{name}.gin"),
    )
    for words in ways:
        code, _, err = launch(*words)
        assert code == 2 and f"{name}" in err and "did you mean" not in err
    assert "the known names are" not in launch(*ways[0])[2]  # hundreds


@pytest.mark.parametrize(
    ("given", "known", "found"),
    [
        ("alfa", ["gamma", "alpha"], ["alpha"]),
        ("Size", ["capacity", "batch_size"], ["batch_size"]),  # a part of it
        ("len", ["segment_len"], []),  # too short
        ("pendulum-v7", ["Pendulum-v1", "acrobot-v7"], ["Pendulum-v1"]),  # whatever the version
    ],
)
def test_a_similar_name_is_spelled_alike_or_longer(given, known, found):
    assert similar(given, known) == found


MINE = """
import offpcc
from offpcc.algorithms import SAC

@offpcc.configurable
class Bolder(SAC):
    '''SAC that adds courage.

    Args:
        courage: how much of it.
        kwargs: see `SAC`.
    '''

    def __init__(self, *args, courage=1.5, **kwargs):
        super().__init__(*args, **kwargs)
"""


def test_a_class_of_the_users_own_is_shown(launch, tmp_path):
    (tmp_path / "lab_of_params.py").write_text(MINE)
    found = shown(launch, "Bolder", "--import", "lab_of_params")
    assert found["Bolder.courage"]["meaning"] == "How much of it." and found["Bolder.courage"]["default"] == "1.5"
    assert {"Bolder.alpha", "Bolder.gamma"} <= found.keys()


# help ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [ActorCritic, SAC, CQL, RecurrentSAC, *(ALGORITHMS[name] for name in ("td3", "bcq"))])
def test_help_shows_all_hyper_parameters(cls):
    signature = inspect.signature(cls)
    assert not any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    assert parameters(cls) == {*signature.parameters}
    text = pydoc.render_doc(cls, renderer=pydoc.plaintext)
    for one in hyperparameters(cls):
        assert f"{one.name.rpartition('.')[2]}: {one.meaning.split()[0]}" in text
    assert "gamma: Discount per step. Default: 0.99. Allowed: a number from 0 to 1." in text


def test_a_signature_lists_what_the_class_takes_and_no_more():
    assert list(inspect.signature(SAC).parameters)[:2] == ["observation_space", "action_space"]
    assert inspect.signature(SAC).parameters["gamma"].default == 0.99
    assert inspect.signature(Recurrent).parameters["use_previous_action"].default is False
    assert "Hyper-parameters:" in Recurrent.__doc__ and "Hyper-parameters:" not in (Encoder.__doc__ or "")

    @offpcc.configurable
    class CellOfAny(Cell):  # nothing above it names its other arguments
        def __init__(self, num_in, **sizes):
            super().__init__()

    inspect.signature(CellOfAny).bind(num_in=3, hidden_dim=4, num_layers=1)
    assert list(inspect.signature(CellOfAny).parameters) == ["num_in", "sizes"]

    class Fixed(SAC):  # not decorated; takes one argument
        def __init__(self, env):
            super().__init__(env.observation_space, env.action_space)

    assert list(inspect.signature(Fixed).parameters) == ["env"]
    assert Fixed.__doc__ is None


def test_classes_and_their_objects_are_otherwise_as_before():
    assert pickle.loads(pickle.dumps(SAC)) is SAC
    agent = offpcc.build("pendulum-v0", "sac", algorithm={"hidden_dims": (8,)}).algorithm
    assert not hasattr(agent, "__signature__")
    assert find_configurable("SAC") is SAC


def test_a_reader_that_ends_early_brings_no_traceback():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "offpcc.launch", "params", "sac"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")
