"""Fused updates of memoryless agents on the CPU, and the table that says which algorithms have one.

The plain update of an algorithm's page is the reference, and the tests hold one against the other. What it does with
few numbers it does here too (batches, targets, Adam, Polyak averages); the passes of the networks that learn are made
in place and differentiated in closed form.
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

# A change to the losses of one of these pages is made in its fused update, too.
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
    algorithm.fused_methods = {name: getattr(algorithm, name) for name in fused.replaced_methods}
