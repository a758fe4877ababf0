"""The settings of the offline algorithms: each paper's for locomotion, and those for other families of D4RL's."""

import gin
import pytest
from references import SPACES

from offpcc.algorithms import AWAC, BC, BCQ, CQL, CRR, EDAC, FQL, IQL, SACN, TD3BC, CalQL, ReBRAC
from offpcc.config import loading
from offpcc.config.gin_files import CONFIGS
from offpcc.data import offline
from offpcc.training.build import build

COMMON = {
    "ActorCritic.gamma": 0.99,
    "ActorCritic.polyak": 0.995,
    "train.num_test_episodes_per_epoch": 10,
    "train.num_epochs": 200,
    "train.num_steps_per_epoch": 5_000,
}
LOCOMOTION = {
    "bc": {
        "BC.lr": 3e-4,
        "BC.normalize_observations": False,
        "BC.hidden_dims": (256, 256),
        "ReplayBuffer.batch_size": 256,
    },
    "td3_bc": {
        "TD3BC.bc_alpha": 2.5,
        "TD3BC.normalize_observations": None,
        "TD3BC.target_noise": 0.2,
        "TD3BC.noise_clip": 0.5,
        "TD3BC.policy_delay": 2,
        "TD3BC.lr": 3e-4,
        "ReplayBuffer.batch_size": 256,
    },
    "iql": {
        "IQL.expectile": 0.7,
        "IQL.normalize_observations": False,
        "IQL.beta": 3.0,
        "IQL.max_advantage_weight": 100.0,
        "IQL.lr": 3e-4,
        "dataset.return_range": 1000.0,
        "ReplayBuffer.batch_size": 256,
    },
    "cql": {
        "CQL.conservative_weight": 5.0,
        "CQL.normalize_observations": False,
        "CQL.hidden_dims": (256, 256, 256),
        "CQL.actor_lr": 1e-4,
        "CQL.alpha_lr": 1e-4,
        "CQL.lr": 3e-4,
        "CQL.backup_entropy": False,
        "CQL.max_q_backup": False,
        "CQL.lagrange_threshold": None,
        "CQL.bc_steps": 40_000,
        "CQL.num_samples": 10,
        "ReplayBuffer.batch_size": 256,
    },
    "bcq": {
        "BCQ.phi": 0.05,
        "BCQ.normalize_observations": False,
        "BCQ.lmbda": 0.75,
        "BCQ.num_samples": 10,
        "BCQ.num_acting_samples": 100,
        "BCQ.vae_hidden_dims": (750, 750),
        "BCQ.hidden_dims": (400, 300),
        "BCQ.lr": 1e-3,
        "ReplayBuffer.batch_size": 100,
    },
    "awac": {
        "AWAC.temperature": 0.3333,
        "AWAC.num_samples": 1,
        "AWAC.max_advantage_weight": 100.0,
        "AWAC.normalize_observations": True,
        "AWAC.hidden_dims": (256, 256, 256),
        "AWAC.lr": 3e-4,
        "ReplayBuffer.batch_size": 256,
    },
    "crr": {
        "CRR.weight_type": "exp",
        "CRR.advantage_type": "mean",
        "CRR.sarsa_target": False,
        "CRR.temperature": 1.0,
        "CRR.num_samples": 4,
        "CRR.max_advantage_weight": 20.0,
        "CRR.normalize_observations": False,
        "CRR.lr": 3e-4,
        "ReplayBuffer.batch_size": 256,
    },
    "sac_n": {
        "SACN.num_critics": 10,
        "SACN.normalize_observations": False,
        "SACN.hidden_dims": (256, 256, 256),
        "SACN.lr": 3e-4,
        "SAC.alpha_lr": 3e-4,
        "SAC.autotune": True,
        "ReplayBuffer.batch_size": 256,
        "train.num_epochs": 600,
    },
    "edac": {
        "EDAC.num_critics": 10,
        "EDAC.eta": 1.0,
        "EDAC.normalize_observations": False,
        "EDAC.hidden_dims": (256, 256, 256),
        "EDAC.lr": 3e-4,
        "SAC.alpha_lr": 3e-4,
        "SAC.autotune": True,
        "ReplayBuffer.batch_size": 256,
        "train.num_epochs": 600,
    },
    "rebrac": {
        "ReBRAC.actor_bc_coef": 0.01,
        "ReBRAC.critic_bc_coef": 0.01,
        "ReBRAC.normalize_q": True,
        "ReBRAC.layer_norm": True,
        "ReBRAC.target_noise": 0.2,
        "ReBRAC.noise_clip": 0.5,
        "ReBRAC.policy_delay": 2,
        "ReBRAC.normalize_observations": False,
        "ReBRAC.hidden_dims": (256, 256, 256),
        "ReBRAC.lr": 1e-3,
        "ReplayBuffer.batch_size": 1024,
    },
    "calql": {
        "CalQL.conservative_weight": 5.0,
        "CalQL.num_samples": 10,
        "CalQL.lagrange_threshold": None,
        "CalQL.max_q_backup": True,
        "CalQL.backup_entropy": False,
        "CalQL.bc_steps": 0,
        "CalQL.normalize_observations": False,
        "CalQL.hidden_dims": (256, 256),
        "CalQL.lr": 3e-4,
        "CalQL.actor_lr": 1e-4,
        "CalQL.alpha_lr": 1e-4,
        "ReplayBuffer.batch_size": 256,
    },
    "fql": {
        "FQL.alpha": 1.0,
        "FQL.normalize_q_loss": True,
        "FQL.q_agg": "mean",
        "FQL.flow_steps": 10,
        "FQL.layer_norm": True,
        "FQL.normalize_observations": False,
        "FQL.hidden_dims": (512, 512, 512, 512),
        "FQL.lr": 3e-4,
        "ReplayBuffer.batch_size": 256,
    },
}
RARE_TESTS = {
    "train.num_epochs": 10,
    "train.num_steps_per_epoch": 100_000,
    "train.num_test_episodes_per_epoch": 100,
}
MAZES = RARE_TESTS | {"train.num_epochs": 20, "train.num_steps_per_epoch": 50_000}
VARIANTS = {
    "bc_antmaze": {"BC.normalize_observations": True, **MAZES},
    "bc_maze2d": {"BC.normalize_observations": True, **MAZES},
    "td3_bc_maze2d": MAZES,
    "iql_maze2d": {"IQL.normalize_observations": True, "dataset.return_range": None, **MAZES},
    "cql_maze2d": {
        "CQL.conservative_weight": 10.0,
        "CQL.lagrange_threshold": 10.0 * 5.0,
        "CQL.bc_steps": 0,
        "CQL.actor_lr": 3e-5,
        "CQL.alpha_lr": 3e-5,
        "CQL.normalize_observations": True,
        **MAZES,
    },
    "awac_maze2d": {"AWAC.temperature": 0.1, **MAZES},
    "sac_n_maze2d": {"SACN.num_critics": 25, **MAZES, "train.num_epochs": 60},
    "edac_maze2d": {"EDAC.eta": 0.1, **MAZES, "train.num_epochs": 60},
    "rebrac_maze2d": {
        "ReBRAC.actor_bc_coef": 0.003,
        "ReBRAC.critic_bc_coef": 0.001,
        "ReBRAC.lr": 3e-4,
        "ReplayBuffer.batch_size": 256,
        **MAZES,
    },
    "bc_adroit": {"BC.normalize_observations": True},
    "bc_10": {"dataset.best_fraction": 0.1, "BC.normalize_observations": True},
    "td3_bc_adroit": {},
    "td3_bc_antmaze": {"TD3BC.reward_shift": -1.0, **RARE_TESTS},
    "iql_adroit": {"IQL.beta": 0.5, "IQL.actor_dropout": 0.1, "dataset.return_range": None},
    "iql_antmaze": {
        "IQL.expectile": 0.9,
        "IQL.beta": 10.0,
        "IQL.reward_shift": -1.0,
        "dataset.return_range": None,
        **RARE_TESTS,
    },
    "awac_adroit": {"AWAC.temperature": 0.1},
    "awac_antmaze": {"AWAC.temperature": 0.1, "AWAC.reward_shift": -1.0, **RARE_TESTS},
    "crr_plus": {
        "CRR.num_samples": 50,
        "CRR.layer_norm": True,
        "CRR.actor_layer_norm": True,
        "CRR.actor_lr": 1e-4,
        "train.num_epochs": 240,
    },
    "sac_n_adroit": {"SACN.num_critics": 100},
    "sac_n_antmaze": {"SACN.num_critics": 25, **RARE_TESTS, "train.num_epochs": 30},
    "edac_adroit": {"EDAC.num_critics": 50, "EDAC.eta": 200.0},
    "edac_antmaze": {**RARE_TESTS, "train.num_epochs": 30},
    "rebrac_adroit": {
        "ReBRAC.actor_bc_coef": 0.1,
        "ReBRAC.critic_bc_coef": 0.1,
        "ReBRAC.lr": 3e-4,
        "ReplayBuffer.batch_size": 256,
    },
    "rebrac_antmaze": {
        "ReBRAC.actor_bc_coef": 0.001,
        "ReBRAC.critic_bc_coef": 0.0005,
        "ReBRAC.reward_scale": 100.0,
        "ReBRAC.gamma": 0.999,
        "ReBRAC.lr": 5e-5,
        "ReBRAC.actor_lr": 3e-4,
        "ReplayBuffer.batch_size": 256,
        **RARE_TESTS,
        "train.num_epochs": 20,
        "train.num_steps_per_epoch": 50_000,
    },
    "calql_adroit": {"CalQL.conservative_weight": 1.0, "CalQL.hidden_dims": (256, 256, 256)},
    "calql_antmaze": {
        "CalQL.lagrange_threshold": 5.0 * 0.8,
        "CalQL.reward_scale": 10.0,
        "CalQL.reward_shift": -5.0,
        "CalQL.hidden_dims": (256, 256, 256, 256),
        **RARE_TESTS,
        "train.num_epochs": 20,
        "train.num_steps_per_epoch": 50_000,
    },
    "fql_adroit": {
        "FQL.alpha": 10_000.0,
        "FQL.normalize_q_loss": False,
        "FQL.q_agg": "min",
        **RARE_TESTS,
        "train.num_epochs": 5,
        "train.num_test_episodes_per_epoch": 50,
    },
    "fql_antmaze": {
        "FQL.alpha": 10.0,
        "FQL.normalize_q_loss": False,
        "FQL.reward_shift": -1.0,
        **RARE_TESTS,
        "train.num_epochs": 5,
        "train.num_test_episodes_per_epoch": 50,
    },
    "fql_ogbench": {
        "FQL.alpha": 10.0,
        "FQL.normalize_q_loss": False,
        **RARE_TESTS,
        "train.num_epochs": 10,
        "train.num_test_episodes_per_epoch": 50,
    },
    "cql_adroit": {
        "CQL.conservative_weight": 1.0,
        "CQL.bc_steps": 0,
        "CQL.normalize_observations": True,
    },
    "cql_antmaze": {
        "CQL.lagrange_threshold": 5.0,
        "CQL.reward_scale": 4.0,
        "CQL.reward_shift": -2.0,
        **RARE_TESTS,
        "train.num_epochs": 20,
        "train.num_steps_per_epoch": 50_000,
    },
}
CLASSES = {
    "bc": BC,
    "td3_bc": TD3BC,
    "iql": IQL,
    "cql": CQL,
    "bcq": BCQ,
    "awac": AWAC,
    "crr": CRR,
    "sac_n": SACN,
    "edac": EDAC,
    "rebrac": ReBRAC,
    "calql": CalQL,
    "fql": FQL,
}
NORMALIZING = {"td3_bc", "awac"}  # by the configs of their papers


def algorithm_of(variant):
    return variant.rpartition("_")[0]


def bound(expected):
    return {name: gin.query_parameter(name) for name in expected}


@pytest.mark.parametrize("name", LOCOMOTION)
def test_configs_hold_the_papers_settings(name):
    """CORL#14: what moves CQL's scores is in its file."""
    loading.load_gin_config(f"algorithms/{name}.gin", [])
    expected = COMMON | LOCOMOTION[name]
    assert bound(expected) == expected
    CLASSES[name](*SPACES)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_change_what_they_say_and_nothing_else(name):
    loading.load_gin_config(f"offline/{name}.gin", [])
    algorithm = algorithm_of(name)
    expected = COMMON | LOCOMOTION[algorithm] | VARIANTS[name]
    assert bound(expected) == expected
    bindings = {line.split(" = ")[0] for line in gin.config_str().splitlines() if " = " in line}
    loading.load_gin_config(f"algorithms/{algorithm}.gin", [])
    before = {line.split(" = ")[0] for line in gin.config_str().splitlines() if " = " in line}
    assert bindings - before <= set(VARIANTS[name])


@pytest.mark.parametrize(
    ("file", "normalizing"),
    [
        *((f"algorithms/{algo}.gin", NORMALIZING) for algo in LOCOMOTION),
        *((f"evidence/offline/{algo}.gin", NORMALIZING) for algo in ("bc", "td3_bc", "iql", "cql", "bcq")),
        ("evidence/offline/pendulum.gin", set(LOCOMOTION) - {"bc", "iql", "cql", "calql", "bcq", "rebrac", "edac"}),
        ("offline_quickstart.gin", set(LOCOMOTION)),
        ("test/offline_short.gin", set(LOCOMOTION)),
    ],
)
def test_which_algorithms_normalise_recorded_observations(file, normalizing, unit_file):
    """Each paper's choice; where no paper is cited, all do."""
    tiny = ("hidden_dims = (4,)", "vae_hidden_dims = (4,)")
    stem = file.rpartition("/")[2].removesuffix(".gin")
    for algo in [stem] if stem in LOCOMOTION else LOCOMOTION:
        small = [f"{CLASSES[algo].__name__}.{text}" for text in tiny if algo == "bcq" or "vae" not in text]
        loading.load_gin_config(file, [*small, "dataset.return_range = None"])
        learner = build(None, algo, dataset=unit_file)
        assert (learner.algorithm.normalization is not None) == (algo in normalizing), algo


def test_there_is_a_test_for_every_variant():
    assert {file.stem for file in (CONFIGS / "offline").glob("*.gin")} == {*VARIANTS, "cql_hopper_di", "cql_wsrl"}


def test_the_decision_transformer_has_the_papers_settings():
    loading.load_gin_config("algorithms/decision_transformer.gin", ["ReturnToGo.target_return=-150"])
    experiment = build("pendulum-p-v0", "rbc")
    agent = experiment.algorithm
    cell = agent.actor_encoder.cell
    assert (len(cell.blocks), cell.dim, cell.num_heads, cell.context_length) == (3, 128, 1, 20)
    assert (agent.lr, agent.weight_decay, agent.max_grad_norm) == (1e-4, 1e-4, 0.25)
    assert agent.normalization.shifts and agent.observation_shape == (3,)  # cos, sin and the return to go
    assert (experiment.buffer.batch_size, experiment.buffer.segment_len) == (64, 40)
    num_updates = gin.query_parameter("train.num_epochs") * gin.query_parameter("train.num_steps_per_epoch")
    assert num_updates == 100_000
    experiment.close()


DI_ENGINE = {
    "CQL.num_critics": 2,
    "CQL.hidden_dims": (256, 256),
    "ActorCritic.gamma": 0.99,
    "ActorCritic.polyak": 0.995,
    "CQL.lr": 3e-4,
    "CQL.actor_lr": 1e-4,
    "CQL.alpha": 0.2,
    "CQL.autotune": False,
    "CQL.conservative_weight": 5.0,
    "CQL.num_samples": 10,
    "CQL.temperature": 1.0,
    "CQL.lagrange_threshold": None,
    "CQL.max_q_backup": False,
    "CQL.backup_entropy": False,
    "CQL.bc_steps": 0,
    "CQL.normalize_observations": False,
    "ActorCritic.reward_scale": 1.0,
    "ReplayBuffer.batch_size": 256,
}


def test_the_values_in_use_are_those_of_di_engines_config(unit_file):
    """Its hopper_medium_cql_default_config, and the defaults of its CQL, one by one."""
    loading.load_gin_config("offline/cql_hopper_di.gin", [])
    learner = build(None, "cql", dataset=unit_file)
    used = loading.plain_values(learner.config)
    assert {name: eval(used[name]) for name in DI_ENGINE} == DI_ENGINE
    agent, training = learner.algorithm, learner.spec.training
    assert agent.normalization is None and not agent.multiplier.learned_parameters()
    assert float(agent.temperature()) == pytest.approx(0.2) and not agent.temperature.learned_parameters()
    assert training["num_epochs"] * training["num_steps_per_epoch"] == 30_000
    assert (training["num_steps_per_epoch"], training["num_test_episodes_per_epoch"]) == (500, 8)
    assert (training["num_test_envs"], training["stop_return"]) == (8, 6000.0)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.endswith("antmaze") and name != "bc_antmaze"])
@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (0.0, {"cql": -2.0, "calql": -5.0, "sac_n": 0.0, "edac": 0.0, "rebrac": 0.0}),
        (1.0, {"cql": 2.0, "calql": 5.0, "sac_n": 1.0, "edac": 1.0, "rebrac": 100.0}),
    ],
)
def test_rewards_of_antmaze_as_they_are_learned_from(name, reward, expected):
    """-1 on the way and 0 at the goal, or centred; whatever the range of returns is."""
    loading.load_gin_config(f"offline/{name}.gin", [])
    agent = CLASSES[algorithm_of(name)](*SPACES, hidden_dims=(4,))
    learned = agent.reward_scale * reward + agent.reward_shift
    assert learned == expected.get(algorithm_of(name), reward - 1.0)
    assert offline.DatasetOptions.from_gin().return_range is None


def test_iqls_policy_rate_falls_along_a_cosine():
    loading.load_gin_config("algorithms/iql.gin", [])
    rates = IQL(*SPACES).actor_optimizer.rates[-1]
    assert [rates(update) for update in (0, 500_000, 1_000_000)] == pytest.approx([3e-4, 1.5e-4, 0.0])


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [(algorithm, f"algorithms/{algorithm}.gin") for algorithm in LOCOMOTION]
    + [(algorithm_of(variant), f"offline/{variant}.gin") for variant in VARIANTS],
)
def test_they_reach_the_agent_with_memory(algorithm, name):
    loading.load_gin_config(name, ["Recurrent.hidden_dim=4", "Recurrent.num_layers=1"])
    learner = build("pendulum-p-v0", f"r{algorithm}")
    plain = CLASSES[algorithm](*SPACES)
    for attribute in (
        "reward_scale",
        "reward_shift",
        "gamma",
        "beta",
        "phi",
        "bc_alpha",
        "conservative_weight",
        "critic_bc_coef",
        "advantage_temperature",
    ):
        assert getattr(learner.algorithm, attribute, None) == getattr(plain, attribute, None)
    assert (learner.algorithm.normalization is None) == (plain.normalization is None)
    learner.close()


@pytest.mark.parametrize("file", ["test/offline_short.gin", "offline_quickstart.gin", "offline/*.gin"])
def test_configs_of_recorded_data_say_nothing_of_exploring(file):
    """Which does not happen there; --gin refuses the same."""
    paths = list(CONFIGS.glob(file))
    assert paths
    for path in paths:
        assert "update_after" not in path.read_text(), path
