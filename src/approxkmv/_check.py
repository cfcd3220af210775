"""Every check of what a user hands in, once, at the public edge. Below it, arrays are trusted.

Messages name the argument, the rule and the value. Values and shapes are ValueError, kinds are
TypeError.
"""

from __future__ import annotations

import math
import reprlib
import sys
from operator import index as _index
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv._tensors import as_array
from approxkmv.functions import NAMED, KernelFunction
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array

Rng = int | np.random.Generator | None
# What the compiled loops count threads in.
_MOST_THREADS = 2**31 - 1
_COMPUTING = np.dtype(np.float32), np.dtype(np.float64)


def plain(value: Any, name: str) -> Any:
    """What was handed in, a tensor as an array; nothing that a plain array would lose silently.

    That is the mask of a masked array, and the gradient of a tensor.
    """
    _refuse_lazy(value, name)
    _refuse_sparse(value, name)
    value = as_array(value, name)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        at = tuple(int(i) for i in np.argwhere(np.ma.getmaskarray(value))[0])
        index = ", ".join(map(str, at))
        raise ValueError(f"{name} must have no masked entries, but {name}[{index}] is masked.")
    return value


def _refuse_lazy(value: Any, name: str) -> None:
    """NumPy would compute and load a Dask collection, however large, without a word."""
    if is_lazy(value):
        raise TypeError(
            f"{name} is a Dask collection, which is never loaded here: approxkmv.dask has the "
            f"functions for Dask arrays; {name}.compute() loads it."
        )


def is_lazy(value: Any) -> bool:
    """Whether this is a Dask collection."""
    lazy = sys.modules.get("dask.base")
    return lazy is not None and bool(lazy.is_dask_collection(value))


def _refuse_sparse(value: Any, name: str) -> None:
    """A sparse matrix of SciPy would become one Python object."""
    if type(value).__module__.startswith("scipy.sparse") and hasattr(value, "toarray"):
        raise TypeError(
            f"{name} must be a dense array, got a sparse {type(value).__name__}: "
            f"{name}.toarray() makes it dense."
        )


def points(value: Any, name: str) -> Array:
    """A two-dimensional real array in its computing type, C-contiguous, native byte order."""
    array = _real(value, name)
    if array.ndim != 2:
        raise ValueError(
            f"{name} must have two dimensions, one point per row, got shape {array.shape}."
        )
    return np.ascontiguousarray(array, dtype=computing_type(array.dtype))


def point_pair(queries: Any, keys: Any) -> tuple[Array, Array]:
    """Queries and keys of one floating type and one dimension."""
    same = keys is None or keys is queries
    q = points(queries, "queries")
    k = q if same else points(keys, "keys")
    if k.shape[1] != q.shape[1]:
        raise ValueError(f"keys must have {q.shape[1]} columns to match queries, got {k.shape[1]}.")
    common = np.result_type(q, k)
    return q.astype(common, copy=False), k.astype(common, copy=False)


def in_bandwidths(queries: Array, keys: Array, bandwidth: Any) -> tuple[Array, Array, float]:
    """Points and the bandwidth; with one for each coordinate, points divided by them, and 1.

    Points are divided around their mean, so that those far from the origin keep their digits.
    """
    given = plain(bandwidth, "bandwidth")
    if isinstance(given, str | bytes) or np.ndim(given) == 0:
        return queries, keys, positive(given, "bandwidth")
    widths = _real(given, "bandwidth").astype(np.float64)
    n_dims = queries.shape[1]
    if widths.shape != (n_dims,):
        raise ValueError(
            f"bandwidth must be a number, or one for each of the {n_dims} coordinates, "
            f"got shape {widths.shape}."
        )
    wrong = np.flatnonzero(~((widths > 0) & np.isfinite(widths)))
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(f"bandwidth must be positive, but bandwidth[{at}] is {widths[at]}.")
    with np.errstate(all="ignore"):
        centre = keys.mean(axis=0, dtype=np.float64) if len(keys) else np.zeros(n_dims)
        centre[~np.isfinite(centre)] = 0.0
        k = ((keys - centre) / widths).astype(keys.dtype)
        q = k if queries is keys else ((queries - centre) / widths).astype(queries.dtype)
    return q, k, 1.0


def kernel(value: Any) -> KernelFunction:
    """A kernel by its name, or one that has a parameter."""
    if isinstance(value, KernelFunction):
        return value
    if not isinstance(value, str):
        raise TypeError(
            f"kernel must be a name or approxkmv.RationalQuadratic(alpha=...), "
            f"got {type(value).__name__}."
        )
    return NAMED[one_of(value, "kernel", tuple(NAMED))]


def only_gaussian(function: KernelFunction, what: str) -> None:
    """Reject other kernels than the Gaussian where there is nothing for them."""
    if not function.factorises:
        raise ValueError(f"kernel must be 'gaussian' {what}, got {function.name!r}.")


def matrices(value: Any, name: str) -> Array:
    """A real array of at least two dimensions, a matrix for each index of the leading ones.

    C-contiguous, native byte order.
    """
    array = _real(value, name)
    if array.ndim < 2:
        raise ValueError(f"{name} must have shape (..., rows, columns), got shape {array.shape}.")
    return np.ascontiguousarray(array, dtype=computing_type(array.dtype))


def mask(value: Any, name: str = "attn_mask") -> npt.NDArray[Any]:
    """Truth values (True: counts), or numbers below infinity to be added to the scores."""
    array = np.asarray(plain(value, name))
    if array.dtype == np.bool_:
        return array
    array = _real(array, name)
    array = np.asarray(array, dtype=computing_type(array.dtype))
    # Both comparisons are False for NaN.
    if array.size and not array.max() < np.inf:
        at = tuple(int(i) for i in np.argwhere(~(array < np.inf))[0])
        index = ", ".join(map(str, at))
        raise ValueError(f"{name} must be below infinity, but {name}[{index}] is {array[at]}.")
    return array


def vector(value: Any, n_keys: int, name: str = "x", side: str = "key") -> Array:
    """One vector or a matrix of columns, with one row per key; any memory layout."""
    array = _real(value, name)
    if array.ndim not in (1, 2) or array.shape[0] != n_keys:
        raise ValueError(
            f"{name} must have one entry per {side}, shape ({n_keys},) or ({n_keys}, n_columns), "
            f"got shape {array.shape}."
        )
    return np.asarray(array, dtype=computing_type(array.dtype))


def weights(value: Any, n_keys: int) -> Array:
    """Non-negative weights, one per key."""
    array = vector(value, n_keys, "weights")
    if array.ndim != 1:
        raise ValueError(f"weights must have shape ({n_keys},), got shape {array.shape}.")
    if (array < 0).any():
        at = int(np.argmax(array < 0))
        raise ValueError(f"weights must not be negative, but weights[{at}] is {array[at]}.")
    return array


def log_weights(value: Any, n_keys: int) -> npt.NDArray[np.float64]:
    """Logarithms of weights, one per key, below infinity; minus infinity is a weight of 0."""
    array = np.asarray(vector(value, n_keys, "log_weights"), dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"log_weights must have shape ({n_keys},), got shape {array.shape}.")
    wrong = np.flatnonzero(~(array < np.inf))  # NaN, too
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(f"log_weights must be below infinity, but [{at}] is {array[at]}.")
    return array


def finite(array: Array, name: str, n_threads: int | None = 1) -> float:
    """Reject NaN and infinity, naming where the first one is; the largest absolute entry.

    By one thread, unless the caller knows how many it may use.
    """
    most = Compiled(n_threads).largest_magnitude(
        np.ascontiguousarray(array).reshape(-1),
    )
    if math.isfinite(most):
        return most
    at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
    index = ", ".join(map(str, at))
    raise ValueError(f"{name} must be finite, but {name}[{index}] is {array[at]}.")


def number(value: Any, name: str) -> float:
    """A finite number."""
    found = _number(value, name)
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a finite number, got {value!r}.")
    return found


def positive(value: Any, name: str) -> float:
    """A positive finite number."""
    number = _number(value, name)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}.")
    return number


def truth(value: Any, name: str) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def tolerance(value: Any, name: str = "eps") -> float:
    """An error tolerance: finite, not negative; 0 asks for the exact product."""
    number = _number(value, name)
    if not (number >= 0 and math.isfinite(number)):
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}.")
    return number


def probability(value: Any, name: str = "delta") -> float:
    """A probability strictly between 0 and 1."""
    number = _number(value, name)
    if not 0 < number < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}.")
    return number


def one_of(value: Any, name: str, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}.")
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def count(value: Any, name: str, *, most: int | None = None) -> int:
    """A whole number of at least 1, and of at most ``most``."""
    number = _integer(value, name)
    if number < 1 or (most is not None and number > most):
        rule = "at least 1" if most is None else f"between 1 and {most}"
        raise ValueError(f"{name} must be {rule}, got {_shown(number)}.")
    return number


def operator(value: Any, name: str = "K") -> None:
    """A linear operator: something with a shape, a dtype and products."""
    from scipy.sparse.linalg import LinearOperator

    if not isinstance(value, LinearOperator):
        raise TypeError(
            f"{name} must be a scipy.sparse.linalg.LinearOperator, such as "
            f"approxkmv.GaussianKernel, got {type(value).__name__}."
        )


def square(value: Any, name: str = "K") -> None:
    """A linear operator with as many rows as columns."""
    operator(value, name)
    if value.shape[0] != value.shape[1]:
        raise ValueError(f"{name} must be square, got shape {value.shape}.")


def threads(value: Any) -> int | None:
    """A positive number of threads, or None for the default."""
    number = None if value is None else count(value, "n_threads")
    if number is not None and number > _MOST_THREADS:
        raise ValueError(f"n_threads must be at most {_MOST_THREADS}, got {_shown(number)}.")
    return number


def generator(value: Rng) -> np.random.Generator:
    """A NumPy Generator from None, an integer seed or a Generator (SPEC 7)."""
    return np.random.default_rng(seed(value))


def seed(value: Rng) -> Rng:
    """What a Generator can be made from: None, an integer seed or a Generator (SPEC 7)."""
    if value is None or isinstance(value, np.random.Generator):
        return value
    number = _integer(value, "rng")
    if number < 0:
        raise ValueError(f"rng must be None, a Generator or an integer >= 0, got {_shown(number)}.")
    return number


def _real(value: Any, name: str) -> npt.NDArray[Any]:
    array = np.asarray(plain(value, name))
    if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}.")
    # The loops may not read numbers at odd addresses; a C-contiguous array may begin at one.
    return array if array.flags.aligned else array.copy()


def computing_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float32 for float32, half precision and small integers; float64 for the others."""
    if dtype in _COMPUTING:  # the usual case, without looking for a name
        return dtype
    if dtype.name == "bfloat16":
        return np.dtype(np.float32)
    wide = np.result_type(dtype.newbyteorder("="), np.float32)
    return np.dtype(np.float32 if wide == np.float32 else np.float64)


def _number(value: Any, name: str) -> float:
    if type(value) is float:
        return value
    if isinstance(value, bool | np.bool_ | str | bytes | complex) or np.ndim(value) != 0:
        hint = ""
        if name == "bandwidth" and np.ndim(value) == 1:
            hint = " Divide the points by it and use bandwidth=1"
        raise TypeError(f"{name} must be a number, got {type(value).__name__}.{hint}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}.") from None
    except OverflowError:
        raise ValueError(f"{name} must be below 1.8e308, got {_shown(value)}.") from None


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer, got bool.")
    try:
        return _index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}.") from None


def _shown(value: Any) -> str:
    """A value as messages name it; Python does not print integers of thousands of digits."""
    is_huge = isinstance(value, int) and value.bit_length() > 1000
    return f"about 2**{value.bit_length()}" if is_huge else reprlib.repr(value)
