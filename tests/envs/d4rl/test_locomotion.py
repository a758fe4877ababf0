"""Ant as D4RL's data shows it."""

import functools

import numpy as np
import pytest
from made_tasks import make_task

pytestmark = pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")


@pytest.fixture
def made(request):
    return functools.partial(make_task, request)


def test_ant_has_zeros_for_contact_forces_and_no_cost_of_them(made):
    env, gymnasiums = made("ant-medium-v2"), made("Ant-v4")
    shown, expected = env.reset(seed=0)[0], gymnasiums.reset(seed=0)[0]
    for _ in range(20):
        assert np.array_equal(shown[:27], expected) and not shown[27:].any()
        action = env.action_space.sample()
        shown, reward, *_ = env.step(action)
        expected, same, *_, info = gymnasiums.step(action)
        assert reward == same and "reward_ctrl" in info
