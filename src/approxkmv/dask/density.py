"""``score_samples`` of a fitted ``KernelDensity`` on a Dask array."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.delayed import delayed

from approxkmv.blocks.product import threads_here
from approxkmv.dask.inputs import query_array


def score_samples(model: Any, X: da.Array) -> da.Array:
    """Log-densities at the rows of a Dask array, lazily: ``model.score_samples`` of each chunk.

    Everything random was drawn when the model was fitted, so a row has the same bits in any chunk
    and on any scheduler.

    Parameters
    ----------
    model : approxkmv.sklearn.KernelDensity
        Fitted. It is in the graph once, with its samples, and workers hand it to each other. A
        task uses the threads that its ``n_threads`` says; with None one, unless it runs alone.
    X : dask.array.Array, shape (n_queries, n_features)
        Chunked by rows.

    Returns
    -------
    dask.array.Array, shape (n_queries,)
        With the chunks of X.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from approxkmv.dask import score_samples
    >>> from approxkmv.sklearn import KernelDensity
    >>> model = KernelDensity(bandwidth=1.0).fit(np.zeros((1, 1)))
    >>> score_samples(model, da.from_array(np.zeros((3, 1)), chunks=(2, -1))).compute().round(4)
    array([-0.9189, -0.9189, -0.9189])
    """
    points = query_array(X, "X")
    if points.shape[1] != getattr(model, "n_features_in_", points.shape[1]):
        raise ValueError(f"X must have {model.n_features_in_} columns, got {points.shape[1]}.")
    shared = delayed(model, name=f"density-{tokenize(model)}", traverse=False)
    name = f"score_samples-{tokenize(model, X)}"
    scored: da.Array = da.map_blocks(
        _scored, points, shared, drop_axis=1, dtype=np.float64, name=name
    )
    return scored


def _scored(points: Any, model: Any) -> Any:
    if len(points) == 0:
        return np.empty(0)
    return np.asarray(model.with_threads(threads_here(model.n_threads)).score_samples(points))
