"""The private parts of PyTorch that this library uses; no other module may use one.

They are faster than anything public. PyTorch `LAST_SEEN` still has them.
"""

import functools

import torch
from torch import nn

from offpcc.utils.version import private_attribute

LAST_SEEN = "2.13.0"
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
