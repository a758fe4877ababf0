"""The authors' code of FQL (seohongpark/fql) at the sizes of a case; an update draws a batch as its buffer does.

It is in JAX and needs the packages jax, flax, optax and distrax, which `make bench` does not install.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.libraries import Learner, UnavailableError, Work, clones
from benchmarks.recorded import Transitions, transitions

SETTINGS = {  # alpha and normalize_q_loss are the defaults of offpcc, the others are defaults of both
    "lr": 3e-4, "layer_norm": True, "actor_layer_norm": False, "discount": 0.99, "tau": 0.005, "q_agg": "mean",
    "alpha": 1.0, "flow_steps": 10, "normalize_q_loss": True, "encoder": None,
}  # fmt: skip

DIFFERS = "JAX; GELU and then layer norm, in offpcc layer norm and then ReLU; one more pass of the policy, for logging"


def prepare(case: Case, num_transitions: int, root: Path) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: it is no update of FQL, or a package is missing.
    """
    if case.kind != "update":
        raise UnavailableError("the code of FQL is measured by its updates alone")
    return Work(learner(case, transitions(num_transitions), root).update, note=DIFFERS)


def learner(case: Case, data: Transitions, root: Path) -> Learner:
    """What learns from `data`; it acts with noise 0, as offpcc does.

    Raises:
        UnavailableError: it is another algorithm, or a package is missing.
    """
    sizes = case.sizes
    if case.algorithm != "fql" or sizes.num_critics != 2:
        raise UnavailableError("the code of FQL has FQL with two critics")
    clones.use(root, "ml_collections")
    try:
        import jax
        from agents.fql import FQLAgent  # type: ignore[import-not-found]
    except ImportError as error:
        raise UnavailableError(f"the code of FQL cannot be imported here ({error})") from error
    widths = {"actor_hidden_dims": sizes.hidden_dims, "value_hidden_dims": sizes.hidden_dims}
    number = int(np.random.randint(2**31))
    latest: list[Any] = [FQLAgent.create(number, data.observations[:1], data.actions[:1], {**SETTINGS, **widths})]

    def update() -> None:
        latest[0], told = latest[0].update(data.sample(sizes.batch_size))
        jax.block_until_ready(told)

    def act(observations: np.ndarray) -> np.ndarray:
        noise = np.zeros((len(observations), data.dims[1]), np.float32)
        return np.asarray(latest[0].network.select("actor_onestep_flow")(observations, noise))

    return Learner(update, act)
