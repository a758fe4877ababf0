import json
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.cases import CASES
from benchmarks.results import DamagedError, replaced, rows_of, to_best_peer, to_floor
from benchmarks.rounds import Found, Plan


def found(case, plan=None, **rates):
    """Rows of a case, from a library's values."""
    each = [Found(name.replace("_", "-"), values, "1.0", "") for name, values in rates.items()]
    return rows_of(CASES[case], each, plan or Plan())


def test_a_row():
    (row,) = found("sac", Plan(threads=1, seconds=0.5), offpcc=[3.0, 1.0, 2.0])
    expected = {
        "case": "sac", "library": "offpcc", "threads": 1, "median": 2.0, "low": 1.0, "high": 3.0, "rounds": 3,
        "values": [3.0, 1.0, 2.0], "seconds": 0.5, "unit": "updates/s", "version": "1.0", "note": "",
    }  # fmt: skip
    assert expected.items() <= row.items()
    assert row.keys() - expected.keys() == {"machine", "date"}


def test_a_library_that_failed_has_no_row():
    assert [row["library"] for row in found("sac", offpcc=[1.0], tianshou=[])] == ["offpcc"]


def test_measuring_again_replaces_whole_cases():
    old = found("sac", floor=[9.0], offpcc=[1.0], tianshou=[2.0]) + found("td3", offpcc=[3.0])
    new = found("sac", offpcc=[5.0], floor=[8.0])
    rows = replaced(old, new)
    told = [(row["case"], row["library"], row["median"]) for row in rows]
    assert told == [("sac", "floor", 8.0), ("sac", "offpcc", 5.0), ("td3", "offpcc", 3.0)]


def test_other_threads_are_other_rows():
    rows = replaced(found("sac", offpcc=[1.0]), found("sac", Plan(threads=1), offpcc=[2.0]))
    assert [(row["threads"], row["median"]) for row in rows] == [(2, 1.0), (1, 2.0)]


def test_ratios_of_rates():
    rows = found("sac", floor=[10.0], offpcc=[8.0], d3rlpy=[2.0], tianshou=[4.0])
    assert to_floor(rows[1], rows) == pytest.approx(1.25)  # of the floor's time
    assert to_best_peer(rows[1], rows) == pytest.approx(2.0)
    assert to_floor(rows[0], rows) is None and to_best_peer(rows[2], rows) is None


def test_ratios_of_what_is_better_when_low():
    rows = found("sample", offpcc=[10.0], tianshou=[40.0], d3rlpy=[80.0])
    assert to_best_peer(rows[0], rows) == pytest.approx(4.0) and to_floor(rows[0], rows) is None


def test_ratios_are_those_of_rounds():
    """A machine that is slow in every second round: the median of each library may come from another kind of round."""
    rows = found("sac", offpcc=[11.0, 110.0, 11.0], d3rlpy=[10.0, 100.0, 100.0], floor=[22.0, 220.0, 22.0])
    assert to_best_peer(rows[0], rows) == pytest.approx(1.1) and to_floor(rows[0], rows) == pytest.approx(2.0)
    older = [{name: cell for name, cell in row.items() if name != "values"} for row in rows]
    assert to_best_peer(older[0], older) == pytest.approx(0.11)
    calls = found("sample", offpcc=[10.0, 100.0, 100.0], d3rlpy=[20.0, 20.0, 200.0])
    assert to_best_peer(calls[0], calls) == pytest.approx(2.0)


def test_what_is_written(tmp_path):
    file = tmp_path / "deep" / "throughput.json"
    rows = found("sac", floor=[10.0, 10.0], offpcc=[8.0, 9.0], tianshou=[4.0, 4.0])
    results.write(file, rows)
    content = json.loads(file.read_text())
    assert content.keys() == {"machine", "versions", "rows"}
    assert {"cpu", "cores", "avx512"} <= content["machine"].keys() and "torch" in content["versions"]
    assert results.read(file) == rows
    table = file.with_suffix(".md").read_text()
    assert "| SAC | offpcc | 8.50 updates/s | 8.00 to 9.00 | 1.18 | 2.12 |" in table
    assert f"## 2 threads, {rows[0]['machine']}\n" in table and "*" not in table


def test_what_is_compared_otherwise_or_was_measured_elsewhere_is_told(tmp_path):
    rows = found("sac", floor=[10.0], offpcc=[8.0, 9.0], tianshou=[4.0])
    elsewhere = [{**row, "machine": "another one"} for row in found("td3", offpcc=[1.0], tianshou=[1.0])]
    results.write(tmp_path / "throughput.json", [*rows, *elsewhere])
    table = (tmp_path / "throughput.md").read_text()
    assert "| SAC | offpcc | 8.50 updates/s | 8.00 to 9.00 | 1.18* | 2.12* |" in table
    assert "A ratio with * is that of the medians" in table
    here, there = table.index(f"## 2 threads, {rows[0]['machine']}"), table.index("## 2 threads, another one")
    assert here < table.index("| SAC | offpcc") < there < table.index("| TD3 | offpcc")


@pytest.mark.parametrize("content", ["no JSON", '{"rows": [{"case": "sac"}]}', "[]", '{"rows": 3}'])
def test_a_foreign_file_is_refused(tmp_path, content):
    file = tmp_path / "throughput.json"
    file.write_text(content)
    with pytest.raises(DamagedError, match="remove it"):
        results.read(file)


def test_a_file_of_other_columns():
    with pytest.raises(DamagedError):
        results.read(Path("results/benchmarks/throughput.json"), ("no_such_column",))
