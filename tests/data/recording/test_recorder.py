"""Recording transitions: what is read back, and what a kill, a full disk or other settings do to it."""

import contextlib
import io
import re
import resource
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from collected import unit_actions
from played import HIGH, IMAGE, LOW, VECTOR, recorder, transitions, whole
from pushing import push_all

from offpcc.data.datasets.load import load_dataset
from offpcc.data.recording.episode_log import EpisodeLog, is_unfinished, log_path
from offpcc.data.recording.hdf5_writer import read_episodes
from offpcc.envs.make import make
from offpcc.utils.errors import UserError


def saved(state):
    """A state as a checkpoint keeps it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# What is read back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [VECTOR, IMAGE], ids=["vectors", "images"])
def test_what_was_played_is_read_back_step_by_step(tmp_path, shown):
    steps = transitions([5, 1, 7, 4, 3], **shown)
    whole(tmp_path / "data.hdf5", steps, **shown)
    data = load_dataset(tmp_path / "data.hdf5")
    assert data.notices == ()
    assert data.lengths.tolist() == [5, 1, 7, 4, 3]
    after, taken = data.next_observations, unit_actions(data)
    assert data.is_transition.all()
    for i, (observation, action, reward, following, terminated, truncated, _) in enumerate(steps):
        assert np.array_equal(data.observations[i], observation)
        assert np.array_equal(after[i], following)
        assert taken[i] == pytest.approx(action, abs=1e-6)
        assert data.rewards[i] == np.float32(reward)
        assert (data.terminations[i], data.truncations[i]) == (terminated, truncated)
    assert data.observations.dtype == steps[0][0].dtype


def test_nothing_is_recorded_of_a_dropped_episode(tmp_path):
    steps, file = transitions([5, 4]), tmp_path / "data.hdf5"
    with contextlib.closing(recorder(file)) as recording:
        for *step, env in steps[:3]:
            recording.push(*step, env=env)
        recording.drop(0)
        for *step, env in steps[5:]:
            recording.push(*step, env=env)
        recording.merge()
    assert np.array_equal(load_dataset(file).observations, np.stack([step[0] for step in steps[5:]]))


def test_actions_are_kept_in_the_environments_units_as_it_executed_them(tmp_path):
    env = make("recorded-v0", scale_actions=True)
    steps = transitions([6, 2])
    steps[3][1][:] = [1, -1]
    whole(tmp_path / "data.hdf5", steps)
    with h5py.File(tmp_path / "data.hdf5") as file:
        executed = np.stack([env.env.action(step[1]) for step in steps])
        assert np.array_equal(file["actions"][:], executed.astype(np.float32))
        assert file["actions"][3].tolist() == [4, 0]
        assert file["metadata/action_low"][:].tolist() == LOW.tolist()
        assert file["metadata/action_high"][:].tolist() == HIGH.tolist()


def test_metadata_tells_what_was_recorded(tmp_path):
    whole(tmp_path / "data.hdf5", transitions([2]), metadata={"seed": 5, "actor": "me", "unknown": None, "now": True})
    told = load_dataset(tmp_path / "data.hdf5").metadata
    assert (told["env"], told["actor"], int(told["seed"]), bool(told["now"])) == ("recorded-v0", "me", 5, True)
    assert told["seen_through"] == "[]"
    assert told["offpcc"]
    assert "unknown" not in told


def test_one_that_terminates_at_its_time_limit_is_not_cut_for_readers_that_drop_what_is(tmp_path):
    steps = [(*step[:4], *((True, True) if any(step[4:6]) else (False, False)), 0) for step in transitions([3, 3])]
    whole(tmp_path / "data.hdf5", steps)
    with h5py.File(tmp_path / "data.hdf5") as file:
        assert np.flatnonzero(file["terminals"]).tolist() == [2, 5]
        assert not file["timeouts"][:].any()


def test_an_episode_that_does_not_go_on_where_it_stood_is_cut(tmp_path):
    steps = transitions([6, 4])
    del steps[2]
    steps[2] = (*steps[2], True)  # it is the first of another
    whole(tmp_path / "data.hdf5", steps)
    data = load_dataset(tmp_path / "data.hdf5")
    assert data.lengths.tolist() == [2, 3, 4]
    assert data.truncations.tolist()[:2] == [False, True]
    assert np.array_equal(data.final_observations[0], steps[1][3])


def test_what_is_under_way_is_cut_at_the_end(tmp_path):
    one = recorder(tmp_path / "data.hdf5")
    push_all(one, transitions([4, 9])[:7])
    assert one.num_episodes == 1
    one.cut()
    told = one.merge()
    assert (told.num_steps, told.num_episodes, told.num_whole) == (7, 2, 1)
    data = load_dataset(tmp_path / "data.hdf5")
    assert data.lengths.tolist() == [4, 3]
    assert data.truncations.tolist() == [False] * 6 + [True]
    assert told.mean_return == pytest.approx(data.returns[0])
    assert [episode.ending for episode in read_episodes(tmp_path / "data.hdf5")] == [1, 2]


def test_episodes_of_several_environments_lie_in_the_order_in_which_they_ended(tmp_path):
    steps = transitions([5, 2, 4, 3, 3, 6, 2], num_envs=3)
    whole(tmp_path / "data.hdf5", steps, num_envs=3)
    data = load_dataset(tmp_path / "data.hdf5")
    ended = [step for step in steps if step[4] or step[5]]
    assert np.array_equal(data.final_observations, np.stack([step[3] for step in ended]))
    for (start, stop), last in zip(data.episodes, ended, strict=True):
        own = [step for step in steps if step[6] == last[6]]
        at = next(i for i, step in enumerate(own) if step is last) + 1
        expected = np.stack([step[0] for step in own[at - (stop - start) : at]])
        assert np.array_equal(data.observations[start:stop], expected)


def test_observations_that_an_environment_writes_over_are_copied(tmp_path):
    steps, shared = transitions([4]), np.zeros(3, np.float32)
    one = recorder(tmp_path / "data.hdf5")
    for before, action, reward, after, *ends in steps:
        first, following = before.copy(), shared
        following[:] = after
        one.push(first, action, reward, following, *ends)
    one.merge()
    expected = np.stack([step[3] for step in steps])
    assert np.array_equal(load_dataset(tmp_path / "data.hdf5").next_observations, expected)


@pytest.mark.parametrize(
    "place, value, told", [(0, np.nan, "observations"), (3, np.inf, "observations"), (2, 1e40, "rewards")]
)
def test_what_could_not_be_learned_from_is_refused_at_once(tmp_path, place, value, told):
    steps = transitions([3])
    broken = list(steps[1])
    broken[place] = value if place == 2 else np.full(3, value, np.float32)
    one = recorder(tmp_path / "data.hdf5")
    with pytest.raises(UserError, match=f"{told} of an episode of recorded-v0 hold a NaN"):
        push_all(one, (tuple(broken), steps[2]))


def test_another_shape_is_an_error(tmp_path):
    one = recorder(tmp_path / "data.hdf5")
    with pytest.raises(ValueError, match=r"shape \(4,\) recorded, but the space has \(3,\)"):
        one.push(np.zeros(4), np.zeros(2), 0.0, np.zeros(4), False, False)


def test_merging_nothing_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no episode has ended"):
        recorder(tmp_path / "data.hdf5").merge()


# Stopped and gone on with -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs, shown", [(1, VECTOR), (3, VECTOR), (2, IMAGE)], ids=["one", "three", "images"])
def test_a_run_killed_after_its_checkpoint_gives_the_same_file(tmp_path, num_envs, shown):
    steps = transitions([5, 2, 9, 1, 4, 6, 3, 7, 2, 8], num_envs=num_envs, **shown)
    options = {"num_envs": num_envs, **shown}
    expected = whole(tmp_path / "whole.hdf5", steps, **options)
    for checkpoint, killed in ((0, 0), (0, 9), (7, 7), (11, 30), (20, 45), (47, 47)):
        file = tmp_path / f"{checkpoint}_{killed}.hdf5"
        one = recorder(file, **options)
        push_all(one, steps[:checkpoint])
        state = saved(one.state_dict())
        push_all(one, steps[checkpoint:killed])
        one.close()
        again = recorder(file, resume=True, **options)
        again.load_state_dict(state)
        push_all(again, steps[checkpoint:])
        again.cut()
        again.merge()
        assert file.read_bytes() == expected, (checkpoint, killed)
        assert not log_path(file).exists()


def test_a_run_that_had_ended_is_trained_on(tmp_path):
    """Its file is there and its log is gone; what was cut at its end goes on."""
    steps = transitions([5, 2, 9, 4, 6, 3], num_envs=2)
    expected = whole(tmp_path / "whole.hdf5", steps, num_envs=2)
    one = recorder(tmp_path / "data.hdf5", num_envs=2)
    push_all(one, steps[:13])
    state = saved(one.state_dict())
    one.cut()
    one.merge()
    assert len(load_dataset(tmp_path / "data.hdf5").rewards) == 13
    again = recorder(tmp_path / "data.hdf5", num_envs=2, resume=True)
    again.load_state_dict(state)
    push_all(again, steps[13:])
    again.cut()
    again.merge()
    assert (tmp_path / "data.hdf5").read_bytes() == expected


def test_killed_between_the_file_and_the_removal_of_its_log(tmp_path, monkeypatch):
    file = tmp_path / "data.hdf5"
    steps = transitions([5, 2, 9])
    expected = whole(tmp_path / "whole.hdf5", steps[:-3])

    with monkeypatch.context() as patch:
        patch.setattr(EpisodeLog, "remove", EpisodeLog.close)
        whole(file, steps[:-3])
    assert is_unfinished(file) and file.read_bytes() == expected
    one = recorder(file, resume=True)
    assert one.lengths == [5, 2]  # what the end had cut is played again
    push_all(one, steps[7:-3])
    one.cut()
    one.merge()
    assert file.read_bytes() == expected


def test_a_full_disk_loses_nothing_that_was_finished(tmp_path):
    file = tmp_path / "data.hdf5"
    steps = transitions([50, 50, 50, 50])
    expected = whole(tmp_path / "whole.hdf5", steps)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    one = recorder(file)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_500, limits[1]))
    try:
        with pytest.raises(
            UserError,
            match=r"cannot be written \(File too large\); .* are kept in .*data.hdf5.episode_log: .* --resume",
        ):
            push_all(one, steps)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        one.close()
    again = recorder(file, resume=True)
    assert again.lengths == [50, 50]
    push_all(again, steps[100:])
    again.close()
    for size in (1, 500, 3_000, 9_000, len(expected) - 1):
        again = recorder(file, resume=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(UserError, match=r"cannot be written \(File too large\)"):
                again.merge()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            again.close()
        assert not file.exists()
        assert [path.name for path in tmp_path.glob("*data*")] == [log_path(file).name]
    recorder(file, resume=True).merge()
    assert file.read_bytes() == expected


def test_where_nothing_can_be_made_nothing_is_said_to_be_kept(tmp_path, monkeypatch):
    def refused(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(UserError, match=r"cannot be written \(Read-only file system\); name a file elsewhere$"):
        recorder(tmp_path / "data.hdf5")


# Refused ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_are_refused_by_name(tmp_path, finished):
    file = tmp_path / "data.hdf5"
    one = recorder(file)
    one.push(*transitions([1])[0])
    if finished:
        one.merge()
    one.close()
    for message, options in (
        ("seed is 4, but .* was recorded with 3", {"metadata": {"seed": 4}}),
        ("agent is me, but .* was recorded with no such value", {"metadata": {"seed": 3, "agent": "me"}}),
        (r"observation is float32 \(5,\), but .* was recorded with float32 \(3,\)", {"shape": (5,)}),
    ):
        with pytest.raises(UserError, match=message):
            recorder(file, resume=True, **options)
    assert log_path(file).exists() is not finished


def test_a_state_whose_episodes_are_gone_is_refused(tmp_path):
    one = recorder(tmp_path / "data.hdf5")
    push_all(one, transitions([2, 2]))
    state = one.state_dict()
    one.close()
    log = log_path(tmp_path / "data.hdf5")
    content = log.read_bytes()
    for left, num_episodes in ((content[:-1], 1), (content[: one.log.places[0].start], 0), (None, 0)):
        log.unlink() if left is None else log.write_bytes(left)
        again = recorder(tmp_path / "data.hdf5", resume=True)
        message = f"has {num_episodes} episodes, but the resumed run had recorded 2"
        with pytest.raises(UserError, match=message):
            again.load_state_dict(state)
        again.close()
        assert left is None or log.read_bytes() == left


def test_what_is_recorded_by_another_version_tells_of_both(tmp_path, monkeypatch):
    """While the recording is unfinished, and when it was finished and goes on; once for each change."""
    file, steps = tmp_path / "data.hdf5", transitions([3, 4, 2, 5])
    stops = (3, 7, 9, 14)
    for number, (version, told) in enumerate((("1", None), ("2", "with 1$"), ("2", None), ("3", "with 2$"))):
        monkeypatch.setattr("offpcc.data.recording.metadata.__version__", version)
        one = recorder(file, resume=True)
        if told is None:
            assert one.message is None
        else:
            one.close()  # without having written: it is not made by this version yet
            one = recorder(file, resume=True)
            told = f"this resume may not be exact: offpcc is {version}, but .*data.hdf5.* was recorded {told}"
            assert re.match(told, one.message)
        push_all(one, steps[sum(one.lengths) : stops[number]])
        if number == 2:
            one.merge()
        one.close()
    recorder(file, resume=True).merge()
    assert load_dataset(file).metadata["offpcc"] == "1, then 2, then 3"
    assert load_dataset(file).num_steps == 14
