// What both bindings check and call kernels with: every array's type, layout and shape and every index, once.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#ifndef _WIN32
#include <pthread.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "matrix.hpp"
#include "watch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace qpsbgd {

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

inline void expect(bool holds, const char* message) {
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

// The memory of an array.
struct Span {
  const char *begin = nullptr, *end = nullptr;
  bool written = false;
};

template <class T>
Span span_of(const T&) {
  return {};
}

template <class T, class... Parts>
Span span_of(const nb::ndarray<T, Parts...>& array) {
  const char* begin = reinterpret_cast<const char*>(array.data());
  expect(reinterpret_cast<std::uintptr_t>(begin) % alignof(T) == 0, "arrays must be aligned to their type; pass a copy");
  return {begin, begin + array.nbytes(), !std::is_const_v<T>};
}

// Kernels read and write in any order: what they write must be nobody else's.
template <class... Arguments>
void expect_apart(const Arguments&... arguments) {
  const std::array<Span, sizeof...(Arguments)> spans{span_of(arguments)...};
  for (std::size_t a = 0; a < spans.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const bool apart = spans[a].end <= spans[b].begin || spans[b].end <= spans[a].begin;
      expect(apart || spans[a].begin == spans[a].end || spans[b].begin == spans[b].end ||
                 !(spans[a].written || spans[b].written),
             "arrays that are written must not share memory with others; pass copies");
    }
  }
}

template <class F, class R, class... Arguments>
void def(nb::module_& module, const char* name, F function, R (F::*)(Arguments...) const) {
  module.def(
      name,
      [function](Arguments... arguments) {
        expect_apart(arguments...);
        return function(arguments...);
      },
      argument(static_cast<const std::remove_reference_t<Arguments>*>(nullptr))...);
}

template <class F>
void def(nb::module_& module, const char* name, F function) {
  def(module, name, function, &F::operator());
}

// A function that keeps copies of all arguments but the one at `Input` and the last: what is fixed is converted once.
template <std::size_t Input, class F, class... Arguments>
nb::object prepared(F function, Arguments... arguments) {
  using All = std::tuple<std::decay_t<Arguments>...>;
  constexpr std::size_t LAST = sizeof...(Arguments) - 1;
  using Inputs = std::tuple_element_t<Input, All>;
  using Outputs = std::tuple_element_t<LAST, All>;
  return nb::cpp_function(
      [function, all = All(arguments...)](Inputs inputs, Outputs out) {
        All given = all;
        std::get<Input>(given) = std::move(inputs);
        std::get<LAST>(given) = std::move(out);
        return std::apply(
            [&](const auto&... one) {
              expect_apart(one...);
              return function(one...);
            },
            given);
      },
      nb::arg().noconvert(), nb::arg().noconvert());
}

// The function, and `prepare_` with its name, which takes the same arguments, of any number of samples, and gives a
// function of inputs and outputs alone.
template <std::size_t Input, class F, class R, class... Arguments>
void def_prepared(nb::module_& module, const char* name, F function, R (F::*signature)(Arguments...) const) {
  def(module, name, function, signature);
  module.def(
      ("prepare_" + std::string(name)).c_str(),
      [function](Arguments... arguments) {
        function(arguments...);  // which checks them
        return prepared<Input>(function, arguments...);
      },
      argument(static_cast<const std::remove_reference_t<Arguments>*>(nullptr))...);
}

template <std::size_t Input = 0, class F>
void def_prepared(nb::module_& module, const char* name, F function) {
  def_prepared<Input>(module, name, function, &F::operator());
}

inline bool look_for_signals() {
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

inline std::atomic<int> running{0};         // kernels outside the GIL
inline std::atomic<std::thread::id> last{};  // the thread that ends the interpreter

// When the interpreter ends, kernels stop, and it waits until they have. A thread that takes the GIL later is ended by
// force, which C++ answers with an abort: so threads that nobody waits for do not come back from a kernel any more.
inline void stop_at_exit() {
#ifndef _WIN32
  pthread_atfork(nullptr, nullptr, [] { running = 0; });
#endif
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    last = std::this_thread::get_id();
    leaving = true;
    const nb::gil_scoped_release free;
    while (running) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }));
}

// While it lives, the GIL is free.
class Outside {
 public:
  Outside() {
    ++running;
    state_ = PyEval_SaveThread();
    stay_if_leaving();
  }
  ~Outside() {
    stay_if_leaving();
    PyEval_RestoreThread(state_);
    --running;
  }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

 private:
  static void stay_if_leaving() {
    if (!leaving || last.load() == std::this_thread::get_id()) return;
    --running;
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }

  PyThreadState* state_;
};

// Runs a kernel without the GIL; what a signal's handler raises is raised when it has ended.
template <class F>
auto run(const Stop* stop, F&& kernel) {
  expect(!stop || stop->size() >= 1, "stop must hold a flag");
  std::atomic<bool> interrupted{false};
  Watch watch(stop ? stop->data() : nullptr, interrupted, look_for_signals);
  const auto ended = [&] {
    const Outside free;
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

}  // namespace qpsbgd
