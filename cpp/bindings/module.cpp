// The module approxkmv._core. The files of this folder are the only ones that know both languages:
// they unwrap arrays, release the GIL and call one function. Shapes and values were checked in
// Python.
#include "module.hpp"

#include "../threads.hpp"

#if defined(AKMV_PLANTED_BUG)
void bind_planted_bugs(nanobind::module_ &m);  // tests/sanitizers/planted.cpp
#endif

NB_MODULE(_core, m) {
#if defined(AKMV_PLANTED_BUG)
  bind_planted_bugs(m);
#endif
  akmv::bindings::bind_machine(m);
  akmv::bindings::bind_product(m);
  akmv::bindings::bind_pairs(m);
  akmv::bindings::bind_neighbours(m);
  akmv::bindings::bind_sampled(m);
  akmv::bindings::bind_attention(m);
  akmv::bindings::bind_sampled_attention(m);
}

// For threadpoolctl, which talks to libraries through C symbols.
extern "C" {
__attribute__((visibility("default"))) int approxkmv_get_num_threads() {
  return akmv::default_thread_limit();
}
__attribute__((visibility("default"))) void approxkmv_set_num_threads(int n) {
  akmv::set_default_thread_limit(n);
}
}
