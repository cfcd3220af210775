// Pairs above a floor inside dense tiles of gathered points.
#pragma once

#include "../kernels.hpp"
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

/// A block of gathered queries and a panel of keys: buffers of one thread, and the tile they make.
template <class T>
class GatheredTile {
 public:
  GatheredTile(const Geometry<T> &g, const TypedKernels<T> &kernels)
      : g_(g),
        k_(kernels),
        queries_(kBlockRows * g.keys.d),
        query_shift_(kBlockRows),
        keys_(kPanelKeys * g.keys.d),
        key_shift_(kPanelKeys),
        scores_(std::size_t(kernels.rows) * kScoreStride),
        hits_(kBlockRows * kPanelKeys),
        operands_(operands_of(g, kPanelKeys, scores_.get())) {}

  /// Queries order[0 .. n), or first, first + 1, ... without an order.
  void gather_queries(const std::int32_t *order, std::size_t first, std::size_t n) {
    pack_queries(g_, order, first, n, k_, queries_.get(), query_shift_.get());
    put_queries(queries_.get(), query_shift_.get(), n, k_, operands_);
  }

  void gather_keys(const std::int32_t *order, std::size_t n) {
    use_keys(keys_.get(), key_shift_.get(),
             pack_keys(g_, order, 0, n, k_, keys_.get(), key_shift_.get()));
  }

  /// Keys that are packed already, a multiple of the group.
  void use_keys(const T *keys, const T *shift, std::size_t padded) {
    put_keys(keys, shift, padded, operands_);
  }

  /// Calls then(hit) for every pair with exponent >= floor.
  template <class Then>
  void each_hit(T floor, const Then &then) {
    each(k_.hits(operands_, &floor, 0, hits_.get()), then);
  }

  /// The same with a floor for each row of the block.
  template <class Then>
  void each_hit(const T *floors, const Then &then) {
    each(k_.hits(operands_, floors, 1, hits_.get()), then);
  }

 private:
  template <class Then>
  void each(int n_hits, const Then &then) const {
    for (const Hit<T> *hit = hits_.get(); hit < hits_.get() + n_hits; ++hit) then(*hit);
  }

  const Geometry<T> &g_;
  const TypedKernels<T> &k_;
  Buffer<T> queries_, query_shift_, keys_, key_shift_, scores_;
  Buffer<Hit<T>> hits_;
  Operands<T> operands_;
};

/// Pairs with exponent >= floor in the cells of a tiling that are not in `known` yet.
template <class T>
void tile_hits(const Geometry<T> &g, const Tiling &tiling, T floor, const FoundPairs &known,
               const TypedKernels<T> &kernels, int n_threads, const Poll &poll, PairLists &parts) {
  std::vector<GatheredTile<T>> spaces;
  for (int i = 0; i < n_threads; ++i) spaces.emplace_back(g, kernels);
  parts.resize(tiling.n_cells);
  const auto look = [&](GatheredTile<T> &tile, const std::int32_t *rows, const std::int32_t *cols,
                        std::vector<NewPair> &out) {
    tile.each_hit(floor, [&](const Hit<T> &hit) {
      const std::int32_t row = rows[hit.row], col = cols[hit.key];
      if (!known.has(row, col))
        out.push_back({row, col, std::exp(std::min(float(hit.exponent), 0.0f))});
    });
  };
  parallel_for(
      tiling.n_cells, n_threads,
      [&](std::size_t cell, int slot) {
        GatheredTile<T> &tile = spaces[std::size_t(slot)];
        const Listing rows = tiling.queries_of(cell), cols = tiling.keys_of(cell);
        for (std::size_t k = 0; k < cols.n; k += kPanelKeys) {
          tile.gather_keys(cols.points + k, std::min<std::size_t>(kPanelKeys, cols.n - k));
          for (std::size_t q = 0; q < rows.n; q += kBlockRows) {
            tile.gather_queries(rows.points + q, 0, std::min<std::size_t>(kBlockRows, rows.n - q));
            look(tile, rows.points + q, cols.points + k, parts[cell]);
          }
        }
      },
      poll);
}

}  // namespace akmv
