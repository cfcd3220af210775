// Searches for near pairs.
#include "../neighbours/cell_squares.hpp"
#include "../neighbours/cells.hpp"
#include "../neighbours/dense_hits.hpp"
#include "../neighbours/expansion.hpp"
#include "../neighbours/merging.hpp"
#include "../neighbours/projection.hpp"
#include "../neighbours/sketches.hpp"
#include "../neighbours/tilings.hpp"
#include "../neighbours/tree.hpp"
#include "backend.hpp"
#include "module.hpp"
#include "records.hpp"

namespace akmv::bindings {
namespace {

struct SketchesRecord : Record {
  static constexpr auto kName = nb::detail::const_name("Sketches");
  Matrix<const float> queries, keys;
  Int32s query_index, key_index;
  Floats radius_squared;

  void read(Fields &from) {
    from("queries", queries)("query_index", query_index)("radius_squared", radius_squared);
    from("keys", keys)("key_index", key_index);
  }

  Sketches of_queries() const {
    return {queries.data(), query_index.data(), radius_squared.data(), queries.shape(1)};
  }
  /// Keys look for queries only where both are the same points.
  Sketches of_keys(bool mirrored) const {
    return {keys.data(), key_index.data(), mirrored ? radius_squared.data() : nullptr,
            keys.shape(1)};
  }
};

struct ExpansionRecord : Record {
  static constexpr auto kName = nb::detail::const_name("Expansion");
  Int32s order;
  float least = 0;
  int width = 0;
  bool of_keys = false;
  double threshold = 0;

  void read(Fields &from) {
    from("order", order)("least", least)("width", width)("of_keys", of_keys)("threshold",
                                                                             threshold);
  }

  Expansion view() const { return {order.data(), order.size(), least, width, of_keys, threshold}; }
};

struct CellMomentsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("CellMoments");
  Matrix<const float> mean, variance;
  Floats weight;
  Int64s start;

  void read(Fields &from) {
    from("mean", mean)("variance", variance)("weight", weight)("start", start);
  }

  CellMoments view() const {
    return {mean.data(),   variance.data(), mean.shape(0),     mean.shape(1),
            weight.data(), start.data(),    start.shape(0) - 1};
  }
};

void bound_random_tiling(Matrix<const float> key_projections, Matrix<const float> query_projections,
                         const EmptyTiling &tiling, const Backend &backend) {
  backend.run([&](const Poll &poll) {
    random_tiling(rows_of(key_projections), rows_of(query_projections), backend.threads, poll,
                  tiling.view());
  });
}

template <class T>
void bound_principal_tiling(Matrix<const T> keys, Matrix<const T> queries, int depth,
                            const EmptyTiling &tiling, const Backend &backend) {
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) {
    principal_tiling(rows_of(keys), rows_of(queries), depth, table, backend.threads, poll,
                     tiling.view());
  });
}

template <class T>
nb::tuple bound_tile_hits(const GeometryRecord<T> &geometry, const KnownTiling &tiling, T floor,
                          const FoundPairsRecord &known, const Backend &backend) {
  const auto &table = backend.typed<T>();
  PairLists parts;
  backend.run([&](const Poll &poll) {
    tile_hits(geometry.view(), tiling.view(), floor, known.view(), table, backend.threads, poll,
              parts);
  });
  return new_pairs(std::move(parts));
}

template <class T>
void bound_project(Matrix<const T> points, Int32s index, Doubles centre, Matrix<const float> basis,
                   Matrix<float> out, const Backend &backend) {
  const auto &table = backend.typed<T>();
  const Listed<T> listed{rows_of(points), index.data(), index.shape(0)};
  backend.run([&](const Poll &poll) {
    project(listed, centre.data(), rows_of(basis), table, backend.threads, poll, out.data());
  });
}

template <class T>
nb::tuple bound_cell_pairs(const PairKernelRecord<T> &kernel, double threshold,
                           const SketchesRecord &sketches, const KnownTiling &tiling, bool mirrored,
                           const FoundPairsRecord &known, const Backend &backend) {
  const CellSearch search{sketches.of_queries(), sketches.of_keys(mirrored), tiling.view(),
                          mirrored, threshold};
  const Kernels &table = kernels(backend.isa);
  PairLists parts;
  backend.run([&](const Poll &poll) {
    cell_pairs(kernel.view(), search, known.view(), table, backend.threads, poll, parts);
  });
  return new_pairs(std::move(parts));
}

template <class T>
nb::tuple bound_neighbours_of_neighbours(const PairKernelRecord<T> &kernel,
                                         const FoundPairsRecord &known,
                                         const ExpansionRecord &expansion, const Backend &backend) {
  const auto &table = backend.typed<T>();
  PairLists parts;
  backend.run([&](const Poll &poll) {
    neighbours_of_neighbours(kernel.view(), known.view(), expansion.view(), table, backend.threads,
                             poll, parts);
  });
  return new_pairs(std::move(parts));
}

template <class T>
void bound_nearest_keys(const GeometryRecord<T> &geometry, Matrix<std::int32_t> out,
                        const Backend &backend) {
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) {
    nearest_keys(geometry.view(), out.shape(1), table, backend.threads, poll, out.data());
  });
}

template <class T>
nb::tuple bound_linked_pairs(const PairKernelRecord<T> &kernel, const FoundPairsRecord &known,
                             const FoundPairsRecord &links, std::size_t width, double threshold,
                             const Backend &backend) {
  const auto &table = backend.typed<T>();
  PairLists parts;
  backend.run([&](const Poll &poll) {
    linked_pairs(kernel.view(), known.view(), links.view(), width, threshold, table,
                 backend.threads, poll, parts);
  });
  return new_pairs(std::move(parts));
}

nb::tuple bound_merge_pairs(const FoundPairsRecord &known, Int32s rows, Int32s cols, Floats values,
                            const Backend &backend) {
  const ListedPairs fresh{rows.data(), cols.data(), values.data(), rows.shape(0)};
  Union all;
  backend.run([&](const Poll &poll) {
    merge_pairs(known.n_queries(), known.view(), fresh, backend.threads, poll, all);
  });
  return nb::make_tuple(handed_over(std::move(all.indptr)), handed_over(std::move(all.cols)),
                        handed_over(std::move(all.values)));
}

void bound_cell_squares(const CellMomentsRecord &queries, const CellMomentsRecord &keys,
                        Matrix<float> out, const Backend &backend) {
  const auto &table = backend.typed<float>();
  backend.run([&](const Poll &poll) {
    cell_squares(queries.view(), keys.view(), table, backend.threads, poll, out.data());
  });
}

template <class T>
void bind_typed(nb::module_ &m) {
  m.def("principal_tiling", &bound_principal_tiling<T>, "keys"_a.noconvert(),
        "queries"_a.noconvert(), "depth"_a, "tiling"_a, "backend"_a);
  m.def("tile_hits", &bound_tile_hits<T>, "geometry"_a, "tiling"_a, "floor"_a, "known"_a,
        "backend"_a);
  m.def("project", &bound_project<T>, "points"_a.noconvert(), "index"_a.noconvert(),
        "centre"_a.noconvert(), "basis"_a.noconvert(), "out"_a.noconvert(), "backend"_a);
  m.def("cell_pairs", &bound_cell_pairs<T>, "kernel"_a, "threshold"_a, "sketches"_a, "tiling"_a,
        "mirrored"_a, "known"_a, "backend"_a);
  m.def("neighbours_of_neighbours", &bound_neighbours_of_neighbours<T>, "kernel"_a, "known"_a,
        "expansion"_a, "backend"_a);
  m.def("nearest_keys", &bound_nearest_keys<T>, "geometry"_a, "out"_a.noconvert(), "backend"_a);
  m.def("linked_pairs", &bound_linked_pairs<T>, "kernel"_a, "known"_a, "links"_a, "width"_a,
        "threshold"_a, "backend"_a);
}

}  // namespace

void bind_neighbours(nb::module_ &m) {
  bind_typed<float>(m);
  bind_typed<double>(m);
  m.def("random_tiling", &bound_random_tiling, "key_projections"_a.noconvert(),
        "query_projections"_a.noconvert(), "tiling"_a, "backend"_a);
  m.def("cell_squares", &bound_cell_squares, "queries"_a, "keys"_a, "out"_a.noconvert(),
        "backend"_a);
  m.def("merge_pairs", &bound_merge_pairs, "known"_a, "rows"_a.noconvert(), "cols"_a.noconvert(),
        "values"_a.noconvert(), "backend"_a);
}

}  // namespace akmv::bindings
