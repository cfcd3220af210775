// What epilogues are made of: exponentials of one row of scores, and their sums.
#pragma once

#include "exp.hpp"
#include "tile.hpp"

namespace akmv {
namespace AKMV_ISA {

template <class T>
static inline void scale_in_place(T *p, int n, T factor) {
  for (int i = 0; i < n; ++i) p[i] *= factor;
}

// Largest exponent of one row of scores; the shift that keeps every exponential at most 1.
template <class T>
static inline T row_maximum(const T *scores, const T *key_shift, int n, T slope) {
  using S = Simd<T>;
  typename S::V best = slope * S::load(scores) - S::load(key_shift);
  for (int j = S::kWidth; j < n; j += S::kWidth) {
    const typename S::V t = slope * S::load(scores + j) - S::load(key_shift + j);
    best = S::larger(t, best);
  }
  return S::max(best);
}

// exp(old - next) for two row maxima, either of which may be minus infinity (no key yet).
template <class T>
static inline T decay(T old, T next) {
  using S = Simd<T>;
  if (!(old < next)) return T(1);
  return exp<T>(S::splat(old - next), S::splat(T(0)))[0];
}

// What a row of scores is to an epilogue: exponents once a shift is subtracted, the same with the
// shift that row_maximum found and exponents rounded as they are there, or kernel values already.
enum class Scores { kShifted, kOnline, kValues };

// A tile whose epilogue takes such scores.
template <class T, class Epilogue>
static inline void value_tile(const Operands<T> &t, Epilogue &epilogue);  // in kernel_values.hpp

template <Scores kScores, class T, class Epilogue>
static inline void tile_of(const Operands<T> &t, Epilogue &epilogue) {
  if constexpr (kScores == Scores::kValues)
    value_tile(t, epilogue);
  else
    tile(t, epilogue);
}

// Exponentials of one row, stored in place if `kStore`; their sum, and their product with one
// column.
template <class T, bool kStore, Scores kScores = Scores::kShifted>
static inline void exponentials(T *scores, const T *key_shift, const T *x, int n, T slope, T shift,
                                T ceiling, typename Simd<T>::V &total,
                                typename Simd<T>::V &weighted) {
  using S = Simd<T>;
  using V = typename S::V;
  constexpr T kHighest = ExpConstants<T>::kHighest;  // beyond it exp does not hold
  const V top = S::splat(ceiling < kHighest ? ceiling : kHighest);
  V sums[kVectors] = {}, products[kVectors] = {};
  for (int j = 0; j < n; j += S::kKeys) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int at = j + v * S::kWidth;
      V e;
      if constexpr (kScores == Scores::kValues) {
        e = S::load(scores + at);
      } else {
        const V t = kScores == Scores::kOnline
                        ? slope * S::load(scores + at) - S::load(key_shift + at) - shift
                        : slope * S::load(scores + at) - shift - S::load(key_shift + at);
        e = exp<T>(t, top);
      }
      if (kStore) {
        if constexpr (kScores != Scores::kValues) S::store(scores + at, e);
        sums[v] += e;
      } else {
        sums[v] += e;
        products[v] += e * S::load(x + at);
      }
    }
  }
  total = sums[0] + sums[1];
  weighted = products[0] + products[1];
}

template <class T>
static inline typename Simd<T>::V dot(const T *a, const T *b, int n) {
  using S = Simd<T>;
  typename S::V sums[kVectors] = {};
  for (int j = 0; j < n; j += S::kKeys)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sums[v] += S::load(a + j + v * S::kWidth) * S::load(b + j + v * S::kWidth);
  return sums[0] + sums[1];
}

template <class T>
static inline void accumulate(T *lanes, typename Simd<T>::V v) {
  Simd<T>::store(lanes, Simd<T>::load(lanes) + v);
}

// One bit for each lane in which a > b, or a == b if `kOrEqual`.
template <class T, bool kOrEqual>
static inline std::uint32_t lanes_above(typename Simd<T>::V a, typename Simd<T>::V b) {
#if defined(__AVX512F__)
  constexpr int kComparison = kOrEqual ? 0x1D : 0x1E, kCurrentRounding = 4;
  if constexpr (sizeof(T) == 4)
    return std::uint16_t(__builtin_ia32_cmpps512_mask(a, b, kComparison, -1, kCurrentRounding));
  else
    return std::uint8_t(__builtin_ia32_cmppd512_mask(a, b, kComparison, -1, kCurrentRounding));
#else
  const typename Simd<T>::I mask = kOrEqual ? a >= b : a > b;
#if defined(__AVX2__)
  if constexpr (kVectorBytes == 32) {
    typedef T Lanes __attribute__((vector_size(32)));
    if constexpr (sizeof(T) == 4)
      return std::uint32_t(__builtin_ia32_movmskps256(reinterpret_cast<Lanes>(mask)));
    else
      return std::uint32_t(__builtin_ia32_movmskpd256(reinterpret_cast<Lanes>(mask)));
  }
#endif
#if defined(AKMV_NEON)
  if constexpr (sizeof(T) == 4)
    return vaddvq_u32(uint32x4_t(mask) & uint32x4_t{1, 2, 4, 8});
  else
    return std::uint32_t(vaddvq_u64(uint64x2_t(mask) & uint64x2_t{1, 2}));
#endif
  std::uint32_t bits = 0;
  for (int i = 0; i < Simd<T>::kWidth; ++i) bits |= std::uint32_t(mask[i] & 1) << i;
  return bits;
#endif
}

template <class T>
static inline std::uint32_t lanes_at_least(typename Simd<T>::V a, typename Simd<T>::V b) {
  return lanes_above<T, true>(a, b);
}

// Squares of one row of exponentials times two columns.
template <class T>
static inline void square_sums(const T *exponentials, const T *x, std::size_t stride, int n,
                               T *lanes) {
  using S = Simd<T>;
  using V = typename S::V;
  V first = {}, second = {};
  for (int j = 0; j < n; j += S::kWidth) {
    const V e = S::load(exponentials + j), square = e * e;
    first += square * S::load(x + j);
    second += square * S::load(x + stride + j);
  }
  accumulate(lanes, first);
  accumulate(lanes + S::kWidth, second);
}

// How many columns the exponentials are multiplied by: a few are dotted row by row, more are a
// second product of matrices.
enum class Columns { kOne, kFew, kMany };

// Products of a strip of terms with the values of a panel.
template <class T>
static inline void add_products(const T *terms, const T *values, int width, int panel_width,
                                int n_groups, T *products) {
  using S = Simd<T>;
  for (int g = 0; g < n_groups; ++g) {
    typename S::V acc[kRows][kVectors];
    micro<T, kScoreStride, 1, false>(terms, values + std::size_t(g) * panel_width * S::kKeys,
                                     std::size_t(width), acc);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        accumulate(products + (std::size_t(r) * n_groups + g) * S::kKeys + v * S::kWidth,
                   acc[r][v]);
  }
}

}  // namespace AKMV_ISA
}  // namespace akmv
