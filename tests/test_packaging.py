"""What is installed elsewhere works there: the wheel holds all it needs, configs too."""

import ast
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import QUICK, rows

import offpcc

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("offpcc-*.whl"))


@pytest.fixture(scope="module")
def target(wheel, tmp_path_factory):
    """Where it is installed."""
    target = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(target), str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_the_wheel_trains_outside_the_checkout(target, tmp_path):
    command = [sys.executable, "-m", "offpcc.launch", "--env", "pendulum-p-v0", "--algo", "rsac"]
    command += ["--config", "configs/test/template_short.gin", "--threads", "1"]
    command += ["--gin", "train.num_steps_per_epoch=210", "train.update_after=195", "train.num_epochs=1"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "pendulum-p-v0" / "rsac" / "1" / "actor_best.pt").exists()
    where = [sys.executable, "-c", "import offpcc; print(offpcc.__file__)"]
    told = subprocess.run(where, capture_output=True, text=True, cwd=tmp_path, env=environment).stdout
    assert told.startswith(str(target))


@pytest.mark.slow
def test_a_run_that_a_checkout_began_goes_on_from_a_wheel(target, tmp_path):
    name = ["--env", "pendulum-p-v0", "--algo", "sac"]
    begin = [*name, "--no_video", "--config", "configs/test/template_short.gin", "--gin", *QUICK]
    checkout, installed = [str(ROOT / "offpcc" / "launch.py")], ["-m", "offpcc.launch"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONSAFEPATH": "1"}
    for start, words, results in (
        (checkout, [*begin, "train.num_epochs=2"], "whole"),
        (checkout, [*begin, "train.num_epochs=1"], "halves"),
        (installed, [*name, "--no_video", "--resume", "--gin", "train.num_epochs=2"], "halves"),
    ):
        there = environment | ({"PYTHONPATH": str(target)} if start is installed else {})
        command = [sys.executable, *start, *words, "--results", results]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=there)
        assert done.returncode == 0, done.stderr
    assert "not exact" not in done.stdout
    whole, halves = (tmp_path / results / "pendulum-p-v0" / "sac" / "1" for results in ("whole", "halves"))
    assert rows(halves) == rows(whole) and len(rows(whole)) == 3
    for file in ("actor_best.pt", "actor_last.pt"):
        assert (halves / file).read_bytes() == (whole / file).read_bytes()
    told = json.loads((halves / "run.json").read_text())
    assert told["resumes"][0]["git_commit"] is None  # it was the wheel that went on


@pytest.mark.slow
def test_zoo_and_documentation_outside_the_checkout(target, tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}

    def printed(*words):
        command = [sys.executable, "-m", "offpcc.launch", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "pendulum-p" in printed("zoo", "list")
    assert "rsac in pendulum-p-v0" in printed("zoo", "play", "pendulum-p", "--out", "videos")
    assert (tmp_path / "videos" / "pendulum-p_1.mp4").stat().st_size > 1_000
    assert str(target / "offpcc" / "docs") in printed("docs")
    assert printed("docs", "zoo") == (DOCS / "zoo.md").read_text()


def test_the_wheel_holds_all_pages_of_the_documentation_and_stays_small(wheel):
    inside = {info.filename: info.file_size for info in zipfile.ZipFile(wheel).infolist()}
    docs = {name.removeprefix("offpcc/docs/") for name in inside if name.startswith("offpcc/docs/")}
    assert docs == {str(file.relative_to(DOCS)) for end in ("md", "png") for file in DOCS.rglob(f"*.{end}")}
    assert sum(inside[f"offpcc/docs/{name}"] for name in docs) < 1_000_000


def test_the_wheel_holds_the_configs_and_types_and_nothing_of_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "offpcc/configs/quickstart.gin" in names
    assert {"offpcc/zoo/pendulum/zoo.json", "offpcc/zoo/pendulum/actor_best.pt"} <= {*names}
    assert "offpcc/configs/test/template_recurrent_500k_gru.gin" in names
    assert "offpcc/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "configs/", "results/"))]


def test_the_citation_names_this_version():
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {offpcc.__version__}" in lines
    assert {"cff-version", "title", "message", "authors"} <= {line.partition(":")[0] for line in lines}


def texts_of(file):
    """All strings of a module but its docstrings."""
    tree = ast.parse(file.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in alone)
    return [node.value for node in strings if isinstance(node.value, str)]


def test_messages_name_no_file_that_a_wheel_lacks():
    texts = {(file, text) for file in (ROOT / "offpcc").rglob("*.py") for text in texts_of(file)}
    lacking = re.compile(
        r"\b(docs|tests|examples|benchmarks)/\w|\b(?!NAME\.|report\.)\w+\.md\b|\bCONTRIBUTING|\bREADME"
    )
    assert [(file.name, text) for file, text in texts if lacking.search(text)] == []
    configs = {name for _, text in texts for name in re.findall(r"\bconfigs/[\w/]+\.gin", text)}
    assert configs and all((ROOT / name).is_file() for name in configs)
    pages = {name for _, text in texts for name in re.findall(r"offpcc docs (\w+)", text)} - {"PAGE"}
    assert pages and all((DOCS / f"{name}.md").is_file() for name in pages)
