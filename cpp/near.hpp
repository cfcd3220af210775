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

/// Queries and keys with what turns a score into an exponent.
template <class T> struct Geometry {
  Points<T> queries, keys;
  const double *query_shift, *key_shift;
  T slope;
  bool differences;
};

/// Pairs by query: columns ascending in each row, with their kernel values.
struct FoundPairs {
  const std::int64_t *indptr;  // [queries + 1]
  const std::int32_t *cols;
  const float *values;

  bool has(std::int32_t row, std::int32_t col) const {
    return std::binary_search(cols + indptr[row], cols + indptr[row + 1], col);
  }
};

/// A pair met in a search. Lists are kept by task, not by thread: their order is always the same.
struct NewPair {
  std::int32_t row, col;
  float value;
};
using PairLists = std::vector<std::vector<NewPair>>;

/// One tiling of `depth` cuts, from projections [cut][point]. Writes both orders, and where the
/// queries and keys of each of the 2^depth cells begin. Equal projections stay together.
inline void random_tiling(const float *key_projections, std::size_t n_keys,
                          const float *query_projections, std::size_t n_queries, int depth,
                          std::int32_t *key_order, std::int32_t *query_order,
                          std::int64_t *key_start, std::int64_t *query_start) {
  for (std::size_t i = 0; i < n_keys; ++i) key_order[i] = std::int32_t(i);
  for (std::size_t i = 0; i < n_queries; ++i) query_order[i] = std::int32_t(i);
  const std::size_t n_cells = std::size_t(1) << depth;
  key_start[0] = query_start[0] = 0;
  key_start[n_cells] = std::int64_t(n_keys);
  query_start[n_cells] = std::int64_t(n_queries);
  std::vector<std::pair<float, std::int32_t>> cell;
  for (int level = 0; level < depth; ++level) {
    const std::size_t stride = n_cells >> level;
    const float *of_key = key_projections + std::size_t(level) * n_keys;
    const float *of_query = query_projections + std::size_t(level) * n_queries;
    for (std::size_t c = 0; c < n_cells; c += stride) {
      const std::int64_t first = key_start[c], last = key_start[c + stride];
      cell.clear();
      for (std::int64_t p = first; p < last; ++p) cell.emplace_back(of_key[key_order[p]], key_order[p]);
      float cut = 0;
      if (!cell.empty()) {
        const auto middle = cell.begin() + (last - first) / 2;
        std::nth_element(cell.begin(), middle, cell.end());
        cut = middle->first;
      }
      const auto upper =
          std::partition(cell.begin(), cell.end(), [&](const auto &e) { return e.first < cut; });
      for (std::int64_t p = first; p < last; ++p) key_order[p] = cell[std::size_t(p - first)].second;
      key_start[c + stride / 2] = first + (upper - cell.begin());
      const auto beyond = std::partition(query_order + query_start[c], query_order + query_start[c + stride],
                                         [&](std::int32_t i) { return of_query[i] < cut; });
      query_start[c + stride / 2] = beyond - query_order;
    }
  }
}

/// A dense tile of gathered points: buffers of one thread.
template <class T> struct GatheredTile {
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

/// Ranges of two orders whose product is searched.
struct TileRanges {
  const std::int64_t *query_start, *query_stop, *key_start, *key_stop;
  std::size_t n;
};

/// Pairs with exponent >= floor in the given tiles that are not in `known` yet.
template <class T>
bool tile_hits(const Geometry<T> &g, const std::int32_t *query_order, const std::int32_t *key_order,
               const TileRanges &tiles, T floor, const FoundPairs &known,
               const TypedKernels<T> &kernels, int n_threads, const Poll &poll,
               PairLists &parts) {
  std::vector<GatheredTile<T>> spaces;
  for (int i = 0; i < n_threads; ++i) spaces.emplace_back(g.keys.d, kernels);
  parts.resize(tiles.n);
  return parallel_for(
      tiles.n, n_threads,
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
        for (std::int64_t k = tiles.key_start[t]; k < tiles.key_stop[t]; k += kPanelKeys) {
          const std::size_t n_keys = std::min<std::int64_t>(kPanelKeys, tiles.key_stop[t] - k);
          tile.n_keys = round_up(n_keys, kernels.group_keys);
          pack_shift(g.key_shift, key_order + k, 0, n_keys, tile.n_keys, s.key_shift.get());
          pack_points(g.keys, key_order + k, 0, n_keys, s.key_shift.get(), kernels,
                      kernels.group_keys, s.keys.get());
          for (std::int64_t q = tiles.query_start[t]; q < tiles.query_stop[t]; q += kBlockRows) {
            const std::size_t n_rows = std::min<std::int64_t>(kBlockRows, tiles.query_stop[t] - q);
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

/// Neighbours of neighbours: for each query the keys of other queries that share one of its keys.
/// Only pairs with value >= `least` lead on, at most `width` at each step; new pairs with value >=
/// `threshold` are listed. `sharing` has the queries of each key.
template <class T>
bool neighbours_of_neighbours(const Rows<T> &queries, const Rows<T> &keys, double slope,
                              const FoundPairs &known, const std::int64_t *sharing_indptr,
                              const std::int32_t *sharing, float least, int width, double threshold,
                              const TypedKernels<T> &kernels, int n_threads, const Poll &poll,
                              PairLists &parts) {
  constexpr std::size_t kRowsPerTask = 256;
  parts.resize((queries.n + kRowsPerTask - 1) / kRowsPerTask);
  std::vector<std::vector<std::int32_t>> seen(n_threads, std::vector<std::int32_t>(keys.n, -1));
  const double floor = std::log(threshold);
  return parallel_for(
      parts.size(), n_threads,
      [&](std::size_t task, int slot) {
        auto &last_seen = seen[slot];
        const std::size_t last = std::min(queries.n, (task + 1) * kRowsPerTask);
        for (std::size_t i = task * kRowsPerTask; i < last; ++i) {
          const auto row = std::int32_t(i);
          for (auto p = known.indptr[i]; p < known.indptr[i + 1]; ++p) last_seen[known.cols[p]] = row;
          int n_keys = 0;
          for (auto p = known.indptr[i]; p < known.indptr[i + 1] && n_keys < width; ++p) {
            if (known.values[p] < least) continue;
            ++n_keys;
            const auto key = known.cols[p];
            int n_queries = 0;
            for (auto s = sharing_indptr[key]; s < sharing_indptr[key + 1] && n_queries < width; ++s) {
              const auto other = sharing[s];
              if (other == row) continue;
              ++n_queries;
              for (auto c = known.indptr[other]; c < known.indptr[other + 1]; ++c) {
                const auto candidate = known.cols[c];
                if (known.values[c] < least || last_seen[candidate] == row) continue;
                last_seen[candidate] = row;
                const double exponent =
                    slope * double(kernels.squared_distance(queries[i], keys[candidate], keys.d));
                if (exponent >= floor)
                  parts[task].push_back({row, candidate, float(std::exp(exponent))});
              }
            }
          }
        }
      },
      poll);
}

/// Union of known pairs and new ones (any order, repeats allowed), by query, columns ascending.
struct Union {
  std::vector<std::int64_t> indptr;
  std::vector<std::int32_t> cols;
  std::vector<float> values;
};

inline bool merge_pairs(std::size_t n_rows, const FoundPairs &known, const std::int32_t *rows,
                        const std::int32_t *cols, const float *values, std::size_t n_new,
                        int n_threads, const Poll &poll, Union &out) {
  using Entry = std::pair<std::int32_t, float>;
  std::vector<std::int64_t> start(n_rows + 1, 0);
  for (std::size_t p = 0; p < n_new; ++p) ++start[std::size_t(rows[p]) + 1];
  for (std::size_t i = 0; i < n_rows; ++i) start[i + 1] += start[i];
  std::vector<Entry> fresh(n_new);
  {
    std::vector<std::int64_t> next(start.begin(), start.end() - 1);
    for (std::size_t p = 0; p < n_new; ++p) fresh[std::size_t(next[rows[p]]++)] = {cols[p], values[p]};
  }
  constexpr std::size_t kRowsPerTask = 4096;
  const std::size_t n_tasks = (n_rows + kRowsPerTask - 1) / kRowsPerTask;
  const auto by_col = [](const Entry &a, const Entry &b) { return a.first < b.first; };
  const auto same_col = [](const Entry &a, const Entry &b) { return a.first == b.first; };
  out.indptr.assign(n_rows + 1, 0);
  const bool sorted = parallel_for(
      n_tasks, n_threads,
      [&](std::size_t task, int) {
        for (std::size_t i = task * kRowsPerTask; i < std::min(n_rows, (task + 1) * kRowsPerTask); ++i) {
          const auto first = fresh.begin() + start[i], last = fresh.begin() + start[i + 1];
          std::sort(first, last, by_col);
          auto end = std::unique(first, last, same_col);
          end = std::remove_if(first, end, [&](const Entry &e) { return known.has(std::int32_t(i), e.first); });
          out.indptr[i + 1] = end - first;  // new ones of this row, for now
        }
      },
      poll);
  if (!sorted) return false;
  std::vector<std::int64_t> n_fresh(out.indptr.begin() + 1, out.indptr.end());
  for (std::size_t i = 0; i < n_rows; ++i)
    out.indptr[i + 1] = out.indptr[i] + n_fresh[i] + (known.indptr[i + 1] - known.indptr[i]);
  out.cols.resize(std::size_t(out.indptr[n_rows]));
  out.values.resize(out.cols.size());
  return parallel_for(
      n_tasks, n_threads,
      [&](std::size_t task, int) {
        for (std::size_t i = task * kRowsPerTask; i < std::min(n_rows, (task + 1) * kRowsPerTask); ++i) {
          auto a = known.indptr[i];
          auto b = start[i];
          const auto a_end = known.indptr[i + 1], b_end = start[i] + n_fresh[i];
          for (auto to = out.indptr[i]; to < out.indptr[i + 1]; ++to) {
            const bool old = b == b_end || (a < a_end && known.cols[a] < fresh[std::size_t(b)].first);
            out.cols[std::size_t(to)] = old ? known.cols[a] : fresh[std::size_t(b)].first;
            out.values[std::size_t(to)] = old ? known.values[a] : fresh[std::size_t(b)].second;
            ++(old ? a : b);
          }
        }
      },
      poll);
}

}  // namespace akmv
