"""The Dockerfile: by reading it, by building its wheel, and by its RUN lines in a clean Debian. No image is built."""

import importlib.util
import os
import re
import shlex
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
    assert len(sources) == 8 and [name for name in sources if not (ROOT / name).exists()] == []
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


def in_root(root, line, folder="/"):
    """Run a command in another root, with the pip settings, certificates and local wheels of this machine."""
    found = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    mounted = {*os.environ.get("PIP_FIND_LINKS", "").split(), *re.findall(r"[= '](/[^ '\"]+)", found)}
    mounted |= {str(Path(one).parent) for one in re.findall(r"file://(/[^ '\"]+)", found)}  # an index, and its files
    commands = []
    for path in sorted(one for one in mounted if Path(one).exists()):
        there = shlex.quote(f"{root}{path}")
        make = f"mkdir -p {there}" if Path(path).is_dir() else f"mkdir -p $(dirname {there}) && touch {there}"
        commands += [make, f"mount --bind {shlex.quote(path)} {there}"]
    settings = {
        f"PIP_{name.upper().replace('-', '_')}": value
        for name, value in re.findall(r"^global\.([\w-]+)='(.*)'$", found, re.MULTILINE)
    }
    names = [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]
    settings |= {name: os.environ[name] for name in names} | {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_RETRIES": "1",
    }
    inside = f"cd {folder} && {line}"
    commands.append(f"exec chroot {shlex.quote(str(root))} sh -c {shlex.quote(inside)}")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", " && ".join(commands)], env=settings, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, f"{line}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.skipif(shutil.which("debootstrap") is None or os.geteuid() != 0, reason="needs root and debootstrap")
def test_its_run_lines_work_in_a_clean_debian(tmp_path):
    """For minutes: it fetches Debian and PyTorch. The stages share one root, so the wheels are at their place."""
    root = tmp_path / "root"
    packages = "--include=python3,python3-pip,ca-certificates"
    subprocess.run(["debootstrap", "--variant=minbase", packages, "bookworm", root], check=True, capture_output=True)
    if Path("/etc/resolv.conf").is_file():
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    for stage in stages():
        folder = "/"
        for words in stage:
            if words[0] == "WORKDIR":
                folder = words[1]
                Path(f"{root}{folder}").mkdir(parents=True, exist_ok=True)
            elif words[0] == "COPY" and not words[1].startswith("--from"):
                for name in words[1:-1]:
                    is_folder = words[-1].endswith("/")
                    place = root / folder[1:] / words[-1].lstrip("/") / (Path(name).name if is_folder else "")
                    place.parent.mkdir(parents=True, exist_ok=True)
                    (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place)
            elif words[0] == "RUN":
                in_root(root, " ".join(words[1:]), folder)
    assert list((root / "wheels").glob("offpcc-*.whl"))
    assert "pendulum-p" in in_root(root, "offpcc zoo list", "/work")
