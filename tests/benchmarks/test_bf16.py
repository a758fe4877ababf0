import dataclasses
import json

import pytest
import torch

from benchmarks import bf16
from benchmarks.cases import CASES
from benchmarks.libraries import SOURCES, UnavailableError, offpcc_agents


def test_gradients_of_an_update():
    sizes = dataclasses.replace(CASES["rsac_small"].sizes, batch_size=2, hidden_dims=(8,), memory=(4, 1))
    learner = offpcc_agents.algorithm("rsac", sizes)
    with pytest.raises(UnavailableError, match="no gradients"):
        bf16.gradients(learner)
    learner.update_networks(offpcc_agents.buffer(sizes, 400).sample())
    found = bf16.gradients(learner)
    assert {"actor", "critics", "actor_encoder", "critic_encoders"} <= found.keys()
    assert not any(name.startswith("target") for name in found)


def test_the_same_precision_has_no_error(monkeypatch):
    """And another seed has a large one."""
    monkeypatch.setitem(SOURCES, "offpcc-bf16", SOURCES["offpcc"])
    monkeypatch.setattr(bf16, "STORED", 400)
    assert {row["median"] for row in bf16.errors("rsac_small", 1)} == {0.0}


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bf16, "STORED", 400)
    out = tmp_path / "bf16.json"
    code = bf16.main(["--cases", "rsac_small", "--batches", "1", "--threads", "1", "--out", str(out)])
    if code == 2:
        assert "precision='bfloat16'" in capsys.readouterr().err and not out.exists()
        return
    rows = json.loads(out.read_text())["rows"]
    assert 0.0 < next(row["median"] for row in rows if row["network"] == "all") < 0.1


@pytest.fixture(autouse=True)
def same_noise():
    torch.manual_seed(0)
