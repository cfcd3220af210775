"""Log-density of a kernel density estimate where the density itself underflows."""

import math

import numpy as np
from scipy.special import logsumexp

import approxkmv as akmv

n_dims, bandwidth = 64, 0.3
rng = np.random.default_rng(0)
samples = rng.standard_normal((2000, n_dims))
places = rng.standard_normal((5, n_dims)) * np.array([[1], [2], [4], [8], [16]])

log_volume = n_dims * math.log(bandwidth * math.sqrt(2 * math.pi))
log_sums = akmv.log_row_sums(places, samples, bandwidth=bandwidth)
log_density = log_sums - math.log(len(samples)) - log_volume
print("row sums:   ", akmv.row_sums(places, samples, bandwidth=bandwidth))
print("log-density:", log_density)

# The definition: logarithm of a sum of exponentials, of all pairs at once.
exponents = -0.5 * ((places[:, None] - samples) ** 2).sum(axis=-1) / bandwidth**2
exact = logsumexp(exponents, axis=1) - math.log(len(samples)) - log_volume
np.testing.assert_allclose(log_density, exact, rtol=1e-12)
