// Inference over real numbers: a network's steps one after the other, a few samples at a time, so that all values stay
// in the cache. Weights are numbers in panels of PANEL units; where few rows meet many units, signs are looked up
// instead: 8 inputs have 256 sums with signs, and a byte of weights picks one.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "kernels.hpp"

namespace qpsbgd {
namespace {

constexpr std::int64_t PANEL = RealSteps::PANEL;
constexpr std::int64_t CACHE = 1 << 17;       // numbers that all values of the samples of a turn may have
constexpr std::int64_t MOST_SAMPLES = 64;     // of a turn
constexpr std::int64_t PATCH_NUMBERS = 1 << 12;  // of patches that are laid out at once: they stay in the innermost cache
constexpr std::int64_t TILES = 24;               // a multiple of the rows of all tiles
constexpr std::int64_t TABLE = 256, TABLES = 8;  // sums with all signs of 8 inputs, for 64 inputs at a time

// What is done to a sum: factor · sum + offset within two bounds.
struct Epilogue {
  const float *factors, *offsets;
  float low, high;

  float operator()(float sum, std::int64_t unit) const {
    const float value = factors[unit] * sum + offsets[unit];
    return value < low ? low : value > high ? high : value;
  }
};

}  // namespace
}  // namespace qpsbgd

#if defined(__x86_64__) && defined(__GNUC__)
#define NAME avx512
#define WIDTH 16
#define ROWS 8
#define TARGET __attribute__((target("avx512f")))
#include "real_tile.hpp"

#define NAME avx2
#define WIDTH 8
#define ROWS 6
#define TARGET __attribute__((target("avx2,fma")))
#include "real_tile.hpp"
#endif

#define NAME plain
#define WIDTH 4
#define ROWS 4
#define TARGET
#include "real_tile.hpp"

namespace qpsbgd {
namespace {

struct Loops {
  decltype(&plain::multiply) multiply;
  decltype(&plain::over_pixels<0>) per_channel, largest, mean;
};

#define LOOPS(name)                                                                                \
  Loops {                                                                                          \
    name::multiply, name::over_pixels<RealStep::PER_CHANNEL>, name::over_pixels<RealStep::LARGEST>, \
        name::over_pixels<RealStep::MEAN>                                                          \
  }

const Loops& loops() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const Loops best = __builtin_cpu_supports("avx512f")                                   ? LOOPS(avx512)
                            : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? LOOPS(avx2)
                                                                                              : LOOPS(plain);
#else
  static const Loops best = LOOPS(plain);
#endif
  return best;
}

// Copies a few numbers without a call; the place after them.
inline float* copied(const float* from, std::int64_t count, float* to) {
  for (; count >= 4; count -= 4, from += 4, to += 4) std::memcpy(to, from, 4 * sizeof(float));
  switch (count) {
    case 3: to[2] = from[2]; [[fallthrough]];
    case 2: to[1] = from[1]; [[fallthrough]];
    case 1: to[0] = from[0]; [[fallthrough]];
    default: return to + count;
  }
}

// All sums ±x[0] ± … ± x[7]: bit k of the index is 1 for +x[k].
void fill_table(const float* x, float* table) {
  float halves[2][16];
  for (int half = 0; half < 2; ++half, x += 4) {
    const float a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
    const float low[4] = {-a, b, -b, a}, high[4] = {-c, d, -d, c};
    for (int k = 0; k < 16; ++k) halves[half][k] = high[k / 4] + low[k % 4];
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) table[16 * i + k] = halves[1][i] + halves[0][k];
  }
}

// Adds to every unit's sum what the bytes of its word pick from the tables.
__attribute__((noinline)) void add_picked(const float* tables, const std::uint64_t* words, std::int64_t units,
                                          float* __restrict sums) {
  const float* t[TABLES];
  for (int k = 0; k < TABLES; ++k) t[k] = tables + TABLE * k;
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const std::uint64_t w = words[unit];
    const float a = t[0][w & 255] + t[1][w >> 8 & 255], b = t[2][w >> 16 & 255] + t[3][w >> 24 & 255];
    const float c = t[4][w >> 32 & 255] + t[5][w >> 40 & 255], d = t[6][w >> 48 & 255] + t[7][w >> 56];
    sums[unit] += (a + b) + (c + d);
  }
}

class Turn {
 public:
  Turn(const RealSteps& steps, std::int64_t samples) : all_(steps) {
    std::int64_t total = 0, sums = 0;
    for (std::int64_t slot = 0; slot < steps.num_slots; ++slot) total += slot < 2 ? 0 : steps.slots[slot];
    for (std::int64_t k = 0; k < steps.count; ++k) {
      if (steps.steps[k].words >= 0) sums = std::max(sums, steps.steps[k].units);
    }
    values_.reset(new float[total * samples + TABLE * TABLES + sums]);
    tables_ = values_.get() + total * samples;
    sums_ = tables_ + TABLE * TABLES;
    float* next = values_.get();
    places_.assign(steps.num_slots, nullptr);
    for (std::int64_t slot = 2; slot < steps.num_slots; ++slot) {
      places_[slot] = next;
      next += steps.slots[slot] * samples;
    }
  }

  void run(const float* inputs, float* outputs, std::int64_t samples) {
    samples_ = samples;
    places_[0] = const_cast<float*>(inputs);  // no step writes there
    places_[1] = outputs;
    for (std::int64_t k = 0; k < all_.count; ++k) {
      const RealStep& s = all_.steps[k];
      switch (s.kind) {
        case RealStep::SUMS: multiply(s); break;
        case RealStep::PER_CHANNEL: over_windows(s, loops().per_channel); break;
        case RealStep::LARGEST: over_windows(s, loops().largest); break;
        case RealStep::MEAN: over_windows(s, loops().mean); break;
        case RealStep::SCALE: scale(s); break;
        case RealStep::ADD: add(s); break;
        case RealStep::TRANSPOSE: transpose(s); break;
        default: break;
      }
    }
  }

 private:
  Epilogue epilogue(const RealStep& s, std::int64_t unit = 0) const {
    const float* numbers = all_.numbers + s.epilogue;
    return {numbers + 2 + unit, numbers + 2 + RealSteps::all_units(s) + unit, numbers[0], numbers[1]};
  }

  void multiply(const RealStep& s) {
    const std::int64_t units = s.units / s.groups, rows = samples_ * s.rows * s.columns;
    const std::int64_t n = s.high * s.wide * (s.channels / s.groups);
    const float* source = places_[s.source];
    float* target = places_[s.target];
    if (s.words >= 0 && rows < RealSteps::FEW_ROWS) {
      for (std::int64_t row = 0; row < rows; ++row) look_up(s, source + row * n, target + row * units);
      return;
    }
    const std::int64_t panels = RealSteps::padded(units) / PANEL;
    const bool direct = s.direct;
    const std::int64_t at_once = direct ? rows : std::max<std::int64_t>(TILES, PATCH_NUMBERS / n / TILES * TILES);
    if (!direct && static_cast<std::int64_t>(patches_.size()) < at_once * n) patches_.resize(at_once * n);
    for (std::int64_t begin = 0; begin < rows; begin += at_once) {
      const std::int64_t count = std::min(at_once, rows - begin);
      for (std::int64_t group = 0; group < s.groups; ++group) {
        if (!direct) lay_out(s, group, begin, count);
        const float* patches = direct ? source + begin * n : patches_.data();
        const Epilogue last = epilogue(s, group * panels * PANEL);
        for (std::int64_t panel = 0; panel < panels; ++panel) {
          const float* weights = all_.numbers + s.weights + (group * panels + panel) * n * PANEL;
          const std::int64_t unit = panel * PANEL;
          loops().multiply(patches, count, n, weights, n, last, unit, std::min(PANEL, units - unit),
                           target + begin * s.units + group * units + unit, s.units);
        }
      }
    }
  }

  // Patches of a group for the positions from `begin` on, one per row.
  void lay_out(const RealStep& s, std::int64_t group, std::int64_t begin, std::int64_t count) {
    const std::int64_t inputs = s.channels / s.groups, positions = s.rows * s.columns;
    const std::int64_t *rows = all_.taps + s.taps, *columns = rows + s.rows * s.high;
    float* to = patches_.data();
    // Counted on, since divisions of 64 bits took a seventh of the time of convolutions over 16 channels.
    std::int64_t i = begin % positions / s.columns, j = begin % positions % s.columns;
    const std::int64_t size = s.height * s.length * s.channels;
    const float* image = places_[s.source] + begin / positions * size + group * inputs;
    for (std::int64_t row = begin; row < begin + count; ++row) {
      const std::int64_t* across = columns + j * s.wide;
      bool unbroken = s.groups == 1 && across[0] >= 0;
      for (std::int64_t dx = 1; dx < s.wide; ++dx) unbroken &= across[dx] == across[0] + dx;
      for (std::int64_t dy = 0; dy < s.high; ++dy) {
        const std::int64_t y = rows[i * s.high + dy];
        if (y < 0) {
          to = std::fill_n(to, s.wide * inputs, 0.0f);
        } else if (unbroken) {
          const float* from = image + (y * s.length + across[0]) * s.channels;
          to = copied(from, s.wide * inputs, to);
        } else {
          for (std::int64_t dx = 0; dx < s.wide; ++dx) {
            const float* from = image + (y * s.length + across[dx]) * s.channels;
            to = across[dx] < 0 ? std::fill_n(to, inputs, 0.0f) : copied(from, inputs, to);
          }
        }
      }
      if (++j == s.columns) j = 0, ++i;
      if (i == s.rows) i = 0, image += size;
    }
  }

  // Sums of one row with weights ±1, 64 inputs at a time.
  void look_up(const RealStep& s, const float* row, float* out) {
    const std::int64_t n = s.channels, units = s.units;
    std::fill_n(sums_, units, 0.0f);
    const std::uint64_t* words = all_.words + s.words;
    for (std::int64_t begin = 0; begin < n; begin += 64, words += units) {
      float inputs[64] = {};
      std::copy(row + begin, row + std::min(n, begin + 64), inputs);
      for (int table = 0; table < TABLES; ++table) fill_table(inputs + 8 * table, tables_ + TABLE * table);
      add_picked(tables_, words, units, sums_);
    }
    const Epilogue last = epilogue(s);
    for (std::int64_t unit = 0; unit < units; ++unit) out[unit] = last(sums_[unit], unit);
  }

  // The largest number of taps of a window that are not padding, along one axis.
  static std::int64_t most_inside(const std::int64_t* taps, std::int64_t windows, std::int64_t size) {
    std::int64_t most = 0;
    for (const std::int64_t* end = taps + windows * size; taps < end; taps += size) {
      most = std::max(most, size - std::count(taps, taps + size, -1));
    }
    return most;
  }

  // What `loop` makes of every window's pixels.
  template <class Loop>
  void over_windows(const RealStep& s, Loop loop) {
    const Epilogue last = epilogue(s);
    const std::int64_t *rows = all_.taps + s.taps, *columns = rows + s.rows * s.high;
    const std::int64_t size = s.height * s.length * s.channels, window = s.high * s.wide;
    const std::int64_t most = most_inside(rows, s.rows, s.high) * most_inside(columns, s.columns, s.wide);
    if (static_cast<std::int64_t>(pixels_.size()) < most) {
      pixels_.resize(most);
      inside_.resize(most);
    }
    float* out = places_[s.target];
    for (std::int64_t sample = 0; sample < samples_; ++sample) {
      const float* image = places_[s.source] + sample * size;
      for (std::int64_t i = 0; i < s.rows; ++i) {
        for (std::int64_t j = 0; j < s.columns; ++j, out += s.units) {
          std::int64_t count = 0;
          for (std::int64_t dy = 0; dy < s.high; ++dy) {
            const std::int64_t y = rows[i * s.high + dy];
            if (y < 0) continue;
            for (std::int64_t dx = 0; dx < s.wide; ++dx) {
              const std::int64_t x = columns[j * s.wide + dx];
              if (x < 0) continue;
              pixels_[count] = image + (y * s.length + x) * s.channels;
              inside_[count++] = dy * s.wide + dx;
            }
          }
          const auto divisor = static_cast<float>(s.direct ? window : count);
          loop(pixels_.data(), inside_.data(), count, all_.numbers + s.weights, s.channels, last, divisor, out);
        }
      }
    }
  }

  void scale(const RealStep& s) {
    const Epilogue last = epilogue(s);
    const float* from = places_[s.source];
    float* to = places_[s.target];
    const std::int64_t pixels = samples_ * s.height * s.length, channels = s.channels;
    for (std::int64_t at = 0; at < pixels * channels; at += channels) {
      for (std::int64_t c = 0; c < channels; ++c) to[at + c] = last(from[at + c], c);
    }
  }

  void add(const RealStep& s) {
    const Epilogue last = epilogue(s);
    const float *one = places_[s.source], *two = places_[s.other];
    float* to = places_[s.target];
    const std::int64_t pixels = samples_ * s.height * s.length, channels = s.channels;
    for (std::int64_t at = 0; at < pixels * channels; at += channels) {
      for (std::int64_t c = 0; c < channels; ++c) to[at + c] = last(one[at + c] + two[at + c], c);
    }
  }

  // (height, length) → (length, height) of every sample.
  void transpose(const RealStep& s) {
    const std::int64_t size = s.height * s.length;
    for (std::int64_t sample = 0; sample < samples_; ++sample) {
      const float* from = places_[s.source] + sample * size;
      float* to = places_[s.target] + sample * size;
      for (std::int64_t x = 0; x < s.length; ++x) {
        for (std::int64_t y = 0; y < s.height; ++y) *to++ = from[y * s.length + x];
      }
    }
  }

  const RealSteps& all_;
  std::int64_t samples_ = 0;
  std::unique_ptr<float[]> values_;
  std::vector<float*> places_;
  float *tables_ = nullptr, *sums_ = nullptr;
  std::vector<float> patches_;
  std::vector<const float*> pixels_;
  std::vector<std::int64_t> inside_;
};

}  // namespace

bool real_steps(const RealSteps& steps, Matrix<const float> inputs, Matrix<float> out) {
  std::int64_t total = 1;
  for (std::int64_t slot = 0; slot < steps.num_slots; ++slot) total += steps.slots[slot];
  const std::int64_t at_once = std::min({MOST_SAMPLES, std::max<std::int64_t>(1, CACHE / total), inputs.rows});
  int unsound = 0;
  Turn turn(steps, at_once);
  for (std::int64_t row = 0; row < inputs.rows; row += at_once) {
    const std::int64_t samples = std::min(at_once, inputs.rows - row);
    const float* values = inputs[row];
    for (std::int64_t k = 0; k < samples * inputs.columns; ++k) {
      unsound |= !(std::abs(values[k]) <= std::numeric_limits<float>::max());
    }
    turn.run(values, out[row], samples);
  }
  return !unsound;
}

}  // namespace qpsbgd
