"""Guards the process against code outside offpcc, which must neither end it nor change global settings.

An environment runs in the training process. It can end the process silently (`os._exit`), and it can change settings
that all code in the process shares. Inside ``with ProcessGuard():``, `os._exit` raises `MisuseError`. A changed setting
is restored, and `MisuseError` is raised. Python code cannot stop C code that ends the process.
"""

import multiprocessing
import os
import sys
import threading
from types import TracebackType
from typing import Any, NoReturn


class MisuseError(BaseException):
    """A call tried to end the process or changed a global setting.

    This is not an `Exception`, so that ``except Exception`` in other code does not catch it.

    Args:
        what: what the call did, such as "called os._exit(0)".
        remedy: what the author of the code can do.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


class ProcessGuard:
    """Context manager around one call; restores settings that the call changed.

    Raises:
        MisuseError: the call changed a setting, or called `os._exit`.
    """

    __slots__ = ("_dtype", "_is_grad_enabled", "_recursion_limit", "_streams")

    def __enter__(self) -> None:
        if not _is_installed:
            _replace_exit()
        _thread.depth += 1
        self._recursion_limit = sys.getrecursionlimit()
        out, err = sys.stdout, sys.stderr
        self._streams = (  # (name, file descriptor, stream, whether it is closed)
            ("stdout", 1, out, getattr(out, "closed", True)),
            ("stderr", 2, err, getattr(err, "closed", True)),
        )
        torch = sys.modules.get("torch")
        self._dtype = getattr(torch, "get_default_dtype", _return_none)()  # torch may be partly imported
        self._is_grad_enabled = getattr(torch, "is_grad_enabled", _return_none)()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lowered = sys.getrecursionlimit()
        if lowered < self._recursion_limit:  # first, because the code below needs stack depth
            sys.setrecursionlimit(self._recursion_limit)
        _thread.depth -= 1
        misuses = self._restore_torch() + self._restore_streams()
        if lowered < self._recursion_limit:
            text = f"lowered Python's recursion limit from {self._recursion_limit} to {lowered}"
            misuses.append((text, "leave the limit as it is"))
        # Errors that are no `Exception` come from a signal, a timeout or os._exit; they pass through unchanged.
        if misuses and (error is None or isinstance(error, Exception)):
            raise MisuseError(*misuses[0]) from error

    def _restore_torch(self) -> list[tuple[str, str]]:
        torch: Any = sys.modules.get("torch")
        misuses: list[tuple[str, str]] = []
        if self._dtype is None:
            return misuses
        if (dtype := torch.get_default_dtype()) is not self._dtype:
            torch.set_default_dtype(self._dtype)
            text = f"changed torch's default dtype from {self._dtype} to {dtype}"
            misuses.append((text, "give its own tensors a dtype, and leave the default as it is"))
        if (is_enabled := torch.is_grad_enabled()) is not self._is_grad_enabled:
            torch.set_grad_enabled(self._is_grad_enabled)
            text = f"called torch.set_grad_enabled({is_enabled}) for all code of the process"
            misuses.append((text, "use `with torch.no_grad():` instead"))
        return misuses

    def _restore_streams(self) -> list[tuple[str, str]]:
        misuses = []
        for name, descriptor, stream, was_closed in self._streams:
            if not was_closed and stream.closed and getattr(sys, name) is stream:
                _reopen(name, descriptor)
                misuses.append((f"closed sys.{name}", "leave it open"))
        return misuses


class _Thread(threading.local):
    depth = 0  # number of nested calls in this thread


_thread = _Thread()
_os_exit = os._exit
_is_installed = False  # replace os._exit once only, because other code may replace it, too
_may_exit = False  # see `allow_exit`


def allow_exit() -> None:
    """Let environments end this process by os._exit, because another process starts a new one in its place."""
    global _may_exit
    _may_exit = True


def _return_none() -> None:
    return None


def _replace_exit() -> None:
    global _os_exit, _is_installed
    _os_exit, _is_installed = os._exit, True
    os._exit = _exit_if_allowed


def _exit_if_allowed(status: int) -> NoReturn:
    # In a multiprocessing child, os._exit is allowed: the parent sees the exit code.
    if _thread.depth and multiprocessing.parent_process() is None and not _may_exit:
        raise MisuseError(f"called os._exit({status})", "raise an exception instead")
    _os_exit(status)


def _reopen(name: str, descriptor: int) -> None:
    try:
        os.fstat(descriptor)
        setattr(sys, name, os.fdopen(descriptor, "w", buffering=1, closefd=False, errors="backslashreplace"))
    except OSError:  # with None, print does nothing
        setattr(sys, name, None)


def _reset_depth() -> None:
    _thread.depth = 0


os.register_at_fork(after_in_child=_reset_depth)  # a forked process may call os._exit
