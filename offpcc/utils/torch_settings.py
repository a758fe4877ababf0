"""Code of users must not change the settings of torch that all code of a process shares."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from offpcc.utils.errors import UserError


@contextmanager
def torch_settings_kept(who: str) -> Iterator[None]:
    """Restore torch's default dtype and gradient mode if the body, code of `who`, changed them, and raise an error."""
    before = _settings()
    yield
    if (after := _settings()) is None:
        return
    torch: Any = sys.modules["torch"]
    dtype, has_gradients = before or (torch.float32, True)  # of torch that the body has imported
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(has_gradients)
    if after[0] is not dtype:
        raise UserError(
            f"{who} changed torch's default dtype from {dtype} to {after[0]}; give its own tensors a dtype, and leave "
            f"the default as it is"
        )
    if after[1] is not has_gradients:
        raise UserError(
            f"{who} called torch.set_grad_enabled({after[1]}) for all code of the process; use `with torch.no_grad():` "
            f"instead"
        )


def _settings() -> tuple[Any, bool] | None:
    torch: Any = sys.modules.get("torch")
    return None if torch is None else (torch.get_default_dtype(), torch.is_grad_enabled())
