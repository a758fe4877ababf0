"""The command as a whole, with offpcc and the floor alone."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import throughput
from benchmarks.libraries import SOURCES

TINY = ("--rounds", "1", "--seconds", "0.01", "--transitions", "400", "--threads", "1")

CLONE = """
from benchmarks.libraries import UnavailableError, Work

def prepare(case, num_transitions):
    if case.name != "bc":
        raise UnavailableError("it has behaviour cloning alone")
    return Work(lambda: None, units=2, note="nothing at all")
"""


BROKEN = """
def prepare(case, num_transitions):
    raise RuntimeError("bad clone")
"""


@pytest.mark.slow
def test_a_round(tmp_path, capsys):
    out, clone, broken = tmp_path / "throughput.json", tmp_path / "clone.py", tmp_path / "broken.py"
    clone.write_text(CLONE)
    broken.write_text(BROKEN)
    cases = ("--cases", "bc", "--libraries", "floor,offpcc,other,broken")
    clones = ("--clone", f"other={clone}", "--clone", f"broken={broken}")
    assert throughput.main([*TINY, *cases, *clones, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["library"] for row in rows] == ["floor", "offpcc", "other"]
    assert all(row["median"] > 0.0 and row["threads"] == 1 for row in rows)
    assert rows[0]["note"].startswith("actor (o): mm") and rows[2]["note"] == "nothing at all"
    assert out.with_suffix(".png").stat().st_size > 5_000
    told = " ".join(capsys.readouterr().out.split())
    assert "BC (bc)" in told
    assert "bc: broken is left out: its process ended with code 1: RuntimeError: bad clone" in told


def test_on_a_gpu(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(throughput, "measure", lambda case, names, *others: asked.append((case, names)) or [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    arguments = ("--device", "cuda", "--cases", "sac,rsac_small", "--out", str(tmp_path / "gpu.json"))
    assert throughput.main(arguments) == 1  # nothing was measured
    assert [case.device for case, _ in asked] == ["cuda", "cuda"]
    ours = ["offpcc", "offpcc-bf16", "offpcc-eager"]
    assert [names for _, names in asked] == [[*ours, "stable-baselines3", "d3rlpy"], ours]


@pytest.mark.parametrize("arguments, told", [
    (("--device", "cuda"), "benchmarks: --device cuda, but PyTorch finds no GPU"),
    (("--cases", "sax"), "benchmarks: there is no case 'sax'; did you mean sac"),
    (("--libraries", "sb3"), "benchmarks: there is no library 'sb3'"),
])  # fmt: skip
def test_a_wrong_name(tmp_path, capsys, monkeypatch, arguments, told):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert throughput.main([*arguments, "--out", str(tmp_path / "throughput.json")]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(told) and errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [
    ("--rounds", "0"), ("--seconds", "nan"), ("--clone", "offpcc=x.py"), ("--clone", "x.py"), ("--threads", "x"),
])  # fmt: skip
def test_wrong_options(arguments):
    with pytest.raises(SystemExit) as stop:
        throughput.main(list(arguments))
    assert stop.value.code == 2


def test_peers_pin_nothing_of_ours():
    """What offpcc pins is what its peers run on."""
    root = Path(throughput.__file__).parent.parent

    def pinned(file):
        lines = (root / file).read_text().splitlines()
        return {line.split("==")[0].split("[")[0].lower() for line in lines if "==" in line}

    peers = pinned("benchmarks/requirements.txt")
    assert not peers & pinned("requirements.txt")
    assert {SOURCES[name].package for name in ("stable-baselines3", "d3rlpy", "tianshou", "torchrl")} <= peers
