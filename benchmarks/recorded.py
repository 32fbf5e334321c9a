"""Rows that layers saw while training on public data: what the solvers meet in practice.

The data folder is QPSBGD_DATA, with mnist/, adult/ and planetoid/ as published; files are checked before they are read.
"""

import gzip
import hashlib
import itertools
import os
import pickle
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits, load_svmlight_file
from torch import nn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear
from qpsbgd.recording import recording

SHA256 = {
    "mnist/train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "mnist/train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "adult/a1a": "eb54c45f1bdb51286f803dd092eb8202b44637a858fc6c4e533a2d64a0d94b4e",
    "planetoid/ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "planetoid/ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
}


def read(name):
    root = os.environ.get("QPSBGD_DATA")
    if not root:
        raise SystemExit("set QPSBGD_DATA to the folder that holds mnist/, adult/ and planetoid/")
    content = (Path(root) / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise SystemExit(f"{name} is not the published file: its checksum differs")
    return content


def mnist():
    images = np.frombuffer(gzip.decompress(read("mnist/train-images-idx3-ubyte.gz")), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress(read("mnist/train-labels-idx1-ubyte.gz")), np.uint8, offset=8)
    inputs = (torch.tensor(images.reshape(-1, 784)[:6000] / 255, dtype=torch.float32) - 0.1307) / 0.3081
    return rows_of(inputs, torch.tensor(labels[:6000]).long(), widths=(784, 512, 10), layer=0, batch=100)


def adult():
    read("adult/a1a")
    features, labels = load_svmlight_file(str(Path(os.environ["QPSBGD_DATA"]) / "adult/a1a"), n_features=123)
    inputs = torch.tensor(2 * features.toarray() - 1, dtype=torch.float32)
    return rows_of(inputs, torch.tensor(labels > 0).long(), widths=(123, 128, 128, 2), layer=1, batch=64)


def cora():
    # Checked above: these are the published pickles of one sparse matrix and one array.
    features = scipy.sparse.csr_matrix(pickle.loads(read("planetoid/ind.cora.x"), encoding="latin1")).toarray()
    labels = pickle.loads(read("planetoid/ind.cora.y"), encoding="latin1").argmax(1)
    inputs = torch.tensor(features, dtype=torch.float32)
    return rows_of(inputs, torch.tensor(labels), widths=(1433, 64, 7), layer=0, batch=140)


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
    with recording([layers[layer]]) as (tape,):
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
    record = tape.read()
    return record.inputs, record.output_grads, layers[layer].gain
