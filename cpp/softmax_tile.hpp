// What the softmax loop of attention works on; shared by its scheduler and every instruction set.
#pragma once

#include <cstddef>

namespace akmv {

// A score this much above what is taken out, in units of ln 2, does no harm: powers of two of it,
// and sums of these times values, are finite. So where lengths bound the scores, the largest of the
// first few is as good as that of all, which saves 4 % of the time of 64 dimensions.
constexpr int kRoomAbove = 60;

// One block of queries of one head against all keys it may see:
//
//   products[i, c] = sum_j 2^(s_ij - row_max[i]) * v[j, c],   s_ij = <q_i, k_j> + mask[i, j] / ln 2
//
// where j runs over the first `n_real` keys, or with `causal` over those not after the query. The
// largest score of each row is found on the way, or one that is at most kRoomAbove lower. The
// scale, and 1 / ln 2, are already in the queries.
template <class T>
struct SoftmaxTile {
  const T *queries;  // [strip][dim][row in strip], zero padded
  const T *keys;     // [panel][group][dim][key in group], zero padded
  const T *values;   // [panel][column group][key][column in group], zero padded
  const T *longest;  // [key] the largest squared length of it and the keys before
  std::size_t n_dims;
  std::size_t n_real;     // keys
  std::size_t n_keys;     // padded to a multiple of the group
  std::size_t first_row;  // of the block, within the head
  int panel_keys;         // keys per panel (the last may have fewer), a multiple of the group
  int n_rows;             // queries in the block
  int n_columns;          // padded to a multiple of the group
  bool causal;
  const T *added;             // added to the scores, or null
  const unsigned char *kept;  // 0 where a pair is left out, or null
  std::size_t mask_stride;    // from one row of the mask to the next; 0 if all rows share one

  T *scores;    // scratch [kBlockRows][kScoreStride]
  T *products;  // out [row][padded columns]
  T *totals;    // out [row] vectors of partial sums of the weights
  T *row_max;   // out [row]
};

}  // namespace akmv
