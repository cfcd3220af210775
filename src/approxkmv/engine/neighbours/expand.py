"""Near pairs lead on to others: neighbours of neighbours."""

from __future__ import annotations

from approxkmv.engine.neighbours.search import Search

# Closer pairs lead on; farther ones share keys by accident.
_LEADING_VALUE = 0.05
_WIDTH = 4  # neighbours of each point that are followed


def expand(search: Search) -> None:
    """Compute the pairs of queries with the keys of queries that share a key with them.

    Every other time from the key side: a key that few queries have found is not reached through
    them; its own neighbours have longer lists.
    """
    of_keys = search.n_expansions % 2 == 1
    kernel = search.kernel
    met = kernel.backend.neighbours_of_neighbours(
        kernel.queries,
        kernel.keys,
        kernel.bandwidth,
        search.found,
        least=_LEADING_VALUE,
        width=_WIDTH,
        of_keys=of_keys,
        threshold=search.pilot.threshold,
        point_order=search.by_cells[of_keys],
    )
    search.add(met)
    search.n_expansions += 1
