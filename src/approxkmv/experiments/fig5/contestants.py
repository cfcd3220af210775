"""What is timed: exact attention and approximate attention, in NumPy and compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from approxkmv.experiments import engine
from approxkmv.experiments.fig5.kdeformer import sampled_attention

Array = npt.NDArray[np.float32]


class Problem(NamedTuple):
    """Several sequences at once; keys are the queries."""

    query: Array  # (batch, n, n_dims)
    v: Array  # (batch, n)
    scale: float


def word_problem(vectors: Array, n: int, batch: int, stride: int, scale: float) -> Problem:
    """Sequences of words as the file lists them; v is one coordinate of later words.

    Sequence b has the words from ``b * stride`` on, so a longer sequence holds the shorter ones.
    """
    whole = batch * stride
    query, values = (
        vectors[first : first + whole].reshape(batch, stride, -1)[:, :n] for first in (0, whole)
    )
    return Problem(np.ascontiguousarray(query), np.ascontiguousarray(values[:, :, 1]), scale)


def numpy_exact(problem: Problem, block: int = 512) -> Array:
    """Softmax attention with NumPy's matrix product, a block of queries at a time."""
    y = np.empty_like(problem.v)
    for query, v, out in zip(problem.query, problem.v, y, strict=True):
        columns = np.column_stack([v, np.ones_like(v)])
        scaled = query * np.float32(problem.scale)
        for i in range(0, len(query), block):
            entries = scaled[i : i + block] @ query.T
            np.exp(entries, out=entries)
            sums = entries @ columns
            out[i : i + block] = sums[:, 0] / sums[:, 1]
    return y


def numpy_sampled(
    problem: Problem, n_samples: int, n_bits: int, seed: int, *, as_printed: bool = False
) -> Array:
    """The paper's algorithm, sequence by sequence; corrected (E24) unless ``as_printed``."""
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {"n_samples": n_samples, "n_bits": n_bits, "as_printed": as_printed}
    return np.stack(
        [
            sampled_attention(q, q, v, scale=problem.scale, rng=rng, **options)
            for q, v in zip(problem.query, problem.v, strict=True)
        ]
    )


def compiled(problem: Problem, eps: float, seed: int, n_threads: int | None) -> Array:
    """Attention by this package, sequence by sequence; exact for ``eps`` 0."""
    options: dict[str, Any] = {"scale": problem.scale, "eps": eps, "n_threads": n_threads}
    answers = [
        engine.attention(q, q, v[:, None], rng=seed + b, **options)[:, 0]
        for b, (q, v) in enumerate(zip(problem.query, problem.v, strict=True))
    ]
    return np.stack(answers)


def compiled_counts(problem: Problem, eps: float, n_threads: int | None) -> engine.Counts:
    """What it does for the first sequence."""
    q, v = problem.query[0], problem.v[0, :, None]
    return engine.counts(q, q, v, scale=problem.scale, eps=eps, rng=0, n_threads=n_threads)


def relative_error(found: Array, exact: Array, v: Array) -> float:
    """Length of the difference over the length of v, all sequences together."""
    difference = found.astype(np.float64) - exact
    return float(np.linalg.norm(difference) / np.linalg.norm(v.astype(np.float64)))


def mean_answer(problem: Problem) -> Array:
    """The answer that knows nothing of the queries: the mean of v everywhere."""
    mean = problem.v.mean(axis=1, keepdims=True, dtype=np.float64)
    return np.broadcast_to(mean.astype(np.float32), problem.v.shape)
