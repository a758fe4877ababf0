import numpy as np
import pytest

from offpcc.core import Chunk
from offpcc.data.buffers.snapshot import (
    ChunkFile,
    Manifest,
    check_chunk,
    read_chunk,
    remove_others,
    write_chunks,
)
from offpcc.utils.tensor_files import FileError


def piece(key=0, version=0, start=0.0):
    return Chunk(key, version, [np.arange(start, start + 6, dtype=np.float32).reshape(3, 2), np.array([True, False])])


def written(folder, *pieces, saved=None):
    return {key: part for key, (_, part) in write_chunks(folder, pieces, saved or Manifest()).items()}


def test_what_is_written_is_read_into_its_place(tmp_path):
    (part,) = written(tmp_path, piece(start=4.0)).values()
    assert part.num_bytes == 6 * 4 + 2 == (tmp_path / part.name).stat().st_size
    check_chunk(tmp_path, part)
    into = piece()
    kept = list(into.arrays)
    read_chunk(tmp_path, part, into)
    assert all(map(np.array_equal, kept, piece(start=4.0).arrays))


def test_empty_arrays_are_pieces_too(tmp_path):
    (part,) = written(tmp_path, Chunk(0, 0, [np.zeros((0, 3), np.float32)])).values()
    check_chunk(tmp_path, part)
    read_chunk(tmp_path, part, Chunk(0, 0, [np.zeros((0, 3), np.float32)]))


def test_only_what_changed_is_written(tmp_path):
    saved = Manifest(write_chunks(tmp_path, [piece(0), piece(1, start=9.0)], Manifest()))
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    parts = written(tmp_path, piece(0), piece(1, version=1, start=8.0), saved=saved)
    assert parts[0] == saved.parts[0][1] and parts[1] != saved.parts[1][1]
    assert {path: path.stat().st_ino for path in tmp_path.iterdir() if path in before} == before
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: path.write_bytes(b"short")])
def test_what_somebody_took_away_is_written_again(tmp_path, change):
    saved = Manifest(write_chunks(tmp_path, [piece()], Manifest()))
    part = saved.parts[0][1]
    change(tmp_path / part.name)
    assert written(tmp_path, piece(), saved=saved) == {0: part}
    check_chunk(tmp_path, part)


def _link(path):
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is damaged (checksum)"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x07"), "is damaged (checksum)"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "is damaged (checksum)"),
        (_link, "not a regular file"),
        (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
    ],
)
def test_a_part_that_is_not_what_its_name_says_is_named(tmp_path, change, words):
    (part,) = written(tmp_path, piece()).values()
    change(tmp_path / part.name)
    with pytest.raises(FileError) as raised:
        check_chunk(tmp_path, part)
    assert part.name in raised.value.fault and words in raised.value.fault


def test_a_part_that_changed_after_it_was_checked_or_is_of_another_piece_is_refused(tmp_path):
    (part,) = written(tmp_path, piece()).values()
    with pytest.raises(FileError, match="has changed since it was checked"):
        read_chunk(tmp_path, part, Chunk(0, 0, [np.zeros(3, np.float32)]))
    (tmp_path / part.name).write_bytes(bytes(part.num_bytes))
    with pytest.raises(FileError, match="has changed since it was checked"):
        read_chunk(tmp_path, part, piece())


@pytest.mark.parametrize(
    "described",
    [None, "x", [], ["0" * 32 + ".part"], ["../" + "0" * 32 + ".part", 1], ["0" * 32, 1], ["0" * 32 + ".part", -1],
     ["0" * 32 + ".part\n", 1], ["/etc/passwd", 1], ["0" * 32 + ".part", "1"]],
)  # fmt: skip
def test_what_names_no_part_is_refused(tmp_path, described):
    with pytest.raises(FileError, match="does not list the parts"):
        ChunkFile.of(described, tmp_path / "checkpoint.pt")


def test_only_parts_are_removed(tmp_path):
    parts = written(tmp_path, piece(0), piece(1, start=3.0))
    left = tmp_path / f".{'0' * 32}.tmp-77.part"
    others = [tmp_path / name for name in ("notes.txt", "mine.part", ".hidden")]
    for path in (left, *others):
        path.touch()
    remove_others(tmp_path, {parts[0].name})
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / parts[0].name, *others])
