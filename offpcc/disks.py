"""What to tell a person whose disk is full, read-only or gone."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offpcc.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FAILING = (errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EACCES, errno.EPERM)


@contextmanager
def telling_of_faults(folder: Path) -> Iterator[None]:
    """Tell in one message that a run's folder cannot be written.

    Files are replaced as a whole, so that all that the folder held is as it was.

    Args:
        folder: the run's.

    Raises:
        UserError: a disk was at fault.
        OSError, RuntimeError: something else was.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter
        code = number_of(error)
        if code == errno.ENOENT and not folder.is_dir():
            fault, remedy = "it is gone", "put it back, or give another --results"
        elif code in FULL:
            fault, remedy = os.strerror(code), "make room"
        elif code in FAILING:
            fault, remedy = os.strerror(code), "make it writable, or give another --results"
        else:
            raise
        raise UserError(
            f"{folder} cannot be written ({fault}): {remedy}; then the same command with --resume goes on from what "
            f"was saved last"
        ) from error


def number_of(error: BaseException | None) -> int:
    """Of what the system said before others, gin for one, raised errors of their own in its place; 0 if nothing."""
    while error is not None:
        if isinstance(error, OSError) and error.errno:
            return error.errno
        error = error.__context__
    return 0
