// Products with drawn keys: one draw of keys per block of queries, in dense tiles.
//
//   y_i = sum_{j drawn for i's block} K_ij x_j / pi_j  +  sum_{j found for i} K_ij x_j (1 - [j
//   drawn] / pi_j)
//
// for every row x_j of one or several columns. Unbiased for any probabilities pi and any found
// pairs. The second sum takes out what the draws say of found pairs and puts in their exact terms.
//
// For one column a smooth part C of K may be taken out first (smooth.hpp):
//
//   y_i += sum_{j not found for i} C_ij x_j (1 - [j drawn] / pi_j)
//
// which is 0 on average, and makes the variance that of K - C. A found pair is its exact term and
// nothing else: were C left in there, only a draw could balance it, and a draw of probability 1e-11
// never comes.
#pragma once

#include "../memory.hpp"
#include "../pack.hpp"
#include "../philox.hpp"
#include "../product.hpp"
#include "../threads.hpp"
#include "../types.hpp"
#include "smooth.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <limits>

namespace akmv {

/// Key j is drawn for a block with probability min(1, rate[block, tile of j] size_j).
template <class T>
struct DrawPlan {
  const std::int32_t *query_order;
  const std::int64_t *block_start;  // [blocks + 1] into query_order
  std::size_t n_blocks;
  const std::int32_t *key_order;
  const std::int64_t *tile_start;  // [tiles + 1] into key_order
  std::size_t n_tiles;
  const float *rate;  // [block][tile]
  const T *size;      // [keys]
  std::size_t n_keys;
  std::uint64_t seed, stream;

  /// Running sums [keys + 1] of the sizes in key order.
  std::vector<double> running_sizes() const {
    std::vector<double> sums(n_keys + 1, 0.0);
    for (std::size_t k = 0; k < n_keys; ++k) sums[k + 1] = sums[k] + double(size[key_order[k]]);
    return sums;
  }
};

template <class T>
struct Drawn {
  std::vector<std::int32_t> keys, tiles;
  std::vector<double> pi;
};

/// Systematic draws: in every tile points a distance 1/rate apart, from a random start, fall on the
/// running sums of the sizes (`prefix`), and the keys they fall on are drawn. Inclusion
/// probabilities are exact.
template <class T>
void draw_keys(const DrawPlan<T> &plan, const double *prefix, std::size_t block, Drawn<T> &out) {
  out.keys.clear();
  out.tiles.clear();
  out.pi.clear();
  for (std::size_t t = 0; t < plan.n_tiles; ++t) {
    const double rate = plan.rate[block * plan.n_tiles + t];
    const std::int64_t first = plan.tile_start[t], last = plan.tile_start[t + 1];
    const double base = prefix[first], mass = prefix[last] - base;
    if (!(rate * mass > 0)) continue;
    if (rate >= double(std::numeric_limits<float>::max())) {  // certainty needs no draw
      for (std::int64_t j = first; j < last; ++j) {
        const std::int32_t key = plan.key_order[j];
        if (!(plan.size[key] > 0)) continue;
        out.keys.push_back(key);
        out.tiles.push_back(std::int32_t(t));
        out.pi.push_back(1.0);
      }
      continue;
    }
    const double step = 1 / rate;
    const std::uint64_t word = philox4x64({block, t, 0, 0}, {plan.seed, plan.stream})[0];
    double at = double(word >> 11) * 0x1.0p-53 * step;
    for (std::int64_t j = first; at < mass; ++j) {
      if (prefix[j + 1] <= base + at)  // where most keys are drawn the next one mostly is
        j = std::upper_bound(prefix + j + 1, prefix + last + 1, base + at) - prefix - 1;
      if (j >= last) break;
      const std::int32_t key = plan.key_order[j];
      out.keys.push_back(key);
      out.tiles.push_back(std::int32_t(t));
      out.pi.push_back(std::min(1.0, rate * double(plan.size[key])));
      // On to the first point beyond this key.
      at += step * std::max(1.0, std::ceil((prefix[j + 1] - base - at) / step));
    }
  }
}

/// All that a product from drawn keys is made of.
template <class T>
struct Drawing {
  Geometry<T> geometry;
  DrawPlan<T> plan;
  FoundPairs found;
  SmoothPart<T> smooth;
  Rows<T> x;  // [key][column]
};

template <class T>
class Sampler {
 public:
  Sampler(const Drawing<T> &drawing, const TypedKernels<T> &kernels, int n_threads)
      : g_(drawing.geometry),
        plan_(drawing.plan),
        found_(drawing.found),
        smooth_(drawing.smooth),
        x_(drawing.x.data),
        n_columns_(drawing.x.d),
        k_(kernels),
        prefix_(plan_.running_sizes()),
        panel_keys_(cut_keys<T>(kChunkKeys, g_.keys.d, 1, k_.group_keys).panel_keys),
        of_key_(smooth_.moments ? polynomials_of_keys() : std::vector<OfKey>()) {
    std::int64_t most = 0;
    for (std::size_t b = 0; b < plan_.n_blocks; ++b)
      most = std::max(most, plan_.block_start[b + 1] - plan_.block_start[b]);
    for (int i = 0; i < n_threads; ++i)
      spaces_.emplace_back(round_up(std::size_t(most), kBlockRows), g_.keys, n_columns_,
                           smooth_.moments != nullptr, k_);
  }

  void run(std::size_t block, int slot, const SampledSums<T> &sums) {
    Space &s = spaces_[slot];
    const std::int64_t first = plan_.block_start[block];
    const std::size_t n_rows = std::size_t(plan_.block_start[block + 1] - first);
    const std::int32_t *rows = plan_.query_order + first;
    draw_keys(plan_, prefix_.data(), block, s.drawn);
    const std::size_t n_drawn = s.drawn.keys.size();
    for (std::size_t k = 0; k < n_drawn; ++k) {
      const std::int32_t key = s.drawn.keys[k];
      const double pi = s.drawn.pi[k], left = squared_length(key) * (1 - pi) / pi;
      s.inverse_of[key] = T(1 / pi);
      s.variance_of[key] = T(left / pi);
      s.mass_of[key] = T(left);
    }
    if (smooth_.moments) {
      make_polynomials(block, s);
      s.moments.start(smooth_.moments + block * n_moments(g_.keys.d));
    }
    pack_rows(rows, n_rows, s);
    const std::size_t n_sums = n_columns_ + 2;
    std::fill_n(s.sums.get(), n_sums * n_rows, 0.0);
    for (std::size_t k = 0; k < n_drawn; k += kChunkKeys)
      add_chunk(k, std::min(kChunkKeys, n_drawn - k), n_rows, s);
    if (smooth_.moments) add_smooth_part(n_rows, s);
    for (std::size_t i = 0; i < n_rows; ++i) {
      double *row = s.sums.get() + n_sums * i;
      fetch_ahead(rows + i, n_rows - i, s);
      correct(rows[i], block, s, row);
      std::copy_n(row, n_columns_, sums.out + std::size_t(rows[i]) * n_columns_);
      sums.variance[rows[i]] = row[n_columns_];
      sums.mass[rows[i]] = row[n_columns_ + 1];
    }
    sums.n_drawn[block] = std::int64_t(n_drawn);
    for (const std::int32_t key : s.drawn.keys)
      s.inverse_of[key] = s.variance_of[key] = s.mass_of[key] = T(0);
  }

 private:
  static constexpr std::size_t kChunkKeys = 1024;

  struct Space {
    Buffer<T> queries, query_shift, query_scale, keys, key_shift, weights, x, square_x, smooth,
        scores, lanes, products;
    Buffer<double> sums;                              // [row][columns, variance, mass]
    std::vector<T> inverse_of, variance_of, mass_of;  // [key], 0 where not drawn
    Drawn<T> drawn;
    std::vector<T> polynomials;  // [drawn][power], of keys whose squares are summed
    Moments<T> moments;

    Space(std::size_t n_rows, const Points<T> &keys_, std::size_t n_columns, bool has_smooth,
          const TypedKernels<T> &kernels)
        : queries(n_rows * keys_.d),
          query_shift(n_rows),
          query_scale(n_rows),
          keys(kChunkKeys * keys_.d),
          key_shift(kChunkKeys),
          weights(kChunkKeys * n_columns),
          x(kChunkKeys * round_up(n_columns, kernels.group_keys)),
          square_x(2 * kChunkKeys),
          smooth(kSmoothTerms * kChunkKeys),
          scores(std::size_t(kernels.rows) * kScoreStride),
          lanes(kBlockRows * (kFewColumns + 2) * std::size_t(kernels.width)),
          products(kBlockRows * round_up(n_columns, kernels.group_keys)),
          sums((n_columns + 2) * n_rows),
          inverse_of(keys_.n, T(0)),
          variance_of(keys_.n, T(0)),
          mass_of(keys_.n, T(0)),
          moments(has_smooth ? keys_.d : 0, kernels) {}
  };

  /// What C needs to know of a key, in one place of memory.
  struct OfKey {
    double shift;       // half its squared norm over sigma^2
    float scale;        // e^-shift
    std::int32_t tile;  // whose coefficients it has
  };

  std::vector<OfKey> polynomials_of_keys() const {
    std::vector<OfKey> of_key(g_.keys.n);
    for (std::size_t t = 0; t < plan_.n_tiles; ++t)
      for (std::int64_t k = plan_.tile_start[t]; k < plan_.tile_start[t + 1]; ++k) {
        const std::size_t key = std::size_t(plan_.key_order[k]);
        const double shift = g_.key_shift[key];
        of_key[key] = {shift, float(std::exp(-shift)), std::int32_t(t)};
      }
    return of_key;
  }

  double squared_length(std::int32_t key) const {
    double sum = 0;
    for (std::size_t c = 0; c < n_columns_; ++c) {
      const double v = double(x_[std::size_t(key) * n_columns_ + c]);
      sum += v * v;
    }
    return sum;
  }

  const float *coefficients_of(std::size_t block) const {
    return smooth_.coefficients + block * plan_.n_tiles * kSmoothTerms;
  }

  /// The polynomials of the drawn keys, in the order they were drawn in.
  void make_polynomials(std::size_t block, Space &s) const {
    const float *coefficients = coefficients_of(block);
    const std::size_t n_drawn = s.drawn.keys.size();
    s.polynomials.resize(n_drawn * kSmoothTerms);
    for (std::size_t k = 0; k < n_drawn; ++k) {
      const std::int32_t key = s.drawn.keys[k];
      const float *of_tile = coefficients + std::size_t(s.drawn.tiles[k]) * kSmoothTerms;
      const double scale = std::exp(-g_.key_shift[key]);
      for (int p = 0; p < kSmoothTerms; ++p)
        s.polynomials[k * kSmoothTerms + p] = T(double(of_tile[p]) * scale);
    }
  }

  /// Takes packed keys out of the moments of all keys, and packs their polynomials.
  void take_out(std::size_t first, std::size_t n, std::size_t padded, Space &s) const {
    const std::size_t group = std::size_t(k_.group_keys);
    std::fill_n(s.smooth.get(), kSmoothTerms * padded, T(0));
    for (std::size_t k = 0; k < n; ++k) {
      const std::int32_t key = s.drawn.keys[first + k];
      const double left = -double(x_[key]) / s.drawn.pi[first + k];
      double weight[kSmoothTerms];
      for (int p = 0; p < kSmoothTerms; ++p) {
        const T coefficient = s.polynomials[(first + k) * kSmoothTerms + p];
        s.smooth.get()[p * padded + k] = coefficient;
        weight[p] = left * double(coefficient);
      }
      const T *point = s.keys.get() + k / group * group * g_.keys.d + k % group;
      s.moments.add(point, group, weight);
    }
  }

  void pack_rows(const std::int32_t *rows, std::size_t n_rows, Space &s) const {
    for (std::size_t i = 0; i < n_rows; i += kBlockRows) {
      const std::size_t n = std::min<std::size_t>(kBlockRows, n_rows - i);
      pack_queries(g_, rows + i, 0, n, k_, s.queries.get() + i * g_.keys.d,
                   s.query_shift.get() + i);
    }
    if (smooth_.moments)
      for (std::size_t i = 0; i < round_up(n_rows, kBlockRows); ++i)
        s.query_scale.get()[i] = i < n_rows ? T(std::exp(-g_.query_shift[rows[i]])) : T(0);
  }

  /// Terms over their probabilities, as the tile kernel reads them.
  void pack_weights(const std::int32_t *keys, std::size_t n, std::size_t padded, Space &s) const {
    std::fill_n(s.square_x.get(), 2 * padded, T(0));
    for (std::size_t k = 0; k < n; ++k) {
      const T *x = x_ + std::size_t(keys[k]) * n_columns_;
      for (std::size_t c = 0; c < n_columns_; ++c)
        s.weights.get()[k * n_columns_ + c] = x[c] * s.inverse_of[keys[k]];
      s.square_x.get()[k] = s.variance_of[keys[k]];
      s.square_x.get()[padded + k] = s.mass_of[keys[k]];
    }
    if (n_columns_ <= std::size_t(kFewColumns)) {
      pack_few_columns(s.weights.get(), n_columns_, 0, n, padded, s.x.get());
      return;
    }
    for (std::size_t start = 0; start < padded; start += panel_keys_)
      pack_many_columns(s.weights.get(), n_columns_, start, n,
                        std::min<std::size_t>(panel_keys_, padded - start), k_.group_keys,
                        s.x.get() + start * round_up(n_columns_, k_.group_keys));
  }

  void add_chunk(std::size_t first, std::size_t n, std::size_t n_rows, Space &s) const {
    const std::int32_t *keys = s.drawn.keys.data() + first;
    const std::size_t padded = pack_keys(g_, keys, 0, n, k_, s.keys.get(), s.key_shift.get());
    pack_weights(keys, n, padded, s);
    if (smooth_.moments) take_out(first, n, padded, s);
    Operands<T> operands = operands_of(g_, panel_keys_, s.scores.get());
    put_keys(s.keys.get(), s.key_shift.get(), padded, operands);
    SampledTile<T> tile{
        s.x.get(), int(n_columns_), s.square_x.get(), smooth_.moments ? s.smooth.get() : nullptr,
        nullptr,   s.lanes.get(),   s.products.get()};
    for (std::size_t i = 0; i < n_rows; i += kBlockRows) {
      const std::size_t rows = std::min<std::size_t>(kBlockRows, n_rows - i);
      put_queries(s.queries.get() + i * g_.keys.d, s.query_shift.get() + i, rows, k_, operands);
      tile.query_scale = s.query_scale.get() + i;
      std::fill_n(tile.lanes, kBlockRows * (n_few() + 2) * std::size_t(k_.width), T(0));
      if (n_few() < n_columns_)
        std::fill_n(tile.products, kBlockRows * round_up(n_columns_, k_.group_keys), T(0));
      k_.sampled(operands, tile);
      for (std::size_t r = 0; r < rows; ++r)
        add_row(tile, r, s.sums.get() + (i + r) * (n_columns_ + 2));
    }
  }

  /// Columns that are dotted: all, or none.
  std::size_t n_few() const { return n_columns_ > std::size_t(kFewColumns) ? 0 : n_columns_; }

  /// Sums of one row of a tile: of many columns, then of few columns and squares.
  void add_row(const SampledTile<T> &tile, std::size_t row, double *sums) const {
    if (n_few() < n_columns_) {
      const T *products = tile.products + row * round_up(n_columns_, k_.group_keys);
      for (std::size_t c = 0; c < n_columns_; ++c) sums[c] += double(products[c]);
    }
    const T *lanes = tile.lanes + row * (n_few() + 2) * std::size_t(k_.width);
    for (std::size_t c = 0; c < n_few() + 2; ++c)
      sums[n_columns_ - n_few() + c] += double(k_.sum_lanes(lanes + c * std::size_t(k_.width)));
  }

  /// What the smooth part of all keys exceeds that of the drawn ones by.
  void add_smooth_part(std::size_t n_rows, Space &s) const {
    s.moments.make_polynomial(double(g_.slope));
    const std::size_t strip = std::size_t(k_.rows);
    for (std::size_t i = 0; i < n_rows; ++i) {
      const T *point = s.queries.get() + i / strip * strip * g_.keys.d + i % strip;
      s.sums.get()[3 * i] += double(s.query_scale.get()[i]) * s.moments.at(point, strip);
    }
  }

  /// Lists of found pairs, and what is known of their keys, lie anywhere in memory: each is sent
  /// for while the rows before it are corrected.
  void fetch_ahead(const std::int32_t *rows, std::size_t n_rows, const Space &s) const {
    if (n_rows > 12) __builtin_prefetch(found_.indptr + rows[12]);
    if (n_rows > 8) found_.prefetch(rows[8]);
    if (n_rows <= 4) return;
    for (auto p = found_.indptr[rows[4]]; p < found_.indptr[rows[4] + 1]; ++p) {
      const auto key = std::size_t(found_.cols[p]);
      __builtin_prefetch(&s.inverse_of[key]);
      __builtin_prefetch(x_ + key * n_columns_);
      if (smooth_.moments) __builtin_prefetch(&of_key_[key]);
    }
  }

  /// Found pairs are counted exactly: what the draws and the smooth part said of them is taken out.
  void correct(std::int32_t row, std::size_t block, const Space &s, double *sums) const {
    const bool has_smooth = smooth_.moments != nullptr;
    const SmoothRow of_row = has_smooth ? smooth_row(row, block) : SmoothRow{};
    for (auto p = found_.indptr[row]; p < found_.indptr[row + 1]; ++p) {
      const std::int32_t key = found_.cols[p];
      const double value = double(found_.values[p]), inverse = double(s.inverse_of[key]);
      const double left = has_smooth ? value - of_row.at(of_key_[key], value) : value;
      const T *x = x_ + std::size_t(key) * n_columns_;
      // K, less what was summed: C (1 - 1/pi) + K / pi.
      for (std::size_t c = 0; c < n_columns_; ++c) sums[c] += left * (1 - inverse) * double(x[c]);
      if (inverse == 0) continue;
      sums[n_columns_] -= left * left * double(s.variance_of[key]);
      sums[n_columns_ + 1] -= left * left * double(s.mass_of[key]);
    }
  }

  /// C in one row, at keys where the value of K is known.
  struct SmoothRow {
    double shift, scale;
    const float *coefficients;  // [tile][power]

    double at(const OfKey &key, double value) const {
      if (!(value > 0) || !(scale > 0)) return 0;
      const float *c = coefficients + std::size_t(key.tile) * kSmoothTerms;
      const double z = std::log(value) + shift + key.shift;
      return scale * double(key.scale) * (double(c[0]) + z * (double(c[1]) + z * double(c[2])));
    }
  };

  SmoothRow smooth_row(std::int32_t row, std::size_t block) const {
    const double shift = g_.query_shift[row];
    return {shift, std::exp(-shift), coefficients_of(block)};
  }

  const Geometry<T> &g_;
  const DrawPlan<T> &plan_;
  const FoundPairs &found_;
  const SmoothPart<T> &smooth_;
  const T *x_;  // [key][column]
  const std::size_t n_columns_;
  const TypedKernels<T> &k_;
  const std::vector<double> prefix_;
  const int panel_keys_;
  const std::vector<OfKey> of_key_;  // [key], with a smooth part
  std::vector<Space> spaces_;
};

/// Draws for the listed blocks, and writes what belongs to them.
template <class T>
void sampled_product(const Drawing<T> &drawing, const std::int64_t *blocks, std::size_t n_listed,
                     const TypedKernels<T> &kernels, int n_threads, const Poll &poll,
                     const SampledSums<T> &sums) {
  n_threads = int(std::max<std::size_t>(1, std::min<std::size_t>(n_threads, n_listed)));
  Sampler<T> sampler(drawing, kernels, n_threads);
  parallel_for(
      n_listed, n_threads,
      [&](std::size_t i, int slot) { sampler.run(std::size_t(blocks[i]), slot, sums); }, poll);
}

}  // namespace akmv
