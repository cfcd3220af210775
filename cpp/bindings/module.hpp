// One function for each file of this folder: it adds its loops to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace akmv::bindings {

namespace nb = nanobind;
using namespace nb::literals;

void bind_machine(nb::module_ &m);
void bind_product(nb::module_ &m);
void bind_pairs(nb::module_ &m);
void bind_neighbours(nb::module_ &m);
void bind_sampled(nb::module_ &m);
void bind_attention(nb::module_ &m);
void bind_sampled_attention(nb::module_ &m);

}  // namespace akmv::bindings
