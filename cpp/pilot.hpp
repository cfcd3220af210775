// Pilot rows: weighted squares of a few rows of the matrix, summed over tiles of keys, and near pairs.
#pragma once

#include "near.hpp"

namespace akmv {

/// Rows against all keys, in tiles key_order[tile_start[t] .. tile_start[t + 1]).
template <class T> struct PilotRows {
  const std::int32_t *rows;  // numbers of the queries
  std::size_t n_rows;
  const std::int32_t *key_order;
  const std::int64_t *tile_start;
  std::size_t n_tiles;
  const T *weights;  // [keys]
  T threshold;       // pairs with a value from here on are listed
  double *squares;   // out [tile][row] sums of K^2 times the weights
};

template <class T>
bool pilot_rows(const Geometry<T> &g, const PilotRows<T> &pilot, const TypedKernels<T> &kernels,
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
    Buffer<T> keys, key_shift, weights, scores, lanes, values;
    Space(std::size_t d, const TypedKernels<T> &k)
        : keys(kPanelKeys * d),
          key_shift(kPanelKeys),
          weights(2 * kPanelKeys),
          scores(std::size_t(k.rows) * kScoreStride),
          lanes(std::size_t(kBlockRows) * 2 * k.width),
          values(kBlockRows * kPanelKeys) {}
  };
  std::vector<Space> spaces;
  for (int i = 0; i < n_threads; ++i) spaces.emplace_back(d, kernels);
  parts.resize(pilot.n_tiles);
  return parallel_for(
      pilot.n_tiles, n_threads,
      [&](std::size_t t, int slot) {
        Space &s = spaces[slot];
        double *squares = pilot.squares + t * pilot.n_rows;
        std::fill_n(squares, pilot.n_rows, 0.0);
        Tile<T> tile{};
        tile.keys = s.keys.get();
        tile.key_shift = s.key_shift.get();
        tile.square_x = s.weights.get();
        tile.n_dims = d;
        tile.panel_keys = kPanelKeys;
        tile.slope = g.slope;
        tile.ceiling = T(0);
        tile.differences = g.differences;
        tile.scores = s.scores.get();
        tile.lanes = s.lanes.get();
        tile.values = s.values.get();
        for (std::int64_t k = pilot.tile_start[t]; k < pilot.tile_start[t + 1]; k += kPanelKeys) {
          const std::int32_t *keys = pilot.key_order + k;
          const std::size_t n_keys = std::min<std::int64_t>(kPanelKeys, pilot.tile_start[t + 1] - k);
          tile.n_keys = round_up(n_keys, kernels.group_keys);
          pack_shift(g.key_shift, keys, 0, n_keys, tile.n_keys, s.key_shift.get());
          pack_points(g.keys, keys, 0, n_keys, s.key_shift.get(), kernels, kernels.group_keys,
                      s.keys.get());
          std::fill_n(s.weights.get(), 2 * tile.n_keys, T(0));
          for (std::size_t j = 0; j < n_keys; ++j) s.weights.get()[j] = pilot.weights[keys[j]];
          for (std::size_t i = 0; i < pilot.n_rows; i += kBlockRows) {
            const std::size_t n = std::min<std::size_t>(kBlockRows, pilot.n_rows - i);
            tile.queries = queries.get() + i * d;
            tile.query_shift = query_shift.get() + i;
            tile.n_strips = int((n + kernels.rows - 1) / kernels.rows);
            std::fill_n(tile.lanes, std::size_t(kBlockRows) * 2 * kernels.width, T(0));
            kernels.tile(tile);
            for (std::size_t r = 0; r < n; ++r) {
              squares[i + r] += double(kernels.sum_lanes(tile.lanes + 2 * r * kernels.width));
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
