"""mbrl-lib (facebookresearch/mbrl-lib): its ensemble of Gaussian networks at the sizes of a case."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.cases import NUM_ELITES, Case
from benchmarks.libraries import UnavailableError, Work, clones
from benchmarks.libraries.spaces import Spaces
from benchmarks.recorded import transitions

ABSENT = ("hydra", "omegaconf", "termcolor", "tqdm")


def prepare(case: Case, num_transitions: int, root: Path) -> Work:
    """An update by a batch for each network, or steps in which each row is read by one elite, without uncertainty.

    Raises:
        UnavailableError: the case is of no model.
    """
    if case.kind not in ("model", "imagine"):
        raise UnavailableError("mbrl-lib is measured by its models alone")
    clones.use(root, *ABSENT)
    try:
        from mbrl.env.termination_fns import hopper
        from mbrl.models import GaussianMLP, ModelEnv, OneDTransitionRewardModel
        from mbrl.types import TransitionBatch
        from mbrl.util.replay_buffer import BootstrapIterator
    except ImportError as error:
        raise UnavailableError(f"mbrl-lib cannot be imported here ({error})") from error
    sizes, data = case.sizes, transitions(num_transitions)
    networks = GaussianMLP(
        sum(data.dims),
        data.dims[0] + 1,
        "cpu",
        num_layers=len(sizes.hidden_dims),
        ensemble_size=sizes.num_critics,
        hid_size=sizes.hidden_dims[0],
        learn_logvar_bounds=True,
    )
    model = OneDTransitionRewardModel(networks, target_is_delta=True, normalize=True, num_elites=NUM_ELITES)
    columns = (data.observations, data.actions, data.next_observations, data.rewards)
    recorded = TransitionBatch(*columns, data.terminations, data.truncations)
    model.update_normalizer(recorded)
    if case.kind == "imagine":
        networks.elite_models = list(range(NUM_ELITES))
        model.set_propagation_method("random_model")
        env = ModelEnv(Spaces(), model, hopper, generator=torch.Generator().manual_seed(1))
        state = env.reset(data.observations[: sizes.batch_size], return_as_np=False)
        acted = torch.from_numpy(data.actions[: sizes.batch_size])
        return Work(lambda: env.step(acted, dict(state), sample=True), note="each row is read by one network")
    draws = np.random.default_rng(1)
    batches = BootstrapIterator(recorded, sizes.batch_size, sizes.num_critics, shuffle_each_epoch=True, rng=draws)
    optimizer, remaining = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5), iter(batches)

    def update() -> None:
        nonlocal remaining
        if (batch := next(remaining, None)) is None:
            remaining = iter(batches)
            batch = next(remaining)
        model.update(batch, optimizer)

    return Work(update)
