"""What do one-bit networks take on a Cortex-M, beside int8 through CMSIS-NN and float through emlearn?

MLPerf Tiny's four networks (ResNet-8, DS-CNN, MobileNetV1 0.25, the dense autoencoder) with one bit per weight in all
layers and activations of 8 bits, and three small networks of signs, with random weights and norms, are written by
`to_c`, compiled for every core with -O2 and run under QEMU; outputs are compared with torch's. The same networks, with
random int8 weights and one scale per channel, call CMSIS-NN as TensorFlow Lite for Microcontrollers does; their
activations share one arena. Dense networks are also converted by emlearn.

Flash is code, tables and the library functions they call; RAM static buffers, without the caller's inputs and outputs;
instructions are counted under `-icount`: no pipeline, no waiting for flash.

    apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm
    python benchmarks/deploy/microcontrollers.py ["code=one bit" ...] [--again] [--cmsis-nn FOLDER] [--accuracy FOLDER]

writes results/microcontrollers.json. `--accuracy FOLDER` also computes the accuracy of mlperf_training.py's networks in
C, on this computer; CIFAR-10 as in networks.py. The folder of
CMSIS-NN has ARM's headers in Include/ and its library, built as ARM's README has it, in CORE/libcmsis-nn.a for m3
and m4; emlearn comes from PyPI.
"""

import hashlib
import math
import re
import subprocess
import sys
import tempfile
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from benchmarks.deploy.cmsis_nn import Int8
from benchmarks.deploy.tiny_networks import NETWORKS, one_bit
from benchmarks.study import arguments
from benchmarks.training.training_parts import cifar
from qpsbgd.deploy import load_packed, to_c

sys.path.insert(0, str(Path(__file__).parents[3] / "packages" / "qpsbgd" / "tests" / "shared"))
from compiled_c import built, output_step, results
from cortex_m import TOOLS, run

SAMPLES = 2

LEAST_RAM = {"CNN 32-64, norm then pool": 3300, "ResNet-8": 23000, "MobileNetV1 0.25": 21000}
"""Little more than the least bytes into which `to_c` brings a network by bands of rows."""


def one_bit_row(name, core, folder, _, *, ram=None):
    torch.manual_seed(0)
    activations, shape, layers = NETWORKS[name]
    model, samples = one_bit(activations, shape, layers), torch.randn(SAMPLES, *shape)
    with torch.inference_mode():
        expected = model(samples).numpy().reshape(SAMPLES, -1)
    source = to_c(model, folder, input_shape=shape, ram=ram and ram[name])
    done = run(core, source.files[0], source.files[1:2], samples.numpy())
    outputs = (done.outputs * output_step(source)).astype(np.float32)
    return done, {
        "outputs": expected.size,
        "outputs equal to torch's": int((outputs == expected).sum()),
        "largest difference": float(abs(outputs - expected).max()),
        "largest output": float(abs(expected).max()),
        "integer": source.integer,
    }


def int8_row(name, core, folder, library):
    _, shape, layers = NETWORKS[name]
    network = Int8()
    last, inputs = network.layers(shape, layers), math.prod(shape)
    samples = np.random.default_rng(0).standard_normal((SAMPLES, inputs)).astype(np.float32)
    options = {"libraries": [library / core / "libcmsis-nn.a"], "strict": False}
    options |= {"flags": ("-O2", "-w", f"-I{library / 'Include'}")}
    scratch = None
    for _ in range(2):
        for file, text in zip(("network.h", "network.c"), network.source(last, inputs, scratch), strict=True):
            (folder / file).write_text(text)
        done = run(core, folder / "network.h", [folder / "network.c"], samples, **options)
        scratch = int(done.outputs.max()) if scratch is None else scratch
    revision = re.search(r"Revision:\s*(\S+)", (library / "Include" / "arm_nnfunctions.h").read_text())[1]
    digest = hashlib.sha256(done.outputs.tobytes()).hexdigest()[:16]  # the same on every core
    return done, {"version": revision, "digest": digest, "distinct outputs": len(np.unique(done.outputs))}


def emlearn_row(name, core, folder, _):
    """A dense network with ReLU in float, as emlearn writes it."""
    import emlearn
    from emlearn.net import c_generate_net_loadable

    _, shape, layers = NETWORKS[name]
    generator, widths = np.random.default_rng(0), [*shape, *(layer.channels for layer in layers)]
    weights = [generator.standard_normal(sizes) * math.sqrt(2 / sizes[0]) for sizes in pairwise(widths)]
    biases = [0.1 * generator.standard_normal(width) for width in widths[1:]]
    values = samples = generator.standard_normal((SAMPLES, *shape)).astype(np.float32)
    for layer, weight, bias in zip(layers, weights, biases, strict=True):
        values = values @ weight + bias
        values = values if layer.linear else values.clip(0)
    activations = ["identity" if layer.linear else "relu" for layer in layers]
    takes, gives = f"const float input[{widths[0]}]", f"float output[{widths[-1]}]"
    (folder / "network.h").write_text(
        f"#include <stdint.h>\n#define NETWORK_OUTPUTS {widths[-1]}\n"
        f"int32_t network_run({takes}, {gives});\nint32_t network_classify({takes});\n"
    )
    (folder / "network.c").write_text(
        f'#include "network.h"\n{c_generate_net_loadable(activations, weights, biases, "net")}\n'
        f"int32_t network_run({takes}, {gives})\n"
        f"{{\n    return -net_regress(input, {widths[0]}, output, {widths[-1]});\n}}\n"
        f"int32_t network_classify({takes})\n{{\n    return net_predict(input, {widths[0]});\n}}\n"
    )
    flags = ("-O2", "-w", f"-I{Path(emlearn.__file__).parent}")
    done = run(core, folder / "network.h", [folder / "network.c"], samples, flags=flags, strict=False)
    np.testing.assert_allclose(done.outputs, values, rtol=1e-3, atol=1e-4)
    return done, {"version": version("emlearn")}


CODES = {
    "one bit": (one_bit_row, ("m4", "m3", "m33", "m55"), tuple(NETWORKS)),
    "one bit, by bands": (partial(one_bit_row, ram=LEAST_RAM), ("m4",), tuple(LEAST_RAM)),
    "int8, CMSIS-NN": (int8_row, ("m4", "m3"), tuple(NETWORKS)),
    "float, emlearn": (emlearn_row, ("m4", "m3"), ("dense 64-128-10", "autoencoder")),
}
"""What is measured of which networks on which cores."""


def accuracies_in_c(packed):
    """The share of CIFAR-10's test images that the C of every packed network in a folder gets right."""
    (_, _, images, labels), shares = cifar(), {}
    images, labels = images.permute(0, 3, 1, 2).float().numpy() / 256, labels.tolist()
    for path in sorted(packed.glob("*.safetensors")):
        with tempfile.TemporaryDirectory() as folder:
            program, parts = built(to_c(load_packed(path), folder), "-O2"), np.array_split(images, 20)
            classes = [number for part in parts for number in results(program, part)[0]]
        shares[path.stem] = float(np.mean(np.equal(classes, labels)))
    return shares


def measure(job, library):
    """The row of a network's code on a core."""
    with tempfile.TemporaryDirectory() as folder:
        done, figures = CODES[job["code"]][0](job["network"], job["core"], Path(folder), library)
    sizes = {"flash": done.flash, "RAM": done.ram, "stack": done.stack}
    return job | sizes | {"instructions": round(float(np.mean(done.instructions)))} | figures


def main():
    options, rows = arguments("microcontrollers", cmsis_nn={"type": Path}, accuracy={"type": Path})
    if options.accuracy:
        rows.content["accuracy in C"] = accuracies_in_c(options.accuracy)
    rows.content["tools"] = [
        subprocess.run([tool, "--version"], capture_output=True, text=True).stdout.split("\n")[0] for tool in TOOLS
    ]
    jobs = [
        {"network": network, "code": code, "core": core}
        for code, (_, cores, networks) in CODES.items()
        for core in cores
        for network in networks
    ]
    rows.measured(partial(measure, library=options.cmsis_nn), options.only(jobs))


if __name__ == "__main__":
    main()
