"""The diagnosis of recorded data, as it is printed and drawn."""

import re

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from offpcc.cli import check_dataset as dataset_commands
from offpcc.cli.check_dataset import check_dataset
from offpcc.data import Dataset, offline
from offpcc.data.datasets.columns import SpoiledData
from offpcc.envs.make import make
from offpcc.training.loggers.console import download_bar
from offpcc.utils.errors import UserError


def recorded(num_episodes=20, size=3, seed=0):
    """Noise about a point that turns, and a last column that stands still twice."""
    random = np.random.default_rng(seed)
    t = np.arange(40 * num_episodes)
    angle = 0.03 * t + random.uniform(0, 7, num_episodes).repeat(40)
    columns = [np.cos(angle + place) for place in range(size)]
    return {
        "observations": np.stack([*columns, 0 * t, 0 * t], 1).astype(np.float32),
        "actions": random.uniform(-1, 1, (len(t), 1)).astype(np.float32),
        "rewards": np.cos(angle).astype(np.float32),
        "terminals": np.zeros(len(t), bool),
        "timeouts": t % 40 == 39,
    }


def written(folder, name="mine.hdf5", **columns):
    with h5py.File(folder / name, "w") as file:
        for key, column in columns.items():
            file[key] = column
    return folder / name


@pytest.fixture
def check(capsys, monkeypatch, tmp_path):
    """Run the command; the exit code and the lines that it printed."""
    monkeypatch.chdir(tmp_path)

    def run(dataset, **options):
        given = {"env": None, "output": None, "config": None, "dataset_fraction": 1.0, **options}
        capsys.readouterr()
        code = check_dataset(str(dataset), **given)
        return code, capsys.readouterr().out.splitlines()

    return run


def test_findings_a_table_and_a_verdict_are_printed(check, tmp_path):
    code, lines = check(written(tmp_path, **recorded()))
    assert code == 0
    assert lines[0].startswith(f"ok       source     {tmp_path / 'mine.hdf5'}")
    warned = next(number for number, line in enumerate(lines) if line.startswith("warning  observed   2 of 5 columns"))
    assert lines[warned + 1].startswith(f"{'':20}-> remove them from the data, or with DropIndices")
    assert lines[-1] == "mine: no fault, 1 warning; --output FILE.png draws returns and lengths"
    table = lines[next(number for number, line in enumerate(lines) if line.split()[:1] == ["min"]) : -1]
    assert table[0].split() == ["min", "25%", "median", "75%", "max", "mean", "std"]
    names = [re.split(r"\s{2,}", line.strip())[0] for line in table[1:]]
    assert names == [
        *("episode length", "episode return", "reward", "observation 0", "observation 1", "observation 2"),
        *("observation 3 to 4", "action 0"),
    ]
    data = Dataset.from_arrays(**recorded())
    assert f"{data.returns.max():.4g}" in table[2].split()


def test_a_table_is_not_cut_where_it_is_read_by_a_program(check, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, lines = check(written(tmp_path, **recorded()))
    assert all(len(line.split()) >= 8 for line in lines if line.strip().startswith(("observation ", "reward  ")))


def spoiled(name, place, value):
    given = recorded()
    given[name] = given[name].astype(np.float32)
    given[name][place] = value
    return given


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (spoiled("rewards", 3, np.nan), "rewards[3] is nan"),
        (spoiled("observations", (5, 1), np.inf), "observations[5, 1] is inf"),
        (spoiled("terminals", 7, 2), "terminations[7] is 2"),
        ({**recorded(), "timeouts": np.ones(800, bool)}, "every episode is cut after one step"),
    ],
)
def test_a_fault_of_readable_data_that_ends_the_examination_is_a_finding(check, tmp_path, columns, words):
    file = written(tmp_path, **columns)
    code, lines = check(file)
    assert (code, len(lines)) == (1, 2)
    assert lines[0].startswith(f"FAULT    reading    {file}: {words}")
    assert lines[1] == f"{file}: 1 fault; fix it before training on it"


def test_it_is_one_of_data_by_its_name_too(check, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFPCC_DATASETS", str(tmp_path))
    written(tmp_path, **spoiled("rewards", 3, np.nan))
    code, lines = check("mine")
    assert (code, lines[-1]) == (1, "mine: 1 fault; fix it before training on it")
    assert lines[0].startswith("FAULT    reading    mine: rewards[3] is nan")


def truncated(file):
    file.write_bytes(file.read_bytes()[:5_000])


def emptied(file):
    file.write_bytes(b"")


def keyless(file):
    with h5py.File(file, "r+") as data:
        del data["rewards"]


def grouped(file):
    with h5py.File(file, "w") as data:
        for number in range(3):
            data[f"episode_{number}/actions"] = [[0.0]] * 20


def uneven(file):
    with h5py.File(file, "r+") as data:
        del data["rewards"]
        data["rewards"] = np.zeros(799)


def wordy(file):
    with h5py.File(file, "r+") as data:
        del data["rewards"]
        data["rewards"] = [b"much"] * 800


def saved_by_pytorch(file):
    torch.save({"weights": torch.zeros(2)}, file)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (saved_by_pytorch, "is a file of PyTorch, such as an actor or a model; give recorded data"),
        (truncated, "is damaged or incomplete"),
        (emptied, "is empty"),
        (keyless, "rewards missing; found: actions, observations, terminals, timeouts; rename them, or in Python"),
        (
            grouped,
            "found: episode_0, episode_1, episode_2; rename them; if each episode has a group or a file of its own",
        ),
        (uneven, "799 rewards, but 800 observations"),
        (wordy, "rewards holds object, not numbers"),
    ],
)
def test_data_that_cannot_be_read_is_bad_input(launch, tmp_path, spoil, words):
    file = written(tmp_path, **recorded())
    spoil(file)
    code, out, err = launch("check", "--dataset", "mine.hdf5")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("offpcc: mine.hdf5") and words in err


@pytest.mark.parametrize("name", ["none.hdf5", "unheard-of"])
def test_data_that_is_not_there_is_not_diagnosed(check, name, monkeypatch, tmp_path):
    monkeypatch.setenv("OFFPCC_DATASETS", str(tmp_path))
    with pytest.raises(UserError, match="there is no"):
        check(name)


def test_minari_data_that_is_not_there_is_not_diagnosed(check, monkeypatch, tmp_path):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(UserError, match="minari:none/of-it-v0"):
        check("minari:none/of-it-v0")


def test_minari_data_that_is_spoiled_is_a_fault(check, monkeypatch):
    def refuse(*arguments, **options):
        raise SpoiledData("minari:mine/of-it-v0: rewards[0] is nan")

    monkeypatch.setattr(offline, "load_dataset", refuse)
    code, lines = check("minari:mine/of-it-v0")
    assert (code, lines[0]) == (1, "FAULT    reading    minari:mine/of-it-v0: rewards[0] is nan")


def test_a_fault_is_the_exit_code(check, tmp_path):
    given = recorded()
    code, lines = check(written(tmp_path, **{**given, "actions": 50.0 * given["actions"]}))
    assert code == 1
    assert lines[-1].startswith("mine: 1 fault, 1 warning; fix it before training on it; --output")


def test_a_part_is_examined(check, tmp_path):
    file = written(tmp_path, **recorded())
    _, lines = check(file, dataset_fraction=0.5)
    assert any("size" in line and "400 steps in 10 episodes" in line for line in lines)
    with pytest.raises(UserError, match="a fraction of 2"):
        check(file, dataset_fraction=2.0)


# With an environment --------------------------------------------------------------------------------------------


def pendulum(**changed):
    given = recorded()
    return {**given, "observations": given["observations"][:, :3], "actions": 2 * given["actions"], **changed}


def test_an_environment_gives_sizes_and_the_bounds_of_actions(check, tmp_path):
    file = written(tmp_path, **pendulum())
    _, lines = check(file)
    assert any("outside [-1, 1]" in line for line in lines)
    code, lines = check(file, env="pendulum-p-v0")
    assert code == 0
    assert not any("outside [-1, 1]" in line for line in lines)
    assert any(
        re.match(r"ok +actions +actions are taken to be in the environment's units, \[-2, 2\]", x) for x in lines
    )
    seen = "ok       env        the agent in pendulum-p-v0 sees float32 of shape (2,), where float32 of shape (3,) was"
    assert any(line.startswith(seen) for line in lines)
    code, lines = check(written(tmp_path, "wide.hdf5", **recorded()), env="pendulum-p-v0")
    assert code == 1
    assert any(line.startswith("FAULT    env        the data holds observations of 5 numbers") for line in lines)


def test_what_a_file_tells_of_its_actions_wins(check, tmp_path):
    bounds = {"metadata/action_low": np.array([-8.0]), "metadata/action_high": np.array([8.0])}
    file = written(tmp_path, **pendulum(), **bounds)
    with h5py.File(file, "r+") as data:
        data["actions"][3] = 7.999
    _, lines = check(file, env="pendulum-p-v0")
    assert any(
        re.match(r"ok +actions +1 number, from -1\.99\d* to 7\.999, 0\.1% of them at a bound", line) for line in lines
    )
    assert not any("the environment's units" in line for line in lines)


def test_data_is_read_as_training_reads_it(check, tmp_path, monkeypatch):
    file, options = written(tmp_path, **pendulum()), []

    def load(source, *, progress, memory_limit, **given):  # the limit tells where images are, not how they are read
        options.append((source, repr(given)))
        return Dataset.from_arrays(**pendulum(actions=recorded()["actions"]))

    monkeypatch.setattr(offline, "load_dataset", load)
    (tmp_path / "data.gin").write_text("dataset.action_range = (-3.0, 3.0)\ndataset.max_episode_steps = 40\n")
    check(file, env="pendulum-p-v0", config="data.gin")
    offline.read(str(file), make("pendulum-p-v0"), offline.DatasetOptions.from_gin())
    assert len(options) == 2 and options[0] == options[1]
    assert "(-3.0, 3.0)" in options[0][1]


def test_an_environment_that_there_is_not_is_refused(check, tmp_path):
    with pytest.raises(UserError, match="there is no such environment"):
        check(written(tmp_path, **pendulum()), env="pendulun-p-v0")


def test_a_config_tells_bounds_and_wrappers(check, tmp_path):
    file = written(tmp_path, **{key: value for key, value in pendulum().items() if key != "timeouts"})
    (tmp_path / "data.gin").write_text(
        "dataset.action_range = (-2.0, 2.0)\ndataset.max_episode_steps = 40\nSAC.lr = 1e-3\n"
    )
    _, lines = check(file, config="data.gin")
    assert not any("outside [-1, 1]" in line for line in lines)
    assert any(line.startswith("note     ends       there are no truncations") for line in lines)
    assert any("20 episodes" in line for line in lines)
    (tmp_path / "view.gin").write_text("make.wrappers = [@KeepIndices]\nKeepIndices.indices = (0, 1)\n")
    _, lines = check(written(tmp_path, "seen.hdf5", **pendulum(observations=recorded(size=0)["observations"])),
                        env="Pendulum-v1", config="view.gin")  # fmt: skip
    assert any("the agent in Pendulum-v1 sees float32 of shape (2,)" in line for line in lines)


def test_the_bindings_that_a_fault_names_may_be_given_to_the_check(check, launch, tmp_path):
    file = written(tmp_path, **pendulum())
    assert check(file)[0] == 1
    assert check(file, gin=["dataset.action_range=(-2, 2)"])[0] == 0
    with pytest.raises(UserError, match=r"--gin: SAC\.lr has no effect"):
        check(file, gin=["SAC.lr=1"])
    assert launch("check", "--dataset", file, "--gin", "dataset.action_range=(-2, 2)")[0] == 0


# The picture ----------------------------------------------------------------------------------------------------


def test_a_picture_is_drawn_on_request_alone(check, tmp_path):
    file = written(tmp_path, **recorded())
    check(file)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.hdf5"]
    code, lines = check(file, output=tmp_path / "new" / "mine.png")
    assert (code, lines[-1]) == (0, f"mine: no fault, 1 warning; {tmp_path / 'new' / 'mine.png'}")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine.png"]
    with Image.open(tmp_path / "new" / "mine.png") as picture:
        assert picture.size == (1440, 510)


def test_a_picture_shows_returns_and_lengths(tmp_path):
    data = Dataset.from_arrays(**recorded())
    returns, lengths = dataset_commands._histograms(data).axes
    for axes, values in ((returns, data.returns), (lengths, data.lengths)):
        counts = [bar.get_height() for bar in axes.patches]
        assert sum(counts) == 20
        edges = [bar.get_x() for bar in axes.patches]
        assert edges[0] <= values.min() <= values.max() <= edges[-1] + axes.patches[-1].get_width()
    assert all(tick == round(tick) for tick in lengths.get_xticks())
    assert ("return" in returns.get_xlabel(), "length" in lengths.get_xlabel()) == (True, True)


def test_the_same_data_gives_the_same_picture(check, tmp_path):
    for name in ("one.svg", "other.svg"):
        check(written(tmp_path, **recorded()), output=tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


@pytest.mark.parametrize("name", ["picture.docx", "mine.hdf5/picture.png"])
def test_a_picture_that_cannot_be_written_is_refused(check, tmp_path, name):
    file = written(tmp_path, **recorded())
    before = file.read_bytes()
    with pytest.raises(UserError, match=r"--output .* cannot be written"):
        check(file, output=tmp_path / name)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine.hdf5"]


def test_nothing_is_drawn_of_data_that_is_spoiled(check, tmp_path):
    code, lines = check(written(tmp_path, **spoiled("rewards", 3, np.nan)), output=tmp_path / "mine.png")
    assert (code, "mine.png" in lines[-1], (tmp_path / "mine.png").exists()) == (1, False, False)


# Downloads ------------------------------------------------------------------------------------------------------


def test_a_download_is_shown_in_a_terminal_and_nowhere_else(capsys):
    for is_terminal in (True, False):
        with download_bar(Console(force_terminal=is_terminal, width=80)) as bar:
            bar(50, 100)
        assert ("downloading" in capsys.readouterr().out) == is_terminal


def test_nothing_is_shown_where_nothing_is_downloaded(capsys):
    with download_bar(Console(force_terminal=True, width=80)):
        pass
    assert "downloading" not in capsys.readouterr().out


def test_it_ends_with_a_recommendation_before_the_table(check, tmp_path):
    """One observation shows all of a point on a circle; its actions are random."""
    _, lines = check(written(tmp_path, **recorded(num_episodes=40)))
    advised = next(
        number for number, line in enumerate(lines) if line.startswith("ok       advice     start with cql: ")
    )
    assert "also train bc, and compare their tests" in lines[advised + 1]
    assert "`offpcc params cql`" in lines[advised + 1] and lines[advised + 2].split()[:1] == ["min"]


@pytest.mark.parametrize(
    ("env", "algo", "code", "words"),
    [
        (
            "cartpole-v0",
            "rsac",
            1,
            "FAULT algorithm .* Discrete.* but RecurrentSAC is for continuous actions; choose rdsac",
        ),
        ("cartpole-v0", "dsac", 0, "ok algorithm dsac is for actions such as those of cartpole-v0"),
        ("pendulum-v0", "dqn", 1, "FAULT algorithm .* DQN is for discrete actions; choose sac"),
        ("pendulum-v0", "dqm", 2, "there is no algorithm 'dqm'"),
    ],
)
def test_an_algorithm_for_other_actions_is_named(env, algo, code, words, launch, tmp_path):
    given = ("--env", env, "--algo", algo)
    found, out, err = launch("check", *given, "--steps", 300)
    assert found == code and re.search(words, " ".join((out + err).split())), (out, err)
    assert launch("collect", "--env", env, "--actor", "random", "--steps", 60, "--out", tmp_path / "d.hdf5")[0] == 0
    found, out, err = launch("check", "--dataset", tmp_path / "d.hdf5", "--algo", algo)
    assert ("FAULT algorithm" in " ".join(out.split())) == (code == 1) and (found == 2) == (code == 2), (out, err)


@pytest.mark.parametrize(
    ("algo", "more", "code", "words"),
    [
        ("rsac", [], 1, "FAULT algorithm observations have entries that are images .* choose crsac"),
        ("rsac", ["--gin", "Recurrent.feature_extractor = @Convolutional"], 0, "ok algorithm rsac is for"),
        ("crsac", [], 0, "ok algorithm crsac is for"),
    ],
)
def test_an_algorithm_that_does_not_read_the_images_is_named(algo, more, code, words, launch, tmp_path):
    module = "tests.helpers.dict_task"
    given = ("--import", module, "--env", "DictTarget-v0")
    found, out, err = launch("check", *given, "--algo", algo, *more, "--steps", 100)
    assert found == code and re.search(words, " ".join(out.split())), (out, err)
    words_of_collect = ("--actor", "random", "--steps", 60, "--out", tmp_path / "d.hdf5")
    assert launch("collect", *given, *words_of_collect)[0] == 0
    for place in ((), given):
        found, out, err = launch("check", "--dataset", tmp_path / "d.hdf5", *place, "--algo", algo, *more)
        assert re.search(words, " ".join(out.split())), (out, err)
