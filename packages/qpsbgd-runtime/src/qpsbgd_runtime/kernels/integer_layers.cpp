// Layers of weights ±1 over ±1 or whole numbers of 8 bits: sums are whole numbers, and what quantises them again is a line
// in whole numbers, so that no rounding depends on the processor. Sums are added up as unsigned numbers, which wrap
// where weights or bounds are such as no layer has.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "counting.hpp"
#include "kernels.hpp"
#include "vectors.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1  // SSE2 is always there
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#define ARM 1
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

namespace qpsbgd {
namespace {

constexpr std::int64_t PANEL = ByteWeights::PANEL;
constexpr std::int64_t SUMS = 1 << 13;  // that are computed at once, so that they stay in the innermost cache
constexpr int ROWS = 4;                        // of a tile

// Rows of `quads` times four bytes with a panel (quads, PANEL, 4) of weights ±1, for R rows.
#define MULTIPLY_ROWS(NAME, TARGET, ADD)                                                                            \
  template <int R>                                                                                                 \
  __attribute__((noinline)) TARGET void NAME##_rows(const std::uint8_t* inputs, const std::int8_t* panel,           \
                                                    std::int64_t quads, const std::int32_t* starts,                \
                                                    std::int32_t* sums, std::int64_t stride) {                     \
    __m256i total[R][2];                                                                                           \
    for (int r = 0; r < R; ++r) {                                                                                  \
      for (int half = 0; half < 2; ++half) {                                                                       \
        total[r][half] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(starts + 8 * half));                  \
      }                                                                                                            \
    }                                                                                                              \
    for (std::int64_t k = 0; k < quads; ++k, panel += 4 * PANEL) {                                                 \
      const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel));                             \
      const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel + 32));                       \
      for (int r = 0; r < R; ++r) {                                                                                \
        std::int32_t four;                                                                                         \
        std::memcpy(&four, inputs + 4 * (r * quads + k), 4);                                                       \
        const __m256i x = _mm256_set1_epi32(four);                                                                 \
        total[r][0] = ADD(total[r][0], x, low);                                                                    \
        total[r][1] = ADD(total[r][1], x, high);                                                                   \
      }                                                                                                            \
    }                                                                                                              \
    for (int r = 0; r < R; ++r) {                                                                                  \
      for (int half = 0; half < 2; ++half) {                                                                       \
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * stride + 8 * half), total[r][half]);             \
      }                                                                                                            \
    }                                                                                                              \
  }

#if defined(X86)
// Two products ±255 fit into 16 bits.
#define ADD_PAIRS(total, x, weights) \
  _mm256_add_epi32(total, _mm256_madd_epi16(_mm256_maddubs_epi16(x, weights), _mm256_set1_epi16(1)))
MULTIPLY_ROWS(avx2, __attribute__((target("avx2"))), ADD_PAIRS)
MULTIPLY_ROWS(vnni, __attribute__((target("avx512vnni,avx512vl"))), _mm256_dpbusd_epi32)
#elif defined(ARM)
// Products of signed bytes alone: inputs go in less 128, and 128 times the sums of the weights are added.
template <int R>
__attribute__((noinline, target("arch=armv8.2-a+dotprod"))) void dot_rows(const std::uint8_t* inputs,
                                                                          const std::int8_t* panel, std::int64_t quads,
                                                                          const std::int32_t* starts,
                                                                          std::int32_t* sums, std::int64_t stride) {
  constexpr int WIDE = PANEL / 4;
  int32x4_t total[R][WIDE], ones[WIDE];
  for (int v = 0; v < WIDE; ++v) {
    for (int r = 0; r < R; ++r) total[r][v] = vld1q_s32(starts + 4 * v);
    ones[v] = vdupq_n_s32(0);
  }
  for (std::int64_t k = 0; k < quads; ++k, panel += 4 * PANEL) {
    int8x16_t weights[WIDE];
    for (int v = 0; v < WIDE; ++v) {
      weights[v] = vld1q_s8(panel + 16 * v);
      ones[v] = vdotq_s32(ones[v], weights[v], vdupq_n_s8(1));
    }
    for (int r = 0; r < R; ++r) {
      std::uint32_t four;
      std::memcpy(&four, inputs + 4 * (r * quads + k), 4);
      const int8x16_t x = vreinterpretq_s8_u32(vdupq_n_u32(four ^ 0x80808080u));
      for (int v = 0; v < WIDE; ++v) total[r][v] = vdotq_s32(total[r][v], weights[v], x);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < WIDE; ++v) vst1q_s32(sums + r * stride + 4 * v, vaddq_s32(total[r][v], vshlq_n_s32(ones[v], 7)));
  }
}
#endif

template <int R>
void plain_rows(const std::uint8_t* inputs, const std::int8_t* panel, std::int64_t quads, const std::int32_t* starts,
                std::int32_t* sums, std::int64_t stride) {
  for (int r = 0; r < R; ++r) {
    std::uint32_t total[PANEL];
    std::copy(starts, starts + PANEL, total);
    const std::uint8_t* x = inputs + 4 * r * quads;
    for (std::int64_t k = 0; k < quads; ++k, x += 4) {
      const std::int8_t* w = panel + 4 * PANEL * k;
      for (int unit = 0; unit < PANEL; ++unit, w += 4) {
        total[unit] += static_cast<std::uint32_t>(x[0] * w[0] + x[1] * w[1] + x[2] * w[2] + x[3] * w[3]);
      }
    }
    for (int unit = 0; unit < PANEL; ++unit) sums[r * stride + unit] = static_cast<std::int32_t>(total[unit]);
  }
}

using Multiply = decltype(&plain_rows<1>);
struct Loops {
  Multiply one, many;
};

const Loops& loops() {
#if defined(X86)
  static const Loops best = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl")
                                ? Loops{vnni_rows<1>, vnni_rows<ROWS>}
                            : __builtin_cpu_supports("avx2") ? Loops{avx2_rows<1>, avx2_rows<ROWS>}
                                                             : Loops{plain_rows<1>, plain_rows<ROWS>};
#elif defined(ARM)
  static const Loops best = getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? Loops{dot_rows<1>, dot_rows<ROWS>}
                                                                : Loops{plain_rows<1>, plain_rows<ROWS>};
#else
  static const Loops best{plain_rows<1>, plain_rows<ROWS>};
#endif
  return best;
}

QPSBGD_VERSIONS void along_line(const std::int32_t* __restrict sums, const std::int64_t* __restrict factors,
                                const std::int64_t* __restrict offsets, const std::int32_t* __restrict lows,
                                const std::int32_t* __restrict highs, std::int64_t shift, std::int64_t units,
                                std::uint8_t* __restrict out) {
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const auto product = static_cast<std::uint64_t>(factors[unit]) * static_cast<std::uint64_t>(std::int64_t{sums[unit]});
    const auto value = static_cast<std::int64_t>(product + static_cast<std::uint64_t>(offsets[unit])) >> shift;
    const std::int64_t low = lows[unit], high = highs[unit];
    out[unit] = static_cast<std::uint8_t>(value < low ? low : value > high ? high : value);
  }
}

// The same for signs, without products of 64 bits, which processors have no vectors for.
QPSBGD_VERSIONS void along_narrow_line(const std::int32_t* __restrict sums, const std::int32_t* __restrict factors,
                                       const std::int32_t* __restrict offsets, const std::int32_t* __restrict lows,
                                       const std::int32_t* __restrict highs, std::int64_t units,
                                       std::uint8_t* __restrict out) {
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const auto product = static_cast<std::uint32_t>(factors[unit]) * static_cast<std::uint32_t>(sums[unit]);
    const auto value = static_cast<std::int32_t>(product + static_cast<std::uint32_t>(offsets[unit]));
    const std::int32_t low = lows[unit], high = highs[unit];
    out[unit] = static_cast<std::uint8_t>(value < low ? low : value > high ? high : value);
  }
}

// What is done to sums, prepared for all of a call.
class Line {
 public:
  Line(const AfterSums& epilogue, std::int64_t units) : epilogue_(epilogue), units_(units) {
    constexpr std::int64_t MOST = std::int64_t{1} << 28;  // twice such a sum and such an offset have 31 bits together
    bool narrow = epilogue.shift == 0 && epilogue.largest_sum <= MOST;
    for (std::int64_t unit = 0; unit < units && narrow; ++unit) {
      const std::int64_t factor = epilogue.factors[unit], offset = epilogue.offsets[unit];
      narrow = -2 <= factor && factor <= 2 && -MOST <= offset && offset <= MOST;
    }
    if (!narrow) return;
    factors_.assign(epilogue.factors, epilogue.factors + units);
    offsets_.assign(epilogue.offsets, epilogue.offsets + units);
  }

  void apply(const std::int32_t* sums, std::int64_t rows, std::uint8_t* out) const {
    const AfterSums& e = epilogue_;
    for (std::int64_t row = 0; row < rows; ++row, sums += units_, out += units_) {
      if (factors_.empty()) {
        along_line(sums, e.factors, e.offsets, e.lows, e.highs, e.shift, units_, out);
      } else {
        along_narrow_line(sums, factors_.data(), offsets_.data(), e.lows, e.highs, units_, out);
      }
      for (const std::int64_t* one = e.exceptions; one < e.exceptions + 3 * e.num_exceptions; one += 3) {
        if (sums[one[0]] == one[1]) out[one[0]] = static_cast<std::uint8_t>(one[2]);
      }
    }
  }

 private:
  const AfterSums& epilogue_;
  std::int64_t units_;
  std::vector<std::int32_t> factors_, offsets_;
};

QPSBGD_VERSIONS void raise_to(const std::int32_t* __restrict pixel, std::int64_t channels, std::int32_t* __restrict out) {
  for (std::int64_t c = 0; c < channels; ++c) out[c] = pixel[c] > out[c] ? pixel[c] : out[c];
}

// Bits one after the other, as words.
class Writer {
 public:
  explicit Writer(std::uint64_t* to) : to_(to) {}

  void add(std::uint64_t bits, std::int64_t count) {
    word_ |= bits << filled_;
    filled_ += count;
    if (filled_ < WORD) return;
    *to_++ = word_;
    filled_ -= WORD;
    word_ = filled_ ? bits >> (count - filled_) : 0;
  }

  void finish() {
    if (filled_) *to_ = word_;
  }

 private:
  std::uint64_t *to_, word_ = 0;
  std::int64_t filled_ = 0;
};

QPSBGD_VERSIONS void sums_of(const std::uint64_t* __restrict counts, std::int64_t units, std::int32_t products,
                             std::int32_t* __restrict out) {
  for (std::int64_t unit = 0; unit < units; ++unit) {
    out[unit] = static_cast<std::int32_t>(static_cast<std::uint32_t>(products) - 2 * static_cast<std::uint32_t>(counts[unit]));
  }
}

QPSBGD_VERSIONS void add_twice(const std::int32_t* __restrict more, std::int64_t units, std::int32_t* __restrict out) {
  for (std::int64_t unit = 0; unit < units; ++unit) {
    out[unit] = static_cast<std::int32_t>(static_cast<std::uint32_t>(out[unit]) + 2 * static_cast<std::uint32_t>(more[unit]));
  }
}

// A column of windows.
struct Column {
  const std::int64_t* across;  // `wide` indices of pixels, which ascend by the dilation or are −1
  std::int64_t seen;           // that are not −1
  bool unbroken;               // pixels side by side
};

std::vector<Column> columns_of(const Windows& s) {
  std::vector<Column> columns;
  columns.reserve(s.num_columns);
  for (const std::int64_t* across = s.columns; across < s.columns + s.num_columns * s.wide; across += s.wide) {
    bool unbroken = across[0] >= 0;
    for (std::int64_t dx = 1; dx < s.wide; ++dx) unbroken &= across[dx] == across[0] + dx;
    columns.push_back({across, s.wide - std::count(across, across + s.wide, -1), unbroken});
  }
  return columns;
}

// Bits of `count` signs ±1.
void pack_signs(const std::int8_t* signs, std::int64_t count, std::uint64_t* words) {
  for (; count > 0; count -= WORD, signs += WORD) {
    std::uint64_t bits = 0;
    std::int64_t k = 0;
#if defined(X86)
    for (; k + 16 <= std::min(count, WORD); k += 16) {
      const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(signs + k));
      bits |= static_cast<std::uint64_t>(~_mm_movemask_epi8(part) & 0xFFFF) << k;
    }
#endif
    for (; k < std::min(count, WORD); ++k) bits |= static_cast<std::uint64_t>(signs[k] >= 0) << k;
    *words++ = bits;
  }
}

// Up to 64 bits of a row, which has a word more than it needs.
inline std::uint64_t bits_at(const std::uint64_t* row, std::int64_t at, std::int64_t count) {
  const std::int64_t shift = at % WORD;
  row += at / WORD;
  const std::uint64_t bits = shift ? row[0] >> shift | row[1] << (WORD - shift) : row[0];
  return count < WORD ? bits & ((std::uint64_t{1} << count) - 1) : bits;
}

// Sums (positions, units) of an image of ±1, whose rows are `packed`, one after the other, as bits.
void bit_sums(const std::uint64_t* packed, const Windows& s, const std::vector<Column>& columns, const BitWeights& weights,
              std::uint64_t* patch, std::uint64_t* counts, std::int32_t* out) {
  const std::int64_t groups = weights.groups, per_group = s.channels / groups, units = weights.units;
  const std::int64_t taps = s.high * s.wide, words = s.length * s.channels / WORD + 2;
  for (const std::int64_t* down = s.rows; down < s.rows + s.num_rows * s.high; down += s.high) {
    const std::int64_t seen_rows = s.high - std::count(down, down + s.high, -1);
    for (const auto& [across, seen_columns, side_by_side] : columns) {
      const std::int64_t seen = seen_rows * seen_columns;
      const bool unbroken = groups == 1 && side_by_side;
      const std::int64_t part = unbroken ? s.wide * per_group : per_group;  // bits side by side
      for (std::int64_t group = 0; group < groups; ++group, out += units) {
        Writer writer(patch);
        for (std::int64_t dy = 0; dy < s.high; ++dy) {
          for (std::int64_t dx = 0; dx < (unbroken ? 1 : s.wide); ++dx) {
            const bool inside = down[dy] >= 0 && across[dx] >= 0;
            const std::uint64_t* row = packed + (inside ? down[dy] : 0) * words;
            std::int64_t at = inside ? across[dx] * s.channels + group * per_group : 0;
            for (std::int64_t left = part; left > 0; left -= WORD, at += WORD) {
              writer.add(inside ? bits_at(row, at, left) : 0, std::min(left, WORD));
            }
          }
        }
        writer.finish();
        count_differing(patch, weights.signs + group * weights.words * units, weights.words, units, counts);
        sums_of(counts, units, static_cast<std::int32_t>(seen * per_group), out);
        if (seen == taps) continue;
        // Where nothing is seen the patch has zeros, which differ from a weight's ones.
        const std::int32_t* more = weights.ones + group * taps * units;
        for (std::int64_t dy = 0; dy < s.high; ++dy) {
          for (std::int64_t dx = 0; dx < s.wide; ++dx, more += units) {
            if (down[dy] < 0 || across[dx] < 0) add_twice(more, units, out);
          }
        }
      }
    }
  }
}

constexpr std::int64_t SLACK = 8;  // bytes behind patches that may be written

// Copies a few bytes without a call, and up to SLACK where there are as many before `end`.
inline void copy_few(std::uint8_t* to, const std::uint8_t* from, const std::uint8_t* end, std::int64_t count) {
  for (; end - from >= SLACK; count -= SLACK, to += SLACK, from += SLACK) {
    std::memcpy(to, from, SLACK);
    if (count <= SLACK) return;
  }
  std::copy(from, from + count, to);
}

// Patches of an image, one per position, each written before the next one.
void lay_out(const std::uint8_t* image, const Windows& s, const std::vector<Column>& columns, const ByteWeights& weights,
             std::uint8_t* patches) {
  const std::int64_t row = s.length * s.channels;
  const std::uint8_t* const end = image + s.height * row;
  for (const std::int64_t* down = s.rows; down < s.rows + s.num_rows * s.high; down += s.high) {
    for (const auto& [across, seen, unbroken] : columns) {
      const std::int64_t pixels = unbroken ? s.wide : 1, part = pixels * s.channels;  // that lie side by side
      std::uint8_t* to = patches;
      for (const std::int64_t* y = down; y < down + s.high; ++y) {
        for (const std::int64_t* x = across; x < across + s.wide; x += pixels, to += part) {
          if (*y < 0 || *x < 0) {
            std::fill(to, to + part, weights.zero_point);
          } else {
            copy_few(to, image + *y * row + *x * s.channels, end, part);
          }
        }
      }
      patches += 4 * weights.quads;
    }
  }
}

// Sums (rows, units) of patches.
void byte_sums(const std::uint8_t* patches, std::int64_t rows, const ByteWeights& weights, std::int32_t* out) {
  const std::int64_t size = 4 * weights.quads;
  std::int32_t few[ROWS * PANEL];
  for (std::int64_t unit = 0; unit < weights.units; unit += PANEL) {
    const std::int64_t units = std::min(PANEL, weights.units - unit);
    const bool whole = units == PANEL;
    for (std::int64_t row = 0; row < rows;) {
      const int many = row + ROWS <= rows ? ROWS : 1;
      std::int32_t* to = out + row * weights.units + unit;
      (many > 1 ? loops().many : loops().one)(patches + row * size, weights.signs + unit * size, weights.quads,
                                              weights.starts + unit, whole ? to : few, whole ? weights.units : PANEL);
      for (int r = 0; r < (whole ? 0 : many); ++r) std::copy(few + r * PANEL, few + r * PANEL + units, to + r * weights.units);
      row += many;
    }
  }
}

// The largest of every window of sums, which begin with row `first`.
void pool(const std::int32_t* sums, const Windows& s, std::int64_t first, std::int32_t* out) {
  for (const std::int64_t* down = s.rows; down < s.rows + s.num_rows * s.high; down += s.high) {
    for (const std::int64_t* across = s.columns; across < s.columns + s.num_columns * s.wide; across += s.wide) {
      std::fill(out, out + s.channels, std::numeric_limits<std::int32_t>::min());
      for (std::int64_t dy = 0; dy < s.high; ++dy) {
        for (std::int64_t dx = 0; dx < s.wide; ++dx) {
          if (down[dy] < 0 || across[dx] < 0) continue;
          raise_to(sums + ((down[dy] - first) * s.length + across[dx]) * s.channels, s.channels, out);
        }
      }
      out += s.channels;
    }
  }
}

// The windows in some of the rows of positions.
Windows rows_of(const Windows& s, std::int64_t first, std::int64_t count) {
  Windows part = s;
  part.rows += first * s.high;
  part.num_rows = count;
  return part;
}

// Hands sums (positions, units) on, those of a few images or of a few rows of one at a time: `sums(image, images, first,
// part, to)` finds those of windows that begin with row `first`.
template <class Out, class Sums>
void run_layer(std::int64_t count, const Windows& windows, std::int64_t units, const AfterSums& epilogue, Out* out, Sums sums) {
  const bool pools = epilogue.pool.positions();
  const Windows& results = pools ? epilogue.pool : windows;
  const std::int64_t row = windows.num_columns * units, size = windows.num_rows * row;
  const std::int64_t at_once = std::max<std::int64_t>(1, std::min(count, SUMS / std::max<std::int64_t>(1, size)));
  const Line line(epilogue, std::is_same_v<Out, std::int32_t> ? 0 : units);
  thread_local std::vector<std::int32_t> found, largest;  // kept: fresh pages of memory take longer than a small layer
  for (std::int64_t image = 0; image < count; image += at_once) {
    const std::int64_t images = std::min(at_once, count - image);
    for (std::int64_t done = 0; done < results.num_rows;) {
      // As many rows of results as fit, and the rows of positions, from `first` to `end`, that they are made of.
      std::int64_t next = done, first = windows.num_rows, end = 0;
      while (next < results.num_rows) {
        std::int64_t low = next, high = next + 1;
        if (pools) {
          const std::int64_t* down = results.rows + next * results.high;
          low = windows.num_rows, high = 0;
          for (const std::int64_t* y = down; y < down + results.high; ++y) {
            if (*y >= 0) low = std::min(low, *y), high = std::max(high, *y + 1);
          }
        }
        const std::int64_t least = std::min(first, low), most = std::max(end, high);
        if (next > done && at_once == 1 && (most - least) * row > SUMS) break;
        first = least, end = most, ++next;
      }
      const Windows part = rows_of(results, done, next - done);
      const std::int64_t rows = std::max<std::int64_t>(0, end - first), pooled = part.positions() * units;
      found.resize(std::max<std::size_t>(found.size(), images * rows * row));
      sums(image, images, rows_of(windows, rows ? first : 0, rows), found.data());
      const std::int32_t* last = found.data();
      if (pools) {
        largest.resize(std::max<std::size_t>(largest.size(), images * pooled));
        for (std::int64_t k = 0; k < images; ++k) pool(found.data() + k * rows * row, part, first, largest.data() + k * pooled);
        last = largest.data();
      }
      if constexpr (std::is_same_v<Out, std::int32_t>) {
        std::copy(last, last + images * pooled, out);
      } else {
        line.apply(last, images * part.positions(), out);
      }
      out += images * pooled;
      done = next;
    }
  }
}

}  // namespace

template <class Out>
void bit_layer(const std::int8_t* images, std::int64_t count, const Windows& windows, const BitWeights& weights,
               const AfterSums& epilogue, Out* out) {
  const std::int64_t size = windows.height * windows.length * windows.channels, units = weights.groups * weights.units;
  std::vector<std::uint64_t> packed(windows.height * (windows.length * windows.channels / WORD + 2));
  std::vector<std::uint64_t> patch(weights.words), counts(weights.units);
  const std::vector<Column> columns = columns_of(windows);
  const std::int64_t words = windows.length * windows.channels / WORD + 2;
  std::int64_t present = -1;  // the image that is packed
  run_layer(count, windows, units, epilogue, out, [&](std::int64_t image, std::int64_t many, const Windows& part, std::int32_t* sums) {
    for (const std::int64_t end = image + many; image < end; ++image, sums += part.positions() * units) {
      for (std::int64_t y = 0; y < windows.height && image != present; ++y) {
        pack_signs(images + image * size + y * (size / windows.height), size / windows.height, packed.data() + y * words);
      }
      present = image;
      bit_sums(packed.data(), part, columns, weights, patch.data(), counts.data(), sums);
    }
  });
}

template <class Out>
void byte_layer(const std::uint8_t* images, std::int64_t count, const Windows& windows, const ByteWeights& weights,
                const AfterSums& epilogue, Out* out) {
  const std::int64_t size = windows.height * windows.length * windows.channels, patch = 4 * weights.quads;
  const std::vector<Column> columns = columns_of(windows);
  thread_local std::vector<std::uint8_t> patches;
  run_layer(count, windows, weights.units, epilogue, out, [&](std::int64_t image, std::int64_t many, const Windows& part, std::int32_t* sums) {
    const std::int64_t positions = part.positions();
    patches.resize(std::max<std::size_t>(patches.size(), many * positions * patch + SLACK));
    for (std::int64_t k = 0; k < many; ++k) {
      lay_out(images + (image + k) * size, part, columns, weights, patches.data() + k * positions * patch);
    }
    byte_sums(patches.data(), many * positions, weights, sums);
  });
}

#define LAYERS(OUT)                                                                                           \
  template void bit_layer(const std::int8_t*, std::int64_t, const Windows&, const BitWeights&, const AfterSums&, OUT*); \
  template void byte_layer(const std::uint8_t*, std::int64_t, const Windows&, const ByteWeights&, const AfterSums&, OUT*);
LAYERS(std::int32_t)
LAYERS(std::uint8_t)

}  // namespace qpsbgd
