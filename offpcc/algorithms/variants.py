"""Variants of each algorithm: recurrent, convolutional, or both; classes such as `RecurrentSAC`.

Recurrent agents follow Yang & Nguyen 2021 (arXiv:2110.12628): each network reads its own summary of the whole history.
In "sharing" agents, all networks read one summary, and the critics' loss trains its encoder. In convolutional agents,
all networks share the convolutions, and the critics' loss trains them. These agents shift images at random (DrQ,
Kostrikov et al. 2020, arXiv:2004.13649).

Differs from the papers:

- An update encodes the history once, so the actor's loss reads the critics' summaries from before their step.
- The temperature's loss ignores padding.
- Updates wait for the end of an episode.
- With separate encoders, the target critics' encoders run over the history from its start.
- Previous actions as inputs are optional.
- Each image is shifted once. DrQ averages targets and losses over two shifts (K = M = 2).
- Initial weights are PyTorch's, those of DrQ orthogonal. Its actor and targets move in every second update only.
"""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.construction import other_kind
from offpcc.config.bindings import CLASS_NAMES
from offpcc.config.registry import configurable
from offpcc.networks import Convolutional, Identity, Recurrent
from offpcc.networks.augmentation import RandomShift

RecurrentOnConvolutional = functools.partial(Recurrent, feature_extractor=Convolutional)
FROM_IMAGES = {"default_shared_encoder": Convolutional, "default_augmentation": RandomShift}


class AlgorithmEntry(NamedTuple):
    """Class and kind of an algorithm, by its name for ``--algo``."""

    cls: type[ActorCritic]
    algorithm: str  # the name of the algorithm without memory and convolutions
    memory: str | None  # recurrent encoders: "separate" for each network, "shared" by all, or None
    images: bool


class VariantKind(NamedTuple):
    """One kind of variant: its names, and the attributes of its class."""

    class_name: str
    name: str
    memory: str | None
    images: bool
    attributes: dict[str, Any]
    text: str


KINDS = (
    VariantKind(
        "Recurrent{}", "r{}", "separate", False, {"default_encoder": Recurrent}, "Each network has its own memory."
    ),
    VariantKind(
        "Recurrent{}Sharing", "r{}_s", "shared", False, {"default_shared_encoder": Recurrent}, "All share a memory."
    ),
    VariantKind("Convolutional{}", "c{}", None, True, FROM_IMAGES, "It sees images."),
    VariantKind(
        "ConvolutionalRecurrent{}",
        "cr{}",
        "separate",
        True,
        {**FROM_IMAGES, "default_encoder": Recurrent},
        "It sees images; each network has its own memory, on shared convolutions.",
    ),
    VariantKind(
        "ConvolutionalRecurrent{}Sharing",
        "cr{}_s",
        "shared",
        True,
        {**FROM_IMAGES, "default_shared_encoder": RecurrentOnConvolutional},
        "It sees images; all networks share convolutions and memory.",
    ),
)

TABLE: dict[str, AlgorithmEntry] = {}


def add(cls: type[ActorCritic], name: str, recurrent: str | None = None, images: bool = True) -> None:
    """Add an algorithm to `TABLE`, and its variants of all `KINDS`. Each variant becomes a class of this module.

    An algorithm that has a memory already, such as R2D2, has no variants without one.

    Args:
        cls: the algorithm.
        name: its name for ``--algo``.
        recurrent: name after "r" in recurrent variants, if it differs from `name`: recurrent DDPG is called RDPG.
        images: whether there are variants that see images.
    """
    remembers = cls.default_encoder is Recurrent
    TABLE[name] = AlgorithmEntry(cls, name, "separate" if remembers else None, False)
    CLASS_NAMES[name] = cls.__name__
    cls.names = (name, f"c{name}") if images else None
    for kind in KINDS:
        if kind.images and not images:
            continue
        class_name, short = kind.class_name.format(cls.__name__), name
        if remembers:
            if kind.memory is None or kind.name == "r{}":
                continue
            class_name, short = class_name.replace("Recurrent", ""), name.removeprefix("r")
        elif recurrent is not None and kind.memory is not None:
            short = recurrent
        other = kind.name.removeprefix("c") if kind.images else f"c{kind.name}"
        attributes = {"default_encoder": Identity, **kind.attributes, "__module__": __name__}
        attributes["__doc__"] = f"{cls.__name__}. {kind.text}"
        attributes["counterpart"] = kind.name.format(other_kind(cls))
        attributes["names"] = (kind.name.format(short), other.format(short)) if images else None
        variant = configurable(type(class_name, (cls,), attributes))
        TABLE[kind.name.format(short)] = AlgorithmEntry(variant, name, kind.memory, kind.images)
        CLASS_NAMES[kind.name.format(short)] = class_name
        globals()[class_name] = variant
    if remembers:
        cls.counterpart = f"r{other_kind(cls)}"


if TYPE_CHECKING:

    def __getattr__(name: str) -> type[ActorCritic]:
        """Tell type checkers that this module has classes such as `RecurrentSAC`."""
        ...
