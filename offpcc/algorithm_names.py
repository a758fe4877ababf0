"""From the names of algorithms to their classes."""

from __future__ import annotations

import difflib

from offpcc.algorithms import ALGORITHMS, ActorCritic, variants
from offpcc.errors import UserError
from offpcc.registry import REGISTRY


def find_algorithm(name: str) -> type[ActorCritic]:
    """The class of this name.

    Raises:
        UserError: there is none.
    """
    found = ALGORITHMS.get(name) or REGISTRY.get(name)
    if found is None or not _learns(found):
        known = [*ALGORITHMS, *(key for key, cls in REGISTRY.items() if _learns(cls))]
        near = difflib.get_close_matches(name, known, 3, 0.4)
        plain = [short for short, cls in ALGORITHMS.items() if cls.__module__ != variants.__name__]
        advice = (
            f"did you mean {', '.join(near)}?"
            if near
            else f"there are {', '.join(plain)}, and each with memory (such as rsac), with convolutions (csac), with "
            f"both (crsac): `offpcc --help` lists all."
        )
        raise UserError(
            f"there is no algorithm {name!r}; {advice} A class of your own needs an update_networks, the decorator "
            f"offpcc.configurable, and an import of its module in the config"
        )
    return found


def _learns(cls: type) -> bool:
    """Whether a class has an update of its own, or of a parent; `ActorCritic` has none."""
    none = ActorCritic.update_networks
    return getattr(cls, "update_networks", none) is not none


def short_name(name: str) -> str:
    """An algorithm's name, by which runs lie side by side: of SAC, too, it is "sac"; a user's class has its own."""
    return next((short for short, cls in ALGORITHMS.items() if cls.__name__ == name), name)
