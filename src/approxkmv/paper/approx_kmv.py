r"""Algorithm 3, ApproxKMV (Theorem 1.1): Gaussian kernel times any vector, within eps of its norm.

The product is split in three: columns where x is large are computed exactly (Lemma 3.2), so are the
keys near each query (Lemma 3.4), and all other keys are sampled (Lemma 3.5).

Every row whose sampling would cost as much as computing it is computed, and so is every density
structure. With the paper's constants that happens to all of them at any n one can run
(:mod:`approxkmv.paper.cost` says from which n on it would not). ``never_exact=True`` runs the
algorithm all the same: hash tables, level sets and draws in every row, at any n.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from approxkmv import _check
from approxkmv.kernel.frame import in_usual_units
from approxkmv.kernel.matrix import product
from approxkmv.paper.approx_light import Light, approx_light
from approxkmv.paper.density import DensityFactory, LevelSets
from approxkmv.paper.find_heavy import HeavyPairs, find_heavy
from approxkmv.paper.inputs import checked
from approxkmv.paper.parameters import Constants, PaperConstants, Parameters
from approxkmv.paper.preprocess import Preprocessed, preprocess
from approxkmv.paper.printed import printed_formulae

Points = npt.NDArray[np.floating]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ApproxKMVInfo:
    """What one run of Algorithm 3 did, in kernel evaluations unless said otherwise.

    Attributes
    ----------
    parameters : Parameters
        Every number of the run.
    heavy_x : int
        For the columns of large entries of x (Lemma 3.2).
    hash, scan : int
        Hash functions evaluated and pairs looked at while finding heavy keys (Lemma 3.4).
    density, density_hash : int
        For the density structures, and hash functions evaluated by them (Theorem 2.2).
    light : int
        For the light keys (Lemma 3.5).
    n_large, n_tiny, n_rest : int
        Sizes of the sets H_1, H_2 and T of Definition 3.1.
    n_heavy_pairs : int
        Pairs found heavy.
    n_buckets : int
        Non-empty buckets of x.
    n_exact_densities : int
        Buckets whose density was computed exactly.
    n_capped_rows, n_sampled_rows : int
        Rows whose light keys were computed exactly, and sampled.
    """

    parameters: Parameters
    heavy_x: int
    hash: int
    scan: int
    density: int
    density_hash: int
    light: int
    n_large: int
    n_tiny: int
    n_rest: int
    n_heavy_pairs: int
    n_buckets: int
    n_exact_densities: int
    n_capped_rows: int
    n_sampled_rows: int

    @property
    def pairs(self) -> int:
        """Kernel evaluations of all stages."""
        return self.heavy_x + self.scan + self.density + self.light

    def __str__(self) -> str:
        """One line per stage, and the total next to that of the exact product."""
        n_pairs = self.parameters.n_queries * self.parameters.n_keys
        lines = [
            f"entries of x   {self.n_large} large, {self.n_tiny} tiny, "
            f"{self.n_rest} in {self.n_buckets} buckets",
            f"large entries  {self.heavy_x} kernel evaluations",
            f"heavy keys     {self.scan}, {self.hash} hashes, {self.n_heavy_pairs} pairs found",
            f"densities      {self.density}, {self.density_hash} hashes, "
            f"{self.n_exact_densities} of {self.n_buckets} exact",
            f"light keys     {self.light}, {self.n_sampled_rows} rows sampled, "
            f"{self.n_capped_rows} exact",
            f"total          {self.pairs}, exact product {n_pairs}",
        ]
        return "\n".join(lines)


@overload
def approx_kmv(
    queries: Points,
    keys: Points,
    x: npt.NDArray[np.floating],
    *,
    bandwidth: float,
    eps: float | None = ...,
    delta: float = ...,
    constants: Constants | PaperConstants = ...,
    parameters: Parameters | None = ...,
    never_exact: bool = ...,
    density: DensityFactory = ...,
    as_printed: bool | Collection[str] = ...,
    rng: np.random.Generator | int | None = ...,
    n_threads: int | None = ...,
    return_info: Literal[False] = ...,
) -> Float: ...


@overload
def approx_kmv(
    queries: Points,
    keys: Points,
    x: npt.NDArray[np.floating],
    *,
    bandwidth: float,
    eps: float | None = ...,
    delta: float = ...,
    constants: Constants | PaperConstants = ...,
    parameters: Parameters | None = ...,
    never_exact: bool = ...,
    density: DensityFactory = ...,
    as_printed: bool | Collection[str] = ...,
    rng: np.random.Generator | int | None = ...,
    n_threads: int | None = ...,
    return_info: Literal[True],
) -> tuple[Float, ApproxKMVInfo]: ...


def approx_kmv(
    queries: Points,
    keys: Points,
    x: npt.NDArray[np.floating],
    *,
    bandwidth: float,
    eps: float | None = None,
    delta: float = 0.01,
    constants: Constants | PaperConstants = "practical",
    parameters: Parameters | None = None,
    never_exact: bool = False,
    density: DensityFactory = LevelSets.for_accuracy,
    as_printed: bool | Collection[str] = False,
    rng: np.random.Generator | int | None = None,
    n_threads: int | None = None,
    return_info: bool = False,
) -> Float | tuple[Float, ApproxKMVInfo]:
    r"""Approximate the product of a Gaussian kernel matrix with a vector of any signs.

    Theorem 1.1: :math:`\|Kx - y\|_2 \le \epsilon \|x\|_2` with probability at least
    :math:`1 - \delta`.

    Parameters
    ----------
    queries, keys : ndarray, shape (n_queries, n_dims) and (n_keys, n_dims)
        float32 or float64.
    x : ndarray, shape (n_keys,)
    bandwidth : float
        Sigma of the kernel :math:`e^{-\|q-k\|^2 / (2\sigma^2)}`.
    eps : float
        Error relative to the norm of x.
    delta : float
        Failure probability.
    constants : {"practical", "paper"} or PaperConstants
        Repetitions and medians as few as the lemmas' inequalities allow and heavy keys searched
        for the least time, or all numbers as in the paper, or the paper's with other constants.
    parameters : Parameters, optional
        All numbers at once, such as :meth:`.Parameters.balanced`, in place of ``eps``, ``delta``
        and ``constants``.
    never_exact : bool
        Sample every row, hash, and build every density structure, also where computing costs less.
        It usually does, by far.
    density : callable
        Builds the density structures of Theorem 2.2.
    as_printed : bool or set of str
        Formulae to run as the paper prints them, see :data:`approxkmv.paper.printed.PRINTED`.
        The guarantee then fails on some inputs.
    rng : numpy.random.Generator, int or None
    n_threads : int, optional
    return_info : bool
        Also return what was done.

    Returns
    -------
    y : ndarray of float64, shape (n_queries,)
    info : ApproxKMVInfo
        If ``return_info``.

    Examples
    --------
    >>> from approxkmv.exact import gaussian_kernel
    >>> rng = np.random.default_rng(0)
    >>> points = 5 * rng.standard_normal((300, 3))
    >>> x = rng.standard_normal(300)
    >>> y, info = approx_kmv(points, points, x, bandwidth=1.0, eps=0.1, rng=rng, return_info=True)
    >>> error = np.linalg.norm(gaussian_kernel(points, points, 1.0) @ x - y)
    >>> bool(error <= 0.1 * np.linalg.norm(x))
    True
    >>> info.n_large + info.n_tiny + info.n_rest
    300

    With every part of the algorithm alive, and its constants at 1:

    >>> ones = PaperConstants(tables=1, medians=1, repetitions=1, density_medians=1)
    >>> y, info = approx_kmv(points[:64], points[:64], x[:64], bandwidth=1.0, eps=2.0,
    ...                      constants=ones, never_exact=True, rng=rng, return_info=True)
    >>> info.n_sampled_rows, info.n_exact_densities, info.hash > 0, info.density_hash > 0
    (64, 0, True, True)
    """
    queries, keys, x = checked(queries, keys, x)
    bandwidth, rng = _check.positive(bandwidth, "bandwidth"), _check.generator(rng)
    queries, keys, bandwidth = in_usual_units(queries, keys, bandwidth)
    printed = printed_formulae(as_printed)
    n_queries, n_keys = len(queries), len(keys)
    if parameters is None:
        parameters = Parameters.printed(
            max(n_keys, 1),
            _check.positive(eps, "eps"),
            _check.probability(delta),
            n_queries=max(n_queries, 1),
            constants=constants,
        )
    elif eps is not None or (parameters.n_keys, parameters.n_queries) != (n_keys, n_queries):
        raise ValueError(
            "parameters take the place of eps, and must be for "
            f"n_keys={n_keys}, n_queries={n_queries}; got eps={eps} and parameters for "
            f"n_keys={parameters.n_keys}, n_queries={parameters.n_queries}."
        )
    if n_queries == 0 or n_keys == 0 or not np.any(x):
        nothing = _info(parameters)
        return (np.zeros(n_queries), nothing) if return_info else np.zeros(n_queries)

    split = preprocess(                                                                   # 3
        queries, keys, x, bandwidth=bandwidth, gamma=parameters.gamma, n_threads=n_threads
    )
    y_H, heavy_x = split.y_H, split.n_pairs
    if "E5" not in printed and not _negligible(split, n_queries, parameters.eps_inner):
        y_H = y_H + _columns(queries, keys, split, bandwidth, n_threads)
        heavy_x += n_queries * len(split.H_2)
    heavy = find_heavy(                                                                   # 4
        queries,
        keys,
        bandwidth=bandwidth,
        threshold=parameters.threshold,
        rng=rng,
        constants=parameters.constants,
        n_tables=parameters.n_tables,
        never_exact=never_exact,
        n_threads=n_threads,
    )
    light = approx_light(                                                                 # 5
        queries,
        keys,
        split.x,
        heavy,
        split.T,
        bandwidth=bandwidth,
        parameters=parameters,
        density=density,
        as_printed=printed,
        never_exact=never_exact,
        rng=rng,
        n_threads=n_threads,
    )
    counted = split.x.copy()
    if "E4" not in printed:
        counted[split.H] = 0.0  # large entries are in y_H already
    heavy_sum = np.bincount(heavy.rows, heavy.values * counted[heavy.indices], n_queries)
    y = split.norm_ratio * (light.z + y_H + heavy_sum)                                    # 6
    if return_info:
        return y, _info(parameters, split, heavy, light, heavy_x)
    return y


def _negligible(split: Preprocessed, n_queries: int, eps: float) -> bool:
    """Whether leaving the tiny entries out moves the product by at most eps norms of x (E5)."""
    tiny = float(np.abs(split.x[split.H_2]).sum())
    return math.sqrt(n_queries) * tiny <= eps * math.sqrt(len(split.x))


def _columns(
    queries: Points, keys: Points, split: Preprocessed, bandwidth: float, n_threads: int | None
) -> Float:
    """Exact product of the columns of the tiny entries, for the small n where they count."""
    columns = np.ascontiguousarray(keys[split.H_2])
    return np.asarray(
        product(queries, columns, split.x[split.H_2], bandwidth, n_threads=n_threads), np.float64
    )


def _info(
    parameters: Parameters,
    split: Preprocessed | None = None,
    heavy: HeavyPairs | None = None,
    light: Light | None = None,
    heavy_x: int = 0,
) -> ApproxKMVInfo:
    """Counters of a run; all zero for a product that is zero at sight."""
    if split is None or heavy is None or light is None:
        return ApproxKMVInfo(parameters, *([0] * 14))
    n_capped = int(light.capped.sum())
    return ApproxKMVInfo(
        parameters=parameters,
        heavy_x=heavy_x,
        hash=heavy.hashes,
        scan=heavy.scanned_pairs,
        density=light.density_evaluations,
        density_hash=light.density_hashes,
        light=light.kernel_evaluations,
        n_large=len(split.H_1),
        n_tiny=len(split.H_2),
        n_rest=len(split.T),
        n_heavy_pairs=len(heavy.indices),
        n_buckets=len(light.buckets),
        n_exact_densities=light.n_exact_densities,
        n_capped_rows=n_capped,
        n_sampled_rows=len(light.capped) - n_capped,
    )
