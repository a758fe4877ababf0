"""Files of tensors: written atomically, with a checksum, and read without executing code.

The files are torch archives, which `torch.load` also reads. The seal is the comment of the archive: a word, then the
BLAKE2b digest of all bytes before it. torch does not check the archive's own checksums. Nothing in a file is executed,
but a file that somebody made to waste memory may do so.
"""

import hashlib
import io
import os
import pickle
import struct
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import replacing
from offpcc.utils.paths import shown
from offpcc.utils.system import available_bytes

DIGEST_BYTES = 16
WORD = b"offpcc:"
SEAL_BYTES = len(WORD) + 2 * DIGEST_BYTES
READERS = {  # what reads a file, by its kind
    "actor": "offpcc.Agent.load reads it",
    "checkpoint": "offpcc.load reads the folder that holds it, and offpcc.fit and --resume go on with its run",
    "learner": "offpcc.load reads it",
    "model": "offpcc.load_model reads it",
}
PLAIN = (bool, int, float, complex, str, bytes, type(None), set, torch.Size, torch.dtype, torch.device)
OF_OLDER_VERSIONS = "use commit 4e6c498, the last one that reads it, or train again"


class FileError(UserError):
    """A file that cannot be used; stores the fault and the remedy separately."""

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(f"{fault}; {remedy}")
        self.fault, self.remedy = fault, remedy


def write_tensors(file: Path, content: dict[str, Any], before: Path | None = None) -> None:
    """Write tensors and plain data; the new file replaces the old one when it is complete, see `replacing`.

    `content` is the dict that `read_tensors` returns; its "kind" and "format" name the type and version of the file.

    Raises:
        OSError: the file cannot be written.
    """
    stream = io.BytesIO()  # not a path, because torch would write its name into the file
    torch.save(content, stream)
    data = _sealed(bytearray(stream.getbuffer()))
    with replacing(file, before) as temporary:
        temporary.write_bytes(data)


def refuse_unreadable(state: Any, name: str) -> None:
    """Raise if `read_tensors` would not read the state of a user's part, as it is neither tensors nor plain data."""
    if isinstance(state, torch.Tensor) or type(state) in PLAIN:
        return
    if type(state) in (dict, OrderedDict):
        for key, value in state.items():
            refuse_unreadable(value, f"{name}[{key!r}]")
    elif type(state) in (list, tuple):
        for number, value in enumerate(state):
            refuse_unreadable(value, f"{name}[{number}]")
    else:
        hint = "; take torch.from_numpy(...), or .item()" if isinstance(state, np.ndarray | np.generic) else ""
        raise UserError(
            f"{name} is of type {type(state).__name__}, which could not be read from a checkpoint; it has to be a "
            f"tensor, a number, a text, None, or a dict, list or tuple of these{hint}"
        )


def read_tensors(file: Path, kind: str, format_version: int, *, needs_seal: bool = False) -> dict[str, Any]:
    """Read a file of tensors and plain data, of this kind and format; execute nothing in it.

    With `needs_seal`, a file without a checksum is refused.

    Raises:
        FileError: the file is missing, damaged, from another program, of another format, or larger than the free
            memory.
    """
    try:
        data = _read(file)
        is_sealed = data[-SEAL_BYTES:].startswith(WORD)
        if is_sealed and data != _sealed(bytearray(data[:-SEAL_BYTES])):
            raise FileError(f"{file} is damaged (checksum)", "put it back from a copy")
        if not zipfile.is_zipfile(io.BytesIO(data)):
            raise ValueError("it is no archive of torch, or a part of one")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of files of other kinds
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise ValueError(f"it holds {type(content).__name__}")
        found, version = content["kind"], content["format"]
    except MemoryError as error:
        raise _too_large(file) from error
    except FileError:
        raise
    except Exception as error:  # torch's own message about a pickle advises to execute the file's code
        advises = isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error)
        why = "" if advises else f" ({first_line(error)})"
        raise FileError(f"{file} is no {kind} of offpcc, or is damaged{why}", "give the right file") from error
    if found != kind:
        remedy = READERS.get(found, "give the right file") if isinstance(found, str) else "give the right file"
        raise FileError(f"{file} is not of the kind {kind!r} but {shown(repr(found))}", remedy)
    if not isinstance(version, int):
        fault = f"{file} is no {kind} of offpcc, or is damaged (its format is no number)"
        raise FileError(fault, "give the right file")
    if version != format_version:
        age, remedy = ("a newer", "install that one") if version > format_version else ("an older", OF_OLDER_VERSIONS)
        raise FileError(
            f"{file} has format {shown(str(version))}, but this offpcc reads {format_version}",
            f"{age} offpcc wrote it: {remedy}",
        )
    if needs_seal and not is_sealed:
        raise FileError(f"{file} has lost its checksum, so it may be damaged", "put it back from a copy")
    return content


def _read(file: Path) -> bytes:
    if not os.path.lexists(file):
        raise FileError(f"{file} does not exist", "train first, or correct the path")
    if not file.is_file():
        raise FileError(f"{file} is a folder, a pipe or a device, not a regular file", "give the right file")
    try:
        available = available_bytes()
        if available is not None and file.stat().st_size > available:
            raise _too_large(file)
        return file.read_bytes()
    except OSError as error:
        raise FileError(f"{file} cannot be read ({first_line(error)})", "correct that, or give another file") from error


def _too_large(file: Path) -> FileError:
    fault = f"{file} has {file.stat().st_size:,} bytes, more than the free memory"
    return FileError(fault, "give the right file, or free memory")


def _sealed(archive: bytearray) -> bytes:
    """Return the archive with its seal. The last two bytes of the archive, the length of the comment, change."""
    archive[-2:] = struct.pack("<H", SEAL_BYTES)
    return bytes(archive) + WORD + hashlib.blake2b(archive, digest_size=DIGEST_BYTES).hexdigest().encode()


def find_misfit(expected: Any, found: Any, name: str, there: str = "in the file") -> str:
    """Return the first difference between two states in keys, shapes, dtypes or types of values, or "".

    Empty containers, None and numbers fit everything of their kind: a state grows while a run continues. `expected` is
    the state of the part `name` before the file is loaded, and `found` that in the file, or in another place, `there`.
    """
    if isinstance(expected, torch.Tensor | np.ndarray):
        if not isinstance(found, torch.Tensor | np.ndarray):
            return f"{name} is not an array"
        if found.shape != expected.shape or found.dtype != expected.dtype:
            ours, theirs = (f"{part.dtype} of shape {tuple(part.shape)}" for part in (expected, found))
            return f"{name} is {theirs} {there}, but {ours} here"
    elif isinstance(expected, dict):
        if not isinstance(found, dict):
            return f"{name} is not a dictionary"
        if expected and (missing := sorted(map(str, expected.keys() - found.keys()))):
            return f"{name} has no {missing[0]}"
        if expected and (unknown := sorted(map(str, found.keys() - expected.keys()))):
            return f"{name} has {unknown[0]}, which is not known here"
        differences = (find_misfit(expected[key], found[key], f"{name}.{key}", there) for key in expected)
        return next(filter(None, differences), "")
    elif isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple):
            return f"{name} is not a list"
        if expected and len(expected) != len(found):
            return f"{name} has {len(found)} parts {there}, but {len(expected)} here"
        parts = (find_misfit(*pair, f"{name}[{n}]", there) for n, pair in enumerate(zip(expected, found, strict=False)))
        return next(filter(None, parts), "")
    elif expected is not None and found is not None and not _is_alike(expected, found):
        return f"{name} is of type {type(found).__name__} {there}, but {type(expected).__name__} here"
    return ""


def _is_alike(expected: Any, found: Any) -> bool:
    are_numbers = isinstance(expected, int | float) and isinstance(found, int | float)
    return are_numbers or isinstance(found, type(expected))
