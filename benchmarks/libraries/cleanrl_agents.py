"""CleanRL (vwxyzjn/cleanrl): its script as it is, in a thread that waits at each episode's length of steps.

The script has no function for an update, so that whole steps alone can be measured. On Atari, the games are those of
offpcc, already preprocessed: the script's own wrappers do nothing, as they need OpenCV and names of an older Gymnasium.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import gymnasium
import torch

import offpcc
from benchmarks.cases import EPISODE_LENGTH, Case
from benchmarks.libraries import UnavailableError, Work, clones
from offpcc.envs.tasks.atari import Atari

ID = "CleanRL-v0"
WARM_UP = 1_000  # random steps before the first update
SCRIPTS: dict[str, tuple[str, dict[str, Any], str]] = {  # by algorithm: file, settings, and what differs
    "sac": (
        "sac_continuous_action.py",
        {"policy_frequency": 1, "q_lr": 3e-4},
        "time limits count as ends; its actor learns in each update",
    ),
    "cdqn": (
        "dqn_atari.py",
        {"buffer_size": 100_000, "start_e": 0.05, "end_e": 0.05},
        "one game, an update every 4 steps; the loss is squared",
    ),
}


def prepare(case: Case, num_transitions: int, root: Path) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: these are no whole steps of SAC or DQN.
    """
    if case.kind != "steps" or case.algorithm not in SCRIPTS:
        raise UnavailableError(f"CleanRL is measured by whole steps of SAC and DQN, not by {case.name}")
    name, settings, note = SCRIPTS[case.algorithm]
    file = root / "cleanrl" / name
    if not file.is_file():
        raise UnavailableError(f"there is no {file}")
    gates = Gates()
    clones.use(root, "torch.utils.tensorboard")
    is_atari = case.algorithm == "cdqn"
    gymnasium.register(ID, lambda: Counted(offpcc.make(case.env, scale_actions=not is_atari), gates))
    if is_atari:
        _leave_games_alone()
    parser = sys.modules["tyro"] = MagicMock()  # of its command line
    threads = torch.get_num_threads()

    def given(kind: type[Any]) -> Any:
        torch.set_num_threads(threads)  # torch's number is of the thread
        return replace(kind(), env_id=ID, total_timesteps=10**9, learning_starts=WARM_UP, cuda=False, **settings)

    parser.cli = given
    gates.start(lambda: runpy.run_path(str(file), run_name="__main__"))
    for _ in range(WARM_UP // EPISODE_LENGTH + 1):
        gates.run()
    return Work(gates.run, EPISODE_LENGTH, note)


def _leave_games_alone() -> None:
    """Replace the wrappers that the script puts around a game by nothing; it asks the game for its actions' names."""
    Atari.get_action_meanings = lambda _: ["NOOP"]  # type: ignore[attr-defined]
    own = importlib.import_module("cleanrl_utils.atari_wrappers")
    for name in ("NoopResetEnv", "MaxAndSkipEnv", "EpisodicLifeEnv", "FireResetEnv", "ClipRewardEnv"):
        setattr(own, name, lambda env, **_: env)
    for name in ("ResizeObservation", "GrayScaleObservation", "FrameStack"):
        setattr(gymnasium.wrappers, name, lambda env, *_: env)


class Gates:
    """Lets a thread go on for an episode's length of steps at a time."""

    def __init__(self) -> None:
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.error: BaseException | None = None

    def start(self, script: Any) -> None:
        def work() -> None:
            try:
                script()
            except BaseException as error:
                self.error = error
            self.done.release()

        threading.Thread(target=work, daemon=True).start()

    def run(self) -> None:
        """From one gate to the next.

        Raises:
            RuntimeError: the script ended.
        """
        self.go.release()
        self.done.acquire()
        if self.error is not None:
            raise RuntimeError(f"CleanRL's script ended: {self.error!r}") from self.error

    def stop(self) -> None:
        self.done.release()
        self.go.acquire()


class Counted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Waits at a gate after each episode's length of steps; time limits are ends, as the script reads old flags."""

    def __init__(self, env: Any, gates: Gates) -> None:
        super().__init__(env)
        self.gates, self.steps = gates, 0

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        if self.steps % EPISODE_LENGTH == 0:
            self.gates.stop()
        return observation, reward, terminated or truncated, False, info
