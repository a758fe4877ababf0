"""Off-policy reinforcement learning for agents that do not see everything, with continuous or discrete actions.

import offpcc

offpcc.configure("configs/quickstart.gin")
learner = offpcc.build("pendulum-p-v0", "rsac", seed=1)
agent = learner.train()
agent.save("actor.pt")

Or without gin, a pendulum in half a minute:

learner = offpcc.SAC("pendulum-v0", lr=1e-3, gamma=0.95, hidden_dims=(64, 64), seed=1)
agent = learner.train(num_epochs=8, update_after=1_000)
"""

from typing import TYPE_CHECKING, Any

from offpcc.training.constructors import NAMES
from offpcc.utils.version import __version__

if TYPE_CHECKING:
    from offpcc.algorithms.agent import Agent
    from offpcc.config.registry import configurable
    from offpcc.data.datasets.dataset import Dataset
    from offpcc.data.datasets.load import qlearning_dataset
    from offpcc.envs.make import make
    from offpcc.training.analysis.policy_evaluation import q_values
    from offpcc.training.build import build
    from offpcc.training.callbacks import Callback
    from offpcc.training.checkpoint import load
    from offpcc.training.constructors import *  # noqa: F403
    from offpcc.training.experiment import configure
    from offpcc.training.export import export
    from offpcc.training.fit import fit
    from offpcc.training.models.files import load_model
    from offpcc.training.results import (
        check,
        check_env,
        check_memory,
        check_model,
        collect,
        evaluate,
        evaluate_from_data,
        load_run,
        plot,
        report,
        train_model,
    )
    from offpcc.training.spec import RunSpec
    from offpcc.utils.errors import UserError

__all__ = [
    "Agent",
    "Callback",
    "Dataset",
    "RunSpec",
    "UserError",
    "__version__",
    "build",
    "check",
    "check_env",
    "check_memory",
    "check_model",
    "collect",
    "configurable",
    "configure",
    "evaluate",
    "evaluate_from_data",
    "export",
    "fit",
    "load",
    "load_model",
    "load_run",
    "make",
    "plot",
    "q_values",
    "qlearning_dataset",
    "report",
    "train_model",
    *NAMES,
]

_HOMES = {
    "Agent": "offpcc.algorithms.agent",
    "Callback": "offpcc.training.callbacks",
    "Dataset": "offpcc.data.datasets.dataset",
    "RunSpec": "offpcc.training.spec",
    "UserError": "offpcc.utils.errors",
    "build": "offpcc.training.build",
    "configurable": "offpcc.config.registry",
    "configure": "offpcc.training.experiment",
    "export": "offpcc.training.export",
    "fit": "offpcc.training.fit",
    "load": "offpcc.training.checkpoint",
    "load_model": "offpcc.training.models.files",
    "make": "offpcc.envs.make",
    **dict.fromkeys(("check", "check_env", "check_memory", "check_model", "collect"), "offpcc.training.results"),
    **dict.fromkeys(("evaluate", "evaluate_from_data", "load_run", "plot", "report"), "offpcc.training.results"),
    "train_model": "offpcc.training.results",
    "q_values": "offpcc.training.analysis.policy_evaluation",
    "qlearning_dataset": "offpcc.data.datasets.load",
    **dict.fromkeys(NAMES, "offpcc.training.constructors"),
}

_PACKAGES = ("algorithms", "config", "data", "envs", "networks")  # `training` and `utils` are imported already


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import offpcc` alone, and `--help`, stay fast."""
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"offpcc.{name}")
    if name not in _HOMES:
        from offpcc.config.synonyms import no_attribute

        raise no_attribute("offpcc", name, "module 'offpcc'", __all__)

    if name == "make":  # D4RL's tasks read their datasets through it
        importlib.import_module("offpcc.data.datasets.load")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
