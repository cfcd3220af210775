// The tile: scores of strips of queries with panels of keys, and what is done with each row of
// them.
//
// Nothing of size queries x keys is ever written: the scores of `kRows` queries with one panel live
// in the first-level cache. The panel streams from the second-level cache at 11 bytes per cycle at
// full multiply-add rate, whatever the dimension, so the dimension is not blocked.
//
// What is done with the scores is an epilogue: row(patch, row, scores) for each query of a strip,
// then strip(patch) once. Each user has a file in epilogues/ with what its callers hand in, a plain
// struct, and what is done, which only kernels_isa.cpp compiles (AKMV_ISA is defined there).
#pragma once

#include "operands.hpp"
#include "simd.hpp"

namespace akmv {
namespace AKMV_ISA {

// acc[r][v] += sum_l a(r, l) * b(l, v), or of squared differences. The element (r, l) of `a` is at
// a[r * kRowStride + l * kStepStride]: constants, so that one base register serves all rows.
template <class T, int kRowStride, int kStepStride, bool kDifferences>
static inline void micro_add(const T *__restrict a, const T *__restrict b, std::size_t n_steps,
                             typename Simd<T>::V (&acc)[kRows][kVectors]) {
  using S = Simd<T>;
  using V = typename S::V;
#pragma GCC unroll kSteps
  for (std::size_t l = 0; l < n_steps; ++l) {
    V key[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) key[v] = S::load(b + v * S::kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V query = S::splat(a[r * kRowStride]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        if (kDifferences) {
          const V difference = query - key[v];
          acc[r][v] += difference * difference;
        } else {
          acc[r][v] += query * key[v];
        }
      }
    }
    a += kStepStride;
    b += S::kKeys;
  }
}

template <class T, int kRowStride, int kStepStride, bool kDifferences>
static inline void micro(const T *__restrict a, const T *__restrict b, std::size_t n_steps,
                         typename Simd<T>::V (&acc)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[r][v] = typename Simd<T>::V{};
  micro_add<T, kRowStride, kStepStride, kDifferences>(a, b, n_steps, acc);
}

template <class T, bool kDifferences>
static inline void score_strip(const T *queries, const T *panel, std::size_t n_dims, int panel_keys,
                               T *scores) {
  using S = Simd<T>;
  for (int first = 0; first < panel_keys; first += S::kKeys) {
    typename S::V acc[kRows][kVectors];
    micro<T, 1, kRows, kDifferences>(queries, panel + std::size_t(first) * n_dims, n_dims, acc);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        S::store(scores + r * kScoreStride + first + v * S::kWidth, acc[r][v]);
  }
}

// Where a strip of queries meets a panel of keys.
struct Patch {
  int strip;
  std::size_t first;  // key of the panel
  int panel_width;    // keys of the panel,
  int width;          // and how many of them have scores
};

// Writes the scores of all keys of a panel; returns how many have one. Other scorers leave out what
// no row needs.
template <class T, bool kDifferences>
struct EveryScore {
  int operator()(const Operands<T> &t, int strip, std::size_t first, int width) const {
    score_strip<T, kDifferences>(t.queries + std::size_t(strip) * kRows * t.n_dims,
                                 t.keys + first * t.n_dims, t.n_dims, width, t.scores);
    return width;
  }
};

template <class T, class Scorer, class Epilogue>
static inline void tile(const Operands<T> &t, const Scorer &scorer, Epilogue &epilogue) {
  for (std::size_t first = 0; first < t.n_keys; first += std::size_t(t.panel_keys)) {
    const std::size_t left = t.n_keys - first;
    const int panel_width = left < std::size_t(t.panel_keys) ? int(left) : t.panel_keys;
    for (int strip = 0; strip < t.n_strips; ++strip) {
      const Patch at{strip, first, panel_width, scorer(t, strip, first, panel_width)};
      if (at.width == 0) continue;
      for (int r = 0; r < kRows; ++r)
        epilogue.row(at, strip * kRows + r, t.scores + r * kScoreStride);
      epilogue.strip(at);
    }
  }
}

template <class T, class Epilogue>
static inline void tile(const Operands<T> &t, Epilogue &epilogue) {
  if (t.differences)
    tile(t, EveryScore<T, true>{}, epilogue);
  else
    tile(t, EveryScore<T, false>{}, epilogue);
}

}  // namespace AKMV_ISA
}  // namespace akmv
