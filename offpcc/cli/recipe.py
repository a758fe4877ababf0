"""`offpcc collect`; and its recipe of D4RL, which makes five datasets from one training run.

The kinds are those of Fu et al. 2020 (arXiv:2004.07219), section 4:

- *random*: the agent before its first update.
- *medium*: the agent whose test return first is a third of the way from the random agent's to the expert's.
- *medium-replay*: all steps of training until then.
- *expert*: the agent with the best test return.
- *medium-expert*: medium and expert, in equal parts.

Agents act with exploration. All parts resume exactly, so a recipe that was killed and resumed gives the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from offpcc.algorithms.agent import save_actor
from offpcc.cli import collect as recording
from offpcc.cli.commands import refuse_options, reject_unused_options
from offpcc.cli.imagine import imagine
from offpcc.cli.messages import TrainOptions, load_config
from offpcc.config import loading
from offpcc.data.datasets.columns import Array
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.load import MINARI, load_dataset
from offpcc.data.datasets.minari import check_id
from offpcc.data.recording.hdf5_writer import read_finished
from offpcc.data.recording.minari_writer import check_new_minari, minari_folder, write_minari
from offpcc.envs.guard import opened
from offpcc.training.analysis.run_tables import read_progress
from offpcc.training.callbacks import Callback, Run
from offpcc.training.fit import fit
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import RunSpec, choose_device, configured_make
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.paths import check_folder

KINDS = ("random", "medium-replay", "medium", "medium-expert", "expert")
MEDIUM = 1.0 / 3.0
MOST_SAVED = 100  # actors of a run; with more epochs, only some are saved
RUN, REPLAY = "run", "replay.hdf5"  # the folder of training in that of the recipe, and its steps
KIND = "KIND"  # in a Minari id


def run_collect(
    recipe: str | None = None,
    actor: str | None = None,
    algo: str | None = None,
    train_steps: int | None = None,
    medium: float | None = None,
    model: Path | None = None,
    dataset: str | None = None,
    rollout_length: int | None = None,
    **options: Any,
) -> int:
    """Record a dataset (see `offpcc.cli.collect`, and `offpcc.cli.imagine` for one in a model), or those of a recipe.

    Returns:
        The exit code.
    """
    if recipe is None:
        reject_unused_options("--recipe d4rl", algo=algo, train_steps=train_steps, medium=medium)
        assert actor is not None  # without --recipe, the command line requires it
        if model is not None:
            given = {name: options.pop(name) for name in ("minari", "resume", "epsilon")}
            refuse_options("on episodes in a model (--model)", given)
            return imagine(model, dataset, actor, rollout_length=rollout_length, **options)
        reject_unused_options("--model", dataset=dataset, rollout_length=rollout_length)
        return recording.record_dataset(actor=actor, **options)
    unused = {"model": model, "dataset": dataset, "rollout_length": rollout_length, "actor": actor}
    unused |= {name: options.pop(name) for name in ("epsilon", "deterministic")}
    refuse_options("with --recipe, which trains its own agents in the environment, with exploration", unused)
    return Recipe(algo=algo or "sac", train_steps=train_steps, medium=medium or MEDIUM, **options).make()


class SaveActors(Callback):
    """Saves the actor before training and after each epoch, or after every second and so on if there are many."""

    def __init__(self, folder: Path, num_epochs: int) -> None:
        self.folder, self.every = folder, math.ceil(num_epochs / MOST_SAVED)

    def file(self, epoch: int) -> Path:
        """Return the file of the actor after this epoch."""
        return self.folder / f"actor_epoch_{epoch}.pt"

    def on_start(self, run: Run) -> None:
        """Save the actor if the run is new."""
        if run.loop.step == 0:
            self.save(run)

    def on_epoch(self, run: Run) -> None:
        """Save the actor."""
        if run.loop.epoch % self.every == 0:
            self.save(run)

    def save(self, run: Run) -> None:
        """Save the actor."""
        algorithm: Any = run.algorithm
        save_actor(algorithm, self.file(run.loop.epoch))


def choose_medium(scores: Array, saved: Sequence[int], fraction: float) -> int:
    """Return the first saved epoch, from 0, whose score is at least `fraction`; else the expert's. NaN: no test."""
    return next((epoch for epoch in saved if scores[epoch] >= fraction), int(np.nanargmax(scores)))


@dataclass
class Recipe:
    """The options of a recipe; see `offpcc collect --help`."""

    env: str
    steps: int
    out: Path
    algo: str
    train_steps: int | None
    medium: float
    minari: str | None = None
    seed: int = 0
    resume: bool = False
    config: str | None = None
    modules: Sequence[str] = ()
    gin: Sequence[str] = ()
    device: str | None = None
    threads: int = 1

    def make(self) -> int:
        """Train, record and join; return the exit code."""
        self.check()
        try:
            self._make()
        except signals.Interrupted as stop:
            if "--resume" not in stop.message:
                stop.message += "; run the same command with --resume to continue"
            raise
        return 0

    def check(self) -> None:
        """Raise if the recipe cannot start."""
        check_folder(self.out, "--out")
        taken = [path for path in (self.out / RUN, *map(self.file, KINDS)) if path.exists()]
        if taken and not self.resume:
            raise UserError(f"{taken[0]} exists and is not overwritten; add --resume, or give another folder")
        if self.minari is not None:
            self.minari = self.minari.removeprefix(MINARI)
            if KIND not in self.minari:
                raise UserError(
                    f"--minari {self.minari} is one id, but there are five datasets; write {KIND} in place of their "
                    f"kind, such as pendulum/{KIND}-v0"
                )
            for kind in KINDS:
                check_id(self.id(kind), "--minari ")
                if not self.file(kind).exists():
                    check_new_minari(self.id(kind))

    def file(self, kind: str) -> Path:
        """Return the file of a kind of data."""
        return self.out / f"{kind}.hdf5"

    def id(self, kind: str) -> str:
        """Return the Minari id of a kind of data."""
        return str(self.minari).replace(KIND, kind)

    def _make(self) -> None:
        actors = self.train()
        progress = read_progress(actors.folder / "progress.csv")
        self.record("random", 0, actors.file(0), {"actor_step": 0})
        returns, steps = np.asarray(progress["test/return"]), np.asarray(progress["step"], np.int64)
        played = load_dataset(self.file("random"))
        if not played.is_whole.any():
            raise UserError(
                f"{self.file('random')} holds no whole episode, whose return is the measure of learning; remove this "
                f"file, and give more --steps and --resume"
            )
        random, best = float(played.whole_returns.mean()), int(np.nanargmax(returns))
        if not returns[best] > random:
            raise UserError(
                f"the agent did not learn: its best test return is {returns[best]:.1f}, the random agent's is "
                f"{random:.1f}; train longer, or with other settings, in another folder"
            )
        scores = (returns - random) / (returns[best] - random)
        saved = [number for number in range(len(returns)) if actors.file(number + 1).exists()]
        chosen = choose_medium(scores, saved, self.medium)

        def facts(number: int) -> dict[str, Any]:
            return {
                "actor_step": int(steps[number]),
                "actor_test_return": float(returns[number]),
                "random_return": random,
                "expert_test_return": float(returns[best]),
                "medium_fraction": self.medium,
            }

        if chosen == best:
            print("note: the medium agent is the expert, because no earlier saved agent is good enough")
        medium_actor = actors.file(chosen + 1) if actors.file(chosen + 1).exists() else actors.folder / "actor_best.pt"
        replay = load_dataset(actors.folder / REPLAY)
        until = replay.fraction(min(int(steps[chosen]) / replay.num_steps, 1.0))
        self.join("medium-replay", until, {"seed": self.seed, "actor": "the learning one", **facts(chosen)})
        self.record("medium", 1, medium_actor, facts(chosen))
        self.record("expert", 2, actors.folder / "actor_best.pt", facts(best))
        both = load_dataset(self.file("medium")) + load_dataset(self.file("expert"))
        self.join("medium-expert", both, {"seed": self.seed, "actor": "medium, then expert", **facts(best)})
        for kind in KINDS:
            data = load_dataset(self.file(kind))
            mean = float(data.whole_returns.mean())
            print(f"{self.file(kind)}: {data.num_transitions:,} steps, mean return of episodes {mean:.1f}")

    def train(self) -> SaveActors:
        """Train the agent, or resume its training; return what saved its actors."""
        folder = RunFolder.at(self.out / RUN)
        is_begun = folder.status() is not None
        options = TrainOptions(
            self.algo, self.env, config=self.config, modules=self.modules, gin=self.gin, resume=is_begun
        )
        load_config(options, folder)
        spec = self.make_spec(folder, {})
        if self.train_steps is not None:
            num_epochs = math.ceil(self.train_steps / spec.training["num_steps_per_epoch"])
            spec = self.make_spec(folder, {"num_epochs": num_epochs})
        if "num_epochs" not in spec.training:
            raise loading.missing_binding("train.num_epochs")
        if spec.training.get("num_test_episodes_per_epoch") == 0:
            raise UserError(
                "train.num_test_episodes_per_epoch is 0, but the medium agent is chosen by its test return; give test "
                "episodes"
            )
        actors = SaveActors(folder.path, spec.training["num_epochs"])
        fit(spec, folder.path, resume=is_begun, callbacks=[actors])
        return actors

    def make_spec(self, folder: RunFolder, training: Mapping[str, Any]) -> RunSpec:
        """Return the description of the run whose actors are recorded."""
        return RunSpec.make(
            self.env,
            self.algo,
            seed=self.seed,
            device=choose_device(self.device, self.threads),
            threads=self.threads,
            training=training,
            save_dataset=folder.path / REPLAY,
        )

    def record(self, kind: str, number: int, actor: Path, facts: Mapping[str, Any]) -> None:
        """Record `steps` steps of an actor; the seed of the n-th recording is `seed` + n."""
        recording.record_dataset(
            env=self.env,
            actor=str(actor),
            steps=self.steps,
            out=self.file(kind),
            minari=None if self.minari is None else self.id(kind),
            seed=self.seed + number,
            resume=True,
            config=self.config,
            modules=self.modules,
            gin=self.gin,
            device=self.device,
            threads=self.threads,
            more_facts={"recipe": "d4rl", "kind": kind, **facts},
        )

    def join(self, kind: str, data: Dataset, facts: Mapping[str, Any]) -> None:
        """Write a dataset that consists of recorded ones, unless it is there."""
        file = self.file(kind)
        if not file.exists():
            metadata = {**data.metadata, "algorithm": self.algo, "recipe": "d4rl", "kind": kind, **facts}
            replace(data, metadata=metadata).save(file)
        elif (there := read_finished(file)[1]) != data.num_transitions:
            raise UserError(
                f"{file} has {there:,} steps, but {data.num_transitions:,} are wanted; remove it, and run the same "
                f"command again"
            )
        if self.minari is not None and not minari_folder(self.id(kind)).exists():
            with opened(configured_make(self.env)(scale_actions=True)) as played_in:
                write_minari(self.id(kind), file, played_in, lambda number: None)
        print(f"dataset {file}")
