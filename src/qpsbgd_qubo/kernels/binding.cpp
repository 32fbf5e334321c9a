// The solvers' kernels as Python functions.
#include "binding.hpp"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "groups.hpp"
#include "kernels.hpp"

namespace qpsbgd {
namespace {

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
void expect_spins(const std::int8_t* spins, int64_t count) {
  expect(std::all_of(spins, spins + count, [](std::int8_t s) { return s == 1 || s == -1; }), "spins must be -1 or 1");
}

// Rings of moves have room for the tenure, and sums of moves must not overflow.
void expect_moves(int64_t tenure, int64_t patience) {
  expect(tenure >= 0 && tenure <= int64_t{1} << 24, "tenure must be at least 0 and at most 2^24");
  expect(patience >= 0 && patience <= int64_t{1} << 62, "patience and moves must be at least 0 and at most 2^62");
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
    expect_moves(tenure, patience);
    const Limits limits{max_flips, patience, tenure, 0, seed};
    call(&stop, search<T>, couplings, fields, spins, threshold, flips, limits, threads);
  });

  def(module, "flip_marked", [=](Couplings couplings, Array<T, 2> fields, Array<T, 2> spins,
                          Array<const std::uint8_t, 2> marked, int threads) {
    expect_columns(couplings, spins, fields);
    expect(marked, "marked", {size(spins), size(couplings)});
    call(nullptr, flip_marked<T>, couplings, fields, spins, marked, threads);
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
                                 Array<const T, 1> coupling_sums, Array<T, 3> starts, Array<T, 3> fields,
                                 Array<const T, 1> threshold, Array<T, 2> found, int64_t patience, int64_t tenure,
                                 int64_t kicks, int64_t forced, int64_t seed, int threads) {
    const int64_t n = size(couplings), m = size(linear);
    expect(couplings, "couplings", {n, n});
    expect(n > 0, "there must be at least one spin");
    expect(diagonal, "diagonal", {n});
    expect(linear, "linear", {m, n});
    expect(coupling_sums, "coupling_sums", {n});
    expect(starts, "starts", {size(starts), m, n});
    expect(size(starts) > 0, "there must be at least one start");
    expect(fields, "fields", {size(starts), m, n});
    expect(threshold, "threshold", {m});
    expect(found, "found", {m, n});
    expect_moves(tenure, patience);
    expect(patience <= int64_t{1} << 53, "patience must be at most 2^53");
    const Layer<T> layer{raw(couplings),   diagonal.data(), raw(linear), coupling_sums.data(), starts.data(), fields.data(),
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
            expect_apart(indptr, indices, couplings);
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
      if constexpr (std::is_same_v<S, std::int8_t>) expect_spins(spins.data(), rows.size());
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
    expect(std::all_of(thresholds.data(), thresholds.data() + n, [](double gain) { return gain >= 0; }),
           "thresholds must be at least 0, or a descent would not end");
    expect(chains, "chains", {size(chains), n});
    expect(spins, "spins", {n});
    expect_spins(chains.data(), size(chains) * n);
    expect_spins(spins.data(), n);
    return call(&stop, harvest, rows, linear, thresholds, chains.data(), size(chains), spins);
  });

  def(module, "tabu_sparse", [](const Rows& rows, Linear linear, Spins spins, int64_t block, int64_t moves,
                                int64_t tenure, std::uint64_t state, Stop stop) {
    expect(linear, "linear", {rows.size()});
    expect(spins, "spins", {rows.size()});
    expect_spins(spins.data(), rows.size());
    expect_moves(tenure, std::max<int64_t>(0, moves));
    expect(block >= 1 && block <= int64_t{1} << 31, "block must be at least 1 and at most 2^31");
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
            expect_apart(linear, begins, members);
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
    expect_spins(spins.data(), groups.rows().size());
    expect(chains >= 1, "there must be at least one chain");
    const Sweeps<double> sweeps = sweeps_of(sites, temperatures, groups.rows().size());
    return run(&stop, [&](Watch& watch) {
      return groups.anneal(spins.data(), sweeps, chains, fresh, state, watch);
    });
  });

  def(module, "tabu_groups", [](const Groups& groups, Array<std::int8_t, 1> spins, int64_t moves, int64_t tenure,
                                std::uint64_t state, Stop stop) {
    expect(spins, "spins", {groups.rows().size()});
    expect_spins(spins.data(), groups.rows().size());
    expect_moves(tenure, std::max<int64_t>(0, moves));
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
    for (int64_t j = 0; j < m; ++j) {
      const double* own = fixed.data() + j * n;
      expect(std::count(own, own + n, 0.0) <= 60, "at most 60 open spins of a column can be tried out");
    }
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

}  // namespace

NB_MODULE(_kernels, module) {
  stop_at_exit();
  bind_dense<float>(module);
  bind_dense<double>(module);
  bind_sparse(module);
  bind_groups(module);
  bind_exact(module);
}

}  // namespace qpsbgd
