"""What is measured of TorchRL are the algorithms as they are defined, at the sizes of the cases."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import relu, softplus

from benchmarks.cases import CASES, Sizes
from benchmarks.libraries import UnavailableError, load
from benchmarks.passes import PASSES

pytest.importorskip("torchrl")
agents, _ = load("torchrl")
SIZES = Sizes(hidden_dims=(16, 16), batch_size=32, num_samples=3)
GAMMA, ROWS, B = 0.99, 32, SIZES.batch_size


def mlp(weights, *inputs):
    """Of one network, or of N: (..., rows, 1)."""
    value = torch.cat(inputs, -1)
    for name in "024":
        value = value @ weights[name, "weight"].mT + weights[name, "bias"].unsqueeze(-2)
        value = value if name == "4" else relu(value)
    return value


class Known:
    """A loss, a batch of which a third is terminated, and what the loss's networks say about it."""

    def __init__(self, name):
        torch.manual_seed(1)
        self.loss = agents.BUILDERS[name](SIZES)
        draws = np.random.default_rng(0)
        self.o, self.following = draws.normal(size=(2, ROWS, 11)).astype(np.float32)
        self.a, self.r = (draws.uniform(-0.9, 0.9, (ROWS, dim)).astype(np.float32) for dim in (3, 1))
        terminated = np.arange(ROWS)[:, None] % 3 == 0
        self.batch = agents._rows(self.o, self.a, self.r, self.following, terminated, ~terminated, [ROWS])
        self.o, self.following, self.a, self.r = map(torch.from_numpy, (self.o, self.following, self.a, self.r))
        self.continues = GAMMA * torch.from_numpy(~terminated).float()
        with torch.no_grad():  # else they are equal to those that learn
            for target in self.loss.buffers():
                if target.dim() > 1:
                    target.mul_(1.1)

    def q(self, o, a, kind=""):
        weights = getattr(self.loss, f"{kind}qvalue_network_params")["module"]
        return mlp(weights, *(x.expand(2, *x.shape) for x in (a, o)))

    def actor(self, o, kind=""):
        return mlp(getattr(self.loss, f"{kind}actor_network_params")["module", "0", "module"], o)

    def sampled(self, o):
        """Actions of the Gaussian policy and log pi, with the next random numbers."""
        mean, scale = mlp(self.loss.actor_network_params["module", "0", "module", "0"], o).chunk(2, -1)
        noise, scale = torch.randn(mean.shape), 0.01 + softplus(scale + math.log(math.exp(0.99) - 1.0))
        before = mean + scale * noise
        squashed = 2.0 * (math.log(2.0) - before - softplus(-2.0 * before))
        log_prob = torch.distributions.Normal(mean, scale).log_prob(before) - squashed
        return before.tanh(), log_prob.sum(-1, keepdim=True)

    def error(self, q, next_value):
        """The squared error of both critics."""
        return (q - (self.r + self.continues * next_value)).square().mean((1, 2)).sum()


@pytest.mark.parametrize("name", agents.BUILDERS)
def test_networks_are_those_of_the_case(name):
    assert {"torchrl", "torchrl-compiled"} <= {*CASES[name].libraries}
    learned = {each.network: (each.copies, each.dims) for each in PASSES[name](SIZES) if each.weights}
    expected = sum(
        copies * sum((below + 1) * above for below, above in itertools.pairwise(dims))
        for copies, dims in learned.values()
    )
    more = {"sac": 1, "cql": 1, "iql": 17 * 3}  # alpha; the policy's deviations
    loss = agents.BUILDERS[name](SIZES)
    assert sum(x.numel() for x in loss.parameters() if x.requires_grad) == expected + more.get(name, 0)


@pytest.mark.parametrize("name", agents.BUILDERS)
def test_an_update_moves_all_networks_and_their_targets(name):
    known, batch = Known(name), agents.filled(400, B).sample()
    assert batch.batch_size == (B,) and batch["next", "done"].dtype == torch.bool
    weights = {key: x for key, x in known.loss.state_dict().items() if key.endswith(("weight", "bias"))}
    before = {key: x.clone() for key, x in weights.items()}
    update = agents.updating(known.loss)
    for _ in range(agents.DELAY):
        update(batch.clone())
    assert not [key for key, x in weights.items() if torch.equal(x, before[key])]


@pytest.mark.parametrize("name", ["td3", "td3_bc"])
def test_losses_of_td3(name):
    known = Known(name)
    known.loss.policy_noise = 0.0
    of_next = known.q(known.following, known.actor(known.following, "target_").tanh(), "target_").amin(0)
    critics, _ = (known.loss.qvalue_loss if name == "td3_bc" else known.loss.value_loss)(known.batch)
    assert critics.item() == pytest.approx(known.error(known.q(known.o, known.a), of_next).item(), rel=1e-4)
    chosen = known.actor(known.o).tanh()
    q = known.q(known.o, chosen)[0]
    expected = -q.mean() if name == "td3" else -2.5 * q.mean() / q.abs().mean() + (chosen - known.a).square().mean()
    assert known.loss.actor_loss(known.batch)[0].item() == pytest.approx(expected.item(), rel=1e-4)


def test_losses_of_iql():
    known = Known("iql")
    value = known.loss.value_network_params["module"]
    advantage = known.q(known.o, known.a, "target_").amin(0) - mlp(value, known.o)
    found = known.loss(known.batch)
    weight = torch.where(advantage > 0.0, 0.7, 0.3)
    assert found["loss_value"].item() == pytest.approx((weight * advantage.square()).mean().item(), rel=1e-4)
    error = known.error(known.q(known.o, known.a), mlp(value, known.following))
    assert found["loss_qvalue"].item() == pytest.approx(error.item(), rel=1e-4)


@pytest.mark.parametrize("name", ["sac", "cql"])
def test_losses_of_sac_and_cql(name):
    """With the same random numbers in the same order."""
    known = Known(name)
    torch.manual_seed(2)
    found = known.loss(known.batch.clone())
    torch.manual_seed(2)
    following, entropy = known.sampled(known.following)
    of_next = known.q(known.following, following, "target_")
    of_next = (of_next - entropy if name == "sac" else of_next).amin(0)
    q = known.q(known.o, known.a)
    assert found["loss_qvalue"].item() == pytest.approx(known.error(q, of_next).item(), rel=1e-4)
    if name == "cql":
        many, later = (x.repeat_interleave(SIZES.num_samples, 0) for x in (known.o, known.following))
        uniform = torch.empty(len(many), 3).uniform_(-1.0, 1.0)
        of_policy = [known.sampled(x) for x in (many, later)]
        values = [known.q(many, uniform) + 3.0 * math.log(2.0)]
        values += [known.q(x, a) - log_prob for x, (a, log_prob) in zip((many, later), of_policy, strict=True)]
        soft = torch.cat(values, -1).logsumexp(-1)  # of one action of each kind, elsewhere of all
        assert found["loss_cql"].item() == pytest.approx(5.0 * (soft.mean(1) - q.mean((1, 2))).sum().item(), rel=1e-4)
        known.sampled(known.o)  # for the loss of imitation
    chosen, log_prob = known.sampled(known.o)
    expected = (log_prob - known.q(known.o, chosen).amin(0)).mean()
    assert found["loss_actor"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_what_torchrl_lacks_is_told():
    with pytest.raises(UnavailableError, match="TorchRL has no bcq"):
        agents.prepare(CASES["bcq"], 200)


@pytest.mark.slow
def test_a_compiled_update_is_the_update():
    weights = []
    for compile in (False, True):
        known = Known("td3")
        known.loss.policy_noise = 0.0
        update = agents.updating(known.loss, compile)
        for _ in range(4):
            update(known.batch.clone())
        weights.append(torch.cat([x.detach().flatten() for x in known.loss.parameters()]))
    assert torch.allclose(*weights, atol=1e-5)
