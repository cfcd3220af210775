// The only file that knows both languages: unwraps arrays, releases the GIL, calls one function.
// Shapes and values were checked in Python (approxkmv/_check.py and approxkmv/leaves.py).
#include "cells.hpp"
#include "attention.hpp"
#include "kernels.hpp"
#include "magnitude.hpp"
#include "near.hpp"
#include "pairs.hpp"
#include "philox.hpp"
#include "product.hpp"
#include "pilot.hpp"
#include "reduced.hpp"
#include "sampled.hpp"
#include "sampled_attention.hpp"
#include "threads.hpp"
#include "tree.hpp"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <optional>
#include <string>

namespace nb = nanobind;
using namespace nb::literals;
using namespace akmv;

namespace {

template <class T> using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

bool supported(const std::string &isa) {
  if (isa == "baseline") return true;
#if AKMV_X86
  // "wide" is AVX-512's geometry with AVX2's instructions: slow, never listed nor chosen, there so
  // that tests run that geometry on every machine.
  if (isa == "avx2" || isa == "wide")
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == "avx512")
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#endif
  return false;
}

const Kernels &kernels(const std::string &isa) {
  if (!supported(isa)) throw nb::value_error(("instruction set not available here: " + isa).c_str());
#if AKMV_X86
  if (isa == "avx2") return avx2_kernels;
  if (isa == "avx512") return avx512_kernels;
  if (isa == "wide") return wide_kernels;
#endif
  return baseline_kernels;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> found;
  for (const char *isa : {"baseline", "avx2", "avx512"})
    if (supported(isa)) found.push_back(isa);
  return found;
}

/// Looks for Ctrl-C, and calls `check`, if there is one, which raises when the loop must stop. Needs the
/// GIL, which the running loop has released.
bool interrupted(PyObject *check) {
  nb::gil_scoped_acquire gil;
  if (PyErr_Occurred() || PyErr_CheckSignals() != 0) return true;
  if (check == nullptr) return false;
  PyObject *result = PyObject_CallObject(check, nullptr);
  Py_XDECREF(result);
  return result == nullptr;
}

using Check = std::optional<nb::callable>;

/// Runs `loop` without the GIL; a Ctrl-C inside it, or what `check` raises, is raised here.
template <class Loop> void run(Loop loop, const Check &check = std::nullopt) {
  PyObject *called = check ? check->ptr() : nullptr;
  auto last = std::chrono::steady_clock::now();
  try {
    nb::gil_scoped_release released;
    loop(Poll([called, &last] {
      const auto now = std::chrono::steady_clock::now();
      if (now - last < kPollInterval) return false;
      last = now;
      return interrupted(called);
    }));
  } catch (const Interrupted &) {
    throw nb::python_error();
  }
}

template <class T> T *data_or_null(const std::optional<Vector<T>> &array) {
  return array ? array->data() : nullptr;
}

template <class T>
void bind_tile_product(Matrix<const T> queries, Matrix<const T> keys, Matrix<const T> x,
                       Vector<const double> query_shift, Vector<const double> key_shift,
                       Vector<const double> query_centre, Vector<const double> key_centre,
                       double factor, T slope, T ceiling, bool differences, bool online,
                       bool squares, Matrix<T> out, std::optional<Vector<T>> totals,
                       std::optional<Vector<T>> row_max, const std::string &isa, int n_threads, Check check) {
  const Product<T> product{
      {queries.data(), queries.shape(0), queries.shape(1), query_centre.data(), factor},
      {keys.data(), keys.shape(0), keys.shape(1), key_centre.data(), factor},
      query_shift.data(),
      key_shift.data(),
      x.data(),
      x.shape(1),
      slope,
      ceiling,
      differences,
      online,
      squares,
      out.data(),
      data_or_null(totals),
      data_or_null(row_max)};
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) { tile_product(product, table, n_threads, poll); }, check);
}

template <class T>
void bind_squared_norms(Matrix<const T> points, Vector<const double> centre, double factor,
                        Vector<double> out, const std::string &isa, int n_threads) {
  const Points<T> moved{points.data(), points.shape(0), points.shape(1), centre.data(), factor};
  double *to = out.data();
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) { squared_norms(moved, table, n_threads, poll, to); });
}

template <class T> void bind_column_sums(Matrix<const T> x, Vector<double> out, int n_threads) {
  run([&](const Poll &poll) {
    column_sums(x.data(), x.shape(0), x.shape(1), n_threads, poll, out.data());
  });
}

template <class T> Rows<T> rows_of(const Matrix<const T> &m) {
  return {m.data(), m.shape(0), m.shape(1)};
}

template <class T>
void bind_pair_kernel(Matrix<const T> queries, Matrix<const T> keys, Vector<const std::int64_t> rows,
                      Vector<const std::int64_t> cols, double slope, Vector<double> out,
                      const std::string &isa, int n_threads) {
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) {
    pair_kernel(rows_of(queries), rows_of(keys), rows.data(), cols.data(), rows.shape(0),
                       slope, table, n_threads, poll, out.data());
  });
}

/// A vector handed over to NumPy.
template <class U> nb::object handed_over(std::vector<U> &&values) {
  auto *owned = new std::vector<U>(std::move(values));
  nb::capsule owner(owned, [](void *p) noexcept { delete static_cast<std::vector<U> *>(p); });
  return nb::cast(nb::ndarray<nb::numpy, U, nb::ndim<1>>(owned->data(), {owned->size()}, owner));
}

/// One array from the lists of all tasks.
template <class U> nb::object joined(const std::vector<Hits> &parts, std::vector<U> Hits::*member) {
  std::vector<U> all;
  std::size_t n = 0;
  for (const Hits &part : parts) n += (part.*member).size();
  all.reserve(n);
  for (const Hits &part : parts) all.insert(all.end(), (part.*member).begin(), (part.*member).end());
  return handed_over(std::move(all));
}

template <class T>
nb::tuple bind_scan_ranges(Matrix<const T> queries, Matrix<const T> keys,
                           Vector<const std::int64_t> order, Vector<const std::int64_t> start,
                           Vector<const std::int64_t> stop, double slope, double threshold,
                           const std::string &isa, int n_threads) {
  const auto &table = kernels(isa).typed<T>();
  std::vector<Hits> parts;
  run([&](const Poll &poll) {
    scan_ranges(rows_of(queries), rows_of(keys), order.data(), start.data(), stop.data(),
                       slope, threshold, table, n_threads, poll, parts);
  });
  return nb::make_tuple(joined(parts, &Hits::rows), joined(parts, &Hits::cols),
                        joined(parts, &Hits::values));
}

using Int32s = Vector<const std::int32_t>;
using Int64s = Vector<const std::int64_t>;

template <class T>
Geometry<T> geometry(const Matrix<const T> &queries, const Matrix<const T> &keys,
                     const Vector<const double> &query_shift, const Vector<const double> &key_shift,
                     const Vector<const double> &centre, double factor, T slope, bool differences) {
  return {{queries.data(), queries.shape(0), queries.shape(1), centre.data(), factor},
          {keys.data(), keys.shape(0), keys.shape(1), centre.data(), factor},
          query_shift.data(),
          key_shift.data(),
          slope,
          differences};
}

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

FoundPairs found_pairs(const Int64s &indptr, const Int32s &cols, const Vector<const float> &values) {
  return {indptr.data(), cols.data(), values.data()};
}

void bind_random_tiling(Matrix<const float> key_projections, Matrix<const float> query_projections,
                        Vector<std::int32_t> key_order, Vector<std::int32_t> query_order,
                        Vector<std::int64_t> key_start, Vector<std::int64_t> query_start,
                        int n_threads) {
  run([&](const Poll &poll) {
    random_tiling(key_projections.data(), key_projections.shape(0), query_projections.data(),
                         query_projections.shape(0), int(key_projections.shape(1)), n_threads, poll,
                         key_order.data(), query_order.data(), key_start.data(), query_start.data());
  });
}

template <class T>
void bind_principal_tiling(Matrix<const T> keys, Matrix<const T> queries, int depth,
                           Vector<std::int32_t> key_order, Vector<std::int32_t> query_order,
                           Vector<std::int64_t> key_start, Vector<std::int64_t> query_start,
                           const std::string &isa, int n_threads) {
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) {
    principal_tiling(rows_of(keys), rows_of(queries), depth, table, n_threads, poll, key_order.data(),
                            query_order.data(), key_start.data(), query_start.data());
  });
}

template <class T>
nb::tuple bind_tile_hits(Matrix<const T> queries, Matrix<const T> keys,
                         Vector<const double> query_shift, Vector<const double> key_shift,
                         Vector<const double> centre, double factor, T slope, bool differences,
                         Int32s query_order, Int32s key_order, Int64s query_start, Int64s query_stop,
                         Int64s key_start, Int64s key_stop, T floor, Int64s found_indptr,
                         Int32s found_cols, Vector<const float> found_values, const std::string &isa,
                         int n_threads, Check check) {
  const auto g =
      geometry<T>(queries, keys, query_shift, key_shift, centre, factor, slope, differences);
  const TileRanges tiles{query_start.data(), query_stop.data(), key_start.data(), key_stop.data(),
                         query_start.shape(0)};
  const auto known = found_pairs(found_indptr, found_cols, found_values);
  const auto &table = kernels(isa).typed<T>();
  PairLists parts;
  run([&](const Poll &poll) {
    tile_hits(g, query_order.data(), key_order.data(), tiles, floor, known, table, n_threads,
                     poll, parts);
  }, check);
  return new_pairs(std::move(parts));
}

template <class T>
void bind_project(Matrix<const T> points, Int32s index, Vector<const double> centre,
                  Matrix<const float> basis, Matrix<float> out, const std::string &isa,
                  int n_threads) {
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) {
    project(rows_of(points), index.data(), index.shape(0), centre.data(), basis.data(),
                   basis.shape(1), table, n_threads, poll, out.data());
  });
}

template <class T>
nb::tuple bind_pilot_rows(Matrix<const T> queries, Matrix<const T> keys,
                          Vector<const double> query_shift, Vector<const double> key_shift,
                          Vector<const double> centre, double factor, T slope, bool differences,
                          Int32s rows, Int32s key_order, Int64s tile_start,
                          Vector<const T> weights, std::optional<Vector<const T>> x, T threshold,
                          Vector<double> sums, const std::string &isa, int n_threads, Check check) {
  const auto g =
      geometry<T>(queries, keys, query_shift, key_shift, centre, factor, slope, differences);
  const PilotRows<T> pilot{rows.data(),       rows.shape(0),           key_order.data(),
                           tile_start.data(), tile_start.shape(0) - 1, weights.data(),
                           data_or_null(x),   threshold,               sums.data()};
  const auto &table = kernels(isa).typed<T>();
  PairLists parts;
  run([&](const Poll &poll) { pilot_rows(g, pilot, table, n_threads, poll, parts); }, check);
  return new_pairs(std::move(parts));
}

template <class T>
void bind_tile_moments(Matrix<const T> queries, Matrix<const T> keys, Vector<const double> query_shift,
                       Vector<const double> key_shift, Vector<const double> centre, double factor,
                       T slope, bool differences, Int32s key_order, Int64s tile_start,
                       Vector<const T> weights, Matrix<T> out, const std::string &isa, int n_threads) {
  const auto g =
      geometry<T>(queries, keys, query_shift, key_shift, centre, factor, slope, differences);
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) {
    tile_moments(g, key_order.data(), tile_start.data(), tile_start.shape(0) - 1,
                        weights.data(), table, n_threads, poll, out.data());
  });
}

template <class T>
nb::tuple bind_cell_pairs(Matrix<const T> queries, Matrix<const T> keys, double slope,
                          double threshold, Matrix<const float> query_sketches, Int32s query_index,
                          Vector<const float> radius_squared, Matrix<const float> key_sketches,
                          Int32s key_index,
                          Int32s query_order, Int32s key_order, Int64s query_start, Int64s key_start,
                          bool mirrored, Int64s found_indptr, Int32s found_cols,
                          Vector<const float> found_values, const std::string &isa, int n_threads, Check check) {
  const auto known = found_pairs(found_indptr, found_cols, found_values);
  const Sketches of_queries{query_sketches.data(), query_index.data(), radius_squared.data(),
                            query_sketches.shape(1)};
  const Sketches of_keys{key_sketches.data(), key_index.data(), mirrored ? radius_squared.data() : nullptr,
                         key_sketches.shape(1)};
  PairLists parts;
  run([&](const Poll &poll) {
    cell_pairs(rows_of(queries), rows_of(keys), slope, threshold, of_queries, of_keys,
                      query_order.data(), key_order.data(), query_start.data(),
                      key_start.data(), key_start.shape(0) - 1, mirrored, known, kernels(isa),
                      n_threads, poll, parts);
  }, check);
  return new_pairs(std::move(parts));
}

template <class T>
nb::tuple bind_neighbours_of_neighbours(Matrix<const T> queries, Matrix<const T> keys, double slope,
                                        Int64s found_indptr, Int32s found_cols,
                                        Vector<const float> found_values, Int32s order, float least,
                                        int width, bool of_keys,
                                        double threshold, const std::string &isa, int n_threads, Check check) {
  const auto known = found_pairs(found_indptr, found_cols, found_values);
  const auto &table = kernels(isa).typed<T>();
  PairLists parts;
  run([&](const Poll &poll) {
    neighbours_of_neighbours(rows_of(queries), rows_of(keys), slope, known, order.data(), order.size(), least,
                                    width, of_keys, threshold, table, n_threads, poll, parts);
  }, check);
  return new_pairs(std::move(parts));
}

template <class T>
void bind_nearest_keys(Matrix<const T> queries, Matrix<const T> keys, Vector<const double> query_shift,
                       Vector<const double> key_shift, Vector<const double> centre, double factor,
                       T slope, bool differences, Matrix<std::int32_t> out, const std::string &isa,
                       int n_threads) {
  const auto g =
      geometry<T>(queries, keys, query_shift, key_shift, centre, factor, slope, differences);
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) {
    nearest_keys(g, out.shape(1), table, n_threads, poll, out.data());
  });
}

template <class T>
nb::tuple bind_linked_pairs(Matrix<const T> queries, Matrix<const T> keys, double slope,
                            Int64s found_indptr, Int32s found_cols, Vector<const float> found_values,
                            Int64s link_indptr, Int32s link_cols, Vector<const float> link_values,
                            std::size_t width, double threshold, const std::string &isa,
                            int n_threads) {
  const auto known = found_pairs(found_indptr, found_cols, found_values);
  const auto links = found_pairs(link_indptr, link_cols, link_values);
  const auto &table = kernels(isa).typed<T>();
  PairLists parts;
  run([&](const Poll &poll) {
    linked_pairs(rows_of(queries), rows_of(keys), slope, known, links, width, threshold,
                        table, n_threads, poll, parts);
  });
  return new_pairs(std::move(parts));
}

nb::tuple bind_merge_pairs(Int64s indptr, Int32s cols, Vector<const float> values, Int32s new_rows,
                           Int32s new_cols, Vector<const float> new_values, int n_threads) {
  const auto known = found_pairs(indptr, cols, values);
  Union all;
  run([&](const Poll &poll) {
    merge_pairs(indptr.shape(0) - 1, known, new_rows.data(), new_cols.data(),
                       new_values.data(), new_rows.shape(0), n_threads, poll, all);
  });
  return nb::make_tuple(handed_over(std::move(all.indptr)), handed_over(std::move(all.cols)),
                        handed_over(std::move(all.values)));
}

template <class T>
void bind_sampled_product(Matrix<const T> queries, Matrix<const T> keys,
                          Vector<const double> query_shift, Vector<const double> key_shift,
                          Vector<const double> centre, double factor, T slope, bool differences,
                          Int32s query_order, Int64s block_start, Int32s key_order, Int64s tile_start,
                          Matrix<const float> rate, Vector<const T> size, Vector<const double> prefix, std::uint64_t seed,
                          std::uint64_t stream, Int64s blocks, Int64s found_indptr, Int32s found_cols,
                          Vector<const float> found_values, std::optional<Matrix<const T>> moments,
                          std::optional<Vector<const float>> coefficients, Matrix<const T> x, Matrix<T> out,
                          Vector<double> variance, Vector<double> mass, Vector<std::int64_t> n_drawn,
                          const std::string &isa, int n_threads, Check check) {
  const auto g =
      geometry<T>(queries, keys, query_shift, key_shift, centre, factor, slope, differences);
  const DrawPlan<T> plan{query_order.data(), block_start.data(), block_start.shape(0) - 1,
                         key_order.data(),   tile_start.data(),  tile_start.shape(0) - 1,
                         rate.data(),        size.data(),        prefix.data(),
                         seed,               stream};
  const auto found = found_pairs(found_indptr, found_cols, found_values);
  const auto &table = kernels(isa).typed<T>();
  const SmoothPart<T> smooth{moments ? moments->data() : nullptr, data_or_null(coefficients)};
  const SampledSums<T> sums{out.data(), variance.data(), mass.data(), n_drawn.data()};
  run([&](const Poll &poll) {
    sampled_product(g, plan, blocks.data(), blocks.size(), found, smooth, x.data(), x.shape(1),
                           table, n_threads, poll, sums);
  }, check);
}

template <class T>
void bind_reduced_product(Matrix<const T> few_queries, Matrix<const T> few_keys,
                          Vector<const double> query_shift, Vector<const double> key_shift,
                          Vector<const double> centre, double factor, T few_slope, bool differences,
                          Matrix<const T> queries, Matrix<const T> keys, double slope,
                          Int32s query_index, Int32s key_index, Int32s own, Matrix<const T> x, Vector<const T> size, T floor, T rate, double least, std::uint64_t seed,
                          std::uint64_t stream, Matrix<T> out, Vector<double> variance,
                          Vector<double> mass, Vector<std::int64_t> n_drawn, const std::string &isa,
                          int n_threads, Check check) {
  const Reduction<T> reduction{geometry<T>(few_queries, few_keys, query_shift, key_shift, centre, factor,
                                           few_slope, differences),
                               {queries.data(), queries.shape(0), queries.shape(1)},
                               {keys.data(), keys.shape(0), keys.shape(1)},
                               slope,
                               query_index.data(),
                               key_index.data(),
                               own.data(),
                               x.data(),
                               x.shape(1),
                               size.data(),
                               floor,
                               rate,
                               least,
                               seed,
                               stream};
  const auto &table = kernels(isa).typed<T>();
  const ReducedSums<T> sums{out.data(), variance.data(), mass.data(), n_drawn.data()};
  run([&](const Poll &poll) { reduced_product(reduction, table, n_threads, poll, sums); }, check);
}

template <class T> void bind_exp(Vector<const T> in, Vector<T> out, const std::string &isa) {
  kernels(isa).typed<T>().exp(in.data(), out.data(), in.shape(0));
}

template <class T> void bind_power_of_two(Vector<const T> in, Vector<T> out, const std::string &isa) {
  kernels(isa).typed<T>().power_of_two(in.data(), out.data(), in.shape(0));
}

template <class T> T bind_largest_magnitude(Vector<const T> x, const std::string &isa, int n_threads) {
  T found;
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) {
    largest_magnitude(x.data(), x.shape(0), table, n_threads, poll, found);
  });
  return found;
}

void bind_philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t first, Matrix<std::uint64_t> out) {
  for (std::size_t i = 0; i < out.shape(0); ++i) {
    const std::uint64_t low = first + i, carry = low < first;
    const Philox words = philox4x64({low, carry, 0, 0}, {seed, stream});
    for (std::size_t w = 0; w < 4; ++w) out.data()[4 * i + w] = words[w];
  }
}

/// Multiply-adds per second of one core, doing nothing else for about `seconds`.
template <class T> double bind_fma_rate(double seconds, const std::string &isa) {
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

template <class T> using Heads = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <class T>
void bind_attention(Heads<const T> queries, Heads<const T> keys, Heads<const T> values,
                    Matrix<const std::int64_t> heads, double scale, bool causal,
                    std::optional<Heads<const T>> added,
                    std::optional<Heads<const unsigned char>> kept, Heads<T> out,
                    Matrix<T> log_normalizer, Vector<T> largest, const std::string &isa,
                    int n_threads, Check check) {
  const Attention<T> problem{queries.data(),
                             keys.data(),
                             values.data(),
                             keys.shape(0),
                             values.shape(0),
                             queries.shape(1),
                             keys.shape(1),
                             keys.shape(2),
                             values.shape(2),
                             heads.data(),
                             heads.shape(0),
                             scale,
                             causal,
                             added ? added->data() : nullptr,
                             kept ? kept->data() : nullptr,
                             added ? added->shape(1) : kept ? kept->shape(1) : 0,
                             out.data(),
                             log_normalizer.data(),
                             largest.data()};
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) { attention(problem, table, n_threads, poll); }, check);
}

template <class T> void bind_attention_for(nb::module_ &m) {
  m.def("attention", &bind_attention<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "values"_a.noconvert(), "heads"_a.noconvert(), "scale"_a, "causal"_a,
        "added"_a.noconvert().none(), "kept"_a.noconvert().none(), "out"_a.noconvert(),
        "log_normalizer"_a.noconvert(), "largest"_a.noconvert(), "isa"_a, "n_threads"_a, "check"_a.none());
}

template <class T> void bind_typed(nb::module_ &m) {
  m.def("tile_product", &bind_tile_product<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "x"_a.noconvert(), "query_shift"_a.noconvert(), "key_shift"_a.noconvert(),
        "query_centre"_a.noconvert(), "key_centre"_a.noconvert(), "factor"_a, "slope"_a, "ceiling"_a,
        "differences"_a, "online"_a, "squares"_a, "out"_a.noconvert(), "totals"_a.noconvert().none(),
        "row_max"_a.noconvert().none(), "isa"_a, "n_threads"_a, "check"_a.none());
  m.def("squared_norms", &bind_squared_norms<T>, "points"_a.noconvert(), "centre"_a.noconvert(),
        "factor"_a, "out"_a.noconvert(), "isa"_a, "n_threads"_a);
  m.def("column_sums", &bind_column_sums<T>, "x"_a.noconvert(), "out"_a.noconvert(), "n_threads"_a);
  m.def("pair_kernel", &bind_pair_kernel<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "rows"_a.noconvert(), "cols"_a.noconvert(), "slope"_a, "out"_a.noconvert(), "isa"_a,
        "n_threads"_a);
  m.def("scan_ranges", &bind_scan_ranges<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "order"_a.noconvert(), "start"_a.noconvert(), "stop"_a.noconvert(), "slope"_a, "threshold"_a,
        "isa"_a, "n_threads"_a);
  m.def("tile_hits", &bind_tile_hits<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "query_shift"_a.noconvert(), "key_shift"_a.noconvert(), "centre"_a.noconvert(), "factor"_a,
        "slope"_a, "differences"_a, "query_order"_a.noconvert(), "key_order"_a.noconvert(),
        "query_start"_a.noconvert(), "query_stop"_a.noconvert(), "key_start"_a.noconvert(),
        "key_stop"_a.noconvert(), "floor"_a, "found_indptr"_a.noconvert(),
        "found_cols"_a.noconvert(), "found_values"_a.noconvert(), "isa"_a, "n_threads"_a, "check"_a.none());
  m.def("project", &bind_project<T>, "points"_a.noconvert(), "index"_a.noconvert(),
        "centre"_a.noconvert(), "basis"_a.noconvert(), "out"_a.noconvert(), "isa"_a, "n_threads"_a);
  m.def("pilot_rows", &bind_pilot_rows<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "query_shift"_a.noconvert(), "key_shift"_a.noconvert(), "centre"_a.noconvert(), "factor"_a,
        "slope"_a, "differences"_a, "rows"_a.noconvert(), "key_order"_a.noconvert(),
        "tile_start"_a.noconvert(), "weights"_a.noconvert(), "x"_a.noconvert().none(),
        "threshold"_a, "sums"_a.noconvert(), "isa"_a, "n_threads"_a, "check"_a.none());
  m.def("tile_moments", &bind_tile_moments<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "query_shift"_a.noconvert(), "key_shift"_a.noconvert(), "centre"_a.noconvert(), "factor"_a,
        "slope"_a, "differences"_a, "key_order"_a.noconvert(), "tile_start"_a.noconvert(),
        "weights"_a.noconvert(), "out"_a.noconvert(), "isa"_a, "n_threads"_a);
  m.def("cell_pairs", &bind_cell_pairs<T>, "queries"_a.noconvert(), "keys"_a.noconvert(), "slope"_a,
        "threshold"_a, "query_sketches"_a.noconvert(), "query_index"_a.noconvert(),
        "radius_squared"_a.noconvert(), "key_sketches"_a.noconvert(), "key_index"_a.noconvert(),
        "query_order"_a.noconvert(), "key_order"_a.noconvert(), "query_start"_a.noconvert(),
        "key_start"_a.noconvert(), "mirrored"_a, "found_indptr"_a.noconvert(),
        "found_cols"_a.noconvert(), "found_values"_a.noconvert(), "isa"_a, "n_threads"_a, "check"_a.none());
  m.def("principal_tiling", &bind_principal_tiling<T>, "keys"_a.noconvert(), "queries"_a.noconvert(),
        "depth"_a, "key_order"_a.noconvert(), "query_order"_a.noconvert(), "key_start"_a.noconvert(),
        "query_start"_a.noconvert(), "isa"_a, "n_threads"_a);
  m.def("neighbours_of_neighbours", &bind_neighbours_of_neighbours<T>, "queries"_a.noconvert(),
        "keys"_a.noconvert(), "slope"_a, "found_indptr"_a.noconvert(), "found_cols"_a.noconvert(),
        "found_values"_a.noconvert(), "order"_a.noconvert(), "least"_a, "width"_a, "of_keys"_a,
        "threshold"_a, "isa"_a,
        "n_threads"_a, "check"_a.none());
  m.def("nearest_keys", &bind_nearest_keys<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "query_shift"_a.noconvert(), "key_shift"_a.noconvert(), "centre"_a.noconvert(), "factor"_a,
        "slope"_a, "differences"_a, "out"_a.noconvert(), "isa"_a, "n_threads"_a);
  m.def("linked_pairs", &bind_linked_pairs<T>, "queries"_a.noconvert(), "keys"_a.noconvert(), "slope"_a,
        "found_indptr"_a.noconvert(), "found_cols"_a.noconvert(), "found_values"_a.noconvert(),
        "link_indptr"_a.noconvert(), "link_cols"_a.noconvert(), "link_values"_a.noconvert(),
        "width"_a, "threshold"_a, "isa"_a, "n_threads"_a);
  m.def("sampled_product", &bind_sampled_product<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "query_shift"_a.noconvert(), "key_shift"_a.noconvert(), "centre"_a.noconvert(), "factor"_a,
        "slope"_a, "differences"_a, "query_order"_a.noconvert(), "block_start"_a.noconvert(),
        "key_order"_a.noconvert(), "tile_start"_a.noconvert(), "rate"_a.noconvert(), "size"_a.noconvert(),
        "prefix"_a.noconvert(), "seed"_a, "stream"_a, "blocks"_a.noconvert(), "found_indptr"_a.noconvert(),
        "found_cols"_a.noconvert(), "found_values"_a.noconvert(), "moments"_a.noconvert().none(),
        "coefficients"_a.noconvert().none(), "x"_a.noconvert(), "out"_a.noconvert(), "variance"_a.noconvert(), "mass"_a.noconvert(), "n_drawn"_a.noconvert(), "isa"_a,
        "n_threads"_a, "check"_a.none());
  m.def("reduced_product", &bind_reduced_product<T>, "few_queries"_a.noconvert(),
        "few_keys"_a.noconvert(), "query_shift"_a.noconvert(), "key_shift"_a.noconvert(),
        "centre"_a.noconvert(), "factor"_a, "few_slope"_a, "differences"_a, "queries"_a.noconvert(),
        "keys"_a.noconvert(), "slope"_a, "query_index"_a.noconvert(), "key_index"_a.noconvert(),
        "own"_a.noconvert(), "x"_a.noconvert(), "size"_a.noconvert(), "floor"_a, "rate"_a,
        "least"_a, "seed"_a, "stream"_a, "out"_a.noconvert(), "variance"_a.noconvert(),
        "mass"_a.noconvert(), "n_drawn"_a.noconvert(), "isa"_a, "n_threads"_a, "check"_a.none());
  m.def("exp", &bind_exp<T>, "x"_a.noconvert(), "out"_a.noconvert(), "isa"_a);
  m.def("power_of_two", &bind_power_of_two<T>, "x"_a.noconvert(), "out"_a.noconvert(), "isa"_a);
  m.def("largest_magnitude", &bind_largest_magnitude<T>, "x"_a.noconvert(), "isa"_a, "n_threads"_a);
}

template <class T>
OneHead<T> one_head(const Matrix<const T> &queries, const Matrix<const T> &keys,
                       const Matrix<const T> &values, double scale,
                       const Vector<const double> &query_centre,
                       const Vector<const double> &key_centre,
                       const Vector<const double> &value_centre, double value_factor) {
  return {{queries.data(), queries.shape(0), queries.shape(1), query_centre.data(), scale},
          {keys.data(), keys.shape(0), keys.shape(1), key_centre.data(), 1.0},
          {values.data(), values.shape(0), values.shape(1), value_centre.data(), value_factor}};
}

AttentionBlocks attention_blocks(const Int32s &query_order, const Int64s &start,
                                 const Int32s &key_order, const Int64s &band_start,
                                 const Int64s &band_stop, bool causal) {
  return {query_order.data(), start.data(),     start.shape(0) - 1, key_order.data(),
          band_start.data(),  band_stop.data(), key_order.shape(0), causal};
}

template <class T>
void bind_attention_pilot(Matrix<const T> queries, Matrix<const T> keys, Matrix<const T> values,
                          double scale, Vector<const double> query_centre,
                          Vector<const double> key_centre, Vector<const double> value_centre,
                          double value_factor, Int32s query_order, Int64s start, Int32s key_order,
                          Int64s band_start, Int64s band_stop, bool causal, Int32s rows,
                          std::size_t rows_per_block, int check_rows, double plan_guard, double guard, int narrow, int wide,
                          double raw_share, double wide_share, double floor_share,
                          Matrix<T> outputs, Matrix<float> moment, Matrix<float> guarded,
                          Vector<double> means, const std::string &isa, int n_threads, Check check) {
  const auto a = one_head<T>(queries, keys, values, scale, query_centre, key_centre, value_centre,
                              value_factor);
  const auto blocks = attention_blocks(query_order, start, key_order, band_start, band_stop, causal);
  const Smoothing smoothing{check_rows, plan_guard, guard, narrow, wide, raw_share, wide_share, floor_share};
  const PilotSums to{moment.data(), guarded.data(), means.data()};
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) {
    attention_pilot(a, blocks, rows.data(), rows_per_block, smoothing, table, n_threads, poll,
                           outputs.data(), to);
  }, check);
}

nb::tuple bind_rate_histogram(Int32s query_order, Int64s start, Int32s key_order, Int64s band_start,
                              Int64s band_stop, bool causal, Matrix<const float> moment,
                              Matrix<const float> guarded, float floor, int n_threads) {
  const auto blocks = attention_blocks(query_order, start, key_order, band_start, band_stop, causal);
  RateHistogram histogram;
  run([&](const Poll &poll) {
    rate_histogram(blocks, moment.data(), guarded.data(), floor, n_threads, poll, histogram);
  });
  return nb::make_tuple(handed_over(std::move(histogram.pairs)),
                        handed_over(std::move(histogram.variance)));
}

template <class T>
void bind_attention_draw(Matrix<const T> queries, Matrix<const T> keys, Matrix<const T> values,
                         double scale, Vector<const double> query_centre,
                         Vector<const double> key_centre, Vector<const double> value_centre,
                         double value_factor, Int32s query_order, Int64s start, Int32s key_order,
                         Int64s band_start, Int64s band_stop, bool causal,
                         Matrix<const float> guarded, Matrix<const T> near, double floor,
                         double rate, double least, std::uint64_t seed, std::uint64_t stream, Int64s listed,
                         Matrix<T> out, Vector<double> variance, Vector<double> bound,
                         Vector<double> total_variance, Vector<std::int64_t> n_drawn, const std::string &isa, int n_threads, Check check) {
  const auto a = one_head<T>(queries, keys, values, scale, query_centre, key_centre, value_centre,
                              value_factor);
  const auto blocks = attention_blocks(query_order, start, key_order, band_start, band_stop, causal);
  const AttentionRates<T> rates{guarded.data(), near.data(), floor, rate, least, seed, stream};
  const AttentionDraws<T> to{out.data(), variance.data(), bound.data(), total_variance.data(),
                             n_drawn.data()};
  const auto &table = kernels(isa).typed<T>();
  run([&](const Poll &poll) {
    attention_draw(a, blocks, rates, listed.data(), listed.size(), table, n_threads, poll, to);
  }, check);
}

template <class T> void bind_sampled_attention_for(nb::module_ &m) {
  m.def("attention_pilot", &bind_attention_pilot<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "values"_a.noconvert(), "scale"_a, "query_centre"_a.noconvert(), "key_centre"_a.noconvert(),
        "value_centre"_a.noconvert(), "value_factor"_a, "query_order"_a.noconvert(),
        "start"_a.noconvert(), "key_order"_a.noconvert(), "band_start"_a.noconvert(),
        "band_stop"_a.noconvert(), "causal"_a, "rows"_a.noconvert(), "rows_per_block"_a, "check_rows"_a, "plan_guard"_a, "guard"_a,
        "narrow"_a, "wide"_a, "raw_share"_a, "wide_share"_a, "floor_share"_a,
        "outputs"_a.noconvert(), "moment"_a.noconvert(), "guarded"_a.noconvert(),
        "means"_a.noconvert(), "isa"_a, "n_threads"_a, "check"_a.none());
  m.def("attention_draw", &bind_attention_draw<T>, "queries"_a.noconvert(), "keys"_a.noconvert(),
        "values"_a.noconvert(), "scale"_a, "query_centre"_a.noconvert(), "key_centre"_a.noconvert(),
        "value_centre"_a.noconvert(), "value_factor"_a, "query_order"_a.noconvert(),
        "start"_a.noconvert(), "key_order"_a.noconvert(), "band_start"_a.noconvert(),
        "band_stop"_a.noconvert(), "causal"_a, "guarded"_a.noconvert(), "near"_a.noconvert(),
        "floor"_a, "rate"_a, "least"_a, "seed"_a, "stream"_a, "listed"_a.noconvert(),
        "out"_a.noconvert(), "variance"_a.noconvert(), "bound"_a.noconvert(), "total_variance"_a.noconvert(), "n_drawn"_a.noconvert(), "isa"_a, "n_threads"_a, "check"_a.none());
}

}  // namespace

#if defined(AKMV_PLANTED_BUG)
void bind_planted_bugs(nb::module_ &m);  // tests/sanitizers/planted.cpp
#endif

NB_MODULE(_core, m) {
#if defined(AKMV_PLANTED_BUG)
  bind_planted_bugs(m);
#endif
  bind_typed<float>(m);
  bind_typed<double>(m);
  bind_attention_for<float>(m);
  bind_attention_for<double>(m);
  bind_sampled_attention_for<float>(m);
  bind_sampled_attention_for<double>(m);
  m.def("rate_histogram", &bind_rate_histogram, "query_order"_a.noconvert(), "start"_a.noconvert(),
        "key_order"_a.noconvert(), "band_start"_a.noconvert(), "band_stop"_a.noconvert(), "causal"_a,
        "moment"_a.noconvert(), "guarded"_a.noconvert(), "floor"_a, "n_threads"_a);
  m.def("philox", &bind_philox, "seed"_a, "stream"_a, "first"_a, "out"_a.noconvert());
  m.def("random_tiling", &bind_random_tiling, "key_projections"_a.noconvert(),
        "query_projections"_a.noconvert(), "key_order"_a.noconvert(), "query_order"_a.noconvert(),
        "key_start"_a.noconvert(), "query_start"_a.noconvert(), "n_threads"_a);
  m.def("merge_pairs", &bind_merge_pairs, "indptr"_a.noconvert(), "cols"_a.noconvert(),
        "values"_a.noconvert(), "new_rows"_a.noconvert(), "new_cols"_a.noconvert(),
        "new_values"_a.noconvert(), "n_threads"_a);
  m.def("available_isas", &available_isas);
  m.def("fma_rate_float32", &bind_fma_rate<float>, "seconds"_a, "isa"_a);
  m.def("fma_rate_float64", &bind_fma_rate<double>, "seconds"_a, "isa"_a);
  m.def("default_thread_limit", &default_thread_limit);
}

// For threadpoolctl, which talks to libraries through C symbols.
extern "C" {
__attribute__((visibility("default"))) int approxkmv_get_num_threads() {
  return default_thread_limit();
}
__attribute__((visibility("default"))) void approxkmv_set_num_threads(int n) {
  set_default_thread_limit(n);
}
}
