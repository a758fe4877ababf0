"""What to tell a person whose disk is full, read-only or gone."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gin

from offpcc.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FAILING = (errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EACCES, errno.EPERM)

IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST)  # a folder where a file belongs, or the other way round
CLOSED = (
    "a file or a standard stream that the run writes to was closed by other code in its process (Bad file descriptor), "
    "such as the environment's; mend that, and the same command with --resume goes on"
)
GOES_ON, ANEW = "and the same command with --resume goes on", "or begin anew with another --results"


@contextmanager
def telling_of_faults(folder: Path) -> Iterator[None]:
    """Tell in one message that a run's folder cannot be written.

    Files are replaced as a whole, so that all that the folder held is as it was.

    Args:
        folder: the run's.

    Raises:
        UserError: a disk was at fault.
        OSError: something else was, or a file of somebody else's that may not be written.
    """
    try:
        yield
    except OSError as error:
        told = as_raised(error)
        code, elsewhere = told.errno or 0, file_elsewhere(told, folder)
        if code in FULL:
            fault, remedy = os.strerror(code), f"make room, {GOES_ON}"
        elif code == errno.EBADF:
            raise UserError(CLOSED) from error
        elif elsewhere is not None:
            raise
        elif code in IN_THE_WAY:
            place = told.filename2 or told.filename or folder
            raise UserError(
                f"{place} cannot be written ({os.strerror(code)}): move what is there away, {GOES_ON}"
            ) from error
        elif code == errno.ENOENT and not folder.is_dir():
            fault, remedy = "it is gone", f"put it back as it was, {GOES_ON}; {ANEW}"
        elif code in FAILING:
            fault, remedy = os.strerror(code), f"make it writable, {GOES_ON}; {ANEW}"
        else:
            raise
        raise UserError(f"{elsewhere or folder} cannot be written ({fault}): {remedy}") from error


def as_raised(error: OSError) -> OSError:
    """What the system said: gin raises errors of its own in the place of others, which lack number and file."""
    while getattr(vars(type(error)).get("__init__"), "__module__", None) == gin.utils.__name__:
        assert isinstance(error.__context__, OSError)
        error = error.__context__
    return error


def file_elsewhere(error: OSError, folder: Path) -> Path | None:
    """The file that an error names, if it is neither in the folder nor one of those that the folder lies in."""
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    file, kept = Path(os.fsdecode(error.filename)).absolute(), folder.absolute()
    return None if file.is_relative_to(kept) or kept.is_relative_to(file) else file
