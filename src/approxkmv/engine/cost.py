"""What everything costs: one model, handed in as an argument.

The unit is one pair of the exact product of the same points on the same machine, in which a saving
shows. The numbers are ratios of times, so most of them hardly depend on the machine. They were
measured with two threads on AMD EPYC processors with AVX-512; ``python -m benchmarks.costs`` prints
what they are on another one, and how many times as long products take with a cost halved or
doubled: 0.84 to 1.19 for each of twelve costs (40,000 points in clusters of 64 dimensions, and on
curves in 3; one run each). They decide what is done, never whether the answer is right.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CostModel:
    """Costs in pairs of the exact product, unless another unit is named.

    Searching is measured in 64 dimensions; :meth:`pairs_of_64` converts.
    """

    # Multiply-adds below which the exact product takes less time than a survey with a search for
    # near pairs. Products of 32,768 x 32,768 x 32 points take 0.1 s; a factor of 2 either way costs
    # at most 5 ms. Cells of points that vary in few directions are made in a third of that.
    smallest_work: float = 6e10
    smallest_work_in_cells: float = 2e10
    # Looking for equal points, for each of them: 25 to 50 ns (``find_copies`` of 8,192 to 2^20
    # points), where a pair of 20 dimensions takes 0.3 ns with AVX-512; and the share of the exact
    # product that it may take.
    equal_point: float = 100.0
    looking_for_equal: float = 0.01
    # The same for a look at the rank: 2,000 x 128 pairs, 5 to 10 ms.
    smallest_look: float = 2e10
    # A multiply-add of dense linear algebra in double precision, in those of coordinates: in pieces
    # for which a BLAS starts no threads. Estimated from profiles of low rank; whole products of a
    # BLAS take 5.2 (``python -m benchmarks.costs``).
    dense: float = 8.0
    # What a pair costs beyond its coordinates (exponential, sums), in multiply-adds of coordinates.
    # Within 20 to 28 for 2 to 800 dimensions.
    pair_overhead: float = 24.0
    # A pair of a pilot row: looked at for near pairs, squared and summed by tile. 2.1 to 2.4 with
    # one column.
    pilot_pair: float = 2.2
    # A drawn pair: gathered keys and squares. In many dimensions, and in multiply-adds of
    # coordinates on top of it: 1.6 in 2 dimensions, 1.46 in 8, 1.25 in 64, 1.13 in 400.
    drawn_pair: float = 1.1
    drawn_overhead: float = 13.0
    # What a drawn key costs each block beyond its pairs, in multiply-adds: 0.03 s for 1.2 million
    # keys of 3 coordinates, 0.05 s for 2.4 million of 9.
    gathered_key: float = 3000.0
    # The same in short rounds, for answers within a time.
    drawn_pair_in_time: float = 1.4
    # A pair computed in double precision by differences, to measure rounding.
    double_pair: float = 6.0
    # A search for near pairs, for each query and in all: in 0 dimensions, more for each dimension,
    # among 2^15 keys, growing with a power of their number. 2,700 to 5,900 pairs in 64 and 100
    # dimensions, 2,600 to 7,800 in 784 (``python -m benchmarks.prediction``). In fewer dimensions a
    # pair costs less, and the search hardly less.
    search: float = 4000.0
    search_per_dim: float = 4.0
    search_keys: float = 2.0**15
    search_growth: float = 0.4
    # How many times the draws exceed those needed if all near pairs were known: 1.1 to 3.4.
    draws_after_search: float = 1.5
    # A tiling, for each point: cutting, verifying, merging; and for each sketch compared.
    tiling: float = 500.0
    sketched_pair: float = 0.2
    # Expanding found pairs to neighbours of neighbours, for each query; the same from the key side
    # for keys that few queries have found (690 and 200 with 32,768 keys in clusters of 16, 1,400
    # and 530 with 262,144); and a search for points that are isolated after that.
    neighbours: float = 700.0
    keys_expanded: float = 300.0
    isolated: float = 600.0
    # Moments of keys and the polynomial of a query, for each of both and each dimension: 0.05 s for
    # 65,536 points of 100 dimensions.
    polynomial_per_dim: float = 2.5
    # Principal coordinates and trial draws of the surrogate, for each query; a pair drawn with it
    # and computed in full; what a pair of the surrogate costs beyond its coordinates, in
    # multiply-adds.
    surrogate: float = 900.0
    surrogate_full_pair: float = 8.0
    surrogate_overhead: float = 14.0
    # A near pair of sums for later queries: met, merged and linked, in fit and for a query.
    near_pair: float = 120.0
    # Softmax attention of one head: pairs up to which a survey takes longer than it can save. The
    # mean of the values is tried above 12 million (3,464 tokens), keys are drawn above 36 million
    # (6,000 tokens), or 24 million with a causal mask (6,928 tokens), where blocks need no tree. At
    # 8,192 tokens an unsuccessful survey takes a tenth of the exact time with a causal mask and
    # 0.12 of it without one (``python -m benchmarks.attention_heads``).
    smallest_head: int = 12_000_000
    smallest_head_for_draws: int = 36_000_000
    smallest_causal_head: int = 24_000_000
    # A drawn pair of a head: gathered keys and values, sums of squares for the variance. 1.75 to
    # 1.9 pairs of exact attention with AVX-512 at 8,192 tokens, 1.4 with AVX2.
    drawn_head_pair: float = 1.8
    # A pair of a row whose moments are taken, with what is done to these: 3 to 4 at 8,192 and
    # 16,384 tokens.
    head_pilot_pair: float = 3.5

    def worth_merging(self, n_points: int, n_pairs: int) -> bool:
        """Whether looking for equal ones among these points takes no time to speak of."""
        return self.equal_point * n_points <= self.looking_for_equal * n_pairs

    def worth_a_survey(self, n_queries: int, n_keys: int, n_dims: int) -> bool:
        """Whether the exact product takes longer than finding out about the data."""
        return self._work(n_queries, n_keys, n_dims) >= self.smallest_work_in_cells

    def worth_searching(self, n_queries: int, n_keys: int, n_dims: int) -> bool:
        """Whether the exact product takes longer than a search for near pairs, too."""
        return self._work(n_queries, n_keys, n_dims) >= self.smallest_work

    def _work(self, n_queries: int, n_keys: int, n_dims: int) -> float:
        return n_queries * n_keys * (n_dims + self.pair_overhead)

    def drawn_pair_in(self, rows_per_block: float, n_dims: int) -> float:
        """What a drawn pair costs in blocks of so many rows."""
        gathered = self.gathered_key / (n_dims + self.pair_overhead)
        more_often = max(0.0, 1 / rows_per_block - 1 / 512)  # than where `drawn_pair` was measured
        return self.drawn(n_dims) + gathered * more_often

    def worth_a_survey_of_head(self, n_pairs: int, is_causal: bool) -> bool:
        """Whether exact attention takes longer than finding out about a head."""
        return n_pairs > (self.smallest_causal_head if is_causal else self.smallest_head)

    def worth_drawing_for_head(self, n_pairs: int, is_causal: bool) -> bool:
        """Whether exact attention takes longer than finding out how to draw keys."""
        least = self.smallest_causal_head if is_causal else self.smallest_head_for_draws
        return n_pairs > least

    def worth_a_look(self, n_queries: int, n_keys: int, n_dims: int) -> bool:
        """Whether the exact product takes longer than a look at the rank of the matrix."""
        return n_queries * n_keys * (n_dims + self.pair_overhead) >= self.smallest_look

    def dense_pairs(self, n_dims: int, multiply_adds: float) -> float:
        """What dense linear algebra costs."""
        return self.dense * multiply_adds / (n_dims + self.pair_overhead)

    def drawn(self, n_dims: int) -> float:
        """What a drawn pair costs."""
        return self.drawn_pair * (1 + self.drawn_overhead / (n_dims + self.pair_overhead))

    def pairs_of_64(self, n_dims: int) -> float:
        """Pairs of this dimension that cost as much as one of 64 dimensions."""
        return (64 + self.pair_overhead) / (n_dims + self.pair_overhead)

    def search_cost(self, n_queries: int, n_keys: int, n_dims: int) -> float:
        """What finding near pairs usually costs in all."""
        # Pairs of few dimensions are cheap, and to find near ones is not.
        each = (self.search + self.search_per_dim * n_dims) * max(1.0, self.pairs_of_64(n_dims))
        return float(n_queries * each * (n_keys / self.search_keys) ** self.search_growth)

    def polynomial_cost(self, n_queries: int, n_keys: int, n_dims: int) -> float:
        """What the product of a polynomial control variate costs."""
        return self.polynomial_per_dim * n_dims * (n_queries + n_keys)
