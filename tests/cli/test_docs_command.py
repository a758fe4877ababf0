"""`offpcc docs`: pages are listed and printed."""

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


@pytest.mark.parametrize("name", ["sweeps", "docs/sweeps.md"])
def test_a_page_is_printed(capsys, name):
    assert main(["docs", name]) == 0
    assert capsys.readouterr().out == (docs.DOCS / "sweeps.md").read_text()


@pytest.mark.parametrize(("name", "told"), [("sweps", "did you mean sweeps"), ("qqqq", "`offpcc docs` lists all")])
def test_a_page_that_does_not_exist(capsys, name, told):
    assert main(["docs", name]) == 2
    out, err = capsys.readouterr()
    assert f"no page {name}; {told}" in err and not out
