// Attention from drawn keys: its pilot, its rates and its draws.
#include "../samplers/attention.hpp"
#include "backend.hpp"
#include "module.hpp"

namespace akmv::bindings {
namespace {

template <class T>
struct HeadRecord : Record {
  static constexpr auto kName = nb::detail::const_name("AttentionHead");
  Matrix<const T> queries, keys, values;
  Doubles query_centre, key_centre, value_centre;
  double scale = 1, value_factor = 1;

  void read(Fields &from) {
    from("queries", queries)("keys", keys)("values", values)("scale", scale);
    from("query_centre", query_centre)("key_centre", key_centre);
    from("value_centre", value_centre)("value_factor", value_factor);
  }

  OneHead<T> view() const {
    return {{queries.data(), queries.shape(0), queries.shape(1), query_centre.data(), scale},
            {keys.data(), keys.shape(0), keys.shape(1), key_centre.data(), 1.0},
            {values.data(), values.shape(0), values.shape(1), value_centre.data(), value_factor}};
  }
};

struct BlocksRecord : Record {
  static constexpr auto kName = nb::detail::const_name("AttentionBlocks");
  Int32s query_order, key_order;
  Int64s start, band_start, band_stop;
  bool causal = false;

  void read(Fields &from) {
    from("query_order", query_order)("start", start)("key_order", key_order);
    from("band_start", band_start)("band_stop", band_stop)("causal", causal);
  }

  AttentionBlocks view() const {
    return {query_order.data(), start.data(),     start.shape(0) - 1, key_order.data(),
            band_start.data(),  band_stop.data(), key_order.shape(0), causal};
  }
};

struct SmoothingRecord : Record {
  static constexpr auto kName = nb::detail::const_name("Smoothing");
  Smoothing value{};

  void read(Fields &from) {
    from("check_rows", value.check_rows)("plan_guard", value.plan_guard)("guard", value.guard);
    from("narrow", value.narrow)("wide", value.wide)("raw_share", value.raw_share);
    from("wide_share", value.wide_share)("floor_share", value.floor_share);
  }
};

template <class T>
struct PilotMomentsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("PilotMoments");
  Matrix<T> outputs;
  Matrix<float> moment, guarded;
  Vector<double> means;

  void read(Fields &from) {
    from("outputs", outputs)("moment", moment)("guarded", guarded)("means", means);
  }

  PilotSums<T> view() const {
    return {outputs.data(), moment.data(), guarded.data(), means.data()};
  }
};

template <class T>
struct RatesRecord : Record {
  static constexpr auto kName = nb::detail::const_name("AttentionRates");
  Matrix<const float> guarded;
  Matrix<const T> near;
  double floor = 0, rate = 0, least = 0;
  std::uint64_t seed = 0, stream = 0;

  void read(Fields &from) {
    from("guarded", guarded)("near", near)("floor", floor)("rate", rate)("least", least);
    from("seed", seed)("stream", stream);
  }

  AttentionRates<T> view() const {
    return {guarded.data(), guarded.shape(0) == 1, near.data(), floor, rate, least, seed, stream};
  }
};

template <class T>
struct DrawsRecord : Record {
  static constexpr auto kName = nb::detail::const_name("AttentionDraws");
  Matrix<T> out;
  Vector<double> variance, bound, total_variance;
  Vector<std::int64_t> n_drawn;

  void read(Fields &from) {
    from("out", out)("variance", variance)("bound", bound);
    from("total_variance", total_variance)("n_drawn", n_drawn);
  }

  AttentionDraws<T> view() const {
    return {out.data(), variance.data(), bound.data(), total_variance.data(), n_drawn.data()};
  }
};

template <class T>
void bound_attention_pilot(const HeadRecord<T> &head, const BlocksRecord &blocks, Int32s rows,
                           const SmoothingRecord &smoothing, const PilotMomentsRecord<T> &to,
                           const Backend &backend) {
  const auto a = head.view();
  const auto b = blocks.view();
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) {
    attention_pilot(a, b, rows.data(), b.n ? rows.shape(0) / b.n : 0, smoothing.value, table,
                    backend.threads, poll, to.view());
  });
}

nb::tuple bound_rate_histogram(const BlocksRecord &blocks, Matrix<const float> moment,
                               Matrix<const float> guarded, float floor, const Backend &backend) {
  RateHistogram histogram;
  backend.run([&](const Poll &poll) {
    rate_histogram(blocks.view(), moment.data(), guarded.data(), floor, backend.threads, poll,
                   histogram);
  });
  return nb::make_tuple(handed_over(std::move(histogram.pairs)),
                        handed_over(std::move(histogram.variance)));
}

template <class T>
void bound_attention_draw(const HeadRecord<T> &head, const BlocksRecord &blocks,
                          const RatesRecord<T> &rates, Int64s listed, const DrawsRecord<T> &to,
                          const Backend &backend) {
  const auto a = head.view();
  const auto b = blocks.view();
  const auto r = rates.view();
  const auto &table = backend.typed<T>();
  backend.run([&](const Poll &poll) {
    attention_draw(a, b, r, listed.data(), listed.size(), table, backend.threads, poll, to.view());
  });
}

template <class T>
void bind_typed(nb::module_ &m) {
  m.def("attention_pilot", &bound_attention_pilot<T>, "head"_a, "blocks"_a, "rows"_a.noconvert(),
        "smoothing"_a, "to"_a, "backend"_a);
  m.def("attention_draw", &bound_attention_draw<T>, "head"_a, "blocks"_a, "rates"_a,
        "listed"_a.noconvert(), "to"_a, "backend"_a);
}

}  // namespace

void bind_sampled_attention(nb::module_ &m) {
  bind_typed<float>(m);
  bind_typed<double>(m);
  m.def("rate_histogram", &bound_rate_histogram, "blocks"_a, "moment"_a.noconvert(),
        "guarded"_a.noconvert(), "floor"_a, "backend"_a);
}

}  // namespace akmv::bindings
