"""The private parts of PyTorch that this library uses; no other module may use one.

They are faster than anything public. PyTorch `LAST_SEEN` still has them.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from offpcc.utils import signals
from offpcc.utils.version import private_attribute

LAST_SEEN = "2.15.0"
_private = functools.partial(private_attribute, "torch", LAST_SEEN)

# One operation for a list of tensors. `torch.optim` has them as its option `foreach`.
foreach_add = _private(torch, "_foreach_add")
foreach_add_ = _private(torch, "_foreach_add_")
foreach_copy_ = _private(torch, "_foreach_copy_")
foreach_lerp_ = _private(torch, "_foreach_lerp_")
foreach_mul = _private(torch, "_foreach_mul")
foreach_mul_ = _private(torch, "_foreach_mul_")
foreach_norm = _private(torch, "_foreach_norm")
foreach_sub = _private(torch, "_foreach_sub")
# One step of Adam for a list of tensors: `torch.optim.Adam(fused=True)` without the overhead of its class.
fused_adam_ = _private(torch, "_fused_adam_")
fused_adamw_ = _private(torch, "_fused_adamw_")  # of `torch.optim.AdamW(fused=True)`
# Sets a flag on the device if a tensor has NaN or infinity: the check of `torch.amp.GradScaler`.
find_nonfinite_ = _private(torch, "_amp_foreach_non_finite_check_and_unscale_")
# Layers that behave differently in train mode.
TRAIN_MODE_LAYERS = (_private(nn.modules.dropout, "_DropoutNd"), _private(nn.modules.batchnorm, "_NormBase"))
# Attributes with the hooks of an `nn.Module`. A tensor has `_backward_hooks`, too.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CONTENTS = ("_modules", "_parameters")
for _name in (*HOOKS, *CONTENTS):
    _private(nn.Identity(), _name)
# The dispatcher's usual settings: see `plain_dispatch`.
_force_dispatch = _private(torch._C, "_ForceDispatchKeyGuard")
_USUAL_DISPATCH = [_private(torch._C, f"_dispatch_tls_local_{name}_set")() for name in ("include", "exclude")]


_COMPILING = threading.Lock()  # the compiler has global state


class _Tracing(threading.local):
    is_on = False
    parts: list[Any]  # of the program that is recorded or that runs


_tracing = _Tracing()


def is_traced() -> bool:
    """Check whether this thread's operations are recorded, for an exported program or a compiled update."""
    return _tracing.is_on or torch.compiler.is_exporting()


def is_compiling() -> bool:
    """Check whether `compile_operations` records this thread's operations."""
    return _tracing.is_on


def add_part(part: Any) -> int:
    """Add an object to the program that `compile_operations` records. Return its number for `part_of_program`.

    Each run of the program ends with a call of its method `free`.
    """
    _tracing.parts.append(part)
    return len(_tracing.parts) - 1


def part_of_program(number: int) -> Any:
    """Return an object of the program that this thread records or runs; see `add_part`."""
    return _tracing.parts[number]


@contextmanager
def plain_dispatch() -> Iterator[None]:
    """Compute as usual inside of an operation of our own: with gradients, and not as a part of what calls it.

    A program's first call checks operations in a dispatch mode, in which complex numbers are not conjugated.
    """
    with _force_dispatch(*_USUAL_DISPATCH):
        yield


@contextmanager
def outside_of_trace() -> Iterator[None]:
    """Compute for real inside of `compile_operations`."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        yield


def compile_operations(function: Callable[[], Any]) -> Callable[[], Any]:
    """Record the operations of `function`, which are not computed, and compile them with PyTorch's Inductor.

    Ctrl-C has to wait, because it would end the compiler. The result reads and writes the same tensors as `function`,
    and returns what `function` returned.
    """
    with _COMPILING, signals.blocked():
        return _compiled(function)


def _compiled(function: Callable[[], Any]) -> Callable[[], Any]:
    # They take a second to import, and only compiled updates need them.
    from torch._functorch import config as functorch_config
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Inductor has no code for the norms of a list: it would warn, and compute them outside of its program.
    norms: Any = {torch.ops.aten._foreach_norm.Scalar: lambda given: [*map(torch.linalg.vector_norm, given)]}
    parts: list[Any] = []
    _tracing.is_on, _tracing.parts = True, parts
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            module = make_fx(function, norms, _allow_non_fake_inputs=True)()
    finally:
        _tracing.is_on = False
    tensors: dict[int, Tensor] = {}
    inputs: dict[int, Any] = {}
    for node in [node for node in module.graph.nodes if node.op == "get_attr"]:  # the tensors that exist outside of it
        tensor = getattr(module, node.target)
        if id(tensor) not in inputs:
            with module.graph.inserting_before(next(iter(module.graph.nodes))):
                inputs[id(tensor)] = module.graph.placeholder(f"given_{len(inputs)}")
            inputs[id(tensor)].meta, tensors[id(tensor)] = node.meta, tensor.detach()
        node.replace_all_uses_with(inputs[id(tensor)])
        module.graph.erase_node(node)
    module.recompile()
    given = [*tensors.values()][::-1]  # each placeholder came before the earlier ones
    # With an environment of shapes, here of constant ones, Inductor looks for the program in its cache. AOTAutograd's
    # cache cannot hold it, and warns.
    context = TracingContext(FakeTensorMode(shape_env=ShapeEnv(assume_static_by_default=True)))
    settings = functorch_config.patch(enable_autograd_cache=False)
    uncast = torch.autocast("cpu", enabled=False)  # the recorded operations include the casts
    with torch.no_grad(), config.patch(cpp_wrapper=True), settings, tracing(context), uncast:
        compiled: Any = compile_fx(module, given)

    @torch.no_grad()
    def run() -> Any:
        _tracing.parts = parts
        try:
            with uncast:
                return compiled(*given)
        finally:
            for part in parts:
                part.free()

    return run
