"""`offpcc convert`: makes datasets of recorded Atari games."""

from __future__ import annotations

import shlex
from pathlib import Path

from offpcc.cli.messages import program
from offpcc.data.convert import atari
from offpcc.data.datasets.download import DownloadError, download_resumed
from offpcc.training.loggers.console import download_bar, progress_bar
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.paths import as_path, why_no_folder

UNPLUGGED, REPLAY = "rl-unplugged", "dqn-replay"
ADDRESSES = {
    UNPLUGGED: "https://storage.googleapis.com/rl_unplugged",
    REPLAY: "https://storage.googleapis.com/atari-replay-datasets/dqn",
}
FOLDERS = {UNPLUGGED: Path("~/.rl_unplugged"), REPLAY: Path("~/.dqn_replay")}


def run_convert(
    source: str,
    task: str,
    run_id: int = 1,
    shard_id: int = 0,
    ordered: bool = False,
    dataset_dir: Path | None = None,
    buffer_dir: Path | None = None,
    address: str | None = None,
) -> int:
    """Download a part of a recording if it is missing, and write it as a dataset.

    Args:
        source: "rl-unplugged" or "dqn-replay".
        task: the game, such as "Breakout".
        run_id: number of the recorded run, 1 to 5.
        shard_id: number of the part, from 0 on.
        ordered: whether to take the whole episodes of RL Unplugged instead of its shuffled transitions.
        dataset_dir: folder of the recordings; None for the default.
        buffer_dir: folder of the datasets; None for the default.
        address: where to download from; None for the public address.

    Raises:
        UserError: there is no such recording, it cannot be downloaded, or it is damaged.
    """
    if ordered and source == REPLAY:
        raise UserError(f"--ordered has no effect on {REPLAY}, whose steps are all in order; leave it out")
    atari.check_game(task, atari.UNPLUGGED_GAMES if source == UNPLUGGED else atari.REPLAY_GAMES)
    is_shuffled = source == UNPLUGGED and not ordered
    count = atari.SHARDS if is_shuffled else atari.ORDERED_SHARDS - (ordered and task in atari.FEWER_SHARDS)
    for option, value, least, most in (("--run_id", run_id, 1, 5), ("--shard_id", shard_id, 0, count - 1)):
        if not least <= value <= most:
            raise UserError(f"{option} is {value}; {source} has {least} to {most} for {task}")
    folder, out_folder = (
        (FOLDERS[source] / name if given is None else given).expanduser()
        for name, given in (("datasets", dataset_dir), ("buffers", buffer_dir))
    )
    for option, place in (("--dataset_dir", folder), ("--buffer_dir", out_folder)):
        if fault := why_no_folder(place):
            raise UserError(f"{option} cannot be used: {fault}; give another folder")
    base = (address or ADDRESSES[source]).rstrip("/")
    if source == UNPLUGGED:
        shard = f"{task}/run_{run_id}-{shard_id:05d}-of-{count:05d}"
        out = out_folder / f"{shard}.hdf5"
        wanted = {"shard": folder / shard}
        urls = {"shard": f"{base}/{'atari_episodes_ordered' if ordered else 'atari'}/{shard}"}
    else:
        logs = f"{task}/{run_id}/replay_logs"
        out = out_folder / task / f"run_{run_id}-ckpt_{shard_id}.hdf5"
        wanted = atari.replay_files(folder / logs, shard_id)
        urls = {name: f"{base}/{logs}/{file.name}" for name, file in wanted.items()}
    if out.exists():
        print(f"{out} exists already; remove it to convert it again")
        return 0
    for name, file in wanted.items():
        if not file.is_file():
            _download(urls[name], as_path(file))
    print(f"converting {', '.join(map(str, wanted.values()))}", flush=True)
    try:
        with signals.deferred(), progress_bar() as draw:

            def show(done: int, whole: int) -> None:
                draw(done, whole, f"{done / max(whole, 1):.0%} is converted")

            if source == UNPLUGGED:
                found = atari.convert_unplugged(wanted["shard"], out, task, ordered, show)
            else:
                found = atari.convert_replay(wanted, out, task, show)
    except signals.Interrupted as stop:
        stop.message = "stopped; nothing was written, and what was downloaded is kept; the same command starts again"
        raise
    _tell(found, out, task, is_shuffled)
    return 0


def _download(url: str, file: Path) -> None:
    print(f"downloading {url}", flush=True)
    try:
        with download_bar() as bar:
            download_resumed(url, file, bar)
    except signals.Interrupted as stop:
        stop.message = "stopped; the downloaded part is kept; the same command continues the download"
        raise
    except DownloadError as error:
        raise UserError(f"{error}; without a connection, put the file at {file}") from None


def _tell(found: atari.Converted, out: Path, task: str, is_shuffled: bool) -> None:
    shares = ", ".join(f"{count / found.num_steps:.1%}" for count in found.action_counts)
    kind = f"transitions without order, of {found.num_episodes:,} episodes" if is_shuffled else "steps"
    print(f"{found.num_steps:,} {kind}" + ("" if is_shuffled else f" in {found.num_episodes:,} episodes"))
    print(f"{len(found.action_counts)} actions, with shares of {shares}")
    clipped = found.mean_clipped_return
    print(f"mean return {found.mean_return:.2f}" + ("" if clipped is None else f", {clipped:.2f} of clipped rewards"))
    print(f"dataset {out}, {out.stat().st_size:,} bytes")
    algorithm = "cdcql" if is_shuffled else "crdcql"
    words = [
        "--env",
        f"ALE/{task}-v5",
        "--algo",
        algorithm,
        "--dataset",
        str(out),
        "--config",
        "discrete/atari_dcql.gin" if is_shuffled else "discrete/atari_data_memory.gin",
    ]
    print(f"to learn from it:\n  {shlex.join([*program(), *words])}")
