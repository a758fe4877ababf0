"""`configurable`: registers classes with gin; also turns objects into plain data and back."""

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import gin
import numpy as np
import torch
from gymnasium import spaces

from offpcc.config import gin_private
from offpcc.config.bindings import nearest_parameter
from offpcc.config.hyperparameters import ClassSignature, Documentation
from offpcc.config.validation import check_arguments, format_value, rules_of
from offpcc.utils.errors import UserError, print_to_stderr

REGISTRY: dict[str, type] = {}
C = TypeVar("C", bound=Callable[..., Any])


def configurable(cls: C) -> C:
    """Register a class, or a function such as a callback, with gin.

    A class inherits the bindings of its parents, and its own bindings override them.
    A subclass takes ``**kwargs`` and passes them on. It must not declare a parameter of its parent again or pass a
    fixed value for one; use class attributes such as ``default_num_critics`` for that. Arguments that break a rule of
    `offpcc.config.validation` in the signature are refused. Each instance stores its arguments for `specification`.
    The signature and the docstring of the class, which `help` shows, list inherited parameters, too.

    Raises:
        UserError: another class has the same name.
    """
    if inspect.isfunction(cls):
        return _register_again(cls)
    if not isinstance(cls, type):
        raise UserError(f"offpcc.configurable got {format_value(cls)}; it decorates a class or a function")
    known = REGISTRY.get(cls.__name__)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise UserError(
            f"a class with the name {cls.__name__} exists already, in {known.__module__}; rename the one in "
            f"{cls.__module__}"
        )
    if "__init__" not in cls.__dict__:

        def inherited_init(self: Any, *args: Any, **kwargs: Any) -> None:
            super(cls, self).__init__(*args, **kwargs)  # type: ignore[arg-type]

        inherited_init.__name__ = "__init__"  # the attribute that gin replaces with its wrapper
        cls.__init__ = inherited_init  # type: ignore[misc]
    original = cls.__init__  # type: ignore[misc]
    signature = inspect.signature(original)
    takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    _warn_declared_again(cls, signature)

    @functools.wraps(original)
    def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        first = [*args[:1], *(kwargs[name] for name in ("env", "observation_space") if name in kwargs)]
        if hasattr(cls, "inner_update") and first and not isinstance(first[0], spaces.Space):
            name = type(self).__name__
            raise TypeError(
                f"{name} takes the spaces of observations and actions, not {format_value(first[0])}; offpcc.build(ENV, "
                f"{name}) builds it for an environment, and takes its other arguments by algorithm={{...}}"
            )
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError as error:  # such as "got an unexpected keyword argument 'learning_rate'"
            unknown = "" if takes_more else next((name for name in kwargs if name not in signature.parameters), "")
            if unknown:
                raise TypeError(f"{cls.__name__} {error}; {nearest_parameter(unknown, type(self))}") from None
            is_to_bind = str(error).startswith("missing") and type(self) is cls  # else a child class calls this one
            remedy = "; bind it, or give it a default" if is_to_bind else ""
            raise TypeError(f"{cls.__name__}: {error}{remedy}") from None
        bound.apply_defaults()
        given: dict[str, Any] = {}
        for name, parameter in list(signature.parameters.items())[1:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                given.update(bound.arguments[name])
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                given[name] = bound.arguments[name]
        check_arguments(type(self).__name__, rules_of(cls), given)
        # A class without **kwargs gives its base class arguments that it does not take itself; do not store these.
        if not self.__dict__.get("_has_all_arguments", False):
            self.__dict__.setdefault("_arguments", {}).update(given)
            self.__dict__["_has_all_arguments"] = not takes_more
        original(self, *args, **kwargs)

    checked_init.__signature__ = signature  # type: ignore[attr-defined]  # gin reads defaults from it
    cls.__init__ = checked_init  # type: ignore[misc]
    cls.__signature__ = ClassSignature()  # type: ignore[attr-defined]
    cls.__doc__ = Documentation(cls.__doc__)  # type: ignore[assignment]
    REGISTRY[cls.__name__] = cls
    return gin.configurable(cls) if known is None else _register_again(cls)


def _register_again(cls: C) -> C:
    """Register a class or function that may be known: a cell of a notebook that runs again defines it again."""
    with gin.config.interactive_mode():
        registered = gin.configurable(cls)
    selector = gin_private.inverse_lookup(cls).selector
    for reference in gin.config.iterate_references(gin_private.CONFIG):  # bindings name the new definition, too
        if reference.configurable.selector == selector:
            reference.initialize()
    return registered  # type: ignore[no-any-return]


def specification(value: Any) -> Any:
    """Return `value` as plain data; `from_specification` builds it again without an import."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, list | tuple):
        return [specification(item) for item in value]
    if isinstance(value, dict):
        return {str(key): specification(item) for key, item in value.items()}
    if isinstance(value, torch.device):
        return str(value)
    value = getattr(value, "dict_space", value)  # a PackedDict is described by its Dict space
    if isinstance(value, spaces.Dict):
        return {"dict": {key: specification(space) for key, space in value.items()}}
    if isinstance(value, spaces.Discrete):
        return {"discrete": [int(value.n), int(value.start)]}
    if isinstance(value, spaces.MultiDiscrete):
        return {"multidiscrete": value.nvec.tolist(), "start": value.start.tolist()}
    if isinstance(value, spaces.MultiBinary):
        return {"multibinary": list(value.shape)}
    if isinstance(value, spaces.Box):
        box: dict[str, Any] = {"box": list(value.shape), "dtype": str(value.dtype)}
        if value.dtype.kind == "f" and value.is_bounded():
            box |= {"low": value.low.tolist(), "high": value.high.tolist()}
        return box
    if isinstance(value, functools.partial):
        return {"partial": specification(value.func), "arguments": specification(value.keywords)}
    if isinstance(value, type) and REGISTRY.get(value.__name__) is not None:
        return {"reference": value.__name__}
    if type(value).__name__ in REGISTRY and hasattr(value, "_arguments"):
        return {"class": type(value).__name__, "arguments": specification(value._arguments)}
    decorated = "it" if isinstance(value, type) else "its class"
    raise UserError(
        f"{format_value(value)} cannot be written into an actor's file; decorate {decorated} with offpcc.configurable"
    )


def _warn_declared_again(cls: type, signature: inspect.Signature) -> None:
    """Print a notice for each parameter that a registered parent has, too: bindings of the parent's have no effect."""
    for parent in cls.__mro__[1:]:
        if REGISTRY.get(parent.__name__) is not parent or "__init__" not in parent.__dict__:
            continue
        of_parent = inspect.signature(parent.__dict__["__init__"]).parameters
        for name in signature.parameters:
            if name in of_parent and of_parent[name].kind is inspect.Parameter.KEYWORD_ONLY:
                print_to_stderr(
                    f"{cls.__name__} declares {name} again, a parameter of {parent.__name__}, so bindings of "
                    f"{parent.__name__}.{name} have no effect on {cls.__name__}; remove {name} from its signature and "
                    f"pass on **kwargs"
                )


def from_specification(spec: Any, **overrides: Any) -> Any:
    """Build the object that `specification` described; `overrides` replace arguments of the outermost class."""
    if isinstance(spec, list):
        return tuple(from_specification(item) for item in spec)
    if not isinstance(spec, dict):
        return spec
    if "dict" in spec:
        return spaces.Dict({key: from_specification(item) for key, item in spec["dict"].items()})
    if "discrete" in spec:
        return spaces.Discrete(spec["discrete"][0], start=spec["discrete"][1])
    if "multidiscrete" in spec:
        return spaces.MultiDiscrete(spec["multidiscrete"], start=spec["start"])
    if "multibinary" in spec:
        return spaces.MultiBinary(spec["multibinary"])
    if "box" in spec:
        dtype = np.dtype(spec["dtype"])
        if "low" in spec:
            low, high = (np.array(spec[key], dtype) for key in ("low", "high"))
            return spaces.Box(low, high, tuple(spec["box"]), dtype.type)
        lowest, highest = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        return spaces.Box(lowest, highest, tuple(spec["box"]), dtype.type)
    if "reference" in spec:
        return _registered(spec["reference"])
    if "partial" in spec:
        arguments = {key: from_specification(item) for key, item in spec["arguments"].items()}
        return functools.partial(from_specification(spec["partial"]), **arguments)
    if "class" in spec:
        arguments = {key: from_specification(item) for key, item in spec["arguments"].items()}
        return _registered(spec["class"])(**{**arguments, **overrides})
    return {key: from_specification(item) for key, item in spec.items()}


def is_raised_by_own_class(error: BaseException) -> bool:
    """Return whether an error comes from the code of a registered class of the user's."""
    own = {cls.__module__ for cls in REGISTRY.values() if not cls.__module__.startswith("offpcc.")}
    return any(frame.f_globals.get("__name__") in own for frame, _ in traceback.walk_tb(error.__traceback__))


def _registered(name: str) -> Callable[..., Any]:
    if name not in REGISTRY:
        raise UserError(
            f"the file was made with the class {name!r}, which is not known here: import the module that defines it "
            f"first (on the command line: --import MODULE, or --config with its import)"
        )
    return REGISTRY[name]
