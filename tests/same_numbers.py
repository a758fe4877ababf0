"""Records what every algorithm computes, or compares it with a record, bit for bit.

    python tests/same_numbers.py record numbers.json
    python tests/same_numbers.py compare numbers.json
    python tests/same_numbers.py record some.json sac rdqn crdqn

For each name of ``--algo``, or those that are given, online and from data, with a fixed seed: the table of two epochs
without its columns of time, then 20 updates: each batch, its losses, the parameters after it, and actions at the end. A
change that must not alter numbers is recorded before and compared after. Takes some minutes on one core.
"""

import hashlib
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "helpers"))
import atari_shards
import tiny_atari

import offpcc
from offpcc.algorithms import ALGORITHMS
from offpcc.algorithms.variants import TABLE
from offpcc.core import Step

SETTINGS = (
    "train.num_epochs=2",
    "train.num_steps_per_epoch=250",
    "train.num_test_episodes_per_epoch=1",
    "train.update_after=200",
    "train.updates_per_step=0.05",
)
# (is_discrete, images) -> the task, the shape of its observations, its number of actions
TASKS = {
    (False, False): ("pendulum-p-v0", (2,), 1),
    (False, True): ("pendulum-img-v0", (1, 40, 40), 1),
    (True, False): ("cartpole-p-v0", (2,), 2),
    (True, True): (tiny_atari.ID, (4, atari_shards.SIDE, atari_shards.SIDE), 4),
}


class Rows:
    """A logger that keeps each epoch's numbers, without those of time."""

    def __init__(self):
        self.rows = []

    def epoch(self, row):
        self.rows.append({key: repr(value) for key, value in row.items() if not key.startswith("time/")})

    def progress(self, progress):
        pass

    def artifact(self, kind, file):
        pass

    def close(self):
        pass


def digest(*arrays):
    """A short name of arrays: of their types, shapes and bytes."""
    found = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:16]


def recorded(is_discrete, images):
    """A data set of six episodes of random numbers."""
    generator = np.random.default_rng(7)
    num, (_, shape, num_actions) = 240, TASKS[is_discrete, images]
    observations = generator.normal(size=(num, *shape)).astype(np.float32)
    if images:
        observations = generator.integers(0, 256, (num, *shape), np.uint8)
    actions = generator.uniform(-0.9, 0.9, (num, 1)).astype(np.float32)
    if is_discrete:
        actions = generator.integers(0, num_actions, num)
    ends = np.arange(1, num + 1) % 40 == 0
    return offpcc.Dataset.from_arrays(
        observations=observations,
        actions=actions,
        rewards=generator.normal(size=num).astype(np.float32),
        terminations=ends & (np.arange(num) % 80 == 39),
        truncations=ends & (np.arange(num) % 80 == 79),
    )


def parameters(algorithm):
    """Parameters of all networks, targets among them, in the order of their attributes."""
    return [p for part in vars(algorithm).values() if isinstance(part, torch.nn.Module) for p in part.parameters()]


def numbers(name, online):
    """What one algorithm computes."""
    is_discrete, images = ALGORITHMS[name].is_discrete, TABLE[name].images
    torch.set_num_threads(1)
    offpcc.configure("test/template_short.gin", *SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env, dataset = TASKS[is_discrete, images][0], None if online else recorded(is_discrete, images)
        learner = offpcc.build(env, name, seed=3, dataset=dataset)
    table = Rows()
    learner.train(logger=table)
    algorithm, updates = learner.algorithm, []
    for _ in range(20):
        batch = learner.buffer.sample()
        fields = [field for field in batch if isinstance(field, torch.Tensor)]
        stats = algorithm.update_networks(batch)
        losses = [torch.as_tensor(value) for value in stats.values()]
        updates.append([digest(*fields), digest(*losses), digest(*parameters(algorithm))])
    generator, memory, actions = np.random.default_rng(5), None, []
    for t in range(10):
        shape = learner.buffer.sample().observations.shape[2:]
        seen = generator.integers(0, 256, (1, *shape), np.uint8) if images else generator.normal(size=(1, *shape))
        step = Step(
            seen if images else seen.astype(np.float32),
            actions[-1] if actions else np.zeros((1, algorithm.action_dim), np.float32),
            np.zeros((1, 1), np.float32),
            np.array([t == 0]),
        )
        action, memory = algorithm.act(step, memory, deterministic=t % 2 == 0)
        actions.append(action)
    learner.close()
    return {"table": table.rows, "updates": updates, "actions": digest(*actions)}


def main(verb, file, *names):
    """Record or compare; the number of algorithms that differ."""
    known = json.loads(Path(file).read_text()) if verb == "compare" else {}
    found, differ = {}, 0
    for name in names or ALGORITHMS:
        cls = ALGORITHMS[name]
        needs_data = cls.imagination is not None and not cls.trains_model
        for online in (False,) if needs_data else (True, False):
            key = f"{name} {'online' if online else 'offline'}"
            if verb == "compare" and key not in known:
                print(key, "is not in the record", flush=True)
                continue
            found[key] = numbers(name, online)
            if verb == "compare":
                parts = [part for part in found[key] if known[key][part] != found[key][part]]
                differ += bool(parts)
                print(key, f"DIFFERS in {', '.join(parts)}" if parts else "is the same", flush=True)
            else:
                print(key, found[key]["actions"], flush=True)
    if verb == "record":
        Path(file).write_text(json.dumps(found, indent=1))
    print(f"{differ} of {len(found)} differ" if verb == "compare" else f"{len(found)} are recorded")
    return differ


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) > 0)
