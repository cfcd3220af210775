// Products with drawn keys: exponentials of a row times columns, and their squares times two
// others, which make the variance and the mass.
#pragma once

#include "../operands.hpp"
#if defined(AKMV_ISA)
#include "../rows.hpp"
#endif

namespace akmv {

template <class T>
struct SampledTile {
  const T *x;  // few columns: [column][panel][key]; many: [panel][column group][key][column]
  int n_columns;
  const T *square_x;  // two columns [column][panel][key] for the squared exponentials
  // Null, or three columns [power][panel][key], for one column x: the squares are then those of
  // exponentials less query_scale[i] times this polynomial in slope * s_ij.
  const T *smooth;
  const T *query_scale;  // [kBlockRows]
  T *lanes;              // out [kBlockRows][few columns, then two] vectors of partial sums
  T *products;           // out, many columns: [kBlockRows][padded columns]
};

#if defined(AKMV_ISA)
namespace AKMV_ISA {

// Exponentials of one row times one column, and their squares times two others; if `kSmooth` those
// of what is left of them without `scale` times a polynomial.
template <class T, bool kSmooth>
static inline void exponentials_and_squares(const Operands<T> &t, const SampledTile<T> &p,
                                            std::size_t at_key, const T *scores, int n, T shift,
                                            T scale, typename Simd<T>::V (&sums)[3]) {
  using S = Simd<T>;
  using V = typename S::V;
  const T *key_shift = t.key_shift + at_key, *x = p.x + at_key, *square_x = p.square_x + at_key;
  const T *smooth = kSmooth ? p.smooth + at_key : nullptr;
  const V top = S::splat(t.ceiling);
  V first[kVectors] = {}, second[kVectors] = {}, third[kVectors] = {};
  for (int j = 0; j < n; j += S::kKeys) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int at = j + v * S::kWidth;
      const V z = t.slope * S::load(scores + at);
      const V e = exp<T>(z - shift - S::load(key_shift + at), top);
      first[v] += e * S::load(x + at);
      V left = e;
      if (kSmooth) {
        const V c1 = S::load(smooth + t.n_keys + at), c2 = S::load(smooth + 2 * t.n_keys + at);
        left -= scale * (S::load(smooth + at) + z * (c1 + z * c2));
      }
      const V square = left * left;
      second[v] += square * S::load(square_x + at);
      third[v] += square * S::load(square_x + t.n_keys + at);
    }
  }
  sums[0] = first[0] + first[1];
  sums[1] = second[0] + second[1];
  sums[2] = third[0] + third[1];
}

template <class T, bool kSmooth>
struct OneSampledColumn {
  const Operands<T> &t;
  const SampledTile<T> &p;

  void row(const Patch &at, int row, const T *scores) const {
    typename Simd<T>::V sums[3];
    exponentials_and_squares<T, kSmooth>(t, p, at.first, scores, at.width, t.query_shift[row],
                                         kSmooth ? p.query_scale[row] : T(0), sums);
    T *lanes = p.lanes + std::size_t(row) * 3 * Simd<T>::kWidth;
    for (int c = 0; c < 3; ++c) accumulate(lanes + c * Simd<T>::kWidth, sums[c]);
  }

  void strip(const Patch &) const {}
};

template <class T, Columns kColumns>
struct SampledColumns {
  static constexpr int kWidth = Simd<T>::kWidth;

  const Operands<T> &t;
  const SampledTile<T> &p;
  const int n_few = kColumns == Columns::kMany ? 0 : p.n_columns;
  const int n_groups = (p.n_columns + Simd<T>::kKeys - 1) / Simd<T>::kKeys;
  const int padded = n_groups * Simd<T>::kKeys;

  void row(const Patch &at, int row, T *scores) const {
    typename Simd<T>::V total, weighted;
    exponentials<T, true>(scores, t.key_shift + at.first, nullptr, at.width, t.slope,
                          t.query_shift[row], t.ceiling, total, weighted);
    T *lanes = p.lanes + std::size_t(row) * std::size_t(n_few + 2) * kWidth;
    for (int c = 0; c < n_few; ++c)
      accumulate(lanes + c * kWidth,
                 dot(scores, p.x + std::size_t(c) * t.n_keys + at.first, at.width));
    square_sums(scores, p.square_x + at.first, t.n_keys, at.width, lanes + n_few * kWidth);
  }

  void strip(const Patch &at) const {
    if constexpr (kColumns == Columns::kMany)
      add_products(t.scores, p.x + at.first * padded, at.width, at.panel_width, n_groups,
                   p.products + std::size_t(at.strip) * kRows * padded);
  }
};

template <class T>
static void sampled(const Operands<T> &t, const SampledTile<T> &p) {
  if (p.n_columns == 1 && p.smooth) {
    OneSampledColumn<T, true> epilogue{t, p};
    tile(t, epilogue);
  } else if (p.n_columns == 1) {
    OneSampledColumn<T, false> epilogue{t, p};
    tile(t, epilogue);
  } else if (p.n_columns <= kFewColumns) {
    SampledColumns<T, Columns::kFew> epilogue{t, p};
    tile(t, epilogue);
  } else {
    SampledColumns<T, Columns::kMany> epilogue{t, p};
    tile(t, epilogue);
  }
}

}  // namespace AKMV_ISA
#endif

}  // namespace akmv
