// Products through a few coordinates: all pairs of short points, and some pairs of the whole ones.
//
//   y_i = sum_j H_ij x_j  +  sum_{j drawn for i} (K_ij - H_ij) x_j / pi_ij
//
// H is a matrix that looks like K and is cheap: its points have few coordinates, and exponents
// below a floor count as none. Its values say which pairs are worth looking at in full, pair by
// pair: pi_ij = min(1, size_j rate H_ij), and a small constant where H is 0. Unbiased for any H.
// Draws of two pairs are independent: the variance is the sum over the pairs.
#pragma once

#include "../memory.hpp"
#include "../pack.hpp"
#include "../philox.hpp"
#include "../product.hpp"
#include "../threads.hpp"
#include "../types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace akmv {

template <class T>
struct Reduction {
  Geometry<T> few;                              // of H, by inner products
  PairKernel<T> whole;                          // K
  const std::int32_t *query_index, *key_index;  // where the few's points are among them
  const std::int32_t *own;  // [query] the key that is this query, whose K is known to be 1; or -1
  const T *x;               // [key][column], in the order of the few
  std::size_t n_columns;
  const T *size;  // [key], in the order of the few
  T floor, rate;
  double least;  // probability of pairs whose H is 0
  std::uint64_t seed, stream;
};

/// Words of the queries (side 0) or keys (side 1); words of a pair are made of both.
inline std::vector<std::uint32_t> side_words(std::size_t n, std::uint64_t side, std::uint64_t seed,
                                             std::uint64_t stream) {
  std::vector<std::uint32_t> words(n);
  for (std::size_t i = 0; i < n; ++i)
    words[i] = std::uint32_t(philox4x64({i, side, 0, 0}, {seed, stream})[0] >> 32);
  return words;
}

template <class T>
class Reducer {
 public:
  Reducer(const Reduction<T> &reduction, const TypedKernels<T> &kernels, int n_threads,
          const Poll &poll)
      : r_(reduction),
        k_(kernels),
        n_threads_(n_threads),
        poll_(poll),
        cut_(small_chunks(cut_keys<T>(r_.few.keys.n, r_.few.keys.d, r_.n_columns, k_.group_keys))),
        padded_(round_up(r_.n_columns, k_.group_keys)),
        row_words_(side_words(r_.few.queries.n, 0, r_.seed, r_.stream)),
        key_words_(side_words(r_.few.keys.n, 1, r_.seed, r_.stream)),
        blind_(r_.few.queries.n) {
    for (int i = 0; i < n_threads_; ++i) spaces_.emplace_back(r_.few.keys.d, r_.n_columns, k_);
  }

  /// False if it was stopped.
  void run(const SampledSums<T> &sums) {
    std::fill_n(sums.out, r_.few.queries.n * r_.n_columns, T(0));
    std::fill_n(sums.variance, r_.few.queries.n, 0.0);
    std::fill_n(sums.mass, r_.few.queries.n, 0.0);
    std::fill_n(sums.n_drawn, r_.few.queries.n, 0);
    for (std::size_t i = 0; i < r_.few.queries.n; ++i) move_on(i);
    Keys keys(cut_, r_.few.keys.d, padded_);
    const std::size_t n_blocks = (r_.few.queries.n + kBlockRows - 1) / kBlockRows;
    for (std::size_t c = 0; c < cut_.n_chunks; ++c) {
      const std::size_t first = c * cut_.chunk_keys;
      const std::size_t n_keys = std::min(r_.few.keys.n - first, cut_.chunk_keys);
      const std::size_t n_panels = (n_keys + cut_.panel_keys - 1) / cut_.panel_keys;
      parallel_for(
          n_panels, n_threads_,
          [&](std::size_t p, int) {
            const std::size_t start = p * cut_.panel_keys;
            pack_panel(first, start, panel_width(n_keys, start), keys);
          },
          poll_);
      parallel_for(
          n_blocks, n_threads_,
          [&](std::size_t b, int slot) { run_block(b, first, n_keys, keys, spaces_[slot], sums); },
          poll_);
    }
  }

 private:
  /// Chunks whose whole keys stay in the last-level cache while all queries look at them.
  Cut small_chunks(Cut cut) const {
    constexpr std::size_t kWholeBytes = 8 << 20;
    const std::size_t fit =
        kWholeBytes / (sizeof(T) * r_.whole.keys.d * std::size_t(cut.panel_keys));
    cut.chunk_keys = std::min(cut.chunk_keys, std::max<std::size_t>(fit, 1) * cut.panel_keys);
    cut.n_chunks = (r_.few.keys.n + cut.chunk_keys - 1) / cut.chunk_keys;
    return cut;
  }

  /// One chunk of packed keys.
  struct Keys {
    Buffer<T> points, shift, bound, x, size;
    Buffer<std::uint32_t> words;

    Keys(const Cut &cut, std::size_t n_dims, std::size_t padded_columns)
        : points(cut.chunk_keys * n_dims),
          shift(cut.chunk_keys),
          bound(cut.chunk_keys),
          x(cut.chunk_keys * padded_columns),
          size(cut.chunk_keys),
          words(cut.chunk_keys) {}
  };

  struct Space {
    Workspace<T> tile;
    Buffer<T> values, bound;
    Buffer<std::uint64_t> live;
    Buffer<DrawnValue<T>> drawn;
    Buffer<double> corrections;  // [row][column]

    Space(std::size_t n_dims, std::size_t n_columns, const TypedKernels<T> &kernels)
        : tile(n_dims, n_columns, kernels),
          values(kBlockRows * kPanelKeys),
          bound(kBlockRows),
          live(kBlockRows),
          drawn(kBlockRows * kPanelKeys),
          corrections(kBlockRows * n_columns) {}
  };

  std::size_t panel_width(std::size_t n_keys, std::size_t start) const {
    return std::min<std::size_t>(cut_.panel_keys, n_keys - start);
  }

  std::size_t bound_dims() const { return std::min<std::size_t>(kBoundDims, r_.few.keys.d); }

  /// Half the squared lengths of packed points along their first coordinates, as exponents: what
  /// they would have to be shifted by if they had no other coordinates.
  void bound(const T *packed, const T *shift, std::size_t n, int group, T *out) const {
    for (std::size_t i = 0; i < n; ++i) {
      const T *point = packed + i / group * group * r_.few.keys.d + i % group;
      T sum = 0;
      for (std::size_t l = 0; l < bound_dims(); ++l) sum += point[l * group] * point[l * group];
      const bool none = shift[i] == std::numeric_limits<T>::infinity();
      out[i] = none ? shift[i] : T(0.5) * r_.few.slope * sum;
    }
  }

  /// Keys first + start, ...: everything lies at the place `start` of the chunk.
  void pack_panel(std::size_t first, std::size_t start, std::size_t width, Keys &keys) const {
    const std::size_t from = first + start, to = from + width;
    const std::size_t padded =
        pack_keys(r_.few, nullptr, from, width, k_, keys.points.get() + start * r_.few.keys.d,
                  keys.shift.get() + start);
    bound(keys.points.get() + start * r_.few.keys.d, keys.shift.get() + start, padded,
          k_.group_keys, keys.bound.get() + start);
    T *x = keys.x.get() + start * padded_;
    if (r_.n_columns <= std::size_t(kFewColumns))
      pack_few_columns(r_.x, r_.n_columns, from, to, padded, x);
    else
      pack_many_columns(r_.x, r_.n_columns, from, to, padded, k_.group_keys, x);
    std::copy_n(r_.size + from, width, keys.size.get() + start);
    std::fill_n(keys.size.get() + start + width, padded - width, T(0));
    std::copy_n(key_words_.data() + from, width, keys.words.get() + start);
    std::fill_n(keys.words.get() + start + width, padded - width, 0u);
  }

  void run_block(std::size_t block, std::size_t first_key, std::size_t n_keys, const Keys &keys,
                 Space &s, const SampledSums<T> &sums) {
    const std::size_t first = block * kBlockRows;
    const std::size_t n_rows = std::min<std::size_t>(kBlockRows, r_.few.queries.n - first);
    const bool few_columns = r_.n_columns <= std::size_t(kFewColumns);
    Operands<T> operands = operands_of(r_.few, cut_.panel_keys, s.tile.scores.get());
    pack_rows(first, n_rows, s);
    put_queries(s.tile.queries.get(), s.tile.query_shift.get(), n_rows, k_, operands);
    ReducedTile<T> tile = cleared_tile(s);
    std::fill_n(s.corrections.get(), n_rows * r_.n_columns, 0.0);
    for (std::size_t start = 0; start < n_keys; start += cut_.panel_keys) {
      const std::size_t width = panel_width(n_keys, start);
      put_keys(keys.points.get() + start * r_.few.keys.d, keys.shift.get() + start,
               round_up(width, k_.group_keys), operands);
      tile.key_bound = keys.bound.get() + start;
      tile.x = keys.x.get() + start * padded_;
      k_.reduced(operands, tile);
      const DrawPanel<T> panel{tile.values,
                               tile.live,
                               int(n_rows),
                               keys.size.get() + start,
                               &row_words_[first],
                               keys.words.get() + start,
                               r_.rate};
      const int n_drawn = k_.draw_values(panel, s.drawn.get());
      constexpr int kAhead = 2;
      const DrawnValue<T> *drawn = s.drawn.get();
      for (int h = 0; h < n_drawn; ++h) {
        if (h + kAhead < n_drawn) fetch(whole_key(first_key + start + drawn[h + kAhead].key));
        look(first, drawn[h].row, first_key + start + drawn[h].key, double(drawn[h].value),
             double(drawn[h].probability), s, sums);
      }
      look_blindly(first, n_rows, first_key + start, width, s, sums);
      correct_diagonal(first, n_rows, first_key + start, width, s);
    }
    for (std::size_t i = 0; i < n_rows; ++i)
      for (std::size_t c = 0; c < r_.n_columns; ++c) {
        const T sum = few_columns ? k_.sum_lanes(tile.lanes + (i * r_.n_columns + c) * k_.width)
                                  : tile.products[i * padded_ + c];
        sums.out[(first + i) * r_.n_columns + c] +=
            T(double(sum) + s.corrections.get()[i * r_.n_columns + c]);
      }
  }

  void pack_rows(std::size_t first, std::size_t n_rows, Space &s) const {
    pack_queries(r_.few, nullptr, first, n_rows, k_, s.tile.queries.get(),
                 s.tile.query_shift.get());
    bound(s.tile.queries.get(), s.tile.query_shift.get(), round_up(n_rows, k_.rows), k_.rows,
          s.bound.get());
  }

  /// Sums of a block of queries, before the first panel.
  ReducedTile<T> cleared_tile(Space &s) const {
    ReducedTile<T> tile{};
    tile.n_columns = int(r_.n_columns);
    tile.floor = r_.floor;
    tile.bound_dims = int(bound_dims());
    tile.query_bound = s.bound.get();
    tile.lanes = s.tile.lanes.get();
    tile.products = s.tile.products.get();
    tile.values = s.values.get();
    tile.live = s.live.get();
    if (r_.n_columns <= std::size_t(kFewColumns))
      std::fill_n(tile.lanes, kBlockRows * r_.n_columns * k_.width, T(0));
    else
      std::fill_n(tile.products, kBlockRows * padded_, T(0));
    return tile;
  }

  /// Looks at a drawn pair in all its coordinates.
  void look(std::size_t first, std::size_t i, std::size_t key, double cheap, double pi, Space &s,
            const SampledSums<T> &sums) const {
    const std::size_t row = first + i;
    if (std::int64_t(key) == r_.own[row]) return;
    const T *query = r_.whole.queries[std::size_t(r_.query_index[row])];
    const double distance = double(k_.squared_distance(query, whole_key(key), r_.whole.keys.d));
    const double term = (std::exp(r_.whole.slope * distance) - cheap) / pi;
    const double variance = (1 - pi) * term * term * add_term(i, key, term, s);
    sums.variance[row] += variance;
    sums.mass[row] += pi * variance;
    ++sums.n_drawn[row];
  }

  /// Pairs of one panel whose H is 0, each with the same small probability.
  void look_blindly(std::size_t first, std::size_t n_rows, std::size_t from, std::size_t width,
                    Space &s, const SampledSums<T> &sums) {
    for (std::size_t i = 0; i < n_rows; ++i)
      for (Blind &blind = blind_[first + i]; blind.key < from + width; move_on(first + i))
        if (value(s, i, blind.key - from) == 0) look(first, i, blind.key, 0.0, r_.least, s, sums);
  }

  /// The next key a query looks at blindly: gaps between successes of probability `least`.
  void move_on(std::size_t row) {
    Blind &blind = blind_[row];
    const std::uint64_t word =
        philox4x64({row, 2, std::uint64_t(blind.n_moves), 0}, {r_.seed, r_.stream})[0];
    const double uniform = (double(word >> 11) + 0.5) * 0x1.0p-53;
    const double gap = r_.least > 0 ? std::floor(std::log(uniform) / std::log1p(-r_.least)) : 1e18;
    blind.key += (blind.n_moves > 0) + std::size_t(std::min(gap, 1e18));
    ++blind.n_moves;
  }

  double value(const Space &s, std::size_t i, std::size_t j) const {
    const bool live = s.live.get()[i] >> (j / std::size_t(k_.group_keys)) & 1;
    return live ? double(s.values.get()[i * kPanelKeys + j]) : 0.0;
  }

  /// Every point with itself: no draw is needed to know that K is 1 there.
  void correct_diagonal(std::size_t first, std::size_t n_rows, std::size_t from, std::size_t width,
                        Space &s) const {
    for (std::size_t i = 0; i < n_rows; ++i) {
      const std::int64_t own = r_.own[first + i], at = own - std::int64_t(from);
      if (own >= 0 && at >= 0 && at < std::int64_t(width))
        add_term(i, std::size_t(own), 1 - value(s, i, std::size_t(at)), s);
    }
  }

  /// Adds term * x[key] to the corrections of a row; |x[key]|^2.
  double add_term(std::size_t row, std::size_t key, double term, Space &s) const {
    double length = 0;
    for (std::size_t c = 0; c < r_.n_columns; ++c) {
      const double x = double(r_.x[key * r_.n_columns + c]);
      length += x * x;
      s.corrections.get()[row * r_.n_columns + c] += term * x;
    }
    return length;
  }

  const T *whole_key(std::size_t key) const {
    return r_.whole.keys[std::size_t(r_.key_index[key])];
  }

  void fetch(const T *point) const {
    for (std::size_t l = 0; l < r_.whole.keys.d; l += kAlignment / sizeof(T))
      __builtin_prefetch(point + l);
  }

  static constexpr std::size_t kBoundDims = 12;

  const Reduction<T> &r_;
  const TypedKernels<T> &k_;
  const int n_threads_;
  const Poll &poll_;
  const Cut cut_;
  const std::size_t padded_;  // columns
  const std::vector<std::uint32_t> row_words_, key_words_;
  struct Blind {
    std::size_t key = 0;
    std::uint32_t n_moves = 0;
  };
  std::vector<Blind> blind_;  // [query] where it looks next
  std::vector<Space> spaces_;
};

template <class T>
void reduced_product(const Reduction<T> &reduction, const TypedKernels<T> &kernels, int n_threads,
                     const Poll &poll, const SampledSums<T> &sums) {
  Reducer<T>(reduction, kernels, n_threads, poll).run(sums);
}

}  // namespace akmv
