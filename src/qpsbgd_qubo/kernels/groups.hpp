// Groups of spins of which one is +1, as constraints "exactly one" make them: found in the couplings, and moves that
// keep them.
#pragma once

#include <cstdint>
#include <vector>

#include "random.hpp"
#include "sparse.hpp"
#include "watch.hpp"

namespace qpsbgd {

// Groups as lists of spins, one after the other; the first `bases` have no spin in common.
struct FoundGroups {
  std::vector<std::int64_t> begins{0};
  std::vector<std::int32_t> members;
  std::int64_t bases = 0;
};

// Cliques of equal couplings J > 0 that are "exactly one" by their fields; none unless the bases hold half the spins.
FoundGroups find_groups(const Rows& rows, const double* linear, Watch& watch);

// A problem and its groups, made ready for moves. The rows must outlive it.
class Groups {
 public:
  Groups(const Rows& rows, const double* linear, FoundGroups groups);

  const Rows& rows() const { return rows_; }
  double scale() const { return scale_; }  // the middle size of what moves change the energy by

  // Chains of Metropolis sweeps one after the other, as in `reference.anneal_groups`; the energy of the lowest.
  double anneal(std::int8_t* spins, Sweeps<double> sweeps, std::int64_t chains, bool fresh, std::uint64_t state,
                Watch& watch) const;

  // The best shift or single flip that was not undone lately, even uphill, as in `reference.tabu_groups`; the energy.
  double tabu(std::int8_t* spins, std::int64_t moves, std::int64_t tenure, std::uint64_t state, Watch& watch) const;

 private:
  struct State;
  static constexpr std::int64_t DENSE_UP_TO = 2048;  // spins up to which couplings also stand in a matrix: 32 MiB

  double coupling(std::int64_t i, std::int64_t j) const;
  std::int32_t partner(std::int64_t spin, std::int32_t base) const;

  const Rows& rows_;
  std::vector<double> linear_, matrix_;
  bool dense_ = false;  // whether flips go over whole rows of the matrix
  FoundGroups groups_;
  std::vector<double> strengths_;      // of every base: the coupling between its spins, which is one
  std::vector<std::int32_t> base_of_;  // −1: none
  std::vector<std::int32_t> single_;   // spins in no base
  std::vector<std::int64_t> others_begins_;
  std::vector<std::int32_t> others_;  // of every spin: its groups that are no bases
  double scale_ = 0;
};

}  // namespace qpsbgd
