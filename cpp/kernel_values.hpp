// Values of other kernels than the Gaussian: the scores of a strip become values in place, while
// they are in the first-level cache, and epilogues take them as they are.
//
// Only the Gaussian is computed inside the epilogues. A strip has 13 KiB of scores: reading and
// writing them once more takes a few per cent, and each kernel is compiled once instead of once for
// each epilogue.
#pragma once

#include "exp.hpp"
#include "kernel_function.hpp"
#include "rows.hpp"

namespace akmv {
namespace AKMV_ISA {

template <class T>
struct LogConstants;

// log2((1 + s) / (1 - s)) = s P(s^2) for |s| <= (sqrt(2) - 1) / (sqrt(2) + 1); lowest power first.
template <>
struct LogConstants<float> {
  static constexpr std::int32_t kRootHalf = 0x3f3504f3;  // the bits of sqrt(1/2)
  static constexpr float kMost = 0x1p126f;
  static constexpr int kTerms = 4;  // largest relative error 7e-10
  static constexpr float kPolynomial[kTerms] = {2.8853900798f, 0.96179883946f, 0.57671511184f,
                                                0.43171971573f};
};

template <>
struct LogConstants<double> {
  static constexpr std::int64_t kRootHalf = 0x3fe6a09e667f3bcd;
  static constexpr double kMost = 0x1p1022;
  static constexpr int kTerms = 8;  // largest relative error 1.2e-18
  static constexpr double kPolynomial[kTerms] = {2.8853900817779268115,  0.96179669392598973881,
                                                 0.57707801634551408177, 0.41219858584229418696,
                                                 0.32059853476504814154, 0.26233436060329547249,
                                                 0.22091286734180157085, 0.21366122502798327273};
};

// The arithmetic of vectors: see kernel_function.hpp.
template <class T>
struct VectorMath {
  using S = Simd<T>;
  using V = typename S::V;
  using I = typename S::I;
  using E = ExpConstants<T>;

  static inline V of(double c) { return S::splat(T(c)); }
  static inline V root(V v) { return S::root(v); }
  static inline V bounded(V bits) { return S::at_most(bits, S::splat(T(E::kBias))); }
  static inline V two_to_minus(V bits) { return normal_power_of_two<T>(-bits); }

  // 1 + v = 2^n (1 + f) with f from sqrt(1/2) - 1 to sqrt(2) - 1. Small v are f itself, to the bit.
  static inline V bits_of(V v) {
    using C = LogConstants<T>;
    const V one = S::splat(T(1)), within = S::at_most(v, S::splat(C::kMost));
    const I n = (reinterpret_cast<I>(one + within) - C::kRootHalf) >> E::kMantissaBits;
    const V scale = reinterpret_cast<V>((E::kBias - n) << E::kMantissaBits);
    const V f = within * scale + (scale - one);
    const V s = f / (one + one + f), square = s * s;
    V p = S::splat(C::kPolynomial[C::kTerms - 1]);
#pragma GCC unroll 16
    for (int i = C::kTerms - 2; i >= 0; --i) p = p * square + S::splat(C::kPolynomial[i]);
    // n in the low bits of a number whose units they are.
    const V rounder = S::splat(E::kRound);
    const V whole = reinterpret_cast<V>(n + reinterpret_cast<I>(rounder)) - rounder;
    return s * p + whole + (v - within);  // infinite where v is
  }
};

// Exponents of one row of scores, and what a formula makes of them, in place.
template <class T, class Formula>
static inline void values_of_row(const Operands<T> &t, int row, std::size_t first, int n,
                                 const Formula &formula, T *scores) {
  using S = Simd<T>;
  using V = typename S::V;
  const T *key_shift = t.key_shift + first;
  const V shift = S::splat(t.query_shift[row]), zero = S::splat(T(0));
  for (int j = 0; j < n; j += S::kKeys)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int at = j + v * S::kWidth;
      const V exponent = t.slope * S::load(scores + at) - shift - S::load(key_shift + at);
      S::store(scores + at, formula(S::at_least(-exponent, zero)));
    }
}

// Writes the kernel values of all keys of a panel where EveryScore writes scores.
template <class T, bool kDifferences>
struct EveryValue {
  int operator()(const Operands<T> &t, int strip, std::size_t first, int width) const {
    const int n = EveryScore<T, kDifferences>{}(t, strip, first, width);
    with_formula<VectorMath<T>>(t.function, [&](const auto &formula) {
      for (int r = 0; r < kRows; ++r)
        values_of_row(t, strip * kRows + r, first, n, formula, t.scores + r * kScoreStride);
    });
    return n;
  }
};

template <class T, class Epilogue>
static inline void value_tile(const Operands<T> &t, Epilogue &epilogue) {
  if (t.differences)
    tile(t, EveryValue<T, true>{}, epilogue);
  else
    tile(t, EveryValue<T, false>{}, epilogue);
}

}  // namespace AKMV_ISA
}  // namespace akmv
