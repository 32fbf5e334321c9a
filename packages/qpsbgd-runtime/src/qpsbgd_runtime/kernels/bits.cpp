// Inference over bits: 64 products ±1 · ±1 are one XOR, and their sum one population count. Bits of a word: 1 for +1, 0
// for −1. Words that are not full end in zeros, in inputs and weights alike. Of n products with d differing signs the
// sum is n − 2d.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "counting.hpp"
#include "kernels.hpp"
#include "vectors.hpp"

namespace qpsbgd {
namespace {

// Writes which numbers of a row are at least 0 as words of bits; whether all are finite.
QPSBGD_VERSIONS bool pack(const float* __restrict row, std::int64_t n, std::uint64_t* __restrict words) {
  constexpr std::int64_t HALF = WORD / 2;  // bits of a word that are found at once
  int unsound = 0;
  for (std::int64_t k = 0; k < n; ++k) unsound |= !(std::abs(row[k]) <= std::numeric_limits<float>::max());
  for (std::int64_t begin = 0; begin < n; begin += HALF) {
    const float* part = row + begin;
    std::uint32_t bits = 0;
    if (begin + HALF <= n) {
      bits = bits_of<HALF, std::uint32_t>([=](auto k) { return part[k] >= 0; });
    } else {
      for (std::int64_t k = 0; k < n - begin; ++k) bits |= static_cast<std::uint32_t>(part[k] >= 0) << k;
    }
    words[begin / WORD] = begin % WORD ? words[begin / WORD] | std::uint64_t{bits} << HALF : bits;
  }
  return !unsound;
}

// Bit k for k < n, at most 64: whether counts[k] ≤ limits[k].
QPSBGD_VERSIONS std::uint64_t bits_at_most(const std::uint64_t* __restrict counts, const std::uint64_t* __restrict limits,
                                           std::int64_t n) {
  std::uint8_t reached[WORD] = {};
  for (std::int64_t k = 0; k < n; ++k) reached[k] = counts[k] <= limits[k];
  std::uint64_t bits = 0;
  for (std::int64_t k = 0; k < WORD; k += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, reached + k, 8);
    bits |= (eight * 0x0102040810204080u >> 56) << k;  // the lowest bits of its bytes, side by side
  }
  return bits;
}

}  // namespace

bool dense_sums(Matrix<const float> rows, const BitLayers& layers, const float* factor, const float* offset,
                Matrix<float> out) {
  const std::int64_t count = layers.num_sizes - 1, last = layers.sizes[count];
  const std::int64_t widest = *std::max_element(layers.sizes, layers.sizes + count + 1);
  std::vector<std::uint64_t> bits((widest + WORD - 1) / WORD), counts(std::max(out.columns, widest));
  bool sound = true;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    sound &= pack(rows[row], layers.sizes[0], bits.data());
    const std::uint64_t *weights = layers.weights, *most = layers.most;
    for (std::int64_t layer = 0; layer < count; ++layer) {
      const std::int64_t words = (layers.sizes[layer] + WORD - 1) / WORD, units = layers.sizes[layer + 1];
      count_differing(bits.data(), weights, words, units, counts.data());
      for (std::int64_t begin = 0; begin < units; begin += WORD) {
        const std::int64_t some = std::min(WORD, units - begin);
        const std::uint64_t flipped = layers.flipped[begin / WORD * count + layer];
        bits[begin / WORD] = bits_at_most(counts.data() + begin, most + begin, some) ^ flipped;
      }
      weights += words * units;
      most += units;
    }
    count_differing(bits.data(), weights, (last + WORD - 1) / WORD, out.columns, counts.data());
    for (std::int64_t unit = 0; unit < out.columns; ++unit) {
      const auto total = static_cast<float>(last - 2 * static_cast<std::int64_t>(counts[unit]));
      out[row][unit] = factor[unit] * total + offset[unit];
    }
  }
  return sound;
}

}  // namespace qpsbgd
