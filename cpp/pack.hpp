// Packing: points are centred, scaled by a power of two and laid out as the tile kernel reads them.
//
// The subtraction is done in double, so that an offset common to all points costs no accuracy; the
// power of two is exact. Padding is 0 in coordinates and weights and +infinity in shifts, so padded
// keys have kernel value 0.
#pragma once

#include "kernels.hpp"
#include "operands.hpp"
#include "threads.hpp"
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

/// What all tiles of some points share. Blocks of queries and chunks of keys are put in as they
/// come; no exponent is above 0 but by rounding.
template <class T>
Operands<T> operands_of(const Geometry<T> &g, int panel_keys, T *scores) {
  Operands<T> operands{};
  operands.n_dims = g.keys.d;
  operands.panel_keys = panel_keys;
  operands.slope = g.slope;
  operands.ceiling = T(0);
  operands.differences = g.differences;
  operands.function = g.function;
  operands.scores = scores;
  return operands;
}

/// Packed queries of a block, `n` of them in use.
template <class T>
void put_queries(const T *points, const T *shift, std::size_t n, const TypedKernels<T> &kernels,
                 Operands<T> &to) {
  to.queries = points;
  to.query_shift = shift;
  to.n_strips = int(n_pieces(n, std::size_t(kernels.rows)));
}

/// Packed keys, a multiple of the group with padding.
template <class T>
void put_keys(const T *points, const T *shift, std::size_t padded, Operands<T> &to) {
  to.keys = points;
  to.key_shift = shift;
  to.n_keys = padded;
}

/// A block of queries index[0 .. n), or first, first + 1, ... without an index.
template <class T>
void pack_queries(const Geometry<T> &g, const std::int32_t *index, std::size_t first, std::size_t n,
                  const TypedKernels<T> &kernels, T *points, T *shift) {
  pack_shift(g.query_shift, index, first, n, kBlockRows, shift);
  pack_points(g.queries, index, first, n, shift, kernels, kernels.rows, points);
}

/// The same for keys; returns their number with padding.
template <class T>
std::size_t pack_keys(const Geometry<T> &g, const std::int32_t *index, std::size_t first,
                      std::size_t n, const TypedKernels<T> &kernels, T *points, T *shift) {
  const std::size_t padded = round_up(n, std::size_t(kernels.group_keys));
  pack_shift(g.key_shift, index, first, n, padded, shift);
  pack_points(g.keys, index, first, n, shift, kernels, kernels.group_keys, points);
  return padded;
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
