"""
A first product
===============

Multiply a kernel matrix with a vector, allow several errors, and compare with the errors made.
"""

import matplotlib.pyplot as plt
import numpy as np

import approxkmv as akmv

queries, keys, bandwidth = akmv.datasets.clusters(32_768, 64, rng=0)
x = np.ones(len(keys), np.float32)

y, info = akmv.matvec(queries, keys, x, bandwidth=bandwidth, eps=0.1, rng=0, return_info=True)
print(info)

# %%
# The errors, on 512 of the rows in double precision.
rows = np.arange(0, len(queries), 64)
exact = akmv.matvec(queries[rows], keys, x.astype(np.float64), bandwidth=bandwidth, method="exact")
length = np.linalg.norm(x)


def error(y):
    return np.linalg.norm(y[rows] - exact) * np.sqrt(len(y) / len(rows)) / length


asked = np.array([0.5, 0.3, 0.2, 0.1, 0.05])
made, estimated = [], []
for eps in asked:
    y, info = akmv.matvec(
        queries,
        keys,
        x,
        bandwidth=bandwidth,
        eps=eps,
        rng=0,
        method="sampled",  # also where every pair is expected to be as fast
        return_info=True,
    )
    made.append(error(y))
    estimated.append(info.error_estimate)

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.loglog(asked, asked, "--", color="0.6", label="allowed")
ax.loglog(asked, made, "o-", label="made")
ax.loglog(asked, estimated, "x:", label="estimated")
ax.set(xlabel="eps", ylabel="|Kx − y| / |x|", title="32,768 points in 64 dimensions")
ax.legend()
plt.show()

# %%
# One entry, by the definition.
by_definition = np.exp(
    -0.5 * ((queries[0].astype(np.float64) - keys) ** 2).sum(axis=1) / bandwidth**2
)
assert abs(exact[0] - by_definition @ x) < 1e-5 * length
assert (np.array(made) <= asked).all()
