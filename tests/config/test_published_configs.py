"""The configs of published runs name what there is today."""

from pathlib import Path

import pytest
from gin import config_parser

import offpcc.training.build  # noqa: F401 (registers all that gin can configure)
from offpcc.config.bindings import configurables, parameters
from offpcc.config.gin_files import read_config_text, statements

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "results").glob("published*/**/config.gin"))


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
