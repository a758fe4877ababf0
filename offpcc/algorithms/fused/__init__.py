"""Updates of memoryless agents written out by hand, for the CPU: made where they fit, unless `fused = False`.

The plain update of an algorithm's page is the reference, and the tests hold one against the other. What it does with
few numbers it does here too (batches, targets, Adam, Polyak averages); the passes of the networks that learn are made
in place and differentiated in closed form.
"""

from offpcc.algorithms.fused.base import FusedUpdate
from offpcc.algorithms.fused.deterministic import FusedBC, FusedDDPG, FusedTD3, FusedTD3BC
from offpcc.algorithms.fused.iql import FusedIQL
from offpcc.algorithms.fused.sac import FusedSAC

__all__ = ["FusedBC", "FusedDDPG", "FusedIQL", "FusedSAC", "FusedTD3", "FusedTD3BC", "FusedUpdate"]
