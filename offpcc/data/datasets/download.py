"""Download of files. A file is kept only if it is complete and passes all checks."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from offpcc.utils.files import replacing

Progress = Callable[[int, int | None], None]  # received bytes, and the size of the file if known

BLOCK_BYTES = 2**20
PATIENCE = 30.0  # seconds without a byte


class Known(NamedTuple):
    """Size and hash of a file, known before its download."""

    size: int
    sha256: str  # the first digits


class DownloadError(Exception):
    """Raised when a download fails."""


def download(
    url: str,
    target: Path,
    *,
    known: Known | None = None,
    accept: Callable[[Path], str | None] = lambda path: None,
    progress: Progress | None = None,
) -> None:
    """Download a file. On failure, no part of it is kept.

    Args:
        url: the URL of the file.
        target: the path to write; its folder is created when the server responds.
        known: size and hash to check the file against, if known.
        accept: a function that returns what is wrong with the downloaded file, or None.
        progress: called repeatedly during the download.

    Raises:
        DownloadError: the download failed, or the file did not pass a check.
    """
    try:
        with contextlib.ExitStack() as stack:
            response = stack.enter_context(urllib.request.urlopen(url, timeout=PATIENCE))
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(replacing(target))
            stated = response.headers.get("Content-Length")
            size = int(stated) if stated else known.size if known else None
            free = shutil.disk_usage(target.parent).free
            if size is not None and size > free:
                raise DownloadError(f"{url} has {size:,} bytes, but {target.parent} has room for {free:,}")
            came, digest = 0, hashlib.sha256()
            with temporary.open("wb") as file:
                while block := response.read(BLOCK_BYTES):
                    file.write(block)
                    digest.update(block)
                    came += len(block)
                    if progress:
                        progress(came, size)
            if size is not None and came != size:
                raise DownloadError(f"{url} broke off after {came:,} of {size:,} bytes")
            if known and (came, digest.hexdigest()[: len(known.sha256)]) != (known.size, known.sha256):
                raise DownloadError(
                    f"{url} gave another file than is known: {came:,} bytes, SHA-256 {digest.hexdigest()}, instead of "
                    f"{known.size:,} bytes, SHA-256 {known.sha256}..."
                )
            if fault := accept(temporary):
                raise DownloadError(f"{url}: {fault}")
    except urllib.error.HTTPError as error:
        raise DownloadError(f"{url} answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise DownloadError(f"{url} cannot be reached ({error.reason})") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(f"{url} broke off ({error or type(error).__name__})") from None
