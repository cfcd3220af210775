// Products with drawn keys: one draw of keys per block of queries, in dense tiles.
//
//   y_i = sum_{j drawn for i's block} K_ij x_j / pi_j  +  sum_{j found for i} K_ij x_j (1 - [j drawn] / pi_j)
//
// Unbiased for any probabilities pi and any found pairs. The second sum takes out what the draws say
// of found pairs and puts in their exact terms.
#pragma once

#include "near.hpp"
#include "philox.hpp"

namespace akmv {

/// Key j (in `key_order`) is drawn for a block with probability min(1, rate[block, tile of j] |x_j|).
struct DrawPlan {
  const std::int32_t *query_order;
  const std::int64_t *block_start;  // [blocks + 1] into query_order
  std::size_t n_blocks;
  const std::int32_t *key_order;
  const std::int64_t *tile_start;  // [tiles + 1] into key_order
  std::size_t n_tiles;
  const float *rate;     // [block][tile]
  const double *prefix;  // [keys + 1] running sums of |x| in key order
  std::uint64_t seed, stream;
};

template <class T> struct Drawn {
  std::vector<std::int32_t> keys;
  std::vector<T> weights;           // x / pi
  std::vector<T> variance_weights;  // x^2 (1 - pi) / pi^2
  std::vector<T> mass_weights;      // x^2 (1 - pi) / pi
};

/// Systematic draws: in every tile points a distance 1/rate apart, from a random start, fall on the
/// running sums of |x|, and the keys they fall on are drawn. Inclusion probabilities are exact.
template <class T>
void draw_keys(const DrawPlan &plan, std::size_t block, const T *x, Drawn<T> &out) {
  out.keys.clear();
  out.weights.clear();
  out.variance_weights.clear();
  out.mass_weights.clear();
  for (std::size_t t = 0; t < plan.n_tiles; ++t) {
    const double rate = plan.rate[block * plan.n_tiles + t];
    const std::int64_t first = plan.tile_start[t], last = plan.tile_start[t + 1];
    const double base = plan.prefix[first], mass = plan.prefix[last] - base;
    if (!(rate * mass > 0)) continue;
    const double step = 1 / rate;
    const std::uint64_t word = philox4x64({block, t, 0, 0}, {plan.seed, plan.stream})[0];
    double at = double(word >> 11) * 0x1.0p-53 * step;
    for (std::int64_t j = first; at < mass; ++j) {
      j = std::upper_bound(plan.prefix + j + 1, plan.prefix + last + 1, base + at) - plan.prefix - 1;
      if (j >= last) break;
      const std::int32_t key = plan.key_order[j];
      const double value = double(x[key]);
      const double pi = std::min(1.0, rate * std::abs(value));
      out.keys.push_back(key);
      out.weights.push_back(T(value / pi));
      out.variance_weights.push_back(T(value * value * (1 - pi) / (pi * pi)));
      out.mass_weights.push_back(T(value * value * (1 - pi) / pi));
      // On to the first point beyond this key.
      at += step * std::max(1.0, std::ceil((plan.prefix[j + 1] - base - at) / step));
    }
  }
}

/// What the draws gave: the product, unbiased estimates of its variance and of the mass left to
/// chance, sum_j (1 - pi_j) K_ij^2 x_j^2 over pairs that were not found, and the keys drawn.
template <class T> struct SampledSums {
  T *out;                  // [queries]
  double *variance;        // [queries]
  double *mass;            // [queries]
  std::int64_t *n_drawn;   // [blocks]
};

template <class T> class Sampler {
 public:
  Sampler(const Geometry<T> &geometry, const DrawPlan &plan, const FoundPairs &found, const T *x,
          const TypedKernels<T> &kernels, int n_threads)
      : g_(geometry), plan_(plan), found_(found), x_(x), k_(kernels),
        panel_keys_(cut_keys<T>(kChunkKeys, g_.keys.d, 1, k_.group_keys).panel_keys) {
    std::int64_t most = 0;
    for (std::size_t b = 0; b < plan_.n_blocks; ++b)
      most = std::max(most, plan_.block_start[b + 1] - plan_.block_start[b]);
    for (int i = 0; i < n_threads; ++i)
      spaces_.emplace_back(round_up(std::size_t(most), kBlockRows), g_.keys, k_);
  }

  void run(std::size_t block, int slot, const SampledSums<T> &sums) {
    Space &s = spaces_[slot];
    const std::int64_t first = plan_.block_start[block];
    const std::size_t n_rows = std::size_t(plan_.block_start[block + 1] - first);
    const std::int32_t *rows = plan_.query_order + first;
    draw_keys(plan_, block, x_, s.drawn);
    const std::size_t n_drawn = s.drawn.keys.size();
    for (std::size_t k = 0; k < n_drawn; ++k) {
      s.weight_of[s.drawn.keys[k]] = s.drawn.weights[k];
      s.variance_of[s.drawn.keys[k]] = s.drawn.variance_weights[k];
      s.mass_of[s.drawn.keys[k]] = s.drawn.mass_weights[k];
    }
    pack_rows(rows, n_rows, s);
    std::fill_n(s.sums.get(), 3 * n_rows, 0.0);
    for (std::size_t k = 0; k < n_drawn; k += kChunkKeys)
      add_chunk(k, std::min(kChunkKeys, n_drawn - k), n_rows, s);
    for (std::size_t i = 0; i < n_rows; ++i) {
      double *row = s.sums.get() + 3 * i;
      correct(rows[i], s, row);
      sums.out[rows[i]] = T(row[0]);
      sums.variance[rows[i]] = row[1];
      sums.mass[rows[i]] = row[2];
    }
    sums.n_drawn[block] = std::int64_t(n_drawn);
    for (std::size_t k = 0; k < n_drawn; ++k)
      s.weight_of[s.drawn.keys[k]] = s.variance_of[s.drawn.keys[k]] = s.mass_of[s.drawn.keys[k]] = T(0);
  }

 private:
  static constexpr std::size_t kChunkKeys = 1024;

  struct Space {
    Buffer<T> queries, query_shift, keys, key_shift, x, scores, lanes;
    Buffer<double> sums;                              // [row][product, variance, mass]
    std::vector<T> weight_of, variance_of, mass_of;   // [key], 0 where not drawn
    Drawn<T> drawn;

    Space(std::size_t n_rows, const Points<T> &keys_, const TypedKernels<T> &kernels)
        : queries(n_rows * keys_.d),
          query_shift(n_rows),
          keys(kChunkKeys * keys_.d),
          key_shift(kChunkKeys),
          x(3 * kChunkKeys),
          scores(std::size_t(kernels.rows) * kScoreStride),
          lanes(std::size_t(kBlockRows) * 3 * kernels.width),
          sums(3 * n_rows),
          weight_of(keys_.n, T(0)),
          variance_of(keys_.n, T(0)),
          mass_of(keys_.n, T(0)) {}
  };

  void pack_rows(const std::int32_t *rows, std::size_t n_rows, Space &s) const {
    for (std::size_t i = 0; i < n_rows; i += kBlockRows) {
      const std::size_t n = std::min<std::size_t>(kBlockRows, n_rows - i);
      pack_shift(g_.query_shift, rows + i, 0, n, kBlockRows, s.query_shift.get() + i);
      pack_points(g_.queries, rows + i, 0, n, s.query_shift.get() + i, k_, k_.rows,
                  s.queries.get() + i * g_.keys.d);
    }
  }

  void add_chunk(std::size_t first, std::size_t n, std::size_t n_rows, Space &s) const {
    Tile<T> tile{};
    tile.n_keys = round_up(n, k_.group_keys);
    const std::int32_t *keys = s.drawn.keys.data() + first;
    pack_shift(g_.key_shift, keys, 0, n, tile.n_keys, s.key_shift.get());
    pack_points(g_.keys, keys, 0, n, s.key_shift.get(), k_, k_.group_keys, s.keys.get());
    std::fill_n(s.x.get(), 3 * tile.n_keys, T(0));
    std::copy_n(s.drawn.weights.data() + first, n, s.x.get());
    std::copy_n(s.drawn.variance_weights.data() + first, n, s.x.get() + tile.n_keys);
    std::copy_n(s.drawn.mass_weights.data() + first, n, s.x.get() + 2 * tile.n_keys);
    tile.keys = s.keys.get();
    tile.key_shift = s.key_shift.get();
    tile.x = s.x.get();
    tile.n_dims = g_.keys.d;
    tile.panel_keys = panel_keys_;
    tile.n_columns = 3;
    tile.squares = true;
    tile.slope = g_.slope;
    tile.ceiling = T(0);
    tile.differences = g_.differences;
    tile.scores = s.scores.get();
    tile.lanes = s.lanes.get();
    for (std::size_t i = 0; i < n_rows; i += kBlockRows) {
      const std::size_t rows = std::min<std::size_t>(kBlockRows, n_rows - i);
      tile.queries = s.queries.get() + i * g_.keys.d;
      tile.query_shift = s.query_shift.get() + i;
      tile.n_strips = int((rows + k_.rows - 1) / k_.rows);
      std::fill_n(tile.lanes, std::size_t(kBlockRows) * 3 * k_.width, T(0));
      k_.tile(tile);
      for (std::size_t v = 0; v < 3 * rows; ++v)
        s.sums.get()[3 * i + v] += double(k_.sum_lanes(tile.lanes + v * k_.width));
    }
  }

  /// Found pairs are counted exactly: what the draws said of them is taken out again.
  void correct(std::int32_t row, const Space &s, double *sums) const {
    for (auto p = found_.indptr[row]; p < found_.indptr[row + 1]; ++p) {
      const std::int32_t key = found_.cols[p];
      const double value = double(found_.values[p]);
      sums[0] += value * (double(x_[key]) - double(s.weight_of[key]));
      sums[1] -= value * value * double(s.variance_of[key]);
      sums[2] -= value * value * double(s.mass_of[key]);
    }
  }

  const Geometry<T> &g_;
  const DrawPlan &plan_;
  const FoundPairs &found_;
  const T *x_;
  const TypedKernels<T> &k_;
  const int panel_keys_;
  std::vector<Space> spaces_;
};

template <class T>
bool sampled_product(const Geometry<T> &geometry, const DrawPlan &plan, const FoundPairs &found,
                     const T *x, const TypedKernels<T> &kernels, int n_threads, const Poll &poll,
                     const SampledSums<T> &sums) {
  n_threads = int(std::max<std::size_t>(1, std::min<std::size_t>(n_threads, plan.n_blocks)));
  Sampler<T> sampler(geometry, plan, found, x, kernels, n_threads);
  return parallel_for(
      plan.n_blocks, n_threads,
      [&](std::size_t block, int slot) { sampler.run(block, slot, sums); }, poll);
}

}  // namespace akmv
