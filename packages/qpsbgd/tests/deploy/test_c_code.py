import re
import subprocess

import numpy as np
import pytest
import torch
from compiled_c import COMPILERS, SANITIZED, STRICT, built, needs_compiler, output_step, ran, results
from torch import nn

from qpsbgd.deploy import load_packed, pack, to_c
from qpsbgd.nn import BinaryConv2d, BinaryLinear, SignActivation


@needs_compiler
def test_compiled_code_computes_what_torch_computes(network, tmp_path):
    source = to_c(network.packed, tmp_path, word_bits=64 if len(network.name) % 2 else 32)
    code = source.files[1].read_text()
    assert source.integer == (network.exact or network.name == "one dimension")  # whose last norm is folded
    assert ("float" in code or "double" in code) != source.integer and "malloc" not in code
    program = built(source, *(SANITIZED if source.integer else ()))
    assert ran(program, "", "--self-test").stdout == "self-test passed\n"
    classes, outputs = results(program, network.inputs)
    expected = network.outputs.reshape(len(outputs), -1)
    np.testing.assert_allclose(outputs * output_step(source), expected, rtol=1e-4, atol=1e-5)
    if source.integer:
        np.testing.assert_array_equal(classes, expected.argmax(1))


@needs_compiler
@pytest.mark.parametrize(
    ("flags", "word_bits"), [((), 64), (("-DQPSBGD_PORTABLE",), 32), (("-O3",), 64), (SANITIZED, 32)]
)
def test_the_sums_are_the_same_whole_numbers_in_every_build(dense, tmp_path, word_bits, flags):
    source = to_c(dense.model, tmp_path, word_bits=word_bits)
    _, outputs = results(built(source, *flags), dense.inputs)
    gain = dense.model[-1].gain
    np.testing.assert_array_equal(outputs, np.rint(dense.outputs / np.float32(gain)))


@needs_compiler
@pytest.mark.parametrize(("inputs", "word_bits"), [(96, 64), (480, 64), (512, 32), (1000, 32)])
def test_ones_are_counted_without_an_instruction_for_it_however_many_there_are(inputs, word_bits, tmp_path):
    layer = BinaryLinear(inputs, 40, gain=1.0)
    rows = torch.stack([layer.weight[0].sign(), -layer.weight[0].sign(), *torch.randn(9, inputs)]).detach()
    source = to_c(nn.Sequential(SignActivation(), layer), tmp_path, word_bits=word_bits)
    _, outputs = results(built(source, "-DQPSBGD_PORTABLE"), rows.numpy())
    signs = torch.where(rows >= 0, 1.0, -1.0)
    np.testing.assert_array_equal(outputs, layer(signs).detach().numpy())
    assert outputs[0, 0] == inputs and outputs[1, 0] == -inputs


@pytest.mark.parametrize("name", ["dense", "8 bits, groups"])
def test_sources_need_no_formats_of_the_headers_and_no_pixel_before_the_image(name, tmp_path, network_of):
    """Newlib's headers lack PRId64, and a pointer before an array is undefined even where nothing is read."""
    network = network_of(name)
    _, code, _, program = (
        file.read_text() for file in to_c(network.model, tmp_path, input_shape=network.input_shape).files
    )
    assert "PRI" not in program and "inttypes" not in program
    for loop in code.split("for (int32_t dx")[1:]:
        place = loop.find("pixel = in +")
        assert place < 0 or "y < 0" not in loop[place:].split("}")[0]


@needs_compiler
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *((name, SANITIZED) for name in ("hardtanh", "a pool first", "dense")),
        ("real inputs", ("-O3", "-ffast-math")),
    ],
)
def test_inputs_that_are_not_finite_are_refused(name, flags, tmp_path, network_of):
    network = network_of(name)
    program = built(to_c(network.model, tmp_path, input_shape=network.input_shape), *flags)
    for value in ("nan", "-nan", "inf", "-inf"):
        done = ran(program, " ".join(["1"] * (network.inputs[0].size - 1) + [value]))
        assert (done.returncode, done.stdout) == (2, ""), value
        assert "sample 1: inputs must be finite numbers" in done.stderr


@needs_compiler
def test_a_sample_that_ends_early_is_named_with_what_was_read(tmp_path):
    program = built(to_c(nn.Sequential(nn.Linear(3, 2)), tmp_path, input_shape=(3,)))
    for text, sample, count in (
        ("a b", 1, 0),
        ("1 2", 1, 2),
        ("1,2,3", 1, 1),
        ("1 2 3\n4 5 6\n7", 3, 1),
        ("1 2 3 x", 2, 0),
    ):
        done = ran(program, text)
        assert done.returncode == 1 and len(done.stdout.splitlines()) == sample - 1, text
        assert re.search(rf"sample {sample}: 3 numbers.* {count} read", done.stderr), text
    for text in ("", "\n", "1 2 3\n"):
        assert (ran(program, text).returncode, ran(program, text).stderr) == (0, "")


@needs_compiler
@pytest.mark.parametrize("flags", [(), ("-DQPSBGD_UNCHECKED",)])
def test_an_input_that_is_not_finite_has_no_class_unless_the_check_is_off(tmp_path, flags, network_of):
    source = to_c(network_of("a pool first").model, tmp_path, input_shape=(3, 12))
    program = tmp_path / "asked.c"
    program.write_text(
        '#include <math.h>\n#include <stdio.h>\n#include "network.h"\nint main(void) {\n'
        "    float input[NETWORK_INPUTS] = {0}, output[NETWORK_OUTPUTS];\n"
        '    printf("%d %d ", (int)network_run(input, output), (int)network_classify(input) >= 0);\n'
        "    input[3] = NAN;\n"
        '    printf("%d %d", (int)network_run(input, output), (int)network_classify(input) >= 0);\n'
        "    return 0;\n}\n"
    )
    files = [str(source.files[1]), str(program), "-o", str(tmp_path / "asked"), "-lm"]
    subprocess.run([COMPILERS[0], *STRICT, *flags, *files], check=True)
    said = subprocess.run([tmp_path / "asked"], capture_output=True, text=True, check=True).stdout
    assert said == ("0 1 0 1" if flags else "0 1 -1 0")


@needs_compiler
@pytest.mark.parametrize("name", ["dense", "relu"])
def test_flash_is_the_size_of_all_constant_arrays_whatever_a_compiler_makes_of_them(name, network_of, tmp_path):
    source = to_c(network_of(name).model, tmp_path)
    arrays = re.findall(r"^static const \w+ (\w+)\[", source.files[1].read_text(), re.MULTILINE)
    sizes = " + ".join(f"sizeof({array})" for array in arrays)
    program = tmp_path / "sizes.c"
    program.write_text(
        f'#include <stdio.h>\n#include "network.c"\nint main(void) {{ printf("%d", (int)({sizes})); }}\n'
    )
    subprocess.run([COMPILERS[0], *STRICT, str(program), "-o", str(tmp_path / "sizes"), "-lm"], check=True)
    counted = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout
    assert int(counted) == source.flash_bytes
    assert f"{source.flash_bytes} bytes of constants" in source.files[0].read_text()


def test_a_packed_file_becomes_the_same_code(dense, tmp_path):
    pack(dense.model, tmp_path / "net.safetensors")
    first = to_c(dense.model, tmp_path / "one")
    second = to_c(load_packed(tmp_path / "net.safetensors"), tmp_path / "two")
    for one, two in zip(first.files, second.files, strict=True):
        assert one.read_text() == two.read_text()


def test_options_that_cannot_be_meant_are_refused(dense, tmp_path):
    with pytest.raises(ValueError, match="C identifier"):
        to_c(dense.model, tmp_path, name="my net")
    with pytest.raises(ValueError, match="32 or 64"):
        to_c(dense.model, tmp_path, word_bits=16)
    with pytest.raises(ValueError, match="takes 70 numbers"):
        to_c(dense.model, tmp_path, input_shape=(71,))
    with pytest.raises(ValueError, match="positive sizes"):
        to_c(dense.model, tmp_path, input_shape=(-1, 70))
    images = nn.Sequential(BinaryConv2d(3, 2, 3))
    for shape in ((8, 8, 3), (1, 3, 8, 8)):
        with pytest.raises(ValueError, match=r"takes 3 channels, got .* per sample \(no batch, channels first\)"):
            to_c(images, tmp_path, input_shape=shape)
    with pytest.raises(ValueError, match="give input_shape"):
        to_c(nn.Sequential(BinaryConv2d(1, 2, 3)), tmp_path)
    with pytest.raises(ValueError, match="no layers"):
        to_c(nn.Sequential(nn.Flatten()), tmp_path, input_shape=(4,))
    assert not list(tmp_path.iterdir())
