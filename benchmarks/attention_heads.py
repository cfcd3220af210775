"""Sampled attention on the heads in a file: ``python -m benchmarks.attention_heads heads.npz``.

The file holds arrays ``q_<layer>_<head>``, ``k_<layer>_<head>`` and ``v_<layer>_<head>``, each
(tokens, width); a layer may have fewer keys and values than queries, which share them in order.
For each head one interleaved run of torch's ``scaled_dot_product_attention`` (where torch is
installed), our exact tiles without a mask, and the engine. True errors are relative to ``|V|``.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from approxkmv._table import table
from approxkmv.engine.head import Head as EngineHead
from approxkmv.engine.head import HeadProblem
from approxkmv.engine.heads import approximate_head
from approxkmv.engine.problem import Budget
from approxkmv.engine.result import Result
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.experiments.timing import interleaved
from approxkmv.loops.compiled import Compiled
from benchmarks.harness import installed


class Head(NamedTuple):
    """One head and its name."""

    name: str
    query: Any
    key: Any
    value: Any


def heads(path: Path) -> Iterator[Head]:
    """Heads in the file, layer by layer."""
    arrays = np.load(path)
    layers: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in arrays.files:
        kind, layer, _ = name.split("_", 2)
        layers[layer][kind].append(name)
    for layer in layers.values():
        queries, keys, values = (sorted(layer[kind]) for kind in "qkv")
        for i, name in enumerate(queries):
            shared = i * len(keys) // len(queries)
            names = name, keys[shared], values[shared]
            yield Head(name[2:], *(arrays[n].astype(np.float32) for n in names))


def exact_tiles(head: Head, scale: float, n_threads: int) -> Callable[[], Any]:
    """Every pair with our tiles, no mask."""
    shifts = np.zeros(len(head.query)), np.zeros(len(head.key))
    return lambda: Compiled(n_threads).tile_product(
        head.query,
        head.key,
        head.value,
        query_shift=shifts[0],
        key_shift=shifts[1],
        slope=scale,
        online=True,
    )


def torch_sdpa(head: Head, scale: float, causal: bool, n_threads: int) -> Callable[[], Any]:
    """The rival."""
    import torch

    torch.set_num_threads(n_threads)
    q, k, v = (torch.from_numpy(a)[None, None] for a in head[1:])

    def run() -> Any:
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, scale=scale, is_causal=causal
            )

    return run


def exact_output(head: Head, scale: float, causal: bool) -> Any:
    """In double precision, some rows at a time."""
    out = np.empty((len(head.query), head.value.shape[1]))
    key, value = head.key.astype(np.float64), head.value.astype(np.float64)
    for first in range(0, len(out), 1024):
        rows = np.arange(first, min(first + 1024, len(out)))
        scores = scale * (head.query[rows].astype(np.float64) @ key.T)
        if causal:
            scores[np.arange(len(key)) > rows[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[rows] = weights @ value / weights.sum(axis=1, keepdims=True)
    return out


def report(
    head: Head, arguments: argparse.Namespace, times: dict[str, list[float]]
) -> list[list[str]]:
    """A row of the table for each eps."""
    scale = arguments.scale or head.query.shape[1] ** -0.5
    causal = not arguments.full
    exact = exact_output(head, scale, causal)
    size = float(np.linalg.norm(head.value.astype(np.float64)))
    mean = float(np.linalg.norm(exact - head.value.mean(axis=0))) / size
    n_pairs = len(head.query) * len(head.key) / (2 if causal else 1)
    rows = []
    for eps in arguments.eps:
        seeds = iter(range(10**6))

        def engine(eps: float = eps, seeds: Iterator[int] = seeds) -> Result | None:
            backend = Compiled(arguments.threads)
            asked = EngineHead(head.query, head.key, head.value, scale, causal, backend)
            budget = Budget(eps**2 * asked.value_square, 0.05)
            try:
                rng = np.random.default_rng(next(seeds))
                return approximate_head(HeadProblem(asked, budget, rng), Trace())
            except Refusal:
                return None

        contestants = {"engine": engine, "tiles": exact_tiles(head, scale, arguments.threads)}
        if installed("torch"):
            contestants["sdpa"] = torch_sdpa(head, scale, causal, arguments.threads)
        timings = interleaved(contestants, arguments.repetitions)
        ours = timings["engine"].median
        for name, timing in timings.items():
            times[f"{eps:g} {name}"].append(timing.median)
        found = [r for r in (engine() for _ in range(arguments.runs)) if r is not None]
        errors = [float(np.linalg.norm(r.y - exact)) / size for r in found]
        ratios = [r.variance**0.5 / size / e for r, e in zip(found, errors, strict=True) if e > 0]
        rows.append(
            [
                head.name,
                f"{eps:g}",
                f"{timings['sdpa'].median / ours:.2f}" if "sdpa" in timings else "-",
                f"{timings['tiles'].median / ours:.2f}",
                f"{len(found)}/{arguments.runs}",
                f"{max(errors):.4f}" if errors else "-",
                f"{min(ratios):.2f}..{max(ratios):.2f}" if ratios else "-",
                f"{np.mean([r.pairs for r in found]) / n_pairs:.3f}" if found else "-",
                f"{mean:.3f}",
            ]
        )
    return rows


def main() -> int:
    """Print the table and the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="the heads, an .npz file")
    parser.add_argument("--eps", type=float, nargs="+", default=[0.1, 0.03])
    parser.add_argument("--scale", type=float, help="of the scores; 1/sqrt(width) if not given")
    parser.add_argument("--full", action="store_true", help="no causal mask")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5, help="timed runs of each contestant")
    parser.add_argument("--runs", type=int, default=5, help="runs whose error is measured")
    arguments = parser.parse_args()
    times: dict[str, list[float]] = defaultdict(list)
    header = "head eps sdpa/ours tiles/ours sampled largest-error estimate/error pairs mean(V)"
    rows = []
    for head in heads(arguments.path):
        rows += report(head, arguments, times)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(table(header.split(), rows))
    for name, seconds in times.items():
        print(f"eps {name}: {sum(seconds) * 1e3:.1f} ms in all")
    print("'tiles' computes every pair, masked or not; 'sampled' counts runs not left to it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
