"""Runs an actor that `offpcc export` wrote, in NumPy alone: no PyTorch, no offpcc, no ONNX Runtime.

pip install numpy onnx
python act_in_numpy.py actor_best.onnx < observations.txt

Each line of the input is one observation, as numbers; an empty line begins a new episode. An observation with several
entries is their numbers, one entry after another. An actor that reads the previous reward takes it as the last number
of the line, 0 at an episode's start. Each line of the output is the action. For more speed, put
`onnxruntime.InferenceSession(file)` in place of the evaluator.
"""

from __future__ import annotations

import json
import math
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


def split(numbers: list[str], ports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the arrays of a line by the names of their inputs."""
    sizes = [math.prod(port["shape"][1:]) for port in ports]
    if len(numbers) != sum(sizes):
        wanted = " and ".join(f"{size} of {port['name']}" for size, port in zip(sizes, ports, strict=True))
        sys.exit(f"a line has {len(numbers)} numbers, but the actor reads {wanted}")
    parts = np.split(np.array(numbers, np.float64), np.cumsum(sizes)[:-1])
    pairs = zip(ports, parts, strict=True)
    return {port["name"]: part.astype(port["dtype"]).reshape(1, *port["shape"][1:]) for port, part in pairs}


def main(file: str) -> None:
    """Read observations and print actions."""
    contract = json.loads(Path(file).with_suffix(".json").read_text())
    evaluator = ReferenceEvaluator(file)
    state = zeros(contract)
    ports = [port for port in contract["inputs"] if port["name"] not in state]
    for line in sys.stdin:
        if not line.strip():
            state = zeros(contract)
            continue
        action, *after = evaluator.run(None, {**split(line.split(), ports), **state})
        state = dict(zip(state, after, strict=True))
        print(*np.ravel(action[0]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} ACTOR.onnx < OBSERVATIONS.txt")
    main(sys.argv[1])
