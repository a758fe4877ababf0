"""CartPole: keep a pole upright on a cart, by pushing the cart to the left or to the right (Barto et al. 1983).

The views hide the velocities, or the positions. Without memory, an agent then sees not which way the pole falls.
"""

from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from offpcc.envs.registration import Environment, keep
from offpcc.envs.rendering import draw_without_screen


class CartPole(CartPoleEnv):
    """Gymnasium's CartPole, which also renders ``rgb_array`` frames without a screen.

    Observation, float32 (4,): the cart's position in m and velocity in m/s, the pole's angle in rad and velocity in
    rad/s.
    Action, Discrete(2): push the cart to the left (0) or to the right (1).
    Reward: 1 per step. An episode ends when the pole leans by more than 12 degrees or the cart is 2.4 m away.

    Args:
        render_mode: None, "rgb_array" or "human".
    """

    def __init__(self, render_mode: str | None = None, **kwargs: Any) -> None:
        draw_without_screen(render_mode)
        super().__init__(render_mode=render_mode, **kwargs)


_FULL = Environment(
    name="cartpole-v0",
    family="cartpole",
    hidden="nothing",
    entry_point="offpcc.envs.tasks.cartpole:CartPole",
    max_episode_steps=200,
    observation_shape=(4,),
    action_size=2,
    is_discrete=True,
)
ENVIRONMENTS = (
    _FULL,
    _FULL.variant("-p", "velocities", (2,), keep(0, 2)),
    _FULL.variant("-v", "positions", (2,), keep(1, 3)),
)
