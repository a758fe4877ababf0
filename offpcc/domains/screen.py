"""Whether there is a screen that a window could open on."""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
from pathlib import Path

__all__ = ["has_screen"]

X_PORT = 6000  # of display 0
SECONDS = 0.5


def has_screen() -> bool:
    """Returns whether a window can be opened.

    On Linux, DISPLAY and WAYLAND_DISPLAY may name what is not there any more, as in a terminal that outlived its
    session; so it is asked.
    """
    if sys.platform != "linux":
        return True
    return _answers_x(os.environ.get("DISPLAY", "")) or _answers_wayland(os.environ.get("WAYLAND_DISPLAY", ""))


def _answers_x(display: str) -> bool:
    match = re.fullmatch(r"(?P<host>.*):(?P<number>\d+)(\.\d+)?", display)
    if match is None:
        return False
    host, number = match["host"], int(match["number"])
    if host in ("", "unix"):
        path = f"/tmp/.X11-unix/X{number}"
        return _answers(socket.AF_UNIX, path) or _answers(socket.AF_UNIX, f"\0{path}")
    return _answers(socket.AF_INET, (host, X_PORT + number))


def _answers_wayland(display: str) -> bool:
    folder = Path(os.environ.get("XDG_RUNTIME_DIR", "/run/user"))
    return bool(display) and _answers(socket.AF_UNIX, str(folder / display))


@functools.cache
def _answers(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as asking:
        asking.settimeout(SECONDS)
        try:
            asking.connect(address)
        except OSError:
            return False
        return True
