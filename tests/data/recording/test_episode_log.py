"""Records of episodes: what is packed is read back, and told from what is not whole."""

import io

import numpy as np
import pytest

from offpcc.data.recording.episode_log import Ending, Episode, Layout, is_followed, read_record

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
