// Vector types of one instruction set, from the compiler's vector extensions.
//
// This header is compiled once per instruction set, each time inside its own namespace AKMV_ISA, so
// that no inline function compiled with wide instructions can be picked by the linker for a narrow
// machine. For the same reason the per-set sources use nothing from the standard library but sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(AKMV_NEON)
#include <arm_neon.h>
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#if defined(__AVX512F__)
#define AKMV_INTRINSIC(name) _mm512_##name
#elif defined(__AVX2__) && !defined(AKMV_WIDE)
#define AKMV_INTRINSIC(name) _mm256_##name
#elif !defined(AKMV_WIDE)
#define AKMV_INTRINSIC(name) _mm_##name
#endif
#endif

namespace akmv {
namespace AKMV_ISA {

#if defined(__AVX512F__) || defined(AKMV_WIDE)
constexpr int kVectorBytes = 64;
constexpr int kRows =
    12;  // 12 x 2 accumulators of 32 registers; queries come as embedded broadcasts
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kRows = 6;  // 6 x 2 accumulators + 2 keys + 1 broadcast = 15 of 16 registers
#elif defined(AKMV_NEON)
constexpr int kVectorBytes = 16;
// 8 x 2 accumulators, enough for four pipes of latency 4, + 2 keys + 2 of queries. With 12 rows, or
// two steps at a time, GCC 12 spills registers where it takes differences.
constexpr int kRows = 8;
#else
constexpr int kVectorBytes = 16;
constexpr int kRows = 4;  // no fused multiply-add: the product needs a register of its own
#endif
constexpr int kVectors = 2;  // key vectors per micro tile
#if defined(AKMV_NEON)
constexpr int kSteps = 1;  // dimensions per turn of its loop
#else
constexpr int kSteps = 2;
#endif

// Lanes of one vector, or of two one after the other, in a new order. Only GCC has this for places
// that are a vector; Clang, which reads the code for its checks, goes lane by lane.
#if defined(__clang__)
template <class V, class Places>
static inline V shuffled(V a, V b, Places places) {
  constexpr int kLanes = int(sizeof(V) / sizeof(a[0]));
  V out{};
  for (int i = 0; i < kLanes; ++i)
    out[i] = places[i] < kLanes ? a[places[i]] : b[places[i] - kLanes];
  return out;
}
#define AKMV_SHUFFLED(a, b, places) shuffled(a, b, places)
#else
#define AKMV_SHUFFLED(a, b, places) __builtin_shuffle(a, b, places)
#endif

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = std::int32_t;
};
template <>
struct Bits<double> {
  using type = std::int64_t;
};

template <class T>
struct Simd {
  typedef T V __attribute__((vector_size(kVectorBytes)));
  typedef typename Bits<T>::type I __attribute__((vector_size(kVectorBytes)));
  // Dereferencing an unaligned vector type: a memcpy of 32 bytes becomes two halves through the
  // stack with GCC 12, eight times slower.
  typedef T Unaligned __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));

  static constexpr int kWidth = kVectorBytes / int(sizeof(T));
  static constexpr int kKeys = kVectors * kWidth;  // keys per packed group

  static inline V load(const T *p) { return *reinterpret_cast<const Unaligned *>(p); }
  static inline void store(T *p, V v) { *reinterpret_cast<Unaligned *>(p) = v; }
  static inline V splat(T a) { return a - V{}; }
  // a > b ? a : b and a < b ? a : b, so b where one of them is not a number. On x86 that is an
  // instruction each; from the conditional expression GCC makes a comparison and a choice.
#if defined(AKMV_INTRINSIC)
  static inline V larger(V a, V b) {
    if constexpr (sizeof(T) == 4)
      return AKMV_INTRINSIC(max_ps)(a, b);
    else
      return AKMV_INTRINSIC(max_pd)(a, b);
  }
  static inline V smaller(V a, V b) {
    if constexpr (sizeof(T) == 4)
      return AKMV_INTRINSIC(min_ps)(a, b);
    else
      return AKMV_INTRINSIC(min_pd)(a, b);
  }
#else
  static inline V larger(V a, V b) { return a > b ? a : b; }
  static inline V smaller(V a, V b) { return a < b ? a : b; }
#endif
  // Rounded correctly; a lane at a time, which compilers make an instruction of where there is one.
  static inline V root(V v) {
#if defined(AKMV_INTRINSIC)
    if constexpr (sizeof(T) == 4)
      return AKMV_INTRINSIC(sqrt_ps)(v);
    else
      return AKMV_INTRINSIC(sqrt_pd)(v);
#else
    for (int i = 0; i < kWidth; ++i)
      v[i] = T(__builtin_sqrt(v[i]));  // of single precision, too: its root is rounded once
    return v;
#endif
  }
  // Both keep a NaN in `a`. Where one operand is not a number Arm's instructions return it, so they
  // will do here and not above.
#if defined(AKMV_NEON)
  static inline V at_most(V a, V limit) {
    if constexpr (sizeof(T) == 4)
      return V(vminq_f32(float32x4_t(a), float32x4_t(limit)));
    else
      return V(vminq_f64(float64x2_t(a), float64x2_t(limit)));
  }
  static inline V at_least(V a, V limit) {
    if constexpr (sizeof(T) == 4)
      return V(vmaxq_f32(float32x4_t(a), float32x4_t(limit)));
    else
      return V(vmaxq_f64(float64x2_t(a), float64x2_t(limit)));
  }
#else
  static inline V at_most(V a, V limit) { return smaller(limit, a); }
  static inline V at_least(V a, V limit) { return larger(limit, a); }
#endif

  // Lanes are added in a fixed order, halves first; in registers, where the way through memory
  // would take longer than a short sum itself.
  static inline T sum(V v) {
    I place;
    for (int i = 0; i < kWidth; ++i) place[i] = i;
#pragma GCC unroll 4
    for (int half = kWidth / 2; half > 0; half /= 2) v += AKMV_SHUFFLED(v, v, place ^ half);
    return v[0];
  }
  static inline T max(V v) {
    T lane[kWidth];
    store(lane, v);
    T m = lane[0];
    for (int i = 1; i < kWidth; ++i) m = lane[i] > m ? lane[i] : (lane[i] != lane[i] ? lane[i] : m);
    return m;
  }
};

}  // namespace AKMV_ISA
}  // namespace akmv
