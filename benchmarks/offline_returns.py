"""Returns of another library's agent that learned from a recording, by the settings of a config of offpcc.

python -m benchmarks.offline_returns --library d3rlpy --algo awac --env HalfCheetah-v4 --dataset DATA.hdf5
python -m benchmarks.offline_returns --library corl=FOLDER --algo edac ...

Widths, batch size, number of critics and of updates, and the part of the best episodes are those of the config. All
other settings are constants here and in `benchmarks/libraries`; a config that binds other values is refused.
Observations are normalised by the data's statistics. The tests are offpcc's, in the same episodes. It writes
progress.csv where `offpcc plot` finds it, under a name such as d3rlpy-awac. A run that has all its tests is left as it
is; an interrupted one begins anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gin
import numpy as np
import torch

import offpcc
from benchmarks.cases import CLONES, Case, Sizes
from benchmarks.command import bound_values, command, positive
from benchmarks.libraries import SOURCES, Learner, UnavailableError, load, version
from benchmarks.machine import in_words, machine, versions
from benchmarks.recorded import Transitions, of_file
from offpcc.algorithms import ALGORITHMS
from offpcc.core import Memory, Step
from offpcc.envs.d4rl import catalog
from offpcc.training.evaluation import Evaluation
from offpcc.utils.errors import UserError

CONFIG = Path("configs/evidence/offline/beside_peers.gin")
READ = (".hidden_dims", ".num_critics", ".num_samples")  # of any algorithm
READ_HERE = ("ReplayBuffer.batch_size", "train.num_epochs", "train.num_steps_per_epoch", "dataset.best_fraction")
CONSTANT = {  # what the libraries have; those of algorithms for discrete actions are the last five
    "ActorCritic.lr": (3e-4,),
    "ActorCritic.gamma": (0.99,),
    "ActorCritic.polyak": (0.995, 0.0),
    "ActorCritic.normalize_observations": (True,),
    "BCQ.vae_hidden_dims": ((256, 256),),
    "BCQ.num_acting_samples": (10,),
    "train.num_test_episodes_per_epoch": (10,),
    "ActorCritic.target_update_interval": (500,),
    "QRDQN.num_quantiles": (50,),
    "DiscreteCQL.conservative_weight": (1.0,),
    "DiscreteCRR.conservative_weight": (2.0,),
    "DiscreteCRR.num_critics": (1,),
}
UNUSED = ("Recurrent.", "RecurrentReplayBuffer.", "ReplayBuffer.capacity", "train.update")  # without an environment
LIMIT, MARGIN = 10.0, 1e-3  # of normalised observations, as in offpcc.algorithms.components


class Policy:
    """Acts by a function of normalised observations."""

    def __init__(self, act: Callable[[np.ndarray], np.ndarray], normalize: Callable[[np.ndarray], np.ndarray]) -> None:
        self._act, self._normalize = act, normalize

    def act(self, step: Step, memory: Memory = None, *, deterministic: bool = False) -> tuple[np.ndarray, Memory]:
        """Actions (N, A) in [-1, 1], or one-hot, always without noise."""
        actions = self._act(self._normalize(step.observation))
        return np.clip(actions, -1.0, 1.0).astype(np.float32), memory


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Train and test each run id that is not finished."""
    options = parser().parse_args(arguments)
    library, _, clone = options.library.partition("=")
    if library not in SOURCES or bool(clone) != (library in CLONES):
        print(f"{options.library!r} is no library, or one of {', '.join(CLONES)} without =FOLDER", file=sys.stderr)
        return 2
    offpcc.configure(str(options.config))
    check_settings(options.config)
    case, epochs, updates = settings(options.algo)
    data, normalize = normalized(of_file(options.dataset, best_fraction()))
    for run_id in options.run_id:
        label = f"{library}-{options.algo}"
        folder = options.results / f"{options.env}_from_{options.dataset.stem}" / label / str(run_id)
        file = folder / "progress.csv"
        if file.exists() and len(file.read_text().splitlines()) > epochs:
            print(f"{file} has all its tests")
            continue
        try:
            module, more = load(library, clone)
            seed(run_id)
            learner: Learner = module.learner(case, data, **more)
        except UnavailableError as fault:
            print(f"{library}: {fault}", file=sys.stderr)
            return 2
        folder.mkdir(parents=True, exist_ok=True)
        about = {"command": sys.argv, "machine": in_words(machine()), "versions": versions(), "settings": str(case)}
        about[library] = version(library, clone)
        (folder / "run.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        train(learner, Policy(learner.act, normalize), options.env, file, epochs, updates)
    return 0


def check_settings(config: Path) -> None:
    """Refuse a config that the libraries would not follow.

    Raises:
        UserError: it binds something that is neither read nor one of the constants.
    """
    for name, value in bound_values().items():
        constants = CONSTANT.get(name, ())
        is_read = name in READ_HERE or (name.endswith(READ) and not constants)
        if is_read or name.startswith(UNUSED) or value in constants:
            continue
        remedy = (
            f"here it is {' or '.join(map(str, constants))}" if constants else "which is not translated; leave it out"
        )
        raise UserError(f"{config} binds {name} = {value}, {remedy}")


def settings(algo: str) -> tuple[Case, int, int]:
    """The sizes of the algorithm that gin's bindings give, and the numbers of epochs and of updates in one."""

    def bound(name: str) -> Any:
        for owner in (cls.__name__ for cls in ALGORITHMS[algo].__mro__):
            try:
                return gin.query_parameter(f"{owner}.{name}")
            except ValueError:
                continue
        return None

    given = {"num_critics": bound("num_critics"), "num_samples": bound("num_samples")}
    sizes = Sizes(
        hidden_dims=tuple(bound("hidden_dims")),
        batch_size=gin.query_parameter("ReplayBuffer.batch_size"),
        **{name: value for name, value in given.items() if value is not None},
    )
    epochs, updates = (gin.query_parameter(f"train.{name}") for name in ("num_epochs", "num_steps_per_epoch"))
    return Case(algo, algo, "update", algo, (), sizes), epochs, updates


def best_fraction() -> float:
    """`dataset.best_fraction` of gin's bindings."""
    try:
        return float(gin.query_parameter("dataset.best_fraction"))
    except ValueError:
        return 1.0


def normalized(data: Transitions) -> tuple[Transitions, Callable[[np.ndarray], np.ndarray]]:
    """The data with normalised observations, and the function that normalises."""
    mean, std = (getattr(data.observations.astype(np.float64), name)(0) for name in ("mean", "std"))

    def normalize(observations: np.ndarray) -> np.ndarray:
        return ((observations - mean) / (std + MARGIN)).clip(-LIMIT, LIMIT).astype(np.float32)

    seen = normalize(data.observations), normalize(data.next_observations)
    return data._replace(observations=seen[0], next_observations=seen[1]), normalize


def seed(number: int) -> None:
    """All generators that a library may draw from."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def train(learner: Learner, policy: Policy, env: str, file: Path, epochs: int, updates: int) -> None:
    """Update and test in turn, and write a row after each test."""
    tests = Evaluation(lambda: offpcc.make(env, scale_actions=True), catalog.reference_returns(env))
    rows, learning = [], 0.0
    for epoch in range(1, epochs + 1):
        started = time.perf_counter()
        for _ in range(updates // learner.units):
            learner.update()
        learning += time.perf_counter() - started
        results = tests.run(policy, 10, 10)  # type: ignore[arg-type]
        returns = [result.episode_return for result in results]
        row = {"step": epoch * updates, "update": epoch * updates, "epoch": epoch, "test/return": np.mean(returns)}
        row |= {"test/return_std": np.std(returns), "test/length": np.mean([result.length for result in results])}
        if tests.references is not None:
            low, high = tests.references
            row["test/normalized_score"] = 100.0 * (np.mean(returns) - low) / (high - low)
        rows.append(row)
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(row))
            writer.writeheader()
            writer.writerows(rows)
        print(
            f"{file.parent}: {row['update']:,} updates, return {row['test/return']:.1f}, {learning:.0f} s", flush=True
        )
    tests.close()


def parser() -> argparse.ArgumentParser:
    """Of the command's arguments."""
    whole = argparse.ArgumentParser(
        prog="python -m benchmarks.offline_returns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--library", required=True, metavar="NAME[=FOLDER]", help="with the folder of its clone")
    whole.add_argument("--algo", required=True, choices=list(ALGORITHMS), metavar="ALGO")
    whole.add_argument("--env", required=True)
    whole.add_argument("--dataset", required=True, type=Path, metavar="FILE.hdf5")
    whole.add_argument("--config", type=Path, default=CONFIG)
    whole.add_argument("--run_id", type=positive, nargs="+", default=[1, 2, 3])
    whole.add_argument("--results", type=Path, default=Path("results"))
    return whole


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
