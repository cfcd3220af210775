r"""The stages of Algorithm 3 on their worst cases, run and counted: exponents that can be seen.

Each stage is run alone, at the printed thresholds and with every constant at 1, on points that make
its bound an equality up to logarithms. The count over the logarithms is then a power of n at sizes
one can run, and :func:`stage_count` returns both.

- Large entries (Lemma 3.2): :math:`n^{1-\gamma}` entries with :math:`x_j^2 = n^\gamma`; exponent
  :math:`2 - \gamma`.
- Heavy keys (Lemma 3.4): clusters of :math:`n^\alpha` equal points, so that every row has
  :math:`n^\alpha` heavy keys, met in every table; exponent :math:`1 + 2\alpha`.
- Light keys (Lemma 3.5): every query has :math:`n^\alpha` keys just below the threshold, all of
  them with :math:`x_j^2` just below :math:`n^\gamma`; exponent :math:`2 + \gamma - \alpha`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv.paper.approx_light import approx_light
from approxkmv.paper.density import DensityStructure, ExactDensity
from approxkmv.paper.find_heavy import find_heavy, scan_all
from approxkmv.paper.parameters import ALPHA, GAMMA, PaperConstants, Parameters
from approxkmv.paper.preprocess import preprocess

Float = npt.NDArray[np.float64]

ONES = PaperConstants(tables=1, medians=1, repetitions=1, density_medians=1)
_APART = 50.0  # bandwidths between clusters: the kernel is 0


@dataclass(frozen=True)
class StageCount:
    """Work of one stage at one n.

    Attributes
    ----------
    stage : str
    n : int
    counted : int
        Kernel evaluations, draws for the light keys.
    power : float
        The same over the factors of the bound that are no power of n: log n for heavy keys; for
        light ones 1/(1 - n^-beta) and the rounding of x^2 up to its bucket.
    exponent : float
        What the lemma says of ``power``.
    """

    stage: str
    n: int
    counted: int
    power: float
    exponent: float


STAGES = ("large entries", "heavy keys", "light keys")


def stage_count(stage: str, n: int, *, rng: int = 0) -> StageCount:
    """Run one of :data:`STAGES` at n keys and queries; cubes n make n^alpha a whole number.

    Examples
    --------
    >>> small, large = (stage_count("light keys", n) for n in (512, 1728))
    >>> round(small.exponent, 3)
    1.776
    >>> bool(abs(math.log(large.power / small.power) / math.log(1728 / 512) - 1.776) < 0.1)
    True
    """
    runs: dict[str, Callable[[int, np.random.Generator], StageCount]]
    runs = dict(zip(STAGES, (_large, _heavy, _light), strict=True))
    return runs[stage](n, np.random.default_rng(rng))


def _large(n: int, rng: np.random.Generator) -> StageCount:
    points = rng.standard_normal((n, 2))
    x = np.zeros(n)
    x[: math.floor(n ** (1 - GAMMA))] = n ** (GAMMA / 2) * (1 + 1e-9)
    x[-1] = math.sqrt(max(n - float(x @ x), 0.0))
    split = preprocess(points, points, x, bandwidth=1.0, gamma=GAMMA)
    return StageCount("large entries", n, split.n_pairs, split.n_pairs, 2 - GAMMA)


def _heavy(n: int, rng: np.random.Generator) -> StageCount:
    parameters = Parameters.printed(n, 1.0, constants=ONES)
    centre = _APART * (np.arange(n) // round(n**ALPHA))
    points = np.column_stack([centre, np.zeros(n)])
    found = find_heavy(
        points,
        points,
        bandwidth=1.0,
        threshold=parameters.threshold,
        n_tables=parameters.n_tables,
        never_exact=True,
        rng=rng,
    )
    count = found.scanned_pairs
    return StageCount("heavy keys", n, count, count / math.log(n), 1 + 2 * ALPHA)


def _light(n: int, rng: np.random.Generator) -> StageCount:
    # eps_inner is 1, and a mean of means is not repeated: one median
    parameters = replace(Parameters.printed(n, 2.0, constants=ONES), n_medians=1)
    queries, keys, x = _barely_light(n, parameters.threshold)
    light = approx_light(
        queries,
        keys,
        x,
        scan_all(queries, keys, bandwidth=1.0, threshold=parameters.threshold),
        np.flatnonzero(x),
        bandwidth=1.0,
        parameters=parameters,
        density=_exact,
        never_exact=True,
        rng=rng,
    )
    # t_i is divided by 1 - n^-beta (E8), which tends to 1 slowly, and x^2 is rounded up, by at most
    # 1 + eps_inner = 2, to its bucket
    rounding = float(light.buckets.weights[0] / x.max() ** 2)
    power = light.coins * (1 - parameters.density_error) / rounding
    return StageCount("light keys", n, light.coins, power, 2 + GAMMA - ALPHA)


def _barely_light(n: int, threshold: float) -> tuple[Float, Float, Float]:
    """Clusters of queries with their keys around them at 0.99 of the threshold; x only there."""
    each = round(n**ALPHA)
    n_clusters = max(1, math.floor(n ** (1 - GAMMA - ALPHA)))
    distance = math.sqrt(-2 * math.log(0.99 * threshold))
    angle = 2 * math.pi * np.arange(each) / each
    around = distance * np.column_stack([np.cos(angle), np.sin(angle)])
    centres = np.column_stack([_APART * np.arange(n_clusters), np.zeros(n_clusters)])
    queries = centres[np.arange(n) % n_clusters]
    keys = np.full((n, 2), -_APART)
    keys[: n_clusters * each] = (centres[:, None] + around).reshape(-1, 2)
    x = np.zeros(n)
    x[: n_clusters * each] = n ** (GAMMA / 2) * (1 - 1e-9)
    return queries, keys, x


def _exact(points: Any, *, bandwidth: float, floor: float, **_: Any) -> DensityStructure:
    return ExactDensity(points, bandwidth, floor)
