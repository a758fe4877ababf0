"""Videos of an agent at work."""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offpcc.files import replacing

Frame = npt.NDArray[np.uint8]


def write_video(frames: Iterable[Frame], file: Path, fps: int) -> None:
    """Write frames as an MP4 file (H.264) that browsers play.

    Frames are encoded one by one as they come, so a long episode needs no more memory than a short one.

    Args:
        frames: RGB images `(H, W, 3)` of one size.
        file: The video; it appears once it is complete.
        fps: Frames per second.

    Raises:
        ValueError: If there are no frames, or one is no RGB image of the first one's size.
    """
    import imageio.v2 as imageio

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
        # Left by an error, `with writer` would not close it, and the encoder would go on writing.
        with closing(writer):
            shape = None
            for frame in frames:
                shape = shape or frame.shape
                if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.shape != shape:
                    raise ValueError(f"need frames (H, W, 3) of uint8 and one size, got {frame.shape} of {frame.dtype}")
                writer.append_data(_even(frame))
        if shape is None:
            raise ValueError(f"no frames to write to {file}; was the environment made with render_mode='rgb_array'?")


def _even(frame: Frame) -> Frame:
    """Repeat the last row and column where needed: colours at half resolution ask for even sizes."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
