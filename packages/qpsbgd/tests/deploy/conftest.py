from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from graph_networks import GRAPHS, trained
from torch import nn

from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryConv1d, BinaryConv2d, BinaryLinear, QuantActivation, SignActivation


def norm(units, *, dimensions=1):
    """A batch norm as after training, with negative and zero weights."""
    made = (nn.BatchNorm1d if dimensions == 1 else nn.BatchNorm2d)(units)
    with torch.no_grad():
        made.weight.normal_()
        made.weight[::5] = 0
        made.bias.normal_(std=0.3)
        made.running_mean.normal_(std=0.3)
        made.running_var.uniform_(0.3, 3)
    return made


def biased(layer):
    nn.init.normal_(layer.bias, std=0.2)
    return layer


def scaled(layer):
    nn.init.normal_(layer.scale)
    return layer


@dataclass
class Network:
    """A model with random parameters, inputs (B, …) and what torch computes of them."""

    model: nn.Module
    inputs: np.ndarray
    exact: bool
    packed_shape: tuple | None = None  # where packing needs it
    name: str = ""

    @property
    def packed(self):
        """The packed form, made once for all tests that write it."""
        return packed(self.name)

    @property
    def input_shape(self):
        return self.inputs.shape[1:]

    @property
    def outputs(self):
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            with torch.no_grad():
                return self.model.eval()(torch.from_numpy(self.inputs)).numpy()
        finally:
            for module, mode in modes:
                module.training = mode

    def check(self, outputs):
        assert outputs.dtype == np.float32 and outputs.shape == self.outputs.shape
        if self.exact:
            np.testing.assert_array_equal(outputs, self.outputs)
        else:
            np.testing.assert_allclose(outputs, self.outputs, rtol=1e-4, atol=1e-5)


BINARY = {
    "dense": lambda: [SignActivation(), BinaryLinear(70, 130), norm(130), SignActivation(), BinaryLinear(130, 9)],
    "one unit": lambda: [SignActivation(), BinaryLinear(70, 1, gain=1), SignActivation(), BinaryLinear(1, 2)],
    "sign at the end": lambda: [SignActivation(), BinaryLinear(70, 64), norm(64), SignActivation()],
    "bias and activations": lambda: [
        *(SignActivation(), biased(BinaryLinear(70, 65, True)), nn.Hardtanh(), norm(65), nn.Hardtanh()),
        *(nn.Dropout(0.5), SignActivation(), biased(BinaryLinear(65, 7, True, gain=0.3))),
    ],
}
REAL = {
    "real inputs": lambda: [BinaryLinear(70, 90), norm(90), SignActivation(), BinaryLinear(90, 9)],
    "real layers at both ends": lambda: [
        *(nn.Linear(70, 40), norm(40), SignActivation(), BinaryLinear(40, 66), norm(66), SignActivation()),
        nn.Linear(66, 5),
    ],
    "hardtanh": lambda: [biased(BinaryLinear(70, 50, True)), norm(50), nn.Hardtanh(), BinaryLinear(50, 9), norm(9)],
    "relu": lambda: [norm(70), BinaryLinear(70, 50), norm(50), nn.ReLU(), BinaryLinear(50, 9), nn.ReLU6()],
    "learned scales": lambda: [
        *(SignActivation(), scaled(BinaryLinear(70, 31, scale="learned")), norm(31), SignActivation()),
        *(scaled(BinaryLinear(31, 20, scale="learned", bias=True)), nn.ReLU()),
        *(scaled(BinaryLinear(20, 14, bits=2, scale="learned")), nn.Hardtanh()),
        scaled(BinaryLinear(14, 9, scale="learned")),
    ],
    "several bits": lambda: [BinaryLinear(70, 30, bits=3), norm(30), SignActivation(), BinaryLinear(30, 9, bits=2)],
    "norm of bits": lambda: [SignActivation(), norm(70), BinaryLinear(70, 5), norm(5)],
}
BINARY_IMAGES = {
    "convolutions": lambda: [
        *(SignActivation(), BinaryConv2d(2, 70, 3, padding=1), norm(70, dimensions=2), SignActivation()),
        *(BinaryConv2d(70, 6, (3, 2), stride=(2, 1)), norm(6, dimensions=2), SignActivation(), nn.Flatten()),
        BinaryLinear(60, 4),
    ],
    "groups and dilation": lambda: [
        *(SignActivation(), BinaryConv2d(2, 12, 2, groups=2), SignActivation()),
        *(BinaryConv2d(12, 12, 3, groups=12, padding=2, dilation=2), norm(12, dimensions=2), SignActivation()),
        biased(BinaryConv2d(12, 3, 1, bias=True)),
    ],
    "same padding": lambda: [SignActivation(), BinaryConv2d(2, 3, 4, padding="same"), SignActivation()],
    "pool, norm": lambda: [
        *(SignActivation(), BinaryConv2d(2, 20, 3, padding=1), nn.MaxPool2d(2), norm(20, dimensions=2)),
        *(SignActivation(), nn.Flatten(), BinaryLinear(180, 3)),
    ],
    "norm, pool": lambda: [
        *(SignActivation(), BinaryConv2d(2, 20, 3, padding=1), norm(20, dimensions=2), nn.Hardtanh()),
        *(nn.MaxPool2d(3, 2, padding=1), SignActivation(), nn.Flatten(), BinaryLinear(180, 3)),
    ],
    "sign, pool": lambda: [
        *(SignActivation(), BinaryConv2d(2, 20, 3), norm(20, dimensions=2), SignActivation(), nn.MaxPool2d(2)),
        *(nn.Flatten(), BinaryLinear(80, 3)),
    ],
    **{
        mode: lambda mode=mode: [
            *(SignActivation(), BinaryConv2d(2, 6, 3, padding=(2, 1), padding_mode=mode), SignActivation()),
            BinaryConv2d(6, 3, 4, padding="same", padding_mode=mode),
        ]
        for mode in ("reflect", "replicate", "circular")
    },
}
REAL_IMAGES = {
    "real images": lambda: [
        *(BinaryConv2d(2, 8, 3, padding=1), norm(8, dimensions=2), nn.Hardtanh(), nn.MaxPool2d(2)),
        *(
            nn.Conv2d(8, 4, 2, groups=2, padding="same", padding_mode="replicate"),
            nn.ReLU(),
            nn.AvgPool2d(2, padding=1),
        ),
        *(nn.Flatten(), BinaryLinear(16, 3)),
    ],
    "norm, pool, norm": lambda: [
        *(SignActivation(), BinaryConv2d(2, 6, 3), norm(6, dimensions=2), nn.MaxPool2d(2), norm(6, dimensions=2)),
        *(SignActivation(), BinaryConv2d(6, 3, 2)),
    ],
    "averages": lambda: [
        *(BinaryConv2d(2, 8, 3), SignActivation(), nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)),
        *(BinaryConv2d(8, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ],
    "learned scales of images": lambda: [
        *(scaled(BinaryConv2d(2, 8, 3, bits=3, groups=2, scale="learned")), nn.ReLU()),
        *(SignActivation(), scaled(BinaryConv2d(8, 3, 1, scale="learned")), nn.Flatten()),
    ],
}
LINES = {
    "one dimension": lambda: [
        *(SignActivation(), BinaryConv1d(3, 9, 3, padding=1, dilation=2), norm(9), nn.MaxPool1d(2), SignActivation()),
        *(BinaryConv1d(9, 4, 2, stride=2), norm(4)),
    ],
    "one real dimension": lambda: [
        *(nn.Conv1d(3, 5, 3, padding=1), nn.ReLU(), nn.AvgPool1d(2), BinaryConv1d(5, 4, 2), nn.AdaptiveAvgPool1d(1)),
        *(nn.Flatten(), nn.Linear(4, 2)),
    ],
    "a pool first": lambda: [nn.MaxPool1d(2), nn.Flatten(), BinaryLinear(18, 4)],
}
ROWS_AS_IMAGES = {
    "unflattened": lambda: [
        *(SignActivation(), nn.Unflatten(1, (2, 5, 7)), BinaryConv2d(2, 3, 3), SignActivation(), nn.Flatten()),
        BinaryLinear(45, 2),
    ],
    "unflattened bits": lambda: [
        *(SignActivation(), BinaryLinear(70, 72), SignActivation(), nn.Unflatten(1, (2, 6, 6))),
        *(BinaryConv2d(2, 4, 3), SignActivation()),
    ],
}
ROWS = {
    "rows of 8 bits": lambda: [
        *(QuantActivation(signed=True), biased(BinaryLinear(12, 70, True)), nn.Hardtanh(), QuantActivation()),
        *(BinaryLinear(70, 33, gain=1), QuantActivation(4, signed=True), BinaryLinear(33, 5)),
    ],
    "rows of bits": lambda: [
        *(SignActivation(), biased(BinaryLinear(12, 70, True)), nn.Hardtanh(), SignActivation()),
        *(BinaryLinear(70, 33, gain=1), SignActivation()),
    ],
    "rows of bits, scaled": lambda: [SignActivation(), biased(BinaryLinear(12, 7, True)), nn.ReLU(), nn.Linear(7, 3)],
}
QUANT = {
    "8 bits": lambda: [
        *(QuantActivation(signed=True), BinaryLinear(70, 130), norm(130), QuantActivation(), BinaryLinear(130, 40)),
        *(norm(40), nn.ReLU(), QuantActivation(4, scale=0.5), biased(BinaryLinear(40, 9, True))),
    ],
    "few bits": lambda: [
        *(
            QuantActivation(3, signed=True),
            BinaryLinear(70, 64),
            norm(64),
            nn.Hardtanh(),
            QuantActivation(2, signed=True),
        ),
        *(scaled(BinaryLinear(64, 33, scale="learned")), norm(33), QuantActivation(5, signed=True, scale=3)),
    ],
    "signs and integers": lambda: [
        *(SignActivation(), biased(BinaryLinear(70, 50, True)), norm(50), QuantActivation(6), BinaryLinear(50, 40)),
        *(norm(40), SignActivation(), BinaryLinear(40, 20), nn.Hardtanh(), QuantActivation(signed=True), nn.Dropout()),
        BinaryLinear(20, 7),
    ],
}
QUANT_REAL = {
    "8 bits between real layers": lambda: [
        *(nn.Linear(70, 40), norm(40), QuantActivation(), BinaryLinear(40, 30, bits=2), QuantActivation(signed=True)),
        *(nn.Linear(30, 20), QuantActivation(), BinaryLinear(20, 9), norm(9), nn.Tanh()),
    ],
}
QUANT_IMAGES = {
    "8-bit images": lambda: [
        *(QuantActivation(signed=True), BinaryConv2d(2, 20, 3, padding=1), nn.MaxPool2d(2), norm(20, dimensions=2)),
        *(QuantActivation(), BinaryConv2d(20, 17, 3, padding=1), norm(17, dimensions=2), QuantActivation(7)),
        *(nn.Flatten(), BinaryLinear(153, 3)),
    ],
    "8 bits, norm, pool": lambda: [
        *(QuantActivation(scale=1 / 64), BinaryConv2d(2, 20, (3, 2), stride=(1, 2), padding="valid")),
        *(norm(20, dimensions=2), nn.MaxPool2d(2, padding=1), QuantActivation(signed=True), nn.MaxPool2d(2, 1)),
        BinaryConv2d(20, 3, (2, 1), padding_mode="circular", padding=1),
    ],
    "8 bits, groups": lambda: [
        *(QuantActivation(signed=True), BinaryConv2d(2, 12, 2, groups=2), QuantActivation(signed=True)),
        *(BinaryConv2d(12, 12, 3, groups=12, padding=2, dilation=2), norm(12, dimensions=2), QuantActivation()),
        *(
            biased(BinaryConv2d(12, 24, 1, groups=3, bias=True)),
            QuantActivation(),
            nn.Flatten(),
            nn.Unflatten(1, (6, 10, 10)),
        ),
        BinaryConv2d(6, 3, 1),
    ],
}
SHAPES = {
    (2, 3, 12): ROWS,
    (70,): BINARY | REAL | ROWS_AS_IMAGES | QUANT | QUANT_REAL,
    (2, 6, 6): BINARY_IMAGES | REAL_IMAGES | QUANT_IMAGES,
    (3, 12): LINES,
}
NETWORKS = {name: (shape, build) for shape, builds in SHAPES.items() for name, build in builds.items()}
ROUNDED = {"rows of bits, scaled", *REAL, *REAL_IMAGES, *QUANT_REAL, *LINES, *GRAPHS}
"""Networks with sums of real numbers, or a norm behind the last layer, which is folded."""


def made(name):
    torch.manual_seed(sum(map(ord, name)))
    shape, build = (NETWORKS | GRAPHS)[name]
    model = trained(build()) if name in GRAPHS else nn.Sequential(*build())
    packed_shape = shape if name in GRAPHS and name not in ("resnet", "binary resnet", "densenet") else None
    return Network(model, torch.randn(17, *shape).numpy(), name not in ROUNDED, packed_shape, name)


@cache
def packed(name):
    network = made(name)
    return pack(network.model, input_shape=network.input_shape)


@pytest.fixture(params=NETWORKS | GRAPHS)
def network(request):
    return made(request.param)


@pytest.fixture
def network_of():
    return made


@pytest.fixture
def dense():
    """A fully binary network 70-130-9."""
    return made("dense")
