// The solvers' kernels, as the binding sees them. Shapes and indices have been checked when they are called.
#pragma once

#include <cstdint>
#include <vector>

#include "dense.hpp"
#include "sparse.hpp"
#include "watch.hpp"

namespace qpsbgd {

// search.cpp ------------------------------------------------------------------------------------------------------

template <class T>
void search(Matrix<const T> couplings, Matrix<T> fields, Matrix<T> spins, const T* threshold, std::int64_t* flips,
            Limits limits, int threads, Watch& watch);

template <class T>
void flip_marked(Matrix<const T> couplings, Matrix<T> fields, Matrix<T> spins, Matrix<const std::uint8_t> marked, int threads,
          Watch& watch);

template <class T>
void anneal(Matrix<const T> couplings, Matrix<T> fields, Matrix<T> spins, Sweeps<T> sweeps,
            const std::uint64_t* states, std::int64_t* made, int threads, Watch& watch);

template <class T>
void anneal_slices(Matrix<const T> couplings, T* fields, T* spins, std::int64_t columns, std::int64_t slices,
                   const T* ties, std::int64_t sweeps, const T* scale, T temperature, const std::uint64_t* states,
                   int threads, Watch& watch);

template <class T>
void fields_of(Matrix<const T> couplings, const T* linear, const T* spins, T* fields);

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

template <class T>
void search_layer(const Layer<T>& layer, T* found, int threads, Watch& watch);

template <class T>
void relax(Matrix<const T> twice, Matrix<T> slopes, Matrix<T> points, std::int64_t passes, int threads, Watch& watch);

template <class T>
void round_down(Matrix<const T> factor, Matrix<T> targets, Matrix<T> spins, int threads, Watch& watch);

// sparse.cpp, lanes.cpp, reduction.cpp ------------------------------------------------------------------------------

std::int64_t anneal_sparse(const Rows& rows, const double* linear, std::int8_t* spins, Sweeps<double> sweeps,
                           std::uint64_t state, Watch& watch);

std::int64_t anneal_lanes(const Rows& rows, const double* linear, std::uint16_t* spins, Sweeps<double> sweeps,
                          std::uint64_t state, Watch& watch);

double harvest(const Rows& rows, const double* linear, const double* thresholds, std::int8_t* chains,
               std::int64_t num_chains, std::int8_t* spins, Watch& watch);

double tabu_sparse(const Rows& rows, const double* linear, std::int8_t* spins, std::int64_t block, std::int64_t moves,
                   std::int64_t tenure, std::uint64_t state, Watch& watch);

void colour(const Rows& rows, std::int64_t* colours);

void sweep_chip(const Rows& rows, const float* h, float* spins, std::int64_t reads, std::int64_t slices,
                const float* schedule, std::int64_t sweeps, const std::uint64_t* states, int threads, Watch& watch);

// What is left of a problem, its rows only where something is gone, and the spins that are: each with up to MOST
// neighbours that it depends on.
struct Reduced {
  static constexpr int MOST = 3;
  std::vector<std::int64_t> kept, begins, gone, neighbours;  // neighbours: (gone, MOST), −1 where there are fewer
  std::vector<std::int32_t> columns;
  std::vector<double> couplings, linear, weights, fields;
};

Reduced reduce(const Rows& rows, const double* linear, Watch& watch);

void complete_reduced(std::int8_t* spins, const std::int64_t* gone, std::int64_t count, const std::int64_t* neighbours,
                      const double* weights, const double* fields);

// exact.cpp -------------------------------------------------------------------------------------------------------

void fix_dominated(Matrix<const double> couplings, Matrix<const double> linear, Matrix<double> fixed, int threads,
                   Watch& watch);

void complete(Matrix<const double> couplings, Matrix<const double> linear, Matrix<const double> fixed,
              Matrix<double> spins, bool* done, int threads, Watch& watch);

bool exhaust(Matrix<const double> couplings, const double* fields, double* spins, int threads, Watch& watch);

void decode(Matrix<const double> couplings, Matrix<const double> linear, Matrix<const double> fixed,
            Matrix<double> spins, double shift, std::int64_t node_limit, std::int64_t* nodes, int threads,
            Watch& watch);

}  // namespace qpsbgd
