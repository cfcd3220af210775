"""Point sets with known or awkward spectra, and a stand-in for a sampled operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import approxkmv as akmv
from approxkmv.info import ProductInfo
from approxkmv.kernel.matrix import gaussian_kernel

Array = np.ndarray[Any, np.dtype[Any]]


def _normal(n: int, d: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((n, d))


def _duplicates(n: int) -> Array:
    """Each of n / 5 points five times."""
    return np.repeat(_normal(n // 5, 3), 5, axis=0)


def _tight_clusters(n: int) -> Array:
    """Clusters of 1, 2, 3, ... points, 1e-3 wide and far apart."""
    sizes = np.arange(1, n)
    sizes = sizes[np.cumsum(sizes) <= n]
    sizes[-1] += n - sizes.sum()
    centres = np.repeat(10.0 * np.arange(len(sizes)), sizes)
    return np.column_stack([centres, np.zeros(n)]) + 1e-3 * _normal(n, 2)


def _hub(n: int) -> Array:
    """One point in the middle of a sphere: the largest row sum is far above the top eigenvalue."""
    points = _normal(n, 40)
    points *= 2.5 / np.linalg.norm(points, axis=1, keepdims=True)
    points[0] = 0
    return points


CASES = {
    "normal": lambda n: _normal(n, 3),
    "high dimension": lambda n: 0.3 * _normal(n, 50),
    "duplicates": _duplicates,
    "tight clusters": _tight_clusters,
    "identity": lambda n: np.column_stack([100.0 * np.arange(n), np.zeros(n)]),
    "constant": lambda n: np.full((n, 4), 3.0),
    "on a line": lambda n: np.linspace(0, n / 8, n)[:, None],
    "hub": _hub,
    "far from 0": lambda n: _normal(n, 3) + 1e3,
}
BANDWIDTH = 1.0


def exact_eigenvalues(points: Array) -> Array:
    """Every eigenvalue in double precision, the largest first."""
    return np.linalg.eigvalsh(gaussian_kernel(points, points, BANDWIDTH))[::-1]


class Frozen(akmv.GaussianKernel):
    """A fixed matrix within ``eps`` of the kernel matrix in the spectral norm, said to be sampled.

    It stands for any sampled operator: symmetric where the points are one set, one matrix for all
    products, with an error that no measurement of rounding would find.
    """

    def __init__(self, *points: Array, eps: float, seed: int = 0) -> None:
        super().__init__(*points, bandwidth=BANDWIDTH, eps=eps)
        noise = _normal(*self.shape, seed)
        noise = noise + noise.T if len(points) == 1 else noise
        self._noise = eps * noise / np.linalg.norm(noise, 2)

    @property
    def info(self) -> ProductInfo:
        return replace(super().info, method="sampled", error_bound=None)

    def _matmat(self, x: Array) -> Array:
        return np.asarray(super()._matmat(x) + self._noise @ x)

    _matvec = _matmat

    def _adjoint(self) -> Any:
        if self.queries is self.keys:
            return self
        other = Frozen(self.keys, self.queries, eps=self.eps)
        other._noise = self._noise.T
        return other

    _transpose = _adjoint
