r"""One fixed matrix close to K: near pairs exactly, and some of all others, each drawn by itself.

A pair that was not found near is kept with probability :math:`\pi_{ij}` and has the value
:math:`K_{ij}/\pi_{ij}`. The matrix is sparse and unbiased, and for any x that was not chosen by
looking at the draws

.. math:: E\|(\tilde K-K)x\|^2=\sum_j x_j^2\sum_i(1/\pi_{ij}-1)K_{ij}^2,

so that bounding the inner sum for every key bounds the error for every x, and bounding it for every
query does so for the transpose. Draws shared by a block of queries, as in a product that is made
once, would not do here: in the transpose they add up instead of cancelling.

Dense blocks, which would need so many draws that comparing them with everything is cheaper, are
compared: all their pairs from a low value on are kept as they are, and only smaller ones drawn.

Where the queries are the keys, a pair is drawn once for both its places. Keys and queries whose
own estimate of the inner sum stands out are searched for near pairs in full, and kept whole if that
does not help.
"""

from __future__ import annotations

import math

import numpy as np

from approxkmv.engine.neighbours.schedule import NearSearch, search_near_pairs
from approxkmv.engine.neighbours.search import Search
from approxkmv.engine.neighbours.whole import search_columns, search_rows
from approxkmv.engine.planner import TOO_DENSE, too_dense
from approxkmv.engine.problem import Problem
from approxkmv.engine.refine import Draws, Sums, Verdict, refine
from approxkmv.engine.schemes.bernoulli import draw_pairs
from approxkmv.engine.schemes.frozen_matrix import Drawn, FrozenMatrix, Mask, clear, sparse
from approxkmv.engine.survey.calibration import pooled
from approxkmv.engine.survey.pilot import Pilot, run_pilot
from approxkmv.engine.survey.rates import balanced_rates
from approxkmv.engine.survey.survey import make_survey, search_cost
from approxkmv.engine.trace import Refusal, Trace
from approxkmv.kernel.matrix import KernelMatrix
from approxkmv.loops.types import Array, Float64, Index

# Of the squared error budget; the rest is for wrong predictions.
_AIM = 0.5
# Where more than this share of the pairs of a block would be drawn, all are computed: a pair of a
# tile costs a twentieth of a pair by itself. Those of at least this value, in eps / sqrt(n), are
# kept. On word vectors both together left a fifth to a third of the pairs, and the largest error of
# a key went from 1.5 eps to below eps.
_DENSE, _KEPT_FROM = 0.04, 1.5
# Keys and queries with more than this share of the squared error budget are searched in full, and
# kept whole if they still have more; at most these shares of them.
_STANDS_OUT, _MOST_SEARCHED, _MOST_WHOLE = 0.7, 0.05, 0.01
_BYTES_PER_PAIR = 8
_MOST_DRAWN = 0.1  # share of all pairs that may be drawn
_FINE_ROWS = 3  # of each block, to see what is left to the draws
# No key or query may have more than this many times the squared error budget.
_LARGEST = 1.5


def freeze(problem: Problem, trace: Trace) -> FrozenMatrix:
    """A matrix whose products have an error of at most ``problem.eps`` |x|.

    ``Refusal`` if it does not fit into ``max_bytes`` or cannot pay; ``problem.x`` is all ones.
    """
    survey = make_survey(problem, trace, one_shot=False)
    if too_dense(problem, survey):
        raise Refusal(TOO_DENSE)
    problem.budget.limit.needs(search_cost(problem))
    search = Search(problem.kernel, survey.pilot, problem.rng)
    try:
        near = search_near_pairs(problem, survey, search, trace)
        moment = pooled(_compare_dense_blocks(problem, near, trace))
        trace.lap("search")
        return refine(FrozenPairs(near, moment), trace)
    finally:
        trace.pairs += search.pairs


class FrozenPairs:
    """The scheme that :func:`approxkmv.engine.refine.refine` runs: one matrix, kept."""

    def __init__(self, near: NearSearch, moment: Float64) -> None:
        self.near, self.problem, self.trace = near, near.problem, near.trace
        self.margins = near.problem.policy.matrix
        pilot = near.survey.pilot
        target = _AIM * self.problem.eps**2
        self.pi = balanced_rates(moment, pilot.query_blocks, pilot.key_tiles, target)
        self.block_of = pilot.query_blocks.block_of
        self.n_blocks = 1

    def first_factor(self) -> float:
        """The probabilities aimed at."""
        return 1.0

    def check_cost(self, factor: float) -> None:
        """Raise ``Refusal`` where the pairs drawn are too many to keep."""
        problem, pilot = self.problem, self.near.survey.pilot
        pi = np.minimum(1.0, factor * self.pi)
        expected = float(pilot.query_blocks.sizes @ pi @ pilot.key_tiles.sizes)
        expected /= 2 if pilot.symmetric else 1
        n_bytes = _BYTES_PER_PAIR * (expected + len(self.near.search.found.cols))
        self.trace.note(pairs_drawn=round(expected), bytes_kept=round(n_bytes))
        if expected > _MOST_DRAWN * problem.n_pairs:
            raise Refusal("too many pairs would have to be kept")
        most = problem.budget.max_bytes
        if n_bytes > most:
            raise Refusal(
                f"the pairs kept would take {n_bytes:.2g} bytes, more than the {most:.2g} allowed"
            )

    def draw(
        self,
        factor: float,
        stream: int,
        *,
        before: Draws | None = None,
        blocks: Index | None = None,
        into: Sums | None = None,
    ) -> Sums:
        """Draw pairs, and compute what stands out in full."""
        problem, search = self.problem, self.near.search
        pi = np.minimum(1.0, factor * self.pi)
        drawn = draw_pairs(problem.kernel, search.pilot, pi, problem.rng)
        drawn.take_out(search.found)
        n_searched = _search_what_stands_out(search, drawn, problem.eps)
        self.trace.note(searched_in_full=n_searched)
        room = problem.budget.max_bytes - _BYTES_PER_PAIR * (drawn.n_pairs + len(search.found.cols))
        return _with_whole(problem, search, drawn, room)

    def calibrated(self, seen: Sums, blocks: Index, factor: float) -> float:
        """There is one block."""
        return factor

    def judge(self, drawn: Draws, new: Draws) -> Verdict[FrozenMatrix]:
        """The largest error of a key or query."""
        matrix: FrozenMatrix = drawn.sums
        of_key, of_query = matrix.variances()
        self.trace.note(
            bytes_kept=matrix.n_bytes,
            whole_keys=len(matrix.whole_keys),
            whole_queries=len(matrix.whole_queries),
            error_of_a_key=float(np.sqrt(of_key.mean())),
            largest_error_of_a_key=float(np.sqrt(of_key.max())),
            error_of_a_query=float(np.sqrt(of_query.mean())),
            largest_error_of_a_query=float(np.sqrt(of_query.max())),
        )
        pairs = matrix.drawn.n_pairs + matrix.of_whole_keys.size + matrix.of_whole_queries.size
        ratio = matrix.largest_error**2 / (_LARGEST * self.problem.eps**2)
        return Verdict(matrix, ratio, pairs)

    def improve(self, verdict: Verdict[FrozenMatrix], trace: Trace) -> bool:
        """The draws met keys that the pilot had not: draw more of all."""
        return True


def _compare_dense_blocks(problem: Problem, near: NearSearch, trace: Trace) -> Float64:
    """Find all but the small pairs of dense blocks; means of K^2 over what is left to the draws."""
    search, pilot, eps = near.search, near.search.pilot, problem.eps
    query_blocks, key_tiles = pilot.query_blocks, pilot.key_tiles
    moment = pilot.per_pair(
        pilot.light + pilot.near_sums(pilot.missed(search.found), pilot.near_square)
    )
    pi = balanced_rates(pooled(moment), query_blocks, key_tiles, _AIM * eps**2)
    of_rows = pi @ key_tiles.sizes / len(key_tiles.order) > _DENSE
    of_keys = query_blocks.sizes @ pi / len(query_blocks.order) > _DENSE
    if not (of_rows.any() or of_keys.any()):
        return moment
    fine = run_pilot(
        problem.kernel,
        problem.row_norms,
        query_blocks,
        key_tiles,
        rows_per_block=_FINE_ROWS,
        threshold=_kept_from(pilot, eps),
        most_near=None,
        rng=problem.rng,
    )
    dense = of_rows[fine.block_of[fine.near_row]] | of_keys[key_tiles.block_of[fine.near_col]]
    kept = float(fine.stands_for[fine.near_row[dense]].sum())
    trace.note(dense_blocks=int(of_rows.sum()), kept_from=fine.threshold)
    if _BYTES_PER_PAIR * kept > problem.budget.max_bytes:
        return moment
    queries, keys = (
        blocks.order[np.repeat(of, blocks.sizes)]
        for of, blocks in ((of_rows, query_blocks), (of_keys, key_tiles))
    )
    if pilot.symmetric:
        search_rows(search, np.union1d(queries, keys), fine.threshold)
    else:
        search_rows(search, queries, fine.threshold)
        search_columns(search, keys, fine.threshold)
    return np.where(of_rows[:, None] | of_keys, fine.per_pair(fine.light), moment)


def _kept_from(pilot: Pilot, eps: float) -> float:
    """The value from which on all pairs are kept of what is looked at in full."""
    return min(pilot.threshold, _KEPT_FROM * eps / math.sqrt(len(pilot.key_tiles.order)))


def _search_what_stands_out(search: Search, drawn: Drawn, eps: float) -> int:
    """Find all near pairs of the keys and queries that vary most; their number.

    Where one pair was drawn that should have been found, others were not drawn.
    """
    symmetric = search.pilot.symmetric
    of_key, of_query = drawn.variances(symmetric)
    n_searched = 0
    for of, rows in ((of_query, True), (of_key, False))[: 1 if symmetric else 2]:
        most = int(_MOST_SEARCHED * len(of))
        index = np.flatnonzero(_stand_out(of, eps, most)).astype(np.int32)
        n_searched += len(index)
        if len(index):
            compare = search_rows if rows else search_columns
            compare(search, index, _kept_from(search.pilot, eps))
    drawn.take_out(search.found)
    return n_searched


def _with_whole(problem: Problem, search: Search, drawn: Drawn, room: float) -> FrozenMatrix:
    """The matrix with keys and queries kept whole that still vary too much."""
    kernel, eps = problem.kernel, problem.eps
    symmetric, found = search.pilot.symmetric, search.found
    n_queries, n_keys = len(kernel.queries), len(kernel.keys)
    of_key, of_query = drawn.variances(symmetric)
    most = int(min(_MOST_WHOLE, room / 2 / kernel.keys.itemsize / n_queries / n_keys) * n_keys)
    keys, queries = (_stand_out(of, eps, most) for of in (of_key, of_query))
    near = sparse(found.values.astype(kernel.keys.dtype), found.cols, found.indptr, n_keys)
    clear(near, queries, keys)
    clear(drawn.values, queries[drawn.query_blocks.order], keys[drawn.key_tiles.order])
    if symmetric:
        of_whole_keys = of_whole_queries = columns_of(kernel, np.flatnonzero(keys))
    else:
        of_whole_keys = columns_of(kernel, np.flatnonzero(keys))
        of_whole_queries = columns_of(kernel.transposed, np.flatnonzero(queries))
    return FrozenMatrix(
        drawn,
        near,
        symmetric,
        np.flatnonzero(keys),
        of_whole_keys,
        np.flatnonzero(queries),
        of_whole_queries,
    )


def columns_of(kernel: KernelMatrix, keys: Index) -> Array:
    """Kernel values (n_queries, len(keys)): the product with the columns of the identity."""
    return kernel.at_keys(keys).product(np.eye(len(keys), dtype=kernel.keys.dtype)).out


def _stand_out(variance: Float64, eps: float, most: int) -> Mask:
    """Those whose variance is near what is allowed or above, at most some of them."""
    out = np.zeros(len(variance), np.bool_)
    worst = np.argsort(variance, kind="stable")[::-1][:most]
    out[worst[variance[worst] > _STANDS_OUT * eps**2]] = True
    return out
