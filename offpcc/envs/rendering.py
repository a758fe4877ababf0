"""Rendering: MuJoCo's OpenGL backend, a check for a screen, and a function that draws discs."""

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Sequence

import gymnasium
import numpy as np
from numpy.typing import NDArray


def has_screen() -> bool:
    """Check whether a window can be opened. On Linux, DISPLAY or WAYLAND_DISPLAY names a screen."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def draw_without_screen(render_mode: str | None) -> None:
    """Let Pygame draw in memory where there is no screen; it opens a video device even for this."""
    if render_mode == "rgb_array" and not has_screen():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def choose_opengl() -> None:
    """Choose how MuJoCo renders without a screen: with EGL if it has a device, else with OSMesa, else not at all.

    Sets MUJOCO_GL on Linux, unless it is set or there is a screen. MuJoCo and DM Control read it once, when they are
    imported. Their import fails if the named backend does not work. So this function checks the backend first, and it
    must run before the import.
    """
    if sys.platform != "linux" or "MUJOCO_GL" in os.environ or has_screen():
        return
    if _egl_has_device():
        os.environ["MUJOCO_GL"] = "egl"
    elif ctypes.util.find_library("OSMesa"):
        os.environ["MUJOCO_GL"] = "osmesa"
    else:
        os.environ["MUJOCO_GL"] = "disable"


def backend() -> str:
    """Return MuJoCo's renderer: "EGL", "OSMesa", "a window system (glfw)" or "none"."""
    choose_opengl()
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen in ("disable", "disabled", "off", "false", "0"):
        return "none"
    return {"egl": "EGL", "osmesa": "OSMesa"}.get(chosen, "a window system (glfw)")


def require_opengl(environment: str) -> None:
    """Raise Gymnasium's `DependencyNotInstalled` if MuJoCo has neither EGL nor OSMesa nor a screen to render with."""
    if backend() == "none":
        raise gymnasium.error.DependencyNotInstalled(
            f"{environment} renders with OpenGL, but neither EGL nor OSMesa is available; "
            "run `apt install libegl1` (or libosmesa6), and unset MUJOCO_GL if it is set"
        )


def _egl_has_device() -> bool:
    library = ctypes.util.find_library("EGL")
    if library is None:
        return False
    egl = ctypes.CDLL(library)
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    address = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    if not address:
        return False
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(address)
    num_devices = ctypes.c_int(0)
    return bool(query(0, None, ctypes.byref(num_devices))) and num_devices.value > 0


def paint_disc(
    frame: NDArray[np.float64],
    half_width: float,
    centre: Sequence[float] | NDArray[np.float64],
    radius: float,
    colour: tuple[int, int, int],
) -> None:
    """Paint a disc with smooth edges into a square frame, (N, N, 3), seen from above.

    The frame's centre is the origin, and `half_width` is the length from there to its edge, in the unit of all lengths.
    The disc's centre is to the right of the origin and above it; its colour is red, green and blue.
    """
    axis = (np.arange(len(frame)) + 0.5) / len(frame) * 2 * half_width - half_width
    distance = np.hypot(axis - centre[0], -axis[:, np.newaxis] - centre[1])
    coverage = np.clip((radius - distance) / (2 * half_width / len(frame)) + 0.5, 0.0, 1.0)[..., np.newaxis]
    frame += coverage * (colour - frame)
