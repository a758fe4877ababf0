"""Windows of n steps become single steps where images make those in between expensive: with the same targets."""

import gymnasium
import numpy as np
import pytest
import torch

from offpcc.algorithms import find_algorithm
from offpcc.core import Batch

IMAGES, ACTIONS = gymnasium.spaces.Box(0, 255, (1, 12, 12), np.uint8), gymnasium.spaces.Discrete(3)
STEPS, ROWS = 4, 40


def windows(seed=0, rows=ROWS):
    """Windows as a buffer gives them: they end at any length, some by a termination, some by one that goes on."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, STEPS + 1, rows)
    valid = (np.arange(STEPS + 1) <= lengths[:, None]).astype(np.float32)[..., None]
    ends = np.zeros((rows, STEPS, 1), np.float32)
    for row, length in enumerate(lengths):
        if row % 3 == 0:
            ends[row, length - 1] = 1.0
        elif row % 3 == 1:  # in the middle: what comes after counts no more
            ends[row, generator.integers(0, length)] = 1.0
    rewards = generator.normal(size=(rows, STEPS, 1)).astype(np.float32)
    rewards[valid[:, 1:] == 0.0] = np.nan
    mask = np.zeros((rows, STEPS, 1), np.float32)
    mask[:, 0] = 1.0
    actions = np.eye(3, dtype=np.float32)[generator.integers(0, 3, (rows, STEPS))]
    frames = generator.integers(0, 256, (rows, STEPS + 1, *IMAGES.shape)).astype(np.uint8)
    tensors = map(torch.from_numpy, (frames, actions, rewards, ends, valid, mask))
    return Batch(*tensors, torch.zeros(rows, 3), torch.zeros(rows, 1)), lengths


def agent(algo="cdqn", **arguments):
    from offpcc.config import loading

    names = ("kernels=(4,)", "strides=(4,)", "channels=(2,)", "feature_dim=None")
    loading.load_gin_config(None, [*(f"Convolutional.{one}" for one in names), "RandomShift.pad=0"])
    return find_algorithm(algo)(IMAGES, ACTIONS, **{"n_step": STEPS, "hidden_dims": (8,), "gamma": 0.9, **arguments})


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (3.0, -0.5), (1e-3, 1.0)])
def test_targets_are_those_of_the_windows(scale, shift):
    batch, lengths = windows()
    columns = torch.rand(4, ROWS, STEPS, 1)
    names = "next_actions", "has_next_action", "returns_to_go", "discounts_to_go"
    batch = batch._replace(**dict(zip(names, columns, strict=True)), states=torch.rand(ROWS, STEPS + 1, 2))
    ours, whole = agent(reward_scale=scale, reward_shift=shift), batch.without_padding()
    values = torch.randn(ROWS, STEPS, 1, generator=torch.Generator().manual_seed(1))
    expected = ours.td_target(whole, values)[:, 0]
    folded = batch.folded(0.9, scale, shift)
    last = torch.from_numpy(lengths)
    found = ours.td_target(folded, values[torch.arange(ROWS), last - 1].unsqueeze(1))[:, 0]
    torch.testing.assert_close(found, expected)
    rows = torch.arange(ROWS)
    assert torch.equal(folded.observations[:, 0], batch.observations[:, 0])
    assert torch.equal(folded.observations[:, 1], batch.observations[rows, last])
    assert torch.equal(folded.actions, batch.actions[:, :1]) and folded.valid.all()
    assert torch.equal(folded.states, batch.states[rows.unsqueeze(1), torch.stack([0 * last, last], 1)])
    for name, given in zip(names, columns, strict=True):  # the next action is that after the last step
        step = last - 1 if "next" in name else 0
        assert torch.equal(getattr(folded, name)[:, 0], given[rows, step])


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("algo", ["cdqn", "cqrdqn"])
def test_losses_and_gradients_are_those_of_the_windows(algo, double, monkeypatch):
    batch, _ = windows(2)

    def learned(folds):
        ours = agent(algo, double=double)
        monkeypatch.setattr(type(ours), "folds_windows", folds)
        with torch.no_grad():
            for parameter in [*ours.target_critics.parameters(), *ours.target_shared_encoder.parameters()]:
                parameter.mul_(1.5)  # so that targets differ from networks
        prepared = ours.prepare(batch)
        assert prepared.actions.shape[1] == (1 if folds else STEPS)
        loss, _ = ours.critic_loss(ours.summarize(prepared), prepared)
        loss.backward()
        return loss, [parameter.grad for parameter in ours.shared_encoder.parameters()]

    (loss, gradients), (expected, expected_gradients) = learned(True), learned(False)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients, expected_gradients)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("n_step", [1, STEPS])
@pytest.mark.parametrize(
    ("algo", "arguments"),
    [
        *((algo, {"double": double}) for algo in ("cdqn", "cqrdqn", "cdbcq", "cdcql") for double in (False, True)),
        ("cdsac", {}),
        ("cdcrr", {}),
    ],
)
def test_no_summary_that_was_left_out_reaches_an_update(algo, arguments, n_step):
    """It is NaN, which an update would refuse."""
    ours = agent(algo, n_step=n_step, **arguments)
    batch = windows(3)[0]
    if n_step == 1:
        batch = batch.folded(1.0)._replace(discounts=None)
    before = [parameter.clone() for parameter in ours.shared_encoder.parameters()]
    stats = ours.update_networks(batch)
    assert all(torch.isfinite(value).all() for value in stats.values())
    assert stats["critic_loss"] < 1e6, "of an action that is not allowed, as all seem to be by NaN"
    after = list(ours.shared_encoder.parameters())
    assert all(torch.isfinite(one).all() for one in after)
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(("algo", "sees_images"), [("cql", False), ("rcql", False), ("ccql", True), ("crcql", True)])
def test_cql_samples_actions_of_the_policy_at_the_observation_after_each_step(algo, sees_images, monkeypatch):
    """Not at the one that the target bootstraps from, n steps later: vectors, memories and images have one formula."""
    batch, lengths = windows(4)
    space, actions = (gymnasium.spaces.Box(-1, 1, (num,), np.float32) for num in (144, 3))
    if not sees_images:
        batch = batch._replace(observations=batch.observations.flatten(2) / 255.0)
    agent()  # loads its settings of images
    arguments = {"n_step": STEPS, "hidden_dims": (8,), "num_samples": 2}
    ours = find_algorithm(algo)(IMAGES if sees_images else space, actions, **arguments)
    read, samples = [], ours.samples
    monkeypatch.setattr(ours, "samples", lambda summary, num: read.append(summary) or samples(summary, num))

    def found(batch):
        batch = ours.prepare(batch)
        h = ours.summarize(batch)
        read.clear()
        ours.q_and_soft_maximum(h, batch)
        return [summary[:, 0] for summary in read]

    steps = {name: x[:, : 2 if x.shape[1] > STEPS else 1] for name, x in zip(batch._fields[:6], batch[:6], strict=True)}
    torch.testing.assert_close(found(batch), found(batch._replace(**steps)))
    assert (lengths > 1).any()


def test_encoders_that_read_previous_actions_see_all_steps():
    from offpcc.networks.convolutional import Convolutional

    class Reading(Convolutional):
        def __init__(self, shape, **kwargs):
            super().__init__(shape, **{"kernels": (4,), "strides": (4,), "channels": (2,), **kwargs})

    assert agent().folds_windows
    ours = agent(shared_encoder=lambda shape: Reading(shape, use_previous_action=True))
    assert not ours.folds_windows


def test_an_encoder_within_another_that_reads_previous_actions_sees_all_steps():
    from functools import partial

    from offpcc.networks import Convolutional, Identity
    from offpcc.utils.spaces import PackedDict

    arm = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    space = PackedDict(gymnasium.spaces.Dict({"camera": IMAGES, "arm": arm}))
    small = {"kernels": (4,), "strides": (4,), "channels": (2,), "feature_dim": 5}
    for reads in (False, True):
        encoder = partial(Convolutional, **small, vector_encoder=partial(Identity, use_previous_action=reads))
        ours = find_algorithm("cdqn")(space, ACTIONS, n_step=STEPS, hidden_dims=(8,), shared_encoder=encoder)
        assert ours.folds_windows != reads


@pytest.mark.parametrize(
    ("algo", "arguments"),
    [("cdqn", {"double": False}), ("cdqn", {}), ("cqrdqn", {}), ("cdcql", {}), ("cdsac", {})],
)
def test_encoders_of_their_own_do_not_read_what_was_left_out(algo, arguments):
    """Batch normalisation would take its NaN into the statistics."""
    from torch import nn

    from offpcc.networks.encoders import Encoder, vector, vector_dim

    class Normalizing(Encoder):
        def __init__(self, shape):
            super().__init__(shape)
            self.dim, self.norm = vector_dim(shape.observation), nn.BatchNorm1d(vector_dim(shape.observation))

        def forward(self, inputs, state=None):
            x = vector(inputs.observation)
            return self.norm(x.flatten(0, 1)).view_as(x), None

    ours = agent(algo, n_step=1, encoder=Normalizing, **arguments)
    stats = ours.update_networks(windows(3)[0].folded(1.0)._replace(discounts=None))
    assert all(torch.isfinite(value).all() for value in stats.values())
    assert all(torch.isfinite(buffer.float()).all() for part in ours.networks() for buffer in part.buffers())
