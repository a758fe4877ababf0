"""What this package uses of torch and gin that has no public name: in one file each, and missed by name."""

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import gin
import pytest
import torch
from torch import nn

import offpcc
from offpcc.config import gin_private
from offpcc.utils import torch_private

PACKAGE = Path(offpcc.__file__).parent
USES = {  # private names; `_backward_hooks` is in HOOKS, too, but of tensors
    "torch": (
        torch_private,
        re.compile(r"(?<!\")\btorch\._\w+|\bnn\.[\w.]*\b_[A-Za-z]\w+|\"_(?:forward|backward|modules|param)"),
    ),
    "gin": (gin_private, re.compile(r"\bgin\.(?:config|config_parser|selector_map)\._\w+|\bconfig_parser\._\w+")),
}


@pytest.mark.parametrize("library", USES)
def test_private_names_are_in_one_file(library):
    module, pattern = USES[library]
    found = {file for file in PACKAGE.rglob("*.py") if pattern.search(file.read_text(encoding="utf-8"))}
    assert found <= {Path(module.__file__)}, f"private names of {library}, which belong into {module.__name__}"


@pytest.mark.parametrize(
    "module, owner, name",
    [
        (torch_private, torch, "_fused_adam_"),
        (torch_private, torch, "_amp_foreach_non_finite_check_and_unscale_"),
        (torch_private, torch, "_foreach_lerp_"),
        (torch_private, nn.modules.batchnorm, "_NormBase"),
        (gin_private, gin.config, "_OPERATIVE_CONFIG"),
        (gin_private, gin.config, "_inverse_lookup"),
    ],
)
def test_a_version_without_one_is_refused_by_name(module, owner, name, monkeypatch):
    specification = importlib.util.spec_from_file_location("again", module.__file__)
    expected = rf"has no {name}, which offpcc needs; it was last seen in .*{module.LAST_SEEN}"
    with monkeypatch.context() as patched, pytest.raises(ImportError, match=expected):
        patched.delattr(owner, name)
        specification.loader.exec_module(importlib.util.module_from_spec(specification))


def test_the_version_in_which_they_were_last_seen():
    """With a newer one these tests have passed, and its number may be written down."""

    def numbers(version):
        return [int(part) for part in re.findall(r"\d+", version)[:3]]

    assert numbers(torch.__version__) <= numbers(torch_private.LAST_SEEN), (
        f"PyTorch {torch.__version__} still has all private parts: set torch_private.LAST_SEEN to it"
    )
    assert numbers(importlib.metadata.version("gin-config")) <= numbers(gin_private.LAST_SEEN)
