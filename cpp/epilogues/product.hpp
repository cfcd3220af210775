// The exact product: exponentials of a row times columns, and their sum.
//
//   sums[i, c] = sum_j exp(exponent_ij) x[j, c],   totals[i] = sum_j exp(exponent_ij)
//
// With `online` the largest exponent of each row is found on the way and taken out: sums are
// relative to it, and row_max[i] holds it before query_shift[i] is subtracted, unless that is
// infinite.
#pragma once

#include "../operands.hpp"
#if defined(AKMV_ISA)
#include "../rows.hpp"
#endif

namespace akmv {

template <class T>
struct ProductTile {
  const T *x;  // few columns: [column][panel][key]; many: [panel][column group][key][column]
  int n_columns;
  bool online, row_sums;
  T *lanes;     // out, few columns: [kBlockRows][column] vectors of partial sums
  T *products;  // out, many columns: [kBlockRows][padded columns]
  T *totals;    // out, with `row_sums`: [kBlockRows] vectors of partial sums
  T *row_max;   // out, with `online`: [kBlockRows]
};

#if defined(AKMV_ISA)
namespace AKMV_ISA {

template <class T, Scores kScores, Columns kColumns>
struct ProductEpilogue {
  using V = typename Simd<T>::V;
  static constexpr int kWidth = Simd<T>::kWidth;

  const Operands<T> &t;
  const ProductTile<T> &p;
  const int n_groups = (p.n_columns + Simd<T>::kKeys - 1) / Simd<T>::kKeys;
  const int padded = n_groups * Simd<T>::kKeys;

  T *lanes_of(int row) const {
    return p.lanes + std::size_t(row) * std::size_t(p.n_columns) * kWidth;
  }

  // Inlined, so that constants of the exponential are not loaded anew for each row: 4 to 8 %.
  __attribute__((always_inline)) void row(const Patch &at, int row, T *scores) const {
    const T *key_shift = t.key_shift + at.first;
    const T shift = kScores == Scores::kOnline ? raised_shift(at, row, scores) : t.query_shift[row];
    V total, weighted;
    exponentials<T, kColumns != Columns::kOne, kScores>(scores, key_shift, p.x + at.first, at.width,
                                                        t.slope, shift, t.ceiling, total, weighted);
    if constexpr (kColumns == Columns::kOne) accumulate(lanes_of(row), weighted);
    if constexpr (kColumns == Columns::kFew)
      for (int c = 0; c < p.n_columns; ++c)
        accumulate(lanes_of(row) + c * kWidth,
                   dot(scores, p.x + std::size_t(c) * t.n_keys + at.first, at.width));
    if (p.row_sums) accumulate(p.totals + row * kWidth, total);
  }

  void strip(const Patch &at) const {
    if constexpr (kColumns == Columns::kMany)
      add_products(t.scores, p.x + at.first * padded, at.width, at.panel_width, n_groups,
                   p.products + std::size_t(at.strip) * kRows * padded);
  }

  // What is subtracted from the exponents of a row, with the largest one so far.
  T raised_shift(const Patch &at, int row, const T *scores) const {
    const T old = p.row_max[row], shift = t.query_shift[row];
    // The shift of a far query is so large that exponents would be lost in its rounding: it is
    // subtracted from the maximum in the end. An infinite one leaves the row without keys.
    const T outside = shift - shift == T(0) ? T(0) : shift;
    const T here = row_maximum(scores, t.key_shift + at.first, at.width, t.slope) - outside;
    const T next = here > old || here != here ? here : old;
    const T factor = decay(old, next);
    if (factor != T(1)) {
      scale_in_place(p.totals + row * kWidth, kWidth, factor);
      if constexpr (kColumns == Columns::kMany)
        scale_in_place(p.products + std::size_t(row) * padded, padded, factor);
      else
        scale_in_place(lanes_of(row), p.n_columns * kWidth, factor);
    }
    p.row_max[row] = next;
    // A row without any key so far has next = -infinity; its exponentials are all 0.
    return outside + (next - next == T(0) ? next : T(0));
  }
};

template <class T, Scores kScores, Columns kColumns>
static inline void product_tile(const Operands<T> &t, const ProductTile<T> &p) {
  ProductEpilogue<T, kScores, kColumns> epilogue{t, p};
  tile_of<kScores>(t, epilogue);
}

template <class T, Scores kScores>
static inline void product_of(const Operands<T> &t, const ProductTile<T> &p) {
  if (p.n_columns == 1)
    product_tile<T, kScores, Columns::kOne>(t, p);
  else if (p.n_columns <= kFewColumns)
    product_tile<T, kScores, Columns::kFew>(t, p);
  else
    product_tile<T, kScores, Columns::kMany>(t, p);
}

// The same of kernel values, in kernel_values_isa.cpp.
template <class T>
void value_product(const Operands<T> &t, const ProductTile<T> &p);

template <class T>
static void product(const Operands<T> &t, const ProductTile<T> &p) {
  if (t.function.family != Family::kGaussian)
    value_product(t, p);
  else if (p.online)
    product_of<T, Scores::kOnline>(t, p);
  else
    product_of<T, Scores::kShifted>(t, p);
}

}  // namespace AKMV_ISA
#endif

}  // namespace akmv
