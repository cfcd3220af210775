// What the instruction-set dependent part offers to the rest: a table of functions and its
// geometry.
#pragma once

#include "epilogues/attention.hpp"
#include "epilogues/hits.hpp"
#include "epilogues/matches.hpp"
#include "epilogues/pilot.hpp"
#include "epilogues/product.hpp"
#include "epilogues/reduced.hpp"
#include "epilogues/sampled.hpp"
#include "epilogues/softmax.hpp"
#include "operands.hpp"

#include <cstddef>
#include <cstdint>

namespace akmv {

template <class T>
struct TypedKernels {
  int width;       // lanes of a vector
  int rows;        // queries per strip
  int group_keys;  // keys (or columns) per packed group
  // Tiles, each with what it does with rows of scores.
  void (*product)(const Operands<T> &, const ProductTile<T> &);
  void (*sampled)(const Operands<T> &, const SampledTile<T> &);
  void (*pilot)(const Operands<T> &, const PilotTile<T> &);
  void (*reduced)(const Operands<T> &, const ReducedTile<T> &);
  void (*attend)(const Operands<T> &, const AttentionTile<T> &);
  // Pairs with exponent >= floors[row * stride], written to `out`; their number.
  int (*hits)(const Operands<T> &, const T *floors, int stride, Hit<T> *out);
  // Values drawn with probability min(1, size rate value); their number.
  int (*draw_values)(const DrawPanel<T> &, DrawnValue<T> *out);
  void (*softmax)(const SoftmaxTile<T> &);
  // Squared lengths of packed keys; their number is a multiple of the group.
  void (*key_lengths)(const T *keys, std::size_t n_dims, std::size_t n_keys, T *out);
  int (*matches)(const SketchTile &, Match *out);  // their number
  void (*cell_row)(const CellRow &);
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
#elif AKMV_ARM
extern const Kernels neon_kernels;
#endif

}  // namespace akmv
