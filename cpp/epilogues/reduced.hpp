// Products through a few coordinates: exponentials from a floor on, which most groups of keys do
// not reach; and which of their values are drawn, to be looked at in full.
#pragma once

#include "../operands.hpp"
#if defined(AKMV_ISA)
#include "../rows.hpp"
#endif

namespace akmv {

template <class T>
struct ReducedTile {
  const T *x;  // few columns: [column][key]; many: [column group][key][column]
  int n_columns;
  T floor;  // exponentials of exponents below count as 0
  // Scores of the first `bound_dims` coordinates, less these shifts, bound the exponents from
  // above.
  int bound_dims;
  const T *query_bound;  // [kBlockRows]
  const T *key_bound;    // [key], +infinity on padding
  T *lanes;              // out, few columns: [kBlockRows][column] vectors of partial sums
  T *products;           // out, many columns: [kBlockRows][padded columns]
  // Out, for one panel: a bit for each group of keys with values, which are written for these only.
  std::uint64_t *live;  // [kBlockRows]
  T *values;            // [kBlockRows][kPanelKeys]
};

// Values of a block of rows with a panel of keys, of which some are drawn, each by a word of its
// own.
template <class T>
struct DrawPanel {
  const T *values;            // [row][kPanelKeys]
  const std::uint64_t *live;  // [row] groups of keys with values
  int n_rows;
  const T *size;  // [key], 0 on padding
  const std::uint32_t *row_words, *key_words;
  T rate;
};

template <class T>
struct DrawnValue {
  std::int32_t row, key;  // within the block and the panel
  T value, probability;
};

#if defined(AKMV_ISA)
namespace AKMV_ISA {

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
static inline void bounded_scores(const Operands<T> &t, const ReducedTile<T> &p, const T *queries,
                                  const T *panel, const T *query_bound, const T *key_bound,
                                  int panel_keys) {
  using S = Simd<T>;
  using V = typename S::V;
  const std::size_t n_bound = std::size_t(p.bound_dims);
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
    const bool any = lanes_at_least<T>(highest, S::splat(p.floor)) != 0;
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
struct BoundedScores {
  const ReducedTile<T> &p;

  int operator()(const Operands<T> &t, int strip, std::size_t first, int width) const {
    bounded_scores(t, p, t.queries + std::size_t(strip) * kRows * t.n_dims,
                   t.keys + first * t.n_dims, p.query_bound + strip * kRows, p.key_bound + first,
                   width);
    return width;
  }
};

template <class T, Columns kColumns>
struct ReducedEpilogue {
  static constexpr int kWidth = Simd<T>::kWidth;

  const Operands<T> &t;
  const ReducedTile<T> &p;
  const int n_few = kColumns == Columns::kMany ? 0 : p.n_columns;
  const int n_groups = (p.n_columns + Simd<T>::kKeys - 1) / Simd<T>::kKeys;
  const int padded = n_groups * Simd<T>::kKeys;

  void row(const Patch &at, int row, T *scores) const {
    const std::uint64_t live =
        live_exponentials(scores, t.key_shift + at.first, at.width, t.slope, t.query_shift[row],
                          t.ceiling, p.floor, p.values + row * kPanelKeys);
    p.live[row] = live;
    T *lanes = p.lanes + std::size_t(row) * std::size_t(n_few) * kWidth;
    for (int c = 0; c < n_few; ++c)
      accumulate(lanes + c * kWidth,
                 dot_of_live(live, scores, p.x + std::size_t(c) * t.n_keys + at.first));
  }

  void strip(const Patch &at) const {
    if constexpr (kColumns == Columns::kMany)
      add_products(t.scores, p.x + at.first * padded, at.width, at.panel_width, n_groups,
                   p.products + std::size_t(at.strip) * kRows * padded);
  }
};

template <class T>
static void reduced(const Operands<T> &t, const ReducedTile<T> &p) {
  if (p.n_columns <= kFewColumns) {
    ReducedEpilogue<T, Columns::kFew> epilogue{t, p};
    tile(t, BoundedScores<T>{p}, epilogue);
  } else {
    ReducedEpilogue<T, Columns::kMany> epilogue{t, p};
    tile(t, BoundedScores<T>{p}, epilogue);
  }
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

}  // namespace AKMV_ISA
#endif

}  // namespace akmv
