"""`offpcc convert`: makes datasets of recorded Atari games."""

from pathlib import Path

from offpcc.cli.messages import print_training
from offpcc.data.convert import atari
from offpcc.data.datasets.download import DownloadError, download_resumed
from offpcc.training.loggers.console import download_bar, progress_bar
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.paths import as_path, why_no_folder
from offpcc.utils.words import counted

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
    """Download a part of a recording if it is missing, and write it as a dataset; see `offpcc convert --help`.

    `address` is where to download from; None for the public address.
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
        files = {"shard": Path(shard)}
        base = f"{base}/{'atari_episodes_ordered' if ordered else 'atari'}"
    else:
        out = out_folder / task / f"run_{run_id}-ckpt_{shard_id}.hdf5"
        files = atari.replay_files(Path(task, f"{run_id}", "replay_logs"), shard_id)
    urls = {name: f"{base}/{file.as_posix()}" for name, file in files.items()}
    if out.exists():
        print(f"{out} exists already; remove it to convert it again")
        return 0
    wanted = _places(folder, files, task)
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


def _places(folder: Path, files: dict[str, Path], task: str) -> dict[str, Path]:
    """Return where the files are, or are to be downloaded to.

    `folder` is that of the recordings, in which the files have the places `files`; or a folder inside it that holds
    them.
    """
    places = {name: _unpacked(folder / file) for name, file in files.items()}
    for name, file in files.items():
        for depth in range(1, 0 if places[name].is_file() else len(file.parts)):
            near = _unpacked(folder.joinpath(*file.parts[depth:]))
            if not near.is_file():
                continue
            whole = folder.absolute()
            if whole.parts[-depth:] == file.parts[:depth]:
                return {one: _unpacked(whole.parents[depth - 1] / other) for one, other in files.items()}
            raise UserError(
                f"{near} is there, but a recording of {task} is read from {folder / file}; if it is of {task}, move it "
                f"there"
            )
    return places


def _unpacked(file: Path) -> Path:
    """Return the place of a file, which may have lost its suffix .gz."""
    other = file.with_suffix("")
    return other if file.suffix == ".gz" and not file.is_file() and other.is_file() else file


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
    num_steps = counted(found.num_steps, "transition" if is_shuffled else "step")
    print(f"{num_steps}{' without order, of' if is_shuffled else ' in'} {counted(found.num_episodes, 'episode')}")
    print(f"{len(found.action_counts)} actions, with shares of {shares}")
    *others, last = [f"{action}" for action, count in enumerate(found.action_counts) if not count] or [""]
    if last:
        told = f"actions {', '.join(others)} and {last} never occur" if others else f"action {last} never occurs"
        print(f"{told}: is this the right game?")
    clipped = found.mean_clipped_return
    print(f"mean return {found.mean_return:.2f}" + ("" if clipped is None else f", {clipped:.2f} of clipped rewards"))
    print(f"dataset {out}, {out.stat().st_size:,} bytes")
    algorithm, config = ("cdcql", "atari_dcql") if is_shuffled else ("crdcql", "atari_data_memory")
    print_training(f"ALE/{task}-v5", algorithm, out, (), "--config", f"discrete/{config}.gin")
