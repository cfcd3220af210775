"""
Eigenvalues of a matrix that is never stored
============================================

``GaussianKernel`` is a SciPy ``LinearOperator``: ``eigsh`` takes it as it is.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.sparse.linalg import eigsh

import approxkmv as akmv
from approxkmv.exact import gaussian_kernel

points = akmv.datasets.clusters(1000, 8, rng=0, dtype=np.float64).keys
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for bandwidth in (0.5, 1.0, 2.0):
    K = akmv.GaussianKernel(points, bandwidth=bandwidth)
    largest = np.sort(eigsh(K, k=60, return_eigenvectors=False))[::-1]
    ax.semilogy(np.arange(1, 61), largest, label=f"bandwidth {bandwidth}")
ax.set(xlabel="number", ylabel="eigenvalue", title="1,000 points in clusters, 8 dimensions")
ax.legend()
plt.show()

# %%
# 1,000 points are few enough to store the matrix and ask LAPACK.
exact = np.linalg.eigvalsh(gaussian_kernel(points, points, bandwidth))[:-61:-1]
np.testing.assert_allclose(largest, exact, rtol=1e-9)
