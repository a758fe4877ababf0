"""Files that came from anywhere: nothing in them is executed or imported."""

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from conftest import QUICK, run_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from peaks import with_peak

import offpcc
from offpcc.data.datasets.files import read_dataset_file
from offpcc.data.datasets.load import raw_arrays
from offpcc.training.run_dir import RunFolder
from offpcc.utils.errors import UserError

MARKER = "executed"
CODE = f"from pathlib import Path\nPath({MARKER!r}).touch()\n"


class Malicious:
    """What touches a file in the working directory when it is unpickled."""

    def __reduce__(self):
        return os.system, (f"touch {MARKER}",)


EVIL = pickle.dumps(Malicious())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished run."""
    from offpcc.cli.main import main

    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OFFPCC_RESULTS", "results")
        words = "--env pendulum-p-v0 --algo sac --config test/template_short.gin"
        assert main([*words.split(), "--gin", *QUICK]) == 0
    return run_folder(folder)


@pytest.fixture
def run(trained, tmp_path, launch):
    """A copy of it in the folder of results, with a module beside its files that must not be imported."""
    folder = run_folder(tmp_path)
    shutil.copytree(trained, folder)
    (folder / "evil_of_the_run.py").write_text(CODE)
    return folder


@pytest.fixture(autouse=True)
def nothing_was_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text(CODE)
    yield
    assert not list(tmp_path.rglob(MARKER))


def test_the_marker_would_be_there_if_anything_were_executed(tmp_path):
    for load in (lambda: pickle.loads(EVIL), lambda: __import__("evil")):
        load()
        (tmp_path / MARKER).unlink()


def archive_of(content):
    """As `torch.save` writes it, with a pickle of anything."""

    def write(file):
        torch.save({"kind": "actor", "format": 1}, file)
        with zipfile.ZipFile(file) as archive:
            parts = {item.filename: archive.read(item) for item in archive.infolist()}
        with zipfile.ZipFile(file, "w") as archive:
            for name, part in parts.items():
                archive.writestr(name, pickle.dumps(content, 2) if name.endswith("data.pkl") else part)

    return write


def old_format(file):
    torch.save({"kind": "actor", "format": 1, "algorithm": Malicious()}, file, _use_new_zipfile_serialization=False)


TENSORS = {
    "archive": archive_of({"kind": "actor", "format": 1, "algorithm": Malicious(), "weights": {}}),
    "archive of one thing": archive_of(Malicious()),
    "pickle": lambda file: file.write_bytes(pickle.dumps(Malicious())),
    "pickle of a dictionary": lambda file: file.write_bytes(pickle.dumps({"kind": Malicious()})),
    "format before archives": old_format,
}


# Actors and checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", TENSORS)
@pytest.mark.parametrize("reader", ["evaluate", "record", "collect", "load", "resume"])
def test_pickles_are_refused_wherever_tensors_are_read(run, launch, tmp_path, way, reader):
    file = run / ("checkpoint.pt" if reader == "resume" else "actor_best.pt")
    TENSORS[way](file)
    name = ("--env", "pendulum-p-v0", "--algo", "sac")
    if reader == "load":
        with pytest.raises(UserError, match=r"actor_best\.pt"):
            offpcc.Agent.load(file)
        return
    words = {
        "evaluate": ("evaluate", run, "--episodes", 1),
        "record": (*name, "--record", "--episodes", 1),
        "collect": ("collect", "--env", "pendulum-p-v0", "--actor", run, "--steps", 5, "--out", "new.hdf5"),
        "resume": (*name, "--resume", "--gin", "train.num_epochs=9"),
    }
    code, out, err = launch(*words[reader])
    assert code == 2 and file.name in err and "Traceback" not in out + err
    assert not (tmp_path / "new.hdf5").exists()


def spec_of(run):
    return torch.load(run / "actor_best.pt", weights_only=True)


@pytest.mark.parametrize(
    "change",
    [
        {"class": "os.system", "arguments": {"command": f"touch {MARKER}"}},
        {"class": "evil", "arguments": {}},
        {"reference": "evil"},
        {"partial": {"reference": "evil"}, "arguments": {}},
        {"class": "LinearDecay", "arguments": {"initial": 1.0, "final": 0.0, "num_updates": 5}},
        {"class": "Recurrent", "arguments": {}},
        [],
        "evil",
        None,
        {"box": [2], "dtype": "O"},
    ],
    ids=str,
)
def test_an_actors_file_names_classes_that_are_known_or_nothing(run, change):
    content = spec_of(run)
    content["algorithm"] = change
    torch.save(content, run / "actor_best.pt")
    with pytest.raises(UserError, match=r"actor|not known here"):
        offpcc.Agent.load(run / "actor_best.pt")


@pytest.mark.parametrize(
    "argument, value",
    [
        ("observation_space", {"box": [-1], "dtype": "float32"}),
        ("action_space", {"box": [2], "dtype": "no type"}),
        ("action_space", {"box": [1], "dtype": "float32", "low": [-1.0]}),
        ("action_space", {"box": [1], "dtype": "float32", "low": [-1.0, -1.0], "high": [1.0, 1.0]}),
        ("action_space", {"box": [1], "dtype": "float32", "low": [2.0], "high": [1.0]}),
        ("action_space", {"box": [1], "dtype": "float32", "low": [-1.0], "high": [1e300]}),
        ("action_space", {"box": [1], "dtype": "float32", "low": [float("nan")], "high": [1.0]}),
        ("action_space", {"box": [1], "dtype": "float32", "low": ["-1"], "high": "x"}),
        ("hidden_dims", [-5]),
        ("num_critics", 10**15),
        ("encoder", {"reference": "SAC"}),
        ("lr", float("nan")),
    ],
)
def test_absurd_arguments_of_an_actor_are_refused(run, argument, value):
    content = spec_of(run)
    content["algorithm"]["arguments"][argument] = value
    torch.save(content, run / "actor_best.pt")
    with pytest.raises(UserError):
        offpcc.Agent.load(run / "actor_best.pt")


def test_changed_bytes_of_an_actor_end_in_a_message_or_in_an_actor(run):
    file, draws = run / "actor_best.pt", np.random.default_rng(0)
    content, refused = file.read_bytes(), 0
    for number in range(60):
        changed = bytearray(content[: draws.integers(len(content))] if number % 4 == 0 else content)
        for place in draws.integers(0, max(len(changed), 1), 4):
            changed[place : place + 1] = draws.bytes(1)
        file.write_bytes(changed)
        try:
            offpcc.Agent.load(file).act(np.zeros(2, np.float32))
        except UserError:
            refused += 1
    assert refused > 20


# A run's folder from elsewhere ------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["evil", "evil_of_the_run"])
def test_what_a_runs_config_names_is_not_imported_when_the_run_is_shown(run, launch, module):
    config = run / "config.gin"
    config.write_text(f"import {module}\ninclude '{module}.py'\n{config.read_text()}\nmake.wrappers = []\n")
    code, _, err = launch("evaluate", run, "--episodes", 1)
    assert code == 0, err
    code, _, err = launch("--env", "pendulum-p-v0", "--algo", "sac", "--record", "--episodes", 1)
    assert code == 0, err
    actor = ("--actor", run, "--steps", 5, "--out", "new.hdf5")
    code, _, err = launch("collect", "--env", "pendulum-p-v0", *actor)
    assert code == 0, err


@pytest.mark.parametrize(
    "binding",
    [
        "make.wrappers = [@evil.Wrapper]",
        "make.wrappers = [@evil_of_the_run.Wrapper()]",
        "make.wrappers = [@os.system]",
        "make.wrappers = __import__('evil')",
        "make.wrappers = [lambda env: __import__('evil')]",
        "make.kwargs = {'entry_point': 'evil:Env'}",
        "make.kwargs = {'render_mode': @evil()}",
    ],
)
def test_nor_is_what_its_bindings_refer_to(run, launch, binding):
    config = run / "config.gin"
    config.write_text(f"{config.read_text()}\n{binding}\n")
    code, out, err = launch("evaluate", run, "--episodes", 1)
    assert code == 2 and "Traceback" not in out + err


def test_a_run_that_goes_on_imports_nothing_out_of_its_own_folder(run, launch):
    config = run / "config.gin"
    config.write_text(f"import evil_of_the_run\n{config.read_text()}")
    code, _, err = launch("--env", "pendulum-p-v0", "--algo", "sac", "--resume", "--gin", "train.num_epochs=9")
    assert code == 2 and "evil_of_the_run" in err


@pytest.mark.parametrize("env", ["evil:pendulum-p-v0", "evil:x-v0", "../../evil", "/evil", ["evil"], {"evil": 1}, 5])
def test_the_environment_that_a_runs_record_names_imports_nothing(run, launch, env):
    told = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(told | {"env": env, "algo": "evil:Evil", "config_name": "evil"}))
    code, out, err = launch("evaluate", run, "--episodes", 1)
    assert code in (0, 2) and "Traceback" not in out + err
    assert launch("plot", run)[0] == 0


# Data sets --------------------------------------------------------------------------------------------------------


def recorded():
    numbers = np.random.default_rng(0)
    return {
        "observations": numbers.random((40, 3), np.float32),
        "actions": numbers.random((40, 1), np.float32),
        "rewards": numbers.random(40, np.float32),
        "terminals": np.arange(40) % 10 == 9,
        "timeouts": np.zeros(40, bool),
    }


def everything(path):
    """All that can be asked of a file, refusals let by."""
    for ask in (read_dataset_file, raw_arrays):
        try:
            data = ask(path)
        except UserError:
            continue
        for part in (data.infos, data.metadata) if ask is read_dataset_file else ():
            for name in part:
                try:
                    part[name]
                except UserError:
                    continue


@pytest.mark.parametrize(
    "key", [*recorded(), "next_observations", "infos/qpos", "metadata/env", "metadata/seen_through"]
)
def test_objects_in_archives_of_arrays_are_not_unpickled(tmp_path, key):
    path = tmp_path / "data.npz"
    np.savez(path, **recorded() | {key: np.array([Malicious()] * 40)})
    everything(path)
    with pytest.raises(UserError, match=r"objects|numbers"):
        raw_arrays(path)


@pytest.mark.parametrize("key", ["observations", "rewards", "infos/qpos", "metadata/env", "metadata/seen_through"])
@pytest.mark.parametrize("kind", ["bytes", "opaque", "reference", "lengths"])
def test_pickles_and_references_in_hdf5_are_data_or_refused(tmp_path, key, kind):
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        for name, column in recorded().items():
            if name != key:
                file[name] = column
        if kind == "bytes":
            file[key] = EVIL.replace(b"\0", b"")
        elif kind == "opaque":
            file[key] = np.void(EVIL)
        elif kind == "reference":
            file[key] = np.array([file["actions"].ref] * 40, h5py.ref_dtype)
        else:
            column = file.create_dataset(key, (40,), h5py.vlen_dtype(np.uint8))
            for row in range(40):
                column[row] = np.frombuffer(EVIL, np.uint8)
        for name in ("env", "pickle"):
            file.attrs[name] = np.void(EVIL)
        file.attrs["link"] = file["actions"].ref
    everything(path)


def test_absurd_sizes_are_refused_before_anything_is_made(tmp_path):
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        for name, column in recorded().items():
            file.create_dataset(name, (2**40, *column.shape[1:]), column.dtype, chunks=True)

    def refuse():
        with pytest.raises(UserError, match="bytes"):
            read_dataset_file(path)

    assert with_peak(refuse)[1] < 2**20


@pytest.mark.parametrize("change", ["env_spec", "observation_space", "data_format", "link"])
def test_minaris_data_imports_nothing(tmp_path, monkeypatch, change):
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "minari").mkdir()
    steps = {name: column[:10] for name, column in recorded().items()}
    box = __import__("gymnasium").spaces.Box(-1.0, 1.0, (1,), np.float32)
    episode = EpisodeBuffer(
        observations=recorded()["observations"][:11],
        actions=steps["actions"],
        rewards=steps["rewards"],
        terminations=steps["terminals"],
        truncations=steps["timeouts"],
        infos={},
    )
    seen = __import__("gymnasium").spaces.Box(-1.0, 1.0, (3,), np.float32)
    minari.create_dataset_from_buffers("mine-v0", [episode], action_space=box, observation_space=seen)
    folder = tmp_path / "minari" / "mine-v0" / "data"
    about = json.loads((folder / "metadata.json").read_text())
    spec = {
        "id": "evil-v0",
        "entry_point": "evil:Env",
        "additional_wrappers": [],
        "kwargs": {},
        "disable_env_checker": False,
    }
    changes = {
        "env_spec": {"env_spec": json.dumps(spec), "eval_env_spec": json.dumps(spec), "code_permalink": "evil"},
        "observation_space": {"observation_space": json.dumps({"type": "evil", "shape": [3]})},
        "data_format": {"data_format": "evil"},
        "link": {},
    }
    (folder / "metadata.json").write_text(json.dumps(about | changes[change]))
    if change == "link":
        (tmp_path / "other.hdf5").write_bytes((folder / "main_data.hdf5").read_bytes())
        with h5py.File(folder / "main_data.hdf5", "a") as file:
            del file["episode_0/rewards"]
            file["episode_0/rewards"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "episode_0/rewards")
    try:
        data = offpcc.qlearning_dataset("minari:mine-v0")
    except UserError:
        assert change != "env_spec"
    else:
        assert change == "env_spec" and len(data["rewards"]) == 10


# Names ------------------------------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.sampled_from(
        ["..", "../..", "/etc", "a/../../b", "~", "~root", "a\0b", "-", ".", "a\n/../..", "..\\..", "CON", "💥/.."]
    ),
    st.text(max_size=300),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(env=NAMES, algo=NAMES, run_id=st.integers(0, 2**31 - 1))
def test_no_name_leaves_the_folder_of_results(env, algo, run_id):
    results = Path("/somewhere/results")
    try:
        path = RunFolder(results, env, algo, run_id).path
    except UserError:
        return
    assert path.parent.parent.parent == results and ".." not in path.parts
    assert all(part.isprintable() and len(part.encode()) <= 255 for part in path.parts)
