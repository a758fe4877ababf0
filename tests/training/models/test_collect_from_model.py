"""Imagined episodes: `ImaginedEpisodes`, and `offpcc collect --model`, which records them."""

import copy
import re
import shutil
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from collected import agent
from test_model_training import linear_data, small, trained

from offpcc.algorithms.agent import Agent, load_actor
from offpcc.core import Step
from offpcc.data.datasets.load import load_dataset
from offpcc.data.recording.episode_log import Ending
from offpcc.launch import main
from offpcc.training.models.files import load_model
from offpcc.training.models.rollouts import ImaginedEpisodes, remember


class Remembering:
    """An actor whose memory counts the steps of each episode, and whose action is this number / 100."""

    memoryless, device = False, torch.device("cpu")

    def __init__(self):
        self.steps = []

    def act(self, step, memory, deterministic=False):
        self.steps.append(step)
        count = np.where(step.is_first, 0, 0 if memory is None else memory + 1)
        return np.repeat(count[:, None] / 100.0, 2, 1).astype(np.float32), count


@pytest.fixture(scope="module")
def model():
    return trained(small(linear_data(), {"max_epochs": 6}))


def imagine(model, actor=None, length=4, seed=0, total=200, rows=None):
    imagination = ImaginedEpisodes(model, linear_data().rows if rows is None else rows, actor, length, seed)
    return imagination, list(imagination.episodes(total))


def test_imagined_steps_are_those_of_the_model_and_start_in_the_data(model):
    rows = linear_data().rows
    _, episodes = imagine(model)
    assert sum(len(episode.rewards) for episode in episodes) == 200
    assert {len(episode.rewards) for episode in episodes} <= {1, 2, 3, 4}
    known = {row.tobytes() for row in rows.observations[rows.is_start]}
    for episode in episodes:
        assert episode.observations[0].tobytes() in known
    before = np.concatenate([episode.observations[:-1] for episode in episodes])
    after = np.concatenate([episode.observations[1:] for episode in episodes])
    acted = np.concatenate([episode.actions for episode in episodes])
    step = model.step(before, acted)
    assert (step.uncertainty.epistemic <= model.facts["uncertainty"]["epistemic"]["1"] * 1.001).all()
    error = after - step.next_observations
    deviation = model.target_std[:-1].numpy()
    assert (np.abs(error).mean(0) < deviation).all()  # noise, which the mean has not
    assert np.abs(error).mean() > 0.0


def test_imagined_episodes_depend_on_the_seed_alone(model):
    def bytes_of(seed):
        return b"".join(part.tobytes() for episode in imagine(model, seed=seed)[1] for part in episode[:3])

    torch.manual_seed(1)
    first = bytes_of(3)
    torch.manual_seed(2)
    assert bytes_of(3) == first
    assert bytes_of(4) != first


def test_a_rollout_is_cut_before_the_step_that_is_less_certain_than_all_data(model, monkeypatch):
    facts = model.facts
    largest = facts["uncertainty"]["epistemic"]["1"]
    half = {**facts, "uncertainty": {"epistemic": {"1": 0.5 * largest}}}
    monkeypatch.setattr(model, "facts", half)
    _, episodes = imagine(model, length=50, total=1_000)
    assert any(len(episode.rewards) < 50 for episode in episodes[:-1])
    for episode in episodes:
        step = model.step(episode.observations[:-1], episode.actions)
        assert (step.uncertainty.epistemic <= 0.5 * largest * 1.001).all()
        assert episode.ending is not Ending.TERMINATED


def test_what_is_counted_belongs_to_the_yielded_steps(model):
    """Of the last round of rollouts, only some are needed."""
    world = copy.deepcopy(model)
    world.high[:] = world.low  # so each next observation is moved back
    world.spread[:] = 0.0
    world.facts["uncertainty"]["epistemic"]["1"] = np.inf
    imagination, _ = imagine(world, total=50)
    assert (imagination.num_bounded, imagination.num_left_out) == (50, 0)


def test_rollouts_that_are_cut_before_their_first_step_are_counted(model, monkeypatch):
    known = model.facts["uncertainty"]["epistemic"]["0.5"]
    monkeypatch.setattr(model, "facts", {"uncertainty": {"epistemic": {"1": known}}})
    imagination, episodes = imagine(model, length=1, total=2_000)
    assert len(episodes) == 2_000
    assert 0.4 < imagination.num_left_out / (2_000 + imagination.num_left_out) < 0.6


def test_a_large_limit_of_steps_takes_no_memory(model, monkeypatch):
    known = model.facts["uncertainty"]["epistemic"]["0.5"]
    monkeypatch.setattr(model, "facts", {"uncertainty": {"epistemic": {"1": known}}})
    _, episodes = imagine(model, length=10**13, total=300)
    assert sum(len(episode.rewards) for episode in episodes) == 300


def test_a_model_that_knows_nothing_of_the_actors_actions_is_refused(model, monkeypatch):
    monkeypatch.setattr(model, "facts", {"uncertainty": {"epistemic": {"1": 0.0}}})
    with pytest.raises(Exception, match=r"from each of 5,120 recorded observations.*closer to the data"):
        imagine(model)


def test_an_agent_with_memory_first_reads_the_recorded_prefix(model):
    data, actor = linear_data(num_episodes=3, length=6), Remembering()
    rows, at = data.rows, np.array([0, 3, 7, 12])  # rows of the first and the second episode
    memory, previous, is_first = remember(actor, rows, at, context_starts=np.array([0, 0, 7, 7]))
    step = Step(rows.observations[at], *previous, is_first)
    assert step.is_first.tolist() == [1.0, 0.0, 1.0, 0.0]
    _, count = actor.act(step, memory)
    assert count.tolist() == [0, 3, 0, 5]
    np.testing.assert_array_equal(step.previous_action[[0, 2]], 0.0)
    np.testing.assert_array_equal(step.previous_action[[1, 3]], rows.actions[at[[1, 3]] - 1])
    np.testing.assert_array_equal(step.previous_reward[[1, 3]], rows.rewards[at[[1, 3]] - 1])
    for earlier in actor.steps[:-1]:
        assert earlier.is_first[[0, 2]].all()
    _, episodes = imagine(model, Remembering(), rows=data.rows)
    for episode in episodes:
        place = int(np.flatnonzero((rows.observations == episode.observations[0]).all(1))[0])
        first = rows.starts[rows.starts <= place].max()
        np.testing.assert_allclose(
            episode.actions[:, 0] * 100, np.arange(len(episode.actions)) + place - first, rtol=1e-5
        )


def test_a_history_moves_on_with_the_imagined_steps():
    data = linear_data()
    model = trained(small(data, {"max_epochs": 2}, history=3))
    seen = []
    predict = model.imagine

    def watching(observations, actions, generator, places=None, with_uncertainty=True):
        step = predict(observations, actions, generator, places)
        seen.append((observations.clone(), actions.clone(), step.next_observations))
        return step

    model.imagine = watching
    model.facts["uncertainty"]["epistemic"]["1"] = np.inf
    ImaginedEpisodes(model, data.rows, None, 4, 0).rollouts(5)
    for (observed, acted, following), (later, later_acted, _) in pairwise(seen):
        assert torch.equal(later[:, :-1], observed[:, 1:])
        assert torch.equal(later[:, -1], following)
        assert torch.equal(later_acted[:, :-1], acted[:, 1:])
        assert not torch.equal(later_acted[:, -1], acted[:, -1])


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A recording of the pendulum, and a model of it."""
    folder = tmp_path_factory.mktemp("world")
    data, file = str(folder / "random.hdf5"), str(folder / "model.pt")
    assert main(["collect", "--env", "pendulum-v0", "--actor", "random", "--steps", "900", "--out", data]) == 0
    settings = ["DynamicsModel.hidden_dims=(16,)", "ModelTraining.max_epochs=3"]
    assert main(["train-model", "--dataset", data, "--out", file, "--device", "cpu", "--gin", *settings]) == 0
    return data, file


def words(world, out, *more, actor="random", steps="300"):
    data, file = world
    given = ["collect", "--model", file, "--dataset", data, "--actor", str(actor), "--steps", steps, "--out", str(out)]
    return [*given, "--device", "cpu", *more]


@pytest.mark.parametrize("algo", ["random", "sac", "rsac"])
def test_imagined_steps_are_a_data_set(world, tmp_path, capsys, algo):
    actor = algo if algo == "random" else agent(tmp_path / "actor.pt", algo, env="pendulum-v0")
    out, again, other = (tmp_path / name for name in ("a.hdf5", "b.hdf5", "c.hdf5"))
    assert main(words(world, out, actor=actor)) == 0
    printed = capsys.readouterr().out
    assert "300 steps in " in printed
    assert f"--env pendulum-v0 --algo {'riql' if algo == 'rsac' else 'iql'} --dataset {out}" in printed
    assert main(words(world, again, actor=actor)) == 0
    assert main(words(world, other, "--seed", "1", actor=actor)) == 0
    assert out.read_bytes() == again.read_bytes() != other.read_bytes()
    data = load_dataset(out)
    lengths = data.stops - data.starts
    assert (data.num_transitions, lengths.max() <= 5) == (300, True)
    assert 1.0 < np.abs(data.actions).max() <= 2.0
    with h5py.File(out) as file:
        facts = {name: value[()] for name, value in file["metadata"].items()}
    assert facts["imagined"]
    assert (facts["env"], facts["model"], facts["action_high"].tolist()) == (b"pendulum-v0", b"model.pt", [2.0])
    assert facts["actor"].decode() == ("random" if algo == "random" else "actor.pt")
    assert len(facts["model_sha256"]) == 64
    assert main(["check", "--dataset", str(out)]) == 0
    assert main(["check", "--model", world[1], "--dataset", str(out)]) == 0


def test_the_next_command_imports_an_environment_of_the_users_own(world, tmp_path, capsys):
    """The recording names it, but only its module registers it."""
    data = str(shutil.copy(world[0], tmp_path / "own.hdf5"))
    with h5py.File(data, "r+") as file:
        del file["metadata/env"]
        file["metadata/env"] = "Own-v0"
    assert main(words((data, world[1]), tmp_path / "a.hdf5")) == 0
    printed = capsys.readouterr().out
    assert "--env Own-v0 --algo iql" in printed and "--import MODULE" in printed
    assert "to learn from it (MODULE registers Own-v0):" in printed
    assert main(words(world, tmp_path / "b.hdf5")) == 0
    assert "--import" not in capsys.readouterr().out


def test_only_rollouts_in_the_data_set_are_counted(world, tmp_path, capsys):
    assert main(words(world, tmp_path / "a.hdf5", "--rollout_length", "30")) == 0
    data = load_dataset(tmp_path / "a.hdf5")
    num_cut = int((data.is_whole & data.truncations[data.stops - 1] & (data.lengths < 30)).sum())
    assert f" 0 terminated, {num_cut} were cut because" in capsys.readouterr().out


def test_rollouts_without_a_step_are_told(world, tmp_path, capsys, monkeypatch):
    def load(file, device):
        model = load_model(file, device)
        model.facts["uncertainty"]["epistemic"]["1"] = model.facts["uncertainty"]["epistemic"]["0.5"]
        return model

    monkeypatch.setattr("offpcc.cli.imagine.load_model", load)
    assert main(words(world, tmp_path / "a.hdf5", "--rollout_length", "1")) == 0
    printed = capsys.readouterr().out
    assert re.search(r" 0 were cut because the networks disagreed, \d+ more before their first step; ", printed)


@pytest.mark.slow
def test_a_rollout_has_the_wanted_length(world, tmp_path):
    assert main(words(world, tmp_path / "a.hdf5", "--rollout_length", "30")) == 0
    data = load_dataset(tmp_path / "a.hdf5")
    assert 5 < (data.stops - data.starts).max() <= 30


@pytest.mark.slow
def test_an_agent_sees_what_it_was_trained_on(world, tmp_path):
    actor = load_actor(Path(agent(tmp_path / "actor.pt", "sac", env="pendulum-v0")), torch.device("cpu"))
    assert main(words(world, tmp_path / "a.hdf5", "--deterministic", actor=tmp_path / "actor.pt")) == 0
    data = load_dataset(tmp_path / "a.hdf5")
    shown = np.array([Agent(actor).act(observation) for observation in data.observations[:20]])
    np.testing.assert_allclose(shown, data.actions[:20], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_data_with_states_for_critics_give_a_data_set_for_the_agents_own_view(tmp_path):
    """A model of what the agent sees; its steps have no states, and fit the environment that shows none."""
    data, file, out = (str(tmp_path / name) for name in ("states.hdf5", "model.pt", "imagined.hdf5"))
    (tmp_path / "state.gin").write_text('make.state = "info"')
    given = ["--steps", "900", "--out", data, "--config", str(tmp_path / "state.gin")]
    assert main(["collect", "--env", "pendulum-p-v0", "--actor", "random", *given]) == 0
    settings = ["DynamicsModel.hidden_dims=(16,)", "ModelTraining.max_epochs=3"]
    assert main(["train-model", "--dataset", data, "--out", file, "--device", "cpu", "--gin", *settings]) == 0
    assert main(words((data, file), out)) == 0
    assert main(["check", "--dataset", out, "--env", "pendulum-p-v0"]) == 0


def test_what_does_not_fit_is_refused(world, tmp_path, capsys):
    data, file = world
    blind = agent(tmp_path / "blind.pt", "sac", env="pendulum-p-v0")
    there, other = tmp_path / "there.hdf5", tmp_path / "other.hdf5"
    assert main(["collect", "--env", "pendulum-p-v0", "--actor", "random", "--steps", "300", "--out", str(there)]) == 0
    for line, message in [
        (words(world, other, actor=blind), "was trained with observations of shape (2,) and 1 action"),
        (words((str(there), file), other), "the data have observations of shape (2,)"),
        (words((data, str(tmp_path / "none.pt")), other), "none.pt"),
        (words((data, data), other), "random.hdf5"),
        (words((str(tmp_path / "none.hdf5"), file), other), "none.hdf5"),
        (words(world, there), "exists and is not overwritten"),
        (words(world, other, "--resume"), "--resume has no effect on episodes in a model"),
        (words(world, other, "--recipe", "d4rl"), "--model"),
        (words(world, other, "--rollout_length", "0"), "--rollout_length: '0' is no whole number above 0"),
        (words(world, other, "--deterministic"), "--deterministic has no effect on random actions"),
        (["collect", "--model", file, "--actor", "random", "--steps", "9", "--out", str(other)], "with --dataset"),
        (["collect", "--env", "pendulum-v0", "--actor", "random", "--steps", "9", "--out", str(other), "--dataset",
          data], "has no effect without --model"),
    ]:  # fmt: skip
        assert main(line) == 2, line
        assert message in capsys.readouterr().err
    assert not other.exists()
