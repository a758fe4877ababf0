"""Writer of MP4 videos."""

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
    """Write an MP4 file (H.264) for browsers, frame by frame.

    Frames are encoded as they arrive, so the memory use does not depend on the length of the episode.

    Args:
        file: The video; it appears when it is complete.
        fps: Frames per second.

    Yields:
        A function that adds a frame: an RGB image `(H, W, 3)` of uint8; all frames have the same size.

    Raises:
        ValueError: There are no frames, or a frame is not an RGB image with the size of the first frame.
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

        # `with writer` does not close the writer after an error; the encoder would continue to write.
        with closing(writer):
            yield add
        if shape is None:
            raise ValueError(f"no frames to write to {file}; was the environment made with render_mode='rgb_array'?")


def _even(frame: Frame) -> Frame:
    """Repeat the last row and column of a frame with odd sizes: colours at half resolution need even sizes."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
