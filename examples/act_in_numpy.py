"""Runs an actor that `offpcc export` wrote, in NumPy alone: no PyTorch, no offpcc, no ONNX Runtime.

pip install numpy onnx
python act_in_numpy.py actor_best.onnx < observations.txt

Each line of the input is one observation, as numbers; an empty line begins a new episode. Each line of the output is
the action. For more speed, put `onnxruntime.InferenceSession(file)` in place of the evaluator.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator


def zeros(contract: dict[str, Any]) -> dict[str, Any]:
    """Return the state at an episode's start."""
    ports = {port["name"]: port for port in contract["inputs"]}
    names = [entry["input"] for entry in contract["state"]]
    return {name: np.zeros((1, *ports[name]["shape"][1:]), ports[name]["dtype"]) for name in names}


def main(file: str) -> None:
    """Read observations and print actions."""
    contract = json.loads(Path(file).with_suffix(".json").read_text())
    evaluator = ReferenceEvaluator(file)
    observation_port = contract["inputs"][0]
    state = zeros(contract)
    for line in sys.stdin:
        if not line.strip():
            state = zeros(contract)
            continue
        observation = np.array(line.split(), observation_port["dtype"]).reshape(1, *observation_port["shape"][1:])
        action, *after = evaluator.run(None, {observation_port["name"]: observation, **state})
        state = dict(zip(state, after, strict=True))
        print(*np.ravel(action[0]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} ACTOR.onnx < OBSERVATIONS.txt")
    main(sys.argv[1])
