"""Limits on the sizes that files from others declare; damage becomes one message."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import check_regular
from offpcc.utils.system import available_bytes

# A file of this many bytes or more is damaged, or meant to do damage, if what it declares is larger by more than this
# factor: deflate makes nothing smaller than a thousandth.
SUSPICIOUS_BYTES, SUSPICIOUS_FACTOR = 2**26, 1100
SHOWN_NAMES, SHOWN_LETTERS = 40, 60  # in messages
DAMAGE = (  # what HDF5, NumPy and the archives of Python make of bytes that were changed or lost
    OSError, RuntimeError, LookupError, ValueError, TypeError, EOFError, MemoryError, OverflowError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


def printable(names: Iterable[str | bytes]) -> list[str]:
    """Names as they can be printed, whatever they are made of; HDF5 has bytes for those that are no text.

    Of many names and of long ones the first part is given.
    """
    shown = [
        (name if isinstance(name, str) and name.isprintable() else ascii(name)) + "..." * is_cut
        for name, is_cut in ((name[:SHOWN_LETTERS], len(name) > SHOWN_LETTERS) for name in islice(names, SHOWN_NAMES))
    ]
    return [*shown, "..."] if len(shown) == SHOWN_NAMES else shown


def check_declared(declared: int, shape: tuple[int, ...], what: str, path: Path) -> None:
    """Refuse a size that the file cannot hold, before anything is made of it.

    Raises:
        UserError: it cannot.
    """
    if declared > SUSPICIOUS_BYTES and declared > SUSPICIOUS_FACTOR * (size := path.stat().st_size):
        raise UserError(
            f"{path}: {what} of shape {shape} would be {declared:,} bytes, but the file has {size:,}; it is damaged or "
            f"was never filled; fetch or write it again"
        )


def check_fits(declared: int, what: str, most_bytes: int | None = None) -> None:
    """Refuse a size that is above what is allowed, or above what is free.

    Raises:
        UserError: it is.
    """
    if most_bytes is not None and declared > most_bytes:
        raise UserError(f"{what} would be {declared:,} bytes, more than {most_bytes:,}; mend it, or leave it out")
    available = available_bytes()
    if available is not None and declared > available:
        raise UserError(f"{what} takes {declared:,} bytes, but {available:,} bytes of memory are free; leave it out")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong in reading into one message.

    Raises:
        UserError: something did.
    """
    try:
        check_regular(path)
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); is it still there?") from error
    except MemoryError as error:
        raise UserError(
            f"{path} takes more memory than there is ({first_line(error)}); it is damaged, or is to be split"
        ) from error
    except DAMAGE as error:
        raise UserError(f"{path} is damaged or not whole ({first_line(error)}); fetch or write it again") from error
