r"""Median of means: how many groups of how many repetitions.

A mean of ``variance / (single_failure * tolerance**2)`` repetitions is off by more than the
tolerance with probability at most ``single_failure`` (Chebyshev). The median of ``n_groups`` such
means is off only if half of them are. Lemma 3.5 takes 0.1 and :math:`10 \log n`;
:func:`approxkmv.paper.parameters.cheapest_median` finds the cheapest pair for a failure
probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from approxkmv.paper.parameters import cheapest_median, median_failure


@dataclass(frozen=True)
class MedianOfMeans:
    """Sizes of a median of means.

    Attributes
    ----------
    single_failure : float
        Bound on the probability that one mean misses its tolerance.
    n_groups : int
        Number of means the median is taken of.

    Examples
    --------
    >>> MedianOfMeans(0.1, 9).group_size(relative_variance=2.0, tolerance=0.5)
    80
    """

    single_failure: float
    n_groups: int

    @classmethod
    def cheapest(cls, failure_probability: float) -> MedianOfMeans:
        """Sizes with the fewest repetitions for a failure probability of the median."""
        return cls(*cheapest_median(failure_probability))

    @property
    def failure_probability(self) -> float:
        """Bound on the probability that the median misses: half of the means do."""
        return median_failure(self.n_groups, self.single_failure)

    def group_size(self, relative_variance: float, tolerance: float) -> int:
        """Repetitions in one mean, at least one, for a variance and a tolerance in like units."""
        return max(1, math.ceil(relative_variance / (self.single_failure * tolerance**2)))
