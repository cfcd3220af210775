// Second moments of blocks of a kernel matrix, predicted from where cells of points lie.
#pragma once

#include "../kernels.hpp"
#include "../memory.hpp"
#include "../threads.hpp"
#include "../types.hpp"

#include <algorithm>
#include <vector>

namespace akmv {

/// Means and variances of cells along some axes; group g has the cells start[g] .. start[g + 1),
/// whose weights add up to 1.
struct CellMoments {
  const float *mean, *variance;  // [dim][cell]
  std::size_t n_dims, n_cells;
  const float *weight;
  const std::int64_t *start;
  std::size_t n_groups;
};

/// out [query group][key group]: means of K^2 over pairs of cells, weighted with both weights.
template <class T>
void cell_squares(const CellMoments &queries, const CellMoments &keys,
                  const TypedKernels<T> &kernels, int n_threads, const Poll &poll, float *out) {
  const std::size_t d = keys.n_dims, padded = round_up(keys.n_cells, kCellGroup);
  // Padding has weight 0.
  Buffer<float> means(d * padded), variances(d * padded);
  std::fill_n(means.get(), d * padded, 0.0f);
  std::fill_n(variances.get(), d * padded, 0.0f);
  for (std::size_t l = 0; l < d; ++l) {
    std::copy_n(keys.mean + l * keys.n_cells, keys.n_cells, means.get() + l * padded);
    std::copy_n(keys.variance + l * keys.n_cells, keys.n_cells, variances.get() + l * padded);
  }
  struct Space {
    std::vector<float> mean, variance, sums;
    Space(std::size_t d, std::size_t n) : mean(d), variance(d), sums(n) {}
  };
  std::vector<Space> spaces(std::size_t(n_threads), Space(d, padded));
  parallel_for(
      queries.n_groups, n_threads,
      [&](std::size_t group, int slot) {
        Space &s = spaces[std::size_t(slot)];
        std::fill(s.sums.begin(), s.sums.end(), 0.0f);
        for (std::int64_t c = queries.start[group]; c < queries.start[group + 1]; ++c) {
          for (std::size_t l = 0; l < d; ++l) {
            s.mean[l] = queries.mean[l * queries.n_cells + std::size_t(c)];
            s.variance[l] = queries.variance[l * queries.n_cells + std::size_t(c)];
          }
          kernels.cell_row({s.mean.data(), s.variance.data(), means.get(), variances.get(), d,
                            padded, queries.weight[c], s.sums.data()});
        }
        for (std::size_t g = 0; g < keys.n_groups; ++g) {
          float sum = 0;
          for (std::int64_t c = keys.start[g]; c < keys.start[g + 1]; ++c)
            sum += keys.weight[c] * s.sums[std::size_t(c)];
          out[group * keys.n_groups + g] = sum;
        }
      },
      poll);
}

}  // namespace akmv
