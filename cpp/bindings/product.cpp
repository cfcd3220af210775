// The exact product, and sums over points.
#include "../product.hpp"
#include "backend.hpp"
#include "module.hpp"
#include "records.hpp"

namespace akmv::bindings {
namespace {

template <class T>
struct ExponentsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("Exponents");
  Doubles query_shift, key_shift, query_centre, key_centre;
  double factor = 1;
  T slope = 0, ceiling = 0;
  bool differences = false, online = false, squares = false;
  KernelFunctionRecord function;

  void read(Fields &from) {
    from("query_shift", query_shift)("key_shift", key_shift);
    from("query_centre", query_centre)("key_centre", key_centre)("factor", factor);
    from("slope", slope)("ceiling", ceiling);
    from("differences", differences)("online", online)("squares", squares);
    from("function", function);
  }
};

template <class T>
struct TileSumsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("TileSums");
  Matrix<T> out;
  std::optional<Vector<T>> totals, row_max;

  void read(Fields &from) { from("out", out)("totals", totals)("row_max", row_max); }
};

template <class T>
void bound_tile_product(Matrix<const T> queries, Matrix<const T> keys, Matrix<const T> x,
                        const ExponentsRecord<T> &e, const TileSumsRecord<T> &sums,
                        const Backend &backend) {
  const Geometry<T> geometry{
      {queries.data(), queries.shape(0), queries.shape(1), e.query_centre.data(), e.factor},
      {keys.data(), keys.shape(0), keys.shape(1), e.key_centre.data(), e.factor},
      e.query_shift.data(),
      e.key_shift.data(),
      e.slope,
      e.differences,
      e.function.view()};
  const Product<T> product{geometry,
                           e.ceiling,
                           x.data(),
                           x.shape(1),
                           e.online,
                           e.squares,
                           sums.out.data(),
                           data_or_null(sums.totals),
                           data_or_null(sums.row_max)};
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) { tile_product(product, table, backend.threads, poll); });
}

template <class T>
void bound_squared_norms(Matrix<const T> points, Doubles centre, double factor, Vector<double> out,
                         const Backend &backend) {
  const Points<T> moved{points.data(), points.shape(0), points.shape(1), centre.data(), factor};
  const auto &table = backend.typed<T>();
  backend.run(
      [&](const Poll &poll) { squared_norms(moved, table, backend.threads, poll, out.data()); });
}

template <class T>
void bound_column_sums(Matrix<const T> x, Vector<double> out, const Backend &backend) {
  backend.run([&](const Poll &poll) {
    column_sums(x.data(), x.shape(0), x.shape(1), backend.threads, poll, out.data());
  });
}

template <class T>
void bind_typed(nb::module_ &m) {
  m.def("tile_product", &bound_tile_product<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "x"_a.noconvert(), "exponents"_a, "sums"_a, "backend"_a);
  m.def("squared_norms", &bound_squared_norms<T>, "points"_a.noconvert(), "centre"_a.noconvert(),
        "factor"_a, "out"_a.noconvert(), "backend"_a);
  m.def("column_sums", &bound_column_sums<T>, "x"_a.noconvert(), "out"_a.noconvert(), "backend"_a);
}

}  // namespace

void bind_product(nb::module_ &m) {
  bind_typed<float>(m);
  bind_typed<double>(m);
}

}  // namespace akmv::bindings
