"""What packed files of every kind of layer hold, and files of any content under a right checksum."""

import json
import tempfile
from pathlib import Path

import safetensors
import safetensors.numpy
import torch
from graph_networks import GRAPHS, trained
from rewriting import rewritten
from torch import nn

from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation, SignActivation
from qpsbgd_runtime import packed_file


def packed_contents():
    """Operations and tensors of packed models, with the shape of a sample."""
    torch.manual_seed(0)
    dense = (SignActivation(), BinaryLinear(9, 6), nn.BatchNorm1d(6), SignActivation(), BinaryLinear(6, 2))
    convolutional = (
        *(BinaryConv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(4), SignActivation()),
        *(BinaryConv2d(4, 4, 2, groups=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
        nn.Linear(4, 2),
    )
    models = [
        (nn.Sequential(*dense), (9,)),
        (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), BinaryLinear(6, 3, bits=2), nn.Hardtanh()), (4,)),
        (nn.Sequential(QuantActivation(), BinaryLinear(9, 6), QuantActivation(bits=4), BinaryLinear(6, 2)), (9,)),
        (nn.Sequential(*convolutional), (1, 6, 6)),
        *((trained(build()), shape) for shape, build in GRAPHS.values()),
    ]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for model, shape in models:
            model(torch.randn(8, *shape))
            pack(model.eval(), Path(folder) / "net", input_shape=shape)
            with safetensors.safe_open(Path(folder) / "net", framework="numpy") as file:
                content = json.loads(file.metadata()[packed_file.ENTRY])
                content.pop("checksum")
                found.append((content, {name: file.get_tensor(name) for name in file.keys()}, shape))  # noqa: SIM118
    return found


def write_packed(path, content, tensors):
    """Write a packed model of any content, under a right checksum."""
    content = {**content, "checksum": packed_file._checksum(content, tensors)}
    rewritten(path, safetensors.numpy.save(tensors, {packed_file.ENTRY: json.dumps(content)}))
