"""Entry point of the command line.

    python offpcc/launch.py --env pendulum-p-v0 --algo rsac --config configs/quickstart.gin --run_id 1

``python -m offpcc.launch`` and ``offpcc`` are the same program. `ENVIRONMENTS` (offpcc/envs/__init__.py) lists the
names for ``--env``; `ALGORITHMS` (offpcc/algorithms/__init__.py) lists the names for ``--algo``.
"""

import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a script: import from the parent folder, never from this one
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
