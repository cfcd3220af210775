// exp of a vector: argument reduction by powers of two and a polynomial.
//
//   exp(t) = 2^n * exp(r),   n = round(t / ln 2),   |r| <= ln(2)/2
//
// Accuracy: below 2 ulp wherever the result is a normal number. NaN stays NaN. Results too small for
// the exponent field become 0, results from 2^127.5 (float) or 2^1023.5 (double) on become infinity.
// `ceiling` bounds the argument from above at no extra cost: a Gaussian kernel passes 0, so that
// rounding never makes a kernel value larger than 1.
#pragma once

#include "simd.hpp"

namespace akmv {
namespace AKMV_ISA {

template <class T> struct ExpConstants;

template <> struct ExpConstants<float> {
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
  static constexpr float kPolynomial[kTerms] = {0.00139411188958f, 0.00837513477462f,
                                                0.0416663527711f,  0.16666415414f,
                                                0.500000004715f,   1.00000003774f, 1.0f};
};

template <> struct ExpConstants<double> {
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
      2.5110049204818659793e-8, 2.763265472252779189e-7,   2.7557240887229868596e-6,
      2.4801485441561312966e-5, 1.9841269890076402829e-4,  1.3888888952352862866e-3,
      8.3333333333195896163e-3, 4.166666666648795252e-2,   1.666666666666668082e-1,
      5.0000000000000184039e-1, 9.9999999999999999976e-1,  1.0};
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

}  // namespace AKMV_ISA
}  // namespace akmv
