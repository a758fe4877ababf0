"""What somebody may put into a run's folder to do harm: each function changes a folder that was good.

Each row is a function that is given the run's folder and a folder of the user's, and the commands that have to refuse
what it makes, with words of their messages. Whatever a command does, it executes nothing and leaves the user's folder
as it is.
"""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import h5py
import numpy as np
import torch

from offpcc.utils.tensor_files import _sealed

MARKER = "executed"
CODE = f"from pathlib import Path\nPath({MARKER!r}).touch()\n"  # in the working directory
OPTIONAL = ("botocore", "isal", "lz4", "snappy", "tensorflow", "wandb", "zstandard")  # looked for if not installed


class Malicious:
    """What leaves the marker when it is unpickled."""

    def __reduce__(self):
        return os.system, (f"touch {MARKER}",)


def resume(*words):
    """That resuming is refused, with these words."""
    return {"resume": words}


# Configs ----------------------------------------------------------------------------------------------------------


def config(text, **files):
    def change(folder, victim):
        for name, content in {"evil": CODE, **files}.items():
            (folder / f"{name}.{'gin' if 'gin' in name else 'py'}").write_text(content)
        file = folder / "config.gin"
        file.write_text(f"{text.format(folder=folder, victim=victim)}\n{file.read_text()}")

    return change


CONFIGS = {
    "import beside": (config("import evil"), resume("config.gin:1", "--import evil")),
    "import installed": (config("import evil_installed"), resume("config.gin:1", "--import evil_installed")),
    "import of the standard library": (config("import antigravity"), resume("--import antigravity")),
    "import from": (config("from evil import x"), resume("config.gin:1", "imports nothing")),
    "import of what is there": (config("import os"), {}),
    "dynamic registration": (
        config("from __gin__ import dynamic_registration"),
        resume("imports nothing"),
    ),
    "include": (config("include 'evil_gin.gin'", evil_gin="import evil"), resume("config.gin:1", "includes nothing")),
    "include by path": (config("include '{folder}/evil_gin.gin'", evil_gin="import evil"), resume("includes nothing")),
    "chain": (
        config("include 'first_gin.gin'", first_gin="include 'evil_gin.gin'", evil_gin="import evil"),
        resume("includes nothing"),
    ),
    "include of a secret": (config("include '{victim}/secret.txt'"), resume("includes nothing")),
    "import at the end": (
        lambda folder, victim: config("")(folder, victim) or append(folder / "config.gin", "import evil\n"),
        resume("--import evil"),
    ),
    "reference": (config("make.wrappers = [@evil.Wrapper]"), resume("config.gin")),
    "code": (config("make.wrappers = __import__('evil')"), resume("config.gin")),
    "optional modules": (config("", **dict.fromkeys(OPTIONAL, CODE)), {}),
}


def append(file, text):
    file.write_text(file.read_text() + text)


# Links ------------------------------------------------------------------------------------------------------------


def link(name, to):
    def change(folder, victim):
        path = folder / name.format(pid=os.getpid())
        path.parent.mkdir(exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            path.rename(folder / "moved_away")
        path.unlink(missing_ok=True)
        path.symlink_to(victim / to)

    return change


FILES = ("progress.csv", "run.json", "config.gin", "curve.png", "checkpoint.pt", "environment_faults.txt")
LINKS = {
    **{f"{name} is a link": (link(name, "secret.txt"), resume(name, "link")) for name in FILES},
    **{
        f"{name} is a link": (link(name, "folder"), resume(name, "link"))
        for name in ("checkpoint_parts", "tensorboard", "videos")
    },
    ".lock is a link": (link(".lock", "secret.txt"), resume(".lock")),
    "actor_best.pt is a link": (link("actor_best.pt", "secret.txt"), resume("actor_best.pt", "link")),
    "a link to nothing": (link("progress_before.csv", "new.txt"), resume("link")),
    "a link where a file is begun": (link(".progress.tmp-{pid}.csv", "secret.txt"), resume("link")),
    "a link where a video is begun": (link("videos/.episode_1.tmp-{pid}.mp4", "secret.txt"), {}),
    "a link where the best actor's video is": (link("videos/best_actor_1.mp4", "secret.txt"), {}),
}


# Records and tables -----------------------------------------------------------------------------------------------


def text(name, content):
    def change(folder, _):
        (folder / name).write_text(content)

    return change


def told(**changes):
    def change(folder, _):
        file = folder / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


RECORDS = {
    "run.json of a list": (text("run.json", "[1, 2]"), {}),
    "run.json of a number": (text("run.json", "1" * 5_000), {}),
    "resumes": (told(resumes=5, wandb_id=["x"], config_name={"x": 1}), {}),
    "simulator": (told(simulator=["x"], status={"x": 1}), {}),
    "environment's name": (told(env="\x1b[2J\nall is well", algo="\x1b]0;x\x07"), {"evaluate": ["\\x1b[2J"]}),
    "long environment's name": (told(env="x" * 10**6), {"evaluate": ["letters"]}),
    "environment of a module": (told(env="evil_installed:pendulum-p-v0"), {}),
    "table's header": (text("progress.csv", "step,\x1b[2J\n1,2\n"), {}),
    "table of one field": (text("progress.csv", "step," + "x" * 10**6 + "\n1,2\n"), {}),
}


# Tensors ----------------------------------------------------------------------------------------------------------


def archive(parts):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, part in parts:
            file.writestr(zipfile.ZipInfo(name), part)
    return stream.getvalue()


def parts_of(content):
    stream = io.BytesIO()
    torch.save(content, stream)
    with zipfile.ZipFile(stream) as file:
        return {item.filename: file.read(item) for item in file.infolist()}


def with_code(good):
    parts = parts_of(good)
    code = pickle.dumps(good | {"x": Malicious()}, 2)
    return archive([(name, code if name.endswith("data.pkl") else part) for name, part in parts.items()])


def elsewhere(good):
    return archive([(f"../../victim/{name}", part) for name, part in parts_of(good).items()])


def tensors(write):
    def change(folder, _):
        for name, kind in (("actor_best.pt", "actor"), ("checkpoint.pt", "checkpoint")):
            good = {"kind": kind, "format": torch.load(folder / name, weights_only=True)["format"]}
            (folder / name).write_bytes(_sealed(bytearray(write(good))))
        (folder / "checkpoint_before.pt").unlink(missing_ok=True)

    return change


ARCHIVES = {
    "tensors: code": (tensors(with_code), {"evaluate": ["actor_best.pt"], "resume": ["checkpoint.pt"]}),
    "tensors: parts elsewhere": (tensors(elsewhere), {}),
}


def checkpoint(change_content):
    def change(folder, _):
        file = folder / "checkpoint.pt"
        content = torch.load(file, weights_only=True)
        change_content(content)
        stream = io.BytesIO()
        torch.save(content, stream)
        file.write_bytes(_sealed(bytearray(stream.getvalue())))
        (folder / "checkpoint_before.pt").unlink(missing_ok=True)

    return change


def set_to(value, *keys):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return checkpoint(change)


PART = f"../../../../victim/folder/{'0' * 32}.part"
CHECKPOINTS = {
    "nothing in it": (
        checkpoint(lambda content: [content.pop(k) for k in {*content} - {"kind", "format"}]),
        ["does not have the content of a checkpoint"],
    ),
    "no loop": (set_to({}, "loop"), ["does not have the content of a checkpoint"]),
    "an attribute of the loop": (set_to("x", "loop", "state_dict"), ["fit"]),
    "steps of text": (set_to("x", "loop", "step"), ["does not have the content of a checkpoint"]),
    "parts elsewhere": (set_to([[PART, 3]], "buffer", "parts"), ["parts"]),
    "parts of a negative size": (set_to([[f"{'0' * 32}.part", -1]], "buffer", "parts"), ["parts"]),
    "a buffer without end": (set_to(2**60, "buffer", "num_envs"), ["num_envs"]),
    "code for a generator": (set_to("__import__('evil')", "global_generators", "python"), ["fit"]),
    "an import in its config": (set_to("import evil\n", "config"), ["made with"]),
    "a network without end": (set_to(torch.zeros(3), "algorithm", "actor"), ["fit"]),
    "a format of text": (set_to("\x1b[2J" * 1000, "format"), ["format"]),
}
CHECKPOINTS = {f"checkpoint: {name}": (change, resume(*words)) for name, (change, words) in CHECKPOINTS.items()}


# Data sets --------------------------------------------------------------------------------------------------------


def recorded(change_file):
    def change(folder, victim):
        with h5py.File(folder / "data.hdf5", "a") as file:
            change_file(file, victim)

    return change


def lead(file, victim):
    del file["rewards"]
    file["rewards"] = h5py.ExternalLink(str(victim / "data.hdf5"), "rewards")


def store_outside(file, victim):
    del file["rewards"]
    file.create_dataset("rewards", (40,), "f4", external=[(str(victim / "secret.txt"), 0, 160)])


def objects(folder, _):
    (folder / "data.hdf5").unlink()
    columns = {name: np.zeros(40, np.float32) for name in ("rewards", "terminals", "timeouts")}
    hidden = np.array([Malicious()] * 40)
    np.savez(folder / "data.npz", observations=hidden, actions=np.zeros((40, 1)), **columns)
    (folder / "data.npz").rename(folder / "data.hdf5")


def tell(**texts):
    def change(file, _):
        for name, value in texts.items():
            file[f"metadata/{name}"] = value

    return recorded(change)


DATA = {
    "data in another file": (recorded(lead), {"dataset": ["link"], "check": ["link"]}),
    "data in a file of the user's": (recorded(store_outside), {"dataset": ["other files"], "check": ["other files"]}),
    "data of objects": (objects, {"dataset": ["data.hdf5"], "check": ["data.hdf5"]}),
    "an import in the data's config": (tell(config="import evil\ninclude 'evil.py'\n", env="evil_installed:x-v0"), {}),
    "a wrapper that the data names": (tell(recorded_wrappers='["evil_installed:Wrapper"]'), {}),
}

HARMLESS = {"nothing": (lambda folder, victim: None, {})}
GROUPS = (
    (HARMLESS, ("resume", "evaluate", "render", "plot", "collect", "dataset")),
    (CONFIGS, ("resume", "evaluate", "render", "collect")),
    (LINKS, ("resume", "render")),
    (RECORDS, ("resume", "evaluate", "plot", "collect")),
    (ARCHIVES, ("resume", "evaluate")),
    (CHECKPOINTS, ("resume",)),
    (DATA, ("dataset", "check")),
)
ROWS = [(name, command) for rows, commands in GROUPS for name in rows for command in commands]
HOSTILE = {name: row for rows, _ in GROUPS for name, row in rows.items()}


def good_data(file: Path) -> None:
    """A data set that is learned from."""
    draws = np.random.default_rng(0)
    with h5py.File(file, "w") as data:
        data["observations"] = draws.random((40, 2), np.float32)
        data["actions"] = draws.uniform(-1, 1, (40, 1)).astype(np.float32)
        data["rewards"] = draws.random(40, np.float32)
        data["terminals"], data["timeouts"] = np.arange(40) % 10 == 9, np.zeros(40, bool)
