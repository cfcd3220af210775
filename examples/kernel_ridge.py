"""
Kernel ridge regression
=======================

A noisy function of two variables; the bandwidth by cross-validation, as with any estimator of
scikit-learn.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV

from approxkmv.exact import gaussian_kernel
from approxkmv.sklearn import KernelRidge

rng = np.random.default_rng(0)


def truth(points):
    return np.sin(6 * points[:, 0]) * np.cos(4 * points[:, 1] ** 2)


points = rng.random((1200, 2))
values = truth(points) + 0.2 * rng.standard_normal(1200)
search = GridSearchCV(
    KernelRidge(alpha=0.5), {"bandwidth": [0.03, 0.1, 0.3]}, cv=3, scoring="neg_mean_squared_error"
).fit(points, values)
print("bandwidth by cross-validation:", search.best_params_["bandwidth"])

side = np.linspace(0, 1, 60)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
predicted = search.predict(grid)
fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained", sharey=True)
for ax, field, title in zip(axes, (truth(grid), predicted), ("truth", "predicted"), strict=True):
    image = ax.imshow(field.reshape(60, 60), origin="lower", extent=(0, 1, 0, 1), vmin=-1, vmax=1)
    ax.set(title=title)
fig.colorbar(image, ax=axes)
plt.show()

# %%
# The same as a dense solve, on 500 of the points.
few, some = points[:500], values[:500]
model = KernelRidge(alpha=0.5, bandwidth=0.1, tol=1e-10).fit(few, some)
dense = np.linalg.solve(gaussian_kernel(few, few, 0.1) + 0.5 * np.eye(500), some)
exact = gaussian_kernel(grid, few, 0.1) @ dense
error = np.sqrt(np.mean((predicted - truth(grid)) ** 2))
print(f"root mean square error of the prediction: {error:.3f}")
np.testing.assert_allclose(model.predict(grid), exact, atol=1e-6)
