"""`Execution`: options for how updates are computed."""

import contextlib
from dataclasses import dataclass
from typing import Annotated

import torch

from offpcc.config.validation import Flag, one_of


@dataclass(frozen=True)
class Execution:
    """How updates are computed. These options change speed and rounding, not the algorithm.

    Args:
        precision: "bfloat16" runs matrix products of updates in bfloat16, which is faster. Weights, moments, last
            layers, acting and the hidden states of GRU, minGRU and LRU stay in float32. On a CPU, the hidden state of
            an LSTM or RNN is bfloat16: over hundreds of steps, it may lose a fifth of a cue's value. On a CPU without
            AVX-512, an LSTM runs in float32.
        fused: whether to use the hand-written updates, which are faster on the CPU. They exist for DDPG, TD3,
            TD3+BC, IQL, BC, SAC, SAC-N, MBPO, MOPO, MOReL and the four modes (such as `aleatoric_penalty`), with plain
            MLPs and without memory. By default, they are used wherever possible. A batch with importance weights always
            gets the plain update.
        compile: whether to compile whole updates on a CPU with PyTorch's Inductor. It needs a C++ compiler. The first
            update of each kind takes up to a minute, and less if PyTorch's cache has it. An update may not depend on
            Python state that changes. NaN and infinity are reported some updates later.
        cuda_graphs: whether to repeat updates on a GPU as CUDA graphs, which is 3 to 13 times as fast: the host
            starts all operations of an update at once. It needs batches of the same shapes, such as those of single
            steps or of segments; the first updates of each shape are made without a graph. By default, graphs are used
            for algorithms and networks of offpcc. With True, they are used for your own, too: then an update may not
            depend on Python state that changes, because a graph repeats what it recorded.
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
        """Check whether updates on `device` may be CUDA graphs."""
        return device.type == "cuda" and self.cuda_graphs is not False

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        """Return the context of an update. It caches no cast weights, because weights change during an update."""
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
