"""One committed record of measurements: rows by piece and case, each with its version and date.

The pages are made from it (``benchmarks.page``), so that no number in them is typed by hand.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks/results/reference_page.json"
Row = dict[str, Any]  # of plain values; row["case"] is its name within the piece


def load(path: Path = RECORD) -> dict[str, list[Row]]:
    """Rows of every piece, in the order in which cases were first measured."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def add(piece: str, rows: Iterable[Row], n_threads: int, path: Path = RECORD) -> None:
    """Replace the rows of the same cases, keep all others, write the file."""
    record = load(path)
    old = {row["case"]: row for row in record.get(piece, [])}
    found = {row["case"]: {**row, "of": _made_by(n_threads)} for row in rows}
    record[piece] = [*(old | found).values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of a page."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rounded(value: float) -> str:
    """Two digits, and no more zeros than needed: 0.034, 1.2, 45, 1,200."""
    if value == 0:
        return "0"
    if abs(value) < 0.01 or abs(value) >= 1e5:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 9.95 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """Milliseconds below a tenth of a second, minutes from 100 seconds on."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms"
    return f"{rounded(seconds)} s" if seconds < 99.5 else f"{seconds / 60:.2g} min"


def times(value: float) -> str:
    """How many times as fast: one digit after the point below 10."""
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


def span(values: Iterable[float]) -> str:
    """The smallest to the largest, or one number where they agree."""
    ends = sorted(values)
    low, high = times(ends[0]), times(ends[-1])
    return low if low == high else f"{low} to {high}"


def _made_by(n_threads: int) -> dict[str, Any]:
    description = harness.machine(n_threads)
    kept = ("cpu", "cores", "isa", "threads", "python", "versions")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        **{name: description[name] for name in kept},
    }


def _commit() -> str:
    """The last change of what is measured: the package, not its pages nor this record."""
    measured = ["--", "src", "cpp", "CMakeLists.txt"]
    git = ["git", "-C", str(ROOT)]
    try:
        last = _output([*git, "log", "-1", "--format=%h", *measured])
        changed = _output([*git, "status", "--porcelain", *measured])
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{last}-changed" if changed else last


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
