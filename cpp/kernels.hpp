// What the instruction-set dependent part offers to the rest: a table of functions and its
// geometry.
#pragma once

#include "attention_kernels.hpp"

#include <cstddef>
#include <cstdint>

namespace akmv {

constexpr int kBlockRows = 96;   // queries per task; a multiple of every micro tile's rows
constexpr int kPanelKeys = 256;  // most keys per panel
constexpr int kScoreStride = kPanelKeys + 16;  // not a power of two: rows would alias in the cache
constexpr int kPowerSums = 10;                 // of `power_x` below
constexpr int kFewColumns = 4;  // up to here columns are dotted, above they are a second product
constexpr std::size_t kAlignment = 64;
constexpr int kOuter = 4;      // points that share a pass over sums of outer products
constexpr int kProjected = 4;  // points that share a pass over a basis
constexpr std::size_t kProjectedPiece = 64;

// One block of queries against one chunk of packed keys:
//
//   sums[i, c] = sum_j exp(slope * s_ij - query_shift[i] - key_shift[j]) * x[j, c]
//
// with s_ij = <q_i, k_j>, or |q_i - k_j|^2 if `differences`. With `online` the largest exponent of
// each row is found on the way and taken out: sums are relative to it, and row_max[i] holds it
// before query_shift[i] is subtracted, unless that is infinite.
template <class T>
struct Tile {
  const T *queries;      // [strip][dim][row in strip], zero padded
  const T *query_shift;  // [kBlockRows]
  const T *keys;         // [panel][group][dim][key in group], zero padded
  const T *key_shift;    // [panel][key], +infinity on padding
  const T *x;         // few columns: [column][panel][key]; many: [panel][column group][key][column]
  const T *square_x;  // null, or two columns [column][panel][key] for the squared exponentials
  // Null, or three columns [power][panel][key], for one column x: the squares are then those of
  // exponentials less query_scale[i] times this polynomial in slope * s_ij.
  const T *smooth;
  const T *query_scale;  // [kBlockRows]
  // Null, or three columns [column][panel][key], for one column x: with z = slope * s_ij and e the
  // exponential, sums of e x, of e^2 times the first and, where e is below `threshold`, of e z^k
  // times the second for k = 0, 1, 2 and of z^k times the third for k = 0 to 4 are all there is in
  // `lanes`. `values` and `largest` are filled.
  const T *power_x;
  T threshold;
  std::size_t n_dims;
  std::size_t n_keys;  // padded to a multiple of the group
  int panel_keys;      // keys per panel (the last may have fewer), a multiple of the group
  int n_strips;        // strips of queries in use
  int n_columns;
  T slope, ceiling;
  bool differences, online;
  bool row_sums;  // fill `totals`

  T *scores;    // scratch [rows][kScoreStride]
  T *lanes;     // out [kBlockRows] vectors of partial sums: of few columns, then of square_x
  T *products;  // out, many columns: [kBlockRows][padded columns]
  T *totals;    // out [kBlockRows] vectors of partial sums of the exponentials
  T *row_max;   // out [kBlockRows], with `online`
  T *values;    // null, or out [kBlockRows][kPanelKeys]: the exponentials of one panel
  T *largest;   // out [kBlockRows], with `power_x`: the largest exponential of one panel
  // Null, or out [kBlockRows], for one panel: exponentials of exponents below `floor` count as 0,
  // and groups of keys with others have a bit here; `values` are written for these groups only.
  std::uint64_t *live;
  T floor;
  // With `live`: the first coordinates, whose scores less these shifts bound the exponents from
  // above.
  int bound_dims;
  const T *query_bound;  // [kBlockRows]
  const T *key_bound;    // [key], +infinity on padding
};

// A pair of a panel whose exponent reaches a floor.
template <class T>
struct Hit {
  std::int32_t row, key;  // within the block and the panel
  T exponent;
};

// Values of a block of rows with a panel of keys, of which some are drawn, each by a word of its
// own.
template <class T>
struct DrawPanel {
  const T *values;            // [row][kPanelKeys]
  const std::uint64_t *live;  // [row] groups of keys with values
  int n_rows;
  const T *size;  // [key], 0 on padding
  const std::uint32_t *row_words, *key_words;
  T rate;
};

template <class T>
struct DrawnValue {
  std::int32_t row, key;  // within the block and the panel
  T value, probability;
};

template <class T>
struct SoftmaxTile;  // softmax_tile.hpp
// Packed sketches of some queries and keys, whose inner products are -distance^2 / 2.
struct SketchTile {
  const float *queries;      // [strip][dim][row in strip]
  const float *query_reach;  // [row] half the squared radius
  const float *keys;         // [group][dim][key in group]
  const float *key_reach;    // [key]
  int n_strips, n_keys;      // keys padded to a multiple of the group
  std::size_t n_dims;
  int diagonal;  // keys up to row + diagonal need not be looked at
};
constexpr int kNoDiagonal = -(1 << 30);

// Two points of which one lies within the other's radius.
struct Match {
  std::int32_t row, key;
};

template <class T>
struct TypedKernels {
  int width;       // lanes of a vector
  int rows;        // queries per strip
  int group_keys;  // keys (or columns) per packed group
  void (*tile)(const Tile<T> &);
  // Pairs of one panel with exponent >= floor, written to `hits`; their number.
  int (*hits)(const Tile<T> &, T floor, Hit<T> *hits);
  // The same with a floor for each row of the block.
  int (*hits_by_row)(const Tile<T> &, const T *floors, Hit<T> *hits);
  // Values drawn with probability min(1, size rate value); their number.
  int (*draw_values)(const DrawPanel<T> &, DrawnValue<T> *out);
  void (*softmax)(const SoftmaxTile<T> &);
  // Squared lengths of packed keys; their number is a multiple of the group.
  void (*key_lengths)(const T *keys, std::size_t n_dims, std::size_t n_keys, T *out);
  int (*matches)(const SketchTile &, Match *out);  // their number
  // One point moved to (p - centre) * factor and written with a stride.
  void (*pack_row)(const T *point, const double *centre, double factor, std::size_t n_dims,
                   std::size_t stride, T *out);
  // The same for four points, written side by side.
  void (*pack_four)(const T *const (&points)[4], const double *centre, double factor,
                    std::size_t n_dims, std::size_t stride, T *out);
  // out[p][s] = sum_l (points[p][l] - centre[l]) basis[l][s], in single precision, for kProjected
  // points; the number of directions is a multiple of 16.
  void (*project)(const T *const *points, const double *centre, std::size_t n_dims,
                  const float *basis, std::size_t n_out, float *const *out);
  // Sums of outer products of kOuter points, lower triangle, and the quadratic form of such sums.
  void (*add_outer)(const T *multipliers, const T *points, std::size_t n_rows, std::size_t stride,
                    T *sums);
  T (*quadratic)(const T *point, const T *sums, std::size_t n_rows, std::size_t stride);
  T (*sum_lanes)(const T *);
  void (*exp)(const T *in, T *out, std::size_t n);
  void (*power_of_two)(const T *in, T *out, std::size_t n);
  // Not a number where an entry is not finite.
  T (*largest_magnitude)(const T *x, std::size_t n);
  T (*squared_distance)(const T *a, const T *b, std::size_t n_dims);
  // |(point - centre) * factor|^2 as it will be packed: rounded to T first, then squared in double,
  // so that shifts and products agree about what the points are.
  double (*squared_norm)(const T *point, const double *centre, double factor, std::size_t n_dims);
  // sum_l (point[l] - centre[l]) direction[l], and sums += weight * (point - centre).
  T (*projection)(const T *point, const T *centre, const T *direction, std::size_t n_dims);
  void (*add_moved)(T weight, const T *point, const T *centre, std::size_t n_dims, T *sums);
  double (*fused_multiply_adds)(std::size_t rounds);  // work for the peak measurement
  double multiply_adds_per_round;
  void (*attend)(const AttentionTile<T> &);
  void (*add_moments)(const MomentStrip<T> &);
  void (*pack_values)(const ValuePanel<T> &);
  double (*smooth_moments)(const MomentRow &);
  // min(1, max(least, rate * sqrt(guarded + floor)))
  void (*draw_probabilities)(const float *guarded, std::size_t n, float floor, float rate,
                             float least, float *out);
};

struct Kernels {
  TypedKernels<float> f32;
  TypedKernels<double> f64;
  template <class T>
  const TypedKernels<T> &typed() const;
};
template <>
inline const TypedKernels<float> &Kernels::typed<float>() const {
  return f32;
}
template <>
inline const TypedKernels<double> &Kernels::typed<double>() const {
  return f64;
}

extern const Kernels baseline_kernels;
#if AKMV_X86
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels wide_kernels;
#endif

}  // namespace akmv
