"""Atari games: what an agent sees, when a life is lost, what counts while learning and what in tests."""

import functools
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from conftest import merged, rows

from offpcc.algorithms import find_algorithm
from offpcc.config import loading
from offpcc.core import Batch, Step
from offpcc.envs.make import UnsuitableEnvironment, make
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.envs.wrappers import num_stacked
from offpcc.training.evaluation import run_episodes
from offpcc.training.interaction import Interaction
from offpcc.utils.errors import UserError

pytest.importorskip("ale_py")
from offpcc.envs.tasks.atari import Areas, Atari

BREAKOUT = "BreakoutNoFrameskip-v4"


def unhurried(game, **arguments):
    """A game without what is random at its start."""
    return Atari(game, **{"repeat_action_probability": 0.0, "noop_max": 0, "fire_reset": False, **arguments})


def played(env, num_steps, seed=0, first_seed=None):
    """Observations and results of random actions."""
    generator, seen = np.random.default_rng(seed), [env.reset(seed=first_seed)[0]]
    results = []
    for _ in range(num_steps):
        observation, *result = env.step(int(generator.integers(env.action_space.n)))
        seen.append(observation)
        results.append(tuple(result[:3]))
    return np.stack(seen), results


def test_an_observation_is_what_the_vector_environment_of_ale_py_shows():
    """Grey, shrunk, the largest of two screens, four frames of 4: to the last byte, also of other screens."""
    import ale_py

    for game in ("pong", "air_raid"):  # 210 and 250 rows
        theirs = ale_py.AtariVectorEnv(
            game, 1, noop_max=0, use_fire_reset=False, stack_num=1, reward_clipping=False, num_threads=1
        )
        ours, generator = unhurried(game), np.random.default_rng(3)
        seen, expected = ours.reset(seed=0)[0], theirs.reset(seed=0)[0][0]
        assert seen.shape == (1, 84, 84) and seen.dtype == np.uint8
        for _ in range(60):
            unlike = seen != expected  # theirs rounds means of a half either way where there are 250 rows
            assert not unlike.any() if game == "pong" else unlike.mean() < 0.005
            np.testing.assert_allclose(seen.astype(int), expected.astype(int), atol=1)
            action = int(generator.integers(ours.action_space.n))
            seen, reward, *_ = ours.step(action)
            stacked, rewards, *_ = theirs.step(np.array([action]))
            expected = stacked[0]
            assert reward == rewards[0]
        assert seen.std() > 0


@pytest.mark.parametrize("num_rows", [84, 160, 168, 210, 214, 250])
def test_areas_are_means_of_equal_parts(num_rows):
    image = np.random.default_rng(0).integers(0, 256, (num_rows, 3)).astype(np.uint8)
    areas = Areas(num_rows, 84)
    fine = np.repeat(image, 84, axis=0).reshape(84, num_rows, 3).mean(1)  # each row in 84 parts, each area has num_rows
    np.testing.assert_allclose(areas.totals(image) / areas.span, fine, atol=1e-9)


def test_four_frames_are_shown_channels_first_and_one_if_asked_for():
    with_four, with_one = make(BREAKOUT), make(BREAKOUT, kwargs={"frame_stack": 1})
    assert with_four.observation_space == gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert with_one.observation_space.shape == (1, 84, 84)
    assert (num_stacked(with_four), num_stacked(with_one)) == (4, 1)
    seen, _ = played(with_four, 5, first_seed=0)
    single, _ = played(with_one, 5, first_seed=0)
    np.testing.assert_array_equal(seen[:, 3], single[:, 0])
    np.testing.assert_array_equal(seen[4], single[1:5, 0])
    np.testing.assert_array_equal(seen[0, :3], 0)


def test_an_action_lasts_four_frames():
    env = unhurried("pong")
    env.reset(seed=0)
    begin = env._ale.getEpisodeFrameNumber()
    env.step(0)
    assert env._ale.getEpisodeFrameNumber() - begin == 4
    assert env.metadata["render_fps"] == 15


@pytest.mark.parametrize(("fire", "expected"), [(False, 0), (True, 4)])
def test_a_game_begins_after_up_to_30_frames_and_the_fire_button(fire, expected):
    env = Atari("breakout", noop_max=30, fire_reset=fire, repeat_action_probability=0.0)
    begin = unhurried("breakout")
    begin.reset(seed=0)
    waited = []
    for seed in range(25):
        env.reset(seed=seed)
        waited.append(env._ale.getEpisodeFrameNumber() - begin._ale.getEpisodeFrameNumber() - expected)
    assert min(waited) >= 1 and max(waited) <= 30 and len(set(waited)) > 10
    noops = Atari("freeway", fire_reset=True)
    assert noops._start is None  # it has no fire button


@pytest.mark.parametrize(("name", "is_sticky"), [(BREAKOUT, False), ("ALE/Breakout-v5", True)])
def test_actions_are_sticky_as_the_id_says(name, is_sticky):
    assert (make(name).unwrapped._sticky == 0.25) is is_sticky
    env = make(name).unwrapped
    env.reset(seed=1)
    taken = []
    act = env._ale.act

    class Counting:
        def __getattr__(self, attribute):
            return getattr(ale, attribute)

        def act(self, action):
            taken.append(action)
            return act(action)

    ale, env._ale = env._ale, Counting()
    right, left = 2, 3
    for step in range(300):
        env.step(right if step % 2 else left)
    chosen = [env._actions[right if step % 2 else left] for step in range(300) for _ in range(4)][: len(taken)]
    late = np.mean([a != b for a, b in zip(taken, chosen, strict=True)])
    # A change is late by a frame with probability 1/4, by two with 1/16 ...: 1/4 + 1/16 + 1/64 + 1/256 of 4 frames.
    assert late == pytest.approx(0.083, abs=0.03) if is_sticky else late == 0.0


@pytest.mark.parametrize("name", ["ALE/Tennis-v5", "KungFuMasterNoFrameskip-v4"])
def test_the_generators_state_fixes_a_game_whatever_was_played_before(name):
    """In these games, ale-py's own reset keeps a part of the game before."""
    env, fresh = make(name).unwrapped, make(name).unwrapped
    played(env, 40, seed=1, first_seed=7)
    state = env.np_random.bit_generator.state
    expected = played(env, 40, seed=2)
    fresh.np_random.bit_generator.state = state
    found = played(fresh, 40, seed=2)
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1] == expected[1]


def test_a_lost_life_goes_to_the_buffer_alone():
    """The agent learns of an end; the game, its stack and its score go on, and a recording has whole games."""

    class Store:
        def __init__(self):
            self.steps = []

        def push(self, observation, action, reward, after, terminated, truncated, env, is_first):
            self.steps.append((observation, after, terminated, is_first))

        def truncate(self, env):
            pass

        drop = truncate

    class Idle:
        memoryless = True

        def act(self, step, memory=None, deterministic=False):
            return np.eye(4, dtype=np.float32)[[1] * len(step.is_first)], None

    def run(memoryless, num_steps=220, **kwargs):
        buffer, recording, agent = Store(), Store(), Idle()
        agent.memoryless = memoryless
        envs = LocalEnvironments(lambda: make(BREAKOUT, scale_actions=True, kwargs=kwargs), [3])
        interaction = Interaction(envs, agent, buffer)
        interaction.stores.append(recording)
        for _ in range(num_steps):
            interaction.step(False)
        return buffer.steps, recording.steps, interaction

    learned, recorded, interaction = run(memoryless=True)
    ends = [step for step, (_, _, terminated, _) in enumerate(learned) if terminated]
    games = [step for step, (_, _, terminated, _) in enumerate(recorded) if terminated]
    assert len(games) >= 1 and len(ends) >= 5 * len(games) and set(games) < set(ends)
    assert [result.length for result in interaction.finished] == np.diff([-1, *games]).tolist()
    for step in set(ends) - set(games):
        np.testing.assert_array_equal(learned[step][1], learned[step + 1][0])  # the stack goes on
        assert learned[step][1][0].any() and not learned[step + 1][3]
    for changed in ({"memoryless": False}, {"memoryless": True, "terminal_on_life_loss": False}):
        assert [step[2] for step in run(**changed)[0]] == [step[2] for step in recorded]


def test_tests_play_whole_games_and_tell_the_score():
    class Idle:
        def act(self, step, memory=None, deterministic=False):
            return np.eye(4, dtype=np.float32)[[1] * len(step.is_first)], None

    make_env = functools.partial(make, BREAKOUT, scale_actions=True)
    (result,) = run_episodes(Idle(), [make_env()], [3])
    env = make_env()
    env.reset(seed=3)
    lives, score, over = [], 0.0, False
    while not over:
        _, reward, over, _, info = env.step(np.eye(4, dtype=np.float32)[1])
        lives.append(info["lives"])
        score += reward
    assert (lives[0], lives[-1]) == (5, 0)
    assert result[:2] == (score, len(lives))


@pytest.mark.parametrize("algo", ["cdqn", "crdsac"])
def test_clipped_rewards_are_those_of_learning_alone(algo):
    """An update and an action depend on the signs of rewards."""
    space, actions = gymnasium.spaces.Box(0, 255, (1, 20, 20), np.uint8), gymnasium.spaces.Discrete(3)
    import torch

    generator = np.random.default_rng(0)
    frames = torch.from_numpy(generator.integers(0, 256, (2, 3, 1, 20, 20)).astype(np.uint8))
    acted = torch.eye(3)[torch.tensor([[0, 1], [2, 0]])]
    ones = torch.ones(2, 3, 1)

    def learned(scale, clip):
        loading.load_gin_config(
            None, ["Convolutional.kernels=(4,)", "Convolutional.strides=(4,)", "Convolutional.channels=(2,)"]
        )
        given = {"clip_rewards": clip, "hidden_dims": (8,), "n_step": 1}
        if algo == "crdsac":
            loading.load_gin_config(
                None,
                [
                    "Convolutional.kernels=(4,)",
                    "Convolutional.strides=(4,)",
                    "Convolutional.channels=(2,)",
                    "Recurrent.use_previous_reward=True",
                    "Recurrent.hidden_dim=8",
                ],
            )
        agent = find_algorithm(algo)(space, actions, **given)
        rewards = scale * torch.tensor([[[1.0], [-2.0]], [[0.0], [5.0]]])
        batch = Batch(frames, acted, rewards, 0 * rewards, ones, ones[:, 1:], acted[:, 0], scale * ones[:, 0])
        loss = agent.update_networks(batch)["critic_loss"].item()
        step = Step(frames[:, 0].numpy(), acted[:, 0].numpy(), scale * np.ones((2, 1), np.float32), np.zeros(2))
        return loss, agent.act(step, deterministic=True)[0].tolist()

    assert learned(1.0, True) == learned(7.0, True)
    assert learned(1.0, False)[0] != learned(7.0, False)[0]


def test_what_gymnasium_takes_is_passed_on():
    env = make(BREAKOUT, kwargs={"max_episode_steps": 3}, render_mode="rgb_array")
    assert env.spec.max_episode_steps == 3 and env.render_mode == "rgb_array"


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("PongNoFrameskip-v9", {}, "PongNoFrameskip-v4"),
        ("Pong-v4", {}, "PongNoFrameskip-v4"),
        (BREAKOUT, {"frame_skip": 0}, "frame_skip = 0; it has to be a whole number, 1 or more"),
        *(
            (BREAKOUT, {"frame_stack": num}, f"frame_stack = {num!r}; it has to be a whole number from 1 to 1,000")
            for num in (0, True, 2.0)
        ),
        (BREAKOUT, {"max_num_frames_per_episode": -1}, "max_num_frames_per_episode = -1; it has to be a whole number"),
        *(
            (BREAKOUT, {"repeat_action_probability": share}, f"= {share!r}; it has to be a number from 0 to below 1")
            for share in (-0.1, 1, 25, float("nan"), "0.25", None)
        ),
        (BREAKOUT, {"mode": 7}, "mode = 7; breakout has [0, 4, 8"),
        (BREAKOUT, {"obs_type": "ram"}, "no argument 'obs_type'; the known names are frame_stack, repeat_action_"),
        (BREAKOUT, {"frameskip": 2}, "no argument 'frameskip'; did you mean frame_skip"),
    ],
)
def test_what_there_is_not_is_refused(name, kwargs, message):
    with pytest.raises((UserError, UnsuitableEnvironment)) as caught:
        make(name, kwargs=kwargs)
    assert message in str(caught.value)


def test_forms_of_a_game_that_are_not_made_name_those_that_are():
    """Each in a process of its own: ale-py's ids are registered when it is first imported."""
    names = ("Pong-v4", "PongDeterministic-v4", "Pong-v5", "Pong-ram-v0", "Pong", "pong")
    code = f"""
import os, sys
import offpcc.envs.make
assert "ale_py" not in sys.modules
for name in {names}:
    child = os.fork()
    if child == 0:
        try:
            offpcc.make(name)
        except Exception as fault:
            print(str(fault).replace("\\n", " "), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = done.stdout.splitlines()
    assert len(told) == len(names)
    assert all("choose PongNoFrameskip-v4 or ALE/Pong-v5" in line for line in told), told


def test_without_ale_py_the_message_names_it(monkeypatch):
    monkeypatch.setattr("offpcc.envs.unsuitable.is_installed", lambda package: False)
    monkeypatch.setattr("offpcc.envs.tasks.atari.is_installed", lambda package: False)
    monkeypatch.setattr(gymnasium, "registry", {})
    with pytest.raises(UnsuitableEnvironment, match=r"needs the package ale-py.*pip install ale-py"):
        make("ALE/Pong-v5")


SHORT = (
    "train.num_epochs=2",
    "train.num_steps_per_epoch=90",
    "train.update_after=40",
    "train.update_every=1",
    "train.updates_per_step=0.1",
    "train.num_test_episodes_per_epoch=1",
    "environments.num_envs=2",
    "ReplayBuffer.capacity=100",
    "ReplayBuffer.memory_limit=300_000",  # so that frames go to a file
    "ReplayBuffer.batch_size=4",
    "QRDQN.num_quantiles=5",
    "make.kwargs={'max_num_frames_per_episode': 300}",
)
WITH_MEMORY = (
    *(one for one in SHORT[:7] if "update_every" not in one),
    "RecurrentReplayBuffer.batch_size=2",
    "RecurrentReplayBuffer.segment_len=6",
    "RecurrentReplayBuffer.burn_in=2",
    "RecurrentReplayBuffer.memory_limit=300_000",
    "Recurrent.hidden_dim=8",
    "make.kwargs={'frame_stack': 1, 'max_num_frames_per_episode': 250}",
)


@pytest.mark.parametrize(
    ("algo", "config", "bindings"),
    [("cqrdqn", "discrete/atari_qrdqn.gin", SHORT), ("crdqn", "discrete/atari_memory.gin", WITH_MEMORY)],
)
def test_a_run_resumes_to_the_same_bytes(launch, tmp_path, algo, config, bindings):
    """With sticky actions, in mid-game, with frames in a file; then its actor is tested and recorded."""
    env = ("--env", "ALE/Breakout-v5")

    def train(name, epochs, *extra):
        given = ["--config", config, "--gin", *merged(*bindings, f"train.num_epochs={epochs}")]
        place = ["--results", tmp_path / name, "--run_id", 1]
        code, _, err = launch(*env, "--algo", algo, *place, *extra, *given)
        assert code == 0, err
        return tmp_path / name / "ALE-Breakout-v5" / algo / "1"

    whole = train("whole", 2)
    train("halves", 1)
    halves = train("halves", 2, "--resume")
    assert rows(halves) == rows(whole)
    assert (halves / "actor_last.pt").read_bytes() == (whole / "actor_last.pt").read_bytes()
    code, out, err = launch("evaluate", whole, "--episodes", 1)
    assert code == 0 and "return over 1 episode:" in out, err
    code, out, err = launch("collect", *env, "--actor", whole, "--steps", 30, "--out", tmp_path / "games.hdf5")
    assert code == 0 and "30 steps" in out, err
