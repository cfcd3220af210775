// What every tile is given: packed queries and keys, and how scores become exponents.
//
// Known to the instruction sets and to their callers alike: plain structs, no functions.
#pragma once

#include "kernel_function.hpp"

#include <cstddef>
#include <cstdint>

namespace akmv {

constexpr int kBlockRows = 96;   // queries per task; a multiple of every micro tile's rows
constexpr int kPanelKeys = 256;  // most keys per panel
constexpr int kScoreStride = kPanelKeys + 16;  // not a power of two: rows would alias in the cache
constexpr int kFewColumns = 4;  // up to here columns are dotted, above they are a second product
constexpr std::size_t kAlignment = 64;
constexpr int kOuter = 4;      // points that share a pass over sums of outer products
constexpr int kProjected = 4;  // points that share a pass over a basis
constexpr std::size_t kProjectedPiece = 64;

// One block of queries against one chunk of packed keys. Exponents are
//
//   slope * s_ij - query_shift[i] - key_shift[j],   s_ij = <q_i, k_j>, or |q_i - k_j|^2
//
// with `differences`, and are cut at `ceiling`; values are those of `function` at minus the
// exponent.
template <class T>
struct Operands {
  const T *queries;      // [strip][dim][row in strip], zero padded
  const T *query_shift;  // [kBlockRows]
  const T *keys;         // [panel][group][dim][key in group], zero padded
  const T *key_shift;    // [panel][key], +infinity on padding
  std::size_t n_dims;
  std::size_t n_keys;  // padded to a multiple of the group
  int panel_keys;      // keys per panel (the last may have fewer), a multiple of the group
  int n_strips;        // strips of queries in use
  T slope, ceiling;
  bool differences;
  KernelFunction function{};
  T *scores;  // scratch [rows][kScoreStride]
};

// One cell of points against many, along some axes: means and variances in bandwidths.
struct CellRow {
  const float *mean, *variance;    // [dim] of the one
  const float *means, *variances;  // [dim][n_cells] of the many
  std::size_t n_dims, n_cells;     // a multiple of kCellGroup
  float weight;
  float *out;  // [n_cells], the mean of the squared kernel times the weight is added
};
constexpr std::size_t kCellGroup = 16;  // whole vectors of every instruction set

}  // namespace akmv
