"""Learning, on tasks that only the right thing can solve."""

import functools

import gymnasium
import numpy as np
import pytest

from offpcc.algorithms import ALGORITHMS
from offpcc.algorithms.variants import TABLE
from offpcc.config import loading
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.networks import Convolutional, Recurrent
from offpcc.networks.cells import CELLS
from offpcc.training.build import build
from offpcc.training.evaluation import Evaluation
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import Loggers
from offpcc.training.run_fns import train

LONG = (pytest.mark.slow, pytest.mark.learning)


def some_fast(names, fast):
    """All of `names`, those that are not in `fast` marked slow."""
    return [name if name in fast else pytest.param(name, marks=LONG) for name in names]


ONLINE = [name for name, entry in TABLE.items() if entry.algorithm in ("ddpg", "td3", "sac")]
MEMORYLESS = [name for name in ONLINE if "r" not in name]
WITH_MEMORY = [name for name in ONLINE if "r" in name]


class Cue(gymnasium.Env):
    """A sign is shown at the first step; at the last, the reward is the action times the sign.

    Without a memory the best mean return is 0; with one it is 1.
    """

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length=5, image=False):
        self.length, self.image = length, image
        shape, high, dtype = ((1, 12, 12), 255, np.uint8) if image else ((2,), 1.0, np.float32)
        self.observation_space = gymnasium.spaces.Box(0 if image else -1.0, high, shape, dtype)

    def _observe(self):
        shown = self.sign if self.t == 0 else 0.0
        if not self.image:
            return np.array([shown, self.t == self.length - 1], np.float32)
        frame = np.full((1, 12, 12), 128, np.uint8)
        frame[:, :, :6] = 128 + int(100 * shown)
        frame[:, :4] = 255 * (self.t == self.length - 1)
        return frame

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.sign = 0, float(self.np_random.choice([-1.0, 1.0]))
        return self._observe(), {}

    def step(self, action):
        last = self.t == self.length - 1
        reward = self.sign * float(np.clip(action[0], -1.0, 1.0)) if last else 0.0
        self.t += 1
        return self._observe(), reward, last, False, {}


def learn_cue(algo, num_steps, length=5, seed=1, cell="lstm"):
    """The mean return of 40 test episodes after `num_steps` environment steps."""
    env = Cue(length, image=algo.startswith("c"))
    images = functools.partial(Convolutional, channels=(8,), kernels=(4,), strides=(4,), feature_dim=16)
    memory = functools.partial(Recurrent, cell=cell, hidden_dim=16, num_layers=1)
    options = {}
    if algo.endswith("_s"):
        extractor = {"feature_extractor": images} if algo.startswith("c") else {}
        options["shared_encoder"] = functools.partial(memory, **extractor)
    else:
        options |= {"shared_encoder": images} if algo.startswith("c") else {}
        options |= {"encoder": memory} if "r" in algo else {}
    options |= {} if "sac" in algo else {"action_noise": 0.3}
    options |= {"alpha": 0.1, "alpha_lr": 3e-3} if "sac" in algo else {}
    algorithm = ALGORITHMS[algo](
        env.observation_space, env.action_space, seed=seed, lr=3e-3, polyak=0.95, gamma=0.9, hidden_dims=(32,),
        augmentation=None, **options,
    )  # fmt: skip
    algorithm.augmentation = None  # a shift would move the cue
    kind = ReplayBuffer if algorithm.memoryless else RecurrentReplayBuffer
    buffer = kind(env.observation_space, env.action_space, batch_size=64 if algorithm.memoryless else 32, seed=seed)
    interaction = Interaction(LocalEnvironments(lambda: env, [seed]), algorithm, buffer, seed=seed)
    tests = Evaluation(lambda: Cue(length, image=algo.startswith("c")))
    train(
        algorithm, buffer, interaction, None, Loggers([]),
        num_epochs=1, num_steps_per_epoch=num_steps, update_after=200, updates_per_step=0.5,
    )  # fmt: skip
    return np.mean([result.episode_return for result in tests.run(algorithm, 40, 40)])


@pytest.mark.parametrize("algo", some_fast(WITH_MEMORY, {"rsac", "crtd3_s"}))
def test_agents_with_memory_remember_a_cue(algo):
    """In one of three runs: deterministic policies may come to rest at the border, where nothing moves them."""
    assert any(learn_cue(algo, 2_000, seed=seed) > 0.8 for seed in (1, 2, 3))


STEPS = {"gru": 500, "mingru": 800, "lru": 500, "gpt": 500, "concat": 500}  # minGRU's gates are slow at the start


def test_all_other_memories_are_taught():
    assert STEPS.keys() == CELLS.keys() - {"lstm", "rnn"}


@pytest.mark.parametrize("cell", STEPS)
def test_agents_remember_a_cue_by_any_memory(cell):
    assert any(learn_cue("rsac_s", STEPS[cell], seed=seed, cell=cell) > 0.8 for seed in (1, 2, 3))


@pytest.mark.parametrize("algo", some_fast(MEMORYLESS, {"sac"}))
def test_agents_without_memory_cannot(algo):
    assert abs(learn_cue(algo, 2_000)) < 0.35


@pytest.mark.slow
@pytest.mark.parametrize("algo", some_fast(MEMORYLESS, {"ddpg", "ctd3"}))
def test_agents_without_memory_learn_what_they_see(algo):
    assert learn_cue(algo, 2_000, length=1) > 0.8


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_quickstart_swings_up_a_pendulum_whose_velocity_it_cannot_see(seed):
    loading.load_gin_config("configs/quickstart.gin", [])
    learner = build("pendulum-p-v0", "rsac", seed=seed)
    learner.train()
    results = learner.tests.run(learner.algorithm, 100, 20)
    assert np.mean([result.episode_return for result in results]) > -200.0


@pytest.mark.slow
@pytest.mark.learning
def test_the_same_budget_without_memory_does_not():
    loading.load_gin_config("configs/quickstart.gin", [])
    learner = build("pendulum-p-v0", "sac", seed=1)
    learner.train()
    results = learner.tests.run(learner.algorithm, 100, 20)
    assert np.mean([result.episode_return for result in results]) < -300.0
