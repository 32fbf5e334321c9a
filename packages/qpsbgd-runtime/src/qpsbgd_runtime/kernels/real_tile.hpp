// The inner loops of real_inputs.cpp for one kind of vector register. Included once per kind, with NAME (of the
// namespace), WIDTH (floats per vector), ROWS (rows of a tile) and TARGET (what functions are compiled for) defined.
namespace qpsbgd {
namespace NAME {
namespace {

constexpr int WIDE = PANEL / WIDTH;  // vectors of a panel

typedef float V __attribute__((vector_size(4 * WIDTH)));
typedef float Loose __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));  // anywhere in memory

#define INLINE inline __attribute__((always_inline)) TARGET

INLINE V load(const float* from) { return *reinterpret_cast<const Loose*>(from); }

INLINE void store(float* to, V value) { *reinterpret_cast<Loose*>(to) = value; }

// factor · sum + offset within the bounds, for `units` of a panel.
INLINE void finish(const V* sums, const Epilogue& epilogue, std::int64_t unit, std::int64_t units, float* out) {
  float parts[PANEL];
  float* to = units < PANEL ? parts : out;
  const V low = V{} + epilogue.low, high = V{} + epilogue.high;
  for (int v = 0; v < WIDE; ++v) {
    V value = sums[v] * load(epilogue.factors + unit + v * WIDTH) + load(epilogue.offsets + unit + v * WIDTH);
    value = value < low ? low : value;
    store(to + v * WIDTH, value > high ? high : value);
  }
  if (units < PANEL) std::copy(parts, parts + units, out);
}

// Products of R rows of `inputs`, of n numbers each, with a panel (n, PANEL) of weights. A function of its own, so that
// everything in the loop stays in registers.
template <int R>
__attribute__((noinline)) TARGET void multiply_rows(const float* inputs, std::int64_t stride, const float* panel,
                                                    std::int64_t n, const Epilogue& epilogue, std::int64_t unit,
                                                    std::int64_t units, float* out, std::int64_t out_stride) {
  V sums[R][WIDE] = {};
  const float* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = inputs + r * stride;
  for (std::int64_t k = 0; k < n; ++k) {
    V weights[WIDE];
    for (int v = 0; v < WIDE; ++v) weights[v] = load(panel + k * PANEL + v * WIDTH);
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < WIDE; ++v) sums[r][v] += rows[r][k] * weights[v];
    }
  }
  for (int r = 0; r < R; ++r) finish(sums[r], epilogue, unit, units, out + r * out_stride);
}

TARGET void multiply(const float* inputs, std::int64_t rows, std::int64_t stride, const float* panel, std::int64_t n,
                     const Epilogue& epilogue, std::int64_t unit, std::int64_t units, float* out,
                     std::int64_t out_stride) {
  std::int64_t row = 0;
#define SOME_ROWS(R)                                                                                                   \
  multiply_rows<R>(inputs + row * stride, stride, panel, n, epilogue, unit, units, out + row * out_stride, out_stride), \
      row += R
  while (row + ROWS <= rows) SOME_ROWS(ROWS);
  if (row + 4 <= rows) SOME_ROWS(4);
  if (row + 2 <= rows) SOME_ROWS(2);
  if (row < rows) SOME_ROWS(1);
#undef SOME_ROWS
}

// Over a window's pixels (channels,), channel by channel: sums of products with weights (window, channels), the
// largest, or the mean.
template <int KIND, class T>
INLINE T combined(T sum, T pixel, T weight) {
  if (KIND == RealStep::PER_CHANNEL) return sum + pixel * weight;
  return KIND == RealStep::MEAN ? sum + pixel : pixel > sum ? pixel : sum;
}

template <int KIND>
TARGET void over_pixels(const float* const* pixels, const std::int64_t* inside, std::int64_t count,
                        const float* weights, std::int64_t channels, const Epilogue& epilogue, float divisor, float* out) {
  constexpr bool WEIGHTED = KIND == RealStep::PER_CHANNEL;
  const float start = KIND == RealStep::LARGEST ? -std::numeric_limits<float>::infinity() : 0.0f;
  std::int64_t c = 0;
  for (; c + PANEL <= channels; c += PANEL) {
    V sums[WIDE];
    for (int v = 0; v < WIDE; ++v) sums[v] = V{} + start;
    for (std::int64_t k = 0; k < count; ++k) {
      const float *pixel = pixels[k] + c, *weight = WEIGHTED ? weights + inside[k] * channels + c : pixel;
      for (int v = 0; v < WIDE; ++v) {
        sums[v] = combined<KIND>(sums[v], load(pixel + v * WIDTH), load(weight + v * WIDTH));
      }
    }
    if (KIND == RealStep::MEAN) {
      for (int v = 0; v < WIDE; ++v) sums[v] /= divisor;
    }
    finish(sums, epilogue, c, PANEL, out + c);
  }
  for (; c < channels; ++c) {
    float sum = start;
    for (std::int64_t k = 0; k < count; ++k) {
      sum = combined<KIND>(sum, pixels[k][c], WEIGHTED ? weights[inside[k] * channels + c] : 0.0f);
    }
    out[c] = epilogue(KIND == RealStep::MEAN ? sum / divisor : sum, c);
  }
}

}  // namespace
}  // namespace NAME
}  // namespace qpsbgd

#undef INLINE
#undef NAME
#undef WIDTH
#undef ROWS
#undef TARGET
