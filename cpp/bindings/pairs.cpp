// The kernel at listed pairs, and lists of pairs.
#include "../pairs.hpp"
#include "backend.hpp"
#include "module.hpp"
#include "records.hpp"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace akmv::bindings {

nb::tuple new_pairs(PairLists parts) {
  std::size_t n = 0;
  for (const auto &part : parts) n += part.size();
  std::vector<std::int32_t> rows, cols;
  std::vector<float> values;
  rows.reserve(n);
  cols.reserve(n);
  values.reserve(n);
  for (auto &part : parts) {
    for (const NewPair &pair : part) {
      rows.push_back(pair.row);
      cols.push_back(pair.col);
      values.push_back(pair.value);
    }
    part = {};  // its memory is needed elsewhere: there may be ten million pairs
  }
#if defined(__GLIBC__)
  // Freed by this thread, it would stay with the threads that made it: up to 100 MB.
  if (n > (std::size_t(1) << 20)) malloc_trim(0);
#endif
  return nb::make_tuple(handed_over(std::move(rows)), handed_over(std::move(cols)),
                        handed_over(std::move(values)));
}

namespace {

template <class T>
void bound_pair_kernel(const PairKernelRecord<T> &kernel, Int64s rows, Int64s cols,
                       Vector<double> out, const Backend &backend) {
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) {
    pair_kernel(kernel.view(), rows.data(), cols.data(), rows.shape(0), table, backend.threads,
                poll, out.data());
  });
}

/// One array from the lists of all tasks.
template <class U>
nb::object joined(const std::vector<Hits> &parts, std::vector<U> Hits::*member) {
  std::vector<U> all;
  std::size_t n = 0;
  for (const Hits &part : parts) n += (part.*member).size();
  all.reserve(n);
  for (const Hits &part : parts)
    all.insert(all.end(), (part.*member).begin(), (part.*member).end());
  return handed_over(std::move(all));
}

template <class T>
nb::tuple bound_scan_ranges(const PairKernelRecord<T> &kernel, Int64s order, Int64s start,
                            Int64s stop, double threshold, const Backend &backend) {
  const auto &table = backend.typed<T>();
  std::vector<Hits> parts;
  backend.run([&](const Poll &poll) {
    scan_ranges(kernel.view(), {order.data(), start.data(), stop.data()}, threshold, table,
                backend.threads, poll, parts);
  });
  return nb::make_tuple(joined(parts, &Hits::rows), joined(parts, &Hits::cols),
                        joined(parts, &Hits::values));
}

template <class T>
void bind_typed(nb::module_ &m) {
  m.def("pair_kernel", &bound_pair_kernel<T>, "kernel"_a, "rows"_a.noconvert(),
        "cols"_a.noconvert(), "out"_a.noconvert(), "backend"_a);
  m.def("scan_ranges", &bound_scan_ranges<T>, "kernel"_a, "order"_a.noconvert(),
        "start"_a.noconvert(), "stop"_a.noconvert(), "threshold"_a, "backend"_a);
}

}  // namespace

void bind_pairs(nb::module_ &m) {
  bind_typed<float>(m);
  bind_typed<double>(m);
}

}  // namespace akmv::bindings
