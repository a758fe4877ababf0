import os
import stat

import pytest

from offpcc.utils.files import read_json, replacing, write_json, write_text


def test_a_file_is_replaced_only_once_it_is_complete(tmp_path):
    path = tmp_path / "actor.pt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_temporary_file_is_hidden_in_the_same_folder_and_keeps_the_suffix(tmp_path):
    with replacing(tmp_path / "curve.png") as temporary:
        temporary.touch()
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".png"
        assert temporary.name.startswith(".curve")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "progress.csv"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_text("half of the ne")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_body_that_writes_nothing_is_an_error(tmp_path):
    path = tmp_path / "actor.pt"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text() == "old"


def test_a_link_in_place_of_the_temporary_file_is_replaced(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / f".a.tmp-{os.getpid()}.txt").symlink_to("victim")
    write_text(tmp_path / "a.txt", "text")
    assert [(tmp_path / name).read_text() for name in ("a.txt", "victim")] == ["text", "mine"]
    assert not (tmp_path / "a.txt").is_symlink()


def test_text_keeps_its_line_ends(tmp_path):
    write_text(tmp_path / "a.csv", "é\r\nb\n")
    assert (tmp_path / "a.csv").read_bytes() == "é\r\nb\n".encode()


def test_json_comes_back(tmp_path):
    content = {"status": "finished", "epochs": 3, "best": -1.25, "gpu": None}
    write_json(tmp_path / "run.json", content)
    assert read_json(tmp_path / "run.json") == content


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "run.json", {"epochs": 3})
    with pytest.raises(TypeError):
        write_json(tmp_path / "run.json", {"epochs": object()})
    assert read_json(tmp_path / "run.json") == {"epochs": 3}


def test_the_file_before_may_be_kept(tmp_path):
    path, before = tmp_path / "checkpoint.pt", tmp_path / "before.pt"
    for text in ("one", "two", "three"):
        with replacing(path, before) as temporary:
            temporary.write_text(text)
    assert (before.read_text(), path.read_text()) == ("two", "three")
    with pytest.raises(RuntimeError), replacing(path, before) as temporary:
        temporary.write_text("four")
        raise RuntimeError
    assert (before.read_text(), path.read_text()) == ("two", "three")
    assert sorted(tmp_path.iterdir()) == [before, path]


def test_the_folder_is_synchronised_after_the_rename_where_that_is_possible(tmp_path, monkeypatch):
    synchronised, sync = [], os.fsync

    def refusing(opened):
        synchronised.append(stat.S_ISDIR(os.fstat(opened).st_mode))
        if synchronised[-1]:
            assert (tmp_path / "a.csv").exists()
            raise OSError("this file system cannot")
        sync(opened)

    monkeypatch.setattr(os, "fsync", refusing)
    write_text(tmp_path / "a.csv", "a")
    assert synchronised == [False, True]
