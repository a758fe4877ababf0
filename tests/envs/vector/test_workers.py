"""Environments in processes of their own: one that dies is started anew, and nothing else changes."""

import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gin
import gymnasium
import numpy as np
import pytest
from conftest import QUICK, run_folder
from misbehaving import (
    HARD_TO_TELL,
    Clumsy,
    ExitsAtOnce,
    Leaves,
    Naps,
    Raises,
    Walk,
    walk,
)
from test_local import AtRandom, assert_same, episodes

import offpcc
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.vector import local
from offpcc.envs.vector.local import LocalEnvironments, environment_seed
from offpcc.envs.vector.workers import JOIN_TIMEOUT, MOST_RESTARTS, Worker, WorkerEnvironments, next_seed
from offpcc.training.interaction import Interaction
from offpcc.training.run_fns import columns_of
from offpcc.utils.errors import UserError

SEEDS = [environment_seed(5, number) for number in range(3)]
CLUMSY = functools.partial(Clumsy, SEEDS[1])


@pytest.fixture
def workers():
    """Interactions of random exploration in worker processes, which are closed in the end."""
    opened = []

    def interact(env, stores=(RecurrentReplayBuffer,), seeds=SEEDS, timeout=None):
        side_by_side = WorkerEnvironments(env, seeds, timeout)
        opened.append(side_by_side)
        first, *others = (kind(Walk.observation_space, Walk.action_space, num_envs=len(seeds)) for kind in stores)
        interaction = Interaction(side_by_side, AtRandom(), first, seed=5)
        interaction.stores += others
        return interaction

    yield interact
    for side_by_side in opened:
        side_by_side.close()


def steps(interaction, number):
    return sum(interaction.step(explore_at_random=True) for _ in range(number))


def alone():
    buffer = RecurrentReplayBuffer(Walk.observation_space, Walk.action_space, num_envs=3)
    interaction = Interaction(LocalEnvironments(Walk, SEEDS), AtRandom(), buffer, seed=5)
    steps(interaction, 40)
    return episodes(buffer)


def test_a_process_that_dies_is_started_anew_and_the_others_notice_nothing(workers, capsys):
    interaction = workers(CLUMSY, (RecurrentReplayBuffer, ReplayBuffer))
    assert steps(interaction, 14) == 3 * 14 - 1
    assert interaction.num_dropped == 1 and len(interaction.finished) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "Clumsy (environment 1) ended with exit code 7; it is restarted" in line and "dropped" in line
    steps(interaction, 26)
    recurrent, ring = interaction.stores
    whole, lossy = alone(), episodes(recurrent)
    assert all(len(episode[1]) == 10 for episode in lossy), "nothing is kept of an episode that was dropped"
    assert len([episode for episode in whole if episode in lossy]) == 9, "two environments' four, one's first"
    assert len(ring) == interaction.num_steps
    batch = ring.sample()
    assert (batch.observations[:, 1, 1] == batch.observations[:, 0, 1] + 1).all(), "no transition lies across the cut"
    assert next_seed(SEEDS[1]) == interaction.environments.seeds[1]


def test_one_that_is_killed_from_outside_is_started_anew(workers, capsys):
    interaction = workers(Walk)
    steps(interaction, 5)
    os.kill(interaction.environments.workers[2].process.pid, signal.SIGKILL)
    assert steps(interaction, 1) == 2
    assert "(environment 2) was killed by SIGKILL" in capsys.readouterr().err
    assert interaction.lengths.tolist() == [6, 6, 0] and not interaction.over.any()
    assert steps(interaction, 10) == 30


def test_one_that_hangs_is_started_anew(workers, capsys):
    interaction = workers(Naps, seeds=SEEDS[:1], timeout=1.0)
    assert steps(interaction, 4) == 3
    assert interaction.num_dropped == 1
    assert "make.timeout" in capsys.readouterr().err
    assert steps(interaction, 3) == 3


def test_what_is_raised_there_is_told_as_it_is_here(workers):
    interaction = workers(Raises)
    with pytest.raises(EnvironmentFault) as raised:
        steps(interaction, 4)
    for word in ("Raises (environment 0) raised ValueError: too far (", "misbehaving.py:", "step 4 of its episode",
                 "step 10 of the run"):  # fmt: skip
        assert word in raised.value.message
    assert raised.value.with_resume().message.endswith("then --resume continues from the run's last checkpoint")
    assert "ValueError: too far\nand more of it" in str(raised.value.__cause__)


class RaisesOnce(Raises):
    """Raises in its first episode alone, if it is of that seed."""

    def __init__(self, seed):
        self.doomed = seed

    def reset(self, *, seed=None, options=None):
        self.at = 4 if seed == self.doomed else None
        return super().reset(seed=seed)


@pytest.mark.parametrize("kind", [LocalEnvironments, WorkerEnvironments])
@pytest.mark.parametrize("store", [RecurrentReplayBuffer, ReplayBuffer])
def test_no_wrong_transition_is_stored_after_an_error_that_a_script_catches(kind, store):
    """In a step in which other environments took theirs, before and after the one that raised."""
    environments = kind(functools.partial(RaisesOnce, SEEDS[1]), SEEDS)
    buffer = store(Walk.observation_space, Walk.action_space, num_envs=3)
    interaction = Interaction(environments, AtRandom(), buffer, seed=5)
    with pytest.raises(EnvironmentFault, match="too far"):
        steps(interaction, 4)
    steps(interaction, 30)
    environments.close()
    if store is ReplayBuffer:
        batch = buffer.sample()
        before, after, rewards = batch.observations[:, 0], batch.observations[:, 1], batch.rewards[:, 0, 0]
        assert len(buffer) == 3 * 3 + 3 * 30
        assert (after[:, 1] == before[:, 1] + 1).all() and (rewards == after[:, 0]).all()
        return
    assert sorted(len(episode.actions) for episode in buffer.episodes) == [3] * 3 + [10] * 9
    for episode in buffer.episodes:
        frames = episode.frames.reshape(-1, 2)
        assert frames[:, 1].tolist() == list(range(len(frames))) and (episode.rewards[:, 0] == frames[1:, 0]).all()


@pytest.mark.parametrize("kind", [LocalEnvironments, WorkerEnvironments])
def test_no_wrong_transition_is_stored_after_ctrl_c_within_a_step(kind, monkeypatch):
    """The first environment has taken its step; in processes, nobody waits for the answers of the others."""
    environments = kind(Walk, SEEDS)
    buffer = ReplayBuffer(Walk.observation_space, Walk.action_space, num_envs=3)
    interaction = Interaction(environments, AtRandom(), buffer, seed=5)
    steps(interaction, 3)
    place = local if kind is LocalEnvironments else Worker
    original, calls = place.answer, itertools.count()

    def stop_in_second(*given):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return original(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(place, "answer", stop_in_second)
        interaction.step(explore_at_random=True)
    steps(interaction, 30)
    environments.close()
    assert len(buffer) == 3 * 3 + 3 * 30
    table = buffer.transition_table()
    for start, stop in zip(table.starts, table.stops, strict=True):
        assert table.observations[start:stop, 1].tolist() == list(range(stop - start))


def test_one_that_would_end_the_program_is_told_without_a_traceback(workers, capfd):
    interaction = workers(Leaves)
    with pytest.raises(EnvironmentFault, match=r"Leaves \(environment 0\) raised SystemExit.*step 4 of its episode"):
        steps(interaction, 4)
    interaction.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("fault", HARD_TO_TELL)
def test_what_is_hard_to_tell_is_told_as_it_is_here(workers, fault):
    odd, words = HARD_TO_TELL[fault]
    interaction = workers(walk(odd), seeds=SEEDS[:1])
    with pytest.raises(EnvironmentFault) as raised:
        steps(interaction, 4)
    assert words in raised.value.message and "Odd (environment 0) " in raised.value.message


def closing_all_files(self, *returned):
    os.closerange(3, 256)
    return returned


def test_one_that_closes_its_files_is_started_anew(workers, capfd):
    interaction = workers(walk(closing_all_files), seeds=SEEDS[:1])
    assert steps(interaction, 5) == 4 and interaction.num_dropped == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "Odd (environment 0) ended with exit code 1; it is restarted" in line


def test_one_that_comes_to_no_step_ends_the_run(workers, capsys):
    interaction = workers(ExitsAtOnce, seeds=SEEDS[:1])
    with pytest.raises(UserError, match=r"died 4 times without a finished step.*exit code 7"):
        steps(interaction, 10)
    assert len(capsys.readouterr().err.splitlines()) == MOST_RESTARTS


def test_an_environment_that_cannot_be_made_there_is_told(workers):
    def broken():
        raise RuntimeError("no licence")

    with pytest.raises(UserError, match=r"environment 0 cannot be made: RuntimeError: no licence"):
        workers(broken)


def test_signals_to_all_processes_reach_no_worker(workers):
    """Ctrl-C goes to the whole group; it is the parent that says when to stop."""
    interaction = workers(Walk)
    steps(interaction, 2)
    for worker in interaction.environments.workers:
        for stop in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker.process.pid, stop)
    assert steps(interaction, 8) == 24 and interaction.num_dropped == 0


def test_processes_end_when_they_are_closed_whatever_they_do(workers):
    interaction = workers(Walk)
    pids = [worker.process for worker in interaction.environments.workers]
    interaction.close()
    interaction.close()
    assert not any(process.is_alive() for process in pids)


def test_only_one_with_nothing_under_way_gets_the_time_of_its_timeout_to_close(workers, monkeypatch):
    """One that hangs in a step would delay the end of the run by as much."""
    interaction = workers(Walk, timeout=1_000.0)
    steps(interaction, 2)
    side_by_side, patience = interaction.environments, {}
    processes = [worker.process for worker in side_by_side.workers]
    os.kill(processes[1].pid, signal.SIGSTOP)
    side_by_side.workers[1].send("step", Walk.action_space.sample())
    for number, process in enumerate(processes):
        join = process.join

        def note(seconds=None, number=number, join=join):
            if seconds is not None:
                patience[number] = seconds
            join(None if seconds is None else min(seconds, 2.0))

        monkeypatch.setattr(process, "join", note)
        monkeypatch.setattr(process, "is_alive", lambda: True)  # so that all are waited for
    interaction.close()
    assert patience.pop(1) <= JOIN_TIMEOUT < 900.0 < min(patience.values()) and len(patience) == 2
    assert all(process.exitcode is not None for process in processes)


class DrawsFromTorch(Walk):
    """Shows numbers of torch's global generator."""

    def reset(self, *, seed=None, options=None):
        import torch

        super().reset(seed=seed)
        return torch.rand(2).numpy(), {}


def test_torchs_generator_of_a_process_is_seeded(workers):
    firsts = [workers(functools.partial(imports_torch, DrawsFromTorch)).environments for _ in range(2)]
    seen = [np.stack(list(one._ask("reset", dict.fromkeys(range(3))).values())) for one in firsts]
    np.testing.assert_array_equal(*seen)
    assert len(np.unique(seen[0])) == 6


def imports_torch(kind):
    import torch  # noqa: F401

    return kind()


class Starts(Walk):
    """Starts a simulator, a process of its own."""

    def __init__(self):
        super().__init__()
        self.simulator = subprocess.Popen(["sleep", "300"])


def test_a_simulator_ends_with_the_process_that_is_killed(workers):
    environments = workers(Starts, seeds=SEEDS[:1]).environments
    pid = environments.workers[0].process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert children
    environments.workers[0].kill()
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline and any(map(is_running, children)):
        time.sleep(0.05)
    assert not any(map(is_running, children))


def is_running(pid):
    """Whether a process runs; one that has ended may wait as a zombie for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_replay_of_an_episode_has_a_time_limit(workers, capsys):
    """It hangs there, because each step of it is slow."""
    environments = workers(Walk, seeds=SEEDS[:1], timeout=2.0).environments
    environments._ask("reset", {0: True})
    environments._ask("step", {0: Walk.action_space.sample()})
    snapshot = environments.snapshot()
    slow = workers(SlowWalk, seeds=SEEDS[:1], timeout=0.5).environments
    slow.restore(snapshot)
    assert "has not answered within make.timeout; it is restarted" in capsys.readouterr().err


class SlowWalk(Walk):
    """Hangs in its steps."""

    def step(self, action):
        time.sleep(60.0)
        return super().step(action)


@pytest.mark.parametrize("moment", ["between steps", "in a step"])
def test_a_run_is_found_back_after_a_restart(workers, moment):
    """Also if the checkpoint is the first to find a process dead."""
    kind = CLUMSY if moment == "in a step" else Walk
    whole, second = (workers(kind) for _ in range(2))
    steps(whole, 16)
    if moment == "between steps":
        process = whole.environments.workers[1].process
        process.kill()
        process.join()
    state = whole.state_dict()
    buffer = whole.stores[0].state_dict()
    second.stores[0].load_state_dict(buffer)
    assert second.load_state_dict(state) is None
    for interaction in (whole, second):
        steps(interaction, 4 if kind is CLUMSY else 20)
        assert interaction.num_dropped == 1
    assert_same(whole.state_dict(), second.state_dict())
    assert_same(whole.stores[0].state_dict(), second.stores[0].state_dict())


def test_so_is_one_in_which_a_process_died_between_two_episodes(workers):
    whole, second = workers(Walk), workers(Walk)
    steps(whole, 10)
    assert whole.over.all()
    process = whole.environments.workers[1].process
    process.kill()
    process.join()
    state = whole.state_dict()
    second.stores[0].load_state_dict(whole.stores[0].state_dict())
    assert second.load_state_dict(state) is None
    for interaction in (whole, second):
        assert steps(interaction, 15) == 45 and interaction.num_dropped == 0
    assert_same(whole.state_dict(), second.state_dict())
    assert_same(whole.stores[0].state_dict(), second.stores[0].state_dict())


def test_an_agent_learns_on_and_forgets_the_dropped_episode():
    gin.parse_config("make.wrappers = [@gymnasium.TimeLimit]\nTimeLimit.max_episode_steps = 30")
    learner = offpcc.build(
        "pendulum-p-v0", "rsac", seed=3, algorithm={"hidden_dims": (8,)}, buffer={"batch_size": 4},
        environments={"num_envs": 2, "worker_processes": True},
    )  # fmt: skip
    interaction = learner.interaction
    for _ in range(12):
        interaction.step(explore_at_random=False)
    process = interaction.environments.workers[0].process
    process.kill()
    process.join()
    interaction.step(explore_at_random=False)
    assert interaction.num_dropped == 1 and interaction.lengths.tolist() == [0, 13]
    assert not learner.buffer.unfinished[0].actions and len(learner.buffer.unfinished[1].actions) == 13
    for _ in range(17):
        interaction.step(explore_at_random=False)
    assert interaction.over.tolist() == [False, True]
    learner.close()


def test_dropped_episodes_are_counted_in_a_column_of_their_own():
    learner = offpcc.build("pendulum-p-v0", "sac", environments={"worker_processes": True})
    try:
        assert "train/dropped_episodes" in columns_of(learner.algorithm, learner.tests, learner.interaction)
        assert "train/dropped_episodes" not in columns_of(learner.algorithm, learner.tests)
    finally:
        learner.close()


def test_worker_processes_take_gins_timeout():
    gin.bind_parameter("make.timeout", 40.0)
    learner = offpcc.build("pendulum-p-v0", "sac", environments={"worker_processes": True})
    assert learner.interaction.environments.timeout == 40.0
    learner.close()


# From the command line --------------------------------------------------------------------------------------------


@pytest.fixture
def registered():
    gymnasium.register("raises-v0", entry_point=Raises, max_episode_steps=30)
    yield
    del gymnasium.registry["raises-v0"]


def test_the_command_line_tells_it_in_one_line_and_keeps_the_traceback(quick, tmp_path, registered):
    code, _, err = quick("sac", env="raises-v0")
    assert code == 2
    (line,) = err.splitlines()
    file = run_folder(tmp_path, "raises-v0") / "environment_faults.txt"
    for word in ("raises-v0 (environment 0) raised ValueError: too far (", "step 4 of the run", "--resume", str(file)):
        assert word in line
    assert "in odd\n" in file.read_text() and "and more of it" in file.read_text()


def test_a_message_that_no_file_can_hold_is_kept(quick, tmp_path, registered, monkeypatch):
    monkeypatch.setattr(Raises, "odd", HARD_TO_TELL["surrogate"][0])
    code, _, err = quick("sac", env="raises-v0")
    assert code == 2 and err.count("\n") == 1 and "lone \\ud800" in err
    assert "lone \\ud800" in (run_folder(tmp_path, "raises-v0") / "environment_faults.txt").read_text()


CLOSES = """
import os, gymnasium
from misbehaving import walk

def odd(self, *returned):
    os.closerange({first}, {last})
    return returned

gymnasium.register("closes-v0", entry_point=walk(odd), max_episode_steps=30)
"""


@pytest.mark.slow
@pytest.mark.parametrize("files", [(1, 2), (3, 256)], ids=["standard output", "all others"])
def test_one_that_closes_files_of_the_run_is_told_and_ends_no_run(files, tmp_path):
    (tmp_path / "closes.py").write_text(CLOSES.format(first=files[0], last=files[1]))
    paths = (tmp_path, Path(__file__).parents[2] / "helpers", Path(offpcc.__file__).parents[1])
    words = ("--env", "closes:closes-v0", "--algo", "sac", "--config", "test/template_short.gin", "--results", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "offpcc.launch", *map(str, words), "--gin", *QUICK],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    told = done.stdout + done.stderr
    assert done.returncode == 0 and "Traceback" not in told, told
    assert "failed (OSError: [Errno 9] Bad file descriptor); the run goes on" in told
    assert (tmp_path / "closes-closes-v0" / "sac" / "1" / "progress.csv").read_text().count("\n") == 3


def test_so_does_a_test_episode(quick, monkeypatch, registered):
    monkeypatch.setattr(Raises, "at", 3)
    monkeypatch.setattr(Raises, "odd", lambda self, *returned: returned if self.np_random_seed < 3_000_000 else 1 / 0)
    code, _, err = quick("sac", env="raises-v0")
    assert code == 2
    (line,) = err.splitlines()
    assert "raises-v0 (test environment 0) raised ZeroDivisionError" in line
    assert "in step 3 of its episode of seed 3000000" in line and "--resume" in line


def test_and_recording(launch, tmp_path, registered):
    code, _, err = launch(
        "collect", "--env", "raises-v0", "--actor", "random", "--steps", 20, "--out", tmp_path / "data.hdf5"
    )
    assert code == 2
    (line,) = err.splitlines()
    assert "raises-v0 raised ValueError: too far" in line and "--resume" in line
