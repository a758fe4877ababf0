"""Each of the paper's tasks, by its config, from the command line: a first update and a test."""

import re

import pytest
from conftest import rows, run_folder

from offpcc.config.gin_files import CONFIGS
from offpcc.envs import missing_package

PAPER = sorted((CONFIGS / "paper").glob("*.gin"))
SHORT = (
    "train.num_epochs=1",
    "train.num_steps_per_epoch=260",
    "train.num_test_episodes_per_epoch=1",
    "train.update_after=150",
    "train.updates_per_step=0.04",
)


def environment(config):
    return re.search(r"--env (\S+?)[.,]?$", config.read_text().splitlines()[0])[1]


def test_there_are_twelve_and_each_names_its_environment():
    assert len(PAPER) == 12 == len({environment(config) for config in PAPER})


@pytest.mark.slow
@pytest.mark.parametrize("config", PAPER, ids=lambda config: config.stem)
def test_rsac_trains_on_each_task_of_the_paper(config, launch, tmp_path):
    env = environment(config)
    if package := missing_package(env):
        pytest.skip(f"needs {package}")
    code, _, err = launch("--env", env, "--algo", "rsac", "--config", config, "--gin", *SHORT)
    assert code == 0, err
    header, row = (line.split(",") for line in rows(run_folder(tmp_path, env, "rsac")))
    told = dict(zip(header, row, strict=True))
    assert int(told["update"]) >= 2
    assert float(told["test/length"]) > 0 and float(told["update/critic_loss"]) >= 0
