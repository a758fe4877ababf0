import math
from types import SimpleNamespace

import gin
import gymnasium
import numpy as np
import pytest
import torch

import offpcc.envs  # noqa: F401 (registers)
from offpcc.algorithms import SAC
from offpcc.algorithms.variants import RecurrentSAC
from offpcc.core import Batch
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.envs.check import LONGEST_EPISODE
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.networks import Recurrent
from offpcc.training import metrics
from offpcc.training.build import build
from offpcc.training.callbacks import Callback
from offpcc.training.checkpoint import read_checkpoint, resume, save_checkpoint
from offpcc.training.evaluation import Evaluation, run_episodes
from offpcc.training.interaction import EpisodeResult, Interaction
from offpcc.training.loggers import Loggers
from offpcc.training.metrics import AverageStats, Clock, Loop
from offpcc.training.run_fns import train
from offpcc.training.spec import RunSpec
from offpcc.utils.errors import UserError


class Counting(gymnasium.Env):
    """Observes the number of steps taken; episodes have `length` steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1e6, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length=7, terminates=False):
        self.length, self.terminates = length, terminates

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t == self.length
        return np.full(1, self.t, np.float32), 1.0, over and self.terminates, over and not self.terminates, {}


class Recorder(Loggers):
    def __init__(self):
        super().__init__([])
        self.rows, self.phases = [], []

    def epoch(self, row):
        self.rows.append(row)

    def progress(self, progress):
        self.phases.append(progress.phase)


class Counted:
    """Counts updates, and remembers at which step of which episode they came."""

    stat_names = ("loss",)

    def __init__(self, memoryless=True):
        self.memoryless, self.updates, self.acted = memoryless, [], 0

    def act(self, step, memory=None, *, deterministic=False):
        self.acted += not deterministic
        return np.zeros((len(step.observation), 1), np.float32), (memory or 0) + 1

    def update_networks(self, batch):
        self.updates.append(self.interaction.environments.envs[0].unwrapped.t)
        return {"loss": torch.tensor(float(len(self.updates)))}


def parts(memoryless=True, longest_episode=LONGEST_EPISODE, **settings):
    algorithm, env = Counted(memoryless), Counting(**settings)
    kind = ReplayBuffer if memoryless else RecurrentReplayBuffer
    buffer = kind(env.observation_space, env.action_space, batch_size=2)
    algorithm.interaction = Interaction(
        LocalEnvironments(lambda: env, [0]), algorithm, buffer, longest_episode=longest_episode
    )
    return algorithm, buffer, algorithm.interaction


def run(memoryless=True, settings=(), longest_episode=LONGEST_EPISODE, **arguments):
    algorithm, buffer, interaction = parts(memoryless, longest_episode, **dict(settings))
    logger = Recorder()
    defaults = {"num_epochs": 2, "num_steps_per_epoch": 20, "update_after": 10}
    loop = train(algorithm, buffer, interaction, None, logger, **(defaults | arguments))
    return algorithm, logger, loop


class Weighted(ReplayBuffer):
    """Counts the calls of `update_priorities`."""

    weights, num_calls = None, 0

    def importance_weights(self, items):
        return self.weights

    def update_priorities(self, batch, td_error):
        assert torch.isfinite(td_error).all(), "those of a skipped update are NaN"
        self.num_calls += 1


def run_with(algorithm, buffer):
    env = Counting()
    algorithm.interaction = Interaction(LocalEnvironments(lambda: env, [0]), algorithm, buffer)
    settings = {"num_epochs": 1, "num_steps_per_epoch": 30, "update_after": 10}
    loop = train(algorithm, buffer, algorithm.interaction, None, Recorder(), **settings)
    return loop.rows[-1], loop


def test_a_skipped_update_sets_no_priorities():
    class Skipping(Counted):
        stat_names = ("loss", "skipped")

        def update_networks(self, batch):
            skipped = torch.tensor(float(len(self.updates) % 2))
            td_error = torch.where(skipped > 0, torch.nan, torch.ones_like(batch.loss_mask))
            return {**super().update_networks(batch), "td_error": td_error, "skipped": skipped}

    algorithm = Skipping()
    buffer = Weighted(Counting.observation_space, Counting.action_space, batch_size=2)
    buffer.weights = np.ones(2)
    row, loop = run_with(algorithm, buffer)
    assert loop.num_updates == 20 and buffer.num_calls == 10 and row["update/skipped"] == 0.5


def test_td_error_is_an_ordinary_statistic_without_weights():
    class Telling(Counted):
        stat_names = ("loss", "td_error")

        def update_networks(self, batch):
            return {**super().update_networks(batch), "td_error": torch.tensor(3.0)}

    buffer = Weighted(Counting.observation_space, Counting.action_space, batch_size=2)
    row, _ = run_with(Telling(), buffer)
    assert row["update/td_error"] == 3.0 and not buffer.num_calls


def test_an_agent_without_memory_updates_every_update_every_steps():
    algorithm, _, loop = run(update_every=5)
    assert loop.num_updates == len(algorithm.updates) == 30
    assert algorithm.acted == 30, "without a memory, random exploration needs no act"
    algorithm, _, _ = run(updates_per_step=0.5)
    assert len(algorithm.updates) == 15


def test_an_agent_with_memory_updates_between_episodes_only():
    algorithm, _, loop = run(memoryless=False)
    # 40 steps, episodes of 7: 30 updates are owed, those of the last 5 steps are paid at the end.
    assert algorithm.updates == [7] * 25 + [5] * 5
    assert algorithm.acted == 40, "a memory is kept warm during random exploration"
    assert loop.pending_updates == 0.0 and loop.num_updates == 30


def test_what_cannot_be_paid_stays_owed_and_is_told(capsys):
    algorithm, _, loop = run(memoryless=False, settings={"length": 100})
    assert algorithm.updates == []
    assert loop.pending_updates == 30.0
    told = capsys.readouterr().err
    assert told.startswith("offpcc: the run ended without an update, as no episode ended in its 40 steps, and an agent")
    assert "raise train.num_epochs" in told and told.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"updates_per_step": 0}, "as train.updates_per_step is 0"),
        ({"updates_per_step": 0.02}, "as no update was due in its 40 steps: each step after the first 10"),
        ({"update_after": 40}, "without an update, as no update was due in its 40 steps"),
        ({"update_after": 39}, None),
        (
            {"stop_return": 7.0, "update_after": 30},
            "as it was ended early, by train.stop_return or by a callback, before",
        ),
        ({}, None),
    ],
)
def test_a_run_without_an_update_says_why(capsys, settings, words):
    algorithm, buffer, interaction = parts()
    arguments = {"num_epochs": 2, "num_steps_per_epoch": 20, "update_after": 10} | settings
    loop = train(algorithm, buffer, interaction, Evaluation(Counting), Recorder(), **arguments)
    told = capsys.readouterr().err
    assert (loop.num_updates == 0) == bool(words)
    assert words in told and told.count("\n") == 1 if words else not told


@pytest.mark.parametrize("memoryless", [True, False])
@pytest.mark.parametrize(
    ("updates_per_step", "num_updates"),
    [(0.1, 3), (0.3, 9), (0.7, 21), (1 / 3, 10), (0.25, 7), (0.5, 15), (1.0, 30), (2.0, 60), (0.9, 27), (0.033, 0)],
)
def test_no_update_is_lost_to_rounding(memoryless, updates_per_step, num_updates):
    """30 steps learn; ten times 0.1, added up as floats, is less than 1."""
    loop = run(memoryless, updates_per_step=updates_per_step)[2]
    assert loop.num_updates == num_updates
    assert loop.pending_updates == pytest.approx(30 * updates_per_step - num_updates, abs=1e-9)


@pytest.mark.slow
def test_many_steps_owe_what_they_should():
    algorithm, buffer, interaction = parts()
    interaction.step(explore_at_random=True)
    batch = buffer.sample()
    buffer.sample = lambda: batch
    algorithm.update_networks = lambda batch: {}
    for updates_per_step in (0.1, 0.7):
        loop = train(
            algorithm, buffer, interaction, None, Recorder(), num_epochs=1, num_steps_per_epoch=20_000,
            update_after=0, updates_per_step=updates_per_step,
        )  # fmt: skip
        assert loop.num_updates == round(20_000 * updates_per_step)


def test_a_row_has_all_columns_and_the_means_of_its_epoch():
    _, logger, _ = run(num_steps_per_epoch=21)
    names = ["step", "update", "epoch", "train/return", "train/length", "test/return", "test/return_std", "test/length"]
    names += ["update/loss", "time/hours", "time/steps_per_second"]
    assert [list(row) for row in logger.rows] == [names] * 2
    first, second = logger.rows
    assert (first["step"], first["update"], first["epoch"]) == (21, 11, 1)
    assert first["train/return"] == first["train/length"] == 7.0
    assert first["test/return"] is None
    assert first["update/loss"] == np.mean(range(1, 12))
    assert second["update/loss"] == np.mean(range(12, 33))
    assert "exploring at random" in logger.phases


def test_tests_decide_the_best_and_when_to_stop():
    algorithm, buffer, interaction = parts()
    tests = Evaluation(Counting)
    logger = Recorder()
    arguments = {"num_epochs": 5, "num_steps_per_epoch": 10, "update_after": 49}
    loop = train(algorithm, buffer, interaction, tests, logger, stop_return=7.0, **arguments)
    assert (loop.epoch, loop.stopped, loop.best_return) == (1, True, 7.0)
    assert logger.rows[0]["test/return_std"] == 0.0
    loop = train(algorithm, buffer, interaction, tests, logger, stop_return=7.0, stop_tests=3, **arguments)
    assert (loop.epoch, loop.stopped) == (3, True)
    loop = train(algorithm, buffer, interaction, tests, logger, stop_return=7.5, **arguments)
    assert (loop.epoch, loop.stopped, loop.is_best) == (5, False, False)


def test_an_epoch_is_the_best_only_by_a_test_with_a_number():
    class Tests(Evaluation):
        def run(self, *_):
            test_return = returns.pop(0)
            return [] if test_return is None else [EpisodeResult(test_return, 1)]

    returns, best = [np.nan, 2.0, None, np.nan, 3.0], []

    class Best(Callback):
        def on_epoch(self, run):
            best.append((run.loop.is_best, run.loop.best_return))

    algorithm, buffer, interaction = parts()
    arguments = {"num_epochs": 5, "num_steps_per_epoch": 10, "updates_per_step": 0, "callbacks": [Best()]}
    train(algorithm, buffer, interaction, Tests(Counting), Recorder(), **arguments)
    assert best == [(False, None), (True, 2.0), (False, 2.0), (False, 2.0), (True, 3.0)]


def test_without_an_environment_the_loop_learns_from_the_buffer_alone():
    algorithm, buffer, interaction = parts()
    for _ in range(20):
        interaction.step(explore_at_random=True)
    loop = train(algorithm, buffer, None, None, Recorder(), num_epochs=1, num_steps_per_epoch=15, update_after=1000)
    assert loop.num_updates == 15
    assert len(buffer) == 20


def test_test_episodes_are_the_same_for_every_run():
    starts = []
    for seed in (1, 2):
        learner = build("pendulum-p-v0", "sac", seed=seed, algorithm={"hidden_dims": (4,)})
        learner.tests.make_env = lambda make=learner.tests.make_env: Watched(make(), starts)
        results = learner.tests.run(learner.algorithm, 3, 3)
        begun = len(starts)
        assert learner.tests.run(learner.algorithm, 3, 3) == results  # by the policy's mode, without noise
        del starts[begun:]
    assert len(starts) == 6 and starts[:3] == starts[3:] and len(set(starts)) == 3


def test_an_agent_sees_its_previous_action_and_reward_in_test_episodes():
    """Three episodes of four steps in two environments: the first one plays two of them."""
    seen = []

    class Seeing(Counted):
        def act(self, step, memory=None, *, deterministic=False):
            seen.append([part[0].item() for part in step])
            return np.full((len(step.observation), 1), 0.1 * len(seen), np.float32), None

    results = run_episodes(Seeing(), [Counting(4), Counting(4)], [0, 1, 2])
    assert results == [EpisodeResult(4.0, 4)] * 3
    begun = [0.0, 0.0, 0.0, 1.0]  # observation, action, reward, is_first
    later = [[float(t % 4), np.float32(0.1 * t), 1.0, 0.0] for t in range(8)]
    assert seen == [begun, *later[1:4], begun, *later[5:]]


class Watched(gymnasium.Wrapper):
    def __init__(self, env, starts):
        super().__init__(env)
        self.starts = starts

    def reset(self, **options):
        observation, info = self.env.reset(**options)
        self.starts.append(tuple(observation))
        return observation, info


def test_an_environment_that_never_ends_is_refused_where_episodes_are_needed():
    """An agent without memory learns step by step; one with memory, and any test, is kept waiting."""
    with pytest.raises(UserError, match=r"TimeLimit"):
        run(memoryless=False, settings={"length": 10_000}, num_epochs=10, longest_episode=50)
    algorithm, logger, loop = run(memoryless=True, settings={"length": 10_000}, num_epochs=10)
    assert (loop.step, loop.num_updates, algorithm.updates[-1]) == (200, 190, 200)
    assert all(row["train/return"] is None for row in logger.rows)
    with pytest.raises(UserError, match=r"Counting .*50 steps"):
        Evaluation(lambda: Counting(10_000), longest_episode=50).run(Counted(), 2, 2)


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("cls", [SAC, RecurrentSAC])
def test_episodes_of_any_length_train(cls, length, terminates):
    env = Counting(length, terminates)
    options = {"encoder": lambda shape: Recurrent(shape, hidden_dim=4, num_layers=1)} if cls is RecurrentSAC else {}
    algorithm = cls(env.observation_space, env.action_space, hidden_dims=(4,), **options)
    buffer_class = ReplayBuffer if algorithm.memoryless else RecurrentReplayBuffer
    buffer = buffer_class(env.observation_space, env.action_space, batch_size=4)
    interaction = Interaction(LocalEnvironments(lambda: env, [0]), algorithm, buffer)
    logger = Recorder()
    train(
        algorithm, buffer, interaction, Evaluation(lambda: Counting(length)), logger,
        num_epochs=1, num_steps_per_epoch=12, update_after=3,
    )  # fmt: skip
    assert logger.rows[0]["train/length"] == length
    assert np.isfinite(logger.rows[0]["update/critic_loss"])
    batch: Batch = buffer.sample()
    assert batch.terminations.max() == float(terminates)


class OneArray(Counting):
    """Writes every observation into the same array."""

    def reset(self, seed=None, options=None):
        self.array = super().reset(seed=seed)[0]
        return self.array, {}

    def step(self, action):
        observation, *rest = super().step(action)
        self.array[:] = observation
        return self.array, *rest


@pytest.mark.parametrize("memoryless", [True, False])
def test_an_environment_may_reuse_its_observation(memoryless):
    algorithm, buffer, _ = parts(memoryless)
    interaction = Interaction(LocalEnvironments(OneArray, [0]), algorithm, buffer)
    for _ in range(14):
        interaction.step(explore_at_random=True)
    batch = buffer.sample()
    assert buffer.num_transitions == 14
    np.testing.assert_array_equal(batch.observations[:, 1:], batch.observations[:, :-1] + 1.0)


def test_autoreset_around_an_environment_changes_nothing_that_is_stored():
    stored = []
    for wrapper in (lambda env: env, gymnasium.wrappers.Autoreset):
        algorithm, buffer, _ = parts()
        env = wrapper(gymnasium.make("pendulum-p-v0"))
        buffer = ReplayBuffer(env.observation_space, env.action_space)
        interaction = Interaction(LocalEnvironments(lambda env=env: env, [3]), algorithm, buffer, seed=3)
        for _ in range(450):
            interaction.step(explore_at_random=True)
        stored.append(buffer.storage.observations[: buffer.size])
    np.testing.assert_array_equal(*stored)


def test_average_stats_forget_what_they_told():
    stats = AverageStats()
    stats.add({"a": torch.tensor(1.0), "b": torch.tensor(4.0)})
    stats.add({"a": torch.tensor(2.0)})
    assert stats.means() == {"a": 1.5, "b": 4.0}
    assert stats.means() == {}


@pytest.mark.parametrize("resumed", [False, True])
def test_statistics_of_skipped_updates_are_left_out(resumed):
    stats = AverageStats()
    given = [(1.0, None, 0.0), (math.nan, math.nan, 1.0), (2.0, None, 0.0), (math.nan, None, 1.0)]
    for loss, actor_loss, skipped in given:
        told = {"loss": loss, "actor_loss": actor_loss, "skipped": skipped}
        stats.add({name: torch.tensor(value) for name, value in told.items() if value is not None})
        if resumed:
            again = AverageStats()
            again.load_state_dict(stats.state_dict())
            stats = again
    assert stats.num_skipped() == (2, 4)
    assert stats.means() == {"loss": 1.5, "skipped": 0.5}, "the actor had no update that was made"
    assert stats.num_skipped() == (0, 0) and stats.means() == {}


def test_sums_of_a_checkpoint_may_lie_on_another_device(monkeypatch):
    """A checkpoint's lie on the CPU; here "meta" stands for a GPU, and holds no numbers."""
    monkeypatch.setattr(torch.Tensor, "to", lambda x, device: torch.empty_like(x, device=device))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: [4.0] * len(x))
    for old, new in (("cpu", "meta"), ("meta", "cpu")):
        stats = AverageStats()
        sums = dict.fromkeys("ab", torch.ones((), device=old))
        stats.load_state_dict({"sums": sums, "counts": {"a": 1, "b": 1}, "left_out": {}})
        stats.add({"a": torch.ones((), device=new), "c": torch.ones((), device=new)})
        assert stats.sums["a"].device.type == new
        assert stats.means() == {"a": 2.0, "b": 4.0, "c": 4.0}


def test_a_loop_goes_on_from_its_state():
    loop = Loop(step=3, epoch=1, pending_updates=0.5, best_return=-7.0, seconds=2.5)
    other = Loop()
    other.load_state_dict(loop.state_dict())
    assert other == loop


@pytest.mark.parametrize("updates_per_step", [0.0, 0.5, 1.0])
def test_time_left_while_a_long_episode_is_paid_for(monkeypatch, updates_per_step):
    """200 steps in 10 seconds, then their updates in 190: a step a second, at any time after the first seconds."""
    times = iter(float(i) for i in range(2_000))
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: next(times)))

    class Seen(Loggers):
        def progress(self, progress):
            self.latest = progress

    loop, logger = Loop(), Seen([])
    clock = Clock(loop, 1_000, updates_per_step, logger)
    for _ in range(3):
        for _ in range(10):
            loop.step += 20
            loop.pending_updates += 20 * updates_per_step
            clock.report("learning")
        for _ in range(190):
            loop.pending_updates = max(loop.pending_updates - 200 / 190 * updates_per_step, 0.0)
            clock.report("learning")
    left = logger.latest.seconds_left
    assert left == pytest.approx(400) if updates_per_step else math.isinf(left)
    assert logger.latest.steps_per_second == pytest.approx(1.0 if updates_per_step else 0.0)


# Callbacks ------------------------------------------------------------------------------------------------------------


class Fitting(Callback):
    """Notes how many updates there were before each round."""

    def __init__(self):
        self.rounds = []

    def before_updates(self, run):
        assert len(run.buffer) and run.loop.pending_updates >= 1.0 - 1e-6
        self.rounds.append(run.loop.num_updates)


@pytest.mark.parametrize(
    "memoryless, settings, expected",
    [
        (True, {"update_every": 5}, [0, 5, 10, 15, 20, 25]),
        (True, {"update_every": 7, "num_epochs": 1}, [0, 4]),  # after steps 14 and 20, the last
        (True, {"updates_per_step": 0.5, "num_epochs": 1}, [0, 1, 2, 3, 4]),
        (False, {}, [0, 4, 11, 18, 25]),  # episodes of 7 steps; the last ends with the run
    ],
)
def test_callbacks_are_called_once_before_each_round_of_updates(memoryless, settings, expected):
    fitting = Fitting()
    algorithm, _, loop = run(memoryless, callbacks=[fitting], **settings)
    assert fitting.rounds == expected
    assert loop.num_updates == len(algorithm.updates) > expected[-1]


@pytest.mark.parametrize(
    "lengths, update_after, settings, expected",
    [
        # Rounds are due at steps 12, 18, 21, 24, 30, ...: where a parallel step of three passes a multiple of four.
        ((7, 7, 7), 9, {"update_every": 4, "num_steps_per_epoch": 15}, [0, 3, 9, 12, 15]),
        # With memory, at the end of any episode: after parallel steps 5, 7, 10, 14, 15 and 20.
        ((5, 7), 8, {"num_steps_per_epoch": 20}, [0, 2, 6, 12, 20, 22]),
    ],
)
def test_a_parallel_step_counts_for_each_environment(lengths, update_after, settings, expected):
    algorithm, fitting, makes = Counted("update_every" in settings), Fitting(), iter([*map(Counting, lengths)])
    kind = ReplayBuffer if algorithm.memoryless else RecurrentReplayBuffer
    buffer = kind(Counting.observation_space, Counting.action_space, batch_size=2, num_envs=len(lengths))
    environments = LocalEnvironments(lambda: next(makes), range(len(lengths)))
    algorithm.interaction = Interaction(environments, algorithm, buffer)
    options = {"num_epochs": 2, "update_after": update_after, **settings}
    loop = train(algorithm, buffer, algorithm.interaction, None, Recorder(), [fitting], **options)
    assert fitting.rounds == expected and loop.num_updates == loop.step - update_after


def test_updates_follow_a_test_that_truncated_the_episode_of_an_agent_with_memory():
    """Episodes have 7 steps, and epochs 20. The test plays in the environment of the training."""
    algorithm, buffer, interaction = parts(memoryless=False)
    fitting, tests = Fitting(), Evaluation(lambda: None)
    tests.shared = interaction
    options = {"num_epochs": 2, "num_steps_per_epoch": 20, "update_after": 10, "num_test_episodes_per_epoch": 1}
    train(algorithm, buffer, interaction, tests, Recorder(), [fitting], **options)
    assert fitting.rounds == [0, 4, 10, 17, 24]  # at steps 14, 20, 27, 34 and 40


@pytest.mark.slow
def test_a_model_fitted_inside_the_loop_resumes_exactly(tmp_path):
    """Kept in the algorithm, it is in the checkpoint; no round is fitted twice."""
    whole, parts = (_fitted(tmp_path / name, stops) for name, stops in (("whole", ()), ("parts", (30, 33))))
    assert torch.equal(whole.model.weight, parts.model.weight) and whole.model.count == parts.model.count > 1


def _fitted(folder, stops):
    class FitModel(Callback):
        def before_updates(self, run):
            batch, model = run.buffer.sample(), run.algorithm.model
            loss = (model(batch.observations[:, 0]) - batch.rewards[:, 0]).square().mean()
            (gradient,) = torch.autograd.grad(loss, [model.weight])
            with torch.no_grad():
                model.weight -= 0.1 * gradient
                model.count += 1

    class Stopping(Callback):
        def on_progress(self, run):
            if run.loop.num_updates >= stop:
                raise KeyboardInterrupt

    folder.mkdir()
    for stop in (*stops, math.inf):
        learner = build("pendulum-v0", "sac", algorithm={"hidden_dims": (8,)}, buffer={"batch_size": 8})
        learner.algorithm.model = torch.nn.Linear(3, 1)
        learner.algorithm.model.register_buffer("count", torch.zeros(()))
        torch.nn.init.zeros_(learner.algorithm.model.weight), torch.nn.init.zeros_(learner.algorithm.model.bias)
        if (folder / "checkpoint.pt").exists():
            assert resume(read_checkpoint(folder / "checkpoint.pt"), learner) == []
        saving = _Saving(folder / "checkpoint.pt", learner)
        settings = {"num_epochs": 1, "num_steps_per_epoch": 100, "update_after": 20, "update_every": 10}
        try:
            learner.train(Loggers([]), [FitModel(), saving, Stopping()], num_test_episodes_per_epoch=0, **settings)
        except KeyboardInterrupt:
            assert stop < math.inf
    return learner.algorithm


class _Saving(Callback):
    def __init__(self, file, learner):
        self.file, self.learner = file, learner

    def on_progress(self, run):
        save_checkpoint(self.file, self.learner, "", 1)


# Long episodes --------------------------------------------------------------------------------------------------------


def test_the_longest_episode_is_a_setting():
    env = Counting(length=60)
    algorithm = Counted()
    with pytest.raises(UserError, match=r"has not ended after 50 steps.*episodes\.longest=500"):
        Evaluation(lambda: env, longest_episode=50).run(algorithm, 1, 1)
    with pytest.raises(UserError, match="has not ended after 50 steps"):
        run(memoryless=False, settings={"length": 60}, num_steps_per_epoch=60, longest_episode=50)
    assert Evaluation(lambda: env, longest_episode=61).run(algorithm, 1, 1)[0].length == 60
    run(memoryless=False, settings={"length": 60}, num_steps_per_epoch=60, longest_episode=61)
    gin.bind_parameter("episodes.longest", 61)
    assert RunSpec.make("pendulum-v0", "sac").longest_episode == 61
    gin.bind_parameter("episodes.longest", 0)
    with pytest.raises(UserError, match=r"episodes\.longest is 0; it has to be"):
        RunSpec.make("pendulum-v0", "sac")
