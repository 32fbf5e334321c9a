// Random numbers of all kernels, and the Metropolis rule.
#pragma once

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

 private:
  std::uint64_t state_;
};

constexpr int PLACES = 4096;  // of the table of draws: cheaper to look up than to compute
constexpr int LANES = 16;     // chains that share a draw

// Exponential variates −log u for evenly spaced u in (0, 1), in random order, the first LANES once more at the end:
// that many in a row from a random place on are the draws of one step.
const float* exponential_draws();

// Whether Metropolis makes a move that lowers the energy by `gain`.
template <class T>
inline bool accepts(T gain, T temperature, const float* draws, Random& random) {
  return gain + temperature * static_cast<T>(draws[random.next(12)]) > 0;
}

// The Metropolis loop: one sweep per temperature over all places below `count`, site(place) being the spin there.
// gain(i) is what a flip of spin i lowers the energy by. Returns the whole sweeps made until `watch` stops them.
template <class T, class Temperatures, class Site, class Gain, class Flip, class Watch>
inline std::int64_t sweep(Temperatures&& temperature, std::int64_t sweeps, std::int64_t count, Site&& site,
                          Gain&& gain, Flip&& flip, Random& random, Watch& watch) {
  const float* draws = exponential_draws();
  for (std::int64_t done = 0; done < sweeps; ++done) {
    const T at = temperature(done);
    for (std::int64_t place = 0; place < count; ++place) {
      if ((place & 255) == 0 && watch.stopped()) return done;
      const std::int64_t i = site(place);
      if (accepts<T>(gain(i), at, draws, random)) flip(i);
    }
  }
  return sweeps;
}

}  // namespace qpsbgd
