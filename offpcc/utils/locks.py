"""Lock on a run's folder: one process at a time."""

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path

from offpcc.utils.errors import UserError, first_line

UNSUPPORTED = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)  # on file systems without locks


class FolderInUseError(UserError):
    """Another process holds the lock."""


class FolderLock:
    """Lock that keeps other processes out of a folder, until `close` or until this process ends.

    The OS frees the lock when the process ends, even by SIGKILL, so no cleanup is necessary. The lock file alone does
    not mean that the folder is locked. It is never deleted: otherwise, one process could hold the deleted file while
    another one creates and locks a new file.

    Args:
        folder: the folder to lock.
        name: name of the lock file; locks of other names do not exclude each other.

    Attributes:
        message: a warning if the file system does not support locks, else None.
    """

    def __init__(self, folder: Path, name: str = ".lock") -> None:
        self.folder, self.file = folder, folder / name
        self.message: str | None = None
        self._opened: int | None = None

    def take_if_there(self) -> None:
        """Take the lock if its file exists; write nothing."""
        if os.path.lexists(self.file):
            self._take(os.O_RDWR)

    def take(self) -> None:
        """Take the lock and write the owner into its file.

        Raises:
            OSError: the file cannot be created or written.
        """
        if self._opened is None:
            self._take(os.O_RDWR | os.O_CREAT)
        if self._opened is not None:
            os.ftruncate(self._opened, 0)
            os.pwrite(self._opened, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _take(self, flags: int) -> None:
        try:
            opened = os.open(self.file, flags | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            if not os.path.lexists(self.file):  # the file was not created: the folder is at fault
                raise
            fault = error.strerror or first_line(error)
            raise UserError(
                f"{self.file} cannot be locked ({fault}); make it a file that you can write, remove it, or give "
                f"another --run_id"
            ) from error
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(opened, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(opened)
            raise FolderInUseError(
                f"{self.folder} is in use by {owner}; wait until it ends or stop it, or give another --run_id"
            ) from None
        except OSError as error:
            os.close(opened)
            if error.errno not in UNSUPPORTED:
                raise
            self.message = f"the file system of {self.folder} has no locks, so a second process could write there, too"
            return
        self._opened = opened

    def close(self) -> None:
        """Release the lock."""
        if self._opened is not None:
            with contextlib.suppress(OSError):  # an environment may have closed the file descriptor
                os.close(self._opened)
            self._opened = None
