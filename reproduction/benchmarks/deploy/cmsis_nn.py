"""Networks of int8 layers as C that calls CMSIS-NN, as TensorFlow Lite for Microcontrollers does."""

import math
from dataclasses import dataclass, field

import numpy as np

from benchmarks.deploy.tiny_networks import Layer


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
