// Kernel values at listed pairs: the gather side of the package, about 20 times dearer per pair than
// a tile, used where pairs are few (hash buckets, checks).
#pragma once

#include "kernels.hpp"
#include "threads.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace akmv {

/// A row-major n x d matrix that the caller owns.
template <class T> struct Rows {
  const T *data;
  std::size_t n, d;
  const T *operator[](std::size_t i) const { return data + i * d; }
};

constexpr std::size_t kPairsPerTask = 1 << 14;

/// out[p] = exp(slope * |q_rows[p] - k_cols[p]|^2).
template <class T>
void pair_kernel(Rows<T> queries, Rows<T> keys, const std::int64_t *rows, const std::int64_t *cols,
                 std::size_t n_pairs, double slope, const TypedKernels<T> &kernels, int n_threads,
                 const Poll &poll, double *out) {
  parallel_for(
      (n_pairs + kPairsPerTask - 1) / kPairsPerTask, n_threads,
      [&](std::size_t task, int) {
        const std::size_t last = std::min(n_pairs, (task + 1) * kPairsPerTask);
        for (std::size_t p = task * kPairsPerTask; p < last; ++p)
          out[p] = std::exp(
              slope * double(kernels.squared_distance(queries[rows[p]], keys[cols[p]], keys.d)));
      },
      poll);
}

struct Hits {
  std::vector<std::int64_t> rows, cols;
  std::vector<double> values;
};

/// For each query i the keys order[start[i] .. stop[i]) with kernel value >= threshold, in scan
/// order. `parts` receives one list per task, tasks in order of their queries.
template <class T>
void scan_ranges(Rows<T> queries, Rows<T> keys, const std::int64_t *order, const std::int64_t *start,
                 const std::int64_t *stop, double slope, double threshold,
                 const TypedKernels<T> &kernels, int n_threads, const Poll &poll,
                 std::vector<Hits> &parts) {
  constexpr std::size_t kQueriesPerTask = 256;
  parts.resize((queries.n + kQueriesPerTask - 1) / kQueriesPerTask);
  // The exponential is left to pairs that pass a test on the distance with a margin for rounding.
  const double reach = (std::log(threshold) - 1e-3) / slope;
  parallel_for(
      parts.size(), n_threads,
      [&](std::size_t task, int) {
        Hits &hits = parts[task];
        const std::size_t last = std::min(queries.n, (task + 1) * kQueriesPerTask);
        for (std::size_t i = task * kQueriesPerTask; i < last; ++i)
          for (std::int64_t s = start[i]; s < stop[i]; ++s) {
            const double r2 = double(kernels.squared_distance(queries[i], keys[order[s]], keys.d));
            if (!(r2 <= reach)) continue;
            const double value = std::exp(slope * r2);
            if (value < threshold) continue;
            hits.rows.push_back(std::int64_t(i));
            hits.cols.push_back(order[s]);
            hits.values.push_back(value);
          }
      },
      poll);
}

}  // namespace akmv
