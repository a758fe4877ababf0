"""`offpcc.fit`: what the command line does in a run's folder, from Python."""

import functools
import json
import os
import re
import signal
from types import SimpleNamespace

import gin
import gymnasium
import numpy as np
import pytest
import torch
from conftest import rows, run_folder
from exact_resume import assert_same
from runs import quiet_fit

import offpcc
from offpcc.algorithms.optim import LinearDecay
from offpcc.config.loading import plain_values
from offpcc.data import ReplayBuffer
from offpcc.data.recording.recorder import Recorder
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.envs.wrappers import DropIndices
from offpcc.networks import Recurrent
from offpcc.training import fit as module
from offpcc.training.build import build_run
from offpcc.training.callbacks import Callback
from offpcc.training.checkpoint import Checkpoints, read_checkpoint, resume
from offpcc.training.comparison import check_unchanged, used_by
from offpcc.training.experiment import Experiment
from offpcc.training.fit import RunExistsError, fit
from offpcc.training.loggers import ConsoleLogger, Logger
from offpcc.training.metrics import Loop
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import RunSpec, make_deterministic
from offpcc.utils import signals
from offpcc.utils.errors import UserError
from offpcc.utils.system import is_shortage

CONFIG = "test/template_short.gin"
SHORT = ("train.num_epochs=2", "train.num_steps_per_epoch=210", "train.update_after=150", "train.updates_per_step=0.1")
SHORT = (*SHORT, "train.num_test_episodes_per_epoch=1")
OFFLINE = ("train.num_epochs=1", "train.num_steps_per_epoch=3")
PROVENANCE = ("command", "resumes", "wandb_id", "threads")


def spec(*bindings, algo="rsac", env="pendulum-p-v0", file=CONFIG, **given):
    """The description of a short run."""
    offpcc.configure(file, *(SHORT if file == CONFIG else OFFLINE), *bindings)
    return RunSpec.make(env, algo, seed=1, **given)


def interrupt_at(monkeypatch, turns):
    """Stop the run after so many turns of the loop."""
    left = iter(range(turns - 1, -1, -1))
    monkeypatch.setattr(
        Checkpoints, "on_progress", lambda *given: os.kill(os.getpid(), signal.SIGINT) if next(left, 1) == 0 else None
    )


def assert_same_folders(one, two):
    """Byte for byte, columns of time and provenance aside."""
    assert rows(one) == rows(two)
    for name in ("config.gin", "actor_last.pt", "actor_best.pt"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    ours, theirs = (json.loads((folder / "run.json").read_text()) for folder in (one, two))
    assert {**ours, **dict.fromkeys(PROVENANCE)} == {**theirs, **dict.fromkeys(PROVENANCE)}
    one_names, two_names = ({path.name for path in folder.iterdir()} for folder in (one, two))
    assert one_names == two_names - {"checkpoint_before.pt"}, "one that was stopped has written one more"
    first, second = (read_checkpoint(folder / "checkpoint.pt") for folder in (one, two))
    assert_same(first, second)


def test_python_and_the_command_line_write_the_same_folder_and_resume_as_exactly(launch, tmp_path, monkeypatch):
    words = ("--env", "pendulum-p-v0", "--algo", "rsac", "--device", "cpu", "--config", CONFIG, "--gin", *SHORT)
    assert launch(*words)[0] == 0
    whole = run_folder(tmp_path, algo="rsac")
    lines = []
    done = fit(spec(), tmp_path / "python" / "rsac" / "1", announce=lines.append)
    assert not done.was_finished and any("settings by test/template_short.gin" in line for line in lines)
    assert_same_folders(whole, done.folder)
    observation = np.zeros(2, np.float32)
    assert np.array_equal(done.agent().act(observation), offpcc.Agent.load(whole / "actor_best.pt").act(observation))
    parts = tmp_path / "parts" / "rsac" / "1"
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch, pytest.raises(signals.Interrupted) as stop:
        interrupt_at(patch, 217)
        quiet_fit(spec(), parts)
    assert str(stop.value) == stop.value.message and "saved" in str(stop.value)
    assert "and saved" in stop.value.message and json.loads((parts / "run.json").read_text())["status"] == "stopped"
    assert signal.getsignal(signal.SIGINT) == before
    saved = (parts / "checkpoint.pt").read_bytes()

    def stop_twice(run):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second one waited")

    with pytest.raises(signals.Interrupted, match="stopped at once; its last checkpoint stays"):
        quiet_fit(spec(), parts, resume=True, callbacks=[stop_twice])
    assert (parts / "checkpoint.pt").read_bytes() == saved and signal.getsignal(signal.SIGINT) == before
    with pytest.raises(signals.Interrupted, match="stopped at once; there is no checkpoint yet"):
        quiet_fit(spec(), tmp_path / "new", callbacks=[stop_twice])
    with pytest.raises(RunExistsError, match="is unfinished and is not overwritten"):
        quiet_fit(spec(), parts)
    quiet_fit(spec(), parts, resume=True)
    assert_same_folders(whole, parts)
    assert quiet_fit(spec(), parts, resume=True).was_finished


def test_a_second_interrupt_while_the_run_is_saved_leaves_a_run_that_is_stopped(tmp_path, monkeypatch):
    def status():
        return json.loads((tmp_path / "run.json").read_text())["status"]

    seen = []

    def save(self):
        seen.append(status())  # what the run says if this process ends now, as by the command line
        os.kill(os.getpid(), signal.SIGINT)

    interrupt_at(monkeypatch, 60)
    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(signals.Interrupted, match="stopped at once; there is no checkpoint yet"):
        quiet_fit(spec(), tmp_path)
    assert [*seen, status()] == ["stopped", "stopped"]


def test_arguments_of_python_are_bindings_of_the_run(tmp_path):
    folder = tmp_path / "sac" / "1"
    quiet_fit(spec(algo="sac", algorithm={"hidden_dims": (8,)}, environments={"num_envs": 2}), folder)
    values = plain_values((folder / "config.gin").read_text())
    assert (values["SAC.hidden_dims"], values["environments.num_envs"]) == ("(8,)", "2")
    offpcc.configure(CONFIG, *SHORT[1:], "train.num_epochs=3")
    other = RunSpec.make("pendulum-p-v0", "sac", seed=1, algorithm={"hidden_dims": (9,)}, environments={"num_envs": 2})
    with pytest.raises(UserError, match=r"SAC.hidden_dims is .* to go on, give .*hidden_dims=.8.*, or leave out"):
        quiet_fit(other, folder, resume=True)
    with pytest.raises(UserError, match="cannot be written into the config of a run"):
        quiet_fit(spec(algo="sac", algorithm={"lr": lambda update: 1e-3}), tmp_path / "other")
    told = r'SAC.lr is .*; bind it by offpcc.configure\(None, "SAC.lr = @LinearDecay\(\)"\), and its arguments likewise'
    with pytest.raises(UserError, match=told):
        quiet_fit(spec(algo="sac", algorithm={"lr": LinearDecay(1e-3)}), tmp_path / "other")


def test_an_encoder_of_python_is_a_binding_of_the_run(tmp_path):
    quiet_fit(spec(algo="sac", algorithm={"encoder": Recurrent}), tmp_path / "run")
    assert plain_values((tmp_path / "run" / "config.gin").read_text())["SAC.encoder"].endswith("Recurrent")


def test_a_spec_of_other_bindings_is_refused(tmp_path):
    first = spec()
    offpcc.configure(CONFIG, "SAC.lr = 1e-2")
    with pytest.raises(UserError, match="other bindings were loaded"):
        build_run(first)


def test_an_experiment_trains_as_its_spec_says():
    """Bindings that come later change nothing."""
    experiment = build_run(spec(algo="sac"))
    offpcc.configure(None, "train.num_epochs = 7", "train.num_steps_per_epoch = 9")
    experiment.train(module.Loggers([]))
    assert (experiment.loop.epoch, experiment.loop.step) == (2, 420)


# Resume ---------------------------------------------------------------------------------------------------------------

OLD = {"SAC.alpha": "0.5", "SAC.lr": "0.1"}


@pytest.mark.parametrize("was_bound", [{"SAC.lr": "0.1"}, OLD, None])
def test_a_new_parameter_with_a_default_leaves_a_run_resumable(was_bound):
    new = {**OLD, "SAC.novelty": "None", "actor/SAC.novelty": "None"}
    assert check_unchanged(OLD, new, was_bound, {"SAC.lr": "0.1"}) == []
    with pytest.raises(UserError, match=r"SAC.novelty is None, but the run was made with no value"):
        check_unchanged(OLD, new, was_bound, {"SAC.novelty": "None"})


def test_a_default_that_has_changed_is_refused():
    with pytest.raises(UserError, match=r"SAC.alpha is 0.2, but .* with 0.5: .* bind SAC.alpha = 0.5"):
        check_unchanged(OLD, {**OLD, "SAC.alpha": "0.2"}, {}, {"SAC.lr": "0.1"})


def test_a_parameter_that_is_no_more_counts_if_it_was_bound():
    new = {"SAC.lr": "0.1"}
    assert check_unchanged(OLD, new, new, new) == []
    for was_bound in (OLD, None):
        with pytest.raises(UserError, match=r"SAC.alpha is not set, but the run was made with 0.5"):
            check_unchanged(OLD, new, was_bound, new)


def test_a_change_under_the_name_of_another_class_is_told_under_both():
    old, new = {"ActorCritic.lr": "0.1", "ReplayBuffer.capacity": "9"}, {"SAC.lr": "0.2", "ReplayBuffer.capacity": "9"}
    with pytest.raises(UserError, match=r"SAC.lr is 0.2, but the run was made with ActorCritic.lr = 0.1: a resumed"):
        check_unchanged(old, new, old, new)


def test_a_binding_that_was_removed_is_told_by_its_own_name():
    new = {"ActorCritic.lr": "0.2"}
    with pytest.raises(UserError, match=r"SAC.lr is not set, but the run was made with 0.1: a resumed"):
        check_unchanged({**new, "SAC.lr": "0.1"}, new, {"SAC.lr": "0.1"}, new)
    assert check_unchanged({"ActorCritic.lr": "0.1"}, {"SAC.lr": "0.1"}, None, {"SAC.lr": "0.1"}) == []


def test_messages_propose_a_tuple_of_one_item_as_gin_reads_it():
    """Without the comma, it is a number."""
    old, new = {"SAC.hidden_dims": "(8,)"}, {"SAC.hidden_dims": "(9,)"}
    with pytest.raises(UserError, match=r"is \(9,\), but .* made with \(8,\): .* --gin \"SAC.hidden_dims=\(8,\)\""):
        check_unchanged(old, new, old, new)
    with pytest.raises(UserError, match=r"or bind SAC.hidden_dims = \(8,\)"):
        check_unchanged(old, new, {}, {})


LAB = """
import offpcc
from offpcc.algorithms import SAC

@offpcc.configurable
class CautiousSAC(SAC):
    def __init__(self, *args, caution={caution}{more}, **kwargs):
        super().__init__(*args, **kwargs)
"""


@pytest.mark.slow
def test_a_run_goes_on_with_a_class_that_has_learned_a_new_parameter(tmp_path, forks):
    """The class changes between two processes, as between two versions."""
    (tmp_path / "mine.gin").write_text(f"import my_lab\ninclude '{CONFIG}'\n")
    words = ["--env", "pendulum-p-v0", "--algo", "CautiousSAC", "--config", "mine.gin", "--no_video"]
    words += ["--results", "results", "--gin", "train.num_steps_per_epoch=210", "train.num_test_episodes_per_epoch=0"]

    def run(*more, caution=0.1, parameter=""):
        (tmp_path / "my_lab.py").write_text(LAB.format(caution=caution, more=parameter))
        return forks.launch([*words, *more], tmp_path, {**os.environ})

    code, told = run("train.num_epochs=1")
    assert code == 0, told
    # The file has another size, else Python would take it for the old one if it is written within the same second.
    code, told = run("train.num_epochs=2", "--resume", caution=0.25)
    assert code == 2 and "CautiousSAC.caution is 0.25, but the run was made with 0.1" in told
    for epochs in (2, 3):
        code, told = run(f"train.num_epochs={epochs}", "--resume", parameter=", boldness=1.0")
        assert code == 0, told


def test_a_fault_of_ours_is_not_taken_for_a_checkpoint_that_does_not_fit(tmp_path, monkeypatch):
    run = spec(algo="sac", algorithm={"hidden_dims": (8,)})
    folder = tmp_path / "sac" / "1"
    quiet_fit(run, folder)
    checkpoint = read_checkpoint(folder / "checkpoint.pt")

    def broken(self, state):
        raise KeyError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "load_state_dict", broken)
        with pytest.raises(KeyError, match="a fault of ours"):
            resume(checkpoint, build_run(run))
    other = build_run(spec(algo="sac", algorithm={"hidden_dims": (9,)}))
    with pytest.raises(UserError, match=r"does not fit .*\(algorithm\..* of shape .*, but .* here\)"):
        resume(checkpoint, other)


def test_a_users_error_is_no_shortage_of_memory():
    assert not is_shortage(ValueError("the batch is too big for my robot"))
    assert not is_shortage(RuntimeError("my simulator is out of memory cells"))
    for shape in ((2**60,), (2**40, 2**40)):
        for make in (torch.empty, np.empty):
            with pytest.raises((RuntimeError, ValueError, MemoryError)) as caught:
                make(shape)
            assert is_shortage(caught.value)


def test_tables_that_are_kept_are_numbered(tmp_path):
    folder = RunFolder.at(tmp_path)
    for number in range(3):
        folder.progress.write_text(f"step\n{number}\n")
        assert "its table of 1 epoch is kept as" in folder.keep_table()
    kept = [tmp_path / f"progress_before{end}.csv" for end in ("", "_2", "_3")]
    assert [file.read_text() for file in kept] == [f"step\n{number}\n" for number in range(3)]


@pytest.mark.parametrize("name", ["favourite", "1"])
def test_a_run_goes_on_only_with_its_own_environment_seed_and_algorithm(tmp_path, name):
    folder = tmp_path / name
    quiet_fit(spec(algo="sac"), folder)
    record = json.loads((folder / "run.json").read_text())
    assert (record["run_id"], record["seed"]) == (1, 1), "that of the run, whatever the folder is called"
    before = (folder / "checkpoint.pt").read_bytes()
    for given, words in (
        (("pendulum-v0", "sac", 1), "env pendulum-p-v0.*pendulum-v0"),
        (("pendulum-p-v0", "sac", 2), "seed 1.* 2"),
        (("pendulum-p-v0", "td3", 1), "algo sac.*td3"),
    ):
        env, algo, seed = given
        with pytest.raises(UserError, match=f"was made with {words}") as error:
            quiet_fit(RunSpec.make(env, algo, seed=seed), folder, resume=True)
        assert "give the same value, or another folder" in error.value.message
    assert (folder / "checkpoint.pt").read_bytes() == before
    assert quiet_fit(spec(algo="sac"), folder, resume=True).was_finished


def test_runs_beside_a_folder_of_ones_own_do_not_matter(unit_file, tmp_path):
    quiet_fit(spec(algo="sac"), tmp_path / "1")
    offline = {"algo": "bc", "env": None, "dataset": unit_file, "file": "test/offline_short.gin"}
    quiet_fit(spec(**offline), tmp_path / "2")
    with pytest.raises(UserError, match=r"the run in \S+ learned in pendulum-p-v0, not from recorded data"):
        quiet_fit(spec(**offline), tmp_path / "1", resume=True)


def test_numbers_of_numpy_are_written_and_a_run_with_them_goes_on(tmp_path):
    given = {"algo": "sac", "algorithm": {"hidden_dims": (np.int64(8),)}, "environments": {"num_envs": np.int64(2)}}
    folder = tmp_path / "numbers"
    quiet_fit(spec(**given), folder)
    values = plain_values((folder / "config.gin").read_text())
    assert (values["SAC.hidden_dims"], values["environments.num_envs"]) == ("(8,)", "2")
    assert quiet_fit(spec(**given), folder, resume=True).was_finished
    given["environments"] = {"num_envs": np.arange(2)}
    with pytest.raises(UserError, match=r"environments.num_envs is .*, which cannot be written"):
        quiet_fit(spec(**given), tmp_path / "other")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seed": -1}, "RunSpec.make.seed is -1"),
        ({"threads": 0}, "RunSpec.make.threads is 0"),
        ({"dataset_fraction": 2.0}, "RunSpec.make.dataset_fraction is 2.0"),
        ({"dataset_fraction": 0.5}, "dataset_fraction=0.5 has no effect without a dataset"),
        ({"device": "abacus"}, "device abacus cannot be used here"),
        ({"device": "meta"}, "device meta cannot be used here"),
    ],
)
def test_a_spec_checks_its_arguments(given, words):
    with pytest.raises(UserError, match=words):
        RunSpec.make("pendulum-p-v0", "sac", **given)


def test_none_that_is_given_in_python_counts_as_given():
    given = spec(algo="sac", training={"stop_return": None}).given
    assert given == {"train.stop_return": None}


def test_environments_without_effect_on_a_run_from_data_are_refused(unit_file):
    given = {"environments": {"num_envs": 2}, "dataset": unit_file}
    with pytest.raises(UserError, match=r"environments=\{'num_envs': ...\} has no effect .*, or give then_env_steps"):
        RunSpec.make("pendulum-p-v0", "td3_bc", **given)
    assert RunSpec.make("pendulum-p-v0", "td3_bc", then_env_steps=9, **given).environments["num_envs"] == 2


def test_a_folder_without_a_name_or_with_a_config_of_the_user_is_refused(tmp_path):
    with pytest.raises(UserError, match="run_dir is"):
        quiet_fit(spec(algo="sac"), "")
    (tmp_path / "config.gin").write_text("mine")
    with pytest.raises(UserError, match=r"config.gin exists, but this folder holds no run"):
        quiet_fit(spec(algo="sac"), tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"config.gin": "mine"}


def test_the_config_of_a_run_is_known_by_any_path(tmp_path, monkeypatch):
    quiet_fit(spec(algo="sac"), tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    offpcc.configure("one/config.gin", "train.num_epochs = 3")
    lines = []
    fit(RunSpec.make("pendulum-p-v0", "sac", seed=1), tmp_path / "one", resume=True, announce=lines.append)
    assert any("the other values are those that the run was started with" in line for line in lines)
    assert plain_values(read_checkpoint(tmp_path / "one" / "checkpoint.pt")["bound"])["train.update_after"] == "150"
    assert "ReplayBuffer.capacity" in plain_values((tmp_path / "one" / "config.gin").read_text())


def test_a_refused_start_closes_what_was_built_and_leaves_no_log(tmp_path, monkeypatch):
    closed = []
    original = Experiment.close
    monkeypatch.setattr(Experiment, "close", lambda self: closed.append(self) or original(self))

    def fail(*given):
        raise UserError("a refusal")

    for owner, name in ((module, "describe_data"), (module, "check_settings"), (Recorder, "keep")):
        with monkeypatch.context() as patch, pytest.raises(UserError, match="a refusal"):
            patch.setattr(owner, name, lambda *given, **more: fail())
            quiet_fit(spec(algo="sac", save_dataset=tmp_path / "played.hdf5"), tmp_path / "one")
        assert len(closed) == 1, name
        closed.clear()
    assert not list(tmp_path.glob("played*"))


def test_environments_of_a_refused_build_are_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(LocalEnvironments, "close", lambda self: closed.append(self))
    with pytest.raises(UserError, match="capacity"):
        build_run(spec(algo="sac", buffer={"capacity": 0}))
    assert len(closed) == 1


def test_a_gpu_is_made_deterministic(monkeypatch):
    devices = []
    monkeypatch.setattr("offpcc.training.spec.make_deterministic", devices.append)
    build_run(spec(algo="sac"))
    assert devices == [torch.device("cpu")]
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    make_deterministic(torch.device("cuda"))
    assert torch.backends.cudnn.deterministic


def test_a_resumed_run_sends_the_models_errors_no_second_time(tmp_path, monkeypatch):
    quiet_fit(spec(algo="sac"), tmp_path / "1")
    experiment, sent = build_run(spec(algo="sac")), []
    experiment.config = ""
    experiment.imagination = SimpleNamespace(model=SimpleNamespace(facts={"holdout_errors": [2]}))
    monkeypatch.setattr(module, "tracking_wanted", lambda track: True)
    monkeypatch.setattr(module, "WandbLogger", lambda *given, model_errors, **names: sent.append(model_errors))
    for experiment.loop.step in (0, 20):
        folder = RunFolder.at(tmp_path / "1")
        module.open_loggers(spec(algo="sac"), folder, experiment, ["step"], ConsoleLogger("")).close()
    experiment.imagination = None
    experiment.close()
    assert sent == [[2], ()]


@offpcc.configurable
class Watching(Callback):
    """A callback that is registered."""


class Unregistered(Callback):
    """One that is not."""


class PlainBuffer(ReplayBuffer):
    """A buffer that is not registered."""


def test_weights_and_biases_gets_what_runs_are_sorted_by(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(module, "tracking_wanted", lambda track: True)
    monkeypatch.setattr(module, "WandbLogger", lambda *given, config, **names: sent.append(config) or Logger())
    bindings = "ReplayBuffer.batch_size=7", "ActorCritic.hidden_dims=(8, 8)"
    quiet_fit(spec(*bindings, algo="sac"), tmp_path / "1")
    [config] = sent
    assert (config["env"], config["algo"], config["seed"]) == ("pendulum-p-v0", "sac", 1)
    assert config["ReplayBuffer.batch_size"] == 7 and config["ActorCritic.hidden_dims"] == "(8, 8)"
    assert "dataset" not in config


def test_classes_of_python_are_bindings_of_the_run(tmp_path):
    folder = tmp_path / "watched"
    told = []
    quiet_fit(spec(algo="sac", callbacks=[Watching]), folder, callbacks=[lambda run: told.append(run.folder)])
    assert set(told) == {folder}
    assert "Watching" in plain_values((folder / "config.gin").read_text())["build.callbacks"]
    with pytest.raises(UserError, match=r"build.callbacks is \(\), but the run was made with \(@.*Watching"):
        quiet_fit(spec(algo="sac"), folder, resume=True)
    assert quiet_fit(spec(algo="sac", callbacks=[Watching]), folder, resume=True).was_finished
    wraps = [functools.partial(gymnasium.wrappers.DtypeObservation, dtype=np.float32)]
    with pytest.raises(UserError, match=r"DtypeObservation.dtype is .*float32, .*; give its name, 'float32'$"):
        quiet_fit(spec(algo="sac", make={"wrappers": wraps}), tmp_path / "wrapped")
    for given in ({"callbacks": [Unregistered]}, {"buffer_class": PlainBuffer}):
        with pytest.raises(UserError, match=r"build\..*cannot be written into the config of a run; decorate"):
            quiet_fit(spec(algo="sac", **given), tmp_path / "other")
    with pytest.raises(UserError, match=r"build.callbacks holds .*; give the class Watching itself"):
        quiet_fit(spec(algo="sac", callbacks=[Watching()]), tmp_path / "other")
    with pytest.raises(UserError, match=r"build.callbacks holds .*lambda.*; give it by callbacks= of train or of"):
        quiet_fit(spec(algo="sac", callbacks=[lambda run: None]), tmp_path / "other")
    assert isinstance(offpcc.build("pendulum-p-v0", "sac", buffer_class=PlainBuffer).buffer, PlainBuffer)


# What is not done -----------------------------------------------------------------------------------------------------


def test_refusing_an_existing_run_builds_nothing(quick, monkeypatch):
    assert quick("sac", bindings=["train.num_epochs=1"])[0] == 0
    monkeypatch.setattr(module, "build_run", lambda *given: pytest.fail("it was built"))
    code, _, err = quick("sac", bindings=["train.num_epochs=1", "SAC.alpha=0.7"])
    assert code == 2 and "its settings are alpha=" in err and "those of this command alpha=0.7" in err


def test_of_a_family_the_binding_of_the_most_derived_class_counts():
    known, bound = {"SAC.lr": "1", "ActorCritic.gamma": "2"}, {"ActorCritic.lr": "3", "SAC.lr": "4", "CQL.gamma": "5"}
    algorithm = offpcc.algorithms.ALGORITHMS["sac"]
    assert used_by(known, bound, algorithm) == {"SAC.lr": "4"}
    assert used_by({"ActorCritic.lr": "1"}, bound, algorithm) == {"ActorCritic.lr": "4"}


def test_the_data_of_a_finished_run_are_not_read(unit_file, tmp_path, monkeypatch):
    run = {"algo": "bc", "env": None, "dataset": unit_file, "file": "test/offline_short.gin"}
    folder = tmp_path / "swings" / "bc" / "1"
    quiet_fit(spec(**run), folder)
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_data", lambda spec: pytest.fail("they were read"))
        assert quiet_fit(spec(**run), folder, resume=True).was_finished
    with pytest.raises(UserError, match=r"ActorCritic.gamma is 0.5, but the run was made with"):
        quiet_fit(spec("ActorCritic.gamma=0.5", **run), folder, resume=True)


def test_all_data_are_hashed_once(unit_file, monkeypatch):
    from offpcc.data import offline

    hashed, original = [], offline._hash
    monkeypatch.setattr(offline, "_hash", lambda arrays: hashed.extend(arrays) or original(arrays))
    data = offline.read(unit_file)
    assert sum(array.nbytes for array in hashed) < 1.5 * data.num_bytes


def test_a_recording_begins_once_and_in_place(tmp_path):
    experiment = build_run(spec(algo="sac"))
    assert experiment.record(tmp_path / "played.hdf5", 1) is None
    assert experiment.interaction.stores[-1] is experiment.recorder
    with pytest.raises(UserError, match="are recorded already"):
        experiment.record(tmp_path / "again.hdf5", 1)
    assert len(experiment.interaction.stores) == 2
    experiment.close()


def test_gin_is_not_read_by_what_runs(monkeypatch):
    """No binding is read after a run is built, its classes apart."""
    experiment = build_run(spec(algo="sac"))
    for name in ("get_bindings", "query_parameter", "config_str", "operative_config_str"):
        monkeypatch.setattr(gin, name, lambda *given, **more: pytest.fail("gin was asked"))
    experiment.train(module.Loggers([]), num_epochs=1)
    assert re.search("num_epochs = 2", experiment.config)


def test_data_in_memory_of_a_finished_run_are_compared(unit_file, tmp_path):
    data = offpcc.data.load_dataset(unit_file)
    run = {"algo": "bc", "env": None, "file": "test/offline_short.gin"}
    quiet_fit(spec(dataset=data, **run), tmp_path / "one")
    assert quiet_fit(spec(dataset=data, **run), tmp_path / "one", resume=True).was_finished
    data.rewards[0] += 1.0
    with pytest.raises(UserError, match="learned from"):
        quiet_fit(spec(dataset=data, **run), tmp_path / "one", resume=True)


def test_the_wrapper_that_cannot_be_written_is_named(tmp_path):
    wrap = functools.partial(gymnasium.wrappers.RescaleAction, min_action=-1.0, max_action=1.0)
    with pytest.raises(UserError, match=r"make.wrappers holds functools.partial\(.*RescaleAction.*, which cannot be"):
        quiet_fit(spec(algo="sac", make={"wrappers": [DropIndices, wrap]}), tmp_path / "run")
