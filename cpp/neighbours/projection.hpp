// Projections of listed points on a few directions, in single precision.
//
// They are where a search begins: random tilings cut them, and sketches are made of them.
#pragma once

#include "../kernels.hpp"
#include "../threads.hpp"
#include "../types.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace akmv {

/// Some points of many.
template <class T>
struct Listed {
  Rows<T> points;
  const std::int32_t *index;
  std::size_t n;
};

/// A basis [dim][direction], padded with directions of zeros to whole vectors of any instruction
/// set: six directions one by one took six times as long as eight.
inline Rows<float> pad_directions(const Rows<float> &basis, std::vector<float> &padded) {
  constexpr std::size_t kWidest = 16;
  const std::size_t n_padded = round_up(basis.d, kWidest);
  padded.assign(basis.n * n_padded, 0.0f);
  for (std::size_t l = 0; l < basis.n; ++l)
    std::copy_n(basis[l], basis.d, padded.data() + l * n_padded);
  return {padded.data(), basis.n, n_padded};
}

/// Projections [point][direction] of listed points on the columns of `basis` [dim][direction].
template <class T>
void project(const Listed<T> &listed, const double *centre, const Rows<float> &basis,
             const TypedKernels<T> &kernels, int n_threads, const Poll &poll, float *out) {
  constexpr std::size_t kPointsPerTask = 4096, kAhead = 8;
  static_assert(kPointsPerTask % kProjected == 0);
  std::vector<float> memory;
  const Rows<float> padded = pad_directions(basis, memory);
  parallel_pieces(
      listed.n, kPointsPerTask, n_threads,
      [&](const Piece &piece) {
        std::vector<float> projected(kProjected * padded.d);
        const T *some[kProjected];
        float *to[kProjected];
        for (std::size_t p = 0; p < kProjected; ++p) to[p] = projected.data() + p * padded.d;
        for (std::size_t i = piece.first; i < piece.last; i += kProjected) {
          for (std::size_t p = 0; p < kProjected; ++p) {
            if (i + p + kAhead < piece.last) prefetch(listed.points, listed.index[i + p + kAhead]);
            some[p] = listed.points[listed.index[std::min(i + p, piece.last - 1)]];
          }
          kernels.project(some, centre, listed.points.d, padded.data, padded.d, to);
          for (std::size_t p = 0; p < kProjected && i + p < piece.last; ++p)
            std::copy_n(to[p], basis.d, out + (i + p) * basis.d);
        }
      },
      poll);
}

}  // namespace akmv
