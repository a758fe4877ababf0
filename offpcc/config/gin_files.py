"""Search and parsing of gin files.

Includes and imports are followed where they appear. This module binds nothing.
"""

import os
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gin
from gin import config_parser

from offpcc.config.bindings import unknown_configurable
from offpcc.utils.errors import UserError, first_line, similar
from offpcc.utils.paths import PACKAGE, as_path, import_own, shown
from offpcc.utils.rng import GLOBAL_LOCK

CHECKOUT = None if (PACKAGE / "configs").is_dir() else PACKAGE.parent  # an installed wheel contains the configs
CONFIGS = CHECKOUT / "configs" if CHECKOUT else PACKAGE / "configs"
RUN_FILES = ("run.json", "progress.csv", "checkpoint.pt", "checkpoint_before.pt")  # a run's folder has at least one
LONGEST_LINE = 200  # characters of a line in a message
MOST_BYTES = 2**18  # of a config; a larger file is no config, but perhaps data
MOST_INCLUDING = 20  # depth of includes
UNKNOWN_REFERENCE = re.compile(r"No configurable matching reference '@([^'()]+)")  # in gin's error message


def find_config(name: str | Path, folder: Path | None = None) -> Path:
    """Return the path of a config file.

    The search order is: the path as given, `folder`, which is that of the including file, the root of the repository,
    and configs/ of the checkout or of the installed package. The name may lack its ending, .gin.
    """
    path = as_path(name, "the config", is_file=True)
    places = [Path(), *([folder] if folder else []), CONFIGS.parent, CONFIGS]
    for place in places:
        for file in (place / path, place / f"{path}.gin"):
            if file.is_file():
                return file
    known = {str(file.relative_to(CONFIGS.parent)): file.stem for file in CONFIGS.rglob("*.gin")}
    own = path.parent if path.parent.is_dir() else Path()
    known |= {str(file): file.stem for file in own.glob("*.gin") if file.is_file()}
    wanted = path.stem if path.suffix == ".gin" else path.name
    stems = [wanted] if wanted in known.values() else similar(wanted, sorted(known.values()))
    near = sorted(name for name, stem in known.items() if stem in stems)[:3]
    is_elsewhere = not path.is_absolute() and not os.path.lexists(path)
    searched = " or ".join(str(place) for place in dict.fromkeys([folder or Path.cwd(), Path.cwd()]))
    searched = f"it is not in {searched}, so give its path; " if is_elsewhere else ""
    hint = f"did you mean {' or '.join(near)}?" if near else f"{searched}offpcc's configs are below {CONFIGS}"
    if "=" in str(name):
        raise UserError(
            f"{str(name)!r} is a binding, not a config; give bindings after the config: offpcc.configure(None, "
            f"{str(name)!r})"
        )
    kind = "" if not os.path.lexists(path) else " (this path is a folder, a device or a broken link)"
    raise UserError(f"there is no config {str(name)!r}{kind}; {hint}")


def read_config_text(path: Path) -> str:
    """Return the text of a config."""
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise UserError(f"{path} has {size:,} bytes, too many for a config; name a gin file")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a config ({first_line(error)}); name a gin file") from error


def is_of_run(path: Path) -> bool:
    """Check whether a config is in a run's folder. Then it may come from somebody else."""
    return path.name == "config.gin" and any(os.path.lexists(path.with_name(name)) for name in RUN_FILES)


def imports_of(config: str | Path | None, folder: Path | None = None, depth: int = 0) -> list[str]:
    """Return the modules that a config and its includes import; none if it cannot be read."""
    if not config or depth > MOST_INCLUDING:
        return []
    modules = list[str]()
    try:
        path = find_config(config, folder)
        for statement, _ in statements(read_config_text(path), path, skip_unknown=True):
            if isinstance(statement, config_parser.ImportStatement):
                modules.append(statement.module)
            elif isinstance(statement, config_parser.IncludeStatement):
                modules += imports_of(statement.filename, path.parent, depth + 1)
    except UserError:
        return []
    return list(dict.fromkeys(modules))


def read_config(path: Path, including: tuple[Path, ...] = (), *, is_trusted: bool = True) -> Iterator[tuple[Any, str]]:
    """Yield the bindings of a config; see `read_text`."""
    if path.resolve() in including:
        raise UserError(f"{path} includes itself, through {including[-1]}; remove one include")
    if len(including) > MOST_INCLUDING:
        raise UserError(f"{path}: includes are nested more than {MOST_INCLUDING} deep; merge some configs")
    yield from read_text(read_config_text(path), path, (*including, path.resolve()), is_trusted=is_trusted)


def read_text(
    text: str, source: Path | str, including: tuple[Path, ...] = (), *, is_trusted: bool = True
) -> Iterator[tuple[Any, str]]:
    """Yield the bindings of a text as gin statements, each with its location; follow includes and imports.

    `source` is the file that contains the text, or a name for another source, such as ``--gin``. A text that is not
    trusted, as the config of a run, may not include, and may only import modules that are already imported.
    """
    for statement, where in statements(text, source):
        if isinstance(statement, config_parser.IncludeStatement):
            if not is_trusted:
                raise UserError(
                    f"{where}: include {shown(repr(statement.filename))}: a run's config, which may come from somebody "
                    f"else, includes nothing; name a config of your own with --config"
                )
            folder = source.parent if isinstance(source, Path) else None
            try:
                included = find_config(statement.filename, folder)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            yield from read_config(included, including)
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


def statements(text: str, source: Path | str, skip_unknown: bool = False) -> Iterator[tuple[Any, str]]:
    """Yield all statements of a text, each with its location.

    Two threads parse in turns: before Python 3.11.8, `ast.literal_eval`, which gin calls, fails in two threads at once.
    """
    try:
        parser = config_parser.ConfigParser(text, gin.config.ParserDelegate(skip_unknown))
        while True:
            with GLOBAL_LOCK:
                statement = next(parser, None)
            if statement is None:
                return
            yield statement, _where(source, statement.location.line_num)
    except SyntaxError as error:
        reason, where = error.msg.strip().splitlines()[-1].strip(), _where(source, error.lineno)
        line = shown(repr((error.text or text).strip()), LONGEST_LINE)
        raise UserError(
            f"{where}: {line} is not gin's syntax ({shown(reason, LONGEST_LINE)}); a value is a number, a string "
            f"in quotes, another Python literal such as True or None, or an @reference"
        ) from error
    except TypeError as error:  # from a dictionary with lists as keys
        raise UserError(
            f"{source}: {first_line(error)} in {shown(repr(text.strip()), LONGEST_LINE)}; use only numbers or strings "
            f"as keys of a dictionary"
        ) from error
    except (RecursionError, MemoryError, tokenize.TokenError) as error:
        if not isinstance(error, tokenize.TokenError) or "nested" in str(error):  # the latter from Python 3.12 on
            raise UserError(
                f"{source}: brackets are nested too deeply in {shown(text.strip())}; use fewer brackets"
            ) from error
        raise UserError(
            f"{source}: a bracket or a quote is not closed after {text.strip()[-40:]!r}; close it"
        ) from error
    except ValueError as error:  # such as a reference to an unknown name
        reference = UNKNOWN_REFERENCE.search(reason := str(error).splitlines()[0])
        if reference is None:
            raise UserError(f"{source}: {reason} Correct it") from error
        raise unknown_configurable(str(source), reference[1]) from error


def find_bound_name(binding: Any) -> str:
    """Return the name that a statement binds, as the user wrote it, such as SAC.lr."""
    scope = f"{binding.scope}/" if binding.scope else ""
    return f"{scope}{binding.selector}{'.' if binding.arg_name else ''}{binding.arg_name or ''}"


def _where(source: Path | str, line: int | None) -> str:
    return f"{source}:{line}" if isinstance(source, Path) else source
