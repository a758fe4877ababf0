"""An algorithm is read in three files: nothing runs between an update and its losses but what stands there."""

import ast
import functools
import inspect
import sys
from pathlib import Path

import gin
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch.nn.functional import one_hot

from offpcc import algorithms
from offpcc.algorithms import ALGORITHMS, BC, CQL, FUSED_UPDATES, SAC, base
from offpcc.algorithms.optim import Optimizer, PolyakAverage
from offpcc.algorithms.variants import TABLE
from offpcc.config import loading
from offpcc.config.bindings import parameters
from offpcc.core import Batch
from offpcc.networks import Recurrent
from offpcc.utils.errors import UserError

FOLDER = Path(algorithms.__file__).parent
VARIANTS = "offpcc.algorithms.variants"  # the module of generated classes
PAGES = [cls for cls in ALGORITHMS.values() if cls.__module__ != VARIANTS]


def batch(is_discrete):
    draw = torch.Generator().manual_seed(0)
    parts = torch.randn(4, 4, 3, generator=draw), torch.rand(4, 3, 2, generator=draw), torch.randn(4, 3, 1)
    if is_discrete:
        parts = parts[0], one_hot(parts[1].argmax(-1), 2).float(), parts[2]
    ones = torch.ones(4, 4, 1), torch.ones(4, 3, 1)
    first, following = (torch.zeros(4, 2), torch.zeros(4, 1)), {"next_actions": parts[1], "has_next_action": ones[1]}
    following |= {"returns_to_go": parts[2], "discounts_to_go": ones[1]}
    return Batch(*parts, torch.zeros(4, 3, 1), *ones, *first, complete=True, **following)


def file_of(cls):
    return Path(sys.modules[cls.__module__].__file__)


@pytest.mark.parametrize("name", [*(name for name, cls in ALGORITHMS.items() if cls in PAGES), "rcql", "rtd3_bc_s"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_the_pages_and_the_base_run_between_an_update_and_its_losses(name, precision, monkeypatch):
    memory = functools.partial(Recurrent, hidden_dim=4, num_layers=1)
    encoder = {"shared_encoder" if name.endswith("_s") else "encoder": memory} if TABLE[name].memory else {}
    cls = ALGORITHMS[name]
    spaces = Box(-np.inf, np.inf, (3,), np.float32), Discrete(2) if cls.is_discrete else Box(-1, 1, (2,), np.float32)
    agent = cls(*spaces, hidden_dims=(4,), precision=precision, **encoder)
    agent._fused = None
    parents = [other for other in cls.__mro__ if issubclass(other, base.ActorCritic) and other.__module__ != VARIANTS]
    pages = {file_of(parent) for parent in parents}
    callers = {}

    def record(what, function):
        def recording(*arguments, **options):
            frame, files = sys._getframe(1), []
            while frame.f_code.co_filename != __file__ or frame.f_code is recording.__code__:
                files += [] if frame.f_code is recording.__code__ else [Path(frame.f_code.co_filename)]
                frame = frame.f_back
            assert frame.f_code.co_name.startswith("test_"), "the update is called by this test"
            callers.setdefault(what, files)
            return function(*arguments, **options)

        return recording

    names = [name for name in dir(agent) if name.endswith("_loss")]
    for loss in [*names, "td_target", "prepare", "summarize"]:
        monkeypatch.setattr(agent, loss, record(loss, getattr(agent, loss)))
    monkeypatch.setattr(Optimizer, "minimize", record("minimize", Optimizer.minimize))
    monkeypatch.setattr(PolyakAverage, "update", record("targets", PolyakAverage.update))
    for _ in range(2):  # TD3's actor takes part in every second update
        agent.update_networks(batch(cls.is_discrete))
    assert {"prepare", "summarize", "minimize"} <= callers.keys()
    assert cls.acts_by_values or "actor_loss" in callers
    assert not cls.has_critics or {"critic_loss", "td_target", "targets"} <= callers.keys()
    assert not cls.has_critics or {"td_loss", "quantile_loss"} & callers.keys()
    for what, files in callers.items():
        assert files and set(files) <= pages, f"{what}: {files}"


def test_cql_is_read_in_three_files_of_400_lines():
    files = {file_of(CQL), file_of(SAC), file_of(base.ActorCritic)}
    assert {file.name for file in files} == {"cql.py", "sac.py", "base.py"}
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 400


def depth(cls):
    return max((1 + depth(parent) for parent in cls.__bases__ if parent is not object), default=0)


def remembers(cls):
    """Whether the algorithm itself has a memory, as R2D2 has."""
    return cls.default_encoder is Recurrent


@pytest.mark.parametrize("cls", PAGES)
def test_inheritance_is_at_most_four_deep(cls):
    assert depth(cls) <= 4
    named = [other for other in ALGORITHMS.values() if other is not cls and other.__bases__ == (cls,)]
    variants = [other for other in named if other.__module__ == VARIANTS]
    of_images = 0 if cls.imagination is not None else 2 + (not remembers(cls))
    assert len(variants) == of_images + (1 if remembers(cls) else 2)
    assert all(not {"inner_update", "update_networks"} & vars(other).keys() for other in variants), "attributes alone"


def test_the_table_of_fused_updates_names_each_replaced_method():
    for cls, fused in FUSED_UPDATES.items():
        assert {"update_networks", "inner_update", "summarize", "td_loss"} <= set(fused.replaced_methods)
        assert all(hasattr(cls, name) or cls is BC for name in fused.replaced_methods)


@functools.cache
def names_in(file):
    """The names that a file uses or imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return named | {x.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for x in node.names}


@pytest.mark.parametrize("cls", PAGES)
def test_a_new_algorithm_is_a_page_and_a_row(cls):
    """Pages that inherit from it, the optional table of fused updates and generated names are all that names it."""
    children = {FOLDER.parent / "training" / "constructors.py"} | {
        file_of(other) for other in ALGORITHMS.values() if issubclass(other, cls)
    }
    for file in FOLDER.parent.rglob("*.py"):
        if cls.__name__ in names_in(file):
            assert file in children | {FOLDER / "__init__.py", FOLDER / "fused" / "__init__.py"}, file
    short = next(name for name, other in ALGORITHMS.items() if other is cls)
    config = f"discrete/atari_{short}" if cls.is_discrete else f"algorithms/{short}"
    if file_of(cls).name == "pessimism.py":  # one page and one config for four modes
        config = "model_based/modes"
    assert (FOLDER.parents[1] / "configs" / f"{config}.gin").is_file()


def test_groups_of_arguments_are_known_by_their_names(capsys):
    """To help, to gin, to the check of bindings and to Python."""
    names = {"normalize_observations", "augmentation", "precision", "fused", "compile", "nonfinite", "hidden_dims"}
    signature = inspect.signature(base.ActorCritic).parameters
    assert names <= signature.keys() and "options" not in signature
    assert signature["compile"].default is False and signature["hidden_dims"].default == (256, 256)
    assert names <= parameters(CQL)
    help(base.ActorCritic.__init__)
    assert "normalize_observations" in capsys.readouterr().out
    box = Box(-np.inf, np.inf, (3,), np.float32), Box(-1, 1, (2,), np.float32)
    with pytest.raises(TypeError, match="unexpected keyword argument 'precison'"):
        SAC(*box, precison="bfloat16")
    with pytest.raises(UserError, match=r"SAC\.compile is 3; it has to be"):
        SAC(*box, compile=3)
    loading.load_gin_config(None, ["SAC.precision='bfloat16'", "ActorCritic.hidden_dims=(5,)", "CQL.compile=True"])
    agent = CQL(*box)
    assert (agent.execution.precision, agent.execution.compile) == ("bfloat16", True)
    assert agent.actor.net[0].out_features == 5
    assert "ActorCritic.nonfinite = 'raise'" in gin.operative_config_str(), "defaults are written down"
