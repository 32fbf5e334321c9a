// The kernels as Python functions: every array's type, layout and shape and every index is checked here, once.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "groups.hpp"
#include "kernels.hpp"

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

// Sweeps over these sites of n spins, one per temperature.
template <class T>
Sweeps<T> sweeps_of(const Array<const std::int32_t, 1>& sites, const Array<const T, 1>& temperatures, int64_t n) {
  expect_indices(sites.data(), size(sites), 0, n, "sites");
  return {sites.data(), size(sites), temperatures.data(), size(temperatures)};
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

template <class T>
nb::object numpy(std::vector<T>&& values, size_t columns = 0) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  if (columns) return nb::ndarray<nb::numpy, T>(kept->data(), {kept->size() / columns, columns}, owner).cast();
  return nb::ndarray<nb::numpy, T>(kept->data(), {kept->size()}, owner).cast();
}

template <class T>
void bind_dense(nb::module_& module) {
  using Couplings = Array<const T, 2>;
  const auto expect_columns = [](const Couplings& couplings, const auto& spins, const auto& fields) {
    const int64_t n = size(couplings);
    expect(couplings, "couplings", {n, n});
    expect(n > 0, "there must be at least one spin");
    expect(spins, "spins", {size(spins), n});
    expect(fields, "fields", {size(spins), n});
  };

  def(module, "search", [=](Couplings couplings, Array<T, 2> fields, Array<T, 2> spins, Array<const T, 1> threshold,
                            Array<int64_t, 1> flips, int64_t max_flips, int64_t patience, int64_t tenure, int64_t seed,
                            Stop stop, int threads) {
    expect_columns(couplings, spins, fields);
    expect(threshold, "threshold", {size(spins)});
    expect(flips, "flips", {size(spins)});
    expect(tenure >= 0 && patience >= 0, "tenure and patience must not be negative");
    const Limits limits{max_flips, patience, tenure, 0, seed};
    call(&stop, search<T>, couplings, fields, spins, threshold, flips, limits, threads);
  });

  def(module, "turn", [=](Couplings couplings, Array<T, 2> fields, Array<T, 2> spins,
                          Array<const std::uint8_t, 2> marked, int threads) {
    expect_columns(couplings, spins, fields);
    expect(marked, "marked", {size(spins), size(couplings)});
    call(nullptr, turn<T>, couplings, fields, spins, marked, threads);
  });

  def(module, "anneal", [=](Couplings couplings, Array<T, 2> fields, Array<T, 2> spins,
                            Array<const std::int32_t, 1> sites, Array<const T, 1> temperatures,
                            Array<const std::uint64_t, 1> states, Array<int64_t, 1> made, Stop stop, int threads) {
    expect_columns(couplings, spins, fields);
    expect(states, "states", {size(spins)});
    expect(made, "made", {size(spins)});
    const Sweeps<T> sweeps = sweeps_of(sites, temperatures, size(couplings));
    call(&stop, anneal<T>, couplings, fields, spins, sweeps, states, made, threads);
  });

  def(module, "anneal_slices", [](Couplings couplings, Array<T, 3> fields, Array<T, 3> spins, Array<const T, 1> ties,
                                  Array<const T, 1> scale, double temperature, Array<const std::uint64_t, 1> states,
                                  int threads) {
    const int64_t n = size(couplings), m = size(spins), slices = size(spins, 1);
    expect(couplings, "couplings", {n, n});
    expect(spins, "spins", {m, slices, n});
    expect(fields, "fields", {m, slices, n});
    expect(scale, "scale", {m});
    expect(states, "states", {m});
    const T heat = static_cast<T>(temperature);
    call(nullptr, anneal_slices<T>, couplings, fields, spins, m, slices, ties, size(ties), scale, heat, states, threads);
  });

  def(module, "fields_of", [](Couplings couplings, Array<const T, 1> linear, Array<const T, 1> spins,
                              Array<T, 1> fields) {
    const int64_t n = size(couplings);
    expect(couplings, "couplings", {n, n});
    expect(linear, "linear", {n});
    expect(spins, "spins", {n});
    expect(fields, "fields", {n});
    call(nullptr, fields_of<T>, couplings, linear, spins, fields);
  });

  def(module, "search_layer", [](Couplings couplings, Array<const T, 1> diagonal, Couplings linear,
                                 Array<const T, 1> pulls, Array<T, 3> starts, Array<T, 3> fields,
                                 Array<const T, 1> threshold, Array<T, 2> found, int64_t patience, int64_t tenure,
                                 int64_t kicks, int64_t forced, int64_t seed, int threads) {
    const int64_t n = size(couplings), m = size(linear);
    expect(couplings, "couplings", {n, n});
    expect(n > 0, "there must be at least one spin");
    expect(diagonal, "diagonal", {n});
    expect(linear, "linear", {m, n});
    expect(pulls, "pulls", {n});
    expect(starts, "starts", {size(starts), m, n});
    expect(size(starts) > 0, "there must be at least one start");
    expect(fields, "fields", {size(starts), m, n});
    expect(threshold, "threshold", {m});
    expect(found, "found", {m, n});
    expect(tenure >= 0 && patience >= 0, "tenure and patience must not be negative");
    const Layer<T> layer{raw(couplings),   diagonal.data(), raw(linear), pulls.data(), starts.data(), fields.data(),
                         size(starts),     threshold.data(), patience,    tenure,       kicks,         forced,
                         seed};
    call(nullptr, search_layer<T>, layer, found.data(), threads);
  });

  def(module, "relax", [=](Couplings twice, Array<T, 2> slopes, Array<T, 2> points, int64_t passes, int threads) {
    expect_columns(twice, points, slopes);
    call(nullptr, relax<T>, twice, slopes, points, passes, threads);
  });

  def(module, "round_down", [=](Couplings factor, Array<T, 2> targets, Array<T, 2> spins, int threads) {
    expect_columns(factor, spins, targets);
    call(nullptr, round_down<T>, factor, targets, spins, threads);
  });
}

void bind_sparse(nb::module_& module) {
  using Linear = Array<const double, 1>;
  using Sites = Array<const std::int32_t, 1>;
  using Temperatures = Array<const double, 1>;
  using Spins = Array<std::int8_t, 1>;

  nb::class_<Rows>(module, "Rows")
      .def(
          "__init__",
          [](Rows* self, Array<const int64_t, 1> indptr, Array<const std::int32_t, 1> indices,
             Array<const double, 1> couplings) {
            const int64_t n = size(indptr) - 1, count = size(indices);
            const int64_t* begins = indptr.data();
            expect(n >= 1, "indptr must have at least two entries");
            expect(couplings, "couplings", {count});
            expect(begins[0] == 0 && begins[n] == count && std::is_sorted(begins, begins + n + 1),
                   "indptr must ascend from 0 to the number of couplings");
            expect_indices(indices.data(), count, 0, n, "indices");
            const double* values = couplings.data();
            new (self) Rows{{begins, begins + n + 1},
                            {indices.data(), indices.data() + count},
                            {values, values + count},
                            {values, values + count}};
          },
          "indptr"_a.noconvert(), "indices"_a.noconvert(), "couplings"_a.noconvert())
      .def("__len__", &Rows::size);

  const auto bind_anneal = [&](const char* name, auto* type, auto kernel) {
    using S = std::remove_pointer_t<decltype(type)>;
    def(module, name, [kernel](const Rows& rows, Linear linear, Array<S, 1> spins, Sites sites,
                               Temperatures temperatures, std::uint64_t state, Stop stop) {
      expect(linear, "linear", {rows.size()});
      expect(spins, "spins", {rows.size()});
      const Sweeps<double> sweeps = sweeps_of(sites, temperatures, rows.size());
      return call(&stop, kernel, rows, linear, spins, sweeps, state);
    });
  };
  bind_anneal("anneal_sparse", static_cast<std::int8_t*>(nullptr), anneal_sparse);
  bind_anneal("anneal_lanes", static_cast<std::uint16_t*>(nullptr), anneal_lanes);

  def(module, "harvest", [](const Rows& rows, Linear linear, Linear thresholds, Array<std::int8_t, 2> chains,
                            Spins spins, Stop stop) {
    const int64_t n = rows.size();
    expect(linear, "linear", {n});
    expect(thresholds, "thresholds", {n});
    expect(chains, "chains", {size(chains), n});
    expect(spins, "spins", {n});
    return call(&stop, harvest, rows, linear, thresholds, chains.data(), size(chains), spins);
  });

  def(module, "tabu_sparse", [](const Rows& rows, Linear linear, Spins spins, int64_t block, int64_t moves,
                                int64_t tenure, std::uint64_t state, Stop stop) {
    expect(linear, "linear", {rows.size()});
    expect(spins, "spins", {rows.size()});
    expect(block >= 1 && tenure >= 0, "block must be at least 1 and tenure at least 0");
    return call(&stop, tabu_sparse, rows, linear, spins, block, moves, tenure, state);
  });

  def(module, "colour", [](const Rows& rows, Array<int64_t, 1> colours) {
    expect(colours, "colours", {rows.size()});
    call(nullptr, colour, rows, colours);
  });

  def(module, "sweep_chip", [](const Rows& rows, Array<const float, 1> h, Array<float, 3> spins,
                               Array<const float, 2> schedule, Array<const std::uint64_t, 1> states, int threads) {
    const int64_t n = rows.size(), reads = size(spins), slices = size(spins, 1);
    expect(h, "h", {n});
    expect(spins, "spins", {reads, slices, n});
    expect(schedule, "schedule", {size(schedule), 3});
    expect(states, "states", {reads});
    const int64_t sweeps = size(schedule);
    call(nullptr, sweep_chip, rows, h, spins, reads, slices, schedule.data(), sweeps, states, threads);
  });

  def(module, "reduce", [](const Rows& rows, Linear linear, Stop stop) {
    expect(linear, "linear", {rows.size()});
    Reduced found = call(&stop, reduce, rows, linear);
    return std::make_tuple(numpy(std::move(found.begins)), numpy(std::move(found.columns)),
                           numpy(std::move(found.couplings)), numpy(std::move(found.linear)),
                           numpy(std::move(found.kept)), numpy(std::move(found.gone)),
                           numpy(std::move(found.neighbours), Reduced::MOST),
                           numpy(std::move(found.weights), Reduced::MOST), numpy(std::move(found.fields)));
  });

  def(module, "complete_reduced", [](Spins spins, Array<const int64_t, 1> gone, Array<const int64_t, 2> neighbours,
                                     Array<const double, 2> weights, Array<const double, 1> fields) {
    const int64_t count = size(gone), n = size(spins);
    expect(neighbours, "neighbours", {count, Reduced::MOST});
    expect(weights, "weights", {count, Reduced::MOST});
    expect(fields, "fields", {count});
    expect_indices(gone.data(), count, 0, n, "gone");
    expect_indices(neighbours.data(), count * Reduced::MOST, -1, n, "neighbours");
    call(nullptr, complete_reduced, spins, gone, count, neighbours.data(), weights.data(), fields);
  });
}

void bind_groups(nb::module_& module) {
  using Linear = Array<const double, 1>;

  def(module, "find_groups", [](const Rows& rows, Linear linear, Stop stop) {
    expect(linear, "linear", {rows.size()});
    expect(rows.ascend(), "indices must ascend in every row");
    FoundGroups found = call(&stop, find_groups, rows, linear);
    return std::make_tuple(numpy(std::move(found.begins)), numpy(std::move(found.members)), found.bases);
  });

  nb::class_<Groups>(module, "Groups")
      .def(
          "__init__",
          [](Groups* self, const Rows& rows, Linear linear, Array<const int64_t, 1> begins,
             Array<const std::int32_t, 1> members, int64_t bases) {
            const int64_t count = size(begins) - 1, n = rows.size();
            expect(linear, "linear", {n});
            expect(rows.ascend(), "indices must ascend in every row");
            expect(count >= 1 && begins.data()[0] == 0 && begins.data()[count] == size(members),
                   "begins must ascend from 0 to the number of members");
            for (int64_t g = 0; g < count; ++g) {
              expect(begins.data()[g] < begins.data()[g + 1], "begins must ascend from 0 to the number of members");
            }
            expect(bases >= 0 && bases <= count, "there must be at most as many bases as groups");
            expect_indices(members.data(), size(members), 0, n, "members");
            std::vector<char> taken(n);
            for (int64_t at = 0; at < begins.data()[bases]; ++at) {
              expect(!taken[members.data()[at]]++, "bases must have no spin in common");
            }
            FoundGroups groups{{begins.data(), begins.data() + count + 1},
                               {members.data(), members.data() + size(members)},
                               bases};
            const nb::gil_scoped_release free;
            new (self) Groups(rows, linear.data(), std::move(groups));
          },
          "rows"_a, "linear"_a.noconvert(), "begins"_a.noconvert(), "members"_a.noconvert(), "bases"_a,
          nb::keep_alive<1, 2>())
      .def_prop_ro("scale", &Groups::scale);

  def(module, "anneal_groups", [](const Groups& groups, Array<std::int8_t, 1> spins, Array<const std::int32_t, 1> sites,
                                  Array<const double, 1> temperatures, int64_t chains, bool fresh, std::uint64_t state,
                                  Stop stop) {
    expect(spins, "spins", {groups.rows().size()});
    expect(chains >= 1, "there must be at least one chain");
    const Sweeps<double> sweeps = sweeps_of(sites, temperatures, groups.rows().size());
    return run(&stop, [&](Watch& watch) {
      return groups.anneal(spins.data(), sweeps, chains, fresh, state, watch);
    });
  });

  def(module, "tabu_groups", [](const Groups& groups, Array<std::int8_t, 1> spins, int64_t moves, int64_t tenure,
                                std::uint64_t state, Stop stop) {
    expect(spins, "spins", {groups.rows().size()});
    expect(tenure >= 0, "tenure must not be negative");
    return run(&stop, [&](Watch& watch) { return groups.tabu(spins.data(), moves, tenure, state, watch); });
  });
}

void bind_exact(nb::module_& module) {
  using Given = Array<const double, 2>;
  const auto expect_columns = [](const Given& couplings, const Given& linear) {
    const int64_t n = size(couplings);
    expect(couplings, "couplings", {n, n});
    expect(n > 0, "there must be at least one spin");
    expect(linear, "linear", {size(linear), n});
  };

  def(module, "fix_dominated", [=](Given couplings, Given linear, Array<double, 2> fixed, Stop stop, int threads) {
    expect_columns(couplings, linear);
    expect(fixed, "fixed", {size(linear), size(couplings)});
    call(&stop, fix_dominated, couplings, linear, fixed, threads);
  });

  def(module, "complete", [=](Given couplings, Given linear, Given fixed, Array<double, 2> spins, Array<bool, 1> done,
                              Stop stop, int threads) {
    const int64_t n = size(couplings), m = size(linear);
    expect_columns(couplings, linear);
    expect(fixed, "fixed", {m, n});
    expect(spins, "spins", {m, n});
    expect(done, "done", {m});
    call(&stop, complete, couplings, linear, fixed, spins, done, threads);
  });

  def(module, "exhaust", [](Given couplings, Array<const double, 1> fields, Array<double, 1> spins, Stop stop,
                            int threads) {
    const int64_t k = size(couplings);
    expect(couplings, "couplings", {k, k});
    expect(fields, "fields", {k});
    expect(spins, "spins", {k});
    expect(k <= 60, "at most 60 spins can be tried out");
    return call(&stop, exhaust, couplings, fields, spins, threads);
  });

  def(module, "decode", [=](Given couplings, Given linear, Given fixed, Array<double, 2> spins, double shift,
                            int64_t node_limit, Array<int64_t, 1> nodes, Stop stop, int threads) {
    const int64_t n = size(couplings), m = size(linear);
    expect_columns(couplings, linear);
    expect(fixed, "fixed", {m, n});
    expect(spins, "spins", {m, n});
    expect(nodes, "nodes", {m});
    call(&stop, decode, couplings, linear, fixed, spins, shift, node_limit, nodes, threads);
  });
}

void bind_rows(nb::module_& module) {
  def(module, "scale_rows", [](Array<const float, 2> inputs, Array<const float, 2> grads, double gain, double scale,
                               bool literal, Array<float, 2> directions, Array<float, 2> targets,
                               Array<double, 1> found) {
    const int64_t rows = size(inputs), n = size(inputs, 1), m = size(grads, 1);
    expect(grads, "grads", {rows, m});
    expect(directions, "directions", {rows, n});
    expect(targets, "targets", {rows, m});
    expect(found, "found", {m + 1});
    call(nullptr, scale_rows, inputs, grads, gain, scale, literal, directions, targets, found);
  });
}

// The layers, once their parts are known to fit; `last_units` are those of a layer behind them.
BitLayers checked_layers(const Array<const float, 2>& rows, const Array<const int64_t, 1>& sizes,
                         const Array<const std::uint64_t, 1>& weights, const Array<const std::uint64_t, 1>& most,
                         const Array<const std::uint64_t, 2>& flipped, int64_t last_units) {
  const int64_t count = size(sizes) - 1, words = size(flipped);
  expect(count >= 0, "sizes must not be empty");
  expect_indices(sizes.data(), count + 1, 1, 64 * words + 1, "sizes");
  int64_t all_words = 0, units = 0;
  for (int64_t layer = 0; layer <= count; ++layer) {
    const int64_t behind = layer < count ? sizes.data()[layer + 1] : last_units;
    all_words += (sizes.data()[layer] + 63) / 64 * behind;
    units += layer < count ? behind : 0;
  }
  expect(rows, "rows", {size(rows), sizes.data()[0]});
  expect(weights, "weights", {all_words});
  expect(most, "most", {units});
  expect(flipped, "flipped", {words, count});
  return {sizes.data(), count + 1, weights.data(), most.data(), flipped.data(), words};
}

void bind_bits(nb::module_& module) {
  using Inputs = Array<const float, 2>;
  using Sizes = Array<const int64_t, 1>;
  using Words = Array<const std::uint64_t, 1>;
  using Flipped = Array<const std::uint64_t, 2>;

  def(module, "dense_signs", [](Inputs rows, Sizes sizes, Words weights, Words most, Flipped flipped,
                                Array<std::int8_t, 2> out) {
    const BitLayers layers = checked_layers(rows, sizes, weights, most, flipped, 0);
    expect(out, "out", {size(rows), sizes.data()[size(sizes) - 1]});
    return call(nullptr, dense_signs, rows, layers, out);
  });

  def(module, "dense_sums", [](Inputs rows, Sizes sizes, Words weights, Words most, Flipped flipped,
                               Array<const float, 1> factor, Array<const float, 1> offset, Array<float, 2> out) {
    const int64_t units = size(out, 1);
    const BitLayers layers = checked_layers(rows, sizes, weights, most, flipped, units);
    expect(factor, "factor", {units});
    expect(offset, "offset", {units});
    expect(out, "out", {size(rows), units});
    return call(nullptr, dense_sums, rows, layers, factor, offset, out);
  });

}

using Taps = Array<const int64_t, 2>;

Windows windows_of(int64_t height, int64_t length, int64_t channels, const Taps& rows, const Taps& columns) {
  const Windows s{height, length, channels, size(rows, 1), size(columns, 1), size(rows), size(columns), rows.data(), columns.data()};
  expect_indices(s.rows, s.num_rows * s.high, -1, height, "rows");
  expect_indices(s.columns, s.num_columns * s.wide, -1, length, "columns");
  return s;
}

template <class Out>
void bind_layers(nb::module_& module) {
  using Numbers = Array<const int64_t, 1>;
  using Bounds = Array<const std::int32_t, 1>;
  // What is done to sums of these windows, once all fits.
  const auto behind_of = [](const Windows& s, int64_t units, int64_t count, const Taps& rows, const Taps& columns,
                            const Numbers& factors, const Numbers& offsets, int64_t shift, const Bounds& lows,
                            const Bounds& highs, const Taps& exceptions, const Array<Out, 4>& out, int64_t largest) {
    expect(s.high > 0 && s.wide > 0 && s.channels > 0, "a window must have at least one pixel and one channel");
    const Windows pool = windows_of(s.num_rows, s.num_columns, units, rows, columns);
    const Windows& last = pool.positions() ? pool : s;
    expect(out, "out", {count, last.num_rows, last.num_columns, units});
    if (std::is_same_v<Out, std::uint8_t>) {
      expect(factors, "factors", {units});
      expect(offsets, "offsets", {units});
      expect(lows, "lows", {units});
      expect(highs, "highs", {units});
      expect(exceptions, "exceptions", {size(exceptions), 3});
      for (int64_t k = 0; k < size(exceptions); ++k) {
        expect_indices(exceptions.data() + 3 * k, 1, 0, units, "units of exceptions");
      }
      expect(shift >= 0 && shift < 63, "shift must be 0 to 62");
    }
    return AfterSums{pool, factors.data(), offsets.data(), lows.data(), highs.data(), exceptions.data(), size(exceptions), shift, largest};
  };

  def(module, "bit_layer",
      [behind_of](Array<const std::int8_t, 4> images, Array<const std::uint64_t, 3> weights,
                  Array<const std::int32_t, 4> ones, Taps rows, Taps columns, Taps pool_rows, Taps pool_columns,
                  Numbers factors, Numbers offsets, int64_t shift, Bounds lows, Bounds highs, Taps exceptions,
                  Array<Out, 4> out) {
        const Windows s = windows_of(size(images, 1), size(images, 2), size(images, 3), rows, columns);
        const BitWeights all{size(weights, 0), size(weights, 1), size(weights, 2), weights.data(), ones.data()};
        const AfterSums behind = behind_of(s, all.groups * all.units, size(images), pool_rows, pool_columns, factors,
                                        offsets, shift, lows, highs, exceptions, out, s.high * s.wide * s.channels);
        expect(all.groups > 0 && s.channels % all.groups == 0, "channels must be a multiple of the groups");
        expect(all.words == (s.high * s.wide * (s.channels / all.groups) + 63) / 64,
               "weights must have a word per 64 inputs of a group");
        expect(ones, "ones", {all.groups, s.high, s.wide, all.units});
        run(nullptr, [&](Watch&) { bit_layer(images.data(), size(images), s, all, behind, out.data()); });
      });

  def(module, "byte_layer",
      [behind_of](Array<const std::uint8_t, 4> images, Array<const std::int8_t, 4> weights, Bounds starts,
                  int zero_point, Taps rows, Taps columns, Taps pool_rows, Taps pool_columns, Numbers factors,
                  Numbers offsets, int64_t shift, Bounds lows, Bounds highs, Taps exceptions, Array<Out, 4> out) {
        const Windows s = windows_of(size(images, 1), size(images, 2), size(images, 3), rows, columns);
        const ByteWeights all{size(out, 3), size(weights, 1), weights.data(), starts.data(),
                              static_cast<std::uint8_t>(zero_point)};
        int64_t largest = 0;
        for (int64_t k = 0; k < size(starts); ++k) largest = std::max(largest, std::abs(int64_t{starts.data()[k]}));
        largest += 255 * s.high * s.wide * s.channels;
        const AfterSums behind = behind_of(s, all.units, size(images), pool_rows, pool_columns, factors, offsets, shift,
                                           lows, highs, exceptions, out, largest);
        const int64_t panels = (all.units + all.PANEL - 1) / all.PANEL;
        expect(all.quads == (s.high * s.wide * s.channels + 3) / 4, "weights must have four bytes per four inputs");
        expect(weights, "weights", {panels, all.quads, all.PANEL, 4});
        expect(starts, "starts", {panels * all.PANEL});
        expect(zero_point >= 0 && zero_point < 256, "zero_point must be a byte");
        run(nullptr, [&](Watch&) { byte_layer(images.data(), size(images), s, all, behind, out.data()); });
      });
}

// The steps, once all that they name is known to exist.
RealSteps checked_steps(const Array<const int64_t, 2>& steps, const Array<const int64_t, 1>& slots,
                        const Array<const int64_t, 1>& taps, const Array<const float, 1>& numbers,
                        const Array<const std::uint64_t, 1>& words) {
  static_assert(sizeof(RealStep) == RealStep::FIELDS * sizeof(int64_t));
  constexpr int64_t LARGE = int64_t{1} << 31;
  const RealSteps all{reinterpret_cast<const RealStep*>(steps.data()), size(steps), slots.data(), size(slots),
                      taps.data(), numbers.data(), words.data()};
  expect(steps, "steps", {all.count, RealStep::FIELDS});
  expect(all.num_slots >= 2, "slots must have an input and an output");
  expect_indices(slots.data(), all.num_slots, 0, LARGE, "slots");
  const auto room = [&](int64_t one, int64_t two, int64_t three, int64_t most, const char* what) {
    expect(one > 0 && two > 0 && three > 0 && one < LARGE && two < LARGE && three < LARGE && one * two < LARGE &&
               one * two * three <= most,
           what);
  };
  const auto inside = [&](int64_t begin, int64_t count, int64_t end, const char* what) {
    expect(begin >= 0 && count >= 0 && count <= end && begin <= end - count, what);
  };
  for (int64_t k = 0; k < all.count; ++k) {
    const RealStep& s = all.steps[k];
    expect_indices(&s.kind, 1, 0, RealStep::KINDS, "kinds of steps");
    const bool adds = s.kind == RealStep::ADD, sums = s.kind == RealStep::SUMS;
    const bool windows = s.kind <= RealStep::MEAN;
    expect_indices(&s.source, 1, 0, all.num_slots, "slots of steps");
    expect_indices(&s.target, 1, 1, all.num_slots, "slots of steps");
    if (adds) expect_indices(&s.other, 1, 0, all.num_slots, "slots of steps");
    expect(s.source != s.target && (!adds || s.other != s.target), "a step must write to another slot");
    room(s.height, s.length, s.channels, slots.data()[s.source], "a step's values must fit into its source");
    room(s.rows, s.columns, s.units, slots.data()[s.target], "a step's values must fit into its target");
    if (adds) room(s.height, s.length, s.channels, slots.data()[s.other], "a step's values must fit into its source");
    expect(s.groups > 0 && s.channels % s.groups == 0 && s.units % s.groups == 0 && (sums || s.groups == 1),
           "groups must divide channels and units, and be 1 but for sums");
    if (s.kind == RealStep::TRANSPOSE) {
      expect(s.rows == s.length && s.columns == s.height && s.channels == 1 && s.units == 1,
             "a transpose must exchange height and length");
    } else if (!windows) {
      expect(s.rows == s.height && s.columns == s.length, "a step without a window must keep the image");
    }
    expect(sums || s.units == s.channels, "a step without sums over channels must keep their number");
    if (s.kind != RealStep::TRANSPOSE) {
      inside(s.behind, 2 + 2 * RealSteps::all_units(s), size(numbers), "factors and offsets must be among the numbers");
    }
    if (!windows) continue;
    inside(s.weights, 0, size(numbers), "weights must be among the numbers");
    room(s.high, s.wide, s.channels, LARGE, "a window must have at least one pixel");
    const int64_t window = s.high * s.wide, n = window * (s.channels / s.groups);
    if (sums && s.direct) {
      expect(window == 1 && s.groups == 1 && s.rows * s.columns == s.height * s.length,
             "direct sums must be of one pixel each");
    } else {
      room(s.rows, s.high, 1, LARGE, "a window must have at least one pixel");
      room(s.columns, s.wide, 1, LARGE, "a window must have at least one pixel");
      inside(s.taps, s.rows * s.high + s.columns * s.wide, size(taps), "indices of pixels must be among the taps");
      expect_indices(taps.data() + s.taps, s.rows * s.high, -1, s.height, "rows");
      expect_indices(taps.data() + s.taps + s.rows * s.high, s.columns * s.wide, -1, s.length, "columns");
    }
    if (sums) {
      room(RealSteps::all_units(s), n, 1, size(numbers), "weights must be among the numbers");
      inside(s.weights, RealSteps::all_units(s) * n, size(numbers), "weights must be among the numbers");
    } else if (s.kind == RealStep::PER_CHANNEL) {
      inside(s.weights, n, size(numbers), "weights must be among the numbers");
    }
    if (sums && s.words >= 0) {
      expect(s.direct, "signs are looked up for direct sums only");
      inside(s.words, (n + 63) / 64 * s.units, size(words), "signs must be among the words");
    }
  }
  return all;
}

void bind_real(nb::module_& module) {
  def(module, "real_steps", [](Array<const int64_t, 2> steps, Array<const int64_t, 1> slots,
                               Array<const int64_t, 1> taps, Array<const float, 1> numbers,
                               Array<const std::uint64_t, 1> words, Array<const float, 2> inputs, Array<float, 2> out) {
    const RealSteps all = checked_steps(steps, slots, taps, numbers, words);
    expect(inputs, "inputs", {size(inputs), slots.data()[0]});
    expect(out, "out", {size(inputs), slots.data()[1]});
    return call(nullptr, real_steps, all, inputs, out);
  });
}

}  // namespace

NB_MODULE(_kernels, module) {
  bind_dense<float>(module);
  bind_dense<double>(module);
  bind_sparse(module);
  bind_groups(module);
  bind_exact(module);
  bind_rows(module);
  bind_bits(module);
  bind_layers<std::uint8_t>(module);  // first: arguments are converted once per overload that does not fit
  bind_layers<std::int32_t>(module);
  bind_real(module);
}

}  // namespace qpsbgd
