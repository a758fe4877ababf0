"""The folder that wrong commands are given in: a finished run, recorded data, and one of each thing that is damaged."""

import json
import shutil

import h5py
import numpy as np
from bad_input.gin_files import GIN_FILES, MODULES

FINISHED = ("results", "pendulum-p-v0", "sac", "1")


def build(folder, data):
    """Everything that the tables name.

    Args:
        folder: holds a finished run of sac in pendulum-p-v0 below results/.
        data: six recorded episodes of pendulum-v0.
    """
    shutil.copy(data, folder / "swings.hdf5")
    for name, content in MODULES.items():
        (folder / f"{name}.py").write_text(content)
    (folder / "gin").mkdir()
    for name, content in GIN_FILES.items():
        file = folder / "gin" / f"{name}.gin"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    for name in ("home", "a_folder", "empty", "gin/folder.gin", "folder.hdf5"):
        (folder / name).mkdir()
    (folder / "a_file").write_text("words\n")
    _odd_files(folder)
    _odd_data(folder, data)
    _damaged_runs(folder, folder.joinpath(*FINISHED))


def _odd_files(folder):
    (folder / "dangling").symlink_to("nowhere")
    for suffix in ("hdf5", "gin", "pt"):
        (folder / f"dangling.{suffix}").symlink_to("nowhere")
        (folder / f"empty.{suffix}").write_bytes(b"")
        (folder / f"noise.{suffix}").write_bytes(np.random.default_rng(0).bytes(2_000))


def _odd_data(folder, data):
    (folder / "short.hdf5").write_bytes(data.read_bytes()[:5_000])
    (folder / "web.hdf5").write_text("<html><body>404</body></html>")
    (folder / "pointer.hdf5").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "bare.pt").write_bytes(b"PK\x03\x04" + b"\0" * 60)
    with h5py.File(data, "r") as file:
        arrays = {key: file[key][:] for key in file}
    changes = {
        "without_rewards": {"rewards": None},
        "fewer_actions": {"actions": arrays["actions"][:-1]},
        "nan": {
            "observations": np.where(np.arange(len(arrays["rewards"]))[:, None] == 7, np.nan, arrays["observations"])
        },
        "infinite": {"rewards": np.full(len(arrays["rewards"]), np.inf)},
        "twos": {"terminals": np.full(len(arrays["rewards"]), 2)},
        "words": {"actions": np.full((len(arrays["rewards"]), 1), b"left")},
        "choices": {"actions": np.arange(len(arrays["rewards"]))[:, None] % 3},
        "two_actions": {"actions": np.repeat(arrays["actions"], 2, 1)},
        "five_numbers": {"observations": np.ones((len(arrays["rewards"]), 5)), "next_observations": None},
        "no_steps": {key: array[:0] for key, array in arrays.items()},
        "both_names": {"terminations": arrays["terminals"]},
        "bad_range": {"metadata/action_low": np.float32([2.0]), "metadata/action_high": np.float32([-2.0])},
        "bad_seen": {"metadata/seen_through": "{"},
        "no_ends": {"terminals": arrays["terminals"] * 0, "timeouts": None, "next_observations": None},
    }
    for name, changed in changes.items():
        with h5py.File(folder / f"{name}.hdf5", "w") as file:
            for key, array in (arrays | changed).items():
                if array is not None:
                    file[key] = array
    np.savez(folder / "objects.npz", **arrays | {"rewards": np.array([print, None])})
    with h5py.File(folder / "absurd.hdf5", "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, (10**12, *array.shape[1:]), array.dtype, chunks=True)


def _damaged_runs(folder, finished):
    """One run folder for each way, below damaged/WAY/."""

    def copy(way):
        target = folder / "damaged" / way / "/".join(FINISHED[1:])
        shutil.copytree(finished, target, ignore=shutil.ignore_patterns("tensorboard", "videos"))
        return target

    for file in ("progress.csv", "config.gin", "checkpoint.pt", "actor_best.pt"):
        part = file.split(".")[0]
        for way, content in {
            "noise": np.random.default_rng(0).bytes(3_000),
            "empty": b"",
            "half": (finished / file).read_bytes()[: (finished / file).stat().st_size // 2],
        }.items():
            if (file, way) == ("config.gin", "half"):
                content = content.rpartition(b"\n\n")[0]  # not within a line
            run = copy(f"{part}_{way}")
            (run / file).write_bytes(content)
            _go_on(run)
        run = copy(f"{part}_folder")
        (run / file).unlink()
        (run / file).mkdir()
        _go_on(run)
    told = json.loads((finished / "run.json").read_text())
    for way, content in {
        "run_env_escape": told | {"env": "../../../etc/passwd"},
        "run_env_other": told | {"env": "Walker2d-v4"},
        "run_env_none": told | {"env": None},
        "run_newer": told | {"versions": {"offpcc": "99.1.0"}, "status": "running"},
        "run_newer_resume": told | {"resumes": [3, {"versions": {"offpcc": "99.1.0"}}], "status": "running"},
    }.items():
        (copy(way) / "run.json").write_text(json.dumps(content))
    header = (finished / "progress.csv").read_text().splitlines()[0]
    for way, content in {
        "csv_words": f"{header}\n{'words,' * 14}words\n",
        "csv_without_step": "epoch,test/return\n1,2.0\n",
        "csv_header": f"{header}\n",
    }.items():
        (copy(way) / "progress.csv").write_text(content)
    config = (finished / "config.gin").read_text()
    for way, content in {
        "gin_syntax": f"{config}\nSAC.lr = = 3\n",
        "gin_wrapper": f"{config}\nmake.wrappers = [@somewhere.Wrapper]\n",
        "gin_import": f"import exits\n{config}",
    }.items():
        (copy(way) / "config.gin").write_text(content)
    only = copy("only_a_checkpoint")
    for file in only.iterdir():
        if file.is_file() and file.name != "checkpoint.pt":
            file.unlink()


def _go_on(run):
    """Have a run go on when it is told to."""
    told = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(told | {"status": "running"}))
