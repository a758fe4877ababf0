from benchmarks import watching


def test_each_case_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(watching, "STORED", 600)
    monkeypatch.setattr(watching, "MEASURED", {"BC": ("bc", {}), "SAC, fused": ("sac", {"fused": True})})
    assert watching.main(["--turns", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:20].strip() for line in lines] == ["BC", "SAC, fused"] and all(line.endswith("%") for line in lines)
