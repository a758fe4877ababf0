"""Names of hyper-parameters and options in other libraries, and their names here.

Error messages about unknown names show our name. The libraries are stable-baselines3 and its zoo, d3rlpy, CleanRL,
CORL and DI-engine.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple


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


def _synonym(bindings: str, note: str = "", python: str | None = None) -> Synonym:
    return Synonym(tuple(bindings.split()), note, python)


_LR = _synonym("ActorCritic.lr")
_CRITIC_LR = _synonym("ActorCritic.lr", "lr is for all networks; actor_lr and encoder_lr override it")
_ACTOR_LR = _synonym("ActorCritic.actor_lr")
_ALPHA_LR = _synonym("SAC.alpha_lr")
_LENGTH = _synonym(
    "train.num_epochs train.num_steps_per_epoch", "the product of the two is the number of environment steps"
)
_CAPACITY = _synonym(
    "ReplayBuffer.capacity RecurrentReplayBuffer.capacity",
    "the second is for agents with memory, and counts episodes, not steps",
    "for agents with memory, it counts episodes, not steps",
)
_BATCH_SIZE = _synonym(
    "ReplayBuffer.batch_size RecurrentReplayBuffer.batch_size", "the second is for agents with memory", ""
)
_UPDATES = _synonym("train.updates_per_step", "updates_per_step = gradient_steps / train_freq")
_UPDATE_EVERY = _synonym("train.update_every", "updates_per_step counts updates per environment step, not per round")
_POLYAK = _synonym("ActorCritic.polyak", "polyak = 1 - tau: tau = 0.005 is polyak = 0.995")
_HIDDEN_DIMS = _synonym("ActorCritic.hidden_dims")
_NUM_CRITICS = _synonym("ActorCritic.num_critics")
_ALPHA = _synonym("SAC.alpha SAC.autotune", 'ent_coef = "auto" is autotune = True; a fixed one is autotune = False')
_NOISE = _synonym("DeterministicPolicy.action_noise", "SAC and CQL sample from their policy instead")
_TARGET_NOISE = _synonym("TD3.target_noise")
_DELAY = _synonym("TD3.policy_delay")
_NO_INTERVAL = _synonym("ActorCritic.polyak", "targets move a little in every update, so there is no interval")
_TESTS = _synonym("train.num_test_episodes_per_epoch")
_TEST_EVERY = _synonym("train.num_steps_per_epoch", "there is a test after each epoch")
_NUM_ENVS = _synonym("environments.num_envs")
_NORMALIZE = _synonym("ActorCritic.normalize_observations")
_SEED = _synonym(
    "",
    "the run id is the seed: --run_id on the command line, seed=... in Python",
    "in offpcc that is seed of offpcc.SAC",
)
_NONE = _synonym("", "offpcc has no counterpart")

# By the name in other libraries. A name with a class, such as TD3BC.alpha, is for this class and its children.
SYNONYMS: dict[str, Synonym] = {
    # learning rates
    "learning_rate": _LR,
    "actor_learning_rate": _ACTOR_LR,
    "policy_lr": _ACTOR_LR,
    "critic_learning_rate": _CRITIC_LR,
    "critic_lr": _CRITIC_LR,
    "q_lr": _CRITIC_LR,
    "qf_lr": _CRITIC_LR,
    "temp_learning_rate": _ALPHA_LR,
    "learning_rate_q": _CRITIC_LR,
    "learning_rate_policy": _ACTOR_LR,
    "learning_rate_alpha": _ALPHA_LR,
    "lr_schedule": _synonym("ActorCritic.lr", "a schedule is @LinearDecay() or @CosineDecay()"),
    # sizes
    "buffer_size": _CAPACITY,
    "replay_buffer_size": _CAPACITY,
    "memory_size": _CAPACITY,
    "replay_buffer_class": _synonym("build.buffer_class"),
    "batch_size": _BATCH_SIZE,
    "mini_batch_size": _BATCH_SIZE,
    "minibatch_size": _BATCH_SIZE,
    "net_arch": _HIDDEN_DIMS,
    "hidden_sizes": _HIDDEN_DIMS,
    "hidden_units": _HIDDEN_DIMS,
    "policy_kwargs": _synonym("ActorCritic.hidden_dims ActorCritic.num_critics", "each is a separate parameter"),
    "n_critics": _NUM_CRITICS,
    "use_layer_norm": _synonym("ActorCritic.layer_norm"),
    "lstm_hidden_size": _synonym("Recurrent.hidden_dim"),
    "n_lstm_layers": _synonym("Recurrent.num_layers"),
    "sequence_length": _synonym("RecurrentReplayBuffer.segment_len"),
    # targets
    "tau": _POLYAK,
    "target_theta": _synonym("ActorCritic.polyak", "polyak = 1 - target_theta"),
    "discount": _synonym("ActorCritic.gamma"),
    "discount_factor": _synonym("ActorCritic.gamma"),
    "n_steps": _synonym("ActorCritic.n_step", f"for the length of training: {' and '.join(_LENGTH.bindings)}"),
    "target_update_interval": _NO_INTERVAL,
    "target_network_frequency": _NO_INTERVAL,
    "max_gradient_norm": _synonym("ActorCritic.max_grad_norm"),
    "clip_grad_norm": _synonym("ActorCritic.max_grad_norm"),
    # temperature
    "ent_coef": _ALPHA,
    "initial_temperature": _synonym("SAC.alpha"),
    "use_automatic_entropy_tuning": _synonym("SAC.autotune"),
    "auto_alpha": _synonym("SAC.autotune"),
    # exploration
    "action_noise": _NOISE,
    "exploration_noise": _NOISE,
    "expl_noise": _NOISE,
    "policy_noise": _TARGET_NOISE,
    "target_policy_noise": _TARGET_NOISE,
    "target_smoothing_sigma": _TARGET_NOISE,
    "target_noise_clip": _synonym("TD3.noise_clip"),
    "target_smoothing_clip": _synonym("TD3.noise_clip"),
    "policy_freq": _DELAY,
    "policy_frequency": _DELAY,
    "update_actor_interval": _DELAY,
    "use_sde": _NONE,
    "optimize_memory_usage": _NONE,
    # offline algorithms
    "cql_alpha": _synonym("CQL.conservative_weight"),
    "conservative_weight": _synonym("CQL.conservative_weight"),
    "min_q_weight": _synonym("CQL.conservative_weight"),
    "with_q_entropy": _synonym("CQL.backup_entropy"),
    "lagrange_thresh": _synonym("CQL.lagrange_threshold", "None for a fixed weight"),
    "cql_n_actions": _synonym("CQL.num_samples"),
    "n_action_samples": _synonym("CQL.num_samples BCQ.num_samples"),
    "alpha_threshold": _synonym("CQL.lagrange_threshold", "None for a fixed weight"),
    "cql_target_action_gap": _synonym("CQL.lagrange_threshold", "None for a fixed weight"),
    "cql_lagrange": _synonym("CQL.lagrange_threshold", "None for a fixed weight"),
    "cql_temp": _synonym("CQL.temperature"),
    "iql_tau": _synonym("IQL.expectile"),
    "weight_temp": _synonym("IQL.beta"),
    "max_weight": _synonym("IQL.max_advantage_weight"),
    "lam": _synonym("BCQ.lmbda"),
    "AWAC.lam": _synonym("AWAC.temperature"),
    "awac_lambda": _synonym("AWAC.temperature"),
    "CRR.beta": _synonym("CRR.temperature"),
    "exp_adv_max": _synonym("AWAC.max_advantage_weight IQL.max_advantage_weight"),
    "action_flexibility": _synonym("BCQ.phi"),
    "TD3BC.alpha": _synonym("TD3BC.bc_alpha"),
    "ReBRAC.actor_beta": _synonym("ReBRAC.actor_bc_coef"),
    "ReBRAC.critic_beta": _synonym("ReBRAC.critic_bc_coef"),
    "critic_ln": _synonym("ActorCritic.layer_norm"),
    "actor_ln": _synonym("ActorCritic.actor_layer_norm"),
    "num_min_qs": _synonym("ActorCritic.target_subset"),
    "dropout_rate": _synonym("ActorCritic.dropout ActorCritic.actor_dropout", "the second is the actor's"),
    "frac": _synonym("dataset.best_fraction"),
    "normalize": _NORMALIZE,
    "observation_scaler": _NORMALIZE,
    "normalize_reward": _synonym("dataset.return_range ActorCritic.reward_scale", "the first is for recorded data"),
    # the run
    "total_timesteps": _LENGTH,
    "n_timesteps": _LENGTH,
    "max_timesteps": _LENGTH,
    "num_timesteps": _LENGTH,
    "total_steps": _LENGTH,
    "n_epochs": _synonym("train.num_epochs"),
    "n_steps_per_epoch": _synonym("train.num_steps_per_epoch"),
    "learning_starts": _synonym("train.update_after"),
    "start_steps": _synonym("train.update_after"),
    "train_freq": _UPDATE_EVERY,
    "gradient_steps": _UPDATES,
    "utd_ratio": _synonym("train.updates_per_step"),
    "n_eval_episodes": _TESTS,
    "eval_episodes": _TESTS,
    "n_episodes": _TESTS,
    "eval_freq": _TEST_EVERY,
    "n_envs": _NUM_ENVS,
    "collector_env_num": _NUM_ENVS,
    "n_evaluator_episode": _TESTS,
    "stop_value": _synonym("train.stop_return"),
    "save_freq": _synonym("Checkpoints.every_steps"),
    "checkpoint_freq": _synonym("Checkpoints.every_steps"),
    "IQL.temperature": _synonym("IQL.beta", "beta multiplies the advantage in the weights of the actor"),
    "max_episode_steps": _synonym(
        "make.kwargs", 'as in make.kwargs = {"max_episode_steps": 200}', 'as in {"max_episode_steps": 200}'
    ),
    "env_kwargs": _synonym("make.kwargs"),
    "env_wrapper": _synonym("make.wrappers"),
    "n_frames": _synonym("Concatenate.num", "with make.wrappers = [@Concatenate]; or choose a memory, such as rsac"),
    "frame_stack": _synonym("Concatenate.num", "with make.wrappers = [@Concatenate]; or choose a memory, such as rsac"),
    "callback": _synonym("build.callbacks"),
    "policy": _synonym("", "the algorithm's name says what its networks read: sac vectors, csac images, rsac a memory"),
    "seed": _SEED,
    "random_seed": _SEED,
}

# Options of other command lines, and our options.
OPTIONS: dict[str, str] = {
    "environment": "--env",
    "env_id": "--env",
    "env_name": "--env",
    "gym_id": "--env",
    "task": "--env",
    "algorithm": "--algo",
    "alg": "--algo",
    "agent": "--algo",
    "model": "--algo",
    "seed": "--run_id",
    "seeds": "--run_id",
    "random_seed": "--run_id",
    "config_file": "--config",
    "conf_file": "--config",
    "gin_config": "--config",
    "gin_file": "--config",
    "gin_bindings": "--gin",
    "gin_param": "--gin",
    "hyperparams": "--gin",
    "hyperparameters": "--gin",
    "n_eval_episodes": "--episodes",
    "eval_episodes": "--episodes",
    "num_episodes": "--episodes",
    "n_episodes": "--episodes",
    "n_envs": "--num_envs",
    "num_threads": "--threads",
    "n_threads": "--threads",
    "cuda": "--device",
    "gpu": "--device",
    "log_dir": "--results",
    "logdir": "--results",
    "log_folder": "--results",
    "save_dir": "--results",
    "output_dir": "--results",
    "results_dir": "--results",
    "checkpoint": "--resume",
    "trained_agent": "--resume",
    "continue": "--resume",
    "wandb": "--track",
    "use_wandb": "--track",
    "save_video": "--record",
    "capture_video": "--record",
    "record_video": "--record",
}


def binding_hint(name: str, families: Collection[str] = (), known: Collection[str] = ()) -> str:
    """Return a hint for the name of a parameter in another library; "" if the name is unknown or is ours."""
    found, owner = _find(name, families), next(iter(families), "")
    own = [binding for binding in found.bindings if owner and binding.rpartition(".")[2] in known]
    of_owner = [f"{owner}.{binding.rpartition('.')[2]}" for binding in own]
    others = [binding for binding in found.bindings if binding not in own]
    if len(set(of_owner)) < len(of_owner):  # two classes have this parameter, and the user named one of them
        return f"in offpcc that is {of_owner[0]}"
    ours = [*of_owner, *others]
    if not ours:
        return found.note
    return f"in offpcc that is {' and '.join(ours)}{f' ({found.note})' if found.note else ''}"


def _find(name: str, families: Collection[str]) -> Synonym:
    keys = [*(f"{family}.{name}" for family in families), name]
    found = next((SYNONYMS[key] for key in keys if key in SYNONYMS), None)
    return Synonym(OWN.get(name, ())) if found is None else found


def argument_hint(name: str, families: Collection[str] = (), known: Collection[str] = ()) -> str:
    """Return a hint for an argument of another library in Python, with Python's arguments; "" if there is none."""
    if (ours := ARGUMENTS.get(name)) in known:
        return f"in offpcc that is {ours}"
    found = _find(name, families)
    arguments = [_argument(binding, known) for binding in found.bindings]
    note = found.note if found.python is None else found.python
    if not arguments:
        return note
    return f"in offpcc that is {' and '.join(dict.fromkeys(arguments))}{f' ({note})' if note else ''}"


def _argument(binding: str, known: Collection[str]) -> str:
    """Return what sets a gin parameter in Python: an argument, or a call."""
    owner, name = binding.split(".")
    if name in known:
        return name
    if owner == "train":
        return f"train({name}=...)"
    if owner in ("environments", "ReplayBuffer", "RecurrentReplayBuffer"):
        return f'{"environments" if owner == "environments" else "buffer"}={{"{name}": ...}}'
    if owner in ("make", "dataset", "Checkpoints", "Recurrent", "Concatenate"):
        return f'offpcc.configure(None, "{binding} = ...")'
    if "algorithm" in known:
        return f'algorithm={{"{name}": ...}}'
    return (
        f"{name} of offpcc.{ {'ActorCritic': 'SAC', 'DeterministicPolicy': 'TD3', 'build': 'SAC'}.get(owner, owner) }"
    )


def option_hint(option: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown option of a command; "" if there is none."""
    name = option.lstrip("-").lower()
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
    **dict.fromkeys(("total_timesteps", "n_steps", "num_steps"), "steps"),
    **dict.fromkeys(("model", "algo", "actor"), "agent"),
    **dict.fromkeys(("n_envs", "num_environments"), "num_envs"),
    **dict.fromkeys(("states", "obs", "observation"), "observations"),
    **dict.fromkeys(("next_states", "next_obs", "next_observation"), "next_observations"),
    **dict.fromkeys(("dones", "done", "terminated"), "terminations"),
    "eval_env": "env",
    "environment": "env",
    "truncated": "truncations",
    "file_path": "file",
    "path": "file",
}

# Functions and methods of other libraries: those of `offpcc` itself, of the learner and of the agent.
_AGENT = "act(observation) of the agent that train returns"
ATTRIBUTES = {
    "offpcc.evaluate_policy": "offpcc.evaluate(agent, env, episodes=N)",
    "offpcc.make_vec_env": 'environments={"num_envs": N} of a constructor, such as offpcc.SAC',
    "offpcc.MDPDataset": "offpcc.Dataset.from_arrays(observations=..., actions=..., ...)",
    "offpcc.PPO": "offpcc has no on-policy algorithm",
    "offpcc.DQN": "offpcc has no algorithm for discrete actions",
    "offpcc.algos": "offpcc.SAC and so on build a learner; offpcc.algorithms has the classes",
    "learner.learn": "train(num_epochs=N)",
    "learner.fit": "train(num_epochs=N)",
    "learner.fit_online": "train(num_epochs=N)",
    "learner.act": _AGENT,
    "learner.predict": _AGENT,
    "learner.evaluate": "offpcc.evaluate(agent, env, episodes=N)",
    "learner.load": "offpcc.load(FILE)",
    "agent.predict": "act(observation)",
    "agent.learn": "an agent only acts; train of the learner that offpcc.SAC or offpcc.build returns",
}


def no_attribute(owner: str, name: str, shown: str) -> AttributeError:
    """Return the error for an attribute that does not exist, with our name for one of another library.

    Args:
        owner: "offpcc", "learner" or "agent".
        name: the attribute.
        shown: the object in the message.
    """
    hint = ATTRIBUTES.get(f"{owner}.{name}", "")
    return AttributeError(f"{shown} has no attribute {name!r}{f'; in offpcc: {hint}' if hint else ''}")


# Our own parameters, given as options.
OWN: dict[str, tuple[str, ...]] = {
    **{
        binding.rpartition(".")[2]: (binding,)
        for synonym in reversed(SYNONYMS.values())
        for binding in synonym.bindings
    },
    "capacity": _CAPACITY.bindings,
}
