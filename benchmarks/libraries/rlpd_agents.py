"""The authors' code of RLPD (ikostrikov/rlpd) at the sizes of a case; an update draws one batch.

It is in JAX and needs the packages jax, flax, optax and tensorflow-probability, which `make bench` does not install.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.cases import Case
from benchmarks.libraries import Learner, UnavailableError, Work, clones
from benchmarks.recorded import Transitions, transitions

DELAY = 20  # updates of the critics for each one of the actor, when speed is measured: the authors' and offpcc's


def prepare(case: Case, num_transitions: int, root: Path) -> Work:
    """What a case repeats.

    Raises:
        UnavailableError: it is no update of RLPD, or a package is missing.
    """
    if case.kind != "update":
        raise UnavailableError("the code of RLPD is measured by its updates alone")
    made = learner(case, transitions(num_transitions), root, DELAY)
    return Work(made.update, made.units, f"JAX, {DELAY} updates in a call")


def learner(case: Case, data: Transitions, root: Path, delay: int = 1) -> Learner:
    """What learns from `data`, with `delay` updates of the critics for each one of actor and temperature.

    Raises:
        UnavailableError: it is another algorithm, or a package is missing.
    """
    sizes = case.sizes
    if case.algorithm != "rlpd":
        raise UnavailableError("the code of RLPD has no other algorithm here")
    clones.use(root, "ml_collections", "d4rl")
    try:
        import jax
        import tensorflow_probability.substrates.jax  # noqa: F401, which the code takes for imported
        from rlpd.agents.sac.sac_learner import SACLearner  # type: ignore[import-not-found]
    except ImportError as error:
        raise UnavailableError(f"the code of RLPD cannot be imported here ({error})") from error
    agent = SACLearner.create(
        int(np.random.randint(2**31)),
        *(spaces.Box(-1.0, 1.0, (dim,), np.float32) for dim in data.dims),
        hidden_dims=sizes.hidden_dims,
        num_qs=sizes.num_critics,
        num_min_qs=2,
        critic_layer_norm=True,
    )
    latest: list[Any] = [agent]

    def update() -> None:
        latest[0], told = latest[0].update(data.sample(delay * sizes.batch_size), delay)
        jax.block_until_ready(told)

    return Learner(update, lambda observations: latest[0].eval_actions(observations), delay)
