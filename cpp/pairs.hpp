// Kernel values at listed pairs: the gather side of the package, about 20 times dearer per pair
// than a tile, used where pairs are few (hash buckets, checks).
#pragma once

#include "threads.hpp"
#include "types.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace akmv {

constexpr std::size_t kPairsPerTask = 1 << 14;

/// out[p] = K at row rows[p] and column cols[p].
template <class T>
void pair_kernel(const PairKernel<T> &kernel, const std::int64_t *rows, const std::int64_t *cols,
                 std::size_t n_pairs, const TypedKernels<T> &kernels, int n_threads,
                 const Poll &poll, double *out) {
  parallel_for((n_pairs + kPairsPerTask - 1) / kPairsPerTask, n_threads,
               [&](std::size_t task, int) {
                 const std::size_t last = std::min(n_pairs, (task + 1) * kPairsPerTask);
                 for (std::size_t p = task * kPairsPerTask; p < last; ++p)
                   out[p] = value_at(
                       kernel.function,
                       kernel.exponent(std::size_t(rows[p]), std::size_t(cols[p]), kernels));
               },
               poll);
}

struct Hits {
  std::vector<std::int64_t> rows, cols;
  std::vector<double> values;
};

/// For each query i the keys order[start[i] .. stop[i]).
struct KeyRanges {
  const std::int64_t *order, *start, *stop;
};

/// Keys of each query's range with kernel value >= threshold, in scan order. `parts` receives one
/// list per task, tasks in order of their queries.
template <class T>
void scan_ranges(const PairKernel<T> &kernel, const KeyRanges &ranges, double threshold,
                 const TypedKernels<T> &kernels, int n_threads, const Poll &poll,
                 std::vector<Hits> &parts) {
  const Rows<T> &queries = kernel.queries, &keys = kernel.keys;
  const double slope = kernel.slope;
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
          for (std::int64_t s = ranges.start[i]; s < ranges.stop[i]; ++s) {
            const std::int64_t key = ranges.order[s];
            const double r2 =
                double(kernels.squared_distance(queries[i], keys[std::size_t(key)], keys.d));
            if (!(r2 <= reach)) continue;
            const double value = std::exp(slope * r2);
            if (value < threshold) continue;
            hits.rows.push_back(std::int64_t(i));
            hits.cols.push_back(key);
            hits.values.push_back(value);
          }
      },
      poll);
}

}  // namespace akmv
