// Loops over vectors that the compiler turns into vector instructions, and on x86 into several versions of which the
// processor picks one when the module is loaded. All versions give the same numbers: products are exact or rounded
// before they are added (-ffp-contract=off), and sums have a fixed number of parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(QPSBGD_SANITIZE)
#define QPSBGD_VERSIONS __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define QPSBGD_VERSIONS
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace qpsbgd {

constexpr std::int64_t PARTS = 16;  // numbers that one turn of a loop treats side by side, and parts of a sum

// Memory that begins at a line of the cache: vector instructions take longer where they cross two.
template <class T>
struct AtLines {
  using value_type = T;
  static constexpr std::align_val_t LINE{64};

  AtLines() = default;
  template <class U>
  AtLines(const AtLines<U>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), LINE)); }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, LINE); }
  friend bool operator==(const AtLines&, const AtLines&) { return true; }
  friend bool operator!=(const AtLines&, const AtLines&) { return false; }
};

template <class T>
using Vector = std::vector<T, AtLines<T>>;

// The largest of spins[k] · fields[k] + penalties[k], and the first k that has it.
template <class T>
struct Best {
  T gain;
  std::int64_t index;
};

// target += factor · row.
void add_multiple(float* target, const float* row, float factor, std::int64_t n);
void add_multiple(double* target, const double* row, double factor, std::int64_t n);

// The largest number of target += factor · row.
double add_multiple_and_max(double* target, const double* row, double factor, std::int64_t n);

Best<float> best_flip(const float* fields, const float* spins, const float* penalties, std::int64_t n);
Best<double> best_flip(const double* fields, const double* spins, const double* penalties, std::int64_t n);

// fields += factor · row, and the best flip then, in one pass.
Best<float> add_and_best_flip(float* fields, const float* row, float factor, const float* spins,
                              const float* penalties, std::int64_t n);
Best<double> add_and_best_flip(double* fields, const double* row, double factor, const double* spins,
                               const double* penalties, std::int64_t n);

// Σ a[k] · b[k].
float dot(const float* a, const float* b, std::int64_t n);
double dot(const double* a, const double* b, std::int64_t n);

// Bit k of test(k) for k < COUNT, in numbers as wide as those that are tested, so that both are vectors.
template <int COUNT, class Bits, class Test>
ALWAYS_INLINE Bits bits_of(Test test) {
  Bits bits = 0;
  for (Bits k = 0; k < COUNT; ++k) bits |= test(k) ? Bits{1} << k : 0;
  return bits;
}

}  // namespace qpsbgd
