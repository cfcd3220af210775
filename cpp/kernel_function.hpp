// The kernels: functions of half the squared distance h = |q - k|^2 / 2 sigma^2, each in one place.
//
// A formula is written once over a kind of arithmetic: of vectors in the tile (kernel_values.hpp),
// of double precision for single pairs (types.hpp). Arithmetic M has numbers M::V and
//
//   M::of(c)            the number c
//   M::root(v)          the square root
//   M::bits_of(v)       log2(1 + v) for v >= 0, infinite where v is
//   M::bounded(bits)    at most so many bits that 2^-bits is 0
//   M::two_to_minus(b)  2^-b for bounded bits
//
// Powers are those of two: that of e has its factor log2(e) under the root, where it costs nothing.
// Each kernel is 1 at h = 0 exactly, falls, and is 0 at infinity, which is what padding has.
#pragma once

namespace akmv {

// Numbered as in approxkmv/functions.py.
enum class Family : int {
  kGaussian,
  kLaplacian,
  kMatern32,
  kMatern52,
  kRationalQuadratic,
  kLaplacianSlope
};

// Which kernel, and its parameter if it has one.
struct KernelFunction {
  Family family = Family::kGaussian;
  double parameter = 0;
};

// Up to here an alpha of halves is a few products; a logarithm and a power take as long as ten.
constexpr double kMostHalves = 8;

constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;

// exp(-h)
template <class M>
struct Gaussian {
  using V = typename M::V;
  V operator()(V half) const { return M::two_to_minus(M::bounded(half * M::of(kLog2E))); }
};

// exp(-r) with r^2 = 2 h, which is the Matern kernel of order 1/2, too
template <class M>
struct Laplacian {
  using V = typename M::V;
  V operator()(V half) const {
    return M::two_to_minus(M::bounded(M::root(half * M::of(2 * kLog2E * kLog2E))));
  }
};

// exp(-r) / r, and 0 at r = 0: the slope of the Laplacian, for gradients
template <class M>
struct LaplacianSlope {
  using V = typename M::V;
  V operator()(V half) const {
    const V bits = M::root(half * M::of(2 * kLog2E * kLog2E));
    const V value = M::two_to_minus(M::bounded(bits)) * M::of(kLog2E) / bits;
    return half == M::of(0) ? M::of(0) : value;
  }
};

// (1 + a) exp(-a) with a^2 = 3 r^2
template <class M>
struct Matern32 {
  using V = typename M::V;
  V operator()(V half) const {
    const V bits = M::bounded(M::root(half * M::of(6 * kLog2E * kLog2E)));
    return (M::of(1) + bits * M::of(kLn2)) * M::two_to_minus(bits);
  }
};

// (1 + a + a^2 / 3) exp(-a) with a^2 = 5 r^2
template <class M>
struct Matern52 {
  using V = typename M::V;
  V operator()(V half) const {
    const V bits = M::bounded(M::root(half * M::of(10 * kLog2E * kLog2E)));
    const V rest = M::of(kLn2) + bits * M::of(kLn2 * kLn2 / 3);
    return (M::of(1) + bits * rest) * M::two_to_minus(bits);
  }
};

// (1 + h / alpha)^-alpha for an alpha of n_halves / 2: an inverse, perhaps its root, and products.
template <class M>
struct RationalQuadraticOfHalves {
  using V = typename M::V;
  double alpha;
  int n_halves;
  V operator()(V half) const {
    const V inverse = M::of(1) / (M::of(1) + half * M::of(1 / alpha));
    V value = n_halves % 2 == 0 ? inverse : M::root(inverse);
    for (int n = n_halves % 2 == 0 ? 2 : 1; n < n_halves; n += 2) value *= inverse;
    return value;
  }
};

// (1 + h / alpha)^-alpha for any alpha, by logarithm and power
template <class M>
struct RationalQuadratic {
  using V = typename M::V;
  double alpha;
  V operator()(V half) const {
    const V bits = M::bits_of(half * M::of(1 / alpha));
    return M::two_to_minus(M::bounded(bits * M::of(alpha)));
  }
};

// Hands the formula of a kernel to `use`.
template <class M, class Use>
inline void with_formula(const KernelFunction &function, const Use &use) {
  switch (function.family) {
    case Family::kGaussian:
      return use(Gaussian<M>{});
    case Family::kLaplacian:
      return use(Laplacian<M>{});
    case Family::kMatern32:
      return use(Matern32<M>{});
    case Family::kMatern52:
      return use(Matern52<M>{});
    case Family::kLaplacianSlope:
      return use(LaplacianSlope<M>{});
    case Family::kRationalQuadratic: {
      const double halves = 2 * function.parameter;
      if (halves <= kMostHalves && halves == int(halves))
        return use(RationalQuadraticOfHalves<M>{function.parameter, int(halves)});
      return use(RationalQuadratic<M>{function.parameter});
    }
  }
}

}  // namespace akmv
