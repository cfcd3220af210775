// Compiled once per instruction set with AKMV_ISA naming it: fills the table in kernels.hpp.
#include "cell_row.hpp"
#include "kernels.hpp"
#include "outer_products.hpp"
#include "pack_rows.hpp"
#include "rows.hpp"

namespace akmv {
namespace AKMV_ISA {

template <class T>
static T sum_lanes(const T *lanes) {
  return Simd<T>::sum(Simd<T>::load(lanes));
}

template <class T, class Function>
static inline void each_vector(const T *in, T *out, std::size_t n, const Function &function) {
  using S = Simd<T>;
  std::size_t i = 0;
  for (; i + S::kWidth <= n; i += S::kWidth) S::store(out + i, function(S::load(in + i)));
  T last[S::kWidth] = {};
  for (std::size_t k = i; k < n; ++k) last[k - i] = in[k];
  S::store(last, function(S::load(last)));
  for (std::size_t k = i; k < n; ++k) out[k] = last[k - i];
}

template <class T>
static void exp_array(const T *in, T *out, std::size_t n) {
  using V = typename Simd<T>::V;
  const V top = Simd<T>::splat(ExpConstants<T>::kHighest);
  each_vector(in, out, n, [&](V t) { return exp<T>(t, top); });
}

template <class T>
static void power_of_two_array(const T *in, T *out, std::size_t n) {
  each_vector(in, out, n, [](typename Simd<T>::V t) { return power_of_two<T>(t); });
}

template <class T>
static T largest_magnitude(const T *x, std::size_t n) {
  using S = Simd<T>;
  using V = typename S::V;
  // A maximum may pass over what is not a number; 0 times it, or times infinity, stays.
  V most[kVectors] = {}, zero[kVectors] = {};
  std::size_t i = 0;
  for (; i + S::kKeys <= n; i += S::kKeys)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V here = S::load(x + i + v * S::kWidth);
      most[v] = S::larger(S::larger(here, -here), most[v]);
      zero[v] += here * T(0);
    }
  T largest = S::max(S::larger(most[0], most[1])), rest = S::sum(zero[0] + zero[1]);
  for (; i < n; ++i) {
    const T size = x[i] < 0 ? -x[i] : x[i];
    largest = size > largest ? size : largest;
    rest += x[i] * T(0);
  }
  return largest + rest;
}

template <class T>
static T squared_distance(const T *a, const T *b, std::size_t n_dims) {
  using S = Simd<T>;
  using V = typename S::V;
  const auto square = [&](std::size_t l) {
    const V difference = S::load(a + l) - S::load(b + l);
    return difference * difference;
  };
  // Two sums hide most of the latency of a multiply-add; an array of them would live in memory.
  V even = {}, odd = {};
  std::size_t l = 0;
  for (; l + 2 * S::kWidth <= n_dims; l += 2 * S::kWidth) {
    even += square(l);
    odd += square(l + S::kWidth);
  }
  if (l + S::kWidth <= n_dims) {
    even += square(l);
    l += S::kWidth;
  }
  T rest = 0;
  for (; l < n_dims; ++l) rest += (a[l] - b[l]) * (a[l] - b[l]);
  return S::sum(even + odd) + rest;
}

template <class T>
static double squared_norm(const T *point, const double *centre, double factor,
                           std::size_t n_dims) {
  constexpr std::size_t kSums = 8;
  T moved[kPiece];
  double sums[kSums] = {};
  for (std::size_t first = 0; first < n_dims; first += kPiece) {
    const std::size_t n = n_dims - first < kPiece ? n_dims - first : kPiece;
    move_piece(point, centre, first, factor, n, moved);
    for (std::size_t l = n; l % kSums != 0; ++l) moved[l] = T(0);
    for (std::size_t l = 0; l < n; l += kSums)
#pragma GCC unroll 8
      for (std::size_t k = 0; k < kSums; ++k)
        sums[k] += double(moved[l + k]) * double(moved[l + k]);
  }
  double sum = 0;
  for (std::size_t k = 0; k < kSums; ++k) sum += sums[k];
  return sum;
}

template <class T>
static T projection(const T *point, const T *centre, const T *direction, std::size_t n_dims) {
  using S = Simd<T>;
  using V = typename S::V;
  const auto term = [&](std::size_t l) {
    return (S::load(point + l) - S::load(centre + l)) * S::load(direction + l);
  };
  V even = {}, odd = {};
  std::size_t l = 0;
  for (; l + 2 * S::kWidth <= n_dims; l += 2 * S::kWidth) {
    even += term(l);
    odd += term(l + S::kWidth);
  }
  T rest = 0;
  for (; l < n_dims; ++l) rest += (point[l] - centre[l]) * direction[l];
  return S::sum(even + odd) + rest;
}

template <class T>
static void add_moved(T weight, const T *point, const T *centre, std::size_t n_dims, T *sums) {
  using S = Simd<T>;
  const auto factor = S::splat(weight);
  std::size_t l = 0;
  for (; l + S::kWidth <= n_dims; l += S::kWidth)
    S::store(sums + l, S::load(sums + l) + factor * (S::load(point + l) - S::load(centre + l)));
  for (; l < n_dims; ++l) sums[l] += weight * (point[l] - centre[l]);
}

// Adds a piece of some points to `kSums` vectors of their projections.
template <int kSums>
static inline void add_piece(const float (&moved)[kProjected][kProjectedPiece], std::size_t n,
                             const float *basis, std::size_t n_out, std::size_t at,
                             float *const *out) {
  using S = Simd<float>;
  S::V sums[kProjected][kSums] = {};
  for (std::size_t l = 0; l < n; ++l) {
    S::V row[kSums];
    for (int k = 0; k < kSums; ++k) row[k] = S::load(basis + l * n_out + at + k * S::kWidth);
#pragma GCC unroll 4
    for (int p = 0; p < kProjected; ++p)
      for (int k = 0; k < kSums; ++k) sums[p][k] += S::splat(moved[p][l]) * row[k];
  }
  for (int p = 0; p < kProjected; ++p)
    for (int k = 0; k < kSums; ++k) {
      float *to = out[p] + at + k * S::kWidth;
      S::store(to, S::load(to) + sums[p][k]);
    }
}

template <class T>
static void project(const T *const *points, const double *centre, std::size_t n_dims,
                    const float *basis, std::size_t n_out, float *const *out) {
  constexpr std::size_t kWidth = Simd<float>::kWidth;
  for (int p = 0; p < kProjected; ++p)
    for (std::size_t s = 0; s < n_out; ++s) out[p][s] = 0;
  float moved[kProjected][kProjectedPiece];
  for (std::size_t first = 0; first < n_dims; first += kProjectedPiece) {
    const std::size_t n = n_dims - first < kProjectedPiece ? n_dims - first : kProjectedPiece;
    for (int p = 0; p < kProjected; ++p)
      for (std::size_t l = 0; l < n; ++l)
        moved[p][l] = float(double(points[p][first + l]) - centre[first + l]);
    const float *rows = basis + first * n_out;
    std::size_t s = 0;
    for (; s + 2 * kWidth <= n_out; s += 2 * kWidth) add_piece<2>(moved, n, rows, n_out, s, out);
    for (; s < n_out; s += kWidth) add_piece<1>(moved, n, rows, n_out, s, out);
  }
}

// As many independent multiply-adds per round as the micro tile has accumulators, and nothing else.
template <class T>
static double fused_multiply_adds(std::size_t rounds) {
  using S = Simd<T>;
  using V = typename S::V;
  V acc[kRows * kVectors];
  const V a = S::splat(T(0.999)), b = S::splat(T(0.001));
  for (int i = 0; i < kRows * kVectors; ++i) acc[i] = S::splat(T(i));
  for (std::size_t k = 0; k < rounds; ++k) {
#pragma GCC unroll 32
    for (int i = 0; i < kRows * kVectors; ++i) acc[i] = acc[i] * a + b;
  }
  V total = {};
  for (int i = 0; i < kRows * kVectors; ++i) total += acc[i];
  return double(S::sum(total));
}

template <class T>
constexpr TypedKernels<T> typed_kernels() {
  return {Simd<T>::kWidth,
          kRows,
          Simd<T>::kKeys,
          product<T>,
          sampled<T>,
          pilot<T>,
          reduced<T>,
          attend<T>,
          hits<T>,
          draw_values<T>,
          softmax_tile<T>,
          key_lengths<T>,
          matches,
          cell_row,
          pack_row<T>,
          pack_four<T>,
          project<T>,
          add_outer<T>,
          quadratic<T>,
          sum_lanes<T>,
          exp_array<T>,
          power_of_two_array<T>,
          largest_magnitude<T>,
          squared_distance<T>,
          squared_norm<T>,
          projection<T>,
          add_moved<T>,
          fused_multiply_adds<T>,
          double(kRows) * kVectors * Simd<T>::kWidth,
          add_moments<T>,
          pack_values<T>,
          smooth_moments,
          draw_probabilities};
}

}  // namespace AKMV_ISA

#define AKMV_CONCATENATE(a, b) a##b
#define AKMV_TABLE(isa) AKMV_CONCATENATE(isa, _kernels)
extern const Kernels AKMV_TABLE(AKMV_ISA);
const Kernels AKMV_TABLE(AKMV_ISA) = {AKMV_ISA::typed_kernels<float>(),
                                      AKMV_ISA::typed_kernels<double>()};

}  // namespace akmv
