"""The configs of published runs name what there is today, and configs that repeat values repeat the same."""

from pathlib import Path

import pytest
from gin import config_parser

import offpcc.training.build  # noqa: F401 (registers all that gin can configure)
from offpcc.algorithms import ALGORITHMS, ActorCritic
from offpcc.config import loading
from offpcc.config.bindings import configurables, parameters
from offpcc.config.gin_files import CONFIGS as CONFIGS_OF_OFFPCC
from offpcc.config.gin_files import read_config_text, statements

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = sorted((ROOT / "results").glob("published*/**/config.gin"), reverse=True)
CONFIGS = sorted({file.read_bytes(): file for file in PUBLISHED}.values())  # one of each: seeds have the same config


def unknown(file):
    """Bindings of a config of which the class or the parameter does not exist."""
    names = configurables()
    for statement, where in statements(read_config_text(file), file, skip_unknown=True):
        if isinstance(statement, config_parser.BindingStatement) and statement.arg_name:
            found = [name for name in names if f".{name}".endswith(f".{statement.selector}")]
            if not found or statement.arg_name not in parameters(names[found[0]]):
                yield f"{where}: {statement.selector}.{statement.arg_name}"


def test_there_are_published_configs():
    assert len(CONFIGS) > 200


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: str(file.parent.relative_to(ROOT / "results")))
def test_a_published_config_has_no_unknown_binding(file):
    assert not list(unknown(file))


def test_an_unknown_binding_is_found(tmp_path):
    file = tmp_path / "config.gin"
    file.write_text("SAC.learn_alpha = True\nSACK.gamma = 0.9\nSAC.gamma = 0.9\n")
    assert [found.split(": ")[-1] for found in unknown(file)] == ["SAC.learn_alpha", "SACK.gamma"]


def settings(file, algorithm):
    """The values that a config binds of an algorithm and its base classes; a subclass's value comes before."""
    loading.load_gin_config(str(CONFIGS_OF_OFFPCC / file), [])
    found = {}
    for cls in reversed(ALGORITHMS[algorithm].__mro__):
        if issubclass(cls, ActorCritic):
            found |= loading.bindings_of(cls)
    return found


def test_td3_moves_its_actor_in_each_update_as_in_pomdp_baselines():
    assert settings("pomdp/hopper_p.gin", "rtd3")["policy_delay"] == 1


@pytest.mark.parametrize("name", ["dbc", "dbcq", "dcql", "dcrr"])
def test_memory_keeps_the_settings_of_each_algorithm_on_atari(name):
    own = settings(f"discrete/atari_{name}.gin", name)
    assert name != "dcql" or own["double"], "in Tianshou's CQL, the Q network chooses the target's next action"
    assert name != "dcql" or own["layer_norm"], "without it, CQL does not learn from Pong's recording"
    assert own == settings("discrete/atari_data_memory.gin", name) and "lr" in own
