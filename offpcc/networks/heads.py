"""Heads: what `ActorCritic.heads` gives actors and critics in place of MLPs."""

from typing import Annotated, Any

from offpcc.config.registry import configurable
from offpcc.config.validation import NumParts, Rule, Size, with_parentheses
from offpcc.networks.layers import HiddenLayers


@configurable
class Residual:
    """Residual heads of SimBa, Lee et al. 2024 (arXiv:2410.09754): linear, residual blocks, layer norm, linear.

    A block adds W_2 relu(W_1 norm(x)) to x; W_1 is four times as wide as x. An algorithm's value function has the
    critics' sizes. Initial weights are PyTorch's; the authors' code has orthogonal ones and those of He et al. 2015.

    Args:
        actor_width: width of the actor's blocks.
        actor_blocks: number of the actor's blocks.
        critic_width: width of the critics' blocks.
        critic_blocks: number of each critic's blocks.
    """

    def __init__(
        self,
        *,
        actor_width: Size = 128,
        actor_blocks: NumParts = 1,
        critic_width: Size = 512,
        critic_blocks: NumParts = 2,
    ) -> None:
        self.of_actor = HiddenLayers((actor_width,) * actor_blocks, residual=True)
        self.of_critics = HiddenLayers((critic_width,) * critic_blocks, residual=True)


def _are_heads(value: Any) -> bool:
    return all(isinstance(getattr(value, name, None), HiddenLayers) for name in ("of_actor", "of_critics"))


HeadsChoice = Annotated[Residual, Rule("heads such as @Residual()", _are_heads, with_parentheses)]
