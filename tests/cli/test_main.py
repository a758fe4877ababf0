import functools
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from conftest import QUICK, merged, rows, run_folder

from offpcc.config.loading import plain_values
from offpcc.networks import Recurrent, check_encoder
from offpcc.training.comparison import hash_settings

ROOT = Path(__file__).resolve().parents[2]

EXTENDING = (ROOT / "docs" / "extending.md").read_text()
MY_LAB, MY_MEMORY = re.findall(r"```python\n(.*?)```", EXTENDING, re.DOTALL)[:2]
MINE_GIN = re.search(r"```\n(import my_lab.*?)```", EXTENDING, re.DOTALL)[1]


@pytest.mark.pictures
def test_a_run_leaves_what_its_folder_should_hold(quick, tmp_path):
    code, out, err = quick("sac")
    assert code == 0, err
    folder = run_folder(tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *(".lock", "config.gin", "run.json", "progress.csv", "tensorboard", "checkpoint.pt", "checkpoint_parts"),
        *("actor_last.pt", "actor_best.pt", "curve.png", "videos"),
    }
    header = (folder / "progress.csv").read_text().splitlines()[0]
    assert header == (
        "step,update,epoch,train/return,train/length,test/return,test/return_std,test/length,update/critic_loss,"
        "update/actor_loss,update/q,update/entropy,update/alpha,time/hours,time/steps_per_second"
    )
    told = json.loads((folder / "run.json").read_text())
    assert told["seed"] == told["run_id"] == 1
    assert told["status"] == "finished"
    assert {"command", "versions", "git_commit", "device", "threads", "machine"} <= told.keys()
    for named in (folder / "curve.png", folder / "videos" / "best_actor_1.mp4", folder):
        assert str(named) in out
    assert "num_epochs = 2" in out and "bytes" in out
    assert len(out.splitlines()) < 30 and str(folder / "config.gin") in out


def test_letters_that_the_output_cannot_show_end_no_run(quick, tmp_path, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    code, _, err = quick("sac", "--results", tmp_path / "r\xe9sultats")
    assert (code, err) == (0, "")
    assert rb"r\xe9sultats/pendulum-p-v0/sac/1" in written.getvalue()


def test_an_existing_run_is_not_overwritten(quick, tmp_path):
    quick("sac")
    before = {path: path.read_bytes() for path in run_folder(tmp_path).rglob("*") if path.is_file()}
    code, _, err = quick("sac")
    assert code == 2
    assert "finished" in err and "--resume" in err and "--run_id 2" in err
    assert before == {path: path.read_bytes() for path in run_folder(tmp_path).rglob("*") if path.is_file()}
    (run_folder(tmp_path) / "run.json").write_text('{"status": "running"}')
    code, _, err = quick("sac")
    assert code == 2
    assert "unfinished" in err and "--resume" in err and "--run_id 2" in err


def test_the_name_of_a_class_is_that_of_its_algorithm(quick, tmp_path):
    """Ids of one folder are drawn together, so that there is one folder, whichever name is given."""
    code, _, err = quick("RecurrentSAC", bindings=["train.num_epochs=1"])
    assert code == 0, err
    assert {path.name for path in run_folder(tmp_path).parent.parent.iterdir()} == {"rsac"}
    folder = run_folder(tmp_path, algo="rsac")
    assert json.loads((folder / "run.json").read_text())["algo"] == "rsac"
    code, _, err = quick("rsac", bindings=["train.num_epochs=1"])
    assert code == 2 and f"run 1 in {folder} is finished" in err and "--algo rsac" in err


@pytest.mark.slow
def test_several_ids_are_several_runs_each_as_if_alone_to_the_last_byte(quick, tmp_path, monkeypatch):
    assert quick("rsac", "--run_id", 1, 2)[0] == 0
    together = run_folder(tmp_path, algo="rsac", run_id=2)
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "alone"))
    assert quick("rsac", "--run_id", 2)[0] == 0
    alone = tmp_path / "alone" / "pendulum-p-v0" / "rsac" / "2"
    assert rows(together) == rows(alone)
    assert rows(together) != rows(run_folder(tmp_path, algo="rsac", run_id=1))
    for file in ("actor_last.pt", "actor_best.pt"):
        assert (together / file).read_bytes() == (alone / file).read_bytes()


def test_one_failure_does_not_stop_the_others(quick, tmp_path):
    run_folder(tmp_path, run_id=1).mkdir(parents=True)
    (run_folder(tmp_path, run_id=1) / "run.json").write_text('{"status": "finished"}')
    code, _, err = quick("sac", "--run_id", 1, 2)
    assert code == 2
    assert "run 1" in err
    assert err.endswith("offpcc: run 1 failed, for the reason given above; the other runs are trained\n")
    assert (run_folder(tmp_path, run_id=2) / "actor_last.pt").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "pendulum-p-v1"], ["pendulum-p-v1", "pendulum-p-v0"]),
        (["--env", "flow-ring-random-v1"], ["flow-ring-random-v1", "out of scope"]),
        (["--env", "CartPole-v1"], ["CartPole-v1", "Discrete"]),
        (["--algo", "rsacc"], ["'rsacc'", "rsac"]),
        (["--algo", "csac"], ["images"]),
        (["--env", "pendulum-img-v0"], ["convolutional"]),
        (["--config", "quikstart.gin"], ["quikstart.gin", "quickstart.gin"]),
        (["--device", "cuda:7"], ["cuda:7", "cpu"]),
        (["--device", "abacus"], ["abacus"]),
        (["--run_id", "-1"], ["-1"]),
        (["--run_id", "one"], ["'one'"]),
        (["--run_id", "1", "1"], ["1 1", "twice"]),
        (["--threads", "0"], ["'0'"]),
        (["--gin", "SAC.alfa=1"], ["SAC.alfa", "alpha"]),
        (["--gin", "TD3.policy_delay=3"], ["TD3.policy_delay", "does not use TD3; did you mean ", "SAC.policy_delay?"]),
        (["--gin", "TD3.gamma=0.9"], ["does not use TD3; did you mean", ".gamma?"]),
        (["--gin", "IQL.beta=3"], ["does not use IQL, only ActorCritic, ", "correct or remove it"]),
        (["--gin", "ReplayBuffer.capacity=1"], ["capacity"]),
        (["--gin", "lr=1e-4"], ["lr", "names no class", "ActorCritic.lr"]),
        (["--gin", "SAC.encoder=@Recurrent()"], ["SAC.encoder is @Recurrent()", "write @Recurrent without"]),
        (["--gin", "SAC.alpha=-1.0"], ["SAC.alpha is -1.0"]),
        (["--gin", "train.update_every=0"], ["train.update_every is 0"]),
        (["--gin", "train.num_epochs=1.5"], ["train.num_epochs is 1.5", "whole"]),
        (["--gin", "train.num_test_envs=0"], ["train.num_test_envs is 0"]),
        (["--gin", "Checkpoints.every=0"], ["Checkpoints.every is 0"]),
        (["--device", "meta"], ["meta", "cpu"]),
        (["--gin", "ReplayBuffer.capacity=10**15"], ["syntax"]),
        (["--gin", "ReplayBuffer.capacity=1000000000000", "train.num_epochs=1000000000"], ["memory", "bytes"]),
        (["--results"], ["--results"]),
        (["--nonsense"], ["--nonsense"]),
    ],
)
def test_bad_input_gets_one_clear_message_and_leaves_nothing(launch, tmp_path, arguments, words):
    given = {"--env": "pendulum-p-v0", "--algo": "sac", "--config": "test/template_short.gin"}
    given |= {arguments[0]: None} if arguments[0] in given else {}
    flat = [word for key, value in given.items() if value is not None for word in (key, value)]
    code, _, err = launch(*flat, *arguments)
    assert code == 2
    assert "Traceback" not in err and "In call to configurable" not in err
    for word in words:
        assert word in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "RUN/checkpoint.pt", "--env", "pendulum-p-v0"], ["checkpoint.pt", "'actor'"]),
        (["evaluate", "RUN", "--env", "pendulum-v0"], ["(3,)", "(2,)"]),
        (["evaluate", "RUN/actor_best.pt"], ["--env"]),
        (["check", "pendulum-p"], ["an agent of the zoo", "`offpcc zoo get pendulum-p`"]),
        (["evaluate", "pendulum-p"], ["an agent of the zoo", "`offpcc zoo get pendulum-p`"]),
        (["evaluate", "NOWHERE"], ["NOWHERE", "there is no actor", "a run's folder"]),
        (["plot", "RUN", "--output", "curves.xyz"], ["curves.xyz"]),
        (["plot", "RUN", "--metric", "test/retrun"], ["test/retrun"]),
        (["plot", "NOWHERE"], ["NOWHERE"]),
        (["--env", "pendulum-p-v0", "--algo", "sac", "--record", "--gin", "SAC.alpha=1.0"], ["SAC.alpha", "no effect"]),
    ],
)
def test_bad_input_to_other_commands_gets_one_clear_message(quick, launch, tmp_path, arguments, words):
    quick("sac")
    code, _, err = launch(*(word.replace("RUN", str(run_folder(tmp_path))) for word in arguments))
    assert code == 2
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_a_run_may_go_without_tests_and_what_is_shown_of_it_is_the_last_actor(quick, launch, tmp_path):
    bindings = ["train.num_test_episodes_per_epoch=0", "Checkpoints.every=1"]
    assert quick("sac", bindings=bindings)[0] == 0
    folder = run_folder(tmp_path)
    assert not (folder / "actor_best.pt").exists()
    weights = torch.load(folder / "checkpoint.pt")["algorithm"]["actor"]
    last = torch.load(folder / "actor_last.pt")["weights"]["actor"]
    assert all(torch.equal(weights[name], last[name]) for name in last)
    code, out, err = launch("evaluate", folder, "--episodes", 1)
    assert code == 0 and "actor_last.pt" in out, err
    assert rows(run_folder(tmp_path))[-1].split(",")[5:8] == ["", "", ""]


def test_a_moved_run_can_be_evaluated(quick, launch, tmp_path):
    quick("sac")
    run_folder(tmp_path).rename(tmp_path / "favourite")
    code, out, err = launch("evaluate", tmp_path / "favourite", "--episodes", 2)
    assert code == 0, err
    assert "pendulum-p-v0" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--env e", "missing: --algo; see `offpcc train --help`"),
        ("collect --env e", "missing: --actor, --steps, --out; see `offpcc collect --help`"),
        ("evaluate", "missing: FOLDER; see `offpcc evaluate --help`"),
        ("colect --env e", "there is no command 'colect'; did you mean collect?"),
        (
            "pendulum-v0",
            "there is no command 'pendulum-v0'; there are train, evaluate, plot, report, board, params, envs, check, "
            "collect, convert, export, train-model, sweep, toy-model, zoo, docs;",
        ),
        ("--algo sac --enw e", "`offpcc train` does not take --enw; did you mean --env?"),
        ("--algo sac --env e --dataset-fractoin=0.5", "--dataset_fractoin=0.5; did you mean --dataset_fraction?"),
        ("--algo sac td3 --env e", "does not take td3; --algo takes one value; call the command for each, or list"),
        ("--env e f --algo sac", "does not take f; --env takes one value"),
        ("check log.hdf5", "`offpcc check` does not take log.hdf5; give a dataset with --dataset log.hdf5"),
        ("evaluate one two", "there is no actor one; give a run's folder"),
        ("--algo sac --data d", "--data could match --dataset, --dataset_fraction, --dataset_steps; see"),
        ("--algo sac --results", "--results: expected one argument; see"),
        ("collect --steps few", "--steps: 'few' is no whole number above 0, such as 1; see"),
        ("check --dataset_fraction 2", "--dataset_fraction: '2' is no number above 0 and at most 1, such as 0.1; see"),
    ],
)
def test_a_command_line_at_fault_gets_one_message_without_a_block_of_usage(launch, arguments, told):
    code, out, err = launch(*arguments.split())
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("offpcc: ") and told in err


def test_tracking_without_its_package_leaves_nothing(quick, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else found(name))
    code, _, err = quick("sac", "--track")
    assert code == 2
    assert "pip install wandb" in err
    assert not (tmp_path / "results").exists()


def test_segments_and_burn_in_must_fit(quick):
    code, _, err = quick("rsac", bindings=["RecurrentReplayBuffer.segment_len=None"])
    assert code == 2
    assert err.startswith("offpcc: RecurrentReplayBuffer.burn_in is 5 but segment_len is None")
    assert len(err.strip().splitlines()) == 1


def test_help_lists_algorithms_and_environments():
    told = subprocess.run([sys.executable, "-m", "offpcc.launch", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert told.returncode == 0
    for name in ("rsac_s", "crtd3", "pendulum-p-v0", "dmc-cartpole-balance-p-v0"):
        assert name in told.stdout


def test_the_names_of_help_are_those_of_the_tables():
    from offpcc.algorithms import ALGORITHMS
    from offpcc.cli import names
    from offpcc.envs import ENVIRONMENTS

    assert list(ALGORITHMS) == names.ALGORITHMS.split()
    assert [environment.name for environment in ENVIRONMENTS] == names.ENVIRONMENTS.split()


@pytest.mark.parametrize("script", ["-m offpcc.launch", "offpcc/launch.py"])
@pytest.mark.parametrize("command", ["", "train", "evaluate", "plot", "params", "envs", "check", "collect"])
def test_help_imports_nothing_that_takes_long(script, command):
    words = script.removeprefix("-m ")
    way = "run_module" if script.startswith("-m") else "run_path"
    code = f"""
import runpy, sys
sys.argv = [{words!r}, *{command.split()!r}, "--help"]
try:
    runpy.{way}({words!r}, run_name="__main__")
finally:
    heavy = {{"torch", "gymnasium", "numpy", "gin", "rich", "matplotlib", "h5py"}}
    print("imported:", *sorted(heavy & {{*sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert f"usage: offpcc{f' {command}' if command else ''}" in done.stdout
    assert done.stdout.splitlines()[-1].strip() == "imported:"


def options_of_all_commands():
    from offpcc.cli.main import parser

    commands = parser()._actions[-1].choices
    return [(name, one) for name, command in commands.items() for one in command._actions if one.dest != "help"]


@pytest.mark.parametrize(("command", "option"), options_of_all_commands(), ids=lambda one: getattr(one, "dest", one))
def test_help_of_every_option_is_in_sentences(command, option):
    text = option.help
    assert re.fullmatch(r"[A-Z].*\.", text) and "  " not in text
    if option.default not in (None, False, []):
        value = option.default[0] if isinstance(option.default, list) else option.default
        assert f"The default is {value}" in text


def test_envs_tells_sizes_and_what_is_hidden(launch, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = launch("envs")
    assert code == 0
    line = next(line for line in out.splitlines() if line.strip().startswith("pendulum-p-v0"))
    assert "2" in line.split() and "200" in line.split() and "velocity" in line


def test_envs_are_filtered_by_a_text(launch):
    code, out, _ = launch("envs", "Angular")
    names = [line.split()[0] for line in out.splitlines() if line.strip() and line.split()[0].endswith("-v0")]
    assert code == 0 and "pendulum-p-v0" in names and "pendulum-v0" not in names and "cartpole-p-v0" not in names
    assert "dmc-cartpole-balance-v0" in launch("envs", "dm-control")[1]
    assert "dmc-cheetah-run-p-v0" in launch("envs", "cheetah-run")[1]
    out = launch("envs")[1]
    assert "dmc-cheetah-run-p-v0" not in out and "dmc-cheetah-run-v0 and so on" in out
    code, out, err = launch("envs", "qqqq")
    assert (code, out) == (2, "") and "contains qqqq; `offpcc envs` lists all" in err


CHECKED = """
import gymnasium
import numpy as np
from gymnasium.envs.classic_control import PendulumEnv


class Rusty(PendulumEnv):
    def step(self, action):
        observation, *others = super().step(action)
        return np.append(observation[:2], np.nan).astype(np.float32), *others


gymnasium.register("checked-rusty-v0", entry_point=Rusty, max_episode_steps=9)
"""


def test_check_prints_a_line_for_each_check(launch, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    code, out, err = launch("check", "--env", "pendulum-p-v0", "--steps", 400, "--seed", 3)
    assert code == 0, err
    lines = out.splitlines()
    assert all(line.startswith("ok  ") for line in lines[:-1])
    assert "observation (2,) float32 in [-1, 1]; action (1,) float32 in [-2, 2]" in lines[1]
    assert lines[-1] == "pendulum-p-v0: no fault"


def test_check_names_a_fault_in_a_users_file_and_its_remedy(launch, tmp_path):
    (tmp_path / "lab_to_check.py").write_text(CHECKED)
    code, out, _ = launch("check", "--env", "lab_to_check:checked-rusty-v0", "--steps", 50, "--longest_episode", 8)
    assert code == 1 and "FAULT    episodes   a time limit of 9 steps" in out and "at most 8 steps" in out
    code, out, err = launch("check", "--env", "lab_to_check:checked-rusty-v0", "--steps", 50)
    assert code == 1, err
    lines = out.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("FAULT    finite")]
    assert "step 1 of episode 1 gave nan at index 2" in lines[place]
    assert "-> " in lines[place + 1] and "division by 0" in lines[place + 1]
    assert lines[-1].startswith("lab_to_check:checked-rusty-v0: 1 fault;")
    (tmp_path / "check.gin").write_text(
        "import lab_to_check\nmake.wrappers = [@KeepIndices]\nKeepIndices.indices = (0, 1)\n"
    )
    code, out, err = launch("check", "--env", "checked-rusty-v0", "--steps", 50, "--config", "check.gin")
    assert code == 1, err
    assert "agents see (2,) float32" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "pendulum-q-v0"], ["did you mean", "pendulum-p-v0"]),
        (["--env", "pendulum-p-v0", "--steps", "0"], ["'0'"]),
        (["--env", "pendulum-p-v0", "--config", "no_such.gin"], ["no_such.gin"]),
        ([], ["--env"]),
    ],
)
def test_check_of_what_cannot_be_checked(launch, arguments, words):
    code, out, err = launch("check", *arguments)
    assert code == 2
    assert not out and "Traceback" not in err
    for word in words:
        assert word in err


def test_check_reads_choices_as_one_hot_vectors(launch):
    code, out, err = launch("check", "--env", "Blackjack-v1", "--steps", 200)
    assert code == 0 and "observation (45,) float32 in [0, 1]" in out, out + err


@pytest.mark.parametrize("way", [pytest.param("file", marks=pytest.mark.slow), "inside", "module", "command"])
def test_four_ways_of_starting_are_the_same_and_find_a_users_file(tmp_path, way, request):
    """The guide's file, named by an import, holds an environment, an encoder and an algorithm of a user's."""
    (tmp_path / "my_lab.py").write_text(MY_LAB)
    (tmp_path / "mine.gin").write_text(f"{MINE_GIN}train.num_steps_per_epoch = 120\ntrain.update_after = 50\n")
    script = Path(sys.executable).parent / "offpcc"
    if way == "command" and not script.exists():
        pytest.skip("the package is not installed")
    start, folder = {
        "file": ([sys.executable, str(ROOT / "offpcc" / "launch.py")], tmp_path),
        "inside": ([sys.executable, "launch.py"], ROOT / "offpcc"),
        "module": ([sys.executable, "-m", "offpcc.launch"], tmp_path),
        "command": ([str(script)], tmp_path),
    }[way]
    environment = os.environ | {"PYTHONPATH": str(ROOT) if way == "module" else ""}
    arguments = ["--env", "my-drift-v0", "--algo", "CautiousSAC", "--config", str(tmp_path / "mine.gin")]
    arguments += ["--results", str(tmp_path / "results"), "--threads", "1"]
    done = subprocess.run([*start, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = run_folder(tmp_path, "my-drift-v0", "CautiousSAC")
    assert len(rows(made)) == 3
    assert "CautiousSAC.caution = 0.2" in (made / "config.gin").read_text()
    assert "import my_lab" in (made / "config.gin").read_text()
    if way == "file":  # the guide promises these, too, however it is started
        forks = request.getfixturevalue("forks")
        for more in (["--resume", "--gin", "train.num_epochs=3"], ["--record", "--episodes", "1"]):
            code, told = forks.launch([*arguments, *more], folder, environment)
            assert code == 0, told
            assert "not exact" not in told
        assert len(rows(made)) == 4
        assert (made / "videos" / "episode_1.mp4").exists()
        # Its folder imports nothing by itself.
        by_own_config = [*arguments[:4], *arguments[6:], "--resume", "--gin", "train.num_epochs=4"]
        for words in (["evaluate", str(made), "--episodes", "1"], by_own_config):
            for more, expected in ([], 2), (["--import", "my_lab"], 0):
                code, told = forks.launch([*words, *more], folder, environment)
                assert code == expected, told
                assert code == 0 or ("--import" in told and "Traceback" not in told)
        assert len(rows(made)) == 5


@pytest.mark.slow
def test_a_users_memory_keeps_its_promises_learns_and_acts_from_a_file(launch, tmp_path):
    """The guide's, behind what it needs of the file that it is put into."""
    imports = "import torch\n\nimport offpcc\n", "from offpcc.config.validation import Fraction\n"
    assert all(lines in MY_LAB for lines in imports)
    (tmp_path / "my_memory.py").write_text("".join(imports) + MY_MEMORY)
    (tmp_path / "mine.gin").write_text(
        "import my_memory\ninclude 'configs/test/template_short.gin'\nLeaky.keep = 0.8\n"
    )
    bindings = merged(*QUICK, "Recurrent.cell=@Leaky", "Recurrent.num_layers=1")
    start = "--env", "pendulum-p-v0", "--algo", "rsac", "--config", "mine.gin"
    for more in (("--gin", *bindings), ("--record", "--episodes", 1)):
        code, _, err = launch(*start, *more)
        assert code == 0, err
    made = run_folder(tmp_path, algo="rsac")
    assert "Leaky.keep = 0.8" in (made / "config.gin").read_text()
    assert (made / "videos" / "episode_1.mp4").exists()
    check_encoder(functools.partial(Recurrent, cell=importlib.import_module("my_memory").Leaky, hidden_dim=5))


@pytest.mark.slow
def test_record_and_evaluate_show_an_actor_put_there_by_hand(quick, launch, tmp_path):
    quick("rsac")
    made = run_folder(tmp_path, algo="rsac")
    by_hand = run_folder(tmp_path, algo="rsac", run_id=7)
    by_hand.mkdir(parents=True)
    (by_hand / "actor_last.pt").write_bytes((made / "actor_best.pt").read_bytes())
    name = ("--env", "pendulum-p-v0", "--algo", "rsac", "--run_id", 7)
    code, out, err = launch(*name, "--record", "--episodes", 2)
    assert code == 0, err
    assert "episode 2: return -" in out and "200 steps" in out
    assert sorted(path.name for path in (by_hand / "videos").iterdir()) == ["episode_1.mp4", "episode_2.mp4"]
    code, first, err = launch("evaluate", by_hand, "--episodes", 3)
    assert code == 0, err
    assert "over 3 episodes" in first
    assert launch("evaluate", by_hand / "actor_last.pt", "--episodes", 3, "--env", "pendulum-p-v0")[1] == first
    assert launch("evaluate", by_hand, "--episodes", 3, "--seed", 5)[1] != first


@pytest.mark.slow
def test_render_without_a_screen_says_so_and_records(quick, launch, tmp_path, monkeypatch):
    quick("sac")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    code, out, _ = launch("--env", "pendulum-p-v0", "--algo", "sac", "--render", "--episodes", 1)
    assert code == 0
    assert "no screen" in out
    assert (run_folder(tmp_path) / "videos" / "episode_1.mp4").exists()
    downloaded = run_folder(tmp_path, run_id=7)
    downloaded.mkdir()
    (downloaded / "my_actor.pt").write_bytes((run_folder(tmp_path) / "actor_best.pt").read_bytes())
    code, out, err = launch("--env", "pendulum-p-v0", "--algo", "sac", "--run_id", 7, "--render", "--episodes", 1)
    assert code == 0 and "my_actor.pt in pendulum-p-v0" in out, err
    assert (downloaded / "videos" / "episode_1.mp4").exists()


@pytest.mark.slow
def test_what_is_suggested_works(quick, launch, tmp_path):
    """Also where a run is gone on with by its own config."""
    quick("sac")
    code, out, err = launch("--env", "pendulum-p-v0", "--algo", "sac", "--resume")
    assert code == 0, err
    suggested = out.strip().splitlines()[-1]
    assert "--config" in suggested and suggested.endswith("--run_id 2")
    code, _, err = launch(*shlex.split(suggested[suggested.index("--env") :]))
    assert code == 0, err
    more = ("--config", "test/template_short.gin", "--gin", "SAC.alpha=0.5", "train.num_epochs=1")
    _, _, err = launch("--env", "pendulum-p-v0", "--algo", "sac", *more)
    further = next(line for line in err.splitlines() if line.endswith("train.num_epochs=N"))
    assert further.endswith("--env pendulum-p-v0 --algo sac --run_id 1 --resume --gin train.num_epochs=N")
    code, _, told = launch(*shlex.split(further[further.index("--env") :].replace("=N", "=3")))
    assert code == 0 and len(rows(run_folder(tmp_path))) == 4, told
    shown = next(line for line in err.splitlines() if line.endswith("--render"))
    code, _, err = launch(*shlex.split(shown[shown.index("--env") :]), "--episodes", 1)
    assert code == 0, err


def test_an_unfinished_run_is_gone_on_with_by_its_own_config(quick, launch, tmp_path):
    assert quick("sac")[0] == 0
    (run_folder(tmp_path) / "run.json").write_text('{"status": "running"}')
    _, _, err = quick("sac", bindings=["SAC.alpha=0.5"])
    told = next(line for line in err.splitlines() if line.endswith("--resume"))
    assert "--gin" not in told and launch(*shlex.split(told[told.index("--env") :]))[0] == 0
    (run_folder(tmp_path) / "config.gin").unlink()
    _, _, err = quick("sac", bindings=["SAC.alpha=0.5"])
    assert "SAC.alpha=0.5 --resume" in err and "--config test/template_short.gin" in err


def test_render_without_an_actor_says_so(launch):
    code, _, err = launch("--env", "pendulum-p-v0", "--algo", "sac", "--render")
    assert code == 2
    assert "no saved actor" in err


@pytest.mark.slow
def test_plot_tells_mean_and_spread_over_ids(quick, launch, tmp_path):
    quick("sac", "--run_id", 1, 2)
    code, out, err = launch("plot", tmp_path / "results" / "pendulum-p-v0", "--output", tmp_path / "curves.png")
    assert code == 0, err
    last = [float(rows(run_folder(tmp_path, run_id=i))[-1].split(",")[5]) for i in (1, 2)]
    assert f"{np.mean(last):.1f} +- {np.std(last):.1f} over 2 runs" in out
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    code, out, err = launch("plot", run_folder(tmp_path), "--output", tmp_path / "curves.png")
    assert code == 0 and f"test/return {last[0]:.1f} of one run at step" in out and "+-" not in out, err
    code, _, err = launch("plot", tmp_path / "nowhere")
    assert code == 2


@pytest.mark.slow
@pytest.mark.pictures
def test_track_logs_offline_without_an_account(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("OFFPCC_WANDB_PROJECT", "my-project")
    code, _, err = quick("sac")
    assert code == 0, err
    files = list(run_folder(tmp_path).rglob("*.wandb"))
    assert len(files) == 1
    settings = hash_settings(plain_values((run_folder(tmp_path) / "config.gin").read_text())).encode()
    told = (
        b"pendulum-p-v0 sac template_short " + settings,
        b"run_id=1",
        b"my-project",
        b"actor_last.pt",
        b"actor_best.pt",
    )
    until = time.monotonic() + 60.0  # another process writes the file, and on a busy machine it takes its time
    while not all(words in files[0].read_bytes() for words in told) and time.monotonic() < until:
        time.sleep(0.5)
    content = files[0].read_bytes()
    assert all(words in content for words in told)


WRAPPED = ("make.wrappers=[@DropIndices, @TimeLimit]", "DropIndices.indices=(2,)", "TimeLimit.max_episode_steps=30")


def test_a_run_is_shown_in_its_environment_as_it_was_wrapped(quick, launch, tmp_path):
    assert quick("rsac", env="Pendulum-v1", bindings=[*WRAPPED, "environments.num_envs=2"])[0] == 0
    run = run_folder(tmp_path, "Pendulum-v1", "rsac")
    code, out, err = launch("evaluate", run, "--episodes", 2)
    assert code == 0, err
    assert "mean length 30\n" in out
    code, out, err = launch("evaluate", run / "actor_best.pt", "--episodes", 2, "--env", "Pendulum-v1")
    assert code == 0, err
    code, out, err = launch("--env", "Pendulum-v1", "--algo", "rsac", "--record", "--episodes", 1)
    assert code == 0, err


FUNCTIONS = """
import gin
import gymnasium

@gin.configurable
def factor(value=1.0):
    return value

@gin.configurable
def scaled(env, by=1.0):
    return gymnasium.wrappers.TransformReward(env, lambda reward: by * reward)
"""


def test_a_wrapper_may_be_a_function_with_settings_from_elsewhere(quick, launch, tmp_path):
    """What the run's config says of them counts, also where the config given only imports them."""
    (tmp_path / "my_wraps.py").write_text(FUNCTIONS)
    (tmp_path / "imports.gin").write_text("import my_wraps\n")
    (tmp_path / "wrapped.gin").write_text(
        "import my_wraps\ninclude 'test/template_short.gin'\nmake.wrappers = [@scaled]\nscaled.by = @factor()\n"
        "factor.value = %small\nsmall = 0.001\n"
    )
    code, _, err = launch("--env", "Pendulum-v1", "--algo", "sac", "--config", "wrapped.gin", "--gin", *QUICK)
    assert code == 0, err
    run = run_folder(tmp_path, "Pendulum-v1", "sac")
    code, out, err = launch("evaluate", run, "--episodes", 2, "--config", "imports.gin")
    assert code == 0, err
    assert -2.5 < float(re.search(r"mean (\S+),", out)[1]) < 0.0


def test_an_environment_may_be_named_with_its_module(launch, tmp_path):
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control.pendulum import PendulumEnv\n"
        "gymnasium.register('mine-v0', entry_point=PendulumEnv, max_episode_steps=50)\n"
    )
    config = ("--config", "test/template_short.gin", "--gin", *QUICK)
    code, _, err = launch("--env", "my_envs:mine-v0", "--algo", "sac", *config)
    assert code == 0, err
    run = run_folder(tmp_path, "my_envs-mine-v0")
    assert launch("evaluate", run, "--episodes", 1)[0] == 0
    gymnasium.registry.pop("mine-v0")  # as in another process
    code, _, err = launch("evaluate", run, "--episodes", 1)
    assert code == 2 and "was trained in my_envs:mine-v0" in err and "add --import my_envs" in err


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("PPO", "no on-policy"),
        ("RecurrentPPO", "take sac or dqn, with a memory rsac or rdqn"),
        ("a2c", "no on-policy"),
        ("rainbow", "qrdqn also"),
        ("drqn", "rdqn is DQN with a memory"),
    ],
)
def test_an_algorithm_of_another_kind_is_refused_with_the_reason(launch, name, reason):
    code, _, err = launch("--env", "pendulum-v0", "--algo", name)
    assert code == 2 and reason in err and "did you mean" not in err


def test_a_runs_config_imports_nothing_when_it_is_shown(quick, launch, tmp_path):
    assert quick("sac", env="Pendulum-v1", bindings=WRAPPED)[0] == 0
    run = run_folder(tmp_path, "Pendulum-v1", "sac")
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    config = (run / "config.gin").read_text()
    (run / "config.gin").write_text(f"import evil\n{config}")
    assert launch("evaluate", run, "--episodes", 1)[0] == 0
    (run / "config.gin").write_text(f"import evil\n{config.replace('@DropIndices', '@evil.Wrapper')}")
    code, _, err = launch("evaluate", run, "--episodes", 1)
    assert code == 2
    assert "'evil.Wrapper'" in err and "--config" in err


def test_an_actor_that_names_unknown_classes_imports_nothing(quick, launch, tmp_path):
    quick("sac")
    file = run_folder(tmp_path) / "actor_best.pt"
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    content = torch.load(file, weights_only=True)
    content["algorithm"]["class"] = "evil.Algorithm"
    torch.save(content, file)
    code, _, err = launch("evaluate", run_folder(tmp_path))
    assert code == 2
    assert "'evil.Algorithm'" in err
    file.write_bytes(b"nonsense")
    code, _, err = launch("evaluate", run_folder(tmp_path))
    assert code == 2
    assert "actor_best.pt" in err and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, folder",
    [
        ((ROOT / "offpcc" / "launch.py",), ROOT),
        (("launch.py",), ROOT / "offpcc"),
        (("-m", "offpcc.launch"), ROOT),
    ],
    ids=["python offpcc/launch.py", "cd offpcc; python launch.py", "python -m offpcc.launch"],
)
def test_however_it_is_started_a_users_modules_are_found_before_ours(tmp_path, words, folder):
    """Of `utils` and `data` there are ours, in the folder of launch.py; a user's config means the user's."""
    for name in ("utils", "data"):
        (tmp_path / f"{name}.py").write_text(f"print('the {name} of a user')\n")
    config = tmp_path / "mine.gin"
    lines = ["import utils", "import data", f"include '{ROOT}/configs/test/template_short.gin'"]
    config.write_text("\n".join(lines) + "\n")
    settings = (
        "train.num_epochs=1",
        "train.num_steps_per_epoch=20",
        "train.update_after=20",
        "train.updates_per_step=0",
    )
    command = ["--env", "pendulum-p-v0", "--algo", "sac", "--config", config, "--results", tmp_path / "results"]
    done = subprocess.run(
        [sys.executable, *map(str, words), *map(str, command), "--run-id", "7", "--gin", *settings],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "the utils of a user" in done.stdout and "the data of a user" in done.stdout
    assert (tmp_path / "results" / "pendulum-p-v0" / "sac" / "7" / "actor_last.pt").is_file()


def test_the_entry_point_names_both_tables():
    from offpcc import launch
    from offpcc.algorithms import ALGORITHMS
    from offpcc.envs import ENVIRONMENTS

    assert launch.ALGORITHMS is ALGORITHMS and launch.ENVIRONMENTS is ENVIRONMENTS
    with pytest.raises(AttributeError, match=r"offpcc\.launch"):
        launch.NOTHING


def test_an_error_in_the_config_of_a_run_of_another_version_names_it(launch, tmp_path):
    run = tmp_path / "results" / "pendulum-v0" / "sac" / "1"
    run.mkdir(parents=True)
    (run / "config.gin").write_text("SAC.old_thing = 3\n")
    (run / "progress.csv").write_text("step,epoch\n")
    facts = {"env": "pendulum-v0", "algo": "sac", "run_id": 1, "versions": {"offpcc": "0.0.9"}}
    (run / "run.json").write_text(json.dumps(facts))
    words = ("--env", "pendulum-v0", "--algo", "sac", "--run_id", "1", "--resume")
    code, _, err = launch(*words)
    assert code == 2 and "no parameter 'old_thing'" in err and "; offpcc 0.0.9 made this run" in err, err
    (run / "config.gin").write_text("SAC.lr = 1e-3\n")
    code, _, err = launch(*words, "--gin", "SAC.lrr=1")
    assert code == 2 and "did you mean lr" in err and "0.0.9" not in err, "this fault has nothing to do with versions"
