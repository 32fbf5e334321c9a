"""Generated C on emulated microcontrollers."""

import numpy as np
import pytest
from compiled_c import built, needs_compiler, output_step, results
from cortex_m import CORES, needs_cortex_m, run

from qpsbgd.deploy import to_c

pytestmark = [pytest.mark.slow, needs_cortex_m]


@needs_compiler
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    "name",
    [
        "dense",
        "pool, norm",
        "norm, pool",
        "8-bit images",
        "8 bits, norm, pool",
        "8 bits, groups",
        "hardtanh",
        "real images",
    ],
)
def test_a_microcontroller_computes_what_torch_computes(name, core, tmp_path, network_of):
    """Compiled without a warning, with the self-test; flash and stack are those that the compiler announced."""
    network = network_of(name)
    compiler = f"arm-none-eabi-gcc {' '.join(CORES[core].flags)} -mthumb -O2"
    source = to_c(network.packed, tmp_path, compiler=compiler)
    header, code, self_test = source.files[:3]
    done = run(core, header, [code, self_test], network.inputs)
    library = 32 if source.integer else 300  # memset, or the library's floating-point functions
    assert source.stack_bytes - 24 <= done.stack <= source.stack_bytes + library
    alone = run(core, header, [code], network.inputs)
    assert (
        abs(source.flash_bytes + source.code_bytes - alone.flash)
        < (0.05 if source.integer else 0.5) * alone.flash + 300
    )
    expected = network.outputs.reshape(len(done.outputs), -1)
    np.testing.assert_allclose(done.outputs * output_step(source), expected, rtol=1e-4, atol=1e-5)
    classes, outputs = results(built(source), network.inputs)
    assert done.classes == classes
    if source.integer:
        np.testing.assert_array_equal(done.outputs, outputs)
