"""How code is read from a clone, which is no package and may import packages that are not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock


def use(root: Path, *absent: str) -> None:
    """Let modules of a clone be imported; packages of `absent` that are not installed become mocks.

    They are those that the clone's training scripts need, such as loggers, and that its networks do not.
    """
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    for name in absent:
        if name not in sys.modules and ("." in name or importlib.util.find_spec(name) is None):
            sys.modules[name] = MagicMock(name=name, __spec__=ModuleSpec(name, None))  # which others may ask for


def script(file: Path) -> ModuleType:
    """Import a file of a clone that is in no package."""
    spec = importlib.util.spec_from_file_location(f"clone_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def commit(root: Path) -> str:
    """The commit of a clone, "" where git does not know it."""
    asked = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
