// The largest magnitude among some numbers: one pass that also tells whether all are finite.
#pragma once

#include "kernels.hpp"
#include "threads.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace akmv {

/// The larger of two magnitudes in `most`; not a number if one is not.
template <class T>
void keep_larger(T &most, T other) {
  if (!(other <= most)) most = std::isnan(most) ? most : other;
}

/// Not a number if an entry is not finite.
template <class T>
void largest_magnitude(const T *x, std::size_t n, const TypedKernels<T> &kernels, int n_threads,
                       const Poll &poll, T &out) {
  // Fewer are looked at before a second thread is awake.
  constexpr std::size_t kPiece = 1 << 16;
  std::vector<T> parts((n + kPiece - 1) / kPiece);
  parallel_for(
      parts.size(), n_threads,
      [&](std::size_t task, int) {
        parts[task] =
            kernels.largest_magnitude(x + task * kPiece, std::min(kPiece, n - task * kPiece));
      },
      poll);
  out = 0;
  for (const T part : parts) keep_larger(out, part);
}

}  // namespace akmv
