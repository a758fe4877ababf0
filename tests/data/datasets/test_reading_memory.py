"""Memory that learning from a data set takes: no more than is free, nor than the stated multiple of its file."""

import json
import os

import h5py
import numpy as np
import pytest

MIB = 2**20
MOST_TIMES, MOST_TIMES_OF_FLOATS = 24, 3  # the size of a file, as `read_dataset_file` says
ALWAYS = 32 * MIB
SLACK = 24 * MIB  # what the interpreter, HDF5 and the allocator take beside the data
CODE = """
# The peak is told by the process: what getrusage tells includes the process that started it.
import json, sys, warnings
from pathlib import Path
import gin
from offpcc.data.checks.check import examine_dataset
from offpcc.data.datasets import columns, files
from offpcc.data.datasets.load import load_dataset
from offpcc.training import build
from offpcc.utils.errors import UserError

def told(name):
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) * 1024

warnings.simplefilter("ignore")
file, algorithm, allowed = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
gin.parse_config("dataset.action_range = (-1, 1)")
small = dict(hidden_dims=(4,))

def use(file):
    if algorithm == "check":
        examine_dataset(load_dataset(file, action_range=(-1, 1)))
    else:
        build.build(None, algorithm, dataset=file, algorithm=small)

use(sys.argv[4])  # all modules are loaded
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
start, outcomes = told("VmRSS"), []
for limit in allowed:
    columns.available_bytes = files.available_bytes = lambda: limit - (told("VmRSS") - start)
    try:
        use(file)
        outcomes.append((True, told("VmHWM") - start))
        break
    except UserError as refused:
        assert "memory are free" in refused.message, refused.message
        outcomes.append((False, told("VmHWM") - start))
print(json.dumps(outcomes))
"""

CASES = {
    # name: steps, shape of observations, types of observations, other numbers and flags, steps of an episode, next ones
    "float32": (300_000, (11,), "f4", "f4", "?", 200, True),
    "bytes, all terminated": (700_000, (11,), "u1", "u1", "u1", 1, False),
    "few numbers, episodes of one step": (200_000, (1,), "f4", "f4", "f4", 1, True),
    "jumps": (200_000, (11,), "f4", "f4", "?", None, True),
    "one chunk": (150_000, (11,), "f8", "f8", "f8", 200, True),
    "npz": (150_000, (11,), "f8", "f8", "f8", 200, True),
    "images": (3_000, (64, 64, 3), "u1", "f4", "?", 100, True),
    "d3rlpy": (100_000, (11,), "f8", "f8", "?", 20, False),
}


def write(path, name, scale=1.0):
    steps, shape, observed, other, flag, length, has_next = CASES[name]
    steps = max(4, int(steps * scale))
    draw = np.random.default_rng(0)
    observations = draw.integers(0, 200, (steps, *shape), np.uint8).astype(observed)
    ends = np.zeros(steps, bool) if length is None else np.arange(steps) % length == length - 1
    given = {
        "observations": observations,
        "actions": draw.integers(0, 2, (steps, 3), np.uint8).astype(other),
        "rewards": draw.integers(0, 2, steps, np.uint8).astype(other),
        "terminals": ends.astype(flag),
        "timeouts": np.zeros(steps, flag),
    }
    if has_next:
        given["next_observations"] = np.roll(observations, -1 if length else 1, 0)
    if name == "npz":
        np.savez(path, **given)
        return
    if name == "d3rlpy":
        write_episodes(path, given, length)
        return
    chunked = {"compression": "gzip", "compression_opts": 1} if name == "one chunk" else {}
    with h5py.File(path, "w") as file:
        for key, column in given.items():
            file.create_dataset(key, data=column, **chunked | ({"chunks": column.shape} if chunked else {}))


def write_episodes(path, given, length):
    """Write each episode on its own, as d3rlpy does."""
    number = len(given["rewards"]) // length
    with h5py.File(path, "w") as file:
        file["columns"], file["num_episodes"] = ["observations", "actions", "rewards", "terminated"], number
        for episode in range(number):
            rows = slice(episode * length, (episode + 1) * length)
            for key in ("observations", "actions", "rewards"):
                file[f"{key}_{episode}"] = given[key][rows].reshape(length, -1)
            file[f"terminated_{episode}"] = True


def declared(path):
    """Bytes of the arrays in a file, without compression."""
    if path.suffix == ".npz":
        return path.stat().st_size
    with h5py.File(path) as file:
        return sum(column.nbytes for column in file.values())


CHECKED = ["float32", "bytes, all terminated"]
USES = [(name, "cbc" if name == "images" else "bc") for name in CASES] + [(name, "check") for name in CHECKED]


@pytest.mark.slow
@pytest.mark.parametrize("name, use", USES)
def test_reading_takes_no_more_than_is_free_and_than_is_stated(tmp_path, name, use, forks):
    """By an agent that learns from the data, and by the data check."""
    path, small = (tmp_path / f"{size}{'.npz' if name == 'npz' else '.hdf5'}" for size in ("large", "small"))
    write(path, name)
    write(small, name, 0.01)
    size = declared(path)
    most = MOST_TIMES_OF_FLOATS if name == "float32" else MOST_TIMES
    tried = (0.5, 2, 6) if name == "d3rlpy" else (0.5, 1, 1.5, 2, 3, 4, 6, 8, 12)  # which has many small arrays
    limits = [int(times * size) for times in tried if times < most]
    limits.append(most * size + ALWAYS)
    words = ["-c", str(path), use, json.dumps(limits), str(small)]
    code, told = forks.run(f"import sys\nsys.argv = {words}\n{CODE}", tmp_path, {**os.environ})
    assert code == 0, told
    outcomes = json.loads(told.splitlines()[-1])
    assert not outcomes[0][0] and outcomes[-1][0]
    for limit, (_, peak) in zip(limits, outcomes, strict=False):
        assert peak <= limit + SLACK
