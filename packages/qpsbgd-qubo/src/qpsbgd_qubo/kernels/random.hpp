// Random numbers of all kernels, and the Metropolis rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "vectors.hpp"

namespace qpsbgd {

// xorshift64* (Vigna 2016); a state is never 0.
class Random {
 public:
  explicit Random(std::uint64_t state) : state_(state ? state : 1) {}

  // The upper `bits` of the next 64.
  std::uint64_t next(int bits) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 2685821657736338717u) >> (64 - bits);
  }

  // One of 0 to `end` − 1.
  std::int64_t below(std::int64_t end) { return static_cast<std::int64_t>(next(31)) % end; }

 private:
  std::uint64_t state_;
};

constexpr int PLACES = 4096;  // of the table of draws: cheaper to look up than to compute
constexpr int LANES = 16;     // chains that share a draw
constexpr double HOPELESS = 9.02;  // above the largest draw, log 8192

// Exponential variates −log u for evenly spaced u in (0, 1), in random order, the first LANES once more at the end:
// that many in a row from a random place on are the draws of one step.
const float* exponential_draws();

// Whether Metropolis makes a move that lowers the energy by `gain`. A draw counts only where one can be large enough.
template <class T>
inline bool accepts(T gain, T temperature, const float* draws, Random& random) {
  const Random before = random;
  const auto draw = static_cast<T>(draws[random.next(12)]);
  if (gain <= -temperature * static_cast<T>(HOPELESS)) random = before;  // a move of registers, and no branch
  return gain + temperature * draw > 0;
}

// The Metropolis loop: one sweep per temperature over all places below `count`, site(place) being the spin there.
// gain(i) is what a flip of spin i lowers the energy by. hopeful(place, bound) has bit k set where the gain of spin
// place + k may be above `bound`, for PARTS of them; null where spins do not lie side by side. Returns the whole sweeps
// made until `watch` stops them.
template <class T, class Temperatures, class Site, class Hopeful, class Gain, class Flip, class Watch>
inline std::int64_t sweep(Temperatures&& temperature, std::int64_t sweeps, std::int64_t count, Site&& site,
                          Hopeful&& hopeful, Gain&& gain, Flip&& flip, Random& random, Watch& watch) {
  constexpr bool BLOCKS = !std::is_same_v<std::decay_t<Hopeful>, std::nullptr_t>;
  const float* draws = exponential_draws();
  for (std::int64_t done = 0; done < sweeps; ++done) {
    const T at = temperature(done);
    std::int64_t place = 0;
    if constexpr (BLOCKS) {
      const T bound = -at * static_cast<T>(1.001 * HOPELESS);  // wider, since its gains may be rounded otherwise
      for (; place + PARTS <= count; place += PARTS) {
        if ((place & 255) == 0 && watch.stopped()) return done;
        std::uint32_t left = hopeful(place, bound);
        while (left) {
          const int k = __builtin_ctz(left);
          left &= left - 1;
          if (!accepts<T>(gain(place + k), at, draws, random)) continue;
          flip(place + k);
          left = hopeful(place, bound) & (~std::uint32_t{1} << k);
        }
      }
    }
    for (; place < count; ++place) {
      if ((place & 255) == 0 && watch.stopped()) return done;
      const std::int64_t i = site(place);
      if (accepts<T>(gain(i), at, draws, random)) flip(i);
    }
  }
  return sweeps;
}

// Which spins are swept over, and the temperature of every sweep.
template <class T>
struct Sweeps {
  const std::int32_t* sites;
  std::int64_t num_sites;
  const T* temperatures;
  std::int64_t count;
};

template <class T, class U, class Gain, class Flip, class Watch>
inline std::int64_t sweep(Sweeps<U> sweeps, Gain gain, Flip flip, Random& random, Watch& watch) {
  return sweep<T>([=](std::int64_t t) { return static_cast<T>(sweeps.temperatures[t]); }, sweeps.count,
                  sweeps.num_sites, [=](std::int64_t place) { return sweeps.sites[place]; }, nullptr, std::move(gain),
                  std::move(flip), random, watch);
}

// Path-integral sweeps over `slices` copies of n spins, each tied to the two beside it; at(t) is a sweep's plan and
// flip(fields, spins, i) flips a spin of one slice.
template <class T>
struct Tied {
  T weight, tie, temperature;
};

template <class T, class At, class Flip, class Watch>
inline void sweep_slices(T* fields, T* spins, std::int64_t n, std::int64_t slices, std::int64_t sweeps, At&& at,
                         Flip&& flip, Random& random, Watch& watch) {
  for (std::int64_t t = 0; t < sweeps; ++t) {
    const Tied<T> now = at(t);
    for (std::int64_t k = 0; k < slices; ++k) {
      T *f = fields + k * n, *s = spins + k * n;
      const T *before = spins + (k + slices - 1) % slices * n, *after = spins + (k + 1) % slices * n;
      const auto gain = [=](std::int64_t i) { return 2 * s[i] * (now.weight * f[i] - now.tie * (before[i] + after[i])); };
      const auto hope = [=](std::int64_t i, T bound) {
        return hopeful(f + i, s + i, before + i, after + i, now.weight, now.tie, bound);
      };
      const auto done = sweep<T>([=](std::int64_t) { return now.temperature; }, 1, n,
                                 [](std::int64_t place) { return place; }, hope, gain,
                                 [&](std::int64_t i) { flip(f, s, i); }, random, watch);
      if (!done) return;
    }
  }
}

}  // namespace qpsbgd
