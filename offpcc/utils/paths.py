"""Checks of paths and imports of modules that the user names."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from offpcc.utils.errors import UserError, first_line, format_error
from offpcc.utils.torch_settings import torch_settings_kept

SHOWN = 80  # characters of a path in a message


def as_path(given: str | Path, what: str = "", is_file: bool = False) -> Path:
    """Return a path of the user's with ~ expanded; `what` is the name of the option, for messages, such as ``--out``.

    If `is_file`, a slash at the end is refused, also if the folder exists.
    """
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"{what or 'a path'} is {shown(repr(given))}; it has to be the name of a file or a folder")
    name = f"{what} {shown(given)}".strip()
    has_slash, exists = str(given).endswith(("/", "/.")), True
    try:
        path = Path(given).expanduser()
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        exists = False
    except RuntimeError:  # from expanduser
        raise UserError(f"{name}: there is no such user on this machine; write the full path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise UserError(f"{name} is not a valid path ({reason}); give another one") from None
    if has_slash and exists and not path.is_dir():
        raise UserError(f"{name} ends in a slash, but is not a folder; remove the slash")
    if is_file and (has_slash or path.name in ("", "..")):
        raise UserError(f"{name} names a folder; name a file" + ", without a slash at the end" * has_slash)
    return path


def shown(given: str | Path, most: int = SHOWN) -> str:
    """Return a path for a message: cut after `most` letters, and quoted if it is empty or not printable."""
    text = str(given)
    if len(text) > most:
        text = f"{text[:most]}... ({len(text):,} letters)"
    return text if text.isprintable() and text else ascii(text)


def why_no_folder(folder: Path) -> str | None:
    """Return why a folder cannot be written or created, or None if it can."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        if not there.exists():
            return f"{shown(there)} is a broken link"
        if not there.is_dir():
            return f"{shown(there)} is a file, not a folder"
        if not os.access(there, os.W_OK | os.X_OK):
            return f"{shown(there)} cannot be written to"
    except (OSError, ValueError) as error:
        return first_line(error)
    return None


def refuse_link(path: Path) -> None:
    """Raise an error for a link: the folder may come from somebody else, and a write would go to another place."""
    if path.is_symlink():
        raise UserError(
            f"{path} is a link to {shown(path.readlink())}, but a run writes only into its own folder; replace the "
            f"link by its target, or remove it"
        )


def check_folder(path: Path, what: str) -> None:
    """Raise an error if a path is not a writable folder and cannot become one."""
    if fault := why_no_folder(path):
        raise UserError(f"{what} {shown(path)} cannot hold files: {fault}; name another folder")


PACKAGE = Path(__file__).resolve().parents[1]


def import_own(module: str, where: str, folders: Iterable[Path] = ()) -> None:
    """Import a module that the user named in `where`; search the working directory and `folders`, too.

    `sys.path` gets these folders only after the user has named a module. Otherwise, another package that tries an
    optional import could find a file of that name in a folder from somebody else.
    """
    searched = [Path.cwd().resolve(), *folders]
    for folder in searched:
        if folder != PACKAGE and str(folder) not in sys.path:
            sys.path.append(str(folder))
    try:
        with torch_settings_kept("it"):
            importlib.import_module(module)
    except UserError as error:
        raise UserError(f"{where}: import {module}: {error.message}") from error
    except ModuleNotFoundError as error:
        if module.endswith(".py"):
            raise UserError(f"{where}: import {module}: write the module's name without .py: {module[:-3]}") from error
        places = "in the working directory, beside the config, or installed; install it"
        if len(searched) == 1:
            places = "in the working directory or installed; install it, import it in a config beside it"
        raise UserError(
            f"{where}: import {module}: there is no module {error.name!r} {places}, or correct the name"
        ) from error
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = (
            f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else f"{last.filename}:{last.lineno}"
        )
        raise UserError(
            f"{where}: import {module} fails: {format_error(error)} ({place}); correct the module"
        ) from error
