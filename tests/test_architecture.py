"""The structure of the package: imports point one way, names are unique, and updates never wait for the device."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import offpcc

PACKAGE = Path(offpcc.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Each layer imports the layers before it and itself. `algorithms` and `data` do not import each other.
LAYERS = ["utils", "config", "core", "envs", "networks", "data", "algorithms", "training", "cli"]
APART = {("data", "algorithms"), ("algorithms", "data")}
TOP = {"__init__.py", "__main__.py", "core.py", "launch.py", "py.typed", *LAYERS} - {"core"}
ENTRY_POINT = re.compile(r"offpcc(?:\.\w+)+(?=:|$)")  # a module in a string: of Gymnasium's registry, or to be imported


def module_name(file):
    names = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


MODULES = {module_name(file): file for file in FILES}


def layer(module):
    """offpcc.networks.layers -> networks; the package itself and its entry point have none."""
    names = module.split(".")
    return names[1] if len(names) > 1 and names[1] in LAYERS else None


def imported(tree):
    """Modules of offpcc that a file imports, in functions and for type checks too, or names in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "offpcc")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            if (node.module or "").split(".")[0] == "offpcc":
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    yield name if name in MODULES else node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = ENTRY_POINT.match(node.value)
            if found and found.group() in MODULES:
                yield found.group()


def imports(module):
    return set(imported(ast.parse(MODULES[module].read_text(encoding="utf-8")))) - {module}


@pytest.mark.parametrize("module", [module for module in MODULES if layer(module)])
def test_imports_point_one_way(module):
    here = layer(module)
    for other in imports(module):
        there = layer(other)
        assert there, f"{module} imports {other}, the top of the package, which knows all of its parts"
        assert LAYERS.index(there) <= LAYERS.index(here), f"{module} imports {other}, of a later layer"
        assert (here, there) not in APART, f"{module} imports {other}"


def test_no_modules_import_each_other_in_a_circle():
    graph = {module: imports(module) for module in MODULES}
    while leaves := [module for module, needs in graph.items() if not needs & graph.keys()]:
        for module in leaves:
            del graph[module]
    assert not graph, f"a circle is among {sorted(graph)}"


def test_lines_of_configs_fit_into_120_columns():
    """The linter checks those of Python."""
    for file in PACKAGE.parent.joinpath("configs").rglob("*.gin"):
        assert max(map(len, file.read_text().splitlines())) <= 120, file


def test_the_top_of_the_package_is_small():
    there = {file.relative_to(PACKAGE).parts[0] for file in (*FILES, PACKAGE / "py.typed")}
    assert there == TOP
    assert len(there) <= 13  # with `__main__`, which `python -m offpcc` needs


@pytest.mark.parametrize("folder", sorted({file.parent for file in FILES}), ids=lambda folder: folder.name)
def test_each_package_says_what_it_holds(folder):
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))


# One description of a run -----------------------------------------------------------------------------------------

PARSING = {"cli/main.py", "cli/arguments.py"}  # only they know argparse
ASKS_GIN = {"query_parameter", "get_bindings", "config_str", "operative_config_str", "parse_config"}
READS = {"from_gin", "env_options", "episode_options", "part_options", "resolve_bindings"}
READS_ALL = {"loading.operative", "loading.current"}
MAY_READ = {  # what makes a spec, what builds from it, and commands and functions that train nothing
    "envs/make.py",  # `env_options`
    "training/spec.py",
    "training/models/imagination.py",  # `imagination_options`
    "training/checkpoint.py",  # `load`
    "training/build.py",
    "training/experiment.py",
    "training/results.py",
    "cli/messages.py",
    "cli/commands.py",
    "cli/train.py",
    "cli/check_dataset.py",
    "cli/collect.py",
    "cli/imagine.py",
    "cli/train_model.py",
    "cli/zoo.py",
}
MAY_ASK = {"envs/vector/workers.py"}  # reads the bindings that it is given, in a process of its own


def names_in(file):
    """Names that a file uses or calls."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def called_in(file):
    """Names of the functions that a file calls."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_parsed_options_do_not_travel(file):
    place = file.relative_to(PACKAGE).as_posix()
    found = {name for name in names_in(file) if name.split(".")[0] in ("argparse", "Namespace")}
    assert not found or place in PARSING, found


@pytest.mark.parametrize("file", [file for file in FILES if layer(module_name(file)) != "config"], ids=module_name)
def test_gin_is_read_where_a_spec_is_made(file):
    place = file.relative_to(PACKAGE).as_posix()
    asked = {name for name in names_in(file) if name.split(".")[0] == "gin" and name.split(".")[-1] in ASKS_GIN}
    assert not asked or place in MAY_ASK, asked
    read = READS & set(called_in(file)) | READS_ALL & set(names_in(file))
    assert not read or place in MAY_READ, read


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_names_of_modules(file):
    """None is a name of the standard library."""
    names = file.relative_to(PACKAGE).with_suffix("").parts
    assert not set(names) & (sys.stdlib_module_names - {"__init__"})


def test_no_two_public_classes_or_functions_share_a_name():
    assert not shared_names({module: file.read_text(encoding="utf-8") for module, file in MODULES.items()})


def test_a_shared_name_is_found():
    code = "def load(): pass\ndef _load(): pass\nclass Episode:\n def save(self): pass"
    assert shared_names({"offpcc.a": code, "offpcc.b": code, "offpcc.c": "async def load(): pass"}) == {
        "load": ["offpcc.a", "offpcc.b", "offpcc.c"],
        "Episode": ["offpcc.a", "offpcc.b"],
    }
    assert not shared_names({"offpcc.a": "def load(): pass", "offpcc.b": "def _load(): pass\nimport load"})


def shared_names(sources):
    """Names of public classes and functions at the top of several modules, with these modules; from source texts."""
    modules = {}
    for module, source in sources.items():
        for node in ast.parse(source).body:
            is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if is_definition and not node.name.startswith("_"):
                modules.setdefault(node.name, set()).add(module)
    return {name: sorted(found) for name, found in modules.items() if len(found) > 1}


# No waiting for the device ----------------------------------------------------------------------------------------

LEARNS = {"algorithms", "networks"}
NOT_IN_UPDATES = {"numpy_inference.py", "numpy_policy.py", "testing.py", "agent.py", "nonfinite.py"}
LEARNING = [file for file in FILES if layer(module_name(file)) in LEARNS and file.name not in NOT_IN_UPDATES]
MAY_WAIT = {  # not part of an update
    "__init__", "__getstate__", "act", "_act", "_inputs", "_mirrored", "mirror", "array", "state_dict",
    "load_state_dict", "actor_file", "compile_losses", "why_not_fusable", "look",
    "fingerprint_of", "step", "_run", "_run_rows", "rows_with_gradient",  # the last three do so on a CPU only
    "set_rate",  # the number of a schedule
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
                    "is_grad_enabled",
                    "is_exporting",
                    "fits",
                    "is_that_of",
                }:
                    yield f"line {node.lineno}: if on what .{called.attr}() gives"
                if isinstance(inner, ast.Attribute) and inner.attr in {"loss_mask", "valid", "terminations", "rewards"}:
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
    code = "def f(x, batch):\n if batch.loss_mask.sum() > 0:\n  return float(x), x.item(), x.cpu(), x.tolist(), bool(x)"
    assert len(list(waits(ast.parse(code)))) == 7
    assert list(imported(ast.parse("def f():\n from offpcc.core import Batch"))) == ["offpcc.core"]


# Imports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["offpcc", "offpcc.launch"])
def test_importing_does_not_wait_for_torch(module):
    code = f"import sys, {module}; print(*sorted({{'torch', 'gymnasium', 'gin', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.split() == []


def test_building_does_not_import_the_compiler_of_torch():
    """It takes a second and 70 MB, and only `compile=True` needs it."""
    code = "import sys, offpcc; offpcc.build('pendulum-p-v0', 'redac'); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.split() == ["False"]
