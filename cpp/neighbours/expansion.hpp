// Neighbours of neighbours: points that share a near point are often near each other.
//
// Lists of pairs and the points they name lie anywhere in memory, and to wait for them would take
// most of the time: whatever is read is sent for some steps before.
#pragma once

#include "../kernels.hpp"
#include "../threads.hpp"
#include "../types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace akmv {

constexpr std::size_t kPointsAsked = 256;  // in a task, of points whose neighbours are asked

/// Keys of each query, over pairs with value >= least.
struct LeadingKeys {
  const FoundPairs &pairs;
  float least;

  void fetch_place(std::int32_t query) const { __builtin_prefetch(pairs.indptr + query); }
  void fetch(std::int32_t query) const { pairs.prefetch(query); }
  bool known(std::int32_t, std::int32_t) const { return false; }  // all of them are marked

  /// Marks the keys that a query knows, whether they lead on or not.
  void mark(std::int32_t query, std::int32_t *seen_by) const {
    for (auto p = pairs.indptr[query]; p < pairs.indptr[query + 1]; ++p)
      seen_by[pairs.cols[p]] = query;
  }

  /// Calls then(key) for each of them, from the last if `backwards`, until it returns false.
  template <class Then>
  bool each(std::int32_t query, bool backwards, const Then &then) const {
    const auto first = pairs.indptr[query], n = pairs.indptr[query + 1] - first;
    for (std::int64_t p = 0; p < n; ++p) {
      const auto at = backwards ? first + n - 1 - p : first + p;
      if (pairs.values[at] >= least && !then(pairs.cols[at])) return false;
    }
    return true;
  }
};

/// Queries of each key, over the same pairs: a compressed transpose.
struct LeadingQueries {
  const FoundPairs &pairs;
  std::vector<std::int64_t> start;
  std::vector<std::int32_t> queries;

  LeadingQueries(const LeadingKeys &keys_of, std::size_t n_queries, std::size_t n_keys)
      : pairs(keys_of.pairs), start(n_keys + 1, 0) {
    const auto n_pairs = pairs.indptr[n_queries];
    for (std::int64_t p = 0; p < n_pairs; ++p)
      if (pairs.values[p] >= keys_of.least) ++start[std::size_t(pairs.cols[p]) + 1];
    for (std::size_t j = 0; j < n_keys; ++j) start[j + 1] += start[j];
    queries.resize(std::size_t(start[n_keys]));
    std::vector<std::int64_t> next(start.begin(), start.end() - 1);
    for (std::size_t i = 0; i < n_queries; ++i)
      for (auto p = pairs.indptr[i]; p < pairs.indptr[i + 1]; ++p)
        if (pairs.values[p] >= keys_of.least)
          queries[std::size_t(next[pairs.cols[p]]++)] = std::int32_t(i);
  }

  std::int64_t count(std::int32_t key) const { return start[std::size_t(key) + 1] - start[key]; }
  void fetch_place(std::int32_t key) const { __builtin_prefetch(&start[key]); }
  void fetch(std::int32_t key) const {
    for (auto p = start[key]; p < start[std::size_t(key) + 1]; p += 16)
      __builtin_prefetch(&queries[std::size_t(p)]);
  }
  // Pairs that lead nowhere are not in the lists.
  bool known(std::int32_t key, std::int32_t query) const { return pairs.has(query, key); }
  void mark(std::int32_t key, std::int32_t *seen_by) const {
    for (auto p = start[key]; p < start[std::size_t(key) + 1]; ++p)
      seen_by[queries[std::size_t(p)]] = key;
  }

  template <class Then>
  bool each(std::int32_t key, bool backwards, const Then &then) const {
    const auto first = start[key], n = count(key);
    for (std::int64_t p = 0; p < n; ++p)
      if (!then(queries[std::size_t(backwards ? first + n - 1 - p : first + p)])) return false;
    return true;
  }
};
/// How far to look from a point: through the first `width` others that share a partner with it, or
/// the last ones if `backwards`.
struct Reach {
  int width;
  bool backwards;
};

/// For points of one side, those of the other side that they may be near to: partners of others
/// that share a partner with them.
template <class Own, class Others>
class Expander {
 public:
  static constexpr std::size_t kAtOnce = 16;

  Expander(const Own &own, const Others &others_of, std::size_t n_partners, Reach reach,
           int n_threads)
      : own_(own), others_of_(others_of), reach_(reach), spaces_(std::size_t(n_threads)) {
    for (Space &s : spaces_) s.seen_by.assign(n_partners, -1);
  }

  /// Calls look(point, candidates) for at most kAtOnce points; what is known is no candidate. Each
  /// step reads what the one before has sent for.
  template <class Look>
  void expand(const std::int32_t *points, std::size_t n, int slot, const Look &look) {
    Space &s = spaces_[std::size_t(slot)];
    fetch_partners(points, n);
    for (std::size_t r = 0; r < n; ++r) {
      share_a_partner(points[r], s.others[r]);
      for (const auto other : s.others[r]) own_.fetch_place(other);
    }
    for (std::size_t r = 0; r < n; ++r)
      for (const auto other : s.others[r]) own_.fetch(other);
    for (std::size_t r = 0; r < n; ++r) {
      list_candidates(points[r], s.others[r], s);
      look(points[r], s.candidates);
    }
  }

 private:
  struct Space {
    std::vector<std::int32_t> seen_by;          // [partner]
    std::vector<std::int32_t> others[kAtOnce];  // points that share a partner
    std::vector<std::int32_t> candidates;
  };

  void fetch_partners(const std::int32_t *points, std::size_t n) const {
    for (std::size_t r = 0; r < n; ++r) own_.fetch_place(points[r]);
    for (std::size_t r = 0; r < n; ++r) own_.fetch(points[r]);
    for (std::size_t r = 0; r < n; ++r)
      own_.each(points[r], false, [&](std::int32_t p) { return others_of_.fetch_place(p), true; });
    for (std::size_t r = 0; r < n; ++r)
      own_.each(points[r], false, [&](std::int32_t p) { return others_of_.fetch(p), true; });
  }

  void share_a_partner(std::int32_t point, std::vector<std::int32_t> &others) const {
    others.clear();
    own_.each(point, reach_.backwards, [&](std::int32_t partner) {
      return others_of_.each(partner, reach_.backwards, [&](std::int32_t other) {
        if (other == point || std::find(others.begin(), others.end(), other) != others.end())
          return true;
        if (others.size() == std::size_t(reach_.width)) return false;
        others.push_back(other);
        return true;
      });
    });
  }

  void list_candidates(std::int32_t point, const std::vector<std::int32_t> &others,
                       Space &s) const {
    std::int32_t *const seen_by = s.seen_by.data();
    s.candidates.clear();
    own_.mark(point, seen_by);
    for (const auto other : others)
      own_.each(other, false, [&](std::int32_t p) {
        if (seen_by[p] != point && !own_.known(point, p)) s.candidates.push_back(p);
        seen_by[p] = point;
        return true;
      });
  }

  const Own &own_;
  const Others &others_of_;
  const Reach reach_;
  std::vector<Space> spaces_;
};

/// Which keys fewer queries lead to than to some other key of one of these queries.
inline std::vector<char> fall_behind(const LeadingKeys &keys_of, const LeadingQueries &queries_of,
                                     std::size_t n_queries, std::size_t n_keys, int n_threads,
                                     const Poll &poll) {
  constexpr std::size_t kQueriesPerTask = 4096;
  std::vector<std::vector<char>> behind(n_threads, std::vector<char>(n_keys, 0));
  parallel_pieces(
      n_queries, kQueriesPerTask, n_threads,
      [&](const Piece &piece) {
        std::vector<char> &own = behind[std::size_t(piece.slot)];
        for (std::size_t i = piece.first; i < piece.last; ++i) {
          const auto query = std::int32_t(i);
          std::int64_t most = 0;
          keys_of.each(query, false, [&](std::int32_t key) {
            most = std::max(most, queries_of.count(key));
            return true;
          });
          keys_of.each(query, false, [&](std::int32_t key) {
            if (queries_of.count(key) < most) own[std::size_t(key)] = 1;
            return true;
          });
        }
      },
      poll);
  for (std::size_t t = 1; t < behind.size(); ++t)
    for (std::size_t j = 0; j < n_keys; ++j) behind[0][j] |= behind[t][j];
  return std::move(behind[0]);
}

/// Which points to expand, and how far. Only pairs with value >= `least` lead on; new pairs with
/// value >= `threshold` are listed. Points are taken in the given order: in that of the cells of a
/// tiling many lists and points are in the cache.
struct Expansion {
  const std::int32_t *order;
  std::size_t n_listed;
  float least;
  int width;
  bool of_keys;
  double threshold;
};

/// Writes the pairs of value >= threshold among those that an expansion shows.
template <class T>
class Expansions {
 public:
  Expansions(const PairKernel<T> &kernel, double threshold, const TypedKernels<T> &kernels,
             int n_threads, const Poll &poll)
      : kernel_(kernel),
        floor_(std::log(threshold)),
        k_(kernels),
        n_threads_(n_threads),
        poll_(poll) {}

  /// Expands the listed points; pair(point, candidate) says which is the row and which the column.
  template <class Own, class Others, class Pair>
  void run(const std::vector<std::int32_t> &listed, Expander<Own, Others> &expander,
           const Rows<T> &candidates_of, const Pair &pair, PairLists &parts) const {
    parts.resize(n_pieces(listed.size(), kPointsAsked));
    parallel_pieces(
        listed.size(), kPointsAsked, n_threads_,
        [&](const Piece &piece) {
          for (std::size_t i = piece.first; i < piece.last; i += expander.kAtOnce)
            expander.expand(listed.data() + i, std::min(expander.kAtOnce, piece.last - i),
                            piece.slot,
                            [&](std::int32_t point, const std::vector<std::int32_t> &candidates) {
                              const auto pair_of = [&](std::int32_t c) { return pair(point, c); };
                              keep_near(candidates, candidates_of, pair_of, parts[piece.number]);
                            });
        },
        poll_);
  }

 private:
  template <class Pair>
  void keep_near(const std::vector<std::int32_t> &candidates, const Rows<T> &points,
                 const Pair &pair, std::vector<NewPair> &out) const {
    constexpr std::size_t kAhead = 4;
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      if (c + kAhead < candidates.size()) prefetch(points, candidates[c + kAhead]);
      const auto [row, col] = pair(candidates[c]);
      const double exponent = kernel_.exponent(std::size_t(row), std::size_t(col), k_);
      if (exponent >= floor_) out.push_back({row, col, float(std::exp(exponent))});
    }
  }

  const PairKernel<T> &kernel_;
  const double floor_;  // of exponents
  const TypedKernels<T> &k_;
  const int n_threads_;
  const Poll &poll_;
};

/// Neighbours of neighbours: for each query the keys of other queries that share one of its keys;
/// or, with `of_keys`, for each key that falls behind the queries of other keys that share one of
/// its queries.
template <class T>
void neighbours_of_neighbours(const PairKernel<T> &kernel, const FoundPairs &known,
                              const Expansion &expansion, const TypedKernels<T> &kernels,
                              int n_threads, const Poll &poll, PairLists &parts) {
  const Rows<T> &queries = kernel.queries, &keys = kernel.keys;
  const LeadingKeys keys_of{known, expansion.least};
  const LeadingQueries queries_of(keys_of, queries.n, keys.n);
  const Expansions<T> expansions(kernel, expansion.threshold, kernels, n_threads, poll);
  std::vector<std::int32_t> listed(expansion.order, expansion.order + expansion.n_listed);
  if (!expansion.of_keys) {
    Expander expander(keys_of, queries_of, keys.n, Reach{expansion.width, false}, n_threads);
    const auto pair = [](std::int32_t row, std::int32_t c) { return std::make_pair(row, c); };
    expansions.run(listed, expander, keys, pair, parts);
    return;
  }
  const auto behind = fall_behind(keys_of, queries_of, queries.n, keys.n, n_threads, poll);
  const auto none =
      std::remove_if(listed.begin(), listed.end(), [&](std::int32_t j) { return !behind[j]; });
  listed.erase(none, listed.end());
  Expander expander(queries_of, keys_of, queries.n, Reach{expansion.width, true}, n_threads);
  const auto pair = [](std::int32_t key, std::int32_t c) { return std::make_pair(c, key); };
  expansions.run(listed, expander, queries, pair, parts);
}

}  // namespace akmv
