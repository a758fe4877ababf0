"""Every algorithm with memory, with convolutions, with both; separate or shared encoders: construction, not code.

Recurrent agents are those of Yang & Nguyen 2021 (arXiv:2110.12628): each network reads its own summary of the whole
history; "sharing" ones read one summary, trained by the critics. Convolutional agents share their convolutions,
trained by the critics, and shift images at random (DrQ, Kostrikov et al. 2020, arXiv:2004.13649).

Differs from the papers: an update encodes the history once, so the actor's loss reads the critics' summaries from
before their step; the temperature's loss leaves padding out; updates wait for the end of an episode; with separate
encoders the target critics' encoders run over the history from its start, and previous actions are inputs by choice.
"""

from __future__ import annotations

import functools

from offpcc.algorithms.bc import BC
from offpcc.algorithms.bcq import BCQ
from offpcc.algorithms.cql import CQL
from offpcc.algorithms.ddpg import DDPG
from offpcc.algorithms.iql import IQL
from offpcc.algorithms.sac import SAC
from offpcc.algorithms.td3 import TD3
from offpcc.algorithms.td3_bc import TD3BC
from offpcc.config.registry import configurable
from offpcc.networks import Convolutional, Recurrent
from offpcc.networks.augmentation import RandomShift

RecurrentOnConvolutional = functools.partial(Recurrent, front=Convolutional)


@configurable
class RecurrentDDPG(DDPG):
    """RDPG: each network has a memory of its own."""

    default_encoder = Recurrent


@configurable
class RecurrentDDPGSharing(DDPG):
    """RDPG-sharing: one memory for all networks."""

    default_shared_encoder = Recurrent


@configurable
class ConvolutionalDDPG(DDPG):
    """DDPG from images."""

    default_shared_encoder = Convolutional
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentDDPG(DDPG):
    """RDPG from images: shared convolutions, and on them each network's own memory."""

    default_shared_encoder = Convolutional
    default_encoder = Recurrent
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentDDPGSharing(DDPG):
    """RDPG-sharing from images: convolutions and memory for all networks."""

    default_shared_encoder = RecurrentOnConvolutional
    default_augmentation = RandomShift


@configurable
class RecurrentTD3(TD3):
    """RTD3: each network has a memory of its own."""

    default_encoder = Recurrent


@configurable
class RecurrentTD3Sharing(TD3):
    """RTD3-sharing: one memory for all networks."""

    default_shared_encoder = Recurrent


@configurable
class ConvolutionalTD3(TD3):
    """TD3 from images."""

    default_shared_encoder = Convolutional
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentTD3(TD3):
    """RTD3 from images: shared convolutions, and on them each network's own memory."""

    default_shared_encoder = Convolutional
    default_encoder = Recurrent
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentTD3Sharing(TD3):
    """RTD3-sharing from images: convolutions and memory for all networks."""

    default_shared_encoder = RecurrentOnConvolutional
    default_augmentation = RandomShift


@configurable
class RecurrentSAC(SAC):
    """RSAC: each network has a memory of its own."""

    default_encoder = Recurrent


@configurable
class RecurrentSACSharing(SAC):
    """RSAC-sharing: one memory for all networks."""

    default_shared_encoder = Recurrent


@configurable
class ConvolutionalSAC(SAC):
    """SAC from images."""

    default_shared_encoder = Convolutional
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentSAC(SAC):
    """RSAC from images: shared convolutions, and on them each network's own memory."""

    default_shared_encoder = Convolutional
    default_encoder = Recurrent
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentSACSharing(SAC):
    """RSAC-sharing from images: convolutions and memory for all networks."""

    default_shared_encoder = RecurrentOnConvolutional
    default_augmentation = RandomShift


@configurable
class RecurrentBC(BC):
    """RBC: each network has a memory of its own."""

    default_encoder = Recurrent


@configurable
class RecurrentBCSharing(BC):
    """RBC-sharing: one memory for all networks."""

    default_shared_encoder = Recurrent


@configurable
class ConvolutionalBC(BC):
    """BC from images."""

    default_shared_encoder = Convolutional
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentBC(BC):
    """RBC from images: shared convolutions, and on them each network's own memory."""

    default_shared_encoder = Convolutional
    default_encoder = Recurrent
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentBCSharing(BC):
    """RBC-sharing from images: convolutions and memory for all networks."""

    default_shared_encoder = RecurrentOnConvolutional
    default_augmentation = RandomShift


@configurable
class RecurrentTD3BC(TD3BC):
    """RTD3+BC: each network has a memory of its own."""

    default_encoder = Recurrent


@configurable
class RecurrentTD3BCSharing(TD3BC):
    """RTD3+BC-sharing: one memory for all networks."""

    default_shared_encoder = Recurrent


@configurable
class ConvolutionalTD3BC(TD3BC):
    """TD3+BC from images."""

    default_shared_encoder = Convolutional
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentTD3BC(TD3BC):
    """RTD3+BC from images: shared convolutions, and on them each network's own memory."""

    default_shared_encoder = Convolutional
    default_encoder = Recurrent
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentTD3BCSharing(TD3BC):
    """RTD3+BC-sharing from images: convolutions and memory for all networks."""

    default_shared_encoder = RecurrentOnConvolutional
    default_augmentation = RandomShift


@configurable
class RecurrentIQL(IQL):
    """RIQL: each network has a memory of its own."""

    default_encoder = Recurrent


@configurable
class RecurrentIQLSharing(IQL):
    """RIQL-sharing: one memory for all networks."""

    default_shared_encoder = Recurrent


@configurable
class ConvolutionalIQL(IQL):
    """IQL from images."""

    default_shared_encoder = Convolutional
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentIQL(IQL):
    """RIQL from images: shared convolutions, and on them each network's own memory."""

    default_shared_encoder = Convolutional
    default_encoder = Recurrent
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentIQLSharing(IQL):
    """RIQL-sharing from images: convolutions and memory for all networks."""

    default_shared_encoder = RecurrentOnConvolutional
    default_augmentation = RandomShift


@configurable
class RecurrentCQL(CQL):
    """RCQL: each network has a memory of its own."""

    default_encoder = Recurrent


@configurable
class RecurrentCQLSharing(CQL):
    """RCQL-sharing: one memory for all networks."""

    default_shared_encoder = Recurrent


@configurable
class ConvolutionalCQL(CQL):
    """CQL from images."""

    default_shared_encoder = Convolutional
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentCQL(CQL):
    """RCQL from images: shared convolutions, and on them each network's own memory."""

    default_shared_encoder = Convolutional
    default_encoder = Recurrent
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentCQLSharing(CQL):
    """RCQL-sharing from images: convolutions and memory for all networks."""

    default_shared_encoder = RecurrentOnConvolutional
    default_augmentation = RandomShift


@configurable
class RecurrentBCQ(BCQ):
    """RBCQ: each network has a memory of its own."""

    default_encoder = Recurrent


@configurable
class RecurrentBCQSharing(BCQ):
    """RBCQ-sharing: one memory for all networks."""

    default_shared_encoder = Recurrent


@configurable
class ConvolutionalBCQ(BCQ):
    """BCQ from images."""

    default_shared_encoder = Convolutional
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentBCQ(BCQ):
    """RBCQ from images: shared convolutions, and on them each network's own memory."""

    default_shared_encoder = Convolutional
    default_encoder = Recurrent
    default_augmentation = RandomShift


@configurable
class ConvolutionalRecurrentBCQSharing(BCQ):
    """RBCQ-sharing from images: convolutions and memory for all networks."""

    default_shared_encoder = RecurrentOnConvolutional
    default_augmentation = RandomShift
