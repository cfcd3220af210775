"""Definitions in double precision, and how far rounding may take an answer from them.

A computed kernel value is off by a factor whose logarithm is at most ``unit`` times the sizes of
the terms its exponent is made of. With inner products those are (d + 4) times the product of the
norms, in bandwidths, and twice their squares; the norms of keys are capped, because the library
takes differences beyond a radius of sqrt(tolerance / epsilon), which is documented in frame.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_LARGEST_RADIUS = {np.dtype("f4"): 41.0, np.dtype("f8"): 2200.0}


def exponents(q: Array, k: Array, bandwidth: float) -> Array:
    """|q - k|^2 / (2 bandwidth^2), for every pair; infinity where that overflows."""
    with np.errstate(all="ignore"):
        z = (q[:, None, :] - k[None, :, :]) / bandwidth
        s = 0.5 * np.square(z).sum(axis=-1)
    s[np.isnan(s)] = np.inf  # the difference itself overflowed
    return s


def entry_error(
    q: Array, k: Array, bandwidth: float, kind: np.dtype[Any], most: float | None = None
) -> Array:
    """Largest error of the logarithm of a kernel value in each row of the matrix."""
    unit = float(np.finfo(kind).eps) / 2
    smallest = -math.log(float(np.finfo(kind).smallest_subnormal))
    d = k.shape[1]
    with np.errstate(all="ignore"):
        centre = np.median(k, axis=0) if len(k) else np.zeros(d)
        of_keys = float(
            np.nanmax(np.sqrt(np.square((k - centre) / bandwidth).sum(axis=1)), initial=0)
        )
        of_keys = min(of_keys, _LARGEST_RADIUS[kind])
        reach = of_keys + math.sqrt(2 * smallest)
        norms = np.sqrt(np.square((q - centre) / bandwidth).sum(axis=1))
        of_queries = np.minimum(norms, reach) if most is None else np.minimum(norms, most)
    terms = (d + 4) * of_keys * of_queries + 2 * (of_keys**2 + of_queries**2)
    return np.asarray(2 * unit * (terms + (d + 4) * smallest + 8))


def product(
    q: Array, k: Array, x: Array, bandwidth: float, kind: np.dtype[Any]
) -> tuple[Array, Array]:
    """K x, and the error that rounding may cause to each entry; x has columns."""
    K = np.exp(-exponents(q, k, bandwidth))
    finfo = np.finfo(kind)
    with np.errstate(all="ignore"):
        # Columns are scaled by a power of two first, so that sums do not overflow on the way.
        most = np.abs(x).max(axis=0, initial=0.0)
        scale = np.ldexp(1.0, np.frexp(most)[1] - 1)
        y = (K @ (x / scale)) * scale
        sums = (K @ np.abs(x / scale)) * scale
        unit = float(finfo.eps) / 2
        relative = np.expm1(np.minimum(entry_error(q, k, bandwidth, kind), 700))
        relative = relative + (300 + len(k)) * unit
        lost = 4 * float(finfo.smallest_normal) * len(k) * most
    return y, relative[:, None] * sums + lost + 4 * float(np.finfo(float).smallest_subnormal)


def adjoint(
    q: Array, k: Array, x: Array, bandwidth: float, kind: np.dtype[Any]
) -> tuple[Array, Array]:
    """K'x and its rounding, of a K whose exponents are rounded where its own keys lie."""
    y, error = product(k, q, x, bandwidth, kind)
    relative = np.expm1(np.minimum(entry_error(q, k, bandwidth, kind), 700))
    K = np.exp(-exponents(q, k, bandwidth))
    with np.errstate(all="ignore"):
        return y, error + K.T @ (relative[:, None] * np.abs(x))


def log_sums(
    q: Array, k: Array, weights: Array | None, bandwidth: float, kind: np.dtype[Any]
) -> tuple[Array, Array]:
    """log sum_j w_j K_ij, and its error."""
    with np.errstate(all="ignore"):
        logs = -exponents(q, k, bandwidth)
        if weights is not None:
            logs = logs + np.log(weights)
        top = logs.max(axis=1, initial=-np.inf)
        safe = np.where(np.isfinite(top), top, 0.0)
        found = safe + np.log(np.exp(logs - safe[:, None]).sum(axis=1))
        found = np.where(np.isfinite(top), found, top)
        unit = float(np.finfo(kind).eps) / 2
        error = entry_error(q, k, bandwidth, kind, most=np.inf)
        error = error + unit * ((k.shape[1] + 16) * np.abs(found) + 300 + len(k))
    return found, error


def attention(
    q: Array, k: Array, v: Array, scale: float, seen: Array | None, kind: np.dtype[Any]
) -> tuple[Array, Array]:
    """Softmax attention with ``seen`` added to the scores, and the error of each row."""
    with np.errstate(all="ignore"):
        # With exponents to spare, so that neither factor meets an overflow of its own.
        q, k = q.astype(np.longdouble) * scale, np.swapaxes(k, -1, -2).astype(np.longdouble)
        scores, size = (q @ k).astype(np.float64), np.abs(q) @ np.abs(k)
        size = float(size.max(initial=0.0))
        if seen is not None:
            scores = scores + seen
            size += float(np.abs(seen[np.isfinite(seen)]).max(initial=0.0))
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
        totals = weights.sum(axis=-1, keepdims=True)
        weights = weights / np.where(totals > 0, totals, 1.0)
        most = float(np.abs(v).max(initial=0.0))
        out = weights @ (v / most if most > 0 else v) * (most if most > 0 else 1.0)
    finfo = np.finfo(kind)
    unit = float(finfo.eps) / 2
    exponent = unit * ((q.shape[-1] + 8) * size + 300)
    relative = math.expm1(min(4 * exponent, 700.0)) + 4 * unit * (300 + k.shape[-1])
    error = min(relative, 2.0) * most + 4 * float(finfo.smallest_normal) * (1 + k.shape[-1])
    return out, np.asarray(error)


def differs(found: Array, wanted: Array, error: Array, kind: np.dtype[Any]) -> str | None:
    """What is wrong with an answer, or None. A number too large for the type is infinity there."""
    if found.shape != wanted.shape:
        return f"shape {found.shape}, expected {wanted.shape}"
    found = np.asarray(found, float)
    if np.isnan(found).any():
        return "NaN from finite input"
    with np.errstate(all="ignore"):
        largest = float(np.finfo(kind).max)
        over = np.isinf(found) & (np.abs(wanted) + error >= 0.99 * largest)
        over &= np.sign(found) == np.sign(wanted)
        same = (found == wanted) | over
        off = np.abs(found - wanted)
        wrong = ~same & ~(off <= error)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    allowed = np.broadcast_to(error, wanted.shape)[at]
    return f"entry {at} is {found[at]!r}, expected {wanted[at]!r} within {allowed:.3g}"
