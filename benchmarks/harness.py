"""Measure a case, judge it, print it as a table, keep it as a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from approxkmv._table import table
from approxkmv.experiments.timing import Spread, interleaved, ratio
from approxkmv.loops import compiled

OURS = "approxkmv"
# After a run its threads may spin for some milliseconds and slow down whoever is next.
_REST = 0.05


@dataclass(frozen=True)
class Target:
    """A figure that must be reached: its name, its value, and on which side of it to be."""

    name: str
    value: float
    at_least: bool = True

    def line(self, found: float, *, judged: bool = True) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = ("reached" if self.reached(found) else "MISSED") if judged else "not judged"
        return f"target: {self.name} {sign} {self.value:g}; found {found:.3g}: {verdict}"

    def reached(self, found: float) -> bool:
        return found >= self.value if self.at_least else found <= self.value


@dataclass
class Report:
    """What a case found: times, errors, figures and verdicts, ready for JSON."""

    case: str
    parameters: dict[str, Any]
    seconds: dict[str, tuple[float, ...]] = field(default_factory=dict)
    ratios: dict[str, Spread] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)

    def judge(self, target: Target, found: float, *, judged: bool = True) -> None:
        self.figures[target.name] = found
        self.verdicts[target.name] = target.line(found, judged=judged)

    def text(self) -> str:
        parts = [f"== {self.case}: " + ", ".join(f"{k} = {v}" for k, v in self.parameters.items())]
        names = list(dict.fromkeys([*self.seconds, *self.errors]))
        if names:
            parts.append(table(["", "seconds", "times ours", "error"], [*map(self._row, names)]))
        for name, value in self.figures.items():
            parts.append(self.verdicts.get(name, f"{name}: {value:.3g}"))
        return "\n".join(parts)

    def _row(self, name: str) -> list[str]:
        seconds = self.seconds.get(name)
        return [
            name,
            f"{median(seconds):.3g} ({min(seconds):.3g}..{max(seconds):.3g})" if seconds else "",
            str(self.ratios.get(name, "")),
            f"{self.errors[name]:.1e}" if name in self.errors else "",
        ]


def race(
    report: Report,
    contestants: Mapping[str, Callable[[], Any]],
    repetitions: int,
    error: Callable[[Any], float],
) -> None:
    """Run the contestants interleaved; times, ratios to ours and errors go to the report."""
    timings = interleaved(contestants, repetitions, after_each=lambda: time.sleep(_REST))
    for name, timing in timings.items():
        report.seconds[name] = timing.seconds
        report.errors[name] = error(timing.result)
        if name != OURS:
            report.ratios[name] = ratio(timing, timings[OURS])


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Give every rival this many threads."""
    import threadpoolctl

    if installed("torch"):
        import torch

        torch.set_num_threads(count)
    with threadpoolctl.threadpool_limits(count):
        yield


def machine(n_threads: int) -> dict[str, Any]:
    """Describe the machine and the libraries."""
    packages = ("approxkmv", "numpy", "scipy", "torch", "pykeops", "faiss-cpu")
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "isa": compiled.ISA,
        "isas": compiled.available_isas(),
        "threads": n_threads,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages if installed(name)},
        "commit": _commit(),
    }


def append(path: Path, description: Mapping[str, Any], report: Report) -> None:
    """Add a line of JSON: when, where, and everything the case found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **asdict(report),
        "machine": description,
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
