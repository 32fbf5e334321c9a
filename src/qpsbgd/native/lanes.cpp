// Annealing of sixteen chains of one sparse problem at once: a spin's sixteen fields are one line of the cache. Chain k
// is bit k of `spins`, set for +1: what a sweep touches should stay in the processor's cache.
#include <cstring>
#include <memory>

#include "kernels.hpp"
#include "random.hpp"
#include "vectors.hpp"

namespace qpsbgd {
namespace {

constexpr std::size_t CACHE_LINE = 64;
static_assert(LANES * sizeof(float) == CACHE_LINE);

// The fields of a spin in all chains.
struct alignas(CACHE_LINE) Line {
  float fields[LANES];
};

#define VECTORS(BYTES)                                                  \
  struct Vectors##BYTES {                                               \
    typedef float Floats __attribute__((vector_size(BYTES)));           \
    typedef std::int32_t Ints __attribute__((vector_size(BYTES)));      \
  }
VECTORS(16);
#if defined(__x86_64__)
VECTORS(32);
VECTORS(64);
#endif

// LANES numbers in vectors as wide as the processor has them.
template <class Vectors>
struct Lanes {
  using Floats = typename Vectors::Floats;
  using Ints = typename Vectors::Ints;
  static constexpr int WIDTH = sizeof(Floats) / sizeof(float), COUNT = LANES / WIDTH;

  // Bit k of vector v's lanes, as numbers.
  static ALWAYS_INLINE Ints bit(int v) {
    Ints bits;
    for (int k = 0; k < WIDTH; ++k) bits[k] = 1 << (v * WIDTH + k);
    return bits;
  }

  // 2 where both bits are set, −2 where only that of `flips` is, 0 elsewhere.
  static ALWAYS_INLINE void set_change(Floats* change, std::int32_t flips, std::int32_t up) {
    for (int v = 0; v < COUNT; ++v) {
      const Floats two = Floats{} + 2.0f, zero = {};
      const Floats sign = ((Ints{} + up) & bit(v)) != 0 ? two : -two;
      change[v] = ((Ints{} + flips) & bit(v)) != 0 ? sign : zero;
    }
  }

  static ALWAYS_INLINE void add(Floats* fields, const Floats* change, float coupling) {
    for (int v = 0; v < COUNT; ++v) fields[v] += change[v] * coupling;
  }

  // Which of the spins Metropolis flips: those with −2 g f < T · draw.
  static ALWAYS_INLINE std::int32_t accepted(std::int32_t up, const Floats* fields, const float* draws,
                                             float half_temperature) {
    Ints found = {};
    for (int v = 0; v < COUNT; ++v) {
      Floats drawn;
      std::memcpy(&drawn, draws + v * WIDTH, sizeof drawn);
      const Floats gain = ((Ints{} + up) & bit(v)) != 0 ? fields[v] : -fields[v];
      found |= (gain + drawn * half_temperature > 0) & bit(v);
    }
    std::int32_t all = 0;
    for (int k = 0; k < WIDTH; ++k) all |= found[k];
    return all;
  }

  static ALWAYS_INLINE std::int64_t anneal(const Rows& rows, const double* linear, std::uint16_t* spins,
                                           const Sweeps<double>& sweeps, std::uint64_t state, Watch& watch) {
    const std::int64_t n = rows.size();
    const std::int64_t* begins = rows.begins.data();
    const std::int32_t* columns = rows.columns.data();
    const float *couplings = rows.singles.data(), *draws = exponential_draws();
    const std::unique_ptr<Line[]> room(new Line[n]);  // not set yet
    Floats* fields = reinterpret_cast<Floats*>(room.get());
    Floats change[COUNT];
    for (std::int64_t i = 0; i < COUNT * n; ++i) fields[i] = Floats{} + static_cast<float>(linear[i / COUNT]);
    for (std::int64_t i = 0; i < n; ++i) {
      if ((i & 1023) == 0 && watch.stopped()) return 0;
      set_change(change, 0xFFFF, spins[i]);
      for (std::int64_t at = begins[i]; at < begins[i + 1]; ++at) {
        add(fields + COUNT * columns[at], change, couplings[at] / 2);
      }
    }
    Random random(state);
    for (std::int64_t done = 0; done < sweeps.count; ++done) {
      const auto half = static_cast<float>(sweeps.temperatures[done] / 2);
      for (std::int64_t place = 0; place < sweeps.num_sites; ++place) {
        if ((place & 1023) == 0 && watch.stopped()) return done;
        const std::int64_t i = sweeps.sites[place];
        const std::int32_t flips = accepted(spins[i], fields + COUNT * i, draws + random.next(12), half);
        if (!flips) continue;
        spins[i] = static_cast<std::uint16_t>(spins[i] ^ flips);
        set_change(change, flips, spins[i]);
        for (std::int64_t at = begins[i]; at < begins[i + 1]; ++at) {
          add(fields + COUNT * columns[at], change, couplings[at]);
        }
      }
    }
    return sweeps.count;
  }
};

#define PARAMETERS \
  const Rows &rows, const double *linear, std::uint16_t *spins, Sweeps<double> sweeps, std::uint64_t state, Watch &watch
#define ARGUMENTS rows, linear, spins, sweeps, state, watch

#if defined(__x86_64__)
__attribute__((target("avx2"))) std::int64_t anneal_by_8(PARAMETERS) { return Lanes<Vectors32>::anneal(ARGUMENTS); }
__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw"))) std::int64_t anneal_by_16(PARAMETERS) {
  return Lanes<Vectors64>::anneal(ARGUMENTS);
}
#endif

}  // namespace

std::int64_t anneal_lanes(PARAMETERS) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return anneal_by_16(ARGUMENTS);
  }
  if (__builtin_cpu_supports("avx2")) return anneal_by_8(ARGUMENTS);
#endif
  return Lanes<Vectors16>::anneal(ARGUMENTS);
}

}  // namespace qpsbgd
