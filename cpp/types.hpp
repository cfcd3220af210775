// What the whole engine speaks of: points, how a pair of them becomes an exponent, and pairs.
//
// All of it borrows memory that the caller owns.
#pragma once

#include "kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace akmv {

inline std::size_t round_up(std::size_t n, std::size_t step) {
  return (n + step - 1) / step * step;
}

/// A row-major n x d matrix.
template <class T>
struct Rows {
  const T *data;
  std::size_t n, d;
  const T *operator[](std::size_t i) const { return data + i * d; }
};

/// Fetches the row of a matrix that will be read soon.
template <class T>
inline void prefetch(const Rows<T> &points, std::int32_t i) {
  for (std::size_t l = 0; l < points.d; l += kAlignment / sizeof(T))
    __builtin_prefetch(points[i] + l);
}

/// Row-major n x d points, and the map p -> (p - centre) * factor applied on the way in. Without a
/// centre (null) they are packed scaled only.
template <class T>
struct Points {
  const T *data;
  std::size_t n, d;
  const double *centre;
  double factor;
};

/// Queries and keys with what turns a score into an exponent.
template <class T>
struct Geometry {
  Points<T> queries, keys;
  const double *query_shift, *key_shift;
  T slope;
  bool differences;
  KernelFunction function{};
};

/// The arithmetic of double precision, a number at a time: see kernel_function.hpp.
struct ScalarMath {
  using V = double;
  static double of(double c) { return c; }
  static double root(double v) { return std::sqrt(v); }
  static double bits_of(double v) { return std::log1p(v) * kLog2E; }
  static double bounded(double bits) { return std::min(bits, 1100.0); }
  static double two_to_minus(double bits) { return std::exp2(-bits); }
};

/// The value of a kernel where the exponent of the Gaussian is `exponent`.
inline double value_at(const KernelFunction &function, double exponent) {
  if (function.family == Family::kGaussian) return std::exp(exponent);
  double value = 0;
  with_formula<ScalarMath>(function, [&](const auto &formula) { value = formula(-exponent); });
  return value;
}

/// The least exponent at which the value is at least `value`, to its last few digits.
inline double exponent_at(const KernelFunction &function, double value) {
  if (function.family == Family::kGaussian) return std::log(value);
  if (value >= 1) return value > 1 ? std::numeric_limits<double>::infinity() : 0.0;
  double least = -1e300, most = 0;  // halved by their logarithms: exponents of all sizes
  for (int step = 0; step < 200 && least < most * (1 + 1e-15); ++step) {
    const double middle = -std::sqrt(-least) * std::sqrt(std::max(-most, 1e-300));
    (value_at(function, middle) >= value ? most : least) = middle;
  }
  return most;
}

/// The kernel pair by pair, of which the Gaussian is exp(slope |q_i - k_j|^2).
template <class T>
struct PairKernel {
  Rows<T> queries, keys;
  double slope;
  KernelFunction function{};

  double exponent(std::size_t i, std::size_t j, const TypedKernels<T> &kernels) const {
    return slope * double(kernels.squared_distance(queries[i], keys[j], keys.d));
  }
};

/// Pairs by query: columns ascending in each row, with their kernel values.
struct FoundPairs {
  const std::int64_t *indptr;  // [queries + 1]
  const std::int32_t *cols;
  const float *values;

  void prefetch(std::int32_t row) const {
    for (auto p = indptr[row]; p < indptr[row + 1]; p += 16) {
      __builtin_prefetch(cols + p);
      __builtin_prefetch(values + p);
    }
  }

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

/// Numbers of some points.
struct Listing {
  const std::int32_t *points;
  std::size_t n;
};

/// Queries and keys in orders of their own, both cut into the same number of cells. Filled by those
/// who make one, of constants for those who read it.
template <class Order, class Start>
struct BasicTiling {
  Order *query_order, *key_order;
  Start *query_start, *key_start;  // [cells + 1]
  std::size_t n_cells;

  Listing queries_of(std::size_t cell) const { return of(query_order, query_start, cell); }
  Listing keys_of(std::size_t cell) const { return of(key_order, key_start, cell); }

 private:
  static Listing of(const Order *order, const Start *start, std::size_t cell) {
    return {order + start[cell], std::size_t(start[cell + 1] - start[cell])};
  }
};
using Tiling = BasicTiling<const std::int32_t, const std::int64_t>;
using NewTiling = BasicTiling<std::int32_t, std::int64_t>;

/// What draws gave: the product, unbiased estimates of its variance and of the mass left to chance,
/// sum_j (1 - pi_j) K_ij^2 |x_j|^2 over pairs that were not found, and how many were drawn.
template <class T>
struct SampledSums {
  T *out;                 // [query][column]
  double *variance;       // [query]
  double *mass;           // [query]
  std::int64_t *n_drawn;  // [block] keys, or [query] pairs
};

}  // namespace akmv
