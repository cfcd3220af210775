// Pilot rows: sums over a few rows of the matrix, by tiles of keys, and their near pairs.
#pragma once

#include "memory.hpp"
#include "pack.hpp"
#include "threads.hpp"
#include "types.hpp"

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

template <class T>
void pilot_rows(const Geometry<T> &g, const PilotRows<T> &pilot, const TypedKernels<T> &kernels,
                int n_threads, const Poll &poll, PairLists &parts) {
  const std::size_t d = g.keys.d, padded = round_up(pilot.n_rows, kBlockRows);
  Buffer<T> queries(padded * d), query_shift(padded);
  for (std::size_t i = 0; i < pilot.n_rows; i += kBlockRows) {
    const std::size_t n = std::min<std::size_t>(kBlockRows, pilot.n_rows - i);
    pack_shift(g.query_shift, pilot.rows + i, 0, n, kBlockRows, query_shift.get() + i);
    pack_points(g.queries, pilot.rows + i, 0, n, query_shift.get() + i, kernels, kernels.rows,
                queries.get() + i * d);
  }
  struct Space {
    Buffer<T> keys, key_shift, weights, x, scores, lanes, values, largest;
    Space(std::size_t d, const TypedKernels<T> &k)
        : keys(kPanelKeys * d),
          key_shift(kPanelKeys),
          weights(3 * kPanelKeys),
          x(kPanelKeys),
          scores(std::size_t(k.rows) * kScoreStride),
          lanes(std::size_t(kBlockRows) * kPowerSums * k.width),
          values(kBlockRows * kPanelKeys),
          largest(kBlockRows) {}
  };
  std::vector<Space> spaces;
  for (int i = 0; i < n_threads; ++i) spaces.emplace_back(d, kernels);
  parts.resize(pilot.n_tiles);
  const std::size_t n_sums = pilot.x ? kPowerSums : 1, n_lanes = pilot.x ? kPowerSums : 2;
  parallel_for(
      pilot.n_tiles, n_threads,
      [&](std::size_t t, int slot) {
        Space &s = spaces[slot];
        double *sums = pilot.sums + t * pilot.n_rows * n_sums;
        std::fill_n(sums, pilot.n_rows * n_sums, 0.0);
        Tile<T> tile{};
        tile.keys = s.keys.get();
        tile.key_shift = s.key_shift.get();
        tile.x = s.x.get();
        (pilot.x ? tile.power_x : tile.square_x) = s.weights.get();
        tile.largest = s.largest.get();
        tile.n_dims = d;
        tile.panel_keys = kPanelKeys;
        tile.slope = g.slope;
        tile.ceiling = T(0);
        tile.threshold = pilot.threshold;
        tile.differences = g.differences;
        tile.scores = s.scores.get();
        tile.lanes = s.lanes.get();
        tile.values = s.values.get();
        for (std::int64_t k = pilot.tile_start[t]; k < pilot.tile_start[t + 1]; k += kPanelKeys) {
          const std::int32_t *keys = pilot.key_order + k;
          const std::size_t n_keys =
              std::min<std::int64_t>(kPanelKeys, pilot.tile_start[t + 1] - k);
          tile.n_keys = round_up(n_keys, kernels.group_keys);
          pack_shift(g.key_shift, keys, 0, n_keys, tile.n_keys, s.key_shift.get());
          pack_points(g.keys, keys, 0, n_keys, s.key_shift.get(), kernels, kernels.group_keys,
                      s.keys.get());
          pack_weights(g, pilot, keys, n_keys, tile.n_keys, s.weights.get(), s.x.get());
          for (std::size_t i = 0; i < pilot.n_rows; i += kBlockRows) {
            const std::size_t n = std::min<std::size_t>(kBlockRows, pilot.n_rows - i);
            tile.queries = queries.get() + i * d;
            tile.query_shift = query_shift.get() + i;
            tile.n_strips = int((n + kernels.rows - 1) / kernels.rows);
            std::fill_n(tile.lanes, std::size_t(kBlockRows) * n_lanes * kernels.width, T(0));
            kernels.tile(tile);
            for (std::size_t r = 0; r < n; ++r) {
              const T *lanes = tile.lanes + n_lanes * r * kernels.width;
              double *of_row = sums + (i + r) * n_sums;
              const double scale = pilot.x ? std::exp(-g.query_shift[pilot.rows[i + r]]) : 1.0;
              for (std::size_t c = 0; c < n_sums; ++c)
                of_row[c] += double(kernels.sum_lanes(lanes + c * kernels.width)) *
                             (c < 2   ? 1.0
                              : c < 5 ? scale
                                      : scale * scale);
              if (pilot.x && s.largest.get()[r] < pilot.threshold) continue;
              const T *values = tile.values + r * kPanelKeys;
              for (std::size_t j = 0; j < n_keys; ++j)
                if (values[j] >= pilot.threshold)
                  parts[t].push_back({std::int32_t(i + r), keys[j], float(values[j])});
            }
          }
        }
      },
      poll);
}

}  // namespace akmv
