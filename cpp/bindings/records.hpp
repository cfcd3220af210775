// The named tuples of approxkmv/loops/types.py that several loops take.
#pragma once

#include "record.hpp"

namespace akmv::bindings {

struct KernelFunctionRecord : Record {
  static constexpr auto kName = nb::detail::const_name("KernelFunction");
  int family = 0;
  double parameter = 0;

  void read(Fields &from) { from("family", family)("parameter", parameter); }

  KernelFunction view() const { return {Family(family), parameter}; }
};

template <class T>
struct GeometryRecord : Record {
  static constexpr auto kName = nb::detail::const_name("Geometry");
  Matrix<const T> queries, keys;
  Doubles query_shift, key_shift, centre;
  double factor = 1;
  T slope = 0;
  bool differences = false;
  KernelFunctionRecord function;

  void read(Fields &from) {
    from("queries", queries)("keys", keys)("query_shift", query_shift)("key_shift", key_shift);
    from("centre", centre)("factor", factor)("slope", slope)("differences", differences);
    from("function", function);
  }

  Geometry<T> view() const {
    return {{queries.data(), queries.shape(0), queries.shape(1), centre.data(), factor},
            {keys.data(), keys.shape(0), keys.shape(1), centre.data(), factor},
            query_shift.data(),
            key_shift.data(),
            slope,
            differences,
            function.view()};
  }
};

template <class T>
struct PairKernelRecord : Record {
  static constexpr auto kName = nb::detail::const_name("PairKernel");
  Matrix<const T> queries, keys;
  double slope = 0;
  KernelFunctionRecord function;

  void read(Fields &from) {
    from("queries", queries)("keys", keys)("slope", slope)("function", function);
  }

  PairKernel<T> view() const { return {rows_of(queries), rows_of(keys), slope, function.view()}; }
};

struct FoundPairsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("FoundPairs");
  Int64s indptr;
  Int32s cols;
  Floats values;

  void read(Fields &from) { from("indptr", indptr)("cols", cols)("values", values); }

  std::size_t n_queries() const { return indptr.shape(0) - 1; }
  FoundPairs view() const { return {indptr.data(), cols.data(), values.data()}; }
};

/// Orders of queries and keys and where cells begin, to be read (const) or filled.
template <class Order, class Start>
struct TilingRecord : Record {
  static constexpr auto kName = nb::detail::const_name("Tiling");
  Vector<Order> query_order, key_order;
  Vector<Start> query_start, key_start;

  void read(Fields &from) {
    from("query_order", query_order)("key_order", key_order);
    from("query_start", query_start)("key_start", key_start);
  }

  auto view() const {
    return BasicTiling<Order, Start>{query_order.data(), key_order.data(), query_start.data(),
                                     key_start.data(), key_start.shape(0) - 1};
  }
};
using KnownTiling = TilingRecord<const std::int32_t, const std::int64_t>;
using EmptyTiling = TilingRecord<std::int32_t, std::int64_t>;

}  // namespace akmv::bindings
