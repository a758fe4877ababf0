import weakref

import imageio.v2 as imageio
import numpy as np
import pytest

from offpcc.utils.video import video


def write_video(frames, file, fps):
    with video(file, fps) as add:
        for frame in frames:
            add(frame)


def frames(count, height=48, width=64):
    """Each frame is of one brightness, growing from frame to frame."""
    for i in range(count):
        yield np.full((height, width, 3), 5 * i, np.uint8)


def test_a_video_has_the_frames_in_order_and_the_speed(tmp_path):
    write_video(frames(20), tmp_path / "a.mp4", fps=10)
    with imageio.get_reader(tmp_path / "a.mp4") as reader:
        data = reader.get_meta_data()
        read = list(reader.iter_data())
    assert data["fps"] == 10
    assert data["codec"] == "h264"
    assert data["pix_fmt"].startswith("yuv420p")
    assert [frame.shape for frame in read] == [(48, 64, 3)] * 20
    assert np.allclose([frame.mean() for frame in read], 5 * np.arange(20), atol=2)
    assert list(tmp_path.iterdir()) == [tmp_path / "a.mp4"]


def test_odd_sizes_are_padded_with_the_edge(tmp_path):
    frame = np.zeros((33, 41, 3), np.uint8)
    frame[-1], frame[:, -1] = 255, 255
    write_video([frame] * 5, tmp_path / "a.mp4", fps=10)
    read = imageio.mimread(tmp_path / "a.mp4")
    assert read[0].shape == (34, 42, 3)
    assert read[0][-1].mean() > 200
    assert read[0][:, -1].mean() > 200
    assert read[0][:30, :38].mean() < 20


def test_frames_are_not_gathered_in_memory(tmp_path):
    alive = []

    def counted():
        for frame in frames(50):
            alive.append(weakref.ref(frame))
            assert sum(reference() is not None for reference in alive) <= 4
            yield frame

    write_video(counted(), tmp_path / "a.mp4", fps=10)
    assert len(alive) == 50


def test_an_interrupted_recording_leaves_the_old_video(tmp_path):
    file = tmp_path / "a.mp4"
    file.write_bytes(b"old")

    def failing():
        yield from frames(3)
        raise RuntimeError("the environment broke")

    with pytest.raises(RuntimeError, match="environment broke"):
        write_video(failing(), file, fps=10)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_no_frames_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="no frames"):
        write_video([], tmp_path / "a.mp4", fps=10)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((48, 64, 3)),
        np.zeros((48, 64), np.uint8),
        np.zeros((48, 64, 4), np.uint8),
        np.zeros((50, 64, 3), np.uint8),
    ],
)
def test_frames_that_are_no_images_of_one_size_are_an_error(tmp_path, bad):
    with pytest.raises(ValueError, match="need frames"):
        write_video([*frames(2), bad], tmp_path / "a.mp4", fps=10)
    assert not list(tmp_path.iterdir())
