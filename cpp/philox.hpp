// Philox4x64-10 (Salmon, Moraes, Dror, Shaw 2011): random words as a pure function of a key and a
// counter, so that any draw can be made again, in any order, on any thread.
#pragma once

#include <array>
#include <cstdint>

namespace akmv {

using Philox = std::array<std::uint64_t, 4>;

inline Philox philox4x64(Philox counter, std::array<std::uint64_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const auto a = static_cast<unsigned __int128>(0xD2E7470EE14C6C93u) * counter[0];
    const auto b = static_cast<unsigned __int128>(0xCA5A826395121157u) * counter[2];
    counter = {std::uint64_t(b >> 64) ^ counter[1] ^ key[0], std::uint64_t(b),
               std::uint64_t(a >> 64) ^ counter[3] ^ key[1], std::uint64_t(a)};
    key[0] += 0x9E3779B97F4A7C15u;
    key[1] += 0xBB67AE8584CAA73Bu;
  }
  return counter;
}

}  // namespace akmv
