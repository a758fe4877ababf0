"""Values that make no sense are refused as they are given, in one line that names parameter, value and remedy."""

import functools
import inspect
import sys
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import offpcc.cli.train  # noqa: F401 (registers what gin can configure)
from offpcc.algorithms import (
    AWAC,
    BC,
    BCQ,
    CQL,
    CRR,
    DDPG,
    DQN,
    EDAC,
    FQL,
    IQL,
    QRDQN,
    R2D2,
    SAC,
    TD3,
    TD3BC,
    TQC,
    ActorCritic,
    CalQL,
    DiscreteBCQ,
    DiscreteCQL,
    DiscreteCRR,
    DiscreteSAC,
    ReBRAC,
)
from offpcc.algorithms.dynamics import DynamicsModel
from offpcc.algorithms.optim import CosineDecay, LinearDecay
from offpcc.algorithms.variants import ConvolutionalSAC, RecurrentSAC
from offpcc.config import loading
from offpcc.config.bindings import parameters, passed_by_us
from offpcc.config.registry import REGISTRY, configurable
from offpcc.config.validation import (
    Flag,
    Fraction,
    Number,
    PositiveInteger,
    Rule,
    Sizes,
    check_arguments,
    either,
    one_of,
    rules_of,
    without_rules,
)
from offpcc.data import (
    HindsightReplayBuffer,
    PrioritizedRecurrentReplayBuffer,
    PrioritizedReplayBuffer,
    RandomShift,
    RecurrentReplayBuffer,
    ReplayBuffer,
)
from offpcc.networks import Convolutional, Encoder, Identity, InputShape, PassThrough, Recurrent, Residual
from offpcc.networks.cells import GPT, LRU, LSTM, Cell, Concat, MinGRU
from offpcc.training.models.training import ModelTraining
from offpcc.training.run_fns import check_settings, train
from offpcc.utils.errors import UserError

if TYPE_CHECKING:
    from nowhere import Unknown

NAN, INFINITY = float("nan"), float("inf")
VECTORS, IMAGES = Box(-1, 1, (3,), np.float32), Box(0, 255, (1, 40, 40), np.uint8)
ACTIONS = Box(-1, 1, (2,), np.float32)
SMALL = {
    Recurrent: {"hidden_dim": 3, "num_layers": 1},
    Convolutional: {"channels": (2,), "kernels": (3,), "strides": (4,), "feature_dim": 3},
}


def built(cls, **given):
    """An object of `cls`, or for `train` its settings held."""
    if cls is train:
        return check_settings(**given)
    if issubclass(cls, Encoder):
        return cls(InputShape((1, 40, 40) if cls is Convolutional else (3,), 2), **{**SMALL.get(cls, {}), **given})
    if issubclass(cls, Cell):
        return cls(3, 4, 1, **given)
    if issubclass(cls, ActorCritic):
        actions = Discrete(2) if cls.is_discrete else ACTIONS
        return cls(IMAGES if cls is ConvolutionalSAC else VECTORS, actions, **{"hidden_dims": (4,), **given})
    if issubclass(cls, ReplayBuffer | RecurrentReplayBuffer):
        return cls(VECTORS, ACTIONS, **given)
    if cls is DynamicsModel:
        return cls(2, 1, **given)
    return cls(**given)


def small_recurrent(shape):
    return Recurrent(shape, hidden_dim=3)


# Values -----------------------------------------------------------------------------------------------------------

FRACTION = "it has to be a number from 0 to 1"
RATE = "it has to be a number, 0 or more, or a schedule such as @LinearDecay()"
SIZES = "it has to be a list of whole numbers, each 1 or more, such as (64, 64)"
COUNT = "it has to be a whole number, 1 or more"
COUNT_OR_ZERO = "it has to be a whole number, 0 or more"
AMOUNT = "it has to be a number, 0 or more"
FLAG = "it has to be True or False"
SCALING = 'it has to be True, False or "scale"'
ENCODER = "it has to be an encoder class such as @Recurrent"
DERIVES = "an encoder is a class that derives from offpcc.networks.Encoder; `offpcc docs extending` has an example"
WITHOUT_MEMORY = "it has to be an encoder class without memory, such as @Convolutional"
OR_NONE = ", or None"

REFUSED = [
    (SAC, "gamma", 1.5, f"1.5; {FRACTION}"),
    (SAC, "gamma", -0.1, f"-0.1; {FRACTION}"),
    (SAC, "gamma", NAN, f"nan; {FRACTION}"),
    (SAC, "gamma", True, f"True; {FRACTION}"),
    (SAC, "gamma", None, f"None; {FRACTION}"),
    (SAC, "gamma", LinearDecay(), f"an object of LinearDecay; {FRACTION}"),
    (SAC, "gamma", LinearDecay, f"the class LinearDecay; {FRACTION}"),
    (SAC, "gamma", "x" * 99, f"an object of str; {FRACTION}"),
    (RecurrentSAC, "gamma", np.float32(1.5), f"np.float32(1.5); {FRACTION}"),
    (SAC, "polyak", -1, f"-1; {FRACTION}"),
    (SAC, "lr", -1.0, f"-1.0; {RATE}"),
    (SAC, "lr", "fast", f"'fast'; {RATE}"),
    (SAC, "lr", INFINITY, f"inf; {RATE}"),
    (SAC, "lr", None, f"None; {RATE}"),
    (SAC, "lr", LinearDecay, "the class LinearDecay; write @LinearDecay() with parentheses"),
    (SAC, "actor_lr", [1e-3], f"[0.001]; {RATE}{OR_NONE}"),
    (SAC, "encoder_lr", LinearDecay, "the class LinearDecay; write @LinearDecay() with parentheses"),
    (SAC, "hidden_dims", (), f"(); {SIZES}"),
    (SAC, "hidden_dims", 32, f"32; {SIZES}"),
    (SAC, "hidden_dims", (32, 0), f"(32, 0); {SIZES}"),
    (SAC, "hidden_dims", [32.0], f"[32.0]; {SIZES}"),
    (SAC, "hidden_dims", "32", f"'32'; {SIZES}"),
    (SAC, "num_critics", 0, f"0; {COUNT}{OR_NONE}"),
    (SAC, "num_critics", 2.0, f"2.0; {COUNT}{OR_NONE}"),
    (SAC, "num_critics", 100_000, "100000; it has to be 1,000 or less"),
    (SAC, "layer_norm", "yes", f"'yes'; {FLAG}{OR_NONE}"),
    (SAC, "normalize_observations", "yes", f"'yes'; {SCALING}{OR_NONE}"),
    (SAC, "normalize_observations", 1, f"1; {SCALING}{OR_NONE}"),
    (SAC, "target_subset", 0, f"0; {COUNT}{OR_NONE}"),
    (SAC, "actor_q", "max", f"'max'; it has to be one of min, mean, first{OR_NONE}"),
    (SAC, "critic_inputs", "all", f"'all'; it has to be one of history, state, history+state{OR_NONE}"),
    (SAC, "policy_delay", 0, f"0; {COUNT}"),
    (SAC, "adam_eps", 0.0, "0.0; it has to be a number above 0"),
    (SAC, "weight_decay", -0.1, "-0.1; it has to be a number, 0 or more"),
    (SAC, "dropout", 1.0, "1.0; it has to be a number, 0 or more and below 1"),
    (IQL, "actor_dropout", True, "True; it has to be a number, 0 or more and below 1"),
    (SAC, "heads", Residual, "the class Residual; write @Residual() with parentheses"),
    (SAC, "heads", "residual", f"'residual'; it has to be heads such as @Residual(){OR_NONE}"),
    *((Residual, name, 0, f"0; {COUNT}") for name in ("actor_width", "actor_blocks", "critic_width", "critic_blocks")),
    (SAC, "actor_layer_norm", 1, f"1; {FLAG}"),
    (SAC, "target_entropy_per_dim", "half", f"'half'; it has to be a number{OR_NONE}"),
    (SAC, "max_grad_norm", -1, f"-1; it has to be a number above 0{OR_NONE}"),
    (SAC, "max_grad_norm", 0, f"0; it has to be a number above 0{OR_NONE}"),
    (SAC, "n_step", 0, f"0; {COUNT}"),
    (SAC, "n_step", 1.5, f"1.5; {COUNT}"),
    (SAC, "n_step", True, f"True; {COUNT}"),
    (SAC, "n_step", 2_000_000, "2000000; it has to be 1,048,576 or less"),
    (SAC, "reward_scale", "0.1", "'0.1'; it has to be a number"),
    (SAC, "reward_scale", 0, "0; it has to be a number other than 0"),
    (SAC, "reward_shift", NAN, "nan; it has to be a number"),
    (SAC, "encoder", "Recurrent", f"'Recurrent'; {ENCODER}{OR_NONE}"),
    (SAC, "encoder", LinearDecay, f"the class LinearDecay; {ENCODER}{OR_NONE}"),
    (SAC, "encoder", LinearDecay(), f"an object of LinearDecay; {ENCODER}{OR_NONE}"),
    (SAC, "encoder", Identity(InputShape((3,), 2)), "Identity(); write @Identity without parentheses"),
    (SAC, "encoder", torch.nn.LSTM, f"the class LSTM; {DERIVES}"),
    (SAC, "shared_encoder", torch.nn.Tanh(), f"Tanh(); {DERIVES}"),
    (SAC, "encoder", Cell, "the class Cell; a cell is a part of the encoder Recurrent: bind Recurrent.cell = @Cell"),
    (SAC, "shared_encoder", small_recurrent(InputShape((3,), 2)), "write @Recurrent without parentheses"),
    (ConvolutionalSAC, "augmentation", RandomShift, "the class RandomShift; write @RandomShift() with parentheses"),
    (SAC, "precision", "float16", "'float16'; it has to be one of float32, bfloat16"),
    (SAC, "fused", "yes", f"'yes'; {FLAG}{OR_NONE}"),
    (SAC, "compile", "yes", f"'yes'; {FLAG}"),
    (SAC, "cuda_graphs", "yes", f"'yes'; {FLAG}{OR_NONE}"),
    (SAC, "nonfinite", "ignore", "'ignore'; it has to be one of raise, skip"),
    (LSTM, "forget_bias", "1", "'1'; it has to be a number"),
    (SAC, "augmentation", 4, f"4; it has to be an augmentation such as @RandomShift(){OR_NONE}"),
    (SAC, "alpha", -1.0, f"-1.0; {AMOUNT}"),
    (SAC, "alpha", 0.0, "0; a learned temperature must start above 0"),
    (RecurrentSAC, "alpha", "auto", f"'auto'; {AMOUNT}"),
    (SAC, "autotune", 0, f"0; {FLAG}"),
    (SAC, "target_entropy", "auto", f"'auto'; it has to be a number{OR_NONE}"),
    (SAC, "alpha_lr", LinearDecay, "the class LinearDecay; write @LinearDecay() with parentheses"),
    (DDPG, "action_noise", -0.1, f"-0.1; {AMOUNT}"),
    (TD3, "action_noise", "0.1", f"'0.1'; {AMOUNT}"),
    (TD3, "target_noise", -0.2, f"-0.2; {AMOUNT}"),
    (TD3, "noise_clip", -0.5, f"-0.5; {AMOUNT}"),
    (TD3, "policy_delay", 0, f"0; {COUNT}"),
    (BC, "action_noise", -0.1, f"-0.1; {AMOUNT}"),
    (TD3BC, "bc_alpha", -2.5, f"-2.5; {AMOUNT}"),
    (IQL, "expectile", 1.5, f"1.5; {FRACTION}"),
    (IQL, "beta", -3.0, f"-3.0; {AMOUNT}"),
    (IQL, "max_advantage_weight", 0, "0; it has to be a number above 0"),
    (AWAC, "temperature", 0.0, "0.0; it has to be a number above 0"),
    (AWAC, "num_samples", 0, f"0; {COUNT}{OR_NONE}"),
    (AWAC, "max_advantage_weight", -1.0, f"-1.0; it has to be a number above 0{OR_NONE}"),
    (CRR, "weight_type", "max", "'max'; it has to be one of exp, binary"),
    (CRR, "sarsa_target", 1, f"1; {FLAG}"),
    (CRR, "advantage_type", "min", "'min'; it has to be one of mean, max"),
    (EDAC, "eta", -1.0, f"-1.0; {AMOUNT}"),
    (EDAC, "num_critics", 1, "1; EDAC compares critics in pairs, so it has to be 2 or more"),
    (FQL, "alpha", -1.0, f"-1.0; {AMOUNT}"),
    (FQL, "flow_steps", 0, f"0; {COUNT}"),
    (FQL, "q_agg", "max", "'max'; it has to be one of mean, min"),
    (FQL, "normalize_q_loss", None, f"None; {FLAG}"),
    (CalQL, "conservative_weight", -1.0, f"-1.0; {AMOUNT}"),
    (ReBRAC, "actor_bc_coef", -0.01, f"-0.01; {AMOUNT}"),
    (ReBRAC, "critic_bc_coef", -0.01, f"-0.01; {AMOUNT}"),
    (ReBRAC, "normalize_q", 1, f"1; {FLAG}"),
    (CQL, "conservative_weight", -5.0, f"-5.0; {AMOUNT}"),
    (CQL, "num_samples", 0, f"0; {COUNT}"),
    (CQL, "temperature", 0.0, "0.0; it has to be a number above 0"),
    (CQL, "lagrange_threshold", -1.0, f"-1.0; {AMOUNT}{OR_NONE}"),
    (CQL, "max_q_backup", 1, f"1; {FLAG}"),
    (CQL, "backup_entropy", "no", f"'no'; {FLAG}"),
    (CQL, "bc_steps", -1, f"-1; {COUNT_OR_ZERO}"),
    (DQN, "double", 1, f"1; {FLAG}"),
    (DQN, "dueling", "yes", f"'yes'; {FLAG}"),
    (DQN, "target_update_interval", 0, f"0; {COUNT}"),
    (DQN, "initial_epsilon", 1.5, f"1.5; {FRACTION}{OR_NONE}"),
    (DQN, "final_epsilon", -0.1, f"-0.1; {FRACTION}"),
    (DQN, "epsilon_steps", -1, f"-1; {COUNT_OR_ZERO}"),
    (DQN, "epsilon_ladder", -1.0, f"-1.0; {AMOUNT}"),
    (R2D2, "rescaling", -0.1, f"-0.1; {AMOUNT}"),
    (DQN, "test_epsilon", 1.5, f"1.5; {FRACTION}"),
    (DQN, "clip_rewards", 1, f"1; {FLAG}"),
    (QRDQN, "num_quantiles", 0, f"0; {COUNT}"),
    (TQC, "num_quantiles", 0, f"0; {COUNT}"),
    (TQC, "top_quantiles_to_drop", -1, f"-1; {COUNT_OR_ZERO}"),
    (TQC, "top_quantiles_to_drop", 25, "25, but num_quantiles is 25; no quantile would be left"),
    (DiscreteSAC, "target_entropy_ratio", 1.1, f"1.1; {FRACTION}"),
    (DiscreteSAC, "backup_entropy", 0, f"0; {FLAG}"),
    (DiscreteSAC, "target_entropy_ratio", 1, "1; only the uniform policy has that entropy"),
    (DiscreteSAC, "target_entropy_ratio", 1.0, "1.0; only the uniform policy has that entropy"),
    (DiscreteBCQ, "threshold", 2, f"2; {FRACTION}"),
    (DiscreteBCQ, "logits_weight", -1.0, f"-1.0; {AMOUNT}"),
    (DiscreteCQL, "conservative_weight", -1.0, f"-1.0; {AMOUNT}"),
    (DiscreteCRR, "temperature", 0.0, "0.0; it has to be a number above 0"),
    (BCQ, "phi", -0.05, f"-0.05; {AMOUNT}"),
    (BCQ, "lmbda", 1.75, f"1.75; {FRACTION}"),
    (BCQ, "num_samples", 0.5, f"0.5; {COUNT}"),
    (BCQ, "num_acting_samples", 0, f"0; {COUNT}"),
    (BCQ, "vae_hidden_dims", 750, f"750; {SIZES}"),
    (Recurrent, "cell", "lsmt", "'lsmt'; it has to be one of lstm, gru, rnn"),
    (Recurrent, "cell", ["lstm"], "['lstm']; it has to be one of lstm, gru, rnn"),
    (Recurrent, "num_layers", 0, f"0; {COUNT}"),
    (Recurrent, "hidden_dim", 0, f"0; {COUNT}"),
    (Recurrent, "hidden_dim", 64.0, f"64.0; {COUNT}"),
    (Recurrent, "use_previous_action", "no", f"'no'; {FLAG}"),
    (Recurrent, "use_previous_reward", 1, f"1; {FLAG}"),
    (
        Recurrent,
        "feature_extractor",
        PassThrough(InputShape((3,), 2)),
        "PassThrough(); write @PassThrough without parentheses",
    ),
    (Recurrent, "feature_extractor", None, f"None; {WITHOUT_MEMORY}"),
    (Convolutional, "vector_encoder", None, f"None; {WITHOUT_MEMORY}"),
    (MinGRU, "expansion", 1.5, f"1.5; {COUNT}"),
    (MinGRU, "horizon", 0, f"0; {COUNT}"),
    (LRU, "state_dim", 0, f"0; {COUNT}{OR_NONE}"),
    (LRU, "r_min", -0.1, f"-0.1; {FRACTION}"),
    (LRU, "r_min", 1.0, "1.0 but LRU.r_max is 0.999; it has to be that or less"),
    (LRU, "r_max", 1.5, f"1.5; {FRACTION}"),
    (LRU, "max_phase", 0.0, "0.0; it has to be a number above 0"),
    (GPT, "num_heads", 0, f"0; {COUNT}"),
    (GPT, "context_length", 128.0, f"128.0; {COUNT}"),
    (Concat, "num_steps", 0, f"0; {COUNT}"),
    (Identity, "use_previous_action", None, f"None; {FLAG}"),
    (Convolutional, "channels", (), f"(); {SIZES}"),
    (Convolutional, "kernels", 3, f"3; {SIZES}"),
    (Convolutional, "strides", (0,), f"(0,); {SIZES}"),
    (Convolutional, "feature_dim", -5, f"-5; {COUNT}"),
    (Convolutional, "use_previous_reward", "yes", f"'yes'; {FLAG}"),
    (RandomShift, "pad", -1, f"-1; {COUNT_OR_ZERO}"),
    (RandomShift, "pad", 0.5, f"0.5; {COUNT_OR_ZERO}"),
    (LinearDecay, "initial", -1e-3, f"-0.001; {AMOUNT}"),
    (LinearDecay, "final", "0", f"'0'; {AMOUNT}"),
    (LinearDecay, "num_updates", 0, f"0; {COUNT}"),
    (CosineDecay, "initial", -1e-3, f"-0.001; {AMOUNT}"),
    (CosineDecay, "final", "0", f"'0'; {AMOUNT}"),
    (CosineDecay, "num_updates", 0, f"0; {COUNT}"),
    (ReplayBuffer, "capacity", 1.5, f"1.5; {COUNT}"),
    (
        ReplayBuffer,
        "capacity",
        1,
        "1, but a transition takes 2 rows, in each of 1 environments; it has to be 2 or more",
    ),
    (ReplayBuffer, "batch_size", 0, f"0; {COUNT}"),
    (ReplayBuffer, "num_steps", 0, f"0; {COUNT}"),
    (ReplayBuffer, "num_envs", "2", f"'2'; {COUNT}"),
    (ReplayBuffer, "num_envs", 100_000, "100000; it has to be 16,384 or less"),
    (ReplayBuffer, "frame_stack", 1.0, f"1.0; {COUNT}"),
    (ReplayBuffer, "on_device", "cuda", f"'cuda'; {FLAG}{OR_NONE}"),
    (ReplayBuffer, "memory_limit", 0, f"0; {COUNT}{OR_NONE}"),
    (RecurrentReplayBuffer, "memory_limit", 1.5, f"1.5; {COUNT}{OR_NONE}"),
    (RecurrentReplayBuffer, "capacity", 0, f"0; {COUNT}"),
    (RecurrentReplayBuffer, "batch_size", "10", f"'10'; {COUNT}"),
    (RecurrentReplayBuffer, "segment_len", "a", f"'a'; {COUNT}{OR_NONE}"),
    (RecurrentReplayBuffer, "segment_len", 0, f"0; {COUNT}{OR_NONE}"),
    (RecurrentReplayBuffer, "burn_in", -1, f"-1; {COUNT_OR_ZERO}"),
    (RecurrentReplayBuffer, "burn_in", 3, "3 but segment_len is None"),
    (HindsightReplayBuffer, "num_goals", 0, f"0; {COUNT}"),
    (PrioritizedReplayBuffer, "alpha", 1.5, f"1.5; {FRACTION}"),
    (PrioritizedReplayBuffer, "beta", -0.5, f"-0.5; {FRACTION}"),
    (PrioritizedReplayBuffer, "beta_updates", 0, f"0; {COUNT}"),
    (PrioritizedReplayBuffer, "eta", 2, f"2; {FRACTION}"),
    (PrioritizedReplayBuffer, "epsilon", 0, "0; it has to be a number above 0"),
    (PrioritizedRecurrentReplayBuffer, "period", 0, f"0; {COUNT}{OR_NONE}"),
    (RecurrentReplayBuffer, "draw_by", "length", "'length'; it has to be one of steps, episodes"),
    *((DynamicsModel, name, 0, f"0; {COUNT}") for name in ("num_members", "history")),
    (DynamicsModel, "num_elites", 8, "8, but num_members is 7; lower num_elites"),
    (DynamicsModel, "hidden_dims", (), f"(); {SIZES}"),
    (DynamicsModel, "reward_hidden_dims", 64, f"64; {SIZES}{OR_NONE}"),
    (DynamicsModel, "activation", "tanh", "'tanh'; it has to be one of relu, silu, leaky_relu"),
    (DynamicsModel, "layer_norm", 1, f"1; {FLAG}"),
    (DynamicsModel, "learned_bounds", "no", f"'no'; {FLAG}"),
    (DynamicsModel, "termination", "often", "'often'; it has to be one of auto, known, learned, never"),
    (DynamicsModel, "margin", -1.0, f"-1.0; {AMOUNT}"),
    *((ModelTraining, name, 0, f"0; {COUNT}") for name in ("batch_size", "most_held_out", "patience")),
    *((ModelTraining, name, 0, f"0; {COUNT}{OR_NONE}") for name in ("max_epochs", "updates_per_epoch")),
    (ModelTraining, "lr", 0.0, "0.0; it has to be a number above 0"),
    (ModelTraining, "holdout", 0.0, "0.0; it has to be a number above 0"),
    (ModelTraining, "order", "random", "'random'; it has to be one of permutation, bootstrap, same"),
    (ModelTraining, "weight_decay", -1.0, f"-1.0; {AMOUNT}"),
    (ModelTraining, "improvement", -1.0, f"-1.0; {AMOUNT}"),
    (train, "num_epochs", -1, "-1; it has to be a whole number, 0 or more"),
    (train, "num_epochs", 1.5, "1.5; it has to be a whole number, 0 or more"),
    (train, "num_steps_per_epoch", "1000", f"'1000'; {COUNT}"),
    (train, "num_test_episodes_per_epoch", -1, f"-1; {COUNT_OR_ZERO}"),
    (train, "num_test_envs", 0, f"0; {COUNT}"),
    (train, "update_after", 1e4, f"10000.0; {COUNT_OR_ZERO}"),
    (train, "update_every", 0, f"0; {COUNT}"),
    (train, "updates_per_step", NAN, f"nan; {AMOUNT}"),
    (train, "updates_per_step", -0.5, f"-0.5; {AMOUNT}"),
    (train, "stop_return", "a", f"'a'; it has to be a number{OR_NONE}"),
    (train, "stop_return", INFINITY, f"inf; it has to be a number{OR_NONE}"),
    (train, "stop_tests", 0, f"0; {COUNT}"),
]


def named(value):
    return value.__name__ if isinstance(value, type) or value is train else None


@pytest.mark.parametrize("cls, name, value, words", REFUSED, ids=named)
def test_what_makes_no_sense_is_refused_in_one_line(cls, name, value, words):
    with pytest.raises(UserError) as caught:
        built(cls, **{name: value})
    message = caught.value.message
    assert message.startswith(f"{cls.__name__}.{name} is ") and words in message and "\n" not in message


@pytest.mark.parametrize(
    "cls, name, values",
    [
        (SAC, "gamma", [0, 1, 0.5, np.float32(0.5), np.float64(1.0), np.int64(1)]),
        (SAC, "lr", [0, 1e-3, np.float32(1e-3), LinearDecay(), lambda update: 1e-3, functools.partial(pow, 0.5)]),
        (SAC, "actor_lr", [None, 1e-3, LinearDecay()]),
        (SAC, "hidden_dims", [(4,), [4, 4], (np.int64(4),)]),
        (SAC, "num_critics", [None, 1, 5, np.int32(3)]),
        (SAC, "max_grad_norm", [None, 1, 0.5]),
        (SAC, "n_step", [1, np.int64(3)]),
        (SAC, "reward_scale", [-1, 0.1]),
        (SAC, "encoder", [None, Identity, Recurrent, small_recurrent, functools.partial(Recurrent, hidden_dim=3)]),
        (SAC, "augmentation", [None, RandomShift(), lambda frames, noise, one_per_row: frames]),
        (SAC, "target_entropy", [None, -3, -0.5]),
        (DDPG, "action_noise", [0, 0.1]),
        (Recurrent, "feature_extractor", [Identity, functools.partial(Identity, use_previous_reward=True)]),
        (RandomShift, "pad", [0, 4]),
        (RecurrentReplayBuffer, "segment_len", [None, 5]),
        (RecurrentReplayBuffer, "draw_by", ["steps", "episodes"]),
        (ReplayBuffer, "on_device", [None, True, False]),
        (train, "num_test_envs", [1, 1_024]),
        (train, "update_after", [0, np.int64(5)]),
        (train, "updates_per_step", [0, 0.5, 2]),
        (train, "stop_return", [None, -200, 9.5]),
    ],
    ids=named,
)
def test_what_makes_sense_is_taken(cls, name, values):
    for value in values:
        built(cls, **{name: value})


def test_a_temperature_that_stays_0_is_sound():
    assert built(SAC, alpha=0, autotune=False).temperature() == 0.0


def test_convolutions_need_one_of_each_number():
    with pytest.raises(UserError, match=r"lists of 2, 1 and 3 numbers; give each the same length"):
        built(Convolutional, channels=(2, 2), kernels=(3,), strides=(2, 2, 2))


OURS = [cls for cls in REGISTRY.values() if cls.__module__.startswith("offpcc.")]


@pytest.mark.parametrize("cls", OURS, ids=named)
def test_every_parameter_has_a_rule_and_a_row(cls):
    """So that a new one is not forgotten."""
    bindable = parameters(cls) - passed_by_us(cls)
    assert bindable <= rules_of(cls).keys()
    assert bindable <= {name for _, name, _, _ in REFUSED}


def test_every_setting_has_a_rule_and_a_row():
    settings = {p.name for p in inspect.signature(train).parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert settings == rules_of(train).keys() == {name for cls, name, _, _ in REFUSED if cls is train}


def test_one_of_takes_its_names_alone():
    rule = one_of(("lean", "rich"))
    assert rule.words == "one of lean, rich"
    given = ["lean", "rich", "", "r", None, 1, [], ["lean"], np.array(["lean"])]
    assert list(filter(rule.holds, given)) == ["lean", "rich"]


def test_either_holds_where_one_of_two_rules_does_and_tells_the_slips_of_both():
    small = Rule("below 3", lambda value: value < 3, lambda value: "halve it" if value < 6 else "")
    large = Rule("above 9", lambda value: value > 9, lambda value: f"double {value}")
    rule = either(small, large)
    assert rule.words == "below 3, or above 9"
    assert list(filter(rule.holds, range(12))) == [0, 1, 2, 10, 11]
    assert (rule.remedy(5), rule.remedy(7)) == ("halve it", "double 7")


# Where they come from -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "binding, words",
    [
        ("ActorCritic.gamma=1.5", "RecurrentSAC.gamma is 1.5; "),
        ("SAC.gamma=1.5", "RecurrentSAC.gamma is 1.5; "),
        ("RecurrentSAC.gamma=1.5", "RecurrentSAC.gamma is 1.5; "),
        ("SAC.lr=@LinearDecay", "RecurrentSAC.lr is the class LinearDecay; write @LinearDecay() with parentheses"),
        ("SAC.lr=@slow/LinearDecay", "RecurrentSAC.lr is the class LinearDecay; write @LinearDecay() with parentheses"),
        ("Recurrent.num_layers=0", "Recurrent.num_layers is 0; "),
        ("Recurrent.use_previous_action='no'", "Recurrent.use_previous_action is 'no'; "),
    ],
)
def test_bindings_of_all_the_family_are_held_to_the_rules(binding, words):
    loading.load_gin_config(None, [binding])
    with pytest.raises(UserError) as caught:
        RecurrentSAC(VECTORS, ACTIONS)
    assert caught.value.message.startswith(words) and "\n" not in caught.value.message


def test_a_schedules_own_numbers_are_held_to_the_rules():
    loading.load_gin_config(None, ["SAC.lr=@LinearDecay()", "LinearDecay.num_updates=-5"])
    with pytest.raises(UserError) as caught:
        SAC(VECTORS, ACTIONS)
    assert caught.value.message == "LinearDecay.num_updates is -5; it has to be a whole number, 1 or more"


def test_a_scoped_class_is_an_encoder():
    loading.load_gin_config(None, ["SAC.encoder=@small/Recurrent", "small/Recurrent.hidden_dim=3"])
    assert SAC(VECTORS, ACTIONS).actor_encoder.dim == 3


# Classes of a user's own ----------------------------------------------------------------------------------------------


class Undecorated:
    def __init__(self, *, share: Fraction = 0.5, wide: Flag = False):
        self.share, self.wide = share, wide


@configurable
class Own(Undecorated):
    def __init__(self, size: PositiveInteger = 3, *, sizes: Sizes | None = None, note: str = "", **kwargs):
        super().__init__(**kwargs)
        self.size = size


@configurable
class Unreadable(Own):
    def __init__(self, *, unknown: "Unknown" = None, length: Number = 0.0, **kwargs):
        super().__init__(**kwargs)


def test_rules_are_those_of_all_ancestors():
    assert rules_of(Own).keys() == {"share", "wide", "size", "sizes"}
    assert Own(np.int8(4), share=1, sizes=None, note=7).size == 4
    for given in ({"share": 2}, {"wide": 0}, {"sizes": ()}, {"size": 0}):
        with pytest.raises(UserError, match=rf"Own\.{next(iter(given))} is "):
            Own(**given)
    with pytest.raises(UserError, match=r"Own\.size is 0; "):
        Own(0)


def test_annotations_that_only_a_type_checker_can_read_are_no_fault():
    assert "nowhere" not in sys.modules
    assert rules_of(Unreadable).keys() == rules_of(Own).keys()
    assert Unreadable(length="?").size == 3
    with pytest.raises(UserError, match=r"Unreadable\.size is 0; "):
        Unreadable(size=0)


def test_the_first_fault_is_named_and_what_is_not_given_is_not_checked():
    check_arguments("Own", rules_of(Own), {"size": 3, "unheard": None})
    with pytest.raises(UserError, match=r"^Own\.share is 'a'; it has to be a number from 0 to 1$"):
        check_arguments("Own", rules_of(Own), {"size": 0, "share": "a"})


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        (Fraction | None, float | None),
        (Fraction, float),
        (Fraction | str, float | str),
        *((hint, hint) for hint in (Callable[[int], None], dict[str, NoneType], tuple[int, None], "int | None", None)),
    ],
)
def test_only_rules_are_left_out_of_shown_annotations(hint, shown):
    parameter = inspect.Parameter("given", inspect.Parameter.KEYWORD_ONLY, annotation=hint)
    assert without_rules(parameter).annotation == shown
