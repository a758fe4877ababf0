"""The run's own record: one row per epoch in `progress.csv`."""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path

from offpcc.errors import UserError, first_line
from offpcc.files import check_regular, open_regular, write_text
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
        may_come: A column that the file to go on with may lack, or have though the run writes none of it: it is
            there from then on, empty where nothing was told.

    Raises:
        UserError: If the file to go on with has other columns, or is damaged.
    """

    keeps_data = True  # a run without its table would be worth less, so a disk at fault ends it

    def __init__(
        self, file: Path, columns: Sequence[str], *, keep_epochs: int | None = None, may_come: str = ""
    ) -> None:
        self._file = file
        self._columns = tuple(columns)
        self._may_come = may_come
        if file.exists():
            try:
                check_regular(file)
            except OSError as error:
                raise self._unfit(f"it cannot be read ({error.strerror})") from error
        if keep_epochs is not None and file.exists():
            self._text = self._read(keep_epochs)
        else:
            self._text = ",".join(columns) + "\n"
        write_text(file, self._text)

    def _read(self, keep_epochs: int) -> str:
        """The file's text up to and including epoch `keep_epochs`."""
        try:
            with open_regular(self._file, "r", encoding="utf-8", newline="") as stream:
                lines = stream.readlines()
        except (OSError, ValueError) as error:
            raise self._unfit(f"it cannot be read ({first_line(error)})") from error
        header = tuple(lines[0].rstrip("\r\n").split(",")) if lines else ()
        if not self._fits(header):
            names = shown(", ".join(header)) if lines else "missing"
            raise self._unfit(f"its columns are {names}, but this run writes {', '.join(self._columns)}")
        kept = lines[:1] + self._rows(lines, header, keep_epochs)
        if len(header) < len(self._columns):
            kept = [self._with_what_came(line, header) for line in kept]
        elif len(header) > len(self._columns):
            self._columns = header
        text = "".join(kept)
        return text if text.endswith("\n") else text + "\n"

    def _fits(self, header: tuple[str, ...]) -> bool:
        """Whether the run's rows go below a header, save for the column that may come."""
        shorter, longer = sorted((header, self._columns), key=len)
        return header == self._columns or shorter == tuple(name for name in longer if name != self._may_come)

    def _with_what_came(self, line: str, header: tuple[str, ...]) -> str:
        """A line with a cell for the column that `header` lacks."""
        place = self._columns.index(self._may_come)
        cells = line.split(",")
        told = self._may_come if tuple(line.rstrip("\r\n").split(",")) == header else ""
        return ",".join([*cells[:place], told, *cells[place:]])

    def _rows(self, lines: Sequence[str], header: tuple[str, ...], keep_epochs: int) -> list[str]:
        """The rows up to epoch `keep_epochs`. A table may begin at any epoch, as an earlier one may be moved away."""
        kept: list[str] = []
        last = None
        for number, line in enumerate(lines[1:], 2):
            cells = line.rstrip("\r\n").split(",")
            epoch = self._epoch(cells, header, number)
            if len(cells) != len(header):
                raise self._unfit(f"line {number} has {len(cells)} cells for {len(header)} columns")
            if epoch > keep_epochs:
                continue
            if last is not None and epoch != last + 1:
                raise self._unfit(f"line {number} is of epoch {epoch}, but the row before it of epoch {last}")
            kept.append(line)
            last = epoch
        if last is not None and last < keep_epochs:
            raise self._unfit(f"it ends at epoch {last}, but the run goes on after epoch {keep_epochs}")
        return kept

    def _epoch(self, cells: Sequence[str], header: tuple[str, ...], number: int) -> int:
        """Which epoch a line of the file is of."""
        column = header.index("epoch")
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
