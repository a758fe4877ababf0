"""Algorithms by name: c = convolutional, r = recurrent, _s = actor and critics share one recurrent encoder."""

from typing import TYPE_CHECKING, Any

from offpcc.algorithms import variants
from offpcc.algorithms.awac import AWAC
from offpcc.algorithms.base import ActorCritic
from offpcc.algorithms.bc import BC
from offpcc.algorithms.bcq import BCQ
from offpcc.algorithms.calql import CalQL
from offpcc.algorithms.combo import COMBO
from offpcc.algorithms.cql import CQL
from offpcc.algorithms.crr import CRR
from offpcc.algorithms.ddpg import DDPG
from offpcc.algorithms.discrete_bc import DiscreteBC
from offpcc.algorithms.discrete_bcq import DiscreteBCQ
from offpcc.algorithms.discrete_cql import DiscreteCQL
from offpcc.algorithms.discrete_crr import DiscreteCRR
from offpcc.algorithms.discrete_sac import DiscreteSAC
from offpcc.algorithms.dqn import DQN
from offpcc.algorithms.edac import EDAC
from offpcc.algorithms.fql import FQL
from offpcc.algorithms.fused import FUSED_UPDATES
from offpcc.algorithms.iql import IQL
from offpcc.algorithms.mbpo import MBPO
from offpcc.algorithms.mopo import MOPO
from offpcc.algorithms.morel import MOReL
from offpcc.algorithms.neubay import NEUBAY
from offpcc.algorithms.pessimism import AleatoricPartitioning, AleatoricPenalty, EpistemicPartitioning, EpistemicPenalty
from offpcc.algorithms.qrdqn import QRDQN
from offpcc.algorithms.r2d2 import R2D2
from offpcc.algorithms.rebrac import ReBRAC
from offpcc.algorithms.rlpd import RLPD
from offpcc.algorithms.sac import SAC
from offpcc.algorithms.sac_n import SACN
from offpcc.algorithms.td3 import TD3
from offpcc.algorithms.td3_bc import TD3BC
from offpcc.algorithms.tqc import TQC
from offpcc.config.registry import REGISTRY
from offpcc.config.synonyms import ATTRIBUTES
from offpcc.utils.errors import UserError, similar

__all__ = [
    "ALGORITHMS",
    "AWAC",
    "BC",
    "BCQ",
    "COMBO",
    "CQL",
    "CRR",
    "DDPG",
    "DQN",
    "EDAC",
    "FQL",
    "FUSED_UPDATES",
    "IQL",
    "MBPO",
    "MOPO",
    "NEUBAY",
    "QRDQN",
    "R2D2",
    "RLPD",
    "SAC",
    "SACN",
    "TD3",
    "TD3BC",
    "TQC",
    "ActorCritic",
    "AleatoricPartitioning",
    "AleatoricPenalty",
    "CalQL",
    "DiscreteBC",
    "DiscreteBCQ",
    "DiscreteCQL",
    "DiscreteCRR",
    "DiscreteSAC",
    "EpistemicPartitioning",
    "EpistemicPenalty",
    "MOReL",
    "ReBRAC",
]


# An algorithm of offpcc is a page, such as `sac.py`, a row here, and a config in `configs/algorithms` or, for discrete
# actions, in `configs/discrete`. A user's own algorithm needs no row: see docs/extending.md.
variants.add(DDPG, "ddpg", recurrent="dpg")
variants.add(TD3, "td3")
variants.add(SAC, "sac")
variants.add(BC, "bc")
variants.add(TD3BC, "td3_bc")
variants.add(IQL, "iql")
variants.add(CQL, "cql")
variants.add(BCQ, "bcq")
variants.add(AWAC, "awac")
variants.add(CRR, "crr")
variants.add(SACN, "sac_n")
variants.add(EDAC, "edac")
variants.add(ReBRAC, "rebrac")
variants.add(CalQL, "calql")
variants.add(FQL, "fql")
variants.add(RLPD, "rlpd")
variants.add(TQC, "tqc")
# For discrete actions.
variants.add(DQN, "dqn")
variants.add(QRDQN, "qrdqn")
variants.add(R2D2, "r2d2")
variants.add(DiscreteSAC, "dsac")
variants.add(DiscreteBC, "dbc")
variants.add(DiscreteBCQ, "dbcq")
variants.add(DiscreteCQL, "dcql")
variants.add(DiscreteCRR, "dcrr")
# A model needs vectors, so these have no convolutions.
variants.add(MBPO, "mbpo", images=False)
variants.add(MOPO, "mopo", images=False)
variants.add(MOReL, "morel", images=False)
variants.add(COMBO, "combo", images=False)
variants.add(NEUBAY, "neubay", images=False)
variants.add(AleatoricPenalty, "aleatoric_penalty", images=False)
variants.add(EpistemicPenalty, "epistemic_penalty", images=False)
variants.add(AleatoricPartitioning, "aleatoric_partitioning", images=False)
variants.add(EpistemicPartitioning, "epistemic_partitioning", images=False)
ALGORITHMS: dict[str, type[ActorCritic]] = {name: entry.cls for name, entry in variants.TABLE.items()}
globals().update({cls.__name__: cls for cls in ALGORITHMS.values()})  # also RecurrentSAC and so on


def find_algorithm(name: str) -> type[ActorCritic]:
    """Return the algorithm class with this name."""
    found = ALGORITHMS.get(name) or REGISTRY.get(name)
    if found is None or not _learns(found):
        known = [*ALGORITHMS, *(key for key, cls in REGISTRY.items() if _learns(cls))]
        reason = ATTRIBUTES.get(f"offpcc.{name.upper()}")
        if reason is not None:
            raise UserError(f"there is no algorithm {name!r}: {reason}")
        own = next((key for key in known if key not in ALGORITHMS and name in (f"r{key}", f"c{key}", f"cr{key}")), None)
        if own is not None:
            prefix = name.removesuffix(own)
            raise UserError(
                f"there is no algorithm {name!r}: prefixes are for algorithms of offpcc; choose {own}, and bind "
                f"{own}.encoder = @{'Recurrent' if 'r' in prefix else 'Convolutional'}"
            )
        near = similar(name, known)
        plain = [short for short, entry in variants.TABLE.items() if short == entry.algorithm]
        advice = (
            f"did you mean {', '.join(near)}?"
            if near
            else f"there are {', '.join(plain)}, and variants of each with memory (such as rsac), with convolutions "
            f"(csac) and with both (crsac); `offpcc --help` lists all."
        )
        raise UserError(
            f"there is no algorithm {name!r}; {advice} A class of your own needs the method inner_update and the "
            f"decorator offpcc.configurable, and the config must import its module"
        )
    return found


def name_of_class(algorithm: Any) -> Any:
    """Return the name of an algorithm given as its class, which must be registered; anything else as it is."""
    if not isinstance(algorithm, type):
        return algorithm
    name = short_name(algorithm.__name__)
    if issubclass(algorithm, ActorCritic) and name not in ALGORITHMS and name not in REGISTRY:
        raise UserError(f"{algorithm.__name__} is not registered; decorate the class with offpcc.configurable")
    if find_algorithm(name) is not algorithm:
        raise UserError(f"another class is registered by the name {name}; rename one of them")
    return name


def _learns(cls: type) -> bool:
    """Check whether a class has an `inner_update`, or an `update_networks` of its own."""
    methods = ((getattr(cls, name, None), getattr(ActorCritic, name)) for name in ("inner_update", "update_networks"))
    return any(method not in (None, abstract) for method, abstract in methods)


def short_name(name: str) -> str:
    """Return the short name of an algorithm for run folders: "sac" for "SAC"; a user's class keeps its own name."""
    return next((short for short, cls in ALGORITHMS.items() if cls.__name__ == name), name)


if TYPE_CHECKING:

    def __getattr__(name: str) -> type[ActorCritic]:
        """Tell type checkers that this module has classes such as `RecurrentSAC`."""
        ...
