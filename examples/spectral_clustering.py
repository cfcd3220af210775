"""
Spectral clustering
===================

Two moons told apart by the eigenvectors of a kernel matrix that is never stored.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.sparse import diags_array as diags
from scipy.sparse.linalg import aslinearoperator

import approxkmv as akmv
from approxkmv.exact import gaussian_kernel

n, bandwidth = 2000, 0.1
rng = np.random.default_rng(0)
angle = np.pi * rng.random(n)
moon = rng.integers(0, 2, n)
points = np.column_stack([np.cos(angle), np.sin(angle)])
points[moon == 1] = [1, 0.5] - points[moon == 1]
points += 0.05 * rng.standard_normal((n, 2))


def second_vector(K, degree):
    """Second eigenvector of D^-1/2 K D^-1/2: it changes sign between the two clusters."""
    root = degree**-0.5
    normalised = aslinearoperator(diags(root)) @ K @ aslinearoperator(diags(root))
    found = akmv.spectrum.eigenvalues(normalised, 3, tol=1e-4, rng=0)
    print(found)
    return root * found.vectors[:, 1]


K = akmv.GaussianKernel(points, bandwidth=bandwidth)
label = second_vector(K, akmv.row_sums(points, bandwidth=bandwidth)) > 0
right = max((label == moon).mean(), (label != moon).mean())
print(f"{right:.1%} of {n} points are with their moon")

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.scatter(*points.T, c=label, s=4, cmap="coolwarm")
ax.set(aspect="equal", title=f"bandwidth {bandwidth}: {right:.1%} right")
plt.show()

# %%
# On 600 of the points: the same clusters as from the dense matrix and LAPACK.
few = points[:600]
dense = gaussian_kernel(few, few, bandwidth)
degree = dense.sum(axis=1)
exact = np.linalg.eigh(dense / np.sqrt(np.outer(degree, degree)))[1][:, -2] / np.sqrt(degree)
ours = second_vector(akmv.GaussianKernel(few, bandwidth=bandwidth), degree)
agree = np.mean((ours > 0) == (exact > 0))
assert right > 0.98
assert max(agree, 1 - agree) > 0.99
