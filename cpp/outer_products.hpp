// Sums of outer products of points, lower triangle only, and their quadratic forms.
#pragma once

#include "operands.hpp"
#include "simd.hpp"

namespace akmv {
namespace AKMV_ISA {

// sums[r][c] += sum_p multipliers[p][r] * points[p][c] for c <= r, in whole vectors.
template <class T>
static void add_outer(const T *multipliers, const T *points, std::size_t n_rows, std::size_t stride,
                      T *sums) {
  using S = Simd<T>;
  using V = typename S::V;
  for (std::size_t r = 0; r < n_rows; ++r) {
    V factor[kOuter];
#pragma GCC unroll 8
    for (int p = 0; p < kOuter; ++p) factor[p] = S::splat(multipliers[std::size_t(p) * stride + r]);
    for (std::size_t c = 0; c <= r; c += S::kWidth) {
      V sum = S::load(sums + r * stride + c);
#pragma GCC unroll 8
      for (int p = 0; p < kOuter; ++p)
        sum += factor[p] * S::load(points + std::size_t(p) * stride + c);
      S::store(sums + r * stride + c, sum);
    }
  }
}

// sum_{c <= r} point[r] sums[r][c] point[c]; the sums beyond the diagonal are 0.
template <class T>
static T quadratic(const T *point, const T *sums, std::size_t n_rows, std::size_t stride) {
  using S = Simd<T>;
  using V = typename S::V;
  V total = {};
  for (std::size_t r = 0; r < n_rows; ++r) {
    V row = {};
    for (std::size_t c = 0; c <= r; c += S::kWidth)
      row += S::load(sums + r * stride + c) * S::load(point + c);
    total += S::splat(point[r]) * row;
  }
  return S::sum(total);
}

}  // namespace AKMV_ISA
}  // namespace akmv
