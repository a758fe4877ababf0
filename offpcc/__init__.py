"""Off-policy continuous control for agents that do not see everything.

import offpcc

offpcc.configure("configs/quickstart.gin")
learner = offpcc.build("pendulum-p-v0", "rsac", seed=1)
agent = learner.train()
agent.save("actor.pt")
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offpcc.agent import Agent as Agent
    from offpcc.assembly import build as build
    from offpcc.configuration import configure as configure
    from offpcc.data.datasets import Dataset as Dataset
    from offpcc.data.loading import qlearning_dataset as qlearning_dataset
    from offpcc.domains.making import make as make
    from offpcc.registry import configurable as configurable

try:
    __version__ = version("offpcc")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0.1.0"

__all__ = ["Agent", "Dataset", "__version__", "build", "configurable", "configure", "make", "qlearning_dataset"]

_HOMES = {
    "Agent": "offpcc.agent",
    "Dataset": "offpcc.data.datasets",
    "build": "offpcc.assembly",
    "configurable": "offpcc.registry",
    "configure": "offpcc.configuration",
    "make": "offpcc.domains.making",
    "qlearning_dataset": "offpcc.data.loading",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import offpcc` alone, and `--help`, stay fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'offpcc' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
