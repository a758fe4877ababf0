"""Copy all pages, and the files that they link to, to `build/site_src`, where the site is built from.

The site has the folders of the repository: README.md is its first page, and a link from `docs/` to `../results/` works
in both. Notebooks and source files become pages, because a browser would download them. Needs no package.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build" / "site_src"
OTHERS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md")
SOURCES = (".ipynb", ".py", ".cpp", ".gin", "")  # LICENSE has no suffix
CODE = re.compile(r"^ *(`{3,}).*?^ *\1$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?[^)]*\)|<(?:img|a) [^>]*(?:src|href)=\"([^\"]+)\"|<(https?://[^>\s]+)>")


def addresses(page: Path) -> Iterator[str]:
    """Yield where a page's links lead to, as written."""
    for match in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        yield match[1] or match[2] or match[3]


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the targets of a page's links inside the repository: the file and the anchor."""
    for address in addresses(page):
        if not re.match(r"\w+:", address):
            path, _, anchor = address.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def pages() -> list[Path]:
    """Return all pages, with those that a page links to."""
    found = [*(ROOT / name for name in OTHERS), *sorted((ROOT / "docs").rglob("*.md"))]
    for page in found:
        linked = (target for target, _ in links(page) if target.suffix == ".md" and target.is_file())
        found += [target for target in linked if target not in found]
    return found


def text_of(page: Path) -> str:
    """Return a page whose links to source files lead to their pages. A link to a folder becomes plain text."""

    def link(match: re.Match[str]) -> str:
        target = (page.parent / match[2]).resolve()
        if target.is_dir():
            return match[1]
        is_source = target.is_file() and target.suffix in SOURCES
        return f"[{match[1]}]({PurePosixPath(match[2]).with_suffix('.md')})" if is_source else match[0]

    return re.sub(r"\[([^][]*)\]\(([^)\s#]+)\)", link, page.read_text(encoding="utf-8"))


def page_of(file: Path) -> str:
    """Return a notebook or a source file as a page. The search finds notebooks, but not source files."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".ipynb":
        title = file.relative_to(ROOT).as_posix()
        return f"---\nsearch:\n  exclude: true\n---\n# {title}\n\n``````{file.suffix[1:]}\n{text}``````\n"
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join([*parts, f"Download: [{file.name}]({file.name})"]) + "\n"


def main(target: Path) -> None:
    """Copy everything anew."""
    shutil.rmtree(target, ignore_errors=True)
    found = pages()
    for file in {*found, *(linked for page in found for linked, _ in links(page) if linked.is_file())}:
        place = target / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file in found:
            place.write_text(text_of(file), encoding="utf-8")
            continue
        shutil.copyfile(file, place)
        if file.suffix in SOURCES:
            place.with_suffix(".md").write_text(page_of(file), encoding="utf-8")
    shutil.copyfile(ROOT / "docs" / "site.css", target / "docs" / "site.css")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if sys.argv[1:] else TARGET)
