"""What all tests share."""

import signal

import gin
import h5py
import numpy as np
import pytest
import torch

QUICK = (
    "train.num_steps_per_epoch=250",
    "train.update_after=150",
    "train.num_test_episodes_per_epoch=2",
    "train.updates_per_step=0.1",
)


def pytest_configure():
    """In the background of a script SIGINT is ignored, here and in what is started from here."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def merged(*bindings):
    """Of each parameter's bindings the last; the command line gives each once."""
    return [*{binding.split("=")[0]: binding for binding in bindings}.values()]


def run_folder(tmp_path, env="pendulum-p-v0", algo="sac", run_id=1):
    return tmp_path / "results" / env / algo / str(run_id)


def rows(folder):
    """The rows of progress.csv without the columns of time."""
    return [line.rsplit(",", 2)[0] for line in (folder / "progress.csv").read_text().splitlines()]


@pytest.fixture(autouse=True)
def clean_slate(monkeypatch):
    """No bindings of another test, one thread, and none of the user's settings."""
    gin.clear_config()
    torch.set_num_threads(1)
    for name in ("OFFPCC_RESULTS", "OFFPCC_WANDB_PROJECT", "OFFPCC_WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    yield
    gin.clear_config()


@pytest.fixture
def hopper(tmp_path, monkeypatch):
    """A file under D4RL's name of data that is tested in an environment."""
    pytest.importorskip("mujoco")
    monkeypatch.setenv("OFFPCC_DATASETS", str(tmp_path))
    generator = np.random.default_rng(0)
    with h5py.File(tmp_path / "hopper_expert-v2.hdf5", "w") as data:
        data["observations"], data["actions"] = generator.normal(size=(30, 11)), generator.uniform(-1, 1, (30, 3))
        data["rewards"], data["terminals"], data["timeouts"] = np.ones(30), np.zeros(30, bool), np.zeros(30, bool)
        data["terminals"][[9, 19, 29]] = True
    return "hopper-expert-v2"


@pytest.fixture(scope="session")
def pendulum_file(tmp_path_factory):
    """Six random episodes of the pendulum that sees all, as D4RL records: actions in the environment's own units."""
    import gymnasium

    import offpcc.envs  # noqa: F401 (registers it)

    env, generator = gymnasium.make("pendulum-v0"), np.random.default_rng(4)
    steps = []
    for episode in range(6):
        observation, over = env.reset(seed=episode)[0], False
        while not over:
            action = generator.uniform(-2, 2, 1).astype(np.float32)
            following, reward, terminated, over, _ = env.step(action)
            steps.append((observation, action, reward, terminated, over, following))
            observation = following
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    file = tmp_path_factory.mktemp("data") / "swings.hdf5"
    with h5py.File(file, "w") as data:
        for name, column in zip(names, zip(*steps, strict=True), strict=True):
            data[name] = np.array(column)
    return file


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    """Run the command line in this process, results below `tmp_path`; the exit code, output and errors."""
    from offpcc.cli.main import main

    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "results"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def quick(launch):
    """Train a few steps of an algorithm with configs/test/template_short.gin."""

    def run(algo, *extra, env="pendulum-p-v0", bindings=()):
        config = ("--config", "test/template_short.gin", "--gin", *merged(*QUICK, *bindings))
        return launch("--env", env, "--algo", algo, *config, *extra)

    return run


@pytest.fixture(scope="session")
def unit_file(pendulum_file, tmp_path_factory):
    """The same with actions in [-1, 1], which are learned from without an environment."""
    file = tmp_path_factory.mktemp("unit_data") / pendulum_file.name
    with h5py.File(pendulum_file) as source, h5py.File(file, "w") as target:
        for key in source:
            target[key] = source[key][:] / 2 if key == "actions" else source[key][:]
    return file
