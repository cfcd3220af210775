// Softmax of one block of queries: scores, running maximum, exponentials, sums of values.
//
// The same micro tiles as tile.hpp. What is special to attention is cheap here: keys after the last
// query of a strip are never scored, so a causal product costs half, and masks are applied to the
// few scores that live in the first-level cache. Scores are in units of ln 2, so that weights are
// powers of two.
#pragma once

#if defined(AKMV_ISA)
#include "../rows.hpp"
#endif

#include <cstddef>

namespace akmv {

// A score this much above what is taken out, in units of ln 2, does no harm: powers of two of it,
// and sums of these times values, are finite. So where lengths bound the scores, the largest of the
// first few is as good as that of all, which saves 4 % of the time of 64 dimensions.
constexpr int kRoomAbove = 60;

// One block of queries of one head against all keys it may see:
//
//   products[i, c] = sum_j 2^(s_ij - row_max[i]) * v[j, c],   s_ij = <q_i, k_j> + mask[i, j] / ln 2
//
// where j runs over the first `n_real` keys, or with `causal` over those not after the query. The
// largest score of each row is found on the way, or one that is at most kRoomAbove lower. The
// scale, and 1 / ln 2, are already in the queries.
template <class T>
struct SoftmaxTile {
  const T *queries;  // [strip][dim][row in strip], zero padded
  const T *keys;     // [panel][group][dim][key in group], zero padded
  const T *values;   // [panel][column group][key][column in group], zero padded
  const T *longest;  // [key] the largest squared length of it and the keys before
  std::size_t n_dims;
  std::size_t n_real;     // keys
  std::size_t n_keys;     // padded to a multiple of the group
  std::size_t first_row;  // of the block, within the head
  int panel_keys;         // keys per panel (the last may have fewer), a multiple of the group
  int n_rows;             // queries in the block
  int n_columns;          // padded to a multiple of the group
  bool causal;
  const T *added;             // added to the scores, or null
  const unsigned char *kept;  // 0 where a pair is left out, or null
  std::size_t mask_stride;    // from one row of the mask to the next; 0 if all rows share one

  T *scores;    // scratch [kBlockRows][kScoreStride]
  T *products;  // out [row][padded columns]
  T *totals;    // out [row] vectors of partial sums of the weights
  T *row_max;   // out [row]
};

#if defined(AKMV_ISA)
namespace AKMV_ISA {

// Strips that use a group of keys, or a group of columns of the values, while it is in the
// first-level cache. With one, both stream from the second level all the time.
constexpr int kStripsAtOnce = 2;

template <class T>
static inline void score_strips(const T *queries, const T *panel, std::size_t n_dims, int n_rows,
                                int width, T *scores) {
  using S = Simd<T>;
  for (int first = 0; first < width; first += S::kKeys)
    for (int strip = 0; strip < n_rows; strip += kRows) {
      typename S::V acc[kRows][kVectors];
      micro<T, 1, kRows, false>(queries + std::size_t(strip) * n_dims,
                                panel + std::size_t(first) * n_dims, n_dims, acc);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          S::store(scores + (strip + r) * kScoreStride + first + v * S::kWidth, acc[r][v]);
    }
}

// products[row, :] += sum_j weights[row, j] * values[j, :] for one strip and one group of columns.
template <class T>
static inline void add_values(const T *weights, const T *values, int n_keys, T *products,
                              int stride) {
  using S = Simd<T>;
  typename S::V acc[kRows][kVectors];
  micro<T, kScoreStride, 1, false>(weights, values, std::size_t(n_keys), acc);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      accumulate(products + std::size_t(r) * stride + v * S::kWidth, acc[r][v]);
}

// Squared lengths of the points of a packed group. Reads whole vectors, so a little past its end.
template <class T, int kPoints>
static inline void squared_lengths(const T *packed, std::size_t n_dims, T *out) {
  using S = Simd<T>;
  constexpr int kAcross = (kPoints + S::kWidth - 1) / S::kWidth;
  typename S::V sums[kAcross] = {};
  for (std::size_t l = 0; l < n_dims; ++l, packed += kPoints)
#pragma GCC unroll 4
    for (int v = 0; v < kAcross; ++v) {
      const typename S::V x = S::load(packed + v * S::kWidth);
      sums[v] += x * x;
    }
  for (int i = 0; i < kPoints; ++i) out[i] = sums[i / S::kWidth][i % S::kWidth];
}

template <class T>
static void key_lengths(const T *keys, std::size_t n_dims, std::size_t n_keys, T *out) {
  constexpr int kKeys = Simd<T>::kKeys;
  for (std::size_t first = 0; first < n_keys; first += kKeys)
    squared_lengths<T, kKeys>(keys + first * n_dims, n_dims, out + first);
}

// Keys that row `row` sees.
template <class T>
static inline std::size_t visible(const SoftmaxTile<T> &t, int row) {
  const std::size_t limit = t.first_row + std::size_t(row) + 1;
  return t.causal && limit < t.n_real ? limit : t.n_real;
}

// What the scores of each row are at most, in magnitude; infinity if something is added to them.
template <class T>
static inline void find_reach(const SoftmaxTile<T> &t, T *reach) {
  T squares[kRows];
  for (int row = 0; row < t.n_rows; ++row) {
    if (row % kRows == 0)
      squared_lengths<T, kRows>(t.queries + std::size_t(row) * t.n_dims, t.n_dims, squares);
    const std::size_t seen = visible(t, row);
    const T longest = seen ? t.longest[seen - 1] : T(0);
    reach[row] = t.added ? T(__builtin_huge_val())
                         : T(__builtin_sqrt(double(squares[row % kRows]) * double(longest)));
  }
}

// Largest of some scores. A NaN may be passed over: its exponential is still NaN.
template <class T>
static inline T largest(const T *scores, int n) {
  using S = Simd<T>;
  typename S::V best[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) best[v] = S::load(scores + v * S::kWidth);
  for (int j = S::kKeys; j < n; j += S::kKeys)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const typename S::V s = S::load(scores + j + v * S::kWidth);
      best[v] = S::larger(s, best[v]);
    }
  T lane[S::kWidth];
  S::store(lane, S::larger(best[0], best[1]));
  for (int half = S::kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  return lane[0];
}

// scores[j] = power(scores[j]); returns their sum.
template <class T, class Power>
static inline typename Simd<T>::V weights(T *scores, int n, const Power &power) {
  using S = Simd<T>;
  using V = typename S::V;
  V sums[kVectors] = {};
  for (int j = 0; j < n; j += S::kKeys)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V e = power(S::load(scores + j + v * S::kWidth));
      S::store(scores + j + v * S::kWidth, e);
      sums[v] += e;
    }
  return sums[0] + sums[1];
}

// A score with a finite number of a mask added, which is not in units of ln 2 yet, stays finite: a
// row of nothing but such is a mean.
template <class T>
static inline T with_added(T score, T added) {
  constexpr T kHighest = sizeof(T) == 4 ? T(__FLT_MAX__) : T(__DBL_MAX__);
  const T sum = score + ExpConstants<T>::kLog2E * added;
  if (sum > kHighest) return kHighest;
  return sum < -kHighest && added >= -kHighest ? -kHighest : sum;
}

// Scores of keys the row may not see become minus infinity.
template <class T>
static inline void apply_mask(const SoftmaxTile<T> &t, int row, std::size_t first, int seen,
                              int width, T *scores) {
  constexpr T kNever = -__builtin_huge_val();
  const std::size_t at = std::size_t(row) * t.mask_stride + first;
  if (t.added)
    for (int j = 0; j < seen; ++j) scores[j] = with_added(scores[j], t.added[at + j]);
  if (t.kept)
    for (int j = 0; j < seen; ++j) scores[j] = t.kept[at + j] ? scores[j] : kNever;
  for (int j = seen; j < width; ++j) scores[j] = kNever;
}

// Takes a larger maximum into account.
template <class T>
static inline void raise_maximum(const SoftmaxTile<T> &t, int row, T here) {
  constexpr int kWidth = Simd<T>::kWidth;
  const T old = t.row_max[row];
  const T next = here > old || here != here ? here : old;
  if (old < next) {
    const T factor = power_of_two<T>(Simd<T>::splat(old - next))[0];
    scale_in_place(t.totals + row * kWidth, kWidth, factor);
    scale_in_place(t.products + std::size_t(row) * t.n_columns, t.n_columns, factor);
  }
  t.row_max[row] = next;
}

// A row without any key so far has a maximum of -infinity; its exponentials are all 0.
template <class T>
static inline T to_take_out(T row_max) {
  return row_max - row_max == T(0) ? row_max : T(0);
}

// Whether no score of a row is too far above what is taken out. What is not a number never is.
template <class T>
static inline bool is_settled(const SoftmaxTile<T> &t, int row, T reach) {
  return reach - t.row_max[row] <= T(kRoomAbove);
}

template <class T>
static void softmax_tile(const SoftmaxTile<T> &t) {
  using S = Simd<T>;
  using V = typename S::V;
  constexpr int kWidth = S::kWidth;
  constexpr int kFewKeys = 2 * S::kKeys;
  constexpr T kNormal = ExpConstants<T>::kBias - 1;
  const int n_groups = t.n_columns / S::kKeys;
  T reach[kBlockRows];
  find_reach(t, reach);
  for (std::size_t first = 0; first < t.n_keys; first += std::size_t(t.panel_keys)) {
    const std::size_t left = t.n_keys - first;
    const int panel_width = left < std::size_t(t.panel_keys) ? int(left) : t.panel_keys;
    const T *panel = t.keys + first * t.n_dims;
    for (int start = 0; start < t.n_rows; start += kStripsAtOnce * kRows) {
      const int rows_left = t.n_rows - start;
      const int n_rows = rows_left < kStripsAtOnce * kRows ? rows_left : kStripsAtOnce * kRows;
      const std::size_t most = visible(t, start + n_rows - 1);
      if (most <= first) continue;
      const std::size_t groups = (most - first + S::kKeys - 1) / S::kKeys * S::kKeys;
      const int width = groups < std::size_t(panel_width) ? int(groups) : panel_width;
      score_strips<T>(t.queries + std::size_t(start) * t.n_dims, panel, t.n_dims, n_rows, width,
                      t.scores);
      T highest[kStripsAtOnce * kRows];   // of the first few keys
      bool whole[kStripsAtOnce * kRows];  // nothing is left out
      for (int r = 0; r < n_rows; ++r) {
        const std::size_t limit = visible(t, start + r);
        const int seen = limit <= first                       ? 0
                         : limit - first < std::size_t(width) ? int(limit - first)
                                                              : width;
        apply_mask(t, start + r, first, seen, width, t.scores + r * kScoreStride);
        whole[r] = seen == width && !t.kept;
        highest[r] =
            is_settled(t, start + r, reach[start + r])
                ? t.row_max[start + r]
                : largest(t.scores + r * kScoreStride, width < kFewKeys ? width : kFewKeys);
      }
      for (int r = 0; r < n_rows; ++r) {
        const int row = start + r;
        if (is_settled(t, row, reach[row])) continue;
        raise_maximum(t, row, highest[r]);
        if (!is_settled(t, row, reach[row]))
          raise_maximum(t, row, largest(t.scores + r * kScoreStride, width));
      }
      for (int r = 0; r < n_rows; ++r) {
        T *const scores = t.scores + r * kScoreStride;
        const T shift = to_take_out(t.row_max[start + r]);
        const bool is_normal =
            whole[r] && reach[start + r] + (shift < 0 ? -shift : shift) <= kNormal;
        accumulate(
            t.totals + (start + r) * kWidth,
            is_normal
                ? weights(scores, width, [&](V s) { return normal_power_of_two<T>(s - shift); })
                : weights(scores, width, [&](V s) { return power_of_two<T>(s - shift); }));
      }
      for (int g = 0; g < n_groups; ++g)
        for (int strip = 0; strip < n_rows; strip += kRows)
          add_values(t.scores + strip * kScoreStride,
                     t.values + (first * n_groups + std::size_t(g) * panel_width) * S::kKeys, width,
                     t.products + std::size_t(start + strip) * t.n_columns + g * S::kKeys,
                     t.n_columns);
    }
  }
}

}  // namespace AKMV_ISA
#endif

}  // namespace akmv
