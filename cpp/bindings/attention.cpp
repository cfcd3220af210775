// Exact softmax attention of many heads.
#include "../attention.hpp"
#include "backend.hpp"
#include "module.hpp"

namespace akmv::bindings {
namespace {

template <class T>
struct HeadSetsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("HeadSets");
  Stack<const T> queries, keys, values;
  Matrix<const std::int64_t> heads;
  double scale = 1;
  bool is_causal = false;
  std::optional<Stack<const T>> added;
  std::optional<Stack<const unsigned char>> kept;

  void read(Fields &from) {
    from("queries", queries)("keys", keys)("values", values)("heads", heads);
    from("scale", scale)("is_causal", is_causal)("added", added)("kept", kept);
  }
};

template <class T>
struct AttentionSumsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("AttentionSums");
  Stack<T> out;
  Matrix<T> log_normalizer;
  Vector<T> largest;

  void read(Fields &from) {
    from("out", out)("log_normalizer", log_normalizer)("largest", largest);
  }
};

template <class T>
void bound_attention(const HeadSetsRecord<T> &sets, const AttentionSumsRecord<T> &sums,
                     const Backend &backend) {
  const Attention<T> problem{
      sets.queries.data(),
      sets.keys.data(),
      sets.values.data(),
      sets.keys.shape(0),
      sets.values.shape(0),
      sets.queries.shape(1),
      sets.keys.shape(1),
      sets.keys.shape(2),
      sets.values.shape(2),
      sets.heads.data(),
      sets.heads.shape(0),
      sets.scale,
      sets.is_causal,
      data_or_null(sets.added),
      data_or_null(sets.kept),
      sets.added ? sets.added->shape(1) : sets.kept ? sets.kept->shape(1) : 0,
      sums.out.data(),
      sums.log_normalizer.data(),
      sums.largest.data()};
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) { attention(problem, table, backend.threads, poll); });
}

}  // namespace

void bind_attention(nb::module_ &m) {
  m.def("attention", &bound_attention<float>, "sets"_a, "sums"_a, "backend"_a);
  m.def("attention", &bound_attention<double>, "sets"_a, "sums"_a, "backend"_a);
}

}  // namespace akmv::bindings
