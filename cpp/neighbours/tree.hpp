// A tree of keys: every cell is cut at the median of its keys along the direction in which they
// spread most.
//
// Cells are tighter than those of a random tiling, so a block of queries that lies in few of them
// has more in common; but it is one tree, not one of many.
#pragma once

#include "../kernels.hpp"
#include "../threads.hpp"
#include "../types.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace akmv {

/// Some of a cell's keys tell the direction: every so many, up to this number.
constexpr std::size_t kTelling = 256;
constexpr int kPowerSteps = 5;

/// A direction, and a point whose projection on it is 0.
template <class T>
struct Axis {
  std::vector<T> direction, centre;

  T place(const T *point, const TypedKernels<T> &kernels) const {
    const T found = kernels.projection(point, centre.data(), direction.data(), direction.size());
    return std::isnan(found) ? T(0) : found;
  }
};

/// Every so many of a cell's keys: they tell its direction.
template <class T>
struct TellingKeys {
  const Rows<T> &points;
  const std::int32_t *index;
  std::size_t step, n;

  TellingKeys(const Rows<T> &points_, const std::int32_t *index_, std::size_t n_points)
      : points(points_),
        index(index_),
        step(std::max<std::size_t>(1, n_pieces(n_points, kTelling))),
        n(n_pieces(n_points, step)) {}

  const T *operator[](std::size_t i) const { return points[std::size_t(index[i * step])]; }

  std::vector<T> mean() const {
    std::vector<double> sums(points.d, 0.0);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t l = 0; l < points.d; ++l) sums[l] += double((*this)[i][l]);
    std::vector<T> mean(points.d, T(0));
    for (std::size_t l = 0; l < points.d && n > 0; ++l) mean[l] = T(sums[l] / double(n));
    return mean;
  }

  /// The key farthest from a point; the point itself if none is elsewhere.
  const T *farthest(const T *from, const TypedKernels<T> &kernels) const {
    const T *farthest = from;
    T most = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const T square = kernels.squared_distance((*this)[i], from, points.d);
      if (square > most) farthest = (*this)[i];
      most = std::max(most, square);
    }
    return farthest;
  }
};

/// Divides by the largest magnitude; zeros where that is 0 or not finite, and false.
template <class T>
bool scale_to_one(std::vector<T> &direction) {
  T largest = 0;
  for (const T v : direction) largest = std::max(largest, std::abs(v));
  const bool has_direction = largest > 0 && std::isfinite(largest);
  for (T &v : direction) v = has_direction ? v / largest : T(0);
  return has_direction;
}

/// About the principal direction of some points: a few steps of power iteration, from the one
/// farthest from their mean. Zero where all are the same, or too large for their squares.
template <class T>
Axis<T> principal_axis(const Rows<T> &points, const std::int32_t *index, std::size_t n,
                       const TypedKernels<T> &kernels) {
  const TellingKeys<T> keys(points, index, n);
  Axis<T> axis{std::vector<T>(points.d, T(0)), keys.mean()};
  const T *centre = axis.centre.data();
  kernels.add_moved(T(1), keys.farthest(centre, kernels), centre, points.d, axis.direction.data());
  std::vector<T> next(points.d);
  for (int power = 0; scale_to_one(axis.direction) && power < kPowerSteps; ++power) {
    std::fill(next.begin(), next.end(), T(0));
    for (std::size_t i = 0; i < keys.n; ++i) {
      const T along = kernels.projection(keys[i], centre, axis.direction.data(), points.d);
      kernels.add_moved(along, keys[i], centre, points.d, next.data());
    }
    axis.direction.swap(next);
  }
  return axis;
}

/// Points in the order of the cells they lie in, and where cells begin.
template <class T>
class TreeSide {
 public:
  TreeSide(const Rows<T> &points, const TypedKernels<T> &kernels)
      : points_(points),
        k_(kernels),
        order_(points.n),
        other_(points.n),
        start_{0, points.n},
        place_(points.n) {
    std::iota(order_.begin(), order_.end(), 0);
  }

  std::size_t n_cells() const { return start_.size() - 1; }
  std::size_t n_points(std::size_t cell) const { return start_[cell + 1] - start_[cell]; }

  Axis<T> axis(std::size_t cell) const {
    return principal_axis(points_, order_.data() + start_[cell], n_points(cell), k_);
  }

  /// Projects each point on the axis of its cell.
  void project(const std::vector<Axis<T>> &axes, int n_threads, const Poll &poll) {
    constexpr std::size_t kPointsPerTask = 2048, kAhead = 8;
    parallel_pieces(
        points_.n, kPointsPerTask, n_threads,
        [&](const Piece &piece) {
          auto cell = std::size_t(std::upper_bound(start_.begin(), start_.end(), piece.first) -
                                  start_.begin() - 1);
          for (std::size_t at = piece.first; at < piece.last; ++at) {
            while (at >= start_[cell + 1]) ++cell;
            if (at + kAhead < piece.last) __builtin_prefetch(point(at + kAhead));
            place_[at] = axes[cell].place(point(at), k_);
          }
        },
        poll);
  }

  /// The upper median of the projections of a cell, 0 where it is empty.
  T median(std::size_t cell) const {
    std::vector<T> places(place_.begin() + std::ptrdiff_t(start_[cell]),
                          place_.begin() + std::ptrdiff_t(start_[cell + 1]));
    if (places.empty()) return T(0);
    const auto middle = places.begin() + std::ptrdiff_t(places.size() / 2);
    std::nth_element(places.begin(), middle, places.end());
    return *middle;
  }

  /// Moves those below the cut to the front of their cell, in order; returns where the others
  /// begin.
  std::size_t part(std::size_t cell, T cut) {
    std::size_t below = start_[cell], above = 0;
    for (std::size_t at = start_[cell]; at < start_[cell + 1]; ++at) {
      if (place_[at] < cut)
        order_[below++] = order_[at];
      else
        other_[start_[cell] + above++] = order_[at];
    }
    std::copy_n(other_.begin() + std::ptrdiff_t(start_[cell]), above,
                order_.begin() + std::ptrdiff_t(below));
    return below;
  }

  /// Makes two cells of each; `cuts` says where the second ones begin.
  void split(const std::vector<std::size_t> &cuts) {
    std::vector<std::size_t> start;
    start.reserve(2 * cuts.size() + 1);
    for (std::size_t c = 0; c < cuts.size(); ++c) {
      start.push_back(start_[c]);
      start.push_back(cuts[c]);
    }
    start.push_back(start_.back());
    start_ = std::move(start);
  }

  void write(std::int32_t *order, std::int64_t *start) const {
    std::copy(order_.begin(), order_.end(), order);
    std::copy(start_.begin(), start_.end(), start);
  }

 private:
  const T *point(std::size_t at) const { return points_[std::size_t(order_[at])]; }

  const Rows<T> &points_;
  const TypedKernels<T> &k_;
  std::vector<std::int32_t> order_, other_;
  std::vector<std::size_t> start_;
  std::vector<T> place_;  // projection of each point of the order
};

/// `depth` levels of cuts. Writes both orders, ascending in each cell, and where the queries and
/// keys of each of the 2^depth cells begin. Equal projections stay together; queries follow the
/// cuts, and are not cut at all where they are the keys.
template <class T>
void principal_tiling(const Rows<T> &keys, const Rows<T> &queries, int depth,
                      const TypedKernels<T> &kernels, int n_threads, const Poll &poll,
                      const NewTiling &out) {
  const bool same = keys.data == queries.data && keys.n == queries.n;
  const Rows<T> followers{queries.data, same ? 0 : queries.n, queries.d};
  TreeSide<T> of_keys(keys, kernels), of_queries(followers, kernels);
  for (int level = 0; level < depth; ++level) {
    const std::size_t n_cells = of_keys.n_cells();
    std::vector<Axis<T>> axes(n_cells);
    std::vector<std::size_t> key_cuts(n_cells), query_cuts(n_cells);
    parallel_for(n_cells, n_threads, [&](std::size_t c, int) { axes[c] = of_keys.axis(c); }, poll);
    of_keys.project(axes, n_threads, poll);
    of_queries.project(axes, n_threads, poll);
    parallel_for(
        n_cells, n_threads,
        [&](std::size_t c, int) {
          const T cut = of_keys.median(c);
          key_cuts[c] = of_keys.part(c, cut);
          query_cuts[c] = of_queries.part(c, cut);
        },
        poll);
    of_keys.split(key_cuts);
    of_queries.split(query_cuts);
  }
  of_keys.write(out.key_order, out.key_start);
  (same ? of_keys : of_queries).write(out.query_order, out.query_start);
}

}  // namespace akmv
