import re

from benchmarks import checkpoints


def test_it_tells_bytes_and_seconds_of_both_buffers(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["checkpoints", "--steps", "3000", "--rounds", "1"])
    monkeypatch.setattr(checkpoints, "rate", lambda *arguments: 100.0)
    checkpoints.main()
    told = capsys.readouterr().out
    rows = 3_000 * 65
    found = [
        int(number.replace(",", "")) for number in re.findall(r"all of it +([\d,]+) bytes .* itself ([\d,]+)", told)[0]
    ]
    assert found[0] - found[1] == rows
    assert told.count("read back") == told.count("share of training time") == 2
