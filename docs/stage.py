"""Copy all pages, and the files that they link to, to `build/site_src`, where the site is built from.

The site has the folders of the repository: README.md is its first page, and a link from `docs/` to `../results/` works
in both. Needs no package.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build" / "site_src"
OTHERS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md")
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?[^)]*\)|<(?:img|a) [^>]*(?:src|href)=\"([^\"]+)\"")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the targets of a page's links inside the repository: the file and the anchor."""
    for match in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        address = match[1] or match[2]
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


def main() -> None:
    """Copy everything anew."""
    shutil.rmtree(TARGET, ignore_errors=True)
    files = {*pages(), *(target for page in pages() for target, _ in links(page) if target.is_file())}
    for file in files:
        place = TARGET / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


if __name__ == "__main__":
    main()
