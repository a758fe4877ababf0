"""Reading gin files: where they are looked for, and bindings that would do nothing refused by name."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gin
from gin import config_parser

from offpcc.core import UserError

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = None if (PACKAGE / "configs").is_dir() else PACKAGE.parent  # a wheel has the configs inside
CONFIGS = CHECKOUT / "configs" if CHECKOUT else PACKAGE / "configs"
COMMAND_LINE = "--gin"
MACRO = "gin.macro"
# What launch.py and the library pass themselves, by family; gin sets hyper-parameters only.
PASSED = {
    "ActorCritic": {"observation_space", "action_space", "device", "seed"},
    "BufferBase": {"observation_space", "action_space", "device", "seed"},
    "ReplayBuffer": {"num_steps"},
    "Encoder": {"shape"},
}


class Binding(NamedTuple):
    """One line of a gin file or of the command line."""

    scope: str
    selector: str  # the complete one, such as offpcc.algorithms.sac.SAC
    parameter: str
    given: str  # as the user wrote it, such as SAC.lr
    where: str  # "FILE:LINE" or "--gin"


def find(name: str | Path, beside: Path | None = None) -> Path:
    """The config file of this name.

    Looked for as given, then beside the file that includes it, then from the repository's root, then below
    configs/ of the checkout or the installed package.

    Raises:
        UserError: it is in none of these places.
    """
    path = Path(name).expanduser()
    places = [Path(), *([beside] if beside else []), CONFIGS.parent, CONFIGS]
    for place in places:
        if (place / path).is_file():
            return place / path
    known = {str(file.relative_to(CONFIGS.parent)) for file in CONFIGS.rglob("*.gin")}
    wanted = path.name if path.suffix else f"{path.name}.gin"
    near = sorted(file for file in known if Path(file).name == wanted)
    near = near or difflib.get_close_matches(str(path), sorted(known), 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the ones that come along are below {CONFIGS}"
    raise UserError(f"there is no config {str(name)!r}; {hint}")


def load(file: str | Path | None, command_line: list[str]) -> list[Binding]:
    """Forget what gin knew, then read a config and bindings from the command line, which win.

    Raises:
        UserError: a file is missing or malformed, or a binding names a class or parameter that does not exist.
    """
    gin.clear_config()
    make_importable(Path.cwd())
    bindings = _read_file(find(file)) if file else []
    for text in command_line:
        if "=" not in text:
            raise UserError(f'{COMMAND_LINE} {text!r} is no binding; write it as {COMMAND_LINE} "SAC.lr=1e-4"')
        bindings += _read_text(text, COMMAND_LINE, None)
    return bindings


def make_importable(folder: Path) -> None:
    """Modules in `folder` can be imported, however the program was started."""
    folder = folder.resolve()
    if folder != PACKAGE and str(folder) not in sys.path:
        sys.path.append(str(folder))


def _read_file(path: Path, including: tuple[Path, ...] = ()) -> list[Binding]:
    if path.resolve() in including:
        raise UserError(f"{path} includes itself, by way of {including[-1]}; take one include out")
    make_importable(path.parent)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a config: {error}") from error
    return _read_text(text, str(path), path.parent, (*including, path.resolve()))


def _read_text(text: str, source: str, folder: Path | None, including: tuple[Path, ...] = ()) -> list[Binding]:
    bindings: list[Binding] = []
    for statement, line in _statements(text, source):
        where = source if source == COMMAND_LINE else f"{source}:{line}"
        if isinstance(statement, config_parser.IncludeStatement):
            bindings += _read_file(find(statement.filename, folder), including)
        elif isinstance(statement, config_parser.ImportStatement):
            _import(statement.module, where)
        elif isinstance(statement, config_parser.BindingStatement):
            bindings += _bind(statement, where)
    return bindings


def _statements(text: str, source: str) -> Iterator[tuple[Any, int]]:
    """Statements with their lines; what gin finds malformed becomes one clear message."""
    line = 1
    try:
        for statement in config_parser.ConfigParser(text, gin.config.ParserDelegate()):
            line = statement.location.line_num
            yield statement, line
    except SyntaxError as error:
        at = source if source == COMMAND_LINE else f"{source}:{error.lineno}"
        raise UserError(
            f"{at}: {(error.text or text).strip()!r} is not gin's syntax ({error.msg.strip()}); values are Python's "
            f"literals, strings in quotes, or @references"
        ) from error
    except ValueError as error:  # a reference to what does not exist
        reason = str(error).splitlines()[0]
        name = reason.split("'")[1] if "'" in reason else ""
        raise UserError(f"{source}: {reason} {_nearest(name, _configurables())}") from error


def _import(module: str, where: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{where}: import {module}: there is no module {error.name!r} in the working directory, beside the "
            f"config, or installed"
        ) from error
    gin.parse_config(f"import {module}")  # so that the operative config has it


def _bind(statement: Any, where: str) -> list[Binding]:
    scope, selector, parameter = statement.scope, statement.selector, statement.arg_name
    if not parameter:
        macro = f"{scope}/{selector}" if scope else selector
        gin.bind_parameter((macro, MACRO, "value"), statement.value)
        return [Binding(macro, MACRO, "value", macro, where)]
    given = f"{scope}/{selector}.{parameter}" if scope else f"{selector}.{parameter}"
    names = _configurables()
    matches = [name for name in names if name == selector or name.endswith(f".{selector}")]
    if not matches:
        short = sorted({name.split(".")[-1] for name in names})
        raise UserError(
            f"{where}: {given}: nothing that gin can configure is called {selector!r}; "
            f"{_nearest(selector, short)} A class of your own needs the import of its module in the config"
        )
    function = names[matches[0]]
    allowed, passed = parameters(function), passed_by_us(function)
    if parameter in allowed & passed:
        raise UserError(f"{where}: {given}: {parameter} is set by the command line, not by gin; take it out")
    if parameter not in allowed:
        raise UserError(
            f"{where}: {given}: {selector} has no parameter {parameter!r}; "
            f"{_nearest(parameter, sorted(allowed - passed))}"
        )
    try:
        gin.bind_parameter((scope, selector, parameter), statement.value)
    except ValueError as error:
        raise UserError(f"{where}: {given}: {str(error).splitlines()[0]}") from error
    complete = gin.config.ParsedBindingKey.parse((scope, selector, parameter)).complete_selector
    return [Binding(scope or "", complete, parameter, given, where)]


def _configurables() -> dict[str, Any]:
    """What gin can configure, by complete name."""
    registry = gin.config._REGISTRY._selector_map
    return {name: entry.wrapped for name, entry in registry.items() if not name.startswith("gin.")}


def parameters(function: Any) -> set[str]:
    """Names that `function`, or a class with all its ancestors, takes; ``**kwargs`` go on to the next ancestor."""
    if not inspect.isclass(function):
        return {p.name for p in inspect.signature(function).parameters.values() if p.kind not in VARIADIC}
    names: set[str] = set()
    for cls in function.__mro__:
        if "__init__" not in cls.__dict__ or cls is object:
            continue
        signature = inspect.signature(cls.__dict__["__init__"])
        names |= {p.name for p in list(signature.parameters.values())[1:] if p.kind not in VARIADIC}
        if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
            break
    return names


def passed_by_us(function: Any) -> set[str]:
    """Parameters that are not gin's to set."""
    ancestors = function.__mro__ if inspect.isclass(function) else ()
    return set().union(*(PASSED.get(cls.__name__, set()) for cls in ancestors))


VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(list(known)[:40])}."


def check_effects(bindings: list[Binding]) -> None:
    """Refuse bindings that did nothing, once all that the run uses has been built.

    In files, a class that takes no part in the run may be bound (shared configs), and a child's binding may
    override its parent's. On the command line every binding must do something.

    Raises:
        UserError: naming the binding.
    """
    operative = gin.config._OPERATIVE_CONFIG
    taking_part = {selector for _, selector in operative}
    classes = _configurables()
    for binding in bindings:
        if _is_used(binding, operative):
            continue
        if binding.selector == MACRO:
            if binding.where == COMMAND_LINE or not _is_referenced(binding.scope):
                near = [f"{name.split('.')[-1]}.{binding.given}" for name in sorted(taking_part - {MACRO})]
                near = [name for name in near if _is_parameter(name)]
                hint = f"did you mean {' or '.join(near)}?" if near else "a binding names its class, as in SAC.lr"
                raise UserError(f"{binding.where}: {binding.given} has no effect: it names no class; {hint}")
            continue
        if binding.where != COMMAND_LINE and (
            binding.selector not in taking_part or _overridden(binding, bindings, classes, taking_part)
        ):
            continue
        name = binding.selector.split(".")[-1]
        parts = sorted(s.split(".")[-1] for s in taking_part - {MACRO})
        reason = (
            f"{name} takes part in this run, but got {binding.parameter} from elsewhere"
            if binding.selector in taking_part
            else f"{name} takes no part in this run, which uses {', '.join(parts)}"
        )
        raise UserError(f"{binding.where}: {binding.given} has no effect: {reason}; correct it or take it out")


def _is_used(binding: Binding, operative: dict[tuple[str, str], dict[str, Any]]) -> bool:
    """Whether the bound class got the value: in the binding's scope, or in one inside it."""
    return any(
        selector == binding.selector
        and binding.parameter in given
        and (not binding.scope or scope == binding.scope or scope.startswith(f"{binding.scope}/"))
        for (scope, selector), given in operative.items()
    )


def _is_referenced(macro: str) -> bool:
    """Whether the value of any binding refers to `macro`, also of a class that takes no part."""
    bound = [value for given in gin.config._CONFIG.values() for value in given.values()]
    return any(re.search(rf"%{re.escape(macro)}(?![\w/.])", repr(value)) for value in bound)


def _is_parameter(name: str) -> bool:
    selector, parameter = name.split(".")
    return any(
        parameter in parameters(function) - passed_by_us(function)
        for complete, function in _configurables().items()
        if complete.endswith(f".{selector}")
    )


def _overridden(binding: Binding, bindings: list[Binding], classes: dict[str, Any], taking_part: set[str]) -> bool:
    cls = classes[binding.selector]
    return any(
        other.parameter == binding.parameter
        and other.selector != binding.selector
        and other.selector in taking_part
        and inspect.isclass(cls)
        and inspect.isclass(classes[other.selector])
        and issubclass(classes[other.selector], cls)
        for other in bindings
    )


def operative() -> str:
    """The bindings and defaults in use, as a gin file that does the same again."""
    text: str = gin.operative_config_str(max_line_length=100)
    return text


def values(text: str) -> dict[str, str]:
    """A config's bindings, flat, for comparison."""
    return {
        f"{s.scope + '/' if s.scope else ''}{s.selector}{'.' if s.arg_name else ''}{s.arg_name}": repr(s.value)
        for s, _ in _statements(text, "config.gin")
        if isinstance(s, config_parser.BindingStatement)
    }


def results_folder(given: str | None) -> Path:
    """Where runs go: as given, else $OFFPCC_RESULTS, else results/ beside offpcc/ in a checkout, else ./results."""
    if given or os.environ.get("OFFPCC_RESULTS"):
        return Path(given or os.environ["OFFPCC_RESULTS"]).expanduser()
    return (CHECKOUT or Path.cwd()) / "results"


def anticipate(function: Any) -> dict[str, Any]:
    """What gin will give `function` when it is called, taken into the operative config at once.

    Raises:
        UserError: a value that has no default is not bound.
    """
    selector = gin.config._inverse_lookup(function).selector
    signature = inspect.signature(function)
    settings = {name: p.default for name, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY}
    settings |= gin.get_bindings(function)
    missing = [name for name, value in settings.items() if value is gin.REQUIRED]
    if missing:
        name = f"{selector.split('.')[-1]}.{missing[0]}"
        raise UserError(f'{name} is not set: bind it in the config, include one of configs/, or add --gin "{name}=..."')
    gin.config._OPERATIVE_CONFIG.setdefault(("", selector), {}).update(settings)
    return settings
