// Pairs of sketches within reach of each other: scores that never leave the registers.
#pragma once

#include "../operands.hpp"
#if defined(AKMV_ISA)
#include "../rows.hpp"
#endif

namespace akmv {

// Packed sketches of some queries and keys, whose inner products are -distance^2 / 2.
struct SketchTile {
  const float *queries;      // [strip][dim][row in strip]
  const float *query_reach;  // [row] half the squared radius
  const float *keys;         // [group][dim][key in group]
  const float *key_reach;    // [key]
  int n_strips, n_keys;      // keys padded to a multiple of the group
  std::size_t n_dims;
  int diagonal;  // keys up to row + diagonal need not be looked at
};
constexpr int kNoDiagonal = -(1 << 30);

// Two points of which one lies within the other's radius.
struct Match {
  std::int32_t row, key;
};

#if defined(AKMV_ISA)
namespace AKMV_ISA {

// The test is made in registers: where scores are cheap, writing them would cost more than they do.
// First it is whether any query of the strip may reach a key: one operation for a vector of scores.
static int matches(const SketchTile &t, Match *out) {
  using S = Simd<float>;
  using V = S::V;
  Match *next = out;
  const V zero = {}, none = S::splat(-__builtin_inff());
  for (int s = 0; s < t.n_strips; ++s) {
    const float *strip = t.queries + std::size_t(s) * kRows * t.n_dims;
    const float *reach = t.query_reach + s * kRows;
    float furthest = reach[0];
    for (int r = 1; r < kRows; ++r) furthest = reach[r] > furthest ? reach[r] : furthest;
    const int passed = s * kRows + t.diagonal + 1;
    for (int first = passed > 0 ? passed / S::kKeys * S::kKeys : 0; first < t.n_keys;
         first += S::kKeys) {
      V acc[kRows][kVectors];
      micro<float, 1, kRows, false>(strip, t.keys + std::size_t(first) * t.n_dims, t.n_dims, acc);
      V highest[kVectors], of_key[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        of_key[v] = S::load(t.key_reach + first + v * S::kWidth);
        highest[v] = none;
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) highest[v] = S::larger(acc[r][v], highest[v]);
      std::uint32_t any = 0;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        any |= lanes_at_least<float>(highest[v] + S::larger(of_key[v], S::splat(furthest)), zero);
      if (any == 0) continue;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const V radius = S::larger(of_key[v], S::splat(reach[r]));
          for (auto bits = lanes_at_least<float>(acc[r][v] + radius, zero); bits != 0;
               bits &= bits - 1)
            *next++ = {s * kRows + r, first + v * S::kWidth + __builtin_ctz(bits)};
        }
    }
  }
  return int(next - out);
}

}  // namespace AKMV_ISA
#endif

}  // namespace akmv
