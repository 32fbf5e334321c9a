// Searches of one sparse problem: annealing of one chain, tabu moves, and the best of several answers part by part.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels.hpp"
#include "pool.hpp"

namespace qpsbgd {
namespace {

std::int64_t anneal_sparse(const Rows& rows, const double* linear, std::int8_t* spins, Sweeps<double> sweeps,
                           std::uint64_t state, Watch& watch) {
  std::vector<float> fields(rows.size());
  rows.set_fields(linear, spins, fields.data());
  Random random(state);
  return sweep<float>(sweeps, [&](std::int64_t i) { return 2 * spins[i] * fields[i]; },
                      [&](std::int64_t i) { rows.flip(fields.data(), spins, i); }, random, watch);
}

// Flips every spin that gains more than its threshold, in turn, until none does; the energy gained, at most 0.
double descend(const Rows& rows, double* fields, std::int8_t* spins, const double* thresholds, Watch& watch) {
  double gained = 0;
  for (bool again = true; again;) {
    again = false;
    for (std::int64_t i = 0; i < rows.size(); ++i) {
      const double gain = spins[i] * fields[i];
      if (!(gain > thresholds[i])) continue;
      if (watch.stopped()) return gained;
      gained -= 2 * gain;
      again = true;
      rows.flip(fields, spins, i);
    }
  }
  return gained;
}

// Takes over from `other` every part that does not raise the energy; the energy gained, at most 0. The spins in which
// the two differ fall into clusters that no coupling connects. Each is taken over or left by itself, so the result is
// the best of 2^clusters combinations and no higher than either. `marks` are zero before and after.
double merge(const Rows& rows, double* fields, std::int8_t* spins, const std::int8_t* other,
             std::vector<std::int8_t>& marks, std::vector<std::int32_t>& queue) {
  double gained = 0;
  for (std::int64_t i = 0; i < rows.size(); ++i) marks[i] = spins[i] != other[i];
  for (std::int64_t root = 0; root < rows.size(); ++root) {
    if (!marks[root]) continue;
    queue.assign(1, static_cast<std::int32_t>(root));
    marks[root] = 2;
    double change = 0;
    for (std::size_t reached = 0; reached < queue.size(); ++reached) {
      const std::int64_t i = queue[reached];
      double outside = fields[i];
      for (std::int64_t at = rows.begins[i]; at < rows.begins[i + 1]; ++at) {
        const std::int32_t j = rows.columns[at];
        if (!marks[j]) continue;
        outside -= rows.couplings[at] * spins[j];  // couplings within the cluster stay as they are when it is flipped
        if (marks[j] == 1) {
          queue.push_back(j);
          marks[j] = 2;
        }
      }
      change -= 2 * spins[i] * outside;
    }
    for (const std::int32_t i : queue) marks[i] = 0;
    if (change > 0) continue;
    gained += change;
    for (const std::int32_t i : queue) rows.flip(fields, spins, i);
  }
  return gained;
}

double harvest(const Rows& rows, const double* linear, const double* thresholds, std::int8_t* chains,
               std::int64_t num_chains, std::int8_t* spins, Watch& watch) {
  const std::int64_t n = rows.size();
  std::vector<double> fields(n);
  std::vector<std::int8_t> marks(n);
  std::vector<std::int32_t> queue;
  queue.reserve(n);
  const bool symmetric = std::all_of(linear, linear + n, [](double h) { return h == 0; });
  double energy = rows.set_fields(linear, spins, fields.data());
  energy += descend(rows, fields.data(), spins, thresholds, watch);
  for (std::int64_t chain = 0; chain < num_chains && !(chain && watch.stopped()); ++chain) {
    std::int8_t* other = chains + chain * n;
    if (symmetric) {  // an answer and its negative are the same; the nearer is merged
      std::int64_t differing = 0;
      for (std::int64_t i = 0; i < n; ++i) differing += spins[i] != other[i];
      if (2 * differing > n) std::transform(other, other + n, other, [](std::int8_t s) { return std::int8_t(-s); });
    }
    energy += merge(rows, fields.data(), spins, other, marks, queue);
  }
  return energy + descend(rows, fields.data(), spins, thresholds, watch);
}

// The best flip of every block of spins, brought up to date where something changed.
class Blocks {
 public:
  Blocks(std::int64_t n, std::int64_t block)
      : n_(n), block_(block), count_((n + block - 1) / block), best_(count_), gains_(count_), stale_(count_, true),
        waiting_(count_) {
    for (std::int64_t b = 0; b < count_; ++b) waiting_[b] = static_cast<std::int32_t>(b);
  }

  void touch(std::int64_t i) {
    const std::int64_t b = i / block_;
    if (stale_[b]) return;
    stale_[b] = true;
    waiting_.push_back(static_cast<std::int32_t>(b));
  }

  // The best flip of all that are free at this move; −1 if none is.
  std::int64_t best(const double* fields, const std::int8_t* spins, const std::int64_t* free_from,
                    std::int64_t move) {
    constexpr double NONE = -std::numeric_limits<double>::infinity();
    for (const std::int32_t b : waiting_) {
      stale_[b] = false;
      std::int64_t pick = -1;
      double most = NONE;
      const std::int64_t end = std::min(n_, (b + 1) * block_);
      for (std::int64_t k = b * block_; k < end; ++k) {
        const double gain = spins[k] * fields[k];
        if (gain > most && free_from[k] <= move) pick = k, most = gain;
      }
      best_[b] = pick, gains_[b] = most;
    }
    waiting_.clear();
    std::int64_t found = -1;
    double most = NONE;
    for (std::int64_t b = 0; b < count_; ++b) {
      if (gains_[b] > most) found = best_[b], most = gains_[b];
    }
    return found;
  }

 private:
  std::int64_t n_, block_, count_;
  std::vector<std::int64_t> best_;
  std::vector<double> gains_;
  std::vector<char> stale_;
  std::vector<std::int32_t> waiting_;
};

double tabu_sparse(const Rows& rows, const double* linear, std::int8_t* spins, std::int64_t block, std::int64_t moves,
                   std::int64_t tenure, std::uint64_t state, Watch& watch) {
  const std::int64_t n = rows.size(), longest = 2 * tenure + 10;
  std::vector<double> fields(n);
  double energy = rows.set_fields(linear, spins, fields.data());
  std::vector<std::int64_t> free_from(n), following(n, -1);
  std::vector<std::int64_t> first(longest + 1, -1);  // of the spins that become free at a move
  Blocks blocks(n, block);
  Random random(state);
  std::vector<std::int8_t> lowest(spins, spins + n);
  double lowest_energy = energy;
  bool descending = false;
  for (std::int64_t move = 1; move <= moves && !watch.stopped(); ++move) {
    for (std::int64_t& i = first[move % (longest + 1)]; i >= 0; i = following[i]) blocks.touch(i);
    const std::int64_t i = blocks.best(fields.data(), spins, free_from.data(), move);
    if (i < 0) continue;
    const double gain = spins[i] * fields[i];
    if (descending && gain <= 0) {
      lowest.assign(spins, spins + n);
      descending = false;
    }
    rows.flip(fields.data(), spins, i);
    energy -= 2 * gain;
    free_from[i] = move + 1 + tenure + random.below(std::max<std::int64_t>(6, tenure / 2));
    std::int64_t& head = first[free_from[i] % (longest + 1)];
    following[i] = head;
    head = i;
    blocks.touch(i);
    for (std::int64_t at = rows.begins[i]; at < rows.begins[i + 1]; ++at) blocks.touch(rows.columns[at]);
    if (energy < lowest_energy - 1e-12 * std::abs(lowest_energy)) {
      lowest_energy = energy;
      descending = true;
    }
  }
  if (!descending) std::copy(lowest.begin(), lowest.end(), spins);
  return lowest_energy;
}

void sweep_chip(const Rows& rows, const float* h, float* spins, std::int64_t reads, std::int64_t slices,
                const float* schedule, std::int64_t sweeps, const std::uint64_t* states, int threads, Watch& watch) {
  const std::int64_t n = rows.size();
  parallel(reads, threads, watch, [&](std::int64_t r, Watch& seen) {
    float* spin = spins + r * slices * n;
    std::vector<float> fields(slices * n);
    for (std::int64_t k = 0; k < slices; ++k) {
      for (std::int64_t i = 0; i < n; ++i) {
        float total = h[i];
        for (std::int64_t at = rows.begins[i]; at < rows.begins[i + 1]; ++at) {
          total += rows.singles[at] * spin[k * n + rows.columns[at]];
        }
        fields[k * n + i] = total;
      }
    }
    Random random(states[r]);
    const auto flip = [&](float* f, float* s, std::int64_t i) { rows.flip(f, s, i); };
    sweep_slices(fields.data(), spin, n, slices, sweeps, [=](std::int64_t t) {
      return Tied<float>{schedule[3 * t], schedule[3 * t + 1], schedule[3 * t + 2]};
    }, flip, random, seen);
  });
}

}  // namespace

void bind_sparse(nb::module_& module) {
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

  bind_anneal<std::int8_t>(module, "anneal_sparse", anneal_sparse);

  def(module, "harvest", [](const Rows& rows, Linear linear, Linear thresholds, Array<std::int8_t, 2> chains,
                            Spins spins, Stop stop) {
    const int64_t n = rows.size();
    expect(linear, "linear", {n});
    expect(thresholds, "thresholds", {n});
    expect(std::all_of(thresholds.data(), thresholds.data() + n, [](double gain) { return gain >= 0; }),
           "thresholds must be at least 0, or a descent would not end");
    expect_spins(chains, "chains", {size(chains), n});
    expect_spins(spins, "spins", {n});
    return call(&stop, harvest, rows, linear, thresholds, chains.data(), size(chains), spins);
  });

  def(module, "tabu_sparse", [](const Rows& rows, Linear linear, Spins spins, int64_t block, int64_t moves,
                                int64_t tenure, std::uint64_t state, Stop stop) {
    expect(linear, "linear", {rows.size()});
    expect_spins(spins, "spins", {rows.size()});
    expect_moves(tenure, std::max<int64_t>(0, moves));
    expect(block >= 1 && block <= int64_t{1} << 31, "block must be at least 1 and at most 2^31");
    return call(&stop, tabu_sparse, rows, linear, spins, block, moves, tenure, state);
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
}

}  // namespace qpsbgd
