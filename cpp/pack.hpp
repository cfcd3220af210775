// Packing: points are centred, scaled by a power of two and laid out as the tile kernel reads them.
//
// The subtraction is done in double, so that an offset common to all points costs no accuracy; the
// power of two is exact. Padding is 0 in coordinates and weights and +infinity in shifts, so padded
// keys have kernel value 0.
#pragma once

#include "kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace akmv {

/// Row-major n x d points, and the map p -> (p - centre) * factor applied on the way in.
template <class T> struct Points {
  const T *data;
  std::size_t n, d;
  const double *centre;
  double factor;

  T at(std::size_t i, std::size_t l) const {
    return T((double(data[i * d + l]) - centre[l]) * factor);
  }
};

/// Points in groups: out[group][dim][point in group], the rest of the last group padded with zeros.
/// `index` says which points, or is null for first, first + 1, ...
template <class T>
void pack_points(const Points<T> &points, const std::int32_t *index, std::size_t first, std::size_t n,
                 const T *shift, const TypedKernels<T> &kernels, int group, T *out) {
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
      const std::size_t at = start + c;
      if (c + 4 <= std::size_t(group) && counts(at) && counts(at + 1) && counts(at + 2) && counts(at + 3)) {
        const T *const four[4] = {point(at), point(at + 1), point(at + 2), point(at + 3)};
        kernels.pack_four(four, points.centre, points.factor, d, group, out + c);
        c += 4;
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

/// Many columns, one panel of `width` keys: out[column group][key][column in group], zero padded.
template <class T>
void pack_many_columns(const T *x, std::size_t n_columns, std::size_t first, std::size_t last,
                       std::size_t width, int group, T *out) {
  for (std::size_t start = 0; start < n_columns; start += group) {
    const std::size_t n = std::min<std::size_t>(group, n_columns - start);
    for (std::size_t j = 0; j < width; ++j, out += group) {
      const std::size_t real = first + j < last ? n : 0;
      std::copy_n(x + (first + j) * n_columns + start, real, out);
      std::fill(out + real, out + group, T(0));
    }
  }
}

}  // namespace akmv
