"""Importing a user's module: whatever it does when it is imported ends in one message."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from offpcc import signals
from offpcc.errors import UserError, named
from offpcc.foreign import ForeignCall, MisuseError

PACKAGE = Path(__file__).resolve().parent


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
