"""Logger for `progress.csv`, with one row per epoch."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path

from offpcc.training.loggers.base import Logger, Row
from offpcc.utils.files import append_text, write_text


class CSVLogger(Logger):
    """Writes a CSV file with a header.

    Each epoch appends a line. If a row has a new column, the file is written anew. A process that dies while it writes
    may leave a part of a line, which `read_progress` skips and a resumed run replaces. Floats are written with enough
    digits to read back the same float.

    An existing file is overwritten. After a resume, `rows` are those of the earlier epochs; the header also gets their
    columns.
    """

    keeps_data = True  # a run needs its table, so a disk error ends the run

    def __init__(self, file: Path, columns: Sequence[str], rows: Sequence[Row] = ()) -> None:
        self._file, self._rows = file, [*rows]
        self._columns = joined_columns(columns, rows)
        self._write()

    def epoch(self, row: Row) -> None:
        """Append a row. A missing number or None gives an empty cell."""
        self._rows.append(row)
        if row.keys() - set(self._columns):
            self._columns = joined_columns(self._columns, [row])
            self._write()
            return
        try:
            append_text(self._file, _line(self._columns, row))
        except FileNotFoundError:  # the user has removed it
            self._write()

    def _write(self) -> None:
        lines = [",".join(self._columns) + "\n", *(_line(self._columns, row) for row in self._rows)]
        write_text(self._file, "".join(lines))


def joined_columns(columns: Sequence[str], rows: Iterable[Row]) -> list[str]:
    """Return `columns` with the other columns of `rows` inserted, each after the column before it in its row."""
    names = [*columns]
    for row in rows:
        place = 0
        for name in row:
            if name not in names:
                names.insert(place, name)
            place = names.index(name) + 1
    return names


def _line(columns: Sequence[str], row: Row) -> str:
    return ",".join(_cell(row.get(name)) for name in columns) + "\n"


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))
