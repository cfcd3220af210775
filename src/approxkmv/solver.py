"""``solve``: (K + noise I) x = b by Krylov iterations, with a residual that can be trusted.

Iterations run on the operator they are given, which may be approximate. Their own residual says
how well *that* operator's system is solved. So it is never reported: after each run of the
iterations the residual is computed anew, by an exact product of higher precision, and what is left
is solved for again. Where that no longer helps, the noise of the operator is reached.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from approxkmv import _check
from approxkmv._check import Rng
from approxkmv._deadline import Deadline, OutOfTime
from approxkmv._shifted import ShiftedOperator
from approxkmv._shown import as_html, as_json
from approxkmv._threads import default_threads
from approxkmv._warnings import AccuracyWarning
from approxkmv.engine.survey.ranks import values_among
from approxkmv.kernel.scaling import scaled_columns
from approxkmv.krylov import conjugate_gradients, minres
from approxkmv.loops.types import Array, Float64, Index
from approxkmv.nystroem import Preconditioner, pivoted_cholesky
from approxkmv.operator import GaussianKernel

if TYPE_CHECKING:
    from typing_extensions import Unpack

METHODS = ("cg", "minres")
PRECONDITIONERS = ("nystroem", "none")

# Eight times the root of n. Robot arm, 20,000 points, float32, d = 8, 16, 32, widths 0.5, 0.5, 0.7
# roots of d, alpha 0.01, 0.05, 0.05, one run each on two threads of an AMD EPYC with AVX2 that was
# not idle: 14, 15, 26 s; four times 26, 17, 35 s; sixteen times 13, 17, 29 s. Factor and products
# both grow as n^2.
_RANK_PER_ROOT = 8
# A refinement that does not at least halve the residual will not reach the tolerance either.
_PROGRESS = 0.5
# Inner runs aim below the tolerance, because the operator's own residual flatters.
_INNER = 0.5
# With a limit of time: the share of it in which columns are picked for the preconditioner (to make
# it of them takes about as long again), the shares kept for the last residual and for an estimate
# of it, and the rows from which it is estimated.
_FOR_COLUMNS, _FOR_RESIDUAL, _FOR_ROWS = 0.12, 0.2, 0.05
_FEWEST_ROWS, _MOST_ROWS = 32, 512
# A noise above two to this is divided out of the system.
_USUAL_EXPONENT = 64
# Seconds for each point that a block of columns takes: picking is not begun with less.
_PER_POINT = 1e-6

Step = Callable[[int, float], object]


@dataclass(frozen=True)
class SolveInfo:
    """Report of one solve.

    Attributes
    ----------
    residual : float
        ``|b - (K + noise I) x| / |b|``, the largest of the columns, from a product that does not
        share the operator's errors (see ``independent``).
    converged : bool
        Whether ``residual <= tol``.
    reason : str
        Why it stopped, in a sentence.
    n_iter : int
        Iterations, all refinements together.
    n_refinements : int
        How often what was left was solved for again.
    history : tuple of float
        The operator's own relative residual after each iteration (largest column): how it went, not
        how good it is.
    rank : int
        Columns in the preconditioner.
    independent : bool
        False if the operator's points are not known, so that the residual could only be computed
        with the operator itself.
    seconds : mapping
        Wall-clock seconds of each stage.
    residual_rows : int or None
        Random rows from which ``residual`` was estimated, because ``max_seconds`` was over; 0 if it
        is the operator's own. None where it was computed. An estimated one never counts as
        converged.
    """

    residual: float
    converged: bool
    reason: str
    n_iter: int
    n_refinements: int
    history: tuple[float, ...]
    rank: int
    independent: bool
    seconds: Mapping[str, float]
    residual_rows: int | None = None

    def to_json(self) -> str:
        """Everything as JSON; null for what is not a finite number."""
        return as_json(self)

    def _facts(self) -> dict[str, str]:
        spent = ", ".join(f"{name} {value:.3g} s" for name, value in self.seconds.items())
        kind = "" if self.independent else " (by the operator itself)"
        if self.residual_rows:
            kind = f" (estimated from {self.residual_rows} rows)"
        return {
            "residual": f"{self.residual:.3g} of |b|{kind}",
            "iterations": f"{self.n_iter}, refinements {self.n_refinements}, "
            f"preconditioner of rank {self.rank}",
            "time": spent,
        }

    def __str__(self) -> str:
        facts = [f"  {name:<13} {fact}" for name, fact in self._facts().items()]
        return "\n".join([f"solve: {self.reason}", *facts])

    def _repr_html_(self) -> str:
        return as_html(f"solve: {self.reason}", self._facts())


class _Options(TypedDict, total=False):
    """Arguments of :func:`solve` that have no say in what it returns."""

    tol: float
    max_iter: int
    method: str
    preconditioner: str | None
    rank: int | None
    rng: Rng
    callback: Step | None
    max_seconds: float | None


@overload
def solve(
    K: LinearOperator,
    b: npt.ArrayLike,
    *,
    noise: float | npt.ArrayLike | None = ...,
    return_info: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Float64: ...
@overload
def solve(
    K: LinearOperator,
    b: npt.ArrayLike,
    *,
    noise: float | npt.ArrayLike | None = ...,
    return_info: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Float64, SolveInfo]: ...
def solve(
    K: LinearOperator,
    b: npt.ArrayLike,
    *,
    noise: float | npt.ArrayLike | None = None,
    tol: float = 1e-5,
    max_iter: int = 1000,
    method: str = "cg",
    preconditioner: str | None = "nystroem",
    rank: int | None = None,
    rng: Rng = None,
    callback: Step | None = None,
    max_seconds: float | None = None,
    return_info: bool = False,
) -> Float64 | tuple[Float64, SolveInfo]:
    r"""Solve :math:`(K + \mathrm{noise}\,I)\,x = b` without storing K.

    Parameters
    ----------
    K : GaussianKernel or LinearOperator, shape (n, n)
        Symmetric and, up to its error or with ``method="minres"``, positive semidefinite, with
        equal entries on the diagonal. Or ``K + lam * I``, with the noise in it.
    b : array_like, shape (n,) or (n, n_columns)
        Columns are solved together, which costs little more than one.
    noise : float or array_like, shape (n,), or None
        Positive; an array stands for a diagonal matrix. None only where ``K`` has it.
    tol : float
        Residual allowed, relative to the length of b, for every column.
    max_iter : int
        Most iterations, each of which is one product with K.
    method : {"cg", "minres"}
        Conjugate gradients, or MINRES: for a noise so small, or products so rough, that
        ``K + noise I`` as the operator multiplies it may not be positive definite. MINRES takes
        as many products and about twice the memory.
    preconditioner : {"nystroem", None}
        Low-rank approximation of K, from ``rank`` of its columns.
    rank : int or None
        None: eight times the root of n.
    rng : None, int or numpy.random.Generator
        Seed of the columns picked.
    callback : callable or None
        Progress: called as ``callback(n_iter, residual)`` after each iteration with the
        operator's own residual.
    max_seconds : float or None
        Time after which the best x so far is returned, with a warning. The preconditioner gets
        fewer columns, products of a :class:`~approxkmv.GaussianKernel` are broken off, and the last
        residual is estimated from random rows if there is no time for all. On an otherwise idle
        machine it takes at most 1.3 times as long and 0.1 s more, unless one product of another
        operator takes longer.
    return_info : bool
        Return ``(x, info)``.

    Returns
    -------
    x : ndarray, float64, of the shape of b
    info : SolveInfo
        Only with ``return_info``.

    Warns
    -----
    AccuracyWarning
        Where the residual, computed independently of the operator, stayed above ``tol``: at the
        noise floor of an approximate operator or of its floating type, or after ``max_iter`` or
        ``max_seconds``.

    Notes
    -----
    For a :class:`~approxkmv.GaussianKernel` the residual is computed exactly, in double precision.
    For any other operator only its own product is at hand, and the report says so.

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> rng = np.random.default_rng(0)
    >>> points = rng.standard_normal((500, 4))
    >>> b = np.sin(points[:, 0])
    >>> K = akmv.GaussianKernel(points, bandwidth=1.5)
    >>> x, info = akmv.solve(K, b, noise=0.1, rng=0, return_info=True)
    >>> info.converged, bool(info.residual <= 1e-5)
    (True, True)
    >>> bool(np.linalg.norm(K @ x + 0.1 * x - b) <= 1e-5 * np.linalg.norm(b))
    True
    """
    limit = math.inf if max_seconds is None else _check.positive(max_seconds, "max_seconds")
    deadline = Deadline(limit)
    if isinstance(K, ShiftedOperator):
        if noise is not None:
            raise ValueError("noise must be None where K is K + lam * I, which has it already.")
        K, noise = K.operator, K.noise
    if not isinstance(K, LinearOperator):
        raise TypeError(f"K must be a LinearOperator, got {type(K).__name__}.")
    n = K.shape[0]
    if K.shape != (n, n):
        raise ValueError(f"K must be square, got shape {K.shape}.")
    if isinstance(K, GaussianKernel) and K._kernel.queries is not K._kernel.keys:
        raise ValueError("K must be symmetric: a GaussianKernel with keys=None.")
    right = _check.vector(b, n, "b", "row").astype(np.float64)
    _check.finite(right, "b")
    if noise is None:
        raise TypeError("noise is missing: solve(K, b, noise=...) or solve(K + lam * I, b).")
    diagonal = _noise(noise, n)
    tol = _check.positive(tol, "tol")
    max_iter = _check.count(max_iter, "max_iter")
    method = _check.one_of(method, "method", METHODS)
    kind = _check.one_of(preconditioner or "none", "preconditioner", PRECONDITIONERS)
    rank = min(n, _check.count(rank, "rank") if rank is not None else _default_rank(n))
    generator = _check.generator(rng)

    start = time.perf_counter()
    scaled, exponents = scaled_columns(right, right.dtype)
    columns = scaled.astype(np.float64, copy=False)
    scale = _scale(diagonal)
    wanted = rank if kind == "nystroem" else 0
    precondition = _preconditioner(
        K, diagonal, scale, wanted, generator, deadline.part(_FOR_COLUMNS)
    )
    prepared = time.perf_counter()
    run = _Run(K, diagonal, scale, precondition, method, callback, deadline)
    # Of a singular K with next to no noise iterates may overflow. Such a one is not taken.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        x, residual, reason, n_rows = _refined(run, columns, tol, max_iter, generator)
    x = _unscaled(x, exponents - scale)
    done = time.perf_counter()
    converged = residual <= tol and n_rows is None
    if not converged:
        compared = "above" if residual > tol else "but not for certain below"
        warnings.warn(
            f"The residual is {residual:.2g} of |b|, {compared} tol={tol:g}: {reason}.",
            AccuracyWarning,
            stacklevel=2,
        )
    if deadline.broken:
        warnings.warn(
            deadline.how_late,
            AccuracyWarning,
            stacklevel=2,
        )
    answer = x[:, 0] if right.ndim == 1 else x
    if not return_info:
        return answer
    return answer, SolveInfo(
        residual=residual,
        converged=converged,
        reason=reason,
        n_iter=len(run.history),
        n_refinements=run.n_runs - 1,
        history=tuple(run.history),
        rank=precondition.rank,
        independent=isinstance(K, GaussianKernel),
        seconds={"preconditioner": prepared - start, "iterations": done - prepared},
        residual_rows=n_rows,
    )


def _refined(
    run: _Run, b: Float64, tol: float, max_iter: int, rng: np.random.Generator
) -> tuple[Float64, float, str, int | None]:
    """Iterate, compute the residual independently, and solve for what is left.

    Returns x, its residual, why it stopped, and the rows from which the residual was estimated.
    """
    out_of_time = f"stopped after max_seconds={run.deadline.max_seconds:g}"
    product: Callable[[Float64], Array] | None = None
    norms = np.linalg.norm(b, axis=0)
    norms[norms == 0] = 1.0
    x, left = np.zeros_like(b), b
    residual = float((np.linalg.norm(left, axis=0) / norms).max(initial=0.0))
    while residual > tol:
        if len(run.history) >= max_iter:
            return x, residual, f"stopped after max_iter={max_iter} iterations", None
        if run.deadline.keeping(run.kept).left() <= 0:
            return x, residual, out_of_time, None
        inner = _INNER * tol * norms / np.maximum(np.linalg.norm(left, axis=0), tol * norms)
        trial = x + run.solve(left, inner, max_iter - len(run.history), residual)
        try:
            product = product or _independent(run.K, run.deadline.keeping(run.kept_for_rows))
            left_now = b - (run.scaled(product(trial)) + run.noise * trial)
        except OutOfTime:
            estimate, n_rows = _estimated(run, trial, b, norms, rng)
            if estimate < residual:
                x, residual = trial, estimate
                return x, residual, f"{out_of_time}, the residual is an estimate", n_rows
            return x, residual, out_of_time, None
        before, now = residual, float((np.linalg.norm(left_now, axis=0) / norms).max())
        if now < before:
            x, left, residual = trial, left_now, now
        if residual > tol and not now <= _PROGRESS * before and len(run.history) < max_iter:
            if run.deadline.keeping(run.kept).left() <= 0:
                return x, residual, out_of_time, None
            return x, residual, "stopped at the noise floor of the operator", None
    return x, residual, "the residual is within the tolerance", None


def _estimated(
    run: _Run, x: Float64, b: Float64, norms: Float64, rng: np.random.Generator
) -> tuple[float, int]:
    """Estimate of the largest relative residual from random rows; and how many.

    Of another operator than ours rows cannot be had: the residual is what its iterations said.
    """
    if not isinstance(run.K, GaussianKernel):
        return (run.history[-1] if run.history else 1.0), 0
    kernel = run.K._kernel.checked(None)
    n = len(kernel.queries)
    columns, exponents = scaled_columns(x, kernel.keys.dtype)
    squares, n_rows = np.zeros(x.shape[1]), 0
    order = rng.permutation(n)[:_MOST_ROWS]
    wanted = _FEWEST_ROWS
    while wanted > 0:
        rows = order[n_rows : n_rows + wanted]
        start = run.deadline.now()
        y = np.ldexp(kernel.at_queries(rows).product(columns).out.astype(np.float64), exponents)
        squares += np.square(b[rows] - run.scaled(y) - run.noise[rows] * x[rows]).sum(axis=0)
        n_rows += len(rows)
        each = max(run.deadline.now() - start, 1e-9) / max(len(rows), 1)
        wanted = min(len(order) - n_rows, int(max(run.deadline.left(), 0.0) / each / 2))
        if wanted < _FEWEST_ROWS:
            break
    return float((np.sqrt(n / n_rows * squares) / norms).max()), n_rows


class _Run:
    """The iterations: operator, noise, preconditioner, method, and how it went.

    The matrix is ``(K + diag(noise)) / 2^scale``.
    """

    def __init__(
        self,
        K: LinearOperator,
        noise: Float64,
        scale: int,
        precondition: Preconditioner,
        method: str,
        callback: Step | None,
        deadline: Deadline,
    ) -> None:
        self.K, self.noise, self.scale = K, np.ldexp(noise, -scale)[:, None], scale
        self.precondition = precondition
        self.deadline = deadline
        # A limit of time is kept by breaking off: some of it is left for the residual.
        seconds = deadline.max_seconds if deadline else 0.0
        self.kept, self.kept_for_rows = _FOR_RESIDUAL * seconds, _FOR_ROWS * seconds
        self.ends = deadline.keeping(self.kept)
        self.operator = K
        if deadline and isinstance(K, GaussianKernel):
            self.operator = K._checked(self.ends.check)
        self.iterate = minres if method == "minres" else conjugate_gradients
        self.callback = callback
        self.history: list[float] = []
        self.n_runs = 0

    def solve(self, b: Float64, tol: Float64, max_iter: int, scale: float) -> Float64:
        """Columns of x with residuals below ``tol`` times those of b, by the operator."""
        self.n_runs += 1
        lengths = np.linalg.norm(b, axis=0)
        longest = float(lengths.max())

        def step(norms: Float64) -> None:
            self.history.append(scale * float(norms.max()) / longest)
            if self.callback is not None:
                self.callback(len(self.history), self.history[-1])
            self.ends.check()

        return self.iterate(self._product, self.precondition, b, tol * lengths, max_iter, step)

    def _product(self, v: Float64) -> Float64:
        return self.scaled(np.asarray(self.operator @ v, dtype=np.float64)) + self.noise * v

    def scaled(self, y: Array) -> Array:
        """Products with K as the system has them."""
        return np.ldexp(y, -self.scale) if self.scale else y


def _scale(noise: Float64) -> int:
    """The exponent of what the whole system is divided by, so that no huge noise overflows."""
    exponent = math.frexp(float(noise.max(initial=0.0)))[1]
    return exponent + exponent % 2 if exponent > _USUAL_EXPONENT else 0


def _unscaled(x: Float64, exponents: npt.NDArray[np.intc]) -> Float64:
    """The solution of the system given, from that of the scaled one."""
    with np.errstate(over="ignore"):
        answer = np.ldexp(x, exponents)
    if not np.isfinite(answer).all():
        raise ValueError("b must be so small next to noise that x is finite, but x overflows.")
    return np.asarray(answer)


def _preconditioner(
    K: LinearOperator,
    noise: Float64,
    scale: int,
    rank: int,
    rng: np.random.Generator,
    deadline: Deadline,
) -> Preconditioner:
    n = K.shape[0]
    noise = np.ldexp(noise, -scale)
    entries: Callable[[Index], Float64] | None = None
    dtype: np.dtype[Any] = np.dtype(np.float64)
    threads = default_threads()
    if rank == 0:
        return Preconditioner(np.zeros((n, 0)), noise)
    if isinstance(K, GaussianKernel):
        matrix = K._kernel.checked(None)
        points = matrix.queries

        def columns(j: Index) -> Array:
            unit = np.eye(len(j), dtype=points.dtype)
            return matrix.between(points, points[j]).product(unit).out

        def values(j: Index) -> Float64:
            return values_among(matrix, points[j])

        diagonal, entries, dtype = np.ones(n), values, points.dtype
        threads = K._kernel.backend.threads
    else:

        def columns(j: Index) -> Array:
            unit = np.zeros((n, len(j)))
            unit[j, np.arange(len(j))] = 1.0
            return np.asarray(K @ unit)

        diagonal = np.full(n, float(columns(np.zeros(1, np.int64))[0, 0]))
    factor = pivoted_cholesky(
        columns,
        diagonal,
        rank,
        rng,
        lambda: deadline.left() <= _PER_POINT * n,
        entries=entries,
        dtype=dtype,
        n_threads=threads,
    )
    return Preconditioner(np.ldexp(factor, -scale // 2), noise)


def _independent(K: LinearOperator, deadline: Deadline) -> Callable[[Float64], Array]:
    """A product that does not share the operator's errors, where its points are known."""
    deadline.check()
    if not isinstance(K, GaussianKernel):
        return lambda x: np.asarray(K @ x)
    points = K._kernel.queries.astype(np.float64)
    kernel = K._kernel.checked(None).between(points, points).checked(deadline.polled)
    return lambda x: kernel.product(np.ascontiguousarray(x)).out


def _noise(noise: Any, n: int) -> Float64:
    if np.ndim(noise) == 0:
        return np.full(n, _check.positive(noise, "noise"))
    array = _check.vector(noise, n, "noise", "row").astype(np.float64)
    if array.ndim != 1:
        raise ValueError(f"noise must be a number or have shape ({n},), got shape {array.shape}.")
    _check.finite(array, "noise")
    if not (array > 0).all():
        at = int(np.argmax(~(array > 0)))
        raise ValueError(f"noise must be positive, but noise[{at}] is {array[at]}.")
    return array


def _default_rank(n: int) -> int:
    return math.ceil(_RANK_PER_ROOT * math.sqrt(n))
