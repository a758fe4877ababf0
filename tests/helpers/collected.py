"""`offpcc collect` in this process, and what it is tested with."""

import functools
from pathlib import Path

import gymnasium
import numpy as np
import torch

import offpcc
from offpcc.algorithms import ALGORITHMS
from offpcc.algorithms.agent import save_actor
from offpcc.cli.collect import record_dataset
from offpcc.envs.make import make
from offpcc.networks import Recurrent

ENV = "pendulum-p-v0"


class Dicing(gymnasium.Env):
    """Draws from everybody's generators, which it should not."""

    observation_space = gymnasium.spaces.Box(-9, 9, (3,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.float32([np.random.random(), torch.rand(()).item(), 0]), {}

    def step(self, action):
        return np.float32([np.random.random(), torch.rand(()).item(), 0]), 0.0, False, False, {}


gymnasium.register("brief-v0", entry_point="offpcc.envs.tasks.pendulum:Pendulum", max_episode_steps=20)
gymnasium.register("dicing-v0", entry_point=Dicing, max_episode_steps=10)


def run(out="data.hdf5", **options):
    """The command, in this process; the file."""
    given = {
        "env": ENV, "actor": "random", "steps": 450, "minari": None, "seed": 0, "deterministic": False,
        "resume": False, "config": None, "device": None, "threads": 1,
    }  # fmt: skip
    if options.get("actor", "random") != "random":
        given["device"] = "cpu"
    code = record_dataset(out=Path(out), **{**given, **options})
    assert code == 0
    return Path(out)


def agent(file, algo="sac", env=ENV, **arguments):
    """An actor that nobody trained, with small networks."""
    example = make(env)
    if algo.startswith("r"):
        arguments["encoder"] = functools.partial(Recurrent, hidden_dim=8, num_layers=1)
    algorithm = ALGORITHMS[algo](example.observation_space, example.action_space, seed=1, hidden_dims=(8,), **arguments)
    save_actor(algorithm, Path(file))
    return str(file)


def always_first(**arguments):
    """A DQN learner of the cart whose best action is always the first."""
    learner = offpcc.DQN("cartpole-v0", hidden_dims=(4,), seed=1, **arguments)
    for network in learner.algorithm.critics.nets:
        network[-1].weight.data.zero_()
        network[-1].bias.data.copy_(torch.tensor([1.0, 0.0]))
    return learner


def unit_actions(data):
    """The actions of all steps as agents learn from them, in [-1, 1]."""
    rows = data.rows()
    return np.concatenate([rows.actions[start : stop - 1] for start, stop in zip(rows.starts, rows.stops, strict=True)])


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
