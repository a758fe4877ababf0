"""A call of code outside offpcc can neither end the process nor change its settings."""

import io
import os
import signal
import subprocess
import sys

import pytest

from offpcc.utils.errors import UserError
from offpcc.utils.paths import import_own
from offpcc.utils.process_guard import MisuseError, ProcessGuard
from offpcc.utils.signals import Interrupted


def test_a_process_ends_as_it_likes_outside_of_such_calls():
    code = "import os; from offpcc.utils.process_guard import ProcessGuard\nwith ProcessGuard(): pass\nos._exit(7)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 7


def test_so_does_a_process_that_such_a_call_forks():
    with ProcessGuard():
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_calls_within_calls():
    with pytest.raises(MisuseError, match=r"^called os\._exit\(3\)$"), ProcessGuard():
        with ProcessGuard():
            pass
        os._exit(3)


def test_a_call_in_one_thread_leaves_others_alone():
    code = "\n".join([
        "import os, threading",
        "from offpcc.utils.process_guard import ProcessGuard",
        "def end(): os._exit(7)",
        "with ProcessGuard():",
        "    thread = threading.Thread(target=end)",
        "    thread.start()",
        "    thread.join(60)",
    ])  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], timeout=90).returncode == 7


def test_all_that_was_changed_is_put_back(monkeypatch):
    torch, limit = pytest.importorskip("torch"), sys.getrecursionlimit()
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, io.StringIO())
    with pytest.raises(MisuseError), ProcessGuard():
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        sys.setrecursionlimit(limit - 100)
        sys.stdout.close()
        sys.stderr.close()
    assert torch.get_default_dtype() is torch.float32 and torch.is_grad_enabled()
    assert sys.getrecursionlimit() == limit and not sys.stdout.closed and not sys.stderr.closed


def test_a_signal_comes_before_what_was_changed():
    torch = pytest.importorskip("torch")
    with pytest.raises(Interrupted), ProcessGuard():
        torch.set_default_dtype(torch.float64)
        raise Interrupted(signal.SIGTERM)
    assert torch.get_default_dtype() is torch.float32


def test_what_was_so_before_and_a_higher_limit_are_nobodys_fault(monkeypatch):
    limit = sys.getrecursionlimit()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    sys.stdout.close()
    try:
        with ProcessGuard():
            sys.setrecursionlimit(limit + 100)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("os._exit(0)", "called os._exit(0); raise"),
        ("raise GeneratorExit", "fails: GeneratorExit ("),
        ("sys.setrecursionlimit(400)", "lowered Python's recursion limit"),
    ],
)
def test_importing_a_module_is_such_a_call(line, told, tmp_path, monkeypatch):
    (tmp_path / "misused.py").write_text(f"import os, sys\n{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    limit = sys.getrecursionlimit()
    try:
        with pytest.raises(UserError) as raised:
            import_own("misused", "--env misused:a-v0")
    finally:
        sys.modules.pop("misused", None)
    assert f"import misused {told}" in raised.value.message and sys.getrecursionlimit() == limit
