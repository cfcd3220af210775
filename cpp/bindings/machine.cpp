// What the machine can do, random words, and single functions of an instruction set.
#include "../magnitude.hpp"
#include "../philox.hpp"
#include "backend.hpp"
#include "module.hpp"

#include <nanobind/stl/vector.h>

#include <chrono>

namespace akmv::bindings {
namespace {

template <class T>
void bound_exp(Vector<const T> x, Vector<T> out, const Backend &backend) {
  backend.typed<T>().exp(x.data(), out.data(), x.shape(0));
}

template <class T>
void bound_power_of_two(Vector<const T> x, Vector<T> out, const Backend &backend) {
  backend.typed<T>().power_of_two(x.data(), out.data(), x.shape(0));
}

template <class T>
T bound_largest_magnitude(Vector<const T> x, const Backend &backend) {
  T found;
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) {
    largest_magnitude(x.data(), x.shape(0), table, backend.threads, poll, found);
  });
  return found;
}

void bound_philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t first,
                  Matrix<std::uint64_t> out) {
  for (std::size_t i = 0; i < out.shape(0); ++i) {
    const std::uint64_t low = first + i, carry = low < first;
    const Philox words = philox4x64({low, carry, 0, 0}, {seed, stream});
    for (std::size_t w = 0; w < 4; ++w) out.data()[4 * i + w] = words[w];
  }
}

/// Multiply-adds per second of one core, doing nothing else for about `seconds`.
template <class T>
double bound_fma_rate(double seconds, const std::string &isa) {
  const auto &table = kernels(isa).typed<T>();
  using Clock = std::chrono::steady_clock;
  nb::gil_scoped_release released;
  const auto rate = [&](std::size_t rounds) {
    const auto start = Clock::now();
    volatile double keep = table.fused_multiply_adds(rounds);
    (void)keep;
    const std::chrono::duration<double> spent = Clock::now() - start;
    return double(rounds) * table.multiply_adds_per_round / spent.count();
  };
  const double guess = rate(100000) / table.multiply_adds_per_round;
  double best = 0;
  for (int i = 0; i < 5; ++i) best = std::max(best, rate(std::size_t(guess * seconds / 5) + 1));
  return best;
}

template <class T>
void bind_typed(nb::module_ &m) {
  m.def("exp", &bound_exp<T>, "x"_a.noconvert(), "out"_a.noconvert(), "backend"_a);
  m.def("power_of_two", &bound_power_of_two<T>, "x"_a.noconvert(), "out"_a.noconvert(),
        "backend"_a);
  m.def("largest_magnitude", &bound_largest_magnitude<T>, "x"_a.noconvert(), "backend"_a);
}

}  // namespace

void bind_machine(nb::module_ &m) {
  bind_typed<float>(m);
  bind_typed<double>(m);
  m.def("philox", &bound_philox, "seed"_a, "stream"_a, "first"_a, "out"_a.noconvert());
  m.def("available_isas", &available_isas);
  m.def("fma_rate_float32", &bound_fma_rate<float>, "seconds"_a, "isa"_a);
  m.def("fma_rate_float64", &bound_fma_rate<double>, "seconds"_a, "isa"_a);
  m.def("default_thread_limit", &default_thread_limit);
}

}  // namespace akmv::bindings
