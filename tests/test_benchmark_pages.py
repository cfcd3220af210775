"""Tables of the pages come from the record, and every piece of it can be measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks/results/reference_page.json"
TABLES = {
    "README.md": ["fits", "provenance"],
    "docs/index.md": ["fits"],
    "docs/how_it_works.md": ["regime_map"],
    "docs/benchmarks.md": [
        *("provenance", "fits", "against_n", "exact", "real", "everyday", "heads"),
    ],
}


def page(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.page", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)


@pytest.mark.parametrize("name", TABLES)
def test_pages_have_their_tables(name: str) -> None:
    """Between the comments stands a table, or that there is none: nothing was lost."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for table in TABLES[name]:
        (between,) = re.findall(f"<!-- begin {table} -->(.*?)<!-- end {table} -->", text, re.DOTALL)
        said = between.strip()
        assert len(said) > 100 or said == "Not measured for this version.", table


def test_pages_say_what_the_record_says(tmp_path: Path) -> None:
    """A number changed by hand, in a page or in the record, is found."""
    done = page("--check")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(RECORD.read_text())
    record["against_n"][-1]["exact_seconds"] *= 2
    changed = tmp_path / "record.json"
    changed.write_text(json.dumps(record))
    done = page("--check", "--record", str(changed))
    assert done.returncode == 1
    assert done.stdout.count("is not what the record says") == 3  # README, index, benchmarks


def test_record_is_of_one_version_machine_and_day() -> None:
    record = json.loads(RECORD.read_text())
    made = [row["of"] for rows in record.values() for row in rows]
    for name in ("commit", "cpu", "isa", "threads"):
        assert len({one[name] for one in made}) == 1, name
    assert len({one["date"] for one in made}) == 1
    assert not made[0]["commit"].endswith("changed")


def test_small_run(tmp_path: Path) -> None:
    """Every piece reports on small sizes: exact there, so errors are those of rounding."""
    rng = np.random.default_rng(0)
    names = ("q_layer0_head0", "k_layer0_kv0", "v_layer0_kv0")
    heads = {name: rng.standard_normal((128, 8)).astype(np.float16) for name in names}
    np.savez(tmp_path / "heads.npz", **heads)
    script = f"""
import sys
from pathlib import Path
from benchmarks import page
page.PAGES, page.PICTURES = [], Path({str(tmp_path)!r})
options = ["--largest", "2048", "--repetitions", "1", "--threads", "1"]
options += ["--record", {str(tmp_path / "record.json")!r}]
page.main(["against_n", *options, "--cases", "2048", "1024"])
page.main(["regime_map", *options, "--cases", "2", "64"])
page.main(["real", *options, "--cases", "curves, row sum 5", "pixels, median"])
page.main(["everyday", *options, "--cases", "grid search", "gaussian_kde", "mmd"])
page.main(["heads", *options, "--heads", {str(tmp_path / "heads.npz")!r}])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    assert set(record) == {"regime_map", "real", "everyday", "heads"}  # no size of against_n fits
    assert {row["case"] for row in record["real"]} == {
        "curves, row sum 5, eps 0.1",
        "pixels, median, rtol 0.001",
    }
    for row in record["real"]:
        assert all(ours["error"] < 1e-4 for ours in row["ours"].values())
        assert {"Nystroem", "random features"} <= set(row["rivals"])
    for row in record["regime_map"]:
        assert row["way"] == "exact"
        assert row["error"] < 1e-4
    (head,) = record["heads"]
    assert head["ways"]["exact"]["error"] < 1e-5 < head["mean"]
    outcomes = {row["case"]: row["contestants"] for row in record["everyday"]}
    chosen = {one["outcome"] for one in outcomes["grid search"].values()}
    assert len(chosen) == 1  # the same bandwidth and score as scikit-learn
    assert (tmp_path / "regime_map_dark.svg").exists()


def test_fourier_sums_reach_their_digits() -> None:
    """The rival is implemented right: its error falls with the digits asked for."""
    pytest.importorskip("finufft")
    script = """
import numpy as np
from approxkmv import datasets, matvec
from benchmarks.real_rivals import Problem, finufft_sum
points = datasets.curves(3000, rng=0)
x = np.ones(3000, np.float32)
exact = matvec(points.astype(float), None, x.astype(float), bandwidth=0.2, method="exact")
for digits in (2, 4, 6):
    y = finufft_sum(Problem(points, points, 0.2, x, 0.1, 1, 0), digits)
    assert np.abs(y - exact).max() < 10.0 ** (-digits) * 3000, digits
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=100)
