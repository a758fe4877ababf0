"""CQL's losses are d3rlpy's on equal weights and equal data."""

import numpy as np
import pytest
import torch

from benchmarks.cases import Sizes
from benchmarks.libraries import load, offpcc_agents
from benchmarks.recorded import transitions
from offpcc.core import Batch

SIZES = Sizes(hidden_dims=(64, 64), batch_size=256, num_samples=10)
REPEATS = 40  # over which losses of sampled actions are averaged


@pytest.fixture(scope="module")
def both():
    """offpcc's agent with the weights of d3rlpy's after 50 updates, d3rlpy's, and a batch of each."""
    d3rlpy = pytest.importorskip("d3rlpy")
    torch.manual_seed(0)
    module, _ = load("d3rlpy")
    data = module.dataset(transitions(4_000))
    agent = module.CONFIGS["cql"](SIZES).create(device=False)
    agent.build_with_dataset(data)
    for _ in range(50):
        agent.update(data.sample_transition_batch(SIZES.batch_size))
    theirs, ours = agent.impl, offpcc_agents.algorithm("cql", SIZES, normalize_observations=False)
    with torch.no_grad():
        for number, q in enumerate(theirs.modules.q_funcs):
            for mine, weights in zip(ours.critics.parameters(), q.parameters(), strict=True):
                mine[number].copy_(weights.T if weights.dim() == 2 else weights)
        *hidden, mean, mean_bias, log_std, log_std_bias = theirs.modules.policy.parameters()
        policy = [*hidden, torch.cat([mean, log_std]), torch.cat([mean_bias, log_std_bias])]
        for mine, weights in zip(ours.actor.parameters(), policy, strict=True):
            mine.copy_(weights)
    ours.num_samples = theirs._n_action_samples = 64  # fewer would make the averages below rough
    drawn = data.sample_transition_batch(SIZES.batch_size)
    to_torch = d3rlpy.torch_utility.TorchMiniBatch.from_batch
    read = to_torch(drawn, gamma=0.99, compute_returns_to_go=False, device="cpu")
    rows = SIZES.batch_size
    batch = Batch(
        observations=torch.stack([read.observations, read.next_observations], 1),
        actions=read.actions[:, None],
        rewards=read.rewards[:, None],
        terminations=read.terminals[:, None],
        valid=torch.ones(rows, 2, 1),
        loss_mask=torch.ones(rows, 1, 1),
        first_action=torch.zeros(rows, read.actions.shape[1]),
        first_reward=torch.zeros(rows, 1),
    )
    return ours, theirs, batch, read


@pytest.mark.slow
def test_the_conservative_term_and_its_gradient(both):
    ours, theirs, batch, read = both
    h, values, gradients = ours.summarize(ours.prepare(batch)), ([], []), ([], [])

    def mine():
        q, soft_maximum = ours.q_and_soft_maximum(h, batch)
        return ours.excess(batch.mean(soft_maximum - q)).sum(), ours.critics

    def others():
        seen = read.observations, read.actions, read.next_observations, read.returns_to_go
        threshold = theirs._alpha_threshold * theirs._conservative_weight
        return (theirs._compute_conservative_loss(*seen) + threshold).sum(), theirs.modules.q_funcs

    for number, term in enumerate((mine, others)):
        for _ in range(REPEATS):
            loss, critics = term()
            critics.zero_grad()
            loss.backward()
            values[number].append(loss.item())
            weights = list(critics.parameters())
            first = [x.grad[0] for x in weights] if number == 0 else [x.grad.t() for x in weights[: len(weights) // 2]]
            gradients[number].append(torch.cat([x.flatten() for x in first]))
    assert np.mean(values[0]) == pytest.approx(np.mean(values[1]), rel=1e-3)
    one, other = (torch.stack(found).mean(0) for found in gradients)
    assert (one - other).norm() < 0.04 * other.norm()  # both are averages of samples


@pytest.mark.slow
def test_the_squared_error(both):
    ours, theirs, batch, read = both
    target = theirs.compute_target(read)
    found = theirs._q_func_forwarder.compute_error(
        read.observations, read.actions, read.rewards, target, read.terminals, gamma=0.99
    )
    h = ours.summarize(ours.prepare(batch))
    y = ours.td_target(batch, target[:, None])
    assert ours.td_loss(batch, ours.critics(h.q, batch.actions), y)[0].item() == pytest.approx(found.item(), rel=1e-5)
