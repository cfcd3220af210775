"""Points in clusters, and their exact product."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import approxkmv as akmv


class Data(NamedTuple):
    queries: np.ndarray
    bandwidth: float = 2.0

    @property
    def keys(self) -> np.ndarray:
        return self.queries

    def exact(self, x: np.ndarray) -> np.ndarray:
        wide = self.queries.astype(np.float64)
        return akmv.matvec(wide, None, x, bandwidth=self.bandwidth, method="exact")


def clustered(n: int) -> Data:
    """Sixteen points around each centre."""
    rng = np.random.default_rng(5)
    centres = np.repeat(rng.standard_normal((n // 16, 16)), 16, axis=0)
    return Data((centres + 0.2 * rng.standard_normal(centres.shape)).astype(np.float32))


def vector(kind: str, data: Data) -> np.ndarray:
    n = len(data.queries)
    x = np.ones(n) if kind == "ones" else np.random.default_rng(6).standard_normal(n)
    return x.astype(np.float32)
