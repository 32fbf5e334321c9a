// The kernels of inference as Python functions.
#include "binding.hpp"

#include <limits>


#include "kernels.hpp"

namespace qpsbgd {
namespace {

constexpr int64_t LARGE = int64_t{1} << 31;  // products of two such sizes do not overflow

// The layers, once their parts are known to fit; `last_units` are those of a layer after them.
BitLayers checked_layers(const Array<const float, 2>& rows, const Array<const int64_t, 1>& sizes,
                         const Array<const std::uint64_t, 1>& weights, const Array<const std::uint64_t, 1>& most,
                         const Array<const std::uint64_t, 2>& flipped, int64_t last_units) {
  const int64_t count = size(sizes) - 1, words = size(flipped);
  expect(count >= 0, "sizes must not be empty");
  expect(last_units >= 0 && last_units < LARGE, "units must be fewer than 2^31");
  expect_indices(sizes.data(), count + 1, 1, std::min(64 * std::min(words, LARGE), LARGE) + 1, "sizes");
  int64_t all_words = 0, units = 0;
  for (int64_t layer = 0; layer <= count; ++layer) {
    const int64_t next = layer < count ? sizes.data()[layer + 1] : last_units;
    all_words += (sizes.data()[layer] + 63) / 64 * next;
    units += layer < count ? next : 0;
  }
  expect(rows, "rows", {size(rows), sizes.data()[0]});
  expect(weights, "weights", {all_words});
  expect(most, "most", {units});
  expect(flipped, "flipped", {words, count});
  return {sizes.data(), count + 1, weights.data(), most.data(), flipped.data()};
}

void bind_bits(nb::module_& module) {
  using Words = Array<const std::uint64_t, 1>;
  def_prepared(module, "dense_sums", [](Array<const float, 2> rows, Array<const int64_t, 1> sizes, Words weights, Words most,
                               Array<const std::uint64_t, 2> flipped, Array<const float, 1> factor,
                               Array<const float, 1> offset, Array<float, 2> out) {
    const int64_t units = size(out, 1);
    const BitLayers layers = checked_layers(rows, sizes, weights, most, flipped, units);
    expect(factor, "factor", {units});
    expect(offset, "offset", {units});
    expect(out, "out", {size(rows), units});
    return call(nullptr, dense_sums, rows, layers, factor, offset, out);
  });
}

using Taps = Array<const int64_t, 2>;

Windows windows_of(int64_t height, int64_t length, int64_t channels, const Taps& rows, const Taps& columns) {
  const Windows s{height, length, channels, size(rows, 1), size(columns, 1), size(rows), size(columns), rows.data(), columns.data()};
  expect(height < LARGE && length < LARGE && channels < LARGE && s.high < LARGE && s.wide < LARGE && s.num_rows < LARGE &&
             s.num_columns < LARGE && s.high * s.wide < LARGE && s.high * s.wide * channels < LARGE && s.positions() < LARGE,
         "images, windows and their positions must have fewer than 2^31 pixels and inputs");
  expect(!s.positions() || (s.high > 0 && s.wide > 0), "a window must have at least one pixel");
  expect_indices(s.rows, s.num_rows * s.high, -1, height, "rows");
  expect_indices(s.columns, s.num_columns * s.wide, -1, length, "columns");
  return s;
}

template <class Out>
void bind_layers(nb::module_& module) {
  using Numbers = Array<const int64_t, 1>;
  using Bounds = Array<const std::int32_t, 1>;
  // What is done to sums of these windows, once all fits.
  const auto epilogue_of = [](const Windows& s, int64_t units, int64_t count, const Taps& rows, const Taps& columns,
                            const Numbers& factors, const Numbers& offsets, int64_t shift, const Bounds& lows,
                            const Bounds& highs, const Taps& exceptions, const Array<Out, 4>& out, int64_t largest) {
    expect(s.positions() > 0 && units > 0, "there must be at least one position and one unit");
    expect(s.height > 0 && s.length > 0 && s.channels > 0, "images must have at least one pixel and one channel");
    expect(largest <= std::numeric_limits<std::int32_t>::max(), "sums must fit into 32 bits");
    const Windows pool = windows_of(s.num_rows, s.num_columns, units, rows, columns);
    const Windows& last = pool.positions() ? pool : s;
    expect(out, "out", {count, last.num_rows, last.num_columns, units});
    if (std::is_same_v<Out, std::uint8_t>) {
      expect(factors, "factors", {units});
      expect(offsets, "offsets", {units});
      expect(lows, "lows", {units});
      expect(highs, "highs", {units});
      expect(exceptions, "exceptions", {size(exceptions), 3});
      for (int64_t k = 0; k < size(exceptions); ++k) {
        expect_indices(exceptions.data() + 3 * k, 1, 0, units, "units of exceptions");
      }
      expect(shift >= 0 && shift < 63, "shift must be 0 to 62");
    }
    return AfterSums{pool, factors.data(), offsets.data(), lows.data(), highs.data(), exceptions.data(), size(exceptions), shift, largest};
  };

  def_prepared(module, "bit_layer",
      [epilogue_of](Array<const std::int8_t, 4> images, Array<const std::uint64_t, 3> weights,
                  Array<const std::int32_t, 4> ones, Taps rows, Taps columns, Taps pool_rows, Taps pool_columns,
                  Numbers factors, Numbers offsets, int64_t shift, Bounds lows, Bounds highs, Taps exceptions,
                  Array<Out, 4> out) {
        const Windows s = windows_of(size(images, 1), size(images, 2), size(images, 3), rows, columns);
        const BitWeights all{size(weights, 0), size(weights, 1), size(weights, 2), weights.data(), ones.data()};
        const AfterSums epilogue = epilogue_of(s, all.groups * all.units, size(images), pool_rows, pool_columns, factors,
                                        offsets, shift, lows, highs, exceptions, out, s.high * s.wide * s.channels);
        expect(all.groups > 0 && s.channels % all.groups == 0, "channels must be a multiple of the groups");
        expect(all.words == (s.high * s.wide * (s.channels / all.groups) + 63) / 64,
               "weights must have a word per 64 inputs of a group");
        expect(ones, "ones", {all.groups, s.high, s.wide, all.units});
        if (!size(images)) return;
        run(nullptr, [&](Watch&) { bit_layer(images.data(), size(images), s, all, epilogue, out.data()); });
      });

  def_prepared(module, "byte_layer",
      [epilogue_of](Array<const std::uint8_t, 4> images, Array<const std::int8_t, 4> weights, Bounds starts,
                  int zero_point, Taps rows, Taps columns, Taps pool_rows, Taps pool_columns, Numbers factors,
                  Numbers offsets, int64_t shift, Bounds lows, Bounds highs, Taps exceptions, Array<Out, 4> out) {
        const Windows s = windows_of(size(images, 1), size(images, 2), size(images, 3), rows, columns);
        const ByteWeights all{size(out, 3), size(weights, 1), weights.data(), starts.data(),
                              static_cast<std::uint8_t>(zero_point)};
        int64_t largest = 0;
        for (int64_t k = 0; k < size(starts); ++k) largest = std::max(largest, std::abs(int64_t{starts.data()[k]}));
        largest += 255 * s.high * s.wide * s.channels;
        const AfterSums epilogue = epilogue_of(s, all.units, size(images), pool_rows, pool_columns, factors, offsets, shift,
                                           lows, highs, exceptions, out, largest);
        const int64_t panels = (all.units + all.PANEL - 1) / all.PANEL;
        expect(all.quads == (s.high * s.wide * s.channels + 3) / 4, "weights must have four bytes per four inputs");
        expect(weights, "weights", {panels, all.quads, all.PANEL, 4});
        expect(starts, "starts", {panels * all.PANEL});
        expect(zero_point >= 0 && zero_point < 256, "zero_point must be a byte");
        if (!size(images)) return;
        run(nullptr, [&](Watch&) { byte_layer(images.data(), size(images), s, all, epilogue, out.data()); });
      });
}

// The steps, once all that they name is known to exist.
RealSteps checked_steps(const Array<const int64_t, 2>& steps, const Array<const int64_t, 1>& slots,
                        const Array<const int64_t, 1>& taps, const Array<const float, 1>& numbers,
                        const Array<const std::uint64_t, 1>& words) {
  static_assert(sizeof(RealStep) == RealStep::FIELDS * sizeof(int64_t));
  const RealSteps all{reinterpret_cast<const RealStep*>(steps.data()), size(steps), slots.data(), size(slots),
                      taps.data(), numbers.data(), words.data()};
  expect(steps, "steps", {all.count, RealStep::FIELDS});
  expect(all.num_slots >= 2, "slots must have an input and an output");
  expect_indices(slots.data(), all.num_slots, 0, LARGE, "slots");
  const auto room = [&](int64_t one, int64_t two, int64_t three, int64_t most, const char* what) {
    expect(one > 0 && two > 0 && three > 0 && one < LARGE && two < LARGE && three < LARGE && one * two < LARGE &&
               one * two * three <= most,
           what);
  };
  const auto inside = [&](int64_t begin, int64_t count, int64_t end, const char* what) {
    expect(begin >= 0 && count >= 0 && count <= end && begin <= end - count, what);
  };
  std::vector<int64_t> filled(all.num_slots);  // numbers of a sample that a slot has at a step
  filled[0] = slots.data()[0];
  const auto reads = [&](const RealStep& s, int64_t slot) {
    room(s.height, s.length, s.channels, slots.data()[slot], "a step's values must fit into its source");
    expect(s.height * s.length * s.channels == filled[slot], "a step must read all that was written to its source");
  };
  for (int64_t k = 0; k < all.count; ++k) {
    const RealStep& s = all.steps[k];
    expect_indices(&s.kind, 1, 0, RealStep::KINDS, "kinds of steps");
    const bool adds = s.kind == RealStep::ADD, sums = s.kind == RealStep::SUMS;
    const bool windows = s.kind <= RealStep::MEAN;
    expect_indices(&s.source, 1, 0, all.num_slots, "slots of steps");
    expect_indices(&s.target, 1, 1, all.num_slots, "slots of steps");
    if (adds) expect_indices(&s.other, 1, 0, all.num_slots, "slots of steps");
    expect(s.source != s.target && (!adds || s.other != s.target), "a step must write to another slot");
    reads(s, s.source);
    if (adds) reads(s, s.other);
    room(s.rows, s.columns, s.units, slots.data()[s.target], "a step's values must fit into its target");
    filled[s.target] = s.rows * s.columns * s.units;
    expect(s.groups > 0 && s.channels % s.groups == 0 && s.units % s.groups == 0 && (sums || s.groups == 1),
           "groups must divide channels and units, and be 1 but for sums");
    if (s.kind == RealStep::TRANSPOSE) {
      expect(s.rows == s.length && s.columns == s.height && s.channels == 1 && s.units == 1,
             "a transpose must exchange height and length");
    } else if (!windows) {
      expect(s.rows == s.height && s.columns == s.length, "a step without a window must keep the image");
    }
    expect(sums || s.units == s.channels, "a step without sums over channels must keep their number");
    if (s.kind != RealStep::TRANSPOSE) {
      inside(s.epilogue, 2 + 2 * RealSteps::all_units(s), size(numbers), "factors and offsets must be among the numbers");
    }
    if (!windows) continue;
    inside(s.weights, 0, size(numbers), "weights must be among the numbers");
    room(s.high, s.wide, s.channels, LARGE, "a window must have at least one pixel");
    const int64_t window = s.high * s.wide, n = window * (s.channels / s.groups);
    if (sums && s.direct) {
      expect(window == 1 && s.groups == 1 && s.rows * s.columns == s.height * s.length,
             "direct sums must be of one pixel each");
    } else {
      room(s.rows, s.high, 1, LARGE, "a window must have at least one pixel");
      room(s.columns, s.wide, 1, LARGE, "a window must have at least one pixel");
      inside(s.taps, s.rows * s.high + s.columns * s.wide, size(taps), "indices of pixels must be among the taps");
      expect_indices(taps.data() + s.taps, s.rows * s.high, -1, s.height, "rows");
      expect_indices(taps.data() + s.taps + s.rows * s.high, s.columns * s.wide, -1, s.length, "columns");
    }
    if (sums) {
      room(RealSteps::all_units(s), n, 1, size(numbers), "weights must be among the numbers");
      inside(s.weights, RealSteps::all_units(s) * n, size(numbers), "weights must be among the numbers");
    } else if (s.kind == RealStep::PER_CHANNEL) {
      inside(s.weights, n, size(numbers), "weights must be among the numbers");
    }
    if (sums && s.words >= 0) {
      expect(s.direct, "signs are looked up for direct sums only");
      inside(s.words, (n + 63) / 64 * s.units, size(words), "signs must be among the words");
    }
  }
  expect(filled[1] == slots.data()[1], "the steps must write all of the output");
  return all;
}

void bind_real(nb::module_& module) {
  def_prepared<5>(module, "real_steps", [](Array<const int64_t, 2> steps, Array<const int64_t, 1> slots,
                               Array<const int64_t, 1> taps, Array<const float, 1> numbers,
                               Array<const std::uint64_t, 1> words, Array<const float, 2> inputs, Array<float, 2> out) {
    const RealSteps all = checked_steps(steps, slots, taps, numbers, words);
    expect(inputs, "inputs", {size(inputs), slots.data()[0]});
    expect(out, "out", {size(inputs), slots.data()[1]});
    return call(nullptr, real_steps, all, inputs, out);
  });
}

}  // namespace

NB_MODULE(_kernels, module) {
  nb::set_leak_warnings(false);  // of models that are still there when Python ends
  stop_at_exit();
  bind_bits(module);
  bind_layers<std::uint8_t>(module);  // first: arguments are converted once per overload that does not fit
  bind_layers<std::int32_t>(module);
  bind_real(module);
}

}  // namespace qpsbgd
