"""Atomic writing and safe opening of files, and messages about disks at fault."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gin

from offpcc.utils.errors import UserError

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: Path) -> None:
    """Refuse to open what is not a regular file on a disk; a link to one is fine.

    A process that opens a named pipe waits for another process, and what a device or a file of /proc holds may have no
    end. Signals are not heeded meanwhile.

    Raises:
        OSError: it is something else, or missing.
    """
    _refuse_others(path.stat(), path)


def _refuse_others(found: os.stat_result, path: str | Path) -> None:
    kind = KINDS.get(stat.S_IFMT(found.st_mode))
    # Files that the system makes up, such as /proc/kmsg, call themselves regular.
    if kind is None and not found.st_size and not os.statvfs(path).f_blocks:
        kind = "a file of the operating system's"
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind:
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file on a disk", str(path))


def open_regular(path: Path, mode: str = "rb", **options: Any) -> Any:
    """Open a file as `open` does, but only a regular one, see `check_regular`; nothing is waited for.

    Args:
        path: Of the file; one to write may be missing.
        mode: See `open`.
        options: See `open`.

    Raises:
        OSError: It is something else, or cannot be opened.
    """
    return open(path, mode, opener=_open_regular, **options)


def _open_regular(path: str, flags: int) -> int:
    # Looked at first: to open a device may already change something. Then again: it may be another by now.
    if not flags & os.O_CREAT or os.path.lexists(path):
        check_regular(Path(path))
    opened = os.open(path, flags | os.O_NONBLOCK, 0o666)
    try:
        if not flags & os.O_CREAT:
            _refuse_others(os.fstat(opened), path)
    except OSError:
        os.close(opened)
        raise
    return opened


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
    try:
        temporary.unlink(missing_ok=True)  # whatever it is: a writer would follow a link, or wait for a pipe
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
    with open_regular(path, "r", encoding="utf-8") as file:
        return json.load(file)


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
