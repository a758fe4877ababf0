"""Algorithms that learn in a model: what they store, their limits, their buffers, and exact resume."""

import contextlib
import functools
import shutil

import gymnasium
import numpy as np
import pytest
import torch
from conftest import merged, rows
from exact_resume import assert_equal_runs, assert_same
from gymnasium.spaces import Box
from runs import assert_stops_and_resumes_exactly, progress_rows

import offpcc
from offpcc.algorithms import ALGORITHMS
from offpcc.algorithms.dynamics import DynamicsModel, ModelStep, Uncertainty
from offpcc.core import Step
from offpcc.data import Dataset, RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.imagined import ImaginedBuffer
from offpcc.data.buffers.storage import RecordedEpisodes, TransitionTable
from offpcc.data.offline import read
from offpcc.networks import Recurrent
from offpcc.training import build
from offpcc.training.models.files import load_model, model_for_data
from offpcc.training.models.imagination import Imagination, ImaginationOptions, imagination_options
from offpcc.training.models.training import ModelFit, ModelTraining
from offpcc.training.models.tuned_rollouts import KINDS, TASKS, TUNED, tuned_pair
from offpcc.training.spec import model_settings
from offpcc.utils import signals
from offpcc.utils.errors import DataWarning, UserError

VECTORS, ACTIONS = Box(-np.inf, np.inf, (2,), np.float32), Box(-1, 1, (1,), np.float32)
SMALL = (
    "DynamicsModel.hidden_dims=(16,16)",
    "DynamicsModel.num_members=2",
    "DynamicsModel.num_elites=2",
    "ModelTraining.max_epochs=2",
    "Imagination.every=20",
    "Imagination.length=3",
    "Imagination.steps_per_update=4",
    "ActorCritic.hidden_dims=(16,16)",
    "train.num_epochs=2",
    "train.num_steps_per_epoch=60",
    "train.num_test_episodes_per_epoch=1",
)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# Rollouts in a model whose steps are known --------------------------------------------------------------------------


class KnownModel(DynamicsModel):
    """x' = x + 0.1 times the oldest action that it reads, reward x'[0], uncertainty |x[0]|, ends above 3.

    The mean reward is the first number of the oldest observation that it reads.
    """

    def imagine(self, observations, actions, generator, places=None, with_uncertainty=True):
        if generator is not None:
            torch.rand(1, generator=generator)
        now = observations[:, -1]
        following = now + 0.1 * actions[:, 0]
        unsure = now[:, 0].abs()
        no = torch.zeros(len(now), dtype=torch.bool)
        uncertainty = Uncertainty(unsure, unsure, unsure, unsure)
        return ModelStep(following, following[:, 0], following[:, 0] > 3.0, uncertainty, no, observations[:, 0, 0])


def recorded(num_episodes=6, length=12, low=0.0, high=1.0):
    draw, episodes = np.random.default_rng(0), []
    for number in range(num_episodes):
        start = np.linspace(low, high, num_episodes)[number]
        observations = np.full((length + 1, 2), start, np.float32)
        observations[:, 1] = np.arange(length + 1)
        actions = draw.uniform(-1, 1, (length, 1)).astype(np.float32)
        rewards = (1.0 + np.arange(length)).astype(np.float32)
        episodes.append({"observations": observations, "actions": actions, "rewards": rewards, "terminated": False})
    return read(Dataset.from_episodes(episodes, action_range=(-1.0, 1.0)))


def untrained(algo="mopo"):
    return ALGORITHMS[algo](VECTORS, ACTIONS, hidden_dims=(8,), seed=0)


def played(algo="mopo", history=1, data=None, number=50, length=4, **options):
    """Let an untrained agent play in the known model; return the imagination."""
    data = data or recorded()
    algorithm = untrained(algo)
    model = KnownModel(2, 1, history=history, hidden_dims=(8,), num_members=2, num_elites=2)
    spread = {"mean": 0.5, "std": 0.1, "0.5": 0.5, "0.9": 0.8, "0.99": 0.9, "1": 1.0}
    model.facts = {
        "name": "x",
        "largest_reward": 12.0,
        "smallest_reward": 1.0,
        "mean_reward": 6.5,
        "uncertainty": dict.fromkeys(("aleatoric", "epistemic", "deviation", "disagreement"), spread),
    }
    kind = ReplayBuffer if algorithm.memoryless else RecurrentReplayBuffer
    real, own = (kind(VECTORS, ACTIONS, seed=seed, batch_size=8) for seed in (0, 1))
    real.fill(data.rows, "x")
    buffer = ImaginedBuffer(real, own, 0.25)
    given = ImaginationOptions(**options)
    imagination = Imagination(given, model, buffer, data.rows, ModelTraining(), 0, 0.99)
    imagination.play(algorithm, number, length)
    return imagination


def test_a_batch_holds_an_item_of_each_kind():
    real, own = (ReplayBuffer(VECTORS, ACTIONS, seed=seed, batch_size=8) for seed in (0, 1))
    assert [ImaginedBuffer(real, own, share).num_recorded for share in (0.0, 0.01, 0.5, 0.99, 1.0)] == [0, 1, 4, 7, 8]
    real.batch_size = 1
    assert [ImaginedBuffer(real, own, share).num_recorded for share in (0.0, 1.0)] == [0, 1]
    with pytest.raises(UserError, match=r"ReplayBuffer.batch_size is 1; .* needs at least 2"):
        ImaginedBuffer(real, own, 0.5)


def steps_of(imagination):
    return imagination.buffer.imagined.transition_table()


def before_and_after(table):
    """The observations before and after each step of a table, (N, 2)."""
    at = np.flatnonzero(table.is_start)
    return table.observations[at], table.observations[at + 1]


def test_rollouts_follow_the_model_from_recorded_observations():
    table = steps_of(played())
    assert len(table.starts) == 50 and set(table.stops - table.starts) == {5}
    before, after = before_and_after(table)
    actions, rewards = table.actions[table.is_start], table.rewards[table.is_start]
    np.testing.assert_allclose(after, before + 0.1 * actions, atol=1e-6)
    np.testing.assert_allclose(rewards[:, 0], after[:, 0], atol=1e-6)
    assert not table.terminations.any()  # a rollout's last step is a cut
    starts = table.observations[table.starts]
    assert set(starts[:, 1]) <= set(range(12)) and len(set(starts[:, 0])) > 3
    assert len(set(actions[:, 0])) > 100  # actions are drawn


def test_a_penalty_lowers_the_reward():
    table = steps_of(played(penalty=2.0))
    before, after = before_and_after(table)
    np.testing.assert_allclose(table.rewards[table.is_start][:, 0], after[:, 0] - 2.0 * abs(before[:, 0]), atol=1e-5)


@pytest.mark.parametrize(
    ("length", "text"),
    [(1, "1 step"), (4, "4 steps"), ("unbounded", "any length"), ((1, 5, 1, 3), "(1, 5, 1, 3) (a schedule)")],
)
def test_a_run_tells_the_length_of_its_rollouts(length, text):
    imagination = played()
    imagination.options = ImaginationOptions(length=length)
    assert imagination.lines()[0].startswith(f"rollouts of {text} in a model")


def test_a_penalty_raises_costs():
    imagination = played(penalty=2.0)
    imagination.reward_scale = -1.0  # targets have the rewards with this sign
    imagination._set_data(imagination.data.rows)
    imagination.buffer.imagined.clear()
    imagination.play(untrained(), 20, 4)
    table = steps_of(imagination)
    before, after = before_and_after(table)
    np.testing.assert_allclose(table.rewards[table.is_start, 0], after[:, 0] + 2.0 * abs(before[:, 0]), atol=1e-5)
    assert "the reward rises by 2 times" in imagination.lines()[0]


def test_a_threshold_ends_rollouts_as_failures():
    table = steps_of(played(threshold=0.5, length=4))
    unsure = abs(before_and_after(table)[0][:, 0]) > 0.5
    assert unsure.any() and not unsure.all()
    np.testing.assert_array_equal(table.terminations[table.is_start][:, 0], unsure)
    assert (table.rewards[table.is_start][unsure] == -12.0).all()  # minus the largest recorded reward
    stops = np.flatnonzero(table.is_start)[unsure] + 1
    assert not table.is_start[stops].any()  # nothing follows


def test_a_threshold_cuts_rollouts_before_the_step_that_is_not_trusted():
    table = steps_of(played(threshold=0.5, ends="truncated"))
    assert (abs(before_and_after(table)[0][:, 0]) <= 0.5).all()
    assert not table.terminations.any() and 0 < len(table.starts) < 50


def test_rollouts_end_where_the_model_says():
    data = recorded(low=2.8, high=2.99)
    table = steps_of(played(data=data, number=200, length=10))
    ended = table.terminations[table.is_start][:, 0] > 0
    assert ended.any()
    np.testing.assert_array_equal(ended, before_and_after(table)[1][:, 0] > 3.0)


@pytest.mark.parametrize(
    "algo, binding, given, history",
    [
        ("mopo", "", {}, 1),
        ("rmopo", "", {}, 4),
        ("mopo", "MOPO.encoder = @Recurrent", {}, 4),
        ("mopo", "", {"shared_encoder": functools.partial(Recurrent, cell="gru")}, 4),
        ("rmopo", "DynamicsModel.history = 2", {}, 2),
    ],
)
def test_the_model_of_an_agent_with_memory_reads_more_observations(algo, binding, given, history):
    offpcc.configure(None, *filter(None, [binding]))
    assert model_settings(ALGORITHMS[algo], given)["history"] == history


def test_a_model_with_a_history_reads_the_last_observations_and_actions():
    table = steps_of(played(history=3, length=6, number=30, mean_reward=True))
    for start, stop in zip(table.starts, table.stops, strict=True):
        observations, actions = table.observations[start:stop], table.actions[start : stop - 1]
        np.testing.assert_allclose(observations[3:], observations[2:-1] + 0.1 * actions[:-2], atol=1e-6)
        np.testing.assert_array_equal(table.rewards[start + 2 : stop - 1, 0], observations[:-3, 0])


def test_the_memory_reads_the_recorded_steps_before_a_rollout(monkeypatch):
    seen = []
    original = ALGORITHMS["rmopo"].act

    def act(self, step, memory=None, *, deterministic=False):
        seen.append((Step(*(np.array(part) for part in step)), deterministic))
        return original(self, step, memory, deterministic=deterministic)

    monkeypatch.setattr(ALGORITHMS["rmopo"], "act", act)
    data = recorded()
    imagination = played("rmopo", data=data, number=20, length=3)
    episodes = imagination.buffer.imagined.episodes
    assert len(episodes) == 20
    before = [step for step, deterministic in seen if deterministic]
    free = [step for step, deterministic in seen if not deterministic]
    assert len(free) == 3 and len(before) == max(episode.num_recorded for episode in episodes)
    for number, episode in enumerate(episodes):
        n = episode.num_recorded
        assert len(episode.actions) == n + 3
        recorded_rows = np.flatnonzero(np.isclose(data.rows.observations[:, 0], episode.frames[0, 0]))[: n + 1]
        np.testing.assert_array_equal(episode.frames[: n + 1], data.rows.observations[recorded_rows])
        np.testing.assert_array_equal(episode.actions[:n], data.rows.actions[recorded_rows[:n]])
        for back in range(1, n + 1):  # the last recorded steps come last
            np.testing.assert_array_equal(before[-back].observation[number], episode.frames[n - back])
        if n:
            assert before[-n].is_first[number] == 1.0 and not any(
                step.is_first[number] for step in before[len(before) - n + 1 :]
            )
            np.testing.assert_array_equal(free[0].previous_action[number], episode.actions[n - 1])
            assert free[0].previous_reward[number] == episode.rewards[n - 1] and free[0].is_first[number] == 0.0
        else:
            assert free[0].is_first[number] == 1.0 and not free[0].previous_action[number].any()
        for at, step in enumerate(free[1:]):
            np.testing.assert_array_equal(step.previous_action[number], episode.actions[n + at])
            assert step.previous_reward[number] == episode.rewards[n + at] and step.is_first[number] == 0.0


def test_each_rollout_keeps_its_memory_where_others_end():
    """Without actions, the first number of an episode stays the same; rollouts end where it is above the threshold."""

    class Remembering:
        memoryless = False

        def act(self, step, memory=None, *, deterministic=False):
            seen = torch.as_tensor(step.observation[:, 0])
            memory = seen if memory is None else torch.where(torch.as_tensor(step.is_first) > 0, seen, memory)
            assert torch.equal(memory, seen)
            return np.zeros((len(seen), 1), np.float32), memory

    imagination = played("rmopo", number=0, threshold=0.5)
    imagination.play(Remembering(), 40, 3)
    lengths = [len(one.actions) - one.num_recorded for one in imagination.buffer.imagined.episodes]
    assert {*lengths} == {1, 3}


def test_recorded_steps_before_a_rollout_count_in_no_loss():
    imagination = played("rmopo", number=20, length=3)
    own = imagination.buffer.imagined
    batch = own.batch_of(np.arange(20))
    for row, episode in enumerate(own.episodes):
        np.testing.assert_array_equal(np.flatnonzero(batch.loss_mask[row, :, 0]), episode.num_recorded + np.arange(3))
    own.segment_len = 4
    for _ in range(20):
        assert (own.batch_of(np.arange(20)).loss_mask.sum(1) > 0).all()  # each segment has an imagined step


@pytest.mark.parametrize("prefix", [3, None])
def test_the_recorded_steps_before_a_rollout_can_be_limited(prefix):
    """By a number, and by what a segment and its burn-in read."""
    imagination = played("rmopo", number=0, prefix=prefix)
    if prefix is None:
        imagination.buffer.imagined.segment_len, imagination.buffer.imagined.burn_in = 2, 1
    imagination.play(untrained("rmopo"), 60, 2)
    episodes = imagination.buffer.imagined.episodes
    assert {episode.num_recorded for episode in episodes} == {0, 1, 2, 3}
    for episode in episodes:  # the second number is that of the step
        assert episode.num_recorded == min(3, episode.frames[episode.num_recorded, 1])


def test_rollouts_may_start_at_first_observations():
    starts = steps_of(played(start="first")).observations[::5]
    assert len(starts) == 50 and not starts[:, 1].any() and len({*starts[:, 0]}) == 6


def test_a_rollout_may_stay_in_one_network_of_all_elites(monkeypatch):
    places, original = [], KnownModel.imagine

    def imagine(self, observations, actions, generator, given=None, **options):
        places.append(given)
        return original(self, observations, actions, generator, given, **options)

    monkeypatch.setattr(KnownModel, "imagine", imagine)
    played(one_member=True)
    assert len(places) == 4 and all(torch.equal(one, places[0]) for one in places)
    assert {*places[0].tolist()} == {0, 1}


def test_a_threshold_and_a_penalty_may_come_from_the_largest_uncertainty():
    assert played(number=0, threshold="max * 2").pessimism.threshold == 2.0
    assert played(number=0, penalty="range * 0.5").pessimism.penalty == 0.5 * 12.0 / 1.0


UNBOUNDED = {"length": "unbounded", "steps_per_update": 5.0}


def stretches(imagination):
    """The observations of all stretches that were played of five rollouts, (stretches, 5, steps + 1, 2)."""
    table = steps_of(imagination)
    return table.observations.reshape(-1, 5, int(table.stops[0]), 2)


def test_rollouts_without_a_bound_go_on_in_the_next_round():
    imagination = played(number=0, **UNBOUNDED)
    algorithm = untrained()
    for _ in range(2):
        imagination.play_on(algorithm, 5 * 40)
    found = stretches(imagination)
    assert found.shape == (8, 5, 11, 2) and imagination.ages.tolist() == [80] * 5
    np.testing.assert_array_equal(found[1:, :, 0], found[:-1, :, -1])


def test_rollouts_that_ended_are_replaced():
    """The agent moves by 0.1 to the end at 3, so all rollouts end after 5 or 6 steps, in each stretch of 10."""

    class Forwards:
        memoryless = True

        def act(self, step, memory=None, *, deterministic=False):
            return np.ones((len(step.observation), 1), np.float32), None

    imagination = played(number=0, data=recorded(low=2.45, high=2.55), **UNBOUNDED)
    for _ in range(3):
        imagination.play_on(Forwards(), 5 * 20)
        assert not len(imagination.ages)
    table = steps_of(imagination)
    lengths = table.stops - table.starts - 1
    assert len(lengths) == table.terminations.sum() == 3 * 2 * 5 and {*lengths} <= {5, 6}
    assert (table.observations[table.starts, 0] < 2.6).all()  # recorded observations


@pytest.mark.parametrize("one_member", [False, True])
def test_rollouts_that_go_on_are_saved_and_loaded(one_member):
    whole, halved = (played(number=0, history=3, one_member=one_member, **UNBOUNDED) for _ in range(2))
    agents = [untrained() for _ in range(2)]
    whole.play_on(agents[0], 5 * 15)
    halved.play_on(agents[1], 5 * 15)
    other = played(number=0, history=3, one_member=one_member, **UNBOUNDED)
    other.load_state_dict(halved.state_dict())
    assert_same(other.state_dict(), whole.state_dict())
    whole.play_on(agents[0], 5 * 10)
    other.play_on(agents[1], 5 * 10)
    newest = steps_of(whole)
    rows_ = slice(newest.starts[-5], None)
    np.testing.assert_array_equal(newest.observations[rows_], steps_of(other).observations)
    assert_same(other.state_dict(), whole.state_dict())


# The buffer -----------------------------------------------------------------------------------------------------------


def test_batches_hold_a_share_of_real_transitions_and_say_which():
    buffer = played().buffer
    batch = buffer.sample()
    assert batch.imagined[:, 0, 0].tolist() == [0.0] * 2 + [1.0] * 6
    assert batch.recorded().loss_mask[:, 0, 0].tolist() == [1.0] * 2 + [0.0] * 6


def test_batches_are_real_while_nothing_is_imagined():
    buffer = played(threshold=0.0, ends="truncated", data=recorded(low=0.5)).buffer
    assert not len(buffer.imagined)
    batch = buffer.sample()
    assert len(batch.rewards) == 8 and not batch.imagined.any()


def assert_same_batches(one, other):
    for mine, yours in zip(one, other, strict=True):
        assert torch.equal(mine, yours) if isinstance(mine, torch.Tensor) else mine == yours


def test_extend_stores_what_push_does():
    table = steps_of(played(number=30))
    pushed, extended = (ReplayBuffer(VECTORS, ACTIONS, capacity=90, seed=0) for _ in range(2))
    episodes = list(RecordedEpisodes(table))
    for part in (episodes[:12], episodes[12:]):
        extended.extend(TransitionTable.joined(part, (2,), np.dtype(np.float32), 1))
    for start, stop in zip(table.starts, table.stops, strict=True):
        for at in range(start, stop - 1):
            given = table.observations[at], table.actions[at], float(table.rewards[at, 0]), table.observations[at + 1]
            pushed.push(*given, bool(table.terminations[at, 0]), at == stop - 2)
    assert pushed.metadata()["rings"] == extended.metadata()["rings"] and len(pushed) == len(extended)
    for one, other in zip(pushed.storage.columns, extended.storage.columns, strict=True):
        np.testing.assert_array_equal(one, other)
    assert_same_batches(pushed.sample(), extended.sample())


@pytest.mark.parametrize("algo", ["mopo", "rmopo"])
def test_a_cleared_buffer_is_as_a_new_one(algo):
    used, new = (played(algo, number=number).buffer.imagined for number in (30, 0))
    assert len(used) and not len(new)
    used.clear()
    assert not len(used) and not used.num_transitions
    used.randomness.load_state_dict(new.randomness.state_dict())
    table = steps_of(played(algo, number=20))
    for buffer in (used, new):
        buffer.extend(table, np.zeros(20, np.int64))
    for _ in range(3):
        assert_same_batches(used.sample(), new.sample())


@pytest.mark.parametrize("algo", ["mopo", "rmopo"])
def test_the_buffer_is_saved_and_loaded(algo):
    buffer, again = played(algo).buffer, played(algo, number=1).buffer
    chunks = buffer.chunks()
    assert len({chunk.key for chunk in chunks}) == len(chunks)
    saved = [[array.copy() for array in chunk.arrays] for chunk in chunks]

    def fill(number, chunk):
        for own, array in zip(chunk.arrays, saved[number], strict=True):
            own[...] = array.reshape(own.shape)

    again.load(buffer.metadata(), sum(array.nbytes for one in saved for array in one), fill)
    for _ in range(3):
        assert_same_batches(buffer.sample(), again.sample())


def test_a_buffer_of_another_model_is_refused():
    one, other = played().buffer, played().buffer
    one.model, other.model = "a", "b"
    with pytest.raises(UserError, match="digest a"):
        other.load(one.metadata(), 0, lambda number, chunk: None)


@pytest.mark.parametrize("kind", [ReplayBuffer, RecurrentReplayBuffer])
def test_the_table_of_a_buffer_holds_what_was_pushed(kind):
    buffer = kind(VECTORS, ACTIONS, num_envs=2, capacity=40)
    draw = np.random.default_rng(0)
    pushed = {0: [], 1: []}
    for step in range(24):
        for env in range(2):
            observation = np.array([env, step], np.float32)
            action = draw.uniform(-1, 1, 1).astype(np.float32)
            ends = step % 6 == 5
            pushed[env].append((observation, action, float(step)))
            buffer.push(observation, action, float(step), np.array([env, step + 1], np.float32), False, ends, env=env)
    table = buffer.transition_table()
    found = {
        (*table.observations[at].tolist(), float(table.actions[at, 0]), float(table.rewards[at, 0]))
        for at in np.flatnonzero(table.is_start)
    }
    wanted = {(*o.tolist(), float(a[0]), r) for env in pushed.values() for o, a, r in env}
    assert found <= wanted and len(found) == len(buffer) * (1 if kind is ReplayBuffer else 6)
    for start, stop in zip(table.starts, table.stops, strict=True):
        assert table.is_start[start : stop - 1].all() and not table.is_start[stop - 1]
        np.testing.assert_array_equal(np.diff(table.observations[start:stop, 1]), 1.0)


# Settings -------------------------------------------------------------------------------------------------------------


def test_the_table_of_tuned_pairs_has_sixty():
    pairs = [tuned_pair(mode, f"{task}-{kind}-v2") for mode in TUNED for task in TASKS for kind in KINDS]
    assert len(pairs) == 60 and all(len(pair) == 2 and pair["length"] >= 1 for pair in pairs)
    assert tuned_pair("aleatoric_penalty", "hopper-medium-v2") == {"length": 15, "penalty": 300.0}
    assert tuned_pair("epistemic_partitioning", "walker2d-expert-v2") == {"length": 19, "threshold": 3.0755}
    assert tuned_pair("mopo", "hopper-medium-v2") == tuned_pair("aleatoric_penalty", "hopper-medium-v0") == {}


def test_a_mode_takes_the_pair_of_its_data():
    found = imagination_options(ALGORITHMS["raleatoric_penalty"], "raleatoric_penalty", "hopper-medium-v2")
    assert (found.length, found.penalty, found.threshold) == (15, 300.0, None)
    offpcc.configure(None, "Imagination.threshold = 2.0")
    found = imagination_options(ALGORITHMS["morel"], "morel", "x")
    assert (found.length, found.threshold, found.penalty) == (10, 2.0, None)


def test_a_bound_threshold_replaces_the_tuned_penalty():
    offpcc.configure(None, "Imagination.threshold = 2.0")
    found = imagination_options(ALGORITHMS["epistemic_penalty"], "epistemic_penalty", "hopper-medium-v2")
    assert (found.length, found.threshold, found.penalty) == (15, 2.0, None)


@pytest.mark.parametrize("none", ["None", "%nothing"])
@pytest.mark.parametrize("algo", ["mopo", "neubay"])
def test_a_binding_of_none_leaves_the_algorithms_setting(algo, none):
    names = ("length", "penalty", "threshold", "real_share", "uncertainty", "ends", "one_member")
    expected = imagination_options(ALGORITHMS[algo], algo, "x")
    offpcc.configure(None, "nothing = None", *(f"Imagination.{name} = {none}" for name in names))
    assert imagination_options(ALGORITHMS[algo], algo, "x") == expected
    offpcc.configure(None, "few = 7", "Imagination.length = %few")
    assert imagination_options(ALGORITHMS[algo], algo, "x").length == 7


@pytest.mark.parametrize(
    ("bindings", "words"),
    [
        (["Imagination.length = 0"], "Imagination.length"),
        (["Imagination.length = (5, 2, 1, 3)"], "Imagination.length"),
        (["Imagination.threshold = -1.0"], "Imagination.threshold"),
        (["Imagination.threshold = 'quantile 2'"], "Imagination.threshold"),
        (["Imagination.penalty = -1.0"], "Imagination.penalty"),
        (["Imagination.penalty = 1.0", "Imagination.threshold = 1.0"], "bind one of them"),
        (["Imagination.end_reward = -5.0"], "no effect"),
        (["Imagination.from_scratch = True"], "from_scratch has no effect"),
        (["Imagination.train_every = 10"], "train_every has no effect"),
        (["Imagination.clear = True"], "clear has no effect"),
        (["Imagination.length = 'endless'"], "Imagination.length"),
        (["Imagination.capacity = 3"], "two rollouts"),
        (["Imagination.every = 10_000_000"], "each round of rollouts would have 500,000,000 steps"),
        (["Imagination.real_share = 1.5"], "Imagination.real_share"),
        (["Imagination.uncertainty = 'total'"], "Imagination.uncertainty"),
    ],
)
def test_settings_that_make_no_sense_are_refused(bindings, words):
    offpcc.configure(None, *bindings)
    with pytest.raises(UserError, match=words):
        imagination_options(ALGORITHMS["mopo"], "mopo", "x")


def test_rollouts_without_a_bound_are_for_agents_without_memory():
    offpcc.configure(None, "Imagination.length = 'unbounded'")
    assert imagination_options(ALGORITHMS["mopo"], "mopo", "x").length == "unbounded"
    with pytest.raises(UserError, match="rmopo has a memory"):
        imagination_options(ALGORITHMS["rmopo"], "rmopo", "x")


def test_a_schedule_of_lengths_grows():
    options = ImaginationOptions(length=(100, 200, 1, 11))
    at = functools.partial(Imagination.length_at, type("With", (), {"options": options}))
    assert [at(step) for step in (0, 100, 150, 200, 500)] == [1, 1, 6, 11, 11]


@pytest.mark.parametrize(("discount", "expected"), [(0.99, -200.0), (0.9, -20.0), (0.9995, -4_000.0), (1.0, -2_000.0)])
def test_a_failure_costs_as_much_as_the_smallest_reward_forever(discount, expected):
    """So the end of an imagined episode is no gain where rewards are negative."""
    imagination = played(threshold=0.5)
    imagination.discount = discount
    imagination.model.facts |= {"largest_reward": 0.0, "smallest_reward": -2.0, "mean_reward": -1.0}
    imagination._set_data(imagination.data.rows)
    assert imagination.pessimism.end_reward == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mean", "shift", "expected"),
    [
        (0.5, 0.0, -1.0),  # minus the largest
        (0.5, -1.0, -99.0),  # targets are -1 or 0, so a failure has to be worth -100 in them
        (-0.5, 1.0, -2.0),  # targets are 0 or 1
        (0.5, None, 100.0),  # scaled by -1
    ],
)
def test_the_end_counts_rewards_as_targets_do(mean, shift, expected):
    imagination = played(threshold=0.5)
    imagination.reward_scale, imagination.reward_shift = (1.0, shift) if shift is not None else (-1.0, 0.0)
    imagination.model.facts |= {"largest_reward": mean + 0.5, "smallest_reward": mean - 0.5, "mean_reward": mean}
    imagination._set_data(imagination.data.rows)
    assert imagination.pessimism.end_reward == pytest.approx(expected)


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("Identity.use_previous_action = True", "does not know the previous action and reward; .*or choose rmopo"),
        ("MOPO.clip_rewards = True", "clip_rewards is True, but a rollout that passes Imagination.threshold"),
    ],
)
def test_what_makes_imagined_steps_wrong_is_refused(binding, words, pendulum_file, monkeypatch, tmp_path):
    monkeypatch.setenv("OFFPCC_MODELS_DIR", str(tmp_path))
    small = ("DynamicsModel.hidden_dims = (4,)", "DynamicsModel.num_members = 2", "DynamicsModel.num_elites = 1")
    limit = ("Imagination.threshold = 'max * 1'", "Imagination.penalty = None", "ModelTraining.max_epochs = 1")
    offpcc.configure(None, *small, *limit, binding)
    monkeypatch.setattr(build, "get_model", lambda *given: pytest.fail("the model is trained first"))
    with pytest.raises(UserError, match=words):
        offpcc.build("pendulum-v0", "mopo", dataset=pendulum_file)


@pytest.mark.parametrize(
    ("algo", "bindings", "words"),
    [
        ("mopo", ["MOPO.clip_rewards = True"], "clip_rewards is True, but Imagination.penalty lowers"),
        ("rmopo", ["Recurrent.use_previous_reward = True"], "use_previous_reward is True, but Imagination.penalty"),
    ],
)
def test_what_would_hide_or_show_the_penalty_is_refused(algo, bindings, words, pendulum_file, monkeypatch):
    offpcc.configure(None, "Imagination.penalty = 1.0", *bindings)
    monkeypatch.setattr(build, "get_model", lambda *given: pytest.fail("the model is trained first"))
    with pytest.raises(UserError, match=words):
        offpcc.build("pendulum-v0", algo, dataset=pendulum_file)


def healthy_steps(num_episodes=3, height=0.2):
    """A Hopper that falls below 0.7 and goes on."""
    rng = np.random.default_rng(0)
    observations = rng.normal(0.0, 0.05, (60 * num_episodes, 11)).astype(np.float32)
    observations[:, 0] = height
    ends = np.arange(len(observations)) % 60 == 59
    return offpcc.Dataset.from_arrays(
        observations=observations,
        actions=rng.uniform(-1, 1, (len(observations), 3)).astype(np.float32),
        rewards=np.ones(len(observations), np.float32),
        terminations=np.zeros(len(observations), bool),
        truncations=ends,
        name="hopper-medium-v2",
    )


@pytest.mark.parametrize(("height", "is_used"), [(1.25, True), (0.2, False)])
def test_a_rule_that_recorded_episodes_contradict_is_not_used(height, is_used):
    data = read(healthy_steps(height=height))
    settings = {"hidden_dims": (4,), "num_members": 1, "num_elites": 1}
    given = ["Hopper-v4"], torch.device("cpu"), 0
    with contextlib.nullcontext() if is_used else pytest.warns(DataWarning, match="100% of the steps .* Hopper-v4"):
        model = model_for_data(data, *given, settings)
    assert (model.rule is not None) == is_used
    assert model_for_data(data, *given, {**settings, "termination": "known"}).rule is not None


def test_an_environment_of_a_function_may_not_have_the_rule_of_its_name():
    def never_unhealthy():
        return gymnasium.make("Hopper-v4", terminate_when_unhealthy=False)

    offpcc.configure(None, "DynamicsModel.num_members = 2", "DynamicsModel.num_elites = 1")
    for env, is_known in (("Hopper-v4", True), (never_unhealthy, False)):
        learner = offpcc.build(env, "mbpo")
        assert ("known rule" in learner.imagination.model.tell_termination()) == is_known


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def train(launch, pendulum_file, monkeypatch, tmp_path):
    """Train a few steps in a model, of recorded data unless `online`."""
    monkeypatch.setenv("OFFPCC_MODELS_DIR", str(tmp_path / "models"))

    def run(algo, *extra, env="pendulum-v0", online=False, bindings=()):
        data = () if online else ("--dataset", pendulum_file)
        config = "test/offline_short.gin"
        own = ("train.update_after=70", "Imagination.train_every=30") if online else ()
        given = ("--algo", algo, "--env", env, *data, "--config", config, *extra)
        return launch(*given, "--gin", *merged(*SMALL, *own, *bindings))

    return run


def folder(tmp_path, algo, label="pendulum-v0_from_swings", run_id=1):
    return tmp_path / "results" / label / algo / str(run_id)


def test_a_run_trains_its_model_first_and_the_next_one_finds_it(train, tmp_path):
    code, out, err = train("mopo")
    assert code == 0, err
    assert "there is no model of swings" in err and "rollouts of 3 steps in a model of swings" in out
    (model,) = (tmp_path / "models").glob("*.pt")
    table = progress_rows(folder(tmp_path, "mopo"))
    assert {"update/imagined_length", "update/imagined_bounded", "update/imagined_uncertainty"} <= table[0].keys()
    assert float(table[0]["update/imagined_length"]) == 3.0
    before = model.read_bytes()
    code, out, err = train("morel", bindings=["Imagination.length=2"])
    assert code == 0 and f"model {model}" in err and "trained first" not in err
    assert model.read_bytes() == before
    table += progress_rows(folder(tmp_path, "morel"))
    assert ["update/imagined_stopped" in row for row in table] == [False, False, True, True]
    assert all(value for row in table for name, value in row.items() if name.startswith("update/imagined"))
    assert train("mopo", "--run_id", "2", bindings=["DynamicsModel.activation='silu'"])[0] == 0
    code, _, err = train("mopo", "--run_id", "3", bindings=["ModelTraining.max_epochs=1"])  # which trained less
    assert code == 0 and "there is no model of swings with these settings" in err
    assert len([*(tmp_path / "models").glob("*.pt")]) == 3  # of other settings


@pytest.mark.parametrize(
    ("algo", "env"),
    [slow(name, "pendulum-v0") for name in ("combo", "neubay", "mbpo", "aleatoric_penalty", "epistemic_partitioning")]
    + [slow(name, "pendulum-p-v0") for name in ("rmopo", "rneubay", "rcombo_s", "rmorel")],
)
def test_every_algorithm_with_a_model_learns_from_recorded_data(algo, env, train):
    code, _, err = train(algo, env=env)
    assert code == 0, err


@pytest.mark.parametrize(("algo", "env"), [("mbpo", "pendulum-v0"), slow("rmbpo", "pendulum-p-v0")])
def test_mbpo_trains_its_model_in_the_run(algo, env, train, tmp_path):
    bindings = ["train.num_steps_per_epoch=200", "train.update_after=205", "train.updates_per_step=0.1"]
    code, out, err = train(algo, env=env, online=True, bindings=bindings)
    assert code == 0, err
    assert "in a model trained in the run" in out
    last = progress_rows(folder(tmp_path, algo, env))[-1]
    assert float(last["update/model_error"]) > 0.0 and float(last["update/imagined_length"]) == 3.0
    # Without a penalty or a threshold, the uncertainty is not computed, and no rollout stops.
    assert not {"update/imagined_uncertainty", "update/imagined_stopped"} & last.keys()
    config = (folder(tmp_path, algo, env) / "config.gin").read_text()
    assert "Imagination.keep = 20\n" in config and "Imagination.real_share = 0.05\n" in config  # the defaults of MBPO


@pytest.mark.parametrize(
    ("algo", "stops", "online", "bindings"),
    [("mopo", (75,), False, ()), slow("mopo", (1, 2, 41, 118), False, ()), slow("rmopo", (30, 77), False, ()),
     slow("mbpo", (72, 73, 131), True, ()),
     ("mbpo", (131,), True, ("Imagination.length='unbounded'", "Imagination.from_scratch=True")),
     ("mbpo", (131,), True, ("Imagination.clear=True",)), slow("rmbpo", (3,), True, ("Imagination.clear=True",))],
)  # fmt: skip
def test_a_run_in_a_model_resumes_exactly(algo, stops, online, bindings, train, tmp_path, monkeypatch):
    env = "pendulum-p-v0" if algo.startswith("r") else "pendulum-v0"
    command = functools.partial(train, algo, env=env, online=online, bindings=bindings)
    assert command()[0] == 0
    whole = folder(tmp_path, algo, env if online else f"{env}_from_swings")
    assert_stops_and_resumes_exactly(command, whole, stops, monkeypatch)


def interrupt_model_epoch(monkeypatch, number):
    """End the run at the epoch of a model of this number; return a list that gets an item at each epoch."""
    original, calls = ModelFit.run_epoch, []

    def run_epoch(self):
        calls.append(self)
        if len(calls) == number:
            raise signals.Interrupted(2)
        return original(self)

    monkeypatch.setattr(ModelFit, "run_epoch", run_epoch)
    return calls


def test_a_stop_while_the_model_is_trained_in_the_run_is_exact(train, tmp_path, monkeypatch):
    whole = folder(tmp_path, "mbpo", "pendulum-v0")
    assert train("mbpo", online=True)[0] == 0
    interrupt_model_epoch(monkeypatch, 4)  # in the second training
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "two"))
    assert train("mbpo", online=True)[0] == 130
    code, _, err = train("mbpo", "--resume", online=True)
    assert code == 0, err
    assert_equal_runs(whole, tmp_path / "two" / whole.relative_to(tmp_path / "results"))


@pytest.mark.slow
def test_a_stop_while_the_model_is_trained_first_goes_on_there(train, tmp_path, monkeypatch):
    assert train("mopo")[0] == 0
    (model,) = (tmp_path / "models").glob("*.pt")
    whole = load_model(model).state_dict()
    monkeypatch.setenv("OFFPCC_MODELS_DIR", str(tmp_path / "others"))
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "two"))
    calls = interrupt_model_epoch(monkeypatch, 2)
    assert train("mopo")[0] == 130
    code, _, err = train("mopo")
    assert code == 0, err
    assert len(calls) == 3  # the first epoch was kept
    (again,) = (tmp_path / "others").glob("*.pt")
    assert_same(whole, load_model(again).state_dict())
    assert rows(folder(tmp_path, "mopo")) == rows(tmp_path / "two" / "pendulum-v0_from_swings" / "mopo" / "1")


def test_no_pessimism_equals_mbpo_on_the_data_bit_for_bit(train, tmp_path):
    bindings = ["Imagination.uncertainty='epistemic'", "Imagination.real_share=0.05"]
    assert train("mbpo", bindings=bindings)[0] == 0
    expected = torch.load(folder(tmp_path, "mbpo") / "actor_last.pt")["weights"]
    for algo, own in (
        ("mopo", ["Imagination.penalty=0.0"]),
        ("morel", ["Imagination.threshold='max * 1e300'"]),
    ):
        assert train(algo, bindings=[*bindings, *own])[0] == 0
        assert_same(torch.load(folder(tmp_path, algo) / "actor_last.pt")["weights"], expected)


@pytest.mark.slow
def test_a_run_goes_on_online_without_its_model(train, launch, pendulum_file, tmp_path):
    then = ["OfflineToOnline.warm_up_steps=10", "OfflineToOnline.updates_per_step=0.1"]
    code, out, err = train("mopo", "--then_env_steps", "60", bindings=then)
    assert code == 0, err
    table = progress_rows(folder(tmp_path, "mopo", "pendulum-v0_from_swings_then_online"))
    assert table[0]["update/imagined_length"] and not table[-1]["update/imagined_length"]
    assert train("mopo")[0] == 0
    source = folder(tmp_path, "mopo")
    for file in (tmp_path / "models").glob("*.pt"):
        file.unlink()  # it is not needed any more
    given = ("--env", "pendulum-v0", "--dataset", pendulum_file, "--run_id", "2", "--then_env_steps", "60")
    code, out, err = launch("--from", str(source), *given, "--gin", *then)
    assert code == 0 and "going on from" in out and "trained first" not in err, err


def test_a_learner_without_its_buffer_keeps_its_model_until_there_are_data(tmp_path):
    offpcc.configure(None, *SMALL, "Imagination.train_every=30", "train.update_after=60")
    settings = {"num_steps_per_epoch": 70, "num_test_episodes_per_epoch": 0}
    learner = offpcc.build("pendulum-v0", "mbpo")
    learner.train(num_epochs=1, **settings)
    assert learner.imagination.num_trainings == 1
    learner.save(tmp_path / "learner.pt")
    again = offpcc.load(tmp_path / "learner.pt")
    seen = again.imagination.model.facts["num_transitions"]
    again.train(num_epochs=1 + seen // 70, **settings)
    assert again.imagination.num_trainings == 1  # as many transitions as before have not been seen yet
    again.train(num_epochs=3 + seen // 70, **settings)
    assert again.imagination.num_trainings > 1


@pytest.mark.slow
def test_a_learner_with_a_model_is_saved_and_loaded(pendulum_file, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFPCC_MODELS_DIR", str(tmp_path))
    offpcc.configure(None, *SMALL)
    settings = {"num_steps_per_epoch": 30, "num_test_episodes_per_epoch": 0}
    learner = offpcc.build("pendulum-v0", "mopo", dataset=pendulum_file)
    learner.train(num_epochs=1, **settings)
    learner.save(tmp_path / "learner.pt", buffer=True)
    again = offpcc.load(tmp_path / "learner.pt", dataset=pendulum_file)
    for one in (learner, again):
        one.train(num_epochs=2, **settings)
    assert_same(learner.algorithm.state_dict(), again.algorithm.state_dict())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("sac", "--model", "{model}"), "uses no model"),
        (("mopo", "--model", "{missing}"), "missing.pt"),
        (("mopo", "--model", "{damaged}"), "damaged.pt"),
        (("mopo", "--model", "{model}", "--dataset_fraction", "0.5"), "is a model of swings"),
        (("cmopo",), "there is no algorithm"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(given, words, train, tmp_path):
    assert train("mopo")[0] == 0
    (model,) = (tmp_path / "models").glob("*.pt")
    (tmp_path / "damaged.pt").write_bytes(model.read_bytes()[:5000])
    files = {"model": model, "missing": tmp_path / "missing.pt", "damaged": tmp_path / "damaged.pt"}
    code, _, err = train(*(part.format(**files) for part in given), "--run_id", "3")
    assert code == 2 and words in err, err
    assert not (tmp_path / "results" / "pendulum-v0_from_swings" / given[0] / "3").exists()
    for binding in ("DynamicsModel.num_members=3", "ModelTraining.max_epochs=3"):
        code, _, err = train("mopo", "--model", model, "--run_id", "3", bindings=[binding])
        name, _, value = binding.partition("=")
        assert code == 2 and f"{name} is {value}, but {model} was trained with 2; leave the binding out" in err


def test_the_config_of_a_run_has_the_settings_of_its_model(train, launch, pendulum_file, tmp_path):
    """Also those that nobody binds: otherwise the runs of one model look different in plots."""
    assert train("mopo")[0] == 0
    (model,) = (tmp_path / "models").glob("*.pt")
    few = [x for x in SMALL if not x.startswith(("DynamicsModel", "ModelTraining"))]
    words = ("--env", "pendulum-v0", "--dataset", pendulum_file, "--model", model, "--no_video")
    code, _, err = launch("--algo", "rmopo", *words, "--run_id", "5", "--gin", *few)
    assert code == 0, err
    assert f"{model} reads 1 observation, but a model that rmopo trains itself reads 4" in err
    config = (tmp_path / "results/pendulum-v0_from_swings/rmopo/5/config.gin").read_text()
    for line in ("DynamicsModel.hidden_dims = [16, 16]", "DynamicsModel.history = 1", "ModelTraining.max_epochs = 2"):
        assert f"{line}\n" in config
    moved = model.rename(tmp_path / "moved.pt")
    again = ("--env", "pendulum-v0", "--dataset", pendulum_file, "--algo", "rmopo", "--run_id", "5", "--resume")
    code, _, err = launch(*again, "--gin", "train.num_epochs=3")
    assert code == 2 and f"the model {model} does not exist" in err and "--model FILE" in err
    code, _, err = launch(*again, "--model", moved, "--gin", "train.num_epochs=3")
    assert code == 0, err


def test_a_model_is_found_for_its_data_under_another_name(train, launch, pendulum_file, tmp_path):
    assert train("mopo")[0] == 0
    (model,) = (tmp_path / "models").glob("*.pt")
    words = ("--algo", "mopo", "--env", "pendulum-v0", "--dataset", shutil.copy(pendulum_file, tmp_path / "moved.hdf5"))
    for run_id, given in (("2", ()), ("3", ("--model", model))):
        code, _, err = launch(*words, *given, "--run_id", run_id, "--no_video", "--gin", *SMALL)
        assert code == 0 and (given or f"model {model}" in err), err
    assert [*(tmp_path / "models").glob("*.pt")] == [model]


def test_a_given_model_is_the_same_for_the_same_command(train, launch, pendulum_file, tmp_path):
    """Its settings are in the run's config, and not in the command's."""
    assert train("mopo")[0] == 0
    (model,) = (tmp_path / "models").glob("*.pt")
    words = ("--algo", "mopo", "--env", "pendulum-v0", "--dataset", pendulum_file, "--run_id", "2")
    again = (*words, "--resume")
    config = tmp_path / "own.gin"
    config.write_text("\n".join(["include 'configs/test/offline_short.gin'", *SMALL, "DynamicsModel.hidden_dims=(8,)"]))
    code, _, err = launch(*words, "--model", model, "--config", config)
    assert code == 0, err  # a file may bind other settings
    saved = folder(tmp_path, "mopo", run_id=2) / "config.gin"
    assert "DynamicsModel.hidden_dims = [16, 16]" in saved.read_text()
    code, _, err = launch(*words, "--model", model, "--config", config)
    assert code == 2 and "is finished and is not overwritten\n" in err
    further, new = (next(line for line in err.splitlines() if word in line) for word in ("num_epochs=N", "--run_id 3"))
    assert "--model" not in further and f"--model {model}" in new  # an existing run knows its model
    code, _, err = launch(*words, "--model", tmp_path / "none.pt", "--config", config)
    assert code == 2 and f"the model {tmp_path / 'none.pt'} does not exist; correct --model" in err
    other = shutil.copy(model, tmp_path / "other.pt")
    code, _, err = launch(*again, "--model", other)
    assert code == 2 and "was made with the model " in err and f"but here it is {other}; leave --model out" in err
    moved = model.rename(tmp_path / "moved.pt")
    code, out, err = launch(*again)
    assert code == 0 and "nothing left to do" in out, err
    moved.rename(model)
    saved.write_text(saved.read_text().replace("hidden_dims = [16, 16]", "hidden_dims = (200, 200)"))  # an older run
    code, _, err = launch(*again, "--gin", "train.num_epochs=3")
    assert code == 0, err


def test_a_run_in_a_model_may_go_online_by_another_algorithm(train, tmp_path):
    code, _, err = train(
        "mopo",
        "--then_env_steps",
        "60",
        bindings=["OfflineToOnline.algorithm='sac'", "OfflineToOnline.warm_up_steps=10"],
    )
    assert code == 0, err
    table = progress_rows(folder(tmp_path, "mopo", "pendulum-v0_from_swings_then_online"))
    assert table[0]["update/imagined_length"] and not table[-1]["update/imagined_length"]


def test_a_binding_without_effect_is_refused_before_the_model_is_trained(train, tmp_path):
    code, _, err = train("mopo", bindings=["MOPO.encoder_lr=3"])
    assert code == 2 and "MOPO.encoder_lr has no effect" in err
    assert not [*tmp_path.rglob("*.pt")]


def test_offline_algorithms_need_data_and_models_need_vectors(launch, tmp_path):
    code, _, err = launch("--algo", "mopo", "--env", "pendulum-v0")
    assert code == 2 and "choose mbpo" in err
    code, _, err = launch("--algo", "mbpo", "--env", "pendulum-v0", "--model", "x.pt")
    assert code == 2 and "leave it out" in err
    code, _, err = launch("--algo", "rmbpo", "--env", "pendulum-img-v0")
    assert code == 2 and "images" in err and "crmbpo" not in err


@pytest.mark.slow
def test_a_model_is_found_by_data_and_used_by_name(train, launch, pendulum_file, tmp_path):
    file = tmp_path / "models" / "mine.pt"
    given = ("--dataset", pendulum_file, "--out", file, "--env", "pendulum-v0", "--gin", *SMALL[:4])
    assert launch("train-model", *given)[0] == 0
    code, _, err = train("mopo")
    assert code == 0 and f"model {file}" in err
    other = tmp_path / "elsewhere.pt"
    file.rename(other)
    code, _, err = train("mopo", "--model", str(other), "--run_id", "2")
    assert code == 0 and "trained first" not in err
    assert train("mopo", "--run_id", "2", "--resume", bindings=["train.num_epochs=3"])[0] == 0  # it is in run.json


@pytest.mark.slow
def test_an_agent_is_fine_tuned_in_a_model(train, launch, tmp_path):
    assert train("sac")[0] == 2  # settings of a model have no effect there
    few = [one for one in SMALL if one.startswith(("train", "Actor"))]
    given = ("--env", "pendulum-v0", "--config", "test/offline_short.gin", "--run_id", "5")
    assert launch("--algo", "sac", *given, "--gin", *few, "train.update_after=20")[0] == 0
    source = folder(tmp_path, "sac", "pendulum-v0", 5)
    code, out, err = train("mopo", "--init", str(source), bindings=["train.updates_per_step=0.0"])
    assert code == 0 and f"starting from the networks of {source} after step 120" in out, err
    weights = [torch.load(run / "actor_last.pt")["weights"]["actor"] for run in (source, folder(tmp_path, "mopo"))]
    assert_same(*weights)
    code, _, err = train("mopo", "--init", str(tmp_path / "none"), "--run_id", "7")
    assert code == 2 and "no checkpoint" in err
    code, _, err = train("combo", "--init", str(source), "--run_id", "7", bindings=["ActorCritic.hidden_dims=(8,8)"])
    assert code == 2 and "cannot go on from" in err


def test_d4rl_names_learn_online_without_their_data(launch, tmp_path):
    given = ("--algo", "mbpo", "--config", "test/offline_short.gin")
    few = [one for one in SMALL if one.startswith(("train", "Actor"))]
    code, out, err = launch("--env", "hopper-medium-v2", "--online", *given, "--gin", *few, "train.update_after=500")
    assert code == 0, err
    (label,) = (tmp_path / "results").iterdir()
    assert label.name.startswith("Hopper") and "learning from" not in out
    code, _, err = launch("--env", "pendulum-v0", "--online", *given)
    assert code == 2 and "leave --online out" in err
