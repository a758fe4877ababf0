"""The Dockerfile, by reading it and by building its wheel from the files that it copies. No image is built here."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "Dockerfile").is_file(), reason="the package is installed without it")


def stages():
    """The instructions of each stage, as lists of words."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    found = []
    for words in (line.split() for line in lines if line and not line.startswith("#")):
        if words[0] == "FROM":
            found.append([])
        found[-1].append(words)
    return found


def copies(stage):
    return [words[1:] for words in stage if words[0] == "COPY" and not words[1].startswith("--from")]


def test_it_copies_files_that_exist_and_installs_what_was_tested():
    build, last = stages()
    assert {stage[0][1] for stage in (build, last)} == {"python:3.11-slim"}
    sources = [name for stage in (build, last) for words in copies(stage) for name in words[:-1]]
    assert len(sources) == 9 and [name for name in sources if not (ROOT / name).exists()] == []
    torch, rest = [words for words in last if words[0] == "RUN"]
    assert torch[1:3] == ["pip", "install"] and torch[4] in (ROOT / "requirements.txt").read_text().splitlines()
    assert rest[4:] == ["-r", "/wheels/requirements.txt", "/wheels/*.whl"]
    assert last[-1] == ["ENTRYPOINT", '["offpcc"]']


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed")
def test_the_files_that_it_copies_make_the_wheel(tmp_path):
    for *sources, target in copies(stages()[0]):
        for name in sources:
            place = tmp_path / target / name if target == "./" else tmp_path / target
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, place)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "wheels"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    names = {*zipfile.ZipFile(wheel).namelist()}
    assert {"offpcc/launch.py", "offpcc/zoo/pendulum-p/actor_best.pt", "offpcc/configs/quickstart.gin"} <= names
