"""The kernels of inference compute what follows from their definitions, and refuse what does not fit."""

import contextlib
import itertools
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from inference_cases import CASES
from kernel_calls import broken, called, run, spoiled

from qpsbgd_runtime.kernels import kernels
from qpsbgd_runtime.real_steps import Kind, RealStep

VECTORS = {name: arguments for name, (arguments, _) in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_what_follows_from_its_definition(name):
    arguments, expected = CASES[name]
    returned, arrays = run(kernels, name, arguments)
    assert returned is (None if name.split()[0] in ("bit_layer", "byte_layer") else True)
    np.testing.assert_allclose(arrays[-1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", VECTORS)
def test_a_prepared_kernel_takes_inputs_and_outputs_alone(name):
    kernel = name.split()[0]
    place = 5 if kernel == "real_steps" else 0
    arguments = list(VECTORS[name])
    inputs, out = arguments[place], arguments[-1].copy()
    expected, arrays = run(kernels, name, VECTORS[name])
    arguments[place], arguments[-1] = inputs[:0], out[:0]
    prepared = getattr(kernels, f"prepare_{kernel}")(*arguments)
    del arguments
    assert prepared(inputs, out) == expected
    np.testing.assert_array_equal(out, arrays[-1])
    with pytest.raises(ValueError, match="must have shape"):
        prepared(inputs, out[:-1])
    with pytest.raises(TypeError, match="incompatible function arguments"):
        prepared(inputs, out.astype(np.complex128))


@pytest.mark.parametrize("name", {name.split()[0]: name for name in VECTORS}.values())
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
    arguments = VECTORS[name]
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


FIELDS = [field.name for field in fields(RealStep)]


@pytest.mark.parametrize("name", ["real_steps SUMS 3 6 0", "real_steps PER_CHANNEL 1 37 0"])
def test_steps_that_point_outside_are_refused(name):
    checked = [field for field in FIELDS if field not in ("direct", "other", "words")]
    for field, value in itertools.product(checked, (-1, 2**20, 2**62)):
        steps, *rest = VECTORS[name]
        changed = steps.copy()
        changed[0, FIELDS.index(field)] = value
        with pytest.raises(ValueError, match="must"):
            kernels.real_steps(changed, *rest)


def test_a_transpose_exchanges_height_and_length_of_one_channel():
    steps, *rest = VECTORS["real_steps transpose add scale"]
    for change in ({"rows": 2, "columns": 10}, {"rows": 2, "columns": 5, "units": 2}, {"rows": 4, "columns": 1}):
        changed = steps.copy()
        for field, value in change.items():
            changed[0, FIELDS.index(field)] = value
        with pytest.raises(ValueError, match="a transpose must exchange height and length"):
            kernels.real_steps(changed, *rest)


@pytest.mark.parametrize("name", ["real_steps SUMS 3 6 0", "real_steps LARGEST 1 5 0"])
def test_pixels_outside_of_the_image_are_refused(name):
    for place, what, limit in ((0, "rows", 4), (9, "columns", 3)):
        for wrong in (-2, limit + 1):
            arguments = [part.copy() for part in VECTORS[name]]
            arguments[2][place] = wrong
            with pytest.raises(ValueError, match=f"{what} must be from -1 to {limit}, got {wrong}"):
                kernels.real_steps(*arguments)


@pytest.mark.parametrize("kernel", sorted({name.split()[0] for name in VECTORS}))
def test_random_arguments_are_taken_or_refused(kernel):
    generator, names = np.random.default_rng(0), [name for name in VECTORS if name.split()[0] == kernel]
    for _ in range(60):
        name = generator.choice(names)
        with contextlib.suppress(ValueError, TypeError):
            called(kernels, name, spoiled(VECTORS[name], generator))


def test_without_the_compiled_module_an_import_says_what_to_install():
    code = "import sys; sys.modules['qpsbgd_runtime.kernels._kernels'] = None; import qpsbgd_runtime"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: qpsbgd-runtime") and "C++ compiler" in last and "install" in last
