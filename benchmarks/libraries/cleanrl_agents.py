"""CleanRL (vwxyzjn/cleanrl): its script as it is, in a thread that waits at each episode's length of steps.

The script has no function for an update, so that whole steps alone can be measured.
"""

from __future__ import annotations

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

ID = "CleanRL-v0"
WARM_UP = 1_000  # random steps before the first update


def prepare(case: Case, num_transitions: int, root: Path) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: these are no whole steps of SAC.
    """
    file = root / "cleanrl" / "sac_continuous_action.py"
    if case.kind != "steps" or case.algorithm != "sac":
        raise UnavailableError(f"CleanRL is measured by whole steps of SAC, not by {case.name}")
    if not file.is_file():
        raise UnavailableError(f"there is no {file}")
    gates = Gates()
    gymnasium.register(ID, lambda: Counted(offpcc.make(case.env, scale_actions=True), gates))
    clones.use(root, "torch.utils.tensorboard")
    parser = sys.modules["tyro"] = MagicMock()  # of its command line
    threads = torch.get_num_threads()

    def given(kind: type[Any]) -> Any:
        torch.set_num_threads(threads)  # torch's number is of the thread
        return replace(
            kind(), env_id=ID, total_timesteps=10**9, learning_starts=WARM_UP, policy_frequency=1, cuda=False, q_lr=3e-4
        )

    parser.cli = given
    gates.start(lambda: runpy.run_path(str(file), run_name="__main__"))
    for _ in range(WARM_UP // EPISODE_LENGTH + 1):
        gates.run()
    return Work(gates.run, EPISODE_LENGTH, "time limits count as ends; its actor learns in each update")


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
