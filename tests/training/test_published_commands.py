"""The commands of the pages that need D4RL's data: each one trains a moment on a small file of the same name."""

import importlib.util
import re
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest

import offpcc
from offpcc.envs.d4rl import catalog

PAGES = Path(offpcc.__file__).parents[1] / "docs" / "algorithms"
BLOCK = re.compile(r"<!-- test: skip \(needs D4RL's data\) -->\n```\n(.*?)```", re.DOTALL)
SIZES = {"hopper": (11, 3), "halfcheetah": (17, 6), "walker2d": (17, 6), "antmaze": (29, 8)}
FEW = {
    "train.num_epochs": "1",
    "train.num_steps_per_epoch": "2",
    "train.num_test_episodes_per_epoch": "1",
    "train.num_test_envs": "1",
}
IN_A_MODEL = {
    "DynamicsModel.hidden_dims": "(4,)",
    "ModelTraining.max_epochs": "1",
    "ModelTraining.updates_per_epoch": "1",
    "Imagination.steps_per_update": "8",
    "Imagination.every": "2",
}
OF_A_MODEL = ("mopo", "morel", "combo", "neubay", "pessimism")


def commands():
    """(page, words) of each command."""
    found = []
    for page in sorted(PAGES.glob("*.md")):
        for text in BLOCK.findall(page.read_text(encoding="utf-8")):
            lines = text.replace("\\\n", " ").splitlines()
            found += [(page.stem, shlex.split(line)) for line in lines]
    return found


COMMANDS = commands()


def write_stand_in(name, folder):
    """Write a file with random steps of the sizes of D4RL's data."""
    task = name.partition("-")[0]
    num, (width, actions), draw = 400, SIZES[task], np.random.default_rng(0)
    ends = np.arange(num) % 100 == 99
    with h5py.File(folder / catalog.FILES[name].rpartition("/")[2], "w") as file:
        file["observations"] = draw.normal(size=(num, width)).astype(np.float32)
        file["actions"] = draw.uniform(-1.0, 1.0, (num, actions)).astype(np.float32)
        file["rewards"] = draw.uniform(size=num).astype(np.float32)
        file["terminals"], file["timeouts"] = np.zeros(num, bool), ends


def test_the_pages_with_published_figures_have_commands():
    pages = {page for page, _ in COMMANDS}
    assert {*OF_A_MODEL, "awac", "bc", "calql", "cql", "edac", "iql", "rebrac", "sac_n", "td3_bc"} <= pages
    assert all(words[0] == "offpcc" for _, words in COMMANDS)


@pytest.mark.parametrize(("page", "words"), [pytest.param(*one, marks=pytest.mark.slow) for one in COMMANDS])
def test_a_published_command_trains_on_data_of_this_name(page, words, launch, tmp_path, monkeypatch):
    name = words[words.index("--env") + 1]
    if name.startswith("antmaze") and not importlib.util.find_spec("gymnasium_robotics"):
        pytest.skip("the task needs gymnasium-robotics")
    monkeypatch.setenv("OFFPCC_DATASETS", str(tmp_path))
    monkeypatch.setenv("OFFPCC_MODELS_DIR", str(tmp_path / "models"))
    write_stand_in(name, tmp_path)
    words, bindings = words[1:], []
    if "--gin" in words:
        words, bindings = words[: words.index("--gin")], words[words.index("--gin") + 1 :]
    first = words.index("--run_id") + 2
    while first < len(words) and words[first].isdecimal():
        del words[first]
    online = {}
    if "--then_env_steps" in words:
        words[words.index("--then_env_steps") + 1] = "20"
        online = {"OfflineToOnline.warm_up_steps": "10", "train.num_steps_per_epoch": "20"}
    given = dict(binding.split("=", 1) for binding in bindings)
    given |= {key: "3" for key in given if key.endswith(".num_critics")}  # 500 critics take a minute
    in_a_model = page in OF_A_MODEL and words[words.index("--algo") + 1] not in ("bc", "sac")
    few = {**given, **FEW, **(IN_A_MODEL if in_a_model else {}), **online}
    code, out, err = launch(*words, "--gin", *(f"{key}={value}" for key, value in few.items()))
    assert code == 0, err
    assert f"learning from {name}" in out
