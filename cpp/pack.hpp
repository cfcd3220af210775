// Packing: points are centred, scaled by a power of two and laid out as the tile kernel reads them.
//
// The subtraction is done in double, so that an offset common to all points costs no accuracy; the
// power of two is exact. Padding is 0 in coordinates and weights and +infinity in shifts, so padded
// keys have kernel value 0.
#pragma once

#include "types.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace akmv {

/// Points in groups: out[group][dim][point in group], the rest of the last group padded with zeros.
/// `index` says which points, or is null for first, first + 1, ...
template <class T>
void pack_points(const Points<T> &points, const std::int32_t *index, std::size_t first,
                 std::size_t n, const T *shift, const TypedKernels<T> &kernels, int group, T *out) {
  const std::size_t d = points.d;
  for (std::size_t start = 0; start < n; start += group, out += group * d) {
    // Listed points lie anywhere in memory: the next group is fetched while this one is packed.
    if (index)
      for (std::size_t at = start + group; at < std::min<std::size_t>(n, start + 2 * group); ++at)
        for (std::size_t l = 0; l < d; l += kAlignment / sizeof(T))
          __builtin_prefetch(points.data + std::size_t(index[at]) * d + l);
    // An infinite shift means a kernel value of 0; its coordinates could overflow the product.
    const auto counts = [&](std::size_t at) {
      return at < n && shift[at] != std::numeric_limits<T>::infinity();
    };
    const auto point = [&](std::size_t at) {
      return points.data + (index ? std::size_t(index[at]) : first + at) * d;
    };
    for (std::size_t c = 0; c < std::size_t(group);) {
      // The last four of a group of six are packed with two that were: less than one by one.
      const std::size_t from = group >= 4 ? std::min<std::size_t>(c, group - 4) : c;
      const std::size_t at = start + c, of_four = start + from;
      if (group >= 4 && counts(of_four) && counts(of_four + 1) && counts(of_four + 2) &&
          counts(of_four + 3)) {
        const T *const four[4] = {point(of_four), point(of_four + 1), point(of_four + 2),
                                  point(of_four + 3)};
        kernels.pack_four(four, points.centre, points.factor, d, group, out + from);
        c = from + 4;
        continue;
      }
      if (counts(at))
        kernels.pack_row(point(at), points.centre, points.factor, d, group, out + c);
      else
        for (std::size_t l = 0; l < d; ++l) out[l * group + c] = T(0);
      ++c;
    }
  }
}

/// Shifts in the working precision, padded with +infinity up to `padded` entries.
template <class T>
void pack_shift(const double *shift, const std::int32_t *index, std::size_t first, std::size_t n,
                std::size_t padded, T *out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = T(shift[index ? std::size_t(index[i]) : first + i]);
  std::fill(out + n, out + padded, std::numeric_limits<T>::infinity());
}

/// Few columns: out[column][key], padded with zeros to `padded` keys.
template <class T>
void pack_few_columns(const T *x, std::size_t n_columns, std::size_t first, std::size_t last,
                      std::size_t padded, T *out) {
  for (std::size_t c = 0; c < n_columns; ++c, out += padded) {
    for (std::size_t j = first; j < last; ++j) out[j - first] = x[j * n_columns + c];
    std::fill(out + (last - first), out + padded, T(0));
  }
}

/// A whole group; of a known size that is a few instructions instead of a call.
template <class T>
void copy_group(const T *from, int group, T *to) {
  switch (group) {
    case 4:
      std::memcpy(to, from, 4 * sizeof(T));
      break;
    case 8:
      std::memcpy(to, from, 8 * sizeof(T));
      break;
    case 16:
      std::memcpy(to, from, 16 * sizeof(T));
      break;
    case 32:
      std::memcpy(to, from, 32 * sizeof(T));
      break;
    default:
      std::copy_n(from, group, to);
  }
}

/// Many columns, one panel of `width` keys: out[column group][key][column in group], zero padded.
template <class T>
void pack_many_columns(const T *x, std::size_t n_columns, std::size_t first, std::size_t last,
                       std::size_t width, int group, T *out) {
  for (std::size_t start = 0; start < n_columns; start += group) {
    const std::size_t n = std::min<std::size_t>(group, n_columns - start);
    for (std::size_t j = 0; j < width; ++j, out += group) {
      const T *from = x + (first + j) * n_columns + start;
      const std::size_t real = first + j < last ? n : 0;
      if (real == std::size_t(group)) {
        copy_group(from, group, out);
        continue;
      }
      std::copy_n(from, real, out);
      std::fill(out + real, out + group, T(0));
    }
  }
}

}  // namespace akmv
