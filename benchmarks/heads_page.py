"""Attention of a model's heads for the pages: ``python -m benchmarks.page heads --heads FILE.npz``.

Exact and with an error allowed, against PyTorch's ``scaled_dot_product_attention``, all heads of
the file one after the other, causal, interleaved. docs/attention.md says how such a file is made.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from approxkmv import attention
from approxkmv.experiments.timing import Timing, interleaved
from benchmarks.attention import Data, model_heads
from benchmarks.harness import installed
from benchmarks.record import Row, duration, markdown, rounded, times

WAYS = {"eps = 0.1": 0.1, "eps = 0.03": 0.03, "exact": 0.0}


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """A row for each head."""
    if args.heads is None or not installed("torch"):
        print("heads: skipped. They need PyTorch and --heads FILE.npz.", file=sys.stderr)
        return
    options = argparse.Namespace(heads=args.heads, group=3, size=min(1.0, args.largest / 8192))
    for data in model_heads(options):
        if not args.cases or data.name in args.cases:
            yield {"case": data.name, **measured(data, args)}


def measured(data: Data, args: argparse.Namespace) -> Row:
    import torch

    arrays = [a[None, None] for a in data[1:4]]
    tensors = [torch.from_numpy(a) for a in arrays]

    def ours(eps: float) -> Callable[[], Any]:
        options = {"is_causal": True, "rng": args.seed, "n_threads": args.threads}
        return lambda: attention(*arrays, eps=eps, **options)

    def sdpa() -> Any:
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)

    contestants: dict[str, Callable[[], Any]] = {name: ours(eps) for name, eps in WAYS.items()}
    contestants["PyTorch"] = sdpa
    timings = interleaved(contestants, args.repetitions, after_each=lambda: time.sleep(0.05))
    double = (a.astype(np.float64) for a in arrays)
    truth = attention(*double, is_causal=True, method="exact", n_threads=args.threads)
    length = float(np.linalg.norm(arrays[2].astype(np.float64)))

    def found(timing: Timing) -> Row:
        error = float(np.linalg.norm(np.asarray(timing.result) - truth)) / length
        return {"seconds": timing.median, "error": error}

    rows = {name: found(timing) for name, timing in timings.items()}
    mean = arrays[2].mean(axis=-2, keepdims=True)
    return {
        "n": arrays[0].shape[-2],
        "ways": rows,
        "mean": float(np.linalg.norm(mean - truth)) / length,
    }


def tables(rows: list[Row]) -> dict[str, str]:
    head = ["", "all heads", "times PyTorch", "by head", "largest error / ‖V‖"]
    lines = []
    theirs = [r["ways"]["PyTorch"]["seconds"] for r in rows]
    for name in (*WAYS, "PyTorch"):
        ours = [r["ways"][name]["seconds"] for r in rows]
        quotients = [b / a for a, b in zip(ours, theirs, strict=True)]
        by_head = f"{times(min(quotients))} to {times(max(quotients))}"
        error = rounded(max(r["ways"][name]["error"] for r in rows))
        gain = times(sum(theirs) / sum(ours))
        lines.append([name, duration(sum(ours)), gain, by_head, error])
    about = f"{len(rows)} heads of SmolLM2-135M, {rows[0]['n']:,} tokens, causal, float32"
    low, high = (rounded(f(r["mean"] for r in rows)) for f in (min, max))
    trivial = f"The mean of V in every row has an error of {low} to {high}."
    return {"heads": f"{about}:\n\n{markdown(head, lines)}\n\n{trivial}"}
