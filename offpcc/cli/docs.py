"""`offpcc docs`: lists the pages of the documentation, which come with offpcc, prints one, or searches them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from offpcc.config.bindings import nearest
from offpcc.config.gin_files import CHECKOUT
from offpcc.utils.errors import UserError
from offpcc.utils.paths import PACKAGE, shown

DOCS = (CHECKOUT or PACKAGE) / "docs"
BEFORE, WIDTH = 40, 110  # letters of a line that `offpcc docs TEXT` shows before the text, and altogether


def run_docs(page: Sequence[str]) -> int:
    """Print the names and titles of all pages, the Markdown of one page, or the pages that contain a text."""
    pages = {file.relative_to(DOCS).with_suffix("").as_posix(): file for file in sorted(DOCS.rglob("*.md"))}
    width = max(map(len, pages))
    if not page:
        for name, file in pages.items():
            print(f"{name:{width}}  {_lines(file)[0].removeprefix('# ')}")
        print(f"`offpcc docs PAGE` prints one, or lists those that contain a text; the files are in {DOCS}")
        return 0
    text = " ".join(page)
    name = text.removesuffix(".md").removeprefix("docs/")
    if name in pages:
        print(pages[name].read_text(encoding="utf-8"), end="")
        return 0
    found = {name: lines for name, file in pages.items() if (lines := list(_matches(file, text)))} if text else {}
    if not found:
        hint = nearest(name, pages) or "`offpcc docs` lists all"
        raise UserError(f"the documentation has no page {shown(text)}, and no page contains this text; {hint}")
    for name, lines in sorted(found.items(), key=lambda item: -len(item[1])):
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        print(f"{name:{width}}  {_lines(pages[name])[0].removeprefix('# ')}\n  {lines[0]}{more}")
    return 0


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def _matches(file: Path, text: str) -> Iterator[str]:
    """Yield the lines of a page that contain a text, in upper or lower case, with path and number, and shortened."""
    for number, line in enumerate(_lines(file), 1):
        if (at := line.lower().find(text.lower())) >= 0:
            start = max(0, at - BEFORE)
            part = line[start : start + WIDTH]
            dots = "..." * (start > 0), "..." * (start + WIDTH < len(line))
            yield f"{file}:{number}: {dots[0]}{part.strip()}{dots[1]}"
