// Cells around centroids, and keys linked to keys: how near keys are found for queries that come
// later.
//
// Both answers for a query depend on that query alone, not on the others of its batch.
#pragma once

#include "../kernels.hpp"
#include "../memory.hpp"
#include "../pack.hpp"
#include "../threads.hpp"
#include "../types.hpp"
#include "dense_hits.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace akmv {

/// Puts a key into a list of the nearest, largest exponent first; equals stay in order.
template <class T>
void insert(T exponent, std::int32_t key, std::size_t width, T *exponents, std::int32_t *keys) {
  if (!(exponent > exponents[width - 1])) return;
  std::size_t at = width - 1;
  for (; at > 0 && exponent > exponents[at - 1]; --at) {
    exponents[at] = exponents[at - 1];
    keys[at] = keys[at - 1];
  }
  exponents[at] = exponent;
  keys[at] = key;
}

/// Lists of the nearest keys of a block of queries, which begin with the first keys: a query beyond
/// all bounds has no exponents and keeps those.
template <class T>
class NearestLists {
 public:
  NearestLists(std::size_t n_rows, std::size_t width, std::int32_t *keys)
      : n_rows_(n_rows),
        width_(width),
        keys_(keys),
        exponents_(kBlockRows * width, std::numeric_limits<T>::lowest()),
        floors_(kBlockRows, std::numeric_limits<T>::lowest()) {
    for (std::size_t i = 0; i < n_rows * width; ++i) keys[i] = std::int32_t(i % width);
  }

  /// The least exponent of each list: what is below has no place in it.
  const T *floors() const { return floors_.data(); }

  void add(const Hit<T> &hit, std::size_t first_key) {
    const auto row = std::size_t(hit.row);
    if (row >= n_rows_) return;
    T *exponents = exponents_.data() + row * width_;
    insert(hit.exponent, std::int32_t(first_key) + hit.key, width_, exponents,
           keys_ + row * width_);
    floors_[row] = exponents[width_ - 1];
  }

 private:
  std::size_t n_rows_, width_;
  std::int32_t *keys_;
  std::vector<T> exponents_, floors_;
};

/// The `width` nearest of the geometry's keys (here: centroids) for every query, nearest first, the
/// lower number first among equals. Needs width <= number of keys.
template <class T>
void nearest_keys(const Geometry<T> &g, std::size_t width, const TypedKernels<T> &kernels,
                  int n_threads, const Poll &poll, std::int32_t *out) {
  const std::size_t group = std::size_t(kernels.group_keys), padded = round_up(g.keys.n, group);
  Buffer<T> keys(padded * g.keys.d), key_shift(padded);
  pack_keys(g, nullptr, 0, g.keys.n, kernels, keys.get(), key_shift.get());
  std::vector<GatheredTile<T>> spaces;
  for (int i = 0; i < n_threads; ++i) spaces.emplace_back(g, kernels);
  parallel_pieces(
      g.queries.n, kBlockRows, n_threads,
      [&](const Piece &block) {
        GatheredTile<T> &tile = spaces[std::size_t(block.slot)];
        tile.gather_queries(nullptr, block.first, block.last - block.first);
        NearestLists<T> lists(block.last - block.first, width, out + block.first * width);
        // Panels double in size: a row's list soon rules out most of the keys that follow.
        std::size_t size = group;
        for (std::size_t k = 0, next = 0; k < padded; k = next) {
          next = std::min(k + size, padded);
          tile.use_keys(keys.get() + k * g.keys.d, key_shift.get() + k, next - k);
          if (k > 0) size = std::min<std::size_t>(2 * size, kPanelKeys);
          tile.each_hit(lists.floors(), [&](const Hit<T> &hit) { lists.add(hit, k); });
        }
      },
      poll);
}

/// Keys linked to a query's known keys, with value >= threshold, that are not known yet. The
/// nearest `width` of its known keys lead on to the keys that `links` lists for them.
template <class T>
class LinkFollower {
 public:
  LinkFollower(const PairKernel<T> &kernel, const FoundPairs &known, const FoundPairs &links,
               std::size_t width, double threshold, const TypedKernels<T> &kernels)
      : kernel_(kernel),
        known_(known),
        links_(links),
        width_(width),
        floor_(std::log(threshold)),
        k_(kernels) {}

  /// What one thread keeps from row to row.
  struct Space {
    std::vector<std::int32_t> seen_by;  // [key] the last row that met it
    std::vector<std::int64_t> nearest;  // places in `known`

    explicit Space(std::size_t n_keys) : seen_by(n_keys, -1) {}
  };

  void follow(std::int32_t row, Space &s, std::vector<NewPair> &out) const {
    std::int32_t *const seen_by = s.seen_by.data();
    for (auto p = known_.indptr[row]; p < known_.indptr[row + 1]; ++p)
      seen_by[known_.cols[p]] = row;
    list_nearest(row, s.nearest);
    for (const auto place : s.nearest) {
      const auto key = known_.cols[place];
      for (auto c = links_.indptr[key]; c < links_.indptr[key + 1]; ++c) {
        const auto candidate = links_.cols[c];
        if (seen_by[candidate] == row) continue;
        seen_by[candidate] = row;
        const double exponent = kernel_.exponent(std::size_t(row), std::size_t(candidate), k_);
        if (exponent >= floor_) out.push_back({row, candidate, float(std::exp(exponent))});
      }
    }
  }

 private:
  /// Places of the nearest known keys, the earlier first among equals.
  void list_nearest(std::int32_t row, std::vector<std::int64_t> &places) const {
    places.resize(std::size_t(known_.indptr[row + 1] - known_.indptr[row]));
    std::iota(places.begin(), places.end(), known_.indptr[row]);
    const auto n_followed = std::min(width_, places.size());
    std::partial_sort(places.begin(), places.begin() + std::ptrdiff_t(n_followed), places.end(),
                      [&](std::int64_t a, std::int64_t b) {
                        return std::make_pair(-known_.values[a], a) <
                               std::make_pair(-known_.values[b], b);
                      });
    places.resize(n_followed);
  }

  const PairKernel<T> &kernel_;
  const FoundPairs &known_, &links_;
  const std::size_t width_;
  const double floor_;  // of exponents
  const TypedKernels<T> &k_;
};

template <class T>
void linked_pairs(const PairKernel<T> &kernel, const FoundPairs &known, const FoundPairs &links,
                  std::size_t width, double threshold, const TypedKernels<T> &kernels,
                  int n_threads, const Poll &poll, PairLists &parts) {
  constexpr std::size_t kRowsPerTask = 256;
  const LinkFollower<T> follower(kernel, known, links, width, threshold, kernels);
  std::vector<typename LinkFollower<T>::Space> spaces;
  for (int i = 0; i < n_threads; ++i) spaces.emplace_back(kernel.keys.n);
  parts.resize(n_pieces(kernel.queries.n, kRowsPerTask));
  parallel_pieces(
      kernel.queries.n, kRowsPerTask, n_threads,
      [&](const Piece &piece) {
        for (std::size_t i = piece.first; i < piece.last; ++i)
          follower.follow(std::int32_t(i), spaces[std::size_t(piece.slot)], parts[piece.number]);
      },
      poll);
}

}  // namespace akmv
