"""Writes videos."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offpcc.utils.files import replacing

Frame = npt.NDArray[np.uint8]


@contextmanager
def video(file: Path, fps: int) -> Iterator[Callable[[Any], None]]:
    """Write an MP4 file (H.264) that browsers play, frame by frame.

    Frames are encoded as they come, so a long episode needs no more memory than a short one.

    Args:
        file: The video; it appears once it is complete.
        fps: Frames per second.

    Yields:
        A function that adds a frame: an RGB image `(H, W, 3)` of uint8, all of one size.

    Raises:
        ValueError: If there are no frames, or one is no RGB image of the first one's size.
    """
    import imageio.v2 as imageio

    shape: tuple[int, ...] | None = None
    with replacing(file) as temporary:
        writer = imageio.get_writer(
            temporary,
            format="FFMPEG",
            fps=fps,
            codec="libx264",
            pixelformat="yuv420p",
            macro_block_size=1,
            ffmpeg_log_level="error",
            output_params=["-movflags", "+faststart"],
        )

        def add(frame: Any) -> None:
            nonlocal shape
            frame = np.asarray(frame)
            shape = shape or frame.shape
            if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.shape != shape:
                raise ValueError(f"need frames (H, W, 3) of uint8 and one size, got {frame.shape} of {frame.dtype}")
            writer.append_data(_even(frame))

        # Left by an error, `with writer` would not close it, and the encoder would go on writing.
        with closing(writer):
            yield add
        if shape is None:
            raise ValueError(f"no frames to write to {file}; was the environment made with render_mode='rgb_array'?")


def _even(frame: Frame) -> Frame:
    """Repeat the last row and column where needed: colours at half resolution ask for even sizes."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
