"""Entry point of the command line.

    python offpcc/launch.py --env pendulum-p-v0 --algo rsac --config configs/quickstart.gin --run_id 1

``python -m offpcc.launch`` and ``offpcc`` are the same program. The names of ``--env`` are in `ENVIRONMENTS`
(offpcc/envs/__init__.py), those of ``--algo`` in `ALGORITHMS` (offpcc/algorithms/__init__.py).
"""

import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file: import from the folder above this one, never from this one
    _here = Path(__file__).resolve().parent
    sys.path[:] = [str(_here.parent), *(path for path in sys.path if Path(path or ".").resolve() != _here)]

from offpcc.cli.main import main


def __getattr__(name: str) -> Any:
    """Import the tables on first use, because they import torch and Gymnasium."""
    if name == "ENVIRONMENTS":
        from offpcc.envs import ENVIRONMENTS

        return ENVIRONMENTS
    if name == "ALGORITHMS":
        from offpcc.algorithms import ALGORITHMS

        return ALGORITHMS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit(main())
