// Pairs of a panel whose exponents reach a floor: the search in dense tiles, and in cells.
#pragma once

#include "../operands.hpp"
#if defined(AKMV_ISA)
#include "../rows.hpp"
#endif

namespace akmv {

// A pair of a panel whose exponent reaches a floor.
template <class T>
struct Hit {
  std::int32_t row, key;  // within the block and the panel
  T exponent;
};

#if defined(AKMV_ISA)
namespace AKMV_ISA {

// floors[row * stride] is the floor of a row: with a stride of 0 there is one for all.
template <class T>
struct HitsEpilogue {
  const Operands<T> &t;
  const T *floors;
  int stride;
  Hit<T> *next;

  void row(const Patch &at, int row, const T *scores) {
    using S = Simd<T>;
    using V = typename S::V;
    const T *key_shift = t.key_shift + at.first;
    const T shift = t.query_shift[row];
    const V least = S::splat(floors[row * stride]);
    for (int j = 0; j < at.width; j += S::kKeys) {
      const int k = j + S::kWidth;
      const V a = t.slope * S::load(scores + j) - shift - S::load(key_shift + j);
      const V b = t.slope * S::load(scores + k) - shift - S::load(key_shift + k);
      auto bits = lanes_at_least<T>(a, least) | lanes_at_least<T>(b, least) << S::kWidth;
      if (bits == 0) continue;
      T exponents[S::kKeys];
      S::store(exponents, a);
      S::store(exponents + S::kWidth, b);
      for (; bits != 0; bits &= bits - 1) {
        const int c = __builtin_ctz(bits);
        *next++ = {row, int(at.first) + j + c, exponents[c]};
      }
    }
  }

  void strip(const Patch &) const {}
};

template <class T>
static int hits(const Operands<T> &t, const T *floors, int stride, Hit<T> *out) {
  HitsEpilogue<T> epilogue{t, floors, stride, out};
  tile(t, epilogue);
  return int(epilogue.next - out);
}

}  // namespace AKMV_ISA
#endif

}  // namespace akmv
