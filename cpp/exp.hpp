// exp and 2^t of a vector: argument reduction by powers of two and a polynomial.
//
//   exp(t) = 2^n * exp(r),   n = round(t / ln 2),   |r| <= ln(2)/2
//
// Accuracy: below 2 ulp wherever the result is a normal number. NaN stays NaN. Results too small
// for the exponent field become 0, results from 2^127.5 (float) or 2^1023.5 (double) on become
// infinity. `ceiling` bounds the argument from above at no extra cost: a Gaussian kernel passes 0,
// so that rounding never makes a kernel value larger than 1.
//
// Where scores can be had in units of ln 2, power_of_two takes three quarters of the time: its
// reduction is exact, and the two halves of its polynomial do not wait for each other.
#pragma once

#include "simd.hpp"

namespace akmv {
namespace AKMV_ISA {

template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr float kLog2E = 1.44269504088896341f;
  static constexpr float kLn2High = 0.693145751953125f;  // 15 bits: n * kLn2High is exact
  static constexpr float kLn2Low = 1.42860682030941723e-6f;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves n in the low bits
  static constexpr float kLowest = -88.0f;      // n = -127: the scale's exponent field is 0
  static constexpr float kHighest = 89.0f;      // n = 128: the scale is infinity
  static constexpr std::int32_t kBias = 127;
  static constexpr int kMantissaBits = 23;
  // Chebyshev fit of exp on |r| <= ln(2)/2, largest error 2e-9; highest power first.
  static constexpr int kTerms = 7;
  static constexpr float kPolynomial[kTerms] = {0.00139411188958f,
                                                0.00837513477462f,
                                                0.0416663527711f,
                                                0.16666415414f,
                                                0.500000004715f,
                                                1.00000003774f,
                                                1.0f};
  // Minimax fit of 2^r on |r| <= 1/2, largest relative error 2e-9; lowest power first, without
  // the 1.
  static constexpr int kPowerTerms = 6;
  static constexpr float kPowers[kPowerTerms] = {0.6931472028682964f,   0.2402264791193031f,
                                                 0.05550332439765271f,  0.009618437483277306f,
                                                 0.001339888754660418f, 0.0001535335163946656f};
};

template <>
struct ExpConstants<double> {
  static constexpr double kLog2E = 1.4426950408889634074;
  static constexpr double kLn2High = 6.93147180369123816490e-01;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLowest = -709.0;             // n = -1023
  static constexpr double kHighest = 710.0;             // n = 1024
  static constexpr std::int64_t kBias = 1023;
  static constexpr int kMantissaBits = 52;
  // Chebyshev fit, largest error 3e-18.
  static constexpr int kTerms = 12;
  static constexpr double kPolynomial[kTerms] = {
      2.5110049204818659793e-8, 2.763265472252779189e-7,  2.7557240887229868596e-6,
      2.4801485441561312966e-5, 1.9841269890076402829e-4, 1.3888888952352862866e-3,
      8.3333333333195896163e-3, 4.166666666648795252e-2,  1.666666666666668082e-1,
      5.0000000000000184039e-1, 9.9999999999999999976e-1, 1.0};
  static constexpr int kPowerTerms = 11;  // largest relative error 4e-18
  static constexpr double kPowers[kPowerTerms] = {
      6.931471805599453259e-1, 2.4022650695910131247e-1, 5.550410866482007196e-2,
      9.61812910759412763e-3,  1.33335581467773629e-3,   1.5403530457102041e-4,
      1.525273349046271e-5,    1.3215435286603e-6,       1.0178200690323e-7,
      7.073782727e-9,          4.4346025406e-10};
};

template <class T>
static inline typename Simd<T>::V exp(typename Simd<T>::V t, typename Simd<T>::V ceiling) {
  using C = ExpConstants<T>;
  using S = Simd<T>;
  using V = typename S::V;
  using I = typename S::I;
  t = S::at_most(t, ceiling);
  t = S::at_least(t, S::splat(C::kLowest));
  const V shifted = t * S::splat(C::kLog2E) + S::splat(C::kRound);
  const V n = shifted - S::splat(C::kRound);
  V r = t - n * S::splat(C::kLn2High);
  r = r - n * S::splat(C::kLn2Low);
  V p = S::splat(C::kPolynomial[0]);
#pragma GCC unroll 16
  for (int i = 1; i < C::kTerms; ++i) p = p * r + S::splat(C::kPolynomial[i]);
  // The scale multiplies instead of being added to p's exponent, so that a NaN in p survives.
  const I scale = (reinterpret_cast<I>(shifted) + C::kBias) << C::kMantissaBits;
  return p * reinterpret_cast<V>(scale);
}

// 2^t for |t| <= kBias - 1.
template <class T>
static inline typename Simd<T>::V normal_power_of_two(typename Simd<T>::V t) {
  using C = ExpConstants<T>;
  using S = Simd<T>;
  using V = typename S::V;
  using I = typename S::I;
  const V shifted = t + S::splat(C::kRound);
  const V r = t - (shifted - S::splat(C::kRound)), square = r * r;
  V halves[2];  // of (2^r - 1) / r, even powers and odd ones
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const int last = (C::kPowerTerms - 1 - half) / 2 * 2 + half;
    halves[half] = S::splat(C::kPowers[last]);
#pragma GCC unroll 16
    for (int i = last - 2; i >= 0; i -= 2)
      halves[half] = halves[half] * square + S::splat(C::kPowers[i]);
  }
  const V scale =
      reinterpret_cast<V>((reinterpret_cast<I>(shifted) + C::kBias) << C::kMantissaBits);
  return (halves[1] * square + halves[0] * r) * scale + scale;
}

// 2^t for t <= kBias; 0 where that is no normal number.
template <class T>
static inline typename Simd<T>::V power_of_two(typename Simd<T>::V t) {
  return normal_power_of_two<T>(Simd<T>::at_least(t, Simd<T>::splat(T(-ExpConstants<T>::kBias))));
}

}  // namespace AKMV_ISA
}  // namespace akmv
