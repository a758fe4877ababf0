"""What is learned from finished runs: tables, curves, reports, statistics, values of policies, use of memory."""

from typing import Any

from offpcc.utils import import_submodule


def __getattr__(name: str) -> Any:
    return import_submodule(__name__, name)
