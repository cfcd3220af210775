// Attention from drawn keys: one draw of keys per block of queries, in dense softmax tiles.
//
//   o_i = sum_{j drawn} exp(s_ij) v_j / pi_j  /  sum_{j drawn} exp(s_ij) / pi_j
//
// Numerator and denominator come from the same draws, weights enter as logarithms added to the
// scores. To first order the error of row i has variance sum_j (1/pi_j - 1) p_ij^2 |v_j - o_i|^2,
// so that is what the pilot measures, the rates are solved for and the draws estimate.
//
// Each block has a band of keys that are always taken (its own neighbourhood).
#pragma once

#include "../philox.hpp"
#include "../product.hpp"

#include <cstring>
#include <numeric>

namespace akmv {

template <class T>
struct OneHead {
  Points<T> queries, keys, values;  // the scale is the factor of the queries

  /// Scores are exponents; shifts of keys come with the draws.
  Geometry<T> geometry() const { return {queries, keys, nullptr, nullptr, T(1), false}; }
};

/// Blocks of queries, and positions in `key_order` that belong to a block's band.
struct AttentionBlocks {
  const std::int32_t *query_order;
  const std::int64_t *start;  // [blocks + 1] into query_order
  std::size_t n;
  const std::int32_t *key_order;
  const std::int64_t *band_start, *band_stop;  // [blocks]
  std::size_t n_keys;
  bool causal;  // query i sees keys 0..i

  std::size_t rows(std::size_t b) const { return std::size_t(start[b + 1] - start[b]); }
  /// Keys that a query sees: a prefix, since causal blocks are in the order of the tokens.
  std::int64_t seen_by(std::int32_t query) const {
    return causal ? std::min<std::int64_t>(std::int64_t(query) + 1, std::int64_t(n_keys))
                  : std::int64_t(n_keys);
  }
  std::int64_t limit(std::size_t b) const { return seen_by(query_order[start[b + 1] - 1]); }
  /// Keys that any of the blocks sees.
  std::size_t n_seen() const {
    std::int64_t most = 0;
    for (std::size_t b = 0; b < n; ++b) most = std::max(most, limit(b));
    return std::size_t(most);
  }
  /// Calls with every range of positions that is left to the draws.
  template <class F>
  void outside_band(std::size_t b, const F &f) const {
    f(std::int64_t(0), std::min(band_start[b], limit(b)));
    f(std::min(band_stop[b], limit(b)), limit(b));
  }
};

/// Centre of the values and a point, padded as the kernels read them.
template <class T>
struct ValueFrame {
  std::vector<T> centre, point;

  ValueFrame(const Points<T> &values, int group)
      : centre(round_up(values.d, group), T(0)), point(centre) {
    for (std::size_t c = 0; c < values.d; ++c) centre[c] = T(values.centre[c]);
  }
  ValuePanel<T> panel(const Points<T> &values, const std::int32_t *index, std::size_t n,
                      std::size_t width) const {
    ValuePanel<T> p{};
    p.values = values.data;
    p.index = index;
    p.n = n;
    p.width = width;
    p.n_columns = values.d;
    p.centre = centre.data();
    p.factor = T(values.factor);
    p.point = point.data();
    return p;
  }
};

template <class T>
T squared_norm(const T *p, std::size_t n) {
  T sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += p[i] * p[i];
  return sum;
}

/// Sums of the softmax tiles for some strips of rows.
template <class T>
struct AttentionSums {
  std::size_t n_rows, n_columns, padded;
  int width;
  Buffer<T> products, crosses, totals, means, squared, row_max;
  std::vector<std::int64_t> visible;

  AttentionSums(std::size_t rows, std::size_t columns, const TypedKernels<T> &k)
      : n_rows(round_up(rows, k.rows)),
        n_columns(columns),
        padded(round_up(columns, k.group_keys)),
        width(k.width),
        products(n_rows * padded),
        crosses(n_rows * padded),
        totals(n_rows * k.width),
        means(n_rows * k.width),
        squared(n_rows * kSquareColumns * k.width),
        row_max(n_rows),
        visible(n_rows) {}

  void clear() {
    std::fill_n(products.get(), n_rows * padded, T(0));
    std::fill_n(crosses.get(), n_rows * padded, T(0));
    std::fill_n(totals.get(), n_rows * width, T(0));
    std::fill_n(means.get(), n_rows * width, T(0));
    std::fill_n(squared.get(), n_rows * kSquareColumns * width, T(0));
    std::fill_n(row_max.get(), n_rows, -std::numeric_limits<T>::infinity());
  }
  /// Where a tile adds to these sums.
  AttentionTile<T> tile() {
    AttentionTile<T> tile{};
    tile.n_columns = int(n_columns);
    tile.products = products.get();
    tile.crosses = crosses.get();
    tile.totals = totals.get();
    tile.means = means.get();
    tile.squared = squared.get();
    tile.row_max = row_max.get();
    return tile;
  }
};

/// Keys and values that some block sees, packed in key order, for the pilot.
template <class T>
class PackedKeys {
 public:
  PackedKeys(const OneHead<T> &a, const AttentionBlocks &blocks, const TypedKernels<T> &k)
      : a_(a),
        order_(blocks.key_order),
        k_(k),
        n_real_(blocks.n_seen()),
        panel_keys(
            cut_keys<T>(a.keys.n, std::max(a.keys.d, a.values.d), 0, k.group_keys).panel_keys),
        n_keys(round_up(n_real_, k.group_keys)),
        memory_(n_keys * (a.keys.d + round_up(a.values.d, k.group_keys) + a.values.d + 2)),
        keys(memory_.get()),
        values(keys + n_keys * a.keys.d),
        values_as_keys(values + n_keys * round_up(a.values.d, k.group_keys)),
        key_shift(values_as_keys + n_keys * a.values.d),
        norms(key_shift + n_keys),
        frame_(a.values, k.group_keys) {
    std::fill_n(key_shift, n_real_, T(0));
    std::fill_n(key_shift + n_real_, n_keys - n_real_, std::numeric_limits<T>::infinity());
  }
  std::size_t n_panels() const { return (n_keys + panel_keys - 1) / panel_keys; }
  void pack_panel(std::size_t panel) {
    const std::size_t first = panel * panel_keys;
    const std::size_t width = std::min<std::size_t>(panel_keys, n_keys - first);
    const std::size_t n = std::min(width, n_real_ - first);
    const int group = k_.group_keys;
    pack_points(a_.keys, order_ + first, 0, n, key_shift + first, k_, group,
                keys + first * a_.keys.d);
    pack_points(a_.values, order_ + first, 0, n, key_shift + first, k_, group,
                values_as_keys + first * a_.values.d);
    ValuePanel<T> panel_values = frame_.panel(a_.values, order_ + first, n, width);
    panel_values.out = values + first * round_up(a_.values.d, group);
    panel_values.apart = norms + first;
    k_.pack_values(panel_values);
  }

 private:
  const OneHead<T> &a_;
  const std::int32_t *order_;
  const TypedKernels<T> &k_;
  const std::size_t n_real_;

 public:
  const int panel_keys;
  const std::size_t n_keys;

 private:
  KeptBuffer<T> memory_;

 public:
  T *const keys, *const values, *const values_as_keys, *const key_shift, *const norms;

 private:
  const ValueFrame<T> frame_;
};

/// How raw moments of a few rows become moments to plan with.
struct Smoothing {
  int check_rows;  // how many rows of each block, the last, are kept out of the moments
  // Shares of a row's own spread that every key counts for besides its distance from the output, in
  // the prediction and in the rates: what upsets the denominator is not seen to first order.
  double plan_guard, guard;
  int narrow, wide;  // keys pooled on either side
  double raw_share, wide_share, floor_share;
};

template <class T>
struct PilotSums {
  T *outputs;      // [row][column] exact, relative to the centre and factor of the values
  float *moment;   // [block][key] mean over the pilot rows, pooled: predicts the variance
  float *guarded;  // [block][key] decides the rates
  double *means;   // [block] mean of guarded over the keys left to the draws
};

template <class T>
class AttentionPilot {
 public:
  AttentionPilot(const OneHead<T> &a, const AttentionBlocks &blocks, const std::int32_t *rows,
                 std::size_t rows_per_block, const Smoothing &smoothing, const TypedKernels<T> &k,
                 int n_threads)
      : a_(a),
        blocks_(blocks),
        rows_(rows),
        per_block_(rows_per_block),
        for_moments_(rows_per_block - std::size_t(smoothing.check_rows)),
        smoothing_(smoothing),
        k_(k),
        packed_(a, blocks, k),
        // Every pass over the keys serves a few strips, and every thread gets as many tasks.
        n_tasks_(
            std::min(blocks.n, round_up((blocks.n * rows_per_block + kPilotRows - 1) / kPilotRows,
                                        std::size_t(n_threads)))),
        blocks_per_task_(n_tasks_ ? (blocks.n + n_tasks_ - 1) / n_tasks_ : 0) {
    for (int i = 0; i < n_threads; ++i) spaces_.emplace_back(*this);
  }

  PackedKeys<T> &packed() { return packed_; }
  std::size_t n_tasks() const { return n_tasks_; }

  void run(std::size_t task, int slot, const PilotSums<T> &to) {
    Space &s = spaces_[slot];
    // Blocks side by side: with a causal mask the rows of a strip see about as many keys.
    const std::size_t first = task * blocks_.n / n_tasks_, n = packed_.n_keys;
    const std::size_t n_blocks = (task + 1) * blocks_.n / n_tasks_ - first;
    const auto block = [&](std::size_t i) { return first + i; };
    std::fill_n(s.moment.get(), n_blocks * n, 0.0f);
    std::fill_n(s.guarded.get(), n_blocks * n, 0.0f);
    // Rows to plan with come first: those to check with have no moments.
    s.places.clear();
    for (const auto &[from, stop] :
         {std::pair(std::size_t(0), for_moments_), std::pair(for_moments_, per_block_)})
      for (std::size_t b = 0; b < n_blocks; ++b)
        for (std::size_t i = from; i < stop; ++i) s.places.push_back(block(b) * per_block_ + i);
    attend_rows(s, to.outputs);
    add_moments(n_blocks * for_moments_, s);
    for (std::size_t b = 0; b < n_blocks; ++b)
      smooth(block(b), s.moment.get() + b * n, s.guarded.get() + b * n, s, to);
  }

 private:
  static constexpr std::size_t kPilotRows = 36;

  struct Space {
    std::vector<std::size_t> places;  // of the task's rows among all
    std::vector<std::int32_t> rows;
    AttentionSums<T> sums;
    Buffer<T> queries, outputs, scores, dots;
    std::vector<T> inverse_total, norms, guards, plan_guards;  // [row]
    Buffer<float> moment, guarded;
    Buffer<double> running;
    explicit Space(const AttentionPilot &p)
        : sums(p.blocks_per_task_ * p.per_block_, p.a_.values.d, p.k_),
          queries(sums.n_rows * p.a_.keys.d),
          outputs(sums.n_rows * p.a_.values.d),
          scores(std::size_t(p.k_.rows) * kScoreStride),
          dots(std::size_t(p.k_.rows) * kScoreStride),
          inverse_total(sums.n_rows),
          norms(sums.n_rows),
          guards(sums.n_rows),
          plan_guards(sums.n_rows),
          moment(p.blocks_per_task_ * p.packed_.n_keys),
          guarded(p.blocks_per_task_ * p.packed_.n_keys),
          running(p.packed_.n_keys + 1) {}
  };

  /// Exact outputs of the task's rows, and what their moments need.
  void attend_rows(Space &s, T *outputs) const {
    const std::size_t columns = a_.values.d, n_rows = s.places.size(),
                      strip_rows = std::size_t(k_.rows);
    s.rows.clear();
    for (const auto place : s.places) s.rows.push_back(rows_[place]);
    std::vector<T> no_shift(n_rows, T(0));
    pack_points(a_.queries, s.rows.data(), 0, n_rows, no_shift.data(), k_, k_.rows,
                s.queries.get());
    for (std::size_t r = 0; r < s.sums.n_rows; ++r)
      s.sums.visible[r] = r < n_rows ? blocks_.seen_by(s.rows[r]) : 0;
    s.sums.clear();
    Operands<T> operands = operands_of(a_.geometry(), packed_.panel_keys, s.scores.get());
    put_queries<T>(s.queries.get(), nullptr, n_rows, k_, operands);
    put_keys<T>(packed_.keys, packed_.key_shift, packed_.n_keys, operands);
    AttentionTile<T> tile = s.sums.tile();
    tile.values = packed_.values;
    tile.norms = packed_.norms;
    tile.visible = s.sums.visible.data();
    k_.attend(operands, tile);

    std::fill_n(s.outputs.get(), columns * s.sums.n_rows, T(0));
    for (std::size_t r = 0; r < n_rows; ++r) {
      s.inverse_total[r] = T(1) / k_.sum_lanes(s.sums.totals.get() + r * k_.width);
      T *output = outputs + s.places[r] * columns;
      T *packed = s.outputs.get() + r / strip_rows * strip_rows * columns + r % strip_rows;
      for (std::size_t c = 0; c < columns; ++c) {
        output[c] = s.sums.products.get()[r * s.sums.padded + c] * s.inverse_total[r];
        packed[c * strip_rows] = output[c];
      }
      s.norms[r] = squared_norm(output, columns);
      const T mean = k_.sum_lanes(s.sums.means.get() + r * k_.width) * s.inverse_total[r];
      const T spread = std::max(T(0), mean - s.norms[r]);
      s.guards[r] = T(smoothing_.guard) * spread;
      s.plan_guards[r] = T(smoothing_.plan_guard) * spread;
    }
  }

  /// Moments of the first rows of the task, strip by strip while a panel is in the cache.
  void add_moments(std::size_t n_rows, Space &s) const {
    const std::size_t strip_rows = std::size_t(k_.rows), panel = std::size_t(packed_.panel_keys);
    std::vector<float *> moment(n_rows), guarded(n_rows);
    for (std::size_t r = 0; r < n_rows; ++r) {
      const std::size_t block = r / for_moments_;
      moment[r] = s.moment.get() + block * packed_.n_keys;
      guarded[r] = s.guarded.get() + block * packed_.n_keys;
    }
    for (std::size_t key = 0; key < packed_.n_keys; key += panel)
      for (std::size_t r = 0; r < n_rows; r += strip_rows) {
        MomentStrip<T> strip{};
        strip.queries = s.queries.get() + r * a_.keys.d;
        strip.outputs = s.outputs.get() + r * a_.values.d;
        strip.keys = packed_.keys;
        strip.values = packed_.values_as_keys;
        strip.norms = packed_.norms;
        strip.n_dims = a_.keys.d;
        strip.n_columns = a_.values.d;
        strip.first = key;
        strip.n_keys = std::min(panel, packed_.n_keys - key);
        strip.n_rows = int(std::min(strip_rows, n_rows - r));
        strip.row_max = s.sums.row_max.get() + r;
        strip.inverse_total = s.inverse_total.data() + r;
        strip.output_norms = s.norms.data() + r;
        strip.guards = s.guards.data() + r;
        strip.plan_guards = s.plan_guards.data() + r;
        strip.visible = s.sums.visible.data() + r;
        strip.moment = moment.data() + r;
        strip.guarded = guarded.data() + r;
        strip.scores = s.scores.get();
        strip.dots = s.dots.get();
        k_.add_moments(strip);
      }
  }

  void smooth(std::size_t b, float *moment, float *guarded, Space &s,
              const PilotSums<T> &to) const {
    const std::size_t n = std::size_t(blocks_.limit(b));
    for (std::int64_t j = blocks_.band_start[b];
         j < std::min(blocks_.band_stop[b], blocks_.limit(b)); ++j)
      moment[j] = guarded[j] = 0;
    std::size_t n_free = 0;
    blocks_.outside_band(b, [&](std::int64_t from, std::int64_t stop) {
      n_free += std::size_t(std::max<std::int64_t>(0, stop - from));
    });
    float *moment_out = to.moment + b * a_.keys.n, *out = to.guarded + b * a_.keys.n;
    MomentRow row{};
    row.moment = moment;
    row.guarded = guarded;
    row.n = n;
    row.n_free = n_free;
    row.scale = 1.0f / float(for_moments_);
    row.narrow = std::size_t(smoothing_.narrow);
    row.wide = std::size_t(smoothing_.wide);
    row.raw_share = float(smoothing_.raw_share);
    row.wide_share = float(smoothing_.wide_share);
    row.floor_share = float(smoothing_.floor_share);
    row.running = s.running.get();
    row.moment_out = moment_out;
    row.guarded_out = out;
    to.means[b] = k_.smooth_moments(row);
    std::fill(moment_out + n, moment_out + a_.keys.n, 0.0f);
    std::fill(out + n, out + a_.keys.n, 0.0f);
  }

  const OneHead<T> &a_;
  const AttentionBlocks &blocks_;
  const std::int32_t *rows_;
  const std::size_t per_block_, for_moments_;
  const Smoothing &smoothing_;
  const TypedKernels<T> &k_;
  PackedKeys<T> packed_;
  const std::size_t n_tasks_, blocks_per_task_;
  std::vector<Space> spaces_;
};

/// Exact outputs of the pilot rows (relative to the centre and factor of the values), and moments.
template <class T>
void attention_pilot(const OneHead<T> &a, const AttentionBlocks &blocks, const std::int32_t *rows,
                     std::size_t rows_per_block, const Smoothing &smoothing,
                     const TypedKernels<T> &k, int n_threads, const Poll &poll,
                     const PilotSums<T> &to) {
  AttentionPilot<T> pilot(a, blocks, rows, rows_per_block, smoothing, k, n_threads);
  parallel_for(
      pilot.packed().n_panels(), n_threads,
      [&](std::size_t panel, int) { pilot.packed().pack_panel(panel); }, poll);
  // From the last to the first: with a causal mask the last blocks see the most keys.
  parallel_for(
      pilot.n_tasks(), n_threads,
      [&](std::size_t task, int slot) { pilot.run(pilot.n_tasks() - 1 - task, slot, to); }, poll);
}

/// Entries counted by the logarithm of their moment: all that a common rate needs to be solved for.
class RateHistogram {
 public:
  static constexpr int kShift = 19;  // sixteen bins to a factor of two
  static constexpr std::size_t kBins = std::size_t(0x7F800000) >> kShift;

  RateHistogram() : pairs(kBins), variance(kBins) {}
  std::vector<double> pairs, variance;

  void add(float guarded, float moment, double rows) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &guarded, sizeof bits);
    const std::size_t bin = std::min<std::size_t>(bits >> kShift, kBins - 1);
    pairs[bin] += rows;
    variance[bin] += rows * double(moment);
  }
  void add(const RateHistogram &other) {
    for (std::size_t i = 0; i < kBins; ++i) {
      pairs[i] += other.pairs[i];
      variance[i] += other.variance[i];
    }
  }
};

/// Fills `histogram` with all entries that are left to the draws, `floor` added to each.
inline void rate_histogram(const AttentionBlocks &blocks, const float *moment, const float *guarded,
                           float floor, int n_threads, const Poll &poll, RateHistogram &histogram) {
  const std::size_t n_tasks =
      std::min<std::size_t>(16, blocks.n);  // sums must not depend on threads
  std::vector<RateHistogram> parts(n_tasks);
  parallel_for(
      n_tasks, n_threads,
      [&](std::size_t task, int) {
        for (std::size_t b = task; b < blocks.n; b += n_tasks)
          blocks.outside_band(b, [&](std::int64_t from, std::int64_t stop) {
            const float *g = guarded + b * blocks.n_keys, *m = moment + b * blocks.n_keys;
            const double rows = double(blocks.rows(b));
            for (std::int64_t j = from; j < stop; ++j) parts[task].add(g[j] + floor, m[j], rows);
          });
      },
      poll);
  for (const RateHistogram &part : parts) histogram.add(part);
}

/// A key is drawn for a block with probability rate * sqrt(guarded + floor), at least `least` of
/// the keys left to the draws, at most 1.
template <class T>
struct AttentionRates {
  const float *guarded;  // [block][key], or [key] for all blocks
  bool common;           // the latter
  const T *near;         // [block][column] a point near the outputs of the block
  double floor, rate, least;
  std::uint64_t seed, stream;
};

template <class T>
struct AttentionDraws {
  T *out;  // [query][column], relative to the centre and factor of the values
  // Estimates of the squared error: the variance for one strip in four and NaN for others, and
  // for all rows the same without inner products of values and outputs (at least half of it).
  double *variance, *bound;  // [query]
  double *total_variance;    // [query] estimated relative variance of the denominator
  std::int64_t *n_drawn;     // [blocks]
};

template <class T>
class AttentionSampler {
 public:
  AttentionSampler(const OneHead<T> &a, const AttentionBlocks &blocks,
                   const AttentionRates<T> &rates, const TypedKernels<T> &k, int n_threads)
      : a_(a),
        blocks_(blocks),
        rates_(rates),
        k_(k),
        panel_keys_(
            cut_keys<T>(kChunkKeys, std::max(a.keys.d, a.values.d), 0, k.group_keys).panel_keys) {
    for (std::size_t b = 0; b < blocks.n; ++b) most_rows_ = std::max(most_rows_, blocks.rows(b));
    for (int i = 0; i < n_threads; ++i) spaces_.emplace_back(most_rows_, *this);
  }

  /// Parts of blocks that may be computed on their own have a multiple of so many rows, so that
  /// strips with a variance in full are the same.
  std::size_t rows_apart() const { return std::size_t(kCrossEvery) * std::size_t(k_.rows); }
  std::size_t most_rows() const { return most_rows_; }

  /// Rows of block b from `first` on, at most `most`. All parts of a block draw the same keys.
  void run(std::size_t b, std::size_t first, std::size_t most, int slot,
           const AttentionDraws<T> &to) {
    if (first >= blocks_.rows(b)) return;
    Space &s = spaces_[slot];
    const Part part{b, first, std::min(most, blocks_.rows(b) - first), draw(b, s)};
    const std::int32_t *rows = blocks_.query_order + blocks_.start[b] + first;
    std::vector<T> no_shift(part.n_rows, T(0));
    pack_points(a_.queries, rows, 0, part.n_rows, no_shift.data(), k_, k_.rows, s.queries.get());
    s.sums.clear();
    for (std::size_t key = 0; key < s.drawn.size(); key += kChunkKeys)
      add_chunk(part, key, std::min(kChunkKeys, s.drawn.size() - key), s);
    for (std::size_t i = 0; i < part.n_rows; ++i) finish(std::size_t(rows[i]), b, i, s, to);
    if (first == 0) to.n_drawn[b] = std::int64_t(s.drawn.size());
  }

 private:
  static constexpr std::size_t kChunkKeys = 512;
  static constexpr int kCrossEvery = 4;  // one strip in four pays for the variance in full

  struct Part {
    std::size_t block, first_row, n_rows;
    std::size_t own;  // how many are drawn before the block's own tokens
  };

  struct Space {
    Buffer<T> queries, keys, key_shift, values, squares, scores;
    AttentionSums<T> sums;
    std::vector<std::int32_t> drawn;
    std::vector<float> probability;
    ValueFrame<T> frame;
    Buffer<float> pi;
    Buffer<T> apart;
    Space(std::size_t n_rows, const AttentionSampler &p)
        : queries(round_up(n_rows, p.k_.rows) * p.a_.keys.d),
          keys(kChunkKeys * p.a_.keys.d),
          key_shift(kChunkKeys),
          values(kChunkKeys * round_up(p.a_.values.d, p.k_.group_keys)),
          squares(kSquareColumns * kChunkKeys),
          scores(2 * std::size_t(p.k_.rows) * kScoreStride),
          sums(n_rows, p.a_.values.d, p.k_),
          frame(p.a_.values, p.k_.group_keys),
          pi(p.a_.keys.n),
          apart(kChunkKeys) {}
  };

  /// Systematic draws along the key order: a key is drawn when the running sum of the probabilities
  /// passes a whole number plus a random start. Returns how many are drawn before the block's own
  /// tokens, from where on rows see fewer keys than others.
  std::size_t draw(std::size_t b, Space &s) const {
    s.drawn.clear();
    s.probability.clear();
    const Philox words = philox4x64({b, 0, 0, 0}, {rates_.seed, rates_.stream});
    double running = double(words[0] >> 11) * 0x1.0p-53;
    const float *guarded = rates_.guarded + (rates_.common ? 0 : b * blocks_.n_keys);
    std::int64_t n_free = 0;
    blocks_.outside_band(b, [&](std::int64_t from, std::int64_t stop) { n_free += stop - from; });
    const float rate = float(rates_.rate), floor = float(rates_.floor);
    const float least = n_free ? float(std::min(1.0, rates_.least / double(n_free))) : 1.0f;
    const auto take = [&](std::int64_t from, std::int64_t stop) {
      if (from >= stop) return;
      float *pi_of = s.pi.get();
      k_.draw_probabilities(guarded + from, std::size_t(stop - from), floor, rate, least, pi_of);
      for (std::int64_t j = from; j < stop; ++j) {
        const float pi = pi_of[j - from];
        running += double(pi);
        if (running < 1) continue;
        running -= 1;
        s.drawn.push_back(blocks_.key_order[j]);
        s.probability.push_back(pi);
      }
    };
    const std::int64_t limit = blocks_.limit(b);
    const std::int64_t first = std::min(blocks_.band_start[b], limit);
    const std::int64_t last = std::min(blocks_.band_stop[b], limit);
    take(0, first);
    const std::int64_t own_token = blocks_.query_order[blocks_.start[b]];
    std::size_t own = std::size_t(limit);  // a causal block beyond the last key sees them all
    for (std::int64_t j = first; j < last; ++j) {
      if (j == own_token) own = s.drawn.size();
      s.drawn.push_back(blocks_.key_order[j]);
      s.probability.push_back(1.0f);
    }
    take(last, limit);
    for (std::size_t c = 0; c < a_.values.d; ++c)
      s.frame.point[c] = rates_.near[b * a_.values.d + c];
    return own;
  }

  void add_chunk(const Part &part, std::size_t first, std::size_t n, Space &s) const {
    const std::size_t width = round_up(n, k_.group_keys), columns = a_.values.d;
    const std::size_t padded = round_up(columns, k_.group_keys);
    const std::int32_t *drawn = s.drawn.data() + first;
    const float *probability = s.probability.data() + first;
    for (std::size_t j = 0; j < width; ++j)
      s.key_shift.get()[j] = j >= n               ? std::numeric_limits<T>::infinity()
                             : probability[j] < 1 ? T(std::log(double(probability[j])))
                                                  : T(0);
    pack_points(a_.keys, drawn, 0, n, s.key_shift.get(), k_, k_.group_keys, s.keys.get());
    for (std::size_t j = 0; j < width; j += panel_keys_) {
      const std::size_t panel = std::min<std::size_t>(panel_keys_, width - j);
      auto values = s.frame.panel(a_.values, drawn + j, std::min(panel, n - j), panel);
      values.out = s.values.get() + j * padded;
      values.apart = s.apart.get() + j;
      k_.pack_values(values);
    }
    bool sampled = false;
    T *squares = s.squares.get();
    std::fill_n(squares, kSquareColumns * width, T(0));
    for (std::size_t j = 0; j < n; ++j) {
      if (probability[j] >= 1) continue;
      sampled = true;
      const T left = T(1.0 - double(probability[j]));
      squares[j] = left * s.apart.get()[j];
      squares[width + j] = left;
    }
    Operands<T> operands = operands_of(a_.geometry(), panel_keys_, s.scores.get());
    put_queries<T>(s.queries.get(), nullptr, part.n_rows, k_, operands);
    put_keys(s.keys.get(), s.key_shift.get(), width, operands);
    AttentionTile<T> tile = s.sums.tile();
    tile.values = s.values.get();
    tile.squares = sampled ? squares : nullptr;
    tile.cross_every = kCrossEvery;
    tile.cross_first = int(part.block % kCrossEvery);
    if (blocks_.causal && first + n > part.own) {
      for (std::size_t i = 0; i < s.sums.n_rows; ++i)
        s.sums.visible[i] = std::int64_t(part.own + part.first_row + i + 1) - std::int64_t(first);
      tile.visible = s.sums.visible.data();
    }
    tile.terms = s.scores.get() + std::size_t(k_.rows) * kScoreStride;
    k_.attend(operands, tile);
  }

  void finish(std::size_t query, std::size_t b, std::size_t i, const Space &s,
              const AttentionDraws<T> &to) const {
    const std::size_t columns = a_.values.d;
    const T *products = s.sums.products.get() + i * s.sums.padded;
    const T *crosses = s.sums.crosses.get() + i * s.sums.padded;
    const T total = k_.sum_lanes(s.sums.totals.get() + i * k_.width);
    double sums[kSquareColumns];
    for (int c = 0; c < kSquareColumns; ++c)
      sums[c] = double(k_.sum_lanes(s.sums.squared.get() + (i * kSquareColumns + c) * k_.width));
    T *out = to.out + query * columns;
    double norm = 0, cross = 0;
    for (std::size_t c = 0; c < columns; ++c) {
      out[c] = products[c] / total;
      const double point = double(s.frame.point[c]), difference = double(out[c]) - point;
      norm += difference * difference;
      cross += difference * (double(crosses[c]) - point * sums[1]);
    }
    const double scale = 1 / (double(total) * double(total));
    const bool known = (int(i) / k_.rows + int(b % kCrossEvery)) % kCrossEvery == 0;
    to.bound[query] = (sums[0] + norm * sums[1]) * scale;
    to.variance[query] = known ? (sums[0] - 2 * cross + norm * sums[1]) * scale
                               : std::numeric_limits<double>::quiet_NaN();
    to.total_variance[query] = sums[1] * scale;
  }

  const OneHead<T> &a_;
  const AttentionBlocks &blocks_;
  const AttentionRates<T> &rates_;
  const TypedKernels<T> &k_;
  const int panel_keys_;
  std::size_t most_rows_ = 0;
  std::vector<Space> spaces_;
};

/// Draws for the listed blocks, and writes what belongs to them.
template <class T>
void attention_draw(const OneHead<T> &a, const AttentionBlocks &blocks,
                    const AttentionRates<T> &rates, const std::int64_t *listed,
                    std::size_t n_listed, const TypedKernels<T> &k, int n_threads, const Poll &poll,
                    const AttentionDraws<T> &to) {
  AttentionSampler<T> sampler(a, blocks, rates, k, n_threads);
  // A block is one task, unless there are fewer of them than threads.
  const std::size_t wanted = n_listed ? (std::size_t(n_threads) + n_listed - 1) / n_listed : 1;
  const std::size_t rows =
      round_up((sampler.most_rows() + wanted - 1) / wanted, sampler.rows_apart());
  const std::size_t n_parts = rows ? (sampler.most_rows() + rows - 1) / rows : 0;
  parallel_for(
      n_listed * n_parts, n_threads,
      [&](std::size_t task, int slot) {
        sampler.run(std::size_t(listed[n_listed - 1 - task / n_parts]), task % n_parts * rows, rows,
                    slot, to);
      },
      poll);
}

}  // namespace akmv
