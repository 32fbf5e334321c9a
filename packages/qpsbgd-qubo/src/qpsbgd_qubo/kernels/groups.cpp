// Groups of spins of which one is +1, as constraints "exactly one" make them: found in the couplings, and moves that
// keep them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "kernels.hpp"

namespace qpsbgd {
namespace {

constexpr double ALIKE = 1e-9;      // relative difference up to which couplings count as equal
constexpr int TRIED = 4;              // values of a spin's couplings that are looked at
constexpr double WEAK = 0.5;          // of a spin's strongest groups, below which its couplings are costs
constexpr std::size_t MOST = 8;       // groups of a spin after which others are not looked for
constexpr std::int64_t SAMPLE = 64;   // spins after which half must be in groups, or there are none

double entry(const Rows& rows, std::int64_t i, std::int64_t j) {
  const auto begin = rows.columns.begin() + rows.begins[i], end = rows.columns.begin() + rows.begins[i + 1];
  const auto at = std::lower_bound(begin, end, static_cast<std::int32_t>(j));
  return at != end && *at == j ? rows.couplings[at - rows.columns.begin()] : 0.0;
}

bool alike(double a, double b) { return std::abs(a - b) <= ALIKE * b; }

struct Clique {
  std::vector<std::int32_t> members;  // ascending
  double value;
  std::int64_t span() const { return members.back() - members.front() + 1 - static_cast<std::int64_t>(members.size()); }
};

// Cliques of three spins or more, of couplings that are equal, until one in two of the first spins is in none.
std::vector<Clique> cliques(const Rows& rows, Watch& watch) {
  const std::int64_t n = rows.size();
  std::vector<Clique> found;
  std::vector<std::vector<std::int32_t>> of(n);
  std::vector<double> least(n);              // couplings of every spin below which they are costs
  std::vector<std::int64_t> covered(n, -1);  // the last spin whose edge to this one is in a group
  std::int64_t lone = 0, work = 64 * n + 8 * static_cast<std::int64_t>(rows.columns.size());
  std::vector<std::pair<double, std::int32_t>> near;
  std::vector<std::int32_t> alikes, clique;
  for (std::int64_t i = 0; i < n; ++i) {
    if (watch.stopped() || work < 0) break;
    for (const std::int32_t g : of[i]) {
      for (const std::int32_t j : found[g].members) covered[j] = i;
    }
    near.clear();
    for (std::int64_t at = rows.begins[i]; at < rows.begins[i + 1]; ++at) {
      if (rows.couplings[at] > 0) near.emplace_back(-rows.couplings[at], rows.columns[at]);
    }
    std::sort(near.begin(), near.end());
    int tried = 0;
    for (std::size_t first = 0, last; first < near.size() && tried < TRIED; first = last) {
      const double value = -near[first].first;
      if (value < least[i]) break;
      for (last = first + 1; last < near.size() && alike(-near[last].first, value);) ++last;
      if (last - first < 2) continue;
      ++tried;
      alikes.clear();
      for (std::size_t at = first; at < last; ++at) {
        if (value >= least[near[at].second]) alikes.push_back(near[at].second);
      }
      std::sort(alikes.begin(), alikes.end());
      for (const std::int32_t j : alikes) {
        if (covered[j] == i || of[i].size() >= MOST) continue;
        clique = {static_cast<std::int32_t>(i), j};
        for (const std::int32_t k : alikes) {
          if (k == j) continue;
          bool fits = true;
          for (std::size_t m = 1; m < clique.size() && fits; ++m, --work) fits = alike(entry(rows, clique[m], k), value);
          if (fits) clique.push_back(k);
        }
        if (clique.size() < 3) continue;
        std::sort(clique.begin(), clique.end());
        for (const std::int32_t k : clique) {
          of[k].push_back(static_cast<std::int32_t>(found.size()));
          covered[k] = i;
          least[k] = std::max(least[k], WEAK * (1 - ALIKE) * value);
        }
        found.push_back({clique, value});
      }
    }
    lone += of[i].empty();
    if (i + 1 == std::min(n, SAMPLE) && 2 * lone > i + 1) return {};
  }
  return found;
}

// Groups as lists of spins, one after the other; the first `bases` have no spin in common.
struct FoundGroups {
  std::vector<std::int64_t> begins{0};
  std::vector<std::int32_t> members;
  std::int64_t bases = 0;
};

// Cliques of equal couplings J > 0 that are "exactly one" by their fields; none unless the bases hold half the spins.
FoundGroups find_groups(const Rows& rows, const double* linear, Watch& watch) {
  const std::int64_t n = rows.size();
  if (std::all_of(linear, linear + n, [](double h) { return h == 0; })) return {};
  const std::vector<Clique> found = cliques(rows, watch);
  // Disjoint cliques: those that lie close together first, or the strongest; whichever hold more spins.
  std::vector<std::int64_t> order(found.size()), best;
  std::iota(order.begin(), order.end(), 0);
  std::vector<char> taken(n);
  std::int64_t most = 0;
  for (const bool strongest : {false, true}) {
    std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      const Clique &x = found[a], &y = found[b];
      const double nearer = strongest ? y.value - x.value : static_cast<double>(x.span() - y.span());
      if (nearer != 0) return nearer < 0;
      return std::make_tuple(-static_cast<std::int64_t>(x.members.size()), a) <
             std::make_tuple(-static_cast<std::int64_t>(y.members.size()), b);
    });
    std::fill(taken.begin(), taken.end(), 0);
    std::vector<std::int64_t> bases;
    std::int64_t held = 0;
    for (const std::int64_t g : order) {
      const auto& members = found[g].members;
      if (std::any_of(members.begin(), members.end(), [&](std::int32_t i) { return taken[i]; })) continue;
      for (const std::int32_t i : members) taken[i] = 1;
      held += static_cast<std::int64_t>(members.size());
      bases.push_back(g);
    }
    if (held > most) most = held, best = std::move(bases);
  }
  // As bits, P (1 − Σx)² has couplings 2P and fields −P, of all groups of a spin together; costs may add to that.
  std::vector<double> penalties(n);
  for (const Clique& clique : found) {
    for (const std::int32_t i : clique.members) penalties[i] += 2 * clique.value;
  }
  std::int64_t exact = 0;
  for (const std::int64_t g : best) {
    for (const std::int32_t i : found[g].members) {
      double field = -2 * linear[i];
      for (std::int64_t at = rows.begins[i]; at < rows.begins[i + 1]; ++at) field += 2 * rows.couplings[at];
      exact += field > 0 && field <= 1.5 * penalties[i];
    }
  }
  if (2 * most < n || 2 * exact < most) return {};
  FoundGroups groups;
  groups.bases = static_cast<std::int64_t>(best.size());
  std::vector<char> is_base(found.size());
  for (const std::int64_t g : best) is_base[g] = 1;
  for (std::int64_t g = 0; g < static_cast<std::int64_t>(found.size()); ++g) {
    if (!is_base[g]) best.push_back(g);
  }
  for (const std::int64_t g : best) {
    groups.members.insert(groups.members.end(), found[g].members.begin(), found[g].members.end());
    groups.begins.push_back(static_cast<std::int64_t>(groups.members.size()));
  }
  return groups;
}

// A problem and its groups, made ready for moves. The rows must outlive it.
class Groups {
 public:
  Groups(const Rows& rows, const double* linear, FoundGroups groups)
      : rows_(rows), linear_(linear, linear + rows.size()), groups_(std::move(groups)), base_of_(rows.size(), -1),
        others_begins_(rows.size() + 1) {
    const std::int64_t n = rows.size(), count = static_cast<std::int64_t>(groups_.begins.size()) - 1;
    if (n <= DENSE_UP_TO) {
      matrix_.resize(n * n);
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t at = rows.begins[i]; at < rows.begins[i + 1]; ++at) {
          matrix_[i * n + rows.columns[at]] = rows.couplings[at];
        }
      }
    }
    std::int32_t* members = groups_.members.data();
    for (std::int64_t g = 0; g < groups_.bases; ++g) {
      for (std::int64_t at = groups_.begins[g]; at < groups_.begins[g + 1]; ++at) {
        base_of_[members[at]] = static_cast<std::int32_t>(g);
      }
      const std::int32_t* first = members + groups_.begins[g];
      strengths_.push_back(groups_.begins[g + 1] - groups_.begins[g] > 1 ? coupling(first[0], first[1]) : 0.0);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      if (base_of_[i] < 0) single_.push_back(static_cast<std::int32_t>(i));
    }
    for (std::int64_t g = groups_.bases; g < count; ++g) {
      std::sort(members + groups_.begins[g], members + groups_.begins[g + 1], [&](std::int32_t a, std::int32_t b) {
        return std::make_pair(base_of_[a], a) < std::make_pair(base_of_[b], b);
      });
      for (std::int64_t at = groups_.begins[g]; at < groups_.begins[g + 1]; ++at) ++others_begins_[members[at] + 1];
    }
    std::partial_sum(others_begins_.begin(), others_begins_.end(), others_begins_.begin());
    others_.resize(others_begins_[n]);
    std::vector<std::int64_t> next(others_begins_.begin(), others_begins_.end() - 1);
    for (std::int64_t g = groups_.bases; g < count; ++g) {
      for (std::int64_t at = groups_.begins[g]; at < groups_.begins[g + 1]; ++at) {
        others_[next[members[at]]++] = static_cast<std::int32_t>(g);
      }
    }
    Random random(1);
    std::vector<std::int8_t> spins(n, -1);
    State state(*this, spins.data(), random);
    std::vector<double> sizes;
    for (std::int64_t i = 0; i < n; ++i) {
      const double size = std::abs(state.gain(i, random));
      if (std::isfinite(size) && size > 0) sizes.push_back(size);
    }
    if (sizes.empty()) return;
    const auto middle = sizes.begin() + static_cast<std::int64_t>(sizes.size() / 2);
    std::nth_element(sizes.begin(), middle, sizes.end());
    scale_ = *middle;
  }

  const Rows& rows() const { return rows_; }
  double scale() const { return scale_; }  // the middle size of what moves change the energy by

  // Chains of Metropolis sweeps, one after the other, that keep one spin of every base up; ends with the lowest, whose
  // energy it returns. They begin with `spins` or, unless they are fresh, with the lowest so far; where no spin of a
  // base is up, or several, a random one of those that disturb the fewest becomes it.
  double anneal(std::int8_t* spins, Sweeps<double> sweeps, std::int64_t chains, bool fresh, std::uint64_t state,
                        Watch& watch) const {
    const std::int64_t n = rows_.size();
    Random random(state);
    const std::vector<std::int8_t> start(spins, spins + n);
    std::vector<std::int8_t> current(n);
    double lowest = std::numeric_limits<double>::infinity();
    for (std::int64_t k = 0; k < chains && !(k && watch.stopped()); ++k) {
      std::copy_n(fresh || k == 0 ? start.data() : spins, n, current.data());
      State chain(*this, current.data(), random);
      sweep<double>(sweeps, [&](std::int64_t i) { return chain.gain(i, random); },
                    [&](std::int64_t) { chain.make(); }, random, watch);
      const double energy = rows_.set_fields(linear_.data(), current.data(), chain.fields.data());
      if (energy > lowest) continue;
      lowest = energy;
      std::copy_n(current.data(), n, spins);
    }
    return lowest;
  }

  // The best shift within a base, or flip of a spin in none, that was not undone in the last moves, even uphill; ends
  // with the lowest spins met, whose energy it returns.
  double tabu(std::int8_t* spins, std::int64_t moves, std::int64_t tenure, std::uint64_t state,
                      Watch& watch) const {
    constexpr double NONE = -std::numeric_limits<double>::infinity();
    const std::int64_t n = rows_.size(), bases = groups_.bases;
    Random random(state);
    State chain(*this, spins, random);
    double* fields = chain.fields.data();
    double energy = rows_.set_fields(linear_.data(), spins, fields), lowest_energy = energy;
    std::vector<std::int8_t> lowest(spins, spins + n);
    std::vector<std::int64_t> free_from(n);
    bool descending = false;
    for (std::int64_t move = 1; move <= moves && !watch.stopped(); ++move) {
      double most = NONE;
      std::int64_t pick = -1;
      const double enough = energy - lowest_energy + 1e-12 * std::abs(lowest_energy);  // a new low is never tabu
      const auto look = [&](std::int64_t i, double gain) {
        if (gain > most && (free_from[i] <= move || gain > enough)) most = gain, pick = i;
      };
      // From a random group on, so that none is preferred among equals.
      const std::int64_t shift = bases ? random.below(bases) : 0;
      for (std::int64_t k = 0; k < bases; ++k) {
        const std::int64_t g = k + shift < bases ? k + shift : k + shift - bases;
        const double most_here = 2 * fields[chain.up[g]] + 4 * strengths_[g];
        for (std::int64_t at = groups_.begins[g]; at < groups_.begins[g + 1]; ++at) {
          const std::int32_t i = groups_.members[at];
          if (i != chain.up[g]) look(i, most_here - 2 * fields[i]);
        }
      }
      for (const std::int32_t i : single_) look(i, 2 * spins[i] * fields[i]);
      if (pick < 0) continue;
      const std::int32_t g = base_of_[pick];
      const std::int64_t gone = g < 0 ? pick : chain.up[g];
      const double gain = g < 0 ? most : 2 * (fields[gone] - fields[pick]) + 4 * coupling(gone, pick);
      if (descending && gain <= 0) {
        lowest.assign(spins, spins + n);
        descending = false;
      }
      energy -= gain;
      chain.flip(pick);
      if (g >= 0) {
        chain.flip(gone);
        chain.up[g] = static_cast<std::int32_t>(pick);
      }
      free_from[gone] = move + 1 + tenure + random.below(std::max<std::int64_t>(6, tenure / 2));
      if (energy < lowest_energy - 1e-12 * std::abs(lowest_energy)) {
        lowest_energy = energy;
        descending = true;
      }
    }
    if (!descending) std::copy(lowest.begin(), lowest.end(), spins);
    return lowest_energy;
  }

 private:
  static constexpr std::int64_t DENSE_UP_TO = 2048;  // spins up to which couplings also stand in a matrix: 32 MiB

  // One chain: every base has one spin up, `up`; of the other groups, how many are up, and the exclusive or of these.
  struct State {
    const Groups& all;
    std::int8_t* spins;
    std::vector<double> fields;
    std::vector<std::int32_t> up, counts, holders;

    State(const Groups& groups, std::int8_t* start, Random& random)
        : all(groups), spins(start), fields(groups.rows_.size()), up(groups.groups_.bases, -1),
          counts(groups.groups_.begins.size()), holders(counts.size()) {
      const auto& begins = all.groups_.begins;
      const std::int32_t* members = all.groups_.members.data();
      for (std::int64_t i = 0; i < all.rows_.size(); ++i) {
        if (all.base_of_[i] < 0 && spins[i] > 0) count(i, 1);
      }
      for (std::int64_t g = 0; g < all.groups_.bases; ++g) {  // groups with one spin up stay as they are
        std::int64_t ups = 0;
        for (std::int64_t at = begins[g]; at < begins[g + 1]; ++at) {
          if (spins[members[at]] > 0) ++ups, up[g] = members[at];
          spins[members[at]] = -1;
        }
        if (ups == 1) {
          spins[up[g]] = 1;
          count(up[g], 1);
        } else {
          up[g] = -1;
        }
      }
      for (std::int64_t g = 0; g < all.groups_.bases; ++g) {  // in others, one that disturbs the fewest
        if (up[g] >= 0) continue;
        const std::int64_t size = begins[g + 1] - begins[g];
        const auto shift = random.below(size);
        std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
        for (std::int64_t k = 0; k < size; ++k) {
          const std::int32_t i = members[begins[g] + (k + shift) % size];
          std::int64_t disturbed = 0;
          for (std::int64_t at = all.others_begins_[i]; at < all.others_begins_[i + 1]; ++at) {
            disturbed += counts[all.others_[at]];
          }
          if (disturbed < fewest) fewest = disturbed, up[g] = i;
        }
        spins[up[g]] = 1;
        count(up[g], 1);
      }
      all.rows_.set_fields(all.linear_.data(), spins, fields.data());
    }

    void count(std::int64_t i, std::int32_t change) {
      for (std::int64_t at = all.others_begins_[i]; at < all.others_begins_[i + 1]; ++at) {
        counts[all.others_[at]] += change;
        holders[all.others_[at]] ^= static_cast<std::int32_t>(i);
      }
    }

    void flip(std::int64_t i) {
      count(i, -spins[i]);
      all.rows_.flip(fields.data(), spins, i);
    }

    // A move that ends with spin i up, or a flip of a spin in no base: up to four spins, and what it lowers the energy by.
    std::int64_t flips[4], num_flips;

    double gain(std::int64_t i, Random& random) {
      const std::int32_t g = all.base_of_[i];
      flips[0] = i, num_flips = 1;
      if (g < 0) return 2 * spins[i] * fields[i];
      const std::int32_t down = up[g];
      if (down == i) return -std::numeric_limits<double>::infinity();
      flips[1] = down, num_flips = 2;
      const double shift = 2 * (fields[down] - fields[i]) + 4 * all.coupling(down, i);
      const std::int64_t begin = all.others_begins_[i], choices = all.others_begins_[i + 1] - begin;
      if (choices == 0) return shift;
      // Another spin that is up in a group of i makes room, if its base can take the place of the one that goes down.
      const std::int64_t pick = choices == 1 ? 0 : random.below(choices);
      const std::int32_t group = all.others_[begin + pick];
      if (counts[group] != 1) return shift;
      const std::int32_t other = holders[group], base = all.base_of_[other];
      if (base < 0 || base == g) return shift;
      const std::int32_t instead = all.partner(down, base);
      if (instead < 0 || instead == other) return shift;
      const double swap = shift + 2 * (fields[other] - fields[instead]) + 4 * all.coupling(other, instead) -
                          4 * (all.coupling(down, other) + all.coupling(i, instead) - all.coupling(down, instead) -
                               all.coupling(i, other));
      if (swap < shift) return shift;
      flips[2] = other, flips[3] = instead, num_flips = 4;
      return swap;
    }

    void make() {
      for (std::int64_t k = 0; k < num_flips; ++k) {
        const std::int64_t i = flips[k];
        flip(i);
        if (all.base_of_[i] >= 0 && spins[i] > 0) up[all.base_of_[i]] = static_cast<std::int32_t>(i);
      }
    }
  };

  double coupling(std::int64_t i, std::int64_t j) const {
    return matrix_.empty() ? entry(rows_, i, j) : matrix_[i * rows_.size() + j];
  }

  // The spin of a base that shares a group with a spin; −1: none.
  std::int32_t partner(std::int64_t spin, std::int32_t base) const {
    for (std::int64_t at = others_begins_[spin]; at < others_begins_[spin + 1]; ++at) {
      const auto begin = groups_.members.begin() + groups_.begins[others_[at]];
      const auto end = groups_.members.begin() + groups_.begins[others_[at] + 1];
      const auto found = std::lower_bound(begin, end, base, [&](std::int32_t i, std::int32_t b) { return base_of_[i] < b; });
      if (found != end && base_of_[*found] == base) return *found;
    }
    return -1;
  }

  const Rows& rows_;
  std::vector<double> linear_, matrix_;
  FoundGroups groups_;
  std::vector<double> strengths_;      // of every base: the coupling between its spins, which is one
  std::vector<std::int32_t> base_of_;  // −1: none
  std::vector<std::int32_t> single_;   // spins in no base
  std::vector<std::int64_t> others_begins_;
  std::vector<std::int32_t> others_;  // of every spin: its groups that are no bases
  double scale_ = 0;
};

}  // namespace

void bind_groups(nb::module_& module) {
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

  def(module, "anneal_groups", [](const Groups& groups, Spins spins, Sites sites,
                                  Temperatures temperatures, int64_t chains, bool fresh, std::uint64_t state,
                                  Stop stop) {
    expect_spins(spins, "spins", {groups.rows().size()});
    expect(chains >= 1, "there must be at least one chain");
    const Sweeps<double> sweeps = sweeps_of(sites, temperatures, groups.rows().size());
    return run(&stop, [&](Watch& watch) {
      return groups.anneal(spins.data(), sweeps, chains, fresh, state, watch);
    });
  });

  def(module, "tabu_groups", [](const Groups& groups, Spins spins, int64_t moves, int64_t tenure,
                                std::uint64_t state, Stop stop) {
    expect_spins(spins, "spins", {groups.rows().size()});
    expect_moves(tenure, std::max<int64_t>(0, moves));
    return run(&stop, [&](Watch& watch) { return groups.tabu(spins.data(), moves, tenure, state, watch); });
  });
}

}  // namespace qpsbgd
