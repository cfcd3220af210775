// Memory for vectors: of one call, or kept by the calling thread for its next one.
#pragma once

#include "operands.hpp"

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

namespace akmv {

struct Free {
  void operator()(void *p) const { std::free(p); }
};

/// Bytes on a cache line, not initialised.
inline std::unique_ptr<void, Free> allocate(std::size_t bytes) {
  std::unique_ptr<void, Free> memory(
      std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment));
  if (!memory) throw std::bad_alloc();
  return memory;
}

/// Uninitialised memory on a cache line.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t n) : memory_(allocate(n * sizeof(T))) {}
  T *get() const { return static_cast<T *>(memory_.get()); }

 private:
  std::unique_ptr<void, Free> memory_;
};

struct KeptMemory {
  std::unique_ptr<void, Free> memory;
  std::size_t bytes = 0;
};
inline thread_local KeptMemory kept_memory;

/// The same from what the calling thread kept of its last call, if that was not much. New pages
/// have to be cleared by the system: that was 6 % of the time of eight heads of 512 tokens. A call
/// within a call, from the handler of a signal, finds nothing and makes its own.
template <class T>
class KeptBuffer {
 public:
  explicit KeptBuffer(std::size_t n) : bytes_(n * sizeof(T)) {
    if (kept_memory.memory && kept_memory.bytes >= bytes_) {
      bytes_ = kept_memory.bytes;
      memory_ = std::move(kept_memory.memory);
    } else {
      memory_ = allocate(bytes_);
    }
  }
  ~KeptBuffer() {
    if (bytes_ <= kMost && (!kept_memory.memory || bytes_ > kept_memory.bytes))
      kept_memory = {std::move(memory_), bytes_};
  }
  KeptBuffer(const KeptBuffer &) = delete;
  KeptBuffer &operator=(const KeptBuffer &) = delete;
  T *get() const { return static_cast<T *>(memory_.get()); }

 private:
  static constexpr std::size_t kMost = 16 << 20;

  std::size_t bytes_;
  std::unique_ptr<void, Free> memory_;
};

}  // namespace akmv
