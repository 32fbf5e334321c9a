// What the sources of kernels share: each binds its own to Python, where shapes and indices are checked.
#pragma once

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "binding.hpp"
#include "random.hpp"
#include "sparse.hpp"

namespace qpsbgd {

void bind_dense(nb::module_& module);
void bind_sparse(nb::module_& module);
void bind_lanes(nb::module_& module);
void bind_reduction(nb::module_& module);
void bind_groups(nb::module_& module);
void bind_exact(nb::module_& module);

using Linear = Array<const double, 1>;
using Sites = Array<const std::int32_t, 1>;
using Temperatures = Array<const double, 1>;
using Spins = Array<std::int8_t, 1>;

// Sweeps over these sites of n spins, one per temperature.
template <class T>
Sweeps<T> sweeps_of(const Array<const std::int32_t, 1>& sites, const Array<const T, 1>& temperatures, int64_t n) {
  expect_indices(sites.data(), size(sites), 0, n, "sites");
  return {sites.data(), size(sites), temperatures.data(), size(temperatures)};
}

template <class T>
nb::object numpy(std::vector<T>&& values, size_t columns = 0) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  if (columns) return nb::ndarray<nb::numpy, T>(kept->data(), {kept->size() / columns, columns}, owner).cast();
  return nb::ndarray<nb::numpy, T>(kept->data(), {kept->size()}, owner).cast();
}

// −128 is its own negative: a search would flip it for ever.
template <class A>
void expect_spins(const A& spins, const char* name, std::initializer_list<int64_t> shape) {
  expect(spins, name, shape);
  const bool all = std::all_of(spins.data(), spins.data() + spins.size(), [](auto s) { return s == 1 || s == -1; });
  expect(all, "spins must be -1 or 1");
}

// Rings of moves have room for the tenure, and sums of moves must not overflow.
inline void expect_moves(int64_t tenure, int64_t patience) {
  expect(tenure >= 0 && tenure <= int64_t{1} << 24, "tenure must be at least 0 and at most 2^24");
  expect(patience >= 0 && patience <= int64_t{1} << 62, "patience and moves must be at least 0 and at most 2^62");
}

// Annealing of chains whose spins are numbers of type S.
template <class S, class Kernel>
void bind_anneal(nb::module_& module, const char* name, Kernel kernel) {
  def(module, name, [kernel](const Rows& rows, Linear linear, Array<S, 1> spins, Sites sites,
                             Temperatures temperatures, std::uint64_t state, Stop stop) {
    expect(linear, "linear", {rows.size()});
    expect(spins, "spins", {rows.size()});
    if constexpr (std::is_same_v<S, std::int8_t>) expect_spins(spins, "spins", {rows.size()});
    const Sweeps<double> sweeps = sweeps_of(sites, temperatures, rows.size());
    return call(&stop, kernel, rows, linear, spins, sweeps, state);
  });
}

}  // namespace qpsbgd
