// Softmax attention of many heads: packing and scheduling around the softmax loop.
//
//   out[h, i, :] = sum_j p_ij v_j,   p_ij = exp(s_ij) / sum_l exp(s_il),
//   s_ij = scale * <q_i, k_j> + mask_ij
//
// Every set of keys and of values is packed once, however many heads use it (grouped queries,
// broadcasting). Then blocks of queries of all heads are tasks side by side. A row's arithmetic
// depends on nothing but its own query, keys, values and mask: the same bits in any batch and for
// any number of threads. A row that sees no key is 0.
//
// What is packed is looked at while it is in the cache: the caller learns whether all was finite.
//
// |s_ij| is at most |scale| |q_i| times the largest |k_j|. Unless that is large, no maximum of all
// scores of a row is looked for (kRoomAbove).
#pragma once

#include "epilogues/softmax.hpp"
#include "magnitude.hpp"
#include "pack.hpp"
#include "product.hpp"
#include "threads.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace akmv {

template <class T>
struct Attention {
  const T *queries;  // [query set][m][d]
  const T *keys;     // [key set][n][d]
  const T *values;   // [value set][n][r]
  std::size_t n_key_sets, n_value_sets, m, n, d, r;
  const std::int64_t *heads;  // [head][4]: which queries, keys, values and mask
  std::size_t n_heads;
  double scale;
  bool causal;
  const T *added;             // [mask][mask_rows][n], or null
  const unsigned char *kept;  // the same, or null
  std::size_t mask_rows;      // m or 1
  T *out;                     // [head][m][r]
  T *log_normalizer;          // [head][m]
  T *largest;  // [3] magnitudes of queries, keys and values; not a number if one is not finite
};

template <class T>
class AttentionRunner {
 public:
  AttentionRunner(const Attention<T> &attention, const TypedKernels<T> &kernels, int n_threads,
                  const Poll &poll)
      : a_(attention),
        k_(kernels),
        poll_(poll),
        panel_keys_(cut_keys<T>(a_.n, a_.d, a_.r, k_.group_keys).panel_keys),
        n_keys_(round_up(a_.n, k_.group_keys)),
        n_threads_(threads_for(n_threads)),
        n_columns_(round_up(a_.r, k_.group_keys)),
        block_rows_(rows_per_task()),
        n_blocks_((a_.m + block_rows_ - 1) / block_rows_),
        no_shift_(kPanelKeys, T(0)),
        longest_(a_.n_key_sets * n_keys_),
        packed_(n_keys_ * (a_.n_key_sets * a_.d + a_.n_value_sets * n_columns_)),
        keys_(packed_.get()),
        values_(keys_ + a_.n_key_sets * n_keys_ * a_.d) {
    for (int i = 0; i < n_threads_; ++i) spaces_.emplace_back(*this);
  }

  /// False if it was stopped.
  void run() {
    const std::size_t n_panels = panels();
    const auto pack = [&](std::size_t task, int slot) {
      const std::size_t set = task / n_panels, start = task % n_panels * panel_keys_;
      if (set < a_.n_key_sets) pack_keys(set, start, spaces_[slot]);
      if (set < a_.n_value_sets) pack_values(set, start, spaces_[slot]);
    };
    parallel_for(std::max(a_.n_key_sets, a_.n_value_sets) * n_panels, n_threads_, pack, poll_);
    for (std::size_t set = 0; set < a_.n_key_sets; ++set)
      for (std::size_t j = 1; j < n_keys_; ++j) {
        T *const at = longest_.data() + set * n_keys_ + j;
        *at = std::max(at[-1], *at);
      }
    // Blocks from the last to the first: with `causal` the long ones must not come at the end.
    parallel_for(
        a_.n_heads * n_blocks_, n_threads_,
        [&](std::size_t task, int slot) {
          run_block(task / n_blocks_, n_blocks_ - 1 - task % n_blocks_, spaces_[slot]);
        },
        poll_);
    for (const Space &space : spaces_)
      for (int i = 0; i < 3; ++i) keep_larger(a_.largest[i], space.largest[i]);
  }

 private:
  static constexpr double kLog2E = 1.4426950408889634074;

  /// Scratch of one thread and the sums of one block.
  struct Space {
    Buffer<T> queries, scores, products, totals, row_max;
    T largest[3] = {};  // magnitudes of queries, keys and values

    explicit Space(const AttentionRunner &runner)
        : queries(kBlockRows * runner.a_.d + runner.k_.width),  // read by whole vectors
          scores(kBlockRows * kScoreStride),
          products(kBlockRows * runner.n_columns_),
          totals(kBlockRows * runner.k_.width),
          row_max(kBlockRows) {}
  };

  static constexpr std::size_t kFewest = 24;  // rows of a task

  std::size_t panels() const { return (n_keys_ + panel_keys_ - 1) / panel_keys_; }

  /// A worker takes about 20 microseconds to wake: less work than this is done by the caller alone.
  /// No more threads than tasks: each has scratch of its own.
  int threads_for(int n_threads) const {
    constexpr double kSmallestWork = 1 << 21;  // multiply-adds, about 50 microseconds
    const double work = double(a_.n_heads) * a_.m * a_.n * (a_.d + a_.r);
    const std::size_t tasks = std::max(std::max(a_.n_key_sets, a_.n_value_sets) * panels(),
                                       a_.n_heads * ((a_.m + kFewest - 1) / kFewest));
    return work < kSmallestWork ? 1 : int(std::min<std::size_t>(n_threads, tasks));
  }

  /// Large enough to use a panel often, small enough that every thread has several blocks.
  std::size_t rows_per_task() const {
    constexpr std::size_t kStep = 12;  // a multiple of every micro tile's rows
    const std::size_t wanted = a_.n_heads * a_.m / (8 * std::size_t(n_threads_)) / kStep * kStep;
    return std::min<std::size_t>(kBlockRows, std::max(kFewest, wanted));
  }

  void pack_keys(std::size_t set, std::size_t start, Space &space) {
    const Points<T> points{a_.keys + set * a_.n * a_.d, a_.n, a_.d, nullptr, 1.0};
    const std::size_t last = std::min<std::size_t>(a_.n, start + panel_keys_);
    pack_points(points, nullptr, start, last - start, no_shift_.data(), k_, k_.group_keys,
                keys_ + (set * n_keys_ + start) * a_.d);
    k_.key_lengths(keys_ + (set * n_keys_ + start) * a_.d, a_.d,
                   round_up(last - start, k_.group_keys), longest_.data() + set * n_keys_ + start);
    look_at(points.data + start * a_.d, (last - start) * a_.d, space.largest[1]);
  }

  void pack_values(std::size_t set, std::size_t start, Space &space) {
    const std::size_t width = std::min<std::size_t>(panel_keys_, n_keys_ - start);
    const std::size_t last = std::min(a_.n, start + width);
    const T *const values = a_.values + set * a_.n * a_.r;
    pack_many_columns(values, a_.r, start, last, width, k_.group_keys,
                      values_ + (set * n_keys_ + start) * n_columns_);
    look_at(values + start * a_.r, (last - start) * a_.r, space.largest[2]);
  }

  void look_at(const T *x, std::size_t n, T &largest) const {
    keep_larger(largest, k_.largest_magnitude(x, n));
  }

  void run_block(std::size_t head, std::size_t block, Space &space) const {
    const std::int64_t *use = a_.heads + 4 * head;
    const std::size_t first = block * block_rows_;
    const std::size_t n_rows = std::min(block_rows_, a_.m - first);
    const Points<T> points{a_.queries + std::size_t(use[0]) * a_.m * a_.d, a_.m, a_.d, nullptr,
                           a_.scale * kLog2E};
    pack_points(points, nullptr, first, n_rows, no_shift_.data(), k_, k_.rows, space.queries.get());
    look_at(points.data + first * a_.d, n_rows * a_.d, space.largest[0]);

    SoftmaxTile<T> tile{};
    tile.queries = space.queries.get();
    tile.keys = keys_ + std::size_t(use[1]) * n_keys_ * a_.d;
    tile.values = values_ + std::size_t(use[2]) * n_keys_ * n_columns_;
    tile.longest = longest_.data() + std::size_t(use[1]) * n_keys_;
    tile.n_dims = a_.d;
    tile.n_real = a_.n;
    tile.n_keys = n_keys_;
    tile.first_row = first;
    tile.panel_keys = panel_keys_;
    tile.n_rows = int(n_rows);
    tile.n_columns = int(n_columns_);
    tile.causal = a_.causal;
    tile.mask_stride = a_.mask_rows > 1 ? a_.n : 0;
    const std::size_t mask_at =
        (std::size_t(use[3]) * a_.mask_rows + (a_.mask_rows > 1 ? first : 0)) * a_.n;
    tile.added = a_.added ? a_.added + mask_at : nullptr;
    tile.kept = a_.kept ? a_.kept + mask_at : nullptr;
    tile.scores = space.scores.get();
    tile.products = space.products.get();
    tile.totals = space.totals.get();
    tile.row_max = space.row_max.get();
    std::fill_n(tile.products, kBlockRows * n_columns_, T(0));
    std::fill_n(tile.totals, kBlockRows * k_.width, T(0));
    std::fill_n(tile.row_max, kBlockRows, -std::numeric_limits<T>::infinity());
    k_.softmax(tile);

    for (std::size_t i = 0; i < n_rows; ++i) {
      const std::size_t row = head * a_.m + first + i;
      const T total = k_.sum_lanes(tile.totals + i * k_.width);
      const T inverse = total == T(0) ? T(0) : T(1) / total;
      a_.log_normalizer[row] = T((double(tile.row_max[i]) + std::log2(double(total))) / kLog2E);
      for (std::size_t c = 0; c < a_.r; ++c)
        a_.out[row * a_.r + c] = tile.products[i * n_columns_ + c] * inverse;
    }
  }

  const Attention<T> &a_;
  const TypedKernels<T> &k_;
  const Poll &poll_;
  const int panel_keys_;
  const std::size_t n_keys_;  // padded
  const int n_threads_;
  const std::size_t n_columns_;  // padded
  const std::size_t block_rows_, n_blocks_;
  const std::vector<T> no_shift_;
  std::vector<T> longest_;  // [key set][key] largest squared length of it and the keys before
  const KeptBuffer<T> packed_;
  T *const keys_, *const values_;
  std::vector<Space> spaces_;
};

/// Computes attention.
template <class T>
void attention(const Attention<T> &attention, const TypedKernels<T> &kernels, int n_threads,
               const Poll &poll) {
  if (attention.n_heads == 0 || attention.m == 0) return;
  AttentionRunner<T>(attention, kernels, n_threads, poll).run();
}

}  // namespace akmv
