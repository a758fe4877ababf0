"""Files that are either wholly the old ones or wholly the new ones, whenever the program is stopped."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
    temporary.unlink(missing_ok=True)  # in a folder from somebody else, a link that would be written through
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
