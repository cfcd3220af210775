"""The benchmark runs, prints targets and verdicts, and keeps what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_small_run(tmp_path: Path) -> None:
    """On small sizes every case reports; nothing is judged but the errors are right.

    Errors of float32 products stay below 1e-4 and of float64 below 1e-12; trivial answers are
    off by more than a hundred times the float32 bound.
    """
    output = tmp_path / "results.jsonl"
    command = ["-m", "benchmarks.exact", "--scale", "0.01", "--repetitions", "2", "--threads", "1"]
    cases = ["float32", "attention", "float64", "peak", "memory"]
    done = subprocess.run(
        [sys.executable, *command, "--cases", *cases, "--output", str(output)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "target: times NumPy blocked >= 3; found " in done.stdout
    assert "not judged" in done.stdout
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(records) == len(cases)
    for record, largest in zip(records[:3], (1e-4, 1e-4, 1e-12), strict=True):
        assert record["machine"]["threads"] == 1
        assert "numpy" in record["machine"]["versions"]
        assert set(record["ratios"]) == set(record["seconds"]) - {"approxkmv"}
        for name, error in record["errors"].items():
            if name in record["seconds"]:
                assert len(record["seconds"][name]) == 2
                assert error < largest
            else:
                assert error > 1e-2
    assert set(records[0]["errors"]) >= {"approxkmv", "NumPy blocked", "torch blocked", "y = 0"}
    assert set(records[1]["errors"]) == {"approxkmv", "torch SDPA", "mean of the values"}
    assert 0 < records[3]["figures"]["share at d = 128"] < 1
    assert all(-1 < megabytes < 64 for megabytes in records[4]["figures"].values())
