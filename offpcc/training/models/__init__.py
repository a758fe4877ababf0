"""Learned models: their training, files and quality, and agents that play in them."""

from typing import Any

from offpcc.utils import import_submodule


def __getattr__(name: str) -> Any:
    return import_submodule(__name__, name)
