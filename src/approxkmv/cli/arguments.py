"""Kinds of arguments that several commands share."""

from __future__ import annotations

import argparse

from approxkmv import _extras


def positive_int(text: str) -> int:
    """Read a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def seed(text: str) -> int:
    """Read a seed: a whole number, not negative."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")
    return value


_UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "b": 1.0, "": 1.0}


def memory(text: str) -> float:
    """Read a number of bytes, such as 2GB."""
    digits = text.strip().lower().rstrip("kmgtb ")
    try:
        value = float(digits) * _UNITS[text.strip().lower()[len(digits) :].strip()]
    except (ValueError, KeyError):
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a size such as 500MB or 2GB, got {text!r}")
    return value


def needs(package: str, what: str, extra: str) -> None:
    """Say before any work that a package is missing; nothing is imported."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise ImportError(_extras.needs(what, package, extra))


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``."""
    parser.add_argument(
        "--threads", type=positive_int, metavar="T", help="threads to use (default: all cores)"
    )
