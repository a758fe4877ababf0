"""The protocols list what the code uses of a user's classes: these classes have nothing else, and run."""

import pytest
import torch
from exact_resume import assert_same
from minimal_parts import MinimalAlgorithm, MinimalBuffer, MinimalLogger

import offpcc
from offpcc import core
from offpcc.algorithms.agent import save_actor
from offpcc.training.checkpoint import Checkpoints, read_checkpoint, resume
from offpcc.training.loggers import Logger
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import CheckpointOptions

SETTINGS = {"num_steps_per_epoch": 150, "num_test_episodes_per_epoch": 1, "update_after": 20, "num_test_envs": 1}


def members(cls):
    """Public ones, and those that Python's own functions call."""
    kept = {name for base in cls.__mro__[:-1] for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    return {name for name in kept if not name.startswith("_") or name == "__len__"}


@pytest.mark.parametrize(
    "protocol, cls, own",
    [(core.Algorithm, MinimalAlgorithm, {"layer"}), (core.Buffer, MinimalBuffer, {"batch_size", "rows"})],
)
def test_the_minimal_classes_have_the_protocols_members_and_no_other(protocol, cls, own):
    space = offpcc.make("pendulum-v0").action_space
    found = members(cls) | set(vars(cls(space, space)))
    assert {name for name in found if not name.startswith("_") or name == "__len__"} - own == members(protocol)


def test_a_logger_has_the_protocols_members():
    assert members(MinimalLogger) == members(Logger)


def trained(folder, epochs):
    torch.manual_seed(0)  # of the layer's first weights, replaced below
    learner = offpcc.build("pendulum-v0", "MinimalAlgorithm", buffer_class=MinimalBuffer, buffer={"batch_size": 5})
    if folder.checkpoint.exists():
        assert resume(read_checkpoint(folder.checkpoint), learner) == []
    folder.path.mkdir(parents=True, exist_ok=True)
    logger = MinimalLogger()
    saving = Checkpoints(folder, learner, "", epochs, intervals=CheckpointOptions(every_steps=40))
    agent = learner.train(logger, [saving], num_epochs=epochs, **SETTINGS)
    assert agent.act(torch.zeros(3).numpy()).shape == (1,)
    assert [row["epoch"] for row in logger.rows][-1] == epochs and logger.rows[-1]["update/loss"] > 0.0
    return learner


def test_they_are_built_trained_saved_and_gone_on_with(tmp_path):
    whole, parts = (RunFolder(tmp_path / name, "pendulum-v0", "MinimalAlgorithm", 1) for name in ("whole", "parts"))
    trained(whole, 3)
    for epochs in (1, 3):
        learner = trained(parts, epochs)
    assert len(learner.buffer) == 450
    assert_same(read_checkpoint(whole.checkpoint), read_checkpoint(parts.checkpoint))
    assert whole.actor_best.exists() and whole.actor_last.exists()
    save_actor(learner.algorithm, tmp_path / "actor.pt")
