"""The run's own record: one row per epoch in `progress.csv`."""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path

from offpcc.errors import UserError, first_line
from offpcc.files import write_text
from offpcc.loggers.base import Progress, Row
from offpcc.places import shown


class CSVLogger:
    """Writes a CSV file with a header that is fixed from the start.

    The file is written whole and renamed into place at every epoch, so a reader never sees half a row.
    Floats are written such that reading them gives the same float again.

    Args:
        file: The CSV file; one that exists is overwritten unless `keep_epochs` is given.
        columns: The header.
        keep_epochs: When resuming, the number of epochs the run goes on from: rows up to it stay byte for
            byte, later ones are dropped. If there is no file yet, a new one is begun.

    Raises:
        UserError: If the file to go on with has other columns, or is damaged.
    """

    def __init__(self, file: Path, columns: Sequence[str], *, keep_epochs: int | None = None) -> None:
        self._file = file
        self._columns = tuple(columns)
        if keep_epochs is not None and file.exists():
            self._text = self._read(keep_epochs)
        else:
            self._text = ",".join(columns) + "\n"
        write_text(file, self._text)

    def _read(self, keep_epochs: int) -> str:
        """The file's text up to and including epoch `keep_epochs`."""
        try:
            with self._file.open(encoding="utf-8", newline="") as stream:
                lines = stream.readlines()
        except (OSError, ValueError) as error:
            raise self._unfit(f"it cannot be read ({first_line(error)})") from error
        header = tuple(lines[0].rstrip("\r\n").split(",")) if lines else ()
        if header != self._columns:
            names = shown(", ".join(header)) if lines else "missing"
            raise self._unfit(f"its columns are {names}, but this run writes {', '.join(self._columns)}")
        kept = [line for number, line in enumerate(lines[1:], 2) if self._epoch(line, number) <= keep_epochs]
        text = lines[0] + "".join(kept)
        return text if text.endswith("\n") else text + "\n"

    def _epoch(self, line: str, number: int) -> int:
        """Which epoch a line of the file is of."""
        cells, column = line.rstrip("\r\n").split(","), self._columns.index("epoch")
        cell = cells[column] if column < len(cells) else ""
        try:
            return int(cell)
        except ValueError:
            raise self._unfit(f"the epoch in line {number} is {shown(cell)}, no whole number") from None

    def _unfit(self, fault: str) -> UserError:
        """That the file cannot be gone on with."""
        return UserError(
            f"cannot go on with {self._file}: {fault}; put it back from a copy, or move it away to begin a new one"
        )

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
        self._text += ",".join(_cell(row.get(name)) for name in self._columns) + "\n"
        write_text(self._file, self._text)

    def artifact(self, kind: str, file: Path) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do: every epoch is on the disk already."""


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))
