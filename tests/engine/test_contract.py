"""What a sampled product keeps besides eps: order, bits, memory, every tolerance.

Numbered as on the page docs/reliability.md.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv.datasets import clusters, low_intrinsic_dimension, one_huge_cluster, sphere
from approxkmv.kernel.matrix import product

pytestmark = pytest.mark.usefixtures("any_size")


@functools.cache
def drawn(n: int = 4096) -> tuple[np.ndarray, np.ndarray, float]:
    return clusters(n, 32, rng=0)


def sampled(q: np.ndarray, k: np.ndarray | None, x: np.ndarray, b: float, **options: object):
    y, info = akmv.matvec(q, k, x, bandwidth=b, return_info=True, **options)  # type: ignore[call-overload]
    return y, info.method == "sampled"


def test_18_a_sweep_of_tolerances() -> None:
    """20 tolerances from 0.5 to 0.001, five data sets, three patterns of signs: all within eps.

    300 products with fixed seeds; some of the wider tolerances are met by sampling.
    """
    makers = (clusters, sphere, low_intrinsic_dimension, one_huge_cluster)
    sets = [make(2048, 16, rng=1) for make in makers] + [clusters(2048, 64, n_queries=1500, rng=2)]
    n_sampled = 0
    for queries, keys, bandwidth in sets:
        n = len(keys)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], n)
        for x in (np.ones(n), signs, 1.0 - 2.0 * (np.arange(n) % 2)):
            exact = product(queries.astype("f8"), keys.astype("f8"), x, bandwidth)
            for seed, eps in enumerate(np.geomspace(0.5, 1e-3, 20)):
                y, used = sampled(queries, keys, x, bandwidth, eps=float(eps), rng=seed)
                n_sampled += used
                assert np.linalg.norm(y - exact) <= eps * np.linalg.norm(x)
    assert n_sampled >= 40


def test_21_permuting_keys_and_queries() -> None:
    """Another order is another draw: both within eps of the same product."""
    queries, keys, bandwidth = drawn()
    rng = np.random.default_rng(3)
    x = rng.standard_normal(len(keys)).astype(np.float32)
    exact = product(queries.astype("f8"), keys.astype("f8"), x.astype("f8"), bandwidth)
    rows, cols = rng.permutation(len(queries)), rng.permutation(len(keys))
    for q, k, v, at in (
        (queries[rows], keys, x, rows),
        (queries, keys[cols], x[cols], slice(None)),
        (queries[rows], keys[cols], x[cols], rows),
    ):
        y, used = sampled(q, k, v, bandwidth, eps=0.1, rng=0)
        assert used
        assert np.linalg.norm(y - exact[at]) <= 0.1 * np.linalg.norm(x)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
def test_23_points_in_one_ball(share: float) -> None:
    """The assumption violated: sampled all the same, or computed exactly and said so, and right."""
    queries, keys, bandwidth = one_huge_cluster(3000, 16, rng=0)
    bandwidth *= share
    x = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    exact = product(queries.astype("f8"), keys.astype("f8"), x.astype("f8"), bandwidth)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        y, used = sampled(queries, keys, x, bandwidth, eps=3e-3, method="sampled", rng=0)
    assert used == (not warned)
    assert np.linalg.norm(y - exact) <= 3e-3 * np.linalg.norm(x)


def test_27_a_hundred_runs_one_digest() -> None:
    """The same seed, a hundred times, by different numbers of threads."""
    queries, keys, bandwidth = drawn()
    x = np.random.default_rng(3).standard_normal(len(keys)).astype(np.float32)
    digests = set()
    for run in range(100):
        y, used = sampled(queries, keys, x, bandwidth, rng=11, n_threads=1 + run % 3)
        assert used
        digests.add(hashlib.sha256(y.tobytes()).hexdigest())
    assert len(digests) == 1


def test_38_memory_of_a_large_product(run_python: Callable[..., str]) -> None:
    """Peak at most inputs, three outputs and 512 MB: 100,000 points of 64 coordinates."""
    script = """
import resource
import numpy as np
import approxkmv as akmv
from approxkmv.datasets import clusters
import approxkmv.engine.products
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
queries, keys, bandwidth = clusters(100_000, 64, mean_row_sum=None, rng=0)
x = np.ones(len(keys), np.float32)
before = peak()
y, info = akmv.matvec(queries, keys, x, bandwidth=bandwidth / 8, eps=0.3, rng=0, return_info=True)
print(info.method, peak() - before, 3 * y.nbytes + 512 * 2**20)
"""
    method, grown, allowed = run_python(script).split()
    assert method == "sampled"
    assert float(grown) <= float(allowed)
