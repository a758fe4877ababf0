"""A run whose two halves were made at odd times, under other versions, or by an offpcc of another make."""

import importlib.metadata
import io
import itertools
import platform
import shutil
import sys
import time

import pytest
import torch
from conftest import QUICK, rows, run_folder

from offpcc.training import checkpoint
from offpcc.utils import version as versions
from offpcc.utils.tensor_files import _sealed

NAME = ("--env", "pendulum-p-v0", "--algo", "sac")
BEGIN = (*NAME, "--config", "test/template_short.gin", "--gin", *QUICK)
GO_ON = (*NAME, "--resume", "--gin", "train.num_epochs=2")
YEAR = 365 * 24 * 3600.0
ACTORS = ("actor_best.pt", "actor_last.pt")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of results: of a whole run, and of its first half."""
    from offpcc.cli.main import main

    folder = tmp_path_factory.mktemp("trained")
    for name, num_epochs in (("whole", 2), ("half", 1)):
        assert main([*BEGIN, f"train.num_epochs={num_epochs}", "--results", str(folder / name)]) == 0
    return folder


@pytest.fixture
def whole(trained):
    return trained / "whole" / "pendulum-p-v0" / "sac" / "1"


@pytest.fixture
def half(trained, launch, tmp_path):
    """A copy of the first half in the folder of results."""
    shutil.copytree(trained / "half", tmp_path / "results")
    return run_folder(tmp_path)


def is_same(run, other):
    return rows(run) == rows(other) and all((run / name).read_bytes() == (other / name).read_bytes() for name in ACTORS)


# The clock --------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_by_years_changes_nothing(whole, launch, tmp_path, monkeypatch):
    now = time.time()
    jumps = itertools.cycle([0.0, 70 * YEAR, -50 * YEAR, 3.0, 1.0 - now])
    monkeypatch.setattr(time, "time", lambda: now + next(jumps))
    code, _, err = launch(*BEGIN, "train.num_epochs=2")
    assert code == 0, err
    assert is_same(run_folder(tmp_path), whole)


@pytest.mark.parametrize("first, second", [(2090, 1970), (1970, 2090), (2026, 2025)])
def test_nor_does_one_that_is_set_between_two_halves(whole, launch, tmp_path, monkeypatch, first, second):
    begun = []
    for year, words in ((first, (*BEGIN, "train.num_epochs=1")), (second, GO_ON)):
        monkeypatch.setattr(time, "time", lambda year=year: (year - 1970) * YEAR + 5.0)
        code, _, err = launch(*words)
        assert code == 0, err
        events = sorted((run_folder(tmp_path) / "tensorboard").iterdir())
        begun += [file for file in events if file not in begun]
    assert is_same(run_folder(tmp_path), whole)
    assert begun == events and len(events) == 2  # TensorBoard reads them in the order of their names


# Versions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def under(monkeypatch):
    """Have this process run under another version of a package."""
    version = importlib.metadata.version

    def change(package, other="0.0.7"):
        if package == "offpcc":
            monkeypatch.setattr(versions, "__version__", other)
        elif package == "python":
            monkeypatch.setattr(platform, "python_version", lambda: other)
        else:
            fake = lambda name: other if name == package else version(name)  # noqa: E731
            monkeypatch.setattr(importlib.metadata, "version", fake)
        versions.installed_versions.cache_clear()

    yield change
    monkeypatch.undo()
    versions.installed_versions.cache_clear()


@pytest.mark.parametrize("package", ["torch", "numpy", "gymnasium", "offpcc", "python", "gin-config"])
def test_a_run_goes_on_under_another_version_and_says_so(half, whole, launch, under, package):
    was = versions.versions()[package]
    under(package)
    code, out, err = launch(*GO_ON)
    assert code == 0, err
    told = f"this resume is not exact: the run used {package} {was}, this process uses {package} 0.0.7"
    assert told in out
    assert len(rows(half)) == 3
    code, out, err = launch(*GO_ON[:-1], "train.num_epochs=3")  # what is gone on with now was written by this version
    assert code == 0, err
    assert "not exact" not in out


@pytest.mark.parametrize("package", versions.SIMULATORS)
def test_a_simulator_counts_only_if_the_run_has_used_it(under, monkeypatch, package):
    """One that was installed, or changed, between two halves of a run that does not use it changes nothing."""
    module = package.replace("-", "_")
    under(package, "1.0")
    monkeypatch.delitem(sys.modules, module, raising=False)
    unused = versions.versions()
    monkeypatch.setitem(sys.modules, module, sys)
    used = versions.versions()
    under(package, "2.0")
    assert versions.tell_changed(unused) is None
    assert versions.tell_changed(used) == f"the run used {package} 1.0, this process uses {package} 2.0"


def test_under_the_same_versions_nothing_is_said(half, whole, launch):
    code, out, err = launch(*GO_ON)
    assert code == 0, err
    assert "not exact" not in out
    assert is_same(half, whole)


def rewrite(half, change):
    """Change what a checkpoint holds, as another offpcc would have written it."""
    content = torch.load(half / "checkpoint.pt", weights_only=True)
    change(content)
    stream = io.BytesIO()
    torch.save(content, stream)
    (half / "checkpoint.pt").write_bytes(_sealed(bytearray(stream.getvalue())))
    (half / "checkpoint_before.pt").unlink(missing_ok=True)


def test_a_checkpoint_that_tells_no_versions_is_gone_on_with(half, whole, launch):
    rewrite(half, lambda content: content.pop("versions"))
    code, out, err = launch(*GO_ON)
    assert code == 0, err
    assert "not exact" not in out
    assert is_same(half, whole)


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_upgrade_with_another_format_is_refused_and_harms_nothing(half, launch, monkeypatch):
    before = snapshot(half)
    monkeypatch.setattr(checkpoint, "CHECKPOINT_FORMAT", checkpoint.CHECKPOINT_FORMAT + 1)
    code, _, err = launch(*GO_ON)
    assert code == 2
    assert "checkpoint.pt has format" in err and "an older offpcc wrote it" in err
    assert snapshot(half) == before


def test_an_upgrade_with_a_new_parameter_is_refused_and_names_the_versions(half, launch, under):
    def take_out(content):
        """The parameter's line, as an older offpcc did not have it."""
        lines = content["config"].splitlines(keepends=True)
        content["config"] = "".join(line for line in lines if ".polyak = " not in line)

    rewrite(half, take_out)
    before = snapshot(half)
    under("offpcc")
    code, _, err = launch(*GO_ON)
    assert code == 2
    assert "polyak" in err and "this process uses offpcc 0.0.7" in err and "Traceback" not in err
    assert snapshot(half) == before


def test_an_upgrade_without_a_parameter_is_refused_and_names_it(half, launch):
    config = half / "config.gin"
    config.write_text(f"{config.read_text()}\nSAC.taken_out = 5\n")
    before = snapshot(half)
    code, _, err = launch(*GO_ON)
    assert code == 2
    assert "config.gin:" in err and "SAC has no parameter 'taken_out'" in err
    assert snapshot(half) == before


def test_weights_of_another_make_are_refused_and_harm_nothing(half, launch, under):
    rewrite(half, lambda content: content["algorithm"].update(actor=content["algorithm"].pop("critics")))
    before = snapshot(half)
    under("torch")
    code, _, err = launch(*GO_ON)
    assert code == 2
    assert "does not fit" in err and "this process uses torch 0.0.7" in err and "Traceback" not in err
    after = snapshot(half)
    assert {**after, half / ".lock": b""} == {**before, half / ".lock": b""}
