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
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
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
from cortex_m import TOOLS, run

SAMPLES = 2


@dataclass(frozen=True)
class Layer:
    """A layer of a network: its kind, channels, window (height, width), stride, and padding above and on the left."""

    kind: str
    channels: int = 0
    window: tuple[int, int] = (3, 3)
    stride: int = 1
    padding: tuple[int, int] = (1, 1)
    linear: bool = False


convolution, depthwise, dense = partial(Layer, "convolution"), partial(Layer, "depthwise"), partial(Layer, "dense")
pointwise = partial(convolution, window=(1, 1), padding=(0, 0))
LAST = {"linear": True}


def separable(*channels_and_strides):
    layers = [(depthwise(stride=stride), pointwise(channels)) for channels, stride in channels_and_strides]
    return [layer for pair in layers for layer in pair]


MOBILE = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1))
NETWORKS = {
    "dense 64-128-10": ("signs", (64,), [dense(128), dense(10, **LAST)]),
    "CNN 32-64, norm then pool": (
        *("signs", (1, 28, 28)),
        [convolution(32), Layer("max pool"), convolution(64), Layer("max pool"), dense(10, **LAST)],
    ),
    "CNN 32-64, pool then norm": (
        *("signs, pools first", (1, 28, 28)),
        [convolution(32), Layer("max pool"), convolution(64), Layer("max pool"), dense(10, **LAST)],
    ),
    "ResNet-8": (
        *("8 bits", (3, 32, 32)),
        [
            convolution(16),
            *(Layer("residual", 16), Layer("residual", 32, stride=2), Layer("residual", 64, stride=2)),
            *(Layer("average pool"), dense(10, **LAST)),
        ],
    ),
    "DS-CNN": (
        *("8 bits", (1, 49, 10)),
        [
            convolution(64, (10, 4), 2, (5, 1)),
            *separable(*[(64, 1)] * 4),
            *(Layer("average pool"), dense(12, **LAST)),
        ],
    ),
    "MobileNetV1 0.25": (
        *("8 bits", (3, 96, 96)),
        [convolution(8, stride=2), *separable(*MOBILE), Layer("average pool"), dense(2, **LAST)],
    ),
    "autoencoder": (
        *("8 bits", (640,)),
        [dense(n) for n in (128, 128, 128, 128, 8, 128, 128, 128, 128)] + [dense(640, **LAST)],
    ),
}
"""For every network its activations, the shape of a sample and its layers; all but the last have a norm and a ReLU."""


def one_bit(activations, shape, layers):
    """The torch network of these layers, with random norms, in evaluation mode."""
    signs = activations != "8 bits"
    activation = SignActivation if signs else QuantActivation
    modules, n, images = [SignActivation() if signs else QuantActivation(signed=True)], shape[0], len(shape) == 3
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        if layer.kind in ("convolution", "depthwise"):
            m, groups = (layer.channels, 1) if layer.kind == "convolution" else (n, n)
            options = {"stride": layer.stride, "padding": layer.padding, "groups": groups}
            behind = [nn.BatchNorm2d(m), activation()]
            if following.kind == "max pool":
                behind.insert(0 if activations == "signs, pools first" else 1, nn.MaxPool2d(2))
            modules += [BinaryConv2d(n, m, layer.window, **options), *behind]
            n = m
        elif layer.kind == "residual":
            modules.append(residual(n, layer.channels, layer.stride))
            n = layer.channels
        elif layer.kind == "average pool":
            modules += [nn.AdaptiveAvgPool2d(1), QuantActivation()]
        elif layer.kind == "dense":
            if images:
                modules, images = [*modules, nn.Flatten()], False
                n = modules_width(modules, shape)
            modules.append(BinaryLinear(n, layer.channels))
            modules += [] if layer.linear else [nn.BatchNorm1d(layer.channels), activation()]
            n = layer.channels
    return shaken(nn.Sequential(*modules))


def modules_width(modules, shape):
    with torch.inference_mode():
        return nn.Sequential(*modules).eval()(torch.zeros(1, *shape)).shape[1]


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


@dataclass
class Tensor8:
    """An int8 image in the arena: its height, width and channels, and from which call to which it is needed."""

    height: int
    width: int
    channels: int
    begin: int
    end: int = 0
    name: str = ""

    @property
    def size(self):
        return self.height * self.width * self.channels

    @property
    def dims(self):
        return f"{{1, {self.height}, {self.width}, {self.channels}}}"


@dataclass
class Int8:
    """The C code of a network of int8 layers, one call of CMSIS-NN after the other."""

    seed: int = 0
    constants: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    tensors: list[Tensor8] = field(default_factory=list)

    def __post_init__(self):
        self.generator = np.random.default_rng(self.seed)

    def array(self, kind, name, values):
        name = f"{name}{len(self.calls)}"
        self.constants.append(f"static const {kind} {name}[] = {{{', '.join(map(str, values))}}};")
        return name

    def weighted(self, source, layer):
        """A convolution, depthwise convolution or dense layer; what it gives."""
        kind, (high, wide) = layer.kind, layer.window
        if kind == "dense":
            source = Tensor8(1, 1, source.size, source.begin, source.end, source.name)
            target, inputs = self.tensor(1, 1, layer.channels), source.channels
        else:
            rows, columns = (
                (n + 2 * side - window) // layer.stride + 1
                for n, side, window in zip((source.height, source.width), layer.padding, layer.window, strict=True)
            )
            target = self.tensor(rows, columns, layer.channels or source.channels)
            inputs = high * wide * (source.channels if kind == "convolution" else 1)
        units = target.channels
        weights = self.array("int8_t", "weights", self.generator.integers(-127, 128, inputs * units))
        bias = self.array("int32_t", "bias", self.generator.integers(-999, 1000, units))
        fraction, shift = math.frexp(1.5 / (math.sqrt(inputs) * 73))  # outputs vary about as much as inputs
        factor, (up, left), step = round(fraction * 2**31), layer.padding, layer.stride
        tile = f"{{{step}, {step}}}, {{{left}, {up}}}, {{1, 1}}, {{-128, 127}}"
        before = f"const cmsis_nn_dims before = {source.dims}, after = {target.dims}, bias_dims = {{1, 1, 1, {units}}};"
        if kind == "dense":
            call, filters = "arm_fully_connected_s8", f"{{{inputs}, 1, 1, {units}}}"
            options = "const cmsis_nn_fc_params options = {128, 0, -128, {-128, 127}};"
            scale = f"const cmsis_nn_per_tensor_quant_params scale = {{{factor}, {shift}}};"
            size = "arm_fully_connected_s8_get_buffer_size(&filter)"
        else:
            factors, shifts = (
                f"(int32_t *){self.array('int32_t', name, [value] * units)}"
                for name, value in (("factors", factor), ("shifts", shift))
            )
            scale = f"const cmsis_nn_per_channel_quant_params scale = {{{factors}, {shifts}}};"
            if kind == "convolution":
                call, filters = "arm_convolve_wrapper_s8", f"{{{units}, {high}, {wide}, {source.channels}}}"
                options = f"const cmsis_nn_conv_params options = {{128, -128, {tile}}};"
            else:
                call, filters = "arm_depthwise_conv_wrapper_s8", f"{{1, {high}, {wide}, {units}}}"
                options = f"const cmsis_nn_dw_conv_params options = {{128, -128, 1, {tile}}};"
            size = f"{call}_get_buffer_size(&options, &before, &filter, &after)"
        head = f"{before} const cmsis_nn_dims filter = {filters}; {options} {scale}"
        self.add(
            f"{head} failed |= {call}(&scratch, &options, &scale, &before, {source.name}, &filter, "
            f"{weights}, &bias_dims, {bias}, &after, {target.name})",
            f"{head} (void)scale; (void)bias_dims; sizes[{len(self.calls)}] = {size}",
            source,
        )
        return target

    def pooled(self, source, *, average):
        high, wide = (source.height, source.width) if average else (2, 2)
        target = self.tensor(source.height // high, source.width // wide, source.channels)
        head = (
            f"const cmsis_nn_dims before = {source.dims}, filter = {{1, {high}, {wide}, 1}}, after = {target.dims}; "
            f"const cmsis_nn_pool_params options = {{{{{wide}, {high}}}, {{0, 0}}, {{-128, 127}}}};"
        )
        call = "arm_avgpool_s8" if average else "arm_max_pool_s8"
        size = f"arm_avgpool_s8_get_buffer_size({target.width}, {source.channels})" if average else "0"
        self.add(
            f"{head} failed |= {call}(&scratch, &options, &before, {source.name}, &filter, &after, {target.name})",
            f"sizes[{len(self.calls)}] = {size}",
            source,
        )
        return target

    def sum(self, first, second):
        target = self.tensor(first.height, first.width, first.channels)
        same = "128, 1073741824, 0"
        self.add(
            f"failed |= arm_elementwise_add_s8({first.name}, {second.name}, {same}, {same}, 20, {target.name}, -128, "
            f"1073741824, -19, -128, 127, {target.size})",
            f"sizes[{len(self.calls)}] = 0",
            first,
            second,
        )
        return target

    def tensor(self, height, width, channels):
        made = Tensor8(height, width, channels, len(self.calls), len(self.calls), f"tensor{len(self.calls)}")
        self.tensors.append(made)
        return made

    def add(self, call, size, *sources):
        for tensor in self.tensors:
            if tensor.name in [source.name for source in sources]:
                tensor.end = len(self.calls)
        self.calls.append(f"    {{ {call}; }}")
        self.buffers.append(f"    {{ {size}; }}")

    def layers(self, shape, layers):
        """The calls of all layers; the network's outputs."""
        channels, height, width = shape if len(shape) == 3 else (shape[0], 1, 1)
        value = Tensor8(height, width, channels, 0, 0, "input")
        for layer in layers:
            if layer.kind == "residual":
                first = Layer("convolution", layer.channels, stride=layer.stride)
                body = self.weighted(self.weighted(value, first), Layer("convolution", layer.channels))
                if layer.stride > 1:
                    value = self.weighted(value, Layer("convolution", layer.channels, (1, 1), layer.stride, (0, 0)))
                value = self.sum(body, value)
            elif layer.kind.endswith("pool"):
                value = self.pooled(value, average=layer.kind == "average pool")
            else:
                value = self.weighted(value, layer)
        self.tensors = [tensor for tensor in self.tensors if tensor.name != value.name]
        return value

    def arena(self):
        """Where tensors stand in one arena, the largest placed first, and its bytes."""
        places = {}
        for tensor in sorted(self.tensors, key=lambda other: -other.size):
            meets = [other for other in self.tensors if other.name in places]
            meets = [other for other in meets if other.begin <= tensor.end and tensor.begin <= other.end]
            spans = sorted((places[other.name], places[other.name] + other.size) for other in meets)
            place = 0
            for begin, end in spans:
                if place + tensor.size <= begin:
                    break
                place = max(place, -(-end // 4) * 4)
            places[tensor.name] = place
        return places, max((places[other.name] + other.size for other in self.tensors), default=1)

    def source(self, last, inputs, scratch):
        """Header and source; without a size of the scratch memory, a program that gives what every call needs."""
        kind, count = ("int8_t", last.size) if scratch is not None else ("int32_t", len(self.calls))
        takes, gives = f"const int8_t input[{inputs}]", f"{kind} output[{count}]"
        header = (
            f"#include <stdint.h>\n#define NETWORK_INPUTS {inputs}\n#define NETWORK_OUTPUTS {count}\n"
            f"#define NETWORK_INPUT_STEP 0.03125\n"
            f"int32_t network_run({takes}, {gives});\nint32_t network_classify({takes});\n"
        )
        body = [f"int32_t network_run({takes}, {gives})", "{"]
        places, size = self.arena()
        if scratch is None:
            body += ["    int32_t *sizes = output; (void)input;", *self.buffers, "    return 0;"]
            memory = ""
        else:
            memory = f"static int8_t arena[{size}] __attribute__((aligned(4)));\n"
            memory += f"static int8_t buffer[{scratch}] __attribute__((aligned(4)));\n" if scratch else ""
            names = [f"    int8_t *const {name} = arena + {place};" for name, place in places.items()]
            given = "{buffer, sizeof buffer}" if scratch else "{0, 0}"
            body += [*names, f"    int8_t *const {last.name} = output;"]
            body += [f"    const cmsis_nn_context scratch = {given};", "    int failed = 0;", *self.calls]
            body += ["    return failed ? -1 : 0;"]
        classify = (
            f"int32_t network_classify({takes})\n{{\n    static {kind} output[NETWORK_OUTPUTS];\n"
            "    int32_t best = 0;\n"
            "    if (network_run(input, output) < 0)\n        return -1;\n"
            "    for (int32_t k = 1; k < NETWORK_OUTPUTS; k++)\n        if (output[k] > output[best])\n"
            "            best = k;\n    return best;\n}\n"
        )
        includes = '#include "network.h"\n#include "arm_nnfunctions.h"\n'
        constants = "\n".join(self.constants)
        return header, "\n".join([includes, constants, memory, *body, "}", classify])


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
