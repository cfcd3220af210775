"""
Is my kernel matrix sparse enough?
==================================

The paper's assumption is about the sum of a kernel matrix: at most c n. ``diagnose`` measures c,
how it grows, and what the engine would do.
"""

import matplotlib.pyplot as plt
import numpy as np

import approxkmv as akmv
from approxkmv.exact import gaussian_kernel

points = akmv.datasets.clusters(2000, 16, rng=0, dtype=np.float64).keys
found = akmv.diagnose(points, bandwidth=1.0, rng=0)
print(found)

bandwidths = np.geomspace(0.3, 10, 12)
means = [akmv.row_sums(points[:500], points, bandwidth=s).mean() for s in bandwidths]
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.loglog(bandwidths, means, "o-")
ax.axhline(len(points), color="0.6", ls="--")
ax.text(0.3, len(points), " every entry is 1", va="bottom", color="0.4")
ax.set(xlabel="bandwidth", ylabel="mean row sum", title="sparse to the left, dense to the right")
plt.show()

# %%
# c is the mean row sum without the diagonal.
K = gaussian_kernel(points, points, 1.0)
print(f"c by the definition: {(K.sum() - len(points)) / len(points):.4f}")
assert (
    abs(means[0] - gaussian_kernel(points[:500], points, bandwidths[0]).sum(axis=1).mean()) < 1e-9
)
