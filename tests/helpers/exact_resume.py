"""Checks that a run in two halves equals a run without a break."""

from offpcc.training.fit import fit


def assert_resumes_exactly(spec, folder):
    """Train 3 epochs at once, and 1 and then the others; `spec(epochs)` is the run. Return the folder of the first."""
    whole, parts = folder / "whole", folder / "parts"
    fit(spec(3), whole, announce=lambda text: None)
    fit(spec(1), parts, announce=lambda text: None)
    fit(spec(3), parts, resume=True, announce=lambda text: None)
    for name in ("actor_last.pt", "actor_best.pt"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    timeless = [line.split(",")[:-2] for line in (whole / "progress.csv").read_text().splitlines()]
    assert timeless == [line.split(",")[:-2] for line in (parts / "progress.csv").read_text().splitlines()]
    return whole
