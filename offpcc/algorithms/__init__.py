"""Algorithms by name: c = convolutional, r = recurrent, _s = one encoder shared by actor and critics."""

from offpcc.algorithms import variants
from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.ddpg import DDPG
from offpcc.algorithms.sac import SAC
from offpcc.algorithms.td3 import TD3

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
}

__all__ = ["ALGORITHMS", "DDPG", "SAC", "TD3", "ActorCritic"]
