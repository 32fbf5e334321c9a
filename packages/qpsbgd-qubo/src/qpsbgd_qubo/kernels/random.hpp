// Random numbers of all kernels, and the Metropolis rule.
#pragma once

#include <cstddef>
#include <cstdint>

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

// Whether Metropolis makes a move that lowers the energy by `gain`. A draw is taken only where one can be large enough.
template <class T>
inline bool accepts(T gain, T temperature, const float* draws, Random& random) {
  if (gain <= -temperature * static_cast<T>(HOPELESS)) return false;
  return gain + temperature * static_cast<T>(draws[random.next(12)]) > 0;
}

// One Metropolis sweep over all places below `count`, site(place) being the spin there and gain(i) what a flip of spin i
// lowers the energy by; false if `watch` stopped it.
template <class T, class Site, class Gain, class Flip, class Watch>
inline bool sweep_once(T temperature, std::int64_t count, Site&& site, Gain&& gain, Flip&& flip, Random& random,
                       Watch& watch) {
  const float* draws = exponential_draws();
  for (std::int64_t place = 0; place < count; ++place) {
    if ((place & 255) == 0 && watch.stopped()) return false;
    const std::int64_t i = site(place);
    if (accepts<T>(gain(i), temperature, draws, random)) flip(i);
  }
  return true;
}

// Which spins are swept over, and the temperature of every sweep.
template <class T>
struct Sweeps {
  const std::int32_t* sites;
  std::int64_t num_sites;
  const T* temperatures;
  std::int64_t count;
};

// One sweep per temperature; the whole sweeps made until `watch` stops them.
template <class T, class U, class Gain, class Flip, class Watch>
inline std::int64_t sweep(Sweeps<U> sweeps, Gain gain, Flip flip, Random& random, Watch& watch) {
  const auto site = [=](std::int64_t place) { return sweeps.sites[place]; };
  for (std::int64_t done = 0; done < sweeps.count; ++done) {
    const T temperature = static_cast<T>(sweeps.temperatures[done]);
    if (!sweep_once<T>(temperature, sweeps.num_sites, site, gain, flip, random, watch)) return done;
  }
  return sweeps.count;
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
      const auto site = [](std::int64_t place) { return place; };
      const auto turn = [&](std::int64_t i) { flip(f, s, i); };
      if (!sweep_once<T>(now.temperature, n, site, gain, turn, random, watch)) return;
    }
  }
}

}  // namespace qpsbgd
