"""Analysis: tables, curves and reports of runs, statistics, values of policies from data, use of memory."""

from typing import Any

from offpcc.utils import import_submodule


def __getattr__(name: str) -> Any:
    return import_submodule(__name__, name)
