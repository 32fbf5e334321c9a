#include "vectors.hpp"

#include <algorithm>
#include <limits>

namespace qpsbgd {
namespace {

#define ALWAYS_INLINE inline __attribute__((always_inline))

constexpr std::int64_t PARTS = 16;  // numbers that one turn of a loop treats side by side, and parts of a sum
constexpr std::int64_t BLOCK = 32;  // numbers whose maximum is taken together; in the best block, places are compared

template <class T>
ALWAYS_INLINE void add(T* __restrict target, const T* __restrict row, T factor, std::int64_t n) {
  std::int64_t k = 0;
  for (; k + PARTS <= n; k += PARTS) {
    for (std::int64_t p = 0; p < PARTS; ++p) target[k + p] += factor * row[k + p];
  }
  for (; k < n; ++k) target[k] += factor * row[k];
}

// The largest gain of a block; with ADDING, fields += factor · row before.
template <bool ADDING, class T>
ALWAYS_INLINE T largest(T* __restrict fields, const T* __restrict row, T factor, const T* __restrict spins,
                        const T* __restrict penalties, std::int64_t size) {
  T most = spins[0] * (ADDING ? fields[0] + factor * row[0] : fields[0]) + penalties[0];
  for (std::int64_t k = 0; k < size; ++k) {
    if (ADDING) fields[k] += factor * row[k];
    most = std::max(most, spins[k] * fields[k] + penalties[k]);
  }
  return most;
}

template <bool ADDING, class T>
ALWAYS_INLINE Best<T> best(T* fields, const T* row, T factor, const T* spins, const T* penalties, std::int64_t n) {
  Best<T> found{0, -1};
  std::int64_t begin = 0;
  const auto look = [&](std::int64_t size) __attribute__((always_inline)) {
    const T most = largest<ADDING, T>(fields + begin, row + begin, factor, spins + begin, penalties + begin, size);
    if (found.index < 0 || most > found.gain) found = {most, begin};
  };
  for (; begin + BLOCK <= n; begin += BLOCK) look(BLOCK);
  if (begin < n) look(n - begin);
  // It ends: a product and a sum that are done again give the same number. Should that not hold, the last one is taken.
  while (found.index < n - 1 && !(spins[found.index] * fields[found.index] + penalties[found.index] >= found.gain)) {
    ++found.index;
  }
  return found;
}

template <class T>
ALWAYS_INLINE T product(const T* __restrict a, const T* __restrict b, std::int64_t n) {
  T parts[PARTS] = {};
  const std::int64_t whole = n / PARTS * PARTS;
  for (std::int64_t k = 0; k < whole; k += PARTS) {
    for (std::int64_t p = 0; p < PARTS; ++p) parts[p] += a[k + p] * b[k + p];
  }
  for (std::int64_t k = whole; k < n; ++k) parts[k - whole] += a[k] * b[k];
  for (std::int64_t half = PARTS / 2; half; half /= 2) {
    for (std::int64_t p = 0; p < half; ++p) parts[p] += parts[p + half];
  }
  return parts[0];
}

}  // namespace

#define FOR_TYPE(T)                                                                                                    \
  QPSBGD_VERSIONS void add_multiple(T* target, const T* row, T factor, std::int64_t n) { add(target, row, factor, n); } \
  QPSBGD_VERSIONS T dot(const T* a, const T* b, std::int64_t n) { return product(a, b, n); }                           \
  QPSBGD_VERSIONS Best<T> best_flip(const T* fields, const T* spins, const T* penalties, std::int64_t n) {             \
    return best<false>(const_cast<T*>(fields), fields, T(0), spins, penalties, n);                                     \
  }                                                                                                                    \
  QPSBGD_VERSIONS Best<T> add_and_best_flip(T* fields, const T* row, T factor, const T* spins, const T* penalties,     \
                                            std::int64_t n) {                                                          \
    return best<true>(fields, row, factor, spins, penalties, n);                                                       \
  }

FOR_TYPE(float)
FOR_TYPE(double)

QPSBGD_VERSIONS double add_multiple_and_max(double* __restrict target, const double* __restrict row, double factor,
                                            std::int64_t n) {
  double one = -std::numeric_limits<double>::max(), other = one;  // two maxima wait for each other half as long
  const std::int64_t half = n / 2;
  for (std::int64_t k = 0; k < half; ++k) {
    one = std::max(one, target[k] += factor * row[k]);
    other = std::max(other, target[k + half] += factor * row[k + half]);
  }
  for (std::int64_t k = 2 * half; k < n; ++k) one = std::max(one, target[k] += factor * row[k]);
  return std::max(one, other);
}

}  // namespace qpsbgd
