"""Environments on a Ray cluster: in lockstep they are worker processes; by themselves they lose no episode."""

import copy
import functools
import importlib.util
import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import gin
import misbehaving
import numpy as np
import pytest
import storm
import torch
from conftest import run_folder
from misbehaving import Clumsy, ExitsAtOnce, Naps, Raises, Walk
from test_local import AtRandom, assert_same

import offpcc
from offpcc.algorithms import find_algorithm
from offpcc.core import Step
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.vector.local import environment_seed, environments
from offpcc.envs.vector.ray_actors import RayEnvironments
from offpcc.envs.vector.workers import WorkerEnvironments
from offpcc.training.callbacks import Callback
from offpcc.training.interaction import Interaction
from offpcc.training.remote import Policy, RemoteInteraction, Task, _Player
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator

SEEDS = [environment_seed(5, number) for number in range(3)]
CLUMSY = functools.partial(Clumsy, SEEDS[1])


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(misbehaving.__file__).parent))
        ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False)  # not a cluster of this machine
    yield ray
    ray.shutdown()


@pytest.fixture
def opened():
    """Closes the environments in the list in the end."""
    opened = []
    yield opened
    for one in opened:
        one.close()


def lose(worker):
    """Kill an actor, and wait until it is dead; `ray.kill` does not wait."""
    import ray

    worker.kill()
    with pytest.raises(ray.exceptions.ActorDiedError):
        while True:
            ray.get(worker.host.answer.remote("snapshot", None), timeout=60)


def at_random(played, opened):
    opened.append(played)
    buffer = RecurrentReplayBuffer(Walk.observation_space, Walk.action_space, num_envs=len(SEEDS))
    return Interaction(played, AtRandom(), buffer, seed=5)


def small(algo, **given):
    return find_algorithm(algo)(Walk.observation_space, Walk.action_space, seed=7, hidden_dims=(8,), **given)


def remote(algorithm, opened, env=Walk, num_envs=2, timeout=None):
    played = RayEnvironments(env, SEEDS[:num_envs], "auto", timeout)
    opened.append(played)
    kind = ReplayBuffer if algorithm.memoryless else RecurrentReplayBuffer
    return RemoteInteraction(played, algorithm, kind(Walk.observation_space, Walk.action_space, num_envs=num_envs))


class Note:
    """A store that keeps what it gets."""

    def __init__(self):
        self.taken = []

    def push(self, *transition, env, is_first):
        self.taken.append((env, is_first, *transition))

    def drop(self, env):
        self.taken.append((env, "drop"))

    def truncate(self, env):
        self.taken.append((env, "truncate"))

    def episodes(self, number):
        """The transitions of an actor by episode."""
        found = []
        for env, is_first, *transition in self.taken:
            if env == number and is_first is True:
                found.append([])
            if env == number and found:
                found[-1].append(transition or is_first)
        return found


# In lockstep ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("env", [Walk, CLUMSY], ids=["whole", "with a crash"])
def test_lockstep_is_a_worker_process_for_each(ray, opened, env):
    here = at_random(WorkerEnvironments(env, SEEDS), opened)
    there = at_random(RayEnvironments(env, SEEDS, "auto", lockstep=True), opened)
    for _ in range(35):
        assert here.step(True) == there.step(True)
    assert here.num_dropped == (env is CLUMSY)
    assert_same(here.state_dict(), there.state_dict())
    assert_same(here.stores[0].state_dict(), there.stores[0].state_dict())


@pytest.mark.slow
def test_lockstep_is_exact_in_a_storm_of_lost_learners(ray, opened):
    """Each time, another process's learner goes on from the last checkpoint."""
    chance = random.Random(3)
    whole = at_random(RayEnvironments(Walk, SEEDS, "auto", lockstep=True), opened)
    for _ in range(40):
        whole.step(True)
    wanted = whole.state_dict()
    saved, done = None, 0
    while done < 40:
        left = chance.randint(1, 9)
        played = RayEnvironments(Walk, SEEDS, "auto", lockstep=True)
        going = at_random(played, opened)
        if saved is not None:
            going.stores[0].load_state_dict(saved[1])
            assert going.load_state_dict(saved[0]) is None
        for _ in range(min(left, 40 - done)):
            going.step(True)
            done += 1
        if done < 40:
            saved = copy.deepcopy((going.state_dict(), going.stores[0].state_dict()))
            for _ in range(2):  # what the lost learner did after its checkpoint
                going.step(True)
            for worker in played.workers:
                lose(worker)
            played.workers.clear()
    assert_same(wanted, going.state_dict())
    assert_same(whole.stores[0].state_dict(), going.stores[0].state_dict())


@pytest.mark.slow
@pytest.mark.learning
def test_so_it_is_in_a_storm_of_kills(ray, tmp_path):
    """The command's process is killed at random instants, also while it writes a file."""
    workers = next(kind for kind in storm.kinds() if kind.name == "workers")
    bindings = [words for words in workers.bindings if "worker_processes" not in words]
    bindings += [f"environments.ray_address='{ray.get_runtime_context().gcs_address}'", "environments.lockstep=True"]
    kind = storm.Kind("actors", workers.words, tuple(bindings))
    is_calm = storm.storm([kind], kills=3, seconds=200, seed=1, place=tmp_path, start=storm.start)
    assert is_calm, storm.table([kind])
    assert kind.kills > 0 and kind.resumes > 0


@pytest.mark.slow
def test_an_actor_that_is_killed_is_started_anew(ray, opened, capsys):
    going = at_random(RayEnvironments(Walk, SEEDS, "auto", lockstep=True), opened)
    for _ in range(5):
        going.step(True)
    lose(going.environments.workers[2])
    assert going.step(True) == 2 and going.num_dropped == 1
    assert "(environment 2) was lost" in capsys.readouterr().err
    assert [going.step(True) for _ in range(10)] == [3] * 10


@pytest.mark.slow
def test_what_is_raised_there_is_told_as_it_is_here(ray, opened):
    going = at_random(RayEnvironments(Raises, SEEDS, "auto", lockstep=True), opened)
    with pytest.raises(EnvironmentFault, match=r"Raises \(environment 0\) raised ValueError: too far.*step 10 of the"):
        for _ in range(4):
            going.step(True)


# By themselves ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["rsac", "sac", "rtd3"])
def test_an_actor_plays_as_the_learner_would(ray, opened, algo):
    """Memory, previous action and reward, normalisation and the newest weights reach it."""
    given = {} if algo == "sac" else {"encoder": functools.partial(offpcc.networks.Recurrent, use_previous_reward=True)}
    algorithm = small(algo, normalize_observations=True, **given)
    algorithm.expect_recorded_data()
    algorithm.set_statistics(np.array([0.5, 4.0], np.float32), np.array([2.0, 3.0], np.float32))
    going, note = remote(algorithm, opened, num_envs=1), Note()
    going.stores = [note]
    before = copy.deepcopy(algorithm)
    while len(note.taken) < 80:  # the first two tasks have the first weights
        if len(note.taken) == 1:
            with torch.no_grad():
                for part in algorithm.actor_parts().values():
                    for parameter in part.parameters():
                        parameter += 0.3
        going.step(False)
    seed = int(np.random.SeedSequence((SEEDS[0], 0, 3)).generate_state(1)[0] >> 1)
    drawn = NumpyGenerator(seed, 4)
    episodes = note.episodes(0)
    assert len(episodes) > 5 and going.version == 2
    memory = None
    for number, episode in enumerate(episodes):
        previous, reward = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
        for at, (seen, action, gained, *_) in enumerate(episode):
            local = algorithm if number >= 2 else before
            local.noise.acting = drawn
            local._mirror = "unknown"
            wanted, memory = local.act(Step(seen[None], previous, reward, np.array([at == 0])), memory)
            assert np.array_equal(wanted[0], action), (number, at)
            previous, reward = wanted, np.array([[gained]], np.float32)


@pytest.mark.slow
def test_agents_with_memory_get_whole_episodes_in_the_order_of_arrival(ray, opened):
    going, note = remote(small("rsac"), opened), Note()
    going.stores.append(note)
    while len({env for env, *_ in note.taken}) < 2 or going.num_steps % 100:  # a busy machine starts one of them late
        assert going.step(going.num_steps < 20) == 1
    taken = [env for env, *_ in note.taken]
    assert len(taken) == going.num_steps and len(going.finished) == len(taken) // 10 == len(going.stores[0])
    assert all(len({*taken[at : at + 10]}) == 1 for at in range(0, len(taken), 10)), "an episode's steps are together"
    assert all(len(episode.actions) == 10 for episode in going.stores[0].episodes)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["rsac", "sac"])
def test_a_lost_actor_costs_its_unfinished_episode_and_the_run_takes_all_its_steps(ray, capsys, algo):
    gin.parse_config("make.wrappers = [@gymnasium.TimeLimit]\nTimeLimit.max_episode_steps = 50")
    learner = offpcc.build(
        "pendulum-p-v0", algo, seed=3, algorithm={"hidden_dims": (8,)}, buffer={"batch_size": 4},
        environments={"num_envs": 2, "ray_address": "auto"},
    )  # fmt: skip
    note, killed = Note(), []
    learner.interaction.stores.append(note)

    class Kill(Callback):
        def on_progress(self, run):
            if run.loop.step in (120, 260) and run.loop.step not in killed:
                killed.append(run.loop.step)
                lose(run.interaction.environments.workers[len(killed) - 1])

    learner.train(
        num_epochs=2, num_steps_per_epoch=300, update_after=100, updates_per_step=0.1, callbacks=[Kill()],
        num_test_episodes_per_epoch=1,
    )  # fmt: skip
    learner.close()
    assert learner.loop.step == learner.interaction.num_steps == 600 == sum(len(x) > 2 for x in note.taken)
    assert learner.loop.num_updates == 50 and learner.loop.rows[-1]["train/dropped_episodes"] == 2
    assert capsys.readouterr().err.count("it is restarted, and its unfinished episode is dropped") == 2
    assert sorted(env for env, *rest in note.taken if rest == ["drop"]) == [0, 1]
    if algo == "rsac":
        assert all(len(episode) in (50, 51) for number in (0, 1) for episode in note.episodes(number)[:-1])
    for number in (0, 1):
        for episode in note.episodes(number):
            steps = [step for step in episode if step != "drop"]
            for one, other in itertools.pairwise(steps):
                assert np.array_equal(one[3], other[0]), "no transition lies across a cut"


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["rsac", "sac"])
def test_no_episode_that_arrived_is_lost_by_a_resume(ray, opened, algo):
    whole = remote(small(algo), opened)
    note = Note()
    whole.stores = [note]
    for _ in range(43):
        whole.step(False)
    ready = [worker.asked[-1] for worker in whole.environments.workers if worker.asked]
    ray.wait(ready, num_returns=len(ready), timeout=60)
    state = copy.deepcopy(whole.state_dict())
    assert len(state["notes"]) == 3, "what is left of one, and those of two actors"
    second = remote(small(algo), opened)
    assert "not exact" in second.load_state_dict(state) and second.num_steps == 43
    gone_on = Note()
    second.stores = [gone_on]
    for _ in range(60):
        whole.step(False)
        second.step(False)
    kept = sum(len(columns[1]) for _, columns in state["notes"])
    pushed = [one for one in gone_on.taken if len(one) > 2]
    for before, after in zip(note.taken[43 : 43 + kept], pushed[:kept], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert sorted(one[0] for one in gone_on.taken if one[1] == "truncate") == [0, 1]
    assert pushed[kept][1] is True, "what comes then begins an episode"
    assert len({float(one[2][0]) for one in note.taken[:43]} & {float(one[2][0]) for one in pushed[kept:]}) == 0


@pytest.mark.slow
def test_one_that_hangs_is_started_anew(ray, opened, capsys):
    going = remote(small("sac"), opened, functools.partial(Naps), num_envs=1, timeout=1.0)
    with pytest.raises(EnvironmentFault, match="died 4 times"):
        going.step(True)
    assert capsys.readouterr().err.count("was lost") == 3 and going.num_dropped == 3


@pytest.mark.slow
def test_faults_of_an_actor_are_told_in_one_message(ray, opened):
    with pytest.raises(EnvironmentFault, match=r"\(environment 0\) raised ValueError: too far.*step 4 of its episode"):
        remote(small("rsac"), opened, Raises, num_envs=1).step(True)
    with pytest.raises(EnvironmentFault, match=r"died 4 times"):
        remote(small("rsac"), opened, ExitsAtOnce, num_envs=1).step(True)


@pytest.mark.slow
def test_more_environments_than_cpus_are_refused(ray):
    with pytest.raises(UserError, match=r"num_envs is 9, but the Ray cluster has 8 CPUs"):
        environments(Walk, 0, num_envs=9, ray_address="auto")


@pytest.mark.slow
def test_a_run_of_the_command_line_stops_and_resumes_and_says_so(ray, quick, tmp_path):
    bindings = ("environments.ray_address='auto'", "environments.num_envs=2", "train.num_epochs=1")
    code, out, err = quick("sac", bindings=bindings)
    assert code == 0 and "a resume of this run will not be exact" in out + err, err
    code, out, err = quick("sac", "--resume", bindings=(*bindings[:2], "train.num_epochs=2"))
    assert code == 0, err
    assert "this resume is not exact: the episodes that the actors" in out + err
    assert (run_folder(tmp_path) / "progress.csv").read_text().count("\n") == 3


# Refused without Ray ----------------------------------------------------------------------------------------------


def test_combinations_without_a_meaning_are_refused():
    for given, words in (
        ({"lockstep": True}, "address in environments.ray_address"),
        ({"ray_address": "auto", "worker_processes": True}, "cannot be combined"),
        ({"ray_address": "auto", "shared_with_tests": True}, "shared_with_tests cannot be combined"),
        ({"ray_address": 3}, "HOST:PORT"),
    ):
        with pytest.raises(UserError, match=words):
            environments(Walk, 0, **given)


def test_ray_that_is_not_there_is_refused(quick, monkeypatch, tmp_path):
    pytest.importorskip("ray")
    code, _, err = quick("sac", bindings=("environments.ray_address='127.0.0.1:1'",))
    assert code == 2 and err.count("\n") == 1 and "there is no Ray cluster" in err
    assert "environments.ray_address 127.0.0.1:1" in err and not run_folder(tmp_path).exists()
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "ray" else find(name, *more))
    code, _, err = quick("sac", bindings=("environments.ray_address='auto'",))
    assert code == 2 and "pip install ray" in err


def test_actors_explore_with_the_noise_of_the_moment(ray):
    """An actor file has the noise that the algorithm began with; `OfflineToOnline.exploration_noise` sets another."""
    env = Walk()
    td3 = find_algorithm("td3")(env.observation_space, env.action_space, hidden_dims=(4,))
    file, task = td3.actor_file(), Task(None, 1, False, 0, 100, None, 0, None)
    policies = [ray.put(Policy(file, None, noise, [])) for noise in (0.0, 0.3)]
    player = _Player(SimpleNamespace(env=env), task._replace(policy=policies[0]))
    assert player.algorithm.noise_scale == 0.0
    player.play(task._replace(policy=policies[1], version=2))
    assert player.algorithm.noise_scale == 0.3
