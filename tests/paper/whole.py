"""A square problem on which every stage of Algorithm 3 has something to do."""

from __future__ import annotations

import numpy as np

from approxkmv.kernel.matrix import gaussian_kernel
from approxkmv.paper.approx_kmv import approx_kmv


class Whole:
    """Queries and keys whose kernel values are about 0.1: light keys carry most of the product.

    Each query has itself, and now and then another key, above n^(-1/3). x has three large entries,
    a tiny one, and three sizes between.
    """

    def __init__(self, n: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.n = n
        self.points = 0.31 * rng.standard_normal((n, 24))
        self.x = rng.choice([-0.5, 0.9, 1.1], n)
        self.x[:3], self.x[3] = np.sqrt(n / 4), 1e-12
        self.K = gaussian_kernel(self.points, self.points, 1.0)

    def run(self, seed: int, **options):
        """Algorithm 3 with nothing computed exactly: relative error, and what was done."""
        y, info = approx_kmv(
            self.points,
            self.points,
            self.x,
            bandwidth=1.0,
            never_exact=True,
            rng=seed,
            return_info=True,
            **options,
        )
        return np.linalg.norm(self.K @ self.x - y) / np.linalg.norm(self.x), info

    def light_norm(self, info) -> float:
        """What a light part of zero would miss, relative to x."""
        between = np.ones(self.n, bool)
        between[:4] = False
        light = np.where(info.parameters.threshold > self.K, self.K, 0.0) @ (self.x * between)
        return float(np.linalg.norm(light) / np.linalg.norm(self.x))

    def assert_alive(self, info) -> None:
        """Every counter of every stage."""
        n = self.n
        assert (info.n_large, info.n_tiny, info.n_rest) == (3, 1, n - 4)
        assert info.heavy_x == 3 * n
        assert info.hash > 0
        assert info.hash % (2 * n) == 0
        assert info.scan >= info.n_heavy_pairs >= 0.8 * n
        assert info.n_buckets >= 2
        assert info.n_exact_densities == 0
        assert info.density > 0
        assert info.density_hash > 0
        assert info.n_sampled_rows == n
        assert info.n_capped_rows == 0
        assert info.light > n
