// Packing: points are centred, scaled by a power of two and laid out as the tile kernel reads them.
//
// The subtraction is done in double, so that an offset common to all points costs no accuracy; the
// power of two is exact. Padding is 0 in coordinates and weights and +infinity in shifts, so padded
// keys have kernel value 0.
#pragma once

#include <algorithm>
#include <cstddef>
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

/// Points [first, last) in groups: out[group][dim][point in group]. A point that `skip` marks, and
/// padding, is packed as zeros.
template <class T>
void pack_points(const Points<T> &points, std::size_t first, std::size_t last, int group,
                 const T *shift, T *out) {
  const std::size_t d = points.d;
  for (std::size_t start = first; start < last; start += group, out += group * d) {
    const std::size_t n = std::min<std::size_t>(group, last - start);
    for (std::size_t c = 0; c < std::size_t(group); ++c) {
      // An infinite shift means a kernel value of 0; its coordinates could overflow the product.
      if (c >= n || shift[start - first + c] == std::numeric_limits<T>::infinity()) {
        for (std::size_t l = 0; l < d; ++l) out[l * group + c] = T(0);
      } else {
        for (std::size_t l = 0; l < d; ++l) out[l * group + c] = points.at(start + c, l);
      }
    }
  }
}

/// Shifts [first, last) in the working precision, padded with +infinity up to `padded` entries.
template <class T>
void pack_shift(const double *shift, std::size_t first, std::size_t last, std::size_t padded, T *out) {
  for (std::size_t i = first; i < last; ++i) out[i - first] = T(shift[i]);
  std::fill(out + (last - first), out + padded, std::numeric_limits<T>::infinity());
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
      const bool real = first + j < last;
      for (std::size_t c = 0; c < std::size_t(group); ++c)
        out[c] = real && c < n ? x[(first + j) * n_columns + start + c] : T(0);
    }
  }
}

}  // namespace akmv
