// Which instruction sets the processor has and the operating system saves the registers of.
//
// __builtin_cpu_supports answers the same, but calls a run-time library that some toolchains
// (Zig's, with which wheels are built) do not bring.
#pragma once

#if AKMV_X86
#include <cpuid.h>

namespace akmv {

struct Cpu {
  bool avx2 = false;    // with fused multiply-adds
  bool avx512 = false;  // F, DQ, BW and VL
};

inline Cpu this_cpu() {
  unsigned a, b, c, d, features;
  constexpr unsigned kFma = 1u << 12, kSavesRegisters = 1u << 27;
  if (!__get_cpuid(1, &a, &b, &features, &d) || !(features & kSavesRegisters)) return {};
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  unsigned saved, high;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  constexpr unsigned kSse = 1u << 1, kAvx = 1u << 2, kAvx512 = 7u << 5;  // bits of `saved`
  constexpr unsigned kAvx2 = 1u << 5;                                    // bits of leaf 7
  constexpr unsigned kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
  const auto all = [](unsigned of, unsigned bits) { return (of & bits) == bits; };
  const bool avx2 = all(saved, kSse | kAvx) && all(features, kFma) && all(b, kAvx2);
  return {avx2, avx2 && all(saved, kAvx512) && all(b, kF | kDq | kBw | kVl)};
}

}  // namespace akmv
#endif
