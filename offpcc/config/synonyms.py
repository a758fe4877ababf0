"""Names of hyper-parameters and options in other libraries, and their names here.

Error messages about unknown names show our name. The libraries are stable-baselines3 and its zoo, d3rlpy, CleanRL,
CORL, DI-engine, Tianshou, Dopamine, pomdp-baselines, TorchRL and RLlib.
"""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from offpcc.utils.errors import UserError, similar


class Synonym(NamedTuple):
    """Our counterpart of a name in another library.

    Attributes:
        bindings: names in gin, such as ``ActorCritic.lr``; none if there is no counterpart.
        note: how the values are related, or why there is no counterpart.
        python: the note for an argument in Python, if it is another one.
    """

    bindings: tuple[str, ...]
    note: str = ""
    python: str | None = None


# Names in other libraries | our bindings | note | note for Python. A row without the last column has one note for both;
# if the column is empty, there is none for Python. An indented line continues the one before it. A name with a class,
# such as TD3BC.alpha, is for this class and its children.
_TABLE = """
# learning rates
learning_rate | ActorCritic.lr
actor_learning_rate policy_lr learning_rate_policy | ActorCritic.actor_lr
critic_learning_rate critic_lr q_lr qf_lr learning_rate_q | ActorCritic.lr
    | lr is for all networks; actor_lr and encoder_lr override it
temp_learning_rate learning_rate_alpha | SAC.alpha_lr
lr_schedule | ActorCritic.lr | a schedule is @LinearDecay() or @CosineDecay()
# sizes
buffer_size replay_buffer_size memory_size | ReplayBuffer.capacity RecurrentReplayBuffer.capacity
    | the second is for agents with memory, and counts episodes, not steps
    | for agents with memory, it counts episodes, not steps
replay_buffer_class | build.buffer_class
replay_buffer_kwargs replay_buffer_config | ReplayBuffer.capacity ReplayBuffer.batch_size
    | each is a separate parameter |
batch_size mini_batch_size minibatch_size train_batch_size train_batch_size_per_learner
    | ReplayBuffer.batch_size RecurrentReplayBuffer.batch_size | the second is for agents with memory |
net_arch hidden_sizes hidden_units dqn_layers policy_layers num_cells fcnet_hiddens | ActorCritic.hidden_dims
policy_kwargs | ActorCritic.hidden_dims ActorCritic.num_critics | each is a separate parameter
n_critics num_qvalue_nets | ActorCritic.num_critics
twin_q | ActorCritic.num_critics | twin_q = True is num_critics = 2
use_layer_norm critic_ln | ActorCritic.layer_norm
lstm_hidden_size rnn_hidden_size lstm_cell_size | Recurrent.hidden_dim
n_lstm_layers rnn_num_layers | Recurrent.num_layers
seq_model | Recurrent.cell
use_lstm | Recurrent.cell | the algorithm's name says whether there is a memory: rsac has one
    | offpcc.RSAC has a memory, offpcc.SAC has none
lstm_use_prev_action | Recurrent.use_previous_action
lstm_use_prev_reward | Recurrent.use_previous_reward
action_embedding_size | Recurrent.use_previous_action | True or False; there is no embedding
reward_embedding_size | Recurrent.use_previous_reward | True or False; there is no embedding
observ_embedding_size | Recurrent.feature_extractor | an encoder class of yours; by default, none
sequence_length slice_len replay_sequence_length | RecurrentReplayBuffer.segment_len
sampled_seq_len | RecurrentReplayBuffer.segment_len | None, not -1, for whole episodes
max_seq_len | RecurrentReplayBuffer.segment_len | without the steps of burn_in
num_slices | RecurrentReplayBuffer.batch_size
burn_in_len burnin_len replay_burn_in | RecurrentReplayBuffer.burn_in
actor_encoder_factory critic_encoder_factory encoder_factory | ActorCritic.hidden_dims ActorCritic.encoder
compile_graph | ActorCritic.compile ActorCritic.cuda_graphs | on a GPU, CUDA graphs are the default
cudagraphs cudagraph use_cuda_graph | ActorCritic.cuda_graphs
# targets
tau | ActorCritic.polyak | polyak = 1 - tau: tau = 0.005 is polyak = 0.995
IQL.tau | ActorCritic.polyak IQL.expectile | tau of targets is 1 - polyak; the paper's is expectile
target_theta | ActorCritic.polyak | polyak = 1 - target_theta
discount discount_factor | ActorCritic.gamma
n_steps | ActorCritic.n_step | for the length of training: train.num_epochs and train.num_steps_per_epoch
target_network_frequency target_update_freq target_update_period target_network_update_freq
    value_network_update_interval
    | ActorCritic.target_update_interval | it counts updates; polyak = 0 copies the networks
max_gradient_norm clip_grad_norm grad_clip | ActorCritic.max_grad_norm
adam_epsilon optimizer_eps | ActorCritic.adam_eps
# temperature
ent_coef | SAC.alpha SAC.autotune | ent_coef = "auto" is autotune = True; a fixed one is autotune = False
initial_temperature alpha_init entropy_alpha | SAC.alpha
use_automatic_entropy_tuning auto_alpha automatic_entropy_tuning | SAC.autotune
fixed_alpha | SAC.autotune | fixed_alpha = True is autotune = False
DiscreteSAC.target_entropy target_entropy_weight | DiscreteSAC.target_entropy_ratio | a share of log A
# exploration
action_noise exploration_noise expl_noise sigma_init | DeterministicPolicy.action_noise
    | SAC and CQL sample from their policy instead
policy_noise target_policy_noise target_smoothing_sigma | TD3.target_noise
target_noise_clip target_smoothing_clip | TD3.noise_clip
policy_freq policy_frequency update_actor_interval | TD3.policy_delay
exploration_initial_eps start_e eps_train eps_init | ValueBased.initial_epsilon
exploration_final_eps end_e eps_train_final epsilon_train eps_end | ValueBased.final_epsilon
ValueBased.epsilon | ValueBased.initial_epsilon ValueBased.final_epsilon ValueBased.epsilon_steps
exploration_fraction | ValueBased.epsilon_steps | a number of environment steps, not a share of training
eps_test eps_inference epsilon_eval | ValueBased.test_epsilon
estimation_step n_step_return_horizon update_horizon | ActorCritic.n_step
R2D2.burn_in | RecurrentReplayBuffer.burn_in | it belongs to the buffer
R2D2.eta | | it belongs to the buffer: PrioritizedRecurrentReplayBuffer.eta
QRDQN.kappa | | Huber's threshold is 1
DiscreteBC.beta | | d3rlpy's penalty of large logits has no counterpart
is_double double_q double_dqn | DQN.double
TQC.n_quantiles | TQC.num_quantiles
SAC.n_quantiles | TQC.num_quantiles | TQC is SAC with quantiles
n_quantiles | QRDQN.num_quantiles
top_quantiles_to_drop_per_net | TQC.top_quantiles_to_drop
use_sde optimize_memory_usage | | offpcc has no counterpart
q_func_factory | | offpcc.QRDQN and offpcc.DiscreteCQL learn quantiles
clip_reward reward_clip | ActorCritic.clip_rewards | it takes the sign of each reward
clip_obs optimizer_class optimizer_kwargs optim_factory | | offpcc has no counterpart
transition_picker transition_picker_factory | | ActorCritic.n_step and the frame stack of images do this
features_extractor_class feature_extractor_class | ActorCritic.encoder
    | an encoder class of yours; csac and the like have convolutions
features_extractor_kwargs | ActorCritic.encoder | bind the arguments of your encoder, such as MyEncoder.width = 64
    | functools.partial(MyEncoder, width=64)
features_dim | Convolutional.feature_dim
conv_filters | Convolutional.channels Convolutional.kernels Convolutional.strides
share_features_extractor enable_critic_lstm shared_lstm separate |
    | the algorithm's name says it: all networks of rsac_s share one memory, each of rsac has its own
activation_fn activation_function activation_class fcnet_activation |
    | MLPs have ReLU; an encoder or heads of your own may have another
value_learning_rate | ActorCritic.lr | lr is for all networks; actor_lr and encoder_lr override it
alpha_learning_rate | ActorCritic.lr | CQL's multiplier has this rate, too
initial_alpha | SAC.alpha
CQL.initial_alpha | | CQL's multiplier begins at 1; with lagrange_threshold = None, conservative_weight is fixed
prioritized_replay | build.buffer_class | PrioritizedReplayBuffer of offpcc.data
eps_decay epsilon_decay exploration_steps epsilon_decay_period annealing_num_steps | ValueBased.epsilon_steps
    | a number of environment steps
action_scaler | | actions are always scaled to the bounds of the environment; recorded actions: dataset.action_range
_init_setup_model monitor_wrapper create_eval_env | | offpcc needs no such setting
# offline algorithms
cql_alpha conservative_weight min_q_weight | CQL.conservative_weight
with_q_entropy soft_q_backup | CQL.backup_entropy
deterministic_backup | CQL.backup_entropy | deterministic_backup = True is backup_entropy = False
bc_iters | CQL.bc_steps
lagrange_thresh lagrangian_thresh alpha_threshold cql_lagrange with_lagrange lagrangian | CQL.lagrange_threshold
    | None for a fixed weight
cql_target_action_gap | CQL.lagrange_threshold | cql_alpha x cql_target_action_gap
cql_n_actions CQL.num_actions num_random | CQL.num_samples
n_action_samples | CQL.num_samples BCQ.num_samples
cql_temp | CQL.temperature
iql_tau | IQL.expectile
weight_temp | IQL.beta
max_weight | IQL.max_advantage_weight
lam | BCQ.lmbda
AWAC.lam AWAC.beta awac_lambda | AWAC.temperature
MOPO.lam penalty_coef penalty_coefficient MOPO.penalty | Imagination.penalty
rollout_length rollout_len horizon_length | Imagination.length
real_ratio | Imagination.real_share
DynamicsModel.n_models DynamicsModel.ensemble_size n_ensembles ensemble_size | DynamicsModel.num_members
DynamicsModel.lr DynamicsModel.learning_rate dynamics_lr | ModelTraining.lr
reward_fn reward_function termination_fn termination_function |
    | write a wrapper that changes rewards or ends, and bind it to make.wrappers; a model learns them from the data
CRR.beta | CRR.temperature
exp_adv_max | AWAC.max_advantage_weight IQL.max_advantage_weight
action_flexibility | BCQ.phi
unlikely_action_threshold DiscreteBCQ.action_flexibility | DiscreteBCQ.threshold
imitation_logits_penalty DiscreteBCQ.beta | DiscreteBCQ.logits_weight
DiscreteCQL.alpha | DiscreteCQL.conservative_weight
policy_improvement_mode | DiscreteCRR.weight_type
ratio_upper_bound | DiscreteCRR.max_advantage_weight
DiscreteCRR.beta | DiscreteCRR.temperature
TD3BC.alpha | TD3BC.bc_alpha
ReBRAC.actor_beta | ReBRAC.actor_bc_coef
ReBRAC.critic_beta | ReBRAC.critic_bc_coef
actor_ln | ActorCritic.actor_layer_norm
num_min_qs sub_sample_len | ActorCritic.target_subset
dropout_rate | ActorCritic.dropout ActorCritic.actor_dropout | the second is the actor's
frac | dataset.best_fraction
normalize scaler observation_scaler norm_obs observation_filter | ActorCritic.normalize_observations
normalize_reward reward_scaler norm_reward | dataset.return_range ActorCritic.reward_scale
    | the first is for recorded data
# the run
total_timesteps n_timesteps max_timesteps num_timesteps total_steps timesteps total_frames num_iters
    | train.num_epochs train.num_steps_per_epoch | the product of the two is the number of environment steps
n_epochs | train.num_epochs
train.n_steps | train.num_epochs train.num_steps_per_epoch | the product of the two is the number of steps of the loop
n_steps_per_epoch | train.num_steps_per_epoch
learning_starts start_steps min_replay_history init_random_frames num_steps_sampled_before_learning_starts
    | train.update_after
num_init_rollouts_pool | train.update_after | a number of environment steps, not of episodes
num_updates_per_iter | train.updates_per_step | updates per environment step
training_intensity | train.updates_per_step | updates_per_step = training_intensity / train_batch_size
train_freq train_frequency update_period | train.update_every
    | updates_per_step counts updates per environment step, not per round
gradient_steps | train.updates_per_step | updates_per_step = gradient_steps / train_freq
utd_ratio | train.updates_per_step
n_eval_episodes eval_episodes n_episodes n_evaluator_episode num_eval_tasks evaluation_duration
    | train.num_test_episodes_per_epoch
eval_freq evaluation_interval | train.num_steps_per_epoch | there is a test after each epoch
eval_env evaluators scorers | train.num_test_episodes_per_epoch
    | there is a test after each epoch, in an environment of its own
n_envs collector_env_num num_envs_per_env_runner | environments.num_envs
num_env_runners | environments.num_envs environments.worker_processes | True: a process for each
num_learners | | offpcc has one learner
stop_value | train.stop_return
save_freq checkpoint_freq | Checkpoints.every_steps
save_interval | Checkpoints.every
IQL.temperature | IQL.beta | beta multiplies the advantage in the weights of the actor
max_episode_steps | make.kwargs | as in make.kwargs = {"max_episode_steps": 200} | as in {"max_episode_steps": 200}
env_kwargs | make.kwargs
env_wrapper | make.wrappers
n_frames frame_stack | Concatenate.num | with make.wrappers = [@Concatenate]; or choose a memory, such as rsac
    | with make={"wrappers": [offpcc.envs.wrappers.Concatenate]}; or choose a memory, such as offpcc.RSAC
callback | build.callbacks
logger_adapter | build.loggers
verbose progress_bar show_progress log_interval stats_window_size | | progress is always shown, with one line per epoch
    | train always shows progress; train(logger=offpcc.training.loggers.Loggers([])) shows none
tensorboard_log tb_log_name experiment_name run_name with_timestamp |
    | a run's folder, below --results, holds its table, curve and TensorBoard files
    | offpcc.fit trains in a folder, with table, curve and TensorBoard files; train writes no files
oracle | | take sac and a task that hides nothing; for critics that see the state: make.state
reset_num_timesteps | | a new run id starts anew, and --resume continues
    | train continues, and num_epochs counts from the start; a new learner starts anew
use_gpu gpu cuda num_gpus num_gpus_per_learner | | the device is --device cuda | in offpcc that is device="cuda"
dataset | | the dataset is --dataset | the data is given where the learner is built, as in offpcc.IQL(env, dataset=data)
policy | | the algorithm's name says what its networks read: sac vectors, csac images, rsac a memory
seed random_seed | | the run id is the seed: --run_id on the command line, seed=... in Python
    | in offpcc that is seed of offpcc.SAC
Agent.act.state Agent.act.states Agent.act.hidden_state Agent.act.lstm_states Agent.act.memory |
    | the agent keeps its hidden state itself; call agent.reset() when an episode begins
"""


def _read_table() -> Iterator[tuple[str, Synonym]]:
    """Yield each name of `_TABLE` with our counterpart."""
    for row in re.sub(r"\n +", " ", _TABLE).splitlines():
        if row and not row.startswith("#"):
            names, bindings, *notes = (column.strip() for column in row.split("|"))
            yield from ((name, Synonym(tuple(bindings.split()), *notes)) for name in names.split())


SYNONYMS = dict(_read_table())
DATA = SYNONYMS["dataset"].python

# Our options, and those of other command lines.
_OPTIONS = {
    "--env": "environment env_id env_name gym_id task",
    "--algo": "algorithm alg agent algo_name",
    "--run_id": "seed seeds random_seed",
    "--config": "config_file conf_file gin_config gin_file cfg",
    "--gin": "gin_bindings gin_param hyperparams hyperparameters",
    "--episodes": "n_eval_episodes eval_episodes num_episodes n_episodes",
    "--num_envs": "n_envs",
    "--threads": "num_threads n_threads",
    "--device": "cuda gpu use_gpu",
    "--results": "log_dir logdir log_folder save_dir save_path out output output_dir results_dir exp_name",
    "--resume": "checkpoint trained_agent continue",
    "--track": "wandb use_wandb",
    "--record": "save_video capture_video record_video",
}
OPTIONS = {name: ours for ours, names in _OPTIONS.items() for name in names.split()}


def binding_hint(name: str, families: Collection[str] = (), known: Collection[str] = ()) -> str:
    """Return a hint for the name of a parameter in another library; "" if the name is unknown or is ours."""
    found, owner = _find(name, families, known), next(iter(families), "")
    own = [binding for binding in found.bindings if owner and binding.rpartition(".")[2] in known]
    of_owner = [f"{owner}.{binding.rpartition('.')[2]}" for binding in own]
    others = [binding for binding in found.bindings if binding not in own]
    if len(set(of_owner)) < len(of_owner):  # two classes have this parameter, and the user named one of them
        return f"in offpcc that is {of_owner[0]}"
    ours = [*of_owner, *others]
    if not ours:
        return found.note
    return f"in offpcc that is {' and '.join(ours)}{f' ({found.note})' if found.note else ''}"


def _find(name: str, families: Collection[str], known: Collection[str]) -> Synonym:
    keys = [*(f"{family}.{name}" for family in families), name]
    found = next((SYNONYMS[key] for key in keys if key in SYNONYMS), None)
    if found is not None:
        return found
    has_memory = any(family.startswith("Recurrent") for family in families)
    return Synonym(() if differs_by_s(name, known) and not has_memory else OWN.get(name, ()))


def differs_by_s(name: str, known: Collection[str]) -> bool:
    """Check whether a known name is the plural or the singular of `name`, as hidden_dims is that of hidden_dim."""
    return not {f"{name}s", name.removesuffix("s")}.isdisjoint(known)


def argument_hint(name: str, families: Collection[str] = (), known: Collection[str] = ()) -> str:
    """Return a hint for an argument of another library in Python, with Python's arguments; "" if there is none."""
    words = re.findall(r"\w+", ARGUMENTS.get(name, ""))
    if ours := next((word for word in words if word in known), ""):
        return f"in offpcc that is {ours if ' or ' in ARGUMENTS[name] else ARGUMENTS[name]}"
    found = _find(name, families, known)
    arguments = [_argument(binding, known) for binding in found.bindings]
    note = found.note if found.python is None else found.python
    if not arguments:
        return note
    return f"in offpcc that is {' and '.join(dict.fromkeys(arguments))}{f' ({note})' if note else ''}"


BY_GIN = {  # owners of parameters that are no arguments of a constructor
    *("dataset", "Checkpoints", "Concatenate", "Convolutional", "OfflineToOnline"),
    *("DynamicsModel", "ModelTraining", "Imagination"),
}


def _argument(binding: str, known: Collection[str]) -> str:
    """Return what sets a gin parameter in Python: an argument, or a call."""
    owner, name = binding.split(".")
    if name in known:
        return name
    if owner == "train":
        return f'training={{"{name}": ...}}' if "training" in known else f"train({name}=...)"
    if owner in ("environments", "make", "ReplayBuffer", "RecurrentReplayBuffer"):
        group = owner if owner in ("environments", "make") else "buffer"
        if owner == "make" and "env" in known and not {"make", "algorithm"} & {*known}:  # as `evaluate`
            return f"env=lambda: offpcc.make(NAME, {name}=...)"
        return f'{group}={{"{name}": ...}}{"" if group in known else " where the learner is built"}'
    if owner in BY_GIN:
        return f'offpcc.configure(None, "{binding} = ...")'
    if owner == "build":
        built = f"{name} where the learner is built, as in offpcc.SAC(env, {name}=...)"
        return f"{built}, or train(callbacks=...)" if name == "callbacks" else built
    if "algorithm" in known:
        return f'algorithm={{"{name}": ...}}'
    takes = {"ActorCritic": "SAC", "DeterministicPolicy": "TD3", "Recurrent": "RSAC", "ValueBased": "DQN"}
    return f"{name} of offpcc.{takes.get(owner, owner)}"


def option_hint(option: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown option of a command; "" if there is none."""
    name = option.lstrip("-").lower()
    name = {"epochs": "num_epochs", "steps": "timesteps", "num_steps": "timesteps"}.get(name, name)
    if (ours := OPTIONS.get(name)) in known:
        return f"in offpcc that is {ours}"
    if "--gin" not in known:
        return ""
    bindings = SYNONYMS[name].bindings if name in SYNONYMS else OWN.get(name, ())
    note = SYNONYMS[name].note if name in SYNONYMS else ""
    if not bindings:
        return note
    words = " ".join(f'"{binding}=..."' for binding in bindings)
    return f"hyper-parameters are bindings of gin: --gin {words}{f' ({note})' if note else ''}"


# Arguments of functions, such as `offpcc.evaluate` and `Dataset.from_arrays`, in other libraries, and ours.
ARGUMENTS = {
    **dict.fromkeys(("n_eval_episodes", "eval_episodes", "n_episodes", "num_episodes", "n_trials"), "episodes"),
    **dict.fromkeys(("total_timesteps", "n_steps", "num_steps"), "steps or num_updates"),
    **dict.fromkeys(("model", "algo", "actor"), "agent"),
    **dict.fromkeys(("n_envs", "num_environments"), "num_envs"),
    **dict.fromkeys(("states", "obs", "observation"), "observations"),
    **dict.fromkeys(("next_states", "next_obs", "next_observation"), "next_observations"),
    "terminated": "terminations",
    **dict.fromkeys(("dones", "done"), "terminations (without time limits, which are truncations)"),
    **dict.fromkeys(("eval_env", "environment", "env_id", "env_name", "gym_id"), "env"),
    "truncated": "truncations",
    "episode_terminals": "terminations, and truncations where episode_terminals is true and terminations is not",
    "run_id": "seed",
    **dict.fromkeys(("episode_start", "episode_starts"), "is_first"),
    "file_path": "file",
    "path": "file",
}

# Functions and methods of other libraries: those of `offpcc` itself, of the learner, the agent and a dataset.
_AGENT = "act(observation) of the agent that train returns"
_LEARN = "train(num_epochs=N, num_steps_per_epoch=M)"


def _offpcc(names: str) -> list[str]:
    return [f"offpcc.{name}" for name in names.split()]


ATTRIBUTES = {
    "offpcc.evaluate_policy": "offpcc.evaluate(agent, env, episodes=N)",
    **dict.fromkeys(
        _offpcc("make_vec_env DummyVecEnv SubprocVecEnv"),
        'environments={"num_envs": N, "worker_processes": True or False} of a constructor, such as offpcc.SAC',
    ),
    "offpcc.MDPDataset": "offpcc.Dataset.from_arrays(observations=..., actions=..., ...)",
    **dict.fromkeys(
        _offpcc("PPO RecurrentPPO RECURRENTPPO A2C TRPO"),
        "offpcc has no on-policy algorithm; take sac or dqn, with a memory rsac or rdqn",
    ),
    **dict.fromkeys(_offpcc("C51 IQN FQF RAINBOW Rainbow"), "qrdqn also learns the distribution of returns"),
    "offpcc.DRQN": "rdqn is DQN with a memory; r2d2 adds priorities over sequences and rescaled values",
    **{
        f"{name}Config": f"{name.replace('Plus', '')}(env, ...) builds a learner"
        for name in _offpcc("DDPG TD3 SAC TQC DQN BC BCQ CQL IQL AWAC CRR TD3PlusBC ReBRAC CalQL")
    },
    "offpcc.ReplayBuffer": "offpcc.data.ReplayBuffer; buffer={...} of a constructor, such as offpcc.SAC, sets its size",
    "offpcc.datasets": 'offpcc.Dataset; dataset="hopper-medium-v2" takes the names of D4RL',
    "offpcc.load_learnable": "offpcc.load(FILE)",
    **dict.fromkeys(_offpcc("load_dataset read_dataset"), "offpcc.data.load_dataset(FILE)"),
    "offpcc.algos": "offpcc.SAC and so on build a learner; offpcc.algorithms has the classes",
    "offpcc.Logger": "offpcc.training.loggers.Logger",
    "offpcc.Encoder": "offpcc.networks.Encoder",
    "offpcc.Cell": "offpcc.networks.Cell",
    "offpcc.FQE": "offpcc.evaluate_from_data(agent, data)",
    "offpcc.TD3PlusBC": "offpcc.TD3BC(env, dataset=data)",
    "offpcc.DoubleDQN": "offpcc.DQN, whose targets are double ones by default",
    "offpcc.BC_10": "bc with the config offline/bc_10.gin learns from the best tenth of the episodes",
    "offpcc.VecNormalize": "normalize_observations=True of a constructor, such as offpcc.SAC",
    "offpcc.EvalCallback": "train tests the agent after each epoch; offpcc.fit keeps the best one, as actor_best.pt",
    "offpcc.HerReplayBuffer": "buffer_class=offpcc.data.HindsightReplayBuffer of a constructor",
    "offpcc.make_env": "offpcc.make(NAME)",
    "learner.get_parameters": "state_dict() of its algorithm",
    "learner.agent": "offpcc.Agent(learner.algorithm); train returns it, too",
    "learner.predict_value": "offpcc.q_values(learner, data)",
    "agent.save_policy": "offpcc.export(agent, FILE)",
    "learner.learn": f"{_LEARN}: N * M environment steps",
    "learner.fit": f"{_LEARN}: N * M updates; {DATA}",
    "learner.create": f"{_LEARN}; a learner needs no other call before it",
    "learner.fitter": f"{_LEARN}, with callbacks=[...], which are called after each epoch",
    "learner.fit_online": _LEARN,
    **dict.fromkeys(("learner.act", "learner.predict", "learner.compute_single_action"), _AGENT),
    "learner.get_module": "algorithm, or the agent that train returns",
    "learner.sample_action": _AGENT.replace("observation", "observation, deterministic=False"),
    "learner.evaluate": "offpcc.evaluate(agent, env, episodes=N)",
    "learner.collect": "offpcc.collect(env, agent, steps=N)",
    "learner.load": "offpcc.load(FILE)",
    **dict.fromkeys(
        ("learner.load_model", "learner.load_replay_buffer", "learner.set_parameters", "learner.restore_from_path"),
        "offpcc.load(FILE)",
    ),
    **dict.fromkeys(("learner.save_model", "learner.save_to_path"), "save(FILE)"),
    "learner.save_replay_buffer": "save(FILE, buffer=True)",
    "learner.save_policy": "offpcc.export(agent, FILE) for ONNX, and agent.save(FILE); train returns the agent",
    "learner.replay_buffer": "buffer",
    "learner.policy": "algorithm, or the agent that train returns",
    "learner.num_timesteps": "loop.step",
    **dict.fromkeys(
        ("learner.env", "learner.get_env", "learner.set_env"), "offpcc.make(NAME); learners make their own"
    ),
    **dict.fromkeys(("learner.logger", "learner.set_logger"), "train(logger=...)"),
    "learner.set_random_seed": "seed=N where the learner is built",
    **dict.fromkeys(
        (f"agent.{name}" for name in ("predict", "select_action", "get_action", "forward_inference")),
        "act(observation)",
    ),
    "agent.sample_action": "act(observation, deterministic=False)",
    **dict.fromkeys(
        ("dataset.split", "dataset.train_test_split"),
        "select(EPISODES), such as data.select(range(80)); `offpcc docs your_data` shows how to hold out episodes",
    ),
    "dataset.filter_episodes": "select(EPISODES)",
    **dict.fromkeys((f"dataset.{name}" for name in ("dump", "to_hdf5", "save_to_disk")), "save(FILE)"),
    "dataset.load": "offpcc.data.load_dataset(FILE)",
    "dataset.transition_count": "num_transitions",
    "dataset.total_episodes": "num_episodes",
    "dataset.total_steps": "num_steps",
    "agent.learn": "an agent only acts; train of the learner that offpcc.SAC or offpcc.build returns",
}


# Methods of callbacks in stable-baselines3 and PyTorch Lightning, and ours.
CALLBACK_METHODS = {
    **dict.fromkeys(("_on_step", "on_step"), "on_progress, which is called after each step and update"),
    **dict.fromkeys(("_on_training_start", "on_training_start", "on_train_start", "_init_callback"), "on_start"),
    **dict.fromkeys(("_on_training_end", "on_training_end", "on_train_end"), "on_end"),
    **dict.fromkeys(("_on_rollout_end", "on_rollout_end"), "before_updates"),
    **dict.fromkeys(("on_epoch_end", "on_train_epoch_end"), "on_epoch"),
}
LOGGER_METHODS = {
    **dict.fromkeys(("on_epoch", "on_epoch_end", "log", "log_epoch", "log_metrics", "write", "write_metric"), "epoch"),
    **dict.fromkeys(("save_model", "log_artifact", "log_video"), "artifact"),
}


NEARLY = 0.85  # likeness of a method's name to one of ours, from which it is taken for a slip


def refuse_uncalled(cls: type, base: type, methods: Sequence[str], others: Mapping[str, str]) -> None:
    """Refuse a user's class with a method that another library calls, or with a misspelt one, in place of ours.

    Of our class `base`, these `methods` are called. `others` are names in other libraries, and ours.
    """
    own = {name for level in cls.__mro__[: cls.__mro__.index(base)] for name in vars(level)}
    for name in sorted(own.difference(methods)):
        ours = others.get(name) or next(iter(difflib.get_close_matches(name, methods, 1, NEARLY)), None)
        if ours is not None and ours.split(",")[0] not in own and callable(getattr(cls, name)):
            raise UserError(f"{cls.__name__} has the method {name}, which offpcc never calls; in offpcc that is {ours}")


# Wrappers that learn while they wrap, and what does it in offpcc. An actor's file would not hold what they learned.
LEARNING_WRAPPERS = {
    "NormalizeObservation": "ActorCritic.normalize_observations = True does this, and files of agents hold it",
    "NormalizeReward": "ActorCritic.reward_scale is a constant factor on rewards",
}


def no_attribute(owner: str, name: str, shown: str, known: Collection[str] = ()) -> AttributeError:
    """Return the error for an attribute that does not exist, with our name for one of another library.

    `owner` is "offpcc", "learner", "agent" or "dataset", and `shown` the object in the message, which proposes the
    nearest of the `known` attributes.
    """
    hint = ATTRIBUTES.get(f"{owner}.{name}", "")
    text = f"{shown} has no attribute {name!r}"
    if hint:
        return AttributeError(f"{text}; in offpcc: {hint}")
    near = [] if name.startswith("_") else similar(name, known, 1)
    if not near:
        return AttributeError(text)
    return AttributeError(f"{text}; did you mean {near[0]}?", obj=known)  # with obj, Python adds no guess of its own


# Our own parameters, given as options.
OWN: dict[str, tuple[str, ...]] = {
    **{
        binding.rpartition(".")[2]: (binding,)
        for synonym in reversed(SYNONYMS.values())
        for binding in synonym.bindings
    },
    "capacity": SYNONYMS["buffer_size"].bindings,
    "num_epochs": ("train.num_epochs",),
    **{name: (f"Recurrent.{name}",) for name in ("cell", "use_previous_action", "use_previous_reward")},
}
