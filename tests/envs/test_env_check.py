"""One planted fault per environment, which the doctor has to find and name."""

import functools
import importlib.util
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text

import offpcc
from offpcc.envs import make as making
from offpcc.envs.check import PROBLEMS, examine_env
from offpcc.envs.make import UnsuitableEnvironment
from offpcc.utils.errors import UserError
from offpcc.utils.findings import FAULT, NOTE, OK, WARNING

CHECKS = [
    *("versions", "spaces", "interface", "type", "bounds", "finite", "reward", "episodes"),
    *("wrapped", "seed", "starts", "resume", "actions", "speed"),
]
STEPS = 100


class Healthy(gymnasium.Env):
    """A point that chance and the agent push; a limit of 20 steps is registered."""

    observation_space = Box(-10, 10, (2,), np.float32)
    action_space = Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.t = 0
        return self.x.copy(), {}

    def step(self, action):
        self.t += 1
        noise = self.np_random.normal(0, 0.1, 2)
        self.x = np.clip(self.x + 0.1 * action[0] + noise, -10, 10).astype(np.float32)
        return self.x.copy(), -float(np.abs(self.x).sum()), False, False, {}


@pytest.fixture
def register():
    """Registers an environment for the length of a test."""
    name = "patient-v0"

    def function(environment, max_episode_steps=20):
        gymnasium.register(name, entry_point=environment, max_episode_steps=max_episode_steps)
        return name

    yield function
    gymnasium.registry.pop(name, None)


@pytest.fixture
def find(register):
    """The finding of one check in an environment, and those of all others that are not ok."""

    def function(environment, check, max_episode_steps=20, num_steps=STEPS):
        diagnosis = examine_env(register(environment, max_episode_steps), num_steps)
        (found,) = [finding for finding in diagnosis.findings if finding.check == check]
        return found, {finding.check for finding in diagnosis.findings if finding.level != OK} - {check}

    return function


def changed(step=lambda self, *values: values, at=None, reset=lambda self, *values: values):
    """A healthy environment whose steps, or only one of them in each episode, return something else."""

    class Changed(Healthy):
        def reset(self, **kwargs):
            return reset(self, *super().reset(**kwargs))

        def step(self, action):
            values = super().step(action)
            return step(self, *values) if at in (None, self.t) else values

    return Changed


def with_observation(change):
    return lambda self, observation, *others: (change(observation), *others)


def with_reward(change):
    return lambda self, observation, reward, *others: (observation, change(reward), *others)


def ends(at):
    return changed(lambda self, observation, reward, *_: (observation, reward, True, False, {}), at)


def put(index, value):
    def change(observation):
        observation[index] = value
        return observation

    return change


def test_a_healthy_environment_passes_every_check(register):
    diagnosis = examine_env(register(Healthy), STEPS)
    assert [finding.check for finding in diagnosis.findings] == CHECKS
    assert {finding.level for finding in diagnosis.findings} == {OK}
    assert not any(finding.remedy for finding in diagnosis.findings)
    assert diagnosis.verdict == "patient-v0: no fault"
    found = {finding.check: finding.found for finding in diagnosis.findings}
    assert found["spaces"] == "observation (2,) float32 in [-10, 10]; action (1,) float32 in [-2, 2]"
    assert found["wrapped"] == "agents see (2,) float32 in [-10, 10] and act (1,) float32 in [-1, 1]"
    assert found["episodes"].startswith("5 ended, 0 by termination; mean length 20.0, mean return -")


@pytest.mark.parametrize(
    "name",
    ["pendulum-p-v0", "pendulum-img-v0", "Pendulum-v1", "dmc-cartpole-balance-p-v0", "dmc-cartpole-swingup-va-v0"],
)
def test_environments_of_the_field_are_healthy(name):
    if name.startswith("dmc-") and not importlib.util.find_spec("dm_control"):
        pytest.skip("needs dm-control")
    diagnosis = examine_env(name, 400)
    assert [finding for finding in diagnosis.findings if finding.level != OK] == []
    found = {finding.check: finding.found for finding in diagnosis.findings}
    assert f"gymnasium {gymnasium.__version__}" in found["versions"]
    assert ("dm-control" in found["versions"]) >= name.startswith("dmc-")
    assert ("each draws an image" in found["speed"]) == ("-img" in name)


def test_what_would_end_the_program_is_a_finding(find):
    def leave(self, *values):
        raise SystemExit

    found, _ = find(changed(leave, at=7), "interface")
    line = leave.__code__.co_firstlineno + 1
    assert found.level == FAULT and found.found == f"step 7 of episode 1 failed with SystemExit ({__file__}:{line})"


NAN_AT_7 = changed(with_observation(put(1, np.nan)), at=7)
REWARD_AT_9 = changed(with_reward(lambda reward: np.inf), at=9)


class Disorderly(Healthy):
    """Returns numbers of its own choice beside a seeded start."""

    def step(self, action):
        observation, *others = super().step(action)
        return observation + np.random.default_rng().uniform(0, 0.1, 2).astype(np.float32), *others


class WithGlobalGenerator(Healthy):
    """Draws from NumPy's global generator."""

    def step(self, action):
        observation, *others = super().step(action)
        return observation + np.random.uniform(0, 0.1, 2).astype(np.float32), *others


class Unseeded(Healthy):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


class CarriesOver(Healthy):
    """The second episode of an instance is not its first."""

    count = 0

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.count += 1
        return observation + np.float32(self.count), info


class OwnGenerator(Healthy):
    """Seeded, and yet not found again by np_random."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.own = np.random.default_rng(seed)
        super().reset(seed=seed)
        self.x = self.own.uniform(-1, 1, 2).astype(np.float32)
        return self.x.copy(), {}


class OldGenerator(Healthy):
    @property
    def np_random(self):
        return self._random

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._random = np.random.RandomState(seed)
        self.x, self.t = self._random.uniform(-1, 1, 2).astype(np.float32), 0
        return self.x.copy(), {}


class Limping(Healthy):
    """Ends by itself at 15 steps."""

    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward, self.t == 15, False, {}


class Reluctant(Healthy):
    def step(self, action):
        if abs(action[0]) >= 2:
            raise ArithmeticError("too strong")
        return super().step(action)


class Unmoved(Healthy):
    """No chance in it."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = np.zeros(2, np.float32), 0
        return self.x.copy(), {}

    def step(self, action):
        self.x = np.clip(self.x + 0.1 * action[0], -10, 10).astype(np.float32)
        return self.x.copy(), -float(np.abs(self.x).sum()), False, False, {}


class SameStart(Healthy):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x[:] = 0
        return self.x.copy(), {}


class Stuck(Healthy):
    action_space = Box(np.array([-1, 3], np.float32), np.array([1, 3], np.float32))


class NoChoice(Healthy):
    action_space = Discrete(1, start=3)

    def step(self, action):
        return super().step([action - 3])


class Floats(Healthy):
    """An image in fractions, where its space says bytes."""

    observation_space = Box(0, 255, (1, 8, 8), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(0, 1, (1, 8, 8)), {}

    def step(self, action):
        return self.np_random.uniform(0, 1, (1, 8, 8)), super().step(action)[1], False, False, {}


@pytest.mark.parametrize(
    ("environment", "check", "level", "words"),
    [
        (NAN_AT_7, "finite", FAULT, ["step 7 of episode 1 gave nan at index 1", "division by 0"]),
        (
            changed(with_observation(put(0, 11)), at=3),
            "bounds",
            FAULT,
            ["step 3 of episode 1 gave 11 at index 0, whose high bound is 10", "widen observation_space"],
        ),
        (
            changed(with_observation(put(1, -12.5)), at=3),
            "bounds",
            FAULT,
            ["gave -12.5 at index 1, whose low bound is -10"],
        ),
        (
            changed(with_observation(lambda observation: observation.astype(np.float64))),
            "type",
            WARNING,
            ["step 1 of episode 1", "type float64", "says float32"],
        ),
        (changed(with_observation(list), at=4), "type", WARNING, ["step 4 of episode 1 gave a list of 2"]),
        (Floats, "type", FAULT, ["the reset of episode 1", "float64", "says uint8"]),
        (changed(with_reward(np.array), at=5), "reward", FAULT, ["step 5", "shape ()", "float(reward)"]),
        (REWARD_AT_9, "reward", FAULT, ["step 9 of episode 1 gave inf"]),
        (changed(with_reward(lambda reward: 3)), "reward", WARNING, ["always 3, in 100 steps"]),
        (ends(9), "episodes", FAULT, ["11 episodes lasted 9 steps"]),
        (ends(20), "episodes", FAULT, ["5 episodes lasted 20 steps"]),
        (Unmoved, "starts", WARNING, ["seeds 0 to 3", "np_random"]),
        (SameStart, "starts", NOTE, ["go on differently"]),
        (OwnGenerator, "resume", WARNING, ["the reset of episode 1", "not exact", "self.np_random"]),
        (OldGenerator, "resume", WARNING, ["cannot be restored", "RandomState"]),
        (Reluctant, "actions", FAULT, ["actions of -1", f"ArithmeticError: too strong ({__file__}:"]),
        (Stuck, "spaces", WARNING, ["action 1 can only be 3", "or give it different bounds"]),
        (NoChoice, "spaces", WARNING, ["3 is the only action; ", "give action_space two actions or more"]),
    ],
)  # fmt: skip
def test_a_fault_is_found_and_named_and_nothing_else(find, environment, check, level, words):
    found, others = find(environment, check)
    assert found.level == level, found
    for word in words:
        assert word in f"{found.found}; {found.remedy}"
    assert not others


@pytest.mark.parametrize(
    ("environment", "level", "words", "beside"),
    [
        # np_random's state finds an episode of the first again.
        (Unseeded, FAULT, ["the reset of episode 1", "second instance", "self.np_random"], set()),
        # A checkpoint in mid-episode has the global generators' states of that step, not of the episode's reset.
        (WithGlobalGenerator, WARNING, ["only if the global generators", "np.random", "whole runs"], {"resume"}),
        (Disorderly, FAULT, ["step 1 of episode 1", "second instance", "self.np_random"], {"resume"}),
        (CarriesOver, WARNING, ["the reset of episode 1", "same instance", "keep no state"], {"resume"}),
    ],
)
def test_episodes_that_a_seed_does_not_fix(find, environment, level, words, beside):
    found, others = find(environment, "seed")
    assert found.level == level
    for word in [*words, "seed 0"]:
        assert word in f"{found.found}; {found.remedy}"
    assert others == beside


@pytest.mark.parametrize("value", [np.float32(-1.5), np.int64(2), True, np.array([2.0])[0]])
def test_numbers_of_any_type_are_rewards(find, value):
    found, _ = find(changed(with_reward(lambda reward: value), at=1), "reward")
    assert found.level == OK


def test_rounding_is_within_bounds(find):
    found, _ = find(changed(with_observation(put(0, np.nextafter(np.float32(10), np.float32(11)))), at=3), "bounds")
    assert found.level == OK


def test_a_wrong_shape_is_named(find):
    found, _ = find(changed(with_observation(lambda observation: observation[:, None]), at=2), "type")
    assert found.level == FAULT
    assert "step 2 of episode 1 gave an array of shape (2, 1)" in found.found and "(2,)" in found.found


# The end of episodes ----------------------------------------------------------------------------------------------


def test_an_episode_without_end(find):
    found, others = find(Healthy, "episodes", max_episode_steps=None)
    assert found.level == FAULT
    assert "27,000" in found.found and "gymnasium.wrappers.TimeLimit" in found.remedy
    assert not others


def test_a_time_limit_beyond_what_training_accepts(find):
    found, _ = find(Healthy, "episodes", max_episode_steps=30_000)
    assert found.level == FAULT and "30,000" in found.found


def test_the_longest_episode_is_an_argument(register):
    name = register(Healthy, 30_000)
    accepted, refused = (examine_env(name, STEPS, longest_episode=longest).findings for longest in (30_000, 29_999))
    assert {finding.level for finding in accepted} == {OK}
    (found,) = (finding for finding in refused if finding.level != OK)
    assert found.check == "episodes" and "at most 29,999 steps" in found.remedy


def test_a_long_time_limit_is_no_fault(find):
    found, _ = find(Healthy, "episodes", max_episode_steps=500)
    assert found.level == OK and "500" in found.found


def test_without_a_registered_limit_two_ends_are_waited_for(find):
    found, _ = find(Limping, "episodes", max_episode_steps=None, num_steps=20)
    assert found.level == FAULT and "2 episodes lasted 15 steps" in found.found


def test_the_limit_of_a_wrapper_named_in_a_config_counts(find, monkeypatch):
    def limited(env):
        return gymnasium.wrappers.TimeLimit(env, 30)

    with monkeypatch.context() as patched:
        options = making.EnvOptions(wrappers=[limited])
        patched.setattr(sys.modules[__name__], "examine_env", functools.partial(examine_env, options=options))
        found, others = find(Healthy, "episodes", max_episode_steps=None)
    assert found.level == OK and "the time limit is 30" in found.found
    assert not others


def test_the_mean_return_is_that_of_episodes(find):
    found, _ = find(changed(with_reward(lambda reward: 3)), "episodes")
    assert "mean length 20.0, mean return 60" in found.found


def test_ends_that_differ_are_terminations(find):
    class Falls(Healthy):
        def step(self, action):
            observation, reward, *_ = super().step(action)
            return observation, reward, bool(self.np_random.random() < 0.1), False, {}

    found, _ = find(Falls, "episodes", max_episode_steps=None)
    assert found.level == OK


@pytest.mark.parametrize(("of_repeated", "level"), [(12, OK), (6, WARNING), (9, FAULT)])
def test_ends_that_repeated_actions_move_are_hardly_a_time_limit(find, of_repeated, level):
    """Random actions crash at one length in Flappy Bird; a repeated action does not."""

    class Crashes(Healthy):
        def step(self, action):
            observation, reward, *_ = super().step(action)
            end = of_repeated if abs(action[0]) == 2 else 9
            action *= 0  # in place
            return observation, reward, self.t == end, False, {}

    found, _ = find(Crashes, "episodes", max_episode_steps=None)
    assert found.level == level
    found, _ = find(Crashes, "episodes", max_episode_steps=9)
    assert found.level == FAULT


def test_episodes_of_one_step_are_no_fault(find):
    found, _ = find(ends(1), "episodes")
    assert found.level == OK


def test_both_ends_at_once_are_noted(find):
    class Both(Healthy):
        def step(self, action):
            observation, reward, *_ = super().step(action)
            over = bool(self.np_random.random() < 0.1)
            return observation, reward, over, over, {}

    found, _ = find(Both, "episodes")
    assert found.level == NOTE
    assert "both terminated and truncated" in found.found


# Environments that break ------------------------------------------------------------------------------------------


def raises(self, *values):
    raise ZeroDivisionError("by zero\nonce more")


class OldStep(Healthy):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OldReset(OldStep):
    """Two numbers, which look like a pair."""

    def reset(self):
        return super().reset()[0]


@pytest.mark.parametrize("limit", [20, None])
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (OldStep, ["step 1", "4", "5", "offpcc.envs.wrappers.old_gym.OldGym"]),
        (OldReset, ["the reset", "unexpected keyword argument 'seed'", "offpcc.envs.wrappers.old_gym.OldGym"]),
        (changed(raises, at=5), ["step 5 of episode 1 failed with ZeroDivisionError: by zero", "correct reset"]),
        (changed(reset=raises), ["the reset of episode 1 failed with ZeroDivisionError"]),
        (changed(lambda self, *values: (*values[:4], None)), ["step 1", "its info is None"]),
        (changed(lambda self, *values: values[:2]), ["step 1"]),
        (changed(reset=lambda self, observation, info: (observation, 1)), ["the reset", "its info is a int"]),
    ],
)  # fmt: skip
def test_an_environment_that_breaks_is_told_in_one_line(find, environment, words, limit):
    found, others = find(environment, "interface", limit)
    assert found.level == FAULT
    assert "\n" not in found.found
    for word in words:
        assert word in f"{found.found}; {found.remedy}"
    assert not others


def test_a_value_that_is_no_pair_has_no_place_in_a_file(find):
    found, _ = find(changed(reset=lambda self, observation, info: (observation, 1)), "interface")
    assert found.found == "the reset of episode 1 failed with TypeError: its info is a int, not a dict"


def test_what_was_seen_before_it_broke_is_told(register):
    diagnosis = examine_env(register(changed(raises, at=5)), STEPS)
    assert [finding.check for finding in diagnosis.findings] == CHECKS[: CHECKS.index("episodes")]
    assert diagnosis.verdict == "patient-v0: 1 fault; fix it before training in it"


def test_a_reward_in_an_array_is_named(find):
    found, others = find(changed(with_reward(np.atleast_1d), at=5), "reward")
    assert found.level == FAULT
    assert "step 5 of episode 1 gave an array of shape (1,)" in found.found and "float(reward)" in found.remedy
    assert others <= {"wrapped"}  # recent versions of NumPy make no number of it


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "None"), (0.5, "0.5"), (np.zeros(2, bool), "an array of shape (2,) and type bool")],
    ids=["None", "number", "array"],
)
def test_a_flag_that_training_refuses_is_named(find, value, text):
    found, _ = find(changed(lambda self, observation, reward, *_: (observation, reward, value, False, {})), "interface")
    assert found.level == FAULT
    assert f"it returned {text} for terminated; return True or False: bool(terminated)" in found.found


@pytest.mark.parametrize("flag", [np.bool_, np.uint8, float, np.array, lambda flag: np.array([flag]), torch.tensor])
def test_a_flag_that_training_reads_is_no_fault(find, flag):
    found, _ = find(changed(lambda self, seen, reward, *ends: (seen, reward, *map(flag, ends[:2]), {})), "interface")
    assert found.level == OK


@pytest.mark.parametrize("reward", [None, np.ones(2)], ids=["None", "array"])
def test_a_reward_that_is_no_number_is_one_fault(find, reward):
    found, others = find(changed(with_reward(lambda _: reward)), "reward")
    assert found.level == FAULT and "step 1 of episode 1 gave" in found.found and "float(reward)" in found.remedy
    assert not others


@pytest.mark.parametrize(
    ("actions", "observations", "words"),
    [
        (MultiDiscrete([3, 2]), Healthy.observation_space, "a Box of floats or a Discrete space"),
        (Box(-np.inf, np.inf, (1,), np.float32), Healthy.observation_space, "low bound of action 0 is -inf"),
        (Healthy.action_space, Text(3), "FlattenObservation"),
    ],
)
def test_what_does_not_suit_is_not_examined(register, actions, observations, words):
    class Unsuitable(Healthy):
        action_space, observation_space = actions, observations

    with pytest.raises(UnsuitableEnvironment, match=words):
        examine_env(register(Unsuitable), STEPS)


def test_what_only_wrappers_make_suitable_is_examined_with_them(register):
    class Framed(Healthy):
        observation_space = gymnasium.spaces.Dict(x=Healthy.observation_space)

        def reset(self, **kwargs):
            return {"x": super().reset(**kwargs)[0]}, {}

        def step(self, action):
            observation, *others = super().step(action)
            return {"x": observation}, *others

    options = making.EnvOptions(wrappers=[gymnasium.wrappers.FlattenObservation])
    diagnosis = examine_env(register(Framed), STEPS, options=options)
    assert {finding.level for finding in diagnosis.findings} == {OK}
    assert len(diagnosis.findings) == len(CHECKS)


def broken_constructor():
    raise ZeroDivisionError("by zero\nonce more")


@pytest.mark.parametrize(
    ("make", "words"), [(broken_constructor, "ZeroDivisionError: by zero"), (object, "old_gym.OldGym")]
)
def test_what_cannot_be_made_is_told_in_one_line(register, make, words):
    with pytest.raises(UnsuitableEnvironment, match=words) as raised:
        examine_env(register(make), STEPS)
    assert "\n" not in raised.value.message


def test_an_unknown_name():
    with pytest.raises(UnsuitableEnvironment, match=r"did you mean .*pendulum-p-v0"):
        examine_env("pendulum-q-v0")


# Dict observations ------------------------------------------------------------------------------------------------


class Entries(Healthy):
    """A Dict observation with an entry of each kind."""

    observation_space = Dict(
        camera=Box(0, 255, (8, 9, 3), np.uint8),
        arm=Dict(x=Healthy.observation_space, count=Box(-3, 3, (), np.int64)),
        choice=Discrete(3, start=1),
        switches=MultiDiscrete([2, 3]),
        flags=MultiBinary(2),
    )

    def reset(self, **kwargs):
        x, info = super().reset(**kwargs)
        return self.observe(x), info

    def step(self, action):
        x, *others = super().step(action)
        return self.observe(x), *others

    def observe(self, x):
        draw = self.np_random.integers
        camera = draw(0, 256, (8, 9, 3), np.uint8)
        arm = {"x": x, "count": draw(-3, 4, (), np.int64)}
        return {
            "camera": camera, "arm": arm, "choice": int(draw(1, 4)), "switches": draw(0, [2, 3]),
            "flags": draw(0, 2, 2),
        }  # fmt: skip


def entry(key, change, space=None):
    """The environment with another entry, and maybe with another space of it."""

    class Changed(Entries):
        observation_space = Dict({**Entries.observation_space.spaces, **({key: space} if space else {})})

        def observe(self, x):
            seen = super().observe(x)
            if key.startswith("arm/"):
                seen["arm"][key[4:]] = change(seen["arm"][key[4:]])
            else:
                seen[key] = change(seen.get(key, x))
            return seen

    return Changed


FAR = entry("far", lambda x: x * 1000, Box(-1e5, 1e5, (2,), np.float32))
MAP = entry("map", lambda x: np.resize(x, (8, 8, 1)), Box(-10, 10, (8, 8, 1), np.float32))


def test_a_dict_is_examined_entry_by_entry(register):
    diagnosis = examine_env(register(Entries), STEPS)
    assert [(finding.check, finding.level) for finding in diagnosis.findings] == [(check, OK) for check in CHECKS]
    found = {finding.check: finding.found for finding in diagnosis.findings}
    for text in ("'arm/x' (2,) float32 in [-10, 10]", "'camera' (8, 9, 3) uint8", "'choice' Discrete(3, start=1)"):
        assert text in found["spaces"]
    for text in ("'arm/count' from -3 to 3", "'choice' from 1 to 3", "'flags' from 0 to 1", "'switches' from 0 to 2"):
        assert text in found["bounds"]
    assert (
        "agents see arm/count (1,), arm/x (2,), choice (3,), flags (2,), switches (5,), camera (3, 8, 9)"
        in (found["wrapped"])
    )
    assert "each draws an image" in found["speed"]


def test_each_entry_with_a_fault_has_its_own_finding(register):
    class Two(entry("choice", lambda choice: choice + 1)):
        def observe(self, x):
            seen = super().observe(x)
            seen["arm"]["x"] = seen["arm"]["x"] + 20
            return seen

    found = [finding.found for finding in examine_env(register(Two), STEPS).findings if finding.check == "bounds"]
    assert len(found) == 2
    assert "for 'arm/x', whose high bound is 10" in found[0]
    assert "gave 4 for 'choice', whose high bound is 3" in found[1]


@pytest.mark.parametrize(
    ("environment", "check", "level", "words"),
    [
        (entry("arm/x", lambda x: x + 20), "bounds", FAULT, ["at index 0 for 'arm/x', whose high bound is 10"]),
        (entry("arm/x", lambda x: x * np.nan), "finite", FAULT, ["gave nan at index 0 for 'arm/x'"]),
        (entry("arm/x", np.float64), "type", WARNING, ["type float64 for 'arm/x', its space says float32"]),
        (entry("arm/x", lambda x: x[:1]), "type", FAULT, ["type float32 for 'arm/x', its space says (2,)"]),
        (entry("camera", lambda image: image / 255), "type", FAULT, ["float64 for 'camera', its space says uint8"]),
        (entry("camera", lambda image: image[..., 0]), "type", FAULT, ["shape (8, 9) and type uint8 for 'camera'"]),
        (entry("camera", lambda image: image // 128), "observed", WARNING, ["'camera': no pixel is above 1", "by 255"]),
        (entry("camera", np.zeros_like), "observed", WARNING, ["'camera' never changes (from 0 to 0)", "a camera"]),
        (entry("choice", lambda _: 2), "observed", WARNING, ["'choice' never changes (from 2 to 2)"]),
        (entry("choice", lambda choice: choice - 1), "bounds", FAULT, ["gave 0 for 'choice', whose low bound is 1"]),
        (entry("choice", float), "type", FAULT, ["a float for 'choice', its space says int64"]),
        (entry("switches", lambda two: two + 1), "bounds", FAULT, ["'switches', whose high bound is"]),
        (entry("flags", lambda two: two * 2), "bounds", FAULT, ["for 'flags', whose high bound is 1"]),
        (FAR, "observed", NOTE, ["'far' ", "spreads by", "normalize_observations"]),
        (MAP, "spaces", WARNING, ["'map' is float32 of shape (8, 8, 1)", "make it uint8"]),
    ],
)  # fmt: skip
def test_an_entry_that_is_wrong_is_named_and_nothing_else(find, environment, check, level, words):
    found, others = find(environment, check)
    assert found.level == level, found
    for word in words:
        assert word in f"{found.found}; {found.remedy}"
    assert not others


def test_a_missing_entry_is_named(find):
    class Missing(Entries):
        def observe(self, x):
            seen = super().observe(x)
            del seen["camera"]
            return seen

    found, _ = find(Missing, "type")
    assert (found.level, found.found) == (FAULT, "the reset of episode 1 gave a dict without 'camera'")


def test_entries_that_wrappers_leave_out_may_be_of_any_kind(register):
    class Named(Entries):
        observation_space = Dict({**Entries.observation_space.spaces, "name": Text(5)})

        def observe(self, x):
            return {**super().observe(x), "name": "cart"}

    options = making.EnvOptions(wrappers=[lambda env: gymnasium.wrappers.FilterObservation(env, ["camera", "choice"])])
    diagnosis = examine_env(register(Named), STEPS, options=options)
    assert {finding.level for finding in diagnosis.findings} == {OK}
    assert "agents see choice (3,), camera (3, 8, 9)" in str(diagnosis.findings)


# What is left behind ----------------------------------------------------------------------------------------------


def test_all_environments_are_closed_and_nothing_is_warned_of(register, recwarn):
    opened, closed = [], []

    class Counted(OldStep):
        def __init__(self):
            opened.append(self)

        def close(self):
            closed.append(self)

    examine_env(register(Counted), STEPS)
    assert opened and opened == closed[::-1]
    assert not recwarn.list


def test_the_same_seed_is_the_same_examination(register):
    name = register(Healthy)
    first, second, other = (examine_env(name, STEPS, seed).findings[:-1] for seed in (1, 1, 2))
    assert first == second != other


def test_every_kind_of_trouble_has_a_remedy_and_a_check():
    assert {check for check, _, _ in PROBLEMS.values()} <= set(CHECKS)
    assert all(level in (WARNING, FAULT) and remedy for _, level, remedy in PROBLEMS.values())


def test_importing_it_imports_no_simulator_and_no_torch():
    code = "import sys, offpcc.envs.check; print({'mujoco', 'dm_control', 'pybullet', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_a_task_that_its_last_step_decides_is_no_time_limit():
    levels = {finding.check: finding.level for finding in examine_env("corridor-10-v0", 400).findings}
    assert levels["episodes"] in (OK, NOTE)


@pytest.mark.parametrize(
    ("rewards", "checks"),
    [((0.0, 1.0), []), ((0.0,), ["episodes"]), ((1.0,), []), ((0.0, float("nan")), ["reward"])],
)
def test_a_task_of_fixed_length_is_decided_by_its_last_step_alone(rewards, checks):
    class Fixed(Healthy):
        """Ends after ten steps. The rewards of the last step take turns."""

        def reset(self, *, seed=None, options=None):
            self.count, self.games = 0, getattr(self, "games", -1) + 1
            return super().reset(seed=seed, options=options)

        def step(self, action):
            observation, _, _, _, info = super().step(action)
            self.count += 1
            reward = rewards[self.games % len(rewards)] if self.count == 10 else 0.0
            return observation, reward, self.count == 10, False, info

    assert [finding.check for finding in offpcc.check_env(Fixed, steps=200).of(FAULT)] == checks


def test_python_checks_an_environment_without_a_name():
    found = offpcc.check_env(lambda: gymnasium.wrappers.TimeLimit(Healthy(), 20), steps=100)
    assert found.verdict.endswith("no fault") and not found.of(FAULT)
    silent = changed(with_reward(lambda reward: None))
    broken = offpcc.check_env(lambda: gymnasium.wrappers.TimeLimit(silent(), 20), steps=100)
    assert [finding.check for finding in broken.of(FAULT)] == ["reward"] and "gave None" in str(broken)
    for wrong, words in ((Healthy(), "make"), (5, "5")):
        with pytest.raises(UserError, match=words):
            offpcc.check_env(wrong)
    assert str(offpcc.check_env("pendulum-p-v0", steps=50)).splitlines()[-1].startswith("pendulum-p-v0: no fault")


def test_bounds_of_actions_that_no_action_has_are_refused():
    class Unlimited(Healthy):
        action_space = Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (1,), np.float32)

    with pytest.raises(UnsuitableEnvironment, match=r"the low bound of action 0 is -3.4e\+38, and actions are scaled"):
        offpcc.make(Unlimited)


class Reaching(Healthy):
    """A healthy environment whose observations name a goal."""

    observation_space = Dict(achieved_goal=Healthy.observation_space, desired_goal=Healthy.observation_space)

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return {"achieved_goal": observation, "desired_goal": np.zeros(2, np.float32)}, info

    def step(self, action):
        observation, *others = super().step(action)
        return {"achieved_goal": observation, "desired_goal": np.zeros(2, np.float32)}, *others


def test_an_environment_with_goals_is_told_of_hindsight(register, find):
    assert "goals" not in {finding.check for finding in examine_env(register(Reaching), STEPS).findings}
    Reaching.compute_reward = lambda self, achieved, desired, info: -np.abs(achieved - desired).sum(-1)
    found, others = find(Reaching, "goals")
    assert found.level == NOTE and "HindsightReplayBuffer" in found.remedy and others == {"observed"}
