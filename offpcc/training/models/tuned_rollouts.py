"""Lengths of rollouts, thresholds and coefficients that were tuned for the four modes and D4RL's data."""

from collections.abc import Mapping
from typing import Any

TASKS = ("halfcheetah", "hopper", "walker2d")
KINDS = ("random", "medium", "medium-replay", "medium-expert", "expert")
# Length of rollouts, and threshold or coefficient, for D4RL's v2 data: rows are `TASKS`, columns are `KINDS`. They are
# those of the reference implementation's hyper-parameter search (github.com/Mr-Pepe/offline-model-based-rl).
TUNED: Mapping[str, Any] = {
    "aleatoric_partitioning": (
        ((19, 0.36515), (18, 2.23), (15, 0.69141), (7, 1.0944), (5, 0.31109)),
        ((9, 0.00436), (19, 0.0131), (9, 0.0483), (9, 0.0473), (20, 0.00145)),
        ((17, 0.40423), (10, 1.8323), (20, 1.1510), (15, 2.4947), (8, 1.3946)),
    ),
    "epistemic_partitioning": (
        ((18, 4.2511), (13, 3.733), (20, 3.5232), (17, 1.4370), (7, 1.5848)),
        ((11, 0.20551), (18, 0.72861), (20, 0.599), (20, 1.0881), (18, 0.19435)),
        ((15, 1.1804), (11, 1.5975), (4, 3.12812), (10, 1.9587), (19, 3.0755)),
    ),
    "aleatoric_penalty": (
        ((17, 0.0), (3, 1.8882), (17, 0.69304), (2, 8.1968), (11, 10.944)),
        ((10, 15.398), (15, 300.0), (8, 48.06), (15, 380.0), (40, 438.51)),
        ((20, 0.1491), (9, 1.51), (20, 1.32213), (19, 2.3841), (17, 1.8705)),
    ),
    "epistemic_penalty": (
        ((17, 0.22774), (4, 1e-15), (15, 5.0), (1, 5.0), (13, 0.68733)),
        ((5, 3.9639), (15, 35.0), (15, 35.0), (15, 45.0), (15, 30.0)),
        ((15, 2.5), (15, 4.3), (15, 4.3), (15, 4.3), (15, 2.5)),
    ),
}


def tuned_pair(algorithm: str, data: str) -> dict[str, Any]:
    """Return the tuned length of rollouts and threshold or coefficient of a mode for D4RL's data; {} if unknown.

    The mode is named without memory, as in "aleatoric_penalty", and the data as in "hopper-medium-replay-v2".
    """
    names = {f"{task}-{kind}-v2": (row, column) for row, task in enumerate(TASKS) for column, kind in enumerate(KINDS)}
    if algorithm not in TUNED or data not in names:
        return {}
    row, column = names[data]
    length, value = TUNED[algorithm][row][column]
    return {"length": length, "penalty" if algorithm.endswith("penalty") else "threshold": value}
