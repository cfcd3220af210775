"""``approxkmv info``: versions, instruction sets, threads and extras."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

# What each extra is used through: module to look for, distribution to ask for the version.
_EXTRAS = {
    "torch": "torch",
    "sklearn": "scikit-learn",
    "transformers": "transformers",
    "matplotlib": "matplotlib",
    "safetensors": "safetensors",
    "threadpoolctl": "threadpoolctl",
}


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``info``, which takes no arguments."""
    return subparsers.add_parser("info", help="versions, instruction sets, threads and extras")


def run(args: argparse.Namespace) -> int:
    """Print one fact per line."""
    from approxkmv._threads import default_threads
    from approxkmv.loops import compiled

    facts = {
        "approxkmv": version("approxkmv"),
        "instruction sets": ", ".join(compiled.available_isas()),
        "chosen": f"{compiled.ISA} (APPROXKMV_ISA overrides)",
        "threads": str(default_threads()),
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "NumPy": version("numpy"),
        "SciPy": version("scipy"),
    }
    facts |= {module: _version(module, package) for module, package in _EXTRAS.items()}
    for name, fact in facts.items():
        print(f"{name:<17} {fact}")
    return 0


def _version(module: str, package: str) -> str:
    """Version of an optional package, found without importing it."""
    if find_spec(module) is None:
        return "not installed"
    try:
        return version(package)
    except PackageNotFoundError:
        return "installed"
