#include "random.hpp"

#include <array>
#include <cmath>
#include <utility>

namespace qpsbgd {

const float* exponential_draws() {
  static const std::array<float, PLACES + LANES> draws = [] {
    std::array<float, PLACES + LANES> table{};
    for (int place = 0; place < PLACES; ++place) {
      table[place] = static_cast<float>(-std::log((place + 0.5) / PLACES));
    }
    Random random(1);
    for (int place = PLACES - 1; place > 0; --place) std::swap(table[place], table[random.below(place + 1)]);
    for (int place = 0; place < LANES; ++place) table[PLACES + place] = table[place];
    return table;
  }();
  return draws.data();
}

}  // namespace qpsbgd
