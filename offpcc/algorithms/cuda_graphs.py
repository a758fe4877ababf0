"""`GraphedUpdates`: records updates and repeats them, on a GPU as CUDA graphs, on a CPU as compiled programs.

An update of small networks has hundreds of short operations, and the host takes longer to start each of them than the
GPU takes to compute it. A CUDA graph records them once and repeats them by one call (`torch.cuda.graph`). It repeats
the same operations on the same memory. So there is one graph for each shape of batches. Updates with and without a step
of the actor have different graphs, too.

On a CPU, PyTorch's Inductor compiles the operations of an update to one program, which computes short operations
together. It repeats them on the same memory, as a CUDA graph does.
"""

import gc
import os
import re
import shutil
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offpcc.algorithms.components import RunningNormalization, Temperature
from offpcc.algorithms.optim import Optimizer, ParameterGroup, PolyakAverage
from offpcc.core import Batch, Stats
from offpcc.networks.noise import Fill, Noise
from offpcc.utils import torch_private
from offpcc.utils.errors import UserError, first_line, print_to_stderr
from offpcc.utils.system import GPU_LOCK
from offpcc.utils.torch_private import HOOKS

WARM_UP = 3  # plain updates of a kind before its graph: libraries allocate memory and choose kernels in them
MOST_GRAPHS, MOST_KINDS = 64, 256
VALUES = (bool, int, float, str, type(None), np.generic)
WITH_NUMBERS = (Optimizer, Temperature, RunningNormalization, PolyakAverage)  # parts whose numbers an update reads
# Attributes that no update reads: those of acting, the arguments of an actor file, and the graphs.
UNREAD = {
    *("_mirror", "_host_copy", "_test_draws", "test_epsilon", "epsilon_ladder", "noise_scale"),
    *("_arguments", "_graphed"),
}
COMPILER_ERROR = re.compile(r"\berror: ")  # in a line of a C++ compiler or a linker
MOST_COMPILED = 16  # kinds of updates for each shape of batches; each takes 10 seconds or more to compile
Recorded = tuple[Tensor, tuple[str, ...], dict[str, Tensor]]  # numbers, their names, and other tensors
Capture = Callable[..., tuple[Callable[[], None], Any]]


def capture(function: Callable[[], Any], noise: Noise, pool: Any) -> tuple[Callable[[], None], Any]:
    """Record the operations of `function` on the GPU. Return what repeats them, and the result, which they overwrite.

    Args:
        function: it is called once; its operations are recorded and not computed.
        noise: gives its random numbers. Each repetition draws new ones, as a call of `function` would.
        pool: memory that graphs may share, because one of them is repeated at a time.
    """
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(noise.generator)
    with GPU_LOCK:
        collects = gc.isenabled()
        gc.collect()
        gc.disable()  # to free an older graph during a recording would end it
        try:
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = function()
        finally:
            if collects:
                gc.enable()
    return graph.replay, result


def compiled(function: Callable[[], Recorded], noise: Noise, pool: Any) -> tuple[Callable[[], None], Recorded]:
    """Compile the operations of `function` for the CPU. Arguments and results: see `capture`."""
    draws: list[tuple[Fill, Tensor]] = []
    recorded: list[Recorded] = []

    def on_draw(fill: Fill, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        with torch_private.outside_of_trace():
            draws.append((fill, torch.zeros(shape, dtype=dtype)))
        return draws[-1][1]

    def flat() -> list[Tensor]:
        recorded.append(function())
        return [recorded[0][0], *recorded[0][2].values()]

    noise.on_draw = on_draw
    try:
        run = torch_private.compile_operations(flat)
    finally:
        noise.on_draw = None
    numbers, names, others = recorded[0]
    made = [torch.zeros(x.shape, dtype=x.dtype) for x in (numbers, *others.values())]

    def start() -> None:
        for fill, drawn in draws:
            fill(drawn)
        torch_private.foreach_copy_(made, run())

    return start, (made[0], names, dict(zip(others, made[1:], strict=True)))


def check_compiler(name: str, device: torch.device) -> None:
    """Raise if `compiled` cannot work here: the device is no CPU, or there is no C++ compiler.

    Args:
        name: the setting that asks for it.
        device: device of the networks.
    """
    compiler = os.environ.get("CXX", "g++").split(" ")[0]  # the one that PyTorch calls
    if device.type != "cpu":
        raise UserError(
            f"{name} is True, but the device is {device}, and compiled updates are for a CPU; remove this setting"
        )
    path = shutil.which(compiler)
    if path is None:
        raise UserError(
            f"{name} is True, but there is no C++ compiler {compiler}; install it (apt install g++), name another one "
            f"in the environment variable CXX, or remove this setting"
        )


class GraphedUpdates:
    """Makes the updates of one agent, and repeats them as CUDA graphs or as compiled programs.

    A copy of the agent records its own.

    Args:
        is_wanted: whether the user asked for graphs. Else agents with code of the user's have none.
        capture: records a function: `capture`, or `compiled`. Tests give another one.

    Attributes:
        is_on: whether graphs are used; None before the first update.
    """

    def __init__(self, is_wanted: bool, capture: Capture = capture) -> None:
        self.is_wanted, self.capture, self.compiles = is_wanted, capture, capture is compiled
        self.is_on: bool | None = True if is_wanted else None
        self.graphs: dict[tuple[Hashable, ...], UpdateGraph] = {}
        self.seen: dict[Hashable, int] = {}  # number of updates of each kind without a graph
        # A compiled update rounds otherwise than a plain one, so a resumed run may not begin with plain ones.
        self.warm_up = 0 if self.compiles else WARM_UP
        self.pool: Any = None  # memory that all graphs share
        self.has_told = self.is_full = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without graphs, which refer to the memory of this agent."""
        return {"is_wanted": self.is_wanted, "capture": compiled if self.compiles else capture}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy."""
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, agent: Any, batch: Batch) -> Stats:
        """Do what the agent's `inner_update` does."""
        if self.is_on is None:
            self.is_on = has_known_code(agent)
        if not self.is_on or agent.nonfinite_guard.is_search:
            return agent.inner_update(batch)  # type: ignore[no-any-return]
        if self.compiles and not agent.memoryless:
            batch = batch._replace(complete=False)  # most batches of sequences are not, so all have one program
        kind = update_kind(agent, batch)
        graph = self.graphs.get(kind)
        if graph is None:
            if self.compiles and sum(other[0] == kind[0] for other in self.graphs) == MOST_COMPILED:
                raise UserError(
                    f"{type(agent).__name__}.compile is True, but there are more than {MOST_COMPILED} kinds of updates "
                    f"for batches of one shape: they differ in a number of the algorithm, such as one that decays; "
                    f"remove this setting"
                )
            if len(self.seen) == MOST_KINDS:
                self._forget(type(agent).__name__)
            self.seen[kind] = self.seen.get(kind, 0) + 1
            may_record = self.seen[kind] > self.warm_up and self._may_record(agent)
            if not may_record:
                return agent.inner_update(batch)  # type: ignore[no-any-return]
            if self.pool is None and agent.device.type == "cuda":
                self.pool = torch.cuda.graph_pool_handle()
            graph = self.graphs[kind] = UpdateGraph(agent, batch, self.capture, self.pool)
        return graph.replay(agent, batch)

    def _may_record(self, agent: Any) -> bool:
        """Check whether there may be one more graph. The agent may have changed since its first update."""
        self.is_on = self.is_on and (self.is_wanted or has_known_code(agent))
        if not self.is_on or self.is_full:
            return False
        # There are many, such as one for each value of a coefficient that falls: wait longer. Compiled updates cannot,
        # because a plain update rounds otherwise; `__call__` limits their kinds.
        if len(self.graphs) == MOST_GRAPHS and not self.compiles:
            self.graphs, self.seen, self.pool = {}, {}, None
            self.warm_up *= 8
            return False
        if not has_room(agent.device):
            self.is_full = True
            print_to_stderr(
                f"the GPU has little free memory, so {type(agent).__name__} makes further kinds of updates without "
                f"CUDA graphs, which takes longer"
            )
        return not self.is_full

    def _forget(self, name: str) -> None:
        """Forget the kinds so far; tell once if none of them was repeated."""
        self.seen = {}
        if self.is_wanted and not self.graphs and not self.has_told:
            self.has_told = True
            print_to_stderr(
                f"{name}.cuda_graphs is True, but no update is like another one, so none was repeated: {MOST_KINDS} "
                f"updates differed in the shape of the batch, or in a number of the algorithm, such as one that decays"
            )


class UpdateGraph:
    """One recorded update.

    Args:
        agent: the agent.
        batch: gives the shapes.
        capture: see `GraphedUpdates`.
        pool: the graph's memory.
    """

    def __init__(self, agent: Any, batch: Batch, capture: Capture, pool: Any) -> None:
        copies = (x.to(agent.device, copy=True) if isinstance(x, Tensor) else x for x in batch)
        self.batch = Batch(*copies)  # type: ignore[arg-type]
        self.inputs = [x for x in self.batch if isinstance(x, Tensor)]
        self.held = [*read_attributes(agent)]  # alive with the graph, so that no new object gets one of their ids
        optimizers = [part for part in agent.stateful_parts().values() if isinstance(part, Optimizer)]
        counts = {optimizer: optimizer.num_updates for optimizer in optimizers}
        scheduled = [group for optimizer in optimizers for group in optimizer.groups if callable(group.rate)]
        for group in scheduled:  # the graph reads the rate there, and each repetition writes it first
            group.device_rate = torch.zeros((), device=agent.device)

        def update() -> tuple[Tensor, tuple[str, ...], dict[str, Tensor]]:
            stats = agent.inner_update(self.batch)
            numbers = {name: value for name, value in stats.items() if not value.dim()}
            others = {name: value for name, value in stats.items() if value.dim()}
            return torch.stack([value.float() for value in numbers.values()]), tuple(numbers), others

        how, option = "recorded as a CUDA graph", "cuda_graphs"
        errors: type[Exception] = RuntimeError
        if capture is compiled:
            how, option, errors = "compiled", "compile", Exception
        try:
            self.start, (self.numbers, self.names, self.others) = capture(update, agent.noise, pool)
            self._note_steps(agent, counts)
        except UserError:
            raise
        except errors as error:  # after one of a CUDA graph, PyTorch's generators cannot be used any more
            remedy = f"bind ActorCritic.{option} = False"
            reason = next((line.strip() for line in str(error).splitlines() if COMPILER_ERROR.search(line)), "")
            if reason:
                remedy = f"correct the C++ compiler's installation, name another compiler by CXX, or {remedy}"
            raise UserError(
                f"an update of {type(agent).__name__} cannot be {how} ({reason or first_line(error)}); {remedy}"
            ) from error
        finally:  # recording computes nothing
            for optimizer, number in counts.items():
                optimizer.num_updates = number
            for group in scheduled:
                group.device_rate = None
            for parameter in (one for optimizer in optimizers for one in optimizer.parameters):
                parameter.grad = None  # it is memory of the graphs, which other graphs overwrite

    def _note_steps(self, agent: Any, counts: dict[Optimizer, int]) -> None:
        """Store the steps of the optimizers in the recording, before which they had made so many updates."""
        self.steps: dict[Optimizer, int] = {}  # number of steps of each optimizer in the update
        # Groups with a schedule, the rate on the device, and its argument: an optimizer's count plus a number.
        self.schedules: list[tuple[ParameterGroup, Tensor, Optimizer, int]] = []
        for optimizer, number in counts.items():
            if optimizer.num_updates > number:
                self.steps[optimizer] = optimizer.num_updates - number
                counting, shift = optimizer, 0
                if optimizer.given_count is not None:  # by the critics' count
                    counting = agent.critic_optimizer
                    shift = optimizer.given_count - counts[counting]
                own = [group for group in optimizer.groups if group.device_rate is not None]
                self.schedules += [(group, group.device_rate, counting, shift) for group in own]  # type: ignore[misc]

    def replay(self, agent: Any, batch: Batch) -> Stats:
        """Make the update with this batch."""
        torch_private.foreach_copy_(self.inputs, [x for x in batch if isinstance(x, Tensor)])
        for group, device_rate, optimizer, shift in self.schedules:
            group.set_rate(optimizer.num_updates + shift)
            device_rate.fill_(group.latest_rate)
        self.start()
        agent.nonfinite_guard.note_steps(self.steps)
        for optimizer, number in self.steps.items():
            optimizer.num_updates += number
        numbers = dict(zip(self.names, self.numbers.clone().unbind(), strict=True))
        return numbers | {name: value.clone() for name, value in self.others.items()}


def has_known_code(agent: Any) -> bool:
    """Check whether the code of the agent and of its parts is of this library or of PyTorch."""
    parts = [*vars(agent).values()]
    modules = [module for part in parts if isinstance(part, nn.Module) for module in part.modules()]
    kinds = {type(agent), *map(type, modules)}
    names = {kind.__module__ for kind in kinds}
    names |= {
        getattr(part, "__module__", None) or "" for part in parts if callable(part) and not isinstance(part, nn.Module)
    }
    weights = (weight for module in modules for weight in module.parameters(recurse=False))
    is_changed = any("forward" in vars(module) or any(getattr(module, kind) for kind in HOOKS) for module in modules)
    is_changed = is_changed or any(weight._backward_hooks for weight in weights)
    return not is_changed and all(name.startswith(("offpcc.", "torch.")) for name in names)


def has_room(device: torch.device) -> bool:
    """Check whether a GPU has twice the memory that the largest update so far needed: a recording that fails is fatal.

    Memory that PyTorch keeps for later use counts as free.
    """
    if device.type != "cuda":
        return True
    used = torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - used
    return free >= 2 * (torch.cuda.max_memory_allocated(device) - used)


def read_attributes(agent: Any) -> Iterator[Any]:
    """Yield the values of the agent's attributes that an update may read."""
    return (value for name, value in vars(agent).items() if name not in UNREAD)


def update_kind(agent: Any, batch: Batch) -> tuple[Hashable, ...]:
    """Return what a graph of an update depends on: the shapes of the batch, the agent's attributes and the phase.

    An attribute counts by its value if it is a number or text, such as a coefficient that decays. Else it counts by its
    identity: a network that is replaced has other memory. Some parts have numbers of their own, see `numbers_of`.
    """
    shapes = tuple((x.shape, x.dtype) if isinstance(x, Tensor) else x for x in batch)
    read = [*read_attributes(agent)]
    attributes = tuple([value if isinstance(value, VALUES) else id(value) for value in read])
    numbers = tuple([numbers_of(value) for value in read if isinstance(value, WITH_NUMBERS)])
    return shapes, attributes, numbers, agent.update_phase()


def numbers_of(part: Any) -> tuple[Hashable, ...]:
    """Return the numbers of a part that a user may change between updates, such as a learning rate in a callback.

    For an optimizer, they are its settings, and which weights are trained and where they are.
    """
    if isinstance(part, Optimizer):
        rates = [None if callable(group.rate) else group.rate for group in part.groups]
        are_trained = [weight.requires_grad for weight in part.parameters]
        return part.max_grad_norm, *rates, *are_trained, *map(Tensor.data_ptr, part.parameters)
    return tuple([value for name, value in vars(part).items() if name != "training" and isinstance(value, VALUES)])
