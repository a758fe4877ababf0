"""Fused updates of memoryless agents on the CPU, and the table of algorithms that have one.

The plain update in each algorithm's module is the reference, and the tests compare the two. Both use the same code for
batches, targets, Adam and Polyak averages. Fused updates use hand-written gradients instead of autograd, and write the
results of forward and backward passes to memory that they allocate once.
"""

from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.bc import BC
from offpcc.algorithms.ddpg import DDPG
from offpcc.algorithms.fused.base import FusedUpdate
from offpcc.algorithms.fused.deterministic import FusedBC, FusedDDPG, FusedTD3, FusedTD3BC
from offpcc.algorithms.fused.iql import FusedIQL
from offpcc.algorithms.fused.sac import FusedSAC
from offpcc.algorithms.iql import IQL
from offpcc.algorithms.sac import SAC
from offpcc.algorithms.td3 import TD3
from offpcc.algorithms.td3_bc import TD3BC

__all__ = ["FUSED_UPDATES", "FusedBC", "FusedDDPG", "FusedIQL", "FusedSAC", "FusedTD3", "FusedTD3BC", "FusedUpdate"]

# If you change the losses of one of these algorithms, change its fused update, too.
FUSED_UPDATES: dict[type[ActorCritic], type[FusedUpdate]] = {
    DDPG: FusedDDPG,
    TD3: FusedTD3,
    SAC: FusedSAC,
    BC: FusedBC,
    TD3BC: FusedTD3BC,
    IQL: FusedIQL,
}
for algorithm, fused in FUSED_UPDATES.items():
    algorithm.fused_update = fused
    algorithm.fused_methods = {name: getattr(algorithm, name, None) for name in fused.replaced_methods}
