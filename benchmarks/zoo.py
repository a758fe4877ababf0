"""Makes an entry of the zoo, `results/zoo/NAME`, from a run.

python -m benchmarks.zoo results/evidence/heads/residual/pendulum-p-v0/rsac/4 pendulum-p
python -m benchmarks.zoo --renew

`--renew` exports all entries again, after a change of `offpcc export`. It needs no run.

An entry has the best actor, its config, the facts of its run, its returns over 100 episodes, a picture of one episode,
and the exported actor with its contract.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np

from benchmarks.command import command
from offpcc.algorithms.agent import BEST, load_actor
from offpcc.cli.zoo import FACTS, ZOO, entries
from offpcc.config import loading
from offpcc.training.evaluation import SHOWN_SEED, evaluate_actor, open_environment, run_episodes
from offpcc.training.export import export
from offpcc.training.results import load_run
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import configured_make
from offpcc.utils.errors import UserError
from offpcc.utils.files import read_json, sha256

EPISODES = 100
FRAMES = 8  # in the picture
HEIGHT = 96  # pixels of a frame
UNITS = {  # for the contracts: one text per number
    "dmc-cartpole-swingup-v0": {
        "observation": ["m", "cos of rad", "sin of rad", "m/s", "rad/s"],
        "action": ["10 N"],  # MuJoCo's gear of the motor
    },
    "InvertedPendulum-v5": {"observation": ["m", "rad", "m/s", "rad/s"], "action": ["100 N"]},
    "pendulum-v0": {"observation": ["cos of rad", "sin of rad", "rad/s"], "action": ["Nm"]},
    "pendulum-p-v0": {"observation": ["cos of rad", "sin of rad"], "action": ["Nm"]},
    "pendulum-img-v0": {"action": ["Nm"]},
    "dmc-cartpole-balance-p-v0": {"observation": ["m", "cos of rad", "sin of rad"], "action": ["10 N"]},
    "hopper-bullet-p-v0": {
        "observation": [
            *("m", "sin of rad", "cos of rad", "rad", "rad"),
            *["joint angle, -1 and 1 at its limits"] * 3,
            "1 on the floor, else 0",
        ],
        "action": ["share of PyBullet's largest torque"] * 3,
    },
    "hopper-mujoco-v0": {
        "observation": ["m", *["rad"] * 4, *["m/s"] * 2, *["rad/s"] * 4],
        "action": ["200 Nm"] * 3,  # MuJoCo's gear of the motors
    },
}
KEPT = ("env", "algo", "run_id", "seed", "versions", "git_commit", "status")  # of run.json; the rest is of a machine


@command
def main() -> None:
    """Make an entry, or export all again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--renew", action="store_true", help="export all entries again")
    parser.add_argument("--actor", metavar="FILE", help="of the run's folder; by default its best actor")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of training until then, with --actor")
    parser.add_argument("--command", help="what trained it; by default the command line with the entry's config")
    given = parser.parse_args()
    if given.renew == (given.name is not None):
        parser.error("name a run and an entry, or give --renew alone")
    if given.renew:
        for folder in entries().values():
            renew(folder)
        return
    run = RunFolder.at(given.run)
    actor_file = run.path / given.actor if given.actor else run.actor_best
    if missing := next((file for file in (actor_file, run.config) if not file.exists()), None):
        raise UserError(f"{missing} does not exist; name the folder of a run that has saved its actor")
    with tempfile.TemporaryDirectory(dir=ZOO) as made:
        target = Path(made) / given.name
        target.mkdir()
        make(given, run, actor_file, target)
        shutil.rmtree(ZOO / given.name, ignore_errors=True)
        target.rename(ZOO / given.name)


def make(given: argparse.Namespace, run: RunFolder, actor_file: Path, target: Path) -> None:
    """Make the entry of a run in the folder `target`."""
    loading.load_for_actor(None, run.config, [])
    details = {name: value for name, value in run.details().items() if name in KEPT}
    shutil.copy(actor_file, target / BEST)
    shutil.copy(run.config, target / run.config.name)
    (target / "run.json").write_text(json.dumps(details, indent=2) + "\n", encoding="utf-8")
    actor, make_env = load_actor(target / BEST), configured_make(details["env"])
    returns = [result.episode_return for result in evaluate_actor(actor, make_env, EPISODES, 10, 0)]
    frames: list[Any] = []
    with open_environment(make_env, actor, "rgb_array") as env:
        run_episodes(actor, [env], [SHOWN_SEED], watch=lambda env: frames.append(env.render()))
    write_strip(target / "picture.png", frames)
    table: Any = load_run(given.run).table
    facts = {
        **{name: details[name] for name in ("env", "algo", "seed")},
        "commit": details.get("git_commit"),
        "steps": given.steps or int(table["step"][len(table["step"]) - 1]),
        "command": given.command
        or f"offpcc --env {details['env']} --algo {details['algo']} --config {given.name}/config.gin"
        f" --run_id {details['seed']}",
        "evaluation": {
            "command": f"offpcc evaluate results/zoo/{given.name} --episodes {EPISODES} --seed 0",
            "mean": float(np.mean(returns)),
            "std": float(np.std(returns)),
            "min": float(min(returns)),
            "max": float(max(returns)),
        },
        "licence": "MIT",
    }
    write_facts(target, facts)
    renew(target)
    print(json.dumps(facts, indent=2))


def renew(folder: Path) -> None:
    """Export the actor of an entry, and write the digests of its files anew."""
    facts = read_json(folder / FACTS)
    loading.load_for_actor(None, folder / "config.gin", [])
    with configured_make(facts["env"])() as env:
        done = export(folder, env=env, units=UNITS.get(facts["env"]))
    write_facts(folder, facts)
    print(f"{done.file}: actions in [-1, 1] differ by at most {done.difference:.1e}")


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of an agent except its facts."""
    files = (file for file in sorted(folder.iterdir()) if file.name != FACTS)
    return {file.name: sha256(file) for file in files}


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write the facts of an agent, with the digests of its files."""
    content = {**facts, "files": digests(folder)}
    (folder / FACTS).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_strip(file: Path, frames: list[Any]) -> None:
    """Write evenly spaced frames of an episode beside each other."""
    chosen = [frames[place] for place in np.linspace(0, len(frames) - 1, FRAMES).round().astype(int)]
    step = max(chosen[0].shape[0] // HEIGHT, 1)
    imageio.imwrite(file, np.concatenate([frame[::step, ::step] for frame in chosen], 1))


if __name__ == "__main__":
    sys.exit(main())
