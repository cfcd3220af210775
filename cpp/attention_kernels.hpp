// What the instruction-set dependent part offers to sampled attention.
#pragma once

#include <cstddef>
#include <cstdint>

namespace akmv {

constexpr int kSquareColumns = 2;
constexpr double kLeastRest = 1e-3;  // smaller 1 - p would show the rounding of |v - o| only

// One block of queries against one chunk of packed keys, largest exponent of each row taken out:
//
//   products[i, c] = sum_j t_ij values[j, c],   totals[i] = sum_j t_ij,
//   means[i] = sum_j t_ij norms[j],             squared[i, c] = sum_j t_ij^2 squares[j, c],
//   crosses[i, c] = sum_j t_ij^2 squares[j, 1] values[j, c]   for every `cross_every`-th strip,
//
// with t_ij = exp(<q_i, k_j> - key_shift[j] - row_max[i]). Sums go on from chunk to chunk.
template <class T>
struct AttentionTile {
  const T *queries;             // [strip][dim][row in strip], zero padded
  const T *keys;                // [panel][group][dim][key in group], zero padded
  const T *key_shift;           // [key], +infinity on padding
  const T *values;              // [panel][column group][key][column]
  const T *norms;               // [key] or null
  const T *squares;             // [kSquareColumns][key], or null: all 0
  const std::int64_t *visible;  // [row] how many keys of the chunk a row sees, or null: all
  std::size_t n_dims, n_keys;   // keys padded to a multiple of the group
  int panel_keys, n_strips, n_columns;
  int cross_every, cross_first;  // 0: no squared terms in any chunk

  T *scores;    // scratch [2][rows][kScoreStride]
  T *products;  // [row][padded columns]
  T *crosses;   // [row][padded columns], with `cross_every`
  T *totals;    // [row] vectors of partial sums
  T *means;     // [row] vectors of partial sums, with `norms`
  T *squared;   // [row][kSquareColumns] vectors of partial sums, with `cross_every`
  T *row_max;   // [row]
};

// For one strip of queries whose outputs are known, what each key adds to their error:
//
//   moment[j]  += (p_ij / (1 - p_ij))^2 (|v_j - o_i|^2 + plan_guard_i),
//   guarded[j] += (p_ij / (1 - p_ij))^2 (|v_j - o_i|^2 + guard_i).
//
// Without the guards that is the squared error of a row that misses key j: p_ij^2 |v_j - o_i|^2 to
// first order, and all of |v_j - v|^2 where the key has nearly all the weight.
template <class T>
struct MomentStrip {
  const T *queries;  // [dim][row], the strip
  const T *outputs;  // [column][row], the strip
  const T *keys;     // as in AttentionTile
  const T *values;   // packed like keys: [panel][group][column][key in group]
  const T *norms;    // [key] |v_j|^2
  std::size_t n_dims, n_columns;
  std::size_t first, n_keys;  // the panel
  int n_rows;
  const T *row_max;               // [row]
  const T *inverse_total;         // [row]
  const T *output_norms;          // [row] |o_i|^2
  const T *guards, *plan_guards;  // [row]
  const std::int64_t *visible;    // [row]
  float *const *moment;           // [row] where its sums go: [key]
  float *const *guarded;          // [row]
  T *scores, *dots;               // scratch [rows][kScoreStride]
};

// Listed values, moved to (v - centre) * factor and laid out for AttentionTile.
template <class T>
struct ValuePanel {
  const T *values;            // [value][column]
  const std::int32_t *index;  // [n] which values
  std::size_t n, width;       // keys listed, and with padding
  std::size_t n_columns;
  const T *centre;  // [column], zero padded to a group
  T factor;
  const T *point;  // [column], zero padded to a group
  T *out;          // [column group][key][column]
  T *apart;        // [width] squared distances of the moved values from the point
};

// Raw sums of moments made into moments to plan with; see Smoothing.
struct MomentRow {
  const float *moment, *guarded;  // [n] sums over the pilot rows, 0 in the band
  std::size_t n, n_free;          // keys, and those outside the band
  float scale;                    // 1 / pilot rows
  std::size_t narrow, wide;
  float raw_share, wide_share, floor_share;
  double *running;                  // scratch [n + 1]
  float *moment_out, *guarded_out;  // [n]
};

}  // namespace akmv
