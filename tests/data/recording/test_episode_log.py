"""The log of episodes while a recording goes on: what is packed is read back, and what a kill leaves of it."""

import io
import resource
import subprocess
from contextlib import nullcontext

import numpy as np
import pytest
from played import IMAGE, recorder, transitions, whole
from pushing import push_all

from offpcc.data.recording import episode_log
from offpcc.data.recording.episode_log import Ending, Episode, Layout, is_followed, log_path, read_record
from offpcc.utils.errors import UserError

LAYOUTS = [Layout((3,), np.dtype(np.float32), 2), Layout((1, 8, 8), np.dtype(np.uint8), 1)]


def episode(layout, length, ending=Ending.TRUNCATED):
    draws = np.random.default_rng(length)
    observations = draws.integers(0, 255, (length + 1, *layout.shape)).astype(layout.dtype)
    actions, rewards = draws.normal(size=(length, layout.action_dim)), draws.normal(size=length)
    return Episode(observations, actions.astype(np.float32), rewards.astype(np.float32), ending)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["vectors", "images"])
def test_episodes_are_read_back_one_after_another(layout, tmp_path):
    episodes = [episode(layout, length, ending) for length, ending in zip((5, 1, 7), Ending, strict=True)]
    (tmp_path / "records").write_bytes(b"".join(layout.pack(one) for one in episodes))
    with (tmp_path / "records").open("rb") as file:
        for one in episodes:
            again = layout.unpack(read_record(file))
            assert again.ending is one.ending
            for part, before in zip(again[:3], one[:3], strict=True):
                assert part.dtype == before.dtype and np.array_equal(part, before)
        assert read_record(file) is None
        assert file.tell() == (tmp_path / "records").stat().st_size


@pytest.mark.parametrize("layout", LAYOUTS, ids=["vectors", "images"])
def test_a_record_that_lacks_or_has_changed_a_byte_is_none(layout, tmp_path):
    whole = layout.pack(episode(layout, 4))
    changed = [whole[:i] + bytes([whole[i] ^ 255]) + whole[i + 1 :] for i in range(0, len(whole), 5)]
    for content in (whole[:-1], whole[:16], whole[:9], *changed):
        (tmp_path / "records").write_bytes(content)
        with (tmp_path / "records").open("rb") as file:
            assert read_record(file) is None
            assert file.seek(0, io.SEEK_CUR) == 0


@pytest.mark.parametrize("layout", LAYOUTS, ids=["vectors", "images"])
def test_a_whole_record_is_found_behind_what_is_none(layout, tmp_path):
    whole = layout.pack(episode(layout, 4))
    broken = whole[:-1] + bytes([whole[-1] ^ 1])
    for content, found in (
        (b"", False),
        (whole[:-1], False),
        (broken, False),
        (bytes(len(whole)), False),
        (b"EPISEPIS" + whole[:-1], False),
        (broken + whole, True),
        (whole[:20] + whole, True),
        (b"EPI" + whole + broken, True),
    ):
        (tmp_path / "records").write_bytes(content)
        with (tmp_path / "records").open("rb") as file:
            assert is_followed(file) is found


def test_where_an_episode_ends():
    for ending, terminations, truncations in (
        (Ending.TERMINATED, [False, False, True], [False] * 3),
        (Ending.TRUNCATED, [False] * 3, [False, False, True]),
        (Ending.UNFINISHED, [False] * 3, [False, False, True]),
    ):
        one = episode(LAYOUTS[0], 3, ending)
        assert (one.terminations.tolist(), one.truncations.tolist()) == (terminations, truncations)


# What a kill leaves ------------------------------------------------------------------------------------------------


def test_a_record_that_is_not_whole_is_dropped_and_no_other(tmp_path):
    """Wherever a write was broken off, and whatever the disk made of the last one."""
    file = tmp_path / "data.hdf5"
    steps = transitions([3, 4, 2])
    one = recorder(file)
    push_all(one, steps)
    one.close()
    log = log_path(file)
    content = log.read_bytes()
    stops = [place.stop for place in one.log.places]
    assert stops[-1] == len(content)

    def goes_on(left, num_episodes):
        log.write_bytes(left)
        again = recorder(file, resume=True)
        assert again.num_episodes == num_episodes
        assert log.read_bytes() == left  # nothing is removed before something is written
        push_all(again, steps[sum(again.lengths) :])
        again.close()
        assert log.read_bytes() == content

    for size in (*range(stops[1] - 3, stops[1] + 30), stops[1], len(content) - 1, one.log.places[0].start):
        goes_on(content[:size], sum(stop <= size for stop in stops))
    for place in (stops[1], stops[1] + 9, stops[1] + 14, stops[2] - 1):
        goes_on(flipped(content, place), 2)
    goes_on(content[: stops[1]] + bytes(stops[2] - stops[1]), 2)  # as some disks leave it when the power fails


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("number", [0, 1, 6, 8])
@pytest.mark.parametrize("damage", ["flipped", "removed"])
def test_episodes_behind_a_damaged_one_are_not_given_up(tmp_path, number, damage):
    """It is refused, nothing is touched, and the remedy is one that keeps what lies before."""
    file, steps = tmp_path / "my data.hdf5", transitions([3, 4, 2, 5, 3, 4, 2, 5, 3, 4])
    expected = whole(tmp_path / "whole.hdf5", steps)
    one = recorder(file)
    push_all(one, steps)
    one.close()
    log, start = log_path(file), one.log.places[number].start
    content = log.read_bytes()
    before = flipped(content, start + 30) if damage == "flipped" else content[:start] + content[start + 5 :]
    log.write_bytes(before)
    fault = f"is damaged at byte {start:,}"
    with pytest.raises(UserError, match=rf"{log} {fault}.* put it back.* keeps the {number} episodes before") as told:
        recorder(file, resume=True)
    assert log.read_bytes() == before
    subprocess.run(told.value.message.split("`")[1], shell=True, check=True)
    again = recorder(file, resume=True)
    assert again.num_episodes == number
    push_all(again, steps[sum(again.lengths) :])
    again.merge()
    assert file.read_bytes() == expected


def test_the_file_does_not_depend_on_what_was_dropped_from_the_log(tmp_path):
    steps = transitions([5, 2, 9, 1, 4, 6], **IMAGE)
    expected = whole(tmp_path / "whole.hdf5", steps, **IMAGE)
    file = tmp_path / "data.hdf5"
    one = recorder(file, **IMAGE)
    push_all(one, steps)
    one.close()
    for kept in (6, 5, 3, 1, 0):
        again = recorder(file, resume=True, **IMAGE)
        again.keep(kept)
        assert again.lengths == [5, 2, 9, 1, 4, 6][:kept]
        push_all(again, steps[sum(again.lengths) :])
        again.close()
    recorder(file, resume=True, **IMAGE).merge()
    assert file.read_bytes() == expected


@pytest.mark.parametrize("size", [0, 10])
def test_a_full_disk_at_the_start_of_a_log_leaves_none(tmp_path, size):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(UserError, match=r"data.hdf5 cannot be written .*File too large\); name a file elsewhere"):
            recorder(tmp_path / "data.hdf5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_loses_no_episode_before_or_after(tmp_path):
    steps = transitions([20, 90, 5, 4])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    one = recorder(tmp_path / "data.hdf5")
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    try:
        for number, step in enumerate(steps):
            with pytest.raises(UserError, match="File too large") if number == 109 else nullcontext():
                one.push(*step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        one.close()
    assert [place.length for place in one.log.places] == [20, 5, 4]
    assert recorder(tmp_path / "data.hdf5", resume=True).lengths == [20, 5, 4]


def test_killed_before_the_log_holds_settings(tmp_path):
    """An empty log is a new one."""
    file = tmp_path / "data.hdf5"
    log_path(file).touch()
    again = recorder(file, resume=True)
    assert again.num_episodes == 0
    push_all(again, transitions([2]))
    again.merge()
    assert [path.name for path in tmp_path.iterdir()] == ["data.hdf5"]


def test_what_a_kill_left_of_the_final_file_is_removed(tmp_path):
    one = recorder(tmp_path / "data[1].hdf5")
    push_all(one, transitions([2]))
    (tmp_path / ".data[1].tmp-77.hdf5").touch()
    (tmp_path / ".data.tmp-77.hdf5").touch()
    one.merge()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".data.tmp-77.hdf5", "data[1].hdf5"]


def test_two_processes_do_not_write_one_recording(tmp_path):
    one = recorder(tmp_path / "data.hdf5")
    with pytest.raises(UserError, match="is being written by another process"):
        recorder(tmp_path / "data.hdf5", resume=True)
    one.close()
    recorder(tmp_path / "data.hdf5", resume=True).close()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": 1, "settings": 3}', b'"\xff"', None])
def test_a_log_whose_settings_are_damaged_is_refused(tmp_path, content):
    recorder(tmp_path / "data.hdf5").close()
    record = b"something else" if content is None else episode_log.pack(0, episode_log.SETTINGS, content)
    log_path(tmp_path / "data.hdf5").write_bytes(record)
    with pytest.raises(UserError, match=r"episode_log is damaged, or is not a recording; remove it, or give another"):
        recorder(tmp_path / "data.hdf5", resume=True)


def test_a_log_of_another_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(episode_log, "FORMAT", 7)
        recorder(tmp_path / "data.hdf5").close()
    with pytest.raises(
        UserError, match=r"episode_log has format 7, but this offpcc writes 1; continue with the offpcc"
    ):
        recorder(tmp_path / "data.hdf5", resume=True)


def test_what_is_forgotten_is_there_until_something_else_is_written(tmp_path):
    file, steps = tmp_path / "data.hdf5", transitions([3, 4, 2, 5, 3, 4])
    one = recorder(file)
    push_all(one, steps)
    before = log_path(file).read_bytes()
    one.keep(1)
    one.close()
    assert log_path(file).read_bytes() == before
    again = recorder(file, resume=True)
    again.keep(1)
    again.state_dict()  # of which the disk has all, and nothing else
    again.close()
    assert log_path(file).read_bytes() == before[: again.log.places[-1].stop]
    assert recorder(file, resume=True).lengths == [3]


def test_what_is_forgotten_while_it_is_recorded_is_not_in_the_file(tmp_path):
    steps = transitions([3, 4, 2, 5, 3, 4])
    expected = whole(tmp_path / "whole.hdf5", steps)
    for kept in (5, 2, 0):
        one = recorder(tmp_path / f"{kept}.hdf5")
        push_all(one, steps)
        one.keep(kept)
        push_all(one, steps[sum(one.lengths) :])
        one.close()
        recorder(one.file, resume=True).merge()
        assert one.file.read_bytes() == expected
