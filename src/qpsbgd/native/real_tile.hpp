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
INLINE void finish(const V* sums, const Behind& behind, std::int64_t unit, std::int64_t units, float* out) {
  float parts[PANEL];
  float* to = units < PANEL ? parts : out;
  const V low = V{} + behind.low, high = V{} + behind.high;
  for (int v = 0; v < WIDE; ++v) {
    V value = sums[v] * load(behind.factors + unit + v * WIDTH) + load(behind.offsets + unit + v * WIDTH);
    value = value < low ? low : value;
    store(to + v * WIDTH, value > high ? high : value);
  }
  if (units < PANEL) std::copy(parts, parts + units, out);
}

// Products of R rows of `inputs`, of n numbers each, with a panel (n, PANEL) of weights.
template <int R>
TARGET void multiply_rows(const float* inputs, std::int64_t stride, const float* panel, std::int64_t n,
                          const Behind& behind, std::int64_t unit, std::int64_t units, float* out,
                          std::int64_t out_stride) {
  V sums[R][WIDE] = {};
  for (std::int64_t k = 0; k < n; ++k) {
    V weights[WIDE];
    for (int v = 0; v < WIDE; ++v) weights[v] = load(panel + k * PANEL + v * WIDTH);
    for (int r = 0; r < R; ++r) {
      const float input = inputs[r * stride + k];
      for (int v = 0; v < WIDE; ++v) sums[r][v] += input * weights[v];
    }
  }
  for (int r = 0; r < R; ++r) finish(sums[r], behind, unit, units, out + r * out_stride);
}

TARGET void multiply(const float* inputs, std::int64_t rows, std::int64_t stride, const float* panel, std::int64_t n,
                     const Behind& behind, std::int64_t unit, std::int64_t units, float* out,
                     std::int64_t out_stride) {
  std::int64_t row = 0;
  for (; row + ROWS <= rows; row += ROWS) {
    multiply_rows<ROWS>(inputs + row * stride, stride, panel, n, behind, unit, units, out + row * out_stride,
                        out_stride);
  }
  for (; row + 2 <= rows; row += 2) {
    multiply_rows<2>(inputs + row * stride, stride, panel, n, behind, unit, units, out + row * out_stride, out_stride);
  }
  if (row < rows) {
    multiply_rows<1>(inputs + row * stride, stride, panel, n, behind, unit, units, out + row * out_stride, out_stride);
  }
}

// Sums over a window's pixels (channels,) times weights (window, channels), channel by channel.
TARGET void multiply_pixels(const float* const* pixels, const std::int64_t* inside, std::int64_t count,
                            const float* weights, std::int64_t channels, const Behind& behind, float* out) {
  std::int64_t c = 0;
  for (; c + PANEL <= channels; c += PANEL) {
    V sums[WIDE] = {};
    for (std::int64_t k = 0; k < count; ++k) {
      const float *pixel = pixels[k] + c, *weight = weights + inside[k] * channels + c;
      for (int v = 0; v < WIDE; ++v) sums[v] += load(pixel + v * WIDTH) * load(weight + v * WIDTH);
    }
    finish(sums, behind, c, PANEL, out + c);
  }
  for (; c < channels; ++c) {
    float sum = 0;
    for (std::int64_t k = 0; k < count; ++k) sum += pixels[k][c] * weights[inside[k] * channels + c];
    out[c] = behind(sum, c);
  }
}

}  // namespace
}  // namespace NAME
}  // namespace qpsbgd

#undef INLINE
