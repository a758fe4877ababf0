"""Commands of the benchmarks tell faults in one line, and several may write one file."""

import argparse
import json
import multiprocessing

import pytest

from benchmarks import growth, large, memories, time_to_solve
from benchmarks.cases import CaseError
from benchmarks.command import above_zero, command, locked, positive
from offpcc.utils.errors import UserError

ROUNDS = 30


@pytest.mark.parametrize("kind", [UserError, CaseError])
def test_a_fault_is_one_line(kind, capsys):
    @command
    def main():
        raise kind("there is no such thing")

    assert main() == 2 and capsys.readouterr().err == "benchmarks: there is no such thing\n"
    assert command(lambda: None)() == 0 and command(lambda code: code)(3) == 3


@pytest.mark.parametrize("read, text", [(positive, "0"), (positive, "-3"), (above_zero, "0"), (above_zero, "nan")])
def test_numbers_that_nothing_can_be_measured_with(read, text):
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        read(text)


@pytest.mark.parametrize("main, arguments, words", [
    (growth.main, ["--rounds", "0"], "0 is not 1 or more"),
    (memories.main, ["--rounds", "0"], "0 is not 1 or more"),
    (large.main, ["runs", "--numbers", "0"], "0 is not 1 or more"),
    (large.main, ["data", "--gigabytes", "0"], "0 is not more than 0"),
])  # fmt: skip
def test_no_measurement(main, arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and words in capsys.readouterr().err


def test_a_damaged_file_is_named(tmp_path, capsys):
    file = tmp_path / "times.json"
    file.write_text("{")
    assert time_to_solve.main(["--configs", "quickstart", "--out", str(file)]) == 2
    assert f"benchmarks: {file} holds no rows" in capsys.readouterr().err


def _count(file):
    for _ in range(ROUNDS):
        with locked(file):
            number = json.loads(file.read_text()) if file.exists() else 0
            file.write_text(json.dumps(number + 1))


def test_no_row_is_lost_if_two_write_one_file(tmp_path):
    file = tmp_path / "deep" / "rows.json"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_count, args=(file,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert json.loads(file.read_text()) == 2 * ROUNDS
