// Sampled attention: softmax over drawn keys, and what each key adds to the error of some rows.
#pragma once

#include "../operands.hpp"
#if defined(AKMV_ISA)
#include "../rows.hpp"
#endif

namespace akmv {

constexpr int kSquareColumns = 2;
constexpr double kLeastRest = 1e-3;  // smaller 1 - p would show the rounding of |v - o| only

// One block of queries against one chunk of packed keys, largest exponent of each row taken out:
//
//   products[i, c] = sum_j t_ij values[j, c],   totals[i] = sum_j t_ij,
//   means[i] = sum_j t_ij norms[j],             squared[i, c] = sum_j t_ij^2 squares[j, c],
//   crosses[i, c] = sum_j t_ij^2 squares[j, 1] values[j, c]   for every `cross_every`-th strip,
//
// with t_ij = exp(<q_i, k_j> - key_shift[j] - row_max[i]). Sums go on from chunk to chunk.
template <class T>
struct AttentionTile {
  const T *values;              // [panel][column group][key][column]
  const T *norms;               // [key] or null
  const T *squares;             // [kSquareColumns][key], or null: all 0
  const std::int64_t *visible;  // [row] how many keys of the chunk a row sees, or null: all
  int n_columns;
  int cross_every, cross_first;  // 0: no squared terms in any chunk

  T *products;  // [row][padded columns]
  T *crosses;   // [row][padded columns], with `cross_every`
  T *totals;    // [row] vectors of partial sums
  T *means;     // [row] vectors of partial sums, with `norms`
  T *squared;   // [row][kSquareColumns] vectors of partial sums, with `cross_every`
  T *row_max;   // [row]
  T *terms;     // scratch [rows][kScoreStride], with `squares`
};

// For one strip of queries whose outputs are known, what each key adds to their error:
//
//   moment[j]  += (p_ij / (1 - p_ij))^2 (|v_j - o_i|^2 + plan_guard_i),
//   guarded[j] += (p_ij / (1 - p_ij))^2 (|v_j - o_i|^2 + guard_i).
//
// Without the guards that is the squared error of a row that misses key j: p_ij^2 |v_j - o_i|^2 to
// first order, and all of |v_j - v|^2 where the key has nearly all the weight.
template <class T>
struct MomentStrip {
  const T *queries;  // [dim][row], the strip
  const T *outputs;  // [column][row], the strip
  const T *keys;     // as in Operands
  const T *values;   // packed like keys: [panel][group][column][key in group]
  const T *norms;    // [key] |v_j|^2
  std::size_t n_dims, n_columns;
  std::size_t first, n_keys;  // the panel
  int n_rows;
  const T *row_max;               // [row]
  const T *inverse_total;         // [row]
  const T *output_norms;          // [row] |o_i|^2
  const T *guards, *plan_guards;  // [row]
  const std::int64_t *visible;    // [row]
  float *const *moment;           // [row] where its sums go: [key]
  float *const *guarded;          // [row]
  T *scores, *dots;               // scratch [rows][kScoreStride]
};

// Listed values, moved to (v - centre) * factor and laid out for AttentionTile.
template <class T>
struct ValuePanel {
  const T *values;            // [value][column]
  const std::int32_t *index;  // [n] which values
  std::size_t n, width;       // keys listed, and with padding
  std::size_t n_columns;
  const T *centre;  // [column], zero padded to a group
  T factor;
  const T *point;  // [column], zero padded to a group
  T *out;          // [column group][key][column]
  T *apart;        // [width] squared distances of the moved values from the point
};

// Raw sums of moments made into moments to plan with; see Smoothing.
struct MomentRow {
  const float *moment, *guarded;  // [n] sums over the pilot rows, 0 in the band
  std::size_t n, n_free;          // keys, and those outside the band
  float scale;                    // 1 / pilot rows
  std::size_t narrow, wide;
  float raw_share, wide_share, floor_share;
  double *running;                  // scratch [n + 1]
  float *moment_out, *guarded_out;  // [n]
};

#if defined(AKMV_ISA)
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

// Scores of the keys of a panel that some row of the strip sees.
template <class T>
struct VisibleScores {
  const AttentionTile<T> &p;

  int operator()(const Operands<T> &t, int strip, std::size_t first, int panel_width) const {
    const std::size_t seen = seen_by_strip<T>(p.visible, strip, t.n_keys);
    if (seen <= first) return 0;
    const int width = seen - first < std::size_t(panel_width) ? int(seen - first) : panel_width;
    return EveryScore<T, false>{}(t, strip, first, width);
  }
};

template <class T>
struct AttentionEpilogue {
  using V = typename Simd<T>::V;
  static constexpr int kWidth = Simd<T>::kWidth;

  const Operands<T> &t;
  const AttentionTile<T> &p;
  const int n_groups = (p.n_columns + Simd<T>::kKeys - 1) / Simd<T>::kKeys;
  const int padded = n_groups * Simd<T>::kKeys;

  bool crosses(const Patch &at) const {
    return p.cross_every && (at.strip + p.cross_first) % p.cross_every == 0;
  }

  void row(const Patch &at, int row, T *scores) const {
    const T *key_shift = t.key_shift + at.first;
    if (p.visible) hide(scores, p.visible[row] - std::int64_t(at.first), at.width);
    raise_maximum(row, row_maximum(scores, key_shift, at.width, T(1)), crosses(at));
    // A row without any key so far has a maximum of -infinity; its exponentials are all 0.
    const T most = p.row_max[row];
    V total, unused;
    exponentials<T, true>(scores, key_shift, nullptr, at.width, T(1),
                          most - most == T(0) ? most : T(0), T(0), total, unused);
    accumulate(p.totals + row * kWidth, total);
    if (p.norms) accumulate(p.means + row * kWidth, dot(scores, p.norms + at.first, at.width));
    if (p.squares)
      add_squares(scores, p.squares + at.first, t.n_keys, at.width,
                  p.squared + row * kSquareColumns * kWidth, p.terms + row % kRows * kScoreStride);
  }

  void strip(const Patch &at) const {
    const T *values = p.values + at.first * padded;
    const std::size_t to = std::size_t(at.strip) * kRows * padded;
    add_products(t.scores, values, at.width, at.panel_width, n_groups, p.products + to);
    if (p.squares && crosses(at))
      add_products(p.terms, values, at.width, at.panel_width, n_groups, p.crosses + to);
  }

  void raise_maximum(int row, T here, bool has_crosses) const {
    const T old = p.row_max[row];
    const T next = here > old || here != here ? here : old;
    const T factor = decay(old, next);
    p.row_max[row] = next;
    if (factor == T(1)) return;
    scale_in_place(p.totals + row * kWidth, kWidth, factor);
    scale_in_place(p.products + std::size_t(row) * padded, padded, factor);
    if (p.norms) scale_in_place(p.means + row * kWidth, kWidth, factor);
    if (p.cross_every)
      scale_in_place(p.squared + row * kSquareColumns * kWidth, kSquareColumns * kWidth,
                     factor * factor);
    if (has_crosses) scale_in_place(p.crosses + std::size_t(row) * padded, padded, factor * factor);
  }
};

template <class T>
static void attend(const Operands<T> &t, const AttentionTile<T> &p) {
  AttentionEpilogue<T> epilogue{t, p};
  tile(t, VisibleScores<T>{p}, epilogue);
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
#endif

}  // namespace akmv
