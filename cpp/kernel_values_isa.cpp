// Tiles of kernel values, compiled once per instruction set with AKMV_ISA naming it: what
// kernels_isa.cpp calls for other kernels than the Gaussian.
//
// A file of its own: how much GCC inlines depends on how much there is in a file, and the
// exponentials of the Gaussian took 4 to 8 % longer when these were next to them.
#include "epilogues/pilot.hpp"
#include "epilogues/product.hpp"
#include "epilogues/sampled.hpp"
#include "kernel_values.hpp"

namespace akmv {
namespace AKMV_ISA {

template <class T>
void value_product(const Operands<T> &t, const ProductTile<T> &p) {
  product_of<T, Scores::kValues>(t, p);
}

template void value_product(const Operands<float> &, const ProductTile<float> &);
template void value_product(const Operands<double> &, const ProductTile<double> &);

}  // namespace AKMV_ISA
}  // namespace akmv
