"""Recorded images beyond a limit of memory are in a file: agents draw the same bytes, and the memory stays free."""

import tracemalloc

import atari_shards as shards
import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces
from pushing import same
from tiny_atari import TinyBreakout

import offpcc
from offpcc.cli import check_dataset
from offpcc.cli.convert import run_convert
from offpcc.data import Dataset, RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.storage import folder_of_frames
from offpcc.data.checks import check
from offpcc.data.datasets.load import load_dataset
from offpcc.data.offline import read
from offpcc.training import results
from offpcc.training.build import limit_of_images, read_data
from offpcc.training.spec import RunSpec
from offpcc.utils.errors import UserError

SIDE = 84
FRAME = SIDE * SIDE  # bytes
LENGTHS = (12, 1, 9)
BUFFERS = (ReplayBuffer, RecurrentReplayBuffer)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Data sets of pictures: stacks of transitions without order, of whole episodes, and pictures that stand alone."""
    folder = tmp_path_factory.mktemp("pictures")
    shards.shuffled_shard(folder / "datasets/Breakout/run_1-00000-of-00100", 30)
    shards.ordered_shard(folder / "datasets/Breakout/run_1-00000-of-00050", LENGTHS)
    for ordered in (False, True):
        folders = {"dataset_dir": folder / "datasets", "buffer_dir": folder / "buffers"}
        assert run_convert("rl-unplugged", "Breakout", ordered=ordered, **folders) == 0
    shuffled, ordered = (folder / f"buffers/Breakout/run_1-00000-of-00{number}.hdf5" for number in ("100", "050"))
    load_dataset(ordered).newest_frames(1).save(folder / "alone.hdf5")
    return {"shuffled": shuffled, "ordered": ordered, "alone": folder / "alone.hdf5"}


def filled(buffer_class, rows):
    space = spaces.Box(0, 255, rows.observations.shape[1:], np.uint8)
    given = {"num_steps": 3} if buffer_class is ReplayBuffer else {"segment_len": 4, "burn_in": 2}
    given["capacity"] = 100  # recorded data are held whole
    buffer = buffer_class(space, spaces.Discrete(4), batch_size=16, seed=3, **given)
    buffer.fill(rows, "test")
    return buffer


@pytest.mark.parametrize("buffer_class", BUFFERS)
@pytest.mark.parametrize("kind", ["shuffled", "ordered", "alone"])
def test_batches_are_those_from_memory(files, kind, buffer_class, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    in_memory, in_file = read(files[kind]), read(files[kind], memory_limit=20 * FRAME)
    assert folder_of_frames(in_memory.rows.observations) == ""
    assert folder_of_frames(in_file.rows.observations) == str(tmp_path)
    assert not list(tmp_path.iterdir())  # the file has no name, so nothing is left behind
    assert in_file.identity == in_memory.identity and in_file.num_bytes == in_memory.num_bytes
    ours, expected = filled(buffer_class, in_file.rows), filled(buffer_class, in_memory.rows)
    for _ in range(10):
        assert same(ours.sample(), expected.sample())


class Inverted(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return 255 - observation


def test_what_wrappers_show_obeys_the_limit(files):
    in_memory, in_file = (
        read(files["alone"], Inverted(TinyBreakout(num_frames=1)), memory_limit=limit).rows for limit in (None, 1)
    )
    assert folder_of_frames(in_file.observations) and not folder_of_frames(in_memory.observations)
    assert (in_file.observations == in_memory.observations).all()
    assert (in_file.observations == 255 - read(files["alone"]).rows.observations).all()


@pytest.mark.parametrize(
    ("algo", "binding", "expected"),
    [
        ("cdqn", "ReplayBuffer.memory_limit=9", 9),
        ("cdqn", "RecurrentReplayBuffer.memory_limit=9", None),
        ("crdqn", "RecurrentReplayBuffer.memory_limit=9", 9),
        ("crdqn", "ReplayBuffer.memory_limit=9", None),
        ("r2d2", "RecurrentReplayBuffer.memory_limit=9", 9),
        ("r2d2", "PrioritizedRecurrentReplayBuffer.memory_limit=9", 9),
    ],
)
def test_the_limit_is_that_of_the_buffer_in_use(files, algo, binding, expected):
    offpcc.configure(None, binding)
    given = {"dataset": files["ordered"]}
    assert limit_of_images(RunSpec.make(None, algo, **given)) == expected
    assert limit_of_images(RunSpec.make(None, algo, **given, buffer={"memory_limit": 5})) == 5
    buffer_class = ReplayBuffer if algo == "cdqn" else RecurrentReplayBuffer
    chosen = limit_of_images(RunSpec.make(None, algo, **given, buffer_class=buffer_class))
    assert chosen == (None if binding.startswith("Prioritized") else expected)
    data = read_data(RunSpec.make(None, algo, **given))
    assert bool(folder_of_frames(data.rows.observations)) == (expected is not None)


def test_an_encoder_of_ones_own_counts(files):
    offpcc.configure(None, "RecurrentReplayBuffer.memory_limit=9", "ActorCritic.encoder=@Recurrent")
    assert limit_of_images(RunSpec.make(None, "dqn", dataset=files["ordered"])) == 9


@pytest.mark.parametrize("kind", ["shuffled", "ordered", "alone"])
def test_a_line_tells_where_the_frames_are(files, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    data = read(files[kind], memory_limit=1)
    size = data.rows.num_frame_bytes / 1e9
    assert f"its frames, {size:.3g} GB, are in a temporary file in {tmp_path}, as they exceed" in "\n".join(
        data.lines()
    )
    for limit in (None, 10**9):
        assert "temporary file" not in "\n".join(read(files[kind], memory_limit=limit).lines())


def test_a_check_keeps_images_beyond_a_third_of_the_free_memory_in_a_file(files, launch, tmp_path, monkeypatch):
    """So data that are larger than the memory can be checked."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    size, examined = load_dataset(files["alone"]).observations.nbytes, []

    def examine(data, **options):
        examined.append(folder_of_frames(data.observations))
        return check.examine_dataset(data, **options)

    for module in (results, check_dataset):
        monkeypatch.setattr(module, "examine_dataset", examine)
    told = set()
    for free in (3 * size, 3 * size - 3, None):
        monkeypatch.setattr(check, "available_bytes", lambda free=free: free)
        told |= {str(offpcc.check(files["alone"])), launch("check", "--dataset", files["alone"])[1]}
    assert examined == ["", "", str(tmp_path), str(tmp_path), "", ""]
    assert len(told) == 2, "the findings are the same"


def test_data_in_python_obey_the_limit(files):
    for kind in files:
        assert folder_of_frames(read(load_dataset(files[kind]), memory_limit=1).rows.observations)
    assert folder_of_frames(load_dataset(files["alone"], memory_limit=1).observations)
    vectors = Dataset.from_arrays(
        observations=np.zeros((9, 2)), actions=np.zeros((9, 1)), rewards=np.zeros(9), terminations=np.arange(9) == 8
    )
    assert not folder_of_frames(read(vectors, memory_limit=1).rows.observations)


def test_frames_beyond_the_free_memory_are_in_a_file(files, monkeypatch):
    monkeypatch.setattr("offpcc.data.datasets.frame_stacks.available_bytes", lambda: 20 * FRAME)
    assert folder_of_frames(read(files["ordered"]).rows.observations)


@pytest.mark.parametrize("kind", ["ordered", "alone"])
def test_a_disk_without_room_is_told(files, kind, monkeypatch):
    def is_full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("offpcc.data.buffers.storage.os.posix_fallocate", is_full)
    with pytest.raises(UserError, match=r"bytes of frames of .* \(.*No space left.*TMPDIR.*lower --dataset_fraction"):
        read(files[kind], memory_limit=1)


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_a_buffer_for_data_reserves_no_disk_for_its_capacity(files, buffer_class, monkeypatch):
    rows = read(files["alone"]).rows
    monkeypatch.setattr("offpcc.data.buffers.storage.os.posix_fallocate", lambda *_: pytest.fail("it was asked for"))
    buffer = buffer_class(spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8), spaces.Discrete(4), memory_limit=1)
    buffer.fill(rows, "test")
    assert buffer.sample().observations.any()


@pytest.mark.parametrize("kind", ["stacks", "alone"])
def test_the_memory_does_not_hold_the_frames(tmp_path, kind):
    """While they are read, and while agents draw them."""
    number = 12_000
    size, steps = number * FRAME, number - 4
    ends = np.arange(steps) == steps - 1
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        name = "frames" if kind == "stacks" else "observations"
        shape = (number, SIDE, SIDE) if kind == "stacks" else (steps, 1, SIDE, SIDE)
        frames = file.create_dataset(name, shape, np.uint8, chunks=(100, *shape[1:]))
        frames[-100:] = 7
        if kind == "stacks":
            file["metadata/frame_stack"] = 4
        file["actions"], file["rewards"] = np.zeros(steps, np.int64), np.zeros(steps, np.float32)
        file["terminals"], file["timeouts"] = ends, np.zeros(steps, bool)
    peaks = []
    for limit in (None, 10**6):
        tracemalloc.start()
        buffer = filled(ReplayBuffer, read(tmp_path / "data.hdf5", memory_limit=limit).rows)
        buffer.sample()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert buffer.batch_of(np.array([steps - 9])).observations[0, 0, -1, 0, 0] == 7
        del buffer
    assert peaks[0] > size > 3 * peaks[1]
