"""What a measurement was taken on and with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

PACKAGES = (
    "offpcc", "torch", "numpy", "gymnasium", "mujoco", "stable-baselines3", "d3rlpy", "tianshou", "torchrl", "jax",
)  # fmt: skip
CPU_INFO = Path("/proc/cpuinfo")


def machine(device: str = "cpu") -> dict[str, Any]:
    """The CPU, its cores that are to be had, whether it knows AVX-512, the system, and the GPU if it is used."""
    told = CPU_INFO.read_text() if CPU_INFO.exists() else ""
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in told.splitlines())}
    gpu = {}
    if device == "cuda":
        import torch

        gpu = {"gpu": torch.cuda.get_device_name()}
    return {
        "cpu": facts.get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "avx512": "avx512f" in facts.get("flags", "").split(),
        "system": f"{platform.system()} {platform.machine()}",
        **gpu,
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def in_words(facts: dict[str, Any]) -> str:
    """A machine, for people."""
    gpu = f"{facts['gpu']}; " if "gpu" in facts else ""
    vectors = "AVX-512" if facts["avx512"] else "no AVX-512"
    return f"{gpu}{facts['cpu']}, {facts['cores']} cores, {vectors}, {facts['system']}"
