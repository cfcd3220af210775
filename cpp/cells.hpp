// Cells around centroids, and keys linked to keys: how near keys are found for queries that come
// later.
//
// Both answers for a query depend on that query alone, not on the others of its batch.
#pragma once

#include "near.hpp"

namespace akmv {

/// Puts a key into a list of the nearest, largest exponent first; equals stay in order.
template <class T>
inline void insert(T exponent, std::int32_t key, std::size_t width, T *exponents,
                   std::int32_t *keys) {
  if (!(exponent > exponents[width - 1])) return;
  std::size_t at = width - 1;
  for (; at > 0 && exponent > exponents[at - 1]; --at) {
    exponents[at] = exponents[at - 1];
    keys[at] = keys[at - 1];
  }
  exponents[at] = exponent;
  keys[at] = key;
}

/// The `width` nearest of the geometry's keys (here: centroids) for every query, nearest first, the
/// lower number first among equals. Needs width <= number of keys.
template <class T>
void nearest_keys(const Geometry<T> &g, std::size_t width, const TypedKernels<T> &kernels,
                  int n_threads, const Poll &poll, std::int32_t *out) {
  const std::size_t d = g.keys.d;
  const std::size_t padded = round_up(g.keys.n, kernels.group_keys);
  Buffer<T> keys(padded * d), key_shift(padded);
  pack_shift(g.key_shift, nullptr, 0, g.keys.n, padded, key_shift.get());
  pack_points(g.keys, nullptr, 0, g.keys.n, key_shift.get(), kernels, kernels.group_keys,
              keys.get());
  std::vector<GatheredTile<T>> spaces;
  for (int i = 0; i < n_threads; ++i) spaces.emplace_back(d, kernels);
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  parallel_for((g.queries.n + kBlockRows - 1) / kBlockRows, n_threads,
               [&](std::size_t task, int slot) {
                 GatheredTile<T> &s = spaces[slot];
                 const std::size_t first = task * kBlockRows;
                 const std::size_t n_rows = std::min<std::size_t>(kBlockRows, g.queries.n - first);
                 pack_shift(g.query_shift, nullptr, first, n_rows, kBlockRows, s.query_shift.get());
                 pack_points(g.queries, nullptr, first, n_rows, s.query_shift.get(), kernels,
                             kernels.rows, s.queries.get());
                 Tile<T> tile{};
                 tile.queries = s.queries.get();
                 tile.query_shift = s.query_shift.get();
                 tile.n_dims = d;
                 tile.slope = g.slope;
                 tile.differences = g.differences;
                 tile.scores = s.scores.get();
                 tile.n_strips = int((n_rows + kernels.rows - 1) / kernels.rows);
                 // A query beyond all bounds has no exponents: it gets the first keys.
                 std::int32_t *to = out + first * width;
                 for (std::size_t i = 0; i < n_rows * width; ++i) to[i] = std::int32_t(i % width);
                 std::vector<T> best(kBlockRows * width, kLowest), floors(kBlockRows, kLowest);
                 // Panels double in size: a row's list soon rules out most of the keys that follow.
                 std::size_t size = std::size_t(kernels.group_keys);
                 for (std::size_t k = 0; k < padded; k += tile.n_keys) {
                   tile.keys = keys.get() + k * d;
                   tile.key_shift = key_shift.get() + k;
                   tile.n_keys = std::min(size, padded - k);
                   if (k > 0) size = std::min<std::size_t>(2 * size, kPanelKeys);
                   const int n_hits = kernels.hits_by_row(tile, floors.data(), s.hits.get());
                   for (int h = 0; h < n_hits; ++h) {
                     const Hit<T> &hit = s.hits.get()[h];
                     const std::size_t row = std::size_t(hit.row);
                     if (row >= n_rows) continue;
                     insert(hit.exponent, std::int32_t(k) + hit.key, width,
                            best.data() + row * width, to + row * width);
                     floors[row] = best[(row + 1) * width - 1];
                   }
                 }
               },
               poll);
}

/// Keys linked to a query's known keys, with value >= threshold, that are not known yet. The
/// nearest `width` of its known keys lead on to the keys that `links` lists for them.
template <class T>
void linked_pairs(const PairKernel<T> &kernel, const FoundPairs &known, const FoundPairs &links,
                  std::size_t width, double threshold, const TypedKernels<T> &kernels,
                  int n_threads, const Poll &poll, PairLists &parts) {
  const Rows<T> &queries = kernel.queries, &keys = kernel.keys;
  constexpr std::size_t kRowsPerTask = 256;
  parts.resize((queries.n + kRowsPerTask - 1) / kRowsPerTask);
  std::vector<std::vector<std::int32_t>> seen(n_threads, std::vector<std::int32_t>(keys.n, -1));
  const double floor = std::log(threshold);
  parallel_for(
      parts.size(), n_threads,
      [&](std::size_t task, int slot) {
        auto &last_seen = seen[slot];
        std::vector<std::int64_t> nearest;  // places in `known`
        const std::size_t last = std::min(queries.n, (task + 1) * kRowsPerTask);
        for (std::size_t i = task * kRowsPerTask; i < last; ++i) {
          const auto row = std::int32_t(i);
          for (auto p = known.indptr[i]; p < known.indptr[i + 1]; ++p)
            last_seen[known.cols[p]] = row;
          nearest.clear();
          for (auto p = known.indptr[i]; p < known.indptr[i + 1]; ++p) nearest.push_back(p);
          const auto n_followed = std::min(width, nearest.size());
          std::partial_sort(nearest.begin(), nearest.begin() + std::ptrdiff_t(n_followed),
                            nearest.end(), [&](std::int64_t a, std::int64_t b) {
                              return std::make_pair(-known.values[a], a) <
                                     std::make_pair(-known.values[b], b);
                            });
          for (std::size_t f = 0; f < n_followed; ++f) {
            const auto key = known.cols[nearest[f]];
            for (auto c = links.indptr[key]; c < links.indptr[key + 1]; ++c) {
              const auto candidate = links.cols[c];
              if (last_seen[candidate] == row) continue;
              last_seen[candidate] = row;
              const double exponent = kernel.exponent(i, std::size_t(candidate), kernels);
              if (exponent >= floor)
                parts[task].push_back({row, candidate, float(std::exp(exponent))});
            }
          }
        }
      },
      poll);
}

}  // namespace akmv
