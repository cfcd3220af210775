// NumPy arrays as the loops take them and give them back: C-ordered, on the CPU, never converted.
#pragma once

#include "../types.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace akmv::bindings {

namespace nb = nanobind;

template <class T, int kDims>
using Array = nb::ndarray<T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
template <class T>
using Vector = Array<T, 1>;
template <class T>
using Matrix = Array<T, 2>;
template <class T>
using Stack = Array<T, 3>;
using Int32s = Vector<const std::int32_t>;
using Int64s = Vector<const std::int64_t>;
using Floats = Vector<const float>;
using Doubles = Vector<const double>;

template <class T>
Rows<T> rows_of(const Matrix<const T> &m) {
  return {m.data(), m.shape(0), m.shape(1)};
}

template <class Array>
auto data_or_null(const std::optional<Array> &array) {
  return array ? array->data() : nullptr;
}

/// A vector handed over to NumPy.
template <class U>
nb::object handed_over(std::vector<U> &&values) {
  auto *owned = new std::vector<U>(std::move(values));
  nb::capsule owner(owned, [](void *p) noexcept { delete static_cast<std::vector<U> *>(p); });
  return nb::cast(nb::ndarray<nb::numpy, U, nb::ndim<1>>(owned->data(), {owned->size()}, owner));
}

/// Rows, columns and values of all lists, in the order of the tasks. Empties the lists.
nb::tuple new_pairs(PairLists parts);

}  // namespace akmv::bindings
