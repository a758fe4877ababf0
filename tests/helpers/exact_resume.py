"""Checks that a run in two halves equals a run without a break."""

import torch
from conftest import rows

from offpcc.training.checkpoint import read_checkpoint
from offpcc.training.fit import fit


def assert_resumes_exactly(spec, folder):
    """Train 3 epochs at once, and 1 and then the others; `spec(epochs)` is the run. Return the folder of the first."""
    whole, parts = folder / "whole", folder / "parts"
    fit(spec(3), whole, announce=lambda text: None)
    fit(spec(1), parts, announce=lambda text: None)
    fit(spec(3), parts, resume=True, announce=lambda text: None)
    for name in ("actor_last.pt", "actor_best.pt"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    assert rows(whole) == rows(parts)
    return whole


def tensors(value, prefix=""):
    """All tensors and numbers in nested state, by path."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {prefix: value}
    return {path: leaf for key, item in items for path, leaf in tensors(item, f"{prefix}/{key}").items()}


def assert_same(one, two):
    one, two = tensors(one), tensors(two)
    assert one.keys() == two.keys()
    for path, value in one.items():
        other = two[path]
        same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
        same = same or (isinstance(value, float) and value != value and other != other)  # NaN
        assert (
            same or path.endswith("/loop/seconds") or ("/loop/rows/" in path and "/time/" in path) or path == "/config"
        ), path


def assert_equal_runs(one, two, bound=True):
    """Compare the tables, checkpoints and actors of two runs' folders; without `bound`, their bindings may differ."""
    assert rows(one) == rows(two)
    checkpoints = [read_checkpoint(run / "checkpoint.pt") for run in (one, two)]
    for checkpoint in checkpoints:
        checkpoint["bound"] = checkpoint["bound"] if bound else None
    assert_same(*checkpoints)
    actors = [file.name for file in sorted(one.glob("actor_*.pt"))]
    assert actors == [file.name for file in sorted(two.glob("actor_*.pt"))]
    assert "actor_last.pt" in actors
    for name in actors:
        if bound:
            assert (one / name).read_bytes() == (two / name).read_bytes()
        else:
            assert_same(torch.load(one / name), torch.load(two / name))
