"""Rounds of rollouts in a model, and resumes within them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import offpcc
from offpcc.algorithms import ALGORITHMS, COMBO, MBPO, MOPO, AleatoricPenalty
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.data import Dataset, PrioritizedRecurrentReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from offpcc.data.buffers.imagined import ImaginedBuffer
from offpcc.data.offline import read
from offpcc.networks.noise import Noise
from offpcc.training.metrics import Loop
from offpcc.training.models import files as model_files
from offpcc.training.models.files import find_or_train, fingerprint
from offpcc.training.models.imagination import Imagination, ImaginationOptions, imagination_options, imagined_capacity
from offpcc.training.models.training import ModelTraining
from offpcc.training.spec import data_name
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.locks import FolderLock

VECTORS, ACTIONS = Box(-np.inf, np.inf, (2,), np.float32), Box(-1, 1, (1,), np.float32)


def data():
    draw = np.random.default_rng(0)
    episode = draw.normal(size=(31, 2)).astype(np.float32), draw.uniform(-1, 1, (30, 1)), draw.normal(size=30), False
    return read(Dataset.from_episodes([episode] * 3, action_range=(-1.0, 1.0)))


def recorded():
    return data().rows


def built(learns_model=False):
    """An imagination with rollouts in every 10 updates, and a run in the middle of a round of updates."""
    algorithm = MBPO(VECTORS, ACTIONS, hidden_dims=(8,), seed=0)
    model = DynamicsModel(2, 1, hidden_dims=(8,), num_members=2, num_elites=1, termination="never")
    spread = dict.fromkeys(("mean", "std", "1"), 1.0)
    kinds = ("aleatoric", "epistemic", "deviation", "disagreement")
    rewards = {"largest_reward": 1.0, "smallest_reward": -1.0, "mean_reward": 0.0}
    model.facts = {"name": "x", **rewards, "uncertainty": dict.fromkeys(kinds, spread)}
    real, own = (ReplayBuffer(VECTORS, ACTIONS, seed=seed, batch_size=8) for seed in (0, 1))
    real.fill(recorded(), "x")
    buffer, options = ImaginedBuffer(real, own, 0.5), ImaginationOptions(every=10, steps_per_update=1.0)
    rows = None if learns_model else recorded()
    imagination = Imagination(options, model, buffer, rows, ModelTraining(max_epochs=1), 0, 0.99)
    loop = Loop(step=30, num_updates=8, pending_updates=7.0, updating=True)
    return imagination, SimpleNamespace(algorithm=algorithm, buffer=buffer, loop=loop)


def test_a_run_that_resumes_between_two_updates_plays_no_earlier():
    """Rollouts are made before a round of updates. The update at which they are due may come within one."""
    imagination, run = built()
    imagination.next_update = 10
    imagination.before_updates(run)
    run.loop.num_updates, run.loop.pending_updates = 12, 3.0
    imagination.on_start(run)
    assert not len(run.buffer.imagined)
    imagination.before_updates(run)
    assert len(run.buffer.imagined) == 10


def test_a_training_of_the_model_that_was_interrupted_is_repeated():
    def interrupted(self, run):
        raise signals.Interrupted(2)

    imagination, run = built(learns_model=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Imagination, "_train_model", interrupted)
        with pytest.raises(signals.Interrupted):
            imagination.before_updates(run)
    other, run = built(learns_model=True)
    other.load_state_dict(imagination.state_dict())
    other.on_start(run)
    assert other.num_trainings == 1 and len(run.buffer.imagined) == 10
    other.on_start(run)
    assert other.num_trainings == 1 and len(run.buffer.imagined) == 10


@pytest.mark.parametrize("from_scratch", [False, True])
def test_the_model_is_trained_from_scratch_or_on_from_the_last_one(from_scratch):
    """Its learning rate is so small that its weights stay those that a training begins with."""
    found = []
    for _ in range(2):
        imagination, run = built(learns_model=True)
        imagination.training = ModelTraining(max_epochs=1, lr=1e-12, weight_decay=0.0)
        imagination.options = replace(imagination.options, from_scratch=from_scratch)
        for step in (30, 300, 600):
            run.loop.step = step
            imagination.before_updates(run)
            found.append(torch.cat([weights.detach().flatten() for weights in imagination.model.parameters()]))
        assert imagination.num_trainings == 3
    first, second, third = found[:3]
    assert torch.allclose(first, second, atol=1e-6) is not from_scratch
    assert torch.allclose(second, third, atol=1e-6) is not from_scratch
    assert all(torch.equal(one, other) for one, other in zip(found[:3], found[3:], strict=True))


@pytest.mark.parametrize("clear", [False, True])
def test_imagined_transitions_are_deleted_after_the_model_was_trained_again_if_asked(clear):
    imagination, run = built(learns_model=True)
    imagination.options = replace(imagination.options, clear=clear)
    for step, num_updates, expected in ((30, 8, 10), (40, 18, 20), (280, 20, 10 if clear else 30)):
        run.loop.step, run.loop.num_updates = step, num_updates
        imagination.before_updates(run)
        assert len(run.buffer.imagined) == expected
    assert imagination.num_trainings == 2  # the new model is played in at once


def test_a_round_has_the_steps_of_the_updates_until_the_next_one():
    """Of one step for each of ten updates, or of more updates that are pending, in rollouts of five steps."""
    imagination, run = built()
    imagination.options = replace(imagination.options, length=5)
    for num_updates, pending, expected in ((8, 7.0, 10), (17, 7.0, 10), (18, 25.0, 35), (42, 1.0, 35), (43, 1.0, 45)):
        run.loop.num_updates, run.loop.pending_updates = num_updates, pending
        imagination.before_updates(run)
        assert len(run.buffer.imagined) == expected


def test_a_run_of_a_gpu_goes_on_with_a_generator_of_the_cpu():
    """The states of their generators have other sizes."""
    imagination, _ = built()
    state = {**imagination.state_dict(), "device": "cuda", "generator": torch.zeros(16, dtype=torch.uint8)}
    other, _ = built()
    other.load_state_dict(state)
    assert torch.equal(other.generator.get_state(), imagination.generator.get_state())


@pytest.mark.parametrize("data", ["hopper-medium-v2", "folder/hopper_medium-v2.hdf5"])
def test_a_file_of_d4rl_has_its_tuned_rollouts(data):
    options = imagination_options(AleatoricPenalty, "aleatoric_penalty", data_name(data))
    assert (options.length, options.penalty) == (15, 300.0)


# A model that several runs need ------------------------------------------------------------------------------------


def test_a_run_waits_for_the_model_that_another_process_trains(tmp_path, monkeypatch, capsys):
    """Otherwise each would train its own into one file, and all but one could not be resumed."""
    monkeypatch.setenv("OFFPCC_MODELS_DIR", str(tmp_path))
    settings, training = {"hidden_dims": (4,), "num_members": 2, "num_elites": 1}, ModelTraining(max_epochs=1)

    def model_of(seed):
        return find_or_train(data(), [""], settings, training, torch.device("cpu"), seed)

    first = model_of(0)
    (file,) = tmp_path.glob("*.pt")
    file.rename(tmp_path / "later")
    lock = FolderLock(tmp_path, f".{file.stem}.lock")
    lock.take()

    def end_of_the_other(seconds):
        (tmp_path / "later").rename(file)
        lock.close()

    monkeypatch.setattr(model_files, "time", SimpleNamespace(sleep=end_of_the_other))
    second = model_of(1)
    assert fingerprint(second) == fingerprint(first)
    assert "another process trains this model" in capsys.readouterr().err
    assert [*tmp_path.glob("*.pt")] == [file]


# Agents that learn in an environment ---------------------------------------------------------------------------------


def test_with_memory_few_enough_rollouts_are_kept_for_the_episodes_of_the_environment():
    """Each may begin with all recorded steps of an episode: the pendulum's have 200."""
    offpcc.configure(None, "Imagination.capacity = 10_000")
    built = offpcc.build("pendulum-p-v0", "rmbpo", algorithm={"hidden_dims": (8,)})
    assert built.buffer.imagined.capacity == 10_000 // (200 + 1 + 1)
    built.close()


def test_stacked_frames_are_refused():
    """The buffer holds single frames, and a model would read these."""
    offpcc.configure(None, "make.wrappers = [@Concatenate]", "Concatenate.num = 3")
    with pytest.raises(UserError, match=r"stacks of 3 observations.*DynamicsModel\.history = 3"):
        offpcc.build("pendulum-p-v0", "mbpo", algorithm={"hidden_dims": (8,)})


@pytest.mark.parametrize(
    ("holds_episodes", "capacity", "expected"),
    [
        (False, 1_000_000, 4 * 100 * 4),  # 4 rounds of 100 rollouts of 3 steps and a last observation
        (False, 1_000, 1_000),
        (True, 1_000_000, 4 * 100),
        (True, 5_000, 5_000 // (20 + 4)),  # the recorded steps before a rollout count
    ],
)
def test_a_number_of_rounds_is_kept_in_a_buffer_of_any_kind(holds_episodes, capacity, expected):
    options = ImaginationOptions(length=3, steps_per_update=3.0, every=100, keep=4, capacity=capacity)
    real = SimpleNamespace(holds_episodes=holds_episodes, segment_len=None, burn_in=0)
    assert imagined_capacity(options, real, longest=20) == expected


def test_a_schedule_keeps_its_shortest_rollouts():
    options = ImaginationOptions(length=(0, 10, 1, 15), steps_per_update=3.0, every=100, keep=4)
    real = SimpleNamespace(holds_episodes=False, segment_len=None, burn_in=0)
    assert imagined_capacity(options, real, longest=20) == 4 * 300 * 2


def test_rounds_of_longer_rollouts_replace_as_many_rounds(monkeypatch):
    """A round of longer rollouts has fewer rows, so the buffer alone would keep more rounds."""
    imagination, run = built()
    imagination.options = replace(imagination.options, length=(0, 40, 1, 15), steps_per_update=6.0, keep=3)
    own, played = run.buffer.imagined, []
    extend = own.extend
    monkeypatch.setattr(own, "extend", lambda rows, *args: (played.append(rows), extend(rows, *args)))
    for number in range(8):
        run.loop.step, run.loop.num_updates = 10 * number, 10 * number
        imagination.next_update = run.loop.num_updates
        imagination.before_updates(run)
        length = imagination.length_at(run.loop.step)
        most = 3 * -(-60 // length) * length
        assert len(own) == min(sum(rows.is_start.sum() for rows in played), most)
        newest = np.concatenate([rows.observations[rows.is_start] for rows in played])[-most:]
        np.testing.assert_array_equal(own.storage.observations[own.storage.is_start], newest)
    again = ReplayBuffer(VECTORS, ACTIONS, seed=1, batch_size=own.batch_size)
    again.load_state_dict(own.state_dict())
    assert len(again) == len(own)
    for one, other in zip(own.sample(), again.sample(), strict=True):
        assert one is other or one == other if not isinstance(one, torch.Tensor) else torch.equal(one, other)


def test_a_rollout_fits_however_long_it_is():
    options = ImaginationOptions(length=(100, 150, 1, 15), steps_per_update=1.0, every=5, keep=1)
    real = SimpleNamespace(holds_episodes=False, segment_len=None, burn_in=0)
    assert imagined_capacity(options, real, longest=20) >= 15 + 1


@pytest.mark.parametrize(("algo", "cls"), [("mopo", MOPO), ("combo", COMBO)])
def test_the_configs_keep_the_rounds_that_they_say(algo, cls):
    offpcc.configure(f"algorithms/{algo}.gin")
    options = imagination_options(cls, algo, "swings")
    rollouts = options.keep * options.steps_per_update * options.every / options.length
    real = SimpleNamespace(holds_episodes=False, segment_len=None, burn_in=0)
    assert options.keep == 5 and imagined_capacity(options, real, longest=20) == rollouts * (options.length + 1)


def test_arguments_of_a_users_buffer_are_its_own():
    offpcc.configure(None, "Imagination.length = 3")
    given = {"buffer_class": PrioritizedReplayBuffer, "buffer": {"alpha": 0.5, "batch_size": 16}}
    built = offpcc.build("pendulum-v0", "mbpo", algorithm={"hidden_dims": (8,)}, **given)
    assert built.buffer.real.alpha == 0.5 and type(built.buffer.imagined) is ReplayBuffer
    assert built.buffer.real.batch_size == 16 and built.buffer.imagined.batch_size == 15  # 5% are real


def test_imagined_segments_are_as_long_as_those_of_a_users_buffer():
    offpcc.configure(None, "Imagination.length = 3")
    given = {"buffer_class": PrioritizedRecurrentReplayBuffer, "buffer": {"segment_len": 4, "burn_in": 3}}
    built = offpcc.build("pendulum-v0", "rmbpo", algorithm={"hidden_dims": (8,), "hidden_dim": 8}, **given)
    for part in (built.buffer.real, built.buffer.imagined):
        assert (part.segment_len, part.burn_in) == (4, 3)


@pytest.mark.parametrize(
    ("binding", "is_known"),
    [
        (None, True),
        ("make.timeout = 9", True),
        ("make.kwargs = {'terminate_when_unhealthy': False}", False),
        ("make.wrappers = [@ObservationNoise]\nObservationNoise.std = 0.1", False),
    ],
)
def test_the_termination_rule_of_a_changed_environment_is_learned(binding, is_known):
    pytest.importorskip("mujoco")
    bound = binding.splitlines() if binding else []
    offpcc.configure(None, "Imagination.length = 3", *bound)
    model = offpcc.build("Hopper-v5", "mbpo", algorithm={"hidden_dims": (8,)}).imagination.model
    assert (model.rule is not None) is is_known
    offpcc.configure(None, "DynamicsModel.termination = 'known'", *bound)
    assert offpcc.build("Hopper-v5", "mbpo", algorithm={"hidden_dims": (8,)}).imagination.model.rule is not None


def half_imagined():
    """A COMBO agent, and a batch whose first four of eight rows are imagined."""
    combo = COMBO(Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32), hidden_dims=(8,), bc_steps=10, seed=0)
    draw = np.random.default_rng(0)
    buffer = ReplayBuffer(combo.observation_space, combo.action_space, batch_size=8)
    for _ in range(20):
        seen = draw.uniform(-1, 1, (2, 2)).astype(np.float32)
        buffer.push(seen[0], draw.uniform(-1, 1, 1).astype(np.float32), 0.0, seen[1], False, False)
    return combo, buffer.sample()._replace(imagined=(torch.arange(8) < 4).float().view(8, 1, 1))


def test_imagined_actions_are_not_imitated():
    combo, batch = half_imagined()
    losses = []
    for other in (0.0, 0.9):
        own = combo.prepare(batch._replace(actions=torch.where(batch.imagined > 0, other, batch.actions)))
        combo.noise.load_state_dict(Noise(0, combo.device).state_dict())
        losses.append(combo.actor_loss(combo.summarize(own), own)[0].item())
    assert losses[0] == losses[1]


def test_combo_lowers_q_at_all_rows_and_raises_it_at_recorded_ones():
    """Equation 2, where the policy's actions are at recorded observations, too."""
    combo, batch = half_imagined()
    batch = combo.prepare(batch)
    h, state = combo.summarize(batch), combo.noise.state_dict()
    y = combo.target(h, batch)
    q, soft = (part.detach().double().numpy()[..., 0, 0] for part in combo.q_and_soft_maximum(h, batch))
    gap = soft.mean(1) - q[:, 4:].mean(1)  # of each critic
    expected = ((q - y.double().numpy()[:, 0, 0]) ** 2).mean(1).sum() + combo.conservative_weight * gap.sum()
    combo.noise.load_state_dict(state)
    loss, stats = combo.critic_loss(h, batch)
    assert loss.item() == pytest.approx(expected, rel=1e-5) and stats["gap"].item() == pytest.approx(
        gap.mean(), rel=1e-5
    )


@pytest.mark.parametrize(
    "algo, expected",
    [
        ("mopo", {"length": 5, "uncertainty": "deviation", "penalty": 1.0}),
        ("morel", {"length": 10, "uncertainty": "epistemic", "threshold": "max * 1", "ends": "terminal"}),
        ("combo", {"length": 5, "real_share": 0.5, "penalty": None, "threshold": None}),
        ("neubay", {"length": 64, "uncertainty": "disagreement", "ends": "truncated", "one_member": True}),
        ("aleatoric_penalty", {"uncertainty": "aleatoric", "penalty": "range * 0.5", "mean_reward": True}),
        ("epistemic_penalty", {"uncertainty": "epistemic", "penalty": "range * 0.5", "mean_reward": True}),
        ("aleatoric_partitioning", {"uncertainty": "aleatoric", "threshold": "quantile 0.99", "ends": "terminal"}),
        ("epistemic_partitioning", {"uncertainty": "epistemic", "threshold": "quantile 0.99", "ends": "terminal"}),
    ],
)
def test_the_rollouts_of_an_algorithm_are_those_of_its_page(algo, expected):
    options = imagination_options(ALGORITHMS[algo], algo, "swings")
    assert {name: getattr(options, name) for name in expected} == expected


def test_rounds_are_of_one_model_unless_a_run_trains_it():
    assert imagination_options(MBPO, "mbpo", "").keep == 20
    assert imagination_options(MBPO, "mbpo", "swings").keep is None
