// The solvers' kernels as a Python module.
#include "kernels.hpp"

namespace qpsbgd {

NB_MODULE(_kernels, module) {
  stop_at_exit();
  bind_dense(module);
  bind_sparse(module);
  bind_lanes(module);
  bind_reduction(module);
  bind_groups(module);
  bind_exact(module);
}

}  // namespace qpsbgd
