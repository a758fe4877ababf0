"""gin bindings: which parameters exist, and checks that refuse bindings without effect."""

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import gin

from offpcc.config import gin_private
from offpcc.config.synonyms import LEARNING_WRAPPERS, OWN, argument_hint, binding_hint, differs_by_s
from offpcc.config.validation import FOR_NUMBERS, check_arguments, format_value, has_flags, rules_of, takes_numbers
from offpcc.utils.errors import UserError, print_to_stderr, similar

COMMAND_LINE = "--gin"
RUN_CONFIG = "config.gin"  # in a run's folder
MANY = 5  # settings of another algorithm, from which a config is taken to be made for it
GIN = "gin"  # gin's own module
MACRO, CONSTANT = f"{GIN}.macro", f"{GIN}.constant"
PREFIXES = {"CR": "ConvolutionalRecurrent", "R": "Recurrent", "C": "Convolutional"}  # of algorithms and their classes
CLASS_NAMES: dict[str, str] = {}  # of algorithms, by their names for --algo; `offpcc.algorithms.variants` fills it
MOST_NAMES = 40  # that a hint lists
Given = ParamSpec("Given")
Result = TypeVar("Result")
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Arguments that launch.py and the library pass, by base class; gin sets only hyper-parameters.
PASSED = {
    "ActorCritic": {"observation_space", "action_space", "device", "seed"},
    "BufferBase": {"observation_space", "action_space", "device", "seed", "num_envs", "frame_stack"},
    "ReplayBuffer": {"num_steps"},
    "Encoder": {"shape"},
    "Wrapper": {"env"},  # Gymnasium's
    "Cell": {"num_in", "hidden_dim", "num_layers"},
    "DynamicsModel": {"observation_dim", "action_dim", "device", "seed"},
}


class Binding(NamedTuple):
    """One line of a gin file or of the command line."""

    scope: str
    selector: str  # complete name, such as offpcc.algorithms.sac.SAC
    parameter: str
    given: str  # as the user wrote it, such as SAC.lr
    where: str  # "FILE:LINE" or "--gin"


def configurables() -> dict[str, Any]:
    """Return everything that gin can configure, by complete name."""
    registry = gin_private.SELECTORS
    return {name: entry.wrapped for name, entry in registry.items() if not name.startswith("gin.")}


def declarations(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of `function`, or of a class, by name; ``**kwargs`` adds those of the next base class."""
    if not inspect.isclass(function):
        return {p.name: p for p in inspect.signature(function).parameters.values() if p.kind not in VARIADIC}
    found: dict[str, inspect.Parameter] = {}
    for cls in function.__mro__:
        if "__init__" not in cls.__dict__ or cls is object:
            continue
        signature = inspect.signature(cls.__dict__["__init__"])
        for parameter in list(signature.parameters.values())[1:]:
            if parameter.kind not in VARIADIC:
                found.setdefault(parameter.name, parameter)
        if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
            break
    return found


def parameters(function: Any) -> set[str]:
    """Return the names of `declarations`."""
    return set(declarations(function))


def passed_by_us(function: Any) -> set[str]:
    """Return the parameters that gin must not set."""
    ancestors = function.__mro__ if inspect.isclass(function) else ()
    passed = set[str]().union(*(PASSED.get(cls.__name__, set()) for cls in ancestors))
    for entry in gin_private.SELECTORS.values():
        if entry.wrapped is function:
            passed |= set(entry.denylist or ())
            passed |= parameters(function) - set(entry.allowlist) if entry.allowlist else set()
    return passed


def settable(function: Any) -> set[str]:
    """Return the names of the parameters that gin may set."""
    return parameters(function) - passed_by_us(function)


def nearest(name: str, known: Any) -> str:
    """Return a hint with the known names that are similar to `name`."""
    known = list(known)
    if alike := [word for word in known if word.lower() == name.lower()]:  # such as sac for SAC
        return f"did you mean {' or '.join(alike)}?"
    if near := similar(name, known):
        return f"did you mean {' or '.join(near)}?"
    return f"the known names are {', '.join(known)}." if len(known) <= MOST_NAMES else ""


def nearest_parameter(name: str, function: Any) -> str:
    """Return a hint for an unknown parameter: our name for a parameter of another library, else similar names."""
    known = sorted(settable(function))
    names = [entry.name for entry in gin_private.SELECTORS.values() if entry.wrapped is function]
    families = [*names, *(cls.__name__ for cls in getattr(function, "__mro__", ()))]
    hint = binding_hint(name, families, known)
    if "Recurrent." in hint and not any("Recurrent" in family for family in families):
        hint = f"{hint}, in an algorithm with memory, such as rsac"
    if not hint and "ActorCritic" in families and differs_by_s(name, known) and (others := OWN.get(name)):
        return f"{nearest(name, known)} For a memory, bind {' and '.join(others)}"  # any algorithm may have one
    return hint or nearest(name, known)


def refuse_unknown(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise for the first argument that does not exist."""
    for name in given:
        if name not in known:
            hint = argument_hint(name, [owner], known) or nearest(name, known) or f"it takes {', '.join(known)}"
            raise UserError(f"{owner} takes no argument {name!r}; {hint}")


def explains_calls(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a function: a call with wrong arguments raises a `UserError` with the right ones, and no TypeError.

    Arguments are wrong if the function has none of this name, or if they break the rule in their annotation.
    """
    signature, name = inspect.signature(function), function.__qualname__
    declared = [one for one in signature.parameters.values() if one.name not in ("cls", "self")]
    in_order = [one.name for one in declared if one.kind is one.POSITIONAL_OR_KEYWORD]
    by_name = [f"{one.name}=..." for one in declared if one.kind is one.KEYWORD_ONLY]

    @functools.wraps(function)
    def explained(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            if rules := rules_of(function):
                check_arguments(name, rules, signature.bind(*args, **kwargs).arguments)
            return function(*args, **kwargs)
        except TypeError:
            explain(args, kwargs)  # only now: a check of each call takes microseconds, which count in `Agent.act`
            raise

    def explain(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            refuse_unknown(name, kwargs, [one.name for one in declared])
            rest = f"by name: {name}({', '.join(by_name[:5])})"
            advice = f"give {', '.join(in_order)}, and the others {rest}" if in_order else f"give all {rest}"
            raise UserError(f"{name}: {error}; {advice}") from None

    return explained


def unknown_configurable(where: str, selector: str) -> UserError:
    """Return the error for a name that gin cannot configure, with similar names."""
    name = selector.split(".")[-1]
    known = sorted({known.split(".")[-1] for known in configurables()})
    if name in LEARNING_WRAPPERS:
        return UserError(
            f"{where}: {name} learns while it wraps, and saved agents would lack what it learned, so gin cannot "
            f"configure it; {LEARNING_WRAPPERS[name]}"
        )
    long = [word + name.removeprefix(short) for short, word in PREFIXES.items() if name.startswith(short)]
    hint = nearest(CLASS_NAMES.get(name) or next((one for one in long if one in known), name), known)
    return UserError(
        f"{where}: gin can configure no class or function {selector!r}; {hint or '`offpcc params` lists all names.'} A "
        f"class of your own needs the decorator offpcc.configurable, and the import of its module in the config"
    )


def is_known_value(reference: Any) -> bool:
    """Check whether a reference is a macro, or a constant that a module has defined."""
    name, selector = reference.config_key
    return bool(name) and (selector == MACRO or (selector == CONSTANT and name in gin_private.CONSTANTS))


@dataclass(frozen=True)
class Reference:
    """Builds a class or calls a function with the bindings that gin had when this was made.

    Unlike gin's own reference, it can be pickled, and bindings that are loaded later do not change its `arguments`.

    Attributes:
        selector: the complete name, perhaps with a scope in front.
        arguments: values that were bound, without those that contain references, which gin gives at each call.
    """

    selector: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        """The short name."""
        return self.selector.rpartition(".")[2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the class or call the function."""
        return gin.get_configurable(self.selector)(*args, **{**self.arguments, **kwargs})


def with_references(function: Any, parameter: str, value: Any) -> Any:
    """Return the list that gin gives to a parameter, with a `Reference` for each @NAME in it."""
    if (bound := _bound_list(function, parameter)) is None:
        return value
    return [
        _reference(given.configurable.selector, given.scopes) if _is_name(given) else item
        for given, item in zip(bound, value, strict=True)
    ]


def add_scoped_used(function: Any, parameter: str) -> None:
    """Add the bindings of each @SCOPE/NAME in the list that is bound to a parameter to the values in use."""
    for given in filter(_is_name, _bound_list(function, parameter) or []):
        if scope := "/".join(given.scopes):
            with gin.config_scope(scope):
                bound = gin.get_bindings(given.configurable.selector, resolve_references=False)
            gin_private.OPERATIVE_CONFIG.setdefault((scope, given.configurable.selector), {}).update(bound)


def _bound_list(function: Any, parameter: str) -> list[Any] | None:
    """Return the list that is bound to a parameter, with the values of macros; None if no list is bound."""
    bound = _without_macros(gin.get_bindings(function, resolve_references=False).get(parameter))
    return [_without_macros(given) for given in bound] if isinstance(bound, list | tuple) else None


def _without_macros(value: Any) -> Any:
    while _is_macro(value):
        value = gin_private.CONFIG.get((value.config_key[0], MACRO), {}).get("value")
    return value


def _is_name(value: Any) -> bool:
    """Check whether a value is @NAME, without parentheses."""
    return isinstance(value, gin.config.ConfigurableReference) and not value.evaluate


def as_references(parameter: str, values: Iterable[Any]) -> list[Any]:
    """Return a `Reference` for each class or function that gin can configure; other values as they are.

    A `functools.partial` counts as its function. Its reference has a scope of its own, made from the parameter's name,
    in which its arguments can be bound.
    """
    return [_as_reference(value, f"{parameter.replace('.', '_')}_{place}") for place, value in enumerate(values, 1)]


def _as_reference(value: Any, scope: str) -> Any:
    if isinstance(value, functools.partial) and not value.args:
        known = gin_private.inverse_lookup(value.func)
        if known is None:
            return value
        bound = _reference(known.selector, (scope,))
        return Reference(bound.selector, {**bound.arguments, **value.keywords})
    known = gin_private.inverse_lookup(value) if callable(value) else None
    return value if known is None else _reference(known.selector, ())


def _reference(selector: str, scopes: Sequence[str]) -> Reference:
    """Return a reference with the values that are bound now, and add these to the values in use.

    A class that passes ``**kwargs`` on to its parent may have parameters that are bound by the parent's name.
    """
    scope, wrapped = "/".join(scopes), gin_private.SELECTORS[selector].wrapped
    arguments, taken = dict[str, Any](), parameters(wrapped)
    for owner in reversed(getattr(wrapped, "__mro__", (wrapped,))):
        if (known := gin_private.inverse_lookup(owner)) is None:
            continue
        with gin.config_scope(scope or None):
            bound = gin.get_bindings(known.selector, resolve_references=False)
            # A copy of gin's reference to a macro is its value.
            values = {name: copy.deepcopy(of) for name, of in bound.items() if all(map(_is_macro, references_in(of)))}
        values = {name: of for name, of in values.items() if name in taken and not any(references_in(of))}
        gin_private.OPERATIVE_CONFIG.setdefault((scope, known.selector), {}).update(values)
        arguments |= values
    return Reference("/".join([*scopes, selector]), arguments)


def references_in(value: Any) -> Iterator[Any]:
    """Yield the references and macros in a value, at any depth."""
    if isinstance(value, gin.config.ConfigurableReference | gin_private.UnknownReference):
        yield value
    elif isinstance(value, dict):
        yield from references_in([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references_in(item)


def _is_macro(value: Any) -> bool:
    return isinstance(value, gin.config.ConfigurableReference) and value.selector == MACRO


def check_references(bindings: Sequence[Binding]) -> None:
    """Follow the references of all bindings, each one once; refuse those that are unbound or circular."""
    bound = gin_private.CONFIG
    known, under_way = set[tuple[tuple[str, ...], str]](), set[tuple[tuple[str, ...], str]]()

    def follow(value: Any, scope: tuple[str, ...], where: str) -> None:
        for reference in references_in(value):
            if not reference.evaluate:
                continue
            key = tuple(reference.scopes) or scope, reference.config_key[1]
            if key in under_way:
                name = "/".join(reference.scopes) if key[1] == MACRO else str(reference)
                raise UserError(f"{where}: {name} refers to itself, {reference}; give it a value")
            if key in known:
                continue
            there: dict[str, Any] = {}
            for length in range(len(key[0]) + 1):  # the order in which gin merges scopes
                there |= bound.get(("/".join(key[0][:length]), key[1]), {})
            if key[1] == MACRO and not there:
                macro, made = "/".join(reference.scopes), sorted(name for name, of in bound if of == MACRO)
                raise UserError(
                    f"{where} is %{macro}, but {macro} is not bound; "
                    f"{nearest(macro, made) if made else f'add a line {macro} = ...'}"
                )
            under_way.add(key)
            follow([*there.values()], key[0], where)
            under_way.remove(key)
            known.add(key)

    for binding in bindings:
        value = bound.get((binding.scope, binding.selector), {}).get(binding.parameter)
        follow(value, tuple(filter(None, binding.scope.split("/"))), f"{binding.where}: {binding.given}")


def check_flags(bindings: Sequence[Binding]) -> None:
    """Refuse True and False where the parameter takes a number; Python would use them as 1 and 0."""
    bound, classes = gin_private.CONFIG, configurables()
    for binding in bindings:
        value = _without_macros(bound.get((binding.scope, binding.selector), {}).get(binding.parameter))
        if binding.selector not in classes or not has_flags(value):
            continue
        if takes_numbers(declarations(classes[binding.selector])[binding.parameter]):
            raise UserError(f"{binding.where}: {binding.given} is {format_value(value)}; {FOR_NUMBERS}")


def _note_other_algorithm(bindings: Sequence[Binding], used: set[str], classes: Mapping[str, Any]) -> None:
    """Print a note if the config has the settings of one algorithm, and the run trains another one."""
    algorithms = {name for name, one in classes.items() if hasattr(one, "inner_update")}
    given = {(one.selector, one.parameter) for one in bindings if one.where != COMMAND_LINE}
    common = {name for name in algorithms if name.endswith(".ActorCritic")}
    if not used & algorithms or any(selector in (used & algorithms) - common for selector, _ in given):
        return
    others = {selector for selector, _ in given if selector in algorithms - used}
    if len(others) == 1 and len([one for one in given if one[0] in others]) >= MANY:
        print_to_stderr(
            f"note: the config has settings of {others.pop().split('.')[-1]}, which have no effect in this run; "
            f"`offpcc params` lists those of each algorithm"
        )


def find_configurable(name: str) -> Any:
    """Return the class or function with this short name in gin; None if there is none."""
    return next((one for complete, one in configurables().items() if complete.rpartition(".")[2] == name), None)


def _parameters_of(name: str) -> set[str]:
    """Return the parameters that gin may set of a class or function, by its short name."""
    function = find_configurable(name)
    return set() if function is None else settable(function)


def check_unused_bindings(
    bindings: list[Binding], unused_parameters: Mapping[Any, Mapping[str, str]] | None = None
) -> None:
    """Refuse bindings that had no effect. Call this after all parts of the run are built.

    Files may contain three kinds of bindings without effect:

    * A binding of a class that the run does not use. This allows shared configs.
    * A binding of a parent that a binding of its child overrides.
    * A binding of a parameter that changes nothing in this run: `unused_parameters` are those of a class or function,
      with the reason.

    On the command line, every binding must have an effect.
    """
    operative = gin_private.OPERATIVE_CONFIG
    used_names = {selector for _, selector in operative}
    classes = configurables()
    referenced = {part.config_key for part in gin.config.iterate_references(gin_private.CONFIG)}
    for binding in bindings:
        reason = _why_idle(binding, classes, unused_parameters or {})
        if reason or _is_used(binding, operative):
            if reason and binding.where == COMMAND_LINE:
                raise UserError(f"{binding.where}: {binding.given} has no effect: {reason}; remove it")
            continue
        if binding.selector == MACRO:
            is_of_run = Path(binding.where.rpartition(":")[0]).name == RUN_CONFIG  # its value may be overridden
            if binding.where == COMMAND_LINE or not (is_of_run or (binding.scope, MACRO) in referenced):
                owners = (name.split(".")[-1] for name in sorted(used_names - {MACRO}))
                near = [f"{name}.{binding.given}" for name in owners if binding.given in _parameters_of(name)]
                hint = f"did you mean {' or '.join(near)}?" if near else binding_hint(binding.given)
                hint = hint or "a binding starts with the name of a class, as in SAC.lr"
                raise UserError(f"{binding.where}: {binding.given} has no effect: it names no class; {hint}")
            continue
        if binding.where != COMMAND_LINE and (
            binding.selector not in used_names or _overridden(binding, bindings, classes, used_names)
        ):
            continue
        name = binding.selector.split(".")[-1]
        parts = sorted(s.split(".")[-1] for s in used_names - {MACRO})
        near = [owner for owner in parts if binding.parameter in _parameters_of(owner)]
        near.sort(key=lambda owner: (owner not in name, -len(owner)))  # SAC of RecurrentSAC comes first
        reason, remedy = f"this run does not use {name}, only {', '.join(parts)}", "correct or remove it"
        if near:
            reason, remedy = f"this run does not use {name}", f"did you mean {near[0]}.{binding.parameter}?"
        if binding.selector in used_names:
            winners = [
                other for other in bindings if _is_used(other, operative) and _is_nearer(other, binding, classes)
            ]
            source = f"{winners[-1].given} ({winners[-1].where}), which overrides it" if winners else "its algorithm"
            reason = f"this run uses {name}, but got {binding.parameter} from {source}"
            own = next((part for part in parts if part.endswith("Sharing")), None)  # its memory reads convolutions
            is_encoder = binding.parameter == "feature_extractor" and own and not winners
            remedy = f"bind {own}.shared_encoder = @{name}, too" if is_encoder else "correct or remove it"
            if not winners and hasattr(classes[binding.selector], "inner_update"):  # a class of the user's gives it
                remedy = f"remove it, or let unused_parameters() of your algorithm name {binding.parameter}"
        raise UserError(f"{binding.where}: {binding.given} has no effect: {reason}; {remedy}")
    _note_other_algorithm(bindings, used_names, classes)


def _is_used(binding: Binding, operative: dict[tuple[str, str], dict[str, Any]]) -> bool:
    """Check whether the bound class got the value, in the binding's scope or in an inner scope."""
    return any(
        selector == binding.selector
        and binding.parameter in given
        and (not binding.scope or scope == binding.scope or scope.startswith(f"{binding.scope}/"))
        for (scope, selector), given in operative.items()
    )


def _why_idle(
    binding: Binding, classes: dict[str, Any], unused_parameters: Mapping[Any, Mapping[str, str]]
) -> str | None:
    """Return why a bound parameter changes nothing in this run, or None if it changes something."""
    for owner, reasons in unused_parameters.items():
        family = owner.__mro__ if inspect.isclass(owner) else (inspect.unwrap(owner),)
        if binding.parameter in reasons and classes.get(binding.selector) in family:
            return reasons[binding.parameter]
    return None


def _overridden(binding: Binding, bindings: list[Binding], classes: dict[str, Any], used_names: set[str]) -> bool:
    return any(
        other.selector != binding.selector and other.selector in used_names and _is_nearer(other, binding, classes)
        for other in bindings
    )


def _is_nearer(other: Binding, binding: Binding, classes: dict[str, Any]) -> bool:
    """Check whether `other` overrides `binding`: same parameter, but in a child class or an inner scope."""
    if other.parameter != binding.parameter or other.selector not in classes:
        return False
    if other.selector == binding.selector:
        return other.scope != binding.scope and (not binding.scope or other.scope.startswith(f"{binding.scope}/"))
    cls, child = classes[binding.selector], classes[other.selector]
    return inspect.isclass(cls) and inspect.isclass(child) and issubclass(child, cls)
