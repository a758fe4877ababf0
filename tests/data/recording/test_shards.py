"""Episodes on disk while a recording goes on: what a kill leaves of them."""

import resource
import subprocess
from contextlib import nullcontext

import pytest
from played import IMAGE, recorder, transitions, whole

from offpcc.data.recording import episode_log
from offpcc.data.recording.episode_log import shards_folder
from offpcc.utils.errors import UserError


def test_a_record_that_is_not_whole_is_dropped_and_no_other(tmp_path):
    """Wherever a write was broken off, and whatever the disk made of the last one."""
    file = tmp_path / "data.hdf5"
    steps = transitions([3, 4, 2])
    one = recorder(file)
    for step in steps:
        one.push(*step)
    one.close()
    shard = shards_folder(file) / "000001.episodes"
    content = shard.read_bytes()
    stops = [place.stop for place in one.shards.places]
    assert stops[-1] == len(content)

    def goes_on(left, num_episodes):
        shard.write_bytes(left)
        again = recorder(file, resume=True)
        assert again.num_episodes == num_episodes
        assert shard.read_bytes() == left  # nothing is removed before something is written
        for step in steps[sum(again.lengths) :]:
            again.push(*step)
        again.close()
        assert shard.read_bytes() == content

    for size in (*range(stops[1] - 3, stops[1] + 30), stops[1], len(content) - 1, 1, 0):
        goes_on(content[:size], sum(stop <= size for stop in stops))
    for place in (stops[1], stops[1] + 9, stops[1] + 14, stops[2] - 1):
        goes_on(flipped(content, place), 2)
    goes_on(content[: stops[1]] + bytes(stops[2] - stops[1]), 2)  # as some disks leave it when the power fails


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "missing", "in the last"])
def test_episodes_behind_a_damaged_one_are_not_given_up(tmp_path, monkeypatch, damage):
    """It is refused, nothing is touched, and the remedy is one that keeps what lies before."""
    monkeypatch.setattr(episode_log, "SHARD_BYTES", 150)
    file, steps = tmp_path / "my data.hdf5", transitions([3, 4, 2, 5, 3, 4, 2, 5, 3, 4])
    expected = whole(tmp_path / "whole.hdf5", steps)
    one = recorder(file)
    for step in steps:
        one.push(*step)
    one.close()
    folder, places = shards_folder(file), one.shards.places
    assert places[-1].shard > 3 and places[-2].shard == places[-1].shard
    number = places[-1].shard if damage == "in the last" else 2
    shard = folder / f"{number:06d}.episodes"
    kept = sum(place.shard < number for place in places)
    if damage in ("flipped", "in the last"):
        shard.write_bytes(flipped(shard.read_bytes(), 30))
    elif damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[: 30 * (damage == "short")])
    before = files_in(folder)
    fault = "is missing" if damage == "missing" else "is damaged at byte 0"
    with pytest.raises(UserError, match=rf"{shard} {fault}.* put it back.* or keep the {kept} episodes before") as told:
        recorder(file, resume=True)
    assert files_in(folder) == before
    subprocess.run(told.value.message.split("`")[1], shell=True, check=True)
    again = recorder(file, resume=True)
    assert again.num_episodes == kept
    for step in steps[sum(again.lengths) :]:
        again.push(*step)
    again.merge()
    assert file.read_bytes() == expected


def test_the_file_does_not_depend_on_how_episodes_lie_in_shards(tmp_path, monkeypatch):
    steps = transitions([5, 2, 9, 1, 4, 6], **IMAGE)
    expected = whole(tmp_path / "whole.hdf5", steps, **IMAGE)
    monkeypatch.setattr(episode_log, "SHARD_BYTES", 2_000)
    file = tmp_path / "data.hdf5"
    one = recorder(file, **IMAGE)
    for step in steps:
        one.push(*step)
    one.close()
    assert len(list(shards_folder(file).glob("*.episodes"))) > 2
    for kept in (6, 5, 3, 1, 0):
        again = recorder(file, resume=True, **IMAGE)
        again.keep(kept)
        assert again.lengths == [5, 2, 9, 1, 4, 6][:kept]
        for step in steps[sum(again.lengths) :]:
            again.push(*step)
        again.close()
    recorder(file, resume=True, **IMAGE).merge()
    assert file.read_bytes() == expected


def test_a_full_disk_at_the_start_of_a_shard_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(episode_log, "SHARD_BYTES", 500)
    steps = transitions([20, 90, 5, 4])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    one = recorder(tmp_path / "data.hdf5")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500, limits[1]))
    try:
        for number, step in enumerate(steps):
            with pytest.raises(UserError, match="File too large") if number == 109 else nullcontext():
                one.push(*step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        one.close()
    assert [(place.shard, place.length) for place in one.shards.places] == [(1, 20), (2, 5), (2, 4)]
    assert recorder(tmp_path / "data.hdf5", resume=True).lengths == [20, 5, 4]


def test_killed_while_shards_are_removed(tmp_path):
    """What is left without its description is no recording, and somebody else's file stays."""
    file = tmp_path / "data.hdf5"
    one = recorder(file)
    for step in transitions([5]):
        one.push(*step)
    one.close()
    (shards_folder(file) / "about.json").unlink()
    (shards_folder(file) / "notes.txt").touch()
    again = recorder(file)
    assert again.num_episodes == 0
    for step in transitions([2]):
        again.push(*step)
    again.merge()
    assert [path.name for path in shards_folder(file).iterdir()] == ["notes.txt"]


def test_two_processes_do_not_write_one_recording(tmp_path):
    one = recorder(tmp_path / "data.hdf5")
    with pytest.raises(UserError, match="is being written by another process"):
        recorder(tmp_path / "data.hdf5", resume=True)
    one.close()
    recorder(tmp_path / "data.hdf5", resume=True).close()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": 1, "settings": 3}', b'"\xff"'])
def test_a_folder_whose_description_is_damaged_is_refused(tmp_path, content):
    recorder(tmp_path / "data.hdf5").close()
    (shards_folder(tmp_path / "data.hdf5") / "about.json").write_bytes(content)
    with pytest.raises(UserError, match=r"about.json is damaged, or of something else; remove its folder"):
        recorder(tmp_path / "data.hdf5", resume=True)


def test_a_folder_of_another_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(episode_log, "FORMAT", 7)
        recorder(tmp_path / "data.hdf5").close()
    with pytest.raises(UserError, match=r"about.json is of format 7, and this offpcc writes 1; go on with the one"):
        recorder(tmp_path / "data.hdf5", resume=True)


def test_what_is_forgotten_is_there_until_something_else_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(episode_log, "SHARD_BYTES", 150)
    file, steps = tmp_path / "data.hdf5", transitions([3, 4, 2, 5, 3, 4])
    one = recorder(file)
    for step in steps:
        one.push(*step)
    before = files_in(shards_folder(file))
    assert len(before) > 3
    one.keep(1)
    one.close()
    assert files_in(shards_folder(file)) == before
    again = recorder(file, resume=True)
    again.keep(1)
    again.state_dict()  # of which the disk has all, and nothing else
    again.close()
    assert sorted(files_in(shards_folder(file))) == ["000001.episodes", "about.json"]
    assert recorder(file, resume=True).lengths == [3]


def test_what_is_forgotten_while_it_is_recorded_is_not_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(episode_log, "SHARD_BYTES", 150)
    steps = transitions([3, 4, 2, 5, 3, 4])
    expected = whole(tmp_path / "whole.hdf5", steps)
    for kept in (5, 2, 0):
        one = recorder(tmp_path / f"{kept}.hdf5")
        for step in steps:
            one.push(*step)
        one.keep(kept)
        for step in steps[sum(one.lengths) :]:
            one.push(*step)
        one.close()
        recorder(one.file, resume=True).merge()
        assert one.file.read_bytes() == expected
