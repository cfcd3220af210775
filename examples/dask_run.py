"""
A product of Dask arrays
========================

Lazy, in blocks, with the error of the whole: the same lines run on a cluster.
"""

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np

import approxkmv as akmv
from approxkmv.dask import combine_infos, matvec

rng = np.random.default_rng(0)
keys, x = rng.standard_normal((3000, 8)), rng.standard_normal(3000)
queries = da.random.default_rng(1).standard_normal((6000, 8), chunks=(1500, 8))

y, infos = matvec(queries, keys, x, bandwidth=1.5, eps=0.1, rng=0, return_info=True)
print(y)  # nothing was computed yet
y, infos, points = dask.compute(y, infos, queries, scheduler="threads")
info = combine_infos(infos)
print(info)

fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
radius = np.linalg.norm(points, axis=1)
ax.scatter(radius, y, c=np.arange(6000) // 1500, s=3, cmap="viridis")
ax.set(xlabel="distance from the centre", ylabel="y", title="colours: chunks of the queries")
plt.show()

# %%
# The same as one call.
whole = akmv.matvec(points, keys, x, bandwidth=1.5, method="exact")
assert np.linalg.norm(y - whole) <= 0.1 * np.linalg.norm(x)
