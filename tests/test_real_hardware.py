"""On a machine: one environment at a time, no replay of actions on a resume, and a page whose every line works."""

import copy
import re
import shlex
import shutil
import time
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest
from conftest import merged, rows, run_folder

import offpcc
from offpcc.training.checkpoint import read_checkpoint, resume
from offpcc.utils.errors import UserError

ROOT = Path(offpcc.__file__).parents[1]
PAGE = ROOT / "docs" / "real_hardware.md"
LENGTH = 50
LOG: list[tuple] = []


class Machine(gymnasium.Env):
    """Notes all that is done to it, and that there are never two of it."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    num_open = most_open = 0

    def __init__(self):
        Machine.num_open += 1
        Machine.most_open = max(Machine.most_open, Machine.num_open)
        self.is_open = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        LOG.append(("reset", seed))
        self.state = self.np_random.uniform(-1.0, 1.0, 2)
        return self.state.astype(np.float32), {}

    def step(self, action):
        LOG.append(("step", float(action[0])))
        print("an action is sent")
        self.state = 0.9 * self.state + 0.1 * float(action[0]) + 0.01 * self.np_random.normal(size=2)
        return self.state.astype(np.float32), -float(np.square(self.state).sum()), False, False, {}

    def close(self):
        Machine.num_open -= self.is_open
        self.is_open = False


@pytest.fixture(autouse=True)
def machine():
    gymnasium.register("machine-v0", entry_point=Machine, max_episode_steps=LENGTH)
    LOG.clear()
    Machine.num_open = Machine.most_open = 0
    yield
    del gymnasium.registry["machine-v0"]


SMALL = (
    "train.num_epochs=1",
    "train.num_steps_per_epoch=80",
    "train.update_after=40",
    "train.updates_per_step=0.2",
    "train.num_test_episodes_per_epoch=0",
)
ANEW = "environments.replay_on_resume=False"


def train(launch, algo, *bindings, extra=()):
    words = ("--env", "machine-v0", "--algo", algo, "--config", "test/template_short.gin")
    return launch(*words, *extra, "--gin", *merged(*SMALL, *bindings))


# No replay ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["sac", "rsac"])
def test_a_resume_begins_a_new_episode_and_says_so_before_the_first_action(launch, tmp_path, algo):
    assert train(launch, algo)[0] == 0
    folder, results = run_folder(tmp_path, "machine-v0", algo), tmp_path / "results"
    shutil.copytree(results, tmp_path / "saved")
    outcomes = []
    for bindings in ((ANEW,), (ANEW,), ()):
        shutil.rmtree(results)
        shutil.copytree(tmp_path / "saved", results)
        LOG.clear()
        code, out, err = train(launch, algo, "train.num_epochs=2", *bindings, extra=["--resume"])
        assert code == 0, err
        outcomes.append((rows(folder), (folder / "actor_last.pt").read_bytes(), list(LOG), out))
    first, again, replayed = outcomes
    assert first[:3] == again[:3]  # from one checkpoint it always comes to the same
    assert first[0] != replayed[0]
    kinds = [kind for kind, _ in first[2]]
    assert kinds.count("step") == 80  # no action but those of the run's second half
    assert [kind for kind, _ in replayed[2]].count("step") == 80 + 30
    told = (
        "this resume is not exact: environments.replay_on_resume is False, so unfinished episodes are truncated "
        "after 30 steps, and new ones begin"
    )
    assert 0 <= first[3].index(told) < first[3].index("an action is sent")
    assert told not in replayed[3]
    seeds = [seed for kind, seed in first[2] if kind == "reset"]
    assert seeds[0] not in (None, 1) and seeds[1:] == [None]  # one reset, and not that of the run's first episode


def halves(algo, tmp_path, num_envs=1, workers=False, replay=False, recorded=None):
    """A learner in the middle of an episode, and another that goes on from its checkpoint."""
    from offpcc.training.build import build
    from offpcc.training.checkpoint import save_checkpoint

    made = []
    for _ in range(2):
        given = {"num_envs": num_envs, "worker_processes": workers, "replay_on_resume": replay}
        env = "pendulum-p-v0" if workers else "machine-v0"
        learner = build(env, algo, seed=3, environments=given, buffer={"batch_size": 4})
        if recorded is not None:
            learner.record(tmp_path / recorded, 3, resume=bool(made))
        made.append(learner)
        if len(made) == 1:
            learner.train(
                num_epochs=1, num_steps_per_epoch=20 * num_envs, update_after=10**6, num_test_episodes_per_epoch=0
            )
            save_checkpoint(tmp_path / "checkpoint.pt", learner, "", 1)
            learner.close()
    before, after = made
    messages = resume(read_checkpoint(tmp_path / "checkpoint.pt"), after)
    return before, after, messages


@pytest.mark.parametrize(("num_envs", "workers"), [(1, False), (3, False), (2, True)])
def test_what_the_unfinished_episode_brought_is_kept_as_truncated(tmp_path, num_envs, workers):
    before, after, messages = halves("rsac", tmp_path, num_envs, workers)
    assert len(before.buffer) == 0 and len(after.buffer) == num_envs
    assert [len(episode.actions) for episode in after.buffer.episodes] == [20] * num_envs
    assert not any(episode.terminated for episode in after.buffer.episodes)
    assert f"after {' and '.join(['20'] * num_envs)} steps" in messages[-1]
    assert after.interaction.memory is None and after.interaction.over.all()
    after.interaction.step(True)
    assert (after.interaction.lengths == 1).all()
    assert [len(one.actions) for one in after.buffer.unfinished] == [1] * num_envs
    after.close()


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("workers", [True, False])
def test_actions_are_saved_only_for_a_replay(replay, workers):
    """A resume that would repeat actions that were not saved begins new episodes, too."""
    first, second = (
        offpcc.build(
            "pendulum-p-v0", "rsac", seed=3, buffer={"batch_size": 4},
            environments={"num_envs": 2, "worker_processes": workers, "replay_on_resume": wanted},
        ).interaction
        for wanted in (replay, True)
    )  # fmt: skip
    first.step(True)
    first.step(True)
    state = copy.deepcopy(first.state_dict())
    assert [note["actions"] is not None for note in state["notes"]] == [replay] * 2
    told = second.load_state_dict(state)
    assert second.over.tolist() == [not replay] * 2
    assert told is None if replay else ("replay_on_resume was False" in told and "after 2 and 2 steps" in told)
    for interaction in (first, second):
        interaction.close()


def test_an_observation_that_repeats_itself_joins_no_episodes(tmp_path, monkeypatch):
    """A buffer that goes by observations alone would take the new episode for the old one."""
    monkeypatch.setattr(Machine, "step", lambda self, action: (np.zeros(2, np.float32), 1.0, False, False, {}))
    monkeypatch.setattr(Machine, "reset", lambda self, *, seed=None, options=None: (np.zeros(2, np.float32), {}))
    for algo, number in (("rsac", 1), ("sac", 20)):
        place = tmp_path / algo
        place.mkdir()
        _, after, _ = halves(algo, place)
        assert len(after.buffer) == number
        after.interaction.step(True)
        if algo == "sac":  # a row for the last observation, and one for the new first
            assert int(after.buffer.storage.is_start.sum()) == 21
            assert after.buffer.rings[0].size == 20 + 1 + 2
        else:
            assert len(after.buffer.unfinished[0].actions) == 1
        after.close()


def test_a_recording_has_the_episode_as_truncated(tmp_path):
    _, after, _ = halves("sac", tmp_path, recorded="played.hdf5")
    for _ in range(5):
        after.interaction.step(True)
    after.recorder.cut()
    after.recorder.merge()
    after.close()
    with h5py.File(tmp_path / "played.hdf5") as file:
        assert np.flatnonzero(file["timeouts"][:]).tolist() == [19, 24] and not file["terminals"][:].any()
        assert len(file["rewards"]) == 25


@pytest.mark.slow
def test_a_run_may_take_the_binding_when_it_is_resumed_and_leave_it_again(launch, tmp_path):
    assert train(launch, "sac")[0] == 0
    assert train(launch, "sac", "train.num_epochs=2", ANEW, extra=["--resume"])[0] == 0
    code, out, err = train(launch, "sac", "train.num_epochs=3", extra=["--resume"])
    assert code == 0, out + err
    assert "replay_on_resume was False, so unfinished episodes are truncated after 30 steps, and new ones begin" in out


# One environment ------------------------------------------------------------------------------------------------------

SHARED = ("environments.shared_with_tests=True", "train.num_test_episodes_per_epoch=2")


@pytest.mark.pictures
@pytest.mark.parametrize("algo", ["sac", "rsac"])
def test_training_and_tests_in_one_environment(launch, tmp_path, algo):
    code, _, err = train(launch, algo, *SHARED, "train.num_epochs=3")
    assert code == 0, err
    assert Machine.most_open == 1 and Machine.num_open == 0
    assert [kind for kind, _ in LOG].count("step") == 3 * (80 + 2 * LENGTH)
    folder = run_folder(tmp_path, "machine-v0", algo)
    table = (folder / "progress.csv").read_text().splitlines()
    names = table[0].split(",")
    assert all(row.split(",")[names.index("test/length")] == f"{LENGTH}.0" for row in table[1:])
    num_steps = 200 if algo == "sac" else 170  # an episode that was just truncated is learned from afterwards
    assert int(table[-1].split(",")[names.index("update")]) == int(0.2 * num_steps)
    assert not (folder / "videos").exists()


def test_an_agent_with_memory_learns_though_every_episode_is_truncated(launch, tmp_path):
    bindings = ("train.num_steps_per_epoch=40", "train.num_epochs=4", "train.num_test_episodes_per_epoch=1")
    assert train(launch, "rsac", *SHARED, *bindings)[0] == 0
    table = (run_folder(tmp_path, "machine-v0", "rsac") / "progress.csv").read_text().splitlines()
    assert int(table[-1].split(",")[1]) == int(0.2 * 80)


def test_a_resume_of_it_is_exact(launch, tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    assert train(launch, "rsac", *SHARED, "train.num_epochs=3", extra=["--results", whole])[0] == 0
    assert train(launch, "rsac", *SHARED)[0] == 0
    code, out, _ = train(launch, "rsac", *SHARED, "train.num_epochs=3", extra=["--resume"])
    assert code == 0 and "not exact" not in out
    folder, other = run_folder(tmp_path, "machine-v0", "rsac"), whole / "machine-v0" / "rsac" / "1"
    assert rows(folder) == rows(other)


def test_with_several_environments_it_is_refused():
    for given in ({"num_envs": 2}, {"worker_processes": True}):
        with pytest.raises(UserError, match=r"environments\.shared_with_tests is for one environment in this process"):
            offpcc.build("machine-v0", "sac", environments={"shared_with_tests": True, **given})


# The page -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_command_and_snippet_of_the_page_works(tmp_path, forks):
    blocks = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    robot, loop = (text for language, text in blocks if language == "python")
    gin, *commands = (text for language, text in blocks if not language)
    (tmp_path / "my_robot.py").write_text(robot)
    (tmp_path / "my_robot.gin").write_text(gin)
    (tmp_path / "loop.py").write_text(loop)

    environment = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "OMP_NUM_THREADS": "1", "OFFPCC_RESULTS": "results"}
    code, told = forks.run("import runpy; runpy.run_path('loop.py', run_name='__main__')", tmp_path, environment)
    assert code == 0, told
    assert "400 steps in 10 episodes" in told and "warning" not in told and "FAULT" not in told
    lines = [line for block in commands for line in block.splitlines()]
    assert len(lines) == 4
    for number, line in enumerate(lines):
        program, *words = shlex.split(line)
        assert program == "offpcc"
        code, told = forks.launch(words, tmp_path, environment)
        assert code == 0, told
        assert ("replay_on_resume is False" in told) == (number in (1, 2)), told


@pytest.mark.slow
def test_the_page_says_when_close_is_called(tmp_path, forks):
    """Its table, row by row, where a test can tell."""
    code = """
import os, signal, sys, time
import gymnasium, numpy as np
from test_real_hardware import Machine

class Stopping(Machine):
    def step(self, action):
        self.count = getattr(self, "count", 0) + 1
        if self.count == 30:
            {fault}
        return super().step(action)
    def close(self):
        if hasattr(self, "count"):
            print("it is closed", flush=True)
        super().close()

gymnasium.register("stopping-v0", entry_point=Stopping, max_episode_steps=50)
from offpcc.launch import main
words = "--env stopping-v0 --algo sac --config test/template_short.gin --gin train.update_after=50"
os._exit(main((words + " train.num_epochs=1 make.timeout=3 train.num_test_episodes_per_epoch=0").split()))
"""
    rows_of_it = {
        "os.kill(os.getpid(), signal.SIGTERM)": True,
        "os.kill(os.getpid(), signal.SIGINT)": True,
        "raise RuntimeError('broken')": True,
        "time.sleep(60)": True,
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(60)": False,
        "os.kill(os.getpid(), signal.SIGKILL)": False,
    }
    for fault, is_closed in rows_of_it.items():
        environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OFFPCC_RESULTS": str(tmp_path / str(len(fault)))}
        ended, told = forks.run(code.replace("{fault}", fault), tmp_path, environment)
        assert ended != 0
        assert ("it is closed" in told) == is_closed, (fault, told[-2000:])


def test_without_tests_there_is_the_last_actor_alone(launch, tmp_path):
    assert train(launch, "sac", SHARED[0])[0] == 0
    folder = run_folder(tmp_path, "machine-v0")
    assert (folder / "actor_last.pt").is_file() and not (folder / "actor_best.pt").exists()
    told = " ".join(PAGE.read_text(encoding="utf-8").split())
    expected = "there is no `actor_best.pt`. `actor_last.pt` is written after each epoch and at the end of the run."
    assert expected in told


def test_the_timeout_interrupts_a_close_that_takes_longer(launch, monkeypatch):
    """The page says so, with the remedy."""
    parked = []

    def park(self):
        if LOG:  # the environment that the run acts in
            deadline = time.monotonic() + 30.0
            while time.monotonic() < deadline:
                time.sleep(0.01)
            parked.append(True)

    monkeypatch.setattr(Machine, "close", park)
    err = train(launch, "sac", SHARED[0], "make.timeout=1")[2]
    assert not parked and "did not return within make.timeout = 1" in err
    told = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert "`make.timeout` limits `close()`, too" in told
    assert "Set `make.timeout` to more than your slowest `close()` takes" in told
