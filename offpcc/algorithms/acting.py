"""How every algorithm acts and is saved: its whole state to go on from, or what acting needs of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.core import Memory, Step, channels_first
from offpcc.learning import RunningNormalization
from offpcc.networks import Encoder, Inputs
from offpcc.networks.encoders import rebuilds
from offpcc.networks.states import keep_rows, map_state
from offpcc.registry import specification

ACTOR_FORMAT = 1
# Arguments that an actor's file leaves out: what only learning reads, and what is described by what it built.
BUILT = {"encoder", "shared_encoder"}
LEARNING_ONLY = {"lr", "actor_lr", "encoder_lr", "alpha_lr", "max_gradient_norm", "augmentation"}


class Acting:
    """What acts, of the parts that `ActorCritic` builds; and what is saved.

    Attributes:
        device: where networks live.
        space_shape: of one observation, as the environment has it.
        memoryless: whether nothing of the past is kept.
        shared_encoder: reads the inputs.
        actor_encoder: reads what the shared one makes of them.
        actor: the policy, over summaries.
        normalization: of observations, if there is any.
    """

    device: torch.device
    space_shape: tuple[int, ...]
    memoryless: bool
    shared_encoder: Encoder
    actor_encoder: Encoder
    actor: nn.Module
    normalization: RunningNormalization | None
    _moody: list[nn.Module]
    _arguments: dict[str, Any]

    # Acting -------------------------------------------------------------------------------------------------

    def choose_action(self, summary: Tensor, deterministic: bool) -> Tensor:
        """Actions (N, 1, A) for the summary (N, 1, H) of `acting_encoders`."""
        raise NotImplementedError

    def acting_encoders(self) -> tuple[nn.Module, ...]:
        """Own encoders whose summaries, joined, `choose_action` reads."""
        return (self.actor_encoder,)

    @torch.no_grad()
    def act(self, step: Step, memory: Memory = None, *, deterministic: bool = False) -> tuple[np.ndarray, Memory]:
        """See `Algorithm.act`."""
        for module in self._moody:
            module.eval()
        inputs = self._inputs(step)
        if memory is not None:
            memory = map_state(lambda part: part.to(self.device), memory)  # a resumed run's comes from a file
            memory = keep_rows(memory, 1.0 - self._tensor(step.is_first))
        encoders = self.acting_encoders()
        shared_state, *states = memory if memory is not None else [None] * (1 + len(encoders))
        features, shared_state = self.shared_encoder(inputs, shared_state)
        inputs = inputs._replace(observation=features)
        read = [encoder(inputs, state) for encoder, state in zip(encoders, states, strict=True)]
        action = self.choose_action(torch.cat([summary for summary, _ in read], -1), deterministic)[:, 0]
        memory = None if self.memoryless else (shared_state, *(state for _, state in read))
        return action.cpu().numpy(), memory

    def _inputs(self, step: Step) -> Inputs:
        observation = np.asarray(step.observation)
        if observation.shape[1:] != self.space_shape:
            raise ValueError(
                f"act got observations of shape {observation.shape}, but this agent sees (N, "
                f"{', '.join(map(str, self.space_shape))}): N environments side by side"
            )
        observation = channels_first(observation, self.space_shape)
        image = observation.dtype == np.uint8
        x = torch.as_tensor(
            np.ascontiguousarray(observation),
            dtype=torch.uint8 if image else torch.float32,
            device=self.device,
        )
        if self.normalization is not None:
            x = self.normalization(x)
        action, reward = self._tensor(step.previous_action), self._tensor(step.previous_reward)
        return Inputs(x.unsqueeze(1), action.unsqueeze(1), reward.unsqueeze(1))

    def _tensor(self, array: Any) -> Tensor:
        return torch.as_tensor(np.asarray(array, np.float32), device=self.device)

    # Saving -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of every attribute that has one."""
        return {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, "state_dict")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)

    def actor_parts(self) -> dict[str, nn.Module]:
        """What `act` uses."""
        parts = {
            "shared_encoder": self.shared_encoder,
            "actor_encoder": self.actor_encoder,
            "actor": self.actor,
            "normalization": self.normalization,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def actor_file(self) -> dict[str, Any]:
        """A saved actor: how to build it, as plain data, and the weights that `act` uses."""
        description = {
            "class": type(self).__name__,
            "arguments": {
                **specification({k: v for k, v in self._arguments.items() if k not in LEARNING_ONLY | BUILT}),
                "device": "cpu",
                "encoder": rebuilds(self.actor_encoder),
                "shared_encoder": rebuilds(self.shared_encoder),
            },
        }
        weights = {
            name: {key: value.cpu().clone() for key, value in part.state_dict().items()}
            for name, part in self.actor_parts().items()
        }
        return {"kind": "actor", "format": ACTOR_FORMAT, "algorithm": description, "weights": weights}
