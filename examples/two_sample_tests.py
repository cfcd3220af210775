"""
Two samples, two variables
==========================

Do two samples have one distribution (MMD)? Do two variables depend on each other (HSIC)?
"""

import matplotlib.pyplot as plt
import numpy as np

import approxkmv as akmv
from approxkmv.exact import gaussian_kernel

rng = np.random.default_rng(0)
n, n_shuffles = 2000, 200


def mmd(points, signs, bandwidth):
    """Squared maximum mean discrepancy, for many ways to split the points into two halves.

    Each column of ``signs`` is a split: 1/n for one sample, -1/n for the other; MMD^2 = s' K s.
    All splits share one product, so that shuffling costs little more than the test itself.
    """
    K = akmv.GaussianKernel(points, bandwidth=bandwidth)
    return np.einsum("ip,ip->p", signs, K @ signs)


def hsic(a, b, orders, bandwidth, n_probes=100):
    """Hilbert-Schmidt independence criterion trace(H A H B) / n^2, for many orders of b.

    The trace is estimated with random sign vectors z, by the mean of z' H A H B z. Reordering rows
    and columns of B is reordering what it is multiplied with and the product, so that all orders
    share one product.
    """
    m = len(a)
    z = rng.choice([-1.0, 1.0], (m, n_probes))
    left = akmv.GaussianKernel(a, bandwidth=bandwidth) @ (z - z.mean(axis=0))
    left -= left.mean(axis=0)
    reordered = np.hstack([z[np.argsort(order)] for order in orders])
    right = np.hsplit(akmv.GaussianKernel(b, bandwidth=bandwidth) @ reordered, len(orders))
    products = [np.sum(left * part[order]) for part, order in zip(right, orders, strict=True)]
    return np.array(products) / (n_probes * m**2)


# MMD: equal means and variances in 4 dimensions, but one sample has two modes in the first.
normal = rng.standard_normal((n, 4))
modes = rng.standard_normal((n, 4))
modes[:, 0] = 0.95 * rng.choice([-1, 1], n) + np.sqrt(1 - 0.95**2) * modes[:, 0]
both = np.vstack([normal, modes])
split = np.repeat([1 / n, -1 / n], n)
signs = np.column_stack([split, *(rng.permutation(split) for _ in range(n_shuffles))])
statistic = mmd(both, signs, bandwidth=1.0)
p_value = np.mean(statistic >= statistic[0])
print(f"MMD^2 {statistic[0]:.2e}, shuffled {statistic[1:].mean():.2e}: p = {p_value:.3f}")

# HSIC: points on a ring are uncorrelated, and depend on each other.
angle = 2 * np.pi * rng.random(500)
a, b = (f(angle)[:, None] + 0.3 * rng.standard_normal((500, 1)) for f in (np.cos, np.sin))
orders = [np.arange(500), *(rng.permutation(500) for _ in range(50))]
dependence = hsic(a, b, orders, bandwidth=0.5)
p_dependent = np.mean(dependence >= dependence[0])
correlation = np.corrcoef(a[:, 0], b[:, 0])[0, 1]
print(f"HSIC {dependence[0]:.2e}, shuffled {dependence[1:].mean():.2e}: p = {p_dependent:.3f}")
print(f"(their correlation is {correlation:.3f})")

fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for ax, values, name in ((left, statistic, "MMD²"), (right, dependence, "HSIC")):
    ax.hist(values[1:], bins=30, color="0.7", label="shuffled")
    ax.axvline(values[0], color="C3", label="data")
    ax.set(xlabel=name, yticks=[])
    ax.legend()
plt.show()

# %%
# Against the definitions, on subsets: MMD to rounding, HSIC within the error of its probes.
few = np.r_[:300, n : n + 300]
halves = np.repeat([1 / 300, -1 / 300], 300)
exact_mmd = halves @ gaussian_kernel(both[few], both[few], 1.0) @ halves
np.testing.assert_allclose(mmd(both[few], halves[:, None], 1.0), exact_mmd, rtol=1e-9)
centred = np.eye(500) - 1 / 500
A, B = (gaussian_kernel(v, v, 0.5) for v in (a, b))
exact_hsic = np.trace(centred @ A @ centred @ B) / 500**2
# The variance of the estimate of a trace from sign vectors is at most 2 |M|_F^2 each.
deviation = np.sqrt(2 / 100) * np.linalg.norm(centred @ A @ centred @ B) / 500**2
assert p_value < 0.05
assert p_dependent < 0.05
assert abs(dependence[0] - exact_hsic) < 5 * deviation
