"""`progress.csv`: one row per epoch."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path

from offpcc.training.loggers.base import Progress, Row
from offpcc.utils.files import write_text


class CSVLogger:
    """Writes a CSV file with a header that is fixed from the start.

    The file is written whole and renamed into place at every epoch, so a reader never sees half a row.
    Floats are written such that reading them gives the same float again.

    Args:
        file: The CSV file; one that exists is overwritten.
        columns: The header.
        rows: When resuming, the rows of the epochs before. A column of theirs that is not in `columns` is there, too.
    """

    keeps_data = True  # a run without its table would be worth less, so a disk at fault ends it

    def __init__(self, file: Path, columns: Sequence[str], rows: Sequence[Row] = ()) -> None:
        self._file = file
        self._columns = joined_columns(columns, rows)
        self._text = table_text(self._columns, rows)
        write_text(file, self._text)

    def progress(self, progress: Progress) -> None:
        """Nothing to do."""

    def epoch(self, row: Row) -> None:
        """Append a row; a column without a number, or with None, gives an empty cell.

        Raises:
            KeyError: If the row names a column that the header lacks.
        """
        for name in row:
            if name not in self._columns:
                raise KeyError(f"{name!r} is not a column of {self._file}; its columns are {', '.join(self._columns)}")
        self._text += _line(self._columns, row)
        write_text(self._file, self._text)

    def artifact(self, kind: str, file: Path) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do: every epoch is on the disk already."""


def joined_columns(columns: Sequence[str], rows: Iterable[Row]) -> list[str]:
    """Some columns and those of rows, each behind the one that it follows in its row."""
    names = [*columns]
    for row in rows:
        place = 0
        for name in row:
            if name not in names:
                names.insert(place, name)
            place = names.index(name) + 1
    return names


def table_text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """A header and rows, as they stand in the file."""
    return ",".join(columns) + "\n" + "".join(_line(columns, row) for row in rows)


def _line(columns: Sequence[str], row: Row) -> str:
    return ",".join(_cell(row.get(name)) for name in columns) + "\n"


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))
