// Softmax tiles for sampled attention; see attention_kernels.hpp for what they compute.
#pragma once

#include "attention_kernels.hpp"
#include "tile.hpp"

namespace akmv {
namespace AKMV_ISA {

// Scores of keys that a row does not see.
template <class T>
static inline void hide(T *scores, std::int64_t seen, int width) {
  for (int j = seen > 0 ? int(seen) : 0; j < width; ++j) scores[j] = -__builtin_inf();
}

// The keys that some row of a strip sees, rounded up to a group.
template <class T>
static inline std::size_t seen_by_strip(const std::int64_t *visible, int strip,
                                        std::size_t n_keys) {
  if (!visible) return n_keys;
  std::int64_t most = 0;
  for (int r = 0; r < kRows; ++r)
    if (visible[strip * kRows + r] > most) most = visible[strip * kRows + r];
  const std::size_t group = Simd<T>::kKeys;
  const std::size_t padded = (std::size_t(most) + group - 1) / group * group;
  return padded < n_keys ? padded : n_keys;
}

// Sums of squared terms times each of the columns; stores the products with the last one.
template <class T>
static inline void add_squares(const T *terms, const T *columns, std::size_t stride, int n,
                               T *lanes, T *products) {
  using S = Simd<T>;
  using V = typename S::V;
  V sums[kSquareColumns] = {};
  for (int j = 0; j < n; j += S::kWidth) {
    const V term = S::load(terms + j);
    const V square = term * term;
    const V last = square * S::load(columns + stride + j);
    sums[0] += square * S::load(columns + j);
    sums[1] += last;
    S::store(products + j, last);
  }
#pragma GCC unroll 4
  for (int c = 0; c < kSquareColumns; ++c) accumulate(lanes + c * S::kWidth, sums[c]);
}

// Products of a strip of terms with the values of a panel.
template <class T>
static inline void add_products(const T *terms, const T *values, int width, int panel_width,
                                int n_groups, T *products) {
  using S = Simd<T>;
  for (int g = 0; g < n_groups; ++g) {
    typename S::V acc[kRows][kVectors];
    micro<T, kScoreStride, 1, false>(terms, values + std::size_t(g) * panel_width * S::kKeys,
                                     std::size_t(width), acc);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        accumulate(products + (std::size_t(r) * n_groups + g) * S::kKeys + v * S::kWidth,
                   acc[r][v]);
  }
}

template <class T>
static void attend(const AttentionTile<T> &t) {
  using S = Simd<T>;
  using V = typename S::V;
  constexpr int kWidth = S::kWidth;
  const int n_groups = (t.n_columns + S::kKeys - 1) / S::kKeys;
  const int padded = n_groups * S::kKeys;
  for (std::size_t first = 0; first < t.n_keys; first += std::size_t(t.panel_keys)) {
    const std::size_t left = t.n_keys - first;
    const int panel_width = left < std::size_t(t.panel_keys) ? int(left) : t.panel_keys;
    const T *key_shift = t.key_shift + first;
    for (int s = 0; s < t.n_strips; ++s) {
      const std::size_t seen = seen_by_strip<T>(t.visible, s, t.n_keys);
      if (seen <= first) continue;
      const int width = seen - first < std::size_t(panel_width) ? int(seen - first) : panel_width;
      const bool crosses = t.cross_every && (s + t.cross_first) % t.cross_every == 0;
      T *squares = t.scores + kRows * kScoreStride;
      score_strip<T, false>(t.queries + std::size_t(s) * kRows * t.n_dims,
                            t.keys + first * t.n_dims, t.n_dims, width, t.scores);
      for (int r = 0; r < kRows; ++r) {
        const int row = s * kRows + r;
        T *scores = t.scores + r * kScoreStride;
        if (t.visible) hide(scores, t.visible[row] - std::int64_t(first), width);
        const T old = t.row_max[row];
        const T here = row_maximum(scores, key_shift, width, T(1));
        const T next = here > old || here != here ? here : old;
        const T factor = decay(old, next);
        if (factor != T(1)) {
          scale_in_place(t.totals + row * kWidth, kWidth, factor);
          scale_in_place(t.products + std::size_t(row) * padded, padded, factor);
          if (t.norms) scale_in_place(t.means + row * kWidth, kWidth, factor);
          if (t.cross_every)
            scale_in_place(t.squared + row * kSquareColumns * kWidth, kSquareColumns * kWidth,
                           factor * factor);
          if (crosses)
            scale_in_place(t.crosses + std::size_t(row) * padded, padded, factor * factor);
        }
        t.row_max[row] = next;
        V total, unused;
        // A row without any key so far has next = -infinity; its exponentials are all 0.
        exponentials<T, true>(scores, key_shift, nullptr, width, T(1),
                              next - next == T(0) ? next : T(0), T(0), total, unused);
        accumulate(t.totals + row * kWidth, total);
        if (t.norms) accumulate(t.means + row * kWidth, dot(scores, t.norms + first, width));
        if (t.squares)
          add_squares(scores, t.squares + first, t.n_keys, width,
                      t.squared + row * kSquareColumns * kWidth, squares + r * kScoreStride);
      }
      const T *values = t.values + first * n_groups * S::kKeys;
      const std::size_t at = std::size_t(s) * kRows * padded;
      add_products(t.scores, values, width, panel_width, n_groups, t.products + at);
      if (t.squares && crosses)
        add_products(squares, values, width, panel_width, n_groups, t.crosses + at);
    }
  }
}

template <class T>
static inline void add_as_floats(float *to, typename Simd<T>::V v) {
  if constexpr (sizeof(T) == sizeof(float)) {
    accumulate(to, v);
  } else {
    T lanes[Simd<T>::kWidth];
    Simd<T>::store(lanes, v);
    for (int l = 0; l < Simd<T>::kWidth; ++l) to[l] += float(lanes[l]);
  }
}

template <class T>
static void add_moments(const MomentStrip<T> &m) {
  using S = Simd<T>;
  using V = typename S::V;
  const std::size_t first = m.first, seen = seen_by_strip<T>(m.visible, 0, first + m.n_keys);
  if (seen <= first) return;
  const int width = int(seen - first);
  const V least = S::splat(T(kLeastRest));
  score_strip<T, false>(m.queries, m.keys + first * m.n_dims, m.n_dims, width, m.scores);
  score_strip<T, false>(m.outputs, m.values + first * m.n_columns, m.n_columns, width, m.dots);
  for (int r = 0; r < m.n_rows; ++r) {
    T *scores = m.scores + r * kScoreStride;
    const T *dots = m.dots + r * kScoreStride;
    hide(scores, m.visible[r] - std::int64_t(first), width);
    const V norm = S::splat(m.output_norms[r]), guard = S::splat(m.guards[r]), zero = {};
    const V plan_guard = S::splat(m.plan_guards[r]);
    for (int j = 0; j < width; j += S::kWidth) {
      const V p = exp<T>(S::load(scores + j) - m.row_max[r], zero) * m.inverse_total[r];
      const V apart = S::load(m.norms + first + j) - T(2) * S::load(dots + j) + norm;
      const V odds = p / S::at_least(T(1) - p, least), distance = S::at_least(apart, zero);
      const V square = odds * odds;
      add_as_floats<T>(m.moment[r] + first + j, square * (distance + plan_guard));
      add_as_floats<T>(m.guarded[r] + first + j, square * (distance + guard));
    }
  }
}

template <class T>
static void pack_values(const ValuePanel<T> &p) {
  using S = Simd<T>;
  using V = typename S::V;
  const V factor = S::splat(p.factor);
  for (std::size_t j = 0; j < p.width; ++j) {
    V apart = {};
    const T *value = j < p.n ? p.values + std::size_t(p.index[j]) * p.n_columns : nullptr;
    for (std::size_t first = 0; first < p.n_columns; first += S::kKeys) {
      T *out = p.out + (first * p.width) + j * S::kKeys;
      T last[S::kKeys] = {};
      const T *from = value + first;
      if (!value) {
        from = p.centre + first;
      } else if (p.n_columns - first < std::size_t(S::kKeys)) {
        for (std::size_t c = 0; c < p.n_columns - first; ++c) last[c] = from[c];
        from = last;
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int at = v * S::kWidth;
        const V moved = (S::load(from + at) - S::load(p.centre + first + at)) * factor;
        S::store(out + at, moved);
        const V difference = moved - S::load(p.point + first + at);
        apart += difference * difference;
      }
    }
    p.apart[j] = S::sum(apart);
  }
}

// Means over [j - half, j + half], cut at the ends, times a share.
template <bool kAdd>
static inline void pool(const double *__restrict running, std::size_t n, std::size_t half,
                        float share, float *__restrict out) {
  const auto ends = [&](std::size_t j) {
    const std::size_t low = j > half ? j - half : 0, high = j + half + 1 < n ? j + half + 1 : n;
    const double sum = running[high] - running[low];
    const float mean = share * float(sum > 0 ? sum : 0) / float(high - low);
    out[j] = kAdd ? out[j] + mean : mean;
  };
  const std::size_t first = half < n ? half : n, last = n > half ? n - half : 0;
  for (std::size_t j = 0; j < first; ++j) ends(j);
  const float factor = share / float(2 * half + 1);
  const double *low = running - half, *high = running + half + 1;
  for (std::size_t j = first; j < last; ++j) {
    // The difference of running sums may round below 0.
    const double sum = high[j] - low[j];
    const float mean = factor * float(sum > 0 ? sum : 0);
    out[j] = kAdd ? out[j] + mean : mean;
  }
  for (std::size_t j = last > first ? last : first; j < n; ++j) ends(j);
}

static inline void running_sums(const float *in, std::size_t n, double *out) {
  out[0] = 0;
  for (std::size_t j = 0; j < n; ++j) out[j + 1] = out[j] + double(in[j]);
}

// Returns the mean of the guarded moments over the keys outside the band.
static double smooth_moments(const MomentRow &m) {
  running_sums(m.moment, m.n, m.running);
  pool<false>(m.running, m.n, m.narrow, m.scale, m.moment_out);
  running_sums(m.guarded, m.n, m.running);
  pool<false>(m.running, m.n, m.narrow, m.scale * (1 - m.raw_share - m.wide_share), m.guarded_out);
  pool<true>(m.running, m.n, m.wide, m.scale * m.wide_share, m.guarded_out);
  const double mean = m.n_free ? m.running[m.n] * double(m.scale) / double(m.n_free) : 0.0;
  const float floor = m.floor_share * float(mean), raw = m.scale * m.raw_share;
  const float *__restrict guarded = m.guarded;
  float *__restrict out = m.guarded_out;
  for (std::size_t j = 0; j < m.n; ++j) out[j] += raw * guarded[j] + floor;
  return mean;
}

static void draw_probabilities(const float *__restrict guarded, std::size_t n, float floor,
                               float rate, float least, float *__restrict out) {
  for (std::size_t j = 0; j < n; ++j) {
    const float pi = rate * __builtin_sqrtf(guarded[j] + floor);
    const float raised = pi > least ? pi : least;
    out[j] = raised < 1.0f ? raised : 1.0f;
  }
}

}  // namespace AKMV_ISA
}  // namespace akmv
