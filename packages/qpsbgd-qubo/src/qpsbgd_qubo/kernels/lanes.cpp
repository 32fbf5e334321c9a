// Annealing of sixteen chains of one sparse problem at once: a spin's sixteen fields are one line of the cache. Chain k
// is bit k of `spins`, set for +1: what a sweep touches should stay in the processor's cache.
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels.hpp"
#include "random.hpp"
#include "vectors.hpp"

namespace qpsbgd {
namespace {

// One number per chain; the compiler splits them into the registers that the processor has.
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef std::int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef std::int8_t Bytes __attribute__((vector_size(LANES)));

constexpr Ints BITS{1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                    1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};

// −1 in the lanes whose bits are set, 0 in others.
ALWAYS_INLINE Ints lanes_of(std::int32_t bits) { return ((Ints{} + bits) & BITS) != 0; }

// The bits of the lanes that are −1, not 0.
ALWAYS_INLINE std::int32_t bits_of_lanes(Ints lanes) {
#if defined(__x86_64__)
  return _mm_movemask_epi8(reinterpret_cast<__m128i>(__builtin_convertvector(lanes, Bytes)));
#else
  std::int32_t bits = 0;
  for (int k = 0; k < LANES; ++k) bits |= lanes[k] & BITS[k];
  return bits;
#endif
}

// 2 where both bits are set, −2 where only that of `flips` is, 0 elsewhere.
ALWAYS_INLINE Floats change_of(std::int32_t flips, std::int32_t up) {
  const Floats two = Floats{} + 2.0f, zero = {};
  return lanes_of(flips) ? lanes_of(up) ? two : -two : zero;
}

}  // namespace

QPSBGD_VERSIONS std::int64_t anneal_lanes(const Rows& rows, const double* linear, std::uint16_t* spins,
                                          Sweeps<double> sweeps, std::uint64_t state, Watch& watch) {
  const std::int64_t n = rows.size();
  const std::int64_t* begins = rows.begins.data();
  const std::int32_t* columns = rows.columns.data();
  const float *couplings = rows.singles.data(), *draws = exponential_draws();
  Vector<Floats> fields(n);
  for (std::int64_t i = 0; i < n; ++i) fields[i] = Floats{} + static_cast<float>(linear[i]);
  for (std::int64_t i = 0; i < n; ++i) {
    if ((i & 1023) == 0 && watch.stopped()) return 0;
    const Floats change = change_of(0xFFFF, spins[i]);
    for (std::int64_t at = begins[i]; at < begins[i + 1]; ++at) fields[columns[at]] += change * (couplings[at] / 2);
  }
  Random random(state);
  for (std::int64_t done = 0; done < sweeps.count; ++done) {
    const auto half = static_cast<float>(sweeps.temperatures[done] / 2);
    for (std::int64_t place = 0; place < sweeps.num_sites; ++place) {
      if ((place & 1023) == 0 && watch.stopped()) return done;
      const std::int64_t i = sweeps.sites[place];
      Floats drawn;
      std::memcpy(&drawn, draws + random.next(12), sizeof drawn);
      // Metropolis flips those with −2 g f < T · draw.
      const Floats gain = lanes_of(spins[i]) ? fields[i] : -fields[i];
      const std::int32_t flips = bits_of_lanes(gain + drawn * half > 0);
      if (!flips) continue;
      spins[i] = static_cast<std::uint16_t>(spins[i] ^ flips);
      const Floats change = change_of(flips, spins[i]);
      for (std::int64_t at = begins[i]; at < begins[i + 1]; ++at) fields[columns[at]] += change * couplings[at];
    }
  }
  return sweeps.count;
}

void bind_lanes(nb::module_& module) { bind_anneal<std::uint16_t>(module, "anneal_lanes", anneal_lanes); }

}  // namespace qpsbgd
