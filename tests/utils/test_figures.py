from pathlib import Path

import pytest
from matplotlib.figure import Figure

from offpcc.training.analysis.run_tables import NoRunsError
from offpcc.utils.errors import UserError
from offpcc.utils.figures import check_picture, explain_picture_errors, save_figure


def figure(label=None):
    made = Figure()
    made.subplots().plot([0, 1], [1, 0], label=label)
    return made


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    for suffix in (".png", ".pdf", ".svg"):
        files = [tmp_path / f"{i}{suffix}" for i in range(2)]
        for file in files:
            save_figure(figure("lines"), file)
        assert files[0].read_bytes() == files[1].read_bytes()
    assert b"matplotlib" not in (tmp_path / "0.png").read_bytes().lower()


def test_only_lines_with_names_have_a_legend(tmp_path):
    named, nameless = figure("lines"), figure()
    save_figure(named, tmp_path / "named.png")
    save_figure(nameless, tmp_path / "nameless.png")
    assert [text.get_text() for text in named.axes[0].get_legend().get_texts()] == ["lines"]
    assert not named.axes[0].get_legend().get_frame_on()
    assert nameless.axes[0].get_legend() is None


def test_what_cannot_be_a_picture_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # long paths are cut in messages
    check_picture(tmp_path / "made" / "later.png", "--output", "curves.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_text("")
    for name, fault in [
        ("curves.txt", "its name must end in one of .*"),
        ("folder.png", "it is a folder"),
        ("file/curves.png", ".*file is a file, not a folder"),
    ]:
        with pytest.raises(
            UserError, match=rf"^--output {name} cannot be written: {fault}; name a file such as c\.png$"
        ):
            check_picture(Path(name), "--output", "c.png")


@pytest.mark.parametrize("error", [OSError("the disk is gone"), ValueError("the disk is gone")])
def test_a_fault_while_it_is_written_is_told_in_the_same_words(tmp_path, monkeypatch, error):
    monkeypatch.chdir(tmp_path)
    path = Path("c.png")
    with (
        pytest.raises(
            UserError, match=rf"^--out {path} cannot be written: the disk is gone; name a file such as d\.png$"
        ),
        explain_picture_errors(path, "--out", "d.png"),
    ):
        raise error


def test_a_fault_that_is_told_already_stays_as_it_is(tmp_path):
    with pytest.raises(NoRunsError, match=r"^mend it$"), explain_picture_errors(tmp_path / "c.png", "--out", "d.png"):
        raise NoRunsError("mend it")  # a ValueError, too
