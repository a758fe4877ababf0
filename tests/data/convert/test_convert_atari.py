"""`offpcc convert`: recordings that the tests write byte by byte, downloads that break off, and bad files."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import atari_shards as shards
import h5py
import numpy as np
import pytest

import offpcc
from offpcc.cli.convert import run_convert
from offpcc.data import offline
from offpcc.data.convert import atari, tfrecord
from offpcc.data.convert.atari import _add_recorded
from offpcc.data.convert.frame_writer import FrameWriter
from offpcc.data.datasets.load import load_dataset
from offpcc.utils.errors import UserError
from offpcc.utils.signals import Interrupted

SHARD, ORDERED = "Breakout/run_1-00002-of-00100", "Breakout/run_1-00002-of-00050"
OPTIONS = ("--task", "Breakout", "--run_id", 1, "--shard_id", 2)


@pytest.fixture
def converted(tmp_path, launch):
    """Run `offpcc convert` in folders of the test; the exit code, output and errors."""

    def run(*extra, source="rl-unplugged"):
        folders = "--dataset_dir", tmp_path / "datasets", "--buffer_dir", tmp_path / "buffers"
        return launch("convert", source, *OPTIONS, *folders, *extra)

    return run


# Formats --------------------------------------------------------------------------------------------------------------


def test_checksums_are_those_of_the_standard():
    assert shards.crc32c(b"123456789") == 0xE3069283
    generator = np.random.default_rng(0)
    contents = [b"", b"1", b"123456789", *(generator.bytes(number) for number in (4, 1023, 1024, 1025, 9000))]
    assert tfrecord.crcs(contents) == [shards.crc32c(content) for content in contents]


def test_numbers_and_texts_of_an_example():
    features = {
        "bytes": [b"", b"\0\1" * 200],
        "floats": np.array([-1.5, 3e30], np.float32),
        "integers": np.array([0, 127, 128, -1, -(2**63), 2**63 - 1]),
        "few": np.array([3]),
    }
    for packed in (True, False):
        found = tfrecord.parse_example(shards.example(features, packed))
        assert found["bytes"] == features["bytes"]
        assert all((found[key] == features[key]).all() for key in ("floats", "integers", "few"))
    for content in (b"\x0a\x05abc", b"\xff" * 20, b"\x0a\x02\x0a\xff", b"\x0b"):
        with pytest.raises(ValueError):
            tfrecord.parse_example(content)


def test_the_games_have_these_numbers_of_actions():
    gymnasium, ale_py = pytest.importorskip("gymnasium"), pytest.importorskip("ale_py")
    gymnasium.register_envs(ale_py)
    assert len(atari.UNPLUGGED_GAMES) == 46 and len(atari.REPLAY_GAMES) == 60
    for game in ("Breakout", "Pong", "Seaquest", "JourneyEscape"):  # all of them take seconds
        env = gymnasium.make(f"ALE/{game}-v5")
        assert env.action_space.n == atari.REPLAY_GAMES[game]
        env.close()


# Data sets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
def test_shuffled_transitions(converted, tmp_path, packed):
    seen = shards.shuffled_shard(tmp_path / "datasets" / SHARD, 12, packed=packed)
    code, out, err = converted()
    assert code == 0, err
    assert "12 transitions without order, of 4 episodes" in out
    assert "4 actions, with shares of 25.0%, 25.0%, 25.0%, 25.0%" in out and "mean return 1.50" in out
    data = load_dataset(tmp_path / "buffers" / f"{SHARD}.hdf5")
    assert data.is_shuffled and data.num_episodes == data.num_transitions == 12 and data.choices() == (0, 4)
    assert data.observations[:].dtype == np.uint8
    assert (data.observations[:] == seen[:, :4]).all() and (data.next_observations == seen[:, 1:]).all()
    assert (data.actions[:, 0] == np.arange(12) % 4).all() and (data.rewards == np.arange(12) % 3 - 1.0).all()
    assert (np.flatnonzero(data.terminations) == [5, 11]).all()
    with h5py.File(tmp_path / "buffers" / f"{SHARD}.hdf5") as file:
        assert file["frames"].shape == (12 * 5, 84, 84)  # each frame of a transition once


@pytest.mark.parametrize("last_terminates", [True, False])
def test_whole_episodes(converted, tmp_path, last_terminates):
    seen = shards.ordered_shard(tmp_path / "datasets" / ORDERED, (6, 1, 9), last_terminates=last_terminates)
    code, out, err = converted("--ordered")
    assert code == 0, err
    data = load_dataset(tmp_path / "buffers" / f"{ORDERED}.hdf5")
    assert data.lengths.tolist() == [6, 1, 9] and not data.is_shuffled and data.choices() == (0, 4)
    assert data.terminations[data.stops - 1].tolist() == [True, True, last_terminates]
    assert data.truncations.sum() == (not last_terminates)
    for (start, stop), frames in zip(data.episodes, seen, strict=True):
        padded = np.concatenate([np.zeros((3, 84, 84)), frames])  # as in Dopamine's replay buffer
        stacks = np.stack([padded[step : step + 4] for step in range(stop - start + 1)])
        assert (data.observations[start:stop] == stacks[:-1]).all()
        assert (data.next_observations[start:stop] == stacks[1:]).all()
        assert (data.rewards[start:stop] == np.arange(stop - start) % 3 * 2).all()  # those of the game
    assert "16 steps in 3 episodes" in out and "mean return 10.00, 3.33 of clipped rewards" in out


def test_the_last_row_is_a_step_if_the_recorded_return_has_its_reward(converted, tmp_path):
    seen = shards.frames(3)
    told = shards.episode(seen, [0, 1, 2], [0, 1.0, 2.0])
    unclear = shards.episode(seen, [0, 1, 2], [0, 1.0, 0.0])
    silent = {name: values for name, values in told.items() if name != "clipped_episode_return"}
    shards.write_shard(tmp_path / "datasets" / ORDERED, [told, unclear, silent])
    assert converted("--ordered")[0] == 0
    data = load_dataset(tmp_path / "buffers" / f"{ORDERED}.hdf5")
    assert data.lengths.tolist() == [3, 2, 2] and data.returns.tolist() == [3.0, 1.0, 1.0]
    assert np.flatnonzero(data.terminations).tolist() == [2, 4, 6]
    newest = data.next_observations[:][data.stops - 1, -1]
    assert (newest == seen[[2, 2, 2]]).all()  # repeated after the third step of the first one
    assert (data.observations[:][2, -1] == seen[2]).all()


@pytest.mark.parametrize(
    ("terminals", "lengths", "is_whole"),
    [
        ([0, 0, 1, 0, 1], [3, 2], [True, True]),
        ([0, 0, 1, 0, 0, 0], [3, 2], [True, False]),  # the last step leads to what is not there
        ([0, 0, 1, 0], [3], [True]),
        ([0, 0, 0], [2], [False]),
    ],
)
def test_steps_of_dqn_replay(converted, tmp_path, terminals, lengths, is_whole):
    frames = shards.write_replay(tmp_path / "datasets/Breakout/1/replay_logs", terminals, 2)
    code, out, err = converted(source="dqn-replay")
    assert code == 0, err
    data = load_dataset(tmp_path / "buffers/Breakout/run_1-ckpt_2.hdf5")
    assert data.lengths.tolist() == lengths and data.is_whole.tolist() == is_whole
    newest = np.concatenate([data.observations[:, -1], data.next_observations[-1:, -1]])
    assert (newest[: sum(lengths)] == frames[: sum(lengths)]).all()
    assert (newest[-1] == (frames[sum(lengths)] if not is_whole[-1] else frames[sum(lengths) - 1])).all()
    assert (data.actions[:, 0] == np.arange(sum(lengths)) % 4).all()
    assert f"{sum(lengths)} steps" in out and "mean return" in out


def unpack(path, new=None):
    """Decompress a file."""
    content = gzip.decompress(path.read_bytes())
    path.unlink()
    (new or path).write_bytes(content)


def test_a_shard_that_is_not_compressed(converted, tmp_path):
    shards.shuffled_shard(path := tmp_path / "datasets" / SHARD, 12)
    unpack(path)
    code, out, err = converted()
    assert code == 0 and "12 transitions without order, of 4 episodes" in out, err


@pytest.mark.parametrize("loses_suffix", [True, False])
@pytest.mark.parametrize("place", ["datasets", "datasets/Breakout/1"])
def test_logs_that_are_not_compressed(tmp_path, launch, place, loses_suffix):
    folder = tmp_path / "datasets/Breakout/1/replay_logs"
    shards.write_replay(folder, [0, 0, 1, 0, 1], 2)
    for path in [*folder.glob("*action*.gz"), *folder.glob("*observation*.gz")]:
        unpack(path, path.with_suffix("") if loses_suffix else None)
    folders = "--dataset_dir", tmp_path / place, "--buffer_dir", tmp_path / "buffers"
    code, out, err = launch("convert", "dqn-replay", *OPTIONS, *folders)
    assert code == 0 and "5 steps in 2 episodes" in out, err


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("rl-unplugged", "datasets/Breakout"),
        ("dqn-replay", "datasets/Breakout"),
        ("dqn-replay", "datasets/Breakout/1"),
        ("dqn-replay", "datasets/Breakout/1/replay_logs"),
    ],
)
def test_a_folder_inside_that_of_the_recordings_is_noticed(tmp_path, launch, monkeypatch, source, place):
    shards.shuffled_shard(tmp_path / "datasets" / SHARD, 12)
    shards.write_replay(tmp_path / "datasets/Breakout/1/replay_logs", [0, 0, 1, 0, 1], 2)
    before = sorted(tmp_path.rglob("datasets/**"))
    for folder, buffers in ((tmp_path / place, "one"), (".", "two")):
        monkeypatch.chdir(tmp_path / place if folder == "." else tmp_path)
        folders = "--dataset_dir", folder, "--buffer_dir", tmp_path / buffers
        code, out, err = launch("convert", source, *OPTIONS, *folders)
        assert code == 0 and "downloading" not in out and "episodes" in out, err
    assert sorted(tmp_path.rglob("datasets/**")) == before


@pytest.mark.parametrize("place", ["datasets", "datasets/Pong"])
def test_a_shard_that_may_be_of_another_game_is_not_read(tmp_path, launch, place):
    shards.shuffled_shard(path := tmp_path / place / SHARD.partition("/")[2], 12)
    folders = "--dataset_dir", tmp_path / place, "--buffer_dir", tmp_path / "buffers"
    code, out, err = launch("convert", "rl-unplugged", *OPTIONS, *folders)
    told = f"{path} is there, but a recording of Breakout is read from {tmp_path / place / SHARD}; if it is of Breakout"
    assert code == 2 and told in err and err.count("\n") == 1 and "downloading" not in out, err


@pytest.mark.parametrize(
    ("num_actions", "told"),
    [(4, None), (3, "action 3 never occurs: is this the right game?"), (1, "actions 1, 2 and 3 never occur: is this")],
)
def test_actions_that_never_occur_are_named(converted, tmp_path, num_actions, told):
    shards.shuffled_shard(tmp_path / "datasets" / SHARD, 12, num_actions=num_actions)
    code, out, err = converted()
    assert code == 0 and ("right game" in out) == (told is not None) and (told or "") in out, err


def test_another_call_has_nothing_to_do(converted, tmp_path):
    shards.shuffled_shard(tmp_path / "datasets" / SHARD, 6)
    assert converted()[0] == 0
    file = tmp_path / "buffers" / f"{SHARD}.hdf5"
    before = file.stat().st_mtime_ns
    code, out, _ = converted()
    assert code == 0 and "exists already; remove it to convert it again" in out
    assert file.stat().st_mtime_ns == before


def test_a_stop_leaves_nothing_half_written(converted, tmp_path, monkeypatch):
    shards.shuffled_shard(tmp_path / "datasets" / SHARD, 6)

    def stop(writer):
        raise Interrupted(2)

    with monkeypatch.context() as patched:
        patched.setattr(FrameWriter, "flush", stop)
        code, _, err = converted()
    assert code == 130 and "stopped; nothing was written" in err and "starts again" in err
    assert not [*(tmp_path / "buffers").rglob("*.hdf5")]
    assert converted()[0] == 0


# Bad files ------------------------------------------------------------------------------------------------------------


def changed(path, change):
    """Change the decompressed bytes of a file."""
    path.write_bytes(gzip.compress(change(bytearray(gzip.decompress(path.read_bytes())))))


def flip(place):
    def change(content):
        content[place] ^= 1
        return content

    return change


def one(**changes):
    """Writer of a shard whose third transition has other features."""

    def write(path):
        examples = [shards.transition(shards.frames(4, seed), shards.frames(5, seed)[4]) for seed in range(3)]
        examples[2] |= changes
        for key, value in changes.items():
            if value is None:
                del examples[2][key]
        shards.write_shard(path, examples)

    return write


PNGS = [shards.png(frame) for frame in shards.frames(4)]
BAD = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-900]), "is cut or damaged after record"),
    "cut in a record": (lambda path: changed(path, lambda content: content[:-5]), "is cut inside record 5"),
    "web page": (
        lambda path: path.write_bytes(b" <html>Not found"),
        "is a web page; remove it, and run the command",
    ),
    "text": (lambda path: path.write_bytes(b"frames"), "is neither a TFRecord file nor compressed by gzip; remove it"),
    "unpacked and cut": (
        lambda path: path.write_bytes(gzip.decompress(path.read_bytes())[:-5]),
        "is cut inside record 5",
    ),
    "empty": (lambda path: path.write_bytes(gzip.compress(b"")), "it holds no transition"),
    "no bytes": (lambda path: path.write_bytes(b""), "it holds no transition"),
    "content": (lambda path: changed(path, flip(200)), "the content of record 0 has a wrong checksum"),
    "length": (lambda path: changed(path, flip(0)), "the length of record 0 has a wrong checksum"),
    "game": (
        one(a_t=np.array([4])),
        "there is the action 4, but the game has 4, from 0 on; is the recording from another game",
    ),
    "negative": (one(a_t=np.array([-1])), "there is the action -1"),
    "missing": (one(r_t=None), "record 2: r_t is missing; found: a_t, a_tp1, d_t"),
    "kind": (one(a_t=np.array([1.0], np.float32)), "a_t is of another type"),
    "several": (one(a_t=np.array([1, 2])), "a_t has 2 numbers"),
    "frames": (one(o_t=PNGS[:3]), "o_t has 3 frames and o_tp1 4"),
    "order": (one(o_tp1=[PNGS[0]] * 4), "the older frames of o_tp1 are not the newer ones of o_t"),
    "size": (one(o_t=[shards.png(np.zeros((84, 85)))] * 4), "a frame is no gray PNG picture of 84 x 84 pixels"),
    "png": (one(o_t=[PNGS[0][:60]] * 4, o_tp1=[PNGS[0][:60]] * 4), "a frame is a damaged PNG picture"),
    "discount": (one(d_t=np.array([7.0], np.float32)), "d_t is 7"),
    "reward": (one(r_t=np.array([np.nan], np.float32)), "r_t nan"),
    "episodes": (lambda path: shards.ordered_shard(path, (3,)), "o_t is missing; found: actions"),
    "no example": (
        lambda path: path.write_bytes(gzip.compress(shards.record(b"\xff" * 30))),
        "record 0: a number is too long",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shards_get_one_message(converted, tmp_path, name):
    write, told = BAD[name]
    shards.shuffled_shard(path := tmp_path / "datasets" / SHARD, 6)
    write(path)
    code, _, err = converted()
    assert code == 2 and told in err and str(path) in err, err
    assert err.startswith("offpcc: ") and err.count("\n") == 1
    assert not [file for file in (tmp_path / "buffers").rglob("*") if file.is_file()]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"actions": np.zeros(2, int)}, "have the lengths [3, 2, 3, 3, 3]"),
        ({"actions": np.array([0, 9, 0])}, "there is the action 9"),
        ({"discounts": np.zeros(0, np.float32)}, "have the lengths"),
        ({"clipped_rewards": np.array([0, np.inf, 0], np.float32)}, "a reward is not finite"),
        ({"observations": [b"text"] * 3}, "a frame is no gray PNG picture"),
    ],
)
def test_bad_episodes_get_one_message(converted, tmp_path, changes, told):
    path = tmp_path / "datasets" / ORDERED
    shards.write_shard(path, [shards.episode(shards.frames(3), [0, 1, 2], [0, 0, 1.0]) | changes])
    code, _, err = converted("--ordered")
    assert code == 2 and told in err and err.count("\n") == 1, err
    assert not [file for file in (tmp_path / "buffers").rglob("*") if file.is_file()]


def test_shuffled_transitions_are_no_episodes(converted, tmp_path):
    shards.shuffled_shard(tmp_path / "datasets" / ORDERED, 6)
    code, _, err = converted("--ordered")
    assert code == 2 and "observations is missing; found: a_t, a_tp1" in err and "leave --ordered out" in err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"reward": np.zeros(4, np.float32)}, "5 observations, but 5 actions, 4 rewards, 5 terminals"),
        ({"action": np.full(5, 6, np.int32)}, "there is the action 6"),
        ({"action": np.zeros((5, 2), np.int32)}, "not a number for each step"),
        ({"reward": np.array(["one"] * 5)}, "not a number for each step"),
        ({"terminal": np.full(5, 2, np.uint8)}, "a terminal not 0 or 1; fetch both again"),
        ({"observation": np.zeros((5, 80, 84), np.uint8)}, "not (steps, 84, 84) of bytes"),
        ({"terminal": np.zeros(1, np.uint8), "action": np.zeros(1, np.int32), "reward": np.zeros(1, np.float32),
          "observation": np.zeros((1, 84, 84), np.uint8)}, "it holds no transition"),
    ],
)  # fmt: skip
def test_bad_logs_get_one_message(converted, tmp_path, changes, told):
    shards.write_replay(tmp_path / "datasets/Breakout/1/replay_logs", [0, 0, 1, 0, 0], 2, **changes)
    code, _, err = converted(source="dqn-replay")
    assert code == 2 and told in err and err.count("\n") == 1, err
    assert not [file for file in (tmp_path / "buffers").rglob("*") if file.is_file()]


def test_logs_that_are_cut(converted, tmp_path):
    folder = tmp_path / "datasets/Breakout/1/replay_logs"
    shards.write_replay(folder, [0, 0, 1], 2)
    for name in ("observation", "terminal"):
        file = folder / f"$store$_{name}_ckpt.2.gz"
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        code, _, err = converted(source="dqn-replay")
        assert code == 2 and f"{file} is cut or damaged" in err and err.count("\n") == 1, err
        file.write_bytes(content)
    assert not [file for file in (tmp_path / "buffers").rglob("*") if file.is_file()]


@pytest.mark.parametrize("name", ["observation", "action", "terminal"])
def test_logs_whose_checksum_is_wrong_or_missing(converted, tmp_path, name):
    """Their numbers can be read, and some may be wrong."""
    folder = tmp_path / "datasets/Breakout/1/replay_logs"
    shards.write_replay(folder, [0, 0, 1], 2)
    file = folder / f"$store$_{name}_ckpt.2.gz"
    content = file.read_bytes()
    for damaged in (content[:-8], content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]):
        file.write_bytes(damaged)
        code, _, err = converted(source="dqn-replay")
        assert code == 2 and f"{file} is cut or damaged" in err and err.count("\n") == 1, err
    assert not [file for file in (tmp_path / "buffers").rglob("*") if file.is_file()]


@pytest.mark.parametrize("setting", ["best_fraction = 0.1", "return_range = 1000.0"])
def test_transitions_without_order_have_no_returns(converted, tmp_path, setting):
    shards.shuffled_shard(tmp_path / "datasets" / SHARD, 12)
    assert converted()[0] == 0
    offpcc.configure(None, f"dataset.{setting}")
    with pytest.raises(UserError, match=rf"dataset\.{setting.split()[0]} is .* holds transitions without order"):
        offline.read(tmp_path / "buffers" / f"{SHARD}.hdf5", None, offline.DatasetOptions.from_gin())


def test_returns_are_those_of_the_steps_that_were_written(converted, tmp_path):
    """The last row of an episode is no step, so an episode of one row is none."""
    whole = shards.episode(shards.frames(3), [0, 1, 2], [0, 3.0, 1.0], num_steps=2)
    cut = shards.episode(shards.frames(3), [0, 1, 2], [0, 0, 1.0], is_terminal=False)
    single = shards.episode(shards.frames(1), [0], [1.0]) | {"discounts": np.ones(1, np.float32)}
    shards.write_shard(tmp_path / "datasets" / ORDERED, [whole, cut, single])
    code, out, err = converted("--ordered")
    assert code == 0, err
    data = load_dataset(tmp_path / "buffers" / f"{ORDERED}.hdf5")
    assert data.returns.tolist() == [3.0, 0.0] and "4 steps in 2 episodes" in out
    assert "mean return 1.50, 0.50 of clipped rewards" in out


@pytest.mark.parametrize(
    ("source", "arguments", "told"),
    [
        (
            "rl-unplugged",
            {"task": "Brakeout"},
            "--task is Brakeout, but there are no recordings of this game; there are Alien",
        ),
        ("rl-unplugged", {"task": "breakout"}, "did you mean Breakout?"),
        ("rl-unplugged", {"task": "ALE/Breakout-v5"}, "did you mean Breakout?"),
        ("rl-unplugged", {"task": "Tennis"}, "there are no recordings"),
        ("rl-unplugged", {"run_id": 6}, "--run_id is 6; rl-unplugged has 1 to 5"),
        ("rl-unplugged", {"shard_id": 100}, "--shard_id is 100; rl-unplugged has 0 to 99"),
        ("rl-unplugged", {"shard_id": 50, "ordered": True}, "has 0 to 49 for Breakout"),
        ("rl-unplugged", {"shard_id": 49, "ordered": True, "task": "Carnival"}, "has 0 to 48 for Carnival"),
        ("dqn-replay", {"shard_id": 50}, "--shard_id is 50; dqn-replay has 0 to 49"),
        ("dqn-replay", {"ordered": True}, "--ordered has no effect on dqn-replay"),
    ],
)
def test_what_was_not_recorded(source, arguments, told, tmp_path):
    with pytest.raises(UserError) as raised:
        run_convert(source, **({"task": "Breakout"} | arguments), dataset_dir=tmp_path / "a", buffer_dir=tmp_path / "b")
    assert told in raised.value.message
    assert not [*tmp_path.iterdir()]


# Downloads ------------------------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Serves `content` under all paths, and breaks off after `most` bytes of each answer."""

    daemon_threads = True

    def __init__(self, content, most, takes_ranges=True):
        super().__init__(("127.0.0.1", 0), Answer)
        self.content, self.most, self.takes_ranges, self.asked = content, most, takes_ranges, []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        if self.server.content is None:
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.takes_ranges else 0
        if start >= len(self.server.content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(self.server.content) - start))
        self.end_headers()
        self.wfile.write(self.server.content[start : start + self.server.most])

    def log_message(self, *rest):
        pass


@pytest.fixture
def served(tmp_path):
    """Start a server with a shard."""
    servers = []

    def serve(most=10**9, **options):
        shards.shuffled_shard(tmp_path / "shard", 6)
        servers.append(Server((tmp_path / "shard").read_bytes(), most, **options))
        return servers[-1]

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def fetch(server, tmp_path, **options):
    folders = {"dataset_dir": tmp_path / "datasets", "buffer_dir": tmp_path / "buffers"}
    return run_convert("rl-unplugged", "Breakout", 1, 2, **folders, address=server.address, **options)


def test_a_shard_that_is_missing_is_downloaded(served, tmp_path, capsys):
    server = served()
    assert fetch(server, tmp_path) == 0
    assert server.asked == [(f"/atari/{SHARD}", None)]
    assert (tmp_path / "datasets" / SHARD).read_bytes() == server.content
    assert load_dataset(tmp_path / "buffers" / f"{SHARD}.hdf5").num_transitions == 6
    assert f"downloading {server.address}/atari/{SHARD}" in capsys.readouterr().out


def test_a_download_that_broke_off_goes_on(served, tmp_path):
    server = served(most=1000)
    size = len(server.content)
    assert fetch(server, tmp_path) == 0
    assert [asked for _, asked in server.asked] == [None, *(f"bytes={at}-" for at in range(1000, size, 1000))]
    assert (tmp_path / "datasets" / SHARD).read_bytes() == server.content
    assert not [*tmp_path.rglob("*.part")]


def test_what_came_is_kept_until_the_next_call(served, tmp_path):
    server = served(most=0)
    part = tmp_path / "datasets" / f"{SHARD}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(server.content[:700])
    with pytest.raises(
        UserError, match=r"cannot be fetched.*700 bytes are kept, and the next call continues from there"
    ):
        fetch(server, tmp_path)
    assert part.read_bytes() == server.content[:700]
    server.most = 10**9
    assert fetch(server, tmp_path) == 0
    assert server.asked[-1] == (f"/atari/{SHARD}", "bytes=700-")
    assert (tmp_path / "datasets" / SHARD).read_bytes() == server.content


def test_a_server_without_ranges_and_a_part_that_is_too_long(served, tmp_path):
    part = tmp_path / "datasets" / f"{SHARD}.part"
    for takes_ranges, start in ((False, b"other"), (True, b"x" * 10**6)):
        server = served(takes_ranges=takes_ranges)
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(start)
        assert fetch(server, tmp_path) == 0
        assert part.with_suffix("").read_bytes() == server.content
        part.with_suffix("").unlink()
        (tmp_path / "buffers" / f"{SHARD}.hdf5").unlink()


def test_a_file_that_the_server_does_not_have(served, tmp_path):
    server = served()
    server.content = None
    with pytest.raises(UserError, match=r"run_1-00002-of-00050 answered 404 Not Found; without a connection, put"):
        fetch(server, tmp_path, ordered=True)
    assert server.asked == [(f"/atari_episodes_ordered/{ORDERED}", None)]
    assert not [file for file in (tmp_path / "datasets").rglob("*") if file.is_file()]


def test_rows_of_zeros_before_an_episode_of_dopamine_are_no_steps():
    frames = np.zeros((10, 84, 84), np.uint8)
    frames[[3, 4, 8, 9]] = np.arange(1, 5, dtype=np.uint8)[:, None, None]
    terminals = np.isin(np.arange(10), (4, 9))
    written = SimpleNamespace(frames=[], steps=[])
    written.add_frame = lambda frame: written.frames.append(int(frame[0, 0]))
    written.add_step = lambda *step: written.steps.append(step)
    _add_recorded(written, iter(frames), np.zeros(10, int), np.zeros(10), terminals)
    assert [terminal for _, _, terminal, _ in written.steps] == [False, True] * 2
    assert written.frames == [0, 0, 0, 1, 2, 2, 0, 0, 0, 3, 4, 4]
