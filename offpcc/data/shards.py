"""Where the episodes of a recording lie while it goes on: each on disk in the moment in which it ends.

They lie in a folder beside the file that is to be, ``FILE.shards``, as records one after another in shards
``000001.episodes``, ``000002.episodes`` and so on. What was written is never changed again. So a process that is
killed loses the episodes that were under way and no other: at most the record it was writing is not whole, which is
dropped when the recording is opened again. They are no HDF5, because a file of it that is open when the process dies
may be lost as a whole, and because a file for each episode would be thousands where episodes are short.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from offpcc.data.records import Ending, Episode, Layout, read_record
from offpcc.errors import UserError
from offpcc.files import read_json, write_json

FORMAT = 1
SHARD_BYTES = 2**25  # after which another shard is begun
OURS = re.compile(r"about\.json|\d{6,}\.episodes|merged\.hdf5|\.(about|merged)\.tmp-.*")  # in the folder of shards


class Place(NamedTuple):
    """Where an episode lies, and what is known of it."""

    shard: int
    start: int  # bytes
    stop: int
    length: int  # steps
    ending: Ending


class Shards:
    """Episodes on disk, to which others are appended.

    Args:
        folder: is made if it is not there.
        settings: what the recording is of; those of a folder that is there have to be the same.
        layout: of the episodes.

    Raises:
        UserError: the settings are others, or another process has the folder.
        OSError: the folder cannot be read or written.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], layout: Layout) -> None:
        self.folder, self.layout = folder, layout
        self.places: list[Place] = []
        self._file: FileIO | None = None  # the shard that is appended to
        self._number = 0  # of it
        folder.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = self._hold()
        try:
            self._open(dict(settings))
        except BaseException:
            self.close()
            raise

    def _hold(self) -> int:
        """Keep other processes away, for as long as this one lives."""
        lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise UserError(
                f"{self.folder} is being written by another process; wait for its end, or give another file"
            ) from None
        return lock

    def _open(self, settings: dict[str, Any]) -> None:
        about = self.folder / "about.json"
        if about.is_file():
            check_same({"format": FORMAT, **settings}, _described(about), self.folder)
            self._scan()
        else:  # nothing is there, or what is left of a recording whose file is written
            clear(self.folder)
            write_json(about, {"format": FORMAT, "settings": settings})
            self.keep(0)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.episodes"

    def _scan(self) -> None:
        """Find all whole episodes; whatever is behind the last of them is dropped."""
        for path in map(self._path, itertools.count(1)):
            if not path.is_file():
                break
            with path.open("rb") as file:
                start = 0
                while (record := read_record(file)) is not None:
                    stop = file.tell()
                    self.places.append(Place(int(path.stem), start, stop, record.length, record.ending))
                    start = stop
            if start < path.stat().st_size:
                break
        self.keep(len(self.places))

    def append(self, episode: Episode) -> None:
        """Put an episode behind the others; from now on, only the machine's failure could lose it.

        Raises:
            OSError: it cannot be written; nothing of it is left.
        """
        assert self._file is not None
        file, start = self._file, self._file.seek(0, os.SEEK_END)
        if start >= SHARD_BYTES:
            file, start = self._begin(self._number + 1), 0
        data = self.layout.pack(episode)
        left = memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):
                file.truncate(start)
            raise
        self.places.append(Place(self._number, start, start + len(data), len(episode.rewards), episode.ending))

    def _begin(self, number: int) -> FileIO:
        """Append to another shard from now on; its file."""
        self.sync()
        if self._file is not None:
            self._file.close()
        self._file, self._number = self._path(number).open("ab", buffering=0), number
        return self._file

    def sync(self) -> None:
        """Wait until the disk itself has all that was appended."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def keep(self, number: int) -> None:
        """Forget all episodes but the first `number`."""
        shard, stop = (self.places[number - 1].shard, self.places[number - 1].stop) if number else (1, 0)
        for path in sorted(self.folder.glob("*.episodes"), reverse=True):  # the last first: what is left is whole
            if int(path.stem) > shard:
                path.unlink()
        self._begin(shard).truncate(stop)
        del self.places[number:]

    def __iter__(self) -> Iterator[Episode]:
        """All episodes, one at a time."""
        for number, places in itertools.groupby(self.places, key=lambda place: place.shard):
            with self._path(number).open("rb") as file:
                for place in places:
                    file.seek(place.start)
                    record = read_record(file)
                    if record is None:
                        raise UserError(f"{self._path(number)} was changed while it was recorded to; record anew")
                    yield self.layout.unpack(record)

    def remove(self) -> None:
        """Remove the folder: first what says that there is a recording in it, then its parts."""
        (self.folder / "about.json").unlink()
        remove_leftovers(self.folder)
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            os.close(self._lock)
        self._file = self._lock = None


def _described(about: Path) -> dict[str, Any]:
    try:
        known = read_json(about)
        return {"format": known["format"], **known["settings"]}
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{about} is damaged, or of something else; remove its folder, or give another file") from None


def shards_folder(file: Path) -> Path:
    """Where the episodes of an unfinished recording lie."""
    return file.with_name(f"{file.name}.shards")


def is_unfinished(file: Path) -> bool:
    """Whether there are shards of a recording that goes into `file`."""
    return (shards_folder(file) / "about.json").is_file()


def clear(folder: Path) -> None:
    """Remove what a recording has put into a folder, and nothing else."""
    for path in folder.iterdir():
        if OURS.fullmatch(path.name):
            path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove a folder of shards, if it is there and nobody else has put something into it."""
    if folder.is_dir():
        clear(folder)
        with suppress(OSError):
            folder.rmdir()


def check_same(now: Mapping[str, Any], before: Mapping[str, Any], where: Path) -> None:
    """Refuse to go on with other settings.

    Raises:
        UserError: naming the first that differs.
    """
    for name in (*now, *before):
        if now.get(name) != before.get(name):
            raise UserError(
                f"{name} is {now.get(name, 'not known')}, but {where} was recorded with "
                f"{before.get(name, 'no such value')}: a recording that is gone on with keeps its settings; give the "
                f"same, or another file"
            )
