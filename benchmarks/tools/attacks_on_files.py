"""Attacks on what reads and writes files; see attacks.py."""

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import torch
from forks import in_fork, limit
from torch import nn

from qpsbgd.deploy import load_packed, pack, to_c, to_onnx
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation, SignActivation
from qpsbgd_runtime import packed_file

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "shared"))
from crafted import crafted
from graph_networks import GRAPHS, trained

EXTREMES = (-(2**31), -1, 0, 1, 2, 7, 255, 256, 2**15, 2**24, 2**31 - 1)


def packed_contents():
    """Operations and tensors of packed models of every kind of layer, with the shape of a sample."""
    torch.manual_seed(0)
    models = [
        (
            nn.Sequential(
                SignActivation(), BinaryLinear(9, 6), nn.BatchNorm1d(6), SignActivation(), BinaryLinear(6, 2)
            ),
            (9,),
        ),
        (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), BinaryLinear(6, 3, bits=2), nn.Hardtanh()), (4,)),
        (nn.Sequential(QuantActivation(), BinaryLinear(9, 6), QuantActivation(bits=4), BinaryLinear(6, 2)), (9,)),
        (
            nn.Sequential(
                *(BinaryConv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(4), SignActivation()),
                *(BinaryConv2d(4, 4, 2, groups=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
                nn.Linear(4, 2),
            ),
            (1, 6, 6),
        ),
        *((trained(build()), shape) for shape, build in GRAPHS.values()),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for model, shape in models:
            model(torch.randn(8, *shape))
            pack(model.eval(), Path(folder) / "net", input_shape=shape)
            with safetensors.safe_open(Path(folder) / "net", framework="numpy") as file:
                content = json.loads(file.metadata()[packed_file.ENTRY])
                content.pop("checksum")
                yield content, {name: file.get_tensor(name) for name in file.keys()}, shape  # noqa: SIM118


def write_packed(path, content, tensors):
    """Write a packed model of any content, under a right checksum."""
    content = {**content, "checksum": packed_file._checksum(content, tensors)}
    path.write_bytes(safetensors.numpy.save(tensors, {packed_file.ENTRY: json.dumps(content)}))


def changed_tensor(array, source):
    """A tensor with other numbers, of another type or another shape."""
    array = array.copy()
    kind = source.randrange(6)
    if kind == 0:
        return array[:-1]
    if kind == 1:
        return array.astype(source.choice(["f4", "f8", "i1", "u1", "i4", "i8", "?", "f2"]))
    if kind == 2:
        return np.concatenate([array, array])
    if kind == 3:
        return array.reshape(source.choice([(-1,), (1, *array.shape), (*array.shape, 1)]))
    flat = array.reshape(-1)
    if flat.size:
        values = EXTREMES if array.dtype.kind in "iub" else (np.nan, np.inf, -0.0, 3e38, 1e-45, -1e30)
        with np.errstate(all="ignore"):
            flat[source.randrange(flat.size)] = np.array(source.choice(values)).astype(array.dtype)
    return flat.reshape(array.shape)


def packed_files(source, trials):
    """Packed files with one to three parts changed under a right checksum: loaded, run, written as C and as ONNX"""
    contents = list(packed_contents())
    for _ in range(trials):
        content, tensors, shape = source.choice(contents)
        for _ in range(source.choice((1, 1, 2, 3))):
            if source.random() < 0.5:
                name = source.choice(list(tensors))
                tensors = {**tensors, name: changed_tensor(tensors[name], source)}
            else:
                content = with_extreme(content, source)
        if source.random() < 0.4:
            content = {**content, **crafted({"operations": content["operations"]}, source)}
        yield in_fork(_uses, content, tensors, shape) is True


def with_extreme(content, source):
    """The content with one of its whole numbers at an extreme."""
    text, numbers = json.dumps(content["operations"]), []
    json.loads(text, parse_int=numbers.append)
    if not numbers:
        return content
    at, count = source.randrange(len(numbers)), iter(range(len(numbers)))
    value = source.choice(EXTREMES)
    return {**content, "operations": json.loads(text, parse_int=lambda n: value if next(count) == at else int(n))}


def _uses(content, tensors, shape):
    limit(10**9, 60)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net"
        try:
            write_packed(path, content, tensors)
        except (KeyError, TypeError, ValueError, safetensors.SafetensorError):
            return True  # nobody can write this
        try:
            model = load_packed(path)
        except ValueError:
            return True
        rows = np.ones((2, *(model.input_shape or shape)), np.float32)
        for use in (
            lambda: model(rows),
            lambda: to_c(model, folder, input_shape=model.input_shape or shape),
            lambda: to_onnx(model, Path(folder) / "net.onnx", input_shape=model.input_shape or shape),
            lambda: (repr(model), pack(model, Path(folder) / "again"), load_packed(Path(folder) / "again")),
        ):
            with contextlib.suppress(ValueError):
                use()
    return True
