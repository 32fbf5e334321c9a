// Elimination of the spins whose best value follows from others; `solvers/search/chains.py` has the mathematics.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "kernels.hpp"

namespace qpsbgd {
namespace {

constexpr int MOST = 3;
constexpr std::int64_t SLACK = 4;  // places per row for couplings that are added; where they do not suffice, a spin stays
constexpr double CANCELLED = 1e-13;  // share of what was added up, up to which a sum counts as zero

// What is left of a problem, its rows only where something is gone, and the spins that are: each with up to MOST
// neighbours that it depends on.
struct Reduced {
  std::vector<std::int64_t> kept, begins, gone, neighbours;  // neighbours: (gone, MOST), −1 where there are fewer
  std::vector<std::int32_t> columns;
  std::vector<double> couplings, linear, weights, fields;
};

class Reducer {
 public:
  Reducer(const Rows& rows, const double* linear)
      : n_(rows.size()), begins_(n_ + 1), degrees_(n_), columns_(rows.columns.size() + SLACK * n_),
        couplings_(columns_.size()), linear_(linear, linear + n_) {
    for (std::int64_t i = 0; i <= n_; ++i) begins_[i] = rows.begins[i] + SLACK * i;
    for (std::int64_t i = 0; i < n_; ++i) {
      degrees_[i] = rows.begins[i + 1] - rows.begins[i];
      std::copy_n(rows.columns.data() + rows.begins[i], degrees_[i], columns_.data() + begins_[i]);
      std::copy_n(rows.couplings.data() + rows.begins[i], degrees_[i], couplings_.data() + begins_[i]);
    }
  }

  Reduced reduce(Watch& watch) {
    Reduced found;
    std::vector<char> alive(n_, true), queued(n_, true);
    // First in, first out keeps the core's degrees low; a ring holds every spin at most once.
    std::vector<std::int64_t> ring(n_);
    std::iota(ring.begin(), ring.end(), 0);
    std::int64_t head = 0, size = n_;
    while (size && !watch.stopped()) {
      const std::int64_t v = ring[head];
      head = head + 1 < n_ ? head + 1 : 0;
      --size;
      queued[v] = false;
      const std::int64_t begin = begins_[v], degree = degrees_[v];
      double pull = 0;
      for (std::int64_t k = 0; k < degree; ++k) pull += std::abs(couplings_[begin + k]);
      const double field = linear_[v];
      const bool decided = std::abs(field) >= pull;
      if (!decided && degree > (field != 0 ? 2 : MOST)) continue;
      if (!decided && degree == MOST && !fits(v)) continue;
      alive[v] = false;
      found.gone.push_back(v);
      found.fields.push_back(field);
      const std::size_t place = found.neighbours.size();
      found.neighbours.resize(place + MOST, -1);
      found.weights.resize(place + MOST, 0.0);
      if (decided) {
        for (std::int64_t k = 0; k < degree; ++k) {
          linear_[columns_[begin + k]] += field > 0 ? -couplings_[begin + k] : couplings_[begin + k];
        }
      } else {
        for (std::int64_t k = 0; k < degree; ++k) {
          found.neighbours[place + k] = columns_[begin + k];
          found.weights[place + k] = couplings_[begin + k];
        }
      }
      for (std::int64_t k = 0; k < degree; ++k) {
        const std::int64_t u = columns_[begin + k];
        remove(u, v);
        if (queued[u]) continue;
        queued[u] = true;
        ring[(head + size) % n_] = u;
        ++size;
      }
      if (!decided) spread(&found.neighbours[place], &found.weights[place], static_cast<int>(degree), field);
      degrees_[v] = 0;
    }
    if (size) found = Reduced();  // stopped: what is left of a large problem would take long to write down
    if (found.gone.empty()) {
      found.kept = std::move(ring);
      std::iota(found.kept.begin(), found.kept.end(), 0);
    } else {
      compact(alive, found);
    }
    return found;
  }

 private:
  // Whether the rows of v's neighbours have room for couplings among them.
  bool fits(std::int64_t v) const {
    for (std::int64_t k = 0; k < degrees_[v]; ++k) {
      const std::int64_t u = columns_[begins_[v] + k];
      if (degrees_[u] + 1 > begins_[u + 1] - begins_[u]) return false;
    }
    return true;
  }

  // Adds −|field + weightsᵀx| as fields of x and couplings among them.
  void spread(const std::int64_t* ends, const double* weights, int degree, double field) {
    const int total = 1 << degree;
    double energies[1 << MOST];
    for (int code = 0; code < total; ++code) {
      double value = field;
      for (int k = 0; k < degree; ++k) value += (code >> k) & 1 ? weights[k] : -weights[k];
      energies[code] = -std::abs(value);
    }
    for (int k = 0; k < degree; ++k) {
      double share = 0;
      for (int code = 0; code < total; ++code) share += (code >> k) & 1 ? energies[code] : -energies[code];
      if (field != 0) linear_[ends[k]] += share / total;
      for (int other = 0; other < k; ++other) {
        share = 0;
        for (int code = 0; code < total; ++code) {
          share += ((code >> k) & 1) == ((code >> other) & 1) ? energies[code] : -energies[code];
        }
        if (share == 0) continue;
        couple(ends[k], ends[other], share / total);
        couple(ends[other], ends[k], share / total);
      }
    }
  }

  // Adds to the coupling that row u has for v; one that cancels out is removed.
  void couple(std::int64_t u, std::int64_t v, double value) {
    for (std::int64_t at = begins_[u]; at < begins_[u] + degrees_[u]; ++at) {
      if (columns_[at] != v) continue;
      const double size = std::abs(couplings_[at]) + std::abs(value);
      couplings_[at] += value;
      if (std::abs(couplings_[at]) <= CANCELLED * size) remove(u, v);
      return;
    }
    const std::int64_t place = begins_[u] + degrees_[u];
    if (place == begins_[u + 1]) throw std::invalid_argument("rows must be symmetric: J_ij and J_ji both present");
    ++degrees_[u];
    columns_[place] = static_cast<std::int32_t>(v);
    couplings_[place] = value;
  }

  // Removes v from row u; the others stay in their order.
  void remove(std::int64_t u, std::int64_t v) {
    const auto begin = columns_.begin() + begins_[u], end = begin + degrees_[u];
    const auto place = std::find(begin, end, v);
    if (place == end) return;
    const auto value = couplings_.begin() + (place - columns_.begin());
    std::copy(place + 1, end, place);
    std::copy(value + 1, value + (end - place), value);
    --degrees_[u];
  }

  // The rows that are left, numbered anew, with ascending columns.
  void compact(const std::vector<char>& alive, Reduced& found) const {
    std::vector<std::int32_t> number(n_);
    for (std::int64_t i = 0; i < n_; ++i) {
      if (!alive[i]) continue;
      number[i] = static_cast<std::int32_t>(found.kept.size());
      found.kept.push_back(i);
      found.linear.push_back(linear_[i]);
    }
    found.begins.push_back(0);
    std::vector<std::pair<std::int32_t, double>> row;
    for (const std::int64_t i : found.kept) {
      row.clear();
      for (std::int64_t at = begins_[i]; at < begins_[i] + degrees_[i]; ++at) {
        row.emplace_back(number[columns_[at]], couplings_[at]);
      }
      std::sort(row.begin(), row.end());
      for (const auto& [column, value] : row) {
        found.columns.push_back(column);
        found.couplings.push_back(value);
      }
      found.begins.push_back(static_cast<std::int64_t>(found.columns.size()));
    }
  }

  std::int64_t n_;
  std::vector<std::int64_t> begins_, degrees_;
  std::vector<std::int32_t> columns_;
  std::vector<double> couplings_, linear_;
};

Reduced reduce(const Rows& rows, const double* linear, Watch& watch) { return Reducer(rows, linear).reduce(watch); }

void complete_reduced(std::int8_t* spins, const std::int64_t* gone, std::int64_t count, const std::int64_t* neighbours,
                      const double* weights, const double* fields) {
  for (std::int64_t place = count - 1; place >= 0; --place) {
    double field = fields[place];
    for (std::int64_t k = MOST * place; k < MOST * (place + 1); ++k) {
      if (neighbours[k] >= 0) field += weights[k] * spins[neighbours[k]];
    }
    spins[gone[place]] = field > 0 ? -1 : 1;
  }
}

}  // namespace

void bind_reduction(nb::module_& module) {
  def(module, "reduce", [](const Rows& rows, Linear linear, Stop stop) {
    expect(linear, "linear", {rows.size()});
    Reduced found = call(&stop, reduce, rows, linear);
    return std::make_tuple(numpy(std::move(found.begins)), numpy(std::move(found.columns)),
                           numpy(std::move(found.couplings)), numpy(std::move(found.linear)),
                           numpy(std::move(found.kept)), numpy(std::move(found.gone)),
                           numpy(std::move(found.neighbours), MOST),
                           numpy(std::move(found.weights), MOST), numpy(std::move(found.fields)));
  });

  def(module, "complete_reduced", [](Spins spins, Array<const int64_t, 1> gone, Array<const int64_t, 2> neighbours,
                                     Array<const double, 2> weights, Array<const double, 1> fields) {
    const int64_t count = size(gone), n = size(spins);
    expect(neighbours, "neighbours", {count, MOST});
    expect(weights, "weights", {count, MOST});
    expect(fields, "fields", {count});
    expect_indices(gone.data(), count, 0, n, "gone");
    expect_indices(neighbours.data(), count * MOST, -1, n, "neighbours");
    call(nullptr, complete_reduced, spins, gone, count, neighbours.data(), weights.data(), fields);
  });
}

}  // namespace qpsbgd
