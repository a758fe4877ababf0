"""Loading of gin configs and bindings, and text of the values in use."""

import functools
import hashlib
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gin
import numpy as np
from gin import config_parser

from offpcc.config import gin_private
from offpcc.config.bindings import (
    COMMAND_LINE,
    GIN,
    MACRO,
    Binding,
    Reference,
    as_references,
    check_flags,
    check_references,
    configurables,
    is_known_value,
    nearest_parameter,
    parameters,
    passed_by_us,
    references_in,
    unknown_configurable,
)
from offpcc.config.gin_files import (
    CHECKOUT,
    find_bound_name,
    find_config,
    is_of_run,
    read_config,
    read_config_text,
    read_text,
    statements,
)
from offpcc.config.validation import format_value
from offpcc.utils.errors import UserError, first_line, print_to_stderr
from offpcc.utils.paths import as_path, import_own, shown
from offpcc.utils.rng import GLOBAL_LOCK

Used = dict[tuple[str, str], dict[str, Any]]  # values in use, by scope and configurable

LOCK = GLOBAL_LOCK  # gin has only one record of used values, so threads build one after the other
IMPORT = "--import"
IN_PYTHON = "offpcc.configure"
LONGEST_VALUE = 1_000  # characters of a value; a longer value is compared by a digest
EXAMPLES = {  # example of a binding, by the source of the binding
    COMMAND_LINE: f'{COMMAND_LINE} "SAC.lr=1e-4"',
    IN_PYTHON: f'{IN_PYTHON}(FILE, "SAC.lr = 1e-4", "SAC.gamma = 0.9")',
}


class Config(NamedTuple):
    """Bindings of gin, and their source."""

    text: str  # all bindings, as gin writes them
    file: str | Path | None = None
    given: tuple[str, ...] = ()  # from the command line or from Python
    given_in: str = COMMAND_LINE
    bindings: tuple[Binding, ...] = ()

    @property
    def source(self) -> str:
        """The source of the bindings, as text for messages."""
        return " and ".join([*filter(None, [str(self.file or "")]), *([self.given_in] if self.given else [])])


_loaded = Config("")  # by the last call of `load_gin_config`


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold `LOCK`; also a decorator."""
    with LOCK:
        yield


@contextmanager
def same_bindings() -> Iterator[None]:
    """Hold `LOCK`, and restore gin's bindings and its values in use at the end."""
    global _loaded
    tables = (gin_private.CONFIG, gin_private.OPERATIVE_CONFIG)
    with LOCK:
        loaded, imports = _loaded, set(gin_private.IMPORTS)
        before = [{key: dict(given) for key, given in table.items()} for table in tables]
        try:
            yield
        finally:
            gin.clear_config()
            for table, known in zip(tables, before, strict=True):
                table.update(known)
            gin_private.IMPORTS.update(imports)
            _loaded = loaded


def current() -> Config:
    """Return gin's current bindings. If code other than `load_gin_config` has changed them, their source is unknown."""
    text: str = gin.config_str()
    return _loaded if _loaded.text == text else Config(text)


def load_gin_config(
    file: str | Path | None,
    given: Sequence[str],
    *,
    given_in: str = COMMAND_LINE,
    modules: Sequence[str] = (),
    is_trusted: bool = True,
) -> list[Binding]:
    """Clear gin's state, then read a config and extra bindings; the extra bindings, `given`, win.

    They come from the command line or from Python, as `given_in` says for messages. `modules` are imported before the
    config is read. Only a config that is trusted may include and import; that in a run's folder never may, because it
    may come from somebody else.
    """
    gin.clear_config()
    for module in modules:
        import_own(module, IMPORT)
        gin.parse_config(f"import {module}")  # so that the operative config contains the import
    path = find_config(file) if file else None
    is_trusted = is_trusted and path is not None and not is_of_run(path)
    bindings = _bind_all(read_config(path, is_trusted=is_trusted)) if path else []
    known: set[tuple[str, str, str]] = set()
    for text in given:
        if not isinstance(text, str) or "=" not in text:
            fault = f"{given_in}: {shown(repr(text))} is not a binding"
            raise UserError(f"{fault}; write each binding as a separate string, as in {EXAMPLES[given_in]}")
        for binding in _bind_all(read_text(text, given_in)):
            if binding[:3] in known:
                raise UserError(f"{given_in}: {binding.given} is given twice; remove one")
            known.add(binding[:3])
            bindings.append(binding)
    _remember(Config(gin.config_str(), file, tuple(given), given_in, tuple(bindings)))
    return bindings


def _remember(loaded: Config) -> None:
    """Check the bindings that were loaded, and remember them for `current`."""
    check_references(loaded.bindings)
    check_flags(loaded.bindings)
    global _loaded
    _loaded = loaded


def load_text(text: str, source: str) -> None:
    """Clear gin's state, then read the text of a config that may come from somebody else: it imports nothing."""
    gin.clear_config()
    bindings = _bind_all(read_text(text, source, is_trusted=False))
    _remember(Config(gin.config_str(), source, bindings=tuple(bindings)))


def load_for_actor(file: str | Path | None, run: Path, modules: Sequence[str] = (), own: Sequence[str] = ()) -> None:
    """Read a config, if one is given, the environment's bindings from the config of a run, and extra bindings.

    The environment's bindings are those of `make` and `episodes`, and of everything that they refer to. The run's
    config imports nothing: a folder from somebody else must not choose what code runs. The extra bindings, `own`, are
    those of the command line, and win.
    """
    bindings = load_gin_config(file, own, modules=modules)
    given = plain_values(current().text)
    if not os.path.lexists(run):
        return
    known = [
        (_complete(statement.selector) if statement.arg_name else statement.selector, statement, where)  # else a macro
        for statement, where in _bindings_in(read_config_text(run), run)
    ]
    wanted, reached = {_complete("make"), _complete("episodes")}, set[str]()
    while wanted:
        selector = wanted.pop()
        reached.add(selector)
        for bound, statement, where in known:
            if bound != selector:
                continue
            for reference in references_in(statement.value):
                if isinstance(reference, gin_private.UnknownReference):
                    raise UserError(
                        f"{run}: the run's environment needs {reference.selector!r}, which is not known here; if "
                        f"you trust the module that defines it, add --import MODULE, or --config with its import"
                    )
                is_macro = reference.selector == MACRO
                wanted.add(reference.config_key[0] if is_macro else _complete(reference.selector))
            bindings.append(_bind(statement, where))
        wanted -= reached
    for text in own:  # again, as the run's bindings may have replaced them
        _bind_all(read_text(text, COMMAND_LINE))
    _remember(Config(gin.config_str(), file, tuple(own), COMMAND_LINE, tuple(bindings)))
    used = plain_values(current().text)
    for name, value in given.items():
        if used.get(name, value) != value:  # the run's binding replaced it
            print_to_stderr(
                f"note: {file} binds {name} = {value}, but the environment is that of the run, which has {used[name]}; "
                f"in Python, offpcc.evaluate takes an environment of your own"
            )


def _bindings_in(text: str, source: Path | str) -> Iterator[tuple[Any, str]]:
    """Yield the statements of a config that bind values, each with its location; they may refer to unknown names."""
    for statement, where in statements(text, source, skip_unknown=True):
        if isinstance(statement, config_parser.BindingStatement):
            yield statement, where


def _complete(selector: str) -> str:
    matches = [name for name in configurables() if f".{name}".endswith(f".{selector}")]
    return matches[0] if matches else selector


def _bind_all(given: Iterable[tuple[Any, str]]) -> list[Binding]:
    """Bind the statements in order; a name that an import defines is known only after that import."""
    return [_bind(statement, where) for statement, where in given]


def _bind(statement: Any, where: str) -> Binding:
    scope, selector, parameter = statement.scope, statement.selector, statement.arg_name
    given = find_bound_name(statement)
    _check_references_in(statement.value, f"{where}: {given}")
    if not parameter:
        gin.bind_parameter((given, MACRO, "value"), statement.value)
        return Binding(given, MACRO, "value", given, where)
    function = configurables().get(_complete(selector))
    if function is None:
        raise unknown_configurable(f"{where}: {given}", selector)
    allowed, passed = parameters(function), passed_by_us(function)
    if parameter in allowed & passed:
        raise UserError(f"{where}: {given}: {parameter} is passed by offpcc itself, not by gin; remove it")
    if parameter not in allowed:
        raise UserError(
            f"{where}: {given}: {selector} has no parameter {parameter!r}; {nearest_parameter(parameter, function)}"
        )
    try:
        gin.bind_parameter((scope, selector, parameter), statement.value)
    except ValueError as error:
        raise UserError(f"{where}: {given}: {str(error).splitlines()[0]}") from error
    complete = gin.config.ParsedBindingKey.parse((scope, selector, parameter)).complete_selector
    return Binding(scope or "", complete, parameter, given, where)


def _check_references_in(value: Any, where: str) -> None:
    """Refuse references that gin cannot build, and references to gin's own names.

    ``@Recurrent()`` instead of ``@Recurrent`` is refused, because gin does not have the arguments that offpcc passes.
    Of gin's own names, only macros and constants are accepted, which configs write as %NAME. A singleton needs a
    binding that `_bind` refuses.
    """
    for part in gin.config.iterate_references(value):
        if part.config_key[1].startswith(f"{GIN}.") and not (part.evaluate and is_known_value(part)):
            raise UserError(
                f"{where} is @{part.scoped_selector}, one of gin's own names; name a class of offpcc or of your own"
            )
        if part.evaluate and passed_by_us(part.configurable.wrapped):
            raise UserError(
                f"{where} is {part}, which offpcc builds itself; write {repr(part).removesuffix('()')} without "
                f"parentheses"
            )


def operative() -> str:
    """Return the bindings and defaults in use, as a gin file that reproduces them."""
    text: str = gin.operative_config_str(max_line_length=100)
    return text


def values(text: str) -> dict[str, str]:
    """Return the bindings of a config by name, as gin writes them; they may refer to unknown names."""
    return {name: repr(value) for name, value in _values_in(text)}


def typed_values(text: str) -> dict[str, int | float | str]:
    """Return the bindings of a config by name: numbers and strings as they are, and other values as gin writes them."""
    found = _values_in(text)
    return {name: value if isinstance(value, int | float | str) else repr(value) for name, value in found}


def _values_in(text: str) -> Iterator[tuple[str, Any]]:
    for statement, _ in _bindings_in(text, Path("config.gin")):
        yield find_bound_name(statement), _with_known_names(statement.value)


class _Name(str):
    """The name of an unknown class, which is written without quotes."""

    __repr__ = str.__str__


def _with_known_names(value: Any) -> Any:
    """Return a value with the name @NAME in place of each reference to an unknown class."""
    if isinstance(value, gin_private.UnknownReference):
        return _Name(f"@{value.selector}{'()' * value.evaluate}")
    if isinstance(value, list | tuple):
        return type(value)(map(_with_known_names, value))
    if isinstance(value, dict):
        return {key: _with_known_names(item) for key, item in value.items()}
    return value


def plain_values(text: str, source: Path | str = "config.gin") -> dict[str, str]:
    """Return the bindings of a config by name, as text for comparison; macros are replaced by their values."""
    bound, macros = dict[str, Any](), dict[str, Any]()
    for statement, _ in _bindings_in(text, source):
        (bound if statement.arg_name else macros)[find_bound_name(statement)] = statement.value
    written = dict[str, str]()
    return {name: write_plainly(value, macros, written) for name, value in bound.items()}


def write_plainly(value: Any, macros: Mapping[str, Any] | None = None, written: dict[str, str] | None = None) -> str:
    """Return a value as text; lists and tuples give the same text."""
    macros, written = macros or {}, {} if written is None else written
    if isinstance(value, list | tuple):
        text = f"({', '.join(write_plainly(item, macros, written) for item in value)}{',' * (len(value) == 1)})"
    elif isinstance(value, dict):
        items = sorted(f"{key!r}: {write_plainly(item, macros, written)}" for key, item in value.items())
        text = f"{{{', '.join(items)}}}"
    elif isinstance(value, gin_private.UnknownReference):
        text = f"@{value.selector}{'()' * value.evaluate}"
    elif isinstance(value, gin.config.ConfigurableReference) and value.selector == MACRO:
        macro = value.config_key[0]
        if macro not in written:
            written[macro] = f"%{macro}"  # used if the macro refers to itself
            written[macro] = write_plainly(macros[macro], macros, written) if macro in macros else f"%{macro}"
        text = written[macro]
    else:
        text = repr(value)
    if len(text) <= LONGEST_VALUE:
        return text
    return f"{text[:40]}... {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def results_folder(given: str | None) -> Path:
    """Return the folder for runs: `given`, else $OFFPCC_RESULTS, else results/ of the checkout, else ./results."""
    if given or os.environ.get("OFFPCC_RESULTS"):
        return as_path(given or os.environ["OFFPCC_RESULTS"], "--results" if given else "OFFPCC_RESULTS")
    return (CHECKOUT or Path.cwd()) / "results"


def named_in_results(given: str | Path) -> str:
    """Return where a path below results/ that does not exist is in `results_folder`, as a remedy; "" if nowhere."""
    path = Path(given)
    if path.parts[:1] != ("results",) or path.exists():
        return ""
    there = results_folder(None).joinpath(*path.parts[1:])
    by = "by OFFPCC_RESULTS" if os.environ.get("OFFPCC_RESULTS") else "by default"
    return f"give {there}: {by}, runs are in {results_folder(None)}" if there.exists() else ""


def take_used() -> Used:
    """Return the values in use, and forget them."""
    used = {key: dict(given) for key, given in gin_private.OPERATIVE_CONFIG.items()}
    gin_private.OPERATIVE_CONFIG.clear()
    return used


def used_values(used: Used) -> dict[str, str]:
    """Return values in use by the names of their bindings, as text for comparison."""
    return {
        f"{selector.rpartition('.')[2]}.{name}": write_plainly(value)
        for (scope, selector), given in used.items()
        if not scope
        for name, value in given.items()
    }


def recall_used(used: Used) -> None:
    """Replace the values in use by those that `take_used` returned."""
    gin_private.OPERATIVE_CONFIG.clear()
    gin_private.OPERATIVE_CONFIG.update({key: dict(given) for key, given in used.items()})


def add_used(function: Any, given: Mapping[str, Any]) -> list[Binding]:
    """Add arguments to the values in use, for `operative`; return them as bindings, which win over files."""
    if (known := gin_private.inverse_lookup(function)) is None:  # a class that is not registered
        return []
    selector = known.selector
    gin_private.OPERATIVE_CONFIG.setdefault(("", selector), {}).update(given)
    short = selector.rpartition(".")[2]
    return [Binding("", selector, name, f"{short}.{name}", "in Python") for name in given]


def add_bindings_used(bindings: Mapping[str, Any]) -> None:
    """Add bindings by their names, perhaps with scopes, to the values in use."""
    for binding, value in bindings.items():
        scoped, _, name = binding.rpartition(".")
        scope, _, selector = scoped.rpartition("/")
        complete = _complete(selector)
        gin_private.OPERATIVE_CONFIG.setdefault((scope, complete), {})[name] = value


def bindings_of(function: Any) -> dict[str, Any]:
    """Return gin's bindings of a class or function, with references as they are; none if it is not registered."""
    if (known := gin_private.inverse_lookup(function)) is None:
        return {}
    return dict(gin.get_bindings(known.selector, resolve_references=False))


def bound_value(function: Any, parameter: str) -> Any:
    """Return the value that is bound to a parameter of a class, or of one that it inherits from, else None."""
    for owner in getattr(function, "__mro__", (function,)):
        if gin_private.inverse_lookup(owner) is not None and parameter in (bound := gin.get_bindings(owner)):
            return bound[parameter]
    return None


def with_names(value: Any) -> Any:
    """Return a value with gin's reference @NAME in place of each registered class, also in a list."""
    if type(value) in (list, tuple):
        return type(value)(with_names(item) for item in value)
    if isinstance(value, Reference):
        return gin.config.ConfigurableReference(value.selector, False)
    known = gin_private.inverse_lookup(value) if callable(value) else None
    return value if known is None else gin.config.ConfigurableReference(known.selector, False)


def python_bindings(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of Python as gin writes them: values by the names of their bindings.

    A `functools.partial` in a list gets a scope of its own, with a binding for each of its arguments.
    """
    bindings = dict[str, Any]()
    for name, value in given.items():
        if isinstance(value, list | tuple):
            value = as_references(f"{owner}.{name}", value)
            scoped = [one for one in value if isinstance(one, Reference) and "/" in one.selector]
            bindings |= {f"{one.selector}.{key}": with_names(of) for one in scoped for key, of in one.arguments.items()}
        bindings[f"{owner}.{name}"] = with_names(value)
    return bindings


def python_numbers(value: Any) -> Any:
    """Return a value with numbers of Python in place of NumPy's, which gin cannot write."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {name: python_numbers(item) for name, item in value.items()}
    if isinstance(value, functools.partial):
        return functools.partial(value.func, *value.args, **python_numbers(value.keywords))
    return type(value)(map(python_numbers, value)) if type(value) in (list, tuple) else value


def is_writable(value: Any) -> bool:
    """Check whether gin can write a value into the config of a run."""
    return bool(gin_private.is_literally_representable(value))


def check_writable(bindings: Mapping[str, Any]) -> None:
    """Raise if gin cannot write one of the bindings, which have names such as ``SAC.lr``, into the config of a run."""
    for binding, value in bindings.items():
        if not is_writable(value):
            of_list = isinstance(value, list | tuple)
            one = next((one for one in value if not is_writable(one)), value) if of_list else value
            known = gin_private.inverse_lookup(type(one))
            advice = "decorate its class with offpcc.configurable"
            fault = f"{'holds' if of_list else 'is'} {format_value(one)}, which"
            if binding == "make.wrappers":
                advice = "decorate each with offpcc.configurable, or apply them in a function that you give as env"
            elif (
                isinstance(value, functools.partial)
                and value.keywords
                and not value.args
                and gin_private.inverse_lookup(value.func) is not None
            ):
                cls = value.func.__name__
                bound = " and ".join(f'"{cls}.{key}=..."' for key in value.keywords)
                advice = f"add {bound} to your call of offpcc.configure, and give {cls} itself"
            elif isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
                advice = f"give its name, {np.dtype(value).name!r}"
            elif inspect.isfunction(one) and binding == "build.callbacks":
                advice = "give it by callbacks= of train or of offpcc.fit, or decorate it with offpcc.configurable"
            elif inspect.isfunction(one):
                advice = "decorate the function with offpcc.configurable; a lambda cannot be decorated"
            elif known is not None and of_list:
                advice = f"give the class {type(one).__name__} itself, and bind its arguments by offpcc.configure"
            elif known is not None:
                example = f"{binding} = @{type(value).__name__}()"
                advice = f'bind it by offpcc.configure(None, "{example}"), and its arguments likewise'
            raise UserError(f"{binding} {fault} cannot be written into the config of a run; {advice}")


def missing_binding(name: str) -> UserError:
    """Return the error for a parameter that has no default and is not bound."""
    return UserError(f'{name} is not set: bind it in the config, include one of configs/, or add --gin "{name}=..."')


def resolve_bindings(
    function: Any, given: Mapping[str, Any] | None = None, *, may_lack: bool = False
) -> dict[str, Any]:
    """Return the values of the keyword arguments of `function`, and add them to the values in use.

    A value comes from `given`, else from gin, else it is the default.
    """
    selector = gin_private.inverse_lookup(function).selector
    signature = inspect.signature(function)
    passed = passed_by_us(function)
    settings = {
        name: p.default for name, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY and name not in passed
    }
    try:
        settings |= gin.get_bindings(function) | dict(given or {})
    except (TypeError, RuntimeError) as error:  # a reference with parentheses to a class that needs arguments
        raise UserError(
            f"the bindings of {selector.split('.')[-1]} cannot be read: {first_line(error)}; write references to "
            f"classes without parentheses, such as @Flicker"
        ) from error
    if missing := [name for name, value in settings.items() if value is gin.REQUIRED]:
        if not may_lack:
            raise missing_binding(f"{selector.split('.')[-1]}.{missing[0]}")
        settings = {name: value for name, value in settings.items() if value is not gin.REQUIRED}
    bound = gin.get_bindings(function, resolve_references=False)  # with the names of classes and macros
    used = settings | {name: value for name, value in bound.items() if name not in (given or {})}
    gin_private.OPERATIVE_CONFIG.setdefault(("", selector), {}).update(used)
    return settings
