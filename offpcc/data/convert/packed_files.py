"""Opens recordings that are compressed by GZIP, or were unpacked already."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offpcc.utils.errors import UserError

GZIP, WEB_PAGE = b"\x1f\x8b", b"<"  # beginnings of files
AGAIN = "remove it, and run the command again, which downloads it"


@contextmanager
def open_packed(path: Path, is_unpacked: Callable[[bytes], bool], what: str) -> Iterator[tuple[Any, Any]]:
    """Open a recording, and yield the file as it is stored, and its content.

    `is_unpacked` says of the first 12 bytes of a file if it holds a recording that is not compressed. `what` names the
    kind of recording, for messages.
    """
    with path.open("rb") as raw:
        start = raw.read(64)
        raw.seek(0)
        if is_unpacked(start[:12]):
            yield raw, raw
            return
        if start and not start.startswith(GZIP):
            found = "a web page" if start.lstrip().startswith(WEB_PAGE) else f"neither {what} nor compressed by gzip"
            raise UserError(f"{path} is {found}; {AGAIN}")
        with gzip.GzipFile(fileobj=raw) as file:
            yield raw, file
