// Random tilings: keys are cut at medians of their projections, level by level, into small cells,
// and the queries along.
//
// Near points often share a cell, and a cell is a dense tile: to look costs what a tile costs.
#pragma once

#include "../threads.hpp"
#include "../types.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace akmv {

constexpr std::size_t kCutKeys = 1 << 14;       // more keys do not cut better,
constexpr std::size_t kCutKeysOfCell = 1 << 6;  // but of small cells 64 keys each are taken

/// A key that helps to tell where a cell is cut, and its projection.
using CutKey = std::pair<float, std::size_t>;

/// The upper median of some keys, 0 of none; those below it are put first. Returns the cut, and
/// where the others begin.
template <class Iterator>
std::pair<float, Iterator> cut_at_median(Iterator first, Iterator last) {
  if (first == last) return {0.0f, last};
  const auto middle = first + (last - first) / 2;
  std::nth_element(first, middle, last);
  const float cut = middle->first;
  return {cut, std::partition(first, last, [&](const CutKey &key) { return key.first < cut; })};
}

/// Where the cells of a tiling are cut: [node] of a binary tree, level by level. Where there are
/// many keys, every so many of them tell the medians.
inline std::vector<float> median_cuts(const Rows<float> &projections) {
  const std::size_t n_keys = projections.n, depth = projections.d;
  const std::size_t n_cells = std::size_t(1) << depth;
  const std::size_t enough = std::max(kCutKeys, n_cells * kCutKeysOfCell);
  const std::size_t step = std::max<std::size_t>(1, n_pieces(n_keys, enough));
  std::vector<CutKey> keys;
  for (std::size_t i = 0; i < n_keys; i += step) keys.emplace_back(0.0f, i);
  std::vector<float> cuts;
  cuts.reserve(n_cells - 1);
  std::vector<std::size_t> start{0, keys.size()};  // of the cells of this level
  for (std::size_t level = 0; level < depth; ++level) {
    for (auto &key : keys) key.first = projections[key.second][level];
    std::vector<std::size_t> next;
    for (std::size_t c = 0; c + 1 < start.size(); ++c) {
      const auto [cut, others] = cut_at_median(keys.begin() + std::ptrdiff_t(start[c]),
                                               keys.begin() + std::ptrdiff_t(start[c + 1]));
      cuts.push_back(cut);
      next.push_back(start[c]);
      next.push_back(std::size_t(others - keys.begin()));
    }
    next.push_back(keys.size());
    start = std::move(next);
  }
  return cuts;
}

/// The cell that a point with these projections lies in.
inline std::size_t cell_of(const float *projections, const std::vector<float> &cuts) {
  std::size_t node = 0;
  for (std::size_t level = 0; node < cuts.size(); ++level)
    node = 2 * node + (projections[level] < cuts[node] ? 1 : 2);
  return node - cuts.size();
}

/// Sends points [point][cut] down the tree: their numbers by cell, ascending, and where cells
/// begin.
inline void sort_into_cells(const Rows<float> &projections, const std::vector<float> &cuts,
                            int n_threads, const Poll &poll, std::int32_t *order,
                            std::int64_t *start) {
  constexpr std::size_t kPointsPerTask = 1 << 14;
  const std::size_t n = projections.n, n_cells = cuts.size() + 1;
  std::vector<std::int32_t> cells(n);
  parallel_pieces(
      n, kPointsPerTask, n_threads,
      [&](const Piece &piece) {
        for (std::size_t i = piece.first; i < piece.last; ++i)
          cells[i] = std::int32_t(cell_of(projections[i], cuts));
      },
      poll);
  std::fill_n(start, n_cells + 1, 0);
  for (const std::int32_t cell : cells) ++start[cell + 1];
  for (std::size_t c = 0; c < n_cells; ++c) start[c + 1] += start[c];
  std::vector<std::int64_t> next(start, start + n_cells);
  for (std::size_t i = 0; i < n; ++i) order[next[std::size_t(cells[i])]++] = std::int32_t(i);
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

}  // namespace akmv
