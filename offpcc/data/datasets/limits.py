"""Limits on the sizes that untrusted files declare, and error messages for damaged files."""

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

# A declared size is suspicious if it exceeds both this many bytes and this many times the file's size. Deflate
# compresses by a factor of about 1,000 at most, so the file is damaged or malicious.
SUSPICIOUS_BYTES, SUSPICIOUS_FACTOR = 2**26, 1100
SHOWN_NAMES, SHOWN_LETTERS = 40, 60  # the most names, and characters per name, in messages
DAMAGE = (  # exceptions of HDF5, NumPy and Python's archives for changed or lost bytes
    OSError, RuntimeError, LookupError, ValueError, TypeError, EOFError, MemoryError, OverflowError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


def printable(names: Iterable[str | bytes]) -> list[str]:
    """Return names in a printable form. HDF5 gives bytes for names that are not valid text.

    Long names and long lists of names are shortened.
    """
    shown = [
        (name if isinstance(name, str) and name.isprintable() else ascii(name)) + "..." * is_cut
        for name, is_cut in ((name[:SHOWN_LETTERS], len(name) > SHOWN_LETTERS) for name in islice(names, SHOWN_NAMES))
    ]
    return [*shown, "..."] if len(shown) == SHOWN_NAMES else shown


def check_declared(declared: int, shape: tuple[int, ...], what: str, path: Path) -> None:
    """Raise if a file is too small for the size that it declares. Call this before allocating memory.

    Raises:
        UserError: the declared size is suspicious.
    """
    if declared > SUSPICIOUS_BYTES and declared > SUSPICIOUS_FACTOR * (size := path.stat().st_size):
        raise UserError(
            f"{path}: {what} of shape {shape} would be {declared:,} bytes, but the file has {size:,}; it is damaged or "
            f"was never filled; fetch or write it again"
        )


def check_fits(declared: int, what: str, most_bytes: int | None = None) -> None:
    """Raise if a size exceeds a limit or the free memory.

    Raises:
        UserError: the size is too large.
    """
    if most_bytes is not None and declared > most_bytes:
        raise UserError(f"{what} would be {declared:,} bytes, more than {most_bytes:,}; mend it, or leave it out")
    available = available_bytes()
    if available is not None and declared > available:
        raise UserError(f"{what} takes {declared:,} bytes, but {available:,} bytes of memory are free; leave it out")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn exceptions from reading a file into one `UserError`.

    Raises:
        UserError: the file cannot be read, is damaged, or needs too much memory.
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
