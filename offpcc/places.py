"""Paths that a user gave: whether they can be, and whether something can be written there. Nothing is made."""

from __future__ import annotations

import os
from pathlib import Path

from offpcc.errors import UserError, first_line

SHOWN = 80  # letters of a path, in a message


def as_path(given: str | Path, what: str = "") -> Path:
    """A path as it was given, with ~ replaced.

    Args:
        given: by the user.
        what: it is, for messages, such as ``--out``.

    Raises:
        UserError: there can be nothing of this name.
    """
    told = f"{what} {shown(given)}".strip()
    try:
        path = Path(given).expanduser()
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return path
    except RuntimeError:  # of expanduser
        raise UserError(f"{told}: there is no such user here; write the home folder out") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise UserError(f"{told} cannot be a path ({reason}); give another one") from None
    if ends_in_slash(given) and not path.is_dir():
        raise UserError(f"{told} ends in a slash, as folders do, but there is no such folder; leave the slash out")
    return path


def ends_in_slash(given: str | Path) -> bool:
    """Whether a path, as a user wrote it, can name a folder alone."""
    return str(given).endswith(("/", "/."))


def shown(given: str | Path, most: int = SHOWN) -> str:
    """A path in a message: cut where it has more than `most` letters, in quotes where it would not be seen."""
    text = str(given)
    if len(text) > most:
        text = f"{text[:most]}... ({len(text):,} letters)"
    return text if text.isprintable() and text else ascii(text)


def why_no_folder(folder: Path) -> str | None:
    """Why there is no folder that can be written to, and none can be made; None if there is or can be."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        if not there.exists():
            return f"{shown(there)} is a link to nothing"
        if not there.is_dir():
            return f"{shown(there)} is a file, not a folder"
        if not os.access(there, os.W_OK | os.X_OK):
            return f"{shown(there)} cannot be written to"
    except (OSError, ValueError) as error:
        return first_line(error)
    return None


def refuse_link(path: Path) -> None:
    """Refuse a link in a folder that may have come from somebody else: what is written there would go elsewhere.

    Raises:
        UserError: it is one.
    """
    if path.is_symlink():
        raise UserError(
            f"{path} is a link to {shown(path.readlink())}, but a run writes into its own folder alone; put what it "
            f"leads to in its place, or remove the link"
        )


def check_folder(path: Path, what: str) -> None:
    """Refuse a folder that is none and cannot be made.

    Raises:
        UserError: naming `what` it is.
    """
    if fault := why_no_folder(path):
        raise UserError(f"{what} {shown(path)} can hold nothing: {fault}; name another folder")
