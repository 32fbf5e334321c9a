// Proven optima: spins that every optimum must have, all values of few open spins, and a depth-first sphere decoder.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dense.hpp"
#include "kernels.hpp"
#include "pool.hpp"

namespace qpsbgd {
namespace {

void fix_dominated(Matrix<const double> couplings, Matrix<const double> linear, Matrix<double> fixed, int threads,
                   Watch& watch) {
  const std::int64_t n = linear.columns;
  std::vector<double> coupling_sums(n);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t k = 0; k < n; ++k) coupling_sums[i] += std::abs(couplings[i][k]);
  }
  parallel(linear.rows, threads, watch, [&](std::int64_t j, Watch& seen) {
    std::vector<double> field(linear[j], linear[j] + n), reach(coupling_sums);
    std::fill(fixed[j], fixed[j] + n, 0.0);
    // The margin keeps roundings from fixing what is balanced; a spin without couplings is always decided.
    const auto decided = [&](std::int64_t i) {
      if (reach[i] <= 1e-6 * coupling_sums[i]) {  // what is left of a difference is mostly rounding errors
        reach[i] = 0;
        for (std::int64_t k = 0; k < n; ++k) reach[i] += fixed[j][k] == 0 ? std::abs(couplings[i][k]) : 0;
      }
      const bool outweighs = std::abs(field[i]) > reach[i] * (1 + 1e-9) || reach[i] == 0;
      return outweighs && std::isfinite(reach[i]);
    };
    fix_spins(couplings, field, reach, fixed[j], decided, seen);
  });
}

// All values of some thirty spins, thousands at a time. The spins are split into an inner block b and outer ones a. With
// the energies of all values of b in one array, a flip of an outer spin adds a multiple of one precomputed array
// Σᵢ J_ji b_i, in vector instructions; Gray code visits all a. Energies are negated: the largest number wins.
constexpr int INNER = 10;          // spins of the inner block: its arrays stay in the processor's first cache
constexpr int SPLIT = 5;           // most outer spins whose values are tried in parallel
constexpr int ALONE = 5;           // least outer spins that each parallel part goes through: its beginning is a small share
constexpr std::int64_t REFRESH = 4096;  // flips after which sums are computed anew, so that roundings do not add up

class Exhaustion {
 public:
  Exhaustion(Matrix<const double> couplings, const double* fields)
      : couplings_(couplings), fields_(fields), k_(couplings.columns), inner_(std::min<std::int64_t>(k_, INNER)),
        outer_(k_ - inner_), size_(std::int64_t{1} << inner_), own_(size_), steps_(outer_ * size_) {
    std::vector<double> row(size_);
    for (std::int64_t i = 0; i < inner_; ++i) {  // bᵢ times what the spins before it and the field say
      sums(couplings[i], i, fields[i], row.data());
      for (std::int64_t code = 0; code < std::int64_t{1} << i; ++code) {
        own_[code + (std::int64_t{1} << i)] = own_[code] - row[code];
        own_[code] += row[code];
      }
    }
    for (std::int64_t j = 0; j < outer_; ++j) sums(couplings[inner_ + j], inner_, 0, &steps_[j * size_]);
  }

  std::int64_t outer() const { return outer_; }

  struct Found {
    double value;  // minus the energy
    bool all;      // whether all values were tried, and their energies are numbers
  };

  // Writes the best spins over all values of the inner block and of the first `free` outer spins into `spins` (k,); the
  // other outer spins keep `values`.
  Found best(std::vector<double>& values, std::int64_t free, double* spins, Watch& watch) const {
    Vector<double> total(size_);
    double shared = begin(values, total);
    double most = *std::max_element(total.begin(), total.end());
    double best = -std::numeric_limits<double>::infinity();
    const std::int64_t last = std::int64_t{1} << free;
    for (std::int64_t trial = 1;; ++trial) {
      if (most + shared > best) {
        best = most + shared;
        const auto code = std::max_element(total.begin(), total.end()) - total.begin();
        for (std::int64_t i = 0; i < inner_; ++i) spins[i] = (code >> i) & 1 ? 1 : -1;
        std::copy(values.begin(), values.end(), spins + inner_);
      }
      if (trial == last || watch.stopped()) return {best, trial == last && std::isfinite(best)};
      std::int64_t j = 0;
      while (!((trial >> j) & 1)) ++j;
      values[j] = -values[j];
      if (trial % REFRESH == 0) {
        shared = begin(values, total);
        most = *std::max_element(total.begin(), total.end());
      } else {
        const double* row = couplings_[inner_ + j] + inner_;
        double field = fields_[inner_ + j];
        for (std::int64_t i = 0; i < outer_; ++i) field += row[i] * values[i];
        shared -= 2 * values[j] * field;
        most = add_multiple_and_max(total.data(), &steps_[j * size_], -2 * values[j], size_);
      }
    }
  }

 private:
  // constant + Σᵢ weights[i] · bᵢ for all values of `count` spins b; bit i of an index is bᵢ = +1.
  static void sums(const double* weights, std::int64_t count, double constant, double* total) {
    total[0] = constant;
    for (std::int64_t i = 0; i < count; ++i) total[0] -= weights[i];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t half = std::int64_t{1} << i;
      for (std::int64_t code = 0; code < half; ++code) total[code + half] = total[code] + 2 * weights[i];
    }
  }

  // Sets `total` for these outer values; returns the part that is the same for all.
  double begin(const std::vector<double>& values, Vector<double>& total) const {
    total = own_;
    double shared = 0;
    for (std::int64_t j = 0; j < outer_; ++j) {
      add_multiple(total.data(), &steps_[j * size_], -values[j], size_);
      shared -= fields_[inner_ + j] * values[j];
      for (std::int64_t i = 0; i < j; ++i) shared -= couplings_[inner_ + j][inner_ + i] * values[i] * values[j];
    }
    return shared;
  }

  Matrix<const double> couplings_;
  const double* fields_;
  std::int64_t k_, inner_, outer_, size_;
  Vector<double> own_, steps_;
};

// A column without the spins that are fixed.
struct Open {
  std::vector<std::int64_t> places;
  std::vector<double> couplings, fields;
  std::int64_t size;

  Open(Matrix<const double> whole, const double* linear, const double* fixed) {
    const std::int64_t n = whole.columns;
    for (std::int64_t i = 0; i < n; ++i) {
      if (fixed[i] == 0) places.push_back(i);
    }
    size = static_cast<std::int64_t>(places.size());
    couplings.resize(size * size);
    fields.resize(size);
    for (std::int64_t a = 0; a < size; ++a) {
      const double* row = whole[places[a]];
      fields[a] = linear[places[a]] + dot(row, fixed, n);
      for (std::int64_t b = 0; b < size; ++b) couplings[a * size + b] = row[places[b]];
    }
  }

  Matrix<const double> matrix() const { return {couplings.data(), size, size}; }
};

bool exhaust(Matrix<const double> couplings, const double* fields, double* spins, int threads, Watch& watch) {
  const Exhaustion exhaustion(couplings, fields);
  const std::int64_t k = couplings.columns, outer = exhaustion.outer();
  // Without fields, an answer and its negative are the same.
  const bool symmetric = outer > 0 && std::all_of(fields, fields + k, [](double h) { return h == 0; });
  const std::int64_t free = symmetric ? outer - 1 : outer;
  const std::int64_t split = std::min<std::int64_t>(SPLIT, std::max<std::int64_t>(0, free - ALONE));
  const std::int64_t parts = std::int64_t{1} << split;
  std::vector<Exhaustion::Found> found(parts);
  std::vector<double> tried(parts * k, 1.0);
  parallel(parts, threads, watch, [&](std::int64_t part, Watch& seen) {
    std::vector<double> values(outer, 1.0);
    for (std::int64_t j = 0; j < split; ++j) values[free - 1 - j] = (part >> j) & 1 ? 1 : -1;
    found[part] = exhaustion.best(values, free - split, &tried[part * k], seen);
  });
  std::int64_t best = 0;
  bool all = true;
  for (std::int64_t part = 0; part < parts; ++part) {
    if (found[part].value > found[best].value) best = part;
    all = all && found[part].all;
  }
  std::copy_n(&tried[best * k], k, spins);
  return all;
}

void complete(Matrix<const double> couplings, Matrix<const double> linear, Matrix<const double> fixed,
              Matrix<double> spins, bool* done, int threads, Watch& watch) {
  parallel(linear.rows, threads, watch, [&](std::int64_t j, Watch& seen) {
    done[j] = false;
    if (seen.stopped()) return;
    const Open open(couplings, linear[j], fixed[j]);
    const Exhaustion exhaustion(open.matrix(), open.fields.data());
    std::vector<double> values(exhaustion.outer(), 1.0), best(open.size);
    done[j] = exhaustion.best(values, exhaustion.outer(), best.data(), seen).all;
    if (!done[j]) return;
    for (std::int64_t a = 0; a < open.size; ++a) spins[j][open.places[a]] = best[a];
  });
}

// Nearly the least xᵀAx + fᵀx over x ∈ [−1, 1]ᵏ, by coordinate descent. Any x gives a valid bound.
std::vector<double> box_minimum(Matrix<const double> matrix, const std::vector<double>& fields, Watch& watch) {
  constexpr int PASSES = 100;
  constexpr double STILL = 1e-6;
  const std::int64_t k = matrix.columns;
  std::vector<double> x(k), slopes(fields);
  double largest = 1;
  for (int pass = 0; pass < PASSES && largest >= STILL; ++pass) {
    largest = 0;
    for (std::int64_t a = 0; a < k; ++a) {
      if (watch.stopped()) return x;
      const double moved = std::min(1.0, std::max(-1.0, x[a] - slopes[a] / (2 * matrix[a][a])));
      const double change = moved - x[a];
      if (change == 0) continue;
      x[a] = moved;
      add_multiple(slopes.data(), matrix[a], 2 * change, k);
      largest = std::max(largest, std::abs(change));
    }
  }
  return x;
}

// Depth-first search of one column for the least ‖R g − y‖², as `solvers/exact/sphere_decoder.py` describes it.
class Decoder {
 public:
  Decoder(Matrix<const double> matrix, const std::vector<double>& fields, Watch& watch)
      : k_(matrix.columns), order_(k_), factor_(k_ * k_), target_(k_), watch_(watch) {
    factorise(matrix);
    for (std::int64_t a = 0; a < k_; ++a) {  // Rᵀ y = −s/2
      double total = -0.5 * fields[order_[a]];
      for (std::int64_t b = 0; b < a; ++b) total -= row(b)[a] * target_[b];
      target_[a] = total / row(a)[a];
    }
  }

  const std::vector<std::int64_t>& order() const { return order_; }

  // Improves on `best`, in the decoder's order; the nodes visited, −1 at a limit.
  std::int64_t improve(std::vector<double>& best, std::int64_t node_limit) {
    if (watch_.stopped()) return -1;
    const double radius = distance(best);
    const std::vector<double> known = implied(best, radius);
    // Sums of rounded terms: a search for strictly less must not find the start again.
    const double size = dot(target_.data(), target_.data(), k_);
    if (!std::isfinite(radius + size)) return -1;
    return search(known, best, radius - 1e-12 * (radius + size), node_limit);
  }

 private:
  double* row(std::int64_t a) { return &factor_[a * k_]; }

  // An order of the spins and R, upper triangular, of the matrix in that order. Smallest pivot first, so that the spins
  // that are set first, the last rows of R, have the largest diagonal.
  void factorise(Matrix<const double> matrix) {
    std::vector<double> schur(matrix.data, matrix.data + k_ * k_), rows(k_ * k_);
    std::vector<std::int64_t> open(k_);
    for (std::int64_t a = 0; a < k_; ++a) open[a] = a;
    for (std::int64_t step = 0; step < k_ && !watch_.stopped(); ++step) {
      auto place = open.begin();
      for (auto a = open.begin(); a != open.end(); ++a) {
        if (schur[*a * k_ + *a] < schur[*place * k_ + *place]) place = a;
      }
      const std::int64_t pick = *place;
      open.erase(place);
      order_[step] = pick;
      double* own = &rows[step * k_];
      const double root = std::sqrt(std::max(schur[pick * k_ + pick], 1e-300));
      own[pick] = root;
      for (const std::int64_t a : open) own[a] = schur[pick * k_ + a] / root;
      // Columns of spins that are done change, too, but are no longer read.
      for (const std::int64_t a : open) add_multiple(&schur[a * k_], own, -own[a], k_);
    }
    for (std::int64_t a = 0; a < k_; ++a) {
      for (std::int64_t b = a; b < k_; ++b) row(a)[b] = rows[a * k_ + order_[b]];
    }
  }

  // ‖R g − y‖².
  double distance(const std::vector<double>& spins) {
    double total = 0;
    for (std::int64_t a = 0; a < k_; ++a) {
      const double residual = dot(row(a) + a, &spins[a], k_ - a) - target_[a];
      total += residual * residual;
    }
    return total;
  }

  // The spins that all vectors within the radius share with `spins`, 0 where open. Over real x, the least ‖R x − y‖²
  // with x_i held at the other value is (g_i + x*_i)²/(A⁻¹)_ii, x* = R⁻¹ y.
  std::vector<double> implied(const std::vector<double>& spins, double radius) {
    std::vector<double> known(k_), inverse(k_ * k_);  // the transpose of R⁻¹
    for (std::int64_t b = 0; b < k_; ++b) {
      if (watch_.stopped()) return known;
      double* own = &inverse[b * k_];
      own[b] = 1 / row(b)[b];
      for (std::int64_t a = b - 1; a >= 0; --a) own[a] = -dot(row(a) + a + 1, own + a + 1, b - a) / row(a)[a];
    }
    for (std::int64_t a = 0; a < k_; ++a) {
      double centre = 0, variance = 0;
      for (std::int64_t b = a; b < k_; ++b) {
        centre += inverse[b * k_ + a] * target_[b];
        variance += inverse[b * k_ + a] * inverse[b * k_ + a];
      }
      const double other = spins[a] + centre;
      if (other * other > variance * radius * (1 + 1e-9)) known[a] = spins[a];
    }
    return known;
  }

  std::int64_t search(const std::vector<double>& known, std::vector<double>& best, double radius,
                      std::int64_t node_limit) {
    std::vector<double> spins(k_), centre(k_), below(k_ + 1);
    std::vector<char> second(k_);
    std::int64_t nodes = 0, k = k_ - 1;
    auto enter = [&] {
      centre[k] = target_[k] - dot(row(k) + k + 1, spins.data() + k + 1, k_ - k - 1);
      second[k] = known[k] != 0;
      spins[k] = known[k] != 0 ? known[k] : centre[k] >= 0 ? 1 : -1;
    };
    enter();
    for (;;) {
      if (++nodes > node_limit || watch_.stopped()) return -1;
      const double residual = centre[k] - row(k)[k] * spins[k];
      const double cost = below[k + 1] + residual * residual;
      if (cost < radius) {
        if (k > 0) {
          below[k--] = cost;
          enter();
          continue;
        }
        radius = cost;
        best = spins;
      }
      // A spin's first value is the cheaper one: where it is too far, so is the other, and a leaf has no better twin.
      ++k;
      while (k < k_ && second[k]) ++k;
      if (k == k_) return nodes;
      second[k] = true;
      spins[k] = -spins[k];
    }
  }

  std::int64_t k_;
  std::vector<std::int64_t> order_;
  std::vector<double> factor_, target_;
  Watch& watch_;
};

void decode(Matrix<const double> couplings, Matrix<const double> linear, Matrix<const double> fixed,
            Matrix<double> spins, double shift, std::int64_t node_limit, std::int64_t* nodes, int threads,
            Watch& watch) {
  parallel(linear.rows, threads, watch, [&](std::int64_t j, Watch& seen) {
    Open open(couplings, linear[j], fixed[j]);
    const std::int64_t k = open.size;
    for (std::int64_t i = 0; i < spins.columns; ++i) {
      if (fixed[j][i] != 0) spins[j][i] = fixed[j][i];
    }
    nodes[j] = 0;
    if (!k) return;
    for (double& coupling : open.couplings) coupling /= 2;
    for (std::int64_t a = 0; a < k; ++a) open.couplings[a * k + a] = shift;
    const std::vector<double> relaxed = box_minimum(open.matrix(), open.fields, seen);
    // The multiplier of x² ≤ 1, which moves the minimum over all real x onto the box.
    std::vector<double> multipliers(k);
    for (std::int64_t a = 0; a < k; ++a) {
      if (!(std::abs(relaxed[a]) > 1 - 1e-9)) continue;
      const double slope = open.fields[a] + 2 * dot(&open.couplings[a * k], relaxed.data(), k);
      multipliers[a] = std::max(0.0, -slope * relaxed[a] / 2);
    }
    for (std::int64_t a = 0; a < k; ++a) open.couplings[a * k + a] += multipliers[a];
    Decoder decoder(open.matrix(), open.fields, seen);
    std::vector<double> best(k);
    for (std::int64_t a = 0; a < k; ++a) best[a] = spins[j][open.places[decoder.order()[a]]];
    nodes[j] = decoder.improve(best, node_limit);
    for (std::int64_t a = 0; a < k; ++a) spins[j][open.places[decoder.order()[a]]] = best[a];
  });
}

}  // namespace

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

}  // namespace qpsbgd
