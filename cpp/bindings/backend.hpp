// How a loop runs: instruction set, threads, and what may end it.
#pragma once

#include "record.hpp"

#include "../threads.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <vector>

namespace akmv::bindings {

std::vector<std::string> available_isas();

/// Functions of one instruction set; a ValueError where this machine does not have it.
const Kernels &kernels(const std::string &isa);

/// approxkmv.loops.compiled.Compiled
struct Backend : Record {
  static constexpr auto kName = nb::detail::const_name("Compiled");
  std::string isa;
  int threads = 1;
  std::optional<nb::callable> check;

  void read(Fields &from) { from("isa", isa)("threads", threads)("check", check); }

  template <class T>
  const TypedKernels<T> &typed() const {
    return kernels(isa).typed<T>();
  }

  /// Runs loop(poll) without the GIL; a Ctrl-C inside it, or what `check` raises, is raised here.
  void run(const std::function<void(const Poll &)> &loop) const;
};

}  // namespace akmv::bindings
