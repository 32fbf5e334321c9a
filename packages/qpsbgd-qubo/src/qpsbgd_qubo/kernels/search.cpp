// Searches of all columns of a dense family.
#include <algorithm>
#include <cmath>
#include <vector>

#include "dense.hpp"
#include "kernels.hpp"
#include "pool.hpp"

namespace qpsbgd {
namespace {

template <class T>
void search(Matrix<const T> couplings, Matrix<T> fields, Matrix<T> spins, const T* threshold, std::int64_t* flips,
            Limits limits, int threads, Watch& watch) {
  parallel(spins.rows, threads, watch, [&](std::int64_t j, Watch& seen) {
    Workspace<T> room(spins.columns);
    Limits own = limits;
    own.column = j;
    flips[j] = lower(couplings, fields[j], spins[j], threshold[j], own, room, seen).flips;
  });
}

// Flips every spin that is marked; fields follow.
template <class T>
void flip_marked(Matrix<const T> couplings, Matrix<T> fields, Matrix<T> spins, Matrix<const std::uint8_t> marked, int threads,
          Watch& watch) {
  parallel(spins.rows, threads, watch, [&](std::int64_t j, Watch& seen) {
    for (std::int64_t i = 0; i < spins.columns && !seen.stopped(); ++i) {
      if (marked[j][i]) flip(couplings, fields[j], spins[j], i);
    }
  });
}

template <class T>
void anneal(Matrix<const T> couplings, Matrix<T> fields, Matrix<T> spins, Sweeps<T> sweeps,
            const std::uint64_t* states, std::int64_t* made, int threads, Watch& watch) {
  parallel(spins.rows, threads, watch, [&](std::int64_t j, Watch& seen) {
    T *field = fields[j], *spin = spins[j];
    Random random(states[j]);
    const auto gain = [=](std::int64_t i) { return 2 * spin[i] * field[i]; };
    made[j] = sweep<T>(sweeps, gain, [&](std::int64_t i) { flip(couplings, field, spin, i); }, random, seen);
  });
}

template <class T>
void anneal_slices(Matrix<const T> couplings, T* fields, T* spins, std::int64_t columns, std::int64_t slices,
                   const T* ties, std::int64_t sweeps, const T* scale, T temperature, const std::uint64_t* states,
                   int threads, Watch& watch) {
  const std::int64_t n = couplings.columns;
  parallel(columns, threads, watch, [&](std::int64_t j, Watch& seen) {
    Random random(states[j]);
    const T weight = 1 / scale[j];
    sweep_slices(fields + j * slices * n, spins + j * slices * n, n, slices, sweeps,
                 [=](std::int64_t t) { return Tied<T>{weight, ties[t], temperature}; },
                 [&](T* f, T* s, std::int64_t i) { flip(couplings, f, s, i); }, random, seen);
  });
}

template <class T>
void fields_of(Matrix<const T> couplings, const T* linear, const T* spins, T* fields) {
  for (std::int64_t i = 0; i < couplings.rows; ++i) fields[i] = linear[i] + dot(couplings[i], spins, couplings.columns);
}

template <class T>
struct Layer {
  Matrix<const T> couplings;
  const T* diagonal;
  Matrix<const T> linear;
  const T* coupling_sums;
  T *starts, *fields;  // (num_starts, m, n), overwritten
  std::int64_t num_starts;
  const T* threshold;
  std::int64_t patience, tenure, kicks, forced, seed;
};

constexpr double WON_BACK = 4.0;    // largest cost of a flip, in units of its diagonal, that others may win back
constexpr double COPY_UP_TO = 0.8;  // share of open spins up to which copying their couplings pays

// One column of a layer: what its search keeps.
template <class T>
class Column {
 public:
  Column(const Layer<T>& layer, std::int64_t column, Watch& watch)
      : layer_(layer), column_(column), watch_(watch), n_(layer.couplings.columns), fixed_(n_), room_(0) {
    std::vector<T> fields(layer.linear[column], layer.linear[column] + n_);
    std::vector<T> reach(layer.coupling_sums, layer.coupling_sums + n_);
    const auto outweighs = [&](std::int64_t i) { return std::abs(fields[i]) > reach[i] + layer.threshold[column]; };
    fix_spins(layer.couplings, fields, reach, fixed_.data(), outweighs, watch);
    core_ = layer.couplings;
    const auto left = std::count(fixed_.begin(), fixed_.end(), T(0));
    if (static_cast<double>(left) > COPY_UP_TO * static_cast<double>(n_)) std::fill(fixed_.begin(), fixed_.end(), T(0));
    for (std::int64_t i = 0; i < n_; ++i) {
      if (fixed_[i] == 0) places_.push_back(i);
    }
    k_ = static_cast<std::int64_t>(places_.size());
    if (k_ < n_) {
      part_.resize(k_ * k_);
      for (std::int64_t a = 0; a < k_; ++a) {
        const T* row = layer.couplings[places_[a]];
        for (std::int64_t b = 0; b < k_; ++b) part_[a * k_ + b] = row[places_[b]];
      }
      core_ = {part_.data(), k_, k_};
    }
    room_ = Workspace<T>(k_);
    spins_.resize(k_), local_.resize(k_), best_spins_.resize(k_), best_fields_.resize(k_);
  }

  void search(T* found) {
    for (std::int64_t trial = 0; trial < layer_.num_starts; ++trial) from_start(trial);
    if (layer_.kicks && 8 * distance_ > n_) {
      for (std::int64_t trial = 0; trial < layer_.kicks; ++trial) kick(layer_.num_starts + trial);
    }
    force();
    std::copy(fixed_.begin(), fixed_.end(), found);
    for (std::int64_t a = 0; a < k_; ++a) found[places_[a]] = best_spins_[a];
  }

 private:
  // Seeds may be as large as they like: sums wrap.
  std::int64_t seed(std::int64_t more) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(layer_.seed) + static_cast<std::uint64_t>(more));
  }

  // Energy gained by a search from `spins_`.
  double lowered(std::int64_t patience, std::int64_t seed) {
    if (!k_) return 0;
    const Limits limits{100 * (n_ + layer_.patience) + 1000, patience, layer_.tenure, column_, seed};
    return lower(core_, local_.data(), spins_.data(), layer_.threshold[column_], limits, room_, watch_).energy;
  }

  void keep(double energy) {
    best_energy_ = energy;
    best_spins_ = spins_;
    best_fields_ = local_;
  }

  void from_start(std::int64_t trial) {
    const std::int64_t place = (trial * layer_.linear.rows + column_) * n_;
    T *spins = layer_.starts + place, *fields = layer_.fields + place;
    const T* linear = layer_.linear[column_];
    if (trial == 0) first_.assign(spins, spins + n_);
    double energy = 0;
    for (std::int64_t i = 0; i < n_; ++i) energy += spins[i] * (linear[i] + fields[i]) / 2;
    for (std::int64_t i = 0; i < n_; ++i) {
      if (fixed_[i] != 0 && fixed_[i] != spins[i]) {
        energy -= 2 * spins[i] * fields[i];
        flip(layer_.couplings, fields, spins, i);
      }
    }
    for (std::int64_t a = 0; a < k_; ++a) spins_[a] = spins[places_[a]], local_[a] = fields[places_[a]];
    if (trial == 0) keep(best_energy_);  // spins to return even if energies are NaN
    compare(energy + lowered(layer_.patience, seed(trial)));
  }

  // Flips a random tenth of the best spins and searches again.
  void kick(std::int64_t trial) {
    spins_ = best_spins_;
    local_ = best_fields_;
    double energy = best_energy_;
    if (k_) {
      Random random(static_cast<std::uint64_t>(seed(1000003 * column_ + trial)) * 0x9E3779B97F4A7C15u | 1u);
      for (std::int64_t count = 0; count < k_ / 10 + 1; ++count) {
        const std::int64_t i = random.below(k_);
        energy -= 2 * spins_[i] * local_[i];
        flip(core_, local_.data(), spins_.data(), i);
      }
    }
    compare(energy + lowered(layer_.patience, seed(trial)));
  }

  void compare(double energy) {
    if (!(energy < best_energy_)) return;
    keep(energy);
    distance_ = 0;
    for (std::int64_t a = 0; a < k_; ++a) distance_ += spins_[a] != first_[places_[a]];
  }

  // Flips spins whose flip costs least beside what others may win back, each held while the others follow.
  void force() {
    std::vector<bool> tried(k_);
    for (std::int64_t count = 0; count < layer_.forced; ++count) {
      std::int64_t site = -1;
      double least = 0;
      for (std::int64_t a = 0; a < k_; ++a) {
        const double worth = -2.0 * best_spins_[a] * best_fields_[a] - WON_BACK * layer_.diagonal[places_[a]];
        if (!tried[a] && worth < least) site = a, least = worth;
      }
      if (site < 0) return;
      tried[site] = true;
      spins_ = best_spins_;
      local_ = best_fields_;
      double energy = best_energy_ - 2.0 * spins_[site] * local_[site];
      flip(core_, local_.data(), spins_.data(), site);
      room_.penalties[site] = -std::numeric_limits<T>::infinity();
      energy += lowered(0, seed(0));
      room_.penalties[site] = 0;
      if (energy < best_energy_ - layer_.threshold[column_]) keep(energy + lowered(layer_.patience, seed(0)));
    }
  }

  const Layer<T>& layer_;
  std::int64_t column_;
  Watch& watch_;
  std::int64_t n_, k_ = 0, distance_ = 0;
  std::vector<T> fixed_, part_, spins_, local_, best_spins_, best_fields_, first_;
  std::vector<std::int64_t> places_;
  Matrix<const T> core_{};
  Workspace<T> room_;
  double best_energy_ = std::numeric_limits<double>::infinity();
};

template <class T>
void search_layer(const Layer<T>& layer, T* found, int threads, Watch& watch) {
  const std::int64_t n = layer.couplings.columns;
  parallel(layer.linear.rows, threads, watch,
           [&](std::int64_t j, Watch& seen) { Column<T>(layer, j, seen).search(found + j * n); });
}

template <class T>
void relax(Matrix<const T> twice, Matrix<T> slopes, Matrix<T> points, std::int64_t passes, int threads, Watch& watch) {
  constexpr T STILL = T(0.01);  // changes up to which a coordinate counts as at rest
  const std::int64_t n = points.columns;
  std::vector<T> diagonal(n);  // side by side: every one in its row is a line of the cache
  for (std::int64_t i = 0; i < n; ++i) diagonal[i] = twice[i][i];
  parallel(points.rows, threads, watch, [&](std::int64_t j, Watch& seen) {
    T *point = points[j], *slope = slopes[j];
    bool moved = true;
    for (std::int64_t pass = 0; pass < passes && moved && !seen.stopped(); ++pass) {
      moved = false;
      for (std::int64_t i = 0; i < n; ++i) {
        const T aim = point[i] - slope[i] / diagonal[i];
        const T change = std::min(std::max(aim, T(-1)), T(1)) - point[i];
        if (!(std::abs(change) > STILL)) continue;
        point[i] += change;
        add_multiple(slope, twice[i], change, n);
        moved = true;
      }
    }
  });
}

template <class T>
void round_down(Matrix<const T> factor, Matrix<T> targets, Matrix<T> spins, int threads, Watch& watch) {
  parallel(spins.rows, threads, watch, [&](std::int64_t j, Watch&) {
    for (std::int64_t i = spins.columns - 1; i >= 0; --i) {
      spins[j][i] = targets[j][i] >= 0 ? 1 : -1;
      add_multiple(targets[j], factor[i], -spins[j][i], i);
    }
  });
}

template <class T>
void bind(nb::module_& module) {
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

}  // namespace

void bind_dense(nb::module_& module) {
  bind<float>(module);
  bind<double>(module);
}

}  // namespace qpsbgd
