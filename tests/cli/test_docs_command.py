"""`offpcc docs`: pages are listed, printed and searched."""

import pytest

from offpcc.cli import docs
from offpcc.cli.main import main

PAGES = sorted(file.relative_to(docs.DOCS).with_suffix("").as_posix() for file in docs.DOCS.rglob("*.md"))


def test_all_pages_are_listed_with_their_titles(capsys):
    assert main(["docs"]) == 0
    *listed, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == PAGES and all(line.split()[1:] for line in listed)
    assert not any("#" in line or "<" in line for line in listed)
    assert last.endswith(str(docs.DOCS))
    assert "`PAGE or TEXT ...` |  | Print" in (docs.DOCS / "reference/command_line.md").read_text()  # not required


@pytest.mark.parametrize("name", ["sweeps", "docs/sweeps.md"])
def test_a_page_is_printed(capsys, name):
    assert main(["docs", name]) == 0
    assert capsys.readouterr().out == (docs.DOCS / "sweeps.md").read_text()


@pytest.mark.parametrize(("name", "told"), [("sweps", "did you mean sweeps"), ("qqqq", "`offpcc docs` lists all")])
def test_a_page_that_does_not_exist(capsys, name, told):
    assert main(["docs", name]) == 2
    out, err = capsys.readouterr()
    assert f"no page {name}, and no page contains this text; {told}" in err and not out


def test_pages_that_contain_a_text_are_listed_with_their_lines(capsys, monkeypatch, tmp_path):
    (tmp_path / "guide").mkdir()
    (tmp_path / "a.md").write_text("# First\n\nno match\n" + "x" * 300 + " Burn_In " + "y" * 300 + "\n")
    (tmp_path / "guide" / "b.md").write_text("# Second\nburn_in is here\nburn_in again\n")
    (tmp_path / "c.md").write_text("# Third\n")
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    assert main(["docs", "burn_IN"]) == 0
    first, line, second, other = capsys.readouterr().out.splitlines()
    assert first.split() == ["guide/b", "Second"] and second.split() == ["a", "First"]
    assert line == f"  {tmp_path}/guide/b.md:2: burn_in is here (and 1 more)"
    assert other.startswith(f"  {tmp_path}/a.md:4: ...x") and " Burn_In " in other and other.endswith("y...")
    assert len(other) < len(str(tmp_path)) + 130
    assert main(["docs", "burn_in", "IS"]) == 0  # words without quotes are one text
    assert capsys.readouterr().out.splitlines()[1:] == [f"  {tmp_path}/guide/b.md:2: burn_in is here"]
    assert main(["docs", ""]) == 2
