"""The same vectors go through the compiled kernels of inference and through the plain reference."""

import contextlib
import itertools

import numpy as np
import pytest
from kernel_calls import broken, called, run, spoiled

from qpsbgd_runtime.kernels import kernels, reference
from qpsbgd_runtime.kernels.reference_real import Kind, RealStep


def words(*shape):
    return np.random.default_rng(2).integers(0, 2**64, shape, dtype=np.uint64)


def bits_vectors():
    sizes, weights, flipped = np.array([70, 130, 20]), words(2 * 130 + 3 * 20 + 7), words(3, 2)
    # What is left over in a word is zero.
    weights[130:260] &= np.uint64(63)
    weights[300:320] &= np.uint64(3)
    weights[320:] &= np.uint64(2**20 - 1)
    flipped[2, 0] &= np.uint64(3)
    flipped[0, 1] &= np.uint64(2**20 - 1)
    flipped[1:, 1] = 0
    most = np.concatenate([np.full(130, 35), np.full(20, 65)]).astype(np.uint64)
    rows = np.random.default_rng(1).standard_normal((6, 70)).astype(np.float32)
    yield "dense_signs", (rows, sizes, weights[:320], most, flipped, np.zeros((6, 20), np.int8))
    ones, offset = np.ones(7, np.float32), np.arange(7, dtype=np.float32)
    yield "dense_sums", (rows, sizes, weights, most, flipped, ones, offset, np.zeros((6, 7), np.float32))
    yield (
        "dense_sums alone",
        (
            rows[:, :20].copy(),
            sizes[2:],
            weights[320:],
            most[:0],
            flipped[:, :0],
            ones,
            offset,
            np.zeros((6, 7), np.float32),
        ),
    )
    yield from integer_vectors()


def integer_vectors():
    """Layers over bits and bytes: of words that are full or not, with and without padding, pools and lines."""
    generator = np.random.default_rng(1)
    high, wide = np.arange(5)[:, None] + np.arange(3) - 1, np.arange(5)[:, None] + np.arange(2)
    high[high > 4] = -1
    none = np.zeros((0, 0), np.int64)
    pool = (np.array([[0, 1], [3, 4]]), np.array([[-1, 0, 1], [2, 3, 4]]))
    for groups, channels, units in ((1, 1, 5), (1, 37, 24), (2, 140, 9)):
        signs = generator.random((groups, units, 3, 2, channels // groups)) < 0.5
        padded = np.zeros((groups, units, -(-signs[0, 0].size // 64) * 64), bool)
        padded[..., : signs[0, 0].size] = signs.reshape(groups, units, -1)
        kernel = np.packbits(padded, axis=-1, bitorder="little").view("<u8").astype(np.uint64).swapaxes(1, 2).copy()
        ones = signs.sum(-1, dtype=np.int32).transpose(0, 2, 3, 1).copy()
        bits = generator.choice([-1, 1], (2, 5, 6, channels)).astype(np.int8)
        given = {"bit_layer": (bits, kernel, ones)}
        if groups == 1:
            panels = np.zeros((-(-units // 16) * 16, -(-signs[0, 0].size // 4) * 4), np.int8)
            panels[:units, : signs[0, 0].size] = np.where(signs, 1, -1).reshape(units, -1)
            panels = panels.reshape(-(-units // 16), 16, -1, 4).swapaxes(1, 2).copy()
            starts = generator.integers(-9, 9, len(panels) * 16).astype(np.int32)
            images = generator.integers(0, 256, (2, 5, 6, channels)).astype(np.uint8)
            given["byte_layer"] = (images, panels, starts, 128)
        count = groups * units
        factors, offsets = generator.integers(-(2**40), 2**40, count), generator.integers(-(2**46), 2**46, count)
        bounds = (np.full(count, -100, np.int32), np.arange(count, dtype=np.int32))
        other = np.array([[0, 3, 7], [count - 1, -2, -5]])
        for name, first in given.items():
            for pools, shape in (((none, none), (2, 5, 5, count)), (pool, (2, 2, 2, count))):
                lines = (factors, offsets, 42, *bounds, other)
                empty = tuple(one[:0] if isinstance(one, np.ndarray) else one for one in lines)
                label = f"{name} {channels} {shape[1]}"
                yield f"{label} sums", (*first, high, wide, *pools, *empty, np.zeros(shape, np.int32))
                yield f"{label} lines", (*first, high, wide, *pools, *lines, np.zeros(shape, np.uint8))


def real_vectors():
    """Single steps, and two that share a slot; `numbers`, `taps` and `words` hold no more than is read."""
    generator = np.random.default_rng(1)

    def arguments(steps, slots, *, taps=(), weights=(), words=(), samples=3):
        numbers = [generator.standard_normal(len(part)) for part in weights]
        for step in steps:
            step.epilogue = sum(map(len, numbers))
            units = step.groups * -(-step.units // step.groups // 16) * 16
            numbers += [] if step.kind == Kind.TRANSPOSE else [[-2, 3], generator.standard_normal(2 * units)]
        return (
            np.array([step.row() for step in steps]),
            np.array(slots),
            np.array(taps, np.int64),
            np.concatenate([[], *numbers]).astype(np.float32),
            np.array(words, np.uint64),
            generator.standard_normal((samples, slots[0])).astype(np.float32),
            np.zeros((samples, slots[1]), np.float32),
        )

    for units in (5, 16, 37):
        for samples in (1, 2, 3, 4, 7, 70):
            step = RealStep(Kind.SUMS, 0, 1, 1, 1, 70, 1, 1, units, direct=1)
            panels = np.zeros(-(-units // 16) * 16 * 70)
            yield (
                f"real_steps dense {units} {samples}",
                arguments([step], [70, units], weights=[panels], samples=samples),
            )
    down, across = [-1, 0, 1, 1, 2, 3, 3, 4, -1], [1, 0, 2, 1, -1, 3]
    for kind, groups, channels, units in (
        *((Kind.SUMS, 1, 1, 20), (Kind.SUMS, 1, 6, 20), (Kind.SUMS, 3, 6, 21)),
        *(
            (kind, 1, channels, channels)
            for kind in (Kind.PER_CHANNEL, Kind.LARGEST, Kind.MEAN)
            for channels in (5, 37)
        ),
    ):
        for direct in (0, 1) if kind == Kind.MEAN else (0,):
            step = RealStep(kind, 0, 1, 5, 4, channels, 3, 3, units, high=3, wide=2, groups=groups, direct=direct)
            panels = groups * -(-units // groups // 16) * 16 * 6 * channels // groups
            count = panels if kind == Kind.SUMS else 6 * channels if kind == Kind.PER_CHANNEL else 0
            vectors = arguments([step], [20 * channels, 9 * units], taps=down + across, weights=[np.zeros(count)])
            yield f"real_steps {kind.name} {groups} {channels} {direct}", vectors
    turn = RealStep(Kind.TRANSPOSE, 0, 2, 5, 4, 1, 4, 5, 1)
    add = RealStep(Kind.ADD, 0, 3, 1, 4, 5, 1, 4, 5, other=2)
    scale = RealStep(Kind.SCALE, 3, 1, 1, 20, 1, 1, 20, 1)
    yield "real_steps transpose add scale", arguments([turn, add, scale], [20, 20, 20, 20], samples=100)


VECTORS = dict(itertools.chain(bits_vectors(), real_vectors()))


@pytest.mark.parametrize("name", VECTORS)
def test_the_compiled_kernel_answers_as_the_reference(name):
    returned, arrays = run(kernels, name, VECTORS[name])
    expected, expected_arrays = run(reference, name, VECTORS[name])
    assert returned == pytest.approx(expected)
    for array, other in zip(arrays, expected_arrays, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-4, atol=1e-5)


def test_every_kernel_has_a_reference_and_vectors():
    public = {name for name in dir(kernels) if not name.startswith("_")}
    names = {name.split()[0] for name in VECTORS}
    assert public == set(reference.__all__) == names | {f"prepare_{name}" for name in names}


@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize("name", VECTORS)
def test_a_prepared_kernel_takes_inputs_and_outputs_alone(module, name):
    kernel = name.split()[0]
    place = 5 if kernel == "real_steps" else 0
    arguments = list(VECTORS[name])
    inputs, out = arguments[place], arguments[-1].copy()
    expected, arrays = run(module, name, VECTORS[name])
    arguments[place], arguments[-1] = inputs[:0], out[:0]
    prepared = getattr(module, f"prepare_{kernel}")(*arguments)
    del arguments
    assert prepared(inputs, out) == expected
    np.testing.assert_array_equal(out, arrays[-1])
    if module is not reference:
        with pytest.raises(ValueError, match="must have shape"):
            prepared(inputs, out[:-1])
        with pytest.raises(TypeError, match="incompatible function arguments"):
            prepared(inputs, out.astype(np.complex128))


@pytest.mark.parametrize("name", VECTORS)
def test_arrays_of_a_wrong_shape_or_type_are_refused(name):
    # Channels within a word, windows of a pool, exceptions, units within a panel.
    free = {"bit_layer": {(0, 3), (5, 1), (6, 1), (12, 0)}, "byte_layer": {(6, 1), (7, 1), (13, 0), (14, 3)}}
    for place, axis, arguments in broken(VECTORS[name], longer=False):
        if (place, axis) not in free.get(name.split()[0], ()):
            with pytest.raises(ValueError, match=r"must|words"):
                run(kernels, name, arguments)
        arguments[place] = VECTORS[name][place].astype(np.complex128)  # wide enough for what outputs hold by chance
        with pytest.raises(TypeError, match="incompatible function arguments"):
            run(kernels, name, arguments)


def test_indices_that_point_outside_are_refused():
    name = "bit_layer 37 2 lines"
    arguments = next(given for label, given in integer_vectors() if label == name)
    for place, what, limit in ((3, "rows", 4), (4, "columns", 5), (5, "rows", 4), (6, "columns", 4)):
        for wrong in (-2, limit + 1):
            changed = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
            changed[place][0, 0] = wrong
            with pytest.raises(ValueError, match=f"{what} must be from -1 to {limit}, got {wrong}"):
                kernels.bit_layer(*changed)
    for unit in (-1, 24):
        changed = [*arguments[:12], np.array([[unit, 0, 0]]), arguments[13]]
        with pytest.raises(ValueError, match="units of exceptions must be from 0 to 23"):
            kernels.bit_layer(*changed)


@pytest.mark.parametrize("samples", [1, 3, 4])
def test_signs_that_are_looked_up_give_the_sums_of_their_weights(samples):
    signs = np.random.default_rng(1).random((80, 70)) < 0.5
    panels = np.where(signs, 1, -1).reshape(5, 16, 70).transpose(0, 2, 1).ravel()
    numbers = np.concatenate([panels, [-np.inf, np.inf], np.ones(80), np.zeros(80)]).astype(np.float32)
    step = RealStep(Kind.SUMS, 0, 1, 1, 1, 70, 1, 1, 80, direct=1, words=0, epilogue=len(panels))
    padded = np.zeros((80, 128), bool)
    padded[:, :70] = signs
    words = np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64).T.ravel()
    inputs, out = np.random.default_rng(2).standard_normal((samples, 70)), np.zeros((samples, 80), np.float32)
    given = [np.array([step.row()]), np.array([70, 80]), np.zeros(0, int), numbers, words]
    assert kernels.real_steps(*given, inputs.astype(np.float32), out)
    np.testing.assert_allclose(out, inputs @ np.where(signs, 1, -1).T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_real_steps_say_whether_an_input_is_not_finite(value):
    name = "real_steps dense 16 70"
    arguments = [part.copy() for part in VECTORS[name]]
    assert kernels.real_steps(*arguments)
    arguments[5][-1, -1] = value
    assert not kernels.real_steps(*arguments)


FIELDS = list(RealStep(*range(9)).__dict__)


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in ("direct", "other", "words")])
@pytest.mark.parametrize("name", ["real_steps SUMS 3 6 0", "real_steps PER_CHANNEL 1 37 0"])
def test_steps_that_point_outside_are_refused(name, field):
    for value in (-1, 2**20, 2**62):
        steps, *rest = VECTORS[name]
        step = RealStep.of(steps[0])
        setattr(step, field, value)
        with pytest.raises(ValueError, match="must"):
            kernels.real_steps(np.array([step.row()]), *rest)


def test_a_transpose_exchanges_height_and_length_of_one_channel():
    steps, *rest = VECTORS["real_steps transpose add scale"]
    for change in ({"rows": 2, "columns": 10}, {"rows": 2, "columns": 5, "units": 2}, {"rows": 4, "columns": 1}):
        step = RealStep.of(steps[0])
        for field, value in change.items():
            setattr(step, field, value)
        with pytest.raises(ValueError, match="a transpose must exchange height and length"):
            kernels.real_steps(np.stack([step.row(), *steps[1:]]), *rest)


@pytest.mark.parametrize("name", ["real_steps SUMS 3 6 0", "real_steps LARGEST 1 5 0"])
def test_pixels_outside_of_the_image_are_refused(name):
    for place, what, limit in ((0, "rows", 4), (9, "columns", 3)):
        for wrong in (-2, limit + 1):
            arguments = [part.copy() for part in VECTORS[name]]
            arguments[2][place] = wrong
            with pytest.raises(ValueError, match=f"{what} must be from -1 to {limit}, got {wrong}"):
                kernels.real_steps(*arguments)


@pytest.mark.skipif(not hasattr(kernels, "__file__"), reason="kernels are not compiled")
@pytest.mark.parametrize("seed", range(100))
def test_random_arguments_are_taken_or_refused(seed):
    generator = np.random.default_rng(seed)
    for kernel in sorted({name.split()[0] for name in VECTORS}):
        name = generator.choice([name for name in VECTORS if name.split()[0] == kernel])
        with contextlib.suppress(ValueError, TypeError):
            called(kernels, name, spoiled(VECTORS[name], generator))
