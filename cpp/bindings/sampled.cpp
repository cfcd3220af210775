// Pilot rows, and products from drawn keys and drawn pairs.
#include "../samplers/sampled.hpp"
#include "../samplers/pilot.hpp"
#include "../samplers/reduced.hpp"
#include "backend.hpp"
#include "module.hpp"
#include "records.hpp"

namespace akmv::bindings {
namespace {

template <class T>
struct PilotRowsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("PilotRows");
  Int32s rows, key_order;
  Int64s tile_start;
  Vector<const T> weights;
  std::optional<Vector<const T>> x;
  T threshold = 0;

  void read(Fields &from) {
    from("rows", rows)("key_order", key_order)("tile_start", tile_start);
    from("weights", weights)("x", x)("threshold", threshold);
  }
};

template <class T>
struct DrawPlanRecord : Record {
  static constexpr auto kName = nb::detail::const_name("DrawPlan");
  Int32s query_order, key_order;
  Int64s block_start, tile_start;
  Matrix<const float> rate;
  Vector<const T> size;
  std::uint64_t seed = 0, stream = 0;

  void read(Fields &from) {
    from("query_order", query_order)("block_start", block_start);
    from("key_order", key_order)("tile_start", tile_start);
    from("rate", rate)("size", size)("seed", seed)("stream", stream);
  }

  DrawPlan<T> view() const {
    return {query_order.data(),
            block_start.data(),
            block_start.shape(0) - 1,
            key_order.data(),
            tile_start.data(),
            tile_start.shape(0) - 1,
            rate.data(),
            size.data(),
            size.shape(0),
            seed,
            stream};
  }
};

template <class T>
struct SmoothPartRecord : Record {
  static constexpr auto kName = nb::detail::const_name("SmoothPart");
  Matrix<const T> moments;
  Stack<const float> coefficients;

  void read(Fields &from) { from("moments", moments)("coefficients", coefficients); }
};

template <class T>
struct SampledSumsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("SampledSums");
  Matrix<T> out;
  Vector<double> variance, mass;
  Vector<std::int64_t> n_drawn;

  void read(Fields &from) {
    from("out", out)("variance", variance)("mass", mass)("n_drawn", n_drawn);
  }

  SampledSums<T> view() const { return {out.data(), variance.data(), mass.data(), n_drawn.data()}; }
};

template <class T>
struct WholePointsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("WholePoints");
  PairKernelRecord<T> kernel;
  Int32s query_index, key_index, own;

  void read(Fields &from) {
    kernel.read(from);
    from("query_index", query_index)("key_index", key_index)("own", own);
  }
};

template <class T>
struct PairDrawsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("PairDraws");
  Vector<const T> size;
  T floor = 0, rate = 0;
  double least = 0;
  std::uint64_t seed = 0, stream = 0;

  void read(Fields &from) {
    from("size", size)("floor", floor)("rate", rate)("least", least)("seed", seed)("stream",
                                                                                   stream);
  }
};

template <class T>
nb::tuple bound_pilot_rows(const GeometryRecord<T> &geometry, const PilotRowsRecord<T> &rows,
                           Vector<double> sums, const Backend &backend) {
  const PilotRows<T> pilot{rows.rows.data(),
                           rows.rows.shape(0),
                           rows.key_order.data(),
                           rows.tile_start.data(),
                           rows.tile_start.shape(0) - 1,
                           rows.weights.data(),
                           data_or_null(rows.x),
                           rows.threshold,
                           sums.data()};
  const auto &table = backend.typed<T>();
  PairLists parts;
  backend.run([&](const Poll &poll) {
    pilot_rows(geometry.view(), pilot, table, backend.threads, poll, parts);
  });
  return new_pairs(std::move(parts));
}

template <class T>
void bound_tile_moments(const GeometryRecord<T> &geometry, Int32s key_order, Int64s tile_start,
                        Vector<const T> weights, Matrix<T> out, const Backend &backend) {
  const KeyTiles<T> tiles{key_order.data(), tile_start.data(), tile_start.shape(0) - 1,
                          weights.data()};
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) {
    tile_moments(geometry.view(), tiles, table, backend.threads, poll, out.data());
  });
}

template <class T>
void bound_sampled_product(const GeometryRecord<T> &geometry, const DrawPlanRecord<T> &plan,
                           Int64s blocks, const FoundPairsRecord &found,
                           const std::optional<SmoothPartRecord<T>> &smooth, Matrix<const T> x,
                           const SampledSumsRecord<T> &sums, const Backend &backend) {
  SmoothPart<T> part{nullptr, nullptr};
  if (smooth) part = {smooth->moments.data(), smooth->coefficients.data()};
  const Drawing<T> drawing{geometry.view(), plan.view(), found.view(), part, rows_of(x)};
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) {
    sampled_product(drawing, blocks.data(), blocks.size(), table, backend.threads, poll,
                    sums.view());
  });
}

template <class T>
void bound_reduced_product(const GeometryRecord<T> &few, const WholePointsRecord<T> &whole,
                           const PairDrawsRecord<T> &draws, Matrix<const T> x,
                           const SampledSumsRecord<T> &sums, const Backend &backend) {
  const Reduction<T> reduction{few.view(),
                               whole.kernel.view(),
                               whole.query_index.data(),
                               whole.key_index.data(),
                               whole.own.data(),
                               x.data(),
                               x.shape(1),
                               draws.size.data(),
                               draws.floor,
                               draws.rate,
                               draws.least,
                               draws.seed,
                               draws.stream};
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) {
    reduced_product(reduction, table, backend.threads, poll, sums.view());
  });
}

template <class T>
void bind_typed(nb::module_ &m) {
  m.def("pilot_rows", &bound_pilot_rows<T>, "geometry"_a, "rows"_a, "sums"_a.noconvert(),
        "backend"_a);
  m.def("tile_moments", &bound_tile_moments<T>, "geometry"_a, "key_order"_a.noconvert(),
        "tile_start"_a.noconvert(), "weights"_a.noconvert(), "out"_a.noconvert(), "backend"_a);
  m.def("sampled_product", &bound_sampled_product<T>, "geometry"_a, "plan"_a,
        "blocks"_a.noconvert(), "found"_a, "smooth"_a.none(), "x"_a.noconvert(), "sums"_a,
        "backend"_a);
  m.def("reduced_product", &bound_reduced_product<T>, "few"_a, "whole"_a, "draws"_a,
        "x"_a.noconvert(), "sums"_a, "backend"_a);
}

}  // namespace

void bind_sampled(nb::module_ &m) {
  bind_typed<float>(m);
  bind_typed<double>(m);
}

}  // namespace akmv::bindings
