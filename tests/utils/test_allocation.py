"""Freed memory is used again instead of faulted in anew."""

import subprocess
import sys

import pytest

COUNT = """
import resource, torch
from gymnasium import spaces
from offpcc.algorithms import ALGORITHMS
ALGORITHMS["sac"](spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)), hidden_dims=(4,))
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        x = torch.ones(8, 1024, 256)  # 8 MB, 2,048 pages
        del x
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
@pytest.mark.parametrize("kept", [True, False])
def test_memory_is_kept_unless_it_is_told_not_to(kept, monkeypatch):
    monkeypatch.setenv("OFFPCC_KEEP_MEMORY", str(int(kept)))
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")  # or glibc adapts to the first block that is freed
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert (int(done.stdout) < 200) == kept
