"""Without --config, a run has the defaults for its kind: it says so, stores them, and learns with them."""

import h5py
import pytest
from conftest import QUICK, run_folder

from offpcc.algorithms import ALGORITHMS
from offpcc.algorithms.variants import TABLE
from offpcc.cli.messages import DEFAULTS, TrainOptions, default_config, published_settings
from offpcc.config import loading
from offpcc.config.gin_files import CONFIGS
from offpcc.training.analysis.run_tables import read_progress

FEW = (*[one for one in QUICK if "updates" not in one], "train.num_epochs=1", "train.updates_per_step=0.02")
KINDS = {"vectors", "memory", "images", "recorded"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_kind_of_agent_has_a_file(name):
    file, _ = default_config(TrainOptions(name, env="pendulum-v0"))
    kind = "images" if TABLE[name].images else "memory" if TABLE[name].memory else "vectors"
    assert file == DEFAULTS / f"{kind}.gin"
    assert default_config(TrainOptions(name, env="e", dataset="d.hdf5"))[0] == DEFAULTS / "recorded.gin"
    assert default_config(TrainOptions(name, env="hopper-medium-v2"))[0] == DEFAULTS / "recorded.gin"


def test_the_files_are_complete_and_stand_alone():
    assert {path.stem for path in (CONFIGS / "defaults").iterdir()} == KINDS
    for kind in KINDS:
        text = (CONFIGS / "defaults" / f"{kind}.gin").read_text()
        assert "include" not in text and "import" not in text  # users copy them
        names = {binding.given for binding in loading.load_gin_config(f"{DEFAULTS}/{kind}.gin", [])}
        assert {"train.num_epochs", "ActorCritic.lr", "ActorCritic.hidden_dims"} <= names
        assert kind == "recorded" or "train.update_after" in names


@pytest.mark.parametrize(("algo", "kind"), [("sac", "vectors"), ("rsac", "memory")])
def test_a_run_without_a_config_says_what_it_takes_and_stores_it(launch, tmp_path, algo, kind):
    code, out, err = launch("--env", "pendulum-p-v0", "--algo", algo, "--gin", *FEW)
    assert code == 0, err
    first, *others = out.splitlines()
    assert first.startswith("no --config is given, so these are the defaults for agents with")
    assert first.endswith(f"configs/defaults/{kind}.gin")
    assert f"`offpcc params {algo}` explains all names" in out and "--resume --gin train.num_epochs=N" in out
    assert any(line.startswith(f"settings by {DEFAULTS / kind}.gin and --gin") for line in others)
    assert "lr = 0.001" in out
    stored = loading.plain_values((run_folder(tmp_path, algo=algo) / "config.gin").read_text())
    assert "0.001" in (value for name, value in stored.items() if name.endswith(".lr"))
    # It goes on with its own config, and says nothing about defaults.
    longer = ("--resume", "--gin", "train.num_epochs=2")
    code, out, err = launch("--env", "pendulum-p-v0", "--algo", algo, *longer)
    assert code == 0 and "defaults for" not in out, err
    assert read_progress(run_folder(tmp_path, algo=algo) / "progress.csv")["step"] == [250, 500]


PONG = "PongNoFrameskip-v4"


@pytest.mark.parametrize(
    ("algo", "env", "dataset", "config"),
    [
        ("cqrdqn", PONG, None, "discrete/atari_qrdqn.gin"),
        ("cdqn", "ALE/Pong-v5", None, "discrete/atari_dqn.gin"),
        ("crdqn", PONG, None, "discrete/atari_memory.gin"),
        ("crdqn_s", PONG, None, "discrete/atari_memory.gin"),
        ("cr2d2", PONG, None, "discrete/atari_r2d2.gin"),
        ("cdcql", PONG, "d.hdf5", "discrete/atari_dcql.gin"),
        ("crdcql", PONG, "d.hdf5", "discrete/atari_data_memory.gin"),
        ("cqrdqn", PONG, "d.hdf5", "discrete/atari_data.gin"),
        ("iql", "pendulum-v0", "d.hdf5", "algorithms/iql.gin"),
        ("riql", "hopper-medium-v2", None, "algorithms/iql.gin"),
        ("ciql", "pendulum-img-v0", "d.hdf5", None),
        ("sac", "pendulum-v0", "d.hdf5", None),  # its file has SAC's own settings only
        ("iql", "pendulum-v0", None, None),
        ("Mine", "pendulum-v0", "d.hdf5", None),
    ],
)
def test_published_settings_are_named(algo, env, dataset, config):
    told = published_settings(TrainOptions(algo, env=env, dataset=dataset))
    assert told.endswith(f" --config configs/{config}" if config else "") and bool(told) == bool(config)
    assert config is None or loading.load_gin_config(str(CONFIGS / config), [])


def test_several_runs_print_a_note_once(launch, tmp_path):
    command = ("--env", "pendulum-p-v0", "--algo", "rsac", "--run_id", 1, 2, "--gin", *FEW)
    short = ("RecurrentReplayBuffer.segment_len=9", "RecurrentReplayBuffer.burn_in=0")
    code, out, err = launch(*command, *short)
    assert code == 0, err
    assert out.count("no --config is given") == 1 and "--run_id 1 2" in out
    assert out.count("note: learning sees 9 steps together") == 1
    assert all(f"rsac run {run_id} " in out and f"rsac/{run_id}/config.gin" in out for run_id in (1, 2))
    for _ in range(2):  # each command prints it
        other = ("--results", tmp_path / "other", "--config", "algorithms/iql.gin", "--resume")
        code, out, err = launch(*command, *other)
        assert code == 0 and err.count("note: the config has settings of IQL") == 1, err


def test_recorded_data_have_defaults_too(launch, tmp_path, unit_file):
    few = ("train.num_epochs=1", "train.num_steps_per_epoch=3")
    code, out, err = launch("--dataset", unit_file, "--algo", "iql", "--gin", *few)
    assert code == 0, err
    assert f"the defaults for learning from recorded data: {DEFAULTS}/recorded.gin" in out
    assert "for the settings of its paper, use --config configs/algorithms/iql.gin" in out


OWN = """
import offpcc
from offpcc.algorithms.variants import RecurrentSAC

@offpcc.configurable
class Mine(RecurrentSAC):
    pass
"""


def test_an_algorithm_of_the_users_own_has_those_of_its_kind(launch, tmp_path):
    (tmp_path / "lab_of_defaults.py").write_text(OWN)
    words = ("--env", "pendulum-p-v0", "--algo", "Mine", "--import", "lab_of_defaults")
    code, out, err = launch(*words, "--gin", *FEW)
    assert code == 0, err
    assert "configs/defaults/memory.gin" in out


# Learning -----------------------------------------------------------------------------------------------------------


def last_return(launch, tmp_path, env, algo, *words, label=None):
    """The mean test return at the end of a run with the defaults alone."""
    code, _, err = launch("--env", env, "--algo", algo, "--device", "cpu", *words)
    assert code == 0, err
    return read_progress(run_folder(tmp_path, label or env.replace(":", "-"), algo) / "progress.csv")["test/return"][-1]


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize(
    ("env", "algo", "at_least"),
    [
        ("pendulum-v0", "sac", -250.0),  # random actions: about -1,200
        ("reacher-mdp-v0", "sac", -15.0),  # random actions: about -43
        ("pendulum-p-v0", "rsac", -350.0),
        ("corridor-30-v0", "rsac", 0.8),  # 0 without a memory, 1 at best
        ("pendulum-img-v0", "crsac", -500.0),
        ("image_cue:image-cue-v0", "crsac", 0.6),  # 0 without a memory, 1 at best
    ],
)
def test_the_defaults_learn(launch, tmp_path, env, algo, at_least):
    found = last_return(launch, tmp_path, env, algo)
    assert found >= at_least


@pytest.mark.slow
@pytest.mark.learning
def test_the_defaults_learn_from_stacked_images_without_memory(launch, tmp_path):
    """One image hides the velocity; three show it."""
    words = ("--gin", "make.wrappers=[@Concatenate]", "Concatenate.num=3")
    assert last_return(launch, tmp_path, "pendulum-img-v0", "csac", *words) >= -500.0


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize(
    ("env", "algo"), [("pendulum-v0", "td3_bc"), ("pendulum-v0", "iql"), ("reacher-mdp-v0", "td3_bc")]
)
def test_the_defaults_learn_from_recorded_data(launch, tmp_path, env, algo):
    """From what an agent played while it learned, to more than its mean."""
    recording = tmp_path / "played.hdf5"
    code, _, err = launch("--env", env, "--algo", "sac", "--save_dataset", recording)
    assert code == 0, err
    with h5py.File(recording) as file:
        mean = float(file["rewards"][:].sum() / (file["terminals"][:] | file["timeouts"][:]).sum())
    found = last_return(launch, tmp_path, env, algo, "--dataset", recording, label=f"{env}_from_played")
    assert found > mean
