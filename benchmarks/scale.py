"""Products that outgrow one call: ``python -m benchmarks.scale [--n N] [--cases one files ...]``.

``one``: n clustered points against n in one call. ``files``: 2.4 n queries from a memory-mapped
file against n / 4 keys with bounded memory, in a process of its own whose peak is read from the
system. ``cluster``: n / 4 against n / 4 points on two workers of one thread each, against one
process with two threads, in turn. ``block``: one block, with one thread, of products of 1e8 and of
1e9 points, for the seconds of :mod:`benchmarks.cluster`. True errors are those of 2,048
random rows. Records go to ``benchmarks/results/scale.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import approxkmv as akmv
from approxkmv._table import table
from approxkmv.datasets import clusters
from benchmarks import harness

BANDWIDTH, D, EPS = 2.1, 64, 0.1
ROWS = 2048

STREAM = """
import sys, json, time
from approxkmv import streaming
folder, memory = sys.argv[1], float(sys.argv[2])
start = time.perf_counter()
names = [f"{folder}/{name}.npy" for name in ("q", "k", "x", "y")]
info = streaming.matvec(*names, bandwidth=2.1, eps=0.1, rng=1, max_memory=memory, n_threads=2)
peak = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) / 1e3
print(json.dumps({"seconds": time.perf_counter() - start, "peak MB": peak, "method": info.method,
                  "estimate": info.error_estimate, "chunks": info.plan.numbers["query_chunks"]}))
"""


def main() -> int:
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=2**22)
    parser.add_argument("--cases", nargs="+", default=["one", "files", "cluster"])
    parser.add_argument("--max-memory", type=float, default=3e9)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/scale.jsonl"))
    args = parser.parse_args()
    cases = {"one": _one, "files": _files, "cluster": _cluster, "block": _block}
    rows = []
    for name in args.cases:
        found = cases[name](args)
        record = {"case": name, "machine": harness.machine(2), **found}
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with open(args.output, "a") as file:
            file.write(json.dumps(record) + "\n")
        rows.append([name, ", ".join(f"{key} {_shown(value)}" for key, value in found.items())])
        print(table(["case", "found"], rows[-1:]), flush=True)
    return 0


def _points(n: int, seed: int) -> tuple[Any, Any]:
    queries, keys, _ = clusters(n, D, rng=seed)
    return queries, keys


def _error(y: Any, queries: Any, keys: Any, x: Any) -> float:
    """Relative to the length of x, from random rows."""
    rows = np.sort(np.random.default_rng(5).choice(len(queries), ROWS, replace=False))
    some = np.ascontiguousarray(queries[rows])
    exact = akmv.matvec(some, keys, x, bandwidth=BANDWIDTH, method="exact", n_threads=2)
    scale = np.sqrt(len(queries) / ROWS) / np.linalg.norm(x)
    return float(np.linalg.norm(y[rows].astype(float) - exact) * scale)


def _one(args: argparse.Namespace) -> dict[str, Any]:
    queries, keys = _points(args.n, 1)
    x = np.ones(args.n, np.float32)
    start = time.perf_counter()
    y, info = akmv.matvec(
        queries, keys, x, bandwidth=BANDWIDTH, eps=EPS, rng=1, n_threads=2, return_info=True
    )
    seconds = time.perf_counter() - start
    found = {"n": args.n, "seconds": seconds, "method": info.method}
    return found | {"error": _error(y, queries, keys, x), "estimate": info.error_estimate}


def _files(args: argparse.Namespace) -> dict[str, Any]:
    n_queries, n_keys = int(2.4 * args.n), args.n // 4
    with tempfile.TemporaryDirectory() as folder:
        # Queries around the centres of the keys, written piece by piece.
        centres, keys = _points(n_keys, 1)
        x = np.random.default_rng(2).standard_normal(n_keys).astype(np.float32)
        np.save(f"{folder}/k.npy", keys)
        np.save(f"{folder}/x.npy", x)
        queries = np.lib.format.open_memmap(f"{folder}/q.npy", "w+", np.float32, (n_queries, D))
        rng = np.random.default_rng(3)
        for first in range(0, n_queries, 2**19):
            n = min(2**19, n_queries - first)
            queries[first : first + n] = centres[rng.integers(0, n_keys, n)]
        queries.flush()
        command = [sys.executable, "-c", STREAM, folder, str(args.max_memory)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        y = np.load(f"{folder}/y.npy", mmap_mode="r")
        found = {"n_queries": n_queries, "n_keys": n_keys, "limit MB": args.max_memory / 1e6}
        return found | json.loads(done.stdout) | {"error": _error(y, queries, keys, x)}


def _cluster(args: argparse.Namespace) -> dict[str, Any]:
    import dask.array as da
    from distributed import Client, LocalCluster

    from approxkmv import dask as akda

    n = args.n // 4
    queries, keys = _points(n, 1)
    x = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    lazy = da.from_array(queries, chunks=(-(-n // 4), -1))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        Client(cluster) as client,
    ):
        alone, spread, errors = [], [], []
        for seed in range(1, 4):
            start = time.perf_counter()
            akmv.matvec(queries, keys, x, bandwidth=BANDWIDTH, eps=EPS, rng=seed, n_threads=2)
            alone.append(time.perf_counter() - start)
            y = akda.matvec(lazy, keys, x, bandwidth=BANDWIDTH, eps=EPS, rng=seed)
            start = time.perf_counter()
            out = client.compute(y).result()
            spread.append(time.perf_counter() - start)
            errors.append(_error(out, queries, keys, x))
    ratios = sorted(one / two for one, two in zip(alone, spread, strict=True))
    found = {"n": n, "one process": median(alone), "two workers": median(spread)}
    return found | {"throughput": ratios[1], "of three": str(ratios), "error": max(errors)}


def _block(args: argparse.Namespace) -> dict[str, Any]:
    n_queries, n_keys = args.n // 64, args.n // 16
    queries, keys, _ = clusters(n_keys, D, n_queries=n_queries, rng=1)
    x = np.random.default_rng(2).standard_normal(n_keys).astype(np.float32)
    common: dict[str, Any] = {"bandwidth": BANDWIDTH, "rng": 1, "n_threads": 1}
    start = time.perf_counter()
    akmv.matvec(queries[:ROWS], keys, x, method="exact", **common)
    pair = (time.perf_counter() - start) / (ROWS * n_keys)
    found: dict[str, Any] = {"n_queries": n_queries, "n_keys": n_keys, "pair": pair, "seconds": {}}
    for n in (10**8, 10**9):
        eps = EPS * (n_queries / n) ** 0.5
        start = time.perf_counter()
        y, info = akmv.matvec(queries, keys, x, eps=eps, return_info=True, **common)
        found["seconds"][f"{n:.0e}"] = time.perf_counter() - start
        found[f"{n:.0e}"] = {
            "method": info.method,
            "error / eps": _error(y, queries, keys, x) / eps,
        }
    return found


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
