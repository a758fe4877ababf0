"""Returns of stable-baselines3's SAC or TD3 in offpcc's environments, by configs/evidence/locomotion.gin's settings.

pip install stable-baselines3
python benchmarks/sb3_returns.py --env halfcheetah-bullet-v0 --algo sac --run_id 1 2 --results results/published

It writes progress.csv where `offpcc plot` finds it, under the name sb3-sac, tested in the episodes of offpcc's agents.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise

import offpcc
from offpcc.training.evaluation import TEST_SEED

SETTINGS = {
    "learning_rate": 3e-4, "buffer_size": 1_000_000, "batch_size": 256, "gamma": 0.99, "tau": 0.005,
    "learning_starts": 10_000, "train_freq": 1, "gradient_steps": 1, "policy_kwargs": {"net_arch": [256, 256]},
}  # fmt: skip


class Tests(BaseCallback):
    """Test episodes at each epoch's end, written as a row."""

    def __init__(self, env, file, num_steps_per_epoch, num_episodes):
        super().__init__()
        self.env, self.file, self.num_steps, self.num_episodes = env, file, num_steps_per_epoch, num_episodes
        self.rows = []

    def _on_step(self):
        if self.num_timesteps % self.num_steps == 0:
            returns = [self.episode(TEST_SEED + number) for number in range(self.num_episodes)]
            self.rows.append((self.num_timesteps, np.mean(returns), np.std(returns)))
            with self.file.open("w", newline="") as stream:
                csv.writer(stream).writerows([("step", "test/return", "test/return_std"), *self.rows])
            print(self.file.parent, *self.rows[-1], flush=True)
        return True

    def episode(self, seed):
        """The return of the mean policy."""
        observation, _ = self.env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            action, _ = self.model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = self.env.step(action)
            total, over = total + float(reward), terminated or truncated
        return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="halfcheetah-bullet-v0")
    parser.add_argument("--algo", choices=("sac", "td3"), required=True)
    parser.add_argument("--run_id", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--steps_per_epoch", type=int, default=5_000)
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for run_id in options.run_id:
        env, settings = offpcc.make(options.env, scale_actions=True), dict(SETTINGS)
        if options.algo == "td3":
            size = env.action_space.shape[0]
            settings["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, 0.1))
        model = getattr(stable_baselines3, options.algo.upper())(
            "MlpPolicy", env, seed=run_id, device="cpu", **settings
        )
        folder = options.results / options.env / f"sb3-{options.algo}" / str(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        tested = offpcc.make(options.env, scale_actions=True)
        tests = Tests(tested, folder / "progress.csv", options.steps_per_epoch, options.episodes)
        model.learn(options.steps, callback=tests)


if __name__ == "__main__":
    main()
