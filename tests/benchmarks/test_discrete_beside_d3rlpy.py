"""The losses of CQL and BCQ for discrete actions are d3rlpy's, on equal weights and equal data."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from benchmarks.cases import Case, Sizes
from benchmarks.libraries import load
from benchmarks.recorded import transitions
from offpcc.algorithms import DiscreteBCQ, DiscreteCQL
from offpcc.core import Batch

SIZES = Sizes(hidden_dims=(32, 32), batch_size=64)
NUM_ACTIONS = 3


def one_hot_data():
    made = transitions(2_000)
    chosen = np.eye(NUM_ACTIONS, dtype=np.float32)[np.random.default_rng(0).integers(0, NUM_ACTIONS, len(made.rewards))]
    ends = np.arange(1, len(made.rewards) + 1) % 10 == 0
    return made._replace(actions=chosen, terminations=ends, truncations=np.zeros_like(ends))


@pytest.mark.parametrize("algo, cls", [("dcql", DiscreteCQL), ("dbcq", DiscreteBCQ)])
def test_a_loss_and_its_gradient(algo, cls):
    d3rlpy = pytest.importorskip("d3rlpy")
    torch.manual_seed(0)
    module, _ = load("d3rlpy")
    made = one_hot_data()
    data = module.dataset(made, discrete=True)
    agent = module.CONFIGS[algo](SIZES).create(device=False)
    agent.build_with_dataset(data)
    for _ in range(30):
        agent.update(data.sample_transition_batch(SIZES.batch_size))
    theirs, observed = agent.impl, made.observations.shape[1]
    theirs._beta = 0.0  # its penalty of logits reads them after the softmax; the authors' code and ours before
    options = {"num_quantiles": module.NUM_QUANTILES, "double": True} if algo == "dcql" else {"logits_weight": 0.0}
    ours = cls(
        Box(-np.inf, np.inf, (observed,)), Discrete(NUM_ACTIONS), hidden_dims=SIZES.hidden_dims,
        normalize_observations=False, **options
    )  # fmt: skip
    parts = [(ours.critics, theirs.modules.q_funcs), (ours.target_critics, theirs.modules.targ_q_funcs)]
    if algo == "dbcq":
        parts.append((ours.actor.imitation, theirs.modules.imitator))
    with torch.no_grad():
        for own, other in parts:
            for mine, weights in zip(own.parameters(), other.parameters(), strict=True):
                mine.copy_(weights)
    drawn = data.sample_transition_batch(SIZES.batch_size)
    read = d3rlpy.torch_utility.TorchMiniBatch.from_batch(drawn, gamma=0.99, compute_returns_to_go=False, device="cpu")
    rows = SIZES.batch_size
    batch = Batch(
        observations=torch.stack([read.observations, read.next_observations], 1),
        actions=torch.eye(NUM_ACTIONS)[read.actions.long()],
        rewards=read.rewards[:, None],
        terminations=read.terminals[:, None],
        valid=torch.ones(rows, 2, 1),
        loss_mask=torch.ones(rows, 1, 1),
        first_action=torch.zeros(rows, NUM_ACTIONS),
        first_reward=torch.zeros(rows, 1),
    )
    assert 0 < read.terminals.sum() < rows
    batch = ours.prepare(batch)
    loss, _ = ours.critic_loss(ours.summarize(batch), batch)
    expected = theirs.compute_loss(read, theirs.compute_target(read)).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    theirs.modules.q_funcs.zero_grad()
    loss.backward(), expected.backward()
    for mine, other in zip(ours.critics.parameters(), theirs.modules.q_funcs.parameters(), strict=True):
        assert torch.allclose(mine.grad, other.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "library, algo",
    [("d3rlpy", "dbc"), ("d3rlpy", "dcql"), *(("tianshou", algo) for algo in ("dbc", "dbcq", "dcql", "dcrr"))],
)
def test_a_learner_acts_one_hot(library, algo):
    pytest.importorskip(library)
    torch.manual_seed(0)
    module, _ = load(library)
    learner = module.learner(Case(algo, algo, "update", algo, (), SIZES), one_hot_data())
    for _ in range(3):
        learner.update()
    actions = learner.act(one_hot_data().observations[:5])
    assert actions.shape == (5, NUM_ACTIONS) and (actions.sum(1) == 1.0).all()
