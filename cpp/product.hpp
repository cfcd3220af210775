// The product: packing, scheduling and merging around the tile kernel.
//
//   out[i, c] = sum_j exp(slope * s_ij - query_shift[i] - key_shift[j]) * x[j, c]
//
// Keys are taken in chunks, each chunk in panels, and the partial sums of the chunks are added in
// order. Sizes of chunks and panels depend on the dimension, the number of columns and the
// instruction set only: a row of the answer has the same bits for any number of threads and in any
// batch of queries.
#pragma once

#include "kernels.hpp"
#include "memory.hpp"
#include "pack.hpp"
#include "threads.hpp"
#include "types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace akmv {

template <class T>
struct Product {
  Geometry<T> geometry;
  T ceiling;   // of exponents
  const T *x;  // [key][column]
  std::size_t n_columns;
  bool online;
  bool squares;  // the last two of three columns are multiplied by the squared exponentials
  T *out;        // [query][column]
  T *totals;     // [query] sums of the exponentials, or null
  T *row_max;    // [query] with `online`
};

/// How the keys are cut, from the dimension and the number of columns.
struct Cut {
  int panel_keys;
  std::size_t chunk_keys, n_chunks;
};

template <class T>
Cut cut_keys(std::size_t n_keys, std::size_t n_dims, std::size_t n_columns, int group) {
  constexpr std::size_t kPanelBytes = 128 << 10;  // half of the smallest second-level cache around
  constexpr std::size_t kChunkElements = 1 << 20;
  const std::size_t fits = kPanelBytes / (sizeof(T) * std::max<std::size_t>(n_dims, 1)) / group;
  Cut cut;
  cut.panel_keys = int(std::min<std::size_t>(kPanelKeys, std::max<std::size_t>(fits, 1) * group));
  const std::size_t panels =
      kChunkElements / (std::size_t(cut.panel_keys) * (n_dims + n_columns + 1));
  cut.chunk_keys = std::max<std::size_t>(panels, 1) * cut.panel_keys;
  cut.n_chunks = (n_keys + cut.chunk_keys - 1) / cut.chunk_keys;
  return cut;
}

/// A packed chunk of keys with their shifts and weights.
template <class T>
struct Chunk {
  std::size_t n_keys;  // padded
  Buffer<T> keys, shift, x;

  Chunk(const Cut &cut, std::size_t n_dims, std::size_t n_columns, int group)
      : n_keys(0),
        keys(cut.chunk_keys * n_dims),
        shift(cut.chunk_keys),
        x(cut.chunk_keys * round_up(n_columns, group)) {}
};

/// Scratch of one thread and the partial sums of one block of queries with one chunk.
template <class T>
struct Workspace {
  Buffer<T> queries, query_shift, scores, lanes, products, totals, row_max;

  Workspace(std::size_t n_dims, std::size_t n_columns, const TypedKernels<T> &kernels)
      : queries(kBlockRows * n_dims),
        query_shift(kBlockRows),
        scores(std::size_t(kernels.rows) * kScoreStride),
        lanes(kBlockRows * std::min<std::size_t>(n_columns, kFewColumns) * kernels.width),
        products(n_columns > kFewColumns ? kBlockRows * round_up(n_columns, kernels.group_keys)
                                         : 0),
        totals(kBlockRows * kernels.width),
        row_max(kBlockRows) {}
};

/// Sums of one row over some keys, relative to exp(max): the currency in which chunks are merged.
template <class T>
struct RowSums {
  T *out;
  T *total;  // may be null
  T *max;    // null unless online
};

template <class T>
class Runner {
 public:
  Runner(const Product<T> &product, const TypedKernels<T> &kernels, int n_threads, const Poll &poll)
      : p_(product),
        g_(product.geometry),
        k_(kernels),
        poll_(poll),
        cut_(cut_keys<T>(g_.keys.n, g_.keys.d, p_.n_columns, k_.group_keys)),
        n_blocks_((g_.queries.n + kBlockRows - 1) / kBlockRows),
        n_threads_(int(std::max<std::size_t>(
            1, std::min<std::size_t>(n_threads, std::max(n_blocks_, cut_.n_chunks))))) {
    for (int i = 0; i < n_threads_; ++i) spaces_.emplace_back(g_.keys.d, p_.n_columns, k_);
  }

  void run() {
    clear(rows(0, p_.out, p_.totals, p_.row_max), g_.queries.n);
    // Few queries and many keys: chunks side by side. Otherwise blocks of queries side by side.
    const bool by_chunks = n_blocks_ < 4 * std::size_t(n_threads_) && cut_.n_chunks > n_blocks_;
    by_chunks ? run_chunks() : run_blocks();
    if (p_.online) subtract_query_shift();
  }

 private:
  void subtract_query_shift() const {
    for (std::size_t i = 0; i < g_.queries.n; ++i)
      if (std::isfinite(g_.query_shift[i])) p_.row_max[i] = T(p_.row_max[i] - g_.query_shift[i]);
  }

  void run_blocks() {
    Chunk<T> chunk(cut_, g_.keys.d, p_.n_columns, k_.group_keys);
    for (std::size_t c = 0; c < cut_.n_chunks; ++c) {
      const std::size_t n_panels = begin_chunk(c, chunk);
      parallel_for(
          n_panels, n_threads_, [&](std::size_t panel, int) { pack_panel(c, panel, chunk); },
          poll_);
      parallel_for(
          n_blocks_, n_threads_,
          [&](std::size_t block, int slot) {
            run_tile(block, chunk, spaces_[slot]);
            merge_block(block, spaces_[slot], p_.out, p_.totals, p_.row_max);
          },
          poll_);
    }
  }

  void run_chunks() {
    const std::size_t m = g_.queries.n;
    std::vector<Chunk<T>> chunks;
    for (int i = 0; i < n_threads_; ++i)
      chunks.emplace_back(cut_, g_.keys.d, p_.n_columns, k_.group_keys);
    Buffer<T> out(cut_.n_chunks * m * p_.n_columns);
    Buffer<T> totals(p_.totals ? cut_.n_chunks * m : 0);
    Buffer<T> row_max(p_.online ? cut_.n_chunks * m : 0);
    const auto part = [&](std::size_t c) {
      return RowSums<T>{out.get() + c * m * p_.n_columns,
                        p_.totals ? totals.get() + c * m : nullptr,
                        p_.online ? row_max.get() + c * m : nullptr};
    };
    parallel_for(
        cut_.n_chunks, n_threads_,
        [&](std::size_t c, int slot) {
          Chunk<T> &chunk = chunks[slot];
          const std::size_t n_panels = begin_chunk(c, chunk);
          for (std::size_t panel = 0; panel < n_panels; ++panel) pack_panel(c, panel, chunk);
          const RowSums<T> to = part(c);
          clear(to, m);
          for (std::size_t block = 0; block < n_blocks_; ++block) {
            run_tile(block, chunk, spaces_[slot]);
            merge_block(block, spaces_[slot], to.out, to.total, to.max);
          }
        },
        poll_);
    for (std::size_t c = 0; c < cut_.n_chunks; ++c) {
      const RowSums<T> from = part(c);
      for (std::size_t i = 0; i < m; ++i)
        merge(rows(i, p_.out, p_.totals, p_.row_max), rows(i, from.out, from.total, from.max));
    }
  }

  std::size_t begin_chunk(std::size_t c, Chunk<T> &chunk) const {
    const std::size_t first = c * cut_.chunk_keys;
    const std::size_t last = std::min(g_.keys.n, first + cut_.chunk_keys);
    chunk.n_keys = round_up(last - first, k_.group_keys);
    if (p_.n_columns <= kFewColumns)
      pack_few_columns(p_.x, p_.n_columns, first, last, chunk.n_keys, chunk.x.get());
    pack_shift(g_.key_shift, nullptr, first, last - first, chunk.n_keys, chunk.shift.get());
    return (chunk.n_keys + cut_.panel_keys - 1) / cut_.panel_keys;
  }

  void pack_panel(std::size_t c, std::size_t panel, Chunk<T> &chunk) const {
    const std::size_t start = panel * cut_.panel_keys;
    const std::size_t width = std::min<std::size_t>(cut_.panel_keys, chunk.n_keys - start);
    const std::size_t first = c * cut_.chunk_keys + start;
    const std::size_t last = std::min(g_.keys.n, first + width);
    pack_points(g_.keys, nullptr, first, last - first, chunk.shift.get() + start, k_, k_.group_keys,
                chunk.keys.get() + start * g_.keys.d);
    if (p_.n_columns > kFewColumns)
      pack_many_columns(p_.x, p_.n_columns, first, last, width, k_.group_keys,
                        chunk.x.get() + start * round_up(p_.n_columns, k_.group_keys));
  }

  void run_tile(std::size_t block, const Chunk<T> &chunk, Workspace<T> &space) const {
    const std::size_t first = block * kBlockRows;
    const std::size_t n_rows = std::min<std::size_t>(kBlockRows, g_.queries.n - first);
    pack_queries(g_, nullptr, first, n_rows, k_, space.queries.get(), space.query_shift.get());
    Operands<T> operands = operands_of(g_, cut_.panel_keys, space.scores.get());
    operands.ceiling = p_.ceiling;
    put_queries(space.queries.get(), space.query_shift.get(), n_rows, k_, operands);
    put_keys(chunk.keys.get(), chunk.shift.get(), chunk.n_keys, operands);
    clear(space);
    if (p_.squares)
      k_.sampled(operands, SampledTile<T>{chunk.x.get(), 1, chunk.x.get() + chunk.n_keys, nullptr,
                                          nullptr, space.lanes.get(), nullptr});
    else
      k_.product(operands,
                 ProductTile<T>{chunk.x.get(), int(p_.n_columns), p_.online, p_.totals != nullptr,
                                space.lanes.get(), space.products.get(), space.totals.get(),
                                space.row_max.get()});
    add_lanes(n_rows, space);
  }

  void clear(Workspace<T> &space) const {
    if (p_.n_columns <= kFewColumns)
      std::fill_n(space.lanes.get(), kBlockRows * p_.n_columns * k_.width, T(0));
    else
      std::fill_n(space.products.get(), kBlockRows * round_up(p_.n_columns, k_.group_keys), T(0));
    std::fill_n(space.totals.get(), kBlockRows * k_.width, T(0));
    std::fill_n(space.row_max.get(), kBlockRows, -std::numeric_limits<T>::infinity());
  }

  /// The partial sums of row i move to the front: products[i], totals[i].
  void add_lanes(std::size_t n_rows, Workspace<T> &space) const {
    T *lanes = space.lanes.get(), *products = space.products.get(), *totals = space.totals.get();
    const std::size_t padded = round_up(p_.n_columns, k_.group_keys);
    if (p_.n_columns <= kFewColumns)
      for (std::size_t i = 0; i < n_rows * p_.n_columns; ++i)
        lanes[i] = k_.sum_lanes(lanes + i * k_.width);
    else
      for (std::size_t i = 0; i < n_rows; ++i)
        std::copy_n(products + i * padded, p_.n_columns, products + i * p_.n_columns);
    for (std::size_t i = 0; i < n_rows; ++i) totals[i] = k_.sum_lanes(totals + i * k_.width);
  }

  void merge_block(std::size_t block, const Workspace<T> &space, T *out, T *totals,
                   T *row_max) const {
    const std::size_t first = block * kBlockRows;
    const std::size_t last = std::min(g_.queries.n, first + kBlockRows);
    T *sums = p_.n_columns <= kFewColumns ? space.lanes.get() : space.products.get();
    for (std::size_t i = first; i < last; ++i)
      merge(rows(i, out, totals, row_max),
            rows(i - first, sums, space.totals.get(), space.row_max.get()));
  }

  RowSums<T> rows(std::size_t i, T *out, T *total, T *max) const {
    return {out + i * p_.n_columns, total ? total + i : nullptr, max ? max + i : nullptr};
  }

  void clear(const RowSums<T> &first, std::size_t n) const {
    std::fill_n(first.out, n * p_.n_columns, T(0));
    if (first.total) std::fill_n(first.total, n, T(0));
    if (first.max) std::fill_n(first.max, n, -std::numeric_limits<T>::infinity());
  }

  void merge(const RowSums<T> &to, const RowSums<T> &from) const {
    T keep = 1, take = 1;
    if (p_.online) {
      const T next = *from.max > *to.max || *from.max != *from.max ? *from.max : *to.max;
      keep = *to.max == next ? T(1) : std::exp(*to.max - next);
      take = *from.max == next ? T(1) : std::exp(*from.max - next);
      *to.max = next;
    }
    for (std::size_t c = 0; c < p_.n_columns; ++c)
      to.out[c] = to.out[c] * keep + from.out[c] * take;
    if (to.total) *to.total = *to.total * keep + *from.total * take;
  }

  const Product<T> &p_;
  const Geometry<T> &g_;
  const TypedKernels<T> &k_;
  const Poll &poll_;
  const Cut cut_;
  const std::size_t n_blocks_;
  const int n_threads_;  // no more than there are tasks
  std::vector<Workspace<T>> spaces_;
};

/// Computes the product.
template <class T>
void tile_product(const Product<T> &product, const TypedKernels<T> &kernels, int n_threads,
                  const Poll &poll) {
  Runner<T>(product, kernels, n_threads, poll).run();
}

/// |(p - centre) * factor|^2 of every point as it will be packed.
template <class T>
void squared_norms(const Points<T> &points, const TypedKernels<T> &kernels, int n_threads,
                   const Poll &poll, double *out) {
  constexpr std::size_t kRowsPerTask = 1024;
  parallel_for((points.n + kRowsPerTask - 1) / kRowsPerTask, n_threads,
               [&](std::size_t task, int) {
                 const std::size_t last = std::min(points.n, (task + 1) * kRowsPerTask);
                 for (std::size_t i = task * kRowsPerTask; i < last; ++i)
                   out[i] = kernels.squared_norm(points.data + i * points.d, points.centre,
                                                 points.factor, points.d);
               },
               poll);
}

/// Sums of the columns; pieces of rows are added in their order, whichever thread summed them.
template <class T>
void column_sums(const T *x, std::size_t n, std::size_t d, int n_threads, const Poll &poll,
                 double *out) {
  constexpr std::size_t kRowsPerTask = 1024;
  const std::size_t n_tasks = (n + kRowsPerTask - 1) / kRowsPerTask;
  std::vector<double> parts(n_tasks * d, 0.0);
  parallel_for(
      n_tasks, n_threads,
      [&](std::size_t task, int) {
        double *part = parts.data() + task * d;
        const std::size_t last = std::min(n, (task + 1) * kRowsPerTask);
        for (std::size_t i = task * kRowsPerTask; i < last; ++i)
          for (std::size_t c = 0; c < d; ++c) part[c] += double(x[i * d + c]);
      },
      poll);
  std::fill_n(out, d, 0.0);
  for (std::size_t task = 0; task < n_tasks; ++task)
    for (std::size_t c = 0; c < d; ++c) out[c] += parts[task * d + c];
}

}  // namespace akmv
