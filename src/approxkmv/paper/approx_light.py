r"""Algorithm 2, ApproxLight: the light keys of every row by adaptive sampling (Lemma 3.5).

For x scaled to :math:`\|x\|_2^2 = n`, the sum :math:`\sum_{j \in T \setminus S_i} K_{ij} x_j` of
row :math:`i` is estimated from keys drawn uniformly. The number of draws is in proportion to
:math:`s_i`, an over-estimate of :math:`\sum_{j \in T \setminus S_i} x_j^2 K_{ij}^2` that comes from
kernel density structures on buckets of equal :math:`x_j^2`.

The corrected readings E4 and E6 to E10, E15 and E17 of docs/errata.md are the default. Whatever
:math:`S_i` holds, the keys outside it are sampled, so a heavy key that was not found costs draws
and not accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from approxkmv.kernel.matrix import product
from approxkmv.loops.compiled import Compiled
from approxkmv.paper.buckets import Buckets, geometric_buckets
from approxkmv.paper.density import DensityFactory, LevelSets, squared_kernel_bandwidth
from approxkmv.paper.find_heavy import HeavyPairs
from approxkmv.paper.median_of_means import MedianOfMeans
from approxkmv.paper.parameters import CHEBYSHEV_FAILURE, Parameters, n_medians_for
from approxkmv.paper.printed import printed_formulae

Points = npt.NDArray[np.floating]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

# Repetitions held in memory at a time: about 60 MB of pairs, and a pause for Ctrl-C every 0.1 s.
BLOCK = 2**20


@dataclass(frozen=True, eq=False)
class Light:
    """Outcome of Algorithm 2.

    Attributes
    ----------
    z : ndarray, shape (n_queries,)
        Estimates of the light sums.
    t, s : ndarray, shape (n_queries,)
        Second moments of lines 6 and 7.
    repetitions : ndarray of int, shape (n_queries,)
        Repetitions in one mean of line 9.
    n_groups : int
        Means whose median is taken.
    capped : ndarray of bool, shape (n_queries,)
        Rows computed exactly because sampling would have cost as much (E15).
    buckets : Buckets
        Buckets of the squared entries of x in T.
    kernel_evaluations : int
        For lines 8 to 10.
    coins : int
        Random choices made on line 8: one per repetition, or one per key and repetition as printed.
    density_evaluations, density_hashes : int
        Kernel evaluations and hashes of the structures of line 5.
    n_exact_densities : int
        Structures replaced by the exact density because they would have cost as much.
    """

    z: Float
    t: Float
    s: Float
    repetitions: Index
    n_groups: int
    capped: npt.NDArray[np.bool_]
    buckets: Buckets
    kernel_evaluations: int
    coins: int
    density_evaluations: int
    density_hashes: int
    n_exact_densities: int


@dataclass(frozen=True, eq=False)
class _SecondMoments:
    t: Float
    unseen: float
    buckets: Buckets
    evaluations: int
    hashes: int
    n_exact: int


def approx_light(
    queries: Points,
    keys: Points,
    x: Float,
    heavy: HeavyPairs,
    T: Index,
    *,
    bandwidth: float,
    parameters: Parameters,
    density: DensityFactory = LevelSets.for_accuracy,
    as_printed: bool | Collection[str] = False,
    never_exact: bool = False,
    rng: np.random.Generator,
    n_threads: int | None = None,
) -> Light:
    r"""Estimate the sum over light keys of every row.

    Lemma 3.5: with the failure probability of ``parameters``,
    :math:`|z_i - \sum_{j \in T \setminus S_i} K_{ij} x_j| \le \epsilon \sqrt{n / n_{queries}}` for
    all rows at once, where :math:`\epsilon` is ``parameters.eps_inner`` (E17 for the root).

    Parameters
    ----------
    queries, keys : ndarray, shape (n_queries, n_dims) and (n_keys, n_dims)
    x : ndarray, shape (n_keys,)
        Scaled so that its squared norm is n_keys.
    heavy : HeavyPairs
        The sets S_i, as found by Algorithm 1.
    T : ndarray of int
        Keys whose entry of x is neither large nor tiny.
    bandwidth : float
    parameters : Parameters
    density : callable
        Builds the structures of line 5.
    as_printed : bool or set of str
        Formulae to run as the paper prints them, see :data:`approxkmv.paper.printed.PRINTED`.
    never_exact : bool
        Sample rows and build structures also where computing them costs less.
    rng : numpy.random.Generator
    n_threads : int, optional

    Returns
    -------
    Light

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.paper.find_heavy import find_heavy
    >>> from approxkmv.paper.parameters import Parameters
    >>> rng = np.random.default_rng(0)
    >>> points = 8 * rng.standard_normal((200, 2))
    >>> parameters = Parameters.printed(200, eps=0.5)
    >>> heavy = find_heavy(points, points, bandwidth=1.0, threshold=parameters.threshold,
    ...                    rng=rng)
    >>> everything = np.arange(200)
    >>> light = approx_light(points, points, np.ones(200), heavy, everything, bandwidth=1.0,
    ...                      parameters=parameters, rng=rng)
    >>> light.z.shape
    (200,)
    """
    printed = printed_formulae(as_printed)
    n, n_queries = len(keys), len(queries)
    in_T = np.zeros(n, dtype=bool)
    in_T[T] = True
    row, key, value = heavy.rows, heavy.indices, heavy.values
    if "E4" not in printed:
        kept = in_T[key]
        row, key, value = row[kept], key[kept], value[kept]
    n_heavy = np.bincount(row[in_T[key]], minlength=n_queries)

    moments = _second_moments(                                                            # 3, 4, 5
        queries, keys, x, T, bandwidth, parameters, density, printed, never_exact, rng, n_threads
    )
    square = x**2
    if "E7" not in printed:
        square[T] = moments.buckets.rounded
    subtracted = np.bincount(row, square[key] * value**2, minlength=n_queries)
    if "E8" in printed:
        s = moments.t - subtracted + parameters.density_error * moments.t                 # 7
    else:
        # t is the largest second moment its structures allow, so s cannot be too small
        s = np.maximum(moments.t - subtracted, 0.0)                                       # 7
    if "E9" not in printed:
        s = s + moments.unseen

    n_groups = parameters.n_medians
    repetitions = np.array([parameters.n_repetitions(s_i) for s_i in s], dtype=np.int64)  # 9
    if "E15" in printed:
        repetitions[s <= 0] = 0
        capped = np.zeros(n_queries, dtype=bool)
    elif never_exact:
        capped = np.zeros(n_queries, dtype=bool)
    else:
        capped = repetitions * n_groups >= len(T) - n_heavy
    flat_heavy = np.unique(row * n + key)
    z, evaluations, coins = _median_of_means(                                             # 8, 9, 10
        queries, keys, x, in_T, flat_heavy, np.where(capped, 0, repetitions), n_groups,
        bandwidth, _coin_per_key if "E15" in printed else _one_key, rng, n_threads,
    )
    exact = np.flatnonzero(capped)
    if len(exact):
        heavy_sum = np.bincount(row, np.where(in_T[key], x[key] * value, 0.0), minlength=n_queries)
        whole = product(
            np.ascontiguousarray(queries[exact]),
            np.ascontiguousarray(keys[T]),
            x[T],
            bandwidth,
            n_threads=n_threads,
        )
        z[exact] = whole - heavy_sum[exact]
        evaluations += len(exact) * len(T)
    return Light(                                                                         # 12
        z=z,
        t=moments.t,
        s=s,
        repetitions=repetitions,
        n_groups=n_groups,
        capped=capped,
        buckets=moments.buckets,
        kernel_evaluations=evaluations,
        coins=coins,
        density_evaluations=moments.evaluations,
        density_hashes=moments.hashes,
        n_exact_densities=moments.n_exact,
    )


def _second_moments(
    queries: Points,
    keys: Points,
    x: Float,
    T: Index,
    bandwidth: float,
    parameters: Parameters,
    density: DensityFactory,
    printed: frozenset[str],
    never_exact: bool,
    rng: np.random.Generator,
    n_threads: int | None,
) -> _SecondMoments:
    """Upper ends of the second moments over T, and the most a row may have below the floors."""
    buckets = geometric_buckets(                                                          # 3, 4
        x[T] ** 2, 1 + parameters.eps_inner, closed="E10" in printed
    )
    sizes = _density_sizes(parameters, len(buckets))
    if never_exact:
        density = partial(density, never_exact=True)
    t = np.zeros(len(queries))
    unseen = 0.0
    evaluations = hashes = n_exact = 0
    for weight, members in zip(buckets.weights, buckets.members, strict=True):
        structure = density(                                                              # 5
            np.ascontiguousarray(keys[T[members]]),
            bandwidth=squared_kernel_bandwidth(bandwidth),
            floor=parameters.density_floor(weight, len(members)),
            relative_error=parameters.density_error,
            sizes=sizes,
            rng=rng,
        )
        answer = structure.estimate(queries, n_threads=n_threads)                         # 6, 7
        total = 1.0 if "E6" in printed else weight * len(members)
        if "E8" in printed:
            t += total * answer.values
        elif parameters.constants == "paper":
            t += total * answer.values / (1 - parameters.density_error)
        else:
            t += total * answer.values / (1 - structure.relative_error)
        unseen += weight * len(members) * structure.floor
        evaluations += answer.kernel_evaluations
        hashes += answer.hashes + structure.build_hashes
        n_exact += structure.relative_error == 0
    return _SecondMoments(t, unseen, buckets, evaluations, hashes, n_exact)


def _density_sizes(parameters: Parameters, n_buckets: int) -> MedianOfMeans:
    """Sizes of the structures for their failure probability (line 5)."""
    if parameters.constants == "paper":
        n_groups = parameters.density_medians or n_medians_for(
            parameters.density_failure, CHEBYSHEV_FAILURE
        )
        return MedianOfMeans(parameters.single_failure, n_groups)
    return MedianOfMeans.cheapest(parameters.density_failure / max(n_buckets, 1))


Draw = Callable[[np.random.Generator, int, int], tuple[Index, Index]]


def _one_key(rng: np.random.Generator, n: int, count: int) -> tuple[Index, Index]:
    """One uniform key for each of ``count`` repetitions (E15)."""
    return np.arange(count), rng.integers(n, size=count)


def _coin_per_key(rng: np.random.Generator, n: int, count: int) -> tuple[Index, Index]:
    """Every key with probability 1/n in each of ``count`` repetitions, as printed.

    Successes of independent coins are geometric gaps apart, which spares flipping them here.
    """
    successes = np.empty(0, np.int64)
    last = -1
    parts = []
    while last < count * n:
        gaps = rng.geometric(1 / n, size=count + 64)
        successes = last + np.cumsum(gaps)
        last = int(successes[-1])
        parts.append(successes)
    flips = np.concatenate(parts)
    repetition, key = np.divmod(flips[flips < count * n], n)
    return repetition, key


def _median_of_means(
    queries: Points,
    keys: Points,
    x: Float,
    in_T: npt.NDArray[np.bool_],
    flat_heavy: Index,
    repetitions: Index,
    n_groups: int,
    bandwidth: float,
    draw: Draw,
    rng: np.random.Generator,
    n_threads: int | None,
) -> tuple[Float, int, int]:
    """Lines 8 to 10 for all rows at once, in blocks of repetitions.

    Repetitions of all rows and groups stand in one line; a block of them is drawn, evaluated and
    added to the sums of its rows and groups.
    """
    n, n_queries = len(keys), len(queries)
    end = np.cumsum(repetitions * n_groups)
    total = int(end[-1]) if len(end) else 0
    sums = np.zeros(n_queries * n_groups)
    evaluations = coins = 0
    for first in range(0, total, BLOCK):
        count = min(BLOCK, total - first)
        drawn, key = draw(rng, n, count)                                                  # 8
        coins += count * (n if draw is _coin_per_key else 1)
        row = np.searchsorted(end, first + drawn, side="right")
        light = in_T[key] & ~_contains(flat_heavy, row * n + key)
        row, key, drawn = row[light], key[light], drawn[light]
        kernel = Compiled(n_threads).pair_kernel(queries, keys, row, key, bandwidth, )
        before = end[row] - repetitions[row] * n_groups
        group = (first + drawn - before) // repetitions[row]
        sums += np.bincount(
            row * n_groups + group, n * x[key] * kernel, minlength=n_queries * n_groups
        )
        evaluations += len(row)
    means = sums.reshape(n_queries, n_groups) / np.maximum(repetitions, 1)[:, None]       # 9
    return np.median(means, axis=1), evaluations, coins                                   # 10


def _contains(ascending: Index, wanted: Index) -> npt.NDArray[np.bool_]:
    """Which of the wanted numbers are in an ascending list."""
    if len(ascending) == 0:
        return np.zeros(len(wanted), dtype=bool)
    position = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return np.asarray(ascending[position] == wanted)
