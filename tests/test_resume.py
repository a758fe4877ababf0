"""A run that stopped goes on as if it had not: the same rows, byte for byte, and the same weights."""

import json
import os
import shutil

import gymnasium
import numpy as np
import pytest
import torch
from conftest import QUICK, merged, rows, run_folder
from exact_resume import assert_equal_runs, assert_same

import offpcc
from offpcc.algorithms import ALGORITHMS, BCQ
from offpcc.algorithms.variants import TABLE
from offpcc.config import loading
from offpcc.core import Batch, Step
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.networks import Cell, Encoder
from offpcc.training.analysis.run_tables import read_progress
from offpcc.training.build import build
from offpcc.training.checkpoint import Checkpoints, read_checkpoint, resume
from offpcc.training.evaluation import Evaluation, run_episodes
from offpcc.training.interaction import EpisodeResult, Interaction
from offpcc.training.loggers import CSVLogger
from offpcc.training.metrics import Loop
from offpcc.training.run_dir import RunFolder
from offpcc.training.run_fns import columns_of
from offpcc.utils.tensor_files import write_tensors

SMALL = {"hidden_dims": (4,), "hidden_dim": 8, "num_layers": 1}
# Epochs of 130 steps end in mid-episode, with updates owed and a memory under way.
ODD = ("train.num_steps_per_epoch=130", "train.update_after=110", "train.updates_per_step=0.055")


def train_epochs(results, algo, num_epochs, bindings=()):
    """Train an algorithm to `num_epochs`, from its checkpoint if there is one; its folder."""
    env = "pendulum-img-v0" if ALGORITHMS[algo].default_augmentation else "pendulum-p-v0"
    env = "cartpole-p-v0" if ALGORITHMS[algo].is_discrete else env
    loading.load_gin_config("test/template_short.gin", merged(*QUICK, *ODD, *bindings))
    learner, folder = build(env, algo, seed=5), RunFolder(results, env, algo, 5)
    if folder.checkpoint.exists():
        assert resume(read_checkpoint(folder.checkpoint), learner) == []
    folder.path.mkdir(parents=True, exist_ok=True)
    table = columns_of(learner.algorithm, learner.tests)
    learner.train(
        CSVLogger(folder.progress, table, learner.loop.rows),
        [Checkpoints(folder, learner, "", num_epochs)],
        num_epochs=num_epochs,
        num_test_episodes_per_epoch=1,
    )
    return folder


FAST = ("sac", "rtd3_s", "iql")  # the others are slow tests


def marks_of(name):
    """The marks of the tests of an algorithm: images and memories of most take minutes together."""
    kind = TABLE[name]
    usual = (
        ("sac", "iql") if kind.images or kind.memory == "shared" else ("sac", "iql", "td3", "bc", "bcq", "cql", "r2d2")
    )
    is_common = kind.algorithm in usual or not (kind.images or kind.memory)
    return () if name in FAST else (pytest.mark.slow,) if is_common else (pytest.mark.slow, pytest.mark.learning)


@pytest.mark.parametrize(
    "algo",
    [
        pytest.param(name, marks=marks_of(name))
        for name, cls in ALGORITHMS.items()
        if cls.imagination is None or cls.trains_model  # for the others, see test_imagination.py
        if not (cls.is_discrete and cls.default_augmentation)  # no task here has images and discrete actions
    ],
)
def test_resuming_is_exact_for_every_algorithm(algo, tmp_path):
    bindings = ("make.kwargs={'max_episode_steps': 50}", "train.update_after=60")  # an agent with memory learns at 100
    bindings += ("BCQ.vae_hidden_dims=(32, 32)",) if issubclass(ALGORITHMS[algo], BCQ) else ()
    whole = train_epochs(tmp_path / "whole", algo, 2, bindings)
    for epochs in (1, 2):
        parts = train_epochs(tmp_path / "parts", algo, epochs, bindings)
    assert_equal_runs(whole.path, parts.path)
    before, after = read_progress(whole.progress)["update"]
    assert 0 < before < after, "there were no updates before or after the first epoch's end"


@pytest.mark.parametrize(
    "bindings",
    [
        [
            "SAC.heads=@Residual()",
            "Residual.critic_width=8",
            "SAC.weight_decay=0.1",
            "SAC.normalize_observations='scale'",
        ],
        [
            *("SAC.num_critics=4", "SAC.target_subset=2", "SAC.actor_q='mean'", "SAC.policy_delay=2"),
            *("SAC.dropout=0.1", "SAC.actor_dropout=0.1"),
        ],
        ["RecurrentSAC.lr=@LinearDecay()", "LinearDecay.num_updates=10", "SAC.max_grad_norm=0.5"],
        ["SAC.normalize_observations=True", "SAC.n_step=3", "Recurrent.cell='gru'"],
        ["RecurrentReplayBuffer.segment_len=None", "RecurrentReplayBuffer.burn_in=0", "train.updates_per_step=0.013"],
        ["environments.num_envs=3", "make.wrappers=[@Flicker]", "Flicker.probability=0.1"],
    ],
    ids=[
        "heads",
        "dropout",
        "schedule and clipping",
        "normalisation and n-step",
        "whole episodes and fractions",
        "environments",
    ],
)
def test_resuming_is_exact_with_options(bindings, tmp_path):
    whole = train_epochs(tmp_path / "whole", "rsac", 4, bindings)
    for epochs in (1, 2, 4):
        parts = train_epochs(tmp_path / "parts", "rsac", epochs, bindings)
    assert_equal_runs(whole.path, parts.path)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["sac", "rsac"])
def test_resuming_is_exact_from_the_command_line(algo, quick, tmp_path, monkeypatch):
    assert quick(algo, bindings=[*ODD, "train.num_epochs=3"])[0] == 0
    whole = run_folder(tmp_path, algo=algo)
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "parts"))
    assert quick(algo, bindings=[*ODD, "train.num_epochs=1"])[0] == 0
    code, out, err = quick(algo, "--resume", bindings=[*ODD, "train.num_epochs=3"])
    assert code == 0, err
    assert "not exact" not in out
    parts = tmp_path / "parts" / "pendulum-p-v0" / algo / "1"
    assert_equal_runs(whole, parts)


@pytest.mark.slow
def test_a_run_killed_after_a_row_goes_on_from_its_checkpoint(quick, tmp_path):
    bindings = [*ODD, "train.num_epochs=3"]
    quick("rsac", bindings=bindings)
    folder = run_folder(tmp_path, algo="rsac")
    expected = rows(folder)
    shutil.rmtree(folder)
    quick("rsac", bindings=[*ODD, "train.num_epochs=2"])
    kept = (folder / "checkpoint.pt").read_bytes()
    quick("rsac", "--resume", bindings=bindings)
    (folder / "checkpoint.pt").write_bytes(kept)  # killed: the row of epoch 3 is there, its checkpoint is not
    folder.joinpath("run.json").write_text(json.dumps({"status": "running"}))
    assert quick("rsac", "--resume", bindings=bindings)[0] == 0
    assert rows(folder) == expected


@pytest.mark.slow
def test_random_exploration_is_not_repeated_after_resuming(quick, tmp_path, monkeypatch):
    """The steps of an epoch after `update_after` are the policy's, though the process is new."""
    bindings = ["train.num_steps_per_epoch=200", "train.update_after=199"]
    quick("sac", bindings=[*bindings, "train.num_epochs=1"])
    drawn = []
    original = Interaction.step
    monkeypatch.setattr(Interaction, "step", lambda self, random: drawn.append(random) or original(self, random))
    quick("sac", "--resume", bindings=[*bindings, "train.num_epochs=2"])
    assert drawn == [False] * 200


def test_resuming_a_finished_run_says_so(quick, tmp_path):
    quick("sac")
    before = (run_folder(tmp_path) / "progress.csv").read_bytes()
    code, out, _ = quick("sac", "--resume")
    assert code == 0
    assert "is finished" in out and "--run_id 2" in out and "curve.png" in out
    assert (run_folder(tmp_path) / "progress.csv").read_bytes() == before


def test_a_finished_run_whose_checkpoint_is_gone_stays_as_it_is(quick, tmp_path):
    """People delete checkpoints, which are large; what a run came to is not to be lost by that."""
    quick("sac")
    folder = run_folder(tmp_path)
    (folder / "checkpoint.pt").unlink()
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    code, out, _ = quick("sac", "--resume", bindings=["train.num_epochs=4"])
    assert code == 0
    assert "is finished" in out and "checkpoint.pt does not exist any more" in out
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_bindings_are_checked_before_a_run_is_called_finished(quick, tmp_path, has_checkpoint):
    quick("sac")
    folder = run_folder(tmp_path)
    if not has_checkpoint:
        (folder / "checkpoint.pt").unlink()
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for binding, words in (
        ("SAC.alfa=0.5", "did you mean alpha"),
        ("SAC.alpha=-1", "SAC.alpha is -1"),
        ("TD3.policy_delay=3", "does not use TD3"),
        ("SAC.alpha=0.5", "made with 1.0"),
    ):
        code, out, err = quick("sac", "--resume", bindings=[binding])
        assert code == 2 and words in err and err.count("\n") == 1
        assert "finished" not in out
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert quick("sac", "--resume")[0] == 0


@pytest.mark.slow
def test_a_finished_run_with_the_checkpoint_before_alone_goes_on(quick, tmp_path):
    quick("sac", bindings=["Checkpoints.every=1"])
    (run_folder(tmp_path) / "checkpoint.pt").unlink()
    code, out, err = quick("sac", "--resume", bindings=["Checkpoints.every=1", "train.num_epochs=3"])
    assert code == 0, err
    assert "cannot be resumed" not in out and "the run continues from the checkpoint before it, at step 250" in out
    assert len(rows(run_folder(tmp_path))) == 4


@pytest.mark.slow
def test_resuming_without_a_checkpoint_starts_at_the_beginning(quick, tmp_path):
    assert quick("sac", "--resume")[0] == 0
    expected = rows(run_folder(tmp_path))
    (run_folder(tmp_path) / "checkpoint.pt").unlink()
    (run_folder(tmp_path) / "run.json").write_text('{"status": "running"}')
    assert quick("sac", "--resume")[0] == 0
    assert rows(run_folder(tmp_path)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("SAC.alpha=0.5", ["SAC.alpha is 0.5", "made with 1.0"]),
        ("ReplayBuffer.batch_size=8", ["ReplayBuffer.batch_size"]),
    ],
)
def test_other_changed_bindings_are_refused_by_name(quick, tmp_path, binding, words):
    quick("sac")
    before = (run_folder(tmp_path) / "checkpoint.pt").read_bytes()
    code, _, err = quick("sac", "--resume", bindings=[binding])
    assert code == 2
    assert all(word in err for word in words)
    assert (run_folder(tmp_path) / "checkpoint.pt").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "binding", ["make.timeout=60.0", "Checkpoints.every_steps=50", "Checkpoints.every_minutes=None"]
)
def test_what_changes_nothing_of_what_is_learned_may_be_changed(quick, tmp_path, binding):
    quick("sac", bindings=["train.num_epochs=1"])
    code, out, err = quick("sac", "--resume", bindings=["train.num_epochs=2", binding])
    assert code == 0, err
    assert "going on" in out and len(rows(run_folder(tmp_path))) == 3


def test_a_run_whose_checkpoints_are_gone_begins_anew_and_its_table_is_kept(quick, tmp_path):
    quick("sac")
    folder = run_folder(tmp_path)
    table = (folder / "progress.csv").read_bytes()
    (folder / "run.json").write_text('{"status": "running"}')
    for file in folder.glob("checkpoint*.pt"):
        file.unlink()
    code, out, err = quick("sac", "--resume")
    assert code == 0, err
    assert "there is no checkpoint" in out and "kept as progress_before.csv" in out
    assert (folder / "progress_before.csv").read_bytes() == table


def test_the_number_of_epochs_may_only_be_raised(quick, tmp_path):
    quick("sac")
    code, out, _ = quick("sac", "--resume", bindings=["train.num_epochs=1"])
    assert code == 0 and "there is nothing left to do" in out and "give a larger train.num_epochs" in out
    (run_folder(tmp_path) / "run.json").write_text('{"status": "running"}')
    code, _, err = quick("sac", "--resume", bindings=["train.num_epochs=1"])
    assert code == 2
    assert "train.num_epochs is 1" in err and "only raise" in err


def test_another_number_of_threads_is_told(quick):
    quick("sac")
    code, out, _ = quick("sac", "--resume", "--threads", 2, bindings=["train.num_epochs=3"])
    assert code == 0
    assert "not exact" in out and "--threads 1" in out


def test_resuming_needs_no_config(quick, launch, tmp_path):
    quick("sac")
    name = ("--env", "pendulum-p-v0", "--algo", "sac")
    assert launch(*name, "--resume", "--gin", "train.num_epochs=3")[0] == 0
    assert len(rows(run_folder(tmp_path))) == 4


@pytest.mark.parametrize("content", [b"", b"nonsense", "newer"])
def test_a_damaged_checkpoint_is_named_and_left_alone(quick, tmp_path, content):
    quick("sac")
    file = run_folder(tmp_path) / "checkpoint.pt"
    if content == "newer":
        write_tensors(file, torch.load(file) | {"format": 99})
    else:
        file.write_bytes(content)
    before = {path: path.read_bytes() for path in run_folder(tmp_path).rglob("*") if path.is_file()}
    code, _, err = quick("sac", "--resume", bindings=["train.num_epochs=3"])
    assert code == 2
    assert "checkpoint.pt" in err and "no checkpoint before it" in err and err.count("\n") == 1
    assert {path: path.read_bytes() for path in run_folder(tmp_path).rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_where_the_checkpoint_is_damaged_the_run_goes_on_from_the_one_before(quick, tmp_path, monkeypatch):
    """The best actor is of the epoch whose checkpoint is lost: that epoch, played again, finds the same one."""
    monkeypatch.setattr(Evaluation, "run", lambda *_: [EpisodeResult(float(next(returns)), 200)])
    bindings = [*ODD, "train.num_epochs=4", "Checkpoints.every=1"]
    returns = iter([1, 2, 9, 3])
    assert quick("sac", bindings=bindings)[0] == 0
    whole = tmp_path / "whole"
    run_folder(tmp_path).rename(whole)
    returns = iter([1, 2, 9])
    assert quick("sac", bindings=[*bindings, "train.num_epochs=3"])[0] == 0
    folder = run_folder(tmp_path)
    with (folder / "checkpoint.pt").open("rb+") as file:
        file.seek(5_000)
        file.write(b"?")
    returns = iter([9, 3])
    code, out, err = quick("sac", "--resume", bindings=bindings)
    assert code == 0, err
    assert "checkpoint.pt is damaged (checksum); the run continues from the checkpoint before it, at step 260" in out
    assert "after epoch 2, step 260" in out
    assert_equal_runs(whole, folder)


def test_where_the_checkpoint_is_larger_than_the_memory_the_run_goes_on_from_the_one_before(quick, tmp_path):
    quick("sac", bindings=["Checkpoints.every=1"])
    os.truncate(run_folder(tmp_path) / "checkpoint.pt", 9 * 10**11)  # of holes
    code, out, err = quick("sac", "--resume", bindings=["Checkpoints.every=1", "train.num_epochs=3"])
    assert code == 0, err
    assert "than the free memory; the run continues from the checkpoint before it, at step 250" in out


@pytest.mark.parametrize("change", [None, lambda text: "", lambda text: text[:-9]], ids=["removed", "empty", "cut"])
def test_a_table_that_was_removed_or_changed_is_written_again(quick, tmp_path, change):
    bindings = ["train.num_steps_per_epoch=160", "train.num_test_episodes_per_epoch=1"]
    assert quick("sac", bindings=[*bindings, "train.num_epochs=2"])[0] == 0
    table = run_folder(tmp_path) / "progress.csv"
    before = table.read_text()
    if change is None:
        table.unlink()
    else:
        table.write_text(change(before))
    code, _, err = quick("sac", "--resume", bindings=[*bindings, "train.num_epochs=3"])
    assert code == 0, err
    assert table.read_text().startswith(before) and table.read_text().count("\n") == 4


def test_a_line_that_a_killed_process_left_unfinished_is_replaced(quick, tmp_path):
    bindings = ["train.num_steps_per_epoch=160", "train.num_test_episodes_per_epoch=1"]
    assert quick("sac", bindings=[*bindings, "train.num_epochs=1"])[0] == 0
    table = run_folder(tmp_path) / "progress.csv"
    before = table.read_bytes()
    table.write_bytes(before + b"2,320,-1")
    code, out, err = quick("sac", "--resume", bindings=[*bindings, "train.num_epochs=2"])
    assert code == 0 and "progress.csv" not in out, err
    whole, after = before.splitlines(), table.read_bytes().splitlines()
    assert after[:2] == whole and len(after) == 3 and after[2].count(b",") == whole[0].count(b",")


def test_an_actor_that_is_not_the_best_does_not_take_the_place_of_a_best_one_that_was_removed(
    quick, tmp_path, monkeypatch
):
    returns = iter([9.0, 3.0, 5.0, 4.0])
    monkeypatch.setattr(
        "offpcc.training.run_fns.summarize_episodes",
        lambda kind, *rest: {f"{kind}/return": next(returns)} if kind == "test" else {},
    )
    bindings = ["train.num_steps_per_epoch=160", "train.updates_per_step=0.2"]
    assert quick("sac", bindings=[*bindings, "train.num_epochs=1"])[0] == 0
    folder = run_folder(tmp_path)
    (folder / "actor_best.pt").unlink()
    code, out, err = quick("sac", "--resume", bindings=[*bindings, "train.num_epochs=4"])
    assert code == 0, err
    assert f"{folder / 'actor_best.pt'} is missing; the best actor is chosen from the next tests" in out
    assert json.loads((folder / "run.json").read_text())["best_test_return"] == 5.0


def test_events_that_were_removed_are_written_again(quick, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    bindings = ["train.num_steps_per_epoch=160", "train.num_test_episodes_per_epoch=1"]
    assert quick("sac", bindings=[*bindings, "train.num_epochs=2"])[0] == 0
    shutil.rmtree(run_folder(tmp_path) / "tensorboard")
    assert quick("sac", "--resume", bindings=[*bindings, "train.num_epochs=3"])[0] == 0
    events = EventAccumulator(str(run_folder(tmp_path) / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("test/return")] == [160, 320, 480]


def test_what_a_killed_process_left_of_its_files_is_removed(quick, tmp_path):
    quick("sac")
    folder = run_folder(tmp_path)
    left = [folder / ".checkpoint.tmp-77.pt", folder / "checkpoint_parts" / ".0a.tmp-77.part"]
    for file in left:
        file.touch()
    assert quick("sac", "--resume", bindings=["train.num_epochs=3"])[0] == 0
    assert not any(file.exists() for file in left)


@pytest.mark.slow
def test_killed_between_the_renames_a_run_goes_on(quick, tmp_path):
    """Then there is the checkpoint before, and none of the name that is looked for first."""
    quick("sac", bindings=["Checkpoints.every=1", "train.num_epochs=3"])
    expected = rows(run_folder(tmp_path))
    (run_folder(tmp_path) / "checkpoint.pt").unlink()
    (run_folder(tmp_path) / "run.json").unlink()
    (run_folder(tmp_path) / "progress.csv").write_text(
        "\n".join((run_folder(tmp_path) / "progress.csv").read_text().splitlines()[:3]) + "\n"
    )
    code, out, err = quick("sac", "--resume", bindings=["Checkpoints.every=1", "train.num_epochs=3"])
    assert code == 0, err
    assert "the run continues from the checkpoint before it, at step 500" in out
    assert rows(run_folder(tmp_path)) == expected


def test_stop_return_ends_a_run_and_a_resumed_one_stays_ended(quick, tmp_path):
    bindings = ["train.stop_return=-5000.0", "train.num_epochs=4"]
    assert quick("sac", bindings=bindings)[0] == 0
    assert len(rows(run_folder(tmp_path))) == 2
    code, out, _ = quick("sac", "--resume", bindings=bindings)
    assert code == 0 and "is finished" in out
    code, out, err = quick("sac", "--resume", bindings=[bindings[0], "train.num_epochs=6"])  # more epochs: it goes on
    assert code == 0 and "is finished" not in out and len(rows(run_folder(tmp_path))) == 3, err


@offpcc.configurable
class Dropping(Encoder):
    """A user's encoder that draws from torch's global generator while it learns, and only then."""

    def __init__(self, shape):
        super().__init__(shape)
        self.dim = 4
        self.net = torch.nn.Sequential(torch.nn.Linear(shape.observation[0], 4), torch.nn.Dropout(0.5))

    def forward(self, inputs, state=None):
        return self.net(inputs.observation), None


@pytest.mark.slow
def test_generators_that_are_everybodys_go_on_too(tmp_path):
    bindings = ["SAC.encoder=@Dropping", "train.updates_per_step=0.5"]
    torch.manual_seed(1)
    whole = train_epochs(tmp_path / "whole", "sac", 3, bindings)
    torch.manual_seed(1)
    train_epochs(tmp_path / "parts", "sac", 2, bindings)
    torch.manual_seed(2)
    parts = train_epochs(tmp_path / "parts", "sac", 3, bindings)
    assert_same(read_checkpoint(whole.checkpoint), read_checkpoint(parts.checkpoint))


@offpcc.configurable
class DroppingByFunction(Dropping):
    """The same without a layer of dropout."""

    dropout = np.array([0.5, 0.5])  # what it means is the user's affair

    def forward(self, inputs, state=None):
        return torch.nn.functional.dropout(self.net[0](inputs.observation), 0.5, self.training), None


@offpcc.configurable
class DroppingGRU(Cell):
    """A user's cell with PyTorch's dropout between layers."""

    def __init__(self, num_in, hidden_dim, num_layers):
        super().__init__()
        self.dim = hidden_dim
        self.gru = torch.nn.GRU(num_in, hidden_dim, num_layers, batch_first=True, dropout=0.5)

    def forward(self, x, state=None):
        h, last = self.gru(x, None if state is None else state.transpose(0, 1).contiguous())
        return h, last.transpose(0, 1)


@pytest.mark.parametrize(
    "bindings",
    [
        ["SAC.encoder=@Dropping"],
        ["SAC.encoder=@DroppingByFunction"],
        ["SAC.encoder=@Recurrent", "Recurrent.cell=@DroppingGRU"],
    ],
)
def test_dropout_is_for_learning_only(bindings):
    loading.load_gin_config(None, bindings)
    algorithm = build("pendulum-p-v0", "sac").algorithm
    step = Step(np.ones((1, 2), np.float32), np.zeros((1, 1)), np.zeros((1, 1)), np.ones(1))
    actions = {float(algorithm.act(step, deterministic=True)[0][0, 0]) for _ in range(5)}
    assert len(actions) == 1
    batch = Batch(*(torch.ones(2, *size) for size in ((4, 2), (3, 1), (3, 1), (3, 1), (4, 1), (3, 1), (1,), (1,))))
    algorithm.prepare(batch)
    assert not torch.equal(*(algorithm.summarize(batch).q for _ in range(2))), "updates have dropout"
    algorithm.act(step)
    assert torch.equal(*(algorithm.summarize(batch).q for _ in range(2)))
    for layer, *_ in algorithm._train_mode_layers:
        layer.train = None  # not called: all are in eval mode already
    algorithm.act(step)


class Forgetful(gymnasium.Env):
    """An environment with randomness that no seed governs."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.random.default_rng().uniform(-1.0, 1.0, 1).astype(np.float32), {}

    def step(self, action):
        return np.random.default_rng().uniform(-1.0, 1.0, 1).astype(np.float32), 0.0, False, False, {}


def test_an_environment_that_does_not_repeat_itself_is_told():
    parts = build("pendulum-p-v0", "rsac", algorithm=SMALL)

    def interaction():
        env = gymnasium.wrappers.TimeLimit(Forgetful(), 50)
        algorithm = build_for(env)
        buffer = parts.buffer.__class__(env.observation_space, env.action_space)
        return Interaction(LocalEnvironments(lambda: env, [0]), algorithm, buffer)

    def build_for(env):
        return type(parts.algorithm)(env.observation_space, env.action_space, hidden_dims=(4,))

    first = interaction()
    for _ in range(10):
        first.step(explore_at_random=False)
    message = interaction().load_state_dict(first.state_dict())
    assert message is not None and "not exact" in message


def test_an_exact_environment_is_found_back_in_mid_episode():
    first, second = (build("pendulum-p-v0", "rsac", seed=3, algorithm=SMALL) for _ in range(2))
    for _ in range(250):
        first.interaction.step(explore_at_random=False)
    state = first.interaction.state_dict()
    second.algorithm.load_state_dict(first.algorithm.state_dict())
    second.buffer.load_state_dict(first.buffer.state_dict())
    assert second.interaction.load_state_dict(state) is None
    for _ in range(200):
        first.interaction.step(explore_at_random=False)
        second.interaction.step(explore_at_random=False)
        np.testing.assert_array_equal(first.interaction.observations, second.interaction.observations)
    assert_same(first.buffer.state_dict(), second.buffer.state_dict())


@pytest.mark.slow
def test_two_tests_in_a_row_are_identical_and_leave_training_alone():
    learner = build("pendulum-p-v0", "rsac", seed=3, algorithm=SMALL)
    learner.interaction.step(explore_at_random=False)
    before = learner.algorithm.state_dict(), learner.interaction.state_dict()
    one = learner.tests.run(learner.algorithm, 3, 2)
    assert learner.tests.run(learner.algorithm, 3, 2) == one
    assert_same((learner.algorithm.state_dict(), learner.interaction.state_dict()), before)
    assert Loop().step == 0


@pytest.mark.slow
def test_episodes_side_by_side_equal_episodes_alone():
    learner = build("pendulum-p-v0", "rsac", seed=3, algorithm=SMALL)
    envs = [learner.tests.make_env() for _ in range(3)]
    together = run_episodes(learner.algorithm, envs, [1, 2, 3, 4, 5])
    alone = [run_episodes(learner.algorithm, envs[:1], [seed])[0] for seed in (1, 2, 3, 4, 5)]
    np.testing.assert_allclose([r.episode_return for r in together], [r.episode_return for r in alone], rtol=1e-4)
    assert [r.length for r in together] == [200] * 5


def test_a_memory_starts_anew_with_each_episode():
    learner = build("pendulum-p-v0", "rsac", seed=3, algorithm=SMALL)
    observation = np.ones((2, 2), np.float32)
    step = Step(observation, np.zeros((2, 1)), np.zeros((2, 1)), np.ones(2))
    fresh, memory = learner.algorithm.act(step, deterministic=True)
    second, memory = learner.algorithm.act(step._replace(is_first=np.zeros(2)), memory, deterministic=True)
    assert (second != fresh).all()
    mixed, _ = learner.algorithm.act(step._replace(is_first=np.array([1.0, 0.0])), memory, deterministic=True)
    assert mixed[0] == pytest.approx(fresh[0], abs=1e-7)
    assert abs(mixed[1] - fresh[1]) > 1e-6
