"""Prioritised replay, chosen by gin or from Python."""

import copy

import numpy as np
import pytest
import torch
from conftest import QUICK, merged, rows, run_folder
from exact_resume import assert_same
from peaks import with_peak
from pushing import ACTIONS, OBSERVATIONS, equal, push_all, pushes, recorded, through_a_file
from test_both_buffers import as_data
from test_resume import ODD

import offpcc
from offpcc.config import loading
from offpcc.data import PrioritizedRecurrentReplayBuffer, PrioritizedReplayBuffer, RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers.prioritized import BLOCK, SumTree
from offpcc.training.build import build
from offpcc.training.callbacks import Callback
from offpcc.training.checkpoint import Checkpoints, read_checkpoint, resume
from offpcc.training.loggers import Loggers
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import CheckpointOptions
from offpcc.utils.errors import UserError

CLASSES = {"sac": PrioritizedReplayBuffer, "rsac": PrioritizedRecurrentReplayBuffer}
ALGOS = pytest.mark.parametrize("algo", CLASSES)
LENGTHS = (7, 2, 4, 1, 6)


def filled(buffer_class, *lengths, **arguments):
    buffer = buffer_class(OBSERVATIONS, ACTIONS, **{"capacity": 50, "batch_size": 100, **arguments})
    push_all(buffer, pushes(*((length, "truncated") for length in lengths or LENGTHS)))
    return buffer


def give_priorities(buffer, seed=0):
    """Draw a batch of every item, and give each a TD error of its own; the errors by item."""
    errors = np.random.default_rng(seed).uniform(0.1, 3.0, buffer.max_items)
    batch = buffer.sample()
    while len(set(drawn_items(buffer))) < (buffer.shares(np.arange(buffer.max_items)) > 0).sum():
        batch = buffer.sample()
    buffer.update_priorities(
        batch, torch.from_numpy(errors[drawn_items(buffer)])[:, None, None].expand_as(batch.loss_mask)
    )
    return errors


def drawn_items(buffer):
    """The rows or episodes of the last batch."""
    return buffer.drawn if buffer.drawn.ndim == 1 else buffer.drawn[:, 0]


def frequencies(buffer, num_batches):
    counts = np.zeros(buffer.max_items)
    for _ in range(num_batches):
        buffer.sample()
        counts += np.bincount(drawn_items(buffer), minlength=buffer.max_items)
    return counts / counts.sum()


# The tree ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_leaves", [1, 64, 65, 1_000])
def test_the_tree_finds_leaves_in_proportion(num_leaves):
    draw = np.random.default_rng(1)
    tree, weights = SumTree(num_leaves), draw.uniform(0.0, 1.0, num_leaves) ** 4
    weights[draw.random(num_leaves) < 0.3] = 0.0
    weights[-1] = 1e-3
    tree.set(np.arange(num_leaves), weights)
    numbers = (np.arange(200_000) + 0.5) / 200_000
    found = np.bincount(tree.find(numbers), minlength=num_leaves)
    assert len(found) == num_leaves and not found[weights == 0.0].any()
    assert np.abs(found / 200_000 - weights / weights.sum()).max() < 1.1 / 200_000


def test_edges_are_found_where_there_is_weight():
    tree = SumTree(300)
    tree.set(np.array([5, 130, 131]), np.array([1e-9, 1.0, 1e9]))
    assert tree.find(np.array([0.0, 1.0, 1.0 - 2.0**-53])).tolist() == [5, 131, 131]


def test_no_leaf_without_weight_is_found_at_the_edges_of_blocks():
    draw = np.random.default_rng(0)
    for _ in range(20):
        weights = draw.uniform(0.0, 1.0, BLOCK * 200)
        weights[::BLOCK] = 0.0  # a number below its block, by rounding, must not find the block's first leaf
        weights[draw.random(len(weights)) < 0.3] = 0.0
        tree = SumTree(len(weights))
        tree.set(np.arange(len(weights)), weights)
        edges = (tree.ends / tree.ends[-1])[:-1]
        numbers = np.concatenate([edges, np.nextafter(edges, 1.0), np.nextafter(edges, 0.0)])
        assert (weights[tree.find(numbers)] > 0.0).all()


def test_a_tree_that_was_changed_is_the_same_as_a_new_one():
    draw, changed, new = np.random.default_rng(2), SumTree(5_000), SumTree(5_000)
    for _ in range(20):
        changed.set(draw.integers(0, 5_000, 300), draw.random(300))
    new.set(np.arange(5_000), changed.leaves.reshape(-1)[:5_000])
    assert np.array_equal(changed.inside, new.inside) and np.array_equal(changed.ends, new.ends)


def test_setting_all_leaves_takes_little_more_memory_than_the_tree():
    tree, leaves, weights = SumTree(100_000), np.arange(100_000), np.ones(100_000)
    assert with_peak(lambda: tree.set(leaves, weights))[1] < 6 * weights.nbytes, "no copy of a block for each leaf"


# Draws and weights ------------------------------------------------------------------------------------------------


@ALGOS
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_items_are_drawn_in_proportion_to_share_and_priority(algo, alpha):
    buffer = filled(CLASSES[algo], alpha=alpha, epsilon=1e-9)
    errors = give_priorities(buffer)
    expected = buffer.shares(np.arange(buffer.max_items)) * errors**alpha
    assert (expected > 0).sum() == (sum(LENGTHS) if algo == "sac" else len(LENGTHS))
    drawn = frequencies(buffer, 300)  # 30,000 draws, stratified
    assert np.abs(drawn - expected / expected.sum()).max() < 0.005


@ALGOS
def test_importance_weights_undo_the_priorities_at_beta_one(algo):
    buffer = filled(CLASSES[algo], beta=0.5, beta_updates=4)
    errors = give_priorities(buffer) + buffer.epsilon
    for num_updates, beta in ((1, 0.625), (2, 0.75), (4, 1.0), (9, 1.0)):
        buffer.num_updates = num_updates
        batch = buffer.sample()
        share, weight = buffer.shares(np.arange(buffer.max_items)), buffer.tree.leaves.reshape(-1)[: buffer.max_items]
        ratio = (weight / weight.sum())[drawn_items(buffer)] / (share / share.sum())[drawn_items(buffer)]
        expected = (ratio**-beta) / (ratio**-beta).max()
        assert batch.weights.shape == (100, 1, 1) and batch.weights.max() == 1.0
        assert np.allclose(batch.weights[:, 0, 0], expected, rtol=1e-5)
        assert np.allclose(buffer.powers[drawn_items(buffer)], errors[drawn_items(buffer)] ** 0.6)


def test_a_sequences_priority_mixes_its_maximum_and_its_mean():
    buffer = filled(PrioritizedRecurrentReplayBuffer, 3, segment_len=2, burn_in=1, eta=0.9, alpha=1.0, epsilon=1e-9)
    batch = buffer.sample()
    td_error = torch.full_like(batch.loss_mask, 1e6)
    counted = batch.loss_mask[0, :, 0].bool()
    td_error[0, counted, 0] = torch.arange(1.0, 1.0 + counted.sum())
    rest = batch._replace(loss_mask=batch.loss_mask[:1])
    buffer.drawn = buffer.drawn[:1]
    buffer.update_priorities(rest, td_error[:1])
    errors = np.arange(1, 1 + int(counted.sum()))
    assert buffer.powers_of(buffer.drawn) == pytest.approx(0.9 * errors.max() + 0.1 * errors.mean())


def test_each_sequence_after_recorded_steps_has_a_step_that_counts():
    rows = filled(PrioritizedRecurrentReplayBuffer, 6).transition_table()
    buffer = PrioritizedRecurrentReplayBuffer(OBSERVATIONS, ACTIONS, segment_len=2, batch_size=50)
    buffer.extend(rows, np.array([4]))
    assert (buffer.sample().loss_mask.sum(1) > 0).all() and buffer.num_sequences(0) == 3  # from steps 3, 4 and 5


@ALGOS
def test_a_new_item_has_the_largest_priority(algo):
    buffer = filled(CLASSES[algo])
    give_priorities(buffer)
    largest = buffer.powers.max()
    batch = buffer.sample()
    buffer.update_priorities(batch, torch.full_like(batch.loss_mask, 1e-3))  # the largest so far, not of the last batch
    known = set(np.flatnonzero(buffer.tree.leaves))
    push_all(buffer, recorded((3, "terminated"))[0].pushes())
    buffer.sample()
    new = sorted(set(np.flatnonzero(buffer.tree.leaves)) - known)
    assert len(new) == (3 if algo == "sac" else 1)
    assert np.array_equal(buffer.powers[new], [largest] * len(new)) and largest > 1.0


@ALGOS
@pytest.mark.parametrize("num_envs", [1, 3])
def test_priorities_follow_what_is_overwritten_dropped_and_cut(algo, num_envs):
    buffer = filled(CLASSES[algo], 1, capacity=12 if algo == "sac" else 4, num_envs=num_envs)
    draw = np.random.default_rng(3)
    for length in draw.integers(1, 6, 40).tolist():
        env, end = int(draw.integers(num_envs)), ("truncated", "left")[int(draw.integers(2))]
        for pushed in pushes((length, end)):
            buffer.push(*pushed._replace(env=env))
        if end == "left":
            (buffer.drop, buffer.truncate)[int(draw.integers(2))](env)
        give_priorities(buffer, seed=length)
        items = np.arange(buffer.max_items)
        assert np.array_equal(buffer.tree.leaves.reshape(-1)[: len(items)], buffer.powers * buffer.shares(items))
        assert (buffer.tree.leaves > 0).sum() == len(buffer) > 0


@ALGOS
def test_a_buffer_that_was_emptied_is_as_a_new_one(algo):
    for buffer in (filled(CLASSES[algo]), CLASSES[algo](OBSERVATIONS, ACTIONS, capacity=50, batch_size=100)):
        buffer.clear()
        assert not buffer.shares(np.arange(buffer.max_items)).any() and not buffer.tree.leaves.any()
        push_all(buffer, pushes((3, "truncated")))
        buffer.sample()
        assert set(drawn_items(buffer)) == set(np.flatnonzero(buffer.tree.leaves))


@ALGOS
def test_recorded_data_is_drawn_by_priorities_too(algo):
    buffer = CLASSES[algo](OBSERVATIONS, ACTIONS, capacity=3, batch_size=60, epsilon=1e-9)
    data = as_data([(3, "terminated"), (1, "truncated"), (4, "truncated")])
    buffer.fill(data.rows(), "episodes")
    errors = give_priorities(buffer)
    expected = buffer.shares(np.arange(buffer.max_items)) * errors**0.6
    assert np.abs(frequencies(buffer, 300) - expected / expected.sum()).max() < 0.01
    again = CLASSES[algo](OBSERVATIONS, ACTIONS, capacity=3, batch_size=60, epsilon=1e-9)
    again.fill(data.rows(), "episodes")
    again.load_state_dict(through_a_file(buffer.state_dict()))
    buffer.sample(), again.sample()
    assert np.array_equal(buffer.drawn, again.drawn) and np.array_equal(buffer.powers, again.powers)


@ALGOS
def test_nan_in_a_skipped_update_changes_no_priority(algo):
    buffer = filled(CLASSES[algo])
    give_priorities(buffer)
    powers, batch = buffer.powers.copy(), buffer.sample()
    buffer.update_priorities(batch, torch.full_like(batch.loss_mask, torch.nan))
    assert np.array_equal(buffer.powers, powers) and np.isfinite(buffer.largest)
    assert buffer.num_updates == 1, "beta grows by updates that are made"


@ALGOS
@pytest.mark.parametrize("capacity", [40, 60])
def test_another_capacity_is_refused(algo, capacity):
    """Priorities would belong to other items."""
    buffer = filled(CLASSES[algo])
    other = CLASSES[algo](OBSERVATIONS, ACTIONS, capacity=capacity, batch_size=100)
    with pytest.raises(UserError, match=f"has room for {capacity} items, but 50 were saved.*set the capacity"):
        other.load_state_dict(through_a_file(buffer.state_dict()))


class Eager(PrioritizedReplayBuffer):
    """Updates its tree at once, not at the next draw."""

    def item_changed(self, item):
        self.set_powers(np.array([item]), self.largest)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_buffer_may_update_its_tree_when_an_item_changes(num_envs):
    buffer = Eager(OBSERVATIONS, ACTIONS, capacity=12, batch_size=200, num_envs=num_envs)
    for number in range(12):
        for pushed in pushes((1 + number % 4, "truncated")):
            buffer.push(*pushed._replace(env=number % num_envs))
        buffer.sample()
        items = np.arange(buffer.max_items)
        assert np.array_equal(buffer.tree.leaves.reshape(-1)[: len(items)] > 0, buffer.shares(items) > 0)
        assert buffer.storage.is_start[buffer.drawn].all()


@ALGOS
def test_peeking_changes_nothing(algo):
    buffer = filled(CLASSES[algo])
    give_priorities(buffer)
    drawn = buffer.drawn
    seen = buffer.peek()
    assert buffer.drawn is drawn
    assert torch.equal(seen.rewards, buffer.sample().rewards)


@ALGOS
def test_batches_gathered_on_the_device_are_the_same(algo):
    here, there = (filled(CLASSES[algo], on_device=on_device) for on_device in (False, True))
    for buffer in (here, there):
        give_priorities(buffer)
        push_all(buffer, pushes((4, "terminated")))
    one, other = here.sample().without_padding(), there.sample().without_padding()
    assert (
        all(equal(x, y) for x, y in zip(one[:8], other[:8], strict=True))
        and torch.equal(one.weights, other.weights)
        and len(one.weights.unique()) > 3
    )


# Sequences --------------------------------------------------------------------------------------------------------


SEQUENCES = {(7, 4): [0, 2, 4, 6], (4, 4): [0, 2], (1, 4): [0], (9, 1): list(range(9)), (9, 3): list(range(9))}


@pytest.mark.parametrize("length, segment_len", SEQUENCES)
def test_sequences_begin_every_period_until_the_episodes_end(length, segment_len):
    buffer = filled(PrioritizedRecurrentReplayBuffer, length, segment_len=segment_len)
    firsts = SEQUENCES[length, segment_len]
    assert buffer.num_sequences(0) == len(firsts)
    batch = buffer.batch_of(np.array([(0, number) for number in range(len(firsts))]))
    whole = buffer.episodes[0].rewards[:, 0]
    for row, first in enumerate(firsts):
        counted = batch.loss_mask[row, :, 0] > 0
        assert np.array_equal(batch.rewards[row, counted, 0], whole[first : first + segment_len])


@pytest.mark.parametrize("period", [1, 3, 4])
def test_a_period_of_ones_own(period):
    buffer = filled(PrioritizedRecurrentReplayBuffer, 20, segment_len=4, period=period)
    assert buffer.num_sequences(0) == {1: 20, 3: 7, 4: 5}[period]


def test_a_step_of_a_short_episode_and_the_last_one_count_as_much_as_others():
    """Without priorities; a step before the first `period` ones counts half."""
    lengths = 2, 4, 6, 30
    buffer = filled(PrioritizedRecurrentReplayBuffer, *lengths, segment_len=4, period=2, batch_size=1_000, alpha=0.0)
    counts = [np.zeros(length) for length in lengths]
    for _ in range(100):
        buffer.sample()
        for place, number in buffer.drawn.tolist():
            counts[place][2 * number : 2 * number + 4] += 1.0
    middle = counts[3][4:-4].mean()
    for found in counts:
        assert found[:2] / middle == pytest.approx(0.5, abs=0.03)
        assert found[2:] / middle == pytest.approx(1.0, abs=0.05)


def test_sequences_are_drawn_in_proportion_to_their_priorities():
    buffer = filled(PrioritizedRecurrentReplayBuffer, 9, 3, 6, segment_len=3, period=2, alpha=1.0, epsilon=1e-9)
    counts = [buffer.num_sequences(place) for place in range(3)]
    assert counts == [5, 2, 3]
    items = np.array([(place, number) for place, count in enumerate(counts) for number in range(count)])
    buffer.sample()
    buffer.drawn = items
    errors = torch.arange(1.0, 11.0)[:, None, None].expand(10, 3, 1)
    batch = buffer.batch_of(items)
    buffer.update_priorities(batch._replace(loss_mask=torch.ones(10, 3, 1)), errors)
    expected, drawn = np.arange(1.0, 11.0), np.zeros(10)
    for _ in range(300):
        buffer.sample()
        for number, item in enumerate(items):
            drawn[number] += (buffer.drawn == item).all(1).sum()
    assert drawn.sum() == 30_000
    assert np.abs(drawn / 30_000 - expected / expected.sum()).max() < 0.01
    weights = buffer.sample().weights[:, 0, 0].numpy()
    powers = buffer.powers_of(buffer.drawn)
    beta = 0.4 + 0.6 * buffer.num_updates / buffer.beta_updates
    assert np.allclose(weights, (powers / powers.min()) ** -beta, rtol=1e-5)


def test_priorities_of_sequences_are_saved_and_restored():
    buffer = filled(PrioritizedRecurrentReplayBuffer, 9, 3, 6, 5, segment_len=3, capacity=3, batch_size=7)
    for seed in range(5):
        buffer.update_priorities(batch := buffer.sample(), torch.rand(batch.loss_mask.shape) + seed)
    again = PrioritizedRecurrentReplayBuffer(OBSERVATIONS, ACTIONS, segment_len=3, capacity=3, batch_size=7)
    again.load_state_dict(through_a_file(buffer.state_dict()))
    assert all(np.array_equal(buffer.sequences[place], again.sequences[place]) for place in range(3))
    assert len(np.unique(np.concatenate([*again.sequences.values()]))) > 3
    for _ in range(5):
        one, other = buffer.sample(), again.sample()
        assert np.array_equal(buffer.drawn, again.drawn) and torch.equal(one.weights, other.weights)


def test_priorities_of_another_number_of_sequences_are_refused():
    buffer = filled(PrioritizedRecurrentReplayBuffer, 9, 3, segment_len=3, capacity=3)
    state = through_a_file(buffer.state_dict())
    state["sequences"] = state["sequences"][:-1]
    again = PrioritizedRecurrentReplayBuffer(OBSERVATIONS, ACTIONS, segment_len=3, capacity=3)
    with pytest.raises(UserError, match="an older version cut episodes in another way"):
        again.load_state_dict(state)


@pytest.mark.parametrize("segment_len, period", [(None, 2), (4, 5)])
def test_a_period_that_skips_steps_is_refused(segment_len, period):
    with pytest.raises(UserError, match=f"period is {period} but segment_len is {segment_len}.*leave period out"):
        filled(PrioritizedRecurrentReplayBuffer, 9, segment_len=segment_len, period=period)


# In a run ---------------------------------------------------------------------------------------------------------


def learner_of(algo, *bindings, **buffer):
    loading.load_gin_config(
        "test/template_short.gin", merged(*QUICK, *ODD, "make.kwargs={'max_episode_steps': 30}", *bindings)
    )
    return build("pendulum-p-v0", algo, seed=5, buffer_class=CLASSES[algo], buffer=buffer)


class Failing(Callback):
    """Ends a run as a kill would: nothing is written after this step."""

    def __init__(self, step):
        self.step = step

    def on_progress(self, run):
        if run.loop.step >= self.step:
            raise KeyboardInterrupt


@ALGOS
def test_a_run_that_was_killed_and_gone_on_with_is_the_run_that_was_not(algo, tmp_path):
    files = []
    for name, stops in (("whole", ()), ("parts", (150, 290))):
        folder = RunFolder(tmp_path / name, "pendulum-p-v0", algo, 5)
        folder.path.mkdir(parents=True)
        for stop in (*stops, None):
            learner = learner_of(algo)
            if folder.checkpoint.exists():
                assert resume(read_checkpoint(folder.checkpoint), learner) == []
            intervals = CheckpointOptions(every_steps=40, every_minutes=None)
            saving = Checkpoints(folder, learner, "", 3, intervals=intervals)
            try:
                learner.train(Loggers([]), [saving, *([Failing(stop)] if stop else ())], num_epochs=3)
            except KeyboardInterrupt:
                assert stop
        files.append(folder.checkpoint)
    whole, parts = map(read_checkpoint, files)
    assert len(np.unique(whole["buffer"]["powers"])) > 3 and whole["buffer"]["num_updates"] > 10
    assert_same(whole, parts)


@ALGOS
def test_priorities_are_the_td_errors_of_the_update_and_weights_count_in_its_loss(algo):
    learner = learner_of(algo, "train.num_epochs=2", batch_size=7, beta=1.0)
    agent, buffer = learner.algorithm, learner.buffer
    update, seen = agent.update_networks, []

    def watched(batch):
        before = copy.deepcopy(agent)
        stats = update(batch)
        seen.append((before, batch, buffer.drawn, stats))
        return stats

    agent.update_networks = watched
    given = []
    buffer.update_priorities = lambda batch, td_error: (
        given.append(batch), type(buffer).update_priorities(buffer, batch, td_error)
    )  # fmt: skip
    learner.train(Loggers([]))
    assert len(seen) == len(given) > 3 and seen[-1][3]["td_error"].any()
    agent_before, batch, items, stats = seen[-1]
    prepared = agent_before.prepare(batch)
    h = agent_before.summarize(prepared)
    with torch.no_grad():
        y, q = agent_before.target(h, prepared), agent_before.critics(h.q, prepared.actions)
    errors = torch.where(prepared.loss_mask > 0, (q - y).abs().mean(0), 0.0)
    counted = prepared.loss_mask.sum((1, 2))
    expected = 0.9 * errors.amax((1, 2)) + 0.1 * errors.sum((1, 2)) / counted + 1e-6
    items, first = np.unique(items, return_index=True, axis=0)
    assert np.allclose(buffer.powers_of(items), expected.numpy()[first] ** 0.6, rtol=1e-4)
    assert len(np.unique(batch.weights)) > 2
    loss = (batch.weights * prepared.loss_mask * (q - y).square()).sum() / prepared.loss_mask.sum()
    assert stats["critic_loss"].item() == pytest.approx(loss.item(), rel=1e-4)


def test_an_algorithm_without_critics_is_refused_before_it_trains():
    with pytest.raises(UserError, match=r"PrioritizedReplayBuffer draws by TD errors.* BC"):
        build(None, "bc", dataset=as_data([(30, "truncated")] * 3), buffer_class=PrioritizedReplayBuffer)


def test_an_update_without_td_errors_is_refused(monkeypatch):
    loading.load_gin_config("test/template_short.gin", merged(*QUICK))
    data = as_data([(30, "truncated")] * 3)
    learner = build(None, "iql", dataset=data, buffer_class=PrioritizedReplayBuffer)
    monkeypatch.setattr(learner.algorithm, "update_networks", lambda batch: {})
    with pytest.raises(UserError, match=r"PrioritizedReplayBuffer draws by TD errors.* IQL"):
        learner.train(Loggers([]), num_epochs=1)


# Chosen by gin ----------------------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path, launch):
    """Trains by a user's gin file with these lines."""

    def run(algo, *lines, more=()):
        (tmp_path / "mine.gin").write_text("\n".join(["include 'configs/test/template_short.gin'", *QUICK, *lines, ""]))
        return launch("--env", "pendulum-p-v0", "--algo", algo, "--config", "mine.gin", *more)

    return run


@ALGOS
def test_a_gin_file_chooses_the_buffer_and_the_run_goes_on_exactly(mine, tmp_path, algo):
    name = CLASSES[algo].__name__
    lines = [f"build.buffer_class = @{name}", f"{name}.alpha = 0.5", "ReplayBuffer.batch_size = 20"]
    code, out, err = mine(algo, *lines, "train.num_epochs = 3")
    assert code == 0, err
    whole = run_folder(tmp_path, algo=algo)
    assert f"{name}.alpha = 0.5" in (whole / "config.gin").read_text()
    checkpoint = read_checkpoint(whole / "checkpoint.pt")
    assert checkpoint["buffer"]["num_updates"] > 0
    kept = tmp_path / "kept"
    whole.rename(kept)
    assert mine(algo, *lines, "train.num_epochs = 1")[0] == 0
    code, out, err = mine(algo, *lines, "train.num_epochs = 3", more=["--resume"])
    assert code == 0 and "not exact" not in out, err
    assert rows(whole) == rows(kept)
    assert_same(checkpoint, read_checkpoint(whole / "checkpoint.pt"))


@pytest.mark.parametrize(
    "algo, line, words",
    [
        ("sac", "build.buffer_class = @PrioritisedReplayBuffer", ["PrioritisedReplayBuffer"]),
        ("sac", "build.bufer_class = @PrioritizedReplayBuffer", ["bufer_class", "did you mean buffer_class?"]),
        ("sac", "PrioritizedReplayBuffer.alfa = 1.0", ["'alfa'", "did you mean alpha?"]),
        ("sac", "PrioritizedReplayBuffer.num_envs = 2", ["num_envs is passed by offpcc itself"]),
        ("sac", "build.buffer_class = @PrioritizedReplayBuffer()", ["without parentheses"]),
        ("sac", "build.buffer_class = 3", ["build.buffer_class is 3", "@ReplayBuffer"]),
        ("sac", "build.buffer_class = @RecurrentReplayBuffer", ["draws sequences", "a subclass of ReplayBuffer"]),
        ("rsac", "build.buffer_class = @ReplayBuffer", ["draws transitions", "a subclass of RecurrentReplayBuffer"]),
        ("sac", "build.buffer_class = @Recurrent", ["build.buffer_class is the class Recurrent", "@ReplayBuffer"]),
        (
            "sac",
            "build.buffer_class = @PrioritizedReplayBuffer\nPrioritizedReplayBuffer.alpha = 2.0",
            ["PrioritizedReplayBuffer.alpha is 2.0", "from 0 to 1"],
        ),
    ],
)  # fmt: skip
def test_a_wrong_choice_is_one_message(mine, tmp_path, algo, line, words):
    code, _, err = mine(algo, line)
    assert code == 2 and "Traceback" not in err
    assert all(word in err for word in words), err
    assert not run_folder(tmp_path, algo=algo).exists()


def test_a_binding_of_a_buffer_that_is_not_chosen_has_no_effect_on_the_command_line(mine):
    more = ["--gin", "PrioritizedReplayBuffer.alpha=0.5"]
    code, _, err = mine("sac", more=more)
    assert code == 2 and "this run does not use PrioritizedReplayBuffer" in err
    code, _, err = mine("sac", "build.buffer_class = @PrioritizedReplayBuffer", more=more)
    assert code == 0, err


@pytest.mark.parametrize("algo, base", [("sac", ReplayBuffer), ("rsac", RecurrentReplayBuffer)])
def test_the_default_is_as_before(algo, base):
    offpcc.configure()
    assert type(offpcc.build("pendulum-p-v0", algo).buffer) is base
    offpcc.configure(None, f"build.buffer_class = @{base.__name__}")
    assert type(offpcc.build("pendulum-p-v0", algo).buffer) is base
