#include "vectors.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

namespace qpsbgd {
namespace {

template <class T>
constexpr T LOWEST = -std::numeric_limits<T>::infinity();

template <class T>
ALWAYS_INLINE void add(T* __restrict target, const T* __restrict row, T factor, std::int64_t n) {
  std::int64_t k = 0;
  for (; k + PARTS <= n; k += PARTS) {
    for (std::int64_t p = 0; p < PARTS; ++p) target[k + p] += factor * row[k + p];
  }
  for (; k < n; ++k) target[k] += factor * row[k];
}

// The largest of all parts, in the first one.
template <int HALF, class T>
ALWAYS_INLINE void fold(T* parts) {
  for (int p = 0; p < HALF; ++p) parts[p] = std::max(parts[p], parts[p + HALF]);
  if constexpr (HALF > 1) fold<HALF / 2>(parts);
}

// The best gain and its place in each of PARTS columns of numbers, brought together at the end. With ADDING, fields +=
// factor · row before.
template <bool ADDING, class T>
ALWAYS_INLINE Best<T> best(T* __restrict fields, const T* __restrict row, T factor, const T* __restrict spins,
                           const T* __restrict penalties, std::int64_t n) {
  using Place = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;  // as wide, so that both are vectors
  T most[PARTS], folded[PARTS];
  Place places[PARTS];
  for (std::int64_t p = 0; p < PARTS; ++p) most[p] = LOWEST<T>, places[p] = 0;
  const std::int64_t whole = n / PARTS * PARTS;
  for (std::int64_t k = 0; k < whole; k += PARTS) {
    for (std::int64_t p = 0; p < PARTS; ++p) {
      if (ADDING) fields[k + p] += factor * row[k + p];
      const T gain = spins[k + p] * fields[k + p] + penalties[k + p];
      const bool better = gain > most[p];
      most[p] = better ? gain : most[p];
      places[p] = better ? static_cast<Place>(k) : places[p];
    }
  }
  for (std::int64_t p = 0; p < PARTS; ++p) folded[p] = most[p];
  fold<PARTS / 2>(folded);
  // The first place of the largest one: as negative numbers, so that it is a maximum too.
  for (std::int64_t p = 0; p < PARTS; ++p) {
    places[p] = most[p] == folded[0] ? -places[p] - static_cast<Place>(p) : std::numeric_limits<Place>::min();
  }
  fold<PARTS / 2>(places);
  // NaN equals nothing, so that no place may be left; the first is as good as any.
  const bool any = places[0] != std::numeric_limits<Place>::min();
  Best<T> found{folded[0], any ? -std::int64_t{places[0]} : 0};
  for (std::int64_t k = whole; k < n; ++k) {
    if (ADDING) fields[k] += factor * row[k];
    const T gain = spins[k] * fields[k] + penalties[k];
    if (gain > found.gain) found = {gain, k};
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
  QPSBGD_VERSIONS void add_multiple(T* target, const T* row, T factor, std::int64_t n) { add(target, row, factor, n); }\
  QPSBGD_VERSIONS T dot(const T* a, const T* b, std::int64_t n) { return product(a, b, n); }                           \
  QPSBGD_VERSIONS Best<T> best_flip(const T* fields, const T* spins, const T* penalties, std::int64_t n) {             \
    return best<false, T>(const_cast<T*>(fields), nullptr, T(0), spins, penalties, n);                                 \
  }                                                                                                                    \
  QPSBGD_VERSIONS Best<T> add_and_best_flip(T* fields, const T* row, T factor, const T* spins, const T* penalties,     \
                                            std::int64_t n) {                                                          \
    return best<true>(fields, row, factor, spins, penalties, n);                                                       \
  }

FOR_TYPE(float)
FOR_TYPE(double)

QPSBGD_VERSIONS double add_multiple_and_max(double* __restrict target, const double* __restrict row, double factor,
                                            std::int64_t n) {
  double most[PARTS];
  for (std::int64_t p = 0; p < PARTS; ++p) most[p] = LOWEST<double>;
  const std::int64_t whole = n / PARTS * PARTS;
  for (std::int64_t k = 0; k < whole; k += PARTS) {
    for (std::int64_t p = 0; p < PARTS; ++p) {
      const double value = target[k + p] + factor * row[k + p];
      target[k + p] = value;
      most[p] = value > most[p] ? value : most[p];
    }
  }
  fold<PARTS / 2>(most);
  for (std::int64_t k = whole; k < n; ++k) most[0] = std::max(most[0], target[k] += factor * row[k]);
  return most[0];
}

}  // namespace qpsbgd
