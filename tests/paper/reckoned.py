"""Level sets that are reckoned and not run: exact answers, and the work that a run would take."""

from __future__ import annotations

from dataclasses import replace

from approxkmv.paper.density import ExactDensity
from approxkmv.paper.density.levels import levels_for, relative_variance_bound, work


class Reckoned(ExactDensity):
    """Counts the hashes, lookups and points met that ``LevelSets.for_accuracy`` reckons with."""

    @classmethod
    def for_accuracy(
        cls, points, *, bandwidth, floor, relative_error, sizes, rng, never_exact=False
    ):
        """As the real one with ``never_exact``, whatever is asked for."""
        del rng, never_exact
        structure = cls(points, bandwidth, min(floor, 1.0))
        levels = levels_for(
            len(points), points.shape[1], bandwidth, structure.floor, always_hash=True
        )
        each = sizes.group_size(relative_variance_bound(levels), relative_error)
        object.__setattr__(structure, "per_query", sizes.n_groups * each * work(levels))
        return structure

    def estimate(self, queries, *, n_threads=None):
        answer = super().estimate(queries, n_threads=n_threads)
        return replace(answer, kernel_evaluations=round(len(queries) * self.per_query))
