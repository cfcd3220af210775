// Mistakes that each sanitizer must report, called before the tests. Never part of the package.
#include "../../cpp/threads.hpp"

#include <nanobind/nanobind.h>

#include <climits>
#include <vector>

namespace nb = nanobind;

namespace {

volatile int one = 1;  // the compiler must not see through these

int read_past_the_end() {
  const std::vector<int> some(8, 0);
  return some.data()[7 + one];
}

int signed_overflow() { return INT_MAX + one; }

/// Two threads of our own pool write to one number.
int race() {
  nb::gil_scoped_release released;
  int shared = 0;
  akmv::parallel_for(
      20000, 2,
      [&](std::size_t, int) {
        for (int i = 0; i < 100; ++i) shared += one;
      },
      [] { return false; });
  return shared;
}

}  // namespace

void bind_planted_bugs(nb::module_ &m) {
  m.def("planted_read_past_the_end", &read_past_the_end);
  m.def("planted_signed_overflow", &signed_overflow);
  m.def("planted_race", &race);
}
