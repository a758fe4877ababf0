"""What a command of training says about where it learns and what it may go on with."""

import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import pytest
from conftest import run_folder

import offpcc
from offpcc.cli.main import parse
from offpcc.cli.messages import TrainOptions, command, load_config, program
from offpcc.config import loading
from offpcc.data.buffers.storage import folder_for_frames
from offpcc.training.build import build_run
from offpcc.training.run_dir import RunFolder
from offpcc.training.run_messages import describe_config
from offpcc.training.spec import RunSpec, run_label
from offpcc.utils.errors import UserError

SHORT = ("--config", "test/offline_short.gin", "--gin", "train.num_epochs=1", "train.num_steps_per_epoch=3")


@pytest.fixture
def named_as(unit_file, tmp_path):
    """A copy of the data that says where it was recorded."""

    def write(env):
        file = tmp_path / "named.hdf5"
        with h5py.File(unit_file) as source, h5py.File(file, "w") as target:
            for key in source:
                target[key] = source[key][:]
            target["metadata/env"] = env
        return file

    return write


def test_a_batch_that_takes_more_memory_than_is_free_is_refused(launch, monkeypatch):
    monkeypatch.setattr("offpcc.training.run_messages.available_bytes", lambda: 100)
    code, _, err = launch("--env", "pendulum-p-v0", "--algo", "sac", "--config", "test/template_short.gin")
    assert code == 2 and "ReplayBuffer.batch_size is 32: a batch takes" in err and "100 bytes of memory are free" in err


@pytest.mark.parametrize(
    ("version", "commit", "here", "told"),
    [
        ("0.0.7", None, None, f"offpcc 0.0.7 made the run, and this is offpcc {offpcc.__version__}: "),
        (offpcc.__version__, "a1", "b2", r"\(commit a1\) made the run, and this is offpcc .* \(commit b2\): "),
        (offpcc.__version__, "a1", "a1", ""),
        (offpcc.__version__, "a1", None, ""),
        (7, ["a1"], "b2", ""),
    ],
    ids=["version", "commit", "same commit", "installed", "damaged"],
)
def test_a_binding_that_is_gone_names_the_version_that_continues_the_run(
    version, commit, here, told, tmp_path, monkeypatch
):
    monkeypatch.setattr("offpcc.training.run_dir.git_commit", lambda: here)
    (tmp_path / "config.gin").write_text("SAC.taken_out = 5\n")
    facts = {"status": "unfinished", "versions": {"offpcc": version}, "git_commit": commit}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    options = TrainOptions(env="pendulum-v0", algo="sac", run_id=[1], resume=True)
    with pytest.raises(UserError, match=f"SAC has no parameter 'taken_out'.*{told}") as raised:
        load_config(options, RunFolder.at(tmp_path))
    assert str(raised.value).endswith(": to continue the run, use that version") == bool(told)


@pytest.mark.parametrize(("algo", "needed"), [("cdqn", 500 * 4 * 84 * 84), ("crdqn", 0)])
def test_images_that_take_more_disk_than_is_free_are_refused_at_the_start(algo, needed, launch, monkeypatch):
    """A buffer without memory has one file, for its capacity; one with memory has a file for each further episode."""
    name = "RecurrentReplayBuffer" if "r" in algo else "ReplayBuffer"
    command = ("--env", "TinyBreakout-v0", "--import", "tiny_atari", "--algo", algo)
    command = (*command, "--gin", f"{name}.capacity=500", f"{name}.memory_limit={84 * 84}", f"{name}.batch_size=2")
    command = (*command, "train.num_epochs=1", "train.num_steps_per_epoch=21", "train.num_test_episodes_per_epoch=1")
    asked, disk_usage = [], "offpcc.training.run_messages.shutil.disk_usage"
    for run_id, free in enumerate((needed - 1, needed)):
        monkeypatch.setattr(disk_usage, lambda folder, free=free: asked.append(folder) or SimpleNamespace(free=free))
        code, _, err = launch(*command, "--run_id", run_id)
        is_refused = 0 <= free < needed
        assert (code == 2) == is_refused, err
        told = f"beyond {name}.memory_limit take {needed:,} bytes of disk, but {folder_for_frames()} has {free:,} bytes"
        assert (told in err) == is_refused
    assert asked == [folder_for_frames()] * (2 if needed else 0)


@pytest.mark.parametrize("is_file", [False, True])
def test_a_missing_folder_for_images_is_one_message(launch, monkeypatch, tmp_path, is_file):
    missing = tmp_path / "missing"
    if is_file:
        missing.touch()
    monkeypatch.setenv("TMPDIR", str(missing))
    command = ("--env", "TinyBreakout-v0", "--import", "tiny_atari", "--algo", "cdqn", "--gin", "train.num_epochs=1")
    code, _, err = launch(*command, "ReplayBuffer.capacity=500", "ReplayBuffer.memory_limit=7056")
    assert code == 2 and "Traceback" not in err
    assert f"beyond ReplayBuffer.memory_limit need a file in the folder {missing} (" in err


@pytest.mark.parametrize(("recorded_in", "advised"), [("pendulum-v0", "pendulum-v0"), ("Hopper-v2", "Hopper-v4")])
def test_without_an_environment_the_one_that_can_be_had_is_advised(launch, named_as, recorded_in, advised):
    code, out, err = launch("--dataset", named_as(recorded_in), "--algo", "bc", *SHORT)
    assert code == 0, err
    assert f"give --env {advised}, where the data was recorded" in out


@pytest.mark.slow
def test_the_environment_of_a_d4rl_name_is_told(launch, hopper):
    tests = ("train.num_test_episodes_per_epoch=1",)
    code, out, err = launch("--env", hopper, "--algo", "td3_bc", *SHORT, *tests)
    assert code == 0, err
    assert "tested in Hopper-v4" in out and re.search(r"in MuJoCo [\d.]+: .*D4RL score", out)
    env = offpcc.make(hopper)
    assert env.get_dataset()["observations"].shape == (30, 11)
    assert env.get_normalized_score(3234.3) == pytest.approx(1.0)
    assert (env.ref_min_score, env.ref_max_score) == (-20.272305, 3234.3)


def test_a_part_of_the_data_has_a_folder_of_its_own(launch, unit_file, tmp_path):
    for extra in ((), ("--dataset_fraction", "0.5")):
        assert launch("--dataset", unit_file, "--algo", "bc", *SHORT, *extra)[0] == 0
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["swings", "swings_0.5"]
    assert run_label("pendulum-p-v0", "data/without_suffix") == "pendulum-p-v0_from_without_suffix"
    assert run_label("pendulum-p-v0", "minari:mine/swings-v0") == "pendulum-p-v0_from_minari:mine/swings-v0"


@pytest.mark.slow
def test_going_on_where_there_is_nothing_is_told(quick, tmp_path):
    code, out, _ = quick("sac", "--resume")
    assert code == 0
    assert f"there is no run in {run_folder(tmp_path)} to resume, so a new one starts" in out
    assert "so a new one starts" not in quick("sac", "--resume", bindings=["train.num_epochs=3"])[1]


def test_going_on_without_a_config_names_what_is_not_there_and_what_is(launch, pendulum_file, tmp_path):
    named, data = ("--env", "pendulum-v0", "--algo", "bc"), ("--dataset", pendulum_file)
    resume = ("--resume", "--gin", "train.num_epochs=3")
    there = run_folder(tmp_path, "pendulum-v0_from_swings", "bc")
    code, _, err = launch(*named, *resume)
    assert code == 2 and f"no run in {run_folder(tmp_path, 'pendulum-v0', 'bc')} to resume; to start a new run" in err
    assert "leave --resume out" in err and not (tmp_path / "results").exists()
    assert launch(*named, *data, *SHORT, "train.num_test_episodes_per_epoch=0")[0] == 0
    code, _, err = launch(*named, *resume)
    assert code == 2 and f"to resume, but there is one in {there}; add --dataset" in err
    code, _, err = launch(*data, "--algo", "bc", *resume)
    assert code == 2 and f"to resume, but there is one in {there}; add --env" in err
    code, _, err = launch(*named, *resume, "--run_id", 2)
    assert code == 2 and "is missing" not in err
    assert launch(*named, *data, *resume)[0] == 0


@pytest.mark.parametrize("option", [["--dataset", ""], ["--env", ""]])
def test_an_empty_name_is_none(launch, option):
    code, _, err = launch(*option, "--algo", "bc", *SHORT)
    assert code == 2 and "there is nothing to learn from" in err


def test_a_folder_of_runs_is_told_from_a_run(quick, launch, tmp_path):
    assert quick("sac")[0] == 0
    for folder in (run_folder(tmp_path).parent, tmp_path / "results"):
        code, _, err = launch("check", folder, "--env", "pendulum-p-v0")
        assert code == 2 and f"name a run in it, such as {run_folder(tmp_path)}" in err


def test_a_file_that_is_no_actor_is_refused_without_torchs_advice(launch, tmp_path):
    (tmp_path / "actor.pt").write_text("no actor")
    code, _, err = launch("evaluate", tmp_path / "actor.pt", "--env", "pendulum-p-v0")
    assert code == 2 and "no actor of offpcc" in err and "weights_only" not in err


def told_of_config(config, *bindings):
    """What is told of the settings of an agent that was built by them."""
    bound = loading.load_gin_config(config, list(bindings))
    experiment = build_run(spec := RunSpec.make("pendulum-p-v0", "sac"))
    return bound, describe_config(spec, experiment.config, Path("results/config.gin"))


def test_of_the_settings_those_are_told_that_were_bound_and_are_in_use(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("mine.gin").write_text("ActorCritic.lr = %rate\nrate = 2e-3\nSAC.alpha = 0.5\nCQL.num_samples = 4\n")
    _, (first, *lines) = told_of_config("mine.gin", "SAC.alpha=0.25")
    assert first.startswith("settings by mine.gin and --gin (") and first.endswith(": results/config.gin)")
    assert lines == ["  ActorCritic: lr = %rate", "  SAC: alpha = 0.25", "  macros: rate = 0.002"]


@pytest.mark.parametrize("read", [["evaluate"], ["export"], ["plot"], ["report"]])
def test_a_run_that_another_folder_of_results_holds_is_named(launch, tmp_path, monkeypatch, read):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFPCC_RESULTS", "other")
    Path("other/pendulum-v0/sac/1").mkdir(parents=True)
    told = "give other/pendulum-v0/sac/1: by OFFPCC_RESULTS, runs are in other"
    code, _, err = launch(*read, "results/pendulum-v0/sac/1")
    assert code == 2 and told in err
    with pytest.raises(UserError, match=told):
        offpcc.load_run("results/pendulum-v0/sac/1")
    assert "OFFPCC_RESULTS" not in launch(*read, "results/pendulum-v0/sac/2")[2]


def test_settings_without_effect_are_not_told(launch, unit_file, tmp_path):
    config = tmp_path / "mine.gin"
    config.write_text("train.num_epochs = 1\ntrain.num_steps_per_epoch = 3\ntrain.update_after = 10_000\n")
    code, out, err = launch("--dataset", unit_file, "--algo", "td3_bc", "--config", config)
    assert code == 0 and "  train: num_epochs = 1, num_steps_per_epoch = 3\n" in out, out + err


def test_a_config_that_comes_along_is_told_in_few_lines():
    for config in ("configs/quickstart.gin", "configs/offline_quickstart.gin", "configs/algorithms/sac.gin"):
        bound, lines = told_of_config(config)
        assert len(lines) <= 8 and "--gin" not in lines[0]
        owners = {line.split(":")[0].strip() for line in lines[1:]}
        assert owners and owners <= {binding.given.split(".")[0] for binding in bound}


def test_of_a_run_that_goes_on_by_its_own_config_what_is_given_anew_is_told(tmp_path):
    config = tmp_path / "results" / "config.gin"
    config.parent.mkdir()
    config.write_text("SAC.alpha = 0.5\n")
    loading.load_gin_config(config, ["train.num_epochs=9"])
    given, rest = describe_config(RunSpec.make("pendulum-p-v0", "sac"), "", config)
    assert given == "train.num_epochs=9" and rest.endswith("results/config.gin")


@pytest.mark.slow
def test_the_refusal_of_a_run_tells_the_settings_of_an_algorithm_of_the_users(quick, tmp_path):
    (tmp_path / "costly.py").write_text(
        "import offpcc\nfrom offpcc.algorithms import SAC\n\n\n@offpcc.configurable\nclass Costly(SAC):\n"
        "    def __init__(self, *args, cost=0.1, **kwargs):\n"
        "        super().__init__(*args, **kwargs)\n        self.cost = cost\n"
    )
    own = "--import", "costly", "--run_id", 1
    assert quick("Costly", *own, bindings=["train.num_epochs=1"])[0] == 0
    code, _, err = quick("Costly", *own, bindings=["train.num_epochs=1", "Costly.cost=0.3"])
    assert code == 2 and "its settings are cost=0.1, those of this command cost=0.3\n" in err, err


@pytest.mark.slow
def test_the_refusal_of_a_run_does_not_propose_other_settings_beside_it(quick, launch, tmp_path):
    assert quick("sac", "--run_id", 1, bindings=["SAC.lr=1e-3", "train.num_epochs=1"])[0] == 0
    code, _, err = quick("sac", "--run_id", 1, bindings=["SAC.lr=1e-3", "train.num_epochs=7"])
    assert code == 2 and "is finished and is not overwritten\n" in err and "--run_id 2" in err
    code, _, err = quick("sac", "--run_id", 1, bindings=["SAC.lr=1e-4", "train.num_epochs=1"])
    assert code == 2 and "--run_id 2" not in err
    assert "is not overwritten: its settings are lr=0.001, those of this command lr=0.0001\n" in err
    apart = next(line for line in err.splitlines() if "SAC.lr=1e-4" in line)
    words = shlex.split(apart)
    code, _, err = launch(*words[words.index("--env") :])
    assert code == 0, err
    assert (tmp_path / "results" / "lr-0.0001" / "pendulum-p-v0" / "sac" / "1" / "progress.csv").is_file()
    code, out, err = launch("plot", tmp_path / "results")
    assert code == 0, err
    assert out.count("of one run") == 2, "they are told apart"


def test_a_misspelled_binding_is_refused_before_an_existing_run(quick, launch, tmp_path):
    assert quick("sac", bindings=["train.num_epochs=1"])[0] == 0
    (tmp_path / "wrong.gin").write_text("SAC.lrr = 1\n")
    for binding, told in {
        "SAC.lrr=1": "--gin: SAC.lrr: SAC has no parameter 'lrr'; did you mean lr?",
        "SACK.lr=1": "--gin: SACK.lr",
        "SAC.lr=x": "is not gin's syntax",
        "lr=1": "--gin: lr has no effect: it names no class",
    }.items():
        code, _, err = quick("sac", bindings=["train.num_epochs=1", binding])
        assert code == 2 and told in err and "is not overwritten" not in err, err
        code, _, err = launch("--env", "pendulum-p-v0", "--algo", "sac", "--gin", binding)
        assert code == 2 and told in err and "is not overwritten" not in err, err
    code, _, err = launch("--env", "pendulum-p-v0", "--algo", "sac", "--config", "wrong.gin")
    assert code == 2 and "has no parameter 'lrr'" in err and "is not overwritten" not in err
    (tmp_path / "macro.gin").write_text("include 'configs/test/template_short.gin'\nSAC.lr = %rate\nrate = 1e-3\n")
    code, _, err = launch("--env", "pendulum-p-v0", "--algo", "sac", "--config", "macro.gin", "--gin", "rate=1e-4")
    assert code == 2 and "is not overwritten" in err, "the binding of a macro that the config uses is right"


@pytest.mark.pictures
def test_the_ways_on_name_the_modules_that_the_config_imports(launch, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_task.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('own-task-v0', entry_point=PendulumEnv, max_episode_steps=20)\n"
    )
    short = "train.num_epochs = 1\ntrain.num_steps_per_epoch = 40\ntrain.update_after = 20\n"
    (tmp_path / "imports.gin").write_text("import own_task\n")
    (tmp_path / "own.gin").write_text(f"include 'imports.gin'\ninclude 'configs/test/template_short.gin'\n{short}")
    base = ("--env", "own-task-v0", "--algo", "sac", "--config", "own.gin")
    code, _, err = launch(*base, "--no_video", "--gin", "SAC.lr=1e-3")
    assert code == 0, err
    assert not [*tmp_path.glob("results/own-task-v0/sac/1/videos/*")]
    without = launch(*base[:-2])[2]
    assert without.count("--import own_task") == 2, "the run's own config names the module, too"
    code, _, err = launch(*base)
    shown, further = (
        shlex.split(next(line for line in err.splitlines() if word in line).replace("epochs=N", "epochs=2"))
        for word in ("--render", "num_epochs=N")
    )
    for words in (shown, further):
        assert words[words.index("--import") + 1] == "own_task" and "--config" not in words
    for words in (further, [*shown[:-1], "--record", "--episodes", "1"]):
        code, _, err = launch(*words[words.index("--env") :])
        assert code == 0, err


@pytest.mark.parametrize(
    ("config", "told"),
    [("algorithms/iql.gin", True), ("algorithms/td3_bc.gin", False), ("offline_quickstart.gin", False), (None, False)],
)
def test_a_config_of_another_algorithm_is_told(config, told, launch, pendulum_file):
    given = ("--config", config) if config else ()
    short = ("train.num_epochs=1", "train.num_steps_per_epoch=2", "train.num_test_episodes_per_epoch=0")
    code, _, err = launch(
        "--env", "pendulum-v0", "--dataset", pendulum_file, "--algo", "td3_bc", *given, "--gin", *short
    )
    assert code == 0, err
    assert ("the config has settings of IQL, which have no effect in this run" in err) is told
    assert ("the config has settings" in err) is told


def test_an_environment_of_a_config_that_is_not_the_runs_is_told(quick, launch, tmp_path):
    assert quick("sac", bindings=["train.num_epochs=1", "make.wrappers=[@Flicker]", "Flicker.probability=0.1"])[0] == 0
    (tmp_path / "other.gin").write_text("make.wrappers = []\n")
    code, _, err = launch("evaluate", run_folder(tmp_path), "--episodes", 1, "--config", "other.gin")
    assert code == 0 and "other.gin binds make.wrappers = (), but the environment is that of the run" in err
    (tmp_path / "other.gin").write_text("Flicker.probability = 0.9\n")
    code, _, err = launch("evaluate", run_folder(tmp_path), "--episodes", 1, "--config", "other.gin")
    assert code == 0 and "other.gin binds Flicker.probability = 0.9, but" in err and "which has 0.1;" in err
    (tmp_path / "same.gin").write_text("make.wrappers = [@Flicker]\n")
    assert launch("evaluate", run_folder(tmp_path), "--episodes", 1, "--config", "same.gin")[2] == ""


def test_python_m_offpcc_is_named_as_it_was_called(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/offpcc/__main__.py", "--env", "x"])
    assert program()[1:] == ["-m", "offpcc"]


def test_what_cannot_be_compared_is_not_proposed(quick, tmp_path):
    assert quick("sac", bindings=["train.num_epochs=1"])[0] == 0
    (run_folder(tmp_path) / "config.gin").write_text("SAC.lr = = 1")
    code, _, err = quick("sac", bindings=["train.num_epochs=1"])
    assert code == 2 and "is not overwritten\n" in err and "--render" in err and "--run_id 2" not in err


def test_no_command_that_is_advised_makes_a_runs_config_ones_own(tmp_path):
    """Given by --config it would look like the user's, and its imports would be asked for by nobody."""
    folder = RunFolder(tmp_path, "pendulum-p-v0", "sac", 1)
    own = ["--env", "pendulum-p-v0", "--algo", "sac", "--resume", "--import", "os", "--gin", "train.num_epochs=9"]
    told = command(TrainOptions(**parse(own)[1]), folder, 1, "--resume")
    assert "--config" not in told and told.endswith("--gin train.num_epochs=9 --resume") and "--import os" in told


def test_a_run_in_a_model_has_the_settings_of_the_same_command(launch):
    """The defaults of an algorithm's imagined rollouts are in no config of a user's."""
    settings = ["train.num_epochs=1", "train.num_steps_per_epoch=30", "train.update_after=20", "Imagination.every=20"]
    settings += ["DynamicsModel.hidden_dims=(8,)", "ActorCritic.hidden_dims=(8,)", "ModelTraining.max_epochs=1"]
    words = ("--env", "pendulum-v0", "--algo", "mbpo", "--run_id", "1", "--no_video", "--gin", *settings)
    words += ("train.num_test_episodes_per_epoch=1", "--config", "test/template_short.gin")
    assert launch(*words)[0] == 0
    code, _, err = launch(*words)
    assert code == 2 and "is finished and is not overwritten\n" in err and "start another" in err


def test_the_command_that_shows_an_actor_names_the_part_of_the_data(tmp_path):
    """The part of the data is in the name of the run's folder."""
    for name, value in (("dataset_fraction", 0.5), ("dataset_steps", 9)):
        given = {"dataset": "swings.hdf5", "init": Path("run"), "model": Path("model.pt"), name: value}
        words = command(TrainOptions("td3_bc", "pendulum-v0", **given), RunFolder.at(tmp_path), 1, "--render")
        assert f"--dataset swings.hdf5 --{name} {value} --algo" in words
        assert "--init" not in words and "--model" not in words  # which are refused beside --render


@pytest.mark.parametrize("option", [("--init", "run"), ("--model", "model.pt"), ("--no_video",)])
def test_an_option_of_trainings_is_refused_beside_render(option, launch):
    code, _, err = launch("--env", "pendulum-v0", "--algo", "sac", "--render", *option)
    assert code == 2 and f"{option[0]}" in err and "has no effect on a saved actor" in err
