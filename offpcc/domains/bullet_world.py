"""A physics world of PyBullet's, apart from all others."""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import Any

__all__ = ["BulletWorld"]


class BulletWorld:
    """PyBullet's functions and constants, for one physics world, which is freed with this object.

    PyBullet's class of this kind would first look for a world in another process to join, and prints as it starts.

    Args:
        has_window: Whether it is shown in a window.
    """

    def __init__(self, has_window: bool = False) -> None:
        import pybullet

        self._pybullet = pybullet
        self.number: int = pybullet.connect(pybullet.GUI if has_window else pybullet.DIRECT)
        self._free = weakref.finalize(self, pybullet.disconnect, self.number)  # once, also if nobody asks for it

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._pybullet, name)
        return functools.partial(attribute, physicsClientId=self.number) if inspect.isbuiltin(attribute) else attribute

    def disconnect(self) -> None:
        """Frees the world."""
        self._free()
        self.number = -1  # PyBullet gives the number away again: no later call may reach the world that gets it
