"""Search and parsing of gin files.

Includes and imports are followed where they appear. This module binds nothing.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gin
from gin import config_parser

from offpcc.config.bindings import nearest_configurable
from offpcc.config.limits import MOST_BYTES, MOST_INCLUDING, Amount, check_name, check_strings, check_value
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import open_regular
from offpcc.utils.paths import PACKAGE, as_path, import_own, shown

CHECKOUT = None if (PACKAGE / "configs").is_dir() else PACKAGE.parent  # an installed wheel contains the configs
CONFIGS = CHECKOUT / "configs" if CHECKOUT else PACKAGE / "configs"
OF_RUNS = ("run.json", "progress.csv", "checkpoint.pt", "checkpoint_before.pt")  # a run's folder contains one of these
LONGEST_LINE = 200  # letters of a line that a message shows
UNKNOWN_REFERENCE = re.compile(r"No configurable matching reference '@([^'()]+)")  # in gin's error message


def find(name: str | Path, beside: Path | None = None) -> Path:
    """Return the path of a config file.

    The search order is: the path as given, the folder of the including file, the root of the repository, and configs/
    of the checkout or of the installed package.

    Raises:
        UserError: the file is in none of these places.
    """
    path = as_path(name, "the config", is_file=True)
    places = [Path(), *([beside] if beside else []), CONFIGS.parent, CONFIGS]
    for place in places:
        if (place / path).is_file():
            return place / path
    known = {str(file.relative_to(CONFIGS.parent)) for file in CONFIGS.rglob("*.gin")}
    wanted = path.name if path.suffix else f"{path.name}.gin"
    near = sorted(file for file in known if Path(file).name == wanted)
    near = near or difflib.get_close_matches(str(path), sorted(known), 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the ones that come along are below {CONFIGS}"
    kind = "" if not os.path.lexists(path) else ", for what is there is a folder, a device or a link to nothing"
    raise UserError(f"there is no config {str(name)!r}{kind}; {hint}")


def text_of(path: Path) -> str:
    """Return the text of a config.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise UserError(f"{path} has {size:,} bytes, too many for a config; name a gin file")
        with open_regular(path, "r", encoding="utf-8-sig") as file:
            text: str = file.read()
        return text
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a config ({first_line(error)}); name a gin file") from error


def is_of_run(path: Path) -> bool:
    """Check whether a config is the one in a run's folder, which may come from somebody else."""
    return path.name == "config.gin" and any(os.path.lexists(path.with_name(name)) for name in OF_RUNS)


def has_imports(path: Path) -> bool:
    """Check whether the config of a run imports modules; its resume command must then name them."""
    try:
        return re.search(r"^\s*(import|from)\s", text_of(path), re.MULTILINE) is not None
    except UserError:
        return False


def read_file(
    path: Path, including: tuple[Path, ...] = (), *, is_trusted: bool = True, amount: Amount | None = None
) -> Iterator[tuple[Any, str]]:
    """Yield the bindings of a config; see `read_text`.

    Args:
        path: path of the config.
        including: the configs that include this one, outermost first.
        is_trusted: see `read_text`.
        amount: see `read_text`.

    Raises:
        UserError: the config cannot be read, is malformed, is too large or includes itself, or an import fails.
    """
    if path.resolve() in including:
        raise UserError(f"{path} includes itself, by way of {including[-1]}; take one include out")
    if len(including) > MOST_INCLUDING:
        raise UserError(f"{path}: more than {MOST_INCLUDING} configs include each the next; put some into one")
    yield from read_text(text_of(path), path, (*including, path.resolve()), is_trusted=is_trusted, amount=amount)


def read_text(
    text: str,
    source: Path | str,
    including: tuple[Path, ...] = (),
    *,
    is_trusted: bool = True,
    amount: Amount | None = None,
) -> Iterator[tuple[Any, str]]:
    """Yield the bindings of a text as gin statements, each with its location; follow includes and imports.

    Args:
        text: in gin's syntax.
        source: the file that contains the text, or a name for another source, such as ``--gin``.
        including: see `read_file`.
        is_trusted: whether the text may include and import. If not, as for the config of a run, it may only import
            modules that are already imported.
        amount: bytes and statements read before, which count towards the limits; default none.

    Raises:
        UserError: the text is malformed or too large, or an include or an import fails or is refused.
    """
    amount = amount or Amount()
    for statement, where in statements(text, source, amount=amount):
        if isinstance(statement, config_parser.IncludeStatement):
            if not is_trusted:
                raise UserError(
                    f"{where}: include {shown(repr(statement.filename))}: a run's config, which may come from somebody "
                    f"else, includes nothing; name a config of your own with --config"
                )
            beside = source.parent if isinstance(source, Path) else None
            yield from read_file(find(statement.filename, beside), including, amount=amount)
        elif isinstance(statement, config_parser.ImportStatement):
            if not is_trusted and statement.module not in sys.modules:
                module = shown(statement.module)
                raise UserError(
                    f"{where}: import {module}: a run's config, which may come from somebody else, imports nothing; "
                    f"if you trust the module, add --import {module}, or name a config of your own with --config"
                )
            if is_trusted:
                import_own(statement.module, where, [path.parent for path in including])
            gin.parse_config(f"import {statement.module}")  # so that the operative config contains the import
        elif isinstance(statement, config_parser.BindingStatement):
            yield statement, where


def statements(
    text: str, source: Path | str, skip_unknown: bool = False, amount: Amount | None = None
) -> Iterator[tuple[Any, str]]:
    """Yield all statements of a text, each with its location.

    Args:
        text: in gin's syntax.
        source: see `read_text`.
        skip_unknown: whether to accept references to unknown names.
        amount: see `read_text`.

    Raises:
        UserError: the text is malformed or too large.
    """
    amount = amount or Amount()
    amount.add_bytes(len(text.encode(errors="replace")), source)
    check_strings(text, source)
    try:
        for statement in config_parser.ConfigParser(text, gin.config.ParserDelegate(skip_unknown)):
            where = _where(source, statement.location.line_num)
            amount.add_statement(where)
            if isinstance(statement, config_parser.BindingStatement):
                check_name(name_of(statement), where)
                check_value(statement.value, f"{where}: {name_of(statement)}")
            yield statement, where
    except SyntaxError as error:
        reason, where = error.msg.strip().splitlines()[-1].strip(), _where(source, error.lineno)
        line = shown(repr((error.text or text).strip()), LONGEST_LINE)
        raise UserError(
            f"{where}: {line} is not gin's syntax ({shown(reason, LONGEST_LINE)}); a value is a number, a string "
            f"in quotes, another of Python's literals such as True or None, or an @reference"
        ) from error
    except TypeError as error:  # from a dictionary with lists as keys
        raise UserError(
            f"{source}: {first_line(error)} in {shown(repr(text.strip()), LONGEST_LINE)}; a dictionary's keys are "
            f"numbers or strings"
        ) from error
    except (RecursionError, MemoryError) as error:
        raise UserError(
            f"{source}: brackets are nested too deeply in {shown(text.strip())}; write it plainly"
        ) from error
    except tokenize.TokenError as error:
        raise UserError(f"{source}: a bracket or a quotation has no end after {text.strip()[-40:]!r}") from error
    except ValueError as error:  # such as a reference to an unknown name
        reference = UNKNOWN_REFERENCE.search(reason := str(error).splitlines()[0])
        if reference is None:
            raise UserError(f"{source}: {reason} Correct it") from error
        raise UserError(
            f"{source}: nothing that gin can configure is called {reference[1]!r}; "
            f"{nearest_configurable(reference[1])} A class of your own needs the import of its module in the config"
        ) from error


def name_of(binding: Any) -> str:
    """Return the name that a statement binds, as the user wrote it, such as SAC.lr."""
    scope = f"{binding.scope}/" if binding.scope else ""
    return f"{scope}{binding.selector}{'.' if binding.arg_name else ''}{binding.arg_name or ''}"


def _where(source: Path | str, line: int | None) -> str:
    return f"{source}:{line}" if isinstance(source, Path) else source
