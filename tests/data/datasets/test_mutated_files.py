"""The reader of HDF5 against files that were changed in any way: it reads what is there, or refuses in one message."""

import tracemalloc
import warnings

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offpcc.data.datasets.files import read_dataset_file
from offpcc.data.offline import read
from offpcc.utils.errors import UserError

STEPS = 24
MOST_BYTES = 2**28  # four columns of the largest size that a small file may declare
COLUMNS = {
    "observations": np.arange(3 * STEPS, dtype=np.float32).reshape(STEPS, 3),
    "actions": np.linspace(-1, 1, STEPS, dtype=np.float32)[:, None],
    "rewards": np.arange(STEPS, dtype=np.float32),
    "terminals": np.arange(STEPS) % 8 == 7,
    "timeouts": np.zeros(STEPS, bool),
    "infos/qpos": np.ones((STEPS, 2)),
    "metadata/env": "pendulum-p-v0",
}
NEEDED = ("observations", "actions", "rewards", "terminals")
KEYS = st.sampled_from(list(COLUMNS))
DTYPES = ("f2", "f8", ">f4", "i1", "u8", "?", "c8", "S3", "V5", "M8[s]", "f4,i2")
SHAPES = {
    "a row less": lambda a: a[:-1],
    "a row more": lambda a: np.concatenate([a, a[:1]]),
    "no rows": lambda a: a[:0],
    "one row": lambda a: a[:1],
    "an axis more": lambda a: a[..., None],
    "an axis of nothing": lambda a: a[..., None][..., :0],
    "two of each": lambda a: np.stack([a, a], -1),
    "turned": lambda a: a.T,
    "one number": lambda a: a.reshape(-1)[0],
    "flat": lambda a: a.reshape(-1),
}
STRUCTURE = st.one_of(
    st.tuples(st.just("drop"), KEYS),
    st.tuples(st.just("group"), KEYS),
    st.tuples(
        st.just("rename"), KEYS, st.sampled_from(["x", "terminations", "truncations", "next_observations", "a/b"])
    ),
    st.tuples(st.just("dtype"), KEYS, st.sampled_from(DTYPES)),
    st.tuples(st.just("shape"), KEYS, st.sampled_from(list(SHAPES))),
    st.tuples(st.just("value"), KEYS, st.integers(0, STEPS - 1), st.sampled_from([np.nan, np.inf, -1.0, 2.0, 1e38])),
    st.tuples(st.just("declare"), KEYS, st.sampled_from([10**5, 10**8, 2**40, 2**60])),
)
BYTES = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=12)


def changed(columns, change):
    """Columns after one change of their structure; None for a column that is to be a group."""
    kind, key, *how = change
    if key not in columns or ((columns[key] is None or isinstance(columns[key], tuple)) and kind != "drop"):
        return columns
    others = {name: column for name, column in columns.items() if name != key}
    if kind == "drop":
        return others
    if kind == "group":
        return others | {key: None}
    if kind == "rename":
        return others | {how[0]: columns[key]}
    array = np.asarray(columns[key])
    if array.dtype.kind not in "fib" or not array.size:
        return columns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that another type cannot hold
        if kind == "dtype":
            made = np.zeros(array.shape, how[0]) if how[0] in ("V5", "f4,i2") else array.astype(how[0])
            return others | {key: made.view("i8") if made.dtype.kind == "M" else made}
        if kind == "shape":
            return others | {key: SHAPES[how[0]](array)}
        if kind == "value":
            array = array.astype(np.float64)
            array[how[0] % len(np.atleast_1d(array)) if array.ndim else ()] = how[1]
            return others | {key: array}
    return others | {key: (how[0], array)}


def write(path, columns):
    with h5py.File(path, "w") as file:
        for key, column in columns.items():
            if column is None:
                file.create_group(key)
            elif isinstance(column, tuple):
                rows, array = column
                file.create_dataset(key, (rows, *array.shape[1:]), array.dtype, chunks=True)
            else:
                file[key] = column


def outcome(path):
    """The data in a file, or the message that refuses it; anything else is raised."""
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = read_dataset_file(path)
            for part in (data.infos, data.metadata):
                for name in part:
                    try:
                        part[name]
                    except UserError as error:
                        assert error.message
        return data
    except UserError as error:
        assert str(path) in error.message
        return error.message
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_BYTES


def check_whole(data):
    """That columns fit together and hold what can be learned from."""
    assert len(data.observations) == len(data.actions) == len(data.rewards) == data.num_steps >= 1
    for numbers in (data.observations, data.actions, data.rewards):
        assert np.isfinite(numbers).all()
    assert data.terminations.dtype == data.truncations.dtype == bool


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("mutated") / "data.hdf5"


@pytest.mark.slow
@settings(max_examples=250, deadline=None, derandomize=True)
@given(changes=st.lists(STRUCTURE, min_size=1, max_size=3))
def test_changes_of_structure_are_read_or_refused(path, changes):
    columns = COLUMNS
    for change in changes:
        columns = changed(columns, change)
    write(path, columns)
    data = outcome(path)
    if not isinstance(data, str):
        check_whole(data)
    same = all(columns.get(key) is COLUMNS[key] for key in NEEDED)
    if (
        same
        and not {"timeouts", "terminations", "truncations", "next_observations"} & (columns.keys() ^ COLUMNS.keys())
        and columns.get("timeouts") is COLUMNS["timeouts"]
    ):  # nothing that steps are made of was changed
        assert not isinstance(data, str)
        assert np.array_equal(data.observations, COLUMNS["observations"])
        assert np.array_equal(data.rewards, COLUMNS["rewards"])


@settings(max_examples=250, deadline=None, derandomize=True)
@given(places=BYTES, keep=st.one_of(st.none(), st.floats(0.0, 1.0)), moved=st.integers(0, 3))
def test_changed_bytes_are_read_or_refused(path, places, keep, moved):
    write(path, COLUMNS)
    content = bytearray(path.read_bytes())
    for place, byte in places:
        content[place % len(content)] = byte
    if keep is not None:
        del content[int(keep * len(content)) :]
    path.write_bytes(bytes(moved) + content)
    data = outcome(path)
    if not isinstance(data, str):
        check_whole(data)
        try:
            rows = read(data).rows
        except UserError:
            return
        assert np.isfinite(rows.observations).all() and len(rows.starts) >= 1


def test_what_was_not_changed_is_read(path):
    write(path, COLUMNS)
    data = outcome(path)
    check_whole(data)
    assert data.num_episodes == 3 and np.array_equal(data.actions, COLUMNS["actions"])
