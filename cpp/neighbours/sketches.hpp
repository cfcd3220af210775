// Pairs in the cells of a tiling, found by sketches: few coordinates of each point, whose distances
// estimate those of the points. Pairs whose sketches are near are looked at in full.
#pragma once

#include "../kernels.hpp"
#include "../memory.hpp"
#include "../threads.hpp"
#include "../types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace akmv {

/// Sketches of the points on one side of a search.
struct Sketches {
  const float *data;            // [point][dim]
  const std::int32_t *index;    // original number of each point
  const float *radius_squared;  // how far each point looks, or null for keys, which do not look
  std::size_t n_dims;

  const float *operator[](std::int32_t i) const { return data + std::size_t(i) * n_dims; }

  /// The points' own numbers.
  void numbers(const Listing &listed, std::vector<std::int32_t> &out) const {
    out.resize(listed.n);
    for (std::size_t i = 0; i < listed.n; ++i) out[i] = index[listed.points[i]];
  }
};

/// Sketches in groups, out[group][dim][point], with two coordinates more, so that the inner product
/// of a query and a key is -distance^2 / 2; and half of each squared radius.
class SketchPacker {
 public:
  SketchPacker(std::size_t n_dims, const TypedKernels<float> &kernels)
      : d_(n_dims), zeros_(n_dims, 0.0), k_(kernels) {}

  /// Coordinates of a packed sketch.
  std::size_t n_packed() const { return d_ + 2; }

  void pack_queries(const Sketches &points, const Listing &listed, float *out, float *reach) const {
    pack(points, listed, std::size_t(k_.rows), {d_, d_ + 1}, out, reach);
  }

  void pack_keys(const Sketches &points, const Listing &listed, float *out, float *reach) const {
    pack(points, listed, std::size_t(k_.group_keys), {d_ + 1, d_}, out, reach);
  }

 private:
  /// Which of the two coordinates more holds -|p|^2 / 2, and which 1.
  struct Extra {
    std::size_t square, one;
  };

  void pack(const Sketches &points, const Listing &listed, std::size_t group, Extra extra,
            float *out, float *reach) const {
    for (std::size_t start = 0; start < listed.n; start += group) {
      for (std::size_t at = start + 2 * group; at < std::min(listed.n, start + 3 * group); ++at)
        __builtin_prefetch(points[listed.points[at]]);
      const Listing some{listed.points + start, std::min(group, listed.n - start)};
      pack_coordinates(points, some, group, out);
      pack_squares(some.n, group, extra, out);
      pack_reach(points, some, group, reach);
      out += group * n_packed();
      reach += group;
    }
  }

  void pack_coordinates(const Sketches &points, const Listing &some, std::size_t group,
                        float *out) const {
    std::size_t c = 0;
    for (; c + 4 <= some.n; c += 4) {
      const std::int32_t *i = some.points + c;
      const float *const four[4] = {points[i[0]], points[i[1]], points[i[2]], points[i[3]]};
      k_.pack_four(four, zeros_.data(), 1.0, d_, group, out + c);
    }
    for (; c < group; ++c)
      for (std::size_t l = 0; l < d_; ++l)
        out[l * group + c] = c < some.n ? points[some.points[c]][l] : 0.0f;
  }

  /// Padding is as far away as it can be.
  void pack_squares(std::size_t n, std::size_t group, Extra extra, float *out) const {
    float *square = out + extra.square * group, *one = out + extra.one * group;
    std::fill_n(square, group, 0.0f);
    std::fill_n(one, group, 1.0f);
    for (std::size_t l = 0; l < d_; ++l)
      for (std::size_t c = 0; c < group; ++c)
        square[c] -= 0.5f * out[l * group + c] * out[l * group + c];
    std::fill(square + n, square + group, -std::numeric_limits<float>::max());
  }

  /// Minus infinity for points that do not look.
  static void pack_reach(const Sketches &points, const Listing &some, std::size_t group,
                         float *reach) {
    std::fill_n(reach, group, -std::numeric_limits<float>::infinity());
    if (!points.radius_squared) return;
    for (std::size_t c = 0; c < some.n; ++c)
      reach[c] = 0.5f * points.radius_squared[some.points[c]];
  }

  std::size_t d_;
  std::vector<double> zeros_;
  const TypedKernels<float> &k_;
};

/// Sketches, cut into cells: the tiling's orders number the sketches. With `mirrored` the queries
/// are the keys, in the same order: of two points, each of which looks, the earlier is the query.
struct CellSearch {
  Sketches queries, keys;
  Tiling tiling;
  bool mirrored;
  double threshold;
};

/// Pairs with value >= threshold that are not in `known` yet, among those whose sketches share a
/// cell of the tiling and lie within the query's radius.
template <class T>
class CellSearcher {
 public:
  CellSearcher(const PairKernel<T> &kernel, const CellSearch &search, const FoundPairs &known,
               const Kernels &kernels, int n_threads)
      : kernel_(kernel),
        search_(search),
        known_(known),
        sketch_(kernels.f32),
        full_(kernels.typed<T>()),
        packer_(search.queries.n_dims, sketch_),
        floor_(std::log(search.threshold)) {
    for (int i = 0; i < n_threads; ++i) spaces_.emplace_back(packer_.n_packed());
  }

  void look(std::size_t cell, int slot, std::vector<NewPair> &out) {
    Space &s = spaces_[std::size_t(slot)];
    const Listing cols = search_.tiling.keys_of(cell);
    pack_rows(search_.tiling.queries_of(cell), s);
    search_.keys.numbers(cols, s.col_of);
    for (std::size_t k = 0; k < cols.n; k += kPanelKeys) {
      const std::size_t n_keys = std::min<std::size_t>(kPanelKeys, cols.n - k);
      packer_.pack_keys(search_.keys, {cols.points + k, n_keys}, s.keys.get(), s.key_reach.get());
      // Mirrored, queries behind the panel have met its keys from the other side.
      const std::size_t n_rows = s.row_of.size();
      const std::size_t last_row = search_.mirrored ? std::min(n_rows, k + n_keys) : n_rows;
      for (std::size_t q = 0; q < last_row; q += kBlockRows) {
        list_fresh(q, std::min<std::size_t>(kBlockRows, last_row - q), k, n_keys, s);
        keep_near(s.fresh, out);
      }
    }
  }

 private:
  struct Space {
    std::vector<float> queries, query_reach;
    Buffer<float> keys, key_reach;
    Buffer<Match> matches;
    std::vector<std::int32_t> row_of, col_of;  // numbers of the points
    std::vector<Match> fresh;                  // of points by their numbers

    explicit Space(std::size_t d)
        : keys(kPanelKeys * d), key_reach(kPanelKeys), matches(kBlockRows * kPanelKeys) {}
  };

  /// What is known of a row is read for each of its matches: sent for now, it is there by then.
  void pack_rows(const Listing &rows, Space &s) const {
    s.query_reach.resize(round_up(rows.n, std::size_t(sketch_.rows)));
    s.queries.resize(s.query_reach.size() * packer_.n_packed());
    search_.queries.numbers(rows, s.row_of);
    for (const auto row : s.row_of) __builtin_prefetch(known_.indptr + row);
    packer_.pack_queries(search_.queries, rows, s.queries.data(), s.query_reach.data());
    for (const auto row : s.row_of)
      for (auto p = known_.indptr[row]; p < known_.indptr[row + 1]; p += 8)
        __builtin_prefetch(known_.cols + p);
  }

  /// Pairs of queries q .. q + n and the packed keys from k on whose sketches are near. Those that
  /// are known are left out here, so that only points of new ones are fetched.
  void list_fresh(std::size_t q, std::size_t n, std::size_t k, std::size_t n_keys, Space &s) const {
    SketchTile tile{};
    tile.queries = s.queries.data() + q * packer_.n_packed();
    tile.query_reach = s.query_reach.data() + q;
    tile.n_strips = int(n_pieces(n, std::size_t(sketch_.rows)));
    tile.keys = s.keys.get();
    tile.key_reach = s.key_reach.get();
    tile.n_keys = int(round_up(n_keys, std::size_t(sketch_.group_keys)));
    tile.n_dims = packer_.n_packed();
    tile.diagonal = search_.mirrored ? int(std::ptrdiff_t(q) - std::ptrdiff_t(k)) : kNoDiagonal;
    const int n_matches = sketch_.matches(tile, s.matches.get());
    s.fresh.clear();
    for (const Match *match = s.matches.get(); match < s.matches.get() + n_matches; ++match) {
      if (match->key <= match->row + tile.diagonal) continue;
      const auto row = s.row_of[q + std::size_t(match->row)];
      const auto col = s.col_of[k + std::size_t(match->key)];
      if (!known_.has(row, col)) s.fresh.push_back({row, col});
    }
  }

  void keep_near(const std::vector<Match> &pairs, std::vector<NewPair> &out) const {
    constexpr std::size_t kAhead = 8;
    for (std::size_t m = 0; m < pairs.size(); ++m) {
      if (m + kAhead < pairs.size()) {
        prefetch(kernel_.queries, pairs[m + kAhead].row);
        prefetch(kernel_.keys, pairs[m + kAhead].key);
      }
      const auto [row, col] = pairs[m];
      const double exponent = kernel_.exponent(std::size_t(row), std::size_t(col), full_);
      if (exponent >= floor_) out.push_back({row, col, float(std::exp(exponent))});
    }
  }

  const PairKernel<T> &kernel_;
  const CellSearch &search_;
  const FoundPairs &known_;
  const TypedKernels<float> &sketch_;
  const TypedKernels<T> &full_;
  const SketchPacker packer_;
  const double floor_;  // of exponents
  std::vector<Space> spaces_;
};

template <class T>
void cell_pairs(const PairKernel<T> &kernel, const CellSearch &search, const FoundPairs &known,
                const Kernels &kernels, int n_threads, const Poll &poll, PairLists &parts) {
  CellSearcher<T> searcher(kernel, search, known, kernels, n_threads);
  parts.resize(search.tiling.n_cells);
  parallel_for(
      search.tiling.n_cells, n_threads,
      [&](std::size_t cell, int slot) { searcher.look(cell, slot, parts[cell]); }, poll);
}

}  // namespace akmv
