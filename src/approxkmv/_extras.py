"""What to say where a package is missing that only one part of this one needs."""

from __future__ import annotations


def needs(what: str, package: str, extra: str) -> str:
    """Say what is missing, and how to install it from an index or from a clone of the source."""
    return (
        f'{what} needs {package}. Install it with: pip install "approxkmv[{extra}]", '
        f"or in a clone: pip install '.[{extra}]'"
    )
