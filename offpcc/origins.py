"""What runs learned from: those whose folders lie side by side count as seeds of one experiment, and have to agree."""

from __future__ import annotations

from typing import Any, NamedTuple

from offpcc.errors import UserError
from offpcc.places import shown
from offpcc.runs import RunFolder

LONGEST_SOURCE = 1000  # letters; the end of a path tells two files of one name apart no less than its beginning


class Origin(NamedTuple):
    """Where a run is tested, and which recorded data it learns from."""

    env: str | None
    source: str | None  # of recorded data; None where the run acts in the environment
    fingerprint: str | None = None  # of recorded data, where it is known

    @property
    def told_of_data(self) -> str:
        """The data in words, or the lack of it."""
        if self.source is None:
            return f"in {shown(str(self.env))}, not from recorded data"
        return f"from {shown(self.source, LONGEST_SOURCE)}{f' ({shown(self.fingerprint)})' if self.fingerprint else ''}"


def check_origin(folder: RunFolder, origin: Origin) -> None:
    """Refuse a run that learns from something else than a run of its algorithm's folder, its own included.

    Runs that act in their environment need no look: the folder's name is the environment's. What `run.json` does not
    tell, as it is missing or damaged, is taken to agree.

    Args:
        folder: the run's; nothing is made.
        origin: of the run.

    Raises:
        UserError: naming the other run and what it learned from.
    """
    numbers = [int(path.name) for path in folder.siblings.glob("*") if path.name.isdecimal()]
    for number in sorted(numbers, key=lambda number: (number != folder.run_id, number)):  # its own first
        other = _origin_of(RunFolder.at(folder.siblings / str(number)).details())
        if other is None or (other.source is None and origin.source is None):
            continue
        if (fault := _difference(other, origin)) is not None:
            raise UserError(f"run {number} in {folder.siblings} {fault}")


def _origin_of(details: dict[str, Any]) -> Origin | None:
    """What a run.json tells, which may have come from elsewhere; None where that is nothing."""
    env, data = details.get("env"), details.get("dataset")
    if not isinstance(env, str | None) or not isinstance(data, dict | None) or (env is None and data is None):
        return None
    if data is None:
        return Origin(env, None)
    fingerprint = data.get("fingerprint")
    return Origin(env, str(data.get("source")), fingerprint if isinstance(fingerprint, str) else None)


def _difference(other: Origin, origin: Origin) -> str | None:
    """How the run that is there differs from the one that is to be, and what to do; None if it does not."""
    elsewhere = "give another --results"
    has_other_data = None not in (known := (other.fingerprint, origin.fingerprint)) and len({*known}) > 1
    if (other.source is None) != (origin.source is None) or has_other_data:
        return (
            f"learned {other.told_of_data}, but this one would learn {origin.told_of_data}, and ids of one folder "
            f"count as seeds of one experiment; {elsewhere}, or the file of the data another name"
        )
    if other.env == origin.env:
        return None
    there = f"was tested in {shown(other.env)}" if other.env else "was not tested"
    here = f"would be tested in {shown(origin.env)}" if origin.env else "would not be tested"
    way = (
        f"add --env {shown(other.env)}"
        if other.env
        else f"name {shown(str(origin.source))} by --dataset, without --env"
    )
    return f"{there}, but this one {here}; {way}, or {elsewhere}"
