"""The numbers as they are kept: rows of JSON, and a Markdown table made of them."""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, LIBRARIES, OURS, Case
from benchmarks.machine import in_words, machine, versions
from benchmarks.rounds import Found, Plan

Row = dict[str, Any]


class DamagedError(ValueError):
    """The file that is there holds no rows."""


def rows_of(case: Case, found: Iterable[Found], plan: Plan) -> list[Row]:
    """One row for each library."""
    measured = {"machine": in_words(machine(plan.device)), "date": datetime.date.today().isoformat()}
    return [
        {
            "case": case.name,
            "library": each.library,
            "threads": plan.threads,
            "unit": case.unit,
            "median": statistics.median(each.values),
            "low": min(each.values),
            "high": max(each.values),
            "rounds": len(each.values),
            "values": [float(f"{value:.6g}") for value in each.values],
            "seconds": plan.seconds,
            "version": each.version,
            "note": each.note,
            **measured,
        }
        for each in found
        if each.values
    ]


def read(file: Path, columns: Sequence[str] = ("case", "library", "threads", "median")) -> list[Row]:
    """The rows of a file, none if there is no file.

    Raises:
        DamagedError: it holds something else, such as rows without these columns.
    """
    if not file.exists():
        return []
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        if not all({*columns} <= row.keys() for row in rows):
            raise KeyError(*columns)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{file} holds no rows of a benchmark; remove it, or give another --out") from error
    return list(rows)


def replaced(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """`old` with all rows of `new`'s cases and threads replaced, in the order of the table.

    A case is replaced whole: libraries that were not measured in one run are not compared.
    """
    measured = {(row["case"], row["threads"]) for row in new}
    kept = [row for row in old if (row["case"], row["threads"]) not in measured]
    return sorted([*kept, *new], key=_place)


def _place(row: Row) -> tuple[int, int, int, str]:
    cases, libraries = list(CASES), list(LIBRARIES)
    case = cases.index(row["case"]) if row["case"] in cases else len(cases)
    library = libraries.index(row["library"]) if row["library"] in libraries else len(libraries)
    return case, -row["threads"], library, row["library"]


def write(file: Path, rows: Sequence[Row], device: str = "cpu") -> None:
    """The JSON file, and the Markdown table beside it. Machine and versions are those of the last measurement."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(device), "versions": versions(), "rows": list(rows)}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(markdown(rows, content["versions"]), encoding="utf-8")


def groups(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """Rows that were measured in turn, by case and threads."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["case"], row["threads"]), []).append(row)
    return found


def speed_ratio(row: Row, other: Row) -> float:
    """How many times better `row` is than `other`: the median over rounds, in which both ran one after the other.

    A machine's speed changes within minutes, by half on shared ones, and alike for all. So rounds are compared one by
    one. Where they cannot be compared (`has_rounds`), medians are.
    """
    mine, theirs = row.get("values", []), other.get("values", [])
    if not has_rounds(row, other):
        mine, theirs = [row["median"]], [other["median"]]
    ratio = statistics.median(ours / its for ours, its in zip(mine, theirs, strict=True))
    return ratio if row["unit"].endswith("/s") else 1.0 / ratio


def has_rounds(row: Row, other: Row) -> bool:
    """Whether both have a value of each round; rows of older files have none."""
    return len(row.get("values", [])) == len(other.get("values", [])) > 0


def to_floor(row: Row, group: Sequence[Row]) -> float | None:
    """How many times the floor's time it takes."""
    floor = next((other for other in group if other["library"] == "floor"), None)
    return speed_ratio(floor, row) if floor and floor is not row else None


def to_best_peer(row: Row, group: Sequence[Row]) -> float | None:
    """How many times better than the best library that is not offpcc."""
    peers = [other for other in group if other["library"] not in ("floor", *OURS)]
    return min(speed_ratio(row, peer) for peer in peers) if peers and row["library"] in OURS else None


def number(value: float) -> str:
    """With three digits or a little more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cells(row: Row, group: Sequence[Row]) -> list[str]:
    """A row as people read it: title, library, median, spread, against the floor, against the best peer."""
    case = CASES.get(row["case"])
    floor, peer = to_floor(row, group), to_best_peer(row, group)
    mark = "" if all(has_rounds(row, other) for other in group) else "*"
    return [
        case.title if case else row["case"],
        row["library"],
        f"{number(row['median'])} {row['unit']}",
        f"{number(row['low'])} to {number(row['high'])}",
        f"{floor:.2f}{mark}" if floor else "",
        f"{peer:.2f}{mark}" if peer else "",
    ]


HEADINGS = ("", "library", "median", "low to high", "time / floor's", "x best peer")


def markdown(rows: Sequence[Row], packages: Mapping[str, str]) -> str:
    """The table with what it was measured on and with."""
    lines = [
        "# Throughput",
        "",
        f"Versions in the last measurement: {', '.join(f'{name} {version}' for name, version in packages.items())}.",
        "Median, lowest and highest of rounds in which a case's libraries took turns, each in a process of its own.",
        "The floor runs an update's dense products alone, in float32. A library's time over the floor's is better when "
        "low, offpcc's speed over that of the best peer when high. Both are medians over the rounds' ratios, because "
        "the machine's speed changes within minutes.",
    ]
    together = groups(rows)
    if any("*" in cell for group in together.values() for row in group for cell in cells(row, group)[-2:]):
        lines += ["A ratio with * is that of the medians: no values of single rounds were kept."]
    places = dict.fromkeys((threads, group[0]["machine"]) for (_, threads), group in together.items())
    for place in sorted(places, key=lambda place: -place[0]):
        threads, told_machine = place
        lines += ["", f"## {threads} thread{'s' * (threads > 1)}, {told_machine}", ""]
        lines += [f"| {' | '.join(HEADINGS)} |", "|---" * 6 + "|"]
        for (_, of), group in together.items():
            if (of, group[0]["machine"]) == place:
                lines += [f"| {' | '.join(cells(row, group))} |" for row in group]
    told = [row for row in rows if row.get("note") and row["library"] != "floor"]
    notes = {f"- {CASES[row['case']].title}, {row['library']}: {row['note']}." for row in told if row["case"] in CASES}
    if notes:
        lines += ["", "## What differs between libraries", "", *sorted(notes)]
    return "\n".join(lines) + "\n"
