"""`offpcc toy-model`: an animation of an ensemble that learns a noisy sine with a gap in its data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from offpcc.networks.gaussian_ensemble import GaussianEnsemble
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.figures import COLORS, STYLE, new_figure, save_figure
from offpcc.utils.files import replacing, writing_to
from offpcc.utils.rng import seeded_torch
from offpcc.utils.video import video

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
HIDDEN_DIMS = 64, 64
LR = 1e-3
BATCH_SIZE = 128
UPDATES_PER_FRAME = 100
FRAMES_PER_SECOND = 10
SUFFIXES = ".gif", ".mp4"
NUM_POINTS = 1_000  # on each side of the gap
NUM_BETWEEN = 100
XS: Array = np.arange(-3 * np.pi, 3 * np.pi, 0.01)


class Predictions(NamedTuple):
    """What an ensemble predicts at x."""

    mean: Array  # (N, X)
    std: Array  # (N, X)

    @property
    def aleatoric(self) -> Array:
        """The largest predicted standard deviation, (X,)."""
        return np.asarray(self.std.max(0))

    @property
    def epistemic(self) -> Array:
        """The largest distance between two means, (X,)."""
        return np.asarray(self.mean.max(0) - self.mean.min(0))


def noise_of(x: Array) -> Array:
    """Return the standard deviation of the noise at x."""
    return 0.225 * np.abs(np.sin(1.5 * x + np.pi / 8))


class ToyModel:
    """An ensemble that learns y = sin x + noise from points on both sides of a gap.

    Args:
        num_members: number of networks.
        between: whether there are 100 more points in the middle of the gap.
        seed: seed of the data, the initial weights and the batches.
        hidden_dims: widths of the hidden layers.
        lr: learning rate of Adam.
    """

    def __init__(
        self,
        num_members: int = 2,
        between: bool = False,
        seed: int = 0,
        hidden_dims: Sequence[int] = HIDDEN_DIMS,
        lr: float = LR,
    ) -> None:
        self.generator = np.random.default_rng(seed)
        sides = [(-2 * np.pi, -np.pi, NUM_POINTS), (np.pi, 2 * np.pi, NUM_POINTS)]
        sides += [(-0.25, 0.25, NUM_BETWEEN)] if between else []
        self.x = np.concatenate([self.generator.uniform(*side) for side in sides])
        self.y = np.sin(self.x) + noise_of(self.x) * self.generator.standard_normal(len(self.x))
        with seeded_torch(seed):
            self.net = GaussianEnsemble(num_members, 1, 1, hidden_dims, activation="silu")
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr, fused=True)
        self.data = torch.from_numpy(np.stack([self.x, self.y], 1).astype(np.float32))

    def update(self) -> None:
        """Make one update of all networks, each by a batch of its own."""
        drawn = self.generator.integers(len(self.data), size=(self.net.num, BATCH_SIZE))
        x, y = self.data[torch.from_numpy(drawn)].split_with_sizes((1, 1), -1)
        loss = self.net.loss(self.net(x), y)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    @torch.no_grad()
    def predict(self, x: Array) -> Predictions:
        """Return the predictions at x (X,)."""
        inputs = torch.from_numpy(x.astype(np.float32))[:, None]
        predicted = self.net(inputs.expand(self.net.num, *inputs.shape))
        mean, std = predicted.mean, (0.5 * predicted.log_variance).exp()
        return Predictions(mean[..., 0].double().numpy(), std[..., 0].double().numpy())


def run_toy_model(
    out: Path, members: int, updates: int, between: bool, seed: int, hidden_dims: Sequence[int], lr: float
) -> int:
    """Train a toy model, and write the animation and a picture of its last frame; return the exit code."""
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"{out} does not end in {' or '.join(SUFFIXES)}; rename it")
    last = out.with_suffix(".png")
    model = ToyModel(members, between, seed, hidden_dims, lr)
    with writing_to(out):
        write(frames(model, updates), out)
        save_figure(draw_predictions(model, updates), last)
    print(out, last, sep="\n")
    return 0


def frames(model: ToyModel, num_updates: int) -> Iterator[NDArray[np.uint8]]:
    """Train, and yield a picture of the predictions before the first update and after each hundred of them."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for number in range(num_updates + 1):
        signals.poll()
        if number % UPDATES_PER_FRAME == 0 or number == num_updates:
            with matplotlib.rc_context(STYLE):
                canvas: Any = FigureCanvasAgg(draw_predictions(model, number))
                canvas.draw()
            yield np.asarray(canvas.buffer_rgba())[..., :3]
        if number < num_updates:
            model.update()


def write(pictures: Iterator[NDArray[np.uint8]], file: Path) -> None:
    """Write an animation: GIF or MP4, by the suffix."""
    import imageio.v2 as imageio

    if file.suffix.lower() == ".mp4":
        with video(file, FRAMES_PER_SECOND) as add:
            for picture in pictures:
                add(picture)
        return
    with replacing(file) as temporary:
        writer: Any = imageio.get_writer(temporary, duration=1000 / FRAMES_PER_SECOND, loop=0)
        with writer:
            for picture in pictures:
                writer.append_data(picture)


def draw_predictions(model: ToyModel, num_updates: int) -> Figure:
    """Return a figure of the data, the predictions with bands of one standard deviation, and both uncertainties."""
    found = model.predict(XS)
    with new_figure(7.2, 5.4) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        top.plot(model.x[::10], model.y[::10], "x", color="#009E73", markersize=4, alpha=0.6, label="data")
        top.plot(XS, np.sin(XS), color="black", linewidth=1.0, label="sin x")
        for number, (mean, std) in enumerate(zip(found.mean, found.std, strict=True)):
            color = COLORS[number % len(COLORS)]
            top.plot(XS, mean, color=color, linewidth=1.2)
            top.fill_between(XS, mean - std, mean + std, color=color, alpha=0.2, linewidth=0)
        top.set(xlim=(-8, 8), ylim=(-1.5, 1.5), ylabel="y", title=f"{model.net.num} networks, {num_updates:,} updates")
        bottom.plot(XS, found.aleatoric, color=COLORS[0], label="aleatoric (largest std)")
        bottom.plot(XS, found.epistemic, color=COLORS[1], label="epistemic (largest distance)")
        bottom.set(xlabel="x", ylabel="uncertainty", ylim=(0, 1.5))
        for axes in (top, bottom):
            axes.legend(loc="upper right")
    return figure
