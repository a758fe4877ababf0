"""Finds datasets by name, and downloads D4RL's files, which are kept only if they are complete.

D4RL's names are in `offpcc.envs.d4rl.catalog`. Sizes and hashes of its files come from TensorFlow Datasets.
"""

import contextlib
import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import h5py

from offpcc.data.datasets.files import DAMAGE
from offpcc.envs.d4rl.catalog import ADDRESS, FILES, SUFFIXES, why_not
from offpcc.utils import signals
from offpcc.utils.errors import UserError, first_line, similar
from offpcc.utils.files import replacing
from offpcc.utils.paths import as_path, why_no_folder

D4RL_KEYS = ("observations", "actions", "rewards", "terminals")  # in every file of D4RL
A_NAME = "a D4RL name, minari:ID or ogbench:NAME"
Progress = Callable[[int, int | None], None]  # received bytes, and the size of the file if known

BLOCK_BYTES = 2**20
PATIENCE = 30.0  # seconds without a byte


def folders() -> list[Path]:
    """Return the folders to search for datasets, in this order."""
    given = {name: os.environ.get(name) for name in ("OFFPCC_DATASETS", "D4RL_DATASET_DIR")}
    return [as_path(folder, name) for name, folder in (*given.items(), ("", "~/.d4rl/datasets")) if folder]


def find_dataset_file(name: str) -> Path | None:
    """Return the file for a D4RL name or a user's own name in `folders()`; None if there is none."""
    files = ([FILES[name].rsplit("/", 1)[-1]] if name in FILES else []) + [f"{name}.hdf5", f"{name}.npz"]
    places = (folder / file for folder in folders() for file in files)
    return next((place for place in places if place.is_file()), None)


def obtain(name: str, progress: Progress | None = None) -> Path:
    """Return the file for a name. Download a missing D4RL file into the first writable folder.

    The file comes from D4RL's URL, or from a mirror whose URL is in ``$OFFPCC_D4RL_URL``.
    """
    if found := find_dataset_file(name):
        return found
    if name not in FILES:
        raise UserError(_unknown(name))
    file = FILES[name].rsplit("/", 1)[-1]
    folder = next((folder for folder in folders() if why_no_folder(folder) is None), None)
    places = " or ".join(map(str, folders()))
    ways = (
        f"no part of it was kept. Get {file} elsewhere and give its path, or put it into {places}; or set "
        f"OFFPCC_DATASETS to the folder that it is in, or OFFPCC_D4RL_URL to a mirror of {ADDRESS}"
    )
    if folder is None:
        raise UserError(f"{name} must be downloaded, but no folder for it can be written; {ways}")
    url = f"{os.environ.get('OFFPCC_D4RL_URL', ADDRESS).rstrip('/')}/{FILES[name]}"
    try:
        download(url, folder / file, known=KNOWN.get(file), progress=progress)
    except DownloadError as error:
        raise UserError(f"{name} could not be downloaded: {error}; {ways}") from None
    return folder / file


def _fault_of(path: Path) -> str | None:
    """Return what is wrong with the format of a downloaded file, or None. It is the only check for unhashed files."""
    if not h5py.is_hdf5(path):
        return "the downloaded file is not HDF5"
    try:
        with h5py.File(path, "r") as file:
            missing = [key for key in D4RL_KEYS if key not in file]
    except DAMAGE as error:
        return f"the downloaded file is damaged or incomplete ({first_line(error)})"
    return f"the downloaded file lacks {', '.join(missing)}" if missing else None


def _unknown(name: str) -> str:
    if reason := why_not(name):
        return reason
    if "-singletask-" in name:
        return f"{name}: there is no such dataset; for OGBench's, give ogbench:{name}"
    own = [file.stem for folder in folders() if folder.is_dir() for file in folder.iterdir() if file.suffix in SUFFIXES]
    nearest = similar(name, [*FILES, *own])
    advice = f"did you mean {' or '.join(nearest)}?" if nearest else f"give a file, {A_NAME}"
    return f"{name}: there is no such dataset; {advice}"


class Known(NamedTuple):
    """Size and hash of a file, known before its download."""

    size: int
    sha256: str  # the first digits


class DownloadError(Exception):
    """Raised when a download fails."""


def download(url: str, target: Path, *, known: Known | None = None, progress: Progress | None = None) -> None:
    """Download a file into a folder, which is made when the server responds. On failure, no part of it is kept.

    The file is checked against `known`, and by its format. `progress` is called repeatedly.

    Raises:
        DownloadError: the download failed, or the file did not pass a check.
    """
    try:
        with contextlib.ExitStack() as stack:
            response = stack.enter_context(urllib.request.urlopen(url, timeout=PATIENCE))
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(replacing(target))
            stated = response.headers.get("Content-Length")
            size = int(stated) if stated else known.size if known else None
            free = shutil.disk_usage(target.parent).free
            if size is not None and size > free:
                raise DownloadError(f"{url} has {size:,} bytes, but {target.parent} has room for {free:,}")
            came, digest = 0, hashlib.sha256()
            with temporary.open("wb") as file:
                while block := response.read(BLOCK_BYTES):
                    file.write(block)
                    digest.update(block)
                    came += len(block)
                    if progress:
                        progress(came, size)
            if size is not None and came != size:
                raise DownloadError(f"{url}: the download stopped after {came:,} of {size:,} bytes")
            if known and (came, digest.hexdigest()[: len(known.sha256)]) != (known.size, known.sha256):
                raise DownloadError(
                    f"{url} returned another file than expected: {came:,} bytes, SHA-256 {digest.hexdigest()}, instead "
                    f"of {known.size:,} bytes, SHA-256 {known.sha256}..."
                )
            if fault := _fault_of(temporary):
                raise DownloadError(f"{url}: {fault}")
    except urllib.error.HTTPError as error:
        raise DownloadError(f"{url} answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise DownloadError(f"{url} cannot be reached ({error.reason})") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(f"{url}: the download stopped ({error or type(error).__name__})") from None


TRIES = 3  # connections in a row that bring nothing


def download_resumed(url: str, target: Path, progress: Progress) -> None:
    """Download a large file. Received bytes are kept in a file ``NAME.part``, from which a later call continues.

    Raises:
        DownloadError: the server does not have the file, or the connection broke off again and again.
    """
    part, tries = target.with_name(f"{target.name}.part"), 0
    while True:
        before = part.stat().st_size if part.is_file() else 0
        try:
            if _continue(url, part, before, progress):
                part.replace(target)
                return
            fault = "the connection was closed"
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and before:  # not a part of this file
                part.unlink()
                continue
            raise DownloadError(f"{url} answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            fault = str(error) or type(error).__name__
        kept = part.stat().st_size if part.is_file() else 0
        tries = 0 if kept > before else tries + 1
        if tries == TRIES:
            raise DownloadError(
                f"{url} cannot be fetched ({fault}); {kept:,} bytes are kept, and the next call continues from there"
            )


def _continue(url: str, part: Path, start: int, progress: Progress) -> bool:
    """Fetch what follows the first `start` bytes of a file; return whether it is now whole."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        part.parent.mkdir(parents=True, exist_ok=True)
        came = start if response.status == HTTPStatus.PARTIAL_CONTENT else 0  # else the server sends all of it
        stated = response.headers.get("Content-Length")
        size = came + int(stated) if stated else None
        with part.open("ab" if came else "wb") as file:
            while block := response.read(BLOCK_BYTES):
                signals.poll()
                file.write(block)
                came += len(block)
                progress(came, size)
    return size is None or came == size


# File, size in bytes, first digits of its SHA-256.
_TABLE = """
hopper_expert.hdf5 54061232 6fea535033d962ef
hopper_medium.hdf5 54258063 3e6530f00ba134b3
hopper_medium_expert.hdf5 65017623 3a024c1ecb4ff816
hopper_mixed.hdf5 10983879 901797e3f21a963b
hopper_random.hdf5 54351370 667e8a78d3460d19
hopper_expert-v1.hdf5 97718262 531847c2f131adde
hopper_full_replay-v1.hdf5 192222683 7f02bb267d455e20
hopper_medium-v1.hdf5 96497748 0e5037ccacd4bc8e
hopper_medium_expert-v1.hdf5 193560687 bd1ee06588ac7a05
hopper_medium_replay-v1.hdf5 58349502 f807f18983c09c8d
hopper_random-v1.hdf5 95536011 1887aaf27bf63178
hopper_expert-v2.hdf5 152427435 01aa219a5f8eea5e
hopper_full_replay-v2.hdf5 187998921 56baf95963c51c1e
hopper_medium-v2.hdf5 152756557 5bdf1bc4a713c829
hopper_medium_expert-v2.hdf5 304537315 9d51ad87f8c905be
hopper_medium_replay-v2.hdf5 75854457 e121c5f7c9857a30
hopper_random-v2.hdf5 152525345 63103ef7059db4c0
halfcheetah_expert.hdf5 87495442 1959944d9dbff4a7
halfcheetah_medium.hdf5 86943361 fcaf602daa063c30
halfcheetah_medium_expert.hdf5 174437297 c9c90f6b9fca3caa
halfcheetah_mixed.hdf5 9016685 61270f65dcadddae
halfcheetah_random.hdf5 88909895 5ba6381942a51100
halfcheetah_expert-v1.hdf5 154077632 7e9893114c02d82a
halfcheetah_full_replay-v1.hdf5 298849447 cdb723414b8498a9
halfcheetah_medium-v1.hdf5 153775441 2fded5b217390f79
halfcheetah_medium_expert-v1.hdf5 307235270 89ce3c99ae0b4bdd
halfcheetah_medium_replay-v1.hdf5 60486703 c38d04f1dabd9969
halfcheetah_random-v1.hdf5 152241884 4178873b1d3adf4f
halfcheetah_expert-v2.hdf5 237464597 d9fe53bb994eb1e2
halfcheetah_full_replay-v2.hdf5 291381762 27fdf7ea86e5a2cb
halfcheetah_medium-v2.hdf5 237727262 41324e8487a9556d
halfcheetah_medium_expert-v2.hdf5 474567252 015db75dae5bbe8e
halfcheetah_medium_replay-v2.hdf5 59448533 48d494a4770c11f4
halfcheetah_random-v2.hdf5 237338037 25407aef85b5d16c
walker2d_expert.hdf5 82216946 6b24651d8643f608
walker2d_medium.hdf5 84756933 181a62086f3f2877
walker2d_medium_expert.hdf5 166972341 62b612b2fe593142
walker2d_random.hdf5 82217081 b68931aeb97c9c55
walker_mixed.hdf5 8832937 d23588d4e07e58cb
walker2d_expert-v1.hdf5 150010029 db9fa2c2777687a9
walker2d_full_replay-v1.hdf5 292503698 c9f897563e685d90
walker2d_medium-v1.hdf5 151232470 66bc9e18acedae54
walker2d_medium_expert-v1.hdf5 300621097 f16bc00b6905f08d
walker2d_medium_replay-v1.hdf5 88471563 dd22a299855eb732
walker2d_random-v1.hdf5 138787195 82135416af2ce855
walker2d_expert-v2.hdf5 230567195 2985dc3d436a8baa
walker2d_full_replay-v2.hdf5 285115514 f2720f9d27b2acef
walker2d_medium-v2.hdf5 232254996 cf00f43add04c17f
walker2d_medium_expert-v2.hdf5 462197079 6b8d7f868c45bbae
walker2d_medium_replay-v2.hdf5 86323963 e75de96a4f77acf7
walker2d_random-v2.hdf5 216109364 4e863bb6090cf4a4
ant_expert.hdf5 137721019 6829ed2ed8b18bf6
ant_medium.hdf5 137772317 0f456327bbc9c492
ant_medium_expert.hdf5 275497006 61a238d8378b5350
ant_mixed.hdf5 109716945 4e967dacf82a0927
ant_random.hdf5 146281376 6288d0e348ba92b7
ant_expert-v1.hdf5 231441892 006b2620534f24ec
ant_full_replay-v1.hdf5 458829203 8be5a4f2c38e1fe3
ant_medium-v1.hdf5 233194763 f2d35a447767b360
ant_medium_expert-v1.hdf5 463733878 ece90130bf12d34f
ant_medium_replay-v1.hdf5 138469125 3acab13873f7c51b
ant_random-v1.hdf5 236118204 ed384d3a8cc664bb
ant_expert-v2.hdf5 373231677 fa22531ca79ea051
ant_full_replay-v2.hdf5 449390167 b95b0a7f34b1d5d1
ant_medium-v2.hdf5 376239825 461c03b9f70f40d6
ant_medium_expert-v2.hdf5 748335217 8cfb64e62d8944b5
ant_medium_replay-v2.hdf5 136482252 844c4e5743ef5109
ant_random-v2.hdf5 384466831 93cc10893eed2b8e
door-demos-v0-bc-combined.hdf5 631681308 829cd0cd312ac3b0
door-v0_demos_clipped.hdf5 3118318 9df6345e28fcec8f
door-v0_expert_clipped.hdf5 535876867 a6e6c29985cac509
door-cloned-v1.hdf5 294356136 1f6a60ecc4d2a2e5
door-expert-v1.hdf5 536056678 66df4cd4e0a1e0b7
door-human-v1.hdf5 3121206 f9691288c3ddf2b4
hammer-demos-v0-bc-combined.hdf5 676007664 a645a67b7bc2a793
hammer-v0_demos_clipped.hdf5 5585672 96bbad3484598280
hammer-v0_expert_clipped.hdf5 555652333 1e51edf95b007a12
hammer-cloned-v1.hdf5 446616879 e48d75b159bdd72f
hammer-expert-v1.hdf5 557047483 1c069a0f6e485249
hammer-human-v1.hdf5 5606475 3e42f3f49b5c92a9
pen-demos-v0-bc-combined.hdf5 307070889 f881ab4b03c0b8e0
pen-v0_demos_clipped.hdf5 2037685 64103c05d3b33b4c
pen-v0_expert_clipped.hdf5 262280734 0ad80bc6d5e655d0
pen-cloned-v1.hdf5 155074191 6d1a982cee195050
pen-expert-v1.hdf5 262040663 3791b8ca6a802061
pen-human-v1.hdf5 2040573 209e345b2150b633
Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse.hdf5 231110993 527385c14b87892e
Ant_maze_big-maze_noisy_multistart_True_multigoal_True_sparse.hdf5 231095454 b77764cac90c23e0
Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse.hdf5 230880846 e37afef5b80b968b
Ant_maze_hardest-maze_noisy_multistart_True_multigoal_True_sparse.hdf5 231183929 dda7acbdde1a94a1
Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse.hdf5 232533093 188838316eab5882
Ant_maze_u-maze_noisy_multistart_True_multigoal_True_sparse.hdf5 230854793 4aff7f77b97a8dd6
Ant_maze_big-maze_noisy_multistart_True_multigoal_True_sparse_fixed.hdf5 231095166 ad9dcbac05d1f874
Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5 230880653 6d353df245782992
Ant_maze_hardest-maze_noisy_multistart_True_multigoal_True_sparse_fixed.hdf5 231183710 84f775eb7956ea9c
Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5 232532949 5ef15257771c50ef
Ant_maze_u-maze_noisy_multistart_True_multigoal_True_sparse_fixed.hdf5 230854272 c771dd63963cd7d9
"""

KNOWN = {
    file: Known(int(size), sha256) for file, size, sha256 in (line.split() for line in _TABLE.strip().splitlines())
}
