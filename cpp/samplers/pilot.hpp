// Pilot rows: sums over a few rows of the matrix, by tiles of keys, and their near pairs.
#pragma once

#include "../memory.hpp"
#include "../pack.hpp"
#include "../threads.hpp"
#include "../types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace akmv {

/// Rows against all keys, in tiles key_order[tile_start[t] .. tile_start[t + 1]).
template <class T>
struct PilotRows {
  const std::int32_t *rows;  // numbers of the queries
  std::size_t n_rows;
  const std::int32_t *key_order;
  const std::int64_t *tile_start;
  std::size_t n_tiles;
  const T *weights;  // [keys]
  const T *x;        // [keys], or null
  T threshold;       // pairs with a value from here on are listed
  // Out [tile][row] sums of K^2 times the weights. With x out [tile][row][kPowerSums]: K x, K^2
  // times the weights and, over keys that are not near, with D = e^-u e^-v and z as in smooth.hpp,
  // the weights times K D z^k for k = 0, 1, 2 and times D^2 z^k for k = 0 to 4.
  double *sums;
};

/// Columns of a panel, as the tile kernel reads them.
template <class T>
void pack_weights(const Geometry<T> &g, const PilotRows<T> &pilot, const std::int32_t *keys,
                  std::size_t n, std::size_t padded, T *weights, T *x) {
  std::fill_n(weights, (pilot.x ? 3 : 2) * padded, T(0));
  for (std::size_t j = 0; j < n; ++j) weights[j] = pilot.weights[keys[j]];
  if (!pilot.x) return;
  std::fill_n(x, padded, T(0));
  for (std::size_t j = 0; j < n; ++j) {
    const double scale = std::exp(-g.key_shift[keys[j]]);
    weights[padded + j] = T(double(weights[j]) * scale);
    weights[2 * padded + j] = T(double(weights[j]) * scale * scale);
    x[j] = pilot.x[keys[j]];
  }
}

/// Scratch of one thread, and what tiles of pilot rows share.
template <class T>
struct PilotSpace {
  Buffer<T> keys, key_shift, weights, x, scores, lanes, values, largest;
  Operands<T> operands;
  PilotTile<T> tile;

  PilotSpace(const Geometry<T> &g, const PilotRows<T> &pilot, const TypedKernels<T> &k)
      : keys(kPanelKeys * g.keys.d),
        key_shift(kPanelKeys),
        weights(3 * kPanelKeys),
        x(kPanelKeys),
        scores(std::size_t(k.rows) * kScoreStride),
        lanes(std::size_t(kBlockRows) * kPowerSums * k.width),
        values(kBlockRows * kPanelKeys),
        largest(kBlockRows),
        operands(operands_of(g, kPanelKeys, scores.get())),
        tile{weights.get(), pilot.x ? x.get() : nullptr, pilot.threshold, lanes.get(), values.get(),
             largest.get()} {}
};

template <class T>
class Pilot {
 public:
  Pilot(const Geometry<T> &g, const PilotRows<T> &pilot, const TypedKernels<T> &kernels,
        int n_threads)
      : g_(g),
        p_(pilot),
        k_(kernels),
        n_sums_(pilot.x ? kPowerSums : 1),
        n_lanes_(pilot.x ? kPowerSums : 2),
        queries_(round_up(pilot.n_rows, kBlockRows) * g.keys.d),
        query_shift_(round_up(pilot.n_rows, kBlockRows)) {
    for (std::size_t i = 0; i < p_.n_rows; i += kBlockRows)
      pack_queries(g, p_.rows + i, 0, rows_from(i), k_, queries_.get() + i * g.keys.d,
                   query_shift_.get() + i);
    for (int i = 0; i < n_threads; ++i) spaces_.emplace_back(g, pilot, kernels);
  }

  /// All rows against one tile of keys.
  void run(std::size_t t, int slot, std::vector<NewPair> &near) {
    PilotSpace<T> &s = spaces_[std::size_t(slot)];
    double *sums = p_.sums + t * p_.n_rows * n_sums_;
    std::fill_n(sums, p_.n_rows * n_sums_, 0.0);
    for (std::int64_t k = p_.tile_start[t]; k < p_.tile_start[t + 1]; k += kPanelKeys) {
      const Listing keys{p_.key_order + k,
                         std::size_t(std::min<std::int64_t>(kPanelKeys, p_.tile_start[t + 1] - k))};
      const std::size_t padded =
          pack_keys(g_, keys.points, 0, keys.n, k_, s.keys.get(), s.key_shift.get());
      put_keys(s.keys.get(), s.key_shift.get(), padded, s.operands);
      pack_weights(g_, p_, keys.points, keys.n, padded, s.weights.get(), s.x.get());
      for (std::size_t i = 0; i < p_.n_rows; i += kBlockRows) {
        run_tile(i, s);
        for (std::size_t r = 0; r < rows_from(i); ++r) {
          add_sums(i + r, s.lanes.get() + n_lanes_ * r * k_.width, sums + (i + r) * n_sums_);
          list_near(i, r, keys, s, near);
        }
      }
    }
  }

 private:
  std::size_t rows_from(std::size_t i) const {
    return std::min<std::size_t>(kBlockRows, p_.n_rows - i);
  }

  void run_tile(std::size_t i, PilotSpace<T> &s) const {
    put_queries(queries_.get() + i * g_.keys.d, query_shift_.get() + i, rows_from(i), k_,
                s.operands);
    std::fill_n(s.lanes.get(), std::size_t(kBlockRows) * n_lanes_ * k_.width, T(0));
    k_.pilot(s.operands, s.tile);
  }

  /// K x and the squares are sums as they are; the others lack e^-u once or twice.
  void add_sums(std::size_t row, const T *lanes, double *sums) const {
    const double scale = p_.x ? std::exp(-g_.query_shift[p_.rows[row]]) : 1.0;
    for (std::size_t c = 0; c < n_sums_; ++c) {
      const double factor = c < 2 ? 1.0 : c < 5 ? scale : scale * scale;
      sums[c] += double(k_.sum_lanes(lanes + c * k_.width)) * factor;
    }
  }

  void list_near(std::size_t first, std::size_t r, const Listing &keys, const PilotSpace<T> &s,
                 std::vector<NewPair> &near) const {
    if (p_.x && s.largest.get()[r] < p_.threshold) return;
    const T *values = s.values.get() + r * kPanelKeys;
    for (std::size_t j = 0; j < keys.n; ++j)
      if (values[j] >= p_.threshold)
        near.push_back({std::int32_t(first + r), keys.points[j], float(values[j])});
  }

  const Geometry<T> &g_;
  const PilotRows<T> &p_;
  const TypedKernels<T> &k_;
  const std::size_t n_sums_, n_lanes_;
  Buffer<T> queries_, query_shift_;
  std::vector<PilotSpace<T>> spaces_;
};

template <class T>
void pilot_rows(const Geometry<T> &g, const PilotRows<T> &pilot, const TypedKernels<T> &kernels,
                int n_threads, const Poll &poll, PairLists &parts) {
  Pilot<T> rows(g, pilot, kernels, n_threads);
  parts.resize(pilot.n_tiles);
  parallel_for(
      pilot.n_tiles, n_threads, [&](std::size_t t, int slot) { rows.run(t, slot, parts[t]); },
      poll);
}

}  // namespace akmv
