"""Noise of deterministic policies, which DDPG, its children and behaviour cloning have from one parent."""

import gin
import numpy as np
import pytest
from references import ACTION_DIM, SPACES

from offpcc.algorithms import ALGORITHMS
from offpcc.config import loading
from offpcc.core import Step
from offpcc.utils.errors import UserError

FAMILY = ["ddpg", "td3", "td3_bc", "bc", "rdpg", "rtd3_s", "rtd3_bc", "rbc"]


def spread(agent, deterministic=False):
    """Standard deviation of actions for one observation, none of them at the border."""
    num = 2_000
    step = Step(np.zeros((num, 3), np.float32), np.zeros((num, ACTION_DIM)), np.zeros((num, 1)), np.ones(num))
    return agent.act(step, deterministic=deterministic)[0].std(0)


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        ({}, dict.fromkeys(FAMILY, 0.1)),
        ({"DeterministicPolicy": 0.02}, dict.fromkeys(FAMILY, 0.02)),
        ({"DDPG": 0.02}, {"bc": 0.1, "rbc": 0.1, **dict.fromkeys(FAMILY[:3] + FAMILY[4:7], 0.02)}),
        ({"DDPG": 0.02, "TD3": 0.04, "TD3BC": 0.06}, {"ddpg": 0.02, "td3": 0.04, "td3_bc": 0.06, "rtd3_s": 0.04}),
        ({"BC": 0.02}, {"bc": 0.02, "rbc": 0.02, "ddpg": 0.1, "td3_bc": 0.1}),
        ({"BC": 0.02, "RecurrentBC": 0.04}, {"bc": 0.02, "rbc": 0.04}),
    ],
    ids=str,
)
def test_bindings_of_the_noise_reach_the_class_and_its_children(bindings, expected):
    loading.load_gin_config(None, [f"{name}.action_noise={value}" for name, value in bindings.items()])
    gin.bind_parameter("Recurrent.hidden_dim", 4)
    for name, noise in expected.items():
        agent = ALGORITHMS[name](*SPACES, hidden_dims=(4,))
        assert agent.action_noise == noise
        assert spread(agent) == pytest.approx(noise, rel=0.1)
        assert spread(agent, deterministic=True) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("name", FAMILY)
def test_noisy_actions_stay_in_the_box(name):
    agent = ALGORITHMS[name](*SPACES, hidden_dims=(4,), action_noise=5.0)
    step = Step(np.zeros((50, 3), np.float32), np.zeros((50, ACTION_DIM)), np.zeros((50, 1)), np.ones(50))
    assert np.abs(agent.act(step)[0]).max() == 1.0


def test_noise_is_refused_where_it_makes_no_sense():
    with pytest.raises(UserError, match=r"BC\.action_noise is -1"):
        ALGORITHMS["bc"](*SPACES, action_noise=-1.0)
