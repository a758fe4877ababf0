import os
from pathlib import Path

import pytest
import torch

from offpcc.utils import tensor_files
from offpcc.utils.tensor_files import FileError, read_tensors, write_tensors

CONTENT = {"kind": "thing", "format": 3, "numbers": torch.arange(100), "words": ["a", "b"]}


def written(folder, **changes):
    file = folder / "thing.pt"
    write_tensors(file, CONTENT | changes)
    return file


def refusal(file, **options):
    with pytest.raises(FileError) as raised:
        read_tensors(file, "thing", 3, **options)
    assert str(file) in raised.value.fault
    assert raised.value.message == f"{raised.value.fault}; {raised.value.remedy}"
    return raised.value.message


def test_what_is_written_is_read_by_us_and_by_torch(tmp_path):
    file = written(tmp_path)
    for content in (read_tensors(file, "thing", 3, needs_seal=True), torch.load(file, weights_only=True)):
        assert torch.equal(content.pop("numbers"), CONTENT["numbers"])
        assert content == {name: value for name, value in CONTENT.items() if name != "numbers"}
    assert list(tmp_path.iterdir()) == [file]


def test_the_same_content_gives_the_same_bytes(tmp_path):
    assert written(tmp_path).read_bytes() == written(tmp_path).read_bytes()


def test_a_changed_byte_is_found_wherever_it_is(tmp_path):
    file = written(tmp_path)
    data = file.read_bytes()
    for place in {*range(0, len(data), 11), *range(len(data) - 62, len(data))}:  # with all of the end and the seal
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        refusal(file, needs_seal=True)


def test_what_is_cut_off_or_added_is_found(tmp_path):
    file = written(tmp_path)
    data = file.read_bytes()
    for changed in (*(data[:length] for length in range(0, len(data), 41)), data[:-1], data[:-39], data + b"\0"):
        file.write_bytes(changed)
        refusal(file, needs_seal=True)


def test_a_file_without_a_seal_is_refused_where_one_is_needed(tmp_path):
    file = tmp_path / "thing.pt"
    torch.save(CONTENT, file)
    assert read_tensors(file, "thing", 3)["words"] == ["a", "b"]
    assert "lost its checksum" in refusal(file, needs_seal=True)
    torch.save(CONTENT | {"format": 2}, file)
    assert "has format 2, but this offpcc reads 3; an older offpcc wrote it: use commit 4e6c498" in refusal(
        file, needs_seal=True
    )
    torch.save(CONTENT | {"format": 4}, file)
    assert "has format 4, but this offpcc reads 3; a newer offpcc wrote it: install that one" in refusal(file)
    for damaged in (None, "3", torch.ones(9, 9)):
        torch.save(CONTENT | {"format": damaged}, file)
        assert "is no thing of offpcc, or is damaged (its format is no number)" in refusal(file)


def test_what_is_something_else_is_refused(tmp_path):
    assert "has format 4, but this offpcc reads 3" in refusal(written(tmp_path, format=4))
    assert "not of the kind 'thing' but 'actor'" in refusal(written(tmp_path, kind="actor"))
    assert "does not exist" in refusal(tmp_path / "nothing.pt")
    assert "not a regular file" in refusal(tmp_path)
    for content, words in (
        (b"", "is no thing of offpcc, or is damaged"),
        (b"PK\x03\x04" + bytes(100), "is no thing of offpcc, or is damaged"),
        (
            b"GIF89a" + bytes(9),
            "is no thing of offpcc, or is damaged (it is no archive of torch, or a part of one); give the right file",
        ),
    ):
        (tmp_path / "thing.pt").write_bytes(content)
        assert words in refusal(tmp_path / "thing.pt")


def test_what_is_larger_than_the_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    file = written(tmp_path)
    monkeypatch.setattr(tensor_files, "available_bytes", lambda: file.stat().st_size)
    assert read_tensors(file, "thing", 3)["words"] == ["a", "b"]
    os.truncate(file, 9 * 10**11)  # of holes
    monkeypatch.undo()
    assert "has 900,000,000,000 bytes, more than the free memory; give the right" in refusal(file)


def test_where_memory_runs_out_while_a_file_is_read_that_is_told(tmp_path, monkeypatch):
    def run_out(*_, **__):
        raise MemoryError

    file = written(tmp_path)
    for owner, name in ((torch, "load"), (tensor_files, "_sealed"), (Path, "read_bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, run_out)
            assert "more than the free memory" in refusal(file)
