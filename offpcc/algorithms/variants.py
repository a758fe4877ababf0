"""Variants of each algorithm: recurrent, convolutional, or both.

Recurrent agents follow Yang & Nguyen 2021 (arXiv:2110.12628): each network reads its own summary of the whole history.
In "sharing" agents, all networks read one summary, and the critics train its encoder. In convolutional agents, all
networks share the convolutions, and the critics train them. These agents shift images at random (DrQ, Kostrikov et al.
2020, arXiv:2004.13649).

Differs from the papers:

- An update encodes the history once, so the actor's loss reads the critics' summaries from before their step.
- The temperature's loss ignores padding.
- Updates wait for the end of an episode.
- With separate encoders, the target critics' encoders run over the history from its start.
- Previous actions as inputs are optional.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeVar, cast

from offpcc.algorithms.base import ActorCritic
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

__all__ = ["TABLE", "Entry"]

A = TypeVar("A", bound=ActorCritic)
RecurrentOnConvolutional = functools.partial(Recurrent, feature_extractor=Convolutional)
FROM_IMAGES = {"default_shared_encoder": Convolutional, "default_augmentation": RandomShift}


class Entry(NamedTuple):
    """Meaning of a name of ``--algo``."""

    cls: type[ActorCritic]
    algorithm: str  # the name of the algorithm without memory and convolutions
    memory: str | None  # recurrent encoders: "separate" for each network, "shared" by all, or None
    images: bool


class Kind(NamedTuple):
    """One kind of variant: its names, and the attributes of its class."""

    class_name: str
    name: str
    memory: str | None
    images: bool
    attributes: dict[str, Any]
    text: str


KINDS = (
    Kind("Recurrent{}", "r{}", "separate", False, {"default_encoder": Recurrent}, "Each network has its own memory."),
    Kind("Recurrent{}Sharing", "r{}_s", "shared", False, {"default_shared_encoder": Recurrent}, "All share a memory."),
    Kind("Convolutional{}", "c{}", None, True, FROM_IMAGES, "It sees images."),
    Kind(
        "ConvolutionalRecurrent{}",
        "cr{}",
        "separate",
        True,
        {**FROM_IMAGES, "default_encoder": Recurrent},
        "It sees images; each network has its own memory, on shared convolutions.",
    ),
    Kind(
        "ConvolutionalRecurrent{}Sharing",
        "cr{}_s",
        "shared",
        True,
        {**FROM_IMAGES, "default_shared_encoder": RecurrentOnConvolutional},
        "It sees images; all networks share convolutions and memory.",
    ),
)

TABLE: dict[str, Entry] = {}


def variants(cls: type[A], name: str, recurrent: str | None = None) -> tuple[type[A], ...]:
    """Create one variant of an algorithm for each of `KINDS`, and add these and the algorithm to `TABLE`.

    Args:
        cls: the algorithm.
        name: its name for ``--algo``.
        recurrent: name after "r" in recurrent variants, if it differs from `name`: recurrent DDPG is called RDPG.
    """
    TABLE[name] = Entry(cls, name, None, False)
    made = []
    for kind in KINDS:
        attributes = {**kind.attributes, "__module__": __name__, "__doc__": f"{cls.__name__}. {kind.text}"}
        variant = configurable(type(kind.class_name.format(cls.__name__), (cls,), attributes))
        short = name if kind.memory is None or recurrent is None else recurrent
        TABLE[kind.name.format(short)] = Entry(variant, name, kind.memory, kind.images)
        made.append(cast(type[A], variant))
    return tuple(made)


(
    RecurrentDDPG,
    RecurrentDDPGSharing,
    ConvolutionalDDPG,
    ConvolutionalRecurrentDDPG,
    ConvolutionalRecurrentDDPGSharing,
) = variants(DDPG, "ddpg", recurrent="dpg")
(
    RecurrentTD3,
    RecurrentTD3Sharing,
    ConvolutionalTD3,
    ConvolutionalRecurrentTD3,
    ConvolutionalRecurrentTD3Sharing,
) = variants(TD3, "td3")
(
    RecurrentSAC,
    RecurrentSACSharing,
    ConvolutionalSAC,
    ConvolutionalRecurrentSAC,
    ConvolutionalRecurrentSACSharing,
) = variants(SAC, "sac")
(
    RecurrentBC,
    RecurrentBCSharing,
    ConvolutionalBC,
    ConvolutionalRecurrentBC,
    ConvolutionalRecurrentBCSharing,
) = variants(BC, "bc")
(
    RecurrentTD3BC,
    RecurrentTD3BCSharing,
    ConvolutionalTD3BC,
    ConvolutionalRecurrentTD3BC,
    ConvolutionalRecurrentTD3BCSharing,
) = variants(TD3BC, "td3_bc")
(
    RecurrentIQL,
    RecurrentIQLSharing,
    ConvolutionalIQL,
    ConvolutionalRecurrentIQL,
    ConvolutionalRecurrentIQLSharing,
) = variants(IQL, "iql")
(
    RecurrentCQL,
    RecurrentCQLSharing,
    ConvolutionalCQL,
    ConvolutionalRecurrentCQL,
    ConvolutionalRecurrentCQLSharing,
) = variants(CQL, "cql")
(
    RecurrentBCQ,
    RecurrentBCQSharing,
    ConvolutionalBCQ,
    ConvolutionalRecurrentBCQ,
    ConvolutionalRecurrentBCQSharing,
) = variants(BCQ, "bcq")
