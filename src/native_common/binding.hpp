// What both bindings check and call kernels with: every array's type, layout and shape and every index, once.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "matrix.hpp"
#include "watch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace qpsbgd {
namespace {

using std::int64_t;

// In place: arrays of another type or layout are refused, not copied.
template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Stop = Array<const std::uint8_t, 1>;

template <class Shape>
std::string text(const Shape& shape) {
  std::string result = "(";
  for (const int64_t size : shape) result += std::to_string(size) + ",";
  return result + ")";
}

template <class A>
void expect(const A& array, const char* name, std::initializer_list<int64_t> shape) {
  const int64_t* came_begin = array.shape_ptr();
  if (std::equal(shape.begin(), shape.end(), came_begin)) return;  // of as many axes: the type says so
  const std::vector<int64_t> came(came_begin, came_begin + array.ndim());
  throw nb::value_error((std::string(name) + " must have shape " + text(shape) + ", got " + text(came)).c_str());
}

void expect(bool holds, const char* message) {
  if (!holds) throw nb::value_error(message);
}

template <class A>
int64_t size(const A& array, int axis = 0) {
  return static_cast<int64_t>(array.shape(axis));
}

template <class T>
void expect_indices(const T* indices, int64_t count, int64_t least, int64_t end, const char* name) {
  for (int64_t k = 0; k < count; ++k) {
    if (indices[k] >= least && indices[k] < end) continue;
    throw nb::value_error((std::string(name) + " must be from " + std::to_string(least) + " to " +
                           std::to_string(end - 1) + ", got " + std::to_string(indices[k]))
                              .c_str());
  }
}

// An argument without a name; arrays are taken as they are, or refused.
template <class T>
auto argument(const T*) {
  return nb::arg();
}

template <class... Parts>
auto argument(const nb::ndarray<Parts...>*) {
  return nb::arg().noconvert();
}

template <class F, class R, class... Arguments>
void def(nb::module_& module, const char* name, F function, R (F::*)(Arguments...) const) {
  module.def(name, function, argument(static_cast<const std::remove_reference_t<Arguments>*>(nullptr))...);
}

template <class F>
void def(nb::module_& module, const char* name, F function) {
  def(module, name, function, &F::operator());
}

bool look_for_signals() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

// Runs a kernel without the GIL; what a signal's handler raises is raised when it has ended.
template <class F>
auto run(const Stop* stop, F&& kernel) {
  expect(!stop || stop->size() >= 1, "stop must hold a flag");
  std::atomic<bool> interrupted{false};
  Watch watch(stop ? stop->data() : nullptr, interrupted, look_for_signals);
  const auto ended = [&] {
    const nb::gil_scoped_release free;
    if constexpr (std::is_void_v<decltype(kernel(watch))>) {
      kernel(watch);
      return 0;
    } else {
      return kernel(watch);
    }
  }();
  if (interrupted) throw nb::python_error();
  return ended;
}

// What a kernel sees of an argument: a matrix of an array with two axes, the numbers of any other array.
template <class T>
const T& raw(const T& value) {
  return value;
}

template <class T>
Matrix<T> raw(const Array<T, 2>& array) {
  return {array.data(), size(array, 0), size(array, 1)};
}

template <class... Parts>
auto raw(const nb::ndarray<Parts...>& array) {
  return array.data();
}

template <class F, class... Arguments>
auto call(const Stop* stop, F&& kernel, const Arguments&... arguments) {
  return run(stop, [&](Watch& watch) {
    if constexpr (std::is_invocable_v<F, decltype(raw(arguments))..., Watch&>) {
      return kernel(raw(arguments)..., watch);
    } else {
      return kernel(raw(arguments)...);
    }
  });
}

}  // namespace
}  // namespace qpsbgd
