"""Benchmarks of large buffers, large recordings and several runs at a time, at small sizes."""

import re
import subprocess
import sys

import h5py
import pytest

from benchmarks import large


@pytest.mark.parametrize(("part", "num_steps"), [("buffer", 200_000), ("frames", 10_000)])
def test_a_buffer_is_filled_and_sampled(part, num_steps):
    """In a process of its own: one that has freed memory before fills the buffer from that, and does not grow."""
    command = [sys.executable, "-m", "benchmarks.large", part, "--steps", str(num_steps), "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    steps, size, sampled = done.stdout.splitlines()[-1].split()
    assert steps == f"{num_steps:,}" and float(size) > 0 and float(sampled) > 0
    limited = subprocess.run([*command, "--memory_limit", "1_000_000"], capture_output=True, text=True, check=True)
    in_memory = float(limited.stdout.splitlines()[-1].split()[1])
    assert (in_memory < float(size) - 5_000) == (part == "frames"), "frames beyond the limit are in a file"


@pytest.mark.slow
def test_recordings_are_read_in_processes_of_their_own(tmp_path, capsys):
    assert large.main(["data", "--gigabytes", "0.05", "--memory_limit", "10_000_000", "--folder", str(tmp_path)]) == 0
    images, vectors = capsys.readouterr().out.splitlines()[-2:]
    assert images.startswith("images: 2,000 steps") and "memory_limit 0.01 GB" in images
    assert vectors.startswith("vectors: 806,000 steps") and not list(tmp_path.iterdir())


def test_the_file_holds_whole_episodes(tmp_path):
    assert large.write(tmp_path / "x.hdf5", 0.0002, large.VECTOR, "float32") == 3_000
    with h5py.File(tmp_path / "x.hdf5") as file:
        assert file["observations"].shape == (3_000, 11) and file["actions"].shape == (3_000, 3)
        assert file["timeouts"][:].nonzero()[0].tolist() == [999, 1_999, 2_999] and not file["terminals"][:].any()


@pytest.mark.slow
def test_runs_at_a_time(capsys):
    assert large.main(["runs", "--numbers", "1", "2", "--seconds", "0.2", "--rounds", "1"]) == 0
    one, two = (list(map(float, re.findall(r"[\d.]+", line))) for line in capsys.readouterr().out.splitlines()[-2:])
    assert one[0] == 1 and one[1] == one[2] and one[3] == 1.0
    assert two[0] == 2 and two[2] == pytest.approx(2 * two[1], abs=0.2)
