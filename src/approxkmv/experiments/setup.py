"""What a run is asked to do, and what every record says about where it comes from."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from approxkmv._lazy import lazy_property
from approxkmv.experiments.models import Models
from approxkmv.experiments.records import Records
from approxkmv.experiments.texts import Corpus, Text
from approxkmv.loops import compiled

_PACKAGES = ("approxkmv", "numpy", "scipy", "torch", "transformers")


class Steps(Protocol):
    """Something that is told how far the work is."""

    def advance(self, amount: int = 1) -> None:
        """Another ``amount`` is done."""


@dataclass(frozen=True)
class Setup:
    """One call of ``approxkmv reproduce``.

    Attributes
    ----------
    out : Path
        Folder of the records.
    corpus : Corpus
    models : Models
    progress : callable
        ``progress(label, total)`` gives a context manager that is told of every step.
    limit : int or None
        Texts to use; None for all.
    seed : int
    quick : bool
        Small sizes, to see that everything works.
    glove : str or None
        Where the word vectors are; None for the installed package.
    n_threads : int or None
    """

    out: Path
    corpus: Corpus
    models: Models
    progress: Callable[[str, int], AbstractContextManager[Steps]]
    limit: int | None = None
    seed: int = 0
    quick: bool = False
    glove: str | None = None
    n_threads: int | None = None

    @lazy_property
    def texts(self) -> tuple[Text, ...]:
        """The texts this run is about."""
        return self.corpus.chosen(self.limit, self.seed)

    def records(self, name: str) -> Records:
        """The file of one kind of measurement."""
        return Records(self.out / f"{name}.jsonl")

    def settings(self, figure: str) -> dict[str, Any]:
        """What the figure's ``settings.json`` says; for a quick run with its small sizes."""
        file = files("approxkmv.experiments").joinpath(figure).joinpath("settings.json")
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        small = settings.pop("quick", {})
        return settings | small if self.quick else settings

    def provenance(self) -> dict[str, Any]:
        """Seed, versions and machine, for every record."""
        return {"seed": self.seed, "versions": _versions(), "machine": _machine()}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {compiled.ISA}"
