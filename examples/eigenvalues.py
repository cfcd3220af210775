"""Largest eigenvalues of a kernel matrix that is never stored, with SciPy's ``eigsh``."""

import numpy as np
from scipy.sparse.linalg import eigsh

import approxkmv as akmv
from approxkmv.exact import gaussian_kernel

points = akmv.datasets.clusters(1000, 8, rng=0, dtype=np.float64).keys
K = akmv.GaussianKernel(points, bandwidth=1.0)
largest = eigsh(K, k=3, return_eigenvectors=False)
print("matrix-free:", np.sort(largest))

# 1000 points are few enough to store the matrix and ask LAPACK.
exact = np.linalg.eigvalsh(gaussian_kernel(points, points, 1.0))[-3:]
print("dense:      ", exact)
np.testing.assert_allclose(np.sort(largest), exact, rtol=1e-10)
