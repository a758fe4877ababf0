"""Draws one picture with a frame of each family of environments: `python docs/gallery.py FILE.png`."""

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpcc.envs import ENVIRONMENTS, Environment
from offpcc.envs.guard import opened
from offpcc.envs.make import make
from offpcc.envs.registration import is_installed
from offpcc.utils.errors import UserError
from offpcc.utils.figures import save_figure
from offpcc.utils.spaces import random_action

NUM_STEPS = 20  # environment steps before the frame
CELL = 2.0  # inches
TITLE = 0.28  # inches
GAP = 0.08  # inches


class Picture(NamedTuple):
    """A cell of the gallery."""

    family: str
    frame: NDArray[np.uint8]  # (height, width, 3)
    seen: NDArray[np.uint8] | None  # (height, width) or (height, width, 3): the agent's input in image tasks


def gallery(file: Path, environments: Iterable[Environment] = ENVIRONMENTS, seed: int = 0) -> list[str]:
    """Draw the first environment of each family after some random steps; return a line for each that cannot be."""
    first_rows: dict[str, Environment] = {}
    for environment in environments:
        first_rows.setdefault(environment.family, environment)
    pictures, left_out = [], []
    for family, row in first_rows.items():
        if row.package and not is_installed(row.package):
            left_out.append(f"{family} is left out: {row.package} is not installed; run `pip install {row.package}`")
            continue
        try:
            pictures.append(_picture(row, seed))
        except Exception as error:  # simulators and renderers raise errors of any type
            reason = getattr(error, "message", str(error)) or type(error).__name__
            left_out.append(f"{family} is left out: {reason.splitlines()[0]}")
    if not pictures:
        raise UserError("\n".join(["no family of environments can be drawn here", *left_out]))
    _save(pictures, file)
    return left_out


def _picture(row: Environment, seed: int) -> Picture:
    with opened(make(row.name, render_mode="rgb_array", scale_actions=True)) as env:
        generator = np.random.default_rng(seed)
        observation, _ = env.reset(seed=seed)
        for _ in range(NUM_STEPS):
            action = random_action(env.action_space, generator)
            following, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                observation, _ = env.reset()
            else:
                observation = following
        frame = np.array(env.render(), np.uint8)
        return Picture(row.family, _square(frame), _newest(observation) if "-img" in row.name else None)


def _square(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the middle square of a frame; a frame longer than 4:3 is padded with its edges to a square instead."""
    shorter, longer = sorted(frame.shape[:2])
    size = shorter if 3 * longer <= 4 * shorter else longer
    missing = [max(0, size - length) for length in frame.shape[:2]]
    padded = np.pad(frame, [*((length // 2, length - length // 2) for length in missing), (0, 0)], mode="edge")
    top, left = ((length - size) // 2 for length in padded.shape[:2])
    return padded[top : top + size, left : left + size]


def _newest(observation: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the last image of a stack (n, h, w) of grey images; with n = 3, the planes are not colours."""
    newest: NDArray[np.uint8] = observation[-1]
    return newest


def _save(pictures: list[Picture], file: Path) -> None:
    from matplotlib.figure import Figure

    num_columns = _num_columns(len(pictures))
    num_rows = math.ceil(len(pictures) / num_columns)
    width, height = num_columns * (CELL + GAP) + GAP, num_rows * (CELL + TITLE + GAP) + GAP
    # Without pyplot, a figure needs no display, and the garbage collector frees it.
    figure = Figure(figsize=(width, height), facecolor="white")
    for number, picture in enumerate(pictures):
        row, column = divmod(number, num_columns)
        left, bottom = GAP + column * (CELL + GAP), height - (row + 1) * (CELL + TITLE + GAP)
        axes = figure.add_axes((left / width, bottom / height, CELL / width, CELL / height))
        axes.imshow(picture.frame, interpolation="antialiased")
        axes.set_title(picture.family, fontsize=9.5, pad=3.5)
        if picture.seen is not None:
            seen = axes.inset_axes((0.6, 0.02, 0.38, 0.38))
            seen.imshow(picture.seen, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            seen.set(xticks=[], yticks=[])
            seen.spines[:].set_color("white")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color="0.75", linewidth=0.6)
    save_figure(figure, file)


def _num_columns(num: int) -> int:
    """Return the number of columns, at most six, that fills the last row best."""
    return max(range(min(num, 4), min(num, 6) + 1), key=lambda columns: (-(-num % columns), columns))


if __name__ == "__main__":
    print(*gallery(Path(sys.argv[1])), sys.argv[1], sep="\n")
