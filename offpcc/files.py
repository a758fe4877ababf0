"""Files that are either wholly the old ones or wholly the new ones, whenever the program is stopped."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path, before: Path | None = None) -> Iterator[Path]:
    """Give a temporary file to write, which takes the place of `path` only once it is complete.

    The temporary file lies in the same folder, since a rename is atomic only within one file system, and
    keeps the suffix, by which image, video and tensor writers choose their format. If the body raises,
    `path` stays as it was.

    Args:
        path: The file to write; its folder must exist.
        before: What the file that was there is called from then on; by default it is gone. Killed between the two
            renames, a process leaves it there and nothing at `path`.

    Yields:
        The path to write to instead.
    """
    temporary = path.with_name(f".{path.stem}.tmp-{os.getpid()}{path.suffix}")
    temporary.unlink(missing_ok=True)  # in a folder from somebody else, a link that would be written through
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if before is not None and path.exists():
            path.replace(before)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # what went wrong with the file itself is what is to be told
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has a folder's names, where that can be asked for: a rename alone may be lost with power."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, line ends unchanged."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, content: Any) -> None:
    """Write JSON that people can read, too."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))
