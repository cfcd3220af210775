// The smooth part of the kernel: a polynomial in inner products, whose sums over keys are moments.
//
// With z = <q, k> / sigma^2 about the frame's centre, and u, v half the squared norms over sigma^2,
//
//   K = e^-u e^-v e^z   is close to   C = e^-u e^-v (g_0 + g_1 z + g_2 z^2)
//
// where z is small. A sum of C over keys is e^-u times a quadratic form of (q, 1) with the moments
// sum_j w_j e^-v p_j p_j^T, p_j = (k_j, 1): as cheap for all keys as for one block of queries.
#pragma once

#include "../memory.hpp"
#include "../threads.hpp"
#include "../types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace akmv {

constexpr int kSmoothTerms = 3;  // powers 0, 1 and 2

/// Entries of the lower triangle of p p^T, row by row: products, then coordinates, then 1.
inline std::size_t n_moments(std::size_t d) { return (d + 1) * (d + 2) / 2; }

/// What is taken out of each block of queries and tile of keys before keys are drawn.
template <class T>
struct SmoothPart {
  const T *moments;  // [block][n_moments], of all keys, each power with its coefficient; or null
  const float *coefficients;  // [block][tile][power]
};

/// Moments of weighted points, and the polynomials they make at other points.
template <class T>
class Moments {
 public:
  Moments(std::size_t d, const TypedKernels<T> &kernels)
      : d_(d),
        k_(kernels),
        n_rows_(d + 1),
        stride_(round_up(n_rows_, std::size_t(kernels.width))),
        sums_(n_rows_ * stride_),
        batch_(kOuter * stride_),
        multipliers_(kOuter * stride_),
        totals_(n_moments(d)) {
    std::fill_n(batch_.get(), kOuter * stride_, T(0));
  }

  /// Begins with moments that are known, or with none.
  void start(const T *known) {
    std::fill_n(sums_.get(), n_rows_ * stride_, T(0));
    n_batch_ = n_summed_ = 0;
    for (std::size_t m = 0; m < totals_.size(); ++m) totals_[m] = known ? double(known[m]) : 0.0;
  }

  /// Adds a packed point, whose coordinates are `step` apart, with a weight for each power.
  void add(const T *point, std::size_t step, const double (&weight)[kSmoothTerms]) {
    T *to = batch_.get() + n_batch_ * stride_, *factor = multipliers_.get() + n_batch_ * stride_;
    for (std::size_t l = 0; l < d_; ++l) to[l] = point[l * step];
    for (std::size_t l = 0; l < d_; ++l) factor[l] = T(weight[2]) * to[l];
    factor[d_] = T(weight[1]);
    totals_.back() += weight[0];
    if (++n_batch_ == kOuter) add_batch();
  }

  /// The moments so far.
  const std::vector<double> &totals() {
    if (n_batch_ > 0) {
      std::fill(multipliers_.get() + n_batch_ * stride_, multipliers_.get() + kOuter * stride_,
                T(0));
      add_batch();
    }
    flush();
    return totals_;
  }

  /// Makes ready for `at`: the moments so far, each coordinate of a point times `slope`.
  void make_polynomial(double slope) {
    const std::vector<double> &moments = totals();
    const double *moment = moments.data();
    for (std::size_t r = 0; r < n_rows_; ++r) {
      T *row = sums_.get() + r * stride_;
      for (std::size_t c = 0; c <= r; ++c) {
        const double times = r < d_ ? slope * slope * (c < r ? 2 : 1) : c < r ? slope : 1.0;
        row[c] = T(*moment++ * times);
      }
    }
  }

  /// The polynomial at a packed point; nothing may be added after `make_polynomial`.
  double at(const T *point, std::size_t step) {
    T *p = batch_.get();
    for (std::size_t l = 0; l < d_; ++l) p[l] = point[l * step];
    p[d_] = T(1);
    const double value = double(k_.quadratic(p, sums_.get(), n_rows_, stride_));
    p[d_] = T(0);
    return value;
  }

 private:
  static constexpr std::size_t kSummed = 1024;  // points summed in the working precision

  void add_batch() {
    k_.add_outer(multipliers_.get(), batch_.get(), n_rows_, stride_, sums_.get());
    n_batch_ = 0;
    if ((n_summed_ += kOuter) >= kSummed) flush();
  }

  void flush() {
    double *total = totals_.data();
    for (std::size_t r = 0; r < n_rows_; ++r) {
      T *row = sums_.get() + r * stride_;
      for (std::size_t c = 0; c <= r; ++c) *total++ += double(row[c]);
      std::fill_n(row, stride_, T(0));
    }
    n_summed_ = 0;
  }

  std::size_t d_;
  const TypedKernels<T> &k_;
  std::size_t n_rows_, stride_;
  Buffer<T> sums_;                 // [row][column], lower triangle
  Buffer<T> batch_, multipliers_;  // [kOuter][row]
  std::vector<double> totals_;
  std::size_t n_batch_ = 0, n_summed_ = 0;
};

/// Weighted keys in tiles key_order[start[t] .. start[t + 1]).
template <class T>
struct KeyTiles {
  const std::int32_t *key_order;
  const std::int64_t *start;  // [n + 1]
  std::size_t n;
  const T *weights;  // [keys]
};

/// out[tile][moment] = sum over the tile's keys of weight e^-v p p^T, lower triangle.
template <class T>
void tile_moments(const Geometry<T> &g, const KeyTiles<T> &tiles, const TypedKernels<T> &kernels,
                  int n_threads, const Poll &poll, T *out) {
  n_threads = int(std::max<std::size_t>(1, std::min<std::size_t>(n_threads, tiles.n)));
  struct Space {
    Moments<T> moments;
    Buffer<T> point;
  };
  std::vector<Space> spaces;
  for (int i = 0; i < n_threads; ++i) spaces.push_back({{g.keys.d, kernels}, Buffer<T>(g.keys.d)});
  parallel_for(
      tiles.n, n_threads,
      [&](std::size_t t, int slot) {
        auto &[moments, point] = spaces[slot];
        moments.start(nullptr);
        for (std::int64_t k = tiles.start[t]; k < tiles.start[t + 1]; ++k) {
          const std::size_t key = std::size_t(tiles.key_order[k]);
          const double weight = double(tiles.weights[key]) * std::exp(-g.key_shift[key]);
          if (weight == 0) continue;
          kernels.pack_row(g.keys.data + key * g.keys.d, g.keys.centre, g.keys.factor, g.keys.d, 1,
                           point.get());
          moments.add(point.get(), 1, {weight, weight, weight});
        }
        const std::vector<double> &totals = moments.totals();
        std::copy(totals.begin(), totals.end(), out + t * totals.size());
      },
      poll);
}

}  // namespace akmv
