"""`Execution`: options for how updates are computed."""

import contextlib
import functools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from offpcc.config.validation import Flag, one_of


@dataclass(frozen=True)
class Execution:
    """How updates are computed. These options change speed and rounding, not the algorithm.

    Args:
        precision: "bfloat16" runs matrix products of updates in bfloat16, which is faster. Weights, moments, last
            layers, acting and the hidden states of GRU, minGRU and LRU stay in float32. On a CPU, an LSTM's hidden
            state is bfloat16: over hundreds of steps, it may lose a fifth of a cue's value.
        fused: whether to use the hand-written updates, which are faster on the CPU. They exist for DDPG, TD3,
            TD3+BC, IQL, BC, SAC, SAC-N, MBPO, MOPO, MOReL and the four modes (such as `aleatoric_penalty`), with plain
            MLPs and without memory. By default, they are used wherever possible. A batch with importance weights always
            gets the plain update.
        compile: whether to compile the losses with `torch.compile`. It needs a C++ compiler, and the first updates take
            a minute or more. Encoders, optimizers and targets are not compiled.
        cuda_graphs: whether to repeat updates on a GPU as CUDA graphs, which is 3 to 13 times as fast: the host
            starts all operations of an update at once. It needs batches of the same shapes, such as those of single
            steps or of segments; the first updates of each shape are made without a graph. By default, graphs are used
            for algorithms and networks of offpcc without `compile`. With True, they are used for your own, too: then an
            update may not depend on Python state that changes, because a graph repeats what it recorded.
        nonfinite: what to do if an update has NaN or infinity. "raise" raises an error that names the first such
            tensor. "skip" skips the update; its statistics are NaN, except `skipped`, which is 1. In both cases, no
            weight changes from the first such tensor on. A resumed run may use the other setting.
    """

    precision: Annotated[str, one_of(("float32", "bfloat16"))] = "float32"
    fused: Flag | None = None
    compile: Flag = False
    cuda_graphs: Flag | None = None
    nonfinite: Annotated[str, one_of(("raise", "skip"))] = "raise"

    def may_use_graphs(self, device: torch.device) -> bool:
        """Check whether updates on `device` may be CUDA graphs; with `compile`, only if the user asked for them."""
        is_off = self.compile if self.cuda_graphs is None else not self.cuda_graphs
        return device.type == "cuda" and not is_off

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        """Return the context of an update. It caches no cast weights, because weights change during an update."""
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def compile_losses(agent: Any) -> None:
    """Replace the agent's losses, which are functions of summaries and batch, by compiled ones if asked."""
    for name in loss_names(agent.__class__) if agent.execution.compile else ():
        if name not in (*vars(agent), *agent.uncompiled_losses):
            setattr(agent, name, torch.compile(getattr(agent, name)))


@functools.cache
def loss_names(cls: Hashable) -> tuple[str, ...]:
    """Return the names of the class's methods that are losses of an optimizer."""
    return tuple(name for name in dir(cls) if name.endswith("_loss") and name != "td_loss")
