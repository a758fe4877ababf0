"""Checks of paths, and imports of modules, that a user names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line, named
from offpcc.utils.foreign import ForeignCall, MisuseError

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


PACKAGE = Path(__file__).resolve().parents[1]


def import_own(module: str, where: str, beside: Iterable[Path] = ()) -> None:
    """Import a module that a user named, from the working directory too, however the program was started.

    A folder can be imported from only once a user has named a module: other packages try to import what may not be
    installed, and would find a file of that name in a folder that came from elsewhere.

    Args:
        module: its name.
        where: it was named, for messages.
        beside: other folders in which it may lie.

    Raises:
        UserError: there is none, or it does not run to its end.
    """
    for folder in (Path.cwd().resolve(), *beside):
        if folder != PACKAGE and str(folder) not in sys.path:
            sys.path.append(str(folder))
    try:
        with ForeignCall():
            importlib.import_module(module)
    except UserError as error:
        raise UserError(f"{where}: import {module}: {error.message}") from error
    except ModuleNotFoundError as error:
        raise UserError(
            f"{where}: import {module}: there is no module {error.name!r} in the working directory, beside the "
            f"config, or installed; install what is missing, or correct the name"
        ) from error
    except signals.ANYTHING as error:
        signals.pass_on(error)
        if isinstance(error, MisuseError):
            raise UserError(f"{where}: import {module} {error.what}; {error.remedy}") from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = (
            f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else f"{last.filename}:{last.lineno}"
        )
        raise UserError(f"{where}: import {module} fails: {named(error)} ({place}); mend the module") from error
