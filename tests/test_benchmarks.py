"""The benchmark runs, prints targets and verdicts, and keeps what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module in the folder above the benchmarks."""
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200
    )


def test_small_run(tmp_path: Path) -> None:
    """On small sizes every case reports; nothing is judged but the errors are right.

    Errors of float32 products stay below 1e-4 and of float64 below 1e-12; trivial answers are
    off by more than a hundred times the float32 bound.
    """
    output = tmp_path / "results.jsonl"
    options = ["--scale", "0.01", "--repetitions", "2", "--threads", "1", "--output", str(output)]
    cases = ["float32", "attention", "float64", "peak", "memory"]
    done = run("benchmarks.exact", *options, "--cases", *cases)
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


def test_engine_where_it_samples(tmp_path: Path) -> None:
    """At 32,735 points it samples; the error is below eps, and no oracle would take more pairs.

    A larger error has probability delta = 0.05 over seeds; the seed is fixed and the same bits come
    from any number of threads.
    """
    output = tmp_path / "results.jsonl"
    options = ["--scale", "0.999", "--eps", "0.3", "--x", "gauss", "--threads", "1"]
    cases = ["--cases", "clusters 32,768", "--repetitions", "1", "--no-rivals", "--rows", "500"]
    done = run("benchmarks.engine", *options, *cases, "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert "== clusters 32,768: n = 32735, d = 64" in done.stdout
    record = json.loads(output.read_text())
    (row,) = record["rows"]
    assert row["method"] == "sampled"
    assert 0.03 < row["error"] < 0.3
    assert 0.03 < row["estimate"] < 0.3
    assert row["pairs_share"] < 0.5
    assert row["pairs_over_oracle"] > 1
    assert record["trivial"]["gauss"]["y = 0"] > 0.5


def test_growth_counts_units_of_work() -> None:
    """A stage is a line, in the units it is counted in; the last one has the growth of all."""
    done = run("benchmarks.engine", "--growth", "65536", "--threads", "1")
    assert done.returncode == 0, done.stderr
    clusters = done.stdout.split("== ")[1]
    lines = {line.split("  ")[0]: line for line in clusters.splitlines()}
    errors = clusters.split("errors ")[1].split(" (")[0]
    assert all(float(error) <= 0.1 for error in errors.split(", "))
    for stage, unit in (("draw", "pair drawn"), ("tilings", "point in a tiling")):
        assert unit in lines[stage]
    assert float(lines["all"].split()[-1]) > 0  # the exponent of the last step


def test_engine_small_run(tmp_path: Path) -> None:
    """A small case is exact; every rival makes an answer; missing data are named and skipped."""
    output = tmp_path / "results.jsonl"
    cases = ["--cases", "clusters 4,096", "Fashion-MNIST 60,000"]
    options = ["--scale", "0.25", "--repetitions", "2", "--fashion-mnist", str(tmp_path / "none")]
    done = run("benchmarks.engine", *cases, *options, "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert "Fashion-MNIST 60,000: skipped." in done.stdout
    record = json.loads(output.read_text())
    assert [(row["x"], row["eps"]) for row in record["rows"]] == [
        (x, eps) for x in ("ones", "gauss", "t2", "top") for eps in (0.3, 0.1, 0.03)
    ]
    for row in record["rows"]:
        assert row["method"] == "exact"
        assert row["error"] < 1e-4
        assert len(row["seconds"]) == 2
    names = {"uniform sample of keys", "random Fourier features", "Nystroem"}
    assert {rival["name"] for rival in record["rivals"]} >= names
    assert all(0 < rival["error"] < 100 for rival in record["rivals"])
    assert "target: error / eps, largest <= 1; found" in done.stdout


def test_attention_small_run(tmp_path: Path) -> None:
    """Exact contestants are exact, and every case reports."""
    output = tmp_path / "results.jsonl"
    cases = ["--cases", "clusters", "model heads", "exact 8 x 512, d = 64, causal"]
    rng = np.random.default_rng(0)
    names = ("q_layer0_head0", "q_layer0_head1", "k_layer0_kv0", "v_layer0_kv0")
    np.savez(
        tmp_path / "heads.npz",
        **{name: rng.standard_normal((128, 8)).astype(np.float16) for name in names},
    )
    options = ["--size", "0.05", "--repetitions", "1", "--threads", "1"]
    options += ["--heads", str(tmp_path / "heads.npz"), "--output", str(output)]
    done = run("benchmarks.attention", *cases, *options)
    assert done.returncode == 0, done.stderr
    assert "target: exact, times SDPA >= 1.2; found" in done.stdout
    assert "not judged" in done.stdout
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [r["case"] for r in records] == [
        "clusters",
        "clusters, all heads",
        "model heads",
        "model heads",
        "model heads, all heads",
        "exact 8 x 512, d = 64, causal",
        "exact 8 x 512, d = 64, causal, all heads",
    ]
    for record in records:
        for name, error in record["errors"].items():
            if "approxkmv" in name or "torch" in name:
                assert error < 1e-5
    assert records[0]["errors"]["mean(V)"] > 0.1


RIVALS = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from benchmarks import attention_rivals as rivals

def head(is_causal, seed=0, n=600, size=0.6):
    g = torch.Generator().manual_seed(0)
    q, k = (size * torch.randn(n, 8, generator=g) for _ in range(2))
    return rivals.Head(q, k, torch.randn(n, 4, generator=g) + k[:, :4], is_causal, seed)

def off(a, b):
    return float((a - b).norm() / b.norm())

for is_causal in (False, True):
    h = head(is_causal, n=2500)
    exact = rivals.blocked(h)
    assert off(rivals.sdpa(h), exact) < 1e-5
    for name, (run, sizes, settings) in rivals.RIVALS.items():
        if len(sizes) == 1 or is_causal and name in rivals.NOT_CAUSAL:
            continue
        few, many = (
            sum(off(run(head(is_causal, s, n=2500), size), exact) for s in range(4)) / 4
            for size in (64, 1024)
        )
        assert many < 0.75 * few, (name, is_causal, few, many)
h = head(False)
exact = rivals.blocked(h)
assert off(rivals.uniform(h, 600), exact) < 1e-5      # every key drawn
flat = rivals.Head(0 * h.query, h.key, h.value, True, 0)
assert off(rivals.running_mean(flat, 1), rivals.blocked(flat)) < 1e-5
assert off(rivals.nystroem(h, 1200), exact) < 1e-3    # every point a landmark
assert off(rivals.hyper_attention(h, 16, block=600), exact) < 1e-5  # one block
assert off(rivals.wildcat(h, 600), exact) < 1e-3      # every key chosen
assert off(rivals.thinformer(h, 600), exact) < 1e-5   # no key thinned out
smooth = [head(False, s, size=0.3) for s in range(4)]
drawn, *others = (                                    # better than keys drawn without a look
    sum(off(run(h, 75), rivals.blocked(h)) for h in smooth)
    for run in (rivals.uniform, rivals.wildcat, rivals.thinformer)
)
assert max(others) < 0.7 * drawn, (drawn, others)
print("ok")
"""


def test_attention_rivals_converge(run_python: Callable[..., str]) -> None:
    """Each rival is exact at its limit, and a sixteen times larger size is better by a third."""
    assert run_python(RIVALS, str(ROOT)) == "ok\n"


def test_top_eigenvalue_small_run(tmp_path: Path) -> None:
    """Prints the eigenvalue, how many exact products it took, and the difference to exact."""
    np.save(tmp_path / "words.npy", np.random.default_rng(0).standard_normal((500, 5)))
    done = run(
        "benchmarks.top_eigenvalue",
        *("--glove", str(tmp_path / "words.npy"), "--n", "300", "--variance", "2", "--check"),
    )
    assert done.returncode == 0, done.stderr
    difference = float(done.stdout.split("relative difference")[1])
    assert abs(difference) <= 0.011
    assert "products" in done.stdout


def test_costs_on_a_small_problem() -> None:
    """Every cost that is varied is one of the model's, and all three cases are reported."""
    done = run("benchmarks.costs", "--n", "2000", "--threads", "1", "--repetitions", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("time if halved") == 3
    assert "pair_overhead" in done.stdout
