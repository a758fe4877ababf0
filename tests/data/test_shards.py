"""Episodes on disk while a recording goes on: what a kill leaves of them."""

import resource
from contextlib import nullcontext

import pytest
from played import IMAGE, recorder, transitions, whole

from offpcc.data import shards
from offpcc.data.shards import shards_folder
from offpcc.errors import UserError


def test_a_record_that_is_not_whole_is_dropped_and_no_other(tmp_path):
    """Wherever a write was broken off, and whatever the disk made of it."""
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
    for size in (*range(stops[1] - 3, stops[1] + 30), stops[1], len(content) - 1, 1, 0):
        shard.write_bytes(content[:size])
        again = recorder(file, resume=True)
        assert again.num_episodes == sum(stop <= size for stop in stops), size
        assert shard.stat().st_size == max([stop for stop in stops if stop <= size], default=0)
        for step in steps[sum(again.lengths) :]:
            again.push(*step)
        again.close()
        assert shard.read_bytes() == content
    for place in (stops[0], stops[0] + 9, stops[0] + 14, stops[1] - 1):
        shard.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        again = recorder(file, resume=True)
        assert again.lengths == [3]
        again.close()


def test_the_file_does_not_depend_on_how_episodes_lie_in_shards(tmp_path, monkeypatch):
    steps = transitions([5, 2, 9, 1, 4, 6], **IMAGE)
    expected = whole(tmp_path / "whole.hdf5", steps, **IMAGE)
    monkeypatch.setattr(shards, "SHARD_BYTES", 2_000)
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
    monkeypatch.setattr(shards, "SHARD_BYTES", 500)
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


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 1, "settings": 3}'])
def test_a_folder_whose_description_is_damaged_is_refused(tmp_path, content):
    recorder(tmp_path / "data.hdf5").close()
    (shards_folder(tmp_path / "data.hdf5") / "about.json").write_text(content)
    with pytest.raises(UserError, match=r"about.json is damaged, or of something else; remove its folder"):
        recorder(tmp_path / "data.hdf5", resume=True)
