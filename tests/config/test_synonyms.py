"""Names of other libraries: each leads to a name that exists here, in gin, on the command line and in Python."""

import argparse
import inspect
import operator
import pkgutil
import re

import pytest

import offpcc
from offpcc.cli.main import parser
from offpcc.config.bindings import configurables, parameters, passed_by_us
from offpcc.config.synonyms import ATTRIBUTES, OPTIONS, OWN, SYNONYMS, argument_hint
from offpcc.training.build import build
from offpcc.utils.errors import UserError


def ours():
    assert offpcc.configure  # registers all that gin configures
    return {full.rpartition(".")[2]: parameters(thing) - passed_by_us(thing) for full, thing in configurables().items()}


@pytest.mark.parametrize("name", SYNONYMS)
def test_each_name_leads_to_bindings_that_exist(name):
    known = ours() | {"Agent.act": {*inspect.signature(offpcc.Agent.act).parameters}}
    synonym = SYNONYMS[name]
    for binding in synonym.bindings:
        owner, parameter = binding.split(".")
        assert parameter in known[owner]
    assert synonym.bindings or synonym.note
    owner, _, parameter = name.rpartition(".")
    assert not owner or parameter not in known[owner]  # a name that exists needs no hint


@pytest.mark.parametrize("name", OWN)
def test_our_own_parameters_as_options_lead_to_bindings_that_exist(name):
    for binding in OWN[name]:
        owner, parameter = binding.split(".")
        assert parameter == name and parameter in ours()[owner]


def options_of(command):
    commands = next(one for one in parser()._actions if isinstance(one, argparse._SubParsersAction)).choices
    return {word for action in commands[command]._actions for word in action.option_strings}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_leads_to_one_that_exists(name):
    commands = ("train", "evaluate", "plot", "check", "collect")
    assert OPTIONS[name] in set.union(*map(options_of, commands))
    assert f"--{name}" not in options_of("train")


@pytest.mark.parametrize(
    ("binding", "told"),
    [
        ("SAC.learning_rate=1e-3", "in offpcc that is SAC.lr"),
        ("RecurrentSAC.n_quantiles=5", "in offpcc that is TQC.num_quantiles"),
        ("RecurrentTQC.n_quantiles=5", "in offpcc that is RecurrentTQC.num_quantiles"),
        ("QRDQN.n_quantiles=5", "in offpcc that is QRDQN.num_quantiles"),
        ("RecurrentSAC.tau=0.005", "in offpcc that is RecurrentSAC.polyak (polyak = 1 - tau"),
        ("SAC.total_timesteps=10", "train.num_epochs and train.num_steps_per_epoch (the product"),
        ("SAC.buffer_size=10", "ReplayBuffer.capacity and RecurrentReplayBuffer.capacity (the second"),
        ("ReplayBuffer.buffer_size=10", "in offpcc that is ReplayBuffer.capacity\n"),
        ("SAC.batch_size=10", "ReplayBuffer.batch_size and RecurrentReplayBuffer.batch_size"),
        ("SAC.ent_coef='auto'", "in offpcc that is SAC.alpha and SAC.autotune"),
        ("TD3.train_freq=1", "train.update_every"),
        ("TD3.gradient_steps=1", "train.updates_per_step (updates_per_step = gradient_steps / train_freq)"),
        ("train.learning_starts=100", "in offpcc that is train.update_after"),
        ("SAC.net_arch=(64, 64)", "in offpcc that is SAC.hidden_dims"),
        ("SAC.policy_kwargs={}", "SAC.hidden_dims and SAC.num_critics"),
        ("TD3.n_critics=2", "TD3.num_critics"),
        ("CQL.actor_learning_rate=1e-4", "CQL.actor_lr"),
        ("CQL.critic_learning_rate=1e-4", "CQL.lr"),
        ("SAC.conservative_weight=5.0", "CQL.conservative_weight"),
        ("SAC.target_network_frequency=1", "SAC.target_update_interval (it counts updates"),
        ("SAC.action_noise=0.1", "DeterministicPolicy.action_noise"),
        ("SAC.n_steps=3", "SAC.n_step"),
        ("RecurrentTD3BC.alpha=2.5", "RecurrentTD3BC.bc_alpha"),
        ("SAC.use_sde=True", "offpcc has no counterpart"),
        ("RecurrentSAC.rnn_hidden_size=128", "in offpcc that is Recurrent.hidden_dim"),
        ("RecurrentSAC.sampled_seq_len=-1", "RecurrentReplayBuffer.segment_len (None, not -1, for whole episodes)"),
        ("DiscreteSAC.target_entropy=0.7", "DiscreteSAC.target_entropy_ratio (a share of log A)"),
        ("CQL.num_actions=10", "in offpcc that is CQL.num_samples"),
        ("R2D2.burn_in_len=20", "in offpcc that is RecurrentReplayBuffer.burn_in"),
        ("DQN.epsilon=0.1", "DQN.initial_epsilon and DQN.final_epsilon and DQN.epsilon_steps"),
        ("learning_rate=1e-3", "learning_rate has no effect: it names no class; in offpcc that is ActorCritic.lr"),
        ("SAC.num_epochs=3", "in offpcc that is train.num_epochs"),
        ("sac.lr=1e-3", "did you mean SAC?"),
        ("rsac.lr=1e-3", "did you mean RecurrentSAC?"),
        ("crdpg_s.lr=1e-3", "did you mean ConvolutionalRecurrentDDPGSharing?"),
        ("SAC.hidden_dim=64", "did you mean hidden_dims? For a memory, bind Recurrent.hidden_dim"),
        ("RecurrentSAC.hidden_dim=64", "in offpcc that is Recurrent.hidden_dim"),
    ],
)
def test_a_binding_of_another_library_is_refused_with_our_name(quick, binding, told):
    code, _, err = quick("sac", bindings=[binding])
    assert code == 2 and len(err.splitlines()) == 1
    assert told in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--algorithm sac --environment pendulum-v0", "does not take --algorithm; in offpcc that is --algo"),
        ("--algo sac --environment=pendulum-v0", "--environment=pendulum-v0; in offpcc that is --env"),
        ("--algo sac --env e --total-timesteps 1000", '--gin "train.num_epochs=..." "train.num_steps_per_epoch=..."'),
        ("--algo sac --env e --timesteps 1000", '--gin "train.num_epochs=..." "train.num_steps_per_epoch=..."'),
        ("--algo sac --env e --steps 1000", '--gin "train.num_epochs=..." "train.num_steps_per_epoch=..."'),
        ("train-model --dataset d.hdf5 --out m --steps 5", "does not take --steps; see `offpcc train-model --help`"),
        ("--algo sac --env e --out runs", "in offpcc that is --results"),
        ("--algo sac --env e --exp-name first", "in offpcc that is --results"),
        ("--algo sac --env e --learning-rate 1e-3", '--gin "ActorCritic.lr=..."'),
        ("--algo sac --env e --lr 1e-3", '--gin "ActorCritic.lr=..."'),
        ("--algo sac --env e --tau 0.005", '--gin "ActorCritic.polyak=..." (polyak = 1 - tau'),
        ("--algo sac --env e --num_epochs 3", '--gin "train.num_epochs=..."'),
        ("--algo sac --env e --batch_size 3", '"ReplayBuffer.batch_size=..." "RecurrentReplayBuffer.batch_size=..."'),
        ("--algo sac --env e --seed 3", "does not take --seed; in offpcc that is --run_id"),
        ("--algo sac --env e --use_sde", "offpcc has no counterpart"),
        ("evaluate results/e/sac/1 --n-eval-episodes 3", "`offpcc evaluate` does not take --n_eval_episodes"),
        ("evaluate results/e/sac/1 --n-eval-episodes 3", "in offpcc that is --episodes"),
        ("evaluate results/e/sac/1 --learning_rate 3", "see `offpcc evaluate --help`"),
    ],
)
def test_an_option_of_another_library_is_refused_with_ours(launch, words, told):
    code, out, err = launch(*words.split())
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert told in err


def test_an_abbreviation_of_ours_is_no_name_of_another_library(quick):
    """`--record` and `--check...` are not mistaken: what argparse completes stays as it was."""
    code, _, err = quick("sac", "--res", "elsewhere")
    assert code == 2 and "could match --resume, --results" in err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"algorithm": {"learning_rate": 1e-3}}, "'learning_rate'; in offpcc that is SAC.lr"),
        ({"algorithm": {"gama": 0.9}}, "'gama'; did you mean gamma?"),
        ({"algorithm": {"cell": "lstm"}}, "Recurrent.cell, in an algorithm with memory, such as rsac"),
        ({"buffer": {"buffer_size": 1_000}}, "'buffer_size'; in offpcc that is ReplayBuffer.capacity"),
    ],
)
def test_an_argument_of_another_library_is_refused_with_our_name(given, told):
    with pytest.raises(UserError, match="cannot be built") as caught:
        build("pendulum-v0", "sac", **given)
    assert told in caught.value.message and "correct its bindings" not in caught.value.message


def test_the_names_in_hints_exist():
    texts = [*ATTRIBUTES.values(), *(text for one in SYNONYMS.values() for text in (one.note, one.python or ""))]
    for dotted in re.findall(r"(?<![\w/.])offpcc(?:\.[A-Za-z_]\w*)+", " ".join(texts)):
        pkgutil.resolve_name(dotted)
    learner = offpcc.SAC("pendulum-v0", hidden_dims=(8,))
    for name, told in ATTRIBUTES.items():
        if name.startswith("learner.") and not told.startswith(("offpcc", "act(", "seed=")):
            operator.attrgetter(re.match(r"[\w.]+", told)[0])(learner)


def test_the_constructors_in_hints_for_arguments_exist():
    for name in {key.rpartition(".")[2] for key in SYNONYMS}:
        for dotted in re.findall(r"(?<![\w/.])offpcc(?:\.[A-Za-z_]\w*)+", argument_hint(name)):
            pkgutil.resolve_name(dotted)


@pytest.mark.parametrize("name", ["Callback", "UserError"])
def test_a_class_that_most_programs_need_is_in_the_package(name):
    assert getattr(offpcc, name).__name__ == name and name in offpcc.__all__


@pytest.mark.parametrize("name", ["Logger", "Encoder", "Cell"])
def test_a_class_that_users_need_is_found_from_the_package(name):
    with pytest.raises(AttributeError, match=rf"in offpcc: offpcc\.[a-z_.]+\.{name}$") as caught:
        getattr(offpcc, name)
    assert pkgutil.resolve_name(str(caught.value).rpartition(" ")[2]).__name__ == name
