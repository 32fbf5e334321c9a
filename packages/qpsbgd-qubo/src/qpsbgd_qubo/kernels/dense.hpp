// Columns of a dense family. A column's spins and fields lie side by side: arrays are (m, n). `couplings` is 2 Q with a
// zero diagonal, fields = s + couplings · spins; a flip of spin i changes the energy by −2 · spins[i] · fields[i].
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "matrix.hpp"
#include "random.hpp"
#include "vectors.hpp"
#include "watch.hpp"

namespace qpsbgd {

template <class T>
inline void flip(const Matrix<const T>& couplings, T* fields, T* spins, std::int64_t i) {
  const T change = -2 * spins[i];
  spins[i] = -spins[i];
  add_multiple(fields, couplings[i], change, couplings.columns);
}

// Fixes the open spins, 0 in `fixed`, that decided(i) says: each to the value that its field wants. `fields` are those
// of the fixed spins, `reach` the sums of |couplings| to open ones; both are kept up to date.
template <class T, class Decided>
void fix_spins(const Matrix<const T>& couplings, std::vector<T>& fields, std::vector<T>& reach, T* fixed,
               Decided decided, Watch& watch) {
  const std::int64_t n = couplings.columns;
  for (bool again = true; again && !watch.stopped();) {
    again = false;
    for (std::int64_t i = 0; i < n; ++i) {
      if (fixed[i] != 0 || !decided(i)) continue;
      fixed[i] = fields[i] > 0 ? -1 : 1;
      add_multiple(fields.data(), couplings[i], fixed[i], n);
      for (std::int64_t k = 0; k < n; ++k) reach[k] -= std::abs(couplings[i][k]);
      again = true;
    }
  }
}

// What may be asked of one search.
struct Limits {
  std::int64_t max_flips, patience, tenure, column, seed;
};

struct Lowered {
  std::int64_t flips;
  double energy;  // gained, at most 0
};

// Moves for which the spin flipped in this move stays tabu: a hash, the same on every device.
inline std::int64_t tenure_of(std::int64_t move, const Limits& limits) {
  auto mixed = static_cast<std::uint32_t>(static_cast<std::uint64_t>(move) * 2654435761u +
                                          static_cast<std::uint64_t>(limits.column) * 2246822519u +
                                          static_cast<std::uint64_t>(limits.seed) * 3266489917u);
  mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
  // A division of 32 bits takes a third of the time of one of 64.
  return limits.tenure + (mixed >> 13) % static_cast<std::uint32_t>(std::max<std::int64_t>(6, limits.tenure / 2));
}

// Room that a search of columns of n spins needs; penalties are zero before and after it.
template <class T>
struct Workspace {
  std::vector<T> lowest, penalties;
  std::vector<std::int64_t> ring, following;

  explicit Workspace(std::int64_t n) : penalties(n) {}
};

// Lowers one column by best-improvement descent and then, with patience, by tabu moves, as in `search` of _kernels.pyi.
// `spins` end as the lowest met and `fields` as theirs. A spin whose penalty is −∞ is held.
template <class T>
Lowered lower(const Matrix<const T>& couplings, T* fields, T* spins, T threshold, const Limits& limits,
              Workspace<T>& room, Watch& watch) {
  constexpr T TABU = -std::numeric_limits<T>::infinity();
  const std::int64_t n = couplings.columns;
  T* penalties = room.penalties.data();
  std::int64_t flips = 0;
  double energy = 0;
  if (limits.max_flips <= 0 || watch.stopped()) return {0, 0.0};
  // One pass over the fields brings them up to date and finds the next flip.
  auto made = [&](std::int64_t i) {
    const T change = -2 * spins[i];
    spins[i] = -spins[i];
    return add_and_best_flip(fields, couplings[i], change, spins, penalties, n);
  };
  Best<T> best = best_flip(fields, spins, penalties, n);
  while (flips < limits.max_flips && best.gain > threshold && !watch.stopped()) {
    energy -= 2.0 * best.gain;
    ++flips;
    best = made(best.index);
  }
  if (limits.patience == 0) return {flips, energy};

  // Tabu: the best flip that was not made recently, even uphill. Where a new low ends, its spins are kept.
  room.lowest.assign(spins, spins + n);
  room.following.resize(n);
  double lowest_energy = energy;
  bool descending = false;
  // Place t of the ring begins the list of spins that become free at move t, counted around it.
  const std::int64_t length = limits.tenure + std::max<std::int64_t>(6, limits.tenure / 2) + 2;
  room.ring.assign(length, -1);
  auto release = [&](std::int64_t place) {
    std::int64_t i = room.ring[place];
    const bool any = i >= 0;
    for (; i >= 0; i = room.following[i]) penalties[i] = 0;
    room.ring[place] = -1;
    return any;
  };
  std::int64_t last = limits.patience, now = 0;
  for (std::int64_t move = 1; move <= last && flips < limits.max_flips && !watch.stopped(); ++move) {
    now = now + 1 < length ? now + 1 : 0;  // `best` is that of this move: its spins were freed before the last flip
    const std::int64_t next = now + 1 < length ? now + 1 : 0;
    if (!(best.gain > TABU)) {  // all spins are, or a gain is NaN
      if (release(next)) best = best_flip(fields, spins, penalties, n);
      continue;
    }
    if (descending && best.gain <= 0) {
      room.lowest.assign(spins, spins + n);
      descending = false;
    }
    energy -= 2.0 * best.gain;
    ++flips;
    const std::int64_t i = best.index;
    penalties[i] = TABU;
    std::int64_t until = now + 1 + tenure_of(move, limits);
    until = until < length ? until : until - length;
    room.following[i] = room.ring[until];
    room.ring[until] = i;
    release(next);
    best = made(i);
    if (energy < lowest_energy - 2.0 * threshold) {
      lowest_energy = energy;
      descending = true;
      last = move + limits.patience;
    }
  }
  for (std::int64_t place = 0; place < length; ++place) release(place);
  if (!descending) {
    for (std::int64_t k = 0; k < n; ++k) {
      if (spins[k] != room.lowest[k]) flip(couplings, fields, spins, k);
    }
  }
  return {flips, lowest_energy};
}

}  // namespace qpsbgd
