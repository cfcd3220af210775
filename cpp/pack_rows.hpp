// Points moved, scaled and laid out as the tiles read them, in vectors of one instruction set.
#pragma once

#include "simd.hpp"

namespace akmv {
namespace AKMV_ISA {

constexpr std::size_t kPiece = 64;  // coordinates moved at a time

// (p - centre) * factor of some coordinates; without a centre p * factor.
template <class T>
static inline void move_piece(const T *__restrict point, const double *__restrict centre,
                              std::size_t first, double factor, std::size_t n, T *__restrict out) {
  if (centre)
    for (std::size_t l = 0; l < n; ++l)
      out[l] = T((double(point[first + l]) - centre[first + l]) * factor);
  else
    for (std::size_t l = 0; l < n; ++l) out[l] = T(double(point[first + l]) * factor);
}

template <class T>
static void pack_row(const T *point, const double *centre, double factor, std::size_t n_dims,
                     std::size_t stride, T *__restrict out) {
  T moved[kPiece];
  for (std::size_t first = 0; first < n_dims; first += kPiece) {
    const std::size_t n = n_dims - first < kPiece ? n_dims - first : kPiece;
    move_piece(point, centre, first, factor, n, moved);
    for (std::size_t l = 0; l < n; ++l) out[(first + l) * stride] = moved[l];
  }
}

// Four points side by side: blocks of 4 x 4 are turned in registers, a third of the time of one by
// one.
template <class T>
static void pack_four(const T *const (&points)[4], const double *centre, double factor,
                      std::size_t n_dims, std::size_t stride, T *__restrict out) {
  typedef T Four __attribute__((vector_size(4 * sizeof(T))));
  typedef T Unaligned __attribute__((vector_size(4 * sizeof(T)), aligned(alignof(T)), may_alias));
  typedef typename Bits<T>::type Places __attribute__((vector_size(4 * sizeof(T))));
  constexpr Places kLow = {0, 4, 1, 5}, kHigh = {2, 6, 3, 7}, kFirst = {0, 1, 4, 5},
                   kLast = {2, 3, 6, 7};
  const bool as_they_are = !centre && factor == 1;
  T moved[4][kPiece];
  for (std::size_t first = 0; first < n_dims; first += kPiece) {
    const std::size_t n = n_dims - first < kPiece ? n_dims - first : kPiece;
    const T *from[4];
    for (int p = 0; p < 4; ++p) {
      from[p] = as_they_are ? points[p] + first : moved[p];
      if (!as_they_are) move_piece(points[p], centre, first, factor, n, moved[p]);
    }
    T *to = out + first * stride;
    std::size_t l = 0;
    for (; l + 4 <= n; l += 4, to += 4 * stride) {
      Four row[4];
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p) row[p] = *reinterpret_cast<const Unaligned *>(from[p] + l);
      const Four a = AKMV_SHUFFLED(row[0], row[1], kLow), b = AKMV_SHUFFLED(row[0], row[1], kHigh);
      const Four c = AKMV_SHUFFLED(row[2], row[3], kLow), d = AKMV_SHUFFLED(row[2], row[3], kHigh);
      *reinterpret_cast<Unaligned *>(to) = AKMV_SHUFFLED(a, c, kFirst);
      *reinterpret_cast<Unaligned *>(to + stride) = AKMV_SHUFFLED(a, c, kLast);
      *reinterpret_cast<Unaligned *>(to + 2 * stride) = AKMV_SHUFFLED(b, d, kFirst);
      *reinterpret_cast<Unaligned *>(to + 3 * stride) = AKMV_SHUFFLED(b, d, kLast);
    }
    for (; l < n; ++l, to += stride)
      for (int p = 0; p < 4; ++p) to[p] = from[p][l];
  }
}

}  // namespace AKMV_ISA
}  // namespace akmv
