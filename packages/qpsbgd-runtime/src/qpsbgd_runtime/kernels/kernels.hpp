// The kernels of inference, as the binding sees them. Shapes and indices have been checked when they are called.
#pragma once

#include <cstdint>

#include "matrix.hpp"

namespace qpsbgd {

// bits.cpp --------------------------------------------------------------------------------------------------------

// A chain of layers over bits, with thresholds.
struct BitLayers {
  const std::int64_t* sizes;  // inputs of the first layer, then the units of all layers
  std::int64_t num_sizes;
  const std::uint64_t* weights;  // words (⌈n / 64⌉, m) of all layers, one after the other
  const std::uint64_t* most;     // differing signs up to which a unit gives +1, of all layers, one after the other
  const std::uint64_t* flipped;  // words (words, layers) of the units that give −1 instead
};

bool dense_sums(Matrix<const float> rows, const BitLayers& layers, const float* factor, const float* offset,
                Matrix<float> out);

// integer_layers.cpp ----------------------------------------------------------------------------------------------

// Windows (high, wide) at positions (num_rows, num_columns) of an image (height, length, channels); rows and columns are
// indices of pixels, −1 where there is none.
struct Windows {
  std::int64_t height, length, channels, high, wide, num_rows, num_columns;
  const std::int64_t *rows, *columns;
  std::int64_t positions() const { return num_rows * num_columns; }
};

// Layers of weights ±1 over images of whole numbers.
struct BitWeights {
  std::int64_t groups, words, units;  // of a group
  const std::uint64_t* signs;         // (groups, words, units) for words = ⌈high · wide · channels / groups / 64⌉
  const std::int32_t* ones;           // positive weights (groups, high · wide, units) of every pixel of a window
};

struct ByteWeights {
  static constexpr std::int64_t PANEL = 16;
  std::int64_t units, quads;   // ⌈high · wide · channels / 4⌉
  const std::int8_t* signs;    // (⌈units / PANEL⌉, quads, PANEL, 4), 0 where there are none
  const std::int32_t* starts;  // what is added to every unit's sum
  std::uint8_t zero_point;     // what stands for a zero in an image
};

// What is done to the sums: the largest of every window if there is a pool; then ⌊(factor · sum + offset) / 2^shift⌋
// within bounds, per unit, but for exceptions (unit, sum, result).
struct AfterSums {
  Windows pool;  // without positions: none
  const std::int64_t *factors, *offsets;
  const std::int32_t *lows, *highs;
  const std::int64_t* exceptions;
  std::int64_t num_exceptions, shift;
  std::int64_t largest_sum;  // no sum is farther from zero
};

// Out is int32 for sums as they are, uint8 for what a line makes of them.
template <class Out>
void bit_layer(const std::int8_t* images, std::int64_t count, const Windows& windows, const BitWeights& weights,
               const AfterSums& epilogue, Out* out);

template <class Out>
void byte_layer(const std::uint8_t* images, std::int64_t count, const Windows& windows, const ByteWeights& weights,
                const AfterSums& epilogue, Out* out);

// real_inputs.cpp -------------------------------------------------------------------------------------------------

// One step of a network over real numbers. A sample's values stand as (height, length, channels) in numbered slots.
struct RealStep {
  enum Kind : std::int64_t { SUMS, PER_CHANNEL, LARGEST, MEAN, SCALE, ADD, TRANSPOSE, KINDS };
  std::int64_t kind, source, other, target;  // slots; `other` only of ADD
  std::int64_t height, length, channels;     // of the source
  std::int64_t rows, columns, units;         // of the target
  std::int64_t high, wide, groups;           // of the window; groups are 1 but for SUMS
  std::int64_t direct;   // SUMS: position k sees pixel k alone; MEAN: zeros that are added count
  std::int64_t taps;     // where indices (rows, high) and (columns, wide) of the source's pixels begin
  std::int64_t weights;  // where panels (groups, ⌈units / PANEL⌉, n, PANEL) or weights (window, channels) begin
  std::int64_t words;    // where words (⌈n / 64⌉, units) of signs begin, or −1
  std::int64_t epilogue; // where two bounds, factors and offsets begin, the latter for whole panels
  static constexpr std::int64_t FIELDS = 18;
};

struct RealSteps {
  static constexpr std::int64_t PANEL = 16;
  static constexpr std::int64_t FEW_ROWS = 4;  // below, signs are looked up
  const RealStep* steps;
  std::int64_t count;
  const std::int64_t* slots;  // numbers of a sample in every slot; 0 is the input, 1 the output
  std::int64_t num_slots;
  const std::int64_t* taps;
  const float* numbers;
  const std::uint64_t* words;

  static std::int64_t padded(std::int64_t units) { return (units + PANEL - 1) / PANEL * PANEL; }
  static std::int64_t all_units(const RealStep& s) { return s.groups * padded(s.units / s.groups); }
};

bool real_steps(const RealSteps& steps, Matrix<const float> inputs, Matrix<float> out);

}  // namespace qpsbgd
