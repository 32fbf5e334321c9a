"""What do one-bit networks take on a Cortex-M?

MLPerf Tiny's four networks (ResNet-8, DS-CNN, MobileNetV1 0.25, the dense autoencoder) with one bit per weight in all
layers and activations of 8 bits, and three small networks of signs, with random weights and norms, are written by
`to_c`, compiled for every core with -O2 and run under QEMU; outputs are compared with torch's.

Flash is code, tables and the library functions they call; RAM static buffers, without the caller's inputs and outputs;
instructions are counted under `-icount`: no pipeline, no waiting for flash.

    apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm
    python benchmarks/deploy/microcontrollers.py ["code=one bit" ...] [--again] [--accuracy FOLDER]

writes results/microcontrollers.json, whose rows of int8 networks through CMSIS-NN and of float ones through emlearn are
by microcontrollers.py of commit af1c5b87. `--accuracy FOLDER` also computes the accuracy of mlperf_training.py's
networks in C, on this computer; CIFAR-10 as in networks.py.
"""

import subprocess
import sys
import tempfile
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.deploy.mlperf_training import residual
from benchmarks.study import arguments
from benchmarks.training.training_parts import cifar
from qpsbgd.deploy import load_packed, to_c
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation, SignActivation

sys.path.insert(0, str(Path(__file__).parents[3] / "packages" / "qpsbgd" / "tests" / "shared"))
from compiled_c import built, output_step, results
from cortex_m import CORES, TOOLS, run

SAMPLES = 2


def layer(n, m, window=3, *, padding=1, activation=QuantActivation, **options):
    return [BinaryConv2d(n, m, window, padding=padding, **options), nn.BatchNorm2d(m), activation()]


def separable(n, *channels_and_strides):
    """Depthwise and pointwise convolutions by turns."""
    layers = []
    for m, stride in channels_and_strides:
        layers += [*layer(n, n, stride=stride, groups=n), *layer(n, m, 1, padding=0)]
        n = m
    return layers


def dense(*widths, activation=QuantActivation):
    layers = []
    for n, m in pairwise(widths):
        layers += [BinaryLinear(n, m), nn.BatchNorm1d(m), activation()]
    return layers[:-2]


def signs(*, pool_first):
    """A CNN 32-64 of signs."""
    layers = [SignActivation()]
    for n, m in ((1, 32), (32, 64)):
        convolution, norm, activation = layer(n, m, activation=SignActivation)
        layers += [convolution, *([nn.MaxPool2d(2), norm] if pool_first else [norm, nn.MaxPool2d(2)]), activation]
    return [*layers, nn.Flatten(), *dense(3136, 10)]


def pooled(*layers, last):
    """A network of 8 bits that ends with the mean of all pixels and a dense layer."""
    pool = [nn.AdaptiveAvgPool2d(1), QuantActivation(), nn.Flatten()]
    return [QuantActivation(signed=True), *layers, *pool, *dense(*last)]


MOBILE = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1))
NETWORKS = {
    "dense 64-128-10": ((64,), lambda: [SignActivation(), *dense(64, 128, 10, activation=SignActivation)]),
    "CNN 32-64, norm then pool": ((1, 28, 28), partial(signs, pool_first=False)),
    "CNN 32-64, pool then norm": ((1, 28, 28), partial(signs, pool_first=True)),
    "ResNet-8": (
        (3, 32, 32),
        lambda: pooled(*layer(3, 16), residual(16, 16, 1), residual(16, 32, 2), residual(32, 64, 2), last=(64, 10)),
    ),
    "DS-CNN": (
        (1, 49, 10),
        lambda: pooled(*layer(1, 64, (10, 4), stride=2, padding=(5, 1)), *separable(64, *[(64, 1)] * 4), last=(64, 12)),
    ),
    "MobileNetV1 0.25": (
        (3, 96, 96),
        lambda: pooled(*layer(3, 8, stride=2), *separable(8, *MOBILE), last=(256, 2)),
    ),
    "autoencoder": ((640,), lambda: [QuantActivation(signed=True), *dense(640, *[128] * 4, 8, *[128] * 4, 640)]),
}
"""For every network the shape of a sample, and its layers."""


def shaken(model):
    """The model in evaluation mode with norms as training leaves them, some of negative weight."""
    generator = torch.Generator().manual_seed(1)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            count = norm.num_features
            with torch.no_grad():
                norm.running_mean.copy_(0.3 * torch.randn(count, generator=generator))
                norm.running_var.copy_(0.5 + torch.rand(count, generator=generator))
                signs = 1 - 2 * (torch.rand(count, generator=generator) < 0.2).float()
                norm.weight.copy_(signs * (0.5 + torch.rand(count, generator=generator)))
                norm.bias.copy_(0.3 * torch.randn(count, generator=generator))
    return model.eval()


BANDS = "one bit, by bands"
LEAST_RAM = {"CNN 32-64, norm then pool": 3300, "ResNet-8": 23000, "MobileNetV1 0.25": 21000}
"""Little more than the least bytes into which `to_c` brings a network by bands of rows."""


def measure(job):
    """The row of a network on a core, its outputs compared with torch's."""
    torch.manual_seed(0)
    shape, layers = NETWORKS[job["network"]]
    model, samples = shaken(nn.Sequential(*layers())), torch.randn(SAMPLES, *shape)
    with torch.inference_mode():
        expected = model(samples).numpy().reshape(SAMPLES, -1)
    with tempfile.TemporaryDirectory() as folder:
        source = to_c(model, folder, input_shape=shape, ram=LEAST_RAM[job["network"]] if job["code"] == BANDS else None)
        done = run(job["core"], source.files[0], source.files[1:2], samples.numpy())
    outputs = (done.outputs * output_step(source)).astype(np.float32)
    return job | {
        "flash": done.flash,
        "RAM": done.ram,
        "stack": done.stack,
        "instructions": round(float(np.mean(done.instructions))),
        "outputs": expected.size,
        "outputs equal to torch's": int((outputs == expected).sum()),
        "largest difference": float(abs(outputs - expected).max()),
        "largest output": float(abs(expected).max()),
        "integer": source.integer,
    }


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


def main():
    options, rows = arguments("microcontrollers", accuracy={"type": Path})
    if options.accuracy:
        rows.content["accuracy in C"] = accuracies_in_c(options.accuracy)
    rows.content["tools"] = [
        subprocess.run([tool, "--version"], capture_output=True, text=True).stdout.split("\n")[0] for tool in TOOLS
    ]
    jobs = [{"network": name, "code": "one bit", "core": core} for core in CORES for name in NETWORKS]
    jobs += [{"network": name, "code": BANDS, "core": "m4"} for name in LEAST_RAM]
    rows.measured(measure, options.only(jobs))


if __name__ == "__main__":
    main()
