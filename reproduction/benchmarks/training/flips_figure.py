"""How often do the signs of each layer flip during a run? Draws docs/flips.svg with `Monitor.plot`.

    python benchmarks/training/flips_figure.py

A binary network 64-128-128-10 with batch norm on scikit-learn's digits, 20 epochs by spins at the defaults, seed 0.
"""

from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from qpsbgd import QPSBGD, Monitor
from qpsbgd.nn import BinaryLinear

EPOCHS, BATCH = 20, 64
OUT = Path(__file__).parents[3] / "docs" / "flips.svg"


def run():
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(digits)
    first = [BinaryLinear(64, 128), nn.BatchNorm1d(128), nn.Hardtanh()]
    second = [BinaryLinear(128, 128), nn.BatchNorm1d(128), nn.Hardtanh()]
    model = nn.Sequential(*first, *second, BinaryLinear(128, 10, bias=True))
    batches = [rows for _ in range(EPOCHS) for rows in torch.randperm(len(inputs)).split(BATCH)]
    optimizer = QPSBGD(model, projection="spins", steps=len(batches), real=True)
    with Monitor(model, optimizer, epoch=len(batches) // EPOCHS) as monitor:
        for rows in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[rows]), targets[rows])
            loss.backward()
            optimizer.step()
            monitor.note_loss(loss)
    return monitor.plot()


if __name__ == "__main__":
    matplotlib.rcParams.update({"svg.hashsalt": "qpsbgd", "svg.fonttype": "none"})
    run().savefig(OUT, metadata={"Date": None})
    print(OUT)
