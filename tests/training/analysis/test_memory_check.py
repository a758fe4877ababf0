"""The check of a memory, with policies and environments whose truth is known, and with every memory."""

import dataclasses
import functools
import itertools
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import offpcc
from offpcc.cli.main import main
from offpcc.networks.cells import CELLS
from offpcc.training.analysis.memory_check import measure_memory
from offpcc.utils.errors import UserError

ZOO = Path(__file__).parents[3] / "results" / "zoo"
LENGTH, DELAY = 40, 3


class Echo(gymnasium.Env):
    """The reward is minus the distance between the action and the observation of `DELAY` steps ago."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = []
        return self.observe(), {}

    def observe(self):
        self.seen.append(self.np_random.uniform(-0.5, 0.5, 1).astype(np.float32))
        return self.seen[-1]

    def step(self, action):
        wanted = self.seen[-1 - DELAY] if len(self.seen) > DELAY else np.zeros(1, np.float32)
        reward, steps = -float(np.abs(action - wanted)[0]), len(self.seen)
        return self.observe(), reward, False, steps == self.length(), {}

    def length(self):
        return LENGTH


class Uneven(Echo):
    """Half of the episodes are short."""

    def reset(self, *, seed=None, options=None):
        self.short = seed % 2
        return super().reset(seed=seed)

    def length(self):
        return LENGTH // 4 if self.short else LENGTH


class Chance(Echo):
    """An environment that ignores the seed."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


class Policy:
    """A policy with a nested state; `read` maps observations (N, 1) and a memory to actions and a memory."""

    memoryless, packed, space_shape, action_dim, is_discrete = False, None, (1,), 1, False

    def act(self, step, memory, *, deterministic):
        assert deterministic
        rows = len(step.observation)
        if memory is None:
            memory = (np.zeros((rows, DELAY), np.float32), (np.zeros((rows, 1), np.float32),))
        kept = np.asarray(step.is_first)[:, None] == 0
        queue, (level,) = memory
        return self.read(step.observation, queue * kept, level * kept)


class Delay(Policy):
    def read(self, observation, queue, level):
        return queue[:, :1], (np.concatenate([queue[:, 1:], observation], 1), (level,))


class Shell(Policy):
    """It keeps a memory, and does not use it."""

    def read(self, observation, queue, level):
        return observation, (np.concatenate([queue[:, 1:], observation], 1), (level + 1.0,))


class Constant(Policy):
    def read(self, observation, queue, level):
        return np.full_like(observation, 0.25), (queue, (level,))


class Leaky(Policy):
    """The influence of an observation falls by a tenth in each step."""

    rate = 0.9

    def read(self, observation, queue, level):
        level = np.float32(self.rate) * level + observation
        return np.float32(0.1) * level, (queue, (level,))


class Sum(Leaky):
    """It forgets nothing."""

    rate = 1.0


def check(policy, env=Echo):
    return measure_memory(policy(), lambda **options: env(), 6, 5, 0.02, 1_000)


def observations(seeds):
    """(N, LENGTH), the observations of `Echo`."""
    rows = []
    for seed in seeds:
        env = Echo()
        env.reset(seed=seed)
        rows.append([env.seen[0][0], *(env.step(np.zeros(1))[0][0] for _ in range(LENGTH - 1))])
    return np.array(rows, np.float64)


def test_a_delay_line():
    found = check(Delay)
    seen = observations(found.seeds)
    assert found.returns == [0.0] * 6
    often, *once = found.effects
    assert often.cost == pytest.approx(np.abs(seen[:, :-DELAY]).sum(1).mean(), rel=1e-5)
    assert [(effect.kind, effect.step) for effect in once] == [
        (kind, step) for step in (4, 10, 20, 30) for kind in ("erased", "scrambled")
    ]
    for effect in once:
        lost = seen[:, effect.step - DELAY : effect.step]
        lost = np.abs(lost if effect.kind == "erased" else lost - np.roll(lost, 1, 0))
        assert effect.cost == pytest.approx(lost.sum(1).mean(), rel=1e-5)
        assert effect.cost_interval[0] < effect.cost < effect.cost_interval[1]
        assert lost.sum(1).min() <= effect.cost_interval[0]
        assert effect.cost_interval[1] <= lost.sum(1).max()
        assert effect.action_change == pytest.approx(lost[:, 0].mean(), rel=1e-5)
        assert effect.episodes == 6
    assert np.flatnonzero(found.influence).tolist() == [DELAY]
    assert found.influence[DELAY] == pytest.approx(seen.std(), rel=1e-3)
    assert np.flatnonzero(found.odd_change).tolist() == [DELAY]
    assert found.odd_change[DELAY] == pytest.approx(5.0 * seen.std(), rel=1e-3)
    assert found.horizon == DELAY
    assert found.recovery == [DELAY + 1] * len(found.recovery)
    assert len(found.recovery) == 8 * 6
    assert found.repeats
    assert "The agent needs its memory." in str(found)
    assert "the last 4 observations" in str(found)
    assert "actions differ by more than 0.02 for 4 steps (median)." in str(found)


def test_a_memory_that_is_not_used():
    found = check(Shell)
    assert all(effect.cost == 0.0 and effect.cost_interval == (0.0, 0.0) for effect in found.effects)
    assert all(effect.action_change == 0.0 for effect in found.effects[1:])
    assert np.flatnonzero(found.influence).tolist() == [0]
    assert found.horizon == 0
    assert set(found.recovery) == {1}
    assert "The agent does not use its memory." in str(found)
    assert "the last observation alone" in str(found)


def test_a_policy_that_sees_nothing():
    found = check(Constant)
    assert (found.horizon, set(found.recovery), set(found.influence)) == (None, {0}, {0.0})
    assert "No observation changes an action." in str(found)


def test_a_leaky_memory():
    found = check(Leaky)
    influence = np.array(found.influence)
    assert influence[1:] / influence[:-1] == pytest.approx(0.9, rel=1e-2)
    sums = np.cumsum(0.9 ** np.arange(len(influence)))
    assert found.horizon == int(np.argmax(sums >= 0.95 * sums[-1]))
    odd = 0.1 * 5.0 * observations(found.seeds).std()  # the first change of the action
    steps = int(np.ceil(np.log(0.02 / odd) / np.log(0.9)))
    places = sorted({round(place) for place in np.linspace(0, 0.8 * (LENGTH - 1), 8)})
    assert found.recovery == [steps if LENGTH - place > steps else None for place in places for _ in range(6)]
    assert None in found.recovery


def test_a_memory_that_forgets_nothing_does_not_recover():
    found = check(Sum)
    assert set(found.recovery) == {None}
    assert "differ by more than 0.02 until the end of most episodes. In 48 of 48 cases, they still" in str(found)
    assert json.loads(json.dumps(found.plain()))["recovery"] == [None] * 48


def test_episodes_that_are_over_do_not_count():
    found = check(Delay, Uneven)
    assert [(effect.step, effect.episodes) for effect in found.effects[1::2]] == [(2, 6), (6, 6), (12, 3), (19, 3)]
    seen = observations([5, 6, 7, 8, 9, 10])
    for effect in found.effects[5::2]:  # the long episodes alone
        lost = seen[1::2, effect.step - DELAY : effect.step]
        assert effect.cost == pytest.approx(np.abs(lost).sum(1).mean(), rel=1e-5)
    swapped = seen[1::2, 12 - DELAY : 12]
    assert found.effects[6].cost == pytest.approx(np.abs(swapped - np.roll(swapped, 1, 0)).sum(1).mean(), rel=1e-5)
    places = sorted({round(place) for place in np.linspace(0, 0.8 * (25 - 1), 8)})  # the median length is 25
    left = [length - place for place in places for length in (LENGTH // 4, LENGTH) * 3 if length > place]
    expected = [0 if steps <= DELAY else None if steps == DELAY + 1 else DELAY + 1 for steps in left]
    assert found.recovery == expected


def test_an_environment_that_does_not_repeat_is_told():
    found = check(Delay, Chance)
    assert not found.repeats
    assert "the costs contain chance" in str(found)


class Chosen(Delay):
    """It chooses one of two actions by the sign of the observation of `DELAY` steps ago."""

    action_dim, is_discrete = 2, True

    def read(self, observation, queue, level):
        action, memory = super().read(observation, queue, level)
        return np.concatenate([action > 0, action <= 0], 1).astype(np.float32), memory


class Sign(Echo):
    action_space = spaces.Discrete(2)

    def step(self, action):
        return super().step(np.full(1, 0.5 - float(action), np.float32))


def test_choices_are_followed_from_the_observations_that_change_them():
    """A small change of an observation changes no choice, so observations of other steps take their place."""
    found = measure_memory(Chosen(), functools.partial(offpcc.make, Sign), 6, 5, 0.02, 1_000)
    assert np.flatnonzero(found.influence).tolist() == [DELAY] and found.horizon == DELAY
    assert {*found.recovery} == {0, DELAY + 1}, "half of the other observations have the same sign"
    told = str(found)
    assert "The agent needs its memory." in told and "the last 4 observations" in told and "% of the episodes" in told
    assert "actions differ for " in told and "[-1, 1]" not in told and "0.02" not in told


def test_a_cost_of_the_size_of_rounding_is_no_verdict():
    found = check(Shell)
    for cost, verdict in ((-1e-4, "does not use"), (1e-4, "does not use"), (-1.0, "is better without"), (1.0, "needs")):
        often = dataclasses.replace(found.effects[0], cost=cost, cost_interval=(cost - 1e-5, cost + 1e-5))
        assert f"The agent {verdict} its memory." in str(dataclasses.replace(found, effects=[often]))
    often = dataclasses.replace(found.effects[0], cost=0.05, cost_interval=(0.04, 0.06))
    once = dataclasses.replace(found.effects[1], action_change=0.5)
    told = str(dataclasses.replace(found, effects=[often, once]))
    assert "Its actions depend on the memory, but the return changes by less than 1%." in told


class Moody(Echo):
    """The length of an episode is chance, whatever the seed."""

    lengths = iter(())

    def reset(self, *, seed=None, options=None):
        self.own = next(Moody.lengths)
        return super().reset(seed=seed)

    def length(self):
        return self.own


def test_episodes_that_are_shorter_the_second_time(monkeypatch):
    monkeypatch.setattr(Moody, "lengths", itertools.chain([LENGTH] * 6, itertools.repeat(3)))
    assert not check(Delay, Moody).repeats


def test_equal_seeds_give_equal_numbers():
    assert check(Leaky) == check(Leaky)


class Pixels(Echo):
    observation_space = spaces.Box(0, 255, (20, 20, 3), np.uint8)

    def observe(self):
        super().observe()
        return self.np_random.integers(0, 256, (20, 20, 3), np.uint8)


class Keyed(Echo):
    observation_space = spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (1,), np.float32), "gear": spaces.Discrete(3)})

    def observe(self):
        return {"speed": super().observe(), "gear": int(self.np_random.integers(3))}


def agent_of(env, algorithm, *bindings):
    small = ("Recurrent.hidden_dim=8", "ActorCritic.hidden_dims=(8,)", "GPT.context_length=6", "Concat.num_steps=4")
    offpcc.configure(None, *small, *bindings)
    return offpcc.Agent(offpcc.build(env, algorithm, seed=0).algorithm)


@pytest.mark.parametrize("cell", sorted(CELLS))
def test_every_memory(cell):
    found = offpcc.check_memory(agent_of(Echo, "rtd3", f"Recurrent.cell='{cell}'"), Echo, 3)
    assert found.repeats
    assert found.influence[0] > 0.0
    assert found.influence[1] > 0.0
    assert max(effect.action_change for effect in found.effects[1:]) > 0.0
    if cell == "concat":  # four inputs
        assert np.flatnonzero(found.influence).tolist() == [0, 1, 2, 3]
        assert set(found.recovery) <= {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("env", "algorithm"), [(Pixels, "crsac"), (Keyed, "rsac_s"), (Echo, "rbcq"), (Echo, "rfql")])
def test_other_observations_and_algorithms(env, algorithm):
    found = offpcc.check_memory(agent_of(env, algorithm, "Recurrent.cell='concat'"), env, 3)
    assert found.repeats
    assert found.influence[0] > 0.0
    assert not any(found.influence[4:])


def test_random_actions_of_tests_are_no_effects_of_a_memory():
    class Choosing(Echo):
        action_space = spaces.Discrete(3)

        def step(self, action):
            return super().step(np.zeros(1))

    numbers = []
    for epsilon in (0.0, 0.5):
        agent = agent_of(Choosing, "rdqn", f"ValueBased.test_epsilon={epsilon}")
        found = offpcc.check_memory(agent, Choosing, 3)
        numbers.append([effect.action_change for effect in found.effects])
        assert agent.algorithm.test_epsilon == epsilon
    assert numbers[0] == numbers[1]


def test_the_command(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ZOO / "pendulum-p"
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    assert main(["check", str(run), "--episodes", "3", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["env"] == "pendulum-p-v0"
    assert found["seeds"] == [2_000_000, 2_000_001, 2_000_002]
    assert found["effects"][0]["cost_interval"][0] > 100.0
    assert found["horizon"] < 10
    assert found["text"]
    assert (tmp_path / "memory_pendulum-p.png").read_bytes()[:4] == b"\x89PNG"
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([str(ZOO / "pendulum")], "SAC has no memory here, so there is nothing to check"),
        (
            ["pendulum-p-v0"],
            "there is no run pendulum-p-v0; give an environment with --env pendulum-p-v0",
        ),
        ([str(ZOO / "pendulum-p"), "--steps", "9"], "--steps 9 has no effect on the check of "),
        ([str(ZOO / "pendulum-p"), "--episodes", "1"], "check_memory.episodes"),
        ([str(ZOO / "pendulum-p"), "--output", "no/x.xyz"], "--output no/x.xyz cannot be written"),
        (["--env", "pendulum-p-v0", "--json"], "--json has no effect without a run's folder"),
    ],
)
def test_bad_input(words, message, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["check", *words]) == 2
    err = capfd.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_an_agent_without_memory_is_refused():
    with pytest.raises(UserError, match="has no memory here"):
        offpcc.check_memory(agent_of(Echo, "sac"), Echo)
