"""Data sets of frames: what agents draw from them, and runs on a part of a data set."""

import json

import atari_shards as shards
import h5py
import numpy as np
import pytest
from gymnasium import spaces
from tiny_atari import TinyBreakout

from offpcc.cli.convert import run_convert
from offpcc.data import Dataset, RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.datasets.frame_stacks import FrameFile
from offpcc.data.datasets.load import load_dataset
from offpcc.data.offline import read
from offpcc.utils.errors import UserError

SPACES = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4)
LENGTHS = (12, 1, 9)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The data set of shuffled transitions, and that of whole episodes."""
    folder = tmp_path_factory.mktemp("atari")
    shards.shuffled_shard(folder / "datasets/Breakout/run_1-00000-of-00100", 30)
    shards.ordered_shard(folder / "datasets/Breakout/run_1-00000-of-00050", LENGTHS)
    for ordered in (False, True):
        folders = {"dataset_dir": folder / "datasets", "buffer_dir": folder / "buffers"}
        assert run_convert("rl-unplugged", "Breakout", ordered=ordered, **folders) == 0
    return [folder / f"buffers/Breakout/run_1-00000-of-00{number}.hdf5" for number in ("100", "050")]


def key(observations):
    """A name of each observation: its bytes."""
    return [observation.tobytes() for observation in np.asarray(observations)]


@pytest.mark.parametrize("which", [0, 1])
def test_agents_without_memory_draw_the_recorded_transitions(files, which):
    data = load_dataset(files[which])
    recorded = {
        seen: (after, *rest)
        for seen, after, *rest in zip(
            key(data.observations), key(data.next_observations), data.actions[:, 0], data.rewards, data.terminations,
            strict=True,
        )
    }  # fmt: skip
    assert len(recorded) == data.num_steps
    buffer = ReplayBuffer(*SPACES, batch_size=200)
    buffer.fill(read(files[which]).rows, "test")
    assert len(buffer) == data.num_steps
    batch, drawn = buffer.sample(), set()
    assert batch.observations.shape == (200, 2, 4, 84, 84)
    for pair, action, reward, terminated in zip(
        batch.observations.numpy(), batch.actions[:, 0].argmax(-1), batch.rewards[:, 0, 0], batch.terminations[:, 0, 0],
        strict=True,
    ):  # fmt: skip
        seen, after = key(pair)
        drawn.add(seen)
        assert recorded[seen] == (after, action, reward, terminated)
    assert drawn == {*recorded}


def test_agents_with_memory_draw_whole_episodes(files):
    data = load_dataset(files[1])
    buffer = RecurrentReplayBuffer(*SPACES, batch_size=150, segment_len=None)
    buffer.fill(read(files[1]).rows, "test")
    batch = buffer.sample()
    starts, lengths = dict(zip(key(data.observations[data.starts]), data.starts, strict=True)), set()
    for seen, actions, valid in zip(batch.observations.numpy(), batch.actions, batch.valid[..., 0], strict=True):
        length = int(valid.sum()) - 1
        start = starts[seen[0].tobytes()]
        lengths.add(length)
        assert (seen[:length] == data.observations[start : start + length]).all()
        assert (seen[length] == data.next_observations[start + length - 1]).all()
        assert (actions[:length].argmax(-1).numpy() == data.actions[start : start + length, 0]).all()
    assert lengths == {*LENGTHS}


def test_frames_are_held_once(files):
    data = read(files[1])
    frames = (sum(LENGTHS) + 4 * len(LENGTHS)) * 84 * 84
    assert frames < data.num_bytes < 1.1 * frames
    assert data.rows.observations.shape[1:] == (4, 84, 84) and not data.rows.observations.flags.owndata


def test_an_environment_that_shows_fewer_frames(files):
    for which in (0, 1):
        data = load_dataset(files[which])
        newest = data.newest_frames(1)
        assert (newest.observations[:] == data.observations[:, -1:]).all()
        assert (newest.next_observations == data.next_observations[:, -1:]).all()
        env = TinyBreakout(num_frames=1)
        rows = read(files[which], env, steps=14).rows
        assert (rows.observations[rows.is_start] == data.observations[:14, -1:]).all()
        assert (rows.observations[rows.stops - 1] == data.first_steps(14).final_observations[:, -1:]).all()


def test_only_the_frames_in_use_are_read(files, monkeypatch):
    read_rows, asked = FrameFile._read, []

    def spy(file, first, stop):
        asked.append((first, stop))
        return read_rows(file, first, stop)

    monkeypatch.setattr(FrameFile, "_read", spy)
    part = read(files[0], steps=4)
    assert part.num_transitions == 4 and asked == [(0, 21)]  # with one frame more, as for the next observations
    del asked[:]
    assert load_dataset(files[0]).select([7]).rows().is_start.sum() == 1 and asked == [(35, 40 + 1)]


def test_transitions_without_order_have_no_returns_and_no_episodes(files):
    line = next(read(files[0]).lines())
    assert "run_1-00000-of-00100: 30 transitions without order; " in line
    assert "episode" not in line and "mean return" not in line
    assert "22 transitions in 3 episodes, mean return " in next(read(files[1]).lines())
    assert ": 1 transition in 1 episode, mean return " in next(read(files[1], steps=1).lines())


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("number", [1, 12, 13, 15])
def test_the_first_steps(files, which, number):
    whole = load_dataset(files[which])
    plain = Dataset.from_arrays(
        observations=whole.observations[:], next_observations=whole.next_observations, actions=whole.actions,
        rewards=whole.rewards, terminations=whole.terminations, truncations=whole.truncations,
    )  # fmt: skip
    for data in (whole, plain):
        part = data.first_steps(number)
        assert part.num_steps == part.num_transitions == len(part.actions) == number and part.lengths.sum() == number
        assert (part.observations[:] == whole.observations[:number]).all()
        assert (part.next_observations == whole.next_observations[:number]).all()
        assert (part.terminations == whole.terminations[:number]).all()
        assert (part.terminations | part.truncations)[-1]
        is_cut = number not in np.cumsum(whole.lengths)
        assert part.truncations[-1] == (is_cut or whole.truncations[number - 1])
        assert not (is_cut and part.is_whole[-1])
        rows = part.rows(([0], [3]) if data is plain else None)
        assert rows.is_start.sum() == number
    assert (whole.first_steps(whole.num_steps).stops == whole.stops).all()
    for wrong in (0, whole.num_steps + 1, 2.0, True):
        with pytest.raises(UserError, match=f"the first {wrong} steps are wanted; it has to be a whole number from 1"):
            whole.first_steps(wrong)


def test_parts_and_copies_keep_their_frames(files, tmp_path):
    data = load_dataset(files[1])
    assert data.fraction(0.55).lengths.tolist() == [12, 1]
    best = data.best(0.34)
    assert best.lengths.tolist() == [12] and (best.observations[:] == data.observations[:12]).all()
    last = data.select([2])
    assert (last.rows().observations[:9] == data.observations[13:]).all()
    data.save(tmp_path / "stacks.hdf5")
    again = load_dataset(tmp_path / "stacks.hdf5")
    assert (again.observations == data.observations[:]).all() and again.lengths.tolist() == [*LENGTHS]
    both = data + data
    assert both.num_steps == 2 * data.num_steps and (both.observations[22:] == data.observations[:]).all()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda file: file["frames"].resize(40, axis=0), "40 frames, but 30 steps in 30 episodes with stacks"),
        (lambda file: file["metadata"].pop("frame_stack"), "with metadata/frame_stack None"),
        (lambda file: file.pop("rewards"), "rewards missing"),
        (lambda file: file["terminals"].__setitem__(29, False), "150 frames"),
    ],
)
def test_damaged_data_sets(files, tmp_path, change, told):
    (tmp_path / "copy.hdf5").write_bytes(files[0].read_bytes())
    with h5py.File(tmp_path / "copy.hdf5", "r+") as file:
        change(file)
    with pytest.raises(UserError, match=told):
        load_dataset(tmp_path / "copy.hdf5")


def test_frames_that_are_gone_when_they_are_read(files, tmp_path):
    (tmp_path / "copy.hdf5").write_bytes(files[0].read_bytes())
    data = load_dataset(tmp_path / "copy.hdf5")
    (tmp_path / "copy.hdf5").unlink()
    with pytest.raises(UserError, match=r"copy.hdf5 is damaged or incomplete .*; fetch or convert it again"):
        data.observations[:]


@pytest.mark.parametrize("which", [0, 1])
def test_the_check_of_frames(files, which, launch):
    _, out, err = launch("check", "--dataset", files[which], "--import", "tiny_atari", "--env", "TinyBreakout-v0")
    assert "observations are uint8 of shape (4, 84, 84)" in out, err
    assert ("transitions without order, for agents without memory" in out) == (which == 0)
    assert ("offpcc convert rl-unplugged --ordered" in out) == (which == 0)
    _, out, _ = launch("check", "--dataset", files[which], "--dataset_steps", 15)
    assert "15 steps in" in out


@pytest.mark.parametrize(
    ("which", "arguments", "told"),
    [
        (0, ("--algo", "crdcql", "--env", "TinyBreakout-v0"), "holds transitions without order, and Convolutional"),
        (0, ("--algo", "crdcql", "--env", "TinyBreakout-v0"), "`offpcc convert rl-unplugged --ordered`"),
        (
            0,
            ("--algo", "cdcql", "--gin", "ActorCritic.n_step = 3"),
            "one step, but ActorCritic.n_step is 3",
        ),
        (0, ("--algo", "cdcql", "--env", "TinyPong-v0"), "4 discrete actions from 0 on, but TinyPong-v0 takes"),
        (
            0,
            ("--algo", "cdcql", "--dataset_steps", 31),
            "the first 31 steps are wanted; it has to be a whole",
        ),
        (0, ("--algo", "cdcql", "--dataset_steps", 9, "--dataset_fraction", 0.5), "both choose a part of the data"),
    ],
)
def test_runs_that_are_refused(files, which, arguments, told, launch):
    code, _, err = launch("--dataset", files[which], "--import", "tiny_atari", *arguments)
    assert code == 2 and told in err and err.count("\n") == 1, err


def test_steps_without_data_are_refused(launch):
    code, _, err = launch("--env", "pendulum-v0", "--algo", "sac", "--dataset_steps", 9)
    assert code == 2 and "--dataset_steps 9 has no effect without a dataset" in err


@pytest.mark.parametrize(("which", "algo"), [(0, "cdcql"), (1, "cdqn"), (1, "crdcql")])
def test_a_run_learns(files, which, algo, launch, tmp_path):
    command = ("--env", "TinyBreakout-v0", "--algo", algo, "--dataset", files[which], "--dataset_steps", 15)
    command = (*command, "--import", "tiny_atari", "--config", "discrete/cartpole_data.gin", "--gin")
    buffer = "RecurrentReplayBuffer" if "r" in algo else "ReplayBuffer"
    settings = (
        f"{buffer}.batch_size=4",
        f"{buffer}.memory_limit=100_000",
        "train.num_steps_per_epoch=2",
        "train.num_test_episodes_per_epoch=1",
    )
    code, out, err = launch(*command, "train.num_epochs=1", *settings)
    assert code == 0, err
    assert "are in a temporary file in" in out
    folder = tmp_path / "results" / f"TinyBreakout-v0_from_{files[which].stem}_15_steps" / algo / "1"
    details = json.loads((folder / "run.json").read_text())
    assert details["dataset"]["num_transitions"] == details["dataset_steps"] == 15
    code, _, err = launch(*command, "train.num_epochs=2", *settings, "--resume")
    assert code == 0, err
    assert len((folder / "progress.csv").read_text().splitlines()) == 3
