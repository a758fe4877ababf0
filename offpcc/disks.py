"""What to tell a person whose disk is full, read-only or gone."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offpcc.errors import UserError, first_line

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
        OSError: something else was.
    """
    try:
        yield
    except OSError as error:
        gone = not folder.is_dir()
        if not gone and error.errno not in FULL + FAILING:
            raise
        fault = "the folder is gone" if gone else error.strerror or first_line(error)
        remedy = (
            "make room"
            if error.errno in FULL
            else "put it back, or give another --results"
            if gone
            else "make it writable, or give another --results"
        )
        raise UserError(
            f"{folder} cannot be written ({fault}), and what it held is unharmed: {remedy}, then the same command with "
            f"--resume goes on"
        ) from error
