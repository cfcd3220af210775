"""
A density in two dimensions
===========================

100,000 points, a grid of 100 x 100 places, every kernel value.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp

import approxkmv as akmv

rng = np.random.default_rng(0)
n, bandwidth = 100_000, 0.015
angle, radius = 2 * np.pi * rng.random(n), 1 + 0.15 * rng.standard_normal(n)
points = np.column_stack([radius * np.cos(angle), radius * np.sin(2 * angle)])

side = np.linspace(-2.2, 2.2, 100)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
log_density = akmv.log_row_sums(grid, points, bandwidth=bandwidth)
log_density -= np.log(n * 2 * np.pi * bandwidth**2)

fig, ax = plt.subplots(figsize=(5.5, 4.5), layout="constrained")
shown = np.maximum(log_density, -20).reshape(100, 100)
image = ax.imshow(shown, extent=(-2.2, 2.2, -2.2, 2.2), origin="lower", cmap="magma")
fig.colorbar(image, label="log density (cut at −20)")
ax.set(title="100,000 points on a curve")
plt.show()

# %%
# Far from the points the density itself is 0 in floating point; its logarithm is right everywhere.
print(f"from {log_density.min():.0f} to {log_density.max():.2f}")
some = rng.choice(len(grid), 20, replace=False)
exponents = -0.5 * ((grid[some, None] - points) ** 2).sum(axis=-1) / bandwidth**2
exact = logsumexp(exponents, axis=1) - np.log(n * 2 * np.pi * bandwidth**2)
np.testing.assert_allclose(log_density[some], exact, rtol=1e-10)
assert log_density.min() < np.log(np.finfo(np.float64).tiny)
