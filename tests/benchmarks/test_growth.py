import json

from benchmarks import growth


def test_all_panels(tmp_path, monkeypatch, capsys):
    small = {
        name: growth.dataclasses.replace(panel, x=panel.x[:2], stored=lambda x: min(x, 1_000))
        for name, panel in growth.PANELS.items()
    }
    monkeypatch.setattr(growth, "PANELS", small)
    out = tmp_path / "growth.json"
    options = ["--rounds", "1", "--seconds", "0.001", "--largest", "1000", "--threads", "1", "--out", str(out)]
    assert growth.main(options) == 0
    content = json.loads(out.read_text())
    assert list(content["panels"]) == ["batch", "length", "width", "critics", "stored", "memory"]
    for name, panel in content["panels"].items():
        for curve in panel["curves"].values():
            assert len(curve) == len(panel["x"]) and all(point["median"] >= 0.0 for point in curve), name
    assert content["panels"]["batch"]["curves"].keys() == {"offpcc", "floor"}
    assert out.with_suffix(".png").stat().st_size > 10_000
    assert "stored" in capsys.readouterr().out
