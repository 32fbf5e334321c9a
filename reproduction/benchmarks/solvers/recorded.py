"""Rows that layers saw while training on public data: what the solvers meet in practice.

MNIST, Adult and Cora are found as everywhere in qpsbgd: in the folder QPSBGD_DATA, else downloaded to the user's cache.
"""

import itertools

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear
from qpsbgd.nn.tape import record_rows
from qpsbgd_paper.datasets.adult import load_adult
from qpsbgd_paper.datasets.graphs import load_planetoid
from qpsbgd_paper.datasets.mnist import load_mnist


def mnist():
    images = load_mnist()
    inputs = (images.train_images[:6000].reshape(-1, 784) / 255 - 0.1307) / 0.3081
    return rows_of(inputs, images.train_labels[:6000], widths=(784, 512, 10), layer=0, batch=100)


def adult():
    rows = load_adult()
    return rows_of(rows.train_inputs, rows.train_targets.long(), widths=(123, 128, 128, 2), layer=1, batch=64)


def cora():
    graph = load_planetoid("cora")
    rows = graph.train
    return rows_of(graph.features[rows], graph.labels[rows], widths=(1433, 64, 7), layer=0, batch=140)


def digits(width, columns):
    pixels, targets = load_digits(return_X_y=True)
    inputs = torch.tensor(pixels / 8 - 1, dtype=torch.float32)
    return rows_of(inputs, torch.tensor(targets), widths=(64, width, columns, 10), layer=1, batch=64)


def rows_of(inputs, targets, *, widths, layer, batch, steps=40):
    """Inputs, output gradients and gain of one layer after some steps of QP-SBGD on the data."""
    torch.manual_seed(0)
    layers = [BinaryLinear(n, m) for n, m in itertools.pairwise(widths)]
    model = nn.Sequential(*(module for linear in layers for module in (linear, nn.Hardtanh())))[:-1]
    optimizer = QPSBGD(model, solver="descent")
    for _ in range(steps):
        rows = torch.randperm(len(inputs))[:batch]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    with record_rows([layers[layer]]) as (tape,):
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
    record = tape.read()
    return record.inputs, record.output_grads, layers[layer].gain
