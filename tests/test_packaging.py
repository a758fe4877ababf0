"""What is installed elsewhere works there: the wheel holds all it needs, configs too."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("offpcc-*.whl"))


def test_the_wheel_trains_outside_the_checkout(wheel, tmp_path):
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(target), str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
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


def test_the_wheel_holds_the_configs_and_types_and_nothing_of_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "offpcc/configs/quickstart.gin" in names
    assert "offpcc/configs/test/template_recurrent_500k_gru.gin" in names
    assert "offpcc/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "configs/", "results/"))]
