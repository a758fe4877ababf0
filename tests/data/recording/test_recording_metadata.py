"""What a recording that is gone on with has to have in common with before, and what is only told."""

from pathlib import Path

import pytest

from offpcc.data.recording.metadata import latest, resume_settings, settings_of_recording
from offpcc.envs.make import make
from offpcc.utils.errors import UserError

FILE = Path("data.hdf5")
BEFORE = {
    "env": "pendulum-v0", "seed": 3, "deterministic": False, "actor": "a/sac/1/actor_best.pt", "actor_sha256": "12ab",
    "offpcc": "1.0", "simulator": "MuJoCo 3.1", "device": "cpu", "threads": 1, "action_low": [-2.0],
    "config": "# Parameters for make:\n# ===\nmake.kwargs = {'a': 1}\nmake.wrappers = \\\n    [@A,\n     @B]\n",
}  # fmt: skip


def test_the_same_is_gone_on_with():
    assert resume_settings(BEFORE, BEFORE, FILE) == (BEFORE, None)


@pytest.mark.parametrize(
    "name, value",
    [
        ("env", "pendulum-p-v0"),
        ("seed", 4),
        ("deterministic", True),
        ("actor_sha256", "34cd"),
        ("action_low", [-1.0]),
        ("anything", "else"),
    ],
)
def test_what_changes_what_is_played_is_refused(name, value):
    now = {**BEFORE, name: value}
    with pytest.raises(UserError, match=rf"^{name} is .*, but data.hdf5 was recorded with .*; give the same, or"):
        resume_settings(now, BEFORE, FILE)
    with pytest.raises(UserError, match=rf"^{name} is"):
        resume_settings(BEFORE, now, FILE)


def test_versions_device_and_threads_are_told_in_one_line():
    now = {**BEFORE, "offpcc": "1.1", "simulator": "MuJoCo 3.2", "device": "cuda", "threads": 2}
    settings, message = resume_settings(now, BEFORE, FILE)
    assert message.startswith("this resume may not be exact: offpcc is 1.1, but data.hdf5 was recorded with 1.0; ")
    assert message.count("was recorded with") == 4 and "\n" not in message
    assert (settings["simulator"], settings["threads"]) == ("MuJoCo 3.1, then MuJoCo 3.2", "1, then 2")
    assert resume_settings(now, settings, FILE) == (settings, None)
    again, message = resume_settings(BEFORE, settings, FILE)
    assert again["threads"] == "1, then 2, then 1" and "threads is 1, but data.hdf5 was recorded with 2" in message
    assert (latest(again["simulator"]), latest("MuJoCo 3.1"), latest(2)) == ("MuJoCo 3.1", "MuJoCo 3.1", "2")


def test_what_an_actor_is_called_does_not_matter():
    settings, message = resume_settings({**BEFORE, "actor": "copy.pt"}, BEFORE, FILE)
    assert settings["actor"] == "copy.pt" and message is None


@pytest.mark.parametrize(
    "config",
    [
        "make.kwargs = {'a': 1}\nmake.wrappers = [@A, @B]\n",
        "# Parameters for Other:\n# ===\n# None.\n\nmake.kwargs = {'a': 1}\nmake.new = None\nmake.wrappers = [@A, @B]",
    ],
)
def test_a_config_is_the_same_if_no_binding_of_both_differs(config):
    assert resume_settings({**BEFORE, "config": config}, BEFORE, FILE)[1] is None
    with pytest.raises(UserError, match=r"make.wrappers is \[@A, @C\], but data.hdf5 was recorded with .*\[@A, @B\]"):
        resume_settings({**BEFORE, "config": config.replace("@B", "@C")}, BEFORE, FILE)


def test_what_is_told_of_an_environment():
    with make("pendulum-p-v0") as env:
        told = settings_of_recording(env, {"seed": 3, "unknown": None})
    assert (told["env"], told["seed"], told["action_high"]) == ("pendulum-p-v0", 3, [2.0])
    assert told["seen_through"] == '["KeepIndices(indices=[0, 1])"]'
    assert told["observation"] == "float32 (2,)"
    assert "unknown" not in told
