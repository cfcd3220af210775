// Structs of arrays and numbers, read from a Python object by the names of its attributes.
//
// A loop takes a geometry, a plan of draws and a few more such structs instead of thirty numbers in
// a row. Python hands over its own named tuples; there is no order to get wrong, and a missing or
// mistyped field is a TypeError. A record derives from Record, names its fields in `read` and holds
// what it reads: arrays stay alive as long as it does.
#pragma once

#include "arrays.hpp"

#include <nanobind/stl/optional.h>

#include <type_traits>

namespace akmv::bindings {

struct Record {};

template <class Array>
struct IsArray : std::false_type {};
template <class... Args>
struct IsArray<nb::ndarray<Args...>> : std::true_type {};
template <class Array>
struct IsArray<std::optional<Array>> : IsArray<Array> {};

/// The attributes of a Python object, handed to the fields of a record one after the other.
class Fields {
 public:
  Fields(nb::handle object, std::uint32_t flags, nb::detail::cleanup_list *cleanup)
      : object_(object), flags_(flags), cleanup_(cleanup) {}

  template <class Field>
  Fields &operator()(const char *name, Field &field) {
    if (!complete_) return *this;
    const nb::object value = nb::steal(PyObject_GetAttrString(object_.ptr(), name));
    complete_ = value.is_valid() && cast(value, field);
    if (!value.is_valid()) PyErr_Clear();
    return *this;
  }

  bool complete() const { return complete_; }

 private:
  template <class Field>
  bool cast(nb::handle value, Field &field) const {
    using Caster = nb::detail::make_caster<Field>;
    // Numbers may be converted, arrays are taken as they are: a copy would not be written back.
    constexpr std::uint32_t kConvert = std::uint32_t(nb::detail::cast_flags::convert);
    Caster caster;
    if (!caster.from_python(value, IsArray<Field>::value ? flags_ & ~kConvert : flags_, cleanup_))
      return false;
    if (!caster.template can_cast<Field>()) return false;
    field = caster.operator nb::detail::cast_t<Field>();
    return true;
  }

  nb::handle object_;
  std::uint32_t flags_;
  nb::detail::cleanup_list *cleanup_;
  bool complete_ = true;
};

}  // namespace akmv::bindings

namespace nanobind::detail {

template <class R>
struct type_caster<R, enable_if_t<std::is_base_of_v<akmv::bindings::Record, R>>> {
  NB_TYPE_CASTER(R, const_name("object with the attributes of ") + R::kName)

  template <class Flags>
  bool from_python(handle source, Flags flags, cleanup_list *cleanup) noexcept {
    akmv::bindings::Fields fields(source, flags, cleanup);
    value.read(fields);
    return fields.complete();
  }
};

}  // namespace nanobind::detail
