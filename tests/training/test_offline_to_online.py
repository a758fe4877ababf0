"""Learning that goes on in the environment after recorded data: one run of two phases."""

import functools
import json
import re
import shlex
import shutil
from types import SimpleNamespace

import dict_task
import gin
import gymnasium
import numpy as np
import pytest
import torch
from conftest import merged, rows
from exact_resume import assert_equal_runs, assert_same, tensors
from gymnasium.spaces import Box, Dict, Discrete
from matplotlib.axes import Axes
from runs import assert_stops_and_resumes_exactly, progress_rows, quiet_fit, stop_at

import offpcc
from offpcc.algorithms import find_algorithm
from offpcc.algorithms.agent import build_actor
from offpcc.config import loading
from offpcc.config.bindings import check_unused_bindings
from offpcc.config.registry import from_specification
from offpcc.core import PackedDict, Step
from offpcc.data import ReplayBuffer
from offpcc.networks.layers import EnsembleLayerNorm
from offpcc.networks.noise import Noise
from offpcc.training.analysis.plotting import plot_run
from offpcc.training.analysis.run_tables import loss_at_switch, read_progress, switch_of
from offpcc.training.callbacks import Callback
from offpcc.training.checkpoint import Checkpoints, read_checkpoint, take_networks
from offpcc.training.fit import fit
from offpcc.training.interaction import Interaction
from offpcc.training.loggers import Loggers
from offpcc.training.online import OnlineOptions, OnlinePhase, normalizes, take_over
from offpcc.training.spec import RunSpec
from offpcc.utils import signals
from offpcc.utils.errors import DataWarning, UserError

SHORT = (
    "train.num_epochs=1",
    "train.num_steps_per_epoch=120",
    "train.num_test_episodes_per_epoch=1",
    "train.updates_per_step=0.1",
    "ActorCritic.hidden_dims=(16,16)",
)
ONLINE = ("OfflineToOnline.warm_up_steps=30", "OfflineToOnline.updates_per_step=0.1")
THEN = ("--then_env_steps", "240")
NAN = float("nan")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture
def online(launch, pendulum_file):
    """Train a few steps from recorded data, and go on in the environment."""

    def run(algo, *extra, env="pendulum-v0", then=THEN, bindings=()):
        given = ("--dataset", pendulum_file, "--env", env, "--config", "test/offline_short.gin", *then)
        return launch("--algo", algo, *given, *extra, "--gin", *merged(*SHORT, *(ONLINE if then else ()), *bindings))

    return run


def folder(tmp_path, algo, label="pendulum-v0_from_swings_then_online", run_id=1):
    return tmp_path / "results" / label / algo / str(run_id)


def columns(run, *names):
    return [tuple(row[name] for name in names) for row in progress_rows(run)]


def env_steps(run):
    return [row["env_step"] for row in progress_rows(run)]


def test_one_run_has_two_phases(online, tmp_path):
    code, out, err = online("iql")
    assert code == 0, err
    assert "note: 120 steps on the data make 12 updates (train.updates_per_step = 0.1)" in out
    assert "then 240 steps in pendulum-v0 by IQL, 50% of each batch from the data, the first 30 without updates" in out
    found = [
        (row["step"], row["update"], row["epoch"], row["env_step"]) for row in progress_rows(folder(tmp_path, "iql"))
    ]
    assert found == [("120", "12", "1", ""), ("240", "21", "2", "120"), ("360", "33", "3", "240")]


@pytest.mark.parametrize(
    ("algo", "stops"),
    [("riql", (200,)), *(slow(name, (50, 133, 134, 200, 379)) for name in ("iql", "riql", "rebrac"))],
)
def test_a_run_resumes_exactly_before_at_and_after_the_switch(algo, stops, online, tmp_path, monkeypatch):
    """Call 133 is the end of the last epoch of recorded data."""
    command = functools.partial(online, algo)
    assert command()[0] == 0
    assert_stops_and_resumes_exactly(command, folder(tmp_path, algo), stops, monkeypatch)


@pytest.mark.parametrize("stop", [150, 200])
def test_a_noise_that_falls_resumes_exactly_between_two_rounds_of_updates(stop, online, tmp_path, monkeypatch):
    """It changes how the agent acts, also before the next update."""
    bindings = ("OfflineToOnline.decay=['action_noise']", "TD3BC.action_noise=0.3")
    command = functools.partial(online, "td3_bc", bindings=bindings)
    code, _, err = command()
    assert code == 0, err
    assert_stops_and_resumes_exactly(command, folder(tmp_path, "td3_bc"), [stop], monkeypatch)


@pytest.mark.parametrize("algo", ["iql", slow("riql")])
def test_continuing_a_finished_run_gives_the_same(algo, online, launch, tmp_path, monkeypatch):
    assert online(algo)[0] == 0
    whole = folder(tmp_path, algo)
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "two"))
    assert online(algo, then=(), bindings=())[0] == 0
    before = tmp_path / "two" / "pendulum-v0_from_swings" / algo / "1"
    code, out, err = launch("--from", before, "--env", "pendulum-v0", *THEN, "--gin", *ONLINE)
    assert code == 0, err
    assert f"going on from {before} after epoch 1, step 120" in out
    assert "is missing" not in out, "the table of a new folder begins with the rows of the first phase"
    assert "so it does not improve" not in out
    after = tmp_path / "two" / whole.relative_to(tmp_path / "results")
    assert_equal_runs(whole, after, bound=False)
    assert json.loads((after / "run.json").read_text())["from"] == str(before)
    assert_same(*(torch.load(run / "actor_best.pt") for run in (whole, after)))  # the best test was before the switch


def test_a_run_that_continues_another_needs_no_number_of_epochs(online, launch, tmp_path):
    """A binding of it would be refused, as one without effect."""
    assert online("iql", then=())[0] == 0
    given = ("--from", folder(tmp_path, "iql", "pendulum-v0_from_swings"), "--env", "pendulum-v0", *THEN)
    config = tmp_path / "own.gin"
    config.write_text("\n".join(one for one in SHORT if "num_epochs" not in one and "updates" not in one))
    settings = ("--config", config, "--gin", *ONLINE)
    code, _, err = launch(*given, *settings)
    assert code == 0, err
    assert [row["epoch"] for row in progress_rows(folder(tmp_path, "iql"))] == ["1", "2", "3"]
    code, out, err = launch(*given[:-1], 360, "--resume")
    assert code == 0 and "not exact" not in out and len(progress_rows(folder(tmp_path, "iql"))) == 4, err
    code, _, err = launch(*given, *settings, "train.num_epochs=1", "--run_id", 2)
    assert code == 2 and "train.num_epochs has no effect: the run continues another one" in err


def test_settings_of_the_second_phase_that_a_run_leaves_behind_are_noted(online, launch, tmp_path):
    config = tmp_path / "own.gin"
    config.write_text("include 'configs/test/offline_short.gin'\nOfflineToOnline.share = 0.25\n")
    assert online("iql", "--config", config, then=())[0] == 0
    before = folder(tmp_path, "iql", "pendulum-v0_from_swings")
    code, out, err = launch("--from", before, "--env", "pendulum-v0", *THEN, "--gin", *ONLINE)
    assert code == 0, err
    note = f"note: {before} was started with OfflineToOnline.share = 0.25, which --from does not take over"
    assert note in out and "50% of each batch from the data" in out
    took = f"the other values are those of {before}, except those of OfflineToOnline"
    assert took in out and "settings by" not in out, "settings that nobody gave here are not listed"
    given = ("--run_id", 2, "--gin", *ONLINE, "OfflineToOnline.share=0.5")
    code, out, err = launch("--from", before, "--env", "pendulum-v0", *THEN, *given)
    assert code == 0, err
    assert "does not take over" not in out


@pytest.mark.slow
def test_an_unfinished_run_goes_on_with_another_seed_and_whole_epochs(online, launch, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "on_progress", stop_at(100))
        code, _, err = online("iql", then=())
    assert code == 130, err
    before = folder(tmp_path, "iql", "pendulum-v0_from_swings")
    given = ("--from", before, "--env", "pendulum-v0", *THEN, "--run_id", "1", "2", "--gin", *ONLINE)
    code, out, err = launch(*given)
    assert code == 0, err
    assert "after epoch 0, step 91" in out
    found = columns(folder(tmp_path, "iql"), "step", "epoch", "env_step")
    assert found == [("211", "1", "120"), ("331", "2", "240")]
    assert rows(folder(tmp_path, "iql")) != rows(folder(tmp_path, "iql", run_id=2))
    assert switch_of(read_progress(folder(tmp_path, "iql") / "progress.csv")) == 91.0


class UnitPendulum(gymnasium.Env):
    """The pendulum whose own actions are from -1 to 1."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, **given):
        self.inner = gymnasium.make("pendulum-v0", **given)
        self.observation_space = self.inner.observation_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.inner.reset(seed=int(self.np_random.integers(1_000)))

    def step(self, action):
        return self.inner.step(2.0 * action)


gymnasium.register("unit-pendulum-v0", entry_point=UnitPendulum)


@pytest.mark.slow
def test_a_run_without_an_environment_goes_on_in_one(launch, unit_file, tmp_path):
    settings = [one for one in SHORT if "tests" not in one and "test_episodes" not in one]
    given = ("--dataset", unit_file, "--algo", "iql", "--config", "test/offline_short.gin")
    code, _, err = launch(*given, "--gin", *settings)
    assert code == 0, err
    given = ("--from", folder(tmp_path, "iql", "swings"), "--env", "unit-pendulum-v0", *THEN)
    code, _, err = launch(*given, "--gin", *ONLINE, "train.num_test_episodes_per_epoch=1")
    assert code == 0, err
    after = progress_rows(folder(tmp_path, "iql", "unit-pendulum-v0_from_swings_then_online"))
    assert [row["env_step"] for row in after] == ["", "120", "240"]
    assert [bool(row["test/return"]) for row in after] == [False, True, True]


# What the second phase learns from, and how ---------------------------------------------------------------------------


def learner(algo, data, *bindings, steps=240, env="pendulum-v0", **given):
    loading.load_gin_config("test/offline_short.gin", merged(*SHORT, *ONLINE, *bindings))
    return offpcc.build(env, algo, dataset=data, then_env_steps=steps, seed=3, **given)


def test_a_copy_of_actions_does_not_improve_online(pendulum_file, recwarn):
    """Said once, when the learner is built."""
    built = learner("bc", pendulum_file)
    built.train(Loggers([]), num_epochs=1)
    told = [one for one in recwarn if "does not improve" in str(one.message)]
    assert len(told) == 1 and issubclass(told[0].category, DataWarning)
    expected = "BC copies the actions of its data, also its own, so it does not improve; choose another algorithm, or"
    assert str(told[0].message).startswith(expected)
    recwarn.clear()
    learner("td3_bc", pendulum_file)
    learner("bc", pendulum_file, steps=None)
    assert not any("does not improve" in str(one.message) for one in recwarn)


def test_a_copy_of_actions_takes_over_from_an_agent_with_longer_targets(pendulum_file):
    online = learner("td3_bc", pendulum_file, "OfflineToOnline.algorithm='bc'", "ActorCritic.n_step=3").online
    assert type(online.algorithm).__name__ == "BC" and online.algorithm.n_step == 1


class Watch(Callback):
    """Keeps what the run had at each round of updates."""

    def __init__(self, look):
        self.look, self.seen = look, []

    def before_updates(self, run):
        self.seen.append((run.loop.step - 120, run.loop.switch_step, self.look(run)))

    @property
    def online(self):
        return [(step, value) for step, switch, value in self.seen if switch is not None]


def quietly(built, *callbacks):
    built.train(Loggers([]), list(callbacks))
    return built


def finish_first_phase(built):
    built._train(Loggers([]), [], {**built.spec.training, "num_epochs": 1})
    built.go_online()


@pytest.fixture
def explored(monkeypatch):
    """A list that gets of each step whether its action is drawn at random."""
    flags, step = [], Interaction.step
    monkeypatch.setattr(Interaction, "step", lambda self, random: flags.append(random) or step(self, random))
    return flags


@pytest.mark.parametrize(("algo", "first"), [("iql", 31 + 9), ("riql", 200)])
def test_the_policy_warms_up_and_an_agent_with_memory_waits_for_whole_episodes(algo, first, pendulum_file, explored):
    watch = Watch(lambda run: len(run.buffer))
    built = quietly(learner(algo, pendulum_file), watch)
    assert explored == [False] * 240  # never at random
    assert watch.online[0][0] == first
    assert built.loop.num_updates == 12 + 21


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_batch_has_the_share_of_recorded_data(share, pendulum_file):
    built = learner("iql", pendulum_file, f"OfflineToOnline.share={share}")
    before = built.buffer
    sizes = []
    sample = ReplayBuffer.sample

    def counted(self):
        sizes.append((self is before, self.batch_size))
        return sample(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplayBuffer, "sample", counted)
        quietly(built)
    assert sizes[:12] == [(True, 64)] * 12
    drawn = {(True, round(64 * share)), (False, 64 - round(64 * share))}
    assert set(sizes[12:]) == {pair for pair in drawn if pair[1]}


def test_numbers_of_the_algorithm_fall(pendulum_file):
    decay = "OfflineToOnline.decay=['actor_bc_coef','critic_bc_coef']"
    given = ("ReBRAC.actor_bc_coef=0.4", "ReBRAC.critic_bc_coef=0.2", decay, "OfflineToOnline.decay_steps=160")
    given += ("OfflineToOnline.decay_to=0.25",)
    watch = Watch(lambda run: (run.algorithm.actor_bc_coef, run.algorithm.critic_bc_coef))
    built = learner("rebrac", pendulum_file, *given, "OfflineToOnline.exploration_noise=0.0")
    quietly(built, watch)
    assert built.algorithm.noise_scale == built.algorithm.action_noise == 0.0
    assert {value for step, switch, value in watch.seen if switch is None} == {(0.4, 0.2)}
    for step, values in watch.online:
        share = 1.0 - 0.75 * min(step / 160, 1.0)
        assert values == pytest.approx((0.4 * share, 0.2 * share))
    assert watch.online[-1][1] == pytest.approx((0.1, 0.05))
    built.online.num_steps = 360
    quietly(built, watch)  # goes on from the same first values
    assert built.loop.epoch == 4 and watch.online[-1][1] == pytest.approx((0.1, 0.05))


def test_numbers_of_the_algorithm_are_zero_online_alone(pendulum_file):
    given = ("ReBRAC.actor_bc_coef=0.4", "ReBRAC.critic_bc_coef=0.2", "OfflineToOnline.zero=['critic_bc_coef']")
    watch = Watch(lambda run: (run.algorithm.actor_bc_coef, run.algorithm.critic_bc_coef))
    built = learner("rebrac", pendulum_file, *given)
    quietly(built, watch)
    assert {value for step, switch, value in watch.seen if switch is None} == {(0.4, 0.2)}
    assert {value for _, value in watch.online} == {(0.4, 0.0)}


@pytest.mark.parametrize("keeps", [True, False])
def test_schedules_start_anew_and_moments_are_kept_or_not(keeps, pendulum_file):
    rate = ("IQL.actor_lr=@LinearDecay()", "LinearDecay.initial=1e-3", "LinearDecay.num_updates=12")
    built = learner("iql", pendulum_file, *rate, f"OfflineToOnline.keep_moments={keeps}")
    optimizer = built.algorithm.actor_optimizer
    rates = Watch(lambda run: optimizer.num_updates)
    quietly(built, rates)
    assert [value for _, value in rates.online] == [*range(21)]  # of the second phase alone
    assert optimizer.num_made() == (12 + 21 if keeps else 21)


def test_networks_targets_and_statistics_go_on_as_they_are(pendulum_file):
    built = learner("rebrac", pendulum_file, "ReBRAC.normalize_observations=True")
    built._train(Loggers([]), [], {**built.spec.training, "num_epochs": 1})
    before = {name: tensors(part.state_dict()) for name, part in built.algorithm.stateful_parts().items()}
    first_noise = Noise(built.spec.seed, built.algorithm.device)
    built.go_online()
    assert not np.array_equal(built.algorithm.noise.array(3), first_noise.array(3))  # the phase draws its own
    after = built.algorithm.stateful_parts()
    for name in ("actor", "target_actor", "critics", "target_critics", "normalization"):
        for path, value in tensors(after[name].state_dict()).items():
            assert torch.equal(value, before[name][path])
    mean = built.algorithm.normalization.mean.clone()
    quietly(built)
    assert torch.equal(mean, built.algorithm.normalization.mean)  # frozen


OTHER_CELL = (
    "RecurrentCQL.encoder=@Recurrent",
    "Recurrent.cell='gru'",
    "RecurrentSAC.encoder=@a/Recurrent",
    "a/Recurrent.cell='lstm'",
)


def test_imitation_at_the_start_does_not_begin_again(pendulum_file):
    built = quietly(learner("cql", pendulum_file, "CQL.bc_steps=5"))
    assert built.algorithm.bc_steps == 0 and built.algorithm.critic_optimizer.num_updates == 21


# Another algorithm ----------------------------------------------------------------------------------------------------


def test_learning_rates_of_the_first_algorithm_are_refused_in_the_phase_of_another(pendulum_file, tmp_path):
    built = learner("cql", pendulum_file, "OfflineToOnline.algorithm='sac'")
    built.save(tmp_path / "before.pt")
    assert offpcc.load(tmp_path / "before.pt", dataset=pendulum_file, env="pendulum-v0", algorithm={"lr": 1e-5})
    finish_first_phase(built)
    built.save(tmp_path / "after.pt")
    with pytest.raises(UserError, match="already learns by SAC, and lr would be arguments of CQL; leave them out"):
        offpcc.load(tmp_path / "after.pt", dataset=pendulum_file, env="pendulum-v0", algorithm={"lr": 1e-5})


@pytest.mark.parametrize("setting", ["gamma=0.9", "reward_scale=0.1", "reward_shift=2.0", "clip_rewards=True"])
def test_values_of_other_rewards_are_not_taken_over(pendulum_file, setting):
    name = setting.partition("=")[0]
    with pytest.raises(UserError, match=rf"SAC\.{name} is .*, but that of CQL, .*give both the same"):
        learner("cql", pendulum_file, "OfflineToOnline.algorithm='sac'", f"CQL.{setting}")
    learner("cql", pendulum_file, "OfflineToOnline.algorithm='sac'", f"ActorCritic.{setting}")


@pytest.mark.parametrize(
    ("algo", "other"),
    [("cql", "sac"), ("td3_bc", "td3"), slow("rcql", "rsac"), slow("sac_n", "edac"), slow("rcql_s", "rsac_s")],
)
def test_another_algorithm_takes_over_equal_networks(algo, other, pendulum_file):
    built = learner(algo, pendulum_file, f"OfflineToOnline.algorithm='{other}'")
    first = built.algorithm
    finish_first_phase(built)
    second = built.algorithm
    assert type(second) is find_algorithm(other) and type(first) is find_algorithm(algo)
    assert (second.normalization is None) is (first.normalization is None)
    for one, two in zip(first.networks()[:5], second.networks(), strict=False):
        assert all(torch.equal(x, y) for x, y in zip(one.parameters(), two.parameters(), strict=True))
    if hasattr(second, "temperature"):
        assert torch.equal(first.temperature(), second.temperature()) and second.temperature() != 1.0
    assert second.critic_optimizer.num_made() == 12  # moments are kept
    quietly(built)
    assert second.critic_optimizer.num_updates == 21
    observation = np.zeros((1, 3), np.float32)
    file = second.actor_file()
    rebuilt = from_specification(file["algorithm"])
    assert type(rebuilt) is type(second) and observation.shape[1:] == rebuilt.space_shape


def test_the_kind_of_normalisation_is_kept(pendulum_file):
    given = ("CQL.normalize_observations='scale'", "OfflineToOnline.algorithm='sac'")
    built = learner("cql", pendulum_file, *given)
    built.go_online()
    algorithm = built.algorithm
    assert type(algorithm) is find_algorithm("sac") and not algorithm.normalization.shifts
    algorithm.normalization.mean += 0.7
    saved = build_actor(algorithm.actor_file(), "here")  # acts alike
    step = Step(*(np.ones((1, size), np.float32) for size in (3, 1, 1)), np.ones(1, bool))
    np.testing.assert_array_equal(saved.act(step, deterministic=True)[0], algorithm.act(step, deterministic=True)[0])


def test_a_state_is_normalised_as_before_where_images_are_not():
    entries = {"observation": Box(0, 255, (3, 36, 36), np.uint8), "state": Box(-np.inf, np.inf, (4,), np.float32)}
    given = PackedDict(Dict(entries), "state"), Box(-1, 1, (1,), np.float32)
    first = find_algorithm("ccql")(*given, hidden_dims=(8,), normalize_observations="scale")
    assert first.normalization is None and not first.state_normalization.shifts
    first.state_normalization.mean += 0.5
    second = find_algorithm("csac")(*given, hidden_dims=(8,))
    take_over(second, first.state_dict(), "CQL", normalizes(first))
    assert torch.equal(second.state_normalization.mean, first.state_normalization.mean)
    assert not second.state_normalization.shifts
    assert build_actor(first.actor_file(), "here").normalization is None


def test_exploration_noise_of_the_second_phase_falls_from_its_own_value(pendulum_file):
    given = ("OfflineToOnline.exploration_noise=0.5", "OfflineToOnline.decay=['action_noise']")
    watch = Watch(lambda run: run.algorithm.noise_scale)
    quietly(learner("td3_bc", pendulum_file, *given), watch)
    noise = [value for _, value in watch.online]
    assert noise[0] == pytest.approx(0.5, abs=0.05) and noise[-1] == pytest.approx(0.25)


def test_the_noise_of_the_second_phase_is_in_the_file_of_its_actor(pendulum_file):
    built = quietly(learner("td3_bc", pendulum_file, "OfflineToOnline.exploration_noise=0.5"))
    assert built.algorithm.actor_file()["algorithm"]["arguments"]["action_noise"] == 0.5


@pytest.mark.parametrize(
    ("algo", "bindings", "epsilon"),
    [
        ("dqn", (), 0.05),
        ("dcql", ("OfflineToOnline.algorithm='qrdqn'",), 0.05),
        ("dqn", ("DQN.initial_epsilon=0.5", "ValueBased.epsilon_steps=1_000_000"), 0.5),
    ],
)
def test_an_agent_that_chooses_by_values_does_not_explore_at_random_again(algo, bindings, epsilon):
    data = offpcc.collect("CartPole-v1", None, 200, seed=0)
    short = ("ActorCritic.hidden_dims=(8,)", "train.num_steps_per_epoch=20", "train.num_test_episodes_per_epoch=0")
    offpcc.configure(None, *short, "OfflineToOnline.warm_up_steps=5", *bindings)
    built = offpcc.build("CartPole-v1", algo, dataset=data, then_env_steps=20)
    built.train(Loggers([]), num_epochs=1)
    assert built.algorithm.epsilon() == pytest.approx(epsilon, abs=0.001)
    other = offpcc.build("CartPole-v1", algo, dataset=data, then_env_steps=20)
    other.train(Loggers([]), num_epochs=0)
    assert other.algorithm.epsilon() > 0.4 or algo == "dcql", "nothing was learned from the data"


@pytest.mark.parametrize("bindings", [(), ("ValueBased.initial_epsilon=1.0",)])
def test_an_agent_that_learned_from_data_alone_is_not_recorded_at_random(bindings, tmp_path):
    """Its first epsilon belongs to steps in an environment, of which it made none."""
    data = offpcc.collect("CartPole-v1", None, 200, seed=0)
    short = ("ActorCritic.hidden_dims=(8,)", "train.num_steps_per_epoch=20", "train.num_test_episodes_per_epoch=0")
    offpcc.configure(None, *short, "OfflineToOnline.warm_up_steps=5", *bindings)
    built = offpcc.build("CartPole-v1", "qrdqn", dataset=data, then_env_steps=40)
    assert built.algorithm.actor_file()["algorithm"]["arguments"]["final_epsilon"] == 0.05
    assert built.algorithm.epsilons(2) == pytest.approx([0.05, 0.05])
    built.train(Loggers([]), num_epochs=0)
    assert built.algorithm.epsilon() > 0.9


@pytest.mark.parametrize(
    ("first", "then", "alpha"),
    [
        ((), ("SAC.autotune=False", "SAC.alpha=0.2"), 0.2),
        (("SAC.autotune=False", "SAC.alpha=0.2"), ("SAC.autotune=False", "SAC.alpha=0.01"), 0.01),
    ],
)
def test_a_constant_temperature_is_not_that_of_another_run(first, then, alpha, launch, tmp_path):
    short = merged(*SHORT, "train.num_epochs=1", "train.update_after=20", "train.updates_per_step=0.1")
    given = ("--algo", "sac", "--env", "pendulum-v0", "--config", "test/template_short.gin")
    assert launch(*given, "--gin", *short, *first)[0] == 0
    source = folder(tmp_path, "sac", "pendulum-v0")
    code, _, err = launch(*given, "--run_id", "2", "--init", source, "--gin", *short, *then)
    assert code == 0, err
    assert float(progress_rows(folder(tmp_path, "sac", "pendulum-v0", 2))[0]["update/alpha"]) == pytest.approx(alpha)


def test_q_networks_of_rescaled_values_are_not_taken_over():
    data = offpcc.collect("CartPole-v1", None, 200, seed=0)
    offpcc.configure(None, "ActorCritic.hidden_dims=(8,)", "OfflineToOnline.algorithm='r2d2'")
    with pytest.raises(
        UserError, match=r"R2D2\.rescaling is 0\.001, but that of .*DQN, .* is None; give both the same"
    ):
        offpcc.build("CartPole-v1", "rdqn", dataset=data, then_env_steps=20, algorithm={"hidden_dim": 8})


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        (
            "dataset.return_range=9.0",
            r"IQL\.reward_scale is .*, but .* is 1, with the factor of dataset\.return_range",
        ),
        ("ActorCritic.gamma=0.9", r"IQL\.gamma is 0\.9, but .* is 0\.99"),
    ],
)
def test_another_runs_critics_of_other_rewards_are_told(binding, words, online, launch, tmp_path):
    assert online("iql", then=())[0] == 0
    source = folder(tmp_path, "iql", "pendulum-v0_from_swings")
    code, _, err = launch("--from", source, "--env", "pendulum-v0", *THEN, "--gin", *ONLINE, binding)
    assert code == 2 and re.search(words + ".*give the same here", err), err
    code, out, err = online("iql", "--run_id", "2", "--init", str(source), then=(), bindings=(binding,))
    assert code == 0 and re.search(words + ".*learn new values first", out + err), (out, err)


@pytest.mark.parametrize("stop", [150, 250])
@pytest.mark.parametrize(
    ("first", "then", "before", "bindings"),
    [
        ("td3_bc", "td3", (), ()),
        ("cql", "cql", ("CQL.normalize_observations='scale'",), ("CQL.bc_steps=1000",)),
    ],
)
def test_a_run_that_began_with_networks_of_another_resumes_exactly(
    first, then, before, bindings, stop, online, launch, tmp_path, monkeypatch
):
    """Its observations are normalised as in the other run, and it does not imitate again."""
    assert online(first, then=(), bindings=before)[0] == 0
    source = folder(tmp_path, first, "pendulum-v0_from_swings")
    given = ("--algo", then, "--env", "pendulum-v0", "--config", "test/offline_short.gin", "--init", str(source))
    given += ("--gin", *merged(*SHORT, "train.num_epochs=3", "train.update_after=20", *bindings))
    command = functools.partial(launch, *given)
    code, out, err = command()
    assert code == 0, err
    skipped = "note: CQL.bc_steps = 1,000 has no effect with --init, because the networks have learned already"
    assert (skipped in out) is bool(bindings) and "will only imitate" not in out
    assert_stops_and_resumes_exactly(command, folder(tmp_path, then, "pendulum-v0"), [stop], monkeypatch)


def test_runs_that_begin_with_the_same_networks_draw_their_own_noise(online, launch, tmp_path):
    given = ("--config", "test/offline_short.gin", "--gin", *SHORT, "train.update_after=20")
    assert launch("--algo", "dqn", "--env", "cartpole-v0", *given, "ValueBased.epsilon_steps=50")[0] == 0
    checkpoint = read_checkpoint(folder(tmp_path, "dqn", "cartpole-v0") / "checkpoint.pt")
    loading.load_gin_config("test/offline_short.gin", merged(*SHORT))
    drawn = []
    for seed in (1, 2):
        fresh, built = (offpcc.build("cartpole-v0", "dqn", seed=seed).algorithm for _ in range(2))
        take_networks(checkpoint, SimpleNamespace(algorithm=built))
        assert built.epsilon() == fresh.epsilon() == 1.0
        drawn.append(built.noise.acting.generator.random(3))
        np.testing.assert_array_equal(drawn[-1], fresh.noise.acting.generator.random(3))
    assert not np.array_equal(*drawn)


@pytest.mark.slow
def test_a_run_goes_on_with_another_algorithm(online, launch, tmp_path):
    assert online("rcql", then=())[0] == 0
    before = folder(tmp_path, "rcql", "pendulum-v0_from_swings")
    given = ("--from", before, "--env", "pendulum-v0", "--algo", "rsac", "--config", "test/offline_short.gin", *THEN)
    code, _, err = launch(
        *given, "--gin", *[one for one in SHORT if "num_epochs" not in one and "updates" not in one], *ONLINE
    )
    assert code == 0, err
    after = progress_rows(folder(tmp_path, "rsac"))
    assert [row["env_step"] for row in after] == ["", "120", "240"]
    assert after[0]["update/gap"] and not after[1]["update/gap"]
    agent = offpcc.load_run(folder(tmp_path, "rsac")).agent()
    assert type(agent.algorithm).__name__ in ("RecurrentSAC", "RecurrentCQL")


TEN_CRITICS = ("CQL.num_critics=10", "CQL.layer_norm=True")
OF_RLPD = ("ActorCritic.hidden_dims=(16,16)", "train.num_steps_per_epoch=120", "train.num_test_episodes_per_epoch=1")


@pytest.mark.parametrize("stops", [(80,), slow((1, 32, 180))])
def test_a_run_goes_on_as_rlpd_with_half_of_each_batch_recorded_and_resumes_exactly(
    stops, online, launch, tmp_path, monkeypatch
):
    assert online("cql", then=(), bindings=TEN_CRITICS)[0] == 0
    before = folder(tmp_path, "cql", "pendulum-v0_from_swings")
    given = ("--from", before, "--env", "pendulum-v0", "--algo", "rlpd", "--config", "test/offline_short.gin", *THEN)
    settings = ("--gin", *OF_RLPD, *ONLINE, "RLPD.policy_delay=3", "OfflineToOnline.share=0.5")
    command = functools.partial(launch, *given, *settings)
    code, out, err = command()
    assert code == 0, err
    assert "then 240 steps in pendulum-v0 by RLPD, 50% of each batch from the data" in out
    whole = folder(tmp_path, "rlpd")
    assert columns(whole, "update", "env_step") == [
        ("12", ""),
        ("21", "120"),
        ("33", "240"),
    ]
    learned = read_checkpoint(whole / "checkpoint.pt")["algorithm"]
    assert len(learned["critics"]["net.0.weight"]) == 10
    assert_stops_and_resumes_exactly(command, whole, stops, monkeypatch)


@pytest.mark.parametrize(
    ("algo", "other", "bindings", "words"),
    [
        ("iql", "sac", (), "SAC cannot go on from IQL: actor"),
        ("cql", "sac", ("CQL.hidden_dims=(8,8)",), "SAC cannot go on from CQL: actor"),
        ("td3_bc", "rebrac", (), "ReBRAC cannot go on from TD3BC: critics"),
        ("cql", "rsac", (), "RecurrentSAC cannot go on from CQL"),
        ("rcql", "rsac", OTHER_CELL, "RecurrentSAC cannot go on from RecurrentCQL: actor_encoder"),
        ("cql", "sac", ("SAC.normalize_observations=False", "CQL.normalize_observations=True"), "but here it is False"),
        ("cql", "sac", ("CQL.n_step=3",), "SAC.n_step is 1, but that of CQL is 3"),
        ("cql", "sack", (), "there is no algorithm 'sack'"),
        ("iql", "rlpd", (), "RLPD cannot go on from IQL: actor has log_std, which is not known here"),
        ("cql", "rsac", (), "RecurrentSAC has a memory, and CQL has none; choose both"),
        ("bc", "sac", ("ActorCritic.n_step=3",), "BC has no critics; leave OfflineToOnline.algorithm out"),
    ],
)  # fmt: skip
def test_other_networks_are_refused_in_one_message(algo, other, bindings, words, online, tmp_path):
    code, _, err = online(algo, bindings=(f"OfflineToOnline.algorithm='{other}'", *bindings))
    assert code == 2 and words in err and err.count("\n") == 1, err
    assert not (tmp_path / "results").exists()


def test_the_settings_of_networks_that_differ_from_those_of_the_first_run_are_named(online, launch, tmp_path):
    assert online("riql", then=(), bindings=("ActorCritic.hidden_dims=(8, 8)", "Recurrent.hidden_dim=6"))[0] == 0
    run = folder(tmp_path, "riql", "pendulum-v0_from_swings")
    for option, start in (("--from", ("--from", run, *THEN)), ("--init", ("--init", run, "--algo", "riql"))):
        given = (*start, "--env", "pendulum-v0", "--config", "test/offline_short.gin", "--gin")
        changed = ("RecurrentIQL.hidden_dims=(8, 8, 8)", "Recurrent.hidden_dim=3")
        code, _, err = launch(*given, *(ONLINE if option == "--from" else SHORT[1:3]), *changed)
        told = (
            f"RecurrentIQL cannot go on from {run}: Recurrent.hidden_dim is 3, but there it is 6, and "
            "RecurrentIQL.hidden_dims is (8, 8, 8), but there it is (8, 8); give the same here"
        )
        assert code == 2 and told in err, err


@pytest.mark.parametrize(
    ("config", "algo"),
    [
        ("offline_to_online/iql", "riql"),
        ("offline_to_online/iql_adroit", "iql"),
        ("offline_to_online/rebrac", "rebrac"),
        ("offline_to_online/calql", "rcalql"),
        ("offline_to_online/sac", "cql"),
        ("offline_to_online/rlpd", "rlpd"),
        ("offline_to_online/rlpd", "rrlpd_s"),
        ("evidence/offline_to_online/pendulum", "rcql"),
        ("evidence/offline_to_online/pendulum_rebrac", "rrebrac"),
        ("evidence/offline_to_online/pendulum_sac", "rcql"),
        ("evidence/offline_to_online/hopper_rebrac", "rebrac"),
        ("evidence/offline_to_online/hopper_p_rebrac", "rrebrac"),
    ],
)
def test_a_config_builds_both_phases(config, algo, pendulum_file):
    loading.load_gin_config(f"{config}.gin", [])
    built = offpcc.build("pendulum-v0", algo, dataset=pendulum_file, then_env_steps=10_000)
    built.go_online()
    check_unused_bindings(built.spec.config.bindings)
    assert built.is_online and built.online.options.warm_up_steps >= 1_000


@pytest.mark.parametrize(
    ("config", "expectile", "beta", "dropout"),
    [("offline_to_online/iql", 0.7, 3.0, 0.0), ("offline_to_online/iql_adroit", 0.8, 3.0, 0.1)],
)
def test_the_settings_of_iql_for_going_on(config, expectile, beta, dropout, pendulum_file):
    loading.load_gin_config(f"{config}.gin", [])
    algorithm = offpcc.build("pendulum-v0", "iql", dataset=pendulum_file, then_env_steps=10_000).algorithm
    rates = [module.p for module in algorithm.actor.modules() if isinstance(module, torch.nn.Dropout)]
    assert (algorithm.expectile, algorithm.beta) == (expectile, beta)
    assert set(rates) == ({dropout} if dropout else set())


def test_the_settings_of_rlpd_are_the_papers(pendulum_file):
    loading.load_gin_config("offline_to_online/rlpd.gin", [])
    built = offpcc.build("pendulum-v0", "rlpd", dataset=pendulum_file, then_env_steps=250_000)
    options, algorithm = built.online.options, built.algorithm
    assert built.spec.training["num_epochs"] == 0 and built.num_epochs(built.spec.training) == 50
    assert (options.share, options.warm_up_steps, options.updates_per_step) == (0.5, 5_000, 20.0)
    assert (algorithm.policy_delay, algorithm.critics.num, algorithm.target_subset) == (20, 10, 2)


def test_wsrl_goes_on_with_the_networks_that_its_cql_learned(pendulum_file):
    """The config of the first phase alone gives the networks that the second config's SAC takes over."""
    loading.load_gin_config("offline/cql_wsrl.gin", [])
    first = offpcc.build("pendulum-v0", "cql", dataset=pendulum_file)
    check_unused_bindings(first.spec.config.bindings)
    loading.load_gin_config("offline_to_online/sac.gin", [])
    built = offpcc.build("pendulum-v0", "cql", dataset=pendulum_file, then_env_steps=10_000)
    built.go_online()
    second, options = built.algorithm, built.online.options
    take_over(second, first.algorithm.state_dict(), "CQL", False)
    for agent in (first.algorithm, second):
        assert (agent.critics.num, agent.target_subset, agent.normalization) == (10, 2, None)
        for network, norm in ((agent.actor, torch.nn.LayerNorm), (agent.critics, EnsembleLayerNorm)):
            assert sum(isinstance(module, norm) for module in network.modules()) == 2
        assert agent.temperature.target_entropy == -1.0
    assert (first.algorithm.policy_delay, second.policy_delay) == (1, 4)
    assert (options.share, options.warm_up_steps, options.updates_per_step) == (0.0, 5_000, 4.0)


# Without a phase of recorded data alone, as RLPD ----------------------------------------------------------------------

AT_ONCE = ("train.num_epochs=0", "OfflineToOnline.share=0.5")
NO_OFFLINE = tuple(one for one in SHORT if "updates_per_step" not in one)


@pytest.fixture
def at_once(launch, pendulum_file):
    """Begin in the environment, with recorded data in each batch."""

    def run(algo, *extra, then=THEN, bindings=()):
        given = ("--dataset", pendulum_file, "--env", "pendulum-v0", "--config", "test/offline_short.gin", *then)
        return launch("--algo", algo, *given, *extra, "--gin", *merged(*NO_OFFLINE, *ONLINE, *AT_ONCE, *bindings))

    return run


def test_a_run_begins_in_the_environment(at_once, tmp_path):
    code, out, err = at_once("rlpd")
    assert code == 0, err
    assert "240 steps in pendulum-v0 by RLPD, 50% of each batch from the data, the first 30 at random" in out
    assert "then 240 steps" not in out
    found = [
        (row["step"], row["update"], row["epoch"], row["env_step"]) for row in progress_rows(folder(tmp_path, "rlpd"))
    ]
    assert found == [("120", "9", "1", "120"), ("240", "21", "2", "240")]
    assert all(row["test/return"] for row in progress_rows(folder(tmp_path, "rlpd")))
    code, out, err = at_once("rlpd", "--resume", then=("--then_env_steps", "360"))
    assert code == 0, err
    assert env_steps(folder(tmp_path, "rlpd")) == ["120", "240", "360"]


@pytest.mark.parametrize(("algo", "stops"), [("rrlpd_s", (215,)), slow("rlpd", (1, 15, 35, 200)), slow("riql", (250,))])
def test_a_run_that_begins_there_resumes_exactly(algo, stops, at_once, tmp_path, monkeypatch):
    command = functools.partial(at_once, algo)
    assert command()[0] == 0
    assert_stops_and_resumes_exactly(command, folder(tmp_path, algo), stops, monkeypatch)


@pytest.mark.parametrize(("algo", "first"), [("rlpd", 31 + 9), ("rrlpd_s", 200)])
def test_it_explores_at_random_then_half_of_each_batch_is_recorded(algo, first, pendulum_file, explored, monkeypatch):
    sizes = []
    built = learner(algo, pendulum_file, *AT_ONCE, f"{find_algorithm(algo).__name__}.normalize_observations=True")
    recorded, mean = built.buffer, built.algorithm.normalization.mean.clone()
    kind = type(recorded)
    sample = kind.sample
    monkeypatch.setattr(kind, "sample", lambda self: sizes.append((self is recorded, self.batch_size)) or sample(self))
    watch = Watch(lambda run: len(run.buffer))
    quietly(built, watch)
    assert explored == [True] * 30 + [False] * 210
    assert watch.online[0][0] == first - 120  # `Watch` counts from step 120
    half = recorded.batch_size
    assert half == built.buffer.batch_size // 2
    assert sizes == [(True, half), (False, half)] * 21 and built.loop.num_updates == 21
    assert mean.abs().max() > 0.0 and torch.equal(mean, built.algorithm.normalization.mean)  # of the data


def test_its_config_also_serves_a_run_that_continues_another_one(online, launch, tmp_path, explored):
    assert online("cql", then=(), bindings=TEN_CRITICS)[0] == 0
    before = folder(tmp_path, "cql", "pendulum-v0_from_swings")
    given = ("--from", before, "--env", "pendulum-v0", *THEN, "--algo", "rlpd")
    given += ("--config", "offline_to_online/rlpd.gin")
    settings = ("RLPD.hidden_dims=(16,16)", "RLPD.policy_delay=2", *OF_RLPD[1:], *ONLINE)
    code, out, err = launch(*given, "--gin", *settings)
    assert code == 0, err
    assert "going on from" in out and "then 240 steps" in out and "the first 30 without updates" in out
    assert env_steps(folder(tmp_path, "rlpd")) == ["", "120", "240"]
    assert explored == [False] * 240  # the policy has learned
    assert launch(*given, "--resume", "--gin", *settings)[0] == 0


def test_a_learner_begins_there_if_python_says_so(pendulum_file, tmp_path):
    built = learner("rlpd", pendulum_file, "train.num_epochs=5")
    built.train(Loggers([]), num_epochs=0)
    assert (built.loop.epoch, built.loop.step, built.loop.switch_step, built.loop.switch_epoch) == (2, 240, 0, 0)
    built.save(tmp_path / "saved.pt", buffer=True)
    again = offpcc.load(tmp_path / "saved.pt", dataset=pendulum_file)
    for one in (built, again):
        one.online.num_steps = 360
        one.train(Loggers([]), num_epochs=0)
    assert_same(built.state_dict(), again.state_dict())


def test_its_curve_has_no_switch(tmp_path, monkeypatch):
    (tmp_path / "progress.csv").write_text("step,env_step,train/return,test/return\n100,100,1,2\n200,200,1,3\n")
    marked = []
    monkeypatch.setattr(Axes, "axvline", lambda self, x, **line: marked.append(x))
    plot_run(tmp_path, tmp_path / "curve.png")
    assert not marked and loss_at_switch(read_progress(tmp_path / "progress.csv")) is None


@pytest.mark.parametrize(
    ("algo", "then", "bindings", "words"),
    [
        ("rlpd", (), (), "train.num_epochs is 0, so the run would learn nothing; raise it, or give recorded data"),
        ("rlpd", THEN, ("OfflineToOnline.share=0.0",), "no update would draw recorded data; raise one"),
        ("mopo", THEN, (), "train.num_epochs is 0, but mopo uses its model only before the online phase"),
        ("rlpd", THEN, ("train.updates_per_step=2",), "OfflineToOnline.updates_per_step is in its place; remove it"),
        ("rlpd", THEN, ("train.update_after=2",), "OfflineToOnline.warm_up_steps is in its place; remove it"),
    ],
)
def test_settings_without_effect_are_refused(algo, then, bindings, words, at_once, tmp_path):
    code, _, err = at_once(algo, then=then, bindings=bindings)
    assert code == 2 and words in err and err.count("\n") == 1, err
    assert not (tmp_path / "results").exists()


def test_a_changed_first_phase_is_refused(at_once, tmp_path):
    assert at_once("rlpd")[0] == 0
    code, _, err = at_once("rlpd", "--resume", bindings=("train.num_epochs=1",))
    assert code == 2 and "went online after epoch 0" in err, err


@pytest.mark.parametrize(
    ("bindings", "is_warned"),
    [
        (("RLPD.policy_delay=20", "OfflineToOnline.updates_per_step=1.0"), True),
        (("RLPD.policy_delay=20", "OfflineToOnline.updates_per_step=20.0", "OfflineToOnline.warm_up_steps=238"), False),
        (("RLPD.policy_delay=3",), False),
    ],
)
def test_a_policy_that_learns_rarely_is_reported(bindings, is_warned, at_once):
    code, out, err = at_once("rlpd", bindings=bindings)
    assert code == 0, err
    words = "the policy learns once in 20 updates: RLPD.policy_delay is 20, but OfflineToOnline.updates_per_step is 1;"
    assert (words in out) is is_warned


# Images, Dict observations, several environments ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "env", "steps", "bindings"),
    [
        slow("crebrac", "pendulum-img-v0", 120, ("Convolutional.channels=(4,4)",)),
        ("criql", dict_task.NAME, 120, ("Convolutional.channels=(4,4)", "RecurrentReplayBuffer.segment_len=5")),
        slow("riql", "pendulum-p-v0", 720, ("environments.num_envs=3",)),
        slow("iql", "pendulum-p-v0", 120, ("make.wrappers=[@Concatenate]", "Concatenate.num=3")),
    ],
)  # fmt: skip
def test_all_kinds_of_observations_and_environments(algo, env, steps, bindings):
    loading.load_gin_config("test/offline_short.gin", merged(*SHORT, *ONLINE, *bindings))
    data = offpcc.collect(env, None, 300, seed=1)
    built = offpcc.build(env, algo, dataset=data, then_env_steps=steps, seed=3)
    quietly(built)
    assert built.loop.num_updates >= 12 + 0.07 * steps and built.loop.epoch == 1 + steps // 120


def test_a_learner_that_was_saved_before_goes_on_there(pendulum_file, tmp_path):
    """With gin's settings of the second phase, and to the bytes of a learner that was built with both phases."""
    whole = quietly(learner("iql", pendulum_file))
    part = learner("iql", pendulum_file, steps=None)
    part.train(Loggers([]))
    part.save(tmp_path / "saved.pt")
    again = offpcc.load(tmp_path / "saved.pt", dataset=pendulum_file, then_env_steps=240)
    assert again.spec.online.warm_up_steps == 30 and not again.is_online
    again.train(Loggers([]))
    assert_same(whole.algorithm.state_dict(), again.algorithm.state_dict())
    again.save(tmp_path / "saved.pt", buffer=True)
    with gin.unlock_config():
        gin.clear_config()
    more = offpcc.load(tmp_path / "saved.pt", dataset=pendulum_file, then_env_steps=360)
    assert more.spec.online.warm_up_steps == 30 and more.is_online
    more.train(Loggers([]))
    assert more.loop.step - more.loop.switch_step == 360


def test_a_learner_in_its_second_phase_is_saved_and_loaded(pendulum_file, tmp_path):
    whole = quietly(learner("iql", pendulum_file))
    part = learner("iql", pendulum_file)
    finish_first_phase(part)
    part._train(Loggers([]), [], {**part.spec.training, "num_epochs": 2, "update_after": 30, "updates_per_step": 0.1})
    part.save(tmp_path / "saved.pt", buffer=True)
    again = offpcc.load(tmp_path / "saved.pt", dataset=pendulum_file)
    assert again.is_online and again.loop.epoch == 2
    again.train(Loggers([]), num_epochs=1)
    assert_same(whole.state_dict(), again.state_dict())


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("OfflineToOnline.share=1.5", "OfflineToOnline.share is 1.5; it has to be a number from 0 to 1"),
        ("OfflineToOnline.share=-0.1", "OfflineToOnline.share is -0.1"),
        ("OfflineToOnline.share=0.001", "0 recorded items in a batch of 64"),
        ("OfflineToOnline.warm_up_steps=240", "and the online phase has 240 steps, so nothing would be learned"),
        ("OfflineToOnline.warm_up_steps=-1", "OfflineToOnline.warm_up_steps is -1"),
        ("OfflineToOnline.updates_per_step=-1", "OfflineToOnline.updates_per_step is -1"),
        ("OfflineToOnline.updates_per_step=0", "so nothing would be learned in the online phase; raise it"),
        ("OfflineToOnline.decay=['nothing']", "names 'nothing', which is no number of IQL; those that can fall are "),
        (
            "OfflineToOnline.decay=['n_step']",
            "names 'n_step', which is a whole number of IQL; those that can fall are ",
        ),
        ("OfflineToOnline.decay='beta'", "it has to be a list of names"),
        ("OfflineToOnline.decay=['lr']", "which the optimizers read only once, at the start; for a falling"),
        ("OfflineToOnline.zero=['nothing']", "zero names 'nothing', which is no number of IQL; those that can fall"),
        ("OfflineToOnline.zero=['n_step']", "zero names 'n_step', which is a whole number of IQL; those that can"),
        ("OfflineToOnline.zero=['max_advantage_weight']", "which cannot be 0 in IQL; take OfflineToOnline.decay"),
        ("OfflineToOnline.zero=['noise_scale']", "bind OfflineToOnline.exploration_noise = 0 instead"),
        ("OfflineToOnline.decay_to=2", "OfflineToOnline.decay_to is 2"),
        ("OfflineToOnline.algorithm=3", "it has to be the name of an algorithm"),
        ("OfflineToOnline.shares=0.5", "did you mean share"),
    ],
)
def test_wrong_settings_are_refused(binding, words, online, tmp_path):
    code, _, err = online("iql", bindings=(binding,))
    assert code == 2 and words in err and err.count("\n") == 1, err
    assert not (tmp_path / "results").exists()


VECTORS, ACTIONS = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)


def phase_of(learner, **options):
    return OnlinePhase(OnlineOptions(**options), 50_000, learner, None, None, 0)


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1.0)])
def test_numbers_given_as_whole_ones_can_fall(value):
    learner = find_algorithm("awac")(VECTORS, ACTIONS)
    learner.advantage_temperature = value
    phase_of(learner, decay=("advantage_temperature",))
    with pytest.raises(UserError, match="names 'action_dim', which is a whole number of AWAC"):
        phase_of(learner, decay=("action_dim",))


@pytest.mark.parametrize(("name", "number"), [("dbcq", "threshold"), ("rebrac", "action_noise")])
def test_numbers_that_are_properties_can_fall_and_are_among_those_named(name, number):
    learner = find_algorithm(name)(VECTORS, Discrete(3) if name == "dbcq" else ACTIONS)
    phase = phase_of(learner, decay=(number,))
    before = getattr(learner, number)
    phase.decay.on_progress(SimpleNamespace(loop=SimpleNamespace(step=50_000, switch_step=0), algorithm=learner))
    assert getattr(learner, number) == 0.5 * before
    with pytest.raises(UserError, match=f"those that can fall are .*{number}"):
        phase_of(learner, decay=("nothing",))


@pytest.mark.parametrize("option", ["decay", "zero"])
def test_a_discount_that_falls_is_refused_where_stored_returns_have_it(option):
    phase_of(find_algorithm("cql")(VECTORS, ACTIONS), **{option: ("gamma",)})
    with pytest.raises(UserError, match=f"{option} names 'gamma', but CalQL also reads the returns"):
        phase_of(find_algorithm("calql")(VECTORS, ACTIONS), **{option: ("gamma",)})
    with pytest.raises(UserError, match="those that can fall are conservative_weight, reward_scale"):
        phase_of(find_algorithm("calql")(VECTORS, ACTIONS), **{option: ("tau_of",)})


def test_a_number_that_falls_is_refused_with_compiled_updates():
    learner = find_algorithm("td3_bc")(VECTORS, ACTIONS, compile=True)
    with pytest.raises(UserError, match=r"decay names 'bc_alpha', and TD3BC\.compile is True: each update"):
        phase_of(learner, decay=("noise_scale", "bc_alpha"))
    phase_of(learner, decay=("noise_scale",), zero=("bc_alpha",))


def test_the_share_of_random_actions_is_no_exploration_noise():
    learner = find_algorithm("dcql")(VECTORS, Discrete(3))
    with pytest.raises(UserError, match=r"bind DiscreteCQL\.final_epsilon"):
        phase_of(learner, exploration_noise=0.0)


def test_exploration_noise_that_an_algorithm_does_not_read_is_refused(online):
    code, _, err = online("bcq", bindings=("OfflineToOnline.exploration_noise=0.0",))
    assert code == 2 and "BCQ chooses its actions without this noise; leave it out" in err, err


def test_wrong_options_are_refused(online, launch, quick, pendulum_file, tmp_path):
    def refused(*arguments):
        code, _, err = launch(*arguments)
        assert code == 2 and err.count("\n") == 1, err
        return err

    dataset = ("--dataset", pendulum_file, "--algo", "iql")
    assert "--then_env_steps 240 needs an environment" in refused(*dataset, *THEN)
    assert "for runs that learn from recorded data first" in refused("--env", "pendulum-v0", "--algo", "sac", *THEN)
    assert "above 0" in refused("--env", "pendulum-v0", *dataset, "--then_env_steps", "0")
    assert "is not the folder of a run" in refused("--from", tmp_path / "nowhere", "--env", "pendulum-v0")
    assert quick("sac")[0] == 0
    acted = tmp_path / "results" / "pendulum-p-v0" / "sac" / "1"
    assert "learned in its environment" in refused("--from", acted, "--env", "pendulum-p-v0")
    assert online("iql", then=())[0] == 0
    run = folder(tmp_path, "iql", "pendulum-v0_from_swings")
    assert f"--from {run} needs an environment" in refused("--from", run)
    assert "give one with --env; that run had --env pendulum-v0" in refused("--from", run)
    assert "an environment with the same observations" in refused("--from", run, "--env", "pendulum-p-v0")
    assert "actions of 1" in refused("--from", run, "--env", "water-maze-simple-pomdp-v0")
    config = ("--config", "test/offline_short.gin", "--gin", "train.num_steps_per_epoch=120")
    assert "SAC cannot go on from" in refused("--from", run, "--env", "pendulum-v0", "--algo", "sac", *config)
    assert "warm_up_steps is 1,000" in refused("--from", run, "--env", "pendulum-v0", *THEN)
    assert not (tmp_path / "results" / "pendulum-v0_from_swings_then_online").exists()
    assert online("iql")[0] == 0
    both = folder(tmp_path, "iql")
    assert "has already continued online" in refused("--from", both, "--env", "pendulum-v0")
    again = ("--env", "pendulum-v0", *dataset, "--resume")
    assert "went online after epoch 1" in refused(*again, *THEN, "--gin", "train.num_epochs=2")


def test_a_run_that_went_online_is_not_continued_by_another(pendulum_file, tmp_path):
    loading.load_gin_config("test/offline_short.gin", merged(*SHORT, *ONLINE))
    given = {"seed": 1, "dataset": pendulum_file, "then_env_steps": 240}
    offpcc.fit(offpcc.RunSpec.make("pendulum-v0", "iql", **given), tmp_path / "both")
    used = [one for one in (*SHORT, *ONLINE) if not one.startswith(("train.num_epochs", "train.updates_per_step"))]
    loading.load_gin_config("test/offline_short.gin", merged(*used))
    again = offpcc.RunSpec.make("pendulum-v0", "iql", **given, start_from=tmp_path / "both")
    with pytest.raises(UserError, match="start_from= needs a run that learned from recorded data only"):
        offpcc.fit(again, tmp_path / "again")


def test_more_steps_continue_a_finished_run_and_do_not_raise_numbers_that_fell(online, pendulum_file, tmp_path):
    decay = ("OfflineToOnline.decay=['actor_bc_coef']", "ReBRAC.actor_bc_coef=0.4")
    assert online("rebrac", bindings=decay)[0] == 0
    file = folder(tmp_path, "rebrac") / "checkpoint.pt"
    for steps in ("360", "480"):
        code, _, err = online("rebrac", "--resume", then=("--then_env_steps", steps), bindings=decay)
        assert code == 0, err
        assert read_checkpoint(file)["decay_steps"] == 240
    assert env_steps(file.parent) == ["", "120", "240", "360", "480"]
    built = learner("rebrac", pendulum_file, *decay)
    quietly(built)
    built.save(tmp_path / "saved.pt", buffer=True)
    more = offpcc.load(tmp_path / "saved.pt", dataset=pendulum_file, then_env_steps=360)
    watch = Watch(lambda run: run.algorithm.actor_bc_coef)
    quietly(more, watch)
    assert watch.online[-1][0] == 360 and {value for _, value in watch.online} == {0.2}


def test_a_run_continues_on_its_data_under_another_name(online, launch, pendulum_file, tmp_path):
    assert online("iql", then=())[0] == 0
    source = ("--from", folder(tmp_path, "iql", "pendulum-v0_from_swings"), "--env", "pendulum-v0", *THEN)
    moved = shutil.copy(pendulum_file, tmp_path / "moved.hdf5")
    code, _, err = launch(*source, "--dataset", moved, "--gin", *ONLINE)
    assert code == 0, err
    assert env_steps(folder(tmp_path, "iql", "pendulum-v0_from_moved_then_online")) == ["", "120", "240"]


def test_a_run_that_continues_another_keeps_its_number_of_steps(online, launch, tmp_path):
    """Without --then_env_steps, a resumed run does not go on to the 50,000 steps of a new one."""
    assert online("iql", then=())[0] == 0
    source = ("--from", folder(tmp_path, "iql", "pendulum-v0_from_swings"), "--env", "pendulum-v0")
    assert launch(*source, *THEN, "--gin", *ONLINE)[0] == 0
    assert json.loads((folder(tmp_path, "iql") / "run.json").read_text())["switch_epoch"] == 1
    code, out, err = launch(*source, "--resume")
    assert code == 0 and "nothing left to do" in out and "give a larger --then_env_steps" in out, err
    code, _, err = launch(*source)
    further = next(line for line in err.splitlines() if line.endswith("--resume --then_env_steps N"))
    assert code == 2 and "num_epochs=N" not in err
    code, out, err = launch(*shlex.split(further[further.index("--env") : -1]), "360")
    assert code == 0, err
    assert "with --then_env_steps 360 the run has 4 epochs; before, it had 3" in out
    code, out, err = launch(*source, "--resume")
    assert code == 0 and "nothing left to do" in out, err
    assert env_steps(folder(tmp_path, "iql")) == ["", "120", "240", "360"]


def test_a_resume_does_not_drop_the_second_phase(online, pendulum_file, tmp_path):
    offpcc.configure("test/offline_short.gin", *merged(*SHORT, *ONLINE))
    given = {"dataset": pendulum_file, "seed": 1}
    run = tmp_path / "run"
    made = RunSpec.make("pendulum-v0", "iql", **given, then_env_steps=240)
    stopping = type("Stopping", (Callback,), {"on_epoch": stop_at(1)})()
    with pytest.raises(signals.Interrupted):  # before the switch
        quiet_fit(made, run, callbacks=[stopping])
    without = RunSpec.make("pendulum-v0", "iql", **given)
    for _ in range(2):
        with pytest.raises(UserError, match=r"has 240 steps in its environment .* none; add then_env_steps=240"):
            fit(without, run, resume=True)
        quiet_fit(made, run, resume=True)
    assert env_steps(run) == ["", "120", "240"]


def test_a_run_that_went_online_is_named_if_its_steps_are_not_given(launch, pendulum_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = folder(tmp_path, "iql")
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"status": "running", "then_env_steps": 240}))
    code, _, err = launch("--dataset", pendulum_file, "--env", "pendulum-v0", "--algo", "iql", "--resume")
    assert code == 2 and f"there is one that went on in its environment, in {run}; add --then_env_steps 240" in err


# Drop and regret ------------------------------------------------------------------------------------------------------


def test_drop_and_regret():
    progress = {
        "step": [100, 200, 300, 400, 60_000],
        "env_step": [NAN, NAN, 100, 200, 59_800],
        "test/return": [0.0, 50.0, 20.0, 80.0, 10.0],
    }
    assert switch_of(progress) == 200.0
    loss = loss_at_switch(progress)
    assert loss.drop == 30.0  # 50 - 20: the last test is too late
    assert loss.regret == pytest.approx(1.0 - np.mean([20.0, 80.0, 10.0]) / 80.0) and not loss.has_score
    scored = loss_at_switch({**progress, "test/normalized_score": [0.0, 10.0, 30.0, 60.0, 120.0]})
    assert scored.regret == pytest.approx(1.0 - 0.7) and scored.has_score
    assert loss_at_switch({**progress, "env_step": [NAN] * 5}) is None
    assert loss_at_switch({"step": [1.0], "test/return": [1.0]}) is None
    assert np.isnan(loss_at_switch({**progress, "test/return": [9.0, 8.0, 7.0, 6.0, 5.0]}).regret)


def test_the_plot_prints_them_and_marks_the_switch(launch, tmp_path, monkeypatch):
    for run, least in ((1, 20.0), (2, -30.0)):
        there = tmp_path / "results" / "env_then_online" / "iql" / str(run)
        there.mkdir(parents=True)
        lines = [
            "step,env_step,train/return,test/return",
            "100,,,0.0",
            "200,,,50.0",
            f"300,100,1.0,{least}",
            "400,200,1.0,80.0",
        ]
        (there / "progress.csv").write_text("\n".join([*lines, ""]))
    drawn, marked = [], []
    monkeypatch.setattr(Axes, "plot", lambda self, x, *rest, **line: drawn.append([*x]))
    monkeypatch.setattr(Axes, "axvline", lambda self, x, **line: marked.append(x))
    code, out, err = launch("plot", tmp_path / "results", "--output", tmp_path / "curve.png")
    assert code == 0, err
    assert marked == [200.0, 200.0] and drawn == [[100, 200, 300, 400]] * 3  # two runs and their mean
    assert "drop in the first 50,000 environment steps: 55.0 (30.0, 80.0); regret: 0.531, of returns scaled" in out
