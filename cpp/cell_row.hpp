// The mean of the squared kernel over pairs of two cells, as if both were normally distributed.
#pragma once

#include "exp.hpp"
#include "kernels.hpp"

namespace akmv {
namespace AKMV_ISA {

// The square root of numbers from 0 to 1, to seven digits; 0 below 1e-38.
static inline Simd<float>::V square_root(Simd<float>::V a) {
  using S = Simd<float>;
  using V = S::V;
  using I = S::I;
  // Half the exponent, negated, and three steps of Newton's method for 1 / sqrt(a).
  const V tiny = S::splat(1e-38f), positive = S::larger(a, tiny);
  V root = reinterpret_cast<V>(0x5f3759df - (reinterpret_cast<I>(positive) >> 1));
#pragma GCC unroll 3
  for (int step = 0; step < 3; ++step)
    root *= S::splat(1.5f) - S::splat(0.5f) * positive * root * root;
  return a * root;
}

// With means delta apart and both variances together s^2, in bandwidths,
//
//   E K^2 = prod_l (1 + 2 s_l^2)^(-1/2) exp(-delta_l^2 / (1 + 2 s_l^2))
static void cell_row(const CellRow &cells) {
  using S = Simd<float>;
  using V = S::V;
  const V one = S::splat(1.0f), top = S::splat(0.0f), weight = S::splat(cells.weight);
  for (std::size_t c = 0; c < cells.n_cells; c += S::kWidth) {
    V exponent = {}, product = one;
    for (std::size_t l = 0; l < cells.n_dims; ++l) {
      const std::size_t at = l * cells.n_cells + c;
      const V both = S::splat(cells.variance[l]) + S::load(cells.variances + at);
      const V inverse = one / (one + both + both);
      const V apart = S::splat(cells.mean[l]) - S::load(cells.means + at);
      exponent -= apart * apart * inverse;
      product *= inverse;
    }
    const V mean = exp<float>(exponent, top) * square_root(product);
    S::store(cells.out + c, S::load(cells.out + c) + weight * mean);
  }
}

}  // namespace AKMV_ISA
}  // namespace akmv
