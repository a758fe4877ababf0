"""The benchmark of memories: all run, numbers are kept and told, and arguments that are none are refused."""

import json

import pytest

from benchmarks import memories, pictures
from offpcc.networks.cells import CELLS

SMALL = ["--width", "8", "--rounds", "2", "--batch", "2", "--inputs", "3"]


def test_every_memory_is_measured_told_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memories, "ACTS", 2)
    out = tmp_path / "new" / "memories.json"
    assert memories.main([*SMALL, "--cells", ",".join(CELLS), "--lengths", "3,5", "--out", str(out)]) == 0
    content = json.loads(out.read_text())
    found = {(row["memory"], row["of"], row["length"]) for row in content["rows"]}
    assert found == {
        (name, of, length) for name in CELLS for of, length in (("learning", 3), ("learning", 5), ("acting", None))
    } | {(name, memories.PRODUCTS, None) for name in CELLS.keys() - {"concat"}}
    for row in content["rows"]:
        assert 0.0 < row["low"] <= row["median"] <= row["high"] and row["rounds"] == 2
        assert row["unit"] == ("ms" if row["of"] == "learning" else "us")
    table = out.with_suffix(".md").read_text()
    assert table.count("\n| ") == 1 + len(content["rows"])
    assert "| learning, 5 steps | mingru |" in table and "1 thread;" in table
    assert out.with_suffix(".png").stat().st_size > 10_000
    assert "gru     learning 3 steps" in capsys.readouterr().out


def test_every_memory_has_a_colour():
    assert CELLS.keys() == pictures.MEMORIES.keys() and set(memories.MEMORIES) <= CELLS.keys()


def test_each_is_compared_with_the_lstm_of_its_length():
    rows = [
        memories.row("lstm", "learning", "ms", [4.0, 6.0, 5.0], 10),
        memories.row("gru", "learning", "ms", [2.0, 2.5, 9.0], 10),
        memories.row("lstm", "learning", "ms", [50.0], 20),
        memories.row("gru", "learning", "ms", [100.0], 20),
        memories.row("gru", "acting", "us", [1.0]),
    ]
    found = memories.groups(rows)
    assert [[memories.times_as_fast(row, group) for row in group] for group in found.values()] == [
        [1.0, 2.0], [1.0, 0.5], [None],
    ]  # fmt: skip
    assert rows[1]["low"] == 2.0 and rows[1]["high"] == 9.0


def test_they_take_turns_and_the_first_round_does_not_count():
    calls = []

    def work(name):
        def run():
            calls.append(name)
            return len(calls)

        return run

    assert memories.in_turn({"a": work("a"), "b": work("b")}, 2) == {"a": [3, 5], "b": [4, 6]}
    assert "".join(calls) == "ababab"


def test_acting_hands_the_state_on(monkeypatch):
    seen = []

    def step(x, state):
        seen.append(state)
        return x, (state or 0) + 1

    monkeypatch.setattr(memories, "mirror_of", lambda cell: step)
    monkeypatch.setattr(memories, "ACTS", 3)
    assert memories.acts(None, 2)() > 0.0
    assert seen == [None, *range(1, memories.WARM_UP + 3)]


def test_products_alone_are_those_of_all_matrices():
    found = memories.matrices(CELLS["lstm"](3, 8, 2))
    assert [matrix.shape for matrix in found] == [(3, 32), (8, 32), (8, 32), (8, 32)]
    assert memories.matrices(CELLS["concat"](3, 8, 1)) == []


def test_what_has_no_mirror_is_refused(monkeypatch):
    monkeypatch.setattr(memories, "mirror_of", lambda cell: None)
    with pytest.raises(ValueError, match="NoneType has no mirror"):
        memories.acts(None, 2)


@pytest.mark.parametrize(
    "option, value, told",
    [
        ("--cells", "lstm,gruu", "there is no memory 'gruu'; choose from lstm, gru"),
        ("--lengths", "3,x", "'3,x' are no lengths"),
        ("--lengths", "0", "'0' are no lengths"),
        ("--lengths", "", "'' are no lengths"),
    ],
)
def test_arguments_that_are_none(option, value, told, capsys):
    with pytest.raises(SystemExit):
        memories.main([option, value])
    assert told in capsys.readouterr().err
