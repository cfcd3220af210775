"""
A density in 64 dimensions
==========================

Log-densities where the densities themselves underflow.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp

import approxkmv as akmv

n_dims, bandwidth = 64, 0.3
rng = np.random.default_rng(0)
samples = rng.standard_normal((2000, n_dims))
directions = rng.standard_normal((40, n_dims))
places = directions * np.geomspace(0.5, 16, 40)[:, None]

log_volume = n_dims * math.log(bandwidth * math.sqrt(2 * math.pi))
log_sums = akmv.log_row_sums(places, samples, bandwidth=bandwidth)
log_density = log_sums - math.log(len(samples)) - log_volume
row_sums = akmv.row_sums(places, samples, bandwidth=bandwidth)
print("row sums that are not 0:", np.count_nonzero(row_sums), "of", len(row_sums))

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
distance = np.linalg.norm(places, axis=1)
ax.plot(distance, log_density, ".-", label="log density")
ax.plot(distance[row_sums > 0], log_density[row_sums > 0], "o", mfc="none", label="row sum > 0")
ax.set(xscale="log", yscale="symlog", xlabel="distance from the centre", ylabel="log density")
ax.legend()
plt.show()

# %%
# The definition: logarithm of a sum of exponentials, of all pairs at once.
exponents = -0.5 * ((places[:, None] - samples) ** 2).sum(axis=-1) / bandwidth**2
exact = logsumexp(exponents, axis=1) - math.log(len(samples)) - log_volume
np.testing.assert_allclose(log_density, exact, rtol=1e-12)
