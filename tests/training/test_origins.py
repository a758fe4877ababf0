"""Runs beside each other learned from the same, or the second is refused before anything is made."""

import json
import shutil

import h5py
import pytest
from conftest import run_folder

SHORT = ("--config", "test/offline_short.gin", "--gin", "train.num_epochs=1", "train.num_steps_per_epoch=3")


@pytest.fixture
def swings(unit_file, tmp_path):
    """Files of one name in several folders; in each, the first reward differs."""

    def write(folder, env=None):
        file = tmp_path / folder / "swings.hdf5"
        file.parent.mkdir()
        with h5py.File(unit_file) as source, h5py.File(file, "w") as target:
            for key in source:
                target[key] = source[key][:]
            target["rewards"][0] += len(folder)
        return file

    return write


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("run_id", "extra"),
    [(2, ()), (1, ()), (1, ("--resume", "--gin", "train.num_epochs=2"))],
    ids=["other", "own", "on"],
)
def test_two_files_of_one_name_are_not_seeds_of_one_experiment(launch, swings, tmp_path, run_id, extra):
    one, other = swings("a"), swings("bb")
    assert launch("--dataset", one, "--algo", "bc", *SHORT)[0] == 0
    before = files_of(tmp_path / "results")
    config = () if extra else SHORT
    code, _, err = launch("--dataset", other, "--algo", "bc", *config, "--run_id", run_id, *extra)
    assert code == 2 and len(err.splitlines()) == 1
    siblings = run_folder(tmp_path, "swings", "bc").parent
    assert f"run 1 in {siblings} learned from {one} (SHA-256 " in err
    assert f"would learn from {other} (SHA-256 " in err and "--results" in err and "rename the data file" in err
    assert files_of(tmp_path / "results") == before and [path.name for path in siblings.iterdir()] == ["1"]
    code, _, err = launch("--dataset", other, "--algo", "bc", *SHORT, "--run_id", run_id, "--results", "elsewhere")
    assert code == 0, err


def test_the_same_data_elsewhere_and_noise_of_ones_own_are_no_other_data(launch, swings, tmp_path):
    noise = ("make.wrappers=[@ObservationNoise]", "ObservationNoise.std=0.1", "train.num_test_episodes_per_epoch=0")
    for run_id, folder in enumerate(("a", "b"), start=1):
        data = ("--env", "pendulum-v0", "--dataset", swings(folder), "--algo", "bc", *SHORT, *noise)
        code, _, err = launch(*data, "--run_id", run_id)
        assert code == 0, err
    facts = [
        json.loads((run_folder(tmp_path, "pendulum-v0_from_swings", "bc", i) / "run.json").read_text())["dataset"]
        for i in (1, 2)
    ]
    assert facts[0]["fingerprint"] == facts[1]["fingerprint"] and facts[0]["identity"] != facts[1]["identity"]


@pytest.mark.parametrize("record", [None, "{", "[]", '{"env": 3, "dataset": [1]}', '{"env": null, "dataset": {}}'])
def test_what_others_do_not_tell_is_taken_to_agree(launch, swings, tmp_path, record):
    for number in (1, "9" * 200):
        other = run_folder(tmp_path, "swings", "bc", number)
        other.mkdir(parents=True)
        (other / "progress.csv").write_text("step\n")
        if record is not None:
            (other / "run.json").write_text(record)
    code, _, err = launch("--dataset", swings("a"), "--algo", "bc", *SHORT, "--run_id", 2)
    assert code == 0, err


def test_data_of_an_environments_name_is_not_taken_for_the_environment(quick, launch, unit_file, tmp_path):
    assert quick("sac", env="pendulum-v0", bindings=["train.num_epochs=1"])[0] == 0
    named = tmp_path / "pendulum-v0.hdf5"
    named.write_bytes(unit_file.read_bytes())
    code, _, err = launch("--dataset", named, "--algo", "sac", *SHORT, "--run_id", 2)
    assert code == 2 and "learned in pendulum-v0, not from recorded data, but" in err and str(named) in err


def test_a_run_without_tests_is_not_put_beside_one_with_them(launch, hopper, tmp_path):
    tests = ("train.num_test_episodes_per_epoch=1",)
    code, _, err = launch("--env", hopper, "--algo", "bc", *SHORT, *tests)
    assert code == 0, err
    siblings = run_folder(tmp_path, hopper, "bc").parent
    for extra in ((*SHORT, "--run_id", 2), (*SHORT,), ("--resume", "--gin", "train.num_epochs=2")):
        code, _, err = launch("--dataset", hopper, "--algo", "bc", *extra)
        assert code == 2
        assert err == (
            f"offpcc: run 1 in {siblings} was tested in {hopper}, but this one would not be tested; add --env "
            f"{hopper}, or give another --results\n"
        )
    assert launch("--env", hopper, "--algo", "bc", "--resume", "--gin", "train.num_epochs=2")[0] == 0


def test_a_run_with_tests_is_not_put_beside_one_without(launch, hopper):
    assert launch("--dataset", hopper, "--algo", "bc", *SHORT)[0] == 0
    code, _, err = launch("--env", hopper, "--algo", "bc", *SHORT, "--run_id", 2)
    assert code == 2
    assert f"was not tested, but this one would be tested in {hopper}; name {hopper} by --dataset, without --env" in err


def test_a_name_of_any_script_names_a_folder(launch, unit_file, tmp_path):
    for name in ("数据", "結果"):
        file = shutil.copy(unit_file, tmp_path / f"{name}.hdf5")
        code, _, err = launch("--dataset", file, "--algo", "bc", *SHORT)
        assert code == 0, err
        assert (tmp_path / "results" / name / "bc" / "1" / "actor_last.pt").is_file()
    code, _, err = launch("--dataset", shutil.copy(unit_file, tmp_path / "🙂.hdf5"), "--algo", "bc", *SHORT)
    assert (code, len(err.splitlines())) == (2, 1) and "cannot be the name of a folder; rename the file" in err
