// Annealing of sixteen chains of one sparse problem at once: a spin's sixteen fields are one line of the cache. Chain k
// is bit k of `spins`, set for +1: what a sweep touches should stay in the processor's cache.
#include <cstring>
#include <memory>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

// Bit k for every lane k that is not 0.
template <class Ints>
inline std::int32_t bits_of_4(Ints lanes) {
  return (lanes[0] & 1) | (lanes[1] & 2) | (lanes[2] & 4) | (lanes[3] & 8);
}

#define PARAMETERS \
  const Rows &rows, const double *linear, std::uint16_t *spins, Sweeps<double> sweeps, std::uint64_t state, Watch &watch

}  // namespace
}  // namespace qpsbgd

#define NAME plain
#define WIDTH 4
#define TARGET
#if defined(__x86_64__)
#define BITS(x) _mm_movemask_ps(reinterpret_cast<__m128>(x))
#else
#define BITS(x) bits_of_4(x)
#endif
#include "lane_loop.hpp"

#if defined(__x86_64__)
#define NAME avx2
#define WIDTH 8
#define TARGET __attribute__((target("avx2")))
#define BITS(x) _mm256_movemask_ps(reinterpret_cast<__m256>(x))
#include "lane_loop.hpp"

#define NAME avx512
#define WIDTH 16
#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw")))
#define BITS(x) _mm512_movepi32_mask(reinterpret_cast<__m512i>(x))
#include "lane_loop.hpp"
#endif

namespace qpsbgd {

void bind_lanes(nb::module_& module) {
#if defined(__x86_64__)
  const auto best = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                   __builtin_cpu_supports("avx512vl")
                               ? avx512::anneal
                           : __builtin_cpu_supports("avx2") ? avx2::anneal
                                                            : plain::anneal;
#else
  const auto best = plain::anneal;
#endif
  bind_anneal<std::uint16_t>(module, "anneal_lanes", best);
}

}  // namespace qpsbgd
