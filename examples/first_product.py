"""Multiply a kernel matrix with a vector, and compare one entry with its definition."""

import numpy as np

import approxkmv as akmv

queries, keys, bandwidth = akmv.datasets.clusters(4000, 32, n_queries=1000, rng=0)
x = np.random.default_rng(1).standard_normal(len(keys)).astype(np.float32)

y, info = akmv.matvec(queries, keys, x, bandwidth=bandwidth, return_info=True)
print(info)

# The definition, for one query, in double precision.
difference = queries[17].astype(np.float64) - keys
exact = np.exp(-0.5 * (difference**2).sum(axis=1) / bandwidth**2) @ x
print(f"\ny[17] = {y[17]:.6f}, by definition {exact:.6f}")
assert abs(y[17] - exact) < 1e-5 * np.linalg.norm(x)
