"""Environments side by side: what is stored does not depend on what runs them, nor on how many they are."""

import copy
import functools
import pickle
import random
import subprocess
import sys

import gin
import gymnasium
import numpy as np
import pytest
import torch
from peaks import with_peak

import offpcc
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.envs.episode_replay import BLOCK, EpisodeReplay
from offpcc.envs.make import make
from offpcc.envs.vector.local import LocalEnvironments, environment_seed, environments
from offpcc.envs.vector.workers import serve_host
from offpcc.training.build import build
from offpcc.training.callbacks import Callback
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import Loggers
from offpcc.utils.errors import UserError
from offpcc.utils.rng import NumpyGenerator

BOX = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)


class Wander(gymnasium.Env):
    """A walk whose episodes are of random lengths, some ended by the task, some cut, some of one step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = BOX

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.left = self.np_random.normal(), int(self.np_random.integers(1, 8))
        return self.seen(), {}

    def step(self, action):
        self.place += float(action[0]) + self.np_random.normal()
        self.left -= 1
        over, cut = self.left == 0, bool(self.place > 0)
        return self.seen(), self.place, over and not cut, over and cut, {}

    def seen(self):
        return np.array([self.place, self.left], np.float32)


class AtRandom:
    """Needs no agent: only its memory is asked for."""

    memoryless = True


SEEDS = [environment_seed(5, number) for number in range(3)]


def episodes(buffer):
    return [(e.frames.tolist(), e.actions.tolist(), e.rewards.tolist(), e.terminated) for e in buffer.episodes]


def wander(side_by_side, num_steps, kind=RecurrentReplayBuffer):
    """A buffer after `num_steps` of random exploration in each environment."""
    buffer = kind(Wander.observation_space, BOX, num_envs=side_by_side.num_envs)
    interaction = Interaction(side_by_side, AtRandom(), buffer, seed=5)
    for _ in range(num_steps):
        interaction.step(explore_at_random=True)
    return buffer, interaction


def starting_with(buffer, seen):
    """Episodes by the environment they are from, told by their first observation's place in `seen`."""
    return [episode for episode in episodes(buffer) if episode[0][0] in seen]


def test_each_of_three_environments_stores_what_it_stores_alone():
    alone = []
    for number, seed in enumerate(SEEDS):
        interaction = wander(LocalEnvironments(Wander, [seed]), 0)[1]
        interaction.randomness = [NumpyGenerator(5, 3, *([number] if number else []))]
        for _ in range(60):
            interaction.step(explore_at_random=True)
        alone.append(episodes(interaction.stores[0]))
    together, _ = wander(LocalEnvironments(Wander, SEEDS), 100)
    for mine in alone:
        firsts = [episode[0][0] for episode in mine]
        assert len(mine) > 10
        assert starting_with(together, firsts)[: len(mine)] == mine


def test_rings_keep_environments_apart():
    buffer, _ = wander(LocalEnvironments(Wander, SEEDS), 50, ReplayBuffer)
    assert len(buffer) == 150
    batch = buffer.sample()
    steps_left = batch.observations[:, :, 1]
    assert (steps_left[:, 1] == steps_left[:, 0] - 1).all()


@pytest.mark.parametrize("algo", ["sac", "rsac"])
def test_one_environment_is_the_plain_loop(algo):
    """What train does with one environment, written out."""
    encoder = {} if algo == "sac" else {"encoder": recurrent}
    given = {"seed": 3, "algorithm": {"hidden_dims": (8,), **encoder}, "buffer": {"batch_size": 4}}
    learner, plain = build("pendulum-p-v0", algo, **given), build("pendulum-p-v0", algo, **given)
    learner.train(num_epochs=2, num_steps_per_epoch=250, update_after=150, updates_per_step=0.1,
                  num_test_episodes_per_epoch=0)  # fmt: skip

    env, agent, buffer = make("pendulum-p-v0", scale_actions=True), plain.algorithm, plain.buffer
    random, owed, over, memory, started = np.random.default_rng((3, 3)), 0.0, True, None, False
    for t in range(1, 501):
        if over:
            observation, _ = env.reset(seed=None if started else 3)
            previous, reward, is_first, started = np.zeros((1, 1), np.float32), 0.0, True, True
        exploring = t <= 150
        if exploring:
            action = random.uniform(-1.0, 1.0, 1).astype(np.float32)
        if not exploring or not agent.memoryless:
            step = offpcc.core.Step(
                observation[None], previous, np.full((1, 1), reward, np.float32), np.array([is_first])
            )
            chosen, memory = agent.act(step, memory)
            action = action if exploring else chosen[0]
        following, reward, terminated, truncated, _ = env.step(action)
        buffer.push(observation, action, reward, following, terminated, truncated)
        observation, previous, is_first, over = following, action[None], False, terminated or truncated
        owed += 0.0 if exploring else 0.1
        while owed > 0.999 and (agent.memoryless or over):
            agent.update_networks(buffer.sample())
            owed -= 1.0
    while owed > 0.999:  # ten times 0.1 is a little less than 1
        agent.update_networks(buffer.sample())
        owed -= 1.0
    assert_same(learner.buffer.state_dict(), buffer.state_dict())
    assert_same(learner.algorithm.state_dict(), agent.state_dict())


def assert_same(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def agents_encoder(algo):
    return None if algo == "sac" else recurrent


def small(algo, **side_by_side):
    """A learner in pendulum-p, its episodes cut after 30 steps."""
    gin.clear_config()
    gin.parse_config("make.wrappers = [@gymnasium.TimeLimit, @Flicker]\n"
                     "TimeLimit.max_episode_steps = 30\nFlicker.probability = 0.2")  # fmt: skip
    given = {"hidden_dims": (8,)} | ({} if algo == "sac" else {"encoder": recurrent})
    return build("pendulum-p-v0", algo, seed=3, algorithm=given, buffer={"batch_size": 4}, environments=side_by_side)


def recurrent(shape):
    return offpcc.networks.Recurrent(shape, hidden_dim=4, num_layers=1)


class Checkpoint(Callback):
    """The state of all parts at the end of the first epoch."""

    def on_epoch(self, run):
        if run.loop.epoch == 1:
            parts = (run.algorithm, run.buffer, run.loop, run.interaction)
            self.states = copy.deepcopy([part.state_dict() for part in parts])


def learn(learner, num_epochs=1, callbacks=()):
    learner.train(
        num_epochs=num_epochs, num_steps_per_epoch=120, update_after=60, updates_per_step=0.1,
        num_test_episodes_per_epoch=0, callbacks=callbacks,
    )  # fmt: skip


@pytest.mark.parametrize("algo", ["sac", "rsac"])
def test_worker_processes_change_nothing(algo):
    states = []
    for in_processes in (False, True):
        learner = small(algo, num_envs=3, worker_processes=in_processes)
        learn(learner)
        states.append([part.state_dict() for part in (learner.algorithm, learner.buffer, learner.interaction)])
        learner.close()
    assert_same(*states)


@pytest.mark.parametrize("in_processes", [False, True])
@pytest.mark.parametrize("algo", ["sac", "rsac"])
def test_several_episodes_are_found_back(algo, in_processes):
    """In the middle of all of them, wrappers with randomness of their own included."""
    whole, second = (small(algo, num_envs=3, worker_processes=in_processes) for _ in range(2))
    checkpoint = Checkpoint()
    learn(whole, 2, [checkpoint])
    *states, interaction = checkpoint.states
    for part, state in zip((second.algorithm, second.buffer, second.loop), states, strict=True):
        part.load_state_dict(state)
    assert second.interaction.load_state_dict(interaction) is None
    learn(second, 2)
    for part in ("algorithm", "buffer", "interaction"):
        assert_same(getattr(whole, part).state_dict(), getattr(second, part).state_dict())
    for learner in (whole, second):
        learner.close()


def test_every_environments_steps_count():
    """An epoch ends with the first step of all of them that completes it."""
    learner, rows = small("sac", num_envs=7), []

    class Rows(Loggers):
        def epoch(self, row):
            rows.append((row["step"], row["update"]))

    learner.train(Rows([]), num_epochs=3, num_steps_per_epoch=20, update_after=14, updates_per_step=1,
                  num_test_episodes_per_epoch=0)  # fmt: skip
    assert rows == [(21, 7), (42, 28), (63, 49)]


def test_more_environments_than_steps_of_an_epoch_are_refused():
    with pytest.raises(UserError, match=r"num_envs is 7.*num_steps_per_epoch"):
        small("sac", num_envs=7).train(num_epochs=1, num_steps_per_epoch=6, update_after=0)


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, "2"])
def test_a_number_of_environments_that_makes_no_sense_is_refused(num_envs):
    with pytest.raises(UserError, match=r"environments\.num_envs"):
        environments(Wander, 0, num_envs=num_envs)


def test_a_memory_rests_while_others_go_on():
    """With several environments, updates come when any episode ends."""
    learner = small("rsac", num_envs=2)
    over = []
    update = learner.algorithm.update_networks
    learner.algorithm.update_networks = lambda batch: (over.append(learner.interaction.over.any()), update(batch))[1]
    learner.train(num_epochs=1, num_steps_per_epoch=120, update_after=60, num_test_episodes_per_epoch=0)
    assert len(over) == 60 and all(over)


class Draws(Wander):
    """Draws from the process's generators, as environments should not."""

    def seen(self):
        return np.array([np.random.random(), random.random()], np.float32)


@pytest.mark.slow
def test_worker_processes_have_seeded_generators_of_their_own():
    firsts = []
    for _ in range(2):
        side_by_side = environments(Draws, 7, num_envs=3, worker_processes=True)
        observations = [np.empty(0)] * 3
        side_by_side.start(np.ones(3, np.bool_), observations)
        side_by_side.close()
        firsts.append([observation.tolist() for observation in observations])
    assert firsts[0] == firsts[1]
    assert len({tuple(first) for first in firsts[0]}) == 3


def test_worker_processes_do_without_torch():
    code = "import sys, offpcc.envs.vector.workers; print(*{'torch', 'mujoco', 'offpcc.core'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    assert serve_host.__module__ == "offpcc.envs.vector.workers"


class OwnGenerator(Wander):
    """Seeds a generator that nobody else knows of."""

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.own = np.random.default_rng(seed)
        return super().reset(seed=seed)

    def seen(self):
        return np.array([self.place, self.own.normal()], np.float32)


class OldGenerator(Wander):
    """Has NumPy's old generator for its own."""

    np_random = np.random.RandomState(3)

    def reset(self, seed=None, options=None):
        self.place, self.left = self.np_random.normal(), 5
        return self.seen(), {}


@pytest.mark.parametrize("kind", [OwnGenerator, OldGenerator])
@pytest.mark.parametrize("ended", [False, True])
def test_what_cannot_be_found_back_is_told_also_where_an_episode_has_ended(kind, ended):
    first = EpisodeReplay(kind(), seed=4)
    for _ in range(3):
        first.reset()
        while True:
            *_, terminated, truncated, _ = first.step(np.ones(1))
            if terminated or truncated or (not ended and first._num_episodes == 3):
                break
    _, over, same = EpisodeReplay(kind(), seed=4).restore(first.snapshot())
    assert over == (first.snapshot()["is_over"])
    assert not same


def test_an_environment_that_never_seeds_its_generator_is_found_back():
    class Regular(Wander):
        def reset(self, seed=None, options=None):
            self.place, self.left = 0.0, 5
            return self.seen(), {}

        def step(self, action):
            self.left -= 1
            return self.seen(), 0.0, self.left == 0, False, {}

    first = EpisodeReplay(Regular(), seed=4)
    first.reset()
    first.step(np.ones(1))
    assert EpisodeReplay(Regular(), seed=4).restore(first.snapshot())[2]


def test_rewards_that_a_wrapper_does_not_find_back_are_told():
    """The wrapper's statistics are those of all episodes, but an episode is repeated alone."""

    class Drifting(Wander):
        scale = 0.0

        def step(self, action):
            self.scale += 1.0
            observation, _, *rest = super().step(action)
            return observation, self.scale, *rest

    first = EpisodeReplay(Drifting(), seed=4)
    for _ in range(2):
        first.reset()
        first.step(np.ones(1))
    assert not EpisodeReplay(Drifting(), seed=4).restore(first.snapshot())[2]
    older = {key: value for key, value in first.snapshot().items() if key != "checksum_of_rewards"}
    assert EpisodeReplay(Drifting(), seed=4).restore(older)[2]


def test_seeds_differ_and_the_first_is_the_runs():
    seeds = [environment_seed(seed, number) for seed in range(20) for number in range(50)]
    assert len(set(seeds)) == 1000 and seeds[0] == 0 and seeds[50] == 1
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_stacked_frames_are_stored_once(monkeypatch):
    gin.parse_config("make.wrappers = [@Concatenate]\nConcatenate.num = 3")
    learner = build("pendulum-img-v0", "csac", algorithm={"hidden_dims": (8,)})
    assert learner.buffer.frame_stack == 3 and learner.buffer.storage.observations.shape[1:] == (1, 40, 40)
    seen, push = [], learner.buffer.push
    monkeypatch.setattr(learner.buffer, "push", lambda *given, **more: (seen.append(given[0]), push(*given, **more)))
    for _ in range(230):
        learner.interaction.step(explore_at_random=True)
    pushed = {observation.tobytes() for observation in seen}
    sampled = learner.buffer.sample().observations[:, 0].numpy()
    assert sampled.shape[1:] == (3, 40, 40)
    assert all(observation.tobytes() in pushed for observation in sampled)


class Endless(Wander):
    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward, False, False, {}


def test_actions_of_a_long_episode_take_little_more_than_their_numbers():
    """With an array for each action, it was a megabyte."""

    def play():
        env = EpisodeReplay(Endless(), seed=4)
        env.reset()
        for number in range(8 * BLOCK + 3):
            env.step(np.array([number], np.float32))
        return env

    env, peak = with_peak(play)
    assert peak < 500 * BLOCK
    saved = env.snapshot()
    assert saved["actions"].tolist() == [[number] for number in range(8 * BLOCK + 3)]
    assert EpisodeReplay(Endless(), seed=4).restore(saved)[2]
    env.reset()
    assert env.snapshot()["actions"] is None


def test_recall_tells_where_it_is_repeated_from():
    env = EpisodeReplay(Wander(), seed=4)
    assert env.snapshot() is None
    env.reset()
    for _ in range(20):
        observation, _, terminated, truncated, _ = env.step(np.ones(1))
        if terminated or truncated:
            observation, _ = env.reset()
    again = EpisodeReplay(Wander(), seed=4)
    found, over, same = again.restore(env.snapshot())
    assert same and not over
    np.testing.assert_array_equal(found, observation)
    np.testing.assert_array_equal(again.step(np.ones(1))[0], env.step(np.ones(1))[0])


def test_an_environment_that_was_used_finds_another_ones_first_episode():
    env, used = EpisodeReplay(Endless(), seed=4), EpisodeReplay(Endless(), seed=5)
    for each in (env, used):
        each.reset()
    observation, *_ = env.step(np.ones(1))
    found, over, same = used.restore(env.snapshot())
    assert same and not over
    np.testing.assert_array_equal(found, observation)
    np.testing.assert_array_equal(used.step(np.ones(1))[0], env.step(np.ones(1))[0])


def test_make_env_of_the_command_line_can_be_pickled():
    assert pickle.loads(pickle.dumps(functools.partial(make, "pendulum-p-v0")))().reset(seed=0)
