"""Hindsight experience replay, against a plain reference and on a task that it alone solves."""

import copy

import gymnasium
import numpy as np
import pytest
from exact_resume import assert_resumes_exactly
from gymnasium import spaces

import offpcc
from offpcc.data import HindsightRecurrentReplayBuffer, HindsightReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from offpcc.data.buffers.hindsight import Hindsight
from offpcc.training.loggers import Loggers
from offpcc.utils.errors import DataWarning, UserError
from offpcc.utils.spaces import PackedDict

BUFFERS = pytest.mark.parametrize("buffer_class", [HindsightReplayBuffer, HindsightRecurrentReplayBuffer])
PLACE = spaces.Box(-9, 9, (2,), np.float32)
ACTIONS = spaces.Box(-1, 1, (1,), np.float32)
SPACE = spaces.Dict(achieved_goal=PLACE, desired_goal=PLACE, speed=spaces.Box(-9, 9, (1,), np.float32))


class Drift(gymnasium.Env):
    """A place that moves by the action and by itself; -1 a step until it is near the goal."""

    observation_space, action_space = SPACE, ACTIONS

    def _seen(self):
        return {"achieved_goal": self.place, "desired_goal": self.goal, "speed": self.place[:1] - self.before[:1]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.before = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.goal = self.np_random.uniform(-2, 2, 2).astype(np.float32)
        return self._seen(), {}

    def step(self, action):
        self.before, move = self.place, self.np_random.normal(0, 0.1, 2)
        self.place = (self.place + move + [action[0], 0.1]).astype(np.float32)
        reward = self.compute_reward(self.place[None], self.goal[None], {})[0]
        return self._seen(), float(reward), False, False, {}

    def compute_reward(self, achieved, desired, info):
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.5).astype(float)


class Ending(Drift):
    """The episode ends at the goal."""

    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, reward, reward == 0.0, *rest[1:]

    def compute_terminated(self, achieved, desired, info):
        assert achieved.shape == desired.shape == (2,)
        return bool(self.compute_reward(achieved[None], desired[None], info)[0] == 0.0)


class BitFlip(gymnasium.Env):
    """Flips one bit a step, to equal the goal (Andrychowicz et al. 2017, section 3.1)."""

    def __init__(self, num_bits=8):
        bits = spaces.MultiBinary(num_bits)
        self.num_bits, self.action_space = num_bits, spaces.Discrete(num_bits)
        self.observation_space = spaces.Dict(observation=bits, achieved_goal=bits, desired_goal=bits)

    def _seen(self):
        return {"observation": self.bits.copy(), "achieved_goal": self.bits.copy(), "desired_goal": self.goal}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, self.num_bits), dtype=np.int8)
        self.num_steps = 0
        return self._seen(), {}

    def step(self, action):
        self.bits[action] ^= 1
        self.num_steps += 1
        is_there = self.compute_terminated(self.bits, self.goal, {})
        return self._seen(), is_there - 1.0, is_there, self.num_steps == self.num_bits, {}

    def compute_reward(self, achieved, desired, info):
        return -np.any(achieved != desired, -1).astype(float)

    def compute_terminated(self, achieved, desired, info):
        return bool(np.all(achieved == desired))


def played(env, num_steps, seed):
    """Return one episode of random actions: its observations, T + 1, actions and rewards, and whether it terminated."""
    rng = np.random.default_rng(seed)
    seen = [env.reset(seed=seed)[0]]
    actions, rewards, terminated = [], [], False
    while len(actions) < num_steps and not terminated:
        actions.append(rng.uniform(-1, 1, 1).astype(np.float32))
        observation, reward, terminated, *_ = env.step(actions[-1])
        seen.append(observation)
        rewards.append(reward)
    return seen, actions, rewards, terminated


def filled(buffer_class, env_class, lengths, num_goals=3, num_envs=1, **given):
    """Return a buffer with the episodes of these lengths, and the episodes."""
    buffer = buffer_class(PackedDict(SPACE), ACTIONS, num_goals=num_goals, num_envs=num_envs, seed=3, **given)
    buffer.make_env = env_class
    episodes = [played(env_class(), length, seed) for seed, length in enumerate(lengths)]
    for number, (seen, actions, rewards, terminated) in enumerate(episodes):
        packed = [PackedDict(SPACE).pack(one) for one in seen]
        for i, (action, reward) in enumerate(zip(actions, rewards, strict=True)):
            is_last = i == len(actions) - 1
            ends = (is_last and terminated, is_last and not terminated)
            buffer.push(packed[i], action, reward, packed[i + 1], *ends, env=number % num_envs)
    return buffer, episodes


def stored(buffer):
    """Return the episodes in a buffer: Dict observations (T + 1), actions, rewards, and whether it terminated."""
    rows, found = buffer.transition_table(), []
    for start, stop in zip(rows.starts, rows.stops, strict=True):
        seen = PackedDict(SPACE).split(rows.observations[start:stop])
        steps = slice(start, stop - 1)
        found.append((seen, rows.actions[steps], rows.rewards[steps, 0], bool(rows.terminations[stop - 2, 0])))
        assert not rows.terminations[start : stop - 2].any()
    return found


@BUFFERS
@pytest.mark.parametrize("env_class", [Drift, Ending])
def test_copies_are_beginnings_of_the_episode_with_a_goal_that_it_reached(buffer_class, env_class):
    lengths = (12, 1, 30, 7)
    buffer, episodes = filled(buffer_class, env_class, lengths, num_goals=5)
    found, num_reached = stored(buffer), set()
    assert len(found) == 6 * len(lengths)
    for number, (seen, actions, rewards, terminated) in enumerate(episodes):
        own, *copies = found[6 * number : 6 * number + 6]
        assert len(own[1]) == len(actions) and own[3] == terminated
        np.testing.assert_array_equal(own[0]["desired_goal"], [one["desired_goal"] for one in seen])
        np.testing.assert_allclose(own[2], rewards)
        places = np.array([one["achieved_goal"] for one in seen])
        for observations, chosen, given, is_terminated in copies:
            length = len(chosen)
            np.testing.assert_array_equal(chosen, actions[:length])
            for key in ("achieved_goal", "speed"):
                np.testing.assert_array_equal(observations[key], [one[key] for one in seen[: length + 1]])
            goal = observations["desired_goal"][0]
            assert (observations["desired_goal"] == goal).all()
            reached = np.flatnonzero((places[1:] == goal).all(1)) + 1
            num_reached.add(int(reached[0]))
            distances = np.linalg.norm(places[1 : length + 1] - goal, axis=1)
            np.testing.assert_array_equal(given, np.where(distances > 0.5, -1.0, 0.0))
            if env_class is Drift:
                assert length == reached[0] and not is_terminated
            else:
                assert is_terminated and given[-1] == 0.0 and (given[:-1] == -1.0).all()
                assert length <= reached[0]
    assert len(num_reached) > 5, "goals come from several times of an episode"


@BUFFERS
def test_episodes_of_several_environments_and_those_that_break_off(buffer_class):
    buffer, _ = filled(buffer_class, Drift, (), num_envs=2)
    seen, actions, rewards, _ = played(Drift(), 6, 0)
    packed = [PackedDict(SPACE).pack(one) for one in seen]

    def push(i, env, is_first=False, truncated=False):
        buffer.push(packed[i], actions[i], rewards[i], packed[i + 1], False, truncated, env, is_first)

    for i in range(6):  # side by side: 0 ends, 1 breaks down
        push(i, 0, truncated=i == 5)
        push(i, 1) if i < 3 else None
    lengths = [len(one[1]) for one in stored(buffer)]
    assert sorted(lengths)[-1] == 6 and len(lengths) == (4 if buffer.holds_episodes else 5)
    buffer.drop(1)
    push(0, 1)
    push(1, 1)
    push(0, 1, is_first=True)  # the one before ends here, and gets copies
    buffer.truncate(1)
    lengths = [len(one[1]) for one in stored(buffer)]
    expected = 4 + 4 + 4 + (0 if buffer.holds_episodes else 1)  # an episode that breaks down has no copies
    assert len(lengths) == expected and max(lengths[4:]) <= 3


@BUFFERS
def test_what_gives_no_hindsight_is_one_message(buffer_class):
    def refused(told, space=SPACE, env_class=Drift, **changed):
        class Changed(env_class):
            pass

        for name, value in changed.items():
            setattr(Changed, name, value)
        with pytest.raises(UserError, match=told):
            buffer = buffer_class(PackedDict(space), ACTIONS)
            buffer.make_env = Changed if "make_env" not in changed else None
            seen, actions, rewards, _ = played(env_class(), 3, 0)
            packed = [PackedDict(space).pack(one) for one in seen]
            for i in range(3):
                buffer.push(packed[i], actions[i], rewards[i], packed[i + 1], False, i == 2)

    refused("needs Dict observations with the vectors 'achieved_goal'", spaces.Dict(achieved_goal=PLACE))
    refused("needs Dict .* vectors", spaces.Dict(achieved_goal=PLACE, desired_goal=spaces.Discrete(3)))
    image = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    refused("needs Dict .* vectors", spaces.Dict(achieved_goal=image, desired_goal=image))
    other = spaces.Box(-9, 9, (3,), np.float32)
    refused(
        r"'achieved_goal' has the shape \(2,\), but .* has \(3,\)", spaces.Dict(achieved_goal=PLACE, desired_goal=other)
    )
    refused("set its attribute make_env", make_env=None)
    refused("needs an environment with compute_reward", compute_reward=None)
    refused(r"returned the shape \(1,\) for 3 goals", compute_reward=lambda self, *given: np.zeros(1))
    refused(
        r"raised KeyError: 'force'; .* 3 steps at once, and an empty info", compute_reward=lambda *g: g[-1]["force"]
    )
    one_number = spaces.Dict(achieved_goal=ACTIONS, desired_goal=ACTIONS)
    refused(r"has the shape \(2,\), but compute_reward of Changed takes \(1,\)", observation_space=one_number)
    refused(r"the reward of step 0 is .*, but compute_reward .* gives 7", compute_reward=lambda *given: np.full(3, 7.0))
    with pytest.raises(UserError, match="needs Dict observations"):
        buffer_class(PLACE, ACTIONS)
    with pytest.raises(AttributeError, match="HindsightReplayBuffer"):
        offpcc.HerReplayBuffer


@BUFFERS
def test_rewards_are_compared_until_some_differ(buffer_class):
    class Tenfold(Ending):
        """Gives a reward of 10 at the goal, but computes 1."""

        def step(self, action):
            seen, reward, *rest = super().step(action)
            return seen, 10 * reward, *rest

        def compute_reward(self, achieved, desired, info):
            return super().compute_reward(achieved, desired, info) + 1

        def compute_terminated(self, achieved, desired, info):
            return False

    assert filled(buffer_class, Tenfold, (1, 1))
    with pytest.raises(UserError, match=r"the reward of step .* is 10, but compute_reward of Tenfold gives 1"):
        filled(buffer_class, Tenfold, [60] * 20)


@BUFFERS
def test_goals_have_the_dtype_of_their_space_and_may_change_in_an_episode(buffer_class):
    class Cells(gymnasium.Env):
        """Walks over 9 cells, whose distances are in a table; the goal of each step is another one."""

        cell = spaces.Box(0, 8, (1,), np.int64)
        observation_space, action_space = spaces.Dict(achieved_goal=cell, desired_goal=cell), ACTIONS
        distances = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))

        def compute_reward(self, achieved, desired, info):
            return -self.distances[achieved[:, 0], desired[:, 0]]

    env = Cells()
    packed_dict = PackedDict(env.observation_space)
    buffer = buffer_class(packed_dict, ACTIONS, num_goals=5)
    buffer.make_env = Cells
    seen = [{"achieved_goal": np.array([n]), "desired_goal": np.array([8 - n])} for n in range(9)]
    for n in range(8):
        after = seen[n + 1]
        reward = env.compute_reward(after["achieved_goal"][None], after["desired_goal"][None], {})[0]
        buffer.push(packed_dict.pack(seen[n]), [0.0], reward, packed_dict.pack(after), False, n == 7)
    own, *copies = stored(buffer)
    np.testing.assert_array_equal(own[2], [-6, -4, -2, 0, -2, -4, -6, -8])
    for _, actions, rewards, _ in copies:
        np.testing.assert_array_equal(rewards, np.arange(1 - len(actions), 1))


@BUFFERS
def test_the_termination_of_an_episode_is_one_in_its_copies(buffer_class):
    buffer, _ = filled(buffer_class, Drift, (), num_goals=20)
    seen, actions, rewards, _ = played(Drift(), 4, 0)
    packed = [PackedDict(SPACE).pack(one) for one in seen]
    for i in range(4):
        buffer.push(packed[i], actions[i], rewards[i], packed[i + 1], i == 3, False)
    ends = {(len(chosen), is_terminated) for _, chosen, _, is_terminated in stored(buffer)}
    assert ends == {(1, False), (2, False), (3, False), (4, True)}


@BUFFERS
def test_a_restored_unfinished_episode_has_not_terminated(buffer_class):
    buffer, other = (filled(buffer_class, Drift, (), num_goals=20)[0] for _ in range(2))
    seen, actions, rewards, _ = played(Drift(), 4, 0)
    packed = [PackedDict(SPACE).pack(one) for one in seen]
    for one, num_steps in ((buffer, 3), (other, 4)):
        for i in range(num_steps):
            one.push(packed[i], actions[i], rewards[i], packed[i + 1], i == 3, False)
    other.clear()
    other.restore(buffer.metadata())  # after an episode that terminated
    other.truncate(0)
    assert {(len(chosen), is_terminated) for _, chosen, _, is_terminated in stored(other)} >= {(3, False)}
    assert not any(is_terminated for *_, is_terminated in stored(other))


def test_plans_of_files_count_copies():
    image = spaces.Box(0, 255, (64, 64, 1), np.uint8)
    space = PackedDict(spaces.Dict(achieved_goal=PLACE, desired_goal=PLACE, picture=image))
    for buffer_class, is_in_file in ((ReplayBuffer, False), (HindsightReplayBuffer, True)):
        buffer = buffer_class(space, ACTIONS, memory_limit=20_000 * space.shape[0])
        assert (buffer.planned_file_bytes(10_000, 50) > 0) == is_in_file


def make_drift():
    return gymnasium.wrappers.TimeLimit(Drift(), 25)


@offpcc.configurable
class Both(Hindsight, PrioritizedReplayBuffer):
    """Prioritised replay with hindsight."""


@pytest.mark.parametrize("algo", ["sac", "rsac", "prioritised"])
def test_a_run_goes_on_exactly_in_the_middle_of_an_episode(algo, tmp_path):
    names = {"sac": "HindsightReplayBuffer", "rsac": "HindsightRecurrentReplayBuffer", "prioritised": "Both"}
    name, algo = names[algo], algo.replace("prioritised", "sac")
    offpcc.configure(None, f"build.buffer_class = @{name}", f"{name}.num_goals = 2", f"{name}.batch_size = 8")

    def spec(num_epochs):
        short = {"num_steps_per_epoch": 60, "update_after": 40, "num_test_episodes_per_epoch": 1}
        small = {"hidden_dims": (8,), **({"hidden_dim": 4, "num_layers": 1} if algo == "rsac" else {})}
        training = {**short, "num_epochs": num_epochs}
        many = {"num_envs": 2}
        return offpcc.RunSpec.make(make_drift, algo, training=training, algorithm=small, environments=many, video=False)

    folder = assert_resumes_exactly(spec, tmp_path)
    learner = offpcc.load(folder, make_drift)
    assert learner.buffer.num_goals == 2 and sum(len(one.frames) for one in learner.buffer.to_copy) > 2
    again = copy.deepcopy(learner)
    for one in (learner, again):
        one.train(Loggers([]), num_epochs=4)
    tables = (one.buffer.transition_table().columns for one in (learner, again))
    for column, other in zip(*tables, strict=True):
        np.testing.assert_array_equal(column, other)
    if name == "Both":
        return  # IQL has no TD errors
    recorded = offpcc.collect(make_drift, None, 60)
    with pytest.warns(DataWarning, match=f"{name}.num_goals has no effect: recorded data get no other goals"):
        offpcc.build(make_drift, algo.replace("sac", "iql"), dataset=recorded, buffer={"num_goals": 3})


@pytest.mark.parametrize("buffer_class", [None, HindsightReplayBuffer])
def test_bits_are_flipped_to_the_goal_with_hindsight_alone(buffer_class):
    small = {"hidden_dims": (128,), "lr": 1e-3, "buffer": {"batch_size": 128}, "seed": 1}
    learner = offpcc.DQN(BitFlip, buffer_class=buffer_class, **small)
    settings = {"num_epochs": 1, "num_steps_per_epoch": 2_000, "update_after": 400, "num_test_episodes_per_epoch": 20}
    learner.train(Loggers([]), **settings)
    (row,) = learner.loop.rows
    if buffer_class is None:
        assert row["test/return"] < -6
    else:
        assert row["test/return"] > -4, "the mean distance is 4, so the best return is about -3"
