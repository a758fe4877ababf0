"""Freed memory is used again instead of faulted in anew."""

import subprocess
import sys

import pytest

from offpcc.utils.errors import UserError
from offpcc.utils.system import keep_freed_memory

COUNT = """
import resource, sys, torch
import offpcc
from offpcc.training.spec import choose_device
offpcc.build("pendulum-v0", "sac", algorithm={"hidden_dims": (4,)})
if "command_line" in sys.argv:
    choose_device("cpu")
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
@pytest.mark.parametrize(
    ("user", "is_told", "kept"),
    [("command_line", "1", True), ("command_line", "0", False), ("python", "1", False)],
)
def test_memory_is_kept_for_the_command_line_alone_and_unless_it_is_told_not_to(user, is_told, kept, monkeypatch):
    monkeypatch.setenv("OFFPCC_KEEP_MEMORY", is_told)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")  # or glibc adapts to the first block that is freed
    done = subprocess.run([sys.executable, "-c", COUNT, user], capture_output=True, text=True, check=True)
    assert (int(done.stdout) < 200) == kept


def test_another_value_is_refused(monkeypatch):
    monkeypatch.setenv("OFFPCC_KEEP_MEMORY", "false")
    with pytest.raises(UserError, match="OFFPCC_KEEP_MEMORY is false; it has to be 0 or 1"):
        keep_freed_memory.__wrapped__()  # not the result of an earlier call
