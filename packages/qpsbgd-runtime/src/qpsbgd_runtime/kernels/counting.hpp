// Words of bits, and in how many of them inputs and weights differ. Bits of a word: 1 for +1, 0 for −1.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace qpsbgd {

constexpr std::int64_t WORD = 64;

// The population count of every byte is looked up by its halves; up to ONCE such counts of at most 8 fit into a byte.
constexpr std::int64_t ONCE = 31;

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) inline std::int64_t count_by_4(const std::uint64_t* inputs, const std::uint64_t* rows,
                                                        std::int64_t words, std::int64_t units, std::uint64_t* counts) {
  const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  const __m256i low = _mm256_set1_epi8(15), zero = _mm256_setzero_si256();
  std::int64_t unit = 0;
  for (; unit + 4 <= units; unit += 4) {
    __m256i total = zero;
    for (std::int64_t begin = 0; begin < words; begin += ONCE) {
      __m256i bytes = zero;
      const std::int64_t end = std::min(words, begin + ONCE);
      for (std::int64_t word = begin; word < end; ++word) {
        const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + word * units + unit));
        const __m256i x = _mm256_xor_si256(row, _mm256_set1_epi64x(static_cast<long long>(inputs[word])));
        const __m256i halves = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
        bytes = _mm256_add_epi8(bytes, _mm256_shuffle_epi8(table, _mm256_and_si256(x, low)));
        bytes = _mm256_add_epi8(bytes, _mm256_shuffle_epi8(table, halves));
      }
      total = _mm256_add_epi64(total, _mm256_sad_epu8(bytes, zero));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(counts + unit), total);
  }
  return unit;
}

// Processors of 2019 and later count all bits of a word at once.
__attribute__((target("avx512f,avx512vpopcntdq"))) inline std::int64_t count_words_by_8(
    const std::uint64_t* inputs, const std::uint64_t* rows, std::int64_t words, std::int64_t units, std::uint64_t* counts) {
  std::int64_t unit = 0;
  for (; unit + 8 <= units; unit += 8) {
    __m512i total = _mm512_setzero_si512();
    for (std::int64_t word = 0; word < words; ++word) {
      const __m512i row = _mm512_loadu_si512(rows + word * units + unit);
      const __m512i x = _mm512_xor_si512(row, _mm512_set1_epi64(static_cast<long long>(inputs[word])));
      total = _mm512_add_epi64(total, _mm512_popcnt_epi64(x));
    }
    _mm512_storeu_si512(counts + unit, total);
  }
  return unit;
}

__attribute__((target("avx512f,avx512bw"))) inline std::int64_t count_by_8(const std::uint64_t* inputs,
                                                                    const std::uint64_t* rows, std::int64_t words,
                                                                    std::int64_t units, std::uint64_t* counts) {
  const __m512i table = _mm512_set4_epi32(0x04030302, 0x03020201, 0x03020201, 0x02010100);
  const __m512i low = _mm512_set1_epi8(15), zero = _mm512_setzero_si512();
  std::int64_t unit = 0;
  for (; unit + 8 <= units; unit += 8) {
    __m512i total = zero;
    for (std::int64_t begin = 0; begin < words; begin += ONCE) {
      __m512i bytes = zero;
      const std::int64_t end = std::min(words, begin + ONCE);
      for (std::int64_t word = begin; word < end; ++word) {
        const __m512i row = _mm512_loadu_si512(rows + word * units + unit);
        const __m512i x = _mm512_xor_si512(row, _mm512_set1_epi64(static_cast<long long>(inputs[word])));
        const __m512i halves = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
        bytes = _mm512_add_epi8(bytes, _mm512_shuffle_epi8(table, _mm512_and_si512(x, low)));
        bytes = _mm512_add_epi8(bytes, _mm512_shuffle_epi8(table, halves));
      }
      total = _mm512_add_epi64(total, _mm512_sad_epu8(bytes, zero));
    }
    _mm512_storeu_si512(counts + unit, total);
  }
  return unit;
}
#endif

// counts[unit] = differing bits of `inputs` and the unit's words; rows (words, units) has word w of all units in row w.
// Returns the number of units, from the first, that are done: those that fill vectors.
inline std::int64_t count_wide(const std::uint64_t* inputs, const std::uint64_t* rows, std::int64_t words, std::int64_t units,
                        std::uint64_t* counts) {
#if defined(__aarch64__)
  constexpr int PAIRS = 4;  // of units, so that the additions of one need not wait for each other
  std::int64_t unit = 0;
  for (; unit + 2 * PAIRS <= units; unit += 2 * PAIRS) {
    uint64x2_t total[PAIRS] = {};
    for (std::int64_t begin = 0; begin < words; begin += ONCE) {
      uint8x16_t bytes[PAIRS] = {};
      const std::int64_t end = std::min(words, begin + ONCE);
      for (std::int64_t word = begin; word < end; ++word) {
        const uint64x2_t bits = vdupq_n_u64(inputs[word]);
        for (int pair = 0; pair < PAIRS; ++pair) {
          const uint64x2_t row = vld1q_u64(rows + word * units + unit + 2 * pair);
          bytes[pair] = vaddq_u8(bytes[pair], vcntq_u8(vreinterpretq_u8_u64(veorq_u64(row, bits))));
        }
      }
      for (int pair = 0; pair < PAIRS; ++pair) {
        total[pair] = vpadalq_u32(total[pair], vpaddlq_u16(vpaddlq_u8(bytes[pair])));
      }
    }
    for (int pair = 0; pair < PAIRS; ++pair) vst1q_u64(counts + unit + 2 * pair, total[pair]);
  }
  return unit;
#elif defined(__x86_64__) && defined(__GNUC__)
  static const auto best = __builtin_cpu_supports("avx512vpopcntdq") ? count_words_by_8
                           : __builtin_cpu_supports("avx512bw")      ? count_by_8
                           : __builtin_cpu_supports("avx2")          ? count_by_4
                                                                     : nullptr;
  return best ? best(inputs, rows, words, units, counts) : 0;
#else
  return 0;
#endif
}

inline void count_differing(const std::uint64_t* inputs, const std::uint64_t* rows, std::int64_t words, std::int64_t units,
                     std::uint64_t* counts) {
  const std::int64_t done = count_wide(inputs, rows, words, units, counts);
  std::fill(counts + done, counts + units, 0);
  for (std::int64_t word = 0; word < words; ++word) {
    const std::uint64_t bits = inputs[word], *row = rows + word * units;
    for (std::int64_t k = done; k < units; ++k) {
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

}  // namespace qpsbgd
