// Inference over bits: 64 products ±1 · ±1 are one XOR, and their sum one population count. Bits of a word: 1 for +1, 0
// for −1. Words that are not full end in zeros, in inputs and weights alike. Of n products with d differing signs the
// sum is n − 2d.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels.hpp"
#include "vectors.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace qpsbgd {
namespace {

constexpr std::int64_t WORD = 64;

// counts[unit] = differing bits of `inputs` and the unit's words; rows[w] has word w of all units.
QPSBGD_VERSIONS void count_differing(const std::uint64_t* inputs, const std::uint64_t* const* rows, std::int64_t words,
                                     std::int64_t units, std::uint64_t* counts) {
  std::int64_t unit = 0;
#if defined(__aarch64__)
  constexpr std::int64_t ONCE = 31;  // words whose counts of up to 8 per byte fit into a byte
  for (; unit + 4 <= units; unit += 4) {
    uint64x2_t first = vdupq_n_u64(0), second = first;
    for (std::int64_t begin = 0; begin < words; begin += ONCE) {
      uint8x16_t a = vdupq_n_u8(0), b = a;
      const std::int64_t end = std::min(words, begin + ONCE);
      for (std::int64_t word = begin; word < end; ++word) {
        const std::uint64_t* row = rows[word] + unit;
        const uint64x2_t bits = vdupq_n_u64(inputs[word]);
        a = vaddq_u8(a, vcntq_u8(vreinterpretq_u8_u64(veorq_u64(vld1q_u64(row), bits))));
        b = vaddq_u8(b, vcntq_u8(vreinterpretq_u8_u64(veorq_u64(vld1q_u64(row + 2), bits))));
      }
      first = vpadalq_u32(first, vpaddlq_u16(vpaddlq_u8(a)));
      second = vpadalq_u32(second, vpaddlq_u16(vpaddlq_u8(b)));
    }
    vst1q_u64(counts + unit, first);
    vst1q_u64(counts + unit + 2, second);
  }
#endif
  std::fill(counts + unit, counts + units, 0);
  for (std::int64_t word = 0; word < words; ++word) {
    const std::uint64_t bits = inputs[word], *row = rows[word];
    for (std::int64_t k = unit; k < units; ++k) {
      // In steps that every processor has as vector instructions.
      std::uint64_t x = row[k] ^ bits;
      x -= (x >> 1) & 0x5555555555555555u;
      x = (x & 0x3333333333333333u) + ((x >> 2) & 0x3333333333333333u);
      x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
      x += x >> 8;
      x += x >> 16;
      counts[k] += (x + (x >> 32)) & 127;
    }
  }
}

// bits of `test(k)` for k below `count`, at most 64.
template <class Test>
inline std::uint64_t bits_where(std::int64_t count, Test test) {
  std::uint64_t bits = 0;
  for (std::int64_t k = 0; k < count; ++k) bits |= static_cast<std::uint64_t>(test(k)) << k;
  return bits;
}

// Writes the signs of a row as words; whether all its numbers are finite.
bool pack(const float* row, std::int64_t n, std::uint64_t* words) {
  int unsound = 0;
  for (std::int64_t begin = 0; begin < n; begin += WORD) {
    const float* part = row + begin;
    words[begin / WORD] = bits_where(std::min(WORD, n - begin), [=](std::int64_t k) { return part[k] >= 0; });
  }
  for (std::int64_t k = 0; k < n; ++k) unsound |= !(std::abs(row[k]) <= std::numeric_limits<float>::max());
  return !unsound;
}

// One row of words, as it goes through layers with thresholds.
class Passage {
 public:
  Passage(const BitLayers& layers, std::int64_t last_units)
      : layers_(layers), bits_(layers.words), rows_(layers.words),
        counts_(std::max(last_units, *std::max_element(layers.sizes, layers.sizes + layers.num_sizes))) {}

  bool begin(const float* row) { return pack(row, layers_.sizes[0], bits_.data()); }

  // Through all layers; the weights behind them.
  const std::uint64_t* run() {
    const std::uint64_t *weights = layers_.weights, *most = layers_.most;
    const std::int64_t count = layers_.num_sizes - 1;
    for (std::int64_t layer = 0; layer < count; ++layer) {
      const std::int64_t words = (layers_.sizes[layer] + WORD - 1) / WORD, units = layers_.sizes[layer + 1];
      counted(weights, words, units);
      for (std::int64_t begin = 0; begin < units; begin += WORD) {
        const std::uint64_t *found = counts_.data() + begin, *limits = most + begin;
        const std::uint64_t bits =
            bits_where(std::min(WORD, units - begin), [=](std::int64_t k) { return found[k] <= limits[k]; });
        bits_[begin / WORD] = bits ^ layers_.flipped[begin / WORD * count + layer];
      }
      weights += words * units;
      most += units;
    }
    return weights;
  }

  const std::uint64_t* counted(const std::uint64_t* weights, std::int64_t words, std::int64_t units) {
    for (std::int64_t word = 0; word < words; ++word) rows_[word] = weights + word * units;
    count_differing(bits_.data(), rows_.data(), words, units, counts_.data());
    return counts_.data();
  }

  int sign(std::int64_t unit) const { return (bits_[unit / WORD] >> (unit % WORD)) & 1 ? 1 : -1; }

 private:
  const BitLayers& layers_;
  std::vector<std::uint64_t> bits_;
  std::vector<const std::uint64_t*> rows_;
  std::vector<std::uint64_t> counts_;
};

}  // namespace

bool dense_signs(Matrix<const float> rows, const BitLayers& layers, Matrix<std::int8_t> out) {
  Passage passage(layers, 0);
  bool sound = true;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    sound &= passage.begin(rows[row]);
    passage.run();
    for (std::int64_t unit = 0; unit < out.columns; ++unit) {
      out[row][unit] = static_cast<std::int8_t>(passage.sign(unit));
    }
  }
  return sound;
}

bool dense_sums(Matrix<const float> rows, const BitLayers& layers, const float* factor, const float* offset,
                Matrix<float> out) {
  Passage passage(layers, out.columns);
  const std::int64_t last = layers.sizes[layers.num_sizes - 1];
  bool sound = true;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    sound &= passage.begin(rows[row]);
    const std::uint64_t* weights = passage.run();
    const std::uint64_t* counts = passage.counted(weights, (last + WORD - 1) / WORD, out.columns);
    for (std::int64_t unit = 0; unit < out.columns; ++unit) {
      const auto total = static_cast<float>(last - 2 * static_cast<std::int64_t>(counts[unit]));
      out[row][unit] = factor[unit] * total + offset[unit];
    }
  }
  return sound;
}

void convolution_sums(const std::int8_t* images, const std::uint64_t* weights, const std::int64_t* rows,
                      const std::int64_t* columns, const BitConvolution& s, std::int32_t* out) {
  const std::int64_t per_group = s.channels / s.groups, pixel = s.groups * s.width;
  std::vector<std::uint64_t> packed(s.height * s.length * pixel), counts(s.units), bits;
  std::vector<const std::uint64_t*> seen;  // rows of the weights that a window's words meet
  for (std::int64_t image = 0; image < s.count; ++image) {
    std::fill(packed.begin(), packed.end(), 0);
    for (std::int64_t channel = 0; channel < s.channels; ++channel) {
      const std::int64_t place = channel % per_group;
      const std::int8_t* signs = images + (image * s.channels + channel) * s.height * s.length;
      std::uint64_t* words = packed.data() + channel / per_group * s.width + place / WORD;
      for (std::int64_t at = 0; at < s.height * s.length; ++at) {
        words[at * pixel] |= static_cast<std::uint64_t>(signs[at] > 0) << (place % WORD);
      }
    }
    for (std::int64_t i = 0; i < s.num_rows; ++i) {
      for (std::int64_t j = 0; j < s.num_columns; ++j) {
        for (std::int64_t group = 0; group < s.groups; ++group) {
          bits.clear();
          seen.clear();
          std::int64_t products = 0;
          for (std::int64_t dy = 0; dy < s.high; ++dy) {
            for (std::int64_t dx = 0; dx < s.wide; ++dx) {
              const std::int64_t y = rows[i * s.high + dy], x = columns[j * s.wide + dx];
              if (y < 0 || x < 0) continue;
              products += per_group;
              const std::uint64_t* inputs = packed.data() + (y * s.length + x) * pixel + group * s.width;
              const std::int64_t window = (group * s.high + dy) * s.wide + dx;
              for (std::int64_t word = 0; word < s.width; ++word) {
                bits.push_back(inputs[word]);
                seen.push_back(weights + (window * s.width + word) * s.units);
              }
            }
          }
          const auto words = static_cast<std::int64_t>(bits.size());
          count_differing(bits.data(), seen.data(), words, s.units, counts.data());
          for (std::int64_t unit = 0; unit < s.units; ++unit) {
            const std::int64_t at = ((image * s.groups + group) * s.units + unit) * s.num_rows + i;
            out[at * s.num_columns + j] = static_cast<std::int32_t>(products - 2 * static_cast<std::int64_t>(counts[unit]));
          }
        }
      }
    }
  }
}

}  // namespace qpsbgd
