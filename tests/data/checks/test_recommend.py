"""The recommendation for recorded data, on data for which the right one is known, and what each property decides."""

import functools
import re

import gymnasium
import numpy as np
import pytest

import offpcc
from offpcc.algorithms import ALGORITHMS
from offpcc.data import Dataset
from offpcc.data.checks.check import examine_dataset
from offpcc.data.checks.recommend import choose, is_hidden, measure_dataset, two_groups
from offpcc.data.datasets.load import load_dataset
from offpcc.envs.make import make
from offpcc.envs.wrappers import KeepIndices

LENGTH = 50


def control(x, v, draw):
    return -2.0 * x - 1.5 * v


def feeble(x, v, draw):
    return 0.1 * control(x, v, draw)


def uniform(x, v, draw):
    return draw.uniform(-1.0, 1.0, x.shape)


def either_way(x, v, draw):
    return 0.6 * draw.choice([-1.0, 1.0], x.shape)


def particle(*policies, num_episodes=36, noise=0.02, columns=(0, 1), reward=None, seed=0):
    """A particle that is pushed, at position x with velocity v; the episodes take the policies in turn."""
    draw = np.random.default_rng(seed)
    x, v = draw.choice([-1.0, 1.0], num_episodes) + draw.normal(0.0, 0.02, num_episodes), np.zeros(num_episodes)
    seen, acted, rewards = [], [], []
    for _ in range(LENGTH):
        chosen = np.stack([policy(x, v, draw) for policy in policies])[np.arange(num_episodes) % len(policies),
                                                                      np.arange(num_episodes)]  # fmt: skip
        action = np.clip(chosen + draw.normal(0.0, noise, num_episodes), -1.0, 1.0)
        seen.append(np.stack([x, v], 1)[:, columns])
        acted.append(action)
        v = v + 0.2 * action
        x = x + 0.2 * v
        rewards.append(-np.abs(x))

    def flat(rows):
        return np.stack(rows, 1).reshape(num_episodes * LENGTH, -1)

    last = np.tile(np.arange(LENGTH) == LENGTH - 1, num_episodes)
    rewards = flat(rewards)[:, 0]
    return Dataset.from_arrays(
        observations=flat(seen),
        actions=flat(acted),
        rewards=rewards if reward is None else reward(rewards, last),
        terminations=np.zeros(len(last), bool),
        truncations=last,
        action_range=(-1.0, 1.0),
        name="particle",
    )


def skills(gains):
    return [lambda x, v, draw, gain=gain: gain * control(x, v, draw) for gain in gains]


def at_the_goal(rewards, last):
    draw = np.random.default_rng(1)
    return np.where(last & (draw.random(len(last)) < 0.5), 1.0, 0.0)


def advice(data, **options):
    findings = examine_dataset(data, **options).advice
    assert findings[-1].check == "advice"
    name, baseline = (re.search(f"{words} (\\w+)", str(findings[-1]))[1] for words in ("start with", "also train"))
    assert {name, baseline} <= {*ALGORITHMS} and name != baseline
    return findings[-1].found


CASES = {
    "one good agent": ({}, (control,), "bc: the episodes are equally good"),
    "one good agent, without velocity": ({"columns": (0,)}, (control,), "rbc: the episodes are equally good"),
    "one agent, by luck better or worse": ({}, skills(np.linspace(0.8, 1.2, 20)), "bc: the episodes are equally good"),
    "at random": ({}, (uniform,), "cql: actions are spread nearly as uniform ones"),
    "at random, without velocity": ({"columns": (0,)}, (uniform,), "rcql: actions are spread nearly"),
    "two modes": ({}, (either_way,), "fql: actions at similar observations form separate groups"),
    "sparse": ({"reward": at_the_goal}, (control,), "iql: rewards are sparse"),
    "two agents": ({}, (control, control, feeble), "td3_bc: two groups of episodes differ"),
    "many skills": ({"noise": 0.2}, skills(np.linspace(0.02, 0.5, 20)), "rebrac: quality is mixed"),
    "without rewards": ({"reward": lambda rewards, last: 0.0 * rewards}, (uniform,), "bc: all rewards are equal"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_right_algorithm_is_recommended(name):
    options, policies, expected = CASES[name]
    assert advice(particle(*policies, **options)).startswith(f"start with {expected}")


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        ("one good agent, without velocity", {"remaining": np.nan}),
        ("at random", {"coverage": np.nan}),
        ("two modes", {"modes": np.nan}),
        ("sparse", {"common_reward": 0.0}),
        ("sparse", {"has_better_reward": False}),
        ("two agents", {"good_share": np.nan}),
        ("one good agent", {"return_spread": np.nan}),
        ("without rewards", {"common_reward": 0.0}),
    ],
)
def test_it_would_be_another_one_without_the_property(name, ignored):
    options, policies, _ = CASES[name]
    data = particle(*policies, **options)
    found = measure_dataset(data)
    without = found._replace(**ignored)
    choices = [(choose(each, False)[0], is_hidden(each.error, each.remaining)) for each in (found, without)]
    assert choices[0] != choices[1]


def test_the_better_group_is_the_fraction_to_keep():
    data = particle(control, control, feeble)
    assert "dataset.best_fraction=0.67" in advice(data)
    assert data.best(0.67).returns.min() > np.median(particle(feeble).returns)


def test_equal_rewards_say_something_if_episodes_terminate():
    found = measure_dataset(particle(uniform, reward=lambda rewards, last: 1.0 + 0.0 * rewards))
    assert [choose(found, terminates)[0] for terminates in (False, True)] == ["bc", "cql"]


def test_rare_rewards_below_the_others_are_not_sparse():
    """Such as a fall at the end of an episode."""
    found = advice(particle(control, reward=lambda rewards, last: np.where(last, -1.0, 0.0)))
    assert found.startswith("start with bc: the episodes are equally good")


@pytest.mark.parametrize("env, name", [("pendulum-p-v0", "rcql"), ("pendulum-v0", "cql")])
def test_what_the_environment_hides_needs_a_memory(env, name, pendulum_file):
    assert advice(load_dataset(pendulum_file), env=make(env)).startswith(f"start with {name}:")


def test_numbers_that_never_change_are_not_missed(tmp_path):
    """As in Ant, whose recorded contact forces are all 0; and what to try next has a memory, too."""
    data = particle(control)
    wider = Dataset.from_arrays(
        observations=np.concatenate([data.observations, np.zeros((len(data.observations), 3), np.float32)], 1),
        actions=data.actions,
        rewards=data.rewards.reshape(-1),
        terminations=data.terminations,
        truncations=data.truncations,
    )

    class Seen(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-9.0, 9.0, (5,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    for kept, hides in (((0, 1), False), ((0,), True), ((0, 2, 3, 4), True), ((0, 1, 2), False)):
        env = make(Seen, wrappers=[functools.partial(KeepIndices, indices=kept)])
        found = advice(wider, env=env)
        assert found.startswith(f"start with {'r' * hides}bc:") and f"then try {'r' * hides}td3_bc" in found


def test_images_need_convolutions():
    draw = np.random.default_rng(0)
    data = Dataset.from_arrays(
        observations=draw.integers(0, 256, (400, 2, 12, 12), np.uint8),
        actions=draw.uniform(-1, 1, (400, 1)),
        rewards=draw.normal(size=400),
        terminations=np.zeros(400, bool),
        truncations=np.arange(400) % 20 == 19,
    )
    assert advice(data).startswith("start with crebrac:") and "take crrebrac unless frames" in advice(data)


def hidden_velocity(*edges):
    """Positions of a body with a hidden velocity, and a flag for each edge that it is beyond."""
    draw, rows = np.random.default_rng(0), []
    for _ in range(60):
        x, v = draw.uniform(-1, 1), 0.0
        for step in range(50):
            action = draw.uniform(-1, 1)
            rows.append(([x, *(float(x > edge) for edge in edges)], [action], -abs(x), step == 49))
            v = 0.9 * v + 0.1 * action
            x += v
    seen, actions, rewards, ends = (np.array(column) for column in zip(*rows, strict=True))
    return Dataset.from_arrays(
        observations=seen, actions=actions, rewards=rewards, terminations=np.zeros(len(ends), bool), truncations=ends
    )


@pytest.mark.parametrize("edges", [(), (0.0,), (0.0, 0.3), (0.0, 0.3, -0.3)])
def test_flags_do_not_conceal_that_velocities_are_hidden(edges):
    assert advice(hidden_velocity(*edges)).startswith("start with rc")


def test_what_neither_one_nor_two_observations_tell_is_unclear():
    draw = np.random.default_rng(0)
    data = Dataset.from_arrays(
        observations=np.cumsum(draw.normal(size=(3000, 2)), 0),
        actions=draw.uniform(-1, 1, (3000, 1)),
        rewards=draw.normal(size=3000),
        terminations=np.zeros(3000, bool),
        truncations=np.arange(3000) % 100 == 99,
    )
    (told,) = (one.found for one in examine_dataset(data).advice if one.check == "state")
    assert told.startswith("it is unclear whether one observation shows the state: it leaves 100% of the variance")


def with_entries(data, **entries):
    """The same data with Dict observations, of which the entry "seen" is the old ones."""
    return Dataset.from_arrays(
        observations={"seen": data.observations, **entries},
        actions=data.actions,
        rewards=data.rewards,
        terminations=data.terminations,
        truncations=data.truncations,
        action_range=(-1.0, 1.0),
    )


def test_images_beside_numbers_need_convolutions():
    data = particle(control)
    images = np.random.default_rng(0).integers(0, 256, (data.num_steps, 8, 8, 3), np.uint8)
    told = advice(with_entries(data, camera=images))
    assert told.startswith("start with cbc: the episodes are equally good")
    assert "one image shows no velocity, so take crbc unless frames are stacked" in told


def test_states_that_only_critics_see_are_no_observations():
    whole, blind = particle(control), particle(control, columns=(0,))
    data = Dataset.from_arrays(
        observations=blind.observations,
        states=whole.observations,
        actions=blind.actions,
        rewards=blind.rewards,
        terminations=blind.terminations,
        truncations=blind.truncations,
        action_range=(-1.0, 1.0),
    )
    assert advice(data).startswith("start with rbc:")


def test_an_environment_that_gives_critics_the_state_hides_no_numbers_of_the_agent(tmp_path):
    env = make("pendulum-p-v0", state="info", scale_actions=True)
    offpcc.configure(None, 'make.state = "info"')
    offpcc.collect("pendulum-p-v0", None, steps=2_000, seed=1).save(tmp_path / "data.hdf5")
    data = load_dataset(tmp_path / "data.hdf5")
    texts = [str(finding) for finding in examine_dataset(data, env=env).advice]
    assert "seems not to show the state" in texts[0] and "start with r" in texts[-1]


def test_a_median_of_zero_is_no_unit():
    def every_fifth(rewards, last):
        return np.where(last & (np.cumsum(last) % 5 == 0), 1.0, 0.0)

    data = particle(uniform, num_episodes=40, reward=every_fifth)
    findings = examine_dataset(data)
    (skill,) = (finding.found for finding in findings.advice if finding.check == "skill")
    assert skill.startswith("the middle 80% of the returns differ by 1, in two groups")
    assert "far from the others" not in " ".join(map(str, findings.findings))


def test_equal_returns_of_zero_are_equal():
    data = particle(control, num_episodes=40, reward=lambda rewards, last: 0.0 * rewards)
    found = measure_dataset(data)
    assert (found.middle, found.return_spread) == (0.0, 0.0) and choose(found, terminates=True)[0] == "bc"


def test_data_with_a_fault_get_no_advice():
    data = particle(uniform, num_episodes=4)
    assert examine_dataset(data).advice == (), "less than a batch"


def test_few_steps_and_one_episode_are_not_measured():
    found = measure_dataset(particle(uniform, num_episodes=1))
    assert np.isnan(found[:7]).all() and choose(found, False)[0] == "rebrac"


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        (np.linspace(0, 1, 1_000), 0.74, 0.76),
        (np.random.default_rng(0).normal(size=10_000), 0.62, 0.66),
        (np.repeat([0.0, 1.0], 8), 1.0, 1.0),
        (np.zeros(16), 0.0, 0.0),
    ],
)
def test_how_far_numbers_are_two_groups(values, least, most):
    part, _ = two_groups(np.sort(values))
    assert least <= part <= most + 1e-9


def test_scores_by_the_references_of_another_robot_are_a_warning():
    data = particle(control)
    data.metadata["env"] = "Walker2d-v2"
    other = [one for one in examine_dataset(data, env=make("HalfCheetah-v5")).findings if one.check == "score"]
    assert other[0].level == "warning" and "recorded in Walker2d-v2" in other[0].found
