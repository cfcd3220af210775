// The one kernel: scores of a strip of queries with a panel of keys, exponentials, weighted sums.
//
// Nothing of size queries x keys is ever written: the scores of `kRows` queries with one panel live
// in the first-level cache. The panel streams from the second-level cache at 11 bytes per cycle at
// full multiply-add rate, whatever the dimension, so the dimension is not blocked.
#pragma once

#include "exp.hpp"
#include "kernels.hpp"

namespace akmv {
namespace AKMV_ISA {

// acc[r][v] += sum_l a(r, l) * b(l, v), or of squared differences. The element (r, l) of `a` is at
// a[r * kRowStride + l * kStepStride]: constants, so that one base register serves all rows.
template <class T, int kRowStride, int kStepStride, bool kDifferences>
static inline void micro_add(const T *__restrict a, const T *__restrict b, std::size_t n_steps,
                             typename Simd<T>::V (&acc)[kRows][kVectors]) {
  using S = Simd<T>;
  using V = typename S::V;
#pragma GCC unroll 2
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

template <class T>
static inline void scale_in_place(T *p, int n, T factor) {
  for (int i = 0; i < n; ++i) p[i] *= factor;
}

// Largest exponent of one row of scores; the shift that keeps every exponential at most 1.
template <class T>
static inline T row_maximum(const T *scores, const T *key_shift, int n, T slope) {
  using S = Simd<T>;
  typename S::V best = slope * S::load(scores) - S::load(key_shift);
  for (int j = S::kWidth; j < n; j += S::kWidth) {
    const typename S::V t = slope * S::load(scores + j) - S::load(key_shift + j);
    best = S::larger(t, best);
  }
  return S::max(best);
}

// exp(old - next) for two row maxima, either of which may be minus infinity (no key yet).
template <class T>
static inline T decay(T old, T next) {
  using S = Simd<T>;
  if (!(old < next)) return T(1);
  return exp<T>(S::splat(old - next), S::splat(T(0)))[0];
}

// Exponentials of one row, stored in place if `kStore`; their sum, and their product with one
// column. With `kOnline` the shift is what row_maximum found, and exponents are rounded as they are
// there.
template <class T, bool kStore, bool kOnline = false>
static inline void exponentials(T *scores, const T *key_shift, const T *x, int n, T slope, T shift,
                                T ceiling, typename Simd<T>::V &total,
                                typename Simd<T>::V &weighted) {
  using S = Simd<T>;
  using V = typename S::V;
  constexpr T kHighest = ExpConstants<T>::kHighest;  // beyond it exp does not hold
  const V top = S::splat(ceiling < kHighest ? ceiling : kHighest);
  V sums[kVectors] = {}, products[kVectors] = {};
  for (int j = 0; j < n; j += S::kKeys) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int at = j + v * S::kWidth;
      const V t = kOnline ? slope * S::load(scores + at) - S::load(key_shift + at) - shift
                          : slope * S::load(scores + at) - shift - S::load(key_shift + at);
      const V e = exp<T>(t, top);
      if (kStore) {
        S::store(scores + at, e);
        sums[v] += e;
      } else {
        sums[v] += e;
        products[v] += e * S::load(x + at);
      }
    }
  }
  total = sums[0] + sums[1];
  weighted = products[0] + products[1];
}

template <class T>
static inline typename Simd<T>::V dot(const T *a, const T *b, int n) {
  using S = Simd<T>;
  typename S::V sums[kVectors] = {};
  for (int j = 0; j < n; j += S::kKeys)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sums[v] += S::load(a + j + v * S::kWidth) * S::load(b + j + v * S::kWidth);
  return sums[0] + sums[1];
}

// One bit for each lane in which a > b, or a == b if `kOrEqual`.
template <class T, bool kOrEqual>
static inline std::uint32_t lanes_above(typename Simd<T>::V a, typename Simd<T>::V b) {
#if defined(__AVX512F__)
  constexpr int kComparison = kOrEqual ? 0x1D : 0x1E, kCurrentRounding = 4;
  if constexpr (sizeof(T) == 4)
    return std::uint16_t(__builtin_ia32_cmpps512_mask(a, b, kComparison, -1, kCurrentRounding));
  else
    return std::uint8_t(__builtin_ia32_cmppd512_mask(a, b, kComparison, -1, kCurrentRounding));
#else
  const typename Simd<T>::I mask = kOrEqual ? a >= b : a > b;
#if defined(__AVX2__)
  if constexpr (kVectorBytes == 32) {
    typedef T Lanes __attribute__((vector_size(32)));
    if constexpr (sizeof(T) == 4)
      return std::uint32_t(__builtin_ia32_movmskps256(reinterpret_cast<Lanes>(mask)));
    else
      return std::uint32_t(__builtin_ia32_movmskpd256(reinterpret_cast<Lanes>(mask)));
  }
#endif
  std::uint32_t bits = 0;
  for (int i = 0; i < Simd<T>::kWidth; ++i) bits |= std::uint32_t(mask[i] & 1) << i;
  return bits;
#endif
}

template <class T>
static inline std::uint32_t lanes_at_least(typename Simd<T>::V a, typename Simd<T>::V b) {
  return lanes_above<T, true>(a, b);
}

// Exponentials of one row times one column, and their squares times two others; if `kSmooth` those
// of what is left of them without `scale` times a polynomial.
template <class T, bool kSmooth>
static inline void exponentials_and_squares(const Tile<T> &t, std::size_t at_key, const T *scores,
                                            int n, T shift, T scale,
                                            typename Simd<T>::V (&sums)[3]) {
  using S = Simd<T>;
  using V = typename S::V;
  const T *key_shift = t.key_shift + at_key, *x = t.x + at_key, *square_x = t.square_x + at_key;
  const T *smooth = kSmooth ? t.smooth + at_key : nullptr;
  const V top = S::splat(t.ceiling);
  V first[kVectors] = {}, second[kVectors] = {}, third[kVectors] = {};
  for (int j = 0; j < n; j += S::kKeys) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int at = j + v * S::kWidth;
      const V z = t.slope * S::load(scores + at);
      const V e = exp<T>(z - shift - S::load(key_shift + at), top);
      first[v] += e * S::load(x + at);
      V left = e;
      if (kSmooth) {
        const V c1 = S::load(smooth + t.n_keys + at), c2 = S::load(smooth + 2 * t.n_keys + at);
        left -= scale * (S::load(smooth + at) + z * (c1 + z * c2));
      }
      const V square = left * left;
      second[v] += square * S::load(square_x + at);
      third[v] += square * S::load(square_x + t.n_keys + at);
    }
  }
  sums[0] = first[0] + first[1];
  sums[1] = second[0] + second[1];
  sums[2] = third[0] + third[1];
}

// Exponentials of one row in place, the largest of them, and sums of them and of powers of the
// scores: see `power_x`.
template <class T>
static inline T exponentials_and_powers(const Tile<T> &t, std::size_t at_key, T *scores, int n,
                                        T shift, typename Simd<T>::V (&sums)[kPowerSums]) {
  using S = Simd<T>;
  using V = typename S::V;
  const T *key_shift = t.key_shift + at_key, *x = t.x + at_key, *power_x = t.power_x + at_key;
  const V top = S::splat(t.ceiling), threshold = S::splat(t.threshold);
  V largest = {};
  for (int k = 0; k < kPowerSums; ++k) sums[k] = V{};
  for (int j = 0; j < n; j += S::kWidth) {
    const V z = t.slope * S::load(scores + j);
    const V e = exp<T>(z - shift - S::load(key_shift + j), top);
    S::store(scores + j, e);
    largest = e > largest ? e : largest;
    sums[0] += e * S::load(x + j);
    sums[1] += e * e * S::load(power_x + j);
    V term = e < threshold ? e * S::load(power_x + t.n_keys + j) : V{};
    sums[2] += term;
    sums[3] += term *= z;
    sums[4] += term * z;
    term = e < threshold ? S::load(power_x + 2 * t.n_keys + j) : V{};
    sums[5] += term;
#pragma GCC unroll 4
    for (int k = 6; k < kPowerSums; ++k) sums[k] += term *= z;
  }
  return S::max(largest);
}

// Exponentials of one row in place, those of exponents below `floor` as 0; the groups with others,
// which are copied, have a bit in the answer. Where most values are tiny most groups are left out.
template <class T>
static inline std::uint64_t live_exponentials(T *scores, const T *key_shift, int n, T slope,
                                              T shift, T ceiling, T floor, T *copy) {
  using S = Simd<T>;
  using V = typename S::V;
  const V top = S::splat(ceiling), least = S::splat(floor);
  std::uint64_t live = 0;
  for (int j = 0; j < n; j += S::kKeys) {
    V t[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int at = j + v * S::kWidth;
      t[v] = slope * S::load(scores + at) - shift - S::load(key_shift + at);
    }
    if ((lanes_at_least<T>(t[0], least) | lanes_at_least<T>(t[1], least)) == 0) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) S::store(scores + j + v * S::kWidth, V{});
      continue;
    }
    live |= std::uint64_t(1) << (j / S::kKeys);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V e = t[v] >= least ? exp<T>(t[v], top) : V{};
      S::store(scores + j + v * S::kWidth, e);
      S::store(copy + j + v * S::kWidth, e);
    }
  }
  return live;
}

// Scores of a strip with a panel, minus infinity for groups of keys all of whose exponents are
// below the floor already by the first coordinates. Of data in an order of neighbours most groups
// are.
template <class T>
static inline void bounded_scores(const Tile<T> &t, const T *queries, const T *panel,
                                  const T *query_bound, const T *key_bound, int panel_keys) {
  using S = Simd<T>;
  using V = typename S::V;
  const std::size_t n_bound = std::size_t(t.bound_dims);
  const V none = S::splat(-__builtin_inff());
  for (int first = 0; first < panel_keys; first += S::kKeys) {
    const T *keys = panel + std::size_t(first) * t.n_dims;
    V acc[kRows][kVectors];
    micro<T, 1, kRows, false>(queries, keys, n_bound, acc);
    V bound[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) bound[v] = S::load(key_bound + first + v * S::kWidth);
    V highest = none;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        highest = S::larger(t.slope * acc[r][v] - bound[v] - query_bound[r], highest);
    const bool any = lanes_at_least<T>(highest, S::splat(t.floor)) != 0;
    if (any)
      micro_add<T, 1, kRows, false>(queries + n_bound * kRows, keys + n_bound * S::kKeys,
                                    t.n_dims - n_bound, acc);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        S::store(t.scores + r * kScoreStride + first + v * S::kWidth, any ? acc[r][v] : none);
  }
}

// Inner product of the live groups.
template <class T>
static inline typename Simd<T>::V dot_of_live(std::uint64_t live, const T *a, const T *b) {
  using S = Simd<T>;
  typename S::V sums[kVectors] = {};
  for (; live != 0; live &= live - 1) {
    const int j = __builtin_ctzll(live) * S::kKeys;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sums[v] += S::load(a + j + v * S::kWidth) * S::load(b + j + v * S::kWidth);
  }
  return sums[0] + sums[1];
}

template <class T>
static inline void accumulate(T *lanes, typename Simd<T>::V v) {
  Simd<T>::store(lanes, Simd<T>::load(lanes) + v);
}

// Squares of one row of exponentials times two columns.
template <class T>
static inline void square_sums(const T *exponentials, const T *x, std::size_t stride, int n,
                               T *lanes) {
  using S = Simd<T>;
  using V = typename S::V;
  V first = {}, second = {};
  for (int j = 0; j < n; j += S::kWidth) {
    const V e = S::load(exponentials + j), square = e * e;
    first += square * S::load(x + j);
    second += square * S::load(x + stride + j);
  }
  accumulate(lanes, first);
  accumulate(lanes + S::kWidth, second);
}

template <class T>
static inline void copy_values(const Tile<T> &t, const T *values, int row, int n) {
  for (int j = 0; j < n; ++j) t.values[row * kPanelKeys + j] = values[j];
}

template <class T, bool kDifferences>
static void tile(const Tile<T> &t) {
  using S = Simd<T>;
  using V = typename S::V;
  constexpr int kWidth = S::kWidth;
  const bool many = t.n_columns > kFewColumns;
  const int n_few = many ? 0 : t.n_columns;
  const int n_lanes = t.power_x ? kPowerSums : n_few + (t.square_x ? 2 : 0);
  const int n_groups = (t.n_columns + S::kKeys - 1) / S::kKeys;
  const int padded = n_groups * S::kKeys;

  for (std::size_t first = 0; first < t.n_keys; first += std::size_t(t.panel_keys)) {
    const std::size_t left = t.n_keys - first;
    const int width = left < std::size_t(t.panel_keys) ? int(left) : t.panel_keys;
    const T *panel = t.keys + first * t.n_dims;
    const T *key_shift = t.key_shift + first;
    for (int s = 0; s < t.n_strips; ++s) {
      const T *strip = t.queries + std::size_t(s) * kRows * t.n_dims;
      if (t.live)
        bounded_scores(t, strip, panel, t.query_bound + s * kRows, t.key_bound + first, width);
      else
        score_strip<T, kDifferences>(strip, panel, t.n_dims, width, t.scores);
      for (int r = 0; r < kRows; ++r) {
        const int row = s * kRows + r;
        T *scores = t.scores + r * kScoreStride;
        T *lanes = t.lanes + std::size_t(row) * n_lanes * kWidth;
        T shift = t.query_shift[row];
        if (t.online) {
          const T old = t.row_max[row];
          // The shift of a far query is so large that exponents would be lost in its rounding: it
          // is subtracted from the maximum in the end. An infinite one leaves the row without keys.
          const T outside = shift - shift == T(0) ? T(0) : shift;
          const T here = row_maximum(scores, key_shift, width, t.slope) - outside;
          const T next = here > old || here != here ? here : old;
          const T factor = decay(old, next);
          if (factor != T(1)) {
            scale_in_place(t.totals + row * kWidth, kWidth, factor);
            if (many)
              scale_in_place(t.products + std::size_t(row) * padded, padded, factor);
            else
              scale_in_place(lanes, t.n_columns * kWidth, factor);
          }
          t.row_max[row] = next;
          // A row without any key so far has next = -infinity; its exponentials are all 0.
          shift = outside + (next - next == T(0) ? next : T(0));
        }
        if (t.live) {
          t.live[row] = live_exponentials(scores, key_shift, width, t.slope, shift, t.ceiling,
                                          t.floor, t.values + row * kPanelKeys);
          for (int c = 0; c < n_few; ++c)
            accumulate(lanes + c * kWidth,
                       dot_of_live(t.live[row], scores, t.x + std::size_t(c) * t.n_keys + first));
          continue;
        }
        if (t.power_x) {
          V sums[kPowerSums];
          t.largest[row] = exponentials_and_powers<T>(t, first, scores, width, shift, sums);
          for (int k = 0; k < kPowerSums; ++k) accumulate(lanes + k * kWidth, sums[k]);
          copy_values(t, scores, row, width);
          continue;
        }
        V total, weighted;
        if (t.square_x && t.n_columns == 1) {
          V sums[3];
          if (t.smooth)
            exponentials_and_squares<T, true>(t, first, scores, width, shift, t.query_scale[row],
                                              sums);
          else
            exponentials_and_squares<T, false>(t, first, scores, width, shift, T(0), sums);
          for (int c = 0; c < 3; ++c) accumulate(lanes + c * kWidth, sums[c]);
          continue;
        }
        if (t.n_columns == 1) {
          if (t.online)
            exponentials<T, false, true>(scores, key_shift, t.x + first, width, t.slope, shift,
                                         t.ceiling, total, weighted);
          else
            exponentials<T, false, false>(scores, key_shift, t.x + first, width, t.slope, shift,
                                          t.ceiling, total, weighted);
          accumulate(lanes, weighted);
        } else {
          if (t.online)
            exponentials<T, true, true>(scores, key_shift, nullptr, width, t.slope, shift,
                                        t.ceiling, total, weighted);
          else
            exponentials<T, true, false>(scores, key_shift, nullptr, width, t.slope, shift,
                                         t.ceiling, total, weighted);
          if (!many)
            for (int c = 0; c < t.n_columns; ++c)
              accumulate(lanes + c * kWidth,
                         dot(scores, t.x + std::size_t(c) * t.n_keys + first, width));
          if (t.square_x)
            square_sums(scores, t.square_x + first, t.n_keys, width, lanes + n_few * kWidth);
          if (t.values) copy_values(t, scores, row, width);
        }
        if (t.row_sums) accumulate(t.totals + row * kWidth, total);
      }
      if (many)
        for (int g = 0; g < n_groups; ++g) {
          V acc[kRows][kVectors];
          micro<T, kScoreStride, 1, false>(
              t.scores, t.x + (first * n_groups + std::size_t(g) * width) * S::kKeys,
              std::size_t(width), acc);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v)
              accumulate(
                  t.products + std::size_t(s * kRows + r) * padded + g * S::kKeys + v * kWidth,
                  acc[r][v]);
        }
    }
  }
}

template <class T, bool kDifferences>
static int hits(const Tile<T> &t, const T *floors, int stride, Hit<T> *out) {
  using S = Simd<T>;
  using V = typename S::V;
  Hit<T> *next = out;
  const int width = int(t.n_keys);
  for (int s = 0; s < t.n_strips; ++s) {
    score_strip<T, kDifferences>(t.queries + std::size_t(s) * kRows * t.n_dims, t.keys, t.n_dims,
                                 width, t.scores);
    for (int r = 0; r < kRows; ++r) {
      const int row = s * kRows + r;
      const T *scores = t.scores + r * kScoreStride;
      const T shift = t.query_shift[row], floor = floors[row * stride];
      const V least = S::splat(floor);
      for (int j = 0; j < width; j += S::kKeys) {
        const int k = j + S::kWidth;
        const V a = t.slope * S::load(scores + j) - shift - S::load(t.key_shift + j);
        const V b = t.slope * S::load(scores + k) - shift - S::load(t.key_shift + k);
        auto bits = lanes_at_least<T>(a, least) | lanes_at_least<T>(b, least) << S::kWidth;
        if (bits == 0) continue;
        T exponents[S::kKeys];
        S::store(exponents, a);
        S::store(exponents + S::kWidth, b);
        for (; bits != 0; bits &= bits - 1) {
          const int c = __builtin_ctz(bits);
          *next++ = {row, j + c, exponents[c]};
        }
      }
    }
  }
  return int(next - out);
}

template <class T>
static int any_hits_by_row(const Tile<T> &t, const T *floors, Hit<T> *out) {
  return t.differences ? hits<T, true>(t, floors, 1, out) : hits<T, false>(t, floors, 1, out);
}

template <class T>
static int any_hits(const Tile<T> &t, T floor, Hit<T> *out) {
  return t.differences ? hits<T, true>(t, &floor, 0, out) : hits<T, false>(t, &floor, 0, out);
}

// Words of a query and of some keys, mixed into numbers in [0, 1): those of two pairs are
// independent.
template <class T>
static inline typename Simd<T>::V pair_uniforms(std::uint32_t row_word,
                                                const std::uint32_t *key_words) {
  using S = Simd<T>;
  constexpr std::uint32_t kFactor = 2654435769u;
  if constexpr (sizeof(T) == 4) {
    typedef std::uint32_t Words __attribute__((vector_size(kVectorBytes)));
    typedef std::uint32_t Unaligned
        __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
    const Words mixed =
        ((*reinterpret_cast<const Unaligned *>(key_words) ^ row_word) * kFactor) >> 8;
    return __builtin_convertvector(reinterpret_cast<typename S::I>(mixed), typename S::V) *
           T(0x1.0p-24);
  } else {
    T lanes[S::kWidth];
    for (int c = 0; c < S::kWidth; ++c)
      lanes[c] = T(((key_words[c] ^ row_word) * kFactor) >> 8) * T(0x1.0p-24);
    return S::load(lanes);
  }
}

template <class T>
static int draw_values(const DrawPanel<T> &p, DrawnValue<T> *out) {
  using S = Simd<T>;
  using V = typename S::V;
  DrawnValue<T> *next = out;
  for (int row = 0; row < p.n_rows; ++row) {
    const T *values = p.values + row * kPanelKeys;
    for (std::uint64_t live = p.live[row]; live != 0; live &= live - 1) {
      const int first = __builtin_ctzll(live) * S::kKeys;
      for (int j = first; j < first + S::kKeys; j += S::kWidth) {
        const V uniform = pair_uniforms<T>(p.row_words[row], p.key_words + j);
        const V chance = p.rate * S::load(values + j) * S::load(p.size + j);
        auto bits = lanes_above<T, false>(chance, uniform);
        if (bits == 0) continue;
        T chances[S::kWidth];
        S::store(chances, chance);
        for (; bits != 0; bits &= bits - 1) {
          const int c = __builtin_ctz(bits);
          // Words have 24 bits: the probability of falling below is that of the next multiple.
          const T steps = chances[c] < T(1) ? chances[c] * T(0x1.0p24) : T(0x1.0p24);
          const T whole = T(std::int32_t(steps));
          *next++ = {row, j + c, values[j + c], (whole < steps ? whole + 1 : whole) * T(0x1.0p-24)};
        }
      }
    }
  }
  return int(next - out);
}

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
      const Four a = __builtin_shuffle(row[0], row[1], kLow),
                 b = __builtin_shuffle(row[0], row[1], kHigh);
      const Four c = __builtin_shuffle(row[2], row[3], kLow),
                 d = __builtin_shuffle(row[2], row[3], kHigh);
      *reinterpret_cast<Unaligned *>(to) = __builtin_shuffle(a, c, kFirst);
      *reinterpret_cast<Unaligned *>(to + stride) = __builtin_shuffle(a, c, kLast);
      *reinterpret_cast<Unaligned *>(to + 2 * stride) = __builtin_shuffle(b, d, kFirst);
      *reinterpret_cast<Unaligned *>(to + 3 * stride) = __builtin_shuffle(b, d, kLast);
    }
    for (; l < n; ++l, to += stride)
      for (int p = 0; p < 4; ++p) to[p] = from[p][l];
  }
}

template <class T>
static void any_tile(const Tile<T> &t) {
  if (t.differences)
    tile<T, true>(t);
  else
    tile<T, false>(t);
}

}  // namespace AKMV_ISA
}  // namespace akmv
