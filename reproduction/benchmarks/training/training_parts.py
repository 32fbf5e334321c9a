"""Networks and data of the benchmarks of training, and the accuracy of a model."""

import os
import time
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

from qpsbgd.nn import BinaryConv2d, BinaryLinear, convert

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DEVICE_NAME = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"


def clock():
    """Seconds by the clock, once the device has done all that it was asked for."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def autocast(**options):
    """Passes in bfloat16 on a GPU."""
    return torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda", **options)


def dense(widths, *, norm=False, linear=BinaryLinear, activation=nn.Hardtanh, **options):
    layers = []
    for n, m in pairwise(widths):
        layers += [linear(n, m, **options), *([nn.BatchNorm1d(m)] if norm else []), activation()]
    return nn.Sequential(*layers[:-1])


def converted(widths, *, norm=False, he=False, scale="auto"):
    """A network with ReLU as users have it, converted: all layers binary.

    With `he`, initialised after He et al., as deep networks without norms need it.
    """
    linear = he_linear if he else nn.Linear
    return convert(dense(widths, norm=norm, linear=linear, activation=nn.ReLU), scale=scale)


def he_linear(n, m):
    layer = nn.Linear(n, m)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    return layer


def convolutional(*, norm, **options):
    """3 × 3 convolutions 1 → 32 → 64 with pooling, and a linear layer 3136 → 10."""
    layers = []
    for n, m in ((1, 32), (32, 64)):
        layers += [BinaryConv2d(n, m, 3, padding=1, **options), *([nn.BatchNorm2d(m)] if norm else []), nn.Hardtanh()]
        layers += [nn.MaxPool2d(2)]
    layers += [nn.Flatten(), *dense([3136, 10], norm=norm, **options)]
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), *layers)


@cache
def mnist(choosing):
    from qpsbgd_paper.datasets.mnist import load_mnist

    images = load_mnist()
    parts = (images.train_images, images.train_labels, images.test_images, images.test_labels)
    return split_images(parts, choosing, mean=0.1307, deviation=0.3081)


def split_images(parts, choosing, *, mean, deviation):
    """Training and test images and labels, or those of the validation split."""
    inputs, targets, test_inputs, test_targets = (part.to(DEVICE) for part in parts)
    inputs, test_inputs = ((x.flatten(1).float() / 255 - mean) / deviation for x in (inputs, test_inputs))
    if choosing:  # the last sixth for validation
        return inputs[:50000], targets[:50000], inputs[50000:], targets[50000:]
    return inputs, targets, test_inputs, test_targets


@cache
def cifar(name="cifar-10"):
    """Training images (N, 32, 32, 3), uint8, and labels, and those for testing, from images.npz in this folder."""
    arrays = np.load(Path(os.environ["QPSBGD_DATA"]) / name / "images.npz")
    return [torch.from_numpy(arrays[part]) for part in ("x_train", "y_train", "x_test", "y_test")]


def fashion_parts():
    """Training images and labels of Fashion-MNIST and those for testing, from the folder fashion of QPSBGD_DATA."""
    from qpsbgd_paper.datasets.mnist import read_idx

    folder = Path(os.environ["QPSBGD_DATA"]) / "fashion"
    for part in ("train", "t10k"):
        yield torch.from_numpy(read_idx(folder / f"{part}-images-idx3-ubyte.gz", dimensions=3))
        yield torch.from_numpy(read_idx(folder / f"{part}-labels-idx1-ubyte.gz", dimensions=1)).long()


@cache
def fashion(choosing):
    """Fashion-MNIST: held out, run once with the defaults frozen."""
    return split_images(fashion_parts(), choosing, mean=0.2860, deviation=0.3530)


@cache
def table(file, target, choosing):
    """A set of the UCI repository, in the folder uci of QPSBGD_DATA: every fifth row for testing, features scaled.

    Args:
        file: As the repository names it; `target` is the column of the class.
    """
    lines = (Path(os.environ["QPSBGD_DATA"]) / "uci" / file).read_text().splitlines()
    rows = [line.split(",") for line in lines if line.strip()]
    names = {row[target] for row in rows[1:]}
    rows = rows if rows[0][target] in names else rows[1:]  # some copies have a head
    classes = {name: k for k, name in enumerate(sorted(names))}
    targets = torch.tensor([classes[row.pop(target)] for row in rows])
    inputs = torch.tensor([[float(cell) for cell in row] for row in rows])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    inputs, targets = inputs[order], targets[order]
    test = torch.arange(len(rows)) % 5 == 0
    held = torch.arange(len(rows)) % 5 == 1 if choosing else test
    train = ~test & ~held
    inputs = (inputs - inputs[train].mean(0)) / inputs[train].std(0)
    return [part.to(DEVICE) for part in (inputs[train], targets[train], inputs[held], targets[held])]


@cache
def digits(choosing):
    from qpsbgd_paper.experiments.digits import split_digits

    (inputs, targets), (test_inputs, test_targets) = split_digits("validation" if choosing else "test")
    return inputs, targets, test_inputs, test_targets


def accuracy(model, inputs, targets):
    right = sum(
        int((model(x).argmax(1) == y).sum()) for x, y in zip(inputs.split(2000), targets.split(2000), strict=True)
    )
    return right / len(targets)
