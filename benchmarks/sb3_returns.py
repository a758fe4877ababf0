"""Returns of stable-baselines3's SAC or TD3 in offpcc's environments, by the settings of one of offpcc's configs.

python -m benchmarks.sb3_returns --env pendulum-v0 --algo sac --config evidence/beside_sb3/pendulum.gin --run_id 1 2

It writes run folders with a progress.csv and a run.json, under the name sb3-sac, for `offpcc plot` and `offpcc report`.
The test episodes are those of offpcc's agents, side by side as there. A run that is there is not trained again.
stable-baselines3 has one learning rate, also for the temperature, so `SAC.alpha_lr` has to be equal to it.
"""

import argparse
import csv
import json
import sys
import time
from pathlib import Path

import gin
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise

import offpcc
from benchmarks.command import bound_values, command, positive
from offpcc.envs.make import simulator_version
from offpcc.training.evaluation import Evaluation
from offpcc.utils.errors import UserError

ALPHA_LR = 3e-4  # the default of offpcc's SAC
ACTION_NOISE = 0.1  # of offpcc's TD3, too
COLUMNS = ("step", "train/return", "test/return", "test/return_std", "time/hours")


TRANSLATED = (
    *(f"ActorCritic.{name}" for name in ("lr", "gamma", "polyak", "hidden_dims")),
    *(f"ReplayBuffer.{name}" for name in ("capacity", "batch_size")),
    *(f"train.{name}" for name in ("update_after", "update_every", "updates_per_step")),
    *(f"train.{name}" for name in ("num_epochs", "num_steps_per_epoch", "num_test_episodes_per_epoch")),
)
WITH_MEMORY = ("Recurrent.", "RecurrentReplayBuffer.")  # bindings that agents without memory ignore


def settings_of(config, algo):
    """Return stable-baselines3's arguments that mean the same as a config's bindings.

    Raises:
        UserError: the config binds something that is not translated.
    """
    offpcc.configure(config)
    bound, given = gin.query_parameter, bound_values()
    of_alpha = given.pop("SAC.alpha_lr", ALPHA_LR)
    if algo == "sac" and of_alpha != given["ActorCritic.lr"]:
        raise UserError(
            f"{config} has SAC.alpha_lr = {of_alpha} and ActorCritic.lr = {given['ActorCritic.lr']}, but "
            f"stable-baselines3 has one learning rate; make them equal"
        )
    for short, value in given.items():
        if short not in TRANSLATED and not short.startswith(WITH_MEMORY):
            raise UserError(
                f"{config} binds {short} = {value}, which is not translated to stable-baselines3; leave it out, or "
                f"translate it in benchmarks/sb3_returns.py"
            )
    return {
        "learning_rate": bound("ActorCritic.lr"),
        "buffer_size": bound("ReplayBuffer.capacity"),
        "batch_size": bound("ReplayBuffer.batch_size"),
        "gamma": bound("ActorCritic.gamma"),
        "tau": round(1.0 - bound("ActorCritic.polyak"), 12),
        "learning_starts": bound("train.update_after"),
        "train_freq": bound("train.update_every"),
        "gradient_steps": round(bound("train.updates_per_step") * bound("train.update_every")),
        "policy_kwargs": {"net_arch": list(bound("ActorCritic.hidden_dims"))},
    }


class Tests(BaseCallback):
    """Test episodes at each epoch's end, written as a row."""

    def __init__(self, tests, folder, num_steps_per_epoch, num_episodes):
        super().__init__()
        self.tests, self.folder, self.num_steps, self.num_episodes = tests, folder, num_steps_per_epoch, num_episodes
        self.rows, self.train_returns, self.started = [], [], time.perf_counter()

    def _on_step(self):
        self.train_returns += [
            info["final_eval_reward"] for info in self.locals["infos"] if "final_eval_reward" in info
        ]
        if self.num_timesteps % self.num_steps == 0:
            results = self.tests.run(self, self.num_episodes, self.num_episodes)
            returns = [result.episode_return for result in results]
            hours = (time.perf_counter() - self.started) / 3600.0
            trained = np.mean(self.train_returns) if self.train_returns else ""
            self.rows.append((self.num_timesteps, trained, np.mean(returns), np.std(returns), hours))
            self.train_returns.clear()
            with (self.folder / "progress.csv").open("w", newline="") as stream:
                csv.writer(stream).writerows([COLUMNS, *self.rows])
            print(self.folder, *self.rows[-1], flush=True)
        return True

    def act(self, step, memory=None, *, deterministic=False):
        """Return the actions of the policy for a batch of observations."""
        return self.model.predict(step.observation, deterministic=deterministic)[0], memory


@command
def main():
    """Train, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True)
    parser.add_argument("--algo", choices=("sac", "td3"), required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--run_id", type=positive, nargs="+", default=[1])
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = settings_of(options.config, options.algo)
    num_epochs, per_epoch, num_tests = (
        gin.query_parameter(f"train.{name}")
        for name in ("num_epochs", "num_steps_per_epoch", "num_test_episodes_per_epoch")
    )
    for run_id in options.run_id:
        folder = options.results / options.env / f"sb3-{options.algo}" / str(run_id)
        if (folder / "run.json").exists():
            print(f"{folder} is there already")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        env = offpcc.make(options.env, scale_actions=True)
        tests = Evaluation(lambda: offpcc.make(options.env, scale_actions=True))
        if options.algo == "td3":
            size = env.action_space.shape[0]
            settings["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, ACTION_NOISE))
        cls = getattr(stable_baselines3, options.algo.upper())
        model = cls("MlpPolicy", env, seed=run_id, device="cpu", **settings)
        model.learn(num_epochs * per_epoch, callback=Tests(tests, folder, per_epoch, num_tests))
        tests.close()
        facts = {
            "env": options.env,
            "algo": f"sb3-{options.algo}",
            "run_id": run_id,
            "seed": run_id,
            "status": "finished",
            "config_name": Path(options.config).stem,
            "simulator": simulator_version(),
            "libraries": {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__},
        }
        (folder / "run.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
