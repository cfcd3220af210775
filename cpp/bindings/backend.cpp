#include "backend.hpp"

#include "../cpu.hpp"

#include <chrono>

namespace akmv::bindings {
namespace {

bool supported(const std::string &isa) {
  if (isa == "baseline") return true;
#if AKMV_X86
  // "wide" is AVX-512's geometry with AVX2's instructions: slow, never listed nor chosen, there so
  // that tests run that geometry on every machine.
  static const Cpu cpu = this_cpu();
  if (isa == "avx2" || isa == "wide") return cpu.avx2;
  if (isa == "avx512") return cpu.avx512;
#elif AKMV_ARM
  if (isa == "neon") return true;  // part of every 64-bit Arm processor
#endif
  return false;
}

/// Looks for Ctrl-C, and calls `check`, if there is one, which raises when the loop must stop.
/// Needs the GIL, which the running loop has released.
bool interrupted(PyObject *check) {
  nb::gil_scoped_acquire gil;
  if (PyErr_Occurred() || PyErr_CheckSignals() != 0) return true;
  if (check == nullptr) return false;
  PyObject *result = PyObject_CallObject(check, nullptr);
  Py_XDECREF(result);
  return result == nullptr;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> found;
  for (const char *isa : {"baseline", "neon", "avx2", "avx512"})
    if (supported(isa)) found.emplace_back(isa);
  return found;
}

const Kernels &kernels(const std::string &isa) {
  if (!supported(isa))
    throw nb::value_error(("instruction set not available here: " + isa).c_str());
#if AKMV_X86
  if (isa == "avx2") return avx2_kernels;
  if (isa == "avx512") return avx512_kernels;
  if (isa == "wide") return wide_kernels;
#elif AKMV_ARM
  if (isa == "neon") return neon_kernels;
#endif
  return baseline_kernels;
}

void Backend::run(const std::function<void(const Poll &)> &loop) const {
  PyObject *called = check ? check->ptr() : nullptr;
  auto last = std::chrono::steady_clock::now();
  try {
    nb::gil_scoped_release released;
    loop([called, &last] {
      const auto now = std::chrono::steady_clock::now();
      if (now - last < kPollInterval) return false;
      last = now;
      return interrupted(called);
    });
  } catch (const Interrupted &) {
    throw nb::python_error();
  }
}

}  // namespace akmv::bindings
