"""Opens recordings that are compressed by GZIP or not, and reads TFRecord files of `tf.train.Example`.

A record is its length (uint64), the masked CRC-32C of these 8 bytes, the content, and the masked CRC-32C of the
content; numbers are little-endian. Both checksums are checked before the content is used.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from offpcc.data.datasets.columns import Array
from offpcc.utils.errors import UserError, first_line

GZIP, WEB_PAGE = b"\x1f\x8b", b"<"  # beginnings of files
AGAIN = "remove it, and run the command again, which downloads it"

POLYNOMIAL = 0x82F63B78  # of CRC-32C, bits reversed
MASK = 0xA282EAD8
ALL_ONES = 0xFFFFFFFF
BATCH_BYTES = 2**22  # of records whose checksums are computed at a time
LANE = 1024  # bytes of a part of a record; all parts of a batch are computed side by side


@contextmanager
def open_packed(path: Path, is_unpacked: Callable[[bytes], bool], what: str) -> Iterator[tuple[Any, Any]]:
    """Open a recording, and yield the file as it is stored, and its content.

    `is_unpacked` says of the first 12 bytes of a file if it holds a recording that is not compressed. `what` names the
    kind of recording, for messages.
    """
    with path.open("rb") as raw:
        start = raw.read(64)
        raw.seek(0)
        if is_unpacked(start[:12]):
            yield raw, raw
            return
        if start and not start.startswith(GZIP):
            found = "a web page" if start.lstrip().startswith(WEB_PAGE) else f"neither {what} nor compressed by gzip"
            raise UserError(f"{path} is {found}; {AGAIN}")
        with gzip.GzipFile(fileobj=raw) as file:
            yield raw, file


def records(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield each record of a file, compressed by GZIP or not, and the number of its bytes that were read so far."""
    batch: list[bytes] = []
    masked: list[int] = []
    number = size = 0
    with open_packed(path, is_tfrecord, "a TFRecord file") as (raw, file):
        while True:
            try:
                header = file.read(12)
                (length,) = struct.unpack("<Q", header[:8]) if len(header) == 12 else (0,)
                if len(header) == 12 and not is_tfrecord(header):
                    raise UserError(f"{path}: the length of record {number:,} has a wrong checksum; {AGAIN}")
                content = file.read(length + 4) if header else b""
            except (EOFError, OSError, zlib.error) as error:
                raise UserError(
                    f"{path} is cut or damaged after record {number:,} ({first_line(error)}); {AGAIN}"
                ) from None
            if header and (len(header) < 12 or len(content) < length + 4):
                raise UserError(f"{path} is cut inside record {number:,}; {AGAIN}")
            if header:
                batch.append(content[:-4])
                masked += struct.unpack("<I", content[-4:])
                number, size = number + 1, size + length
            if size >= BATCH_BYTES or not header:
                for place, crc in enumerate(crcs(batch)):
                    if _mask(crc) != masked[place]:
                        wrong = number - len(batch) + place
                        raise UserError(f"{path}: the content of record {wrong:,} has a wrong checksum; {AGAIN}")
                read = raw.tell()
                yield from ((record, read) for record in batch)
                batch, masked, size = [], [], 0
            if not header:
                return


def is_tfrecord(start: bytes) -> bool:
    """Check whether a file begins, with these 12 bytes, with a record's length and its checksum."""
    return len(start) == 12 and struct.unpack("<I", start[8:])[0] == _mask(_small_crc(start[:8]))


# CRC-32C --------------------------------------------------------------------------------------------------------------


def _make_table(num_bits: int) -> Array:
    """Return what `num_bits` shifts make of each number below 2 ** `num_bits`, uint32."""
    table = np.arange(2**num_bits, dtype=np.uint32)
    for _ in range(num_bits):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return table


OF_BYTE = _make_table(8)
OF_BYTES = OF_BYTE.tolist()
OF_PAIR = _make_table(16)


def _shift_tables(num_bytes: int) -> list[list[int]]:
    """Return four tables, one per byte of a CRC, whose XOR is the CRC after `num_bytes` zeros, a power of two."""
    images = [OF_BYTES[1 << bit] if bit < 8 else 1 << bit - 8 for bit in range(32)]  # of each bit, after one zero

    def image(number: int) -> int:
        total = 0
        for bit in range(32):
            if number >> bit & 1:
                total ^= images[bit]
        return total

    for _ in range(num_bytes.bit_length() - 1):
        images = [image(one) for one in images]
    return [[image(value << 8 * place) for value in range(256)] for place in range(4)]


SHIFT = _shift_tables(LANE)


def _small_crc(content: bytes) -> int:
    """Return the CRC-32C of a few bytes."""
    crc = ALL_ONES
    for byte in content:
        crc = OF_BYTES[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ ALL_ONES


def crcs(contents: Sequence[bytes]) -> list[int]:
    """Return the CRC-32C of each content.

    A CRC is linear. So contents are cut into lanes, which NumPy computes side by side; zeros before a content change
    nothing, because the first four bytes take the place of the start value.
    """
    short = [place for place, content in enumerate(contents) if len(content) < 4]
    counts = [-(-len(content) // LANE) for content in contents]
    data = np.zeros((sum(counts), LANE), np.uint8)
    flat, row = data.reshape(-1), 0
    for content, count in zip(contents, counts, strict=True):
        row += count
        begin = row * LANE - len(content)
        flat[begin : row * LANE] = np.frombuffer(content, np.uint8)
        flat[begin : min(begin + 4, row * LANE)] ^= 255
    columns = np.ascontiguousarray(data.view("<u2").T)
    lanes = np.zeros(len(data), np.uint32)
    for column in columns:
        lanes = OF_PAIR[(lanes ^ column) & 0xFFFF] ^ (lanes >> 16)
    parts, found, row = lanes.tolist(), [], 0
    first, second, third, fourth = SHIFT
    for count in counts:
        crc = 0
        for part in parts[row : row + count]:
            crc = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24] ^ part
        found.append(crc ^ ALL_ONES)
        row += count
    for place in short:
        found[place] = _small_crc(contents[place])
    return found


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + MASK) & ALL_ONES


# tf.train.Example -----------------------------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field of a message: its number and kind of wire, and where its content begins and ends."""
    while at < stop:
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 2:
            length, at = _varint(data, at)
            end = at + length
        elif wire == 0:
            _, end = _varint(data, at)
        else:
            end = at + {5: 4, 1: 8}[wire]
        if end > stop:
            raise ValueError("a field is longer than its message")
        yield tag >> 3, wire, at, end
        at = end


def parse_example(data: bytes) -> dict[str, Any]:
    """Return the features of a `tf.train.Example`: lists of bytes, or arrays of float32 or int64.

    Raises:
        ValueError: it is none.
    """
    found: dict[str, Any] = {}
    try:
        for number, _, begin, end in _fields(data, 0, len(data)):
            for inner, _, start, stop in _fields(data, begin, end) if number == 1 else ():
                if inner == 1:
                    parts = {field: (first, last) for field, _, first, last in _fields(data, start, stop)}
                    first, last = parts[1]
                    found[data[first:last].decode()] = _feature(data, *parts.get(2, (0, 0)))
    except (IndexError, KeyError, UnicodeDecodeError, struct.error) as error:
        raise ValueError(f"no tf.train.Example ({type(error).__name__})") from None
    return found


def _feature(data: bytes, start: int, stop: int) -> Any:
    for kind, _, begin, end in _fields(data, start, stop):
        items = [item for item in _fields(data, begin, end) if item[0] == 1]
        if kind == 1:
            return [data[first:last] for _, _, first, last in items]
        content = b"".join(data[first:last] for _, _, first, last in items)  # packed or not, the same bytes
        return np.frombuffer(content, "<f4") if kind == 2 else _varints(content)
    return []


def _varints(content: bytes) -> Array:
    numbers = np.frombuffer(content, np.uint8)
    if (numbers < 128).all():
        return numbers.astype(np.int64)
    found, at = [], 0
    while at < len(content):
        number, at = _varint(content, at)
        found.append(number & 0xFFFFFFFFFFFFFFFF)
    return np.array(found, np.uint64).view(np.int64)


def get_feature(features: Mapping[str, Any], key: str, kind: str) -> Any:
    """Return a feature of the kind "bytes", "f" (float32) or "i" (int64).

    Raises:
        ValueError: it is missing, or of another kind.
    """
    value = features.get(key)
    if value is None:
        raise ValueError(f"{key} is missing; found: {', '.join(sorted(features)[:12]) or 'nothing'}")
    if (kind == "bytes") != isinstance(value, list) or (kind != "bytes" and value.dtype.kind != kind):
        raise ValueError(f"{key} is of another type")
    return value
