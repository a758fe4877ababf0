"""Learning from recorded data: what the agent gets of it, what the run tells, and what is refused."""

import dataclasses
import functools
import json
import re
import shlex
import shutil
import tracemalloc
import warnings
import weakref
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest
import torch
from conftest import merged, rows, run_folder
from gymnasium import spaces
from gymnasium.wrappers import ClipReward
from runs import progress_rows

import offpcc
from offpcc.algorithms.agent import Agent
from offpcc.algorithms.variants import TABLE
from offpcc.cli.commands import name_for_score
from offpcc.config import loading
from offpcc.data import Dataset, load_dataset
from offpcc.data import offline as offline_module
from offpcc.data.checks import env_fit
from offpcc.data.datasets import columns as data_columns
from offpcc.data.datasets.frame_stacks import SHUFFLED
from offpcc.data.offline import DatasetOptions, read, unused_dataset_parameters
from offpcc.envs.make import env_options
from offpcc.envs.wrappers import Concatenate, ReturnToGo
from offpcc.training.build import build, note_on_data
from offpcc.training.evaluation import Evaluation
from offpcc.training.run_fns import columns_of
from offpcc.training.spec import RunSpec, resolve_env_and_dataset, run_label
from offpcc.utils.errors import DataWarning, UserError, in_python

SHORT = ("train.num_epochs=2", "train.num_steps_per_epoch=12")


@pytest.fixture
def offline(launch):
    """Train a few steps from recorded data."""

    def run(algo, *extra, bindings=()):
        tests = ("train.num_test_episodes_per_epoch=1",) if "--env" in extra else ()
        config = ("--config", "test/offline_short.gin", "--gin", *merged(*SHORT, *tests, *bindings))
        return launch("--algo", algo, *config, *extra)

    return run


@pytest.fixture
def changed(unit_file, tmp_path):
    """A copy of the data with some columns replaced or, by None, left out."""

    def write(name="odd.hdf5", **columns):
        with h5py.File(unit_file) as source, h5py.File(tmp_path / name, "w") as target:
            for key in source:
                value = columns.pop(key, source[key][:])
                if value is not None:
                    target[key] = value
            for key, value in columns.items():
                target[key] = value
        return tmp_path / name

    return write


# What an agent gets of the data ---------------------------------------------------------------------------------------


def test_actions_come_from_the_units_of_the_environment(pendulum_file):
    with h5py.File(pendulum_file) as file:
        recorded = file["actions"][:]
    assert np.abs(recorded).max() > 1.5
    rows = read(pendulum_file, offpcc.make("pendulum-v0")).rows
    assert np.allclose(rows.actions[rows.is_start], recorded / 2.0, atol=1e-6)
    assert [notice.kind for notice in read(pendulum_file, offpcc.make("pendulum-v0")).notices] == ["units"]
    with pytest.raises(UserError, match=r"swings.hdf5: .* actions lie outside .*dataset\.action_range=\(-2, 2\)"):
        read(pendulum_file)  # without the environment nobody knows their units


@pytest.mark.parametrize("number, reach", [(0, 2.0), (1, 1.0)])
def test_of_actions_in_unknown_units_nothing_is_learned_until_a_binding_tells(
    offline, pendulum_file, tmp_path, number, reach
):
    code, _, err = offline("bc", "--dataset", pendulum_file)
    assert code == 2 and len(err.strip().splitlines()) == 1 and not (tmp_path / "results").exists()
    proposed = re.findall(r'--gin "(.*?)"', err)
    assert proposed == ["dataset.action_range=(-2, 2)", "dataset.action_range=(-1, 1)"]
    code, _, err = offline("bc", "--dataset", pendulum_file, bindings=[proposed[number]])
    assert code == 0, err
    agent = offpcc.Agent.load(run_folder(tmp_path, "swings", "bc") / "actor_last.pt")
    assert agent.action_space == spaces.Box(-reach, reach, (1,), np.float32)


def as_dataset(file):
    with h5py.File(file) as data:
        return Dataset.from_arrays(**{key: data[key][:] for key in data}, name="mine")


def test_arrays_of_ones_own_are_scaled_like_a_file(pendulum_file):
    data = as_dataset(pendulum_file)
    for env in ("pendulum-v0", "pendulum-p-v0"):
        own, filed = (read(source, offpcc.make(env)) for source in (data, pendulum_file))
        for array, other in zip(own.rows.arrays, filed.rows.arrays, strict=True):
            assert np.array_equal(array, other)
    assert np.abs(own.rows.actions).max() > 0.9 and (np.abs(own.rows.actions) >= 1.0).mean() < 0.01
    told = "\n".join(own.lines())
    assert "note: actions are taken to be in the environment's units, [-2, 2]" in told


def test_bounds_by_gin_are_those_of_ones_own_arrays_too(pendulum_file):
    offpcc.configure(None, "dataset.action_range = (-4.0, 4.0)")
    for source in (pendulum_file, as_dataset(pendulum_file)):
        recording = read(source, offpcc.make("pendulum-v0"), DatasetOptions.from_gin())
        assert recording.notices == ()
        assert 0.45 < np.abs(recording.rows.actions).max() <= 0.5


def test_bounds_in_a_file_that_differ_from_those_of_the_environment_are_told(pendulum_file, tmp_path):
    for bound, is_told in ((4.0, True), (2.0, False)):
        path = tmp_path / f"bounds_{bound}.hdf5"
        shutil.copy(pendulum_file, path)
        with h5py.File(path, "a") as file:
            file["metadata/action_low"], file["metadata/action_high"] = [-bound], [bound]
        recording = read(path, offpcc.make("pendulum-v0"))
        told = "actions are recorded in [-4, 4], but the environment takes [-2, 2]: recorded ones keep their share"
        assert (told in "\n".join(recording.lines())) == is_told


def test_bounds_by_gin_have_no_effect_on_data_that_have_their_own(pendulum_file):
    data = as_dataset(pendulum_file).with_range((-2.2, 2.2))
    options = [DatasetOptions(action_range=bounds) for bounds in ((-4.0, 4.0), (-2.2, 2.2), None)]
    told = ["\n".join(read(data, None, one).lines()) for one in options]
    text = (
        f"note: dataset.action_range has no effect, because {data.name} has its own bounds of actions, [-2.2, 2.2]; if"
    )
    assert text in told[0]
    assert not any("no effect" in text for text in told[1:])


def test_many_whole_numbers_are_hardly_choices():
    given = {"observations": np.zeros((400, 2)), "rewards": np.ones(400), "terminations": np.arange(400) % 20 == 19}
    positions = Dataset.from_arrays(**given, actions=np.arange(400) * 10)
    with pytest.raises(UserError, match=r"Discrete\(3991\).* if the recorded whole numbers are not choices, bind dat"):
        build(None, "td3_bc", dataset=positions)
    with pytest.raises(UserError, match=r"choose dcql, or another algorithm for these actions$"):
        build(None, "td3_bc", dataset=Dataset.from_arrays(**given, actions=np.arange(400) % 10))


@pytest.mark.parametrize(
    ("env", "wrong"), [("pendulum-v0", (-1, 1)), (None, (-0.5, 0.5)), ("pendulum-v0", (-0.1, 0.1))]
)
def test_a_range_that_most_actions_leave_is_refused(pendulum_file, env, wrong):
    """Like unknown units. The environment's bounds, or [-1, 1] without one, say that the actions were clipped."""
    with h5py.File(pendulum_file) as file:
        columns = {key: file[key][:] for key in file}
    random = np.random.default_rng(0).uniform(-2.0, 2.0, columns["actions"].shape)
    made = functools.partial(Dataset.from_arrays, **{**columns, "actions": random}, name="mine")
    words = (
        r"mine: .* actions lie outside \[.*\], up to .*, so the given action_range seems to be wrong; give the bounds"
    )
    with pytest.raises(UserError, match=rf"{words} .*dataset.action_range=\(-2, 2\)") as caught:
        read(made(action_range=wrong), env and offpcc.make(env))
    assert "\n" not in caught.value.message
    with pytest.raises(
        UserError, match=r"by these actions Dataset.from_arrays\(action_range=\(-2, 2\)\) or offpcc.conf"
    ):
        offpcc.build(env, "bc", dataset=made(action_range=wrong))
    accepted = (-2.0, 2.0) if env else (-1.0, 1.0)
    assert read(made(action_range=accepted), env and offpcc.make(env)).rows.actions.max() <= 1.0


def test_what_a_file_tells_of_its_actions_wins(changed):
    file = changed(**{"metadata/action_low": np.array([-4.0]), "metadata/action_high": np.array([4.0])})
    with h5py.File(file) as data:
        recorded = data["actions"][:]
    for env in (None, offpcc.make("pendulum-v0")):
        rows = read(file, env).rows
        assert np.allclose(rows.actions[rows.is_start], recorded / 4.0, atol=1e-6)
    data = load_dataset(file, action_range=(-1, 1))
    assert np.array_equal(data.actions, recorded)
    assert np.allclose(data.rows().actions.max(), recorded.max() / 4.0, atol=1e-6)


def test_hidden_velocities_are_hidden_in_the_data_too(pendulum_file):
    whole, hidden = read(pendulum_file, offpcc.make("pendulum-v0")), read(pendulum_file, offpcc.make("pendulum-p-v0"))
    assert np.array_equal(hidden.rows.observations, whole.rows.observations[:, :2])
    assert hidden.identity != whole.identity


def test_statistics_are_those_of_the_view_over_the_transitions_starts(pendulum_file):
    learner = build("pendulum-va-v0", "td3_bc", dataset=pendulum_file)
    rows = learner.recording.rows
    starts = rows.observations[rows.is_start].astype(np.float64)
    observation = rows.observations[17]
    expected = (observation - starts.mean(0)) / (starts.std(0) + 1e-3)
    seen = learner.algorithm.normalization(torch.from_numpy(observation)).numpy()
    assert np.allclose(seen, expected, atol=1e-4)
    learner.algorithm.update_networks(learner.buffer.sample())
    assert np.array_equal(seen, learner.algorithm.normalization(torch.from_numpy(observation)).numpy())


OFFLINE = ("bc", "td3_bc", "iql", "cql", "bcq", "awac", "crr", "sac_n", "edac", "rebrac", "calql", "fql")
TINY = {"hidden_dims": (8,)}


@pytest.mark.parametrize("algo", [*OFFLINE, "rbc", "riql_s"])
def test_offline_algorithms_normalise_by_the_data_unless_they_are_told_not_to(pendulum_file, tmp_path, algo):
    """And to a seed it is one whether that was bound or is the default; the statistics go with the actor."""
    offpcc.configure(None, "Recurrent.hidden_dim = 4", "Recurrent.num_layers = 1")
    tiny = TINY | ({"vae_hidden_dims": (8,)} if algo == "bcq" else {})
    learners = [
        build("pendulum-v0", algo, dataset=pendulum_file, algorithm=tiny | given)
        for given in ({}, {"normalize_observations": True}, {"normalize_observations": False})
    ]
    statistics = [torch.from_numpy(x).float() for x in learners[0].recording.statistics()]
    states = []
    for learner in learners:
        learner.train(
            offpcc.training.loggers.Loggers([]), num_epochs=1, num_steps_per_epoch=3, num_test_episodes_per_epoch=0
        )
        states.append(learner.algorithm.state_dict())
    default, bound, raw = states
    assert torch.allclose(default["normalization"]["mean"], statistics[0])
    assert torch.allclose(default["normalization"]["variance"].sqrt(), statistics[1] + 1e-3, atol=1e-4)
    assert [*default] == [*bound] and raw.keys() == bound.keys() - {"normalization"}
    for name in ("actor", "actor_encoder", "normalization"):
        for key, value in default[name].items():
            assert torch.equal(value, bound[name][key]), (name, key)
    Agent(learners[0].algorithm).save(tmp_path / "actor.pt")
    observation = np.array([0.3, -0.9, 4.0], np.float32)
    loaded = Agent.load(tmp_path / "actor.pt")
    assert np.array_equal(loaded.act(observation), Agent(learners[0].algorithm).act(observation))
    assert not np.array_equal(loaded.act(observation), Agent(learners[2].algorithm).act(observation))


@pytest.mark.parametrize("algo", ["sac", "td3", "ddpg"])
def test_online_algorithms_do_not_normalise_by_default(pendulum_file, algo):
    learner = build("pendulum-v0", algo, dataset=pendulum_file, algorithm=TINY)
    assert learner.algorithm.normalization is None


@pytest.mark.parametrize("algo", ["bc", "iql", "cql", "bcq"])
def test_online_offline_algorithms_do_not_normalise_by_default(algo):
    learner = build("pendulum-v0", algo, algorithm=TINY)
    assert learner.algorithm.normalization is None
    learner.close()


def test_an_algorithm_for_recorded_data_says_so_where_there_is_none(launch, recwarn):
    for algo, entry in TABLE.items():
        if entry.memory is None and not entry.images and not entry.cls.imagination:
            env = "cartpole-v0" if entry.cls.is_discrete else "pendulum-v0"
            build(env, algo, algorithm=TINY | ({"vae_hidden_dims": (8,)} if algo == "bcq" else {})).close()
    build("pendulum-v0", "mbpo", algorithm=TINY).close()
    offpcc.RecurrentBC("pendulum-v0", hidden_dims=(8,), hidden_dim=4).close()
    told = [str(one.message) for one in recwarn.list]
    assert [text.split(" is made for recorded data, but no ")[0] for text in told] == [
        *OFFLINE,
        "dbc",
        "dbcq",
        "dcql",
        "dcrr",
        "rbc",
    ]
    assert told[-1].endswith(
        "does not improve; give one with dataset=, or choose an algorithm for learning online, such as rsac"
    )
    assert all(text.endswith("such as dqn") == text.startswith("d") for text in told)
    assert {one.filename for one in recwarn.list} == {__file__}, "the line that calls build"
    short = ("--config", "test/template_short.gin", "--gin", "train.num_epochs=1", "train.num_steps_per_epoch=10")
    code, out, _ = launch("--env", "pendulum-v0", "--algo", "cql", *short)
    assert code == 0
    assert "note: cql is made for recorded data, but no dataset is given, so it learns from its own steps; give" in out
    assert launch("--env", "pendulum-v0", "--algo", "mopo", *short)[2].startswith(
        "offpcc: mopo learns from recorded data; give a dataset with --dataset"
    )


@pytest.mark.parametrize(
    ("algo", "better"),
    [
        ("sac", "cql"),
        ("rdpg", "rcql"),
        ("ctd3", "ccql"),
        ("r2d2", "rdcql"),
        ("rmbpo", "rmopo"),
        ("iql", None),
        ("mopo", None),
    ],
)
def test_an_algorithm_for_learning_online_says_so_where_there_are_data_alone(algo, better):
    note = note_on_data(RunSpec.make(None, algo, dataset="x.hdf5", seed=1))
    words = [f"{algo} is made for learning online; ", f"such as {better}, or"] if better else []
    assert bool(note) == bool(better) and all(word in note for word in words)
    assert not note_on_data(RunSpec.make("pendulum-v0", algo, dataset="x.hdf5", seed=1, then_env_steps=9_000))
    assert not note_on_data(RunSpec.make("pendulum-v0", "sac", seed=1))


def test_a_run_prints_the_note(launch, pendulum_file):
    given = ("--env", "pendulum-v0", "--dataset", pendulum_file, "--algo", "sac", "--config", "test/offline_short.gin")
    code, out, err = launch(*given, "--gin", "train.num_epochs=1", "train.num_steps_per_epoch=10")
    assert code == 0, err
    assert "note: sac is made for learning online; from recorded data alone it overestimates" in out


@pytest.mark.parametrize("algo", ["cbc", "ctd3_bc"])
def test_images_stay_as_they_are(algo):
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (40, 3, 84, 84), np.uint8)
    data = Dataset.from_arrays(
        observations=images,
        actions=random.uniform(-1, 1, (40, 1)),
        rewards=np.arange(40.0),
        terminations=np.arange(40) % 20 == 19,
        truncations=np.zeros(40, bool),
    )
    learner = build(None, algo, dataset=data, algorithm=TINY)
    assert learner.algorithm.normalization is None
    assert not any(notice.kind == "scales" for notice in learner.recording.notices)


def test_an_actor_of_before_the_default_was_changed_acts_as_it_did(pendulum_file, tmp_path):
    """Whether it normalises is what its weights say: its file holds the argument None."""
    raw = build("pendulum-v0", "bc", algorithm=TINY)  # as such an agent was made, whatever it learned from
    assert raw.algorithm.actor_file()["algorithm"]["arguments"]["normalize_observations"] is None
    Agent(raw.algorithm).save(tmp_path / "raw.pt")
    assert Agent.load(tmp_path / "raw.pt").algorithm.normalization is None
    raw.close()
    normalized = build("pendulum-v0", "td3_bc", dataset=pendulum_file, algorithm=TINY)
    Agent(normalized.algorithm).save(tmp_path / "normalized.pt")
    assert Agent.load(tmp_path / "normalized.pt").algorithm.normalization is not None


@pytest.mark.parametrize("ratio, is_told", [(9.0, False), (11.0, True)])
def test_scales_that_differ_by_more_than_ten_are_told_where_they_stay(ratio, is_told, launch, offline, recwarn):
    random = np.random.default_rng(0)
    wave = np.sin(np.arange(600.0)).astype(np.float32)
    columns = [wave, ratio * wave, np.full(600, 1e4)]  # the last is constant, and has no scale
    data = Dataset.from_arrays(
        observations=np.stack(columns, 1),
        actions=random.uniform(-1, 1, (600, 1)),
        rewards=random.normal(size=600),
        terminations=np.arange(600) % 30 == 29,
        truncations=np.zeros(600, bool),
    )
    raw = build(None, "bc", dataset=data, algorithm={**TINY, "normalize_observations": False})
    (told,) = [notice.text for notice in raw.recording.notices if notice.kind == "scales"] or [""]
    assert bool(told) is is_told
    if is_told:
        assert "observation 1 spreads by 7.78, but observation 0 by 0.707 only" in told
        assert '--gin "BC.normalize_observations=True"' in told
        (warned,) = [warning for warning in recwarn.list if in_python(told) in str(warning.message)]
        assert warned.filename == __file__, "the line that calls build"
        assert any(told in line for line in raw.recording.lines())
    for algo in ("bc", "sac"):
        learner = build(None, algo, dataset=data, algorithm=TINY)
        assert any(notice.kind == "scales" for notice in learner.recording.notices) is (is_told and algo == "sac")


def test_the_binding_that_unlike_scales_ask_for_wins_over_a_papers_choice(launch, changed, pendulum_file):
    with h5py.File(pendulum_file) as file:
        columns = {key: file[key][:] * np.float32([1, 1, 100]) for key in ("observations", "next_observations")}
    command = ("--algo", "rbc", "--config", "algorithms/bc.gin", "--dataset", changed(**columns))
    small = (*SHORT, "Recurrent.hidden_dim=4", "RecurrentReplayBuffer.segment_len=5")
    code, out, err = launch(*command, "--gin", *small)
    assert code == 0, err
    (told,) = [line for line in out.splitlines() if "observations are not normalised" in line]
    assert "observations are normalised by" not in out
    remedy = told.split('--gin "')[1].split('"')[0]
    code, out, err = launch(*command, "--run_id", 2, "--gin", *small, remedy)
    assert code == 0, err
    assert "observations are not normalised" not in out
    assert "observations are normalised by the data's mean and standard deviation" in out


def test_a_fraction_is_of_whole_episodes_from_the_start(unit_file):
    recording = read(unit_file, fraction=0.4)
    assert (recording.num_episodes, recording.num_transitions) == (3, 600)
    assert np.array_equal(recording.rows.observations, read(unit_file).rows.observations[:603])


def test_rewards_are_scaled_for_learning_by_the_range_of_returns(pendulum_file):
    offpcc.configure(None, "dataset.return_range = 1000.0", "ActorCritic.reward_scale = 2.0")
    learner = build("pendulum-v0", "iql", dataset=pendulum_file)
    returns = load_dataset(pendulum_file).returns
    factor = 1000.0 / (returns.max() - returns.min())
    assert learner.algorithm.reward_scale == pytest.approx(2.0 * factor)
    with h5py.File(pendulum_file) as file:
        raw = file["rewards"][:]
    assert np.allclose(learner.recording.rows.rewards[learner.recording.rows.is_start][:, 0], raw)


def test_a_piece_that_the_recordings_end_cut_counts_in_no_return(changed, unit_file):
    with h5py.File(unit_file) as file:
        columns = {key: file[key][:-150] for key in file}
        returns = file["rewards"][:].reshape(6, 200).sum(1, dtype=np.float64)
    offpcc.configure(None, "dataset.return_range = 1000.0")
    piece = read(changed(**columns), options=DatasetOptions.from_gin())
    assert (piece.num_episodes, piece.num_transitions) == (6, 1050)
    assert piece.mean_return == pytest.approx(returns[:5].mean())
    assert piece.reward_scale == pytest.approx(1000.0 / (returns[:5].max() - returns[:5].min()))
    offpcc.configure(None)
    told = {"metadata/whole_episodes": 3, "metadata/offpcc": "1.0"}
    assert read(changed("own.hdf5", **told)).mean_return == pytest.approx(returns[:3].mean())


def test_statistics_are_taken_in_blocks(unit_file, monkeypatch):
    recording = read(unit_file)
    chosen = recording.rows.observations[recording.rows.is_start].astype(np.float64)
    for size in (2**22, 100):
        monkeypatch.setattr(data_columns, "BLOCK_BYTES", size)
        mean, std = recording.statistics()
        assert mean.dtype == std.dtype == np.float64
        assert np.allclose(mean, chosen.mean(0), rtol=1e-12) and np.allclose(std, chosen.std(0), rtol=1e-12)


def test_statistics_take_little_memory(monkeypatch):
    steps = 200_000
    data = Dataset.from_arrays(
        observations=np.random.default_rng(0).normal(1000.0, 0.1, (steps, 11)).astype(np.float32),
        actions=np.zeros((steps, 1), np.float32),
        rewards=np.zeros(steps, np.float32),
        terminations=np.arange(steps) % 100 == 99,
        truncations=np.zeros(steps, bool),
    )
    recording = read(data)
    monkeypatch.setattr(data_columns, "BLOCK_BYTES", 2**18)
    tracemalloc.start()
    mean, std = recording.statistics()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.3 * recording.rows.observations.nbytes
    assert np.allclose(mean, 1000.0, atol=0.01) and np.allclose(std, 0.1, rtol=0.02)


@pytest.mark.parametrize(("free", "words"), [(20_000, "swings: 1,200 transitions"), (240_000, "pendulum-v0")])
def test_what_memory_cannot_hold_beside_the_data_is_refused(pendulum_file, monkeypatch, free, words):
    data = load_dataset(pendulum_file)
    env = offpcc.make("pendulum-v0", wrappers=[lambda env: Concatenate(env, 8)])
    monkeypatch.setattr(data_columns, "available_bytes", lambda: free)
    with pytest.raises(UserError, match=f"{words}.* bytes of memory are free"):
        read(data, env)
    monkeypatch.setattr(data_columns, "available_bytes", lambda: 250_000)
    assert read(data, env).rows.observations.shape == (1206, 24)


def test_what_was_recorded_is_let_go_of_before_it_is_seen(pendulum_file, monkeypatch):
    held = []

    def loaded(*arguments, **options):
        data = load_dataset(*arguments, **options)
        held.append(weakref.ref(data))
        return data

    def see(env, observations, *arguments, **options):
        assert held[0]() is None
        return observations

    monkeypatch.setattr(offline_module, "load_dataset", loaded)
    monkeypatch.setattr(offline_module, "transform_observations", see)
    read(pendulum_file, offpcc.make("pendulum-v0"))


def test_what_changes_rewards_in_tests_is_told(pendulum_file):
    env = ClipReward(offpcc.make("pendulum-v0"), -1.0, 1.0)
    assert [notice.kind for notice in read(pendulum_file, env).notices] == ["units", "rewards"]
    assert any("ClipReward" in line for line in read(pendulum_file, env).lines())


def test_an_algorithm_that_reads_no_rewards_hears_nothing_of_them(unit_file):
    offpcc.configure(None, "dataset.return_range = 1000.0")
    recording = read(unit_file, options=DatasetOptions.from_gin())
    assert any("rewards are multiplied" in line for line in recording.lines())
    assert not any("advantages of this size" in line for line in recording.lines())
    large = dataclasses.replace(recording, reward_scale=78.0)
    (told,) = [line for line in large.lines() if "advantages of this size" in line]
    assert "returns of whole episodes differ by 12.8 at most, 1.0% of their mean -1" in told
    assert "--gin dataset.return_range=None keeps rewards as they are" in told
    small = dataclasses.replace(recording, mean_return=0.5, reward_scale=1000.0)  # a range of 1: nothing is odd
    assert not any("advantages of this size" in line for line in small.lines())
    assert not any("rewards are multiplied" in line for line in recording.lines(reads_rewards=False))
    for algo, unused in (("rbc", {"return_range": "RecurrentBC reads no rewards"}), ("td3_bc", {})):
        assert unused_dataset_parameters(build(None, algo, dataset=unit_file).algorithm) == unused


@pytest.mark.parametrize("value", ["0", "-0.1", "1.5", "True", "'all'"])
def test_an_unknown_best_fraction_ends_in_one_message(launch, unit_file, value):
    command = ("--dataset", unit_file, "--algo", "bc", "--gin", f"dataset.best_fraction={value}")
    code, _, err = launch(*command)
    assert code == 2 and "dataset.best_fraction is" in err and err.count("\n") <= 2, err


def test_a_run_learns_from_the_best_episodes_alone(unit_file):
    offpcc.configure("offline/bc_10.gin", "BC.hidden_dims = (4,)", "dataset.best_fraction = 0.34")
    recording = build(None, "bc", dataset=unit_file).recording
    whole = read(unit_file)
    returns = load_dataset(unit_file).returns
    assert (whole.num_episodes, recording.num_episodes) == (6, 2)
    assert recording.mean_return == pytest.approx(np.sort(returns)[-2:].mean())
    assert recording.identity != whole.identity


def test_what_the_wrappers_draw_follows_from_the_seed(pendulum_file):
    offpcc.configure(None, "make.wrappers = [@ObservationNoise]", "ObservationNoise.std = 0.1")
    one, again, other = (
        read(pendulum_file, offpcc.make("pendulum-v0", **env_options().values()), seed=seed) for seed in (1, 1, 2)
    )
    assert one.identity == again.identity != other.identity


def test_data_of_ones_own_by_one_call():
    generator = np.random.default_rng(0)
    episodes = [
        (generator.normal(size=(n + 1, 2)), generator.uniform(-1, 1, (n, 1)), np.ones(n), True) for n in (5, 9, 7)
    ]
    data = Dataset.from_episodes(episodes, name="mine")
    learner = build(None, "riql", dataset=data, buffer={"batch_size": 2})
    learner.train(offpcc.training.loggers.Loggers([]), num_epochs=1, num_steps_per_epoch=3)
    assert learner.loop.num_updates == 3 and learner.interaction is None and learner.tests is None
    assert learner.title == "mine riql"


# What a run tells -----------------------------------------------------------------------------------------------------


@pytest.mark.pictures
@pytest.mark.parametrize("algo", ["td3_bc", "rbc", "sac"])
def test_a_run_learns_from_the_data_and_is_tested_in_the_environment(offline, launch, pendulum_file, tmp_path, algo):
    code, out, err = offline(algo, "--env", "pendulum-p-v0", "--dataset", pendulum_file)
    assert code == 0, err
    assert "learning from swings: 1,200 transitions in 6 episodes" in out
    folder = tmp_path / "results" / "pendulum-p-v0_from_swings" / algo / "1"
    last = progress_rows(folder)[-1]
    assert (last["step"], last["update"], last["train/return"]) == ("24", "24", "")
    assert float(last["test/return"]) < 0.0 and "test/normalized_score" not in last
    details = json.loads((folder / "run.json").read_text())
    assert details["dataset"]["num_transitions"] == 1200 and details["env"] == "pendulum-p-v0"
    assert list((folder / "videos").glob("*.mp4"))
    code, out, err = launch("evaluate", folder, "--episodes", 2)
    assert code == 0, err


@pytest.mark.pictures
def test_without_an_environment_it_is_not_tested(offline, launch, unit_file, tmp_path):
    code, out, err = offline("iql", "--dataset", unit_file)
    assert code == 0, err
    assert "no environment is given, so there are no tests" in out
    folder = tmp_path / "results" / "swings" / "iql" / "1"
    assert progress_rows(folder)[-1]["test/return"] == "" and (folder / "curve.png").exists()
    assert (folder / "actor_last.pt").exists()
    code, _, err = launch("evaluate", folder)
    assert code == 2 and "trained without an environment" in err
    code, _, err = launch("--dataset", unit_file, "--algo", "iql", "--render")
    assert code == 2 and "has no environment to show the actor in" in err
    code, out, err = launch("evaluate", folder, "--episodes", 1, "--env", "pendulum-v0")
    assert code == 0, err


def test_what_runs_are_called():
    assert run_label("pendulum-p-v0", None) == "pendulum-p-v0"
    assert run_label("pendulum-p-v0", "data/swings.hdf5") == "pendulum-p-v0_from_swings"
    assert run_label(None, "minari:mine/swings-v0") == "minari:mine/swings-v0"
    assert run_label(*resolve_env_and_dataset("hopper-medium-v2", None)) == "hopper-medium-v2"
    assert (
        run_label(*resolve_env_and_dataset("hopper-mujoco-p-v0", "hopper-medium-v2"))
        == "hopper-mujoco-p-v0_from_hopper-medium-v2"
    )
    assert resolve_env_and_dataset("kitchen-complete-v0", None) == (None, "kitchen-complete-v0")


def test_a_table_has_scores_where_the_field_has_references():
    learner = build("pendulum-v0", "sac")
    assert "test/normalized_score" not in columns_of(learner.algorithm, learner.tests)
    assert "test/normalized_score" not in columns_of(learner.algorithm, None)
    assert "test/normalized_score" in columns_of(learner.algorithm, Evaluation(lambda: None, (0.0, 1.0)))


@pytest.mark.slow
def test_a_score_is_told_beside_the_return_whatever_the_simulators_version(quick, tmp_path):
    pytest.importorskip("mujoco")
    bindings = ("train.num_steps_per_epoch=20", "train.updates_per_step=0", "train.num_epochs=1")
    code, out, err = quick("sac", env="Hopper-v5", bindings=bindings)
    assert code == 0, err
    last = progress_rows(tmp_path / "results" / "Hopper-v5" / "sac" / "1")[-1]
    expected = 100.0 * (float(last["test/return"]) + 20.272305) / (3234.3 + 20.272305)
    assert float(last["test/normalized_score"]) == pytest.approx(expected)
    assert f"D4RL score {expected:.1f}" in out and "MuJoCo" in out


@pytest.mark.parametrize(
    ("bindings", "has_score"),
    [
        ((), True),
        (("make.kwargs={'render_mode': None}",), True),
        (("make.wrappers=[@ObservationNoise]", "ObservationNoise.std=0.1"), True),
        (("make.kwargs={'g': 5.0}",), False),
        (("make.wrappers=[@gymnasium.ClipReward]", "gymnasium.ClipReward.max_reward=0.0"), False),
    ],
)
def test_evaluate_tells_no_score_of_changed_rewards(monkeypatch, bindings, has_score):
    """As the table of a run. This id stands for a simulator's."""
    entry = "gymnasium.envs.classic_control:PendulumEnv"
    spec = gymnasium.envs.registration.EnvSpec("Hopper-v77", entry_point=entry, max_episode_steps=200)
    monkeypatch.setitem(gymnasium.registry, "Hopper-v77", spec)
    with loading.same_bindings():
        loading.load_gin_config(None, bindings)
        assert name_for_score("Hopper-v77") == ("Hopper-v77" if has_score else None)


NOISE = ("make.wrappers=[@ObservationNoise]", "ObservationNoise.std=0.1")  # drawn once, from the run's seed
RESUMED = [("riql", ()), ("rcql_s", ()), ("bcq", ()), ("td3_bc", NOISE)]


@pytest.mark.parametrize(
    ("algo", "wrappers"),
    [
        ("td3_bc", ()),
        ("riql", NOISE),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in RESUMED),
    ],
)
def test_resuming_is_exact(offline, pendulum_file, tmp_path, algo, wrappers):
    data = ("--env", "pendulum-p-v0", "--dataset", pendulum_file)
    assert offline(algo, *data, "--results", "whole", bindings=wrappers)[0] == 0
    assert offline(algo, *data, "--results", "parts", bindings=[*wrappers, "train.num_epochs=1"])[0] == 0
    code, out, err = offline(algo, *data, "--results", "parts", "--resume", bindings=wrappers)
    assert code == 0 and "not exact" not in out, err
    whole, parts = (tmp_path / name / "pendulum-p-v0_from_swings" / algo / "1" for name in ("whole", "parts"))
    assert rows(whole) == rows(parts) and len(rows(whole)) == 3
    assert (whole / "actor_last.pt").read_bytes() == (parts / "actor_last.pt").read_bytes()


@pytest.mark.parametrize(
    ("algo", "recorded"),
    [("sac", False), ("rcql_s", False), *((algo, True) for algo in ("sac", "td3_bc", "iql", "bcq", "rbc", "rcql_s"))],
)
def test_a_runs_config_repeats_it(offline, quick, launch, pendulum_file, tmp_path, algo, recorded):
    data = ("--dataset", pendulum_file) if recorded else ()
    name = "pendulum-p-v0_from_swings" if recorded else "pendulum-p-v0"
    if recorded:
        assert offline(algo, "--env", "pendulum-p-v0", *data, "--results", "first")[0] == 0
    else:
        assert quick(algo, "--results", "first", bindings=["train.num_epochs=1"])[0] == 0
    first, second = (tmp_path / results / name / algo / "1" for results in ("first", "second"))
    again = ("--env", "pendulum-p-v0", *data, "--algo", algo, "--config", first / "config.gin", "--results", "second")
    code, _, err = launch(*again)
    assert code == 0, err
    assert rows(first) == rows(second) and len(rows(first)) >= 2
    assert (first / "config.gin").read_text() == (second / "config.gin").read_text()


def test_a_run_does_not_go_on_with_other_data(offline, changed, unit_file, tmp_path):
    file = changed("swings.hdf5")
    assert offline("bc", "--dataset", file)[0] == 0
    with h5py.File(file, "r+") as data:
        data["rewards"][3] -= 0.5
    code, _, err = offline("bc", "--dataset", file, "--resume", bindings=["train.num_epochs=3"])
    assert code == 2 and f"run 1 in {tmp_path / 'results' / 'swings' / 'bc'} learned from {file} (SHA-256" in err
    with h5py.File(file, "r+") as data:
        data["rewards"][3] += 0.5
    part = ("--dataset_fraction", 0.5)
    assert offline("bc", "--dataset", file, *part, "--resume")[0] == 0
    half = tmp_path / "results" / "swings_0.5" / "bc" / "1"
    assert json.loads((half / "run.json").read_text())["dataset"]["num_transitions"] == 600
    assert offline("bc", "--dataset", file, "--resume", bindings=["train.num_epochs=3"])[0] == 0


@pytest.mark.slow
def test_an_online_run_records_itself_and_goes_on_doing_so(quick, launch, tmp_path):
    one, two = tmp_path / "whole.hdf5", tmp_path / "parts.hdf5"
    code, out, err = quick("rsac", "--results", "whole", "--save_dataset", one, bindings=["train.num_epochs=3"])
    assert code == 0 and str(one) in out, err
    assert quick("rsac", "--results", "parts", "--save_dataset", two, bindings=["train.num_epochs=2"])[0] == 0
    more = ("--results", "parts", "--resume")
    code, _, err = quick("rsac", *more, bindings=["train.num_epochs=3"])
    assert code == 2 and "add --save_dataset" in err
    code, out, err = quick("rsac", *more, "--save_dataset", two, bindings=["train.num_epochs=3"])
    assert code == 0, err
    assert one.read_bytes() == two.read_bytes()
    data = load_dataset(one)
    assert data.num_steps == 750 and data.lengths.tolist() == [200, 200, 200, 150]
    assert data.metadata["env"] == "pendulum-p-v0"
    assert not list(tmp_path.glob("*.episode_log"))
    short = ("--config", "test/offline_short.gin", "--gin", *SHORT)
    code, out, err = launch("--env", "pendulum-p-v0", "--dataset", one, "--algo", "riql", *short)
    assert code == 0 and "750 transitions in 4 episodes" in out, err
    code, _, err = launch("--env", "pendulum-va-v0", "--dataset", one, "--algo", "iql", *short)
    assert code == 2 and "KeepIndices" in err


@pytest.mark.slow
def test_a_run_that_was_stopped_before_its_first_checkpoint_records_anew(quick, tmp_path):
    one, two = tmp_path / "whole.hdf5", tmp_path / "parts.hdf5"
    assert quick("sac", "--results", "whole", "--save_dataset", one)[0] == 0
    assert quick("sac", "--results", "parts", "--save_dataset", two)[0] == 0
    (tmp_path / "parts" / "pendulum-p-v0" / "sac" / "1" / "checkpoint.pt").unlink()
    (tmp_path / "parts" / "pendulum-p-v0" / "sac" / "1" / "run.json").write_text('{"status": "running"}')
    assert quick("sac", "--results", "parts", "--save_dataset", two, "--resume")[0] == 0
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--save_dataset", "swings.txt"], ["swings.txt", ".hdf5"]),
        (["--save_dataset", "there.hdf5"], ["there.hdf5", "not overwritten"]),
        (["--save_dataset", "new.hdf5", "--run_id", "1", "2"], ["new.hdf5", "one file"]),
    ],
)
def test_what_cannot_be_recorded_is_refused(quick, tmp_path, arguments, words):
    (tmp_path / "there.hdf5").write_bytes(b"mine")
    code, _, err = quick("sac", *arguments)
    assert code == 2
    for word in words:
        assert word in err
    assert not (tmp_path / "results").exists() and (tmp_path / "there.hdf5").read_bytes() == b"mine"


def test_learning_from_recorded_data_records_nothing(offline, unit_file, tmp_path):
    code, _, err = offline("bc", "--dataset", unit_file, "--save_dataset", "new.hdf5")
    assert code == 2 and "has no steps to record" in err
    assert not (tmp_path / "results").exists()


def test_the_two_lines_of_the_readme(launch, tmp_path):
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    section = readme[readme.index("## From recorded data") :]
    record, learn = (shlex.split(line)[1:] for line in section.split("```")[1].strip().splitlines())
    record[record.index("--steps") + 1] = "400"
    assert launch(*record)[0] == 0
    short = ("train.num_epochs=1", "train.num_steps_per_epoch=2", "train.num_test_episodes_per_epoch=1")
    code, out, err = launch(*learn, "--gin", *short)
    assert code == 0 and "400 transitions in 2 episodes" in out, err


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--env", "--dataset"]),
        (["--env", "pendulum-v0", "--dataset_fraction", "0.5"], ["--dataset_fraction 0.5", "no effect"]),
        (["--dataset", "FILE", "--dataset_fraction", "0"], ["--dataset_fraction: '0'", "above 0"]),
        (["--dataset", "FILE", "--dataset_fraction", "half"], ["--dataset_fraction: 'half'", "such as 0.1"]),
        (["--dataset", "nowhere.hdf5"], ["nowhere.hdf5", "no file"]),
        (["--dataset", "hoper-medium-v2"], ["hoper-medium-v2", "hopper-medium-v2"]),
        (["--dataset", "minari:no/such-v0"], ["no/such-v0"]),
        (["--dataset", "FILE", "--env", "pendulum-x-v0"], ["pendulum-x-v0", "did you mean"]),
        (["--dataset", "FILE", "--env", "reacher-pomdp-v0"], ["actions of 1 number,", "takes 2"]),
        (["--dataset", "FILE", "--env", "MountainCarContinuous-v0"], ["3", "2"]),
        (["--dataset", "FILE", "--gin", "ReplayBuffer.capacity=5"], ["ReplayBuffer.capacity", "held whole"]),
        (["--dataset", "FILE", "--gin", "train.update_after=5"], ["train.update_after", "recorded data"]),
        (["--dataset", "FILE", "--gin", "train.stop_return=5"], ["train.stop_return", "no test"]),
        (["--dataset", "FILE", "--gin", "environments.num_envs=2"], ["environments", "does not use"]),
        (["--env", "pendulum-v0", "--gin", "dataset.return_range=1.0"], ["dataset", "does not use"]),
        (["--dataset", "FILE", "--gin", "dataset.return_range=-1.0"], ["dataset.return_range is -1.0"]),
        (["--dataset", "FILE", "--gin", "dataset.max_episode_steps=0"], ["dataset.max_episode_steps is 0"]),
    ],
)
def test_bad_input_gets_one_clear_message_and_leaves_nothing(launch, unit_file, tmp_path, arguments, words):
    arguments = [str(unit_file) if word == "FILE" else word for word in arguments]
    config = ["--config", "test/offline_short.gin", "--algo", "td3_bc"]
    code, _, err = launch(*config, *arguments)
    assert code == 2
    assert "Traceback" not in err and "In call to configurable" not in err
    for word in words:
        assert word in err
    assert not (tmp_path / "results").exists()


STEPS = 1200
NO_ENDS = {"terminals": np.zeros(STEPS, bool), "timeouts": None, "next_observations": None}
SINGLE_STEPS = {"timeouts": np.ones(STEPS, bool), "next_observations": np.ones((STEPS, 3))}


@pytest.mark.parametrize(
    ("algo", "columns", "words"),
    [
        ("td3_bc", {"rewards": None}, ["rewards missing"]),
        ("td3_bc", {"rewards": np.zeros(STEPS - 1)}, ["1,199 rewards"]),
        ("td3_bc", {"rewards": np.full(STEPS, np.nan)}, ["rewards[0] is nan"]),
        (
            "td3_bc",
            {"actions": np.zeros(STEPS, np.int64)},
            ["odd has the actions Discrete", "choose dcql"],
        ),
        ("mopo", {"actions": np.zeros(STEPS, np.int64)}, ["choose dcql"]),
        ("riql", NO_ENDS, ["does not say where any episode ends", "dataset.max_episode_steps"]),
        ("calql", NO_ENDS, ["CalQL reads the return from each step on", "dataset.max_episode_steps"]),
        (
            "rcalql",
            SINGLE_STEPS,
            ["1,200 of 1,200 episodes are single steps", "reads the return"],
        ),
        ("rebrac", SINGLE_STEPS, ["1,200 of 1,200 episodes are single steps", "next action"]),
        ("td3_bc", {"timeouts": np.ones(STEPS, bool), "next_observations": None}, ["next_observations"]),
        ("td3_bc", {"observations": np.zeros((STEPS, 0))}, ["observations of shape (1200, 0)"]),
    ],
)
def test_bad_data_gets_one_clear_message_and_nothing_half_loaded(offline, changed, tmp_path, algo, columns, words):
    code, _, err = offline(algo, "--dataset", changed(**columns))
    assert code == 2
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err
    assert not (tmp_path / "results").exists()


def test_one_episode_has_no_best_fraction(offline, changed):
    code, _, err = offline("bc", "--dataset", changed(**NO_ENDS), bindings=["dataset.best_fraction=0.1"])
    assert code == 2 and "best_fraction is 0.1, but" in err and "one episode only" in err


def test_data_without_ends_does_for_an_agent_without_memory_or_with_a_time_limit(offline, changed):
    file = changed(**NO_ENDS)
    assert offline("td3_bc", "--dataset", file)[0] == 0
    code, out, err = offline("riql", "--dataset", file, bindings=["dataset.max_episode_steps=200"])
    assert code == 0 and "in 6 episodes" in out, err


def test_returns_that_are_all_alike_have_no_range(changed):
    offpcc.configure(None, "dataset.return_range = 1000.0")
    file = changed(rewards=np.zeros(STEPS))
    with pytest.raises(UserError, match="all whole episodes of odd have the return 0") as told:
        read(file, options=DatasetOptions.from_gin())
    remedy = told.value.message.split("--gin ")[1]
    offpcc.configure(None, remedy.replace("=", " = "))
    assert read(file, options=DatasetOptions.from_gin()).reward_scale == 1.0


def test_what_a_paper_binds_can_be_taken_back_where_returns_are_all_alike(launch, changed):
    """Expert data may be so; IQL's own file binds a range."""
    command = ("--algo", "iql", "--config", "algorithms/iql.gin", "--dataset", changed(rewards=np.ones(STEPS)))
    code, _, err = launch(*command)
    assert code == 2 and "--gin dataset.return_range=None" in err
    code, out, err = launch(*command, "--gin", "dataset.return_range=None", *SHORT)
    assert code == 0 and "rewards are multiplied" not in out, err


@pytest.mark.parametrize("algo, is_told", [("bc", False), ("rbc", True)])
def test_an_agent_with_memory_is_told_of_data_that_leaves_nothing_to_remember(
    offline, unit_file, changed, algo, is_told
):
    with h5py.File(unit_file) as file:
        columns = {key: file[key][:] for key in ("observations", "actions", "rewards", "terminals", "timeouts")}
    columns["next_observations"] = columns["observations"] + 0.01
    order = np.random.default_rng(0).permutation(len(columns["rewards"]))
    file = changed("shuffled.hdf5", **{key: column[order] for key, column in columns.items()})
    code, out, err = offline(algo, "--dataset", file)
    assert code == 0, err
    assert ("note: nearly all of the episodes are one step long" in out) is is_told


def test_an_actor_that_only_imitates_is_told_once_on_the_command_line(offline, unit_file, recwarn):
    code, out, err = offline("cql", "--dataset", unit_file, bindings=("CQL.bc_steps=1000000",))
    assert code == 0, err
    assert (out + err).count("the actor will only imitate") == 1
    assert not [warning for warning in recwarn if "imitate" in str(warning.message)]


def test_wrappers_without_an_environment_are_warned_of(pendulum_file):
    bindings = "make.wrappers = [@DropIndices]", "DropIndices.indices = (2,)", "dataset.action_range = (-2, 2)"
    offpcc.configure(None, *bindings)
    with pytest.warns(DataWarning, match=r"make\.wrappers has no effect without an environment"):
        learner = build(None, "bc", dataset=pendulum_file, algorithm=TINY)
    assert learner.algorithm.observation_shape == (3,)


@pytest.mark.parametrize(("shape", "is_told"), [((24, 24), True), ((1, 24, 24), False), ((3, 4), False)])
def test_images_without_an_axis_for_channels_are_told(shape, is_told, recwarn):
    frames = np.random.default_rng(0).integers(0, 256, (20, *shape), np.uint8)
    ends = np.arange(20) == 19
    data = Dataset.from_arrays(
        observations=frames, actions=np.arange(20) % 2, rewards=ends, terminations=ends, truncations=ends & False
    )
    build(None, "cdbc" if len(shape) == 3 else "dbc", dataset=data, seed=1)
    told = "give them an axis for channels: observations[:, None]"
    assert any(told in str(one.message) for one in recwarn) == is_told
    assert any(told in one.text for one in env_fit.without_channels(data)) == is_told
    floats = dataclasses.replace(
        data, observations=np.float32(frames / 255), final_observations=np.float32(frames[-1:] / 255)
    )
    assert any(told in one.text for one in env_fit.without_channels(floats)) == is_told
    if is_told:
        with pytest.raises(UserError, match=r"the shape \(24, 24\); add this axis: observations\[:, None\]$"):
            build(None, "cdbc", dataset=data, seed=1)


def test_constant_numbers_that_the_agent_sees_are_warned_of():
    draw = np.random.default_rng(0)
    seen = {"place": draw.normal(size=(400, 2)), "battery": np.full((400, 1), 24.0)}
    given = {"actions": draw.uniform(-1, 1, (400, 1)), "rewards": draw.normal(size=400)}
    given |= {"terminations": np.arange(400) % 20 == 19, "action_range": (-1, 1)}
    states = np.concatenate([draw.normal(size=(400, 1)), np.ones((400, 1))], 1)
    with pytest.warns(DataWarning, match=r"the number 'battery' 0 of the observations is constant .* sets it to 0"):
        build(None, "iql", dataset=Dataset.from_arrays(observations=seen, **given), algorithm=TINY)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        data = Dataset.from_arrays(observations=seen["place"], states=states, **given)
        offpcc.configure(None, 'make.state = "state"')
        build(None, "iql", dataset=data, algorithm=TINY)
    assert caught and not any("constant in the data" in str(one.message) for one in caught)


def test_a_recording_of_cut_episodes_is_enough_for_memory(tmp_path, launch):
    file = tmp_path / "cut.hdf5"
    assert launch("collect", "--env", "pendulum-v0", "--actor", "random", "--steps", 60, "--out", file)[0] == 0
    data = load_dataset(file)
    assert data.is_whole.tolist() == [False]
    learner = build("pendulum-v0", "rbc", dataset=data, algorithm=TINY)
    assert learner.buffer.num_transitions == 60


def test_an_agent_without_an_environment_tells_that_its_actions_are_scaled_in_one():
    """The data are in the environment's units, but small enough for the agent's."""
    draw = np.random.default_rng(0)
    given = {
        "observations": draw.normal(size=(40, 3)),
        "rewards": np.ones(40),
        "actions": draw.uniform(-0.4, 0.4, (40, 1)),
    }
    given |= {"terminations": np.zeros(40, bool), "truncations": np.arange(40) % 20 == 19}
    learner = build(None, "bc", dataset=Dataset.from_arrays(**given), algorithm=TINY)
    with pytest.warns(DataWarning, match="learned actions from -1 to 1, and pendulum-v0 scales .* from -2 to 2"):
        offpcc.evaluate(learner.algorithm, "pendulum-v0", episodes=1)
    fitting = Dataset.from_arrays(**given, action_range=(-2.0, 2.0))
    learner = build(None, "bc", dataset=fitting, algorithm=TINY)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        offpcc.evaluate(learner.algorithm, "pendulum-v0", episodes=1)


# Conditioned on the return ------------------------------------------------------------------------------------------


class Pictures(gymnasium.Env):
    """Episodes of three steps, whose pictures are alike."""

    observation_space = spaces.Box(0, 255, (24, 24, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.full((24, 24, 3), 7, np.uint8), {}

    def step(self, action):
        self.t += 1
        return np.full((24, 24, 3), 7, np.uint8), float(action), self.t == 3, False, {}


@pytest.mark.parametrize("wrappers", [(), (functools.partial(Concatenate, num=2),)])
def test_recorded_images_get_the_return_that_follows(wrappers):
    data = offpcc.collect(Pictures, None, 7, seed=1)
    asked = functools.partial(ReturnToGo, target_return=3.0)
    make = {"wrappers": [*wrappers, asked]}
    learner = offpcc.CDBC(Pictures, dataset=data, make=make, hidden_dims=(8,), buffer={"batch_size": 2}, seed=1)
    learner.train(num_epochs=1, num_steps_per_epoch=1, num_test_episodes_per_epoch=1)
    with offpcc.make(Pictures, **make, scale_actions=True) as env:
        seen = read(data, env)
    entries, rewards = seen.packed.split(seen.rows.observations), data.rewards.ravel()
    returns = [rewards[first:last].sum() for last in (3, 6) for first in range(last - 3, last + 1)]
    assert entries["return_to_go"].ravel().tolist() == [*returns, rewards[6], 0.0]
    assert entries["observation"].shape[1:] == (3 + 3 * len(wrappers), 24, 24) and entries["observation"].max() == 7


@pytest.mark.parametrize("has_next", [True, False])
def test_returns_count_the_reward_of_a_last_step_whose_next_observation_is_unknown(has_next):
    observations = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    rewards, stops = np.array([0, 0, 1, 5, 0, 0, 0, 0], np.float32), (3, 4, 6, 8)  # the second has no other step
    data = offpcc.Dataset.from_arrays(
        observations=observations[:-1],
        actions=np.zeros((8, 1), np.float32),
        rewards=rewards,
        terminations=np.arange(8) == 5,
        truncations=np.isin(np.arange(8), (2, 3, 7)),
        next_observations=observations[1:] + 9.0 * np.isin(np.arange(8), (2, 3, 5))[:, None] if has_next else None,
    )
    wrappers = [functools.partial(ReturnToGo, target_return=1.0)]
    with offpcc.make("pendulum-v0", wrappers=wrappers) as env:
        rows = read(data, env).rows
    shown = [rows.observations[first:last, -1].tolist() for first, last in zip(rows.starts, rows.stops, strict=True)]
    starts = (0, *stops[:-1])
    returns = [
        [rewards[step:stop].sum() for step in range(start, stop)] for start, stop in zip(starts, stops, strict=True)
    ]
    if has_next:
        assert shown == [[*episode, 0.0] for episode in returns]
    else:  # a row for each observation, of the terminated episode one more
        assert shown == [returns[0], [*returns[2], 0.0], returns[3]]


def test_transitions_without_order_have_no_returns_to_go():
    data = offpcc.collect(Pictures, None, 6, seed=1)
    data = dataclasses.replace(data, metadata={**data.metadata, SHUFFLED: True})
    make = {"wrappers": [functools.partial(ReturnToGo, target_return=3.0)]}
    with pytest.raises(
        UserError, match="transitions without order, so the returns that follow them are unknown; leave"
    ):
        offpcc.CDBC(Pictures, dataset=data, make=make)
