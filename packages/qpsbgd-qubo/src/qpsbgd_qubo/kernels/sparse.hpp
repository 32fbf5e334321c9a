// One sparse problem: compressed rows, checked when they were made. `spins` (n,) is int8, fields = h + J · spins; a flip
// of spin i changes the energy by −2 · spins[i] · fields[i] and touches the fields of its neighbours alone.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

namespace qpsbgd {

struct Rows {
  std::vector<std::int64_t> begins;   // n + 1
  std::vector<std::int32_t> columns;  // below n
  std::vector<double> couplings;
  std::vector<float> singles;  // the same in single precision

  std::int64_t size() const { return static_cast<std::int64_t>(begins.size()) - 1; }

  // Whether columns ascend in every row.
  bool ascend() const {
    for (std::int64_t i = 0; i < size(); ++i) {
      for (std::int64_t at = begins[i] + 1; at < begins[i + 1]; ++at) {
        if (columns[at] <= columns[at - 1]) return false;
      }
    }
    return true;
  }

  template <class T>
  const T* values() const {
    if constexpr (std::is_same_v<T, double>) {
      return couplings.data();
    } else {
      return singles.data();
    }
  }

  template <class T, class S>
  void flip(T* fields, S* spins, std::int64_t i) const {
    const T change = static_cast<T>(-2 * spins[i]);
    spins[i] = static_cast<S>(-spins[i]);
    const T* value = values<T>();
    for (std::int64_t at = begins[i]; at < begins[i + 1]; ++at) fields[columns[at]] += value[at] * change;
  }

  // Writes h + J · spins; the energy, without a constant.
  template <class T>
  double set_fields(const double* linear, const std::int8_t* spins, T* fields) const {
    double twice = 0;
    for (std::int64_t i = 0; i < size(); ++i) {
      double field = linear[i];
      for (std::int64_t at = begins[i]; at < begins[i + 1]; ++at) field += couplings[at] * spins[columns[at]];
      fields[i] = static_cast<T>(field);
      twice += spins[i] * (linear[i] + field);
    }
    return twice / 2;
  }
};

}  // namespace qpsbgd
