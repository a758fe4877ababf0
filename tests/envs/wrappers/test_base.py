import pickle

import gymnasium
import numpy as np
import pytest
from counting import Counter, action
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.wrappers import TimeLimit

import offpcc
from offpcc.envs.wrappers import (
    Concatenate,
    EpisodeReturn,
    Float32Observation,
    MultiDiscreteToDiscrete,
    PreviousAction,
    UnitAction,
)


def test_float32_observation_casts_numbers_and_bounds():
    largest = np.finfo(np.float64).max
    env = Float32Observation(Counter(Box(np.array([-largest, 0.1]), np.array([largest, 100.1]), dtype=np.float64)))
    assert env.observation_space.dtype == np.float32
    assert np.isinf(env.observation_space.high[0]) and np.isinf(env.observation_space.low[0])
    observation, _ = env.reset()
    assert observation.dtype == np.float32
    assert observation in env.observation_space


def test_unit_action_maps_to_the_bounds_and_clips():
    env = UnitAction(Counter())
    env.reset()
    assert env.action_space == Box(-1, 1, (2,), np.float32)
    for given, executed in [(-1, -2), (0, 1), (1, 4), (0.5, 2.5), (1.0001, 4), (-9, -2)]:
        env.step(action(given, given))
        np.testing.assert_allclose(env.unwrapped.executed, [executed, executed], rtol=1e-6)
        assert env.unwrapped.executed.dtype == np.float32


def test_unit_action_never_leaves_the_bounds():
    generator = np.random.default_rng(0)
    for _ in range(300):
        low, high = np.sort(generator.uniform(-3, 3, (2, 2)), axis=0).astype(np.float32)
        env = UnitAction(Counter(low=low, high=high))
        env.reset()
        for unit in (-1, 1):
            env.step(action(unit, unit))
            assert env.unwrapped.executed in env.env.action_space


def test_unit_action_changes_nothing_between_minus_1_and_1():
    env = UnitAction(Counter(low=-1.0, high=1.0))
    env.reset()
    for unit in (1e-12, -0.3, 1.0):
        env.step(action(unit, unit))
        np.testing.assert_array_equal(env.unwrapped.executed, action(unit, unit))


def test_unit_action_takes_the_widest_bounds():
    largest = np.finfo(np.float32).max
    env = UnitAction(Counter(low=-largest, high=largest))
    env.reset()
    env.step(action(-1, 0))
    np.testing.assert_array_equal(env.unwrapped.executed, action(-largest, 0))


def test_the_end_of_an_episode_holds_its_return():
    env = EpisodeReturn(Counter(ends_after=3))
    for _ in range(2):
        env.reset()
        infos = [env.step(action(0, 0))[4] for _ in range(3)]
        assert all("final_eval_reward" not in info for info in infos[:2])
        assert infos[2] == {"t": 3, "final_eval_reward": 1 + 2 + 3, "episode_length": 3}


def test_an_abandoned_episode_does_not_count():
    env = EpisodeReturn(Counter(ends_after=2))
    env.reset()
    env.step(action(0, 0))
    env.reset()
    env.step(action(0, 0))
    assert env.step(action(0, 0))[4]["final_eval_reward"] == 1 + 2


def test_an_early_time_limit_is_a_truncation():
    env = EpisodeReturn(Concatenate(TimeLimit(PreviousAction(Counter()), 5), 2))
    env.reset()
    steps = [env.step(action(0, 0)) for _ in range(5)]
    assert [step[2:4] for step in steps] == [(False, False)] * 4 + [(False, True)]
    assert steps[-1][4]["final_eval_reward"] == 1 + 2 + 3 + 4 + 5


class Choosing(gymnasium.Env):
    """Shows the sum of the last choices, and stores them; an episode has 5 steps."""

    observation_space = Box(-100, 100, (1,), np.float32)

    def __init__(self, choices=None):
        self.action_space = MultiDiscrete([3, 2]) if choices is None else choices

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.chosen = []
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert action in self.action_space
        self.chosen.append(action.tolist())
        return np.float32([np.sum(action)]), float(np.sum(action)), len(self.chosen) == 5, False, {}


@pytest.mark.parametrize(
    ("choices", "third", "last"),
    [
        (MultiDiscrete([3, 2]), [1, 1], [2, 1]),
        (MultiDiscrete([3, 2], start=[-1, 4]), [0, 5], [1, 5]),
        (MultiDiscrete([[2, 2], [1, 2]]), [[0, 1], [0, 1]], [[1, 1], [0, 1]]),
        (MultiBinary(3), [0, 1, 1], [1, 1, 1]),
        (MultiBinary((2, 1)), [[1], [1]], [[1], [1]]),
    ],
)
def test_each_combination_of_choices_is_an_action(choices, third, last):
    env = pickle.loads(pickle.dumps(MultiDiscreteToDiscrete(Choosing(choices))))
    sizes = choices.nvec if isinstance(choices, MultiDiscrete) else np.full(choices.shape, 2)
    assert env.action_space == Discrete(int(np.prod(sizes)))
    combinations = [env.action(number) for number in range(env.action_space.n)]
    assert all(one in choices for one in combinations)
    assert len({one.tobytes() for one in combinations}) == len(combinations)
    assert env.action(np.int64(3)).tolist() == third and combinations[-1].tolist() == last


def test_actions_of_several_choices_are_learned_through_the_wrapper():
    small = {"hidden_dims": (32,), "lr": 1e-2, "buffer": {"batch_size": 32}, "seed": 1}
    learner = offpcc.DQN(Choosing, make={"wrappers": [MultiDiscreteToDiscrete]}, **small)
    agent = learner.train(num_epochs=1, num_steps_per_epoch=400, update_after=100, num_test_episodes_per_epoch=1)
    env = Choosing()
    observation, _ = env.reset()
    for _ in range(5):
        chosen = np.unravel_index(agent.act(observation), (3, 2))
        observation, *_ = env.step(np.array(chosen))
    assert env.chosen == [[2, 1]] * 5, "the largest sum"


def test_other_actions_and_too_many_combinations_are_refused():
    with pytest.raises(ValueError, match=r"needs MultiDiscrete or MultiBinary actions, not Discrete\(3\)"):
        MultiDiscreteToDiscrete(Choosing(Discrete(3)))
    assert MultiDiscreteToDiscrete(Choosing(MultiBinary(16))).action_space.n == 65_536
    with pytest.raises(ValueError, match=r"have 131,072 combinations, more than 65,536; leave choices out"):
        MultiDiscreteToDiscrete(Choosing(MultiBinary(17)))
