"""`offpcc zoo`: trained agents that come with offpcc."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from offpcc.algorithms.agent import BEST, load_actor
from offpcc.config import loading
from offpcc.config.bindings import nearest
from offpcc.config.gin_files import CHECKOUT
from offpcc.training.evaluation import show_episodes
from offpcc.training.interaction import episode_options
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import choose_device, configured_make
from offpcc.utils.errors import UserError, first_line
from offpcc.utils.files import read_json, sha256
from offpcc.utils.paths import PACKAGE, check_folder, shown

ZOO = CHECKOUT / "results" / "zoo" if CHECKOUT else PACKAGE / "zoo"
FACTS = "zoo.json"  # what an entry says of itself


def run_zoo(action: str, name: str | None, out: Path | None, episodes: int | None) -> int:
    """List the agents, copy one, or play one."""
    if episodes is not None and action != "play":
        raise UserError(f"--episodes {episodes} has no effect on `offpcc zoo {action}`; leave it out")
    if action == "list":
        if name is not None:
            raise UserError(f"`offpcc zoo list` takes no name, but got {shown(name)}; leave it out")
        if out is not None:
            raise UserError(f"--out {out} has no effect on `offpcc zoo list`, which writes nothing; leave it out")
        print_table()
    elif name is None:
        raise UserError(f"`offpcc zoo {action}` needs the name of an agent; there are {', '.join(entries())}")
    elif action == "get":
        get(name, out)
    else:
        play_zoo_agent(name, out, episodes or 1)
    return 0


def entries() -> dict[str, Path]:
    """Return the folders of all agents, by name."""
    return {file.parent.name: file.parent for file in sorted(ZOO.glob(f"*/{FACTS}"))}


def find_zoo_agent(name: str) -> tuple[Path, dict[str, Any]]:
    """Return the folder of an agent and its facts, after checking its files."""
    known = entries()
    if name not in known:
        raise UserError(f"the zoo has no agent {shown(name)}; {nearest(name, known)}")
    folder = known[name]
    facts: dict[str, Any] = read_json(folder / FACTS)
    for file, digest in facts["files"].items():
        path = folder / file
        if not path.is_file() or sha256(path) != digest:
            raise UserError(f"{path} is missing, or is not the published file; install offpcc again")
    return folder, facts


def print_table() -> None:
    """Print a line for each agent."""
    table = [("name", "environment", "algorithm", "steps", "return over 100 episodes"), *rows()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print("`offpcc zoo play NAME` shows one, `offpcc zoo get NAME` copies its files")


def rows() -> Iterator[Sequence[str]]:
    """Yield name, environment, algorithm, steps and returns of each agent."""
    for name, folder in entries().items():
        facts = read_json(folder / FACTS)
        found = facts["evaluation"]
        yield name, facts["env"], facts["algo"], f"{facts['steps']:,}", f"{found['mean']:.1f} ± {found['std']:.1f}"


def get(name: str, out: Path | None) -> None:
    """Copy the files of an agent into a new folder, which every command reads as a run's folder."""
    folder, _ = find_zoo_agent(name)
    target = Path(name) if out is None else out
    if target.exists():
        raise UserError(f"{target} exists; name another folder with --out, or remove it")
    try:
        shutil.copytree(folder, target)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)  # a part would be refused the next time
        raise UserError(f"{target} cannot be written ({first_line(error)}); name another folder with --out") from error
    print(f"{target}: {', '.join(sorted(file.name for file in target.iterdir()))}")
    print(f"to evaluate it: offpcc evaluate {target}")


def play_zoo_agent(name: str, out: Path | None, episodes: int) -> None:
    """Show episodes in a window; without a screen, or with `out`, record them as videos."""
    folder, facts = find_zoo_agent(name)
    check_folder(out or Path(), "the folder of videos")
    run = RunFolder.at(folder)
    loading.load_for_actor(None, run.config, [])
    actor = load_actor(folder / BEST, choose_device("cpu"))
    print(f"{name}: {facts['algo']} in {facts['env']}, {facts['steps']:,} steps of training")
    env, in_window = facts["env"], out is None
    show_episodes(actor, configured_make(env), env, episodes, episode_options(), out or Path(), in_window, name)
