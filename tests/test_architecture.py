"""What holds the house together: imports point one way, and learning never waits for the device."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import offpcc

PACKAGE = Path(offpcc.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# A part imports parts below it and its own; parts of one level import each other only as ALLOWED_BESIDE says.
LEVELS = [
    {"errors", "checks", "files", "generators", "d4rl_names", "signals", "places", "modules", "memory", "foreign"},
    {"core", "registry", "domains", "loggers", "allocation", "tensor_files"},
    {"bad_numbers"},
    {"watch"},
    {"optimization", "side_by_side"},
    {"learning", "networks", "data", "workers"},
    {"environments", "offline"},
    {"algorithms", "interaction"},
    {"bookkeeping", "evaluation", "algorithm_names"},
    {"run_fns", "agent"},
    {"saturation"},
    {"assembly"},
]
ALLOWED_BESIDE = {
    ("checks", "errors"),
    ("places", "errors"),
    ("modules", "errors"),
    ("modules", "foreign"),
    ("signals", "errors"),
    ("modules", "signals"),
    ("data", "learning"),  # augmentation draws from the algorithm's noise
}
APART = {"domains", "loggers"}  # import none of the parts that learn


def part(module):
    """offpcc.networks.layers -> networks; a module of the command line is a part of its own."""
    return module.split(".")[1] if "." in module else "offpcc"


def module_name(file):
    names = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imported(tree):
    """Modules of offpcc that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "offpcc")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            if node.module == "offpcc":
                yield from (f"offpcc.{alias.name}" for alias in node.names if alias.name != "__version__")
            elif (node.module or "").split(".")[0] == "offpcc":
                yield node.module


def level(name):
    return next((number for number, parts in enumerate(LEVELS) if name in parts), len(LEVELS))


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_point_one_way(file):
    here = part(module_name(file))
    if here == "offpcc":  # the front door knows where everything is, and opens it on first use
        return
    for module in imported(ast.parse(file.read_text(encoding="utf-8"))):
        there = part(module)
        if there == here:
            continue
        if here in APART:
            assert there in LEVELS[0], f"{module_name(file)} imports {module}"
        elif level(here) < len(LEVELS):
            below = level(there) < level(here) or (here, there) in ALLOWED_BESIDE
            assert below, f"{module_name(file)} imports {module}"


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_names_of_modules(file):
    """Started as a file, launch.py has its folder first on the path, where a name could hide the standard library's."""
    names = file.relative_to(PACKAGE).with_suffix("").parts
    assert not set(names) & (sys.stdlib_module_names - {"__init__"})
    assert names[-1] != "utils"


# No waiting for the device ----------------------------------------------------------------------------------------

LEARNS = {"algorithms", "networks", "learning", "optimization"}
LEARNING = [
    file
    for file in FILES
    # Mirrors are NumPy alone; promises are tried by who writes an encoder.
    if part(module_name(file)) in LEARNS and "mirror" not in file.name and file.name != "promises.py"
]
MAY_WAIT = {  # not part of an update
    "__init__", "__getstate__", "act", "_act", "_inputs", "_mirrored", "mirror", "array", "state_dict",
    "load_state_dict", "actor_file", "compile_losses", "unfit", "_look",
}  # fmt: skip
WAITING_METHODS = {"item", "cpu", "tolist", "numpy", "nonzero", "any", "all"}
WAITING_FUNCTIONS = {"float", "int", "bool", "print"}


def waits(function):
    """Lines of a function that may wait for the device."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in WAITING_METHODS:
                yield f"line {node.lineno}: .{called.attr}()"
            if isinstance(called, ast.Name) and called.id in WAITING_FUNCTIONS:
                yield f"line {node.lineno}: {called.id}()"
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            for inner in ast.walk(node.test):
                called = inner.func if isinstance(inner, ast.Call) else None
                if isinstance(called, ast.Attribute) and called.attr not in {
                    "dim",
                    "size",
                    "numel",
                    "stride",
                    "is_autocast_enabled",
                    "fits",
                    "is_that_of",
                }:
                    yield f"line {node.lineno}: if on what .{called.attr}() gives"
                if isinstance(inner, ast.Attribute) and inner.attr in {"mask", "real", "terminations", "rewards"}:
                    yield f"line {node.lineno}: if on a batch's {inner.attr}"


@pytest.mark.parametrize("file", LEARNING, ids=module_name)
def test_learning_does_not_wait_for_the_device(file):
    """By reading; tests/algorithms/test_contract.py finds the rest by running."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in MAY_WAIT:
            found += [f"{node.name}, {wait}" for wait in waits(node)]
    assert not found, f"{file.name}: {found}"


def test_the_reading_finds_what_it_looks_for():
    code = "def f(x, batch):\n if batch.mask.sum() > 0:\n  return float(x), x.item(), x.cpu(), x.tolist(), bool(x)"
    assert len(list(waits(ast.parse(code)))) == 7
    assert list(imported(ast.parse("def f():\n from offpcc.core import Batch"))) == ["offpcc.core"]


# Imports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["offpcc", "offpcc.launch"])
def test_importing_does_not_wait_for_torch(module):
    code = f"import sys, {module}; print(*sorted({{'torch', 'gymnasium', 'gin', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.split() == []
