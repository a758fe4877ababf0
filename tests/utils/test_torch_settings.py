"""Code of users that changes torch for all code of the process is told."""

import sys

import gymnasium
import numpy as np
import pytest
import torch
from misbehaving import Walk

from offpcc.envs.guard import Guard
from offpcc.envs.make import make
from offpcc.utils.errors import UserError
from offpcc.utils.paths import import_own

CHANGES = {
    "torch.set_default_dtype(torch.float64)": r"changed torch's default dtype from torch\.float32 to torch\.float64;",
    "torch.set_grad_enabled(False)": r"called torch\.set_grad_enabled\(False\) for all code of the process; use",
}


@pytest.fixture(params=CHANGES)
def change(request):
    yield request.param
    is_kept = torch.get_default_dtype() is torch.float32 and torch.is_grad_enabled()
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    assert is_kept


def test_a_module(change, tmp_path, monkeypatch):
    (tmp_path / "changes_torch.py").write_text(f"import torch\n{change}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "changes_torch", raising=False)
    with pytest.raises(UserError, match="^--import: import changes_torch: it " + CHANGES[change]):
        import_own("changes_torch", "--import")


class Changes(Walk):
    change = ""

    def __init__(self):
        exec(self.change)


def test_a_constructor(change, monkeypatch):
    monkeypatch.setattr(Changes, "change", change)
    with pytest.raises(UserError, match="^Changes " + CHANGES[change]):
        make(Changes)
    gymnasium.register("changes-v0", entry_point=Changes)
    try:
        with pytest.raises(UserError, match="^changes-v0 " + CHANGES[change]):
            make("changes-v0")
    finally:
        del gymnasium.registry["changes-v0"]


def test_a_reset(change):
    class Resets(Walk):
        def reset(self, *, seed=None, options=None):
            exec(change)
            return super().reset(seed=seed)

    with pytest.raises(UserError, match="^Resets " + CHANGES[change]):
        Guard(Resets()).reset()


def test_what_the_user_has_set_before_is_nobodys_fault():
    torch.set_default_dtype(torch.float64)
    try:
        observation, _ = Guard(make(Walk)).reset(seed=3)
        assert observation.dtype == np.float32 and torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
