"""Algorithms by name: c = convolutional, r = recurrent, _s = one encoder shared by actor and critics.

From the names of algorithms to their classes.
"""

from __future__ import annotations

import difflib

from offpcc.algorithms import variants
from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.bc import BC
from offpcc.algorithms.bcq import BCQ
from offpcc.algorithms.cql import CQL
from offpcc.algorithms.ddpg import DDPG
from offpcc.algorithms.iql import IQL
from offpcc.algorithms.sac import SAC
from offpcc.algorithms.td3 import TD3
from offpcc.algorithms.td3_bc import TD3BC
from offpcc.config.registry import REGISTRY
from offpcc.utils.errors import UserError

__all__ = ["ALGORITHMS", "BC", "BCQ", "CQL", "DDPG", "IQL", "SAC", "TD3", "TD3BC", "ActorCritic"]


ALGORITHMS: dict[str, type[ActorCritic]] = {
    "ddpg": DDPG,
    "td3": TD3,
    "sac": SAC,
    "rdpg": variants.RecurrentDDPG,
    "rtd3": variants.RecurrentTD3,
    "rsac": variants.RecurrentSAC,
    "rdpg_s": variants.RecurrentDDPGSharing,
    "rtd3_s": variants.RecurrentTD3Sharing,
    "rsac_s": variants.RecurrentSACSharing,
    "cddpg": variants.ConvolutionalDDPG,
    "ctd3": variants.ConvolutionalTD3,
    "csac": variants.ConvolutionalSAC,
    "crdpg": variants.ConvolutionalRecurrentDDPG,
    "crtd3": variants.ConvolutionalRecurrentTD3,
    "crsac": variants.ConvolutionalRecurrentSAC,
    "crdpg_s": variants.ConvolutionalRecurrentDDPGSharing,
    "crtd3_s": variants.ConvolutionalRecurrentTD3Sharing,
    "crsac_s": variants.ConvolutionalRecurrentSACSharing,
    "bc": BC,
    "td3_bc": TD3BC,
    "iql": IQL,
    "cql": CQL,
    "bcq": BCQ,
    "rbc": variants.RecurrentBC,
    "rtd3_bc": variants.RecurrentTD3BC,
    "riql": variants.RecurrentIQL,
    "rcql": variants.RecurrentCQL,
    "rbcq": variants.RecurrentBCQ,
    "rbc_s": variants.RecurrentBCSharing,
    "rtd3_bc_s": variants.RecurrentTD3BCSharing,
    "riql_s": variants.RecurrentIQLSharing,
    "rcql_s": variants.RecurrentCQLSharing,
    "rbcq_s": variants.RecurrentBCQSharing,
    "cbc": variants.ConvolutionalBC,
    "ctd3_bc": variants.ConvolutionalTD3BC,
    "ciql": variants.ConvolutionalIQL,
    "ccql": variants.ConvolutionalCQL,
    "cbcq": variants.ConvolutionalBCQ,
    "crbc": variants.ConvolutionalRecurrentBC,
    "crtd3_bc": variants.ConvolutionalRecurrentTD3BC,
    "criql": variants.ConvolutionalRecurrentIQL,
    "crcql": variants.ConvolutionalRecurrentCQL,
    "crbcq": variants.ConvolutionalRecurrentBCQ,
    "crbc_s": variants.ConvolutionalRecurrentBCSharing,
    "crtd3_bc_s": variants.ConvolutionalRecurrentTD3BCSharing,
    "criql_s": variants.ConvolutionalRecurrentIQLSharing,
    "crcql_s": variants.ConvolutionalRecurrentCQLSharing,
    "crbcq_s": variants.ConvolutionalRecurrentBCQSharing,
}


def find_algorithm(name: str) -> type[ActorCritic]:
    """The class of this name.

    Raises:
        UserError: there is none.
    """
    found = ALGORITHMS.get(name) or REGISTRY.get(name)
    if found is None or not _learns(found):
        known = [*ALGORITHMS, *(key for key, cls in REGISTRY.items() if _learns(cls))]
        near = difflib.get_close_matches(name, known, 3, 0.4)
        plain = [short for short, cls in ALGORITHMS.items() if cls.__module__ != variants.__name__]
        advice = (
            f"did you mean {', '.join(near)}?"
            if near
            else f"there are {', '.join(plain)}, and each with memory (such as rsac), with convolutions (csac), with "
            f"both (crsac): `offpcc --help` lists all."
        )
        raise UserError(
            f"there is no algorithm {name!r}; {advice} A class of your own needs an update_networks, the decorator "
            f"offpcc.configurable, and an import of its module in the config"
        )
    return found


def _learns(cls: type) -> bool:
    """Whether a class has an update of its own, or of a parent; `ActorCritic` has none."""
    none = ActorCritic.update_networks
    return getattr(cls, "update_networks", none) is not none


def short_name(name: str) -> str:
    """An algorithm's name, by which runs lie side by side: of SAC, too, it is "sac"; a user's class has its own."""
    return next((short for short, cls in ALGORITHMS.items() if cls.__name__ == name), name)
