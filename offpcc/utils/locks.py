"""A lock on a run's folder: one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

from offpcc.utils.errors import UserError, first_line

UNSUPPORTED = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)  # some network file systems have no locks


class FolderLock:
    """Keeps other processes out of a folder, for as long as this one lives or until `close`.

    The system lets go of it with its owner's last breath, so nothing is left to be cleaned up after a kill. Its file
    stays and means nothing by itself: removed, it could be held by one process and made anew by another.

    Args:
        folder: what is kept.

    Attributes:
        message: why there is no lock, where the file system has none; else None.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / ".lock"
        self.message: str | None = None
        self._opened: int | None = None

    def take_if_there(self) -> None:
        """Take the lock if its file is there, without writing anything.

        Raises:
            UserError: another process holds it, or its file is none that could be locked.
        """
        if os.path.lexists(self.file):
            self._take(os.O_RDWR)

    def take(self) -> None:
        """Take the lock, and say in its file who has it.

        Raises:
            UserError: another process holds it, or its file is none that could be locked.
            OSError: the file cannot be made or written.
        """
        if self._opened is None:
            self._take(os.O_RDWR | os.O_CREAT)
        if self._opened is not None:
            os.ftruncate(self._opened, 0)
            os.pwrite(self._opened, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _take(self, flags: int) -> None:
        try:
            opened = os.open(self.file, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except OSError as error:
            if not os.path.lexists(self.file):  # it could not be made: the folder is at fault
                raise
            raise self._unfit(error.strerror or first_line(error)) from error
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise self._unfit("it is a pipe or a device")
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(opened, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(opened)
            raise UserError(
                f"{self.folder} is in use by {owner}; wait for its end or stop it, or give another --run_id"
            ) from None
        except OSError as error:
            os.close(opened)
            if error.errno not in UNSUPPORTED:
                raise
            self.message = f"the file system of {self.folder} has no locks: nothing keeps a second process out of it"
            return
        self._opened = opened

    def _unfit(self, fault: str) -> UserError:
        """That what is in the lock's place cannot be locked."""
        return UserError(
            f"{self.file} cannot be locked ({fault}): it is to be a file that you can write; make it one or remove it, "
            f"or give another --run_id"
        )

    def close(self) -> None:
        """Let others in."""
        if self._opened is not None:
            with contextlib.suppress(OSError):  # an environment may have closed it
                os.close(self._opened)
            self._opened = None
