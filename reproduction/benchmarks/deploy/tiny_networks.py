"""MLPerf Tiny's four networks and three small networks of signs, as lists of layers and with one bit per weight."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from benchmarks.deploy.mlperf_training import residual
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation, SignActivation


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
