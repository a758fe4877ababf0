"""What a run begins from is decided in an order, and before anything is made."""

import json

import pytest

import offpcc
import offpcc.cli.train  # registers what gin can configure
from offpcc.cli.main import parse
from offpcc.cli.messages import TrainOptions
from offpcc.cli.train import make_spec
from offpcc.training.fit import check_startable, plan_run
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import resolve_env_and_dataset
from offpcc.utils.errors import UserError

CONFIG = ("--config", "test/template_short.gin")
UNKNOWN = ("--gin", "SAC.alfa=1")  # refused when the config is read


@pytest.fixture
def begin(tmp_path):
    """Decide on a run of which the folder holds what `facts` says; what it begins from."""

    def run(*words, facts=None, name="pendulum-p-v0", algo="sac"):
        results = tmp_path / "results"
        folder = RunFolder(results, name, algo, 1)
        if facts is not None:
            folder.path.mkdir(parents=True)
            (folder.path / "run.json").write_text(json.dumps(facts))
            (folder.path / "progress.csv").write_text("step,test/return\n")
        before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
        try:
            options = TrainOptions(**parse([*words, "--algo", algo, "--results", str(results)])[1])
            check_startable(folder, *resolve_env_and_dataset(options.env, options.dataset), options.resume)
            return plan_run(make_spec(options, folder), folder, options.resume)
        finally:
            assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before
            assert folder.path.exists() == (facts is not None)

    return run


def test_a_new_run_begins_from_nothing(begin):
    beginning = begin("--env", "pendulum-p-v0", *CONFIG)
    assert beginning.status is None and beginning.checkpoint is None
    assert beginning.experiment.loop.step == 0 and beginning.experiment.spec.training["num_epochs"] > 0
    assert "SAC" in beginning.experiment.config and "can grow to" in beginning.messages[0]


def test_a_window_beyond_what_learning_sees_is_told(begin, recwarn):
    words = ("--env", "pendulum-p-v0", *CONFIG, "--gin", "Recurrent.cell='gpt'")
    assert not any("looks back" in message for message in begin(*words, algo="rsac").messages)
    messages = begin(*words, "GPT.context_length=26", algo="rsac").messages
    assert "looks back 26 steps, but learning sees 25 of them together" in messages[-1]
    assert not any("looks back" in str(warning.message) for warning in recwarn), "it is told once"


def test_segments_far_shorter_than_episodes_are_told(begin, tmp_path):
    """An episode of pendulum-p has 200 steps."""
    long, short = (
        ["--gin", f"RecurrentReplayBuffer.segment_len={steps}", "--gin", "RecurrentReplayBuffer.burn_in=4"]
        for steps in (16, 15)
    )
    words = ("--env", "pendulum-p-v0", *CONFIG)
    told = "learning sees 19 steps together, of episodes of up to 200: the agent cannot learn to remember longer"
    assert not any("steps together, of" in message for message in begin(*words, *long, algo="rsac").messages)
    assert sum(told in message for message in begin(*words, *short, algo="rsac").messages) == 1
    for limit, are_told in ((400, 1), (40, 0)):
        limited = [*words, *short, "--gin", f"make.kwargs={{'max_episode_steps': {limit}}}"]
        told_here = told.replace("up to 200", f"up to {limit}")
        assert sum(told_here in message for message in begin(*limited, algo="rsac").messages) == are_told
    assert not any("steps together, of" in message for message in begin(*words, algo="sac").messages)
    offpcc.collect("pendulum-v0", None, steps=400).save(tmp_path / "data.hdf5")
    data = ("--env", "pendulum-p-v0", "--dataset", str(tmp_path / "data.hdf5"), "--config", "test/offline_short.gin")
    assert sum(told in message for message in begin(*data, *short, algo="rbc").messages) == 1


def test_a_run_that_will_end_before_its_first_update_is_told(begin):
    words = ("--env", "pendulum-p-v0", *CONFIG, "--gin", "train.num_epochs=2", "train.num_steps_per_epoch=30")
    *_, told = begin(*words, "train.update_after=60").messages
    assert told.startswith("no update will be made: train.update_after is 60, and the run ends after 60 steps; raise")
    for enough in ("train.update_after=59", "train.updates_per_step=0"):
        assert not any("nothing will be" in message for message in begin(*words, enough).messages)


@pytest.mark.parametrize("algo", ["cql", "rcql"])
def test_an_actor_that_will_only_imitate_is_told_of(begin, unit_file, algo):
    words = ("--dataset", str(unit_file), "--config", "test/offline_short.gin", "--gin", "train.num_epochs=2")
    words = (*words, "train.num_steps_per_epoch=30", "train.updates_per_step=0.5")
    *_, told = begin(*words, "CQL.bc_steps=30", algo=algo, name="swings").messages
    assert told.startswith("the actor will only imitate") and "bc_steps is 30" in told
    assert "the run has 30 updates" in told
    remedy = told.split('--gin "')[1].split('"')[0]
    for enough in ("CQL.bc_steps=29", remedy):
        messages = begin(*words, enough, algo=algo, name="swings").messages
        assert not any("imitate" in message for message in messages)


@pytest.mark.parametrize(
    ("facts", "words", "told"),
    [
        ({"status": "finished"}, (*CONFIG, *UNKNOWN), "is finished and is not overwritten"),
        ({"status": "running"}, UNKNOWN, "is unfinished and is not overwritten"),
        (None, ("--resume", *UNKNOWN), "to resume; to start a new run"),
        (None, UNKNOWN, "has no parameter 'alfa'"),
        ({"status": "finished"}, ("--resume", *CONFIG, *UNKNOWN), "has no parameter 'alfa'"),
        (None, (*CONFIG, "--save_dataset", "played.txt", *UNKNOWN), "has no parameter 'alfa'"),
        (None, (*CONFIG, "--save_dataset", "played.txt"), "played.txt"),
    ],
)
def test_of_several_faults_the_first_is_told(begin, facts, words, told):
    with pytest.raises(UserError) as caught:
        begin("--env", "pendulum-p-v0", *words, facts=facts)
    assert told in caught.value.message


def test_a_run_that_is_over_is_told_to_be(begin, launch):
    words = ("--env", "pendulum-p-v0", "--resume", *CONFIG)
    assert begin(*words, facts={"status": "finished"}) is None
    code, out, _ = launch(*words, "--algo", "sac")
    assert code == 0
    assert "run 1 is finished; there is nothing left to do" in out and "the run cannot be resumed, because " in out


@pytest.mark.parametrize(
    ("fingerprint", "told"),
    [(None, "is finished and is not overwritten"), ("SHA-256 of others", "learned from ")],
    ids=["same", "other"],
)
def test_with_recorded_data_a_run_that_exists_is_refused_once_the_data_is_known(begin, unit_file, fingerprint, told):
    recorded = {"source": str(unit_file), "fingerprint": fingerprint}
    facts = {"status": "finished", "env": None, "dataset": recorded}
    words = ("--dataset", str(unit_file), "--config", "test/offline_short.gin")
    with pytest.raises(UserError) as caught:
        begin(*words, facts=facts, name=unit_file.stem, algo="bc")
    assert told in caught.value.message
    with pytest.raises(UserError, match="SAC has no parameter 'alfa'"):
        begin(*words, *UNKNOWN, name=f"{unit_file.stem}_2", algo="bc")
