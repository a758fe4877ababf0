"""D4RL's files: where they are found, fetched and refused; `load_dataset` and `qlearning_dataset`."""

import hashlib
import io
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py
import numpy as np
import pytest

from offpcc.data.datasets import download as downloads
from offpcc.data.datasets import load as d4rl
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.download import KNOWN, DownloadError, Known, download
from offpcc.data.datasets.load import load_dataset, qlearning_dataset
from offpcc.envs.d4rl import catalog
from offpcc.utils.errors import UserError


def content(num_steps=50, **columns):
    """An HDF5 file's bytes."""
    given = {
        "observations": np.arange(num_steps * 2, dtype=np.float32).reshape(num_steps, 2),
        "actions": np.zeros((num_steps, 1), np.float32),
        "rewards": np.arange(num_steps, dtype=np.float32),
        "terminals": np.zeros(num_steps, bool),
        "timeouts": np.arange(num_steps) % 10 == 9,
        **columns,
    }
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for key, value in given.items():
            if value is not None:
                file[key] = value
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """The folders that are looked into, all of them empty; nothing is known of D4RL's files."""
    places = {"OFFPCC_DATASETS": tmp_path / "own", "D4RL_DATASET_DIR": tmp_path / "d4rl"}
    for variable, place in places.items():
        monkeypatch.setenv(variable, str(place))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OFFPCC_D4RL_URL", "http://127.0.0.1:9/closed")
    for module in (d4rl, downloads):
        monkeypatch.setattr(module, "KNOWN", {})
    return [*places.values(), tmp_path / "home" / ".d4rl" / "datasets"]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append(self.path)
        if self.path not in server.files:
            self.send_error(404)
            return
        body = server.files[self.path]
        self.send_response(200)
        if server.tell_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cut])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    """A mirror on this machine."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.files, httpd.asked, httpd.cut, httpd.tell_length = {}, [], None, True
    httpd.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    monkeypatch.setenv("OFFPCC_D4RL_URL", f"{httpd.url}/mirror/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield httpd
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def put(folder, file, body):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(body)


def left(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def test_what_is_known_of_files_is_of_files_with_a_name():
    assert not set(KNOWN) - set(catalog.NAMES)
    for known in KNOWN.values():
        assert known.size > 10**6 and re.fullmatch(r"[0-9a-f]{16}", known.sha256)


# Finding ----------------------------------------------------------------------------------------------------------


def test_folders_are_searched_in_their_order(folders):
    for number, folder in reversed(list(enumerate(folders))):
        put(folder, "hopper_medium-v2.hdf5", content(10 * (number + 1)))
        assert load_dataset("hopper-medium-v2").num_steps == 10 * (number + 1)
    assert load_dataset("hopper-medium-v2").name == "hopper-medium-v2"


@pytest.mark.parametrize("file", ["mine.hdf5", "mine.npz", "hopper-medium-v2.hdf5"])
def test_files_named_by_hand_are_found(folders, file):
    if file.endswith("npz"):
        folders[1].mkdir()
        with h5py.File(io.BytesIO(content())) as opened:
            np.savez(folders[1] / file, **{key: opened[key][:] for key in opened})
    else:
        put(folders[1], file, content())
    assert load_dataset(file.split(".")[0]).num_steps == 50


def test_a_path_is_taken_as_it_is(tmp_path, monkeypatch):
    put(tmp_path, "walker_mixed.hdf5", content())
    monkeypatch.chdir(tmp_path)
    for given in ("walker_mixed.hdf5", tmp_path / "walker_mixed.hdf5", "~/../walker_mixed.hdf5"):
        (tmp_path / "home").mkdir(exist_ok=True)
        data = load_dataset(given)
        assert (data.num_steps, data.name) == (50, "walker2d-medium-replay-v0")


@pytest.mark.parametrize(
    "name, message",
    [
        ("hopper-medum-v2", "did you mean hopper-medium-v2"),
        ("hoper-mine", "did you mean hopper-mine"),
        ("qqqqqq", "give a file, a D4RL name, minari:ID or ogbench:NAME"),
        ("flow-ring-random-v0", "Flow, CARLA, Waymo and MiniGrid are out of scope"),
        ("nowhere/data.hdf5", "there is no file nowhere/data.hdf5"),
        ("data.npz", "there is no file data.npz"),
        (".", r"is a folder; give the file .*from_episodes"),
    ],
)
def test_what_is_not_there_is_refused(folders, name, message):
    put(folders[0], "hopper-mine.hdf5", content())
    with pytest.raises(UserError, match=message):
        load_dataset(name)


def test_time_limits_of_names_cut_files_that_tell_of_none(folders):
    put(folders[0], "pen-v0_demos_clipped.hdf5", content(250, timeouts=None))
    data = load_dataset("pen-human-v0")
    assert data.lengths.tolist() == [100, 100, 50]
    assert load_dataset("pen-human-v0", max_episode_steps=125).lengths.tolist() == [125, 125]


@pytest.mark.parametrize(
    "name, words",
    [
        ("antmaze-umaze-diverse-v2", ["issue 199"]),
        ("antmaze-umaze-diverse-v0", ["issue 199", "issue 77"]),
        ("antmaze-medium-play-v2", []),
        ("maze2d-large-v1", ["issue 194"]),
        ("hopper-medium-v2", []),
    ],
)
def test_what_is_odd_about_a_set_is_told(folders, name, words):
    put(folders[0], f"{name}.hdf5", content())
    notices = [notice.text for notice in load_dataset(name).notices if "D4RL issue" in notice.text]
    assert len(notices) == len(words)
    assert all(word in notice for word, notice in zip(words, notices, strict=True))


# Fetching ---------------------------------------------------------------------------------------------------------

FILE = "hopper_medium-v2.hdf5"
ASKED = f"/mirror/gym_mujoco_v2/{FILE}"


@pytest.mark.parametrize("tell_length", [True, False])
def test_a_name_is_fetched_once_from_the_mirror(server, folders, tell_length):
    server.files[ASKED], server.tell_length = content(), tell_length
    seen = []
    data = load_dataset("hopper-medium-v2", progress=lambda came, size: seen.append((came, size)))
    assert data.num_steps == 50
    assert left(folders[0]) == [folders[0] / FILE]
    size = len(content())
    assert seen[-1] == (size, size if tell_length else None)
    assert load_dataset("hopper-medium-v2").num_steps == 50
    assert server.asked == [ASKED]


def test_it_goes_where_it_can_be_written(server, folders, tmp_path):
    folders[0].write_text("a file where the folder should be")
    server.files[ASKED] = content()
    load_dataset("hopper-medium-v2")
    assert (folders[1] / FILE).is_file()


def test_nowhere_to_write_is_told(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "folders", lambda: [tmp_path / "file" / "below"])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="no folder for it can be written"):
        load_dataset("hopper-medium-v2")


def assert_nothing_came(folders, reason):
    with pytest.raises(UserError, match=reason) as told:
        load_dataset("hopper-medium-v2")
    for way in (FILE, str(folders[0]), str(folders[1]), "OFFPCC_DATASETS", "OFFPCC_D4RL_URL", "give its path"):
        assert way in told.value.message
    assert not [path for folder in folders for path in left(folder)]


@pytest.mark.parametrize("cut", [0, 1, 3000])
def test_a_connection_that_breaks_leaves_nothing(server, folders, cut):
    server.files[ASKED], server.cut = content(), cut
    assert_nothing_came(folders, f"the download stopped after {cut:,} of {len(content()):,} bytes")


def test_what_ends_early_without_a_length_is_no_hdf5_file_or_not_the_known_one(server, folders, monkeypatch):
    server.files[ASKED], server.cut, server.tell_length = content(), 4, False
    assert_nothing_came(folders, "the downloaded file is not HDF5")
    server.cut = 3000
    monkeypatch.setitem(downloads.KNOWN, FILE, Known(len(content()), hashlib.sha256(content()).hexdigest()[:16]))
    assert_nothing_came(folders, "the download stopped after 3,000 of")


def test_what_came_without_a_hash_has_at_least_the_form_of_data(server, folders):
    server.files[ASKED], server.cut, server.tell_length = content(), 3000, False
    assert_nothing_came(folders, "the downloaded file is damaged or incomplete")
    server.files[ASKED], server.cut = content(rewards=None, actions=None), None
    assert_nothing_came(folders, "the downloaded file lacks actions, rewards")


@pytest.mark.parametrize(
    "name, file, told",
    [
        ("maze2d-umaze-v1", None, True),
        ("hopper-medium-v2", FILE, False),
        ("mine", "mine.hdf5", False),
    ],
)
def test_data_whose_hash_nobody_published_is_told_of(folders, name, file, told, monkeypatch):
    monkeypatch.setattr(d4rl, "KNOWN", KNOWN)
    file = file or catalog.FILES[name].rsplit("/", 1)[-1]
    assert (file in catalog.NAMES and file not in KNOWN) == told
    put(folders[0], file, content())
    assert any("no hash of this file is published" in str(notice) for notice in load_dataset(name).notices) == told


def test_a_page_in_the_place_of_the_file_is_not_kept(server, folders):
    server.files[ASKED] = b"<html>please log in</html>"
    assert_nothing_came(folders, "is not HDF5")


def test_a_name_that_the_mirror_does_not_have_is_told(server, folders):
    assert_nothing_came(folders, "answered 404")


def test_no_network_is_told(folders):
    assert_nothing_came(folders, "cannot be reached")


def test_an_address_that_is_none_is_told(folders, monkeypatch):
    monkeypatch.setenv("OFFPCC_D4RL_URL", "nonsense")
    assert_nothing_came(folders, "unknown url type")


def test_what_is_not_the_known_file_is_not_kept(server, folders, monkeypatch):
    body = content()
    server.files[ASKED] = body
    digest = hashlib.sha256(body).hexdigest()
    for known in (Known(len(body), "0" * 16), Known(len(body) + 1, digest[:16])):
        monkeypatch.setitem(downloads.KNOWN, FILE, known)
        assert_nothing_came(folders, f"another file than expected: .*{digest}")
    monkeypatch.setitem(downloads.KNOWN, FILE, Known(len(body), digest[:16]))
    assert load_dataset("hopper-medium-v2").num_steps == 50


def test_a_disk_without_room_is_told_before_anything_comes(server, folders, monkeypatch):
    server.files[ASKED] = content()
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    assert_nothing_came(folders, "has room for 10")


def test_stopped_by_hand_it_leaves_nothing(server, folders):
    server.files[ASKED] = content()

    def stop(came, size):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_dataset("hopper-medium-v2", progress=stop)
    assert not left(folders[0])


def test_a_failed_download_leaves_the_old_file(server, tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    server.files["/file"], server.cut = b"new and longer", 3
    with pytest.raises(DownloadError):
        download(f"{server.url}/file", tmp_path / "file")
    assert [path.read_bytes() for path in left(tmp_path)] == [b"old"]


# As it is in the file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"rewards": "none"}, "rewards holds <U4, not numbers"),
        ({"rewards": 1.0}, "0 rewards, but 50 observations"),
        ({"actions": np.zeros((49, 1))}, "49 actions, but 50 observations"),
        ({"rewards": np.zeros((50, 2))}, r"rewards of shape \(50, 2\)"),
        ({"terminals": np.zeros((50, 2))}, r"terminations of shape \(50, 2\)"),
        (
            {"observations": None, "terminals": None},
            r"observations, terminations \(terminals\) missing; found: actions, rew",
        ),
    ],
)
def test_arrays_that_are_not_of_one_length_are_refused(tmp_path, changed, message):
    put(tmp_path, "data.hdf5", content(**changed))
    with pytest.raises(UserError, match=message):
        d4rl.raw_arrays(tmp_path / "data.hdf5")


# As D4RL gives it -------------------------------------------------------------------------------------------------


def as_d4rl(observations, terminals, timeouts):
    """Steps that D4RL's function keeps: all but those that timed out, and the recording's last."""
    return [t for t in range(len(observations) - 1) if not timeouts[t]]


@pytest.mark.parametrize("seed", range(5))
def test_without_next_observations_transitions_are_those_of_d4rl(tmp_path, seed):
    draws = np.random.default_rng(seed)
    ends = {"terminals": draws.random(60) < 0.1, "timeouts": draws.random(60) < 0.1}
    ends["timeouts"] &= ~ends["terminals"]
    ends["terminals"][-1] = False
    put(tmp_path, "data.hdf5", content(60, **ends))
    transitions = qlearning_dataset(tmp_path / "data.hdf5")
    data = load_dataset(tmp_path / "data.hdf5")
    kept = as_d4rl(data.observations, **ends)
    assert set(transitions) == {"observations", "actions", "next_observations", "rewards", "terminals"}
    assert np.array_equal(transitions["observations"], data.observations[kept])
    assert np.array_equal(transitions["rewards"], data.rewards[kept])
    assert np.array_equal(transitions["terminals"], ends["terminals"][kept])
    alive = ~transitions["terminals"]
    following = data.observations[np.array(kept) + 1]
    assert np.array_equal(transitions["next_observations"][alive], following[alive])


def test_with_next_observations_none_is_lost_and_none_leads_across_an_end():
    observations = np.arange(6.0)[:, None] + np.array([0, 0, 0, 50, 50, 50])[:, None]
    data = Dataset.from_arrays(
        observations=observations,
        next_observations=observations + 1,
        actions=np.zeros((6, 1)),
        rewards=np.zeros(6),
        terminals=np.zeros(6, bool),
        timeouts=np.arange(6) == 2,
    )
    transitions = qlearning_dataset(data)
    assert (transitions["next_observations"] - transitions["observations"]).tolist() == [[1.0]] * 6


@pytest.mark.parametrize("read", [load_dataset, qlearning_dataset])
def test_arrays_that_are_no_data_set_yet_are_told_how_to_become_one(read):
    with pytest.raises(UserError, match=r"given as dict; .*from arrays by Dataset\.from_arrays"):
        read({"observations": np.zeros((3, 2))})
