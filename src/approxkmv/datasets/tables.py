"""Points like those of tables, pictures and scans: few directions, equal rows, curves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from approxkmv.datasets.generators import Array, Seed


def image_patches(
    picture: npt.ArrayLike,
    width: int = 5,
    *,
    n: int | None = None,
    rng: Seed = 0,
    dtype: npt.DTypeLike = np.float32,
) -> Array:
    """Windows of a picture, each of them a point: of natural pictures most lie near few directions.

    Parameters
    ----------
    picture : array_like, shape (height, width) or (height, width, n_channels)
        Grey values or colours.
    width : int
        Of the square windows, in pixels.
    n : int, optional
        Number of windows, drawn without replacement; all of them in random order if not given.
    rng : int or numpy.random.Generator
        Seed.
    dtype : float32 or float64
        Type of the points.

    Returns
    -------
    points : ndarray, shape (n, width * width * n_channels)

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.datasets import image_patches
    >>> image_patches(np.arange(48.0).reshape(6, 8), 3).shape
    (24, 9)
    """
    pixels = np.asarray(picture)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or min(pixels.shape[:2]) < width or width < 1:
        raise ValueError(
            f"picture must have two or three dimensions and hold a window of {width} x {width} "
            f"pixels, got shape {np.shape(picture)}."
        )
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (width, width), axis=(0, 1))
    across = windows.shape[1]
    chosen = np.random.default_rng(rng).permutation(windows.shape[0] * across)[:n]
    patches = windows[chosen // across, chosen % across]
    return np.ascontiguousarray(patches.reshape(len(chosen), -1), dtype)


def repeated_rows(
    n: int,
    d: int = 20,
    *,
    n_distinct: int | None = None,
    rng: Seed,
    dtype: npt.DTypeLike = np.float32,
) -> Array:
    """A table in which rows repeat, a few of them very often: correlated, heavy-tailed columns.

    How often a row is repeated falls like 1/rank, as words and configurations are.

    Parameters
    ----------
    n : int
        Number of rows.
    d : int
        Number of columns.
    n_distinct : int, optional
        Number of rows that repeats are drawn from; a third of n if not given. Rare ones may not
        occur at all.
    rng : int or numpy.random.Generator
        Seed.
    dtype : float32 or float64
        Type of the points.

    Returns
    -------
    points : ndarray, shape (n, d)
        Columns of mean 0 and deviation 1.

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.datasets import repeated_rows
    >>> points = repeated_rows(1000, 4, n_distinct=100, rng=0)
    >>> points.shape, len(np.unique(points, axis=0)) <= 100
    ((1000, 4), True)
    """
    rng = np.random.default_rng(rng)
    n_distinct = max(1, n // 3) if n_distinct is None else n_distinct
    n_factors = max(1, d // 4)
    rows = rng.standard_t(4, (n_distinct, n_factors)) @ rng.standard_normal((n_factors, d))
    rows += 0.3 * rng.standard_normal((n_distinct, d))
    often = 1 / np.arange(1, n_distinct + 1)
    # Every row once as long as there is room, so that about n_distinct of them are seen.
    some = rng.choice(n_distinct, max(0, n - n_distinct), p=often / often.sum())
    points = rows[rng.permutation(np.concatenate([np.arange(min(n, n_distinct)), some]))]
    points -= points.mean(axis=0)
    spread = points.std(axis=0)
    return np.ascontiguousarray(points / np.where(spread > 0, spread, 1), dtype)


def curves(
    n: int, n_curves: int = 12, *, noise: float = 0.01, rng: Seed, dtype: npt.DTypeLike = np.float32
) -> Array:
    """Points in three dimensions along smooth closed curves, like roads, vessels or scans.

    Parameters
    ----------
    n : int
        Number of points.
    n_curves : int
        Number of curves; each has the same number of points, up to one.
    noise : float
        Deviation from the curve, whose size is about 1.
    rng : int or numpy.random.Generator
        Seed.
    dtype : float32 or float64
        Type of the points.

    Returns
    -------
    points : ndarray, shape (n, 3)

    Examples
    --------
    >>> from approxkmv.datasets import curves
    >>> curves(100, rng=0).shape
    (100, 3)
    """
    rng = np.random.default_rng(rng)
    curve = np.arange(n) % n_curves
    angle = 2 * np.pi * rng.random(n)
    points = rng.standard_normal((n_curves, 3))[curve]
    for frequency in (1, 2, 3):
        wave = np.stack([np.cos(frequency * angle), np.sin(frequency * angle)], axis=1)
        shape = rng.standard_normal((n_curves, 2, 3)) / frequency**2
        points += np.einsum("nw,nwk->nk", wave, shape[curve])
    points += noise * rng.standard_normal((n, 3))
    return np.ascontiguousarray(points[rng.permutation(n)], dtype)
