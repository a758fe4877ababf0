"""Atomic writes, and error messages for disk faults."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gin

from offpcc.utils.errors import UserError, first_line


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextmanager
def writing_to(file: Path) -> Iterator[None]:
    """Make the folder of a file that the user named; turn an `OSError` of the body into a `UserError`."""
    try:
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        fault = error.strerror or first_line(error)
        raise UserError(f"{file} cannot be written ({fault}); name a file elsewhere") from error


@contextmanager
def replacing(path: Path, before: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to; move it to `path` when it is complete.

    The temporary file is in the same folder, because a rename is atomic only within one file system. It keeps the
    suffix, because writers of images, videos and tensors choose the format from it. If the body raises, `path` does not
    change.

    Args:
        path: The file to write; its folder must exist.
        before: New name for the previous file; by default, the previous file is replaced. If the process is killed
            between the two renames, the previous file is at `before` and `path` does not exist.

    Yields:
        The temporary path.
    """
    temporary = path.with_name(f".{path.stem}.tmp-{os.getpid()}{path.suffix}")
    try:
        temporary.unlink(missing_ok=True)  # a writer would follow a link
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if before is not None and path.exists():
            path.replace(before)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # raise the original error, not one from this cleanup
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk where the system supports it; a power failure can undo a rename."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8; keep line ends unchanged."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def append_text(path: Path, text: str) -> None:
    """Append UTF-8 text to an existing file that is no link, and flush it to the disk."""
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    with os.fdopen(opened, "a", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(opened)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FAILING = (errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EACCES, errno.EPERM)

IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST)  # a folder in place of a file, or a file in place of a folder
RESUME, START = "and run the same command with --resume", "or start a new run with another --results"


@contextmanager
def explain_disk_errors(folder: Path, again: str = RESUME, elsewhere_too: str = f"; {START}") -> Iterator[None]:
    """Turn disk errors of a run's folder into one `UserError`.

    Files are replaced as a whole, so the folder keeps its previous contents.

    Args:
        folder: the run's folder.
        again: how the command goes on, for the message.
        elsewhere_too: what the user can do instead.

    Raises:
        UserError: the disk is at fault.
        OSError: another cause, or a file outside the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        cause = as_raised(error)
        code, elsewhere = cause.errno or 0, file_elsewhere(cause, folder)
        if code in FULL:
            fault, remedy = os.strerror(code), f"free disk space, {again}"
        elif elsewhere is not None:
            raise
        elif code in IN_THE_WAY:
            place = cause.filename2 or cause.filename or folder
            raise UserError(
                f"{place} cannot be written ({os.strerror(code)}): move that file or folder away, {again}"
            ) from error
        elif code == errno.ENOENT and not folder.is_dir():
            fault, remedy = "it does not exist any more", f"put it back as it was, {again}{elsewhere_too}"
        elif code in FAILING:
            fault, remedy = os.strerror(code), f"make it writable, {again}{elsewhere_too}"
        else:
            raise
        raise UserError(f"{elsewhere or folder} cannot be written ({fault}): {remedy}") from error


def as_raised(error: OSError) -> OSError:
    """Return the original system error; gin wraps errors in its own, which lack errno and file name."""
    while getattr(vars(type(error)).get("__init__"), "__module__", None) == gin.utils.__name__:
        assert isinstance(error.__context__, OSError)
        error = error.__context__
    return error


def file_elsewhere(error: OSError, folder: Path) -> Path | None:
    """Return the file that an error names; None if it names none, one in the folder, or a parent of the folder."""
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    file, kept = Path(os.fsdecode(error.filename)).absolute(), folder.absolute()
    return None if file.is_relative_to(kept) or kept.is_relative_to(file) else file
