// Pilot rows: the exponentials of one panel as they are, and sums of their squares or of more.
#pragma once

#include "../operands.hpp"
#if defined(AKMV_ISA)
#include "../rows.hpp"
#endif

namespace akmv {

constexpr int kPowerSums = 10;

template <class T>
struct PilotTile {
  // Without x two columns [column][panel][key] for the squares, whose sums are all there is in
  // `lanes`. With x three: with z = slope * s_ij and e the exponential, `lanes` has sums of e x, of
  // e^2 times the first and, where e is below `threshold`, of e z^k times the second for k = 0, 1,
  // 2 and of z^k times the third for k = 0 to 4.
  const T *weights;
  const T *x;  // [panel][key], or null
  T threshold;
  T *lanes;    // out [kBlockRows][2 or kPowerSums] vectors of partial sums
  T *values;   // out [kBlockRows][kPanelKeys]: the exponentials of one panel
  T *largest;  // out [kBlockRows], with x: the largest of them
};

#if defined(AKMV_ISA)
namespace AKMV_ISA {

// Exponentials of one row in place, the largest of them, and sums of them and of powers of the
// scores: see PilotTile.
template <class T>
static inline T exponentials_and_powers(const Operands<T> &t, const PilotTile<T> &p,
                                        std::size_t at_key, T *scores, int n, T shift,
                                        typename Simd<T>::V (&sums)[kPowerSums]) {
  using S = Simd<T>;
  using V = typename S::V;
  const T *key_shift = t.key_shift + at_key, *x = p.x + at_key, *power_x = p.weights + at_key;
  const V top = S::splat(t.ceiling), threshold = S::splat(p.threshold);
  V largest = {};
  for (int k = 0; k < kPowerSums; ++k) sums[k] = V{};
  for (int j = 0; j < n; j += S::kWidth) {
    const V z = t.slope * S::load(scores + j);
    const V e = exp<T>(z - shift - S::load(key_shift + j), top);
    S::store(scores + j, e);
    largest = e > largest ? e : largest;
    sums[0] += e * S::load(x + j);
    sums[1] += e * e * S::load(power_x + j);
    V term = e < threshold ? e * S::load(power_x + t.n_keys + j) : V{};
    sums[2] += term;
    sums[3] += term *= z;
    sums[4] += term * z;
    term = e < threshold ? S::load(power_x + 2 * t.n_keys + j) : V{};
    sums[5] += term;
#pragma GCC unroll 4
    for (int k = 6; k < kPowerSums; ++k) sums[k] += term *= z;
  }
  return S::max(largest);
}

template <class T>
static inline void copy_values(const T *values, int row, int n, T *out) {
  for (int j = 0; j < n; ++j) out[row * kPanelKeys + j] = values[j];
}

template <class T>
struct PilotSquares {
  const Operands<T> &t;
  const PilotTile<T> &p;

  void row(const Patch &at, int row, T *scores) const {
    typename Simd<T>::V total, weighted;
    exponentials<T, true>(scores, t.key_shift + at.first, nullptr, at.width, t.slope,
                          t.query_shift[row], t.ceiling, total, weighted);
    square_sums(scores, p.weights + at.first, t.n_keys, at.width,
                p.lanes + std::size_t(row) * 2 * Simd<T>::kWidth);
    copy_values(scores, row, at.width, p.values);
  }

  void strip(const Patch &) const {}
};

template <class T>
struct PilotPowers {
  const Operands<T> &t;
  const PilotTile<T> &p;

  void row(const Patch &at, int row, T *scores) const {
    typename Simd<T>::V sums[kPowerSums];
    p.largest[row] =
        exponentials_and_powers<T>(t, p, at.first, scores, at.width, t.query_shift[row], sums);
    T *lanes = p.lanes + std::size_t(row) * kPowerSums * Simd<T>::kWidth;
    for (int k = 0; k < kPowerSums; ++k) accumulate(lanes + k * Simd<T>::kWidth, sums[k]);
    copy_values(scores, row, at.width, p.values);
  }

  void strip(const Patch &) const {}
};

template <class T>
static void pilot(const Operands<T> &t, const PilotTile<T> &p) {
  if (p.x) {
    PilotPowers<T> epilogue{t, p};
    tile(t, epilogue);
  } else {
    PilotSquares<T> epilogue{t, p};
    tile(t, epilogue);
  }
}

}  // namespace AKMV_ISA
#endif

}  // namespace akmv
