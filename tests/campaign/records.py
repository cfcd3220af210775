"""A folder of results: one file of JSON lines for each part, from which a run goes on."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from approxkmv.experiments.records import Records

Record = dict[str, Any]


def generator(seed: int, part: str, index: int, *more: int) -> np.random.Generator:
    """The generator of one case; the same on every machine."""
    return np.random.default_rng([seed, zlib.crc32(part.encode()), index, *more])


def plain(value: Any) -> Any:
    """What JSON can hold: NumPy's numbers as Python's, NaN and infinity as text."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value if isinstance(value, str | int | bool | type(None)) else repr(value)


class Folder:
    """Results of one seed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def begin(self, seed: int) -> None:
        """Note seed, commit and machine; a folder holds results of one seed only."""
        self.path.mkdir(parents=True, exist_ok=True)
        runs = self.records("runs")
        seeds = {run["seed"] for run in runs}
        if seeds - {seed}:
            raise SystemExit(f"{self.path} holds results of seed {seeds.pop()}, not {seed}.")
        runs.append({"seed": seed, "date": time.strftime("%Y-%m-%d %H:%M"), **about_here()})

    def records(self, part: str) -> Records:
        return Records(self.path / f"{part}.jsonl")

    def add(self, part: str, record: Record) -> None:
        self.records(part).append(plain(record))

    def next_index(self, part: str) -> int:
        return 1 + max((record["index"] for record in self.records(part)), default=-1)

    # What a worker is doing: the supervisor reads it when the worker has crashed or hangs.

    def say_now(self, part: str, index: int, case: Record) -> None:
        temporary = self.path / f".{part}.now.tmp"
        temporary.write_text(json.dumps({"index": index, "case": plain(case)}))
        os.replace(temporary, self._now(part))

    def now(self, part: str) -> tuple[Record, float] | None:
        """The case, and the seconds since it began."""
        try:
            return json.loads(self._now(part).read_text()), time.time() - self._now(
                part
            ).stat().st_mtime
        except FileNotFoundError:
            return None

    def forget_now(self, part: str) -> None:
        self._now(part).unlink(missing_ok=True)

    def _now(self, part: str) -> Path:
        return self.path / f".{part}.now"


def about_here() -> Record:
    """Commit, machine and versions."""
    root = Path(__file__).parents[2]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True
    ).stdout.strip()
    from approxkmv.loops import compiled

    return {
        "commit": commit or "unknown",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {compiled.ISA}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
