"""Exported actors: their actions are the agent's, in ONNX Runtime, in NumPy, in C++ and by torch.export."""

import builtins
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import offpcc
from offpcc.algorithms import ALGORITHMS
from offpcc.cli.main import main
from offpcc.networks.cells import CELLS
from offpcc.training import export as export_module
from offpcc.utils.errors import UserError

onnx = pytest.importorskip("onnx", reason="the extra export is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra export is not installed")
pytest.importorskip("onnxscript", reason="the extra export is not installed")

ROOT = Path(__file__).parents[2]
SMALL = ("Recurrent.hidden_dim=8", "Recurrent.num_layers=2", "ActorCritic.hidden_dims=(8,)", "GPT.context_length=6")
EXTRAS = tuple(f"Recurrent.use_previous_{name}=True" for name in ("action", "reward"))


class Wide(gymnasium.Env):
    """Actions of two axes with unequal bounds; observations of two axes."""

    observation_space = spaces.Box(-3.0, 3.0, (3,), np.float32)
    action_space = spaces.Box(np.array([-2.0, 0.0]), np.array([5.0, 0.5]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.ones(3, np.float32), 0.0, False, False, {}


class Mixed(Wide):
    """A Dict of everything that a Dict may hold."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (16, 18, 3), np.uint8),
            "arm": spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (2,), np.float64), "gear": spaces.Discrete(3, start=1)}),
            "keys": spaces.MultiDiscrete([2, 4]),
            "lamps": spaces.MultiBinary(3),
            "height": spaces.Box(-1.0, 1.0, (), np.float32),
        }
    )


class Pictures(Wide):
    """Images with channels last."""

    observation_space = spaces.Box(0, 255, (20, 16, 3), np.uint8)


def needs_a_model(algorithm):
    """True for those that are built of recorded data alone; they act as SAC does."""
    return getattr(algorithm, "imagination", None) is not None and not algorithm.trains_model


def agent_of(env, algorithm, *bindings):
    """An untrained agent whose normalisation is not the identity."""
    if ALGORITHMS[algorithm].is_discrete:
        env = type("Choosing", (env,), {"action_space": spaces.Discrete(3, start=1)})
    offpcc.configure(None, *SMALL, *bindings)
    agent = offpcc.Agent(offpcc.build(env, algorithm, seed=0).algorithm)
    if (normalization := agent.algorithm.normalization) is not None:
        normalization.mean += 0.3
        normalization.variance *= 4.0
    return agent


@pytest.fixture
def unwritten(monkeypatch):
    """Put the step itself in place of a program, which takes seconds: for tests of contracts and files alone."""

    def write(step):
        @torch.no_grad()
        def run(arrays):
            return [x.numpy() for x in step(*map(torch.from_numpy, arrays))]

        return b"a program", run

    monkeypatch.setitem(export_module.WRITERS, ".pt2", write)


def play(session, contract, agent, observations, rewards):
    """The largest difference of actions over an episode; each side feeds its own state back."""
    shapes = {port["name"]: (port["shape"][1:], port["dtype"]) for port in contract["inputs"]}
    names = [part["input"] for part in contract["state"]]
    state = {name: np.zeros((1, *shapes[name][0]), shapes[name][1]) for name in names}
    agent.reset()
    worst, reward = 0.0, 0.0
    for observation, after in zip(observations, rewards, strict=True):
        given = {"observation": observation[None], **state}
        if "previous_reward" in shapes:
            given["previous_reward"] = np.full((1, 1), reward, np.float32)
        action, *following = session.run(None, given)
        state = dict(zip(state, following, strict=True))
        expected = agent.act(observation, reward)
        assert action[0].shape == expected.shape
        assert action.dtype == expected.dtype
        worst, reward = max(worst, float(np.abs(action[0] - expected).max())), float(after)
    return worst


def test_a_program_of_pytorch(tmp_path):
    agent = agent_of("pendulum-p-v0", "rsac", "Recurrent.cell='lru'", *EXTRAS)
    done = offpcc.export(agent, tmp_path / "actor.pt2")
    zeros = [torch.zeros(5, *port["shape"][1:]) for port in done.contract["inputs"]]
    action, *after = torch.export.load(done.file).module()(*zeros)
    agent.reset(num_envs=5)
    np.testing.assert_allclose(action.numpy(), agent.act(np.zeros((5, 2), np.float32)), atol=1e-5)
    assert [tuple(x.shape) for x in after] == [(5, 1), (5, 2, 8)]
    assert not any(x.requires_grad for x in (action, *after))  # else the memory of a loop would grow


@pytest.mark.slow
def test_an_episode_in_onnxruntime(tmp_path):
    agent = agent_of("pendulum-p-v0", "rsac", *EXTRAS, "ActorCritic.normalize_observations=True")
    done = offpcc.export(agent, tmp_path / "actor.onnx", env=offpcc.make("pendulum-p-v0"))
    contract = json.loads((tmp_path / "actor.json").read_text())
    assert contract == done.contract
    names = ["observation", "previous_reward", "previous_action", "memory_0", "memory_1"]
    assert [port["name"] for port in contract["inputs"]] == names
    assert [port["name"] for port in contract["outputs"]] == ["action", *(f"next_{name}" for name in names[2:])]
    assert contract["control_rate_hz"] == 20.0
    assert contract["wrappers"] == ["KeepIndices(indices=[0, 1])"]
    assert (contract["action"]["low"], contract["action"]["high"]) == ([-2.0], [2.0])
    assert "offpcc" in {entry.key for entry in onnx.load(done.file).metadata_props}
    draw = np.random.default_rng(1)
    observations = draw.normal(size=(40, 2)).astype(np.float32)
    session = onnxruntime.InferenceSession(done.file)
    assert {port.shape[0] for port in (*session.get_inputs(), *session.get_outputs())} == {"batch"}
    assert play(session, contract, agent, observations, draw.normal(size=40)) < 1e-5
    swapped = {**contract, "state": [contract["state"][0], contract["state"][2], contract["state"][1]]}
    assert play(session, swapped, agent, observations, draw.normal(size=40)) > 1e-3  # so the comparison sees the state


@pytest.mark.parametrize("file", ["actor.onnx", "actor.pt2"])
def test_random_actions_of_tests_and_signs_of_rewards(tmp_path, file):
    """As in Atari's configs: tests draw a few actions, and the agent reads the signs of rewards."""
    inputs = ["Recurrent.use_previous_reward=True", "ActorCritic.clip_rewards=True", "ValueBased.test_epsilon=0.5"]
    agent = agent_of(Wide, "rdqn", *inputs, "Recurrent.use_previous_action=True")
    done = offpcc.export(agent, tmp_path / file)
    assert done.difference < 1e-5
    assert done.contract["inside"] == ["number of the action", "signs of rewards"]
    meanings = {port["name"]: port["meaning"] for port in done.contract["inputs"]}
    assert meanings["previous_action"].startswith("last action, one-hot;")


@pytest.mark.parametrize("file", ["actor.onnx", "actor.pt2"])
def test_a_file_names_no_folder_of_this_machine(tmp_path, file):
    if file.endswith(".onnx") and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("PyTorch before 2.13 writes LSTMs wrongly")
    offpcc.export(agent_of(Wide, "rsac"), tmp_path / file)
    content = (tmp_path / file).read_bytes()
    assert str(Path(offpcc.__file__).parent).encode() not in content
    assert str(Path(torch.__file__).parent).encode() not in content


def test_a_file_that_onnxruntime_cannot_read_is_refused(tmp_path, monkeypatch):
    """Before 2.13, PyTorch writes LSTMs wrongly."""

    def fail(*_, **__):
        raise RuntimeError("Invalid attribute perm")

    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    expected = rf"cannot read the file that PyTorch {re.escape(torch.__version__)} wrote \(Invalid attribute perm\)"
    with pytest.raises(UserError, match=rf"{expected}; install PyTorch 2.13 or newer, or name a file NAME.pt2"):
        offpcc.export(agent_of(Wide, "bc"), tmp_path / "actor.onnx")
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("unwritten")
def test_the_contract_tells_units_and_origin(tmp_path):
    agent = agent_of(Wide, "bc")
    run = {"env": "Wide-v0", "algo": "bc", "run_id": 3, "seed": 3, "git_commit": "0123", "command": ["offpcc"]}
    agent.save(tmp_path / "actor_best.pt")
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "config.gin").write_text("BC.lr = 0.1\n")
    units = {"observation": ["rad", "rad/s", "V"], "action": ["N", "m"]}
    contract = offpcc.export(tmp_path, tmp_path / "out/actor.pt2", units=units).contract
    assert contract["units"] == units
    assert contract["config_sha256"] == hashlib.sha256(b"BC.lr = 0.1\n").hexdigest()
    assert contract["run"] == {key: value for key, value in run.items() if key != "command"}
    assert json.loads((tmp_path / "out/actor.pt2.json").read_text()) == contract
    (tmp_path / "run.json").write_text(json.dumps({"env": ["odd"], "algo": 5, "seed": 4}))
    (tmp_path / "config.gin").unlink()
    contract = offpcc.export(tmp_path / "actor_best.pt", tmp_path / "out/actor.pt2").contract
    assert contract["run"] == {"seed": 4} and not {"units", "config_sha256"} & {*contract}


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (
            {"observations": ["m"] * 3},
            r"name 'observations', which this actor does not have; it has observation, action",
        ),
        ({"observation": ["m"] * 2}, r"units of observation are \['m', 'm'\]; it has to be a list of 3 texts"),
        ({"action": "Nm"}, r"units of action are 'Nm'; it has to be a list of 2 texts"),
        ({"action": [1, 2]}, "units of action are"),
        (["m"], r"units are \['m'\]; map the names observation, action to lists of texts"),
    ],
)
def test_units_that_do_not_fit(tmp_path, units, message):
    with pytest.raises(UserError, match=message):
        offpcc.export(agent_of(Wide, "bc"), tmp_path / "actor.pt2", units=units)
    assert not list(tmp_path.iterdir())


def test_an_image_and_a_choice_have_one_unit(tmp_path):
    step = export_module.ActorStep(agent_of(Pictures, "cdbc"))
    units = {"observation": ["0 to 255"], "action": ["gear"]}
    assert export_module._checked_units(units, step) == units


@pytest.mark.usefixtures("unwritten")
def test_the_command_reads_units(tmp_path, capfd):
    agent_of(Wide, "bc").save(tmp_path / "actor.pt")
    units, command = tmp_path / "units.json", ["export", str(tmp_path / "actor.pt"), "--out", str(tmp_path / "a.pt2")]
    units.write_text('{"action": ["N", "m"]}')
    assert main([*command, "--units", str(units)]) == 0
    contract = json.loads((tmp_path / "a.pt2.json").read_text())
    assert contract["units"] == {"action": ["N", "m"]} and "run" not in contract
    for text in ("{", None):
        units.unlink() if text is None else units.write_text(text)
        assert main([*command, "--units", str(units)]) == 2
        assert "units.json cannot be read" in capfd.readouterr().err


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize(
    ("algorithm", "told"), [("bc", "actions in [-1, 1] differ by at most "), ("dbc", "actions differ by at most 0\n")]
)
def test_the_command_says_what_actions_differ(tmp_path, capfd, algorithm, told):
    agent_of(Wide, algorithm).save(tmp_path / "actor.pt")
    assert main(["export", str(tmp_path / "actor.pt"), "--out", str(tmp_path / "a.pt2")]) == 0
    assert told in capfd.readouterr().out


@pytest.mark.parametrize(("beside", "steps", "is_written"), [(5e-5, 1, True), (5e-5, 5, False), (2e-4, 1, False)])
def test_single_steps_may_differ_by_rounding(beside, steps, is_written):
    agent = agent_of("pendulum-p-v0", "sac")
    step, calls = export_module.ActorStep(agent), itertools.count()

    @torch.no_grad()
    def run(arrays):
        action, *after = (x.numpy() for x in step(*map(torch.as_tensor, arrays)))
        return [action + agent._scale.radius * beside * (next(calls) < steps), *after]

    if is_written:
        assert export_module._compare(step, agent, run) == pytest.approx(beside, abs=1e-5)
    else:
        with pytest.raises(UserError, match="nothing was written"):
            export_module._compare(step, agent, run)


@pytest.mark.usefixtures("unwritten")
def test_another_actor_is_not_written(tmp_path, monkeypatch):
    agent = agent_of("pendulum-p-v0", "sac")
    stretch = export_module.ActorStep.forward
    monkeypatch.setattr(export_module.ActorStep, "forward", lambda *given: tuple(x + 1e-4 for x in stretch(*given)))
    with pytest.raises(UserError, match=r"differ from the agent's by up to .* nothing was written"):
        offpcc.export(agent, tmp_path / "actor.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("source", "file", "message"),
    [
        ("agent", "actor.txt", "does not end in .onnx or .pt2"),
        ("agent", None, "export got no file; give one, such as actor.onnx"),
        ("missing.pt", None, "missing.pt"),
        (".", None, "there is no saved actor"),
    ],
)
def test_wrong_sources_and_files(tmp_path, monkeypatch, source, file, message):
    monkeypatch.chdir(tmp_path)
    source = agent_of("pendulum-p-v0", "sac") if source == "agent" else source
    with pytest.raises(UserError, match=message):
        offpcc.export(source, file)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("unwritten")
def test_other_files_beside_it_are_kept(tmp_path):
    agent = agent_of("pendulum-p-v0", "sac")
    (tmp_path / "run.json").write_text(told := '{"env": "pendulum-p-v0"}')
    with pytest.raises(UserError, match=r"run\.json exists already and is not the contract of an export; give another"):
        offpcc.export(agent, tmp_path / "run.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"] and (tmp_path / "run.json").read_text() == told
    for _ in range(2):  # a contract is replaced
        offpcc.export(agent, tmp_path / "actor.pt2")


@pytest.mark.usefixtures("unwritten")
def test_each_file_has_a_contract_of_its_own(tmp_path):
    agent = agent_of("pendulum-p-v0", "sac")
    (tmp_path / "actor.json").write_text(json.dumps({"sha256": "", "inputs": [], "outputs": [], "file": "actor.onnx"}))
    before = (tmp_path / "actor.json").read_bytes()
    for _ in range(2):
        done = offpcc.export(agent, tmp_path / "actor.pt2")
    assert (tmp_path / "actor.json").read_bytes() == before
    assert json.loads((tmp_path / "actor.pt2.json").read_text())["file"] == "actor.pt2" == done.file.name


@pytest.mark.usefixtures("unwritten")
def test_the_control_rate_is_that_of_the_agents_actions(tmp_path):
    """A wrapper that repeats actions makes it lower than the simulator's."""
    agent = agent_of("pendulum-v0", "sac")
    env = offpcc.make("pendulum-v0")
    rates = [
        offpcc.export(agent, tmp_path / "actor.pt2", env=one).contract["control_rate_hz"]
        for one in (env, gymnasium.wrappers.MaxAndSkipObservation(env, 4))
    ]
    assert rates == [pytest.approx(20.0), pytest.approx(5.0)]


def test_without_the_extra(tmp_path, monkeypatch):
    original = builtins.__import__

    def missing(name, *rest):
        if name == "onnxscript":
            raise ModuleNotFoundError("No module named 'onnxscript'", name="onnxscript")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"needs onnxscript, which is not installed: `pip install onnx"):
        offpcc.export(agent_of("pendulum-p-v0", "sac"), tmp_path / "actor.onnx")


def test_networks_that_depend_on_values(tmp_path):
    agent = agent_of("pendulum-p-v0", "sac")

    class Odd(torch.nn.ReLU):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    agent.algorithm.actor.net[1] = Odd()
    step = export_module.ActorStep(agent)
    with pytest.raises(UserError, match=r"the actor cannot be exported .* must not depend on values"):
        export_module._program(step)


@pytest.mark.slow
@pytest.mark.parametrize(
    "env, extras, cell",
    [*((Wide, (), cell) for cell in sorted(CELLS)), *((Pictures, EXTRAS, cell) for cell in ("gpt", "lstm"))],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_memory(tmp_path, cell, env, extras):
    agent = agent_of(env, "rsac" if env is Wide else "crsac", *extras, f"Recurrent.cell='{cell}'")
    for suffix in ("onnx", "pt2") if env is Wide and cell in ("gpt", "lru", "lstm") else ("onnx",):
        done = offpcc.export(agent, tmp_path / f"actor.{suffix}")
        names = [port["name"] for port in done.contract["inputs"]]
        assert names[:3] == ["observation", "previous_reward", "previous_action"] if extras else "memory" in names[1]


@pytest.mark.slow
@pytest.mark.learning  # minutes
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("algorithm", sorted(name for name in ALGORITHMS if not needs_a_model(ALGORITHMS[name])))
def test_every_algorithm(tmp_path, algorithm):
    images = algorithm.startswith("c") and algorithm not in ("cql", "crr", "calql", "combo")
    agent = agent_of(Pictures if images else Wide, algorithm, "BCQ.vae_hidden_dims=(8, 8)")
    done = offpcc.export(agent, tmp_path / "actor.pt2")
    is_sure = agent.algorithm.acts_by_actor and not agent.algorithm.is_discrete
    assert done.difference < (1e-5 if is_sure else 0.5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_actor_that_reads_many_candidates_per_row(tmp_path):
    """BCQ's critics get 100 rows per observation, from which on they compute by kernels of their own elsewhere."""
    done = offpcc.export(agent_of(Wide, "bcq", "BCQ.vae_hidden_dims=(8, 8)"), tmp_path / "actor.pt2")
    assert done.difference < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["csac", "crsac"])
def test_dict_observations(tmp_path, algorithm):
    done = offpcc.export(agent_of(Mixed, algorithm), tmp_path / "actor.onnx")
    dtypes = {port["name"]: port["dtype"] for port in done.contract["inputs"] if "memory" not in port["name"]}
    assert dtypes == {
        "observation.arm.gear": "int64",
        "observation.arm.speed": "float32",
        "observation.camera": "uint8",
        "observation.height": "float32",
        "observation.keys": "int64",
        "observation.lamps": "float32",
    }


class Told(Mixed):
    """The same, and a state for critics."""

    observation_space = spaces.Dict({"height": Mixed.observation_space["height"], "gear": spaces.Discrete(3), "truth":
                                     spaces.Box(-1.0, 1.0, (2,), np.float32)})  # fmt: skip


@pytest.mark.usefixtures("unwritten")
def test_the_contract_has_no_state_for_critics(tmp_path):
    agent = agent_of(Told, "sac", 'make.state = "truth"')
    contract = offpcc.export(agent, tmp_path / "actor.pt2", env=offpcc.make(Told, state="truth")).contract
    assert "truth" not in json.dumps(contract)
    assert "gear" in contract["observation_space"] and "one-hot vectors of choices" in contract["inside"]


@pytest.mark.parametrize(
    ("algorithm", "env", "words"),
    [
        (
            "sac",
            "pendulum-v0",
            r"observations of shape \(3,\) and 1 .* trained with observations of shape \(2,\) and 1 .* with env=$",
        ),
        (
            "sac",
            "cartpole-p-v0",
            r"and 2 discrete actions, but the actor .* and 1 action dimensions; name the environment",
        ),
        ("sac", Mixed, r"observations .* and 2 action dimensions"),
    ],
)
def test_an_environment_that_is_not_the_agents_is_refused(algorithm, env, words, tmp_path):
    agent = agent_of("pendulum-p-v0", algorithm)
    with pytest.raises(UserError, match=words):
        offpcc.export(agent, tmp_path / "actor.pt2", env=offpcc.make(env))
    with pytest.raises(UserError, match=r"export.env is 'pendulum-p-v0'; give an environment, such as offpcc.make"):
        offpcc.export(agent, tmp_path / "actor.pt2", env="pendulum-p-v0")
    assert not list(tmp_path.iterdir())


def test_a_refused_space_without_a_shape_is_named(tmp_path):
    """It is of Gymnasium's environment, which `offpcc.make` did not wrap."""
    agent, env = agent_of("pendulum-p-v0", "sac"), gymnasium.make("Blackjack-v1")
    with pytest.raises(UserError, match=r"has observations Tuple\(Discrete\(32\), .*\) and 2 discrete actions, but"):
        offpcc.export(agent, tmp_path / "actor.pt2", env=env)


@pytest.mark.slow
def test_the_numpy_example_reads_previous_rewards_and_entries(tmp_path):
    agent = agent_of(Told, "rsac", *EXTRAS)
    offpcc.export(agent, tmp_path / "actor.onnx")
    lines = ["0.5 2 0.1 -0.3 0", "-0.5 0 0.4 0.2 1.5"]
    command = [sys.executable, ROOT / "examples" / "act_in_numpy.py", tmp_path / "actor.onnx"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2
    done = subprocess.run(command, input="0.5 2", capture_output=True, text=True)
    assert done.returncode == 1 and "a line has 2 numbers, but the actor reads 1 of observation" in done.stderr


@pytest.fixture
def run(tmp_path):
    """A run's folder, of few steps."""
    words = "--env pendulum-p-v0 --algo rsac --config configs/test/template_short.gin --run_id 1 --results"
    small = [f"--gin={binding}" for binding in ("Recurrent.hidden_dim=8", "train.num_epochs=1")]
    assert main([*words.split(), str(tmp_path), *small]) == 0
    return tmp_path / "pendulum-p-v0" / "rsac" / "1"


@pytest.mark.slow
def test_the_command_and_the_examples(run, tmp_path, capfd):
    capfd.readouterr()
    assert main(["export", str(run)]) == 0
    printed = capfd.readouterr().out
    for text in ("RecurrentSAC", "actor_best.onnx", "actor_best.json", "memory_1 ('batch', 1, 8)", "one step"):
        assert text in printed
    assert json.loads((run / "actor_best.json").read_text())["env"] == "pendulum-p-v0"
    lines = ["0.1 0.9", "-0.3 0.5", "", "0.1 0.9", "0.2 0.2"]
    agent = offpcc.Agent.load(run / "actor_best.pt")
    expected = []
    for line in lines:
        if line:
            expected.append(agent.act(np.array(line.split(), np.float32)))
        else:
            agent.reset()
    commands = [[sys.executable, ROOT / "examples" / "act_in_numpy.py"]]
    if include := os.environ.get("ONNXRUNTIME_INCLUDE"):  # headers of ONNX Runtime, which its wheel lacks
        built = tmp_path / "act"
        library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
        (tmp_path / "libonnxruntime.so").symlink_to(library)
        (tmp_path / "libonnxruntime.so.1").symlink_to(library)
        source = ROOT / "examples" / "act_in_cpp.cpp"
        subprocess.run(
            [shutil.which("c++"), "-std=c++17", source, "-I", include, "-L", tmp_path, "-lonnxruntime", "-o", built],
            check=True,
        )
        commands.append([built])
    for command in commands:
        done = subprocess.run(
            [*command, run / "actor_best.onnx"],
            input="\n".join(lines),
            env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        found = np.array([line.split() for line in done.stdout.splitlines()], np.float64)
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_the_example_in_cpp_passes_the_state_on_and_resets_it(tmp_path):
    """Against a header of the tests with an actor of its own, because no Python package has that of ONNX Runtime."""
    words = ["-std=c++17", "-Wall", "-Werror", "-I", ROOT / "tests" / "helpers" / "onnxruntime_stub"]
    subprocess.run(["c++", *words, ROOT / "examples" / "act_in_cpp.cpp", "-o", tmp_path / "act"], check=True)

    def act(text):
        return subprocess.run([tmp_path / "act", "actor.onnx"], input=text, capture_output=True, text=True)

    # The actor: action = 2 * observation + the sum of all earlier ones of the episode.
    assert act("1 2\n3 4\n5 6\n\n5 6\n1 0\n").stdout == "2 4\n7 10\n14 18\n10 12\n7 6\n"
    short = act("1\n")
    assert (short.returncode, short.stderr) == (1, "an observation has too few numbers: 1\n")


@pytest.mark.slow
@pytest.mark.usefixtures("unwritten")
def test_an_environment_that_is_not_there(run, capfd):
    (run / "run.json").write_text(json.dumps({"env": "gone:gone-v0"}))
    assert main(["export", str(run), "--out", str(run / "other.pt2")]) == 0
    assert "the contract has no observation space, wrappers and control rate" in capfd.readouterr().out
    assert main(["export", str(run), "--env", "gone-v0"]) == 2


def test_the_contract_of_images_names_their_axes_and_their_scale(tmp_path):
    learner = offpcc.build("pendulum-img-v0", "csac", algorithm={"hidden_dims": (8,)})
    contract = offpcc.export(offpcc.Agent(learner.algorithm), tmp_path / "actor.onnx").contract
    assert "division of images by 255" in contract["inside"]
    image = contract["inputs"][0]
    assert "channels first" in image["meaning"] and image["dtype"] == "uint8", image


@pytest.mark.parametrize(("shape", "order"), [((36, 36, 3), "last"), ((3, 36, 36), "first")])
def test_the_contract_names_the_order_of_the_axes(tmp_path, shape, order):
    images = spaces.Box(0, 255, shape, np.uint8)
    algorithm = offpcc.algorithms.find_algorithm("cdqn")(images, spaces.Discrete(2), hidden_dims=(8,))
    contract = offpcc.export(offpcc.Agent(algorithm), tmp_path / "actor.onnx").contract
    assert f"channels {order}" in contract["inputs"][0]["meaning"]
    assert contract["inputs"][0]["shape"][1:] == list(shape)
