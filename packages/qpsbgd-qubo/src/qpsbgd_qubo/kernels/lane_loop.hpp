// The loop of lanes.cpp for one kind of vector register. Included once per kind, with NAME (of the namespace), WIDTH
// (floats per vector), TARGET (what functions are compiled for) and BITS (of a vector of 0 and −1) defined, which end
// with it.
namespace qpsbgd {
namespace NAME {
namespace {

constexpr std::int64_t COUNT = LANES / WIDTH;  // vectors of a spin's fields

typedef float Floats __attribute__((vector_size(4 * WIDTH)));
typedef std::int32_t Ints __attribute__((vector_size(4 * WIDTH)));

#define INLINE inline __attribute__((always_inline)) TARGET

// −1 in the lanes of vector v whose bits are set, 0 in others.
INLINE Ints lanes_of(std::int32_t bits, int v) {
  Ints bit;
  for (int k = 0; k < WIDTH; ++k) bit[k] = 1 << (v * WIDTH + k);
  return ((Ints{} + bits) & bit) != 0;
}

// 2 where both bits are set, −2 where only that of `flips` is, 0 elsewhere.
INLINE void set_change(Floats* change, std::int32_t flips, std::int32_t up) {
  for (int v = 0; v < COUNT; ++v) {
    const Floats two = Floats{} + 2.0f, zero = {};
    change[v] = lanes_of(flips, v) ? lanes_of(up, v) ? two : -two : zero;
  }
}

INLINE void add(Floats* fields, const Floats* change, float coupling) {
  for (int v = 0; v < COUNT; ++v) fields[v] += change[v] * coupling;
}

// Which of the spins Metropolis flips: those with −2 g f < T · draw.
INLINE std::int32_t accepted(std::int32_t up, const Floats* fields, const float* draws, float half_temperature) {
  std::int32_t found = 0;
  for (int v = 0; v < COUNT; ++v) {
    Floats drawn;
    std::memcpy(&drawn, draws + v * WIDTH, sizeof drawn);
    const Floats gain = lanes_of(up, v) ? fields[v] : -fields[v];
    found |= static_cast<std::int32_t>(BITS(gain + drawn * half_temperature > 0)) << (v * WIDTH);
  }
  return found;
}

TARGET std::int64_t anneal(PARAMETERS) {
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

#undef INLINE

}  // namespace
}  // namespace NAME
}  // namespace qpsbgd

#undef NAME
#undef WIDTH
#undef TARGET
#undef BITS
