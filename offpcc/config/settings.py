"""Settings that gin binds: a class declares each of them once, with its default, its rule and its meaning."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import gin

from offpcc.config import loading
from offpcc.config.validation import check_arguments, rules_of


class Settings:
    """Base class of classes that `settings` decorates. Without gin, a class is called with values by name."""

    gin_name: ClassVar[str]

    def __post_init__(self) -> None:
        cls: Any = type(self)
        check_arguments(self.gin_name, rules_of(cls), vars(self))

    @classmethod
    def from_gin(cls, given: Mapping[str, Any] | None = None) -> Self:
        """Return the given values, gin's for the others, and add all to the values in use."""
        return cls(**loading.resolve_bindings(cls, given))

    def values(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(vars(self))


S = TypeVar("S", bound=Settings)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(name: str) -> Callable[[type[S]], type[S]]:
    """Decorate a child of `Settings`: it becomes a frozen dataclass, whose fields gin binds as ``NAME.field``."""

    def decorate(cls: type[S]) -> type[S]:
        made: type[S] = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        made.gin_name = name
        is_own = made.__module__.startswith("offpcc.")
        gin.external_configurable(made, name, module="offpcc" if is_own else made.__module__)
        return made

    return decorate
