"""
Denoising a picture by non-local means
======================================

Every pixel becomes a mean over all pixels of the picture, weighed by how much their surroundings
look alike: a kernel matrix of patches, times the picture, over its row sums.
"""

import matplotlib.pyplot as plt
import numpy as np

import approxkmv as akmv

rng = np.random.default_rng(0)
rows, columns = np.mgrid[:96, :96] / 96
picture = ((np.hypot(rows - 0.5, columns - 0.5) < 0.3) ^ (np.sin(25 * columns) > 0)).astype(float)
noisy = picture + 0.3 * rng.standard_normal(picture.shape)

side = 7
padded = np.pad(noisy, side // 2, mode="reflect")
patches = np.lib.stride_tricks.sliding_window_view(padded, (side, side)).reshape(-1, side**2)
# The squared distance of two patches of the same thing is 2 * 49 * 0.3^2 on average.
bandwidth = 0.3 * side * 0.45
columns_of_x = np.column_stack([noisy.ravel(), np.ones(noisy.size)])
weighted, weights = akmv.matvec(patches, None, columns_of_x, bandwidth=bandwidth, eps=1e-3, rng=0).T
clean = (weighted / weights).reshape(picture.shape)


def distance(image):
    return np.sqrt(np.mean((image - picture) ** 2))


fig, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for ax, image, name in zip(
    axes, (picture, noisy, clean), ("picture", "noisy", "clean"), strict=True
):
    ax.imshow(image, cmap="gray", vmin=0, vmax=1)
    ax.set(title=f"{name}, off by {distance(image):.2f}", xticks=[], yticks=[])
plt.show()

# %%
# Three pixels by the definition.
for i in (0, 4000, 9000):
    kernel = np.exp(-0.5 * ((patches - patches[i]) ** 2).sum(axis=1) / bandwidth**2)
    assert abs(clean.ravel()[i] - kernel @ noisy.ravel() / kernel.sum()) < 0.05
assert distance(clean) < 0.5 * distance(noisy)
