// A tree of keys: every cell is cut at the median of its keys along the direction in which they
// spread most.
//
// Cells are tighter than those of a random tiling, so a block of queries that lies in few of them
// has more in common; but it is one tree, not one of many.
#pragma once

#include "pairs.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace akmv {

/// Some of a cell's keys tell the direction: every so many, up to this number.
constexpr std::size_t kTelling = 256;
constexpr int kPowerSteps = 5;
constexpr std::size_t kTreePointsPerTask = 2048;

/// A direction, and a point whose projection on it is 0.
template <class T>
struct Axis {
  std::vector<T> direction, centre;

  T place(const T *point, const TypedKernels<T> &kernels) const {
    const T found = kernels.projection(point, centre.data(), direction.data(), direction.size());
    return std::isnan(found) ? T(0) : found;
  }
};

/// About the principal direction of some points: a few steps of power iteration, from the one
/// farthest from their mean. Zero where all are the same, or too large for their squares.
template <class T>
Axis<T> principal_axis(const Rows<T> &points, const std::int32_t *index, std::size_t n,
                       const TypedKernels<T> &kernels) {
  const std::size_t d = points.d, step = std::max<std::size_t>(1, (n + kTelling - 1) / kTelling);
  const std::size_t n_telling = (n + step - 1) / step;
  const auto telling = [&](std::size_t i) { return points[std::size_t(index[i * step])]; };
  std::vector<double> mean(d, 0.0);
  for (std::size_t i = 0; i < n_telling; ++i)
    for (std::size_t l = 0; l < d; ++l) mean[l] += double(telling(i)[l]);
  Axis<T> axis{std::vector<T>(d, T(0)), std::vector<T>(d, T(0))};
  for (std::size_t l = 0; l < d && n > 0; ++l) axis.centre[l] = T(mean[l] / double(n_telling));
  const T *centre = axis.centre.data(), *farthest = centre;
  T most = 0;
  for (std::size_t i = 0; i < n_telling; ++i) {
    const T square = kernels.squared_distance(telling(i), centre, d);
    if (square > most) farthest = telling(i);
    most = std::max(most, square);
  }
  std::vector<T> next(d, T(0));
  kernels.add_moved(T(1), farthest, centre, d, next.data());
  for (int power = 0; power <= kPowerSteps; ++power) {
    axis.direction.swap(next);
    T largest = 0;
    for (const T v : axis.direction) largest = std::max(largest, std::abs(v));
    if (!(largest > 0) || !std::isfinite(largest)) {
      std::fill(axis.direction.begin(), axis.direction.end(), T(0));
      break;
    }
    for (T &v : axis.direction) v /= largest;
    if (power == kPowerSteps) break;
    std::fill(next.begin(), next.end(), T(0));
    for (std::size_t i = 0; i < n_telling; ++i)
      kernels.add_moved(kernels.projection(telling(i), centre, axis.direction.data(), d),
                        telling(i), centre, d, next.data());
  }
  return axis;
}

/// Points in the order of the cells they lie in, and where cells begin.
template <class T>
struct TreeSide {
  std::vector<std::int32_t> order, other;
  std::vector<std::size_t> start;
  std::vector<T> place;  // projection of each point of the order

  explicit TreeSide(std::size_t n) : order(n), other(n), start{0, n}, place(n) {
    std::iota(order.begin(), order.end(), 0);
  }
};

/// `depth` levels of cuts. Writes both orders, ascending in each cell, and where the queries and
/// keys of each of the 2^depth cells begin. Equal projections stay together; queries follow the
/// cuts.
template <class T>
void principal_tiling(const Rows<T> &keys, const Rows<T> &queries, int depth,
                      const TypedKernels<T> &kernels, int n_threads, const Poll &poll,
                      const NewTiling &out) {
  TreeSide<T> of_keys(keys.n), of_queries(queries.n);
  const auto project = [&](const Rows<T> &points, TreeSide<T> &side,
                           const std::vector<Axis<T>> &axes) {
    parallel_for(
        (points.n + kTreePointsPerTask - 1) / kTreePointsPerTask, n_threads,
        [&](std::size_t task, int) {
          const std::size_t last = std::min(points.n, (task + 1) * kTreePointsPerTask);
          std::size_t at = task * kTreePointsPerTask;
          auto cell = std::size_t(std::upper_bound(side.start.begin(), side.start.end(), at) -
                                  side.start.begin() - 1);
          for (; at < last; ++at) {
            while (at >= side.start[cell + 1]) ++cell;
            if (at + 8 < last) __builtin_prefetch(points[std::size_t(side.order[at + 8])]);
            side.place[at] = axes[cell].place(points[std::size_t(side.order[at])], kernels);
          }
        },
        poll);
  };
  // Moves those below the cut to the front of their cell, in order; returns where the others begin.
  const auto part = [](TreeSide<T> &side, std::size_t cell, T cut) {
    std::size_t below = side.start[cell], above = 0;
    for (std::size_t at = side.start[cell]; at < side.start[cell + 1]; ++at) {
      if (side.place[at] < cut)
        side.order[below++] = side.order[at];
      else
        side.other[side.start[cell] + above++] = side.order[at];
    }
    const auto others = side.other.begin() + std::ptrdiff_t(side.start[cell]);
    std::copy_n(others, above, side.order.begin() + std::ptrdiff_t(below));
    return below;
  };
  for (int level = 0; level < depth; ++level) {
    const std::size_t n_cells = of_keys.start.size() - 1;
    std::vector<Axis<T>> axes(n_cells);
    std::vector<std::size_t> key_cut(n_cells), query_cut(n_cells);
    parallel_for(
        n_cells, n_threads,
        [&](std::size_t c, int) {
          axes[c] = principal_axis(keys, of_keys.order.data() + of_keys.start[c],
                                   of_keys.start[c + 1] - of_keys.start[c], kernels);
        },
        poll);
    project(keys, of_keys, axes);
    project(queries, of_queries, axes);
    parallel_for(
        n_cells, n_threads,
        [&](std::size_t c, int) {
          std::vector<T> places(of_keys.place.begin() + std::ptrdiff_t(of_keys.start[c]),
                                of_keys.place.begin() + std::ptrdiff_t(of_keys.start[c + 1]));
          const auto middle = places.begin() + std::ptrdiff_t(places.size() / 2);
          if (!places.empty()) std::nth_element(places.begin(), middle, places.end());
          const T at = places.empty() ? T(0) : *middle;
          key_cut[c] = part(of_keys, c, at);
          query_cut[c] = part(of_queries, c, at);
        },
        poll);
    for (auto [side, cuts] : {std::pair(&of_keys, &key_cut), std::pair(&of_queries, &query_cut)}) {
      std::vector<std::size_t> start;
      for (std::size_t c = 0; c < n_cells; ++c) {
        start.push_back(side->start[c]);
        start.push_back((*cuts)[c]);
      }
      start.push_back(side->start.back());
      side->start = std::move(start);
    }
  }
  std::copy(of_keys.order.begin(), of_keys.order.end(), out.key_order);
  std::copy(of_queries.order.begin(), of_queries.order.end(), out.query_order);
  std::copy(of_keys.start.begin(), of_keys.start.end(), out.key_start);
  std::copy(of_queries.start.begin(), of_queries.start.end(), out.query_start);
}

}  // namespace akmv
