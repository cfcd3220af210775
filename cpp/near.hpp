// Near pairs: random tilings, pairs above a floor inside dense tiles, neighbours of neighbours.
//
// A tiling cuts the keys at medians of random projections into small cells, and the queries along.
// Near points often share a cell; each cell is a dense tile, so looking costs what a tile costs.
#pragma once

#include "pairs.hpp"
#include "product.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace akmv {

constexpr std::size_t kCutKeys = 1 << 14;  // more keys do not cut better
constexpr std::size_t kPointsAsked = 256;  // in a task, of points whose neighbours are asked

/// Some points of many.
template <class T>
struct Listed {
  Rows<T> points;
  const std::int32_t *index;
  std::size_t n;
};

/// Projections [point][direction] of listed points on the columns of `basis` [dim][direction].
template <class T>
void project(const Listed<T> &listed, const double *centre, const Rows<float> &basis,
             const TypedKernels<T> &kernels, int n_threads, const Poll &poll, float *out) {
  const Rows<T> &points = listed.points;
  const std::int32_t *index = listed.index;
  const std::size_t n = listed.n, n_directions = basis.d;
  constexpr std::size_t kPointsPerTask = 4096, kAhead = 8, kWidest = 16;
  static_assert(kPointsPerTask % kProjected == 0);
  // Whole vectors of any instruction set: six directions one by one took six times as long as
  // eight.
  const std::size_t padded = round_up(n_directions, kWidest);
  std::vector<float> rows(points.d * padded);
  for (std::size_t l = 0; l < points.d; ++l)
    std::copy_n(basis[l], n_directions, rows.data() + l * padded);
  parallel_for((n + kPointsPerTask - 1) / kPointsPerTask, n_threads,
               [&](std::size_t task, int) {
                 const std::size_t last = std::min(n, (task + 1) * kPointsPerTask);
                 std::vector<float> projected(kProjected * padded);
                 const T *some[kProjected];
                 float *to[kProjected];
                 for (std::size_t p = 0; p < kProjected; ++p) to[p] = projected.data() + p * padded;
                 for (std::size_t i = task * kPointsPerTask; i < last; i += kProjected) {
                   for (std::size_t p = 0; p < kProjected; ++p) {
                     if (i + p + kAhead < last) prefetch(points, index[i + p + kAhead]);
                     some[p] = points[index[std::min(i + p, last - 1)]];
                   }
                   kernels.project(some, centre, points.d, rows.data(), padded, to);
                   for (std::size_t p = 0; p < kProjected && i + p < last; ++p)
                     std::copy_n(to[p], n_directions, out + (i + p) * n_directions);
                 }
               },
               poll);
}

/// Where the cells of a tiling are cut: [node] of a binary tree, level by level. Each cell is cut
/// at the upper median of its keys, of every so many of them where they are many: 2^6 for each
/// cell.
inline std::vector<float> median_cuts(const Rows<float> &projections) {
  const std::size_t n_keys = projections.n, depth = projections.d;
  const std::size_t n_cells = std::size_t(1) << depth;
  const std::size_t enough = std::max(kCutKeys, n_cells << 6);
  const std::size_t step = std::max<std::size_t>(1, (n_keys + enough - 1) / enough);
  std::vector<std::pair<float, std::size_t>> keys;
  for (std::size_t i = 0; i < n_keys; i += step) keys.emplace_back(0.0f, i);
  std::vector<float> cuts(n_cells - 1);
  std::vector<std::size_t> start{0, keys.size()};  // of the cells of this level
  for (std::size_t level = 0; level < depth; ++level) {
    for (auto &key : keys) key.first = projections[key.second][level];
    std::vector<std::size_t> next;
    for (std::size_t c = 0; c + 1 < start.size(); ++c) {
      const auto first = keys.begin() + std::ptrdiff_t(start[c]);
      const auto last = keys.begin() + std::ptrdiff_t(start[c + 1]);
      float cut = 0;
      if (first != last) {
        const auto middle = first + (last - first) / 2;
        std::nth_element(first, middle, last);
        cut = middle->first;
      }
      cuts[start.size() - 2 + c] = cut;
      const auto upper =
          std::partition(first, last, [&](const auto &key) { return key.first < cut; });
      next.push_back(start[c]);
      next.push_back(std::size_t(upper - keys.begin()));
    }
    next.push_back(keys.size());
    start = std::move(next);
  }
  return cuts;
}

/// Sends points [point][cut] down the tree: their numbers by cell, ascending, and where cells
/// begin.
inline void sort_into_cells(const Rows<float> &projections, const std::vector<float> &cuts,
                            int n_threads, const Poll &poll, std::int32_t *order,
                            std::int64_t *start) {
  const std::size_t n = projections.n, depth = projections.d;
  constexpr std::size_t kPointsPerTask = 1 << 14;
  const std::size_t n_cells = cuts.size() + 1;
  std::vector<std::int32_t> cell_of(n);
  parallel_for((n + kPointsPerTask - 1) / kPointsPerTask, n_threads,
               [&](std::size_t task, int) {
                 for (std::size_t i = task * kPointsPerTask;
                      i < std::min(n, (task + 1) * kPointsPerTask); ++i) {
                   std::size_t node = 0;
                   for (std::size_t level = 0; level < depth; ++level) {
                     const bool below = projections[i][level] < cuts[node];
                     node = 2 * node + (below ? 1 : 2);
                   }
                   cell_of[i] = std::int32_t(node + 1 - n_cells);
                 }
               },
               poll);
  std::fill_n(start, n_cells + 1, 0);
  for (std::size_t i = 0; i < n; ++i) ++start[cell_of[i] + 1];
  for (std::size_t c = 0; c < n_cells; ++c) start[c + 1] += start[c];
  std::vector<std::int64_t> next(start, start + n_cells);
  for (std::size_t i = 0; i < n; ++i) order[next[std::size_t(cell_of[i])]++] = std::int32_t(i);
}

/// One tiling from projections [point][cut]: both orders, and where the queries and keys of each of
/// the 2^d cells begin. Equal projections stay together.
inline void random_tiling(const Rows<float> &keys, const Rows<float> &queries, int n_threads,
                          const Poll &poll, const NewTiling &out) {
  const auto cuts = median_cuts(keys);
  sort_into_cells(keys, cuts, n_threads, poll, out.key_order, out.key_start);
  if (queries.data == keys.data && queries.n == keys.n) {
    std::copy_n(out.key_order, keys.n, out.query_order);
    std::copy_n(out.key_start, cuts.size() + 2, out.query_start);
    return;
  }
  sort_into_cells(queries, cuts, n_threads, poll, out.query_order, out.query_start);
}

/// A dense tile of gathered points: buffers of one thread.
template <class T>
struct GatheredTile {
  Buffer<T> queries, query_shift, keys, key_shift, scores;
  Buffer<Hit<T>> hits;

  GatheredTile(std::size_t n_dims, const TypedKernels<T> &kernels)
      : queries(kBlockRows * n_dims),
        query_shift(kBlockRows),
        keys(kPanelKeys * n_dims),
        key_shift(kPanelKeys),
        scores(std::size_t(kernels.rows) * kScoreStride),
        hits(kBlockRows * kPanelKeys) {}
};

/// Pairs with exponent >= floor in the cells of a tiling that are not in `known` yet.
template <class T>
void tile_hits(const Geometry<T> &g, const Tiling &tiling, T floor, const FoundPairs &known,
               const TypedKernels<T> &kernels, int n_threads, const Poll &poll, PairLists &parts) {
  const std::int32_t *query_order = tiling.query_order, *key_order = tiling.key_order;
  std::vector<GatheredTile<T>> spaces;
  for (int i = 0; i < n_threads; ++i) spaces.emplace_back(g.keys.d, kernels);
  parts.resize(tiling.n_cells);
  parallel_for(
      tiling.n_cells, n_threads,
      [&](std::size_t t, int slot) {
        GatheredTile<T> &s = spaces[slot];
        Tile<T> tile{};
        tile.queries = s.queries.get();
        tile.query_shift = s.query_shift.get();
        tile.keys = s.keys.get();
        tile.key_shift = s.key_shift.get();
        tile.n_dims = g.keys.d;
        tile.slope = g.slope;
        tile.differences = g.differences;
        tile.scores = s.scores.get();
        for (std::int64_t k = tiling.key_start[t]; k < tiling.key_start[t + 1]; k += kPanelKeys) {
          const std::size_t n_keys =
              std::min<std::int64_t>(kPanelKeys, tiling.key_start[t + 1] - k);
          tile.n_keys = round_up(n_keys, kernels.group_keys);
          pack_shift(g.key_shift, key_order + k, 0, n_keys, tile.n_keys, s.key_shift.get());
          pack_points(g.keys, key_order + k, 0, n_keys, s.key_shift.get(), kernels,
                      kernels.group_keys, s.keys.get());
          for (std::int64_t q = tiling.query_start[t]; q < tiling.query_start[t + 1];
               q += kBlockRows) {
            const std::size_t n_rows =
                std::min<std::int64_t>(kBlockRows, tiling.query_start[t + 1] - q);
            pack_shift(g.query_shift, query_order + q, 0, n_rows, kBlockRows, s.query_shift.get());
            pack_points(g.queries, query_order + q, 0, n_rows, s.query_shift.get(), kernels,
                        kernels.rows, s.queries.get());
            tile.n_strips = int((n_rows + kernels.rows - 1) / kernels.rows);
            const int n_hits = kernels.hits(tile, floor, s.hits.get());
            for (int h = 0; h < n_hits; ++h) {
              const Hit<T> &hit = s.hits.get()[h];
              const std::int32_t row = query_order[q + hit.row], col = key_order[k + hit.key];
              if (!known.has(row, col))
                parts[t].push_back({row, col, std::exp(std::min(float(hit.exponent), 0.0f))});
            }
          }
        }
      },
      poll);
}

/// Sketches of the points a search looks at: few coordinates each, whose distances estimate theirs.
struct Sketches {
  const float *data;            // [point][dim]
  const std::int32_t *index;    // original number of each point
  const float *radius_squared;  // how far each point looks, or null for keys, which do not look
  std::size_t n_dims;

  const float *operator[](std::int32_t i) const { return data + std::size_t(i) * n_dims; }
};

/// Sketches in groups of `group`: out[group][dim][point], with two coordinates more, so that the
/// inner product of a query and a key is -distance^2 / 2; and half of each squared radius, minus
/// infinity for points that do not look. `zeros` has as many as a sketch has coordinates.
inline void pack_sketches(const Sketches &points, const std::int32_t *order, std::size_t n,
                          int group, bool query, const double *zeros,
                          const TypedKernels<float> &kernels, float *out, float *reach) {
  const std::size_t d = points.n_dims, stride = std::size_t(group);
  for (std::size_t start = 0; start < n;
       start += stride, out += stride * (d + 2), reach += stride) {
    for (std::size_t at = start + 2 * stride; at < std::min(n, start + 3 * stride); ++at)
      __builtin_prefetch(points[order[at]]);
    const std::size_t real = std::min(stride, n - start);
    const std::int32_t *some = order + start;
    std::size_t c = 0;
    for (; c + 4 <= real; c += 4) {
      const float *const four[4] = {points[some[c]], points[some[c + 1]], points[some[c + 2]],
                                    points[some[c + 3]]};
      kernels.pack_four(four, zeros, 1.0, d, stride, out + c);
    }
    for (; c < stride; ++c)
      for (std::size_t l = 0; l < d; ++l)
        out[l * stride + c] = c < real ? points[some[c]][l] : 0.0f;
    float *square = out + (query ? d : d + 1) * stride, *one = out + (query ? d + 1 : d) * stride;
    std::fill_n(square, stride, 0.0f);
    std::fill_n(one, stride, 1.0f);
    for (std::size_t l = 0; l < d; ++l)
      for (c = 0; c < stride; ++c) square[c] -= 0.5f * out[l * stride + c] * out[l * stride + c];
    std::fill(square + real, square + stride, -std::numeric_limits<float>::max());
    std::fill_n(reach, stride, -std::numeric_limits<float>::infinity());
    if (points.radius_squared)
      for (c = 0; c < real; ++c) reach[c] = 0.5f * points.radius_squared[some[c]];
  }
}

/// Sketches, cut into cells: the tiling's orders number the sketches. With `mirrored` the queries
/// are the keys, in the same order: of two points, each of which looks, the earlier is the query.
struct CellSearch {
  Sketches queries, keys;
  Tiling tiling;
  bool mirrored;
  double threshold;
};

/// Pairs with value >= threshold that are not in `known` yet, among those whose sketches share a
/// cell of the tiling and lie within the query's radius.
template <class T>
void cell_pairs(const PairKernel<T> &kernel, const CellSearch &search, const FoundPairs &known,
                const Kernels &kernels, int n_threads, const Poll &poll, PairLists &parts) {
  const Rows<T> &queries = kernel.queries, &keys = kernel.keys;
  const Sketches &query_sketches = search.queries, &key_sketches = search.keys;
  const std::int32_t *query_order = search.tiling.query_order, *key_order = search.tiling.key_order;
  const std::int64_t *query_start = search.tiling.query_start, *key_start = search.tiling.key_start;
  const std::size_t n_cells = search.tiling.n_cells;
  const bool mirrored = search.mirrored;
  const auto &sketch = kernels.f32;
  const auto &full = kernels.typed<T>();
  const std::size_t d = query_sketches.n_dims + 2;
  const double floor = std::log(search.threshold);
  constexpr std::size_t kAhead = 8;
  const std::vector<double> zeros(d, 0.0);
  struct Space {
    std::vector<float> queries, query_reach;
    Buffer<float> keys, key_reach;
    Buffer<Match> matches;
    std::vector<std::int32_t> row_of, col_of;  // numbers of the points
    std::vector<Match> fresh;                  // of points by their numbers
    explicit Space(std::size_t d)
        : keys(kPanelKeys * d), key_reach(kPanelKeys), matches(kBlockRows * kPanelKeys) {}
  };
  std::vector<Space> spaces;
  for (int i = 0; i < n_threads; ++i) spaces.emplace_back(d);
  const auto numbers = [](const Sketches &points, const std::int32_t *order, std::size_t n,
                          auto &out) {
    out.resize(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = points.index[order[i]];
  };
  parts.resize(n_cells);
  parallel_for(
      n_cells, n_threads,
      [&](std::size_t cell, int slot) {
        Space &s = spaces[slot];
        auto &out = parts[cell];
        const std::int32_t *rows = query_order + query_start[cell],
                           *cols = key_order + key_start[cell];
        const std::size_t n_rows = std::size_t(query_start[cell + 1] - query_start[cell]);
        const std::size_t n_cols = std::size_t(key_start[cell + 1] - key_start[cell]);
        s.query_reach.resize(round_up(n_rows, sketch.rows));
        s.queries.resize(s.query_reach.size() * d);
        numbers(query_sketches, rows, n_rows, s.row_of);
        numbers(key_sketches, cols, n_cols, s.col_of);
        // What is known of a row is read for each of its matches: sent for now, it is there by
        // then.
        for (const auto row : s.row_of) __builtin_prefetch(known.indptr + row);
        pack_sketches(query_sketches, rows, n_rows, sketch.rows, true, zeros.data(), sketch,
                      s.queries.data(), s.query_reach.data());
        for (const auto row : s.row_of)
          for (auto p = known.indptr[row]; p < known.indptr[row + 1]; p += 8)
            __builtin_prefetch(known.cols + p);
        for (std::size_t k = 0; k < n_cols; k += kPanelKeys) {
          const std::size_t n_keys = std::min<std::size_t>(kPanelKeys, n_cols - k);
          pack_sketches(key_sketches, cols + k, n_keys, sketch.group_keys, false, zeros.data(),
                        sketch, s.keys.get(), s.key_reach.get());
          // Mirrored, queries behind the panel have met its keys from the other side.
          const std::size_t last_row = mirrored ? std::min(n_rows, k + n_keys) : n_rows;
          for (std::size_t q = 0; q < last_row; q += kBlockRows) {
            const std::size_t n = std::min<std::size_t>(kBlockRows, last_row - q);
            SketchTile sketches{};
            sketches.queries = s.queries.data() + q * d;
            sketches.query_reach = s.query_reach.data() + q;
            sketches.n_strips = int((n + sketch.rows - 1) / sketch.rows);
            sketches.keys = s.keys.get();
            sketches.key_reach = s.key_reach.get();
            sketches.n_keys = int(round_up(n_keys, sketch.group_keys));
            sketches.n_dims = d;
            sketches.diagonal = mirrored ? int(std::ptrdiff_t(q) - std::ptrdiff_t(k)) : kNoDiagonal;
            const int n_matches = sketch.matches(sketches, s.matches.get());
            // Known pairs first, so that only points of new ones are fetched.
            s.fresh.clear();
            for (int m = 0; m < n_matches; ++m) {
              const Match &match = s.matches.get()[m];
              if (match.key <= match.row + sketches.diagonal) continue;
              const auto row = s.row_of[q + std::size_t(match.row)];
              const auto col = s.col_of[k + std::size_t(match.key)];
              if (!known.has(row, col)) s.fresh.push_back({row, col});
            }
            for (std::size_t m = 0; m < s.fresh.size(); ++m) {
              if (m + kAhead < s.fresh.size()) {
                prefetch(queries, s.fresh[m + kAhead].row);
                prefetch(keys, s.fresh[m + kAhead].key);
              }
              const auto [row, col] = s.fresh[m];
              const double exponent = kernel.exponent(std::size_t(row), std::size_t(col), full);
              if (exponent >= floor) out.push_back({row, col, float(std::exp(exponent))});
            }
          }
        }
      },
      poll);
}

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

/// For points of one side, in the given order, those of the other side that they may be near to:
/// partners of others that share a partner with them, of the first `width` such others, or the last
/// ones if `backwards`. Calls look(task, point, candidates) for each; what is known is no
/// candidate.
template <class Own, class Others, class Look>
void through_neighbours(const Own &own, const Others &others_of,
                        const std::vector<std::int32_t> &order, std::size_t n_partners, int width,
                        bool backwards, int n_threads, const Poll &poll, const Look &look) {
  constexpr std::size_t kAtOnce = 16;
  struct Space {
    std::vector<std::int32_t> seen_by;          // [partner]
    std::vector<std::int32_t> others[kAtOnce];  // points that share a partner
    std::vector<std::int32_t> candidates;
  };
  std::vector<Space> spaces(n_threads);
  for (Space &s : spaces) s.seen_by.assign(n_partners, -1);
  const auto share_a_partner = [&](std::int32_t point, std::vector<std::int32_t> &others) {
    others.clear();
    own.each(point, backwards, [&](std::int32_t partner) {
      return others_of.each(partner, backwards, [&](std::int32_t other) {
        if (other == point || std::find(others.begin(), others.end(), other) != others.end())
          return true;
        if (others.size() == std::size_t(width)) return false;
        others.push_back(other);
        return true;
      });
    });
  };
  parallel_for((order.size() + kPointsAsked - 1) / kPointsAsked, n_threads,
               [&](std::size_t task, int slot) {
                 Space &s = spaces[slot];
                 const std::size_t last = std::min(order.size(), (task + 1) * kPointsAsked);
                 for (std::size_t first = task * kPointsAsked; first < last; first += kAtOnce) {
                   const std::size_t n = std::min(kAtOnce, last - first);
                   const std::int32_t *points = order.data() + first;
                   // Each step reads what the one before has sent for: lists lie anywhere in
                   // memory.
                   for (std::size_t r = 0; r < n; ++r) own.fetch_place(points[r]);
                   for (std::size_t r = 0; r < n; ++r) own.fetch(points[r]);
                   for (std::size_t r = 0; r < n; ++r)
                     own.each(points[r], false,
                              [&](std::int32_t p) { return others_of.fetch_place(p), true; });
                   for (std::size_t r = 0; r < n; ++r)
                     own.each(points[r], false,
                              [&](std::int32_t p) { return others_of.fetch(p), true; });
                   for (std::size_t r = 0; r < n; ++r) {
                     share_a_partner(points[r], s.others[r]);
                     for (const auto other : s.others[r]) own.fetch_place(other);
                   }
                   for (std::size_t r = 0; r < n; ++r)
                     for (const auto other : s.others[r]) own.fetch(other);
                   for (std::size_t r = 0; r < n; ++r) {
                     const std::int32_t point = points[r];
                     s.candidates.clear();
                     own.mark(point, s.seen_by.data());
                     for (const auto other : s.others[r])
                       own.each(other, false, [&](std::int32_t p) {
                         if (s.seen_by[p] != point && !own.known(point, p))
                           s.candidates.push_back(p);
                         s.seen_by[p] = point;
                         return true;
                       });
                     look(task, point, s.candidates);
                   }
                 }
               },
               poll);
}

/// Which keys fewer queries lead to than to some other key of one of these queries.
inline std::vector<char> fall_behind(const LeadingKeys &keys_of, const LeadingQueries &queries_of,
                                     std::size_t n_queries, std::size_t n_keys, int n_threads,
                                     const Poll &poll) {
  constexpr std::size_t kQueriesPerTask = 4096;
  std::vector<std::vector<char>> behind(n_threads, std::vector<char>(n_keys, 0));
  parallel_for((n_queries + kQueriesPerTask - 1) / kQueriesPerTask, n_threads,
               [&](std::size_t task, int slot) {
                 const std::size_t last = std::min(n_queries, (task + 1) * kQueriesPerTask);
                 for (std::size_t i = task * kQueriesPerTask; i < last; ++i) {
                   const auto query = std::int32_t(i);
                   std::int64_t most = 0;
                   keys_of.each(query, false, [&](std::int32_t key) {
                     most = std::max(most, queries_of.count(key));
                     return true;
                   });
                   keys_of.each(query, false, [&](std::int32_t key) {
                     if (queries_of.count(key) < most) behind[slot][key] = 1;
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

/// Neighbours of neighbours: for each query the keys of other queries that share one of its keys;
/// or, with `of_keys`, for each key that falls behind the queries of other keys that share one of
/// its queries.
template <class T>
void neighbours_of_neighbours(const PairKernel<T> &kernel, const FoundPairs &known,
                              const Expansion &expansion, const TypedKernels<T> &kernels,
                              int n_threads, const Poll &poll, PairLists &parts) {
  const Rows<T> &queries = kernel.queries, &keys = kernel.keys;
  const int width = expansion.width;
  const bool of_keys = expansion.of_keys;
  constexpr std::size_t kAhead = 4;
  const LeadingKeys keys_of{known, expansion.least};
  const LeadingQueries queries_of(keys_of, queries.n, keys.n);
  const double floor = std::log(expansion.threshold);
  const auto look = [&](std::size_t task, const Rows<T> &others,
                        const std::vector<std::int32_t> &candidates, const auto &pair) {
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      if (c + kAhead < candidates.size()) prefetch(others, candidates[c + kAhead]);
      const auto [row, col] = pair(candidates[c]);
      const double exponent = kernel.exponent(std::size_t(row), std::size_t(col), kernels);
      if (exponent >= floor) parts[task].push_back({row, col, float(std::exp(exponent))});
    }
  };
  std::vector<std::int32_t> listed(expansion.order, expansion.order + expansion.n_listed);
  if (of_keys) {
    const auto behind = fall_behind(keys_of, queries_of, queries.n, keys.n, n_threads, poll);
    const auto none =
        std::remove_if(listed.begin(), listed.end(), [&](std::int32_t j) { return !behind[j]; });
    listed.erase(none, listed.end());
  }
  parts.resize((listed.size() + kPointsAsked - 1) / kPointsAsked);
  if (of_keys) {
    through_neighbours(
        queries_of, keys_of, listed, queries.n, width, true, n_threads, poll,
        [&](std::size_t task, std::int32_t key, const std::vector<std::int32_t> &candidates) {
          look(task, queries, candidates, [&](std::int32_t c) { return std::make_pair(c, key); });
        });
    return;
  }
  through_neighbours(
      keys_of, queries_of, listed, keys.n, width, false, n_threads, poll,
      [&](std::size_t task, std::int32_t row, const std::vector<std::int32_t> &candidates) {
        look(task, keys, candidates, [&](std::int32_t c) { return std::make_pair(row, c); });
      });
}

/// Union of known pairs and new ones (any order, repeats allowed), by query, columns ascending.
struct Union {
  std::vector<std::int64_t> indptr;
  std::vector<std::int32_t> cols;
  std::vector<float> values;
};

/// New pairs, in any order and possibly repeated.
struct ListedPairs {
  const std::int32_t *rows, *cols;
  const float *values;
  std::size_t n;
};

inline void merge_pairs(std::size_t n_rows, const FoundPairs &known, const ListedPairs &listed,
                        int n_threads, const Poll &poll, Union &out) {
  const auto [rows, cols, values, n_new] = listed;
  using Entry = std::pair<std::int32_t, float>;
  std::vector<std::int64_t> start(n_rows + 1, 0);
  for (std::size_t p = 0; p < n_new; ++p) ++start[std::size_t(rows[p]) + 1];
  for (std::size_t i = 0; i < n_rows; ++i) start[i + 1] += start[i];
  std::vector<Entry> fresh(n_new);
  {
    std::vector<std::int64_t> next(start.begin(), start.end() - 1);
    for (std::size_t p = 0; p < n_new; ++p)
      fresh[std::size_t(next[rows[p]]++)] = {cols[p], values[p]};
  }
  constexpr std::size_t kRowsPerTask = 4096;
  const std::size_t n_tasks = (n_rows + kRowsPerTask - 1) / kRowsPerTask;
  const auto by_col = [](const Entry &a, const Entry &b) { return a.first < b.first; };
  const auto same_col = [](const Entry &a, const Entry &b) { return a.first == b.first; };
  out.indptr.assign(n_rows + 1, 0);
  parallel_for(
      n_tasks, n_threads,
      [&](std::size_t task, int) {
        for (std::size_t i = task * kRowsPerTask; i < std::min(n_rows, (task + 1) * kRowsPerTask);
             ++i) {
          const auto first = fresh.begin() + start[i], last = fresh.begin() + start[i + 1];
          std::sort(first, last, by_col);
          auto end = std::unique(first, last, same_col);
          end = std::remove_if(first, end,
                               [&](const Entry &e) { return known.has(std::int32_t(i), e.first); });
          out.indptr[i + 1] = end - first;  // new ones of this row, for now
        }
      },
      poll);
  std::vector<std::int64_t> n_fresh(out.indptr.begin() + 1, out.indptr.end());
  for (std::size_t i = 0; i < n_rows; ++i)
    out.indptr[i + 1] = out.indptr[i] + n_fresh[i] + (known.indptr[i + 1] - known.indptr[i]);
  out.cols.resize(std::size_t(out.indptr[n_rows]));
  out.values.resize(out.cols.size());
  parallel_for(
      n_tasks, n_threads,
      [&](std::size_t task, int) {
        for (std::size_t i = task * kRowsPerTask; i < std::min(n_rows, (task + 1) * kRowsPerTask);
             ++i) {
          auto a = known.indptr[i];
          auto b = start[i];
          const auto a_end = known.indptr[i + 1], b_end = start[i] + n_fresh[i];
          for (auto to = out.indptr[i]; to < out.indptr[i + 1]; ++to) {
            const bool old =
                b == b_end || (a < a_end && known.cols[a] < fresh[std::size_t(b)].first);
            out.cols[std::size_t(to)] = old ? known.cols[a] : fresh[std::size_t(b)].first;
            out.values[std::size_t(to)] = old ? known.values[a] : fresh[std::size_t(b)].second;
            ++(old ? a : b);
          }
        }
      },
      poll);
}

}  // namespace akmv
