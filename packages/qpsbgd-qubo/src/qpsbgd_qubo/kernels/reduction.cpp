// Elimination of the spins whose best value follows from others; `solvers/search/chains.py` has the mathematics.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "kernels.hpp"

namespace qpsbgd {
namespace {

constexpr int MOST = 3;
constexpr std::int64_t SLACK = 4;    // places per row for couplings that are added; where they do not suffice, a spin stays
constexpr std::int64_t HUB = 64;     // places of a row above which it is not searched, but has an index
constexpr std::int32_t GONE = -1;    // the column of a place that is free
constexpr double ROUNDING = 1e-9;    // share of sums that bounds their rounding errors with room to spare
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
      : n_(rows.size()), begins_(n_ + 1), degrees_(n_), ends_(n_), margins_(n_),
        columns_(rows.columns.size() + SLACK * n_), couplings_(columns_.size()), linear_(linear, linear + n_) {
    for (std::int64_t i = 0; i <= n_; ++i) begins_[i] = rows.begins[i] + SLACK * i;
    for (std::int64_t i = 0; i < n_; ++i) {
      degrees_[i] = rows.begins[i + 1] - rows.begins[i];
      ends_[i] = begins_[i] + degrees_[i];
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
      const double field = linear_[v];
      const bool decided = outweighs(v);
      if (!decided && degrees_[v] > (field != 0 ? 2 : MOST)) continue;
      compact(v);
      const std::int64_t begin = begins_[v], degree = degrees_[v];
      if (!decided && degree == MOST && !fits(v)) continue;
      alive[v] = false;
      found.gone.push_back(v);
      found.fields.push_back(field);
      const std::size_t place = found.neighbours.size();
      found.neighbours.resize(place + MOST, -1);
      found.weights.resize(place + MOST, 0.0);
      if (decided) {
        for (std::int64_t k = 0; k < degree; ++k) {
          add_field(columns_[begin + k], field > 0 ? -couplings_[begin + k] : couplings_[begin + k]);
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
      ends_[v] = begins_[v];
    }
    if (size) found = Reduced();  // stopped: what is left of a large problem would take long to write down
    if (found.gone.empty()) {
      found.kept = std::move(ring);
      std::iota(found.kept.begin(), found.kept.end(), 0);
    } else {
      renumber(alive, found);
    }
    return found;
  }

 private:
  struct Hub {
    std::unordered_map<std::int32_t, std::int64_t> places;  // of the columns in its row
    std::vector<std::int64_t> free;
  };

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

  // Whether the field of v is at least the sum of its couplings. That is added up again only when it may have changed
  // enough since it was found not to be: hubs are looked at again and again.
  bool outweighs(std::int64_t v) {
    if (margins_[v] > 0) return false;
    double pull = 0;
    for (std::int64_t at = begins_[v]; at < ends_[v]; ++at) {
      if (columns_[at] != GONE) pull += std::abs(couplings_[at]);
    }
    const double field = std::abs(linear_[v]);
    if (field >= pull) return true;
    margins_[v] = pull - field - ROUNDING * pull;
    return false;
  }

  void add_field(std::int64_t u, double value) {
    linear_[u] += value;
    margins_[u] -= (1 + ROUNDING) * std::abs(value);
  }

  // Adds to the coupling that row u has for v; one that cancels out is removed.
  void couple(std::int64_t u, std::int64_t v, double value) {
    margins_[u] -= (1 + ROUNDING) * std::abs(value);
    const std::int64_t at = place(u, v);
    if (at >= 0) {
      const double size = std::abs(couplings_[at]) + std::abs(value);
      couplings_[at] += value;
      if (std::abs(couplings_[at]) <= CANCELLED * size) remove(u, v);
      return;
    }
    const auto hub = hubs_.find(u);
    if (ends_[u] == begins_[u + 1] && hub == hubs_.end()) compact(u);
    std::int64_t to = ends_[u];
    if (to < begins_[u + 1]) {
      ++ends_[u];
    } else if (hub != hubs_.end() && !hub->second.free.empty()) {
      to = hub->second.free.back();
      hub->second.free.pop_back();
    } else {
      throw std::invalid_argument("rows must be symmetric: J_ij and J_ji both present");
    }
    ++degrees_[u];
    columns_[to] = static_cast<std::int32_t>(v);
    couplings_[to] = value;
    if (hub != hubs_.end()) hub->second.places.emplace(static_cast<std::int32_t>(v), to);
  }

  // Where row u has the coupling to v; −1 where it has none.
  std::int64_t place(std::int64_t u, std::int64_t v) {
    if (ends_[u] - begins_[u] <= HUB) {
      for (std::int64_t at = begins_[u]; at < ends_[u]; ++at) {
        if (columns_[at] == v) return at;
      }
      return -1;
    }
    const auto [hub, fresh] = hubs_.try_emplace(u);
    if (fresh) {
      for (std::int64_t at = begins_[u]; at < ends_[u]; ++at) {
        if (columns_[at] == GONE) hub->second.free.push_back(at);
        else hub->second.places.emplace(columns_[at], at);
      }
    }
    const auto found = hub->second.places.find(static_cast<std::int32_t>(v));
    return found == hub->second.places.end() ? -1 : found->second;
  }

  // Removes v from row u; the others stay in their order.
  void remove(std::int64_t u, std::int64_t v) {
    const std::int64_t at = place(u, v);
    if (at < 0) return;
    margins_[u] -= (1 + ROUNDING) * std::abs(couplings_[at]);
    columns_[at] = GONE;
    --degrees_[u];
    const auto hub = hubs_.find(u);
    if (hub != hubs_.end()) {
      hub->second.places.erase(static_cast<std::int32_t>(v));
      hub->second.free.push_back(at);
    }
    if (ends_[u] - begins_[u] > std::max(HUB, 2 * degrees_[u])) compact(u);
  }

  // Closes the free places of row u.
  void compact(std::int64_t u) {
    if (ends_[u] - begins_[u] == degrees_[u]) return;
    hubs_.erase(u);
    std::int64_t to = begins_[u];
    for (std::int64_t at = begins_[u]; at < ends_[u]; ++at) {
      if (columns_[at] == GONE) continue;
      columns_[to] = columns_[at];
      couplings_[to++] = couplings_[at];
    }
    ends_[u] = to;
  }

  // The rows that are left, numbered anew, with ascending columns.
  void renumber(const std::vector<char>& alive, Reduced& found) const {
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
      for (std::int64_t at = begins_[i]; at < ends_[i]; ++at) {
        if (columns_[at] != GONE) row.emplace_back(number[columns_[at]], couplings_[at]);
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
  std::vector<std::int64_t> begins_, degrees_, ends_;  // where each row begins, its couplings, and the end of its places
  std::vector<double> margins_;  // at least by how much a spin's couplings are known to outweigh its field; 0: unknown
  std::unordered_map<std::int64_t, Hub> hubs_;
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
